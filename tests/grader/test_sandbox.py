"""The sandbox contains whatever runs in it, ends with all of it, and refuses to begin where it could not."""

import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import pytest

from autograder.inside import canary
from autograder.sandbox import capture, envelope, prove, watch
from autograder.sandbox.envelope import CannotSandbox, Limits, Warm, enter

pytestmark = pytest.mark.sandbox

ROOT = Path(__file__).resolve().parents[2]
RANKS = ("numpy", "torch.distributed", "collectives.ranks", "collectives.execute", "collectives.ranks.shared")
MIB = 2**20

# What runs in the sandboxes here: it runs Python that it is sent, and answers with what `print` was given.
ENTRY = """
import io, contextlib, linecache

def serve(connection):
    lines, names = connection.makefile("rwb"), {"__name__": "__main__"}
    for number, line in enumerate(lines):
        code, printed, cell = __import__("json").loads(line), io.StringIO(), f"<cell {number}>"
        linecache.cache[cell] = (len(code), None, code.splitlines(keepends=True), cell)
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(code, cell, "exec"), names)
            except Exception as error:
                print(f"{type(error).__name__}: {error}")
        lines.write(__import__("json").dumps(printed.getvalue().strip()).encode() + b"\\n")
        lines.flush()
"""


@pytest.fixture(scope="module")
def entry(tmp_path_factory):
    """The name of the entry; its module is where Python finds it."""
    folder = tmp_path_factory.mktemp("entry")
    (folder / "runs_what_it_is_sent.py").write_text(ENTRY)
    folder.chmod(0o755)
    sys.path.insert(0, str(folder))
    yield "runs_what_it_is_sent.serve"
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def warm(entry):
    """A warm interpreter with torch, one for all of these tests: each of them enters it anew."""
    with Warm(RANKS, entry=entry) as started:
        yield started


def run(inside, code):
    """Run Python in a sandbox; what it printed, or None if the sandbox ended instead."""
    inside.socket.settimeout(60)
    try:
        inside.socket.sendall(json.dumps(code).encode() + b"\n")
        heard = b""
        while not heard.endswith(b"\n"):
            more = inside.socket.recv(65536)
            if not more:
                return None
            heard += more
    except ConnectionError:
        return None
    return json.loads(heard)


def ended(inside):
    """Why a sandbox ended, which is waited for."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if why := inside.ended():
            return why
        time.sleep(0.01)
    return None


def test_a_canary_is_contained_and_the_teacher_is_told_how(warm):
    told = prove.prove(warm.address, warm.baits)
    assert told.startswith("contained: ")
    assert "control groups" in told or "watching" in told


def test_python_and_the_course_work_inside_as_somebody_who_is_not_root(warm):
    with enter(warm.address) as inside:
        assert run(inside, "import os, sqlite3, getpass; print(os.getuid(), getpass.getuser(), os.getcwd())") == (
            "1000 student /home/student"
        )
        assert run(inside, "import subprocess; print(subprocess.check_output(['sh', '-c', 'echo of $HOME']))") == (
            "b'of /home/student\\n'"
        )
        assert inside.ended() is None


def test_a_set_of_names_has_the_same_order_in_every_sandbox_of_every_grader(warm):
    """So a greedy answer that breaks ties as the set has them gets the same points again."""
    shows = "import sys; print(sys.flags.hash_randomization, list({'rack', 'host', 'gpu', 'rail'}))"
    alone = [sys.executable, "-c", shows]
    fixed = subprocess.run(alone, env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True)
    with enter(warm.address) as inside:
        assert run(inside, shows) == fixed.stdout.strip()


def test_two_sandboxes_share_neither_files_nor_processes_nor_sockets_nor_variables(warm):
    with enter(warm.address) as one, enter(warm.address) as other:
        leave = "import socket; s = socket.create_server(('127.0.0.1', 5000)); open('/tmp/note', 'w'); x = 1; print(1)"
        assert run(one, leave) == "1"
        assert run(other, "import os; print(os.listdir('/tmp'), os.listdir('/dev/shm'), os.listdir('.'))").endswith(
            " [] []"
        )
        assert run(other, "print('note' in os.listdir('/tmp'))") == "False"
        assert "refused" in run(other, "import socket; socket.create_connection(('127.0.0.1', 5000))")
        assert run(other, "x").startswith("NameError")
        assert run(other, "print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()))") == "[2, 3]"


RUN_RANKS = """
import os, torch, torch.distributed as dist
from collectives import ranks
from multiprocessing import forkserver

def all_reduce(rank, world_size, size):
    x = torch.full((size,), float(rank))
    dist.all_reduce(x)
    return x[0].item()

def server_of(rank, world_size):
    return os.getppid()

def wait_for_each_other(rank, world_size):
    dist.recv(torch.ones(1), src=(rank + 1) % world_size)
"""


SAY = """
import torch, torch.distributed as dist
from collectives import ranks

def say(rank, world_size):
    if rank == 0:
        dist.send(torch.arange(1_000_003, dtype=torch.int32), 1)
    if rank == 1:
        dist.recv(torch.zeros(1_000_003, dtype=torch.int32), 0)
"""


def test_what_ranks_say_to_one_another_is_read_outside(warm):
    said = np.arange(1_000_003, dtype=np.int32).tobytes()
    with enter(warm.address) as inside:
        run(inside, SAY)
        for _ in range(2):
            with inside.captured() as wire:
                run(inside, "ranks.run(say, 3)")
            assert sum(said in stream for stream in wire.by_ends.values()) == 1
        run(inside, "ranks.run(say, 3)")  # unseen
        with inside.captured() as wire:
            inside.close()  # as when its time is up
        assert wire.by_ends == {}


def test_packets_are_read_in_their_order_and_once():
    packets = [(2**32 - 2, b"cdef"), (2**32 - 4, b"ab"), (2, b"gh"), (0, b"ef"), (2**32 - 2, b"cdef")]
    assert capture.in_order(packets) == b"abcdefgh"


@pytest.mark.parametrize("missing", [0, 1])
def test_many_small_packets_are_followed_and_too_many_bytes_are_not(warm, monkeypatch, missing):
    """As where an honest answer sends a chunk in small pieces: thirty packets for each of the ring's blocks."""
    monkeypatch.setattr(capture, "EACH", 0)
    monkeypatch.setattr(capture, "MOST", 5000 - missing)
    flood = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
other, _ = listener.accept()
for _ in range(5000):
    one.send(b"x")
one.shutdown(socket.SHUT_WR)
while other.recv(5000):
    pass
"""
    with enter(warm.address) as inside, inside.captured() as wire:
        run(inside, flood)
    assert (wire.by_ends and {*wire.by_ends.values()}) == (None if missing else {b"x" * 5000})


FEW = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
other, _ = listener.accept()
one.sendall(b"few")
other.recv(3)
"""


@pytest.mark.parametrize("most, late", [(10, True), (1, False)])
def test_packets_that_were_read_too_slowly_are_the_graders_fault_and_too_many_are_not(warm, monkeypatch, most, late):
    monkeypatch.setattr(capture, "MANY", most)
    monkeypatch.setattr(capture, "SECONDS", 0.01)
    monkeypatch.setattr(capture.Capture, "_drain", lambda self: None)
    with enter(warm.address) as inside, inside.captured() as wire:
        run(inside, FEW)
    assert (wire.by_ends, wire.late) == (None, late)


def test_ranks_run_inside_at_once_even_after_autograd_and_their_bytes_are_counted_outside(warm):
    with enter(warm.address) as inside:
        run(inside, RUN_RANKS)
        server = run(inside, "print(forkserver._forkserver._forkserver_pid)")
        run(inside, "(torch.ones(500, 500, requires_grad=True) ** 2).sum().backward()")  # starts threads
        before = inside.loopback()
        assert run(inside, "print(ranks.run(all_reduce, 4, 1_000_000))") == "[6.0, 6.0, 6.0, 6.0]"
        assert inside.loopback() - before == pytest.approx(24e6, rel=0.05)  # 2 (P - 1) S, S = 4 MB, and headers
        assert run(inside, "print(ranks.run(all_reduce, 8, 10))") == str([28.0] * 8)
        # Its own server would be another process, and would first import torch, for 1.1 s and more.
        assert run(inside, "print(*set(ranks.run(server_of, 4)))") == server
        told = run(inside, "ranks.run(wait_for_each_other, 2, timeout=0.5)")
        assert "rank 0 waits to receive from rank 1" in told


@pytest.fixture(params=["control groups", "watching"])
def counting(request, monkeypatch, warm):
    """Each way of counting a sandbox's memory and processes."""
    if request.param == "watching":
        monkeypatch.setattr(watch, "_parents", lambda: None)
    with enter(warm.address) as inside:
        if inside.counted_by != request.param:
            pytest.skip("blocked: this user may make no control groups here")
    return request.param


def test_memory_is_of_the_whole_tree_with_its_scratch(warm, counting):
    limits = Limits(memory=300 * MIB, scratch=400 * MIB)
    in_processes = "import os, time\nfor _ in range(3): os.fork()\nx = bytearray(60 * 2**20)\ntime.sleep(20)"
    in_files = "f = open('/dev/shm/x', 'wb')\nfor _ in range(380): f.write(bytes(2**20))\nimport time; time.sleep(20)"
    for code in (in_processes, in_files):
        with enter(warm.address, limits) as inside:
            assert inside.counted_by == counting
            assert run(inside, "print(len(bytearray(100 * 2**20)))") == str(100 * MIB)  # is allowed
            run(inside, code)
            assert ended(inside) == "memory"


MANY_SOCKETS = """
import os, socket, time
os.fork()
kept = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(600)]
for each in kept: each.bind(("127.0.0.1", 0))
time.sleep(60)
"""
MANY_PAIRS = "import os, socket, time; os.fork(); kept = [socket.socketpair() for _ in range(300)]; time.sleep(60)"


@pytest.mark.parametrize(
    "pattern, limit, refused",
    [("|/bin/dump", 0, True), ("|/bin/dump", 1, False), ("core", 0, False), ("@/run/dump", 1, True)],
)
def test_a_crash_that_would_reach_a_program_outside_is_found_before_anything_is_graded(
    monkeypatch, pattern, limit, refused
):
    """Where all of the grader's own limits are lower, as by `ulimit -c 0`, the sandbox can't raise its own."""
    monkeypatch.setattr(canary, "_core_pattern", lambda: pattern)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit) if kind == resource.RLIMIT_CORE else (0, 0))
    limits = dict.fromkeys(("cpu_seconds", "processes", "open_files", "scratch", "stack"), 0)
    assert any("core_pattern" in fault for fault in canary._limits(limits)) == refused


@pytest.mark.parametrize("code", [MANY_SOCKETS, MANY_PAIRS], ids=["UDP", "Unix"])
def test_limits_hold_while_the_judges_interpreter_is_in_one_long_call(warm, counting, code):
    """A value that a student returned can keep it there for minutes: no thread of the judge's runs meanwhile."""
    with enter(warm.address, Limits(memory=300 * MIB)) as inside:
        inside.socket.sendall(json.dumps(code).encode() + b"\n")
        ctypes.PyDLL(None).sleep(5)  # without letting go of Python's lock
        assert inside._gone(0)
        assert ended(inside) == "memory"


def test_a_sandbox_that_nobody_watches_is_ended_and_that_is_not_its_fault(warm):
    with enter(warm.address) as inside:
        inside._watch.process.kill()
        inside._watch.process.wait()
        inside.is_spent()
        assert ended(inside) == "killed"


def test_the_limit_is_named_before_the_sandbox_is_gone(warm):
    with enter(warm.address) as inside:
        inside._watch.process.send_signal(signal.SIGSTOP)  # so that it isn't ended
        inside.socket.sendall(json.dumps(MANY_SOCKETS).encode() + b"\n")
        deadline = time.monotonic() + 20
        while not inside.is_spent() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert inside.ended() == "memory" and not inside._gone(0)
        inside._watch.process.send_signal(signal.SIGCONT)


def test_whoever_watches_ends_with_the_sandbox(warm):
    with enter(warm.address) as inside:
        process = inside._watch.process
        assert process.poll() is None
    assert process.poll() is not None


def test_a_submission_has_one_share_of_the_processors_however_many_sessions_it_starts(warm):
    with enter(warm.address) as inside:
        if inside.counted_by != "control groups":
            pytest.skip("blocked: this user may make no control groups here")
        groups = [line.split(":") for line in Path(f"/proc/{inside.init}/cgroup").read_text().splitlines()]
        by_controller = {name: path for _, names, path in groups for name in names.split(",")}
        assert "/submission-" in by_controller.get("cpu", by_controller.get("", ""))


def test_a_fork_bomb_ends_and_leaves_nothing(warm, counting):
    with enter(warm.address, Limits(processes=40)) as inside:
        namespace = os.readlink(f"/proc/{inside.init}/ns/pid")
        run(inside, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
        assert ended(inside) == "processes"
        assert watch.members(namespace) == []


def test_a_fork_bomb_that_is_refused_has_spent_its_sandbox_by_then(warm, counting):
    """Whatever runs next is not to blame for it: the kernel's refusal comes from what is asked whether it came."""
    for _ in range(5):
        with enter(warm.address, Limits(processes=40)) as inside:
            inside.socket.sendall(json.dumps("import os\nwhile True: os.fork()").encode() + b"\n")
            assert envelope._readable(inside.socket.fileno(), 20), "the first of its processes says that it was refused"
            assert inside.is_spent()


def test_scratch_files_and_time_have_limits(warm):
    with enter(warm.address, Limits(scratch=MIB, open_files=64, cpu_seconds=1)) as inside:
        assert "File too large" in run(
            inside, "open('/tmp/x', 'wb', 0).write(bytes(2**20 + 1)); open('/tmp/x', 'ab', 0).write(b'x')"
        )
        assert "No space left" in run(inside, "open('/dev/shm/y', 'wb', 0).write(bytes(2**20))")
        assert "No space left" in run(inside, "import os\nfor n in range(10**4): os.mkdir(f'/tmp/{n}')")
        assert "Too many open files" in run(inside, "kept = [open('/dev/null') for _ in range(100)]")
        run(inside, "while True: pass")
        assert ended(inside) == "cpu"


@pytest.mark.parametrize(
    "code, why",
    [
        ("import os; os._exit(3)", "exit 3"),
        ("import ctypes; ctypes.string_at(0)", "signal 11"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        ("import sys; sys.exit()", "exit 0"),
    ],
)
def test_how_a_sandbox_ended_is_known(warm, code, why):
    with enter(warm.address) as inside:
        assert inside.ended() is None
        assert run(inside, code) is None
        assert inside.ended() == why
    assert inside.ended() == why


def test_what_it_started_is_gone_when_it_closes_daemons_too(warm):
    inside = enter(warm.address)
    daemon = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if not os.fork(): time.sleep(100)\n    os._exit(0)"
    )
    namespace = os.readlink(f"/proc/{inside.init}/ns/pid")
    run(inside, daemon)
    assert len(watch.members(namespace)) >= 4
    inside.close()
    inside.close()
    assert watch.members(namespace) == []
    assert inside.ended() == "closed"


def test_it_is_gone_too_when_the_grader_is_killed(entry, tmp_path):
    program = f"""
import os, sys, time
sys.path[:0] = {[path for path in sys.path if path]!r}
from autograder.sandbox.envelope import Warm, enter
warm = Warm((), entry={entry!r})
inside = enter(warm.address)
print(os.readlink(f"/proc/{{inside.init}}/ns/pid"), os.readlink(f"/proc/{{warm.pid}}/ns/pid"), flush=True)
time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT) as grader:
        namespaces = grader.stdout.readline().split()
        assert all(map(watch.members, namespaces))
        grader.kill()
    deadline = time.monotonic() + 10
    while any(map(watch.members, namespaces)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(namespaces) == 2 and not any(map(watch.members, namespaces))


def test_closing_the_warm_interpreter_ends_all_and_enter_then_says_so(entry):
    with Warm((), entry=entry) as started:
        inside = enter(started.address)
    assert inside.ended() is not None
    inside.close()
    with pytest.raises(CannotSandbox, match="no warm interpreter answers"):
        enter(started.address)


def user_of(inside):
    """The user, by the host's number, that a sandbox's main process runs as."""
    pids = watch.members(os.readlink(f"/proc/{inside.init}/ns/pid"))
    return max(int(Path(f"/proc/{pid}/status").read_text().partition("Uid:")[2].split()[0]) for pid in pids)


def few_users(count, monkeypatch, tmp_path):
    if not envelope.has_second_user():
        pytest.skip("only root can give sandboxes users of their own")
    monkeypatch.setattr(envelope, "HOST_USERS", range(64744, 64744 + count))
    monkeypatch.setattr(envelope, "CLAIMS", tmp_path / "claims" / "users")


def test_no_sandbox_gets_the_user_of_one_that_lives_whichever_grader_made_it(entry, monkeypatch, tmp_path):
    few_users(3, monkeypatch, tmp_path)
    with Warm((), entry=entry) as ours, Warm((), entry=entry) as theirs:
        with enter(ours.address) as long, enter(theirs.address) as other:
            taken = [user_of(long), user_of(other)]
            for warm in (ours, theirs) * 3:
                with enter(warm.address) as brief:
                    taken.append(user_of(brief))
        assert taken[0] != taken[1] and set(taken[2:]) == {64744, 64745, 64746} - set(taken[:2])
        with enter(ours.address), enter(ours.address), enter(ours.address):  # theirs has given its users back
            pass
    assert (tmp_path / "claims").stat().st_mode & 0o777 == 0o700


def test_a_sandbox_waits_for_a_user_and_the_grader_is_told_when_none_becomes_free(entry, monkeypatch, tmp_path):
    few_users(1, monkeypatch, tmp_path)
    weaken({"USER_SECONDS = 20.0": "USER_SECONDS = 3.0"}, monkeypatch, tmp_path)
    with Warm((), entry=entry) as ours, Warm((), entry=entry) as theirs, enter(ours.address) as only:
        with pytest.raises(CannotSandbox, match="all 1 users for submissions are taken, by this grader and others"):
            enter(theirs.address)
        with ThreadPoolExecutor() as threads:
            later = [threads.submit(enter, warm.address) for warm in (ours, theirs)]
            time.sleep(0.5)
            assert not any(each.done() for each in later)
            only.close()
            for each in as_completed(later):
                with each.result() as inside:
                    assert run(inside, "print(1)") == "1"


def test_a_folder_for_claims_that_others_can_write_is_refused(entry, monkeypatch, tmp_path):
    few_users(1, monkeypatch, tmp_path)
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims").chmod(0o777)
    with pytest.raises(CannotSandbox, match="by the user who grades alone"):
        Warm((), entry=entry)


# Each weakening: what is taken out of `warm`, or put into bubblewrap's words; and what the proof has to say of it.
WITHOUT = {
    "users, networks and scratches of their own": (
        {
            "        user = users.take()\n": "        user = USER\n",
            "NEW_NS | NEW_NET | NEW_IPC": "NEW_NS | NEW_IPC",
            "        _loopback_up()\n        self._hand_out_the_wire()\n": "",
            '_mount("tmpfs", "/home", "tmpfs", NO_SUID | NO_DEVICES | NO_ATIME, options)': "pass",
            "os.mkdir(folder, 0o700)": "os.makedirs(folder, exist_ok=True)",
        },
        ["can connect to a socket of another sandbox", "can connect to ['127.0.0.1", "canary-", "network devices",
         "of another sandbox in /tmp", "of another sandbox in /dev/shm", "of another sandbox in /home/student"],
    ),
    "namespaces of processes": (
        {'_system("unshare", NEW_PID)': "pass", '_system("setns", here, NEW_PID)': "pass"},
        ["processes behind"],
    ),
    "giving up privileges": (
        {
            "        _give_up_capabilities()\n        os.close(self.proc)\n": "        os.close(self.proc)\n",
            '            _filter_system_calls(self.filters["main"])\n': "",
            'self._write("sys/user/max_user_namespaces", "0")': "pass",
            "        self._limit()\n": "",
        },
        ["has capabilities", "without a filter", "may make user namespaces", "RLIMIT_CPU", "RLIMIT_NPROC",
         *(f"can call {name}" for name in ("unshare", "mount", "ptrace", "memfd_create", "clone", "bpf", "socket")),
         "setsockopt with a filter", "setsockopt with a hidden filter", "prctl for a filter", "fcntl for locks (6)",
         "fcntl for locks (37)", "fcntl for leases", "call flock", "call mincore", "call preadv2", "call inotify_init",
         "call fadvise64", "madvise to drop pages (20)", "madvise to drop pages (21)", "socket for SCTP by its kind",
         "socket for MPTCP", "prlimit of its init", "clone with shared descriptors"],
    ),
    "devices that keep their times": ({"    _keep_times_of_devices()\n": ""}, ["can set the times of a device"]),
    "closing what is open": (
        {"        self._close_descriptors()\n": ""},
        ["has inherited an open file"],
    ),
    "a scratch with a quota, and a read-only /proc": (
        {"size={scratch},nr_inodes": "nr_inodes", "REMOUNT | BIND | READ_ONLY": "REMOUNT | BIND"},
        ["bytes to its scratch", "can change /proc"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("weakening", WITHOUT)
def test_the_proof_refuses_a_sandbox_without(weakening, entry, monkeypatch, tmp_path):
    edits, faults = WITHOUT[weakening]
    weaken(edits, monkeypatch, tmp_path)
    monkeypatch.setattr(prove, "PATIENCE", 3.0)
    if "NEW_NET" in str(edits):  # and the envelope in the host's own
        words = [word for word in envelope._envelope() if word != "--unshare-net"]
        monkeypatch.setattr(envelope, "_envelope", lambda: words)
    with Warm((), entry=entry) as weak, pytest.raises(CannotSandbox) as refused:
        prove.prove(weak.address)
    for fault in faults:
        assert fault in str(refused.value)


def weaken(edits, monkeypatch, tmp_path):
    """Let sandboxes run a copy of `warm` with these edits, {old: new}."""
    copy = tmp_path / "autograder"
    shutil.copytree(envelope.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = (copy / "inside" / "warm.py").read_text()
    for old, new in edits.items():
        assert old in code
        code = code.replace(old, new)
    (copy / "inside" / "warm.py").write_text(code)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == Path.home().owner() and folder.is_relative_to("/tmp/"):
            folder.chmod(0o755)
    monkeypatch.setattr(envelope, "PACKAGE", copy)


def test_the_proof_refuses_a_sandbox_whose_kernel_memory_nobody_counts(entry, monkeypatch):
    monkeypatch.setattr(watch, "_hoards", lambda init: None)
    here = watch.PROGRAM.replace("watch.main", "watch._hoards = lambda init: None; watch.main")
    monkeypatch.setattr(watch, "PROGRAM", here)
    monkeypatch.setattr(prove, "PATIENCE", 3.0)
    with Warm((), entry=entry) as weak, pytest.raises(CannotSandbox) as refused:
        prove.prove(weak.address)
    assert all(f"as {role}" in str(refused.value) for role in ("asker", "dialler"))


END_ITS_INIT = """
import os, resource, signal, time
for number in range(1, 65):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        os.kill(1, number)
try:
    print(resource.prlimit(1, resource.RLIMIT_CPU, (0, 0)))
except OSError as error:
    print(error)
time.sleep(0.3)
"""


def test_a_submission_with_the_graders_user_cannot_end_its_init(entry, monkeypatch):
    monkeypatch.setattr(envelope, "has_second_user", lambda: False)
    with Warm((), entry=entry) as shared, enter(shared.address) as inside:
        assert run(inside, END_ITS_INIT) == "[Errno 38] Function not implemented"
        assert inside.ended() is None
        assert run(inside, "os.kill(os.getpid(), signal.SIGINT)") is None  # ends its own process, as ever
        assert inside.ended() == "exit 1"


def test_an_init_that_fails_is_the_fault_of_what_ran_in_it(entry, monkeypatch, tmp_path):
    weaken(
        {"signal.signal(signal.SIGINT, signal.SIG_IGN)": "signal.signal(signal.SIGINT, signal.default_int_handler)"},
        monkeypatch,
        tmp_path,
    )
    monkeypatch.setattr(envelope, "has_second_user", lambda: False)
    with Warm((), entry=entry) as shared, enter(shared.address) as inside:
        assert run(inside, "import os, time; os.kill(1, 2); time.sleep(5)") is None
        assert inside.ended() == "a failure of its process 1"


SHARED = ("/usr", "/dev/null", "/proc/self/exe", "/proc/self/ns/time", "epoll")  # one of each, the same for all
LOCK = """
import contextlib, fcntl, os, select, struct
kept = select.epoll()
record = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 77, 5, 0)
for place in {places}:
    file = kept.fileno() if place == "epoll" else os.open(place, os.O_RDONLY)
    with contextlib.suppress(OSError):
        fcntl.fcntl(file, fcntl.F_SETLK, record)
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_SH)
"""
FIND_LOCKS = """
import fcntl, os, select, struct
kept, found = select.epoll(), []
question = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
for place in {places}:
    file = kept.fileno() if place == "epoll" else os.open(place, os.O_RDONLY)
    try:
        kind, _, start, length, _ = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, question))
        found += [(place, start, length)] if kind != fcntl.F_UNLCK else []
    except OSError:
        pass
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        found.append((place, "flock"))
    except OSError:
        pass
print(found)
"""


def test_no_lock_reaches_another_sandbox_through_what_both_see(warm):
    with enter(warm.address) as one, enter(warm.address) as other:
        run(one, LOCK.format(places=SHARED))
        assert run(other, FIND_LOCKS.format(places=SHARED)) == "[]"


def test_no_submission_leaves_a_note_in_the_times_of_a_shared_file(warm):
    note = """
import os
for place in ("/usr/bin", "/etc/passwd", "/proc/self/exe", "/dev/null", "/dev/zero", "/dev/full", "/dev/urandom"):
    before = os.stat(place)
    try:
        os.utime(place)
    except OSError:
        pass
    os.open(place, os.O_RDONLY)
    if os.stat(place) != before:
        print(place)
"""
    with enter(warm.address) as inside:
        assert run(inside, note) == ""


def test_what_is_in_memory_of_a_shared_file_is_not_told_and_no_advice_drops_it(warm):
    ask = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
file = os.open("/usr/bin/env", os.O_RDONLY)
for flag in (os.RWF_NOWAIT, 0x80):
    try:
        print(os.preadv(file, [bytearray(1)], 0, flag))
    except OSError as error:
        print(error.strerror)
print(libc.mincore(None, 0, None), os.strerror(ctypes.get_errno()))
def tried(call, *arguments):
    try:
        call(*arguments)
        return "done"
    except OSError as error:
        return error.strerror
shown = mmap.mmap(file, 4096, access=mmap.ACCESS_READ)
print(*(tried(os.posix_fadvise, file, 0, 0, advice) for advice in range(6)), sep=", ")
print(*(tried(shown.madvise, advice) for advice in (mmap.MADV_WILLNEED, mmap.MADV_DONTNEED, 20, 21)), sep=", ")
own = os.open("/tmp/own", os.O_RDWR | os.O_CREAT)
print(os.pwritev(own, [b"ab"], 0, os.RWF_DSYNC), os.preadv(own, [bytearray(2)], 0, 0))
"""
    with enter(warm.address) as inside:
        refused = ["Operation not supported"] * 2 + ["-1 Function not implemented"]
        missing = "Function not implemented"
        refused += [f"done, done, done, done, {missing}, done", f"done, done, {missing}, {missing}"]
        assert run(inside, ask).splitlines() == [*refused, "2 2"]


def test_no_request_of_ioctl_loads_a_module(warm):
    """Those of bridges and VLANs load theirs before the kernel looks who asks."""
    ask = """
import fcntl, os, socket, struct
def asked(request, argument=bytes(64)):
    with socket.socket() as one:
        try:
            return fcntl.ioctl(one, request, argument) and "done"
        except OSError as error:
            return error.strerror
print(*{asked(request) for request in (0x89A0, 0x89A1, 0x8982, 0x8983, 0x5412, 0x4B3A)})
print(asked(0x8913, struct.pack("16s48x", b"lo")), os.isatty(1))
"""
    with enter(warm.address) as inside:
        assert run(inside, ask).splitlines() == ["Function not implemented", "done False"]


def test_sockets_on_the_loopback_are_of_tcp_and_udp_alone(warm):
    """Others have modules that the kernel loads on demand, also by a socket's kind, and buffers that nobody counts."""
    ask = """
import socket
def made(*kind):
    try:
        with socket.socket(*kind):
            return True
    except OSError as error:
        return error.strerror
for family in (socket.AF_INET, socket.AF_INET6):
    print(*{made(family, *kind) for kind in ((1, 0), (1, 6), (2, 0), (2, 17), (1 | socket.SOCK_NONBLOCK, 0))})
    print(*{made(family, *kind) for kind in ((1, 132), (5, 0), (5, 132), (6, 0), (1, 262), (2, 136), (2, 1), (3, 0))})
print(made(socket.AF_UNIX, 5, 0), made(socket.AF_NETLINK, 3, 0))
"""
    with enter(warm.address) as inside:
        assert run(inside, ask).splitlines() == ["True", "Function not implemented"] * 2 + ["True True"]


def test_libraries_lock_within_a_sandbox_without_the_kernels_locks(warm):
    use = """
import errno, fcntl, filelock, os, sqlite3, warnings
from torch.utils._filelock import FileLock  # what torch.compile locks its cache with
warnings.simplefilter("error")
for lock in (filelock.FileLock, FileLock):
    with lock("/tmp/lock"):
        try:
            filelock.FileLock("/tmp/lock", timeout=0, is_singleton=False).acquire()
        except filelock.Timeout:
            print("held")
base, other = (sqlite3.connect("/tmp/kept.db", timeout=0.1) for _ in range(2))
print(*base.execute("pragma journal_mode=wal").fetchone())
with base:
    base.execute("create table t (a)")
    base.execute("insert into t values (7)")
    if not os.fork():
        try:
            sqlite3.connect("/tmp/kept.db", timeout=0.1).execute("insert into t values (8)")
        except sqlite3.OperationalError as error:
            os._exit(str(error) == "database is locked")
        os._exit(2)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
with other:
    other.execute("insert into t values (9)")
print(base.execute("select a from t").fetchall())
for lock in (fcntl.flock, fcntl.lockf):
    try:
        lock(open("/tmp/locked", "w"), fcntl.LOCK_EX)
    except OSError as error:
        print(error.errno == errno.ENOSYS)
"""
    with enter(warm.address) as inside:
        assert run(inside, use).splitlines() == ["held", "held", "delete", "1", "[(7,), (9,)]", "True", "True"]


def test_honest_programs_have_their_socket_options(warm):
    use = """
import asyncio, socket
async def echo():
    async def answer(reader, writer):
        writer.write(await reader.read(2))
        writer.close()
    server = await asyncio.start_server(answer, "localhost", 0, reuse_port=True)
    reader, writer = await asyncio.open_connection("localhost", server.sockets[0].getsockname()[1])
    writer.write(b"hi")
    print(await reader.read())
asyncio.run(echo())
with socket.socket() as one:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(16))
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
"""
    with enter(warm.address) as inside:
        assert run(inside, use) == "b'hi'"


def test_the_proof_refuses_an_envelope_that_shows_or_shares_too_much(entry, monkeypatch):
    words, system_files = envelope._envelope(), envelope._system_files
    monkeypatch.setattr(envelope, "_envelope", lambda: [*words, "--setenv", "TOKEN", "a secret"])
    writable = {"--ro-bind": "--bind"}
    monkeypatch.setattr(envelope, "_system_files", lambda to: [writable.get(word, word) for word in system_files(to)])
    monkeypatch.setattr(prove, "PATIENCE", 3.0)
    monkeypatch.setattr(prove.tempfile, "tempdir", "/var/tmp")  # where the bait will lie
    monkeypatch.setattr(watch.Watch, "look", lambda self: None)
    monkeypatch.setattr(watch.Groups, "make", lambda *_: None)
    readable = [ROOT / "autograder", "/var/tmp"]
    with Warm((), entry=entry, readable=readable) as weak, pytest.raises(CannotSandbox) as refused:
        prove.prove(weak.address)
    for fault in ("variable TOKEN", "prove.py", "/secret", "can change /usr", "too much of: processes", "of: memory"):
        assert fault in str(refused.value)


@pytest.fixture
def bound(tmp_path, monkeypatch):
    """A folder of the system's that sandboxes can read, with a course in it, an exchange, and a package."""
    files = (
        "course/source/hidden.ipynb",
        "course/package/code.py",
        "course/gradebook.db",
        "exchange/inbound/ben.ipynb",
    )
    for name in (*files, "grades.csv", "library.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a secret")
    monkeypatch.setattr(envelope, "_SYSTEM_COVERED", (str(tmp_path / "exchange"),))
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == Path.home().owner() and folder.is_relative_to("/tmp/"):
            folder.chmod(0o755)
    return tmp_path


def test_nothing_of_a_course_or_an_exchange_is_in_a_sandbox_wherever_it_is(entry, bound):
    look = f"""
import os
for folder, _, files in os.walk({str(bound)!r}):
    for name in sorted(files):
        try:
            print(os.path.relpath(os.path.join(folder, name), {str(bound)!r}), open(os.path.join(folder, name)).read())
        except OSError as error:
            print(name, "cannot be read")
"""
    hidden = [bound / "course", bound / "grades.csv", bound / "not there"]
    with Warm((), entry=entry, readable=[bound, bound / "course" / "package"], hidden=hidden) as warm:
        prove.prove(warm.address, warm.baits)
        with enter(warm.address) as inside:
            seen = ["grades.csv cannot be read", "library.py a secret", "course/package/code.py a secret"]
            assert run(inside, look).splitlines() == seen
    with pytest.raises(CannotSandbox, match="it is the course's own folder: keep the course elsewhere"):
        Warm((), entry=entry, readable=[bound], hidden=[bound])


def test_what_is_covered_may_be_a_link(bound, monkeypatch):
    """As where /usr/local, or the exchange below it, is one: nothing can be mounted on a link."""
    (bound / "elsewhere").mkdir()
    for name, target in {"link": bound / "elsewhere", "away": "/var"}.items():
        (bound / name).symlink_to(target)
    monkeypatch.setattr(envelope, "_covered", lambda: [bound / "link", bound / "away"])
    words = envelope._mounts([bound], [])
    assert words[words.index("--tmpfs") + 1] == str(bound / "elsewhere")
    assert not {str(bound / "link"), str(bound / "away"), "/var"} & {*words}


def test_the_proof_refuses_a_sandbox_in_which_a_course_or_an_exchange_is(entry, bound, monkeypatch):
    hidden = [bound / "course" / "source", bound / "course" / "gradebook.db"]
    mounts = envelope._mounts

    def careless(needed, hidden):
        with monkeypatch.context() as uncovered:
            uncovered.setattr(envelope, "_covered", list)
            return mounts(needed, [])

    monkeypatch.setattr(envelope, "_mounts", careless)
    with Warm((), entry=entry, readable=[bound], hidden=hidden) as weak, pytest.raises(CannotSandbox) as refused:
        prove.prove(weak.address, weak.baits)
    assert all(f"can see {place}" in str(refused.value) for place in (*hidden, bound / "exchange"))


def test_what_is_missing_is_named_with_what_to_do(monkeypatch, entry):
    with pytest.raises(CannotSandbox, match="no module is called missing_module"):
        Warm(("missing_module.part",), entry=entry)
    with pytest.raises(CannotSandbox, match=r"did not start: ModuleNotFoundError.*collectives\.none"):
        Warm(("collectives.none",), entry=entry)
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(CannotSandbox, match="pip install pyseccomp"):
        Warm((), entry=entry)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotSandbox, match="apt-get install bubblewrap"):
        Warm((), entry=entry)


def test_namespaces_that_are_forbidden_are_named_with_what_to_allow(monkeypatch, entry, tmp_path):
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(CannotSandbox, match=r"No permissions to create new namespace.*unprivileged_userns_clone"):
        Warm((), entry=entry)


NOBODY = 65534
PROVE = """
import sys
sys.path[:0] = sys.argv[2:]
from autograder.sandbox import envelope, prove
with envelope.Warm(("cloudpickle",), entry=sys.argv[1]) as warm:
    print(prove.prove(warm.address))
"""


def as_nobody(*command):
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]


def test_a_normal_user_has_all_of_it_too(tmp_path):
    """As another user than root, for whom there are no control groups: with whatever Python that user can start."""
    if os.geteuid() != 0:
        pytest.skip("these tests already run as a normal user")
    pythons = [sys.executable, "/usr/bin/python3"]
    usable = "import os, sys; sys.exit(sys.version_info < (3, 11) or not os.access(sys.base_exec_prefix, os.R_OK) or "
    usable += "not os.path.exists(os.path.realpath(sys.executable)))"
    python = next((one for one in pythons if subprocess.run(as_nobody(one, "-c", usable)).returncode == 0), None)
    readable = (
        python and subprocess.run(as_nobody("test", "-r", envelope.PACKAGE / "inside" / "warm.py")).returncode == 0
    )
    if not readable:
        pytest.skip("blocked: another user than root can read no Python here, or not this folder")
    import cloudpickle
    import pyseccomp

    folder = Path("/tmp") / tmp_path.name  # where another user may look
    folder.mkdir()
    try:
        shutil.copy(pyseccomp.__file__, folder)
        shutil.copytree(Path(cloudpickle.__file__).parent, folder / "cloudpickle")
        (folder / "runs_what_it_is_sent.py").write_text(ENTRY)
        command = [python, "-c", PROVE, "runs_what_it_is_sent.serve", str(ROOT), str(folder)]
        done = subprocess.run(as_nobody(*command), capture_output=True, text=True, cwd="/")
    finally:
        shutil.rmtree(folder)
    assert done.stdout.startswith("contained: "), done.stderr
    assert "counted by watching" in done.stdout
