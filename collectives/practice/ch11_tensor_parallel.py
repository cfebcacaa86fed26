"""Checks of exercise 11: which collective a sharding takes, the gates f and g, and attention that is split by heads.

The truth in part a is found by trying: a list of collectives is right if, called in this order, they lead from the
layouts given to the layout wanted; the cheapest is `shardings.derive`'s. In parts b and c it is the dense computation,
forward and backward. Whole numbers tell which ranks' shares are in a sum, and which row of a weight lies where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import product
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np
import torch

from ..algorithms import ring
from ..measure.wire import BytesSent
from ..ranks import PerRank
from ..training import shardings, tensor_parallel, transformer
from ..training.shardings import AXES, PARTIAL, PRODUCTS, REPLICATED, Layout, Move
from .checks import NotYet, answer, call_in_words, counted
from .on_ranks import run_on_ranks, same, witnessed

# Part a: which collectives

WORLD_SIZE = 4
SIZES = dict.fromkeys(("rows", "inner", "columns"), 1)  # all matrices are equally large, and are what is counted
_MOVES = [Move("Y", before, after) for before in (*AXES["Y"], PARTIAL) for after in (REPLICATED, *AXES["Y"])]
SENT = {move.collective: move.sent(SIZES, WORLD_SIZE) for move in _MOVES if move.collective}
"""What a rank sends in each collective on a matrix, in matrices, if there are `WORLD_SIZE` ranks."""

Layouts = tuple[Layout, Layout, Layout]  # of X, W and Y
EVERY: list[Layouts] = list(product(*[(REPLICATED, *axes) for axes in AXES.values()]))
"""All 27."""
FITTING: list[Layouts] = [layouts for layouts in EVERY if layouts[:2] in PRODUCTS]
"""Those in which X and W can be multiplied as they lie."""


def check_collectives(function: Callable, cases: Iterable[Layouts]) -> None:
    """Check that the collectives which `function(x, w, y)` names, in this order, give Y in the layout `y`."""
    for case in cases:
        call, names = _named(function, case)
        if not leads(case, names):
            raise NotYet(f"{call} returns {names}. {_why(case, names)}")


def check_cheapest(function: Callable, cases: Iterable[Layouts]) -> None:
    """Check that what is sent by the collectives that `function(x, w, y)` names is as little as can be."""
    cases = list(cases)
    check_collectives(function, cases)
    for case in cases:
        call, names = _named(function, case)
        best = shardings.derive(*case, world_size=WORLD_SIZE)
        least, sent = best.sent(SIZES, WORLD_SIZE), sum(SENT[name] for name in names)
        if sent > least + 1e-9:
            moved = " and ".join(move.matrix for move in best if move.collective)
            enough = f"it is enough to move {moved}, and {least:g} matrices" if moved else "nothing need be sent"
            raise NotYet(f"{call} returns {names}, by which a rank sends {sent:g} matrices: that does it, but {enough}")


def leads(case: Layouts, names: Sequence[str]) -> bool:
    """Whether these collectives, called in this order, give Y as it is wanted. What costs nothing may come between."""
    x, w, y = case
    states = _freely({(x, w)})
    for name in names:
        states = _freely({state for before in states for state in _called(before, name)})
    return (y,) in states


State = tuple[Layout, Layout] | tuple[Layout]  # X and W; or Y, after the product


def _matrices(state: State) -> str:
    return "XW" if len(state) == 2 else "Y"


def _freely(states: set[State]) -> set[State]:
    """All states that can be reached without sending anything, these included: take slices, multiply."""
    reached, new = set(), set(states)
    while new:
        reached |= new
        sliced = {
            (*state[:place], axis, *state[place + 1 :])
            for state in new
            for place, matrix in enumerate(_matrices(state))
            if state[place] is REPLICATED
            for axis in AXES[matrix]
        }
        new = (sliced | {(PRODUCTS[state],) for state in new if state in PRODUCTS}) - reached
    return reached


def _called(state: State, name: str) -> set[State]:
    """What the collective `name` can make of a state, by moving one of its matrices."""
    return {
        (*state[:place], after, *state[place + 1 :])
        for place, matrix in enumerate(_matrices(state))
        for after in (REPLICATED, *AXES[matrix])
        if Move(matrix, state[place], after).collective == name
    }


def _named(function: Callable, case: Layouts) -> tuple[str, list[str]]:
    """The call in words, and the names that it returns."""
    call = call_in_words(function, case)
    given = answer(function, *case)
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list | tuple):
        raise NotYet(f"{call} returns {brief(given)}; a list of names is wanted, [] if nothing is called")
    names = [name.replace("-", "_") if isinstance(name, str) else name for name in given]
    for name in names:
        if name not in shardings.ALGORITHMS:
            raise NotYet(f"{call}: {brief(name)} is none of {', '.join(shardings.ALGORITHMS)}")
    return call, names


def _why(case: Layouts, names: Sequence[str]) -> str:
    """Why these collectives do not do it, as far as the layouts show it."""
    x, w, y = case
    made = {state[0] for state in _freely({(x, w)}) if len(state) == 1}
    lying = f"X lies {_lying(x)}, W {_lying(w)}"
    if not made:
        if not names:
            return f"{lying}: slice r of the one does not meet slice r of the other, so something has to be moved first"
        return f"{lying}, and neither fits the other; that does not make them fit and bring Y {_to(y)}"
    adding = {"all_reduce", "reduce_scatter"} & set(names)
    if made == {PARTIAL}:
        told = f"{lying}: each rank's product has only the terms of its own slice of the inner axis"
        if not adding:
            return f"{told}. Where are the terms of all ranks added up?"
        return f"{told}. That adds them up, but does not bring Y {_to(y)}"
    if adding:
        return f"{lying}: every number that a rank computes is finished, so which terms are there to be added?"
    lies = next(iter(made)) if len(made) == 1 else None
    if lies != y and not names:
        return f"{lying}: then Y lies {_lying(lies)}, but it is wanted {_lying(y)}"
    return f"{lying}: then Y lies {_lying(lies)}, and that does not bring it {_to(y)}"


def _lying(layout: Layout) -> str:
    return {REPLICATED: "whole on every rank", "inner": "by the inner axis"}.get(layout, f"by its {layout}")


def _to(layout: Layout) -> str:
    return "onto all ranks" if layout is REPLICATED else f"to lie by its {layout}"


# Part b: f and g


class Gate(NamedTuple):
    """What f or g did on a rank, by itself.

    `output`: array, or the name of its type. `gradient`: array, or None if none came back. `kept`, `gradient_kept`:
    whether what it was given forward and backward is as it was. `sent`: bytes forward and backward.
    """

    output: np.ndarray | str
    kept: bool
    gradient: np.ndarray | None = None
    gradient_kept: bool = True
    sent: tuple[float, float] = (0.0, 0.0)


class Seen(NamedTuple):
    """What a rank saw: both gates, and the split MLP's output (and gradients), by name."""

    f: Gate
    g: Gate
    mlp: dict[str, np.ndarray | None]


class Given(NamedTuple):
    """What the gates are given: `tags` is the same on every rank, and `shares[rank]` a rank's own."""

    tags: np.ndarray
    shares: np.ndarray


SHAPE, LARGE = (3, 4), (300, 400)
WIDTH, HEADS, HIDDEN, TOKENS = 24, 12, 48, 6
MANY_TOKENS = 600  # enough to see from outside what is sent


def _given(world_size: int, seed: int | None) -> Given:
    """Without a seed, the digits of a sum tell which ranks' shares are in it; with one, all is large and at random."""
    if seed is not None:
        tags, *shares = np.random.default_rng(seed).standard_normal((1 + world_size, *LARGE))
        return Given(tags, np.stack(shares))
    tags = np.arange(1.0, 13.0).reshape(SHAPE)
    return Given(tags, np.multiply.outer(10.0 ** np.arange(world_size), tags))


def _see(f: Callable, g: Callable, world_size: int, backward: bool, seed: int | None) -> list[Seen]:
    """What all ranks see of both gates, and of an MLP between them."""
    tags, shares = _given(world_size, seed)
    parts = [_cut(_dense_mlp(seed or 0)[0], rank, world_size) for rank in range(world_size)]
    everyone = run_on_ranks(_gates, world_size, f, g, backward, tags, PerRank(shares), PerRank(parts), kind=Seen)
    whole = _all_reduce_bytes(world_size, tags.size).sum()
    witnessed(everyone, whole * (1 + backward) / 2)  # half of it, as in fp32
    return everyone


def check_forward(f: Callable, g: Callable, world_size: int, seed: int | None = None) -> None:
    """Check what f and g return, each by itself and around a split MLP. `seed`: with large inputs, at random."""
    given, dense = _given(world_size, seed), _dense_mlp(seed or 0)[1]
    for rank, seen in enumerate(_see(f, g, world_size, False, seed)):
        who = f"with {world_size} ranks, on rank {rank}"
        wanted, slips = {"f": given.tags, "g": given.shares.sum(axis=0)}, _forward_slips(given, rank)
        for name in ("f", "g"):
            got, want = _output(f"{who} {name}", getattr(seen, name), given), wanted[name]
            if not same(got, want):
                told = _hint(got, slips[name]) or f"{_numbers(got)}; it is to be {_numbers(want)}"
                raise NotYet(f"{who} {name} returns {told}")
        got, want = seen.mlp["output"], dense["output"]
        if got is None or got.shape != want.shape or not same(got, want):
            raise NotYet(f"{who} the split MLP gives {_numbers(got)}; the dense one gives {_numbers(want)}")


def check_backward(f: Callable, g: Callable, world_size: int, seed: int | None = None) -> list[Seen]:
    """Check the gradients that f and g pass back, each by itself and in a split MLP against the dense one."""
    given, dense = _given(world_size, seed), _dense_mlp(seed or 0)[1]
    everyone = _see(f, g, world_size, True, seed)
    for rank, seen in enumerate(everyone):
        who = f"with {world_size} ranks, on rank {rank}"
        wanted, slips = {"f": given.shares.sum(axis=0), "g": given.tags}, _backward_slips(given, rank)
        for name in ("f", "g"):
            _output(f"{who} {name}", getattr(seen, name), given)
        for name in ("f", "g"):
            right = "the output is right, but " if _same(seen.mlp["output"], dense["output"]) else ""
            what = "the gradient of X" if name == "f" else "the gradient that g passes back"
            got, want = _gradient(f"{who} {right}{what}", name, getattr(seen, name).gradient), wanted[name]
            if not _same(got, want):
                told = _hint(got, slips[name]) or f"is {_numbers(got)}; it is to be {_numbers(want)}"
                raise NotYet(f"{who} {right}{what} {told}")
    for rank, seen in enumerate(everyone):
        pairs = {what: (seen.mlp.get(what), _cut(dense, rank, world_size)[what]) for what in dense}
        _check_equal(f"with {world_size} ranks, on rank {rank} of the split MLP", pairs, world_size)
    return everyone


def _same(got: np.ndarray | None, want: np.ndarray) -> bool:
    return got is not None and got.shape == want.shape and same(got, want)


def _forward_slips(given: Given, rank: int) -> dict[str, dict[str, np.ndarray]]:
    """What each gate gives for the usual slips, in words."""
    tags, shares = given
    world_size = len(shares)
    return {
        "f": {f"{world_size} times X. Every rank has all of X already: what is there to do?": tags * world_size},
        "g": {
            "this rank's own Y, which lacks the other ranks' terms: they have to be added up": shares[rank],
            "the mean over the ranks; they are terms of a sum": shares.mean(axis=0),
        },
    }


def _backward_slips(given: Given, rank: int) -> dict[str, dict[str, np.ndarray]]:
    """The same for what each gate passes back."""
    tags, shares = given
    world_size, total = len(shares), shares.sum(axis=0)
    larger, smaller = f"is {world_size} times too large", f"is {world_size} times too small"
    return {
        "f": {
            "is only this rank's share: what does f do backward?": shares[rank],
            "is the mean of the ranks' shares; it is to be their sum": total / world_size,
            f"{larger}: is it added up twice?": total * world_size,
        },
        "g": {
            f"{larger}: every rank has the whole gradient of Y, so g must not reduce backward": tags * world_size,
            f"{smaller}: a term of a sum has the gradient of the sum": tags / world_size,
        },
    }


def _hint(got: np.ndarray, slips: dict[str, np.ndarray]) -> str | None:
    return next((words for words, value in slips.items() if _same(got, value)), None)


def _output(who: str, gate: Gate, given: Given) -> np.ndarray:
    """What a gate returned, if that can be compared at all."""
    if isinstance(gate.output, str):
        raise NotYet(f"{who} returns a value of type {gate.output}; return a tensor")
    if gate.output.shape != (shape := given.tags.shape):
        raise NotYet(f"{who} returns a tensor of shape {list(gate.output.shape)} for one of {list(shape)}")
    return gate.output


def _gradient(what: str, name: str, got: np.ndarray | None) -> np.ndarray:
    """A gradient that a gate passed back, if one arrived. Its shape torch has checked."""
    if got is None:
        raise NotYet(
            f"{what} does not arrive: from what {name} returns nothing leads back to what it was given. Call the "
            "Function's .apply, not .forward, and return a gradient from backward"
        )
    return got


def _check_equal(who: str, pairs: dict[str, tuple], world_size: int, slips: Iterable[tuple] = ()) -> None:
    """Check that each of `pairs` {what: (got, want)} is equal. `slips`: (what, words, the value they explain)."""
    for what, (got, want) in pairs.items():
        if got is None:
            raise NotYet(f"{who} {what} is missing: nothing that this rank computes leads back there")
        if got.shape != want.shape:
            raise NotYet(f"{who} {what} has the shape {list(got.shape)}; it is to be {list(want.shape)}")
        if same(got, want):
            continue
        times = [("large", want * world_size), ("small", want / world_size)]
        hints = [*slips, *((what, f"it is {world_size} times too {how}", value) for how, value in times)]
        hint = next((f": {words}" for where, words, value in hints if where == what and same(got, value)), "")
        raise NotYet(f"{who} {what} is {_numbers(got)}; of the dense one it is {_numbers(want)}{hint}")


def check_care(f: Callable, g: Callable, world_size: int, seed: int | None = None) -> None:
    """Check that right gates leave what they are given as it is, and send one all-reduce each way between them."""
    everyone = check_backward(f, g, world_size, seed)
    each = _all_reduce_bytes(world_size, _given(world_size, seed).tags.size)
    for rank, seen in enumerate(everyone):
        for name, gate in (("f", seen.f), ("g", seen.g)):
            if not gate.kept:
                raise NotYet(
                    f"with {world_size} ranks, {name} changes its input on rank {rank}, in place, and whoever made it "
                    "may need it as it was: clone it first"
                )
            if not gate.gradient_kept:
                raise NotYet(
                    f"with {world_size} ranks, the backward of {name} changes the gradient that it is given on rank "
                    f"{rank}, in place. Another branch, such as a residual connection, may be given the same tensor: "
                    "clone it first"
                )
            wanted = (0.0, 1.0) if name == "f" else (1.0, 0.0)
            for way, got, times in zip(("forward", "backward"), gate.sent, wanted, strict=True):
                _check_sent(f"with {world_size} ranks, {name} sends on rank {rank} {way}", got, each[rank], times)
    sent = 2 * (each.sum() + _all_reduce_bytes(world_size, TOKENS * WIDTH).sum())  # the MLP's, too
    witnessed(everyone, sent, sent, messages=16 * world_size**2)


def _check_sent(who: str, got: float, whole: float, times: float) -> None:
    """Check that a rank sends `times` what it sends in an all-reduce, which is `whole` bytes."""
    if not np.isclose(got, times * whole):
        wanted = "one all-reduce is enough" if times else "nothing need be sent"
        raise NotYet(f"{who} {got / whole:.3g} times what an all-reduce sends; {wanted}")


def _all_reduce_bytes(world_size: int, num_elements: int) -> np.ndarray:
    """What each rank sends in an all-reduce of fp64 numbers."""
    return counted(ring.all_reduce(world_size), num_elements, 8).bytes_sent


def _written(function: Callable, *args: Any, **named: Any) -> Any:
    """Call what may lead to a learner's code that is not there yet, and then name it."""
    try:
        return function(*args, **named)
    except NotImplementedError as error:
        frame = error.__traceback__
        while frame.tb_next:
            frame = frame.tb_next
        code = frame.tb_frame.f_code
        if str(error):  # torch's words on a Function without a backward
            raise NotYet(f"{code.co_qualname} ends in NotImplementedError: {error}") from None
        raise NotYet(f"{code.co_qualname} is not written yet") from None


def _gates(
    rank: int,
    world_size: int,
    f: Callable,
    g: Callable,
    backward: bool,
    tags: np.ndarray,
    share: np.ndarray,
    part: dict[str, np.ndarray],
) -> Seen:
    """What this rank sees of both gates, each by itself, and of an MLP between them, of which it has a `part`.

    Runs beside the learner's code, and only observes.
    """
    alone = [_gate(gate, world_size, *given, backward) for gate, given in ((f, (tags, share)), (g, (share, tags)))]
    fit = all(not isinstance(gate.output, str) and gate.output.shape == tags.shape for gate in alone)
    return Seen(*alone, _mlp(f, g, part, backward) if fit else {})


def _gate(gate: Callable, world_size: int, given: np.ndarray, gradient: np.ndarray, backward: bool) -> Gate:
    leaf = torch.tensor(given, requires_grad=True)
    x = leaf * 1  # a leaf could not be changed in place, and that is to be told in words
    with BytesSent() as forward:
        output = _written(gate, x)
    if not isinstance(output, torch.Tensor):
        return Gate(type(output).__name__, True)
    plain, kept = _plain(output), np.array_equal(_plain(x), given)
    if not backward or not output.requires_grad or output.shape != x.shape:
        return Gate(plain, kept)
    arriving = torch.tensor(gradient)
    with BytesSent() as back:
        _written(_Arrive.apply(output, arriving).backward)
    sent = _sent(forward, world_size), _sent(back, world_size)
    return Gate(plain, kept, _plain(leaf.grad), np.array_equal(arriving, gradient), sent)


class _Arrive(torch.autograd.Function):
    """Makes this very tensor the gradient that arrives. (`backward(gradient)` would import sympy, for seconds.)"""

    @staticmethod
    def forward(ctx, output: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return output.new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return ctx.gradient, None


def _sent(sent: BytesSent, world_size: int) -> float:
    """The bytes that a rank sent, torch's own collectives taken as the best algorithms for them."""
    share = (world_size - 1) / world_size
    inside = sum((2 if name == "all_reduce" else 1) * share * size for name, size in sent.payloads.items())
    return sent.total + inside


OF_MLP = {"A": 0, "A's bias": 0, "B": 1}
"""The weights of an MLP, and the axis along which each is cut."""


def _input() -> torch.Tensor:
    return torch.linspace(-2, 2, TOKENS * WIDTH).double().view(TOKENS, WIDTH)


@lru_cache(maxsize=8)
def _dense_mlp(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The dense MLP: its weights, by name, and its output and gradients."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        dense = transformer.Block(WIDTH, HEADS, HIDDEN).double().halves[1]
    weights = {name: _plain(weight) for name, weight in zip(OF_MLP, dense.parameters(), strict=True)}
    return weights, _backpropagated(dense, _input().requires_grad_(), backward=True)


def _cut(arrays: dict[str, np.ndarray], rank: int, world_size: int) -> dict[str, np.ndarray]:
    """A rank's part of the weights of an MLP, or of what is told of it: the rest is whole on every rank."""
    axes = OF_MLP | {f"the gradient of {name}": axis for name, axis in OF_MLP.items()}
    return {
        name: np.split(array, world_size, axes[name])[rank] if name in axes else array for name, array in arrays.items()
    }


def _mlp(f: Callable, g: Callable, part: dict[str, np.ndarray], backward: bool) -> dict[str, np.ndarray | None]:
    """The output, and the gradients, of an MLP that is split between f and g."""
    mlp = transformer.MLP(WIDTH, len(part["A"])).double()
    with torch.no_grad():
        for own, weight in zip(mlp.parameters(), part.values(), strict=True):
            own.copy_(torch.from_numpy(weight))
    mlp.enter, mlp.leave = f, g
    return _backpropagated(mlp, _input().requires_grad_(), backward)


def _backpropagated(mlp: transformer.MLP, x: torch.Tensor, backward: bool) -> dict[str, np.ndarray | None]:
    """The output of an MLP; and the gradients of a sum in which every token counts differently."""
    output = _written(mlp, x)
    told = {"output": _plain(output)}
    if backward and output.requires_grad:
        weights = torch.arange(1.0, TOKENS + 1).double()[:, None]
        _written((output * weights).sum().backward)
        told["the gradient of X"] = _plain(x.grad)
        told |= {f"the gradient of {name}": _plain(w.grad) for name, w in zip(OF_MLP, mlp.parameters(), strict=True)}
    return told


def _plain(tensor: torch.Tensor | None) -> np.ndarray | None:
    """A copy of a tensor's numbers, in fp64."""
    return None if tensor is None else tensor.detach().double().numpy().copy()


def _numbers(array: np.ndarray) -> str:
    """The first few numbers of an array."""
    shown = ", ".join(f"{value:.5g}" for value in array.flat[:3])
    return f"[{shown}{', ...' if array.size > 3 else ''}]"


# Part c: attention, split by heads

Weights = dict[str, torch.Tensor]
"""Attention's weights. "qkv" [3 width, width]: the rows that make the queries of head 0, of head 1, ...; then those of
the keys, then of the values. "qkv_bias" [3 width]. "out" [width, width]: its column i meets number i of what all heads
have attended, side by side. "out_bias" [width].

A rank's part: "qkv" [3 width / P, width], "qkv_bias" [3 width / P], "out" [width, width / P], "out_bias" [width].
"""
KINDS = "queries", "keys", "values"


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, head_size: int) -> torch.Tensor:
    """What each head attends to, causally, side by side: any number of heads, [tokens, heads * head_size] each."""
    heads = [tensor.unflatten(1, (-1, head_size)).transpose(0, 1) for tensor in (queries, keys, values)]
    attended = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    return attended.transpose(0, 1).flatten(1)


def check_part(function: Callable, num_heads: int, world_size: int, head_size: int = 2) -> None:
    """Check that `function(dense, num_heads, rank, world_size)` gives each rank the weights of its heads."""
    width = num_heads * head_size
    for rank in range(world_size):
        dense = _numbered(width)
        call = _call_of(function, num_heads, rank, world_size)
        given = answer(function, dense, num_heads, rank, world_size, call=call)
        want = part_of(_numbered(width), num_heads, rank, world_size)
        for name, right in want.items():
            got = _weight_of(given, name, call).detach().double()
            if got.shape == right.shape and torch.equal(got, right):
                continue
            told = f"{call}: its {name!r}"
            if name == "out_bias":
                raise NotYet(f"{told} is {_numbers(_plain(got))}; all ranks keep all of it, as it was")
            if got.shape != right.shape:
                raise NotYet(f"{told} has the shape {list(got.shape)}; {_wrong_shape(name, got, right)}")
            raise NotYet(f"{told} {_wrong_slice(name, got, right, width, head_size, rank)}")


def check_refusal(function: Callable, num_heads: int, world_size: int, head_size: int = 2) -> None:
    """Check that `function` raises a ValueError where heads do not divide among ranks, and not if there is one each."""
    fine = _call_of(function, world_size, 0, world_size)
    answer(function, _numbered(world_size * head_size), world_size, 0, world_size, call=fine)
    call = _call_of(function, num_heads, 0, world_size)
    try:
        given = function(_numbered(num_heads * head_size), num_heads, 0, world_size)
    except ValueError:
        return
    except Exception as error:
        ended = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise NotYet(f"{call} ends in {ended}; raise a ValueError that says what does not divide") from None
    width = num_heads * head_size
    dividing = f", though the width of {width} does" if width % world_size == 0 else ""
    raise NotYet(
        f"{call} returns a value of type {type(given).__name__}; {num_heads} heads do not divide among {world_size} "
        f"ranks{dividing}: a head would be cut in two, or missing. Raise a ValueError"
    )


def part_of(dense: Weights, num_heads: int, rank: int, world_size: int) -> Weights:
    """This rank's part of attention's weights."""

    def of_heads(fused: torch.Tensor) -> torch.Tensor:
        return fused.unflatten(0, (len(KINDS), num_heads, -1)).chunk(world_size, 1)[rank].flatten(0, 2)

    return {
        "qkv": of_heads(dense["qkv"]),
        "qkv_bias": of_heads(dense["qkv_bias"]),
        "out": dense["out"].chunk(world_size, 1)[rank],
        "out_bias": dense["out_bias"],
    }


def _call_of(function: Callable, num_heads: int, rank: int, world_size: int) -> str:
    return f"{function.__name__}(dense, num_heads={num_heads}, rank={rank}, world_size={world_size})"


def _numbered(width: int) -> Weights:
    """Weights that tell where they are from: a row's (or, of "out", a column's) number, and no two elements alike."""
    rows = torch.arange(3 * width, dtype=torch.float64)[:, None]
    across = torch.arange(width, dtype=torch.float64) / width
    qkv = rows + across
    return {"qkv": qkv, "qkv_bias": rows[:, 0] + 0.5, "out": (rows[:width] + across).T.contiguous(), "out_bias": across}


def _weight_of(given: Any, name: str, call: str) -> torch.Tensor:
    if not isinstance(given, dict):
        raise NotYet(f"{call} returns a value of type {type(given).__name__}; a dictionary like `dense` is wanted")
    if name not in given:
        raise NotYet(f"{call}: {name!r} is missing; it has {', '.join(map(repr, given)) or 'nothing'}")
    if not isinstance(given[name], torch.Tensor):
        raise NotYet(f"{call}: its {name!r} is {brief(given[name])}, which is not a tensor")
    return given[name]


def _wrong_shape(name: str, got: torch.Tensor, want: torch.Tensor) -> str:
    wanted = f"it is to be {list(want.shape)}"
    if got.dim() == 2 and name == "qkv" and got.shape[1] < want.shape[1]:
        return f"{wanted}. A row of it makes one number of a query, key or value: heads are rows here"
    if got.dim() == 2 and name == "out" and got.shape[0] < want.shape[0]:
        return f"{wanted}. A column of it meets one number of what a head has attended: heads are columns here"
    return wanted


def _wrong_slice(name: str, got: torch.Tensor, want: torch.Tensor, width: int, head_size: int, rank: int) -> str:
    """What a slice of the right shape holds instead, in words."""
    axis = 1 if name == "out" else 0
    held, wanted = (tensor.select(1 - axis, 0) if tensor.dim() == 2 else tensor for tensor in (got, want))
    numbers, wanted = held.floor().long().tolist(), wanted.floor().long().tolist()
    whole = _numbered(width)[name]
    if not all(0 <= n < whole.shape[axis] for n in numbers) or not torch.equal(
        got, whole.index_select(axis, torch.tensor(numbers))
    ):
        return f"has other numbers in it than `dense` has there: {_numbers(_plain(got))}"
    if sorted(numbers) == sorted(wanted):
        order = "" if name == "out" else ": queries, then keys, then values, each from head to head"
        return f"has the right {'columns' if name == 'out' else 'rows'}, but in another order{order}"
    told = f"has {_content(numbers, width, head_size, name)}; it is to have {_content(wanted, width, head_size, name)}"
    if name != "out" and numbers == list(range(rank * len(numbers), (rank + 1) * len(numbers))):
        told += ". It was cut as one piece: take queries, keys and values apart first, and cut each by heads"
    return told


def _content(numbers: list[int], width: int, head_size: int, name: str) -> str:
    """Rows, or columns, by what they make: "queries of heads 0 and 1, keys of head 0 in part"."""
    if name == "out":
        return f"columns of {_heads(numbers, head_size)}"
    parts = [[n - kind * width for n in numbers if n // width == kind] for kind in range(len(KINDS))]
    return ", ".join(f"{KINDS[kind]} of {_heads(part, head_size)}" for kind, part in enumerate(parts) if part)


def _heads(numbers: list[int], head_size: int) -> str:
    """Heads that these numbers belong to, and which of them only in part."""
    counts = {head: sum(n // head_size == head for n in set(numbers)) for head in {n // head_size for n in numbers}}
    names = [f"{head}{' in part' if counts[head] < head_size else ''}" for head in sorted(counts)]
    joined = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"head{'s' * (len(names) > 1)} {joined}"


class Attended(NamedTuple):
    """What a rank saw of split attention: the output, and the gradients, by name, and the bytes sent each way.

    `detached`: whether gradients were wanted, and the output does not lead back to anything.
    """

    told: dict[str, np.ndarray | None]
    sent: tuple[float, float] = (0.0, 0.0)
    detached: bool = False


def check_attention(
    function: Callable,
    world_size: int,
    backward: bool = False,
    head_size: int = 2,
    seed: int | None = None,
) -> list[Attended]:
    """Check that `function(x, part, head_size, f, g)` on real ranks gives what dense attention gives.

    With `backward`, its gradients too: of X, and of every weight in the part. `seed`: with many tokens, at random.
    """
    num_heads, tokens = WIDTH // head_size, TOKENS if seed is None else MANY_TOKENS
    x, dense, want = _truth(head_size, seed)
    parts = [part_of(dense, num_heads, rank, world_size) for rank in range(world_size)]
    parts = [{name: tensor.clone() for name, tensor in part.items()} for part in parts]  # no view of the whole
    everyone = run_on_ranks(_attention, world_size, function, head_size, backward, x, PerRank(parts), kind=Attended)
    for rank, seen in enumerate(everyone):
        who, mine = f"with {world_size} ranks, on rank {rank}", part_of(want, num_heads, rank, world_size)
        slips = _output_slips(x, parts[rank], want["output"], dense["out_bias"], head_size, world_size)
        _check_equal(who, {"the output": (seen.told.get("the output"), _plain(want["output"]))}, world_size, slips)
        if not backward:
            continue
        if seen.detached:
            raise NotYet("what attention returns does not lead back to X and the weights: is something detached?")
        pairs = {"the gradient of X": _plain(want["x"])}
        pairs |= {f"the gradient of {name!r}": _plain(mine[name]) for name in parts[rank]}
        words = "it is only this rank's share: does X pass through f, for queries, keys and values?"
        slips = [("the gradient of X", words, _share(x, parts[rank], head_size))]
        _check_equal(who, {what: (seen.told.get(what), right) for what, right in pairs.items()}, world_size, slips)
    witnessed(everyone, _all_reduce_bytes(world_size, tokens * WIDTH).sum() * (1 + backward) / 2)  # as in fp32
    return everyone


def check_one_all_reduce(function: Callable, world_size: int, seed: int | None = None) -> None:
    """Check that right attention sends one all-reduce forward and one backward."""
    everyone = check_attention(function, world_size, backward=True, seed=seed)
    whole = _all_reduce_bytes(world_size, (TOKENS if seed is None else MANY_TOKENS) * WIDTH)
    for rank, seen in enumerate(everyone):
        for way, got in zip(("forward", "backward"), seen.sent, strict=True):
            _check_sent(f"with {world_size} ranks, attention sends on rank {rank} {way}", got, whole[rank], 1.0)
    witnessed(everyone, 2 * whole.sum(), 2 * whole.sum(), messages=8 * world_size**2)


def _attention(
    rank: int, world_size: int, function: Callable, head_size: int, backward: bool, x: torch.Tensor, part: Weights
) -> Attended:
    """Runs beside the learner's code, and only observes."""
    x = x.clone().requires_grad_()
    part = {name: tensor.clone().requires_grad_() for name, tensor in part.items()}
    with BytesSent() as forward:
        given = _written(function, x, dict(part), head_size, tensor_parallel.f, tensor_parallel.g)
    if not isinstance(given, torch.Tensor):
        raise NotYet(f"{function.__name__} returns a value of type {type(given).__name__}; return the tensor Y")
    told = {"the output": _plain(given)}
    if not backward or given.shape != x.shape or not given.requires_grad:
        return Attended(told, detached=not given.requires_grad)
    with BytesSent() as back:
        (given * _weights(x)).sum().backward()
    told["the gradient of X"] = _plain(x.grad)
    told |= {f"the gradient of {name!r}": _plain(part[name].grad) for name in part}
    return Attended(told, (_sent(forward, world_size), _sent(back, world_size)))


def _weights(x: torch.Tensor) -> torch.Tensor:
    """How much each token counts in the sum that is differentiated."""
    return torch.arange(1.0, len(x) + 1).double()[:, None]


def _output_slips(
    x: torch.Tensor, part: Weights, want: torch.Tensor, bias: torch.Tensor, head_size: int, world_size: int
) -> list[tuple[str, str, np.ndarray]]:
    """What goes wrong in attention, and the output that comes of it."""
    bias, own, right = _plain(bias), _plain(_own(x, part, head_size)), _plain(want)
    exchanged = _plain(_own(world_size * x, part, head_size)) + bias
    twice = (
        f"the bias of the second matrix is in it {world_size} times. It is added before g, on every rank: add it after"
    )
    slips = {
        twice: [right + (world_size - 1) * bias],
        "the bias of the second matrix is missing": [right - bias],
        "these are this rank's heads alone: where is g?": [own, own + bias],
        "X is added up over the ranks, and Y is not: are f and g exchanged?": [exchanged],
    }
    return [("the output", words, value) for words, values in slips.items() for value in values]


@lru_cache(maxsize=8)
def _truth(head_size: int, seed: int | None) -> tuple[torch.Tensor, Weights, Weights]:
    """X, the weights of dense attention, and what comes of them: the output, and gradients by name, of X as "x"."""
    if seed is None:
        x = torch.linspace(-2, 2, TOKENS * WIDTH).double().view(TOKENS, WIDTH).cos()
    else:
        x = torch.randn(MANY_TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    dense = _random_attention(seed or 0)
    return x, dense, _dense(x, dense, WIDTH // head_size)


def _random_attention(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"qkv": (3 * WIDTH, WIDTH), "qkv_bias": (3 * WIDTH,), "out": (WIDTH, WIDTH), "out_bias": (WIDTH,)}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) / WIDTH**0.5
        for name, shape in shapes.items()
    }


def _dense(x: torch.Tensor, dense: Weights, num_heads: int) -> Weights:
    """The library's dense attention with these weights: its "output", and the gradients by name, that of X as "x"."""
    attention = transformer.Attention(WIDTH, num_heads).double()
    rows = zip(dense["qkv"].chunk(3), dense["qkv_bias"].chunk(3), strict=True)
    with torch.no_grad():
        for linear, (weight, bias) in zip(attention.first, rows, strict=True):
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        attention.second.weight.copy_(dense["out"])
    x, bias = x.clone().requires_grad_(), dense["out_bias"].clone().requires_grad_()
    output = attention(x) + bias
    (output * _weights(x)).sum().backward()
    return {
        "output": output.detach(),
        "x": x.grad,
        "qkv": torch.cat([linear.weight.grad for linear in attention.first]),
        "qkv_bias": torch.cat([linear.bias.grad for linear in attention.first]),
        "out": attention.second.weight.grad,
        "out_bias": bias.grad,
    }


def _own(x: torch.Tensor, part: Weights, head_size: int) -> torch.Tensor:
    """What a rank's heads contribute to Y, its weights taken as constants."""
    projected = x @ part["qkv"].detach().T + part["qkv_bias"].detach()
    return attend(*projected.chunk(3, dim=1), head_size) @ part["out"].detach().T


def _share(x: torch.Tensor, part: Weights, head_size: int) -> np.ndarray:
    """What a rank's heads contribute to the gradient of X."""
    x = x.detach().clone().requires_grad_()
    (_own(x, part, head_size) * _weights(x)).sum().backward()
    return _plain(x.grad)
