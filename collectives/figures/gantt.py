"""Timelines as a figure to step through: a bar for each span, a row for each lane, several timelines on one axis.

`draw(timeline)` and `draw({"predicted": one, "measured": other})` return this figure. The reader's cursor jumps to the
moments at which a span begins or ends. The text says which span does, and what every lane does then. The picture marks
exposed communication: time in which a rank communicates and computes nothing.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from html import escape
from itertools import accumulate
from typing import NamedTuple

from ..training.timeline import Span, Timeline
from .colours import GREY, IDLE, OPERATIONS, OTHERS, WRONG, ink_on
from .player import Figure, capital, listed

PATTERNS = {
    "plain": (),
    "stripes": ((0.5, 1, "1.5 5"),),
    "lines": ((0.12, 0.09, ""), (0.88, 0.09, "")),
    "grid": ((0.12, 0.09, ""), (0.88, 0.09, ""), (0.5, 1, "1.5 11")),
    "dots": ((0.14, 0.12, "2 5"), (0.86, 0.12, "2 5")),
    "dashes": ((0.5, 1, "6 6"),),
}
"""The strokes drawn over a bar's colour: horizontal lines, each (height of its middle, thickness, dashes). Height and
thickness are fractions of the bar's height, dashes are in pixels."""

COMMUNICATION = {  # operation: pattern; communication has patterns, so that colour is not the only sign
    "all_gather": "stripes",
    "reduce_scatter": "lines",
    "all_reduce": "grid",
    "all_to_all": "dots",
    "broadcast": "dashes",
    "send_recv": "dots",
}
KINDS = {kind: (colour, COMMUNICATION.get(kind, "plain")) for kind, colour in OPERATIONS.items()}  # of spans
KINDS |= {"checkpoint": ("#5b4a9e", "plain"), "lost": (WRONG, "plain"), "restart": (GREY, "plain")}  # of a whole job
KINDS |= {"bubble": (IDLE, "plain")}  # of a pipeline, where its waiting is summed up

MAX_SPANS, MAX_LANES = 1500, 40  # larger figures are unreadable
TICKS = 100_000  # length of the axis; the data's times are whole ticks
TOGETHER = TICKS // 400  # edges within this distance, 2 pixels on a wide screen, count as one moment
SPOKEN_LANES = 4  # a sentence describes up to 4 lanes one by one
UNITS = (("h", 3600.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))

Timelines = Mapping[str, Timeline]


class Bar(NamedTuple):
    """A span on the axis, from tick `start` to tick `end`. It runs from moment number `first` to moment `last`."""

    span: Span
    start: int
    end: int
    first: int
    last: int


class Gantt(Figure):
    """What `draw` returns for timelines."""

    picture = "timeline"

    def __init__(self, timelines: Timeline | Timelines, caption: str | None = None):
        self.timelines = dict(timelines) if isinstance(timelines, Mapping) else {"": timelines}
        _refuse(self.timelines)
        self.seconds = max(timeline.seconds for timeline in self.timelines.values())
        self.unit, self.scale = next((u for u in UNITS if self.seconds >= u[1]), UNITS[-1])
        self.moments = self._moments()
        self.bars = {title: self._bars(timeline) for title, timeline in self.timelines.items()}
        self.exposed = {title: self._exposed(timeline) for title, timeline in self.timelines.items()}
        self._shared_names = {
            title: len({bar.span.name for bar in bars}) < len(bars) for title, bars in self.bars.items()
        }
        self.caption = caption or " and ".join(filter(None, self.timelines)) or "Timeline"
        self.words = [self._whole(), *(self._told(moment) for moment in range(len(self.moments)))]

    def time(self, seconds: float) -> str:
        """Return seconds as text, in the unit of the figure's axis and to three digits."""
        return f"{float(f'{seconds / self.scale:.3g}'):g} {self.unit}"  # 1230 s, not 1.23e+03 s

    def tick(self, seconds: float) -> int:
        """Return the place of a time on the axis, from 0 to `TICKS`."""
        return round(seconds / self.seconds * TICKS)

    def _moments(self) -> list[int]:
        """Return the ticks at which a span begins or ends. Of ticks within `TOGETHER`, only the first counts."""
        spans = [span for timeline in self.timelines.values() for span in timeline.spans if span.seconds]
        moments: list[int] = []
        for tick in sorted({self.tick(at) for span in spans for at in (span.start, span.end)}):
            if not moments or tick - moments[-1] > TOGETHER:
                moments.append(tick)
        return moments

    def _at(self, tick: int) -> int:
        """Return the number of the moment that `tick` belongs to."""
        return bisect_right(self.moments, tick) - 1

    def _bars(self, timeline: Timeline) -> list[Bar]:
        bars, lanes = [], timeline.lanes
        for span in timeline.spans:
            start, end = self.tick(span.start), self.tick(span.end)
            if span.seconds:  # a span of no length has no bar
                bars.append(Bar(span, start, end, self._at(start), self._at(end)))
        return sorted(bars, key=lambda bar: (bar.start, lanes.index((bar.span.group, bar.span.lane))))

    # --- in words ---

    def _whole(self) -> str:
        return self._said("The whole", {title: self.totals(timeline) for title, timeline in self.timelines.items()})

    def totals(self, timeline: Timeline) -> str:
        """Return "3.2 ms, communication 1.1 ms, exposed 0.4 ms"; the last two are means over the groups."""
        exposed, hidden, groups = timeline.exposed, timeline.hidden, len(timeline.groups)
        text = self.time(timeline.seconds)
        if exposed + hidden:
            mean = f" (mean of {groups})" if groups > 1 else ""
            communication = self.time((exposed + hidden) / groups)
            text += f", communication {communication}, exposed {self.time(exposed / groups)}{mean}"
        elif idle := sum(until - start for gaps in self.idle(timeline).values() for start, until in gaps):
            text += f", idle {idle / len(timeline.lanes) / self.tick(timeline.seconds):.0%}"
        return text

    def idle(self, timeline: Timeline) -> dict[tuple[str, str], list[tuple[int, int]]]:
        """Return by lane the ticks [from, until] in which it waits, in a timeline without communication.

        With communication, what waits is marked as exposed instead.
        """
        if timeline.exposed + timeline.hidden:
            return {}
        gaps: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for lane in timeline.lanes:
            own = sorted((span.start, span.end) for span in timeline.spans if (span.group, span.lane) == lane)
            ends = [0, *(self.tick(end) for end in accumulate((end for _, end in own), max))]
            starts = [*(self.tick(start) for start, _ in own), self.tick(timeline.seconds)]
            gaps[lane] = [(end, start) for end, start in zip(ends, starts, strict=True) if start - end > TOGETHER]
        return gaps

    def _told(self, moment: int) -> str:
        when = f"At {self.time(self.moments[moment] / TICKS * self.seconds)} (step {moment + 1} of {len(self.moments)})"
        events = {title: f"{self._changes(title, moment)}; {self._state(title, moment)}" for title in self.timelines}
        return self._said(when, events)

    def _said(self, what: str, texts: dict[str, str]) -> str:
        """Return "What: text." for one timeline without a title, else "What. Title: text. Title: text."."""
        if list(texts) == [""]:
            return f"{what}: {texts['']}."
        return " ".join([f"{what}.", *(f"{_capitalized(title)}: {text}." for title, text in texts.items())])

    def _changes(self, title: str, moment: int) -> str:
        changes: dict[str, list[str]] = {"ends": [], "begins and ends": [], "begins": []}
        for bar in self.bars[title]:
            if moment in (bar.first, bar.last):
                verb = "begins and ends" if bar.first == bar.last else "ends" if bar.last == moment else "begins"
                changes[verb].append(self._name(title, bar.span))
        clauses = []
        for verb, names in changes.items():
            if names:
                clauses.append(f"{listed(names)} {verb if len(names) == 1 else verb.replace('s', '')}")
        return ", ".join(clauses) or "no change"

    def _name(self, title: str, span: Span) -> str:
        """Return a span's name for a sentence, with its group or lane if another span has the same name."""
        owner = (span.group or span.lane) if self._shared_names[title] else ""
        return f"{span.name} of {owner}" if owner else span.name

    def _state(self, title: str, moment: int) -> str:
        timeline, running = self.timelines[title], {}
        for bar in self.bars[title]:
            if bar.first <= moment < bar.last:
                running[bar.span.group, bar.span.lane] = self._name(title, bar.span)
        lanes = timeline.lanes
        if not running:
            return "all done" if all(bar.last <= moment for bar in self.bars[title]) else "every lane is idle"
        if len(lanes) <= SPOKEN_LANES:
            idle = [_lane(lane) for lane in lanes if lane not in running]
            names = [running[lane] for lane in lanes if lane in running]
            state = f"running: {listed(names)}{f'; idle: {listed(idle)}' if idle else ''}"
        else:
            state = f"{len(running)} of {len(lanes)} lanes {'is' if len(running) == 1 else 'are'} busy"
        groups = [
            group
            for group, intervals in self.exposed[title].items()
            if any(self._at(start) <= moment < self._at(end) for start, end in intervals)
        ]
        if groups:
            state += f"; communication{' of ' + listed(groups) if groups != [''] else ''} is exposed"
        return state

    def _exposed(self, timeline: Timeline) -> dict[str, list[tuple[int, int]]]:
        """Return `Timeline.exposed_intervals` in ticks."""
        return {
            group: [(self.tick(start), self.tick(end)) for start, end in intervals]
            for group, intervals in timeline.exposed_intervals().items()
        }

    # --- for the player ---

    def data(self) -> dict:
        """Return what the player shows, as plain data. Times are ticks, from 0 to `TICKS`.

        `kinds`: [text, colour, ink, pattern's strokes]. A chart has groups. A group has its exposed intervals [from,
        until] and its lanes; a lane has a name, bars [from, until, kind, name] and idle intervals [from, until].
        `length`: of the axis, in `unit`.
        """
        kinds = looks(bar.span.kind for bars in self.bars.values() for bar in bars)
        return {
            "ticks": TICKS,
            "length": float(f"{self.seconds / self.scale:.6g}"),
            "unit": self.unit,
            "moments": self.moments,
            "kinds": list(kinds.values()),
            "exposed": any(timeline.exposed for timeline in self.timelines.values()),
            "charts": [
                {"title": title, "totals": self.totals(timeline), "groups": self._groups(title, list(kinds))}
                for title, timeline in self.timelines.items()
            ],
        }

    def _groups(self, title: str, kinds: list[str]) -> list[dict]:
        timeline = self.timelines[title]
        groups: list[dict] = []
        idle = self.idle(timeline)
        for group in timeline.groups:
            lanes = []
            for owner, lane in timeline.lanes:
                if owner == group:
                    own = [bar for bar in self.bars[title] if (bar.span.group, bar.span.lane) == (group, lane)]
                    bars = [[bar.start, bar.end, kinds.index(bar.span.kind), bar.span.name] for bar in own]
                    lanes.append({"name": lane, "bars": bars, "idle": idle.get((owner, lane), [])})
            groups.append({"name": group, "exposed": self.exposed[title][group], "lanes": lanes})
        if all(len(group["lanes"]) == 1 for group in groups):  # then each row shows the name of its group
            several = len({group["lanes"][0]["name"] for group in groups}) > 1
            for row in groups:
                (only,), owner = row["lanes"], row["name"]
                only["name"] = _lane((owner, only["name"])) if several or not owner else owner
                row["name"] = ""
        return groups

    # --- the still ---

    def still_svg(self) -> str:
        """As `Figure.still_svg`: the whole timeline, without a cursor."""
        return _Still(self.data(), self.caption).svg()


def _refuse(timelines: dict[str, Timeline]) -> None:
    for title, timeline in timelines.items():
        if not isinstance(timeline, Timeline):
            what = f"{title!r}, {type(timeline).__name__}" if title else type(timeline).__name__
            raise TypeError(
                f"can't draw {what}: draw takes a Schedule, a Timeline, or timelines by title, such as "
                "{'predicted': timeline, 'measured': timeline}"
            )
    if not any(timeline.seconds for timeline in timelines.values()):
        raise ValueError("nothing to draw: no timeline has a span longer than 0 seconds")
    spans = sum(len(timeline.spans) for timeline in timelines.values())
    lanes = sum(len(timeline.lanes) for timeline in timelines.values())
    if spans > MAX_SPANS or lanes > MAX_LANES:
        raise ValueError(
            f"{spans} spans in {lanes} lanes are too many to draw: at most {MAX_SPANS} in {MAX_LANES}. Draw fewer "
            "ranks (timeline.only(group)), fewer steps or layers, or merge small spans."
        )


def looks(kinds: Iterable[str]) -> dict[str, list]:
    """Return each kind's [text, colour, ink, pattern's strokes]: first those of `KINDS`, in that order, then others.

    Another kind gets the colour of its place in that order.
    """
    occurring = dict.fromkeys(kinds)
    ordered = [*filter(occurring.__contains__, KINDS), *(kind for kind in occurring if kind not in KINDS)]
    drawn = {}
    for place, kind in enumerate(ordered):
        colour, pattern = KINDS.get(kind, (OTHERS[place % len(OTHERS)], "plain"))
        drawn[kind] = [_prose(kind), colour, ink_on(colour), PATTERNS[pattern]]
    return drawn


def _lane(lane: tuple[str, str]) -> str:
    return " ".join(filter(None, lane))


def _capitalized(title: str) -> str:
    """Return a title as it begins a sentence: code, such as `async_op=False`, stays as it is."""
    return title if re.match(r"\w*[_=]", title) else capital(title)


def _prose(kind: str) -> str:
    return kind.replace("_", "-")


WIDTH, BAR, ROW, HEAD, TYPE = 640, 15, 18, 15, 9  # of the still, in pixels
LETTER = 0.6  # width of a letter, as a fraction of its height


class _Still:
    """The still, laid out as the player lays out the data. Bars of one look become one path, to keep the SVG small."""

    def __init__(self, data: dict, caption: str):
        self.data, self.caption = data, caption
        lanes = [lane["name"] for chart in data["charts"] for group in chart["groups"] for lane in group["lanes"]]
        self.left = max(len(name) for name in [data["unit"], *lanes]) * TYPE * LETTER + 10
        self.per_tick = (WIDTH - self.left - 12) / data["ticks"]
        self.rects: dict[int, list[str]] = {kind: [] for kind in range(len(data["kinds"]))}
        self.strokes: dict[tuple[int, int], list[str]] = {}  # (kind, number of its stroke): pieces of a path
        self.marks: list[str] = []  # exposed intervals
        self.floors: list[str] = []  # a thick line below each of them
        self.hatches: list[str] = []  # of idle intervals
        self.texts: list[str] = []

    def svg(self) -> str:
        bottom = self.charts()
        ticks = self.axis(bottom)
        height = self.legend(bottom + 24) + 4
        drawn = []
        for kind, (_, colour, ink, pattern) in enumerate(self.data["kinds"]):
            drawn.append(f'<path fill="{colour}" d="{"".join(self.rects[kind])}"/>')
            for number, (_, thickness, dashes) in enumerate(pattern):
                look = f'stroke="{ink}" stroke-opacity=".35" stroke-width="{thickness * BAR:.1f}"'
                look += f' stroke-dasharray="{dashes}"' if dashes else ""
                drawn.append(f'<path {look} d="{"".join(self.strokes[kind, number])}"/>')
        marked = ""
        if self.marks:
            marked = f'<path fill="{WRONG}" fill-opacity=".25" d="{"".join(self.marks)}"/>'
            marked += f'<path fill="{WRONG}" d="{"".join(self.floors)}"/>'
        if self.hatches:
            marked += f'<path stroke="currentColor" stroke-opacity=".35" d="{"".join(self.hatches)}"/>'
        look = f'font-family="sans-serif" font-size="{TYPE}" fill="currentColor" color="{GREY}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(self.caption)}" {look} '
            f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
            f"{ticks}{marked}{''.join(drawn)}{''.join(self.texts)}</svg>"
        )

    def charts(self) -> int:
        """Place all bars and names; return where the last chart ends."""
        y = 0
        for chart in self.data["charts"]:
            self.text(0, y + HEAD / 2, chart["title"], 'font-weight="bold"')
            self.text(WIDTH - 12, y + HEAD / 2, chart["totals"], 'text-anchor="end"')
            y += HEAD
            for group in chart["groups"]:
                if group["name"]:
                    self.text(0, y + HEAD / 2, group["name"])
                    y += HEAD
                height = len(group["lanes"]) * ROW
                for start, end in group["exposed"]:
                    self.exposed(start, end, y - 1, height)
                for lane in group["lanes"]:
                    self.text(self.left - 6, y + BAR / 2, lane["name"], 'text-anchor="end"')
                    for start, end in lane["idle"]:
                        self.idle(start, end, y)
                    for bar in lane["bars"]:
                        self.bar(bar, y)
                    y += ROW
            y += 6
        return y

    def bar(self, bar: list, y: float) -> None:
        start, end, kind, name = bar
        self.rects[kind].append(self.rect(start, end, y, BAR))
        _, colour, ink, pattern = self.data["kinds"][kind]
        for number, (middle, _, _) in enumerate(pattern):
            line = f"M{self.x(start):.1f} {y + middle * BAR:.1f}h{self.width(start, end):.1f}"
            self.strokes.setdefault((kind, number), []).append(line)
        room = self.width(start, end) - 3
        short = *re.findall(r"\S*\d\S*", name)[:1], *re.findall(r"[A-Za-z]\d+|\b\d+\b", name)[:1]
        short = *short, *re.findall(r"\d+", short[-1] if short else "")  # "0F2 of stage 7": "0F2", "F2", "2"
        shown = next((text for text in (name, *short) if len(text) * TYPE * LETTER < room), None)
        if shown:
            look = f'text-anchor="middle" fill="{ink}" stroke="{colour}" stroke-width="2.5" paint-order="stroke"'
            self.text(self.x((start + end) / 2), y + BAR / 2, shown, look)

    def sample(self, kind: int, start: float, end: float, y: float) -> None:
        self.bar([start, end, kind, ""], y)

    def exposed(self, start: float, end: float, y: float, height: float) -> None:
        self.marks.append(self.rect(start, end, y, height))
        self.floors.append(self.rect(start, end, y + height - 1, 2))

    def idle(self, start: float, end: float, y: float) -> None:
        """Hatch an interval in which a lane waits, as the network view does."""
        x, last = self.x(start) + 2, self.x(end) - 0.6 * BAR - 2
        while x < last:
            self.hatches.append(f"M{x:.1f} {y + BAR}l{0.6 * BAR:.0f}-{BAR}")
            x += 7

    def axis(self, bottom: float) -> str:
        """Return the lines at round times, from 0 to the whole length, and place their numbers."""
        step, lines = _round_step(self.data["length"] / 8), ""
        for number in range(int(self.data["length"] / step + 1e-9) + 1):
            x = self.x(number * step / self.data["length"] * self.data["ticks"])
            lines += f"M{x:.1f} {HEAD}V{bottom}"
            self.text(x, bottom + 8, f"{number * step:.6g}", 'text-anchor="middle"')
        self.text(self.left - 6, bottom + 8, self.data["unit"], 'text-anchor="end"')
        return f'<path stroke="currentColor" stroke-opacity=".3" stroke-width=".6" d="{lines}"/>'

    def legend(self, y: float) -> float:
        """Place a sample bar for each kind; return where they end."""
        x = 0.0
        items: list[tuple[str, Callable[[float, float, float], None]]]
        items = [(text, partial(self.sample, kind)) for kind, (text, *_) in enumerate(self.data["kinds"])]
        items += [("exposed communication", partial(self.exposed, height=BAR))] if self.data["exposed"] else []
        items += [("idle", self.idle)] if self.hatches else []
        for text, draw in items:
            width = 34 + len(text) * TYPE * LETTER
            if x + width > WIDTH:
                x, y = 0.0, y + ROW
            start, end = ((at - self.left) / self.per_tick for at in (x, x + 22))
            draw(start, end, y)
            self.text(x + 26, y + BAR / 2, text)
            x += width
        return y + ROW

    def x(self, tick: float) -> float:
        return self.left + tick * self.per_tick

    def width(self, start: float, end: float) -> float:
        """Return a bar's width: 0.7 pixels less than its time, to separate neighbours, and at least 0.5."""
        return max((end - start) * self.per_tick - 0.7, 0.5)

    def rect(self, start: float, end: float, y: float, height: float) -> str:
        width = self.width(start, end)
        return f"M{self.x(start):.1f} {y:.1f}h{width:.1f}v{height}h-{width:.1f}z"

    def text(self, x: float, y: float, text: str, look: str = "") -> None:
        if text:
            self.texts.append(f'<text x="{x:.1f}" y="{y + TYPE * 0.36:.1f}" {look}>{escape(text)}</text>')


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least)
