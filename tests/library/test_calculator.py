"""The calculator on the page shows what the library computes, wherever the reader moves it."""

import gzip
import json
import os
import subprocess
import sys
from importlib.resources import files
from itertools import product

import pytest
from pages import STRICT_HEAD, hold_time
from test_formula import everything

from collectives.figures.calculator import (
    BILLION,
    BYTES,
    GB,
    GIB,
    PERCENT,
    PLAIN,
    SECONDS,
    Bar,
    Calculator,
    Chart,
    Choice,
    Output,
    Slider,
    say,
    spaced,
)
from collectives.formula import FormulaError
from collectives.training.memory import RECIPES, STAGES, at_rest

SIZES = spaced(1e8, 1e12, 80, log=True, also=[7.5e9])
RANKS = [2**power for power in range(11)]
GPUS = {"24 GB": 24e9, "40 GB": 40e9, "80 GB": 80e9, "141 GB": 141e9, "192 GB": 192e9}
BY_STAGE, BY_NAME = {STAGES[stage]: stage for stage in STAGES}, {recipe.name: recipe for recipe in RECIPES}


def memory_of(num_parameters, world_size, stage, recipe, gpu):
    held = at_rest(num_parameters, world_size, stage, recipe)
    return {**held._asdict(), "total": held.total, "gpu": gpu, "share": held.total / gpu}


def memory_calculator() -> Calculator:
    """The one of the chapter on ZeRO."""
    return Calculator(
        memory_of,
        inputs=[
            Slider("num_parameters", "parameters of the model, Ψ", SIZES, 7.5e9, BILLION, log=True),
            Slider("world_size", "ranks, P", RANKS, 64, log=True),
            Choice("stage", "stage", BY_STAGE, STAGES[1]),
            Choice("recipe", "recipe", BY_NAME, RECIPES[0].name),
            Choice("gpu", "memory of a GPU", GPUS, "80 GB"),
        ],
        outputs=[
            Output("parameters", "parameters", GB),
            Output("gradients", "gradients", GB),
            Output("optimizer", "optimizer state", GB),
            Output("total", "together", GB),
            Output("share", "of the GPU's memory", PERCENT),
        ],
        bars=[Bar("held by a rank at rest", ["parameters", "gradients", "optimizer"])],
        limit=Output("gpu", "memory of a GPU", GB),
        chart=Chart("world_size", ["total"], log=True),
        caption="What a rank holds at rest",
    )


UNITS = {"parameters": GB, "gradients": GB, "optimizer": GB, "total": GB, "share": PERCENT}


def expected(size, ranks, stage, recipe, gpu) -> list[str]:
    """What the page must show: the library's own numbers."""
    found = memory_of(size, ranks, BY_STAGE[stage], BY_NAME[recipe], GPUS[gpu])
    return [say(found[name], unit) for name, unit in UNITS.items()]


def small(formula=lambda x, way: {"y": x * way}, **changes) -> Calculator:
    """A calculator of one slider and one choice; `changes` replace its pieces."""
    pieces = {
        "inputs": [Slider("x", "x", range(10), 3), Choice("way", "way", {"there": 1, "back": -1}, "there")],
        "outputs": [Output("y", "y")],
    }
    return Calculator(formula, **{**pieces, **changes})


# --- in Python --------------------------------------------------------------------------------------------------


def test_the_program_computes_what_the_library_computes():
    """Every choice, at sizes and ranks between the stops too: exactly the same numbers."""
    calculator = memory_calculator()
    for size, ranks in product((10**8, 7_500_000_001, 10**12), (1, 3, 64, 1000)):
        for stage, recipe, gpu in product(BY_STAGE, BY_NAME, GPUS):
            inputs = {"stage": stage, "recipe": recipe, "gpu": gpu, "num_parameters": size, "world_size": ranks}
            found = calculator.at(**inputs)
            direct = memory_of(size, ranks, BY_STAGE[stage], BY_NAME[recipe], GPUS[gpu])
            assert found == {name: direct[name] for name in found}


def test_the_program_is_small_and_plain_data():
    calculator = memory_calculator()
    json.dumps(calculator.data(), allow_nan=False)
    assert len(calculator.program.lines) < 200
    assert len(calculator.html().encode()) < 32_000
    script = files("collectives.figures").joinpath("static", "calculator.js").read_bytes()
    assert len(gzip.compress(script)) < 8_000


def test_outside_a_browser_it_is_its_starting_state_as_text():
    calculator = memory_calculator()
    start = expected(7_500_000_000, 64, STAGES[1], RECIPES[0].name, "80 GB")
    assert repr(calculator).splitlines()[0] == "What a rank holds at rest"
    assert list(calculator.texts().values()) == start
    assert [line.split(": ")[1] for line in repr(calculator).splitlines()[-5:]] == start
    assert "ranks, P: 64" in repr(calculator)


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (0, GB, "0 GB"),
        (7.5e9, GB, "7.5 GB"),
        (112.5e9, GB, "113 GB"),
        (1.12e12, GB, "1,120 GB"),
        (80 * 2**30, GIB, "80 GiB"),
        (1.2345e12, BYTES, "1.23 TB"),
        (999, BYTES, "999 bytes"),
        (0.0253, SECONDS, "25.3 ms"),
        (2e-9, SECONDS, "0.002 µs"),
        (1.5, PERCENT, "150 %"),
        (-0.25, PLAIN, "-0.25"),
        (99.96, PLAIN, "100"),
        (0.00001234, PLAIN, "1.23e-5"),
        (2.5e18, PLAIN, "2.50e+18"),
        (float("nan"), GB, "—"),
    ],
)
def test_numbers_are_said_in_three_digits_with_their_unit(value, unit, text):
    assert say(value, unit) == text


def test_stops_are_round_and_hold_what_is_asked_for():
    assert spaced(0, 1, 4) == [0, 0.25, 0.5, 0.75, 1]
    assert spaced(1, 1000, 3, log=True, also=[7]) == [1, 7, 10, 100, 1000]
    assert all(float(f"{stop:.1e}") == stop for stop in SIZES)


def test_pieces_that_do_not_fit_together_are_named():
    """At once, in the cell, and not on the page."""
    faults = {
        "which is not an output": {"bars": [Bar("all", ["z"])]},
        "needs a slider for its axis; 'way' is not one": {"chart": Chart("way", ["y"])},
        "the chart shows 'w'": {"chart": Chart("x", ["y"], mark="w")},
        "called x": {"inputs": [Slider("x", "x", [1, 2], 1), Slider("x", "x", [1, 2], 1)]},
        "no 'z', which an Output needs": {"outputs": [Output("z", "z")]},
        "inf in the starting state": {"formula": lambda x, way: {"y": 1 / (x - 3)}},
        "combinations": {"inputs": [Slider(name, name, range(99), 3, tabulated=True) for name in ("x", "way")]},
    }
    for said, changes in faults.items():
        with pytest.raises(ValueError, match=said):
            small(**changes)
    for said, wrong in {
        "none of its stops": lambda: Slider("x", "x", [1, 2], 3),
        "in growing order": lambda: Slider("x", "x", [2, 1], 2),
        "must be positive": lambda: Slider("x", "x", [0, 1], 0, log=True),
        "none of its choices": lambda: Choice("way", "way", {"there": 1}, "back"),
        "no such input: z": lambda: small().at(z=1),
        "has no 'up'": lambda: small().at(way="up"),
    }.items():
        with pytest.raises(ValueError, match=said):
            wrong()


def test_a_formula_that_cannot_be_written_down_can_be_tabulated():
    """Its stops are tried one by one; untabulated, the error says so."""

    def formula(x, way):
        return {"y": way * sum(range(x))}

    with pytest.raises(FormulaError, match="tabulated=True"):
        small(formula)
    slider = Slider("x", "x", range(10), 3, tabulated=True)
    calculator = small(formula, inputs=[slider, small().inputs[1]])
    assert [calculator.at(x=x, way="back")["y"] for x in range(10)] == [-sum(range(x)) for x in range(10)]


def test_a_calculator_is_the_same_bytes_every_time_and_asks_no_host():
    here = memory_calculator().html()
    code = "from test_calculator import memory_calculator; print(memory_calculator().html(), end='')"
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": "tests:tests/library"},
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    assert there.stdout == here == memory_calculator().html()
    assert here.replace("http://www.w3.org/2000/svg", "").count("http") == 0  # the one address is SVG's own name
    assert " id=" not in here


# --- in the browser ---------------------------------------------------------------------------------------------


@pytest.fixture
def page_head() -> str:
    return STRICT_HEAD


def shown(page, index: int = 0) -> list[str]:
    return page.locator("collective-calculator").nth(index).locator(".live .found td").all_inner_texts()


def test_the_page_shows_the_library_s_numbers(open_page):
    """Over all choices and a few stops, by the page's own controls: the texts are those of the library's numbers."""
    page = open_page(memory_calculator())
    sizes, ranks = page.get_by_label("parameters of the model"), page.get_by_role("slider", name="ranks, P")
    assert shown(page) == expected(7_500_000_000, 64, STAGES[1], RECIPES[0].name, "80 GB")
    for stage in BY_STAGE:
        page.get_by_label(stage).check()
        for number, recipe in enumerate(BY_NAME):
            page.get_by_label("recipe").select_option(recipe)
            gpu = list(GPUS)[number]
            page.get_by_label("memory of a GPU").select_option(gpu)
            for size, rank in ((0, 3), (33, len(RANKS) - 1), (len(SIZES) - 1, 0)):
                sizes.fill(str(size))
                ranks.fill(str(rank))
                assert sizes.get_attribute("aria-valuetext") == say(SIZES[size], BILLION)
                assert ranks.get_attribute("aria-valuetext") == say(RANKS[rank])
                assert shown(page) == expected(SIZES[size], RANKS[rank], stage, recipe, gpu)


def test_the_page_computes_every_operation_as_python_does(open_page):
    """All of `formula`'s operations, at every stop of two sliders: the same doubles, and the same texts of them."""
    stops = [1, 2, 3, 7, 8, 1000, 2**40 + 1]
    calculator = Calculator(
        everything,
        [Slider("x", "x", stops, 1), Slider("y", "y", [1, 2, 5, 8, 40, 41], 1)],
        [Output(name, name) for name in everything(1, 1)],
    )
    page = open_page(calculator)
    element = page.locator("collective-calculator")
    for y in range(6):
        page.get_by_label("y", exact=True).fill(str(y))
        for x in range(len(stops)):
            page.get_by_label("x", exact=True).fill(str(x))
            found = element.evaluate("(calculator) => calculator.values.map((value) => value ?? NaN)")
            there = {"x": stops[x], "y": [1, 2, 5, 8, 40, 41][y]}
            assert found == pytest.approx(list(calculator.at(**there).values()), rel=1e-15, nan_ok=True)
            assert shown(page) == list(calculator.texts(**there).values())


def test_the_page_says_numbers_as_python_does(open_page):
    """Halves that round up, both ends of the exponents, signs and ladders of units."""
    values = [-1e16, -1.005, 0, 1.25e-7, 9.9996e-5, 1e-4, 0.0015625, 0.125, 0.3125, 1.125, 9.995, 10.05, 11.25, 12.5]
    values += [31.25, 99.95, 100.5, 112.5, 999.5, 1234.5, 999999.5, 123456789, 4e11, 1e15, 2**60]
    units = [PLAIN, GB, GIB, BYTES, SECONDS, PERCENT]
    calculator = Calculator(
        lambda x: {str(index): x for index in range(len(units))},
        [Slider("x", "x", values, 0)],
        [Output(str(index), str(index), unit) for index, unit in enumerate(units)],
    )
    page = open_page(calculator)
    for index, value in enumerate(values):
        page.get_by_role("slider").fill(str(index))
        assert shown(page) == [say(value, unit) for unit in units]


def test_two_calculators_are_moved_by_keyboard_each_for_itself(open_page):
    """Tab reaches every input, arrows, Home and End move the sliders and the choices; the other one stays put."""
    page = open_page(memory_calculator(), memory_calculator())
    before = shown(page, 1)
    page.keyboard.press("Tab")
    stops = SIZES.index(7.5e9)
    for key, stop in [("ArrowRight", stops + 1), ("ArrowLeft", stops), ("End", len(SIZES) - 1), ("Home", 0)]:
        page.keyboard.press(key)
        assert shown(page) == expected(SIZES[stop], 64, STAGES[1], RECIPES[0].name, "80 GB")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert shown(page) == expected(SIZES[0], 128, STAGES[1], RECIPES[0].name, "80 GB")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert shown(page) == expected(SIZES[0], 128, STAGES[2], RECIPES[0].name, "80 GB")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    assert shown(page) == expected(SIZES[0], 128, STAGES[2], RECIPES[1].name, "80 GB")
    assert shown(page, 1) == before


def test_the_results_are_announced_once_when_the_reader_pauses(open_page):
    """Moving along ten stops is silent but for the slider itself; then one sentence with all results."""
    page = open_page(memory_calculator())
    hold_time(page)
    status = page.get_by_role("status")
    page.get_by_role("slider", name="ranks, P").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
        page.clock.run_for(100)
        assert status.text_content() == ""
    page.clock.run_for(2000)
    said = expected(7_500_000_000, 1024, STAGES[1], RECIPES[0].name, "80 GB")
    labels = ["parameters", "gradients", "optimizer state", "together", "of the GPU's memory"]
    assert status.text_content() == ", ".join(f"{label} {text}" for label, text in zip(labels, said, strict=True))
    assert page.locator("[aria-live], output").count() == 0


def test_bars_and_chart_show_the_parts_against_the_limit(open_page):
    """Widths are shares of the longest bar or the limit; what is over it says so; the chart's mark follows."""
    page = open_page(memory_calculator())
    found = memory_of(7_500_000_000, 64, 1, RECIPES[0], 80e9)

    def widths():
        boxes = [part.bounding_box()["width"] for part in page.locator(".live .track i").all()]
        return [width / page.locator(".live .track").bounding_box()["width"] for width in boxes]

    parts = [found[name] for name in ("parameters", "gradients", "optimizer")]
    assert widths() == pytest.approx([part / 80e9 for part in parts], abs=0.005)
    assert page.locator(".live .bar b").inner_text() == say(found["total"], GB)
    page.get_by_label("replicated").check()
    assert page.locator(".live .bar b").inner_text() == "120 GB: over the limit"
    assert widths() == pytest.approx([1 / 8, 1 / 8, 6 / 8], abs=0.005)
    before = page.locator(".live circle").get_attribute("cx")
    page.get_by_role("slider", name="ranks, P").fill("0")
    assert float(page.locator(".live circle").get_attribute("cx")) < float(before)
    assert page.get_by_role("img", name="together over ranks, P").count() == 1


def test_a_chart_marks_where_curves_cross_and_has_linear_axes_for_who_wants_them(open_page):
    """On either kind of axes the mark is where the curves meet; where they meet outside, there is none."""

    def formula(size, alpha):
        return {"steady": 2.0, "growing": alpha + size, "crossing": 2 - alpha}

    calculator = Calculator(
        formula,
        [Slider("size", "size", [0.1, 1, 10], 1, log=True), Slider("alpha", "alpha", [0.5, 1, 3], 1)],
        [Output(name, name) for name in ("steady", "growing", "crossing")],
        chart=Chart("size", ["steady", "growing"], log=True, mark="crossing", scales=True),
    )
    page = open_page(calculator)

    def seen():
        """In parts of the axis: where the mark is."""
        mark, rule = page.locator(".live .plot .mark"), page.locator(".live .plot .rule").first
        left, right, at = (float(node.get_attribute(name)) for node, name in ((rule, "x1"), (rule, "x2"), (mark, "x1")))
        return (at - left) / (right - left)

    assert seen() == pytest.approx(0.5, abs=0.01)  # 1 of 0.1 to 10, logarithmic
    page.get_by_label("linear").check()
    assert seen() == pytest.approx(0.9 / 9.9, abs=0.01)
    assert page.locator(".live .plot").get_by_text("crossing: 1", exact=True).count() == 1
    page.get_by_role("slider", name="alpha").fill("2")
    assert page.locator(".live .plot .mark").count() == 0


def test_bars_side_by_side_have_one_scale_and_one_colour_a_label(open_page):
    """Parts without a row of their own have a legend, and their bars are announced."""

    def formula(num_parameters):
        held = {stage: at_rest(num_parameters, 8, stage)._asdict() for stage in STAGES}
        return {f"{kind}{stage}": size for stage in STAGES for kind, size in held[stage].items()} | {"gpu": 80e9}

    kinds = "parameters", "gradients", "optimizer"
    calculator = Calculator(
        formula,
        [Slider("num_parameters", "parameters", [10**9, 13 * 10**9], 10**9)],
        [Output(f"{kind}{stage}", kind, GB, listed=False) for stage in STAGES for kind in kinds],
        bars=[Bar(STAGES[stage], [f"{kind}{stage}" for kind in kinds]) for stage in STAGES],
        limit=Output("gpu", "memory of a GPU", GB),
    )
    page = open_page(calculator)
    hold_time(page)
    page.get_by_role("slider").fill("1")
    page.clock.run_for(2000)
    totals = [say(at_rest(13 * 10**9, 8, stage).total, GB) for stage in STAGES]
    totals[0] += ": over the limit"
    assert page.locator(".live .bar b").all_inner_texts() == totals
    said = ", ".join(f"{label} {total}" for label, total in zip(STAGES.values(), totals, strict=True))
    assert page.get_by_role("status").text_content() == said
    assert page.locator(".live .legend span").all_inner_texts() == list(kinds)
    assert len(set(calculator.data()["colours"].values())) == len(kinds)
    widths = [page.locator(".live .track i").nth(index).bounding_box()["width"] for index in (0, 3, 6, 9)]
    assert widths == pytest.approx([widths[0]] * 3 + [widths[0] / 8], rel=0.02)
    assert shown(page) == []


def test_it_fits_a_phone_and_follows_light_and_dark(open_page):
    for mode, ink in (("light", "rgb(0, 0, 0)"), ("dark", "rgb(255, 255, 255)")):
        page = open_page(memory_calculator(), viewport={"width": 360, "height": 800}, color_scheme=mode)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate("getComputedStyle(document.querySelector('.found td')).color") == ink
        for control in page.locator(".live :is(input[type=range], select, fieldset label)").all():
            assert control.bounding_box()["height"] >= 30  # for a thumb


def test_without_javascript_there_is_the_starting_state(open_page):
    """Inputs and outputs as two tables, no control that would do nothing."""
    page = open_page(memory_calculator(), java_script_enabled=False)
    start = expected(7_500_000_000, 64, STAGES[1], RECIPES[0].name, "80 GB")
    assert page.get_by_text("What a rank holds at rest").is_visible()
    assert page.locator(".given td").all_inner_texts() == ["7.5 billion", "64", STAGES[1], RECIPES[0].name, "80 GB"]
    assert page.locator(".found td").all_inner_texts() == start
    assert page.locator("input, select").count() == 0


def test_on_paper_there_is_the_starting_state_wherever_the_reader_is(open_page):
    """With its bar and its chart, and no controls."""
    page = open_page(memory_calculator())
    page.get_by_role("slider", name="ranks, P").fill("0")
    page.get_by_label("replicated").check()
    page.emulate_media(media="print")
    start = expected(7_500_000_000, 64, STAGES[1], RECIPES[0].name, "80 GB")
    assert page.locator(".found:visible td").all_inner_texts() == start
    assert page.locator(".bar b:visible").all_inner_texts() == [start[3]]
    assert page.locator("svg:visible").count() == 1
    assert page.locator("input:visible, select:visible").count() == 0


def test_a_calculator_survives_being_moved_and_copied(open_page):
    """Notebooks move outputs about and pages are saved while they are used: the state is kept, a copy starts afresh."""
    page = open_page(memory_calculator())
    page.get_by_role("slider", name="ranks, P").fill("0")
    moved = expected(7_500_000_000, 1, STAGES[1], RECIPES[0].name, "80 GB")
    page.evaluate(
        "document.body.prepend(document.createElement('main')); "
        "document.querySelector('main').append(document.querySelector('collective-calculator'))"
    )
    assert shown(page) == moved
    page.evaluate("document.body.append(document.querySelector('collective-calculator').cloneNode(true))")
    copy = page.locator("collective-calculator").nth(1)
    assert copy.locator(".live").count() == copy.locator(".still .picture").count() == 1
    copy.get_by_label("replicated").check()
    assert shown(page, 1)[3] == "120 GB"
    assert shown(page) == moved
