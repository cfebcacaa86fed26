# ruff: noqa: F821
# %% reduce-scatter-steps
def reduce_scatter_steps(world_size):
    """Right for up to two ranks: every rank sends straight to the owner."""
    steps = []
    for distance in range(1, world_size):
        steps.append(
            [
                Transfer(rank, (rank + distance) % world_size, (rank + distance) % world_size, "reduce")
                for rank in range(world_size)
            ]
        )
    return steps


# %% element-transfers
def element_transfers(steps, num_elements, num_chunks):
    return sum(num_elements // num_chunks for step in steps for transfer in step)
