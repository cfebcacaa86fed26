# %% of-a-model
from itertools import product

from collectives.practice import plan


def matrices(model):
    h, kv, ffn = model["hidden"], model["hidden"] // model["heads"] * model["kv_heads"], model["ffn"]
    return [(h, h), (h, kv), (h, kv), (h, h), (h, ffn), (h, ffn), (ffn, h)]


def layer_params(model):
    return sum(a * b for a, b in matrices(model)) + sum(model["hidden"] for norm in range(2))


def parameters(model):
    rows = [model["vocabulary"]] * 2 + [1]
    return sum(layer_params(model) for _ in range(model["layers"])) + sum(row * model["hidden"] for row in rows)


def layer_flops(model):
    return sum(2 * a * b for a, b in matrices(model)) + 2 * model["hidden"] * model["sequence"]


def flops(model, tokens):
    forward = sum([layer_flops(model)] * model["layers"], 2 * model["vocabulary"] * model["hidden"])
    return tokens * forward + 2 * tokens * forward


# %% held
FROM = {"parameters": (2, 3), "gradients": (2, 2), "optimizer": (4 + 4 + 4, 1)}


def state_bytes(model, layout):
    return sum(own(model, layout, layout["stage"] >= first, each) for each, first in FROM.values())


def own(model, layout, sharded, each):
    count = model["layers"] // layout["pp"] * layer_params(model) + model["vocabulary"] * model["hidden"]
    count += model["vocabulary"] * model["hidden"] if layout["pp"] < 2 else 0
    return each * count // layout["tp"] // (layout["dp"] if sharded else 1)


KEPT = {"none": (12, 4, 6), "selective": (8, 4, 4), "full": (2, 0, 0)}


def kept(model, layout, recompute):
    widths = model["hidden"], model["kv_heads"] * (model["hidden"] // model["heads"]), model["ffn"]
    each = sum(a * b for a, b in zip(KEPT[recompute], widths, strict=True))
    return each * model["sequence"] * layout["micro_batch"] // layout["tp"]


def activation_bytes(model, layout):
    own_layers, tokens = model["layers"] // layout["pp"], model["sequence"] * layout["micro_batch"]
    under_way = [min(layout["pp"] - rank, layout["num_micro_batches"]) for rank in range(layout["pp"])]
    held = [count * own_layers * kept(model, layout, layout["recompute"]) for count in under_way]
    held[-1] += 4 * tokens * model["vocabulary"] // layout["tp"]
    return max(held)


def buffer_bytes(model, layout):
    whole = max(0, layout["stage"] - 1) + (layout["stage"] == 3)
    total = whole * 2 * layer_params(model) / layout["tp"]
    if layout["recompute"] != "none":
        total += kept(model, layout, "none") - kept(model, layout, layout["recompute"])
    return total


def memory_bytes(model, layout):
    return sum(f(model, layout) for f in (state_bytes, activation_bytes, buffer_bytes))


# %% passes
def forward_seconds(model, machine, layout, logits=True):
    flops_of = layer_flops(model) * (model["layers"] // layout["pp"])
    flops_of += 2 * model["vocabulary"] * model["hidden"] if logits else 0
    tokens = model["sequence"] * layout["micro_batch"] / layout["tp"]
    return tokens * flops_of / (machine["fraction"] * machine["peak"])


def backward_seconds(*case):
    again = forward_seconds(*case, logits=False) if case[2]["recompute"] == "full" else 0
    return again + forward_seconds(*case) + forward_seconds(*case)


def compute_seconds(*case):
    return case[2]["num_micro_batches"] * sum(each(*case) for each in (forward_seconds, backward_seconds))


# %% exposed
def ring(size, num_bytes, link):
    return (size - 1) * link["alpha"] + num_bytes * link["beta"] * (size - 1) / size


def tensor_seconds(model, machine, layout):
    if layout["tp"] == 1:
        return 0
    num_bytes = 2 * model["hidden"] * layout["micro_batch"] * model["sequence"]
    count = 4 * (3 if layout["recompute"] == "full" else 2) * model["layers"] // layout["pp"]
    return layout["num_micro_batches"] * count * ring(layout["tp"], num_bytes, machine["inside"])


def bubble_seconds(model, machine, layout):
    one = {**layout, "num_micro_batches": 1}
    return sum(f(model, machine, one) for f in (compute_seconds, tensor_seconds) for rank in range(1, layout["pp"]))


def data_seconds(model, machine, layout):
    near = min(layout["dp"], max(1, machine["gpus_per_node"] // layout["tp"]))
    num_bytes = 2 * layer_params(model) * model["layers"] // layout["pp"] // layout["tp"]
    once = ring(near, num_bytes, machine["inside"])
    once += ring(layout["dp"] // near, num_bytes / near, machine["between"])

    def shows(times, behind):
        all_of_it = times * once
        last = all_of_it * layout["pp"] / model["layers"]
        return last if all_of_it - behind < last else all_of_it - behind

    there, back = forward_seconds(model, machine, layout), backward_seconds(model, machine, layout)
    m = layout["num_micro_batches"]
    match layout["stage"]:
        case 0:
            return shows(2, back)
        case 1:
            return shows(1, there) + shows(1, back)
        case 2:
            return shows(1, there) + m * shows(1, back)
        case 3:
            return m * (shows(1, there) + shows(2, back))


def step_seconds(*case):
    communication = tensor_seconds(*case) + data_seconds(*case) + plan.message_seconds(*case)
    return communication + compute_seconds(*case) + bubble_seconds(*case)


# %% choose
def possible(model, machine, batch):
    ranks = machine["nodes"] * machine["gpus_per_node"]
    powers = [2**n for n in range(11)]
    for dp, tp, pp, mb in product(powers, powers, powers, (1, 2, 4, 8)):
        splits = model["layers"] % pp == model["heads"] % tp == model["sequence"] % tp == batch % (dp * mb) == 0
        if dp * tp * pp == ranks and tp <= machine["gpus_per_node"] and splits:
            for stage, recompute in product((0, 1, 2, 3), ("none", "selective", "full")):
                yield dict(
                    recompute=recompute,
                    pp=pp,
                    tp=tp,
                    dp=dp,
                    micro_batch=mb,
                    stage=stage,
                    num_micro_batches=batch / (dp * mb),
                )


def choose(model, machine, batch):
    fits = [a for a in possible(model, machine, batch) if memory_bytes(model, a) <= machine["memory"]]
    return sorted(fits, key=lambda a: (step_seconds(model, machine, a), memory_bytes(model, a)))[0]


# %% e-defend
# The first spends 1.05 of its 3.5 s in the bubble: eight stages share only 16 micro-batches, so a rank waits for 7/16
# of what it computes. The second computes everything again, 0.6 s, with its all-reduces, and gathers every layer twice
# in each of two micro-batches over a slow network, of which 1.4 s show. It has 68 GB to spare, which buy nothing. Mine
# takes 2.1 s, since it spends the memory: 75 of 80 GB. With a single micro-batch, stage 2 sends as rarely as stage 1.
# What the framework and the network library hold is not counted: if that is more than 5 GB, mine does not fit.
