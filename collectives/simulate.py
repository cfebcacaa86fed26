"""Run a schedule on numbers, in numpy, with every rank in view."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .schedule import Schedule


def simulate(schedule: Schedule, before: np.ndarray) -> np.ndarray:
    """What every rank holds after `schedule`, given what every rank holds before.

    `before`: array [world_size, num_elements] of any dtype that can be added; the number of elements need not
    divide by the number of chunks. Returns a new array of that shape and dtype; `before` stays as it is.
    """
    schedule.validate()
    slots, bounds = _cut(schedule, before)
    for step in schedule:
        step.check_fit(bounds)
        step.apply(slots)
    return _join(slots, bounds)


def trace(schedule: Schedule, before: np.ndarray) -> Iterator[np.ndarray]:
    """The same, step by step: yields what every rank holds before the first step, and then after each step."""
    schedule.validate()
    slots, bounds = _cut(schedule, before)
    yield _join(slots, bounds)
    for step in schedule:
        step.check_fit(bounds)
        step.apply(slots)
        yield _join(slots, bounds)


def _cut(schedule: Schedule, buffers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Buffers [ranks, elements] as slots [ranks, chunks, longest chunk], padded with zeros; and the chunks' bounds."""
    buffers = np.asarray(buffers)
    if buffers.ndim != 2 or len(buffers) != schedule.world_size:
        raise ValueError(
            f"{schedule.name} takes buffers of shape [{schedule.world_size} ranks, num_elements], not {buffers.shape}"
        )
    bounds = schedule.bounds(buffers.shape[1])
    lengths = np.diff(bounds)
    slots = np.zeros((len(buffers), len(lengths), lengths.max()), dtype=buffers.dtype)
    for chunk, length in enumerate(lengths):
        slots[:, chunk, :length] = buffers[:, bounds[chunk] : bounds[chunk + 1]]
    return slots, bounds


def _join(slots: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """The inverse of `_cut`."""
    return np.concatenate([slots[:, chunk, :length] for chunk, length in enumerate(np.diff(bounds))], axis=1)
