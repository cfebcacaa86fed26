# %% of-a-model
def layer_params(model):
    """Parameters of one layer."""
    hidden, head_size = model["hidden"], model["hidden"] // model["heads"]
    attention = 2 * hidden * hidden + 2 * hidden * model["kv_heads"] * head_size
    return attention + 3 * hidden * model["ffn"] + 2 * hidden


def parameters(model):
    """Parameters of the whole model."""
    ends = 2 * model["vocabulary"] * model["hidden"] + model["hidden"]
    return model["layers"] * layer_params(model) + ends


def layer_flops(model):
    """FLOPs of one layer, forward, for one token."""
    matrices = layer_params(model) - 2 * model["hidden"]
    scores = 2 * (2 * model["hidden"]) * model["sequence"] / 2
    return 2 * matrices + scores


def flops(model, tokens):
    """FLOPs of a step over so many tokens, forward and backward, with nothing computed twice."""
    head = 2 * model["vocabulary"] * model["hidden"]
    return 3 * tokens * (model["layers"] * layer_flops(model) + head)


# %% held
def state_bytes(model, layout):
    """Bytes of parameters, gradients and the optimizer's state, on the fullest rank."""
    ends = model["vocabulary"] * model["hidden"] * (2 if layout["pp"] == 1 else 1)
    held = (model["layers"] / layout["pp"] * layer_params(model) + ends) / layout["tp"]
    each = 0
    for num_bytes, sharded_from in ((2, 3), (2, 2), (12, 1)):
        each += num_bytes / layout["dp"] if layout["stage"] >= sharded_from else num_bytes
    return each * held


def kept(model, layout, recompute):
    """Bytes that a rank keeps of one micro-batch for one of its layers."""
    hidden, ffn = model["hidden"], model["ffn"]
    kv = model["kv_heads"] * hidden // model["heads"]
    a_token = {"none": 12 * hidden + 4 * kv + 6 * ffn, "selective": 8 * hidden + 4 * kv + 4 * ffn, "full": 2 * hidden}
    return layout["micro_batch"] * model["sequence"] * a_token[recompute] / layout["tp"]


def activation_bytes(model, layout):
    """Bytes of activations, on the fullest rank."""
    one = model["layers"] / layout["pp"] * kept(model, layout, layout["recompute"])
    first = one * min(layout["num_micro_batches"], layout["pp"])
    return first


def buffer_bytes(model, layout):
    """Bytes of what is there for one layer at a time."""
    layer = 2 * layer_params(model) / layout["tp"]
    again = kept(model, layout, "none") - kept(model, layout, layout["recompute"])
    return again + {0: 0, 1: 0, 2: 0, 3: 2}[layout["stage"]] * layer


def memory_bytes(model, layout):
    """All of it."""
    return state_bytes(model, layout) + activation_bytes(model, layout) + buffer_bytes(model, layout)


# %% passes
def forward_seconds(model, machine, layout):
    """Seconds in which the slowest rank computes the forward pass of one micro-batch."""
    head = 2 * model["vocabulary"] * model["hidden"]
    a_token = model["layers"] / layout["pp"] * layer_flops(model) + head
    rate = layout["tp"] * machine["peak"]
    return layout["micro_batch"] * model["sequence"] * a_token / rate


def backward_seconds(model, machine, layout):
    """Seconds in which it computes the backward pass of one micro-batch, with what is computed again."""
    forward, again = forward_seconds(model, machine, layout), 0
    if layout["recompute"] == "full":
        again = forward_seconds({**model, "vocabulary": 0}, machine, layout)
    return 2 * forward + again


def compute_seconds(model, machine, layout):
    """Seconds in which the slowest rank computes, in a step."""
    a_micro_batch = forward_seconds(model, machine, layout) + backward_seconds(model, machine, layout)
    return layout["num_micro_batches"] * a_micro_batch
