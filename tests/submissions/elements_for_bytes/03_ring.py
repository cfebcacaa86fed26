# ruff: noqa: F821
# %% reduce-scatter-steps
def reduce_scatter_steps(world_size):
    right = {r: (r + 1) % world_size for r in range(world_size)}
    steps, carried = [], {r: (r - 1) % world_size for r in range(world_size)}
    for _ in range(world_size - 1):
        steps.append([Transfer(r, right[r], carried[r], "reduce") for r in range(world_size)])
        carried = {right[r]: carried[r] for r in range(world_size)}
    return steps


# %% element-transfers
def element_transfers(steps, num_elements, num_chunks):
    return sum(len(step) for step in steps)
