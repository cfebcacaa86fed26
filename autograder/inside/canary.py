"""The canary: it runs in a sandbox, tries what a hostile submission would try, and reports what worked.

`prove` starts it and sends it the bait to reach for. Each line of its answer is a fault of the sandbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import multiprocessing.forkserver
import os
import platform
import resource
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

MARK = "neighbour"  # the name of a neighbour's scratch files and of its socket
PACKET, ALG, VSOCK = 17, 38, 40  # socket families
SCTP, MPTCP, DCCP = 132, 262, 6  # two protocols, and a kind of sockets
# Numbers of the system calls for which the C library has no function.
_CALLS = {
    "x86_64": dict(
        clone=56,
        fadvise64=221,
        keyctl=250,
        perf_event_open=298,
        bpf=321,
        userfaultfd=323,
        preadv2=327,
        io_uring_setup=425,
    ),
    "aarch64": dict(
        clone=220,
        fadvise64=223,
        keyctl=219,
        perf_event_open=241,
        bpf=280,
        userfaultfd=282,
        preadv2=286,
        io_uring_setup=425,
    ),
}
_SOCKET_FILTERS = (26, 50, 51, 52)  # SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF, _REUSEPORT_EBPF
_SET_SECCOMP, _GET_LINK, _REQUEST = 22, 18, 1
_OPEN_FILE_LOCKS, _SET_LEASE, _NO_WAIT = (36, 37, 38), 1024, 8
_DROPPING = (20, 21)  # MADV_COLD, MADV_PAGEOUT
_NEW_NS, _NEW_USER, _SHARED_FILES, _SEIZE = 0x20000, 0x10000000, 0x400, 0x4206
_fork_server: Any = multiprocessing.forkserver._forkserver  # whose attributes are private


def serve(connection: socket.socket) -> None:
    """Play the role that the one message names; answer with the list of forbidden things that worked."""
    message = json.loads(connection.recv(65536))
    faults = list(_ROLES[message["role"]](message))
    connection.sendall(json.dumps(faults).encode() + b"\n")
    connection.recv(1)  # wait until the outside hangs up or ends the sandbox


def _neighbour(message: dict[str, Any]) -> Iterator[str]:
    """Leave files and a socket that another sandbox could find."""
    for folder in ("/tmp", "/dev/shm", os.environ["HOME"]):
        with open(f"{folder}/{MARK}", "w") as file:
            file.write("a secret")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{MARK}")
    listener.listen()
    _kept.append(listener)
    yield from ()


_kept: list[Any] = []  # objects kept alive until the sandbox ends


def _intruder(message: dict[str, Any]) -> Iterator[str]:
    """Inspect the surroundings, then try everything that doesn't use up a resource."""
    yield from _status()
    yield from _surroundings(message)
    yield from _limits(message["limits"])
    yield from _scratch(message["limits"]["scratch"])
    for fault, attempt in list(_attempts(message)):  # prepare all first: an attempt that works may affect the next
        try:
            attempt()
        except (OSError, ValueError):
            continue
        yield fault
    with contextlib.suppress(PermissionError):
        for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
            os.kill(1, number)  # if that works, the canary never answers, which `prove` reports
    _leave_daemon()


def _attempts(message: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what must fail: the fault to report, and a function that raises OSError or ValueError if contained."""
    for path in message["files"]:
        yield f"can read {path}", _reading(path)
    for path in message["hidden"]:
        yield f"can see {path}", _seeing(path)
    for address in message["addresses"]:
        yield f"can connect to {address!r}", _connecting(address)
    for folder in ("/tmp", "/dev/shm", os.environ["HOME"]):
        yield f"can find {MARK} of another sandbox in {folder}", _reading(f"{folder}/{MARK}")
    yield "can connect to a socket of another sandbox", _connecting(f"\0{MARK}")
    yield "can read the memory of its init", _reading("/proc/1/mem")
    yield "can read the environment of its init", _reading("/proc/1/environ")
    for path in message["read_only"]:
        yield f"can change {path}", _changing(path)
    yield "can set the times of a device", lambda: os.utime("/dev/null")
    yield "can become root", lambda: os.setuid(0)
    yield "can give itself other groups", lambda: os.setgroups([0])
    for name, call in _forbidden_calls():
        yield f"can call {name}", call


def _reading(path: str) -> Callable[[], Any]:
    def read() -> None:
        with open(path, "rb") as file:
            file.read(1)

    return read


def _seeing(path: str) -> Callable[[], Any]:
    def see() -> None:
        if os.path.isdir(path):
            if not os.listdir(path):
                raise FileNotFoundError
        else:
            _reading(path)()

    return see


def _connecting(address: Any) -> Callable[[], Any]:
    def connect() -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        with socket.socket(family) as sender:
            sender.settimeout(0.2)
            sender.connect(address if isinstance(address, str) else tuple(address))

    return connect


def _changing(path: str) -> Callable[[], Any]:
    def change() -> None:
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            raise PermissionError
        # On a writable mount only a file's owner and mode protect it, which isn't containment: that is a fault.

    return change


def _forbidden_calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls that the filter must answer with ENOSYS: any other result means that the kernel ran them."""
    libc = ctypes.CDLL(None, use_errno=True)

    def calling(function: Any, *arguments: Any) -> Callable[[], Any]:
        def call() -> None:
            if function(*arguments) == -1 and ctypes.get_errno() == errno.ENOSYS:
                raise OSError(errno.ENOSYS, "refused")

        return call

    numbers = _CALLS.get(platform.machine(), {})
    if "clone" in numbers:
        yield "clone with a user namespace", lambda: _clone(libc, numbers["clone"], _NEW_USER)
        yield "clone with shared descriptors", lambda: _clone(libc, numbers["clone"], _SHARED_FILES)
    for name, arguments in {
        "keyctl": (0, ctypes.c_int(-3), 1),
        "perf_event_open": (None, 0, -1, -1, 0),
        "bpf": (0, None, 0),
        "userfaultfd": (0,),
        "io_uring_setup": (1, ctypes.create_string_buffer(120)),
        "fadvise64": (os.open("/dev/null", os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED),
        "preadv2": (os.open("/dev/null", os.O_RDWR), None, 0, ctypes.c_long(0), ctypes.c_long(0), _NO_WAIT),
    }.items():
        if name in numbers:
            yield name, calling(libc.syscall, ctypes.c_long(numbers[name]), *arguments)
    for name, family, kind, protocol in (
        ("packets", PACKET, socket.SOCK_RAW, 0),
        ("ciphers", ALG, socket.SOCK_SEQPACKET, 0),
        ("virtual machines", VSOCK, socket.SOCK_STREAM, 0),
        ("audits", socket.AF_NETLINK, socket.SOCK_RAW, 9),
        ("SCTP", socket.AF_INET, socket.SOCK_STREAM, SCTP),
        ("SCTP by its kind", socket.AF_INET6, socket.SOCK_SEQPACKET, 0),
        ("DCCP by its kind", socket.AF_INET, DCCP, 0),
        ("MPTCP", socket.AF_INET, socket.SOCK_STREAM, MPTCP),
    ):
        yield f"socket for {name}", calling(libc.socket, family, kind, protocol)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    _kept.append(udp)
    for option in _SOCKET_FILTERS:
        yield f"setsockopt with a filter ({option})", calling(libc.setsockopt, udp.fileno(), 1, option, None, 0)
        high = ctypes.c_ulong(1 << 32 | option)  # the kernel doesn't read the upper half
        yield f"setsockopt with a hidden filter ({option})", calling(libc.setsockopt, udp.fileno(), 1, high, None, 0)
    yield "ioctl for bridges", calling(libc.ioctl, udp.fileno(), 0x89A0, bytes(64))  # SIOCBRADDBR
    yield "prctl for a filter of system calls", calling(libc.prctl, _SET_SECCOMP, 2, None)
    shared = os.open("/dev/null", os.O_RDWR)
    record = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 1, 0)
    for command in (fcntl.F_SETLK, fcntl.F_SETLKW, fcntl.F_GETLK, *_OPEN_FILE_LOCKS):
        yield f"fcntl for locks ({command})", calling(libc.fcntl, shared, command, record)
    yield "fcntl for leases", calling(libc.fcntl, shared, _SET_LEASE, fcntl.F_UNLCK)
    yield "fcntl for notices", calling(libc.fcntl, shared, fcntl.F_NOTIFY, 0)
    yield "flock", calling(libc.flock, shared, fcntl.LOCK_SH | fcntl.LOCK_NB)
    yield "inotify_init", calling(libc.inotify_init)
    yield "mincore", calling(libc.mincore, None, 0, None)
    for advice in _DROPPING:
        yield f"madvise to drop pages ({advice})", calling(libc.madvise, None, 0, advice)
    yield "prlimit of its init", calling(libc.prlimit, 1, resource.RLIMIT_CPU, None, None)
    yield "setrlimit of cores", calling(libc.setrlimit, resource.RLIMIT_CORE, (ctypes.c_ulong * 2)(0, 1))
    yield "ptrace", calling(libc.ptrace, _SEIZE, _fork_server._forkserver_pid, None, None)
    yield "process_vm_readv", calling(libc.process_vm_readv, os.getpid(), None, 0, None, 0, 0)
    yield "personality", calling(libc.personality, 0x0040000)
    yield "memfd_create", calling(libc.memfd_create, b"hidden", 0)
    yield "shmget", calling(libc.shmget, 0, 4096, 0o1600)
    yield "setns", calling(libc.setns, os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC), 0)
    yield "mount", calling(libc.mount, b"tmpfs", b"/tmp", b"tmpfs", ctypes.c_ulong(0), None)
    yield "umount", calling(libc.umount2, b"/proc", 2)
    yield "unshare for a user namespace", calling(libc.unshare, _NEW_USER)
    yield "unshare for a mount namespace", calling(libc.unshare, _NEW_NS)
    yield "chroot", calling(libc.chroot, b"/tmp")


def _clone(libc: ctypes.CDLL, number: int, flag: int) -> None:
    pid = libc.syscall(ctypes.c_long(number), ctypes.c_ulong(flag | signal.SIGCHLD), None, None, None, None)
    if pid == 0:
        os._exit(0)
    if pid < 0 and ctypes.get_errno() == errno.ENOSYS:
        raise OSError(errno.ENOSYS, "refused")


def _status() -> Iterator[str]:
    """Check this process's privileges, as the kernel reports them."""
    with open("/proc/self/status") as file:
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if int(status[name], 16):
            yield f"has capabilities ({name} {status[name]})"
    if status["NoNewPrivs"] != "1":
        yield "may gain privileges by executing a file"
    if status["Seccomp"] != "2":
        yield "runs without a filter of system calls"
    if 0 in (os.getuid(), os.getgid(), os.geteuid(), os.getegid()):
        yield "runs as root"
    with open("/proc/sys/user/max_user_namespaces") as file:
        if int(file.read()) != 0:
            yield "may make user namespaces, which only the filter of system calls prevents"


def _surroundings(message: dict[str, Any]) -> Iterator[str]:
    """Check what this process can see: variables, network devices, processes, open files and sockets."""
    for name in sorted(set(os.environ) - set(message["environment"])):
        yield f"sees the environment variable {name}"
    devices = [name for _, name in socket.if_nameindex() if name != "lo"]
    if devices:
        yield f"sees the network devices {', '.join(devices)}"
    family = {1, os.getpid(), _fork_server._forkserver_pid}
    if others := sorted({int(name) for name in os.listdir("/proc") if name.isdigit()} - family):
        yield f"sees {len(others)} processes that are not its own"
    sockets = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            mode = os.fstat(int(name)).st_mode
        except OSError:
            continue  # the descriptor that listed this folder, closed by now
        sockets += stat.S_ISSOCK(mode)
        if stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and int(name) < 3):
            yield f"has inherited an open file ({os.readlink(f'/proc/self/fd/{name}')})"
    if sockets != 1:
        yield f"has {sockets} sockets, not one"


def _limits(limits: dict[str, int]) -> Iterator[str]:
    """Check this process's hard limits."""
    for name, most in (
        ("CPU", limits["cpu_seconds"] + 1),
        ("NPROC", 2 * limits["processes"]),  # 2 is `warm.NPROC`, repeated: a proof must not read what it proves
        ("NOFILE", limits["open_files"]),
        ("FSIZE", limits["scratch"]),
        ("STACK", limits["stack"]),
        ("CORE", 1),
        ("MSGQUEUE", 0),
    ):
        _, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        if hard == resource.RLIM_INFINITY or hard > most:
            yield f"has RLIMIT_{name} at {hard}, not {most}"
    kind = _core_pattern()[:1]
    if kind == "@":
        yield "makes the kernel send its memory to a server outside if it crashes (core_pattern begins with @)"
    if kind == "|" and resource.getrlimit(resource.RLIMIT_CORE) != (1, 1):
        yield (
            "makes the kernel start a program outside if it crashes (core_pattern begins with |): raise the hard limit "
            "of core files to 1 byte or more (ulimit -Hc, LimitCORE), or name a file in /proc/sys/kernel/core_pattern"
        )


def _core_pattern() -> str:
    with open("/proc/sys/kernel/core_pattern") as pattern:
        return pattern.read()


def _scratch(most: int) -> Iterator[str]:
    """Fill the scratch in all its folders, with files that are each smaller than the limit of `most` bytes."""
    written = []
    for folder in ("/tmp", "/dev/shm", os.environ["HOME"]):
        try:
            with open(f"{folder}/filling", "wb", buffering=0) as file:
                written.append(file.write(bytes(most * 2 // 3)))
        except OSError:
            pass
    if sum(written) > most:
        yield f"can write {sum(written)} bytes to its scratch, not {most}"
    for folder in ("/tmp", "/dev/shm", os.environ["HOME"]):
        if os.path.exists(f"{folder}/filling"):
            os.unlink(f"{folder}/filling")


def _leave_daemon() -> None:
    """Leave an orphan process in a session of its own that ignores the usual signals."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(60)
        os._exit(0)
    os.wait()


def _glutton(message: dict[str, Any]) -> Iterator[str]:
    """Take twice the memory limit, in two processes; if this answers at all, the limit doesn't hold."""
    most = message["limits"]["memory"]
    os.fork()
    for _ in range(4):
        part = mmap.mmap(-1, most // 4)
        _kept.append(part)
        part[:: mmap.PAGESIZE] = b"x" * (most // 4 // mmap.PAGESIZE)
        time.sleep(0.02)
    time.sleep(1)  # the sandbox must end within this second
    yield from ()


def _breeder(message: dict[str, Any]) -> Iterator[str]:
    """Start twice as many processes as the limit; if this answers at all, the limit doesn't hold."""
    for _ in range(2 * message["limits"]["processes"]):
        try:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        except OSError:
            break
    time.sleep(2)  # the sandbox must end within these seconds
    yield from ()


def _asker(message: dict[str, Any]) -> Iterator[str]:
    """Ask for the network's interfaces and read no answer; if this answers at all, nobody counts what waits."""
    question = struct.pack("=IHHII BxHiII", 32, _GET_LINK, _REQUEST, 1, 0, 0, 0, 1, 0, 0)
    for _ in range(900):
        asker = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
        asker.setblocking(False)
        _kept.append(asker)
        with contextlib.suppress(OSError):
            for _ in range(100):  # about as many answers as fit
                asker.sendto(question, (0, 0))
    time.sleep(2)  # the sandbox must end within these seconds
    yield from ()


def _dialler(message: dict[str, Any]) -> Iterator[str]:
    """Open many connections, whose buffers the whole machine shares; if this answers at all, nobody counts them."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2000)
    _kept.append(listener)
    for _ in range(900):  # and as many ends that nobody accepts
        _kept.append(socket.create_connection(listener.getsockname()))
    time.sleep(2)  # the sandbox must end within these seconds
    yield from ()


_ROLES = dict(
    neighbour=_neighbour,
    intruder=_intruder,
    glutton=_glutton,
    breeder=_breeder,
    asker=_asker,
    dialler=_dialler,
)
