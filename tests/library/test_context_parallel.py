"""Attention over a sharded sequence is full attention, forward and backward, at the price of the bytes counted here."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from collectives import ranks
from collectives.figures import attention
from collectives.measure.wire import BytesSent
from collectives.training.context_parallel import (
    gathered_attention,
    in_order,
    ring_attention,
    steps,
    ulysses_attention,
    work,
    zigzag,
)
from collectives.training.timeline import run
from collectives.training.transformer import Block

HEADS, KV_HEADS, PIECE, HEAD_SIZE, ITEMSIZE = 24, 12, 3, 4, 8  # fp64: what differs is a mistake, not rounding
WAYS = {
    "ring": (ring_attention, in_order),
    "ring, zigzag": (lambda *qkv: ring_attention(*qkv, zigzag), zigzag),
    "gathered, zigzag": (lambda *qkv: gathered_attention(*qkv, zigzag), zigzag),
    "Ulysses": (ulysses_attention, in_order),
}


def attend(rank, world_size, way):
    """How far a rank is off full attention, and the bytes that it sends forward and backward."""
    attention_of, cut = WAYS[way]
    generator = torch.Generator().manual_seed(2)
    shapes = [(heads, 2 * PIECE * world_size, HEAD_SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    whole = [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]

    def own(tensor):
        return torch.cat([tensor.chunk(2 * world_size, 1)[piece] for piece in cut(rank, world_size)], 1)

    mine = [own(tensor.detach()).clone().requires_grad_() for tensor in whole]
    wanted = functional.scaled_dot_product_attention(*whole, is_causal=True, enable_gqa=True)
    wanted.square().sum().backward()
    with BytesSent() as forward:
        attended = attention_of(*mine)
    with BytesSent() as backward:
        attended.square().sum().backward()
    errors = [attended - own(wanted)]
    errors += [part.grad - own(tensor.grad) for part, tensor in zip(mine, whole, strict=True)]
    return max(error.abs().max().item() for error in errors), forward.total, backward.total


@pytest.mark.ranks
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_equals_full_attention_and_sends_what_its_formula_says(way, world_size):
    a_head = ITEMSIZE * 2 * PIECE * HEAD_SIZE  # bytes of a rank's tokens
    others, keys_values = world_size - 1, 2 * KV_HEADS * a_head
    home = world_size if others else 0  # hops that gradients make until they are home
    expected = {
        "gathered, zigzag": (others * keys_values, others * keys_values),
        "Ulysses": (others * 2 * (HEADS + KV_HEADS) * a_head // world_size,) * 2,
    }.get(way, (others * keys_values, (others + home) * keys_values))
    for error, *sent in ranks.run(attend, world_size, way):
        assert error < 1e-9
        assert tuple(sent) == expected


def train(rank, world_size, way, steps=3):
    """The losses of a block whose attention goes `way`. Ranks add up their gradients: each has seen its own tokens."""
    torch.manual_seed(0)
    block = Block(24, HEADS // 2).double()
    block.halves[0].attend, cut = WAYS[way] if way else (block.halves[0].attend, in_order)
    optimizer, losses = torch.optim.SGD(block.parameters(), lr=0.1), []
    for step in range(steps):
        whole = torch.randn(24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        pieces = whole.chunk(2 * world_size)
        mine = torch.cat([pieces[piece] for piece in cut(rank, world_size)])
        loss = functional.mse_loss(block(mine), mine.sin()) / world_size
        optimizer.zero_grad()
        loss.backward()
        for tensor in (loss := loss.detach(), *(parameter.grad for parameter in block.parameters())):
            dist.all_reduce(tensor)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.ranks
@pytest.mark.parametrize("way", WAYS)
def test_a_block_on_a_shared_sequence_trains_as_on_one_rank(way):
    (alone,) = ranks.run(train, 1, None)
    for losses in ranks.run(train, 3, way):
        np.testing.assert_allclose(losses, alone, rtol=1e-12)
    assert len(set(alone)) == len(alone)


def too_few_heads(rank, world_size):
    queries, keys = torch.zeros(6, 4, 2), torch.zeros(2, 4, 2)
    try:
        ulysses_attention(queries, keys, keys)
    except ValueError as error:
        return str(error)


@pytest.mark.ranks
def test_ulysses_refuses_more_ranks_than_heads_of_keys():
    assert ranks.run(too_few_heads, 3) == ["2 heads of keys do not divide among 3 ranks"] * 3


@pytest.mark.parametrize("world_size", range(1, 17))
def test_both_cuts_do_all_of_the_work_and_only_zigzag_shares_it_evenly(world_size):
    for cut in (in_order, zigzag):
        assert sorted(p for rank in range(world_size) for p in cut(rank, world_size)) == [*range(2 * world_size)]
        assert work(cut, world_size).sum() == world_size**2 / 2
    assert (work(zigzag, world_size) == 0.5).all()
    np.testing.assert_array_equal(work(in_order, world_size).sum(1), np.arange(world_size) + 0.5)


def test_in_order_the_last_rank_sets_the_time():
    assert run(steps(in_order, 8)).seconds == 7.5
    assert run(steps(zigzag, 8)).seconds == 4


def test_the_figure_shows_every_score_that_the_mask_leaves_exactly_once():
    figure = attention.draw_steps({"in order": in_order, "zigzag": zigzag}, 4)
    for story in figure.stories:
        squares = [(tile.top, tile.left) for content in story.scenes[-1].contents["so far"] for tile in content]
        assert sorted(squares) == [(query, key) for query in range(8) for key in range(query + 1)]
