"""The double binary tree: each tree carries half of the data, and the leaves of one tree are inner ranks of the other.

In a single tree the leaves, half of all ranks, never send downwards, so half of the machine's bandwidth is idle. With
two trees all ranks are busy.

Source: P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
2009; the shape of the trees is NCCL's (src/graph/trees.cc).
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from ..schedule import COPY, REDUCE, Schedule, Step, Transfer


def all_reduce(world_size: int, num_chunks: int = 8) -> Schedule:
    """Reduce every chunk up one of the trees and broadcast it down again; the chunks follow each other in a pipeline.

    `num_chunks`: chunks for each of the two trees.

    Steps: 4 `num_chunks`, with S / (2 num_chunks) bytes a message, plus about 4 log2 P for the last chunk to go up
    and down. Bytes sent by a rank: at most 2 S.
    """
    steps = _steps(world_size, num_chunks)
    return Schedule(world_size, 2 * num_chunks, lambda: steps, "double-tree all_reduce", "all_reduce")


def parents(world_size: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return, for each of the two trees, the parent of every rank but the root."""
    first = {rank: _parent(rank, world_size) for rank in range(1, world_size)}
    if world_size % 2:
        other = {rank: (rank + 1) % world_size for rank in range(world_size)}  # shifted: rank 1 replaces rank 0
    else:
        other = {rank: world_size - 1 - rank for rank in range(world_size)}  # mirrored
    return first, {other[rank]: other[parent] for rank, parent in first.items()}


def _parent(rank: int, world_size: int) -> int:
    """Return the parent in the first tree. If the lowest set bit of `rank` is 2^k, the parent is 2^k away.

    Odd ranks are leaves.
    """
    bit = rank & -rank
    parent = (rank ^ bit) | (bit << 1)
    return parent if parent < world_size else rank ^ bit


def _steps(world_size: int, num_chunks: int) -> list[Step]:
    """Return the steps: each transfer runs as soon as its data is there and it is its edge's turn.

    A rank has at most two edges to children and two to parents. Of every four steps, two are for messages up and two
    for messages down. Edges that share a rank's port use different steps, so no port is used twice in a step.
    """
    trees = parents(world_size)
    turns = _turns(trees)
    upwards = [sorted(parent, key=partial(depth, parent=parent), reverse=True) for parent in trees]
    steps: dict[int, list[Transfer]] = defaultdict(list)
    ready: dict[tuple[int, int], int] = defaultdict(int)  # (rank, chunk) → the first step in which it can be sent
    free: dict[tuple[int, int, int], int] = defaultdict(int)  # (src, dst, turn) → the first step in which it is free

    def add(src: int, dst: int, chunk: int, combine: str, turn: int) -> None:
        soonest = max(ready[src, chunk], free[src, dst, turn])
        step = soonest + (turn - soonest) % 4
        steps[step].append(Transfer(src, dst, chunk, combine))
        free[src, dst, turn] = step + 1
        ready[dst, chunk] = max(ready[dst, chunk], step + 1)

    for number in range(num_chunks):
        for tree, (parent, order) in enumerate(zip(trees, upwards, strict=True)):
            chunk = tree * num_chunks + number
            for rank in order:  # P - 1 additions, from the leaves up
                add(rank, parent[rank], chunk, REDUCE, turns[tree, rank])
            for rank in reversed(order):  # P - 1 copies, from the root down
                add(parent[rank], rank, chunk, COPY, 2 + turns[tree, rank])
    return [Step.of(steps[step], phase="all_reduce") for step in sorted(steps)]


def _turns(trees: tuple[dict[int, int], dict[int, int]]) -> dict[tuple[int, int], int]:
    """Return 0 or 1 for each edge (tree, child), so that edges with the same parent rank or child rank differ.

    An edge shares its upper end with at most one other edge, and its lower end with at most one. Such edges form paths
    and rings of even length, so two numbers are enough.
    """
    rivals = defaultdict(list)
    edges = [(tree, child) for tree, parent in enumerate(trees) for child in parent]
    for end in (lambda tree, child: trees[tree][child], lambda tree, child: child):
        sharing = defaultdict(list)
        for edge in edges:
            sharing[end(*edge)].append(edge)
        for first, second in (pair for pair in sharing.values() if len(pair) == 2):
            rivals[first].append(second)
            rivals[second].append(first)
    turns: dict[tuple[int, int], int] = {}
    for edge in edges:
        walk = [(edge, 0)]
        while walk:
            edge, turn = walk.pop()
            if edge not in turns:
                turns[edge] = turn
                walk += [(rival, 1 - turn) for rival in rivals[edge]]
    return turns


def depth(rank: int, parent: dict[int, int]) -> int:
    """Return how many edges are between `rank` and the root."""
    return 1 + depth(parent[rank], parent) if rank in parent else 0
