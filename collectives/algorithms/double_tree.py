"""Two binary trees, each for half of the data: who is a leaf in one has two children in the other, so all are busy.

In a single tree the leaves, half of all ranks, never send downwards: half of the machine's bandwidth is idle.
Source: P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
2009; the shape of the trees is NCCL's (src/graph/trees.cc).
"""

from __future__ import annotations

from collections import defaultdict

from ..schedule import COPY, REDUCE, Schedule, Step, Transfer


def all_reduce(world_size: int, num_chunks: int = 8) -> Schedule:
    """Every chunk is summed up one of the trees and handed down again, one chunk behind the other.

    `num_chunks`: chunks for each of the two trees. Bytes sent by a rank: at most 2 S. Steps: 4 `num_chunks`, each with
    S / (2 num_chunks) bytes, and the way up and down for the last chunk, of the order of 4 log2 P.
    """
    steps = _steps(world_size, num_chunks)
    return Schedule(world_size, 2 * num_chunks, lambda: steps, "double-tree all_reduce", "all_reduce")


def parents(world_size: int) -> tuple[dict[int, int], dict[int, int]]:
    """The parent of every rank but the root, in each of the two trees."""
    first = {rank: _parent(rank, world_size) for rank in range(1, world_size)}
    if world_size % 2:
        other = {rank: (rank + 1) % world_size for rank in range(world_size)}  # shifted: 0 is 1's place
    else:
        other = {rank: world_size - 1 - rank for rank in range(world_size)}  # mirrored
    return first, {other[rank]: other[parent] for rank, parent in first.items()}


def _parent(rank: int, world_size: int) -> int:
    """Odd ranks are leaves; a rank whose lowest set bit is 2^k has its parent 2^k away, on the next level."""
    bit = rank & -rank
    parent = (rank ^ bit) | (bit << 1)
    return parent if parent < world_size else rank ^ bit


def _steps(world_size: int, num_chunks: int) -> list[Step]:
    """Every transfer as soon as what it sends is there, in those steps that are its edge's turn.

    A rank has at most two edges to children and two to parents. Of four steps in a row, two are for going up and two
    for going down, and edges that share a rank's port have different ones: no port is ever asked for twice.
    """
    trees = parents(world_size)
    turns = _turns(trees)
    upwards = [sorted(parent, key=lambda rank, parent=parent: -_depth(rank, parent)) for parent in trees]
    steps: dict[int, list[Transfer]] = defaultdict(list)
    ready = defaultdict(int)  # (rank, chunk): the step from which on that slot may be sent
    free = defaultdict(int)  # (src, dst, turn): the step from which on that way carries nothing yet

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
    """0 or 1 for each edge (tree, child), different for any two that share a parent and any two that share a child.

    An edge shares its upper end with at most one other and its lower end with at most one: such edges form paths and
    rings of even length, so two numbers are enough.
    """
    rivals = defaultdict(list)
    edges = [(tree, child) for tree, parent in enumerate(trees) for child in parent]
    for end in (lambda tree, child: trees[tree][child], lambda tree, child: child):
        sharing = defaultdict(list)
        for edge in edges:
            sharing[end(*edge)].append(edge)
        for one, other in (pair for pair in sharing.values() if len(pair) == 2):
            rivals[one].append(other)
            rivals[other].append(one)
    turns: dict[tuple[int, int], int] = {}
    for edge in edges:
        walk = [(edge, 0)]
        while walk:
            edge, turn = walk.pop()
            if edge not in turns:
                turns[edge] = turn
                walk += [(rival, 1 - turn) for rival in rivals[edge]]
    return turns


def _depth(rank: int, parent: dict[int, int]) -> int:
    return 1 + _depth(parent[rank], parent) if rank in parent else 0
