# ruff: noqa: F821
# %% seconds
def ring_seconds(num_bytes, world_size, alpha, beta):
    steps = 2 * (world_size - 1)
    return steps * alpha + steps * num_bytes * beta / world_size


def tree_seconds(num_bytes, world_size, alpha, beta):
    levels = (world_size - 1).bit_length()
    return 2 * levels * alpha + 2 * levels * num_bytes * beta


def halving_doubling_seconds(num_bytes, world_size, alpha, beta):
    inner = 1 << (world_size.bit_length() - 1)
    messages, payloads = 2 * (inner.bit_length() - 1), 2 - 2 / inner
    if world_size > inner:
        messages, payloads = messages + 2, payloads + 2
    return messages * alpha + payloads * num_bytes * beta


# %% crossing
def crossing(world_size, alpha, beta):
    def coefficients(seconds):
        return seconds(0, world_size, 1, 0), seconds(1, world_size, 0, 1)

    (a, b), (c, d) = coefficients(ring_seconds), coefficients(tree_seconds)
    return (a - c) / (d - b) * alpha / beta


# %% choose
def choose(num_bytes, world_size, alpha, beta):
    functions = [("halving-doubling", halving_doubling_seconds), ("ring", ring_seconds), ("tree", tree_seconds)]
    return min((seconds(num_bytes, world_size, alpha, beta), name) for name, seconds in functions)[1]


# %% fit
def fit(sizes, seconds):
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return alpha, beta
