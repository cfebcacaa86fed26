"""The seconds of a step, part by part, of a model on a machine in a layout. `layout` counts the bytes that it holds.

All of it is plain arithmetic, so a `Calculator` can put sliders on dp, tp, pp, cp, ep, micro_batch and
num_micro_batches. Two questions are left to others: `kernels` prices a layer's computing, `groups` its collectives. On
a `flat.Machine`, `flat` prices both by a handful of numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..formula import maximum, minimum, where
from ..machines import Cluster
from .flat import Flat, Machine, Rings
from .groups import Groups
from .kernels import Fitted
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
from .models import Model
from .traffic import COLLECTIVES

__all__ = [
    "WIRE",
    "Layout",
    "Memory",
    "Pass",
    "Step",
    "held_micro_batches",
    "held_parameters",
    "kept",
    "layers_of",
    "memory",
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


def prices(machine: Cluster | Machine) -> tuple[Groups, Fitted | Flat]:
    """Return what prices a machine's collectives and its kernels."""
    if isinstance(machine, Machine):
        return Rings(machine), Flat(machine)
    return Groups(machine), Fitted(machine.spec)


def passes(
    model: Model,
    machine: Cluster | Machine,
    layout: Layout,
    network: Groups | None = None,
    kernels: Fitted | Flat | None = None,
) -> tuple[Pass, Pass]:
    """Return (forward, backward) of one micro-batch on the slowest rank of the pipeline.

    The slowest rank has the most layers, ceil(layers / pp), or is the last one, with the logits. If the layers don't
    divide evenly, the last rank has one layer less. Recomputation is part of the backward pass. `kernels` prices the
    computing: by default that of `prices`.

    tensor: two all-reduces of the activations per layer and pass, one for each part that tensor parallelism splits.
    With sequence parallelism each is a reduce-scatter and an all-gather, of the same bytes, and experts need none.
    context: keys and values are gathered before attention in both passes, and their gradients scattered. `kernels` says
    which share of both shows; what takes longer than the pass computes shows, too. expert: tokens to and from their
    experts, in both passes; all of it is exposed unless `hide_experts`.
    """
    network, kernels = network or prices(machine)[0], kernels or prices(machine)[1]
    again = layout.recompute == "full"
    layers = layers_of(model, layout)
    layer, logits = kernels.layer(model, layout), kernels.logits(model, layout)
    more = kernels.recomputed(model, layout, layer)
    fewer = layers - minimum(1, spared(model, layout))
    forward = maximum(layers * layer.forward, fewer * layer.forward + logits.forward)
    backward = maximum(layers * layer.backward, fewer * layer.backward + logits.backward) + layers * more

    halves = ("reduce_scatter", "all_gather") if layout.sequence_parallel else ("all_reduce",)
    reduced = sum(network.seconds(half, 1, layout.tp, _tensor_bytes(model, layout)) for half in halves)
    reduced = layers * reductions(model, layout) * reduced
    gathered = network.seconds("all_gather", layout.tp, layout.cp, keys_values(model, layout))
    gathered = layers * gathered * model.attending / model.layers

    def exposed(what, seconds, compute):
        return maximum(kernels.shows(what, layout.software) * seconds, seconds - compute)

    def both(sums, gathers, compute):
        """Return what shows of each: the sums hide first, and the gathers behind the rest."""
        shown = exposed("tensor", sums, compute)
        return shown, exposed("context", gathers, compute - (sums - shown))

    forward_sums, forward_gathers = both(reduced, gathered, forward)
    backward_sums, backward_gathers = both((1 + again) * reduced, (2 + again) * gathered, backward)
    sent = expert_seconds(model, layout, network, kernels)
    sent_back = (1 + again) * sent
    if layout.hide_experts:  # a forward pass overlaps with another micro-batch's backward pass
        sent, sent_back = 0, maximum(0, sent + sent_back - forward - backward)
    return (
        Pass(forward, forward_sums, sent, forward_gathers),
        Pass(backward, backward_sums, sent_back, backward_gathers),
    )


def reductions(model: Model, layout: Layout):
    """Return the all-reduces of activations per layer and pass: one for each part that tensor parallelism splits."""
    parts = model.attending + model.mlp_layers + model.mamba_layers
    return (parts - (model.expert_layers if layout.sequence_parallel else 0)) / model.layers


def _tensor_bytes(model: Model, layout: Layout):
    """Return the bytes of a tensor-parallel all-reduce. In fp8, what is gathered travels in fp8, and sums in bf16."""
    wire = WIRE if layout.software.precision == "bf16" else 0.75 * WIRE
    return wire * tokens_of(model, layout) * model.hidden


def expert_seconds(model: Model, layout: Layout, network: Groups, kernels: Fitted | Flat):
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
    machine: Cluster | Machine,
    layout: Layout,
    network: Groups | None = None,
    kernels: Fitted | Flat | None = None,
) -> Step:
    """Return the seconds of one step on the slowest rank.

    bubble: see `bubble`. pipeline and data: see `messages` and `exposed_data`. compute also has the update. `network`:
    the time of collectives, of computing, both by default those of `prices`.

    Not modelled: data loading, other traffic on the network, stragglers, and uneven expert load.
    """
    network, kernels = network or prices(machine)[0], kernels or prices(machine)[1]
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
        pipeline=messages(model, machine, layout, network),
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


def message(model: Model, machine: Cluster | Machine, layout: Layout, network: Groups | None = None):
    """Return the seconds of one pipeline message: each of a stage's tp ranks sends 1/tp of the activations.

    It goes to another node, unless the whole pipeline fits in one.
    """
    in_one_node = layout.tp * layout.cp * layout.dp * layout.pp <= machine.gpus_per_node
    num_bytes = WIRE * tokens_of(model, layout) * model.hidden / layout.tp
    return (network or prices(machine)[0]).message(in_one_node, num_bytes)


def messages(model: Model, machine: Cluster | Machine, layout: Layout, network: Groups | None = None):
    """Return the seconds that the pipeline's messages, activations and gradients, add to a step.

    1F1B exposes 2 ((p - 1) m / p + p - 2) messages, because a rank has only as many micro-batches in flight as it needs
    without messages. Interleaving sends v times as many, but exposes only the 2 (p v - 1) of one micro-batch's round
    trip. `pipeline.price` agrees if m is a multiple of p.
    """
    pp, v, m = layout.pp, layout.interleave, layout.num_micro_batches
    if pp == 1:
        return 0
    count = 2 * ((pp - 1) * m / pp + maximum(0, pp - 2)) if v == 1 else 2 * (pp * v - 1)
    return count * message(model, machine, layout, network)


def exposed_data(
    model: Model,
    machine: Cluster | Machine,
    layout: Layout,
    forward,
    backward,
    network: Groups | None = None,
    kernels: Fitted | Flat | None = None,
):
    """Return the exposed seconds of a step's data-parallel collectives. `forward`, `backward`: compute seconds.

    `forward` and `backward` are one micro-batch's. Gradients hide behind the backward pass of a micro-batch. Gathered
    parameters hide behind its forward pass, in stage 3 behind both. What exceeds a pass is exposed, and always the last
    layer's part. On top, all of it slows the computing, by the share of its time that `kernels` says. Stages 0 and 1
    communicate once a step, with the last micro-batch (and the first). Stage 2 keeps no full gradients, so it scatters
    them for every micro-batch. Stage 3 also gathers for every micro-batch. Only the layers' parameters count, not those
    of the embedding and the head.
    """
    network, kernels = network or prices(machine)[0], kernels or prices(machine)[1]
    if layout.software.frozen:
        return 0 * forward
    m, layers = layout.num_micro_batches, layers_of(model, layout)
    names = [name for name, _ in COLLECTIVES[layout.stage]]
    gathers, (reduction,) = names.count("all_gather"), {*names} - {"all_gather"}
    gathered = all_parameters(model, layout, network, "all_gather", WIRE)
    in_forward = minimum(gathers, 1) * gathered
    in_backward = maximum(gathers - 1, 0) * gathered
    in_backward += all_parameters(model, layout, network, reduction, kernels.gradient_bytes(layout.software))
    slows = kernels.shows("data", layout.software)
    exposed_forward = maximum(in_forward - forward, in_forward / layers) + slows * in_forward
    exposed_backward = maximum(in_backward - backward, in_backward / layers) + slows * in_backward
    return (m if layout.stage == 3 else 1) * exposed_forward + (m if layout.stage >= 2 else 1) * exposed_backward


def all_parameters(model: Model, layout: Layout, network: Groups, collective: str, num_bytes):
    """Return the seconds of a collective over all of a rank's layers, `num_bytes` a parameter, with its replicas.

    The cp ranks, and every ep-th of the other replicas, hold the same experts.
    """
    dense, experts = held_parameters(model, layout)
    seconds = network.seconds(collective, layout.tp, layout.dp * layout.cp, num_bytes * dense)
    if not model.experts:
        return seconds
    apart, copies = layout.world_size / layout.pp / expert_replicas(layout), expert_replicas(layout)
    return seconds + network.seconds(collective, apart, copies, num_bytes * experts)
