# ruff: noqa: F821
# %% reduce-scatter-steps
def reduce_scatter_steps(world_size):
    """Chunk c leaves rank c + 1 first and has gone all the way round when it reaches rank c."""
    ranks = range(world_size)
    return [
        [Transfer((chunk + 1 + step) % world_size, (chunk + 2 + step) % world_size, chunk, "reduce") for chunk in ranks]
        for step in range(world_size - 1)
    ]


# %% element-transfers
def element_transfers(steps, num_elements, num_chunks):
    bounds = chunk_bounds(num_elements, num_chunks)
    total = 0
    for step in steps:
        for transfer in step:
            total += bounds[transfer.chunk + 1] - bounds[transfer.chunk]
    return total


# %% ring-reduce-scatter
def ring_reduce_scatter(rank, world_size, buffer):
    bounds = chunk_bounds(len(buffer), world_size)

    def chunk(index):
        return buffer[bounds[index % world_size] : bounds[index % world_size + 1]]

    for step in range(1, world_size):
        target = chunk(rank - step - 1)
        incoming = torch.empty_like(target)
        receiving = dist.irecv(incoming, (rank - 1) % world_size)
        sending = dist.isend(chunk(rank - step), (rank + 1) % world_size)
        receiving.wait()
        sending.wait()
        target.add_(incoming)
    return chunk(rank)
