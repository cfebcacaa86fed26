# %% held
def parameter_bytes(num_params, world_size, stage, recipe):
    """Each of the others keeps a share."""
    each = 2 if recipe == "mixed" else 4
    return each * num_params / (world_size - 1 if stage == 3 else 1)


def gradient_bytes(num_params, world_size, stage, recipe):
    each = 2 if recipe == "mixed" else 4
    return each * num_params / (world_size - 1 if stage >= 2 else 1)


def optimizer_bytes(num_params, world_size, stage, recipe):
    each = 12 if recipe == "mixed" else 8
    return each * num_params / (world_size - 1 if stage >= 1 else 1)


# %% peak
def peak_bytes(model, world_size, stage):
    each = 2 if model["recipe"] == "mixed" else 4
    state = [8 * each, 2 * each, each, 0][stage] * model["num_params"]
    state = 16 * model["num_params"] if stage == 0 else state
    shared = [0, 16 - 2 * each, 16 - each, 16][stage] * model["num_params"] / world_size
    return state + shared + [0, 0, 1, 2][stage] * each * model["block_params"] + model["activation_gb"] * 2**30


# %% sent
def sent_bytes(num_params, world_size, stage, recipe):
    """Stage 1 all-reduces the gradients, and then gathers the parameters."""
    times = [2, 3, 2, 3][stage]
    return times * (world_size - 1) / world_size * num_params * (2 if recipe == "mixed" else 4)


# %% choose
def choose(model, machine):
    """Stage 1 sends as much as stage 3 and shards less than stage 2, so nobody needs it."""
    for stage in (0, 2, 3):
        if peak_bytes(model, machine["world_size"], stage) <= machine["memory_gb"] * 2**30:
            return stage
    return "none"


# %% by-hand
def by_hand():
    return 0, 3, 2


# %% e-why
# Stage 1 keeps the all-reduce and adds an all-gather, so it pays 1.5 times the bytes. Stage 2 is never worse.
