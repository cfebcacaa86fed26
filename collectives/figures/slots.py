"""A schedule as a figure to step through on a web page or in a notebook, and as a still picture on paper.

`frames` gives what every slot holds after every step, and its *kind*, the state of those contents. `words` describes
each step. `draw` puts both into one piece of HTML. The player (`static/player.js`) knows ranks, chunks and kinds, but
no algorithm. A schedule that breaks its contract is drawn too, with the contract's message and the failing step marked,
so that you can look for the mistake.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .. import contracts
from ..contracts import Contract, ContractError, Terms, ranks_in_words
from ..dataflow import Contents, contributions, live
from ..formats.address import to_fragment
from ..schedule import COPY, REDUCE, Schedule, Step, Transfer
from .colours import RANK_COLOURS, ink_on
from .player import Figure, capital, listed
from .still import Still, columns, lanes, places

if TYPE_CHECKING:  # matplotlib takes half a second to import: only `Drawing.still` pays for it
    from matplotlib.figure import Figure as Picture


KINDS = {
    "empty": "nothing yet",
    "own": "its own input",
    "partial": "partial, still needed",
    "finished": "finished",
    "stale": "stale: no rank will read it",
    "wrong": "wrong",
}
"""The kinds of a slot's contents, each with its text in the legend."""

MAX_RANKS, MAX_CHUNKS, MAX_STEPS = 16, 64, 128  # larger figures are unreadable
SPOKEN_TRANSFERS = 2  # up to 2 transfers get a full sentence each, with the outcome


class Frame(NamedTuple):
    """The state of all slots before the first step, or after a step.

    `step`: the step that led here, with one chunk for each transfer; None before the first step. `counts`: int
    [world_size, num_chunks, world_size], how often each slot holds each rank's input. `kinds`: str [world_size,
    num_chunks], one of `KINDS` for each slot.
    """

    step: Step | None
    counts: np.ndarray
    kinds: np.ndarray


def frames(schedule: Schedule, contract: Contract | None = None) -> list[Frame]:
    """Return `num_steps + 1` frames, the contents and kinds of all slots: one before the first step, one after each."""
    return _frames(schedule, _terms(schedule, contract), find_fault(schedule, contract))


def _frames(schedule: Schedule, terms: Terms, fault: ContractError | None) -> list[Frame]:
    steps, written, result = [None, *(step.singles for step in schedule)], terms.given.copy(), []
    for step, contents, needed in zip(steps, contributions(schedule), live(schedule, terms.wanted), strict=True):
        if step is not None:
            written[step.dst, step.lands] = True
        result.append(Frame(step, contents.ranks, _kinds(contents, written, needed, terms)))
    if fault is not None:
        result[-1].kinds[fault.wrong] = "wrong"
    return result


def find_fault(schedule: Schedule, contract: Contract | None = None) -> ContractError | None:
    """Return the error of a schedule that breaks its contract; None if it meets the contract or has none."""
    contract = contract or contracts.of(schedule)
    try:
        if contract is not None:
            contract.check(schedule)
    except ContractError as fault:
        return fault
    return None


def _terms(schedule: Schedule, contract: Contract | None) -> Terms:
    """Return the contract's terms. Without a contract, all slots are given and wanted; none is finished or wrong."""
    contract = contract or contracts.of(schedule)
    if contract is not None:
        return contract.terms(schedule)
    shape = schedule.world_size, schedule.num_chunks
    everywhere, out_of_reach = np.ones(shape, dtype=bool), np.full((*shape, schedule.world_size), np.inf)
    return Terms(everywhere, everywhere, out_of_reach, np.broadcast_to(np.arange(schedule.num_chunks), shape))


def _kinds(contents: Contents, written: np.ndarray, needed: np.ndarray, terms: Terms) -> np.ndarray:
    """Return the kind of every slot, str [world_size, num_chunks]: the first of `signs` that is true of it."""
    only_own = np.eye(len(contents.ranks), dtype=int)[:, None, :]
    signs = {
        "empty": ~written,
        "stale": ~needed,  # even if it holds too much, because no rank will read it
        "wrong": terms.excess(contents).any(axis=-1),
        "finished": terms.finished(contents),
        "own": (contents.ranks == only_own).all(axis=-1),
    }
    return np.select(list(signs.values()), list(signs), default="partial")


# --- in words ---------------------------------------------------------------------------------------------------


def words(schedule: Schedule, contract: Contract | None = None) -> list[str]:
    """Return the schedule in English: a text for the initial state, then one for each step.

    Steps are numbered from 0, as in a printed schedule and in a `ContractError`. The last text says whether the
    schedule meets its contract; if it doesn't, the text ends with the error's message.
    """
    return Drawing(schedule, contract).words


def _words(schedule: Schedule, contract: Contract | None, given: np.ndarray, told: list[Frame], fault) -> list[str]:
    texts = [_before(schedule, given)]
    for index, (before, after) in enumerate(pairwise(told)):
        step = after.step
        assert step is not None  # only the first frame has no step
        phase = f", {_prose(step.phase)}" if step.phase else ""
        sentences = [*_moves(step, after.counts), *_outcomes(step, before, after)]
        if fault is not None and fault.step == index:
            sentences.append("This is the step that goes wrong.")
        texts.append(f"Step {index} ({index + 1} of {len(told) - 1}){phase}: {' '.join(sentences)}")
    texts[-1] += _verdict(contract or contracts.of(schedule), fault)
    return texts


def _before(schedule: Schedule, given: np.ndarray) -> str:
    """Return a sentence about what each rank holds at first. `given`: bool [world_size, num_chunks]."""
    chunks = f", cut into {schedule.num_chunks} chunks" if schedule.num_chunks > 1 else " in one chunk"
    holders = np.flatnonzero(given.any(axis=1))
    if given.all():
        return f"Before: every rank holds its own buffer{chunks}."
    if len(holders) == 1:
        return f"Before: only rank {holders[0]} holds data, a buffer{chunks}."
    if given.shape[0] == given.shape[1] and (given == np.eye(len(given), dtype=bool)).all():
        return "Before: every rank holds only the chunk with its own number."
    return f"Before: every rank holds only its own part of the {schedule.num_chunks} chunks."


def _moves(step: Step, counts: np.ndarray) -> list[str]:
    """Return a sentence for the transfers that are added on arrival, and one for those that are copied."""
    by_combine = [[t for t in step if t.combine == combine] for combine in (REDUCE, COPY)]
    return [_move(transfers, counts) for transfers in by_combine if transfers]


def _move(transfers: list[Transfer], counts: np.ndarray) -> str:
    """Return a sentence for `transfers` that all combine alike. `counts`: what the slots hold after them."""
    takes = "adds it" if transfers[0].combine == REDUCE else "keeps a copy"
    if len(transfers) <= SPOKEN_TRANSFERS:
        return " ".join(_move_one(transfer, takes, counts) for transfer in transfers)
    if len({chunk for t in transfers for chunk in (t.chunk, t.lands)}) == 1:
        pairs = listed([f"rank {t.src} to rank {t.dst}" for t in transfers])
        return f"Chunk {transfers[0].chunk} goes from {pairs}; each receiver {takes}."
    if lead := _all_alike(transfers, len(counts)):
        return f"{lead}: {_chunks(transfers)}."
    combined = "added" if transfers[0].combine == REDUCE else "copied"
    return f"{len(transfers)} chunks move and are {combined} on arrival: {_routes(transfers)}."


def _move_one(transfer: Transfer, takes: str, counts: np.ndarray) -> str:
    now = ranks_in_words(counts[transfer.dst, transfer.lands] > 0)
    outcome = f" and now holds {now}" if transfer.combine == REDUCE else ""
    place = f" as its chunk {transfer.lands}" if transfer.lands != transfer.chunk else ""
    return f"Rank {transfer.src} sends chunk {transfer.chunk} to rank {transfer.dst}, which {takes}{place}{outcome}."


def _all_alike(transfers: list[Transfer], world_size: int) -> str:
    """Return what every rank does, without a full stop, or "" if not all ranks do the same."""
    pairs, sizes = {(t.src, t.dst) for t in transfers}, {*Counter(t.src for t in transfers).values()}
    adds, size = transfers[0].combine == REDUCE, len(transfers) // world_size
    shifts = sorted({(dst - src) % world_size for src, dst in pairs})
    if len(pairs) == len(transfers) == world_size * len(shifts) > world_size:
        whom = f"each of the ranks that are {listed([str(shift) for shift in shifts])} places ahead"
        ahead = shifts[0]
        if shifts == [ahead, world_size - ahead]:
            whom = f"the rank {ahead} places ahead and one to the rank {ahead} places behind"
        if shifts == [1, world_size - 1]:
            whom = "each neighbour"
        if len(shifts) == world_size - 1:
            whom = "each of the other ranks"
        told = f"Every rank sends one chunk to {whom}; each receiver {'adds what it gets' if adds else 'keeps copies'}"
        return told if _rule(transfers) else ""  # a list would leave open which chunk goes to whom
    if sizes != {size} or not len(pairs) == len({src for src, _ in pairs}) == len({dst for _, dst in pairs}):
        return ""
    chunks, them = (f"{size} chunks", "them") if size > 1 else ("one chunk", "it")
    if all((dst, src) in pairs for src, dst in pairs):
        swaps = listed([f"{src} with {dst}" for src, dst in sorted(pairs) if src < dst])
        return f"Every rank swaps {chunks} with a partner ({swaps}) and {'adds' if adds else 'keeps'} what it gets"
    takes = f"adds {them}" if adds else "keeps copies" if size > 1 else "keeps a copy"
    partner = _partner(pairs, world_size)
    return f"Every rank sends {chunks} to {partner}, which {takes}" if partner else ""


def _partner(pairs: set[tuple[int, int]], world_size: int) -> str:
    """Return to whom each rank sends if `pairs` are (src, dst), such as "the next rank in its group of 4", or ""."""
    for group in (world_size, *(size for size in range(2, world_size) if world_size % size == 0)):
        shifts = {(dst - src) % group for src, dst in pairs}
        if len(shifts) == 1 and all(src // group == dst // group for src, dst in pairs):
            shift = shifts.pop()
            rank = {1: "the next rank", group - 1: "the previous rank"}.get(shift, f"the rank {shift} places ahead")
            return rank if group == world_size else f"{rank} in its group of {group}"
    return ""


def _chunks(transfers: list[Transfer]) -> str:
    """Return which chunks they are, by a rule if there is one: "chunks 4 to 7 from each of ranks 0 to 3"."""
    if rule := _rule(transfers):
        return rule
    if any(t.lands != t.chunk for t in transfers):
        moved = [f"chunk {t.chunk} of rank {t.src} as chunk {t.lands} of rank {t.dst}" for t in transfers]
        return listed(moved, last=", ")
    sent, senders = defaultdict(list), defaultdict(list)
    for t in transfers:
        sent[t.src].append(t.chunk)
    for src, chunks in sent.items():
        senders[tuple(chunks)].append(src)
    many = {True: "each of ", False: ""}
    moved = [
        f"{_span('chunk', chunks)} from {many[len(ranks) > 1]}{_span('rank', ranks)}"
        for chunks, ranks in senders.items()
    ]
    return listed(moved, last=", ")


def _rule(transfers: list[Transfer]) -> str:
    """Return by which rule a transfer's chunk follows from its ranks, or ""."""
    if all((t.chunk, t.lands) == (t.dst, t.src) for t in transfers):
        return "the chunk with the receiver's number, which becomes the chunk with the sender's number"
    if all(t.chunk == t.lands == t.src for t in transfers):
        return "the chunk with the sender's number"
    if all(t.chunk == t.lands == t.dst for t in transfers):
        return "the chunk with the receiver's number"
    return ""


def _span(noun: str, numbers: Sequence[int]) -> str:
    """Return "chunk 2", "chunks 2 and 5" or "chunks 2 to 5"."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    in_a_row = len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"{noun}s {f'{numbers[0]} to {numbers[-1]}' if in_a_row else listed([str(number) for number in numbers])}"


def _routes(transfers: list[Transfer]) -> str:
    """Return a list such as "chunks 2 and 3 from rank 0 to rank 1, chunk 0 from rank 1 to rank 0"."""
    if any(t.lands != t.chunk for t in transfers):
        return _chunks(transfers)
    chunks = defaultdict(list)
    for t in transfers:
        chunks[t.src, t.dst].append(t.chunk)
    routes = [f"{_span('chunk', moved)} from rank {src} to rank {dst}" for (src, dst), moved in chunks.items()]
    return listed(routes, last=", ")


def _outcomes(step: Step, before: Frame, after: Frame) -> list[str]:
    """Return sentences about what the step changed: the size of the sums, and slots now finished, stale or wrong."""
    sentences, adds = [], step.reduces
    arrived = step.dst[adds], step.lands[adds]
    sizes = set((after.counts[arrived] > 0).sum(axis=-1).tolist())
    if adds.sum() > SPOKEN_TRANSFERS and len(sizes) == 1 and (after.counts[arrived] <= 1).all():
        size = sizes.pop()
        sentences.append(f"Each sum now covers {'all ' if size == len(after.counts) else ''}{size} ranks.")
    new = [_newly(kind, before, after) for kind in ("finished", "stale", "wrong")]
    if any(new):
        sentences.append(f"Now {listed([text for text in new if text])}.")
    return sentences


def _newly(kind: str, before: Frame, after: Frame) -> str:
    """Return which slots became `kind`: "chunk 0 on rank 4 is stale", "8 more slots are finished", or ""."""
    new = (after.kinds == kind) & (before.kinds != kind)
    if new.sum() > SPOKEN_TRANSFERS:
        return f"{new.sum()} {'more ' if (before.kinds == kind).any() else ''}slots are {kind}"
    slots = [f"chunk {chunk} on rank {rank}" for rank, chunk in np.argwhere(new)]
    return f"{listed(slots)} {'is' if len(slots) == 1 else 'are'} {kind}" if slots else ""


def _verdict(contract: Contract | None, fault: ContractError | None) -> str:
    if fault is not None:
        return f" Wrong: {fault}"
    return f" Done: the schedule meets the {_prose(contract.name)} contract." if contract else ""


def _prose(name: str) -> str:
    return name.replace("_", "-")


# --- the figure -------------------------------------------------------------------------------------------------


class Drawing(Figure):
    """What `draw` returns for a schedule."""

    picture = "schedule"

    def __init__(self, schedule: Schedule, contract: Contract | None = None, caption: str | None = None):
        _refuse_if_too_big(schedule)
        schedule.validate()
        self.schedule, self.contract = schedule, contract or contracts.of(schedule)
        terms, self.fault = _terms(schedule, contract), find_fault(schedule, contract)
        self.frames = _frames(schedule, terms, self.fault)
        self.words = _words(schedule, contract, terms.given, self.frames, self.fault)
        self.caption = caption or _title(schedule)

    def data(self) -> dict:
        """Return what the player shows, as plain data. A slot is a string: "p03" is a partial sum of ranks 0 and 3.

        The letter is the first of the slot's kind. The digits are ranks in hexadecimal; a rank held more than once
        appears twice. Slots are numbered rank x num_chunks + chunk. `first` is every slot before the first step. Each
        step has its transfers [src, dst, chunk, adds, lane, goes wrong, into] and the slots that it changed. `alarms`
        are the frames that a broken contract marks: the one after the failing step, and the last. `lab`: the fragment
        of the address that opens the schedule in the Lab, unless it is too big for it.
        """
        slots = [_slot_texts(frame) for frame in self.frames]
        steps = []
        for index, (before, after) in enumerate(pairwise(slots), start=1):
            step = self.frames[index].step
            assert step is not None  # only the first frame has no step
            moves = [
                [t.src, t.dst, t.chunk, int(t.combine == REDUCE), lane, int(self.blames(index, t)), t.lands]
                for t, lane in zip(step, lanes(step), strict=True)
            ]
            changed = {slot: new for slot, new in enumerate(after) if new != before[slot]}
            steps.append({"moves": moves, "changed": changed})
        ranks = self.schedule.world_size
        return {
            "ranks": ranks,
            "chunks": self.schedule.num_chunks,
            "places": places(self.frames),
            "columns": columns(places(self.frames)),
            "colours": [[colour, ink_on(colour)] for colour in RANK_COLOURS[:ranks]],
            "kinds": {kind[0]: text for kind, text in KINDS.items() if self._occurs(kind)},
            "alarms": [index for index in range(len(slots)) if self.alarms(index)],
            "first": slots[0],
            "steps": steps,
        } | self._lab()

    def _lab(self) -> dict[str, str]:
        try:
            collective = None if self.contract is None else self.contract.name
            return {"lab": to_fragment(replace(self.schedule, collective=collective))}
        except ValueError:
            return {}

    def goes_wrong(self, index: int) -> bool:
        """Return whether frame `index` is the one after the step that the contract's error names."""
        return self.fault is not None and self.fault.step == index - 1

    def alarms(self, index: int) -> bool:
        """Return whether frame `index` is marked: after the step that goes wrong, or at the wrong end."""
        return self.goes_wrong(index) or (self.fault is not None and index == len(self.frames) - 1)

    def blames(self, index: int, transfer: Transfer) -> bool:
        """Return whether `transfer`, in the step that led to frame `index`, goes wrong."""
        spoils = self.frames[index].kinds[transfer.dst, transfer.lands] == "wrong"
        return self.fault is not None and self.goes_wrong(index) and bool(spoils or transfer.lands == self.fault.chunk)

    def _occurs(self, kind: str) -> bool:
        return any((frame.kinds == kind).any() for frame in self.frames)

    def still(self) -> Picture:
        """Return a matplotlib figure with a small picture for each step, or for some steps of a big schedule."""
        return Still(self).figure()

    def still_svg(self) -> str:
        """As `Figure.still_svg`."""
        return Still(self).svg()


def _title(schedule: Schedule) -> str:
    name = _prose(schedule.name)
    return f"{capital(name)}, {schedule.world_size} ranks"


def _refuse_if_too_big(schedule: Schedule) -> None:
    limits = {"ranks": (schedule.world_size, MAX_RANKS), "chunks": (schedule.num_chunks, MAX_CHUNKS)}
    # Count the steps only if ranks and chunks pass: building the steps of a huge schedule takes time.
    if all(size <= limit for size, limit in limits.values()):
        limits["steps"] = sum(1 for _ in islice(schedule, MAX_STEPS + 1)), MAX_STEPS
    for what, (size, limit) in limits.items():
        if size > limit:
            raise ValueError(
                f"{schedule.name} is too big to draw: at most {limit} {what} are readable. "
                "Draw the same algorithm on fewer ranks, or print(schedule) for its first steps."
            )


def _slot_texts(frame: Frame) -> list[str]:
    """Return every slot of a frame as `Drawing.data` writes it, in order of the slots' numbers."""
    texts = []
    for kind, counts in zip(frame.kinds.ravel(), frame.counts.reshape(-1, frame.counts.shape[-1]), strict=True):
        holds = "".join(f"{rank:x}" * min(count, 2) for rank, count in enumerate(counts))
        texts.append(kind[0] + ("" if kind == "empty" else holds))
    return texts
