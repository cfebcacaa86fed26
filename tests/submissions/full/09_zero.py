# ruff: noqa: F821
# %% ownership
def shard_bounds(num_elements, rank, world_size):
    size = -(-num_elements // world_size)
    return [size * rank, size * rank + size]


def optimizer_state(parameters, rank, world_size):
    own = parameters.tensor_split(world_size)[rank].detach().clone().to(torch.float32)
    return State(own, torch.zeros(len(own)), torch.zeros(len(own)))


# %% update
def update(state, summed, world_size, lr=0.01, betas=(0.9, 0.999), eps=1e-8):
    g = summed.to(torch.float32).div_(world_size)
    state.steps += 1
    state.mean.mul_(betas[0]).add_(g, alpha=1 - betas[0])
    state.square.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    root = state.square.sqrt() / (1 - betas[1] ** state.steps) ** 0.5 + eps
    state.master.addcdiv_(state.mean, root, value=-lr / (1 - betas[0] ** state.steps))
    return state.master.to(summed.dtype)


# %% zero-2
def arrived(rank, world_size, unit, tensor):
    if not unit.collect(tensor):
        return
    execute(ring.reduce_scatter(world_size), unit.gradients)
    finished = unit.gradients.chunk(world_size)[rank]
    if unit.reduced is None:
        unit.reduced = torch.zeros_like(finished)
    unit.reduced += finished
    unit.gradients = None


def step(rank, world_size, units, update):
    for unit in units:
        unit.parameters.chunk(world_size)[rank].copy_(update(unit.state, unit.reduced, world_size))
        unit.reduced = None
    for unit in reversed(units):
        execute(ring.all_gather(world_size), unit.parameters)
