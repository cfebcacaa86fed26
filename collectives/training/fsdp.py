"""Torch's FSDP2 (`fully_shard`) with the means to look inside: our own collectives, memory by kind, a real trace.

    model = shard(tiny.model(), gather=AllGather(), scatter=ReduceScatter())  # on every rank
    optimizer = torch.optim.AdamW(model.parameters())                         # of the shards
    train(model, optimizer, steps=range(3))

FSDP2 takes its collectives as two objects (`set_custom_all_gather`, `set_custom_reduce_scatter`). Ours are schedules,
executed message by message, so you can count what each rank sends to each peer. The backend's own collectives work as
well. A rank's device is the one that its backend needs, so the same code runs over gloo and over NCCL.

Torch's FSDP takes seconds to import, so functions import it where they use it. `ranks.preload(*IMPORTS)` imports it
once for all new ranks.
"""

from __future__ import annotations

import contextlib
import os
import re
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ..algorithms import ring
from ..execute import execute
from ..measure.wire import BytesSent
from ..ranks import device
from . import quantized, tiny
from .memory import shard_size
from .timeline import Span

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_Result = TypeVar("_Result")

IMPORTS = ("torch.distributed.fsdp", "torch._dynamo", "torch.distributed.checkpoint")
"""The modules that this module and torch's FSDP import on first use."""


def mesh(*sizes: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
    """Return a device mesh of all ranks with these sizes, numbered row by row, on this rank's device."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device().type, sizes, mesh_dim_names=names)


def shard(
    model: nn.Sequential,
    units: Iterable[nn.Module] | None = None,
    gather: AllGather | None = None,
    scatter: ReduceScatter | None = None,
    **options,
) -> nn.Sequential:
    """Make `model` an FSDP2 module in place; return it. Each of `units` (by default its children) is gathered as one.

    `gather`, `scatter`: collectives that replace the backend's own. `options`: those of `fully_shard`, such as `mesh`
    (by default all ranks in one dimension), `reshard_after_forward` and `mp_policy`.
    """
    from torch.distributed.fsdp import fully_shard

    if next(model.parameters()).device != device():
        model.to(device())
    if "mesh" not in options:
        options["mesh"] = mesh(dist.get_world_size())
    sharded: list = [*(model if units is None else units), model]
    for module in sharded:  # inside out: a module takes the parameters that no inner unit has taken
        fully_shard(module, **options)
        if gather:
            module.set_custom_all_gather(gather)
        if scatter:
            module.set_custom_reduce_scatter(scatter)
    return model


def backward(model: nn.Module, step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Run forward and backward over this rank's part of `tiny`'s batch of `step`; return the detached loss."""
    batch = tiny.batch(step, dist.get_rank(), dist.get_world_size(), dtype=dtype)
    loss = tiny.loss(model, *(tensor.to(device()) for tensor in batch))
    loss.backward()
    return loss.detach()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int], dtype: torch.dtype = torch.float32
) -> list[float]:
    """Train on `tiny`'s batches of `steps`; return the loss before each update, averaged over all ranks' rows."""
    losses = []
    for step in steps:
        losses.append(backward(model, step, dtype))
        optimizer.step()
        optimizer.zero_grad()
    total = torch.stack(losses)
    dist.all_reduce(total)
    return (total / dist.get_world_size()).tolist()


def padded_elements(module: nn.Module, world_size: int) -> int:
    """Return the elements that FSDP2 gathers for a unit: it cuts each tensor along dimension 0, padded to divide."""
    rows = ((tensor.shape[0], tensor[0].numel()) for tensor in module.parameters())
    return sum(shard_size(length, world_size) * world_size * row_size for length, row_size in rows)


def prefetch(model: nn.Sequential, on: bool) -> nn.Sequential:
    """Set whether each unit launches the next unit's gather before it computes, forward and backward; return `model`.

    Torch's own default is neither: it prefetches backward, which `on=False` defeats, and in the forward pass only as
    far as the CPU, which launches, runs ahead of a GPU. That it does on a GPU even when this is off. Either way gathers
    become asynchronous: the backend runs them in a thread (gloo) or on a stream (NCCL) of its own. Our own collectives
    don't support this, since they return when they are done.
    """
    units: list = list(model)
    for number, unit in enumerate(units):
        unit._set_unshard_async_op(True)
        unit.set_modules_to_forward_prefetch(units[number + 1 : number + 2] if on else [])
        # An empty list means torch's default, which prefetches. A unit's own gather is already done, so it is a no-op.
        unit.set_modules_to_backward_prefetch(units[number - 1 : number] if on and number else [unit])
    return model


# --- our collectives under FSDP2 --------------------------------------------------------------------------------


class _Collective:
    """FSDP2's interface of a collective. `to`: bytes sent so far to each peer, by global rank.

    `bits`: bits of a rounded number where rounding pays, or None. `ranks_per_node`: by default every rank is a node.
    """

    def __init__(self, bits: int | None = None, ranks_per_node: int = 1):
        self.bits, self.ranks_per_node = bits, ranks_per_node
        self.to: Counter[int] = Counter()
        self._allocated: list[weakref.ref[torch.Tensor]] = []

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a buffer for FSDP2 to fill or to read."""
        buffer = torch.empty(*size, dtype=dtype, device=device)
        self._allocated = [*map(weakref.ref, self.buffers), weakref.ref(buffer)]
        return buffer

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The allocated buffers that are still alive."""
        return [buffer for reference in self._allocated if (buffer := reference()) is not None]

    def leaving(self, ranks_per_node: int) -> int:
        """Return the bytes sent to ranks of other nodes, if ranks fill nodes of `ranks_per_node` in order."""
        node = dist.get_rank() // ranks_per_node
        return sum(num_bytes for peer, num_bytes in self.to.items() if peer // ranks_per_node != node)

    def _counted(self, send: Callable[[], _Result]) -> _Result:
        with BytesSent() as sent:
            result = send()
        for peer, num_bytes in sent.to.items():
            self.to[peer] += num_bytes
        return result


class AllGather(_Collective):
    """FSDP2's all-gather as our ring. With `bits`, numbers are rounded if the ring leaves a node."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        """Fill `output_tensor` with all ranks' parts. `input_tensor` is a view of this rank's part of it."""
        nodes = {rank // self.ranks_per_node for rank in dist.get_process_group_ranks(group)}
        if (bits := self.bits) and len(nodes) > 1:
            gathered = self._counted(lambda: quantized.all_gather(input_tensor, bits, group=group))
            output_tensor.copy_(gathered)
        else:
            self._counted(lambda: execute(ring.all_gather(group.size()), output_tensor, group))


class ReduceScatter(_Collective):
    """FSDP2's reduce-scatter as our ring. With `bits`, rounded numbers are summed within nodes, then across."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        """Write this rank's reduced part to `output_tensor`. `op`: SUM or AVG; raises `ValueError` for others.

        It may overwrite `input_tensor`, into which FSDP2 has copied the gradients.
        """
        if not any(op == supported for supported in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)):
            raise ValueError(f"our reduce-scatter only sums and averages, but FSDP2 wants {op}: set no divide factor")
        output_tensor.copy_(self._counted(lambda: self._reduced(input_tensor, group)))
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(group.size())

    def _reduced(self, values: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        if self.bits:
            return quantized.reduce_scatter_in_two(values, self.ranks_per_node, self.bits, group=group)
        execute(ring.reduce_scatter(group.size()), values, group)
        return values.view(group.size(), -1)[group.rank()]


# --- memory -----------------------------------------------------------------------------------------------------


def kinds(
    model: nn.Module, optimizer: torch.optim.Optimizer, *collectives: _Collective
) -> Callable[[], Mapping[str, Iterable[torch.Tensor]]]:
    """Return a function that lists the tensors FSDP2 holds now, by kind, for `held.BytesHeld`.

    "parameters": the shards. "optimizer": its state. "gathered": whole parameters, which the model registers only while
    they exist. "secondary": shards within a node, kept between the passes if `reshard_after_forward` is a number.
    "gradients": all of them. "buffers": what `collectives` have allocated in addition.
    """
    shards = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    primary = set(shards)

    def now() -> Mapping[str, Iterable[torch.Tensor]]:
        gathered = [parameter for parameter in model.parameters() if _local(parameter) is parameter]
        others = [parameter for parameter in model.parameters() if _local(parameter) is not parameter]
        with_gradient = [tensor for tensor in (*shards, *gathered) if tensor.grad is not None]
        return {
            "parameters": list(map(_local, shards)),
            "optimizer": [_local(value) for state in optimizer.state.values() for value in state.values()],
            "gathered": gathered,
            "secondary": [_local(parameter) for parameter in others if parameter not in primary],
            "gradients": [_local(tensor.grad) for tensor in with_gradient],
            "buffers": [buffer for collective in collectives for buffer in collective.buffers],
        }

    return now


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, or the tensor itself if it isn't one."""
    return getattr(tensor, "_local_tensor", tensor)


# --- what a step does, and when ---------------------------------------------------------------------------------

_UNIT_EVENT = re.compile(r"FSDP::(pre_forward|pre_backward|all_gather|post_backward_reduce) \((\d+)\)")
_PASSES = {"pre_forward": "forward", "pre_backward": "backward"}
_BACKEND_EVENTS = ("gloo:all_gather", "gloo:all_reduce")  # gloo implements reduce-scatter by an all-reduce


def trace(step: Callable[[], object]) -> list[Span]:
    """Profile a forward and backward pass of an FSDP2 model over gloo; return spans for `timeline.Timeline.measured`.

    Spans have the names of `timeline.sharded`: "gather 2", "forward 2", "gather 2 again", "backward 2" and "scatter 2"
    for unit 2. Communication lasts from its launch until the backend's thread finishes. Compute lasts from a unit's
    first matrix product to its last. Raises `RuntimeError` over another backend, whose events differ.
    """
    if dist.get_backend() != "gloo":
        raise RuntimeError(f"trace reads the events of gloo, not of {dist.get_backend()}: run it with backend='gloo'")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the profiler's start and stop messages on stderr
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    events = sorted(profiled.events(), key=lambda event: event.time_range.start)
    ends = {name: deque(event.time_range.end for event in events if event.name == name) for name in _BACKEND_EVENTS}
    spans: dict[str, Span] = {}
    computes = gathers = scatters = ""
    for event in events:
        begin, end = event.time_range.start, event.time_range.end
        if unit_event := _UNIT_EVENT.fullmatch(event.name):
            what, unit = unit_event.groups()
            if what in _PASSES:
                computes = f"{_PASSES[what]} {unit}"
            elif what == "all_gather":
                gathers = f"gather {unit} again" if f"gather {unit}" in spans else f"gather {unit}"
            else:
                scatters = f"scatter {unit}"
        elif event.name == "c10d::_allgather_base_":
            spans[gathers] = _span(gathers, "all-gather", begin, ends["gloo:all_gather"].popleft(), "all_gather")
        elif event.name == "c10d::_reduce_scatter_base_":
            until = ends["gloo:all_reduce"].popleft()
            spans[scatters] = _span(scatters, "reduce-scatter", begin, until, "reduce_scatter")
        elif event.name in ("aten::addmm", "aten::mm"):
            earlier = spans.get(computes)
            first = earlier.start * 1e6 if earlier else begin
            spans[computes] = _span(computes, "compute", first, end, computes.split()[0])
    return sorted(spans.values(), key=lambda span: span.start)


def _span(name: str, lane: str, begin: float, end: float, kind: str) -> Span:
    """Return a span from the profiler's microseconds."""
    return Span(name, lane, begin / 1e6, (end - begin) / 1e6, kind)


# --- checkpoints ------------------------------------------------------------------------------------------------


def save(model: nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> None:
    """Write a checkpoint to `folder`: every rank writes its own shards to its own file."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict

    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    checkpoint.save(parts, checkpoint_id=folder)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> None:
    """Read a checkpoint that `save` wrote on any number of ranks: every rank reads what its shards need."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    parts: dict = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    checkpoint.load(parts, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])


# --- ranks that do not exist ------------------------------------------------------------------------------------


@contextlib.contextmanager
def fake_ranks(world_size: int) -> Iterator[None]:
    """Act as rank 0 of `world_size` ranks without the others: collectives return at once, and move nothing.

    Meshes and their groups are those of a real run. This process has no process group afterwards.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def pretended(world_size: int) -> Iterator[DeviceMesh]:
    """Act as rank 0 of `fake_ranks`; yield their mesh, for `shard`.

    Tensors have shapes and dtypes but no memory. The calls, their bytes and what this rank holds are those of a real
    run; times and values aren't.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with fake_ranks(world_size):
        ranks = mesh(world_size)  # before the fake mode: building the mesh needs real tensors
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield ranks
