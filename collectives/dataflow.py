"""Where every value in a schedule comes from, and how long it is needed.

A schedule only copies and adds, so it is linear: one run on vectors that count contributions covers every input. That
is the forward pass, `contributions`. The backward pass, `live`, is a compiler's liveness analysis: a slot is live
while a later transfer, or the result, needs the value it holds now. A slot whose value is no longer needed is
**stale**, and its memory may be overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from .schedule import Schedule, Transfer

SATURATED = 2**31  # limit of a count: a barrier's signals multiply, and over 64 steps would overflow int64


class Contents(NamedTuple):
    """The contributions to every slot at one moment: how often it contains each rank's input, and which chunk of it.

    `ranks`: int [world_size, num_chunks, world_size]; entry [rank, chunk, contributor] counts the contributor's
    data in the slot (rank, chunk). `chunks`: int [world_size, num_chunks, num_chunks]; the same counts by the chunk
    that the data was in at first. A slot with counts for only one chunk holds sums of that chunk and nothing else.
    """

    ranks: np.ndarray
    chunks: np.ndarray

    def of_chunk(self) -> np.ndarray:
        """Return the chunk whose data each slot holds: int [world_size, num_chunks]; -1 if mixed or empty."""
        pure = (self.chunks > 0).sum(axis=-1) == 1
        return np.where(pure, self.chunks.argmax(axis=-1), -1)


def contributions(schedule: Schedule) -> Iterator[Contents]:
    """Yield the contributions to every slot before the first step and after each step: `num_steps + 1` items."""
    for counts in _counting(schedule):
        yield _contents(counts.copy())


def final_contributions(schedule: Schedule) -> Contents:
    """Return the contributions to every slot after the last step."""
    for counts in _counting(schedule):
        pass
    return _contents(counts)


def _counting(schedule: Schedule) -> Iterator[np.ndarray]:
    """Yield the counts [world_size, num_chunks, world_size + num_chunks]; every step changes the same array.

    The last axis holds the counts by rank, then the counts by chunk.
    """
    ranks, chunks = schedule.world_size, schedule.num_chunks
    counts = np.zeros((ranks, chunks, ranks + chunks), dtype=np.int64)
    # At first every slot holds the data of its own rank and its own chunk, once.
    counts[np.arange(ranks), :, np.arange(ranks)] = 1
    counts[:, np.arange(chunks), ranks + np.arange(chunks)] = 1
    yield counts
    for step in schedule:
        step.apply(counts)
        singles = step.singles
        written = singles.dst, singles.lands
        counts[written] = np.minimum(counts[written], SATURATED)
        yield counts


def _contents(counts: np.ndarray) -> Contents:
    return Contents(counts[..., : len(counts)], counts[..., len(counts) :])


def live(schedule: Schedule, wanted: np.ndarray) -> list[np.ndarray]:
    """Return which slots hold a value that is still needed, before the first step and after each step.

    `wanted`: bool [world_size, num_chunks], the slots whose value is the result. Returns `num_steps + 1` arrays of
    that shape; the last one is `wanted`. The analysis runs backwards: a send needs its slot, a copy doesn't need what
    it overwrites, and an addition needs its old value if the sum is needed.
    """
    needed = [np.array(wanted, dtype=bool)]
    for step in reversed([step.singles for step in schedule]):
        before = needed[-1].copy()
        copies = ~step.reduces
        before[step.dst[copies], step.lands[copies]] = False
        before[step.src, step.chunk] = True
        needed.append(before)
    return needed[::-1]


def last_write(schedule: Schedule, rank: int, chunk: int, before: int) -> tuple[int, Transfer] | None:
    """Return the last transfer into the slot (rank, chunk) before step `before`: (step, transfer), or None."""
    last = None
    for index, step in enumerate(islice(schedule, before)):
        for transfer in step.singles:
            if (transfer.dst, transfer.lands) == (rank, chunk):
                last = index, transfer
    return last
