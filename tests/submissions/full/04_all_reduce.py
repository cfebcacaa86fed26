# %% bytes-of-a-rank
def reduce_scatter_bytes(num_elements, itemsize, world_size):
    chunk = num_elements // world_size
    return (world_size - 1) * chunk * itemsize


all_gather_bytes = reduce_scatter_bytes


def all_reduce_bytes(num_elements, itemsize, world_size):
    return 2 * reduce_scatter_bytes(num_elements, itemsize, world_size)


# %% root-and-all
def root_link_bytes(num_elements, itemsize, world_size):
    others = world_size - 1
    return others * num_elements * itemsize + others * num_elements * itemsize


def total_bytes(num_elements, itemsize, world_size):
    return 2 * (world_size - 1) * num_elements * itemsize


def all_reduce_steps(world_size):
    return 2 * world_size - 2


# %% sharding
def data_parallel_elements(num_params, world_size):
    return 2 * (num_params - num_params / world_size)


def fsdp_elements(num_params, world_size):
    return 3 * (num_params - num_params / world_size)


def fsdp_over_data_parallel(num_params, world_size):
    return 1.5


# %% d-worth-it
# When a whole replica (parameters, gradients and optimizer state) does not fit on one rank but 1/P of it does. If it
# fits, data parallelism sends a third less.
