"""Checks of exercise 06: a pairing that leaves no rank waiting, and the all-to-all that it makes possible.

A **pairing** is what the learner's `peers(rank, world_size)` returns for all ranks: each rank's partner in each round.
Here it is `table[round][rank]`, a partner or None.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import combinations, islice, product
from reprlib import repr as brief
from typing import Any

import numpy as np

from .. import contracts, topology
from ..contracts import ContractError
from ..execute import Part
from ..price import price
from ..ranks import find_cycle
from ..schedule import Schedule, Step, Transfer
from .checks import (
    DRAWN,
    MAX_STEPS,
    NotYet,
    answer,
    call_in_words,
    check_kept,
    generator,
    refusing,
    refusing_schedules,
    show,
    steps_of,
)
from .on_ranks import on_ranks, witnessed, witnessed_terms

HOLDS = ("schedule", *DRAWN)  # see `wall`

Table = list[list[int | None]]


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, to make or read a schedule of the library, and to execute any schedule."""

    with (
        refusing_schedules(),
        refusing(Part, "of", what="execute"),
    ):
        yield


# Part a: the pairing


def check_mutual(peers: Callable, world_size: int) -> Table:
    """Check that partners name each other in every round; return the pairing.

    If they don't, show the table and name the ranks that wait.
    """
    table = _table(peers, world_size)
    for number, partners in enumerate(table):
        if waits := _waits(partners):
            show(PairingTable(table))
            raise NotYet(f"{peers.__name__} with {world_size} ranks, round {number}: {_who_waits(waits, partners)}")
    return table


def check_every_pair(peers: Callable, world_size: int) -> Table:
    """Check that the pairing is mutual and every two ranks meet in exactly one round; return it."""
    table = check_mutual(peers, world_size)
    for pair in combinations(range(world_size), 2):
        rounds = [number for number, partners in enumerate(table) if partners[pair[0]] == pair[1]]
        if len(rounds) != 1:
            show(PairingTable(table, marked={(number, rank) for number in rounds for rank in pair}))
            met = f"meet in rounds {' and '.join(map(str, rounds))}" if rounds else "never meet"
            raise NotYet(
                f"{peers.__name__} with {world_size} ranks: ranks {pair[0]} and {pair[1]} {met}; "
                "each pair meets exactly once"
            )
    return table


def check_rounds(peers: Callable, world_size: int, most: int) -> None:
    """Check that a right pairing takes at most `most` rounds; if not, name the round with the most idle ranks."""
    table = check_every_pair(peers, world_size)
    if len(table) > most:
        show(PairingTable(table))
        idle = [sum(peer is None for peer in partners) for partners in table]
        busiest = max(idle)
        raise NotYet(
            f"{peers.__name__} with {world_size} ranks takes {len(table)} rounds, and {_enough(most)}: in round "
            f"{idle.index(busiest)} there {'are' if busiest > 1 else 'is'} {busiest} without a partner"
        )


def fewest_rounds(world_size: int) -> int:
    """Return the fewest rounds in which every two ranks meet; with an odd number, one rank sits out each round."""
    return world_size if world_size % 2 else world_size - 1


def _enough(most: int) -> str:
    return f"{most} {'is' if most == 1 else 'are'} enough"


def _table(peers: Callable, world_size: int) -> Table:
    """Return what `peers` returns for all ranks, by round; raise `NotYet` if that is no pairing at all."""
    columns = [_column(peers, rank, world_size) for rank in range(world_size)]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        other = next(rank for rank in range(world_size) if lengths[rank] != lengths[0])
        raise NotYet(
            f"{peers.__name__} with {world_size} ranks gives rank 0 {lengths[0]} rounds and rank {other} "
            f"{lengths[other]}; a rank without a partner in some round has None there"
        )
    return [list(partners) for partners in zip(*columns, strict=True)]


def _column(peers: Callable, rank: int, world_size: int) -> list[int | None]:
    """Return one rank's partners, by round."""
    call = call_in_words(peers, (rank, world_size))
    result = answer(peers, rank, world_size)
    if isinstance(result, dict | set | frozenset):
        raise NotYet(f"{call} returns a {type(result).__name__}; return a list")
    if not isinstance(result, Iterable) or isinstance(result, str):
        raise NotYet(f"{call} returns {brief(result)}, which is not a list of partners")
    partners = list(islice(result, MAX_STEPS))
    if len(partners) == MAX_STEPS:
        raise NotYet(f"{call} returns {MAX_STEPS} rounds or more: does it ever stop?")
    return [_partner(peer, f"{call}, round {number}", rank, world_size) for number, peer in enumerate(partners)]


def _partner(peer: Any, where: str, rank: int, world_size: int) -> int | None:
    if peer is None:
        return None
    try:
        peer = operator.index(peer)
    except TypeError:
        raise NotYet(f"{where}: {brief(peer)} is no partner; that is a rank's number, or None") from None
    if not 0 <= peer < world_size:
        raise NotYet(f"{where}: the partner is rank {peer}, but the ranks are 0 to {world_size - 1}")
    if peer == rank:
        raise NotYet(f"{where}: rank {rank} is its own partner; a rank that sits a round out has None there")
    return peer


def _waits(partners: list[int | None]) -> dict[int, int]:
    """Return {rank: peer} for the ranks that wait in a round: their peer has another partner, or none."""
    return {rank: peer for rank, peer in enumerate(partners) if peer is not None and partners[peer] != rank}


def _who_waits(waits: dict[int, int], partners: list[int | None]) -> str:
    """Return in words which rank waits for which; name the ranks of a cycle in order."""
    rank, peer = next(iter(waits.items()))
    other = "None" if partners[peer] is None else f"rank {partners[peer]}"
    fault = f"rank {rank} waits for rank {peer}, whose partner is {other}"
    if cycle := find_cycle({**waits}):  # a copy, typed to allow None
        fault += f". Each waits for the next: {' → '.join(f'rank {rank}' for rank in cycle)}"
    elif len(waits) > 1:
        fault += f"; {len(waits)} ranks wait in all"
    return fault


class PairingTable:
    """A pairing as a table, one line a round.

    Ranks whose partner has another partner are red, and so are those `marked` as (round, rank).
    """

    def __init__(self, table: Table, marked: Set[tuple[int, int]] = frozenset()):
        self.table = table
        self.marked = marked | {(number, rank) for number, partners in enumerate(table) for rank in _waits(partners)}

    def __repr__(self) -> str:
        lines = ["   rank  " + "  ".join(str(rank) for rank in range(len(self.table[0])))] if self.table else []
        for number, partners in enumerate(self.table):
            cells = [self._cell(number, rank) for rank in range(len(partners))]
            lines.append(f"round {number:<2} " + " ".join(f"{cell:<2}" for cell in cells))
        return "\n".join(lines)

    def _cell(self, number: int, rank: int) -> str:
        peer = self.table[number][rank]
        return ("·" if peer is None else str(peer)) + ("!" if (number, rank) in self.marked else "")

    def _repr_html_(self) -> str:
        padding, red = "padding: .1rem .6rem; text-align: center", "outline: 2px solid #d1242f; font-weight: bold"
        rows = "".join(
            f'<tr><th style="{padding}">round {number}</th>'
            + "".join(
                f'<td style="{padding}{"; " + red if (number, rank) in self.marked else ""}">'
                f"{self._cell(number, rank)}</td>"
                for rank in range(len(partners))
            )
            + "</tr>"
            for number, partners in enumerate(self.table)
        )
        ranks = range(len(self.table[0]) if self.table else 0)
        head = "".join(f'<th style="{padding}">rank {rank}</th>' for rank in ranks)
        return (
            '<table style="border-collapse: collapse; color: inherit">'
            f"<thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"
            "<p>Each rank's partner, by round; · is none. Red and !: look here.</p>"
        )


# Part b: the schedule


def check_all_to_all(function: Callable, world_size: int) -> Schedule:
    """Check that `function(world_size)` gives the steps of an all-to-all, in place; return the schedule.

    Draw a wrong one, and name a chunk that a step overwrites before it is sent.
    """
    call = call_in_words(function, [world_size])
    steps = steps_of(function, world_size, checks=__name__)
    sizes = world_size, world_size
    return check_kept(steps, call, contracts.all_to_all, *sizes, lambda _, error: _remark(steps, error))


def _remark(steps: list[list[Transfer]], error: ContractError) -> str:
    """Return a sentence that names the common slip behind a wrong all-to-all; "" if it is none of them."""
    transfers = [transfer for step in steps for transfer in step]
    if transfers and all(t.combine != "copy" for t in transfers):
        return " Chunks change places in an all-to-all: copy them, do not add them."
    if transfers and all(t.lands == t.chunk for t in transfers):
        return " Every chunk lands in the chunk of its own number: set `into` to its place on the receiver."
    owner, chunk = error.chunk, error.rank  # where the missing data started
    filled = [index for index, step in enumerate(steps) for t in step if (t.dst, t.lands) == (owner, chunk)]
    sent = [index for index, step in enumerate(steps) for t in step if t[:3] == (owner, error.rank, chunk)]
    if filled and sent and filled[0] < sent[0]:
        return (
            f" Step {filled[0]} overwrites chunk {chunk} on rank {owner}, before step {sent[0]} sends it: "
            "fill a slot in the step that empties it."
        )
    return ""


def check_direct(function: Callable, world_size: int) -> None:
    """Check that a right schedule sends no chunk twice and has at most as many messages in a row as rounds."""
    schedule = check_all_to_all(function, world_size)
    most = fewest_rounds(world_size)
    cost = price(schedule, world_size, topology.uniform(world_size, alpha=1, beta=0))  # 1 s a message, 1 byte a chunk
    in_a_row = min(cost.seconds, sum(map(_busiest, schedule)))  # the price depends on the order within a step
    if cost.bytes_sent.max() > world_size - 1:
        rank, sent = int(cost.bytes_sent.argmax()), cost.bytes_sent.max()
        raise NotYet(f"{schedule.name}: rank {rank} sends {sent} chunks; it has only {world_size - 1} for others")
    if in_a_row > most:
        raise NotYet(
            f"{schedule.name} takes {in_a_row:.0f} messages in a row, and {_enough(most)}: in some step several "
            "ranks send to the same one, or ranks sit idle"
        )


def _busiest(step: Step) -> int:
    """Return how many messages the busiest rank sends, or receives, in this step: it needs as many turns."""
    return int(max(np.bincount(step.src).max(), np.bincount(step.dst).max())) if len(step) else 0


# Part c: real ranks


def check_exchange(function: Callable, world_size: int, num_elements: int, seed: int | None = None) -> None:
    """Check on real ranks that row s of `function(rank, world_size, chunks)` is what rank s had for this rank.

    `chunks`: int64 [world_size, num_elements]; each element encodes its sender, its receiver and its index. With a
    `seed` the elements are random instead, and the check also looks at what crossed the wire.
    """
    everyone = range(world_size)
    if seed is None:
        before = np.array([[_chunk(src, dst, num_elements) for dst in everyone] for src in everyone])
    else:
        before = np.random.default_rng(seed).integers(1, 2**62, (world_size, world_size, num_elements))
    outcomes = on_ranks(function, before)
    allowed = (world_size - 1) * before[0, 0].nbytes
    for rank, outcome in enumerate(outcomes):
        got, want = outcome.returned, before[:, rank]
        who = f"with {world_size} rank{'s' * (world_size > 1)}, rank {rank}"
        if isinstance(got, str):
            raise NotYet(f"{who} returns a value of type {got}; return a tensor with a row from each rank")
        if got.shape != want.shape:
            raise NotYet(f"{who} returns a tensor of shape {list(got.shape)}; it must be {list(want.shape)}")
        if got.dtype.kind not in "iu":  # compared with floats, integers would be rounded, too
            raise NotYet(f"{who} returns numbers of {got.dtype}, which rounds them; keep the dtype of `chunks`")
        if not np.array_equal(got, want):
            raise NotYet(f"{who}: of what it returns, {_wrong_row(got, want, rank)}")
        sent = sum(outcome.bytes_to.values())
        if sent > allowed:
            raise NotYet(f"{who} sends {sent} bytes; its chunks for the others have {allowed}")
    if seed is not None:  # a rank can compute the encoded elements by itself, but not the random ones
        witnessed(outcomes, world_size * allowed, world_size * allowed)
        places = generator().integers(num_elements, size=before.shape[:2])
        chunks = [(src, dst) for src, dst in product(everyone, repeat=2) if src != dst]
        witnessed_terms(outcomes, [{before[chunk][places[chunk]].tobytes()} for chunk in chunks])


def _chunk(src: int, dst: int, num_elements: int) -> np.ndarray:
    """Return what rank `src` has for rank `dst`: all elements differ, and none is 0, as in a row never filled.

    They are so large that floats, which hold 24 or 53 bits, would round them.
    """
    return 2**60 + ((src + 1) * 100 + dst + 1) * 100 + np.arange(num_elements) + 1


def _wrong_row(got: np.ndarray, want: np.ndarray, rank: int) -> str:
    """Return what the first wrong row on `rank` holds: "row 2 is what rank 0 had for rank 1, where ..."."""
    row = int(np.argwhere((got != want).any(axis=1))[0, 0])
    here = got[row]
    if np.array_equal(np.sort(here), want[row]):
        return f"row {row} is what rank {row} had for rank {rank}, but in another order"
    if any(np.array_equal(here, _rounded(want[row], dtype)) for dtype in ("float32", "float64")):
        return f"row {row} is what rank {row} had for rank {rank}, rounded as floats are: keep the dtype of `chunks`"
    if row == rank:
        return f"row {row} isn't rank {rank}'s own chunk, which stays with it: copy it there"
    if not here.any():
        return f"row {row} is all zeros: nothing had arrived there when it returned"
    if np.array_equal(here, _chunk(rank, row, len(here))):
        return (
            f"row {row} is still what rank {rank} had for rank {row}: nothing from rank {row} had arrived there when "
            "it returned"
        )
    held = brief(here.tolist())
    for src, dst in product(range(len(want)), repeat=2):
        if np.array_equal(here, _chunk(src, dst, len(here))):
            held = f"what rank {src} had for rank {dst}"
    return f"row {row} is {held}, where what rank {row} had for rank {rank} belongs"


def _rounded(numbers: np.ndarray, dtype: str) -> np.ndarray:
    return numbers.astype(dtype).astype(numbers.dtype)
