# ruff: noqa: F821
# %% peers
def peers(rank, world_size):
    if world_size & (world_size - 1) == 0:
        return [rank ^ k for k in range(1, world_size)]
    return [k if k != rank else None for k in range(1, world_size)]


# %% all-to-all-steps
def all_to_all_steps(world_size):
    return [
        [(r, peers(r, world_size)[k], peers(r, world_size)[k], "copy", r) for r in range(world_size)]
        for k in range(world_size - 1)
    ]


# %% exchange
def exchange(rank, world_size, chunks):
    result = chunks.clone()
    for peer in peers(rank, world_size):
        if peer is None:
            continue
        if rank < peer:
            dist.send(chunks[peer], peer)
            dist.recv(result[peer], peer)
        else:
            dist.recv(result[peer], peer)
            dist.send(chunks[peer], peer)
    return result
