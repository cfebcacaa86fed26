"""The two-level all-reduce: reduce-scatter in the node, all-reduce across nodes, all-gather in the node.

Only data already summed over a node leaves it: 2(N-1)/N S/L bytes from each of the node's L ranks, for N nodes.

Source: M. Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy", 2019.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..schedule import COPY, REDUCE, Schedule, Step


def all_reduce(world_size: int, ranks_per_node: int) -> Schedule:
    """Run a ring in every node, one ring across nodes for each local rank, and a ring in every node again.

    Steps: 2(L-1) + 2(N-1) for N nodes of L ranks. Bytes sent by a rank: 2(L-1)/L S in the node, 2(N-1)/N S/L across.
    Raises `ValueError` if the ranks don't fill all nodes.
    """
    if ranks_per_node < 1 or world_size % ranks_per_node:
        raise ValueError(f"{world_size} ranks do not fill nodes of {ranks_per_node}")
    nodes = world_size // ranks_per_node
    node, local = np.divmod(np.arange(world_size), ranks_per_node)
    ranks = np.arange(world_size)
    beside = node * ranks_per_node + (local + 1) % ranks_per_node  # the next rank of the same node
    beyond = (node + 1) % nodes * ranks_per_node + local  # the same local rank of the next node
    whole_shard = np.full(world_size, nodes)  # a shard of S/L bytes is cut into N chunks

    def in_node(first_shard: int, combine: str, phase: str) -> Iterator[Step]:
        for step in range(ranks_per_node - 1):  # L - 1 steps with one shard each
            shard = (local + first_shard - step) % ranks_per_node
            yield Step(ranks, beside, shard * nodes, combine, phase, count=whole_shard)

    def across(first_chunk: int, combine: str) -> Iterator[Step]:
        for step in range(nodes - 1):  # N - 1 steps with one chunk of the rank's own shard each
            chunk = (node + first_chunk - step) % nodes
            yield Step(ranks, beyond, local * nodes + chunk, combine, "all_reduce across nodes")

    def steps() -> Iterator[Step]:
        yield from in_node(-1, REDUCE, "reduce_scatter in the node")
        yield from across(-1, REDUCE)
        yield from across(0, COPY)
        yield from in_node(0, COPY, "all_gather in the node")

    return Schedule(world_size, world_size, steps, "hierarchical all_reduce", "all_reduce")
