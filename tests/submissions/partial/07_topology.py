# ruff: noqa: F821
# %% two-level-steps
def two_level_all_reduce_steps(num_nodes, ranks_per_node):
    world_size = num_nodes * ranks_per_node
    leaders = range(0, world_size, ranks_per_node)
    gather = [
        [Transfer(leader + other, leader, 0, "reduce", count=world_size) for leader in leaders]
        for other in range(1, ranks_per_node)
    ]
    between = [
        [
            Transfer(
                leader,
                (leader + ranks_per_node) % world_size,
                (leader // ranks_per_node + first - s) % num_nodes * ranks_per_node,
                how,
                count=ranks_per_node,
            )
            for leader in leaders
        ]
        for how, first in (("reduce", -1), ("copy", 0))
        for s in range(num_nodes - 1)
    ]
    back = [[Transfer(t.dst, t.src, 0, "copy", count=world_size) for t in step] for step in gather]
    return gather + between + back


# %% leaving
def leaving_ring(num_bytes, num_nodes, ranks_per_node):
    ranks = num_nodes * ranks_per_node
    return 2 * (ranks - 1) / ranks * num_bytes


def leaving_bad_ring(num_bytes, num_nodes, ranks_per_node):
    return leaving_ring(num_bytes, num_nodes, ranks_per_node)


def leaving_two_levels(num_bytes, num_nodes, ranks_per_node):
    return 2 * num_bytes
