"""What a step of training sends: which collectives, over how many bytes, and what that is for one rank."""

from __future__ import annotations

from collections.abc import Mapping

# Which collectives a step calls at each stage of ZeRO, over the whole of the gradients or of the parameters.
COLLECTIVES: Mapping[int, tuple[tuple[str, str], ...]] = {
    0: (("all_reduce", "gradients"),),
    1: (("reduce_scatter", "gradients"), ("all_gather", "parameters")),
    2: (("reduce_scatter", "gradients"), ("all_gather", "parameters")),
    3: (("all_gather", "parameters"), ("all_gather", "parameters"), ("reduce_scatter", "gradients")),
}
"""By stage: (collective, of what). Stages 1 and 2 gather the parameters that the update has changed, stage 3 gathers
them before the forward and again before the backward pass."""

KEPT = (("all_gather", "parameters"), ("reduce_scatter", "gradients"))
"""Stage 3 if what the forward pass has gathered is kept for the backward pass (`reshard_after_forward=False`)."""


def step(num_parameters: int, stage: int, itemsize: int = 2, reshard: bool = True) -> dict[str, int]:
    """The bytes S of all full buffers that go through each collective in a step, by the collective's name.

    `itemsize`: bytes of a parameter and of its gradient on the wire. `reshard`: for stage 3, as FSDP's
    `reshard_after_forward`. Raises `ValueError` for a stage that is none.
    """
    if stage not in COLLECTIVES:
        raise ValueError(f"there is no stage {stage} of ZeRO: it is one of {', '.join(map(str, COLLECTIVES))}")
    payloads: dict[str, int] = {}
    for collective, _ in COLLECTIVES[stage] if reshard or stage != 3 else KEPT:
        payloads[collective] = payloads.get(collective, 0) + itemsize * num_parameters
    return payloads


PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
"""How often the buffer goes round the ring: an all-reduce is the other two, one after the other."""


def sent(payloads: Mapping[str, int], world_size: int) -> float:
    """The bytes that a rank sends if these collectives (see `step`) each go round a ring of `world_size` ranks.

    That is (P - 1)/P of the buffer for each time round, which no algorithm can undercut (chapters 03 and 04).
    """
    return sum(PASSES[name] * payload for name, payload in payloads.items()) * (world_size - 1) / world_size
