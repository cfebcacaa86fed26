"""Tokens find their experts on other ranks and come home: the same result as if all experts were on one rank."""

from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch import nn

from collectives import ranks
from collectives.measure.wire import BytesSent
from collectives.training.experts import (
    ExpertParallel,
    OncePerNode,
    auxiliary_loss,
    capacity,
    exchange,
    expected_places,
    imbalance,
    places,
    rebalanced,
    route,
    route_to_few_nodes,
    within_capacity,
)

pytestmark = pytest.mark.ranks

WIDTH, EXPERTS, TOKENS = 6, 12, 10
ITEMSIZE = 8


def all_experts():
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH).double() for _ in range(EXPERTS)]


def tokens_and_logits(rank):
    """Of one rank; the logits lean to few experts, some of which no token chooses."""
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randn(TOKENS + rank, WIDTH, dtype=torch.float64, generator=generator)
    logits = torch.randn(TOKENS + rank, EXPERTS, dtype=torch.float64, generator=generator)
    return tokens.requires_grad_(), (logits - torch.arange(EXPERTS) / 4).requires_grad_()


def dense(experts, tokens, routing):
    """All experts answer all tokens; what was not asked for has no weight."""
    answers = torch.stack([expert(tokens) for expert in experts], 1)  # [tokens, experts, width]
    weights = torch.zeros(len(tokens), len(experts), dtype=tokens.dtype).scatter(1, routing.experts, routing.weights)
    return (weights[:, :, None] * answers).sum(1)


def compare(rank, world_size, k, places):
    """How far the layer over ranks is off the dense one: result, gradients of tokens and router, and of its experts."""
    share = EXPERTS // world_size
    mine = slice(rank * share, (rank + 1) * share)
    layer, whole = ExpertParallel(all_experts()[mine]), all_experts()
    for source in range(world_size):  # what all ranks do, done by this rank alone
        tokens, logits = tokens_and_logits(source)
        routing = within_capacity(route(logits, k), places)
        wanted = dense(whole, tokens, routing)
        wanted.square().sum().backward()
        if source == rank:
            expected = wanted, tokens.grad, logits.grad
    tokens, logits = tokens_and_logits(rank)
    routing = within_capacity(route(logits, k), places)
    with BytesSent() as sent:
        result = layer(tokens, routing)
    result.square().sum().backward()
    pairs = list(zip(expected, (result, tokens.grad, logits.grad), strict=True))
    for theirs, ours in zip(whole[mine], layer.experts, strict=True):
        pairs += [(theirs.weight.grad, ours.weight.grad), (theirs.bias.grad, ours.bias.grad)]
    leaving = routing.experts[(routing.weights > 0) & (routing.experts // share != rank)]
    return max((one - other).abs().max().item() for one, other in pairs), sent.total, len(leaving)


@cache
def compared(world_size, k, places=TOKENS + 4):
    return ranks.run(compare, world_size, k, places)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [1, 2])
def test_any_routing_gives_the_dense_result_and_gradients(world_size, k):
    assert max(error for error, *_ in compared(world_size, k)) < 1e-9


def test_dropped_tokens_are_left_out_as_in_the_dense_layer():
    assert max(error for error, *_ in compared(3, 2, places=2)) < 1e-9
    whole, cut = ([leaving for *_, leaving in compared(3, 2, places)] for places in (TOKENS + 4, 2))
    assert sum(cut) < sum(whole)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_forward_a_rank_sends_its_leaving_tokens_the_answers_it_owes_and_a_few_numbers(world_size):
    counts = 8 * world_size * EXPERTS * (world_size - 1) / world_size
    outcomes = compared(world_size, 2)
    everybodys = sum(sent for _, sent, _ in outcomes) - world_size * counts
    assert everybodys == 2 * ITEMSIZE * WIDTH * sum(leaving for *_, leaving in outcomes)


def once_per_node(rank, world_size, k, kept):
    """How far `OncePerNode` is off the dense layer, with two ranks on a node."""
    nodes = world_size // 2
    pairs = [dist.new_group([2 * node, 2 * node + 1]) for node in range(nodes)]
    rails = [dist.new_group(list(range(first, world_size, 2))) for first in range(2)]
    share = EXPERTS // world_size
    mine = slice(rank * share, (rank + 1) * share)
    layer, whole = OncePerNode(all_experts()[mine], pairs[rank // 2], rails[rank % 2]), all_experts()
    for source in range(world_size):
        tokens, logits = tokens_and_logits(source)
        routing = within_capacity(route(logits, k), kept)
        wanted = dense(whole, tokens, routing)
        wanted.square().sum().backward()
        if source == rank:
            expected = wanted, tokens.grad, logits.grad
    tokens, logits = tokens_and_logits(rank)
    routing = within_capacity(route(logits, k), kept)
    result = layer(tokens, routing)
    result.square().sum().backward()
    found = zip(expected, (result, tokens.grad, logits.grad), strict=True)
    ours = zip(whole[mine], layer.layer.experts, strict=True)
    found = [*found, *((theirs.weight.grad, mine.weight.grad) for theirs, mine in ours)]
    return max((one - other).abs().max().item() for one, other in found)


@pytest.mark.parametrize("kept", [2, TOKENS + 4])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("world_size", [2, 4, 6])
def test_a_copy_for_each_node_gives_the_dense_result_and_gradients(world_size, k, kept):
    assert max(ranks.run(once_per_node, world_size, k, kept)) < 1e-9


def answered_in_bf16(rank, world_size):
    layer = ExpertParallel([nn.Linear(WIDTH, WIDTH).bfloat16()])
    return layer(torch.ones(3, WIDTH).bfloat16(), route(torch.eye(3, world_size))).dtype


def test_a_router_in_fp32_may_route_tokens_in_bf16():
    assert ranks.run(answered_in_bf16, 2) == [torch.bfloat16] * 2


def test_capacity_keeps_the_first_tokens_of_every_expert():
    routing = route(torch.tensor([[9.0, 0], [9, 0], [0, 9], [9, 0]]))
    kept = within_capacity(routing, capacity(num_tokens=4, num_experts=2, factor=1.0))
    assert (kept.weights.flatten() > 0).tolist() == [True, True, True, False]
    assert routing.load.tolist() == [3, 1]


@pytest.mark.parametrize("arguments, places", [((100, 1, 1.15), 115), ((100, 8, 1.0), 13), ((4, 8, 1.0), 1)])
def test_capacity_is_rounded_up_and_not_by_a_rounding_of_floats(arguments, places):
    assert capacity(*arguments) == places


def test_imbalance_is_that_of_a_step_and_not_of_the_mean_over_steps():
    loads = torch.tensor([[6, 1, 1], [1, 6, 1], [1, 1, 6]])  # another expert is busy in every step
    assert imbalance(loads).tolist() == [2.25] * 3
    assert imbalance(loads.double().mean(0)).item() == 1  # no step ever was so even


def test_chance_alone_makes_a_step_a_quarter_uneven_and_the_mean_of_twenty_steps_hides_it():
    """E21: 256 tokens that choose evenly among 8. Of the mean of 20 steps, chapter 15 once said 1.07 for 1.30."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(8, (200, 20, 256), generator=generator)
    loads = torch.nn.functional.one_hot(steps, 8).sum(2).double()  # [run, step, expert]
    assert imbalance(loads).mean().item() == pytest.approx(1.25, abs=0.02)
    assert imbalance(loads.mean(1)).mean().item() < 1.07


def loads_of_a_toy(pull, steps=300, width=16, batch=256, experts=8):
    """Return the load of each step [steps, experts] in chapter 15's toy; `pull` weighs the auxiliary loss."""
    torch.manual_seed(0)
    centres = 2 * torch.randn(experts, width)
    maps = torch.randn(experts, width, width) / width**0.5
    router = nn.Linear(width, experts, bias=False)
    layer = nn.Parameter(torch.randn(experts, width, width) / width**0.5)
    adam, each, loads = torch.optim.Adam([*router.parameters(), layer], lr=0.02), torch.arange(batch), []
    for _ in range(steps):
        kind = torch.randint(experts, (batch,))
        tokens = centres[kind] + torch.randn(batch, width)
        wanted = torch.einsum("tw,ewv->tev", tokens, maps)[each, kind]
        routing = route(router(tokens))
        answers = torch.einsum("tw,ewv->tev", tokens, layer)[each, routing.experts[:, 0]] * routing.weights
        adam.zero_grad()
        ((answers - wanted).square().mean() + pull * auxiliary_loss(routing)).backward()
        adam.step()
        loads.append(routing.load)
    return torch.stack(loads).double()


@pytest.mark.parametrize("pull, by_step, of_means", [(1, 1.30, 1.07), (0.01, 3.68, 3.68), (0, 3.92, 3.92)])
def test_with_the_weight_of_switch_the_toy_stays_uneven_and_a_weight_of_1_ends_at_what_chance_leaves(
    pull, by_step, of_means
):
    """E21: 1.07 was the imbalance of the mean load of 20 steps. Switch's weight of the loss is 0.01."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the sums of more threads round differently, and a router amplifies it
    last = loads_of_a_toy(pull)[-20:]
    torch.set_num_threads(threads)
    assert imbalance(last).mean().item() == pytest.approx(by_step, abs=0.03)
    assert imbalance(last.mean(0)).item() == pytest.approx(of_means, abs=0.03)


def random_logits(tokens=20_000, num_experts=256):
    return torch.randn(tokens, num_experts, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("count, mean", [(64, 7.7), (8, 5.3), (1, 1.0)])
def test_a_random_router_touches_fewer_nodes_than_experts(count, mean):
    """E29: 8 of 256 experts, as in DeepSeek-V3, on 64 ranks, on 8 nodes, and in one place."""
    counted = places(route(random_logits(), 8), count).double().mean().item()
    assert counted == pytest.approx(expected_places(8, 256, count), rel=0.01)
    assert counted == pytest.approx(mean, abs=0.06)


def test_a_router_limited_to_some_nodes_touches_no_more_and_else_chooses_as_ever():
    logits = random_logits(500)
    assert places(route_to_few_nodes(logits, 8, nodes=8, limit=4), 8).max() == 4
    assert places(route_to_few_nodes(logits, 8, nodes=8, limit=1), 8).max() == 1
    assert route_to_few_nodes(logits, 8, nodes=8, limit=8).experts.equal(route(logits, 8).experts)


def test_a_limited_router_prefers_the_nodes_whose_best_experts_together_are_most_probable():
    logits = torch.tensor([[5.0, 0, 0, 4, 4, 0]])  # node 0's best expert outweighs two of node 1
    assert set(route_to_few_nodes(logits, 2, nodes=2, limit=1).experts[0].tolist()) <= {0, 1, 2}
    logits = torch.tensor([[5.0, 0, 0, 4.9, 4.9, 0]])
    assert set(route_to_few_nodes(logits, 2, nodes=2, limit=1).experts[0].tolist()) == {3, 4}


@pytest.mark.parametrize("nodes, limit", [(5, 2), (8, 9), (64, 1)])
def test_a_limit_that_no_routing_can_keep_is_refused(nodes, limit):
    with pytest.raises(ValueError, match=f"8 of 256 experts can't be on at most {limit} of {nodes} nodes"):
        route_to_few_nodes(random_logits(1), 8, nodes, limit)


def test_the_auxiliary_loss_is_1_when_balanced_and_more_when_not():
    balanced = route(5 * torch.eye(4).repeat(3, 1))
    assert auxiliary_loss(balanced).item() == pytest.approx(1)
    crowded = route(torch.tensor([[5.0, 0, 0, 0]]).repeat(12, 1))
    assert auxiliary_loss(crowded).item() > 3.8


def test_descending_the_auxiliary_loss_balances_the_load():
    torch.manual_seed(0)
    tokens, router = torch.randn(256, 16), nn.Linear(16, 8)
    with torch.no_grad():
        router.bias += torch.arange(8.0)
    before = route(router(tokens)).load
    optimizer = torch.optim.Adam(router.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        auxiliary_loss(route(router(tokens))).backward()
        optimizer.step()
    assert before.max() > 4 * 256 / 8
    assert route(router(tokens)).load.max() < 1.5 * 256 / 8


def test_a_bias_changes_the_choice_and_not_the_weight():
    logits = torch.tensor([[3.0, 1, 0], [2, 1, 0]])
    plain, moved = route(logits), route(logits, bias=torch.tensor([0.0, 1, 0]))
    assert plain.experts.tolist() == [[0], [0]] and moved.experts.tolist() == [[1], [1]]
    assert moved.weights.equal(plain.probabilities[:, 1:2])


def test_without_a_loss_a_bias_balances_the_load_and_leaves_an_even_one_alone():
    logits = random_logits(512, 8) + torch.arange(8) / 2
    bias = torch.zeros(8)
    before = imbalance(route(logits).load)
    for _ in range(500):
        bias = rebalanced(bias, route(logits, bias=bias).load, speed=0.001)
    assert before > 3.5 and imbalance(route(logits, bias=bias).load) < 1.1
    assert rebalanced(bias, torch.full((8,), 64), speed=0.001).equal(bias)


def refuse(rank, world_size):
    try:
        exchange(torch.zeros(3, 2), [[1, 1], [1, 1]])
    except ValueError as error:
        return str(error)


def test_rows_that_do_not_fit_the_table_are_refused():
    assert ranks.run(refuse, 2) == [f"rank {rank} has 3 rows, but its blocks have [1, 1]" for rank in range(2)]
