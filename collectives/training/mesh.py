"""Ranks as a grid with named axes: the groups along each axis, what a training step sends there, and what that costs.

    mesh = Mesh(dp=2, tp=2)                         # ranks 0 to 3, row by row: the last axis holds neighbours
    mesh.groups("tp")                               # [[0, 1], [2, 3]]
    mesh.groups("dp")                               # [[0, 2], [1, 3]]
    together(mesh, "dp", ring.all_reduce)           # one schedule for all four ranks: both groups at the same time

A topology fills its nodes with ranks in order, and a mesh numbers ranks row by row, so the *order* of the axes is the
placement. Groups along the last axis are neighbours, and share a node if they fit in one. Groups along the first axis
are spread as far apart as possible.

The axes have their usual names: "tp" (tensor parallel), "cp" (context parallel), "pp" (pipeline), "dp" (data
parallel), and for HSDP "shard" and "replicate" in place of "dp". "dp+cp" is the plane of both: ranks that differ in
either index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from operator import index
from typing import NamedTuple

import numpy as np

from .. import network, price
from ..contracts import Contract, ContractError
from ..machines import Cluster, Part
from ..price import Cost
from ..schedule import Schedule, ScheduleError, Step
from ..topology import Topology
from . import shardings, timeline, traffic

Algorithm = Callable[[int], Schedule]


class Mesh:
    """A grid of ranks, numbered row by row: the first axis is the outermost, the last one varies fastest.

    `axes`: the names, in order. `sizes`: {axis: number of ranks along it}. `world_size`: the number of all ranks.
    `grid`: int [*sizes], the rank at each place. Raises `ValueError` for no axes or a size below 1.
    """

    def __init__(self, **sizes: int):
        if not sizes:
            raise ValueError("a mesh needs at least one axis, such as Mesh(dp=2, tp=2)")
        for axis, size in sizes.items():
            if not isinstance(size, int | np.integer) or size < 1:
                raise ValueError(f"axis {axis!r} must be at least 1 rank long, not {size!r}")
        self.sizes: Mapping[str, int] = {axis: int(size) for axis, size in sizes.items()}
        self.axes = tuple(sizes)
        self.world_size = math.prod(self.sizes.values())
        self.grid = np.arange(self.world_size).reshape(*self.sizes.values())

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{axis}={size}' for axis, size in self.sizes.items())})"

    def size(self, axis: str) -> int:
        """Return the number of ranks in a group along `axis`: 1 for an axis that this mesh doesn't have."""
        return math.prod(self.sizes.get(name, 1) for name in axis.split("+"))

    def stride(self, axis: str) -> int:
        """Return how far apart neighbours along `axis` are in rank: the sizes of all axes after it, multiplied."""
        if axis not in self.sizes:
            raise ValueError(f"{self} has the axes {', '.join(self.axes)}, not {axis}")
        return math.prod(self.sizes[inner] for inner in self.axes[self.axes.index(axis) + 1 :])

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the place of `rank`: {axis: index along it}."""
        if not 0 <= index(rank) < self.world_size:
            raise ValueError(f"rank {rank} is not one of the {self.world_size} ranks of {self}")
        place = np.unravel_index(rank, self.grid.shape)
        return dict(zip(self.axes, map(int, place), strict=True))

    def rank(self, **coordinates: int) -> int:
        """Return the rank at a place, given by an index along every axis."""
        if set(coordinates) != set(self.axes):
            raise ValueError(f"a place in {self} needs an index along {', '.join(self.axes)}, not {coordinates}")
        for axis, place in coordinates.items():
            if place not in range(self.sizes[axis]):
                raise ValueError(f"{axis}={place} is outside {self}")
        return int(self.grid[tuple(coordinates[axis] for axis in self.axes)])

    def groups(self, *axes: str) -> list[list[int]]:
        """Return the groups along `axes`: lists of ranks that differ only in these coordinates.

        Every rank is in exactly one group. With several axes a group is a whole plane: data-parallel training under
        HSDP sums its loss over `groups("replicate", "shard")`, or `groups("replicate+shard")`.
        """
        axes = tuple(name for axis in axes for name in axis.split("+"))
        unknown = [axis for axis in axes if axis not in self.sizes]
        if unknown or not axes:
            raise ValueError(f"{self} has the axes {', '.join(self.axes)}, not {', '.join(unknown) or 'none'}")
        chosen = [n for n, axis in enumerate(self.axes) if axis in axes]
        last = np.moveaxis(self.grid, chosen, range(-len(chosen), 0))
        return last.reshape(-1, math.prod(self.sizes[axis] for axis in set(axes))).tolist()

    def orders(self) -> Iterator[Mesh]:
        """Yield this mesh with its axes in every order: every placement of it on nodes that ranks fill in order."""
        return (Mesh(**{axis: self.sizes[axis] for axis in order}) for order in permutations(self.axes))


# --- one schedule in every group --------------------------------------------------------------------------------


def together(mesh: Mesh, axis: str, algorithm: Algorithm) -> Schedule:
    """Return a schedule for all ranks of `mesh` that runs `algorithm` in all groups along `axis` at the same time.

    `algorithm`: group size -> Schedule, such as `ring.all_reduce`. If the collective leaves each rank a shard, the
    ranks of a group own the chunks in the group's order.
    """
    schedule = algorithm(mesh.size(axis))
    combined = side_by_side(schedule, np.array(mesh.groups(axis)))
    return combined if combined is schedule else replace(combined, name=f"{schedule.name} along {axis}")


def side_by_side(schedule: Schedule, groups: np.ndarray) -> Schedule:
    """Return one schedule that runs `schedule` in several groups at once. `groups`: ranks, [groups, group size].

    Raises `ValueError` if the groups don't have `schedule.world_size` ranks each, or don't hold each of the ranks
    0, 1, ... exactly once.
    """
    num_groups, size = groups.shape
    if size != schedule.world_size:
        raise ValueError(f"{schedule.name} is for {schedule.world_size} ranks: groups of {size} can't run it")
    if not np.array_equal(np.sort(groups, axis=None), np.arange(groups.size)):
        raise ValueError(f"groups must hold each of the ranks 0 to {groups.size - 1} once, not {groups.tolist()}")
    if num_groups == 1 and np.array_equal(groups[0], np.arange(size)):
        return schedule

    def spread(ranks: np.ndarray, before: tuple) -> tuple[np.ndarray, np.ndarray]:
        """Return (ranks, those ranks in every group), reusing `before` if it fits: identical arrays price faster."""
        return before if before[0] is ranks else (ranks, groups[:, ranks].ravel())

    def tiled(column: np.ndarray | None) -> np.ndarray | None:
        return None if column is None else np.tile(column, num_groups)

    def steps() -> Iterator[Step]:
        src: tuple = (None, None)
        dst = src
        for step in schedule:
            src, dst = spread(step.src, src), spread(step.dst, dst)
            combine = step.combine if isinstance(step.combine, str) else step.combine * num_groups
            columns = np.tile(step.chunk, num_groups), combine, step.phase, tiled(step.into), tiled(step.count)
            yield Step(src[1], dst[1], *columns)

    name = f"{schedule.name}, side by side"
    return Schedule(groups.size, schedule.num_chunks, steps, name, lengths=schedule.lengths)


def within(schedule: Schedule, group: Sequence[int]) -> Schedule:
    """Return the part of `schedule` among the ranks of `group`, renumbered: rank `group[i]` becomes rank i.

    The steps raise `ScheduleError` at the first transfer between the group and a rank outside it. Raises `ValueError`
    for a repeated or unknown rank.
    """
    group = [index(rank) for rank in group]
    if len(set(group)) < len(group) or not all(0 <= rank < schedule.world_size for rank in group):
        raise ValueError(f"{group} is not a group of the ranks 0 to {schedule.world_size - 1}")
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
    """Return the transfers of `step` that the mask `mine` [num_transfers] selects, between places instead of ranks."""
    combine = step.combine
    if not isinstance(combine, str):
        combine = tuple(how for how, selected in zip(combine, mine, strict=True) if selected)
    into, count = (None if column is None else column[mine] for column in (step.into, step.count))
    return Step(place[step.src[mine]], place[step.dst[mine]], step.chunk[mine], combine, step.phase, into, count)


def check(schedule: Schedule, mesh: Mesh, axis: str, contract: Contract) -> None:
    """Check that `schedule` keeps `contract` within every group of `mesh` along `axis`.

    Raises `ContractError` that names the first group that breaks it, and `ScheduleError` for a transfer that is invalid
    or leaves its group.
    """
    if schedule.world_size != mesh.world_size:
        raise ValueError(f"{schedule.name} is for {schedule.world_size} ranks, {mesh} for {mesh.world_size}")
    schedule.validate()
    for group in mesh.groups(axis):
        try:
            contract.check(within(schedule, group))
        except ContractError as error:
            message = f"along {axis}, among the ranks {group}, here numbered from 0: {error}"
            raise ContractError(message, group[error.rank], error.chunk, error.step, error.wrong) from None


# --- what a step sends along each axis --------------------------------------------------------------------------


def hop(world_size: int) -> Schedule:
    """Return the schedule in which every rank but the last sends its buffer to the next, as a full pipeline does."""
    before = np.arange(world_size - 1)
    step = Step(before, before + 1, np.zeros_like(before), phase="send_recv")
    return Schedule(world_size, 1, lambda: [step] if len(before) else [], "hop")


ALGORITHMS: Mapping[str, Algorithm] = {**shardings.ALGORITHMS, "send_recv": hop}
"""The algorithm behind each collective here: rings, which send the fewest bytes."""


class Sends(NamedTuple):
    """A collective that a rank calls along `axis`, `times` per training step, on full buffers of `num_bytes` (S).

    `what`: the payload, such as "gradients".
    """

    axis: str
    collective: str
    num_bytes: int
    times: int
    what: str


AXES = ("tp", "cp", "pp", "dp", "shard", "replicate")
SUMS_PER_LAYER = 4  # tensor-parallel all-reduces: attention and MLP, forward and backward
HOPS_PER_MICRO_BATCH = 2  # sends of a rank inside a pipeline: activations forward, gradients back


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
    gradient_itemsize: int | None = None,
    kv_width: int | None = None,
    sequence_parallel: bool = False,
    interleave: int = 1,
) -> list[Sends]:
    """Return the collectives that a rank calls in one training step of a transformer, along each axis of `mesh`.

    `hidden`: the model's width. `tokens`: per micro-batch and data-parallel index, for all its "cp" ranks together.
    `layer_parameters`: per layer, 12 hidden² by default. `unsplit`: how many of these tensor parallelism doesn't split
    (norms). `micro_batches`: per step and data-parallel index. `itemsize`: bytes per number on the wire.
    `gradient_itemsize`: bytes of a gradient that data parallelism reduces, by default `itemsize`; 4 for recipes that
    reduce in fp32, such as Llama 3's. `kv_width`: numbers per token that other tokens attend to, by default 2 hidden;
    fewer with grouped-query attention. `interleave`: stages per pipeline rank.

    - "tp": four all-reduces of activations per layer and micro-batch (Megatron's f and g). With `sequence_parallel`
      each is a reduce-scatter and an all-gather.
    - "cp": per layer and micro-batch, keys and values are gathered in both passes and their gradients reduce-scattered.
    - "pp": activations to the next stage and gradients back, once per micro-batch and stage of the rank: whole on every
      tensor-parallel rank, or its part of them with `sequence_parallel`.
    - "dp": a layer's gradients and parameters as at this `stage` of ZeRO (see `traffic.COLLECTIVES`). Stages 0 and 1
      accumulate gradients and reduce them once a step. Stages 2 and 3 keep only a shard, so they reduce for every
      micro-batch, and stage 3 also gathers the parameters twice for each. Ranks along "cp" hold the same parameters, so
      with "cp" these run along "dp+cp".
    - "shard" and "replicate" in place of "dp" are HSDP: the same collectives run along "shard", and each gradient shard
      is all-reduced along "replicate" once a step. (By default torch does so for every micro-batch.)

    Embeddings, the loss, and axes of one rank are left out. Raises `ValueError` for layers that don't divide among the
    stages, for tokens that don't divide among the "cp" ranks, for an unknown axis, for "dp" next to HSDP's axes, for
    HSDP at stage 0, which shards nothing, and for a number below 1.
    """
    all_parameters = 12 * hidden**2 if layer_parameters is None else layer_parameters
    widths = {"parameters": itemsize, "gradients": itemsize if gradient_itemsize is None else gradient_itemsize}
    counts = dict(hidden=hidden, tokens=tokens, micro_batches=micro_batches, itemsize=itemsize, interleave=interleave)
    counts |= {"gradient_itemsize": widths["gradients"], "kv_width": 2 * hidden if kv_width is None else kv_width}
    _refuse(mesh, stage, layers, all_parameters, unsplit, **counts)
    own_layers = layers // mesh.size("pp")
    activations = itemsize * tokens * hidden // mesh.size("cp")
    own_parameters = (all_parameters - unsplit) // mesh.size("tp") + unsplit
    sums = SUMS_PER_LAYER * own_layers * micro_batches
    halves = ("reduce_scatter", "all_gather") if sequence_parallel else ("all_reduce",)
    calls = [Sends("tp", half, activations, sums, "activations") for half in halves]

    keys = itemsize * tokens * counts["kv_width"] // mesh.size("tp")
    calls.append(Sends("cp", "all_gather", keys, 2 * own_layers * micro_batches, "keys and values"))
    calls.append(Sends("cp", "reduce_scatter", keys, own_layers * micro_batches, "their gradients"))

    message = activations // mesh.size("tp") if sequence_parallel else activations
    calls.append(Sends("pp", "send_recv", message, HOPS_PER_MICRO_BATCH * interleave * micro_batches, "activations"))

    data = "+".join(axis for axis in ("dp", "shard", "cp") if axis in mesh.axes) or "dp"
    for collective, what in traffic.COLLECTIVES[stage]:
        again = micro_batches if stage == 3 or (stage, what) == (2, "gradients") else 1
        calls.append(Sends(data, collective, widths[what] * own_parameters, own_layers * again, what))
    if _is_hybrid(mesh):
        shard = widths["gradients"] * own_parameters // mesh.size(data)
        calls.append(Sends("replicate", "all_reduce", shard, own_layers, "gradients"))
    return [call for call in calls if mesh.size(call.axis) > 1]


def _is_hybrid(mesh: Mesh) -> bool:
    return "shard" in mesh.axes or "replicate" in mesh.axes


def _refuse(mesh: Mesh, stage: int, layers: int, layer_parameters: int, unsplit: int, **counts: int) -> None:
    """Raise `ValueError` for arguments that `sends` can't handle. `counts`: name -> number, at least 1."""
    if unknown := [axis for axis in mesh.axes if axis not in AXES]:
        raise ValueError(f"unknown axis {', '.join(unknown)}: the axes of a training step are {', '.join(AXES)}")
    if _is_hybrid(mesh) and "dp" in mesh.axes:
        raise ValueError(f"{mesh} has dp, and shard or replicate, which take its place: drop one or the other")
    if stage not in traffic.COLLECTIVES:
        raise ValueError(f"there is no stage {stage} of ZeRO: it is one of {', '.join(map(str, traffic.COLLECTIVES))}")
    if _is_hybrid(mesh) and stage == 0:
        raise ValueError(f"stage 0 shards nothing, so {mesh} doesn't fit it: call its data-parallel axis dp")
    for name, count in {"layers": layers, **counts, "layer_parameters": layer_parameters}.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, not {count}")
    if not 0 <= unsplit <= layer_parameters:
        raise ValueError(f"unsplit must be between 0 and the layer's {layer_parameters} parameters, not {unsplit}")
    if layers % mesh.size("pp"):
        raise ValueError(f"{layers} layers do not divide among {mesh.size('pp')} stages")
    if counts["tokens"] % mesh.size("cp"):
        raise ValueError(f"{counts['tokens']} tokens do not divide among {mesh.size('cp')} context-parallel ranks")


def by_axis(sent: Iterable[Sends]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return {(axis, collective): (calls, bytes of all their full buffers)}, which `mesh_run` counts on real ranks."""
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for call in sent:
        calls, num_bytes = totals.get((call.axis, call.collective), (0, 0))
        totals[call.axis, call.collective] = calls + call.times, num_bytes + call.times * call.num_bytes
    return totals


def bytes_along(mesh: Mesh, sent: Iterable[Sends]) -> dict[str, float]:
    """Return {axis: bytes that a rank sends in a step}, all collectives as rings."""
    total: dict[str, float] = {}
    for call in sent:
        once = {call.collective: call.num_bytes}
        each = call.num_bytes if call.collective == "send_recv" else traffic.sent(once, mesh.size(call.axis))
        total[call.axis] = total.get(call.axis, 0.0) + call.times * each
    return total


# --- what that costs where --------------------------------------------------------------------------------------


def seconds_along(
    mesh: Mesh,
    axis: str,
    collective: str,
    machine: Topology | Cluster,
    algorithms: Mapping[str, Algorithm] = ALGORITHMS,
) -> timeline.Price:
    """Return a function from bytes (S) to the seconds of one `collective` in all groups along `axis` at once.

    The groups run at the same time, so those that leave a node share its network cards. On a topology a group runs one
    of `algorithms`, by default a single ring, message by message. On a cluster it runs what NCCL takes: a ring for each
    card that its ranks have, a tree, or the switch's sums (see `collectives.network`). Raises `ValueError` for a
    collective without an algorithm.
    """
    if isinstance(machine, Cluster):
        part = cluster_of(mesh, axis, machine)
        return lambda num_bytes: network.choose(collective, num_bytes, part).seconds
    if collective not in algorithms:
        raise ValueError(f"no algorithm is given for {collective!r}, only for {', '.join(algorithms)}")
    schedule = together(mesh, axis, algorithms[collective])
    return lambda num_bytes: price(schedule, round(num_bytes), machine).seconds


def cluster_of(mesh: Mesh, axis: str, cluster: Cluster) -> Part:
    """Return the part of `cluster` that one group along `axis` has to itself while all groups communicate.

    A group with L of a node's G ranks gets L/G of the node's network cards, or of the rate of one that they share.
    Raises `ValueError` if the mesh has another number of ranks, or if nodes hold different numbers of a group's ranks.
    """
    _check_size(mesh, cluster)
    in_node = [
        np.unique(np.array(group) // cluster.gpus_per_node, return_counts=True)[1] for group in mesh.groups(axis)
    ]
    sizes = np.unique(np.concatenate(in_node))
    if len(sizes) > 1:
        raise ValueError(f"groups along {axis} of {mesh} lie unevenly on nodes of {cluster.gpus_per_node} ranks")
    return cluster.part(int(sizes[0]), len(in_node[0]))


def seconds(mesh: Mesh, machine: Topology | Cluster, sent: Iterable[Sends]) -> dict[str, float]:
    """Return {axis: seconds} that a rank communicates in a step if compute hides nothing.

    Rank r of `mesh` is rank r of `machine`, whose nodes fill in order: the order of the axes is the placement. How
    collectives run there: see `seconds_along`.
    """
    _check_size(mesh, machine)
    total: dict[str, float] = {}
    for call in sent:
        seconds_per_call = seconds_along(mesh, call.axis, call.collective, machine)(call.num_bytes)
        total[call.axis] = total.get(call.axis, 0.0) + call.times * seconds_per_call
    return total


def _check_size(mesh: Mesh, machine: Topology | Cluster) -> None:
    if mesh.world_size != machine.world_size:
        raise ValueError(
            f"{mesh} has {mesh.world_size} ranks, the {type(machine).__name__.lower()} {machine.world_size}"
        )


def leaving(cost: Cost, ranks_per_node: int) -> int:
    """Return the bytes that leave node 0 in a schedule of this `cost`, if ranks fill nodes of `ranks_per_node`."""
    left = (moved[(src < ranks_per_node) & (dst >= ranks_per_node)].sum() for src, dst, moved in cost.carried)
    return int(sum(left))
