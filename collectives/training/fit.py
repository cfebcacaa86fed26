"""Fit the constants of `kernels` to published runs, and judge them on sources that were left out.

The error of a run is the logarithm of predicted over measured seconds. The fit minimises a robust sum of them (soft-L1:
errors well above `TYPICAL` count by their size, not by its square), in which a source of n rows weighs as much as
sqrt(n) rows, plus each constant's squared distance from its prior. Constants are fitted as logarithms, so they stay
positive. All of it is Gauss-Newton in numpy; a step prices all runs for all changed constants at once, as arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np

from . import costs, runs
from .kernels import FITTED, NAMES, Constants, Fitted

TYPICAL = 0.08  # an error above which a run may be odd, not the constants wrong
TRUST = 0.2  # weight of the priors: how many sigmas of a prior are worth one run's error of 100 %
CHANGE = 1e-4  # of a constant's logarithm, for derivatives
PRIOR = np.array([np.log(constant.metadata["prior"]) for constant in fields(Constants)])
SPREAD = np.array([constant.metadata["spread"] for constant in fields(Constants)])


class Sample(NamedTuple):
    """A usable row: the run that it describes, the measured seconds of a step, and its source without the version."""

    row: runs.Row
    run: runs.Run
    seconds: float
    source: str


def samples(rows: Iterable[runs.Row]) -> tuple[list[Sample], Counter[str]]:
    """Return the usable rows, and how many can't be used, by reason."""
    used, unused = [], Counter[str]()
    for row in rows:
        try:
            run = runs.read(row)
            used.append(Sample(row, run, runs.measured(row, run), source_of(row)))
        except runs.Unusable as reason:
            unused[str(reason)] += 1
    return used, unused


def source_of(row: runs.Row) -> str:
    """Return a row's source without its version: the document, not the commit or the tag."""
    return str(row.get("source")).split(" @")[0]


def seconds(used: Sequence[Sample], logs: np.ndarray) -> np.ndarray:
    """Return the predicted seconds [sample, column] for constants [constant, column], given as logarithms."""
    constants = Constants(**dict(zip(NAMES, np.exp(logs), strict=True)))
    steps = (costs.step(*sample.run, kernels=_kernels(sample.run, constants)).seconds for sample in used)
    return np.array([np.broadcast_to(step, logs.shape[1:]) for step in steps])


def _kernels(run: runs.Run, constants: Constants) -> Fitted:
    assert run.machine.gpu is not None  # `runs` reads no other machine
    return Fitted(run.machine.gpu, constants)


def errors(used: Sequence[Sample], constants: Constants = FITTED) -> np.ndarray:
    """Return log(predicted / measured) of each sample."""
    logs = np.log([[getattr(constants, name)] for name in NAMES])
    return np.log(seconds(used, logs)[:, 0]) - np.log([sample.seconds for sample in used])


def refit(used: Sequence[Sample], start: Constants | None = None, steps: int = 15) -> Constants:
    """Return the constants that fit best, from `start` or from the priors, in at most so many Gauss-Newton steps."""
    logs = PRIOR if start is None else np.log([getattr(start, name) for name in NAMES])
    measured, weights = np.log([sample.seconds for sample in used]), _weights(used)
    for _ in range(steps):
        shifted = np.concatenate([logs[:, None], logs[:, None] + CHANGE * np.eye(len(logs))], axis=1)
        predicted = np.log(seconds(used, shifted))
        off, slopes = predicted[:, 0] - measured, (predicted[:, 1:] - predicted[:, :1]) / CHANGE
        robust = weights / np.sqrt(1 + (off / TYPICAL) ** 2)
        curvature = slopes.T @ (robust[:, None] * slopes) + np.diag(TRUST**2 / SPREAD**2)
        slope = slopes.T @ (robust * off) + TRUST**2 * (logs - PRIOR) / SPREAD**2
        before, change = logs, _descend(used, logs, np.linalg.solve(curvature, -slope), measured, weights)
        logs = before + change
        if np.abs(change).max() < 2e-3:
            break
    return Constants(**{name: float(value) for name, value in zip(NAMES, np.exp(logs), strict=True)})


def _weights(used: Sequence[Sample]) -> np.ndarray:
    """Return each sample's weight, 1 on average: a source of n rows counts as sqrt(n)."""
    rows = Counter(sample.source for sample in used)
    weights = np.array([rows[sample.source] ** -0.5 for sample in used])
    return weights / weights.mean()


def _descend(used, logs: np.ndarray, change: np.ndarray, measured: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the change, or the half or quarter (and so on) of it, that lowers the loss most; else zeros."""
    parts = 0.5 ** np.arange(6)
    tried = np.concatenate([logs[:, None], logs[:, None] + change[:, None] * parts], axis=1)
    off = np.log(seconds(used, tried)) - measured[:, None]
    loss = weights @ (2 * TYPICAL**2 * (np.sqrt(1 + (off / TYPICAL) ** 2) - 1))
    loss = loss + TRUST**2 * (((tried - PRIOR[:, None]) / SPREAD[:, None]) ** 2).sum(axis=0)
    best = int(loss.argmin())
    return change * parts[best - 1] if best else 0 * change


def left_out(used: Sequence[Sample]) -> np.ndarray:
    """Return each sample's error by constants that were fitted, from the priors on, to all other sources."""
    found = np.empty(len(used))
    for source in {sample.source for sample in used}:
        theirs = [place for place, sample in enumerate(used) if sample.source == source]
        others = [sample for sample in used if sample.source != source]
        found[theirs] = errors([used[place] for place in theirs], refit(others))
    return found
