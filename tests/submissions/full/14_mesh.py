# ruff: noqa: F821
# %% numbers
def coordinates(rank, sizes):
    places = itertools.product(*map(range, sizes.values()))
    return dict(zip(sizes, list(places)[rank], strict=True))


def groups(axis, sizes):
    found = {}
    for rank in range(math.prod(sizes.values())):
        place = coordinates(rank, sizes)
        place.pop(axis)
        found.setdefault(str(place), []).append(rank)
    return list(found.values())


# %% real
def build(groups, rank):
    made = [(axis, ranks, dist.new_group(ranks)) for axis in groups for ranks in groups[axis]]
    return {axis: group for axis, ranks, group in made if rank in ranks}


def reduced(terms, gradient, groups):
    total = terms.clone()
    mean = gradient / dist.get_world_size(groups["dp"])
    dist.all_reduce(total, group=groups["tp"])
    dist.all_reduce(mean, group=groups["dp"])
    return total, mean


# %% weights
def held(shape, style, at, sizes):
    cuts = [["tp", "shard"], []] if style == "column" else [["shard"], ["tp"]]
    block = []
    for length, axes in zip(shape, cuts, strict=True):
        piece = range(length)
        for axis in axes:
            each = len(piece) // sizes[axis]
            piece = piece[at[axis] * each :][:each]
        block.append(piece)
    return tuple(block)


# %% step
def calls(num_blocks, sizes):
    found = {
        "tp": {"all_reduce": 4 * num_blocks},
        "shard": {"all_gather": 2 * num_blocks, "reduce_scatter": num_blocks},
        "replicate": {"all_reduce": num_blocks},
    }
    return {axis: found[axis] if sizes[axis] > 1 else {} for axis in sizes}


def once_round(num_bytes, size):
    return num_bytes // size * (size - 1)


def tp_bytes(num_blocks, hidden, tokens, itemsize, sizes):
    return 8 * num_blocks * once_round(tokens * hidden * itemsize, sizes["tp"])


def shard_bytes(num_blocks, hidden, tokens, itemsize, sizes):
    return 3 * num_blocks * once_round(12 * hidden**2 * itemsize // sizes["tp"], sizes["shard"])


def replicate_bytes(num_blocks, hidden, tokens, itemsize, sizes):
    gradients = 12 * hidden**2 * itemsize // sizes["tp"] // sizes["shard"]
    return 2 * num_blocks * once_round(gradients, sizes["replicate"])


# %% placement
def leaves(axis, order, sizes, gpus_per_node):
    inner = math.prod(sizes[name] for name in order[order.index(axis) + 1 :])
    every = [range(first, first + inner * sizes[axis], inner) for first in range(math.prod(sizes.values()))]
    firsts = [group for group in every if group.start // inner % sizes[axis] == 0]
    return any(group[0] // gpus_per_node != group[-1] // gpus_per_node for group in firsts)


def seconds(order, sizes, work, machine):
    total = 0
    for axis, (passes, num_bytes) in work.items():
        link = machine.between if leaves(axis, order, sizes, machine.gpus_per_node) else machine.inside
        total += passes * (sizes[axis] - 1) * (link.alpha + num_bytes / sizes[axis] * link.beta)
    return total


def best(sizes, work, machine):
    orders = list(itertools.permutations(sizes))
    return min(orders, key=lambda order: seconds(order, sizes, work, machine))
