"""Attention over a sequence that is cut among the ranks: keys and values go round the ring, queries stay.

In step k a rank meets the keys and values of the rank k before it. A softmax over all of them is put together from the
pieces: its maximum, its sum and its weighted values so far are all that need be kept.

Source: Liu, Zaharia and Abbeel, “Ring Attention with Blockwise Transformers for Near-Infinite Context”, 2023.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from ..execute import execute
from ..schedule import COPY, Schedule, Transfer
from .conjugate import conjugate


def shift(world_size: int, by: int = 1) -> Schedule:
    """Everybody hands its buffer to the rank `by` further round: one step, S bytes from each rank; none to itself."""
    around = [[Transfer(0, by, 0, COPY)]] if by % world_size else []
    return Schedule.rotated(world_size, 1, lambda: around, None, "shift")


def _passed(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """What the rank before has; backward, a gradient goes back the way that its value came."""
    return conjugate(x, there=partial(_shifted, group=group, by=1), back=partial(_shifted, group=group, by=-1))


def _shifted(x: torch.Tensor, group: dist.ProcessGroup | None, by: int) -> torch.Tensor:
    moved = x.clone(memory_format=torch.contiguous_format)
    execute(shift(dist.get_world_size(group), by), moved.view(-1), group)
    return moved


def ring_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Causal attention of this rank's tokens to those of all ranks up to their own.

    Each is [heads, tokens / P, head_size], of the r-th part of the sequence on rank r; so is the result. All
    ranks have as many tokens. A rank sends its keys and values P - 1 times: (P - 1)/P of those of the whole sequence,
    as in an all-gather, but needs no more than a P-th of them beside its own at a time. (For the backward pass autograd
    keeps all that came by.) Scores that the mask hides are computed too, so the last rank does no more than the first.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    num_heads, num_tokens, head_size = queries.shape
    own = torch.arange(num_tokens, device=queries.device)
    highest = queries.new_full((num_heads, num_tokens, 1), -torch.inf)
    total, weighted = torch.zeros_like(highest), torch.zeros_like(queries)
    for step in range(world_size):  # each with the keys and values of another rank, the own ones first
        theirs = (rank - step) % world_size
        later = (own + theirs * num_tokens)[None, :] > (own + rank * num_tokens)[:, None]  # what a token must not see
        scores = (queries @ keys.transpose(1, 2) / head_size**0.5).masked_fill(later, -torch.inf)
        risen = torch.maximum(highest, scores.amax(-1, keepdim=True)).detach()  # of no effect on the result
        weights, fade = (scores - risen).exp(), (highest - risen).exp()
        total = fade * total + weights.sum(-1, keepdim=True)
        weighted = fade * weighted + weights @ values
        highest = risen
        if step < world_size - 1:
            keys, values = _passed(keys, group), _passed(values, group)
    return weighted / total
