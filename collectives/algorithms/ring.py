"""Every rank sends to its right-hand neighbour, one chunk a step: the fewest bytes, P - 1 steps a phase.

Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", 2009.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..schedule import COPY, REDUCE, Schedule, Transfer


def reduce_scatter(world_size: int) -> Schedule:
    """Rank r ends with the sum of chunk r.

    Steps: P - 1. Bytes sent by a rank: (P-1)/P S.
    """
    return _ring(world_size, first_chunk=-1, combine=REDUCE, collective="reduce_scatter")


def all_gather(world_size: int) -> Schedule:
    """Rank r begins with chunk r; all ranks end with all chunks.

    Steps: P - 1. Bytes sent by a rank: (P-1)/P S.
    """
    return _ring(world_size, first_chunk=0, combine=COPY, collective="all_gather")


def all_reduce(world_size: int) -> Schedule:
    """Reduce-scatter, then all-gather.

    Steps: 2(P-1). Bytes sent by a rank: 2(P-1)/P S.
    """
    both = reduce_scatter(world_size) + all_gather(world_size)
    return replace(both, name="ring all_reduce", collective="all_reduce")


def _ring(world_size: int, first_chunk: int, combine: str, collective: str) -> Schedule:
    """In step s rank r sends chunk r + first_chunk - s to rank r + 1: what it has just received."""

    def rank_zero() -> Iterator[list[Transfer]]:
        for step in range(world_size - 1):  # P - 1 steps; rank r does what rank 0 does, r further round
            yield [Transfer(0, 1, first_chunk - step, combine)]

    return Schedule.rotated(world_size, world_size, rank_zero, collective, f"ring {collective}")


def all_reduce_bidirectional(world_size: int) -> Schedule:
    """Both ways round at once: every sum is collected from both sides, and handed out to both.

    Steps: 2 ceil((P-1)/2), with a message each way. Bytes sent by a rank: 2(P-1)/P S, half of them each way: a rank
    that has two ports needs half the ring's time.
    """
    far, near = world_size // 2, (world_size - 1) // 2  # how many ranks lie on each side: P - 1 in all

    def rank_zero() -> Iterator[list[Transfer]]:
        for step in range(far):  # sums for chunk c come from rank c + far leftwards, from c - near rightwards
            leftwards, rightwards = Transfer(0, -1, step - far, REDUCE), Transfer(0, 1, near - step, REDUCE)
            yield [leftwards, rightwards] if step < near else [leftwards]
        for step in range(far):  # finished chunks leave rank c both ways
            rightwards, leftwards = Transfer(0, 1, -step, COPY), Transfer(0, -1, step, COPY)
            yield [rightwards, leftwards] if step < near else [rightwards]

    return Schedule.rotated(world_size, world_size, rank_zero, "all_reduce", "bidirectional ring all_reduce")
