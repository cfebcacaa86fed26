"""Expert parallelism: tokens travel to the ranks of the experts that the router chose for them, and back.

    routing = route(logits, k=2)                      # experts and weights for each of this rank's tokens
    y = ExpertParallel(experts, group)(x, routing)    # `experts`: this rank's; y: [tokens, width], in token order

Dispatch is an all-to-all whose block sizes the router decides. Combine is the same all-to-all with the blocks
transposed. In `ExpertParallel` a token travels once for each of its experts, in `OncePerNode` once for each node of
them; `places` counts the copies. Sources: Shazeer et al., “Outrageously Large Neural Networks”, 2017; Fedus et al.,
“Switch Transformers”, 2022, section 2.2 (capacity and the auxiliary loss).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ..algorithms import pairwise, ring
from ..execute import execute
from .conjugate import conjugate

Group = dist.ProcessGroup | None


class Routing(NamedTuple):
    """The router's decision. `experts`: int [tokens, k]. `weights`: [tokens, k], each expert's weight in the result.

    `probabilities`: [tokens, num_experts], the router's softmax.
    """

    experts: torch.Tensor
    weights: torch.Tensor
    probabilities: torch.Tensor

    @property
    def load(self) -> torch.Tensor:
        """The number of tokens routed to each expert, including dropped ones: int [num_experts]."""
        return torch.bincount(self.experts.flatten(), minlength=self.probabilities.shape[1])


def route(logits: torch.Tensor, k: int = 1, bias: torch.Tensor | None = None) -> Routing:
    """Return the routing to the `k` most probable experts of each token. `logits`: [tokens, num_experts].

    `bias`: [num_experts], added to the probabilities for the choice, not for the weights: see `rebalanced`.
    """
    probabilities = logits.softmax(-1)
    experts = (probabilities if bias is None else probabilities + bias).topk(k).indices
    return Routing(experts, probabilities.gather(1, experts), probabilities)


def rebalanced(bias: torch.Tensor, load: torch.Tensor, speed: float) -> torch.Tensor:
    """Return the next bias: up by `speed` where the load is below the mean, else down.

    Source: L. Wang et al., “Auxiliary-Loss-Free Load Balancing Strategy for
    Mixture-of-Experts”, 2024.
    """
    return bias + speed * (load.double().mean() - load).sign().to(bias.dtype)


def route_to_few_nodes(logits: torch.Tensor, k: int, nodes: int, limit: int) -> Routing:
    """Return the routing to `k` experts on at most `limit` of the `nodes`, as DeepSeek-V3 does.

    A token goes to the nodes whose `k` / `limit` best experts have the highest sum of probabilities, and there to the
    `k` best. Node n has the experts from n E / N on. Source: “DeepSeek-V3 Technical Report”, 2024, section 2.1.2.
    Raises `ValueError` if the experts don't divide among the nodes, or if `limit` nodes don't have `k` experts.
    """
    tokens, num_experts = logits.shape
    if num_experts % nodes or not k <= limit * num_experts // nodes or limit > nodes:
        raise ValueError(f"{k} of {num_experts} experts can't be on at most {limit} of {nodes} nodes")
    probabilities = logits.softmax(-1)
    by_node = probabilities.view(tokens, nodes, -1)
    strength = by_node.topk(min(-(-k // limit), by_node.shape[2])).values.sum(-1)  # [tokens, nodes]
    allowed = torch.zeros_like(strength, dtype=torch.bool).scatter(1, strength.topk(limit).indices, True)
    weights, experts = by_node.masked_fill(~allowed[:, :, None], 0).flatten(1).topk(k)
    return Routing(experts, weights, probabilities)


def places(routing: Routing, count: int) -> torch.Tensor:
    """Return on how many of `count` places (ranks or nodes) each token has experts: int [tokens].

    Place p has the experts from p E / count on. A token travels so often if one copy serves a place.
    """
    where = (routing.experts // (routing.probabilities.shape[1] // count)).sort(1).values
    return 1 + (where.diff(dim=1) != 0).sum(1)


def expected_places(k: int, num_experts: int, count: int) -> float:
    """Return the mean of `places` if every set of `k` experts is as likely: count (1 - C(E - E/count, k) / C(E, k))."""
    elsewhere = num_experts - num_experts // count
    return count * (1 - math.comb(elsewhere, k) / math.comb(num_experts, k))


def imbalance(load: torch.Tensor) -> torch.Tensor:
    """Return the largest load over the mean one: [..., experts or ranks] -> [...].

    A step waits for its own busiest rank. So take it of every step, then the mean over steps: the mean load of many
    steps is more even than that of any.
    """
    return load.amax(-1) / load.double().mean(-1)


def capacity(num_tokens: int, num_experts: int, factor: float, k: int = 1) -> int:
    """Return the token slots of each expert for `num_tokens` tokens: the fair share times `factor`, rounded up."""
    return math.ceil(round(factor * k * num_tokens / num_experts, 9))  # in floats 1.15 x 100 is slightly above 115


def within_capacity(routing: Routing, places: int) -> Routing:
    """Return the routing with each expert's first `places` tokens; others weigh 0."""
    num_experts = routing.probabilities.shape[1]
    chosen = nn.functional.one_hot(routing.experts.flatten(), num_experts)
    earlier = (chosen.cumsum(0) - 1) * chosen  # tokens of the same expert
    turn = earlier.sum(1).view_as(routing.experts)
    return routing._replace(weights=torch.where(turn < places, routing.weights, 0))


def auxiliary_loss(routing: Routing) -> torch.Tensor:
    """Return E sum_e (share of tokens)_e (mean probability)_e: 1 if loads are equal."""
    share = routing.load / routing.experts.numel()
    return routing.probabilities.shape[1] * (share * routing.probabilities.mean(0)).sum()


def send_order(routing: Routing) -> torch.Tensor:
    """Return the (token, choice) pairs to send, in send order: indices token x k + choice, int [at most tokens x k].

    The order is by expert, and so by rank, then by token. Pairs of weight 0 are not sent.
    """
    place = routing.weights.flatten().nonzero().flatten()
    return place[routing.experts.flatten()[place].argsort(stable=True)]


class ExpertParallel(nn.Module):
    """A layer of experts, the same number on every rank: expert e is on rank e // (experts a rank)."""

    def __init__(self, experts: Sequence[nn.Module], group: Group = None):
        super().__init__()
        self.experts, self.group = nn.ModuleList(experts), group

    def forward(self, tokens: torch.Tensor, routing: Routing) -> torch.Tensor:
        """Return the weighted sum of each token's answers: [tokens, width].

        Tokens of weight 0 aren't sent.
        """
        place = send_order(routing)
        token = place // routing.experts.shape[1]
        counts = self.counts(routing.experts.flatten()[place])  # [from, to, which expert]
        blocks = counts.sum(-1).tolist()

        arrived = exchange(tokens[token], blocks, self.group)
        answers = self.answer(arrived, counts[:, dist.get_rank(self.group)])
        returned = exchange(answers, _transposed(blocks), self.group)

        weighted = returned * routing.weights.flatten()[place, None]  # perhaps in fp32
        return torch.zeros_like(tokens).index_add(0, token, weighted.to(tokens.dtype))

    def counts(self, experts: torch.Tensor) -> torch.Tensor:
        """Return how many tokens go from each rank to each expert: [ranks, ranks, experts a rank]."""
        world_size = dist.get_world_size(self.group)
        return gathered_counts(experts, world_size * len(self.experts), self.group).view(world_size, world_size, -1)

    def answer(self, arrived: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return this rank's expert outputs for the arrived tokens, in order. `counts`: [ranks, experts a rank]."""
        pieces = list(arrived.split(counts.flatten().tolist()))
        for number, expert in enumerate(self.experts):
            mine = slice(number, None, len(self.experts))  # this expert's pieces, one from every rank
            sizes = [len(piece) for piece in pieces[mine]]
            pieces[mine] = expert(torch.cat(pieces[mine])).split(sizes)
        return torch.cat(pieces)


class OncePerNode(nn.Module):
    """`ExpertParallel` on several nodes: a token crosses once to each node that has experts for it.

    `in_node`: the group of this node's ranks. `across`: the ranks with this one's number on all nodes, in the order of
    the nodes. Experts are numbered node by node, and within a node rank by rank.
    """

    def __init__(self, experts: Sequence[nn.Module], in_node: dist.ProcessGroup, across: dist.ProcessGroup):
        super().__init__()
        self.layer, self.across = ExpertParallel(experts, in_node), across
        self.per_node = len(experts) * dist.get_world_size(in_node)

    def forward(self, tokens: torch.Tensor, routing: Routing) -> torch.Tensor:
        """Return the weighted sum of each token's answers: [tokens, width]."""
        nodes = dist.get_world_size(self.across)
        home = routing.experts // self.per_node  # the node of each choice
        weighed = (routing.weights != 0)[:, :, None]
        visits = (nn.functional.one_hot(home, nodes) * weighed).any(1)  # [tokens, nodes]
        node, token = visits.T.nonzero(as_tuple=True)  # a row for each visit, by node
        blocks = gathered_counts(node, nodes, self.across).tolist()

        weights = torch.where(home[token] == node[:, None], routing.weights[token], 0)
        there = partial(exchange, blocks=blocks, group=self.across)
        rows, experts, weights = map(there, (tokens[token], routing.experts[token], weights))
        unused = weights.new_empty(0, self.per_node)  # no token's probabilities travel
        inside = Routing(experts % self.per_node, weights, unused)
        sums = self.layer(rows, inside)  # among the node's ranks
        returned = exchange(sums, _transposed(blocks), self.across)
        return torch.zeros_like(tokens).index_add(0, token, returned)


def gathered_counts(choices: torch.Tensor, among: int, group: Group = None) -> torch.Tensor:
    """Return how often each rank has made each of so many choices: int [ranks, among].

    All ranks gather these few numbers before any token moves. `choices`: this rank's, int [any number].
    """
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    counts = torch.zeros(world_size, among, dtype=torch.int64, device=choices.device)
    counts[rank] = torch.bincount(choices, minlength=among)
    execute(ring.all_gather(world_size), counts.view(-1), group)
    return counts


def exchange(rows: torch.Tensor, blocks: list[list[int]], group: Group = None) -> torch.Tensor:
    """Send the first `blocks[rank][0]` of this rank's rows to rank 0, the next `blocks[rank][1]` to rank 1, and so on.

    `rows`: [sum of blocks[rank], width]. `blocks`: row counts [src][dst], the same on all ranks. Returns the arriving
    rows in sender order: [sum of column `rank`, width]. Backward, the transposed exchange returns the gradients. Raises
    `ValueError` if `rows` doesn't match `blocks`.
    """
    there, back = (partial(_exchanged, blocks=table, group=group) for table in (blocks, _transposed(blocks)))
    return conjugate(rows, there, back)


def _transposed(blocks: list[list[int]]) -> list[list[int]]:
    return [list(column) for column in zip(*blocks, strict=True)]


def _exchanged(rows: torch.Tensor, blocks: list[list[int]], group: Group) -> torch.Tensor:
    rank, world_size, width = dist.get_rank(group), dist.get_world_size(group), rows.shape[1]
    if len(rows) != sum(blocks[rank]):
        raise ValueError(f"rank {rank} has {len(rows)} rows, but its blocks have {blocks[rank]}")
    lengths = [[count * width for count in row] for row in blocks]
    sizes = [length for row in lengths for length in row]  # elements of chunk src x P + dst
    buffer = rows.new_empty(sum(sizes))
    first = sum(map(sum, lengths[:rank]))
    buffer[first : first + rows.numel()] = rows.reshape(-1)
    execute(pairwise.all_to_all_uneven(lengths), buffer, group)
    return torch.cat(buffer.split(sizes)[rank::world_size]).view(-1, width)
