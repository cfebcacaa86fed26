# ruff: noqa: F821
# %% broadcast-steps
def broadcast_steps(world_size):
    """Right for powers of two: the distance is halved, so other numbers leave ranks out."""
    steps, distance = [], world_size // 2
    while distance:
        steps.append([Transfer(r, r + distance, 0, "copy") for r in range(0, world_size - distance, 2 * distance)])
        distance //= 2
    return steps


# %% reduce-steps
def reduce_steps(world_size, root):
    turn = lambda rank: (rank + root) % world_size  # noqa: E731
    return [
        [Transfer(turn(t.dst), turn(t.src), 0, "reduce") for t in step] for step in broadcast_steps(world_size)[::-1]
    ]


# %% tree-reduce
def tree_reduce(rank, world_size, buffer):
    """Waits for a partner that is there only with a power of two."""
    distance = 1
    while distance < world_size:
        if rank & distance:
            dist.send(buffer, rank - distance)
            return
        incoming = torch.empty_like(buffer)
        dist.recv(incoming, rank + distance)
        buffer += incoming
        distance *= 2
