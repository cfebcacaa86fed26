"""Calibration: the cost model's constants on this machine, and how far its predictions are from measured times.

Two constants, alpha and beta, describe a link. They come from a few seconds of ping-pong (`ping_pong`, `fit`). Ranks
that share the cores of one machine need two more: what a message and a byte cost the processors. They come from all
ranks sending at once (`crowd`). `Machine` predicts from the four. `fit_terms` instead fits what one unit of each term
costs to measurements of the collectives themselves. A fit knows its terms by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..algorithms import double_tree, doubling, halving_doubling, ring, tree
from ..algorithms.scorecard import unit_costs
from ..execute import execute
from ..schedule import Schedule
from ..topology import Link

ITEMSIZE = 4  # bytes of a float32, the dtype of every sum measured here
SIZES = (16, 64, 256, 2**20, 2**21)  # bytes of the ping-pong's messages: small ones for alpha, large ones for beta
ALL_REDUCES = {
    "ring": ring.all_reduce,
    "tree": tree.all_reduce,
    "halving-doubling": halving_doubling.all_reduce,
    "doubling": doubling.all_reduce,
    "double tree": double_tree.all_reduce,
}
"""The contestants, by name: world_size -> Schedule."""


@dataclass(frozen=True)
class Features:
    """The work in a schedule.

    On the critical path: `steps` messages one after the other, `path_bytes` in them, `path_added` bytes reduced on
    arrival. Over all ranks together: `messages` and `total_bytes`. It has names and no order, so that no fit can take
    one for another.
    """

    steps: float
    path_bytes: float
    path_added: float
    messages: float
    total_bytes: float


TERMS = tuple(field.name for field in fields(Features))
"""The names of what a schedule may have to pay for."""


@dataclass(frozen=True)
class Fitted:
    """A fitted model: the seconds that one unit of each term costs, by the term's name."""

    costs: Mapping[str, float]

    def __post_init__(self) -> None:
        _check_terms(self.costs)

    def seconds(self, work: Features) -> float:
        """Return the seconds that `work` takes."""
        return sum(cost * getattr(work, term) for term, cost in self.costs.items())


@dataclass(frozen=True)
class Machine:
    """Ranks that share processors: a `link` between two of them, and what the processors do for all ranks together.

    `per_message`, `per_byte`: seconds of the processors for a message, and for a byte of it.
    """

    link: Link
    per_message: float = 0.0
    per_byte: float = 0.0

    def seconds(self, work: Features) -> float:
        """Return the seconds that `work` takes: those of the links or of the processors, whichever are busy longer."""
        links = self.link.alpha * work.steps + self.link.beta * work.path_bytes
        return max(links, self.per_message * work.messages + self.per_byte * work.total_bytes)


def features(schedule: Schedule, num_bytes: int) -> Features:
    """Return the features of `schedule` on `num_bytes`: its price with one coefficient at a time set to 1."""
    costs = unit_costs(schedule, num_bytes, ITEMSIZE)
    steps, path_bytes, path_added = (cost.seconds for cost in costs)
    return Features(steps, path_bytes, path_added, costs[0].messages, float(costs[0].bytes_sent.sum()))


def ping_pong(
    rank: int, world_size: int, sizes: Sequence[int] = SIZES, repeats: int = 9, quantile: float = 0.5
) -> list[float]:
    """Return the one-way seconds of a message of each of `sizes` bytes between ranks 0 and 1. For `ranks.run`.

    A time is half a round trip, after one round trip to warm up: the median of the `repeats`, or another `quantile`,
    such as 0 for the fastest, which other load on the machine disturbs least. Other ranks return zeros.
    """
    import torch
    import torch.distributed as dist

    seconds = []
    for size in sizes:
        ball, times = torch.zeros(size, dtype=torch.uint8), []
        for _ in range(repeats + 1 if rank < 2 else 0):
            start = time.perf_counter()
            for sender in (0, 1):  # there and back
                if rank == sender:
                    dist.send(ball, 1 - rank)
                else:
                    dist.recv(ball, 1 - rank)
            times.append((time.perf_counter() - start) / 2)
        seconds.append(float(np.quantile(times[1:], quantile)) if times else 0.0)
    return seconds


def crowd(world_size: int, num_steps: int = 4) -> Schedule:
    """Return a schedule in which all ranks send at once: the whole buffer to the right, `num_steps` times."""
    around = [(rank, (rank + 1) % world_size, 0, "copy") for rank in range(world_size)]
    return Schedule.of(world_size, 1, [around] * num_steps, name="crowd")


def machine_of(known: Mapping[str, Any], world_size: int) -> Machine:
    """Return the machine that a ping-pong and a crowd found, each at several moments: the fastest of each size.

    `known`: "ping_pong" and "crowd", each with its "sizes" in bytes and, for each of its "moments", the seconds of a
    message of each size; the crowd's moments are by the number of ranks, as text. A crowd of one size finds
    `per_message` alone.
    """
    link = fit(known["ping_pong"]["sizes"], np.min(known["ping_pong"]["moments"], axis=0))
    sizes, seconds = known["crowd"]["sizes"], np.min(known["crowd"]["moments"][str(world_size)], axis=0)
    if len(sizes) == 1:
        return Machine(link, per_message=float(seconds[0]))
    processors = fit(sizes, seconds)
    return Machine(link, per_message=processors.alpha, per_byte=processors.beta)


def stopwatch(
    rank: int, world_size: int, contestants: Sequence[Schedule | Callable], num_bytes: int, repeats: int = 5
) -> list[list[float]]:
    """Return this rank's seconds for each contestant on a buffer of `num_bytes`: [contestants, repeats].

    For `ranks.run`; `slowest` combines the ranks' results. A contestant is a schedule or a function of a tensor, such
    as `dist.all_reduce`. They take turns, so that a passing disturbance affects all alike. Each starts at a barrier.
    """
    import torch
    import torch.distributed as dist

    buffer = torch.zeros(num_bytes // ITEMSIZE)
    rounds: list[list[float]] = []
    for _ in range(repeats + 1):
        rounds.append([])
        for contestant in contestants:
            dist.barrier()
            start = time.perf_counter()
            execute(contestant, buffer) if isinstance(contestant, Schedule) else contestant(buffer)
            rounds[-1].append(time.perf_counter() - start)
    return [list(times) for times in zip(*rounds[1:], strict=True)]  # the first round warms up connections and memory


def slowest(results: Sequence[Sequence[Sequence[float]]], quantile: float = 0.5) -> list[float]:
    """Return each contestant's seconds on its slowest rank, from all ranks' `stopwatch`.

    A time is the median of the repeats, or another `quantile`, as in `ping_pong`.
    """
    return np.quantile(np.max(results, axis=0), quantile, axis=1).tolist()


def fit(sizes: ArrayLike, seconds: ArrayLike) -> Link:
    """Fit alpha and beta of a link to messages of `sizes` bytes that took `seconds`, by relative least squares."""
    sizes = np.asarray(sizes, dtype=float)
    alpha, beta = _relative(np.stack([np.ones_like(sizes), sizes], axis=1), seconds)
    return Link(float(alpha), float(beta))


def fit_terms(work: Sequence[Features], seconds: ArrayLike, terms: Sequence[str] = TERMS) -> Fitted:
    """Fit non-negative costs per unit of each of `terms`, which minimize the squares of the *relative* errors.

    `work`: what was measured. `seconds`: how long each took. Raises `ValueError` for a term that `Features` lacks.
    """
    _check_terms(terms)
    columns = np.array([[getattr(each, term) for term in terms] for each in work], dtype=float)
    return Fitted(dict(zip(terms, _relative(columns, seconds).tolist(), strict=True)))


def held_out(work: Sequence[Features], seconds: ArrayLike, fold: ArrayLike, terms: Sequence[str] = TERMS) -> np.ndarray:
    """Return cross-validated predictions in seconds: each fold's, from the terms fitted to all other folds."""
    seconds, fold = np.asarray(seconds), np.asarray(fold)
    predicted = np.zeros(len(seconds))
    for here in np.unique(fold):
        others = np.flatnonzero(fold != here)
        fitted = fit_terms([work[place] for place in others.tolist()], seconds[others], terms)
        for place in np.flatnonzero(fold == here).tolist():
            predicted[place] = fitted.seconds(work[place])
    return predicted


def _check_terms(terms: Sequence[str] | Mapping[str, float]) -> None:
    if unknown := [term for term in terms if term not in TERMS]:
        raise ValueError(f"no schedule has the term {unknown[0]!r}; the terms are {', '.join(TERMS)}")


def _relative(columns: np.ndarray, seconds: ArrayLike) -> np.ndarray:
    """Return the non-negative costs of columns [num_measurements, num_terms] with the least relative errors."""
    shares = columns / np.asarray(seconds, dtype=float)[:, None]  # fit each row's sum to 1
    scale = np.linalg.norm(shares, axis=0)
    scale[scale == 0] = 1
    return _non_negative(shares / scale, np.ones(len(shares))) / scale


def _non_negative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Solve matrix @ x = target in least squares with x >= 0, by the active-set method.

    Source: C. Lawson and R. Hanson, "Solving Least Squares Problems", 1974, chapter 23.
    """
    x, active = np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1], dtype=bool)
    while True:
        slope = np.where(active, -np.inf, matrix.T @ (target - matrix @ x))
        if slope.max(initial=-np.inf) <= 1e-10:
            return x
        active[slope.argmax()] = True
        while True:
            best = np.zeros_like(x)
            best[active] = np.linalg.lstsq(matrix[:, active], target, rcond=None)[0]
            if (best[active] > 0).all():
                x = best
                break
            falling = active & (best <= 0)  # move towards `best` until the first of these reaches 0, and drop that one
            x = x + (best - x) * (x[falling] / (x[falling] - best[falling])).min()
            active &= x > 1e-12
            x[~active] = 0


def ahead_from(first: Schedule, second: Schedule, seconds: Callable[[Features], float]) -> float:
    """Return the bytes from which on `first` takes fewer seconds than `second`: 0, or infinity above a tebibyte.

    `seconds`: of a `Machine` or a `Fitted`. Sizes are powers of two, then bisected to a relative 1e-3.
    """

    def ahead(num_bytes: int) -> bool:
        return seconds(features(first, num_bytes)) < seconds(features(second, num_bytes))

    sizes = [ITEMSIZE * 2**power for power in range(39)]
    behind = [size for size in sizes if not ahead(size)]
    if not behind or behind[-1] == sizes[-1]:
        return np.inf if behind else 0
    low, high = behind[-1], 2 * behind[-1]
    while high - low > max(ITEMSIZE, low // 1000):
        middle = (low + high) // 2 // ITEMSIZE * ITEMSIZE
        low, high = (low, middle) if ahead(middle) else (middle, high)
    return high


def crossings(sizes: Sequence[float], first: Sequence[float], second: Sequence[float]) -> list[tuple[float, float]]:
    """Return the pairs of neighbouring `sizes` (ascending) between which the faster of two methods changes.

    `first`, `second`: the methods' seconds at each size.
    """
    ahead = np.asarray(first) < np.asarray(second)
    turns = np.flatnonzero(ahead[1:] != ahead[:-1])
    return [(sizes[turn], sizes[turn + 1]) for turn in turns.tolist()]


def off(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Return the median relative error of predictions."""
    predicted, measured = np.asarray(predicted), np.asarray(measured)
    return float(np.median(np.abs(predicted - measured) / measured))
