"""A collective as data: steps of transfers, each moving chunks from one rank to another.

Every rank holds one buffer, cut into `num_chunks` chunks that have the same numbers on all ranks. The pair
(rank, chunk) is a **slot**. A transfer sends the slot (src, chunk) and copies it into, or adds it to, the slot
(dst, chunk). With `into`, it writes another chunk of `dst` instead. One transfer is one message; it may carry several
adjacent chunks.

All transfers of a step read the state *before* the step, so their order doesn't affect the result. It does affect the
time: a rank that sends several messages in a step sends them in that order.

This module only describes schedules. `simulate`, `execute`, `price` and `draw` each read this data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from operator import index
from typing import NamedTuple

import numpy as np

COPY, REDUCE = "copy", "reduce"
WHEREVER = {"all_reduce", "broadcast", "reduce", "barrier"}  # collectives whose chunks belong to no particular rank

PRINTED_STEPS = 64  # a schedule may have thousands of steps; printing shows the first 64
PRINTED_TRANSFERS = 32  # of each step

NO_STEPS = "no steps: nothing has to move"
HEAD = re.compile(r"step (\d{1,6}):")
TRANSFER = re.compile(
    r"(\d{1,6})(?:-(\d{1,6}))?:(\d{1,6})(?:→|->|>|~)(\d{1,6})(?::(\d{1,6})(?:-(\d{1,6}))?)?(\+?)", re.ASCII
)  # chunk, last chunk, src, dst, into, last chunk of it, whether dst adds


class ScheduleError(ValueError):
    """A schedule that can't run: a rank or chunk is out of range, or two transfers conflict over a slot."""


class Transfer(NamedTuple):
    """A message from rank `src` to rank `dst`, combined on arrival by "copy" or "reduce" (addition).

    It carries `count` adjacent chunks, starting at `chunk`. They land in the same chunks of `dst`, or in the chunks
    starting at `into` if it is not None.
    """

    src: int
    dst: int
    chunk: int
    combine: str = COPY
    into: int | None = None
    count: int = 1  # type: ignore[assignment]  # hides tuple.count

    @property
    def lands(self) -> int:
        """The first chunk that the transfer writes on `dst`."""
        return self.chunk if self.into is None else self.into

    def __str__(self) -> str:
        lands = "" if self.lands == self.chunk else f":{_run(self.lands, self.count)}"
        return f"{_run(self.chunk, self.count)}:{self.src}→{self.dst}{lands}{'+' if self.combine == REDUCE else ''}"


@dataclass(frozen=True, eq=False)
class Step:
    """Transfers that may run together, stored as integer arrays so that 16,384 of them are cheap.

    `src`, `dst`, `chunk`: arrays [num_transfers].
    `combine`: "copy" or "reduce" for the whole step, or a tuple with one for each transfer.
    `phase`: the name of the run of steps that this step belongs to, such as "reduce_scatter".
    `into`: array [num_transfers], or None if every transfer lands in the chunk that it leaves.
    `count`: array [num_transfers], or None if every transfer carries one chunk.
    """

    src: np.ndarray
    dst: np.ndarray
    chunk: np.ndarray
    combine: str | tuple[str, ...] = COPY
    phase: str = ""
    into: np.ndarray | None = None
    count: np.ndarray | None = None

    @classmethod
    def of(cls, transfers: Iterable[Transfer | tuple], phase: str = "") -> Step:
        """Return a step made of `transfers`, which may be plain tuples `(src, dst, chunk, combine)`."""
        rows = [_transfer(transfer) for transfer in transfers]
        numbers = np.array([(t.src, t.dst, t.chunk, t.lands, t.count) for t in rows], dtype=np.int64)
        src, dst, chunk, into, count = numbers.reshape(-1, 5).T
        combine = tuple(t.combine for t in rows)
        same, single = (into == chunk).all(), (count == 1).all()
        return cls(src, dst, chunk, combine, phase, None if same else into, None if single else count)

    def __post_init__(self):
        columns: list[Sized | None] = [self.src, self.dst, self.chunk, self.into, self.count]
        columns += [] if isinstance(self.combine, str) else [self.combine]
        if len({len(column) for column in columns if column is not None}) > 1:
            raise ScheduleError("the arrays of a step must have the same length: one entry for each transfer")

    def __len__(self) -> int:
        return len(self.src)

    def __iter__(self) -> Iterator[Transfer]:
        combine = [self.combine] * len(self) if isinstance(self.combine, str) else self.combine
        into = [None] * len(self) if self.into is None else self.into.tolist()
        count = [1] * len(self) if self.count is None else self.count.tolist()
        rows = zip(self.src.tolist(), self.dst.tolist(), self.chunk.tolist(), combine, into, count, strict=True)
        return (Transfer(*row) for row in rows)

    @property
    def lands(self) -> np.ndarray:
        """The first chunk that each transfer writes: int [num_transfers]."""
        return self.chunk if self.into is None else self.into

    @property
    def reduces(self) -> np.ndarray:
        """Whether each transfer adds on arrival: bool [num_transfers]."""
        if isinstance(self.combine, str):
            return np.full(len(self), self.combine == REDUCE)
        return np.array([combine == REDUCE for combine in self.combine], dtype=bool)

    @property
    def singles(self) -> Step:
        """The same step with one chunk per transfer."""
        if self.count is None:
            return self
        transfer = np.repeat(np.arange(len(self)), self.count)
        nth = np.arange(len(transfer)) - np.repeat(np.cumsum(self.count) - self.count, self.count)
        combine = self.combine if isinstance(self.combine, str) else tuple(self.combine[i] for i in transfer)
        into = None if self.into is None else self.into[transfer] + nth
        return Step(self.src[transfer], self.dst[transfer], self.chunk[transfer] + nth, combine, self.phase, into)

    def apply(self, slots: np.ndarray) -> None:
        """Run this step in place on `slots`, an array [world_size, num_chunks, ...].

        This method alone defines what a step does. A transfer only copies and adds, so a slot
        may hold anything that can be added.
        """
        if self.count is not None:
            return self.singles.apply(slots)
        arriving = slots[self.src, self.chunk]  # a copy: sends read the state before the step
        reduces = self.reduces
        copies = ~reduces
        slots[self.dst[copies], self.lands[copies]] = arriving[copies]
        np.add.at(slots, (self.dst[reduces], self.lands[reduces]), arriving[reduces])

    def check_fit(self, bounds: np.ndarray) -> None:
        """Raise `ValueError` if a chunk would land in a chunk of another length.

        `bounds`: what `Schedule.bounds` returns for the buffer.
        """
        if self.into is None:
            return
        singles, lengths = self.singles, np.diff(bounds)
        misfits = np.flatnonzero(lengths[singles.chunk] != lengths[singles.lands])
        if len(misfits):
            chunk, into = singles.chunk[misfits[0]], singles.lands[misfits[0]]
            raise ValueError(
                f"chunk {chunk} lands in chunk {into}, which has another length; "
                f"use a buffer whose length is a multiple of the number of chunks, {len(lengths)}"
            )

    def __str__(self) -> str:
        shown = "  ".join(str(transfer) for transfer in islice(self, PRINTED_TRANSFERS))
        more = len(self) - PRINTED_TRANSFERS
        return shown + (f"  ... and {more} more" if more > 0 else "")


@dataclass(frozen=True, eq=False)
class Schedule:
    """The steps of a collective for `world_size` ranks, whose buffers are cut into `num_chunks` chunks.

    `make_steps()` returns a fresh iterator over the steps each time, so a schedule of millions of transfers never has
    to fit in memory. `collective` and `root` name the contract that the schedule is meant to meet ("all_reduce", or
    "broadcast" from rank `root`); your own schedule may omit them. `first + second` runs two schedules of the same
    shape one after the other.

    `lengths`: the elements of each chunk; None for the even cut of `chunk_bounds`. `rank_zero`: see
    `Schedule.rotated`. Raises `ScheduleError` if a size or the root is out of range.
    """

    world_size: int
    num_chunks: int
    make_steps: Callable[[], Iterable[Step]]
    name: str = "schedule"
    collective: str | None = None
    root: int | None = None
    lengths: tuple[int, ...] | None = None
    rank_zero: Callable[[], Iterable[list[Transfer]]] | None = None

    def __post_init__(self):
        for field in ("world_size", "num_chunks"):
            size = getattr(self, field)
            if not isinstance(size, (int, np.integer)) or size < 1:
                raise ScheduleError(f"{self.name}: {field} must be a whole number of at least 1, not {size!r}")
        if self.lengths is not None:
            lengths = tuple(map(index, self.lengths))
            if len(lengths) != self.num_chunks or min(lengths) < 0:
                raise ScheduleError(
                    f"{self.name}: lengths must be {self.num_chunks} numbers of at least 0, not {lengths}"
                )
            object.__setattr__(self, "lengths", lengths)
        if self.root is not None and not 0 <= self.root < self.world_size:
            raise ScheduleError(f"{self.name}: root {self.root} is not one of the {self.world_size} ranks")

    @classmethod
    def of(cls, world_size: int, num_chunks: int, steps: Iterable[Iterable], **names) -> Schedule:
        """Return a schedule from a list of steps, each a list of transfers `(src, dst, chunk, combine)`.

        `names`: further fields of the schedule, such as `name` and `collective`. Raises `ScheduleError` if a step
        can't run.
        """
        all_steps = [step if isinstance(step, Step) else _step(number, step) for number, step in enumerate(steps)]
        schedule = cls(world_size, num_chunks, lambda: all_steps, **names)
        schedule.validate()
        return schedule

    @classmethod
    def parse(cls, text: str, world_size: int | None = None, num_chunks: int | None = None, **names) -> Schedule:
        """Return the schedule that `text` describes, in the notation that schedules print: `0:1→2+`, a line a step.

        "step 0:" may begin a line, and "->" may replace the arrow. `world_size`, `num_chunks`: by default just the
        ranks and chunks that the text names. `names`: as in `Schedule.of`. Raises `ScheduleError` if the text can't be
        read, was cut short by printing, or a step can't run.
        """
        steps = _parsed(text)
        transfers = [t for step in steps for t in step]
        if world_size is None:
            world_size = 1 + max((max(t.src, t.dst) for t in transfers), default=0)
        if num_chunks is None:
            num_chunks = 1 + max((max(t.chunk, t.lands) + t.count - 1 for t in transfers), default=0)
        return cls.of(world_size, num_chunks, steps, **names)

    @classmethod
    def rotated(
        cls,
        world_size: int,
        num_chunks: int,
        rank_zero: Callable[[], Iterable[list[Transfer]]],
        collective: str | None,
        name: str,
    ) -> Schedule:
        """Return a schedule from rank 0's sends: rank r does the same, with r added to every rank and chunk number.

        `rank_zero()` yields, for each step, the transfers that rank 0 sends. Rank and chunk numbers wrap around, so
        chunk -1 is the last chunk. `num_chunks` must be `world_size` or 1. All sends of a step carry one chunk each
        and have the same `combine`. Raises `ScheduleError` if rank 0's sends break one of these rules.
        """
        if num_chunks not in (1, world_size):
            raise ScheduleError(
                f"{name}: a rotated schedule works with {world_size} chunks or 1, not with {num_chunks}"
            )
        rank_zero = partial(_checked, rank_zero, name)
        steps = partial(_rotated, world_size, num_chunks, rank_zero, collective or "")
        return cls(world_size, num_chunks, steps, name, collective, rank_zero=rank_zero)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.make_steps())

    def __add__(self, other: Schedule) -> Schedule:
        if not isinstance(other, Schedule):
            return NotImplemented
        mine, theirs = ((s.world_size, s.num_chunks) for s in (self, other))
        if mine != theirs:
            raise ScheduleError(
                f"cannot run {self.name!r} and then {other.name!r}: (ranks, chunks) are {mine} and {theirs}"
            )
        if self.lengths != other.lengths:
            raise ScheduleError(f"cannot run {self.name!r} and then {other.name!r}: their chunks differ in length")
        rank_zero = None
        if self.rank_zero and other.rank_zero:
            rank_zero = lambda: chain(self.rank_zero(), other.rank_zero())  # noqa: E731
        name = f"{self.name}, then {other.name}"
        return Schedule(*mine, lambda: chain(self, other), name, lengths=self.lengths, rank_zero=rank_zero)

    def placed(self, places: Sequence[int]) -> Schedule:
        """Return this schedule with the ranks reordered: rank `places[r]` does what rank r did.

        If chunks belong to ranks (in a reduce-scatter, say), they end on other ranks than the contract says, so the
        result names no contract. Raises `ScheduleError` if `places` is not a permutation of the ranks.
        """
        places = [index(place) for place in places]
        if sorted(places) != list(range(self.world_size)):
            raise ScheduleError(f"{self.name}: places must be the ranks 0 to {self.world_size - 1} in some order")
        make_steps = partial(_placed, self, np.array(places))
        root = None if self.root is None else places[self.root]
        collective = self.collective if self.collective in WHEREVER else None
        return replace(self, make_steps=make_steps, collective=collective, root=root, rank_zero=None)

    def bounds(self, num_elements: int) -> np.ndarray:
        """Return where each chunk of a buffer of `num_elements` starts and ends: int [num_chunks + 1].

        See `chunk_bounds`. Raises `ValueError` if the schedule's `lengths` don't add up to `num_elements`.
        """
        if self.lengths is None:
            return chunk_bounds(num_elements, self.num_chunks)
        bounds = np.cumsum([0, *self.lengths])
        if bounds[-1] != num_elements:
            raise ValueError(f"{self.name} is for buffers of {bounds[-1]} elements, not {num_elements}")
        return bounds

    def validate(self) -> None:
        """Raise `ScheduleError` for the first transfer that can't run, and name its step."""
        for number, step in enumerate(self):
            fault = step_fault(step, self.world_size, self.num_chunks)
            if fault:
                raise ScheduleError(f"{self.name}, step {number}: {fault}")

    def __str__(self) -> str:
        steps = list(islice(self, PRINTED_STEPS + 1))
        lines = [f"step {number}: {step}" for number, step in enumerate(steps[:PRINTED_STEPS])]
        if len(steps) > PRINTED_STEPS:
            lines.append("... and more steps")
        return "\n".join(lines) or NO_STEPS


def _run(first: int, count: int) -> str:
    """Return "3", or "3-5" for three chunks."""
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _parsed(text: str) -> list[list[Transfer]]:
    """Return the transfers of each line of `text`; see `Schedule.parse`."""
    steps: list[list[Transfer]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        where, head = f"step {len(steps)}", HEAD.match(line)
        if line == NO_STEPS:
            continue
        if line.startswith("... and ") or "  ... and " in line:
            cut = _quoted(line[line.index("...") :])
            raise ScheduleError(f"{where}: the text is cut short, at {cut}; it must have all steps and transfers")
        if head and int(head[1]) != len(steps):
            raise ScheduleError(
                f"{where}: the line begins with {_quoted(head[0])}; steps must be numbered from 0, without gaps"
            )
        words = re.split(r"[\s,]+", line[head.end() :] if head else line)
        steps.append([_parsed_transfer(word, where) for word in words if word])
    return steps


def _parsed_transfer(word: str, where: str) -> Transfer:
    if not (match := TRANSFER.fullmatch(word)):
        raise ScheduleError(
            f"{where}: {_quoted(word)} is not a transfer; write chunk:src→dst, such as 0:1→2, and a + at the end to add"
        )
    numbers = [None if digits is None else int(digits) for digits in match.groups()[:6]]
    first, last, src, dst, into, end = numbers
    assert first is not None and src is not None and dst is not None
    count = 1 if last is None else last - first + 1
    landing = 1 if end is None or into is None else end - into + 1
    if count < 1 or (into is not None and landing != count):
        raise ScheduleError(f"{where}: {word} must name as many chunks at its end as at its start, in rising order")
    return Transfer(src, dst, first, REDUCE if match[7] else COPY, None if into == first else into, count)


def _quoted(text: str) -> str:
    """Return text from outside in quotation marks, cut to 60 characters so that the message stays one line."""
    quoted = json.dumps(text)
    return quoted if len(quoted) <= 60 else f"{quoted[:57]}..."


def _checked(rank_zero: Callable, name: str) -> Iterator[list[Transfer]]:
    """Yield rank 0's sends step by step; raise `ScheduleError` if the other ranks can't do the same."""
    for sends in rank_zero():
        if not sends or any(t.src != 0 or t.count != 1 or t.combine != sends[0].combine for t in sends):
            raise ScheduleError(
                f"{name}: {sends} can't be a step of a rotated schedule; it must have one or more sends from rank 0, "
                "with one chunk each and the same combine"
            )
        yield sends


def _rotated(world_size: int, num_chunks: int, rank_zero: Callable, phase: str) -> Iterator[Step]:
    """Yield the steps of `Schedule.rotated`: the first send of every rank, then the second of every rank, and so on."""
    around = {size: np.arange(size + world_size) % size for size in (world_size, num_chunks)}

    def turned(starts: Iterable[int], size: int) -> np.ndarray:
        views = [around[size][start % size :][:world_size] for start in starts]
        return views[0] if len(views) == 1 else np.concatenate(views)  # a single send needs no copy

    @cache  # steps with the same distances share their arrays: `price` compares arrays by identity
    def ends(distances: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        return turned([0] * len(distances), world_size), turned(distances, world_size)

    for sends in rank_zero():
        src, dst = ends(tuple(t.dst for t in sends))
        chunk = turned((t.chunk for t in sends), num_chunks)
        moves = any(t.into is not None for t in sends)
        into = turned((t.lands for t in sends), num_chunks) if moves else None
        yield Step(src, dst, chunk, sends[0].combine, phase, into)


def _placed(schedule: Schedule, places: np.ndarray) -> Iterator[Step]:
    """Yield the steps of `Schedule.placed`; steps that share an array of ranks still do, which makes pricing faster."""
    turned: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # id(array) → the array, to keep it alive, and its places
    for step in schedule:
        for ranks in (step.src, step.dst):
            if id(ranks) not in turned:
                turned[id(ranks)] = ranks, places[ranks]
        yield replace(step, src=turned[id(step.src)][1], dst=turned[id(step.dst)][1])


def _step(number: int, transfers: Iterable) -> Step:
    """Return the step made of `transfers`; raise `ScheduleError` with its `number` if it isn't a list of transfers."""
    if isinstance(transfers, Transfer | str) or not isinstance(transfers, Iterable):
        raise ScheduleError(f"step {number} is {transfers!r}; steps must be a list of lists of transfers")
    transfers = list(transfers)
    if transfers and isinstance(transfers[0], int):
        raise ScheduleError(
            f"step {number} is {transfers!r}, a single transfer; steps must be a list of lists of transfers"
        )
    return Step.of(transfers)


def _transfer(row: Transfer | tuple) -> Transfer:
    """Return `row` as a transfer; raise `ScheduleError` if it has the wrong form or its numbers are not whole."""
    try:
        src, dst, chunk, combine, into, count = Transfer(*row)
        into = None if into is None else index(into)
        return Transfer(index(src), index(dst), index(chunk), combine, into, index(count))
    except TypeError:
        raise ScheduleError(
            f"{row!r} is not a transfer; it must be (src, dst, chunk, combine), optionally followed by into and "
            "count, and all but combine must be whole numbers"
        ) from None


def step_fault(step: Step, world_size: int, num_chunks: int) -> str | None:
    """Return one line that says why `step` can't run with these sizes; None if it can."""
    if _is_sound(step, world_size, num_chunks):
        return None
    written: dict[tuple[int, int], Transfer] = {}
    for transfer in step:
        for field, number in (("src", transfer.src), ("dst", transfer.dst)):
            if not 0 <= number < world_size:
                return f"{transfer} has {field} {number}, but the ranks are 0 to {world_size - 1}"
        if transfer.count < 1:
            return f"{transfer.src}→{transfer.dst} carries {transfer.count} chunks; a transfer carries at least 1"
        for field, first in (("chunk", transfer.chunk), ("into", transfer.lands)):
            for chunk in (first, first + transfer.count - 1):
                if not 0 <= chunk < num_chunks:
                    return f"{transfer} has {field} {chunk}, but the chunks are 0 to {num_chunks - 1}"
        if transfer.src == transfer.dst:
            return f"{transfer} sends rank {transfer.src} to itself"
        if transfer.combine not in (COPY, REDUCE):
            return f"{transfer.src}→{transfer.dst} combines by {transfer.combine!r}; it must be 'copy' or 'reduce'"
        for chunk in range(transfer.lands, transfer.lands + transfer.count):
            other = written.setdefault((transfer.dst, chunk), transfer)
            if other is not transfer and COPY in (other.combine, transfer.combine):
                return f"{other} and {transfer} both write chunk {chunk} on rank {transfer.dst}"
    return None


def _is_sound(step: Step, world_size: int, num_chunks: int) -> bool:
    """Return whether `step` can run: a vectorized check, fast for thousands of transfers."""
    if step.count is not None and step.count.min(initial=1) < 1:
        return False
    singles = step.singles
    src, dst, chunk, lands = singles.src, singles.dst, singles.chunk, singles.lands
    limits = (src, world_size), (dst, world_size), (chunk, num_chunks), (lands, num_chunks)
    in_range = all(((0 <= numbers) & (numbers < limit)).all() for numbers, limit in limits)  # noqa: SIM300
    combines = {singles.combine} if isinstance(singles.combine, str) else set(singles.combine)
    if not in_range or combines - {COPY, REDUCE} or (src == dst).any():
        return False
    slots, writers = np.unique(dst * num_chunks + lands, return_inverse=True)
    return len(slots) == len(singles) or not (np.bincount(writers)[writers[~singles.reduces]] > 1).any()


def chunk_bounds(num_elements: int, num_chunks: int) -> np.ndarray:
    """Return where each chunk starts and ends: int [num_chunks + 1]; chunk c is elements bounds[c]:bounds[c + 1].

    Lengths differ by at most one and the longer chunks come first, as in `numpy.array_split`: 10 elements in 4
    chunks give lengths 3, 3, 2, 2. With fewer elements than chunks, the last chunks are empty.
    """
    short, longer = divmod(num_elements, num_chunks)
    chunks = np.arange(num_chunks + 1)
    return chunks * short + np.minimum(chunks, longer)
