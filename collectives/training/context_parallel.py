"""Ring attention over a sequence that is sharded among the ranks: keys and values go around the ring, queries stay.

In step k a rank uses the keys and values of the rank k places before it. An online softmax combines the pieces: it
keeps only the maximum, the sum and the weighted values so far.

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
    """Return the schedule in which every rank sends its buffer `by` ranks on: one step, S bytes per rank.

    It is empty if `by` is a multiple of `world_size`.
    """
    around = [[Transfer(0, by, 0, COPY)]] if by % world_size else []
    return Schedule.rotated(world_size, 1, lambda: around, None, "shift")


def _passed(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Return the previous rank's `x`; backward, return each gradient to the rank that its value came from."""
    return conjugate(x, there=partial(_shifted, group=group, by=1), back=partial(_shifted, group=group, by=-1))


def _shifted(x: torch.Tensor, group: dist.ProcessGroup | None, by: int) -> torch.Tensor:
    moved = x.clone(memory_format=torch.contiguous_format)
    execute(shift(dist.get_world_size(group), by), moved.view(-1), group)
    return moved


def ring_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Return causal attention of this rank's tokens over the tokens of all ranks.

    Arguments and result are [heads, tokens / P, head_size]: rank r has the r-th part of the sequence, and all parts
    have equal length. A rank sends keys and values P - 1 times, (P - 1)/P of the whole sequence's, as in an all-gather.
    It needs only 1/P of them at a time besides its own, though autograd keeps all of them for the backward pass. Masked
    scores are computed too, so all ranks do the same work.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    num_heads, num_tokens, head_size = queries.shape
    own = torch.arange(num_tokens, device=queries.device)
    highest = queries.new_full((num_heads, num_tokens, 1), -torch.inf)
    total, weighted = torch.zeros_like(highest), torch.zeros_like(queries)
    for step in range(world_size):  # P steps, each with another rank's keys and values; this rank's own come first
        source = (rank - step) % world_size
        later = (own + source * num_tokens)[None, :] > (own + rank * num_tokens)[:, None]  # the causal mask
        scores = (queries @ keys.transpose(1, 2) / head_size**0.5).masked_fill(later, -torch.inf)
        new_highest = torch.maximum(highest, scores.amax(-1, keepdim=True)).detach()  # it cancels in the result
        weights, rescale = (scores - new_highest).exp(), (highest - new_highest).exp()
        total = rescale * total + weights.sum(-1, keepdim=True)
        weighted = rescale * weighted + weights @ values
        highest = new_highest
        if step < world_size - 1:
            keys, values = _passed(keys, group), _passed(values, group)
    return weighted / total
