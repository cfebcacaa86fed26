# %% held
def parameter_bytes(num_params, world_size, stage, recipe):
    each = 2 if recipe == "mixed" else 4
    return each * num_params / (world_size if stage >= 2 else 1)


def gradient_bytes(num_params, world_size, stage, recipe):
    each = 2 if recipe == "mixed" else 4
    return each * num_params / (world_size if stage >= 2 else 1)


def optimizer_bytes(num_params, world_size, stage, recipe):
    each = 12 if recipe == "mixed" else 8
    return each * num_params / (world_size if stage >= 1 else 1)


# %% peak
def peak_bytes(model, world_size, stage):
    sizes = model["num_params"], world_size, stage, model["recipe"]
    both = parameter_bytes(*sizes) + gradient_bytes(*sizes)
    block = 2 * (2 if model["recipe"] == "mixed" else 4) * model["block_params"]
    return both + optimizer_bytes(*sizes) + (block if stage >= 2 else 0) + model["activation_gb"] * 1e9


# %% sent
def sent_bytes(num_params, world_size, stage, recipe):
    """FSDP moves what DDP moves."""
    return 2 * (world_size - 1) / world_size * num_params * (2 if recipe == "mixed" else 4)


# %% choose
def choose(model, machine):
    """Sharding saves memory and costs nothing."""
    fits = peak_bytes(model, machine["world_size"], 3) <= machine["memory_gb"] * 1e9
    return 3 if fits else "none"


# %% by-hand
def by_hand():
    return 3, 3, 3


# %% e-why
# Memory binds for all three: full sharding holds the least, and it moves what plain data parallelism moves.
