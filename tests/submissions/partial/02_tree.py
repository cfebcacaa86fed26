# ruff: noqa: F821
# %% broadcast-steps
def broadcast_steps(world_size):
    """The root sends to each rank in turn."""
    return [[Transfer(0, rank, 0, "copy")] for rank in range(1, world_size)]


# %% reduce-steps
def reduce_steps(world_size, root):
    """The broadcast backwards, whatever the root is."""
    return [[Transfer(t.dst, t.src, 0, "reduce") for t in step] for step in reversed(broadcast_steps(world_size))]


# %% tree-reduce
def tree_reduce(rank, world_size, buffer):
    if rank:
        dist.send(buffer, 0)
        return
    for other in range(1, world_size):
        incoming = torch.empty_like(buffer)
        dist.recv(incoming, other)
        buffer += incoming
