"""Registered predictions: written down before the clock starts, for every case, and reported with every case.

A comparison of a model with a clock persuades only if the model couldn't see the clock. `register` evaluates the
models on all cases and returns a `Prediction`. Only a `Prediction` can be compared with a measurement, so nothing can
be measured first. The `Record` of it holds every case, good or bad, and says when and on what it was measured.

    prediction = register("all-reduce on lines", cases, {"two constants": seconds_of})
    record = prediction.against(measure)            # measure(cases): for each the seconds of its repeats
    print(record)                                   # every case, with predicted over measured
    record.save(path)
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from .benchmark import machine

Case = dict[str, Any]
"""What is measured, in JSON's types: {"world_size": 8, "algorithm": "ring", "num_bytes": 16384}."""

HEADER = ("what", "predicted", "measured", "machine")


class Measured(NamedTuple):
    """The seconds of a case's repeats, and what else was measured `besides`, such as {"peak_bytes": 16e9}."""

    seconds: Sequence[float]
    besides: Mapping[str, Any] = MappingProxyType({})


class Unmeasured(NamedTuple):
    """In the place of a `Measured`: the case couldn't be measured, and why."""

    why: str


@dataclass(frozen=True)
class Record:
    """What was predicted, and then measured.

    `header`: `what` was measured, when it was `predicted` and `measured`, on which `machine`, and what else is known.
    `unmeasured` there lists the cases that couldn't be measured, each with its prediction and `why`.
    `cells`: a dict for each case: the case itself, `predicted` {model: seconds}, and `seconds` of each repeat.
    """

    header: Mapping[str, Any]
    cells: Sequence[Mapping[str, Any]]

    def __post_init__(self) -> None:
        if missing := [name for name in HEADER if name not in self.header]:
            raise ValueError(f"a record says when and on what it was measured; this one lacks {', '.join(missing)}")

    @property
    def models(self) -> list[str]:
        """The names of the models that predicted."""
        return list(self.cells[0]["predicted"])

    def at(self, **case: Any) -> list[Mapping[str, Any]]:
        """Return the cells of this case, such as `at(world_size=8, num_bytes=16384)`."""
        return [cell for cell in self.cells if case.items() <= cell.items()]

    @property
    def sizes(self) -> list[int]:
        """The bytes of the buffers, from small to large."""
        return sorted({cell["num_bytes"] for cell in self.cells})

    def clock(self, world_size: int, num_bytes: int) -> dict[str, float]:
        """Return the fastest repeat of each algorithm at one size, in seconds: {algorithm: seconds}."""
        return {cell["algorithm"]: fastest_of(cell) for cell in self.at(world_size=world_size, num_bytes=num_bytes)}

    def guess(self, model: str, world_size: int, num_bytes: int) -> dict[str, float]:
        """Return what `model` predicts for each algorithm at one size, in seconds: {algorithm: seconds}."""
        cells = self.at(world_size=world_size, num_bytes=num_bytes)
        return {cell["algorithm"]: cell["predicted"][model] for cell in cells}

    def __str__(self) -> str:
        """Every case, a line each: its measured milliseconds, and each model's prediction over the fastest."""
        when, cores = self.header["measured"][:10], self.header["machine"]["cores"]
        case_names = [name for name in self.cells[0] if name not in ("predicted", "seconds")]
        rows = [[*case_names, "fastest, ms", "median, ms", *(f"{model} / fastest" for model in self.models)]]
        for cell in self.cells:
            fastest, median = fastest_of(cell), statistics.median(cell["seconds"])
            times = (f"{seconds * 1e3:.2f}" for seconds in (fastest, median))
            ratios = (f"{cell['predicted'][model] / fastest:.2f}" for model in self.models)
            rows.append([*(str(cell[name]) for name in case_names), *times, *ratios])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        return "\n".join([f"{self.header['what']}; {cores} cores, {when}", *lines])

    def save(self, path: Path) -> None:
        """Write the record as JSON, a cell a line."""
        rows = ",\n    ".join(map(json.dumps, self.cells))
        head = json.dumps(dict(self.header), indent=2).removesuffix("\n}")
        path.write_text(f'{head},\n  "cells": [\n    {rows}\n  ]\n}}\n')

    @staticmethod
    def load(path: Path) -> Record:
        """Read a record. Raises `ValueError` for a file without the header or the cells of one."""
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or not found.get("cells"):
            raise ValueError(f"{path.name} is not a record of predictions: it has no cells")
        return Record({name: found[name] for name in found if name != "cells"}, found["cells"])


def fastest_of(cell: Mapping[str, Any]) -> float:
    """Return the fastest repeat of a cell in seconds, which other load on the machine disturbs least."""
    return min(cell["seconds"])


def off(cells: Sequence[Mapping[str, Any]], model: str) -> float:
    """Return how far a model's predictions are from the fastest repeats: the median of the relative errors."""
    return statistics.median(abs(cell["predicted"][model] / fastest_of(cell) - 1) for cell in cells)


def regret(cells: Sequence[Mapping[str, Any]], model: str) -> float:
    """Return by what share the cell that a model predicts to be the fastest is slower than the one that was."""
    chosen = min(cells, key=lambda cell: cell["predicted"][model])
    return fastest_of(chosen) / min(map(fastest_of, cells)) - 1


def by_size(record: Record) -> str:
    """Return a table, a line a size: how far each model is off, and how much slower its choice is than the best."""
    models = record.models
    half = 14 * len(models)
    lines = [f"{'':18}{'off, median':>{half}}{'choice slower by':>{half}}"]
    lines.append(f"{'':18}" + "".join(f"{model.replace('link and ', '+ '):>14}" for model in models * 2))
    for world_size in sorted({cell["world_size"] for cell in record.cells}):
        for num_bytes in record.sizes:
            cells = record.at(world_size=world_size, num_bytes=num_bytes)
            judged = [judge(cells, model) for judge in (off, regret) for model in models]
            name = f"P = {world_size} {num_bytes / 2**10:>7g} KiB"
            lines.append(f"{name:18}" + "".join(f"{value:>14.0%}" for value in judged))
    return "\n".join(lines)


@dataclass(frozen=True)
class Prediction:
    """What models predict for every case, written down before anything is measured. `register` makes one."""

    what: str
    cells: Sequence[Case]
    known: Mapping[str, Any]
    at: str
    _spent: list[str] = field(default_factory=list, repr=False)

    def against(self, measure: Callable[[Sequence[Case]], Sequence[Sequence[float] | Measured | Unmeasured]]) -> Record:
        """Measure every case and return all of them beside what was predicted. It works once.

        `measure`: takes all cases and returns, in their order, the seconds of each one's repeats, or a `Measured`, or
        an `Unmeasured` with the reason. Raises `ValueError` if it leaves a case out without one or measures none at
        all, or if the prediction has been measured before: register a new one then.
        """
        if self._spent:
            raise ValueError(f"{self.what}: already measured at {self._spent[0]}; register a new prediction")
        self._spent.append(_now())
        cases = [{name: cell[name] for name in cell if name != "predicted"} for cell in self.cells]
        found = [each if isinstance(each, Measured | Unmeasured) else Measured(each) for each in measure(cases)]
        given = [bool(each.why if isinstance(each, Unmeasured) else each.seconds) for each in found]
        if len(given) != len(cases) or not all(given):
            raise ValueError(f"{self.what}: {len(cases)} cases were predicted, but {sum(given)} measured")
        header = {"what": self.what, "predicted": self.at, "measured": self._spent[0], "machine": machine()}
        cells, left = [], []
        for cell, case in zip(self.cells, found, strict=True):
            if isinstance(case, Unmeasured):
                left.append(cell | {"why": case.why})
            else:
                seconds = [_positive(each, "the clock", self.what) for each in case.seconds]
                cells.append(cell | {"seconds": seconds} | dict(case.besides))
        if not cells:
            raise ValueError(f"{self.what}: no case could be measured: {left[0]['why']}")
        return Record(header | dict(self.known) | ({"unmeasured": left} if left else {}), cells)


def register(
    what: str,
    cases: Sequence[Case],
    models: Mapping[str, Callable[[Case], float]],
    known: Mapping[str, Any] | None = None,
) -> Prediction:
    """Write down what each of `models` predicts for each of `cases`, in seconds, and when.

    `known`: what the models were calibrated with, in JSON's types; it is kept in the record. Raises `ValueError`
    without a case or a model, and for a prediction that isn't a positive number.
    """
    if not cases or not models:
        raise ValueError(f"{what}: a prediction needs at least one case and one model")
    cells = [
        dict(case) | {"predicted": {name: _positive(model(case), name, what) for name, model in models.items()}}
        for case in cases
    ]
    return Prediction(what, cells, dict(known or {}), _now())


def _positive(seconds: float, who: str, what: str) -> float:
    """Return seconds with four digits; raise `ValueError` if they aren't a positive, finite number."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{what}: {who} gives {seconds} seconds, which isn't a time")
    return float(f"{seconds:.4g}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
