"""The binomial tree: whoever holds the data helps to pass it on, so the holders double in every step.

The buffer travels whole, as one chunk. Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of
collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..schedule import COPY, REDUCE, Schedule, Step


def broadcast(world_size: int, root: int = 0) -> Schedule:
    """The root's buffer reaches all.

    Steps: ceil(log2 P). Bytes sent by the root: ceil(log2 P) S.
    """
    return _tree(world_size, root, "broadcast")


def reduce(world_size: int, root: int = 0) -> Schedule:
    """The broadcast backwards, adding.

    Steps: ceil(log2 P). Bytes received by the root: ceil(log2 P) S.
    """
    return _tree(world_size, root, "reduce")


def all_reduce(world_size: int, root: int = 0) -> Schedule:
    """Reduce to the root, then broadcast.

    Steps: 2 ceil(log2 P). Through the root: ceil(log2 P) S each way.
    """
    both = reduce(world_size, root) + broadcast(world_size, root)
    return replace(both, name="tree all_reduce", collective="all_reduce")


def _tree(world_size: int, root: int, collective: str) -> Schedule:
    """Ranks are counted from the root; every multiple of 2 x distance has a child that far on."""
    if not 0 <= root < world_size:
        raise ValueError(f"root {root} is not one of the {world_size} ranks")
    levels = (world_size - 1).bit_length()  # ceil(log2 P)
    distances = [2**level for level in range(levels)]  # a reduce goes from near to far, a broadcast back

    def steps() -> Iterator[Step]:
        for distance in distances if collective == "reduce" else reversed(distances):  # ceil(log2 P) steps
            parent = np.arange(0, world_size - distance, 2 * distance)
            child = parent + distance
            src, dst = (child, parent) if collective == "reduce" else (parent, child)
            combine = REDUCE if collective == "reduce" else COPY
            yield Step(
                src=(src + root) % world_size,
                dst=(dst + root) % world_size,
                chunk=np.zeros(len(src), dtype=np.int64),
                combine=combine,
                phase=collective,
            )

    return Schedule(world_size, 1, steps, f"tree {collective}", collective, root)
