"""The judges of a class: one warm interpreter outside the sandbox and one inside, each forked for every submission."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from ..sandbox.envelope import Warm, of_python
from ..sandbox.prove import prove
from ..sandbox.watch import sweep
from ..wire import channel
from ..wire.plain import BadMessage
from .judge import MOST_SHOWN, NO_END, Settings, error_of, role, written
from .link import Ended

TRIES = 3  # attempts at one submission while the fault is the grader's own
GRACE = 30.0  # seconds for the judge itself, beyond a cell's and beyond the submission's
# Modules that a package imports only when they are first used, which takes seconds.
LATER = {
    "matplotlib": ("matplotlib.pyplot",),
    "torch": ("torch.distributed", "torch._dynamo"),
}


class CannotJudge(Exception):
    """The judge's interpreter didn't start, so nothing can be graded here."""


class GraderFault(Exception):
    """A submission was not judged, for a reason that is the grader's fault and not the submission's."""


@dataclass(frozen=True)
class Judged:
    """A notebook with its outputs. `remarks`: {grade_id: what ended the cell}, such as "time", "memory" or "crash"."""

    notebook: NotebookNode
    remarks: dict[str, str]
    seconds: float


class Judges:
    """The two warm interpreters that judge notebooks, one notebook per calling thread. Use it in a `with` statement.

    Starting it proves its sandbox first. Raise CannotSandbox if something is not contained or not installed, and
    CannotJudge if the outer interpreter doesn't start.
    """

    def __init__(self, settings: Settings | None = None):
        self.settings = settings or Settings()
        self.folder = Path(tempfile.mkdtemp(prefix="judges-"))  # 0700: only this user may connect
        self.warm: Warm | None = None
        self.process: subprocess.Popen | None = None
        self.listener = socket.socket(socket.AF_UNIX)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self.listener.bind(str(self.folder / "judge"))
        self.listener.listen(128)
        root = Path(__file__).resolve().parents[2]  # a course elsewhere may not have this package on its path
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autograder.judging.judge"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self.listener.fileno()],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,
            text=True,
        )
        assert self.process.stdin and self.process.stdout  # pipes
        self.process.stdin.write(written(self.settings, self.listener.fileno()))
        self.process.stdin.flush()
        address = None  # the outer interpreter imports while we start the sandbox and prove it
        if self.settings.unsandboxed:
            self.proof = "NOT SANDBOXED: submissions run with your own rights, as you chose"
        else:
            modules, hidden = (*self.settings.preload, "autograder.inside.student"), self.settings.hidden
            self.warm = Warm(modules, hidden=hidden, wall=self.settings.wall)
            self.proof = prove(self.warm.address, self.warm.baits)
            address = self.warm.address
        with contextlib.suppress(BrokenPipeError):  # it has ended, as the next line finds
            self.process.stdin.write(json.dumps(address) + "\n")
            self.process.stdin.flush()
        if self.process.stdout.readline() != "ready\n":
            raise CannotJudge(f"the judge's interpreter ended with status {self.process.wait()}; its error is above")

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End both interpreters and every process they started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.warm is not None:
            self.warm.close()
        self.listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def judge(self, notebook: NotebookNode, files: Mapping[str, bytes] | None = None, seed: str = "") -> Judged:
        """Judge a notebook. Raise GraderFault if it fails `TRIES` times.

        `files`: the files beside it, by name. `seed`: what its tests draw at random follows from it, if it is not "".
        """
        for attempt in range(TRIES):
            begun, answer = time.monotonic(), _Answer(notebook)
            try:
                self._ask(answer, files or {}, seed)
            except channel.TooLate:
                most = self.settings.submission_seconds
                whole = f"Out of time: the whole notebook took longer than {most:g} seconds."
                answer.end(Ended("time", whole if time.monotonic() >= answer.most + GRACE else NO_END))
            except BadMessage:
                answer = _Answer(notebook)
                answer.end(Ended("hostile", "Forged: what this notebook puts out is too large to keep."))
            except channel.Closed:
                answer.remarks = {"": "fault"}
            if "fault" not in answer.remarks.values():
                return Judged(answer.notebook, answer.remarks, time.monotonic() - begun)
            time.sleep(attempt)  # give a passing cause time to pass: 0 s, then 1 s
        raise GraderFault(f"the process that judged it was ended {TRIES} times: grade it again, with fewer jobs")

    def _ask(self, answer: _Answer, files: Mapping[str, bytes], seed: str) -> None:
        """Let a judge fill in the answer. Raise TooLate, and kill it, if a cell or the notebook isn't over in time."""
        notebook = answer.notebook
        request = {"notebook": notebook, "files": {name: data.hex() for name, data in files.items()}, "seed": seed}
        message = json.dumps(request).encode()
        room = len(message) + 2 * MOST_SHOWN
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / "judge"))
            pid = json.loads(channel.receive(connection))["pid"]
            try:
                channel.send(connection, message)
                until = answer.most = time.monotonic() + self.settings.submission_seconds
                while True:
                    news = channel.receive(connection, min(until, answer.most) + GRACE, room)
                    room -= len(news)
                    known = json.loads(news)
                    if "over" in known:
                        return
                    if "until" in known:
                        until, answer.most = known["until"], known["end"]
                    else:
                        answer.take(known)
            except channel.TooLate:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                _sweep(pid)
                raise
            except channel.Closed:  # something else killed it
                _sweep(pid)
                raise


class _Answer:
    """A copy of a notebook, with what its judge has told of its cells so far. `remarks`: as of `Judged`.

    `most`: when the notebook's time is up, in seconds of time.monotonic().
    """

    def __init__(self, notebook: NotebookNode):
        self.notebook = deepcopy(notebook)
        self.remarks: dict[str, str] = {}
        self.done = 0  # cells
        self.most = 0.0

    def take(self, news: dict) -> None:
        """Take in what the judge tells of a cell."""
        self.notebook.cells[news["number"]] = nbformat.from_dict(news["cell"])
        self.remarks, self.done = news["remarks"], news["number"] + 1

    def end(self, ended: Ended) -> None:
        """Fill in what the judge had no time to judge, such as for code that no signal interrupts."""
        for cell in self.notebook.cells[self.done :]:
            if cell.cell_type == "code":
                is_test = role(cell) == "test"
                cell.outputs = [nbformat.from_dict(error_of(ended))] if is_test else []
                self.remarks |= {cell.metadata.nbgrader.grade_id: ended.verdict} if is_test else {}


def _sweep(pid: int) -> None:
    """Remove the control groups of a killed judge's sandbox, which ends a moment after it."""
    for _ in range(100):
        if not sweep(pid):
            break
        time.sleep(0.02)


def preloading(settings: Settings, cells: Iterable[str]) -> Settings:
    """Return the settings, with modules to preload if they name none.

    These are `packages` and the modules that the instructor's code cells import. A module must be installed or belong
    to `packages`: submissions can read what is preloaded, so a module in the course's folder is left out.
    """
    if settings.preload:
        return settings
    names = dict.fromkeys(name for cell in cells for name in _imported(cell))
    later = [name for package, parts in LATER.items() if package in {_top(name) for name in names} for name in parts]
    known = [name for name in (*names, *later, *settings.packages) if _is_module(name, settings.packages)]
    return replace(settings, preload=tuple(dict.fromkeys(known)))


def _imported(source: str) -> Iterator[str]:
    """Yield the names that a cell imports unconditionally: modules, and for `from` imports also their attributes."""
    lines = [line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))]
    with contextlib.suppress(SyntaxError):
        for statement in ast.parse("\n".join(lines)).body:
            if isinstance(statement, ast.Import):
                yield from (alias.name for alias in statement.names)
            elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
                yield statement.module
                yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


def _is_module(name: str, packages: tuple[str, ...]) -> bool:
    """Return whether a module exists in this Python or in `packages`, without importing anything."""
    places, parts = None, name.split(".")
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), places)
        if spec is None:
            return False
        places = spec.submodule_search_locations
        if places is None and depth + 1 < len(parts):
            return False
    assert spec is not None  # a name has at least one part
    return _top(name) in packages or of_python(spec.origin or next(iter(places or ())))


def _top(name: str) -> str:
    return name.partition(".")[0]
