"""A contract proves a schedule for all inputs, or names the rank, the chunk and the fault."""

import pytest

from collectives import Schedule, Transfer, contracts
from collectives.algorithms import pairwise, ring, tree
from collectives.schedule import COPY, REDUCE

P = 4


def ring_steps(first_chunk=-1, to=1, combine=REDUCE, without=None):
    """The reduce-scatter ring on 4 ranks, with one thing at a time to get wrong."""
    return [
        [Transfer(r, (r + to) % P, (r + first_chunk - step) % P, combine) for r in range(P)]
        for step in range(P - 1)
        if step != without
    ]


KNOWN_WRONG = {
    "the start offset is off by one": (
        contracts.reduce_scatter,
        ring_steps(first_chunk=0),
        "chunk 0 on rank 0 lacks ranks 1, 2 and 3: no step ever writes it; the finished chunk 0 is on rank 3.",
    ),
    "the direction is reversed": (
        contracts.reduce_scatter,
        ring_steps(to=-1),
        "chunk 0 on rank 0 lacks ranks 2 and 3: the last to write it is step 0 (0:1→0+), which brings rank 1.",
    ),
    "a copy stands for a reduction": (
        contracts.reduce_scatter,
        ring_steps(combine=COPY),
        "chunk 0 on rank 0 lacks ranks 0, 2 and 3: step 0 copies over rank 2 instead of adding (0:1→2).",
    ),
    "a stale value is forwarded": (
        contracts.all_reduce,
        ring_steps() + ring_steps(first_chunk=-1, combine=COPY),
        "step 3 forwards a stale value (0:1→2): rank 0 already holds a newer sum.",
    ),
    "a step is missing": (
        contracts.reduce_scatter,
        ring_steps(without=1),
        "chunk 0 on rank 0 lacks ranks 1 and 2: the last to write it is step 1 (0:3→0+), which brings rank 3.",
    ),
    "a reduction stands for a copy": (
        contracts.all_reduce,
        ring_steps() + ring_steps(first_chunk=0, combine=REDUCE),
        "holds ranks 0, 2 and 3 too often: step 3 adds rank 2 a second time (1:1→2+)",
    ),
    "a rank sends what it does not have": (
        contracts.all_gather,
        ring_steps(first_chunk=1, combine=COPY),
        "holds what rank 3 began with and lacks rank 0: in step 0 rank 3 sends chunk 0 before it has it (0:3→0)",
    ),
}


@pytest.mark.parametrize("fault", KNOWN_WRONG)
def test_a_wrong_schedule_is_refused_with_its_fault(fault):
    contract, steps, words = KNOWN_WRONG[fault]
    with pytest.raises(contracts.ContractError) as refusal:
        contract.check(Schedule.of(P, P, steps))
    assert words in str(refusal.value)
    assert refusal.value.wrong[refusal.value.rank, refusal.value.chunk]


def shift(steps):
    """An all-to-all in place: in step k every rank sends rank r + k its chunk, which becomes chunk r there."""
    return [[Transfer(r, (r + k) % P, (r + k) % P, COPY, into=r) for r in range(P) for k in ks] for ks in steps]


OF_MANY_KINDS = {
    "a chunk is overwritten before it is sent": (
        contracts.all_to_all,
        shift([[1], [2], [3]]),
        "chunk 1 on rank 0 holds what rank 0 began with, lacks rank 1 and holds what was in chunk 1 instead of",
    ),
    "a chunk lands in the wrong place": (
        contracts.all_to_all,
        [[Transfer(r, r ^ mask, r ^ mask, COPY, into=r ^ mask) for r in range(P)] for mask in (1, 2, 3)],
        "chunk 0 on rank 0 holds what rank 3 began with and lacks rank 0: the last to write it is step 2 (0:3→0)",
    ),
    "a shard goes to the neighbour": (
        contracts.scatter,
        [[Transfer(0, r, (r + 1) % P, COPY)] for r in range(1, P)],
        "chunk 1 on rank 1 holds what rank 1 began with and lacks rank 0: no step ever writes it",
    ),
    "a shard is forgotten": (
        contracts.gather,
        [[Transfer(r, 0, r, COPY)] for r in range(2, P)],
        "chunk 1 on rank 0 holds what rank 0 began with and lacks rank 1: no step ever writes it",
    ),
}


@pytest.mark.parametrize("fault", OF_MANY_KINDS)
def test_a_wrong_schedule_of_any_collective_is_refused_with_its_fault(fault):
    contract, steps, words = OF_MANY_KINDS[fault]
    with pytest.raises(contracts.ContractError) as refusal:
        contract.check(Schedule.of(P, P, steps))
    assert words in str(refusal.value)


def test_the_shift_that_swaps_both_ways_in_one_step_loses_nothing():
    contracts.all_to_all.check(Schedule.of(P, P, shift([[1, 3], [2]])))


def test_a_barrier_may_hear_twice_but_must_hear_from_all():
    hear = [[Transfer(r, (r + distance) % P, 0, REDUCE) for r in range(P)] for distance in (1, 2)]
    contracts.barrier.check(Schedule.of(P, 1, hear))
    contracts.barrier.check(Schedule.of(P, 1, hear + hear))
    with pytest.raises(contracts.ContractError, match="chunk 0 on rank 0 lacks ranks 1 and 2"):
        contracts.barrier.check(Schedule.of(P, 1, hear[:1]))


def test_signals_that_multiply_do_not_overflow():
    contracts.barrier.check(pairwise.barrier(70))


def test_two_chunks_mixed_into_one_are_no_sum_of_either():
    """Every rank is in the sum once, but not all of them with the same chunk."""
    steps = [[Transfer(1, 0, 1, REDUCE, into=0)], [Transfer(0, 1, 0, COPY)], [Transfer(1, 0, 1, REDUCE)]]
    with pytest.raises(contracts.ContractError, match="holds what was in chunks 0 and 1 instead of chunk 0"):
        contracts.reduce.check(Schedule.of(2, 2, steps))


def test_uneven_blocks_have_a_chunk_for_each_pair():
    with pytest.raises(ValueError, match="a chunk for each pair of its 2 ranks, not 3 chunks"):
        contracts.all_to_all_uneven.check(Schedule.of(2, 3, []))


def test_removing_or_repeating_any_one_step_breaks_the_ring():
    """No step of the ring all-reduce is superfluous, and the checker sees each of them go."""
    steps = list(ring.all_reduce(P))
    for index in range(len(steps)):
        for damaged in (steps[:index] + steps[index + 1 :], steps[: index + 1] + steps[index:]):
            if index >= P - 1 and len(damaged) > len(steps):
                continue  # to copy a finished chunk twice is a waste, not a fault
            with pytest.raises(contracts.ContractError):
                contracts.all_reduce.check(Schedule.of(P, P, damaged))


def test_a_schedule_is_held_to_its_own_root():
    contracts.broadcast.check(tree.broadcast(5, root=3))
    from_zero = Schedule.of(5, 1, tree.broadcast(5, root=0), root=3)
    with pytest.raises(contracts.ContractError, match="chunk 0 on rank 0 holds what rank 0 began with"):
        contracts.broadcast.check(from_zero)


def test_shards_need_chunks_that_can_be_dealt_out():
    with pytest.raises(ValueError, match="3 chunks don't divide evenly among 2 ranks"):
        contracts.reduce_scatter.check(Schedule.of(2, 3, []))


@pytest.mark.parametrize(
    ("contract", "schedule", "words"),
    [
        (
            contracts.reduce,
            Schedule.of(3, 1, [[(2, 1, 0, "reduce")], [(0, 1, 0, "reduce"), (2, 1, 0, "reduce")]], root=1),
            "step 1 adds rank 2 a second time (0:2→1+)",
        ),
        (
            contracts.all_reduce,
            Schedule.of(4, 4, [[t for t in ring_steps()[0] if t[2] != 3], *list(ring.all_reduce(4))[1:]]),
            "step 3 copies over rank 0, which is not in what arrives (3:3→0)",
        ),
        (
            contracts.all_gather,
            Schedule.of(
                4, 4, [[t for t in next(iter(ring.all_gather(4))) if t[2] != 1], *list(ring.all_gather(4))[1:]]
            ),
            "in step 1 rank 2 sends chunk 1 before it has it (1:2→3)",
        ),
    ],
    ids=["the transfer that repeats", "a sum that was never complete", "a copy of nothing"],
)
def test_a_fault_is_blamed_on_the_transfer_that_commits_it(contract, schedule, words):
    with pytest.raises(contracts.ContractError) as refusal:
        contract.check(schedule)
    assert words in str(refusal.value)
