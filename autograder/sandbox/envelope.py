"""The sandbox in which submissions run: bubblewrap, namespaces and limits, all set up from outside.

A `Warm` is one envelope, made by bubblewrap, around a process that has imported numpy and the modules to preload.
`enter` forks that process, in 0.03 s, into a sandbox for one submission. The sandbox has namespaces and scratch files
of its own, no network but its own loopback, no privileges, and limits on time, memory, processes and files.

`warm` sets the sandbox up from inside, `seccomp` lists its system calls, `watch` counts its memory, and `prove` checks
that it contains.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..inside.warm import HOME, USER, USER_SECONDS
from . import seccomp
from .capture import Capture
from .watch import Count, Groups, Watch, are_closing, kill, sweep

PACKAGE = Path(__file__).resolve().parents[1]
INSIDE = ("__init__.py", "inside", "wire")  # the grader's files that a sandbox can read: the code that runs in it
START_SECONDS = 120.0  # for the warm process's imports, on a busy machine
ENTER_SECONDS = 30.0
SETTLE_SECONDS = 5.0  # for connections whose processes have ended to close, on a busy machine
LULL_SECONDS = 0.01  # without a packet on the loopback, for none to be on its way
HANG_UP_SECONDS = 2.0  # for a sandbox to end after its connection has; only its end says why
CREDENTIALS = struct.calcsize("3i")  # bytes of a sender's pid, user and group, as the kernel reports them
# The users that submissions run as when root grades, each as another: the kernel counts some things by user, such as
# descriptors on their way through sockets, and one submission could use up what another needs. They own nothing.
HOST_USERS = range(64744, 65000)
CLAIMS = Path("/run/autograder/users")  # where all graders of this machine claim users: see `warm._Users`

ENVIRONMENT = {
    "HOME": HOME,
    "USER": "student",
    "LOGNAME": "student",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
    "MPLBACKEND": "Agg",
    "PYTHONHASHSEED": "0",  # so that sets of names have the same order in every grading
    "OMP_NUM_THREADS": "1",  # submissions share the cores, and 64 threads would be a quarter of `processes`
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # gloo logs a line for every peer that is ended
}
_FILES = {  # made for /etc, because libraries read them
    "passwd": f"student:x:{USER}:{USER}::{HOME}:/bin/sh\n",
    "group": f"student:x:{USER}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_OF_SYSTEM = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "fonts")  # of the host's /etc
_SYSTEM = Path("/usr")
_SYSTEM_COVERED = ("/usr/src", "/usr/local/src", "/usr/local/share/nbgrader")  # see `_covered`
_DEVICES = ("null", "zero", "full", "random", "urandom")
_CAPABILITIES = (
    *("SYS_ADMIN", "NET_ADMIN", "NET_RAW", "SYS_RESOURCE"),
    *("SETUID", "SETGID", "SETPCAP", "SETFCAP"),
    *("CHOWN", "DAC_OVERRIDE"),
)

INSTALL = "on Debian or Ubuntu: apt-get install bubblewrap libseccomp2; `make grade` does it"
ALLOW = (
    "let users make namespaces: `sysctl -w kernel.unprivileged_userns_clone=1` (Debian), "
    "`kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu), `user.max_user_namespaces=10000` (Red Hat); "
    "a container needs `--privileged`, or `--cap-add SYS_ADMIN --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined`"
)


class CannotSandbox(Exception):
    """Submissions can't be contained here. The message says why, and what to install or change."""


@dataclass(frozen=True)
class Limits:
    """The resources that one submission may use. Sizes are in bytes.

    `cpu_seconds`: processor time of each process. Wall-clock time has no limit here: the caller closes the sandbox.
    `memory`: all its processes and scratch files together.
    `processes`: processes and threads together.
    `open_files`: open files of each process.
    `scratch`: /tmp, /dev/shm and its home together, and also each file alone.
    `stack`: the first thread of each process.
    """

    cpu_seconds: int = 300
    memory: int = 4 * 2**30
    processes: int = 256
    open_files: int = 1024
    scratch: int = 256 * 2**20
    stack: int = 8 * 2**20


class Warm:
    """The warm interpreter: one envelope with modules imported, which forks once for each submission.

    `preload`: modules to import. Submissions can read those outside Python's own folders, too.
    `entry`: the dotted name of a function of one argument, the sandbox's socket.
    `readable`: more files and folders that submissions may read, at the same paths as outside.
    `hidden`: files and folders that no submission may read, wherever they are, such as a course's.
    `wall`: a module that keeps answers out of sandboxes, see `judge.Settings.wall`.
    `baits`: files and folders that no canary may see, for `prove`.
    `address`: the path of the socket for `enter`, in a folder that only the user who started it can open.
    `pid`: the envelope's process 1, as seen from outside.

    Raise CannotSandbox if a program or module is missing, if submissions need to read what is hidden, or if the
    envelope can't be made.
    """

    def __init__(
        self,
        preload: Iterable[str] = ("numpy", "IPython"),
        *,
        entry: str = "autograder.inside.student.serve",
        readable: Iterable[str | os.PathLike] = (),
        hidden: Iterable[str | os.PathLike] = (),
        wall: str = "",
    ):
        self.modules = tuple(dict.fromkeys(preload))
        self.entry, self.wall = entry, wall
        self.readable = tuple(Path(path).resolve() for path in readable)
        self.hidden = tuple(Path(path).resolve() for path in hidden)
        sweep()
        self._folder = tempfile.TemporaryDirectory(prefix="sandbox-")  # mode 0700
        self.address = os.path.join(self._folder.name, "enter")
        self._life: int | None = None
        self._process: subprocess.Popen | None = None
        self._init: int | None = None
        self.pid = 0
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the envelope and every sandbox in it; return when all are gone."""
        if self._life is not None:
            os.close(self._life)
            self._life = None
        if self._init is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            _readable(self._init, ENTER_SECONDS)  # the envelope's process 1 ends last
            os.close(self._init)
            self._init = None
        if self._process is not None:
            self._process.kill()  # bubblewrap's process outside the envelope
            self._process.wait()
            self._process = None
        self._folder.cleanup()

    def _start(self) -> None:
        if not sys.platform.startswith("linux"):
            raise CannotSandbox("sandboxes need Linux's namespaces: grade on Linux, or in a Linux container")
        bubblewrap = shutil.which("bwrap")
        if bubblewrap is None:
            raise CannotSandbox(f"bubblewrap (the command `bwrap`) is missing: {INSTALL}")
        packages = _packages((*self.modules, self.entry, *([self.wall] if self.wall else [])))
        needed = [*_prefixes(), *_ours(), *map(Path, packages), *self.readable]
        self.baits = _baits(needed, self.hidden)
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(self.address)
            listener.listen(128)
            log = stack.enter_context(tempfile.TemporaryFile())
            files = stack.enter_context(contextlib.closing(_Descriptors()))
            # Each pair is (read end, write end). `block` holds bubblewrap up until its users are mapped.
            started, ready = files.pipe()
            life, self._life = os.pipe()
            files.add(life)
            mapped, block = files.pipe()
            info, informed = files.pipe()
            settings: dict[str, Any] = {
                "modules": self.modules,
                "entry": self.entry,
                "wall": self.wall,
                "filters": {who: base64.b64encode(each).decode() for who, each in _filters().items()},
                "users": len(HOST_USERS) if has_second_user() else 0,
                "claims": files.add(_claims()) if has_second_user() else None,
                "listener": listener.fileno(),
                "ready": ready,
                "life": life,
            }
            command = [
                bubblewrap,
                *_envelope(),
                *_system_files(files),
                *_mounts(needed, self.hidden),
                *("--userns-block-fd", str(mapped), "--info-fd", str(informed)),
                *("--remount-ro", "/"),
                *_python([os.path.dirname(package) for package in packages], files.file(json.dumps(settings))),
            ]
            inherited = [listener.fileno(), ready, life, mapped, informed, *files.contents]
            if settings["claims"] is not None:
                inherited.append(settings["claims"])
            self._process = _in_thread(command, log, inherited)
            for mine in (ready, life, informed, mapped):
                files.close_one(mine)
            self.pid = _child(info)
            if self.pid:
                self._init = os.pidfd_open(self.pid)
                _map_users(self.pid, bool(settings["users"]))
            with contextlib.suppress(BrokenPipeError):
                os.write(block, b"1")
            files.close_one(block)
            if not _readable(started, START_SECONDS):
                raise CannotSandbox(f"the warm interpreter was not ready within {START_SECONDS:g} s: try again")
            if os.read(started, 5) != b"ready":
                self._process.wait()
                log.seek(0)
                raise CannotSandbox(_why(log.read().decode(errors="replace")))


def enter(
    address: str, limits: Limits = Limits(), *, entry: str = "", ranks: bool = False, holding: Sequence[str] = ()
) -> Sandbox:
    """Return a sandbox for one submission, forked from the `Warm` at `address`. `entry`: in place of that one's entry.

    `ranks`: whether it gets a nursery, see `inside.nursery`. `holding`: what its wall, if it has one, is built for.

    Raise CannotSandbox if no warm interpreter answers, or if the sandbox can't be set up.
    """
    control = socket.socket(socket.AF_UNIX)
    mine, theirs = socket.socketpair()
    nursery, its = socket.socketpair() if ranks else (None, None)
    try:
        with theirs, its or contextlib.nullcontext():
            control.settimeout(ENTER_SECONDS)
            control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            control.connect(address)
            request = json.dumps(asdict(limits) | {"entry": entry, "holding": list(holding)}).encode()
            socket.send_fds(control, [request], [one.fileno() for one in (theirs, its) if one])
        return Sandbox(mine, control, limits, nursery)
    except BaseException as error:
        for one in (mine, control, nursery):
            if one:
                one.close()
        if isinstance(error, OSError):
            raise CannotSandbox(f"no warm interpreter answers at {address}: {error}") from error
        raise


class Sandbox:
    """One submission's sandbox. `socket`: the connection to its main process. `init`: the pid of its process 1.

    `user`: whom it alone runs as, by the envelope's numbers; 0 if it shares the user who grades. `nursery`: the
    connection to the process that forks its ranks, if it has one.
    """

    def __init__(
        self,
        connection: socket.socket,
        control: socket.socket,
        limits: Limits,
        nursery: socket.socket | None = None,
    ):
        self.socket, self.nursery = connection, nursery
        self._control = control
        self._heard = b""
        self._report: dict = {}
        self._wire: socket.socket | None = None
        self.user = 0
        self.init, self._init = self._hello()
        self._closed = False
        self._verdict: str | None = None
        self._groups = Groups.make(self.init, limits.memory, limits.processes)
        self._watch = Watch(Count(self.init, limits.memory, limits.processes, self._groups), self._init)
        try:
            control.sendall(b"1")
            self._listen(until="ready")
            if not self._watch.wait(ENTER_SECONDS):
                raise CannotSandbox(f"nobody watches a sandbox {ENTER_SECONDS:g} s after its start: try again")
        except BaseException:
            self.close()
            raise

    @property
    def counted_by(self) -> str:
        """How its memory and processes are counted: by the kernel's "control groups", or by "watching" from outside."""
        return "control groups" if self._groups else "watching"

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def loopback(self) -> int:
        """Return the bytes that its loopback device has moved so far, headers included, read from outside.

        Raise OSError if the sandbox has ended.
        """
        for line in Path(f"/proc/{self.init}/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == "lo":
                return int(counters.split()[0])
        raise OSError("the sandbox has no loopback device")

    def settle(self) -> None:
        """Wait until nothing is on its way that ended processes have sent.

        Their connections close one packet after the other, which on a busy machine takes a while. It waits for
        `SETTLE_SECONDS` at most: a process that still runs may keep its end of a connection from closing.
        """
        end, moved = time.monotonic() + SETTLE_SECONDS, self.loopback()
        while time.monotonic() < end:
            time.sleep(LULL_SECONDS)
            before, moved = moved, self.loopback()
            if moved == before and not are_closing(self.init):
                break

    def captured(self) -> Capture:
        """Return a context manager that captures all TCP data on its loopback."""
        assert self._wire is not None  # its init sent it before it was ready
        return Capture(self._wire)

    def ended(self) -> str | None:
        """Return why it ended: "memory", "processes", "cpu", "signal 11", "exit 3", "closed" or "killed".

        It is "a failure of its process 1" if that runs our code into an error. Return None while it runs. One that
        exceeded a limit may not be gone yet: the kernel needs a while to free what it took.
        """
        if self._verdict is None:
            hung_up = self._hung_up()
            gone = self._gone(HANG_UP_SECONDS if hung_up else 0)
            if hung_up and not gone:
                self._watch.look()
            if gone or self._watch.reason:
                self._verdict = self._cause()
        return self._verdict

    def is_spent(self) -> bool:
        """Return whether it has ended, or is about to end because it exceeded a limit."""
        self._watch.look()
        return self.ended() is not None

    def _hung_up(self) -> bool:
        """Return whether the other end of the connection is closed: its main process is ending, or has ended."""
        try:
            return _readable(self.socket.fileno(), 0) and not self.socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _cause(self) -> str:
        self._watch.look()  # count what happened since its last look
        if self._watch.reason:
            return self._watch.reason
        with contextlib.suppress(OSError, CannotSandbox):
            self._listen(until="ended")
        return self._report.get("ended", "a failure of its process 1" if "failed" in self._report else "killed")

    def close(self) -> None:
        """Kill every process in it; return when all are gone."""
        if self._closed:
            return
        self._closed = True
        self._watch.stop()
        self._verdict = self.ended() or self._watch.reason or "closed"
        kill(self._init)
        self._gone(ENTER_SECONDS)
        os.close(self._init)
        self.socket.close()
        self._control.close()
        for one in (self._wire, self.nursery):
            if one:
                one.close()
        if self._groups:
            self._groups.remove()

    def _gone(self, seconds: float) -> bool:
        return _readable(self._init, seconds)

    def _hello(self) -> tuple[int, int]:
        """Return the pid of the sandbox's init as seen from here, which the kernel attests, and a pidfd for it.

        Raise CannotSandbox if the warm interpreter refuses to make one.
        """
        message, notes, _, _ = self._control.recvmsg(4096, socket.CMSG_SPACE(CREDENTIALS))
        if not message:
            raise CannotSandbox("the warm interpreter hung up: it was closed or killed")
        report = json.loads(message)
        if "refused" in report:
            raise CannotSandbox(
                f"no sandbox became free within {USER_SECONDS:g} s: {report['refused']}, by this grader and others on "
                "this machine. Wait until they are done, or grade with fewer jobs"
            )
        self.user = report["user"]
        _, _, credentials = notes[0]
        pid, _, _ = struct.unpack("3i", credentials[:CREDENTIALS])
        return pid, os.pidfd_open(pid)

    def _listen(self, until: str) -> None:
        """Read its init's messages until one has the key `until`; raise CannotSandbox if set-up fails."""
        while until not in self._report:
            line, newline, rest = self._heard.partition(b"\n")
            if newline:
                self._heard = rest
                self._report |= json.loads(line)
                continue
            if "failed" in self._report:
                raise CannotSandbox(f"cannot set up a sandbox: {self._report['failed']}. {ALLOW}")
            more, notes, _, _ = self._control.recvmsg(4096, socket.CMSG_SPACE(CREDENTIALS) + socket.CMSG_SPACE(4))
            for _, kind, note in notes:
                if kind == socket.SCM_RIGHTS:
                    self._wire = socket.socket(fileno=int.from_bytes(note, sys.byteorder))
            if not more:
                raise CannotSandbox("cannot set up a sandbox: its init ended without a message")
            self._heard += more


def _readable(descriptor: int, seconds: float) -> bool:
    """Wait until a descriptor is readable or its other end is closed; return False if that takes over `seconds`."""
    poll = select.poll()  # unlike select, it accepts descriptors above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


class _Descriptors:
    """Descriptors to close at the end. `contents`: those of files that bubblewrap inherits and makes."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.contents: list[int] = []

    def add(self, descriptor: int) -> int:
        self.open.add(descriptor)
        return descriptor

    def pipe(self) -> tuple[int, int]:
        read, write = os.pipe()
        return self.add(read), self.add(write)

    def file(self, contents: str) -> str:
        """Return a descriptor to read `contents` from, as a command's argument."""
        read, write = self.pipe()
        os.write(write, contents.encode())  # fits in a pipe's buffer, so it doesn't block
        self.close_one(write)
        self.contents.append(read)
        return str(read)

    def close_one(self, descriptor: int) -> None:
        self.open.discard(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        for descriptor in list(self.open):
            self.close_one(descriptor)


def _envelope() -> list[str]:
    """Return bubblewrap's arguments for namespaces, the environment, and the writable folders that a sandbox covers."""
    words = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--uid", "0", "--gid", "0", "--die-with-parent", "--new-session", "--clearenv"]
    words += ["--cap-drop", "ALL"]
    for capability in _CAPABILITIES:  # to set up sandboxes, which give them all up
        words += ["--cap-add", f"CAP_{capability}"]
    path = ":".join(dict.fromkeys([os.path.join(sys.prefix, "bin"), "/usr/local/bin", "/usr/bin", "/bin"]))
    for name, value in (ENVIRONMENT | {"PATH": path}).items():
        words += ["--setenv", name, value]
    words += ["--proc", "/proc", "--tmpfs", "/dev"]
    for device in _DEVICES:
        words += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for link, target in {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        words += ["--symlink", f"/proc/self/{target}", f"/dev/{link}"]
    words += ["--tmpfs", "/dev/shm", "--remount-ro", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/home", "--dir", HOME]
    return [*words, "--chdir", HOME]


def _system_files(files: _Descriptors) -> list[str]:
    """Return bubblewrap's arguments for the system's programs and libraries, read-only, and what they read in /etc."""
    words = ["--ro-bind", str(_SYSTEM), str(_SYSTEM)]
    for top in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(top):
            words += ["--symlink", os.readlink(top), top]
        elif os.path.isdir(top):
            words += ["--ro-bind", top, top]
    words += _folders(Path("/etc"))
    for name in _OF_SYSTEM:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name, contents in _FILES.items():
        words += ["--perms", "0444", "--file", files.file(contents), f"/etc/{name}"]
    return words


def _folders(path: Path) -> list[str]:
    """Return bubblewrap's arguments for a folder and its parents, mode 0755 whatever their modes outside."""
    above = [folder for folder in (path, *path.parents) if folder != Path("/")]
    return [word for folder in reversed(above) for word in ("--perms", "0755", "--dir", str(folder))]


def _prefixes() -> list[Path]:
    """Return the folders of this Python: its virtual environment's, and those of the Python that made it."""
    places = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    interpreter = Path(sys.executable).resolve().parent.parent
    return list(dict.fromkeys([*map(Path, places), *(Path(place).resolve() for place in places), interpreter]))


def _covered() -> list[Path]:
    """Return folders of the system and of this Python that are nothing of theirs, but may be a course's.

    They are where a container's sources, nbgrader's exchange, and Jupyter's configuration are by default.
    """
    prefixes = (_SYSTEM, Path("/usr/local"), *_prefixes())
    return [*map(Path, _SYSTEM_COVERED), *(prefix / "etc" / "jupyter" for prefix in prefixes)]


def _is_shown(path: Path, shown: dict[Path, bool]) -> bool:
    """Return whether a path can be read where these folders are shown (True) or look empty (False)."""
    around = [folder for folder in shown if path.is_relative_to(folder)]
    return bool(around) and shown[max(around, key=lambda folder: len(folder.parts))]


def _mounts(needed: Iterable[Path], hidden: Iterable[Path]) -> list[str]:
    """Return bubblewrap's arguments for `needed`, each read-only at its own path, without what is `hidden` in them.

    Raise CannotSandbox if something that is needed is hidden.
    """
    needed = [_SYSTEM, *needed]
    covered = {path.resolve() for path in _covered()}  # nothing can be mounted on a link
    plan: dict[Path, bool] = {}
    for secret in (*covered, *hidden):
        for place in needed:
            if secret == place.resolve() and secret not in covered:
                raise CannotSandbox(
                    f"submissions need to read {place}, and it is the course's own folder: keep the course elsewhere"
                )
            if secret.is_relative_to(place.resolve()):
                plan[place / secret.relative_to(place.resolve())] = False
    plan |= dict.fromkeys(needed, True)
    words: list[str] = []
    shown = {_SYSTEM: True}
    for path in sorted(plan, key=lambda path: len(path.parts)):  # a folder before what is in it
        if plan[path] == _is_shown(path, shown):
            continue
        if plan[path]:
            words += [*_folders(path.parent), "--ro-bind", str(path), str(path)]
        elif path.is_dir():
            words += ["--tmpfs", str(path)]
        elif path.exists():
            words += ["--ro-bind", "/dev/null", str(path)]
        else:
            continue
        shown[path] = plan[path]
    for path in reversed(shown):
        words += ["--remount-ro", str(path)] if not shown[path] and path.is_dir() else []
    return words


def _baits(needed: Sequence[Path], hidden: Iterable[Path]) -> list[str]:
    """Return what a canary must not see: what is hidden, but no folder in which something is that submissions need."""
    places = [*_covered(), *hidden]
    return [str(place) for place in places if not any(path.is_relative_to(place) for path in needed)]


def _ours() -> list[Path]:
    return [PACKAGE / name for name in INSIDE]


def _packages(names: Sequence[str]) -> list[str]:
    """Return the files and folders of the top-level packages in `names` that are outside Python's own folders.

    Raise CannotSandbox if there is no such module.
    """
    outside: list[str] = []
    for top in dict.fromkeys(name.partition(".")[0] for name in names):
        if top == PACKAGE.name:
            continue
        try:
            spec = importlib.util.find_spec(top)
        except ValueError:  # a module without a spec, such as __main__
            spec = None
        if spec is None:
            raise CannotSandbox(f"no module is called {top}: install it, or remove it from `preload`")
        places: list[str | None] = list(spec.submodule_search_locations or ()) or [spec.origin]
        outside += [place for place in places if place and os.path.exists(place) and not of_python(place)]
    return outside


def of_python(path: str) -> bool:
    """Return whether a file belongs to this Python or its installed packages, which every sandbox can read."""
    shown = dict.fromkeys(_covered(), False) | dict.fromkeys([_SYSTEM, *_prefixes()], True)
    return _is_shown(Path(path).resolve(), shown)


# The warm process's program. It calls the continuation itself, so that none of our frames is below it on the stack:
# see `fork_server.Continuation`.
_PROGRAM = """
import sys
sys.path[:0] = {folders!r}
from autograder.inside import warm
continuation = warm.main(int(sys.argv[1]))
continuation()
"""


def _python(folders: Sequence[str], settings: str) -> list[str]:
    """Return the command of the warm process. `folders`: added to its `sys.path`. `settings`: a descriptor to read."""
    program = _PROGRAM.format(folders=list(dict.fromkeys([str(PACKAGE.parent), *folders])))
    # -I without its -E: the environment is `ENVIRONMENT` alone, and PYTHONHASHSEED in it must count.
    return [sys.executable, "-P", "-s", "-B", "-c", program, settings]


def _filters() -> dict[str, bytes]:
    try:
        return seccomp.programs()
    except ImportError as error:
        raise CannotSandbox(f"the Python package pyseccomp is missing ({error}): pip install pyseccomp") from error
    except (RuntimeError, OSError) as error:
        raise CannotSandbox(f"cannot make the filters of system calls ({error}): {INSTALL}") from error


def _in_thread(command: list[str], log, inherited: list[int]) -> subprocess.Popen:
    """Start bubblewrap from a thread that lives as long as it does.

    bubblewrap ends when its parent ends, even by SIGKILL. To the kernel, its parent is the thread that started it.
    """
    started: list[subprocess.Popen | OSError] = []
    ready = threading.Event()

    def keep() -> None:
        try:
            process = subprocess.Popen(
                command,
                env={},  # bubblewrap remains as the envelope's process 1, whose environment could be read
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C reaches the grader alone, which then closes the envelope
            )
        except OSError as error:
            started.append(error)
            ready.set()
            return
        started.append(process)
        ready.set()
        process.wait()

    threading.Thread(target=keep, name="keeper of the envelope", daemon=True).start()
    ready.wait()
    if isinstance(started[0], OSError):
        raise CannotSandbox(f"cannot start bubblewrap: {started[0]}") from started[0]
    return started[0]


def _child(info: int) -> int:
    """Return the pid of the envelope's process 1 as seen from here; 0 if bubblewrap failed before it."""
    text = b""
    while more := os.read(info, 4096):
        text += more
    return json.loads(text)["child-pid"] if text else 0


def _is_mapped(number: int, kind: str) -> bool:
    ranges = (map(int, line.split()) for line in Path(f"/proc/self/{kind}_map").read_text().splitlines())
    return any(first <= number < first + count for first, _, count in ranges)


def has_second_user() -> bool:
    """Return whether submissions run as users of their own: root grades, and its user namespace maps `HOST_USERS`."""
    ends = HOST_USERS[0], HOST_USERS[-1]
    return os.geteuid() == 0 and all(_is_mapped(user, kind) for user in ends for kind in ("uid", "gid"))


def _claims() -> int:
    """Open the file in which graders claim users, in a folder that only the user who grades can write."""
    try:
        CLAIMS.parent.mkdir(mode=0o700, exist_ok=True)
        folder = os.lstat(CLAIMS.parent)
        if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.geteuid() or folder.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "others may write to it")
        return os.open(CLAIMS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotSandbox(
            f"cannot claim users for submissions in {CLAIMS.parent} ({error.strerror}): let this folder be writable, "
            "by the user who grades alone"
        ) from error


def _map_users(pid: int, second: bool) -> None:
    """Map the envelope's users: its 0 to the user who grades and, if `second`, those from `USER` on to `HOST_USERS`."""
    users, groups = f"0 {os.geteuid()} 1", f"0 {os.getegid()} 1"
    if second:
        users, groups = (f"{line}\n{USER} {HOST_USERS[0]} {len(HOST_USERS)}" for line in (users, groups))
    with contextlib.suppress(OSError):  # bubblewrap then logs what it couldn't do
        if not second:
            Path(f"/proc/{pid}/setgroups").write_text("deny")
        Path(f"/proc/{pid}/uid_map").write_text(users)
        Path(f"/proc/{pid}/gid_map").write_text(groups)


def _why(log: str) -> str:
    """Return why the envelope ended, from the last line of its log, and what to do."""
    last = log.strip().rpartition("\n")[2] or "it ended without a message"
    if last.startswith("bwrap:"):
        return f"bubblewrap cannot make an envelope ({last.removeprefix('bwrap: ')}): {ALLOW}"
    return f"the warm interpreter did not start: {last}"
