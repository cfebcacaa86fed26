"""Recursive halving and doubling: as few bytes as the ring, in as few steps as the tree.

The message size and the distance halve from step to step; in the all-gather they double again.

Source: R. Rabenseifner, "Optimization of collective reduction operations", 2004.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from ..schedule import REDUCE, Schedule, Step
from . import doubling


def reduce_scatter(world_size: int) -> Schedule:
    """Send the half of the remaining range that the peer will keep: recursive halving.

    Steps: log2 P. Bytes sent by a rank: (P-1)/P S. Raises `ValueError` if P is not a
    power of two.
    """
    ranks = np.arange(doubling.needs_power_of_two(world_size, "recursive halving"))

    def steps() -> Iterator[Step]:
        # log2 P steps, in each of which a rank sends `distance` chunks
        for distance in reversed(doubling.distances(world_size)):
            peer = ranks ^ distance
            theirs = peer & ~(distance - 1)
            count = np.full(world_size, distance)
            yield Step(ranks, peer, theirs, REDUCE, phase="reduce_scatter", count=count)

    name = "recursive halving reduce_scatter"
    return Schedule(world_size, world_size, steps, name, "reduce_scatter")


def all_reduce(world_size: int) -> Schedule:
    """Reduce-scatter by recursive halving, then all-gather by recursive doubling.

    Steps: 2 log2 P. Bytes sent by a rank: 2(P-1)/P S. If P is not a power of two, let P' be the next lower one: the
    steps are 2 log2 P' + 2, and the bytes 2(P'-1)/P' S + S.
    """
    inner = doubling.largest_power_of_two(world_size)
    phases = reduce_scatter(inner), doubling.all_gather(inner)
    return doubling.folded(world_size, inner, lambda: chain.from_iterable(phases), "halving-doubling all_reduce")
