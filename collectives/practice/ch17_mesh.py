"""Checks for exercise 17: a rank's place on a mesh, what it holds and sends along each axis, and the order of axes.

The reference values come from the library: `training.mesh.Mesh` for coordinates, schedules for bytes, and prices over
two levels of links for seconds. In part b a sum shows which ranks are in it: rank r adds 10 to the power r.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from random import Random
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from .. import topology
from ..ranks import PerRank
from ..topology import Link
from ..training import mesh as library
from ..training.mesh import Mesh
from .checks import (
    Answered,
    NotYet,
    answer,
    check_formula,
    check_rows,
    counted,
    generator,
    number_of,
    own_answer,
    refusing,
    refusing_functions,
)
from .on_ranks import run_on_ranks, stand_ins, witnessed, witnessed_terms

Sizes = Mapping[str, int]  # of the axes of a mesh, outermost first: {"dp": 2, "tp": 4}
Groups = Mapping[str, list[list[int]]]  # the ranks of every group of every axis
At = Mapping[str, int]  # a rank's coordinates: its index on each axis


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, to name coordinates and groups by the library's mesh, or to count by the checks."""
    counts = held, sends, calls, leaves, seconds, seconds_along, library.sends, library.seconds_along
    with refusing(Mesh, "coordinates", "groups", what="Mesh"), refusing_functions(*counts):
        yield


def _asked(function: Callable, *args: Any) -> tuple[str, Any]:
    """Return the call in words, with all its arguments, and what it returns."""
    call = f"{function.__name__}({', '.join(map(repr, args))})"
    return call, own_answer(__name__, function, *copy.deepcopy(args), call=call)


# Part a: the numbers of the ranks


def check_coordinates(function: Callable, cases: Iterable[Sizes]) -> None:
    """Check that `function(rank, sizes)` returns the coordinates of every rank of every mesh."""
    fault, turned = "", True
    for sizes in cases:
        mesh = Mesh(**sizes)
        for rank in range(mesh.world_size):
            call, result = _asked(function, rank, dict(sizes))
            got, want = _indices(result, sizes, call), dict(mesh.coordinates(rank))
            turned = turned and got == _first_axis_fastest(rank, sizes)
            wrong = next((axis for axis in sizes if got[axis] != want[axis]), None)
            if wrong and not fault:
                fault = f"{call} returns index {got[wrong]} along {wrong!r}; rank {rank} has index {want[wrong]} there"
                if not 0 <= got[wrong] < sizes[wrong]:
                    fault += f" (that axis has the indices 0 to {sizes[wrong] - 1})"
    if fault:
        slip = ". In all your answers the first axis moves fastest; it should be the last one" if turned else ""
        raise NotYet(fault + slip)


def _indices(result: Any, sizes: Sizes, call: str) -> dict[str, int]:
    if not isinstance(result, Mapping):
        raise NotYet(f"{call} returns {brief(result)}; return a dictionary {{axis: index}}")
    if set(result) != set(sizes):
        raise NotYet(f"{call} has the axes {_listed(result)}; they are {_listed(sizes)}")
    return {axis: _whole(result[axis], f"{call}: its {axis!r}") for axis in sizes}


def _whole(result: Any, what: str) -> int:
    number = number_of(result, what)
    if number != int(number):
        raise NotYet(f"{what} is {number:g}; it should be a whole number (`//` divides without a remainder)")
    return int(number)


def _first_axis_fastest(rank: int, sizes: Sizes) -> dict[str, int]:
    """Return a rank's coordinates if the first axis moved fastest."""
    indices = {}
    for axis, size in sizes.items():
        rank, indices[axis] = divmod(rank, size)
    return indices


def check_groups(function: Callable, cases: Iterable[tuple[str, Sizes]]) -> None:
    """Check that `function(axis, sizes)` returns the ranks of every group along `axis`, groups in any order."""
    for axis, sizes in cases:
        call, result = _asked(function, axis, dict(sizes))
        mesh = Mesh(**sizes)
        groups = _rank_lists(result, call)
        want = [list(group) for group in mesh.groups(axis)]
        if sorted(groups) != sorted(want):
            raise NotYet(f"{call}: {_wrong_groups(groups, axis, mesh, sizes)}")


def _rank_lists(result: Any, call: str) -> list[list[int]]:
    listed = list(result) if isinstance(result, Iterable) and not isinstance(result, str | Mapping) else None
    if listed is None or not all(isinstance(group, Iterable) and not isinstance(group, str) for group in listed):
        raise NotYet(f"{call} returns {brief(result)}; return a list of lists of ranks")
    return [[_whole(rank, f"{call}: a rank") for rank in group] for group in listed]


def _wrong_groups(groups: list[list[int]], axis: str, mesh: Mesh, sizes: Sizes) -> str:
    """Return what is wrong with the first rank that is in no group or in a wrong one, in words."""
    for other in sizes:
        if other != axis and sorted(groups) == sorted(map(list, mesh.groups(other))):
            return f"these are the groups along {other!r}"
    want = {rank: list(group) for group in mesh.groups(axis) for rank in group}
    for rank in range(mesh.world_size):
        mine = [group for group in groups if rank in group]
        if len(mine) != 1:
            return f"rank {rank} is in {len(mine) or 'no'} group{'s' * (len(mine) > 1)}; every rank is in exactly one"
        (got,) = mine
        if sorted(got) == want[rank] != got:
            return f"the group of rank {rank} is {got}; put its ranks in order, {want[rank]}"
        if got == want[rank]:
            continue
        words = f"rank {rank} is in {got}; its group is {want[rank]}"
        stranger = next((each for each in got if each not in want[rank]), None)
        if stranger is None:
            return f"{words}: a group along {axis!r} has {sizes[axis]} ranks"
        if stranger not in want:
            return f"{words}: the ranks are 0 to {mesh.world_size - 1}"
        here, there = mesh.coordinates(rank), mesh.coordinates(stranger)
        differs = [each for each in sizes if each != axis and here[each] != there[each]]
        return f"{words}. Rank {stranger} has another index along {differs[0]!r}: in a group only {axis!r} differs"
    return "there is one rank too many"  # every real rank is in its right group


def random_meshes(seed: int, how_many: int = 4, most: int = 5) -> list[dict[str, int]]:
    """Return sizes of meshes with two, three and four axes, with random names in random order."""
    random, names = Random(seed), ("pp", "dp", "cp", "tp", "ep")
    return [
        {name: random.randint(1 if len(names) > 3 else 2, most - count) for name in random.sample(names, count)}
        for count in (2 + n % 3 for n in range(how_many))
    ]


def every_axis(meshes: Iterable[Sizes]) -> list[tuple[str, Sizes]]:
    """Return (axis, sizes) for every axis of every mesh."""
    return [(axis, sizes) for sizes in meshes for axis in sizes]


def groups_of(sizes: Sizes) -> dict[str, list[list[int]]]:
    """Return the groups of every axis, {axis: [ranks, ...]}."""
    mesh = Mesh(**sizes)
    return {axis: [list(group) for group in mesh.groups(axis)] for axis in sizes}


# Part b: a real mesh


class Named(NamedTuple):
    """A stand-in for a process group while calls are only recorded. `ranks`: sorted; () for all."""

    ranks: tuple[int, ...]


class Calls(NamedTuple):
    """The groups that a learner's function asks for, in order, and what it returns."""

    made: list[tuple[int, ...]]
    returned: Any


def check_calls(function: Callable, sizes: Sizes) -> None:
    """Check that `function(groups, rank)` calls `dist.new_group` for all groups, and returns the right ones.

    No real ranks run here: a stand-in records the calls.
    """
    groups = groups_of(sizes)
    mesh = Mesh(**sizes)
    calls = {}
    for rank in range(mesh.world_size):
        call = f"on rank {rank} of a mesh {dict(sizes)}, {function.__name__}(groups, {rank})"
        made, result = _noted(function, groups, rank, call)
        calls[rank] = made
        if not isinstance(result, Mapping) or set(result) != set(sizes):
            raise NotYet(f"{call} returns {brief(result)}; return a dictionary with the axes {_listed(sizes)}")
        for axis in sizes:
            want = next(tuple(group) for group in groups[axis] if rank in group)
            got = result[axis]
            if not isinstance(got, Named):
                what = "a list of ranks" if isinstance(got, list | tuple) else brief(got)
                raise NotYet(f"{call}: its {axis!r} is {what}; it should be what dist.new_group returned")
            if got.ranks != want:
                held = f"the ranks {list(got.ranks)}" if got.ranks else "all ranks"
                without = "" if rank in (got.ranks or want) else ", without this one"
                raise NotYet(f"{call}: its {axis!r} is a group of {held}{without}; it should be {list(want)}")
    for rank, made in calls.items():
        if made != calls[0]:
            theirs, own = _first_difference(calls[0], made)
            raise NotYet(
                f"on a mesh {dict(sizes)}, rank 0 calls dist.new_group for {theirs} where rank {rank} calls it for "
                f"{own}. All ranks must make the same calls in the same order, even for groups that they are not in, "
                "or they wait for each other forever"
            )


def _noted(function: Callable, groups: Groups, rank: int, call: str) -> Calls:
    """Return the groups that a learner's function asks for, and its result. Raise `NotYet` if it has none."""

    def called(groups: Groups, rank: int) -> Calls:
        return noted(function, groups, rank)

    called.__name__ = function.__name__
    calls = answer(called, copy.deepcopy(groups), rank, call=call)
    if not isinstance(calls, Calls):
        raise NotYet(f"{call} cannot be called with a stand-in for dist.new_group")
    if calls.returned is None:
        raise NotYet(f"{call} returns None; is its `return` missing?")
    return calls


def noted(function: Callable, groups: Groups, rank: int) -> Calls:
    """Call a learner's function with a stand-in for `dist.new_group`. Runs where the learner's code does."""
    made: list[tuple[int, ...]] = []

    def new_group(
        ranks: Iterable[int] | None = None, *_: Any, use_local_synchronization: bool = False, **__: Any
    ) -> Named:
        group = tuple(sorted(ranks or ()))  # as torch does
        made.extend([] if use_local_synchronization else [group])  # a local call concerns the group alone
        return Named(group)

    world_size = sum(map(len, next(iter(groups.values()))))
    own_place = {"get_rank": lambda *_, **__: rank, "get_world_size": lambda *_, **__: world_size}
    with stand_ins(function, new_group=new_group, **own_place):
        return Calls(made, function(groups, rank))


def _first_difference(one: list[tuple], other: list[tuple]) -> tuple[str, str]:
    length = max(len(one), len(other))
    pairs = [[list(made[n]) if n < len(made) else "nothing more" for made in (one, other)] for n in range(length)]
    in_one, in_other = next(pair for pair in pairs if pair[0] != pair[1])
    return str(in_one), str(in_other)


MANY = 20_000  # numbers on a rank: enough for the traffic to show in the bytes counted on the wire


def _numbers(world_size: int, seed: int | None) -> np.ndarray:
    """Return each rank's input, float64 [world_size, 2]: a sum's digits show its ranks. With a seed, many at random."""
    if seed is not None:
        return np.random.default_rng(seed).standard_normal((world_size, MANY))
    return np.multiply.outer(10.0 ** np.arange(world_size), [1.0, 2.0])


def _close(got: np.ndarray, want: np.ndarray) -> bool:
    return got.shape == want.shape and np.allclose(got, want, rtol=1e-5, atol=1e-5)


def _witnessed_along(everyone: list[Any], groups: Groups, axes: Iterable[str], numbers: np.ndarray) -> None:
    """Check that an all-reduce along each of these axes was on the wire: half the fp64 bytes, and terms of sums."""
    summed = [group for axis in axes for group in groups[axis] if len(group) > 1]  # a rank alone sends nothing
    witnessed(everyone, sum((len(group) - 1) * numbers[0].nbytes for group in summed))
    if len(numbers[0]) == MANY:
        random = generator()
        terms = [numbers[group, random.integers(MANY)] for group in summed for _ in range(4)]
        witnessed_terms(everyone, [_ways(term) for term in terms])


def _ways(terms: np.ndarray) -> set[bytes]:
    """Return the bytes of each of these terms of a sum or of a mean, in fp64 and in fp32."""
    return {kind(term).tobytes() for term in (*terms, *terms / len(terms)) for kind in (np.float64, np.float32)}


def check_groups_on_ranks(function: Callable, sizes: Sizes, seed: int | None = None) -> None:
    """Check the groups that `function(groups, rank)` makes on real ranks by an all-reduce along each axis."""
    check_calls(function, sizes)
    groups = groups_of(sizes)
    numbers = _numbers(math.prod(sizes.values()), seed)
    task = function, groups, PerRank(numbers)
    everyone = run_on_ranks(_sums_along, len(numbers), *task, kind=dict[str, np.ndarray])
    for rank, by_axis in enumerate(everyone):
        for axis in sizes:
            want = next(group for group in groups[axis] if rank in group)
            total = by_axis.get(axis)
            if total is None or not _close(total, numbers[want].sum(axis=0)):
                added = "other numbers" if total is None or seed is not None else members(total[0])
                raise NotYet(f"on rank {rank} an all-reduce along {axis!r} adds {added}; it should add {want}")
    _witnessed_along(everyone, groups, sizes, numbers)


def _sums_along(
    rank: int, world_size: int, function: Callable, groups: Groups, own: np.ndarray
) -> dict[str, np.ndarray]:
    """Runs beside the learner's code, and only observes."""
    made, sums = function(copy.deepcopy(groups), rank), {}
    for axis in groups:
        total = torch.tensor(own)
        dist.all_reduce(total, group=made[axis])
        sums[axis] = total.numpy()
    return sums


def members(total: float) -> list[int]:
    """Return the ranks in a sum of powers of ten. A rank that is in it twice is listed twice."""
    return [rank for rank, digit in enumerate(reversed(str(round(total)))) for _ in range(int(digit))]


class Reduced(NamedTuple):
    """What a rank returned, as arrays, or in words if they are no tensors. `kept`: whether its input is unchanged."""

    output: np.ndarray | str
    gradient: np.ndarray | str
    kept: bool


def check_reduced(function: Callable, sizes: Sizes, seed: int | None = None) -> None:
    """Check on real ranks that `function(terms, gradient, groups)` sums along "tp" and averages along "dp"."""
    groups = groups_of(sizes)
    numbers = _numbers(math.prod(sizes.values()), seed)
    everyone = run_on_ranks(_reduced, len(numbers), function, groups, PerRank(numbers), kind=Reduced)
    for rank, seen in enumerate(everyone):
        own = {axis: next(group for group in groups[axis] if rank in group) for axis in groups}
        who = f"on a mesh {dict(sizes)}, rank {rank}"
        total, mean = numbers[own["tp"]].sum(axis=0), numbers[own["dp"]].mean(axis=0)
        _check_reduced(who, "the output", seen.output, total, f"sum over {own['tp']}, along 'tp'")
        _check_reduced(who, "the gradient", seen.gradient, mean, f"mean over {own['dp']}, along 'dp'")
        if not seen.kept:
            raise NotYet(f"{who}: its input is changed, in place; all-reduce a clone()")
    _witnessed_along(everyone, groups, ("tp", "dp"), numbers)


def _check_reduced(who: str, what: str, got: np.ndarray | str, want: np.ndarray, words: str) -> None:
    if isinstance(got, str):
        raise NotYet(f"{who} returns {got} for {what}; return a tensor like the argument")
    if _close(got, want):
        return
    wanted = f"it should be the {words}"
    for count, word in ((1, "sum"), *((n, f"sum divided by {n}") for n in range(2, 17))):
        total = got[0] * count
        if total >= 1 and math.isclose(total, round(total)) and math.isclose(got[1], 2 * got[0]):
            ranks_in = members(total)
            if set(ranks_in) and max(map(ranks_in.count, ranks_in)) < 2:
                is_own = len(ranks_in) == 1
                instead = "the rank's own input" if is_own and count == 1 else f"the {word}, over {ranks_in}"
                raise NotYet(f"{who}: {what} is {instead}; {wanted}")
    raise NotYet(f"{who}: {what} is {got[0]:g}; {wanted}, {want[0]:g}")


def _reduced(rank: int, world_size: int, function: Callable, groups: Groups, own: np.ndarray) -> Reduced:
    """Runs beside the learner's code, and only observes."""
    made = {}
    for axis, every in groups.items():
        for ranks in every:
            group = dist.new_group(ranks)
            if rank in ranks:
                made[axis] = group
    numbers = torch.tensor(own)
    terms, gradient = numbers.clone(), numbers.clone()
    try:
        result = function(terms, gradient, made)
    except NotImplementedError:
        raise NotYet(f"{function.__name__} is not written yet") from None
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise NotYet(f"{function.__name__} returns {_kind(result)}; return two tensors, output and gradient")
    fit = [isinstance(each, torch.Tensor) and each.shape == numbers.shape for each in result]
    output, passed_back = [
        each.detach().numpy() if fits else _kind(each) for each, fits in zip(result, fit, strict=True)
    ]
    return Reduced(output, passed_back, kept=torch.equal(terms, numbers) and torch.equal(gradient, numbers))


def _kind(result: Any) -> str:
    if isinstance(result, torch.Tensor):
        return f"a tensor of shape {list(result.shape)}"
    return f"a value of type {type(result).__name__}"


# Part c: a weight that is cut twice

COLUMN, ROW = "column", "row"
Extent = tuple[range, range]  # rows and columns of a weight


def held(shape: tuple[int, int], style: str, at: At, sizes: Sizes) -> Extent:
    """Return the rows and columns that a rank holds: TP cuts first, and FSDP cuts the rows of what is left."""
    rows, columns = range(shape[0]), range(shape[1])
    if style == COLUMN:
        rows = _cut(rows, at["tp"], sizes["tp"])
    else:
        columns = _cut(columns, at["tp"], sizes["tp"])
    return _cut(rows, at["shard"], sizes["shard"]), columns


def _cut(whole: range, index: int, count: int) -> range:
    length = len(whole) // count
    return whole[index * length : (index + 1) * length]


def _held_slips(shape: tuple[int, int], style: str, at: At, sizes: Sizes) -> dict[str, Extent]:
    """Return the usual mistakes in words, and the rows and columns that a rank would hold after each."""
    rows, columns = range(shape[0]), range(shape[1])
    tp, dp = (at["tp"], sizes["tp"]), (at["shard"], sizes["shard"])
    other = ROW if style == COLUMN else COLUMN
    other_layer = held(shape, other, at, sizes)
    tp_alone = (_cut(rows, *tp), columns) if style == COLUMN else (rows, _cut(columns, *tp))
    slips = {
        f"this is the split of a {other}-parallel layer; torch's weight is [outputs, inputs]": other_layer,
        "this is what is left after TP alone: FSDP cuts it once more": tp_alone,
        "this is FSDP alone: what does TP cut before it?": (_cut(rows, *dp), columns),
    }
    if style == COLUMN:
        fsdp_first = _cut(_cut(rows, *dp), *tp), columns
        fsdp_on_columns = _cut(rows, *tp), _cut(columns, *dp)
        return slips | {
            "here FSDP cuts first, and TP cuts what is left; TP's cut comes first": fsdp_first,
            "FSDP cuts rows, dimension 0, even where TP has cut them already": fsdp_on_columns,
        }
    columns_twice = rows, _cut(_cut(columns, *tp), *dp)
    return slips | {"FSDP cuts rows, dimension 0; here it has cut the columns once more": columns_twice}


def check_held(function: Callable, style: str, cases: Iterable[tuple[tuple[int, int], Sizes]]) -> None:
    """Check that `function(shape, style, at, sizes)` returns the rows and columns of every rank."""
    fault, explained = "", None
    for shape, sizes in cases:
        for indices in product(*map(range, sizes.values())):
            at = dict(zip(sizes, indices, strict=True))
            call, result = _asked(function, shape, style, at, dict(sizes))
            got = _block(result, call)
            want = tuple(map(list, held(shape, style, at, sizes)))
            slips = _held_slips(shape, style, at, sizes).items()
            these = [words for words, block in slips if got == tuple(map(list, block))]
            explained = these if explained is None else [words for words in explained if words in these]
            for what, mine, right in zip(("rows", "columns"), got, want, strict=True):
                if mine != right and not fault:
                    fault = f"{call} has the {what} {_run(mine)}; at {at} a rank holds {_run(right)}"
                    if len(mine) == 2 and mine[0] == right[0] and mine[1] - right[-1] in (0, 1):
                        fault += " (are these the two ends? Return a range, or a list of all of them)"
    if fault:
        raise NotYet(fault + (f": {explained[0]}" if explained else ""))


def _block(result: Any, call: str) -> tuple[list[int], list[int]]:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise NotYet(f"{call} returns {brief(result)}; return two ranges, rows and columns")
    listed = []
    for what, part in zip(("rows", "columns"), result, strict=True):
        if isinstance(part, slice) and part.start is not None and part.stop is not None:
            part = range(part.start, part.stop)
        if not isinstance(part, Iterable) or isinstance(part, str):
            raise NotYet(f"{call}: its {what} are {brief(part)}; they should be a range")
        listed.append([_whole(number, f"{call}: one of its {what}") for number in part])
    return listed[0], listed[1]


def _run(numbers: list[int]) -> str:
    """Return a run of numbers as "4 to 7"; if they are no run, list them."""
    if not numbers:
        return "none"
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        return brief(numbers)
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


# Part d: what is sent along each axis

WEIGHTS = 12  # times hidden squared: the weights of a block, 4 of attention and 8 of an MLP that is 4 times as wide


def sends(axis: str, num_blocks: int, hidden: int, tokens: int, itemsize: int, sizes: Sizes) -> list[library.Sends]:
    """Return the collectives that a rank calls along `axis` in a step, from the library."""
    everything = library.sends(Mesh(**sizes), num_blocks, hidden, tokens, itemsize=itemsize)
    return [sent for sent in everything if sent.axis == axis]


def calls(axis: str, num_blocks: int, sizes: Sizes) -> dict[str, int]:
    """Return how often a rank calls each collective along `axis` in a step."""
    counts: Counter[str] = Counter()
    for sent in sends(axis, num_blocks, math.prod(sizes.values()), 1, 1, sizes):
        counts[sent.collective] += sent.times
    return dict(counts)


def check_calls_of_a_step(function: Callable, cases: Iterable[tuple[int, Sizes]]) -> None:
    """Check that `function(num_blocks, sizes)` counts the collectives of a step, {axis: {name: count}}."""
    for num_blocks, sizes in cases:
        call, result = _asked(function, num_blocks, dict(sizes))
        if not isinstance(result, Mapping) or not all(isinstance(counts, Mapping) for counts in result.values()):
            raise NotYet(f"{call} returns {brief(result)}; return a dictionary {{axis: {{collective: count}}}}")
        if extra := set(result) - set(sizes):
            raise NotYet(f"{call} has the axis {min(map(str, extra))!r}; the mesh has {_listed(sizes)}")
        for axis in sizes:
            counts = result.get(axis, {}).items()
            got = {name: _whole(count, f"{call}: {name} along {axis!r}") for name, count in counts if count}
            want = calls(axis, num_blocks, sizes)
            if got != want:
                why = _wrong_counts(got, want, axis, num_blocks)
                raise NotYet(f"{call}: along {axis!r} it has {_counts(got)}; {why}")


def _wrong_counts(got: Mapping[str, int], want: Mapping[str, int], axis: str, num_blocks: int) -> str:
    if not want:
        return "an axis of one rank sends nothing"
    if got and {name: count * num_blocks for name, count in got.items()} == want and num_blocks > 1:
        return f"that is one block; there are {num_blocks}"
    if axis == "tp" and got == {"all_reduce": want["all_reduce"] // 2}:
        return "a block has attention and an MLP, and each all-reduces once forward (g) and once backward (f)"
    if axis == "shard" and got == {"all_gather": num_blocks, "reduce_scatter": num_blocks}:
        return "the weights are freed after the forward pass: what does the backward pass need?"
    if axis == "shard" and set(got) == {"all_reduce"}:
        return "that is DDP; FSDP's ranks each keep only a shard, of weights and of gradients"
    if axis == "replicate" and set(got) & {"all_gather", "reduce_scatter"}:
        return "replicas hold the same shard; what must they share once a step?"
    return f"there are {_counts(want)}" if set(got) == set(want) else "which collectives does a rank call along it?"


def _counts(counts: Mapping[str, int]) -> str:
    return " and ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"


def sent_along(axis: str) -> Callable[..., float]:
    """Return the reference function for the bytes that a rank sends along `axis` in a step, from ring schedules."""

    def truth(num_blocks: int, hidden: int, tokens: int, itemsize: int, sizes: Sizes) -> float:
        return sum(
            sent.times * _sent(sent.collective, sizes[axis], sent.num_bytes)
            for sent in sends(axis, num_blocks, hidden, tokens, itemsize, sizes)
        )

    return truth


def _sent(collective: str, world_size: int, num_bytes: int) -> int:
    return int(counted(library.ALGORITHMS[collective](world_size), num_bytes).bytes_sent[0])


def check_sent(function: Callable, axis: str, cases: Iterable[tuple]) -> None:
    """Check that `function(num_blocks, hidden, tokens, itemsize, sizes)` is what a rank sends along `axis`."""
    slips = {"tp": _tp_slips, "shard": _shard_slips, "replicate": _replicate_slips}[axis]
    check_formula(function, sent_along(axis), cases, slips, __name__)


def _any_slips(want: float, num_blocks: int, itemsize: int, sizes: Sizes, axis: str) -> dict[str, float]:
    size = sizes[axis]
    part, world = (size - 1) / size if size > 1 else 1, math.prod(sizes.values())
    whole_world = want / part * (world - 1) / world
    return {
        "`//` has rounded a fraction below 1 down to 0": 0,
        "these are elements, not bytes": want / itemsize,
        "this is one block": want / num_blocks,
        "this leaves out the factor (P - 1)/P of a ring": want / part,
        "this has (P - 1)/P of the whole world; a ring along an axis has only the axis's ranks": whole_world,
        f"this counts all ranks of {axis!r} together; count one rank": want * size,
    }


def _tp_slips(want: float, num_blocks: int, hidden: int, tokens: int, itemsize: int, sizes: Sizes) -> dict[str, float]:
    weights = sent_along("tp")(num_blocks, hidden, WEIGHTS * hidden, itemsize, sizes)
    return _any_slips(want, num_blocks, itemsize, sizes, "tp") | {
        "this is half: two all-reduces forward and two backward, and each goes round twice": want / 2,
        "this is a quarter: two all-reduces forward and two backward, and each goes round twice": want / 4,
        "activations are whole on every rank of 'tp': do not divide them by it": want / sizes["tp"],
        "'tp' sends activations, tokens x hidden, and no weights": weights,
        "'tp' sends activations, tokens x hidden, and no weights (nor shards of them)": weights / sizes["tp"],
        "`tokens` are this rank's already: do not divide them by 'shard'": want / sizes["shard"],
    }


def _shard_slips(
    want: float, num_blocks: int, hidden: int, tokens: int, itemsize: int, sizes: Sizes
) -> dict[str, float]:
    shard, tp = sizes["shard"], sizes["tp"]
    return _any_slips(want, num_blocks, itemsize, sizes, "shard") | {
        "this gathers whole weights, but TP has cut them: each group along 'shard' gathers a slice": want * tp,
        "a gather makes the whole slice, and a shard is only a part of it: do not divide by 'shard'": want / shard,
        "this goes round twice; it is a gather forward, a gather backward and a reduce-scatter": want * 2 / 3,
        "this goes round four times; a gather is only one of an all-reduce's two phases": want * 4 / 3,
        "weights do not depend on tokens": want / (WEIGHTS * hidden) * tokens,
    }


def _replicate_slips(
    want: float, num_blocks: int, hidden: int, tokens: int, itemsize: int, sizes: Sizes
) -> dict[str, float]:
    shard, tp = sizes["shard"], sizes["tp"]
    return _any_slips(want, num_blocks, itemsize, sizes, "replicate") | {
        "an all-reduce goes round the ring twice": want / 2,
        "FSDP has reduce-scattered the gradients: a rank shares only its shard of each": want * shard,
        "TP has cut the weights, and so their gradients": want * tp,
        "these are whole gradients; TP and FSDP have each cut them": want * shard * tp,
        "this goes round three times; replicas gather nothing": want * 3 / 2,
    }


STEPS = [(6, 24, 40, 2, {"replicate": 3, "shard": 2, "tp": 4}), (2, 48, 16, 4, {"replicate": 2, "shard": 4, "tp": 2})]


def random_steps(seed: int, how_many: int = 6) -> list[tuple]:
    """Return cases `(num_blocks, hidden, tokens, itemsize, sizes)`; every buffer divides evenly."""
    random, cases = Random(seed), []
    for _ in range(how_many):
        sizes = {"replicate": random.randint(2, 5), "shard": random.randint(2, 6), "tp": random.choice((2, 4, 8))}
        random_order = random.sample(list(sizes), 3)
        hidden = math.prod(sizes.values()) * random.randint(1, 9)
        case = random.randint(2, 40), hidden, random.randint(1, 99) * 8, random.choice((2, 4))
        cases.append((*case, {axis: sizes[axis] for axis in random_order}))
    return cases


# Part e: which axis belongs where


class Machine(NamedTuple):
    """Nodes of `gpus_per_node` GPUs. Each GPU has one link `inside` its node and one `between` nodes."""

    gpus_per_node: int
    inside: Link
    between: Link


Work = Mapping[str, tuple[int, int]]  # by axis: times round the ring in a step, and the bytes S of the buffer


def leaves(axis: str, order: Sequence[str], sizes: Sizes, gpus_per_node: int) -> bool:
    """Return whether a group along `axis` has ranks in more than one node: the right answer."""
    mesh = Mesh(**{name: sizes[name] for name in order})
    return any(group[0] // gpus_per_node != group[-1] // gpus_per_node for group in mesh.groups(axis))


def check_leaves(function: Callable, cases: Iterable[tuple[tuple[str, ...], Sizes, int]]) -> None:
    """Check that `function(axis, order, sizes, gpus_per_node)` returns whether a group along `axis` leaves a node."""
    rows = []
    for order, sizes, gpus_per_node in cases:
        for axis in order:
            call, result = _asked(function, axis, order, dict(sizes), gpus_per_node)
            if result not in (True, False):
                raise NotYet(f"{call} returns {brief(result)}; return True or False")
            mesh = Mesh(**{name: sizes[name] for name in order})
            group = list(mesh.groups(axis)[0])
            order_of_sizes = leaves(axis, tuple(sizes), sizes, gpus_per_node)
            first_group_leaves = group[0] // gpus_per_node != group[-1] // gpus_per_node
            span_too_long = group[-1] - group[0] >= gpus_per_node
            slips = {
                "the axes are in the order of `order`; `sizes` may list them in another": order_of_sizes,
                "a group may be small and its ranks far apart": sizes[axis] > gpus_per_node,
                "this checks the first group; another one may begin further on in its node": first_group_leaves,
                "ranks closer than the length of a node may still be in two nodes": span_too_long,
            }
            rows.append(Answered(call, bool(result), leaves(axis, order, sizes, gpus_per_node), slips))
    check_rows(rows, _wrong_leaves)


def _wrong_leaves(row: Answered) -> str:
    right = "some group along it has ranks in two nodes" if row.want else "every group along it stays in one node"
    return f"{row.call} returns {bool(row.got)}, but {right}"


def seconds_along(axis: str, order: Sequence[str], sizes: Sizes, work: Work, machine: Machine) -> float:
    """Return the seconds of an axis's rings, all groups at once, priced over two levels of links."""
    passes, num_bytes = work[axis]
    return passes * _once_round(axis, tuple((name, sizes[name]) for name in order), num_bytes, machine)


@functools.cache  # the checks of one placement price the same rings many times
def _once_round(axis: str, ordered: tuple[tuple[str, int], ...], num_bytes: int, machine: Machine) -> float:
    mesh = Mesh(**dict(ordered))
    nodes = mesh.world_size // machine.gpus_per_node
    links = topology.two_level(nodes, machine.gpus_per_node, machine.inside, machine.between)
    return library.seconds_along(mesh, axis, "reduce_scatter", links)(num_bytes)


def seconds(order: Sequence[str], sizes: Sizes, work: Work, machine: Machine) -> float:
    """Return the seconds of all axes, one after the other: the right answer."""
    return sum(seconds_along(axis, order, sizes, work, machine) for axis in order)


def check_seconds(function: Callable, cases: Iterable[tuple]) -> None:
    """Check that `function(order, sizes, work, machine)` is the seconds of a step's communication."""

    def slips(want: float, order: Sequence[str], sizes: Sizes, work: Work, machine: Machine) -> dict[str, float]:
        # Of each axis, in the order of `order`: its size, its link, and so on.
        ranks = [sizes[axis] for axis in order]
        steps = [size - 1 for size in ranks]
        passes = [work[axis][0] for axis in order]
        inside, between = machine.inside, machine.between
        node = machine.gpus_per_node
        links = [between if leaves(axis, order, sizes, node) else inside for axis in order]
        by_size = [between if size > node else inside for size in ranks]

        def rings(
            steps: list[int] = steps,
            chunks: list[int] = ranks,
            links: list[Link] = links,
            passes: list[int] = passes,
        ) -> list[float]:
            """Return the seconds of each axis's ring with one thing changed."""
            return [
                count * num_steps * (link.alpha + work[axis][1] / num_chunks * link.beta)
                for axis, count, num_steps, num_chunks, link in zip(order, passes, steps, chunks, links, strict=True)
            ]

        ones = [1] * len(order)
        all_inside, all_between = [inside] * len(order), [between] * len(order)
        no_alpha = [Link(0, link.beta) for link in links]
        turned = tuple(reversed(order))
        return {
            "this takes the last axis for the outermost one": seconds(turned, sizes, work, machine),
            "this takes the axes in the order of `sizes`": seconds(tuple(sizes), sizes, work, machine),
            "everything crosses between nodes here; some groups stay inside": sum(rings(links=all_between)),
            "everything stays inside nodes here; some groups leave theirs": sum(rings(links=all_inside)),
            "a small group may have its ranks far apart, in other nodes": sum(rings(links=by_size)),
            "each of a ring's P - 1 steps carries a chunk, S/P, not S": sum(rings(chunks=ones)),
            "a ring takes P - 1 steps to go round, not P": sum(rings(steps=ranks)),
            "this is a single step of every ring": sum(rings(steps=ones)),
            "this goes round every ring once; how often does each axis?": sum(rings(passes=ones)),
            "this leaves out alpha, the seconds of a message": sum(rings(links=no_alpha)),
            "this is the longest axis; they run one after the other": max(rings()),
        }

    check_formula(function, seconds, cases, slips, __name__)


def check_best(function: Callable, cases: Iterable[tuple[Sizes, Work, Machine]]) -> None:
    """Check that `function(sizes, work, machine)` is the fastest order of the axes, outermost first."""
    for sizes, work, machine in cases:
        call, result = _asked(function, dict(sizes), dict(work), machine)
        if isinstance(result, str) or not isinstance(result, Iterable):
            raise NotYet(f"{call} returns {brief(result)}; return the axes, outermost first")
        order = tuple(result)
        if sorted(map(str, order)) != sorted(sizes):
            raise NotYet(f"{call} returns {order}; return each of {_listed(sizes)} once")
        prices = {mesh.axes: seconds(mesh.axes, sizes, work, machine) for mesh in Mesh(**sizes).orders()}
        least = min(prices, key=lambda axes: prices[axes])
        if prices[order] > prices[least] * (1 + 1e-9):
            raise NotYet(
                f"{call} returns {order}, which takes {_ms(prices[order])} ms a step; another order takes "
                f"{_ms(prices[least])}. {_where_it_goes(order, least, sizes, work, machine)}"
            )


def _where_it_goes(order: Sequence[str], least: Sequence[str], sizes: Sizes, work: Work, machine: Machine) -> str:
    mine, best = ({axis: seconds_along(axis, each, sizes, work, machine) for axis in sizes} for each in (order, least))
    worst = max(sizes, key=lambda axis: mine[axis] - best[axis])
    where = "leaves its nodes" if leaves(worst, order, sizes, machine.gpus_per_node) else "stays in its nodes"
    words = f"In yours {worst!r} {where} and takes {_ms(mine[worst])} ms of it, in the other {_ms(best[worst])}"
    if tuple(reversed(order)) == tuple(least):
        words += ". Is yours the innermost first? The first axis is the outermost"
    return words


def _ms(number: float) -> str:
    return f"{number * 1e3:.3g}"


NVLINK, NETWORK = Link(3e-6, 1 / 400e9), Link(14e-6, 1 / 40e9)  # round figures; only the ratio matters
EIGHT = Machine(8, NVLINK, NETWORK)
PLACEMENTS = [
    ({"dp": 4, "tp": 4}, {"dp": (12, 64_000_000), "tp": (96, 16_000_000)}, EIGHT),
    ({"dp": 4, "tp": 4}, {"dp": (300, 64_000_000), "tp": (2, 16_000_000)}, EIGHT),
]


def random_placements(seed: int, how_many: int = 5) -> list[tuple[dict[str, int], dict[str, tuple[int, int]], Machine]]:
    """Return cases `(sizes, work, machine)` of three axes. Every S divides evenly, and every machine is full."""
    random = Random(seed)
    cases: list[tuple[dict[str, int], dict[str, tuple[int, int]], Machine]] = []
    while len(cases) < how_many:
        sizes = {axis: random.choice((2, 3, 4, 6, 8)) for axis in random.sample(["dp", "tp", "pp"], 3)}
        world, node = math.prod(sizes.values()), random.choice((4, 6, 8))
        if world % node or world > 128 or world == node:
            continue
        work = {axis: (random.randint(1, 40), sizes[axis] * random.randint(1, 4000) * 1000) for axis in sizes}
        cases.append((sizes, work, Machine(node, NVLINK, NETWORK)))
    return cases


def every_order(placements: Iterable[tuple[Sizes, Work, Machine]]) -> list[tuple]:
    """Return cases `(order, sizes, work, machine)`: every order of the axes of each placement."""
    return [(mesh.axes, *case) for case in placements for mesh in Mesh(**case[0]).orders()]


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names)) or "none"
