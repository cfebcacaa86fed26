# ruff: noqa: F821
# %% seconds
def ring_seconds(num_bytes, world_size, alpha, beta):
    return (world_size - 1) * (alpha + num_bytes / world_size * beta)


def tree_seconds(num_bytes, world_size, alpha, beta):
    return math.ceil(math.log2(world_size)) * (alpha + num_bytes * beta)


def halving_doubling_seconds(num_bytes, world_size, alpha, beta):
    levels = int(math.log2(world_size))
    seconds = levels * alpha + (1 - 2**-levels) * num_bytes * beta
    return seconds + (alpha + num_bytes * beta if 2**levels < world_size else 0)


# %% crossing
def crossing(world_size, alpha, beta):
    levels = math.ceil(math.log2(world_size))
    return beta * (levels - (world_size - 1) / world_size) / (alpha * (world_size - 1 - levels))


# %% choose
def choose(num_bytes, world_size, alpha, beta):
    prices = {
        "ring": ring_seconds(num_bytes, world_size, alpha, beta),
        "tree": tree_seconds(num_bytes, world_size, alpha, beta),
        "halving-doubling": halving_doubling_seconds(num_bytes, world_size, alpha, beta),
    }
    return min(prices, key=prices.get)


# %% fit
def fit(sizes, seconds):
    rows = np.stack([1 / np.array(seconds), np.array(sizes) / np.array(seconds)], axis=1)
    alpha, beta = np.linalg.lstsq(rows, np.ones(len(sizes)), rcond=None)[0]
    return alpha, 1 / beta
