# ruff: noqa: F821
# %% reduce-scatter-steps
def reduce_scatter_steps(world_size):
    return [
        [Transfer(r, (r + 1) % world_size, (r - 1 - step) % world_size, "copy") for r in range(world_size)]
        for step in range(world_size - 1)
    ]


# %% ring-reduce-scatter
def ring_reduce_scatter(rank, world_size, buffer):
    chunks = torch.tensor_split(buffer, world_size)
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank - 1 - step) % world_size], (rank + 1) % world_size)
        dist.recv(chunks[(rank - 2 - step) % world_size], (rank - 1) % world_size)
        sending.wait()
    return chunks[rank]
