"""Recursive doubling: in step k each rank talks to a rank 2^k away, so ceil(log2 P) steps reach all ranks.

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
    """Swap whole partial sums with the rank whose number differs in one bit, and add: recursive doubling.

    Steps: log2 P, rounded down, and 2 more if P is not a power of two. Bytes sent by a rank: S in each step.
    """

    def steps() -> Iterator[Step]:
        ranks = np.arange(largest_power_of_two(world_size))
        for distance in distances(len(ranks)):  # log2 P steps, each with the whole buffer
            yield Step(ranks, ranks ^ distance, np.zeros_like(ranks), REDUCE, phase="all_reduce")

    return folded(world_size, 1, steps, "recursive doubling all_reduce")


def all_gather(world_size: int) -> Schedule:
    """Swap all gathered chunks with the rank whose number differs in one bit: recursive doubling.

    Steps: log2 P. Bytes sent by a rank: (P-1)/P S. Raises `ValueError` if P is not a power of two.
    """
    ranks = np.arange(needs_power_of_two(world_size, "recursive doubling"))

    def steps() -> Iterator[Step]:
        for distance in distances(world_size):  # log2 P steps; a rank has `distance` chunks so far
            mine = ranks & ~(distance - 1)
            count = np.full(world_size, distance)
            yield Step(ranks, ranks ^ distance, mine, COPY, phase="all_gather", count=count)

    return Schedule(world_size, world_size, steps, "recursive doubling all_gather", "all_gather")


def barrier(world_size: int) -> Schedule:
    """Signal the rank 2^k further around the ring in step k: the dissemination barrier. No data moves.

    Steps: ceil(log2 P). Messages sent by a rank: ceil(log2 P), of 0 bytes.
    """

    def rank_zero() -> Iterator[list[Transfer]]:
        for distance in distances(world_size):  # ceil(log2 P) steps
            yield [Transfer(0, distance, 0, REDUCE)]

    return Schedule.rotated(world_size, 1, rank_zero, "barrier", "dissemination barrier")


def distances(world_size: int) -> list[int]:
    """Return the powers of two below `world_size`: 1, 2, 4, ..."""
    return [2**k for k in range((index(world_size) - 1).bit_length())]


def largest_power_of_two(world_size: int) -> int:
    """Return the largest power of two up to `world_size`; raise `ScheduleError` if `world_size` is below 1."""
    if world_size < 1:
        raise ScheduleError(f"world_size must be a whole number of at least 1, not {world_size}")
    return 2 ** (index(world_size).bit_length() - 1)


def needs_power_of_two(world_size: int, what: str) -> int:
    """Return `world_size` if it is a power of two; raise `ValueError` for the algorithm `what` if it isn't."""
    if world_size < 1 or world_size & (world_size - 1):
        raise ValueError(f"{what} pairs ranks that differ in one bit: it takes 1, 2, 4, 8, ... ranks, not {world_size}")
    return world_size


def folded(world_size: int, num_chunks: int, core, name: str) -> Schedule:
    """Return an all-reduce for any P, given `core`: the steps of an all-reduce on the first 2^k ranks.

    Each remaining rank first sends its whole buffer to a peer among the 2^k ranks. At the end the peer sends it the
    sum.
    """
    inner = largest_power_of_two(world_size)
    outer = np.arange(inner, world_size)
    peer, zeros, whole = outer - inner, np.zeros_like(outer), np.full_like(outer, num_chunks)
    before = [Step(outer, peer, zeros, REDUCE, phase="fold", count=whole)] if len(outer) else []
    after = [Step(peer, outer, zeros, COPY, phase="unfold", count=whole)] if len(outer) else []
    return Schedule(world_size, num_chunks, lambda: chain(before, core(), after), name, "all_reduce")
