# ruff: noqa: F821
# %% broadcast-steps
def broadcast_steps(world_size):
    """Whoever has the data sends it to the next rank that lacks it."""
    have, steps = 1, []
    while have < world_size:
        new = min(2 * have, world_size)
        steps.append([Transfer(rank - have, rank, 0) for rank in range(have, new)])
        have = new
    return steps


# %% reduce-steps
def reduce_steps(world_size, root):
    """The upper half of those that are left hand their sums to the lower half."""
    ranks_left, steps = [root, *(rank for rank in range(world_size) if rank != root)], []
    while len(ranks_left) > 1:
        keep = (len(ranks_left) + 1) // 2
        steps.append([Transfer(src, dst, 0, "reduce") for dst, src in zip(ranks_left, ranks_left[keep:], strict=False)])
        ranks_left = ranks_left[:keep]
    return steps


# %% tree-reduce
def tree_reduce(rank, world_size, buffer):
    left = world_size
    while left > 1:
        keep = (left + 1) // 2
        if keep <= rank < left:
            dist.send(buffer, rank - keep)
        elif rank + keep < left:
            incoming = torch.empty_like(buffer)
            dist.recv(incoming, rank + keep)
            buffer.add_(incoming)
        left = keep
