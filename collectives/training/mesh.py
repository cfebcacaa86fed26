"""Ranks as a grid with named axes: who talks to whom along each, what a step of training sends there, what that costs.

    mesh = Mesh(dp=2, tp=2)                         # ranks 0 to 3, row by row: the last axis holds neighbours
    mesh.groups("tp")                               # [[0, 1], [2, 3]]
    mesh.groups("dp")                               # [[0, 2], [1, 3]]
    together(mesh, "dp", ring.all_reduce)           # a schedule for all four: both groups at the same time

A topology fills its nodes with ranks in order, and a mesh numbers them row by row: so the *order* of the axes is the
placement. Groups along the last axis are neighbours, in one node if it is no longer than that; along the first axis
they lie as far apart as they can.

Axes are called as in the field: "tp" (tensor parallel), "pp" (pipeline), "dp" (data parallel), and for HSDP "shard" and
"replicate" in place of "dp".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from operator import index
from typing import NamedTuple

import numpy as np

from .. import price
from ..contracts import Contract, ContractError
from ..price import Cost
from ..schedule import Schedule, ScheduleError, Step
from ..topology import Topology
from . import shardings, timeline, traffic

Algorithm = Callable[[int], Schedule]


class Mesh:
    """Ranks as a grid: `sizes` by axis, the outermost first, numbered row by row so that the last axis goes fastest.

    `axes`: their names, in order. `sizes`: {axis: how many}. `world_size`: of all ranks. `grid`: int [*sizes], the rank
    at each place. Raises `ValueError` for no axes or a size below 1.
    """

    def __init__(self, **sizes: int):
        if not sizes:
            raise ValueError("a mesh has at least one axis, such as Mesh(dp=2, tp=2)")
        for axis, size in sizes.items():
            if not isinstance(size, int | np.integer) or size < 1:
                raise ValueError(f"axis {axis!r} is at least 1 rank long, not {size!r}")
        self.sizes: Mapping[str, int] = {axis: int(size) for axis, size in sizes.items()}
        self.axes = tuple(sizes)
        self.world_size = math.prod(self.sizes.values())
        self.grid = np.arange(self.world_size).reshape(*self.sizes.values())

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{axis}={size}' for axis, size in self.sizes.items())})"

    def size(self, axis: str) -> int:
        """How many ranks a group along `axis` has; 1 for an axis that this mesh does not have."""
        return self.sizes.get(axis, 1)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where `rank` is: {axis: index along it}."""
        if not 0 <= index(rank) < self.world_size:
            raise ValueError(f"rank {rank} is not one of the {self.world_size} of {self}")
        place = np.unravel_index(rank, self.grid.shape)
        return dict(zip(self.axes, map(int, place), strict=True))

    def rank(self, **coordinates: int) -> int:
        """The rank at a place, given by an index along every axis."""
        if set(coordinates) != set(self.axes):
            raise ValueError(f"a place in {self} has an index along {', '.join(self.axes)}: not {coordinates}")
        for axis, place in coordinates.items():
            if place not in range(self.sizes[axis]):
                raise ValueError(f"{axis}={place} is outside {self}")
        return int(self.grid[tuple(coordinates[axis] for axis in self.axes)])

    def groups(self, *axes: str) -> list[list[int]]:
        """The ranks that differ along `axes` alone, a list for each group; every rank is in one of them.

        With several axes a group is all of a plane: `groups("replicate", "shard")` are those that data-parallel
        training sums its loss over.
        """
        unknown = [axis for axis in axes if axis not in self.sizes]
        if unknown or not axes:
            raise ValueError(f"{self} has the axes {', '.join(self.axes)}, not {', '.join(unknown) or 'none'}")
        chosen = [n for n, axis in enumerate(self.axes) if axis in axes]
        last = np.moveaxis(self.grid, chosen, range(-len(chosen), 0))
        return last.reshape(-1, math.prod(self.sizes[axis] for axis in set(axes))).tolist()

    def orders(self) -> Iterator[Mesh]:
        """The same axes in every order: every placement of this mesh on nodes that are filled rank by rank."""
        return (Mesh(**{axis: self.sizes[axis] for axis in order}) for order in permutations(self.axes))


# --- one schedule in every group --------------------------------------------------------------------------------


def together(mesh: Mesh, axis: str, algorithm: Algorithm) -> Schedule:
    """`algorithm`'s schedule in all groups of `mesh` along `axis` at the same time: a schedule for all its ranks.

    `algorithm`: group size -> Schedule, as `ring.all_reduce`. In a collective that gives every rank a shard, the ranks
    of a group own the chunks in the order of the group.
    """
    schedule = algorithm(mesh.size(axis))
    both = side_by_side(schedule, np.array(mesh.groups(axis)))
    return both if both is schedule else replace(both, name=f"{schedule.name} along {axis}")


def side_by_side(schedule: Schedule, groups: np.ndarray) -> Schedule:
    """One schedule in several groups of ranks at the same time. `groups`: ranks, [groups, schedule.world_size].

    Raises `ValueError` if the groups are of another size, or do not hold each of the ranks 0, 1, ... once.
    """
    times, size = groups.shape
    if size != schedule.world_size:
        raise ValueError(f"{schedule.name} is for {schedule.world_size} ranks: no groups of {size} can run it")
    if not np.array_equal(np.sort(groups, axis=None), np.arange(groups.size)):
        raise ValueError(f"groups hold each of the ranks 0 to {groups.size - 1} once: {groups.tolist()} do not")
    if times == 1 and np.array_equal(groups[0], np.arange(size)):
        return schedule

    def spread(ranks: np.ndarray, before: tuple) -> tuple[np.ndarray, np.ndarray]:
        """(ranks, the same in every group): the very same arrays for a ring's next step, so that it is priced fast."""
        return before if before[0] is ranks else (ranks, groups[:, ranks].ravel())

    def tiled(column: np.ndarray | None) -> np.ndarray | None:
        return None if column is None else np.tile(column, times)

    def steps() -> Iterator[Step]:
        src = dst = (None, None)
        for step in schedule:
            src, dst = spread(step.src, src), spread(step.dst, dst)
            combine = step.combine if isinstance(step.combine, str) else step.combine * times
            columns = tiled(step.chunk), combine, step.phase, tiled(step.into), tiled(step.count)
            yield Step(src[1], dst[1], *columns)

    name = f"{schedule.name}, side by side"
    return Schedule(groups.size, schedule.num_chunks, steps, name, lengths=schedule.lengths)


def within(schedule: Schedule, group: Sequence[int]) -> Schedule:
    """What `schedule` does among the ranks of `group`, as a schedule for them alone: rank `group[i]` is called i.

    Raises `ScheduleError` at the first transfer between one of them and a rank outside.
    """
    group = [index(rank) for rank in group]
    if len(set(group)) < len(group) or not all(0 <= rank < schedule.world_size for rank in group):
        raise ValueError(f"{group} is no group of the ranks 0 to {schedule.world_size - 1}")
    place = np.full(schedule.world_size, -1)
    place[group] = np.arange(len(group))

    def steps() -> Iterator[Step]:
        for number, step in enumerate(schedule):
            mine = place[step.src] >= 0
            for stray in np.flatnonzero(mine != (place[step.dst] >= 0))[:1]:
                src, dst = int(step.src[stray]), int(step.dst[stray])
                raise ScheduleError(f"{schedule.name}, step {number}: {src}→{dst} leaves the group {group}")
            yield _only(step, mine, place)

    return Schedule(len(group), schedule.num_chunks, steps, f"{schedule.name}, among {group}", lengths=schedule.lengths)


def _only(step: Step, mine: np.ndarray, place: np.ndarray) -> Step:
    """The transfers of `step` that are `mine` [num_transfers], between places instead of ranks."""
    combine = step.combine
    if not isinstance(combine, str):
        combine = tuple(one for one, wanted in zip(combine, mine, strict=True) if wanted)
    into, count = (None if column is None else column[mine] for column in (step.into, step.count))
    return Step(place[step.src[mine]], place[step.dst[mine]], step.chunk[mine], combine, step.phase, into, count)


def check(schedule: Schedule, mesh: Mesh, axis: str, contract: Contract) -> None:
    """Return None if `schedule` keeps `contract` in every group of `mesh` along `axis`, and for each group alone.

    Raises `ContractError` that names the first group in which it does not, or `ScheduleError` for a transfer that
    leaves a group or cannot be carried out at all.
    """
    if schedule.world_size != mesh.world_size:
        raise ValueError(f"{schedule.name} is for {schedule.world_size} ranks, {mesh} for {mesh.world_size}")
    schedule.validate()
    for group in mesh.groups(axis):
        try:
            contract.check(within(schedule, group))
        except ContractError as error:
            message = f"along {axis}, among the ranks {group}, which are numbered from 0 here: {error}"
            raise ContractError(message, group[error.rank], error.chunk, error.step, error.wrong) from None


# --- what a step sends along each axis --------------------------------------------------------------------------


def hop(world_size: int) -> Schedule:
    """Every rank but the last sends its buffer to the next: what a pipeline does when all its stages are busy."""
    before = np.arange(world_size - 1)
    step = Step(before, before + 1, np.zeros_like(before), phase="send_recv")
    return Schedule(world_size, 1, lambda: [step] if len(before) else [], "hop")


ALGORITHMS: Mapping[str, Algorithm] = {**shardings.ALGORITHMS, "send_recv": hop}
"""How each collective is carried out here: by rings, the fewest bytes."""


class Sends(NamedTuple):
    """A collective that a rank calls along an axis `times` a step, on full buffers of `num_bytes` each (S)."""

    axis: str
    collective: str
    num_bytes: int
    times: int
    what: str


AXES = ("tp", "pp", "dp", "shard", "replicate")
SUMS_PER_LAYER = 4  # all-reduces of tensor parallelism: attention and MLP, forward and backward
HOPS_PER_MICRO_BATCH = 2  # of a rank inside a pipeline: activations on, their gradients back


def sends(
    mesh: Mesh,
    layers: int,
    hidden: int,
    tokens: int,
    layer_parameters: int | None = None,
    unsplit: int = 0,
    micro_batches: int = 1,
    stage: int = 3,
    itemsize: int = 2,
) -> list[Sends]:
    """What a rank calls in a training step of a transformer of `layers` layers, along each axis of `mesh`.

    `hidden`: the width. `tokens`: of one micro-batch, on one data-parallel rank. `layer_parameters`: of a layer, by
    default 12 hidden². `unsplit`: how many of these every tensor-parallel rank has whole (norms). `micro_batches`: a
    step, for each data-parallel rank. `itemsize`: bytes of a number on the wire.

    - "tp": four all-reduces of activations a layer and micro-batch (Megatron's f and g).
    - "pp": activations to the next stage and gradients back, once a micro-batch, whole on every tensor-parallel rank.
    - "dp": a layer's gradients and parameters as at this `stage` of ZeRO (see `traffic.COLLECTIVES`): stages 0 and 1
      accumulate gradients and reduce them once a step; 2 and 3, which keep a shard alone, reduce them for every
      micro-batch, and stage 3 also gathers parameters twice for each.
    - "shard" and "replicate" in place of "dp" are HSDP: the same along "shard", and what a rank then has of the
      gradients is all-reduced along "replicate", once a step (torch does so for every micro-batch, unless told not to).

    Embeddings and the loss are left out. Axes of one rank send nothing and are left out too. Raises `ValueError` for
    layers that do not divide among stages, for an axis with another name, for dp beside those of HSDP, for HSDP at
    stage 0, which shards nothing, and for a number below 1.
    """
    all_parameters = 12 * hidden**2 if layer_parameters is None else layer_parameters
    counts = dict(hidden=hidden, tokens=tokens, micro_batches=micro_batches, itemsize=itemsize)
    _refuse(mesh, stage, layers, all_parameters, unsplit, **counts)
    hybrid = _is_hybrid(mesh)
    own_layers = layers // mesh.size("pp")
    activations = itemsize * tokens * hidden
    slice_bytes = itemsize * ((all_parameters - unsplit) // mesh.size("tp") + unsplit)
    sums = SUMS_PER_LAYER * own_layers * micro_batches
    found = [
        Sends("tp", "all_reduce", activations, sums, "activations"),
        Sends("pp", "send_recv", activations, HOPS_PER_MICRO_BATCH * micro_batches, "activations"),
    ]
    for collective, what in traffic.COLLECTIVES[stage]:
        again = micro_batches if stage == 3 or (stage, what) == (2, "gradients") else 1
        found.append(Sends("shard" if hybrid else "dp", collective, slice_bytes, own_layers * again, what))
    if hybrid:
        shard = slice_bytes // mesh.size("shard")
        found.append(Sends("replicate", "all_reduce", shard, own_layers, "gradients"))
    return [sent for sent in found if mesh.size(sent.axis) > 1]


def _is_hybrid(mesh: Mesh) -> bool:
    return "shard" in mesh.axes or "replicate" in mesh.axes


def _refuse(mesh: Mesh, stage: int, layers: int, layer_parameters: int, unsplit: int, **counts: int) -> None:
    """Raise `ValueError` for what `sends` cannot know about; `counts`: by name, what is to be 1 at least."""
    if strange := [axis for axis in mesh.axes if axis not in AXES]:
        raise ValueError(f"nothing is known of what is sent along {', '.join(strange)}; axes are {', '.join(AXES)}")
    if _is_hybrid(mesh) and "dp" in mesh.axes:
        raise ValueError(f"{mesh} has dp, and shard or replicate, which take its place")
    if stage not in traffic.COLLECTIVES:
        raise ValueError(f"there is no stage {stage} of ZeRO: it is one of {', '.join(map(str, traffic.COLLECTIVES))}")
    if _is_hybrid(mesh) and stage == 0:
        raise ValueError(f"stage 0 shards nothing, so {mesh} is no mesh for it: call its data-parallel ranks dp")
    for name, count in {"layers": layers, **counts, "layer_parameters": layer_parameters}.items():
        if count < 1:
            raise ValueError(f"{name} is 1 at least, not {count}")
    if not 0 <= unsplit <= layer_parameters:
        raise ValueError(f"unsplit is a part of a layer's {layer_parameters} parameters, not {unsplit}")
    if layers % mesh.size("pp"):
        raise ValueError(f"{layers} layers do not divide among {mesh.size('pp')} stages")


def by_axis(sent: Iterable[Sends]) -> dict[tuple[str, str], tuple[int, int]]:
    """{(axis, collective): (calls, bytes of all their full buffers)}: what `mesh_run` counts on real ranks."""
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for one in sent:
        calls, num_bytes = totals.get((one.axis, one.collective), (0, 0))
        totals[one.axis, one.collective] = calls + one.times, num_bytes + one.times * one.num_bytes
    return totals


# --- what that costs where --------------------------------------------------------------------------------------


def seconds_along(
    mesh: Mesh, axis: str, collective: str, topology: Topology, algorithms: Mapping[str, Algorithm] = ALGORITHMS
) -> timeline.Price:
    """The seconds of one `collective` of so many bytes (S), in all groups along `axis` at the same time.

    All at the same time: groups whose messages leave a node through one NIC wait for each other there.
    """
    if collective not in algorithms:
        raise ValueError(f"no algorithm is given for {collective!r}, only for {', '.join(algorithms)}")
    schedule = together(mesh, axis, algorithms[collective])
    return lambda num_bytes: price(schedule, round(num_bytes), topology).seconds


def seconds(mesh: Mesh, topology: Topology, sent: Iterable[Sends]) -> dict[str, float]:
    """By axis, the seconds that a rank spends a step if nothing hides any of it: {axis: seconds}.

    Rank r of `mesh` is rank r of `topology`, whose nodes are filled in order: the order of the axes is the placement.
    """
    if mesh.world_size != topology.world_size:
        raise ValueError(f"{mesh} has {mesh.world_size} ranks, the topology {topology.world_size}")
    total: dict[str, float] = {}
    for one in sent:
        each = seconds_along(mesh, one.axis, one.collective, topology)(one.num_bytes)
        total[one.axis] = total.get(one.axis, 0.0) + one.times * each
    return total


def leaving(cost: Cost, ranks_per_node: int) -> int:
    """The bytes that leave node 0 in a schedule of this `cost`, if ranks fill nodes of so many in order."""
    left = (moved[(src < ranks_per_node) & (dst >= ranks_per_node)].sum() for src, dst, moved in cost.carried)
    return int(sum(left))
