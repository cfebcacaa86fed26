"""Feedback pages, made by processes of their own: a page takes as long as all else that is written of a submission."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

PARENT_DEATH_SIGNAL = 1  # Linux's number, of prctl.h

_make: Callable | None = None


class Pages:
    """Processes that call `make`, forked at once: to be made before this process has other threads. To be closed."""

    def __init__(self, make: Callable, processes: int):
        gc.collect()
        gc.freeze()  # the collector would go through everything again, and copy the memory that forks share
        context = multiprocessing.get_context("fork")
        self.pool = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(make,))
        self.pool.submit(int).result()

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *_: Any) -> None:
        self.pool.shutdown(cancel_futures=True)

    def begin(self, *args: Any) -> Future:
        """Have `make` called with these arguments; what it returns or raises is the future's."""
        return self.pool.submit(_made, *args)


def _begin(make: Callable) -> None:
    global _make
    _make = make
    with contextlib.suppress(AttributeError):  # of Linux alone; the lock on the course's folder is held here, too
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _made(*args: Any) -> Any:
    return _make(*args)
