"""How well the planner predicts published runs: tables by source and by kind, fitted and left out.

`python -m collectives.training.published` prints them. The fitted errors are those of the constants in `kernels`. The
left-out ones, of each source, are those of constants fitted to all other sources. For rows in another file, which no
constant has seen, there are only the first, and they are predictions.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import costs, fit, runs
from .kernels import FITTED
from .registry import GIB

ROWS = Path(__file__).parents[2] / "book" / "data" / "published" / "training.json"
LEFT_OUT = ROWS.with_name("left_out_runs.json")
NEAR = 0.25  # a relative error within which a prediction is of use


class Evidence(NamedTuple):
    """The usable rows of a file with their errors, log(predicted / measured), and why the others can't be used."""

    used: list[fit.Sample]
    unused: Counter[str]
    fitted: np.ndarray
    left_out: np.ndarray | None


def gather(rows: Iterable[runs.Row], leave_out: bool) -> Evidence:
    """Return the evidence of rows. `leave_out`: fit again without each source, which takes a minute or two."""
    used, unused = fit.samples(rows)
    return Evidence(used, unused, fit.errors(used), fit.left_out(used) if leave_out else None)


def record(evidence: Evidence, path: Path = LEFT_OUT) -> None:
    """Write the errors of left-out rows to a file, with the date and what they are of."""
    assert evidence.left_out is not None
    rows = [
        [sample.row["id"], round(float(error), 4)]
        for sample, error in zip(evidence.used, evidence.left_out, strict=True)
    ]
    about = {"made": f"{datetime.now(UTC):%Y-%m-%d}", "by": "make evidence", "of": _digest()}
    path.write_text(json.dumps({**about, "columns": ["id", "log(predicted / measured)"], "rows": rows}) + "\n")


def recorded(path: Path = LEFT_OUT) -> Evidence:
    """Return the evidence of the book's rows, with the recorded errors of left-out sources.

    Raises `ValueError` if they were made from other rows or by other constants.
    """
    data = json.loads(path.read_text())
    if data["of"] != _digest():
        raise ValueError(f"{path.name} is not of these runs and constants; run `make evidence`")
    evidence = gather(load(), leave_out=False)
    by_id = dict(data["rows"])
    return evidence._replace(left_out=np.array([by_id[sample.row["id"]] for sample in evidence.used]))


def _digest() -> str:
    """Return what changes if the published runs or the fitted constants change."""
    return hashlib.sha256(ROWS.read_bytes() + repr(FITTED).encode()).hexdigest()[:16]


def load(path: Path = ROWS) -> list[runs.Row]:
    """Return the rows of a file."""
    return json.loads(path.read_text(encoding="utf-8"))


# --- groups -----------------------------------------------------------------------------------------------------


def gpu(sample: fit.Sample) -> str:
    """Return the kind of GPU."""
    return sample.run.machine.name


def precision(sample: fit.Sample) -> str:
    """Return the precision of products."""
    return sample.run.layout.software.precision


def experts(sample: fit.Sample) -> str:
    """Return "experts" or "dense"."""
    return runs.kind(sample.run.model)


def way(sample: fit.Sample) -> str:
    """Return "FSDP" if parameters are sharded, else "Megatron-like", with the kernels' kind."""
    sharded = "FSDP" if sample.run.layout.stage == 3 else "Megatron-like"
    return f"{sharded}, {sample.run.layout.software.stack}"


KINDS: Mapping[str, Callable[[fit.Sample], str]] = {
    "source": lambda sample: sample.source,
    "GPU": gpu,
    "precision": precision,
    "model": experts,
    "way": way,
}


class Summary(NamedTuple):
    """Relative errors of a group: how many, median and 90th percentile of their size, share within a quarter, bias."""

    rows: int
    median: float
    ninth: float
    near: float
    bias: float


def summary(errors: np.ndarray) -> Summary:
    """Return the summary of errors that are given as logarithms."""
    size = np.abs(np.expm1(errors))
    ninth, bias = np.quantile(size, 0.9), np.expm1(np.median(errors))
    return Summary(len(size), float(np.median(size)), float(ninth), float((size <= NEAR).mean()), float(bias))


def groups(evidence: Evidence, errors: np.ndarray, kind: str) -> dict[str, Summary]:
    """Return the summary of each group of a kind, a key of `KINDS`; the groups with most rows first."""
    names = np.array([KINDS[kind](sample) for sample in evidence.used])
    return {str(name): summary(errors[names == name]) for name, _ in Counter(names).most_common()}


# --- text -------------------------------------------------------------------------------------------------------


def report(evidence: Evidence) -> str:
    """Return all tables as text."""
    lines = [f"{len(evidence.used)} rows used, {evidence.unused.total()} not:"]
    lines += [f"{count:5}  {reason}" for reason, count in evidence.unused.most_common()]
    if not evidence.used:
        return "\n".join(lines)
    lines += _table("by the planner's constants", evidence, evidence.fitted)
    if evidence.left_out is not None:
        lines += _table("with the row's source left out of the fit", evidence, evidence.left_out)
    return "\n".join([*lines, *_memory(evidence.used)])


def _table(title: str, evidence: Evidence, errors: np.ndarray) -> list[str]:
    lines = ["", f"{title}: {'rows':>5} {'median':>7} {'90 %':>6} {'in 25 %':>8} {'bias':>6}"]
    lines.append(_line("all", summary(errors)))
    for kind in KINDS:
        lines += [f"by {kind}", *(_line(name, found) for name, found in groups(evidence, errors, kind).items())]
    worst = np.argsort(-np.abs(errors))[:5]
    return [*lines, "worst five", *(_row(evidence.used[place], errors[place]) for place in worst)]


def _line(name: str, found: Summary) -> str:
    figures = f"{found.rows:5} {found.median:7.1%} {found.ninth:6.0%} {found.near:8.0%} {found.bias:+6.0%}"
    return f"  {figures}  {name}"


def _row(sample: fit.Sample, error: float) -> str:
    row, run = sample.row, sample.run
    predicted = sample.seconds * np.exp(error)
    figures = f"{np.expm1(error):+5.0%}  {sample.seconds:.3g} s measured, {predicted:.3g} s predicted"
    return f"  {figures}: {row['model']}, {row['n_gpus']} {row['gpu']}, {row['precision']}, {run.layout} ({row['id']})"


def _memory(used: Sequence[fit.Sample]) -> list[str]:
    """Return a table of the memory that sources print, and the layouts that the planner says don't fit."""
    printed = [sample for sample in used if sample.row.get("memory_gb")]
    lines = ["", "memory of the fullest rank, GiB: printed, predicted"]
    for sample in printed:
        held = costs.memory(sample.run.model, sample.run.layout).total / GIB
        lines.append(f"  {sample.row['memory_gb']:6.1f} {held:6.1f}  {sample.row['model']}, {sample.run.layout}")
    refused = [sample for sample in used if not fits(sample.run)]
    lines.append(
        f"{len(refused)} of {len(used)} layouts don't fit by the planner's count, even with full recomputation"
    )
    layouts = Counter(f"{sample.run.model.name} on {gpu(sample)}: {sample.run.layout}" for sample in refused)
    lines += [f"  {count:3}  {what}" for what, count in layouts.items()]
    return lines


def fits(run: runs.Run) -> bool:
    """Return whether a run fits in memory, with the recomputation that it needs if its source is silent about it."""
    layout = run.layout if run.layout.recompute == "none" else replace(run.layout, recompute="full")
    return costs.memory(run.model, layout).total <= run.machine.usable
