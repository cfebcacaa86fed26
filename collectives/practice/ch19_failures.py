"""Checks for exercise 19: what failures cost, how often to save, and a training job that survives them.

The truth in part a is a job followed second by second, with whole numbers. In part b it is the share lost to first
order. In part c it is the same job on one rank, never disturbed. The job's sums are of multiples of 2**-20 and exact in
fp64, so its losses are equal to the bit on any number of ranks.

Part c runs **lives** of a job on real ranks, one after the other, on one disk. A life may end by SIGKILL: a rank is
killed before a step, or at a **moment** of `save`, which is before an operation that changes the disk or in the middle
of a write. The other ranks go on for as long as they can. Or all ranks are killed at once: a life ends as if nothing
were wrong, and then the disk is taken back to a moment of its save. So no code can do its work where it won't be looked
at.

A rank shares its process with the learner's code, so it decides nothing. A `Witness`, in the process that starts the
ranks, holds the disk, counts the moments, has ranks killed, and notes what they report. What they report must follow
from the disk: before the next life the check changes numbers on it, and a job that resumes must have the changed ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import operator
import pickle
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from functools import lru_cache, partial
from itertools import permutations, product
from numbers import Real
from random import Random
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from .. import ranks
from ..machines import RATINGS
from ..training import checkpoints, failures, memory
from . import checks
from .checks import Answered, NotYet, check_rows, number_of, own_answer, refusing_functions
from .on_ranks import how_it_failed, is_a, patience, reported

HOLDS = (
    ".LLAMA",
    ".LLAMA_SECONDS",
    ".llama_log",
    ".ways_of",
    "training.memory",
    ".each",
)  # see `wall`
ON_RANKS = (
    ".Data",
    ".Disk",
    ".Job",
    "._life",
    "._in_words",
    "._state_of",
    "._name",
    "._plain",
)


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, the library's own answers and this module's."""
    library = failures.interval, failures.lost, failures.goodput, failures.simulate, failures.kept
    answers = replayed, mean_between, share_lost, best, undisturbed.__wrapped__, _trained
    saved = checkpoints.state_of, checkpoints.save, checkpoints.resume
    with checks.without_the_library(), refusing_functions(*library, *answers, *saved):
        yield


# Part a: what a log costs


class Row(NamedTuple):
    """An interruption in a job's log. `time`: when, in seconds. `restart`: seconds until the job trains again."""

    time: int
    cause: str
    restart: int


PLANNED = "planned"
KEPT, UNDONE, SAVING, DOWN = PARTS = "kept", "undone", "saving", "down"

# Interruptions by cause in 54 days of Llama 3's training on 16,384 GPUs. Source: Grattafiori et al., 2024, Table 5.
LLAMA = {
    "faulty GPU": 148,
    "GPU HBM3 memory": 72,
    "software bug": 54,
    "network switch or cable": 35,
    "host maintenance, not planned": 32,
    "GPU SRAM memory": 19,
    "GPU system processor": 17,
    "network card": 7,
    "NCCL watchdog timeout": 7,
    "silent data corruption": 6,
    "GPU thermal interface or sensor": 6,
    "SSD": 3,
    "power supply": 3,
    "server chassis": 2,
    "IO expansion board": 2,
    "dependency": 2,
    "CPU": 2,
    "system memory": 2,
    PLANNED: 47,
}
LLAMA_SECONDS = 54 * 24 * 3600


def llama_log(restart: int = 600, seed: int = 3) -> list[Row]:
    """Return a log with as many interruptions of each cause as Llama 3 had; their times are drawn at random.

    `restart`: seconds, an assumption. Meta publishes neither times nor restarts.
    """
    draw = Random(seed)
    causes = [cause for cause, count in LLAMA.items() for _ in range(count)]
    return sorted(Row(draw.randrange(LLAMA_SECONDS), cause, restart) for cause in causes)


def replayed(
    log: Iterable[Row], every: int, stop: int, until: int, writing: int = 0, slip: str = ""
) -> dict[str, float]:
    """Return how a job spends the seconds before `until`: {part: seconds}. Follows it second by second.

    `slip`: one of `REPLAY_SLIPS`, a learner's mistake.
    """
    spent: dict[str, float] = dict.fromkeys(PARTS, 0)
    rows = {now: [row for row in log if row.time == now] for now in {row.time for row in log}}
    trained = safe = begun = up_at = 0
    writes: list[tuple[int, int]] = []  # when each checkpoint is complete, and what it holds
    period = every + stop + (writing if slip == WAITS else 0)
    for now in range(until + 1):
        phase = (now - begun) % period
        if now > begun and phase == (every if slip == AT_ONCE and stop else 0):
            late = 0 if slip in (NO_WRITING, WAITS) else writing - (stop if slip == OVERLAPPED else 0)
            writes.append((now + late, trained))
        safe = max([safe, *(held for complete, held in writes if complete <= now - (slip == TOO_LATE))])
        for row in rows.get(now, ()) if now < until or slip == AT_END else ():
            if now < up_at and slip != NEVER_DOWN:
                if slip == PLANNED_DOWN and row.cause == PLANNED:
                    continue
                ends = {SAME_RESTART: up_at, LAST_ROW: now + row.restart, IN_TURN: up_at + row.restart}
                begun = up_at = ends.get(slip, max(up_at, now + row.restart))
                continue
            undone = 0 if row.cause == PLANNED and slip != ALL_FAIL else trained - (slip != ALL_LOST) * safe
            spent[UNDONE] += undone
            spent[KEPT] += trained - undone
            writes, trained, safe, begun = [], 0, 0, now + row.restart
            up_at = max(begun, up_at)
        if now == until:
            break
        if now < up_at:
            spent[DOWN] += 1
        elif (now - begun) % period < every:
            trained += 1
        else:
            spent[SAVING] += 1
    last = safe if slip == END_FAILS else trained
    spent[KEPT] += last
    spent[UNDONE] += trained - last
    if slip == OVER_THE_END:
        spent[DOWN] += max(up_at - until, 0)
    return spent


ALL_FAIL = "a planned interruption undoes nothing: the job has saved"
PLANNED_DOWN = "a planned interruption while the job is down has a restart of its own, too"
SAME_RESTART = "the job comes up when the last of the restarts ends"
LAST_ROW = "a shorter restart doesn't end a longer one"
IN_TURN = "restarts run at the same time, so the job comes up when the last of them ends"
AT_END = "a row at `until` doesn't count"
NEVER_DOWN = "an interruption while the job is down ends no training and adds to no other: the seconds of down overlap"
AT_ONCE = "a checkpoint counts when its stop is over, not when it begins"
TOO_LATE = "a checkpoint that is complete at this very second counts"
ALL_LOST = "a failure undoes what was trained since the newest complete checkpoint, no more"
END_FAILS = "the end is no failure: what was trained by then is kept"
OVER_THE_END = "the log ends at `until`: seconds after it don't count"
NO_WRITING = "a checkpoint counts only `writing` seconds after its stop"
WAITS = "training goes on while a checkpoint is written"
OVERLAPPED = "the writing begins after the stop: that is the copy"
REPLAY_SLIPS = (
    ALL_FAIL,
    PLANNED_DOWN,
    SAME_RESTART,
    LAST_ROW,
    IN_TURN,
    AT_END,
    NEVER_DOWN,
    AT_ONCE,
    TOO_LATE,
    ALL_LOST,
    END_FAILS,
    OVER_THE_END,
    NO_WRITING,
    WAITS,
    OVERLAPPED,
)
"""Mistakes in words, for `replayed`."""


class Replay(NamedTuple):
    """An input of `replay`: its arguments, in order."""

    log: list[Row]
    every: int
    stop: int
    until: int
    writing: int = 0


def one_row(writing: bool = False) -> list[Replay]:
    """Return all short jobs with one interruption; with `writing`, those that write for 1 to `every` seconds."""
    cases = []
    for every, stop in product((1, 2, 3), (0, 1, 2)):
        for wait in range(1, every + 1) if writing else (0,):
            for now, restart, cause in product(range(15), (0, 2, 5), ("faulty GPU", PLANNED)):
                cases.append(Replay([Row(now, cause, restart)], every, stop, 14, wait))
    return cases


def two_rows(writing: bool = False) -> list[Replay]:
    """Return short jobs with two interruptions, of which the second comes while the job is down, or just comes up."""
    return [
        Replay([Row(4, "faulty GPU", 6), Row(now, cause, restart)], 3, 1, 16, int(writing))
        for now, restart, cause in product((5, 8, 10), (1, 2, 3, 5), ("faulty GPU", PLANNED))
    ]


def random_logs(seed: int, how_many: int = 60, writing: bool = False) -> list[Replay]:
    """Return random jobs of some 100 seconds with up to eight interruptions, some of them while the job is down."""
    draw, cases = Random(seed), []
    causes = [*LLAMA][:4] + [PLANNED] * 2
    for _ in range(how_many):
        until, every = draw.randrange(60, 140), draw.randrange(2, 12)
        times = sorted(draw.choices(range(until + 5), k=draw.randrange(2, 9)))
        log = [Row(now, draw.choice(causes), draw.choice((0, 1, 3, 8, 20))) for now in times]
        cases.append(Replay(log, every, draw.randrange(4), until, draw.randrange(1, every + 1) if writing else 0))
    return cases


def each(function: Callable, cases: Iterable[Replay]) -> list[Any]:
    """Return what the learner's function returns in each case, up to one that ends in an error, which is left out.

    Runs beside the learner's code: one crossing for all cases, where each takes little.
    """
    found: list[Any] = []
    for case in cases:
        try:
            found.append(checks.own(__name__, function, *deepcopy(case)))
        except Exception:
            break
    return found


def check_replay(function: Callable, cases: Iterable[Replay]) -> None:
    """Check that `function(log, every, stop, until, writing)` is how each job spends its seconds.

    The error names the mistake that explains all answers, if one does.
    """
    cases = list(cases)
    found: list[dict[str, float]] = []
    while len(found) < len(cases):
        rest = cases[len(found) :]
        some = each(function, rest)
        if not isinstance(some, list) or not some:  # the next one ends in an error: ask for it alone
            some = [own_answer(__name__, function, *rest[0], call=_replay_call(function, rest[0]))]
        for case, result in zip(rest, some, strict=False):
            found.append(_parts(result, _replay_call(function, case)))
    for case, got in zip(cases, found, strict=True):
        want = replayed(*case)
        wrong = next((part for part in PARTS if got[part] != want[part]), None)
        if wrong is None:
            continue
        slip = next((each for each in REPLAY_SLIPS if found == [replayed(*c, slip=each) for c in cases]), "")
        if not slip and all(row.time >= case.until for row in case.log):
            slip = AT_END
        raise NotYet(
            f"{_replay_call(function, case)} returns {wrong} = {got[wrong]:g}; it is {want[wrong]:g}"
            f"{slip and f': {slip}'}. All of it: {_spent(want)}"
        )


def _replay_call(function: Callable, case: Replay) -> str:
    rows = ", ".join(f"({row.time}, {row.cause!r}, {row.restart})" for row in case.log)
    more = f", writing={case.writing}" if case.writing else ""
    return f"{function.__name__}([{rows}], every={case.every}, stop={case.stop}, until={case.until}{more})"


def _spent(spent: Mapping[str, float]) -> str:
    return ", ".join(f"{part} {spent[part]:g}" for part in PARTS)


def _parts(result: Any, call: str) -> dict[str, float]:
    if isinstance(result, checks.Refusal):
        raise NotYet(f"{call}: {result.words}")
    if not isinstance(result, Mapping) or set(result) != set(PARTS):
        raise NotYet(f"{call} returns {brief(result)}; return a dict of {', '.join(map(repr, PARTS))}")
    return {part: number_of(result[part], f"{call}: its {part}") for part in PARTS}


def mean_between(log: Iterable[Row], until: int, slip: str = "") -> float:
    """Return the seconds that the job is up for each failure that interrupts it. `slip`: of `BETWEEN_SLIPS`."""
    up_at, down, count = 0, 0, 0
    for row in log:
        if row.time >= until and slip != AFTER_THE_END:
            break
        first = row.time == up_at == 0 and slip != NOT_EVEN_FIRST
        fails = row.time >= up_at + (slip in (NOT_YET_UP, NOT_EVEN_FIRST)) or first or slip == WHILE_DOWN
        count += fails and (row.cause != PLANNED or slip == COUNTS_PLANNED)
        later = max(up_at, row.time + row.restart)
        down += min(later, until) - max(min(up_at, until), min(row.time, until))
        up_at = later
    return (until if slip == ALL_SECONDS else until - down) / max(count, 1)


COUNTS_PLANNED = "a planned interruption is no failure"
WHILE_DOWN = "an interruption while the job is down is no failure of a running job"
ALL_SECONDS = "count only the seconds in which the job is up: it can't fail while it is down"
AFTER_THE_END = "a row at `until` or later doesn't count"
NOT_YET_UP = "at the very second at which the job comes up it is up: a row then is a failure"
NOT_EVEN_FIRST = (
    "the job is up from second 0, and at the very second at which it comes up again: a row then is a failure"
)
BETWEEN_SLIPS = COUNTS_PLANNED, WHILE_DOWN, NOT_YET_UP, NOT_EVEN_FIRST, ALL_SECONDS, AFTER_THE_END


def failing_logs(seed: int, how_many: int = 40) -> list[tuple[list[Row], int]]:
    """Return logs with at least one failure, each with its end: two with a row when the job comes up, others random."""
    comes_up = [
        ([Row(5, "faulty GPU", 4), Row(9, "faulty GPU", 3)], 36),
        ([Row(0, "faulty GPU", 2), Row(5, "faulty GPU", 4)], 20),
    ]
    cases = [(case.log, case.until) for case in random_logs(seed, 4 * how_many)]
    failing = [case for case in cases if any(row.cause != PLANNED for row in _interrupting(*case))]
    return [*comes_up, *failing[: how_many - 2]]


def _interrupting(log: Iterable[Row], until: int) -> list[Row]:
    """Return the rows that interrupt a running job."""
    found, up_at = [], 0
    for row in log:
        if up_at <= row.time < until:
            found.append(row)
        up_at = max(up_at, row.time + row.restart)
    return found


def check_between(function: Callable, cases: Iterable[tuple[list[Row], int]]) -> None:
    """Check that `function(log, until)` is the mean time between failures of each log."""
    rows = []
    for log, until in cases:
        shown = ", ".join(f"({row.time}, {row.cause!r}, {row.restart})" for row in log)
        call = f"{function.__name__}([{shown}], {until})"
        got = number_of(own_answer(__name__, function, list(log), until, call=call), call)
        want = mean_between(log, until)
        slips = {slip: mean_between(log, until, slip) for slip in BETWEEN_SLIPS}
        rows.append(Answered(f"{call} returns {got:.6g} seconds; it is {want:.6g}", got, want, slips))
    check_rows(rows, words=lambda row: row.call)


# Part b: how often, and which way

Ways = Mapping[str, tuple[float, float]]
SYNC, ASYNC = "sync", "async"

STATE_BYTES = memory.MIXED_ADAM.optimizer  # a parameter: fp32 weights and Adam's moments
STORAGE = 2e12 / 16_384  # bytes a second for each GPU: Llama 3's storage, shared by its GPUs
PCIE = RATINGS["PCIe 5.0 x16"].rate


def ways_of(parameters: float, gpus: int) -> dict[str, tuple[float, float]]:
    """Return the (stop, writing) seconds of a model's checkpoint by each way, at Llama 3's storage a GPU."""
    mine = parameters * STATE_BYTES / gpus
    return {SYNC: (round(mine / STORAGE, 3), 0.0), ASYNC: (round(mine / PCIE, 3), round(mine / STORAGE, 3))}


def share_lost(every: float, stop: float, writing: float, between: float) -> float:
    """Return the share of the time that saving costs, to first order: the stops, and what failures undo."""
    return stop / every + (every / 2 + writing) / between


def best(
    ways: Ways, between: float, floor: bool = True, cost: Callable = share_lost, twice: float = 2.0, last: bool = True
) -> tuple[str, float]:
    """Return the way that loses least, and its interval in seconds. The other parameters model a learner's mistakes.

    `floor`: whether an interval is at least as long as the writing. `twice`: the factor under the root. `last`: whether
    ways are compared with that floor, not before it.
    """
    found = {}
    for name, (stop, writing) in ways.items():
        free = math.sqrt(twice * stop * between)
        every = max(free, writing) if floor else free
        found[name] = cost(every if last else free, stop, writing, between), every
    name = min(found, key=lambda each: found[each][0])
    return name, found[name][1]


def _free_writing(every: float, stop: float, writing: float, between: float) -> float:
    return share_lost(every, stop, 0, between)


def _sync_alone(every: float, stop: float, writing: float, between: float) -> float:
    return writing


PLAN_SLIPS: dict[str, dict[str, Any]] = {
    "the interval is the root of TWICE the stop times the time between failures": {"twice": 1.0},
    "a checkpoint can't begin before the last one is written: the interval is at least `writing`": {"floor": False},
    "compare the ways at the intervals that they can have": {"last": False},
    "a failure also undoes the `writing` seconds before a checkpoint is complete": {"cost": _free_writing},
    "the way that writes least isn't always best: its stops cost more": {"cost": _sync_alone},
}
"""Mistakes in words, and what `best` is then called with."""


def check_lost(function: Callable, cases: Iterable[tuple[float, float, float, float]]) -> None:
    """Check that `function(every, stop, writing, between)` is the share lost to first order."""
    rows = []
    for every, stop, writing, between in cases:
        call = f"{function.__name__}(every={every}, stop={stop}, writing={writing}, between={between})"
        got = number_of(own_answer(__name__, function, every, stop, writing, between, call=call), call)
        want = share_lost(every, stop, writing, between)
        slips = {
            "a failure undoes half an interval on average, not all of it": share_lost(
                every, stop, writing + every / 2, between
            ),
            "a failure also undoes the `writing` seconds before a checkpoint is complete": share_lost(
                every, stop, 0, between
            ),
            "a failure undoes all of `writing`, not half": share_lost(every, stop, writing / 2, between),
            "training goes on while a checkpoint is written: that is no stop": share_lost(
                every, stop + writing, 0, between
            ),
            "the stops are missing": share_lost(every, 0, writing, between),
            "to first order the stops cost stop / every": share_lost(every, stop, writing, between)
            + stop / (every + stop)
            - stop / every,
            "what failures undo is missing": stop / every,
            "this is in percent; return a share": 100 * want,
        }
        rows.append(Answered(f"{call} returns {got:.6g}; it is {want:.6g}", got, want, slips))
    check_rows(rows, words=lambda row: row.call)


def few_losses(seed: int) -> list[tuple[float, float, float, float]]:
    """Return inputs of `lost`."""
    draw = Random(seed)
    return [
        (draw.randrange(200, 3000), draw.randrange(1, 90), writing, draw.randrange(2_000, 90_000))
        for writing in (0, 0, 60, 150, 7)
    ]


def check_plan(function: Callable, cases: Iterable[tuple[Ways, float]]) -> None:
    """Check that `function(ways, between)` is the way that loses least, with its best interval."""
    cases, chosen = list(cases), []
    for ways, between in cases:
        call = f"{function.__name__}({dict(ways)}, between={between:g})"
        result = own_answer(__name__, function, dict(ways), between, call=call)
        if not isinstance(result, tuple | list) or len(result) != 2 or result[0] not in ways:
            raise NotYet(f"{call} returns {brief(result)}; return a way and its interval in seconds")
        chosen.append((str(result[0]), number_of(result[1], f"{call}: its interval")))
    right = [_as_good(got, *case) for got, case in zip(chosen, cases, strict=True)]
    if all(right):
        return
    made = {words: [best(*case, **slips) for case in cases] for words, slips in PLAN_SLIPS.items()}
    slip = next((words for words, plans in made.items() if all(map(_same_plan, chosen, plans))), "")
    number = right.index(False)
    (ways, between), (way, every) = cases[number], chosen[number]
    name, interval = best(ways, between)
    if every <= 0 or every < ways[way][1] * (1 - 1e-9):
        why = f"{way!r} writes for {ways[way][1]:g} s, so it can't save every {every:g} s"
    else:
        lost = share_lost(every, *ways[way], between)
        why = f"{way!r} every {every:.6g} s loses {lost:.3%}, and {name!r} every {interval:.6g} s "
        why += f"{share_lost(interval, *ways[name], between):.3%}"
    raise NotYet(
        f"{function.__name__}({dict(ways)}, between={between:g}) returns {way!r}, {every:.6g}: {why}. "
        f"{sum(right)} of {len(cases)} plans are right{slip and f': {slip}'}"
    )


def _as_good(plan: tuple[str, float], ways: Ways, between: float) -> bool:
    """Return whether a plan is feasible and loses as little as the best one, up to a millionth of that."""
    (name, every), (right, interval) = plan, best(ways, between)
    if every <= 0 or every < ways[name][1] * (1 - 1e-9):
        return False
    least = share_lost(interval, *ways[right], between)
    return share_lost(every, *ways[name], between) <= least * (1 + 1e-6)


def _same_plan(one: tuple[str, float], other: tuple[str, float]) -> bool:
    return one[0] == other[0] and math.isclose(one[1], other[1], rel_tol=1e-6)


def random_ways(seed: int, of_each: int = 8) -> list[tuple[Ways, float]]:
    """Return cases in which each way is right `of_each` times, and each mistake in `PLAN_SLIPS` wrong at least twice.

    In some the best interval is exactly as long as the writing.
    """
    draw, cases = Random(seed), []
    for way in (SYNC, ASYNC):
        cases += _drawn(draw, of_each, lambda *case, way=way: best(*case)[0] == way)
    for slips in PLAN_SLIPS.values():

        def wrong(*case: Any, slips: Mapping[str, Any] = slips) -> bool:
            return not _as_good(best(*case, **slips), *case)

        cases += _drawn(draw, 2 - sum(wrong(*case) for case in cases), wrong)
    draw.shuffle(cases)
    return cases


def _drawn(draw: Random, count: int, wanted: Callable[..., bool]) -> list[tuple[Ways, float]]:
    found: list[tuple[Ways, float]] = []
    while len(found) < count:
        stop, copy, writing = (
            draw.randrange(10, 300),
            draw.choice((0.2, 1, 3, 8)),
            draw.choice((20, 60, 200, 600, 1500)),
        )
        ways, between = {SYNC: (stop, 0), ASYNC: (copy, writing)}, float(draw.randrange(1_500, 60_000))
        ways = dict(draw.sample([*ways.items()], 2))
        lost = sorted(share_lost(best({way: ways[way]}, between)[1], *ways[way], between) for way in ways)
        if lost[1] > 1.01 * lost[0] and wanted(ways, between):
            found.append((ways, between))
    return found


# Part c: a job that survives

WEIGHTS = 6_007  # of the job's model
TOKENS = 60  # a batch takes documents until it has so many
GRID = 2.0**20  # sums of multiples of 1 / GRID are exact
LR, BETA_1, BETA_2, EPSILON = 0.01, 0.9, 0.999, 1e-8  # Adam's
STATE = 3 * 8 * WEIGHTS  # bytes of weights and moments, in fp64
FIELDS = "weights", "mean", "square"
GO_ON = 0.2  # seconds for which the other ranks go on after a kill: who waits for the dead in a loop goes on forever
HELD = 2.5  # seconds for which a rank is held up in a change of the disk, and
TO_THE_END = 2 * HELD  # those for which the others go on when the rank is killed there
PLACES = 3  # how many changes of a rank are tried so, one after the other


class Data:
    """A stream of documents. `position`: how many the job has read, the number of the next one."""

    def __init__(self, documents: np.ndarray, first: int, last: int):
        self.position = 0
        self._documents, self._first, self._last = documents, first, last

    def _batch(self) -> list[np.ndarray]:
        """Return the next documents, [length] each. How many they are depends on their lengths."""
        found: list[np.ndarray] = []
        while sum(map(len, found)) < TOKENS:
            number = operator.index(self.position)
            if not self._first <= number < self._last:
                raise NotYet(
                    f"the job reads document {number}, but from its newest complete checkpoint on it needs documents "
                    f"{self._first} to {self._last - 1} alone: does `resume` set job.data.position?"
                )
            found.append(self._documents[number][self._documents[number] >= 0])
            self.position = number + 1
        return found


class Job:
    """A training job on one rank. What its next step reads are the attributes without an underscore.

    `weights`, `mean`, `square`: this rank's shard of the weights and of Adam's moments, fp64 [shard]. A shard has
    `num_weights` over the number of ranks, rounded up; what is missing at the end is padded with zeros. `steps`: how
    many are done. `generator`: of dropout, the same on all ranks. `data`: the stream, the same on all ranks.
    """

    def __init__(self, rank: int, world_size: int, documents: np.ndarray, first: int, last: int, seed: int):
        self._rank, self._world_size = rank, world_size
        self.num_weights = WEIGHTS
        size = memory.shard_size(WEIGHTS, world_size)
        start = torch.randn(WEIGHTS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        padded = torch.nn.functional.pad(start, (0, size * world_size - WEIGHTS))
        self.weights = padded[rank * size : (rank + 1) * size].clone()
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.steps = 0
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.data = Data(documents, first, last)

    def step(self) -> float:
        """Train one step and return its loss, the same on all ranks.

        The model predicts a document's label as the sum of its tokens' weights. Each rank has some of the documents.
        """
        documents = self.data._batch()
        mine = documents[self._rank :: self._world_size]
        kept = torch.rand(WEIGHTS, generator=self.generator) < 0.9
        weights = (self._gathered() * GRID).round() / GRID * kept
        total = torch.zeros(WEIGHTS + 1, dtype=torch.float64)  # the gradient, then the loss
        for document in mine:
            tokens = torch.tensor(document, dtype=torch.int64)
            error = weights[tokens].sum() - int(document.sum()) % 7
            total.index_add_(0, tokens, error.expand(len(tokens)))
            total[-1] += (error**2 * 2**10).round() / 2**10
        if self._world_size > 1:
            dist.all_reduce(total)
        total /= len(documents)
        self._update(total[:-1] * kept)
        return total[-1].item()

    def _gathered(self) -> torch.Tensor:
        """Return all weights."""
        if self._world_size == 1:
            return self.weights[:WEIGHTS]
        shards = [torch.empty_like(self.weights) for _ in range(self._world_size)]
        dist.all_gather(shards, self.weights)
        return torch.cat(shards)[:WEIGHTS]

    def _update(self, gradient: torch.Tensor) -> None:
        """Update this rank's shard by Adam. Each weight is rounded by itself, so shards of any size agree."""
        size = len(self.weights)
        padded = torch.nn.functional.pad(gradient, (0, size * self._world_size - WEIGHTS))
        own = padded[self._rank * size : (self._rank + 1) * size]
        self.steps += 1
        self.mean = BETA_1 * self.mean + (1 - BETA_1) * own
        self.square = BETA_2 * self.square + (1 - BETA_2) * own * own
        mean, square = self.mean / (1 - BETA_1**self.steps), self.square / (1 - BETA_2**self.steps)
        self.weights = self.weights - LR * mean / (square.sqrt() + EPSILON)


class Disk:
    """A disk that all ranks share and that outlives them. A write that is killed leaves a torn file.

    It asks the `Witness` for everything.
    """

    def write(self, name: str, value: Any) -> None:
        """Write tensors, numbers and texts, in dicts, lists or tuples, to a file, over what it held before."""
        ranks.ask(("write", _name(name), pickle.dumps(_plain(value, name))))

    def read(self, name: str) -> Any:
        """Return what a file holds. Raises FileNotFoundError if there is none, and EOFError if it is torn."""
        data = ranks.ask(("read", _name(name)))
        if data is None:
            raise FileNotFoundError(f"there is no file {name!r} on the disk")
        if len(data) < 8 or len(data) - 8 != int.from_bytes(data[:8], "big"):
            raise EOFError(f"the file {name!r} is torn: its writer was killed in the middle")
        return pickle.loads(data[8:])

    def rename(self, old: str, new: str) -> None:
        """Rename a file in one go, over any file of the new name. Raises FileNotFoundError if there is none."""
        if not ranks.ask(("rename", _name(old), _name(new))):
            raise FileNotFoundError(f"there is no file {old!r} on the disk to rename")

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        ranks.ask(("delete", _name(name)))

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        return ranks.ask(("names",))  # type: ignore[no-any-return]


def _name(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[\w-][\w.-]{0,99}", name):
        raise NotYet(
            f"{brief(name)} is no name of a file: use up to 100 letters, digits, underscores, dashes and dots, "
            "and no dot first"
        )
    return name


def _plain(value: Any, name: str) -> Any:
    """Return a value that a file can hold, without the rest of the storage of its tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {_plain(key, name): _plain(each, name) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(_plain(each, name) for each in value)
    if isinstance(value, Real | str | bytes | np.ndarray | np.generic | None):
        return value
    raise NotYet(f"disk.write({name!r}, ...) takes tensors, numbers and texts; a {type(value).__name__} is none")


class Life(NamedTuple):
    """One life of the job, on `world_size` ranks: it resumes, trains, and saves every `every` steps.

    It ends before step `steps`, or after it has saved `saves` times. `first`, `last`: the documents that there are.
    """

    world_size: int
    every: int
    steps: int = 1000
    saves: int = 1000
    first: int = 0
    last: int = 0


class Kill(NamedTuple):
    """When a rank is killed: before step `at_step`, or at a moment of its life. No rank knows of it.

    `moment`: which of its moments, or of those of a `kind`: that a write is skipped, which would write what is there,
    shifts no moments of other kinds.
    """

    rank: int
    at_step: int = -1
    moment: int = -1
    kind: str = ""


EVERYONE = Kill(-1)  # all ranks at once: see `Story._take_back`
BOTH_WHOLE = Kill(-2)  # all ranks at once, when the old checkpoint and the new one are whole
TORN = Kill(-3)  # all ranks at once, when the new checkpoint lacks a part of rank 0's shard
NEARLY = Kill(-4)  # all ranks at once, when the new checkpoint lacks a part of any shard, and no more
Files = dict[str, bytes]  # by name


DIES, HALFWAY, LATE = "before", "in the middle of", "late"


class Hold(NamedTuple):
    """What happens to a rank in a life at its change of the disk number `place`, from 1 on: a write, rename or delete.

    `how`: it `DIES` before it, or `HALFWAY` in a write; or nobody dies, but the change is `LATE`, by `HELD` seconds.
    """

    rank: int
    place: int
    how: str


class Operation(NamedTuple):
    """What a rank has changed on the disk. `before`, `after`: {name: what the file held, or None if there was none}.

    `words`: such as "disk.delete('old')". `torn`: {name: the half that is there in the middle of a write}.
    """

    rank: int
    words: str
    before: Mapping[str, bytes | None]
    after: Mapping[str, bytes | None]
    torn: Files


class Moment(NamedTuple):
    """When a rank can be killed. `kind`: such as "before disk.delete". `num_bytes`: what is written."""

    kind: str
    num_bytes: int


class State(NamedTuple):
    """What a job has after some steps: Adam's in fp64, a shard or all; `generator`: its state."""

    steps: int
    position: int
    generator: np.ndarray
    weights: np.ndarray
    mean: np.ndarray
    square: np.ndarray


def _life(
    rank: int,
    world_size: int,
    save: Callable,
    resume: Callable,
    life: Life,
    documents: np.ndarray,
    seed: int,
) -> None:
    """Live one life on one rank, and report it to the `Witness`. Runs beside the learner's code."""
    job, disk, saves = Job(rank, world_size, documents, life.first, life.last, seed), Disk(), 0
    with _in_words(rank, resume):
        resume(rank, world_size, job, disk)
    ranks.ask(("resumed", _state_of(job, rank)))
    while job.steps < life.steps and saves < life.saves:
        with _in_words(rank, resume):
            loss = job.step()
        ranks.ask(("trained", loss))
        if job.steps % life.every == 0:
            with _in_words(rank, save):
                save(rank, world_size, job, disk)
            saves += 1
            ranks.ask(("saved",))


@contextlib.contextmanager
def _in_words(rank: int, function: Callable) -> Iterator[None]:
    """Turn errors of the learner's code into a `NotYet` of one line, and refuse the library's own answers."""
    try:
        with without_the_library():
            yield
    except NotImplementedError:
        raise NotYet(f"{function.__name__} is not written yet") from None
    except Exception as error:
        line = checks._learners_line(error).replace("\n  ", "; ")
        what = error if isinstance(error, NotYet) else f"{function.__name__} ends in {type(error).__name__}: {error}"
        raise NotYet(" ".join(f"rank {rank}: {what}{line}".split())) from None


def _state_of(job: Job, rank: int) -> State:
    """Return a copy of a job's state; raise `NotYet` if the next step couldn't read it."""
    size, found = memory.shard_size(WEIGHTS, job._world_size), []
    for field in FIELDS:
        tensor = getattr(job, field)
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.float64 or tensor.shape != (size,):
            kind = f"{tensor.dtype} {list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise NotYet(f"rank {rank}: after resume job.{field} is {kind}; a shard is torch.float64 [{size}]")
        setattr(job, field, tensor.detach().clone())
        found.append(getattr(job, field).numpy().copy())
    try:
        job.steps, job.data.position = counts = operator.index(job.steps), operator.index(job.data.position)
    except TypeError:
        raise NotYet(f"rank {rank}: after resume job.steps and job.data.position must be whole numbers") from None
    return State(*counts, job.generator.get_state().numpy().copy(), *found)


FULL = 100 * STATE  # bytes that the disk holds
LARGE = 10_000  # bytes of a write that may be a shard's
MOST_OPERATIONS = 500  # on the disk, in one life
SAMPLE = 12  # numbers of each field by which a checkpoint is looked for on the disk


class Witness:
    """What watches one life from outside the ranks, where no code of the learner's runs.

    It holds the disk and notes, by rank: `resumed`, the state after `resume`; `losses`, of each step; `moments`;
    `written`, bytes; `saves`, how often it left `save`. `operations`: of all ranks, in order. `killed`: when the rank
    was, in words. Any question may be the learner's own, so it is checked first.

    `hold`: where a rank is held up. `held_in`: the change, in words; `until_then`: what the disk held just before it.
    """

    QUESTIONS: Mapping[str, tuple[Any, ...]] = {
        "resumed": (State,),
        "trained": (float,),
        "saved": (),
        "write": (str, bytes),
        "read": (str,),
        "rename": (str, str),
        "delete": (str,),
        "names": (),
    }

    def __init__(self, files: Files, world_size: int, kill: Kill | None, hold: Hold | None = None):
        self.files, self.kill, self.killed = files, kill, ""
        self.hold, self.changes, self.held_in = hold, 0, ""
        self.until_then: Files = {}
        self.operations: list[Operation] = []
        self.resumed: dict[int, State] = {}
        self.losses: list[list[float]] = [[] for _ in range(world_size)]
        self.moments: list[list[Moment]] = [[] for _ in range(world_size)]
        self.written, self.saves = [0] * world_size, [0] * world_size

    def serve(self, rank: int, question: Any) -> Any:
        """Answer a rank's question, (what, *arguments); raise `NotYet` if no rank asks it."""
        what, *arguments = question if isinstance(question, tuple) and question else ("",)
        kinds = self.QUESTIONS.get(what) if isinstance(what, str) else None
        if kinds is None or len(arguments) != len(kinds) or not all(map(is_a, arguments, kinds)):
            raise NotYet(f"rank {rank} asks the disk for something that a disk doesn't do")
        return getattr(self, f"_{what}")(rank, *arguments)

    def _resumed(self, rank: int, state: State) -> None:
        self.resumed.setdefault(rank, state)

    def _trained(self, rank: int, loss: float) -> ranks.Killed | None:
        if rank not in self.resumed:
            raise NotYet(f"rank {rank} reports a loss before it has resumed")
        self.losses[rank].append(loss)
        steps = self.resumed[rank].steps + len(self.losses[rank])
        if self.kill is None or (rank, steps) != (self.kill.rank, self.kill.at_step):
            return None
        self.killed = f"before step {steps}"
        return self._killed()

    def _killed(self) -> ranks.Killed:
        assert self.kill  # a rank dies
        return ranks.Killed(GO_ON)

    def _saved(self, rank: int) -> None:
        self.saves[rank] += 1

    def _write(self, rank: int, name: str, content: bytes) -> ranks.Killed | ranks.Later | None:
        data = len(content).to_bytes(8, "big") + content
        write = partial(self._write_now, rank, name, data)
        if self.files.get(name) == data:
            return write()
        return self._unless_held_up(rank, f"disk.write({name!r}, ...)", write, _half(name, data))

    def _unless_held_up(self, rank: int, words: str, change: Callable[[], Any], half: Files | None = None) -> Any:
        """Make a change of the disk, and return what it returns, unless it is the one in which the rank is held up."""
        if self.hold is None or rank != self.hold.rank:
            return change()
        self.changes += 1
        if self.changes != self.hold.place:
            return change()
        self.held_in, how = words, self.hold.how
        if how == LATE:
            return ranks.Later(HELD, partial(self._changed_late, change))
        if how == HALFWAY and half:
            self._change(rank, words, half, half)
        self.killed = f"{how if half else DIES} {words}"
        return ranks.Killed(TO_THE_END)

    def _changed_late(self, change: Callable[[], Any]) -> Any:
        self.until_then = self.files.copy()
        return change()

    def _write_now(self, rank: int, name: str, data: bytes) -> ranks.Killed | None:
        if sum(map(len, self.files.values())) + len(data) > FULL:
            raise NotYet(f"the disk is full: a checkpoint is {STATE:,} bytes, and the disk holds {FULL:,}")
        half, torn = _half(name, data), False
        if self.files.get(name) != data:
            if self._dies(rank, f"before disk.write({name!r}, ...)", len(data)):
                return self._killed()
            torn = self._dies(rank, f"in the middle of disk.write({name!r}, ...)", len(data))
        self._change(rank, f"disk.write({name!r}, ...)", half if torn else {name: data}, half)
        self.written[rank] += len(data)
        return self._killed() if torn else None

    def _read(self, rank: int, name: str) -> bytes | None:
        return self.files.get(name)

    def _rename(self, rank: int, old: str, new: str) -> ranks.Killed | ranks.Later | bool:
        if old not in self.files:
            return False
        rename = partial(self._rename_now, rank, old, new)
        return self._unless_held_up(rank, f"disk.rename({old!r}, {new!r})", rename)

    def _rename_now(self, rank: int, old: str, new: str) -> ranks.Killed | bool:
        if old not in self.files:  # another rank has deleted it meanwhile
            return False
        if self._dies(rank, f"before disk.rename({old!r}, {new!r})"):
            return self._killed()
        self._change(rank, f"disk.rename({old!r}, {new!r})", {old: None, new: self.files[old]})
        return True

    def _delete(self, rank: int, name: str) -> ranks.Killed | ranks.Later | None:
        if name not in self.files:
            return None
        delete = partial(self._delete_now, rank, name)
        return self._unless_held_up(rank, f"disk.delete({name!r})", delete)

    def _delete_now(self, rank: int, name: str) -> ranks.Killed | None:
        if name not in self.files:  # another rank has deleted it meanwhile
            return None
        if self._dies(rank, f"before disk.delete({name!r})"):
            return self._killed()
        self._change(rank, f"disk.delete({name!r})", {name: None})
        return None

    def _names(self, rank: int) -> list[str]:
        return sorted(self.files)

    def _change(self, rank: int, words: str, after: Mapping[str, bytes | None], torn: Files | None = None) -> None:
        """Change files, and note the operation."""
        if len(self.operations) == MOST_OPERATIONS:
            raise NotYet(f"a life of the job changes the disk more than {MOST_OPERATIONS} times")
        self.operations.append(
            Operation(rank, words, {name: self.files.get(name) for name in after}, after, torn or {})
        )
        _put(self.files, after)

    def _dies(self, rank: int, words: str, num_bytes: int = 0) -> bool:
        """Count a moment, and return whether the rank is killed at it."""
        here = Moment(words.partition("(")[0] + ", large" * (num_bytes >= LARGE), num_bytes)
        self.moments[rank].append(here)
        kill = self.kill
        if kill is None or rank != kill.rank:
            return False
        number = sum(kill.kind in ("", each.kind) for each in self.moments[rank]) - 1
        if number != kill.moment or kill.kind not in ("", here.kind):
            return False
        self.killed = words
        return True


def _half(name: str, data: bytes) -> Files:
    """Return what is there in the middle of a write."""
    return {name: data[: len(data) // 2]}


def _put(files: Files, contents: Mapping[str, bytes | None]) -> None:
    """Give files these contents; delete those that have None."""
    for name, content in contents.items():
        if content is None:
            files.pop(name, None)
        else:
            files[name] = content


class Undisturbed(NamedTuple):
    """The job on one rank: its state before each step and at the end, and the loss of each step."""

    states: list[State]
    losses: list[float]
    documents: np.ndarray


@lru_cache(maxsize=4)
def undisturbed(steps: int, seed: int) -> Undisturbed:
    """Return what the job does in `steps` steps if nothing fails. `seed`: of its documents, which no rank knows."""
    draw = np.random.default_rng(seed)
    documents = np.full((TOKENS * steps // 8, 30), -1, dtype=np.int16)  # small: each rank of each life gets them
    for row in documents:
        length = draw.integers(8, len(row) + 1)
        row[:length] = draw.integers(WEIGHTS, size=length)
    start = _state_of(Job(0, 1, documents, 0, len(documents), _unlike(seed)), 0)
    states, losses = _trained(start, documents, steps)
    return Undisturbed(states, losses, documents)


def _trained(start: State, documents: np.ndarray, steps: int) -> tuple[list[State], list[float]]:
    """Return the states of the job on one rank, from `start` on, and the losses of its next `steps` steps."""
    job = Job(0, 1, documents, 0, len(documents), seed=0)
    for field in FIELDS:
        setattr(job, field, torch.tensor(getattr(start, field)))
    job.steps, job.data.position = start.steps, start.position
    job.generator.set_state(torch.tensor(start.generator))
    states, losses = [start], []
    for _ in range(steps):
        losses.append(job.step())
        states.append(_state_of(job, 0))
    return states, losses


NUMBERS = 4  # of each field of a checkpoint that are changed on the disk


class Story:
    """Lives of one job on one disk, each compared with the undisturbed run, which has `steps` steps.

    `states`, `losses`: what a job that resumes rightly has before each step, and the loss of each step. `resumed`: the
    step from which the last life went on.
    """

    def __init__(self, save: Callable, resume: Callable, steps: int, seed: int):
        self.save, self.resume, self.seed, self.steps = save, resume, _unlike(seed), steps
        states, losses, self.documents = undisturbed(steps, seed)
        self.states, self.losses = [*states], [*losses]
        self.files: dict[str, bytes] = {}
        self.before = ""  # what happened before the next life, in words
        self.allowed = {0}  # the steps from which the next life may resume
        self.unchanged: dict[int, State] = {}  # their states before the check changed numbers
        self.missing: dict[int, str] = {}  # those of which the disk lacks a number, and which
        self.resumed = 0
        self.both_whole = False  # whether the disk was taken back to a moment at which both checkpoints are whole

    def live(self, life: Life, kill: Kill | None = None, hold: Hold | None = None, looks: bool = False) -> Witness:
        """Live one life, compare it with the undisturbed run, and return its witness.

        After one in which a rank is held up, one more begins there, see `_live_from_then`. In such a one, and with
        `looks`, no rank may write another's shard. Raises `NotYet` at the first difference, or if a life ends in any
        way but a return on all ranks or the kill.
        """
        self.both_whole = False
        self._train_on(max(self.allowed), life)
        life = life._replace(last=life.last or len(self.documents))
        count = f"{life.world_size} rank{'s' * (life.world_size > 1)}"
        where = f"with {count}, {self.before}"
        documents = self.documents.copy()
        documents[: life.first], documents[life.last :] = -1, -1  # those are gone, or not there yet
        seen = Witness(self.files, life.world_size, kill, hold)
        victim = kill.rank if kill else hold.rank if hold else None
        most = patience() + HELD * bool(hold and hold.how == LATE)
        arguments = self.save, self.resume, life, documents, self.seed
        try:
            everyone = ranks.run(_life, life.world_size, *arguments, serve=seen.serve, timeout=most, sealed=True)
            reported(everyone, life.world_size, None)
        except ranks.RanksError as error:
            if not (seen.killed and re.match(rf"rank {victim} died with exit code -9\b", str(error))):
                raise self._failed(error, seen, life, where) from None
        if kill and kill.at_step >= 0 and not seen.killed:
            raise NotYet(f"rank {kill.rank} was to be killed before step {kill.at_step}, but never gets there")
        self._compare(seen, life, where, whole=not seen.killed)
        self.before = f"in the run after one on {life.world_size}, "
        if seen.killed:
            self.before = f"after rank {victim} of {life.world_size} was killed {seen.killed}, "
        if kill in (EVERYONE, BOTH_WHOLE, TORN, NEARLY) and seen.operations and (when := self._take_back(seen, life)):
            seen.killed = when
            self.before = f"after all {life.world_size} ranks were killed {seen.killed}, "
        if (hold or looks) and not seen.killed:
            self._check_writers(seen, life)
        if hold and seen.held_in and not seen.killed:
            self._live_from_then(seen, life, hold.rank)
        self._change_numbers()
        return seen

    def _check_writers(self, seen: Witness, life: Life) -> None:
        """Check that no rank has written a drawn number of another's shard, which its own hasn't.

        A save that never waits for other ranks could be safe if one of them wrote all.
        """
        (end,) = self.allowed
        shards = [self._of_shard(end, rank, life.world_size) for rank in range(life.world_size)]
        draw = checks.generator()
        for rank, other in permutations(range(life.world_size), 2):
            numbers = sorted(shards[other] - self._all_of_shard(end, rank, life.world_size))
            number = numbers[int(draw.integers(len(numbers)))]
            writes = [each for each in seen.operations if each.rank == rank and each.words.startswith("disk.write(")]
            if any(content and _holds(content, number) for each in writes for content in each.after.values()):
                raise NotYet(
                    f"with {life.world_size} ranks, rank {rank} writes numbers of rank {other}'s shard in "
                    f"{self.save.__name__}: each rank writes its own shard, and no other"
                )

    def _of_shard(self, step: int, rank: int, world_size: int) -> set[bytes]:
        """Return some numbers of a rank's shard of a step's state, as `_sample`."""
        state = self.states[step]
        shard: dict[str, Any] = {field: _shard(getattr(state, field), rank, world_size) for field in FIELDS}
        return _sample(state._replace(**shard))

    def _all_of_shard(self, step: int, rank: int, world_size: int) -> set[bytes]:
        """Return all numbers of a rank's shard of a step's state, as fp64. Moments may be equal in two shards."""
        fields = [_shard(getattr(self.states[step], field), rank, world_size) for field in FIELDS]
        return {number.tobytes() for field in fields for number in field}

    def _live_from_then(self, seen: Witness, life: Life, held: int) -> None:
        """Live one more life, from the disk as it was just before a late change, as if all had been killed.

        Whatever the others have done meanwhile, a checkpoint must be there.
        """
        (end,) = self.allowed
        then = copy(self)
        then.files, then.states, then.losses = seen.until_then, [*self.states], [*self.losses]
        then.allowed = {end - life.every, end}
        then.before = f"after all {life.world_size} ranks were killed, rank {held} in {seen.held_in}, "
        then._change_numbers()
        then.live(life)

    def _take_back(self, seen: Witness, life: Life) -> str:
        """Take the disk back to a moment of a life's save, as if all ranks had been killed at it; say at which.

        It is one at which no checkpoint is whole on the disk, if there is one. Else all kinds of moments are as likely.
        If the kill is `BOTH_WHOLE`, it is just before the save removes its first file of those that it found, if both
        checkpoints are whole then. If the save has moments at which none is whole, the disk stays as it is: "".
        If it is `TORN` or `NEARLY`, it is in the middle of a write over what the save found of the old checkpoint, if
        there is one. Else it is before anything of what the save found is removed, when as much of the new one is there
        as can be without all of rank 0's shard, or without all of it. Where ranks write at the same time, chance says
        how much others have written before rank 0, so only `NEARLY` leaves as much after each run.
        """
        (end,) = self.allowed
        self.allowed = {end - life.every, end}
        looked_for = [_sample(self.states[step]) for step in sorted(self.allowed)]
        looked_for[-1] |= (of_rank_0 := self._of_shard(end, 0, life.world_size))
        moments: list[tuple[str, Files]] = []
        over: list[tuple[str, Files]] = []  # in the middle of a write over what the save found of the old checkpoint
        files, removes = self.files.copy(), -1
        for operation in reversed(seen.operations):
            _put(files, operation.before)
        found_there = set(files)
        for operation in seen.operations:
            if removes < 0 and any(operation.after[name] is None for name in found_there & operation.after.keys()):
                removes = len(moments)
            for when, there in (("before", {}), ("in the middle of", operation.torn)):
                if there or when == "before":
                    moments.append((f"{when} {operation.words}", {**files, **there}))
                if any(_holds(files.get(name, b""), number) for name in there for number in looked_for[0]):
                    over.append(moments[-1])
            _put(files, operation.after)
        found: dict[bytes, set[bytes]] = {}
        for content in {each for _, disk in moments for each in disk.values()}:
            found[content] = {number for numbers in looked_for for number in numbers if _holds(content, number)}
        held = [set().union(*(found[each] for each in disk.values())) for _, disk in moments]
        whole = [[numbers <= each for numbers in looked_for] for each in held]
        lost = [moment for moment, each in zip(moments, whole, strict=True) if not any(each)]
        early = len(moments) if removes < 0 else removes + 1  # moments before anything that was found is removed
        lacks = of_rank_0 if seen.kill is TORN else looked_for[-1]
        new = [len(numbers & looked_for[-1]) * (not lacks <= numbers) for numbers in held[:early]]
        most = [moment for moment, each in zip(moments[:early], new, strict=True) if each == max(new)]
        self.both_whole = seen.kill is BOTH_WHOLE and not lost and removes >= 0 and all(whole[removes])
        if seen.kill is BOTH_WHOLE and lost:
            self.allowed = {end}
            return ""
        draw = Random(int(checks.generator().integers(2**32)))
        kinds = {words.partition("(")[0] for words, _ in moments}
        kind = draw.choice(sorted(kinds))
        words, disk = draw.choice(lost or [each for each in moments if each[0].startswith(f"{kind}(")])
        if self.both_whole:
            words, disk = moments[removes]
        if seen.kill in (TORN, NEARLY):
            words, disk = draw.choice(over or most)
        self.files.clear()
        self.files.update(disk)
        return words

    def _failed(self, error: ranks.RanksError, seen: Witness, life: Life, where: str) -> NotYet:
        """Return what to say of a life that failed: what its ranks had brought back wrong, or else the error."""
        said = re.search(rf"\b(?:{NotYet.__name__}|\w+Used): (.*)", str(error))
        words = said[1] if said else how_it_failed(error)
        words = re.sub(r"^rank \d+: ", "", words)  # which rank is the first to say so is by chance
        if words.endswith("is not written yet"):
            return NotYet(words)
        try:
            self._compare(seen, life, where, whole=False)
        except NotYet as difference:
            return difference
        left = [rank for rank, saves in enumerate(seen.saves) if saves > min(seen.saves)]
        if left and " did not finish in time" in words:
            behind = seen.saves.index(min(seen.saves))
            name = self.save.__name__
            words = (
                f"rank {left[0]} has left {name}, and rank {behind} hasn't: does every rank call the same collectives "
                f"in {name}? {words}"
            )
        return NotYet(f"{where}{words}")

    def judged(self) -> None:
        """Check that the disk holds the newest checkpoint after the last life."""
        if missing := self.missing.get(max(self.allowed)):
            raise NotYet(f"after the last save there is {missing}: write all shards by disk.write, in fp64 as they are")

    def _compare(self, seen: Witness, life: Life, where: str, whole: bool) -> None:
        """Compare what the ranks of a life report with the undisturbed run, and find where the next one may resume.

        `whole`: no error and no kill has ended it, perhaps before every rank had resumed or reached its end.
        """
        if whole and len(seen.resumed) < life.world_size:
            raise NotYet(f"{where}not every rank reports that it comes back from {self.resume.__name__}")
        if not seen.resumed:
            return
        begun = self._check_steps(where, {rank: state.steps for rank, state in sorted(seen.resumed.items())})
        for rank, state in sorted(seen.resumed.items()):
            self._check_state(where, rank, life.world_size, state)
        if missing := self.missing.get(begun):
            raise NotYet(
                f"{where}{self.resume.__name__} goes on from step {begun}, but there was {missing}: write all weights "
                "and moments by disk.write, in fp64 as they are"
            )
        self._check_losses(where, seen, life, begun, whole)
        self.resumed, self.allowed = begun, self._next(seen, life, begun)

    def _next(self, seen: Witness, life: Life, begun: int) -> set[int]:
        """Return the steps from which the next life may resume."""
        if seen.killed and seen.kill and seen.kill.at_step >= 0:
            return {seen.kill.at_step // life.every * life.every}
        end = begun // life.every * life.every + life.saves * life.every
        end = min(end, life.steps // life.every * life.every)
        return {end - life.every, end} if seen.killed else {end}

    def _change_numbers(self) -> None:
        """Change numbers of the oldest checkpoint that the next life may resume, and carry them through later steps.

        Only the disk tells what they are now: a job that keeps its state elsewhere, or trains again from the start, has
        the old ones. All files of these steps still come from one run, those that a torn save has left included.
        """
        first, self.missing = min(self.allowed), {}
        self.unchanged = {step: self.states[step] for step in self.allowed}
        if not first:
            return  # a new job is on no disk
        changed = self._drawn_changes(self.states[first])
        states, self.losses[first:] = _trained(changed, self.documents, max(self.allowed) - first)
        for step in sorted(self.allowed):
            self._rewrite(step, states[step - first])
        self.states[first:] = states

    def _train_on(self, begun: int, life: Life) -> None:
        """Follow the undisturbed run as far as a life may get that begins at step `begun` at most."""
        end = min(self.steps, life.steps, begun // life.every * life.every + life.saves * life.every)
        states, losses = _trained(self.states[-1], self.documents, max(end + 1 - len(self.states), 0))
        self.states += states[1:]
        self.losses += losses

    @staticmethod
    def _drawn_changes(state: State) -> State:
        """Return a state with `NUMBERS` other numbers in each field, drawn at random."""
        draw, changed = checks.generator(), {}
        for field in FIELDS:
            whole = getattr(state, field).copy()
            numbers = np.unique(whole)
            for old in draw.permutation(numbers[numbers != 0])[:NUMBERS]:
                whole[whole == old] = old * draw.uniform(0.5, 2)
            changed[field] = whole
        return state._replace(**changed)

    def _rewrite(self, step: int, state: State) -> None:
        """Turn the numbers of a step's state into those of another on the disk, and note one that isn't there."""
        for field in FIELDS:
            before, after = getattr(self.states[step], field), getattr(state, field)
            differ = before != after
            for old, new in {*zip(before[differ].tolist(), after[differ].tolist(), strict=True)}:
                if not self._replace(old, new) and not self._replace(new, new):  # an earlier step may have had it, too
                    self.missing.setdefault(step, f"no {old!r} on the disk, a number of job.{field} after {step} steps")

    def _replace(self, old: float, new: float) -> bool:
        """Change a number wherever it is on the disk; return whether it is there."""
        found = False
        for form in "<d", ">d":  # of tensors and arrays, and of Python's numbers in a pickle
            one, other = struct.pack(form, old), struct.pack(form, new)
            for name, data in self.files.items():
                if one in data:
                    self.files[name], found = data.replace(one, other), True
        return found

    def _check_steps(self, where: str, found: Mapping[int, int]) -> int:
        """Check the steps from which the ranks go on, by rank; return the one."""
        name, newest, allowed = self.resume.__name__, max(self.allowed), self.allowed
        if len(set(found.values())) > 1:
            told = " and ".join(f"rank {rank} from step {step}" for rank, step in found.items())
            raise NotYet(f"{where}{name} goes on from different checkpoints: {told}")
        (step,) = set(found.values())
        if step in allowed:
            return step
        left = f"{where}{name} leaves job.steps at {step}"
        if step > newest:
            raise NotYet(f"{left}; the newest complete checkpoint is of step {newest}")
        hint = f"does {self.save.__name__} write it, and {name} set job.steps?"
        if len(allowed) > 1:
            hint = "was it overwritten or deleted before the next one was complete?"
        raise NotYet(f"{left}; a checkpoint of step {min(allowed)} was complete: {hint}")

    def _check_state(self, where: str, rank: int, world_size: int, got: State) -> None:
        """Check what `resume` has brought back on a rank."""
        want, new = self.states[got.steps], self.states[0]
        at = f"{where}{self.resume.__name__} goes on from step {got.steps}, but on rank {rank} "
        for field in FIELDS:
            mine, right = getattr(got, field), _shard(getattr(want, field), rank, world_size)
            if mine.shape != right.shape:
                raise NotYet(f"{at}job.{field} is {list(mine.shape)}; a shard is {list(right.shape)}")
            if not np.array_equal(mine, right):
                place = int(np.flatnonzero(mine != right)[0])
                hint = self._other(field, mine, right, rank, world_size, got.steps)
                raise NotYet(
                    f"{at}job.{field}[{place}] is {float(mine[place])!r}; it was {float(right[place])!r}{hint}"
                )
        if got.position != want.position:
            raise NotYet(
                f"{at}job.data.position is {got.position}; it was {want.position}. How many documents a step reads "
                "depends on their lengths: does `save` write the position, and `resume` set it?"
            )
        if not np.array_equal(got.generator, want.generator):
            anew = " it begins anew" if np.array_equal(got.generator, new.generator) else " it is in another state"
            raise NotYet(
                f"{at}job.generator is not as it was:{anew}, so dropout takes other weights. Does `save` write its "
                "state, and `resume` set it?"
            )

    def _other(self, field: str, mine: np.ndarray, right: np.ndarray, rank: int, world_size: int, steps: int) -> str:
        """Return what a shard holds instead, in words."""
        before = _shard(getattr(self.unchanged.get(steps, self.states[steps]), field), rank, world_size)
        if np.array_equal(mine, before):
            return ": the check has changed it on the disk, and this is the number of before"
        if not mine.any():
            return ": is it saved?"
        if ((mine == right.astype(np.float32)) | (mine == before.astype(np.float32))).all():
            return ": it was rounded to fp32"
        first = _shard(getattr(self.states[0], field), rank, world_size)
        if np.array_equal(mine, first):
            return ": it is as in a new job"
        for other, (step, state), owner in product(FIELDS, enumerate(self.states), range(world_size)):
            if np.array_equal(mine, _shard(getattr(state, other), owner, world_size)):
                return f": this is rank {owner}'s shard of job.{other} after {step} steps"
        return ": are these shards of one checkpoint, of as many ranks as saved it, without their padding?"

    def _check_losses(self, where: str, seen: Witness, life: Life, begun: int, whole: bool) -> None:
        steps = min(life.steps, begun // life.every * life.every + life.saves * life.every) - begun
        for rank, losses in enumerate(seen.losses):
            for step, (loss, want) in enumerate(zip(losses, self.losses[begun:], strict=False), start=begun):
                if loss != want:
                    raise NotYet(
                        f"{where}the loss of step {step} on rank {rank} is {loss!r}; in the undisturbed run it is "
                        f"{want!r}"
                    )
            if whole and len(losses) != steps:
                raise NotYet(f"{where}rank {rank} reports the losses of {len(losses)} steps; the run has {steps}")


def _unlike(seed: int) -> int:
    """Return another seed, for the job. Its ranks know that one, and can't find out what the check draws by its own."""
    return int.from_bytes(hashlib.pbkdf2_hmac("sha256", f"{seed}".encode(), b"job", 1_000)[:4], "big") >> 1


def _sample(state: State) -> set[bytes]:
    """Return some numbers of each field of a state, as fp64."""
    draw = checks.generator()
    fields = [np.unique(getattr(state, field)) for field in FIELDS]
    return {number.tobytes() for each in fields for number in draw.permutation(each[each != 0])[:SAMPLE]}


def _holds(content: bytes, number: bytes) -> bool:
    return number in content or number[::-1] in content


def _shard(whole: np.ndarray, rank: int, world_size: int) -> np.ndarray:
    """Return a rank's shard, padded."""
    size = memory.shard_size(len(whole), world_size)
    return np.pad(whole, (0, size * world_size - len(whole)))[rank * size : (rank + 1) * size]


EVERY = 3  # steps between two checkpoints


def check_survives(save: Callable, resume: Callable, world_sizes: Sequence[int], seed: int = 0) -> None:
    """Check that a job whose ranks are killed between two checkpoints ends with the losses of the undisturbed run.

    `world_sizes`: the ranks of each of its lives. Each life but the last is killed: a rank before a step, drawn from
    `seed`. A life gets only the documents from its newest checkpoint on.
    """
    draw = Random(seed)
    story = Story(save, resume, EVERY * (2 * len(world_sizes) + 1), seed)
    positions = [state.position for state in story.states]
    begun = 0
    for world_size in world_sizes[:-1]:
        at = begun + EVERY * draw.choice((1, 2)) + draw.randrange(1, EVERY)
        life = Life(world_size, EVERY, first=positions[begun], last=positions[at + 1])
        story.live(life, Kill(draw.randrange(world_size), at_step=at))
        begun = at // EVERY * EVERY
    story.live(Life(world_sizes[-1], EVERY, steps=begun + EVERY + 2, first=positions[begun]))
    story.judged()


MOST_MOMENTS = 14


def check_any_moment(
    save: Callable, resume: Callable, world_size: int, most: int = MOST_MOMENTS, seed: int = 0
) -> list[str]:
    """Check that ranks may be killed at any moment of `save`, in life after life; return what happened, in lines.

    `most`: how many moments are tried, drawn from all of all ranks if there are more. At a third of them all ranks are
    killed at once. In the saves of steps 6 and 10, that is when the checkpoint before is whole on the disk, too: a code
    that compares steps as text takes the newer one of steps 4 and 6, but not of steps 8 and 10.

    At last one rank after the other, in an order drawn from `seed`, is killed or held up at each of its first changes
    of the disk, as of `Hold`; the rank that makes the last change of a save, only at its first. A code that sleeps
    where ranks must wait for each other, and perhaps looks which are dead or what is there, then points to a checkpoint
    that is not complete, or leaves out one that is.
    """
    story, life = Story(save, resume, 2 * (most + 3 * PLACES * world_size + 6), seed), Life(world_size, 2, saves=1)
    story.live(Life(world_size, 4, saves=1))
    usual = story.live(life, BOTH_WHOLE)
    at_once = max(most // 3, 2)  # of which two are those
    kills = [BOTH_WHOLE, *_drawn_kills(usual.moments, most - at_once, seed), *[EVERYONE] * (at_once - 2)]
    lives = [(Life(world_size, 2, steps=8), None), *((life, kill) for kill in kills), (life, None)]
    last: tuple[Witness, Kill | None] = usual, BOTH_WHOLE
    lines: list[str] = []
    chosen: dict[int, int] = {}
    for each, kill in lives:
        newest, both_whole = max(story.allowed), story.both_whole
        seen = story.live(each, kill)
        if both_whole:
            chosen[newest] = story.resumed
            _check_chosen(resume, last[0].killed, chosen)
        if each is life:
            _check_usual(save, seen, usual)
        if killed := last[0].killed:
            who = f"rank {last[1].rank}" if last[1] and last[1].rank >= 0 else "all ranks"
            lines.append(f"{who} killed {killed}: resumed from step {story.resumed}")
        last = seen, kill
    if 2 * len(lines) < 1 + len(kills):
        raise NotYet(
            f"{save.__name__} works on the disk less and less often: of {1 + len(kills)} moments at which a rank was "
            f"to be killed, only {len(lines)} came again"
        )
    last_changer = usual.operations[-1].rank if usual.operations else -1
    for rank in Random(seed).sample(range(world_size), world_size):
        places = 1 if rank == last_changer else PLACES
        for hold in (Hold(rank, place, how) for place in range(1, places + 1) for how in (DIES, HALFWAY, LATE)):
            if hold.how == HALFWAY and not seen.held_in.startswith("disk.write("):
                continue
            seen = story.live(life, hold=hold)
            _check_usual(save, seen, usual)
            if not seen.held_in:  # it makes no more changes
                break
            what = f"killed {seen.killed}" if seen.killed else f"held up in {seen.held_in}"
            lines.append(f"rank {rank} {what}: resumed from step {story.resumed}")
    story.judged()
    return lines


def _check_chosen(resume: Callable, killed: str, chosen: Mapping[int, int]) -> None:
    """Check that of two whole checkpoints `resume` takes the newer one at step 10 if it did at step 6.

    `chosen`: the step that it took, by that of the newer one. Both were on the disk at the same moment of a save.
    """
    if chosen.get(6) == 6 and chosen.get(10) == 8:
        raise NotYet(
            f"after all ranks were killed {killed}, {resume.__name__} goes on from step 8, but the checkpoint of step "
            "10 was complete: at the same moment of an earlier save it took step 6, not step 4. Are steps compared as "
            "text? '8' comes after '10'"
        )


def _check_usual(save: Callable, seen: Witness, usual: Witness) -> None:
    """Check that `save` does about as much in a life as in the one from whose moments the kills are drawn.

    Deletes don't count: a save may remove what any number of killed ones have left.
    """
    for rank, moments in enumerate(zip(seen.moments, usual.moments, strict=True)):
        now, before = ([each for each in some if "disk.delete" not in each.kind] for some in moments)
        written = seen.written[rank], usual.written[rank]
        if len(now) > 2 * len(before) + 8 or written[0] > 1.5 * written[1] + ROOM:
            raise NotYet(
                f"{save.__name__} works otherwise on the disk from save to save: rank {rank} changed it at "
                f"{len(before)} moments and wrote {written[1]:,} bytes in one, and in another it is {len(now)} moments "
                f"and {written[0]:,} bytes"
            )


def _drawn_kills(moments: Sequence[Sequence[Moment]], most: int, seed: int) -> list[Kill]:
    """Return kills at different moments of a life, at most `most`, drawn from `seed`.

    `moments`: of each rank. Half of the kills are at writes, each as likely as it is long, so that no number of other
    writes hides those of shards.
    """
    draw = Random(seed)
    every = [(rank, number) for rank, each in enumerate(moments) for number in range(len(each))]
    writes = [moment for moment in every if moments[moment[0]][moment[1]].num_bytes]
    # The largest of random() ** (1 / weight) are such a draw. Source: Efraimidis and Spirakis, 2006.
    by_bytes = [draw.random() ** (1 / moments[rank][number].num_bytes) for rank, number in writes]
    drawn = [moment for _, moment in sorted(zip(by_bytes, writes, strict=True), reverse=True)][: most // 2]
    others = [moment for moment in every if moment not in drawn]
    rest = draw.sample(others, min(most - len(drawn), len(others)))
    kills = []
    for rank, number in sorted(drawn + rest):
        kind = moments[rank][number].kind
        moment = sum(each.kind == kind for each in moments[rank][:number])
        kills.append(Kill(rank, moment=moment, kind=kind))
    return kills


def check_other_ranks(save: Callable, resume: Callable, world_sizes: Sequence[int], seed: int = 0) -> None:
    """Check that a checkpoint of some ranks is resumed by another number of them, with leftovers of a torn one beside.

    `world_sizes`: three of them. The first number of ranks is killed when the second checkpoint is nearly whole. The
    second saves that step again, and is killed later.
    """
    first, second, third = world_sizes
    story = Story(save, resume, 4 * EVERY, seed)
    story.live(Life(first, EVERY, saves=1), looks=True)
    story.live(Life(first, EVERY, saves=1), TORN)
    story.live(Life(second, EVERY), Kill(second - 1, at_step=2 * EVERY + 1))
    story.live(Life(third, EVERY, steps=3 * EVERY + 1))
    story.judged()


ROOM = 16_000  # bytes beyond weights and moments, for the generator's 5,056 and names


def check_room(save: Callable, resume: Callable, world_size: int, seed: int = 0) -> None:
    """Check that each rank writes its own shard alone, and that only the newest checkpoint stays on the disk."""
    story = Story(save, resume, 5 * EVERY, seed)
    story.live(Life(world_size, EVERY, saves=1))
    saved = story.live(Life(world_size, EVERY, saves=1))
    story.live(Life(world_size, EVERY, saves=1), NEARLY)
    story.live(Life(world_size - 1, EVERY, saves=1))
    story.judged()
    for rank, written in enumerate(saved.written):
        if written > 1.5 * STATE / world_size + ROOM:
            raise NotYet(
                f"with {world_size} ranks, rank {rank} writes {written:,} bytes in a save; its shard of weights "
                f"and moments is {STATE // world_size:,}: each rank writes its own shard"
            )
    if (total := sum(map(len, story.files.values()))) > 1.5 * STATE + ROOM:
        names = ", ".join(sorted(story.files))
        raise NotYet(
            f"after a save by {world_size - 1} ranks there are {total:,} bytes on the disk, in {names}; a checkpoint "
            f"is {STATE:,}: when the new one is complete, delete all others, and what a torn one has left"
        )
