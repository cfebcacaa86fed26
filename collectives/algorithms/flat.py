"""The root talks to every other rank in turn: the baseline, where one link carries everything."""

from __future__ import annotations

from dataclasses import replace

from ..schedule import COPY, REDUCE, Schedule, Step, Transfer


def broadcast(world_size: int, root: int = 0) -> Schedule:
    """The root sends its whole buffer to each rank.

    Steps: P - 1. Bytes sent by the root: (P-1) S.
    """
    transfers = [Transfer(root, peer, 0, COPY) for peer in range(world_size) if peer != root]
    return _one_by_one(world_size, 1, transfers, "broadcast", root)


def reduce(world_size: int, root: int = 0) -> Schedule:
    """Each rank sends its whole buffer to the root, which adds.

    Steps: P - 1. Bytes received by the root: (P-1) S.
    """
    transfers = [Transfer(peer, root, 0, REDUCE) for peer in range(world_size) if peer != root]
    return _one_by_one(world_size, 1, transfers, "reduce", root)


def all_reduce(world_size: int, root: int = 0) -> Schedule:
    """Reduce to the root, then broadcast.

    Steps: 2(P-1). Through the root's link: (P-1) S each way.
    """
    both = reduce(world_size, root) + broadcast(world_size, root)
    return replace(both, name="flat all_reduce", collective="all_reduce")


def scatter(world_size: int, root: int = 0) -> Schedule:
    """The root sends each rank its own chunk.

    Steps: P - 1. Bytes sent by the root: (P-1)/P S.
    """
    transfers = [Transfer(root, peer, peer, COPY) for peer in range(world_size) if peer != root]
    return _one_by_one(world_size, world_size, transfers, "scatter", root)


def gather(world_size: int, root: int = 0) -> Schedule:
    """Each rank sends the root its own chunk.

    Steps: P - 1. Bytes received by the root: (P-1)/P S.
    """
    transfers = [Transfer(peer, root, peer, COPY) for peer in range(world_size) if peer != root]
    return _one_by_one(world_size, world_size, transfers, "gather", root)


def _one_by_one(world_size: int, num_chunks: int, transfers: list[Transfer], collective: str, root: int) -> Schedule:
    steps = [Step.of([transfer], phase=collective) for transfer in transfers]
    return Schedule(world_size, num_chunks, lambda: steps, f"flat {collective}", collective, root)
