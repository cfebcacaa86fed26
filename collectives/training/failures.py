"""What failures cost a long job: how often to save a checkpoint, and which share of the time then trains the model.

    interval(cost=60, between=11_000)                            # seconds of training between two checkpoints
    goodput(1_150, cost=60, between=11_000, restart=600)         # share of the time that is kept as training
    simulate(1_150, 60, 600, failures(11_000, 28_800, seed=1), 28_800)    # the same job as a timeline

Seconds everywhere. `cost` is what a checkpoint stops training for, `between` the mean time between failures, `restart`
the time from a failure until the job trains again. Failures are independent of each other, so the times between them
are exponential; a failure during a restart is not counted again.

Sources: Young, “A first order approximation to the optimum checkpoint interval”, Communications of the ACM, 1974;
Daly, “A higher order estimate of the optimum checkpoint interval for restart dumps”, 2006.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from .timeline import Span, Timeline


def interval(cost: float, between: float) -> float:
    """Return the seconds of training between two checkpoints that lose the least time, by Young's formula.

    Checkpoints then cost as much as the work that failures undo. Good while `cost` is much smaller than `between`.
    """
    return (2 * cost * between) ** 0.5


def lost(interval: float, cost: float, between: float, restart: float = 0.0) -> float:
    """Return the share of the time that is lost, to first order: in checkpoints, in undone work, and in restarts.

    A failure undoes half an interval on average.
    """
    return cost / interval + interval / 2 / between + restart / between


def goodput(interval: float, cost: float, between: float, restart: float = 0.0) -> float:
    """Return the share of the time that is kept as training, exactly: `interval` over the mean time that it takes.

    The job repeats the interval and its checkpoint until no failure falls into them. Raises `ValueError` unless the
    interval and the time between failures are positive and the others at least 0.
    """
    if min(interval, between) <= 0 or min(cost, restart) < 0:
        raise ValueError("interval and between must be positive, cost and restart at least 0 seconds")
    return interval / ((between + restart) * math.expm1((interval + cost) / between))


def failures(between: float, until: float, seed: int) -> list[float]:
    """Return the times of random failures before `until`. The same `seed` gives the same times."""
    draw, times = random.Random(seed), [0.0]
    while times[-1] < until:
        times.append(times[-1] + draw.expovariate(1 / between))
    return times[1:-1]


def simulate(interval: float, cost: float, restart: float, failures: Iterable[float], until: float) -> Timeline:
    """Return what a job does until `until`, given when it fails: a timeline with one lane.

    Its spans are of four kinds: "compute", training that is kept; "checkpoint"; "lost", all that was done since the
    last complete checkpoint when a failure comes; "restart". Work that the end cuts off counts as kept.
    """
    spans: list[Span] = []

    def add(name: str, start: float, end: float, kind: str) -> None:
        if end > start:
            spans.append(Span(name, "", start, end - start, kind))

    now = 0.0
    for number, failure in enumerate([*sorted(failures), math.inf], 1):
        if failure < now:  # while the job was down
            continue
        while now + interval + cost <= min(failure, until):
            add("training", now, now + interval, "compute")
            add("checkpoint", now + interval, now + interval + cost, "checkpoint")
            now += interval + cost
        if failure > until:
            break
        add(f"work lost by failure {number}", now, failure, "lost")
        add(f"restart {number}", failure, min(failure + restart, until), "restart")
        now = failure + restart
    add("training", now, min(now + interval, until), "compute")
    add("checkpoint", now + interval, until, "checkpoint")
    return Timeline(tuple(spans))


def kept(job: Timeline) -> float:
    """Return the share of a job's time that is kept as training: the goodput of what `simulate` returns."""
    return sum(span.seconds for span in job.spans if span.kind == "compute") / job.seconds
