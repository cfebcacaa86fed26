"""Rows of published training runs, as files give them, read into the planner's words: model, machine, layout.

    run = read(row)                 # raises `Unusable` with the one reason why a row can't be used
    predict(row).seconds            # what the planner says; `measured(row, run)` is what the source says

A row is a dict with the keys `model`, `params_b`, `gpu`, `n_gpus`, `layout`, `micro_batch`, `global_batch`, `seq`,
`precision`, `recompute`, `metric`, `notes`, `source` and `also`; any may be None. What a row leaves out gets the value
that recipes of its kind use, by rules that this file states. No rule looks at what was measured, except that the batch
follows from seconds and TFLOP/s where a source prints both instead of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..machines import MACHINES, Cluster
from . import costs
from .costs import Layout
from .models import Model
from .registry import MODELS
from .software import Software

Row = Mapping[str, Any]


class Unusable(ValueError):
    """A row can't be used, for the reason given."""


class Run(NamedTuple):
    """A published run: a model, the machine with its number of nodes, and the layout."""

    model: Model
    machine: Cluster
    layout: Layout

    @property
    def tokens(self) -> float:
        """Tokens that one GPU takes in a step."""
        return self.layout.batch * self.model.sequence / self.layout.world_size


class Prediction(NamedTuple):
    """The planner's answer: seconds of a step, its throughput, and the relative standard deviation of both."""

    seconds: float
    tokens_per_s_per_gpu: float
    relative_sigma: float


def predict(row: Row) -> Prediction:
    """Return the planner's prediction for a row. Raises `Unusable` if the row says too little."""
    run = read(row)
    step = costs.step(*run)
    return Prediction(step.seconds, run.tokens / step.seconds, step.sigma)


def kind(model: Model) -> str:
    """Return "experts" for a model with experts, else "dense"."""
    return "experts" if model.experts else "dense"


def read(row: Row) -> Run:
    """Return the run that a row describes. Raises `Unusable` with the reason if it can't be known."""
    _refuse_values(row)
    ranks = row.get("n_gpus") or _KNOWN_RANKS.get(str(row.get("model")))
    if not ranks:
        raise Unusable("the number of GPUs isn't given")
    model, machine = _model(row), _machine(row, ranks)
    return Run(model, machine, _layout(row, model, machine, ranks))


def _refuse_values(row: Row) -> None:
    """Raise `Unusable` for what is no row or no number, and for a unit that leaves open what was measured."""
    if not isinstance(row, Mapping):
        raise Unusable(f"a run is an object with model, gpu, layout, metric and so on, not {row!r}")
    layout, also, metric = row.get("layout") or {}, row.get("also") or {}, row.get("metric")
    if not isinstance(metric, Mapping):
        raise Unusable(f"its metric must be an object with a value and a unit, not {metric!r}")
    if not isinstance(layout, Mapping) or not isinstance(also, Mapping):
        raise Unusable(f"its layout must be an object with tp, pp and so on, not {layout!r}")
    whole = {name: row.get(name) for name in ("n_gpus", "seq", "global_batch", "micro_batch")}
    whole |= {name: layout.get(name) for name in ("dp", "tp", "pp", "cp", "ep", "vpp")}
    for name, given in whole.items():
        if given and not (isinstance(given, int | float) and given > 0 and given == int(given)):
            raise Unusable(f"its {name} must be a whole number from 1 on, not {given!r}")
    above = {"value": metric.get("value"), "params_b": row.get("params_b"), "step_time_ms": also.get("step_time_ms")}
    for name, given in above.items():
        if (given is not None or name == "value") and not (isinstance(given, int | float) and 0 < given < math.inf):
            raise Unusable(f"its {name} must be a number above 0, not {given!r}")
    if metric.get("scores") not in (None, "half", "all"):
        raise Unusable(f'its metric\'s scores must be "half" or "all", not {metric["scores"]!r}')
    if "rank log" in str(row["metric"].get("unit")):
        raise Unusable("a rank's log of tokens/s doesn't say whose tokens: the GPU's or the pipeline's")


# --- the machine ------------------------------------------------------------------------------------------------


def _machine(row: Row, ranks: int) -> Cluster:
    """Return the cluster. A job smaller than a node has a small node, and 72 GPUs of an NVL72 are one domain."""
    machine = _node(str(row.get("gpu")))
    per_node = machine.gpus_per_node
    if per_node > 8 and ranks % per_node and ranks % 72 == 0:
        per_node = 72
    per_node = min(per_node, ranks)
    return replace(machine, nodes=math.ceil(ranks / per_node), gpus_per_node=per_node, nics_per_node=per_node)


def _node(text: str) -> Cluster:
    """Return a node of the GPU that a text names, such as "H100-96GB HBM2e 500W". An "Ampere" is an A100."""
    lower = text.lower()
    names = sorted(MACHINES, key=len, reverse=True)
    found = next((name for name in names if name in lower.replace(" ", "-")), None)
    found = found or ("a100" if "ampere" in lower else "h100" if "hopper" in lower else None)
    if found is None:
        raise Unusable(f"the GPU {text!r} isn't known")
    node, watts = MACHINES[found], re.search(r"(\d{3,4}) ?w\b", lower)
    return replace(node, tuned=node.spec._replace(watts=float(watts[1]))) if watts else node


# --- the model --------------------------------------------------------------------------------------------------

# What a name must contain, and how the registry's names of that family begin.
_FAMILIES = (
    (r"maverick", "llama-4-maverick"),
    (r"scout|llama ?4", "llama-4-scout"),
    (r"llama ?3", "llama-3"),
    (r"llama ?2", "llama-2"),
    (r"llama", "llama-"),
    (r"mixtral", "mixtral"),
    (r"mistral", "mistral"),
    (r"qwen ?3 ?next", "qwen-3-next"),
    (r"qwen ?3", "qwen-3"),
    (r"qwen", "qwen-2.5"),
    (r"gpt ?oss", "gpt-oss"),
    (r"nemotron ?3 ?nano|nano ?3", "nemotron-3-nano"),
    (r"nemotron ?3 ?super", "nemotron-3-super"),
    (r"nemotron ?h", "nemotron-h"),
    (r"nemotron", "nemotron-"),
    (r"deepseek ?v?2 ?lite", "deepseek-v2-lite"),
    (r"deepseek ?v?2", "deepseek-v2"),
    (r"deepseek", "deepseek-v3"),
    (r"kimi|\bk2\b", "kimi-k2"),
    (r"moonlight", "moonlight"),
    (r"grok", "grok-1"),
    (r"mpt", "mpt"),
    (r"bloom", "bloom"),
    (r"\bopt\b", "opt"),
    (r"falcon", "falcon"),
    (r"palm", "palm"),
    (r"gemma", "gemma"),
    (r"phi", "phi"),
    (r"olmoe", "olmoe"),
    (r"olmo", "olmo-2"),
    (r"dbrx", "dbrx"),
    (r"gpt|megatron", "gpt|megatron"),
)
_ALONE = ("llama-4", "nemotron-3", "deepseek", "kimi", "grok", "moonlight", "dbrx", "olmoe", "qwen-3-next")
SAME = math.log(1.25)  # sizes this near are the same model


def _model(row: Row) -> Model:
    """Return the model of a row at its sequence length: the registry's nearest, or one of its kind scaled in depth."""
    words = re.sub(r"[_\-.]+", " ", str(row.get("model")).lower().replace("3.1", "3").replace("3.3", "3"))
    size, active = _size(row, words)
    prefix = next((prefix for pattern, prefix in _FAMILIES if re.search(pattern, words)), "")
    family = [model for name, model in MODELS.items() if any(name.startswith(p) for p in prefix.split("|"))]
    if prefix.startswith(_ALONE) and len(family) == 1:
        found = family[0]
    elif size is None:
        raise Unusable(f"the model {row.get('model')!r} isn't known, and its size isn't given")
    else:
        found = _nearest(family, size, active) if family and prefix else _scaled(size, active)
        if abs(math.log(found.parameters / size)) > SAME:
            found = _scaled(size, active)
    return _at_length(row, found)


def _size(row: Row, words: str) -> tuple[float | None, float | None]:
    """Return the parameters in all and per token, from the name ("30b a3b") or else from `params_b`."""
    active = re.search(r"\ba(\d+(?: \d+)?)b", words)
    sizes = re.findall(r"(?<![a\d])(\d+(?: \d)?)(b|t)\b", words)
    given = row.get("params_b")
    named = float(sizes[0][0].replace(" ", ".")) * (1e9 if sizes[0][1] == "b" else 1e12) if sizes else None
    size = given * 1e9 if given else named
    return size, float(active[1].replace(" ", ".")) * 1e9 if active else None


def _nearest(models: list[Model], size: float, active: float | None) -> Model:
    def apart(model: Model) -> float:
        far = abs(math.log(model.parameters / size))
        return far if active is None else far + abs(math.log(model.active_parameters / active))

    return min(models, key=apart)


def _scaled(size: float, active: float | None) -> Model:
    """Return a model of this size: the nearest Llama, or model with experts, with more or fewer layers."""
    sparse = [model for model in MODELS.values() if model.experts and not model.mamba_layers and not model.dense_layers]
    dense = [model for name, model in MODELS.items() if name.startswith(("llama-2", "llama-3"))]
    like = _nearest(sparse if active else dense, size, active)
    ends = like.embedding + like.head
    layers = max(1, round(like.layers * (size - ends) / (like.parameters - ends))) if size > ends else like.layers
    return replace(like, name=f"like {like.name}", layers=layers)


def _at_length(row: Row, model: Model) -> Model:
    """Return the model at the row's sequence length.

    Only runs that recompute attention selectively write its scores to memory, as in 2022; all others have
    FlashAttention.
    """
    length = row.get("seq")
    if length is None and row["metric"].get("unit") == "s":
        raise Unusable("a step's seconds need its sequence length, which isn't given")
    of_2022 = model.classic and "selective" in str(row.get("recompute"))
    return replace(model, sequence=length or model.sequence, classic=of_2022)


# --- the layout -------------------------------------------------------------------------------------------------

# Korthikanti et al., 2022, Table 3: ranks, pp, interleave, sequences per batch and per micro-batch, with tp 8.
_KNOWN = {
    "GPT 22B": (8, 1, 1, 4, 4),
    "GPT 175B": (64, 8, 3, 64, 1),
    "GPT 530B": (280, 35, 3, 280, 1),
    "GPT 1T": (512, 64, 1, 512, 1),
}
_KNOWN_RANKS = {name: ranks for name, (ranks, *_) in _KNOWN.items()}

# The usual recipe where a row has none: NVIDIA/dgxc-benchmarking and NVIDIA-NeMo/Megatron-Bridge, scripts/performance.
_RECIPES: dict[str, dict[str, Any]] = {
    "llama-3-8b": {"micro_batch": 2},
    "llama-3-70b": {"micro_batch": 2, "stage": 3},
    "llama-3-70b nvfp4": {"pp": 4, "interleave": 5},
    "llama-3-405b": {"tp": 4, "pp": 8, "interleave": 4},
    "nemotron-4-15b": {"micro_batch": 2},
    "nemotron-4-340b": {"tp": 8, "pp": 4, "interleave": 12},
    "nemotron-h-56b": {"tp": 2},
    "qwen-3-30b-a3b": {"ep": 8, "micro_batch": 8},
    "qwen-3-235b-a22b": {"ep": 64, "micro_batch": 2},
    "gpt-oss-120b": {"ep": 64, "micro_batch": 4},
    "deepseek-v3": {"pp": 4, "interleave": 4, "ep": 64},
    "kimi-k2": {"pp": 4, "interleave": 4, "ep": 64, "micro_batch": 2},
}


def _layout(row: Row, model: Model, machine: Cluster, ranks: int) -> Layout:
    """Return the layout of a row. dp is what the other axes leave of the ranks."""
    given, software = row.get("layout") or {}, _software(row, machine)
    usual = _usual(row, model, machine, given, software)
    tp, pp, cp = (given.get(axis) or usual.get(axis) or 1 for axis in ("tp", "pp", "cp"))
    if ranks % (tp * pp * cp):
        raise Unusable(f"{ranks} GPUs don't divide by tp {tp} x pp {pp} x cp {cp}")
    dp = ranks // (tp * pp * cp)
    ep = min(given.get("ep") or usual.get("ep") or 8, dp * tp * cp) if model.experts else 1
    interleave = (given.get("vpp") or usual.get("interleave") or 1) if pp > 1 else 1
    micro_batch, count = _batch(row, model, dp, pp, row.get("micro_batch") or usual.get("micro_batch") or 1)
    return Layout(
        dp, tp, pp, ep, cp, _stage(given, usual, dp * cp), tp > 1, micro_batch, count, interleave,
        _recompute(row, model, software), software=software,
    )  # fmt: skip


def _usual(row: Row, model: Model, machine: Cluster, given: Row, software: Software) -> dict[str, Any]:
    """Return what recipes use for a row without a layout: a known one, else the least tp and pp whose state fits."""
    if row.get("model") in _KNOWN and not row.get("n_gpus"):
        _, pp, interleave, _, micro_batch = _KNOWN[row["model"]]
        return {"tp": 8, "pp": pp, "interleave": interleave, "micro_batch": micro_batch}
    if any(given.get(axis) for axis in ("tp", "pp", "cp", "shard")):
        return {}
    name = f"{model.name} {software.precision}"
    if (recipe := _RECIPES.get(name) or _RECIPES.get(model.name)) is not None:
        return recipe
    ways = ((tp, pp) for pp in (1, 2, 4, 8, 16) for tp in (1, 2, 4, 8) if machine.world_size % (tp * pp) == 0)
    ep = min(8, machine.world_size) if model.experts else 1
    for tp, pp in ways:
        ranks = machine.world_size // (tp * pp)
        layout = Layout(ranks, tp, pp, min(ep, ranks), stage=1, sequence_parallel=tp > 1, recompute="selective")
        if costs.memory(model, layout).total <= machine.usable:
            return {"tp": tp, "pp": pp, "ep": min(ep, ranks)}
    return {"stage": 3}


def _batch(row: Row, model: Model, dp: int, pp: int, micro_batch: int) -> tuple[int, int]:
    """Return sequences per micro-batch, and micro-batches per step and rank.

    A row without a batch has the one that its seconds and TFLOP/s imply. If it has neither, a step has four rounds of
    the pipeline, which hardly matters for tokens per second.
    """
    batch = row.get("global_batch") or _KNOWN.get(str(row.get("model")), (0,) * 5)[3]
    if not batch:
        batch = _implied_batch(row, model)
    if not batch and row["metric"].get("unit") == "s":
        raise Unusable("a step's seconds need its batch, which isn't given")
    if not batch:
        return micro_batch, 4 * pp
    if batch % (dp * micro_batch):
        micro_batch = 1
    return micro_batch, max(1, round(batch / (dp * micro_batch)))


def _implied_batch(row: Row, model: Model) -> int:
    """Return the sequences that a step's printed FLOPs need, as the source counts; 0 if the row lacks either."""
    also, value = row.get("also") or {}, row["metric"].get("value")
    seconds, rate = also.get("step_time_ms"), value if "TFLOP" in str(row["metric"].get("unit")) else None
    if not seconds or not rate or not row.get("n_gpus"):
        return 0
    a_gpu = rate * 1e12 * seconds / 1e3 / _flops(row, model, model.sequence, "half")
    return row["n_gpus"] * max(1, round(a_gpu))


def _stage(given: Row, usual: Row, replicas: int) -> int:
    """Return the stage of ZeRO: 3 for FSDP, as written for ZeRO, else 1, Megatron's distributed optimizer."""
    shard = str(given.get("shard") or "").upper()
    if replicas == 1:
        return 0
    if written := re.search(r"ZERO[- ]?([0-3])", shard):
        return int(written[1])
    return 3 if "FSDP" in shard or "FULL" in shard else usual.get("stage", 1)


# --- how it was run ---------------------------------------------------------------------------------------------

_XLA = re.compile(r"maxtext|paxml|jax|xla|axlearn|t5x")
_TORCH = re.compile(r"torchtitan|foundry|composer|fsdp ?2|hugging|accelerate|deepspeed|lightning|eager|axolotl|fms")
_OVERLAPS = re.compile(r"megascale;|tp overlap|async ?tp|pp overlap|dp overlap|efficient operators|misc|lamb batch")


def _software(row: Row, machine: Cluster) -> Software:
    """Return how the recipe runs its layers, from the words of the row.

    JAX compiles, with cuDNN's attention. PyTorch's own recipes are eager unless they say compile, have
    FlashAttention-2 and no fused loss; MPT's are older, with one. All others are Megatron-like: fused, with gradients
    reduced in fp32, and overlap of tensor parallelism since Hopper.
    """
    shard = str((row.get("layout") or {}).get("shard") or "")
    words = " ".join(str(row.get(key) or "") for key in ("model", "notes", "source")).lower()
    fixed = bool(re.search("token ?-?drop", words))
    own = Software(precision=_precision(row), frozen="lora" in words, capacity=fixed)
    if _XLA.search(words):
        return replace(own, stack="compiled", gradient_bytes=2)
    if _TORCH.search(f"{words} {shard.lower()}"):
        mpt = "mpt" in words
        return replace(
            own,
            stack="compiled" if "compile" in words else "eager",
            flash=1 if mpt else 2,
            hides_tensor="async" in words,
            gradient_bytes=2 if mpt else 4,
            fused_loss=mpt,
        )
    overlaps = machine.spec.generation != "Ampere" or bool(_OVERLAPS.search(words))
    return replace(own, hides_tensor=overlaps)


def _precision(row: Row) -> str:
    """Return the precision of products. Of "FP8-CS (FP8-MX)", the first is the main figure's.

    Raises `Unusable` for a format that the planner doesn't price, such as fp32 or int8. It prices fp16 as bf16.
    """
    text = str(row.get("precision") or "bf16").lower().split("(")[0]
    if "fp4" in text:
        return "nvfp4"
    if "mx" in text:
        return "mxfp8"
    if re.search("(fp|float)8", text):
        return "fp8"
    other = re.search(r"(?:fp|tf|int|float)\d+", text)
    if other and not re.search("fp16|float16|bf16", text):
        raise Unusable(f"the precision {other[0]!r} isn't known")
    return "bf16"


def _recompute(row: Row, model: Model, software: Software) -> str:
    """Return what is recomputed.

    torchtitan's selective mode repeats every other layer or product. A silent JAX recipe of a wide model does so, too:
    it saves some products of each layer. Other silent recipes repeat norms and activation functions at most.
    """
    text = str(row.get("recompute") or "").lower()
    torch = software.flash < 3
    if text.startswith("full"):
        return "full"
    if "selective" in text:
        return "half" if torch else "selective"
    if not text and software.stack == "compiled" and not torch and model.hidden >= 8192:
        return "half"
    return "none" if text.startswith("none") else "selective"


# --- what was measured ------------------------------------------------------------------------------------------


_SECONDS = {"s": 1, "sec": 1, "seconds": 1, "s/step": 1, "ms": 1e-3}


def measured(row: Row, run: Run) -> float:
    """Return the seconds of a step as the source measured them, from whichever metric it prints.

    TFLOP/s count half of the attention scores, as Megatron-LM and NeMo do since 2025, and MFU all of them, unless the
    row's metric says otherwise: its `scores` are "half" or "all". Raises `Unusable` for a unit that isn't known.
    """
    metric, also = row["metric"], row.get("also") or {}
    value, unit = metric["value"], str(metric.get("unit") or metric.get("name")).lower()
    if "step_time_ms" in also:
        return also["step_time_ms"] / 1e3
    if unit in _SECONDS:
        return value * _SECONDS[unit]
    ranks = 1 if "gpu" in unit or "device" in unit else run.layout.world_size
    if unit.startswith(("tok", "tokens/s")):
        return run.tokens * ranks / value
    if unit.startswith(("samples", "seq", "sentences")):
        return run.tokens * ranks / value / run.model.sequence
    if "flop" in unit:
        return _flops(row, run.model, run.tokens, "half") / (value * 1e12)
    if unit.startswith("%") or "mfu" in unit:
        return _flops(row, run.model, run.tokens, "all") / (value / 100 * run.machine.peak)
    raise Unusable(f"the unit {metric['unit']!r} isn't known")


def _flops(row: Row, model: Model, tokens: float, usual: str) -> float:
    """Return the FLOPs of a step over `tokens`, with as many attention scores as the row's source counts."""
    counted = row["metric"].get("scores") or usual
    return (replace(model, classic=True) if counted == "all" else model).flops(tokens)
