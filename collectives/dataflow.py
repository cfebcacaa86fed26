"""Where every value in a schedule comes from, and how long it is needed.

A schedule only copies and adds, so it is linear: run it once on vectors that count contributions and you have run
it on every input there is. That is the forward pass, `contributions`. The backward pass, `live`, is the liveness
analysis of compilers: a slot is live while somebody will still read the value that it holds now. A slot that holds
a value nobody will read is **stale**, and its memory is free to be overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from .schedule import Schedule, Transfer


def contributions(schedule: Schedule) -> Iterator[np.ndarray]:
    """What every slot is a sum of: before the first step, and then after each step.

    Yields `num_steps + 1` int arrays [world_size, num_chunks, world_size]: entry [rank, chunk, contributor] says how
    often the buffer that `contributor` began with is contained in what the slot (rank, chunk) holds now.
    """
    ranks, chunks = schedule.world_size, schedule.num_chunks
    counts = np.zeros((ranks, chunks, ranks), dtype=np.int64)
    counts[np.arange(ranks), :, np.arange(ranks)] = 1  # at first every slot holds its own rank, once
    yield counts.copy()
    for step in schedule:
        step.apply(counts)
        yield counts.copy()


def live(schedule: Schedule, wanted: np.ndarray) -> list[np.ndarray]:
    """Which slots hold a value that is still needed: before the first step, and then after each step.

    `wanted`: bool [world_size, num_chunks], the slots whose value is the result. Returns `num_steps + 1` arrays of
    that shape; the last one is `wanted`. Worked out from the end: a send needs its slot, a copy does not need what
    it overwrites, an addition needs what it adds to if the sum is needed.
    """
    needed = [np.array(wanted, dtype=bool)]
    for step in reversed(list(schedule)):
        before = needed[-1].copy()
        copies = ~step.reduces
        before[step.dst[copies], step.chunk[copies]] = False
        before[step.src, step.chunk] = True
        needed.append(before)
    return needed[::-1]


def last_write(schedule: Schedule, rank: int, chunk: int, before: int) -> tuple[int, Transfer] | None:
    """The last transfer into the slot (rank, chunk) in the steps ahead of step `before`, as (step, transfer)."""
    found = None
    for index, step in enumerate(islice(schedule, before)):
        for transfer in step:
            if (transfer.dst, transfer.chunk) == (rank, chunk):
                found = index, transfer
    return found
