"""Checks for exercise 13: which collectives a sharding needs, the gates f and g, and attention split by heads.

Part a searches: a list of collectives is right if calling them in this order leads from the layouts of X and W to the
layout of Y. The cheapest list comes from `shardings.derive`. Parts b and c compare with the dense computation, forward
and backward. Their inputs are whole numbers that show which ranks' shares are in a sum and which weight row is where.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from reprlib import repr as brief
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from ..algorithms import ring
from ..measure.wire import BytesSent
from ..ranks import PerRank
from ..training import shardings, tensor_parallel, transformer
from ..training.shardings import AXES, PARTIAL, PRODUCTS, REPLICATED, Layout, Move
from . import wall
from .checks import NotYet, answer, call_in_words, counted, generator, own_answer, refusing_functions
from .on_ranks import PLACES, crossed, numbers_in, plain, run_on_ranks, same, streams_of, witnessed, witnessed_terms

WITHOUT = ("torch.distributed.tensor", "torch.distributed._tensor")  # DTensor is f and g, and cuts blocks
HOLDS = (
    ".SENT",
    ".attend",
    "practice.on_ranks.plain",
    "practice.on_ranks.numbers_in",
    "training.transformer.MLP",
    "training.transformer.nothing",
    "._mlp",
    "._input",
    "._Arrive",
    "._alone",
    "._backpropagated",
    "._gate",
    "._gates",
    "._plain",
    "._plain_gradient",
    "._sent",
    "._written",
)  # see `wall`
ON_RANKS = (  # f and g, part b's answers, are what part c's ranks need
    "training.tensor_parallel",
    "algorithms.ring",
    "execute",
    "schedule",
    "training.conjugate",
    "._attention",
    "._weights",
)

# Part a: which collectives

WORLD_SIZE = 4
SIZES = dict.fromkeys(("rows", "inner", "columns"), 1)  # all matrices have size 1, so traffic is counted in matrices
_MOVES = [Move("Y", before, after) for before in (*AXES["Y"], PARTIAL) for after in (REPLICATED, *AXES["Y"])]
OWN = 1.5  # gloo's reduce-scatter is an all-reduce, so with an all-gather it sends half as much again as it need
SENT = {move.collective: move.sent(SIZES, WORLD_SIZE) for move in _MOVES if move.collective}
"""Matrices that each of `WORLD_SIZE` ranks sends in a collective on one matrix, by collective."""

Layouts = tuple[Layout, Layout, Layout]  # of X, W and Y
EVERY: list[Layouts] = [(x, w, y) for x, w, y in product(*[(REPLICATED, *axes) for axes in AXES.values()])]
"""All 27 combinations of layouts."""
FITTING: list[Layouts] = [layouts for layouts in EVERY if layouts[:2] in PRODUCTS]
"""The combinations in which X and W can be multiplied without moving either."""


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, to derive collectives or to cut weights by the library, the checks and torch."""
    answers = shardings.derive, shardings.derive_pair, shardings.every, leads, _called, part_of
    with refusing_functions(*answers), wall.without(*WITHOUT):
        yield


def check_collectives(function: Callable, cases: Iterable[Layouts]) -> None:
    """Check that the collectives that `function(x, w, y)` names, called in this order, give Y in the layout `y`."""
    for case in cases:
        _leading(function, case)


def check_cheapest(function: Callable, cases: Iterable[Layouts]) -> None:
    """Check that the collectives that `function(x, w, y)` names give Y and send as little as possible."""
    for case in cases:
        call, names = _leading(function, case)
        best = shardings.derive(*case, world_size=WORLD_SIZE)
        least, sent = best.sent(SIZES, WORLD_SIZE), sum(SENT[name] for name in names)
        if sent > least + 1e-9:
            moved = " and ".join(move.matrix for move in best if move.collective)
            enough = f"moving {moved} alone sends {least:g}" if moved else "nothing needs to be sent"
            raise NotYet(f"{call} returns {names}, which sends {sent:g} matrices a rank: that works, but {enough}")


def _leading(function: Callable, case: Layouts) -> tuple[str, list[str]]:
    """Return the call in words and the names that it returns; raise `NotYet` unless they lead to Y in its layout."""
    call, names = _named(function, case)
    if not leads(case, names):
        raise NotYet(f"{call} returns {names}. {_why(case, names)}")
    return call, names


def leads(case: Layouts, names: Sequence[str]) -> bool:
    """Return whether these collectives, called in this order, give Y in its layout.

    Free moves may come between. No collective may move a matrix that was whole on every rank and has only been sliced.
    """
    x, w, y = case
    states = _freely({(Lying(x), Lying(w))})
    for name in names:
        states = _freely({state for before in states for state in _called(before, name)})
    return any(len(state) == 1 and state[0].layout == y for state in states)


class Lying(NamedTuple):
    """How a matrix is laid out, and whether every rank had all of it and took this slice."""

    layout: Layout
    sliced: bool = False


State = tuple[Lying, ...]  # of X and W; after the product, of Y alone


def _matrices(state: State) -> str:
    return "XW" if len(state) == 2 else "Y"


def _freely(states: set[State]) -> set[State]:
    """Return all states that slicing and multiplying reach without sending anything, these included."""
    reached: set[State] = set()
    new = set(states)
    while new:
        reached |= new
        sliced = {
            (*state[:place], Lying(axis, sliced=True), *state[place + 1 :])
            for state in new
            for place, matrix in enumerate(_matrices(state))
            if state[place].layout is REPLICATED
            for axis in AXES[matrix]
        }
        pairs = {(state[0].layout, state[1].layout) for state in new if len(state) == 2}
        multiplied = {(Lying(layout_of_y),) for layouts, layout_of_y in PRODUCTS.items() if layouts in pairs}
        new = (sliced | multiplied) - reached
    return reached


def _called(state: State, name: str) -> set[State]:
    """Return the states that the collective `name` reaches by moving one of the matrices."""
    return {
        (*state[:place], Lying(after), *state[place + 1 :])
        for place, matrix in enumerate(_matrices(state))
        for after in (REPLICATED, *AXES[matrix])
        if not state[place].sliced and Move(matrix, state[place].layout, after).collective == name
    }


def _named(function: Callable, case: Layouts) -> tuple[str, list[str]]:
    """Return the call in words, and the names that it returns."""
    call = call_in_words(function, case)
    returned = own_answer(__name__, function, *case)
    returned = [returned] if isinstance(returned, str) else returned
    returned = returned.tolist() if isinstance(returned, np.ndarray) else returned
    if not isinstance(returned, list | tuple):
        raise NotYet(f"{call} returns {brief(returned)}; return a list of names, or [] for no collective")
    names = [name.replace("-", "_") if isinstance(name, str) else name for name in returned]
    for name in names:
        if name not in shardings.ALGORITHMS:
            raise NotYet(f"{call}: {brief(name)} is not one of {', '.join(shardings.ALGORITHMS)}")
    return call, names


def _why(case: Layouts, names: Sequence[str]) -> str:
    """Return why these collectives fail, as far as the layouts show it."""
    x, w, y = case
    layouts_of_y = {state[0].layout for state in _freely({(Lying(x), Lying(w))}) if len(state) == 1}
    inputs = f"X is {_split(x)}, W is {_split(w)}"
    if not layouts_of_y:
        if not names:
            return f"{inputs}: slice r of X does not match slice r of W, so move one of them first"
        return f"{inputs}, and they do not match; these collectives do not match them and leave Y {_split(y)}"
    adding = {"all_reduce", "reduce_scatter"} & set(names)
    if layouts_of_y == {PARTIAL}:
        partial_sums = f"{inputs}: each rank's product has only the terms of its own slice of the inner axis"
        if not adding:
            return f"{partial_sums}. Where are the terms of all ranks added up?"
        return f"{partial_sums}. These collectives add them up, but do not leave Y {_split(y)}"
    if adding:
        return f"{inputs}: every number that a rank computes is complete, so there are no terms to add"
    if names and y in layouts_of_y:
        return f"{inputs}: Y needs no collective then, and no collective moves a matrix of which every rank has all"
    layout_of_y = next(iter(layouts_of_y)) if len(layouts_of_y) == 1 else None
    if layout_of_y != y and not names:
        return f"{inputs}: so Y is {_split(layout_of_y)}, but it should be {_split(y)}"
    return f"{inputs}: so Y is {_split(layout_of_y)}, and these collectives do not leave it {_split(y)}"


def _split(layout: Layout) -> str:
    return {REPLICATED: "whole on every rank", "inner": "split along the inner axis"}.get(layout, f"split by {layout}")


# Part b: f and g


class Gate(NamedTuple):
    """What f or g alone did on a rank.

    `output`: array, or the name of its type. `kept`: whether the gate left its input unchanged. `gradient`: array, or
    None if none came back. `gradient_kept`: whether backward left its gradient unchanged. `sent`: bytes forward and
    backward.
    """

    output: np.ndarray | str
    kept: bool
    gradient: np.ndarray | None = None
    gradient_kept: bool = True
    sent: tuple[float, float] = (0.0, 0.0)


class Seen(NamedTuple):
    """What a rank saw: both gates, and the output (and gradients) of the split MLP, by name."""

    f: Gate
    g: Gate
    mlp: dict[str, np.ndarray | None]


class Given(NamedTuple):
    """The inputs of the gates: `tags` is the same on every rank, and `shares[rank]` is a rank's own."""

    tags: np.ndarray
    shares: np.ndarray


SHAPE, LARGE = (3, 4), (300, 400)
WIDTH, HEADS, HIDDEN, TOKENS = 24, 12, 48, 6
FORMS = np.float64, np.float32  # in which a gate may send a number
MANY_TOKENS = 600  # enough for the traffic to show in the bytes counted on the wire


def _given(world_size: int, seed: int | None) -> Given:
    """Return inputs: without a seed, the digits of a sum show whose shares are in it; with one, large and random."""
    if seed is not None:
        tags, *shares = np.random.default_rng(seed).standard_normal((1 + world_size, *LARGE))
        return Given(tags, np.stack(shares))
    tags = np.arange(1.0, 13.0).reshape(SHAPE)
    return Given(tags, np.multiply.outer(10.0 ** np.arange(world_size), tags))


def _see(f: Callable, g: Callable, world_size: int, backward: bool, seed: int | None) -> list[Seen]:
    """Run both gates, and an MLP between them, on real ranks and return what each rank saw."""
    tags, shares = _given(world_size, seed)
    parts = [_cut(_dense_mlp(seed or 0)[0], rank, world_size) for rank in range(world_size)]
    everyone = run_on_ranks(_gates, world_size, f, g, backward, tags, PerRank(shares), PerRank(parts), kind=Seen)
    whole = _all_reduce_bytes(world_size, tags.size).sum()
    witnessed(everyone, whole * (1 + backward) / 2)  # half of the fp64 bytes: the gate may send fp32
    if seed is not None:
        places = generator().integers(tags.size, size=20)
        numbers = [[share.flat[place] for share in shares] for place in places]  # of one of these a sum begins
        witnessed_terms(everyone, [{form(each).tobytes() for each in of for form in FORMS} for of in numbers])
    return everyone


def check_forward(f: Callable, g: Callable, world_size: int, seed: int | None = None) -> None:
    """Check what f and g return, each alone and around a split MLP. `seed`: use large random inputs."""
    given, dense = _given(world_size, seed), _dense_mlp(seed or 0)[1]
    for rank, seen in enumerate(_see(f, g, world_size, False, seed)):
        who = f"with {world_size} ranks, on rank {rank}"
        wanted, slips = {"f": given.tags, "g": given.shares.sum(axis=0)}, _forward_slips(given, rank)
        for name in ("f", "g"):
            got, want = _output(f"{who} {name}", getattr(seen, name), given), wanted[name]
            if not same(got, want):
                fault = _hint(got, slips[name]) or f"{_numbers(got)}; it should be {_numbers(want)}"
                raise NotYet(f"{who} {name} returns {fault}")
        output, want = seen.mlp["output"], dense["output"]
        if not _same(output, want):
            gives = "nothing" if output is None else _numbers(output)
            raise NotYet(f"{who} the split MLP gives {gives}; the dense one gives {_numbers(want)}")


def check_backward(f: Callable, g: Callable, world_size: int, seed: int | None = None) -> list[Seen]:
    """Check the gradients that f and g pass back, each alone and in a split MLP against the dense one."""
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
                fault = _hint(got, slips[name]) or f"is {_numbers(got)}; it should be {_numbers(want)}"
                raise NotYet(f"{who} {right}{what} {fault}")
    for rank, seen in enumerate(everyone):
        pairs = {what: (seen.mlp.get(what), _cut(dense, rank, world_size)[what]) for what in dense}
        _check_equal(f"with {world_size} ranks, on rank {rank} of the split MLP", pairs, world_size)
    return everyone


def _same(got: np.ndarray | None, want: np.ndarray) -> bool:
    return got is not None and got.shape == want.shape and same(got, want)


def _forward_slips(given: Given, rank: int) -> dict[str, dict[str, np.ndarray]]:
    """Return, for each gate, the usual mistakes in words and the output that each gives."""
    tags, shares = given
    world_size = len(shares)
    return {
        "f": {
            f"{world_size} times X. Every rank has all of X already, so f has nothing to do": tags * world_size,
        },
        "g": {
            "this rank's own Y, which lacks the other ranks' terms: add them up": shares[rank],
            "the mean over the ranks; return the sum of their terms": shares.mean(axis=0),
        },
    }


def _backward_slips(given: Given, rank: int) -> dict[str, dict[str, np.ndarray]]:
    """Return, for each gate, the usual mistakes in words and the gradient that each passes back."""
    tags, shares = given
    world_size, total = len(shares), shares.sum(axis=0)
    larger, smaller = f"is {world_size} times too large", f"is {world_size} times too small"
    return {
        "f": {
            "is only this rank's share: what does f do backward?": shares[rank],
            "is the mean of the ranks' shares; it should be their sum": total / world_size,
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
    """Return a gate's output. Raise `NotYet` if it is no tensor or has the wrong shape."""
    if isinstance(gate.output, str):
        raise NotYet(f"{who} returns a value of type {gate.output}; return a tensor")
    if gate.output.shape != (shape := given.tags.shape):
        raise NotYet(f"{who} returns a tensor of shape {list(gate.output.shape)} for one of shape {list(shape)}")
    return gate.output


def _gradient(what: str, name: str, got: np.ndarray | None) -> np.ndarray:
    """Return the gradient that a gate passed back. Raise `NotYet` if none arrived. Torch has checked its shape."""
    if got is None:
        raise NotYet(
            f"{what} does not arrive: the output of {name} is not connected to its input. Call the Function's .apply, "
            "not .forward, and return a gradient from backward"
        )
    return got


def _check_equal(who: str, pairs: dict[str, tuple], world_size: int, slips: Iterable[tuple] = ()) -> None:
    """Check that `got` equals `want` in each of `pairs` {what: (got, want)}. `slips`: (what, words, wrong value)."""
    for what, (got, want) in pairs.items():
        if got is None:
            raise NotYet(f"{who} {what} is missing: nothing that this rank computes is connected to it")
        if got.shape != want.shape:
            raise NotYet(f"{who} {what} has the shape {list(got.shape)}; it should be {list(want.shape)}")
        if same(got, want):
            continue
        times = [("large", want * world_size), ("small", want / world_size)]
        hints = [*slips, *((what, f"it is {world_size} times too {how}", value) for how, value in times)]
        hint = next((f": {words}" for where, words, value in hints if where == what and same(got, value)), "")
        raise NotYet(f"{who} {what} is {_numbers(got)}; the dense computation gives {_numbers(want)}{hint}")


def check_care(f: Callable, g: Callable, world_size: int, seed: int | None = None) -> None:
    """Check that right gates leave their inputs unchanged, and together send one all-reduce each way."""
    everyone = check_backward(f, g, world_size, seed)
    each = _all_reduce_bytes(world_size, _given(world_size, seed).tags.size)
    for rank, seen in enumerate(everyone):
        for name, gate in (("f", seen.f), ("g", seen.g)):
            if not gate.kept:
                raise NotYet(
                    f"with {world_size} ranks, {name} changes its input on rank {rank}, in place. The caller may still "
                    "need it: clone it first"
                )
            if not gate.gradient_kept:
                raise NotYet(
                    f"with {world_size} ranks, the backward of {name} changes the gradient that it is given on rank "
                    f"{rank}, in place. Another branch, such as a residual connection, may share that tensor: clone it "
                    "first"
                )
            wanted = (0.0, 1.0) if name == "f" else (1.0, 0.0)
            for way, got, times in zip(("forward", "backward"), gate.sent, wanted, strict=True):
                _check_sent(f"with {world_size} ranks, {name} sends on rank {rank} {way}", got, each[rank], times)
    sent = 2 * (each.sum() + _all_reduce_bytes(world_size, TOKENS * WIDTH).sum())  # the MLP's, too
    witnessed(everyone, sent, OWN * sent)


def _check_sent(who: str, got: float, whole: float, times: float) -> None:
    """Check that a rank sends `times` the `whole` bytes that it sends in an all-reduce."""
    if not np.isclose(got, times * whole):
        wanted = "one all-reduce is enough" if times else "nothing needs to be sent"
        raise NotYet(f"{who} {got / whole:.3g} times what an all-reduce sends; {wanted}")


def _all_reduce_bytes(world_size: int, num_elements: int) -> np.ndarray:
    """Return the bytes that each rank sends in an all-reduce of `num_elements` fp64 numbers."""
    return counted(ring.all_reduce(world_size), num_elements, 8).bytes_sent


def _written(function: Callable, *args: Any, **named: Any) -> Any:
    """Call `function`. If it reaches learner's code that is not written yet, raise `NotYet` with that code's name."""
    try:
        return function(*args, **named)
    except NotImplementedError as error:
        frame = error.__traceback__
        assert frame is not None  # it was raised above
        while frame.tb_next:
            frame = frame.tb_next
        code = frame.tb_frame.f_code
        if str(error):  # torch's message about a Function without a backward
            raise NotYet(f"{code.co_qualname} ends in NotImplementedError: {error}") from None
        raise NotYet(f"{code.co_qualname} is not written yet") from None


def _alone(function: Callable, *args: Any) -> Any:
    """Do what `_written` does, without the library's gates."""
    gates = tensor_parallel.f, tensor_parallel.g, tensor_parallel.all_reduced
    with refusing_functions(*gates):
        return _written(function, *args)


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
    """Run both gates alone and an MLP between them, whose `part` is this rank's, and return what this rank saw.

    Runs beside the learner's code, and only observes.
    """
    with wall.without(*WITHOUT):
        inputs = (f, (tags, share)), (g, (share, tags))  # each gate with its input and the gradient that arrives
        of_f, of_g = alone = [_gate(gate, world_size, *own_inputs, backward) for gate, own_inputs in inputs]
        fit = all(not isinstance(gate.output, str) and gate.output.shape == tags.shape for gate in alone)
        return Seen(of_f, of_g, _mlp(f, g, part, backward) if fit else {})


def _gate(gate: Callable, world_size: int, given: np.ndarray, gradient: np.ndarray, backward: bool) -> Gate:
    leaf = torch.tensor(given, requires_grad=True)
    x = leaf * 1  # not a leaf: torch would forbid changing a leaf in place, and the check wants to see it
    with BytesSent() as forward:
        output = _alone(gate, x)
        numbers, kept = plain(output), np.array_equal(plain(x), given)
    if isinstance(numbers, str):
        return Gate(numbers, True)
    numbers = numbers.astype(float)
    if not backward or not output.requires_grad or numbers.shape != given.shape:
        return Gate(numbers, kept)
    arriving = torch.tensor(gradient)
    with BytesSent() as back:
        _alone(_Arrive.apply(output, arriving).backward)
        of_leaf, gradient_kept = _plain_gradient(leaf), np.array_equal(plain(arriving), gradient)
    return Gate(numbers, kept, of_leaf, gradient_kept, (_sent(forward, world_size), _sent(back, world_size)))


class _Arrive(torch.autograd.Function):
    """A Function whose backward passes on this very tensor. (`backward(gradient)` imports sympy: seconds.)"""

    @staticmethod
    def forward(ctx, output: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return output.new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return ctx.gradient, None


def _sent(sent: BytesSent, world_size: int) -> float:
    """Return the bytes that a rank sent; torch's own collectives count as their cheapest algorithms."""
    share = (world_size - 1) / world_size
    inside = sum((2 if name == "all_reduce" else 1) * share * size for name, size in sent.payloads.items())
    return sent.total + inside


OF_MLP = {"A": 0, "A's bias": 0, "B": 1}
"""The weights of an MLP, and the axis along which each is cut."""


def _input() -> torch.Tensor:
    return torch.linspace(-2, 2, TOKENS * WIDTH).double().view(TOKENS, WIDTH)


@lru_cache(maxsize=8)
def _dense_mlp(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the dense MLP's weights by name, and its output and gradients by name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        dense = transformer.Block(WIDTH, HEADS, HIDDEN).double().halves[1]
    weights = {name: _plain(weight) for name, weight in zip(OF_MLP, dense.parameters(), strict=True)}
    results = _backpropagated(dense, _input().requires_grad_(), backward=True)
    return weights, {what: array for what, array in results.items() if array is not None}  # none is missing


def _cut(arrays: dict[str, np.ndarray], rank: int, world_size: int) -> dict[str, np.ndarray]:
    """Return a rank's part of an MLP's weights or of their gradients. All other arrays stay whole."""
    axes = OF_MLP | {f"the gradient of {name}": axis for name, axis in OF_MLP.items()}
    return {
        name: np.split(array, world_size, axes[name])[rank] if name in axes else array for name, array in arrays.items()
    }


def _mlp(f: Callable, g: Callable, part: dict[str, np.ndarray], backward: bool) -> dict[str, np.ndarray | None]:
    """Return the output, and the gradients, of an MLP that is split between f and g."""
    mlp = transformer.MLP(WIDTH, len(part["A"])).double()
    with torch.no_grad():
        for own, weight in zip(mlp.parameters(), part.values(), strict=True):
            own.copy_(torch.from_numpy(weight))
    mlp.enter, mlp.leave = f, g
    return _backpropagated(mlp, _input().requires_grad_(), backward)


def _backpropagated(mlp: torch.nn.Module, x: torch.Tensor, backward: bool) -> dict[str, np.ndarray | None]:
    """Return an MLP's output, and the gradients of a sum in which every token has another weight."""
    output = _written(mlp, x)
    results: dict[str, np.ndarray | None] = {"output": _plain(output)}
    if backward and output.requires_grad:
        weights = torch.arange(1.0, TOKENS + 1).double()[:, None]
        _written((output * weights).sum().backward)
        results["the gradient of X"] = _plain_gradient(x)
        for name, weight in zip(OF_MLP, mlp.parameters(), strict=True):
            results[f"the gradient of {name}"] = _plain_gradient(weight)
    return results


def _plain(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy of a tensor's numbers, in fp64."""
    return numbers_in("a result", tensor).astype(float)


def _plain_gradient(tensor: torch.Tensor) -> np.ndarray | None:
    """Return a copy of a tensor's gradient, or None if none has arrived."""
    return None if tensor.grad is None else _plain(tensor.grad)


def _numbers(array: np.ndarray) -> str:
    """Return the first three numbers of an array, as text."""
    shown = ", ".join(f"{value:.5g}" for value in array.flat[:3])
    return f"[{shown}{', ...' if array.size > 3 else ''}]"


# Part c: attention, split by heads

Weights = dict[str, torch.Tensor]
"""Attention's weights by name.

"qkv" [3 width, width]: the rows that make the queries of head 0, of head 1, ...; then the keys' rows, then the values'.
"qkv_bias" [3 width]. "out" [width, width]: column i multiplies number i of the heads' outputs, concatenated in order.
"out_bias" [width].

A rank's part: "qkv" [3 width / P, width], "qkv_bias" [3 width / P], "out" [width, width / P], "out_bias" [width].
"""
KINDS = "queries", "keys", "values"


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, head_size: int) -> torch.Tensor:
    """Return causal attention of any number of heads, concatenated. All tensors are [tokens, heads * head_size]."""
    q, k, v = (tensor.unflatten(1, (-1, head_size)).transpose(0, 1) for tensor in (queries, keys, values))
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return attended.transpose(0, 1).flatten(1)


def check_part(function: Callable, num_heads: int, world_size: int, head_size: int = 2) -> None:
    """Check that `function(dense, num_heads, rank, world_size)` returns the weights of each rank's heads."""
    width = num_heads * head_size
    for rank in range(world_size):
        dense = _numbered(width)
        call = _call_of(function, num_heads, rank, world_size)
        returned = own_answer(__name__, function, dense, num_heads, rank, world_size, call=call)
        want = part_of(_numbered(width), num_heads, rank, world_size)
        for name, right in want.items():
            got = _weight_of(returned, name, call).detach().double()
            if got.shape == right.shape and torch.equal(got, right):
                continue
            which = f"{call}: its {name!r}"
            if name == "out_bias":
                raise NotYet(f"{which} is {_numbers(_plain(got))}; every rank keeps the whole bias unchanged")
            if got.shape != right.shape:
                raise NotYet(f"{which} has the shape {list(got.shape)}; {_wrong_shape(name, got, right)}")
            raise NotYet(f"{which} {_wrong_slice(name, got, right, width, head_size, rank)}")


def check_refusal(function: Callable, num_heads: int, world_size: int, head_size: int = 2) -> None:
    """Check that `function` raises a ValueError if heads don't divide among ranks, and accepts one head a rank."""
    fine = _call_of(function, world_size, 0, world_size)
    answer(function, _numbered(world_size * head_size), world_size, 0, world_size, call=fine)
    call = _call_of(function, num_heads, 0, world_size)
    try:
        returned = function(_numbered(num_heads * head_size), num_heads, 0, world_size)
    except ValueError:
        return
    except Exception as error:
        ended = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise NotYet(f"{call} ends in {ended}; raise a ValueError that says what does not divide") from None
    width = num_heads * head_size
    dividing = f", though the width of {width} does" if width % world_size == 0 else ""
    raise NotYet(
        f"{call} returns a value of type {type(returned).__name__}; {num_heads} heads do not divide among "
        f"{world_size} ranks{dividing}: a head would be cut in two, or missing. Raise a ValueError"
    )


def part_of(dense: Weights, num_heads: int, rank: int, world_size: int) -> Weights:
    """Return this rank's part of attention's weights."""

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
    """Return weights that are all different and show their row (or, in "out", their column)."""
    rows = torch.arange(3 * width, dtype=torch.float64)[:, None]
    across = torch.arange(width, dtype=torch.float64) / width
    qkv = rows + across
    return {"qkv": qkv, "qkv_bias": rows[:, 0] + 0.5, "out": (rows[:width] + across).T.contiguous(), "out_bias": across}


def _weight_of(weights: Any, name: str, call: str) -> torch.Tensor:
    if not isinstance(weights, dict):
        raise NotYet(f"{call} returns a value of type {type(weights).__name__}; return a dictionary like `dense`")
    if name not in weights:
        raise NotYet(f"{call}: {name!r} is missing; it has {', '.join(map(repr, weights)) or 'nothing'}")
    if not isinstance(weights[name], torch.Tensor):
        raise NotYet(f"{call}: its {name!r} is {brief(weights[name])}, which is not a tensor")
    return weights[name]


def _wrong_shape(name: str, got: torch.Tensor, want: torch.Tensor) -> str:
    wanted = f"it should be {list(want.shape)}"
    if got.dim() == 2 and name == "qkv" and got.shape[1] < want.shape[1]:
        return f"{wanted}. A row of it makes one number of a query, key or value: heads are rows here"
    if got.dim() == 2 and name == "out" and got.shape[0] < want.shape[0]:
        return f"{wanted}. A column of it multiplies one number of a head's output: heads are columns here"
    return wanted


def _wrong_slice(name: str, got: torch.Tensor, want: torch.Tensor, width: int, head_size: int, rank: int) -> str:
    """Return in words what a slice of the right shape holds instead of the right numbers."""
    axis = 1 if name == "out" else 0
    lines = (tensor.select(1 - axis, 0) if tensor.dim() == 2 else tensor for tensor in (got, want))
    numbers, wanted = (line.floor().long().tolist() for line in lines)
    whole = _numbered(width)[name]
    if not all(0 <= n < whole.shape[axis] for n in numbers) or not torch.equal(
        got, whole.index_select(axis, torch.tensor(numbers))
    ):
        return f"has numbers that `dense` does not have there: {_numbers(_plain(got))}"
    if sorted(numbers) == sorted(wanted):
        order = "" if name == "out" else ": queries, then keys, then values, each from head to head"
        return f"has the right {'columns' if name == 'out' else 'rows'}, but in another order{order}"
    fault = f"has {_content(numbers, width, head_size, name)}; it should have "
    fault += _content(wanted, width, head_size, name)
    if name != "out" and numbers == list(range(rank * len(numbers), (rank + 1) * len(numbers))):
        fault += ". It was cut as one piece: take queries, keys and values apart first, and cut each by heads"
    return fault


def _content(numbers: list[int], width: int, head_size: int, name: str) -> str:
    """Return what rows or columns make, such as "queries of heads 0 and 1, keys of head 0 in part"."""
    if name == "out":
        return f"columns of {_heads(numbers, head_size)}"
    parts = [[n - kind * width for n in numbers if n // width == kind] for kind in range(len(KINDS))]
    return ", ".join(f"{KINDS[kind]} of {_heads(part, head_size)}" for kind, part in enumerate(parts) if part)


def _heads(numbers: list[int], head_size: int) -> str:
    """Return the heads that these numbers belong to, and which of them are there only in part."""
    counts = {head: sum(n // head_size == head for n in set(numbers)) for head in {n // head_size for n in numbers}}
    names = [f"{head}{' in part' if counts[head] < head_size else ''}" for head in sorted(counts)]
    joined = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"head{'s' * (len(names) > 1)} {joined}"


class Attended(NamedTuple):
    """What a rank saw of split attention: the output and the gradients by name, and the bytes sent each way.

    `detached`: whether the check needs gradients but the output has no graph behind it.
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
    """Check that `function(x, part, head_size, f, g)` on real ranks equals dense attention.

    With `backward`, also check the gradients of X and of every weight in the part. `seed`: use many random tokens.
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
            raise NotYet("the output of attention is not connected to X and the weights: is something detached?")
        pairs = {"the gradient of X": _plain(want["x"])}
        pairs |= {f"the gradient of {name!r}": _plain(mine[name]) for name in parts[rank]}
        words = "it is only this rank's share: does X pass through f, for queries, keys and values?"
        slips = [("the gradient of X", words, _share(x, parts[rank], head_size))]
        _check_equal(who, {what: (seen.told.get(what), right) for what, right in pairs.items()}, world_size, slips)
    witnessed(everyone, _all_reduce_bytes(world_size, tokens * WIDTH).sum() * (1 + backward) / 2)  # as in fp32
    if seed is not None:
        _witnessed_heads(everyone, x, parts, head_size, backward)
    return everyone


def check_one_all_reduce(function: Callable, world_size: int, seed: int | None = None) -> None:
    """Check that right attention sends one all-reduce forward and one backward."""
    everyone = check_attention(function, world_size, backward=True, seed=seed)
    whole = _all_reduce_bytes(world_size, (TOKENS if seed is None else MANY_TOKENS) * WIDTH)
    for rank, seen in enumerate(everyone):
        for way, got in zip(("forward", "backward"), seen.sent, strict=True):
            _check_sent(f"with {world_size} ranks, attention sends on rank {rank} {way}", got, whole[rank], 1.0)
    witnessed(everyone, 2 * whole.sum(), OWN * 2 * whole.sum())


def _attention(
    rank: int, world_size: int, function: Callable, head_size: int, backward: bool, x: torch.Tensor, part: Weights
) -> Attended:
    """Runs beside the learner's code, and only observes."""
    with wall.without(*WITHOUT):
        x = x.clone().requires_grad_()
        part = {name: tensor.clone().requires_grad_() for name, tensor in part.items()}
        with BytesSent() as forward:
            output = _written(function, x, dict(part), head_size, tensor_parallel.f, tensor_parallel.g)
            numbers = plain(output)
        if isinstance(numbers, str):
            raise NotYet(f"{function.__name__} returns a value of type {numbers}; return the tensor Y")
        results: dict[str, np.ndarray | None] = {"the output": numbers.astype(float)}
        if not backward or output.shape != x.shape or not output.requires_grad:
            return Attended(results, detached=not output.requires_grad)
        with BytesSent() as back:
            (output * _weights(x)).sum().backward()
            results["the gradient of X"] = _plain_gradient(x)
            results |= {f"the gradient of {name!r}": _plain_gradient(part[name]) for name in part}
        return Attended(results, (_sent(forward, world_size), _sent(back, world_size)))


def _weights(x: torch.Tensor) -> torch.Tensor:
    """Return the weight of each token in the sum whose gradients are taken: [tokens, 1]."""
    return torch.arange(1.0, len(x) + 1).double()[:, None]


def _output_slips(
    x: torch.Tensor, part: Weights, want: torch.Tensor, bias: torch.Tensor, head_size: int, world_size: int
) -> list[tuple[str, str, np.ndarray]]:
    """Return the usual mistakes in attention as ("the output", words, wrong output)."""
    added, own, right = _plain(bias), _plain(_own(x, part, head_size)), _plain(want)
    added_often = f"the second matrix's bias is in it {world_size} times: every rank adds it before g; add it after g"
    exchanged = _plain(_own(world_size * x, part, head_size)) + added
    slips = [
        (added_often, right + (world_size - 1) * added),
        ("the second matrix's bias is missing", right - added),
        ("this is the output of this rank's heads alone: where is g?", own),
        ("this is the output of this rank's heads alone: where is g?", own + added),
        ("X is added up over the ranks, and Y is not: are f and g exchanged?", exchanged),
    ]
    return [("the output", words, value) for words, value in slips]


@lru_cache(maxsize=8)
def _truth(head_size: int, seed: int | None) -> tuple[torch.Tensor, Weights, Weights]:
    """Return X, the weights of dense attention, and its results: "output" and the gradients by name, X's as "x"."""
    if seed is None:
        x = torch.linspace(-2, 2, TOKENS * WIDTH).double().view(TOKENS, WIDTH).cos()
    else:
        x = torch.from_numpy(np.random.default_rng((seed, 1)).standard_normal((MANY_TOKENS, WIDTH)))
    dense = _random_attention(seed or 0)  # other numbers than X, which every rank gets whole
    return x, dense, _dense(x, dense, WIDTH // head_size)


def _random_attention(seed: int) -> Weights:
    random = np.random.default_rng((seed, 0))
    shapes = {"qkv": (3 * WIDTH, WIDTH), "qkv_bias": (3 * WIDTH,), "out": (WIDTH, WIDTH), "out_bias": (WIDTH,)}
    return {name: torch.from_numpy(random.standard_normal(shape)) / WIDTH**0.5 for name, shape in shapes.items()}


def _dense(x: torch.Tensor, dense: Weights, num_heads: int) -> Weights:
    """Return the "output" of dense attention with these weights, and the gradients by name, X's as "x"."""
    attention = transformer.Attention(WIDTH, num_heads).double()
    first = [cast(torch.nn.Linear, linear) for linear in attention.first]  # a ModuleList forgets the type
    rows = zip(dense["qkv"].chunk(3), dense["qkv_bias"].chunk(3), strict=True)
    with torch.no_grad():
        for linear, (weight, bias) in zip(first, rows, strict=True):
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        attention.second.weight.copy_(dense["out"])
    x, bias = x.clone().requires_grad_(), dense["out_bias"].clone().requires_grad_()
    output = attention(x) + bias
    (output * _weights(x)).sum().backward()
    return {
        "output": output.detach(),
        "x": _gradient_of(x),
        "qkv": torch.cat([_gradient_of(linear.weight) for linear in first]),
        "qkv_bias": torch.cat([_gradient_of(linear.bias) for linear in first]),
        "out": _gradient_of(attention.second.weight),
        "out_bias": _gradient_of(bias),
    }


def _gradient_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a tensor that a backward pass of the check's own has reached."""
    assert tensor.grad is not None  # that pass has set it
    return tensor.grad


def _own(x: torch.Tensor, part: Weights, head_size: int) -> torch.Tensor:
    """Return what a rank's heads contribute to Y, with its weights as constants."""
    projected = x @ part["qkv"].detach().T + part["qkv_bias"].detach()
    queries, keys, values = projected.chunk(3, dim=1)
    return attend(queries, keys, values, head_size) @ part["out"].detach().T


def _share(x: torch.Tensor, part: Weights, head_size: int) -> np.ndarray:
    """Return what a rank's heads contribute to the gradient of X."""
    x = x.detach().clone().requires_grad_()
    (_own(x, part, head_size) * _weights(x)).sum().backward()
    return _plain(_gradient_of(x))


# What leaves a rank: its own heads' contributions, or sums of them

CLOSE = 1e-5  # a sum may be taken in any order, and travel in fp32


class OfHeads(NamedTuple):
    """What a rank's own heads compute.

    `attended`: their outputs, [tokens, width / P]. `products`: what each adds to Y, [heads, tokens, width]. `shares`:
    what each head's queries, keys and values add to the gradient of X, [kinds, heads, tokens, width].
    """

    attended: np.ndarray
    products: np.ndarray
    shares: np.ndarray


def _witnessed_heads(
    everyone: list[Attended], x: torch.Tensor, parts: Sequence[Weights], head_size: int, backward: bool
) -> None:
    """Check that the ranks really sent what their own heads contribute, if this run was captured from outside."""
    if crossed(everyone) is None:
        return
    ranks = [_of_heads(x, part, head_size) for part in parts]
    where = f"with {len(everyone)} ranks"
    if missing := _missing_sums(everyone, _terms_of_output(ranks, _plain(parts[0]["out_bias"]))):
        raise NotYet(
            f"{where}, {missing} of {PLACES} numbers of Y that were looked for on the wire are not made of what the "
            "ranks send one another: multiply by this rank's own part alone, and let g add up the ranks' products"
        )
    if backward and (missing := _missing_sums(everyone, _terms_of_gradient(ranks))):
        raise NotYet(
            f"{where}, {missing} of {PLACES} numbers of the gradient of X that were looked for on the wire are not "
            "made of what the ranks send one another: let X pass through f into this rank's own heads alone, so that "
            "backward f adds up the ranks' shares"
        )


def _of_heads(x: torch.Tensor, part: Weights, head_size: int) -> OfHeads:
    part = {name: tensor.detach() for name, tensor in part.items()}
    weight, bias = (part[name].unflatten(0, (len(KINDS), -1, head_size)) for name in ("qkv", "qkv_bias"))
    copies = x.detach().expand(*weight.shape[:2], *x.shape).clone().requires_grad_()  # one for each kind and head
    projected = torch.einsum("khtw,khsw->kths", copies, weight) + bias[:, None]
    queries, keys, values = projected.flatten(2)
    attended = attend(queries, keys, values, head_size)
    by_head = [tensor.unflatten(1, (-1, head_size)) for tensor in (attended, part["out"])]
    products = torch.einsum("t h s, w h s -> h t w", *by_head)
    (products.sum(0) * _weights(x)).sum().backward()
    return OfHeads(_plain(attended), _plain(products), _plain(_gradient_of(copies)))


def _terms_of_output(ranks: Sequence[OfHeads], bias: np.ndarray) -> list[np.ndarray]:
    """Return the terms of Y that each rank may send, [rank, tokens, columns], in every way to write it.

    One g for all heads or one for each, and the bias after g, shared by the ranks, or on one of them. Or else the
    heads' outputs themselves are gathered, and each rank applies the whole second matrix.
    """
    products = np.stack([rank.products for rank in ranks], 1)  # [heads, rank, tokens, width]
    whole, shared = products.sum(axis=0), np.full((len(ranks), 1), 1 / len(ranks))
    on_one = np.eye(len(ranks))[:, :, None]
    biased = [whole + (each * bias)[:, None] for each in (shared, *on_one)]
    return [whole, *biased, *products, np.stack([rank.attended for rank in ranks])]


def _terms_of_gradient(ranks: Sequence[OfHeads]) -> list[np.ndarray]:
    """Return the terms of the gradient of X that each rank may send, [rank, tokens, width], in every way to write it.

    X may pass through one f, or through one for each kind of projection, for each head, or for both.
    """
    shares = np.stack([rank.shares for rank in ranks], 2)  # [kinds, heads, rank, tokens, width]
    every_kind = range(len(KINDS))
    together = [[*kinds] for count in every_kind for kinds in combinations(every_kind, count + 1)]
    by_head = [shares[kinds].sum(axis=0) for kinds in together]
    return [way for heads in by_head for way in (heads.sum(axis=0), *heads)]


def _missing_sums(everyone: list[Attended], ways: Sequence[np.ndarray]) -> int:
    """Return how many of `PLACES` numbers were not summed over the wire in any of the `ways`; 0 if only a few.

    A way: the ranks' terms, [rank, tokens, columns]. As for `witnessed_sums`, a number's terms meet in world_size - 1
    messages, each the sum of a different set of ranks, never of all. (Terms that are gathered are such sums, too.)
    """
    world_size = len(everyone)
    sets = np.array(list(product((0.0, 1.0), repeat=world_size))[1:-1])  # [set, rank]: whether the rank is in it
    sums = np.stack([_at_random(np.tensordot(sets, way, 1)) for way in ways], 1)  # [3, way, set, place]
    numbers, *neighbours = sums.reshape(len(sums), -1)
    seen = np.zeros(numbers.shape, bool)
    for stream in streams_of(each for each in crossed(everyone) or () if each.src >= 0):
        for words in _words(stream):
            seen |= _beside(words, numbers, neighbours)
    complete = seen.reshape(sums.shape[1:]).sum(axis=1) >= world_size - 1  # [way, place]
    missing = PLACES - int(complete.sum(axis=1).max())
    return missing if missing > PLACES // 5 else 0  # a few pairs may straddle two messages


def _at_random(sums: np.ndarray) -> np.ndarray:
    """Return the sums in random places, with their neighbours in the next column and in the next row, [3, set, place].

    One number alone is close to some other number by accident. Which neighbour follows it depends on the layout. The
    first row is left out: the first token attends to itself alone, so its query has no gradient.
    """
    rows, columns = (generator().integers(1, length - 1, size=PLACES) for length in sums.shape[1:])
    return np.stack([sums[:, rows, columns], sums[:, rows, columns + 1], sums[:, rows + 1, columns]])


def _words(stream: bytes) -> Iterator[np.ndarray]:
    """Yield a stream's numbers, in fp64, as if they were of each of the `FORMS` and began at any byte."""
    for form in FORMS:
        size = np.dtype(form).itemsize
        for shift in range(size):
            with np.errstate(invalid="ignore"):  # what isn't a number may look like a signalling NaN
                yield np.frombuffer(stream[shift : len(stream) - (len(stream) - shift) % size], form).astype(float)


def _beside(words: np.ndarray, numbers: np.ndarray, neighbours: Sequence[np.ndarray]) -> np.ndarray:
    """Return which of the `numbers` are among the words with one of their neighbours right behind, up to rounding."""
    order = np.argsort(words[:-1])
    slack = CLOSE * (1 + np.abs(numbers))
    first, end = (np.searchsorted(words[order], each) for each in (numbers - slack, numbers + slack))
    which = np.repeat(np.arange(len(numbers)), end - first)
    places = np.arange(len(which)) + np.repeat(end - np.cumsum(end - first), end - first)
    behind = words[order[places] + 1]
    right = np.any([np.isclose(behind, each[which], CLOSE, CLOSE) for each in neighbours], axis=0)
    return np.isin(np.arange(len(numbers)), which[right])
