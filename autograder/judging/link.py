"""The judge's end of the connection to a sandbox: the requests it sends and the answers it accepts."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import cloudpickle

from ..inside.shell import MAX_OUTPUTS, MAX_TEXT
from ..wire import channel
from ..wire.plain import BadMessage, Decoder, Encoder, NotPlain, trusted
from .proxies import KINDS, Exceptions, Remote

if TYPE_CHECKING:
    import socket

    from ..sandbox.capture import Capture

MAX_PACKED = 16 * 2**20  # bytes of the student's functions and what they close over, for each rank
_SCIENCE = ("numpy", "torch", "scipy", "pandas", "math")  # their functions cross by name


class Ended(BaseException):
    """The end of a sandbox: it is gone or no longer answers. No `except Exception` in a test catches it.

    `verdict`: "time", "memory", "processes" or "crash"; "fault" if the grader is at fault.
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

    def loopback(self) -> int | None: ...
    def captured(self) -> contextlib.AbstractContextManager[Capture | None]: ...
    def is_spent(self) -> bool: ...
    def ended(self) -> str | None: ...
    def close(self) -> None: ...


class Link:
    """The connection to one sandbox. `shared`: what the instructor's cells bind on both sides, by name.

    `deadline`: when the current cell's time is up, in seconds of time.monotonic().
    """

    def __init__(self, sandbox: Confined, packages: tuple[str, ...], shared: dict[str, Any], in_place: bool):
        self.sandbox, self.packages, self.shared, self.in_place = sandbox, packages, shared, in_place
        self.resolve = trusted(packages, shared)
        self.exceptions = Exceptions(self.resolve)
        self.deadline = time.monotonic()
        self.callbacks: list[Callable] = []
        self.ended: Ended | None = None

    def open(self, files: dict[str, bytes]) -> None:
        """Begin a notebook in the sandbox. `files`: the exercise's files, by name."""
        self._ask({"do": "open", "packages": self.packages, "files": files})

    def cell(self, source: str, name: str, given: bool) -> dict:
        """Run a cell; return {"outputs": list, "bound": {name: (kind, about)}}. `given`: it is the instructor's."""
        answer = self._ask({"do": "cell", "source": source, "name": name, "given": given})
        with self._honest():
            outputs = clean_outputs(answer["outputs"])
            bound = {str(name): (str(kind), dict(about)) for name, (kind, about) in answer["bound"].items()}
            return {"outputs": outputs, "bound": bound}

    def look(self, names: list[str]) -> dict[str, Any]:
        """Return the values of these names, as data or as proxies; names that aren't bound are left out."""
        answer = self._ask({"do": "look", "names": names})
        with self._honest():
            return {name: answer["result"][name] for name in names if name in answer["result"]}

    def call(self, target: Any, method: str, args: list, kwargs: dict | None = None) -> Any:
        """Call something in the sandbox; return what it returns, print what it prints and raise what it raises.

        Arguments that it changes in place are changed on this side too, as `Settings.in_place` says.
        """
        request = {"do": "call", "target": target, "method": method, "args": args, "kwargs": kwargs or {}}
        answer = self._ask(request | {"changes": "always" if self.in_place else "if None"})
        with self._honest():
            for stream, text in list(answer.get("printed", []))[:MAX_OUTPUTS]:  # a test may capture the prints
                (sys.stderr if stream == "stderr" else sys.stdout).write(str(text)[:MAX_TEXT])
            if "raised" not in answer:
                return answer["result"]
            error = self.exceptions.error(answer["raised"])
        if isinstance(error, StopIteration | StopAsyncIteration) and method != "__next__":
            # A StopIteration would silently end a test's loop over calls.
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise error

    def pack(self, values: list) -> bytes:
        """Return the sandbox's pickle of these objects of the student's, for ranks alone: nothing here unpickles it.

        Raise what the pickling raised, and ValueError above `MAX_PACKED` bytes.
        """
        answer = self._ask({"do": "pack", "values": values})
        with self._honest():
            error = self.exceptions.error(answer["raised"]) if "raised" in answer else None
            packed = b"" if error else answer["packed"]
            if not isinstance(packed, bytes):
                raise BadMessage("no pickle")
        if len(packed) > MAX_PACKED:
            error = ValueError(f"functions that refer to more than {MAX_PACKED >> 20} MiB, too much for ranks")
        if error:
            raise error
        return packed

    def _ask(self, message: dict) -> dict:
        encoder = Encoder(self.resolve, self.outward)
        try:
            data = encoder.message(message)
        except NotPlain as error:
            raise NotPlain(f"cannot pass this to a student's function: {error}") from None
        try:
            channel.send(self.sandbox.socket, data, self.deadline)
            while True:
                answer = self._read(encoder.objects)
                if "callback" not in answer:
                    return answer
                with self._honest():
                    reply = self._called_back(answer)
                channel.send(self.sandbox.socket, reply, self.deadline)
        except channel.TooLate:
            raise self.end("time", "Out of time: this was still running when its time was up.") from None
        except channel.Closed:
            raise self.lost() from None
        except BadMessage as error:
            raise self._no_answer(error) from None

    def _read(self, known: list[Any]) -> dict:
        """Wait for an answer. It changes `known`, the objects that were sent, only if `Settings.in_place` allows it."""
        message = channel.receive(self.sandbox.socket, self.deadline)
        with self._honest():
            answer = dict(Decoder(self.resolve, self._inward, known if self.in_place else None).read(message))
            if not self.in_place and "args" in answer and answer.get("result") is None:
                Decoder(self.resolve, self._inward, known).read(message)
            return answer

    @contextlib.contextmanager
    def _honest(self) -> Iterator[None]:
        """Give the sandbox up if reading an answer fails in here: `inside.student` never writes a malformed one."""
        try:
            yield
        except Exception as error:
            raise self._no_answer(error) from None

    def _no_answer(self, error: Exception) -> Ended:
        message = (
            f"The sandbox sent a malformed answer ({type(error).__name__}: {error}): something changed it on its way."
        )
        return self.end("crash", message[:500])

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
            return ["pickled", cloudpickle.dumps(value).hex()]
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
        word, *rest = tree
        if word != "handle":
            raise BadMessage(f"not a message ({word})"[:100])
        number, kind, about = rest
        return self.thing(("handle", int(number)), str(kind), dict(about))

    def thing(self, target: tuple, kind: str, about: dict, made: bool = False) -> Any:
        """Return a proxy; for an exception's class, a class of this side, which `except` and `raises` recognize."""
        with self._honest():
            if kind == "exception":
                return self.exceptions.kind(list(about["mro"]))
            return KINDS[kind](self, target, about, made)

    def _called_back(self, asked: dict) -> bytes:
        encoder = Encoder(self.resolve, self.outward)
        try:
            result = self.callbacks[asked["callback"]](*asked["args"], **asked["kwargs"])
            return encoder.message({"result": result})
        except Exception as error:
            return Encoder().message({"raised": [type(error).__name__, str(error)[:1000]]})


def clean_outputs(outputs: Any) -> list[dict]:
    """Return the well-formed outputs of a student's cell, cut to size; drop everything else that was sent."""
    kept = []
    for output in list(outputs)[:MAX_OUTPUTS]:
        kind = output.get("output_type")
        if kind == "stream":
            name = "stderr" if output["name"] == "stderr" else "stdout"
            kept.append({"output_type": kind, "name": name, "text": str(output["text"])[: MAX_TEXT + 100]})
        elif kind in ("display_data", "execute_result"):
            data = {str(mime)[:100]: text for mime, text in dict(output["data"]).items() if isinstance(text, str)}
            more = {"execution_count": None} if kind == "execute_result" else {}
            kept.append({"output_type": kind, "data": data, "metadata": {}, **more})
        elif kind == "error":
            lines = [str(line)[:MAX_TEXT] for line in output["traceback"]]
            name, message = str(output["ename"])[:200], str(output["evalue"])[:MAX_TEXT]
            kept.append({"output_type": kind, "ename": name, "evalue": message, "traceback": lines})
    return kept
