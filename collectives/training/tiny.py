"""A small model and task, the same for every way of training it, so that only the way differs."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

WIDTH = 24  # divides by 2, 3 and 4, so that shards need no padding


class TinyBlock(nn.Module):
    """A residual MLP block with ReLU, `inner` times as wide inside.

    For width w it has 2 w (inner w) weights and (inner + 1) w biases.
    """

    def __init__(self, width: int, inner: int = 4):
        super().__init__()
        self.widen = nn.Linear(width, inner * width)
        self.narrow = nn.Linear(inner * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output: [rows, width] -> [rows, width]."""
        return x + self.narrow(torch.relu(self.widen(x)))


def model(
    depth: int = 4,
    width: int = WIDTH,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    inner: tuple[int, ...] = (4,),
) -> nn.Sequential:
    """Return `depth` blocks. The same `seed` gives the same parameters everywhere.

    `inner`: how many times as wide as outside the blocks are inside, in turn.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(*[TinyBlock(width, inner[number % len(inner)]) for number in range(depth)]).to(dtype)


def batch(
    step: int,
    rank: int = 0,
    world_size: int = 1,
    rows: int = 12,
    width: int = WIDTH,
    dtype: torch.dtype = torch.float32,
    seed: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's part of the batch of `step`: inputs and targets, each [rows / world_size, width].

    The whole batch of `rows` is the same for every `world_size`, and rank r has the r-th part. Raises `ValueError` if
    `rows` doesn't divide among the ranks.

    `seed`: draw the batch from all bits of this number, so that a rank that isn't told it can't make the others' rows.
    """
    if rows % world_size:
        raise ValueError(f"{rows} rows do not divide among {world_size} ranks")
    if seed is None:
        inputs = torch.randn(rows, width, generator=torch.Generator().manual_seed(1_000 + step))
    else:  # torch's generator would keep 32 of the bits
        inputs = torch.from_numpy(np.random.default_rng((seed, step)).standard_normal((rows, width), np.float32))
    targets = inputs.roll(1, dims=1).sin()  # a learnable task
    mine = slice(rank * rows // world_size, (rank + 1) * rows // world_size)
    return inputs[mine].to(dtype), targets[mine].to(dtype)


def loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error, a scalar in fp32."""
    return nn.functional.mse_loss(model(inputs).float(), targets.float())
