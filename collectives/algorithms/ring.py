"""Ring algorithms: every rank sends one chunk a step to the next rank, in P - 1 steps a phase, with the fewest bytes.

Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..schedule import COPY, REDUCE, Schedule, Transfer


def reduce_scatter(world_size: int) -> Schedule:
    """Send partial sums around the ring; rank r ends with the sum of chunk r.

    Steps: P - 1. Bytes sent by a rank: (P-1)/P S.
    """
    return _ring(world_size, first_chunk=-1, combine=REDUCE, collective="reduce_scatter")


def all_gather(world_size: int) -> Schedule:
    """Send each rank's chunk around the ring; every rank ends with all chunks.

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
    """Return a ring: in step s, rank r sends chunk r + first_chunk - s to rank r + 1."""

    def rank_zero() -> Iterator[list[Transfer]]:
        # Rank 0's P - 1 sends, each of what it just received; `rotated` shifts them.
        for step in range(world_size - 1):
            yield [Transfer(0, 1, first_chunk - step, combine)]

    name = f"ring {collective}"
    return Schedule.rotated(world_size, world_size, rank_zero, collective, name)


def all_reduce_bidirectional(world_size: int) -> Schedule:
    """Run both ways around the ring at once: every sum collects from both sides and spreads to both.

    Steps: 2 ceil((P-1)/2), with a message each way. Bytes sent by a rank: 2(P-1)/P S, half of them each way. Ranks
    with two ports need half the ring's time.
    """
    far, near = world_size // 2, (world_size - 1) // 2  # ranks on each side: P - 1 in total

    def rank_zero() -> Iterator[list[Transfer]]:
        for step in range(far):  # chunk c's sums move left from rank c + far, and right from rank c - near
            leftwards, rightwards = Transfer(0, -1, step - far, REDUCE), Transfer(0, 1, near - step, REDUCE)
            yield [leftwards, rightwards] if step < near else [leftwards]
        for step in range(far):  # finished chunk c leaves rank c both ways
            rightwards, leftwards = Transfer(0, 1, -step, COPY), Transfer(0, -1, step, COPY)
            yield [rightwards, leftwards] if step < near else [rightwards]

    return Schedule.rotated(world_size, world_size, rank_zero, "all_reduce", "bidirectional ring all_reduce")
