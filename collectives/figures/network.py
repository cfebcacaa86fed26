"""The network view: a schedule on its machine, in which messages move along links, true to the time that `price` gives.

`Network(schedule, on=topology, num_bytes=S)` is one schedule with a timeline on the same clock. `Race` is two or three
on one clock. Python prices every message and lays out ranks and links; the page only moves what Python has timed.
Without a topology, every message takes as long as any other, and no times are shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ..contracts import Contract
from ..schedule import Schedule
from ..topology import Topology
from .calculator import BYTES, SECONDS, say
from .colours import ALGORITHMS, GREY, RANK_COLOURS, ink_on
from .panels import Panel, Strip, finishes, svg, timeline
from .player import Figure, capital, listed
from .traffic import TICKS, Lane

MOST_SECONDS = 14  # that a whole schedule plays
SLOW = 5  # times as long, when the reader asks for it; as in static/network.js
STEP_MS = 1300  # that a step plays without a topology
MAX_MOMENTS, MAX_PANELS = 128, 8  # larger figures are unreadable
UNITS = (*SECONDS, ("ns", 1e-9))


class Clock(NamedTuple):
    """How to say the times of a figure: `size` seconds in a `unit`, with `digits` after the point."""

    unit: str
    size: float
    digits: int

    @classmethod
    def of(cls, total: float) -> Clock:
        """Return the clock that says `total` seconds in three digits."""
        unit, size = next((each for each in UNITS if total >= each[1]), UNITS[-1])
        return cls(unit, size, min(3, max(0, 2 - math.floor(math.log10(total / size))) if total else 0))

    def say(self, seconds: float, unit: bool = True) -> str:
        number = f"{seconds / self.size:.{self.digits}f}" if seconds else "0"
        return f"{number} {self.unit}" if unit else number


class Network(Figure):
    """The figure of one schedule. `places`: one of `places.PLACES`; None for what suits the schedule and its machine.

    Raises `ValueError` for places that don't suit, for sizes that don't fit, and for too many ranks, steps or messages.
    """

    picture = "network"

    def __init__(
        self,
        schedule: Schedule,
        places: str | None = None,
        caption: str | None = None,
        on: Topology | None = None,
        num_bytes: int | None = None,
        contract: Contract | None = None,
    ):
        self.lanes = {"": Lane(schedule, on, _size(schedule, on, num_bytes), places, contract)}
        self.lane, self.timed = self.lanes[""], on is not None
        self.seconds, self.moments = self.lane.seconds, self.lane.moments
        self.clock = Clock.of(self.seconds)
        drawing = self.lane.drawing
        self.caption = caption or drawing.caption + (f", {say(num_bytes, BYTES)}" if num_bytes else "")
        self.words = [self._told(number, text) for number, text in enumerate(drawing.words)]

    def _told(self, number: int, text: str) -> str:
        """Return the slots' text with the step's time; without a topology, who sends to whom."""
        if not self.timed:
            return self._paired(number - 1) if number else self._before()
        if not number:
            return f"{text} The whole takes {self.clock.say(self.seconds)}."
        step = self.lane.by_step[number - 1]
        start = self.clock.say(min((each.start for each in step), default=0.0), unit=False)
        end = self.clock.say(max((each.end for each in step), default=0.0))
        return f"From {start} to {end}, {text[:1].lower()}{text[1:]}"

    def _before(self) -> str:
        ranks = f"Before: {self.lane.schedule.world_size} ranks"
        if not self.lane.places.names:
            return f"{ranks}. A line joins two ranks that will communicate."
        return f"{ranks}, each with its number in binary. Dotted lines join ranks whose numbers differ in one digit."

    def _paired(self, step: int) -> str:
        """Return a sentence for the ranks that swap in a step, one for those that only send, and the mask of a cube."""
        pairs = sorted({(each.src, each.dst) for each in self.lane.by_step[step]})
        swaps = [f"{one} and {other}" for one, other in pairs if one < other and (other, one) in pairs]
        sends = [f"rank {src} to rank {dst}" for src, dst in pairs if (dst, src) not in pairs]
        sentences = [f"Ranks {listed(swaps, ', ')} swap."] if swaps else []
        sentences += [f"Data goes from {listed(sends)}."] if sends else []
        masks, names = {src ^ dst for src, dst in pairs}, self.lane.places.names
        if names and len(masks) == 1:
            mask = masks.pop()
            digits = f"{mask:0{len(names[0])}b}"
            sentences.append(f"The two numbers of each pair differ by the mask {mask}, in binary {digits}.")
        return f"Step {step} ({step + 1} of {len(self.lane.by_step)}): {' '.join(sentences)}"

    @property
    def scripts(self) -> list[str]:
        """As `Figure.scripts`."""
        return ["clock", "network"]

    @property
    def tick(self) -> float:
        """The seconds of a tick of the data's clock."""
        return self.seconds / TICKS or 1.0

    def data(self) -> dict:
        """Return what the player shows, as plain data. Times are in ticks; `moments` are where each step ends.

        `clock`: the unit, its digits, and the whole time in it, or None without a topology. `pace`: the milliseconds
        that the whole plays; `scale` says it in words, fast and slow. `lines`: the colour of each lane of a race. For
        the lanes, see `Lane.data`.
        """
        scale, pace = self._scale()
        return {
            "ticks": TICKS,
            "clock": [self.clock.unit, self.clock.digits, self.seconds / self.clock.size] if self.timed else None,
            "scale": scale,
            "pace": pace,
            "moments": [round(moment / self.tick) for moment in self.moments],
            "alarms": self._alarms(),
            "colours": [[colour, ink_on(colour)] for colour in RANK_COLOURS[: self._most_ranks]],
            "lines": self._lines,
            "lanes": [lane.data(self.tick, title) for title, lane in self.lanes.items()],
        }

    @property
    def _most_ranks(self) -> int:
        return max(lane.schedule.world_size for lane in self.lanes.values())

    @property
    def _lines(self) -> list[str]:
        return [ALGORITHMS[title].colour if title in ALGORITHMS else GREY for title in self.lanes]

    def _alarms(self) -> list[int]:
        return [number for number in range(len(self.moments)) if self.lane.drawing.alarms(number)]

    def _scale(self) -> tuple[list[str], int]:
        """Return the scale in words, fast and slow, and the milliseconds that the whole plays.

        The scale is round, and the whole plays at most 14 seconds.
        """
        if not self.timed:
            return [], STEP_MS * (len(self.moments) - 1)
        least = self.seconds / MOST_SECONDS or 1.0
        power = 10.0 ** math.floor(math.log10(least))
        scale = next(times * power for times in (1, 2, 5, 10) if times * power >= least * (1 - 1e-9))
        says = [f"1 s here = {say(each, UNITS)}" for each in (scale, scale / SLOW)]
        return says, round(self.seconds / scale * 1000)

    def still_svg(self) -> str:
        """As `Figure.still_svg`: a small picture for each step, and the timeline. Equal steps share a picture."""
        steps = self.lane.by_step
        runs: list[list[int]] = []  # of steps in which the same ranks send to the same ranks
        for number in range(len(steps)):
            pairs = {(each.src, each.dst) for each in steps[number]}
            if runs and pairs == {(each.src, each.dst) for each in steps[runs[-1][-1]]}:
                runs[-1].append(number)
            else:
                runs.append([number])
        panels = [Panel(self.lane, self._heading(run), steps[run[0]]) for run in runs[:MAX_PANELS]]
        strip = timeline(self.lane, self.clock.say(self.seconds)) if self.timed else Strip("", 0)
        return svg(panels, strip, f"{self.caption}: its steps as small pictures")

    def _heading(self, run: list[int]) -> str:
        steps = f"step {run[0]}" if len(run) == 1 else f"steps {run[0]} to {run[-1]}"
        return steps + (f", until {self.clock.say(self.moments[run[-1] + 1])}" if self.timed else "")


def _size(schedule: Schedule, on: Topology | None, num_bytes: int | None) -> int:
    """Return the bytes to price; raise `ValueError` if only one of the topology and the bytes is there."""
    if (on is None) != (num_bytes is None):
        raise ValueError(
            "a schedule on a topology needs num_bytes too, the bytes of the full buffer"
            if num_bytes is None
            else "num_bytes needs a topology too: draw(schedule, on=topology, num_bytes=...)"
        )
    if num_bytes is not None:
        return num_bytes
    return sum(schedule.lengths) if schedule.lengths else schedule.num_chunks


class Race(Network):
    """Two or three schedules by title, started together on one clock, each with its network and a bar of its time.

    Its steps are the moments at which one of them finishes a step. Raises `ValueError` as `Network` does, and for other
    numbers of schedules.
    """

    def __init__(
        self,
        schedules: Mapping[str, Schedule],
        on: Topology | None,
        num_bytes: int | None,
        places: str | None = None,
        caption: str | None = None,
    ):
        if not 2 <= len(schedules) <= 3:
            raise ValueError(f"a race has two or three schedules, not {len(schedules)}")
        if on is None or num_bytes is None:
            raise ValueError("a race needs a topology and num_bytes: draw({...}, on=topology, num_bytes=...)")
        self.lanes = {title: Lane(schedule, on, num_bytes, places) for title, schedule in schedules.items()}
        self.timed, self.seconds = True, max(lane.seconds for lane in self.lanes.values())
        self.clock, self.size = Clock.of(self.seconds), say(num_bytes, BYTES)
        self.moments = self._moments()
        self.caption = caption or f"A race: {listed(list(self.lanes))}, {self._most_ranks} ranks, {self.size}"
        self.words = [self._said(number) for number in range(len(self.moments))]

    def _moments(self) -> list[float]:
        """Return the ends of all steps; those within 1/400 of the whole are one, but every finish stays."""
        finishes = {lane.seconds for lane in self.lanes.values()}
        ends, kept = sorted({moment for lane in self.lanes.values() for moment in lane.moments}), [0.0]
        for end in ends:
            if end > kept[-1] + self.seconds / 400:
                kept.append(end)
            elif end in finishes and end > kept[-1]:
                kept[-1] = end
        if len(kept) > MAX_MOMENTS:
            raise ValueError(f"a race of {len(kept)} steps is too long to draw: at most {MAX_MOMENTS}")
        return kept

    def _said(self, number: int) -> str:
        if not number:
            return f"Before: {listed(list(self.lanes))} start together, with {self.size} on {self._most_ranks} ranks."
        now = self.moments[number] * (1 + 1e-9)
        parts = []
        for title, lane in self.lanes.items():
            done, steps = sum(moment <= now for moment in lane.moments[1:]), len(lane.moments) - 1
            finish = f"has finished, at {self.clock.say(lane.seconds)}"
            parts.append(f"{title} {finish if done == steps else f'has done {done} of {steps} steps'}")
        last = f" {self._verdict()}" if number == len(self.moments) - 1 else ""
        return f"At {self.clock.say(self.moments[number])}: {'; '.join(parts)}.{last}"

    def _verdict(self) -> str:
        """Return who wins, and by how much."""
        order = sorted(self.lanes, key=lambda title: self.lanes[title].seconds)
        first, last = (self.lanes[title].seconds for title in (order[0], order[-1]))
        if last <= first * 1.005:
            return "It's a tie."
        return f"{capital(order[0])} wins; {order[-1]} takes {say(last / first)} times as long."

    def _alarms(self) -> list[int]:
        return []

    def still_svg(self) -> str:
        """As `Figure.still_svg`: the network of each, and a bar of its time."""
        panels = [Panel(lane, title, lane.messages) for title, lane in self.lanes.items()]
        bars = [
            (f"{title}: {self.clock.say(lane.seconds)}", lane.seconds / (self.seconds or 1.0), colour)
            for (title, lane), colour in zip(self.lanes.items(), self._lines, strict=True)
        ]
        return svg(panels, finishes(bars), self.caption)
