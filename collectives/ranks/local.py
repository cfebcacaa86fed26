"""Real ranks from a notebook cell: new processes in a new process group, in about 0.1 s.

A **fork server** is a process that imports torch once and then does nothing but fork. Each `run` gets fresh ranks from
it, so no state is left over from the last run and no rank imports torch again. The function travels by cloudpickle, so
a notebook cell may have just defined it. `process` holds what happens inside a rank.

The same code runs under `torchrun`, where the ranks already exist: `run` then runs only this process's rank.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, TextIO

import cloudpickle

from .process import (
    START_SECONDS,
    Killed,
    Later,
    RankProcess,
    Report,
    Setup,
    end,
    join_group,
    make_groups,
    pack,
    whereabouts,
)

if TYPE_CHECKING:
    import torch

MOST_CROWDED = 5.0
_RETURNED = ": it has returned and will never answer (if it used isend: did it wait() for it?)"


class PerRank(list):
    """An argument to `run` that gives each rank only its own element: rank r gets element r.

    A rank's process never holds the other elements. `run` raises `ValueError` unless there is one element per rank.
    """


class RanksError(RuntimeError):
    """A run in which a rank failed, died or never finished. `waits`: {rank: the peer it was waiting for}."""

    def __init__(self, message: str, waits: dict[int, int | None]):
        super().__init__(message)
        self.waits = waits


def run(
    function: Callable,
    world_size: int,
    *args: Any,
    timeout: float = 60.0,
    backend: str = "gloo",
    enter: Callable[[int], None] | None = None,
    serve: Callable[[int, Any], Any] | None = None,
    apart: bool = False,
    sealed: bool = False,
    groups: Sequence[Sequence[int]] = (),
) -> list[Any]:
    """Call `function(rank, world_size, *args)` on `world_size` ranks; return their results, by rank.

    All ranks get the same `args`, except that each gets only its own element of a `PerRank`.

    Each rank is a process with one torch thread, in a process group over `backend`: "gloo", which carries tensors on
    the CPU, or "nccl" with one GPU per rank, which carries tensors on GPUs alone. `device()` is where it needs them.
    Ranks inherit this process's environment. What they print is printed here, rank by rank.

    Raises `RanksError` if a rank raises, dies, or has not returned `timeout` seconds after all ranks began; all ranks
    are then killed. The error names the rank, shows its traceback, and says which rank waits for which, as far as a
    blocking `send`, `recv`, `execute` or a list of `P2POp`s shows it.

    `enter(rank)`, a module-level function, runs in each rank before anything else. `emulate` uses it to place ranks on
    nodes.

    `serve(rank, question)` runs here, in the calling process, whenever a rank calls `ranks.ask(question)`: it returns
    the answer, `Later` to give it later, or `Killed` to have that rank killed. What it raises ends the run. Under
    torchrun no process can serve.

    `apart`: nothing that earlier ranks have left may reach these, such as a file. The grader then runs them in a new
    sandbox; here, they are new processes as ever.

    `sealed`: the ranks pass nothing to one another but messages of the groups that they have, and make no other group.
    Here that holds over gloo; the grader also keeps them from files, from sockets and from signals.

    `groups`: lists of ranks that get a process group of their own, beside that of all. Each is made on all ranks before
    `function` is called, which finds it by `ranks.group`.
    """
    own = own_args(world_size, args)
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has already started this process as one of the ranks
        if serve is not None:
            raise ValueError("torchrun has started these ranks, so no process is left to serve them")
        return _run_as_launched(function, world_size, args, timeout, backend, groups)
    if any(isinstance(arg, PerRank) for arg in args):
        tasks = [pack(function, mine) for mine in own]
    else:
        tasks = [pack(function, args)] * world_size  # packed once
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:  # for printed output and the rendezvous store
        patience = START_SECONDS + timeout  # seconds before the group's own operations time out: longer than the run
        store, environment = f"file://{folder}/store", dict(os.environ)
        setup = Setup(
            world_size, backend, store, patience, folder, environment, enter, serve is not None, sealed, groups
        )
        reports = drive([RankProcess(rank, setup, task) for rank, task in enumerate(tasks)], timeout, serve)
    return [cloudpickle.loads(report.value) for report in reports]


def own_args(world_size: int, args: tuple) -> list[tuple]:
    """Return the arguments of each rank. Raise `ValueError` unless each `PerRank` has `world_size` >= 1 elements."""
    if world_size < 1:
        raise ValueError(f"world_size is the number of ranks, at least 1, not {world_size}")
    for arg in args:
        if isinstance(arg, PerRank) and len(arg) != world_size:
            raise ValueError(f"a PerRank needs one element per rank: {world_size}, not {len(arg)}")
    return [_args_of(rank, args) for rank in range(world_size)]


def _args_of(rank: int, args: tuple) -> tuple:
    """Return the arguments of one rank."""
    return tuple(arg[rank] if isinstance(arg, PerRank) else arg for arg in args)


def crowding() -> float:
    """Return how many times as long as alone work takes here at present, from 1 to `MOST_CROWDED`, by the load.

    With 4 processes that want to run on 2 processors, 2. The load is that of the last minute; without one, as on
    Windows, 1.
    """
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return 1.0
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(load / processors, 1.0), MOST_CROWDED)


def fastest_backend(world_size: int) -> str:
    """Return "nccl" if each of `world_size` ranks can have its own GPU, else "gloo".

    Under torchrun: if each rank of this node can.
    """
    import torch

    local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    return "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= local else "gloo"


def device() -> torch.device:
    """Return this rank's device: its GPU if the process group uses NCCL, else the CPU."""
    import torch
    import torch.distributed as dist

    on_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)


def drive(
    ranks: Sequence[RankProcess],
    timeout: float,
    serve: Callable[[int, Any], Any] | None = None,
    write: Callable[[TextIO, str], Any] = _write,
) -> list[Report]:
    """Start ranks and return their reports once all have returned; leave nothing running, and print what they printed.

    `serve`, and what is raised: as of `run`. `write(stream, text)`: prints what a rank printed; by default the stream
    does. The grader passes ranks of its own, which have the same methods.
    """
    return _Run(ranks, timeout, serve, write).reported()


class _Run:
    """One run, which starts the ranks, collects their reports and leaves nothing running."""

    def __init__(
        self,
        ranks: Sequence[RankProcess],
        timeout: float,
        serve: Callable[[int, Any], Any] | None,
        write: Callable[[TextIO, str], Any],
    ):
        self.ranks, self.timeout, self.serve, self.write = ranks, timeout, serve, write
        self.begun: set[int] = set()
        self.later: list[tuple[float, RankProcess, Later]] = []  # answers, with when to give them
        self.over = math.inf  # when the run ends in which a rank was killed, in seconds of time.monotonic()
        self.reports: dict[int, Report] = {}  # of the ranks that have ended
        self.died: int | None = None

    def reported(self) -> list[Report]:
        try:
            for process in self.ranks:
                process.start()
            self._collect()
        finally:
            end(self.ranks)
            show([process.printed() for process in self.ranks], self.died, self.write)
        return [self.reports[process.rank] for process in self.ranks]

    def _collect(self) -> None:
        """Read reports as they arrive until all ranks have returned; raise if one fails or time runs out.

        Once a rank is killed, what the others report is read until they all have ended, or `over`.
        """
        deadline, begun = time.monotonic() + START_SECONDS, False
        while unfinished := self._unfinished():
            if not begun and len(self.begun) == len(self.ranks):
                deadline, begun = time.monotonic() + self.timeout, True
            waiting: dict[Any, RankProcess] = {each.pipe: each for each in unfinished}
            until = min([deadline, self.over, *(when for when, _, _ in self.later)])
            ready = connection.wait(list(waiting), max(until - time.monotonic(), 0))
            if time.monotonic() >= self.over:
                break
            self._answer_those_due()
            late = time.monotonic() >= deadline
            if late and not ready:
                did = f"finish within {self.timeout:g} s" if begun else f"begin within {START_SECONDS:g} s"
                self._fail(f"{len(unfinished)} of {len(self.ranks)} ranks did not {did}")
            for pipe in ready:
                self._read(waiting[pipe], late)
        if self.over < math.inf:
            self._fail()

    def _read(self, process: RankProcess, late: bool) -> None:
        report = process.read()
        if report.kind == "begun":
            self.begun.add(process.rank)
            return
        if report.kind == "asks":
            if self.serve is not None and not late:  # else a rank that never stops asking would never be late
                self._answer(process, self.serve(process.rank, report.value))
            return
        self.reports[process.rank] = report
        if report.kind != "returned" and self.over == math.inf:  # else it may have lost one that was killed
            self._fail()

    def _answer_those_due(self) -> None:
        due = [each for each in self.later if each[0] <= time.monotonic()]
        self.later = [each for each in self.later if each not in due]
        for _, process, later in due:
            self._answer(process, later.answer())

    def _answer(self, process: RankProcess, answer: Any) -> None:
        if isinstance(answer, Killed):
            process.process.kill()
            process.process.join()
            self.reports[process.rank] = Report("died", exit_code=process.process.exitcode)
            self.over = min(self.over, time.monotonic() + answer.more)
        elif isinstance(answer, Later):
            self.later.append((time.monotonic() + answer.seconds, process, answer))
        else:
            process.answer(answer)

    def _unfinished(self) -> list[RankProcess]:
        return [process for process in self.ranks if process.rank not in self.reports]

    def _fail(self, headline: str = "") -> None:
        """Query the remaining ranks and raise. If a rank is to blame, the headline names it."""
        left = self._unfinished()
        self.reports |= {process.rank: report for process, report in zip(left, whereabouts(left), strict=True)}
        culprit = find_culprit(self.reports)
        if culprit is not None:
            headline = f"rank {culprit} {self.reports[culprit].blame}"
            self.died = culprit if self.reports[culprit].kind == "died" else None
        raise explain(headline, [self.reports[process.rank] for process in self.ranks], culprit)


def find_culprit(reports: dict[int, Report]) -> int | None:
    """Return the rank to blame, or None if no rank failed, died or was lost.

    `reports`: by rank, in order of arrival. A lost engine or a dead rank is blamed before a failed rank, because
    the others may fail as a consequence and report first.
    """
    guilty = [rank for kind in ("lost", "died", "failed") for rank in reports if reports[rank].kind == kind]
    return guilty[0] if guilty else None


def explain(headline: str, reports: list[Report], culprit: int | None) -> RanksError:
    """Return the error of a run: headline, other ranks' states, which rank waits for which, the culprit's output."""
    others = [(rank, report) for rank, report in enumerate(reports) if rank != culprit]
    waits = {rank: report.peer for rank, report in enumerate(reports) if report.kind != "returned"}
    lines = [headline, *(f"  rank {rank} {report.state}" for rank, report in others)]
    if cycle := find_cycle(waits):
        lines.append("  each waits for the next: " + " → ".join(f"rank {rank}" for rank in cycle))
    for rank in sorted({peer for peer in waits.values() if peer is not None} - {culprit}):
        if rank in range(len(reports)) and waits.get(rank) is None:  # a peer may also be a rank that doesn't exist
            over = _RETURNED if reports[rank].kind == "returned" else ""
            lines.append(f"  ranks wait for rank {rank}, which waits for no rank{over}")
    details = "" if culprit is None else reports[culprit].words
    return RanksError("\n".join(lines) + (f"\n\n{details}" if details else ""), waits)


def show(printed: list[tuple[str, str]], died: int | None, write: Callable[[TextIO, str], Any] = _write) -> None:
    """Print what the ranks wrote, each line with its rank, except a dead rank's stderr: the error shows that."""
    for index, stream in enumerate((sys.stdout, sys.stderr)):
        for rank, texts in enumerate(printed):
            if stream is sys.stderr and rank == died:
                continue
            for line in texts[index].splitlines():
                write(stream, f"rank {rank}: {line}\n")


def find_cycle(waits: dict[int, int | None]) -> list[int] | None:
    """Return ranks that wait for each other in a cycle, the first repeated at the end; None if there is no cycle."""
    for start in waits:
        path = [start]
        while (peer := waits.get(path[-1])) is not None and peer not in path:
            path.append(peer)
        if peer == start:
            return [*path, start]
    return None


def _run_as_launched(
    function: Callable,
    world_size: int,
    args: tuple,
    timeout: float,
    backend: str,
    groups: Sequence[Sequence[int]],
) -> list:
    """Run this process's rank under torchrun; return the results of all ranks."""
    import torch.distributed as dist

    launched = int(os.environ["WORLD_SIZE"])
    if launched != world_size:
        raise ValueError(f"this run needs {world_size} ranks, but torchrun started {launched}")
    rank = int(os.environ["RANK"])
    if not dist.is_initialized():
        join_group(rank, launched, backend, "env://", timeout)
        atexit.register(dist.destroy_process_group)
    make_groups(groups)
    result = function(rank, launched, *_args_of(rank, args))
    results = [None] * launched
    dist.all_gather_object(results, result)
    return results
