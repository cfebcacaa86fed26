"""Ranks in a sandbox: multiprocessing's fork server, forked from a process that has already imported torch.

When a student's own cell starts ranks, `collectives.ranks` takes them from multiprocessing's fork server. (Those of a
test come from the `nursery`.) Normally the server is a new Python, which imports torch for 1.1 s or more. Here it is a
fork of the warm process. We fork it before the student's code runs, because torch's autograd starts threads and a fork
with threads hangs. It runs in the sandbox, under all its limits.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.forkserver
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

# What a process does next. Functions return it up to the program's top level, which calls it with none of our frames on
# the stack: `collectives.ranks` reads a rank's stack to report what the rank is waiting for.
Continuation = Callable[[], None]


def reseed(seed: int | None = None) -> None:
    """Give this fork random numbers of its own: numpy's and torch's are otherwise the same in all forks.

    `seed`: up to 64 bits. Without one, the operating system gives each fork a new one, so that nobody can know another
    fork's numbers from this one's.
    """
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(None if seed is None else [seed >> 32, seed % 2**32])
    if torch := sys.modules.get("torch"):
        torch.seed() if seed is None else torch.manual_seed(seed)


def prepare(modules: Iterable[str]) -> None:
    """Mark `modules` as preloaded in `collectives.ranks`, if it is imported, so that it doesn't restart the server."""
    if ranks := sys.modules.get("collectives.ranks.process"):
        ranks.preloaded.extend(name for name in modules if name not in ranks.preloaded)


def adopt(folder: str, *private: socket.socket) -> Continuation | None:
    """Fork the server now, and make multiprocessing use it in place of one that it would start itself.

    Return None in this process, and in the server its continuation, for the caller to return.

    `folder`: for the server's socket. `private`: sockets that the server, and so every rank, must not have.
    """
    server: Any = multiprocessing.forkserver._forkserver  # whose attributes are private
    with socket.socket(socket.AF_UNIX) as listener:
        address = os.path.join(folder, "socket")
        listener.bind(address)
        listener.listen()
        watched, alive = os.pipe()  # reads as closed once no process is left that may start a rank
        pid = os.fork()
        if pid == 0:
            os.close(alive)
            for connection in private:
                connection.close()
            os.register_at_fork(after_in_child=reseed)  # in each rank
            return functools.partial(multiprocessing.forkserver.main, listener.detach(), watched, preload=())
        os.close(watched)
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, alive, pid
    return None


def end() -> None:
    """Kill the server that `adopt` forked: ending by itself takes it longer than most notebooks take to judge."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
