"""Published runs of one job by different plans: their order as measured and as predicted."""

from dataclasses import replace
from math import log

import numpy as np
import pytest

from collectives.machines import RUNNING_CASE
from collectives.training import evidence, rivals
from collectives.training.evidence import NOTHING, REPOSITORY, Evidence, Sample
from collectives.training.layout import Layout
from collectives.training.registry import MODELS
from collectives.training.runs import Run
from collectives.training.software import Software

FITS = Layout(8, 4, 2, stage=1, sequence_parallel=True, num_micro_batches=16, recompute="full")
WHOLE = Layout(64, stage=3, num_micro_batches=2, recompute="full")
EAGER = replace(FITS, software=Software(stack="eager"))


def made(*rows):
    """Evidence of runs (layout, seconds, predicted seconds) of one job."""
    run = Run(MODELS["llama-3-70b"], RUNNING_CASE, FITS)
    used = [Sample({}, run._replace(layout=layout), seconds, "a/b:c") for layout, seconds, _ in rows]
    errors = np.array([log(predicted / seconds) for _, seconds, predicted in rows])
    return Evidence(used, None, {NOTHING: errors, REPOSITORY: errors})


def test_the_faster_is_first_and_an_order_that_is_wrong_has_a_minus():
    (pair,) = rivals.pairs(made((FITS, 12.0, 10.0), (WHOLE, 10.0, 11.0)))
    assert (pair.faster, pair.slower) == (WHOLE, FITS)
    assert pair.measured == pytest.approx(0.2) and pair.predicted == pytest.approx(10 / 11 - 1)
    assert not pair.in_order and pair.dense and pair.job == "llama-3-70b, 64 H100, bf16, batch 128"


def test_a_plan_counts_once_whatever_its_software_and_however_often_it_was_published():
    (pair,) = rivals.pairs(made((FITS, 9.0, 9.0), (FITS, 16.0, 16.0), (EAGER, 12.0, 12.0), (WHOLE, 24.0, 24.0)))
    assert pair.measured == pytest.approx(1.0)


def test_runs_of_other_jobs_are_no_rivals():
    assert rivals.pairs(made((FITS, 10.0, 10.0), (replace(WHOLE, num_micro_batches=4), 10.0, 10.0))) == []


def test_a_plan_that_cannot_fit_is_a_misprint_and_no_rival():
    assert rivals.pairs(made((FITS, 10.0, 10.0), (replace(WHOLE, stage=1), 10.0, 10.0))) == []


def test_releases_compare_the_same_plan_of_one_repository():
    found = rivals.releases(made((FITS, 10.0, 10.0), (FITS, 12.0, 10.0), (WHOLE, 10.0, 10.0)))
    assert found == pytest.approx([0.2])


def test_below_a_tenth_the_order_of_published_plans_is_hardly_better_than_a_coin_s():
    """What chapter 20 takes its threshold from; no published plan that the planner wrongly preferred lost a tenth."""
    dense = [pair for pair in rivals.pairs(evidence.recorded()) if pair.dense]
    near = [pair for pair in dense if abs(np.log1p(pair.predicted)) < np.log(1.1)]
    assert len(dense) >= 15 and len(near) >= 10
    assert 0.3 < np.mean([pair.in_order for pair in near]) < 0.8
    assert max(pair.measured for pair in dense if not pair.in_order) < 0.1
