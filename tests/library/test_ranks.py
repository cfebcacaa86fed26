"""`ranks.run` gives real processes in a real group, says what went wrong in them, and leaves none behind."""

import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import forkserver

import numpy as np
import pytest
import torch
import torch.distributed as dist

from collectives import ranks
from collectives.practice import checks, on_ranks
from collectives.ranks import local, process
from collectives.ranks.store import CLOSED, LogStore

pytestmark = pytest.mark.ranks


def who_am_i(rank, world_size, greeting="hello"):
    print(greeting)
    return rank, dist.get_rank(), dist.get_world_size(), os.getpid(), torch.get_num_threads()


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_ranks_are_processes_of_their_own_in_one_group(world_size, capsys):
    results = ranks.run(who_am_i, world_size, "good morning")
    assert [(given, own, size) for given, own, size, _, _ in results] == [
        (rank, rank, world_size) for rank in range(world_size)
    ]
    assert len({pid for *_, pid, _ in results} | {os.getpid()}) == world_size + 1
    assert {threads for *_, threads in results} == {1}
    assert capsys.readouterr().out.splitlines() == [f"rank {rank}: good morning" for rank in range(world_size)]


def test_nothing_is_left_running_and_no_state_is_left_over():
    pids = [pid for *_, pid, _ in ranks.run(who_am_i, 3)]
    assert all(gone(pid) for pid in pids)
    assert not set(pids) & {pid for *_, pid, _ in ranks.run(who_am_i, 3)}


def gone(pid):
    """Whether a process has ended (or has, but nobody has read its exit code yet) within two seconds."""
    for _ in range(100):
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
        if not state or state.startswith("Z"):
            return True
        time.sleep(0.02)
    return False


def test_a_function_defined_on_the_spot_travels_with_what_it_closes_over():
    offset = 40
    assert ranks.run(lambda rank, world_size: rank + offset, 3) == [40, 41, 42]


DECORATED = """
import functools, torch
from torch.autograd.function import once_differentiable
@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
def made():
    @functools.lru_cache(maxsize=5)
    def double(n):
        return 2 * n
    return double
double = made()
@functools.singledispatch
def kind(value):
    return "any"
@kind.register
def _(value: int):
    return "int"
class Sizes:
    @functools.cached_property
    def largest(self):
        return 7
    @functools.lru_cache
    def smallest(self):
        return 3
class Negated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return -x
    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return -gradient
def decorated(rank, world_size):
    x = torch.ones(2, requires_grad=True)
    Negated.apply(x).sum().backward()
    memory = double.cache_parameters()["maxsize"]
    return fibonacci(30), double(4), memory, kind(1), kind(""), Sizes().largest, Sizes().smallest(), x.grad.tolist()
"""


def test_functions_travel_with_the_decorators_of_functools_and_torch():
    notebook = {"__name__": "__main__"}  # functions of a module that ranks can import travel by name
    exec(DECORATED, notebook)
    notebook["kind"](1)  # which fills its cache
    assert ranks.run(notebook["decorated"], 2) == [(832040, 8, 5, "int", "any", 7, 3, [-1.0, -1.0])] * 2


def all_that_i_hold(rank, world_size, own, common):
    everything = [value for value in gc.get_objects() if type(value) is list and value and value[0] == "a secret of"]
    return own, common, everything


def test_a_rank_is_handed_its_own_element_of_a_per_rank_argument_and_nowhere_finds_the_others():
    secrets = ranks.PerRank(["a secret of", rank] for rank in range(3))
    for rank, (own, common, everything) in enumerate(ranks.run(all_that_i_hold, 3, secrets, 7)):
        assert (own, common) == (["a secret of", rank], 7)
        assert everything == [own]


def test_a_per_rank_argument_has_an_element_for_each_rank():
    with pytest.raises(ValueError, match="one element per rank: 3, not 2"):
        ranks.run(all_that_i_hold, 3, ranks.PerRank([1, 2]), 7)


def one_fails(rank, world_size):
    if rank == 1:
        time.sleep(0.5)  # the others have come to their receive by then
        raise KeyError("no such shard")
    dist.recv(torch.zeros(1), src=1)


def test_a_failing_rank_ends_the_run_with_its_name_and_its_traceback():
    start = time.monotonic()
    with pytest.raises(ranks.RanksError) as failure:
        ranks.run(one_fails, 3, timeout=30)
    words = str(failure.value)
    assert words.startswith("rank 1 failed\n")
    assert "KeyError: 'no such shard'" in words
    assert 'raise KeyError("no such shard")' in words, "the traceback shows the learner's line"
    assert "rank 0 waits to receive from rank 1" in words
    assert time.monotonic() - start < 10, "the others are not waited for"


def send_first(rank, world_size):
    everyone = torch.zeros(4)
    dist.send(everyone, (rank + 1) % world_size)
    dist.recv(everyone, (rank - 1) % world_size)


def test_a_deadlock_ends_by_the_time_out_and_shows_the_circle_of_waiting_ranks():
    with pytest.raises(ranks.RanksError) as failure:
        ranks.run(send_first, 3, timeout=1)
    words = str(failure.value)
    assert "3 of 3 ranks did not finish within 1 s" in words
    assert "rank 0 → rank 1 → rank 2 → rank 0" in words
    assert re.search(r"rank 0 waits to send to rank 1 \(line \d+ of send_first: dist.send\(everyone, ", words)
    assert failure.value.waits == {0: 1, 1: 2, 2: 0}


def receive_first(rank, world_size, batched):
    incoming, left, right = torch.zeros(4), (rank - 1) % world_size, (rank + 1) % world_size
    if batched:
        operations = [dist.P2POp(dist.irecv, incoming, left), dist.P2POp(dist.isend, torch.zeros(4), right)]
        for work in reversed(dist.batch_isend_irecv(operations[: 1 + (rank > 0)])):  # rank 0 forgets to send
            work.wait()
    else:
        dist.irecv(incoming, left).wait()


@pytest.mark.parametrize(("load", "times"), [(0.5, 1), (2, 1), (4, 2), (7, 3.5), (40, 5)])
def test_work_takes_as_often_as_long_as_processes_want_each_processor(monkeypatch, load, times):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0, 0))
    assert ranks.crowding() == times
    assert on_ranks.patience() == times * on_ranks.PATIENCE
    monkeypatch.delattr(os, "getloadavg")
    assert ranks.crowding() == 1  # Windows


def test_a_deadlock_in_a_batch_of_operations_names_who_did_not_send():
    with pytest.raises(ranks.RanksError) as failure:
        ranks.run(receive_first, 2, True, timeout=1)
    assert "rank 1 waits for a message from rank 0 (line" in str(failure.value)
    assert failure.value.waits == {1: 0}
    with pytest.raises(ranks.RanksError, match=r"rank 1 waits for a message \(line \d+ of receive_first: dist.irecv"):
        ranks.run(receive_first, 2, False, timeout=1)


def never_received(rank, world_size, way):
    if rank == 1:
        dist.barrier()
    sending = dist.isend(torch.zeros(4), 1 - rank)
    receiving = dist.irecv(torch.zeros(4), 1 - rank) if way == "both" else None
    if way == "by name":
        sending.wait()
    elif way == "at once":
        dist.isend(torch.zeros(4), 1).wait()
    elif way == "in a list":
        [work.wait() for work in [sending]]
    elif way == "both":
        receiving.wait(), sending.wait()
    else:
        {"request": sending}["request"].wait()


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("by name", "waits for its message to be received (line"),
        ("at once", "waits for its message to be received (line"),
        ("in a list", "waits for its message to be received (line"),
        ("both", "waits for a request (line"),
        ("in a dict", "waits for a request (line"),
    ],
)
def test_a_rank_that_waits_for_its_send_is_not_said_to_wait_for_a_message(way, words):
    with pytest.raises(ranks.RanksError) as failure:
        ranks.run(never_received, 2, way, timeout=1)
    assert f"rank 0 {words}" in str(failure.value)


def meets_nobody(rank, world_size, function):
    if rank == 0:
        function(torch.zeros(4), 3)
    elif rank == 1:
        dist.recv(torch.zeros(4), 2)


@pytest.mark.parametrize("function", [dist.recv, dist.irecv])  # gloo nearly always crashes where it sends to no rank
def test_a_rank_that_is_not_there_is_named_as_such(function):
    for _ in range(8):  # about one time in ten gloo crashes here too: it reads beyond the end of its list of peers
        with pytest.raises(ranks.RanksError) as failure:
            ranks.run(meets_nobody, 3, function, timeout=1)
        words = str(failure.value)
        if "exit code -11" not in words:
            break
        forkserver._forkserver._stop()  # the next one has something else there
    assert "rank 0 waits to receive from rank 3, but the ranks are 0 to 2, (line" in words
    assert "ranks wait for rank 3" not in words
    assert "rank 2, which waits for no rank: it has returned and will never answer (if it used isend: did it" in words
    assert failure.value.waits == {0: 3, 1: 2}


def one_dies(rank, world_size):
    if rank == 2:
        os._exit(7)
    dist.barrier()


def test_a_rank_that_dies_without_a_word_is_named_with_its_exit_code():
    with pytest.raises(ranks.RanksError, match="rank 2 died with exit code 7"):
        ranks.run(one_dies, 3, timeout=30)


def test_a_lost_engine_or_a_rank_that_died_is_to_blame_before_ranks_that_failed_for_it():
    failed, died, lost, well = (process.Report(kind) for kind in ("failed", "died", "lost", "returned"))
    assert local.find_culprit({0: failed, 1: well, 2: died}) == 2
    assert local.find_culprit({0: failed, 2: died, 3: lost}) == 3
    assert local.find_culprit({1: failed, 0: failed}) == 1, "the first of a kind"
    assert local.find_culprit({0: well, 1: process.Report("waits")}) is None


def disagree(rank, world_size):
    if rank == 0:
        dist.send(torch.zeros(8), 1)
    else:
        dist.recv(torch.zeros(6), 0)


def test_a_message_that_does_not_fit_is_explained_and_not_only_an_abort(capfd):
    with pytest.raises(ranks.RanksError) as failure:
        ranks.run(disagree, 2, timeout=30)
    assert "rank 1 died with exit code -6" in str(failure.value)
    assert "It received 32 bytes into a tensor of 24" in str(failure.value)
    assert capfd.readouterr().err == "", "what gloo writes as it aborts is not shown raw"


def warn(rank, world_size):
    print("careful", file=sys.stderr)


def test_what_a_rank_writes_to_stderr_comes_out_with_its_name(capsys):
    ranks.run(warn, 2)
    assert capsys.readouterr().err.splitlines() == ["rank 0: careful", "rank 1: careful"]


def last_words(rank, world_size, end):
    print("so far so good")
    os.system("echo from a child")
    print("careful", file=sys.stderr)
    end()


@pytest.mark.parametrize("end", [lambda: 1 / 0, lambda: os._exit(7)], ids=["raises", "dies"])
def test_what_a_rank_wrote_before_it_failed_is_shown(end, capsys):
    with pytest.raises(ranks.RanksError) as failure:
        ranks.run(last_words, 1, end)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["rank 0: so far so good", "rank 0: from a child"]
    assert "careful" in shown.err + str(failure.value)


def environment(rank, world_size):
    return os.environ.get("COURSE"), os.getcwd()


def test_ranks_see_the_environment_of_the_moment(monkeypatch, tmp_path):
    assert ranks.run(environment, 1) == [(None, os.getcwd())]
    monkeypatch.setenv("COURSE", "collectives")
    monkeypatch.chdir(tmp_path)
    assert ranks.run(environment, 1) == [("collectives", str(tmp_path))]


def calls(rank, world_size, function):
    return function(rank)


def test_the_line_of_a_function_that_is_passed_along_is_shown_too():
    with pytest.raises(ranks.RanksError, match="return 1 / 0"):
        ranks.run(calls, 1, lambda rank: 1 / 0 if rank else fails())


def fails():
    return 1 / 0


def test_runs_from_several_threads_do_not_disturb_each_other():
    main = sys.modules["__main__"]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda base: ranks.run(lambda rank, world_size: base + rank, 2), range(4)))
    assert results == [[base, base + 1] for base in range(4)]
    assert sys.modules["__main__"] is main


def with_a_cause(rank, world_size):
    try:
        return [][rank]
    except IndexError as error:
        raise ValueError("no data") from error


def test_a_traceback_tells_the_cause_too():
    with pytest.raises(ranks.RanksError, match=r"(?s)IndexError.*direct cause.*ValueError: no data"):
        ranks.run(with_a_cause, 1)


def never_comes_back(rank, world_size):
    return os.getpid() if rank else time.sleep(1000)


def test_a_rank_that_is_busy_elsewhere_is_shown_at_its_line():
    with pytest.raises(ranks.RanksError, match=r"rank 0 is busy \(line \d+ of never_comes_back: return os.getpid\(\)"):
        ranks.run(never_comes_back, 2, timeout=1)


def test_a_world_has_at_least_one_rank():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        ranks.run(who_am_i, 0)


def test_ranks_end_when_the_program_that_started_them_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
        import os, time
        from collectives import ranks
        def report(rank, world_size, folder):
            open(f"{folder}/{os.getpid()}.pid", "w").close()
            time.sleep(1000)
        ranks.run(report, 2, os.path.dirname(__file__), timeout=1000)
        """)
    )
    parent = subprocess.Popen([sys.executable, script])
    while len(pids := list(tmp_path.glob("*.pid"))) < 2:
        assert parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    assert all(gone(int(path.stem)) for path in pids)


def test_the_same_file_runs_under_torchrun(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent("""
        import torch
        from collectives import execute, ranks
        from collectives.algorithms import ring
        def total(rank, world_size):
            buffer = torch.tensor([rank + 1.0])
            execute(ring.all_reduce(world_size), buffer)
            return buffer.item()
        if __name__ == "__main__":
            print(ranks.run(total, 2))
        """)
    )
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    launched = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert alone.stdout == "[3.0, 3.0]\n", alone.stderr
    assert launched.returncode == 0, launched.stderr
    assert launched.stdout.count("[3.0, 3.0]") == 2, "each rank prints what all of them returned"


def imported(rank, world_size, module):
    return module in sys.modules


def test_what_is_preloaded_is_imported_in_every_rank_also_if_ranks_ran_before():
    assert ranks.run(imported, 2, "wave") == [False, False]
    ranks.preload("wave")
    assert ranks.run(imported, 2, "wave") == [True, True]
    server = forkserver._forkserver._forkserver_pid
    ranks.preload("wave", "torch.distributed")
    assert forkserver._forkserver._forkserver_pid == server, "nothing new: the server goes on"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPUs")
def test_nccl_without_a_gpu_is_refused_in_words():
    with pytest.raises(ranks.RanksError, match="NCCL needs a GPU for each rank, and torch finds none here"):
        ranks.run(lambda rank, world_size: None, 1, backend="nccl")


def asks(rank, world_size, *questions):
    return [ranks.ask(question) for question in questions]


def test_a_rank_asks_the_process_that_started_it():
    here = os.getpid()
    answers = ranks.run(asks, 2, "one", [2], serve=lambda rank, question: (os.getpid() == here, rank, question))
    assert answers == [[(True, rank, "one"), (True, rank, [2])] for rank in range(2)]


def test_a_rank_is_killed_at_what_it_asks_and_the_others_go_on():
    asked = []

    def serve(rank, question):
        asked.append(rank)
        return ranks.Killed(20) if rank == 1 else None

    with pytest.raises(ranks.RanksError, match=r"^rank 1 died with exit code -9"):
        ranks.run(asks, 3, *range(20), serve=serve, timeout=30)
    assert asked.count(1) == 1 and asked.count(0) == asked.count(2) == 20


def test_who_is_killed_is_dead_at_once_and_blamed_though_others_fail_by_it_and_one_goes_on(tmp_path):
    def warns(rank, world_size):
        if rank == 1:
            threading.Timer(0.1, (tmp_path / "warning").touch).start()
            ranks.ask("kill me")
        if rank == 2:
            dist.barrier()
        time.sleep(0.5)
        (tmp_path / "went on").touch()
        ranks.ask("next")
        while True:
            ranks.ask("next")

    begun = time.monotonic()
    with pytest.raises(ranks.RanksError, match=r"^rank 1 died with exit code -9"):
        ranks.run(warns, 3, serve=lambda rank, _: ranks.Killed(1.0) if rank == 1 else None, timeout=30)
    assert time.monotonic() - begun < 20
    assert [each.name for each in tmp_path.iterdir()] == ["went on"]


def test_a_rank_is_answered_later_and_the_others_meanwhile():
    asked = []

    def serve(rank, question):
        asked.append((rank, question))
        return ranks.Later(0.5, lambda: len(asked)) if rank == 1 else len(asked)

    begun = time.monotonic()
    answers = ranks.run(asks, 2, *range(3), serve=serve)
    assert time.monotonic() - begun > 1.5
    assert len(asked) == 6 and answers[1][0] >= 4 and answers[1][-1] == 6, "the others' questions came first"


def test_what_serves_may_end_the_run_and_no_question_makes_it_last():
    def refuse(rank, question):
        raise KeyError(question)

    with pytest.raises(KeyError, match="17"):
        ranks.run(asks, 2, 17, serve=refuse)
    with pytest.raises(ranks.RanksError, match=r"1 of 1 ranks did not finish within 0\.5 s"):
        ranks.run(lambda *_: [ranks.ask(each) for each in iter(int, 1)], 1, serve=lambda *_: None, timeout=0.5)
    with pytest.raises(ranks.RanksError, match="only a rank can ask"):
        ranks.run(asks, 1, "nobody")
    with pytest.raises(RuntimeError, match="only a rank can ask"):
        ranks.ask("outside")


def sums(rank, world_size, path):
    store = LogStore(path, timedelta(seconds=30))
    return [store.add("count", 1) for _ in range(50)]


def test_ranks_agree_on_the_stores_contents_without_a_lock(tmp_path):
    every = ranks.run(sums, 4, str(tmp_path / "store"))
    assert sorted(number for each in every for number in each) == list(range(1, 201)), "no sum is lost or given twice"
    store = LogStore(str(tmp_path / "store"), timedelta(seconds=0.05))
    assert store.add("count", 0) == 200 and store.get("count") == b"200"


def test_a_store_waits_for_what_another_sets_and_no_longer_than_its_time(tmp_path):
    one, other = (LogStore(str(tmp_path / "store"), timedelta(seconds=0.05)) for _ in range(2))
    one.set("a key\n", b"\x00\xff\n")
    assert other.get("a key\n") == b"\x00\xff\n"
    one.set("a key\n", "anew")
    assert other.get("a key\n") == b"anew"
    with pytest.raises(torch.distributed.DistStoreError, match="no rank has set all of missing"):
        other.wait(["missing", "a key\n"])
    with open(tmp_path / "store", "ab") as file:
        file.write(b'{"key": "late", ')  # as read while another writes
    assert not other.check(["late"])
    with open(tmp_path / "store", "ab") as file:
        file.write(b'"set": "00"}\n')
    assert other.get("late") == b"\x00"


def sum_in_groups(rank, world_size):
    columns = [rank, (rank + 2) % 4]
    total = torch.tensor([10.0**rank])
    dist.all_reduce(total, group=ranks.group(sorted(columns)))
    outside = ranks.group([0, 2] if rank % 2 else [1, 3])
    return total.item(), outside == dist.GroupMember.NON_GROUP_MEMBER


def test_sealed_ranks_have_the_groups_that_the_run_has_asked_for():
    sums = ranks.run(sum_in_groups, 4, sealed=True, groups=[[0, 2], [1, 3]])
    assert sums == [(101.0, True), (1010.0, True)] * 2


def in_a_group_of_its_own(rank, world_size, buffer):
    dist.all_reduce(buffer, group=dist.new_group())


def test_a_check_refuses_a_group_of_the_learners_in_words():
    with pytest.raises(checks.NotYet) as refused:
        on_ranks.on_ranks(in_a_group_of_its_own, np.zeros((2, 3), np.float32))
    assert str(refused.value).startswith(f"with 2 ranks, {CLOSED} (line ")
    assert str(refused.value).endswith("of in_a_group_of_its_own: dist.all_reduce(buffer, group=dist.new_group()))")
    with pytest.raises(checks.NotYet, match=f"with 3 ranks, {CLOSED} "):
        on_ranks.run_on_ranks(in_a_group_of_its_own, 3, torch.zeros(3), kind=None)
