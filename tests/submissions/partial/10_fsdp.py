# %% held
def parameter_bytes(num_params, world_size, stage, recipe):
    each = 2 if recipe == "mixed" else 4
    return each * num_params / (world_size if stage == 3 else 1)


def gradient_bytes(num_params, world_size, stage, recipe):
    each = 2 if recipe == "mixed" else 4
    return each * num_params / (world_size if stage >= 2 else 1)


def optimizer_bytes(num_params, world_size, stage, recipe):
    each = 12 if recipe == "mixed" else 8
    return each * num_params / (world_size if stage >= 1 else 1)


# %% peak
def peak_bytes(model, world_size, stage):
    sizes = model["num_params"], world_size, stage, model["recipe"]
    at_rest = parameter_bytes(*sizes) + gradient_bytes(*sizes) + optimizer_bytes(*sizes)
    return at_rest + model["activation_gb"] * 1e9


# %% sent
def sent_bytes(num_params, world_size, stage, recipe):
    each = 2 if recipe == "mixed" else 4
    return (3 if stage == 3 else 2) * each * num_params


# %% choose
def choose(model, machine):
    for stage in range(4):
        if peak_bytes(model, machine["world_size"], stage) <= machine["memory_gb"] * 1e9:
            return stage
    return "none"


# %% by-hand
def by_hand():
    return 0, 3, 2
