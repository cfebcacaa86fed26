# ruff: noqa: F821
# %% reduce-scatter-steps
def reduce_scatter_steps(world_size):
    return [
        [Transfer(r, (r + 1) % world_size, (r - step) % world_size, "reduce") for r in range(world_size)]
        for step in range(world_size - 1)
    ]


# %% element-transfers
def element_transfers(steps, num_elements, num_chunks):
    lengths = np.diff(chunk_bounds(num_elements, num_chunks))
    return sum(lengths[transfer.chunk] for step in steps for transfer in step)


# %% ring-reduce-scatter
def ring_reduce_scatter(rank, world_size, buffer):
    chunks = torch.tensor_split(buffer, world_size)
    for step in range(world_size - 1):
        target = chunks[(rank - 1 - step) % world_size]
        incoming = torch.empty_like(target)
        sending = dist.isend(chunks[(rank - step) % world_size], (rank + 1) % world_size)
        dist.recv(incoming, (rank - 1) % world_size)
        sending.wait()
        target += incoming
    return chunks[rank]
