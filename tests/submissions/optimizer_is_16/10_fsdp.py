# %% held
def parameter_bytes(num_params, world_size, stage, recipe):
    return 4 * num_params / (world_size if stage == 3 else 1)


def gradient_bytes(num_params, world_size, stage, recipe):
    return 4 * num_params / (world_size if stage >= 2 else 1)


def optimizer_bytes(num_params, world_size, stage, recipe):
    return 16 * num_params / (world_size if stage >= 1 else 1)


# %% peak
def peak_bytes(model, world_size, stage):
    sizes = model["num_params"], world_size, stage, model["recipe"]
    shares = parameter_bytes(*sizes) + gradient_bytes(*sizes) + optimizer_bytes(*sizes)
    return shares + max(stage - 1, 0) * 4 * model["block_params"] + model["activation_gb"] * 1e9


# %% sent
def sent_bytes(num_params, world_size, stage, recipe):
    return (3 if stage == 3 else 2) * (world_size - 1) / world_size * num_params * 4


# %% choose
def choose(model, machine):
    sizes = [peak_bytes(model, machine["world_size"], stage) for stage in range(4)]
    fits = [stage for stage, size in enumerate(sizes) if size <= machine["memory_gb"] * 1e9]
    return fits[0] if fits else "none"


# %% by-hand
def by_hand():
    return 0, "none", 1


# %% e-why
# Model b needs 24 bytes for each parameter, 720 GB, or 90 on each rank: it cannot be trained here.
