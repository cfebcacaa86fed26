"""`ranks.run` on a cluster, from a notebook cell: ipyparallel starts an engine for each rank.

ipyparallel starts processes through MPI, Slurm, PBS, LSF, SGE or SSH, and keeps a connection to each. Every such
**engine** runs one rank, in a separate process that a fork server makes in 0.1 s. It sets the environment that torchrun
would set: `RANK`, `WORLD_SIZE`, and the address of engine 0, where the ranks rendezvous. So a chapter's function runs
there unchanged, and results, printed lines and errors come back as with `ranks.run`.

Engines take seconds to start, or longer if the job waits in a queue. So keep them for several runs:

    with Engines(16, "slurm", submit=["--nodes=2", "--gpus-per-node=8"]) as engines:
        engines.run(function, *args)

An optional extra: `pip install -e ".[cluster]"`. Engines on other machines need this package at the same path, for
instance on a shared file system, and must be able to reach this machine. Messages to engines are signed with a key but
not encrypted, so use this only inside a cluster.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle

from . import process
from .local import RanksError, explain, find_culprit, show
from .process import NOT_BEGUN, START_SECONDS, RankProcess, Report, Setup

LAUNCHERS = ("local", "mpi", "slurm", "pbs", "lsf", "sge", "ssh")  # ipyparallel's names
ANSWER_SECONDS = 5.0  # for engines to answer once a rank has failed: enough to query and end their ranks
POLL_SECONDS = 0.1  # between two checks: whether another rank has failed, or how many engines have started

_store = None  # on engine 0: the ranks' rendezvous store; it closes when the last reference goes


def run(
    function: Callable,
    world_size: int,
    *args: Any,
    launcher: str = "local",
    timeout: float = 60.0,
    backend: str = "gloo",
    start_timeout: float = 120.0,
    submit: Sequence[str] = (),
    **settings: Any,
) -> list[Any]:
    """Call `function(rank, world_size, *args)` on `world_size` new engines; return their results, by rank.

    Like `ranks.run`, but on the machines that `launcher` reaches. `Engines` and `Engines.run` document the arguments
    and the errors raised.
    """
    with Engines(world_size, launcher, start_timeout=start_timeout, submit=submit, **settings) as engines:
        return engines.run(function, *args, timeout=timeout, backend=backend)


@dataclass(frozen=True)
class _Place:
    """Where an engine is. `visible`: its CUDA_VISIBLE_DEVICES."""

    host: str
    visible: str | None


class Engines:
    """`world_size` engines, one per rank, started at the first `run` and kept until `close` or the end of a `with`.

    `launcher`: "local", "mpi", "slurm", "pbs", "lsf", "sge" or "ssh". `start_timeout`: seconds for all engines to
    start; a queue may need hours. `submit`: extra arguments for the command that submits the job (`sbatch`, `qsub`,
    ...). `settings`: those of ipyparallel's launcher, such as queue="gpu", account="me", batch_template="...", or for
    SSH engines={"host": 8}. The engines' files go to a new folder in the working directory, which nodes must share; for
    "local" and "mpi", to the temporary directory. Raises `ModuleNotFoundError` without ipyparallel, and `ValueError`
    for an unknown launcher or setting, or a missing program.
    """

    def __init__(
        self,
        world_size: int,
        launcher: str = "local",
        *,
        start_timeout: float = 120.0,
        submit: Sequence[str] = (),
        **settings: Any,
    ):
        if world_size < 1:
            raise ValueError(f"world_size is the number of ranks, at least 1, not {world_size}")
        self.world_size = world_size
        self.launcher = launcher
        self.start_timeout = start_timeout
        self._class = _launcher_class(launcher, settings, submit)
        self._settings = settings
        self._client: Any = None
        self._cluster: Any = None
        self._folder: tempfile.TemporaryDirectory | None = None
        self._ids: list[int] = []  # engine ids, by rank
        self._preloaded: list[str] = []  # modules that the engines' fork servers have imported
        self._inherited: dict[str, str] = {}  # this process's environment when the engines started

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def run(self, function: Callable, *args: Any, timeout: float = 60.0, backend: str = "gloo") -> list[Any]:
        """Call `function(rank, world_size, *args)` on every engine; return their results, by rank.

        Ranks see their engine's environment, plus what this process has set since the engines started. `backend`:
        "gloo", or "nccl" if every engine has its own GPU. Ranks of one host are consecutive. What ranks print is
        printed here, rank by rank.

        Raises `RanksError`, as `ranks.run` does, if a rank raises, dies, or has not returned `timeout` seconds after it
        began; all ranks are then ended. The engines stay for the next run. If one was lost, the next run starts new
        ones.
        """
        task = process.pack(function, args)
        try:
            self._start()
            self._prepare()
            endings = self._endings(task, timeout, backend)
        except BaseException:
            self.close()  # also after a keyboard interrupt: ranks may still be running
            raise
        if any(ending is _NO_ANSWER or ending.report.kind == "lost" for ending in endings):
            self.close()
        reports = [ending.report for ending in endings]
        came = sorted(range(len(endings)), key=lambda rank: endings[rank].order)
        culprit = find_culprit({rank: reports[rank] for rank in came})
        died = culprit is not None and reports[culprit].kind == "died"
        show([ending.printed for ending in endings], culprit if died else None)
        if culprit is not None:
            raise explain(f"rank {culprit} {reports[culprit].blame}", reports, culprit)
        if late := [report for report in reports if report.kind != "returned"]:
            begun = all(report.words != NOT_BEGUN for report in late)
            limit = f"finish within {timeout:g} s" if begun else f"begin within {START_SECONDS:g} s"
            raise explain(f"{len(late)} of {len(reports)} ranks did not {limit}", reports, None)
        return [cloudpickle.loads(report.value) for report in reports]

    def close(self) -> None:
        """End all engines and wait until they have exited."""
        if self._client is not None:
            self._client.close()
        if self._cluster is not None:
            try:
                with contextlib.suppress(subprocess.CalledProcessError):  # the batch system has already ended the job
                    self._cluster.stop_engines_sync()
            finally:
                self._cluster.stop_controller_sync()
        if self._folder is not None:
            self._folder.cleanup()
        self._client = self._cluster = self._folder = None
        self._preloaded = []

    def _start(self) -> None:
        """Start the engines unless they are running, and find out where each one is."""
        if self._client is not None and set(self._ids) <= set(self._client.ids):
            return
        self.close()  # the job may have reached its time limit since the last run
        import ipyparallel
        from traitlets.config import Config

        on_this_host = self.launcher in ("local", "mpi")
        place = None if on_this_host else os.getcwd()
        self._folder = tempfile.TemporaryDirectory(prefix="engines-", dir=place, ignore_cleanup_errors=True)
        self._inherited = dict(os.environ)
        settings = dict(self._settings)
        if hasattr(self._class, "batch_file_name"):
            settings["batch_file_name"] = str(Path(self._folder.name) / "job.sh")
        log = logging.getLogger(__name__)
        log.setLevel(logging.ERROR)  # the run's own error reports that an engine ended
        self._cluster = ipyparallel.Cluster(
            engines=self.launcher,
            n=self.world_size,
            profile_dir=self._folder.name,
            load_profile=False,
            cluster_file="",
            delay=0.0,
            controller_ip="" if on_this_host else "*",
            controller_location="" if on_this_host else socket.gethostname(),
            config=Config({self._class.__name__: settings}),
            log=log,
        )
        try:
            self._cluster.start_cluster_sync()
        except subprocess.CalledProcessError as refused:  # by `sbatch` or the like
            self._client = self._cluster.connect_client_sync()  # lets the controller, which has started, end cleanly
            raise RanksError(f"the engines' job was refused: {refused}\n\n{refused.output or ''}".strip(), {}) from None
        self._client = self._cluster.connect_client_sync()
        self._wait_for_engines()
        self._enlist()

    def _wait_for_engines(self) -> None:
        engine_set, deadline = self._cluster.engine_set, time.monotonic() + self.start_timeout
        while (there := len(self._client.ids)) < self.world_size:
            late = time.monotonic() > deadline
            if late or engine_set.state == "after":  # all engines have ended
                why = f"within {self.start_timeout:g} s (a job may still be in the queue: raise start_timeout)"
                headline = f"{self.world_size - there} of {self.world_size} engines did not start"
                words = engine_set.get_output() or "They printed nothing."
                raise RanksError(f"{headline}{f' {why}' if late else ''}\n\n{words}", {})
            time.sleep(POLL_SECONDS)

    def _enlist(self) -> None:
        """Assign every engine its rank and its GPU, by host."""
        ids = sorted(self._client.ids)
        places = dict(zip(ids, self._ask(ids, _place), strict=True))
        hosts = list(dict.fromkeys(place.host for place in places.values()))
        self._ids = sorted(ids, key=lambda engine: hosts.index(places[engine].host))  # ranks of a host are consecutive
        self._places = [places[engine] for engine in self._ids]
        # Engines that see the same GPUs take one each, in order; an engine with GPUs of its own takes the first.
        self._local_ranks = [self._places[:rank].count(place) for rank, place in enumerate(self._places)]
        self._address = "127.0.0.1" if len(hosts) == 1 else self._places[0].host

    def _prepare(self) -> None:
        """Make the engines' fork servers import what `ranks.preload` lists here, before any timeout starts."""
        if self._preloaded != process.preloaded:
            self._ask(self._ids, _start_fork_server, process.preloaded)
            self._preloaded = list(process.preloaded)

    def _ask(self, engines: list[int], function: Callable, *args: Any) -> list[Any]:
        """Return the results of `function(*args)` on these engines; raise RanksError if they don't answer."""
        from ipyparallel.error import IPythonError

        try:
            return self._client[engines].apply_async(function, *args).get(self.start_timeout)
        except (IPythonError, TimeoutError) as error:
            raise RanksError(f"engines are lost or don't answer: {error}\n\n{self._log()}".rstrip(), {}) from error

    def _environment(self, rank: int, port: int) -> dict[str, str]:
        """Return what has changed here since the engines started, plus what torchrun would set for a rank."""
        changed = {name: value for name, value in os.environ.items() if self._inherited.get(name) != value}
        return changed | {
            "MASTER_ADDR": self._address,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # as with torchrun: the store exists, so no rank opens one
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self._local_ranks[rank]),
            "LOCAL_WORLD_SIZE": str(self._places.count(self._places[rank])),
        }

    def _endings(self, task: bytes, timeout: float, backend: str) -> list[_Ending]:
        """Return how every rank ended. Once one has failed, the other engines have `ANSWER_SECONDS` to report."""
        [port] = self._ask(self._ids[:1], _open_store)
        answers = [
            self._client[engine].apply_async(_be_a_rank, task, self._environment(rank, port), backend, timeout)
            for rank, engine in enumerate(self._ids)
        ]
        deadline = time.monotonic() + START_SECONDS + timeout + ANSWER_SECONDS
        endings: dict[int, _Ending] = {}
        while len(endings) < len(answers) and time.monotonic() < deadline:
            for rank, answer in enumerate(answers):
                if rank not in endings and answer.ready():
                    endings[rank] = self._ending_of(answer)
                    if endings[rank].report.kind != "returned":
                        deadline = min(deadline, time.monotonic() + ANSWER_SECONDS)
            time.sleep(0.01)
        return [endings.get(rank, _NO_ANSWER) for rank in range(len(answers))]

    def _ending_of(self, answer) -> _Ending:
        """Return an engine's answer, or why it gave none."""
        from ipyparallel.error import EngineError, RemoteError

        try:
            return answer.get()
        except EngineError:
            return _Ending(Report("lost", words=self._log()))
        except RemoteError as error:  # raised by the engine: the rank reports the function's own errors
            if error.ename == "EngineError":
                return _Ending(Report("lost", words=self._log()))
            return _Ending(Report("failed", words="\n".join(error.render_traceback())), order=1)

    def _log(self) -> str:
        """Return the engines' own output, such as a library's last message, without ipyparallel's lines."""
        lines = self._cluster.engine_set.get_output().splitlines()
        return "\n".join(line for line in lines if "[IPEngine" not in line and "[KernelNanny" not in line)


def _launcher_class(launcher: str, settings: dict[str, Any], submit: Sequence[str]) -> type:
    """Return ipyparallel's class for `launcher`; put the submit command into `settings` if there is one.

    Raises `ModuleNotFoundError` without ipyparallel, `ValueError` for an unknown launcher or setting, or if the program
    is missing.
    """
    try:
        from ipyparallel.cluster.launcher import find_launcher_class
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            'running on a cluster needs ipyparallel, an optional extra: pip install -e ".[cluster]"'
        ) from None
    if launcher not in LAUNCHERS:
        raise ValueError(f"launcher is one of {', '.join(LAUNCHERS)}, not {launcher!r}")
    launcher_class = find_launcher_class(launcher, "engine")
    known = set(launcher_class.class_trait_names(config=True))
    if unknown := sorted(set(settings) - known):
        raise ValueError(f"{launcher} has no setting {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    command = {"mpi": "mpi_cmd", "ssh": "ssh_cmd"}.get(launcher, "submit_command")
    if command in known:
        program = settings.get(command) or launcher_class.class_traits()[command].default()
        program = [program] if isinstance(program, str) else program
        if shutil.which(program[0]) is None:
            raise ValueError(f"launcher {launcher!r} starts engines with {program[0]}, which this machine doesn't have")
        if submit:
            settings[command] = [*program, *submit]
    elif submit:
        raise ValueError(f"launcher {launcher!r} submits no job, so `submit` has no meaning for it")
    return launcher_class


@dataclass(frozen=True)
class _Ending:
    """How a rank ended. `order`: 1 for the first that failed or died. `printed`: its stdout and stderr."""

    report: Report
    order: float = math.inf
    printed: tuple[str, str] = ("", "")


_NO_ANSWER = _Ending(Report("waits", words="is in an unknown state: its engine does not answer"))


# The rest of this file runs on the engines.


def _place() -> _Place:
    """Return where this engine is."""
    return _Place(socket.gethostname(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def _open_store() -> int:
    """Open the ranks' rendezvous store at a free port of engine 0; return the port."""
    global _store
    from torch.distributed import TCPStore

    _store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    return _store.port


def _start_fork_server(modules: list[str]) -> None:
    """Make this engine's fork server import `modules`, and wait until it has."""
    process.preload(*modules)
    process.start_fork_server()


def _be_a_rank(task: bytes, environment: dict[str, str], backend: str, timeout: float) -> _Ending:
    """Run one function as this engine's rank; return how it ended.

    The rank is a new process, as in `ranks.run`, so the engine can end it whatever it waits for and stay alive.
    """
    from torch.distributed import TCPStore

    rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    address, patience = (environment["MASTER_ADDR"], int(environment["MASTER_PORT"])), START_SECONDS + timeout
    store = TCPStore(*address, is_master=False, timeout=timedelta(seconds=START_SECONDS / 2))
    with tempfile.TemporaryDirectory(prefix="rank-") as folder:
        setup = Setup(world_size, backend, "env://", patience, folder, os.environ | environment)
        rank_process = RankProcess(rank, setup, task)
        try:
            rank_process.start()
            ending = _watch(rank_process, store, world_size, timeout)
            _wait_for_the_others(store, world_size)
        finally:
            process.end([rank_process])
        return replace(ending, printed=rank_process.printed())


def _watch(rank_process: RankProcess, store, world_size: int, timeout: float) -> _Ending:
    """Wait until all ranks have returned, one has failed (the store counts both), or time is up; return the ending."""
    returned, deadline = None, time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and not store.check(["failures"]):
        if returned:
            if store.add("returned", 0) == world_size:
                break  # not earlier: other ranks may still be reading what this one sent
            time.sleep(POLL_SECONDS)
        elif rank_process.pipe.poll(POLL_SECONDS):
            report = rank_process.read()
            if report.kind == "begun":
                deadline = time.monotonic() + timeout
            elif report.kind == "returned":
                returned = report
                store.add("returned", 1)
            else:
                return _Ending(report, order=store.add("failures", 1))
    return _Ending(returned or process.whereabouts([rank_process])[0])


def _wait_for_the_others(store, world_size: int) -> None:
    """Wait until every engine knows its rank's state: ending one rank changes the state of those that wait for it."""
    store.add("known", 1)
    deadline = time.monotonic() + 2 * process.ANSWER_SECONDS
    while store.add("known", 0) < world_size and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS / 10)
