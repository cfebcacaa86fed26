# ruff: noqa: F821
# %% two-level-steps
def two_level_all_reduce_steps(num_nodes, ranks_per_node):
    world_size = num_nodes * ranks_per_node
    if world_size & (world_size - 1):
        return exchange(world_size)
    start, width, there, bit = [0] * world_size, world_size, [], 1
    while bit < world_size:
        width //= 2
        step = []
        for rank in range(world_size):
            upper = bool(rank & bit)
            step.append(Transfer(rank, rank ^ bit, start[rank] + (0 if upper else width), "reduce", None, width))
        there.append(step)
        start = [start[rank] + (width if rank & bit else 0) for rank in range(world_size)]
        bit *= 2
    return there + [[Transfer(t.dst, t.src, t.chunk, "copy", None, t.count) for t in s] for s in there[::-1]]


def exchange(world_size):
    everyone = [(a, b) for a in range(world_size) for b in range(world_size) if a != b]
    return [[(a, b, b, "reduce") for a, b in everyone], [(a, b, a, "copy") for a, b in everyone]]


# %% leaving
def leaving_ring(num_bytes, num_nodes, ranks_per_node):
    ranks = num_nodes * ranks_per_node
    return 2 * (ranks - 1) * num_bytes // ranks


def leaving_bad_ring(num_bytes, num_nodes, ranks_per_node):
    ranks = num_nodes * ranks_per_node
    return 2 * (ranks - 1) * num_bytes // num_nodes


def leaving_two_levels(num_bytes, num_nodes, ranks_per_node):
    chunk = num_bytes / (num_nodes * ranks_per_node)
    return 2 * (num_nodes - 1) * ranks_per_node * chunk
