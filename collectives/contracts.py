"""The contract of each collective: what it promises, independent of any algorithm.

For every slot (rank, chunk), a contract states whether the slot holds data before, whether it must hold a result
after, and which ranks' data, from which of their chunks, add up to that result. `check` counts contributions to prove
for all inputs that a schedule meets the contract. If it doesn't, the error names the rank, the chunk and the fault.

A contract that gives each rank a shard assigns chunks in order: with as many chunks as ranks, rank r owns chunk r.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from .dataflow import Contents, contributions, final_contributions, last_write
from .schedule import COPY, REDUCE, Schedule


class ContractError(AssertionError):
    """A schedule breaks its contract.

    `rank`, `chunk`: the slot that the message explains. `step`: the step that caused the fault, or None.
    `wrong`: bool [world_size, num_chunks], every slot that ends with the wrong contents.
    """

    def __init__(self, message: str, rank: int, chunk: int, step: int | None, wrong: np.ndarray):
        super().__init__(message)
        self.rank, self.chunk, self.step, self.wrong = rank, chunk, step, wrong


class Terms(NamedTuple):
    """A contract written out for one world size and number of chunks."""

    given: np.ndarray  # bool [world_size, num_chunks]: slots that hold data before
    wanted: np.ndarray  # bool [world_size, num_chunks]: slots that must hold a finished chunk after
    parts: np.ndarray  # int [world_size, num_chunks, world_size]: how often a finished slot contains each rank's data
    origin: np.ndarray  # int [world_size, num_chunks]: the chunk that this data was in at first
    repeats: bool = False  # whether extra contributions are allowed: a barrier's signal may arrive twice

    def finished(self, contents: Contents) -> np.ndarray:
        """Return which slots hold a finished chunk, wanted or not: bool [world_size, num_chunks].

        If everything in a slot comes from one chunk, then its counts by rank are counts of that chunk.
        """
        enough = contents.ranks >= self.parts if self.repeats else contents.ranks == self.parts
        return enough.all(axis=-1) & (contents.of_chunk() == self.origin)

    def excess(self, contents: Contents) -> np.ndarray:
        """Return where a slot contains a rank's data more often than any finished slot of that chunk does.

        Shape: bool [world_size, num_chunks, world_size], one entry for each contributor.
        """
        if self.repeats:
            return np.zeros(self.parts.shape, dtype=bool)
        most = np.zeros(self.parts.shape[1:], dtype=self.parts.dtype)  # [origin chunk, contributor]
        np.maximum.at(most, self.origin, self.parts)
        of_any = most.max(axis=0, keepdims=True)  # appended as the last row: `of_chunk` of a mixed slot is -1
        return contents.ranks > np.concatenate([most, of_any])[contents.of_chunk()]


@dataclass(frozen=True)
class Contract:
    """The promise of one collective; `write(world_size, num_chunks, root)` returns its terms."""

    name: str
    write: Callable[[int, int, int], Terms]

    def terms(self, schedule: Schedule) -> Terms:
        """Return the terms for the size of `schedule`, and for its root if the contract has one."""
        return self.write(schedule.world_size, schedule.num_chunks, schedule.root or 0)

    def check(self, schedule: Schedule) -> None:
        """Check that `schedule` keeps the promise for all inputs.

        Raises `ContractError` if it doesn't, and `ScheduleError` if it can't run (a rank out of range, two copies
        into one slot).
        """
        schedule.validate()
        terms = self.terms(schedule)
        final = final_contributions(schedule)
        wrong = terms.wanted & ~terms.finished(final)
        if not wrong.any():
            return
        # A contribution counted twice often causes the other faults, so report that slot first.
        double = wrong & terms.excess(final).any(axis=-1)
        rank, chunk = (int(i) for i in np.argwhere(double if double.any() else wrong)[0])
        step, fault = diagnose(schedule, terms, final, rank, chunk)
        others = int(wrong.sum()) - 1
        more = f" {others} more slots end wrong." if others > 1 else " One more slot ends wrong." if others else ""
        message = f"{self.name} on {schedule.world_size} ranks: chunk {chunk} on rank {rank} {fault}.{more}"
        raise ContractError(message, rank, chunk, step, wrong)


def diagnose(schedule: Schedule, terms: Terms, final: Contents, rank: int, chunk: int) -> tuple[int | None, str]:
    """Return why the slot (rank, chunk) ends wrong: the step that caused it (or None) and the fault in words."""
    holds, parts = final.ranks[rank, chunk], terms.parts[rank, chunk]
    faults = []
    if (twice := (holds > parts) & (parts > 0) & (not terms.repeats)).any():
        faults.append(f"holds {ranks_in_words(twice)} {'twice' if holds[twice].max() == 2 else 'too often'}")
    if (foreign := (holds > 0) & (parts == 0)).any():
        faults.append(f"holds what {ranks_in_words(foreign)} began with")
    if (missing := holds < parts).any():
        faults.append(f"lacks {ranks_in_words(missing)}")
    if misplaced := _misplaced(final, terms, rank, chunk):
        faults.append(misplaced)
    step, cause = twice_added(schedule, terms, rank, chunk) if twice.any() else (None, None)
    if cause is None:
        step, cause = wrongly_written(schedule, terms, rank, chunk)
    right = (final.ranks[:, chunk] == parts).all(axis=-1) & (final.of_chunk()[:, chunk] == terms.origin[rank, chunk])
    if len(elsewhere := np.flatnonzero(right)):
        cause += f"; the finished chunk {chunk} is on {ranks_in_words(elsewhere)}"
    return step, f"{listed(faults)}: {cause}"


def _misplaced(final: Contents, terms: Terms, rank: int, chunk: int) -> str:
    """Return words for data that comes from the wrong chunk; "" if none does."""
    sources, origin = np.flatnonzero(final.chunks[rank, chunk]), int(terms.origin[rank, chunk])
    if list(sources) in ([], [origin]):
        return ""
    return f"holds what was in chunk{'s' if len(sources) > 1 else ''} {listed(sources)} instead of chunk {origin}"


def twice_added(schedule: Schedule, terms: Terms, rank: int, chunk: int) -> tuple[int, str] | tuple[None, None]:
    """Return the first step that adds to `chunk`, on any rank, what its sum already contains: (step, words).

    (None, None) if no step does.
    """
    parts = terms.parts[rank, chunk]
    for index, (step, (before, after)) in enumerate(zip(schedule, pairwise(contributions(schedule)), strict=True)):
        for transfer in step.singles:
            slot = transfer.dst, transfer.lands
            again = (after.ranks[slot] > parts) & (after.ranks[slot] > before.ranks[slot])
            again &= before.ranks[transfer.src, transfer.chunk] > 0
            if transfer.lands == chunk and transfer.combine == REDUCE and again.any():
                return index, f"step {index} adds {ranks_in_words(again)} a second time ({transfer})"
    return None, None


def wrongly_written(schedule: Schedule, terms: Terms, rank: int, chunk: int) -> tuple[int | None, str]:
    """Trace the wrong value of the slot (rank, chunk) back through copies to its cause; return (step, words)."""
    written = last_write(schedule, rank, chunk, before=sum(1 for _ in schedule))
    if written is None:
        return None, "no step ever writes it"
    index, transfer = written
    while transfer.combine == COPY:
        earlier = last_write(schedule, transfer.src, transfer.chunk, before=index)
        if earlier is None or earlier[1].combine != COPY:
            break
        index, transfer = earlier
    source = transfer.src, transfer.chunk
    before = next(islice(contributions(schedule), index, None)).ranks
    sent, parts = before[source], terms.parts[rank, chunk]
    if not terms.given[source] and last_write(schedule, *source, before=index) is None:
        return index, f"in step {index} rank {source[0]} sends chunk {source[1]} before it has it ({transfer})"
    rivals = before[:, source[1]]  # the same chunk on all ranks: [world_size, world_size]
    newer = (rivals >= sent).all(axis=-1) & (rivals > sent).any(axis=-1) & (rivals <= parts).all(axis=-1)
    if transfer.combine == COPY and newer.any():
        holder = ranks_in_words(np.flatnonzero(newer)[:1])
        return index, f"step {index} forwards a stale value ({transfer}): {holder} already holds a newer sum"
    lost = (before[transfer.dst, transfer.lands] > sent) & (transfer.combine == COPY)
    if parts.sum() > 1 and lost.any():
        ever_added = any(t.lands == chunk and t.combine == REDUCE for step in schedule for t in step.singles)
        instead = ", which is not in what arrives" if ever_added else " instead of adding"
        return index, f"step {index} copies over {ranks_in_words(lost)}{instead} ({transfer})"
    what = "its value comes from" if index != written[0] else "the last to write it is"
    return index, f"{what} step {index} ({transfer}), which brings {ranks_in_words(sent > 0)}"


def ranks_in_words(ranks: np.ndarray) -> str:
    """Return "rank 2" or "ranks 0, 1 and 3" for an array of rank numbers or a bool array [world_size]."""
    numbers = np.flatnonzero(ranks) if ranks.dtype == bool else ranks
    return f"rank{'s' if len(numbers) > 1 else ''} {listed(numbers)}"


def listed(items: Iterable) -> str:
    """Return "2", or "0, 1 and 3"."""
    texts = [str(item) for item in items]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def owners(world_size: int, num_chunks: int) -> np.ndarray:
    """Return the rank that owns each chunk when ranks get equal shares in order: int [num_chunks].

    Raises `ValueError` if `num_chunks` is not a multiple of `world_size`.
    """
    if num_chunks % world_size:
        raise ValueError(
            f"{num_chunks} chunks don't divide evenly among {world_size} ranks; use a multiple of {world_size}"
        )
    return np.arange(num_chunks) // (num_chunks // world_size)


def _everywhere(world_size: int, num_chunks: int) -> np.ndarray:
    return np.ones((world_size, num_chunks), dtype=bool)


def _on(rank: int, world_size: int, num_chunks: int) -> np.ndarray:
    return np.arange(world_size)[:, None] == np.full(num_chunks, rank)


def _shards(world_size: int, num_chunks: int) -> np.ndarray:
    return np.arange(world_size)[:, None] == owners(world_size, num_chunks)


def _terms(given: np.ndarray, wanted: np.ndarray, contributors: np.ndarray, **more) -> Terms:
    """Return terms in which every chunk keeps its place in the buffer and has the same contributors on every rank.

    `contributors`: bool [num_chunks, world_size], the ranks whose data a finished chunk contains.
    """
    ranks, chunks = given.shape
    parts = np.broadcast_to(contributors.astype(np.int64), (ranks, chunks, ranks))
    return Terms(given, wanted, parts, np.broadcast_to(np.arange(chunks), (ranks, chunks)), **more)


def _all_reduce(ranks: int, chunks: int, root: int) -> Terms:
    everywhere = _everywhere(ranks, chunks)
    return _terms(everywhere, everywhere, everywhere.T)


def _reduce_scatter(ranks: int, chunks: int, root: int) -> Terms:
    everywhere = _everywhere(ranks, chunks)
    return _terms(everywhere, _shards(ranks, chunks), everywhere.T)


def _all_gather(ranks: int, chunks: int, root: int) -> Terms:
    shards = _shards(ranks, chunks)
    return _terms(shards, _everywhere(ranks, chunks), shards.T)


def _broadcast(ranks: int, chunks: int, root: int) -> Terms:
    at_root = _on(root, ranks, chunks)
    return _terms(at_root, _everywhere(ranks, chunks), at_root.T)


def _reduce(ranks: int, chunks: int, root: int) -> Terms:
    everywhere = _everywhere(ranks, chunks)
    return _terms(everywhere, _on(root, ranks, chunks), everywhere.T)


def _scatter(ranks: int, chunks: int, root: int) -> Terms:
    at_root = _on(root, ranks, chunks)
    return _terms(at_root, _shards(ranks, chunks), at_root.T)


def _gather(ranks: int, chunks: int, root: int) -> Terms:
    shards = _shards(ranks, chunks)
    return _terms(shards, _on(root, ranks, chunks), shards.T)


def _all_to_all(ranks: int, chunks: int, root: int) -> Terms:
    """Return terms of a transpose: with one chunk per rank, slot (rank, chunk) ends with slot (chunk, rank).

    With several chunks per rank, the chunks of a share keep their order.
    """
    owner, share = owners(ranks, chunks), chunks // ranks  # share: chunks per rank
    rank, chunk = np.indices((ranks, chunks))
    everywhere = _everywhere(ranks, chunks)
    parts = np.equal.outer(owner[chunk], np.arange(ranks)).astype(np.int64)
    return Terms(everywhere, everywhere, parts, rank * share + chunk % share)


def _all_to_all_uneven(ranks: int, chunks: int, root: int) -> Terms:
    """Return terms in which chunk src x P + dst is what src sends to dst; the P x P chunks may have any lengths."""
    if chunks != ranks * ranks:
        raise ValueError(f"all_to_all_uneven needs a chunk for each pair of its {ranks} ranks, not {chunks} chunks")
    src, dst = np.divmod(np.arange(chunks), ranks)
    before, after = (np.arange(ranks)[:, None] == owner for owner in (src, dst))
    return _terms(before, after, before.T)


def _barrier(ranks: int, chunks: int, root: int) -> Terms:
    everywhere = _everywhere(ranks, chunks)
    return _terms(everywhere, everywhere, everywhere.T, repeats=True)


all_reduce = Contract("all_reduce", _all_reduce)
"""Every rank starts with a buffer and ends with the sum of all buffers."""
reduce_scatter = Contract("reduce_scatter", _reduce_scatter)
"""Every rank starts with a buffer; rank r ends with shard r of the sum."""
all_gather = Contract("all_gather", _all_gather)
"""Every rank starts with its own shard and ends with all shards."""
broadcast = Contract("broadcast", _broadcast)
"""The root starts with a buffer; every rank ends with a copy of it."""
reduce = Contract("reduce", _reduce)
"""Every rank starts with a buffer; the root ends with the sum."""
scatter = Contract("scatter", _scatter)
"""The root starts with a buffer; rank r ends with shard r of it."""
gather = Contract("gather", _gather)
"""Every rank starts with its own shard; the root ends with all shards."""
all_to_all = Contract("all_to_all", _all_to_all)
"""Every rank starts with a shard for each rank; rank r ends with every rank's shard r, in rank order: a transpose."""
all_to_all_uneven = Contract("all_to_all_uneven", _all_to_all_uneven)
"""An all-to-all whose chunks may differ in length: chunk src x P + dst goes from rank src to rank dst."""
barrier = Contract("barrier", _barrier)
"""No data moves: a rank finishes only when it knows, directly or through others, that every rank has started.

Its transfers must use "reduce", because a copy would discard earlier signals. Run it on buffers without elements."""

_ROOTED = broadcast, reduce, scatter, gather
_ROOTLESS = all_gather, reduce_scatter, all_reduce, all_to_all, all_to_all_uneven, barrier
BY_NAME = {contract.name: contract for contract in _ROOTED + _ROOTLESS}
"""Every contract by its name."""


def of(schedule: Schedule) -> Contract | None:
    """Return the contract that `schedule` names; None if it names none.

    Raises `ValueError` if there is no contract of that name.
    """
    if schedule.collective is None:
        return None
    if schedule.collective not in BY_NAME:
        known = ", ".join(BY_NAME)
        raise ValueError(f"{schedule.name}: there is no contract {schedule.collective!r}; use one of {known}")
    return BY_NAME[schedule.collective]
