"""The judge's end of the connection to a sandbox: it asks, and believes nothing that `wire.protocol` doesn't allow."""

from __future__ import annotations

import contextlib
import io
import pickle
import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import cloudpickle

from ..wire import channel, protocol
from ..wire.plain import BadMessage, Decoder, Encoder, Lacking, NotPlain, shows_all, trusted
from .changes import apply, same_kind
from .proxies import PROXIES, Exceptions, Remote
from .runner import relay, safe

if TYPE_CHECKING:
    import socket

    from ..sandbox.capture import Capture

_SCIENCE = ("numpy", "torch", "scipy", "pandas", "math")  # their functions cross by name


class Ended(BaseException):
    """The end of a sandbox: it is gone or no longer answers. No `except Exception` in a test catches it.

    `verdict`: "time", "memory", "processes", "crash" or "hostile"; "fault" if the grader is at fault.
    """

    def __init__(self, verdict: str, words: str):
        super().__init__(words)
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Confined(Protocol):
    """What runs the student's cells: a `Sandbox`, or in its place an `Unsandboxed`."""

    nursery: socket.socket | None
    socket: socket.socket
    user: int

    def settle(self) -> None: ...
    def captured(self) -> contextlib.AbstractContextManager[Capture | None]: ...
    def is_spent(self) -> bool: ...
    def ended(self) -> str | None: ...
    def close(self) -> None: ...


def _of_an_earlier_test(*_: Any, **__: Any) -> None:
    raise RuntimeError("this function belongs to an earlier test, and worked only in that one")


class _Pickler(cloudpickle.Pickler):
    """A pickler that takes no function of a test's along: with it go the variables that it reads.

    Nor does it take the memory around a tensor that is a view.
    """

    shared: Mapping[str, Any] = {}  # what both sides have, by name

    def reducer_override(self, value: Any) -> Any:
        own = isinstance(value, FunctionType) and value.__module__ == "__main__"
        if own and self.shared.get(value.__name__) is not value:
            raise NotPlain(f"an object that holds the test's own {value.__qualname__}; pass that by itself")
        torch: Any = sys.modules.get("torch")
        is_tensor = torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)
        if is_tensor and value.layout == torch.strided and not shows_all(value):
            shown = value.detach().clone()
            if type(value) is torch.nn.Parameter:
                shown = torch.nn.Parameter(shown, value.requires_grad)
            return shown.requires_grad_(value.requires_grad).__reduce_ex__(pickle.DEFAULT_PROTOCOL)
        return super().reducer_override(value)


def _pickled(value: Any, shared: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.shared = shared
    pickler.dump(value)
    return file.getvalue()


class Link:
    """The connection to one sandbox: it asks one thing at a time, and accepts what `wire.protocol` says may answer it.

    `shared`: what the instructor's cells bind on both sides, by name. `names`: the names that the exercise asks a
    student to define. `deadline`: when the current cell's time is up, in seconds of time.monotonic(). `extend`: makes
    it so many seconds later.
    """

    extend: Callable[[float], None]

    def __init__(
        self,
        sandbox: Confined,
        packages: tuple[str, ...],
        shared: dict[str, Any],
        in_place: bool,
        names: Collection[str] = (),
    ):
        self.sandbox, self.packages, self.shared, self.in_place = sandbox, packages, shared, in_place
        self.names = tuple(names)
        self.resolve = trusted(packages, shared)
        self.exceptions = Exceptions(self.resolve)
        self.deadline = time.monotonic()
        self.callbacks: list[Callable] = []
        self.asking = False  # whether an answer is due
        self.ended: Ended | None = None

    def forget_callbacks(self, since: int) -> None:
        """Refuse calls of the functions passed since there were `since`: a student's code may keep a test's."""
        self.callbacks[since:] = [_of_an_earlier_test] * (len(self.callbacks) - since)

    def open(self, files: dict[str, bytes]) -> None:
        """Begin a notebook in the sandbox. `files`: the exercise's files, by name."""
        self._ask(Encoder(), "done", "open", self.packages, files, self.names)

    def cell(self, source: str, name: str, given: bool) -> tuple[list[dict], dict[str, tuple[str, dict]]]:
        """Run a cell; return its outputs, and {name: (kind, what is known about it)} of the names that it bound.

        `given`: it is the instructor's.
        """
        _, outputs, bound = self._ask(Encoder(), "ran", "cell", source, name, given)
        with self._believing_nothing():
            return protocol.outputs(outputs), protocol.bound(bound, self.names)

    def look(self, names: Collection[str]) -> dict[str, Any]:
        """Return the values of these names, as data or as proxies; names that aren't bound are left out.

        A value is None if it can't cross: a test that reads it then fails.
        """
        word = "raised"
        with contextlib.suppress(NotPlain):  # one of them is made with a module that isn't imported here
            word, values, *_ = self._ask(Encoder(), "values raised", "look", tuple(names))
        if word == "raised" and len(names) > 1:
            return {key: value for name in names for key, value in self.look([name]).items()}
        if word == "raised":
            return dict.fromkeys(names)
        with self._believing_nothing():
            return protocol.values(values, names)

    def call(self, target: Any, method: str, args: Iterable, kwargs: Mapping[str, Any] | None = None) -> Any:
        """Call something in the sandbox; return what it returns, print what it prints and raise what it raises.

        Arguments that it changes in place are then changed on this side too, as `Settings.in_place` says. `target`: a
        function that both sides have, ("name", name) or ("handle", number). `method`: "" to call it, or a special one.
        """
        encoder = Encoder(self.resolve, self.outward, shown=True)
        # Tuples have no number, so the arguments, and what is in them, are all that the sandbox can refer to.
        request = target, method, tuple(args), tuple((kwargs or {}).items())
        word, outcome, printed = self._ask(encoder, "returned raised", "call", *request)
        with self._believing_nothing():
            for stream, text in protocol.printed(printed):  # a test may capture the prints
                relay(sys.stderr if stream == "stderr" else sys.stdout, text)
            error = self.exceptions.error(protocol.error(outcome)) if word == "raised" else None
        if encoder.changeable and (self.in_place or error is not None or outcome is None):
            self._take_changes(encoder.changeable)
        if error is None:
            return outcome
        if isinstance(error, StopIteration | StopAsyncIteration) and method != "__next__":
            # A StopIteration would silently end a test's loop over calls.
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise error

    def _take_changes(self, passed: dict[int, Any]) -> None:
        """Give the objects that a call has passed, by number, the contents that they have in the sandbox now."""

        def mine(tree: list) -> Any:
            if len(tree) == 2 and tree[0] == "yours" and tree[1] in passed:
                return passed[tree[1]]  # a reference within a new content; only `apply` below changes an object
            return self._inward(tree)

        word, objects, *_ = self._ask(Encoder(), "changed raised", "changes", tuple(passed), inward=mine)
        if word == "raised":  # an argument holds something now that can't cross
            with self._believing_nothing():
                error = self.exceptions.error(protocol.error(objects))
            raise error
        with self._believing_nothing():
            contents = protocol.changed(objects, passed)
            changes = [(passed[number], content) for number, content in contents.items()]
            for old, new in changes:
                if not same_kind(old, new):
                    raise protocol.Hostile("a change of an object's class")
            for old, new in changes:
                apply(old, new)

    def pack(self, values: list) -> bytes:
        """Return the sandbox's pickle of these objects of the student's, for ranks alone: nothing here unpickles it.

        Raise what the pickling raised.
        """
        word, packed, *_ = self._ask(Encoder(self.resolve, self.outward), "packed raised", "pack", tuple(values))
        with self._believing_nothing():
            if word == "packed":
                return protocol.packed(packed)
            error = self.exceptions.error(protocol.error(packed))
        raise error

    def _ask(self, encoder: Encoder, due: str, word: str, *fields: Any, inward: Callable | None = None) -> tuple:
        """Send a request; return its answer, (word, *fields). `due`: the words that may answer it.

        Raise NotPlain if the request can't cross, or if the answer is made with a module that isn't imported here.
        """
        if self.ended is not None:
            raise self.ended
        if self.asking:
            raise NotPlain("a function that a test passes to a student's function can't call the student's code itself")
        number = secrets.token_hex(8)
        try:
            request = encoder.message((word, number, *fields))
        except NotPlain as error:
            raise NotPlain(f"cannot pass this to a student's function: {error}") from None
        self.asking = True
        try:
            self._send(request)
            while True:
                due_now = [*due.split(), *(["callback"] if word == "call" else [])]
                word, rest, lacking = self._receive(number, due_now, inward)
                if word != "callback":
                    if lacking:
                        raise NotPlain(f"this returns {lacking}")
                    return word, *rest
                self._send(_refusal(number, lacking) if lacking else self._called_back(number, *rest))
                word = "call"
        finally:
            self.asking = False

    def _send(self, message: bytes) -> None:
        with self._alive():
            channel.send(self.sandbox.socket, message, self.deadline)

    def _receive(self, number: str, due: list[str], inward: Callable | None) -> tuple[str, list, NotPlain | None]:
        """Return the word and the fields of what arrives, and an error if one of these can't be made here."""
        with self._alive():
            message = channel.receive(self.sandbox.socket, self.deadline)
        with self._believing_nothing():
            decoder = Decoder(self.resolve, inward or self._inward, packages=self.packages)
            try:
                return *protocol.fields(decoder.read(message), number, *due), None
            except Lacking as lacking:
                word, rest = protocol.fields(decoder.outline(), number, *due)
                if word not in protocol.VALUES:
                    raise
                return word, rest, NotPlain(str(lacking))

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        """End the session, and say why, if the sandbox doesn't answer in time or at all."""
        try:
            yield
        except channel.TooLate:
            raise self.end("time", "Out of time: this was still running when its time was up.") from None
        except channel.Closed:
            raise self.lost() from None
        except BadMessage as error:  # longer than any message may be
            raise self._hostile(error) from None

    @contextlib.contextmanager
    def _believing_nothing(self) -> Iterator[None]:
        """End the session as hostile if what the sandbox sent can't be used: the code in there sends no such thing."""
        try:
            yield
        except MemoryError:
            raise self.end("memory", "Out of memory: what your code returned needs more than a test may use.") from None
        except Exception as error:
            raise self._hostile(error) from None

    def _hostile(self, error: Exception) -> Ended:
        what = str(error) if isinstance(error, BadMessage) else type(error).__name__
        words = f"Forged: your code sent the grader {protocol.clean(what)[:300]}. Nothing more of the notebook counts."
        return self.end("hostile", words)

    def _reason(self) -> tuple[str, str]:
        """Return the verdict and the message for a sandbox that ended by itself."""
        cause = self.sandbox.ended() or "it ended"
        cause = {"cpu": "time", "closed": "fault", "killed": "fault"}.get(cause, cause)
        messages = {
            "memory": "Out of memory: this needs more than a submission may use.",
            "processes": "Too many processes: this starts more than a submission may have.",
            "fault": "The sandbox was ended from outside.",
            "time": "Out of time: this used up the processor time that a submission may use.",
        }
        if cause in messages:
            return cause, messages[cause]
        return "crash", f"Crash: the interpreter that ran this ended ({cause})."

    def lost(self) -> Ended:
        """Give up a sandbox that ended by itself; return why, for the caller to raise."""
        return self.end(*self._reason())

    def end(self, verdict: str, words: str) -> Ended:
        """Close the sandbox and return `Ended`, for the caller to raise; `ended` keeps it if a test catches it."""
        self.sandbox.close()
        self.ended = Ended(verdict, words)
        return self.ended

    # How things cross

    def outward(self, value: Any) -> list | None:
        """Return the tree for a value that isn't plain: a handle, a name, a callback or a pickle; None if none fits."""
        if isinstance(value, Remote):
            target = vars(value)["_target"]
            return ["handle", target[1]] if target[0] == "handle" else ["global", target[1]]
        if isinstance(value, ModuleType):
            return ["import", value.__name__, ""]
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if module and name and self._importable(value, module, name):
            return ["import", module, name]
        if isinstance(value, FunctionType) and self.shared.get(value.__name__) is value:
            return ["global", value.__name__]  # type: ignore[union-attr]  # a cell that ran on both sides defined it
        if callable(value):
            self.callbacks.append(value)
            return ["callback", len(self.callbacks) - 1, getattr(value, "__name__", "function")]
        if (type(value).__module__ or "").partition(".")[0] in self.packages:
            return ["pickled", _pickled(value, self.shared).hex()]
        return None

    def _importable(self, value: Any, module: str, name: str) -> bool:
        top = module.partition(".")[0]
        if top not in (*self.packages, *_SCIENCE, *sys.stdlib_module_names) or module == "__main__":
            return False
        named: Any = sys.modules.get(module)
        for part in name.split("."):
            named = getattr(named, part, None)
        return named is value

    def _inward(self, tree: list) -> Any:
        """Return the proxy for a student's value that isn't plain; BadMessage for any other tree."""
        if tree[0] != "handle":
            raise protocol.Hostile(f"not a message ({str(tree[0])[:20]!r})")
        number, kind, about = protocol.handle(tree)
        return self.thing(("handle", number), kind, about)

    def thing(self, target: tuple, kind: str, about: dict, made: bool = False) -> Any:
        """Return a proxy; for an exception's class, a class of this side, which `except` and `raises` recognize."""
        if kind == "exception":
            return self.exceptions.handed_over(about["bases"], target[1] if made else "")
        return PROXIES[kind](self, target, about, made)

    def _called_back(self, number: str, which: Any, args: Any, kwargs: Any) -> bytes:
        """Call the judge's function that the sandbox asks for; return the message with what came of it."""
        with self._believing_nothing():
            which, args, kwargs = protocol.callback(which, args, kwargs, len(self.callbacks))
        try:
            result = self.callbacks[which](*args, **kwargs)
            return Encoder(self.resolve, self.outward, shown=True).message(("reply", number, result))
        except Exception as error:
            return _refusal(number, error)


def _refusal(number: str, error: Exception) -> bytes:
    return Encoder().message(("refusal", number, type(error).__name__, safe(error)[:1000]))
