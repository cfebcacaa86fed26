"""The store in which the ranks of one machine leave their addresses: a file that needs no lock.

torch's own `FileStore` locks its file. The grader's sandbox refuses locks, because sandboxes could talk through them.
Here each change is a line, appended by a single write, and the kernel doesn't mix two writes. The store's contents
follow from its lines, in their order, so all ranks agree on them.
"""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

POLL_SECONDS = 0.001
CLOSED = "no new group can be made here, and there is no store: use the groups that the ranks have"


class LogStore(dist.Store):
    """A store in the file at `path`, which every rank opens. A `wait` without a timeout of its own takes `timeout`."""

    def __init__(self, path: str, timeout: timedelta):
        super().__init__()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._sums: dict[str, int] = {}  # what each `add` made of its number, by the number's name in the file
        self._read, self._adds = 0, 0

    def set(self, key: str, value: bytes | str) -> None:
        """Bind `key` to `value`."""
        self._append(key, set=(value.encode() if isinstance(value, str) else value).hex())

    def get(self, key: str) -> bytes:
        """Return the value of `key`, once it has one."""
        self.wait([key])
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """Add to the number that `key` is bound to, 0 at first; return the sum."""
        with self._lock:
            self._adds += 1
            name = f"{os.getpid()} {id(self)} {self._adds}"
        self._append(key, add=amount, name=name)
        self._catch_up()
        return self._sums.pop(name)

    def check(self, keys: list[str]) -> bool:
        """Return whether all `keys` are bound."""
        self._catch_up()
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all `keys` are bound; raise `DistStoreError` if that takes longer than `timeout`."""
        deadline = time.monotonic() + (timeout or self._timeout).total_seconds()
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise dist.DistStoreError(f"no rank has set all of {', '.join(keys)} in time")
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """Close the file: from now on every change and every read raises `RuntimeError`."""
        with self._lock:
            os.close(self._file)
            self._file = -1

    def _append(self, key: str, **change: Any) -> None:
        self._refuse_if_closed()
        line = json.dumps({"key": key} | change).encode() + b"\n"
        if os.write(self._file, line) < len(line):
            raise OSError(f"no space left for the ranks' store: {key}")

    def _catch_up(self) -> None:
        """Read the lines that are new, up to the last complete one."""
        with self._lock:
            self._refuse_if_closed()
            if os.fstat(self._file).st_size == self._read:
                return
            new = os.pread(self._file, os.fstat(self._file).st_size - self._read, self._read)
            lines = new[: new.rfind(b"\n") + 1]
            self._read += len(lines)
            for line in lines.splitlines():
                self._apply(**json.loads(line))

    def _refuse_if_closed(self) -> None:
        if self._file < 0:
            raise RuntimeError(CLOSED)

    def _apply(self, key: str, set: str = "", add: int | None = None, name: str = "") -> None:
        if add is None:
            self._values[key] = bytes.fromhex(set)
            return
        total = int(self._values.get(key, b"0")) + add
        self._values[key] = str(total).encode()
        if name.startswith(f"{os.getpid()} {id(self)} "):
            self._sums[name] = total
