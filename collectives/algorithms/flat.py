"""Flat algorithms: the root talks to every other rank in turn. They are the baseline: one link carries everything."""

from __future__ import annotations

from dataclasses import replace

from ..schedule import COPY, REDUCE, Schedule, Step, Transfer


def broadcast(world_size: int, root: int = 0) -> Schedule:
    """Send the root's whole buffer to each rank.

    Steps: P - 1. Bytes sent by the root: (P-1) S.
    """
    transfers = [Transfer(root, dst, 0, COPY) for dst in range(world_size) if dst != root]
    return _one_by_one(world_size, 1, transfers, "broadcast", root)


def reduce(world_size: int, root: int = 0) -> Schedule:
    """Send each rank's whole buffer to the root, which adds them up.

    Steps: P - 1. Bytes received by the root: (P-1) S.
    """
    transfers = [Transfer(src, root, 0, REDUCE) for src in range(world_size) if src != root]
    return _one_by_one(world_size, 1, transfers, "reduce", root)


def all_reduce(world_size: int, root: int = 0) -> Schedule:
    """Reduce to the root, then broadcast.

    Steps: 2(P-1). Bytes on the root's link: (P-1) S each way.
    """
    both = reduce(world_size, root) + broadcast(world_size, root)
    return replace(both, name="flat all_reduce", collective="all_reduce")


def scatter(world_size: int, root: int = 0) -> Schedule:
    """Send each rank its own chunk from the root.

    Steps: P - 1. Bytes sent by the root: (P-1)/P S.
    """
    transfers = [Transfer(root, peer, peer, COPY) for peer in range(world_size) if peer != root]
    return _one_by_one(world_size, world_size, transfers, "scatter", root)


def gather(world_size: int, root: int = 0) -> Schedule:
    """Send each rank's own chunk to the root.

    Steps: P - 1. Bytes received by the root: (P-1)/P S.
    """
    transfers = [Transfer(peer, root, peer, COPY) for peer in range(world_size) if peer != root]
    return _one_by_one(world_size, world_size, transfers, "gather", root)


def _one_by_one(world_size: int, num_chunks: int, transfers: list[Transfer], collective: str, root: int) -> Schedule:
    steps = [Step.of([transfer], phase=collective) for transfer in transfers]
    return Schedule(world_size, num_chunks, lambda: steps, f"flat {collective}", collective, root)
