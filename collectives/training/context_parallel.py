"""Causal attention over a sequence that is sharded among the ranks: only attention needs the others' keys.

    attended = ring_attention(queries, keys, values, zigzag)        # keys and values go around a ring, queries stay
    attended = gathered_attention(queries, keys, values, zigzag)    # keys and values are all-gathered first
    attended = ulysses_attention(queries, keys, values)             # all-to-all: all tokens of some heads, and back

Queries are [heads, tokens / P, head_size], keys and values [kv_heads, tokens / P, head_size]; consecutive query heads
share a head of keys. The sequence consists of 2 P pieces of equal length. A *cut* says which two each rank holds.

Sources: Liu, Zaharia and Abbeel, “Ring Attention with Blockwise Transformers for Near-Infinite Context”, 2023; the
backward pass by blocks, Dao et al., “FlashAttention”, 2022; Jacobs et al., “DeepSpeed Ulysses”, 2023; the zigzag and
the all-gather, Grattafiori et al., “The Llama 3 Herd of Models”, 2024, section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional

from ..algorithms import pairwise, ring
from ..execute import execute
from ..schedule import COPY, Schedule, Transfer
from .conjugate import conjugate
from .timeline import Task

Group = dist.ProcessGroup | None
Cut = Callable[[int, int], tuple[int, int]]  # (rank, world_size) -> the pieces of the sequence that the rank holds


def in_order(rank: int, world_size: int) -> tuple[int, int]:
    """Return the pieces of a sequence that is cut into P runs: rank 0 has the first, rank P - 1 the last."""
    return 2 * rank, 2 * rank + 1


def zigzag(rank: int, world_size: int) -> tuple[int, int]:
    """Return a piece from the front and one from the back: all ranks have equal work."""
    return rank, 2 * world_size - 1 - rank


def work(cut: Cut, world_size: int) -> np.ndarray:
    """Return [rank, step]: the share of a block's scores that a rank must compute in a step of the ring.

    A block is all of a rank's queries against all keys of another. The causal mask hides the rest.
    """
    scores = np.zeros((world_size, world_size))
    for rank in range(world_size):
        for step in range(world_size):
            theirs = cut((rank - step) % world_size, world_size)
            for query in cut(rank, world_size):
                scores[rank, step] += sum(1 if key < query else (key == query) / 2 for key in theirs) / 4
    return scores


def steps(cut: Cut, world_size: int, block: float = 1.0) -> list[Task]:
    """Return the tasks of all ranks if transfers take no time. `block`: seconds of a full block's scores.

    A rank hands its keys and values on when it is done with them.
    """
    return [
        Task(
            name=f"step {step} on rank {rank}",
            stream="attention",
            seconds=float(scores) * block,
            after=(f"step {step - 1} on rank {(rank - 1) % world_size}",) if step else (),
            kind="forward",
            group=f"rank {rank}",
        )
        for rank, row in enumerate(work(cut, world_size))
        for step, scores in enumerate(row)
    ]


# --- the ring ---------------------------------------------------------------------------------------------------


def shift(world_size: int, by: int = 1) -> Schedule:
    """Return the schedule in which every rank sends its buffer `by` ranks on: one step, S bytes per rank.

    It is empty if `by` is a multiple of `world_size`.
    """
    around = [[Transfer(0, by, 0, COPY)]] if by % world_size else []
    return Schedule.rotated(world_size, 1, lambda: around, None, "shift")


def handed_on(tensors: torch.Tensor, group: Group = None) -> torch.Tensor:
    """Return what the previous rank hands on; this rank's `tensors` go to the next one."""
    arriving = tensors.clone(memory_format=torch.contiguous_format)
    execute(shift(dist.get_world_size(group)), arriving.view(-1), group)
    return arriving


class OnlineSoftmax:
    """Attention of some queries over keys that arrive block by block: a maximum, a sum and a weighted sum so far."""

    def __init__(self, queries: torch.Tensor):
        self.queries = queries
        self.highest = queries.new_full((*queries.shape[:-1], 1), -torch.inf)
        self.total, self.weighted = torch.zeros_like(self.highest), torch.zeros_like(queries)

    def see(self, keys: torch.Tensor, values: torch.Tensor, diagonal: bool) -> None:
        """Add a block of keys and values. `diagonal`: the keys are of the same tokens as the queries."""
        scores = _scores(self.queries, keys, diagonal)
        highest = torch.maximum(self.highest, scores.amax(-1, keepdim=True)).detach()  # it cancels in the result
        weights, rescale = (scores - highest).exp(), (self.highest - highest).exp()
        self.total = rescale * self.total + weights.sum(-1, keepdim=True)
        self.weighted = rescale * self.weighted + weights @ values
        self.highest = highest

    @property
    def attended(self) -> torch.Tensor:
        """The softmax's weighted mean of the values seen."""
        return self.weighted / self.total

    @property
    def log_sum(self) -> torch.Tensor:
        """The logarithm of the sum of all exponentials. With it a block's weights are exp(scores - log_sum)."""
        return self.highest + self.total.log()


def _scores(queries: torch.Tensor, keys: torch.Tensor, diagonal: bool) -> torch.Tensor:
    scores = queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5
    if not diagonal:
        return scores
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, -torch.inf)


def ring_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cut: Cut = in_order, group: Group = None
) -> torch.Tensor:
    """Return causal attention of this rank's tokens over the tokens of all ranks, in the shape of `queries`.

    Forward, a rank sends keys and values P - 1 times: (P - 1)/P of the whole sequence's, as in an all-gather. It holds
    one visitor besides its own. Backward, they go around again, and so do their gradients, once more to get home.
    """
    shared = queries.unflatten(0, (len(keys), -1))  # [kv_heads, query heads that share each, tokens, head_size]
    return _Ring.apply(shared, keys[:, None], values[:, None], cut, group).flatten(0, 1)


def around(
    queries: torch.Tensor, keys_values: torch.Tensor, cut: Cut, group: Group
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the queries attend to, and the logarithms of their sums.

    `keys_values`: keys and values, stacked.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    mine = [OnlineSoftmax(piece) for piece in queries.chunk(2, dim=-2)]
    for step in range(world_size):
        theirs = cut((rank - step) % world_size, world_size)
        for k, (keys, values) in zip(theirs, keys_values.chunk(2, dim=-2), strict=True):
            for q, softmax in zip(cut(rank, world_size), mine, strict=True):
                if k <= q:  # later keys are masked
                    softmax.see(keys, values, diagonal=k == q)
        if step < world_size - 1:
            keys_values = handed_on(keys_values, group)
    attended = torch.cat([softmax.attended for softmax in mine], dim=-2)
    return attended, torch.cat([softmax.log_sum for softmax in mine], dim=-2)


class _Ring(torch.autograd.Function):
    """Ring attention that keeps no visitors for the backward pass, but sends them around again."""

    @staticmethod
    def forward(ctx, queries, keys, values, cut, group):
        attended, log_sums = around(queries, torch.stack([keys, values]), cut, group)
        ctx.save_for_backward(queries, keys, values, attended, log_sums)
        ctx.group, ctx.cut = group, cut
        return attended

    @staticmethod
    def backward(ctx, gradient):
        queries, keys, values, attended, log_sums = ctx.saved_tensors
        rank, world_size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        keys_values, d_queries = torch.stack([keys, values]), torch.zeros_like(queries)
        d_keys_values = torch.zeros_like(keys_values)
        inner = (gradient * attended).sum(-1, keepdim=True)  # of each row: its part of the softmax's gradient
        rows = [part.chunk(2, dim=-2) for part in (queries, gradient, log_sums, inner, d_queries)]
        for step in range(world_size):
            theirs = ctx.cut((rank - step) % world_size, world_size)
            pairs = zip(theirs, keys_values.chunk(2, dim=-2), d_keys_values.chunk(2, dim=-2), strict=True)
            for k, key_value, d_key_value in pairs:
                for q, row in zip(ctx.cut(rank, world_size), zip(*rows, strict=True), strict=True):
                    if k <= q:
                        _add_gradients(row, key_value, d_key_value, k == q)
            if step < world_size - 1:
                keys_values = handed_on(keys_values, ctx.group)
            d_keys_values = handed_on(d_keys_values, ctx.group)  # after P hops they are home
        return d_queries, *d_keys_values, None, None


def _add_gradients(row, keys_values, d_keys_values, diagonal: bool) -> None:
    """Add a block's gradients in place. `row`: queries, gradient, log_sums, inner and d_queries of one piece."""
    queries, gradient, log_sums, inner, d_queries = row
    keys, values = keys_values
    weights = (_scores(queries, keys, diagonal) - log_sums).exp()
    d_scores = weights * (gradient @ values.transpose(-1, -2) - inner) / queries.shape[-1] ** 0.5
    d_queries += d_scores @ keys
    d_keys, d_values = d_keys_values
    d_keys += (d_scores.transpose(-1, -2) @ queries).sum(1, keepdim=True)  # over the heads that share a head of keys
    d_values += (weights.transpose(-1, -2) @ gradient).sum(1, keepdim=True)


# --- two collectives that do the same ---------------------------------------------------------------------------


def gathered_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cut: Cut = in_order, group: Group = None
) -> torch.Tensor:
    """Return what `ring_attention` does, with all keys and values gathered before and kept for the backward pass.

    Forward a rank sends (P - 1)/P of all keys and values, and backward as much of their gradients.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    both = torch.stack([keys, values])[:, :, None]
    gathered = conjugate(both, partial(_all_gathered, group=group), partial(_reduce_scattered, group=group))
    mine = [OnlineSoftmax(piece) for piece in queries.unflatten(0, (len(keys), -1)).chunk(2, dim=-2)]
    for k, (piece_of_keys, piece_of_values) in _pieces(gathered, cut):
        for q, softmax in zip(cut(rank, world_size), mine, strict=True):
            if k <= q:
                softmax.see(piece_of_keys, piece_of_values, diagonal=k == q)
    return torch.cat([softmax.attended for softmax in mine], dim=-2).flatten(0, 1)


def _pieces(gathered: torch.Tensor, cut: Cut) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the numbers and the keys and values of all pieces. `gathered`: those of each rank."""
    for rank, theirs in enumerate(gathered):
        yield from zip(cut(rank, len(gathered)), theirs.chunk(2, dim=-2), strict=True)


def _all_gathered(mine: torch.Tensor, group: Group) -> torch.Tensor:
    """Return [P, ...]: every rank's tensor."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    everyones = mine.new_empty(world_size, *mine.shape)
    everyones[rank] = mine
    execute(ring.all_gather(world_size), everyones.view(-1), group)
    return everyones


def _reduce_scattered(terms: torch.Tensor, group: Group) -> torch.Tensor:
    """Return this rank's tensor of the sum of [P, ...] over the ranks."""
    total = terms.clone(memory_format=torch.contiguous_format)
    execute(ring.reduce_scatter(dist.get_world_size(group)), total.view(-1), group)
    return total[dist.get_rank(group)]


def ulysses_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: Group = None
) -> torch.Tensor:
    """Return causal attention of this rank's tokens, cut `in_order`, over all tokens.

    A rank sends (P - 1)/P of its own queries, keys, values and results forward, and as
    much backward. Raises `ValueError` if the heads don't divide among the ranks.
    """
    world_size = dist.get_world_size(group)
    for what, each in (("heads", queries), ("heads of keys", keys)):
        if len(each) % world_size:
            raise ValueError(f"{len(each)} {what} do not divide among {world_size} ranks")
    by_heads = partial(_to_heads, group=group)
    by_tokens = partial(_to_tokens, group=group)
    q, k, v = (conjugate(x, by_heads, by_tokens) for x in (queries, keys, values))
    attend = functional.scaled_dot_product_attention
    attended = attend(q, k, v, is_causal=True, enable_gqa=True)
    return conjugate(attended, by_tokens, by_heads)


def _to_heads(tokens: torch.Tensor, group: Group) -> torch.Tensor:
    """Return all tokens of this rank's heads: [heads, tokens / P, size] -> [heads / P, tokens, size]."""
    chunks = tokens.unflatten(0, (dist.get_world_size(group), -1))  # chunk d: the heads of rank d
    return _swapped(chunks, group).transpose(0, 1).flatten(1, 2)


def _to_tokens(heads: torch.Tensor, group: Group) -> torch.Tensor:
    """Return all heads of this rank's tokens: [heads / P, tokens, size] -> [heads, tokens / P, size]."""
    chunks = heads.unflatten(1, (dist.get_world_size(group), -1)).transpose(0, 1)  # chunk d: the tokens of rank d
    return _swapped(chunks, group).flatten(0, 1)


def _swapped(chunks: torch.Tensor, group: Group) -> torch.Tensor:
    """Return [P, ...]: the chunk that each rank has for this one."""
    arriving = chunks.clone(memory_format=torch.contiguous_format)
    execute(pairwise.all_to_all(len(arriving)), arriving.view(-1), group)
    return arriving
