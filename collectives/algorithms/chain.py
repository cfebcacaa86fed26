"""The chain, or pipeline: the buffer passes from rank to rank in small chunks, so that all links are busy at once.

With more chunks, the first chunk reaches the last rank sooner, but more messages pay alpha.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedule import COPY, REDUCE, Schedule, Step


def broadcast(world_size: int, root: int = 0, num_chunks: int = 8) -> Schedule:
    """Send the root's buffer down the chain of ranks, chunk after chunk.

    Steps: P - 2 + C for C chunks. Bytes sent by a rank: S.
    """
    return _chain(world_size, root, num_chunks, "broadcast")


def reduce(world_size: int, root: int = 0, num_chunks: int = 8) -> Schedule:
    """Run the broadcast backwards and add: the last rank of the chain starts.

    Steps: P - 2 + C for C chunks. Bytes sent by a rank: S.
    """
    return _chain(world_size, root, num_chunks, "reduce")


def _chain(world_size: int, root: int, num_chunks: int, collective: str) -> Schedule:
    """Return a chain in which ranks count from the root, and link i joins ranks i and i + 1 with one chunk a step."""
    down = collective == "broadcast"
    links = np.arange(world_size - 1)
    turn = links if down else links[::-1]  # the step in which a link carries chunk 0

    def steps() -> Iterator[Step]:
        for step in range(world_size - 2 + num_chunks if world_size > 1 else 0):  # P - 2 + C steps
            chunk = step - turn
            busy = (chunk >= 0) & (chunk < num_chunks)
            near, far = (links[busy] + root) % world_size, (links[busy] + 1 + root) % world_size
            src, dst = (near, far) if down else (far, near)
            yield Step(src, dst, chunk[busy], COPY if down else REDUCE, phase=collective)

    return Schedule(world_size, num_chunks, steps, f"chain {collective}", collective, root)
