# ruff: noqa: F821
# %% seconds
def ring_seconds(num_bytes, world_size, alpha, beta):
    return 2 * (world_size - 1) * (alpha + num_bytes / world_size * beta)


def tree_seconds(num_bytes, world_size, alpha, beta):
    return 2 * math.log2(world_size) * (alpha + num_bytes * beta)


def halving_doubling_seconds(num_bytes, world_size, alpha, beta):
    """Right for powers of two; the two messages of folding are forgotten elsewhere."""
    inner = 2 ** int(math.log2(world_size))
    extra = 2 * num_bytes * beta if inner < world_size else 0
    return 2 * math.log2(inner) * alpha + 2 * (inner - 1) / inner * num_bytes * beta + extra


# %% crossing
def crossing(world_size, alpha, beta):
    levels = math.log2(world_size)
    return alpha / beta * (2 * (world_size - 1) - 2 * levels) / (2 * levels - 2 * (world_size - 1) / world_size)


# %% choose
def choose(num_bytes, world_size, alpha, beta):
    if halving_doubling_seconds(num_bytes, world_size, alpha, beta) <= ring_seconds(num_bytes, world_size, alpha, beta):
        return "halving-doubling"
    return "ring"


# %% fit
def fit(sizes, seconds):
    beta, alpha = np.polyfit(sizes, seconds, 1)
    return alpha, beta
