# ruff: noqa: F821
# %% ownership
def shard_bounds(num_elements, rank, world_size):
    size = -(-num_elements // world_size)
    return rank * size, rank * size + size


def optimizer_state(parameters, rank, world_size):
    begin, end = shard_bounds(len(parameters), rank, world_size)
    master = parameters[begin:end].float()
    return State(master, torch.zeros_like(master), torch.zeros_like(master))


# %% update
def update(state, summed, world_size):
    state.steps += 1
    gradient = summed.float() / world_size
    state.mean = 0.9 * state.mean + 0.1 * gradient
    state.square = 0.999 * state.square + 0.001 * gradient**2
    mean, square = state.mean / (1 - 0.9**state.steps), state.square / (1 - 0.999**state.steps)
    state.master = state.master - 0.01 * mean / (square**0.5 + 1e-8)
    return state.master.bfloat16()


# %% zero-2
def arrived(rank, world_size, unit, tensor):
    unit.collect(tensor)


def step(rank, world_size, units, update):
    for unit in units:
        begin, end = shard_bounds(len(unit.parameters), rank, world_size)
        execute(ring.reduce_scatter(world_size), unit.gradients)
        unit.parameters[begin:end] = update(unit.state, unit.gradients[begin:end], world_size)
        unit.gradients = None
        execute(ring.all_gather(world_size), unit.parameters)
