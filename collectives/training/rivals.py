"""Published runs of one job by different plans: does the planner put them in the right order?

    for pair in pairs(evidence.recorded()): print(pair.job, pair.measured, pair.predicted, pair.in_order)

A job is a model with its sequence length and batch, on a number of GPUs of one kind, in one precision. A choice needs
the planner's order only. Errors that two plans share don't change it, so the spread of single predictions doesn't say
how often a choice is right; pairs do.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import combinations
from math import exp, log
from typing import NamedTuple

import numpy as np

from .evidence import REPOSITORY, Evidence, Sample, experts, fits, gpu, precision, repository
from .layout import Layout
from .software import USUAL


class Rivals(NamedTuple):
    """Two plans for one job, `faster` first as measured.

    `measured`: by what part the second takes longer, 0 or more. `predicted`: the same by constants that saw neither
    run's repository; negative if the planner takes the second for the faster one. `dense`: the model has no experts.
    `alike`: both were published for the same software, that of one framework.
    """

    job: str
    faster: Layout
    slower: Layout
    measured: float
    predicted: float
    dense: bool
    alike: bool

    @property
    def in_order(self) -> bool:
        """Whether the planner takes the faster one for the faster one."""
        return self.predicted > 0


def pairs(found: Evidence) -> list[Rivals]:
    """Return every pair of plans for one job. A plan that was published several times counts by its geometric mean.

    Plans that differ in their software only are one plan. A row whose plan can't fit is a misprint and doesn't count.
    `found`: with the errors of runs whose repository was left out, as `evidence.recorded` returns it. Raises `KeyError`
    without them.
    """
    jobs: dict[tuple, dict[Layout, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    dense = {}
    stacks: dict[tuple, set[str]] = defaultdict(set)  # of software, by job and plan
    for sample, error in zip(found.used, found.errors[REPOSITORY], strict=True):
        if fits(sample.run):
            measured, plan = log(sample.seconds), replace(sample.run.layout, software=USUAL)
            jobs[job(sample)][plan].append((measured, measured + float(error)))
            dense[job(sample)] = experts(sample) == "dense"
            stacks[job(sample), plan].add(sample.run.layout.software.stack)
    made = []
    for key, plans in jobs.items():
        means = sorted((*np.mean(times, axis=0), place) for place, times in enumerate(plans.values()))
        layouts = list(plans)
        for (fast, fast_said, one), (slow, slow_said, other) in combinations(means, 2):
            apart = exp(slow - fast) - 1, exp(slow_said - fast_said) - 1
            alike = stacks[key, layouts[one]] == stacks[key, layouts[other]]
            made.append(Rivals(_words(key), layouts[one], layouts[other], *apart, dense[key], alike))
    return made


def job(sample: Sample) -> tuple:
    """Return what two runs must share to be of one job."""
    model, machine, layout = sample.run
    return model.name, machine.world_size, gpu(sample), precision(sample), model.sequence, layout.batch


def _words(key: tuple) -> str:
    model, ranks, name, numbers, _, batch = key
    return f"{model}, {ranks} {name}, {numbers}, batch {batch}"


def releases(found: Evidence) -> np.ndarray:
    """Return, for each plan that a repository published for several releases, by what part the slowest takes longer."""
    same: dict[tuple, list[float]] = defaultdict(list)
    for sample in found.used:
        same[job(sample), sample.run.machine, sample.run.layout, repository(sample.source)].append(sample.seconds)
    return np.array([max(times) / min(times) - 1 for times in same.values() if len(times) > 1])
