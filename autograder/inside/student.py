"""What runs in the sandbox: a student's cells, in an IPython shell, and the calls of their functions.

Nothing in here is trusted by the judge outside: a student's code runs in the same process, and may change all of it.
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

MAX_FRAMES = 30  # of a traceback
MAX_WORDS = 10_000  # characters of an error's message, and of a function's source
_OF_IPYTHON = {"In", "Out", "exit", "quit", "get_ipython", "open"}


def prepare() -> None:
    """Do what takes long before there is a student: the shell is made, and all that it imports."""
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
    """The notebook as it runs in the sandbox. `handles`: what the judge holds by number because it is not plain."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.shell = make_shell()
        self.handles: list[Any] = []
        self.packages: tuple[str, ...] = ()
        self.given: dict[str, Any] = {}  # what the instructor's cells have bound
        self.whole: set[int] = set()  # what a test has made of a student's class: an object, even if it is a list, too
        self.talking = threading.RLock()

    def answer(self, message: bytes) -> bytes:
        """Do what a message says; the answer to it."""
        decoder = self._decoder()
        asked = decoder.read(message)
        known = {id(value): number for number, value in decoder.objects.items()}
        answer = getattr(self, f"do_{asked.pop('do')}")(**asked)
        return self._written(answer, known)

    def _written(self, answer: dict, known: dict[int, int]) -> bytes:
        """The bytes of an answer; if something in it cannot cross, an answer that says so."""
        try:
            return self._encoder(known).message(answer)
        except NotPlain as error:
            raised = self._raised(NotPlain(f"this gives {error}"))
        except Exception as error:  # a property or an iterator of the student's that fails while it is read
            raised = self._raised(error)
        return self._encoder({}).message({"raised": raised, "printed": answer.get("printed", [])})

    # What the judge may ask

    def do_open(self, packages: tuple[str, ...], files: dict[str, bytes]) -> dict:
        """Begin: the packages whose classes may cross, and the files that belong to the exercise."""
        self.packages = packages
        lay_out(files)
        return {}

    def do_cell(self, source: str, name: str, given: bool) -> dict:
        """Run a cell; its outputs, and the names that it bound. `given`: by the instructor."""
        before = {key: id(value) for key, value in self.shell.user_ns.items()}
        outputs = self.shell.run(source, name)
        new = {key: value for key, value in self.shell.user_ns.items() if before.get(key) != id(value)}
        if given:
            self.given |= new
        bound = {key: self._kind(value) for key, value in new.items() if key not in _OF_IPYTHON and key[0] != "_"}
        return {"outputs": outputs, "bound": bound}

    def do_look(self, names: list[str]) -> dict:
        """The values of names."""
        return {
            "result": {name: self._readable(self.shell.user_ns[name]) for name in names if name in self.shell.user_ns}
        }

    def do_call(self, target: Any, method: str, args: list, kwargs: dict, changes: str) -> dict:
        """Call something; what it gave or raised, what it printed, and its arguments if it changed them.

        `target`: ("name", name), ("handle", number), or a function. `method`: "" to call it, else what to do with it.
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
        """What the judge gets for something that is not plain: a number, and what it is."""
        if id(value) not in self.whole and not _has_use(value):
            return None
        self.handles.append(value)  # which also keeps its id its own
        return ["handle", len(self.handles) - 1, *self._kind(value)]

    def _given(self, tree: list) -> Any:
        """What the judge's other things stand for."""
        kind, *rest = tree
        if kind == "handle":
            return self.handles[rest[0]]
        if kind == "import":
            return _imported(*rest)
        if kind == "global":
            return self.shell.user_ns[rest[0]]
        if kind == "pickled":  # from the judge, who pickles objects of the library only
            return cloudpickle.loads(bytes.fromhex(rest[0]))
        return self._callback(*rest)

    def _callback(self, number: int, name: str) -> Any:
        """A function of the judge's, called there."""

        def function(*args: Any, **kwargs: Any) -> Any:
            with self.talking:
                encoder = self._encoder({})
                asked = encoder.message({"callback": number, "args": list(args), "kwargs": kwargs})
                channel.send(self.connection, asked)
                answer = self._decoder(encoder.objects).read(channel.receive(self.connection))
            if "raised" in answer:
                raise _exception(*answer["raised"])
            return answer["result"]

        function.__name__ = function.__qualname__ = name
        return function

    def _readable(self, value: Any) -> Any:
        """`value`, or None in place of what cannot be written down: a test that reads it will say so."""
        try:
            self._encoder({}).message(value)
        except Exception:
            return None
        return value

    def _kind(self, value: Any) -> tuple[str, dict]:
        """What sort of thing this is, and what a test may read of it without asking."""
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
        """A function's docstring, signature and source, where it has them."""
        about: dict[str, Any] = {"doc": str(value.__doc__)[:MAX_WORDS] if value.__doc__ else None}
        with contextlib.suppress(Exception):
            about["signature"] = str(inspect.signature(value))
        with contextlib.suppress(Exception):
            about["source"] = inspect.getsource(value)[:MAX_WORDS]
        return about

    def _raised(self, error: BaseException) -> dict:
        """An exception in plain words: its classes, its arguments, its message, and where it came from."""
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
    """Call `target`, or read or change an attribute of it, or call one of its special methods."""
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
        return target[args[0]]
    special = getattr(type(target), method, None)
    if special is None:
        raise TypeError(f"{type(target).__name__!r} object has no {method}")
    return special(target, *args, **kwargs)


def _has_use(value: Any) -> bool:
    """Whether a test could do something with this other than read it as data."""
    return callable(value) or isinstance(value, Iterator) or type(value).__module__ != "builtins"


def _mro(kind: type) -> list:
    return [[str(base.__module__), str(base.__qualname__)] for base in kind.__mro__][:20]


def _imported(module: str, name: str) -> Any:
    found = importlib.import_module(module)
    for part in name.split(".") if name else []:
        found = getattr(found, part)
    return found


def _exception(name: str, words: str) -> Exception:
    """The judge's exception, if it is one of Python's own; else one that is named so."""
    import builtins

    kind = getattr(builtins, name, None)
    known = isinstance(kind, type) and issubclass(kind, Exception)
    return kind(words) if known else type(name, (Exception,), {})(words)
