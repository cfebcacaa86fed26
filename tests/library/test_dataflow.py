"""Liveness decides when a slot goes stale, for any schedule."""

import numpy as np
import pytest

from collectives import Schedule, contracts
from collectives.algorithms import ring
from collectives.dataflow import live


def stale(schedule):
    """bool [num_steps + 1, world_size, num_chunks]: the slots that hold nothing anybody will read."""
    return ~np.array(live(schedule, contracts.of(schedule).terms(schedule).wanted))


@pytest.mark.parametrize("world_size", range(2, 9))
def test_in_the_ring_every_step_of_the_reduce_scatter_leaves_one_more_stale_slot_a_rank(world_size):
    by_rank = stale(ring.all_reduce(world_size)).sum(axis=2)
    growing, shrinking = list(range(world_size)), list(range(world_size - 1))[::-1]
    assert (by_rank == np.array(growing + shrinking)[:, None]).all()


def test_recursive_doubling_forwards_a_slot_that_is_not_stale():
    """Ranks swap whole sums: what was sent is still needed, to be added to."""
    steps = [[(r, r ^ mask, 0, "reduce") for r in range(4)] for mask in (1, 2)]
    doubling = Schedule.of(4, 1, steps, collective="all_reduce")
    contracts.all_reduce.check(doubling)
    assert not stale(doubling).any()


def test_recursive_halving_forwards_each_slot_once_and_for_the_last_time():
    """In each step a rank sends the half that it will not keep, and never reads it again."""
    steps = [
        [(r, r ^ mask, c, "reduce") for r in range(4) for c in range(4) if (c ^ r) & mask and (c ^ r) < 2 * mask]
        for mask in (2, 1)
    ]
    halving = Schedule.of(4, 4, steps, collective="reduce_scatter")
    contracts.reduce_scatter.check(halving)
    gone = stale(halving)
    for index, step in enumerate(halving):
        assert gone[index + 1][step.src, step.chunk].all()
