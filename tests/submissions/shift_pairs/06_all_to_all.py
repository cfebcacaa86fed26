# ruff: noqa: F821
# %% peers
def peers(rank, world_size):
    return [(rank + k) % world_size for k in range(1, world_size)]


# %% all-to-all-steps
def all_to_all_steps(world_size):
    return [[Transfer(r, d, chunk=d, into=r) for r in range(world_size) for d in range(world_size) if d != r]]


# %% exchange
def exchange(rank, world_size, chunks):
    result = chunks.clone()
    for peer in peers(rank, world_size):
        if rank < peer:
            dist.send(chunks[peer], peer)
            dist.recv(result[peer], peer)
        else:
            dist.recv(result[peer], peer)
            dist.send(chunks[peer], peer)
    return result
