# %% held
SIZE = {"mixed": (2, 2, 12), "full": (4, 4, 8)}  # bytes: parameter, gradient, optimizer


def share(which, num_params, world_size, stage, recipe):
    """Optimizer (2), gradients (1) and parameters (0) are sharded from stages 1, 2 and 3 on."""
    whole = SIZE[recipe][which] * num_params
    return whole // world_size if stage + which >= 3 else whole


def parameter_bytes(*sizes):
    return share(0, *sizes)


def gradient_bytes(*sizes):
    return share(1, *sizes)


def optimizer_bytes(*sizes):
    return share(2, *sizes)


# %% peak
def peak_bytes(model, world_size, stage):
    recipe = model["recipe"]
    held = sum(share(which, model["num_params"], world_size, stage, recipe) for which in range(3))
    if stage >= 2:
        held += SIZE[recipe][1] * model["block_params"]
    if stage == 3:
        held += SIZE[recipe][0] * model["block_params"]
    return held + int(model["activation_gb"] * 10**9)


# %% sent
def sent_bytes(num_params, world_size, stage, recipe):
    passes = [2, 2, 2, 3][stage]
    return passes * (world_size - 1) * SIZE[recipe][0] * num_params // world_size


# %% choose
def choose(model, machine):
    world_size = machine["world_size"]
    fits = [s for s in range(4) if peak_bytes(model, world_size, s) <= machine["memory_gb"] * 1e9]
    if not fits:
        return "none"
    return min(fits, key=lambda s: (sent_bytes(model["num_params"], world_size, s, model["recipe"]), s))


# %% by-hand
def by_hand():
    return [0, 3, 1]


# %% e-why
# a: 16 GB of state and 8 of activations fit in 80, so bandwidth binds: stage 0 sends the least. Full sharding would
# send 1.5 times as much to free memory that nobody needs. b: 60 GB of parameters and 60 of gradients do not fit whole,
# so memory binds and stage 3 is worth its 1.5. c: only the 84 GB of optimizer state do not fit; stage 1 leaves 10.5 of
# them and sends no more than stage 0.
