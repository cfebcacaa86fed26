"""The count of a sandbox's memory and processes, all together, from outside, and its share of the processors.

The kernel counts them in control groups if the user who grades may make some: usually root, or a user with a delegated
group. Such a group also gets one share of the processors. Without it, the kernel gives each session a share, and a
submission may start sixty sessions. A process of its own, `Watch`, looks at all of that twenty times a second. Where
there are no groups, it adds up each process's memory and the scratch files.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LOOK_SECONDS = 0.05  # between two looks
STOP_SECONDS = 10.0  # for the process that looks to end
READY = "."  # its first word
# The process imports this file alone: the package around it takes longer.
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); import watch; watch.main(sys.argv[2])"
# What the kernel keeps for a sandbox, and no control group counts or not every machine has one. Ranks list the
# network's interfaces when they start, which takes a socket and some KiB for a moment.
MOST_QUEUED = 32 * 2**20  # bytes that AF_NETLINK sockets have received and nobody has read
MOST_LINES = 2_000  # sockets of AF_NETLINK
# The buffers of all TCP and UDP sockets of the machine come from two stores. A sandbox may have its share of 400 MiB;
# eight ranks, each connected to each other one twice, have 112 sockets.
MOST_SOCKETS = 1_000
MOST_UNIX = 1_000  # Unix sockets, each of which keeps up to 208 KiB that only control groups count
CLOSING = (b"04", b"09", b"0B")  # states of TCP: FIN_WAIT1, LAST_ACK, CLOSING
LINE = 200  # bytes; at least as long as a line about one of them
_PREFIX = "submission-"
_numbers = itertools.count()


class Groups:
    """The control groups of one sandbox, under version 1 (a tree for each controller) or version 2 (one tree)."""

    def __init__(self, memory: Path, pids: Path, *others: Path):
        self.memory, self.pids = memory, pids
        self.folders = list(dict.fromkeys((memory, pids, *others)))

    @classmethod
    def make(cls, pid: int, memory: int, processes: int) -> Groups | None:
        """Return new groups with process `pid` and all that it will start; None if this process may not make any.

        The limits are `memory` bytes and `processes` tasks.
        """
        parents = _parents()
        if parents is None:
            return None
        name = f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
        groups = cls(*(parent / name for parent in parents))
        try:
            for folder in groups.folders:
                folder.mkdir()
            if groups.memory == groups.pids:
                settings = {"memory.max": memory, "memory.swap.max": 0}
            else:
                settings = {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
                settings["memory.kmem.tcp.limit_in_bytes"] = memory  # version 1 counts sockets' buffers apart
            first, *others = settings
            (groups.memory / first).write_text(str(memory))
            for name in others:
                with contextlib.suppress(OSError):  # a kernel that counts neither swap nor buffers has no such file
                    (groups.memory / name).write_text(str(settings[name]))
            (groups.pids / "pids.max").write_text(str(processes))
            for folder in groups.folders:
                (folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            groups.remove()
            return None
        return groups

    def exceeded(self) -> str | None:
        """Return "memory" or "processes" if the kernel refused one, else None."""
        events = self.memory / ("memory.events" if self.memory == self.pids else "memory.oom_control")
        if _count(events, "oom_kill"):
            return "memory"
        return "processes" if _count(self.pids / "pids.events", "max") else None

    def remove(self) -> None:
        """Remove the groups after their last process has ended; try for 0.5 s each."""
        for folder in self.folders:
            for _ in range(100):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # the group is still busy for a moment after its last process was reaped
                    time.sleep(0.005)
                else:
                    break


def _count(file: Path, name: str) -> int:
    with contextlib.suppress(OSError):
        match = re.search(rf"^{name} (\d+)$", file.read_text(), re.MULTILINE)
        return int(match[1]) if match else 0
    return 0


@functools.cache
def _parents() -> tuple[Path, ...] | None:
    """Return the groups below which this process may make others; None without those for memory and processes.

    They are for memory, for processes and, where there is one of version 1, for processors. Version 2 has one for all.
    """
    own = _own_groups()
    parents = {name: usable for name in ("memory", "pids", "cpu") if name in own and (usable := _usable(own[name]))}
    if {"memory", "pids"} <= parents.keys():
        return tuple(parents.values())
    folder = next((folder for folder in _upwards(own.get("")) if _delegated(folder)), None)
    return (folder, folder) if folder else None


def _own_groups() -> dict[str, tuple[Path, Path]]:
    """Return {controller: (mount point of its tree, this process's group)}; the controller "" is version 2."""
    mounted = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, place = before.split()[3:5]
        kind, _, options = after.split()
        controllers = {"cgroup2": [""], "cgroup": options.split(",")}.get(kind, [])
        for controller in controllers:
            mounted[controller] = root, Path(place)
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for controller in names.split(","):
            if controller in mounted:
                root, point = mounted[controller]
                below = os.path.relpath(path, root) if path.startswith(root) else "."
                own[controller] = point, point / below
    return own


def _usable(place: tuple[Path, Path]) -> Path | None:
    """Return this process's own group if it is writable, else the topmost group if that is; else None."""
    point, own = place
    return next((folder for folder in (own, point) if os.access(folder, os.W_OK)), None)


def _upwards(place: tuple[Path, Path] | None) -> Iterator[Path]:
    if place:
        point, own = place
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(point))


def _delegated(folder: Path) -> bool:
    """Return whether version 2 groups made in `folder` count memory and processes, and this process may fill them."""
    with contextlib.suppress(OSError):
        passed_on = (folder / "cgroup.subtree_control").read_text().split()
        return {"memory", "pids"} <= set(passed_on) and os.access(folder / "cgroup.procs", os.W_OK)
    return False


def sweep(killed: int | None = None) -> list[Path]:
    """Remove groups that a killed grader, or only this one, left behind; return those that are still in use."""
    left = []
    for parent in set(_parents() or ()):
        for folder in parent.glob(f"{_PREFIX}{killed or '*'}-*"):
            owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
            if killed or not os.path.exists(f"/proc/{owner}"):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    continue  # another grader's sweep was faster
                except OSError:
                    left.append(folder)
    return left


class Count:
    """What a sandbox uses, against its limits, `memory` bytes and `processes` tasks. `init`: its process 1, by pid."""

    def __init__(self, init: int, memory: int, processes: int, groups: Groups | None):
        self.init, self.memory, self.processes, self.groups = init, memory, processes, groups

    def exceeded(self) -> str | None:
        """Return "memory" or "processes" if the sandbox exceeds that limit, else None."""
        return (self.groups.exceeded() if self.groups else self._exceeded()) or _hoards(self.init)

    def _exceeded(self) -> str | None:
        tree = list(_descendants(self.init))
        if len(tree) > 1 and sum(tasks for _, tasks in tree) >= self.processes:
            return "processes"
        scratch = _scratch(self.init)
        if scratch + sum(_at_most(pid) for pid, _ in tree) <= self.memory:
            return None  # this check costs 0.1 ms a process, and the exact one below some milliseconds
        return "memory" if scratch + sum(_share(pid) for pid, _ in tree) > self.memory else None


class Watch:
    """A process that looks at a sandbox every `LOOK_SECONDS` and ends it above a limit. `reason`: the limit, if any.

    It is no thread of the judge's process. That reads what the sandbox sends, and a long call in C stops all threads.

    `init`: the descriptor (a pidfd) of the sandbox's process 1.
    """

    def __init__(self, count: Count, init: int):
        self.count, self.init = count, init
        self.reason: str | None = None
        groups = count.groups and [str(count.groups.memory), str(count.groups.pids)]
        about = json.dumps([init, count.init, count.memory, count.processes, groups])
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", PROGRAM, str(Path(__file__).parent), about],
            stdin=subprocess.PIPE,  # reads as closed once this process has ended, or calls `stop`
            stdout=subprocess.PIPE,
            pass_fds=[init],
        )
        assert self.process.stdin and self.process.stdout  # pipes
        self._life, self._words = self.process.stdin, self.process.stdout

    def wait(self, seconds: float) -> bool:
        """Wait until it has looked once; return False if that takes over `seconds`, or if it doesn't start."""
        return self._heard(seconds, 1) == READY

    def look(self) -> None:
        """Set `reason` if the sandbox exceeds a limit or has exceeded one. End a sandbox that nobody watches."""
        word = None if self.reason or self._words.closed else self._heard(0)
        if word == "":
            kill(self.init)
        self.reason = self.reason or word or self.count.exceeded()

    def stop(self) -> None:
        """End the process; set `reason` if it ended the sandbox first."""
        self._life.close()
        word = self._heard(STOP_SECONDS) or ""
        self.reason = self.reason or word.removeprefix(READY) or None
        self.process.kill()
        self.process.wait()
        self._words.close()

    def _heard(self, seconds: float, most: int = 100) -> str | None:
        """Return what the process says within `seconds`, `most` characters at most: "" if it has ended, else None."""
        poll = select.poll()
        poll.register(self._words, select.POLLIN)
        return os.read(self._words.fileno(), most).decode() if poll.poll(1000 * seconds) else None


def main(about: str) -> None:
    """Watch, in a process of its own, until the sandbox has ended or the one that started this process hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the grader, which then hangs up
    init, pid, memory, processes, groups = json.loads(about)
    count = Count(pid, memory, processes, Groups(*map(Path, groups)) if groups else None)
    poll = select.poll()
    poll.register(init, select.POLLIN)
    poll.register(0, select.POLLIN)
    reason = count.exceeded()
    os.write(1, READY.encode())
    while not reason:
        if poll.poll(1000 * LOOK_SECONDS):
            return
        reason = count.exceeded()
    os.write(1, reason.encode())  # first, so that it is there when the sandbox is found dead
    kill(init)


def kill(init: int) -> None:
    """End the sandbox whose process 1 has this pidfd, if it hasn't ended."""
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(init, signal.SIGKILL)  # the kernel ends the namespace's other processes


def _hoards(init: int) -> str | None:
    """Return "memory" if a sandbox makes the kernel keep too much that no control group counts, else None."""
    sockets = _lines(f"/proc/{init}/net/netlink")
    queued = sum(int(line.split()[4]) for line in sockets[1:] if len(line.split()) > 4)
    unix = len(_lines(f"/proc/{init}/net/unix"))
    hoards = queued > MOST_QUEUED or len(sockets) > MOST_LINES or _connected(init) > MOST_SOCKETS or unix > MOST_UNIX
    return "memory" if hoards else None


def _connected(init: int) -> int:
    """Return how many sockets of TCP and UDP a sandbox has, those included that nobody has accepted yet."""
    lines = [line.split() for name in ("sockstat", "sockstat6") for line in _lines(f"/proc/{init}/net/{name}")]
    return sum(int(line[2]) for line in lines if line[0].startswith((b"TCP", b"UDP")))


def are_closing(init: int) -> bool:
    """Return whether a sandbox has TCP connections that are closing: their ends still send, without any process."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in _lines(f"/proc/{init}/net/{name}")]
    return any(len(line) > 3 and line[3] in CLOSING for line in lines)


def _lines(file: str) -> list[bytes]:
    """Return the lines of a file in /proc, of a long one only the first ones; none if it can't be read."""
    with contextlib.suppress(OSError), open(file, "rb") as opened:
        return opened.read(LINE * MOST_LINES).splitlines()
    return []


def _descendants(pid: int) -> Iterator[tuple[int, int]]:
    """Yield (pid, tasks) of a process and of all its descendants."""
    children = []
    with contextlib.suppress(OSError):
        tasks = os.listdir(f"/proc/{pid}/task")
        for task in tasks:
            with contextlib.suppress(OSError):
                children += Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        yield pid, len(tasks)
    for child in children:
        yield from _descendants(int(child))


def _at_most(pid: int) -> int:
    """Return an upper bound on a process's memory in bytes: it includes what the process shares with its parent."""
    with contextlib.suppress(OSError):
        kinds = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return 1024 * sum(map(int, kinds))
    return 0


def _share(pid: int) -> int:
    """Return a process's memory in bytes, with its proportional share of what several processes share."""
    with contextlib.suppress(OSError):
        kinds = re.findall(
            r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE
        )
        return 1024 * sum(map(int, kinds))
    return 0


def _scratch(init: int) -> int:
    """Return the bytes in a sandbox's scratch files, deleted ones that are still open included."""
    with contextlib.suppress(OSError):
        files = os.statvfs(f"/proc/{init}/root/tmp")
        return (files.f_blocks - files.f_bfree) * files.f_frsize
    return 0


def members(namespace: str) -> list[int]:
    """Return the pids, as seen from here, of the processes in a pid namespace such as "pid:[4026532281]"."""
    pids = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == namespace:
                pids.append(int(name))
    return pids
