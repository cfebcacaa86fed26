"""What a transformer layer keeps for its backward pass, counted on a real layer, and ways to keep less.

    layer = Layer(model).bfloat16()
    for kept in saved(layer, x):              # the tensors that autograd saves, by the module that saves them
        print(kept)
    held, flops = measured(layer, x, "full")  # bytes held after the forward pass, FLOPs of both passes

`Model.kept` has the formula that these counts are held against. Sources: Korthikanti et al., “Reducing Activation
Recomputation in Large Transformer Models”, 2022; Chen et al., “Training Deep Nets with Sublinear Memory Cost”, 2016.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from ..measure.held import BytesHeld
from .models import Model

aten = torch.ops.aten
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu  # fused attention, as torch runs it on a CPU
PRODUCTS = (
    aten.mm.default,
    aten.addmm.default,  # a product with a bias
    ATTENTION.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
)
"""What takes nearly all of a layer's FLOPs, by every name that torch has for it, on CPUs and on GPUs."""


# --- a layer ------------------------------------------------------------------------------------------------------


class _RMSNorm(torch.autograd.Function):
    """x / rms(x) * weight, as one kernel: it keeps x and one number a token, and no copy in fp32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = (exact.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).type_as(x) * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        x, weight, scale = ctx.saved_tensors
        unit, inner = x * scale, gradients[0] * weight
        towards = (inner * unit).mean(-1, keepdim=True)
        weights = (gradients[0] * unit).flatten(0, -2).sum(0)
        return ((inner - unit * towards) * scale).type_as(x), weights.type_as(weight), None


class _SwiGLU(torch.autograd.Function):
    """silu(gate) * up, as one kernel: it keeps its two inputs, and computes silu(gate) again."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        gate, up = ctx.saved_tensors
        share = gate.sigmoid()
        slope = share * (1 + gate * (1 - share))
        return gradients[0] * up * slope, gradients[0] * gate * share


class Norm(nn.Module):
    """RMSNorm over the last axis: as one kernel if `fused`, else torch's, operation by operation."""

    def __init__(self, width: int, fused: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.fused = fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fused:
            return _RMSNorm.apply(x, self.weight, 1e-5)  # type: ignore[no-any-return]
        return functional.rms_norm(x, x.shape[-1:], self.weight, 1e-5)


class Attention(nn.Module):
    """Causal attention with shared keys and values and rotary positions: [batch, tokens, width] -> the same."""

    turns: torch.Tensor

    def __init__(self, model: Model):
        super().__init__()
        kv_width = (model.kv_heads or model.heads) * model.width
        self.head_size = model.width
        self.queries = nn.Linear(model.hidden, model.heads * model.width, bias=False)
        self.keys = nn.Linear(model.hidden, kv_width, bias=False)
        self.values = nn.Linear(model.hidden, kv_width, bias=False)
        self.output = nn.Linear(model.heads * model.width, model.hidden, bias=False)
        rates = 500_000.0 ** (-torch.arange(0, model.width, 2) / model.width)
        angles = torch.arange(model.sequence)[:, None] * rates
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()]).repeat(1, 1, 2))  # [2, tokens, head]

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        """Return queries or keys turned by their position: [batch, heads, tokens, head_size] -> the same."""
        cos, sin = self.turns[:, : x.shape[-2]]
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat([-high, low], -1) * sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (project(x) for project in (self.queries, self.keys, self.values))
        q, k, v = (part.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(
            self.rotated(q), self.rotated(k), v, is_causal=True, enable_gqa=True
        )
        return self.output(attended.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Llama's gated MLP: down(silu(gate(x)) * up(x)), [batch, tokens, width] -> the same."""

    def __init__(self, model: Model, fused: bool):
        super().__init__()
        self.gate = nn.Linear(model.hidden, model.mlp_width, bias=False)
        self.up = nn.Linear(model.hidden, model.mlp_width, bias=False)
        self.down = nn.Linear(model.mlp_width, model.hidden, bias=False)
        self.fused = fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate(x), self.up(x)
        return self.down(_SwiGLU.apply(gate, up) if self.fused else functional.silu(gate) * up)


class Layer(nn.Module):
    """One layer of a dense Llama: x + attention(norm(x)), then x + mlp(norm(x)), [batch, tokens, width] -> the same.

    `fused`: norms and the MLP's activation function run as one kernel each, as on a GPU. Otherwise torch runs them
    operation by operation and keeps what each of these needs.
    """

    def __init__(self, model: Model, fused: bool = True):
        super().__init__()
        self.attention_norm = Norm(model.hidden, fused)
        self.attention = Attention(model)
        self.mlp_norm = Norm(model.hidden, fused)
        self.mlp = MLP(model, fused)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


# --- what it keeps ------------------------------------------------------------------------------------------------


class Saved(NamedTuple):
    """A tensor that autograd saves. `by`: the innermost module that saves it first. `num_bytes`: of its storage."""

    by: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int


def saved(layer: nn.Module, x: torch.Tensor) -> list[Saved]:
    """Return what autograd saves while `layer` runs on `x`, in order: no parameters, no buffers, nothing twice."""
    known = {tensor.untyped_storage().data_ptr() for tensor in (*layer.parameters(), *layer.buffers())}
    running, found = ["the layer"], []
    alive = []  # so that no storage's address is used again

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            alive.append(storage)
            found.append(Saved(running[-1], tuple(tensor.shape), tensor.dtype, storage.nbytes()))
        return tensor

    hooks = []
    for name, module in layer.named_modules():
        if name:
            hooks.append(module.register_forward_pre_hook(lambda *_, name=name: running.append(name)))
            hooks.append(module.register_forward_hook(lambda *_: running.pop() and None))
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    for hook in hooks:
        hook.remove()
    return found


# --- keeping less -------------------------------------------------------------------------------------------------


Policy = Callable[..., CheckpointPolicy]


def keep_products(context, operation, *args, **options) -> CheckpointPolicy:
    """Keep what products and attention return; recompute norms, rotations, SwiGLU."""
    if operation in PRODUCTS:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def keep_used_products(layer: Layer) -> Policy:
    """Return `keep_products`, but without the layer's last product, which its backward pass never reads."""
    down = layer.mlp.down.weight.T.shape

    def policy(context: Any, operation: Any, *args: Any, **options: Any) -> CheckpointPolicy:
        last = operation is aten.mm.default and args[1].shape == down
        return CheckpointPolicy.PREFER_RECOMPUTE if last else keep_products(context, operation)

    return policy


def keep_every_second_product(layer: Layer) -> Policy:
    """Return a policy that keeps attention's result and every second product's, as torchtitan's "op" mode does."""
    count = {False: 0, True: 0}  # products so far in the forward pass, and while recomputing

    def policy(context: Any, operation: Any, *args: Any, **options: Any) -> CheckpointPolicy:
        if operation is aten.mm.default:
            count[context.is_recompute] += 1
            if count[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return keep_products(context, operation)

    return policy


def keep_nothing(layer: Layer) -> Policy:
    """Return a policy that keeps no operation's result. The layer's input is kept in any case."""
    return lambda context, operation, *args, **options: CheckpointPolicy.PREFER_RECOMPUTE


CHOICES: dict[str, Callable[[Layer], Policy] | None] = {
    "keep all": None,
    "recompute all but products": keep_used_products,
    "recompute every second product": keep_every_second_product,
    "recompute the layer": keep_nothing,
}
"""What the backward pass recomputes, by the function that makes the policy for a layer; None if nothing."""


def run(layer: Layer, x: torch.Tensor, choice: str) -> Any:
    """Return `layer(x)`, and keep what `choice` says for the backward pass.

    Raises `KeyError` if there is no such choice.
    """
    make = CHOICES[choice]
    if make is None:
        return layer(x)
    contexts = partial(create_selective_checkpoint_contexts, make(layer))
    return checkpoint(layer, x, use_reentrant=False, context_fn=contexts)


class Measured(NamedTuple):
    """What a layer holds after its forward pass besides its output, the FLOPs of both passes, and its gradients."""

    num_bytes: int
    flops: int
    gradients: list[torch.Tensor]


def measured(layer: Layer, x: torch.Tensor, choice: str) -> Measured:
    """Run `layer` on `x` forward and backward, and count. `x` counts as held: the layer keeps it for its first norm."""
    x = x.detach().requires_grad_()
    layer.zero_grad()
    known = [*layer.parameters(), *layer.buffers()]
    with counting_flops() as flops:
        with BytesHeld(lambda: {"weights": known}) as held:
            y = run(layer, x, choice)
            num_bytes = held.now["other"] - y.untyped_storage().nbytes()
        y.float().square().sum().backward()
    gradients = [tensor.grad.clone() for tensor in (x, *layer.parameters()) if tensor.grad is not None]
    return Measured(num_bytes, flops.get_total_flops(), gradients)


def counting_flops() -> FlopCounterMode:
    """Return torch's counter of FLOPs, with attention on a CPU, of which the mask leaves half."""
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward

    def attention_flops(queries: Any, *rest: Any, **options: Any) -> int:
        batch, heads, tokens, head_size = queries
        return 2 * batch * heads * tokens**2 * head_size

    def backward_flops(gradient: Any, queries: Any, *rest: Any, **options: Any) -> int:
        return 5 * attention_flops(queries) // 2

    return FlopCounterMode(display=False, custom_mapping={ATTENTION: attention_flops, backward: backward_flops})
