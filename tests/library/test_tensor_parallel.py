"""A block split over ranks is the dense block, forward and backward, at the price of the collectives counted here."""

from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

from collectives import machines, network, price, ranks, topology
from collectives.algorithms import ring
from collectives.machines import RUNNING_CASE
from collectives.measure.held import BytesHeld
from collectives.measure.wire import BytesSent
from collectives.training.context_parallel import ring_attention
from collectives.training.tensor_parallel import (
    cross_entropy,
    gathered,
    gathered_product,
    reduce_scattered,
    scattered_product,
    split,
)
from collectives.training.transformer import Block

pytestmark = pytest.mark.ranks

WORLD_SIZES = [2, 3, 4]
TOKENS, WIDTH, HEADS = 12, 24, 12
ITEMSIZE = 8  # fp64: what differs is a mistake, not rounding


def dense_block():
    torch.manual_seed(0)
    return Block(WIDTH, HEADS).double()


def tokens():
    return torch.randn(TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def cut(tensor, like, rank, world_size):
    """The part of a dense block's gradient that belongs to a rank's parameter of the shape of `like`."""
    axis = next((axis for axis in range(tensor.dim()) if tensor.shape[axis] != like.shape[axis]), None)
    return tensor if axis is None else tensor.chunk(world_size, axis)[rank]


def run_block(rank, world_size, sequence, gather_twice=False):
    """How far this rank's part is off the dense block, what it sends each way, and the activations that it keeps."""
    dense, part, rows = dense_block(), split(dense_block(), None, sequence, gather_twice), slice(None)
    if sequence:
        rows = slice(rank * TOKENS // world_size, (rank + 1) * TOKENS // world_size)
    whole, x = tokens().requires_grad_(), tokens()[rows].clone().requires_grad_()
    weights = torch.arange(TOKENS, dtype=torch.float64)[:, None]
    wanted = dense(whole)
    (wanted * weights).sum().backward()
    with BytesSent() as forward, BytesHeld(lambda: {"parameters": part.parameters(), "input": [x]}) as held:
        y = part(x)
        activations = held.now["other"]
    with BytesSent() as backward:
        (y * weights[rows]).sum().backward()
    errors = [y - wanted[rows], x.grad - whole.grad[rows]]
    for mine, theirs in zip(part.parameters(), dense.parameters(), strict=True):
        errors.append(mine.grad - cut(theirs.grad, mine, rank, world_size))
    return max(error.abs().max().item() for error in errors), forward.total, backward.total, activations


@cache
def run(world_size):
    ways = ((False, False), (True, False), (True, True))  # sequence parallelism, gathering twice
    return ranks.run(lambda rank, world_size: [run_block(rank, world_size, *way) for way in ways], world_size)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_split_block_equals_the_dense_block_forward_and_backward(world_size):
    for ways in run(world_size):
        assert all(error < 1e-9 for error, *_ in ways)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_each_half_of_a_block_costs_one_all_reduce_each_way(world_size):
    all_reduce = 2 * (world_size - 1) / world_size * ITEMSIZE * TOKENS * WIDTH
    for (_, forward, backward, _), *_ in run(world_size):
        assert forward == backward == 2 * all_reduce


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_sequence_parallelism_sends_as_much_and_keeps_less(world_size):
    """But for the gradients of what each rank applies to its own rows: two norms, each with a weight and a bias."""
    own = 4 * 2 * (world_size - 1) / world_size * ITEMSIZE * WIDTH
    for (_, forward, backward, kept), (_, its_forward, its_backward, its_kept), _ in run(world_size):
        assert its_forward == forward
        assert its_backward == backward + own
        assert its_kept < kept


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_gathering_twice_keeps_a_rank_s_own_rows_of_two_inputs_for_two_more_gathers(world_size):
    """E25: the two inputs that a rank gathers, and need not keep."""
    whole = ITEMSIZE * TOKENS * WIDTH
    for (*_, plain), (_, forward, backward, kept), (_, its_forward, its_backward, its_kept) in run(world_size):
        if world_size == 4:  # as a share of what a rank keeps without sequence parallelism
            assert (kept / plain, its_kept / plain) == pytest.approx((0.82, 0.65), abs=0.005)
        assert its_forward == forward
        assert its_backward == backward + 2 * whole * (world_size - 1) / world_size
        assert its_kept == kept - 2 * whole + 2 * whole / world_size


def test_in_decoding_a_sum_takes_the_latency_of_ll_and_in_training_hardly_any():
    """E27: a token of width 8,192 in bf16 over 8 H100, and 4,096 of them.

    By NCCL's latencies alone its ring takes 48 us with Simple and 8.4 with LL. The fitted model adds a launch of 9.4.
    """
    for protocol, microseconds in (("Simple", 47.7), ("LL", 8.46)):
        links = topology.Topology(8, machines.link("NVLink 4 (H100)", protocol))
        assert price(ring.all_reduce(8), 2 * 8192, links).seconds * 1e6 == pytest.approx(microseconds, abs=0.05)
    node = RUNNING_CASE.of(1)
    token, sequence = (network.choose("all_reduce", 2 * 8192 * count, node) for count in (1, 4096))
    assert token.protocol == "LL" and token.seconds * 1e6 == pytest.approx(17.2, abs=0.2)
    assert network.choose("all_reduce", 0, node).seconds > 0.75 * token.seconds
    simple = [way for way in network.ways("all_reduce", 2 * 8192, node, algorithm="Ring") if way.protocol == "Simple"]
    assert simple[0].seconds > 2 * token.seconds
    assert token.seconds < 0.1 * sequence.seconds


def refused(rank, world_size):
    try:
        split(Block(WIDTH, 4))
    except ValueError as error:
        return str(error)


def test_heads_that_do_not_divide_are_refused():
    assert ranks.run(refused, 3) == ["4 heads do not divide among 3 ranks"] * 3


def attend(rank, world_size):
    generator = torch.Generator().manual_seed(2)
    whole = [torch.randn(2, TOKENS, 4, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]
    wanted = functional.scaled_dot_product_attention(*whole, is_causal=True)
    mine = [tensor.detach().chunk(world_size, 1)[rank].clone().requires_grad_() for tensor in whole]
    with BytesSent() as sent:
        attended = ring_attention(*mine)
    wanted.square().sum().backward()
    attended.square().sum().backward()
    errors = [attended - wanted.chunk(world_size, 1)[rank]]
    errors += [part.grad - tensor.grad.chunk(world_size, 1)[rank] for part, tensor in zip(mine, whole, strict=True)]
    dist.barrier()
    return max(error.abs().max().item() for error in errors), sent.total


@pytest.mark.parametrize("world_size", [1, *WORLD_SIZES])
def test_ring_attention_equals_full_attention_forward_and_backward(world_size):
    keys_and_values = 2 * ITEMSIZE * 2 * TOKENS * 4
    for error, sent in ranks.run(attend, world_size):
        assert error < 1e-9
        assert sent == keys_and_values * (world_size - 1) / world_size


def torchs_own(rank, world_size):
    """The same block split by torch, by three plans: how far it is off the dense one, and the collectives each way."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    def enter(layout):
        return {"halves.*": PrepareModuleInput(input_layouts=(layout,), desired_input_layouts=(Replicate(),))}

    first, second = {"halves.*.first.*": ColwiseParallel()}, {"halves.*.second": RowwiseParallel()}
    rows_out = {"halves.*.second": RowwiseParallel(output_layouts=Shard(0))}
    plans = {
        "weights": {**first, **second},
        "inputs": {**enter(Replicate()), **first, **second},
        "sequence": {"norms.*": SequenceParallel(sequence_dim=0), **enter(Shard(0)), **first, **rows_out},
    }
    mesh, whole, seen = init_device_mesh("cpu", (world_size,)), tokens().requires_grad_(), {}
    wanted = dense_block()(whole)
    wanted.square().sum().backward()
    for name, plan in plans.items():
        part = parallelize_module(dense_block(), mesh, plan)
        own = slice(rank * TOKENS // world_size, (rank + 1) * TOKENS // world_size)
        rows = own if name == "sequence" else slice(None)
        x = tokens()[rows].clone().requires_grad_()
        with BytesSent() as forward:
            y = part(x)
        with BytesSent() as backward:
            y.square().sum().backward()
        error = max((y - wanted[rows]).abs().max().item(), (x.grad - whole.grad[rows]).abs().max().item())
        ways = [(dict(way.collectives), dict(way.payloads)) for way in (forward, backward)]
        seen[name] = error, *ways
    return seen


@pytest.mark.parametrize("world_size", [2, 4])
def test_torchs_own_split_calls_the_same_collectives_for_the_same_values(world_size):
    """But backward torch reduces for each of queries, keys and values, unless told of the input of all three."""
    payload = ITEMSIZE * TOKENS * WIDTH
    twice = {"all_reduce": 2}, {"all_reduce": 2 * payload}
    both = {"all_gather": 2, "reduce_scatter": 2}, {"all_gather": 2 * payload, "reduce_scatter": 2 * payload}
    for seen in ranks.run(torchs_own, world_size):
        assert all(error < 1e-9 for error, _, _ in seen.values())
        assert seen["weights"][1:] == (twice, ({"all_reduce": 4}, {"all_reduce": 4 * payload}))
        assert seen["inputs"][1:] == (twice, twice)
        assert seen["sequence"][1:] == (both, both)


VOCABULARY = 24


def logits_and_targets():
    generator = torch.Generator().manual_seed(3)
    logits = 40 * torch.randn(TOKENS, VOCABULARY, dtype=torch.float64, generator=generator)
    return logits, torch.randint(VOCABULARY, (TOKENS,), generator=generator)


def loss_of_columns(rank, world_size):
    """How far the loss and its gradients are off those of all columns, and what each way sends."""
    logits, targets = logits_and_targets()
    whole, mine = logits.clone().requires_grad_(), logits.chunk(world_size, 1)[rank].clone().requires_grad_()
    wanted = functional.cross_entropy(whole, targets)
    (3 * wanted).backward()
    with BytesSent() as forward:
        loss = cross_entropy(mine, targets)
    with BytesSent() as backward:
        (3 * loss).backward()
    off = max((mine.grad - whole.grad.chunk(world_size, 1)[rank]).abs().max().item(), (loss - wanted).abs().item())
    half = cross_entropy(mine.detach().bfloat16(), targets).dtype
    return off, forward.total, backward.total, half


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_loss_of_sharded_logits_is_that_of_all_and_sends_two_numbers_a_token(world_size):
    """In fp32 at least: bf16 has eight bits for a sum over the vocabulary."""
    for off, forward, backward, half in ranks.run(loss_of_columns, world_size):
        assert off < 1e-12
        assert forward == (world_size - 1) * 2 * TOKENS * ITEMSIZE
        assert backward == 0
        assert half == torch.float32


def multiply_in_parts(rank, world_size):
    """How far products in parts are off gather and product, product and reduce-scatter; and what they send."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(TOKENS, WIDTH, dtype=torch.float64, generator=generator)
    terms = torch.randn(world_size, WIDTH, WIDTH, dtype=torch.float64, generator=generator)
    rows = x.chunk(world_size)[rank]
    with BytesSent() as gathering:
        first = gathered_product(rows, terms[rank])
    with BytesSent() as scattering:
        second = scattered_product(x, terms[rank])
    off = max(
        (first - gathered(rows, None) @ terms[rank]).abs().max().item(),
        (second - (x @ terms.sum(0)).chunk(world_size)[rank]).abs().max().item(),
        (second - reduce_scattered(x @ terms[rank], None)).abs().max().item(),
    )
    return off, gathering.total, scattering.total


@pytest.mark.parametrize("world_size", [1, *WORLD_SIZES])
def test_a_product_in_parts_is_the_same_product_and_sends_what_the_collective_sends(world_size):
    """E26: what there is to do meanwhile."""
    share = (world_size - 1) * TOKENS // world_size * WIDTH * ITEMSIZE
    for off, gathering, scattering in ranks.run(multiply_in_parts, world_size):
        assert off < 1e-9
        assert gathering == scattering == share


def uneven(rank, world_size):
    try:
        scattered_product(torch.ones(TOKENS + 1, 2), torch.ones(2, 2))
    except ValueError as error:
        return str(error)


def test_a_product_of_tokens_that_do_not_divide_is_refused():
    assert ranks.run(uneven, 2) == ["13 tokens do not divide among 2 ranks"] * 2
