"""The root talks to every other rank in turn: the baseline, where one link carries everything.

The buffer travels whole, as one chunk.
"""

from __future__ import annotations

from dataclasses import replace

from ..schedule import COPY, REDUCE, Schedule, Step, Transfer


def broadcast(world_size: int, root: int = 0) -> Schedule:
    """The root sends its buffer to each rank.

    Steps: P - 1. Bytes sent by the root: (P-1) S.
    """
    transfers = [Transfer(root, peer, 0, COPY) for peer in range(world_size) if peer != root]
    return _one_by_one(world_size, transfers, "broadcast", root)


def reduce(world_size: int, root: int = 0) -> Schedule:
    """Each rank sends its buffer to the root, which adds.

    Steps: P - 1. Bytes received by the root: (P-1) S.
    """
    transfers = [Transfer(peer, root, 0, REDUCE) for peer in range(world_size) if peer != root]
    return _one_by_one(world_size, transfers, "reduce", root)


def all_reduce(world_size: int, root: int = 0) -> Schedule:
    """Reduce to the root, then broadcast.

    Steps: 2(P-1). Through the root's link: (P-1) S each way.
    """
    both = reduce(world_size, root) + broadcast(world_size, root)
    return replace(both, name="flat all_reduce", collective="all_reduce")


def _one_by_one(world_size: int, transfers: list[Transfer], collective: str, root: int) -> Schedule:
    if not 0 <= root < world_size:
        raise ValueError(f"root {root} is not one of the {world_size} ranks")
    steps = [Step.of([transfer], phase=collective) for transfer in transfers]
    return Schedule(world_size, 1, lambda: steps, f"flat {collective}", collective, root)
