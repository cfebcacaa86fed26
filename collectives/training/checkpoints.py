"""Checkpoints: the state of a training job in a folder, from which it goes on as if nothing had happened.

    first = resume(folder, model, optimizer)            # 0 if there is none
    for step in range(first, steps):
        ...
        save(folder, model, optimizer, step + 1)        # each rank writes its own shard

It is torch's distributed checkpoint (DCP). Names don't depend on how the model is sharded, so a job may go on with
another number of ranks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

IMPORTS = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict")
"""The modules that this module imports on first use, for `ranks.preload`."""


def state_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return what a checkpoint holds, with names that don't depend on the strategy or the number of ranks."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def save(folder: Path, model: nn.Module, optimizer: Optimizer, number: int) -> None:
    """Save the state after `number` steps, a shard a rank; then point `latest` to it."""
    from torch.distributed import checkpoint

    checkpoint.save(state_of(model, optimizer), checkpoint_id=folder / f"step-{number}")
    if dist.get_rank() == 0:
        with (folder / "latest.new").open("wb", buffering=0) as file:
            file.write(str(number).encode())
            os.fsync(file)  # on the disk: a node may lose power
        # in one go: a job may be killed at any moment
        (folder / "latest.new").replace(folder / "latest")


def resume(folder: Path | None, model: nn.Module, optimizer: Optimizer) -> int:
    """Load the latest state in `folder`, if there is one; return how many steps it has behind it."""
    if folder is None or not (folder / "latest").exists():
        return 0
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import set_state_dict

    number = int((folder / "latest").read_text())
    state = state_of(model, optimizer)
    checkpoint.load(state, checkpoint_id=folder / f"step-{number}")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return number
