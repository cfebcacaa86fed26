"""The wall around an answer: where a submission runs, `collectives` holds only what its exercise gives.

Each module of checks says what that is, by names within the package; a name that begins with a dot is the module's own.

- `HOLDS`: what the setup cell imports, and what runs beside the learner's functions;
- `ON_RANKS`: what also runs beside them on the ranks that the judge starts, which a student's cells never reach. A rank
  holds it only while it runs a function of this list: so one part's answer can be what another part's ranks need.

Every other function of the package refuses, however it was imported: it keeps its name and loses its code. The
grader calls `plan` once, and `build` in each sandbox before any of the student's code runs. Of the package's files a
sandbox has `FILES` alone: no source, no script and no data. So the cell body, `importlib`, a second import, `inspect`,
the garbage collector and other languages find nothing.

In a notebook the wall is a reminder, in the same words: `watch` puts it up while a cell runs that defines a function or
a class, as an answer does. While a check runs a learner's functions, the check's own `without_the_library` refuses.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib
import linecache
import pkgutil
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[1]
PACKAGE = FOLDER.name
FILES = tuple(  # of the package that its held code reads: what draws a schedule, and knows no algorithm
    f"figures/static/{name}.{kind}" for name in ("player", "schedule", "network") for kind in ("css", "js")
)
HOLDS = ("ranks", "practice.wall")
DECLARED = {"HOLDS", "ON_RANKS", "DRAWN"}  # what modules of checks call it, and a part that several hold
_EVERY = tuple(f"{PACKAGE}.practice.{name}" for name in ("wall", "checks", "on_ranks"))  # what all exercises need


class Function(NamedTuple):
    """A function of the package: its full name, and the code that refuses in its place."""

    name: str
    itself: Any
    refusal: types.CodeType


@functools.cache
def survey() -> list[Function]:
    """Import the whole package and find its functions, also those that no module names: it takes a second."""
    for module in pkgutil.walk_packages([str(FOLDER)], f"{PACKAGE}."):
        importlib.import_module(module.name)
    linecache.clearcache()
    return _functions()


def _functions() -> list[Function]:
    """Return the functions of all modules of the package that are imported."""
    every = [each for each in gc.get_objects() if type(each) is types.FunctionType]
    return [_surveyed(each) for each in every if each.__code__.co_filename.startswith(f"{FOLDER}/")]


def _surveyed(function: types.FunctionType) -> Function:
    words = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
    # A closure's code must name as many variables as the function closes over.
    refusal = _refuse.__code__.replace(co_name=words, co_freevars=function.__code__.co_freevars)
    return Function(f"{function.__module__}.{function.__qualname__}", function, refusal)


def _refuse(*_: Any, **__: Any) -> None:
    """Refuse a call in the name of the function that this code stands in for, whose globals it runs with."""
    import sys

    from collectives.practice.checks import LibraryUsed

    name = sys._getframe().f_code.co_name
    raise LibraryUsed(f"the library's own {name} is for comparing, afterwards; write this part yourself")


class Plan(NamedTuple):
    """What a wall takes away: the functions that refuse, the tables of modules, and what remembers results."""

    functions: list[Function]
    tables: list[tuple[types.ModuleType, str]]
    caches: list[Any]


@functools.cache
def plan(modules: tuple[str, ...], on_ranks: bool) -> Plan:
    """Return what a wall with what these modules hold takes away; nothing if none of them is a module of checks.

    `on_ranks`: leave what ranks need, too. Without it, the plan is that of a second wall within the first. It takes
    long the first time, in a process that forks for each answer.
    """
    functions, asked = survey(), _of_checks(modules)
    if not asked:
        return Plan([], [], [])
    if not on_ranks:
        gone = {id(each.itself) for each in plan(modules, True).functions}
        functions = [each for each in functions if id(each.itself) not in gone]
    holds = _full_names(asked, on_ranks)
    held = [each.itself for each in functions if f"{each.name}.".startswith(holds)]
    read = {f"{each.__module__}.{name}" for each in held for name in _names(each.__code__)}
    values = [
        (module, name, f"{module.__name__}.{name}", value)
        for known, module in sys.modules.items()
        if known.partition(".")[0] == PACKAGE
        for name, value in vars(module).items()
    ]
    return Plan(
        [each for each in functions if not f"{each.name}.".startswith(holds)],
        [
            (module, name)
            for module, name, full, value in values
            if _is_table(name, value) and full not in read and not f"{full}.".startswith(holds)
        ],
        [value for *_, value in values if hasattr(value, "cache_clear") and value not in (survey, plan)],
    )


def build(modules: Iterable[str], on_ranks: bool) -> None:
    """Build the wall of a `plan`, for good: first with what ranks need, then without.

    The second is for where a student's cells run, and for ranks unless they run what is `only_on_ranks`.
    """
    withheld = plan(tuple(modules), on_ranks)
    for _, function, refusal in withheld.functions:
        function.__code__ = refusal
    for module, name in withheld.tables:
        vars(module).pop(name, None)
    for cache in withheld.caches:  # they may remember answers
        cache.cache_clear()


def only_on_ranks(modules: Iterable[str], function: str) -> bool:
    """Return whether a rank that runs this function, by its full name, needs what ranks alone hold."""
    wide, narrow = (_full_names(_of_checks(modules), on_ranks) for on_ranks in (True, False))
    return f"{function}.".startswith(wide) and not f"{function}.".startswith(narrow)


@functools.cache
def declared(modules: tuple[str, ...]) -> list[str]:
    """Return what these modules of checks say that they hold, as their sources put it: none of them is imported."""
    names = dict.fromkeys((*_EVERY, *modules))
    places = [FOLDER.parent.joinpath(*name.split(".")).with_suffix(".py") for name in names]
    own = [place for place in places if place.is_relative_to(FOLDER) and place.is_file()]
    sources = [place.read_text(encoding="utf-8") for place in own]
    statements = [statement for source in sources for statement in ast.parse(source).body]
    return [ast.unparse(each) for each in statements if isinstance(each, ast.Assign) and _names_in(each) & DECLARED]


def _names_in(assignment: ast.Assign) -> set[str]:
    return {target.id for target in assignment.targets if isinstance(target, ast.Name)}


def _of_checks(modules: Iterable[str]) -> list[str]:
    """Return those of the names that are modules of checks."""
    return [name for name in modules if hasattr(sys.modules.get(name), "HOLDS")]


def _full_names(modules: Iterable[str], on_ranks: bool) -> tuple[str, ...]:
    """Return the full names of what these modules of checks hold, each with a dot at its end."""
    names = []
    for module in dict.fromkeys((*_EVERY, *modules)):
        itself = importlib.import_module(module)
        beside = getattr(itself, "ON_RANKS", ()) if on_ranks else ()
        for name in (".without_the_library", *itself.HOLDS, *beside):  # it refuses what is torch's
            names.append(f"{module}{name}." if name.startswith(".") else f"{PACKAGE}.{name}.")
    return tuple(names)


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a function's code reads, and that of the functions within it."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part)


def _is_table(name: str, value: Any) -> bool:
    """Return whether a module's global is data, and none of what this module reads: no module, class or function."""
    code = types.ModuleType | type | types.FunctionType | functools._lru_cache_wrapper
    return not name.startswith("__") and name not in DECLARED and not isinstance(value, code)


# In a notebook


def watch() -> None:
    """Put the wall up, if this is a notebook's kernel, whenever a cell runs that is an answer."""
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel"):
        return
    running = contextlib.ExitStack()

    def begin(info: Any) -> None:
        values = shell.user_ns.values()
        modules = [each.__name__ for each in values if isinstance(each, types.ModuleType) and hasattr(each, "HOLDS")]
        if modules and _is_answer(info.raw_cell):
            running.enter_context(_up(modules))

    def end(_: Any) -> None:
        running.close()

    shell.events.register("pre_run_cell", begin)
    shell.events.register("post_run_cell", end)


def _is_answer(source: str) -> bool:
    """Return whether a cell defines a function or a class, and runs no check, which needs the library."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return False
    defines = any(isinstance(each, ast.FunctionDef | ast.ClassDef) for each in statements)
    return defines and ".check_" not in source


@contextlib.contextmanager
def _up(modules: Iterable[str]) -> Iterator[None]:
    """Put the wall up inside this context."""
    holds = _full_names(modules, on_ranks=False)
    withheld = [each for each in _functions() if not f"{each.name}.".startswith(holds)]
    codes = [each.itself.__code__ for each in withheld]
    for each in withheld:
        each.itself.__code__ = each.refusal
    try:
        yield
    finally:
        for each, code in zip(withheld, codes, strict=True):
            each.itself.__code__ = code
