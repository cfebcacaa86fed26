"""The data-parallel step by hand, sharded more and more: DDP, then ZeRO's stages 1, 2 and 3.

    trained = ZeRO2(model)                  # on every rank, the same model in bf16
    loss(trained.model, batch).backward()   # each rank's own part of the batch
    trained.step()                          # all ranks end with the same new parameters

Every stage computes the same step, and overrides only what differs from the stage before. The optimizer is Adam in
mixed precision: the layers compute with bf16 parameters, and the optimizer updates fp32 copies of them, the *masters*.
All collectives are our rings, so you can count what each rank sends, message by message.

Source of the stages: Rajbhandari et al., “ZeRO: Memory Optimizations Toward Training Trillion Parameter Models”, 2020.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..algorithms import ring
from ..execute import execute
from .memory import shard_size


class Unit:
    """A module's parameters, communicated together, as views of one flat buffer.

    `parameters`: flat, padded so that all ranks' shards have equal length. `gradients`:
    in the same layout, allocated from the first gradient's arrival until the reduction.
    `reduced`: from stage 2 on, this rank's shard of the reduced gradients. `shard`: in
    stage 3, this rank's shard of the parameters. `mine`: this rank's slice of the flat
    buffers. `complete`: whether every parameter has its gradient. `master`, `optimizer`:
    the fp32 copy of what this rank updates, and its AdamW.
    """

    def __init__(self, module: nn.Module, rank: int, world_size: int):
        self.module = module
        self.tensors = list(module.parameters())
        if not self.tensors or not all(tensor.requires_grad for tensor in self.tensors):
            raise ValueError(
                f"{module} cannot be a unit: a unit needs parameters, all trained. "
                "Put a module without parameters into one block with its neighbour"
            )
        size = shard_size(sum(tensor.numel() for tensor in self.tensors), world_size)
        self.mine = slice(rank * size, (rank + 1) * size)
        self.parameters = self.tensors[0].new_zeros(size * world_size)
        for tensor, view in zip(self.tensors, self.views(self.parameters), strict=True):
            view.copy_(tensor.data)
            tensor.data = view
        self.gradients: torch.Tensor | Any = None
        self.reduced: torch.Tensor | Any = None
        self.shard: torch.Tensor | Any = None
        self.master: torch.Tensor
        self.optimizer: torch.optim.Optimizer
        self.missing, self.complete = set(self.tensors), False

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return views of `flat`, laid out as the parameters are, in their shapes."""
        sizes = [tensor.numel() for tensor in self.tensors]
        pieces = flat[: sum(sizes)].split(sizes)
        pairs = zip(pieces, self.tensors, strict=True)
        return [piece.view(tensor.shape) for piece, tensor in pairs]

    def collect(self, tensor: nn.Parameter) -> bool:
        """Add a new gradient to the flat buffer; return whether it was the last one."""
        if self.gradients is None:
            self.gradients = torch.zeros_like(self.parameters)
        views = dict(zip(self.tensors, self.views(self.gradients), strict=True))
        assert tensor.grad is not None  # autograd calls the hook after setting it
        views[tensor].add_(tensor.grad)
        tensor.grad = None
        self.missing.discard(tensor)
        self.complete = not self.missing
        if self.complete:
            self.missing = set(self.tensors)
        return self.complete


class Replicated:
    """Stage 0, as in DDP: ranks hold everything, and all-reduce before the update.

    `model`: its children are the units; each is reduced, updated and (from stage 1 on)
    sharded separately. It must be the same on every rank. `lr`: AdamW's learning rate.
    """

    def __init__(
        self,
        model: nn.Sequential,
        lr: float = 1e-2,
        group: dist.ProcessGroup | None = None,
    ):
        self.model, self.group = model, group
        rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.units = [Unit(module, rank, self.world_size) for module in model]
        for unit in self.units:
            unit.master = self.owned(unit, unit.parameters).to(torch.float32, copy=True)
            unit.optimizer = torch.optim.AdamW([unit.master], lr=lr, fused=True)
            for tensor in unit.tensors:
                tensor.register_post_accumulate_grad_hook(partial(self.arrived, unit))

    def step(self) -> None:
        """Reduce the gradients, update, and leave every rank with the same parameters.

        Raises `RuntimeError` if a parameter has no gradient.
        """
        for unit in self.units:
            if not unit.complete:
                raise RuntimeError(
                    f"{unit.module} lacks gradients: does the loss depend on all of it?",
                )
            unit.master.grad = self.reduce(unit).float()
            unit.master.grad /= self.world_size  # the mean over ranks
            unit.gradients, unit.reduced, unit.complete = None, None, False
            unit.optimizer.step()
            unit.master.grad = None
            self.publish(unit)

    def held(self) -> dict[str, list[torch.Tensor]]:
        """Return the tensors of the model's state that this rank holds now, by kind."""
        held: dict[str, list] = {"parameters": [], "gradients": [], "optimizer": []}
        for unit in self.units:
            moments = unit.optimizer.state[unit.master].values()
            fresh = [tensor.grad for tensor in [*unit.tensors, unit.master]]
            held["parameters"] += [unit.parameters, unit.shard]
            held["gradients"] += [unit.gradients, unit.reduced, *fresh]
            held["optimizer"] += [unit.master, *moments]
        for kind, tensors in held.items():
            held[kind] = [tensor for tensor in tensors if tensor is not None]
        return held

    # --- what the stages change ---------------------------------------------------------

    def owned(self, unit: Unit, flat: torch.Tensor) -> torch.Tensor:
        """Return the part of `flat` that this rank updates."""
        return flat

    def arrived(self, unit: Unit, tensor: nn.Parameter) -> None:
        """Handle a new gradient during the backward pass."""
        unit.collect(tensor)

    def reduce(self, unit: Unit) -> torch.Tensor:
        """Return the gradients of what this rank updates, summed over all ranks."""
        execute(ring.all_reduce(self.world_size), unit.gradients, self.group)
        return unit.gradients

    def publish(self, unit: Unit) -> None:
        """Give the layers the new parameters."""
        unit.parameters.copy_(unit.master)


class ZeRO1(Replicated):
    """Stage 1: a rank updates only its shard, and holds the optimizer state for it."""

    def owned(self, unit: Unit, flat: torch.Tensor) -> torch.Tensor:
        return flat[unit.mine]

    def reduce(self, unit: Unit) -> torch.Tensor:
        """Run an all-reduce's first half: the sum stays on the rank that needs it."""
        execute(ring.reduce_scatter(self.world_size), unit.gradients, self.group)
        return unit.gradients[unit.mine]

    def publish(self, unit: Unit) -> None:
        """Run the second half, on new parameters instead of summed gradients."""
        unit.parameters[unit.mine] = unit.master.to(unit.parameters.dtype)
        execute(ring.all_gather(self.world_size), unit.parameters, self.group)


class ZeRO2(ZeRO1):
    """Stage 2: a unit's gradients are reduced at once; this rank keeps only its shard."""

    def arrived(self, unit: Unit, tensor: nn.Parameter) -> None:
        if unit.collect(tensor):
            shard = super().reduce(unit)
            if unit.reduced is None:
                unit.reduced = torch.zeros_like(shard)
            unit.reduced += shard
            unit.gradients = None  # frees the other shards

    def reduce(self, unit: Unit) -> torch.Tensor:
        return unit.reduced


class ZeRO3(ZeRO2):
    """Stage 3: a unit's full parameters exist only while it computes; otherwise each rank holds its shard.

    `reshard`: whether to free them after the forward pass and gather them again for the backward pass.
    """

    def __init__(self, model: nn.Sequential, *args, reshard: bool = True, **kwargs):
        super().__init__(model, *args, **kwargs)
        self.reshard = reshard
        for unit in self.units:
            unit.shard = unit.parameters[unit.mine].clone()
            self.free(unit)
            unit.module.register_forward_pre_hook(lambda *_, unit=unit: self.gather(unit))
            unit.module.register_forward_hook(partial(self.computed, unit))

    def computed(self, unit: Unit, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        """Free a unit after its forward pass, and gather it again when the gradient of its output arrives."""
        if self.reshard:
            self.free(unit)
        if output.requires_grad:
            output.register_hook(lambda _: self.gather(unit))

    def gather(self, unit: Unit) -> None:
        """All-gather the unit's parameters, unless they are already there."""
        storage = unit.parameters.untyped_storage()
        if not storage.nbytes():
            storage.resize_(unit.parameters.numel() * unit.parameters.element_size())
            unit.parameters[unit.mine] = unit.shard
            execute(ring.all_gather(self.world_size), unit.parameters, self.group)

    def free(self, unit: Unit) -> None:
        """Free the full parameters; the module's tensors stay, as views of empty storage."""
        unit.parameters.untyped_storage().resize_(0)

    def arrived(self, unit: Unit, tensor: nn.Parameter) -> None:
        super().arrived(unit, tensor)
        if unit.complete:
            self.free(unit)

    def publish(self, unit: Unit) -> None:
        """Keep the updated shard and free the old parameters; nothing needs to be sent."""
        unit.shard.copy_(unit.master)
        self.free(unit)
