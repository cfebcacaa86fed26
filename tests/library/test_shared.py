"""Ranks that share memory end with the numbers of the simulation, whatever the schedule, the pace and the tensor."""

import os
import re
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

from collectives import Schedule, execute, ranks, simulate
from collectives.algorithms import pairwise, ring, tree
from collectives.algorithms.scorecard import ROWS
from collectives.ranks import shared
from collectives.ranks.shared import Arena

DTYPES = [torch.int64, torch.float32, torch.bfloat16, torch.uint8]


def every_schedule(world_size, num_elements):
    """Every algorithm that takes so many ranks and elements, and random schedules."""
    known = [row.algorithm(world_size) for row in ROWS if row.takes(world_size)]
    even = num_elements % world_size == 0  # where chunks change places, they are of one length
    yield from (schedule for schedule in known if even or schedule.collective != "all_to_all")
    yield from (random_schedule(world_size, seed) for seed in range(4 if world_size > 1 else 0))


def random_schedule(world_size, seed):
    """Ranks send, add and overwrite runs of chunks without any plan, also those that they send in the same step."""
    draw = np.random.default_rng([world_size, seed])
    num_chunks, steps = 6, []
    for _ in range(12):
        written, step = {}, []
        for _ in range(3 * world_size):
            src, dst = draw.choice(world_size, 2, replace=False).tolist()
            chunk, count = draw.integers(num_chunks - 1).item(), draw.integers(1, 3).item()
            combine = ["copy", "reduce"][draw.integers(2)]
            slots = [(dst, c) for c in range(chunk, chunk + count)]
            if all(slot not in written or written[slot] == combine == "reduce" for slot in slots):
                step.append((src, dst, chunk, combine, None, count))
                written |= dict.fromkeys(slots, combine)
        steps.append(step)
    return Schedule.of(world_size, num_chunks, steps, name=f"random {seed}")


def make_buffer(rank, num_elements, dtype):
    numbers = np.random.default_rng(rank).integers(0, 20, num_elements)
    buffer = torch.tensor(numbers).to(dtype)
    return buffer / 7 if dtype.is_floating_point else buffer


def run_everything(rank, world_size, lengths):
    """All schedules, dtypes and lengths in one arena, straight after each other: on a tensor of each kind."""
    arena, outcomes = Arena(2 * 8 * max(lengths) + 64), []
    home = arena.empty(8 * max(lengths), torch.uint8)
    for num_elements in lengths:
        for schedule in every_schedule(world_size, num_elements):
            for dtype in DTYPES:
                ordinary = make_buffer(rank, num_elements, dtype)
                living = home[: num_elements * dtype.itemsize].view(dtype).copy_(ordinary)
                execute(schedule, ordinary, transport=arena)
                execute(schedule, living, transport=arena)
                outcomes.append((ordinary, living.clone()))
    return outcomes


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8])
def test_shared_memory_gives_the_numbers_of_the_simulation(world_size):
    """Bit for bit, in every schedule's own order of additions, in tensors that live in the arena and in others."""
    lengths = [0, 1, 24, 1001]
    by_rank = ranks.run(run_everything, world_size, lengths)
    cases = [(s, n, dtype) for n in lengths for s in every_schedule(world_size, n) for dtype in DTYPES]
    for index, (schedule, num_elements, dtype) in enumerate(cases):
        ordinary, living = (torch.stack([outcomes[index][kind] for outcomes in by_rank]) for kind in (0, 1))
        assert torch.equal(ordinary, living), f"{schedule.name}, {num_elements} of {dtype}"
        if dtype != torch.bfloat16:  # numpy has no such type
            before = torch.stack([make_buffer(rank, num_elements, dtype) for rank in range(world_size)])
            expected = torch.tensor(simulate(schedule, before.numpy()))
            assert torch.equal(expected, ordinary), f"{schedule.name}, {num_elements} of {dtype}"


def random_schedules_over_messages(rank, world_size):
    buffers = [make_buffer(rank, 1001, torch.float32) for _ in range(4)]
    for seed, buffer in enumerate(buffers):
        execute(random_schedule(world_size, seed), buffer)
    return buffers


def test_messages_give_the_numbers_of_the_simulation_for_schedules_without_a_plan_too():
    by_rank = ranks.run(random_schedules_over_messages, 3)
    before = torch.stack([make_buffer(rank, 1001, torch.float32) for rank in range(3)])
    for seed in range(4):
        executed = torch.stack([buffers[seed] for buffers in by_rank])
        assert torch.equal(torch.tensor(simulate(random_schedule(3, seed), before.numpy())), executed)


SWAP = [[(0, 1, 0, "copy"), (1, 0, 0, "copy")]]
OVERWRITE_WHAT_A_SLOW_RANK_HAS_YET_TO_READ = [[(0, 1, 0, "copy")], [(2, 0, 0, "copy")], [(2, 0, 0, "reduce")]]
HAZARDS = [
    Schedule.of(3, 1, SWAP, name="swap"),
    Schedule.of(3, 1, OVERWRITE_WHAT_A_SLOW_RANK_HAS_YET_TO_READ, name="overwrite"),
    pairwise.all_to_all(3),
    ring.all_reduce(3),
    tree.broadcast(3),
]


def run_at_uneven_pace(rank, world_size, slow):
    """One rank sleeps before it reads anything; the others run on, and change their buffers as soon as they may."""
    arena = Arena(4096)
    living, outcomes = arena.empty(30, torch.int64), []
    look = shared._Run._wait

    def look_late(run, waits, step):
        look(run, waits, step)
        if waits and rank == slow:
            time.sleep(0.002)

    shared._Run._wait = look_late
    for schedule in HAZARDS:
        for buffer in (torch.empty(30, dtype=torch.int64), living):
            buffer.copy_(torch.arange(30) + 100 * rank)
            execute(schedule, buffer, transport=arena)
            outcomes.append(buffer.clone())
            buffer.fill_(-1)  # what is done with a buffer after `execute` is no peer's affair
    return outcomes


@pytest.mark.parametrize("slow", range(3))
def test_nobody_overwrites_what_a_slow_rank_has_yet_to_read(slow):
    by_rank = ranks.run(run_at_uneven_pace, 3, slow)
    before = np.arange(30) + 100 * np.arange(3)[:, None]
    for index, schedule in enumerate(HAZARDS):
        for kind in (0, 1):
            executed = np.stack([outcomes[2 * index + kind] for outcomes in by_rank])
            assert (executed == simulate(schedule, before)).all(), schedule.name


def one_stays_away(rank, world_size):
    arena = Arena(4096)
    if rank == 2:
        return "went home"
    execute(ring.all_reduce(world_size), torch.ones(8), timeout=0.5, transport=arena)


def test_a_rank_that_never_shows_up_is_named_after_the_time_out():
    with pytest.raises(ranks.RanksError) as failure:
        ranks.run(one_stays_away, 4, timeout=20)
    words = str(failure.value)
    assert re.search(r"rank \d, step \d: waited 0.5 s in vain for rank \d to (send|take) chunk \d", words)
    assert "rank 2 has returned" in words


def fails_and_tries_again(rank, world_size):
    arena = Arena(4096)
    if rank == 0:
        return []
    complaints = []
    for _ in range(2):
        try:
            execute(tree.broadcast(2), torch.ones(1), timeout=0.1, transport=arena)
        except shared.ExecutionError as error:
            complaints.append(str(error))
    return complaints


def test_an_arena_in_which_a_run_failed_is_not_used_again():
    _, complaints = ranks.run(fails_and_tries_again, 2)
    assert complaints[0] == "rank 1, step 0: waited 0.1 s in vain for rank 0 to send chunk 0"
    assert complaints[1].startswith("a run in this arena has failed, make a new one (rank 1, step 0")


def differ(rank, world_size):
    execute(ring.all_reduce(2), torch.ones(8 + rank), timeout=1, transport=Arena(4096))


def test_ranks_that_disagree_about_the_buffer_are_told_so():
    with pytest.raises(ranks.RanksError, match="runs another schedule, or one on a buffer of another length or dtype"):
        ranks.run(differ, 2)


def dies_with_an_arena(rank, world_size):
    arena = Arena(2**21)
    arena.empty(2**18).fill_(1)
    dist.barrier()
    if rank == 1:
        os.abort()
    execute(ring.all_reduce(world_size), torch.ones(8), transport=arena)


def test_a_rank_that_dies_leaves_nothing_behind():
    before = set(os.listdir("/dev/shm"))
    with pytest.raises(ranks.RanksError, match="rank 1 died"):
        ranks.run(dies_with_an_arena, 2)
    assert set(os.listdir("/dev/shm")) <= before


def in_a_subgroup(rank, world_size):
    pair = dist.new_group([1, 3])
    buffer = torch.tensor([float(rank)])
    if rank in (1, 3):
        arena = Arena(64, pair)
        execute(ring.all_reduce(2), buffer, pair, transport=arena)
        execute(ring.all_reduce(2), buffer, transport=arena)  # it knows its group
    return buffer.item()


def test_an_arena_belongs_to_a_group():
    assert ranks.run(in_a_subgroup, 4) == [0.0, 8.0, 2.0, 8.0]


def wrong_use(rank, world_size, what):
    if what == "sizes":
        Arena(4096 * (rank + 1))
    arena = Arena(4096)
    if what == "full":
        arena.empty(1000)
        arena.empty(25)
    group = dist.new_group([0, 1]) if what == "group" else None
    length = 1025 if what == "large" else 4
    buffer = torch.ones(length, device="meta" if what == "device" else "cpu")
    execute(ring.all_reduce(3 if what == "world" else 2), buffer, group, transport=arena)


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ("large", "4100 bytes do not fit: of the 4096 for each rank, 4096 are free"),
        ("full", "100 bytes do not fit: of the 4096 for each rank, 64 are free"),
        ("device", "an arena is memory of the host, but this tensor is on meta"),
        ("world", "ring all_reduce is for 3 ranks, but the group has 2"),
        ("sizes", r"all ranks must pass the same num_bytes, but got \[4096, 8192\]"),
        ("group", "the transport belongs to another group"),
    ],
)
def test_wrong_use_is_refused_before_anything_moves(what, complaint):
    with pytest.raises(ranks.RanksError, match=complaint):
        ranks.run(wrong_use, 2, what)
