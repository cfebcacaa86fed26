# ruff: noqa: F821
# %% two-level-steps
def two_level_all_reduce_steps(num_nodes, ranks_per_node):
    world_size, steps = num_nodes * ranks_per_node, []
    for combine, begin in (("reduce", -1), ("between", None), ("copy", 0)):
        if combine == "between":
            for how, first in (("reduce", -1), ("copy", 0)):
                for s in range(num_nodes - 1):
                    steps.append(
                        [
                            Transfer(
                                rank,
                                (rank + ranks_per_node) % world_size,
                                rank % ranks_per_node * num_nodes + (rank // ranks_per_node + first - s) % num_nodes,
                                how,
                            )
                            for rank in range(world_size)
                        ]
                    )
            continue
        for s in range(ranks_per_node - 1):
            step = []
            for rank in range(world_size):
                node, local = divmod(rank, ranks_per_node)
                right = node * ranks_per_node + (local + 1) % ranks_per_node
                shard = (local + begin - s) % ranks_per_node
                step.append(Transfer(rank, right, shard * num_nodes, combine, count=num_nodes))
            steps.append(step)
    return steps


# %% leaving
def leaving_ring(num_bytes, num_nodes, ranks_per_node):
    ranks = num_nodes * ranks_per_node
    return 2 * (ranks - 1) / ranks * num_bytes


def leaving_bad_ring(num_bytes, num_nodes, ranks_per_node):
    ranks = num_nodes * ranks_per_node
    return 2 * (ranks - 1) / ranks * num_bytes * ranks_per_node


def leaving_two_levels(num_bytes, num_nodes, ranks_per_node):
    return 2 * (num_nodes - 1) / num_nodes * num_bytes
