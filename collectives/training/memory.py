"""The memory that data-parallel training needs on each rank, at every stage of ZeRO.

Source: Rajbhandari et al., “ZeRO: Memory Optimizations Toward Training Trillion Parameter Models”, 2020, section 5. We
count as they do: every parameter has a gradient and an optimizer state, and the stage decides which of the three are
sharded. Activations and buffers come on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

STAGES = {0: "replicated (DDP)", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3 (FSDP)"}


class Recipe(NamedTuple):
    """A training recipe, as bytes per parameter.

    `parameters`: the weights that the layers compute with. `gradients`: one per parameter. `master`: the full-precision
    copy that the optimizer updates, so that rounding doesn't lose small updates; 0 if the parameters are in full
    precision. `moments`: the optimizer's running means; Adam has one of the gradients and one of their squares.
    """

    name: str
    parameters: int
    gradients: int
    master: int
    moments: int

    @property
    def optimizer(self) -> int:
        """Bytes per parameter that only the optimizer needs."""
        return self.master + self.moments


MIXED_ADAM = Recipe("Adam, mixed precision", 2, 2, 4, 4 + 4)
FULL_ADAM = Recipe("Adam, full precision", 4, 4, 0, 4 + 4)
FP32_GRADIENTS = Recipe("Adam, mixed precision, gradients in fp32", 2, 4, 4, 4 + 4)
LEAN_ADAM = Recipe("Adam, mixed precision, moments in bf16", 2, 2, 4, 2 + 2)
MIXED_MOMENTUM = Recipe("SGD with momentum, mixed precision", 2, 2, 4, 4)
RECIPES = (MIXED_ADAM, FULL_ADAM, LEAN_ADAM, MIXED_MOMENTUM, FP32_GRADIENTS)


class Held(NamedTuple):
    """Bytes that one rank holds."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Bytes of all kinds together."""
        return sum(self)


def at_rest(num_parameters: int, world_size: int, stage: int, recipe: Recipe = MIXED_ADAM) -> Held:
    """Return the bytes a rank holds between the backward pass and the update, when all three kinds of state exist.

    `num_parameters`: of a part of the model that is sharded as one. All ranks' shards have equal length; the last one
    is padded. `stage`: from 0 (nothing is sharded) to 3 (everything is). Raises `ValueError` for any other stage.
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
    """Return the elements that each rank keeps of `num_elements`: its share, rounded up."""
    return -(-num_elements // world_size)


def of_units(sizes: Iterable[int], world_size: int, stage: int, recipe: Recipe = MIXED_ADAM) -> Held:
    """Return `at_rest` for a model of units with these parameter counts, each sharded and padded separately."""
    return Held(*map(sum, zip(*(at_rest(size, world_size, stage, recipe) for size in sizes), strict=True)))


def at_peak(units: Sequence[Sequence[int]], world_size: int, stage: int) -> Held:
    """Return the peak bytes of each kind that a rank holds in a step of `sharded`, with Adam in mixed precision.

    `units`: for each unit, in forward order, the element counts of its tensors; their sum must divide by `world_size`.
    Three things come on top of `at_rest`. In stage 3: the full parameters of the computing unit. In the backward pass:
    the full gradients of the unit that is reduced next, plus one tensor's new gradient or the reduced shard. In the
    update: an fp32 copy of a unit's gradients.
    """
    sizes = [sum(unit) for unit in units]
    rest = of_units(sizes, world_size, stage)
    owned = [shard_size(size, world_size) if stage >= 1 else size for size in sizes]
    kept = [shard_size(size, world_size) if stage >= 2 else size for size in sizes]  # gradient elements after reduction
    gradients = []
    for number, unit in enumerate(units):  # later units are reduced already; earlier ones have no gradients yet
        reduced = 2 * sum(kept[number + 1 :])
        arriving = 2 * max(*unit, kept[number] if stage >= 2 else 0)
        gradients.append(reduced + 2 * sizes[number] + arriving)  # in the backward pass
        gradients.append(reduced + 2 * kept[number] + 4 * owned[number])  # in the update
    gathered = 2 * max(sizes) if stage >= 3 else 0
    return rest._replace(parameters=rest.parameters + gathered, gradients=max(gradients))
