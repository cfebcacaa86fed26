"""Real ranks from a notebook cell: processes of their own, in a process group of their own, in about 0.1 s.

A **fork server** is a process that has imported torch once and does nothing but fork. Each `run` asks it for fresh
ranks, so no state is left over from the last run, and nobody imports torch again. The function travels by
cloudpickle, so it may be one that a notebook cell has just defined. What happens in a rank is in `rank_process`.

The same file runs under `torchrun`, where the ranks exist already: then `run` is this process's part in them.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import cloudpickle

from .process import (
    START_SECONDS,
    RankProcess,
    Report,
    Setup,
    end,
    join_group,
    pack,
    whereabouts,
)

if TYPE_CHECKING:
    import torch

_RETURNED = ", which has returned, and will never answer (if it used isend: did it wait() for it?)"


class PerRank(list):
    """An argument for `run` of which each rank is handed its own element alone: element r comes to rank r.

    What the others get is not in its process. A list of any other length than the number of ranks is a `ValueError`.
    """


class RanksError(RuntimeError):
    """A run in which some rank failed, died or never finished. `waits`: {rank: the peer it was waiting for}."""

    def __init__(self, message: str, waits: dict[int, int | None]):
        super().__init__(message)
        self.waits = waits


def run(
    function: Callable,
    world_size: int,
    *args: Any,
    timeout: float = 60.0,
    backend: str | None = None,
    enter: Callable[[int], None] | None = None,
) -> list[Any]:
    """Call `function(rank, world_size, *args)` on `world_size` ranks; return what each returned, by rank.

    All ranks are given the same `args`, but for those that are a `PerRank`.

    Each rank is a process with one torch thread, in a process group over `backend` ("gloo", or "nccl" with one GPU
    a rank; by default nccl only if there are as many GPUs as ranks). What a rank prints is printed here, rank after
    rank. If one raises, dies, or has not returned `timeout` seconds after all have begun, all are ended and a
    `RanksError` says which rank it was, with its traceback, and who was waiting for whom, as far as a blocking `send`,
    `recv`, `execute` or a list of `P2POp`s shows it. Ranks see the environment variables of this process as they are.

    `enter(rank)`, a function of a module, is called in each rank before all else: `emulate` puts ranks on its nodes.
    """
    if world_size < 1:
        raise ValueError(f"world_size is the number of ranks, at least 1, not {world_size}")
    for given in args:
        if isinstance(given, PerRank) and len(given) != world_size:
            raise ValueError(f"a PerRank has an element for each rank: {world_size}, not {len(given)}")
    if "TORCHELASTIC_RUN_ID" in os.environ:  # under torchrun, this process is one rank among those started
        return _run_as_launched(function, world_size, args, timeout, backend)
    backend = backend or default_backend(world_size)
    if any(isinstance(given, PerRank) for given in args):
        tasks = [pack(function, _given_to(rank, args)) for rank in range(world_size)]
    else:
        tasks = [pack(function, args)] * world_size  # packed once
    return _Run(tasks, timeout, backend, enter).results()


def _given_to(rank: int, args: tuple) -> tuple:
    """What one rank is given."""
    return tuple(given[rank] if isinstance(given, PerRank) else given for given in args)


def default_backend(world_size: int) -> str:
    """ "nccl" where every one of `world_size` ranks can have a GPU of its own, and "gloo" elsewhere."""
    import torch

    return "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= world_size else "gloo"


def device() -> torch.device:
    """Where this rank computes: on its GPU if the process group is NCCL's, and on the CPU elsewhere."""
    import torch
    import torch.distributed as dist

    on_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


class _Run:
    """One run: starts the ranks, collects their reports, and leaves nothing running."""

    def __init__(self, tasks: list[bytes], timeout: float, backend: str, enter: Callable | None):
        self.timeout = timeout
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")  # for the store too, by which the ranks meet
        store = f"file://{self.folder.name}/store"
        patience = START_SECONDS + timeout  # of the group's own operations: longer than the run lasts
        setup = Setup(len(tasks), backend, store, patience, self.folder.name, dict(os.environ), enter)
        self.ranks = [RankProcess(rank, setup, task) for rank, task in enumerate(tasks)]
        self.begun: set[int] = set()
        self.reports: dict[int, Report] = {}  # of the ranks that have ended
        self.died: int | None = None

    def results(self) -> list[Any]:
        try:
            for one in self.ranks:
                one.start()
            self._collect()
        finally:
            end(self.ranks)
            show([one.printed() for one in self.ranks], self.died)
            self.folder.cleanup()
        return [cloudpickle.loads(self.reports[one.rank].value) for one in self.ranks]

    def _collect(self) -> None:
        """Read each rank's reports as they come, until all have returned, one fails, or the time is up."""
        deadline, begun = time.monotonic() + START_SECONDS, False
        while unfinished := self._unfinished():
            if not begun and len(self.begun) == len(self.ranks):
                deadline, begun = time.monotonic() + self.timeout, True
            waiting = {one.pipe: one for one in unfinished}
            ready = connection.wait(list(waiting), max(deadline - time.monotonic(), 0))
            if not ready:
                late = f"finish within {self.timeout:g} s" if begun else f"begin within {START_SECONDS:g} s"
                self._fail(f"{len(waiting)} of {len(self.ranks)} ranks did not {late}")
            for pipe in ready:
                self._read(waiting[pipe])

    def _read(self, one: RankProcess) -> None:
        report = one.read()
        if report.kind == "begun":
            self.begun.add(one.rank)
            return
        self.reports[one.rank] = report
        if report.kind != "returned":
            self._fail()

    def _unfinished(self) -> list[RankProcess]:
        return [one for one in self.ranks if one.rank not in self.reports]

    def _fail(self, headline: str = "") -> None:
        """Ask the ranks that are left where they are, and raise. If some rank is to blame, the headline says so."""
        left = self._unfinished()
        self.reports |= {one.rank: report for one, report in zip(left, whereabouts(left), strict=True)}
        culprit = find_culprit(self.reports)
        if culprit is not None:
            headline = f"rank {culprit} {self.reports[culprit].blame}"
            self.died = culprit if self.reports[culprit].kind == "died" else None
        raise explain(headline, [self.reports[one.rank] for one in self.ranks], culprit)


def find_culprit(reports: dict[int, Report]) -> int | None:
    """The rank to blame, of reports by rank in the order in which they came; None if none failed, died or was lost.

    A lost engine and a rank that died come ahead of ranks that failed, which may have noticed it first.
    """
    guilty = [rank for kind in ("lost", "died", "failed") for rank in reports if reports[rank].kind == kind]
    return guilty[0] if guilty else None


def explain(headline: str, reports: list[Report], culprit: int | None) -> RanksError:
    """The error of a run: the headline, where every other rank is, who waits for whom, and the culprit's words."""
    others = [(rank, report) for rank, report in enumerate(reports) if rank != culprit]
    waits = {rank: report.peer for rank, report in enumerate(reports) if report.kind != "returned"}
    lines = [headline, *(f"  rank {rank} {report.state}" for rank, report in others)]
    if cycle := find_cycle(waits):
        lines.append("  each waits for the next: " + " → ".join(f"rank {rank}" for rank in cycle))
    for rank in sorted(set(waits.values()) - {None, culprit}):
        if rank in range(len(reports)) and waits.get(rank) is None:  # some wait for a rank that there is not
            over = _RETURNED if reports[rank].kind == "returned" else ""
            lines.append(f"  waited for, and waiting for nobody: rank {rank}{over}")
    details = "" if culprit is None else reports[culprit].words
    return RanksError("\n".join(lines) + (f"\n\n{details}" if details else ""), waits)


def show(printed: list[tuple[str, str]], died: int | None) -> None:
    """Print what ranks wrote, by name; but not the last words of the rank that died, which are in the error."""
    for index, stream in enumerate((sys.stdout, sys.stderr)):
        for rank, texts in enumerate(printed):
            if stream is sys.stderr and rank == died:
                continue
            for line in texts[index].splitlines():
                print(f"rank {rank}: {line}", file=stream)


def find_cycle(waits: dict[int, int | None]) -> list[int] | None:
    """Ranks that wait for each other in a circle, the first one repeated at the end; None if there are none."""
    for start in waits:
        path = [start]
        while (peer := waits.get(path[-1])) is not None and peer not in path:
            path.append(peer)
        if peer == start:
            return [*path, start]
    return None


def _run_as_launched(function: Callable, world_size: int, args: tuple, timeout: float, backend: str | None) -> list:
    """Under torchrun: be the rank that the launcher made this process, and gather what all of them return."""
    import torch.distributed as dist

    launched = int(os.environ["WORLD_SIZE"])
    if launched != world_size:
        raise ValueError(f"this run wants {world_size} ranks, but torchrun started {launched}")
    rank = int(os.environ["RANK"])
    if not dist.is_initialized():
        local = int(os.environ.get("LOCAL_WORLD_SIZE", launched))
        join_group(rank, launched, backend or default_backend(local), "env://", timeout)
        atexit.register(dist.destroy_process_group)
    result = function(rank, launched, *_given_to(rank, args))
    results = [None] * launched
    dist.all_gather_object(results, result)
    return results
