"""Ranks in a sandbox: multiprocessing's fork server, forked from a process that has imported torch already.

`collectives.ranks` takes its ranks from multiprocessing's fork server, which is otherwise a new Python that imports
torch, for 1.1 s and more. Here it is a fork of the warm process, taken before a student's code has run: torch's
autograd starts threads, and a fork with threads hangs. It lives in the sandbox, under all its limits.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.forkserver
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable


def prepare(modules: Iterable[str]) -> None:
    """Tell `collectives.ranks`, if it is imported, that `modules` are: `preload` then need not begin a new server."""
    if ranks := sys.modules.get("collectives.ranks.process"):
        ranks.preloaded.extend(name for name in modules if name not in ranks.preloaded)


def adopt(folder: str, *private: socket.socket) -> Callable[[], None] | None:
    """Fork the server now, and have multiprocessing take it for the one that it would start by itself.

    `folder`: for its socket. `private`: sockets that the server, and so every rank, must not have. Returns None; but in
    the server what it has to do, for its caller to return first: `collectives.ranks` tells where a rank is by what is
    on its stack.
    """
    server = multiprocessing.forkserver._forkserver
    with socket.socket(socket.AF_UNIX) as listener:
        address = os.path.join(folder, "socket")
        listener.bind(address)
        listener.listen()
        watched, alive = os.pipe()  # closes when nobody is left who might want a rank
        pid = os.fork()
        if pid == 0:
            os.close(alive)
            for one in private:
                one.close()
            return functools.partial(multiprocessing.forkserver.main, listener.detach(), watched, preload=None)
        os.close(watched)
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, alive, pid
    return None


def end() -> None:
    """Kill the server that `adopt` made: to end by itself would take it longer than most notebooks take."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGKILL)
