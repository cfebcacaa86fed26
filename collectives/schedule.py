"""A collective as data: steps of transfers, each one chunk moving from one rank to another.

Every rank holds one buffer, cut into `num_chunks` chunks that are numbered alike on all ranks. The pair
(rank, chunk) is a **slot**. A transfer sends the slot (src, chunk) and copies it into, or adds it to, the slot
(dst, chunk). All transfers of a step read the state *before* the step, so their order in a step means nothing.

Nothing here runs, counts time or draws: `simulate`, `execute`, `price` and `draw` read this data, each for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import index
from typing import NamedTuple

import numpy as np

COPY, REDUCE = "copy", "reduce"

PRINTED_STEPS = 64  # a schedule of thousands of steps prints its first ones and says how many follow
PRINTED_TRANSFERS = 32  # the same within a step


class ScheduleError(ValueError):
    """A schedule that cannot be run at all: a rank or chunk out of range, or two transfers fighting over a slot."""


class Transfer(NamedTuple):
    """One chunk from rank `src` to rank `dst`, combined on arrival by "copy" or "reduce" (addition)."""

    src: int
    dst: int
    chunk: int
    combine: str = COPY

    def __str__(self) -> str:
        return f"{self.chunk}:{self.src}→{self.dst}{'+' if self.combine == REDUCE else ''}"


@dataclass(frozen=True, eq=False)
class Step:
    """Transfers that may run together, kept as equally long integer arrays so that 16,384 of them are cheap.

    `src`, `dst`, `chunk`: arrays [num_transfers]. `combine`: "copy" or "reduce", one for the whole step, or one
    for each transfer. `phase`: the name of the run of steps that this one belongs to, such as "reduce-scatter".
    """

    src: np.ndarray
    dst: np.ndarray
    chunk: np.ndarray
    combine: str | tuple[str, ...] = COPY
    phase: str = ""

    @classmethod
    def of(cls, transfers: Iterable[Transfer | tuple], phase: str = "") -> Step:
        """A step from readable transfers (or plain tuples `(src, dst, chunk, combine)`)."""
        transfers = [_transfer(transfer) for transfer in transfers]
        src, dst, chunk = (np.array([t[i] for t in transfers], dtype=np.int64) for i in range(3))
        return cls(src, dst, chunk, tuple(t.combine for t in transfers), phase)

    def __len__(self) -> int:
        return len(self.src)

    def __iter__(self) -> Iterator[Transfer]:
        combines = [self.combine] * len(self) if isinstance(self.combine, str) else self.combine
        for src, dst, chunk, combine in zip(self.src, self.dst, self.chunk, combines, strict=True):
            yield Transfer(int(src), int(dst), int(chunk), combine)

    @property
    def reduces(self) -> np.ndarray:
        """Which transfers add on arrival: bool [num_transfers]."""
        if isinstance(self.combine, str):
            return np.full(len(self), self.combine == REDUCE)
        return np.array([combine == REDUCE for combine in self.combine], dtype=bool)

    def apply(self, slots: np.ndarray) -> None:
        """Run this step, in place, on `slots`: an array [world_size, num_chunks, ...].

        This is the meaning of a step, written down only here. The slots may hold numbers,
        or vectors that count contributions: a transfer copies and adds, whatever it moves.
        """
        arriving = slots[self.src, self.chunk]  # a copy: sends read the state before the step
        reduces = self.reduces
        copies = ~reduces
        slots[self.dst[copies], self.chunk[copies]] = arriving[copies]
        np.add.at(slots, (self.dst[reduces], self.chunk[reduces]), arriving[reduces])

    def __str__(self) -> str:
        shown = "  ".join(str(transfer) for transfer in islice(self, PRINTED_TRANSFERS))
        more = len(self) - PRINTED_TRANSFERS
        return shown + (f"  ... and {more} more" if more > 0 else "")


@dataclass(frozen=True, eq=False)
class Schedule:
    """The steps of a collective for `world_size` ranks, whose buffers are cut into `num_chunks` chunks.

    `make_steps` returns a fresh iterator over the steps each time it is called, so that a schedule of millions of
    transfers is never held in memory. `collective` and `root` name the contract that the schedule is meant to meet
    ("all_reduce", or "broadcast" from rank `root`); a schedule of your own may leave them out. Two schedules of
    the same shape are run one after the other by `+`.
    """

    world_size: int
    num_chunks: int
    make_steps: Callable[[], Iterable[Step]]
    name: str = "schedule"
    collective: str | None = None
    root: int | None = None

    def __post_init__(self):
        for field in ("world_size", "num_chunks"):
            size = getattr(self, field)
            if not isinstance(size, (int, np.integer)) or size < 1:
                raise ScheduleError(f"{self.name}: {field} is a whole number of at least 1, not {size!r}")

    @classmethod
    def of(cls, world_size: int, num_chunks: int, steps: Iterable[Iterable], **names) -> Schedule:
        """A schedule from readable steps: a list of lists of transfers `(src, dst, chunk, combine)`."""
        made = [step if isinstance(step, Step) else Step.of(step) for step in steps]
        schedule = cls(world_size, num_chunks, lambda: made, **names)
        schedule.validate()
        return schedule

    def __iter__(self) -> Iterator[Step]:
        return iter(self.make_steps())

    def __add__(self, other: Schedule) -> Schedule:
        if not isinstance(other, Schedule):
            return NotImplemented
        mine, theirs = (self.world_size, self.num_chunks), (other.world_size, other.num_chunks)
        if mine != theirs:
            raise ScheduleError(
                f"cannot run {self.name!r} and then {other.name!r}: (ranks, chunks) are {mine} and {theirs}"
            )
        return Schedule(*mine, lambda: chain(self, other), name=f"{self.name}, then {other.name}")

    def validate(self) -> None:
        """Raise `ScheduleError` at the first transfer that no machine could carry out as written."""
        for number, step in enumerate(self):
            fault = step_fault(step, self.world_size, self.num_chunks)
            if fault:
                raise ScheduleError(f"{self.name}, step {number}: {fault}")

    def __str__(self) -> str:
        steps = list(islice(self, PRINTED_STEPS + 1))
        lines = [f"step {number}: {step}" for number, step in enumerate(steps[:PRINTED_STEPS])]
        if len(steps) > PRINTED_STEPS:
            lines.append("... and more steps")
        return "\n".join(lines) or "no steps: nothing has to move"


def _transfer(given: Transfer | tuple) -> Transfer:
    """A transfer from a tuple; `ScheduleError` if it is none, or if its numbers are not whole."""
    try:
        src, dst, chunk, combine = Transfer(*given)
        return Transfer(index(src), index(dst), index(chunk), combine)
    except TypeError:
        raise ScheduleError(
            f"{given!r} is no transfer: (src, dst, chunk, combine), the first three whole numbers"
        ) from None


def step_fault(step: Step, world_size: int, num_chunks: int) -> str | None:
    """What makes `step` impossible on such a machine, in words; None if nothing does."""
    limits = {"src": world_size, "dst": world_size, "chunk": num_chunks}
    written: dict[tuple[int, int], Transfer] = {}
    for transfer in step:
        for field, limit in limits.items():
            if not 0 <= getattr(transfer, field) < limit:
                kind = "chunks" if field == "chunk" else "ranks"
                return f"{transfer} has {field} {getattr(transfer, field)}, but the {kind} are 0 to {limit - 1}"
        if transfer.src == transfer.dst:
            return f"{transfer} sends rank {transfer.src} to itself"
        if transfer.combine not in (COPY, REDUCE):
            return f"{transfer.src}→{transfer.dst} combines by {transfer.combine!r}; it must be 'copy' or 'reduce'"
        slot = transfer.dst, transfer.chunk
        other = written.setdefault(slot, transfer)
        if other is not transfer and COPY in (other.combine, transfer.combine):
            return f"{other} and {transfer} both write chunk {transfer.chunk} on rank {transfer.dst}"
    return None


def chunk_bounds(num_elements: int, num_chunks: int) -> np.ndarray:
    """Where each chunk begins and ends: int [num_chunks + 1]; chunk c is elements bounds[c]:bounds[c + 1].

    Lengths differ by at most one and the longer chunks come first, as in `numpy.array_split`: 10 elements in 4
    chunks are 3, 3, 2, 2. Fewer elements than chunks leaves the last chunks empty.
    """
    short, longer = divmod(num_elements, num_chunks)
    chunks = np.arange(num_chunks + 1)
    return chunks * short + np.minimum(chunks, longer)
