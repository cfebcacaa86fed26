"""What the checks of all exercises share: call the learner's function, and return quietly or raise `NotYet`.

A check calls the learner's function itself, so a missing, malformed or endless answer gets as plain a message as a
wrong one. The truth comes from a schedule (through `contracts` or `price`) or from the numbers themselves. No formula
is written down here.

**A graded check runs in two places.** The learner's functions run in a sandbox and the check runs outside it. Plain
data crosses in both directions. Three kinds of functions run whole inside the sandbox, next to the learner's: `own`,
what `ranks.run` starts on each rank, and those whose docstrings say so. They only observe. A learner's code could forge
what they report, so they neither compute nor know a right value: all comparing happens afterwards, outside. `on_ranks`
says what that means for ranks.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import math
import operator
import random
import signal
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from copy import deepcopy
from dataclasses import is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import islice
from numbers import Real
from pathlib import Path
from reprlib import repr as brief
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from .. import algorithms, topology
from ..contracts import Contract, ContractError
from ..draw import draw
from ..execute import Part
from ..price import Cost, price
from ..schedule import Schedule, ScheduleError, Step, Transfer

CALL_SECONDS = 10.0  # for which one call may compute: an honest one takes milliseconds, so after 10 s it is a loop
LINE = 100  # characters: a feedback page cuts longer lines off
DRAWN = (
    "contracts",
    "dataflow",
    "draw",
    "formats.address",
    "figures.colours",
    "figures.network",
    "figures.player",
    "figures.slots",
    "figures.still",
)
HOLDS = (
    ".own",
    ".answer",
    ".call_in_words",
    "._read",
    ".ending_loops",
    ".called",
    ".StillRunning",
    "._worked_out",
    "._learners_line",
    ".NotYet",
    ".refusing",
    ".refusing_functions",
    ".refusing_schedules",
    "._named",
    "._librarys",
    "._algorithms_refuse",
    "._is_helper",
    "._refuse",
)  # see `wall`
MAX_STEPS = 1000  # an answer with this many steps counts as endless


class NotYet(AssertionError):
    """An answer that is not right yet. A notebook shows only the message, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        lines = f"Not right yet: {self}".splitlines()
        return [
            fill(line, LINE, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False) for line in lines
        ]


class LibraryUsed(NotYet):
    """An answer that lets the library do its work."""


class ModuleUsed(LibraryUsed, ImportError):
    """The import of a module that answers the exercise. Code that can do without the module goes on."""


class TableUsed(LibraryUsed, AttributeError):
    """A table of the library's that answers the exercise. Code that can do without it goes on."""


class StillRunning(TimeoutError):
    """A call of a learner's function that has computed for `CALL_SECONDS`; raised in the line that it has reached."""


@contextlib.contextmanager
def ending_loops() -> Iterator[None]:
    """Raise `StillRunning` inside this context once its thread has computed for `CALL_SECONDS`.

    Only computing counts, so a busy machine makes nothing late. Windows has no such timer, and other threads than the
    main one get no signal: nothing is limited there, nor inside another such context.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer") or signal.getitimer(signal.ITIMER_VIRTUAL)[0]:
        yield
        return
    begun = time.thread_time()

    def look(*_: Any) -> None:
        if time.thread_time() - begun >= CALL_SECONDS:  # the timer counts torch's threads, too
            raise StillRunning(f"it was still running after {CALL_SECONDS:g} s")

    former = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, CALL_SECONDS, CALL_SECONDS / 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


def called(function: Callable, *args: Any) -> Any:
    """Return what `function(*args)` returns, generators as lists, and end a loop. Runs beside the learner's code."""
    with ending_loops():
        return _read(function(*args))


@contextlib.contextmanager
def refusing(
    owner: type | types.ModuleType,
    *methods: str,
    what: str | Callable[..., str | None],
    advice: str = "write this part yourself",
    error: type[Exception] = LibraryUsed,
) -> Iterator[None]:
    """Make these methods of a class, or functions of a module, refuse inside this context: a reminder, not a lock.

    `what`: the name of what a call would use, or a function that takes the call's arguments and returns that name;
    a call for which it returns None goes through. `advice`: what the learner should do instead.
    """
    originals = {method: vars(owner)[method] for method in methods}

    def guard(original: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            name = what if isinstance(what, str) else what(*args, **kwargs)
            if name is not None:
                raise error(f"the library's own {name} is for comparing, afterwards; {advice}")
            return original(*args, **kwargs)

        return call

    try:
        for method, original in originals.items():
            setattr(owner, method, guard(original))
        yield
    finally:
        for method, original in originals.items():
            setattr(owner, method, original)


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, to call or read a library algorithm, and to execute any schedule."""
    with refusing(Schedule, "__iter__", what=_librarys), refusing(Part, "of", what="execute"), _algorithms_refuse():
        yield


def _librarys(schedule: Schedule) -> str | None:
    """Return the name of a schedule whose steps a library algorithm makes; None for any other, however it is named."""
    maker: Any = schedule.make_steps
    while isinstance(maker, functools.partial):
        maker = next((each for each in maker.args if callable(each)), maker.func)
    return schedule.name if str(getattr(maker, "__module__", "")).startswith(algorithms.__name__) else None


def refusing_schedules() -> contextlib.AbstractContextManager[None]:
    """Refuse, inside this context, to make or read a schedule with a collective and a name of its own.

    Library algorithms name theirs. A learner's schedule has the default name.
    """
    return refusing(Schedule, "__post_init__", "__iter__", what=_named)


def _named(schedule: Schedule) -> str | None:
    return schedule.name if schedule.collective and schedule.name != "schedule" else None


def _algorithms_refuse() -> contextlib.AbstractContextManager[None]:
    """Make the library's algorithms refuse to help: their functions that don't return a schedule, however imported.

    Schedules refuse themselves, as soon as they are read.
    """
    modules = [module for module in vars(algorithms).values() if inspect.ismodule(module)]
    helpers = {each for module in modules for each in vars(module).values() if _is_helper(module, each)}
    return refusing_functions(*helpers)


@contextlib.contextmanager
def refusing_functions(*functions: Any) -> Iterator[None]:
    """Make these functions of the library refuse inside this context, under whatever name they were imported."""
    codes = {function: function.__code__ for function in functions}
    try:
        for function in codes:
            name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
            function.__code__ = _refuse.__code__.replace(co_name=name)
        yield
    finally:
        for function, code in codes.items():
            function.__code__ = code


def _is_helper(module: types.ModuleType, thing: Any) -> bool:
    own = inspect.isfunction(thing) and thing.__module__ == module.__name__ and not thing.__code__.co_freevars
    return own and thing.__annotations__.get("return") != Schedule.__name__


def _refuse(*_: Any, **__: Any) -> None:
    """Refuse a call in the name of the function that this code stands in for, whose globals it runs with."""
    import inspect

    from collectives.practice.checks import LibraryUsed

    name = inspect.currentframe().f_code.co_name  # type: ignore[union-attr]
    raise LibraryUsed(f"the library's own {name} is for comparing, afterwards; write this part yourself")


class Refusal(NamedTuple):
    """What `own` returns for an answer that lets the library do its work: a message that says where."""

    words: str


def own(checks: str, function: Callable, *args: Any) -> Any:
    """Return what `function(*args)` returns without the library's help, or a `Refusal`; generators come as lists.

    Runs beside the learner's code. `checks`: the name of the module of checks whose `without_the_library` applies, or
    "module:context" for another of its contexts. The result is data, worked out: an object of the learner's own could
    call the library later, when a check reads it.
    """
    module, _, context = checks.partition(":")
    try:
        with getattr(importlib.import_module(module), context or "without_the_library")(), ending_loops():
            return _worked_out(_read(function(*args)))
    except LibraryUsed as error:
        return Refusal(f"{error}{_learners_line(error)}")
    except _NoData as error:
        return Refusal(str(error))


def own_answer(checks: str, function: Callable, *args: Any, call: str | None = None, in_place: bool = False) -> Any:
    """Return what the learner's function returns, as `answer` does, without the library's help, as in `own`."""
    call = call or call_in_words(function, args)

    def owned(*args: Any) -> Any:
        return own(checks, function, *args)

    owned.__name__ = function.__name__
    # `own` ends loops itself: a timer that rings while it switches the library off would leave it so.
    result = answer(owned, *args, call=call, in_place=in_place, run=operator.call)
    if isinstance(result, Refusal):
        raise NotYet(f"{call}: {result.words}")
    return result


@contextlib.contextmanager
def fresh(seed: int | None = None) -> Iterator[int]:
    """Yield a random seed for the inputs of a hidden test; a refusal inside this context names the seed.

    The judge seeds `random` itself before each test, so that the same submission meets the same inputs each time.
    Inside this context `random`, and so `generator`, draws by the seed too, and goes on after it as if it had not.

    `seed`: use this one instead, to reproduce the refusal of a submission.
    """
    seed = random.getrandbits(62) if seed is None else seed  # too many for a rank to try them all
    outside = random.getstate()
    random.seed(seed)
    try:
        yield seed
    except NotYet as error:
        raise type(error)(f"{error}\n  (drawn at random, with seed {seed})") from None
    finally:
        random.setstate(outside)


def generator() -> np.random.Generator:
    """Return numpy's generator with a seed from `random`, which the judge seeds, and `fresh` in its context."""
    return np.random.default_rng(random.getrandbits(64))


def answer(
    function: Callable, *args: Any, call: str | None = None, in_place: bool = False, run: Callable | None = None
) -> Any:
    """Return what the learner's function returns; raise `NotYet` with the learner's own line if it raises an error.

    The function gets copies of the arguments, so that the check still holds what it asked about. `in_place`: it gets
    the arguments themselves, and may change them. `call`: how the message writes the call, where its arguments are too
    long to show. Generators come as lists. `run`: what calls it, by default `called`, which ends loops; a function that
    ends them itself needs no second limit.
    """
    call = call or call_in_words(function, args)
    try:
        result = (run or called)(function, *(args if in_place else deepcopy(args)))
    except NotImplementedError:
        raise NotYet(f"{function.__name__} is not written yet") from None
    except StillRunning as error:
        raise NotYet(f"{call}: {error}{_learners_line(error)}") from None
    except LibraryUsed as error:
        raise NotYet(f"{call}: {error}{_learners_line(error)}") from None
    except Exception as error:
        raise NotYet(f"{call} ends in {type(error).__name__}: {error}{_learners_line(error)}") from error
    if result is None:
        raise NotYet(f"{call} returns None; is its `return` missing?")
    return result


def _read(result: Any) -> Any:
    """Return a result with its generators read into lists, up to `MAX_STEPS` items, while the library is still off.

    Read an inner generator before the outer one goes on: it may use a variable that the outer one then changes. The
    steps of a `Schedule`, which must be the learner's own, come as lists too.
    """
    if isinstance(result, Schedule):
        return [list(step) for step in islice(result, MAX_STEPS)]
    if isinstance(result, Iterator):
        result = islice(result, MAX_STEPS)
    elif not isinstance(result, list):
        return result
    return [list(item) if isinstance(item, Iterator) else item for item in result]


class _NoData(TypeError):
    """A learner's function returns an object that is no data."""


def _worked_out(value: Any) -> Any:
    """Return a result with nothing left to compute: numbers, texts, arrays, and containers of these.

    A subclass of a plain type becomes that type, and any other collection a list. Raise `_NoData` for other objects.
    """
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if value is None or kind in _DATA:
        return value
    if package in ("numpy", "torch") and not callable(value):
        is_boxed = isinstance(value, np.ndarray) and value.dtype.hasobject
        return _worked_out(value.tolist()) if is_boxed else value
    for base in _DATA:
        if isinstance(value, base):
            return base(value)
    if isinstance(value, Mapping):
        return {_worked_out(key): _worked_out(item) for key, item in value.items()}
    if package == __name__.partition(".")[0]:  # the library's own, such as a Transfer
        if isinstance(value, tuple):
            return tuple.__new__(kind, map(_worked_out, value))
        if is_dataclass(value) or isinstance(value, Enum):
            return value
    if not isinstance(value, Iterable):
        raise _NoData(f"it returns an object of type {kind.__name__}; return numbers, texts, lists, arrays or tensors")
    items = [_worked_out(item) for item in (value if isinstance(value, Sized) else islice(value, MAX_STEPS))]
    return next((base(items) for base in (tuple, set, frozenset) if isinstance(value, base)), items)


_DATA: tuple[Any, ...] = (bool, int, float, complex, str, bytes, range, slice, Decimal, Fraction)


def call_in_words(function: Callable, args: Iterable) -> str:
    """Return the call as a learner would write it, such as "peers(0, 4)"."""
    return f"{function.__name__}({', '.join(map(brief, args))})"


_STANDARD = Path(contextlib.__file__).parent  # Python's own library


def _learners_line(error: Exception) -> str:
    """Return the line of the learner's notebook that raised an error; "" if the error came from elsewhere."""
    library = Path(__file__).parents[1]
    others = {library, library.with_name("autograder"), _STANDARD}
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if others.isdisjoint(Path(frame.filename).parents)
        and "site-packages" not in frame.filename  # torch's and numpy's own
        and not frame.filename.startswith(("<string>", "<frozen"))  # a dataclass's own __init__, an import
    ]
    frames = [frame for frame in frames if frame.line] or frames  # a hidden test's line is nowhere to be had
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
    """Check that `steps`, the result of `call`, are a schedule that keeps `contract`; return the schedule.

    If `drawn`, show a schedule that breaks the contract, up to the step that goes wrong. `remark(schedule, error)`: a
    sentence that names the slip behind it, or "". `prefix`: what the message begins with.
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


def steps_of(function: Callable, *args: Any, checks: str = __name__) -> list[list[Transfer]]:
    """Return the steps that a learner's function makes without the library; raise `NotYet` if it returns none.

    `checks`: as for `own`.
    """
    call = call_in_words(function, args)
    result = own_answer(checks, function, *args, call=call)
    steps = list(islice(result, MAX_STEPS)) if isinstance(result, Iterable) else [result]
    for index, step in enumerate(steps):
        if isinstance(step, Step):
            raise NotYet(f"{call} returns the library's ready-made steps; write them yourself, as a list of lists")
        if isinstance(step, Transfer):
            raise NotYet(f"{call}: step {index} is a Transfer; a step is a list of Transfers")
    if not all(isinstance(step, Iterable) for step in steps):
        raise NotYet(f"{call} returns {brief(result)}, which is not a list of steps")
    if len(steps) == MAX_STEPS:
        raise NotYet(f"{call} returns {MAX_STEPS} steps or more: does it ever stop?")
    return [[_transfer(item, f"{call}, step {index}") for item in step] for index, step in enumerate(steps)]


def _transfer(item: Any, where: str) -> Transfer:
    """Return a learner's transfer with plain whole numbers; raise `NotYet` with what is wrong if it is not one."""
    try:
        transfer = Transfer(*item)
    except TypeError:
        short = isinstance(item, tuple | list) and len(item) < 3
        missing = f": its {Transfer._fields[len(item)]} is missing" if short else ""
        message = f"{where} holds {brief(item)}; a transfer is Transfer(src, dst, chunk, combine){missing}"
        raise NotYet(message) from None
    numbers = transfer._asdict()
    for field, value in numbers.items():
        if field == "combine" or (field == "into" and value is None):
            continue
        try:
            numbers[field] = operator.index(value)
        except TypeError:
            rules = {"into": "into is a whole number, or None", "count": "count is a whole number"}
            rule = rules.get(field, "src, dst and chunk are whole numbers")
            raise NotYet(f"{where}: its {field} is {brief(value)}; {rule}") from None
    return Transfer(**numbers)


def show(drawing: Any) -> None:
    """Show a figure or a table below the notebook's cell."""
    from IPython.display import display  # installed only where there are notebooks

    display(drawing)


# Numbers


def counted(schedule: Schedule, num_elements: int, itemsize: int = 1) -> Cost:
    """Price `schedule` on `num_elements` of `itemsize` bytes over free links, to count its bytes and steps."""
    links = topology.uniform(schedule.world_size, alpha=0, beta=0)
    return price(schedule, num_elements * itemsize, links, itemsize)


class Answered(NamedTuple):
    """One call of a learner's function: what it returns, what is right, and what each common slip would return."""

    call: str
    got: float
    want: float
    slips: Mapping[str, float]


def check_formula(
    function: Callable, truth: Callable, cases: Iterable[tuple], slips: Callable, checks: str = __name__
) -> None:
    """Check that `function(*case)` is the number `truth(*case)` in all `cases`. `checks`: as for `own`.

    `slips(want, *case)`: {a slip in words: the number it leads to}. The message names a slip only if it explains what
    the function returns in every case.
    """
    rows = []
    for case in cases:
        want, call = truth(*case), call_in_words(function, case)
        result = own_answer(checks, function, *case)
        rows.append(Answered(call, number_of(result, call), want, slips(want, *case)))
    check_rows(rows, against_the_schedule)


def sent_by_a_rank(*algorithms: Callable) -> Callable:
    """Return the truth for `check_formula`: what rank 0 sends in these algorithms, one after the other.

    Called with `(num_elements, itemsize, world_size)` it returns bytes; with `(num_elements, world_size)`, elements.
    """

    def truth(num_elements: int, *sizes: int) -> int:
        *itemsize, world_size = sizes
        costs = [counted(algorithm(world_size), num_elements, *itemsize) for algorithm in algorithms]
        return int(sum(cost.bytes_sent[0] for cost in costs))

    return truth


def number_of(given: Any, call: str) -> int | float:
    """Return `given`, the result of `call`, as a finite int or float; raise `NotYet` if it is neither.

    An array or tensor of a single number counts as that number: `lstsq`, for one, returns columns.
    """
    shape = getattr(given, "shape", None)
    if isinstance(given, np.ndarray) and given.size == 1:
        given = np.asarray(given).reshape(())[()]  # a matrix stays one when it is reshaped
    elif (
        isinstance(shape, tuple) and set(shape) <= {1} and not isinstance(given, np.generic) and hasattr(given, "item")
    ):
        given = given.item()
    try:
        strange = isinstance(given, bool | np.bool_ | np.timedelta64)  # these count as numbers in Python and numpy
        finite = not strange and isinstance(given, Real) and math.isfinite(given)
    except OverflowError:  # an int that no float holds
        raise NotYet(f"{call} returns a number of hundreds of digits") from None
    if not finite:
        raise NotYet(f"{call} returns {brief(given)}, which is not a number")
    return given if isinstance(given, int) else float(given)


def check_rows(rows: list[Answered], words: Callable[[Answered], str]) -> None:
    """Raise `NotYet` for the first wrong row, with its `words` and a slip that explains all rows, if one does."""
    for row in rows:
        if not _is_close(row.got, row.want):
            explained = [slip for slip in row.slips if all(_is_close(r.got, r.slips[slip]) for r in rows)]
            explained += [unit for unit, size in UNITS.items() if all(_is_close(r.got, r.want * size) for r in rows)]
            raise NotYet(words(row) + (f": {explained[0]}" if explained else ""))


# What a number of bytes is multiplied by if GB and GiB are confused.
UNITS = {
    "this is in GiB; return bytes": 2**-30,
    "a GB is 10**9 bytes; 2**30 bytes are a GiB": 1e9 / 2**30,
    "a GB is 10**9 bytes, not 2**30": 2**30 / 1e9,
}


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9)


def against_the_schedule(row: Answered) -> str:
    """Return the message for a wrong number, for `check_rows`: "f(8, 2) returns 16, but the schedule says 8"."""
    got, want = told_apart(row.got, row.want)
    return f"{row.call} returns {got}, but the schedule says {want}"


def told_apart(got: float, want: float, digits: int = 6) -> list[str]:
    """Return two different numbers as texts that differ: with so many digits, or as many as that takes."""
    texts: list[str] = []
    for more in range(digits, 18):
        texts = [f"{each:,.0f}" if each == round(each) else f"{each:,.{more}g}" for each in (got, want)]
        if texts[0] != texts[1]:
            break
    return texts
