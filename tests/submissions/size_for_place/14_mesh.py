# %% weights
def held(shape, style, at, sizes):
    """As Megatron writes it: X W, and W is [inputs, outputs]."""
    rows, columns = range(shape[0]), range(shape[1])
    if style == "row":
        each = shape[0] // sizes["tp"]
        rows = rows[at["tp"] * each : (at["tp"] + 1) * each]
    else:
        each = shape[1] // sizes["tp"]
        columns = columns[at["tp"] * each : (at["tp"] + 1) * each]
    each = len(rows) // sizes["shard"]
    return rows[at["shard"] * each : (at["shard"] + 1) * each], columns


# %% step
def calls(num_blocks, sizes):
    return {
        "tp": {"all_reduce": 2 * num_blocks},
        "shard": {"all_gather": 2 * num_blocks, "reduce_scatter": num_blocks},
        "replicate": {"all_reduce": num_blocks},
    }


def tp_bytes(num_blocks, hidden, tokens, itemsize, sizes):
    return num_blocks * 2 * 2 * (sizes["tp"] - 1) / sizes["tp"] * tokens * hidden * itemsize


def shard_bytes(num_blocks, hidden, tokens, itemsize, sizes):
    return num_blocks * 3 * (sizes["shard"] - 1) / sizes["shard"] * 12 * hidden**2 / sizes["tp"] * itemsize


def replicate_bytes(num_blocks, hidden, tokens, itemsize, sizes):
    return num_blocks * 2 * (sizes["replicate"] - 1) / sizes["replicate"] * 12 * hidden**2 / sizes["tp"] * itemsize


# %% placement
def leaves(axis, order, sizes, gpus_per_node):
    return sizes[axis] > gpus_per_node


def seconds(order, sizes, work, machine):
    total = 0
    for axis in order:
        link = machine.between if leaves(axis, order, sizes, machine.gpus_per_node) else machine.inside
        total += work[axis][0] * (sizes[axis] - 1) * (link.alpha + link.beta * work[axis][1] / sizes[axis])
    return total


def best(sizes, work, machine):
    return sorted(sizes, key=["pp", "dp", "tp"].index)
