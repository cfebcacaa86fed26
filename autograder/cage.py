"""The cage: short-lived processes, with limits, that read the texts which students wrote.

A parser can take hours or gigabytes for a few kB of hostile text, and in native code no signal handler interrupts it.
So this package never parses a student's text in a process that also does other students' work. It calls
`ask(work, item, seconds)` or `each(work, items, seconds)` instead. A child then calls `work(item)`: bytes in, bytes
out. The caller ends a child that takes too long, and the kernel refuses it more than `MEMORY` bytes. Either costs only
this item: the caller gets a `Failed` with a reason for the student, and the next item gets a new child.

One process per grader, the keeper, is a fresh interpreter. It imports the modules of `work` and forks the children.
So a child starts in milliseconds, and callers may be threads. The keeper itself never sees a text.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .inside import memory

# jsonschema, which nbformat imports, would take 2 s to compile the grammar of a format, IRIs, that nothing here checks.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

ROOT = Path(__file__).resolve().parents[1]
MEMORY = 512 * 2**20  # bytes that a child may take, beyond the keeper's
MOST_ANSWER = 64 * 2**20  # bytes in the answer to one item
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in Linux's prctl.h
STARTING = 120.0  # seconds for the keeper to import a module, on a busy machine
KEEPER = "import sys; from autograder.cage import keep; keep(int(sys.argv[1]))"
FRAME = struct.Struct("<cQ")  # the answer's kind, and how many bytes follow
DONE, REFUSED = b"+", b"-"

Work = Callable[[bytes], bytes]


class Failed(Exception):
    """Why a text can't be read, in words for its student that follow "it" or stand alone. Work may raise it."""


class Broken(Exception):
    """The cage doesn't start. This is the grader's own fault, not a student's."""


@dataclass
class Budget:
    """The seconds that are left for items that share them. `spent`: why an item fails when none are left."""

    seconds: float
    spent: str


class Share(NamedTuple):
    """The time of one item: `own` seconds, and beyond these what is left of a budget."""

    budget: Budget
    own: float

    @property
    def limit(self) -> float:
        """The seconds that the item may take now."""
        return self.own + self.budget.seconds

    def take(self, seconds: float) -> None:
        """Take from the budget what an item has used beyond its own seconds."""
        self.budget.seconds -= min(max(0.0, seconds - self.own), self.budget.seconds)


UNSHARED = Share(Budget(math.inf, ""), 0.0)


def ask(work: Work, item: bytes, seconds: float) -> bytes:
    """Return `work(item)`, computed in a child. Raise Failed if it fails or takes longer than `seconds`."""
    (answer,) = each(work, [item], seconds)
    if isinstance(answer, Failed):
        raise answer
    return answer


def each(
    work: Work,
    items: Sequence[bytes],
    seconds: float,
    total: float = math.inf,
    shares: Sequence[Share] | None = None,
) -> Generator[bytes | Failed, None, None]:
    """Yield `work(item)` for each item in order, or why it failed. One child computes them until one ends it.

    `work`: a function of a module, which the children import. `seconds`: the limit of one item. `total`: the seconds
    for all of them; the items after that fail. `shares`: one for each item, if some items share a budget; an item
    fails if it has no time of its own and the budget is spent. Raises Broken if the cage doesn't start.
    """
    ends = time.monotonic() + total
    left = deque(zip(items, shares or [UNSHARED] * len(items), strict=True))
    while left:
        _, share = left[0]
        if time.monotonic() >= ends or share.limit <= 0:
            in_all = f"there was no time left for it: all together may take {total:g} seconds"
            yield Failed(in_all if share.limit > 0 else share.budget.spent)
            left.popleft()
            continue
        due = [item for item, share in left if share.limit > 0]
        with Child(work, due, min(seconds * len(due), total)) as child:
            while left and child.lives and left[0][1].limit > 0:
                _, share = left.popleft()
                begun, limit = time.monotonic(), min(seconds, share.limit)
                answer = child.answer(limit, ends, share.budget.spent if limit < seconds else "")
                share.take(time.monotonic() - begun)
                yield answer


def warm(*modules: str) -> None:
    """Let the keeper import these modules, without waiting for it."""
    for name in modules:
        _called(f"{name}:", None)


class Child:
    """A child that works through a list of items. `lives`: whether it can answer more. Use it in a `with` statement."""

    def __init__(self, work: Work, items: Sequence[bytes], seconds: float):
        name = f"{work.__module__}:{work.__qualname__}"
        self.lives = True
        for _ in range(2):  # a keeper that was killed meanwhile is replaced once
            self.connection, there = socket.socketpair()
            with there:
                _called(name, there)
            self.connection.settimeout(STARTING)
            with suppress(OSError):
                _, descriptors, _, _ = socket.recv_fds(self.connection, 1, 1)
                if descriptors:
                    self.process = descriptors[0]
                    break
            self.connection.close()
        else:
            raise Broken("the process that reads students' texts doesn't start; its error is above")
        with suppress(OSError):  # then it has ended, and `answer` says so
            self.connection.sendall(struct.pack("<QQ", math.ceil(seconds), len(items)))
            for item in items:
                self.connection.sendall(struct.pack("<Q", len(item)))
                self.connection.sendall(item)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)
        os.close(self.process)
        self.connection.close()

    def answer(self, seconds: float, ends: float, why: str = "") -> bytes | Failed:
        """Return the next answer, within so many seconds and before the moment `ends`, or why there is none.

        `why`: the reason if it has fewer seconds than other items.
        """
        deadline = min(time.monotonic() + seconds, ends)
        try:
            kind, size = FRAME.unpack(_received(self.connection, FRAME.size, deadline))
            if size > MOST_ANSWER:
                self.lives = False
                return Failed(f"it becomes larger than {MOST_ANSWER // 2**20} MiB")
            content = _received(self.connection, size, deadline)
        except TimeoutError:
            self.lives = False
            return Failed(f"it takes longer than {round(seconds, 2):g} seconds to read{why and f', and {why}'}")
        except OSError:
            self.lives = False
            return Failed(f"it takes more than {MEMORY // 2**20} MiB of memory to read, or crashes what reads it")
        return content if kind == DONE else Failed(content.decode("utf-8", "replace")[:500])


def _received(connection: socket.socket, size: int, deadline: float = math.inf) -> bytes:
    """Return so many bytes. Raise TimeoutError at the deadline, and ConnectionError if the other side ends before."""
    content = bytearray()
    while len(content) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(None if left == math.inf else left)
        part = connection.recv(min(size - len(content), 2**20))
        if not part:
            raise ConnectionError("the other side has ended")
        content += part
    return bytes(content)


# The keeper's caller. A message is atomic, so threads and forks of this process may share the socket.

_starting = threading.Lock()
_control: socket.socket | None = None


def _called(name: str, connection: socket.socket | None) -> None:
    """Send the keeper a name and a connection; start it first if there is none. Raise Broken if it doesn't start."""
    global _control
    with _starting:
        for _ in range(2):
            try:
                if _control is None:
                    _control = _started()
                socket.send_fds(_control, [name.encode()], [connection.fileno()] if connection else [])
                return
            except OSError:  # it was killed
                _control = None
    raise Broken("the process that reads students' texts doesn't start; its error is above")


def _started() -> socket.socket:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with there:
        subprocess.Popen(
            [sys.executable, "-P", "-c", KEEPER, str(there.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[there.fileno()],
            cwd="/",
            env=os.environ | {"PYTHONPATH": paths},
            start_new_session=True,  # an interrupt at the terminal is not for it; it ends when its callers have ended
        ).returncode = 0  # nobody waits for it
    return here


# The keeper, and its children


def keep(control_fd: int) -> None:
    """Fork a child for every connection that arrives on the control socket, until all callers have ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    with socket.socket(fileno=control_fd) as control:
        while True:
            name, descriptors, _, _ = socket.recv_fds(control, 1000, 1)
            if not name:
                return
            module, _, function = name.decode().partition(":")
            if module not in sys.modules:
                with memory.settled():
                    importlib.import_module(module)
            work = sys.modules[module]
            for descriptor in descriptors:
                with socket.socket(fileno=descriptor) as connection:
                    _fork(connection, control, getattr(work, function))


def _fork(connection: socket.socket, control: socket.socket, work: Work) -> None:
    """Fork a child, and send the caller a descriptor of its process, by which it can end it."""
    pid = os.fork()
    if pid == 0:
        try:
            control.close()
            _live(connection, work)
        finally:
            os._exit(0)
    with suppress(OSError):  # the caller has ended, and the child then does, too
        process = os.pidfd_open(pid)
        try:
            socket.send_fds(connection, [b"."], [process])
        finally:
            os.close(process)


def _live(connection: socket.socket, work: Work) -> None:
    """Answer a caller's items, one after the other."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)  # what native code says when it aborts is not for the grader's terminal
    seconds, count = struct.unpack("<QQ", _received(connection, 16))
    items = [_received(connection, *struct.unpack("<Q", _received(connection, 8))) for _ in range(count)]
    _limit(seconds)
    for number, item in enumerate(items):
        items[number] = b""
        kind, answer = _worked(work, item)
        connection.sendall(FRAME.pack(kind, len(answer)))
        connection.sendall(answer)


def _limit(seconds: int) -> None:
    """Limit this process's memory, and its processor time in case that its caller is killed; it writes no file."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + MEMORY
    for kind, most in [
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds + 1),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 1),  # see `inside.warm`
    ]:
        _, hard = resource.getrlimit(kind)  # which a process may not raise
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def _worked(work: Work, item: bytes) -> tuple[bytes, bytes]:
    try:
        return DONE, work(item)
    except Failed as reason:
        return REFUSED, str(reason).encode("utf-8", "replace")
    except MemoryError:
        return REFUSED, f"it takes more than {MEMORY // 2**20} MiB of memory to read".encode()
    except RecursionError:
        return REFUSED, b"it is nested too deeply"
    except Exception as error:
        return REFUSED, f"it can't be read ({type(error).__name__})".encode()
