# %% bytes-of-a-rank
def reduce_scatter_bytes(num_elements, itemsize, world_size):
    return num_elements * (world_size - 1) / world_size


def all_gather_bytes(num_elements, itemsize, world_size):
    return num_elements * (world_size - 1) / world_size


def all_reduce_bytes(num_elements, itemsize, world_size):
    return 2 * num_elements * (world_size - 1) / world_size


# %% root-and-all
def root_link_bytes(num_elements, itemsize, world_size):
    return 2 * num_elements * (world_size - 1)


def total_bytes(num_elements, itemsize, world_size):
    return 2 * num_elements * (world_size - 1)


def all_reduce_steps(world_size):
    return 2 * (world_size - 1)


# %% sharding
def data_parallel_elements(num_params, world_size):
    return 2 * num_params * (world_size - 1) / world_size


def fsdp_elements(num_params, world_size):
    return 3 * num_params * (world_size - 1) / world_size


def fsdp_over_data_parallel(num_params, world_size):
    return 3 / 2


# %% d-worth-it
# When the model is large.
