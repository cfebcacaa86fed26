"""The judge: goes through a notebook cell by cell, a student's cells in the sandbox, the instructor's outside.

Test cells and what they expect are never in the sandbox. A name that the student's cells have bound stands in a test
for something there (see `proxies`); a name that the instructor's cells have bound is the instructor's.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..inside import fork_server
from ..inside.shell import lay_out, make_shell, names_in, reseed
from ..sandbox.envelope import Limits, Sandbox, enter
from ..wire import channel
from ..wire.plain import bound_name
from .link import Ended, Link
from .proxies import Remote

RESTARTS = 8  # times that a sandbox is made anew after a cell has ended it
ALARM = 5.0  # seconds that a test may compute here after its time is over, before it is ended
MEMORY = 4 * 2**30  # bytes that the judge of one submission may take
_TAKEN = {*vars(builtins), "In", "Out", "exit", "quit", "get_ipython"}  # what no student's cell can bind in a test
_OPEN = (*sys.stdlib_module_names, "numpy", "torch", "scipy", "pandas", "matplotlib")  # what tests may use unimported
_COMMON = {"np": "numpy", "plt": "matplotlib.pyplot", "pd": "pandas", "dist": "torch.distributed", "nn": "torch.nn"}


@dataclass(frozen=True)
class Settings:
    """How submissions are judged; an instructor's `nbgrader_config.py` may change each of these.

    `cell_seconds`: what one cell may take. `submission_seconds`: what all may take together. `packages`: whose classes
    cross as data, and whose functions are known on both sides. `preload`: modules that are imported once, for all
    submissions; by default what the instructor's cells import, see `judges.preloading`. `inside`: functions that run
    whole in the sandbox if a test gives them a student's function. `in_place`: arguments that a student's function has
    changed are changed in the test, too, whatever it returns; else only if it returns None (with it, a function could
    change what a test compares its result with). `unsandboxed`: run students' code with your own rights, without any
    of this.
    """

    cell_seconds: float = 120.0
    submission_seconds: float = 600.0
    packages: tuple[str, ...] = ("collectives",)
    preload: tuple[str, ...] = ()
    inside: tuple[str, ...] = ("collectives.ranks.run",)
    limits: Limits = field(default_factory=Limits)
    in_place: bool = False
    unsandboxed: bool = False


class Seen(list):
    """What `ranks.run` returned in the sandbox, and what was seen of it from outside; None where nobody looked.

    `loopback`: how many bytes the ranks moved meanwhile. `streams`: those that each connection carried each way; empty
    if there were too many to follow.
    """

    loopback: int | None = None
    streams: list[bytes] | None = None


def role(cell: Mapping) -> str:
    """Whose a code cell is: a "test", "given" by the instructor, or the student's "answer"."""
    about = cell["metadata"].get("nbgrader", {})
    if about.get("grade") and not about.get("solution"):
        return "test"
    locked = about.get("locked") and not about.get("solution")
    return "given" if locked or "source" in cell["metadata"].get("autograder", {}) else "answer"


class Judgement:
    """One notebook being judged, in a process of its own."""

    def __init__(self, settings: Settings, enter: Callable[[], Sandbox], files: dict[str, bytes]):
        self.settings, self.enter, self.files = settings, enter, files
        self.shell = make_shell()
        self.link: Link | None = None
        self.done: list[tuple[str, str, bool]] = []  # what has run in the sandbox, and is run again in a new one
        self.theirs: dict[str, tuple[str, dict]] = {}  # names that the student's cells have bound
        self.ours: set[str] = set()  # names that the instructor's cells have bound
        self.shared: dict[str, Any] = {}  # of these, what cells have bound that ran on both sides
        self.read: set[str] = set()  # names that the instructor's cells read
        self.restarts = 0
        self.end = time.monotonic() + settings.submission_seconds
        for name in settings.inside:
            self._send_inside(name)

    def judge(self, notebook: dict) -> dict[str, str]:
        """Run all cells, put the outputs into them; return what else there is to say, by grade_id or cell number."""
        remarks = {}
        about = notebook["metadata"].get("autograder", {})
        self.answers, self.classes = set(about.get("answers", [])), set(about.get("classes", []))
        for number, cell in enumerate(notebook["cells"]):
            if cell["cell_type"] != "code":
                continue
            name = cell["metadata"].get("nbgrader", {}).get("grade_id") or f"cell {number}"
            cell["execution_count"] = None
            cell["outputs"], ended = getattr(self, role(cell))(cell, name)
            if ended is not None:
                remarks[name] = ended.verdict
        return remarks

    def answer(self, cell: dict, name: str) -> tuple[list[dict], Ended | None]:
        """Run a student's cell in the sandbox."""
        return self._in_sandbox(cell["source"], name)

    def given(self, cell: dict, name: str) -> tuple[list[dict], Ended | None]:
        """Run an instructor's cell on both sides: what it imports and defines is needed here and there."""
        source = cell["metadata"].get("autograder", {}).get("source", cell["source"])
        inside, ended = self._in_sandbox(cell["source"], name, bind=False)
        outputs, _ = self._here(source, name, given=True)
        return inside if ended is not None and not outputs else outputs, ended

    def test(self, cell: dict, name: str) -> tuple[list[dict], Ended | None]:
        """Run a test cell here. An interpreter that crashed may have done so by accident: it gets a second chance."""
        outputs, ended = self._here(cell["source"], name)
        if ended is not None and ended.verdict == "crash" and time.monotonic() < self.end:
            outputs, ended = self._here(cell["source"], name)
        if ended is not None:  # which the test may even have caught
            outputs = [output for output in outputs if output["output_type"] == "stream"] + [error_of(ended)]
        return outputs, ended

    # The two sides

    def _in_sandbox(self, source: str, name: str, bind: bool = True) -> tuple[list[dict], Ended | None]:
        try:
            link = self._connected()
            result = link.cell(source, name, not bind)
        except Ended as ended:
            return [error_of(ended)], ended
        self.done.append((source, name, not bind))
        if bind:
            self.theirs |= result["bound"]
        return result["outputs"], None

    def _here(self, source: str, name: str, given: bool = False) -> tuple[list[dict], Ended | None]:
        before = {key: id(value) for key, value in self.shell.user_ns.items()}
        read, stored = names_in(source)
        self.read |= read
        try:
            link = self._connected()
            self._bind(link)
        except Ended as ended:
            return [error_of(ended)], ended
        before |= {key: id(self.shell.user_ns[key]) for key in self.theirs if key in self.shell.user_ns}
        with _alarm(link):
            outputs = self.shell.run(source, name)
        changed = {key for key, value in self.shell.user_ns.items() if before.get(key) != id(value)}
        self.ours |= changed | (stored & set(self.shell.user_ns))
        if given:
            self.shared |= {key: self.shell.user_ns[key] for key in changed}
        return outputs, link.ended

    def _bind(self, link: Link) -> None:
        """Bind the student's names: functions and classes as proxies, and the data that a test reads."""
        namespace, values = self.shell.user_ns, []
        for name, (kind, about) in self.theirs.items():
            if name in _TAKEN or name.startswith("_") or not bound_name(name):
                continue
            if name in self.ours and name not in self.answers:
                continue
            if kind == "module":
                self._bind_module(name, about)
            elif kind in ("function", "class", "exception"):
                namespace[name] = link.thing(("name", name), kind, about, made=name in self.classes)
            elif name in self.read:
                values.append(name)
        if values:
            namespace.update(link.look(values))

    def _bind_module(self, name: str, about: dict) -> None:
        """A module that a student's cell has imported, under its own name or the usual one, is the judge's own."""
        module = str(about.get("name"))
        if module in (name, _COMMON.get(name)) and module.partition(".")[0] in _OPEN:
            with contextlib.suppress(ImportError):
                self.shell.user_ns[name] = importlib.import_module(module)

    def _connected(self) -> Link:
        """The line to the sandbox, with time for one more cell; a new sandbox if the last one has ended."""
        now = time.monotonic()
        if now >= self.end:
            words = f"Out of time: the whole notebook took longer than {self.settings.submission_seconds:g} seconds."
            raise Ended("time", words)
        if self.link is not None and self.link.ended is None and self.link.sandbox.is_spent():
            self.link.lost()  # by what an earlier cell has left running, and this one is not to blame for
        if self.link is None or self.link.ended is not None:
            self._restart()
        self.link.deadline = min(time.monotonic() + self.settings.cell_seconds, self.end)
        return self.link

    def _restart(self) -> None:
        """Make a new sandbox, and run in it again what has run in the last one."""
        if self.restarts > RESTARTS:
            raise Ended(self.link.ended.verdict, f"Not run: cells have ended the interpreter {self.restarts} times.")
        self.restarts += 1
        packages = self.settings.packages
        self.link = link = Link(self.enter(), packages, self.shared, self.settings.in_place)
        link.deadline = min(time.monotonic() + self.settings.submission_seconds / 4, self.end)
        link.open(self.files)
        for cell in self.done:
            link.cell(*cell)

    def _send_inside(self, dotted: str) -> None:
        """Let a function of the course's run whole in the sandbox wherever it is given something of the student's."""
        module, _, name = dotted.rpartition(".")
        with contextlib.suppress(ImportError):
            original = getattr(importlib.import_module(module), name)

            @functools.wraps(original)
            def function(*args: Any, **kwargs: Any) -> Any:
                if not _has_remote([args, kwargs]):
                    return original(*args, **kwargs)
                before = self.link.sandbox.loopback()
                with self.link.sandbox.captured() as seen:
                    given = self.link.call(function, "", list(args), kwargs)
                if isinstance(given, list):
                    given = Seen(given)
                    after = self.link.sandbox.loopback()
                    given.loopback = None if before is None or after is None else after - before
                    given.streams = seen and seen.streams
                return given

            setattr(sys.modules[module], name, function)


def _has_remote(value: Any, depth: int = 4) -> bool:
    """Whether there is something of a student's in it."""
    if isinstance(value, Remote):
        return True
    if depth == 0:
        return False
    if isinstance(value, functools.partial):
        return _has_remote([value.func, value.args, value.keywords], depth - 1)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return any(_has_remote(part, depth - 1) for part in parts)


@contextlib.contextmanager
def _alarm(link: Link) -> Iterator[None]:
    """End a test that computes for ever by itself, with what a student's function has given it."""

    def ring(*_: Any) -> None:
        raise link.end("time", "Out of time: the test has not come to an end with what it was given.")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(link.deadline - time.monotonic(), 0) + ALARM)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def error_of(ended: Ended) -> dict:
    """The output of a cell that was ended."""
    names = {"time": "OutOfTime", "memory": "OutOfMemory", "processes": "TooManyProcesses"}
    name = names.get(ended.verdict, "Crash")
    return {"output_type": "error", "ename": name, "evalue": str(ended), "traceback": [str(ended)]}


# The process


class Unsandboxed:
    """A process without any sandbox, for who has chosen that: it can do whatever you can."""

    def __init__(self) -> None:
        from ..inside import student

        self.socket, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self.socket.close()
            with contextlib.suppress(BaseException), tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                student.serve(theirs)
            os._exit(0)
        theirs.close()

    def loopback(self) -> None:
        return None

    def captured(self) -> contextlib.nullcontext:
        return contextlib.nullcontext()

    def is_spent(self) -> bool:
        return False

    def ended(self) -> str:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if pid else 0
        return f"signal {-code}" if code < 0 else f"exit {code}"

    def close(self) -> None:
        self.socket.close()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def serve(listener: socket.socket, settings: Settings, address: str | None) -> Callable[[], None]:
    """Wait for notebooks, and judge each in a fork of this process, which has imported everything.

    Returns in fork servers only: what such a one is to do, with nothing of ours on the stack.
    """
    prepare(settings)
    print("ready", flush=True)
    life = os.dup(0)  # closes when whoever started this is gone
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork
    while True:
        if life in select.select([listener, life], [], [])[0]:
            os.killpg(0, signal.SIGKILL)  # and all forks with it
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(life)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _be_judge(connection, settings, address)
        connection.close()


def prepare(settings: Settings) -> None:
    """Import what notebooks will import, and make a shell."""
    for module in (*settings.preload, *(name.rpartition(".")[0] for name in settings.inside)):
        with contextlib.suppress(ImportError):  # a course of another subject need not have what is in `inside`
            importlib.import_module(module)
    make_shell().run("None", "warm")
    reseed()
    fork_server.prepare(settings.preload)
    gc.collect()
    gc.freeze()  # the collector would write to every object, and so copy the memory that forks share


def _be_judge(connection: socket.socket, settings: Settings, address: str | None) -> Callable[[], None]:
    """Judge one notebook, and end. Returns in its fork server for ranks only: what that is to do.

    {"notebook", "files"} comes in; {"pid"} goes out first, then {"notebook", "remarks"}.
    """
    status, serve_ranks = 1, None
    try:
        channel.send(connection, json.dumps({"pid": os.getpid()}).encode())
        asked = json.loads(channel.receive(connection))
        taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (taken + MEMORY, taken + MEMORY))  # what it is given may ask for more
        reseed()
        folder = tempfile.mkdtemp(prefix="judge-")
        serve_ranks = fork_server.adopt(folder, connection)
        if serve_ranks is None:
            try:
                os.mkdir(f"{folder}/work")
                os.chdir(f"{folder}/work")
                remarks = _judged(asked, settings, address)
            finally:
                fork_server.end()
                shutil.rmtree(folder, ignore_errors=True)
            channel.send(connection, json.dumps({"notebook": asked["notebook"], "remarks": remarks}).encode())
            status = 0
    except BaseException:
        traceback.print_exc()  # into the grader's log: it is a fault of its own
    finally:
        if serve_ranks is None:
            os._exit(status)
    return serve_ranks


def _judged(asked: dict, settings: Settings, address: str | None) -> dict[str, str]:
    """Put the outputs into the notebook that is to be judged; what else there is to say of it."""
    files = {name: bytes.fromhex(data) for name, data in asked["files"].items()}
    lay_out(files)
    make = Unsandboxed if settings.unsandboxed else functools.partial(enter, address, settings.limits)
    judgement = Judgement(settings, make, files)
    try:
        return judgement.judge(asked["notebook"])
    finally:
        if judgement.link is not None:
            judgement.link.sandbox.close()


def main() -> Callable[[], None]:
    """Run as a process of its own, `python -m autograder.judging.judge`; what it is told on stdin: see `written`."""
    asked = json.loads(sys.stdin.readline())
    limits = Limits(**asked["settings"].pop("limits"))
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in asked["settings"].items()}
    settings = Settings(**lists, limits=limits)
    listener = socket.socket(fileno=asked["listener"])
    return serve(listener, settings, asked["address"])


def written(settings: Settings, listener: int, address: str | None) -> str:
    """What `main` reads."""
    return json.dumps({"settings": asdict(settings), "listener": listener, "address": address}) + "\n"


if __name__ == "__main__":
    main()()
