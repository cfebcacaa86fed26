"""The judge: it runs a notebook cell by cell, the student's cells in the sandbox and the instructor's outside.

Test cells and their expected values never enter the sandbox. In a test, a name that the exercise asks the student to
define is a proxy for the object in the sandbox (see `proxies`); every other name is the instructor's. What became of a
test is what its runner saw (see `runner`).
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import hashlib
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
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from collectives.ranks import crowding

from ..inside import fork_server, memory
from ..inside.shell import Shell, lay_out, make_shell
from ..names import names_in
from ..sandbox import gloo
from ..sandbox.envelope import CannotSandbox, Limits, enter
from ..wire import channel, protocol
from .link import Confined, Ended, Link
from .proxies import Missing, Remote, note_preloaded
from .ranks import RUN, Party
from .runner import Record, run

RESTARTS = 8  # new sandboxes for one notebook, after its cells have ended the earlier ones
ALARM = 5.0  # seconds that a test may keep computing outside the sandbox after its deadline
NO_END = "Out of time: the test did not finish with the values that your code returned."
MEMORY = 4 * 2**30  # bytes that the judge of one submission may allocate
MOST_SHOWN = 20_000_000  # bytes of outputs, as JSON, that a notebook keeps; a page of more is of no use to anybody
MOST_LINES = 10  # of the traceback of an error that comes after those, of MOST_WORDS characters each
MOST_WORDS = 1_000


@dataclass(frozen=True)
class Settings:
    """How submissions are judged. An instructor's `nbgrader_config.py` may change each field.

    `cell_seconds`: time limit of one cell; on a busy machine longer, by `collectives.ranks.crowding`.
    `submission_seconds`: time limit of the whole notebook; up to twice that if the machine is busy when it begins.
    `packages`: packages whose classes cross as data and whose functions exist on both sides.
    `preload`: modules imported once for all submissions. Default: what the instructor's cells import; see
    `judges.preloading`.
    `inside`: dotted names of functions that run entirely in the sandbox if a test passes them a student's function; of
    `collectives.ranks.run`, only the ranks do.
    `limits`: memory, processes, files and processor time of one submission.
    `in_place`: copy changes that a student's function makes to its arguments back into the test, whatever it returns.
    Off, they are copied back only if it returns None: a function could otherwise change the value that a test compares
    its result with.
    `wall`: a module that keeps a package's answers out of sandboxes. `survey()` prepares it, once; in each sandbox,
    before any of the student's code, `build(modules, on_ranks)` takes away what these modules, which the instructor's
    cells import, don't hold; `plan`, of the same arguments, prepares that. On each rank that the judge starts,
    `narrow(modules, function)` then takes away what that function, by its full name, doesn't need there. Of the files
    in its `FOLDER`, sandboxes have `FILES` alone, and of other libraries' not what `covered(modules)` returns.
    `declared(modules)` returns, as JSON, what they say that they hold: a stored verdict counts only while that stays.
    `hidden`: files and folders that no submission may read, wherever they are. `Judge` adds the course's own.
    `unsandboxed`: run students' code with your own rights, outside any sandbox.
    """

    cell_seconds: float = 120.0
    submission_seconds: float = 600.0
    packages: tuple[str, ...] = ("collectives",)
    preload: tuple[str, ...] = ()
    inside: tuple[str, ...] = (RUN,)
    limits: Limits = field(default_factory=Limits)
    in_place: bool = False
    wall: str = ""
    hidden: tuple[str, ...] = ()
    unsandboxed: bool = False


class Seen(list):
    """What the ranks of `ranks.run` returned in the sandbox, with what crossed between them, which the judge has read.

    `messages`: those that the connections of process groups carried. None if they were not observed, or if there was
    too much to follow: then `followed` is False.
    """

    messages: list[gloo.Message] | None = None
    followed: bool = True

    @classmethod
    def unsent(cls, returned: list) -> Seen:
        """Return what ranks outside the sandbox returned: none of it crossed in the sandbox."""
        seen = cls(returned)
        seen.messages = []
        return seen


def role(cell: Mapping) -> str:
    """Return a code cell's role: "test", "given" (the instructor's code) or "answer" (the student's code)."""
    about = cell["metadata"].get("nbgrader", {})
    if about.get("grade") and not about.get("solution"):
        return "test"
    locked = about.get("locked") and not about.get("solution")
    return "given" if locked or "source" in cell["metadata"].get("autograder", {}) else "answer"


def source_of(cell: Mapping) -> str:
    """Return the source of an instructor's cell, as it was written."""
    return cell["metadata"].get("autograder", {}).get("source", cell["source"])


class Judgement:
    """One notebook and its state while it is judged, in a process of its own.

    A name belongs to the side whose cell bound it last, by the order of the instructor's own notebook: a solution cell
    hands the names that the instructor's solution defines to the student, and an instructor's cell takes its own back.
    """

    def __init__(
        self,
        settings: Settings,
        enter: Callable[[], Confined],
        files: dict[str, bytes],
        seed: str,
        tell: Callable[[dict], None] = lambda news: None,
    ):
        self.settings, self.enter, self.files, self.seed, self.tell = settings, enter, files, seed, tell
        self.shell = make_shell()
        # `!echo {word}` would hand a student's text to a shell out here, with the rights of whoever grades.
        self.shell.var_expand = lambda command, *_, **__: command  # type: ignore[method-assign]
        self.link: Link | None = None
        self.done: list[tuple[str, str, bool]] = []  # cells run in the sandbox; a new sandbox runs them again
        self.defines: dict[str, dict] = {}  # what the instructor's solutions define, by grade_id: see `names.defined`
        self.theirs: set[str] = set()  # names that belong to the student now
        self.bound: dict[str, tuple[str, dict]] = {}  # what the student's cells have bound to names
        self.shared: dict[str, Any] = {}  # what cells that ran on both sides bound
        self.read: set[str] = set()  # names that the instructor's cells read
        self.shown = 0  # bytes of outputs so far, as JSON
        self.pieces = 0  # outputs so far, see `protocol.pieces`
        self.restarts = 0
        self.cell_begun = time.monotonic()
        self.allowed = 0.0  # seconds of the cell, on a machine with nothing else to do
        # Twice as long at most: a student's code could have left the load, in the notebook before.
        self.most = settings.submission_seconds * min(crowding(), 2)
        self.end = self.cell_begun + self.most
        for name in settings.inside:
            self._send_inside(name)

    def judge(self, notebook: dict) -> dict[str, str]:
        """Run all cells; write their outputs, and what became of each test, into the notebook, and tell of each.

        Return {grade_id or "cell <number>": verdict} for the cells that ended early.
        """
        remarks: dict[str, str] = {}
        self.defines = notebook["metadata"].get("autograder", {}).get("defines", {})
        for number, cell in enumerate(notebook["cells"]):
            if cell["cell_type"] != "code":
                continue
            name = cell["metadata"].get("nbgrader", {}).get("grade_id") or f"cell {number}"
            cell["execution_count"] = None
            outputs, ended = getattr(self, role(cell))(cell, name)
            cell["outputs"] = self._as_room_allows(outputs)
            if ended is not None and not (ended.verdict == "hostile" and "hostile" in remarks.values()):
                remarks[name] = ended.verdict
            self.tell({"number": number, "cell": cell, "remarks": remarks})
        return remarks

    def answer(self, cell: dict, name: str) -> tuple[list[dict], Ended | None]:
        """Run a student's cell in the sandbox."""
        outputs, ended = self._in_sandbox(cell["source"], name)
        defined = self.defines.get(name, {"names": [], "imports": {}})
        self.theirs |= set(defined["names"])
        self.theirs -= defined["imports"].keys()
        # What the instructor's solution imports is imported on the instructor's word, whatever the student's does.
        for alias, (module, attribute) in defined["imports"].items():
            with contextlib.suppress(ImportError, AttributeError):
                self.shell.user_ns |= imported(alias, module, attribute)
        return outputs, ended

    def given(self, cell: dict, name: str) -> tuple[list[dict], Ended | None]:
        """Run an instructor's cell on both sides: both need what it imports and defines."""
        source = source_of(cell)
        inside, ended = self._in_sandbox(cell["source"], name, given=True)
        record, _ = self._here(source, given=True)
        return inside if ended is not None and not record.outputs else record.outputs, ended

    def test(self, cell: dict, name: str) -> tuple[list[dict], Ended | None]:
        """Run a test cell outside the sandbox, once. Its random draws follow from the submission and its name."""
        if self.seed:
            drawn = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
            fork_server.reseed(int.from_bytes(drawn[:8], "big"))
        record, ended = self._here(cell["source"])
        if ended is not None:  # the test may have caught `Ended`, and gone on to its end
            streams = [output for output in record.outputs if output["output_type"] == "stream"]
            record = Record(outputs=[*streams, error_of(ended)], relayed=record.relayed)
        evidence = {"passed": record.passed, "points": record.points, "line": record.line, "relayed": record.relayed}
        cell["metadata"]["autograder"] = evidence
        return record.outputs, ended

    # The two sides

    def _in_sandbox(self, source: str, name: str, given: bool = False) -> tuple[list[dict], Ended | None]:
        try:
            outputs, bound = self._connected().cell(source, name, given)
        except Ended as ended:
            return [error_of(ended)], ended
        self.done.append((source, name, given))
        if not given:
            self.bound |= bound
        return outputs, None

    def _here(self, source: str, given: bool = False) -> tuple[Record, Ended | None]:
        names = names_in(source)
        self.read |= names.read
        why = None
        try:
            self._bind(self._connected())
        except Ended as ended:
            why = ended
            if self.link is None or not given:
                self._take_back(names.bound | names.imported.keys())
                return Record(outputs=[error_of(ended)]), ended
            self._take_back(self.theirs)  # an instructor's own cell runs all the same, without what is lost
        link = self.link
        assert link is not None  # `_connected` made it
        passed = len(link.callbacks)
        before = dict(self.shell.user_ns)  # the objects, not their ids: Python gives an id to another object
        record = _run_until_alarm(link, self.shell, source, graded=not given)
        if not given:  # what a locked cell passes, such as to an object's constructor, works in the tests after it
            link.forget_callbacks(passed)
        changed = {key for key, value in self.shell.user_ns.items() if key not in before or before[key] is not value}
        changed |= record.bound & self.shell.user_ns.keys()
        # Of its names, it may have left some unbound: the student's code ended it first, or chose another branch.
        self._take_back((names.bound | names.imported.keys() | record.bound) & self.theirs - changed)
        self.theirs -= changed
        if given:
            self.shared |= {key: self.shell.user_ns[key] for key in changed}
        return record, why or link.ended

    def _take_back(self, names: Iterable[str]) -> None:
        """Unbind names: what a student's code did to keep a cell from binding them must not leave it its own."""
        for name in list(names):
            self.theirs.discard(name)
            self.shell.user_ns.pop(name, None)

    def _bind(self, link: Link) -> None:
        """Bind the student's names in the test: functions and classes as proxies, and the data that the test reads.

        A name that the student should have bound and hasn't is unbound in the test too, and is no builtin either.
        """
        namespace, values = self.shell.user_ns, []
        classes = {name for defined in self.defines.values() for name in defined["classes"]}
        for name in self.theirs:
            kind, about = self.bound.get(name, ("", {}))
            namespace.pop(name, None)
            if kind in ("function", "class", "exception"):
                namespace[name] = link.thing(("name", name), kind, about, made=name in classes)
            elif kind not in ("", "module") and name in self.read:
                values.append(name)
        if values:
            namespace.update(link.look(values))
        missing = {name for name in self.theirs if name not in namespace and hasattr(builtins, name)}
        namespace.update({name: Missing(name) for name in missing})

    def _as_room_allows(self, outputs: list[dict]) -> list[dict]:
        """Return a cell's outputs, or a remark and the error in their place once the notebook has shown enough."""
        self.shown += len(json.dumps(outputs))
        self.pieces += sum(map(protocol.pieces, outputs))
        if not outputs or (self.shown <= MOST_SHOWN and self.pieces <= protocol.MOST_PIECES):
            return outputs
        errors = [output for output in outputs if output["output_type"] == "error"][-1:]
        for error in errors:
            error["evalue"] = error["evalue"][:MOST_WORDS]
            error["traceback"] = [line[:MOST_WORDS] for line in error["traceback"][-MOST_LINES:]]
        most = f"{protocol.MOST_PIECES:,} outputs or {MOST_SHOWN / 1e6:g} MB of them"
        words = f"[left out: this notebook has put out more than {most}]\n"
        return [{"output_type": "stream", "name": "stdout", "text": words}, *errors]

    def _connected(self) -> Link:
        """Return the link to the sandbox with its deadline set for one more cell; restart a sandbox that has ended.

        Raise Ended if the notebook has no time left, or has ended too many sandboxes.
        """
        if self.link is not None and self.link.ended is not None and self.link.ended.verdict == "hostile":
            raise self.link.ended  # nothing that this notebook's code says counts any more
        if time.monotonic() >= self.end:
            message = f"Out of time: the whole notebook took longer than {self.most:.0f} seconds."
            raise Ended("time", message)
        if self.link is not None and self.link.ended is None and self.link.sandbox.is_spent():
            self.link.lost()  # what an earlier cell left running ended it, so this cell gets a new one
        if self.link is None or self.link.ended is not None:
            self._restart()
        assert self.link is not None  # `_restart` made it
        self._allow(self.link, self.settings.cell_seconds)
        return self.link

    def _allow(self, link: Link, seconds: float) -> None:
        """Give a link so many seconds from now, for a cell."""
        link.deadline = self.cell_begun = time.monotonic()
        self.allowed = 0.0
        self._extend(link, seconds)

    def _extend(self, link: Link, seconds: float) -> None:
        """Let a link's deadline be later, by so many seconds and by what the machine's load now adds to the cell's.

        Tell the grader, which kills a judge that an alarm doesn't reach by then.
        """
        self.allowed += seconds
        link.deadline = min(max(link.deadline, self.cell_begun + self.allowed * crowding()), self.end)
        self.tell({"until": link.deadline + ALARM, "end": self.end})
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            _set_alarm(link)

    def _restart(self) -> None:
        """Make a new sandbox and run in it every cell that ran in the last one."""
        if self.restarts > RESTARTS:
            assert self.link is not None and self.link.ended is not None  # the last of them
            raise Ended(self.link.ended.verdict, f"Not run: earlier cells ended the interpreter {self.restarts} times.")
        self.restarts += 1
        packages = self.settings.packages
        names = sorted({name for defined in self.defines.values() for name in defined["names"]})
        self.link = link = Link(self.enter(), packages, self.shared, self.settings.in_place, names)
        link.extend = functools.partial(self._extend, link)
        self._allow(link, self.settings.submission_seconds / 4)
        self._begin(link)

    def _begin(self, link: Link) -> None:
        """Run in a link's sandbox every cell that has run before."""
        link.open(self.files)
        for cell in self.done:
            link.cell(*cell)

    def _renew(self, link: Link) -> None:
        """Give a link, within a test, a new sandbox: no file and no process tells it of the test's earlier calls.

        Objects that the student's code has returned stay behind in the last one; what its cells define is there again.
        """
        if link.ended is None and link.sandbox.nursery is not None:
            if link.sandbox.is_spent():
                raise link.lost()
            link.sandbox.close()
            try:
                link.sandbox = self.enter()
            except CannotSandbox as error:
                raise link.end("fault", f"No new sandbox for this test: {error}") from None
            paused, begun, allowed, deadline = time.monotonic(), self.cell_begun, self.allowed, link.deadline
            self._allow(link, self.settings.submission_seconds / 4)
            self._begin(link)
            pause = time.monotonic() - paused  # the time of earlier cells isn't the test's
            self.cell_begun, self.allowed, link.deadline = begun + pause, allowed, deadline + pause
            self._extend(link, 0)

    def _send_inside(self, dotted: str) -> None:
        """Replace a course function so that it runs entirely in the sandbox when an argument is a student's object.

        Of `ranks.run`, only the ranks run there: the main process would otherwise hold what all of them get.

        An exception's class is refused. The student's own has a stand-in on this side (see `Exceptions`), and what is
        no proxy would run out here.
        """
        module, _, name = dotted.rpartition(".")
        with contextlib.suppress(ImportError):
            original = getattr(importlib.import_module(module), name)

            @functools.wraps(original)
            def function(*args: Any, **kwargs: Any) -> Any:
                if not _has_remote([args, kwargs]):
                    if _contains([args, kwargs], _is_exception):  # a student may have bound a function's name to it
                        raise TypeError(f"{dotted} gets an exception's class, where a function belongs")
                    result = original(*args, **kwargs)
                    return Seen.unsent(result) if dotted == RUN else result
                link = self.link
                assert link is not None  # a student's object came over it
                if dotted == RUN and kwargs.pop("apart", False):
                    self._renew(link)
                inside = functools.partial(link.call, function, "", list(args), kwargs)
                return _run_ranks(link, inside, *args, **kwargs) if dotted == RUN else inside()

            function.__module__ = module  # crosses by this name, even if the module has it from another
            setattr(sys.modules[module], name, function)


def _run_ranks(link: Link, unsandboxed: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
    """Run ranks in the sandbox, or as `unsandboxed` does; return their results with the traffic that they caused."""
    link.sandbox.settle()
    party = Party(link, link.sandbox.nursery) if link.sandbox.nursery else None
    try:
        result = party.run(*args, **kwargs) if party else unsandboxed()
    finally:
        link.extend(0)  # by then, the machine may be busier
    if isinstance(result, list):
        result = Seen(result)
        if party and (capture := party.capture):
            if capture.late:
                raise link.end("fault", "The machine was too busy to read what crossed between the ranks.")
            result.followed = capture.by_ends is not None
            result.messages = party.crossed(capture.by_ends) if capture.by_ends is not None else None
    return result


def imported(alias: str, module: str, attribute: str) -> dict[str, Any]:
    """Return what an import statement of the instructor's binds. Raise ImportError or AttributeError as it would."""
    found = importlib.import_module(module)
    if attribute == "*":
        names = getattr(found, "__all__", None) or [name for name in vars(found) if not name.startswith("_")]
        return {name: getattr(found, name) for name in names}
    if attribute:
        return {alias: getattr(found, attribute)}
    return {alias: sys.modules[alias] if alias == module.partition(".")[0] else found}  # `import a.b` binds a


def holding(cells: Iterable[dict]) -> tuple[str, ...]:
    """Return the dotted names that an exercise's given cells import, sorted: they say what its sandboxes hold."""
    given = [cell for cell in cells if cell["cell_type"] == "code" and role(cell) == "given"]
    return tuple(sorted({name for cell in given for name in _imported_by(source_of(cell))}))


def _imported_by(source: str) -> set[str]:
    """Return the dotted names that a cell imports: modules, and what it takes from them."""
    return {f"{module}.{name}".rstrip(".") for module, name in names_in(source).imported.values()}


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _has_remote(value: Any) -> bool:
    """Return whether a value contains a student's object."""
    return _contains(value, lambda part: isinstance(part, Remote))


def _contains(value: Any, sought: Callable[[Any], bool], depth: int = 4) -> bool:
    """Return whether a value, or a part of it `depth` containers deep at most, is what is sought."""
    if sought(value):
        return True
    if depth == 0:
        return False
    if isinstance(value, functools.partial):
        return _contains([value.func, value.args, value.keywords], sought, depth - 1)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    return any(_contains(part, sought, depth - 1) for part in parts)


def _run_until_alarm(link: Link, shell: Shell, source: str, graded: bool) -> Record:
    """Run a cell of the instructor's; if the alarm rings where `run` records an error, the cell has failed, too."""
    try:
        with _alarm(link):
            return run(shell, source, graded)
    except Ended as ended:
        return Record(outputs=[error_of(ended)])


@contextlib.contextmanager
def _alarm(link: Link) -> Iterator[None]:
    """End a test that computes forever outside the sandbox, on a value that a student's function returned.

    It has `ALARM` seconds beyond the link's deadline. The alarm rings once, and then wherever Python next looks for
    signals: that may be after the test's end, in any line up to the one that disarms it.
    """

    def ring(*_: Any) -> None:
        raise link.end("time", NO_END)

    signal.signal(signal.SIGALRM, ring)
    _set_alarm(link)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _set_alarm(link: Link) -> None:
    signal.setitimer(signal.ITIMER_REAL, max(link.deadline - time.monotonic(), 0) + ALARM)


def error_of(ended: Ended) -> dict:
    """Return the error output of a cell that was ended early."""
    names = {"time": "OutOfTime", "memory": "OutOfMemory", "processes": "TooManyProcesses", "hostile": "Forged"}
    name = names.get(ended.verdict, "Crash")
    return {"output_type": "error", "ename": name, "evalue": str(ended), "traceback": [str(ended)]}


# The process


class Unsandboxed:
    """A plain process in place of a `Sandbox`, for `unsandboxed`: it can do whatever you can."""

    nursery: socket.socket | None = None  # it starts its ranks itself
    user = 0  # it has none of its own

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

    def settle(self) -> None:
        """Do nothing: the traffic of a plain process isn't captured."""

    def captured(self) -> contextlib.nullcontext[None]:
        """Return an empty context manager, as `settle` says."""
        return contextlib.nullcontext()

    def is_spent(self) -> bool:
        """Return False: a plain process has no limits to exceed."""
        return False

    def ended(self) -> str:
        """Return how the process ended, such as "signal 11" or "exit 3"."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if pid else 0
        return f"signal {-code}" if code < 0 else f"exit {code}"

    def close(self) -> None:
        """Kill the process."""
        self.socket.close()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def serve(listener: socket.socket, settings: Settings, address: str | None) -> fork_server.Continuation:
    """Accept notebooks and judge each in a fork of this process, which has imported everything.

    Only fork servers for ranks return from here, with their continuation.
    """
    print("ready", flush=True)
    life = os.dup(0)  # reads as closed once the process that started this one is gone
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are not waited for and leave no zombies
    while True:
        if life in select.select([listener.fileno(), life], [], [])[0]:
            os.killpg(0, signal.SIGKILL)  # this process and all its forks
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(life)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _be_judge(connection, settings, address)
        connection.close()


def prepare(settings: Settings) -> None:
    """Import what notebooks will import, and make a shell, before the first notebook arrives."""
    with memory.settled():
        for module in (*settings.preload, *(name.rpartition(".")[0] for name in settings.inside)):
            with contextlib.suppress(ImportError):  # another course may not have the modules in `inside`
                importlib.import_module(module)
        make_shell().run("None", "warm")
        note_preloaded()
        fork_server.reseed()
        fork_server.prepare(settings.preload)


def _print_no_lines() -> None:
    """Keep Python from printing lines of a test: a warning that a student's value causes would show a hidden one.

    Warnings about code that should be written otherwise aren't the student's at all, and name what a test imports.
    """
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning):
        warnings.simplefilter("ignore", category)
    warnings.formatwarning = lambda message, category, *_, **__: f"{category.__name__}: {message}\n"
    sys.unraisablehook = threading.excepthook = lambda *_: None  # type: ignore[assignment]


def _be_judge(connection: socket.socket, settings: Settings, address: str | None) -> fork_server.Continuation:
    """Judge one notebook and exit. Only its fork server for ranks returns, with its continuation.

    Send {"pid"}, receive {"notebook", "files"}, send {"until"} before and {"number", "cell", "remarks"} after each code
    cell, and {"over": True}. "until": when it should be over, in seconds of time.monotonic().
    """
    status, serve_ranks = 1, None
    try:
        channel.send(connection, json.dumps({"pid": os.getpid()}).encode())
        request = json.loads(channel.receive(connection))
        # A test may allocate as much as a student's function makes it: limit it to what the process has, and MEMORY.
        data_bytes = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes + MEMORY, data_bytes + MEMORY))
        fork_server.reseed()
        folder = tempfile.mkdtemp(prefix="j", dir=os.getcwd())  # `Judges` removes it if this process is killed
        serve_ranks = fork_server.adopt(folder, connection)
        if serve_ranks is None:
            _print_no_lines()
            try:
                os.mkdir(f"{folder}/work")
                os.chdir(f"{folder}/work")
                _judge(request, settings, address, lambda news: channel.send(connection, json.dumps(news).encode()))
            finally:
                fork_server.end()
                shutil.rmtree(folder, ignore_errors=True)
            channel.send(connection, json.dumps({"over": True}).encode())
            status = 0
    except BaseException:
        traceback.print_exc()  # into the grader's log: the fault is the grader's own
    finally:
        if serve_ranks is None:
            os._exit(status)
    return serve_ranks


def _judge(request: dict, settings: Settings, address: str | None, tell: Callable[[dict], None]) -> None:
    """Judge the request's notebook, and tell of each of its cells."""
    files = {name: bytes.fromhex(data) for name, data in request["files"].items()}
    lay_out(files)
    make: Callable[[], Confined]
    if settings.unsandboxed:
        make = Unsandboxed
    else:
        assert address is not None  # `Judges` started a warm interpreter
        modules, ranks = holding(request["notebook"]["cells"]), RUN in settings.inside
        make = functools.partial(enter, address, settings.limits, ranks=ranks, holding=modules)
    judgement = Judgement(settings, make, files, request["seed"], tell)
    try:
        judgement.judge(request["notebook"])
    finally:
        if judgement.link is not None:
            judgement.link.sandbox.close()


def main() -> fork_server.Continuation:
    """Serve as a process of its own, `python -m autograder.judging.judge`.

    Read two lines from stdin: the one from `written`, and the address of the warm interpreter as JSON, once it is
    proven to contain.

    Only fork servers for ranks return from here, with their continuation.
    """
    line = json.loads(sys.stdin.readline())
    limits = Limits(**line["settings"].pop("limits"))
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in line["settings"].items()
    }
    settings = Settings(**fields, limits=limits)
    listener = socket.socket(fileno=line["listener"])
    prepare(settings)
    return serve(listener, settings, json.loads(sys.stdin.readline()))


def written(settings: Settings, listener: int) -> str:
    """Return the line of JSON that `main` reads from stdin first."""
    return json.dumps({"settings": asdict(settings), "listener": listener}) + "\n"


if __name__ == "__main__":
    # Called up here so that none of our frames is below it on the stack: see `fork_server.Continuation`.
    continuation = main()
    continuation()
