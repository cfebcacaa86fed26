"""What machines with GPUs have measured: the format of `book/data/gpu.json`, and of what `make gpu` writes.

    machines = load(Path("book/data/gpu.json"))      # [] if there is no such file: blocked, no GPU
    for machine in machines:
        print(machine.title)                         # 1 x NVIDIA H100 80GB HBM3, torch 2.11.0, NCCL 2.28.9, 2026-11-24
        print(table("products", machine.records["products"]))    # every case: measured beside predicted
        print(machine.skipped)                       # {"bandwidth": "one GPU: a sweep needs two"}
        print(report(machine))                       # all of that

The file is {"format": FORMAT, "machines": [...]}, one entry for each kind and number of GPUs. An entry has:

`gpu`, `count`: the driver's name of the GPUs, and how many. `known`: its name in `machines.GPUS`, which the predictions
used, or None. `machine`: as `bandwidth.machine()` returns it, with `cuda`, `driver`, `watts` and `clock_mhz` of a
GPU, and `topology`, the table of `nvidia-smi topo -m`, where nvidia-smi is there. `code`: a digest of the library.
`skipped`: {part: why}. `paths`: what NCCL printed about its way between the ranks, as `nccl_log.summary` says it.
`records`: {part: record}. `traces` and `lessons`: lists, see below.

A record is a `registered.Record`: predictions of every case, written down before the clock started, with when each was
done and on what; its `cells` are the cases, and those that couldn't be measured are in `unmeasured`, with `why`. Every
cell has `predicted` {model: seconds}, where the planner is the model "planner", and `seconds`, those of each repeat.
Beside these two a cell of

- "products" has `name`, `m`, `k`, `n`, `dtype`, and `flops`; "rated peak" is its second model;
- "attention" has `name`, `batch`, `heads`, `sequence`, `head_size`, `kernel` ("flash", "cudnn"), `passes` ("forward" or
  "both"), and `flops`; "rated peak" is its second model;
- "moves" has `name` and `num_bytes`: copies in the GPU's memory, and between host and GPU;
- "training" has `name`, the fields of `jobs/train.py`'s `Job`, `world_size`, `tokens` of a step over all ranks,
  `flops` of a rank's step without recomputation, `peak` FLOP/s of a GPU, `predicted_bytes` and `peak_bytes` of a rank;
- "bandwidth" has `collective`, `world_size`, `num_bytes` (S, the full buffer), `way`, what the network model thinks
  that NCCL picks, such as "NVLS Simple", and `right`: whether every number was;
- "ranks" has `chapter`, `name`, `world_size`, `num_bytes`, and `right`: whether real ranks got what `simulate` says.

A trace is {"name", "measured", "spans"}; a span is {"name", "lane", "start", "seconds", "kind"}, the fields of
`training.timeline.Span`, in seconds from the trace's begin. A lane is a CUDA stream: "stream 7". Where products ran
beside a copy, `seconds` has {"products", "copies", "both"}: each alone, and on a stream each.

A lesson is {"chapter", "name", "world_size", "right", "difference"}: what a training chapter does on ranks, and how far
it is off what one rank does alone. `error` stands for `difference` where the ranks failed.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .registered import Record

FORMAT = "collectives.gpu, version 1"
BLOCKED = "blocked: no GPU"
PARTS = ("products", "attention", "moves", "training", "trace", "ranks", "lessons", "bandwidth")
"""What `make gpu` measures, in this order."""


@dataclass(frozen=True)
class Machine:
    """One machine's measurements; the module's docstring has every field's meaning."""

    gpu: str
    count: int
    machine: Mapping[str, Any]
    known: str | None = None
    code: str = ""
    skipped: Mapping[str, str] = field(default_factory=dict)
    paths: str = ""
    records: Mapping[str, Record] = field(default_factory=dict)
    traces: Sequence[Mapping[str, Any]] = ()
    lessons: Sequence[Mapping[str, Any]] = ()

    @property
    def parts(self) -> list[str]:
        """What was measured, of `PARTS`."""
        lists = {"trace": self.traces, "lessons": self.lessons}
        return [part for part in PARTS if part in self.records or lists.get(part)]

    @property
    def title(self) -> str:
        """GPUs, versions and date in a line, to stand beside every figure."""
        versions = [f"{name} {self.machine[key]}" for name, key in _VERSIONS.items() if self.machine.get(key)]
        return ", ".join([f"{self.count} x {self.gpu}", *versions, self.machine["date"][:10]])

    def merged(self, newer: Machine) -> Machine:
        """Return this machine with `newer`'s parts in place of its own. A part stays if `newer` has skipped it."""
        merged = Machine(
            **{name: getattr(newer, name) for name in ("gpu", "count", "machine", "known", "code")},
            paths=newer.paths or self.paths,
            records={**self.records, **newer.records},
            traces=newer.traces or self.traces,
            lessons=newer.lessons or self.lessons,
        )
        skipped = {part: why for part, why in {**self.skipped, **newer.skipped}.items() if part not in merged.parts}
        return replace(merged, skipped=skipped)


_VERSIONS = {"torch": "torch", "CUDA": "cuda", "NCCL": "nccl"}


def load(path: Path) -> list[Machine]:
    """Read a file of measurements; return [] if there is none. Raises `ValueError` for a file of another format."""
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{path.name} is no file of measurements on GPUs: its format is not {FORMAT!r}")
    return [_machine(entry) for entry in found["machines"]]


def _machine(entry: dict[str, Any]) -> Machine:
    records = {
        part: Record({name: value for name, value in record.items() if name != "cells"}, record["cells"])
        for part, record in entry["records"].items()
    }
    return Machine(**entry | {"records": records})


def save(machines: Sequence[Machine], path: Path) -> None:
    """Write measurements as JSON, a cell and a span a line, so that a diff shows what changed."""
    entries = []
    for machine in machines:
        facts = {name: value for name, value in asdict(machine).items() if name not in ("records", "traces", "lessons")}
        records = {
            part: dict(record.header) | {"cells": list(record.cells)} for part, record in machine.records.items()
        }
        lists = {"traces": list(machine.traces), "lessons": list(machine.lessons)}
        entries.append(facts | {"records": records} | lists)
    path.write_text(_lines({"format": FORMAT, "machines": entries}) + "\n")


def add(machine: Machine, path: Path) -> None:
    """Put a machine's measurements into a file, beside those of other machines and merged with its own earlier ones."""
    machines = load(path)
    same = [each for each in machines if (each.gpu, each.count) == (machine.gpu, machine.count)]
    others = [each for each in machines if (each.gpu, each.count) != (machine.gpu, machine.count)]
    save([*others, same[0].merged(machine) if same else machine], path)


# --- tables -----------------------------------------------------------------------------------------------------------


def table(part: str, record: Record) -> str:
    """Return a line for every case: its median time, rate and what else was measured, each beside the prediction.

    The prediction is that of the record's first model.
    """
    rows = [[words for words, _ in _COLUMNS[part]] + ["ms", "predicted"]]
    for cell in record.cells:
        measured, predicted = statistics.median(cell["seconds"]), cell["predicted"][record.models[0]]
        both = [f"{seconds * 1e3:.4g}" for seconds in (measured, predicted)]
        rows.append([show(cell, measured, predicted) for _, show in _COLUMNS[part]] + both)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        row[0].ljust(widths[0]) + "".join(f"  {word:>{w}}" for word, w in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
    left = [f"{_label(cell)}: not measured, {cell['why']}" for cell in record.header.get("unmeasured", ())]
    return "\n".join([f"{record.header['what']}, measured {record.header['measured'][:10]}", *lines, *left])


def report(machine: Machine) -> str:
    """Return all that a machine has measured, beside what was predicted, and what it skipped."""
    texts = [machine.title]
    texts += [f"{part}: {table(part, record)}" for part, record in machine.records.items()]
    texts += [_lesson(each) for each in machine.lessons]
    texts += [_trace(each) for each in machine.traces]
    texts += [f"between the ranks: {machine.paths}"] * bool(machine.paths)
    texts += [f"skipped {part}: {why}" for part, why in machine.skipped.items()]
    return "\n".join(texts)


def _lesson(lesson: Mapping[str, Any]) -> str:
    off = f"off by {lesson['difference']:.1e}" if "difference" in lesson else lesson["error"]
    verdict = "right" if lesson["right"] else "WRONG"
    return f"lesson of chapter {lesson['chapter']}, {lesson['name']}, {lesson['world_size']} ranks: {verdict}, {off}"


def _trace(trace: Mapping[str, Any]) -> str:
    streams = ", ".join(sorted({span["lane"] for span in trace["spans"]}))
    times = [f", {name} {seconds * 1e3:.4g} ms" for name, seconds in trace.get("seconds", {}).items()]
    return f"trace, {trace['name']}: {len(trace['spans'])} spans on {streams}{''.join(times)}"


def _label(cell: Mapping[str, Any], *_: float) -> str:
    sizes = f" {cell['m']} x {cell['k']} x {cell['n']} {cell['dtype']}" if "dtype" in cell else ""
    return str(cell.get("name") or cell["collective"]) + sizes


def _tflops(cell: Mapping[str, Any], measured: float, predicted: float) -> str:
    return " / ".join(f"{cell['flops'] / seconds / 1e12:.1f}" for seconds in (measured, predicted))


def _gbytes(cell: Mapping[str, Any], measured: float, predicted: float) -> str:
    return " / ".join(f"{cell['num_bytes'] / seconds / 1e9:.1f}" for seconds in (measured, predicted))


def _mfu(cell: Mapping[str, Any], measured: float, predicted: float) -> str:
    return " / ".join(f"{cell['flops'] / seconds / cell['peak']:.1%}" for seconds in (measured, predicted))


def _memory(cell: Mapping[str, Any], *_: float) -> str:
    return " / ".join(f"{cell[name] / 1e9:.2f}" for name in ("peak_bytes", "predicted_bytes"))


def _size(cell: Mapping[str, Any], *_: float) -> str:
    return f"{cell['num_bytes']:,}"


def _right(cell: Mapping[str, Any], *_: float) -> str:
    return "right" if cell["right"] else "WRONG"


_Show = Callable[[Mapping[str, Any], float, float], str]
_NAMED: tuple[str, _Show] = ("", _label)
_RATE: tuple[str, _Show] = ("TFLOP/s / predicted", _tflops)
_MOVED: list[tuple[str, _Show]] = [_NAMED, ("bytes", _size), ("GB/s / predicted", _gbytes)]
_CHECKED: tuple[str, _Show] = ("", _right)
_COLUMNS: Mapping[str, Sequence[tuple[str, _Show]]] = {
    "products": [_NAMED, _RATE],
    "attention": [_NAMED, _RATE],
    "moves": _MOVED,
    "training": [_NAMED, _RATE, ("MFU / predicted", _mfu), ("GB at the peak / predicted", _memory)],
    "ranks": [*_MOVED, _CHECKED],
    "bandwidth": [*_MOVED, _CHECKED],
}


def _lines(value: Any, indent: str = "") -> str:
    """Format as JSON with a line for each innermost object or list."""
    deep = isinstance(value, (dict, list)) and any(isinstance(each, (dict, list)) for each in _values(value))
    if not deep:
        return json.dumps(value)
    inner = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {_lines(each, inner)}" for name, each in value.items()]
    else:
        items = [json.dumps(each) if _is_row(each) else _lines(each, inner) for each in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + ",\n".join(inner + item for item in items) + f"\n{indent}{closing}"


def _values(value: dict | list) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _is_row(value: Any) -> bool:
    """Return whether this is a cell, a span or a lesson."""
    return isinstance(value, dict) and any(name in value for name in ("predicted", "lane", "chapter"))
