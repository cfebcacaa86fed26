"""The judge's end of the line to a sandbox: what it asks of the student's code, and what may come back."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from ..inside.shell import MAX_OUTPUTS, MAX_TEXT
from ..wire import channel
from ..wire.plain import BadMessage, Decoder, Encoder, NotPlain, trusted
from .proxies import KINDS, Exceptions, Remote

if TYPE_CHECKING:
    from ..sandbox.envelope import Sandbox

_SCIENCE = ("numpy", "torch", "scipy", "pandas", "math")  # functions of these go in by their names


class Ended(BaseException):
    """The sandbox is gone, or answers no more. No `except Exception` in a test catches it.

    `verdict`: "time", "memory", "processes" or "crash"; "fault" if it is the grader's own.
    """

    def __init__(self, verdict: str, words: str):
        super().__init__(words)
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Link:
    """The line to one sandbox. `shared`: what the instructor's cells have bound on both sides, by name.

    `deadline`: until when the cell that is being judged may take (time.monotonic()).
    """

    def __init__(self, sandbox: Sandbox, packages: tuple[str, ...], shared: dict[str, Any], in_place: bool):
        self.sandbox, self.packages, self.shared, self.in_place = sandbox, packages, shared, in_place
        self.resolve = trusted(packages, shared)
        self.exceptions = Exceptions(self.resolve)
        self.deadline = time.monotonic()
        self.callbacks: list[Callable] = []
        self.ended: Ended | None = None

    def open(self, files: dict[str, bytes]) -> None:
        self._ask({"do": "open", "packages": self.packages, "files": files})

    def cell(self, source: str, name: str, given: bool) -> dict:
        """Run a cell, of the instructor's if `given`: its outputs, and what it bound, name: (kind, about)."""
        answer = self._ask({"do": "cell", "source": source, "name": name, "given": given})
        with self._honest():
            outputs = clean_outputs(answer["outputs"])
            bound = {str(name): (str(kind), dict(about)) for name, (kind, about) in answer["bound"].items()}
            return {"outputs": outputs, "bound": bound}

    def look(self, names: list[str]) -> dict[str, Any]:
        """What these names stand for, as data or as something to call."""
        answer = self._ask({"do": "look", "names": names})
        with self._honest():
            return {name: answer["result"][name] for name in names if name in answer["result"]}

    def call(self, target: Any, method: str, args: list, kwargs: dict | None = None) -> Any:
        """Call something in the sandbox; what it returns, and what it raises, happens here as if it were called here.

        Arguments that it changes in place are changed here, too.
        """
        asked = {"do": "call", "target": target, "method": method, "args": args, "kwargs": kwargs or {}}
        answer = self._ask(asked | {"changes": "always" if self.in_place else "if None"})
        with self._honest():
            for stream, text in list(answer.get("printed", []))[:MAX_OUTPUTS]:  # a test may look at what is printed
                (sys.stderr if stream == "stderr" else sys.stdout).write(str(text)[:MAX_TEXT])
            if "raised" not in answer:
                return answer["result"]
            error = self.exceptions.error(answer["raised"])
        if isinstance(error, StopIteration | StopAsyncIteration) and method != "__next__":
            raise RuntimeError(f"{type(error).__name__}: {error}") from None  # a loop over calls would end, and be glad
        raise error

    def _ask(self, message: dict) -> dict:
        encoder = Encoder(self.resolve, self._outward)
        try:
            data = encoder.message(message)
        except NotPlain as error:
            raise NotPlain(f"{error} cannot be given to a student's function") from None
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
            raise self.end("time", "Out of time: this was still running when its time was over.") from None
        except channel.Closed:
            raise self.lost() from None
        except BadMessage as error:
            raise self._no_answer(error) from None

    def _read(self, known: list[Any]) -> dict:
        """Wait for an answer. Objects that were sent, `known`, are changed as it says only if they may be."""
        message = channel.receive(self.sandbox.socket, self.deadline)
        with self._honest():
            answer = dict(Decoder(self.resolve, self._inward, known if self.in_place else None).read(message))
            if not self.in_place and "args" in answer and answer.get("result") is None:
                Decoder(self.resolve, self._inward, known).read(message)
            return answer

    @contextlib.contextmanager
    def _honest(self) -> Iterator[None]:
        """In here an answer is read: one that is not as it has to be was not written by `inside`."""
        try:
            yield
        except Exception as error:
            raise self._no_answer(error) from None

    def _no_answer(self, error: Exception) -> Ended:
        words = f"The answer of this code is no answer ({type(error).__name__}: {error}): it was changed on its way."
        return self.end("crash", words[:500])

    def _reason(self) -> tuple[str, str]:
        """Why the sandbox has ended by itself: a verdict, and words."""
        why = self.sandbox.ended() or "it ended"
        why = {"cpu": "time", "closed": "fault", "killed": "fault"}.get(why, why)
        words = {
            "memory": "Out of memory: this needs more than a submission may use.",
            "processes": "Too many processes: this starts more than a submission may have.",
            "fault": "The sandbox was ended from outside.",
            "time": "Out of time: this has used up the processor time that a submission may use.",
        }
        return (why, words[why]) if why in words else ("crash", f"Crash: the interpreter that ran this ended ({why}).")

    def lost(self) -> Ended:
        """Give up a sandbox that has ended by itself."""
        return self.end(*self._reason())

    def end(self, verdict: str, words: str) -> Ended:
        """Give the sandbox up. The test may catch what is raised; that it ended stays known."""
        self.sandbox.close()
        self.ended = Ended(verdict, words)
        return self.ended

    # How things cross

    def _outward(self, value: Any) -> list | None:
        """What goes in for something that is not plain: its number there, its name, or a function to call back."""
        if isinstance(value, Remote):
            target = vars(value)["_target"]
            return ["handle", target[1]] if target[0] == "handle" else ["global", target[1]]
        if isinstance(value, ModuleType):
            return ["import", value.__name__, ""]
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if module and name and self._importable(value, module, name):
            return ["import", module, name]
        if isinstance(value, FunctionType) and self.shared.get(value.__name__) is value:
            return ["global", value.__name__]  # of a cell that ran on both sides
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
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return found is value

    def _inward(self, tree: list) -> Any:
        """What stands here for something of the student's that is not plain."""
        word, *rest = tree
        if word != "handle":
            raise BadMessage(f"not a message ({word})"[:100])
        number, kind, about = rest
        return self.thing(("handle", int(number)), str(kind), dict(about))

    def thing(self, target: tuple, kind: str, about: dict, made: bool = False) -> Any:
        """A proxy; an exception's class as a class of this side, so that `except` and `raises` know it."""
        with self._honest():
            if kind == "exception":
                return self.exceptions.kind(list(about["mro"]))
            return KINDS[kind](self, target, about, made)

    def _called_back(self, asked: dict) -> bytes:
        encoder = Encoder(self.resolve, self._outward)
        try:
            given = self.callbacks[asked["callback"]](*asked["args"], **asked["kwargs"])
            return encoder.message({"result": given})
        except Exception as error:
            return Encoder().message({"raised": [type(error).__name__, str(error)[:1000]]})


def clean_outputs(outputs: Any) -> list[dict]:
    """Outputs of a student's cell, as far as they are outputs: nothing else of what came is kept."""
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
            words = {"ename": str(output["ename"])[:200], "evalue": str(output["evalue"])[:MAX_TEXT]}
            kept.append({"output_type": kind, **words, "traceback": lines})
    return kept
