# ruff: noqa: E501 (what students write is as long as it is)
"""Submissions that want to harm what is outside: files, processes, the machine, the rest of the class."""

from . import GUARD, everywhere, first, hand_in

hand_in(
    "damaging",
    "writes_everywhere",
    "Writes files with a mark in their names wherever it can: course, home, system, libraries, spools.",
    {
        "mean": """
import glob, os, site, sys
places = ["@COURSE@", "@COURSE@/source", "@COURSE@/submitted/honest-plain/numbers", "@HOME@", "@HOME@/.ssh", "@ROOT@", "@TMP@"]
places += ["/", "/tmp", "/var/tmp", "/dev/shm", "/dev", "/etc", "/etc/cron.d", "/var/spool/cron", "/run", "/root", "/usr/local/bin", "/mnt", "/opt"]
places += [*sys.path, *site.getsitepackages(), sys.prefix, os.path.dirname(os.__file__), os.path.expanduser("~"), "/proc/1/root/tmp", "/proc/1/cwd"]
for place in places:
    for name in ("@MARK@", "@MARK@.pth"):
        try:
            with open(os.path.join(place, name), "w") as file:
                file.write("# this is harmless\\n")
        except OSError:
            pass
"""
    },
)
hand_in(
    "damaging",
    "changes_the_course",
    "Opens the others' notebooks, the source, the gradebook and the libraries for writing, and renames, links and touches them.",
    {
        "mean": """
import glob, os, sys
paths = glob.glob("@COURSE@/*") + glob.glob("@COURSE@/*/*/*") + glob.glob("@COURSE@/*/*/*/*") + glob.glob("@HOME@/.*")
paths += [module.__file__ for name, module in list(sys.modules.items()) if name in ("os", "numpy", "torch", "IPython", "autograder") and module.__file__]
for path in paths:
    try:
        os.close(os.open(path, os.O_WRONLY))
        print("ESC" + "APED: it can write", path)
    except OSError:
        pass
    try:
        os.utime(path)
        print("ESC" + "APED: it can touch", path)
    except OSError:
        pass
"""
    },
)
hand_in(
    "damaging",
    "gradebook",
    "Looks for the gradebook, by its path and by SQLAlchemy's, and gives itself full points.",
    {
        "mean": """
import os, sqlite3
for path in ("@COURSE@/gradebook.db", "/proc/1/root@COURSE@/gradebook.db", "gradebook.db", "../gradebook.db", "../../gradebook.db", "../../../gradebook.db"):
    if os.path.exists(path):
        print("ESC" + "APED: it sees", path)
        try:
            with sqlite3.connect(path, timeout=0.1) as book:
                book.execute("update grade set auto_score = max_score_ where 0")
        except sqlite3.Error:
            pass
"""
    },
)
hand_in(
    "damaging",
    "kills_everybody",
    "Sends SIGSTOP, SIGTERM and SIGKILL to its parent, to process 1, to its group and to everyone.",
    first(
        GUARD
        + """
import os, signal

def kill():
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
        for pid in (os.getppid(), 1, 2, -1, 0):
            try:
                os.kill(pid, number)
            except OSError:
                pass
""",
        everywhere("0", "kill()"),
    ),
)
hand_in(
    "damaging",
    "kills_at_once",
    "The same at the top of its first cell.",
    {"mean": GUARD + "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(-1, signal.SIGKILL)"},
)
hand_in(
    "damaging",
    "leaves_processes",
    "Starts children that leave their session, ignore signals, fork again and again, and would outlive it by 100 s.",
    {
        "mean": """
import os, subprocess, sys
code = "import os, signal, sys, time\\nfor s in range(1, 65):\\n    try: signal.signal(s, signal.SIG_IGN)\\n    except (OSError, ValueError): pass\\nos.setsid() if os.getpgid(0) != os.getpid() else 0\\nif os.fork(): os._exit(0)\\ntime.sleep(100)"
for _ in range(3):
    subprocess.Popen([sys.executable, "-c", code, "@MARK@"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.Popen("nohup sh -c 'sleep 100; : @MARK@' >/dev/null 2>&1 &", shell=True)
def mean(values): return 0.0
"""
    },
)
hand_in(
    "damaging",
    "new_namespaces",
    "Asks for namespaces, mounts, a new root, keys, BPF, performance counters, userfaultfd, io_uring and modules.",
    {
        "mean": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
calls = {
    "unshare user": (272, 0x10000000), "unshare mount": (272, 0x00020000), "unshare net": (272, 0x40000000), "unshare pid": (272, 0x20000000),
    "mount": (165, b"none", b"/tmp", b"tmpfs", 0, 0), "umount": (166, b"/proc", 2), "pivot_root": (155, b"/tmp", b"/tmp"), "chroot": (161, b"/tmp"),
    "bpf": (321, 5, 0, 0), "init_module": (175, 0, 0, b""), "kexec": (246, 0, 0, 0, 0), "reboot": (169, 1, 2, 3), "swapon": (167, b"/tmp/x", 0),
    "sethostname": (170, b"forged", 6), "settimeofday": (164, 0, 0), "acct": (163, b"/tmp/x"), "quotactl": (179, 0, 0, 0, 0),
    "keyctl": (250, 0, -3, 1), "perf_event_open": (298, 0, 0, -1, -1, 0), "userfaultfd": (323, 0), "io_uring_setup": (425, 1, 0),
    "open_by_handle": (304, -100, 0, 0), "setuid 0": (105, 0), "setgid 0": (106, 0), "mknod": (133, b"/tmp/sda", 0o60666, 0x800),
    "fsopen": (430, b"tmpfs", 0), "open_tree": (428, -100, b"/", 1), "move_mount": (429, -100, b"/", -100, b"/tmp", 0), "name_to_handle": (303, -100, b"/", 0, 0, 0),
}
harmless = {"keyctl", "settimeofday", "io_uring_setup"}  # what they answer here tells nothing
for name, call in calls.items():
    if name == "setuid 0" and os.getuid() == 0 or name == "setgid 0" and os.getgid() == 0 or name == "reboot":
        continue
    if libc.syscall(*call) >= 0 and name not in harmless:
        print("ESC" + "APED: the kernel granted", name)
child = libc.clone  # a child in a user namespace of its own
pid = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)
if pid == 0:
    os._exit(7)
if pid > 0:
    print("ESC" + "APED: the kernel granted a child with a user namespace")
for space in ("mnt", "net", "pid", "user"):
    try:
        handle = os.open(f"/proc/1/ns/{space}", os.O_RDONLY)
        if libc.setns(handle, 0) == 0:
            print("ESC" + "APED: it entered the namespace", space)
    except OSError:
        pass
"""
    },
)
hand_in(
    "damaging",
    "wider_limits",
    "Raises its limits and priority: setrlimit, nice, real-time scheduling, oom_score_adj, processors.",
    {
        "mean": """
import os, resource
for name in dir(resource):
    if name.startswith("RLIMIT_"):
        number = getattr(resource, name)
        soft, hard = resource.getrlimit(number)
        if hard != resource.RLIM_INFINITY:
            try:
                resource.setrlimit(number, (soft, resource.RLIM_INFINITY))
                print("ESC" + "APED: no limit any more:", name)
            except (OSError, ValueError):
                pass
for what in (lambda: os.nice(-20), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))):
    try:
        what()
        print("ESC" + "APED: a higher priority")
    except OSError:
        pass
try:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    print("ESC" + "APED: it is spared when memory runs out")
except OSError:
    pass
"""
    },
)
hand_in(
    "damaging",
    "terminal",
    "Types into the grader's terminal (TIOCSTI), and prints escape sequences that would repaint it or set its title.",
    {
        "mean": r"""
import fcntl, os, sys, termios
for path in ("/dev/tty", "/dev/console", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"):
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
        fcntl.ioctl(fd, termios.TIOCSTI, b"#")
        print("ESC" + "APED: it typed into", path)
    except OSError:
        pass
print("\x1b[2J\x1b]0;@MARK@\x07\x1b[31mhonest-plain/numbers: 0/32\r\x1b[A\x08\x9b", file=sys.stderr)
os.write(1, b"\x1b[2J\x1b]0;@MARK@\x07")
raise ValueError("\x1b[2J\x1b]0;@MARK@\x07\r\nhonest-plain/numbers: 0/32")
"""
    },
)
hand_in(
    "damaging",
    "scratch_that_cannot_be_removed",
    "Fills its scratch with what is hard to clean up: closed folders, pipes, circular links, 1,000 levels, names that are no text.",
    {
        "mean": r"""
import os
os.makedirs("closed/inner", exist_ok=True)
open("closed/inner/file", "w").close()
os.mkfifo("pipe")
os.symlink("loop", "loop")
os.symlink("..", "closed/inner/up")
for name in (b"\xff\xfe", b"new\nline", b"-rf", b"*", b" ", b"a" * 255, "\u202e".encode()):
    try:
        os.mkdir(name)
    except OSError:
        pass
here = os.getcwd()
for _ in range(1000):
    os.mkdir("deep")
    os.chdir("deep")
os.chdir(here)
os.chmod("closed/inner", 0)
os.chmod("closed", 0)
os.chmod(".", 0)
"""
    },
)
hand_in(
    "damaging",
    "own_notebook_changed",
    "While it runs, removes and rewrites the notebook that is being graded, and everything in its folder.",
    {
        "mean": """
import glob, json, os, shutil
for path in glob.glob("*") + glob.glob("../*") + glob.glob("/tmp/*") + glob.glob("@COURSE@/autograded/*/*/*"):
    if os.path.exists("@COURSE@/nbgrader_config.py"):
        break
    try:
        (shutil.rmtree if os.path.isdir(path) else os.remove)(path)
    except OSError:
        pass
"""
    },
)
hand_in(
    "damaging",
    "breaks_the_interpreter",
    "Closes all files, clears sys.modules and builtins, and turns the interpreter's own machinery off.",
    {
        "mean": """
import builtins, gc, os, sys
os.closerange(3, 1000)
sys.stdout = sys.stderr = None
sys.path.clear()
sys.meta_path.clear()
for name in list(sys.modules):
    if name not in ("sys", "builtins", "__main__"):
        del sys.modules[name]
for name in ("open", "print", "len", "isinstance", "type", "__import__"):
    delattr(builtins, name)
""",
        "table": "def table(n):\n    return 0",
    },
)
hand_in(
    "damaging",
    "the_warm_process",
    "Looks for the process it was forked from, and changes it: signals, memory, its limits, its priority, its open files.",
    {
        "mean": GUARD
        + """
import os, resource
for pid in {os.getppid(), 1, *(int(p) for p in os.listdir("/proc") if p.isdigit())} - {os.getpid(), 0}:
    for what in (
        lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (5, 5)),
        lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
        lambda: os.sched_setaffinity(pid, {0}),
        lambda: os.kill(pid, 19),
        lambda: open(f"/proc/{pid}/oom_score_adj", "w").write("1000"),
        lambda: open(f"/proc/{pid}/mem", "wb").close(),
    ):
        try:
            what()
        except OSError:
            pass
"""
    },
)
