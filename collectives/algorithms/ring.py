"""Every rank sends to its right-hand neighbour, one chunk a step: the fewest bytes, P - 1 steps a phase.

Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", 2009.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..schedule import COPY, REDUCE, Schedule, Step


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
    ranks = np.arange(world_size)
    right = (ranks + 1) % world_size

    def steps() -> Iterator[Step]:
        for step in range(world_size - 1):  # P - 1 steps of P transfers
            chunk = (ranks + first_chunk - step) % world_size
            yield Step(src=ranks, dst=right, chunk=chunk, combine=combine, phase=collective)

    return Schedule(world_size, world_size, steps, name=f"ring {collective}", collective=collective)
