"""A prediction is written down before anything is measured, and every case is reported."""

import json
from pathlib import Path

import pytest

from collectives.measure import registered

DATA = Path(__file__).resolve().parents[2] / "book" / "data"
CASES = [{"num_bytes": num_bytes} for num_bytes in (1, 1000, 10**6)]
MODELS = {"a byte a nanosecond": lambda case: case["num_bytes"] * 1e-9}


def test_every_model_predicts_every_case_before_anything_is_measured():
    events = []

    def model(case):
        events.append("predict")
        return 1.0

    def measure(cases):
        events.append("measure")
        return [[2.0]] * len(cases)

    registered.register("order", CASES, {"one": model}).against(measure)
    assert events == ["predict"] * len(CASES) + ["measure"]


def test_what_is_measured_can_no_longer_change_what_was_predicted():
    seen = []
    model = lambda case: seen[-1] if seen else 1.0  # noqa: E731  a model that would peek
    record = registered.register("peeking", CASES, {"peek": model}).against(lambda cases: [[seen.append(9) or 9.0]] * 3)
    assert [cell["predicted"]["peek"] for cell in record.cells] == [1.0] * 3


def test_a_record_holds_every_case_with_its_repeats_and_says_when_and_on_what(tmp_path):
    prediction = registered.register("a wire", CASES, MODELS, {"alpha": 1e-5})
    record = prediction.against(lambda cases: [[2.0, 1.0, 3.0]] * len(cases))
    record.save(tmp_path / "wire.json")
    again = registered.Record.load(tmp_path / "wire.json")
    assert again == record
    assert [cell["num_bytes"] for cell in again.cells] == [1, 1000, 10**6]
    assert again.cells[1] == {"num_bytes": 1000, "predicted": {"a byte a nanosecond": 1e-6}, "seconds": [2.0, 1.0, 3.0]}
    assert again.header["what"] == "a wire"
    assert again.header["alpha"] == 1e-5
    assert again.header["predicted"] <= again.header["measured"]
    assert again.header["machine"]["cores"] > 0


def test_a_record_prints_every_case_with_its_ratio_small_ones_included():
    lines = str(
        registered.register("a wire", CASES, MODELS).against(lambda cases: [[1e-3, 2e-3, 9e-3]] * 3)
    ).splitlines()
    assert len(lines) == 2 + len(CASES)
    assert lines[2].split() == ["1", "1.00", "2.00", "0.00"]
    assert lines[4].split() == ["1000000", "1.00", "2.00", "1.00"]


def test_a_model_is_judged_by_its_median_error_and_by_what_its_choice_loses():
    cases = [{"num_bytes": 1, "algorithm": name} for name in ("ring", "tree", "flat")]
    guess = {"ring": 1.0, "tree": 2.0, "flat": 9.0}
    prediction = registered.register("race", cases, {"guess": lambda case: guess[case["algorithm"]]})
    record = prediction.against(lambda cases: [[6.0, 4.0], [2.0], [6.0]])
    assert registered.off(record.cells, "guess") == 0.5  # of 0.75, 0 and 0.5
    assert registered.regret(record.cells, "guess") == 1.0  # the ring took 4 s, and the tree 2
    assert record.at(algorithm="tree") == [record.cells[1]]


def measured_twice():
    prediction = registered.register("once", CASES, MODELS)
    for _ in range(2):
        prediction.against(lambda cases: [[1.0]] * len(cases))


def two_left_out():
    registered.register("all", CASES, MODELS).against(lambda cases: [[1.0]])


def lost_header():
    registered.Record({"what": "x"}, [])


MISTAKES = {
    measured_twice: "once: already measured at .*; register a new prediction",
    two_left_out: "all: 3 cases were predicted, but 1 measured",
    lost_header: "this one lacks predicted, measured, machine",
    lambda: registered.register("none", [], MODELS): "none: a prediction needs at least one case and one model",
    lambda: registered.register("bad", CASES, {"zero": lambda case: 0.0}): "bad: zero gives 0.0 seconds",
    lambda: registered.register("nan", CASES, MODELS).against(
        lambda cases: [[float("nan")]] * 3
    ): "the clock gives nan",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line(mistake):
    with pytest.raises(ValueError, match=MISTAKES[mistake]) as error:
        mistake()
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_record_is_refused(tmp_path):
    (tmp_path / "old.json").write_text("[]")
    with pytest.raises(ValueError, match=r"old\.json is not a record of predictions"):
        registered.Record.load(tmp_path / "old.json")


@pytest.mark.parametrize("name", ["crossover_lines", "loopback", "mesh_lines"])
def test_the_recorded_experiments_were_predicted_first_and_name_their_day_and_machine(name):
    record = registered.Record.load(DATA / f"{name}.json")
    assert record.header["predicted"] <= record.header["measured"]
    assert record.header["machine"]["date"].startswith("20")
    assert all(set(cell["predicted"]) == set(record.models) for cell in record.cells)


def test_the_recorded_benchmark_names_its_day_and_machine():
    before = json.loads((DATA / "bench.json").read_text())["before"]
    assert before["date"].startswith("20")
    assert before["cores"] > 0


def test_a_record_reads_by_size_and_the_table_has_a_line_for_each():
    record = registered.Record.load(DATA / "crossover_lines.json")
    table = registered.by_size(record).splitlines()
    assert len(table) == 2 + 2 * len(record.sizes)
    clock, guess = record.clock(8, 2**14), record.guess("link", 8, 2**14)
    assert set(clock) == set(guess) == {cell["algorithm"] for cell in record.cells}
    chosen = min(guess, key=guess.get)
    regret = clock[chosen] / min(clock.values()) - 1
    assert registered.regret(record.at(world_size=8, num_bytes=2**14), "link") == pytest.approx(regret)
    (line,) = [line for line in table if line.startswith("P = 8") and " 16 KiB" in line]
    assert f"{regret:.0%}" in line


def test_a_measurement_may_say_more_than_its_seconds():
    prediction = registered.register("memory", CASES, {"planner": lambda case: 1.0})
    record = prediction.against(lambda cases: [registered.Measured([2.0], {"peak_bytes": 7})] * len(cases))
    assert [(cell["seconds"], cell["peak_bytes"]) for cell in record.cells] == [([2.0], 7)] * len(CASES)


def test_a_case_that_could_not_be_measured_keeps_its_prediction_and_says_why(tmp_path):
    measure = lambda cases: [[2.0], registered.Unmeasured("no time was left"), [3.0]]  # noqa: E731
    record = registered.register("a wire", CASES, MODELS).against(measure)
    record.save(tmp_path / "wire.json")
    assert registered.Record.load(tmp_path / "wire.json") == record
    assert [cell["seconds"] for cell in record.cells] == [[2.0], [3.0]]
    left = CASES[1] | {"predicted": {"a byte a nanosecond": 1e-6}, "why": "no time was left"}
    assert record.header["unmeasured"] == [left]


def test_no_measurement_at_all_is_no_record():
    with pytest.raises(ValueError, match="a wire: no case could be measured: the wire is cut"):
        registered.register("a wire", CASES, MODELS).against(
            lambda cases: [registered.Unmeasured("the wire is cut")] * 3
        )
    with pytest.raises(ValueError, match="a wire: 3 cases were predicted, but 2 measured"):
        registered.register("a wire", CASES, MODELS).against(lambda cases: [[1.0], registered.Unmeasured(""), [1.0]])
