"""The student's things, as the judge sees them: something to call, whose work is done in the sandbox.

What comes back is plain data wherever it can be. Where a student's function returns an object of a class of its own,
a test can call its methods and read its attributes; but it is never compared with plain data here, because then the
student's own `__eq__` would say whether the answer is right.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import linecache
from collections.abc import Callable
from typing import Any, Protocol

from tblib import Traceback

from ..wire.plain import bound_name

_REMEMBERED: set[str] = set()  # files of the sandbox's tracebacks: lines of the judge's own are never replaced
MAX_LINE = 5000  # a line number that a student's cell could have
_FORWARDED = ("__len__", "__getitem__", "__setitem__", "__delitem__", "__enter__", "__exit__")
_ARITHMETIC = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "neg",
    "pos",
    "abs",
)
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__")


class NotData(TypeError):
    """A test needs data where a student's function has given an object of its own."""


class Line(Protocol):
    """What a proxy needs of the line to its sandbox (`link.Link`)."""

    def call(self, target: Any, method: str, args: list, kwargs: dict | None = None) -> Any:
        """Call something in the sandbox."""


class Remote:
    """Something in the sandbox that is not plain data. `_made`: the test itself has made it, by calling its class."""

    def __init__(self, link: Line, target: Any, about: dict, made: bool = False):
        vars(self).update(_link=link, _target=target, _about=about, _made=made)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_repr_", "_ipython_")):
            raise AttributeError(name)  # numpy, IPython and others look for what they could do with an object
        return self._link.call(self._target, "getattr", [name])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.call(self._target, "", list(args), kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.call(self._target, "setattr", [name, value])

    def __iter__(self) -> Any:
        return self._link.call(self._target, "__iter__", [])

    def __bool__(self) -> bool:
        return True

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<{self._about.get('name', 'object')} of the student's>"

    def __reduce__(self) -> Any:
        raise TypeError("a student's function or object stays in the sandbox")


class RemoteIterator(Remote):
    """A generator or another iterator, read one item at a time."""

    def __iter__(self) -> RemoteIterator:
        return self

    def __next__(self) -> Any:
        return self._link.call(self._target, "__next__", [])


class Function(Remote):
    """A student's function: `__source__` is how it is written."""

    def __init__(self, link: Line, target: Any, about: dict, made: bool = False):
        super().__init__(link, target, about, made)
        name = about.get("name", "function")
        vars(self).update(__name__=name, __qualname__=name, __doc__=about.get("doc"), __module__="__main__")
        vars(self)["__source__"] = about.get("source", "")
        with contextlib.suppress(Exception):
            vars(self)["__signature__"] = _signature(about["signature"])


class Class(Function):
    """A student's class. `_made`: the exercise asks for a class of this name, so that tests are about what it makes.

    What it makes may then be compared with anything: the test wants to know what its `__eq__` says.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        if isinstance(made, Remote):
            vars(made)["_made"] = self._made
        return made

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and self._link.call(self._target, "isinstance", [value]) is True

    def __subclasscheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and self._link.call(self._target, "issubclass", [value]) is True


def _forward(method: str) -> Callable:
    def forwarded(self: Remote, *args: Any) -> Any:
        return self._link.call(self._target, method, [_plain_error(arg) for arg in args])

    forwarded.__name__ = method
    return forwarded


def _guarded(method: str) -> Callable:
    """A special method that tells an object's value: only for what the test itself has made, or between two objects."""

    def guarded(self: Remote, *args: Any) -> Any:
        if not self._made and not (args and isinstance(args[0], Remote)):
            raise NotData(
                f"this is {_article(self._about.get('name', 'object'))}, where plain data is wanted: "
                "a number, a string, a list, an array"
            )
        given = self._link.call(self._target, method, list(args))
        if method in _COMPARISONS and not isinstance(given, bool):
            raise NotData(f"{method} gives {given!r}, where True or False is wanted"[:300])
        return given

    guarded.__name__ = method
    return guarded


def _plain_error(value: Any) -> Any:
    """An exception on its way out of a `with` block cannot cross; that there was one can."""
    return None if isinstance(value, BaseException) or inspect.istraceback(value) or inspect.isclass(value) else value


for _method in _FORWARDED:
    setattr(Remote, _method, _forward(_method))
for _method in (
    *_COMPARISONS,
    *(f"__{name}__" for name in _ARITHMETIC),
    *(f"__r{name}__" for name in _ARITHMETIC[:11]),
):
    setattr(Remote, _method, _guarded(_method))
for _method in ("__int__", "__float__", "__index__"):
    setattr(Remote, _method, _guarded(_method))


KINDS = {
    "function": Function,
    "class": Class,
    "iterator": RemoteIterator,
    "object": Remote,
    "module": Remote,
}


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name} of the student's own"


def _signature(words: str) -> inspect.Signature:
    """A signature from its words; defaults are what they look like, as names cannot be resolved here."""
    import ast

    tree = ast.parse(f"def f{words}: pass").body[0].args  # type: ignore[attr-defined]
    parameters = []
    names = [(arg.arg, inspect.Parameter.POSITIONAL_ONLY) for arg in tree.posonlyargs]
    names += [(arg.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD) for arg in tree.args]
    defaults = [inspect.Parameter.empty] * (len(names) - len(tree.defaults)) + [ast.unparse(d) for d in tree.defaults]
    parameters += [inspect.Parameter(n, kind, default=d) for (n, kind), d in zip(names, defaults, strict=True)]
    if tree.vararg:
        parameters.append(inspect.Parameter(tree.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
    for arg, default in zip(tree.kwonlyargs, tree.kw_defaults, strict=True):
        given = inspect.Parameter.empty if default is None else ast.unparse(default)
        parameters.append(inspect.Parameter(arg.arg, inspect.Parameter.KEYWORD_ONLY, default=given))
    if tree.kwarg:
        parameters.append(inspect.Parameter(tree.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


# Exceptions


class Exceptions:
    """The classes of what a student's code raises: Python's own, the course's, or made here by the student's name."""

    def __init__(self, resolve: Callable[[str, str], type | None]):
        self.resolve = resolve
        self.made: dict[str, type] = {}

    def kind(self, mro: list) -> type[Exception]:
        """The class for these bases, the nearest first; what is none of Python's `Exception`s becomes one."""
        name = mro[0][1].rpartition(".")[2]
        for number, (module, qualified) in enumerate(mro):
            found = getattr(builtins, qualified, None) if module == "builtins" else self.resolve(module, qualified)
            if isinstance(found, type) and issubclass(found, Exception):
                return found if number == 0 else self._make(name, found)
        return self._make(name, Exception)

    def _make(self, name: str, base: type[Exception]) -> type[Exception]:
        name = name if bound_name(name) else "Error"
        if name not in self.made:
            self.made[name] = type(name, (base,), {"__module__": "__main__"})
        return self.made[name]

    def error(self, raised: dict) -> Exception:
        """The exception again, with the traceback that it had in the sandbox."""
        kind, words = self.kind(raised["mro"]), str(raised["words"])
        args = raised["args"] if isinstance(raised["args"], tuple) else (words,)
        try:
            error = kind(*args)
        except Exception:  # whose own `__init__` wants something else than it keeps
            error = kind.__new__(kind, *args)
            error.args = (words,)
        return error.with_traceback(_traceback(raised["frames"]))


def _traceback(frames: list) -> Any:
    """A traceback of these frames (file, line, function, text), innermost last; None if there are none."""
    tree = None
    for file, line, name, text in reversed(frames):
        file, line, name = str(file), min(max(int(line), 1), MAX_LINE), str(name)[:100]
        _remember(file, line, str(text)[:500])
        code = {"co_filename": file, "co_name": name}
        frame = {"f_globals": {"__name__": "__main__"}, "f_locals": {}, "f_code": code, "f_lineno": line}
        tree = {"tb_frame": frame, "tb_lineno": line, "tb_next": tree}
    return Traceback.from_dict(tree).as_traceback() if tree else None


def _remember(file: str, line: int, text: str) -> None:
    """Let a traceback show this line, if it is of no file that the judge has."""
    if file in linecache.cache and file not in _REMEMBERED:
        return
    _REMEMBERED.add(file)
    lines = list(linecache.cache[file][2]) if file in linecache.cache else []
    lines += ["\n"] * (line - len(lines))
    lines[line - 1] = text + "\n"
    linecache.cache[file] = (len(lines), None, lines, file)
