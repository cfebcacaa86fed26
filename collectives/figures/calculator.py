"""A calculator: the reader moves sliders on the page, and a function of the library answers, without a kernel.

There is no second copy of the formula: the library's own function is called once with a symbol for each slider (see
`formula`), and for each option of a `Choice`. The page gets the program that this writes down and runs it for the
values that the reader picks.
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
from .gantt import Gantt
from .lanes import SAID, TOLD, Lanes, timeline_of
from .player import RANK_COLOURS, carried, data_address

Unit = tuple[tuple[str, float], ...]
"""Names with their sizes, from big to small: a value is shown in the first that it fills."""

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
    """An input that the reader moves along `stops`, from one to the next with an arrow key.

    `name`: the formula's argument. `value`: where it starts, one of the stops. `log`: whether a chart over it is
    logarithmic. `tabulated`: call the formula with each stop, where its Python cannot be written down.
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
            raise ValueError(f"slider {self.name!r}: the stops are at least two numbers that grow")
        if self.value not in self.stops:
            raise ValueError(f"slider {self.name!r}: it starts at {self.value!r}, which is none of its stops")
        if self.log and self.stops[0] <= 0:
            raise ValueError(f"slider {self.name!r}: on a logarithmic scale the stops are positive")

    @property
    def at(self) -> int:
        """The number of the stop where it starts."""
        return list(self.stops).index(self.value)

    @property
    def options(self) -> list:
        """What the formula is called with, if it is tabulated."""
        return list(self.stops)

    @property
    def text(self) -> str:
        """Its first value, with the unit."""
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
    """An input with a few named `choices`, {label: value}; the formula is called with each value, of whatever type.

    `name`: the formula's argument. `value`: the label of the one it starts with.
    """

    name: str
    label: str
    choices: Mapping[str, object]
    value: str
    tabulated = True

    def __post_init__(self):
        if self.value not in self.choices:
            raise ValueError(f"choice {self.name!r}: it starts with {self.value!r}, which is none of its choices")

    @property
    def at(self) -> int:
        """The number of the choice it starts with."""
        return list(self.choices).index(self.value)

    @property
    def options(self) -> list:
        """What the formula is called with."""
        return list(self.choices.values())

    @property
    def text(self) -> str:
        """Its first value, as its label."""
        return self.value

    def data(self) -> dict:
        return {"label": self.label, "choices": list(self.choices), "at": self.at, "tabulated": True}


@dataclass(frozen=True)
class Output:
    """A result to show: `name` is a field or a key of what the formula returns, `unit` says how to show it.

    `listed`: whether it has a row of its own; without, it shows in bars and charts alone. Equal labels, equal colours.
    """

    name: str
    label: str
    unit: Unit = PLAIN
    listed: bool = True


@dataclass(frozen=True)
class Bar:
    """Outputs of one unit, laid end to end; all bars of a calculator have one scale, and one limit."""

    label: str
    parts: Sequence[str]


@dataclass(frozen=True)
class Chart:
    """How the outputs `of`, which have one unit, depend on the slider `over`; the present point is marked.

    `mark`: an output that is a value of that slider, such as where two curves cross: there a line stands, labelled.
    `scales`: whether the reader may have all axes linear.
    """

    over: str
    of: Sequence[str]
    log: bool = False
    mark: str | None = None
    scales: bool = False


class Calculator:
    """What a chapter's cell shows: inputs to move, and the outputs of `formula`, called with the inputs by name.

    `limit`: what all bars and the chart are held against, such as the memory of a GPU; it is drawn, not listed.
    `timeline`: which of the results is a timeline, drawn with bars that move as the inputs do. Outside a browser the
    starting state is shown, as text and the timeline as a picture. Raises `ValueError` if the pieces do not fit
    together and `FormulaError` if the formula does with a slider what cannot be written down.
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
            raise ValueError(f"{count} combinations of choices: at most {MAX_COMBINATIONS} can be tried")
        self.results = []  # for each combination of choices, the place of each output
        self.moments = []  # and of what the timeline wants, by its keys
        for values in product(*(each.options for each in self._tabulated)):
            chosen = dict(zip((each.name for each in self._tabulated), values, strict=True))
            self._place(read(self.program, formula, {**symbols, **chosen}, self._pick))
        for name, value in self.at().items():
            if not math.isfinite(value):
                raise ValueError(f"output {name!r} is {value} in the starting state")
        if self.timeline:
            self.timeline_at()  # or an error at once, in the cell

    def _pick(self, result) -> dict:
        """What is wanted of the formula's result, by `Output`, and what the timeline wants by keys of its own."""
        values = named(result, [each.name for each in self._computed]).values()
        outputs = dict(zip(self._computed, values, strict=True))
        return {**outputs, **(self.timeline.pick(result) if self.timeline else {})}

    def _place(self, found: dict | Symbol) -> None:
        """Note where the program leaves what was picked; a symbol alone is that of all, which are undefined."""
        if isinstance(found, Symbol):
            found = dict.fromkeys(self._computed, found)
        self.results.append([found[output].place for output in self._computed])
        self.moments.append({key: each.place for key, each in found.items() if not isinstance(key, Output)})

    def at(self, **changes) -> dict[str, float]:
        """Each output, and the limit, by its name, as the page computes it, where `changes` differ from the start.

        A choice is named by its label, a slider's value is a number: any, unless it is tabulated.
        """
        row, places = self._run(changes)
        return {each.name: places[place] for each, place in zip(self._computed, self.results[row], strict=True)}

    def timeline_at(self, **changes) -> Timeline:
        """The timeline where `changes`, as for `at`, differ from the start; `ValueError` if there is none."""
        return timeline_of(self._told(changes))

    def said(self, **changes) -> str:
        """The sentence beside the timeline: "step 12 ms: 3 ms exposed of 8 ms of communication"."""
        told = self._told(changes)
        return SAID.format(**{name: say(told[name], SECONDS) for name in TOLD})

    def _told(self, changes: Mapping) -> dict:
        """The value of everything that the timeline wants."""
        row, places = self._run(changes)
        told = {key: places[place] for key, place in self.moments[row].items()}
        if not told or not all(map(math.isfinite, told.values())):
            raise ValueError("this calculator draws no timeline, or its formula is undefined there")
        return told

    def _run(self, changes: Mapping) -> tuple[int, list[float]]:
        """Which combination of choices that is, and what the program leaves at each place."""
        if unknown := changes.keys() - {each.name for each in self.inputs}:
            raise ValueError(f"no such input: {', '.join(sorted(unknown))}")
        values = {each.name: changes.get(each.name, each.value) for each in self.inputs}
        row = 0
        for each in self._tabulated:
            known = list(each.choices if isinstance(each, Choice) else each.stops)
            if values[each.name] not in known:
                raise ValueError(f"input {each.name!r} has no {values[each.name]!r}: there are {known}")
            row = row * len(known) + known.index(values[each.name])
        return row, self.program.run([values[each.name] for each in self.inputs if not each.tabulated])

    def texts(self, **changes) -> dict[str, str]:
        """As `at`, but only what is listed, and each as it is shown."""
        values = self.at(**changes)
        return {each.name: say(values[each.name], each.unit) for each in self._listed}

    def __repr__(self) -> str:
        rows = [(each.label, each.text) for each in self.inputs]
        rows += [(each.label, text) for each, text in zip(self._listed, self.texts().values(), strict=True)]
        said = [self.said()] if self.timeline else []
        return "\n".join([self.caption, *(f"{label}: {text}" for label, text in rows), *said])

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """The calculator with its data, style, script and still: complete, and the same bytes every time."""
        inputs = "".join(_row(each.label, each.text) for each in self.inputs)
        colours = self._colours()
        outputs = "".join(
            _row(each.label, text, colours.get(each.name))
            for each, text in zip(self._listed, self.texts().values(), strict=True)
        )
        data = json.dumps(self.data(), separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
        drawn = ["player", "timeline"] if self.timeline else []  # by the script of the figure of timelines
        own = ["calculator", *(["lanes"] if self.timeline else [])]
        styles, scripts = carried(*drawn, "calculator", styles=own)
        return (
            f'<collective-calculator role="group" aria-label="{escape(self.caption)}">'
            f"{styles}"
            f"<div class=still><p><strong>{escape(self.caption)}</strong></p>"
            f"<table class=given>{inputs}</table>{self._still()}<table class=found>{outputs}</table></div>"
            f'<script type="application/json">{data}</script></collective-calculator>'
            f"{scripts}"
        )

    def _still(self) -> str:
        """The timeline in the starting state, as the picture that a reader without the script has."""
        if not self.timeline:
            return ""
        picture = Gantt({self.timeline.title: self.timeline_at()}, self.said()).still_svg()
        return f'<img alt="{escape(self.said())}" src="{data_address(picture)}">'

    def data(self) -> dict:
        """What the page needs, as plain data: outputs by their numbers, the program, and where it leaves the outputs.

        `results` has a row for each combination of choices and tabulated stops, the last input running fastest; the
        `timeline`, if there is one, is as `Lanes.data` tells it.
        """
        numbers = {each.name: index for index, each in enumerate(self._computed)}
        order = [each.name for each in self.inputs]
        return {
            "inputs": [each.data() for each in self.inputs],
            "outputs": [{"label": each.label, "unit": each.unit, "listed": each.listed} for each in self._computed],
            "lines": self.program.lines,
            "results": self.results,
            "colours": {numbers[name]: colour for name, colour in self._colours().items()},
            "bars": [{"label": each.label, "parts": [numbers[name] for name in each.parts]} for each in self.bars],
            "limit": self.limit and numbers[self.limit.name],
            "chart": self.chart
            and {
                "over": order.index(self.chart.over),
                "of": [numbers[name] for name in self.chart.of],
                "log": self.chart.log,
                **({"mark": numbers[self.chart.mark]} if self.chart.mark else {}),
                **({"scales": True} if self.chart.scales else {}),
            },
            **({"timeline": self.timeline.data(self.moments, SECONDS)} if self.timeline else {}),
        }

    def _colours(self) -> dict[str, str]:
        """The colour of each output that a bar or the chart shows, by its name; one for each label."""
        shown = [name for bar in self.bars for name in bar.parts] + list(self.chart.of if self.chart else [])
        labels = {each.name: each.label for each in self._computed}
        colours = dict(zip(dict.fromkeys(labels[name] for name in shown), cycle(RANK_COLOURS)))
        return {name: colours[labels[name]] for name in shown}


def _check_names(calculator: Calculator) -> None:
    inputs, outputs = ([each.name for each in group] for group in (calculator.inputs, calculator._computed))
    for names in (inputs, outputs):
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two inputs or two outputs are called {', '.join(sorted(twice))}")
    drawn = [name for bar in calculator.bars for name in bar.parts]
    drawn += [*calculator.chart.of, *filter(None, [calculator.chart.mark])] if calculator.chart else []
    if missing := [name for name in drawn if name not in outputs]:
        raise ValueError(f"a bar or the chart shows {missing[0]!r}, which is no output")
    sliders = [each.name for each in calculator.inputs if isinstance(each, Slider)]
    if calculator.chart and calculator.chart.over not in sliders:
        raise ValueError(f"a chart is over a slider, not over {calculator.chart.over!r}")


def _row(label: str, text: str, colour: str | None = None) -> str:
    swatch = "" if colour is None else f'<i style="--part:{colour}"></i>'
    return f"<tr><th scope=row>{swatch}{escape(label)}<td>{escape(text)}"


def say(value: float, unit: Unit = PLAIN) -> str:
    """`value` in three digits, or all digits of a larger whole number, with its unit: "7.5 GB", "1,120 GB"."""
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
    rounded = exact.quantize(Decimal(1).scaleb(digits), ROUND_HALF_UP)  # as JavaScript does, not to even
    if not -4 <= exact.adjusted() < 15:
        text = f"{rounded:.2e}"
    else:
        text = f"{rounded:,f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"-{text}" if value < 0 else text


def spaced(low: float, high: float, steps: int, log: bool = False, also: Iterable[float] = ()) -> list[float]:
    """Stops from `low` to `high` in so many `steps`, each rounded to two digits, and those in `also`."""
    spread = np.geomspace(low, high, steps + 1) if log else np.linspace(low, high, steps + 1)
    stops = {float(f"{stop:.1e}") for stop in spread.tolist()} | set(also)
    return sorted(int(stop) if stop == int(stop) else stop for stop in stops)
