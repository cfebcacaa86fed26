"""A schedule as a figure to step through: on the web page, in a notebook, and as a still picture on paper.

`frames` says what every slot holds at every moment and what that is worth (its *kind*); `words` says every step in
a sentence; `draw` puts both into one piece of HTML. The player (`player/player.js`) only shows what is written here:
it knows ranks, chunks and kinds, and no algorithm. A schedule that breaks its contract is drawn too, up to the step
that goes wrong and in the contract's own words: that is how to look for a mistake.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from html import escape
from io import StringIO
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from . import contracts
from .contracts import Contract, ContractError, Terms, ranks_in_words
from .dataflow import Contents, contributions, live
from .figure import GREY, RANK_COLOURS, WRONG, Figure, ink_on, listed
from .schedule import COPY, REDUCE, Schedule, Step, Transfer

if TYPE_CHECKING:  # matplotlib takes half a second to import: only `Drawing.still` pays for it
    from matplotlib.figure import Figure as Picture

    from .calculator import Choice, Slider
    from .gantt import Timelines
    from .training.timeline import Timeline


KINDS = {
    "empty": "nothing yet",
    "own": "its own input",
    "partial": "a part, still needed",
    "finished": "finished",
    "stale": "stale: nobody will read it",
    "wrong": "wrong",
}
"""What a slot's contents can be worth, and how the legend says it."""

MAX_RANKS, MAX_CHUNKS, MAX_STEPS = 16, 64, 128  # beyond these a reader sees nothing any more
SPOKEN_TRANSFERS = 2  # up to so many, each is a full sentence with its outcome


class Frame(NamedTuple):
    """The machine at one moment: before the first step, or after a step.

    `step`: the step that led here, with one chunk a transfer; None before the first. `counts`: int [world_size,
    num_chunks, world_size], how often each slot holds each rank's input. `kinds`: str [world_size, num_chunks], one
    of `KINDS` for each slot.
    """

    step: Step | None
    counts: np.ndarray
    kinds: np.ndarray


def draw(
    schedule: Schedule | Timeline | Timelines | Callable,
    contract: Contract | None = None,
    caption: str | None = None,
    inputs: Sequence[Slider | Choice] = (),
) -> Figure:
    """A figure of `schedule` that a notebook and the book show by themselves.

    A `Timeline` is drawn too, and several of them by title, one above the other on one axis: `gantt` does that. With
    `inputs` it is a function that makes one of them: the reader picks what it is called with (`family`). `contract`:
    what the schedule is judged by; by default the one it names, and nothing is judged if it names none. `caption`: the
    figure's title; by default the schedule's name and size. Raises `ScheduleError` if the schedule cannot be run at all
    and `ValueError` if it is too big to be seen; a broken contract is drawn, not raised.
    """
    if inputs:
        from .family import Family  # only now, as below

        return Family(schedule, inputs, contract, caption)
    if isinstance(schedule, Schedule):
        return Drawing(schedule, contract, caption)
    from .gantt import Gantt  # only now: a chapter on schedules needs none of it

    return Gantt(schedule, caption)


def frames(schedule: Schedule, contract: Contract | None = None) -> list[Frame]:
    """What every slot holds and what it is worth: `num_steps + 1` frames, the first before any step."""
    return _frames(schedule, _terms(schedule, contract), find_fault(schedule, contract))


def _frames(schedule: Schedule, terms: Terms, fault: ContractError | None) -> list[Frame]:
    steps, written, told = [None, *(step.singles for step in schedule)], terms.given.copy(), []
    for step, contents, needed in zip(steps, contributions(schedule), live(schedule, terms.wanted), strict=True):
        if step is not None:
            written[step.dst, step.lands] = True
        told.append(Frame(step, contents.ranks, _kinds(contents, written, needed, terms)))
    if fault is not None:
        told[-1].kinds[fault.wrong] = "wrong"
    return told


def find_fault(schedule: Schedule, contract: Contract | None = None) -> ContractError | None:
    """How `schedule` breaks its contract; None if it keeps it, or has none."""
    contract = contract or contracts.of(schedule)
    try:
        if contract is not None:
            contract.check(schedule)
    except ContractError as fault:
        return fault
    return None


def _terms(schedule: Schedule, contract: Contract | None) -> Terms:
    """The contract's terms; without one, all is given and wanted and no slot is ever finished or wrong."""
    contract = contract or contracts.of(schedule)
    if contract is not None:
        return contract.terms(schedule)
    shape = schedule.world_size, schedule.num_chunks
    everywhere, out_of_reach = np.ones(shape, dtype=bool), np.full((*shape, schedule.world_size), np.inf)
    return Terms(everywhere, everywhere, out_of_reach, np.broadcast_to(np.arange(schedule.num_chunks), shape))


def _kinds(contents: Contents, written: np.ndarray, needed: np.ndarray, terms: Terms) -> np.ndarray:
    """The kind of every slot, str [world_size, num_chunks]: the first of these that is true of it."""
    only_own = np.eye(len(contents.ranks), dtype=int)[:, None, :]
    signs = {
        "empty": ~written,
        "stale": ~needed,  # also when it holds too much: nobody will read that
        "wrong": terms.excess(contents).any(axis=-1),
        "finished": terms.finished(contents),
        "own": (contents.ranks == only_own).all(axis=-1),
    }
    return np.select(list(signs.values()), list(signs), default="partial")


# --- in words ---------------------------------------------------------------------------------------------------


def words(schedule: Schedule, contract: Contract | None = None) -> list[str]:
    """The schedule told in English: what holds before, then a few sentences for each step.

    Steps are numbered from 0, as a printed schedule and a `ContractError` number them. The last text ends with
    whether the contract is kept; if it is not, with the error's own message.
    """
    return draw(schedule, contract).words


def _words(schedule: Schedule, contract: Contract | None, given: np.ndarray, told: list[Frame], fault) -> list[str]:
    texts = [_before(schedule, given)]
    for index, (before, after) in enumerate(pairwise(told)):
        phase = f", {_prose(after.step.phase)}" if after.step.phase else ""
        sentences = [*_moves(after), *_outcomes(before, after)]
        if fault is not None and fault.step == index:
            sentences.append("This is the step that goes wrong.")
        texts.append(f"Step {index} ({index + 1} of {len(told) - 1}){phase}: {' '.join(sentences)}")
    texts[-1] += _verdict(contract or contracts.of(schedule), fault)
    return texts


def _before(schedule: Schedule, given: np.ndarray) -> str:
    """Who holds what at first. `given`: bool [world_size, num_chunks]."""
    chunks = f", cut into {schedule.num_chunks} chunks" if schedule.num_chunks > 1 else " in one chunk"
    holders = np.flatnonzero(given.any(axis=1))
    if given.all():
        return f"Before: every rank holds its own buffer{chunks}."
    if len(holders) == 1:
        return f"Before: only rank {holders[0]} holds data, a buffer{chunks}."
    if given.shape[0] == given.shape[1] and (given == np.eye(len(given), dtype=bool)).all():
        return "Before: every rank holds only the chunk that has its own number."
    return f"Before: every rank holds only its own part of the {schedule.num_chunks} chunks."


def _moves(frame: Frame) -> list[str]:
    """A sentence for the transfers that are added on arrival, and one for those that are copied."""
    transfers = list(frame.step)
    kept_apart = [[t for t in transfers if t.combine == combine] for combine in (REDUCE, COPY)]
    return [_move(alike, frame.counts) for alike in kept_apart if alike]


def _move(transfers: list[Transfer], counts: np.ndarray) -> str:
    """What `transfers`, which all combine alike, do; `counts` is what the slots hold after them."""
    takes = "adds it" if transfers[0].combine == REDUCE else "keeps a copy"
    if len(transfers) <= SPOKEN_TRANSFERS:
        return " ".join(_move_one(transfer, takes, counts) for transfer in transfers)
    shifts = {(t.dst - t.src) % len(counts) for t in transfers}
    if len({chunk for t in transfers for chunk in (t.chunk, t.lands)}) == 1:
        pairs = listed([f"rank {t.src} to rank {t.dst}" for t in transfers])
        return f"Chunk {transfers[0].chunk} goes from {pairs}; each receiver {takes}."
    stay = all(t.lands == t.chunk for t in transfers)
    if stay and len(shifts) == 1 and len(transfers) == len(counts) == len({t.src for t in transfers}):
        shift = shifts.pop()
        neighbours = {1: "the next rank", len(counts) - 1: "the previous rank"}
        to = neighbours.get(shift, f"the rank {shift} further on")
        sends = listed([f"rank {t.src} chunk {t.chunk}" for t in transfers])
        return f"Every rank sends one chunk to {to}, which {takes} ({sends})."
    lands = "added" if transfers[0].combine == REDUCE else "copied"
    if any(t.lands != t.chunk for t in transfers):
        routes = listed(
            [f"chunk {t.chunk} of rank {t.src} into chunk {t.lands} of rank {t.dst}" for t in transfers], ", "
        )
        return f"{len(transfers)} chunks move and are {lands} where they land: {routes}."
    return f"{len(transfers)} chunks move and are {lands} where they land: {_routes(transfers)}."


def _move_one(transfer: Transfer, takes: str, counts: np.ndarray) -> str:
    now = ranks_in_words(counts[transfer.dst, transfer.lands] > 0)
    outcome = f" and now holds {now}" if transfer.combine == REDUCE else ""
    place = f" as its chunk {transfer.lands}" if transfer.lands != transfer.chunk else ""
    return f"Rank {transfer.src} sends chunk {transfer.chunk} to rank {transfer.dst}, which {takes}{place}{outcome}."


def _routes(transfers: list[Transfer]) -> str:
    """ "chunks 2 and 3 from rank 0 to rank 1, chunk 0 from rank 1 to rank 0"."""
    chunks = defaultdict(list)
    for t in transfers:
        chunks[t.src, t.dst].append(str(t.chunk))
    return listed(
        [
            f"chunk{'s' if len(moved) > 1 else ''} {listed(moved)} from rank {src} to rank {dst}"
            for (src, dst), moved in chunks.items()
        ],
        last=", ",
    )


def _outcomes(before: Frame, after: Frame) -> list[str]:
    """What the step changed for the slots: how big the sums are, and what is now finished, stale or wrong."""
    sentences, adds = [], after.step.reduces
    arrived = after.step.dst[adds], after.step.lands[adds]
    sizes = set((after.counts[arrived] > 0).sum(axis=-1).tolist())
    if adds.sum() > SPOKEN_TRANSFERS and len(sizes) == 1 and (after.counts[arrived] <= 1).all():
        size = sizes.pop()
        sentences.append(f"Each sum is now of {'all ' if size == len(after.counts) else ''}{size} ranks.")
    new = [_newly(kind, before, after) for kind in ("finished", "stale", "wrong")]
    if any(new):
        sentences.append(f"Now {listed([text for text in new if text])}.")
    return sentences


def _newly(kind: str, before: Frame, after: Frame) -> str:
    """Which slots have become `kind`: "chunk 0 on rank 4 is stale", "8 more slots are finished", or nothing."""
    new = (after.kinds == kind) & (before.kinds != kind)
    if new.sum() > SPOKEN_TRANSFERS:
        return f"{new.sum()} more slots are {kind}"
    slots = [f"chunk {chunk} on rank {rank}" for rank, chunk in np.argwhere(new)]
    return f"{listed(slots)} {'is' if len(slots) == 1 else 'are'} {kind}" if slots else ""


def _verdict(contract: Contract | None, fault: ContractError | None) -> str:
    if fault is not None:
        return f" Wrong: {fault}"
    return f" Done: {_prose(contract.name)} keeps its promise." if contract else ""


def _prose(name: str) -> str:
    return name.replace("_", "-")


# --- the figure -------------------------------------------------------------------------------------------------


class Drawing(Figure):
    """What `draw` returns for a schedule."""

    picture = "schedule"

    def __init__(self, schedule: Schedule, contract: Contract | None = None, caption: str | None = None):
        _refuse_if_too_big(schedule)
        schedule.validate()
        self.schedule = schedule
        terms, self.fault = _terms(schedule, contract), find_fault(schedule, contract)
        self.frames = _frames(schedule, terms, self.fault)
        self.words = _words(schedule, contract, terms.given, self.frames, self.fault)
        self.caption = caption or _title(schedule)

    def data(self) -> dict:
        """What the player shows, as plain data. A slot is a letter and digits: "p03" is a partial sum of 0 and 3.

        The letter is the kind's first, the digits are ranks in hexadecimal, and one that is held more than once is
        written twice. Slots are numbered rank x num_chunks + chunk. `first` is every slot before the first step; each
        step has its transfers [src, dst, chunk, adds, lane, goes wrong, into] and the slots that it changed. `alarms`
        are the frames that a broken contract marks: the one after the step that did it, and the last.
        """
        slots = [_slot_texts(frame) for frame in self.frames]
        steps = []
        for index, (before, after) in enumerate(pairwise(slots), start=1):
            step = self.frames[index].step
            moves = [
                [t.src, t.dst, t.chunk, int(t.combine == REDUCE), lane, int(self.blames(index, t)), t.lands]
                for t, lane in zip(step, _lanes(step), strict=True)
            ]
            changed = {slot: new for slot, new in enumerate(after) if new != before[slot]}
            steps.append({"moves": moves, "changed": changed})
        ranks = self.schedule.world_size
        return {
            "ranks": ranks,
            "chunks": self.schedule.num_chunks,
            "places": (places := _places(self.frames)),
            "columns": _columns(places),
            "colours": [[colour, ink_on(colour)] for colour in RANK_COLOURS[:ranks]],
            "kinds": {kind[0]: text for kind, text in KINDS.items() if self._occurs(kind)},
            "alarms": [index for index in range(len(slots)) if self.alarms(index)],
            "first": slots[0],
            "steps": steps,
        }

    def goes_wrong(self, index: int) -> bool:
        """Whether frame `index` comes after the very step that the contract's error names."""
        return self.fault is not None and self.fault.step == index - 1

    def alarms(self, index: int) -> bool:
        """Whether frame `index` is one to look at: the step that goes wrong, or the wrong end."""
        return self.goes_wrong(index) or (self.fault is not None and index == len(self.frames) - 1)

    def blames(self, index: int, transfer: Transfer) -> bool:
        """Whether `transfer`, of the step that led to frame `index`, is what goes wrong."""
        spoils = self.frames[index].kinds[transfer.dst, transfer.lands] == "wrong"
        return self.goes_wrong(index) and bool(spoils or transfer.lands == self.fault.chunk)

    def _occurs(self, kind: str) -> bool:
        return any((frame.kinds == kind).any() for frame in self.frames)

    def still(self) -> Picture:
        """A matplotlib figure with a small picture for each step; for a big schedule, of a few spread over it."""
        return Still(self).figure()

    def still_svg(self) -> str:
        """As `Figure.still_svg`."""
        import matplotlib as mpl

        out = StringIO()
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "collectives", "path.simplify": False}):
            self.still().savefig(out, format="svg", transparent=True, metadata={"Date": None})
        return _slim(out.getvalue(), f"{self.caption}: its steps as small pictures")


def _title(schedule: Schedule) -> str:
    name = _prose(schedule.name)
    return f"{name[:1].upper()}{name[1:]}, {schedule.world_size} ranks"


def _refuse_if_too_big(schedule: Schedule) -> None:
    limits = {"ranks": (schedule.world_size, MAX_RANKS), "chunks": (schedule.num_chunks, MAX_CHUNKS)}
    if all(size <= limit for size, limit in limits.values()):  # only then: counting the steps of millions takes time
        limits["steps"] = sum(1 for _ in islice(schedule, MAX_STEPS + 1)), MAX_STEPS
    for what, (size, limit) in limits.items():
        if size > limit:
            raise ValueError(
                f"{schedule.name} is too big to draw: at most {limit} {what} can be seen. "
                "Draw the same algorithm on fewer ranks, or print(schedule) for its first steps."
            )


def _slot_texts(frame: Frame) -> list[str]:
    """Every slot of a frame as `Drawing.data` writes it, in the order of their numbers."""
    texts = []
    for kind, counts in zip(frame.kinds.ravel(), frame.counts.reshape(-1, frame.counts.shape[-1]), strict=True):
        holds = "".join(f"{rank:x}" * min(count, 2) for rank, count in enumerate(counts))
        texts.append(kind[0] + ("" if kind == "empty" else holds))
    return texts


def _places(told: list[Frame]) -> int:
    """How many pips a cell has room for: a place for each rank, or one if no slot ever holds more than one."""
    return told[0].counts.shape[0] if any((f.counts.sum(axis=-1) > 1).any() for f in told) else 1


def _columns(places: int) -> int:
    """How many pips a cell has side by side: at most four, in rows as full as can be."""
    rows = -(-places // 4)
    return -(-places // rows)


def _lanes(step: Step) -> list[int]:
    """Above its row of cells, the lane that each transfer runs in: 0 for neighbours, and from one row to another.

    Transfers of one chunk that pass over the same ranks get lanes of their own, the shortest the lowest.
    """
    lanes, taken = [0] * len(step), defaultdict(list)
    by_length = sorted(enumerate(step), key=lambda item: abs(item[1].src - item[1].dst))
    for index, t in by_length:
        left, right = sorted((t.src, t.dst))
        if right - left > 1 and t.lands == t.chunk:
            lane = 1
            while any(left < other[1] and other[0] < right for other in taken[t.chunk, lane]):
                lane += 1
            taken[t.chunk, lane].append((left, right))
            lanes[index] = lane
    return lanes


# --- the still --------------------------------------------------------------------------------------------------

INK = "#010203"  # stands for the page's text colour until the SVG is written
PIP = 6  # points; all that follows is in points
GAP, PANEL_GAP, HEADING = 9, 26, 26
PAGE_WIDTH = 640


class Still:
    """Draws the small panels. All lines of one look become one path, which keeps the SVG small."""

    def __init__(self, drawing: Drawing):
        self.drawing = drawing
        self.ranks, self.chunks = drawing.schedule.world_size, drawing.schedule.num_chunks
        self.places = _places(drawing.frames)
        self.columns = _columns(self.places)
        self.cell = self.columns * PIP + 4, -(-self.places // self.columns) * PIP + 4  # width, height
        most = max([0, *(lane for f in drawing.frames[1:] for lane in _lanes(f.step))])
        self.pitch = (
            self.cell[0] + GAP,
            self.cell[1] + 4 + 4 * most,
        )  # from one cell to the next: across, down
        self.panel = self.ranks * self.pitch[0] - GAP, HEADING + self.chunks * self.pitch[1]
        self.lines = defaultdict(list)  # look -> polylines, each a list of points
        self.texts = []  # (x, y, text, colour, bold)

    def figure(self) -> Picture:
        shown = self.shown()
        across = max(1, min(len(shown), (PAGE_WIDTH + PANEL_GAP) // (self.panel[0] + PANEL_GAP)))
        down = -(-len(shown) // across)
        for position, index in enumerate(shown):
            row, column = divmod(position, across)
            self.draw_panel(index, column * (self.panel[0] + PANEL_GAP) + 14, row * (self.panel[1] + 12))
        return self.to_matplotlib(
            across * (self.panel[0] + PANEL_GAP) - PANEL_GAP + 16, down * (self.panel[1] + 12) - 10
        )

    def shown(self) -> list[int]:
        """Which frames get a panel: all of a small schedule, else the first, the last, the fault and some between."""
        last = len(self.drawing.frames) - 1
        most = 9 if self.ranks <= 6 and self.chunks <= 16 else 6 if self.ranks <= 8 and self.chunks <= 16 else 3
        spread = np.linspace(0, last, min(most, last + 1)).round().astype(int).tolist()
        return sorted({*spread, *filter(self.drawing.alarms, range(last + 1))})

    def draw_panel(self, index: int, left: float, top: float) -> None:
        frame, guilty = self.drawing.frames[index], self.drawing.goes_wrong(index)
        title = f"step {index - 1}{': goes wrong' if guilty else ''}" if index else "before"
        self.texts.append((left + self.panel[0] / 2, top + 6, title, WRONG if guilty else INK, True))
        for rank in range(self.ranks):
            x = left + rank * self.pitch[0] + self.cell[0] / 2
            self.texts.append((x, top + 17, str(rank), INK, False))
        for chunk in range(self.chunks):
            self.texts.append((left - 8, self.y(top, chunk) + self.cell[1] / 2, str(chunk), INK, False))
            for rank in range(self.ranks):
                corner = left + rank * self.pitch[0], self.y(top, chunk)
                self.draw_cell(*corner, frame.kinds[rank, chunk], frame.counts[rank, chunk])
        if frame.step is not None:
            for t, lane in zip(frame.step, _lanes(frame.step), strict=True):
                colour = WRONG if self.drawing.blames(index, t) else INK
                if t.lands == t.chunk:
                    self.draw_arrow(t, lane, left, self.y(top, t.chunk), colour)
                else:
                    self.draw_across(t, left, top, colour)

    def y(self, top: float, chunk: int) -> float:
        return top + HEADING + chunk * self.pitch[1] + (self.pitch[1] - self.cell[1])

    def draw_cell(self, x: float, y: float, kind: str, counts: np.ndarray) -> None:
        width, height = self.cell
        outline = [(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)]
        self.lines[OUTLINES[kind]].append(outline)
        if kind == "stale":
            self.lines[OUTLINES[kind]].append([(x, y + height), (x + width, y)])
        if kind == "wrong":
            self.texts.append((x + width + 3, y + 2, "!", WRONG, True))
        if kind == "empty" or (kind == "finished" and self.ranks > 8):  # 16 pips in each of 256 cells show nothing
            return
        for rank in np.flatnonzero(counts):
            row, column = divmod(int(rank) % self.places, self.columns)
            start, middle = x + 2.5 + column * PIP, y + 2 + row * PIP + PIP / 2
            look = RANK_COLOURS[rank], PIP - 1, 0.35 if kind == "stale" else 1, "-"
            self.lines[look].append([(start, middle), (start + PIP - 1, middle)])

    def draw_arrow(self, transfer: Transfer, lane: int, left: float, y: float, colour: str) -> None:
        """Straight into a neighbour's side; further away, up, along the lane and down into the cell from above."""
        width, height = self.cell
        way = 1 if transfer.dst > transfer.src else -1
        start, end = (left + rank * self.pitch[0] + width / 2 for rank in (transfer.src, transfer.dst))
        if lane:
            start, end, up = start + way * width * 0.15, end - way * width * 0.35, y - 4 * lane
            self.lines[colour, 0.8, 1, "-"].append([(start, y), (start, up), (end, up), (end, y)])
            head = [(end - 2, y - 3), (end, y), (end + 2, y - 3)]
        else:
            middle, tip = y + height * (0.5 - 0.2 * way), end - way * width / 2
            self.lines[colour, 0.8, 1, "-"].append([(start + way * width / 2, middle), (tip, middle)])
            head = [(tip - 3 * way, middle - 2), (tip, middle), (tip - 3 * way, middle + 2)]
        self.lines[colour, 1.2, 1, "-"].append(head)

    def draw_across(self, transfer: Transfer, left: float, top: float, colour: str) -> None:
        """From one row to another: straight, a little to the right of the middle, so that two ways stay apart."""
        width, height = self.cell
        ends = (transfer.src, transfer.chunk), (transfer.dst, transfer.lands)
        start, end = (
            np.array([left + rank * self.pitch[0] + width / 2, self.y(top, chunk) + height / 2]) for rank, chunk in ends
        )
        along = (end - start) / np.hypot(*(end - start))
        aside = np.array([-along[1], along[0]])
        start, end = (point + 2 * aside for point in (start + along * height / 2, end - along * height / 2))
        self.lines[colour, 0.8, 1, "-"].append([start, end])
        self.lines[colour, 1.2, 1, "-"].append([end - 3 * along + 2 * aside, end, end - 3 * along - 2 * aside])

    def to_matplotlib(self, width: float, height: float) -> Picture:
        from matplotlib.figure import Figure
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        figure = Figure(figsize=(width / 72, height / 72))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        for (colour, thickness, alpha, dashes), polylines in self.lines.items():
            path = Path.make_compound_path(*map(Path, polylines))
            look = {"edgecolor": colour, "linewidth": thickness, "alpha": alpha, "linestyle": dashes}
            axes.add_patch(PathPatch(path, fill=False, capstyle="butt", joinstyle="miter", clip_on=False, **look))
        for x, y, text, colour, bold in self.texts:
            weight = "bold" if bold else "normal"
            axes.text(x, y, text, color=colour, size=8, weight=weight, ha="center", va="center", clip_on=False)
        return figure


OUTLINES = {  # (colour, thickness, alpha, dashes) of a cell's outline
    "empty": (INK, 0.7, 0.9, ":"),
    "own": (INK, 0.6, 0.8, "-"),
    "partial": (INK, 0.6, 0.8, "-"),
    "finished": (INK, 1.6, 1, "-"),
    "stale": (INK, 0.6, 0.5, "-"),
    "wrong": (WRONG, 1.8, 1, "-"),
}


def _slim(svg: str, label: str) -> str:
    """matplotlib's SVG with only what a page needs: no header, no ids (they would clash), short texts and paths."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>.*?</defs>|<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r' (?:id|xmlns:xlink|width|height|version|transform)="[^"]*"', "", svg)
    svg = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), svg)
    svg = re.sub(r' d="([^"]*)"', lambda path: f' d="{_short_path(path[1])}"', svg)
    svg = re.sub(r'<path [^>]*style="fill: none"/>|</?g>|; stroke-linejoin: miter|; stroke-dashoffset: 0', "", svg)
    svg = re.sub(r"font-size: 8px[^\"]*?; text-anchor: middle(; )?", "", svg).replace(f"fill: {INK}", "")
    svg = re.sub(r"\s*\n\s*", " ", svg).replace(INK, "currentColor").replace("> <", "><")
    svg = re.sub(r"([;:]) +", r"\1", svg).replace(' style=""', "").replace(";;", ";").replace(';"', '"')
    size = '{2}" height="{3}'.format(*re.search(r'viewBox="([^"]*)"', svg)[1].split())
    look = f'font-family="sans-serif" font-size="8" text-anchor="middle" fill="currentColor" color="{GREY}"'
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}" width="{size}" {look}', 1).strip()


def _short_path(path: str) -> str:
    """The same lines with H and V where only x or only y changes: "M 1 2 L 5 2" becomes "M1 2H5"."""
    short, at = "", (None, None)
    for command, x, y in re.findall(r"([ML]) (\S+) (\S+)", path):
        if command == "M" or (x != at[0] and y != at[1]):
            short += f"{command}{x} {y}"
        elif (x, y) != at:
            short += f"H{x}" if y == at[1] else f"V{y}"
        at = x, y
    return short
