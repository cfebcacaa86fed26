"""A small model with a small task, the same for all ways of training it: what differs is the way alone."""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 24  # divides by 2, 3 and 4, so that shards need no padding


class TinyBlock(nn.Module):
    """A residual block: widen, bend, narrow, add. 2 w (4w) weights and 5w biases for width w."""

    def __init__(self, width: int):
        super().__init__()
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, width] -> [rows, width]."""
        return x + self.narrow(torch.relu(self.widen(x)))


def model(depth: int = 4, width: int = WIDTH, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Sequential:
    """`depth` blocks, with the same parameters wherever it is called with the same `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(*[TinyBlock(width) for _ in range(depth)]).to(dtype)


def batch(
    step: int,
    rank: int = 0,
    world_size: int = 1,
    rows: int = 12,
    width: int = WIDTH,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of the batch of a step: inputs and targets, each [rows / world_size, width].

    The whole batch of `rows` is the same for every `world_size`, which must divide it: rank r has the r-th part.
    """
    if rows % world_size:
        raise ValueError(f"{rows} rows do not divide among {world_size} ranks")
    generator = torch.Generator().manual_seed(1_000 + step)
    inputs = torch.randn(rows, width, generator=generator)
    targets = inputs.roll(1, dims=1).sin()  # a task that can be learned
    mine = slice(rank * rows // world_size, (rank + 1) * rows // world_size)
    return inputs[mine].to(dtype), targets[mine].to(dtype)


def loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean squared error, in fp32: a scalar."""
    return nn.functional.mse_loss(model(inputs).float(), targets.float())
