"""What a layout of a model on a machine costs: bytes of the fullest rank, and seconds of a step, part by part.

All of it is plain arithmetic, so a `Calculator` can put sliders on dp, tp, pp, cp, ep, micro_batch and
num_micro_batches.

Ranks are numbered so that tensor parallelism is innermost, then context, experts (a part of the data-parallel ranks),
the rest of data parallelism, and pipeline stages outermost: what talks most is nearest. A collective over a group that
spans nodes is that of `algorithms.hierarchical`: rings in the node, then rings across nodes, one for each local rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ..formula import maximum, minimum, where
from ..topology import Link
from . import memory as zero
from .models import RECOMPUTE, Machine, Model
from .traffic import COLLECTIVES, PASSES

WIRE = 2  # bytes of a number on the wire: activations, parameters and gradients go in 16 bits


@dataclass(frozen=True)
class Layout:
    """How a model is laid over dp x tp x pp x cp ranks, and how a batch goes through it.

    `ep`: so many of the data-parallel ranks share the experts. `stage`: of ZeRO, over the dp x cp ranks. A rank takes
    `num_micro_batches` of `micro_batch` sequences a step. `interleave`: parts of the model a pipeline rank, in turns.
    `recompute`: what the backward pass computes again, "none", "selective" or "full" (see `Model.kept`).
    `hide_experts`: the all-to-alls of a micro-batch run while another computes, as DeepSeek's DualPipe does it.
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
        """How many ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def batch(self) -> int:
        """Sequences a step, of all ranks."""
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
    """Bytes that one rank holds at most. `buffers`: what is there for one layer at a time."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def memory(model: Model, layout: Layout, recipe: zero.Recipe = zero.MIXED_ADAM) -> Memory:
    """What the fullest rank holds: the first of the pipeline, with the most micro-batches under way, or the last, with
    the logits.

    Every kind at its most, though they may not meet at one moment. Not counted: what the framework, the kernels and
    the network library take for themselves, what is lost between blocks of memory, and the embedding and the head where
    stage 3 makes them whole for a moment.
    """
    dense, experts = held_parameters(model, layout)
    of_layers = layers_of(model, layout) * kept(model, layout, layout.recompute)  # of one micro-batch
    logits = 4 * _tokens(model, layout) * model.vocabulary / layout.tp  # in fp32
    buffers = _buffers(model, layout, recipe, dense + experts)
    replicas = layout.dp * layout.cp
    theirs = zero.at_rest(experts, replicas / layout.ep, layout.stage, recipe) if model.experts else (0, 0, 0)

    def held(parameters: int, activations) -> Memory:
        rest = zero.at_rest(dense + parameters / layout.tp, replicas, layout.stage, recipe)
        return Memory(*(a + b for a, b in zip(rest, theirs, strict=True)), activations, buffers)

    under_way = held_micro_batches(layout) * of_layers
    if layout.pp == 1:
        return held(model.embedding if model.tied else model.embedding + model.head, under_way + logits)
    last = held_micro_batches(layout, last=True) * of_layers + logits
    return max(held(model.embedding, under_way), held(model.head, last), key=lambda rank: rank.total)


def layers_of(model: Model, layout: Layout):
    """Layers of the pipeline rank that has the most."""
    return math.ceil(model.layers / (layout.pp * layout.interleave)) * layout.interleave


def held_micro_batches(layout: Layout, last: bool = False):
    """Micro-batches, of all layers of a rank, that the first pipeline rank has under way at most, or the last one.

    1F1B: p on the first rank, 1 on the last. Interleaved by v: p + (p - 1) / v, and ((v - 1) p + 1) / v: what
    `pipeline.peak_activations` counts.
    """
    pp, v = layout.pp, layout.interleave
    chunks = (v - 1) * pp + (1 if last else pp + (pp - 1 if v > 1 else 0))  # v-ths of a rank's layers
    return minimum(layout.num_micro_batches, chunks / v)


def kept(model: Model, layout: Layout, recompute: str):
    """Bytes that a rank keeps of one micro-batch for each of its layers (Korthikanti et al., 2022, Table 2)."""
    whole, split = model.kept[recompute]
    return _tokens(model, layout) * (whole / (layout.tp if layout.sequence_parallel else 1) + split / layout.tp)


def held_parameters(model: Model, layout: Layout) -> tuple:
    """(without experts, of experts): parameters of the layers of a rank, before ZeRO shards them."""
    layers = layers_of(model, layout)
    with_experts = minimum(layers, model.expert_layers)
    dense = layers * (model.attention + model.small) + (layers - with_experts) * model.mlp
    dense += with_experts * model.around_experts
    return dense / layout.tp, with_experts * model.experts * model.expert / (layout.ep * layout.tp)


def _tokens(model: Model, layout: Layout):
    """Tokens of a micro-batch on one rank."""
    return layout.micro_batch * model.sequence / layout.cp


def _buffers(model: Model, layout: Layout, recipe: zero.Recipe, parameters):
    """Bytes for one layer at a time: what it makes again, or gathers. `parameters`: of all layers of the rank."""
    layer = parameters / layers_of(model, layout)
    buffers = kept(model, layout, "none") - kept(model, layout, layout.recompute)
    if layout.stage >= 2:
        buffers += recipe.gradients * layer  # before they are scattered
    if layout.stage == 3:
        buffers += 2 * recipe.parameters * layer  # of the layer that computes, and of the next one
    return buffers if layout.cp == 1 else buffers + _keys_values(model, layout)


def _keys_values(model: Model, layout: Layout):
    """Bytes of a layer's keys and values of whole sequences, as context parallelism gathers them."""
    return WIRE * layout.micro_batch * model.sequence * model.kv_width / layout.tp


# --- collectives ------------------------------------------------------------------------------------------------


def near(machine: Machine, inner, size):
    """How many of a group of `size` are in one node, if each is `inner` ranks after the one before. Groups that do not
    fit evenly into nodes (12 ranks, nodes of 8) are taken as if all their links went between nodes."""
    room = where(machine.gpus_per_node % inner == 0, machine.gpus_per_node // inner, 1)
    even = (size % room) * (room % size) == 0  # one divides the other
    return where(even, minimum(size, room), 1)


def around(machine: Machine, inner, size, num_bytes):
    """Seconds for a buffer to go round a group once: a reduce-scatter or an all-gather. In the node, and then across,
    where each local rank has a ring for what is its own."""
    here = near(machine, inner, size)
    return ring(here, num_bytes, machine.inside) + ring(size / here, num_bytes / here, machine.between)


def ring(size, num_bytes, link: Link):
    """Seconds for a buffer to go round `size` ranks once: P - 1 steps with a P-th of it each."""
    return (size - 1) * (link.alpha + num_bytes / size * link.beta)


def all_to_all(machine: Machine, inner, size, num_bytes):
    """Seconds of P - 1 swaps of equal parts of a rank's buffer: with the near ranks, then with the far ones."""
    here, part = near(machine, inner, size), num_bytes / size
    beside, beyond = (link.alpha + part * link.beta for link in (machine.inside, machine.between))
    return (here - 1) * beside + (size - here) * beyond


@dataclass(frozen=True)
class ClosedForm:
    """What collectives take on `machine`, by formula. `planner.Simulated` gives the same by pricing their schedules."""

    machine: Machine

    def around(self, inner, size, num_bytes):
        """See `around`."""
        return around(self.machine, inner, size, num_bytes)

    def all_to_all(self, inner, size, num_bytes):
        """See `all_to_all`."""
        return all_to_all(self.machine, inner, size, num_bytes)


# --- time -------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """Seconds of a step, in parts that add up: what is computed, what of each axis is not hidden, and the bubble.

    `model_flops`: FLOPs of the step a rank, with nothing counted twice; `hardware_flops` with what is computed again.
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
        """Of the whole step."""
        return self.compute + self.tensor + self.expert + self.data + self.pipeline + self.context + self.bubble

    @property
    def flops_per_second(self) -> float:
        """Of one GPU, of what the model asks for: nothing computed again counts."""
        return self.model_flops / self.seconds

    @property
    def hardware_flops_per_second(self) -> float:
        """Of one GPU, with what is computed again."""
        return self.hardware_flops / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: of the peak."""
        return self.flops_per_second / self.peak


class Pass(NamedTuple):
    """Seconds of one micro-batch on the slowest rank, forward or backward."""

    compute: float
    tensor: float
    expert: float
    context: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self)


def passes(model: Model, machine: Machine, layout: Layout, network: ClosedForm | None = None) -> tuple[Pass, Pass]:
    """(forward, backward) of one micro-batch on the slowest rank of the pipeline.

    It is slowest by its layers, ceil(layers / pp), or as the last rank by the logits; a rank can spare a layer there if
    they do not divide evenly. What is computed again is a part of the backward pass.

    compute: the FLOPs of products of matrices, at the machine's rate, or the time to read the matrices from memory if
    that is longer (for experts that few tokens visit). Norms, activation functions and scores take the time to move
    what they make: whatever a layer would keep is once written and once read. All of it twice in the backward pass.

    tensor: two all-reduces of the activations a layer and pass (with sequence parallelism each is a reduce-scatter and
    an all-gather, of the same bytes); nothing can go on meanwhile, so all of it shows. context: keys and values are
    gathered before attention, in both passes, and their gradients scattered; all of it shows. expert: two all-to-alls a
    layer and pass, of top_k copies of each token, evenly to all experts; all of it shows, unless `hide_experts`.
    """
    network = network or ClosedForm(machine)
    again = layout.recompute == "full"
    layers, tokens = layers_of(model, layout), _tokens(model, layout)
    rate = layout.tp * machine.peak * machine.fraction / tokens  # FLOPs a token in a second
    weights = WIRE * sum(held_parameters(model, layout)) / layers * machine.seconds_a_byte  # a layer's, read once
    moving = 2 * kept(model, layout, "none") * machine.seconds_a_byte  # what a layer makes is written, and read
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
    if layout.hide_experts:  # a forward pass runs beside another micro-batch's backward pass
        sent, sent_back = 0, maximum(0, sent + sent_back - forward - backward)
    return (
        Pass(forward, reduced, sent, gathered),
        Pass(backward, (1 + again) * reduced, sent_back, (2 + again) * gathered),
    )


def step(model: Model, machine: Machine, layout: Layout, network: ClosedForm | None = None) -> Step:
    """Seconds of one step, by the slowest rank.

    bubble: (p - 1) / v of a micro-batch, forward and backward (see `pipeline.one_f_one_b` and `interleaved`). pipeline
    and data: see `messages` and `exposed_data`. `network`: what collectives take, if not by formula.

    Not modelled: the update, loading data, kernels that are better or worse by shape (one fraction of the peak for
    all), other traffic on the network, ranks that are late, and experts that are visited unevenly.
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
    """Seconds of one message of the pipeline; each of a stage's tp ranks sends a tp-th of the activations. It goes to
    another node, unless the whole pipeline is in one."""
    in_one_node = layout.tp * layout.cp * layout.dp * layout.pp <= machine.gpus_per_node
    link = machine.inside if in_one_node else machine.between
    return link.alpha + WIRE * _tokens(model, layout) * model.hidden / layout.tp * link.beta


def messages(model: Model, machine: Machine, layout: Layout):
    """Seconds that a step is longer for the pipeline's messages: activations, and their gradients back.

    1F1B waits for 2 ((p - 1) m / p + p - 2) of them, because a rank has only as many micro-batches under way as it
    takes without them. Interleaved there are v times as many, but only the 2 (p v - 1) of one micro-batch on its way
    there and back show. `pipeline.price` says the same where m is a multiple of p.
    """
    pp, v, m = layout.pp, layout.interleave, layout.num_micro_batches
    if pp == 1:
        return 0
    count = 2 * ((pp - 1) * m / pp + maximum(0, pp - 2)) if v == 1 else 2 * (pp * v - 1)
    return count * message(model, machine, layout)


def exposed_data(model: Model, machine: Machine, layout: Layout, forward, backward, network: ClosedForm | None = None):
    """Seconds of the data-parallel collectives of a step that hide behind nothing. `forward`, `backward`: seconds that
    a rank computes for one micro-batch.

    Gradients hide behind the backward pass of a micro-batch, gathered parameters behind its forward pass, in stage 3
    behind both; whatever a pass is too short for shows, and always the last layer's. Stages 0 and 1 do it once a step,
    with the last micro-batch (and the first); stage 2 scatters the gradients of every micro-batch, since it keeps no
    full ones; stage 3 gathers for every micro-batch, too. Of parameters those of the layers count, not the ends'.
    """
    network = network or ClosedForm(machine)
    m, layers = layout.num_micro_batches, layers_of(model, layout)
    dense, experts = held_parameters(model, layout)
    once = network.around(layout.tp, layout.dp * layout.cp, WIRE * dense)
    if model.experts:
        apart = layout.tp * layout.cp * layout.ep  # cp ranks have the same experts, and every ep-th of the dp ranks
        once += network.around(layout.tp, layout.cp, WIRE * experts)
        once += network.around(apart, layout.dp / layout.ep, WIRE * experts / layout.cp)
    gathers = sum(name == "all_gather" for name, _ in COLLECTIVES[layout.stage])
    behind = {"forward": min(gathers, 1), "backward": max(gathers - 1, 0)}
    behind["backward"] += sum(PASSES[name] for name, _ in COLLECTIVES[layout.stage] if name != "all_gather")
    shows_forward = behind["forward"] * once
    shows_forward = maximum(shows_forward - forward, shows_forward / layers)
    shows_backward = behind["backward"] * once
    shows_backward = maximum(shows_backward - backward, shows_backward / layers)
    return (m if layout.stage == 3 else 1) * shows_forward + (m if layout.stage >= 2 else 1) * shows_backward
