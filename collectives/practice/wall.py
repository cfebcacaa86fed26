"""The wall around an answer: where a submission runs, `collectives` holds only what its exercise gives.

Each module of checks says what that is, by names within the package; a name that begins with a dot is the module's own.

- `HOLDS`: what the setup cell imports, and what runs beside the learner's functions;
- `WITHOUT`: modules of torch's that answer the exercise, by full names. Where a submission runs, they aren't there,
  nor is anything below them;
- `WITHOUT_KERNELS`: an expression for the full names of torch's operators that answer the exercise. Where a submission
  runs, their kernels refuse: C++ would find them without any module. So do torch's functions in Python of these names;
- `ON_RANKS`: what also runs beside them on the ranks that the judge starts, which a student's cells never reach. A rank
  holds it only while it runs a function of this list: so one part's answer can be what another part's ranks need.

- `SENDS_ALONE`: of these functions, which run beside the learner's on ranks that the judge starts, those on whose ranks
  torch's own collectives aren't there, either: the learner is to write one with sends and receives.

Every other function of the package refuses, however it was imported: it keeps its name and loses its code. Numbers,
texts and tuples of such stay in the modules of checks. The grader calls `plan` once, and `build` in each sandbox before
any of the student's code runs. Of the package's files a sandbox has `FILES` alone: no source, no script and no data. So
the cell body, `importlib`, a second import, `inspect`, the garbage collector and other languages find nothing.

In a notebook the wall is a reminder, in the same words: `watch` puts it up while a cell runs that defines a function or
a class, as an answer does. While a check runs a learner's functions, the check's own `without_the_library` refuses,
which calls `without` for torch's modules.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.machinery
import importlib.util
import linecache
import pkgutil
import re
import sys
import threading
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[1]
PACKAGE = FOLDER.name
FILES = tuple(  # of the package that its held code reads: what draws a schedule, and knows no algorithm
    f"figures/static/{name}.{kind}" for name in ("player", "schedule", "network") for kind in ("css", "js")
)
HOLDS = ("ranks", "practice.wall")
# What modules of checks call it, and a part that several hold.
DECLARED = {"HOLDS", "ON_RANKS", "SENDS_ALONE", "WITHOUT", "WITHOUT_KERNELS", "DRAWN"}
COLLECTIVES = r"c10d::(?!(send|recv_|recv_any_source_|barrier|monitored_barrier_|check_for_nan)$).*"
POINTER = ctypes.sizeof(ctypes.c_void_p)  # where in an object, behind its count of references, its type stands
_EVERY = tuple(f"{PACKAGE}.practice.{name}" for name in ("wall", "checks", "on_ranks"))  # what all exercises need


class Function(NamedTuple):
    """A function of the package or of torch's: its full name, and the code that refuses in its place."""

    name: str
    itself: Any
    refusal: types.CodeType


@functools.cache
def survey() -> list[Function]:
    """Import the whole package and find its functions, also those that no module names: it takes a second.

    Those of torch's modules are among them that any exercise is `WITHOUT`, if they are imported by then.
    """
    for module in pkgutil.walk_packages([str(FOLDER)], f"{PACKAGE}."):
        importlib.import_module(module.name)
    linecache.clearcache()
    of_checks = [name for name in sys.modules if name.startswith(f"{PACKAGE}.practice.")]
    for expression in _kernels_of(of_checks):  # now: later the collector, which finds them, knows only what is new
        _named(expression)
    return _functions(_withheld_by(of_checks))


def _functions(others: Iterable[str] = ()) -> list[Function]:
    """Return the functions of all modules of the package that are imported, and of these others and below them."""
    every = [each for each in gc.get_objects() if type(each) is types.FunctionType]
    places = {f"{FOLDER}/": ""} | {place: name for name in others for place in _beginnings(name)}
    return [
        _surveyed(each, name)
        for each in every
        for place, name in places.items()
        if each.__code__.co_filename.startswith(place)
    ]


def _surveyed(function: types.FunctionType, module: str = "") -> Function:
    """Return a function with its refusal. `module`: the one of torch's that it counts for."""
    words = f"{(function.__module__ or '').rpartition('.')[2]}.{function.__qualname__}"
    # A closure's code must name as many variables as the function closes over.
    refusal = _refuse.__code__.replace(co_name=words, co_freevars=function.__code__.co_freevars)
    return Function(f"{module or function.__module__}.{function.__qualname__}", function, refusal)


def _refuse(*_: Any, **__: Any) -> None:
    """Refuse a call in the name of the function that this code stands in for, whose globals it runs with."""
    import sys

    from collectives.practice.checks import LibraryUsed

    frame = sys._getframe()
    module, caller = frame.f_globals.get("__name__", ""), frame.f_back
    if module.startswith("collectives.practice.ch") and caller and caller.f_code.co_name == "<module>":
        raise LibraryUsed(
            f"{frame.f_code.co_name} refuses in a cell that defines an answer: call it in a cell of its own, below "
            "(when graded it refuses in all your own cells, which costs nothing)"
        )
    whose = "torch's" if module.partition(".")[0] == "torch" else "the library's"
    raise LibraryUsed(f"{whose} own {frame.f_code.co_name} is for comparing, afterwards; write this part yourself")


class Plan(NamedTuple):
    """What a wall takes away: the functions that refuse, the tables of modules, and what remembers results.

    `modules`: those of torch's that can't be imported.
    """

    functions: list[Function]
    tables: list[tuple[types.ModuleType, str]]
    caches: list[Any]
    modules: tuple[str, ...]


@functools.cache
def plan(modules: tuple[str, ...], on_ranks: bool) -> Plan:
    """Return what a wall with what these modules hold takes away; nothing if none of them is a module of checks.

    `on_ranks`: leave what ranks need, too. Without it, the plan is that of a second wall within the first. It takes
    long the first time, in a process that forks for each answer.
    """
    functions, asked = survey(), _of_checks(modules)
    for expression in (COLLECTIVES, *_kernels_of(asked)):
        _kernels(expression)
    if not asked:
        return Plan([], [], [], ())
    if not on_ranks:
        gone = {id(each.itself) for each in plan(modules, True).functions}
        functions = [each for each in functions if id(each.itself) not in gone]
    holds, missing = _full_names(asked, on_ranks), _withheld_by(asked)
    of_torch = tuple(f"{name}." for name in missing)
    functions = [each for each in functions if f"{each.name}.".startswith((f"{PACKAGE}.", *of_torch))]
    named = [each for expression in _kernels_of(asked) for each in _named(expression)]
    held = [each.itself for each in functions if f"{each.name}.".startswith(holds)]
    read = {f"{each.__module__}.{name}" for each in held for name in _names(each.__code__)}
    values = [
        (module, name, f"{module.__name__}.{name}", value)
        for known, module in sys.modules.items()
        if known.partition(".")[0] == PACKAGE
        for name, value in vars(module).items()
    ]
    return Plan(
        [*(each for each in functions if not f"{each.name}.".startswith(holds)), *(named if on_ranks else ())],
        [
            (module, name)
            for module, name, full, value in values
            if _is_table(name, value)
            and full not in read
            and not f"{full}.".startswith(holds)
            and not (module.__name__ in asked and _is_plain(value))  # such as RECOMPUTE: as in a notebook
        ],
        [
            value
            for *_, value in values
            if hasattr(value, "cache_clear") and value not in (survey, plan, _kernels, _named)
        ],
        missing,
    )


def build(modules: Iterable[str], on_ranks: bool) -> None:
    """Build the wall of a `plan`, for good: first with what ranks need, then without.

    The second is for where a student's cells run, and for ranks that don't need more, which `narrow` knows.
    """
    withheld = plan(tuple(modules), on_ranks)
    for _, function, refusal in withheld.functions:
        function.__code__ = refusal
    for module, name in withheld.tables:
        vars(module).pop(name, None)
        taken = vars(module).setdefault("__getattr__", _Taken(module.__name__))
        taken.names.add(name)
    for cache in withheld.caches:  # they may remember answers
        cache.cache_clear()
    if on_ranks and withheld.modules:
        sys.meta_path.insert(0, _Missing(withheld.modules))
    if not on_ranks:
        for expression in _kernels_of(_of_checks(modules)):
            _take_kernels(expression, _refuse_operator)


def covered(modules: Iterable[str]) -> list[Path]:
    """Return the files and folders of torch's that a sandbox with what these modules hold doesn't have."""
    return [place for name in _withheld_by(_of_checks(modules)) for place in _places(name)]


def _withheld_by(modules: Iterable[str]) -> tuple[str, ...]:
    """Return the names of torch's modules that these modules of checks are `WITHOUT`."""
    return tuple(dict.fromkeys(name for each in modules for name in getattr(sys.modules[each], "WITHOUT", ())))


def _places(name: str) -> list[Path]:
    """Return the folder of a package, or the files of a module, its compiled ones among them; it isn't imported."""
    top, *below = name.split(".")
    (folder,) = importlib.util.find_spec(top).submodule_search_locations  # type: ignore[union-attr, misc]
    place = Path(folder).resolve().joinpath(*below)
    if place.is_dir():
        return [place]
    return [place.with_suffix(".py"), *place.parent.glob(f"__pycache__/{place.name}.*.pyc")]


def _beginnings(name: str) -> list[str]:
    """Return what the paths of a module's code begin with, and of the modules below it, as code names them."""
    module = sys.modules.get(name)
    if module is None or not module.__file__:
        return []
    return [f"{folder}/" for folder in getattr(module, "__path__", ())] or [module.__file__]


class _Missing:
    """An import hook to which these modules, and what is below them, aren't there."""

    def __init__(self, names: Iterable[str]):
        self.names = tuple(f"{name}." for name in names)

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        from collectives.practice.checks import ModuleUsed

        if f"{name}.".startswith(self.names):
            own = name.partition(".")[2]  # the words say already whose it is
            raise ModuleUsed(f"torch's own {own} is for comparing, afterwards; write this part yourself")
        return None


class _Taken:
    """A module's `__getattr__`, which refuses the tables that were taken out of it."""

    def __init__(self, module: str):
        self.module, self.names = module, set[str]()

    def __call__(self, name: str) -> Any:
        if name not in self.names:
            raise AttributeError(f"module {self.module!r} has no attribute {name!r}")
        from collectives.practice.checks import TableUsed

        whose = f"the library's own {self.module.rpartition('.')[2]}.{name}"
        raise TableUsed(f"{whose} is for comparing, afterwards; write this part yourself")


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Refuse, inside this context, to import these modules of torch's, and to call what they define."""
    with _refusing(_functions_in(names), names):
        yield


def _functions_in(names: tuple[str, ...]) -> list[Function]:
    """Return the functions that a look into these modules, and those below them, finds, if they are imported."""
    below = tuple(f"{name}." for name in names)
    begun = [name for name in [*sys.modules] if name.startswith(names)]
    return _defined_by(below, tuple(name for name in begun if f"{name}.".startswith(below)))


@functools.lru_cache(maxsize=8)  # a check asks before each call of an answer, and 1,500 functions are found
def _defined_by(below: tuple[str, ...], modules: tuple[str, ...]) -> list[Function]:
    things = [each for name in modules for each in vars(sys.modules[name]).values()]
    things += [each for thing in things if isinstance(thing, type) for each in vars(thing).values()]
    things = [getattr(each, "fget", None) or getattr(each, "__func__", each) for each in things]
    found = {
        id(each): each
        for each in things
        if type(each) is types.FunctionType and f"{each.__module__}.".startswith(below)
    }
    return [_surveyed(each) for each in found.values()]


@contextlib.contextmanager
def _refusing(withheld: list[Function], modules: Iterable[str]) -> Iterator[None]:
    """Let these functions refuse, and these modules be missing, inside this context."""
    codes, missing = [each.itself.__code__ for each in withheld], _Missing(modules)
    sys.meta_path.insert(0, missing)
    try:
        for each in withheld:
            each.itself.__code__ = each.refusal
        yield
    finally:
        sys.meta_path.remove(missing)
        for each, code in zip(withheld, codes, strict=True):
            each.itself.__code__ = code


def narrow(modules: Iterable[str], function: str) -> None:
    """Leave a rank only what the function needs that it runs, for good. `build` has run there, with `on_ranks`.

    `function`: its full name.
    """
    if not _only_on_ranks(modules, function):
        build(modules, on_ranks=False)
    module, _, name = function.rpartition(".")
    if f".{name}" in getattr(sys.modules.get(module), "SENDS_ALONE", ()):
        _take_collectives()


def _only_on_ranks(modules: Iterable[str], function: str) -> bool:
    """Return whether a rank that runs this function needs what ranks alone hold."""
    wide, less = (_full_names(_of_checks(modules), on_ranks) for on_ranks in (True, False))
    return f"{function}.".startswith(wide) and not f"{function}.".startswith(less)


def _take_collectives() -> None:
    """Take torch's own collectives out of this process, for good. Sends, receives and barriers stay.

    Operators of torch's call the backend's; from now on their kernels refuse. The backend's own methods go.
    """
    from torch._C._distributed_c10d import Backend

    _take_kernels(COLLECTIVES, _refuse_collective)
    for name in {operator.rstrip("_") for _, operator, _ in _kernels(COLLECTIVES)} & {*vars(Backend)}:
        delattr(Backend, name)


def _take_kernels(expression: str, refuse: Callable[..., None]) -> None:
    """Have the kernels of these operators of torch's refuse in this process, for good, whichever thread calls them."""
    from torch._C import _dispatch_library

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced
        for namespace, operator, key in _kernels(expression):
            library = _dispatch_library("IMPL", namespace, key, __file__, 0)
            library.impl(operator, key, functools.partial(refuse, operator), False)  # type: ignore[call-arg]
            # The old kernel is back when this object ends or is reset: so it never ends, and has no method any more.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))
            ctypes.c_void_p.from_address(id(library) + POINTER).value = id(object)


@functools.cache
def _kernels(expression: str) -> list[tuple[str, str, str]]:
    """Return torch's operators of these names, as (namespace, operator, dispatch key), for each key with a kernel."""
    import torch.distributed

    schemas = [each for each in torch._C._jit_get_all_schemas() if re.fullmatch(expression, each.name)]
    names = {f"{each.name}.{each.overload_name}".rstrip(".") for each in schemas}
    keys = re.compile("^([A-Z]\\w*)(?:\\[alias\\])?: registered", re.MULTILINE)
    return [
        (*name.split("::"), key)  # type: ignore[misc]
        for name in sorted(names)
        for key in keys.findall(torch._C._dispatch_dump(name))
    ]


def _kernels_of(modules: Iterable[str]) -> list[str]:
    """Return the expressions for operators that these modules of checks are `WITHOUT_KERNELS`."""
    return [found for each in modules if (found := getattr(sys.modules[each], "WITHOUT_KERNELS", ""))]


@functools.cache
def _named(expression: str) -> list[Function]:
    """Return torch's functions in Python of these names, or of these with their class's, if they are imported by now.

    A mode or a kernel that refuses doesn't stop them: they are compositions of other operators, and a mode can be off.
    """
    return [
        _surveyed(each)
        for each in gc.get_objects()
        if type(each) is types.FunctionType
        and f"{each.__module__}.".startswith("torch.")
        and re.fullmatch(expression, each.__qualname__)
    ]


def _refuse_operator(name: str, *_: Any, **__: Any) -> None:
    from .checks import LibraryUsed

    raise LibraryUsed(f"torch's own {name} is for comparing, afterwards; write this part yourself")


def _refuse_collective(name: str, *_: Any, **__: Any) -> None:
    from ..measure.wire import NAMES
    from .checks import NotYet

    raise NotYet(f"this calls torch's own dist.{NAMES.get(name, name)}; write this part with send and recv alone")


_PARSING = threading.Lock()  # Python 3.11's parser can fail where two threads use it at once


@functools.cache
def declared(modules: tuple[str, ...]) -> list[str]:
    """Return what these modules of checks say that they hold, as their sources put it: none of them is imported."""
    names = dict.fromkeys((*_EVERY, *modules))
    places = [FOLDER.parent.joinpath(*name.split(".")).with_suffix(".py") for name in names]
    own = [place for place in places if place.is_relative_to(FOLDER) and place.is_file()]
    sources = [place.read_text(encoding="utf-8") for place in own]
    with _PARSING:
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


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text, None, a tuple of such, or a type's alias: these answer nothing."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | None) or typing.get_origin(value) is not None


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
        if modules and _is_answer(shell.transform_cell(re.sub(r"\A%%.*", "", info.raw_cell))):
            running.enter_context(_up(modules))

    def end(_: Any) -> None:
        running.close()

    shell.events.register("pre_run_cell", begin)
    shell.events.register("post_run_cell", end)


def _is_answer(source: str) -> bool:
    """Return whether a cell defines a function or a class. Then a check in it is refused, as it is when graded."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return False
    return any(isinstance(each, ast.FunctionDef | ast.ClassDef) for each in statements)


@contextlib.contextmanager
def _up(modules: Iterable[str]) -> Iterator[None]:
    """Put the wall up inside this context."""
    holds, missing = _full_names(modules, on_ranks=False), _withheld_by(modules)
    withheld = [each for each in _functions(missing) if not f"{each.name}.".startswith(holds)]
    with _refusing(withheld, missing), refusing_operators(*_kernels_of(modules)):
        yield


@contextlib.contextmanager
def refusing_operators(*expressions: str) -> Iterator[None]:
    """Refuse, inside this context, torch's functions of these names: operators in this thread, and those in Python."""
    if not expressions:
        yield
        return
    from torch.overrides import TorchFunctionMode

    class Refusing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if any(re.fullmatch(each, getattr(func, "__name__", "")) for each in expressions):
                _refuse_operator(func.__name__)
            return func(*args, **(kwargs or {}))

    with _refusing([function for each in expressions for function in _named(each)], ()), Refusing():
        yield
