# ruff: noqa: F821
# %% reduce-scatter-steps
def reduce_scatter_steps(world_size):
    return [
        [(r, (r + 1) % world_size, (r - 1 - step) % world_size, "reduce") for r in range(world_size)]
        for step in range(world_size - 1)
    ]


# %% element-transfers
def element_transfers(steps, num_elements, num_chunks):
    return float(sum(np.diff(chunk_bounds(num_elements, num_chunks))[t.chunk] for step in steps for t in step))


# %% ring-reduce-scatter
def ring_reduce_scatter(rank, world_size, buffer):
    chunks = torch.tensor_split(buffer, world_size)
    for step in range(world_size - 1):
        target = chunks[(rank - 2 - step) % world_size]
        incoming = torch.empty_like(target)
        dist.send(chunks[(rank - 1 - step) % world_size], (rank + 1) % world_size)
        dist.recv(incoming, (rank - 1) % world_size)
        target += incoming
    return chunks[rank]
