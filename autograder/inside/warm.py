"""The warm process inside the envelope: it imports everything once, then forks for each submission.

A submission gets three processes, in namespaces of their own (processes, mounts, network, IPC, host name, cgroups):

- its **init**, process 1, runs only our code. It sets up the mounts and the loopback device, starts the main process,
  and reports to the outside how that ended. It exits, and every other process of the sandbox with it, as soon as the
  main process ends or the outside hangs up.
- its **main** process gives up everything that it could use to get out, and only then calls the entry;
- its **nursery**, a fork of the main process before that call, forks ranks for the judge. No canary has one.

`sandbox.envelope` starts this module through bubblewrap and talks to it. Nothing in here runs outside the envelope.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import fcntl
import importlib
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from . import fork_server, locks, memory, nursery

HOME = "/home/student"
USER = 1000  # the user of submissions, in the envelope and in their sandboxes
# RLIMIT_NPROC over `processes`. Only the control group reports a refused fork, so it must refuse first. The kernel
# checks RLIMIT_NPROC when a fork begins and the group when it ends: 2 leaves room for all processes to fork at once.
NPROC = 2
BUFFER = 2**18  # bytes of a TCP connection's buffers, each way
MAX_PRINTED = 4 * 2**20  # bytes that a rank prints to each of its two files; the judge reads 100,000 of each
MAX_REQUEST = 65536  # bytes of a request for a sandbox
OF_WALL = "survey", "plan", "build", "narrow", "covered", "declared", "FOLDER", "FILES"  # see `judge.Settings.wall`
USER_SECONDS = 20.0  # for a user to become free; less than `envelope.ENTER_SECONDS`, so that the refusal arrives
LOOK_SECONDS = 0.1  # between two looks for a user that another grader has given back

# Linux's numbers, from sched.h, mount.h, prctl.h, capability.h and sockios.h.
NEW_NS, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 0x1000, 0x4000, 1 << 18
DETACH = 2
SET_DUMPABLE, DROP_FROM_BOUND, NO_NEW_PRIVILEGES, AMBIENT, CLEAR_ALL = 4, 24, 38, 47, 4
NO_ATIME = 1024  # of a mount
# The system call seccomp: its number on this machine, what sets a filter, and the flag for all of a process's threads.
SECCOMP, SET_FILTER, ALL_THREADS = {"x86_64": 317, "ppc64le": 358, "s390x": 348}.get(os.uname().machine, 277), 1, 1
# Landlock's calls, which have these numbers on every machine, and of landlock.h what they are asked for.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
BENEATH, READ_FILE, READ_DIR = 1, 4, 8
ASK_VERSION, LOGS, NO_LOG = 1, 7, 5  # from version 7 on refusals are logged, but for flags 1 and 4
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def main(settings: int) -> fork_server.Continuation:
    """Import what submissions need, report ready, and fork a sandbox for each connection.

    Return the continuation: a nursery and a fork server for ranks serve, any other process exits.

    `settings`: a descriptor to read JSON from, with these keys:

    - "modules": names to import;
    - "entry": the dotted name of the function that gets a sandbox's socket;
    - "filters": the filters of system calls, BPF in base64, by who gets them: see `seccomp.programs`;
    - "wall": the module that keeps answers out, with all that `OF_WALL` names, or "": see `Settings.wall`;
    - "users": how many users there are for submissions, from `USER` on; 0 if they run as the envelope's only user;
    - "claims": a descriptor of the file in which users are claimed, see `_Users`; None without users;
    - "listener", "ready", "life": descriptors. "life" reads as closed once the process that started this one is gone.
    """
    with open(settings) as file:
        options = json.load(file)
    os.umask(0o022)  # sandboxes read what it makes
    environment = dict(os.environ)
    _keep_times_of_devices()
    with memory.settled():
        locks.replace()
        for name in options["modules"]:
            importlib.import_module(name)
        entry = _entry(options["entry"])
        prepare = getattr(sys.modules[entry.__module__], "prepare", None)
        if prepare:
            prepare()
        for name in set(os.environ) - set(environment):  # some modules set variables when they are imported
            del os.environ[name]
        fork_server.prepare(options["modules"])
        wall = importlib.import_module(options["wall"]) if options["wall"] else None
        if wall:
            if lacking := [name for name in OF_WALL if not hasattr(wall, name)]:
                raise ImportError(f"the wall {options['wall']} has no {', '.join(lacking)}")
            wall.survey()
            _hide(wall.FOLDER, wall.FILES)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children leave no zombies
    listener = socket.socket(fileno=options["listener"])
    os.write(options["ready"], b"ready")
    os.close(options["ready"])
    here = os.open("/proc/self/ns/pid", os.O_RDONLY)
    users = _Users(range(USER, USER + options["users"]), options["claims"])
    filters = {who: base64.b64decode(program) for who, program in options["filters"].items()}
    waiting: deque[_Request] = deque()
    while True:
        ready = _ready([listener.fileno(), options["life"], *users.taken], LOOK_SECONDS if waiting else None)
        if options["life"] in ready:
            return sys.exit
        users.release(ready)
        if listener.fileno() in ready and (new := _request(listener)):
            waiting.append(new)
        if not waiting:
            continue
        user = users.take()
        if user is None:
            if time.monotonic() >= waiting[0].until:
                waiting.popleft().refuse(f"all {options['users']} users for submissions are taken")
            continue
        request = waiting.popleft()
        if wall:
            for on_ranks in (True, False):
                wall.plan(tuple(request.wishes["holding"]), on_ranks)  # the fork then only carries it out
        _system("unshare", NEW_PID)  # for the next child; this process stays where it is
        init = _fork()
        if init == 0:
            listener.close()
            for other in waiting:
                other.close()
            for descriptor in (options["life"], here, *users.taken):
                os.close(descriptor)
            if request.wishes["entry"]:
                entry = _entry(request.wishes["entry"])
            return _Init(request.wishes, request.control, request.sockets, filters, user, wall).run(entry)
        _system("setns", here, NEW_PID)
        users.note(user, init)
        request.close()


class _Users:
    """The users that sandboxes run as. Each is one sandbox's alone until that has ended, with all its processes.

    `numbers`: the users, by the envelope's numbers; empty if all sandboxes run as its only user. `claims`: a file that
    all graders of this machine share, in which the byte with a user's number is locked while that user is taken. Such
    a lock belongs to the file as opened for this process. Inits inherit it, so that no lock ends before they do.
    """

    def __init__(self, numbers: range, claims: int | None):
        self.claims = claims
        self.free = deque(numbers)
        # Graders in other containers have other files. They rarely meet if each begins somewhere else.
        self.free.rotate(int.from_bytes(os.urandom(4)))
        self.taken: dict[int, int] = {}  # {pidfd of an init: its user}

    def take(self) -> int | None:
        """Return the user that has been free for longest, or None if none is free."""
        if self.claims is None:
            return 0
        for _ in range(len(self.free)):
            user = self.free.popleft()
            try:
                self._lock(user, fcntl.F_WRLCK)
                return user
            except BlockingIOError:  # another grader has it
                self.free.append(user)
        return None

    def note(self, user: int, init: int) -> None:
        """Note whose init, by its pid, runs as a user; a pid of -1: none could be forked."""
        if self.claims is None:
            return
        try:
            if init > 0:
                self.taken[os.pidfd_open(init)] = user
                return
        except ProcessLookupError:  # it has ended already
            pass
        self._give_back(user)

    def release(self, ended: list[int]) -> None:
        """Give back the users of the inits whose pidfds are among these descriptors."""
        for init in self.taken.keys() & set(ended):
            self._give_back(self.taken.pop(init))
            os.close(init)

    def _give_back(self, user: int) -> None:
        self._lock(user, fcntl.F_UNLCK)
        self.free.append(user)

    def _lock(self, user: int, kind: int) -> None:
        assert self.claims is not None
        fcntl.fcntl(self.claims, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, user, 1, 0))


def _ready(descriptors: list[int], seconds: float | None) -> list[int]:
    """Wait until one of these is readable, for so many seconds at most; return those that are."""
    poll = select.poll()  # unlike select, it accepts descriptors above 1023
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if seconds is None else 1000 * seconds)]


def _keep_times_of_devices() -> None:
    """Make the mounts of devices read-only, which devices ignore. Whoever may write to one could else set its times.

    The devices are the machine's own, so their times would be a note for any later submission.
    """
    for name in os.listdir("/dev"):
        place = f"/dev/{name}"
        if stat.S_ISCHR(os.lstat(place).st_mode):
            kept = os.statvfs(place).f_flag & (NO_SUID | NO_DEVICES | NO_EXEC)
            _mount(None, place, None, REMOUNT | BIND | READ_ONLY | kept)


def _fork() -> int:
    """Fork; return -1 if there is no memory or no process left. The hang-up then tells `envelope.enter`."""
    try:
        return os.fork()
    except OSError:
        return -1


def _entry(name: str) -> Callable[[socket.socket], None]:
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function)


class _Request(NamedTuple):
    """A request for a sandbox. `sockets`: the main process's and the nursery's, if any. `until`: when it fails."""

    control: socket.socket
    wishes: dict[str, Any]
    sockets: list[socket.socket]
    until: float

    def refuse(self, reason: str) -> None:
        with contextlib.suppress(OSError):  # it may have hung up
            self.control.sendall(json.dumps({"refused": reason}).encode() + b"\n")
        self.close()

    def close(self) -> None:
        for one in (self.control, *self.sockets):
            one.close()


def _request(listener: socket.socket) -> _Request | None:
    """Accept a connection and return its request; None if it is malformed."""
    control, _ = listener.accept()
    control.settimeout(5.0)  # `envelope.enter` sends the request as soon as it connects
    try:
        message, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST, 2)
        control.settimeout(None)
        if descriptors:
            sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            return _Request(control, json.loads(message), sockets, time.monotonic() + USER_SECONDS)
    except (OSError, ValueError):
        pass
    control.close()
    return None


class _Init:
    """A submission's init: process 1 of its namespaces.

    `user`: whom it runs as, by the envelope's numbers. `wall`: see `main`.
    """

    def __init__(
        self,
        request: dict[str, Any],
        control: socket.socket,
        sockets: list[socket.socket],
        filters: dict[str, bytes],
        user: int,
        wall: Any,
    ):
        self.request, self.control, self.filters = request, control, filters
        self.connection, *self.nursery = sockets  # of the main process, and of the nursery if there is to be one
        self.user, self.wall = user, wall
        self.proc = -1

    def run(self, entry: Callable[[socket.socket], None]) -> fork_server.Continuation:
        """Run until the main process ends or the outside hangs up; then exit, which ends all other processes.

        Only the fork server for ranks and the nursery return from here, with their continuations.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # else the student's code could end process 1 with it
        try:
            self._tell(hello=True, user=self.user)  # the kernel attaches this process's pid, as the outside sees it
            if not self.control.recv(1):  # the outside sends it once this process is in its control groups
                os._exit(1)
            self._enter_namespaces()
            main = os.fork()
            if main == 0:
                return self._be_main(entry)
            for one in (self.connection, *self.nursery):
                one.close()
            os.close(self.proc)
            _give_up_capabilities()
            _prctl(SET_DUMPABLE, 0)
            self._tell(ended=self._wait(main))
        except BaseException as error:
            self._fail(error)
        os._exit(0)  # the kernel then ends all other processes of the namespace

    def _fail(self, error: BaseException) -> None:
        with contextlib.suppress(OSError):
            self._tell(failed=f"{type(error).__name__}: {error}")
        os._exit(1)

    def _tell(self, **report: Any) -> None:
        self.control.sendall(json.dumps(report).encode() + b"\n")

    def _enter_namespaces(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _system("unshare", NEW_NS | NEW_NET | NEW_IPC | NEW_UTS | NEW_CGROUP)
        socket.sethostname("sandbox")
        self._mount(self.request["scratch"])
        self._narrow_buffers()
        _loopback_up()
        self._hand_out_the_wire()
        os.chdir(HOME)

    def _narrow_buffers(self) -> None:
        """Let a TCP connection hold at most `BUFFER` bytes each way: not every kernel counts them as the sandbox's."""
        for name in ("tcp_rmem", "tcp_wmem"):
            with contextlib.suppress(OSError):  # an old kernel has one setting for the whole machine
                self._write(f"sys/net/ipv4/{name}", f"4096 {BUFFER} {BUFFER}")

    def _hand_out_the_wire(self) -> None:
        """Send the outside a packet socket of the loopback's, for `capture`, which binds it before it reads."""
        try:
            wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
        except OSError as error:
            raise OSError(error.errno, f"packet sockets: {error.strerror}") from error
        with wire:
            report = json.dumps({"wire": True}).encode() + b"\n"
            socket.send_fds(self.control, [report], [wire.fileno()])

    def _mount(self, scratch: int) -> None:
        """Mount the sandbox's own scratch, `scratch` bytes in all, and its own /proc."""
        _mount(None, "/", None, RECURSIVE | PRIVATE)
        readable = [(place, os.open(place, os.O_PATH)) for place in _mounted_below("/home", "/tmp", "/dev/shm")]
        # A file takes at least one page of 4096 bytes, so allow one inode for each page of scratch.
        options = f"size={scratch},nr_inodes={max(scratch // 4096, 64)},mode=0755"
        _mount("tmpfs", "/home", "tmpfs", NO_SUID | NO_DEVICES | NO_ATIME, options)
        for place in (HOME, "/tmp", "/dev/shm"):  # one quota for all three
            folder = "/home/" + place.rpartition("/")[2]
            os.mkdir(folder, 0o700)
            os.chown(folder, self.user, self.user)
            if folder != place:
                _mount(folder, place, None, BIND)
        for place, known in readable:  # a course, or Python itself, in a folder that scratch now covers
            _make_place(place, stat.S_ISDIR(os.fstat(known).st_mode))
            _mount(f"/proc/self/fd/{known}", place, None, BIND | RECURSIVE)  # read-only, as it was
            os.close(known)
        for place in self.wall.covered(self.request["holding"]) if self.wall else ():
            _cover(place)
        # A rank's files in /proc would tell the others of it, its size for one: hide processes that one can't trace.
        _mount("proc", "/proc", "proc", NO_SUID | NO_DEVICES | NO_EXEC, "hidepid=2")
        self.proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        _mount("/proc", "/proc", None, BIND)  # becomes read-only; `self.proc` is the writable mount beneath
        _mount(None, "/proc", None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES | NO_EXEC)

    def _wait(self, main: int) -> str:
        """Reap children until the main process ends or the outside hangs up; return how the sandbox ended."""
        woken, waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waking)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(self.control, select.POLLIN | select.POLLHUP)
        while True:
            while True:
                pid, status, used = os.wait4(-1, os.WNOHANG)
                if pid == main:
                    return self._cause(status, used)
                if pid == 0:
                    break
            if any(descriptor != woken for descriptor, _ in poll.poll()):
                return "closed"
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 512)

    def _cause(self, status: int, used: resource.struct_rusage) -> str:
        """Return why the main process ended: "cpu", "signal <number>" or "exit <code>"."""
        code = os.waitstatus_to_exitcode(status)
        spent = used.ru_utime + used.ru_stime
        if code == -signal.SIGXCPU or (code == -signal.SIGKILL and spent >= self.request["cpu_seconds"]):
            return "cpu"
        return f"signal {-code}" if code < 0 else f"exit {code}"

    def _be_main(self, entry: Callable[[socket.socket], None]) -> fork_server.Continuation:
        """Be the main process: give up every privilege and most system calls, then run the student's code by the entry.

        Only the fork server for ranks and the nursery return from here, with their continuations.
        """
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in any Python
        try:
            self._confine()
            self._build_wall(on_ranks=True)
            for one in self.nursery:
                _prctl(SET_DUMPABLE, 0)  # inherited: the main process can't read its memory, nor a rank's
                blind = _Blindfold()
                bounds = nursery.Bounds(blind.put_on, self._narrow_wall, self._seal)
                serve_nursery = nursery.adopt(one, self.connection, self.control, bounds=bounds)
                if serve_nursery:
                    _filter_system_calls(self.filters["nursery"])
                    return serve_nursery
                blind.close()
                _prctl(SET_DUMPABLE, 1)
            _filter_system_calls(self.filters["main"])
            self._build_wall(on_ranks=False)
            serve_ranks = fork_server.adopt(tempfile.mkdtemp(), self.connection, self.control)
            if serve_ranks:
                return serve_ranks
            self._tell(ready=True)
            self.control.close()
        except BaseException as error:
            self._fail(error)
        code = 1
        try:
            entry(self.connection)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        finally:
            os._exit(code & 255)

    def _build_wall(self, on_ranks: bool) -> None:
        if self.wall:
            self.wall.build(self.request["holding"], on_ranks)

    def _narrow_wall(self, runs: str) -> None:
        """Leave a rank what the function needs that it runs."""
        if self.wall:
            self.wall.narrow(self.request["holding"], runs)

    def _seal(self, sealed: bool) -> None:
        """Leave a sealed rank no way to other ranks but their groups' messages, and none a filter of its own.

        What a rank prints goes to files that not every machine counts as the sandbox's, so its files have a limit.
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_PRINTED, MAX_PRINTED))
        _filter_system_calls(self.filters["ranks" if sealed else "main"])

    def _confine(self) -> None:
        self._close_descriptors()
        os.setsid()
        if self.user:
            os.setgroups([])
        os.setresgid(self.user, self.user, self.user)
        os.setresuid(self.user, self.user, self.user)  # to the kernel, no longer the user who grades
        _prctl(SET_DUMPABLE, 1)  # makes this process the owner of its files in /proc again
        self._enter_user_namespace()
        self._limit()
        _give_up_capabilities()
        os.close(self.proc)

    def _close_descriptors(self) -> None:
        """Close all descriptors but the sockets and /proc's; point the standard streams at /dev/null."""
        null = os.open("/dev/null", os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        kept = sorted([one.fileno() for one in (self.control, self.connection, *self.nursery)] + [self.proc])
        for low, high in zip([2, *kept], [*kept, 2**31 - 2], strict=True):
            if low + 1 < high:
                _system("close_range", low + 1, high - 1, 0)

    def _enter_user_namespace(self) -> None:
        """Enter a user namespace of its own, which counts its processes and allows no namespace below it."""
        _system("unshare", NEW_USER)
        self._write("self/setgroups", "deny")
        self._write("self/uid_map", f"{USER} {self.user} 1")
        self._write("self/gid_map", f"{USER} {self.user} 1")
        self._write("sys/user/max_user_namespaces", "0")

    def _write(self, name: str, text: str) -> None:
        """Write a file below the writable /proc."""
        descriptor = os.open(name, os.O_WRONLY, dir_fd=self.proc)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def _limit(self) -> None:
        self._write("self/oom_score_adj", "1000")  # if the machine runs out of memory, the kernel kills this first
        request = self.request
        limits = {
            resource.RLIMIT_CPU: request["cpu_seconds"],
            resource.RLIMIT_NPROC: NPROC * request["processes"],
            resource.RLIMIT_NOFILE: request["open_files"],
            resource.RLIMIT_FSIZE: request["scratch"],
            resource.RLIMIT_STACK: request["stack"],
            resource.RLIMIT_CORE: 1,  # not even to a program that the machine's core_pattern names, which 0 would allow
            resource.RLIMIT_MSGQUEUE: 0,
            resource.RLIMIT_MEMLOCK: 2**16,
        }
        for kind, most in limits.items():
            # The hard CPU limit is 1 s above the soft one, so SIGXCPU, which names the cause, precedes SIGKILL.
            lower, upper = most, most + 1 if kind == resource.RLIMIT_CPU else most
            _, hard = resource.getrlimit(kind)
            if hard != resource.RLIM_INFINITY:
                lower, upper = min(lower, hard), min(upper, hard)
            resource.setrlimit(kind, (lower, upper))


class _Blindfold:
    """What takes the sandbox's scratch, and what is open elsewhere, out of a process's sight: a ruleset of Landlock's.

    A process that has put it on can open only what lies outside of the scratch, to read, and nothing in /proc. Where
    the kernel has no Landlock, it does nothing.
    """

    def __init__(self) -> None:
        version = _libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ASK_VERSION)
        self._quietly = NO_LOG if version >= LOGS else 0  # else each refusal is a line of the machine's audit log
        handled = struct.pack("Q", READ_FILE | READ_DIR)
        self._ruleset = _libc.syscall(CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
        if self._ruleset < 0 and (number := ctypes.get_errno()) not in (errno.ENOSYS, errno.EOPNOTSUPP):
            raise OSError(number, f"a ruleset of Landlock: {os.strerror(number)}")
        for place in _outside_of_scratch() if self._ruleset >= 0 else ():
            known = os.open(place, os.O_PATH | os.O_NOFOLLOW)
            allowed = READ_FILE | READ_DIR if stat.S_ISDIR(os.fstat(known).st_mode) else READ_FILE
            rule = struct.pack("=Qi", allowed, known)
            if _libc.syscall(ADD_RULE, self._ruleset, BENEATH, rule, 0) != 0:
                raise OSError(ctypes.get_errno(), f"a rule of Landlock for {place}")
            os.close(known)

    def put_on(self, sealed: bool) -> None:
        """Put it on, for good, if this process is to be sealed; it must have no threads yet."""
        if sealed and self._ruleset >= 0 and _libc.syscall(RESTRICT_SELF, self._ruleset, self._quietly) != 0:
            raise OSError(ctypes.get_errno(), "Landlock doesn't hold")
        self.close()

    def close(self) -> None:
        if self._ruleset >= 0:
            os.close(self._ruleset)


def _outside_of_scratch() -> Iterator[str]:
    """Yield the places that hold all that a sandbox can read but its scratch, /proc and most devices; no link."""
    places = [f"/{name}" for name in os.listdir("/") if name not in ("dev", "home", "proc", "tmp")]
    yield from (place for place in places if not os.path.islink(place))
    yield from ("/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
    yield from _mounted_below("/home", "/tmp", "/dev/shm")


def _give_up_capabilities() -> None:
    """Give up every capability of this process, and the means to gain one by executing a file."""
    with contextlib.suppress(OSError):
        for capability in range(64):  # Linux has 41; the first number beyond them raises
            _prctl(DROP_FROM_BOUND, capability)
    _prctl(AMBIENT, CLEAR_ALL)
    _prctl(NO_NEW_PRIVILEGES, 1)
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)  # version 3 of the call, for this process
    _system("capset", header, none)


def _filter_system_calls(program: bytes) -> None:
    """Filter the system calls of all threads of this process, from now on."""
    with described(program) as filtering:
        if _libc.syscall(SECCOMP, SET_FILTER, ALL_THREADS, ctypes.c_char_p(filtering)) != 0:  # above 0: a thread's id
            raise OSError(ctypes.get_errno(), "a filter of system calls doesn't hold for all threads")


@contextlib.contextmanager
def described(program: bytes) -> Iterator[bytes]:
    """Yield the kernel's description of a filter program, a sock_fprog, which is valid within the `with` block."""
    buffer = ctypes.create_string_buffer(program, len(program))
    yield struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:  # the ioctls need one, of any kind
        device = fcntl.ioctl(any_socket, GET_FLAGS, struct.pack("16sH22x", b"lo", 0))
        name, flags = struct.unpack("16sH22x", device)
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH22x", name, flags | UP))


def _mounted_below(*places: str) -> list[str]:
    """Return the topmost mount points below these places."""
    with open("/proc/self/mountinfo") as lines:
        points = sorted(_unescaped(line.split()[4]) for line in lines)
    topmost: list[str] = []
    for point in points:
        inside = any(point.startswith(f"{place}/") for place in places)
        if inside and not any(point.startswith(f"{other}/") or point == other for other in topmost):
            topmost.append(point)
    return topmost


def _hide(folder: Path, files: Iterable[str]) -> None:
    """Cover the folder of a package, which is imported, with one that holds copies of these files of it alone."""
    kept = {name: (folder / name).read_bytes() for name in files}
    for place in _everywhere(folder):
        _mount("tmpfs", str(place), "tmpfs", NO_SUID | NO_DEVICES, "mode=0755")
        for name, content in kept.items():
            _make_place(str(place / name), folder=False)
            (place / name).write_bytes(content)
        _mount(None, str(place), None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES)


def _cover(place: Path) -> None:
    """Let a folder look empty, or a file."""
    folder = place.is_dir()
    for each in _everywhere(place):
        if folder:
            _mount("tmpfs", str(each), "tmpfs", READ_ONLY | NO_SUID | NO_DEVICES)
        else:
            _mount("/dev/null", str(each), None, BIND)


def _everywhere(place: Path) -> list[Path]:
    """Return all paths of a file or folder: a mount may show it again, as that of a virtual environment with a link."""
    with open("/proc/self/mountinfo") as lines:
        mounts = [[Path(_unescaped(word)) for word in line.split()[3:5]] for line in lines]
    own = max((mount for mount in mounts if place.is_relative_to(mount[1])), key=lambda mount: len(mount[1].parts))
    inner = own[0] / place.relative_to(own[1])
    paths = [point / inner.relative_to(root) for root, point in mounts if inner.is_relative_to(root)]
    return [path for path in dict.fromkeys(paths) if path.exists() and path.samefile(place)]


def _unescaped(word: str) -> str:
    """Return a path of /proc/self/mountinfo, where a space is \\040."""
    return word.encode().decode("unicode_escape")


def _make_place(place: str, folder: bool) -> None:
    """Make a mount point, a folder or an empty file, and the folders above it."""
    os.makedirs(place if folder else os.path.dirname(place), mode=0o755, exist_ok=True)
    if not folder:
        os.close(os.open(place, os.O_CREAT | os.O_RDONLY, 0o644))


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if word is None else word.encode() for word in (source, target, kind)]
    _system("mount", *encoded, ctypes.c_ulong(flags), None if options is None else options.encode())


def _prctl(what: int, *arguments: Any) -> None:
    padded = [*arguments, 0, 0, 0, 0][:4]
    _system("prctl", what, *(ctypes.c_ulong(value) if isinstance(value, int) else value for value in padded))


def _system(call: str, *arguments: Any) -> None:
    """Call a function of the C library that Python doesn't wrap; raise OSError with its name if it fails."""
    if getattr(_libc, call)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
