"""Run a schedule on numbers, in numpy, with every rank in view."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .schedule import Schedule, chunk_bounds


def simulate(schedule: Schedule, before: np.ndarray) -> np.ndarray:
    """What every rank holds after `schedule`, given what every rank holds before.

    `before`: array [world_size, num_elements] of any dtype that can be added; the number of elements need not
    divide by the number of chunks. Returns a new array of that shape and dtype; `before` stays as it is.
    """
    for after in trace(schedule, before):
        pass
    return after


def trace(schedule: Schedule, before: np.ndarray) -> Iterator[np.ndarray]:
    """The same, step by step: yields what every rank holds before the first step, and then after each step."""
    before = np.asarray(before)
    if before.ndim != 2 or len(before) != schedule.world_size:
        raise ValueError(
            f"{schedule.name} takes buffers of shape [{schedule.world_size} ranks, num_elements], not {before.shape}"
        )
    bounds = chunk_bounds(before.shape[1], schedule.num_chunks)
    slots = _cut(before, bounds)
    yield _join(slots, bounds)
    for step in schedule:
        step.apply(slots)
        yield _join(slots, bounds)


def _cut(buffers: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Buffers [ranks, elements] as slots [ranks, chunks, longest chunk]; the shorter chunks are padded with zeros."""
    lengths = np.diff(bounds)
    slots = np.zeros((len(buffers), len(lengths), lengths.max()), dtype=buffers.dtype)
    for chunk, length in enumerate(lengths):
        slots[:, chunk, :length] = buffers[:, bounds[chunk] : bounds[chunk + 1]]
    return slots


def _join(slots: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """The inverse of `_cut`."""
    return np.concatenate([slots[:, chunk, :length] for chunk, length in enumerate(np.diff(bounds))], axis=1)
