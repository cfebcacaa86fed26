"""`execute` runs in place, in little memory, on any group, and names who never came."""

import re

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from collectives import Schedule, execute, ranks, simulate
from collectives.algorithms import hierarchical, rails, ring, tree

pytestmark = pytest.mark.ranks


class Allocated(TorchDispatchMode):
    """Counts the bytes of every tensor that is newly made inside."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # as in wire.py: or every rank would import torch's compiler

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        if "empty" in operation.__name__ or "new" in operation.__name__ or "clone" in operation.__name__:
            self.bytes += made.numel() * made.element_size()
        return made


def allocated_by_each(rank, world_size, schedules, num_elements):
    sizes = []
    for schedule in schedules:
        buffer = torch.ones(num_elements)
        with Allocated() as allocated:
            execute(schedule, buffer)
        sizes.append(allocated.bytes)
    return sizes


def test_no_rank_allocates_more_than_one_step_needs():
    """A ring stages one chunk that it adds; an all-gather and a broadcast receive in place and stage nothing."""
    schedules = [ring.all_reduce(4), ring.all_gather(4), tree.broadcast(4)]
    num_elements = 1000
    by_rank = ranks.run(allocated_by_each, 4, schedules, num_elements)
    assert by_rank == [[num_elements // 4 * 4, 0, 0]] * 4


def executed_by_each(rank, world_size, schedules, given):
    buffers = []
    for schedule in schedules:
        buffer = torch.from_numpy(given[rank].copy())
        execute(schedule, buffer)
        buffers.append(buffer.tolist())
    return buffers


def test_what_runs_on_rails_ends_on_real_ranks_as_it_is_simulated():
    """Two nodes of two: the multi-rail ring, NCCL's double tree over nodes, two levels and the all-to-all by rails."""
    schedules = [
        rails.all_reduce(4, 2), rails.tree_all_reduce(4, 2), hierarchical.all_reduce(4, 2), rails.all_to_all(4, 2)
    ]  # fmt: skip
    given = np.arange(4 * 48).reshape(4, 48)
    by_rank = ranks.run(executed_by_each, 4, schedules, given)
    for number, schedule in enumerate(schedules):
        assert [buffers[number] for buffers in by_rank] == simulate(schedule, given).tolist()


def swap_in_place(rank, world_size):
    buffer = torch.full((5,), rank)
    execute(Schedule.of(2, 1, [[(0, 1, 0, "copy"), (1, 0, 0, "copy")]]), buffer)
    return buffer.tolist()


def test_a_copy_onto_a_chunk_that_is_being_sent_waits_for_the_send():
    assert ranks.run(swap_in_place, 2) == [[1] * 5, [0] * 5]


def halve(rank, world_size):
    steps = [
        [(r, r ^ mask, c, "reduce") for r in range(4) for c in range(4) if (c ^ r) & mask and (c ^ r) < 2 * mask]
        for mask in (2, 1)
    ]
    buffer = torch.arange(10) + rank
    execute(Schedule.of(4, 4, steps), buffer)
    return buffer.tensor_split(4)[rank].tolist()


def test_several_chunks_between_two_ranks_arrive_where_they_belong():
    assert ranks.run(halve, 4) == [[6, 10, 14], [18, 22, 26], [30, 34], [38, 42]]


def in_a_subgroup(rank, world_size):
    pair = dist.new_group([1, 3])
    buffer = torch.tensor([float(rank)])
    if rank in (1, 3):
        execute(ring.all_reduce(2), buffer, group=pair)
    return buffer.item()


def test_a_group_counts_its_own_ranks():
    assert ranks.run(in_a_subgroup, 4) == [0.0, 4.0, 2.0, 4.0]


def waits_in_a_subgroup(rank, world_size):
    pair = dist.new_group([2, 3])
    if rank == 2:
        execute(ring.all_reduce(2), torch.ones(8), group=pair)
    elif rank == 3:
        dist.recv(torch.ones(1), 2)


def test_ranks_of_a_subgroup_are_named_as_everybody_knows_them():
    with pytest.raises(ranks.RanksError, match="rank 2 → rank 3 → rank 2") as failure:
        ranks.run(waits_in_a_subgroup, 4, timeout=2)
    assert failure.value.waits == {2: 3, 3: 2}


def one_stays_away(rank, world_size):
    if rank == 2:
        return "went home"
    execute(ring.all_reduce(world_size), torch.ones(8), timeout=1.0)


def test_a_rank_that_never_shows_up_is_named_after_the_time_out():
    with pytest.raises(ranks.RanksError) as failure:
        ranks.run(one_stays_away, 4, timeout=20)
    words = str(failure.value)
    assert re.search(r"rank \d, step \d: waited 1(\.\d)? s in vain for rank \d to", words)
    assert "rank 2 has returned" in words
    assert "ranks wait for rank 2, which waits for no rank" in words


def wrong_arguments(rank, world_size, what):
    buffer = {"matrix": torch.ones(2, 2), "strided": torch.ones(8)[::2]}.get(what, torch.ones(4))
    execute(ring.all_reduce(3 if what == "size" else 2), buffer)


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ("size", "ring all_reduce is for 3 ranks, but the group has 2"),
        ("matrix", r"needs a flat, contiguous tensor; this one has shape \(2, 2\)"),
        ("strided", "needs a flat, contiguous tensor"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(what, complaint):
    with pytest.raises(ranks.RanksError, match=complaint):
        ranks.run(wrong_arguments, 2, what)


def all_reduce_on_gpus(rank, world_size):
    buffer = torch.arange(1001, device="cuda") + rank
    execute(ring.all_reduce(world_size), buffer)
    return dist.get_backend(), buffer.tolist()


def test_the_same_function_runs_over_nccl():
    """With a GPU for every rank, nothing changes but the backend and where the buffer lives."""
    if torch.cuda.device_count() < 2:
        pytest.skip("blocked: no GPU")
    expected = (torch.arange(1001) * 2 + 1).tolist()
    assert ranks.run(all_reduce_on_gpus, 2, backend="nccl") == [("nccl", expected)] * 2
