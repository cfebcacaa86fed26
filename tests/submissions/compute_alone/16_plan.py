# %% of-a-model
from itertools import product

from collectives.practice import plan


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
    scores = 2 * (2 * model["hidden"]) * model["sequence"]
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
    logits = 4 * layout["micro_batch"] * model["sequence"] * model["vocabulary"] / layout["tp"]
    return max(first, one + logits)


def buffer_bytes(model, layout):
    """Bytes of what is there for one layer at a time."""
    layer = 2 * layer_params(model) / layout["tp"]
    again = kept(model, layout, "none") - kept(model, layout, layout["recompute"])
    return again + {0: 0, 1: 0, 2: 1, 3: 3}[layout["stage"]] * layer


def memory_bytes(model, layout):
    """All of it."""
    return state_bytes(model, layout) + activation_bytes(model, layout) + buffer_bytes(model, layout)


# %% passes
def forward_seconds(model, machine, layout):
    """Seconds in which the slowest rank computes the forward pass of one micro-batch."""
    head = 2 * model["vocabulary"] * model["hidden"]
    a_token = model["layers"] / layout["pp"] * layer_flops(model) + head
    rate = layout["tp"] * machine["peak"] * machine["fraction"]
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


# %% exposed
def tensor_seconds(model, machine, layout):
    """Seconds of tensor-parallel communication, in a step."""
    num_bytes = 2 * layout["micro_batch"] * model["sequence"] * model["hidden"]
    all_reduce = plan.once_around(machine, 1, layout["tp"], num_bytes)
    passes = 3 if layout["recompute"] == "full" else 2
    return layout["num_micro_batches"] * model["layers"] / layout["pp"] * passes * 2 * all_reduce


def bubble_seconds(model, machine, layout):
    """Seconds in which a rank waits for others, in a step."""
    busy = compute_seconds(model, machine, layout) + tensor_seconds(model, machine, layout)
    return (layout["pp"] - 1) * busy / (layout["num_micro_batches"] + layout["pp"] - 1)


def data_seconds(model, machine, layout):
    """Seconds of data-parallel communication that hide behind nothing, in a step."""
    layers, stage, m = model["layers"] / layout["pp"], layout["stage"], layout["num_micro_batches"]
    num_bytes = 2 * layers * layer_params(model) / layout["tp"]
    once = plan.once_around(machine, layout["tp"], layout["dp"], num_bytes)
    there, back = {0: (0, 2), 1: (1, 1), 2: (1, 1), 3: (1, 2)}[stage]
    shows_there = max(there * once - forward_seconds(model, machine, layout), 0)
    shows_back = max(back * once - backward_seconds(model, machine, layout), 0)
    return (m if stage == 3 else 1) * shows_there + (m if stage >= 2 else 1) * shows_back


def step_seconds(model, machine, layout):
    """All of it."""
    parts = compute_seconds, tensor_seconds, bubble_seconds, data_seconds, plan.message_seconds
    return sum(part(model, machine, layout) for part in parts)


# %% choose
def choose(model, machine, batch):
    """The layout that trains the model fastest on the machine, as a dict like `layout`."""

    def divisors(number):
        return [divisor for divisor in range(1, number + 1) if number % divisor == 0]

    best, least = None, float("inf")
    ranks = machine["nodes"] * machine["gpus_per_node"]
    for tp, pp in product(divisors(ranks), divisors(model["layers"])):
        fits = tp <= machine["gpus_per_node"] and ranks % (tp * pp) == 0
        if not fits or model["heads"] % tp or model["sequence"] % tp:
            continue
        dp = ranks // (tp * pp)
        for micro_batch, stage, recompute in product((1, 2, 4, 8), range(4), ("none", "selective", "full")):
            if batch % (dp * micro_batch):
                continue
            made = {"dp": dp, "tp": tp, "pp": pp, "stage": stage, "micro_batch": micro_batch}
            made |= {"num_micro_batches": batch // (dp * micro_batch), "recompute": recompute}
            if memory_bytes(model, made) > machine["memory"]:
                continue
            seconds = compute_seconds(model, machine, made)
            if seconds < least:
                best, least = made, seconds
    return best


# %% e-defend
# Mine is the fastest of the three.
