"""What each collective promises, apart from how any algorithm keeps the promise.

A contract says three things about every slot (rank, chunk): whether it holds data before, whether it must hold the
result after, and which ranks' data a finished chunk is the sum of. `check` proves a schedule against it for all
inputs by counting contributions, or names the rank, the chunk and what is wrong.

In a contract that gives each rank a shard, the chunks are dealt out in order: with as many chunks as ranks, rank r
owns chunk r.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .dataflow import contributions, last_write
from .schedule import COPY, REDUCE, Schedule


class ContractError(AssertionError):
    """A schedule that does not do what its contract promises.

    `rank`, `chunk`: the slot it is explained on. `step`: the step that did it, or None. `wrong`: bool
    [world_size, num_chunks], every slot that ends with the wrong contents.
    """

    def __init__(self, message: str, rank: int, chunk: int, step: int | None, wrong: np.ndarray):
        super().__init__(message)
        self.rank, self.chunk, self.step, self.wrong = rank, chunk, step, wrong


class Terms(NamedTuple):
    """A contract written out for one size of machine."""

    given: np.ndarray  # bool [world_size, num_chunks]: slots that hold data before
    wanted: np.ndarray  # bool [world_size, num_chunks]: slots that must hold a finished chunk after
    parts: np.ndarray  # int [num_chunks, world_size]: how often each rank's data is in a finished chunk


@dataclass(frozen=True)
class Contract:
    """The promise of one collective; `write(world_size, num_chunks, root)` gives its terms."""

    name: str
    write: Callable[[int, int, int], Terms]

    def terms(self, schedule: Schedule) -> Terms:
        """This contract for the size (and the root, if the contract has one) of `schedule`."""
        root = schedule.root or 0
        if not 0 <= root < schedule.world_size:
            raise ValueError(f"{self.name}: root {root} is not one of the {schedule.world_size} ranks")
        return self.write(schedule.world_size, schedule.num_chunks, root)

    def check(self, schedule: Schedule) -> None:
        """Return None if `schedule` keeps the promise for all inputs; raise `ContractError` if it does not.

        A schedule that could not be run at all (a rank out of range, two copies into one slot) raises
        `ScheduleError`.
        """
        schedule.validate()
        terms = self.terms(schedule)
        for final in contributions(schedule):
            pass
        wrong = terms.wanted & (final != terms.parts).any(axis=-1)
        if not wrong.any():
            return
        # A contribution counted twice explains the others, so it is the slot to tell of.
        double = wrong & (final > terms.parts).any(axis=-1)
        rank, chunk = (int(i) for i in np.argwhere(double if double.any() else wrong)[0])
        step, fault = diagnose(schedule, terms, final, rank, chunk)
        others = int(wrong.sum()) - 1
        more = f" {others} more slots end wrong." if others > 1 else " One more slot ends wrong." if others else ""
        message = f"{self.name} on {schedule.world_size} ranks: chunk {chunk} on rank {rank} {fault}.{more}"
        raise ContractError(message, rank, chunk, step, wrong)


def diagnose(schedule: Schedule, terms: Terms, final: np.ndarray, rank: int, chunk: int) -> tuple[int | None, str]:
    """Why the slot (rank, chunk) ended wrong: the step that did it (None if no step did) and the fault in words."""
    holds, parts = final[rank, chunk], terms.parts[chunk]
    faults = []
    if (twice := (holds > parts) & (parts > 0)).any():
        faults.append(f"holds {ranks_in_words(twice)} {'twice' if holds[twice].max() == 2 else 'too often'}")
    if (foreign := (holds > 0) & (parts == 0)).any():
        faults.append(f"holds what {ranks_in_words(foreign)} began with")
    if (missing := holds < parts).any():
        faults.append(f"lacks {ranks_in_words(missing)}")
    states = [state[:, chunk].copy() for state in contributions(schedule)]  # of the one chunk, for memory's sake
    step, cause = twice_added(schedule, states, parts, chunk) if twice.any() else (None, None)
    if cause is None:
        step, cause = wrongly_written(schedule, states, terms, rank, chunk)
    elsewhere = np.flatnonzero((final[:, chunk] == parts).all(axis=-1))
    if len(elsewhere):
        cause += f"; the finished chunk {chunk} is on {ranks_in_words(elsewhere)}"
    return step, f"{' and '.join(faults)}: {cause}"


def twice_added(schedule: Schedule, states: list, parts: np.ndarray, chunk: int) -> tuple[int, str] | tuple:
    """The first step, on any rank, that adds to `chunk` what is already in the sum: (step, words)."""
    for index, step in enumerate(schedule):
        before, after = states[index], states[index + 1]
        for transfer in step:
            again = (after[transfer.dst] > parts) & (after[transfer.dst] > before[transfer.dst])
            again &= before[transfer.src] > 0
            if transfer.chunk == chunk and transfer.combine == REDUCE and again.any():
                return index, f"step {index} adds {ranks_in_words(again)} a second time ({transfer})"
    return None, None


def wrongly_written(schedule: Schedule, states: list, terms: Terms, rank: int, chunk: int) -> tuple[int | None, str]:
    """Where the wrong value of the slot (rank, chunk) came from: (step, words), followed back through the copies."""
    written = last_write(schedule, rank, chunk, before=len(states) - 1)
    if written is None:
        return None, "no step ever writes it"
    index, transfer = written
    while transfer.combine == COPY:
        earlier = last_write(schedule, transfer.src, chunk, before=index)
        if earlier is None or earlier[1].combine != COPY:
            break
        index, transfer = earlier
    before, parts = states[index], terms.parts[chunk]
    sent = before[transfer.src]
    if not terms.given[transfer.src, chunk] and last_write(schedule, transfer.src, chunk, before=index) is None:
        return index, f"in step {index} rank {transfer.src} sends chunk {chunk} before it has it ({transfer})"
    newer = (before >= sent).all(axis=-1) & (before > sent).any(axis=-1) & (before <= parts).all(axis=-1)
    if transfer.combine == COPY and newer.any():
        holder = ranks_in_words(np.flatnonzero(newer)[:1])
        return index, f"step {index} forwards a stale value ({transfer}): {holder} already holds a newer sum"
    lost = (before[transfer.dst] > sent) & (transfer.combine == COPY)
    if parts.sum() > 1 and lost.any():
        ever_added = any(t.chunk == chunk and t.combine == REDUCE for step in schedule for t in step)
        instead = ", which is not in what arrives" if ever_added else " instead of adding"
        return index, f"step {index} copies over {ranks_in_words(lost)}{instead} ({transfer})"
    what = "its value comes from" if index != written[0] else "the last to write it is"
    return index, f"{what} step {index} ({transfer}), which brings {ranks_in_words(sent > 0)}"


def ranks_in_words(ranks: np.ndarray) -> str:
    """ "rank 2" or "ranks 0, 1 and 3", from rank numbers or from a bool array [world_size]."""
    numbers = [str(rank) for rank in (np.flatnonzero(ranks) if ranks.dtype == bool else ranks)]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def owners(world_size: int, num_chunks: int) -> np.ndarray:
    """Which rank owns each chunk when chunks are dealt out in order: int [num_chunks]."""
    if num_chunks % world_size:
        raise ValueError(f"{num_chunks} chunks cannot be dealt out evenly to {world_size} ranks")
    return np.arange(num_chunks) // (num_chunks // world_size)


def _everywhere(world_size: int, num_chunks: int) -> np.ndarray:
    return np.ones((world_size, num_chunks), dtype=bool)


def _on(rank: int, world_size: int, num_chunks: int) -> np.ndarray:
    return np.arange(world_size)[:, None] == np.full(num_chunks, rank)


def _shards(world_size: int, num_chunks: int) -> np.ndarray:
    return np.arange(world_size)[:, None] == owners(world_size, num_chunks)


def _sum_of_all(world_size: int, num_chunks: int) -> np.ndarray:
    return np.ones((num_chunks, world_size), dtype=np.int64)


def _all_reduce(ranks: int, chunks: int, root: int) -> Terms:
    return Terms(_everywhere(ranks, chunks), _everywhere(ranks, chunks), _sum_of_all(ranks, chunks))


def _reduce_scatter(ranks: int, chunks: int, root: int) -> Terms:
    return Terms(_everywhere(ranks, chunks), _shards(ranks, chunks), _sum_of_all(ranks, chunks))


def _all_gather(ranks: int, chunks: int, root: int) -> Terms:
    shards = _shards(ranks, chunks)
    return Terms(shards, _everywhere(ranks, chunks), shards.T.astype(np.int64))


def _broadcast(ranks: int, chunks: int, root: int) -> Terms:
    at_root = _on(root, ranks, chunks)
    return Terms(at_root, _everywhere(ranks, chunks), at_root.T.astype(np.int64))


def _reduce(ranks: int, chunks: int, root: int) -> Terms:
    return Terms(_everywhere(ranks, chunks), _on(root, ranks, chunks), _sum_of_all(ranks, chunks))


all_reduce = Contract("all_reduce", _all_reduce)
"""Every rank begins with a buffer and ends with the sum of all of them."""
reduce_scatter = Contract("reduce_scatter", _reduce_scatter)
"""Every rank begins with a buffer; rank r ends with its own shard of the sum."""
all_gather = Contract("all_gather", _all_gather)
"""Every rank begins with its own shard; all end with all shards."""
broadcast = Contract("broadcast", _broadcast)
"""The root begins with a buffer; all end with it."""
reduce = Contract("reduce", _reduce)
"""Every rank begins with a buffer; the root ends with the sum."""

BY_NAME = {contract.name: contract for contract in (all_reduce, reduce_scatter, all_gather, broadcast, reduce)}


def of(schedule: Schedule) -> Contract | None:
    """The contract that `schedule` says it is meant to meet; None if it says nothing."""
    if schedule.collective is None:
        return None
    if schedule.collective not in BY_NAME:
        known = ", ".join(BY_NAME)
        raise ValueError(f"{schedule.name}: no contract is called {schedule.collective!r}; there are {known}")
    return BY_NAME[schedule.collective]
