"""Which axis you shard decides the collective: every way to shard Y = X W over the ranks, and what each one costs.

    plan = derive("rows", None, "rows")    # X by its rows, W on all ranks, Y wanted by its rows
    plan.collectives                       # [] : nothing to send

A product sums over the axis that its factors share, the *inner* one. Sharded by that, every rank has a sum that lacks
the other ranks' terms: Y is *partial*, and a reduction repairs it. Pieces along any other axis are only laid side by
side, and a gather repairs that, if anyone wants it repaired. The backward pass follows by the same rule, because it is
two more products: dX = dY W^T and dW = X^T dY.
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
"""The axes of each matrix, in order. A matrix that lies by one of them is cut into P equal slices along it."""

PRODUCTS: Mapping[tuple[Layout, Layout], Layout] = {
    (REPLICATED, REPLICATED): REPLICATED,
    ("rows", REPLICATED): "rows",
    (REPLICATED, "columns"): "columns",
    ("inner", "inner"): PARTIAL,
}
"""What ranks can multiply without a word: how X and W lie, and how Y lies then."""

ALGORITHMS = {
    "all_reduce": ring.all_reduce,
    "reduce_scatter": ring.reduce_scatter,
    "all_gather": ring.all_gather,
    "all_to_all": pairwise.all_to_all,
}


class Move(NamedTuple):
    """`matrix` lies one way before and another way after: by one of its axes, or `REPLICATED`.

    A product may be `PARTIAL` before; nothing is moved to that.
    """

    matrix: str
    before: Layout
    after: Layout

    @property
    def collective(self) -> str | None:
        """What it takes; None if nothing need be sent, as when each rank takes its slice of what all of them have."""
        if self.before == self.after or self.before is REPLICATED:
            return None
        if self.before == PARTIAL:
            return "all_reduce" if self.after is REPLICATED else "reduce_scatter"
        return "all_gather" if self.after is REPLICATED else "all_to_all"

    def sent(self, sizes: Mapping[str, int], world_size: int) -> float:
        """The elements that a rank sends. `sizes`: the lengths of the axes "rows", "inner" and "columns"."""
        share = math.prod(sizes[axis] for axis in AXES[self.matrix]) * (world_size - 1) / world_size
        return {None: 0, "all_reduce": 2 * share, "all_to_all": share / world_size}.get(self.collective, share)


class Plan(NamedTuple):
    """How the ranks get Y: they move X and W, multiply what each then has, and move the product."""

    x: Move
    w: Move
    y: Move

    @property
    def collectives(self) -> list[str]:
        """What is called, in order."""
        return [move.collective for move in self if move.collective]

    def sent(self, sizes: Mapping[str, int], world_size: int) -> float:
        """The elements that a rank sends in all of them."""
        return sum(move.sent(sizes, world_size) for move in self)


def derive(
    x: Layout,
    w: Layout,
    y: Layout,
    sizes: Mapping[str, int] | None = None,
    world_size: int = 4,
    weights_stay: bool = False,
) -> Plan:
    """The plan that sends least, from X and W in the layouts `x` and `w` to Y in the layout `y`.

    `sizes`: as for `Plan.sent`, by default all equal; the answer depends on them where it is cheaper to move the
    smaller matrix. `weights_stay`: W is not to be sent, as in tensor parallelism. Of plans that send as little, the
    one with the fewest collectives.
    """
    for matrix, layout in zip(AXES, (x, w, y), strict=True):
        if layout is not REPLICATED and layout not in AXES[matrix]:
            raise ValueError(f"{matrix} can lie by {' or by '.join(AXES[matrix])}, or on all ranks, but not {layout!r}")
    sizes = sizes or {"rows": 1, "inner": 1, "columns": 1}
    plans = [
        Plan(Move("X", x, left), Move("W", w, right), Move("Y", made, y)) for (left, right), made in PRODUCTS.items()
    ]
    plans = [plan for plan in plans if not (weights_stay and plan.w.collective)]
    return min(plans, key=lambda plan: (plan.sent(sizes, world_size), len(plan.collectives)))


def every(sizes: Mapping[str, int] | None = None, world_size: int = 4) -> dict[tuple[Layout, Layout, Layout], Plan]:
    """The plan for each of the 27 layouts of X, W and Y."""
    layouts = product(*[(REPLICATED, *axes) for axes in AXES.values()])
    return {wanted: derive(*wanted, sizes, world_size) for wanted in layouts}


class Pair(NamedTuple):
    """Two products in a row, Z = h(X A) B, as an MLP has them: X and Z on all ranks, h of each element by itself.

    `sizes`: the lengths of "rows", "inner" (of X and A), "hidden" (of A and B) and "columns" (of B and Z).
    """

    first: Plan
    second: Plan
    sizes: Mapping[str, int]

    @property
    def collectives(self) -> list[str]:
        """What is called, in order."""
        return self.first.collectives + self.second.collectives

    def sent(self, world_size: int) -> float:
        """The elements that a rank sends in all of them."""
        return sum(
            plan.sent(sizes, world_size)
            for plan, sizes in zip((self.first, self.second), _of_each(self.sizes), strict=True)
        )


def derive_pair(a: Layout, b: Layout, sizes: Mapping[str, int], world_size: int = 4) -> Pair:
    """The pair of plans that sends least where A and B lie so and are not sent. `sizes`: as for `Pair`.

    Between the products Y = X A may lie anyhow, but as finished sums: h of a term is no term of h.
    """
    first, second = _of_each(sizes)
    between = {REPLICATED: REPLICATED, "rows": "rows", "columns": "inner"}  # as the first's Y, as the second's X
    pairs = [
        Pair(
            derive(REPLICATED, a, made, first, world_size, weights_stay=True),
            derive(taken, b, REPLICATED, second, world_size, weights_stay=True),
            sizes,
        )
        for made, taken in between.items()
    ]
    return min(pairs, key=lambda pair: (pair.sent(world_size), len(pair.collectives)))


def _of_each(sizes: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """The axes of X A and of Y B, each by the names that they have in a single product."""
    return {**sizes, "columns": sizes["hidden"]}, {**sizes, "inner": sizes["hidden"]}


def run(plan: Plan, x: np.ndarray, w: np.ndarray, world_size: int) -> list[np.ndarray]:
    """Carry `plan` out with every rank in view, from full matrices: what each rank has of Y in the end.

    The collectives are simulated by their schedules. `ValueError` if an axis that must be cut does not divide.
    """
    lefts = moved(plan.x, laid_out(plan.x, x, world_size))
    rights = moved(plan.w, laid_out(plan.w, w, world_size))
    return moved(plan.y, [left @ right for left, right in zip(lefts, rights, strict=True)])


def laid_out(move: Move, full: np.ndarray, world_size: int) -> list[np.ndarray]:
    """What each rank has of a matrix before `move`; `ValueError` if that is partial, for then it depends on how."""
    if move.before == PARTIAL:
        raise ValueError(f"{move.matrix} is partial, which only a product makes: it cannot be laid out from the whole")
    return [full] * world_size if move.before is REPLICATED else _cut(full, move.matrix, move.before, world_size)


def moved(move: Move, pieces: list[np.ndarray]) -> list[np.ndarray]:
    """What each rank has of a matrix after `move`, from what each has before.

    A rank's buffer has P chunks: the slices along the axis that is wanted; for an all-gather those that are there; for
    an all-reduce any, since all come back.
    """
    world_size = len(pieces)
    if move.collective is None:
        cuts = move.before is REPLICATED and move.after is not REPLICATED
        return (
            [_cut(piece, move.matrix, move.after, world_size)[r] for r, piece in enumerate(pieces)] if cuts else pieces
        )
    algorithm = ALGORITHMS[move.collective](world_size)
    if move.collective == "all_reduce":
        before = np.array([piece.ravel() for piece in pieces])
        return [after.reshape(pieces[0].shape) for after in simulate(algorithm, before)]
    if move.collective == "all_gather":
        chunks = [[piece] * world_size for piece in pieces]  # only the r-th is read
    else:
        chunks = [_cut(piece, move.matrix, move.after, world_size) for piece in pieces]
    shape = chunks[0][0].shape
    before = np.array([np.concatenate([chunk.ravel() for chunk in row]) for row in chunks])
    after = simulate(algorithm, before).reshape(world_size, world_size, *shape)
    if move.collective == "reduce_scatter":
        return [after[rank, rank] for rank in range(world_size)]
    return [np.concatenate(list(row), axis=AXES[move.matrix].index(move.before)) for row in after]


def _cut(array: np.ndarray, matrix: str, axis: str, world_size: int) -> list[np.ndarray]:
    number = AXES[matrix].index(axis)
    if array.shape[number] % world_size:
        raise ValueError(f"{matrix} has {array.shape[number]} {axis}, which do not divide among {world_size} ranks")
    return np.split(array, world_size, axis=number)
