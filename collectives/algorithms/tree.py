"""The binomial tree: whoever holds the data helps to pass it on, so the holders double in every step.

Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..schedule import COPY, REDUCE, Schedule, Step, Transfer
from .doubling import distances


def broadcast(world_size: int, root: int = 0) -> Schedule:
    """The root's whole buffer reaches all.

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


def scatter(world_size: int, root: int = 0) -> Schedule:
    """Whoever holds chunks for a child's whole subtree hands them over.

    Steps: ceil(log2 P). Bytes sent by the root: (P-1)/P S.
    """
    return _subtrees(world_size, root, "scatter")


def gather(world_size: int, root: int = 0) -> Schedule:
    """The scatter backwards.

    Steps: ceil(log2 P). Bytes received by the root: (P-1)/P S.
    """
    return _subtrees(world_size, root, "gather")


def levels(world_size: int, upwards: bool) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """The tree's ceil(log2 P) levels as (distance, parents, children), from the leaves `upwards` or from the root.

    Ranks are counted from the root; every multiple of 2 x distance has a child that far on.
    """
    for distance in distances(world_size) if upwards else reversed(distances(world_size)):
        parents = np.arange(0, world_size - distance, 2 * distance)
        yield distance, parents, parents + distance


def _tree(world_size: int, root: int, collective: str) -> Schedule:
    """The buffer travels whole, as one chunk: a reduce from the leaves up, a broadcast from the root down."""
    upwards = collective == "reduce"

    def steps() -> Iterator[Step]:
        for _, parents, children in levels(world_size, upwards):  # ceil(log2 P) steps
            src, dst = (children, parents) if upwards else (parents, children)
            yield Step(
                src=(src + root) % world_size,
                dst=(dst + root) % world_size,
                chunk=np.zeros(len(src), dtype=np.int64),
                combine=REDUCE if upwards else COPY,
                phase=collective,
            )

    return Schedule(world_size, 1, steps, f"tree {collective}", collective, root)


def _subtrees(world_size: int, root: int, collective: str) -> Schedule:
    """A child and its subtree are neighbours, counted from the root: their chunks go as one run.

    Where the run passes the last chunk (only if the root is not rank 0) it goes as two.
    """
    upwards = collective == "gather"

    def steps() -> Iterator[Step]:
        for distance, parents, children in levels(world_size, upwards):  # ceil(log2 P) steps
            transfers = []
            for parent, child in zip(parents, children, strict=True):
                src, dst = (child, parent) if upwards else (parent, child)
                first, last = child + root, min(child + distance, world_size) + root
                for start, end in ((first, min(last, world_size)), (max(first, world_size), last)):
                    if start < end:
                        ends = (src + root) % world_size, (dst + root) % world_size
                        transfers.append(Transfer(*ends, start % world_size, COPY, count=end - start))
            yield Step.of(transfers, phase=collective)

    return Schedule(world_size, world_size, steps, f"tree {collective}", collective, root)
