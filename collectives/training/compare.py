"""Five ways to spread the training of one model, side by side: what a rank waits for, sends and holds in a step.

    load("pipeline", world_size=8, layers=32, parameters=8 * 10**9, cut=2**28, num_micro_batches=16)

Each way is taken alone and in its plainest form: equal layers, each a unit that is reduced or gathered by itself, 1F1B
with one stage a rank, bf16 with Adam in mixed precision. Links, overlap and several ways at once are `planner`'s.
"""

from __future__ import annotations

from typing import NamedTuple

from .memory import at_rest
from .traffic import COLLECTIVES, sent, step

STAGES = {"DDP": 0, "ZeRO-1": 1, "FSDP": 3}
"""The ways that share out the batch, with their stage of ZeRO."""

WAYS = (*STAGES, "pipeline", "tensor + sequence")


class Load(NamedTuple):
    """What a rank has in a step; of a pipeline's ranks the one that has most.

    `waits`: how often it waits for others: collectives, or messages that it takes. `sent`: bytes. `state`: bytes of
    parameters, gradients and optimizer, between backward pass and update. `activations`: the most that it keeps, as a
    part of all activations of all layers for the whole batch.
    """

    waits: int
    sent: float
    state: float
    activations: float


def load(way: str, world_size: int, layers: int, parameters: int, cut: int, num_micro_batches: int = 1) -> Load:
    """What `way` asks of a rank if `world_size` ranks train `layers` equal layers of `parameters` in all.

    `cut`: bytes of the activations between two layers for the whole batch: tokens times width times 2.
    `num_micro_batches`: into so many a rank cuts what it has of the batch: all of it, or where the batch is shared out
    a part. Gradients of DDP and ZeRO-1 wait for the last one; FSDP gathers and reduces for each.

    Sources: chapter 09 and `traffic.step` for the first three; Narayanan et al., 2021, section 2.2 for 1F1B;
    Korthikanti et al., 2022, section 4.2 for an all-gather and a reduce-scatter in each half of a layer, in either
    direction. Raises `ValueError` for another way, and if the layers of a pipeline do not divide among its ranks.
    """
    if way not in WAYS:
        raise ValueError(f"no way is called {way!r}: there are {', '.join(WAYS)}")
    if min(world_size, layers, parameters, num_micro_batches) < 1:
        raise ValueError("ranks, layers, parameters and micro-batches are at least 1")
    state = at_rest(parameters, world_size, STAGES.get(way, 3)).total
    kept = 1 / world_size / num_micro_batches
    together = world_size > 1
    if way in STAGES:
        times = num_micro_batches if way == "FSDP" else 1
        calls = len(COLLECTIVES[STAGES[way]]) * layers * times
        payloads = step(times * parameters, STAGES[way])
        return Load(together * calls, sent(payloads, world_size), state, kept)
    if way == "pipeline":
        if layers % world_size:
            raise ValueError(f"{layers} layers do not divide into {world_size} equal stages")
        cuts = min(2, world_size - 1)  # of a rank in the middle: one in front of it and one behind it
        return Load(cuts * num_micro_batches, cuts * cut, state, min(world_size, num_micro_batches) * kept)
    payloads = {"all_gather": 4 * layers * cut, "reduce_scatter": 4 * layers * cut}
    return Load(together * 8 * layers * num_micro_batches, sent(payloads, world_size), state, kept)
