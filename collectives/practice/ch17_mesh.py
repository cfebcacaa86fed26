"""Checks for exercise 17: a mesh of real process groups, what a rank holds after several cuts, and where axes belong.

The truth comes from `training.mesh.Mesh` for groups, from `torch.chunk`'s rule on index arrays for weights, and from
counting the ranks of a group on each node for placements. In part a a sum shows which ranks are in it: rank r adds 10
to the power r.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, permutations, product
from random import Random
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from .. import network, ranks
from ..measure.wire import BytesSent
from ..ranks import PerRank
from ..ranks.store import CLOSED
from ..training import fsdp, groups, mesh_run
from ..training import mesh as library
from ..training.mesh import Mesh
from . import checks, wall
from .checks import Answered, NotYet, answer, check_rows, generator, number_of, own_answer, refusing_functions
from .on_ranks import NO_SOCKET, plain, run_on_ranks, stand_ins, witnessed, witnessed_terms

WITHOUT = (
    *("torch.distributed.device_mesh", "torch.distributed._mesh_layout"),
    *("torch.distributed.tensor", "torch.distributed._tensor"),  # DTensor knows what a rank holds
)
HOLDS = (".noted", "._sorted", ".Named", "practice.on_ranks.stand_ins")  # see `wall`
ON_RANKS = ("._norm", "._number_in", "._on_a_rank", "._sums_along")

Sizes = Mapping[str, int]  # of the axes of a mesh, outermost first: {"dp": 2, "tp": 4}
Cuts = Sequence[tuple[str, int]]  # (axis, dimension), in the order in which they are made
At = Mapping[str, int]  # a rank's coordinates: its index on each axis
Machine = Mapping[str, float]  # gpus a node; near, far: bytes per second of a GPU's port and of its card


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, the library's own meshes, prices and answers, and torch's `DeviceMesh`."""
    of_a_mesh = (Mesh.groups, Mesh.coordinates, Mesh.rank, Mesh.stride, Mesh.orders)
    prices = (
        library.sends,
        library.bytes_along,
        library.together,
        library.side_by_side,
        library.seconds,
        library.seconds_along,
        library.cluster_of,
        groups.near,
        network.ring,
        network.ways,
    )
    made = mesh_run.device_mesh, fsdp.mesh
    own = (held, _chunk, shares, _strides, exposed, least, groups_of)
    with refusing_functions(*of_a_mesh, *prices, *made, *own), wall.without(*WITHOUT):
        yield


def _listed(words: Iterable[Any]) -> str:
    return ", ".join(map(repr, words)) or "nothing"


def _whole(result: Any, what: str) -> int:
    number = number_of(result, what)
    if number != int(number):
        raise NotYet(f"{what} is {number:g}; it should be a whole number (`//` divides without a remainder)")
    return int(number)


# Part a: build


def groups_of(sizes: Sizes, names: Iterable[str]) -> dict[str, list[list[int]]]:
    """Return the groups of every axis or plane, {name: [ranks, ...]}. `names`: such as "tp" and "dp+cp"."""
    mesh = Mesh(**sizes)
    return {name: [list(group) for group in mesh.groups(name)] for name in names}


class Named(NamedTuple):
    """A stand-in for a process group while calls are only recorded. `ranks`: sorted; `own`: who asks."""

    ranks: tuple[int, ...]
    own: int

    def size(self) -> int:
        return len(self.ranks)

    def rank(self) -> int:
        return self.ranks.index(self.own)


class Calls(NamedTuple):
    """The groups that a learner's function asks for, in order, and what it returns.

    `made`: those that all ranks make together. `asked`: all of them.
    """

    made: list[tuple[int, ...]]
    asked: list[tuple[int, ...]]
    returned: Any


def check_calls(function: Callable, cases: Iterable[tuple[Sizes, Sequence[str]]]) -> None:
    """Check that `function(rank, sizes, names)` calls `dist.new_group` alike on all ranks, and returns its groups.

    No real ranks run here: a stand-in records the calls.
    """
    for sizes, names in cases:
        wanted, made = groups_of(sizes, names), {}
        for rank in range(math.prod(sizes.values())):
            call = f"{function.__name__}({rank}, {dict(sizes)}, {list(names)})"
            calls = _noted(function, rank, sizes, names, call)
            made[rank] = calls.made
            _check_returned(calls, rank, sizes, wanted, call)
        _check_alike(made, sizes)


def _check_alike(made: Mapping[int, list[tuple[int, ...]]], sizes: Sizes) -> None:
    """Check that all ranks make the same groups in the same order. `made`: by rank."""
    for rank, in_order in made.items():
        if in_order != made[0]:
            theirs, own = _first_difference(made[0], in_order)
            raise NotYet(
                f"on a mesh {dict(sizes)}, rank 0 calls dist.new_group for {theirs} where rank {rank} calls it "
                f"for {own}. All ranks must make the same calls in the same order, even for groups that they are "
                "not in, or they wait for each other forever"
            )


def _check_returned(calls: Calls, rank: int, sizes: Sizes, wanted: Mapping[str, list], call: str) -> None:
    result, everyone = calls.returned, tuple(range(math.prod(sizes.values())))  # the world has a group of its own
    if not isinstance(result, Mapping):
        raise NotYet(f"{call} returns {brief(result)}; return a dictionary with the names {_listed(wanted)}")
    if missing := [name for name in wanted if name not in result]:
        raise NotYet(f"{call} returns no group for {_listed(missing)}")
    if extra := [name for name in result if name not in wanted]:
        raise NotYet(f"{call} also returns a group for {_listed(extra)}, which is not among the names")
    turned = _all_turned(result, rank, sizes)
    for name, groups_along in wanted.items():
        want = next(group for group in groups_along if rank in group)
        got = result[name]
        if not isinstance(got, Named):
            what = "a list of ranks" if isinstance(got, list | tuple) else brief(got)
            what += f", a group without rank {rank}" * (got == dist.GroupMember.NON_GROUP_MEMBER)
            raise NotYet(f"{call}: its {name!r} is {what}; it should be what dist.new_group returned")
        members = list(got.ranks)
        if members != want:
            fastest = ". In all of them the first axis moves fastest; it should be the last one"
            why = fastest if turned else _why_not(members, rank, name, sizes)
            raise NotYet(f"{call}: its {name!r} is a group of {members}; it should be {want}{why}")
        if tuple(want) not in {*calls.asked, everyone}:
            raise NotYet(f"{call}: nothing has called dist.new_group for its {name!r}, {want}")


def _why_not(members: list[int], rank: int, name: str, sizes: Sizes) -> str:
    """Return what is wrong with a group, in words: no rank, a stranger, or too few."""
    if rank not in members:
        return f". Rank {rank} itself isn't in it"
    mesh, along = Mesh(**sizes), name.split("+")
    here = mesh.coordinates(rank)
    for other in members:
        if other >= mesh.world_size:
            return f". The ranks are 0 to {mesh.world_size - 1}"
        there = mesh.coordinates(other)
        differs = [axis for axis in sizes if axis not in along and here[axis] != there[axis]]
        if differs:
            only = " and ".join(repr(axis) for axis in along)
            return f". Rank {other} has another index along {differs[0]!r}; in this group only {only} may differ"
    return f". Ranks that differ only along {_listed(along)} are missing"


def _all_turned(result: Mapping[str, Any], rank: int, sizes: Sizes) -> bool:
    """Return whether all of a rank's groups are those of a mesh whose first axis moves fastest."""
    turned = Mesh(**{axis: sizes[axis] for axis in reversed(list(sizes))})
    return all(
        isinstance(got, Named) and list(got.ranks) == next(group for group in turned.groups(name) if rank in group)
        for name, got in result.items()
    )


def _noted(function: Callable, rank: int, sizes: Sizes, names: Sequence[str], call: str) -> Calls:
    """Return the groups that a learner's function asks for, and its result. Raise `NotYet` if it has none."""

    def called(rank: int, sizes: Sizes, names: Sequence[str]) -> Calls | checks.Refusal:
        return noted(function, rank, sizes, names)

    called.__name__ = function.__name__
    calls = answer(called, rank, dict(sizes), list(names), call=call, run=operator.call)
    if isinstance(calls, checks.Refusal):
        raise NotYet(f"{call}: {calls.words}")
    if not isinstance(calls, Calls):
        raise NotYet(f"{call} can't be called with a stand-in for dist.new_group")
    if calls.returned is None:
        raise NotYet(f"{call} returns None; is its `return` missing?")
    return calls


def noted(function: Callable, rank: int, sizes: Sizes, names: Sequence[str]) -> Calls | checks.Refusal:
    """Call a learner's function with a stand-in for `dist.new_group`. Runs where the learner's code does."""
    made: list[tuple[int, ...]] = []
    asked: list[tuple[int, ...]] = []
    everyone = Named(tuple(range(math.prod(sizes.values()))), rank)

    def new_group(
        ranks: Iterable[int] | None = None, *_: Any, use_local_synchronization: bool = False, **__: Any
    ) -> Named | int:
        group = _sorted(ranks)
        asked.append(group)
        made.extend([] if use_local_synchronization else [group])  # a local call concerns the group alone
        members = group or everyone.ranks
        return Named(members, rank) if rank in members else dist.GroupMember.NON_GROUP_MEMBER

    def of(group: Any) -> Named:
        return group if isinstance(group, Named) else everyone

    inside: dict[str, Callable] = {
        "new_group": new_group,
        "get_rank": lambda group=None: -1 if group == dist.GroupMember.NON_GROUP_MEMBER else of(group).rank(),
        "get_world_size": lambda group=None: -1 if group == dist.GroupMember.NON_GROUP_MEMBER else of(group).size(),
        "get_process_group_ranks": lambda group=None: list(of(group).ranks),
        "barrier": lambda *_, **__: None,
    }
    known = dist.GroupMember.WORLD
    dist.GroupMember.WORLD = everyone  # type: ignore[assignment]  # which dist.group.WORLD returns
    try:
        with stand_ins(function, **inside), without_the_library(), checks.ending_loops():
            returned = function(rank, sizes, names)
    except checks.LibraryUsed as error:
        return checks.Refusal(f"{error}{checks._learners_line(error)}")
    finally:
        dist.GroupMember.WORLD = known
    return Calls(made, asked, returned)


def _sorted(ranks: Iterable[int] | None) -> tuple[int, ...]:
    """Return the ranks of a new group, as torch does; () for all."""
    return () if ranks is None else tuple(sorted(int(rank) for rank in ranks))


def _first_difference(one: list[tuple], other: list[tuple]) -> tuple[str, str]:
    length = max(len(one), len(other))
    pairs = [[list(made[n]) if n < len(made) else "nothing more" for made in (one, other)] for n in range(length)]
    in_one, in_other = next(pair for pair in pairs if pair[0] != pair[1])
    return str(in_one), str(in_other)


def random_meshes(seed: int, how_many: int = 4) -> list[tuple[dict[str, int], list[str]]]:
    """Return cases `(sizes, names)` of two, three and four axes with planes among the names, at most 36 ranks."""
    random, names = Random(seed), ("pp", "dp", "cp", "tp", "ep")
    found: list[tuple[dict[str, int], list[str]]] = []
    while len(found) < how_many:
        axes = random.sample(names, 2 + len(found) % 3)
        sizes = {axis: random.choice((1, 2, 2, 3, 4)) for axis in axes}
        if not 6 <= math.prod(sizes.values()) <= 36:
            continue
        planes = {"+".join(random.sample(axes, 2)): None, "+".join(axes): None}  # one plane, if they are the same
        found.append((sizes, random.sample([*axes, *planes], len(axes) + len(planes))))
    return found


MANY = 20_000  # numbers on a rank: enough for the traffic to show in the bytes counted on the wire


def _numbers(world_size: int, seed: int | None) -> np.ndarray:
    """Return each rank's input, float64 [world_size, 2]: a sum's digits show its ranks. With a seed, many at random."""
    if seed is not None:
        return np.random.default_rng(seed).standard_normal((world_size, MANY))
    return np.multiply.outer(10.0 ** np.arange(world_size), [1.0, 2.0])


def _close(got: np.ndarray, want: np.ndarray) -> bool:
    return got.shape == want.shape and np.allclose(got, want, rtol=1e-5, atol=1e-5)


def check_build(function: Callable, sizes: Sizes, names: Sequence[str], seed: int | None = None) -> None:
    """Check the groups that `function(rank, sizes, names)` makes on real ranks by an all-reduce in each of them.

    It is called with a stand-in first. The ranks begin with the groups that it asks for there, and dist.new_group hands
    them out: a rank that could make a group could also leave words for others where they meet.
    """
    wanted = groups_of(sizes, names)
    numbers = _numbers(math.prod(sizes.values()), seed)
    task = function, dict(sizes), list(names), PerRank(numbers)
    asked = _asked(function, sizes, names)
    everyone = run_on_ranks(_sums_along, len(numbers), *task, kind=dict[str, np.ndarray], groups=asked)
    for rank, by_name in enumerate(everyone):
        for name in names:
            want = next(group for group in wanted[name] if rank in group)
            total = by_name.get(name)
            if total is None or not _close(total, numbers[want].sum(axis=0)):
                added = "other numbers" if total is None or seed is not None else members(total[0])
                raise NotYet(f"on rank {rank} an all-reduce in its group {name!r} adds {added}; it should add {want}")
    summed = [group for name in names for group in wanted[name] if len(group) > 1]  # a rank alone sends nothing
    witnessed(everyone, sum((len(group) - 1) * numbers[0].nbytes for group in summed))
    if seed is not None:
        random = generator()
        terms = [numbers[group, random.integers(MANY)] for group in summed for _ in range(4)]
        witnessed_terms(everyone, [{term.tobytes() for term in each} for each in terms])


def _asked(function: Callable, sizes: Sizes, names: Sequence[str]) -> list[list[int]]:
    """Return the groups that `function` asks for on any rank; raise `NotYet` if real ranks couldn't make them."""
    everyone = range(math.prod(sizes.values()))
    made: dict[int, list[tuple[int, ...]]] = {}
    found: dict[tuple[int, ...], None] = {}
    for rank in everyone:
        call = f"{function.__name__}({rank}, {dict(sizes)}, {list(names)})"
        calls = _noted(function, rank, sizes, names, call)
        made[rank] = calls.made
        for group in calls.asked:
            if not set(group) <= set(everyone) or len(set(group)) < len(group):
                raise NotYet(
                    f"{call} calls dist.new_group({list(group)}); the ranks are {everyone[0]} to {everyone[-1]}, each "
                    "in a group once"
                )
            found[group or tuple(everyone)] = None
    _check_alike(made, sizes)
    return [list(group) for group in found]


def _sums_along(
    rank: int, world_size: int, function: Callable, sizes: Sizes, names: Sequence[str], own: np.ndarray
) -> dict[str, np.ndarray]:
    """Runs beside the learner's code, and only observes."""
    made_before = ranks.group

    def new_group(ranks: Iterable[int] | None = None, *_: Any, **__: Any) -> Any:
        group = _sorted(ranks) or tuple(range(world_size))
        try:
            return made_before(group)
        except KeyError:
            raise NotYet(
                f"{function.__name__} calls dist.new_group({list(group)}) on a real rank, and not with a stand-in"
            ) from None

    with stand_ins(function, new_group=new_group):
        made, sums = _on_a_rank(function, rank, rank, copy.deepcopy(sizes), list(names)), {}
    if not isinstance(made, Mapping) or not all(isinstance(made.get(name), dist.ProcessGroup) for name in names):
        values = made.values() if isinstance(made, Mapping) else ()
        outside = any(isinstance(each, int) and each == dist.GroupMember.NON_GROUP_MEMBER for each in values)
        hint = " (dist.new_group returns -100 on a rank outside the group)" if outside else ""
        raise NotYet(
            f"rank {rank}: {function.__name__} returns {brief(made)}; return a process group for each name{hint}"
        )
    for name in names:
        total = torch.tensor(own)
        dist.all_reduce(total, group=made[name])
        sums[name] = total.numpy()
    return sums


def _on_a_rank(function: Callable, rank: int, *args: Any) -> Any:
    """Return what the learner's function returns on a rank, without the library; its errors come in one line."""
    try:
        with without_the_library():
            return function(*args)
    except NotImplementedError:
        raise NotYet(f"{function.__name__} is not written yet") from None
    except checks.LibraryUsed as error:
        raise NotYet(f"{function.__name__}: {error}") from None
    except Exception as error:
        line = checks._learners_line(error).replace("\n  ", "; ")
        if re.search(NO_SOCKET, str(error)):
            raise NotYet(f"rank {rank}: {CLOSED}{line}") from None
        raise NotYet(" ".join(f"rank {rank} ends in {type(error).__name__}: {error}{line}".split())) from None


def members(total: float) -> list[int]:
    """Return the ranks in a sum of powers of ten. A rank that is in it twice is listed twice."""
    return [rank for rank, digit in enumerate(reversed(str(round(total)))) for _ in range(int(digit))]


# Part a: the norm


class Normed(NamedTuple):
    """What a rank returned, or its type in words. `kept`: whether its input is unchanged.

    `calls`: of collectives, and of sends, which are as many messages.
    """

    value: float | str
    calls: int
    kept: bool


class Gradients(NamedTuple):
    """Gradients on a mesh. `cuts`: of each parameter, the axes that cut it. `parts`: [rank, parameter, numbers]."""

    sizes: dict[str, int]
    cuts: list[tuple[str, ...]]
    parts: np.ndarray


def gradients(sizes: Sizes, cuts: Iterable[tuple[str, ...]], seed: int = 0) -> Gradients:
    """Return random gradients. A rank's part depends on its index along the axes that cut the parameter alone."""
    mesh, cuts, random = Mesh(**sizes), list(cuts), np.random.default_rng(seed)
    whole = [random.standard_normal((*(sizes[axis] for axis in cut), 3)) for cut in cuts]
    parts = [
        [numbers[tuple(mesh.coordinates(rank)[axis] for axis in cut)] for numbers, cut in zip(whole, cuts, strict=True)]
        for rank in range(mesh.world_size)
    ]
    return Gradients(dict(sizes), cuts, np.array(parts))


def random_gradients(sizes: Sizes, seed: int) -> Gradients:
    """Return gradients of six parameters with random cuts: none, one axis, all of them, and others."""
    random, axes = Random(seed), list(sizes)
    cuts = [(), tuple(axes), *((axis,) for axis in axes)]
    while len(cuts) < 6:
        cuts.append(tuple(random.sample(axes, random.randint(1, len(axes)))))
    case = gradients(sizes, random.sample(cuts, len(cuts)), seed)
    everywhere = next(number for number, cut in enumerate(case.cuts) if len(cut) == len(axes))
    case.parts[:, everywhere] = case.parts[0, everywhere]  # equal parts, so that nobody tells copies by their numbers
    return case


def check_norm(function: Callable, case: Gradients) -> list[Normed]:
    """Check on real ranks that `function(gradients, groups)` is the norm of the whole gradient; return the reports."""
    world_size = len(case.parts)
    lists = groups_of(case.sizes, case.sizes)
    task = function, lists, case.cuts, PerRank(case.parts)
    everyone = run_on_ranks(_norm, world_size, *task, kind=Normed, groups=list(chain(*lists.values())))
    want = _norm_over(case, lambda cut: cut)[0]
    values = [seen.value for seen in everyone]
    for rank, seen in enumerate(everyone):
        who = f"on a mesh {case.sizes}, rank {rank}"
        if isinstance(seen.value, str):
            raise NotYet(f"{who} returns {seen.value}; return the norm, a number")
        if not math.isclose(seen.value, want, rel_tol=1e-6):
            raise NotYet(f"{who} returns {seen.value:.6g}; the norm is {want:.6g}{_norm_slip(values, case)}")
        if not seen.kept:
            raise NotYet(f"{who}: its gradients are changed; work on a copy")
        if not seen.calls and any(case.sizes[axis] > 1 for cut in case.cuts for axis in cut):
            raise NotYet(f"{who} sends nothing: sum along an axis with a collective in its group")
    return everyone


def check_norm_calls(function: Callable, case: Gradients) -> None:
    """Check that `function` finds the norm with at most one collective along each axis."""
    for rank, seen in enumerate(check_norm(function, case)):
        if seen.calls > len(case.sizes):
            raise NotYet(
                f"on a mesh {case.sizes} with {len(case.cuts)} parameters, rank {rank} calls {seen.calls} collectives "
                f"or sends; one along each axis is enough, {len(case.sizes)}: put what is summed along an axis into "
                "one tensor"
            )


Along = Callable[[tuple[str, ...]], Iterable[str]]  # a parameter's cut -> the axes to sum along


def _norm_over(case: Gradients, along: Along, of_norms: bool = False, mean: bool = False) -> np.ndarray:
    """Return on every rank the root of all squares, each parameter's summed along `along(its cut)`, [rank].

    `of_norms`: it sums the norms of parts instead of their squares. `mean`: it divides each sum by its ranks.
    """
    mesh, terms = Mesh(**case.sizes), (case.parts**2).sum(axis=2) ** (0.5 if of_norms else 1)
    total = np.zeros(mesh.world_size)
    for number, cut in enumerate(case.cuts):
        axes = tuple(along(cut))
        for group in mesh.groups(*axes) if axes else [[rank] for rank in range(mesh.world_size)]:
            total[group] += terms[group, number].sum() / (len(group) if mean else 1)
    return np.sqrt(total)


def _without_groups(case: Gradients) -> np.ndarray:
    """Return the root that every rank has if each axis's sum runs over all ranks."""
    squares = (case.parts**2).sum(axis=2)
    for axis in case.sizes:
        cut = [axis in each for each in case.cuts]
        squares[:, cut] = squares[:, cut].sum(axis=0)
    return np.sqrt(squares.sum(axis=1))


def _norm_slip(values: list[Any], case: Gradients) -> str:
    """Return the usual mistake that explains what all ranks return, in words, or ""."""
    axes, right = tuple(case.sizes), _norm_over(case, lambda cut: cut)
    every = _norm_over(case, lambda cut: axes)
    local = np.sqrt((case.parts**2).sum(axis=(1, 2)))
    slips = {
        "every rank has only its own parts in it: sum along the axes that cut a parameter": _norm_over(
            case, lambda cut: ()
        ),
        "this sums over all ranks, so a parameter that an axis copies counts several times": every,
        "this is the square of the norm": right**2,
        "norms add up as squares: square before you sum": _norm_over(case, lambda cut: cut, of_norms=True),
        "norms add up as squares: square before you sum, and take the root at the end": np.full(
            len(local), local.sum()
        ),
        "this divides by the ranks of a group; the squares of all parts add up": _norm_over(
            case, lambda cut: cut, mean=True
        ),
        "an all-reduce without `group=` sums over all ranks": _without_groups(case),
        "this sums along the axes that copy a parameter, and not along those that cut it": _norm_over(
            case, lambda cut: [axis for axis in axes if axis not in cut]
        ),
        "this sums along one axis of those that cut a parameter; sum along all of them": _norm_over(
            case, lambda cut: cut[:1]
        ),
        "this sums along the last axis of those that cut a parameter; sum along all of them": _norm_over(
            case, lambda cut: cut[-1:]
        ),
    }
    for left_out in axes:
        others = {axis for axis in axes if axis != left_out}
        slips[f"nothing is summed along {left_out!r}"] = _norm_over(case, others.intersection)
    for words, made in slips.items():
        if all(isinstance(value, float | int) for value in values) and np.allclose(values, made, rtol=1e-6):
            return f": {words}"
    return ""


def _norm(
    rank: int,
    world_size: int,
    function: Callable,
    lists: dict[str, list[list[int]]],
    cuts: list[tuple[str, ...]],
    own: np.ndarray,
) -> Normed:
    """Runs beside the learner's code, and only observes."""
    made = {axis: ranks.group(next(group for group in along if rank in group)) for axis, along in lists.items()}
    parts = [(torch.tensor(part), tuple(cut)) for part, cut in zip(own, cuts, strict=True)]

    with BytesSent() as sent:  # first: to look at the learner's function may already run code of the learner's

        @functools.wraps(function)
        def read(*args: Any) -> float | str | None:
            return _number_in(function(*args))

        value = _on_a_rank(read, rank, [*parts], made)
        kept = all(np.array_equal(plain(part), before) for (part, _), before in zip(parts, own, strict=True))
    if value is None:
        raise NotYet(f"{function.__name__} returns None; is its `return` missing?")
    return Normed(value, sent.collectives.total() + sent.messages, kept)


def _number_in(result: Any) -> float | str | None:
    """Return a number, also from a tensor of one; None for None, and what anything else is, in words."""
    if result is None:
        return None
    numbers = plain(result)
    number = numbers.item() if not isinstance(numbers, str) and numbers.size == 1 else result
    if isinstance(number, float | int | np.floating | np.integer) and not isinstance(number, bool):
        return float(number)
    return f"a value of type {type(result).__name__}"


# Part b: hold


def _chunk(whole: range, index: int, count: int) -> range:
    """Return a piece as `torch.chunk` cuts: all are ceil(n / count) long, but the last ones may be shorter or empty."""
    length = -(-len(whole) // count)
    return whole[index * length : (index + 1) * length]


def held(shape: Sequence[int], cuts: Cuts, at: At, sizes: Sizes) -> list[range]:
    """Return the range of each dimension of the whole weight that a rank holds after all cuts."""
    kept = [range(length) for length in shape]
    for axis, dim in cuts:
        kept[dim] = _chunk(kept[dim], at[axis], sizes[axis])
    return kept


def _held_slips(shape: Sequence[int], cuts: Cuts, at: At, sizes: Sizes) -> dict[str, list[range]]:
    """Return the usual mistakes in words, and what a rank would hold after each."""
    start = [range(length) for length in shape]

    def cut(cuts: Iterable[tuple[str, int]], chunk: Callable = _chunk) -> list[range]:
        kept = list(start)
        for axis, dim in cuts:
            kept[dim] = chunk(kept[dim], at[axis], sizes[axis])
        return kept

    def alike(whole: range, index: int, count: int) -> range:
        pieces = np.array_split(np.array(whole), count)[index]
        return range(pieces[0], pieces[-1] + 1) if len(pieces) else range(0)

    def floored(whole: range, index: int, count: int) -> range:
        length = len(whole) // count
        return whole[index * length : (index + 1) * length]

    last = list(start)
    for axis, dim in cuts:
        last[dim] = _chunk(start[dim], at[axis], sizes[axis])
    slips = {
        "this makes the cuts in the opposite order": cut(reversed(cuts)),
        "a cut divides what the cuts before it left, not the whole dimension": last,
        "this makes the first cut alone": cut(cuts[:1]),
        "this makes the last cut alone": cut(cuts[-1:]),
        "these pieces are as equal as can be; torch's are ceil(n / count) long, and the last ones shorter": cut(
            cuts, alike
        ),
        "the length of a piece is rounded down; torch rounds it up": cut(cuts, floored),
    }
    local = list(start)
    for axis, dim in cuts:
        length = -(-len(local[dim]) // sizes[axis])
        left = range(len(local[dim]))[at[axis] * length : (at[axis] + 1) * length]
        local[dim] = left
    turned = [(axis, len(shape) - 1 - dim) for axis, dim in cuts]
    return slips | {
        "this cuts the other dimension": cut(turned),
        "give places in the whole weight, not in what the cuts before left": local,
        "give places in the whole weight, not in this rank's part": [range(len(each)) for each in cut(cuts)],
    }


def check_held(function: Callable, cases: Iterable[tuple[Sequence[int], Cuts, Sizes]]) -> None:
    """Check that `function(shape, cuts, at, sizes)` returns what every rank of every case holds."""
    fault, explained = "", None
    for shape, cuts, sizes in cases:
        for indices in product(*map(range, sizes.values())):
            at = dict(zip(sizes, indices, strict=True))
            call = f"{function.__name__}({tuple(shape)}, {list(cuts)}, {at}, {dict(sizes)})"
            result = own_answer(__name__, function, tuple(shape), list(cuts), dict(at), dict(sizes), call=call)
            got = _ranges(result, len(shape), call)
            want = [list(each) for each in held(shape, cuts, at, sizes)]
            slips = _held_slips(shape, cuts, at, sizes).items()
            these = [words for words, made in slips if got == [list(each) for each in made]]
            explained = these if explained is None else [words for words in explained if words in these]
            for dim, (mine, right) in enumerate(zip(got, want, strict=True)):
                if mine != right and not fault:
                    fault = f"{call} has {_run(mine)} of dimension {dim}; this rank holds {_run(right)}"
                    if len(mine) == 2 and right and mine[0] == right[0] and mine[1] - right[-1] in (0, 1):
                        fault += " (are these the two ends? Return a range, or a list of all of them)"
    if fault:
        raise NotYet(fault + (f": {explained[0]}" if explained else ""))


def _ranges(result: Any, dims: int, call: str) -> list[list[int]]:
    parts = list(result) if isinstance(result, Iterable) and not isinstance(result, str | Mapping) else None
    if parts is None or len(parts) != dims:
        raise NotYet(f"{call} returns {brief(result)}; return a range for each of the {dims} dimensions")
    listed = []
    for dim, part in enumerate(parts):
        if isinstance(part, slice) and part.start is not None and part.stop is not None:
            part = range(part.start, part.stop)
        if not isinstance(part, Iterable) or isinstance(part, str):
            raise NotYet(f"{call}: dimension {dim} has {brief(part)}; it should be a range")
        listed.append([_whole(number, f"{call}: a place in dimension {dim}") for number in part])
    return listed


def _run(numbers: list[int]) -> str:
    """Return a run of numbers as "4 to 7"; if they are no run, list them."""
    if not numbers:
        return "nothing"
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        return brief(numbers)
    return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


EVEN = [
    ((8, 4), [("tp", 0), ("shard", 0)], {"shard": 2, "tp": 2}),
    ((8, 4), [("tp", 1), ("shard", 0)], {"shard": 2, "tp": 2}),
    ((12, 8), [("tp", 0), ("shard", 0)], {"replicate": 2, "tp": 2, "shard": 3}),
    ((24, 6), [("ep", 0), ("tp", 1), ("shard", 0)], {"shard": 2, "ep": 4, "tp": 3}),
    ((6, 8, 4), [("ep", 0), ("tp", 2), ("shard", 1)], {"ep": 3, "shard": 4, "tp": 2}),
]


def uneven(most: int = 11) -> list[tuple[tuple[int, ...], list[tuple[str, int]], dict[str, int]]]:
    """Return weights of 1 to `most` rows and 5 columns, cut twice by rows, or once each way, over 4 to 8 ranks."""
    ways: list[list[tuple[str, int]]] = [[("tp", 0), ("shard", 0)], [("tp", 1), ("shard", 0)]]
    counts = [(2, 2), (2, 3), (3, 2), (4, 2)]
    return [
        ((rows, 5), cuts, {"shard": shard, "tp": tp})
        for rows in range(1, most + 1)
        for cuts in ways
        for tp, shard in counts
    ]


# Part c: place


def shares(order: Sequence[str], sizes: Sizes, gpus: int) -> dict[str, int]:
    """Return {axis: how many ranks of a group along it share a node}, by counting them."""
    strides = _strides(order, sizes)
    return {axis: sum(index * strides[axis] < gpus for index in range(sizes[axis])) for axis in order}


def _strides(order: Sequence[str], sizes: Sizes) -> dict[str, int]:
    return {axis: math.prod(sizes[inner] for inner in order[place + 1 :]) for place, axis in enumerate(order)}


def placements(most: int = 64) -> list[tuple[tuple[str, ...], dict[str, int], int]]:
    """Return every order of every mesh of three axes of 1 to 8 ranks, powers of two, on full nodes of 2, 4 and 8."""
    found = []
    for lengths in product((1, 2, 4, 8), repeat=3):
        world = math.prod(lengths)
        sizes = dict(zip(("tp", "pp", "dp"), lengths, strict=True))
        for gpus in (2, 4, 8):
            if gpus <= world <= most:
                found += [(order, sizes, gpus) for order in permutations(sizes)]
    return found


FOUR = [
    (order, {"dp": 2, "tp": 4, "pp": 4, "cp": 2}, gpus)
    for gpus in (4, 8)
    for order in permutations(("pp", "dp", "cp", "tp"))
]


def check_shares(function: Callable, cases: Iterable[tuple[tuple[str, ...], Sizes, int]]) -> None:
    """Check that `function(order, sizes, gpus)` returns {axis: ranks of a group that share a node} for all cases."""
    fault, explained = "", None
    for order, sizes, gpus in cases:
        call = f"{function.__name__}({order}, {dict(sizes)}, {gpus})"
        result = own_answer(__name__, function, order, dict(sizes), gpus, call=call)
        if not isinstance(result, Mapping) or set(result) != set(sizes):
            raise NotYet(f"{call} returns {brief(result)}; return a dictionary with the axes {_listed(order)}")
        got = {axis: _whole(result[axis], f"{call}: its {axis!r}") for axis in order}
        want = shares(order, sizes, gpus)
        these = [words for words, made in _share_slips(order, sizes, gpus).items() if got == made]
        explained = these if explained is None else [words for words in explained if words in these]
        wrong = next((axis for axis in order if got[axis] != want[axis]), None)
        if wrong and not fault:
            mesh = Mesh(**{axis: sizes[axis] for axis in order})
            fault = (
                f"{call} says {got[wrong]} for {wrong!r}; it is {want[wrong]}: a group along it is "
                f"{list(mesh.groups(wrong)[0])}, in nodes of {gpus}"
            )
    if fault:
        raise NotYet(fault + (f". {explained[0]}" if explained else ""))


def _share_slips(order: Sequence[str], sizes: Sizes, gpus: int) -> dict[str, dict[str, int]]:
    """Return the usual mistakes in words, and what each would say."""
    turned, as_listed = tuple(reversed(order)), tuple(sizes)
    strides = _strides(order, sizes)
    return {
        "This takes the last axis for the outermost one": shares(turned, sizes, gpus),
        "The axes are in the order of `order`; `sizes` may list them in another": shares(as_listed, sizes, gpus),
        "A group may be small and its ranks far apart: what is its stride?": {
            axis: min(sizes[axis], gpus) for axis in order
        },
        "A group that leaves its node may still have several ranks there": {
            axis: sizes[axis] if sizes[axis] * strides[axis] <= gpus else 1 for axis in order
        },
        "A group has no more ranks in a node than it has at all": {
            axis: max(1, gpus // strides[axis]) for axis in order
        },
        "A rank is in its own node: the least is 1": {axis: min(sizes[axis], gpus // strides[axis]) for axis in order},
        "This is the number of nodes of a group": {
            axis: sizes[axis] // share for axis, share in shares(order, sizes, gpus).items()
        },
    }


def exposed(size: int, share: int, sent: float, hides: float, machine: Machine) -> float:
    """Return the seconds of an axis's traffic that nothing hides."""
    if size == share:
        seconds = sent / machine["near"]
    else:
        seconds = max(sent * (1 - 1 / share) / machine["near"], sent / (share * machine["far"]))
    return max(0.0, seconds - hides)


RUNNING = {"near": 450e9, "far": 50e9}


def traffics(seed: int, how_many: int = 30) -> list[tuple[int, int, float, float, dict[str, float]]]:
    """Return cases `(size, share, sent, hides, machine)`; every fourth hides all, others a part or nothing.

    On some machines the network is as fast as NVLink, so that ports are the bottleneck. No table has all the rates.
    """
    random = Random(seed)
    found: list[tuple[int, int, float, float, dict[str, float]]] = []
    for number in range(how_many):
        share = 2 ** random.randint(0, 3)
        size = share * 2 ** (number % 3)
        sent = float(random.randint(1, 900)) * 1e8
        near = random.randint(100, 900)
        far = random.randint(10, 90) if number % 5 else near * random.choice((1, 4))
        machine = {"near": near * 1e9, "far": far * 1e9}
        whole = exposed(size, share, sent, 0.0, machine)
        part = random.uniform(0.1, 0.9)
        found.append((size, share, sent, whole * (0.0, part, part, 1.5)[number % 4], machine))
    return found


def check_exposed(function: Callable, cases: Iterable[tuple]) -> None:
    """Check that `function(size, share, sent, hides, machine)` is the seconds that nothing hides."""
    rows = []
    for size, share, sent, hides, machine in cases:
        call = f"{function.__name__}({size}, {share}, {sent:g}, {hides:.6g}, {dict(machine)})"
        result = own_answer(__name__, function, size, share, sent, hides, dict(machine), call=call)
        want = exposed(size, share, sent, hides, machine)
        near, far = sent / machine["near"], sent / machine["far"]
        cards, ports = far / share, near * (1 - 1 / share)
        inside = size == share
        slips = {
            "this subtracts nothing for what hides": exposed(size, share, sent, 0.0, machine),
            "what hides can't make it less than 0": (near if inside else max(cards, ports)) - hides,
            "a group with `share` ranks in a node has `share` cards there": max(
                0.0, (near if inside else max(far, ports)) - hides
            ),
            "ports and cards work at the same time: take the longer of the two": max(
                0.0, (near if inside else cards + ports) - hides
            ),
            "this forgets the ports: of `share` ranks all but one send to a neighbour in the node": max(
                0.0, (near if inside else cards) - hides
            ),
            "of `share` ranks all but one send within the node": max(
                0.0, (near if inside else max(cards, near)) - hides
            ),
            "a group within one node needs no card": max(0.0, max(cards, ports) - hides),
        }
        rows.append(Answered(call, float(number_of(result, call)), want, slips))
    check_rows(rows, lambda row: f"{row.call} returns {row.got:.6g} s; it is {row.want:.6g} s")


Costs = dict[str, dict[int, float]]  # by axis: seconds for each number of ranks that may share a node


class Choice(NamedTuple):
    """A mesh to place. `costs`: {axis: {share: exposed seconds}}. `traffic`: {axis: (bytes, seconds that hide)}."""

    sizes: dict[str, int]
    gpus: int
    costs: Costs
    traffic: dict[str, tuple[float, float]]


def choices(seed: int, how_many: int = 30) -> list[Choice]:
    """Return meshes of three to five axes in which the order matters; many defeat a sort by bytes or by size."""
    random = Random(seed)
    found: list[Choice] = []
    while len(found) < how_many:
        axes = random.sample(("pp", "dp", "cp", "tp", "ep"), 3 + len(found) % 3)
        sizes = {axis: random.choice((2, 2, 4, 8)) for axis in axes}
        if not 16 <= math.prod(sizes.values()) <= 256:
            continue
        traffic = {}
        for axis in axes:
            sent = float(random.randint(1, 900)) * 1e8
            hides = random.choice((0.0, 0.0, 0.5, 1.0, 1.5)) * sent / RUNNING["far"]
            traffic[axis] = sent, hides
        costs = {
            axis: {
                2**power: exposed(sizes[axis], 2**power, *traffic[axis], RUNNING)
                for power in range(int(math.log2(min(8, sizes[axis]))) + 1)
            }
            for axis in axes
        }
        case = Choice(sizes, 8, costs, traffic)
        prices = _prices(case)
        if max(prices.values()) > 1.2 * min(prices.values()):
            found.append(case)
    return found


def _prices(case: Choice) -> dict[tuple[str, ...], float]:
    return {order: cost_of(order, case) for order in permutations(case.sizes)}


def cost_of(order: Sequence[str], case: Choice) -> float:
    """Return the seconds that an order exposes, over all axes."""
    return sum(case.costs[axis][share] for axis, share in shares(order, case.sizes, case.gpus).items())


def least(case: Choice) -> tuple[str, ...]:
    """Return an order that exposes the fewest seconds."""
    prices = _prices(case)
    return min(prices, key=lambda order: prices[order])


def table(shares_of: Callable, exposed_of: Callable) -> str:
    """Return, as text, what a learner's functions say of NVIDIA's recipe for Llama 3 70B on 8 nodes of 8 H100.

    The bytes are those of chapter 17, with gradients as if they were summed along dp alone. Nothing hides.
    """
    sizes, sent = {"pp": 4, "dp": 2, "cp": 2, "tp": 4}, {"pp": 11e9, "dp": 19e9, "cp": 16e9, "tp": 515e9}
    lines = []
    for order in ("pp", "dp", "cp", "tp"), ("dp", "pp", "cp", "tp"), ("tp", "pp", "dp", "cp"):
        try:
            share = answer(shares_of, order, sizes, 8)
            seconds = [answer(exposed_of, sizes[axis], share[axis], sent[axis], 0, RUNNING) for axis in order]
            told = ", ".join(f"{axis} {each:.2f} s" for axis, each in zip(order, seconds, strict=True))
        except (NotYet, KeyError, TypeError, ValueError):
            told = "not yet: see the checks"
        lines.append(f"{', '.join(order)}: {told}")
    return "\n".join(lines)


def check_place(function: Callable, cases: Iterable[Choice]) -> None:
    """Check that `function(sizes, gpus, costs)` is an order of the axes, outermost first, that costs least."""
    for case in cases:
        call = f"{function.__name__}({case.sizes}, {case.gpus}, costs)"
        result = own_answer(__name__, function, *copy.deepcopy((case.sizes, case.gpus, case.costs)), call=call)
        if isinstance(result, str) or not isinstance(result, Iterable):
            raise NotYet(f"{call} returns {brief(result)}; return the axes, outermost first")
        order = tuple(result)
        if sorted(map(str, order)) != sorted(case.sizes):
            raise NotYet(f"{call} returns {order}; return each of {_listed(case.sizes)} once")
        best = least(case)
        mine, right = cost_of(order, case), cost_of(best, case)
        if mine > right * (1 + 1e-9) + 1e-12:
            raise NotYet(
                f"{call} returns {order}, which exposes {mine * 1e3:.4g} ms; {best} exposes {right * 1e3:.4g} ms. "
                f"{_where_it_goes(order, best, case)}"
            )


def _where_it_goes(order: Sequence[str], best: Sequence[str], case: Choice) -> str:
    theirs = {each: shares(each, case.sizes, case.gpus) for each in (tuple(order), tuple(best))}
    mine, right = theirs[tuple(order)], theirs[tuple(best)]
    worst = max(case.sizes, key=lambda axis: case.costs[axis][mine[axis]] - case.costs[axis][right[axis]])
    ranks = f"{mine[worst]} of {case.sizes[worst]} ranks of {worst!r} share a node"
    words = f"In yours {ranks}, in the other {right[worst]}"
    if cost_of(tuple(reversed(order)), case) <= cost_of(best, case) * (1 + 1e-9):
        words += ". Is yours the innermost first? The first axis is the outermost"
    return words
