"""Binomial-tree algorithms: every rank that has the data passes it on, so the number of holders doubles in each step.

Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..schedule import COPY, REDUCE, Schedule, Step, Transfer
from .doubling import distances


def broadcast(world_size: int, root: int = 0) -> Schedule:
    """Send the root's whole buffer down the tree.

    Steps: ceil(log2 P). Bytes sent by the root: ceil(log2 P) S.
    """
    return _tree(world_size, root, "broadcast")


def reduce(world_size: int, root: int = 0) -> Schedule:
    """Run the broadcast backwards and add.

    Steps: ceil(log2 P). Bytes received by the root: ceil(log2 P) S.
    """
    return _tree(world_size, root, "reduce")


def all_reduce(world_size: int, root: int = 0) -> Schedule:
    """Reduce to the root, then broadcast.

    Steps: 2 ceil(log2 P). Bytes on the root's link: ceil(log2 P) S each way.
    """
    both = reduce(world_size, root) + broadcast(world_size, root)
    return replace(both, name="tree all_reduce", collective="all_reduce")


def scatter(world_size: int, root: int = 0) -> Schedule:
    """Send each child the chunks of its whole subtree, from the root down.

    Steps: ceil(log2 P). Bytes sent by the root: (P-1)/P S.
    """
    return _subtrees(world_size, root, "scatter")


def gather(world_size: int, root: int = 0) -> Schedule:
    """Run the scatter backwards.

    Steps: ceil(log2 P). Bytes received by the root: (P-1)/P S.
    """
    return _subtrees(world_size, root, "gather")


def levels(
    world_size: int,
    upwards: bool,
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the tree's ceil(log2 P) levels as (distance, parents, children).

    The levels start at the leaves if `upwards`, else at the root. Ranks count from the
    root. Each rank that is a multiple of 2 x distance has a child `distance` ranks
    further on.
    """
    for distance in distances(world_size) if upwards else reversed(distances(world_size)):
        parents = np.arange(0, world_size - distance, 2 * distance)
        yield distance, parents, parents + distance


def _tree(world_size: int, root: int, collective: str) -> Schedule:
    """Return a reduce from the leaves up, or a broadcast from the root down, of the whole buffer as one chunk."""
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
    """Return a scatter or gather. The ranks of a subtree are adjacent, so a message carries their chunks as one run.

    A run that passes the last chunk wraps around and goes as two messages; that happens only if the root isn't rank 0.
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
