"""A contract proves a schedule for all inputs, or names the rank, the chunk and the fault."""

import pytest

from collectives import Schedule, Transfer, contracts
from collectives.algorithms import ring, tree
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
    with pytest.raises(ValueError, match="3 chunks cannot be dealt out evenly to 2 ranks"):
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
