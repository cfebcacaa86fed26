"""Checks of exercise 04: bytes counted rank by rank, two ring collectives on real ranks, and a checker of schedules."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from reprlib import repr as brief
from typing import Any

import numpy as np

from .. import contracts
from ..algorithms import doubling, flat, ring, tree
from ..contracts import Contract, ContractError
from ..dataflow import Contents, final_contributions
from ..price import Cost
from ..schedule import REDUCE, Schedule, Step, Transfer, chunk_bounds
from .ch03_ring import contents
from .checks import (
    Answered,
    NotYet,
    against_the_schedule,
    call_in_words,
    check_rows,
    counted,
    generator,
    number_of,
    own_answer,
    refusing,
    refusing_schedules,
)
from .on_ranks import Outcome, noise, on_ranks, same, witnessed, witnessed_arrivals, witnessed_sums

HOLDS = (".RIGHT", ".WRONG", "schedule", "simulate")  # see `wall`

Case = tuple[int, ...]
Slot = tuple[int, int]


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, the library's algorithms, prices, contracts and counts of contributions."""

    with (
        refusing_schedules(),
        refusing(Cost, "__init__", what="price"),
        refusing(Contract, "check", "terms", what="contract"),
        refusing(Contents, "__new__", what="count of contributions"),
    ):
        yield


# Part a: bytes


def every_rank(sizes: Iterable[tuple[int, ...]]) -> list[Case]:
    """Return a case `(rank, num_elements, world_size, *itemsizes)` for each rank of each size.

    `sizes`: `(num_elements, world_size, *itemsizes)`.
    """
    return [
        (rank, num_elements, world_size, *itemsizes)
        for num_elements, world_size, *itemsizes in sizes
        for rank in range(world_size)
    ]


def ring_all_reduce_sent(rank: int, num_elements: int, world_size: int, itemsize: int) -> int:
    """Count the bytes that `rank` sends in a ring all-reduce."""
    return int(_cost(ring.all_reduce, num_elements, world_size, itemsize).bytes_sent[rank])


def tree_all_reduce_sent(rank: int, num_elements: int, world_size: int, itemsize: int) -> int:
    """Count the bytes that `rank` sends in a reduce up a binomial tree and a broadcast down it, with root 0."""
    return int(_cost(tree.all_reduce, num_elements, world_size, itemsize).bytes_sent[rank])


def root_link(root: int, num_elements: int, world_size: int, itemsize: int) -> int:
    """Count the bytes into and out of `root` in an all-gather through it: shards come in, the whole goes out."""
    gathered = _cost(flat.gather, num_elements, world_size, itemsize, root).bytes_received[root]
    return int(gathered + _cost(flat.broadcast, num_elements, world_size, itemsize, root).bytes_sent[root])


def fsdp_sent(rank: int, num_params: int, world_size: int, param_itemsize: int, grad_itemsize: int) -> int:
    """Count the bytes that `rank` sends in a step of FSDP, with the whole model as one buffer and rings throughout.

    A step has two all-gathers of the parameters and a reduce-scatter of the gradients.
    """
    gathered = _cost(ring.all_gather, num_params, world_size, param_itemsize).bytes_sent[rank]
    return int(2 * gathered + _cost(ring.reduce_scatter, num_params, world_size, grad_itemsize).bytes_sent[rank])


def _cost(algorithm: Callable, num_elements: int, world_size: int, itemsize: int, *root: int) -> Cost:
    return counted(algorithm(world_size, *root), num_elements, itemsize)


def check_bytes(
    function: Callable, truth: Callable, slips: Callable, cases: Iterable[Case], hidden: bool = False
) -> None:
    """Check that `function(*case)` is the number `truth(*case)` in all `cases`, without help from the library.

    `slips(want, *case)`: {a slip in words: the number that it leads to}. `hidden`: leave the right number out of the
    message.
    """
    rows = []
    for case in cases:
        call, want = call_in_words(function, case), truth(*case)
        rows.append(Answered(call, number_of(own_answer(__name__, function, *case), call), want, slips(want, *case)))
    check_rows(rows, _another_number if hidden else against_the_schedule)


def _another_number(row: Answered) -> str:
    return f"{row.call} returns {row.got:,.12g}, but the schedule says another number"


def _shares(rank: int, num_elements: int, world_size: int) -> tuple[int, int]:
    """Return the lengths of this rank's chunk and of its right-hand neighbour's."""
    lengths = np.diff(chunk_bounds(num_elements, world_size))
    return int(lengths[rank]), int(lengths[(rank + 1) % world_size])


EVEN = "this takes all chunks to be equally long; chunk_bounds says how long each one is"
ELEMENTS = "these are elements, not bytes"
DOWN, UP = "this rounds the length of every chunk down", "this rounds the length of every chunk up"


def ring_slips(want: int, rank: int, n: int, world_size: int, itemsize: int) -> dict[str, float]:
    """Return the slips for the bytes that a rank sends in a ring all-reduce of `n` elements."""
    own, next_one = _shares(rank, n, world_size)
    steps = 2 * (world_size - 1)
    return {
        EVEN: steps * n / world_size * itemsize,
        DOWN: steps * (n // world_size) * itemsize,
        UP: steps * -(-n // world_size) * itemsize,
        ELEMENTS: want / itemsize,
        "this is the reduce-scatter alone": (n - own) * itemsize,
        "this is the all-gather alone": (n - next_one) * itemsize,
        "the reduce-scatter doesn't send this rank's own chunk; which one does the all-gather not send?": 2
        * (n - own)
        * itemsize,
        "this sends every chunk in both phases; a rank sends P - 1 of its P chunks": 2 * n * itemsize,
        "this counts all ranks together": steps * n * itemsize,
    }


def tree_slips(want: int, rank: int, n: int, world_size: int, itemsize: int) -> dict[str, float]:
    """Return the slips for the bytes that a rank sends in a tree all-reduce."""
    whole = n * itemsize
    up, depth = whole * (rank > 0), (world_size - 1).bit_length()
    full = next((k for k in range(depth) if rank >> k & 1), depth)  # children, if no rank were missing
    return {
        ELEMENTS: want / itemsize,
        "this is the reduce alone; then the sum comes back down": up,
        "this is the broadcast alone; before it every rank but the root sends its sum up": want - up,
        "the root has nobody to send its sum up to": want + whole * (rank == 0),
        "this counts children that don't exist: ranks end at P - 1": up + full * whole,
        "this gives every rank as many children as the root": up + depth * whole,
        "this cuts the buffer into chunks; a tree sends it whole": want / world_size,
        "this is what a ring sends": ring_all_reduce_sent(rank, n, world_size, itemsize),
    }


def root_slips(want: int, root: int, n: int, world_size: int, itemsize: int) -> dict[str, float]:
    """Return the slips for the bytes on the link of a root that gathers the shards and sends the whole out."""
    own, _ = _shares(root, n, world_size)
    into, out = (n - own) * itemsize, (world_size - 1) * n * itemsize
    return {
        ELEMENTS: want / itemsize,
        EVEN: (n - n / world_size) * itemsize + out,
        DOWN: (world_size - 1) * (n // world_size) * itemsize + out,
        "this is what comes in; the whole also goes out": into,
        "this is what goes out; the shards also come in": out,
        "the root's own shard is there already": want + own * itemsize * (world_size > 1),
        "the root doesn't send to itself: there are P - 1 other ranks": want + n * itemsize,
        "each of the others sends its shard only, not a whole buffer": 2 * out,
    }


def fsdp_slips(
    want: int, rank: int, n: int, world_size: int, param_itemsize: int, grad_itemsize: int
) -> dict[str, float]:
    """Return the slips for the bytes that a rank sends in a step of FSDP on `n` parameters."""
    own, next_one = _shares(rank, n, world_size)
    gather, reduce = (n - next_one) * param_itemsize, (n - own) * grad_itemsize
    even = (world_size - 1) / world_size * n
    return {
        "these are elements: count each collective's bytes with its own itemsize": 2 * (n - next_one) + n - own,
        EVEN: even * (2 * param_itemsize + grad_itemsize),
        "this sends everything at the parameters' itemsize": 2 * gather + (n - own) * param_itemsize,
        "this sends everything at the gradients' itemsize": (2 * (n - next_one) + n - own) * grad_itemsize,
        "this gives the gradients two collectives and the parameters one": (n - next_one) * param_itemsize
        + 2 * (n - own) * grad_itemsize,
        "the parameters are gathered twice: before the forward and before the backward pass": gather + reduce,
        "this leaves out the reduce-scatter of the gradients": 2 * gather,
        "the gradients need a reduce-scatter, which is half an all-reduce": want
        + gather / param_itemsize * grad_itemsize,
        "an all-gather doesn't send the right-hand neighbour's chunk": (n - own) * (2 * param_itemsize + grad_itemsize),
    }


# Part b: real ranks


def check_gathered(
    function: Callable, world_size: int, num_elements: int, dtype: type = np.int64, seed: int | None = None
) -> list[Outcome]:
    """Check on real ranks that `function(rank, world_size, buffer)` leaves all chunks in every rank's buffer.

    Before, only chunk r of rank r's buffer counts, and the rest is junk. With a `seed` the elements are random float32,
    and so is the junk, which tells nothing of the other chunks; the check also looks at what crossed the wire.
    """
    bounds = chunk_bounds(num_elements, world_size)
    if seed is None:
        whole: np.ndarray = (np.arange(num_elements) + 1).astype(dtype)
        before = np.stack([-(rank + 2) * whole for rank in range(world_size)])
    else:
        numbers = noise(1 + world_size, num_elements, seed)
        whole, before = numbers[0], numbers[1:]
    for rank in range(world_size):
        before[rank, bounds[rank] : bounds[rank + 1]] = whole[bounds[rank] : bounds[rank + 1]]
    outcomes = on_ranks(function, before)
    for rank, chunk in product(range(world_size), repeat=2):
        part = slice(bounds[chunk], bounds[chunk + 1])
        if not same(outcomes[rank].buffer[part], whole[part]):
            held = _gathered(outcomes[rank].buffer[part], before[rank, part], whole[part], whole, bounds)
            raise NotYet(f"{_sizes(function, world_size, num_elements)}: chunk {chunk} on rank {rank} {held}")
    if seed is not None:
        witnessed(outcomes, (world_size - 1) * whole.nbytes)
        places = generator().integers(num_elements - 1, size=20)
        owners = np.searchsorted(bounds, places, side="right") - 1
        needed = [[rank for rank in range(world_size) if rank != owner] for owner in owners]
        pairs = [{whole[place : place + 2].tobytes()} for place in places]
        witnessed_arrivals(outcomes, zip(pairs, needed, strict=True))
    return outcomes


def check_reduced(function: Callable, buffers: np.ndarray) -> list[Outcome]:
    """Check on real ranks that `function(rank, world_size, buffer)` leaves the sum of `buffers` in every buffer."""
    world_size, num_elements = buffers.shape
    total, bounds = buffers.sum(axis=0), chunk_bounds(num_elements, world_size)
    outcomes = on_ranks(function, buffers)
    for rank, chunk in product(range(world_size), repeat=2):
        part = slice(bounds[chunk], bounds[chunk + 1])
        got, want = outcomes[rank].buffer[part], total[part]
        if not same(got, want):
            summed = contents(got, chunk, bounds) if np.issubdtype(buffers.dtype, np.integer) else None
            held = f"is {summed}" if summed else f"is {brief(got.tolist())}, but the sum is {brief(want.tolist())}"
            if same(outcomes[rank].buffer, buffers[rank]):
                held = "is what it was: the sum must be in `buffer`, so work in place"
            raise NotYet(f"{_sizes(function, world_size, num_elements)}: chunk {chunk} on rank {rank} {held}")
    witnessed_sums(outcomes, buffers, kept=[num_elements] * world_size)
    return outcomes


def check_ring(outcomes: list[Outcome], function: Callable, num_elements: int, itemsize: int, phases: int) -> None:
    """Check that ranks sent as in a ring of `phases` phases: a chunk a step to one neighbour, all the same way round.

    The ring may go either way round, and finish a chunk on any rank.
    """
    world_size = len(outcomes)
    who = _sizes(function, world_size, num_elements)
    ways = {(peer - rank) % world_size for rank, outcome in enumerate(outcomes) for peer in outcome.bytes_to}
    if not (ways <= {1} or ways <= {world_size - 1}):
        sends = [f"rank {rank} to {sorted(outcome.bytes_to)}" for rank, outcome in enumerate(outcomes)]
        raise NotYet(f"{who}: in a ring every rank sends to one neighbour, all the same way; here {', '.join(sends)}")
    longest = -(-num_elements // world_size) * itemsize
    most = phases * (world_size - 1)
    for rank, outcome in enumerate(outcomes):
        sent = sum(outcome.bytes_to.values())
        if sent > most * longest or outcome.messages > most:
            raise NotYet(
                f"{who}, of {itemsize} bytes each: rank {rank} sends {sent} bytes in {outcome.messages} messages; a "
                f"ring sends a chunk a step, at most {most * longest} bytes in {most}"
            )
    needed = most * num_elements * itemsize
    if (sent := sum(sum(outcome.bytes_to.values()) for outcome in outcomes)) != needed:
        raise NotYet(f"{who}, of {itemsize} bytes each: all ranks together send {sent} bytes; a ring sends {needed}")
    witnessed(outcomes, needed, needed)


def _sizes(function: Callable, world_size: int, num_elements: int) -> str:
    ranks = f"{world_size} rank{'s' * (world_size > 1)}"
    return f"{function.__name__} with {ranks} and {num_elements} element{'s' * (num_elements != 1)}"


def _gathered(got: np.ndarray, before: np.ndarray, want: np.ndarray, whole: np.ndarray, bounds: np.ndarray) -> str:
    """Return, in words, what a wrong chunk of an all-gather holds; `before`: what was there, `want`: what belongs."""
    if same(got, before):
        return "was never written (does a receive wait? does the ring go round far enough?)"
    for chunk in range(len(bounds) - 1):
        other = whole[bounds[chunk] : bounds[chunk + 1]]
        if len(other) == len(got) and same(got, other):
            return f"holds chunk {chunk}"
        if len(other) == len(got) and same(got, before + other):
            return "holds junk plus what arrived: an all-gather copies and adds nothing"
    wrong = np.flatnonzero(got != want)
    if len(wrong) < len(got):
        there = f"{got[wrong[0]]} where {want[wrong[0]]} belongs, and elsewhere what it should"
        return f"holds {there}: chunk_bounds says where a chunk begins and ends"
    return f"holds {brief(got.tolist())}, which is no chunk of the whole"


# Part c: a checker of schedules


def right_schedules() -> dict[str, Schedule]:
    """Return four schedules that are all-reduces, {name: schedule}."""
    made = {
        "a ring": ring.all_reduce(4),
        "a ring the other way round": ring.all_reduce(5).placed([0, 4, 3, 2, 1]),
        "recursive doubling": doubling.all_reduce(4),
        "a tree": tree.all_reduce(6),
    }
    return {name: _written_down(schedule) for name, schedule in made.items()}


def _written_down(schedule: Schedule) -> Schedule:
    """Return a schedule that has its steps as data: behind the wall no algorithm is left to make them."""
    names = {"name": schedule.name, "collective": schedule.collective}
    return Schedule.of(schedule.world_size, schedule.num_chunks, schedule, **names)


def wrong_schedules() -> dict[str, Schedule]:
    """Return six schedules that are not, {what is wrong: schedule}."""
    four = [list(step) for step in ring.all_reduce(4)]
    gather_to_the_left = [Transfer(t.src, (t.src - 1) % 4, t.chunk) for t in four[5]]
    stale = [[Transfer(r, (r + 1) % 4, (r - 1 - step) % 4) for r in range(4)] for step in range(3)]
    chain = [[Transfer(r, r + 1, 0, REDUCE) for r in range(3)]]
    back = [[Transfer(r, r - 1, 0)] for r in (3, 2, 1)]
    dissemination = [[Transfer(r, (r + d) % 6, 0, REDUCE) for r in range(6)] for d in (1, 2, 4)]
    return {
        "a rank is missing": as_schedule(4, 4, [four[0], four[1][1:], *four[2:]]),
        "a rank counts twice": as_schedule(4, 4, [[Transfer(3, 2, 2, REDUCE)], *four]),
        "a chunk goes to the wrong rank": as_schedule(4, 4, [*four[:5], gather_to_the_left]),
        "a stale slot is forwarded": as_schedule(4, 4, [*four[:3], *stale]),
        "a step reads what the same step writes": as_schedule(4, 1, [*chain, *back]),
        "right for 4 ranks only": as_schedule(6, 1, dissemination),
    }


def as_schedule(world_size: int, num_chunks: int, steps: Iterable[Iterable]) -> Schedule:
    """Return the steps as a schedule that names no collective."""
    return Schedule.of(world_size, num_chunks, steps)


RIGHT, WRONG = right_schedules(), wrong_schedules()  # made before there is a wall: a student's cells may use them


def steps_in(schedule: Schedule) -> list[list[Transfer]]:
    """Return a schedule's steps as lists of transfers, each of one chunk that keeps its place."""
    return [list(step.singles if isinstance(step, Step) else step) for step in schedule]


def ends_wrong(schedule: Schedule) -> set[Slot]:
    """Return the slots (rank, chunk) that don't end with every rank's chunk exactly once."""
    counts = final_contributions(schedule).ranks
    return {(int(rank), int(chunk)) for rank, chunk in np.argwhere((counts != 1).any(axis=-1))}


def check_verdicts(function: Callable, schedules: Mapping[str, Schedule], slots: bool = False) -> None:
    """Check that `function(steps, world_size, num_chunks)` names a slot just where a schedule is no all-reduce.

    `slots`: it must name all the wrong slots and no others. The message says what is wrong with the schedule.
    """
    for name, schedule in schedules.items():
        _judge(function, schedule, f"{function.__name__} on {name!r}", _found(function, schedule), slots, shown=True)


def check_unseen(function: Callable, schedules: Mapping[str, Schedule], slots: bool = False) -> None:
    """Check the verdicts on schedules that the learner can't see, under each renumbering of the ranks by a rotation.

    The order of the questions is random, and the message is that of the first wrong verdict in the order of
    `schedules`: so it doesn't depend on chance. It says what kind of schedule is misjudged, and not where it is wrong.
    """
    turned = [
        (
            f"{function.__name__} on {name!r} with {schedule.world_size} ranks",
            schedule.placed(_rotation(schedule, by)),
        )
        for name, schedule in schedules.items()
        for by in range(schedule.world_size)
    ]
    found: dict[int, set[Slot] | NotYet] = {}
    for number in generator().permutation(len(turned)):
        try:
            found[number] = _found(function, turned[number][1])
        except NotYet as refused:
            found[number] = refused
    for number, (who, schedule) in enumerate(turned):
        answered = found[number]
        if isinstance(answered, NotYet):
            raise answered
        _judge(function, schedule, who, answered, slots, shown=False)


def _rotation(schedule: Schedule, by: int) -> list[int]:
    return [(rank + by) % schedule.world_size for rank in range(schedule.world_size)]


def _found(function: Callable, schedule: Schedule) -> set[Slot]:
    """Return the slots that the learner's checker names; raise `NotYet` if it returns no collection of slots."""
    sizes = schedule.world_size, schedule.num_chunks
    call = f"{function.__name__}(<steps>, {sizes[0]}, {sizes[1]})"
    result = own_answer(__name__, function, steps_in(schedule), *sizes, call=call)
    if not isinstance(result, list | tuple | set | frozenset | dict | np.ndarray):
        raise NotYet(f"{call} returns {brief(result)}; return a list of the wrong slots (rank, chunk), [] if none is")
    return {_slot(item, call, sizes) for item in result}


def _slot(item: Any, call: str, sizes: tuple[int, int]) -> Slot:
    try:
        rank, chunk = map(operator.index, item)
    except (TypeError, ValueError):
        raise NotYet(f"{call} returns a list with {brief(item)}; a slot is (rank, chunk)") from None
    if not (0 <= rank < sizes[0] and 0 <= chunk < sizes[1]):
        raise NotYet(
            f"{call} names the slot {(rank, chunk)}; ranks are 0 to {sizes[0] - 1}, chunks 0 to {sizes[1] - 1}"
        )
    return rank, chunk


def _judge(function: Callable, schedule: Schedule, who: str, found: set[Slot], slots: bool, shown: bool) -> None:
    """Raise `NotYet` for a wrong verdict, or for other slots than the wrong ones; only if `shown` say which."""
    wrong = ends_wrong(schedule)
    if found and not wrong:
        named = f" {_named(found)}" if shown else ""
        raise NotYet(f"{who}: it names{named or ' slots'} as wrong, but the schedule is an all-reduce")
    if wrong and not found:
        raise NotYet(f"{who}: it finds nothing wrong, but the schedule is no all-reduce{_fault(schedule) * shown}")
    if not slots or found == wrong:
        return
    kinds = [("it leaves out", wrong - found), ("it names the right", found - wrong)]
    named = " and ".join(f"{does} {_named(those) if shown else 'slots'}" for does, those in kinds if those)
    raise NotYet(f"{who}: {named}")


def _named(slots: set[Slot]) -> str:
    listed = contracts.listed(sorted(slots)[:3])
    more = f" and {len(slots) - 3} more" if len(slots) > 3 else ""
    return f"slot{'s' * (len(slots) > 1)} {listed}{more}"


def _fault(schedule: Schedule) -> str:
    try:
        contracts.all_reduce.check(schedule)
    except ContractError as error:
        return f": {error}"
    return ""
