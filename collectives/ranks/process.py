"""The life of a rank: a process that joins the group, calls the function, and reports where it is on request.

`ranks` starts such processes for a notebook cell, and `cluster` on the machines of a cluster. Each is forked from a
**fork server**, a process that imports torch once and then does nothing but fork. The two sides talk over a pipe: the
rank sends a `Report` when it begins, when it ends, and whenever its `RankProcess` queries it. With `ask`, a rank also
asks that side for what no rank may decide.
"""

from __future__ import annotations

import contextlib
import functools
import io
import linecache
import multiprocessing
import os
import queue
import re
import socket
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, forkserver
from typing import Any

import cloudpickle

START_SECONDS = 60.0  # for ranks to begin, on a busy machine
ANSWER_SECONDS = 1.0  # for a rank to report where it is before the run ends

preloaded = ["torch.distributed", "collectives.ranks", "collectives.execute", "collectives.ranks.shared"]

_swapping_main = threading.Lock()
_TRANSPORTS = {"collectives.execute", "collectives.ranks.shared"}  # their `_wait` has the locals `peer` and `words`
_MESSAGES = dict(send="waits to send to", recv="waits to receive from")
_MESSAGES |= {f"i{name}": words for name, words in _MESSAGES.items()}  # these block too, if the peer doesn't exist

_OPERATIONS = {12: "send", 13: "recv", 14: "recv"}  # torch's numbers for what a `Work` does
_WAITS = {"send": "waits for its message to be received", "recv": "waits for a message", "": "waits for a request"}


@dataclass(frozen=True)
class Setup:
    """The settings that every rank of a run gets. `init_method`: how ranks rendezvous. `folder`: for printed output.

    `serves`: the process that starts the ranks answers what they `ask`. `sealed`, `groups`: as of `run`.
    """

    world_size: int
    backend: str
    init_method: str
    timeout: float
    folder: str
    environment: dict[str, str]
    enter: Callable[[int], None] | None = None
    serves: bool = False
    sealed: bool = False
    groups: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Report:
    """The state of a rank. `kind`: "begun", "asks", "returned", "failed", "died", "waits", or "lost" (with its engine).

    `value`: the pickled result, or the question. `words`: the traceback if the rank failed, its last output if it died,
    its position if it waits. `peer`: the rank that it waits for, or waited for in vain.
    """

    kind: str
    value: Any = b""
    words: str = ""
    peer: int | None = None
    exit_code: int | None = None

    @property
    def blame(self) -> str:
        """How the rank broke the run: a predicate that follows the rank's name."""
        died = f"died with exit code {self.exit_code}"
        return {"died": died, "lost": "is lost: its engine died"}.get(self.kind, "failed")

    @property
    def state(self) -> str:
        """Where the rank is, in one line, if another rank is to blame."""
        last = self.words.strip().rpartition("\n")[2]
        known = {"returned": "has returned", "died": "is gone", "lost": "is gone", "failed": f"failed too: {last}"}
        return known.get(self.kind, self.words)


@dataclass(frozen=True)
class Killed:
    """An answer to `ask`: the rank that asked gets none, and is killed at once by SIGKILL.

    The other ranks go on, for `more` seconds at most; then the run ends.
    """

    more: float = 0.0


@dataclass(frozen=True)
class Later:
    """An answer to `ask` that takes time: `answer()` is called, and what it returns is sent, so many `seconds` later.

    The other ranks are answered meanwhile.
    """

    seconds: float
    answer: Callable[[], Any]


WHERE = b"where"  # the query for a rank's position; any other message to a rank is an answer
NOT_BEGUN = "has not begun"
SILENT = Report("waits", words="does not answer: it is busy")


class RankProcess:
    """One rank, as seen by the process that starts it and reads its reports. `end` ends it."""

    def __init__(self, rank: int, setup: Setup, task: bytes):
        context = _fork_server()
        self.rank = rank
        self.folder = setup.folder
        self.pipe, self._theirs = context.Pipe()
        self.process = context.Process(target=_rank_main, args=(rank, setup, task, self._theirs), daemon=True)

    def start(self) -> None:
        with _no_main_module():
            self.process.start()
        self._theirs.close()

    def read(self) -> Report:
        """Wait for the next report and return it. If the rank dies, the report says so."""
        try:
            return cloudpickle.loads(self.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            self.process.join(ANSWER_SECONDS)
            last_words = explain_death(_written(self.folder, self.rank, "stderr"))
            return Report("died", words=last_words, exit_code=self.process.exitcode)

    def answer(self, value: Any) -> None:
        """Answer what the rank has asked; does nothing if it has died."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(cloudpickle.dumps(value))

    def printed(self) -> tuple[str, str]:
        """Return what the rank has written so far to stdout and to stderr."""
        return _written(self.folder, self.rank, "stdout"), _written(self.folder, self.rank, "stderr")


def whereabouts(ranks: Sequence[RankProcess]) -> list[Report]:
    """Query all ranks at once; return a report for each: how it has ended, or which peer it waits for."""
    for process in ranks:
        with contextlib.suppress(OSError):
            process.pipe.send_bytes(WHERE)
    deadline = time.monotonic() + ANSWER_SECONDS
    return [_answer_of(process, deadline) for process in ranks]


def _answer_of(process: RankProcess, deadline: float) -> Report:
    while process.pipe.poll(max(deadline - time.monotonic(), 0)):
        report = process.read()
        if report.kind not in ("begun", "asks"):
            return report
    return SILENT


def end(ranks: Sequence[RankProcess]) -> None:
    """End ranks, whatever they are doing, and wait until their processes have exited."""
    for rank_process in ranks:
        rank_process.pipe.close()  # a rank ends itself when its pipe closes
    started = [rank_process.process for rank_process in ranks if rank_process.process.pid is not None]
    deadline = time.monotonic() + ANSWER_SECONDS
    for process in started:
        process.join(max(deadline - time.monotonic(), 0))
    for process in started:
        if process.is_alive():
            process.kill()
        process.join()


def preload(*modules: str) -> None:
    """Make the fork server import `modules` too, once, so that ranks of later runs don't have to.

    Use it for modules that take seconds to import: `torch._dynamo`, which torch's optimizers import at their first
    step, or `torch.distributed.fsdp`. Call it before the first run, because it replaces a server that already runs.
    """
    if new := [module for module in modules if module not in preloaded]:
        preloaded.extend(new)
        # multiprocessing's server; does nothing if it doesn't run yet
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


def start_fork_server() -> None:
    """Start the fork server before the first rank needs it, and wait until it has imported its modules."""
    process = _fork_server().Process(target=int, daemon=True)
    with _no_main_module():
        process.start()
    process.join()


def _fork_server() -> multiprocessing.context.ForkServerContext:
    """Return the context that forks processes from a server with torch imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preloaded)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # hides what gloo logs whenever we end a peer
    return context


@contextlib.contextmanager
def _no_main_module():
    """Keep multiprocessing from importing the caller's main module again in every rank.

    The function travels by cloudpickle, so a rank doesn't need that module. For a notebook's kernel or pytest, the
    import would take longer than everything else.
    """
    with _swapping_main:  # two runs may start at once, from two threads
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def pack(function: Callable, args: tuple) -> bytes:
    """Pickle a call of `function` with `args`, plus what a rank may lack: source lines and the module search path."""
    names = {value.__code__.co_filename for value in (function, *args) if isinstance(value, types.FunctionType)}
    sources = {name: linecache.getlines(name) for name in names}  # files or notebook cells
    paths = [os.path.abspath(path) for path in sys.path]
    call = io.BytesIO()
    _Pickler(call).dump((function, args))
    return cloudpickle.dumps((paths, sources, call.getvalue()))


class _Pickler(cloudpickle.Pickler):
    """A pickler that also takes along what cloudpickle can't, or takes by a name that a rank doesn't know.

    These are memoized functions of a notebook's, what `functools.cached_property` and `functools.singledispatch` keep,
    and modules that can't be imported, such as the one that torch's `once_differentiable` calls.
    """

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is functools._lru_cache_wrapper and (
            value.__module__ == "__main__" or "<locals>" in value.__qualname__
        ):
            return _memoized, (value.__wrapped__, value.cache_parameters())
        if kind is _RLOCK:
            return threading.RLock, ()  # that no thread of the rank holds
        if kind is weakref.WeakKeyDictionary:
            return weakref.WeakKeyDictionary, (dict(value),)
        if kind is types.ModuleType and value.__name__ not in sys.modules:
            owner, _, name = value.__name__.rpartition(".")
            if getattr(sys.modules.get(owner), name, None) is value:
                return getattr, (sys.modules[owner], name)
        return super().reducer_override(value)


_RLOCK = type(threading.RLock())


def _memoized(function: Callable, parameters: dict[str, Any]) -> Callable:
    return functools.lru_cache(**parameters)(function)


def unpack(task: bytes) -> tuple[Callable, tuple]:
    """Return the function and the arguments that `pack` pickled."""
    paths, sources, call = cloudpickle.loads(task)
    sys.path.extend(path for path in paths if path not in sys.path)
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return cloudpickle.loads(call)


def _write_to_files(folder: str, rank: int) -> None:
    """Redirect this process's stdout and stderr to files, line-buffered, so that output survives if it dies."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(_path(folder, rank, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)  # the descriptor, because C++ writes to it when it aborts
        os.close(file)
        setattr(sys, name, os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", closefd=False))


def _path(folder: str, rank: int, name: str) -> str:
    return os.path.join(folder, f"rank-{rank}.{name}")


def _written(folder: str, rank: int, name: str) -> str:
    """Return what a rank wrote to its "stdout" or "stderr"; "" if it wrote nothing."""
    path = _path(folder, rank, name)
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip("\n")
    return ""


def explain_death(last_words: str) -> str:
    """Return the last output of a rank that died, or an explanation if it is gloo's message-length mismatch."""
    mismatch = re.search(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)", last_words)
    if mismatch:
        sent, room = mismatch.groups()
        return (
            f"It received {sent} bytes into a tensor of {room}: sender and receiver disagree about the length or "
            "the dtype of a message, or the message belongs to another step than the receiver expects."
        )
    return last_words


def _rank_main(rank: int, setup: Setup, task: bytes, pipe: connection.Connection) -> None:
    """Run a rank: join the group, call the function, send its result, and wait for the parent to close the pipe."""
    if not os.path.isdir(setup.folder):
        os._exit(0)  # the run was interrupted while this rank was being started
    _write_to_files(setup.folder, rank)
    os.environ.clear()  # the fork server's environment is out of date
    os.environ.update(setup.environment)
    lock = threading.Lock()

    def send(kind: str, **known: Any) -> None:
        with lock, contextlib.suppress(ConnectionError):  # the parent closes the pipe when the run ends
            pipe.send_bytes(cloudpickle.dumps(Report(kind, **known)))

    try:
        if setup.enter:
            setup.enter(rank)  # before the thread starts: only a single-threaded process may join a user namespace
        thread_args = (pipe, send, threading.get_ident(), setup.world_size)
        threading.Thread(target=answer, args=thread_args, daemon=True).start()
        if setup.serves:
            ask_with(send, cloudpickle.loads)
        function, args = unpack(task)
        join_group(rank, setup.world_size, setup.backend, setup.init_method, setup.timeout)
        make_groups(setup.groups)
        if setup.sealed:
            close_stores()
        send("begun")
        send("returned", value=cloudpickle.dumps(function(rank, setup.world_size, *args)))
    except BaseException as error:
        peers = getattr(error, "peers", [])  # an ExecutionError lists the peers it waited for
        send("failed", words=traceback_of(error), peer=next(iter(peers), None))
    threading.Event().wait()  # peers may still read what this rank sent; `answer` ends the process


def answer(pipe: connection.Connection, send: Callable, main_thread: int, world_size: int) -> None:
    """Report this rank's position at each query of the parent; end the process when the parent closes the pipe.

    Any other message is the answer to what this rank has asked.
    """
    with contextlib.suppress(EOFError, OSError):
        while message := pipe.recv_bytes():
            if message != WHERE:
                _answers.put(message)
                continue
            words, peer = _whereabouts(sys._current_frames()[main_thread], world_size)
            send("waits", words=words, peer=peer)
    os._exit(0)  # skip the process group's teardown, which would wait for peers that may have exited


_answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # that this rank has not read yet
_ask: Callable[[Any], Any] | None = None


def ask_with(send: Callable, read: Callable[[bytes], Any]) -> None:
    """Let this rank `ask`. `send`: sends a report of a kind. `read`: returns what an answer's bytes mean."""
    global _ask

    def asked(question: Any) -> Any:
        send("asks", value=question)
        return read(_answers.get())

    _ask = asked


def ask(question: Any) -> Any:
    """Ask the process that started this rank; return what its `serve(rank, question)` returns: see `run`.

    Raises `RuntimeError` where no process serves: outside a rank, or if `run` got no `serve`.
    """
    if _ask is None:
        raise RuntimeError("only a rank can ask, and only if its run was started with `serve`")
    return _ask(question)


_stores: list[Any] = []  # this rank's: torch doesn't keep the Python object alive


def close_stores() -> None:
    """Close what this rank's group has met by, for good: no rank can leave anything there, or make a group."""
    for store in _stores:
        store.close()


def join_group(rank: int, world_size: int, backend: str, init_method: str, timeout: float) -> None:
    """Make this process rank `rank` of a group over `backend`, with one torch thread and, for "nccl", its own GPU.

    Raises `RuntimeError` if "nccl" finds no GPU.
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)  # ranks share the cores: more threads per rank would compete
    device = None
    if backend == "nccl":
        if not torch.cuda.is_available():
            raise RuntimeError(
                "NCCL needs a GPU for each rank, and torch finds none here: leave `backend` out, for gloo"
            )
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
    elif init_method.startswith("file:") or os.environ.get("MASTER_ADDR") == "127.0.0.1":  # all ranks on this machine
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
        if loopback:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    patience = timedelta(seconds=timeout)
    meeting: dict[str, Any] = {"init_method": init_method}
    if init_method.startswith("file:") and backend == "gloo":
        from .store import LogStore

        _stores.append(LogStore(init_method.removeprefix("file://"), patience))
        meeting = {"store": _stores[-1]}
    dist.init_process_group(backend, rank=rank, world_size=world_size, timeout=patience, device_id=device, **meeting)


_groups: dict[tuple[int, ...], Any] = {}  # this rank's, by their members


def make_groups(groups: Sequence[Sequence[int]]) -> None:
    """Make a group of each of these lists of ranks, on all ranks and in this order, for `group` to return."""
    import torch.distributed as dist

    for members in groups:
        _groups[tuple(members)] = dist.new_group(list(members))


def group(members: Sequence[int]) -> Any:
    """Return the process group of these ranks that `run` has made on this rank: see its `groups`.

    On a rank that isn't among them, return `dist.GroupMember.NON_GROUP_MEMBER`. Raises `KeyError` if `run` has made no
    such group.
    """
    return _groups[tuple(members)]


def _whereabouts(frame: types.FrameType | None, world_size: int) -> tuple[str, int | None]:
    """Return what a rank is waiting for, in words, and the peer if there is one. Both are read off its stack."""
    what, peer, otherwise = None, None, NOT_BEGUN
    while frame is not None:
        name, local = frame.f_code.co_name, frame.f_locals
        if frame.f_globals.get("__name__", "").startswith("collectives.practice"):
            otherwise = "is busy"  # a check's function has begun, and calls none of the learner's now
        if frame.f_code is traceback_of.__code__:
            return "is ending in an error", None
        if frame.f_code.co_filename.endswith("distributed_c10d.py"):
            if name in _MESSAGES:  # `recv` calls `irecv`; the outer frame wins, because it knows the peer better
                peer = local.get("dst", local.get("src"))
                what = f"{_MESSAGES[name]} {_named(peer, world_size)}"
            elif what is None and not name.startswith("_") and name != "wrapper":
                what = f"waits in {name}"
        if what is None and name == "_wait" and frame.f_globals.get("__name__") in _TRANSPORTS:
            what, peer = f"waits for {local.get('words')}", local.get("peer")
        if _is_users(frame):
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if what is None and "wait(" in line:  # a `Work`, whose C++ methods leave no frame on the stack
                kind = _operation(frame, line)
                senders = [] if kind == "send" else _senders(frame)
                peer = senders[0] if len(senders) == 1 else None
                what = _WAITS["recv" if senders else kind]
                what += f" from rank {' or '.join(map(str, senders))}" if senders else ""
            return f"{what or 'is busy'} (line {frame.f_lineno} of {name}: {line})", peer
        frame = frame.f_back
    return otherwise, None


def _named(peer: int | None, world_size: int) -> str:
    if peer is None:
        return "any rank"
    return f"rank {peer}" if 0 <= peer < world_size else f"rank {peer}, but the ranks are 0 to {world_size - 1},"


def _operation(frame: types.FrameType, line: str) -> str:
    """Return whether a line waits for a "send" or a "recv"; "" if it doesn't show."""
    names = re.findall(r"(\w+)\.wait\(", line)
    kinds = set(re.findall(r"\bi(send|recv)\(", line))
    for each in [frame.f_locals[name] for name in names if name in frame.f_locals]:
        with contextlib.suppress(Exception):  # it may be any object
            kinds.add(_OPERATIONS[each._get_op_type()])
    return kinds.pop() if len(kinds) == 1 else ""


def _senders(frame: types.FrameType | None) -> list[int]:
    """Return the ranks that `P2POp`s receive from, among the variables of `frame` or else of its callers."""
    while frame is not None and _is_users(frame):
        lists = [value if isinstance(value, list) else [value] for value in frame.f_locals.values()]
        operations = [value for values in lists for value in values if type(value).__name__ == "P2POp"]
        if operations:
            return sorted({operation.peer for operation in operations if operation.op.__name__ == "irecv"})
        frame = frame.f_back
    return []


def _is_users(frame: types.FrameType) -> bool:
    """Return whether a frame is the learner's own code rather than a library's."""
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    libraries = {"torch", "collectives", "autograder", *sys.stdlib_module_names}
    return package not in libraries and frame.f_code.co_filename != "<string>"  # the fork server's frame


def traceback_of(error: BaseException) -> str:
    """Format the traceback of a rank with its causes, starting at the learner's function."""
    trace = traceback.TracebackException.from_exception(error)
    trace.stack = traceback.StackSummary.from_list([frame for frame in trace.stack if frame.name != "_rank_main"])
    return "".join(trace.format())
