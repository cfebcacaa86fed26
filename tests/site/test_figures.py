"""Every figure and every calculator of every page, in a real browser: what it says is what the library says now.

A chapter's cell is run again in this process (`cells`), and the page's figure held against what it returns. Measured
timelines cannot be had again: of those the words are held against the bars.
"""

import gzip
import json
import random
import re
from bisect import bisect_right
from collections import defaultdict
from itertools import count

import audit  # of tools/
import pytest
from cells import CALCULATORS, PLAYERS, figures
from test_site import CHAPTERS

from collectives.figures import overlap
from collectives.figures.calculator import Choice, say
from collectives.figures.family import Family
from collectives.figures.slots import Drawing
from collectives.formula import named

DATA = ":scope > script[type='application/json']"
POINTS = 12  # of a calculator's grid

# The animated figures of the source documents (report, article, book), and the figures that show the same here: the
# chapter, and how the call begins. Each is a figure to step through or to move, made from a schedule, a timeline, a
# layout or a routing of the library; the tests below step through all of them.
ANIMATED = {
    "ring all-reduce with stale slots": [("04_all_reduce", "draw(ring.all_reduce")],
    "granularity: backward and bucket; ring chunk and slot": [
        ("08_data_parallel", "draw(two"),
        ("08_data_parallel", "draw(cut_chunks"),
    ],
    "all-gather": [("03_ring", "draw(ring.all_gather")],
    "reduce-scatter": [("03_ring", "draw(ring.reduce_scatter")],
    "the ZeRO-3 iteration timeline": [("09_zero", "draw(steps")],
    "the Megatron MLP blocks": [("13_tensor_parallel", "blocks.mlp")],
    "the f and g gates, forward and backward": [("13_tensor_parallel", "blocks.gates")],
    "attention heads": [("13_tensor_parallel", "blocks.heads")],
    "the compute timeline in three regimes": [("13_tensor_parallel", "draw(steps")],
    "one matmul, every shard axis": [("13_tensor_parallel", "blocks.by_axis")],
    "all-to-all dispatch and combine": [("15_experts", "Dispatch(")],
    "pipeline schedules with their bubble": [("16_pipeline", "draw(on_four"), ("16_pipeline", "Calculator(bubble")],
    "the 2x2 TP x FSDP mesh, phase by phase": [("17_mesh", "blocks.mesh(")],
    "exposed against hidden communication": [("10_fsdp", "overlap.trade("), ("17_mesh", "overlap.mesh(")],
    "flat broadcast, scatter, gather, reduce": [("02_tree", "draw(lambda algorithm")],
    "tree broadcast, tree reduce": [("02_tree", "draw(tree.broadcast"), ("02_tree", "draw(tree.reduce")],
    "ring and tree all-reduce": [("05_crossover", "draw(lambda algorithm, world_size")],
    "XOR all-to-all and its hypercube": [("06_all_to_all", "draw(pairwise.all_to_all_xor")],
    "the measured crossover, on log and linear axes": [("wires", "Calculator(clocked")],
    "the identity: reduce-scatter, then all-gather": [("index", "draw(schedule")],
    "the FSDP cycle": [("10_fsdp", "blocks.cycle(")],
}

# Every combination of answers, and in each every step from the first to the last by the arrow key: what is announced,
# and of a schedule the kinds of its slots.
STEP_THROUGH = """(player) => {
    const rows = [...player.querySelectorAll('.choices :is(select, fieldset)')];
    const sizes = rows.map((row) => (row.options ?? row.querySelectorAll('input')).length);
    const press = (key) => player.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
    const kind = (cell) => cell.parentNode.getAttribute('class');
    const look = () => [player.querySelector('[aria-live]').textContent,
        [...player.querySelectorAll('.stage > svg .cell')].map(kind).join('')];
    const found = [];
    for (let number = 0; number < sizes.reduce((product, size) => product * size, 1); number++) {
        let left = number;
        for (let i = rows.length - 1; i >= 0; left = Math.floor(left / sizes[i--])) {
            if (rows[i].options) {
                rows[i].selectedIndex = left % sizes[i];
                rows[i].dispatchEvent(new Event('change', { bubbles: true }));
            } else rows[i].querySelectorAll('input')[left % sizes[i]].click();
        }
        press('Home');
        const seen = [look()];
        for (let at = -1; player.dataset.step !== at; ) {
            at = player.dataset.step;
            press('ArrowRight');
            if (player.dataset.step !== at) seen.push(look());
        }
        found.push(seen);
    }
    return found;
}"""

# The texts that a calculator shows when its inputs stand at each of these places.
MOVE = """(calculator, points) => points.map((places) => {
    places.forEach((place, index) => {
        const input = calculator.querySelector('.live .inputs').children[index];
        const control = input.querySelector('[type=range], select');
        if (!control) return input.querySelectorAll('[type=radio]')[place].click();
        if (control.options) control.selectedIndex = place;
        else control.value = place;
        control.dispatchEvent(new Event(control.options ? 'change' : 'input'));
    });
    return [...calculator.querySelectorAll('.live .found td')].map((cell) => cell.textContent);
})"""


def pages_with(kinds):
    """The pages that show something of these kinds, each with what it shows."""
    found = {name: list(figures(name, kinds)) for name in CHAPTERS}
    return [pytest.param(name, shown, id=name) for name, shown in found.items() if shown]


@pytest.fixture
def visit(browser, site):
    """A function that opens a page of the book and returns all elements of a name."""
    contexts = []

    def opened(name, element):
        contexts.append(browser.new_context(reduced_motion="reduce"))
        page = contexts[-1].new_page()
        page.goto(f"{site}/{name}.html")
        return page, page.locator(element).all()

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name, shown", pages_with(PLAYERS))
def test_every_figure_of_a_page_steps_by_keyboard_and_says_what_the_library_says(visit, name, shown):
    """Its data are the library's, for each choice each step is announced in its words, and slots have its kinds."""
    page, players = visit(name, "collective-player")
    assert len(players) == len(shown)
    for player, cell in zip(players, shown, strict=True):
        data = json.loads(player.locator(DATA).text_content())
        said = player.locator(".still li").all_text_contents()
        if cell.is_measured:
            check_words_against_bars(data, said)
            stories, frames = [said], [None]
        else:
            figure = cell.make()
            assert data == json.loads(json.dumps(figure.packed()))
            assert said == figure.words
            stories = data.get("told", [said])
            members = figure.figures if isinstance(figure, Family) else [figure]
            frames = [each.frames if isinstance(each, Drawing) else None for each in members] * len(stories)
        check_keys(page, player, said)
        for story, found, held in zip(stories, player.evaluate(STEP_THROUGH), frames, strict=False):
            assert [text for text, _ in found] == story
            if held:
                kinds = ["".join(kind[0] for kind in frame.kinds.T.ravel()) for frame in held]
                assert [cells for _, cells in found] == kinds


@pytest.mark.parametrize("what", ANIMATED)
def test_every_animated_figure_of_the_sources_is_here(what):
    """As a figure made from the library's own data."""
    for chapter, call in ANIMATED[what]:
        shown = [each.call for each in figures(chapter, PLAYERS | CALCULATORS)]
        assert any(each.startswith(call) for each in shown), shown


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_page_is_light_and_has_each_script_once(built_book, name):
    html = (built_book / f"{name}.html").read_text()
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    ours = [script for script in scripts if "collective-" in script]
    assert len(set(ours)) == len(ours)
    assert len(gzip.compress("".join(ours).encode())) < audit.most_script_bytes(name)
    assert len(gzip.compress(html.encode())) < audit.MOST_PAGE_BYTES


def check_keys(page, player, said):
    """The reader's own keys, on the figure as it opens."""
    player.locator("button").first.focus()
    last = len(said) - 1
    for key, at in (("End", last), ("ArrowLeft", max(0, last - 1)), ("Home", 0), ("ArrowRight", min(1, last))):
        page.keyboard.press(key)
        assert player.get_attribute("data-step") == str(at)
        assert player.locator("[aria-live]").text_content() == said[at]


def check_words_against_bars(data, said):
    """At each moment the sentence has the axis's time and names what begins."""
    moments, begins = data["moments"], defaultdict(list)
    for chart in data["charts"]:
        for lane in (lane for group in chart["groups"] for lane in group["lanes"]):
            for start, _, _, name in lane["bars"]:
                begins[bisect_right(moments, start) - 1].append(name)
    assert len(said) == len(moments) + 1
    for number, (tick, text) in enumerate(zip(moments, said[1:], strict=True)):
        time, unit, step = re.match(r"At (\S+) (\S+) \(step (\d+) of", text).groups()
        assert (unit, int(step)) == (data["unit"], number + 1)
        assert float(time) == pytest.approx(tick / data["ticks"] * data["length"], rel=0.01)
        assert " more" in text or all(name in text for name in begins[number])


class Asked:
    """Stands in for a chapter's `Calculator`: what it was called with."""

    def __init__(self, formula, inputs, outputs, *_, caption="Calculator", **__):
        self.formula, self.inputs, self.caption = formula, inputs, caption
        self.outputs = [each for each in outputs if each.listed]

    def points(self):
        """Places of the inputs: where they start, and some from all over the grid, always the same."""
        sizes = [len(each.choices if isinstance(each, Choice) else each.stops) for each in self.inputs]
        chance = random.Random(self.caption)
        drawn = ([chance.randrange(size) for size in sizes] for _ in count())
        return [[each.at for each in self.inputs], *(next(drawn) for _ in range(POINTS))]

    def texts(self, places):
        """What the library's own function gives there, in numbers, as a page has to show it; a dash is undefined."""
        values = [
            list(each.choices.values())[place] if isinstance(each, Choice) else each.stops[place]
            for each, place in zip(self.inputs, places, strict=True)
        ]
        try:
            result = self.formula(**dict(zip((each.name for each in self.inputs), values, strict=True)))
        except (ValueError, ArithmeticError):
            result = dict.fromkeys(each.name for each in self.outputs)
        found = named(result, [each.name for each in self.outputs])
        nan = float("nan")
        return [say(nan if found[each.name] is None else found[each.name], each.unit) for each in self.outputs]


@pytest.mark.parametrize("name, shown", pages_with(CALCULATORS))
def test_every_calculator_of_a_page_answers_as_the_library_does(visit, monkeypatch, name, shown):
    """At the start and at a dozen points of its grid, each text is that of the library's function of numbers."""
    monkeypatch.setattr(overlap, "Calculator", Asked)
    _, calculators = visit(name, "collective-calculator")
    assert len(calculators) == len(shown)
    for element, cell in zip(calculators, shown, strict=True):
        asked = cell.make(Calculator=Asked)
        assert element.get_attribute("aria-label") == asked.caption
        points = asked.points()
        assert element.evaluate(MOVE, points) == [asked.texts(places) for places in points]
