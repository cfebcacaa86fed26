# ruff: noqa: F821
# %% reduce-scatter-steps
def reduce_scatter_steps(world_size):
    return [[Transfer(r, r + 1, r, "reduce") for r in range(world_size)] for _ in range(world_size - 1)]


# %% element-transfers
def element_transfers(steps, num_elements, num_chunks):
    print(num_elements)


# %% ring-reduce-scatter
def ring_reduce_scatter(rank, world_size, buffer):
    return buffer.tolist()
