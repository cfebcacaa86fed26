"""Fits find the constants that made the data, features are what formulas say, and the recorded runs hold."""

import json
from pathlib import Path

import numpy as np
import pytest

from collectives import price, ranks, topology
from collectives.algorithms import pairwise, ring, tree
from collectives.measure import calibrate

pytestmark = pytest.mark.ranks

DATA = Path(__file__).resolve().parents[2] / "book" / "data"
KIB = 2**10


@pytest.mark.parametrize("alpha, beta", [(1e-5, 1e-9), (0.0, 1e-9), (3e-4, 0.0)])
def test_a_fit_finds_the_line_that_made_the_data(alpha, beta):
    sizes = np.array([64, 1024, 2**14, 2**20, 2**24])
    assert calibrate.fit(sizes, alpha + beta * sizes) == pytest.approx((alpha, beta), rel=1e-9, abs=1e-18)


def test_a_fit_serves_small_messages_as_well_as_large_ones():
    """Noise of 5 % moves alpha by about as much, though it is many times alpha on the largest message."""
    sizes = 2 ** np.arange(6, 25)
    wobble = 1 + 0.05 * np.random.default_rng(1).standard_normal((50, len(sizes)))
    fits = np.array([calibrate.fit(sizes, (2e-5 + 1e-9 * sizes) * each) for each in wobble])
    np.testing.assert_allclose(fits, np.tile([2e-5, 1e-9], (50, 1)), rtol=0.12)


def test_no_term_costs_less_than_nothing_and_no_other_choice_fits_better():
    """Against every choice of terms to leave out, solved exactly."""
    rng = np.random.default_rng(2)
    for _ in range(30):
        columns, seconds = rng.uniform(0, 1, (12, 4)), rng.uniform(0.5, 2, 12)
        costs = calibrate.fit_terms(columns, seconds)
        shares = columns / seconds[:, None]
        best = np.inf
        for kept in range(1, 16):
            chosen = [term for term in range(4) if kept >> term & 1]
            solved = np.linalg.lstsq(shares[:, chosen], np.ones(12), rcond=None)[0]
            if (solved >= 0).all():
                best = min(best, np.linalg.norm(shares[:, chosen] @ solved - 1))
        assert (costs >= 0).all()
        assert np.linalg.norm(shares @ costs - 1) == pytest.approx(best, rel=1e-9)


def test_terms_of_very_different_size_and_terms_that_repeat_each_other_are_fitted_all_the_same():
    rng = np.random.default_rng(3)
    columns = rng.uniform(1, 2, (20, 3)) * [1, 1e9, 1e9]
    columns[:, 2] = 2 * columns[:, 1]
    seconds = columns @ [1e-3, 1e-9, 0]
    np.testing.assert_allclose(columns @ calibrate.fit_terms(columns, seconds), seconds, rtol=1e-6)


def test_the_features_of_a_schedule_are_what_its_formulas_say():
    size = 4 * 6 * 1000
    assert calibrate.features(ring.all_reduce(6), size) == pytest.approx(
        (10, size * 5 / 3, size * 5 / 6, 60, 10 * size)
    )
    assert calibrate.features(tree.all_reduce(6), size) == pytest.approx((6, 6 * size, 3 * size, 10, 10 * size))


def test_prices_are_the_first_three_features_times_the_constants():
    for schedule in (ring.all_reduce(5), tree.all_reduce(7), pairwise.all_reduce(4)):
        steps, path_bytes, path_added, messages, total = calibrate.features(schedule, 840)
        plain = price(schedule, 840, topology.uniform(schedule.world_size, 2.0, 3.0), 4)
        added = price(schedule, 840, topology.uniform(schedule.world_size, 0, 0, gamma=1.0), 4)
        assert plain.seconds == pytest.approx(2 * steps + 3 * path_bytes)
        assert (added.seconds, plain.messages, plain.bytes_sent.sum()) == (path_added, messages, total)


def test_a_held_out_prediction_has_not_seen_what_it_predicts():
    columns, fold = np.ones((4, 1)), [0, 0, 1, 1]
    np.testing.assert_allclose(calibrate.held_out(columns, [1.0, 1.0, 3.0, 3.0], fold), [3, 3, 1, 1])


def test_a_crossing_lies_where_two_curves_change_their_order():
    sizes = [1, 2, 4, 8]
    assert calibrate.crossings(sizes, [5, 5, 5, 5], [1, 2, 6, 9]) == [(2, 4)]
    assert calibrate.crossings(sizes, [1, 1, 1, 1], [2, 2, 2, 2]) == []
    assert calibrate.crossings(sizes, [1, 3, 1, 3], [2, 2, 2, 2]) == [(1, 2), (2, 4), (4, 8)]


def test_ping_pong_is_played_by_two_ranks_while_others_are_idle():
    seconds, other, idle = ranks.run(calibrate.ping_pong, 3, [64, 2**22], 3)
    assert len(seconds) == len(other) == 2
    assert min(seconds + other) > 0
    assert idle == [0.0, 0.0]


def double(buffer):
    buffer *= 2


def test_the_stopwatch_times_schedules_and_functions_on_every_rank():
    results = ranks.run(calibrate.stopwatch, 3, [ring.all_reduce(3), double], 4000, 4)
    assert np.shape(results) == (3, 2, 4)
    assert min(calibrate.slowest(results)) > 0


def test_a_collective_takes_as_long_as_its_slowest_rank_in_the_median():
    assert calibrate.slowest([[[1, 9, 2]], [[3, 1, 1]]]) == [3.0]


def test_an_addition_costs_something():
    (seconds_a_byte,) = ranks.run(calibrate.adding, 1, 2**16, 3)
    assert 0 < seconds_a_byte < 1e-6


# The recorded runs that chapter 05 shows: what it says of them holds, or they are to be recorded again.


def recorded(name):
    found = json.loads((DATA / f"{name}.json").read_text())
    return found, found["cells"]


def test_on_recorded_lines_ping_pong_predicts_collectives_and_chooses_among_them():
    found, cells = recorded("crossover_lines")
    alpha, beta = calibrate.fit(*found["ping_pong"])
    rows = [cell for cell in cells if cell["num_bytes"] >= 256 * KIB]
    for cell in rows:
        links = topology.uniform(cell["world_size"], alpha, beta)
        schedule = calibrate.ALL_REDUCES[cell["algorithm"]](cell["world_size"])
        cell["predicted"] = price(schedule, cell["num_bytes"], links, 4).seconds
    for ranks_of in ((4,), (4, 8)):
        here = [cell for cell in rows if cell["world_size"] in ranks_of]
        assert calibrate.off([cell["predicted"] for cell in here], [cell["seconds"] for cell in here]) < 0.10
    regrets = []
    for place in {(cell["world_size"], cell["num_bytes"]) for cell in rows}:
        here = [cell for cell in rows if (cell["world_size"], cell["num_bytes"]) == place]
        chosen = min(here, key=lambda cell: cell["predicted"])
        regrets.append(chosen["seconds"] / min(cell["seconds"] for cell in here) - 1)
    assert np.median(regrets) < 0.02  # ring and halving-doubling send the same bytes: what parts them is mostly noise
    assert max(regrets) < 0.05


def test_on_recorded_loopback_five_terms_predict_sizes_that_they_have_not_seen():
    found, cells = recorded("loopback")
    cells = [cell for cell in cells if cell["algorithm"] in calibrate.ALL_REDUCES]
    seconds = np.array([cell["seconds"] for cell in cells])
    columns = np.array(
        [
            calibrate.features(calibrate.ALL_REDUCES[cell["algorithm"]](cell["world_size"]), cell["num_bytes"])
            for cell in cells
        ]
    )
    sizes = sorted({cell["num_bytes"] for cell in cells})
    fold = [sizes.index(cell["num_bytes"]) % 2 for cell in cells]
    alpha, beta = calibrate.fit(*found["ping_pong"])
    plain = alpha * columns[:, 0] + beta * columns[:, 1]
    five = calibrate.off(calibrate.held_out(columns, seconds, fold), seconds)
    assert five <= 0.30
    assert five < calibrate.off(plain, seconds) / 1.5
