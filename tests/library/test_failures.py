"""How often to save: the formula's interval is the best one, and a simulated job keeps what the formula says."""

import pytest

from collectives.training import failures
from collectives.training.failures import goodput, interval, kept, lost, simulate

BETWEEN = 54 * 24 * 3600 / 419  # seconds between the unexpected interruptions of Llama 3


def test_llama_3_should_save_every_19_minutes_if_a_checkpoint_takes_60_seconds():
    assert interval(60, BETWEEN) / 60 == pytest.approx(19.3, abs=0.05)


def test_at_the_best_interval_checkpoints_cost_as_much_as_undone_work():
    best = interval(60, BETWEEN)
    assert 60 / best == pytest.approx(best / 2 / BETWEEN)
    assert all(lost(best, 60, BETWEEN) < lost(best * factor, 60, BETWEEN) for factor in (0.5, 0.9, 1.1, 2))


def test_the_exact_goodput_is_the_first_order_one_when_failures_are_rare():
    assert goodput(2_000, 2, 1e6, 500) == pytest.approx(1 - lost(2_000, 2, 1e6, 500), abs=1e-5)


@pytest.mark.parametrize("every", [300, 1_156, 7_200])
def test_a_long_simulated_job_keeps_what_the_formula_says(every):
    until = 4_000 * BETWEEN
    job = simulate(every, 60, 600, failures.failures(BETWEEN, until, seed=1), until)
    assert kept(job) == pytest.approx(goodput(every, 60, BETWEEN, 600), rel=0.01)


def test_a_failure_undoes_all_since_the_last_complete_checkpoint():
    job = simulate(100, 10, 30, [250, 260], 400)  # the second comes while the job is down
    assert [(span.kind, span.start, span.end) for span in job.spans] == [
        ("compute", 0, 100),
        ("checkpoint", 100, 110),
        ("compute", 110, 210),
        ("checkpoint", 210, 220),
        ("lost", 220, 250),
        ("restart", 250, 280),
        ("compute", 280, 380),
        ("checkpoint", 380, 390),
        ("compute", 390, 400),
    ]


def test_impossible_times_are_refused():
    with pytest.raises(ValueError, match="must be positive"):
        goodput(0, 60, BETWEEN)
