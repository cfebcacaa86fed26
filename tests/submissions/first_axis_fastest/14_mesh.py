# ruff: noqa: F821
# %% numbers
def coordinates(rank, sizes):
    indices = {}
    for axis, size in sizes.items():
        rank, indices[axis] = divmod(rank, size)
    return indices


def groups(axis, sizes):
    found = {}
    for rank in range(math.prod(sizes.values())):
        place = coordinates(rank, sizes)
        del place[axis]
        found.setdefault(tuple(place.values()), []).append(rank)
    return list(found.values())


# %% placement
def leaves(axis, order, sizes, gpus_per_node):
    every = groups(axis, {name: sizes[name] for name in order})
    return any(group[0] // gpus_per_node != group[-1] // gpus_per_node for group in every)


def seconds(order, sizes, work, machine):
    total = 0
    for axis in order:
        link = machine.between if leaves(axis, order, sizes, machine.gpus_per_node) else machine.inside
        total += work[axis][0] * (sizes[axis] - 1) * (link.alpha + link.beta * work[axis][1] / sizes[axis])
    return total


def best(sizes, work, machine):
    return min(itertools.permutations(sizes), key=lambda order: seconds(order, sizes, work, machine))
