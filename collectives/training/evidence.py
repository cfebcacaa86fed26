"""How well the planner predicts published runs: its constants fitted to them, and judged on those left out of the fit.

`python -m collectives.training.published` prints tables by source and by kind. The fitted errors are those of the
constants in `kernels`. The left-out ones, of each repository, are those of constants fitted to all others. For rows in
another file, which no constant has seen, there are only the first, and they are predictions.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .. import fitted, formula, machines, network
from ..fitted import Errors, errors, repository
from ..machines import GIB
from . import costs, groups, kernels, layout, models, registry, runs, software, traffic
from .kernels import FITTED, Constants, Fitted
from .planner import refuse_axes

ROWS = Path(__file__).parents[2] / "book" / "data" / "published" / "training.json"
LEFT_OUT = ROWS.with_name("left_out_runs.json")
FORMULAS = (
    fitted,
    formula,
    machines,
    network,
    costs,
    groups,
    kernels,
    layout,
    models,
    registry,
    runs,
    software,
    traffic,
)
TYPICAL = 0.08  # an error above which a run may be odd, not the constants wrong


class Sample(NamedTuple):
    """A usable row: the run that it describes, the measured seconds of a step, and its source without the version."""

    row: runs.Row
    run: runs.Run
    seconds: float
    source: str


class Evidence(NamedTuple):
    """The usable rows of a file, why others can't be used, and the errors of predictions by what the fit left out."""

    used: list[Sample]
    unused: Counter[str]
    errors: dict[str, np.ndarray]


NOTHING, REPOSITORY, NVIDIA = "nothing", "the run's repository", "all of NVIDIA's recipes"
NARROW = "the run's repository, NVIDIA's recipes with gradients in bf16"


def samples(rows: Iterable[runs.Row]) -> tuple[list[Sample], Counter[str]]:
    """Return the usable rows, and how many can't be used, by reason."""
    used, unused = [], Counter[str]()
    for row in rows:
        try:
            run = runs.read(row)
            source = str(row.get("source")).split(" @")[0]
            found = Sample(row, run, runs.measured(row, run), source)
            _refuse(found)
            used.append(found)
        except runs.Unusable as reason:
            unused[str(reason)] += 1
    return used, unused


def _refuse(sample: Sample) -> None:
    """Raise `Unusable` for a layout that can't be, of a model that we know, and for seconds in a wrong unit."""
    model, machine, layout_ = sample.run
    if not model.name.startswith("like ") and (refused := refuse_axes(model, machine, layout_)):
        raise runs.Unusable(refused[1])
    if wrong := fitted.wrong_unit(sample.seconds, costs.step(*sample.run).seconds):
        raise runs.Unusable(wrong)


# --- fitting, and judging what a fit did not see ------------------------------------------------------------------


def seconds(used: Sequence[Sample], constants: Constants) -> np.ndarray:
    """Return the predicted seconds [sample], or [sample, column] for constants that are arrays [column]."""
    columns = np.shape(constants.launch)
    steps = (costs.step(*each.run, kernels=Fitted(each.run.machine.spec, constants)).seconds for each in used)
    return np.array([np.broadcast_to(step, columns) for step in steps])


def errors_of(used: Sequence[Sample], constants: Constants = FITTED) -> np.ndarray:
    """Return log(predicted / measured) of each sample."""
    return np.log(seconds(used, constants)) - np.log([sample.seconds for sample in used])


def refit(used: Sequence[Sample], start: Constants | None = None, steps: int = 15) -> Constants:
    """Return the constants that fit best. A source of n rows weighs as much as sqrt(n) rows."""
    rows = Counter(sample.source for sample in used)
    weights = np.array([rows[sample.source] ** -0.5 for sample in used])
    measured = np.array([sample.seconds for sample in used])
    predicted = lambda constants: seconds(used, constants)  # noqa: E731
    return fitted.fit(Constants, predicted, measured, weights / weights.mean(), TYPICAL, start, steps=steps)


def judge(used: Sequence[Sample]) -> dict[str, np.ndarray]:
    """Return the errors by constants fitted without the run's repository, and for NVIDIA's recipes without them all."""
    theirs = np.array([of_nvidia(sample) for sample in used])
    others = refit([sample for sample in used if not of_nvidia(sample)])
    return {
        REPOSITORY: unseen(used),
        NARROW: unseen([in_bf16(sample) for sample in used]),
        NVIDIA: np.where(theirs, errors_of(used, others), np.nan),
    }


def unseen(used: Sequence[Sample]) -> np.ndarray:
    """Return the error of each sample by constants fitted without its repository."""
    constants = fitted.without(used, refit)
    return np.array([errors_of([sample], constants[repository(sample.source)])[0] for sample in used])


def in_bf16(sample: Sample) -> Sample:
    """Return a run with gradients reduced in bf16 if it is a recipe of NVIDIA's for speed, else as it is.

    `runs` prices them in fp32, as Megatron-LM does by default. But NeMo's and Megatron-Bridge's performance recipes set
    `grad_reduce_in_fp32 = False`: those of Llama 3, Nemotron-4, Mixtral, DeepSeek-V3 and GPT OSS do.
    """
    layout = sample.run.layout
    if not of_nvidia(sample) or "Megatron-LM" in sample.source or layout.software.stack != "fused":
        return sample
    narrow = replace(layout, software=replace(layout.software, gradient_bytes=2))
    return sample._replace(run=sample.run._replace(layout=narrow))


def of_nvidia(sample: Sample) -> bool:
    """Return whether a run follows one of NVIDIA's recipes, whoever ran it."""
    return "NVIDIA" in sample.source or "dgxc" in sample.source


def baseline(used: Sequence[Sample]) -> np.ndarray:
    """Return the errors of what one knows without a planner: the median MFU of like runs of other repositories.

    Like runs have the same GPU, precision and kind of model; where there are none, the same GPU; else they are all.
    """
    at_peak = {id(each): each.run.model.flops(each.run.tokens) / each.run.machine.peak for each in used}
    found = []
    for sample in used:
        others = [each for each in used if repository(each.source) != repository(sample.source)]
        near = [each for each in others if gpu(each) == gpu(sample)]
        like = [each for each in near if (precision(each), experts(each)) == (precision(sample), experts(sample))]
        mfu = [at_peak[id(each)] / each.seconds for each in like or near or others]
        found.append(np.log(at_peak[id(sample)] / np.median(mfu) / sample.seconds) if mfu else np.nan)
    return np.array(found)


def gather(rows: Iterable[runs.Row], leave_out: bool) -> Evidence:
    """Return the evidence of rows. `leave_out`: fit again without each repository, which takes a minute."""
    used, unused = samples(rows)
    return Evidence(used, unused, {NOTHING: errors_of(used)} | (judge(used) if leave_out else {}))


def record(evidence: Evidence, path: Path = LEFT_OUT) -> None:
    """Write the errors of rows that were left out to a file."""
    rows = {
        what: {sample.row["id"]: [e] for sample, e in zip(evidence.used, found, strict=True) if np.isfinite(e)}
        for what, found in evidence.errors.items()
        if what != NOTHING
    }
    fitted.record(path, digest(), rows)


def recorded(path: Path = LEFT_OUT) -> Evidence:
    """Return the evidence of the book's rows, with the recorded errors of rows that were left out.

    Raises `ValueError` if they were made from other rows, by other constants or by other formulas.
    """
    rows, found = fitted.recorded(path, digest()), gather(load(), leave_out=False)
    names, nan = [sample.row["id"] for sample in found.used], [np.nan]
    more = {what: np.array([by_name.get(name, nan)[0] for name in names]) for what, by_name in rows.items()}
    return found._replace(errors=found.errors | more)


def digest() -> str:
    """Return what changes if the published runs change, or any constant, guess or formula."""
    return fitted.digest(ROWS, (*FORMULAS, sys.modules[__name__]))


def load(path: Path = ROWS) -> list[runs.Row]:
    """Return the rows of a file. Raises `ValueError` if it holds no list."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(rows, list):
        raise ValueError("it is no list of runs")
    return rows


# --- groups -----------------------------------------------------------------------------------------------------


def gpu(sample: Sample) -> str:
    """Return the kind of GPU."""
    return sample.run.machine.name


def precision(sample: Sample) -> str:
    """Return the precision of products."""
    return sample.run.layout.software.precision


def experts(sample: Sample) -> str:
    """Return "experts" or "dense"."""
    return runs.kind(sample.run.model)


def way(sample: Sample) -> str:
    """Return "FSDP" if parameters are sharded, else "Megatron-like", with the kernels' kind."""
    sharded = "FSDP" if sample.run.layout.stage == 3 else "Megatron-like"
    return f"{sharded}, {sample.run.layout.software.stack}"


KINDS: Mapping[str, Callable[[Sample], str]] = {
    "model": experts,
    "way": way,
    "precision": precision,
    "GPU": gpu,
    "repository": lambda sample: repository(sample.source),
}


def by(evidence: Evidence, of: np.ndarray, kind: str) -> dict[str, Errors]:
    """Return the summary of errors of each group of a kind, a key of `KINDS`; the groups with most rows first."""
    names = np.array([KINDS[kind](sample) for sample in evidence.used])
    return {str(name): errors(of[names == name]) for name, _ in Counter(names).most_common()}


# --- text -------------------------------------------------------------------------------------------------------


def report(evidence: Evidence) -> str:
    """Return all tables as text."""
    lines = [f"{len(evidence.used)} rows used, {evidence.unused.total()} not:"]
    lines += [f"{count:5}  {reason}" for reason, count in evidence.unused.most_common()]
    if not evidence.used:
        return "\n".join(lines)
    lines += ["", "the median MFU of like runs, as a prediction:", _line("all", errors(baseline(evidence.used)))]
    for what, found in evidence.errors.items():
        lines += _table(f"left out of the fit: {what}", evidence, found)
    return "\n".join([*lines, *_memory(evidence.used)])


def _table(title: str, evidence: Evidence, found: np.ndarray) -> list[str]:
    lines = ["", f"{title}: {'rows':>5} {'median':>7} {'90 %':>6} {'in 25 %':>8} {'bias':>6}"]
    lines.append(_line("all", errors(found)))
    for kind in KINDS:
        lines += [f"by {kind}", *(_line(name, each) for name, each in by(evidence, found, kind).items())]
    worst = np.argsort(-np.abs(np.nan_to_num(found)))[:5]
    return [*lines, "worst five", *(_row(evidence.used[place], found[place]) for place in worst)]


def _line(name: str, found: Errors) -> str:
    figures = f"{found.number:5} {found.median:7.1%} {found.ninety:6.0%} {found.near:8.0%} {found.bias:+6.0%}"
    return f"  {figures}  {name}"


def _row(sample: Sample, error: float) -> str:
    row, run = sample.row, sample.run
    predicted = sample.seconds * np.exp(error)
    figures = f"{np.expm1(error):+5.0%}  {sample.seconds:.3g} s measured, {predicted:.3g} s predicted"
    return f"  {figures}: {row['model']}, {row['n_gpus']} {row['gpu']}, {row['precision']}, {run.layout} ({row['id']})"


def _memory(used: Sequence[Sample]) -> list[str]:
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
