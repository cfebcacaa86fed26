"""Rounded collectives send what they say, and no number is further off than half a step for each time it is rounded."""

import numpy as np
import pytest
import torch

from collectives import ranks
from collectives.measure.wire import BytesSent
from collectives.training import quantized

pytestmark = pytest.mark.ranks

CHUNK = 128  # two blocks


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_elements", [1, 2, 63, 64, 65, 1001])
def test_a_packed_row_has_the_bytes_it_should_and_says_every_number_to_half_a_step(bits, num_elements):
    rows = torch.randn(3, num_elements, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[1e-30], [1], [1e30]]
    )
    messages = quantized.pack(rows, bits)
    assert messages.shape == (3, quantized.message_bytes(num_elements, bits))
    errors = (quantized.unpack(messages, num_elements, bits) - rows).abs()
    assert (errors <= torch.stack([quantized.bound(row, bits) for row in rows])).all()


def test_the_bound_is_tight_and_a_block_of_zeros_stays_zero():
    steps = torch.tensor([7.0, 0.5, -7.0, 2.5, 0.0])  # with 4 bits and a largest of 7 a step is 1
    assert quantized.rounded(steps, bits=4).tolist() == [7, 0, -7, 2, 0]  # halves go to the even neighbour
    assert torch.equal(quantized.rounded(torch.zeros(70)), torch.zeros(70))
    assert quantized.rounded(torch.zeros(0)).shape == (0,)


def test_an_outlier_spoils_its_own_block_only():
    values = torch.full((128,), 0.01)
    values[0] = 100.0
    errors = (quantized.rounded(values, block=64) - values).abs()
    assert errors[1:64].min() > 0.009 and errors[64:].max() < 1e-4


def test_what_cannot_be_packed_is_refused_in_words():
    with pytest.raises(ValueError, match="not finite"):
        quantized.pack(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(ValueError, match=r"not torch\.uint8"):
        quantized.pack(torch.zeros(1, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match="4 or 8, not 3"):
        quantized.message_bytes(10, bits=3)
    with pytest.raises(ValueError, match="at least 1 number"):
        quantized.message_bytes(10, block=0)
    with pytest.raises(ValueError, match="has 14 bytes, not 9"):
        quantized.unpack(torch.zeros(1, 9, dtype=torch.uint8), 10)
    with pytest.raises(ValueError, match="do not fill nodes of 3"):
        quantized.two_hops(4, 3)


def inputs(world_size):
    return torch.randn(world_size, world_size * CHUNK, generator=torch.Generator().manual_seed(world_size))


def counted(collective, rank, ranks_per_node):
    with BytesSent() as sent:
        result = collective()
    across = sum(size for peer, size in sent.to.items() if peer // ranks_per_node != rank // ranks_per_node)
    return result.numpy(), sent.total, across


def run_all(rank, world_size):
    """Each collective on this rank, and its bytes; those in two hops for every size of a node."""
    mine = inputs(world_size)[rank]
    found = {
        "gather": counted(lambda: quantized.all_gather(mine[rank * CHUNK : (rank + 1) * CHUNK]), rank, 1),
        "once": counted(lambda: quantized.reduce_scatter(mine), rank, 1),
    }
    for local in (size for size in range(1, world_size + 1) if world_size % size == 0):
        found[local] = counted(lambda local=local: quantized.reduce_scatter_in_two(mine, local), rank, local)
    try:
        quantized.reduce_scatter(mine[:-1])
    except ValueError as refused:
        return found, str(refused)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_on_real_ranks_errors_are_within_their_bounds_and_bytes_as_on_paper(world_size):
    values = inputs(world_size)
    truth = values.sum(dim=0).view(world_size, CHUNK).numpy()
    shards = torch.stack([values[r, r * CHUNK : (r + 1) * CHUNK] for r in range(world_size)])
    once = sum(quantized.bound(row, 4) for row in values)
    results = ranks.run(run_all, world_size)
    of_rank_zero = results[0][0]["gather"][0]  # all ranks get the same bits
    for rank, (found, refusal) in enumerate(results):
        assert refusal == f"{world_size * CHUNK - 1} numbers do not divide among {world_size} ranks: pad them"

        gathered, sent, _ = found.pop("gather")
        assert np.array_equal(gathered, of_rank_zero)
        assert (abs(gathered - shards.flatten().numpy()) <= quantized.bound(shards.flatten()).numpy()).all()
        assert sent == (world_size - 1) * quantized.message_bytes(CHUNK, 8)

        summed, sent, _ = found.pop("once")
        assert (abs(summed - truth[rank]) <= once.view(world_size, -1)[rank].numpy()).all()
        assert sent == (world_size - 1) * quantized.message_bytes(CHUNK, 4)

        for local, (summed, sent, across) in found.items():
            of_nodes = [
                sum(map(quantized.rounded, node, [4] * local)) for node in values.view(-1, local, values.shape[1])
            ]
            twice = once + sum(quantized.bound(row, 4) for row in of_nodes)
            assert (abs(summed - truth[rank]) <= twice.view(world_size, -1)[rank].numpy()).all()
            if local in (1, world_size):  # one of the hops has nowhere to go
                assert (abs(summed - truth[rank]) <= once.view(world_size, -1)[rank].numpy()).all()
            nodes = world_size // local
            assert across == (nodes - 1) * quantized.message_bytes(CHUNK, 4)
            assert sent == across + (local - 1) * quantized.message_bytes(nodes * CHUNK, 4)


@pytest.mark.parametrize(("world_size", "local"), [(4, 2), (6, 3), (8, 2)])
def test_the_two_hops_are_all_to_alls_in_and_across_nodes(world_size, local):
    inside, across = quantized.two_hops(world_size, local)
    assert all(step.src[i] // local == step.dst[i] // local for step in inside for i in range(len(step)))
    assert all(step.src[i] % local == step.dst[i] % local for step in across for i in range(len(step)))
    assert (inside.num_chunks, across.num_chunks) == (local, world_size // local)
