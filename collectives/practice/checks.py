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
import secrets
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from itertools import islice
from numbers import Real
from pathlib import Path
from reprlib import repr as brief
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from .. import topology
from ..contracts import Contract, ContractError
from ..draw import draw
from ..execute import execute
from ..price import Cost, price
from ..schedule import Schedule, ScheduleError, Step, Transfer

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


class Refusal(NamedTuple):
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
        return Refusal(f"{error}{_learners_line(error)}")


def own_answer(checks: str, function: Callable, *args: Any, call: str | None = None) -> Any:
    """What the learner's function returns, as from `answer`, with the library unused, as in `own`."""
    call = call or call_in_words(function, args)

    def called(*args: Any) -> Any:
        return own(checks, function, *args)

    called.__name__ = function.__name__
    given = answer(called, *args, call=call)
    if isinstance(given, Refusal):
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


class Answered(NamedTuple):
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
        rows.append(Answered(call, number_of(given, call), want, slips(want, *case)))
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


def number_of(given: Any, call: str) -> int | float:
    if isinstance(given, bool | np.bool_) or not isinstance(given, Real) or not math.isfinite(given):
        raise NotYet(f"{call} returns {brief(given)}, which is not a number")
    return given if isinstance(given, int) else float(given)


def check_rows(rows: list[Answered], words: Callable[[Answered], str]) -> None:
    """Raise `NotYet` with the `words` of the first row that is wrong, and a slip that explains all rows."""
    for row in rows:
        if not math.isclose(row.got, row.want, rel_tol=1e-9):
            explained = [w for w in row.slips if all(math.isclose(r.got, r.slips[w], rel_tol=1e-9) for r in rows)]
            raise NotYet(words(row) + (f": {explained[0]}" if explained else ""))


def _against_the_schedule(row: Answered) -> str:
    return f"{row.call} returns {_shown(row.got)}, but the schedule says {_shown(row.want)}"


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) else f"{number:,.6g}"
