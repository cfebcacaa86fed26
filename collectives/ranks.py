"""Real ranks from a notebook cell: processes of their own, in a process group of their own, in about 0.1 s.

A **fork server** is a process that has imported torch once and does nothing but fork. Each `run` asks it for fresh
ranks, so no state is left over from the last run, and nobody imports torch again. The function travels by
cloudpickle, so it may be one that a notebook cell has just defined.

The same file runs under `torchrun`, where the ranks exist already: then `run` is this process's part in them.
"""

from __future__ import annotations

import atexit
import contextlib
import linecache
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, forkserver
from typing import Any

import cloudpickle

_swapping_main = threading.Lock()
_preloaded = ["torch.distributed", "collectives.ranks", "collectives.execute", "collectives.shared"]

START_SECONDS = 60.0  # how long ranks may take to begin, on a machine that is busy with other things
_TRANSPORTS = {"collectives.execute", "collectives.shared"}  # whose `_wait` knows `peer`, and for what in `words`
_MESSAGES = dict(send="waits to send to", recv="waits to receive from")
_MESSAGES |= {f"i{name}": words for name, words in _MESSAGES.items()}  # these wait too, for a rank that is not there
_RETURNED = ", which has returned, and will never answer (if it used isend: did it wait() for it?)"

ANSWER_SECONDS = 1.0  # how long a rank has to say where it is, before the run is ended


class RanksError(RuntimeError):
    """A run in which some rank failed, died or never finished. `waits`: {rank: the peer it was waiting for}."""

    def __init__(self, message: str, waits: dict[int, int | None]):
        super().__init__(message)
        self.waits = waits


def run(
    function: Callable,
    world_size: int,
    *args: Any,
    timeout: float = 60.0,
    backend: str | None = None,
    enter: Callable[[int], None] | None = None,
) -> list[Any]:
    """Call `function(rank, world_size, *args)` on `world_size` ranks; return what each returned, by rank.

    Each rank is a process with one torch thread, in a process group over `backend` ("gloo", or "nccl" with one GPU
    a rank; by default nccl only if there are as many GPUs as ranks). What a rank prints is printed here, rank after
    rank. If one raises, dies, or has not returned `timeout` seconds after all have begun, all are ended and a
    `RanksError` says which rank it was, with its traceback, and who was waiting for whom, as far as a blocking `send`,
    `recv`, `execute` or a list of `P2POp`s shows it. Ranks see the environment variables of this process as they are.

    `enter(rank)`, a function of a module, is called in each rank before all else: `emulate` puts ranks on its nodes.
    """
    if world_size < 1:
        raise ValueError(f"world_size is the number of ranks, at least 1, not {world_size}")
    if "TORCHELASTIC_RUN_ID" in os.environ:  # under torchrun, this process is one rank among those started
        return _run_as_launched(function, world_size, args, timeout, backend)
    task = cloudpickle.dumps((function, args, _sources(function, *args)))
    return _Run(task, world_size, timeout, backend or default_backend(world_size), enter).results()


def default_backend(world_size: int) -> str:
    """ "nccl" where every one of `world_size` ranks can have a GPU of its own, and "gloo" elsewhere."""
    import torch

    return "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= world_size else "gloo"


@dataclass(frozen=True)
class _Setup:
    """What every rank of a run is told. `folder`: for the store by which ranks meet, and for what they print."""

    world_size: int
    backend: str
    timeout: float
    folder: str
    environment: dict[str, str]
    enter: Callable[[int], None] | None


class _Run:
    """The parent's side of one run: starts the ranks, collects what they send, and leaves nothing running."""

    def __init__(self, task: bytes, world_size: int, timeout: float, backend: str, enter: Callable | None):
        self.task = task
        self.timeout = timeout
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")
        patience = START_SECONDS + timeout  # of the group's own operations: longer than the run lasts
        self.setup = _Setup(world_size, backend, patience, self.folder.name, dict(os.environ), enter)
        self.processes, self.pipes = [], []
        self.begun: set[int] = set()
        self.returned: dict[int, Any] = {}
        self.died: set[int] = set()

    def results(self) -> list[Any]:
        try:
            self._start()
            self._collect()
        finally:
            self._end()
        return [self.returned[rank] for rank in range(len(self.processes))]

    def _start(self) -> None:
        context = _fork_server()
        for rank in range(self.setup.world_size):
            mine, theirs = context.Pipe()
            process = context.Process(target=_rank_main, args=(rank, self.setup, self.task, theirs), daemon=True)
            self.processes.append(process)  # before it starts: an interrupt must not leave one behind
            self.pipes.append(mine)
            with _no_main_module():
                process.start()
            theirs.close()

    def _collect(self) -> None:
        """Read each rank's outcome as it comes, until all have returned, one fails, or the time is up."""
        deadline, begun = time.monotonic() + START_SECONDS, False
        while len(self.returned) < len(self.pipes):
            if not begun and len(self.begun) == len(self.pipes):
                deadline, begun = time.monotonic() + self.timeout, True
            waiting = {self.pipes[rank]: rank for rank in self._unfinished()}
            ready = connection.wait(list(waiting), max(deadline - time.monotonic(), 0))
            if not ready:
                late = f"finish within {self.timeout:g} s" if begun else f"begin within {START_SECONDS:g} s"
                self._fail(f"{len(waiting)} of {len(self.pipes)} ranks did not {late}")
            for pipe in ready:
                self._read(waiting[pipe], pipe)

    def _read(self, rank: int, pipe: connection.Connection) -> None:
        try:
            kind, value = cloudpickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            self.died.add(rank)
            self.processes[rank].join(ANSWER_SECONDS)
            headline = f"rank {rank} died with exit code {self.processes[rank].exitcode}"
            self._fail(headline, culprit=rank, details=explain_death(_written(self.folder.name, rank, "stderr")))
        if kind == "raised":
            self._fail(f"rank {rank} failed", rank, *value)
        elif kind == "begins":
            self.begun.add(rank)
        else:
            self.returned[rank] = value

    def _unfinished(self) -> list[int]:
        return [rank for rank in range(len(self.pipes)) if rank not in self.returned]

    def _fail(self, headline: str, culprit: int | None = None, details: str = "", peer: int | None = None) -> None:
        """Ask the ranks that are left where they are, and raise. `peer`: whom the culprit waited for in vain."""
        where, waits = {}, {}
        others = [rank for rank in self._unfinished() if rank != culprit]
        for rank in others:
            with contextlib.suppress(OSError):
                self.pipes[rank].send_bytes(b"where")
        deadline = time.monotonic() + ANSWER_SECONDS
        for rank in others:
            where[rank], waits[rank] = self._whereabouts_of(rank, deadline)
        if culprit is not None:
            waits[culprit] = peer
        where |= {rank: "has returned" for rank in self.returned}
        lines = [headline, *(f"  rank {rank} {where[rank]}" for rank in sorted(where))]
        if cycle := find_cycle(waits):
            lines.append("  each waits for the next: " + " → ".join(f"rank {rank}" for rank in cycle))
        for rank in sorted(set(waits.values()) - {None, culprit}):
            if rank in range(len(self.pipes)) and waits.get(rank) is None:  # some wait for a rank that there is not
                over = _RETURNED if rank in self.returned else ""
                lines.append(f"  waited for, and waiting for nobody: rank {rank}{over}")
        raise RanksError("\n".join(lines) + (f"\n\n{details}" if details else ""), waits)

    def _whereabouts_of(self, rank: int, deadline: float) -> tuple[str, int | None]:
        """What a rank that was asked where it is answers by then: in words, and which rank it waits for."""
        pipe = self.pipes[rank]
        try:
            while pipe.poll(max(deadline - time.monotonic(), 0)):
                kind, value = cloudpickle.loads(pipe.recv_bytes())
                if kind == "where":
                    return value
                if kind == "raised":
                    details, peer = value
                    return f"failed too: {details.strip().splitlines()[-1]}", peer
                if kind == "returned":
                    return "has returned", None
        except (EOFError, OSError):
            return "is gone", None
        return "does not answer: it is busy", None

    def _end(self) -> None:
        """End every rank, wait until it is gone, and show what it printed."""
        for pipe in self.pipes:
            pipe.close()  # a rank ends itself when its pipe closes
        started = [process for process in self.processes if process.pid is not None]
        deadline = time.monotonic() + ANSWER_SECONDS
        for process in started:
            process.join(max(deadline - time.monotonic(), 0))
        for process in started:
            if process.is_alive():
                process.kill()
            process.join()
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            for rank in range(len(self.processes)):
                if name == "stderr" and rank in self.died:
                    continue  # its last words are in the error
                for line in _written(self.folder.name, rank, name).splitlines():
                    print(f"rank {rank}: {line}", file=stream)
        self.folder.cleanup()


def find_cycle(waits: dict[int, int | None]) -> list[int] | None:
    """Ranks that wait for each other in a circle, the first one repeated at the end; None if there are none."""
    for start in waits:
        path = [start]
        while (peer := waits.get(path[-1])) is not None and peer not in path:
            path.append(peer)
        if peer == start:
            return [*path, start]
    return None


def preload(*modules: str) -> None:
    """Have the fork server import `modules` too, once, so that no rank of any later run has to.

    For what takes seconds to import: `torch._dynamo`, which every optimizer of torch's asks for at its first step, or
    `torch.distributed.fsdp`. Call it before the first run; a server that has begun already is ended for a new one.
    """
    if new := [module for module in modules if module not in _preloaded]:
        _preloaded.extend(new)
        forkserver._forkserver._stop()  # of multiprocessing; does nothing if there is none yet


def _fork_server() -> multiprocessing.context.BaseContext:
    """The context whose processes are forked from a server that has torch imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_preloaded)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # what gloo logs when a peer is ended is not news
    return context


@contextlib.contextmanager
def _no_main_module():
    """Keep multiprocessing from importing the caller's main module again in every rank.

    The function travels by cloudpickle, so a rank has no need of it; for a notebook's kernel or for pytest that
    import would cost more than all the rest.
    """
    with _swapping_main:  # two runs may start at once, from two threads
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _sources(*values: Any) -> dict[str, list[str]]:
    """The source lines of the files or notebook cells of all functions among `values`: ranks may not have them."""
    names = {value.__code__.co_filename for value in values if isinstance(value, types.FunctionType)}
    return {name: linecache.getlines(name) for name in names}


def _write_to_files(folder: str, rank: int) -> None:
    """Lead this process's stdout and stderr to files, line by line: what it printed is there even if it dies."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(_path(folder, rank, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)  # C++ writes there when it aborts
        os.close(file)
        setattr(sys, name, os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", closefd=False))


def _path(folder: str, rank: int, name: str) -> str:
    return os.path.join(folder, f"rank-{rank}.{name}")


def _written(folder: str, rank: int, name: str) -> str:
    """What a rank wrote to its "stdout" or "stderr"; "" if it never came to write anything."""
    path = _path(folder, rank, name)
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip("\n")
    return ""


def explain_death(last_words: str) -> str:
    """The last words of a rank that the operating system ended, and what the commonest of them means."""
    mismatch = re.search(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)", last_words)
    if mismatch:
        sent, room = mismatch.groups()
        return (
            f"It received {sent} bytes into a tensor of {room}: sender and receiver disagree about the length or "
            "the dtype of a message, or a message came from another step than the receiver thinks."
        )
    return last_words


def _rank_main(rank: int, setup: _Setup, task: bytes, pipe: connection.Connection) -> None:
    """The life of a rank: join the group, call the function, send what it returned, and wait to be dismissed."""
    if not os.path.isdir(setup.folder):
        os._exit(0)  # the run was interrupted while this rank was being started
    _write_to_files(setup.folder, rank)
    os.environ.clear()  # what the fork server saw when it started is out of date
    os.environ.update(setup.environment)
    lock = threading.Lock()

    def send(kind: str, value: Any) -> None:
        with lock:
            pipe.send_bytes(cloudpickle.dumps((kind, value)))

    try:
        if setup.enter:
            setup.enter(rank)  # before the thread starts: Linux lets only a single thread into a user namespace
        asked = (pipe, send, threading.get_ident(), setup.world_size)
        threading.Thread(target=_answer, args=asked, daemon=True).start()
        function, args, sources = cloudpickle.loads(task)
        for name, lines in sources.items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
        _join_group(rank, setup.world_size, setup.backend, f"file://{setup.folder}/store", setup.timeout)
        send("begins", None)
        send("returned", function(rank, setup.world_size, *args))
    except BaseException as error:
        peers = getattr(error, "peers", [])  # an ExecutionError knows whom it waited for
        send("raised", (_traceback(error), next(iter(peers), None)))
    threading.Event().wait()  # peers may still read what this rank sent; `_answer` ends the process


def _answer(pipe: connection.Connection, send: Callable, main_thread: int, world_size: int) -> None:
    """Tell the parent where this rank is whenever it asks; end the process when the parent is done with it."""
    with contextlib.suppress(EOFError, OSError):
        while pipe.recv_bytes():
            send("where", _whereabouts(sys._current_frames()[main_thread], world_size))
    os._exit(0)  # no teardown: the process group's would wait for peers that may be gone


def _join_group(rank: int, world_size: int, backend: str, init_method: str, timeout: float) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)  # ranks share the cores; more threads each only get in each other's way
    device = None
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
    elif init_method.startswith("file:"):
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
        if loopback:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    dist.init_process_group(
        backend,
        init_method=init_method,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout),
        device_id=device,
    )


def _whereabouts(frame: types.FrameType, world_size: int) -> tuple[str, int | None]:
    """What a rank is waiting for, in words, and the peer if there is one, read off its stack."""
    what, peer = None, None
    while frame is not None:
        name, local = frame.f_code.co_name, frame.f_locals
        if frame.f_code.co_filename.endswith("distributed_c10d.py"):
            if name in _MESSAGES:  # `recv` calls `irecv`, and knows better than that which rank it wants
                peer = local.get("dst", local.get("src"))
                what = f"{_MESSAGES[name]} {_named(peer, world_size)}"
            elif what is None and not name.startswith("_") and name != "wrapper":
                what = f"waits in {name}"
        if what is None and name == "_wait" and frame.f_globals.get("__name__") in _TRANSPORTS:
            what, peer = f"waits for {local.get('words')}", local.get("peer")
        if _is_users(frame):
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if what is None and "wait(" in line:  # for a `Work`, whose methods are C++ and not on the stack
                senders = _senders(frame)
                peer = senders[0] if len(senders) == 1 else None
                what = "waits for a message" + (f" from rank {' or '.join(map(str, senders))}" if senders else "")
            return f"{what or 'is busy'} (line {frame.f_lineno} of {name}: {line})", peer
        frame = frame.f_back
    return "has not begun", None


def _named(peer: int | None, world_size: int) -> str:
    if peer is None:
        return "any rank"
    return f"rank {peer}" if 0 <= peer < world_size else f"rank {peer}, but the ranks are 0 to {world_size - 1},"


def _senders(frame: types.FrameType) -> list[int]:
    """Ranks that the `P2POp`s among the variables of `frame`, or else of its caller, receive from."""
    while frame is not None and _is_users(frame):
        values = [one for value in frame.f_locals.values() for one in (value if isinstance(value, list) else [value])]
        operations = [value for value in values if type(value).__name__ == "P2POp"]
        if operations:
            return sorted({operation.peer for operation in operations if operation.op.__name__ == "irecv"})
        frame = frame.f_back
    return []


def _is_users(frame: types.FrameType) -> bool:
    """Whether a frame is the learner's own code, rather than a library's."""
    module = frame.f_globals.get("__name__", "")
    libraries = ("torch", "collectives.", "threading", "multiprocessing", "contextlib", "importlib")
    return not module.startswith(libraries) and frame.f_code.co_filename != "<string>"  # the fork server's own


def _traceback(error: BaseException) -> str:
    """The traceback of a rank, from the learner's function on."""
    told = traceback.TracebackException.from_exception(error)  # with its causes
    told.stack = traceback.StackSummary.from_list([frame for frame in told.stack if frame.name != "_rank_main"])
    return "".join(told.format())


def _run_as_launched(function: Callable, world_size: int, args: tuple, timeout: float, backend: str | None) -> list:
    """Under torchrun: be the rank that the launcher made this process, and gather what all of them return."""
    import torch.distributed as dist

    launched = int(os.environ["WORLD_SIZE"])
    if launched != world_size:
        raise ValueError(f"this run wants {world_size} ranks, but torchrun started {launched}")
    rank = int(os.environ["RANK"])
    if not dist.is_initialized():
        local = int(os.environ.get("LOCAL_WORLD_SIZE", launched))
        _join_group(rank, launched, backend or default_backend(local), "env://", timeout)
        atexit.register(dist.destroy_process_group)
    result = function(rank, launched, *args)
    results = [None] * launched
    dist.all_gather_object(results, result)
    return results
