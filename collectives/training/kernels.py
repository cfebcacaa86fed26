"""Seconds of a layer's kernels on a GPU: matrix products by their shape, attention, and kernels that only move bytes.

A product of (m, k) by (k, n) takes its 2 m k n FLOPs at the rate that large products reach, and the time to move its
three matrices. The second term is why small products are slower, and why fp8 is less than twice as fast. Attention runs
at its kernel's own rate. Norms, activation functions, casts and the permutation of tokens for experts take the time to
move what they touch, several times if they aren't fused. A layer can't be faster than the host launches its kernels.

`Constants` names what these sentences leave open: some thirty numbers for all models, machines and recipes, fitted by
`evidence` to published runs, with what physics says in advance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fitted import constant
from ..formula import maximum
from ..machines import Gpu
from .layout import Layout
from .models import Model
from .software import ELEMENT, Software

WORD = 2  # bytes of a number in bf16


@dataclass(frozen=True)
class Both:
    """Seconds of the forward pass and of the backward pass. They add, and scale by a number."""

    forward: Any
    backward: Any

    def __add__(self, other: Both) -> Both:
        return Both(self.forward + other.forward, self.backward + other.backward)

    def __mul__(self, factor) -> Both:
        return Both(self.forward * factor, self.backward * factor)

    __rmul__ = __mul__

    @property
    def total(self):
        """Seconds of both passes."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Constants:
    """The fitted constants: value, first guess, what it says, and the guess's spread as a factor's logarithm."""

    product_ampere: float = constant(0.798, 0.80, "share of the bf16 peak in large products, Ampere", 0.05, most=1)
    product_hopper: float = constant(
        0.725, 0.72, "share of the bf16 peak in large products, Hopper: a limit of 700 W slows it", 0.06, most=1
    )
    product_blackwell: float = constant(
        0.673, 0.72, "share of the bf16 peak in large products, B200 and GB200", 0.08, most=1
    )
    product_ultra: float = constant(
        0.868, 0.80, "share of the bf16 peak in large products, B300 and GB300: they draw more power", 0.08, most=1
    )
    fp8_hopper: float = constant(1.78, 1.75, "times as fast in fp8 as in bf16, Hopper", 0.08)
    fp8_blackwell: float = constant(1.77, 1.75, "times as fast in fp8 as in bf16, Blackwell", 0.08)
    fp4_blackwell: float = constant(2.64, 2.6, "times as fast in nvfp4 as in bf16, B200 and GB200", 0.15)
    fp4_ultra: float = constant(3.3, 3.2, "times as fast in nvfp4 as in bf16, B300 and GB300: more fp4 units", 0.15)
    power: float = constant(0.721, 0.7, "the rate grows as the power limit to this exponent", 0.2)
    flash1_ampere: float = constant(
        0.361, 0.38, "share of the bf16 peak in attention, Ampere, kernels of 2022", 0.15, most=1
    )
    flash_ampere: float = constant(
        0.539, 0.55, "share of the bf16 peak in attention, Ampere, FlashAttention-2", 0.12, most=1
    )
    flash1_hopper: float = constant(
        0.186, 0.19, "share of the bf16 peak in attention, Hopper, kernels of 2022", 0.15, most=1
    )
    flash2_hopper: float = constant(
        0.331, 0.36, "share of the bf16 peak in attention, Hopper, FlashAttention-2", 0.12, most=1
    )
    flash_hopper: float = constant(
        0.517, 0.55, "share of the bf16 peak in attention, Hopper, cuDNN and FlashAttention-3", 0.12, most=1
    )
    flash_blackwell: float = constant(
        0.535, 0.58, "share of the bf16 peak in attention, Blackwell, cuDNN", 0.12, most=1
    )
    reads: float = constant(1.04, 1.0, "times that a product moves its matrices", 0.25)
    fused: float = constant(1.4, 1.2, "times that fused kernels move a layer's tensors", 0.4)
    compiled: float = constant(1.77, 1.5, "times that compiled kernels move a layer's tensors", 0.4)
    eager: float = constant(2.16, 2.5, "times that eager kernels do, one for each operation", 0.4)
    experts: float = constant(2.79, 2.5, "times that the activation functions of experts do", 0.4)
    mixer: float = constant(4.15, 2.5, "times that a Mamba-2 mixer with its scan does", 0.3)
    casts: float = constant(1.02, 1.0, "times that a cast to fp8 moves a product's input", 0.5)
    block_casts: float = constant(1.51, 1.5, "further times if blocks have their own scales", 0.5)
    permutes: float = constant(3.28, 3.0, "times that tokens move on the way to and from experts", 0.4)
    grouped: float = constant(0.915, 0.9, "a grouped product's rate over a single one's", 0.07, most=1)
    launch: float = constant(60e-6, 60e-6, "the host's time for half a layer's forward pass", 0.5)
    launch_eager: float = constant(300e-6, 300e-6, "the host's time for half a layer's forward pass, eager", 0.3)
    launch_experts: float = constant(
        0.00184,
        1.5e-3,
        "the host's time for half a layer's forward pass with experts, whose token counts it awaits",
        0.5,
    )
    tensor: float = constant(0.5, 0.6, "share of tensor-parallel traffic that shows where it overlaps", 0.5, most=1)
    context: float = constant(0.521, 0.5, "share of context-parallel traffic that shows", 0.5, most=1)
    data: float = constant(
        0.635, 0.25, "share of data-parallel traffic's time by which it slows the kernels", 0.7, most=1
    )
    dispatch: float = constant(2, 1.2, "times the ideal seconds to send tokens to experts in a node", 0.4)
    dispatch_across: float = constant(1.14, 1.1, "times the ideal seconds to send tokens to experts across nodes", 0.25)
    again: float = constant(0.99, 1.0, "a recomputed forward pass over the first one", 0.2)
    fixed: float = constant(0.0223, 20e-3, "seconds a step: the optimizer's launches, the gradients' norm, logs", 0.5)


FITTED = Constants()
"""The constants that fit the published runs in book/data/published best. `evidence.refit` finds them again."""

LEFT_OUT = {"dense": 0.089, "experts": 0.206}
"""The spread of log(predicted / measured), by kind of model, over runs whose repository was left out of the fit.

It is the 90th percentile of its size, over that of a normal distribution's: a few runs are far worse.
"""


@dataclass(frozen=True)
class Fitted:
    """The seconds of kernels on a GPU, by `constants`. `costs` asks it for layers, logits and the update."""

    gpu: Gpu
    constants: Constants = FITTED

    # --- rates ------------------------------------------------------------------------------------------------------

    def _of(self, name: str):
        return getattr(self.constants, name)

    @property
    def _clock(self):
        """The clock over the usual one. A lower power limit slows all arithmetic, and no memory."""
        share = self.gpu.watts / self.gpu.usual_watts
        return 1.0 if share == 1 else share ** self._of("power")

    def rate(self, precision: str = "bf16"):
        """Return the FLOP/s of large products. Ampere has no fp8, and Hopper no fp4."""
        gpu = self.gpu
        ultra, blackwell = gpu.generation == "Blackwell Ultra", gpu.generation.startswith("Blackwell")
        part = "ultra" if ultra else gpu.generation.lower()
        bf16 = gpu.peak * self._of(f"product_{part}") * self._clock
        if precision == "bf16" or gpu.generation == "Ampere":
            return bf16
        if precision == "nvfp4" and blackwell:
            return bf16 * self._of(f"fp4_{part}")
        return bf16 * self._of("fp8_blackwell" if blackwell else "fp8_hopper")

    def attention_rate(self, flash: int, width: int):
        """Return the FLOP/s of an attention kernel. Narrow heads have more exponentials a FLOP, so they are slower."""
        generation = self.gpu.generation
        kernel = {"Ampere": "flash_ampere", "Hopper": "flash_hopper"}.get(generation, "flash_blackwell")
        if flash == 1 and generation in ("Ampere", "Hopper"):
            kernel = kernel.replace("flash", "flash1")
        if flash == 2 and generation == "Hopper":
            kernel = "flash2_hopper"
        return self.gpu.peak * self._of(kernel) * self._clock * min(1.0, width / 128)

    def moving(self, num_bytes, times=1.0):
        """Return the seconds to move bytes between the GPU and its memory."""
        return times * num_bytes / self.gpu.bandwidth

    # --- kernels ----------------------------------------------------------------------------------------------------

    def product(self, m, k, n, software: Software, count=1, precision: str | None = None, speed=1.0) -> Both:
        """Return the seconds of `count` products of (m, k) by (k, n), and of the two in the backward pass.

        Outputs are bf16, and gradients of weights fp32.
        """
        precision = precision or software.precision
        size = 2.0 if self.gpu.generation == "Ampere" else ELEMENT[precision]
        left, right, out = m * k, k * n, m * n
        work = 2 * m * k * n * count / (self.rate(precision) * speed)
        moves = self.moving(count, self._of("reads"))
        forward = work + moves * (size * (left + right) + 2 * out)
        backward = 2 * work + moves * (size * (2 * out + left + right) + 2 * left + 4 * right)
        return Both(forward, backward / 2 if software.frozen else backward)

    def _passes(self, forward) -> Both:
        return Both(forward, 2 * forward)

    def elementwise(self, numbers, software: Software, times=None) -> Both:
        """Return the seconds of norms, activation functions and residuals that touch so many bf16 numbers forward."""
        return self._passes(self.moving(WORD * numbers, self._of(software.stack) if times is None else times))

    def casts(self, numbers, software: Software) -> Both:
        """Return the seconds to cast so many inputs of products: read 2 bytes, write 1, and 1 transposed."""
        if software.precision == "bf16" or self.gpu.generation == "Ampere":
            return Both(0.0, 0.0)
        times = self._of("casts") * (1 if software.precision == "fp8" else self._of("block_casts"))
        return self._passes(self.moving(4 * numbers, times))

    def attention(self, model: Model, layout: Layout) -> Both:
        """Return the seconds of a layer's attention, with its norm."""
        software, tp, tokens = layout.software, layout.tp, layout.micro_batch * model.sequence / layout.cp
        heads = model.heads * model.width / tp
        if model.kv_rank:
            latents = (model.query_rank or model.hidden) + model.kv_width
            queries, pairs = model.heads * (model.width + model.rope) / tp, 2 * heads
            inwards = self.product(tokens, model.hidden, latents, software)
            inwards += self.product(tokens, model.query_rank or model.hidden, queries, software)
            inwards += self.product(tokens, model.kv_rank, pairs, software)
            wide = latents + queries + pairs
        else:
            wide = heads + model.kv_width / tp
            inwards = self.product(tokens, model.hidden, wide, software)
        outwards = self.product(tokens, heads, model.hidden, software)
        moved = tokens * (5 * model.hidden / _sharding(layout) + 2 * wide + heads)
        around = self.elementwise(moved, software) + self.casts(tokens * (model.hidden + heads), software)
        return inwards + outwards + around + self._core(model, layout, tokens)

    def _core(self, model: Model, layout: Layout, tokens) -> Both:
        """Return the seconds of scores and their weighted sum. FlashAttention's backward pass has 2.5 times the FLOPs.

        A classic model multiplies in two products a head, and moves its scores for mask, softmax and dropout.
        """
        if model.classic:
            heads, software = model.heads / layout.tp, layout.software
            scores = self.product(tokens, model.width, model.sequence, software, heads, "bf16")
            values = self.product(tokens, model.sequence, model.width, software, heads, "bf16")
            return scores + values + self.elementwise(5 * tokens * heads * model.sequence, software, 1.0)
        forward = tokens * model.scores / layout.tp / self.attention_rate(layout.software.flash, model.width)
        return Both(forward, 2.5 * forward)

    def mlp(self, model: Model, layout: Layout, rows, width, inner=None, count=1, times=None, speed=1.0) -> Both:
        """Return the seconds of `count` MLPs on `rows` tokens each, `width` wide on this rank."""
        software, inner = layout.software, inner or model.hidden
        up = self.product(rows, inner, (model.matrices - 1) * width, software, count, speed=speed)
        down = self.product(rows, width, inner, software, count, speed=speed)
        tokens = rows * count
        acting = self.elementwise(tokens * model.matrices * width, software, times)
        return up + down + acting + self.casts(tokens * (inner + width), software)

    def routed(self, model: Model, layout: Layout) -> Both:
        """Return the seconds of a layer of experts: router, permutation, grouped products, shared experts.

        Tokens spread evenly over all experts.
        """
        software, inner = layout.software, model.latent or model.hidden
        tokens = layout.micro_batch * model.sequence / layout.cp
        own = tokens / layout.tp  # a rank routes its part of the sequence
        local = model.experts / layout.ep
        visits = tokens * model.top_k * layout.expert_tp / layout.tp
        width = model.expert_width / layout.expert_tp
        seconds = self.mlp(model, layout, visits / local, width, inner, local, self._of("experts"), self._of("grouped"))
        seconds += self.product(own, model.hidden, model.experts, software, 1, "bf16")
        permuting = self.moving(2 * WORD * own * model.top_k * inner, self._of("permutes"))
        seconds += Both(permuting, permuting) + self.elementwise(5 * own * model.hidden, software)
        if model.latent:
            seconds += self.product(own, model.hidden, 2 * model.latent, software)
        if model.shared_experts:
            shared = model.shared_experts * model.expert_width / layout.tp
            seconds += self.mlp(model, layout, tokens, shared)
        return seconds

    def mixer(self, model: Model, layout: Layout) -> Both:
        """Return the seconds of a Mamba-2 mixer: two projections, and bytes moved for its convolution and its scan.

        Convolution, gate and norm touch 5 numbers a channel; the scan's four kernels about 11, states in fp32 included.
        """
        software, tokens = layout.software, layout.micro_batch * model.sequence / layout.cp
        inner = model.mamba_inner / layout.tp
        inwards = self.product(tokens, model.hidden, model.mixer / model.hidden / layout.tp - inner, software)
        outwards = self.product(tokens, inner, model.hidden, software)
        moved = tokens * (5 * model.hidden / _sharding(layout) + 16 * inner)
        return inwards + outwards + self.elementwise(moved, software, self._of("mixer"))

    # --- what a step asks for ---------------------------------------------------------------------------------------

    def layer(self, model: Model, layout: Layout) -> Both:
        """Return the seconds of a layer on one rank for one micro-batch, averaged over the model's layers.

        Layers of tokens predicted further ahead count here, too.
        """
        software, tokens = layout.software, layout.micro_batch * model.sequence / layout.cp
        launch = self._of("launch_eager" if software.stack == "eager" else "launch")
        attention = self._launched(self.attention(model, layout), launch) * (model.attending + model.predictions)
        seconds = attention
        dense = model.mlp_layers - model.expert_layers + (0 if model.experts else model.predictions)
        if dense:
            mlp = self.mlp(model, layout, tokens, model.mlp_width / layout.tp)
            mlp += self.elementwise(5 * tokens * model.hidden / _sharding(layout), software)
            seconds += self._launched(mlp, launch) * dense
        if model.experts:
            waits = launch if software.capacity else self._of("launch_experts")
            seconds += self._launched(self.routed(model, layout), waits) * (model.expert_layers + model.predictions)
        if model.mamba_layers:
            seconds += self._launched(self.mixer(model, layout), launch) * model.mamba_layers
        return seconds * (1 / model.layers)

    def _launched(self, kernels: Both, host) -> Both:
        return Both(maximum(kernels.forward, host), maximum(kernels.backward, 2 * host))

    def logits(self, model: Model, layout: Layout) -> Both:
        """Return the seconds of the logits and their loss, in bf16, for one micro-batch."""
        tokens = layout.micro_batch * model.sequence / layout.cp
        columns = model.vocabulary / layout.tp
        product = self.product(tokens, model.hidden, columns, layout.software, 1, "bf16")
        loss = self.moving(3 * WORD * tokens * columns, self._of(layout.software.stack))
        return (product + Both(loss, loss)) * (1 + model.predictions)

    def recomputed(self, model: Model, layout: Layout, layer: Both):
        """Return the seconds that recomputing a layer adds. "selective" repeats norms and the like: we count 0."""
        share = {"full": 1.0, "half": 0.5}.get(layout.recompute, 0.0)
        return share * self._of("again") * layer.forward

    def update(self, parameters):
        """Return the seconds of Adam for a rank's `parameters`, which moves 30 bytes for each, and a step's others."""
        return self.moving(30 * parameters) + self._of("fixed")

    def sigma(self, model: Model) -> float:
        """Return the spread of the logarithm of predicted over measured seconds, on runs that were left out."""
        return LEFT_OUT["experts" if model.experts else "dense"]

    def gradient_bytes(self, software: Software) -> int:
        """Return the bytes of a gradient on the wire."""
        return software.gradient_bytes

    def shows(self, what: str, software: Software):
        """Return how much of the traffic of a kind shows in a step: "tensor", "context", "dispatch" and so on."""
        return 1.0 if what == "tensor" and not software.hides_tensor else self._of(what)


def _sharding(layout: Layout):
    """Return among how many ranks norms and residuals are split: by sequence parallelism."""
    return layout.tp if layout.sequence_parallel else 1
