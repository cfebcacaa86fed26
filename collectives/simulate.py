"""A simulator that runs a schedule in numpy, with every rank's buffer in view."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .schedule import Schedule


def simulate(schedule: Schedule, before: np.ndarray) -> np.ndarray:
    """Return what every rank holds after `schedule`, given what every rank holds before.

    `before`: array [world_size, num_elements] of any dtype that supports addition; `num_elements` need not be a
    multiple of the number of chunks. Returns a new array of that shape and dtype; `before` doesn't change. Raises
    `ScheduleError` if the schedule can't run, and `ValueError` if `before` doesn't fit it.
    """
    schedule.validate()
    slots, bounds = _cut(schedule, before)
    for step in schedule:
        step.check_fit(bounds)
        step.apply(slots)
    return _join(slots, bounds)


def trace(schedule: Schedule, before: np.ndarray) -> Iterator[np.ndarray]:
    """Simulate step by step: yield what every rank holds before the first step and after each step."""
    schedule.validate()
    slots, bounds = _cut(schedule, before)
    yield _join(slots, bounds)
    for step in schedule:
        step.check_fit(bounds)
        step.apply(slots)
        yield _join(slots, bounds)


def _cut(schedule: Schedule, buffers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return buffers [ranks, elements] as zero-padded slots [ranks, chunks, longest chunk], and the chunk bounds."""
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
    """Return slots as buffers: the inverse of `_cut`."""
    return np.concatenate([slots[:, chunk, :length] for chunk, length in enumerate(np.diff(bounds))], axis=1)
