"""The nursery: the process that forks the ranks of graded runs, for the judge alone.

It is forked before the student's code runs, and so has none of it. The main process, which runs that code, can neither
talk to it nor read its memory. Each rank is a fork of it with a line of its own to the judge, over which it gets its
task: the check's function, this rank's own arguments, and the student's functions as the main process pickled them.
`judging.ranks` is the other end.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import resource
import select
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import cloudpickle

from ..wire.pipe import Pipe
from ..wire.plain import BadMessage, Decoder, Encoder, NotPlain, read_back, trusted
from .fork_server import Continuation, reseed

BORN, UNBORN = b"+", b"-"  # the judge reads one; an error's number follows the second
# Bytes of a report's JSON. Reading them takes the judge a third of a second; meanwhile its capture isn't read.
MAX_REPORT = 4 * 2**20
MAX_WORDS = 20_000  # characters of a rank's words: the end of its traceback, or where it waits


@dataclass(frozen=True)
class Bounds:
    """What a rank loses before it reads anything of the student's; the caller knows how.

    `blind(sealed)`, before it has threads: if it is sealed, the sandbox's scratch. `narrow(runs)`: what the function
    that it is to run, by its full name, doesn't need. `seal(sealed)`: the calls that narrow a process further, and if
    it is sealed, all ways to others but messages.
    """

    blind: Callable[[bool], None]
    narrow: Callable[[str], None]
    seal: Callable[[bool], None]


def adopt(control: socket.socket, *private: socket.socket, bounds: Bounds) -> Continuation | None:
    """Fork the nursery now. Return None in this process, and in the nursery its continuation, for the caller to return.

    The caller is undumpable meanwhile: that makes the nursery's memory and files in /proc unreadable to all others.

    `control`: the socket over which the judge requests ranks; closed here. `private`: sockets for this process alone.
    """
    if os.fork() == 0:
        for connection in private:
            connection.close()
        return functools.partial(serve, control, bounds)
    control.close()
    return None


@dataclass
class _Rank:
    """A rank's process. `ended`: a pidfd. `life`: where the judge reads its exit code; hanging up there kills it."""

    pid: int
    ended: int
    life: socket.socket

    def close(self) -> None:
        os.close(self.ended)
        self.life.close()


def serve(control: socket.socket, bounds: Bounds) -> None:
    """Fork a rank for each request and report how it ends, until the judge hangs up. Ranks, too, never return.

    A request comes with five descriptors: the rank's line, its `life`, see `_Rank`, the store of its run, and the files
    that it prints to.
    """
    ranks: dict[int, _Rank] = {}  # each by both of its descriptors
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    while True:
        descriptor, _ = waiting.poll()[0]
        if descriptor == control.fileno():
            _, descriptors, _, _ = socket.recv_fds(control, 1, 5)
            if len(descriptors) != 5:
                os._exit(0)
            pipe, life = (socket.socket(fileno=each) for each in descriptors[:2])
            others = {rank.pid: rank for rank in ranks.values()}
            with contextlib.ExitStack() as opened:
                files = [opened.enter_context(os.fdopen(each, "rb")) for each in descriptors[2:]]
                rank = _born(pipe, life, files, [control, *others.values()], bounds)
            for each in (rank.ended, rank.life.fileno()) if rank else ():
                assert rank is not None
                ranks[each] = rank
                waiting.register(each, select.POLLIN)
            continue
        rank = ranks.pop(descriptor)
        waiting.unregister(descriptor)
        if descriptor != rank.ended:
            os.kill(rank.pid, signal.SIGKILL)
            continue
        _, status = os.waitpid(rank.pid, 0)
        with contextlib.suppress(OSError):
            rank.life.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        if ranks.pop(rank.life.fileno(), None):
            waiting.unregister(rank.life)
        rank.close()


def _born(
    pipe: socket.socket, life: socket.socket, files: Sequence[BinaryIO], private: list[Any], bounds: Bounds
) -> _Rank | None:
    """Fork a rank.

    Return None, and tell the judge the error's number, if no process or descriptor is left for it. Then no process of
    it is left either.

    `files`: the store, and those that it prints to. `private`: what the rank must not have.
    """
    pid = rank = None
    try:
        with pipe:
            pid = os.fork()
            if pid == 0:
                try:
                    for each in (life, *private):
                        each.close()
                    store, *printed = files
                    _redirect(*printed)
                    reseed()
                    _rank_main(Pipe(pipe), store, bounds)
                finally:
                    os._exit(1)  # whatever happens, it is no second nursery
            rank = _Rank(pid, os.pidfd_open(pid), life)
            life.sendall(BORN)
            return rank
    except OSError as error:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if rank is not None:
            os.close(rank.ended)
        with life, contextlib.suppress(OSError):
            life.sendall(UNBORN + str(error.errno).encode())
        return None


def _redirect(*printed: Any) -> None:
    """Make files this process's stdout and stderr, line-buffered, so that output survives if it dies.

    Its stdin is a /dev/null of its own: what is set on a descriptor that processes share can be read by all of them.
    """
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for descriptor, (name, file) in enumerate(zip(("stdout", "stderr"), printed, strict=True), start=1):
        os.dup2(file.fileno(), descriptor)  # the descriptor, because C++ writes to it when it aborts
        file.close()
        setattr(sys, name, os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", closefd=False))


# A rank. `collectives.ranks` leaves a function of this name out of tracebacks.


def _rank_main(pipe: Pipe, store: BinaryIO, bounds: Bounds) -> None:
    """Run a rank: join its groups, call the function, send its result, and wait for the judge to hang up.

    The student's code comes in only after the rank has named its connections, so that name can be trusted, and after
    what its function doesn't need is gone.
    """
    from collectives.measure.wire import GroupsUsed
    from collectives.ranks.process import answer, ask_with, close_stores, join_group, make_groups, traceback_of, unpack

    task = Decoder().read(pipe.recv_bytes())
    bounds.blind(task["sealed"])
    rank, world_size, resolve = task["rank"], task["world_size"], trusted(task["packages"], {})
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # hides what gloo logs whenever we end a peer
    lock = threading.Lock()

    def send(kind: str, **known: Any) -> None:
        try:
            message = Encoder(resolve).message({"kind": kind, **known})
            read_back(message, Decoder(resolve, longest=MAX_REPORT))
        except NotPlain as error:
            raise NotPlain(f"this rank {kind} {error}") from None
        with lock, contextlib.suppress(OSError):  # the judge hangs up when the run ends
            pipe.send_bytes(message)

    try:
        threading.Thread(target=answer, args=(pipe, send, threading.get_ident(), world_size), daemon=True).start()
        if task["serves"]:
            ask_with(send, lambda message: Decoder(resolve, find=importlib.import_module).read(message))
        with store:
            join_group(rank, world_size, task["backend"], f"file:///proc/self/fd/{store.fileno()}", task["timeout"])
        make_groups(task["groups"])
        send("begun", ends=list(_connected()))
        bounds.narrow(task["runs"])
        if task["sealed"]:
            close_stores()
        bounds.seal(task["sealed"])
        used = GroupsUsed()
        _, objects = unpack(task["packed"])
        function, args = Decoder(resolve, _given(objects), importlib.import_module).read(task["call"])
        if used.close():
            raise RuntimeError("this rank has used a group before it was asked to: define functions, and send in them")
        send("returned", value=function(rank, world_size, *args))
    except BaseException as error:
        peers = getattr(error, "peers", [])  # an ExecutionError lists the peers it waited for
        send("failed", words=traceback_of(error)[-MAX_WORDS:], peer=next(iter(peers), None))
    threading.Event().wait()  # peers may still read what this rank sent; `answer` ends the process


def _given(objects: tuple) -> Callable[[list], Any]:
    """Return what reads the trees of a task that aren't plain data. `objects`: the student's."""

    def value(tree: list) -> Any:
        kind, *rest = tree
        if kind == "packed":
            return objects[rest[0]]
        if kind == "pickled":  # by the judge
            return cloudpickle.loads(bytes.fromhex(rest[0]))
        if kind == "import":
            module, name = rest
            return functools.reduce(getattr, name.split(".") if name else [], importlib.import_module(module))
        raise BadMessage(f"not a task ({kind})")

    return value


def _connected() -> Iterator[bytes]:
    """Yield the `ends` of each TCP connection of this process."""
    for descriptor in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    if connection.family != socket.AF_UNIX:
                        yield ends(connection)


def ends(connection: socket.socket) -> bytes:
    """Return what a packet of this connection has in its headers: both addresses, then both ports, its own first.

    Raise OSError if it isn't connected.
    """
    pair = connection.getsockname(), connection.getpeername()
    addresses = (socket.inet_pton(connection.family, address) for address, *_ in pair)
    return b"".join([*addresses, *(port.to_bytes(2, "big") for _, port, *_ in pair)])
