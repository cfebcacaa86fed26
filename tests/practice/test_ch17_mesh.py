"""Exercise 17 accepts right answers however they are written, and refuses wrong ones in words that name the slip."""

import contextlib

import numpy as np
import pytest
import torch
from answers import Mutant, assert_accepted, assert_refused, verdicts, with_slip

from collectives.machines import RUNNING_CASE
from collectives.practice import ch17_mesh
from collectives.practice.checks import NotYet
from collectives.training.mesh import Mesh, cluster_of

EXERCISE = "17_mesh"
CALLS, GROUPS, WHOLE, FEW = "a1-calls", "a2-build", "a3-norm", "a4-few"
BUILD, NORM = {CALLS, GROUPS}, {WHOLE, FEW}
EVEN, UNEVEN = "b1-even", "b2-uneven"
HELD = {EVEN, UNEVEN}
SHARE, EXPOSED, PLACE = "c1-shares", "c2-exposed", "c3-place"
SHARES = {SHARE, PLACE}

# Right answers, each in another style than the solution's.

STRIDES = {
    "real": """
    def strides(sizes):
        after, found = 1, {}
        for axis in reversed(list(sizes)):
            found[axis] = after
            after *= sizes[axis]
        return found

    def build(rank, sizes, names):
        apart, world, made = strides(sizes), math.prod(sizes.values()), {}
        for name in names:
            for first in range(world):
                reach = [first]
                for axis in name.split("+"):
                    reach = [each + step * apart[axis] for each in reach for step in range(sizes[axis])]
                if all(first // apart[axis] % sizes[axis] == 0 for axis in name.split("+")):
                    group = dist.new_group(ranks=sorted(reach), backend="gloo")
                    made.setdefault(name, group) if rank not in reach else made.update({name: group})
        return made

    def norm(gradients, groups):
        by_cut = {}
        for tensor, cut in gradients:
            by_cut[cut] = by_cut.get(cut, 0) + float((tensor * tensor).sum())
        for axis in groups:
            cuts = [cut for cut in by_cut if axis in cut]
            sums = torch.tensor([by_cut[cut] for cut in cuts], dtype=torch.float64)
            if cuts:
                dist.all_reduce(sums, group=groups[axis])
            by_cut.update(zip(cuts, sums.tolist()))
        return math.sqrt(sum(by_cut.values()))
""",
    "placement": """
    def shares(order, sizes, gpus):
        counts = {}
        for place, axis in enumerate(order):
            stride = math.prod(sizes[inner] for inner in order[place + 1 :])
            counts[axis] = len([index for index in range(sizes[axis]) if index * stride < gpus])
        return counts

    def exposed(size, share, sent, hides, machine):
        if size == share:
            waits = np.float64(sent) / machine["near"]
        else:
            waits = np.maximum(sent * (share - 1) / share / machine["near"], sent / (share * machine["far"]))
        return np.clip(waits - hides, 0, None)

    def place(sizes, gpus, costs):
        priced = {order: sum(costs[axis][n] for axis, n in shares(order, sizes, gpus).items())
                  for order in itertools.permutations(sizes)}
        return list(sorted(priced, key=priced.get)[0])
""",
}
BY_COORDINATES = {
    "real": """
    def build(rank, sizes, names):
        places = list(itertools.product(*(range(size) for size in sizes.values())))
        mine = {}
        for name in names:
            rest = [n for n, axis in enumerate(sizes) if axis not in name.split("+")]
            together = {}
            for other, place in enumerate(places):
                together.setdefault(tuple(place[n] for n in rest), []).append(np.int64(other))
            for group in map(dist.new_group, together.values()):
                mine.setdefault(name, []).append(group)
            mine[name] = mine[name][[rank in each for each in together.values()].index(True)]
        return mine

    def norm(gradients, groups):
        total = torch.zeros(())
        squares = [tensor.pow(2).sum().double() for tensor, _ in gradients]
        for axis in groups:
            mine = [n for n, (_, cut) in enumerate(gradients) if axis in cut]
            if mine:
                both = torch.stack([squares[n] for n in mine])
                dist.all_reduce(both, group=groups[axis])
                for n, square in zip(mine, both):
                    squares[n] = square
        return sum(squares, total) ** 0.5
""",
    "weights": """
    def held(shape, cuts, at, sizes):
        places = np.indices(shape)
        for axis, dim in cuts:
            pieces = torch.from_numpy(np.ascontiguousarray(places)).chunk(sizes[axis], dim + 1)
            index = at[axis]
            places = pieces[index].numpy() if index < len(pieces) else np.take(places, [], dim + 1)
        found = []
        for dim, length in enumerate(shape):
            lengths = places.shape[1:]
            own = np.arange(length)
            for axis, other in cuts:
                if other == dim:
                    size = -(-len(own) // sizes[axis])
                    own = own[at[axis] * size : (at[axis] + 1) * size]
            assert len(own) == lengths[dim]
            found.append(own)
        return tuple(found)
""",
}
ONE_BY_ONE = {
    "weights": """
    def held(shape, cuts, at, sizes):
        ends = [[0, length] for length in shape]
        while cuts:
            axis, dim = cuts.pop(0)
            first, end = ends[dim]
            piece = 0
            while piece * sizes[axis] < end - first:
                piece += 1
            start = min(end, first + at[axis] * piece)
            ends[dim] = [start, min(end, start + piece)]
        return (slice(*pair) for pair in ends)
""",
    "placement": """
    def shares(order, sizes, gpus):
        room, found = gpus, {}
        for axis in order[::-1]:
            found[axis] = np.int64(min(room, sizes[axis]))
            room = max(1, room // sizes.pop(axis))
        return found

    def exposed(size, share, sent, hides, machine):
        in_node = share / size == 1
        rate = 1 / machine["near"]
        seconds = [sent * rate] if in_node else [sent * rate - sent * rate / share, sent / machine["far"] / share]
        return max([0, *(each - hides for each in seconds)])

    def place(sizes, gpus, costs):
        best, least = None, math.inf
        for order in itertools.permutations(sizes):
            total = 0
            for axis, share in shares(order, dict(sizes), gpus).items():
                total += costs[axis][int(share)]
            if total < least:
                best, least = order, total
        return (axis for axis in best)
""",
}
OTHER_CALLS = {
    "real": """
    from torch.distributed import new_subgroups_by_enumeration

    def build(rank, sizes, names):
        grid = torch.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
        made = {}
        while names:
            name = names.pop()
            dims = [list(sizes).index(axis) for axis in name.split("+")]
            rest = [n for n in range(grid.dim()) if n not in dims]
            rows = grid.permute(*rest, *sorted(dims)).reshape(-1, math.prod(grid.shape[n] for n in dims))
            made[name], _ = new_subgroups_by_enumeration(rows.tolist())
        return made

    def norm(gradients, groups):
        table = torch.tensor([[axis in cut for axis in groups] for _, cut in gradients])
        squares = torch.cat([torch.linalg.vector_norm(tensor).reshape(1) ** 2 for tensor, _ in gradients])
        for cut, group in zip(table.T, groups.values()):
            gathered = [torch.empty_like(squares) for _ in range(dist.get_world_size(group))]
            dist.all_gather(gathered, squares, group=group)
            squares = torch.where(cut, sum(gathered), squares)
        return np.sqrt(squares.sum().numpy())
""",
}
LOCALLY = {
    "real": """
    def build(rank, sizes, names):
        axes = list(sizes)
        shape = [sizes[axis] for axis in axes]
        here = np.unravel_index(rank, shape)
        made = {}
        for name in names:
            along = name.split("+")
            own = [other for other in range(int(np.prod(shape)))
                   if all(index == mine or axis in along
                          for axis, index, mine in zip(axes, np.unravel_index(other, shape), here))]
            made[name] = dist.new_group(own, use_local_synchronization=True)
        return made

    def norm(gradients, groups):
        square = 0.0
        sums = [tensor.ravel() @ tensor.ravel() for tensor, _ in gradients]
        for axis, group in groups.items():
            vector = torch.stack([each * (axis in cut) for each, (_, cut) in zip(sums, gradients)])
            dist.all_reduce(vector, group=group)
            sums = [new if axis in cut else old for old, new, (_, cut) in zip(sums, vector, gradients)]
        for each in sums:
            square += each.item()
        return square**0.5
""",
}
AS_TORCH_RETURNS = {
    "real": """
    def build(rank, sizes, names):
        grid, found = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values())), {}
        for name in names:
            along = sorted(list(sizes).index(axis) for axis in name.split("+"))
            if math.prod(grid.shape[n] for n in along) == grid.size:
                found[name] = dist.group.WORLD
                continue
            last = np.moveaxis(grid, along, range(-len(along), 0))
            for row in last.reshape(-1, math.prod(grid.shape[n] for n in along)).tolist():
                group = dist.new_group(row)
                if group == dist.GroupMember.NON_GROUP_MEMBER:
                    assert rank not in row and dist.get_rank(group) == -1
                    continue
                assert group.size() == dist.get_world_size(group) == len(row)
                assert dist.get_rank(group) == row.index(dist.get_rank())
                assert dist.get_process_group_ranks(group) == row
                found[name] = group
        dist.barrier()
        return found

    def norm(gradients, groups):
        square = torch.zeros(1, dtype=torch.float64)
        for tensor, cut in gradients:
            copies = math.prod(dist.get_world_size(group) for axis, group in groups.items() if axis not in cut)
            square += tensor.double().square().sum() / copies
        dist.all_reduce(square)
        return square.sqrt()
""",
}
RIGHT = {
    "as torch returns groups": AS_TORCH_RETURNS,
    "by strides": STRIDES,
    "by coordinates": BY_COORDINATES,
    "takes its arguments apart": ONE_BY_ONE,
    "other calls of torch": OTHER_CALLS,
    "only its own groups, in a local call": LOCALLY,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


def test_the_solution_is_accepted():
    assert set(verdicts(EXERCISE, {}, "abc").values()) == {None}


# Wrong answers: the solution with one thing changed.

MUTANTS = [
    Mutant(
        "the first axis fastest",
        "real",
        ".reshape(*sizes.values())",
        ".reshape(*sizes.values(), order='F')",
        BUILD,
        "In all of them the first axis moves fastest; it should be the last one",
        origin="page 17",
    ),
    Mutant(
        "only those on the rank's own way",
        "real",
        "            group = dist.new_group(members)\n            if rank in members:\n",
        "            if rank in members:\n                group = dist.new_group(members)\n",
        BUILD,
        "rank 0 calls dist.new_group for [0, 4] where rank 1 calls it for [1, 5]. All ranks must make the same",
    ),
    Mutant(
        "lists for groups",
        "real",
        "mine[name] = group",
        "mine[name] = members",
        BUILD,
        "its 'dp' is a list of ranks; it should be what dist.new_group returned",
    ),
    Mutant(
        "the last group for all",
        "real",
        "            if rank in members:\n                mine[name] = group",
        "            mine[name] = group",
        BUILD,
        "its 'dp' is -100, a group without rank 0; it should be what dist.new_group returned",
    ),
    Mutant(
        "all ranks",
        "real",
        "dist.new_group(members)",
        "dist.new_group()",
        BUILD,
        "Rank 1 has another index along 'tp'; in this group only 'dp' may differ",
    ),
    Mutant(
        "the axes exchanged",
        "real",
        'for axis in name.split("+"))\n',
        'for axis in name.split("+"))\n        along = [len(axes) - 1 - axis for axis in along]\n',
        BUILD,
        "its 'dp' is a group of [0, 1, 2, 3]; it should be [0, 4]",
        origin="page 17",
    ),
    Mutant(
        "always neighbours",
        "real",
        "        last = np.moveaxis(grid, along, range(-len(along), 0))\n",
        "        last = grid\n",
        BUILD,
        "its 'dp' is a group of [0, 1]; it should be [0, 4]. Rank 1 has another index along 'tp'",
    ),
    Mutant(
        "a plane of one axis",
        "real",
        'in name.split("+"))',
        'in name.split("+")[:1])',
        BUILD,
        "Ranks that differ only along 'cp', 'dp' are missing",
        origin="page 17",
    ),
    Mutant(
        "a group of the rest",
        "real",
        '        along = sorted(axes.index(axis) for axis in name.split("+"))\n',
        '        along = [n for n, axis in enumerate(axes) if axis not in name.split("+")] or [0]\n',
        BUILD,
        "its 'dp' is a group of [0, 1, 2, 3]; it should be [0, 4]",
    ),
    Mutant(
        "each rank in its own order",
        "real",
        "    for name in names:\n        along",
        "    for name in names[rank % 2 :] + names[: rank % 2]:\n        along",
        BUILD,
        "even for groups that they are not in, or they wait for each other forever",
    ),
    Mutant(
        "the whole world for a plane",
        "real",
        "            group = dist.new_group(members)\n",
        "            group = dist.new_group(members if '+' not in name else range(grid.size))\n"
        "            members = members if '+' not in name else list(range(grid.size))\n",
        BUILD,
        "in this group only 'cp' and 'dp' may differ",
    ),
    Mutant(
        "an axis of one rank left out",
        "real",
        "    for name in names:\n        along",
        "    for name in names:\n"
        "        if all(sizes[axis] == 1 for axis in name.split('+')):\n"
        "            continue\n"
        "        along",
        {CALLS},
        "returns no group for 'cp'",
    ),
    Mutant(
        "axes sorted by name",
        "real",
        "axes, grid = list(sizes),",
        "sizes = dict(sorted(sizes.items()))\n    axes, grid = list(sizes),",
        BUILD,
        "its 'cp+dp' is a group of [0, 4, 8, 12, 16, 20]; it should be [0, 2, 4, 6, 8, 10]",
    ),
    Mutant(
        "own parts alone",
        "real",
        "        dist.all_reduce(along, group=group)\n",
        "",
        NORM,
        "every rank has only its own parts in it",
        origin="page 09",
    ),
    Mutant(
        "over all ranks",
        "real",
        "dist.all_reduce(along, group=group)",
        "dist.all_reduce(along)",
        NORM,
        "an all-reduce without `group=` sums over all ranks",
    ),
    Mutant(
        "copies counted again",
        "real",
        "torch.tensor([axis in cut for _, cut in gradients])",
        "torch.tensor([True for _, cut in gradients])",
        NORM,
        "so a parameter that an axis copies counts several times",
        origin="page 17",
    ),
    Mutant(
        "the pipeline forgotten",
        "real",
        "    for axis, group in groups.items():\n        cut",
        "    for axis, group in groups.items():\n"
        "        if axis == list(groups)[0]:\n"
        "            continue\n"
        "        cut",
        NORM,
        "nothing is summed along 'pp'",
        origin="page 17",
    ),
    Mutant(
        "no root", "real", "squares.sum().sqrt().item()", "squares.sum().item()", NORM, "this is the square of the norm"
    ),
    Mutant("norms added", "real", "tensor.square().sum() for", "tensor.norm() for", NORM, "norms add up as squares"),
    Mutant(
        "the first axis of a cut",
        "real",
        "[axis in cut for _, cut in gradients]",
        "[axis in cut[:1] for _, cut in gradients]",
        NORM,
        "this sums along one axis of those that cut a parameter",
    ),
    Mutant(
        "along the copies",
        "real",
        "[axis in cut for _, cut in gradients]",
        "[axis not in cut for _, cut in gradients]",
        NORM,
        "along the axes that copy a parameter, and not along those that cut it",
    ),
    Mutant(
        "a mean over ranks",
        "real",
        "        squares[cut] = along\n",
        "        squares[cut] = along / dist.get_world_size(group)\n",
        NORM,
        "this divides by the ranks of a group",
    ),
    Mutant(
        "squared in place",
        "real",
        "tensor.square().sum()",
        "tensor.square_().sum()",
        NORM,
        "its gradients are changed; work on a copy",
    ),
    Mutant(
        "a collective a parameter",
        "real",
        "        along = squares[cut]\n        dist.all_reduce(along, group=group)\n        squares[cut] = along\n",
        "        for number in range(len(squares)):\n"
        "            if cut[number]:\n"
        "                dist.all_reduce(squares[number], group=group)\n",
        {FEW},
        "one along each axis is enough, 2",
    ),
    Mutant(
        "a collective a parameter, in a group that is gone",
        "real",
        "        along = squares[cut]\n        dist.all_reduce(along, group=group)\n        squares[cut] = along\n",
        "        own = dist.new_group(dist.get_process_group_ranks(group), use_local_synchronization=True)\n"
        "        for number in range(len(squares)):\n"
        "            if cut[number]:\n"
        "                own._get_backend(torch.device('cpu')).allreduce([squares[number]]).wait()\n"
        "        dist.destroy_process_group(own)\n",
        NORM,
        "no new group can be made here",
    ),
    Mutant(
        "returns all norms",
        "real",
        "squares.sum().sqrt().item()",
        "squares.sqrt()",
        NORM,
        "returns a value of type Tensor; return the norm, a number",
    ),
    Mutant(
        "the last cut first",
        "weights",
        "for axis, dim in cuts:",
        "for axis, dim in reversed(cuts):",
        HELD,
        "this makes the cuts in the opposite order",
        origin="M13",
    ),
    Mutant(
        "of the whole dimension",
        "weights",
        "kept[dim] = kept[dim][",
        "kept[dim] = range(shape[dim])[",
        HELD,
        "give places in the whole weight, not in what the cuts before left",
        origin="M13",
    ),
    Mutant(
        "the first cut alone",
        "weights",
        "for axis, dim in cuts:",
        "for axis, dim in cuts[:1]:",
        HELD,
        "this makes the first cut alone",
        origin="M13",
    ),
    Mutant(
        "the other dimension",
        "weights",
        "for axis, dim in cuts:",
        "for axis, dim in [(axis, len(shape) - 1 - dim) for axis, dim in cuts]:",
        HELD,
        "this cuts the other dimension",
    ),
    Mutant(
        "pieces rounded down",
        "weights",
        "math.ceil(len(kept[dim]) / sizes[axis])",
        "len(kept[dim]) // sizes[axis]",
        {UNEVEN},
        "the length of a piece is rounded down; torch rounds it up",
    ),
    Mutant(
        "pieces as equal as can be",
        "weights",
        "        piece = math.ceil(len(kept[dim]) / sizes[axis])\n"
        "        kept[dim] = kept[dim][at[axis] * piece : (at[axis] + 1) * piece]\n",
        "        places = np.array_split(kept[dim], sizes[axis])[at[axis]]\n"
        "        kept[dim] = range(places[0], places[-1] + 1) if len(places) else range(0)\n",
        {UNEVEN},
        "torch's are ceil(n / count) long, and the last ones shorter",
    ),
    Mutant(
        "the two ends",
        "weights",
        "return kept",
        "return [(each.start, each.stop) for each in kept]",
        HELD,
        "are these the two ends?",
    ),
    Mutant(
        "places in what is left",
        "weights",
        "return kept",
        "return [range(len(each)) for each in kept]",
        HELD,
        "give places in the whole weight, not in this rank's part",
    ),
    Mutant(
        "sizes for places",
        "placement",
        "max(1, gpus // stride)",
        "gpus",
        SHARES,
        "A group may be small and its ranks far apart: what is its stride?",
        origin="M14",
    ),
    Mutant(
        "the innermost first",
        "placement",
        "reversed(order)",
        "order",
        SHARES,
        "This takes the last axis for the outermost one",
        origin="page 17",
    ),
    Mutant(
        "as sizes lists them",
        "placement",
        "reversed(order)",
        "reversed(list(sizes))",
        SHARES,
        "`sizes` may list them in another",
    ),
    Mutant(
        "all or one",
        "placement",
        "min(sizes[axis], max(1, gpus // stride))",
        "sizes[axis] if sizes[axis] * stride <= gpus else 1",
        SHARES,
        "A group that leaves its node may still have several ranks there",
        origin="page 17",
    ),
    Mutant(
        "no rank at all",
        "placement",
        "max(1, gpus // stride)",
        "gpus // stride",
        SHARES,
        "A rank is in its own node: the least is 1",
    ),
    Mutant(
        "more ranks than the group has",
        "placement",
        "min(sizes[axis], max(1, gpus // stride))",
        "max(1, gpus // stride)",
        SHARES,
        "A group has no more ranks in a node than it has at all",
    ),
    Mutant(
        "its nodes",
        "placement",
        "found[axis] = min(sizes[axis], max(1, gpus // stride))",
        "found[axis] = sizes[axis] // min(sizes[axis], max(1, gpus // stride))",
        SHARES,
        "This is the number of nodes of a group",
    ),
    Mutant(
        "nothing hides",
        "placement",
        "max(ports, cards) - hides)",
        "max(ports, cards))",
        {EXPOSED},
        "this subtracts nothing for what hides",
        origin="page 10",
    ),
    Mutant(
        "less than nothing",
        "placement",
        "return max(0, max(ports, cards) - hides)",
        "return max(ports, cards) - hides",
        {EXPOSED},
        "what hides can't make it less than 0",
    ),
    Mutant(
        "one card a group",
        "placement",
        "sent / share / machine",
        "sent / machine",
        {EXPOSED},
        "a group with `share` ranks in a node has `share` cards there",
        origin="page 17",
    ),
    Mutant(
        "ports and cards in turn",
        "placement",
        "max(ports, cards) - hides",
        "ports + cards - hides",
        {EXPOSED},
        "ports and cards work at the same time: take the longer of the two",
    ),
    Mutant(
        "no ports",
        "placement",
        "max(ports, cards) - hides",
        "(cards or ports) - hides",
        {EXPOSED},
        "this forgets the ports",
    ),
    Mutant(
        "all bytes through the ports",
        "placement",
        "ports * (1 - 1 / share), sent",
        "ports, sent",
        {EXPOSED},
        "of `share` ranks all but one send within the node",
    ),
    Mutant(
        "sorted by what leaving costs",
        "placement",
        "    return min(itertools.permutations(sizes), key=seconds)",
        "    return sorted(sizes, key=lambda axis: costs[axis][1])",
        {PLACE},
        "which exposes 3212 ms",
    ),
    Mutant(
        "sorted by size",
        "placement",
        "    return min(itertools.permutations(sizes), key=seconds)",
        "    return sorted(sizes, key=lambda axis: -sizes[axis])",
        {PLACE},
        "ranks of 'dp' share a node, in the other 4",
    ),
    Mutant(
        "the dearest", "placement", "return min(itertools", "return max(itertools", {PLACE}, "which exposes 703.1 ms"
    ),
    Mutant(
        "innermost first in the answer",
        "placement",
        "return min(itertools.permutations(sizes), key=seconds)",
        "return min(itertools.permutations(sizes), key=seconds)[::-1]",
        {PLACE},
        "Is yours the innermost first? The first axis is the outermost",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant):
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant))


# What is said of any answer.

TWO = [((2, 2), [("tp", 0)], {"tp": 2})]
ORDER = [(("dp", "tp"), {"dp": 2, "tp": 2}, 2)]


@pytest.mark.parametrize(
    "check, given, words",
    [
        (lambda f: ch17_mesh.check_calls(f, [({"dp": 2}, ["dp"])]), None, "returns None; is its `return` missing?"),
        (lambda f: ch17_mesh.check_calls(f, [({"dp": 2}, ["dp"])]), [], "return a dictionary with the names 'dp'"),
        (lambda f: ch17_mesh.check_calls(f, [({"dp": 2}, ["dp"])]), {}, "returns no group for 'dp'"),
        (lambda f: ch17_mesh.check_calls(f, [({"dp": 2}, [])]), {"tp": 1}, "also returns a group for 'tp'"),
        (lambda f: ch17_mesh.check_held(f, TWO), 3, "return a range for each of the 2 dimensions"),
        (lambda f: ch17_mesh.check_held(f, TWO), [1, 2], "dimension 0 has 1; it should be a range"),
        (lambda f: ch17_mesh.check_held(f, TWO), [[0.5], [0, 1]], "is 0.5; it should be a whole number"),
        (lambda f: ch17_mesh.check_shares(f, ORDER), [1, 2], "return a dictionary with the axes 'dp', 'tp'"),
        (lambda f: ch17_mesh.check_shares(f, ORDER), {"dp": 1, "tp": "2"}, "returns '2', which is not a number"),
        (lambda f: ch17_mesh.check_exposed(f, ch17_mesh.traffics(1)), "0 s", "which is not a number"),
        (lambda f: ch17_mesh.check_place(f, ch17_mesh.choices(1)), "tp", "return the axes, outermost first"),
        (lambda f: ch17_mesh.check_place(f, ch17_mesh.choices(1)), ["tp"], "once"),
    ],
)
def test_a_malformed_answer_is_told_of_plainly(check, given, words):
    with pytest.raises(NotYet) as refusal:
        check(lambda *_: given)
    assert words in str(refusal.value)


def test_the_librarys_own_answers_are_for_comparing_afterwards():
    mesh = Mesh(dp=2, tp=2)
    with pytest.raises(NotYet, match=r"the library's own mesh\.groups is for comparing, afterwards"):
        ch17_mesh.check_calls(lambda rank, sizes, names: mesh.groups("dp"), [({"dp": 2, "tp": 2}, ["dp"])])
    for check, answer in (
        (lambda f: ch17_mesh.check_held(f, TWO), ch17_mesh.held),
        (lambda f: ch17_mesh.check_shares(f, ORDER), ch17_mesh.shares),
        (lambda f: ch17_mesh.check_exposed(f, ch17_mesh.traffics(1)), ch17_mesh.exposed),
        (lambda f: ch17_mesh.check_shares(f, ORDER), lambda *_: cluster_of(mesh, "dp", RUNNING_CASE)),
    ):
        with pytest.raises(NotYet, match="is for comparing, afterwards"):
            check(answer)
    assert mesh.groups("dp") == [[0, 2], [1, 3]], "and works again outside"


BESIDE_COLLECTIVES = [
    Mutant(
        "through the store",
        "real",
        "dist.all_reduce(along, group=group)",
        """store, ranks = dist.distributed_c10d._get_default_store(), dist.get_process_group_ranks(group)
        store.set(f"{axis} {dist.get_rank()}", repr(along.tolist()))
        along = torch.tensor([eval(store.get(f"{axis} {each}")) for each in ranks], dtype=along.dtype).sum(0)""",
        NORM,
        "and there is no store",
    ),
    Mutant(
        "a message for each parameter",
        "real",
        "dist.all_reduce(along, group=group)",
        """for one in along.split(1):
            mine = one.clone()
            for other in dist.get_process_group_ranks(group):
                if other != dist.get_rank():
                    sending, there = dist.isend(mine, other), torch.empty_like(mine)
                    dist.recv(there, other)
                    sending.wait()
                    one += there""",
        {FEW},
        "collectives or sends; one along each axis is enough",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", BESIDE_COLLECTIVES, ids=lambda mutant: mutant.slip)
def test_a_norm_that_goes_round_the_collectives_is_refused(mutant):
    said = verdicts(EXERCISE, with_slip(EXERCISE, mutant), parts=NORM)
    assert {check for check, words in said.items() if words} == mutant.refuse
    assert mutant.says in said[max(mutant.refuse)]


def test_torchs_device_mesh_is_no_answer_on_ranks():
    def build(rank, sizes, names):
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        return {name: mesh.get_group(name) for name in names}

    with pytest.raises(NotYet, match=r"device_mesh\.init_device_mesh is for comparing, afterwards"):
        ch17_mesh.check_build(build, {"dp": 2, "tp": 2}, ["dp"])


def test_a_piece_is_that_of_torchs_chunk():
    for length in range(1, 12):
        for count in range(1, 6):
            pieces = [piece.tolist() for piece in torch.arange(length).chunk(count)] + [[]] * count
            cut = [list(ch17_mesh.held([length], [("tp", 0)], {"tp": n}, {"tp": count})[0]) for n in range(count)]
            assert cut == pieces[:count]


def test_shares_and_seconds_are_those_of_the_library():
    for order, sizes, gpus in ch17_mesh.FOUR:
        if gpus == 8:
            mesh = Mesh(**{axis: sizes[axis] for axis in order})
            parts = {axis: cluster_of(mesh, axis, RUNNING_CASE) for axis in order}
            assert ch17_mesh.shares(order, sizes, 8) == {axis: part.gpus_per_node for axis, part in parts.items()}


def test_a_sort_by_bytes_or_by_size_is_no_placement():
    """The audit of the first version: sorting by bytes passed its visible check."""
    cases = ch17_mesh.choices(17)
    for key in (lambda case, axis: case.traffic[axis][0], lambda case, axis: -case.sizes[axis]):
        right = 0
        for case in cases:
            order = sorted(case.sizes, key=lambda axis, case=case, key=key: key(case, axis))
            right += np.isclose(ch17_mesh.cost_of(order, case), ch17_mesh.cost_of(ch17_mesh.least(case), case))
        assert right < len(cases) / 2


def test_what_is_missing_is_named():
    missing = "def {}(*_):\n    raise NotImplementedError()\n\n"
    names = {"real": ["build", "norm"], "weights": ["held"], "placement": ["shares", "exposed", "place"]}
    said = verdicts(EXERCISE, {cell: "".join(map(missing.format, each)) for cell, each in names.items()}, "abc")
    told = ["build", "build", "norm", "norm", "held", "held", "shares", "exposed", "place"]
    assert list(said.values()) == [f"{name} is not written yet" for name in told]


def tabled_exposed(size, share, sent, hides, machine):
    """By a table of seconds a byte, which was made elsewhere for the machines that every draw once had."""
    rates = (450e9, 50e9), (100e9, 100e9), (100e9, 400e9)
    table = {key: ch17_mesh.exposed(size, share, 1, 0, dict(zip(("near", "far"), key, strict=True))) for key in rates}
    return max(0.0, table[machine["near"], machine["far"]] * sent - hides)


@pytest.mark.parametrize("seed", range(5))
def test_a_table_of_a_few_machines_is_no_answer(seed, monkeypatch):
    monkeypatch.setattr(ch17_mesh, "without_the_library", contextlib.nullcontext)
    with pytest.raises(NotYet, match="KeyError"):
        ch17_mesh.check_exposed(tabled_exposed, ch17_mesh.traffics(seed))


def test_a_group_that_dist_new_group_has_not_made_is_refused():
    def build(rank, sizes, names):
        return {"dp": ch17_mesh.Named((rank % 2, rank % 2 + 2), rank)}  # the right one

    with pytest.raises(NotYet, match=r"nothing has called dist\.new_group for its 'dp', \[0, 2\]"):
        ch17_mesh.check_calls(build, [({"dp": 2, "tp": 2}, ["dp"])])
