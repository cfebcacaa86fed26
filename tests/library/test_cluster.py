"""Engines that ipyparallel starts are ranks as `ranks.run` gives them: the same results, the same errors, none left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from collectives import ranks
from collectives.algorithms import ring
from collectives.execute import execute
from collectives.ranks import cluster

pytestmark = pytest.mark.ranks

pytest.importorskip("ipyparallel", reason='blocked: no ipyparallel. Run `make test`, or: pip install -e ".[test]"')


@pytest.fixture(scope="module")
def engines():
    """Two engines of this machine, which take seconds to start. They outlive the runs that fail."""
    with cluster.Engines(2) as two:
        yield two


def ring_sum(rank, world_size, greeting):
    print(greeting, "from", rank)
    total = torch.full((6,), float(rank + 1))
    execute(ring.all_reduce(world_size), total)
    told = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")}
    return total.tolist(), told, dist.get_backend(), torch.get_num_threads(), os.getpid()


def test_engines_are_ranks_of_one_group_and_are_kept_for_the_next_run(engines, capsys):
    offset = 40
    first = engines.run(ring_sum, "good morning")
    begun = time.monotonic()
    assert engines.run(lambda rank, world_size: rank + offset) == [40, 41], "a function that a cell defines travels"
    assert time.monotonic() - begun < 5, "the engines are there already"
    for rank, (total, told, backend, threads, _) in enumerate(first):
        assert total == [3.0] * 6
        assert told == {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
        assert (backend, threads) == ("gloo", 1)
    assert len({pid for *_, pid in first} | {os.getpid()}) == 3
    assert capsys.readouterr().out.splitlines() == [f"rank {rank}: good morning from {rank}" for rank in range(2)]


def one_fails(rank, world_size):
    dist.barrier()
    if rank == 1:
        time.sleep(1)  # the other has come to its receive by then
        raise KeyError("no such shard")
    dist.recv(torch.zeros(1), src=1)


def test_a_failing_rank_ends_the_run_with_its_name_and_its_traceback(engines):
    with pytest.raises(ranks.RanksError) as failure:
        engines.run(one_fails)
    words = str(failure.value)
    assert words.startswith("rank 1 failed\n  rank 0 waits to receive from rank 1 (line ")
    assert 'raise KeyError("no such shard")' in words, "the traceback shows the learner's line"
    assert "_rank_main" not in words
    assert failure.value.waits == {0: 1, 1: None}


def receive_first(rank, world_size):
    dist.recv(torch.zeros(4), (rank + 1) % world_size)


def test_a_deadlock_ends_by_the_time_out_and_shows_who_waits_for_whom(engines):
    with pytest.raises(ranks.RanksError) as failure:
        engines.run(receive_first, timeout=3)
    words = str(failure.value)
    assert words.startswith("2 of 2 ranks did not finish within 3 s\n")
    assert "each waits for the next: rank 0 → rank 1 → rank 0" in words
    assert failure.value.waits == {0: 1, 1: 0}


def one_dies(rank, world_size):
    if rank == 1:
        os.write(2, b"out of luck")
        os._exit(7)
    dist.barrier()


def test_a_rank_that_dies_is_named_with_its_exit_code_and_its_last_words(engines):
    with pytest.raises(ranks.RanksError) as failure:
        engines.run(one_dies)
    assert str(failure.value).startswith("rank 1 died with exit code 7\n  rank 0 ")
    assert str(failure.value).endswith("\n\nout of luck")


def test_ranks_see_what_this_process_has_set_since_the_engines_started(engines, monkeypatch):
    monkeypatch.setenv("COURSE", "collectives")
    assert engines.run(lambda rank, world_size: os.environ.get("COURSE")) == ["collectives"] * 2
    monkeypatch.undo()
    assert engines.run(lambda rank, world_size: os.environ.get("COURSE")) == [None] * 2


def test_what_cannot_travel_is_an_error_of_its_rank(engines):
    with pytest.raises(ranks.RanksError, match=r"(?s)rank \d failed.*cannot pickle"):
        engines.run(lambda rank, world_size: dist.group.WORLD)


def test_nothing_of_a_run_is_left_running(engines):
    pids = engines.run(lambda rank, world_size: os.getpid())
    states = [subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True) for pid in pids]
    assert [state.stdout for state in states if state.stdout and not state.stdout.startswith("Z")] == []


def test_a_job_that_is_refused_shows_why_and_leaves_no_controller(tmp_path, monkeypatch):
    program = tmp_path / "submit"
    program.write_text("#!/bin/sh\necho no such queue\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ranks.RanksError, match=r"(?s)the engines' job was refused.*no such queue"):
        cluster.run(receive_first, 2, launcher="pbs", submit_command=[str(program)], delete_command=["true"])
    assert list(tmp_path.iterdir()) == [program], "the engines' files are gone"


def test_engines_that_do_not_start_are_counted_and_their_words_shown():
    words = [sys.executable, "-c", "raise SystemExit('no such library')"]
    with pytest.raises(ranks.RanksError, match="2 of 2 engines did not start") as failure:
        cluster.run(receive_first, 2, engine_cmd=words, start_timeout=3)
    assert "no such library" in str(failure.value)


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        ((0,), {}, "at least 1, not 0"),
        ((2, "cloud"), {}, "launcher is one of local, mpi, slurm, .* not 'cloud'"),
        ((2, "local"), {"queue": "gpu"}, "local has no setting queue; it has .*engine_cmd"),
        ((2, "local"), {"submit": ["--nodes=2"]}, "submits no job, so `submit` has no meaning"),
        ((2, "pbs"), {"submit_command": ["no-such-qsub"]}, "with no-such-qsub, which this machine doesn't have"),
    ],
)
def test_what_cannot_be_started_is_refused_before_anything_is(arguments, settings, words):
    with pytest.raises(ValueError, match=words):
        cluster.Engines(*arguments, **settings)


def test_without_ipyparallel_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipyparallel.cluster.launcher", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install -e "\.\[cluster\]"'):
        cluster.run(receive_first, 2)


def test_ranks_of_a_host_are_neighbours_and_share_its_gpus_in_turn(monkeypatch):
    """What `_enlist` makes of engines that came in another order: no real engine is needed to see it."""
    places = {0: cluster._Place("b", None), 1: cluster._Place("a", None), 2: cluster._Place("b", None)}

    engines = cluster.Engines(3)
    monkeypatch.setattr(engines, "_client", SimpleNamespace(ids=[2, 0, 1]))
    monkeypatch.setattr(engines, "_ask", lambda ids, function: [places[engine] for engine in ids])
    engines._enlist()
    monkeypatch.undo()
    assert engines._ids == [0, 2, 1]
    assert engines._local_ranks == [0, 1, 0]
    told = engines._environment(1, port=7)
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("b", "7")
    assert (told["RANK"], told["LOCAL_RANK"], told["LOCAL_WORLD_SIZE"]) == ("1", "1", "2")


def kill_the_engine(rank, world_size):
    if rank == 1:
        [server] = Path(f"/proc/{os.getppid()}/status").read_text().partition("PPid:")[2].split()[:1]
        os.kill(int(server), signal.SIGKILL)
    dist.barrier()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="blocked: finds the engine's process through Linux's /proc")
def test_an_engine_that_is_killed_is_named(engines):
    """The last test of this file: the next run would start new engines."""
    assert engines._client is not None, "no run before this one has lost an engine"
    with pytest.raises(ranks.RanksError, match=r"^rank 1 is lost: its engine died\n  rank 0 "):
        engines.run(kill_the_engine)
    assert engines._client is None
