"""A timeline whose bars the reader moves: the moments of its spans are lines of a calculator's program.

    def step(seconds, rate): ...           # of symbols: returns timeline.run(tasks)
    Calculator(step, inputs, outputs, timeline=Lanes(title="One step"))

There is no second copy of the timeline either. `timeline.run` itself is called with a symbol for each slider; where
every span begins and ends, and where communication is exposed, the page's program computes as the library does. It is
drawn by the script that draws `gantt`'s figures, so it looks like those.
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
    """Where a span begins or ends, as a key of what is read; of exposed communication `lane` is empty."""

    lane: str
    kind: str
    name: str
    ends: bool


@dataclass(frozen=True)
class Lanes:
    """That a calculator draws a timeline of one rank: the formula's result called `name`, or the result itself.

    Beside the `title` stands, and a screen reader says, how long the step is, how much of it is exposed communication,
    and how long all collectives take one after another (`Timeline.communicating`).
    """

    name: str | None = None
    title: str = ""

    def pick(self, result) -> dict:
        """What of a formula's result the page is to compute: `TOLD` by name, and every moment by its `Edge`."""
        timeline = named(result, [self.name])[self.name] if self.name else result
        if not isinstance(timeline, Timeline) or len(timeline.groups) > 1:
            found = f"one of {len(timeline.groups)}" if isinstance(timeline, Timeline) else type(timeline).__name__
            raise FormulaError(f"lanes show a Timeline of one rank; {self.name or 'the result'} is {found}")
        picked = {name: getattr(timeline, name) for name in TOLD}
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
        """What the page needs, from what `pick` picks: {key: place in the program} for each combination of choices.

        `shapes` are the lanes that occur, [name, [[kind's number, name], ...]]. For each combination `drawn` has the
        number of its shape and the places: of `TOLD`, of each bar's two ends lane by lane, of each exposed interval's.
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
    """The timeline in numbers, from the value of everything that `Lanes.pick` picks."""
    return Timeline(
        tuple(
            Span(key.name, key.lane, found[key], found[key._replace(ends=True)] - found[key], key.kind)
            for key in _starts(found)
            if key.lane
        )
    )
