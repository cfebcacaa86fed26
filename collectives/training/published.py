"""Figures of papers next to the planner's predictions: source, both figures, relative error.

None of these runs was used to fit the kernels' constants, except the faster ones of Korthikanti, Table 5. Figures are
as printed in the source. Where a source is silent, our choice is documented here. `runs` reads rows of other runs, and
the command below judges the planner on them.

Narayanan: D. Narayanan et al., “Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM”, SC
2021, arXiv 2104.04473. Korthikanti: V. Korthikanti et al., “Reducing Activation Recomputation in Large Transformer
Models”, MLSys 2023, arXiv 2205.05198. Llama: “The Llama 3 Herd of Models”, 2024, arXiv 2407.21783v3. DeepSeek:
“DeepSeek-V3 Technical Report”, 2024, arXiv 2412.19437. Mixtral: A. Jiang et al., “Mixtral of Experts”, 2024.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from .. import fitted
from ..machines import MACHINES, Cluster
from . import evidence
from .costs import Layout, kept, memory, passes, step
from .kernels import FITTED, Constants, Fitted
from .registry import MODELS
from .runs import Prediction, Run, predict
from .software import Software

__all__ = ["Check", "Prediction", "Run", "checks", "main", "predict", "table"]


THEN = Software(hides_tensor=False)  # of 2021 and 2022: Megatron-LM overlapped no collectives of tensor parallelism


class Check(NamedTuple):
    """A figure, `what`, as published in `source` and as predicted.

    `bound`: the relative error that we guarantee; None where the planner is known to be wrong.
    """

    source: str
    what: str
    unit: str
    published: float
    predicted: float
    bound: float | None

    @property
    def error(self) -> float:
        """The relative error of the prediction: positive if it is above the published figure."""
        return self.predicted / self.published - 1


def checks() -> list[Check]:
    """Return all checks."""
    return [*parameters(), *megatron_2021(), *zero_3(), *megatron_2022(), *llama_3(), *deepseek_v3()]


def table(rows: Iterable[Check]) -> str:
    """Return the checks as a text table: published, predicted, error."""
    lines = [f"{'published':>9} {'predicted':>9} {'error':>7}  what"]
    for row in rows:
        what = f"{row.what}, {row.unit} ({row.source})"
        lines.append(f"{row.published:9.4g} {row.predicted:9.4g} {row.error:+7.1%}  {what}")
    return "\n".join(lines)


# --- parameters -------------------------------------------------------------------------------------------------

_BILLIONS = {
    "gpt3-175b": (174.6, "Narayanan, Table 2"),
    "llama-3-405b": (405, "Llama, section 1"),
    "mixtral-8x7b": (47, "Mixtral, section 1"),
    "deepseek-v3": (671, "DeepSeek, section 1"),
}
_ACTIVE_BILLIONS = {"mixtral-8x7b": (13, "Mixtral, section 1"), "deepseek-v3": (37, "DeepSeek, section 1")}


def parameters() -> Iterator[Check]:
    """Yield checks of a model's parameters, all and per token. Bounds: what rounding in the source explains."""
    for name, billions, *_ in _TABLE_1:
        predicted = MODELS[f"megatron-{name}"].parameters / 1e9
        yield Check("Narayanan, Table 1", f"{name}: parameters", "billion", billions, predicted, 0.03)
    for name, (billions, source) in _BILLIONS.items():
        yield Check(source, f"{name}: parameters", "billion", billions, MODELS[name].parameters / 1e9, 0.01)
    for name, (billions, source) in _ACTIVE_BILLIONS.items():
        predicted = MODELS[name].active_parameters / 1e9
        yield Check(source, f"{name}: parameters that a token uses", "billion", billions, predicted, 0.02)


# --- Megatron-LM ------------------------------------------------------------------------------------------------

# Narayanan, Table 1: name, parameters in billions, tp, pp, GPUs, sequences per batch, teraFLOP/s per GPU.
_TABLE_1 = (
    ("1.7b", 1.7, 1, 1, 32, 512, 137),
    ("3.6b", 3.6, 2, 1, 64, 512, 138),
    ("7.5b", 7.5, 4, 1, 128, 512, 142),
    ("18b", 18.4, 8, 1, 256, 1024, 135),
    ("39b", 39.1, 8, 2, 512, 1536, 138),
    ("76b", 76.1, 8, 4, 1024, 1792, 140),
    ("145b", 145.6, 8, 8, 1536, 2304, 148),
    ("310b", 310.1, 8, 16, 1920, 2160, 155),
    ("530b", 529.6, 8, 35, 2520, 2520, 163),
    ("1t", 1008.0, 8, 64, 3072, 3072, 163),
)


def megatron_2021(a100: Cluster = MACHINES["a100"]) -> Iterator[Check]:
    """Yield checks of Narayanan, Tables 1 and 2: teraFLOP/s of an A100 with full recomputation (equation 3).

    The constants come from kernels that are a year or more younger, so the planner is too fast by a twentieth. Table 1
    gives no micro-batches and no interleaving, so we use the fastest that fit. Table 2 has micro-batches of 1 and
    model-parallel sizes of 96 and 280: here tp 8, and the rest pp.
    """
    for name, _, tp, pp, gpus, batch, published in _TABLE_1:
        run = Run(MODELS[f"megatron-{name}"], a100.of(gpus // 8), Layout(gpus // tp // pp, tp, pp, software=THEN))
        predicted = max(map(_hardware_teraflops, _ways(run, batch)))
        yield Check("Narayanan, Table 1", f"{name} on {gpus} GPUs", "TFLOP/s a GPU", published, predicted, 0.17)
    rows = (
        ("gpt3-175b", 12, 1536, ((384, 153), (768, 149), (1536, 141))),
        ("megatron-530b", 35, 2240, ((560, 171), (1120, 167), (2240, 159))),
    )
    for name, pp, batch, measured in rows:
        for gpus, published in measured:
            run = Run(MODELS[name], a100.of(gpus // 8), Layout(gpus // 8 // pp, 8, pp, software=THEN))
            predicted = max(map(_hardware_teraflops, _ways(run, batch, micro_batches=(1,))))
            yield Check("Narayanan, Table 2", f"{name} on {gpus} GPUs", "TFLOP/s a GPU", published, predicted, 0.16)


def zero_3(constants: Constants = FITTED) -> Iterator[Check]:
    """Yield checks of Narayanan, Table 2: ZeRO stage 3 without any other axis, as in DeepSpeed in 2021.

    Here the planner is wrong, and more so with fewer sequences per GPU. That it hides gathers explains little: with
    `data=1`, as if nothing were hidden, it is wrong by nearly as much.
    """
    rows = (
        ("gpt3-175b", 1536, ((384, 4, 144), (768, 2, 88), (1536, 1, 44))),
        ("megatron-530b", 2560, ((640, 4, 138),)),
        ("megatron-530b", 2240, ((1120, 2, 98), (2240, 1, 48))),
    )
    for name, batch, measured in rows:
        for gpus, micro_batch, published in measured:
            layout = Layout(gpus, stage=3, micro_batch=micro_batch, num_micro_batches=batch // gpus // micro_batch)
            run = Run(MODELS[name], MACHINES["a100"].of(gpus // 8), replace(layout, recompute="full"))
            what = f"{name} by ZeRO-3 alone on {gpus} GPUs"
            predicted = _hardware_teraflops(run, constants)
            yield Check("Narayanan, Table 2", what, "TFLOP/s a GPU", published, predicted, None)


# Korthikanti, Tables 3 and 5, with tp 8: name, pp, interleave, GPUs, sequences per batch and per micro-batch, and the
# seconds per step, first with full recomputation, then with selective recomputation and sequence parallelism.
_TABLE_5 = (
    ("megatron-22b", 1, 1, 8, 4, 4, 1.42, 1.10),
    ("gpt3-175b", 8, 3, 64, 64, 1, 18.13, 13.75),
    ("megatron-530b", 35, 3, 280, 280, 1, 49.05, 37.83),
    ("megatron-1t", 64, 1, 512, 512, 1, 94.42, 71.49),
)


UTILISATION_2022 = {"megatron-22b": 0.415, "gpt3-175b": 0.514, "megatron-530b": 0.560, "megatron-1t": 0.563}
"""Korthikanti, Table 5: model FLOPs of the faster runs over the A100's peak. They follow from the seconds."""


def megatron_2022() -> Iterator[Check]:
    """Yield checks of Korthikanti, Tables 3 and 5 and section 5: seconds per step, and activation memory.

    The utilisation of the faster runs is among the rows that the constants are fitted to.
    """
    for name, pp, interleave, gpus, batch, micro_batch, full, present in _TABLE_5:
        dp = gpus // 8 // pp
        layout = Layout(dp, 8, pp, micro_batch=micro_batch, num_micro_batches=batch // dp // micro_batch)
        layout = replace(layout, interleave=interleave, software=THEN)
        after = replace(layout, recompute="selective", sequence_parallel=True)
        model, machine = MODELS[name], MACHINES["a100"].of(gpus // 8)
        before = replace(layout, recompute="full")
        slow, fast = (step(model, machine, way).seconds for way in (before, after))
        source = "Korthikanti, Table 5"
        yield Check(source, f"{name}: a step, full recomputation", "s", full, slow, 0.15)
        yield Check(source, f"{name}: a step, selective and sequence parallel", "s", present, fast, 0.15)
        yield Check(source, f"{name}: full over selective", "times", full / present, slow / fast, 0.12)
    for name, published in (("gpt3-175b", 0.70), ("megatron-530b", 0.65)):
        keeps = {how: sum(MODELS[name].kept[how]) for how in ("none", "selective")}
        saved = 1 - keeps["selective"] / keeps["none"]
        yield Check("Korthikanti, section 5", f"{name}: activations not kept", "of all", published, saved, 0.02)
    for name in ("gpt3-175b", "megatron-530b"):
        before = kept(MODELS[name], Layout(tp=8), "none")
        after = kept(MODELS[name], Layout(tp=8, sequence_parallel=True), "selective")
        yield Check("Korthikanti, abstract", f"{name}: less activation memory", "times", 5, before / after, 0.1)


def _ways(run: Run, batch: int, micro_batches: tuple[int, ...] = (1, 2, 4, 8)) -> Iterator[Run]:
    """Yield the run with full recomputation, for every micro-batch and interleaving that divides evenly and fits."""
    model, machine, layout = run
    for micro_batch in micro_batches:
        count, left = divmod(batch, layout.dp * micro_batch)
        for interleave in range(1, model.layers // layout.pp + 1 if layout.pp > 1 else 2):
            uneven = left or model.layers % (layout.pp * interleave) or (interleave > 1 and count % layout.pp)
            way = replace(layout, micro_batch=micro_batch, num_micro_batches=count, interleave=interleave)
            way = replace(way, recompute="full")
            if not uneven and memory(model, way).total <= machine.spec.memory:
                yield Run(model, machine, way)


def _hardware_teraflops(run: Run, constants: Constants = FITTED) -> float:
    return step(*run, kernels=Fitted(run.machine.spec, constants)).hardware_flops_per_second / 1e12


# --- Llama 3 ----------------------------------------------------------------------------------------------------


def llama_3_runs(h100: Cluster = MACHINES["h100"]) -> list[tuple[Run, float]]:
    """Return the runs of Llama, Table 4, each with its TFLOP/s per GPU.

    FSDP "shards optimizer states and gradients". We use stage 1: in fp32, scattering the gradients of every micro-batch
    would take longer than its backward pass. Interleaving is 8: the first chunk has "only the embedding" because one
    layer was removed, so there are 128 chunks of one layer (section 3.3.2).
    """
    model = MODELS["llama-3-405b"]
    layout = Layout(64, 8, 16, stage=1, sequence_parallel=True, num_micro_batches=32, interleave=8)
    long = replace(model, sequence=131072)
    return [
        (Run(model, h100.of(1024), layout), 430),
        (Run(model, h100.of(2048), replace(layout, dp=128, num_micro_batches=16)), 400),
        (Run(long, h100.of(2048), replace(layout, dp=8, cp=16, num_micro_batches=16)), 380),
    ]


def llama_3() -> Iterator[Check]:
    """Yield checks of Llama, Table 4, and that the runs fit without recomputation.

    The planner is too fast: it knows no stragglers, no failures and no oversubscribed spine of 16,384 GPUs. We take the
    TFLOP/s to count half of the attention scores. The MFU that the source cites, PaLM's, counts all. If Llama's does,
    the planner is half as fast again as the long run.
    """
    for (model, machine, layout), published in llama_3_runs():
        predicted = step(model, machine, layout).flops_per_second / 1e12
        what = f"405B on {machine.world_size} GPUs, cp {layout.cp}"
        yield Check("Llama, Table 4", what, "TFLOP/s a GPU", published, predicted, 0.18)
    for (model, machine, layout), _ in llama_3_runs():
        what = f"405B on {machine.world_size} GPUs, cp {layout.cp}: held"
        yield _fits("Llama, section 3.3.2", what, Run(model, machine, layout))


def _fits(source: str, what: str, run: Run) -> Check:
    """Return a check of what a rank holds against what its GPU leaves to training. The source says that it fits."""
    held = memory(run.model, run.layout).total / 1e9
    return Check(source, what, "GB of at most", run.machine.usable / 1e9, held, 0.2)


# --- DeepSeek-V3 ------------------------------------------------------------------------------------------------


def deepseek_v3_run() -> Run:
    """Return the run of DeepSeek, sections 3.2 and 4.2: 2,048 H800, pp 16, ep 64, stage 1, no tp.

    It trains on 15,360 sequences of 4,096. The source doesn't give the micro-batch; we use 1. DualPipe hides the
    all-to-alls; we use the bubble of 1F1B for it.
    """
    layout = Layout(128, 1, 16, ep=64, stage=1, num_micro_batches=120, recompute="selective", hide_experts=True)
    layout = replace(layout, software=Software("fp8", dispatch_bytes=1))
    return Run(MODELS["deepseek-v3"], MACHINES["h800"].of(256), layout)


def deepseek_v3() -> Iterator[Check]:
    """Yield checks of DeepSeek, sections 1 and 3.2.1: GPU hours per trillion tokens, and communication over compute.

    Like the run, the prediction multiplies in FP8 and sends tokens to experts in FP8, to at most four nodes each. The
    kernels' constants are those of Megatron's recipes.
    """
    model, machine, layout = run = deepseek_v3_run()
    hours = step(*run).seconds * machine.world_size / 3600 / (layout.batch * model.sequence) * 1e12
    yield Check("DeepSeek, section 1", "GPU hours for a trillion tokens", "thousand", 180, hours / 1e3, 0.1)
    forward, backward = passes(model, machine, replace(layout, hide_experts=False))
    ratio = (forward.expert + backward.expert) / (forward.compute + backward.compute)
    yield Check("DeepSeek, section 3.2.1", "all-to-alls over computing", "", 1, ratio, 0.25)
    yield _fits("DeepSeek, section 3.2", "671B on 2048 GPUs: held", run)


# --- the command ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: print how well the planner predicts a file's runs. The exit code is 2 for a file that isn't one.

    The planner's own rows are also predicted by constants fitted without their repository; that is recorded.
    """
    parser = argparse.ArgumentParser(prog="python -m collectives.training.published", description=evidence.__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=evidence.ROWS, help="rows as JSON (the book's)")
    options = parser.parse_args(arguments)
    try:
        rows = evidence.load(options.file)
    except (OSError, ValueError) as error:
        parser.error(f"{options.file} holds no rows: {error}")
    own = options.file.resolve() == evidence.ROWS.resolve()
    found = evidence.gather(rows, leave_out=own)
    if own:
        print(fitted.table(evidence.refit(found.used)))
        evidence.record(found)
    print(evidence.report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
