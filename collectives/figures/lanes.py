"""A timeline inside a calculator: its bars move as the reader moves the sliders.

    def step(seconds, rate): ...           # called with symbols; returns timeline.run(tasks)
    Calculator(step, inputs, outputs, timeline=Lanes(title="One step"))

Here too, the formula exists only once. The library calls `timeline.run` itself with a symbol for each slider. That
records the program that computes where each span and each exposed interval begins and ends. The page runs the program,
and the script of `gantt` draws the result, so it looks like the book's other timelines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..formula import FormulaError, Symbol, named
from ..training.timeline import Span, Timeline
from .gantt import looks

SAID = "step {seconds}: {exposed} exposed of {communicating} of communication"
TOLD = ("seconds", "exposed", "communicating")  # properties of a timeline, in the order of the page's places


class Edge(NamedTuple):
    """A span's start or end, used as a key of the picked values. For an exposed interval, `lane` is empty."""

    lane: str
    kind: str
    name: str
    ends: bool


@dataclass(frozen=True)
class Lanes:
    """A request to a calculator: draw the timeline of one rank that the formula returns, by `name` or as its result.

    The line beside the `title`, which screen readers announce, gives the length of the step, its exposed communication,
    and the total time of all collectives (`Timeline.communicating`).
    """

    name: str | None = None
    title: str = ""

    def pick(self, result) -> dict:
        """Return the values that the page must compute: those of `TOLD` by name, and every moment by its `Edge`.

        Raises `FormulaError` unless the result is a timeline of one rank.
        """
        timeline = named(result, [self.name])[self.name] if self.name else result
        if not isinstance(timeline, Timeline) or len(timeline.groups) > 1:
            actual = f"one of {len(timeline.groups)}" if isinstance(timeline, Timeline) else type(timeline).__name__
            raise FormulaError(f"lanes show a Timeline of one rank; {self.name or 'the result'} is {actual}")
        picked: dict = {name: getattr(timeline, name) for name in TOLD}
        for lane in timeline.lanes:
            for span in timeline.spans:
                if (span.group, span.lane) == lane and (isinstance(span.seconds, Symbol) or span.seconds):
                    picked[Edge(span.lane, span.kind, span.name, ends=False)] = span.start
                    picked[Edge(span.lane, span.kind, span.name, ends=True)] = span.end
        for intervals in timeline.exposed_intervals().values():
            for number, interval in enumerate(intervals):
                for ends, moment in zip((False, True), interval, strict=True):
                    picked[Edge("", "", str(number), ends)] = moment
        return picked

    def data(self, read: Sequence[Mapping], unit: Sequence) -> dict:
        """Return what the page needs. `read`: for each combination of choices, {key of `pick`: place in the program}.

        `shapes` are the sets of lanes that occur; a lane is [name, [[number of its kind, name], ...]]. For each
        combination, `drawn` has the number of its shape and these places, in order: the values of `TOLD`, both ends of
        each bar lane by lane, both ends of each exposed interval.
        """
        kinds = looks(key.kind for picked in read for key in _starts(picked) if key.lane)
        numbers, shapes, drawn = {kind: number for number, kind in enumerate(kinds)}, [], []
        for picked in read:
            lanes: dict[str, list] = {}
            for key in filter(lambda key: key.lane, _starts(picked)):
                lanes.setdefault(key.lane, []).append([numbers[key.kind], key.name])
            shape = [[lane, bars] for lane, bars in lanes.items()]
            if shape not in shapes:
                shapes.append(shape)
            drawn.append([shapes.index(shape), list(picked.values())])
        return {
            "title": self.title,
            "said": SAID,
            "unit": unit,
            "kinds": list(kinds.values()),
            "shapes": shapes,
            "drawn": drawn,
        }


def _starts(picked: Mapping) -> list[Edge]:
    return [key for key in picked if isinstance(key, Edge) and not key.ends]


def timeline_of(found: Mapping) -> Timeline:
    """Return the timeline in numbers. `found`: the value of everything that `Lanes.pick` picks."""
    return Timeline(
        tuple(
            Span(key.name, key.lane, found[key], found[key._replace(ends=True)] - found[key], key.kind)
            for key in _starts(found)
            if key.lane
        )
    )
