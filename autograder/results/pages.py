"""Processes that render feedback pages. A page takes as long as everything else that is written for a submission."""

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

_make: Callable | None = None


class Pages:
    """A pool of processes that call `make`. It forks at once, so create it before other threads. Use it in `with`."""

    def __init__(self, make: Callable, processes: int):
        gc.collect()
        gc.freeze()  # keep the collector from touching, and so copying, the memory that forks share
        context = multiprocessing.get_context("fork")
        self.pool = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(make,))
        self.pool.submit(int).result()

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *_: Any) -> None:
        self.pool.shutdown(cancel_futures=True)

    def begin(self, *args: Any) -> Future:
        """Call `make` with these arguments in one of the processes; return the future with its result or exception."""
        return self.pool.submit(_made, *args)


def _begin(make: Callable) -> None:
    global _make
    _make = make
    with contextlib.suppress(AttributeError):  # Linux only; an orphan would keep the lock on the course's folder
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _made(*args: Any) -> Any:
    assert _make is not None  # `_begin` set it
    return _make(*args)
