"""Where every value in a schedule comes from, and how long it is needed.

A schedule only copies and adds, so it is linear: run it once on vectors that count contributions and you have run
it on every input there is. That is the forward pass, `contributions`. The backward pass, `live`, is the liveness
analysis of compilers: a slot is live while somebody will still read the value that it holds now. A slot that holds
a value nobody will read is **stale**, and its memory is free to be overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from .schedule import Schedule, Transfer

SATURATED = 2**31  # "very often": the signals of a barrier multiply, and after 64 steps would no longer fit


class Contents(NamedTuple):
    """What every slot is a sum of, at one moment: how often it contains each rank's input, and which part of it.

    `ranks`: int [world_size, num_chunks, world_size]; entry [rank, chunk, contributor] counts the contributor's
    data in the slot (rank, chunk). `chunks`: int [world_size, num_chunks, num_chunks]; the same counts by the chunk
    that the data was in at first. A slot whose counts are all of one chunk holds sums of that chunk and nothing else.
    """

    ranks: np.ndarray
    chunks: np.ndarray

    def of_chunk(self) -> np.ndarray:
        """The chunk whose data each slot holds: int [world_size, num_chunks]; -1 if it mixes several, or is empty."""
        pure = (self.chunks > 0).sum(axis=-1) == 1
        return np.where(pure, self.chunks.argmax(axis=-1), -1)


def contributions(schedule: Schedule) -> Iterator[Contents]:
    """What every slot is a sum of: before the first step, and then after each step, `num_steps + 1` times."""
    for counts in _counting(schedule):
        yield _contents(counts.copy())


def final_contributions(schedule: Schedule) -> Contents:
    """What every slot is a sum of after the last step."""
    for counts in _counting(schedule):
        pass
    return _contents(counts)


def _counting(schedule: Schedule) -> Iterator[np.ndarray]:
    """The counts by rank and, behind them, by chunk: always the same array, which every step changes."""
    ranks, chunks = schedule.world_size, schedule.num_chunks
    counts = np.zeros((ranks, chunks, ranks + chunks), dtype=np.int64)
    counts[np.arange(ranks), :, np.arange(ranks)] = 1  # at first every slot holds its own rank, once,
    counts[:, np.arange(chunks), ranks + np.arange(chunks)] = 1  # and its own chunk
    yield counts
    for step in schedule:
        step.apply(counts)
        one = step.singles
        counts[one.dst, one.lands] = np.minimum(counts[one.dst, one.lands], SATURATED)
        yield counts


def _contents(counts: np.ndarray) -> Contents:
    return Contents(counts[..., : len(counts)], counts[..., len(counts) :])


def live(schedule: Schedule, wanted: np.ndarray) -> list[np.ndarray]:
    """Which slots hold a value that is still needed: before the first step, and then after each step.

    `wanted`: bool [world_size, num_chunks], the slots whose value is the result. Returns `num_steps + 1` arrays of
    that shape; the last one is `wanted`. Worked out from the end: a send needs its slot, a copy does not need what
    it overwrites, an addition needs what it adds to if the sum is needed.
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
    """The last transfer of a chunk into the slot (rank, chunk) ahead of step `before`, as (step, transfer)."""
    found = None
    for index, step in enumerate(islice(schedule, before)):
        for transfer in step.singles:
            if (transfer.dst, transfer.lands) == (rank, chunk):
                found = index, transfer
    return found
