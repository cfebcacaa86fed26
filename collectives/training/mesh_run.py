"""Torch's tensor parallelism and FSDP2 together on a real device mesh, with every collective counted by axis.

    mesh = Mesh(dp=2, tp=2)
    model = parallelize(dense_model(), mesh)        # on every rank: each weight cut along tp, then along dp
    with PerAxis(mesh) as seen:
        step(model, mesh)
    seen.calls                                      # {("dp", "all_gather"): (4, 55296), ("tp", "all_reduce"): ...}

The mesh is a `mesh.Mesh`. Its axis names say what they are for: "tp" for tensor parallelism, "dp" for FSDP, "replicate"
and "shard" for HSDP. Torch's FSDP takes seconds to import: see `fsdp.IMPORTS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from .. import ranks
from ..measure.wire import BytesSent, is_distributed
from . import fsdp, tiny
from .mesh import Mesh
from .transformer import Block

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DATA_AXES = ("dp", "replicate", "shard")
WIDTH, HEADS, TOKENS = 16, 4, 8  # small, and divisible by every axis size in use


def dense_model(depth: int = 2, width: int = WIDTH, heads: int = HEADS, dtype=torch.float64) -> nn.Sequential:
    """Return `depth` transformer blocks, the same on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*[Block(width, heads) for _ in range(depth)]).to(dtype)


def device_mesh(mesh: Mesh) -> DeviceMesh:
    """Return `mesh` as torch's device mesh: the same ranks in the same places, one process group per group."""
    return fsdp.mesh(*mesh.sizes.values(), names=mesh.axes)


# --- the model on the mesh --------------------------------------------------------------------------------------


def parallelize(model: nn.Sequential, mesh: Mesh, **options) -> nn.Sequential:
    """Cut a model of `Block`s in place, and return it.

    Along "tp" it is cut by heads and columns, then by FSDP2 along the data axes. The
    order matters: tensor parallelism cuts a weight for good, and FSDP gathers only what
    it left. `options`: those of `fully_shard`, such as `reshard_after_forward`. Without
    data axes there is no FSDP. Raises `ValueError` for any other axis.
    """
    if unknown := set(mesh.axes) - {"tp", *DATA_AXES}:
        known = ", ".join(["tp", *DATA_AXES])
        axes = ", ".join(unknown)
        raise ValueError(f"can't cut a model along {axes} of {mesh}: use {known}")
    grid = device_mesh(mesh)
    if "tp" in mesh.axes:
        split_tensors(model, grid["tp"])
    if data := tuple(axis for axis in mesh.axes if axis in DATA_AXES):
        fsdp.shard(model, mesh=grid[data], **options)
    return model


def split_tensors(model: nn.Sequential, group: DeviceMesh) -> nn.Sequential:
    """Split every block as Megatron does, in place, with torch: first matrices by columns, second ones by rows.

    Raises `ValueError` for heads that don't divide among the ranks of `group`.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    block: Any = model[0]
    attention, _ = block.halves
    if (heads := attention.second.in_features // attention.head_size) % group.size():
        raise ValueError(f"{heads} heads do not divide among {group.size()} tensor-parallel ranks")
    # Declaring a half's input replicated makes torch sum its gradient once, not once each for Q, K and V.
    enter = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
    plan = {"*.halves.*": enter, "*.halves.*.first.*": ColwiseParallel(), "*.halves.*.second": RowwiseParallel()}
    parallelize_module(model, group, plan)
    return model


class Held(NamedTuple):
    """A rank's part of one parameter. `rows`, `columns`: (first, last) in the whole; a bias has one column.

    `placements`: torch's, by axis: {"dp": "Shard(dim=0)"}.
    """

    name: str
    shape: tuple[int, ...]
    placements: dict[str, str]
    local_shape: tuple[int, ...]
    rows: tuple[int, int]
    columns: tuple[int, int]


def numbered(model: nn.Module) -> nn.Module:
    """Set each parameter's elements to 0, 1, 2, ... in place, so that a shard shows which it holds; return `model`.

    The parameters must be fp32 or fp64, so that these numbers are exact.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter))
    return model


def held(model: nn.Module) -> list[Held]:
    """Return this rank's parts of a model that was `numbered` before it was cut, read from the elements themselves."""
    return [_held(name, parameter) for name, parameter in model.named_parameters()]


def _held(name: str, parameter: Any) -> Held:
    local = parameter.to_local().detach()
    width = parameter.shape[1] if parameter.dim() > 1 else 1
    rows, columns = local.long() // width, local.long() % width
    grid = parameter.device_mesh
    placements = dict(zip(grid.mesh_dim_names, map(repr, parameter.placements), strict=True))
    spans = ((int(places.min()), int(places.max())) for places in (rows, columns))
    return Held(name, tuple(parameter.shape), placements, tuple(local.shape), *spans)


# --- a step, counted --------------------------------------------------------------------------------------------


class Event(NamedTuple):
    """An action of a rank: "forward", "backward", or a collective along `axis` on `num_bytes` (S)."""

    kind: str
    axis: str = ""
    num_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.kind} ({self.axis})" if self.axis else self.kind


class PerAxis(BytesSent):
    """A `BytesSent` that also records the axis of `mesh` along which each backend collective was called.

    `events`: this rank's actions in launch order. A run of matrix products counts as one compute event. A group that
    isn't one of the mesh's gets its ranks as its axis: "0, 1, 2, 3".
    """

    def __init__(self, mesh: Mesh):
        super().__init__()
        self.events: list[Event] = []
        self._axes = {tuple(group): axis for axis in mesh.axes for group in mesh.groups(axis)}

    @property
    def calls(self) -> dict[tuple[str, str], tuple[int, int]]:
        """{(axis, collective): (calls, bytes of their full buffers)}, comparable with `mesh.by_axis`."""
        totals: dict[tuple[str, str], tuple[int, int]] = {}
        for event in self.events:
            if event.axis:
                calls, num_bytes = totals.get((event.axis, event.kind), (0, 0))
                totals[event.axis, event.kind] = calls + 1, num_bytes + event.num_bytes
        return totals

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        calls, payloads = self.collectives.copy(), self.payloads.copy()
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        for kind in self.collectives - calls:  # one kind if this operation was a collective, else none
            self.events.append(Event(kind, self._axis(args), self.payloads[kind] - payloads[kind]))
        if operation.__name__.split(".")[0] in ("mm", "addmm") and not is_distributed(types):
            computing = Event("forward" if torch.is_grad_enabled() else "backward")  # backward runs without grad
            if self.events[-1:] != [computing]:
                self.events.append(computing)
        return result

    def _axis(self, args: Sequence) -> str:
        group = tuple(dist.get_process_group_ranks(_group(args)))
        return self._axes.get(group, ", ".join(map(str, group)))


def _group(args: Sequence) -> dist.ProcessGroup:
    """Return the process group among a collective's arguments: an object, or a name in last place."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject):
            return dist.ProcessGroup.unbox(arg)
    return dist.distributed_c10d._resolve_process_group(args[-1])


def batch(mesh: Mesh, rank: int, tokens: int = TOKENS, width: int = WIDTH, dtype=torch.float64):
    """Return `rank`'s inputs and targets, each [tokens, width]: one sequence per data place, equal along tp."""
    data = [axis for axis in mesh.axes if axis in DATA_AXES]
    peers = next(group for group in mesh.groups(*data) if rank in group) if data else [rank]
    parts = tiny.batch(0, peers.index(rank), len(peers), rows=tokens * len(peers), width=width, dtype=dtype)
    return tuple(part.to(ranks.device()) for part in parts)


def step(model: nn.Module, mesh: Mesh, **sizes) -> float:
    """Run forward and backward over this rank's sequence; return its loss. `sizes`: see `batch`."""
    inputs, targets = batch(mesh, dist.get_rank(), **sizes)
    loss = functional.mse_loss(model(inputs), targets)
    loss.backward()
    return loss.item()


def dense_step(model: nn.Module, mesh: Mesh, **sizes) -> list[float]:
    """Run `step` for all ranks in one process; return every rank's loss. `model` gets the gradients of their mean."""
    losses = []
    for rank in range(mesh.world_size):  # each sequence occurs once per rank along tp, which leaves the mean unchanged
        inputs, targets = batch(mesh, rank, **sizes)
        loss = functional.mse_loss(model(inputs), targets)
        (loss / mesh.world_size).backward()
        losses.append(loss.item())
    return losses


def off(model: nn.Module, dense: nn.Module, places: nn.Module) -> float:
    """Return the largest absolute difference between an element of this rank's gradients and the dense model's.

    `places`: the same model, `numbered` and then cut like `model`, which shows the elements that this rank has.
    """
    dense_gradients = [parameter.grad.flatten() for parameter in dense.parameters()]  # type: ignore[union-attr]
    rows: Iterable[tuple] = zip(model.parameters(), places.parameters(), dense_gradients, strict=True)
    return max(
        (parameter.grad.to_local() - expected[place.to_local().long()]).abs().max().item()
        for parameter, place, expected in rows
    )
