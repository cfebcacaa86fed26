"""The cost of a layout of a model on a machine: bytes on the fullest rank, and seconds of a step, part by part.

All of it is plain arithmetic, so a `Calculator` can put sliders on dp, tp, pp, cp, ep, micro_batch and
num_micro_batches.

Ranks are numbered so that the axes that communicate most are nearest: tensor parallelism is innermost, then context,
experts (some of the data-parallel ranks), the rest of data parallelism, and pipeline stages outermost. A group that
spans nodes runs the collective of `algorithms.hierarchical`: rings in the node, then rings across nodes, one per local
rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..formula import maximum, minimum, where
from ..topology import Link
from . import memory as zero
from .models import RECOMPUTE, Machine, Model
from .traffic import COLLECTIVES, PASSES

WIRE = 2  # bytes of a number on the wire: activations, parameters and gradients travel in 16 bits


@dataclass(frozen=True)
class Layout:
    """A placement of a model on dp x tp x pp x cp ranks, and the path of a batch through it.

    `ep`: the number of data-parallel ranks that share the experts. `stage`: of ZeRO, over the dp x cp ranks. A rank
    takes `num_micro_batches` of `micro_batch` sequences a step. `interleave`: stages per pipeline rank. `recompute`:
    what the backward pass recomputes, "none", "selective" or "full" (see `Model.kept`). `hide_experts`: the all-to-alls
    of a micro-batch overlap with the compute of another, as in DeepSeek's DualPipe.

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

    def __post_init__(self):
        if self.recompute not in RECOMPUTE:
            raise ValueError(f"recompute is one of {', '.join(RECOMPUTE)}, not {self.recompute!r}")
        if self.stage not in zero.STAGES:
            raise ValueError(f"there is no stage {self.stage} of ZeRO: it is one of {', '.join(map(str, zero.STAGES))}")

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.dp * self.tp * self.pp * self.cp

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


# --- memory -----------------------------------------------------------------------------------------------------


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
    head while stage 3 gathers them.
    """
    dense, experts = held_parameters(model, layout)
    of_layers = layers_of(model, layout) * kept(model, layout, layout.recompute)  # activations of one micro-batch
    logits = 4 * _tokens(model, layout) * model.vocabulary / layout.tp  # in fp32
    buffers = _buffers(model, layout, recipe, dense + experts)
    replicas: Any = layout.dp * layout.cp  # a symbol, if the calculator has a slider for it
    theirs = zero.at_rest(experts, replicas / layout.ep, layout.stage, recipe) if model.experts else (0, 0, 0)

    def held(parameters: int, activations) -> Memory:
        rest = zero.at_rest(dense + parameters / layout.tp, replicas, layout.stage, recipe)
        weights, gradients, optimizer = (a + b for a, b in zip(rest, theirs, strict=True))
        return Memory(weights, gradients, optimizer, activations, buffers)

    first = held_micro_batches(layout) * of_layers
    if layout.pp == 1:
        return held(model.embedding if model.tied else model.embedding + model.head, first + logits)
    last = held_micro_batches(layout, last=True) * of_layers + logits
    return max(held(model.embedding, first), held(model.head, last), key=lambda rank: rank.total)


def layers_of(model: Model, layout: Layout):
    """Return the number of layers on the pipeline rank that has the most."""
    return math.ceil(model.layers / (layout.pp * layout.interleave)) * layout.interleave


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
    return _tokens(model, layout) * (whole / (layout.tp if layout.sequence_parallel else 1) + split / layout.tp)


def held_parameters(model: Model, layout: Layout) -> tuple:
    """Return (other, expert) parameters of a rank's layers, before ZeRO shards them."""
    layers = layers_of(model, layout)
    with_experts = minimum(layers, model.expert_layers)
    dense = layers * (model.attention + model.small) + (layers - with_experts) * model.mlp
    dense += with_experts * model.around_experts
    return dense / layout.tp, with_experts * model.experts * model.expert / (layout.ep * layout.tp)


def _tokens(model: Model, layout: Layout):
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
    return buffers if layout.cp == 1 else buffers + _keys_values(model, layout)


def _keys_values(model: Model, layout: Layout):
    """Return the bytes of a layer's keys and values for whole sequences, as context parallelism gathers them."""
    return WIRE * layout.micro_batch * model.sequence * model.kv_width / layout.tp


# --- collectives ------------------------------------------------------------------------------------------------


def near(machine: Machine, inner, size):
    """Return how many ranks of a group of `size` share a node, if they are `inner` ranks apart.

    Groups that don't fit nodes evenly (12 ranks, nodes of 8) count as if all their links crossed nodes.
    """
    room = where(machine.gpus_per_node % inner == 0, machine.gpus_per_node // inner, 1)
    even = (size % room) * (room % size) == 0  # one divides the other
    return where(even, minimum(size, room), 1)


def around(machine: Machine, inner, size, num_bytes):
    """Return the seconds for a buffer to go around a group once, as in a reduce-scatter or an all-gather.

    It goes around rings in the node first, then across nodes, where each local rank has a ring for its own part.
    """
    in_node = near(machine, inner, size)
    return ring(in_node, num_bytes, machine.inside) + ring(size / in_node, num_bytes / in_node, machine.between)


def ring(size, num_bytes, link: Link):
    """Return the seconds for a buffer to go around `size` ranks once: P - 1 steps of 1/P of the buffer."""
    return (size - 1) * (link.alpha + num_bytes / size * link.beta)


def all_to_all(machine: Machine, inner, size, num_bytes):
    """Return the seconds of P - 1 swaps of 1/P of a rank's buffer, first within the node, then across."""
    in_node, part = near(machine, inner, size), num_bytes / size
    swap_inside, swap_between = (link.alpha + part * link.beta for link in (machine.inside, machine.between))
    return (in_node - 1) * swap_inside + (size - in_node) * swap_between


@dataclass(frozen=True)
class ClosedForm:
    """The time of collectives on `machine`, by formula. `planner.Simulated` prices their schedules instead."""

    machine: Machine

    def around(self, inner, size, num_bytes):
        """Return the seconds for a buffer to go around a group once: see `around`."""
        return around(self.machine, inner, size, num_bytes)

    def all_to_all(self, inner, size, num_bytes):
        """Return the seconds of an all-to-all: see `all_to_all`."""
        return all_to_all(self.machine, inner, size, num_bytes)


# --- time -------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """Seconds of a step, in parts that add up: compute, the exposed communication of each axis, and the bubble.

    `model_flops`: FLOPs per rank and step without recomputation. `hardware_flops`: with recomputation. `peak`: FLOP/s.
    """

    compute: float
    tensor: float
    expert: float
    data: float
    pipeline: float
    context: float
    bubble: float
    model_flops: float
    hardware_flops: float
    peak: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return self.compute + self.tensor + self.expert + self.data + self.pipeline + self.context + self.bubble

    @property
    def flops_per_second(self) -> float:
        """FLOP/s of one GPU, without recomputation."""
        return self.model_flops / self.seconds

    @property
    def hardware_flops_per_second(self) -> float:
        """FLOP/s of one GPU, with recomputation."""
        return self.hardware_flops / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: `flops_per_second` over the peak."""
        return self.flops_per_second / self.peak


class Pass(NamedTuple):
    """Seconds of one micro-batch on the slowest rank, forward or backward."""

    compute: float
    tensor: float
    expert: float
    context: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole pass."""
        return sum(self)


def passes(model: Model, machine: Machine, layout: Layout, network: ClosedForm | None = None) -> tuple[Pass, Pass]:
    """Return (forward, backward) of one micro-batch on the slowest rank of the pipeline.

    The slowest rank has the most layers, ceil(layers / pp), or is the last one, with the logits. If the layers don't
    divide evenly, the last rank has one layer less. Recomputation is part of the backward pass.

    compute: the matrix FLOPs at the machine's rate, or the time to read the matrices from memory if that is longer (for
    experts that few tokens visit). Norms, activation functions and scores cost the time to move their outputs: a layer
    writes and reads once all that it would keep. The backward pass does everything twice.

    tensor: two all-reduces of the activations per layer and pass. With sequence parallelism each is a reduce-scatter
    and an all-gather, of the same bytes. No compute can overlap, so all of it is exposed. context: keys and values are
    gathered before attention in both passes, and their gradients scattered; all of it is exposed. expert: two
    all-to-alls per layer and pass, of top_k copies of each token, spread evenly over all experts; all of it is exposed
    unless `hide_experts`.
    """
    network = network or ClosedForm(machine)
    again = layout.recompute == "full"
    layers, tokens = layers_of(model, layout), _tokens(model, layout)
    rate = layout.tp * machine.peak * machine.fraction / tokens  # FLOPs per token, in a second
    weights = WIRE * sum(held_parameters(model, layout)) / layers * machine.seconds_a_byte  # to read a layer's once
    moving = 2 * kept(model, layout, "none") * machine.seconds_a_byte  # to write and read a layer's outputs
    layer = maximum(model.layer_flops / rate, weights) + moving
    spared = minimum(1, layers * layout.pp - model.layers)
    forward = maximum(layers * layer, (layers - spared) * layer + model.head_flops / rate)
    backward = 2 * forward + layers * (layer if again else model.again(layout.recompute) / rate)

    reduced = layers * 2 * 2 * network.around(1, layout.tp, WIRE * tokens * model.hidden)
    gathered = layers * network.around(layout.tp, layout.cp, _keys_values(model, layout))
    sent = 0
    if model.experts:
        visits = WIRE * tokens * model.top_k * model.hidden / (layout.tp if layout.sequence_parallel else 1)
        swapped = network.all_to_all(layout.tp * layout.cp, layout.ep, visits)
        sent = minimum(layers, model.expert_layers) * 2 * swapped
    sent_back = (1 + again) * sent
    if layout.hide_experts:  # a forward pass overlaps with another micro-batch's backward pass
        sent, sent_back = 0, maximum(0, sent + sent_back - forward - backward)
    return (
        Pass(forward, reduced, sent, gathered),
        Pass(backward, (1 + again) * reduced, sent_back, (2 + again) * gathered),
    )


def step(model: Model, machine: Machine, layout: Layout, network: ClosedForm | None = None) -> Step:
    """Return the seconds of one step on the slowest rank.

    bubble: (p - 1) / v of a micro-batch, forward and backward (see `pipeline.one_f_one_b` and `interleaved`). pipeline
    and data: see `messages` and `exposed_data`. `network`: the time of collectives, by default `ClosedForm`.

    Not modelled: the update, data loading, the dependence of kernels on shapes (all reach the same fraction of the
    peak), other traffic on the network, stragglers, and uneven expert load.
    """
    network = network or ClosedForm(machine)
    forward, backward = passes(model, machine, layout, network)
    m = layout.num_micro_batches
    again = layers_of(model, layout) * layout.pp * model.again(layout.recompute)
    tokens = layout.batch * model.sequence / layout.world_size
    useful = model.flops(tokens)
    return Step(
        compute=m * (forward.compute + backward.compute),
        tensor=m * (forward.tensor + backward.tensor),
        expert=m * (forward.expert + backward.expert),
        data=exposed_data(model, machine, layout, forward.compute, backward.compute, network),
        pipeline=messages(model, machine, layout),
        context=m * (forward.context + backward.context),
        bubble=(layout.pp - 1) / layout.interleave * (forward.seconds + backward.seconds),
        model_flops=useful,
        hardware_flops=useful + tokens * again,
        peak=machine.peak,
    )


def message(model: Model, machine: Machine, layout: Layout):
    """Return the seconds of one pipeline message: each of a stage's tp ranks sends 1/tp of the activations.

    It goes to another node, unless the whole pipeline fits in one.
    """
    in_one_node = layout.tp * layout.cp * layout.dp * layout.pp <= machine.gpus_per_node
    link = machine.inside if in_one_node else machine.between
    return link.alpha + WIRE * _tokens(model, layout) * model.hidden / layout.tp * link.beta


def messages(model: Model, machine: Machine, layout: Layout):
    """Return the seconds that the pipeline's messages, activations and gradients, add to a step.

    1F1B exposes 2 ((p - 1) m / p + p - 2) messages, because a rank has only as many micro-batches in flight as it needs
    without messages. Interleaving sends v times as many, but exposes only the 2 (p v - 1) of one micro-batch's round
    trip. `pipeline.price` agrees if m is a multiple of p.
    """
    pp, v, m = layout.pp, layout.interleave, layout.num_micro_batches
    if pp == 1:
        return 0
    count = 2 * ((pp - 1) * m / pp + maximum(0, pp - 2)) if v == 1 else 2 * (pp * v - 1)
    return count * message(model, machine, layout)


def exposed_data(model: Model, machine: Machine, layout: Layout, forward, backward, network: ClosedForm | None = None):
    """Return the exposed seconds of a step's data-parallel collectives. `forward`, `backward`: compute seconds.

    `forward` and `backward` are one micro-batch's. Gradients hide behind the backward pass of a micro-batch. Gathered
    parameters hide behind its forward pass, in stage 3 behind both. What exceeds a pass is exposed, and always the last
    layer's part. Stages 0 and 1 communicate once a step, with the last micro-batch (and the first). Stage 2 keeps no
    full gradients, so it scatters them for every micro-batch. Stage 3 also gathers for every micro-batch. Only the
    layers' parameters count, not those of the embedding and the head.
    """
    network = network or ClosedForm(machine)
    m, layers = layout.num_micro_batches, layers_of(model, layout)
    dense, experts = held_parameters(model, layout)
    once = network.around(layout.tp, layout.dp * layout.cp, WIRE * dense)
    if model.experts:
        apart = layout.tp * layout.cp * layout.ep  # the cp ranks, and every ep-th dp rank, hold the same experts
        once += network.around(layout.tp, layout.cp, WIRE * experts)
        once += network.around(apart, layout.dp / layout.ep, WIRE * experts / layout.cp)
    gathers = sum(name == "all_gather" for name, _ in COLLECTIVES[layout.stage])
    reductions = sum(PASSES[name] for name, _ in COLLECTIVES[layout.stage] if name != "all_gather")
    in_forward = min(gathers, 1) * once
    in_backward = (max(gathers - 1, 0) + reductions) * once
    exposed_forward = maximum(in_forward - forward, in_forward / layers)
    exposed_backward = maximum(in_backward - backward, in_backward / layers)
    return (m if layout.stage == 3 else 1) * exposed_forward + (m if layout.stage >= 2 else 1) * exposed_backward
