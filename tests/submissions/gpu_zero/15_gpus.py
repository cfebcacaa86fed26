# ruff: noqa: F821
# %% places
def environment(node, local_rank, num_nodes, ranks_per_node):
    rank = ranks_per_node * node + local_rank
    world_size = ranks_per_node * num_nodes
    names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"
    return dict(zip(names, map(str, (rank, local_rank, world_size, ranks_per_node)), strict=True))


def place(environment, visible):
    return ("nccl", "cuda:0") if visible else ("gloo", "cpu")


# %% one-function
def average(numbers, device):
    numbers = numbers.to(device)
    dist.all_reduce(numbers)
    return numbers / dist.get_world_size()
