"""A layout of a model on the ranks of a machine, and the bytes that its fullest rank holds.

Ranks are numbered so that the axes that communicate most are nearest: tensor parallelism is innermost, then context,
experts (some of the data-parallel ranks), the rest of data parallelism, and pipeline stages outermost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..formula import maximum, minimum, where
from . import memory as zero
from .models import RECOMPUTE, Model
from .software import USUAL, Software

WIRE = 2  # bytes of a number on the wire: activations, parameters and gradients travel in 16 bits


@dataclass(frozen=True)
class Layout:
    """A placement of a model on dp x tp x pp x cp ranks, and the path of a batch through it.

    `ep`: the number of data-parallel ranks that share the experts. `stage`: of ZeRO, over the dp x cp ranks. A rank
    takes `num_micro_batches` of `micro_batch` sequences a step. `interleave`: stages per pipeline rank. `recompute`:
    what the backward pass recomputes, "none", "selective" or "full" (see `Model.kept`). `hide_experts`: the all-to-alls
    of a micro-batch overlap with the compute of another, as in DeepSeek's DualPipe. `software`: how the recipe runs its
    layers; it matters on machines whose GPU is known.

    `recompute` may also be "half": every other layer, or every other product, as torchtitan's selective checkpointing.

    Raises `ValueError` for an unknown `recompute` or `stage`.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    stage: int = 0
    sequence_parallel: bool = False
    micro_batch: int = 1
    num_micro_batches: int = 1
    interleave: int = 1
    recompute: str = "none"
    hide_experts: bool = False
    software: Software = USUAL

    def __post_init__(self):
        if self.recompute not in (*RECOMPUTE, "half"):
            raise ValueError(f"recompute is one of {', '.join(RECOMPUTE)}, half, not {self.recompute!r}")
        if self.stage not in zero.STAGES:
            raise ValueError(f"there is no stage {self.stage} of ZeRO: it is one of {', '.join(map(str, zero.STAGES))}")

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def expert_tp(self):
        """Among how many tp ranks each expert is split: none if the experts' ranks include the tp ranks."""
        return where(self.ep > self.dp * self.cp, 1, self.tp)

    @property
    def batch(self) -> int:
        """Sequences per step, over all ranks."""
        return self.dp * self.micro_batch * self.num_micro_batches

    def __str__(self) -> str:
        axes = ("dp", "tp", "pp", "cp", "ep")
        words = [f"{axis} {getattr(self, axis)}" for axis in axes if getattr(self, axis) > 1] or ["1 rank"]
        words += [f"ZeRO-{self.stage}"] * (self.stage > 0) + ["SP"] * self.sequence_parallel
        words += [f"{self.num_micro_batches} x {self.micro_batch} sequences"]
        words += [f"interleave {self.interleave}"] * (self.interleave > 1)
        words += [f"{self.recompute} recompute"] * (self.recompute != "none")
        return ", ".join(words)


class Memory(NamedTuple):
    """The most bytes that one rank holds. `buffers`: memory that exists for one layer at a time."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float

    @property
    def total(self) -> float:
        """Bytes of all kinds together."""
        return sum(self)


def memory(model: Model, layout: Layout, recipe: zero.Recipe = zero.MIXED_ADAM) -> Memory:
    """Return what the fullest rank holds: the pipeline's first rank, or its last, which has the logits.

    The first has the most micro-batches in flight. Every kind counts at its peak, though the peaks may not coincide.
    Not counted: memory of the framework, the kernels and the network library, fragmentation, and the embedding and the
    head while stage 3 gathers them. With interleaving, if two layers are missing for an even split, the first
    rank has one less: its first chunk is the embedding (Llama 3, section 3.3.2).
    """
    dense, experts = held_parameters(model, layout)
    each = kept(model, layout, layout.recompute)  # activations of one layer and micro-batch
    of_layers = layers_of(model, layout) * each
    logits = layout.software.logit_bytes * tokens_of(model, layout) * model.vocabulary / layout.tp
    buffers = _buffers(model, layout, recipe, dense + experts)
    replicas: Any = layout.dp * layout.cp  # a symbol, if the calculator has a slider for it
    theirs = zero.at_rest(experts, replicas / layout.ep, layout.stage, recipe) if model.experts else (0, 0, 0)

    def held(parameters: int, activations) -> Memory:
        rest = zero.at_rest(dense + parameters / layout.tp, replicas, layout.stage, recipe)
        weights, gradients, optimizer = (a + b for a, b in zip(rest, theirs, strict=True))
        if layout.software.frozen:  # the adapter's own state is small
            gradients = optimizer = 0
        return Memory(weights, gradients, optimizer, activations, buffers)

    first = held_micro_batches(layout) * (of_layers - first_spares(model, layout) * each)
    if layout.pp == 1:
        return held(model.embedding if model.tied else model.embedding + model.head, first + logits)
    last = held_micro_batches(layout, last=True) * of_layers + logits
    return max(held(model.embedding, first), held(model.head, last), key=lambda rank: rank.total)


def layers_of(model: Model, layout: Layout):
    """Return the number of layers on the pipeline rank that has the most."""
    return math.ceil(model.layers / (layout.pp * layout.interleave)) * layout.interleave


def spared(model: Model, layout: Layout):
    """Return how many layers are missing for all pipeline ranks to have as many as the fullest."""
    return layers_of(model, layout) * layout.pp - model.layers


def first_spares(model: Model, layout: Layout):
    """Return how many layers the first pipeline rank has less than the fullest: 1 or 0."""
    return where(layout.interleave > 1, minimum(1, maximum(0, spared(model, layout) - 1)), 0)


def held_micro_batches(layout: Layout, last: bool = False):
    """Return the most micro-batches in flight on the first pipeline rank, or on the last, over all its layers.

    1F1B: p on the first rank, 1 on the last. Interleaved by v: p + (p - 1) / v and ((v - 1) p + 1) / v. These are the
    counts of `pipeline.peak_activations`.
    """
    pp, v = layout.pp, layout.interleave
    chunks = (v - 1) * pp + (1 if last else pp + (pp - 1 if v > 1 else 0))  # each 1/v of the rank's layers
    return minimum(layout.num_micro_batches, chunks / v)


def kept(model: Model, layout: Layout, recompute: str):
    """Return the activation bytes a rank keeps per micro-batch and layer (Korthikanti et al., 2022, Table 2)."""
    whole, split = model.kept[recompute]
    return tokens_of(model, layout) * (whole / (layout.tp if layout.sequence_parallel else 1) + split / layout.tp)


def held_parameters(model: Model, layout: Layout) -> tuple:
    """Return (other, expert) parameters of a rank's layers, before ZeRO shards them."""
    layers = layers_of(model, layout)
    with_mlp = layers * model.mlp_layers / model.layers
    with_experts = minimum(with_mlp, model.expert_layers)
    dense = layers * (model.mixing / model.layers + model.small) + (with_mlp - with_experts) * model.mlp
    dense += with_experts * model.around_experts
    return dense / layout.tp, with_experts * model.experts * model.expert / (layout.ep * layout.expert_tp)


def tokens_of(model: Model, layout: Layout):
    """Return the tokens of a micro-batch on one rank."""
    return layout.micro_batch * model.sequence / layout.cp


def _buffers(model: Model, layout: Layout, recipe: zero.Recipe, parameters):
    """Return the bytes for one layer at a time: recomputed or gathered. `parameters`: of all the rank's layers."""
    layer = parameters / layers_of(model, layout)
    buffers = kept(model, layout, "none") - kept(model, layout, layout.recompute)
    if layout.stage >= 2:
        buffers += recipe.gradients * layer  # full gradients, before the reduce-scatter
    if layout.stage == 3:
        buffers += 2 * recipe.parameters * layer  # gathered for the computing layer and the next one
    return buffers if layout.cp == 1 else buffers + keys_values(model, layout)


def keys_values(model: Model, layout: Layout):
    """Return the bytes of a layer's keys and values for whole sequences, as context parallelism gathers them."""
    return WIRE * layout.micro_batch * model.sequence * model.kv_width / layout.tp
