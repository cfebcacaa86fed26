"""Processes that render feedback pages. A page takes as long as everything else that is written for a submission.

A pool's processes don't render: each has a child for that. It kills the child if a page takes too long, and starts
another for the next page, so no page costs the class its pool.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG in Linux's prctl.h
MOST_SECONDS = 120.0  # for one page; an honest one takes a second
_FORK = multiprocessing.get_context("fork")

_make: Callable | None = None
_child: Child | None = None


class NoPage(Exception):
    """A page takes too long, or ends the process that renders it."""


class Pages:
    """A pool of processes that call `make`. It forks at once, so create it before other threads. Use it in `with`."""

    def __init__(self, make: Callable, processes: int):
        gc.collect()
        gc.freeze()  # keep the collector from touching, and so copying, the memory that forks share
        self.pool = ProcessPoolExecutor(processes, _FORK, initializer=_begin, initargs=(make,))
        self.pool.submit(int).result()

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *_: Any) -> None:
        self.pool.shutdown(cancel_futures=True)

    def begin(self, *args: Any) -> Future:
        """Call `make` with these arguments in one of the processes; return the future with its result or exception.

        The exception is `NoPage` if it takes longer than `MOST_SECONDS`, or if its process dies.
        """
        return self.pool.submit(_made, MOST_SECONDS, *args)


class Child:
    """A process that calls `make`, as often as it is asked. `connection`: (result, None) or (None, error) for each."""

    def __init__(self) -> None:
        self.connection, there = _FORK.Pipe()
        self.process = _FORK.Process(target=_answer, args=(there, self.connection), daemon=True)
        self.process.start()
        there.close()

    def asked(self, args: tuple, seconds: float) -> tuple[Any, Exception | None]:
        """Return what came of one call. Raise NoPage if nothing did."""
        try:
            self.connection.send(args)
            if self.connection.poll(seconds):
                return self.connection.recv()
        except (EOFError, OSError):
            raise NoPage("this page ends the process that renders it") from None
        raise NoPage(f"this page takes longer than {seconds:g} seconds to render")

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _begin(make: Callable) -> None:
    global _make
    _make = make
    _end_with_parent()


def _end_with_parent() -> None:
    with contextlib.suppress(AttributeError):  # Linux only; an orphan would keep the lock on the course's folder
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _made(seconds: float, *args: Any) -> Any:
    """In a process of the pool: let its child call `make`."""
    global _child
    _child = _child or Child()
    try:
        result, error = _child.asked(args, seconds)
    except NoPage:
        _child.end()
        _child = None
        raise
    if error is not None:
        raise error
    return result


def _answer(connection: Any, other: Any) -> None:
    """In the child: call `make` until the `other` end of the connection is closed."""
    other.close()
    _end_with_parent()
    assert _make is not None  # `_begin` set it
    with contextlib.suppress(EOFError):
        while True:
            args = connection.recv()
            result, failed = None, None
            try:
                result = _make(*args)
            except Exception as error:
                failed = error
            connection.send((result, failed))
