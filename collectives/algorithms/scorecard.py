"""The scorecard: the three cost coefficients of every algorithm, counted from its schedule and from the literature.

On links that are all alike a collective takes a alpha + b S beta + g S gamma seconds. `coefficients` finds a, b and g
by pricing a schedule with only one of alpha, beta and gamma at a time. `ROWS` holds the closed forms to compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from .. import topology
from ..price import Cost, price
from ..schedule import Schedule
from . import chain, double_tree, doubling, flat, halving_doubling, hierarchical, pairwise, ring, tree

CHUNKS = 8  # of the pipelined algorithms: the chain, and each tree of the double tree


class Coefficients(NamedTuple):
    """Sequential messages, buffers of S bytes sent, and buffers of S bytes added, on the critical path."""

    alpha: float
    beta: float
    gamma: float


@dataclass(frozen=True)
class Row:
    """An algorithm and its cost from the literature: `closed_form(P)` returns the three coefficients for P ranks.

    `formula`: the cost in LaTeX. `source`: the publication. `exact`: False if the closed form is an upper bound.
    `powers_of_two`: whether P must be a power of two.
    """

    name: str
    algorithm: Callable[[int], Schedule]
    closed_form: Callable[[int], tuple[float, float, float]]
    formula: str
    source: str
    exact: bool = True
    powers_of_two: bool = False

    def takes(self, world_size: int) -> bool:
        """Return whether the algorithm works with `world_size` ranks."""
        return not self.powers_of_two or world_size & (world_size - 1) == 0


def coefficients(schedule: Schedule) -> Coefficients:
    """Return the cost of `schedule`, counted from its transfers, in multiples of alpha, S beta and S gamma."""
    num_bytes = 0 if schedule.collective == "barrier" else schedule.num_chunks
    alpha, *by_byte = (cost.seconds for cost in unit_costs(schedule, num_bytes))
    return Coefficients(alpha, *(total / max(num_bytes, 1) for total in by_byte))


def unit_costs(schedule: Schedule, num_bytes: int, itemsize: int = 1) -> list[Cost]:
    """Return three costs of `schedule`: at 1 second per message, per byte, and per byte added, with the others free."""
    units = (topology.uniform(schedule.world_size, *unit) for unit in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))
    return [price(schedule, num_bytes, unit, itemsize) for unit in units]


def lower_bounds(collective: str, world_size: int) -> Coefficients:
    """Return coefficients that no algorithm with one port can beat.

    They are the steps to reach all ranks, the bytes that must enter or leave a rank, and the additions.

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


def _around(p: int) -> float:
    """Return the share of the buffer that a rank must send or receive: (P-1)/P."""
    return (p - 1) / p


def _chain(p: int) -> float:
    """Return the steps of the chain: P - 2 + C."""
    return p - 2 + CHUNKS if p > 1 else 0


def _folds(p: int) -> int:
    """Return 1 if P is not a power of two, so that ranks must fold and unfold; else 0."""
    return int(p & (p - 1) != 0)


def _inner(p: int) -> int:
    return doubling.largest_power_of_two(p)


def _halving_doubling(p: int) -> tuple[float, float, float]:
    inner, folds = _inner(p), _folds(p)
    return 2 * log2(inner) + 2 * folds, 2 * _around(inner) + 2 * folds, _around(inner) + folds


def _double_tree(p: int) -> tuple[float, float, float]:
    steps = 4 * CHUNKS + 4 * log2(p) if p > 1 else 0
    return steps, steps / (2 * CHUNKS), steps / (2 * CHUNKS)


THAKUR, CHAN = "Thakur et al. 2005", "Chan et al. 2007"
ARTICLE = "“The Illustrated Collectives”"

ROWS = (
    Row("pairwise", pairwise.barrier, lambda p: (p - 1, 0, 0), r"(P-1)\,\alpha", ARTICLE),
    Row("dissemination", doubling.barrier, lambda p: (log2(p), 0, 0), r"L\,\alpha", "Hensgen et al. 1988"),
    Row("flat", flat.broadcast, lambda p: (p - 1, p - 1, 0), r"(P-1)(\alpha + S\beta)", ARTICLE),
    Row("binomial tree", tree.broadcast, lambda p: (log2(p), log2(p), 0), r"L(\alpha + S\beta)", THAKUR),
    Row(
        f"chain, {CHUNKS} chunks",
        chain.broadcast,
        lambda p: (_chain(p), _chain(p) / CHUNKS, 0),
        r"(P-2+C)(\alpha + \tfrac{S}{C}\beta)",
        CHAN,
    ),
    Row("flat", flat.reduce, lambda p: (p - 1, p - 1, p - 1), r"(P-1)(\alpha + S\beta + S\gamma)", ARTICLE),
    Row("binomial tree", tree.reduce, lambda p: (log2(p),) * 3, r"L(\alpha + S\beta + S\gamma)", THAKUR),
    Row(
        f"chain, {CHUNKS} chunks",
        chain.reduce,
        lambda p: (_chain(p), _chain(p) / CHUNKS, _chain(p) / CHUNKS),
        r"(P-2+C)(\alpha + \tfrac{S}{C}\beta + \tfrac{S}{C}\gamma)",
        CHAN,
    ),
    Row("flat", flat.scatter, lambda p: (p - 1, _around(p), 0), r"(P-1)\alpha + \tfrac{P-1}{P}S\beta", ARTICLE),
    Row("binomial tree", tree.scatter, lambda p: (log2(p), _around(p), 0), r"L\alpha + \tfrac{P-1}{P}S\beta", CHAN),
    Row("flat", flat.gather, lambda p: (p - 1, _around(p), 0), r"(P-1)\alpha + \tfrac{P-1}{P}S\beta", ARTICLE),
    Row("binomial tree", tree.gather, lambda p: (log2(p), _around(p), 0), r"L\alpha + \tfrac{P-1}{P}S\beta", CHAN),
    Row("ring", ring.all_gather, lambda p: (p - 1, _around(p), 0), r"(P-1)\alpha + \tfrac{P-1}{P}S\beta", THAKUR),
    Row(
        "recursive doubling",
        doubling.all_gather,
        lambda p: (log2(p), _around(p), 0),
        r"L\alpha + \tfrac{P-1}{P}S\beta",
        THAKUR,
        powers_of_two=True,
    ),
    Row(
        "pairwise", pairwise.all_gather, lambda p: (p - 1, _around(p), 0), r"(P-1)\alpha + \tfrac{P-1}{P}S\beta", THAKUR
    ),
    Row(
        "ring",
        ring.reduce_scatter,
        lambda p: (p - 1, _around(p), _around(p)),
        r"(P-1)\alpha + \tfrac{P-1}{P}S(\beta+\gamma)",
        CHAN,
    ),
    Row(
        "recursive halving",
        halving_doubling.reduce_scatter,
        lambda p: (log2(p), _around(p), _around(p)),
        r"L\alpha + \tfrac{P-1}{P}S(\beta+\gamma)",
        THAKUR,
        powers_of_two=True,
    ),
    Row(
        "pairwise",
        pairwise.reduce_scatter,
        lambda p: (p - 1, _around(p), _around(p)),
        r"(P-1)\alpha + \tfrac{P-1}{P}S(\beta+\gamma)",
        THAKUR,
    ),
    Row(
        "flat",
        flat.all_reduce,
        lambda p: (2 * (p - 1), 2 * (p - 1), p - 1),
        r"2(P-1)(\alpha + S\beta) + (P-1)S\gamma",
        ARTICLE,
    ),
    Row(
        "binomial tree",
        tree.all_reduce,
        lambda p: (2 * log2(p), 2 * log2(p), log2(p)),
        r"2L(\alpha + S\beta) + L\,S\gamma",
        ARTICLE,
    ),
    Row(
        "recursive doubling",
        doubling.all_reduce,
        lambda p: (log2(_inner(p)) + 2 * _folds(p), log2(_inner(p)) + 2 * _folds(p), log2(_inner(p)) + _folds(p)),
        r"\log_2 P\,(\alpha + S\beta + S\gamma)",
        THAKUR,
    ),
    Row(
        "ring",
        ring.all_reduce,
        lambda p: (2 * (p - 1), 2 * _around(p), _around(p)),
        r"2(P-1)\alpha + \tfrac{P-1}{P}S(2\beta+\gamma)",
        "Patarasuk and Yuan 2009",
    ),
    Row(
        "bidirectional ring",
        ring.all_reduce_bidirectional,
        lambda p: (2 * (p - 1), 2 * _around(p), _around(p)),
        r"2(P-1)\alpha + \tfrac{P-1}{P}S(2\beta+\gamma)",
        "as the ring",
    ),
    Row(
        "halving-doubling",
        halving_doubling.all_reduce,
        _halving_doubling,
        r"2\log_2 P\,\alpha + \tfrac{P-1}{P}S(2\beta+\gamma)",
        "Rabenseifner 2004",
    ),
    Row(
        "pairwise",
        pairwise.all_reduce,
        lambda p: (2 * (p - 1), 2 * _around(p), _around(p)),
        r"2(P-1)\alpha + \tfrac{P-1}{P}S(2\beta+\gamma)",
        THAKUR,
    ),
    Row(
        f"double tree, {CHUNKS} chunks each",
        double_tree.all_reduce,
        _double_tree,
        r"\le (4C + 4L)(\alpha + \tfrac{S}{2C}(\beta+\gamma))",
        "Sanders et al. 2009",
        exact=False,
    ),
    Row(
        "hierarchical",
        lambda p: hierarchical.all_reduce(p, ranks_per_node(p)),
        lambda p: (2 * (ranks_per_node(p) - 1) + 2 * (p // ranks_per_node(p) - 1), 2 * _around(p), _around(p)),
        r"2(L_n - 1 + N - 1)\alpha + \tfrac{P-1}{P}S(2\beta+\gamma)",
        "Cho et al. 2019",
    ),
    Row(
        "pairwise by shift",
        pairwise.all_to_all,
        lambda p: (p - 1, _around(p), 0),
        r"(P-1)\alpha + \tfrac{P-1}{P}S\beta",
        THAKUR,
    ),
    Row(
        "pairwise by XOR",
        pairwise.all_to_all_xor,
        lambda p: (p - 1, _around(p), 0),
        r"(P-1)\alpha + \tfrac{P-1}{P}S\beta",
        ARTICLE,
        powers_of_two=True,
    ),
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
