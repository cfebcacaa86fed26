"""What libraries lock files with in a sandbox, where the kernel's locks are refused: see `sandbox.seccomp`.

Both replacements are the libraries' own, and make a file or a folder beside the one to lock. They exclude one another
in the processes of a sandbox, as locks do. A process that is killed leaves its lock behind.
"""

from __future__ import annotations

import contextlib
import ctypes


def replace() -> None:
    """Let filelock, which torch compiles under, and SQLite lock without the kernel. Call it before torch is imported.

    It reaches this process and its forks. In another program, filelock falls back by itself, and SQLite reports
    "disk I/O error" unless its database is opened with "nolock=1" or "vfs=unix-dotfile".
    """
    with contextlib.suppress(ImportError):
        import filelock

        filelock.FileLock = filelock.SoftFileLock  # type: ignore[misc]
    with contextlib.suppress(ImportError, AttributeError, OSError):  # a Python without SQLite, or with one of its own
        import _sqlite3

        library = ctypes.PyDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = ctypes.c_void_p
        if by_folder := library.sqlite3_vfs_find(b"unix-dotfile"):
            library.sqlite3_vfs_register(ctypes.c_void_p(by_folder), 1)  # 1: the default
