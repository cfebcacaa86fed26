"""The runner of the instructor's cells, and its record of what became of each: the only thing that points come from.

A cell has passed if the runner saw it run to its end and raise nothing. What IPython displays, or fails to display,
proves nothing: a renderer that fails on a forged error would otherwise turn a failure into silence, and silence into
points.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import inspect
import linecache
import math
import numbers
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..inside.shell import Recorder, Shell
from ..wire.protocol import MAX_FRAMES, MAX_NAME, MAX_WORDS, clean
from .proxies import Remote


@dataclass
class Record:
    """What became of a cell. `passed`: it ran to its end and raised nothing.

    `points`: the number that its last line gives, or None. `line`: the line of the cell that raised, from 1, or None.
    `relayed`: which of its texts, counted from 0, a function of the student's printed. `bound`: what its top level has
    bound or deleted, whatever the value was before.
    """

    passed: bool = False
    points: float | None = None
    line: int | None = None
    outputs: list[dict] = field(default_factory=list)
    relayed: list[int] = field(default_factory=list)
    bound: set[str] = field(default_factory=set)


class Locals(MutableMapping):
    """A namespace that notes which names a cell's top level binds: the value alone can't show that `n = 5` ran."""

    def __init__(self, namespace: dict[str, Any], bound: set[str]):
        self.namespace, self.bound = namespace, bound

    def __getitem__(self, name: str) -> Any:
        return self.namespace[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.bound.add(name)
        self.namespace[name] = value

    def __delitem__(self, name: str) -> None:
        self.bound.add(name)
        del self.namespace[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.namespace)

    def __len__(self) -> int:
        return len(self.namespace)


_FILES: set[str] = set()  # the names that the instructor's cells have in tracebacks


def run(shell: Shell, source: str, graded: bool = False) -> Record:
    """Run a cell of the instructor's in the shell's namespace; return the record. `graded`: it is a test."""
    record = Record()
    shell.recorder = Recorder()
    file = ""
    with shell.printing():
        try:
            code = shell.transform_cell(source)
            file = shell.compile.cache(code)  # also lets `inspect.getsource` find what a locked cell defines
            _FILES.add(file)
            if graded:  # a check's message may quote the line that an error comes from
                linecache.cache[file] = (0, None, [], file)
            value = _value(shell, code, file, record.bound)
            record.points = _points(value, _last(code)) if graded else None
            record.passed = True
        except BaseException as error:
            record.line = _line(error, file)
            shell.recorder.error(*described(error, record.line, source))
        else:
            with contextlib.suppress(BaseException):  # a picture that can't be shown takes no points away
                shell.displayhook(value)
                shell.events.trigger("post_execute")
    texts = [output for output in shell.recorder.outputs if output["output_type"] == "stream"]
    record.relayed = [
        number for number, text in enumerate(texts) if any(text is each for each in shell.recorder.relayed)
    ]
    record.outputs = [_cleaned(output) for output in shell.recorder.outputs]
    return record


def relay(stream: Any, text: str) -> None:
    """Write what a student's code printed; the judge's own streams take note that it is not the test's."""
    getattr(stream, "relay", stream.write)(text)


def _cleaned(output: dict) -> dict:
    """Return an output with its texts clean: a test may print what a student's function returned."""
    if "data" in output:
        return output | {"data": {mime: clean(text) for mime, text in output["data"].items()}}
    return output | {"text": clean(output["text"])} if "text" in output else output


def _value(shell: Shell, code: str, file: str, bound: set[str]) -> Any:
    """Run a cell; return the value of its last line, or None if that is no expression or ends in a semicolon.

    `bound`: gets the names that the cell binds.
    """
    names = Locals(shell.user_ns, bound)
    tree = ast.parse(code, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    _execute(shell, names, _compiled(tree, file, "exec"))
    if not isinstance(last, ast.Expr):
        return None
    value = _execute(shell, names, _compiled(ast.Expression(last.value), file, "eval"))
    return None if code.rstrip().endswith(";") else value


def _compiled(tree: ast.AST, file: str, mode: str) -> Any:
    """Compile a part of a cell, which may `await`; what this file imports from `__future__` is not for cells."""
    return compile(tree, file, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)  # type: ignore[call-overload]


def _execute(shell: Shell, names: Locals, code: Any) -> Any:
    result = eval(code, shell.user_ns, names)
    return asyncio.run(result) if code.co_flags & inspect.CO_COROUTINE else result


class NoPoints(AssertionError):
    """A test's last line gives something in place of a number of points."""


def _points(value: Any, last: ast.expr | None) -> float | None:
    """Return the points that a test's last line gives, or None for all of them. Raise NoPoints if it gives neither.

    A call may return None or True, and a figure or a constant is only shown. What a student's values can turn a sum of
    points into (an array, a tensor, a record, a complex number, False, None) is no number of points, and never all of
    them.
    """
    try:
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        return math.inf  # more points than any cell has
    if value is None:
        means_all = last is None or isinstance(last, ast.Call | ast.Await | ast.Constant)
    else:
        means_all = _is_truth(value) or isinstance(last, ast.Constant | ast.JoinedStr) or not _is_data(value)
    if not means_all:
        raise NoPoints(f"the last line of this check gives a {type(value).__name__}, which is no number of points")
    return None


def _is_truth(value: Any) -> bool:
    """Return whether a value is True, Python's or numpy's: of exactly that type, because a student names a tuple."""
    numpy = sys.modules.get("numpy")
    return bool(value) if type(value) is bool or (numpy is not None and type(value) is numpy.bool_) else False


def _is_data(value: Any) -> bool:
    """Return whether a value may come from a student's: whatever `wire.plain` can make, or an object in the sandbox.

    That is plain data, an array, a tensor, a list or a record of any class, or an object of a locked cell's class.
    """
    package = type(value).__module__.partition(".")[0]
    made = isinstance(value, Remote | Enum | tuple | list) or dataclasses.is_dataclass(value)
    return made or package in ("__main__", "builtins", "decimal", "numpy", "torch")


def _last(code: str) -> ast.expr | None:
    """Return the expression in a cell's last line whose value counts; None if it is none, or ends in a semicolon."""
    body = ast.parse(code).body
    counts = body and isinstance(body[-1], ast.Expr) and not code.rstrip().endswith(";")
    return body[-1].value if counts else None  # type: ignore[attr-defined]


def _line(error: BaseException, file: str) -> int | None:
    """Return the line of the cell that an error comes from, the outermost one of that file; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = (at for frame, at in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file)
    return next(lines, None)


def described(error: BaseException, line: int | None, source: str) -> tuple[str, str, list[str]]:
    """Return an error's name, message and traceback, for a page. It never fails, whatever the error does when read."""
    name = type(error).__name__[:MAX_NAME]
    message = safe(error)
    try:
        if render := getattr(error, "_render_traceback_", None):
            return name, message, [clean(str(row))[:MAX_WORDS] for row in render()]
    except BaseException:
        pass  # the plain traceback below says the same
    lines = source.split("\n")
    where = [f"---> {line} {lines[line - 1].strip()}"] if line and line <= len(lines) else []
    return name, message, [*where, *_students_frames(error), f"{name}: {message}" if message else name]


def _students_frames(error: BaseException) -> list[str]:
    """Return a line for each frame of the student's code that an error passed through."""
    try:
        frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    except Exception:
        return []
    theirs = [frame for frame in frames if frame.filename.startswith("<") and frame.filename not in _FILES]
    return [f"     line {frame.lineno} of {frame.name}: {clean(frame.line or '')}"[:MAX_WORDS] for frame in theirs]


def safe(error: BaseException) -> str:
    """Return an error's message, of at most `MAX_WORDS` characters, or a remark if it has none that can be read."""
    try:
        return clean(str(error))[:MAX_WORDS]
    except BaseException:
        return "(its message cannot be read)"
