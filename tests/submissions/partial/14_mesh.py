# ruff: noqa: F821
# %% numbers
def coordinates(rank, sizes):
    indices = {}
    for axis in reversed(list(sizes)):
        indices[axis] = rank % sizes[axis]
        rank //= sizes[axis]
    return indices


def groups(axis, sizes):
    """Neighbours."""
    world, size = math.prod(sizes.values()), sizes[axis]
    return [list(range(first, first + size)) for first in range(0, world, size)]


# %% real
def build(groups, rank):
    made = {}
    for axis in groups:
        for ranks in groups[axis]:
            if rank in ranks:
                made[axis] = dist.new_group(ranks)
    return made


def reduced(terms, gradient, groups):
    terms, gradient = terms.clone(), gradient.clone()
    dist.all_reduce(terms, group=groups["tp"])
    dist.all_reduce(gradient, group=groups["dp"])
    return terms, gradient / 2


# %% weights
def held(shape, style, at, sizes):
    """FSDP first."""
    rows, columns = range(shape[0]), range(shape[1])
    each = shape[0] // sizes["shard"]
    rows = rows[at["shard"] * each : (at["shard"] + 1) * each]
    if style == "column":
        each = len(rows) // sizes["tp"]
        rows = rows[at["tp"] * each : (at["tp"] + 1) * each]
    else:
        each = len(columns) // sizes["tp"]
        columns = columns[at["tp"] * each : (at["tp"] + 1) * each]
    return rows, columns


# %% step
def calls(num_blocks, sizes):
    return {"tp": {"all_reduce": 4 * num_blocks}, "shard": {"all_gather": num_blocks, "reduce_scatter": num_blocks}}


def tp_bytes(num_blocks, hidden, tokens, itemsize, sizes):
    return num_blocks * 4 * 2 * (sizes["tp"] - 1) / sizes["tp"] * tokens * hidden * itemsize


def shard_bytes(num_blocks, hidden, tokens, itemsize, sizes):
    return num_blocks * 3 * (sizes["shard"] - 1) / sizes["shard"] * 12 * hidden**2 * itemsize
