# %% bytes-of-a-rank
def reduce_scatter_bytes(num_elements, itemsize, world_size):
    return num_elements * itemsize * (world_size - 1) / world_size


def all_gather_bytes(num_elements, itemsize, world_size):
    return num_elements * itemsize * (world_size - 1) / world_size


def all_reduce_bytes(num_elements, itemsize, world_size):
    return 2 * num_elements * itemsize
