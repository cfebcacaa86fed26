"""Halve what you send and the distance it goes, step by step; then double both: the ring's bytes in the tree's steps.

Source: R. Rabenseifner, "Optimization of collective reduction operations", 2004.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from ..schedule import REDUCE, Schedule, Step
from . import doubling


def reduce_scatter(world_size: int) -> Schedule:
    """Recursive halving: send the half of your range that the other side will keep. P is a power of two.

    Steps: log2 P. Bytes sent by a rank: (P-1)/P S.
    """
    ranks = np.arange(doubling.needs_power_of_two(world_size, "recursive halving"))

    def steps() -> Iterator[Step]:
        for distance in reversed(doubling.distances(world_size)):  # log2 P steps; `distance` chunks go over
            peer = ranks ^ distance
            theirs = peer & ~(distance - 1)
            count = np.full(world_size, distance)
            yield Step(ranks, peer, theirs, REDUCE, phase="reduce_scatter", count=count)

    return Schedule(world_size, world_size, steps, "recursive halving reduce_scatter", "reduce_scatter")


def all_reduce(world_size: int) -> Schedule:
    """Recursive halving, then recursive doubling.

    Steps: 2 log2 P, and 2 more if P is no power of two. Bytes sent by a rank: 2(P-1)/P S, or with P' the largest
    power of two below P 2(P'-1)/P' S + S.
    """
    inner = doubling.largest_power_of_two(world_size)
    core = chain.from_iterable
    halves = reduce_scatter(inner), doubling.all_gather(inner)
    return doubling.folded(world_size, inner, lambda: core(halves), "halving-doubling all_reduce")
