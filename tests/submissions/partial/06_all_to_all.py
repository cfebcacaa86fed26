# ruff: noqa: F821
# %% peers
def peers(rank, world_size):
    partners = []
    for k in range(world_size):
        peer = (k - rank) % world_size
        partners.append(None if peer == rank else peer)
    return partners


# %% all-to-all-steps
def all_to_all_steps(world_size):
    steps = []
    for k in range(1, world_size):
        steps.append([Transfer(r, (r + k) % world_size, (r + k) % world_size, into=r) for r in range(world_size)])
    return steps


# %% exchange
def exchange(rank, world_size, chunks):
    result = chunks.clone()
    for peer in peers(rank, world_size):
        if peer is not None:
            dist.send(chunks[peer], peer)
            dist.recv(result[peer], peer)
    return result
