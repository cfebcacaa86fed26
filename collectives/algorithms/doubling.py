"""Distances double: in step k everybody talks to a rank 2^k away, and after ceil(log2 P) steps has reached all.

Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH", 2005;
the barrier: D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization", 1988.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import index

import numpy as np

from ..schedule import COPY, REDUCE, Schedule, ScheduleError, Step, Transfer


def all_reduce(world_size: int) -> Schedule:
    """Recursive doubling: swap whole sums with the rank whose number differs in one bit.

    Steps: log2 P, and 2 more if P is no power of two. Bytes sent by a rank: S in each step.
    """

    def steps() -> Iterator[Step]:
        ranks = np.arange(largest_power_of_two(world_size))
        for distance in distances(len(ranks)):  # log2 P steps, in which the whole buffer travels
            yield Step(ranks, ranks ^ distance, np.zeros_like(ranks), REDUCE, phase="all_reduce")

    return folded(world_size, 1, steps, "recursive doubling all_reduce")


def all_gather(world_size: int) -> Schedule:
    """Recursive doubling: swap all that you have with the rank whose number differs in one bit. P is a power of two.

    Steps: log2 P. Bytes sent by a rank: (P-1)/P S.
    """
    ranks = np.arange(needs_power_of_two(world_size, "recursive doubling"))

    def steps() -> Iterator[Step]:
        for distance in distances(world_size):  # log2 P steps; `distance` chunks are here by now
            mine = ranks & ~(distance - 1)
            count = np.full(world_size, distance)
            yield Step(ranks, ranks ^ distance, mine, COPY, phase="all_gather", count=count)

    return Schedule(world_size, world_size, steps, "recursive doubling all_gather", "all_gather")


def barrier(world_size: int) -> Schedule:
    """Dissemination: tell the rank 2^k further round what you have heard so far. No data moves.

    Steps: ceil(log2 P). Messages sent by a rank: ceil(log2 P), of no bytes.
    """

    def rank_zero() -> Iterator[list[Transfer]]:
        for distance in distances(world_size):  # ceil(log2 P) steps
            yield [Transfer(0, distance, 0, REDUCE)]

    return Schedule.rotated(world_size, 1, rank_zero, "barrier", "dissemination barrier")


def distances(world_size: int) -> list[int]:
    """1, 2, 4, ...: the powers of two below `world_size`."""
    return [2**k for k in range((index(world_size) - 1).bit_length())]


def largest_power_of_two(world_size: int) -> int:
    """The largest power of two that is at most `world_size`."""
    if world_size < 1:
        raise ScheduleError(f"world_size is a whole number of at least 1, not {world_size}")
    return 2 ** (index(world_size).bit_length() - 1)


def needs_power_of_two(world_size: int, what: str) -> int:
    """`world_size`, if it is a power of two; `ValueError` if not."""
    if world_size < 1 or world_size & (world_size - 1):
        raise ValueError(f"{what} pairs ranks that differ in one bit: it takes 1, 2, 4, 8, ... ranks, not {world_size}")
    return world_size


def folded(world_size: int, num_chunks: int, core, name: str) -> Schedule:
    """An all-reduce for any P from `core`, the steps of one for the first 2^k ranks.

    Each rank beyond those hands its whole buffer to a partner among them first, and gets the sum from it last.
    """
    inner = largest_power_of_two(world_size)
    outer = np.arange(inner, world_size)
    partner, zeros, whole = outer - inner, np.zeros_like(outer), np.full_like(outer, num_chunks)
    before = [Step(outer, partner, zeros, REDUCE, phase="fold", count=whole)] if len(outer) else []
    after = [Step(partner, outer, zeros, COPY, phase="unfold", count=whole)] if len(outer) else []
    return Schedule(world_size, num_chunks, lambda: chain(before, core(), after), name, "all_reduce")
