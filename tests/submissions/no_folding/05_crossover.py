# ruff: noqa: F821
# %% seconds
def ring_seconds(num_bytes, world_size, alpha, beta):
    return 2 * (world_size - 1) * (alpha + num_bytes / world_size * beta)


def tree_seconds(num_bytes, world_size, alpha, beta):
    return 2 * math.ceil(math.log2(world_size)) * (alpha + num_bytes * beta)


def halving_doubling_seconds(num_bytes, world_size, alpha, beta):
    inner = 2 ** int(math.log2(world_size))
    return 2 * math.log2(inner) * alpha + 2 * (inner - 1) / inner * num_bytes * beta


# %% choose
def choose(num_bytes, world_size, alpha, beta):
    return "halving-doubling"  # the cheapest of the three formulas, at every size
