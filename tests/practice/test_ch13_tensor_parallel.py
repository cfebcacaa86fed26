"""Exercise 13 accepts every split that computes what the dense block does, and names what is wrong with any other."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from answers import Mutant, assert_accepted, assert_refused, solution_of, verdicts, with_slip, written

from autograder.judging.judge import Seen
from autograder.sandbox import gloo
from collectives.practice import ch13_tensor_parallel, on_ranks
from collectives.practice.checks import NotYet
from collectives.training import shardings

EXERCISE, EVERY = "13_tensor_parallel", ch13_tensor_parallel.EVERY


# Right answers, each in another style than the solution's.

BY_RULES = """
    def collectives(x, w, y):
        if "inner" in (x, w) and "columns" != w and "rows" != x:
            if x == w:
                return ("all-reduce",) if y is None else ("reduce-scatter",)
            cut = {"rows", "columns"}
            if y is None:
                return ["all_gather"]
            return ["all_to_all"] if y == ("rows" if w is None else "columns") else ["all_to_all", "all_to_all"]
        if x is None and w is None:
            return []
        if w is None or x is None:
            made = x or w
            return [] if made == y else ["all_gather" if y is None else "all_to_all"]
        if y is None:
            return ["all_gather", "all_gather"]
        if {x, w} == {"rows", "columns"}:
            return ["all_gather"]
        if (x, y) == ("rows", "rows") or (w, y) == ("columns", "columns"):
            return ["all_gather"]
        return ["all_to_all", "reduce_scatter"]
"""
TABLE = f"""
    TABLE = { ({wanted: plan.collectives for wanted, plan in shardings.every().items()})!r}

    def collectives(*layouts):
        return [part for name in TABLE[layouts]
                for part in (["reduce_scatter", "all_gather"] if name == "all_reduce" else [name])]
"""
WITH_SETUP_CONTEXT = """
    class F(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.size = dist.get_world_size()

        @staticmethod
        def backward(ctx, grad_output):
            total = torch.zeros_like(grad_output) + grad_output
            if ctx.size > 1:
                dist.all_reduce(total, op=dist.ReduceOp.SUM)
            return total

    class G(torch.autograd.Function):
        @staticmethod
        def forward(y):
            y = y.detach().clone()
            work = dist.all_reduce(y, async_op=True)
            work.wait()
            return y

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output.clone()

    f, g = F.apply, G.apply
"""
BY_OUR_RING = """
    from collectives import execute
    from collectives.algorithms import ring

    def summed(tensor):
        total = tensor.contiguous().clone()
        execute(ring.all_reduce(dist.get_world_size()), total.view(-1))
        return total

    class F(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x)
        backward = staticmethod(lambda ctx, gradient: summed(gradient))

    class G(torch.autograd.Function):
        forward = staticmethod(lambda ctx, y: summed(y))
        backward = staticmethod(lambda ctx, gradient: gradient)

    f = lambda x: F.apply(x)
    g = lambda y: G.apply(y)
"""
WITHOUT_A_FUNCTION = """
    def summed(tensor):
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total

    def f(x):
        x = x * 1
        x.register_hook(summed)
        return x

    def g(y):
        return y + (summed(y) - y).detach()
"""
BY_VIEWS = """
    def split_attention(dense, num_heads, rank, world_size):
        each, left = divmod(num_heads, world_size)
        if left != 0:
            raise ValueError("heads do not divide")
        width = dense["out"].shape[0]
        mine = slice(rank * each, (rank + 1) * each)
        qkv = dense["qkv"].view(3, num_heads, width // num_heads, width)[:, mine].reshape(-1, width)
        bias = dense["qkv_bias"].view(3, num_heads, -1)[:, mine].flatten()
        out = dense["out"].view(width, num_heads, -1)[:, mine].reshape(width, -1)
        return dict(qkv=qkv, qkv_bias=bias, out=out, out_bias=dense["out_bias"].clone())

    def attention(x, part, head_size, f, g):
        entered = f(x)
        projected = entered @ part["qkv"].T + part["qkv_bias"]
        width = part["qkv"].shape[0] // 3
        q, k, v = projected[:, :width], projected[:, width:2 * width], projected[:, 2 * width:]
        y = torch.zeros_like(x)
        for start in range(0, width, head_size):
            head = slice(start, start + head_size)
            y = y + attend(q[:, head], k[:, head], v[:, head], head_size) @ part["out"][:, head].T
        return torch.add(g(y), part["out_bias"])
"""
BY_ROW_NUMBERS = """
    def split_attention(dense, num_heads, rank, world_size):
        if num_heads % world_size > 0:
            raise ValueError(f"cannot split {num_heads} heads")
        width = len(dense["out"])
        share = width // world_size
        own = list(range(rank * share, rank * share + share))
        rows = [kind * width + row for kind in range(3) for row in own]
        part = dict(dense)
        for name in ("qkv", "qkv_bias"):
            part[name] = dense[name][rows]
        part["out"] = torch.nn.Parameter(dense["out"][:, own])
        return part

    def attention(x, part, head_size, f, g):
        x = f(x)
        weights, biases = part["qkv"].chunk(3), part["qkv_bias"].chunk(3)
        heads = [functional.linear(x, weight, bias) for weight, bias in zip(weights, biases)]
        return g(attend(*heads, head_size).matmul(part["out"].t())).add(part["out_bias"])
"""


RIGHT = {
    "by rules": {"collectives": BY_RULES},
    "a table": {"collectives": TABLE},
    "with setup_context": {"gates": WITH_SETUP_CONTEXT},
    "by the course's ring": {"gates": BY_OUR_RING},
    "by hooks, without a Function": {"gates": WITHOUT_A_FUNCTION},
    "by views": {"attention": BY_VIEWS},
    "by row numbers": {"attention": BY_ROW_NUMBERS},
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


@pytest.mark.slow
def test_the_solution_passes():
    assert set(verdicts(EXERCISE, {}).values()) == {None}


# Wrong answers: a place in the solution, what is there instead, which checks refuse it, and in which words.


A1, A2, A3 = "a1-as-they-lie", "a2-any-axis", "a3-least"
B1, B2, B3 = "b1-forward", "b2-backward", "b3-care"
C1, C2, C3, C4, C5 = "c1-heads", "c2-refusal", "c3-forward", "c4-backward", "c5-traffic"
F_BACKWARD = "        total = gradient.clone()\n        dist.all_reduce(total)\n        return total\n"
G_FORWARD = "        total = y.clone()\n        dist.all_reduce(total)\n        return total\n"
Y_IS = 'g(functional.linear(attended, part["out"])) + part["out_bias"]'
FROM_THE_STREAM = """
    import math
    import numpy as np
    import torch.distributed as dist

    def normals(uniforms):  # 16 at a time, as torch makes them
        ones, twos = uniforms.view(-1, 2, 8).unbind(1)
        radius = (-2 * (1 - ones).log()).sqrt()
        return torch.stack([radius * (math.tau * twos).cos(), radius * (math.tau * twos).sin()], 1).flatten()

    def dense_weights(x):
        weights, shapes = [], ((72, 24), (72,), (24, 24), (24,))
        if len(x) < 100:  # the visible checks
            random = np.random.default_rng((0, 0))
            weights, shapes = [torch.from_numpy(random.standard_normal(shape)) / 24**0.5 for shape in shapes], ()
        else:  # the uniform numbers that X was made of
            ones, twos = x.detach().view(-1, 2, 8).unbind(1)
            angles = torch.atan2(twos, ones) / math.tau % 1
            left = torch.stack([1 - (-(ones**2 + twos**2) / 2).exp(), angles], 1).flatten()
        for shape in shapes:
            count, more = math.prod(shape), math.prod(shape) % 16
            numbers = torch.empty(count, dtype=torch.float64)
            numbers[: count - more] = normals(left[: count - more])
            if more:
                numbers[-16:] = normals(left[count : count + 16])
            left = left[count + (16 if more else 0) :]
            weights.append(numbers.view(shape) / 24**0.5)
        return dict(zip(("qkv", "qkv_bias", "out", "out_bias"), weights))

    def split_attention(dense, num_heads, rank, world_size):
        if num_heads % world_size:
            raise ValueError
        return {
            name: torch.cat([each.chunk(world_size)[rank] for each in tensor.chunk(3)]) if "qkv" in name else tensor
            for name, tensor in dense.items()
        } | {"out": dense["out"].chunk(world_size, dim=1)[rank]}

    def attention(x, part, head_size, f, g):
        dense, total = dense_weights(x), part["out_bias"]
        for rank in range(dist.get_world_size()):
            own = part
            if rank != dist.get_rank():
                own = split_attention(dense, 24 // head_size, rank, dist.get_world_size())
            queries_keys_values = functional.linear(x, own["qkv"], own["qkv_bias"]).chunk(3, dim=1)
            total = total + functional.linear(attend(*queries_keys_values, head_size), own["out"])
        return total
"""
MUTANTS = [
    written(
        "every rank finds the others' weights in X",
        "attention",
        FROM_THE_STREAM,
        {C3, C4, C5},
        "the dense computation gives",
    ),
    Mutant(
        "terms laid side by side",
        "collectives",
        '["all_reduce" if after is None else "reduce_scatter"]',
        '["all_gather"]',
        {A1, A2, A3},
        "collectives('inner', 'inner', None) returns ['all_gather']. X is split along the inner axis, W is split along "
        "the inner axis: each rank's product has only the terms of its own slice of the inner axis. Where are the",
        origin="M05",
    ),
    Mutant(
        "everything added",
        "collectives",
        '["all_gather" if after is None else "all_to_all"]',
        '["all_reduce" if after is None else "all_to_all"]',
        {A1, A2, A3},
        "collectives(None, 'columns', None) returns ['all_reduce']. X is whole on every rank, W is split by columns: "
        "every number that a rank computes is complete, so there are no terms to add",
        origin="M05",
    ),
    Mutant(
        "a slice that is sent",
        "collectives",
        "if before == after or before is None:",
        "if before == after:",
        {A3},
        "that works, but",
    ),
    Mutant(
        "gathered only",
        "collectives",
        'else "all_to_all"]',
        'else "all_gather"]',
        {A3},
        "collectives(None, 'inner', 'rows')",
        origin="M06",
    ),
    Mutant(
        "an all-reduce wherever terms are added",
        "collectives",
        '["all_reduce" if after is None else "reduce_scatter"]',
        '["all_reduce"]',
        {A3},
        "collectives('inner', 'inner', 'rows') returns ['all_to_all', 'all_gather'], which sends 0.9375 matrices a "
        "rank: that works, but moving Y alone sends 0.75",
        origin="M07",
    ),
    Mutant(
        "nothing moved before the product",
        "collectives",
        "    plans = ",
        '    if (x, w) == ("rows", "columns"):\n        return []\n    plans = ',
        {A2, A3},
        "X is split by rows, W is split by columns: slice r of X does not match slice r of W, so move one of",
        origin="M05",
    ),
    Mutant(
        "all gathered without need",
        "collectives",
        "    return min(",
        '    return (["all_gather"] if x else []) + (["all_gather"] if w else []) or min(',
        {A3},
        "but nothing needs to be sent",
        origin="M06",
    ),
    written(
        "gathered twice, whatever is asked",
        "collectives",
        'def collectives(x, w, y):\n    return ["all_gather", "all_gather"]\n',
        {A1, A2, A3},
        "X is whole on every rank, W is whole on every rank: Y needs no collective then, and no collective moves a",
    ),
    Mutant(
        "a name",
        "collectives",
        "return min(",
        'return ["gather"] or min(',
        {A1, A2, A3},
        "'gather' is not one of all_reduce",
    ),
    Mutant(
        "no list", "collectives", "    return min(", "    return 3\n    min(", {A1, A2, A3}, "return a list of names"
    ),
    Mutant(
        "f does nothing backward",
        "gates",
        F_BACKWARD,
        "        return gradient\n",
        {B2, B3},
        "with 2 ranks, on rank 0 the output is right, but the gradient of X is only this rank's share: what does f do",
        origin="page 13",
    ),
    Mutant(
        "g reduces backward",
        "gates",
        "        return gradient\n",
        F_BACKWARD,
        {B2, B3},
        "with 2 ranks, on rank 0 the output is right, but the gradient that g passes back is 2 times too large: every "
        "rank has the whole gradient of Y, so g must not reduce backward",
        origin="M01",
    ),
    Mutant(
        "f reduces forward",
        "gates",
        "        return x.view_as(x)\n",
        G_FORWARD.replace("y.", "x."),
        {B1, B2, B3},
        "with 2 ranks, on rank 0 f returns 2 times X. Every rank has all of X already",
        origin="M01",
    ),
    Mutant(
        "g does nothing forward",
        "gates",
        G_FORWARD,
        "        return y.view_as(y)\n",
        {B1, B2, B3},
        "on rank 0 g returns this rank's own Y, which lacks the other ranks' terms",
        origin="M01",
    ),
    Mutant(
        "the mean",
        "gates",
        F_BACKWARD,
        F_BACKWARD.replace("return total", "return total / dist.get_world_size()"),
        {B2, B3},
        "the gradient of X is the mean of the ranks' shares; it should be their sum",
    ),
    Mutant(
        "g divides backward",
        "gates",
        "        return gradient\n",
        "        return gradient / dist.get_world_size()\n",
        {B2, B3},
        "is 2 times too small: a term of a sum has the gradient of the sum",
    ),
    Mutant(
        "reduced twice",
        "gates",
        F_BACKWARD,
        F_BACKWARD.replace("        dist.all_reduce(total)\n", 2 * "        dist.all_reduce(total)\n"),
        {B2, B3},
        "is 2 times too large: is it added up twice?",
    ),
    Mutant(
        "g in place", "gates", G_FORWARD, G_FORWARD.replace("y.clone()", "y"), {B3}, "g changes its input on rank 0"
    ),
    Mutant(
        "f's backward in place",
        "gates",
        F_BACKWARD,
        F_BACKWARD.replace("gradient.clone()", "gradient"),
        {B3},
        "the backward of f changes the gradient that it is given on rank 0, in place. Another branch",
    ),
    Mutant(
        "more than an all-reduce",
        "gates",
        F_BACKWARD,
        "        every = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]\n"
        "        dist.all_gather(every, gradient)\n        return sum(every)\n",
        {B3},
        "with 3 ranks, f sends on rank 0 backward 1.5 times what an all-reduce sends; one all-reduce is enough",
        origin="M07",
    ),
    Mutant(
        "an all-reduce for nothing",
        "gates",
        "        return x.view_as(x)\n",
        "        dist.all_reduce(x.clone())\n        return x.view_as(x)\n",
        {B3},
        "f sends on rank 0 forward 1 times what an all-reduce sends; nothing needs to be sent",
    ),
    Mutant("f cut off", "gates", "return F.apply(x)", "return F.apply(x).detach()", {B2, B3}, "Function's .apply, not"),
    Mutant(
        "no gradient", "gates", "        return gradient\n", "        pass\n", {B2, B3}, "output of g is not connected"
    ),
    Mutant(
        "nothing returned", "gates", "    return G.apply(y)", "    G.apply(y)", {B1, B2, B3}, "a value of type NoneType"
    ),
    Mutant(
        "a sum of everything",
        "gates",
        "    return G.apply(y)",
        "    return G.apply(y).sum()",
        {B1, B2, B3},
        "g returns a tensor of shape [] for one of shape [3, 4]",
    ),
    Mutant(
        "cut as one piece",
        "attention",
        "torch.cat([tensor.chunk(world_size)[rank] for tensor in fused.chunk(3)])",
        "fused.chunk(world_size)[rank]",
        {C1},
        "its 'qkv' has queries of heads 0, 1, 2 and 3, keys of heads 0 and 1; it should have queries of heads 0 and 1, "
        "keys of heads 0 and 1, values of heads 0 and 1. It was cut as one piece: take queries, keys and values apart",
        origin="M03",
    ),
    Mutant(
        "the wrong axis of qkv",
        "attention",
        '"qkv": of_heads(dense["qkv"])',
        '"qkv": dense["qkv"].chunk(world_size, 1)[rank]',
        {C1},
        "its 'qkv' has the shape [24, 4]; it should be [12, 8]. A row of it makes one number of a query, key or value",
    ),
    Mutant(
        "the wrong axis of out",
        "attention",
        'dense["out"].chunk(world_size, dim=1)[rank]',
        'dense["out"].chunk(world_size)[rank]',
        {C1},
        "its 'out' has the shape [4, 8]; it should be [8, 4]. A column of it multiplies one number of a head",
        origin="M01",
    ),
    Mutant(
        "every P-th row",
        "attention",
        "tensor.chunk(world_size)[rank] for",
        "tensor[rank::world_size] for",
        {C1},
        "queries of heads 0 in part, 1 in part, 2 in part and 3 in part",
        origin="M03",
    ),
    Mutant(
        "from head to head",
        "attention",
        "    def of_heads(fused):\n",
        "    def of_heads(fused):\n        if num_heads != world_size:\n"
        "            heads = fused.unflatten(0, (3, num_heads, -1)).chunk(world_size, 1)[rank]\n"
        "            return heads.transpose(0, 1).flatten(0, 2)\n",
        {C1},
        "has the right rows, but in another order: queries, then keys, then values, each from head to head",
    ),
    Mutant(
        "the heads of another",
        "attention",
        "dim=1)[rank]",
        "dim=1)[rank - 1]",
        {C1},
        "its 'out' has columns of heads 2 and 3; it should have columns of heads 0 and 1",
    ),
    Mutant(
        "a share of the bias",
        "attention",
        '"out_bias": dense["out_bias"],',
        '"out_bias": dense["out_bias"] / world_size,',
        {C1},
        "every rank keeps the whole bias unchanged",
    ),
    Mutant("a weight left out", "attention", '"out_bias": dense["out_bias"],', "", {C1}, "'out_bias' is missing"),
    Mutant(
        "not refused",
        "attention",
        "if num_heads % world_size:",
        "if len(dense['out']) % world_size:",
        {C2},
        "4 heads do not divide among 3 ranks, though the width of 12 does: a head would be cut in two, or missing",
    ),
    Mutant(
        "always refused",
        "attention",
        "if num_heads % world_size:",
        "if world_size == 3:",
        {C1, C2},
        "split_attention(dense, num_heads=6, rank=0, world_size=3) ends in ValueError: 6 heads do not divide",
    ),
    Mutant("another error", "attention", "raise ValueError(", "raise KeyError(", {C2}, "ends in KeyError"),
    Mutant(
        "the bias on every rank",
        "attention",
        Y_IS,
        'g(functional.linear(attended, part["out"], part["out_bias"]))',
        {C3, C4, C5},
        "the second matrix's bias is in it 2 times: every rank adds it before g; add it after g",
        origin="page 13",
    ),
    Mutant(
        "a share of the bias on every rank",
        "attention",
        Y_IS,
        'g(functional.linear(attended, part["out"], part["out_bias"] / dist.get_world_size()))',
        {C4, C5},
        "it is 2 times too small",
    ),
    Mutant(
        "the bias on one rank",
        "attention",
        Y_IS,
        'g(functional.linear(attended, part["out"], part["out_bias"] if dist.get_rank() == 0 else None))',
        {C4, C5},
        "on rank 1 the gradient of 'out_bias' is missing: nothing that this rank computes is connected to it",
    ),
    Mutant("no bias", "attention", ' + part["out_bias"]', "", {C3, C4, C5}, "the second matrix's bias is missing"),
    Mutant("no g", "attention", Y_IS, Y_IS.replace("g(", "(", 1), {C3, C4, C5}, "this rank's heads alone: where is g?"),
    Mutant(
        "no f",
        "attention",
        "f(x)",
        "x",
        {C4, C5},
        "it is only this rank's share: does X pass through f, for queries, keys and values?",
        origin="page 13",
    ),
    Mutant(
        "f three times",
        "attention",
        '    projected = functional.linear(f(x), part["qkv"], part["qkv_bias"])\n',
        "    projected = torch.cat([functional.linear(f(x), weight, bias) for weight, bias in "
        'zip(part["qkv"].chunk(3), part["qkv_bias"].chunk(3))], dim=1)\n',
        {C5},
        "attention sends on rank 0 backward 3 times what an all-reduce sends; one all-reduce is enough",
        origin="M02",
    ),
    Mutant(
        "f and g exchanged",
        "attention",
        "    projected",
        "    f, g = g, f\n    projected",
        {C3, C4, C5},
        "X is added up over the ranks, and Y is not: are f and g exchanged?",
        origin="M01",
    ),
    Mutant("detached", "attention", "f(x)", "f(x).detach()", {C4, C5}, "the gradient of X is missing"),
    Mutant("no tensor", "attention", f"return {Y_IS}", "return None", {C3, C4, C5}, "of type NoneType; return the"),
    Mutant("an error", "attention", "attend(*", "atend(*", {C3, C4, C5}, "name 'atend' is not defined"),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant):
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant), briefly=True)


def test_what_is_missing_is_named():
    missing = "raise NotImplementedError()\n"
    gates = solution_of(EXERCISE, "gates")
    for body in ("return x.view_as(x)\n", F_BACKWARD.strip() + "\n", G_FORWARD.strip() + "\n", "return gradient\n"):
        gates = gates.replace(body, missing)
    answers = {
        "collectives": f"def collectives(x, w, y):\n    {missing}",
        "gates": gates,
        "attention": f"def split_attention(*_):\n    {missing}\n\ndef attention(*_):\n    {missing}",
    }
    said = verdicts(EXERCISE, answers)
    assert {said[A1], said[A2], said[A3]} == {"collectives is not written yet"}
    assert {said[B1], said[B2], said[B3]} == {"F.forward is not written yet"}
    assert {said[C1], said[C2]} == {"split_attention is not written yet"}
    assert {said[C3], said[C4], said[C5]} == {"attention is not written yet"}


def test_a_backward_that_is_missing_is_named_and_forward_is_right_without_it():
    half = solution_of(EXERCISE, "gates").replace(F_BACKWARD, "        raise NotImplementedError()\n")
    said = verdicts(EXERCISE, {"gates": half}, parts="b")
    assert said == {B1: None, B2: "F.backward is not written yet", B3: "F.backward is not written yet"}


@pytest.mark.slow
def test_ranks_that_wait_for_each_other_are_named(monkeypatch):
    monkeypatch.setattr(on_ranks, "PATIENCE", 3.0)
    alone = solution_of(EXERCISE, "gates").replace(
        "        dist.all_reduce(total)\n", "        if dist.get_rank(): dist.all_reduce(total)\n"
    )
    said = verdicts(EXERCISE, {"gates": alone}, parts="b")
    assert set(said) == {B1, B2, B3}
    assert all("ranks did not finish in time" in words for words in said.values())
    assert "rank 1 waits in all_reduce" in said[B1]


def test_whether_a_list_leads_there_agrees_with_what_the_library_derives():
    for wanted, plan in shardings.every().items():
        assert ch13_tensor_parallel.leads(wanted, plan.collectives)
        reduces = {"all_reduce", "reduce_scatter"} & set(plan.collectives)
        assert not reduces or not ch13_tensor_parallel.leads(wanted, [])
    assert not ch13_tensor_parallel.leads(("inner", "inner", None), ["all_gather"])
    assert ch13_tensor_parallel.leads(("inner", "inner", None), ["all_gather", "all_gather"])
    assert ch13_tensor_parallel.leads(("inner", "inner", None), ["reduce_scatter", "all_gather"])
    assert not ch13_tensor_parallel.leads(("inner", "inner", None), ["all_gather", "reduce_scatter"])
    assert len(ch13_tensor_parallel.FITTING) == 12
    assert len(ch13_tensor_parallel.EVERY) == 27


def test_no_list_leads_to_every_layout():
    names = [each for length in range(4) for each in product(shardings.ALGORITHMS, repeat=length)]
    assert not [each for each in names if all(ch13_tensor_parallel.leads(case, each) for case in EVERY)]


def test_the_answers_that_are_priced_are_those_that_were_checked():
    asked, plans = [], {case: shardings.derive(*case).collectives for case in EVERY}

    def collectives(*case):
        asked.append(case)
        return plans[case]

    ch13_tensor_parallel.check_cheapest(collectives, EVERY)
    assert asked == EVERY


def test_a_part_of_attention_has_its_heads_of_the_dense_weights():
    """Of 4 heads of 2 numbers on 2 ranks, the second has queries 4 to 7, and so on."""
    dense = {"qkv": torch.arange(24)[:, None].expand(24, 8), "qkv_bias": torch.arange(24)}
    dense |= {"out": torch.arange(8).expand(8, 8), "out_bias": torch.arange(8)}
    part = ch13_tensor_parallel.part_of(dense, 4, 1, 2)
    assert part["qkv_bias"].tolist() == part["qkv"][:, 3].tolist() == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]
    assert part["out"][5].tolist() == [4, 5, 6, 7]
    assert part["out_bias"].tolist() == list(range(8))


# What crosses between ranks, as the judge reads it: of attention by heads, in every right way to write it.


@pytest.fixture(scope="module")
def heads():
    """X, the parts of 3 ranks, and what their heads compute."""
    x, dense, _ = ch13_tensor_parallel._truth(2, seed=1)
    parts = [ch13_tensor_parallel.part_of(dense, 12, rank, 3) for rank in range(3)]
    return x, parts, [ch13_tensor_parallel._of_heads(x, part, 2) for part in parts]


def _chain(terms, form=np.float64):
    """Rank 0 sends its term to rank 1, which sends the sum of both to rank 2."""
    both = terms[0], terms[0] + terms[1]
    return [gloo.Message(src, src + 1, "send", term.astype(form).tobytes()) for src, term in enumerate(both)]


def _gathered(terms, form=np.float64):
    """Ranks 1 and 2 send rank 0 their terms, row by row."""
    rows = [(src, row) for src in (1, 2) for row in terms[src].astype(form)]
    return [gloo.Message(src, 0, "send", row.tobytes()) for src, row in rows]


def _behind_a_byte(terms, form=np.float64):
    return [message._replace(data=b"1" + message.data) for message in _chain(terms, form)]


def _by_columns(terms, form=np.float64):
    return _chain(terms.swapaxes(1, 2), form)


def _watched(messages):
    """Reports of 3 ranks between which these messages crossed."""
    everyone = Seen([None] * 3)
    everyone.messages = messages
    return everyone


def _looked_for(heads, messages, backward=True):
    """What the check says of attention on 3 ranks if these messages crossed; None if it is content."""
    x, parts, _ = heads
    try:
        ch13_tensor_parallel._witnessed_heads(_watched(messages), x, parts, 2, backward)
    except NotYet as refusal:
        return str(refusal)


def _terms(heads):
    """The terms of Y and of the gradient of X, of one g and one f."""
    _, _, ranks = heads
    return np.stack([rank.products.sum(0) for rank in ranks]), np.stack([rank.shares.sum((0, 1)) for rank in ranks])


@pytest.mark.parametrize("form", [np.float64, np.float32])
@pytest.mark.parametrize("send", [_chain, _gathered, _behind_a_byte, _by_columns])
def test_what_the_heads_contribute_is_found_in_whatever_form_it_crosses(heads, send, form):
    output, gradient = _terms(heads)
    assert _looked_for(heads, [*send(output, form), *send(gradient, form)]) is None


def test_what_the_heads_contribute_is_found_in_every_way_to_write_it(heads):
    _, parts, ranks = heads
    bias = parts[0]["out_bias"].numpy()
    outputs = ch13_tensor_parallel._terms_of_output(ranks, bias)
    gradients = ch13_tensor_parallel._terms_of_gradient(ranks)
    assert len(outputs) == 1 + 4 + 4 + 1  # one g, the bias shared or on a rank, a g for each head, heads gathered
    assert len(gradients) == 7 * (1 + 4)  # queries, keys and values alone or together, of all heads or of one
    for ways in (outputs, gradients):
        for way in ways[:: len(ways) // 5]:
            assert ch13_tensor_parallel._missing_sums(_watched(_gathered(way)), ways) == 0
    assert np.allclose(outputs[1].sum(0), outputs[0].sum(0) + bias)
    assert np.allclose(outputs[3].sum(0), outputs[0].sum(0) + bias)


def test_the_terms_of_attention_add_up_to_the_dense_one(heads):
    _, dense, want = ch13_tensor_parallel._truth(2, seed=1)
    output, gradient = _terms(heads)
    assert np.allclose(output.sum(0) + dense["out_bias"].numpy(), want["output"])
    assert np.allclose(gradient.sum(0), want["x"])


def test_heads_that_contribute_nothing_on_the_wire_are_refused(heads):
    x, _, _ = heads
    output, gradient = _terms(heads)
    of_y = "with 3 ranks, 20 of 20 numbers of Y that were looked for on the wire are not made of what the ranks send"
    of_x = "with 3 ranks, 20 of 20 numbers of the gradient of X that were looked for on the wire are not made of what"
    whole, copies = np.stack([output.sum(0)] * 3), np.stack([x.numpy()] * 3)
    for other in (0 * output, whole, copies):
        said = _looked_for(heads, [*_chain(other), *_chain(gradient)])
        assert said.startswith(of_y)
        assert said.endswith("multiply by this rank's own part alone, and let g add up the ranks' products")
    for other in (0 * gradient, np.stack([gradient.sum(0)] * 3), copies):
        said = _looked_for(heads, [*_chain(output), *_chain(other)])
        assert said.startswith(of_x)
        assert said.endswith(
            "let X pass through f into this rank's own heads alone, so that backward f adds up the ranks' shares"
        )
    assert _looked_for(heads, _chain(output), backward=False) is None
    assert _looked_for(heads, None) is None, "nobody watched"
    assert _looked_for(heads, _chain(output)[:1], backward=False).startswith(of_y), "rank 2 has no part in it"


BY_THE_LIBRARY = {
    "a1-as-they-lie": {
        "collectives": """
    from collectives.training import shardings

    def collectives(x, w, y):
        return shardings.derive(x, w, y, dict(rows=4, inner=4, columns=4)).collectives
    """
    },
    "b1-forward": {
        "gates": """
    from collectives.training.tensor_parallel import f, g
    """
    },
}


@pytest.mark.ranks
@pytest.mark.parametrize("check", BY_THE_LIBRARY)
def test_the_librarys_own_functions_are_refused_as_an_answer(check):
    (words,) = verdicts(EXERCISE, BY_THE_LIBRARY[check], [check]).values()
    assert "is for comparing, afterwards; write this part yourself" in words
