"""Measure what the cost model's constants are here, and how far its predictions are from the clock.

On links that are links two constants are enough: alpha and beta, from a few seconds of ping-pong (`ping_pong`,
`fit`). Ranks that share the cores of one machine need more. `features` reads off a schedule what they might pay for,
each a number that `price` gives; `fit_terms` finds, from some measurements, what each unit of it costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..algorithms import double_tree, doubling, halving_doubling, ring, tree
from ..algorithms.scorecard import unit_costs
from ..execute import execute
from ..schedule import Schedule

ITEMSIZE = 4  # bytes of a float32: what is measured here is always sums of those
SIZES = (16, 64, 256, 2**20, 2**21)  # bytes of the ping-pong's messages: small ones for alpha, large ones for beta
ALL_REDUCES = {
    "ring": ring.all_reduce,
    "tree": tree.all_reduce,
    "halving-doubling": halving_doubling.all_reduce,
    "doubling": doubling.all_reduce,
    "double tree": double_tree.all_reduce,
}
"""The contestants, by name: world_size -> Schedule."""


class Features(NamedTuple):
    """What a schedule makes ranks do. On the critical path: `steps` messages one after the other, `path_bytes` in them
    and `path_added`, the bytes added on arrival. Over all ranks together: `messages` and `total_bytes`.
    """

    steps: float
    path_bytes: float
    path_added: float
    messages: float
    total_bytes: float


def features(schedule: Schedule, num_bytes: int) -> Features:
    """What `schedule` costs on a buffer of `num_bytes`, in units: priced with one coefficient at a time set to 1."""
    costs = unit_costs(schedule, num_bytes, ITEMSIZE)
    return Features(*(cost.seconds for cost in costs), costs[0].messages, float(costs[0].bytes_sent.sum()))


def ping_pong(
    rank: int, world_size: int, sizes: Sequence[int] = SIZES, repeats: int = 9, quantile: float = 0.5
) -> list[float]:
    """Seconds that a message of each of `sizes` bytes takes between ranks 0 and 1, one way, for `ranks.run`.

    Half of the round trip, after one that warms up. Of the `repeats` it is the median, or another `quantile`: 0 for the
    fastest, on which nothing else that runs on the machine has weighed. Other ranks have nothing to do.
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


def adding(rank: int, world_size: int, num_bytes: int = 2**22, repeats: int = 9) -> float:
    """Gamma: the seconds that adding one buffer to another takes a rank, for each byte of it, for `ranks.run`."""
    import torch

    mine, arrived, times = torch.zeros(num_bytes // ITEMSIZE), torch.ones(num_bytes // ITEMSIZE), []
    for _ in range(repeats):
        start = time.perf_counter()
        mine.add_(arrived)
        times.append(time.perf_counter() - start)
    return float(np.median(times)) / num_bytes


def stopwatch(
    rank: int, world_size: int, contestants: Sequence[Schedule | Callable], num_bytes: int, repeats: int = 5
) -> list[list[float]]:
    """Seconds that each contestant takes this rank on a buffer of `num_bytes`, for `ranks.run`: [contestants, repeats].

    A contestant is a schedule, or a function of a tensor such as `dist.all_reduce`. They take turns, so that what
    disturbs the machine for a while disturbs all alike; each begins at a barrier. See `slowest`.
    """
    import torch
    import torch.distributed as dist

    buffer, rounds = torch.zeros(num_bytes // ITEMSIZE), []
    for _ in range(repeats + 1):
        rounds.append([])
        for contestant in contestants:
            dist.barrier()
            start = time.perf_counter()
            execute(contestant, buffer) if isinstance(contestant, Schedule) else contestant(buffer)
            rounds[-1].append(time.perf_counter() - start)
    return [list(times) for times in zip(*rounds[1:], strict=True)]  # the first makes connections and touches memory


def slowest(results: Sequence[Sequence[Sequence[float]]], quantile: float = 0.5) -> list[float]:
    """Each contestant's time, of what all ranks' `stopwatch` returned: its slowest rank's.

    Of the repeats it is the median, or another `quantile`, as in `ping_pong`.
    """
    return np.quantile(np.max(results, axis=0), quantile, axis=1).tolist()


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Alpha and beta of a link, from messages of `sizes` bytes that took `seconds`, by relative least squares."""
    sizes = np.asarray(sizes, dtype=float)
    alpha, beta = fit_terms(np.stack([np.ones_like(sizes), sizes], axis=1), seconds)
    return alpha, beta


def fit_terms(columns: np.ndarray, seconds: Sequence[float]) -> np.ndarray:
    """What one unit of each column costs, none less than 0, so that the squares of *relative* errors are least.

    `columns`: [num_measurements, num_terms]; `seconds`: [num_measurements]. Returns seconds a unit: [num_terms].
    """
    shares = np.asarray(columns, dtype=float) / np.asarray(seconds, dtype=float)[:, None]  # each row is to sum to 1
    scale = np.linalg.norm(shares, axis=0)
    scale[scale == 0] = 1
    return _non_negative(shares / scale, np.ones(len(shares))) / scale


def held_out(columns: np.ndarray, seconds: Sequence[float], fold: Sequence[int]) -> np.ndarray:
    """Predictions for measurements that the fit has not seen: each fold's, from the terms fitted to all others."""
    columns, seconds, fold = (np.asarray(each) for each in (columns, seconds, fold))
    predicted = np.zeros(len(seconds))
    for here in np.unique(fold):
        inside = fold == here
        predicted[inside] = columns[inside] @ fit_terms(columns[~inside], seconds[~inside])
    return predicted


def _non_negative(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The least squares solution of matrix @ x = wanted with no x below 0, by trying one active set after another.

    Source: C. Lawson and R. Hanson, "Solving Least Squares Problems", 1974, chapter 23.
    """
    x, active = np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1], dtype=bool)
    while True:
        slope = np.where(active, -np.inf, matrix.T @ (wanted - matrix @ x))
        if slope.max(initial=-np.inf) <= 1e-10:
            return x
        active[slope.argmax()] = True
        while True:
            best = np.zeros_like(x)
            best[active] = np.linalg.lstsq(matrix[:, active], wanted, rcond=None)[0]
            if (best[active] > 0).all():
                x = best
                break
            falling = active & (best <= 0)  # go towards it until the first of them reaches 0, and leave that one out
            x = x + (best - x) * (x[falling] / (x[falling] - best[falling])).min()
            active &= x > 1e-12
            x[~active] = 0


def crossings(sizes: Sequence[float], first: Sequence[float], second: Sequence[float]) -> list[tuple[float, float]]:
    """Between which neighbours of `sizes` (ascending) `first` and `second`, seconds at each, change their order."""
    ahead = np.asarray(first) < np.asarray(second)
    turns = np.flatnonzero(ahead[1:] != ahead[:-1])
    return [(sizes[turn], sizes[turn + 1]) for turn in turns]


def off(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """The median error of predictions, relative to what was measured."""
    predicted, measured = np.asarray(predicted), np.asarray(measured)
    return float(np.median(np.abs(predicted - measured) / measured))
