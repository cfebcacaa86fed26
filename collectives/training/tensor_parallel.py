"""A transformer block over several ranks, split as in Megatron: by columns, then by rows, between two gates.

    mine = split(block)                        # this rank's part of a dense block that every rank has
    y = mine(x)                                # equal to block(x), with one all-reduce for each half of the block
    loss = cross_entropy(logits, targets)      # each rank has its columns of the logits, and none has them all
    y = gathered_product(rows, weight)         # an all-gather and the product behind it, a ring step at a time

A gate does one operation forward and its conjugate backward. All collectives are our rings, so you can count what they
send. Sources: Shoeybi et al., “Megatron-LM”, 2019, section 3 (f and g, the loss); Korthikanti et al., “Reducing
Activation Recomputation in Large Transformer Models”, 2022, section 4.2 (sequence parallelism); Wang et al., “Overlap
Communication with Dependent Computation via Decomposition in Large Deep Learning Models”, 2023 (products in parts).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..algorithms import ring
from ..execute import execute
from .conjugate import conjugate
from .transformer import MLP, Attention, Block, nothing

Group = dist.ProcessGroup | None


def all_reduced(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the sum of `x` over the ranks."""
    total = x.clone(memory_format=torch.contiguous_format)
    execute(ring.all_reduce(dist.get_world_size(group)), total.view(-1), group)
    return total


def gathered(rows: torch.Tensor, group: Group) -> torch.Tensor:
    """Return all ranks' rows in rank order: [tokens / P, width] -> [tokens, width]."""
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    all_rows = rows.new_empty(world_size * len(rows), *rows.shape[1:])
    all_rows[rank * len(rows) : (rank + 1) * len(rows)] = rows
    execute(ring.all_gather(world_size), all_rows.view(-1), group)
    return all_rows


def reduce_scattered(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Return this rank's rows of the sum of `x` over the ranks: [tokens, width] -> [tokens / P, width].

    Raises `ValueError` if the tokens don't divide among the ranks.
    """
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    if len(x) % world_size:
        raise ValueError(f"{len(x)} tokens do not divide among {world_size} ranks")
    total = x.clone(memory_format=torch.contiguous_format)
    execute(ring.reduce_scatter(world_size), total.view(-1), group)
    return total.chunk(world_size)[rank].clone()


def f(x: torch.Tensor, group: Group = None) -> torch.Tensor:
    """Apply Megatron's f: return `x` unchanged; backward, sum its gradient over ranks.

    Each rank's gradient of X holds only the contribution of its columns.
    """
    return conjugate(x, there=nothing, back=partial(all_reduced, group=group))


def g(y: torch.Tensor, group: Group = None) -> torch.Tensor:
    """Apply Megatron's g: return the sum of `y` over the ranks; backward, do nothing.

    Each rank's Y holds only the contribution of its rows of the weight.
    """
    return conjugate(y, there=partial(all_reduced, group=group), back=nothing)


def gather(rows: torch.Tensor, group: Group = None) -> torch.Tensor:
    """Replace f in sequence parallelism: return all ranks' rows.

    Backward, it returns this rank's rows of the summed gradients.
    """
    back = partial(reduce_scattered, group=group)
    return conjugate(rows, there=partial(gathered, group=group), back=back)


def scatter(y: torch.Tensor, group: Group = None) -> torch.Tensor:
    """Replace g in sequence parallelism: return this rank's rows of the sum of `y`.

    Backward, it returns the gradients of all rows.
    """
    there = partial(reduce_scattered, group=group)
    return conjugate(y, there=there, back=partial(gathered, group=group))


class _OwnRows:
    """The memory of one pass through a half: it keeps this rank's rows of its input, and gathers the others twice.

    Autograd hands `pack` every tensor that the backward pass needs, and asks `unpack` for it then. The gathered rows
    are whole from `enter` until the half returns, and from the first `unpack` until the last.
    """

    def __init__(self, rows: torch.Tensor, group: Group):
        self.rows, self.group, self.packed = rows.detach(), group, 0
        self.whole: torch.Tensor | None = None

    def enter(self, rows: torch.Tensor) -> torch.Tensor:
        self.whole = gather(rows, self.group)
        return self.whole

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if self.whole is None or tensor.data_ptr() != self.whole.data_ptr():
            return tensor
        self.packed += 1
        return None

    def unpack(self, kept: torch.Tensor | None) -> torch.Tensor:
        if kept is not None:
            return kept
        whole = gathered(self.rows, self.group) if self.whole is None else self.whole
        self.packed -= 1
        self.whole = whole if self.packed else None
        return whole


def _gather_twice(half: Attention | MLP, group: Group) -> None:
    """Make `half` keep its own rows for the backward pass, and gather the others' again there, as Megatron-LM does."""
    forward = half.forward

    def with_own_rows(rows: torch.Tensor) -> torch.Tensor:
        memory = _OwnRows(rows, group)
        half.enter = memory.enter
        with torch.autograd.graph.saved_tensors_hooks(memory.pack, memory.unpack):
            result = forward(rows)
        memory.whole = None
        return result

    half.forward = with_own_rows  # type: ignore[assignment]


def split(block: Block, group: Group = None, sequence: bool = False, gather_twice: bool = False) -> Block:
    """Return this rank's part of `block`, which is the same on all ranks: its heads and its columns of the MLP.

    `sequence`: use sequence parallelism, where the part takes and returns this rank's rows of the tokens instead of all
    rows. `gather_twice`: don't keep the gathered rows for the backward pass, but gather them once more there. Raises
    `ValueError` if the heads or the MLP's columns don't divide among the ranks.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    part: Any = deepcopy(block)
    heads = part.halves[0].second.in_features // part.halves[0].head_size
    for count, what in ((heads, "heads"), (part.halves[1].second.in_features, "columns of the MLP")):
        if count % world_size:
            raise ValueError(f"{count} {what} do not divide among {world_size} ranks")
    for half in part.halves:
        _keep_slices(half, rank, world_size)
        half.enter = lambda x: gather(x, group) if sequence else f(x, group)
        half.leave = lambda y: scatter(y, group) if sequence else g(y, group)
        if sequence and gather_twice:
            _gather_twice(half, group)
    if sequence:  # a rank's norms see only its own rows, so their gradients lack the other rows' share
        for tensor in part.norms.parameters():
            tensor.register_hook(lambda gradient: all_reduced(gradient, group))
    return part


def _keep_slices(half: Any, rank: int, world_size: int) -> None:
    """Cut the first matrices by columns and the second by rows.

    Torch's Linear stores a weight as [columns, rows].
    """

    def own(weight: nn.Parameter, axis: int) -> nn.Parameter:
        return nn.Parameter(weight.detach().chunk(world_size, axis)[rank].clone())

    for linear in half.first:
        linear.weight = own(linear.weight, 0)
        linear.bias = own(linear.bias, 0)
    half.second.weight = own(half.second.weight, 1)


# --- a loss whose logits no rank has ------------------------------------------------------------------------------


def cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    group: Group = None,
) -> torch.Tensor:
    """Return the mean cross-entropy of logits that are cut by columns, as a scalar.

    `logits`: [tokens, vocabulary / P], this rank's columns, in rank order. `targets`:
    [tokens], columns of the whole vocabulary. Every rank gets the same loss.
    """
    rank, own = dist.get_rank(group), logits.shape[1]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    here = targets - rank * own
    is_here = (here >= 0) & (here < own)
    target = logits.gather(1, here.clamp(0, own - 1)[:, None])[:, 0]
    target = torch.where(is_here, target, 0)
    mine = torch.stack([logits.logsumexp(1), target])  # [2, tokens]
    # All ranks compute the same loss from `every`, so a rank's part of its gradient is
    # complete: nothing to sum backward.
    own_part = slice(rank, rank + 1)
    gather = partial(gathered, group=group)
    every = conjugate(mine[None], gather, lambda grad: grad[own_part])
    log_sums, target_logits = every.unbind(1)  # each [P, tokens]
    return (log_sums.logsumexp(0) - target_logits.sum(0)).mean()


# --- a product in parts, each ring step behind one of them ---------------------------------------------------------


def gathered_product(
    rows: torch.Tensor,
    weight: torch.Tensor,
    group: Group = None,
) -> torch.Tensor:
    """Return `gathered(rows) @ weight`: multiply the rows here while others arrive.

    [tokens / P, width] times [width, columns] gives [tokens, columns].
    """
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    parts = rows.new_empty(world_size, len(rows), weight.shape[1])
    for step in range(world_size):
        wait = _hand_on(rows, group) if step < world_size - 1 else None
        parts[(rank - step) % world_size] = rows @ weight  # while the next rows arrive
        rows = wait() if wait else rows
    return parts.flatten(0, 1)


def scattered_product(x: torch.Tensor, weight: torch.Tensor, group: Group = None) -> torch.Tensor:
    """Return `reduce_scattered(x @ weight)`. A sum travels while a rank computes the term that it will add to it.

    [tokens, inner] times [inner, width] gives [tokens / P, width]. Raises `ValueError` if the tokens don't divide.
    """
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    if len(x) % world_size:
        raise ValueError(f"{len(x)} tokens do not divide among {world_size} ranks")
    chunks = x.chunk(world_size)
    total = chunks[(rank - 1) % world_size] @ weight
    for step in range(1, world_size):
        wait = _hand_on(total, group)
        term = chunks[(rank - 1 - step) % world_size] @ weight  # meanwhile the other terms' sum arrives
        total = term + wait()
    return total


def _hand_on(tensor: torch.Tensor, group: Group) -> Callable[[], torch.Tensor]:
    """Start to send `tensor` to the next rank; return a function that waits for what the previous rank sends."""
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    leaving, arriving = tensor.contiguous(), torch.empty_like(tensor, memory_format=torch.contiguous_format)
    operations = [
        dist.P2POp(dist.isend, leaving, group=group, group_peer=(rank + 1) % world_size),
        dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % world_size),
    ]
    works = dist.batch_isend_irecv(operations)  # as one batch: NCCL needs that

    def wait() -> torch.Tensor:
        for work in works:
            work.wait()
        return arriving

    return wait
