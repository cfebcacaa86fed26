"""What the exercises check answers with: each check returns quietly, or says in words what is not right yet.

A check calls the learner's function itself, so that an answer which is missing, malformed or never ends is told of
as plainly as one which is wrong. The truth always comes from a schedule (by `contracts` or by `price`) or from the
numbers themselves: no formula is written down here.

**What is graded runs in two places.** When a submission is graded, the learner's functions live in a sandbox, and a
check runs outside it; what it passes in and gets back is plain data. Three kinds of functions run inside whole, next
to the learner's: those of `own` and of `ranks.run`, and those that say so in their docstrings. They only observe. A
learner's code could forge what they report, so no right value is computed or known in there, a rank is given its own
input alone (`ranks.PerRank`), all comparing is done afterwards and outside, and where the bytes that ranks moved were
counted from outside too, the two must agree (`witnessed`).
"""

from __future__ import annotations

import contextlib
import importlib
import math
import operator
import re
import secrets
import sys
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import deepcopy
from itertools import islice, pairwise
from numbers import Real
from pathlib import Path
from random import Random
from reprlib import repr as brief
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from .. import ranks, topology
from ..contracts import Contract, ContractError, ranks_in_words
from ..draw import draw
from ..execute import execute
from ..price import Cost, price
from ..schedule import Schedule, ScheduleError, Step, Transfer, chunk_bounds

PATIENCE = 10.0  # seconds that real ranks may take: an answer needs well under one, so ten are a deadlock
LINE = 100  # characters: longer lines would be cut off on a feedback page
MAX_STEPS = 1000  # an answer with more steps than this goes on for ever


class NotYet(AssertionError):
    """An answer that is not right yet. A notebook shows its words alone, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        lines = f"Not right yet: {self}".splitlines()
        return [
            fill(line, LINE, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False) for line in lines
        ]


class LibraryUsed(NotYet):
    """An answer that leaves its work to the library."""


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """In here no algorithm of the library can be read, and nothing be executed: a reminder to learners, not a lock."""
    executing = sys.modules[execute.__module__]  # `collectives.execute` itself is the function
    read, parts = Schedule.__iter__, executing.parts

    def refuse(what: str) -> None:
        raise LibraryUsed(f"the library's own {what} is for comparing, afterwards; write this part yourself")

    def read_own(schedule: Schedule) -> Iterator[Step]:
        return refuse(schedule.name) if schedule.collective else read(schedule)  # a learner's names no collective

    Schedule.__iter__, executing.parts = read_own, lambda *_: refuse("execute")  # both are looked up at every call
    try:
        yield
    finally:
        Schedule.__iter__, executing.parts = read, parts


class Refused(NamedTuple):
    """Words on an answer that leaves its work to the library, and on where it does."""

    words: str


def own(checks: str, function: Callable, *args: Any) -> Any:
    """What `function(*args)` returns, the library unused; generators as lists. Runs where the learner's code does.

    `checks`: the name of the module of checks whose `without_the_library` holds meanwhile.
    """
    try:
        with importlib.import_module(checks).without_the_library():
            return _read(function(*args))
    except LibraryUsed as error:
        return Refused(f"{error}{_learners_line(error)}")


def own_answer(checks: str, function: Callable, *args: Any, call: str | None = None) -> Any:
    """What the learner's function returns, as from `answer`, with the library unused, as in `own`."""
    call = call or call_in_words(function, args)

    def called(*args: Any) -> Any:
        return own(checks, function, *args)

    called.__name__ = function.__name__
    given = answer(called, *args, call=call)
    if isinstance(given, Refused):
        raise NotYet(f"{call}: {given.words}")
    return given


@contextlib.contextmanager
def fresh(seed: int | None = None) -> Iterator[int]:
    """A seed that nobody knows beforehand, for the inputs of a hidden test; a refusal in here tells it.

    `seed`: that same one again, to see what a submission was refused for.
    """
    seed = secrets.randbelow(10**9) if seed is None else seed
    try:
        yield seed
    except NotYet as error:
        raise type(error)(f"{error}\n  (drawn at random, with seed {seed})") from None


def answer(function: Callable, *args: Any, call: str | None = None) -> Any:
    """What the learner's function returns; an error in it is told with the learner's own line.

    `call`: how to write the call in words, where its arguments are too long to be shown. Generators come as lists.
    """
    call = call or call_in_words(function, args)
    try:
        result = _read(function(*args))
    except NotImplementedError:
        raise NotYet(f"{function.__name__} is not written yet") from None
    except LibraryUsed as error:
        raise NotYet(f"{call}: {error}{_learners_line(error)}") from None
    except Exception as error:
        raise NotYet(f"{call} ends in {type(error).__name__}: {error}{_learners_line(error)}") from error
    if result is None:
        raise NotYet(f"{call} returns None; is its `return` missing?")
    return result


def _read(given: Any) -> Any:
    """What generators give, up to `MAX_STEPS` items, read while the learner's function still counts as running.

    An inner one is read before the outer one goes on: it may look at a variable that is another by then.
    """
    if isinstance(given, Iterator):
        given = islice(given, MAX_STEPS)
    elif not isinstance(given, list):
        return given
    return [list(item) if isinstance(item, Iterator) else item for item in given]


def call_in_words(function: Callable, args: Iterable) -> str:
    """The call as a learner would write it, such as "peers(0, 4)"."""
    return f"{function.__name__}({', '.join(map(brief, args))})"


def _learners_line(error: Exception) -> str:
    """Where in the learner's notebook an error came from; "" if it came from nowhere there."""
    library = Path(__file__).parents[1]
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if library not in Path(frame.filename).parents
    ]
    return f"\n  line {frames[-1].lineno} of {frames[-1].name}: {frames[-1].line}" if frames else ""


# Schedules


def check_schedule(function: Callable, world_size: int, contract: Contract) -> Schedule:
    """Check that `function(world_size)` gives the steps of a schedule that keeps `contract`; return the schedule.

    A schedule that breaks its contract is drawn up to the step that goes wrong.
    """
    call = call_in_words(function, [world_size])
    steps = steps_of(function, world_size)
    return check_kept(steps, call, contract, world_size, world_size, lambda schedule, _: _leftward(schedule))


def check_kept(
    steps: list[list[Transfer]],
    call: str,
    contract: Contract,
    world_size: int,
    num_chunks: int,
    remark: Callable[[Schedule, ContractError], str],
    root: int = 0,
    prefix: str = "",
    drawn: bool = True,
) -> Schedule:
    """Check that `steps`, which `call` has given, are a schedule that keeps `contract`; return the schedule.

    One that breaks it is drawn up to the step that goes wrong, if `drawn`. `remark(schedule, error)`: a sentence on the
    slip behind it, or "". `prefix`: what the refusal begins with.
    """
    try:
        schedule = Schedule.of(world_size, num_chunks, steps, name=call, root=root)
        contract.check(schedule)
    except ScheduleError as error:
        raise NotYet(str(error)) from None
    except ContractError as error:
        if drawn:
            show(draw(schedule, contract, caption=call))
        raise NotYet(f"{prefix}{error}{remark(schedule, error)}") from None
    return schedule


def _leftward(schedule: Schedule) -> str:
    """A remark on a ring that goes the wrong way round; "" if this one does not, or if two ranks make it the same."""
    moves = {(transfer.dst - transfer.src) % schedule.world_size for step in schedule for transfer in step}
    if schedule.world_size > 2 and moves == {schedule.world_size - 1}:
        return " Every chunk goes to the left-hand neighbour, r - 1; the ring goes to the right, r + 1."
    return ""


def check_ring(schedule: Schedule) -> None:
    """Check that in each step every rank sends one chunk to its right-hand neighbour, in world_size - 1 steps."""
    world_size = schedule.world_size
    for index, step in enumerate(schedule):
        for transfer in step:
            if transfer.dst != (transfer.src + 1) % world_size:
                right = (transfer.src + 1) % world_size
                raise NotYet(
                    f"{schedule.name}, step {index}: {transfer} goes from rank {transfer.src} to rank {transfer.dst}, "
                    f"but its right-hand neighbour is rank {right}"
                )
        if sorted(step.src.tolist()) != list(range(world_size)):
            raise NotYet(f"{schedule.name}, step {index}: not every rank sends exactly one chunk ({step})")
    steps = len(list(schedule))
    if steps != world_size - 1:
        raise NotYet(f"{schedule.name} takes {steps} steps; {world_size} ranks need {world_size - 1}")


def steps_of(function: Callable, *args: Any) -> list[list[Transfer]]:
    """The steps that a learner's function returns, the library unused, or words on what it returns instead."""
    call = call_in_words(function, args)
    given = own_answer(__name__, function, *args, call=call)
    if isinstance(given, Schedule):
        raise NotYet(f"{call} returns a ready-made Schedule; write its steps yourself, as a list of lists")
    steps = list(islice(given, MAX_STEPS)) if isinstance(given, Iterable) else [given]
    for index, step in enumerate(steps):
        if isinstance(step, Step):
            raise NotYet(f"{call} returns the library's ready-made steps; write them yourself, as a list of lists")
        if isinstance(step, Transfer):
            raise NotYet(f"{call}: step {index} is a Transfer, where a list of Transfers is wanted")
    if not all(isinstance(step, Iterable) for step in steps):
        raise NotYet(f"{call} returns {brief(given)}, which is not a list of steps")
    if len(steps) == MAX_STEPS:
        raise NotYet(f"{call} returns {MAX_STEPS} steps or more: does it ever stop?")
    return [[_transfer(item, f"{call}, step {index}") for item in step] for index, step in enumerate(steps)]


def _transfer(item: Any, where: str) -> Transfer:
    """A learner's transfer with plain whole numbers, or words on what is wrong with it."""
    try:
        given = Transfer(*item)
    except TypeError:
        short = isinstance(item, tuple | list) and len(item) < 3
        missing = f": its {Transfer._fields[len(item)]} is missing" if short else ""
        words = f"{where} holds {brief(item)}; a transfer is Transfer(src, dst, chunk, combine){missing}"
        raise NotYet(words) from None
    numbers = given._asdict()
    for field, value in numbers.items():
        if field == "combine" or (field == "into" and value is None):
            continue
        try:
            numbers[field] = operator.index(value)
        except TypeError:
            wanted = {"into": "into is a whole number, or None", "count": "count is a whole number"}
            words = wanted.get(field, "src, dst and chunk are whole numbers")
            raise NotYet(f"{where}: its {field} is {brief(value)}; {words}") from None
    return Transfer(**numbers)


def show(drawing: Any) -> None:
    """Show a figure or a table below the notebook's cell."""
    from IPython.display import display  # only notebooks have it, and only they can show a figure

    display(drawing)


# Numbers


def counted(schedule: Schedule, num_elements: int, itemsize: int = 1) -> Cost:
    """The price of `schedule` on `num_elements` of `itemsize` bytes, for its bytes and steps (all links are free)."""
    links = topology.uniform(schedule.world_size, alpha=0, beta=0)
    return price(schedule, num_elements * itemsize, links, itemsize)


class Row(NamedTuple):
    """One call of a learner's function: what it gave, what is right, and what each usual slip would give."""

    call: str
    got: float
    want: float
    slips: dict[str, float]


def check_formula(function: Callable, truth: Callable, cases: Iterable[tuple], slips: Callable) -> None:
    """Check that `function(*case)` is the number `truth(*case)` in all `cases`.

    `slips(want, *case)`: {what went wrong in words: the number that it gives}. A slip is named only if it explains
    what the function returns in every case.
    """
    rows = []
    for case in cases:
        want, call = truth(*case), call_in_words(function, case)
        given = answer(function, *deepcopy(case))  # a copy: what it does to its arguments is its own affair
        rows.append(Row(call, number_of(given, call), want, slips(want, *case)))
    check_rows(rows, _against_the_schedule)


def sent_by_a_rank(*algorithms: Callable) -> Callable:
    """The truth: what rank 0 sends in these algorithms, one after the other.

    The function that is returned takes `(num_elements, itemsize, world_size)` and gives bytes, or takes
    `(num_elements, world_size)` and gives elements.
    """

    def truth(num_elements: int, *sizes: int) -> int:
        *itemsize, world_size = sizes
        costs = [counted(algorithm(world_size), num_elements, *itemsize) for algorithm in algorithms]
        return int(sum(cost.bytes_sent[0] for cost in costs))

    return truth


def random_sizes(seed: int, how_many: int = 12) -> list[tuple]:
    """Cases `(num_elements, itemsize, world_size)` to check a formula at; chunks are equally long, ranks at least 2."""
    random = Random(seed)
    sizes = [random.randint(2, 40) for _ in range(how_many)]
    return [(random.randint(1, 10**6) * size, random.choice((1, 2, 4, 8)), size) for size in sizes]


def check_count(function: Callable, schedules: Iterable[Schedule], num_elements: int) -> None:
    """Check that `function(steps, num_elements, num_chunks)` counts the elements that each schedule moves."""
    rows = []
    for schedule in schedules:
        steps = [list(step) for step in schedule]
        transfers = sum(map(len, steps))
        sizes = num_elements, schedule.num_chunks
        call = f"{function.__name__}(<steps of {schedule.name}>, {sizes[0]}, {sizes[1]})"
        want = int(counted(schedule, num_elements).bytes_sent.sum())
        slips = {
            "this counts transfers, not the elements in them": transfers,
            "this takes all chunks to be equally long; see chunk_bounds": transfers * sizes[0] / sizes[1],
            "this rounds the length of every chunk down; see chunk_bounds": transfers * (sizes[0] // sizes[1]),
            "this rounds the length of every chunk up; see chunk_bounds": transfers * -(-sizes[0] // sizes[1]),
            "this rounds a total down; take the length of each transfer's own chunk": transfers * sizes[0] // sizes[1],
            "this is the formula of the ring reduce-scatter; count the steps given": sizes[0] * (sizes[1] - 1),
            "these are bytes (of 8 each); elements are asked for": want * 8,
            "this counts the whole buffer for each transfer, which moves only one chunk": transfers * sizes[0],
            "this counts one rank, not all of them": want / schedule.world_size,
        }
        rows.append(Row(call, number_of(answer(function, steps, *sizes, call=call), call), want, slips))
    check_rows(rows, _against_the_schedule)


def byte_slips(want: float, num_elements: int, itemsize: int, world_size: int) -> dict[str, float]:
    """What goes wrong when the bytes of a collective are counted, and the number that comes out."""
    longer = world_size / (world_size - 1)
    return {
        "these are elements, not bytes": want / itemsize,
        "these are bits, not bytes": want * 8,
        "this is one half of it: which other phase, or direction, is there?": want / 2,
        "this is twice as much: is something counted both where it leaves and where it arrives?": want * 2,
        "this counts all ranks together; one rank is asked for": want * world_size,
        "this is what one rank sends; all ranks together are asked for": want / world_size,
        "this leaves out the factor (P-1)/P: a rank never has to send all of its P chunks": want * longer,
        "this is a single step; how many are there?": want / (world_size - 1),
        "`//` has rounded a fraction below 1 down to 0": 0,
    }


def root_slips(want: float, num_elements: int, itemsize: int, world_size: int) -> dict[str, float]:
    """The same for the bytes through the root's link, in and out."""
    whole = num_elements * itemsize
    return {
        "these are elements, not bytes": want / itemsize,
        "these are bits, not bytes": want * 8,
        "this is one direction; the root also sends the sum back": want / 2,
        "the root does not send to itself: there are P - 1 other ranks": 2 * world_size * whole,
        "this is what one of the other ranks sends and receives": 2 * whole,
        "this is what a rank of the ring sends; here everything passes the root": want / world_size,
    }


def element_slips(want: float, num_params: int, world_size: int) -> dict[str, float]:
    """The same for elements that one rank sends in a training step."""
    longer = world_size / (world_size - 1)
    return {
        "`//` has rounded a fraction below 1 down to 0": 0,
        "this leaves out the factor (P-1)/P: a rank never has to send all of its P chunks": want * longer,
        "this leaves out one of the collectives; an all-reduce counts as two": want - num_params / longer,
        "this is the number of parameters; what does each collective send of them?": num_params,
        "this leaves out two of the collectives": want - 2 * num_params / longer,
        "this has one collective too many": want + num_params / longer,
        "this counts all ranks together; one rank is asked for": want * world_size,
        "these are bytes (of 4 each); elements are asked for": want * 4,
        "these are bytes (of 2 each); elements are asked for": want * 2,
    }


def ratio_slips(want: float, num_params: int, world_size: int) -> dict[str, float]:
    """The same for how many times as much sharding sends."""
    return {
        "this is upside down": 1 / want,
        "this is how much *more* it is; how many *times* as much is asked for": want - 1,
        "this counts 3 collectives against 1, but an all-reduce is itself two of them": 3,
        "`//` has rounded it down": want // 1,
    }


def step_slips(want: float, world_size: int) -> dict[str, float]:
    """The same for the steps of an all-reduce."""
    return {
        "this is one phase; which other one is there?": want / 2,
        "this has one step too many in each phase": want + 2,
        "this has one step too many": want + 1,
        "this has one step too few": want - 1,
    }


def number_of(given: Any, call: str) -> int | float:
    if isinstance(given, bool | np.bool_) or not isinstance(given, Real) or not math.isfinite(given):
        raise NotYet(f"{call} returns {brief(given)}, which is not a number")
    return given if isinstance(given, int) else float(given)


def check_rows(rows: list[Row], words: Callable[[Row], str]) -> None:
    """Raise `NotYet` with the `words` of the first row that is wrong, and a slip that explains all rows."""
    for row in rows:
        if not math.isclose(row.got, row.want, rel_tol=1e-9):
            explained = [w for w in row.slips if all(math.isclose(r.got, r.slips[w], rel_tol=1e-9) for r in rows)]
            raise NotYet(words(row) + (f": {explained[0]}" if explained else ""))


def _against_the_schedule(row: Row) -> str:
    return f"{row.call} returns {_shown(row.got)}, but the schedule says {_shown(row.want)}"


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) else f"{number:,.6g}"


# Real ranks


class Outcome(NamedTuple):
    """What a rank did. `returned`: array, or the name of its type if it is none. `buffer`: array, as it was left.

    `bytes_to`: bytes sent, by peer. `messages`: how many sends. `collectives`: names of the backend's own collectives
    that were called.
    """

    returned: np.ndarray | str
    buffer: np.ndarray
    bytes_to: dict[int, int]
    messages: int
    collectives: list[str]


def run_on_ranks(
    function: Callable, world_size: int, *args: Any, kind: Any, backend: str = "gloo", timeout: float | None = None
) -> list[Any]:
    """Run a part of a check on real ranks; what a rank finds not right yet is told as if it were found here.

    `kind`: the type of what each rank reports, which is made sure of. `timeout`: seconds, `PATIENCE` by default.
    """
    try:
        everyone = ranks.run(function, world_size, *args, timeout=timeout or PATIENCE, backend=backend)
    except ranks.RanksError as error:
        if told := re.search(rf"\b{NotYet.__name__}: (.*)", str(error)):
            raise NotYet(told[1]) from None
        over = "" if backend == "gloo" else f" over {backend.upper()}"
        raise NotYet(f"with {world_size} rank{'s' * (world_size > 1)}{over}, {error}") from None
    return reported(everyone, world_size, kind)


def reported(everyone: Any, world_size: int, kind: Any) -> list[Any]:
    """What the ranks of a run report, if there is a report of the type `kind` from each; `NotYet` if there is not.

    The code that reports runs beside the learner's, which may have changed it.
    """
    if not isinstance(everyone, list) or len(everyone) != world_size:
        raise NotYet(f"{world_size} ranks ran, but there is not a report from each")
    for rank, report in enumerate(everyone):
        if not _is_a(report, kind):
            raise NotYet(f"with {world_size} ranks, rank {rank} does not report what the check has asked for")
    return everyone


def _is_a(value: Any, kind: Any) -> bool:
    """Whether a value is of a type as it stands in an annotation, with everything in it."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_is_a(value, each) for each in inner)
    if origin is dict:
        return isinstance(value, dict) and all(_is_a(k, inner[0]) and _is_a(v, inner[1]) for k, v in value.items())
    if origin is list:
        return isinstance(value, list) and all(_is_a(each, inner[0]) for each in value)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(_is_a, value, inner))
    if kind is np.ndarray:
        return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    if hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return isinstance(value, kind) and all(_is_a(getattr(value, name), hints[name]) for name in kind._fields)
    if kind in (int, float):
        return isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
    return isinstance(value, type(None) if kind is None else kind)


GROUP_BYTES = 1_000  # on the loopback, for two ranks to find each other in a group: at most 560 were measured
MESSAGE_BYTES = 800  # on the loopback, around one message: at most 430 were measured, acknowledgement included
WIRE = 1.3  # times what is sent, at most: headers and acknowledgements made 1.02, on a crowded machine 1.07


def witnessed(everyone: list[Any], least: float, most: float | None = None, messages: int = 0) -> None:
    """Check what ranks tell of their traffic against the bytes counted from outside, if this run's were counted.

    `least`, `most`: the bytes that all ranks together must have sent, and may have sent. What went past the wire (by
    files, or by memory that they share) or was told of though it was never sent is missing from the count; what was
    sent and not told of is too much of it. `messages`: how many there may be, for what each of them costs besides.
    Only buffers that are large beside that, some 100 kB, say much.
    """
    seen = getattr(everyone, "loopback", None)
    if seen is None:
        return
    world_size = len(everyone)
    if seen < least:
        raise NotYet(
            f"with {world_size} ranks, {seen:,} bytes went over the wire between them, where at least {least:,.0f} "
            "have to: send everything with the process group's own operations"
        )
    pairs = world_size * (world_size - 1) // 2
    allowed = 0 if most is None else WIRE * most + pairs * GROUP_BYTES + messages * MESSAGE_BYTES
    if most is not None and seen > allowed:
        raise NotYet(
            f"with {world_size} ranks, {seen:,} bytes went over the wire between them, where {most:,.0f} are enough: "
            "something is sent that the ranks do not tell of"
        )


def on_ranks(function: Callable, buffers: np.ndarray) -> list[Outcome]:
    """Call `function(rank, world_size, buffer)` on real ranks, each with its row of `buffers`, and watch the wire."""
    world_size = len(buffers)
    try:
        outcomes = ranks.run(_on_rank, world_size, function, ranks.PerRank(buffers), timeout=PATIENCE, backend="gloo")
    except ranks.RanksError as error:
        if "NotImplementedError" in str(error):
            raise NotYet(f"{function.__name__} is not written yet") from None
        if used := re.search(rf"{LibraryUsed.__name__}: (.*)", str(error)):
            raise NotYet(f"{function.__name__}: {used[1]}") from None
        raise NotYet(f"with {world_size} ranks, {error}") from None
    for rank, outcome in enumerate(reported(outcomes, world_size, Outcome)):
        if outcome.collectives:
            names = ", ".join(f"dist.{name}" for name in outcome.collectives)
            raise NotYet(f"rank {rank} calls the library's own {names}; write this part with send and recv alone")
    told = sum(sum(outcome.bytes_to.values()) for outcome in outcomes)
    witnessed(outcomes, least=0, most=told, messages=sum(outcome.messages for outcome in outcomes))
    return outcomes


def _on_rank(rank: int, world_size: int, function: Callable, own: np.ndarray) -> Outcome:
    """Runs beside the learner's code, and only observes."""
    import torch

    from ..wire import BytesSent

    buffer = torch.tensor(own)
    with BytesSent() as sent, without_the_library():
        returned = function(rank, world_size, buffer)
    plain = np.array(returned) if isinstance(returned, torch.Tensor | np.ndarray) else type(returned).__name__
    return Outcome(plain, buffer.numpy(), dict(sent.to), sent.messages, list(sent.collectives))


def noise(world_size: int, num_elements: int, seed: int) -> np.ndarray:
    """Buffers of which nothing can be left out on the wire: float32 [world_size, num_elements].

    They are whole numbers below 2^24 / world_size, so that fp32 has every sum of them exactly, and 16 bits have none.
    """
    most = 2**24 // world_size
    return np.random.default_rng(seed).integers(-most, most, (world_size, num_elements)).astype(np.float32)


def tagged(world_size: int, num_elements: int) -> np.ndarray:
    """Buffers whose sums tell what is in them: element i on rank r is (i + 1) times 10 to the r.

    The digits of a sum, divided by i + 1, count how often each rank is in it: int [world_size, num_elements].
    """
    return np.multiply.outer(10 ** np.arange(world_size), np.arange(num_elements) + 1)


def check_shards(function: Callable, buffers: np.ndarray) -> list[Outcome]:
    """Check that rank r returns chunk r of the sum of `buffers`: integers exactly, floats up to rounding."""
    world_size, num_elements = buffers.shape
    total, bounds = buffers.sum(axis=0), chunk_bounds(num_elements, world_size)
    outcomes = on_ranks(function, buffers)
    for rank, outcome in enumerate(outcomes):
        got, want = outcome.returned, total[bounds[rank] : bounds[rank + 1]]
        who = f"with {world_size} ranks and {num_elements} elements, rank {rank} returns"
        if isinstance(got, str):
            raise NotYet(f"{who} a value of type {got}; return the tensor with its finished chunk")
        if got.shape != want.shape:
            raise NotYet(f"{who} a tensor of shape {list(got.shape)}; chunk {rank} has {len(want)} elements")
        if not same(got, want):
            raise NotYet(f"{who} {contents(got, rank, bounds) or f'{brief(got)}, but the sum is {brief(want)}'}")
    witnessed_sums(outcomes, buffers)
    return outcomes


MUCH = 100_000  # bytes: smaller buffers are not looked for on the wire
PLACES = 20  # elements that are looked for


def witnessed_sums(everyone: list[Any], buffers: np.ndarray) -> None:
    """Check that ranks have added `buffers` with one another, if this run was seen from outside: how much went, what.

    Whatever the way, each element's terms come together in world_size - 1 messages, and each of those is the sum of
    other ranks' terms. So many different sums, of fewer than all ranks, have to be seen of elements chosen at random.
    Float buffers are to be `noise`, whose sums are exact in any order.
    """
    witnessed(everyone, least_to_add(buffers))
    streams, (world_size, num_elements) = getattr(everyone, "streams", None), buffers.shape
    if streams is None or buffers.nbytes < MUCH or not np.issubdtype(buffers.dtype, np.floating):
        return
    places = np.random.default_rng().integers(num_elements - 1, size=PLACES)
    some = [[rank for rank in range(world_size) if of >> rank & 1] for of in range(1, 2**world_size - 1)]
    known = {}  # what two neighbouring elements' sum over some ranks looks like on the wire: which place, which ranks
    for place in places:
        for of, ranks_summed in enumerate(some):
            known[buffers[ranks_summed, place : place + 2].sum(axis=0).tobytes()] = place, of
    seen = {known[pair] for stream in streams for pair in _pairs(stream, known)}
    missing = sum(sum(at == place for at, _ in seen) < world_size - 1 for place in places)
    if missing > PLACES // 5:  # a few may lie where one message ends
        raise NotYet(
            f"with {world_size} ranks and {num_elements} elements, the sums of {missing} elements, of {PLACES} that "
            "were looked for on the wire, are not made of what the ranks send one another: send the terms, or sums of "
            "them, with the process group's own operations"
        )


def witnessed_terms(everyone: list[Any], terms: Iterable[Collection[bytes]]) -> None:
    """Check that ranks have sent what they had, if this run was seen from outside: the bytes of numbers as they lie.

    `terms`: for each number that is looked for on the wire, the ways in which it may be there. A sum, too, begins with
    a term that some rank sends as it is. Numbers are to be random, and of 4 bytes at least: so that none is there by
    accident.
    """
    streams = getattr(everyone, "streams", None)
    if streams is None:
        return
    seen = [any(way in stream for stream in streams for way in ways) for ways in terms]
    missing = seen.count(False)
    if missing > len(seen) // 5:  # as few as for sums
        raise NotYet(
            f"with {len(everyone)} ranks, {missing} of {len(seen)} numbers that were looked for on the wire are not "
            "among what the ranks send one another: send everything with the process group's own operations"
        )


def _pairs(stream: bytes, known: dict[bytes, Any]) -> set[bytes]:
    """Those of some pairs of 4-byte numbers that are anywhere in a stream."""
    first = np.frombuffer(b"".join(pair[:4] for pair in known), np.uint32)
    found = set()
    for shift in range(min(4, len(stream) - 7)):  # where a number begins is not known
        words = np.frombuffer(stream, np.uint32, (len(stream) - shift) // 4, shift)
        for at in np.flatnonzero(np.isin(words, first)):
            found.add(stream[shift + 4 * at : shift + 4 * at + 8])
    return found & known.keys()


def least_to_add(buffers: np.ndarray) -> int:
    """Bytes that go over the wire, whatever the way, until each sum is somewhere: all but one hand on their term.

    Small whole numbers may travel in one byte each, and fractions in fp32: sums are compared up to its rounding.
    """
    world_size, num_elements = buffers.shape
    itemsize = min(buffers.itemsize, 4) if np.issubdtype(buffers.dtype, np.floating) else 1
    return (world_size - 1) * num_elements * itemsize


def check_ring_traffic(function: Callable, buffers: np.ndarray, ring: Schedule) -> None:
    """Check that the shards are right, in place, and that every rank sends what it sends in the schedule `ring`."""
    world_size, num_elements = buffers.shape
    bounds, itemsize = chunk_bounds(num_elements, world_size), buffers.itemsize
    allowed = counted(ring, num_elements, itemsize).bytes_sent
    most = len(list(ring))
    outcomes = check_shards(function, buffers)
    for rank, outcome in enumerate(outcomes):
        right = (rank + 1) % world_size
        if astray := sorted(set(outcome.bytes_to) - {right}):
            raise NotYet(f"rank {rank} of {world_size} sends to rank {astray[0]}; its right-hand neighbour is {right}")
        sent = sum(outcome.bytes_to.values())
        if sent != allowed[rank] or outcome.messages > most:
            raise NotYet(
                f"with {world_size} ranks and {num_elements} elements of {itemsize} bytes, rank {rank} sends {sent} "
                f"bytes in {outcome.messages} messages; the ring sends {allowed[rank]} in {most}"
            )
        own = slice(bounds[rank], bounds[rank + 1])
        if not same(outcome.buffer[own], outcome.returned):
            raise NotYet(f"rank {rank} returns the right chunk, but its buffer does not hold it: work in place")
    witnessed(outcomes, sum(allowed), sum(allowed), messages=world_size * most)


def contents(got: np.ndarray, rank: int, bounds: np.ndarray) -> str | None:
    """What a chunk of sums of `tagged` buffers is made of, in words; None if it is not such a chunk."""
    world_size = len(bounds) - 1
    for chunk, (first, last) in enumerate(pairwise(bounds)):
        if not 0 < last - first == len(got):
            continue
        sums, left = np.divmod(got, np.arange(first, last) + 1)
        if left.any() or (sums != sums[0]).any() or not 0 < sums[0] < 10**world_size:
            continue
        counts = sums[0] // 10 ** np.arange(world_size) % 10
        faults = [f"without {ranks_in_words(counts == 0)}"] if (counts == 0).any() else []
        faults += [f"with {ranks_in_words(counts > 1)} more than once"] if (counts > 1).any() else []
        which = f"chunk {chunk}" if chunk == rank else f"chunk {chunk} instead of chunk {rank}"
        return f"{which} {' and '.join(faults)}" if faults else f"the finished {which}"
    return None


def same(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether these are the same numbers: integers exactly, floats up to rounding."""
    exact = np.issubdtype(want.dtype, np.integer)
    return np.array_equal(got, want) if exact else np.allclose(got, want, rtol=1e-5, atol=1e-5)
