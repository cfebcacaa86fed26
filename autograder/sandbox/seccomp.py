"""The system calls that a submission may make: what Python, numpy and torch need, and no others.

The list names what is allowed. Every other call, new ones of newer kernels included, fails with "Function not
implemented" (ENOSYS), and the C library then falls back where it can. A submission therefore can't mount, make
namespaces, trace processes, load modules or reboot, and has no kernel keyring, bpf or io_uring. It also can't have
memory outside its processes and its scratch (memfd, System V shared memory), which the limits wouldn't count.
"""

from __future__ import annotations

import errno
import socket
import tempfile

FILES = """
access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64 fallocate
fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fstat fstatfs fsync
ftruncate futimesat getcwd getdents getdents64 getxattr ioctl lchown lgetxattr link linkat listxattr llistxattr lseek
lstat mkdir mkdirat mknod mknodat newfstatat open openat openat2 pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev
pwritev2 read readahead readlink readlinkat readv rename renameat renameat2 rmdir sendfile stat statfs statx symlink
symlinkat sync_file_range truncate umask unlink unlinkat utime utimensat utimes write writev
"""
MEMORY = """
brk madvise membarrier mincore mlock mlock2 mlockall mmap mprotect mremap msync munlock munlockall munmap
pkey_alloc pkey_free pkey_mprotect
"""
PROCESSES = """
alarm arch_prctl capget execve execveat exit exit_group fork get_robust_list get_thread_area getcpu getegid geteuid
getgid getgroups getitimer getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid
gettid getuid ioprio_get kill nanosleep pause pidfd_open pidfd_send_signal prctl prlimit64 restart_syscall rseq
rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setparam sched_setscheduler sched_yield
set_robust_list set_thread_area set_tid_address setgid setgroups setitimer setpgid setpriority setregid setresgid
setresuid setreuid setrlimit setsid setuid sigaltstack signalfd signalfd4 sysinfo tgkill times tkill uname vfork wait4
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
setsockopt shutdown
"""
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)  # NETLINK lists interfaces
ROUTES = 0  # NETLINK_ROUTE, the only protocol of AF_NETLINK that is allowed: it lists interfaces
NAMESPACES = 0x7E020080  # all CLONE_NEW* flags: time, cgroup, uts, ipc, user, pid, net and mount


def program() -> bytes:
    """Return the filter as a BPF program for this machine, for prctl(PR_SET_SECCOMP).

    Raise ImportError without pyseccomp, and RuntimeError without libseccomp.
    """
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
    # clone3 passes its flags in memory, which a filter can't read. It fails with ENOSYS, and libc falls back to clone.
    allow("clone", seccomp.Arg(0, seccomp.MASKED_EQ, NAMESPACES, 0))
    allow("personality", seccomp.Arg(0, seccomp.EQ, 0xFFFFFFFF))  # read it, don't change it
    for family in FAMILIES:
        protocol = [seccomp.Arg(2, seccomp.EQ, ROUTES)] if family == socket.AF_NETLINK else []
        allow("socket", seccomp.Arg(0, seccomp.EQ, family), *protocol)
    allow("socketpair", seccomp.Arg(0, seccomp.EQ, socket.AF_UNIX))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
