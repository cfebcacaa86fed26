"""The bars that a reader moves are the library's timeline, in numbers on the page and in pixels."""

import re
from itertools import product

import pytest
from pages import STRICT_HEAD, fits, hold_time, letter_heights, texts_outside

from collectives import draw
from collectives.algorithms import ring
from collectives.figures import overlap
from collectives.figures.calculator import SECONDS, Calculator, Choice, Output, Slider, say
from collectives.figures.gantt import KINDS
from collectives.figures.lanes import Lanes
from collectives.figures.overlap import DEPTHS, WAYS, fsdp_step, mesh_step, trade_step
from collectives.formula import FormulaError
from collectives.training.timeline import Span, Task, Timeline, run

FIGURES = {"fsdp": (overlap.fsdp, fsdp_step), "mesh": (overlap.mesh, mesh_step)}
FIGURES["trade"] = overlap.trade, trade_step
MOVED = {  # some states of each figure's inputs: what differs from the start
    "fsdp": [
        {},
        {"prefetch": "none"},
        {"prefetch": "2 layers", "rate": 5e9},
        {"forward": 5e-4, "num_bytes": 4e9, "world_size": 1024},
        {"forward": 5e-2, "prefetch": "none", "rate": 1e12},
    ],
    "mesh": [
        {},
        {"inside": 5e9},
        {"tp_size": 1, "prefetch": "none"},
        {"across": 5e9, "prefetch": "2 layers", "tokens": 512},
        {"hidden": 16384, "tokens": 32768, "tp_size": 2},
    ],
    "trade": [
        {},
        {"rate": 5e9},
        {"way": "FSDP"},
        {"way": "FSDP", "forward": 5e-4, "world_size": 64, "prefetch": "none"},
    ],
}
STATES = [(name, changes) for name in FIGURES for changes in MOVED[name]]


def direct(name: str, changes: dict) -> Timeline:
    """The library's timeline, its function called with numbers."""
    values = {each.name: changes.get(each.name, each.value) for each in FIGURES[name][0]().inputs}
    words = {"prefetch": DEPTHS, "way": WAYS}  # what a choice's label stands for
    return FIGURES[name][1](**{each: words.get(each, {}).get(at, at) for each, at in values.items()})[
        "timeline"
    ].lasting()


def ordered(timeline: Timeline) -> list[Span]:
    lanes = timeline.lanes
    return sorted(timeline.spans, key=lambda span: (lanes.index((span.group, span.lane)), span.start))


@pytest.mark.parametrize("name, changes", STATES)
def test_the_program_s_timeline_is_the_library_s(name, changes):
    figure, expected = FIGURES[name][0](), direct(name, changes)
    found = ordered(figure.timeline_at(**changes).lasting())
    assert [span[:2] + span[4:] for span in found] == [span[:2] + span[4:] for span in ordered(expected)]
    times = [at for span in ordered(expected) for at in (span.start, span.end)]
    assert [at for span in found for at in (span.start, span.end)] == pytest.approx(times)
    said = [expected.seconds, expected.exposed, expected.communicating]
    said = "step {}: {} exposed of {} of communication".format(*(say(value, SECONDS) for value in said))
    assert figure.said(**changes) == said
    if not changes:
        assert repr(figure).splitlines()[-1] == said


def worked(timeline, **changes) -> Calculator:
    """A calculator of one slider and of a choice, whose formula is `timeline(x, way)`."""
    inputs = [Slider("x", "x", [1, 2, 4], 2), Choice("way", "way", {"short": 1, "long": 2}, "short")]
    return Calculator(timeline, inputs, [], timeline=Lanes(**changes))


def test_the_tasks_may_differ_from_choice_to_choice_and_be_plain_numbers():
    """More layers by a choice; a lane of its own for one of them; a span that takes no time is not there."""

    def step(x, way):
        tasks = [Task(f"forward {k}", "compute", x, kind="forward") for k in range(way)]
        return run(
            [*tasks, Task("reduce", f"link {way}", 3 * way, ("forward 0",), "all_reduce"), Task("end", "compute", 0)]
        )

    calculator = worked(step)
    for x, (way, number) in product((1, 4), {"short": 1, "long": 2}.items()):
        assert ordered(calculator.timeline_at(x=x, way=way)) == ordered(step(x, number).lasting())
    assert len(calculator.data()["timeline"]["shapes"]) == 2


def test_a_formula_may_branch_as_long_as_the_tasks_are_the_same():
    def step(x, way):
        return run([Task("forward 0", "compute", x if x > 1 else 5), Task("end", "compute", way * x)])

    assert [worked(step).timeline_at(x=x).seconds for x in (1, 2, 4)] == [6, 4, 8]
    with pytest.raises(FormulaError, match="such as the same tasks"):
        worked(lambda x, way: run([Task(f"task {k}", "compute", x) for k in range(way if x > 1 else 3)]))


def test_what_lanes_cannot_show_is_named():
    one = Task("one", "compute", 1)
    with pytest.raises(FormulaError, match="a Timeline of one rank; the result is one of 2"):
        worked(lambda x, way: run([one, one._replace(name="two", group="rank 1")]))
    with pytest.raises(FormulaError, match="step is float"):
        worked(lambda x, way: {"step": 1.0}, name="step")
    with pytest.raises(FormulaError, match="returns no 'step'"):
        worked(lambda x, way: {}, name="step")
    with pytest.raises(ValueError, match="draws no timeline"):
        Calculator(lambda x: {"y": x}, [Slider("x", "x", [1, 2], 1)], [Output("y", "y")]).timeline_at()


# --- in the browser ---------------------------------------------------------------------------------------------


@pytest.fixture
def page_head() -> str:
    return STRICT_HEAD


def move(page, name: str, changes: dict) -> None:
    """Set the inputs by the page's own controls: all others to where they start."""
    for each in FIGURES[name][0]().inputs:
        value = changes.get(each.name, each.value)
        if isinstance(each, Choice):
            page.get_by_label(value, exact=True).check()
        else:
            page.get_by_label(each.label).fill(str(list(each.stops).index(value)))


def seconds_on(page):
    """What second a pixel of the picture stands for, read off its axis: a function of x."""
    marks = page.locator(".live .lanes .tick").evaluate_all(
        "ticks => ticks.map((tick) => "
        "[Number(tick.getAttribute('d').match(/M([-.\\d]+)/)[1]), Number(tick.nextSibling.textContent)])"
    )
    unit = page.locator(".live .lanes svg text.end").first.text_content()
    (x0, at0), (x1, at1) = marks[0], marks[-1]
    size = dict(SECONDS)[unit]
    return (lambda x: (at0 + (x - x0) / (x1 - x0) * (at1 - at0)) * size), (at1 - at0) * size / (x1 - x0)


@pytest.mark.parametrize("name", FIGURES)
def test_each_bar_lies_where_the_library_s_span_does(open_page, name):
    """Wherever the inputs stand: bars within a pixel, in the colours of their kinds, and exposed is marked so."""
    page = open_page(FIGURES[name][0]())
    for changes in MOVED[name]:
        move(page, name, changes)
        expected = direct(name, changes)
        at, pixel = seconds_on(page)
        bars = page.locator(".live .lanes > svg .span rect").evaluate_all(
            "bars => bars.map((bar) => ['x', 'width', 'y', 'fill'].map((name) => bar.getAttribute(name)))"
        )
        spans = ordered(expected)
        assert [fill for *_, fill in bars] == [KINDS[span.kind][0] for span in spans]
        for (x, width, *_), span in zip(bars, spans, strict=True):
            assert at(float(x)) == pytest.approx(span.start, abs=pixel)
            assert float(width) * pixel == pytest.approx(span.seconds, abs=pixel)
        rows = [float(y) for *_, y, _ in bars]
        lanes = [expected.lanes.index((span.group, span.lane)) for span in spans]
        assert [sorted(set(rows)).index(row) for row in rows] == lanes
        marks = page.locator(".live .lanes > svg .exposed rect").evaluate_all(
            "marks => marks.map((mark) => Number(mark.getAttribute('width')))"
        )
        assert sum(marks) * pixel == pytest.approx(expected.exposed, abs=pixel)


def test_a_longer_step_is_seen_to_be_longer(open_page):
    """On the axis of the start a longer step reaches further; where it does not fit, the axis doubles and says so, and
    the mark of the start moves."""
    page = open_page(overlap.fsdp())

    def state():
        at, pixel = seconds_on(page)
        ends = page.locator(".live .lanes > svg .span rect").evaluate_all(
            "bars => Math.max(...bars.map((bar) => Number(bar.getAttribute('x')) + Number(bar.getAttribute('width'))))"
        )
        first = float(page.locator(".live .lanes .first").get_attribute("d").split()[0][1:])
        return pixel, ends, first, at(first)

    start = overlap.fsdp().timeline_at().seconds
    pixel, end, first, told = state()
    assert told == pytest.approx(start, abs=pixel) and abs(end - first) < 2
    page.get_by_label("none").check()
    longer = state()
    assert longer[0] == pixel and longer[1] > end + 5 and longer[2] == first
    page.get_by_label("network card of a GPU").fill("0")
    page.get_by_label("parameters of a layer").fill("51")
    longest = state()
    assert round(longest[0] / pixel, 6) in (2, 4, 8) and longest[2] < first
    assert longest[3] == pytest.approx(start, abs=longest[0])
    assert page.get_by_text(f"at first: {say(start, SECONDS)}", exact=True).count() == 1
    page.get_by_label("network card of a GPU").fill("40")
    page.get_by_label("parameters of a layer").fill("0")
    page.get_by_label("forward pass").fill("0")  # now the start lies beyond the axis, and the mark points there
    assert page.get_by_text(f"at first: {say(start, SECONDS)} →").count() == 1
    assert page.locator(".live .lanes .first").count() == 0


def test_by_keyboard_and_announced_once(open_page):
    """Arrows move a slider, the sentence is the picture's name at once, and it is announced when the reader pauses."""
    figure = overlap.fsdp()
    page = open_page(figure)
    hold_time(page)
    page.get_by_role("slider", name="network card of a GPU").focus()
    stops = list(figure.inputs[2].stops)
    for steps in (1, 2, 3):
        page.keyboard.press("ArrowLeft")
        said = figure.said(rate=stops[figure.inputs[2].at - steps])
        assert page.get_by_role("img", name=said, exact=True).count() == 1
        assert page.get_by_role("status").text_content() == ""
    page.clock.run_for(2000)
    assert page.get_by_role("status").text_content().startswith(f"{said}, all-gather of a layer ")
    page.get_by_label("1 layer", exact=True).focus()
    page.keyboard.press("ArrowRight")
    said = figure.said(rate=stops[figure.inputs[2].at - 3], prefetch="2 layers")
    assert page.get_by_role("img", name=said, exact=True).count() == 1
    assert said in re.sub(r"\s+", " ", " ".join(page.locator(".live .lanes svg text").all_text_contents()))


@pytest.mark.parametrize("width", [320, 360, 1200])
def test_it_fits_the_page_and_is_readable_at_every_width(open_page, width):
    page = open_page(*(make() for make, _ in FIGURES.values()), viewport={"width": width, "height": 800})
    page.wait_for_function(
        "[...document.querySelectorAll('.lanes')].every((lanes) => "
        "Math.abs(lanes.querySelector('svg').viewBox.baseVal.width - lanes.clientWidth) < 1)"
    )
    pictures = ".live .lanes > svg"
    assert fits(page)
    assert min(letter_heights(page, pictures)) > 10
    assert texts_outside(page, pictures) == []


def test_it_follows_light_and_dark_and_beside_figures_of_other_kinds(open_page):
    for mode, ink in (("light", "rgb(0, 0, 0)"), ("dark", "rgb(255, 255, 255)")):
        page = open_page(draw(ring.all_reduce(4)), overlap.fsdp(), draw(direct("mesh", {})), color_scheme=mode)
        assert page.evaluate("getComputedStyle(document.querySelector('.lanes text')).fill") == ink
        assert page.locator(".live .lanes .legend li").all_text_contents() == [
            *("forward", "backward", "all-gather", "reduce-scatter"),
            "communication while nothing computes: exposed",
        ]
        assert page.locator("collective-player .stage").count() == 2


def test_without_javascript_and_on_paper_there_is_the_starting_state(open_page):
    """As a picture with its sentence, and the tables; on paper wherever the reader is."""
    figure = overlap.mesh()
    page = open_page(figure, java_script_enabled=False)
    assert page.get_by_role("img", name=figure.said()).bounding_box()["height"] > 80  # it has been decoded
    assert page.locator(".found td").all_inner_texts() == list(figure.texts().values())
    page = open_page(figure)
    page.get_by_label("none").check()
    page.emulate_media(media="print")
    assert page.locator("svg:visible").count() == 1
    assert page.locator(".still svg").get_attribute("aria-label") == figure.said()
    assert page.locator("input:visible").count() == 0


def test_a_picture_survives_being_moved_and_copied(open_page):
    page = open_page(overlap.fsdp())
    page.get_by_label("none").check()
    said = overlap.fsdp().said(prefetch="none")
    page.evaluate(
        "document.body.prepend(document.createElement('main')); "
        "document.querySelector('main').append(document.querySelector('collective-calculator'));"
        "document.body.append(document.querySelector('collective-calculator').cloneNode(true))"
    )
    first, copy = page.locator("collective-calculator").all()
    assert first.get_by_role("img", name=said, exact=True).count() == 1
    assert copy.locator(".live").count() == copy.locator(".still svg").count() == 1
    assert copy.get_by_role("img", name=overlap.fsdp().said(), exact=True).count() == 1


def test_it_is_put_into_a_page_that_has_calculators_already(open_page):
    """As a notebook puts an output: the element comes first, known by then, and the script that it needs after it."""
    plain = Calculator(lambda x: {"y": x}, [Slider("x", "x", [1, 2], 1)], [Output("y", "y")])
    page = open_page(plain)
    page.evaluate(
        "(html) => { const output = document.createElement('div'), script = document.createElement('script');"
        "document.body.append(output); output.innerHTML = html;"
        "const old = [...output.querySelectorAll('script:not([type])')];"
        "script.textContent = old.map((each) => each.textContent).join(''); old[0].replaceWith(script); }",
        overlap.mesh().html(),
    )
    assert page.get_by_role("img", name=overlap.mesh().said(), exact=True).count() == 1


def test_where_the_formula_is_undefined_nothing_is_drawn(open_page):
    def step(x, way):
        if x > 2:
            raise ValueError("x is at most 2")
        return run([Task("forward 0", "compute", x * way)])

    calculator = worked(step)
    with pytest.raises(ValueError, match="undefined for these inputs"):
        calculator.timeline_at(x=4)
    page = open_page(calculator)
    for stop, bars in ((2, 0), (1, 1)):
        page.get_by_role("slider").fill(str(stop))
        assert page.locator(".live .lanes > svg .span").count() == bars
    assert calculator.said() == "step 2 s: 0 µs exposed of 0 µs of communication"
