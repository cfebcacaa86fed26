# ruff: noqa: F821
# %% broadcast-steps
def broadcast_steps(world_size):
    """The tree with its steps in the wrong order."""
    steps, distance = [], 1
    while distance < world_size:
        steps.append([Transfer(r, r + distance, 0, "copy") for r in range(0, world_size - distance, 2 * distance)])
        distance *= 2
    return steps


# %% reduce-steps
def reduce_steps(world_size, root):
    """In this order it is right."""
    turn = lambda rank: (rank + root) % world_size  # noqa: E731
    return [[Transfer(turn(t.dst), turn(t.src), 0, "reduce") for t in step] for step in broadcast_steps(world_size)]


# %% tree-reduce
def tree_reduce(rank, world_size, buffer):
    """The farthest child first: it is not ready, and everybody hands on a buffer before it is added up."""
    distance = 2 ** (world_size - 1).bit_length()
    while distance > 1:
        distance //= 2
        if rank % (2 * distance) == distance:
            dist.send(buffer, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            incoming = torch.empty_like(buffer)
            dist.recv(incoming, rank + distance)
            buffer += incoming
