"""Every way to shard Y = X W over the ranks, and its cost: the sharded axis decides the collective.

    plan = derive("rows", None, "rows")    # X by rows, W on all ranks, Y by rows
    plan.collectives                       # [] : nothing to send

A product sums over the axis that its factors share, the *inner* one. Shard that axis, and each rank's sum lacks the
other ranks' terms: Y is *partial*, and needs a reduction. Shard another axis, and each rank has a slice of Y, which a
gather can join if needed. The backward pass follows the same rule, because it is two more products: dX = dY W^T and
dW = X^T dY.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

import numpy as np

from ..algorithms import pairwise, ring
from ..simulate import simulate

Layout = str | None
REPLICATED: Layout = None  # every rank has all of the matrix
PARTIAL: Layout = "partial"  # every rank has a term of the sum, of the full shape

AXES = {"X": ("rows", "inner"), "W": ("inner", "columns"), "Y": ("rows", "columns")}
"""The axes of each matrix, in order. The layout "rows" cuts a matrix into P equal slices along its rows, and so on."""

PRODUCTS: Mapping[tuple[Layout, Layout], Layout] = {
    (REPLICATED, REPLICATED): REPLICATED,
    ("rows", REPLICATED): "rows",
    (REPLICATED, "columns"): "columns",
    ("inner", "inner"): PARTIAL,
}
"""The products that need no communication: (layout of X, layout of W) -> layout of Y."""

ALGORITHMS = {
    "all_reduce": ring.all_reduce,
    "reduce_scatter": ring.reduce_scatter,
    "all_gather": ring.all_gather,
    "all_to_all": pairwise.all_to_all,
}


class Move(NamedTuple):
    """A redistribution of `matrix` from one layout to another: sharded along one of its axes, or `REPLICATED`.

    A product may start as `PARTIAL`; no move ends there.
    """

    matrix: str
    before: Layout
    after: Layout

    @property
    def collective(self) -> str | None:
        """The collective it needs; None if nothing must be sent.

        Each rank can slice a replicated matrix by itself.
        """
        if self.before == self.after or self.before is REPLICATED:
            return None
        if self.before == PARTIAL:
            return "all_reduce" if self.after is REPLICATED else "reduce_scatter"
        return "all_gather" if self.after is REPLICATED else "all_to_all"

    def sent(self, sizes: Mapping[str, float], world_size: int) -> float:
        """Return the elements that a rank sends. `sizes`: the lengths of the axes "rows", "inner" and "columns"."""
        share = math.prod(sizes[axis] for axis in AXES[self.matrix]) * (world_size - 1) / world_size
        return {None: 0, "all_reduce": 2 * share, "all_to_all": share / world_size}.get(self.collective, share)


class Plan(NamedTuple):
    """A way to compute Y: the ranks move X and W, multiply locally, and move the product."""

    x: Move
    w: Move
    y: Move

    @property
    def collectives(self) -> list[str]:
        """The collectives, in call order."""
        return [move.collective for move in self if move.collective]

    def sent(self, sizes: Mapping[str, int], world_size: int) -> float:
        """Return the elements that a rank sends in all collectives."""
        return sum(move.sent(sizes, world_size) for move in self)


def derive(
    x: Layout,
    w: Layout,
    y: Layout,
    sizes: Mapping[str, int] | None = None,
    world_size: int = 4,
    weights_stay: bool = False,
) -> Plan:
    """Return the plan that sends least, from X and W in the layouts `x` and `w` to Y in the layout `y`.

    `sizes`: as for `Plan.sent`, by default all equal. The answer depends on them if moving the smaller matrix is
    cheaper. `weights_stay`: W must not be sent, as in tensor parallelism. Ties go to the plan with fewer collectives.
    Raises `ValueError` for an unknown layout.
    """
    for matrix, layout in zip(AXES, (x, w, y), strict=True):
        if layout is not REPLICATED and layout not in AXES[matrix]:
            choices = " or by ".join(AXES[matrix])
            raise ValueError(f"{matrix} can be sharded by {choices}, or be on all ranks, not {layout!r}")
    sizes = sizes or {"rows": 1, "inner": 1, "columns": 1}
    plans = []
    for (left, right), product_layout in PRODUCTS.items():
        plan = Plan(Move("X", x, left), Move("W", w, right), Move("Y", product_layout, y))
        if not (weights_stay and plan.w.collective):
            plans.append(plan)
    return min(plans, key=lambda plan: (plan.sent(sizes, world_size), len(plan.collectives)))


def every(sizes: Mapping[str, int] | None = None, world_size: int = 4) -> dict[tuple[Layout, Layout, Layout], Plan]:
    """Return the plan for each of the 27 combinations of layouts of X, W and Y."""
    combinations = product(*[(REPLICATED, *axes) for axes in AXES.values()])
    return {(x, w, y): derive(x, w, y, sizes, world_size) for x, w, y in combinations}


class Pair(NamedTuple):
    """Two products in a row, Z = h(X A) B, as in an MLP: X and Z are on all ranks, and h acts on single elements.

    `sizes`: the lengths of "rows", "inner" (of X and A), "hidden" (of A and B) and "columns" (of B and Z).
    """

    first: Plan
    second: Plan
    sizes: Mapping[str, int]

    @property
    def collectives(self) -> list[str]:
        """The collectives of both products, in call order."""
        return self.first.collectives + self.second.collectives

    def sent(self, world_size: int) -> float:
        """Return the elements that a rank sends in all collectives."""
        first, second = _of_each(self.sizes)
        return self.first.sent(first, world_size) + self.second.sent(second, world_size)


def derive_pair(a: Layout, b: Layout, sizes: Mapping[str, int], world_size: int = 4) -> Pair:
    """Return the pair of plans that sends least, with A and B in the layouts `a` and `b`, where they stay.

    `sizes`: as for `Pair`. Between the products Y = X A may have any layout but partial: h of a term isn't a term of h.
    """
    first, second = _of_each(sizes)
    pairs = []
    # Y's layout between the products, by its axis names in the first product and in the second.
    for as_output, as_input in ((REPLICATED, REPLICATED), ("rows", "rows"), ("columns", "inner")):
        x_a = derive(REPLICATED, a, as_output, first, world_size, weights_stay=True)
        y_b = derive(as_input, b, REPLICATED, second, world_size, weights_stay=True)
        pairs.append(Pair(x_a, y_b, sizes))
    return min(pairs, key=lambda pair: (pair.sent(world_size), len(pair.collectives)))


def _of_each(sizes: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the sizes of X A and of Y B, each by the axis names of a single product."""
    return {**sizes, "columns": sizes["hidden"]}, {**sizes, "inner": sizes["hidden"]}


def run(plan: Plan, x: np.ndarray, w: np.ndarray, world_size: int) -> list[np.ndarray]:
    """Carry out `plan` for all ranks in one process, from full matrices; return each rank's part of Y.

    It simulates the collectives by their schedules. Raises `ValueError` if a sharded axis doesn't divide.
    """
    lefts = moved(plan.x, laid_out(plan.x, x, world_size))
    rights = moved(plan.w, laid_out(plan.w, w, world_size))
    return moved(plan.y, [left @ right for left, right in zip(lefts, rights, strict=True)])


def laid_out(move: Move, full: np.ndarray, world_size: int) -> list[np.ndarray]:
    """Return each rank's part of a matrix before `move`. Raises `ValueError` if the matrix is partial."""
    if move.before == PARTIAL:
        raise ValueError(f"{move.matrix} is partial: only a product makes partial sums, so compute them")
    return [full] * world_size if move.before is REPLICATED else _cut(full, move.matrix, move.before, world_size)


def moved(move: Move, pieces: list[np.ndarray]) -> list[np.ndarray]:
    """Return each rank's part of a matrix after `move`, from its part before.

    A rank's buffer has P chunks: the slices along the new axis; for an all-gather, those along the old axis; for an
    all-reduce any cut works, since every chunk returns.
    """
    world_size = len(pieces)
    if move.collective is None:
        if move.before is not REPLICATED or move.after is REPLICATED:
            return pieces
        return [_cut(piece, move.matrix, move.after, world_size)[rank] for rank, piece in enumerate(pieces)]
    algorithm = ALGORITHMS[move.collective](world_size)
    if move.collective == "all_reduce":
        before = np.array([piece.ravel() for piece in pieces])
        return [after.reshape(pieces[0].shape) for after in simulate(algorithm, before)]
    if move.collective == "all_gather":
        chunks = [[piece] * world_size for piece in pieces]  # the all-gather reads only chunk r of rank r
    else:
        chunks = [_cut(piece, move.matrix, move.after, world_size) for piece in pieces]
    shape = chunks[0][0].shape
    before = np.array([np.concatenate([chunk.ravel() for chunk in row]) for row in chunks])
    after = simulate(algorithm, before).reshape(world_size, world_size, *shape)
    if move.collective == "reduce_scatter":
        return [after[rank, rank] for rank in range(world_size)]
    return [np.concatenate(list(row), axis=AXES[move.matrix].index(move.before)) for row in after]


def _cut(array: np.ndarray, matrix: str, axis: Layout, world_size: int) -> list[np.ndarray]:
    number = AXES[matrix].index(axis)
    if array.shape[number] % world_size:
        raise ValueError(f"{matrix} has {array.shape[number]} {axis}, which do not divide among {world_size} ranks")
    return np.split(array, world_size, axis=number)
