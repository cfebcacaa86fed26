"""The sandbox's end of the connection: it runs a student's cells in an IPython shell and calls their functions.

The judge outside trusts nothing in here: a student's code runs in the same process and may change all of it.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import socket
import threading
import traceback
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import cloudpickle

from ..wire import channel
from ..wire.plain import Decoder, Encoder, NotPlain, trusted
from .shell import lay_out, make_shell, reseed

MAX_FRAMES = 30  # frames of a traceback
MAX_WORDS = 10_000  # characters of an error's message, and of a function's source
_OF_IPYTHON = {"In", "Out", "exit", "quit", "get_ipython", "open"}


def prepare() -> None:
    """Make the shell, and import all that it needs, before the first submission arrives."""
    make_shell().run("None", "warm")
    reseed()


def serve(connection: socket.socket) -> None:
    """Answer the judge's messages until it hangs up."""
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
        self.given: dict[str, Any] = {}  # what the instructor's cells bind
        self.whole: set[int] = set()  # ids of instances that a test made: they stay objects, even if they are lists
        self.talking = threading.RLock()

    def answer(self, message: bytes) -> bytes:
        """Carry out a message; return the bytes of the answer."""
        decoder = self._decoder()
        request = decoder.read(message)
        known = {id(value): number for number, value in decoder.objects.items()}
        answer = getattr(self, f"do_{request.pop('do')}")(**request)
        return self._written(answer, known)

    def _written(self, answer: dict, known: dict[int, int]) -> bytes:
        """Return the bytes of an answer, or of an error if something in the answer can't cross."""
        try:
            return self._encoder(known).message(answer)
        except NotPlain as error:
            raised = self._raised(NotPlain(f"this returns {error}"))
        except Exception as error:  # a student's property or iterator failed while we read it
            raised = self._raised(error)
        return self._encoder({}).message({"raised": raised, "printed": answer.get("printed", [])})

    # The judge's requests

    def do_open(self, packages: tuple[str, ...], files: dict[str, bytes]) -> dict:
        """Begin a notebook. `packages`: those whose classes may cross. `files`: the exercise's files, by name."""
        self.packages = packages
        lay_out(files)
        return {}

    def do_cell(self, source: str, name: str, given: bool) -> dict:
        """Run a cell; return its outputs and what it bound. `given`: the cell is the instructor's."""
        before = {key: id(value) for key, value in self.shell.user_ns.items()}
        outputs = self.shell.run(source, name)
        new = {key: value for key, value in self.shell.user_ns.items() if before.get(key) != id(value)}
        if given:
            self.given |= new
        bound = {key: self._kind(value) for key, value in new.items() if key not in _OF_IPYTHON and key[0] != "_"}
        return {"outputs": outputs, "bound": bound}

    def do_look(self, names: list[str]) -> dict:
        """Return the values of these names, as far as they are bound."""
        namespace = self.shell.user_ns
        return {"result": {name: self._readable(namespace[name]) for name in names if name in namespace}}

    def do_call(self, target: Any, method: str, args: list, kwargs: dict, changes: str) -> dict:
        """Call something; return its result or exception, what it printed, and its arguments as they are afterwards.

        `target`: ("name", name), ("handle", number) or a function. `method`: "" to call it, else see `_do`. `changes`:
        "always" returns the arguments in any case, "if None" only if the result is None.
        """
        self.shell.recorder = type(self.shell.recorder)()
        with self.shell.printing():
            try:
                target = self._target(target)
                answer = {"result": _do(target, method, args, kwargs)}
                if isinstance(target, type) and not method:
                    self.whole.add(id(answer["result"]))
            except BaseException as error:  # sys.exit() in a student's function is an answer of theirs, too
                answer = {"raised": self._raised(error)}
        printed = [(output["name"], output["text"]) for output in self.shell.recorder.outputs if "text" in output]
        if changes == "always" or answer.get("result") is None:
            answer |= {"args": args, "kwargs": kwargs}
        return {"printed": printed, **answer}

    def do_pack(self, values: list) -> dict:
        """Return values in a pickle for ranks, with their source; what the ranks calculate with never comes here."""
        try:
            pack = importlib.import_module("collectives.ranks.process").pack
            return {"packed": pack(None, tuple(values))}
        except BaseException as error:  # a student's object may refuse
            return {"raised": self._raised(error)}

    def _target(self, target: Any) -> Any:
        if not isinstance(target, tuple):
            return target
        word, key = target
        return self.handles[key] if word == "handle" else self.shell.user_ns[key]

    # How things cross

    def _encoder(self, known: dict[int, int]) -> Encoder:
        return Encoder(trusted(self.packages, self.given), self._handle, known, self.whole)

    def _decoder(self, known: list[Any] | None = None) -> Decoder:
        return Decoder(trusted(self.packages, self.given), self._given, known)

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
                encoder = self._encoder({})
                request = encoder.message({"callback": number, "args": list(args), "kwargs": kwargs})
                channel.send(self.connection, request)
                answer = self._decoder(encoder.objects).read(channel.receive(self.connection))
            if "raised" in answer:
                raise _exception(*answer["raised"])
            return answer["result"]

        function.__name__ = function.__qualname__ = name
        return function

    def _readable(self, value: Any) -> Any:
        """Return `value`, or None if it can't cross; a test that reads it then fails."""
        try:
            self._encoder({}).message(value)
        except Exception:
            return None
        return value

    def _kind(self, value: Any) -> tuple[str, dict]:
        """Return a value's kind, and what a test may read about it without another request."""
        about = {"name": str(getattr(value, "__name__", type(value).__name__))[:200]}
        if isinstance(value, ModuleType):
            return "module", about
        if isinstance(value, type):
            kind = "exception" if issubclass(value, BaseException) else "class"
            return kind, about | self._source(value) | {"mro": _mro(value)}
        if callable(value) and (inspect.isroutine(value) or hasattr(value, "__wrapped__")):
            return "function", about | self._source(value)
        if isinstance(value, Iterator):
            return "iterator", about
        return "object", about

    def _source(self, value: Any) -> dict:
        """Return a function's docstring, signature and source, as far as it has them."""
        about: dict[str, Any] = {"doc": str(value.__doc__)[:MAX_WORDS] if value.__doc__ else None}
        with contextlib.suppress(Exception):
            about["signature"] = str(inspect.signature(value))
        with contextlib.suppress(Exception):
            about["source"] = inspect.getsource(value)[:MAX_WORDS]
        return about

    def _raised(self, error: BaseException) -> dict:
        """Return an exception as plain data: its classes, arguments, message and frames."""
        frames = [
            [frame.filename, frame.lineno or 0, frame.name, frame.line or ""]
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename != __file__
        ]
        with contextlib.suppress(Exception):
            words = str(error)[:MAX_WORDS]
            args = self._readable(tuple(error.args))
            return {"mro": _mro(type(error)), "args": args, "words": words, "frames": frames[-MAX_FRAMES:]}
        return {"mro": _mro(type(error)), "args": None, "words": "(its message cannot be read)", "frames": []}


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


def _has_use(value: Any) -> bool:
    """Return whether a test can do more with a value than read it as data."""
    return callable(value) or isinstance(value, Iterator) or type(value).__module__ != "builtins"


def _mro(kind: type) -> list:
    return [[str(base.__module__), str(base.__qualname__)] for base in kind.__mro__][:20]


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
