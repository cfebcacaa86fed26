"""The system calls that a submission may make: what Python, numpy and torch need, and no others.

The list names what is allowed. Every other call, new ones of newer kernels included, fails with "Function not
implemented" (ENOSYS), and the C library then falls back where it can. A submission therefore can't mount, make
namespaces, trace processes, load modules or reboot, and has no kernel keyring, bpf or io_uring. It also can't have
memory outside its processes and its scratch (memfd, System V shared memory), which the limits wouldn't count. Nor can
it lock a file. ENOSYS is the error that programs expect where there are no locks: filelock and HDF5 then do without.

Some calls are allowed only with the options listed here. The others include socket filters and a submission's own
filters of system calls: the kernel compiles those into memory that the whole machine shares, and other sandboxes need
some of it.

A second filter seals ranks that the judge starts: it takes away all ways from rank to rank but their group's own
connections. See `of_ranks`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import socket
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyseccomp as seccomp

FILES = """
access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fallocate
fchdir fchmod fchmodat fchmodat2 fchown fchownat fdatasync fgetxattr flistxattr fstat fstatfs fsync
ftruncate futimesat getcwd getdents getdents64 getxattr lchown lgetxattr link linkat listxattr llistxattr lseek
lstat mkdir mkdirat mknod mknodat newfstatat open openat openat2 pipe pipe2 pread64 preadv pwrite64 pwritev read
readahead readlink readlinkat readv rename renameat renameat2 rmdir sendfile stat statfs statx symlink symlinkat
sync_file_range truncate umask unlink unlinkat utime utimensat utimes write writev
"""
MEMORY = """
brk membarrier mlock mlock2 mlockall mmap mprotect mremap msync munlock munlockall munmap
pkey_alloc pkey_free pkey_mprotect
"""
PROCESSES = """
alarm arch_prctl capget execve execveat exit exit_group fork get_robust_list get_thread_area getcpu getegid geteuid
getgid getgroups getitimer getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid
gettid getuid ioprio_get kill nanosleep pause pidfd_open pidfd_send_signal restart_syscall rseq
rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setparam sched_setscheduler sched_yield
set_robust_list set_thread_area set_tid_address setgid setgroups setitimer setpgid setpriority setregid setresgid
setresuid setreuid setsid setuid sigaltstack signalfd signalfd4 sysinfo tgkill times tkill uname vfork wait4
waitid
"""
WAITING = """
clock_getres clock_gettime clock_nanosleep epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait
eventfd eventfd2 futex futex_requeue futex_wait futex_waitv futex_wake getrandom gettimeofday poll ppoll pselect6
select time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
timerfd_settime
"""
SOCKETS = """
accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg sendto
shutdown
"""
ROUTES = 0  # NETLINK_ROUTE, the only protocol of AF_NETLINK that is allowed: it lists interfaces
# Kinds and protocols of sockets on the loopback. The kernel loads others on demand, such as SCTP, also by the kind
# alone: nothing counts their buffers, and `capture` doesn't see what they carry.
INTERNET = (
    *((socket.SOCK_STREAM, protocol) for protocol in (0, socket.IPPROTO_TCP)),
    *((socket.SOCK_DGRAM, protocol) for protocol in (0, socket.IPPROTO_UDP)),
)
SOCKET_FLAGS = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
# Options of setsockopt by level, from socket.h, in.h, tcp.h and in6.h. Of SOL_SOCKET's, neither filters (26, 50, 51,
# 52) nor buffers beyond the system's limit.
SOCKET_OPTIONS = {
    socket.SOL_SOCKET: (*range(2, 4), *range(5, 11), 12, 13, 15, 16, *range(18, 22), 29, 35, 37, *range(63, 68)),
    socket.IPPROTO_IP: (*range(1, 4), 6, 7, 8, 10, 11, 12, 13, *range(32, 37)),  # TOS to TTL, errors, multicast
    socket.IPPROTO_TCP: (*range(1, 13), 13, 18, 23, 25, 30),  # NODELAY, keep-alive, time limits, fast open
    socket.IPPROTO_IPV6: (*range(16, 22), 23, 24, 25, 26, 49, 51, 66, 67),  # V6ONLY, hops, errors, multicast
}
LIMITS = {*range(16)} - {resource.RLIMIT_CORE}  # those that a process may lower
# Requests of ioctl, from ioctls.h and sockios.h: of terminals, of descriptors, and questions about interfaces, as gloo
# asks. Others load modules before the kernel looks who asks, as those of bridges and VLANs do, or belong to drivers.
REQUESTS = (
    *(*range(0x5401, 0x5405), 0x540F, 0x5410, 0x5413, 0x5414),  # TCGETS to TCSETSF, process groups, window sizes
    *(0x541B, 0x5421, 0x5450, 0x5451, 0x5452),  # FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC
    0x40049409,  # FICLONE, which shutil may try before it copies
    *(0x8910, 0x8912, 0x8913, 0x8915, 0x8919, 0x891B, 0x8921, 0x8927, 0x8933, 0x8946),  # SIOCGIF*, SIOCETHTOOL
)
# Commands of fcntl: descriptors, flags, signals, and sizes of pipes. Not locks, leases and notices: they hang on the
# file itself, so two sandboxes that see the same file, device or namespace could talk through them. `flock` is missing
# for the same reason. Locks take memory, too, that no control group counts.
FILE_COMMANDS = (
    *(fcntl.F_DUPFD, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_SETFL, fcntl.F_DUPFD_CLOEXEC),
    *(fcntl.F_SETOWN, fcntl.F_GETOWN, fcntl.F_SETSIG, fcntl.F_GETSIG, 15, 16),  # 15, 16: F_SETOWN_EX, F_GETOWN_EX
    *(1031, 1032, 1033, 1034),  # sizes of pipes, and seals
)
# Options of prctl, from prctl.h: death signal, dumpable, name, what is set, timer slack, subreaper, no new privileges,
# huge pages, speculation, names of memory.
PROCESS_OPTIONS = (1, 2, 3, 4, 15, 16, 21, 23, 27, 29, 30, *range(36, 43), 47, 52, 53, 0x53564D41)
# Flags of preadv2 and pwritev2: to write through (2, 4) and to append (0x10). Not RWF_NOWAIT and RWF_DONTCACHE: one
# tells which parts of a file are in memory, and the other drops them. `mincore` is missing for the same reason.
READ_FLAGS = 0x16
# Advice on files and memory. Not what drops a file's pages from memory: POSIX_FADV_DONTNEED, of any file that one may
# read, and MADV_COLD and MADV_PAGEOUT (20, 21), of one's own. Nor what merges equal pages of processes (12, 13).
FILE_ADVICE = (
    *(os.POSIX_FADV_NORMAL, os.POSIX_FADV_RANDOM, os.POSIX_FADV_SEQUENTIAL),
    *(os.POSIX_FADV_WILLNEED, os.POSIX_FADV_NOREUSE),
)
MEMORY_ADVICE = (*range(5), *range(8, 12), *range(14, 20), *range(22, 26))
NAMESPACES = 0x7E020080  # all CLONE_NEW* flags: time, cgroup, uts, ipc, user, pid, net and mount
SHARED_FILES, THREAD = 0x400, 0x10000  # CLONE_FILES, CLONE_THREAD


# What leaves something in a file, or in a name, for another process to find.
CHANGES_OF_FILES = """
chmod chown creat fallocate fchmod fchmodat fchmodat2 fchown fchownat futimesat lchown link linkat mkdir mkdirat mknod
mknodat rename renameat renameat2 rmdir symlink symlinkat truncate unlink unlinkat utime utimensat utimes
"""
WRITING = {os.O_ACCMODE: (os.O_WRONLY, os.O_RDWR, os.O_ACCMODE), os.O_CREAT: (os.O_CREAT,), os.O_TRUNC: (os.O_TRUNC,)}
# What another process can feel or read: signals, which may carry a number, and settings that have a process's number.
CALLS_TO_PROCESSES = """
getpgid getsid kill pidfd_open pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo sched_setaffinity sched_setparam
sched_setscheduler setpgid setpriority setsid timer_create tkill
"""
# A process that runs another program, or that says so, can be traced: then others see its files and its memory.
TRACEABLE = "execve execveat"
SIGNALS_BY_FILE = (fcntl.F_SETOWN, fcntl.F_SETSIG, 15)  # 15: F_SETOWN_EX
SET_DUMPABLE = 4  # of prctl
FOR_ALL_THREADS = 1, 1  # of seccomp: set a filter, for all threads of the process
NEW_CONNECTIONS = "accept accept4 bind connect listen socket socketpair"
# Operations of futex without FUTEX_PRIVATE_FLAG: for processes that share memory. From futex.h.
WAITS, WAKES, FUTEX_REALTIME = (0, 9, 11), (1, 3, 4, 5, 6, 7, 8, 10, 12, 13), 256
ROOM = "fstatfs statfs"  # what the others print takes room that these tell


def programs() -> dict[str, bytes]:
    """Return the filters as BPF programs for this machine, for prctl(PR_SET_SECCOMP), by who gets them.

    "main": all of a submission's processes but the nursery. "nursery": the same, but it may narrow itself further, by a
    filter and by Landlock, and its ranks do: "main" if they aren't sealed, else "ranks", see `of_ranks`.

    Raise ImportError without pyseccomp, and RuntimeError without libseccomp.
    """
    return {"main": program(adds_filters=False), "nursery": program(adds_filters=True), "ranks": of_ranks()}


def of_ranks() -> bytes:
    """Return the filter that a sealed rank adds once its group is connected: nothing passes to others but messages.

    It may change no file and no name of one, send no signal but the one by which it aborts itself, and open no
    connection.
    """
    import pyseccomp as seccomp

    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    rules.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)

    def refuse(names: str, error: int, *conditions: seccomp.Arg) -> None:
        for name in names.split():
            number = seccomp.resolve_syscall(seccomp.Arch.NATIVE, name)
            if number >= 0:
                rules.add_rule(seccomp.ERRNO(error), number, *conditions)

    refuse(CHANGES_OF_FILES, errno.EROFS)
    for mask, values in WRITING.items():
        for value in values:
            refuse("open", errno.EROFS, seccomp.Arg(1, seccomp.MASKED_EQ, mask, value))
            refuse("openat", errno.EROFS, seccomp.Arg(2, seccomp.MASKED_EQ, mask, value))
    refuse("openat2", errno.ENOSYS)  # its flags are in memory, which a filter can't read
    refuse(CALLS_TO_PROCESSES, errno.EPERM)
    refuse("tgkill", errno.EPERM, seccomp.Arg(2, seccomp.NE, signal.SIGABRT))
    for command in SIGNALS_BY_FILE:
        refuse("fcntl", errno.EPERM, seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, command))
    refuse(ROOM, errno.ENOSYS)
    refuse(TRACEABLE, errno.EPERM)
    refuse("prctl", errno.EPERM, seccomp.Arg(0, seccomp.MASKED_EQ, 0xFFFFFFFF, SET_DUMPABLE))
    refuse("landlock_restrict_self seccomp", errno.EPERM)
    refuse(NEW_CONNECTIONS, errno.EACCES)
    refuse("setsockopt", errno.EACCES)  # which could keep from gloo what another reads, or tell it of the window
    # On memory that processes share, a wait would wake another's, and the count of those that it wakes is a message.
    # glibc waits so for a thread that ends: it looks again at once, until the thread has ended.
    refuse("futex_requeue futex_wait futex_waitv futex_wake", errno.ENOSYS)
    for operation in WAITS:
        refuse("futex", errno.EAGAIN, seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF & ~FUTEX_REALTIME, operation))
    for operation in WAKES:
        refuse("futex", errno.EINVAL, seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF & ~FUTEX_REALTIME, operation))
    return _exported(rules)


def program(adds_filters: bool) -> bytes:
    """Return the filter of a submission's processes. `adds_filters`: whether they may add one, as the nursery's do."""
    import pyseccomp as seccomp  # here, so that this module can be imported without libseccomp

    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.ENOSYS))
    rules.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)  # 32-bit calls are numbered differently

    def allow(name: str, *conditions: seccomp.Arg) -> None:
        number = seccomp.resolve_syscall(seccomp.Arch.NATIVE, name)
        # Negative: this machine lacks the call, as ARM lacks `open`, or libseccomp is older. It stays forbidden.
        if number >= 0:
            rules.add_rule(seccomp.ALLOW, number, *conditions)

    for name in (FILES + MEMORY + PROCESSES + WAITING + SOCKETS).split():
        allow(name)

    def is_int(
        place: int, value: int
    ) -> seccomp.Arg:  # the kernel reads only the lower half of an argument of type int
        return seccomp.Arg(place, seccomp.MASKED_EQ, 0xFFFFFFFF, value)

    for level, options in SOCKET_OPTIONS.items():
        for option in options:
            allow("setsockopt", is_int(1, level), is_int(2, option))
    for request in REQUESTS:
        allow("ioctl", is_int(1, request))
    for command in FILE_COMMANDS:
        allow("fcntl", is_int(1, command))
    for name in ("preadv2", "pwritev2"):
        allow(name, seccomp.Arg(5, seccomp.MASKED_EQ, 0xFFFFFFFF & ~READ_FLAGS, 0))
    for advice in FILE_ADVICE:
        allow("fadvise64", is_int(3, advice))
    for advice in MEMORY_ADVICE:
        allow("madvise", is_int(2, advice))
    for option in PROCESS_OPTIONS:
        allow("prctl", is_int(0, option))
    if adds_filters:
        allow("landlock_restrict_self")
        allow("seccomp", *(is_int(place, value) for place, value in enumerate(FOR_ALL_THREADS)))
    # Its own limits: with the grader's user it could else change its init's. That of cores stays at 1 byte: below
    # that, the kernel starts the program that its core_pattern may name, outside of the sandbox.
    allow("prlimit64", is_int(0, 0), seccomp.Arg(2, seccomp.EQ, 0))
    for limit in LIMITS:
        allow("prlimit64", is_int(0, 0), is_int(1, limit))
        allow("setrlimit", is_int(0, limit))
    # clone3 passes its flags in memory, which a filter can't read. It fails with ENOSYS, and libc falls back to clone.
    # Only threads may share descriptors: the locks of a process that ended and left them to another aren't listed.
    allow("clone", seccomp.Arg(0, seccomp.MASKED_EQ, NAMESPACES | SHARED_FILES, 0))
    of_thread = SHARED_FILES | THREAD
    allow("clone", seccomp.Arg(0, seccomp.MASKED_EQ, NAMESPACES | of_thread, of_thread))
    allow("personality", seccomp.Arg(0, seccomp.EQ, 0xFFFFFFFF))  # read it, don't change it
    allow("socket", is_int(0, socket.AF_UNIX))
    allow("socket", is_int(0, socket.AF_NETLINK), is_int(2, ROUTES))
    for family in (socket.AF_INET, socket.AF_INET6):
        for kind, protocol in INTERNET:
            is_kind = seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF & ~SOCKET_FLAGS, kind)
            allow("socket", is_int(0, family), is_kind, is_int(2, protocol))
    allow("socketpair", is_int(0, socket.AF_UNIX))
    return _exported(rules)


def _exported(rules: seccomp.SyscallFilter) -> bytes:
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
