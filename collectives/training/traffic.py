"""The traffic of a training step: its collectives, their bytes, and the bytes that one rank sends."""

from __future__ import annotations

from collections.abc import Mapping

COLLECTIVES: Mapping[int, tuple[tuple[str, str], ...]] = {
    0: (("all_reduce", "gradients"),),
    1: (("reduce_scatter", "gradients"), ("all_gather", "parameters")),
    2: (("reduce_scatter", "gradients"), ("all_gather", "parameters")),
    3: (("all_gather", "parameters"), ("all_gather", "parameters"), ("reduce_scatter", "gradients")),
}
"""The collectives of a step by stage of ZeRO: (collective, payload), each over all gradients or all parameters.

Stages 1 and 2 gather the updated parameters. Stage 3 gathers them before the forward pass and again before the backward
pass."""

KEPT = (("all_gather", "parameters"), ("reduce_scatter", "gradients"))
"""The collectives of stage 3 if the backward pass reuses the gathered parameters (`reshard_after_forward=False`)."""


def step(
    num_parameters: int,
    stage: int,
    itemsize: int = 2,
    reshard: bool = True,
    gradient_itemsize: int | None = None,
    micro_batches: int = 1,
) -> dict[str, int]:
    """Return, by collective, the bytes S of all full buffers that pass through it in a step.

    `itemsize`: bytes of a parameter on the wire. `gradient_itemsize`: bytes of a gradient there, by default the same.
    `reshard`: for stage 3, FSDP's `reshard_after_forward`. `micro_batches`: the backward passes before an update.
    Stages 0 and 1 hold full gradients and reduce them once. Stage 2 reduces each micro-batch's, because it keeps only a
    shard, and stage 3 also gathers for each. Raises `ValueError` for an unknown stage.
    """
    if stage not in COLLECTIVES:
        raise ValueError(f"there is no stage {stage} of ZeRO: it is one of {', '.join(map(str, COLLECTIVES))}")
    itemsizes = {"parameters": itemsize, "gradients": gradient_itemsize or itemsize}
    payloads: dict[str, int] = {}
    for collective, what in COLLECTIVES[stage] if reshard or stage != 3 else KEPT:
        times = micro_batches if stage == 3 or (stage == 2 and what == "gradients") else 1
        payloads[collective] = payloads.get(collective, 0) + times * itemsizes[what] * num_parameters
    return payloads


PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
"""How often the buffer goes around the ring: an all-reduce is a reduce-scatter and then an all-gather."""


def sent(payloads: Mapping[str, int], world_size: int) -> float:
    """Return the bytes that a rank sends if each of these collectives (see `step`) runs on a ring of all ranks.

    Each trip around the ring sends (P - 1)/P of the buffer, which no algorithm can undercut (chapters 03 and 04).
    """
    return sum(PASSES[name] * payload for name, payload in payloads.items()) * (world_size - 1) / world_size


def crossing(nodes: int, gpus_per_node: int, micro_batches: int = 1) -> dict[str, float]:
    """Return, by way to shard, the bytes that leave each node in a step of stage 3, in multiples of S.

    S is the size of the parameters and of their gradients. Rings visit node after node. "FSDP": two gathers and a
    scatter over all ranks. "secondary shard": the second gather stays in the node. "HSDP": gathers and scatters stay
    in the node, and each of its ranks all-reduces its shard of the gradients with the other nodes, once a step.
    """
    ranks = nodes * gpus_per_node
    around, across = (ranks - 1) / ranks if nodes > 1 else 0.0, (nodes - 1) / nodes
    gathered = {"FSDP": 3 * around * micro_batches, "secondary shard": 2 * around * micro_batches}
    return gathered | {"HSDP": 2 * across}
