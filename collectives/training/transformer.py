"""A dense transformer block whose code also runs a rank's part of it: fewer heads, a narrower MLP.

Both halves of a block have the form Y = g(h(f(X) A) B): a first matrix that is split by columns, a function that acts
on each column or head separately, and a second matrix that is split by rows. `enter` and `leave` are f and g. They do
nothing in a dense block, and run a collective in a rank's part of it (see `tensor_parallel`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

Gate = Callable[[torch.Tensor], torch.Tensor]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def nothing(x: torch.Tensor) -> torch.Tensor:
    """Return `x` unchanged: the gates of a dense block."""
    return x


def causal(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return causal attention, [..., heads, tokens, head_size], where all tokens are on this rank."""
    return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)


class MLP(nn.Module):
    """A two-layer MLP with GELU: [..., tokens, width] -> [..., tokens, hidden] -> [..., tokens, width]."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.first = nn.ModuleList([nn.Linear(width, hidden)])
        self.second = nn.Linear(hidden, width, bias=False)  # g's sum would add a bias once per rank
        self.enter: Gate = nothing
        self.leave: Gate = nothing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (widen,) = self.first
        return self.leave(self.second(functional.gelu(widen(self.enter(x)))))


class Attention(nn.Module):
    """Causal multi-head attention over one sequence or a batch: [..., tokens, width] -> the same, by `head_size`.

    `attend`: what heads do with queries, keys and values; see `context_parallel` for a sequence that ranks share.
    """

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.head_size = width // num_heads
        self.first = nn.ModuleList([nn.Linear(width, width) for _ in ("queries", "keys", "values")])
        self.second = nn.Linear(width, width, bias=False)
        self.attend: Attend = causal
        self.enter: Gate = nothing
        self.leave: Gate = nothing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        entered = self.enter(x)
        q, k, v = (project(entered).unflatten(-1, (-1, self.head_size)).transpose(-3, -2) for project in self.first)
        attended = self.attend(q, k, v)  # [..., heads, tokens, head_size]
        return self.leave(self.second(attended.transpose(-3, -2).flatten(-2)))


class Block(nn.Module):
    """A transformer block: x + attention(norm(x)), then x + mlp(norm(x)), [..., tokens, width] -> the same shape."""

    def __init__(self, width: int, num_heads: int, hidden: int | None = None):
        super().__init__()
        if width % num_heads:
            raise ValueError(f"a width of {width} does not divide into {num_heads} heads")
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.halves = nn.ModuleList([Attention(width, num_heads), MLP(width, hidden or 4 * width)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, half in zip(self.norms, self.halves, strict=True):
            x = x + half(norm(x))
        return x
