"""The seconds of a step, part by part, of a model on a machine in a layout. `layout` counts the bytes that it holds.

All of it is plain arithmetic, so a `Calculator` can put sliders on dp, tp, pp, cp, ep, micro_batch and
num_micro_batches. Two questions are left to others: `kernels` prices a layer's computing, `network` its collectives. A
group that spans nodes runs the collective of `algorithms.hierarchical`: rings in the node, then rings across nodes,
one per local rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ..formula import maximum, minimum, where
from .kernels import Both, Fitted
from .layout import (
    WIRE,
    Layout,
    Memory,
    held_micro_batches,
    held_parameters,
    kept,
    keys_values,
    layers_of,
    memory,
    spared,
    tokens_of,
)
from .models import Machine, Model
from .network import ClosedForm, around, near
from .software import Software
from .traffic import COLLECTIVES, PASSES

__all__ = [
    "WIRE",
    "ClosedForm",
    "Layout",
    "Memory",
    "Pass",
    "Step",
    "around",
    "held_micro_batches",
    "held_parameters",
    "kept",
    "layers_of",
    "memory",
    "near",
    "passes",
    "step",
]

FOUR_OF_FIVE = 1.2816  # standard deviations on either side that hold four of five normal values


class Step(NamedTuple):
    """Seconds of a step, in parts that add up: compute, the exposed communication of each axis, and the bubble.

    `model_flops`: FLOPs per rank and step without recomputation. `hardware_flops`: with recomputation. `peak`: FLOP/s.
    `sigma`: the standard deviation of the logarithm of measured over predicted seconds, on runs of this kind that were
    left out of the fit; 0 if it isn't known.
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
    sigma: float = 0

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return self.compute + self.tensor + self.expert + self.data + self.pipeline + self.context + self.bubble

    @property
    def interval(self) -> tuple[float, float]:
        """Seconds between which four of five measured runs of this kind lie."""
        spread = math.exp(FOUR_OF_FIVE * self.sigma)
        return self.seconds / spread, self.seconds * spread

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


@dataclass(frozen=True)
class Flat:
    """The seconds of kernels if all products reach `machine.fraction` of the peak: the first page of any estimate."""

    machine: Machine

    def layer(self, model: Model, layout: Layout) -> Both:
        """Return the seconds of a layer: its FLOPs at the machine's rate, or the time to read its matrices if longer.

        Norms, activation functions and scores cost the time to move their outputs: a layer writes and reads once all
        that it would keep. The backward pass does everything twice.
        """
        matrices = WIRE * sum(held_parameters(model, layout)) / layers_of(model, layout) * self.machine.seconds_a_byte
        outputs = 2 * kept(model, layout, "none") * self.machine.seconds_a_byte
        forward = maximum(model.layer_flops * self._a_flop(model, layout), matrices) + outputs
        return Both(forward, 2 * forward)

    def _a_flop(self, model: Model, layout: Layout):
        """Return the seconds that a FLOP of every token of a micro-batch takes."""
        tokens = layout.micro_batch * model.sequence / layout.cp
        return tokens / (layout.tp * self.machine.peak * self.machine.fraction)

    def logits(self, model: Model, layout: Layout) -> Both:
        """Return the seconds of the logits."""
        forward = model.head_flops * self._a_flop(model, layout)
        return Both(forward, 2 * forward)

    def recomputed(self, model: Model, layout: Layout, layer: Both):
        """Return the seconds a layer's recomputation adds: its forward pass, or the FLOPs repeated."""
        if layout.recompute == "full":
            return layer.forward
        return model.again(layout.recompute) * self._a_flop(model, layout)

    def update(self, parameters):
        """Return 0: the first page leaves the update out."""
        return 0

    def sigma(self, model: Model) -> float:
        """Return 0: nobody has compared it with runs."""
        return 0

    def gradient_bytes(self, software: Software) -> int:
        """Return the bytes of a gradient on the wire: 2, as of everything else."""
        return WIRE

    def shows(self, what: str, software: Software) -> int:
        """Return 1: all such traffic shows. Only what hides of data parallelism's is free, so return 0 for "data"."""
        return 0 if what == "data" else 1


def kernels_of(machine: Machine) -> Fitted | Flat:
    """Return what prices the kernels of a machine: constants fitted to runs if its GPU is known, else one fraction."""
    return Fitted(machine.gpu) if machine.gpu else Flat(machine)


def passes(
    model: Model,
    machine: Machine,
    layout: Layout,
    network: ClosedForm | None = None,
    kernels: Fitted | Flat | None = None,
) -> tuple[Pass, Pass]:
    """Return (forward, backward) of one micro-batch on the slowest rank of the pipeline.

    The slowest rank has the most layers, ceil(layers / pp), or is the last one, with the logits. If the layers don't
    divide evenly, the last rank has one layer less. Recomputation is part of the backward pass. `kernels` prices the
    computing: by default `kernels_of(machine)`.

    tensor: two all-reduces of the activations per layer and pass, one for each part that tensor parallelism splits.
    With sequence parallelism each is a reduce-scatter and an all-gather, of the same bytes, and experts need none.
    context: keys and values are gathered before attention in both passes, and their gradients scattered. `kernels` says
    which share of both shows. expert: tokens to and from their experts, in both passes; all of it is exposed unless
    `hide_experts`.
    """
    network, kernels = network or ClosedForm(machine), kernels or kernels_of(machine)
    again = layout.recompute == "full"
    layers = layers_of(model, layout)
    layer, logits = kernels.layer(model, layout), kernels.logits(model, layout)
    more = kernels.recomputed(model, layout, layer)
    fewer = layers - minimum(1, spared(model, layout))
    forward = maximum(layers * layer.forward, fewer * layer.forward + logits.forward)
    backward = maximum(layers * layer.backward, fewer * layer.backward + logits.backward) + layers * more

    reduced = layers * reductions(model, layout) * 2 * network.around(1, layout.tp, _tensor_bytes(model, layout))
    gathered = (
        layers * network.around(layout.tp, layout.cp, keys_values(model, layout)) * model.attending / model.layers
    )
    reduced, gathered = (
        kernels.shows("tensor", layout.software) * reduced,
        kernels.shows("context", layout.software) * gathered,
    )
    sent = expert_seconds(model, layout, network, kernels)
    sent_back = (1 + again) * sent
    if layout.hide_experts:  # a forward pass overlaps with another micro-batch's backward pass
        sent, sent_back = 0, maximum(0, sent + sent_back - forward - backward)
    return (
        Pass(forward, reduced, sent, gathered),
        Pass(backward, (1 + again) * reduced, sent_back, (2 + again) * gathered),
    )


def reductions(model: Model, layout: Layout):
    """Return the all-reduces of activations per layer and pass: one for each part that tensor parallelism splits."""
    parts = model.attending + model.mlp_layers + model.mamba_layers
    return (parts - (model.expert_layers if layout.sequence_parallel else 0)) / model.layers


def _tensor_bytes(model: Model, layout: Layout):
    """Return the bytes of a tensor-parallel all-reduce. In fp8, what is gathered travels in fp8, and sums in bf16."""
    wire = WIRE if layout.software.precision == "bf16" else 0.75 * WIRE
    return wire * tokens_of(model, layout) * model.hidden


def expert_seconds(model: Model, layout: Layout, network: ClosedForm, kernels: Fitted | Flat):
    """Return the seconds that a pass over a rank's layers sends tokens to experts and back."""
    if not model.experts:
        return 0
    split = layout.tp if layout.sequence_parallel else 1
    there_and_back = (layout.software.dispatch_bytes + WIRE) / 2
    tokens = there_and_back * tokens_of(model, layout) * (model.latent or model.hidden) / split
    apart = where(layout.ep > layout.dp * layout.cp, 1, layout.tp * layout.cp)
    inside, across = network.dispatch(apart, layout.ep, tokens, model.top_k, model.node_limit)
    once = (
        kernels.shows("dispatch", layout.software) * inside + kernels.shows("dispatch_across", layout.software) * across
    )
    return layers_of(model, layout) * model.expert_layers / model.layers * 2 * once


def step(
    model: Model,
    machine: Machine,
    layout: Layout,
    network: ClosedForm | None = None,
    kernels: Fitted | Flat | None = None,
) -> Step:
    """Return the seconds of one step on the slowest rank.

    bubble: see `bubble`. pipeline and data: see `messages` and `exposed_data`. compute also has the update. `network`:
    the time of collectives, by default `ClosedForm`. `kernels`: of computing, by default `kernels_of(machine)`.

    Not modelled: data loading, other traffic on the network, stragglers, and uneven expert load.
    """
    network, kernels = network or ClosedForm(machine), kernels or kernels_of(machine)
    forward, backward = passes(model, machine, layout, network, kernels)
    m = layout.num_micro_batches
    again = layers_of(model, layout) * layout.pp * model.again(layout.recompute)
    tokens = layout.batch * model.sequence / layout.world_size
    useful = model.flops(tokens)
    return Step(
        compute=m * (forward.compute + backward.compute) + kernels.update(updated(model, layout)),
        tensor=m * (forward.tensor + backward.tensor),
        expert=m * (forward.expert + backward.expert),
        data=exposed_data(model, machine, layout, forward.compute, backward.compute, network, kernels),
        pipeline=messages(model, machine, layout),
        context=m * (forward.context + backward.context),
        bubble=bubble(layout) * (forward.seconds + backward.seconds),
        model_flops=useful,
        hardware_flops=useful + tokens * again,
        peak=machine.peak,
        sigma=kernels.sigma(model),
    )


def bubble(layout: Layout):
    """Return the idle time of the pipeline, in micro-batches: (p - 1) / v (see `pipeline.one_f_one_b`, `interleaved`).

    With fewer micro-batches than ranks, a rank also waits p - m between the passes over its v chunks. Micro-batches
    need not divide into rounds of p: the last round is shorter (Llama 3, section 3.3.2).
    """
    waits = (layout.interleave - 1) * maximum(0, layout.pp - layout.num_micro_batches)
    return (layout.pp - 1 + waits) / layout.interleave


def updated(model: Model, layout: Layout):
    """Return the parameters that a rank updates: its shard of its layers' from stage 1 on, else all of them."""
    dense, experts = held_parameters(model, layout)
    if layout.software.frozen:
        return 0
    if layout.stage == 0:
        return dense + experts
    replicas = layout.dp * layout.cp
    return dense / replicas + experts / expert_replicas(layout)


def expert_replicas(layout: Layout):
    """Return how many ranks hold the same part of the experts."""
    return layout.dp * layout.cp * layout.tp / (layout.ep * layout.expert_tp)


def message(model: Model, machine: Machine, layout: Layout):
    """Return the seconds of one pipeline message: each of a stage's tp ranks sends 1/tp of the activations.

    It goes to another node, unless the whole pipeline fits in one.
    """
    in_one_node = layout.tp * layout.cp * layout.dp * layout.pp <= machine.gpus_per_node
    link = machine.inside if in_one_node else machine.between
    return link.alpha + WIRE * tokens_of(model, layout) * model.hidden / layout.tp * link.beta


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


def exposed_data(
    model: Model,
    machine: Machine,
    layout: Layout,
    forward,
    backward,
    network: ClosedForm | None = None,
    kernels: Fitted | Flat | None = None,
):
    """Return the exposed seconds of a step's data-parallel collectives. `forward`, `backward`: compute seconds.

    `forward` and `backward` are one micro-batch's. Gradients hide behind the backward pass of a micro-batch. Gathered
    parameters hide behind its forward pass, in stage 3 behind both. What exceeds a pass is exposed, and always the last
    layer's part; of the rest, `kernels` says which share slows the computing. Stages 0 and 1 communicate once a step,
    with the last micro-batch (and the first). Stage 2 keeps no full gradients, so it scatters them for every
    micro-batch. Stage 3 also gathers for every micro-batch. Only the layers' parameters count, not those of the
    embedding and the head.
    """
    network, kernels = network or ClosedForm(machine), kernels or kernels_of(machine)
    if layout.software.frozen:
        return 0 * forward
    m, layers = layout.num_micro_batches, layers_of(model, layout)
    gathered = all_parameters(model, layout, network, WIRE)
    reduced = all_parameters(model, layout, network, kernels.gradient_bytes(layout.software))
    gathers = sum(name == "all_gather" for name, _ in COLLECTIVES[layout.stage])
    reductions = sum(PASSES[name] for name, _ in COLLECTIVES[layout.stage] if name != "all_gather")
    in_forward = minimum(gathers, 1) * gathered
    in_backward = maximum(gathers - 1, 0) * gathered + reductions * reduced
    slows = kernels.shows("data", layout.software)
    exposed_forward = maximum(in_forward - forward, in_forward / layers) + slows * in_forward
    exposed_backward = maximum(in_backward - backward, in_backward / layers) + slows * in_backward
    return (m if layout.stage == 3 else 1) * exposed_forward + (m if layout.stage >= 2 else 1) * exposed_backward


def all_parameters(model: Model, layout: Layout, network: ClosedForm, num_bytes):
    """Return the seconds for all of a rank's layers, `num_bytes` a parameter, to go around their data-parallel groups.

    The cp ranks, and every ep-th of the other replicas, hold the same experts.
    """
    dense, experts = held_parameters(model, layout)
    seconds = network.around(layout.tp, layout.dp * layout.cp, num_bytes * dense)
    if not model.experts:
        return seconds
    apart, copies = layout.world_size / layout.pp / expert_replicas(layout), expert_replicas(layout)
    return seconds + network.around(apart, copies, num_bytes * experts)
