"""Proxies for a student's functions, classes and objects: a test calls them, and the sandbox does the work.

Results are plain data wherever possible. A student's function may also return an object of its own class. A test can
call that object's methods and read its attributes, but can't compare it with plain data: the student's own `__eq__`
would then decide whether the answer is right.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import linecache
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from tblib import Traceback

from ..wire.plain import bound_name
from ..wire.protocol import Error

_REMEMBERED: dict[str, str] = {}  # files of the sandbox's tracebacks, and the names that they have here
_PRELOADED: set[str] = set()
MAX_FILES = 100  # of them; each takes memory for its lines
_FORWARDED = ("__len__", "__getitem__", "__setitem__", "__delitem__", "__enter__")
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_UNARY = ("neg", "pos", "abs")
_CONVERSIONS = ("__int__", "__float__", "__index__")
# Methods of plain data that compare it with their argument: of any other object, the student wrote them.
_COMPARING = (
    *("allclose", "eq", "equal", "equals", "isclose", "startswith", "endswith"),
    *("issubset", "issuperset", "isdisjoint"),
)
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__")


class NotData(TypeError):
    """A test uses an object of a student's own class where it needs plain data."""


class Missing:
    """In place of a builtin function that the student should have defined: the builtin must not answer for it."""

    def __init__(self, name: str):
        self._name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NameError(f"name {self._name!r} is not defined in the notebook", name=self._name)


class Line(Protocol):
    """The part of a sandbox's connection that a proxy uses (`link.Link`)."""

    def call(self, target: Any, method: str, args: list, kwargs: dict | None = None) -> Any:
        """Call something in the sandbox."""


class Remote:
    """An object in the sandbox that isn't plain data. `_made`: the test itself made it, by calling its class."""

    def __init__(self, link: Line, target: Any, about: dict, made: bool = False):
        vars(self).update(_link=link, _target=target, _about=about, _made=made)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_repr_", "_ipython_")):
            raise AttributeError(name)  # numpy, IPython and others probe objects for these
        if name in _COMPARING and not self._made:
            raise NotData(f"this is {_article(self._about.get('name', 'object'))}; its own {name!r} would compare it")
        return self._link.call(self._target, "getattr", [name])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.call(self._target, "", list(args), kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.call(self._target, "setattr", [name, value])

    def __iter__(self) -> Any:
        return self._link.call(self._target, "__iter__", [])

    def __bool__(self) -> bool:
        return self._link.call(self._target, "bool", []) is True if self._made else True

    def __str__(self) -> str:
        return self._in_words("str")

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return self._in_words("repr")

    def _in_words(self, how: str) -> str:
        words = self._link.call(self._target, how, []) if self._made else None
        return words if isinstance(words, str) else f"<{self._about.get('name', 'object')} of the student's>"

    def __deepcopy__(self, memo: dict) -> Remote:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a student's function or object: it stays in the sandbox")


class RemoteIterator(Remote):
    """An iterator in the sandbox, read one item a call."""

    def __iter__(self) -> RemoteIterator:
        return self

    def __next__(self) -> Any:
        return self._link.call(self._target, "__next__", [])


class Function(Remote):
    """A student's function. `__source__`: its source code."""

    def __init__(self, link: Line, target: Any, about: dict, made: bool = False):
        super().__init__(link, target, about, made)
        name = about.get("name", "function")
        doc = (about.get("doc") or "").replace(">>>", ">> >") or None  # doctest would run the student's examples here
        vars(self).update(__name__=name, __qualname__=name, __doc__=doc, __module__="__main__")
        vars(self)["__source__"] = about.get("source", "")
        with contextlib.suppress(Exception):
            vars(self)["__signature__"] = _signature(about["signature"])


class Class(Function):
    """A student's class. `_made`: the exercise asks for a class of this name.

    Tests may then compare its instances with anything, because the class's `__eq__` is what they test.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        instance = super().__call__(*args, **kwargs)
        if isinstance(instance, Remote):
            vars(instance)["_made"] = self._made
        return instance

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and self._link.call(self._target, "isinstance", [value]) is True

    def __subclasscheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and self._link.call(self._target, "issubclass", [value]) is True


def _forward(method: str) -> Callable:
    def forwarded(self: Remote, *args: Any) -> Any:
        return self._link.call(self._target, method, list(args))

    forwarded.__name__ = method
    return forwarded


def _guarded(method: str) -> Callable:
    """Return a special method that reveals an object's value.

    It works on an object that the test itself made, or between two remote objects. Otherwise it raises NotData.
    """

    def guarded(self: Remote, *args: Any) -> Any:
        if not self._made and not (args and isinstance(args[0], Remote)):
            raise NotData(
                f"this is {_article(self._about.get('name', 'object'))}; the test needs plain data, "
                "such as a number, a string, a list or an array"
            )
        result = self._link.call(self._target, method, list(args))
        if method in _COMPARISONS and not isinstance(result, bool):
            raise NotData(f"{method} returns {result!r}; the test needs True or False"[:300])
        return result

    guarded.__name__ = method
    return guarded


def _exit(self: Remote, kind: Any, error: Any, traceback: Any) -> Any:
    """End a `with` block. It can't swallow or replace an error: a test's own AssertionError would be lost.

    An exception can't cross, so the student's `__exit__` gets None, as after a block without one.
    """
    with contextlib.nullcontext() if error is None else contextlib.suppress(Exception):
        answer = self._link.call(self._target, "__exit__", [None, None, None])
    return answer if error is None else False


for _method in _FORWARDED:
    setattr(Remote, _method, _forward(_method))
Remote.__exit__ = _exit  # type: ignore[attr-defined]
_ARITHMETIC = [*(f"__{name}__" for name in _BINARY + _UNARY), *(f"__r{name}__" for name in _BINARY)]
for _method in (*_COMPARISONS, *_ARITHMETIC, *_CONVERSIONS):
    setattr(Remote, _method, _guarded(_method))


PROXIES = {
    "function": Function,
    "class": Class,
    "iterator": RemoteIterator,
    "object": Remote,
    "module": Remote,
}


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name} of the student's own"


def _signature(words: str) -> inspect.Signature:
    """Parse a signature from its text; defaults stay source text, because their names can't be resolved here."""
    import ast

    tree = ast.parse(f"def f{words}: pass").body[0].args  # type: ignore[attr-defined]
    parameters = []
    names: list[tuple[str, Any]] = [(arg.arg, inspect.Parameter.POSITIONAL_ONLY) for arg in tree.posonlyargs]
    names += [(arg.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD) for arg in tree.args]
    defaults = [inspect.Parameter.empty] * (len(names) - len(tree.defaults)) + [ast.unparse(d) for d in tree.defaults]
    parameters += [inspect.Parameter(n, kind, default=d) for (n, kind), d in zip(names, defaults, strict=True)]
    if tree.vararg:
        parameters.append(inspect.Parameter(tree.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
    for arg, default in zip(tree.kwonlyargs, tree.kw_defaults, strict=True):
        value = inspect.Parameter.empty if default is None else ast.unparse(default)
        parameters.append(inspect.Parameter(arg.arg, inspect.Parameter.KEYWORD_ONLY, default=value))
    if tree.kwarg:
        parameters.append(inspect.Parameter(tree.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


# Exceptions


class Exceptions:
    """The exception classes of one student: Python's, the course's, and stand-ins made for the student's own."""

    def __init__(self, resolve: Callable[[str, str], type | None]):
        self.resolve = resolve
        self.made: dict[str, type] = {}
        self.aliases: dict[tuple[str, str], type[Exception]] = {}  # stand-ins for classes that the judge has, too

    def handed_over(self, bases: list[tuple[str, str]], name: str = "") -> type[Exception]:
        """Return the class for one that a test gets from the student, which it may use to catch exceptions.

        `name`: set if the exercise asks for a class of this name. It is then a stand-in whatever the student bound to
        it, and so is a class that would catch an AssertionError: after `Refused = Exception`, `raises(Refused)` must
        not catch what the test itself raises. What the student's code raises as Exception is then that stand-in.
        """
        kind = self.kind(bases)
        if bases[0] in self.aliases or kind in self.made.values() or not (name or issubclass(AssertionError, kind)):
            return kind
        stand_in = type(name or kind.__name__, (kind,), {"__module__": "__main__"})
        return self.aliases.setdefault(bases[0], stand_in)

    def kind(self, bases: list[tuple[str, str]]) -> type[Exception]:
        """Return the class for a class's bases, (module, qualified name), with the class itself first.

        A class that is unknown here gets a stand-in: a subclass of its nearest known base, or of Exception.
        """
        name = bases[0][1].rpartition(".")[2]
        for number, (module, qualified) in enumerate(bases):
            known = getattr(builtins, qualified, None) if module == "builtins" else self.resolve(module, qualified)
            base = self.aliases.get((module, qualified), known)
            if isinstance(base, type) and issubclass(base, Exception) and not issubclass(base, BaseExceptionGroup):
                return base if number == 0 else self._make(name, base)
        return self._make(name, Exception)

    def _make(self, name: str, base: type[Exception]) -> type[Exception]:
        name = name if bound_name(name) else "Error"
        if name not in self.made:
            self.made[name] = type(name, (base,), {"__module__": "__main__"})
        return self.made[name]

    def error(self, told: Error) -> Exception:
        """Rebuild an exception from its fields, with the traceback that it had in the sandbox."""
        kind = self.kind(told.bases)
        try:
            error = kind(*told.args)
        except Exception:  # its own `__init__` doesn't accept the args that it stored
            error = kind.__new__(kind)
            error.args = (told.message,)
        return error.with_traceback(_traceback(told.frames))


def _traceback(frames: list[tuple[str, int, str, str]]) -> Any:
    """Build a traceback from frames (file, line, function, text), innermost last; None if there are none."""
    tree = None
    for file, line, name, text in reversed(frames):
        file = _named(file, line, text)
        code = {"co_filename": file, "co_name": name}
        frame = {"f_globals": {"__name__": "__main__"}, "f_locals": {}, "f_code": code, "f_lineno": line}
        tree = {"tb_frame": frame, "tb_lineno": line, "tb_next": tree}
    return Traceback.from_dict(tree).as_traceback() if tree else None


def note_preloaded() -> None:
    """Note the files of the modules that this process has now, before any test imports more: those stay unknown."""
    modules = [vars(module) for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    _PRELOADED.update(file for module in modules if isinstance(file := module.get("__file__"), str))


def _named(file: str, line: int, text: str) -> str:
    """Return the name that a file of the sandbox has here, where tracebacks show this line of it.

    It is a name of ours, because Python opens the files that a traceback names, and shows their lines. A preloaded
    module's file keeps its folder, by which checks tell the library's lines from a student's.
    """
    name = _REMEMBERED.get(file, "")
    if not name and len(_REMEMBERED) < MAX_FILES:
        name = f"{file} (in the sandbox)" if file in _PRELOADED else f"<student's file {len(_REMEMBERED)}>"
        _REMEMBERED[file] = name
    if not name:
        return "<another of the student's files>"
    lines = list(linecache.cache[name][2]) if name in linecache.cache else []  # type: ignore[misc]
    lines += ["\n"] * (line - len(lines))
    lines[line - 1] = text + "\n"
    linecache.cache[name] = (len(lines), None, lines, name)
    return name
