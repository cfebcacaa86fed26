"""The sandbox's end of the connection: it runs a student's cells in an IPython shell and calls their functions.

The judge outside trusts nothing in here: a student's code runs in the same process and may change all of it.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import importlib
import inspect
import json
import operator
import os
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

from ..wire import channel
from ..wire.plain import BadMessage, Contents, Decoder, Encoder, NotPlain, Resolve, bound_name, read_back, trusted
from ..wire.protocol import (
    MAX_ARGS,
    MAX_BASES,
    MAX_FRAMES,
    MAX_NAME,
    MAX_PACKED,
    MAX_SIGNATURE,
    MAX_WORDS,
    handle,
    is_small,
)
from .fork_server import reseed
from .shell import lay_out, make_shell


def prepare() -> None:
    """Make the shell, and import all that it needs, before the first submission arrives."""
    make_shell().run("None", "warm")
    inspect.getsource(prepare)  # compiles the expressions that reading any function's source takes
    reseed()


def serve(connection: socket.socket) -> None:
    """Answer the judge's requests until it hangs up."""
    reseed()
    os.register_at_fork(after_in_child=connection.close)
    inside = Inside(connection)
    with contextlib.suppress(channel.Closed):
        while True:
            channel.send(connection, inside.answer(channel.receive(connection)))


class Inside:
    """The notebook in the sandbox. `handles`: values that aren't plain data, which the judge refers to by number."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.shell = make_shell()
        self.handles: list[Any] = []
        self.packages: tuple[str, ...] = ()
        self.names: tuple[str, ...] = ()  # what the exercise asks the student to define
        self.given: dict[str, Any] = {}  # what the instructor's cells bind
        self.whole: set[int] = set()  # ids of instances that a test made: they stay objects, even if they are lists
        self.passed: dict[int, Any] = {}  # the last call's arguments, and the objects in them, by the judge's number
        self.calling = ""  # the number of the call that runs; "" outside of calls
        self.talking = threading.RLock()

    def answer(self, message: bytes) -> bytes:
        """Carry out a request; return the bytes of the answer."""
        decoder = self._decoder()
        try:
            word, number, *fields = decoder.read(message)
        except BadMessage as error:  # a class of the instructor's that can't be made here
            self.passed = {}
            return self._written(_number(message), "raised", self._raised(NotPlain(f"cannot receive {error}")), [])
        if word == "call":
            self.passed, self.calling = decoder.objects, number
        answer = getattr(self, f"do_{word}")(*fields)
        self.calling = ""
        return self._written(number, *answer)

    def _written(self, number: str, word: str, *fields: Any) -> bytes:
        """Return the bytes of an answer, or of what may answer in its place if something in it can't cross.

        The judge ends the session at a message that it refuses. So each is read back as the judge reads it.
        """
        try:
            message, _ = self._crossing((word, number, *fields), fields[0] if word == "changed" else {})
            return message
        except NotPlain as error:
            raised = self._raised(NotPlain(f"this {'puts out' if word == 'ran' else 'returns'} {error}"))
        except Exception as error:  # a student's property or iterator failed while we read it
            raised = self._raised(error)
        if word == "ran":
            shown = {"output_type": "error", "ename": "NotPlain", "evalue": raised[2], "traceback": [raised[2]]}
            return self._encoder().message((word, number, [shown], fields[1]))
        return self._encoder().message(("raised", number, raised, []))

    def _crossing(self, value: Any, known: dict[int, Any] | None = None) -> tuple[bytes, Any]:
        """Return the message for a value, and what its reader makes of it. Raise NotPlain if it can't cross.

        `known`: objects that the judge has, by its numbers.
        """
        known = known or {}

        def other(tree: list) -> Any:
            kind, number, *_ = tree
            if kind == "yours":
                return known[number]
            handle(tree)
            return _Elsewhere()

        message = self._encoder({id(each): number for number, each in known.items()}).message(value)
        return message, read_back(message, Decoder(self._classes(), other))

    # The judge's requests, each with what may answer it in `wire.protocol`

    def do_open(self, packages: tuple[str, ...], files: dict[str, bytes], names: tuple[str, ...]) -> tuple:
        """Begin a notebook. `packages`: those whose classes may cross. `files`: the exercise's files, by name."""
        self.packages, self.names = packages, names
        lay_out(files)
        return ("done",)

    def do_cell(self, source: str, name: str, given: bool) -> tuple:
        """Run a cell; return its outputs and what it bound. `given`: the cell is the instructor's."""
        before = dict(self.shell.user_ns)
        outputs = self.shell.run(source, name)
        bound = self._bound(source)  # `n = 5` binds n even if it was 5 before
        new = {
            key: value
            for key, value in self.shell.user_ns.items()
            if key in bound or key not in before or before[key] is not value
        }
        if given:
            self.given |= new
        return "ran", outputs, {name: self._kind(new[name]) for name in self.names if name in new}

    def _bound(self, source: str) -> set[str]:
        """Return the names that a cell may bind; none if it isn't Python."""
        with contextlib.suppress(Exception):
            code = self.shell.transform_cell(source)
            return _stored(compile(code, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True))
        return set()

    def do_look(self, names: tuple[str, ...]) -> tuple:
        """Return the values of these names, as far as they are bound."""
        namespace = self.shell.user_ns
        return "values", {name: namespace[name] for name in names if name in namespace}

    def do_call(self, target: Any, method: str, args: tuple, kwargs: tuple) -> tuple:
        """Call something; return its result or exception, and what it printed.

        `target`: ("name", name), ("handle", number) or a function. `method`: "" to call it, else see `_do`. `kwargs`:
        pairs of name and value.
        """
        self.shell.recorder = type(self.shell.recorder)()
        with self.shell.printing():
            try:
                target = self._target(target)
                answer = "returned", _do(target, method, list(args), dict(kwargs))
                if isinstance(target, type) and target.__module__ == "__main__" and not method:
                    self.whole.add(id(answer[1]))
            except BaseException as error:  # sys.exit() in a student's function is an answer of theirs, too
                answer = "raised", self._raised(error)
        outputs = self.shell.recorder.outputs
        return *answer, [(output["name"], output["text"]) for output in outputs if "text" in output]

    def do_changes(self, numbers: tuple[int, ...]) -> tuple:
        """Return what is now in these objects of the last call's arguments, by number."""
        return "changed", Contents({number: self.passed[number] for number in numbers if number in self.passed})

    def do_pack(self, values: tuple) -> tuple:
        """Return values in a pickle for ranks, with their source; what the ranks calculate with never comes here."""
        try:
            packed = importlib.import_module("collectives.ranks.process").pack(None, values)
            if len(packed) > MAX_PACKED:
                raise ValueError(f"functions that refer to more than {MAX_PACKED >> 20} MiB, too much for ranks")
        except BaseException as error:  # a student's object may refuse
            return "raised", self._raised(error), []
        return "packed", packed

    def _target(self, target: Any) -> Any:
        if not isinstance(target, tuple):
            return target
        word, key = target
        return self.handles[key] if word == "handle" else self.shell.user_ns[key]

    # How things cross

    def _encoder(self, known: dict[int, int] | None = None) -> Encoder:
        return Encoder(self._classes(), self._handle, known, self.whole)

    def _decoder(self) -> Decoder:
        return Decoder(self._classes(), self._given, importlib.import_module)

    def _classes(self) -> Resolve:
        return trusted(self.packages, self.given, importlib.import_module)

    def _handle(self, value: Any) -> list | None:
        """Return the tree for a value that isn't plain data: a handle's number and kind; None if it has no use."""
        if id(value) not in self.whole and not _has_use(value):
            return None
        self.handles.append(value)  # also keeps it alive, so that no other object gets its id
        return ["handle", len(self.handles) - 1, *self._kind(value)]

    def _given(self, tree: list) -> Any:
        """Return the value of a tree from the judge that isn't plain data."""
        kind, *rest = tree
        if kind == "handle":
            return self.handles[rest[0]]
        if kind == "import":
            return _imported(*rest)
        if kind == "global":
            return self.shell.user_ns[rest[0]]
        if kind == "pickled":  # from the judge, which pickles only objects of `packages`
            return cloudpickle.loads(bytes.fromhex(rest[0]))
        return self._callback(*rest)

    def _callback(self, number: int, name: str) -> Any:
        """Return a function that runs on the judge's side each time it is called here."""

        def function(*args: Any, **kwargs: Any) -> Any:
            with self.talking:
                if not self.calling:
                    raise RuntimeError(f"{name} belongs to a test, and works only while the test calls your code")
                if odd := next((key for key in kwargs if not bound_name(key)), None):
                    raise TypeError(f"{name}() gets an argument called {odd!r:.100}, which is no name")
                message, _ = self._crossing(("callback", self.calling, number, args, kwargs))
                channel.send(self.connection, message)
                word, _, *answer = self._decoder().read(channel.receive(self.connection))
            if word == "refusal":
                raise _exception(*answer)
            return answer[0]

        function.__name__ = function.__qualname__ = name
        return function

    def _kind(self, value: Any) -> tuple[str, dict]:
        """Return a value's kind, and what a test may read about it without another request."""
        with contextlib.suppress(Exception):
            about = {"name": str(getattr(value, "__name__", type(value).__name__))[:MAX_NAME]}
            if isinstance(value, ModuleType):
                return "module", about
            if isinstance(value, type):
                kind = "exception" if issubclass(value, BaseException) else "class"
                return kind, about | self._source(value) | {"bases": _bases(value)}
            if callable(value) and (inspect.isroutine(value) or hasattr(value, "__wrapped__")):
                return "function", about | self._source(value)
            return ("iterator" if isinstance(value, Iterator) else "object"), about
        return "object", {"name": "object"}

    def _source(self, value: Any) -> dict:
        """Return a function's docstring, signature and source, as far as it has them."""
        about: dict[str, Any] = {"doc": str(value.__doc__)[:MAX_WORDS] if value.__doc__ else None}
        with contextlib.suppress(Exception):
            signature = str(inspect.signature(value))
            if len(signature) <= MAX_SIGNATURE:
                about["signature"] = signature
        with contextlib.suppress(Exception):
            about["source"] = inspect.getsource(value)[:MAX_WORDS]
        return about

    def _raised(self, error: BaseException) -> tuple:
        """Return an exception as plain data: its class with the bases, its arguments, its message and its frames."""
        with contextlib.suppress(Exception):
            frames = [
                (frame.filename[-MAX_NAME:], frame.lineno or 0, frame.name[:MAX_NAME], (frame.line or "")[:MAX_WORDS])
                for frame in traceback.extract_tb(error.__traceback__)
                if frame.filename != __file__
            ]
            return _bases(type(error)), self._plain(error.args), str(error)[:MAX_WORDS], frames[-MAX_FRAMES:]
        return [("builtins", "Exception")], (), "(its message cannot be read)", []

    def _plain(self, args: tuple) -> tuple | None:
        """Return an exception's arguments as the judge keeps them, or None if it keeps only the message."""
        with contextlib.suppress(Exception):
            _, plain = self._crossing(tuple(args[:MAX_ARGS]))
            return plain if all(map(is_small, plain)) else None
        return None


class _Elsewhere:
    """In place of a proxy where a message is read back. What a class's own code asks it for fails, as in the judge."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("an object of the student's own can't be compared with data")

    def __call__(self, *_: object, **__: object) -> None:
        raise TypeError("an object of the student's own can't be called here")

    __hash__ = object.__hash__


# What Python itself does where a class has no method of that name: a container without `__contains__` is searched.
_BUILT_IN: dict[str, Callable] = {"bool": bool, "str": str, "repr": repr, "__contains__": operator.contains}


def _do(target: Any, method: str | None, args: list, kwargs: dict) -> Any:
    """Call `target`, read or set one of its attributes, or call one of its special methods."""
    if not method:
        return target(*args, **kwargs)
    if method == "getattr":
        return getattr(target, *args)
    if method == "setattr":
        return setattr(target, *args)
    if method == "isinstance":
        return isinstance(args[0], target)
    if method == "issubclass":
        return issubclass(args[0], target)
    if method in _BUILT_IN:
        return _BUILT_IN[method](target, *args)
    if method == "__next__":
        return next(target)
    if method == "__iter__":
        return iter(target)
    if method == "__getitem__" and isinstance(target, type):
        return target[args[0]]  # type: ignore[index]  # a generic class
    special = getattr(type(target), method, None)
    if special is None:
        raise TypeError(f"{type(target).__name__!r} object has no {method}")
    return special(target, *args, **kwargs)


def _number(message: bytes) -> str:
    """Return the number of a request whose values can't be read."""
    _, (_, number, *_) = json.loads(message[8 : 8 + int.from_bytes(message[:8], "big")])["value"]
    return number


def _stored(code: CodeType, nested: bool = False) -> set[str]:
    """Return the notebook's names that compiled code may bind, in its functions and classes as well."""
    instructions = ("STORE_GLOBAL",) if nested else ("STORE_GLOBAL", "STORE_NAME")
    names = {each.argval for each in dis.get_instructions(code) if each.opname in instructions}
    return names.union(*(_stored(part, True) for part in code.co_consts if isinstance(part, CodeType)))


def _has_use(value: Any) -> bool:
    """Return whether a test can do more with a value than read it as data."""
    return callable(value) or isinstance(value, Iterator) or type(value).__module__ != "builtins"


def _bases(kind: type) -> list[tuple[str, str]]:
    bases = [(str(base.__module__)[:MAX_NAME], str(base.__qualname__)[:MAX_NAME]) for base in kind.__mro__]
    return bases[:MAX_BASES]


def _imported(module: str, name: str) -> Any:
    value = importlib.import_module(module)
    for part in name.split(".") if name else []:
        value = getattr(value, part)
    return value


def _exception(name: str, message: str) -> Exception:
    """Return an exception of the judge's: Python's own class of that name, or else a new class of that name."""
    import builtins

    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(message)
    return type(name, (Exception,), {})(message)
