"""Five ways to distribute training, side by side: how often a rank waits, what it sends, and what it holds in a step.

    load("pipeline", world_size=8, layers=32, parameters=8 * 10**9, cut=2**28, num_micro_batches=16)

Each way stands alone, in its simplest form: equal layers, each reduced or gathered as one unit, 1F1B with one stage a
rank, bf16 with Adam in mixed precision. `planner` covers links, overlap and combinations.
"""

from __future__ import annotations

from typing import NamedTuple

from .memory import at_rest
from .traffic import COLLECTIVES, sent, step

STAGES = {"DDP": 0, "ZeRO-1": 1, "FSDP": 3}
"""The ways that divide the batch among ranks, with their stage of ZeRO."""

WAYS = (*STAGES, "pipeline", "tensor + sequence")


class Load(NamedTuple):
    """A rank's load in one step; for a pipeline, the largest of any rank.

    `waits`: how often the rank waits for others, that is, its collectives or received messages. `sent`: bytes. `state`:
    bytes of parameters, gradients and optimizer state between backward pass and update. `activations`: the peak that it
    keeps, as a fraction of the activations of all layers for the whole batch.
    """

    waits: int
    sent: float
    state: float
    activations: float


def load(
    way: str,
    world_size: int,
    layers: int,
    parameters: int,
    cut: int,
    num_micro_batches: int = 1,
    kept_whole: float = 0,
) -> Load:
    """Return the load of each of `world_size` ranks that train equal layers in this way.

    `parameters`: of all layers together. `cut`: bytes of the activations between two
    layers for the whole batch: tokens times width times 2. `num_micro_batches`: how many
    micro-batches a rank makes of its part of the batch, which is all of it unless the way
    divides the batch. DDP and ZeRO-1 reduce gradients after the last one; FSDP gathers
    and reduces for each. `kept_whole`: the share of the activations that tensor-parallel
    ranks keep whole, their gathered inputs. At 0 they gather these again in the backward
    pass, as in Megatron-LM.

    Sources: chapter 09 and `traffic.step` for the first three; Narayanan et al., 2021,
    section 2.2 for 1F1B; Korthikanti et al., 2022, section 4.2 for an all-gather and a
    reduce-scatter in each half of a layer, in both directions, and one more all-gather
    backward. Raises `ValueError` for an unknown way, a number below 1, and a pipeline
    whose layers don't divide among the ranks.
    """
    if way not in WAYS:
        raise ValueError(f"unknown way {way!r}: choose from {', '.join(WAYS)}")
    if min(world_size, layers, parameters, num_micro_batches) < 1:
        raise ValueError("world_size, layers, parameters, num_micro_batches: 1 or more")
    state = at_rest(parameters, world_size, STAGES.get(way, 3)).total
    kept = 1 / world_size / num_micro_batches
    communicates = world_size > 1
    if way in STAGES:
        times = num_micro_batches if way == "FSDP" else 1
        calls = len(COLLECTIVES[STAGES[way]]) * layers * times
        payloads = step(times * parameters, STAGES[way])
        return Load(communicates * calls, sent(payloads, world_size), state, kept)
    if way == "pipeline":
        if layers % world_size:
            raise ValueError(f"{layers} layers do not divide among {world_size} stages")
        cuts = min(2, world_size - 1)  # one before and one after a rank in the middle
        kept *= min(world_size, num_micro_batches)
        return Load(cuts * num_micro_batches, cuts * cut, state, kept)
    gathers = 4 if kept_whole else 6
    payloads = {"all_gather": gathers * layers * cut, "reduce_scatter": 4 * layers * cut}
    calls = communicates * (gathers + 4) * layers * num_micro_batches
    kept += kept_whole * (1 / num_micro_batches - kept)
    return Load(calls, sent(payloads, world_size), state, kept)
