"""A calculator: the reader moves sliders on the page and sees the results of a library function, without a kernel.

The formula exists only once. For each option of a `Choice`, the library's own function is called with a symbol for each
slider (see `formula`), which records a program. The page runs that program for the values that the reader picks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from html import escape
from itertools import cycle, product

import numpy as np

from ..formula import Program, Symbol, named, read
from ..training.timeline import Timeline
from .colours import ALGORITHMS, RANK_COLOURS, Line
from .gantt import Gantt
from .lanes import SAID, TOLD, Lanes, timeline_of
from .player import carried, data_address

Unit = tuple[tuple[str, float], ...]
"""Names with their sizes, from big to small. A value is shown in the first unit that it reaches."""

PLAIN: Unit = (("", 1),)
GB: Unit = (("GB", 1e9),)
GIB: Unit = (("GiB", 2**30),)
BYTES: Unit = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1))
SECONDS: Unit = (("s", 1), ("ms", 1e-3), ("µs", 1e-6))
BILLION: Unit = (("billion", 1e9),)
PERCENT: Unit = (("%", 0.01),)

MAX_COMBINATIONS = 4096  # of options: the formula is called for each


@dataclass(frozen=True)
class Slider:
    """An input that the reader moves along `stops`; an arrow key moves it by one stop.

    `name`: the formula's argument. `value`: the stop where it starts. `log`: whether a chart over it is logarithmic.
    `tabulated`: call the formula with each stop instead of a symbol, for Python that a program can't record. Raises
    `ValueError` for stops that don't grow, a start that is none of them, or a logarithmic scale with a stop <= 0.
    """

    name: str
    label: str
    stops: Sequence[float]
    value: float
    unit: Unit = PLAIN
    log: bool = False
    tabulated: bool = False

    def __post_init__(self):
        if list(self.stops) != sorted(set(self.stops)) or len(self.stops) < 2:
            raise ValueError(f"slider {self.name!r}: give at least two stops, in growing order")
        if self.value not in self.stops:
            raise ValueError(f"slider {self.name!r}: its start {self.value!r} is none of its stops")
        if self.log and self.stops[0] <= 0:
            raise ValueError(f"slider {self.name!r}: on a logarithmic scale all stops must be positive")

    @property
    def at(self) -> int:
        """The number of the stop that it starts at."""
        return list(self.stops).index(self.value)

    @property
    def options(self) -> list:
        """The values that the formula is called with, if the slider is tabulated."""
        return list(self.stops)

    @property
    def text(self) -> str:
        """The value that it starts at, with the unit."""
        return say(self.value, self.unit)

    def data(self) -> dict:
        return {
            "label": self.label,
            "stops": list(self.stops),
            "unit": self.unit,
            "log": self.log,
            "at": self.at,
            "tabulated": self.tabulated,
        }


@dataclass(frozen=True)
class Choice:
    """An input with a few named `choices`, {label: value}. The formula is called with each value, which has any type.

    `name`: the formula's argument. `value`: the label of the choice that it starts with. Raises `ValueError` if it
    is none of them.
    """

    name: str
    label: str
    choices: Mapping[str, object]
    value: str
    tabulated = True

    def __post_init__(self):
        if self.value not in self.choices:
            raise ValueError(f"choice {self.name!r}: its start {self.value!r} is none of its choices")

    @property
    def at(self) -> int:
        """The number of the choice that it starts with."""
        return list(self.choices).index(self.value)

    @property
    def options(self) -> list:
        """The values that the formula is called with."""
        return list(self.choices.values())

    @property
    def text(self) -> str:
        """The label of the choice that it starts with."""
        return self.value

    def data(self) -> dict:
        return {"label": self.label, "choices": list(self.choices), "at": self.at, "tabulated": True}


@dataclass(frozen=True)
class Output:
    """A result to show: the field or key `name` of what the formula returns, shown in `unit`.

    `listed`: whether it has a row of its own. If not, only bars and charts show it. Equal labels get equal colours.
    """

    name: str
    label: str
    unit: Unit = PLAIN
    listed: bool = True


@dataclass(frozen=True)
class Bar:
    """Outputs of one unit, stacked end to end. All bars of a calculator share one scale and one limit."""

    label: str
    parts: Sequence[str]


@dataclass(frozen=True)
class Chart:
    """Curves of the outputs `of`, which share one unit, over the slider `over`, with the current point marked.

    `log`: whether the axis of the outputs is logarithmic. `mark`: an output that is a value of the slider, such as the
    crossing of two curves; a labelled line marks it. `scales`: whether the reader can switch all axes to linear.
    """

    over: str
    of: Sequence[str]
    log: bool = False
    mark: str | None = None
    scales: bool = False


class Calculator:
    """Inputs that the reader moves, and the outputs of `formula`, which takes the inputs by name.

    `limit`: the value that all bars and the chart are compared with, such as the memory of a GPU; it is drawn, not
    listed. `timeline`: the result to draw as a timeline whose bars move with the inputs. Without a browser, the
    calculator shows the starting state as text, and the timeline as a picture. Raises `ValueError` if the pieces don't
    fit together, and `FormulaError` if the formula does something with a slider that a program can't record.
    """

    def __init__(
        self,
        formula: Callable,
        inputs: Sequence[Slider | Choice],
        outputs: Sequence[Output],
        bars: Sequence[Bar] = (),
        limit: Output | None = None,
        chart: Chart | None = None,
        caption: str = "Calculator",
        timeline: Lanes | None = None,
    ):
        self.inputs, self.outputs, self.bars, self.limit = list(inputs), list(outputs), list(bars), limit
        self.chart, self.caption, self.timeline = chart, caption, timeline
        self._computed = [*self.outputs, *([replace(limit, listed=False)] if limit else [])]
        self._listed = [each for each in self.outputs if each.listed]
        _check_names(self)
        free = [each.name for each in inputs if not each.tabulated]
        self.program = Program(len(free))
        symbols = dict(zip(free, self.program.symbols(), strict=True))
        self._tabulated = [each for each in inputs if each.tabulated]
        if (count := math.prod(len(each.options) for each in self._tabulated)) > MAX_COMBINATIONS:
            raise ValueError(f"{count} combinations of choices: at most {MAX_COMBINATIONS} fit; give fewer choices")
        self.results: list[list[int]] = []  # for each combination of choices, the place of each output in the program
        self.moments: list[dict] = []  # for each combination, {key of `Lanes.pick`: its place in the program}
        for values in product(*(each.options for each in self._tabulated)):
            chosen = dict(zip((each.name for each in self._tabulated), values, strict=True))
            self._place(read(self.program, formula, {**symbols, **chosen}, self._pick))
        for name, value in self.at().items():
            if not math.isfinite(value):
                raise ValueError(f"output {name!r} is {value} in the starting state")
        if self.timeline:
            self.timeline_at()  # raises in the cell, not on the page

    def _pick(self, result) -> dict:
        """Return the values to read from the formula's result: by `Output`, and by the keys of `Lanes.pick`."""
        values = named(result, [each.name for each in self._computed]).values()
        outputs = dict(zip(self._computed, values, strict=True))
        return {**outputs, **(self.timeline.pick(result) if self.timeline else {})}

    def _place(self, found: dict | Symbol) -> None:
        """Record the program's places of the picked values. A single symbol stands for all; they are undefined."""
        if isinstance(found, Symbol):
            found = dict.fromkeys(self._computed, found)
        self.results.append([found[output].place for output in self._computed])
        self.moments.append({key: each.place for key, each in found.items() if not isinstance(key, Output)})

    def at(self, **changes) -> dict[str, float]:
        """Return each output and the limit by name, as the page computes them for the start with `changes`.

        Give a choice by its label, a slider by a number: any number, or one of the stops if it is tabulated.
        """
        row, places = self._run(changes)
        return {each.name: places[place] for each, place in zip(self._computed, self.results[row], strict=True)}

    def timeline_at(self, **changes) -> Timeline:
        """Return the timeline for the start with `changes`, as for `at`. Raises `ValueError` if there is none."""
        return timeline_of(self._told(changes))

    def said(self, **changes) -> str:
        """Return the sentence beside the timeline: "step 12 ms: 3 ms exposed of 8 ms of communication"."""
        values = self._told(changes)
        return SAID.format(**{name: say(values[name], SECONDS) for name in TOLD})

    def _told(self, changes: Mapping) -> dict:
        """Return the value of everything that `Lanes.pick` picks, by its keys."""
        row, places = self._run(changes)
        values = {key: places[place] for key, place in self.moments[row].items()}
        if not values or not all(map(math.isfinite, values.values())):
            raise ValueError("this calculator draws no timeline, or its formula is undefined for these inputs")
        return values

    def _run(self, changes: Mapping) -> tuple[int, list[float]]:
        """Return the number of the combination of choices, and the program's value at each place."""
        if unknown := changes.keys() - {each.name for each in self.inputs}:
            raise ValueError(f"no such input: {', '.join(sorted(unknown))}")
        values = {each.name: changes.get(each.name, each.value) for each in self.inputs}
        row = 0
        for each in self._tabulated:
            known = list(each.choices if isinstance(each, Choice) else each.stops)
            if values[each.name] not in known:
                raise ValueError(f"input {each.name!r} has no {values[each.name]!r}; use one of {known}")
            row = row * len(known) + known.index(values[each.name])
        return row, self.program.run([values[each.name] for each in self.inputs if not each.tabulated])

    def texts(self, **changes) -> dict[str, str]:
        """Return the listed outputs as `at` does, each as the text that the page shows."""
        values = self.at(**changes)
        return {each.name: say(values[each.name], each.unit) for each in self._listed}

    def __repr__(self) -> str:
        rows = [(each.label, each.text) for each in self.inputs]
        rows += [(each.label, text) for each, text in zip(self._listed, self.texts().values(), strict=True)]
        lines = [f"{label}: {text}" for label, text in rows]
        return "\n".join([self.caption, *lines, *([self.said()] if self.timeline else [])])

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """Return the calculator with data, styles, scripts and still: self-contained, the same bytes every time."""
        inputs = "".join(_row(each.label, each.text) for each in self.inputs)
        colours = {name: line.colour for name, line in self._lines().items()}
        outputs = "".join(
            _row(each.label, text, colours.get(each.name))
            for each, text in zip(self._listed, self.texts().values(), strict=True)
        )
        data = json.dumps(self.data(), separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
        drawn = ["player", "timeline"] if self.timeline else []  # `gantt`'s script draws the timeline
        sheets = ["calculator", *(["lanes"] if self.timeline else [])]
        styles, scripts = carried(*drawn, "calculator", styles=sheets)
        return (
            f'<collective-calculator role="group" aria-label="{escape(self.caption)}">'
            f"{styles}"
            f"<div class=still><p><strong>{escape(self.caption)}</strong></p>"
            f"<table class=given>{inputs}</table>{self._still()}<table class=found>{outputs}</table></div>"
            f'<script type="application/json">{data}</script></collective-calculator>'
            f"{scripts}"
        )

    def _still(self) -> str:
        """Return the timeline in the starting state, as a picture for a reader without JavaScript."""
        if not self.timeline:
            return ""
        picture = Gantt({self.timeline.title: self.timeline_at()}, self.said()).still_svg()
        return f'<img alt="{escape(self.said())}" src="{data_address(picture)}">'

    def data(self) -> dict:
        """Return what the page needs, as plain data: inputs, outputs by number, and the program with their places.

        `results` has a row for each combination of choices and tabulated stops; the last input varies fastest.
        `timeline` is what `Lanes.data` returns.
        """
        numbers = {each.name: index for index, each in enumerate(self._computed)}
        return {
            "inputs": [each.data() for each in self.inputs],
            "outputs": [{"label": each.label, "unit": each.unit, "listed": each.listed} for each in self._computed],
            "lines": self.program.lines,
            "results": self.results,
            "colours": {numbers[name]: line.colour for name, line in self._lines().items()},
            "dashes": {numbers[name]: line.dash for name, line in self._lines().items() if line.dash},
            "bars": [{"label": each.label, "parts": [numbers[name] for name in each.parts]} for each in self.bars],
            "limit": self.limit and numbers[self.limit.name],
            "chart": self.chart and self._chart_data(self.chart, numbers),
            **({"timeline": self.timeline.data(self.moments, SECONDS)} if self.timeline else {}),
        }

    def _chart_data(self, chart: Chart, numbers: Mapping[str, int]) -> dict:
        """Return the chart as plain data. `numbers`: the number of each output, by name."""
        return {
            "over": [each.name for each in self.inputs].index(chart.over),
            "of": [numbers[name] for name in chart.of],
            "log": chart.log,
            **({"mark": numbers[chart.mark]} if chart.mark else {}),
            **({"scales": True} if chart.scales else {}),
        }

    def _lines(self) -> dict[str, Line]:
        """Return the look of each output in a bar or the chart, by name. Equal labels look alike.

        An algorithm has its own look, as everywhere in the book; others take colours in turn.
        """
        shown = [name for bar in self.bars for name in bar.parts] + list(self.chart.of if self.chart else [])
        labels = {each.name: each.label for each in self._computed}
        others = dict.fromkeys(label for name in shown if (label := labels[name]) not in ALGORITHMS)
        looks = ALGORITHMS | {label: Line(colour, "") for label, colour in zip(others, cycle(RANK_COLOURS))}
        return {name: looks[labels[name]] for name in shown}


def _check_names(calculator: Calculator) -> None:
    inputs, outputs = ([each.name for each in group] for group in (calculator.inputs, calculator._computed))
    for names in (inputs, outputs):
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two inputs or two outputs are called {', '.join(sorted(twice))}; rename one")
    drawn = [name for bar in calculator.bars for name in bar.parts]
    drawn += [*calculator.chart.of, *filter(None, [calculator.chart.mark])] if calculator.chart else []
    if missing := [name for name in drawn if name not in outputs]:
        raise ValueError(f"a bar or the chart shows {missing[0]!r}, which is not an output")
    sliders = [each.name for each in calculator.inputs if isinstance(each, Slider)]
    if calculator.chart and calculator.chart.over not in sliders:
        raise ValueError(f"a chart needs a slider for its axis; {calculator.chart.over!r} is not one")


def _row(label: str, text: str, colour: str | None = None) -> str:
    swatch = "" if colour is None else f'<i style="--part:{colour}"></i>'
    return f"<tr><th scope=row>{swatch}{escape(label)}<td>{escape(text)}"


def say(value: float, unit: Unit = PLAIN) -> str:
    """Return `value` with its unit, in 3 digits or as a whole number from 1000 on: "7.5 GB", "1,120 GB"."""
    if math.isnan(value):
        return "—"
    name, size = next((each for each in unit if abs(value) >= each[1]), unit[-1])
    return f"{_number(value / size)} {name}".strip()


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞"
    exact = abs(Decimal(value))
    if exact == 0:
        return "0"
    digits = min(0, exact.adjusted() - 2) if exact.adjusted() < 15 else exact.adjusted() - 2
    rounded = exact.quantize(Decimal(1).scaleb(digits), ROUND_HALF_UP)  # JavaScript rounds half up, not to even
    if not -4 <= exact.adjusted() < 15:
        text = f"{rounded:.2e}"
    else:
        text = f"{rounded:,f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"-{text}" if value < 0 else text


def spaced(low: float, high: float, steps: int, log: bool = False, also: Iterable[float] = ()) -> list[float]:
    """Return stops from `low` to `high` in `steps` steps, each rounded to two digits, and the stops in `also`."""
    spread = np.geomspace(low, high, steps + 1) if log else np.linspace(low, high, steps + 1)
    stops = {float(f"{stop:.1e}") for stop in spread.tolist()} | set(also)
    return sorted(int(stop) if stop == int(stop) else stop for stop in stops)
