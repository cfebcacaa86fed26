"""Checks for exercise 18, a clinic: four instruments, and diagnoses that name a fault, its proof and its remedy.

Patients come from `clinic`, which makes each with its truth; a diagnosis sees the patient alone. What a table holds is
what `bandwidth.parse` reads.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from reprlib import repr as brief
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from ..measure import bandwidth, calibrate, nccl_log
from ..price import algbw, busbw
from . import checks, clinic
from .checks import NotYet, number_of, own_answer, refusing_functions
from .clinic import FAULTS, HEALTHY, Case, Event, Finding, Patient

HOLDS = (".FAULTS", "._is_own")  # see `wall`

__all__ = ["FAULTS", "HEALTHY", "Finding"]

SEED = 18  # of the patients that the notebook shows
PUBLISHED = {
    "sockets": ("nccl-1781-before", "nccl-1781-after"),
    "missing card": ("nccl-1052",),
    "no peer access": ("pyremote",),
    "no GPUDirect": ("nccl-899", "nccl-1453"),
    "not synchronized": ("mooncake-3484",),
}
"""The published patients of a fault, and those who look as if they had it."""


def ward(fault: str, seed: int = SEED) -> list[Case]:
    """Return the patients of a fault and those who look like them: the published ones first, and those of `seed`."""
    return [*clinic.published(*PUBLISHED.get(fault, ())), *clinic.ward(fault, seed)]


def patient(name: str, seed: int = SEED) -> Patient:
    """Return a patient by name: "nccl-1781-before", or "sockets 2" of a ward made from `seed`."""
    for fault in FAULTS:
        for case in ward(fault, seed):
            if case.name == name:
                return case.patient
    raise ValueError(
        f"there is no patient {name!r}; names are like {FAULTS[0]!r} with a number, or {[*clinic.PUBLISHED]}"
    )


def show(name: str, seed: int = SEED) -> None:
    """Print a patient's documents, with the index of each line and event."""
    shown = patient(name, seed)
    print(f"{name}: {shown.order}")
    for document in clinic.DOCUMENTS:
        lines = getattr(shown, document)
        print(f"\n--- {document}" + ("" if lines else ": none"))
        for number, line in enumerate(lines):
            print(f"{number:>4}  {_in_words(line)}")


def _in_words(line: str | Event) -> str:
    if isinstance(line, str):
        return line
    left = "still inside" if line.left is None else f"left {line.left:.6f}"
    call = f"{line.group:<7} seq {line.seq:<5} {line.collective:<14} {line.num_bytes:>11,} bytes"
    return f"rank {line.rank:<3} {call}  entered {line.entered:.6f}  {left}"


# What answers may not use


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, the library's own readers and fits, these checks, and to make patients."""
    modules = (nccl_log, bandwidth, calibrate, clinic, sys.modules[__name__])
    functions = [each for module in modules for each in vars(module).values() if _is_own(module, each)]
    with checks.without_the_library(), refusing_functions(*functions, algbw, busbw, clinic.Cluster.__init__):
        yield


def _is_own(module: types.ModuleType, thing: Any) -> bool:
    own = inspect.isfunction(thing) and thing.__module__ == module.__name__ and not thing.__code__.co_freevars
    return own and thing is not _is_own


def _asked(function: Callable, argument: Any, call: str) -> Any:
    return own_answer(__name__, function, argument, call=call)


# Part a: instruments


def logs(seed: int) -> list[Case]:
    """Return patients whose logs differ in their hosts' names, their marks of ranks, and other programs' lines."""
    return [case for fault in FAULTS[:4] for case in ward(fault, seed)]


def check_said(function: Callable, cases: Iterable[Case]) -> None:
    """Check that `function(log)` returns [(index, host, message), ...] of NCCL's own lines."""
    for case in cases:
        call = f"{function.__name__}(<log of {case.name}>)"
        got = _tuples(_asked(function, case.patient.log, call), 3, "(index, host, message)", call)
        said = {_index(index, call): (str(host), str(message).rstrip()) for index, host, message in got}
        for index, line in enumerate(case.patient.log):
            match, quoted = _nccls(line), f"\n  {line}"
            if bool(match) != (index in said):
                words = "leaves out line {}, which is NCCL's" if match else "has line {}, which is not NCCL's own"
                raise NotYet(f"{call} {words.format(index)}:{quoted}")
            if match and said[index] != match.groups():
                name, place = ("host", 0) if said[index][0] != match[1] else ("message", 1)
                raise NotYet(
                    f"{call}: the {name} of line {index} is {match[place + 1]!r}, not {said[index][place]!r}:{quoted}"
                )
        if len(got) > len(said) or len(said) > sum(_nccls(line) is not None for line in case.patient.log):
            raise NotYet(f"{call} has a line twice, or one that isn't there")


def _nccls(line: str) -> re.Match | None:
    """Match a line of NCCL's own: its host, and its message without the spaces at its end."""
    return re.search(r"([\w.-]+):\d+:\d+ \[\d+\] (?:\S+:\d+ )?NCCL (?:INFO|WARN) (.*?) *$", line)


def _index(given: Any, call: str) -> int:
    """Return a line's index as an int; a whole float counts, because an array of rows makes it one."""
    whole = isinstance(given, float | np.floating) and float(given).is_integer()
    try:
        return int(given) if whole else operator.index(given)
    except TypeError:
        raise NotYet(f"{call}: {brief(given)} is not a line's index, which is a whole number") from None


def _tuples(result: Any, length: int, names: str, call: str) -> list[tuple]:
    """Return a learner's rows as tuples; raise `NotYet` if they aren't a list of `names`."""
    try:
        rows = [tuple(row) for row in result]
    except TypeError:
        raise NotYet(f"{call} returns {brief(result)}; return a list of {names}") from None
    for row in rows:
        if len(row) != length:
            raise NotYet(f"{call} holds {brief(row)}; each item is {names}")
    return rows


def tables(seed: int) -> list[tuple[str, list[str]]]:
    """Return (name, lines) of tables: a published one, an empty one, and made ones of several collectives."""
    random = Random(seed)
    made = []
    for kind in ("float     sum      -1", "bfloat16   none      -1", "half     sum       0"):
        lines = clinic.Cluster(random).sweep()[0]
        lines = [line.replace("float     sum      -1", kind) for line in lines]
        for words in ("NCCL version 2.27.7+cuda12.9", "8 GPUs a node, 400 Gb/s a card"):
            lines.insert(random.randrange(5, len(lines)), words)
        made.append((kind.split()[0], lines))
    return [("mooncake-3484", clinic.published("mooncake-3484")[0].patient.sweep), ("nothing", []), *made]


def check_table(function: Callable, cases: Iterable[tuple[str, list[str]]]) -> None:
    """Check that `function(sweep)` returns [(index, bytes, seconds, busbw), ...] of a table's out-of-place columns."""
    for name, lines in cases:
        call = f"{function.__name__}(<table {name}>)"
        got = _tuples(_asked(function, lines, call), 4, "(index, bytes, seconds, busbw)", call)
        rows = bandwidth.parse("\n".join(lines), "all_reduce", 2).rows if lines else ()
        places = {int(line.split()[0]): n for n, line in enumerate(lines) if re.match(r" +\d+ +\d+ +\w+ ", line)}
        if len(got) != len(rows):
            raise NotYet(f"{call} has {len(got)} rows; the table has {len(rows)}")
        for (index, *numbers), row in zip(got, rows, strict=True):
            size, seconds, busbw = (number_of(each, f"{call}: a number of a row") for each in numbers)
            if size != row.num_bytes:
                words = ": those are elements, in the second column" if size == row.count else ""
                raise NotYet(f"{call} has a row of {size:,} bytes; it is {row.num_bytes:,}{words}")
            where = f"{call}: {row.num_bytes:,} bytes"
            if abs(seconds - row.seconds) > 1e-9 * row.seconds:
                raise NotYet(f"{where} take {row.seconds:.4g} s, not {seconds:.4g}{_of_time(seconds / row.seconds)}")
            if abs(busbw - row.busbw) > 1e-9 * row.busbw:
                words = ": the table has GB/s" if np.isclose(busbw * 1e9, row.busbw) else ""
                words = ": that is algbw" if np.isclose(busbw, row.algbw) and row.algbw else words
                raise NotYet(f"{where} have a busbw of {row.busbw:.4g} bytes/s, not {busbw:.4g}{words}")
            if _index(index, call) != places[row.num_bytes]:
                raise NotYet(f"{where} are in line {places[row.num_bytes]}, not {index}: count all lines, from 0")


def _of_time(ratio: float) -> str:
    if np.isclose(ratio, 1e6):
        return ": the table has microseconds"
    return ": that is in-place, further right" if 0.8 < ratio < 1 else ""


class Line(NamedTuple):
    """alpha seconds and beta seconds a byte, and the seed of the noise."""

    alpha: float
    beta: float
    seed: int


def lines_of(seed: int) -> list[Line]:
    """Return lines of several machines."""
    random = Random(seed)
    pairs = [(random.uniform(8e-6, 8e-5), 1 / random.uniform(2e9, 4e11)) for _ in range(6)]
    return [Line(alpha, beta, random.getrandbits(40)) for alpha, beta in pairs]


def noisy(line: Line) -> list[tuple[int, int, float, float]]:
    """Return rows as `check_table` describes them, within 3% of `line`, but for one or two: a fifth too slow.

    One of these is the first row or the last.
    """
    random = Random(line.seed)
    sizes = [8 * 4**power for power in range(15)]
    slow = random.choice(({0, 14}, {14}, {0, random.randrange(3, 12)}, {14, random.randrange(3, 9)}))
    rows = []
    for number, size in enumerate(sizes):
        seconds = (line.alpha + line.beta * size) * random.uniform(0.97, 1.03) * (1.2 if number in slow else 1)
        rows.append((number + 9, size, seconds, 1.75 * size / seconds))
    return rows


def check_fit(function: Callable, lines: Iterable[Line]) -> None:
    """Check that `function(rows)` finds alpha and beta, each to within a tenth."""
    for line in lines:
        rows = noisy(line)
        call = f"{function.__name__}(<15 rows, the largest of {rows[-1][1]:,} bytes in {rows[-1][2]:.3g} s>)"
        result = _asked(function, rows, call)
        try:
            pair = [number_of(each, f"{call}: a number of the pair") for each in result]
        except TypeError:
            pair = []
        if len(pair) != 2:
            raise NotYet(f"{call} returns {brief(result)}; return a pair, alpha and beta")
        for name, got, want in zip(("alpha", "beta"), pair, line[:2], strict=True):
            if abs(got / want - 1) > 0.1:
                words = f"its {name} is {got:.3g}, and the rows were made with {want:.3g}"
                raise NotYet(f"{call}: {words}{_of_fit(pair, line, rows)}")


def _of_fit(pair: list[float], line: Line, rows: list[tuple]) -> str:
    alpha, beta = pair
    if np.isclose(alpha, line.beta, rtol=0.1) and np.isclose(beta, line.alpha, rtol=0.1):
        return ": the two are in the wrong order"
    if beta and np.isclose(1 / beta, line.beta, rtol=0.1):
        return ": that is a bandwidth; beta is its inverse"
    absolute = np.polyfit([row[1] for row in rows], [row[2] for row in rows], 1)[::-1]
    if np.allclose(pair, absolute, rtol=1e-3, atol=0):
        return ": a fit of the seconds themselves hears only the large rows; minimize relative errors"
    if np.isclose(alpha, rows[0][2], rtol=1e-3) or np.isclose(beta, rows[-1][2] / rows[-1][1], rtol=1e-3):
        return ": a single row may be off by a fifth, so let all of them count"
    return ""


def traces(seed: int) -> list[Case]:
    """Return patients with all kinds of traces, and one with none."""
    none = [case for case in ward("no peer access", seed) if not case.patient.trace][:1]
    return [*none, *ward("straggler", seed), *ward("mismatch", seed)]


def check_lateness(function: Callable, cases: Iterable[Case]) -> None:
    """Check that `function(trace)` returns {rank: seconds by which it comes late to calls of the group "world"}."""
    for case in cases:
        call = f"{function.__name__}(<trace of {case.name}>)"
        result = _asked(function, case.patient.trace, call)
        if not isinstance(result, Mapping):
            raise NotYet(f"{call} returns {brief(result)}; return a dictionary, {{rank: seconds}}")
        want = _late(case.patient.trace)
        if {*result} != {*want}:
            raise NotYet(f"{call} has the ranks {brief([*result])}; they are {brief(sorted(want))}")
        for rank, seconds in want.items():
            got = number_of(result[rank], f"{call}, rank {rank}")
            if abs(got - seconds) > 1e-7:
                words = _of_lateness(got, rank, case.patient.trace)
                raise NotYet(f"{call}: rank {rank} is late by {seconds * 1e3:.3f} ms, not {got * 1e3:.3f}{words}")


def _late(
    trace: list[Event],
    inside: Callable[[Event, float], float] = lambda event, left: left - event.entered,
    usual: Callable = median,
    middle: Callable = median,
    groups: Iterable[str] = ("world",),
) -> dict[int, float]:
    """Return the `middle` of {rank: `usual` of the ranks' times inside a call - its own}, over calls that all left."""
    calls: dict[tuple[str, int], list[Event]] = {}
    for event in trace:
        if event.group in groups:
            calls.setdefault((event.group, event.seq), []).append(event)
    late: dict[int, list[float]] = {}
    for events in calls.values():
        times = {event.rank: inside(event, event.left) for event in events if event.left is not None}
        if len(times) == len(events):
            of_all = usual(times.values())
            for rank, own in times.items():
                late.setdefault(rank, []).append(of_all - own)
    return {rank: middle(each) for rank, each in late.items()}


def _of_lateness(got: float, rank: int, trace: list[Event]) -> str:
    right = _late(trace)[rank]
    clocks = _late(trace, lambda event, left: -event.entered)[rank]
    longest = _late(trace, usual=max)[rank]
    mean = _late(trace, middle=lambda each: sum(each) / len(each))[rank]
    all_groups = _late(trace, groups={event.group for event in trace})[rank]
    slips = {
        "this compares the clocks of hosts, which differ; time inside is on one clock": clocks,
        "who comes late waits least: late is the median minus its own": -right,
        "one call in which a rank is very late moves a mean; take the median over the calls": mean,
        "this compares with the longest time inside; take the median of all ranks' times": longest,
        'calls of other groups count here; take those of "world" alone': all_groups,
    }
    return next((f": {words}" for words, slip in slips.items() if np.isclose(got, slip, atol=1e-7)), "")


# Part b: diagnoses


def check_ward(diagnose: Callable, cases: Iterable[Case]) -> None:
    """Check that `diagnose(patient)` names each patient's fault, a proof and the remedy, or that it is healthy."""
    for case in cases:
        call = f"{diagnose.__name__}(<{case.name}>)"
        fault, evidence, remedy = _finding(_asked(diagnose, case.patient, call), call)
        if fault != case.fault:
            proven = (
                _quoted(case.patient, evidence) if case.fault == HEALTHY else _quoted(case.patient, min(case.proofs))
            )
            raise NotYet(f"{call} finds {fault!r}, but it is {case.fault!r}: {case.why}.{proven}")
        if fault == HEALTHY:
            continue
        if evidence not in case.proofs:
            quoted = _quoted(case.patient, evidence) or f"\n  {evidence} is no line of it"
            right = _quoted(case.patient, min(case.proofs))
            raise NotYet(
                f"{call} finds {fault!r}, and its evidence does not prove that:{quoted}\n  One that does:{right}"
            )
        if remedy != case.remedy:
            raise NotYet(
                f"{call} finds {fault!r} and proves it, but its remedy is {remedy!r}; {case.why}: {case.remedy!r}"
            )


def _finding(result: Any, call: str) -> tuple[str, Any, Any]:
    """Return a learner's finding as plain (fault, evidence, remedy)."""
    parts = [result.get(name) for name in Finding._fields] if isinstance(result, Mapping) else result
    if isinstance(parts, str) or not isinstance(parts, Iterable) or len(parts := [*parts]) != 3:
        raise NotYet(f"{call} returns {brief(result)}; return a Finding(fault, evidence, remedy)")
    fault, evidence, remedy = parts
    if fault not in (*FAULTS, HEALTHY):
        raise NotYet(f"{call} finds {brief(fault)}; a fault is one of {', '.join(FAULTS)}, or {HEALTHY!r}")
    if fault == HEALTHY:
        return fault, None, None
    pair = [*evidence] if isinstance(evidence, Iterable) and not isinstance(evidence, str) else []
    if len(pair) != 2 or pair[0] not in clinic.DOCUMENTS:
        raise NotYet(f"{call}: its evidence is {brief(evidence)}; it is a document and an index, such as ('log', 17)")
    if not isinstance(remedy, str):
        raise NotYet(f"{call}: its remedy is {brief(remedy)}; a remedy is a text")
    return fault, (str(pair[0]), _index(pair[1], call)), remedy


def _quoted(patient: Patient, evidence: Any) -> str:
    if not evidence:
        return ""
    document, number = evidence
    lines = getattr(patient, document)
    return f"\n  {document} {number}: {_in_words(lines[number])}" if 0 <= number < len(lines) else ""
