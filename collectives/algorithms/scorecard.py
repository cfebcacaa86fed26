"""The scorecard: the three cost coefficients of every algorithm, counted from its schedule and from the literature.

On links that are all alike a collective takes a alpha + b S beta + g S gamma seconds. `coefficients` finds a, b and g
by pricing a schedule with only one of alpha, beta and gamma at a time. `ROWS` holds the closed forms to compare with,
each written once: a page prints the very text that is compared.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from .. import topology
from ..price import Cost, price
from ..schedule import Schedule
from . import chain, double_tree, doubling, flat, halving_doubling, hierarchical, pairwise, ring, tree

UNITS = ((1, 0, 0), (0, 1, 0), (0, 0, 1))  # alpha, beta and gamma, one at a time
CHUNKS = 8  # of the pipelined algorithms: the chain, and each tree of the double tree


class Coefficients(NamedTuple):
    """Sequential messages, buffers of S bytes sent, and buffers of S bytes added, on the critical path."""

    alpha: float
    beta: float
    gamma: float


@dataclass(frozen=True)
class Row:
    """An algorithm and its cost from the literature, once: `cost` is what a page prints and what is compared.

    `cost`: seconds, as arithmetic on alpha, beta, gamma, S, P and the names in `SYMBOLS`. `source`: the publication.
    `exact_from`: the fewest ranks for which `cost` is exact; None if it is an upper bound.
    `powers_of_two`: whether P must be a power of two.
    """

    name: str
    algorithm: Callable[[int], Schedule]
    cost: str
    source: str
    exact_from: int | None = 1
    powers_of_two: bool = False

    def takes(self, world_size: int) -> bool:
        """Return whether the algorithm works with `world_size` ranks."""
        return not self.powers_of_two or world_size & (world_size - 1) == 0

    def exact(self, world_size: int) -> bool:
        """Return whether `cost` is exact for `world_size` ranks, and not only an upper bound."""
        return self.exact_from is not None and world_size >= self.exact_from

    @property
    def formula(self) -> str:
        """The cost in LaTeX."""
        bound = "" if self.exact_from else r"\le "
        return bound + _latex(ast.parse(self.cost, mode="eval").body)

    def closed_form(self, world_size: int) -> Coefficients:
        """Return the three coefficients of `cost` for `world_size` ranks, an int or a symbol of `formula`."""
        code = compile(self.cost, self.name, "eval")
        values = {name: SYMBOLS[name](world_size) for name in code.co_names if name in SYMBOLS}
        units = (dict(zip(("alpha", "beta", "gamma"), unit, strict=True)) for unit in UNITS)
        return Coefficients(*(eval(code, values | unit | {"S": 1}) for unit in units))


def coefficients(schedule: Schedule) -> Coefficients:
    """Count the cost of `schedule` in multiples of alpha, S beta and S gamma."""
    num_bytes = 0 if schedule.collective == "barrier" else schedule.num_chunks
    alpha, *by_byte = (cost.seconds for cost in unit_costs(schedule, num_bytes))
    return Coefficients(alpha, *(total / max(num_bytes, 1) for total in by_byte))


def unit_costs(schedule: Schedule, num_bytes: int, itemsize: int = 1) -> list[Cost]:
    """Return three costs: at 1 second a message, a byte or a byte added; else free."""
    networks = [topology.uniform(schedule.world_size, *unit) for unit in UNITS]
    return [price(schedule, num_bytes, network, itemsize) for network in networks]


def lower_bounds(collective: str, world_size: int) -> Coefficients:
    """Return coefficients that no algorithm can beat in which the ranks alone add and have one port each.

    They are the steps to reach all ranks, the bytes that must enter or leave a rank, and the additions. With a switch
    that adds, as in NVLS or SHARP, ranks send fewer bytes.

    Source: E. Chan, M. Heimlich, A. Purkayastha and R. van de Geijn, "Collective communication: theory, practice, and
    experience", 2007.
    """
    rounds, others = log2(world_size), (world_size - 1) / world_size
    moved = {"broadcast": 1 if world_size > 1 else 0, "all_reduce": 2 * others, "barrier": 0}
    moved["reduce"] = moved["broadcast"]
    adds = {"reduce": others, "reduce_scatter": others, "all_reduce": others}
    return Coefficients(rounds, moved.get(collective, others), adds.get(collective, 0))


def log2(world_size: int) -> int:
    """Return ceil(log2 P), the number of doublings from 1 rank to P ranks."""
    return (world_size - 1).bit_length()


def ranks_per_node(world_size: int) -> int:
    """Return the ranks per node in the hierarchical row: 4, or 2 or 1 if 4 doesn't divide P."""
    return gcd(world_size, 4)


SYMBOLS: dict[str, Callable[[int], int]] = {
    "P": lambda p: p,
    "L": log2,
    "C": lambda p: CHUNKS,
    "Q": lambda p: doubling.largest_power_of_two(p),
    "F": lambda p: int(p & (p - 1) != 0),
    "L_n": ranks_per_node,
    "N": lambda p: p // ranks_per_node(p),
}
"""What stands in a cost, from the number of ranks.

P: ranks. L: ceil(log2 P). C: chunks of a pipeline. Q: the largest power of two up to P. F: 1 if P is not a power of
two, so that the ranks past Q must fold into the others and out again, else 0. L_n, N: ranks of a node, and nodes.
"""


def _latex(node: ast.expr) -> str:
    """Return arithmetic in LaTeX: sums, differences, products side by side, and quotients as fractions."""
    match node:
        case ast.Constant(value):
            return str(value)
        case ast.Name(name):
            return rf"\{name}" if name in ("alpha", "beta", "gamma") else name
        case ast.BinOp(left, ast.Div(), right):
            return rf"\tfrac{{{_latex(left)}}}{{{_latex(right)}}}"
        case ast.BinOp(left, ast.Mult(), right):
            space = r"\," if isinstance(right, ast.Name) and right.id == "alpha" else ""
            return _factor(left) + space + _factor(right)
        case ast.BinOp(left, ast.Add() | ast.Sub() as sign, right):
            return (
                f"{_latex(left)} + {_latex(right)}"
                if isinstance(sign, ast.Add)
                else f"{_latex(left)} - {_factor(right)}"
            )
    raise ValueError(f"a cost is made of numbers, names, +, -, * and /, not of {ast.unparse(node)}")


def _factor(node: ast.expr) -> str:
    """Return a factor in LaTeX, in parentheses if it is a sum."""
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)
    return f"({_latex(node)})" if is_sum else _latex(node)


THAKUR, CHAN = "Thakur et al. 2005", "Chan et al. 2007"
ARTICLE = "“The Illustrated Collectives”"
DIRECT = "(P-1)*alpha + (P-1)/P*S*beta"  # every chunk straight to where it belongs
ADDED = "(P-1)*alpha + (P-1)/P*S*(beta+gamma)"  # the same, and added on arrival
TWICE = "2*(P-1)*alpha + (P-1)/P*S*(2*beta+gamma)"  # a reduce-scatter, then an all-gather
TREE_MOVES = "L*alpha + (P-1)/P*S*beta"
CHAIN_NAME = f"chain, {CHUNKS} chunks"

ROWS = (
    Row("pairwise", pairwise.barrier, "(P-1)*alpha", ARTICLE),
    Row("dissemination", doubling.barrier, "L*alpha", "Hensgen et al. 1988"),
    Row("flat", flat.broadcast, "(P-1)*(alpha + S*beta)", ARTICLE),
    Row("binomial tree", tree.broadcast, "L*(alpha + S*beta)", THAKUR),
    Row(CHAIN_NAME, chain.broadcast, "(P-2+C)*(alpha + S/C*beta)", CHAN, exact_from=2),
    Row("flat", flat.reduce, "(P-1)*(alpha + S*beta + S*gamma)", ARTICLE),
    Row("binomial tree", tree.reduce, "L*(alpha + S*beta + S*gamma)", THAKUR),
    Row(CHAIN_NAME, chain.reduce, "(P-2+C)*(alpha + S/C*beta + S/C*gamma)", CHAN, exact_from=2),
    Row("flat", flat.scatter, DIRECT, ARTICLE),
    Row("binomial tree", tree.scatter, TREE_MOVES, CHAN),
    Row("flat", flat.gather, DIRECT, ARTICLE),
    Row("binomial tree", tree.gather, TREE_MOVES, CHAN),
    Row("ring", ring.all_gather, DIRECT, THAKUR),
    Row("recursive doubling", doubling.all_gather, TREE_MOVES, THAKUR, powers_of_two=True),
    Row("pairwise", pairwise.all_gather, DIRECT, "as the all-to-all"),
    Row("ring", ring.reduce_scatter, ADDED, CHAN),
    Row(
        "recursive halving",
        halving_doubling.reduce_scatter,
        "L*alpha + (P-1)/P*S*(beta+gamma)",
        THAKUR,
        powers_of_two=True,
    ),
    Row("pairwise", pairwise.reduce_scatter, ADDED, THAKUR),
    Row("flat", flat.all_reduce, "2*(P-1)*(alpha + S*beta) + (P-1)*S*gamma", ARTICLE),
    Row("binomial tree", tree.all_reduce, "2*L*(alpha + S*beta) + L*S*gamma", ARTICLE),
    Row("recursive doubling", doubling.all_reduce, "(L+F)*(alpha + S*beta) + L*S*gamma", THAKUR),
    Row("ring", ring.all_reduce, TWICE, "Patarasuk and Yuan 2009"),
    Row("bidirectional ring", ring.all_reduce_bidirectional, TWICE, "as the ring"),
    Row(
        "halving-doubling",
        halving_doubling.all_reduce,
        "2*L*alpha + ((Q-1)/Q + F)*S*(2*beta+gamma)",
        "Rabenseifner 2004",
    ),
    Row("pairwise", pairwise.all_reduce, TWICE, "as its two halves"),
    Row(
        f"double tree, {CHUNKS} chunks each",
        double_tree.all_reduce,
        "(4*C + 4*L)*(alpha + S/(2*C)*(beta+gamma))",
        "Sanders et al. 2009",
        exact_from=None,
    ),
    Row(
        "hierarchical",
        lambda p: hierarchical.all_reduce(p, ranks_per_node(p)),
        "2*(L_n-1 + N-1)*alpha + (P-1)/P*S*(2*beta+gamma)",
        "Cho et al. 2019",
    ),
    Row("pairwise by shift", pairwise.all_to_all, DIRECT, THAKUR),
    Row("pairwise by XOR", pairwise.all_to_all_xor, DIRECT, ARTICLE, powers_of_two=True),
)


def markdown(world_size: int) -> str:
    """Return the scorecard for `world_size` ranks as a Markdown table of counted coefficients and closed forms.

    A coefficient that reaches its lower bound is in bold. The others show their ratio to the bound in parentheses.
    """
    # "times", not a multiplication sign: screen readers read the header aloud.
    head = r"| algorithm | times $\alpha$ | times $S\beta$ | times $S\gamma$ | closed form | source |"
    lines = [head, "|---|--:|--:|--:|---|---|"]
    collective = ""
    for row in ROWS:
        if row.takes(world_size):
            schedule = row.algorithm(world_size)
            assert schedule.collective is not None
            if schedule.collective != collective:  # each collective has a heading row above its algorithms
                collective = schedule.collective
                lines.append(f"| **{collective.replace('_', '-')}** | | | | | |")
            bounds = lower_bounds(collective, world_size)
            cells = (_cell(*pair) for pair in zip(coefficients(schedule), bounds, strict=True))
            lines.append(f"| {row.name} | {' | '.join(cells)} | ${row.formula}$ | {row.source} |")
    return "\n".join(lines)


def _cell(coefficient: float, bound: float) -> str:
    """Return "**3**" at the bound, "14 (4.67×)" above it, and "" for zero."""
    if coefficient == 0:
        return ""
    if coefficient <= bound * (1 + 1e-9):
        return f"**{coefficient:.4g}**"
    return f"{coefficient:.4g} ({coefficient / bound:.2g}×)" if bound else f"{coefficient:.4g}"
