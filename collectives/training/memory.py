"""What a rank must hold to train a model by data parallelism, at every stage of ZeRO.

The stages are those of Rajbhandari et al., “ZeRO: Memory Optimizations Toward Training Trillion Parameter Models”,
2020, section 5, counted as there: every parameter has a gradient and an optimizer's state, and a stage says which of
the three are sharded. Activations and buffers come on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

STAGES = {0: "replicated (DDP)", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3 (FSDP)"}


class Recipe(NamedTuple):
    """How a model is trained, as the bytes that each parameter costs.

    `parameters`: what the layers compute with. `gradients`: one for each. `master`: the copy in full precision that
    the optimizer updates, lest small updates are rounded away; 0 where the parameters are in full precision.
    `moments`: what the optimizer remembers; for Adam a mean of the gradients and one of their squares.
    """

    name: str
    parameters: int
    gradients: int
    master: int
    moments: int

    @property
    def optimizer(self) -> int:
        """Bytes a parameter of all that only the optimizer needs."""
        return self.master + self.moments


MIXED_ADAM = Recipe("Adam, mixed precision", 2, 2, 4, 4 + 4)
FULL_ADAM = Recipe("Adam, full precision", 4, 4, 0, 4 + 4)
LEAN_ADAM = Recipe("Adam, mixed precision, moments in bf16", 2, 2, 4, 2 + 2)
MIXED_MOMENTUM = Recipe("SGD with momentum, mixed precision", 2, 2, 4, 4)
RECIPES = (MIXED_ADAM, FULL_ADAM, LEAN_ADAM, MIXED_MOMENTUM)


class Held(NamedTuple):
    """Bytes that one rank holds."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def at_rest(num_parameters: int, world_size: int, stage: int, recipe: Recipe = MIXED_ADAM) -> Held:
    """What a rank holds between the backward pass and the update, where all three kinds of state exist.

    `num_parameters`: of a part of the model that is sharded as one; the shards of all `world_size` ranks are equally
    long, the last one padded. `stage`: 0 (nothing is sharded) to 3 (everything is). Raises `ValueError` for another.
    """
    if stage not in STAGES:
        raise ValueError(f"there is no stage {stage} of ZeRO: it is one of {', '.join(map(str, STAGES))}")
    shard = shard_size(num_parameters, world_size)
    return Held(
        parameters=recipe.parameters * (shard if stage >= 3 else num_parameters),
        gradients=recipe.gradients * (shard if stage >= 2 else num_parameters),
        optimizer=recipe.optimizer * (shard if stage >= 1 else num_parameters),
    )


def shard_size(num_elements: int, world_size: int) -> int:
    """How many elements each rank keeps of `num_elements`: their share, rounded up."""
    return -(-num_elements // world_size)


def of_units(sizes: Iterable[int], world_size: int, stage: int, recipe: Recipe = MIXED_ADAM) -> Held:
    """As `at_rest`, of a model in units of so many parameters, each of which is sharded and padded by itself."""
    return Held(*map(sum, zip(*(at_rest(size, world_size, stage, recipe) for size in sizes), strict=True)))


def at_peak(units: Sequence[Sequence[int]], world_size: int, stage: int) -> Held:
    """The most that a rank holds of each kind in a step of `sharded`, with Adam in mixed precision.

    `units`: for each, in the order of the forward pass, how many elements each of its tensors has; together they
    divide by `world_size`. Three things come on top of what is held at rest: in stage 3 the parameters of the unit that
    computes; in the backward pass the full gradients of the unit that is about to be reduced, with one tensor's that
    has just arrived or the shard that is left of them; in the update an fp32 copy of a unit's gradients.
    """
    sizes = [sum(unit) for unit in units]
    rest = of_units(sizes, world_size, stage)
    owned = [shard_size(size, world_size) if stage >= 1 else size for size in sizes]
    kept = [shard_size(size, world_size) if stage >= 2 else size for size in sizes]  # of the gradients
    gradients = []
    for number, unit in enumerate(units):  # those behind this one are reduced already, those before have none yet
        behind = 2 * sum(kept[number + 1 :])
        arriving = 2 * max(*unit, kept[number] if stage >= 2 else 0)
        gradients.append(behind + 2 * sizes[number] + arriving)  # in the backward pass
        gradients.append(behind + 2 * kept[number] + 4 * owned[number])  # in the update
    gathered = 2 * max(sizes) if stage >= 3 else 0
    return rest._replace(parameters=rest.parameters + gathered, gradients=max(gradients))
