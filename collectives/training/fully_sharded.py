"""FSDP by hand: a unit's parameters are gathered late, freed early, and the next unit's gather is launched ahead.

    sharded = FullySharded(model)                                # on every rank, the same model
    optimizer = torch.optim.AdamW(sharded.parameters())          # of this rank's shards
    tiny.loss(sharded, *batch).backward()                        # each rank's own part of the batch
    sharded.finish()                                             # waits for the last reduce-scatter
    optimizer.step()

It does the core of torch's `fully_shard` in one precision. `sharded.ZeRO3` is the same stage without overlap. Here the
backend's own collectives run in its threads or streams while the rank computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from .sharded import Unit


class FullySharded:
    """A model of units that rest as shards. Each is gathered before it computes and freed afterwards.

    `model`: its children are the units. Each takes and returns one tensor, and they compute in order. `prefetch`:
    whether a unit launches the gather of the unit that computes next before it computes itself. `events`: what this
    rank has launched and begun, in order, by the names of `timeline.sharded` and `fsdp.trace`, and "free".
    """

    def __init__(self, model: nn.Sequential, prefetch: bool = True, group: dist.ProcessGroup | None = None):
        self.model, self.prefetch, self.group = model, prefetch, group
        self.world_size = dist.get_world_size(group)
        self.units = [Unit(module, dist.get_rank(group), self.world_size) for module in model]
        self.events: list[str] = []
        self._gathers: dict[int, dist.Work] = {}  # by unit, those in flight
        self._scatter: tuple[Unit, dist.Work] | None = None  # the one in flight
        for number, unit in enumerate(self.units):
            unit.shard = nn.Parameter(unit.parameters[unit.mine].clone())
            unit.parameters.untyped_storage().resize_(0)
            self._register(number, unit)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(inputs)

    def parameters(self) -> Iterator[torch.Tensor]:
        """Yield this rank's shard of each unit, flat and padded; its `grad` is the mean over the ranks."""
        yield from (unit.shard for unit in self.units)

    def held(self) -> dict[str, list[torch.Tensor]]:
        """Return the tensors that this rank holds now, by kind, for `held.BytesHeld`."""
        units = self.units
        gradients = [unit.shard.grad for unit in units] + [unit.gradients for unit in units]
        gradients += [unit.reduced for unit in units] + [tensor.grad for unit in units for tensor in unit.tensors]
        return {
            "parameters": [unit.shard.data for unit in units],
            "gathered": [unit.parameters for unit in units],
            "gradients": [tensor for tensor in gradients if tensor is not None],
        }

    # --- the hooks ----------------------------------------------------------------------------------------------

    def _register(self, number: int, unit: Unit) -> None:
        """Let autograd and the module call the hooks around the passes of a unit."""
        unit.module.register_forward_pre_hook(lambda *_: self.before_forward(number))
        unit.module.register_forward_hook(lambda module, inputs, output: self.after_forward(number, output))
        for tensor in unit.tensors:
            tensor.register_post_accumulate_grad_hook(partial(self.arrived, number))

    def before_forward(self, number: int) -> None:
        """Complete the unit's parameters and launch the next unit's gather."""
        self.gather(number)
        self.wait(number)
        if self.prefetch and number + 1 < len(self.units):
            self.gather(number + 1)
        self.events.append(f"forward {number}")

    def after_forward(self, number: int, output: torch.Tensor) -> None:
        """Free the parameters. A hook on the output calls `before_backward` later."""
        self.free(number)
        if output.requires_grad:
            output.register_hook(lambda _: self.before_backward(number))

    def before_backward(self, number: int) -> None:
        """Complete the parameters again and launch the previous unit's gather."""
        self.gather(number, " again")
        self.wait(number)
        if self.prefetch and number:
            self.gather(number - 1, " again")
        self.events.append(f"backward {number}")

    def arrived(self, number: int, tensor: nn.Parameter) -> None:
        """Take a gradient. After the unit's last, free and reduce-scatter."""
        if self.units[number].collect(tensor):
            self.free(number)
            self.reduce_scatter(number)

    # --- what they call -----------------------------------------------------------------------------------------

    def gather(self, number: int, again: str = "") -> None:
        """Launch a unit's all-gather, unless it is there or on its way."""
        unit = self.units[number]
        storage = unit.parameters.untyped_storage()
        if not storage.nbytes():
            self.events.append(f"gather {number}{again}")
            storage.resize_(unit.parameters.nbytes)
            whole, shard = unit.parameters, unit.shard.detach()
            work = dist.all_gather_single(whole, shard, self.group, async_op=True)
            self._gathers[number] = _launched(work)

    def wait(self, number: int) -> None:
        """Wait for a unit's gather, if it is still in flight."""
        if number in self._gathers:
            self._gathers.pop(number).wait()

    def free(self, number: int) -> None:
        """Free the memory of a unit's full parameters. The module's tensors stay, as views of an empty storage."""
        self.events.append(f"free {number}")
        self.units[number].parameters.untyped_storage().resize_(0)

    def reduce_scatter(self, number: int) -> None:
        """Launch the reduce-scatter of a unit's gradients, after the one before: a single one holds its input."""
        self.finish()
        self.events.append(f"scatter {number}")
        unit = self.units[number]
        unit.reduced = torch.empty_like(unit.shard.data)
        work = dist.reduce_scatter_single(unit.reduced, unit.gradients, group=self.group, async_op=True)
        self._scatter = unit, _launched(work)

    def finish(self) -> None:
        """Wait for the reduce-scatter in flight, if any, and add its mean to the shard's gradient.

        Call it after each `backward()`. Micro-batches add up: divide each loss by their number.
        """
        if self._scatter:
            unit, work = self._scatter
            work.wait()
            mean = unit.reduced.div_(self.world_size)
            unit.shard.grad = mean if unit.shard.grad is None else unit.shard.grad.add_(mean)
            unit.gradients, unit.reduced, unit.complete, self._scatter = None, None, False, None


def _launched(work: dist.Work | None) -> dist.Work:
    """Return the handle of an asynchronous collective, which torch's types declare as optional."""
    assert work is not None  # with async_op=True, on a rank of the group
    return work
