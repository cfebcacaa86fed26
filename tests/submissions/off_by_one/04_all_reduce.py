# %% bytes-of-a-rank
def reduce_scatter_bytes(num_elements, itemsize, world_size):
    return num_elements * itemsize


def all_gather_bytes(num_elements, itemsize, world_size):
    return num_elements * itemsize


def all_reduce_bytes(num_elements, itemsize, world_size):
    return 2 * num_elements * itemsize


# %% root-and-all
def root_link_bytes(num_elements, itemsize, world_size):
    return 2 * world_size * num_elements * itemsize


def total_bytes(num_elements, itemsize, world_size):
    return 2 * world_size * num_elements * itemsize


def all_reduce_steps(world_size):
    return 2 * world_size


# %% sharding
def data_parallel_elements(num_params, world_size):
    return 2 * num_params


def fsdp_elements(num_params, world_size):
    return 3 * num_params


def fsdp_over_data_parallel(num_params, world_size):
    return fsdp_elements(num_params, world_size) / data_parallel_elements(num_params, world_size)
