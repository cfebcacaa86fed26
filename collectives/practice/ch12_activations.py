"""Checks of exercise 12: what a layer keeps, recomputation from hooks, and what to keep under a memory budget.

The truth in part a is autograd: the check builds a layer from its list of operations and notes what torch saves. In
part b it's a plain forward and backward pass of the same function, to the bit. In part c the check tries every subset.

A **layer** is a list of `Op`, in an order in which they can run. Its input is called "x".
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence, Set
from copy import deepcopy
from functools import lru_cache, partial
from itertools import product
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils import checkpoint

from .. import machines
from ..measure.held import BytesHeld
from ..training import activations, costs
from ..training.costs import Layout
from ..training.registry import MODELS
from . import checks, wall
from .checks import Answered, LibraryUsed, NotYet, Refusal, answer, brief, check_rows, number_of, own_answer
from .checks import refusing_functions as refusing

WITHOUT = ("torch.utils.checkpoint",)
HOLDS = (
    ".LLAMAS",
    ".llama_layer",
    ".budget",
    "formula",
    "machines",
    "topology.Link",
    "training.layout",
    "training.memory",
    "training.models",
    "training.registry",
    "training.software",
    "measure.held",
    "measure.wire.is_distributed",
    ".each",
    ".tried",
    "._tried",
    "._Block",
    "._one_thread",
    "._answers",
)  # see `wall`


class Op(NamedTuple):
    """One operation of a layer, and the tensor that it computes.

    `output`: the name of that tensor. `kind`: what it does, a key of `ARITY`. `inputs`: the names of the tensors that
    it reads. `num_bytes`: of the output. `time`: microseconds that it takes.
    """

    output: str
    kind: str
    inputs: tuple[str, ...]
    num_bytes: int = 1
    time: int = 1


Layer = Sequence[Op]


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, what answers this exercise. Runs beside the learner's code."""
    _table.cache_clear()  # what is remembered would need no call
    with checks.without_the_library(), refusing(*_answers()), wall.without(*WITHOUT):
        yield


def _answers() -> tuple[Callable, ...]:
    """Return the functions that answer a part: the library's, and those of these checks."""
    own = (compute, saves, _table.__wrapped__, reads, recomputation, all_seconds, best, greedy, _first_that_fit, _alone)
    return (activations.saved, activations.run, activations.measured, *own)


def each(function: Callable, cases: Iterable[tuple]) -> list[Any]:
    """Return what the learner's function returns in each case, up to one that ends in an error, which is left out.

    Sets and arrays come as lists. Runs beside the learner's code: one crossing for all cases, where each takes little.
    """
    found: list[Any] = []
    for case in cases:
        try:
            result = checks.own(__name__, function, *deepcopy(case))  # it may change what it gets
        except Exception:
            break
        if isinstance(result, np.ndarray):
            result = result.tolist()
        several: Any = isinstance(result, Set | MappingView | Mapping)
        found.append([*result] if several else result)
    return found


def _asked(function: Callable, cases: Sequence[tuple], calls: Sequence[str]) -> list[Any]:
    """Return what a learner's function returns in each case; raise `NotYet` with the call that has no result."""
    found: list[Any] = []

    def called(cases: list[tuple]) -> Any:
        return each(function, cases)

    called.__name__ = function.__name__
    while len(found) < len(cases):
        some = answer(called, list(cases[len(found) :]), call=function.__name__, run=operator.call)
        found += some if isinstance(some, list) else []
        if len(found) < len(cases):  # the next one ends in an error: ask for it alone, so that it can say so
            found.append(own_answer(__name__, function, *cases[len(found)], call=calls[len(found)]))
    for result, call in zip(found, calls, strict=True):
        if isinstance(result, Refusal):
            raise NotYet(f"{call}: {result.words}")
        if result is None:
            raise NotYet(f"{call} returns None; is its `return` missing?")
    return found


def _names(returned: Any, layer: Layer, call: str) -> set[str]:
    """Return the names that a call returns; raise `NotYet` for anything else."""
    if isinstance(returned, str) or not isinstance(returned, Iterable):
        raise NotYet(f"{call} returns {brief(returned)}; return a set of names")
    names = [name.output if isinstance(name, Op) else name for name in returned]
    known = {"x", *(op.output for op in layer)}
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise NotYet(f"{call} returns {brief(name)} among the names; the layer has {_listed(known)}")
    return {str(name) for name in names}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def in_words(layer: Layer) -> str:
    """Return a layer in words: "a = product(x), b = tanh(a)"; only its length if it is long."""
    if len(layer) > 5:
        return f"a layer of {len(layer)} operations, from {_of(layer[0])} to {_of(layer[-1])}"
    return ", ".join(map(_of, layer))


def _of(op: Op) -> str:
    return f"{op.output} = {op.kind}({', '.join(op.inputs)})"


# Part a: what the backward pass reads


WIDTH = 8
TOKENS = 4


ARITY: Mapping[str, int] = {
    **dict.fromkeys(("product", "norm", "silu", "tanh", "square", "rotate"), 1),
    **dict.fromkeys(("add", "mul", "swiglu"), 2),
    "attention": 3,
}
"""The kinds of operations, with how many tensors each reads."""


def compute(kind: str, weight: torch.Tensor, a: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
    """Return what an operation of this kind computes, as torch does it; a product and a norm use the weight."""
    runs: dict[str, Callable[..., Any]] = {
        "product": lambda: functional.linear(a, weight),
        "norm": lambda: activations._RMSNorm.apply(a, weight[0], 1e-5),
        "silu": lambda: functional.silu(a),
        "tanh": lambda: a.tanh(),
        "square": lambda: a.square(),
        "rotate": lambda: a * weight.detach()[1],
        "add": lambda: a + more[0],
        "mul": lambda: a * more[0],
        "swiglu": lambda: activations._SwiGLU.apply(a, more[0]),
        "attention": lambda: functional.scaled_dot_product_attention(a, more[0], more[1], is_causal=True),
    }
    return runs[kind]()  # type: ignore[no-any-return]


def saves(layer: tuple[Op, ...]) -> frozenset[str]:
    """Return the names of the tensors that autograd saves while a layer runs. Its weights, and sums, have no names."""
    random = torch.Generator().manual_seed(0)
    values = {"x": torch.randn(1, 1, TOKENS, WIDTH, generator=random, requires_grad=True)}
    weight = torch.randn(WIDTH, WIDTH, generator=random, requires_grad=True)
    found: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        for op in layer:
            values[op.output] = compute(op.kind, weight, *(values[name] for name in op.inputs))
    kept = {tensor.untyped_storage().data_ptr() for tensor in found}
    return frozenset(name for name, tensor in values.items() if tensor.untyped_storage().data_ptr() in kept)


@lru_cache(maxsize=1)
def _table() -> dict[str, tuple[str, ...]]:
    """Return what each kind of operation reads in its backward pass, "inputs" or "output": autograd's own answer."""
    found = {}
    for kind, arity in ARITY.items():
        inputs = tuple(f"in{k}" for k in range(arity))
        kept = saves((*(Op(name, "add", ("x", "x")) for name in inputs), Op("out", kind, inputs)))
        found[kind] = tuple(what for what, names in (("inputs", {*inputs}), ("output", {"out"})) if names <= kept)
    return found


def reads(layer: Layer, but: Mapping[str, tuple[str, ...]] | None = None) -> set[str]:
    """Return what a layer's operations read in the backward pass. `but`: kinds that a learner's mistake changes."""
    table = {**_table(), **(but or {})}
    read: set[str] = set()
    for op in layer:
        read |= {*op.inputs} if "inputs" in table[op.kind] else set()
        read |= {op.output} if "output" in table[op.kind] else set()
    return read


BUT_FOR: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "an addition's gradient is the output's, unchanged: it reads nothing": {"add": ("inputs",)},
    "rotate multiplies by constants: its gradient reads neither input nor output": {"rotate": ("inputs",)},
    "tanh's slope is 1 - y * y: its output is enough": {"tanh": ("inputs",)},
    "tanh needs its output, and not its input as well": {"tanh": ("inputs", "output")},
    "tanh's slope is 1 - y * y, so it reads its output": {"tanh": ()},
    "silu's slope doesn't follow from its output: it needs its input": {"silu": ("output",)},
    "square's slope is 2 x, and its output has lost x's sign: it needs its input": {"square": ("output",)},
    "mul's gradient for one factor is the other factor": {"mul": ()},
    "swiglu computes a product of two tensors, so it needs both inputs": {"swiglu": ("output",)},
    "the gradient of a product's weight reads the product's input": {"product": ()},
    "a product's gradients don't read its output": {"product": ("inputs", "output")},
    "a norm isn't linear: its backward pass reads its input": {"norm": ()},
    "norm needs its input; its output alone doesn't hold the scale": {"norm": ("output",)},
    "fused attention computes its scores again from q, k and v, and reads its result besides": {
        "attention": ("inputs",)
    },
    "fused attention reads q, k and v as well as its result": {"attention": ("output",)},
}
"""Mistakes about one kind in words, and what it would read."""

SLIPS: Mapping[str, Callable[[Layer], set[str]]] = {
    **{words: partial(reads, but=but) for words, but in BUT_FOR.items()},
    "you keep the input of every operation": partial(reads, but=dict.fromkeys(ARITY, ("inputs",))),
    "you keep the input of every operation; add and rotate read nothing, and tanh only its output": partial(
        reads, but=dict.fromkeys(ARITY, ("inputs",)) | dict.fromkeys(("tanh", "attention"), ("inputs", "output"))
    ),
    "you keep the output of every operation": partial(reads, but=dict.fromkeys(ARITY, ("output",))),
    "the layer's input is kept too if an operation needs it": lambda layer: reads(layer) - {"x"},
    "an output may be needed by its own operation, even the last one's": lambda layer: (
        reads(layer) - {op.output for op in layer if not any(op.output in other.inputs for other in layer)}
    ),
}
"""Mistakes in words, and the names that each leads to."""


def short_layers() -> list[tuple[Op, ...]]:
    """Return every layer of one or two operations."""
    found: list[tuple[Op, ...]] = []
    for first in _next_ops("a", ["x"]):
        found.append((first,))
        found += [(first, second) for second in _next_ops("b", ["x", "a"])]
    return found


def _next_ops(output: str, names: list[str]) -> list[Op]:
    return [Op(output, kind, inputs) for kind in ARITY for inputs in product(names, repeat=ARITY[kind])]


def random_layers(seed: int, how_many: int = 60, longest: int = 7) -> list[tuple[Op, ...]]:
    """Return layers of three or more operations with random inputs and sizes."""
    random = Random(seed)
    return [_random_layer(random, random.randint(3, longest)) for _ in range(how_many)]


def _random_layer(random: Random, length: int) -> tuple[Op, ...]:
    """Return a layer whose products and attention take long. Most operations read what was computed just before."""
    ops: list[Op] = []
    for name in "abcdefghijkl"[:length]:
        known = ["x", *(op.output for op in ops)]
        kind = random.choice([*ARITY, "product", "add"])
        inputs = tuple(random.choice([random.choice(known), known[-1]]) for _ in range(ARITY[kind]))
        slow = kind in ("product", "attention")
        time = random.randint(100, 900) if slow else random.randint(5, 60)
        ops.append(Op(name, kind, inputs, random.randint(1, 9) * 2**20, time))
    return tuple(ops)


def check_needed(function: Callable, layers: Iterable[Layer]) -> None:
    """Check that `function(ops)` is what autograd saves of each of these layers."""
    cases = [(layer, saves(tuple(layer))) for layer in layers]
    calls = [f"{function.__name__}(ops) for {in_words(layer)}" for layer, _ in cases]
    found = _asked(function, [(list(layer),) for layer, _ in cases], calls)
    got = [_names(returned, layer, call) for returned, (layer, _), call in zip(found, cases, calls, strict=True)]
    wrong = [index for index, (_, want) in enumerate(cases) if got[index] != want]
    if not wrong:
        return
    (layer, want), mine = cases[wrong[0]], got[wrong[0]]
    more, missing = _listed(mine - want), _listed(want - mine)
    words = "has " * bool(mine - want) + (f"{more}, which torch doesn't keep" if mine - want else "")
    words += " and " * bool(words and want - mine) + (f"lacks {missing}, which torch keeps" if want - mine else "")
    slip = next((words for words, other in SLIPS.items() if [other(case) for case, _ in cases] == got), "")
    raise NotYet(
        f"{in_words(layer)}: {function.__name__} {words}. {len(cases) - len(wrong)} of {len(cases)} layers are right"
        f"{slip and f': {slip}'}"
    )


def stacked(layer: Layer, num_layers: int) -> list[Op]:
    """Return a stack of equal layers as one: each reads what the one before it returns."""
    ops: list[Op] = []
    x = "x"
    for number in range(num_layers):
        names = {"x": x, **{op.output: f"{op.output} of layer {number}" for op in layer}}
        ops += [op._replace(output=names[op.output], inputs=tuple(names[i] for i in op.inputs)) for op in layer]
        x = ops[-1].output
    return ops


def check_bytes(function: Callable, layers: Iterable[Layer], num_layers: int) -> None:
    """Check that `function(ops, names, num_layers)` is the bytes that a stack of such layers keeps, by autograd."""
    layers = list(layers)
    kept = [set(saves(tuple(layer))) for layer in layers]
    calls = [
        f"{function.__name__}(ops, {_set(names)}, {num_layers}) for {in_words(layer)}"
        for layer, names in zip(layers, kept, strict=True)
    ]
    cases = [(list(layer), names, num_layers) for layer, names in zip(layers, kept, strict=True)]
    rows = []
    for layer, names, call, returned in zip(layers, kept, calls, _asked(function, cases, calls), strict=True):
        ops, got = stacked(layer, num_layers), number_of(returned, call)
        sizes = {"x": layer[-1].num_bytes, **{op.output: op.num_bytes for op in ops}}
        want = sum(sizes[name] for name in saves(tuple(ops)))
        words = f"{call} returns {got:,.0f}, but torch keeps {want:,} bytes"
        rows.append(Answered(words, got, want, _bytes_slips(layer, names, num_layers, want)))
    check_rows(rows, words=lambda row: row.call)


def _bytes_slips(layer: Layer, names: set[str], num_layers: int, want: int) -> dict[str, float]:
    """Return the usual mistakes in a sum of bytes, each with the number that it gives."""
    sizes = {"x": layer[-1].num_bytes, **{op.output: op.num_bytes for op in layer}}
    one = sum(sizes[name] for name in names)
    last = layer[-1].output
    return {
        "this is one layer; all layers keep theirs until the backward pass": one,
        "a layer's output is the next one's input: one tensor, which counts once": num_layers * one,
        "each layer has an input of its own; this counts the first layer's only": num_layers * (one - sizes["x"])
        + sizes["x"]
        if "x" in names
        else want,
        "this leaves out the layers' inputs": want - num_layers * sizes["x"] * ("x" in names),
        "no other layer has the first one's input, nor the last one's output": num_layers * (one - sizes["x"])
        if {"x", last} <= names
        else want,
        "this counts every tensor of a layer, needed or not": num_layers * sum(sizes.values()),
        "these are tensors, not bytes": num_layers * len(names),
        "this is in GB; return bytes": want / 1e9,
        "this is in MB; return bytes": want / 1e6,
        "this is in MiB; return bytes": want / 2**20,
    }


# Part b: recomputation


class Task(NamedTuple):
    """A stack of blocks to run forward and backward. `kind`: a key of `TASKS`. `seed`: of weights, inputs and masks."""

    kind: str
    depth: int = 3
    width: int = 64
    tokens: int = 128
    seed: int = 0


TASKS: Mapping[str, str] = {
    "plain": "blocks x + tanh(x W1) W2",
    "two inputs": "blocks that take two tensors, x and a gate",
    "one input without a gradient": "blocks that take two tensors, and only the gate needs a gradient",
    "no input needs a gradient": "blocks whose first input needs no gradient, only the weights do",
    "whole numbers": "an embedding of token ids, then blocks",
    "dropout": "blocks with dropout",
    "changing": "blocks that compute something else in the backward pass",
}
"""What is run, by kind, in words."""


class Tried(NamedTuple):
    """What a run saw. `output`: [tokens, width]. `gradients`: of inputs and weights by name; None where there is none.

    `calls`: how often each block had run when the forward pass ended, and when the backward pass ended. `kept`: bytes
    that lived when the forward pass ended, besides weights, the first input and the output; `peak`: the most bytes
    alive in the backward pass, besides weights; `draws`: what the random generator gives afterwards.
    """

    output: np.ndarray
    gradients: dict[str, np.ndarray | None]
    calls: tuple[list[int], list[int]]
    kept: int
    peak: int
    draws: list[float]


class _Block:
    """A function with weights of its own, which counts its calls.

    `is_backward`: the backward pass has begun. `is_off`: since then, it ran where autograd saves nothing.
    """

    def __init__(self, task: Task, number: int, random: torch.Generator):
        def weight(*shape: int) -> torch.Tensor:
            drawn = torch.randn(*shape, generator=random) / shape[0] ** 0.5
            return drawn.requires_grad_()

        self.calls, self.kind, self.is_backward, self.is_off = 0, task.kind, False, False
        self.embeds = task.kind == "whole numbers" and number == 0
        size, inner = task.width, 2 * task.width
        self.weights = [weight(32, size)] if self.embeds else [weight(size, inner), weight(inner, size)]

    def __call__(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        self.calls += 1
        self.is_off = self.is_off or (self.is_backward and not torch.is_grad_enabled())
        if self.embeds:
            return functional.embedding(x, self.weights[0])
        a = x @ self.weights[0]
        if self.kind == "changing":
            a = a * torch.tensor(3.0 if self.is_backward else 1.0)
        a = a.tanh()
        if self.kind == "dropout":
            a = functional.dropout(a, 0.25)
        y = a @ self.weights[1]
        return x + (y if gate is None else y * gate)


def plainly(function: Callable, *inputs: torch.Tensor) -> torch.Tensor:
    """Run a function as it is: what autograd keeps without recomputation."""
    return function(*inputs)  # type: ignore[no-any-return]


def tried(recomputed: Callable, task: Task) -> Tried | Refusal:
    """Run blocks forward and backward through `recomputed`. Runs beside the learner's code, and only observes."""
    try:
        with without_the_library(), checks.ending_loops():
            return _tried(recomputed, task)
    except LibraryUsed:
        return Refusal("torch.utils.checkpoint and the library's own are for comparing, afterwards; write it yourself")
    except NotYet as error:
        return Refusal(str(error))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute the same bits on every machine, and leave threads and random state as they were."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_rng_state(state)
        torch.set_num_threads(threads)


@_one_thread()
def _tried(recomputed: Callable, task: Task) -> Tried:
    random = torch.Generator().manual_seed(task.seed)
    blocks = [_Block(task, number, random) for number in range(task.depth)]
    x = torch.randn(task.tokens, task.width, generator=random)
    gate = torch.rand(task.tokens, task.width, generator=random).requires_grad_()
    more = [gate] if task.kind in ("two inputs", "one input without a gradient") else []
    if task.kind == "whole numbers":
        x = torch.randint(32, (task.tokens,), generator=random)
    elif task.kind in ("plain", "two inputs", "dropout", "changing"):
        x.requires_grad_()
    leaves = {"x": x, **({"the gate": gate} if more else {})}
    leaves |= {f"weight {k} of block {n}": w for n, block in enumerate(blocks) for k, w in enumerate(block.weights)}
    torch.manual_seed(task.seed)

    def known() -> dict[str, list[torch.Tensor]]:
        return {"known": [*leaves.values(), *(w.grad for w in leaves.values() if w.grad is not None)]}

    with BytesHeld(known) as held:
        y: Any = x
        for block in blocks:
            y = recomputed(block, y, *more)
            if not isinstance(y, torch.Tensor):
                raise NotYet(f"recomputed returns {brief(y)}; return the function's output, a tensor")
        before = [block.calls for block in blocks]
        for block in blocks:
            block.is_backward = True
        kept = held.now["other"] - y.untyped_storage().nbytes()
        held.most = {}
        if not y.requires_grad:
            raise NotYet(
                f"recomputed returns a tensor without a gradient, for {TASKS[task.kind]}: the function's weights need "
                "gradients, whether or not an input does"
            )
        try:
            y.square().sum().backward()
        except Exception as error:
            if not any(block.is_off for block in blocks):
                raise
            raise NotYet(
                f"the backward pass ends in {type(error).__name__}: {error}. Gradients are off in there, so a second "
                "run saves nothing unless it runs under torch.enable_grad()"
            ) from error
    after = [block.calls for block in blocks]
    gradients = {n: None if w.grad is None else w.grad.detach().numpy().copy() for n, w in leaves.items()}
    draws = torch.rand(4).tolist()
    return Tried(y.detach().numpy().copy(), gradients, (before, after), kept, held.most["other"], draws)


@lru_cache(maxsize=64)  # the same checks grade a whole class
def _reference(task: Task) -> Tried:
    again = partial(checkpoint.checkpoint, use_reentrant=False)
    return _tried(again if task.kind == "changing" else plainly, task)


def _run(function: Callable, task: Task) -> Tried:
    """Return what a learner's `recomputed` does with a task; raise `NotYet` if it doesn't run."""

    def called(task: Task) -> Any:
        return tried(function, task)

    called.__name__ = function.__name__
    found = answer(called, task, call=f"{function.__name__} on {TASKS[task.kind]}", run=operator.call)
    if isinstance(found, Refusal):
        raise NotYet(found.words)
    if not isinstance(found, Tried):
        raise NotYet(f"{function.__name__} cannot be run on {TASKS[task.kind]}")
    return found


def check_gradients(function: Callable, tasks: Iterable[Task]) -> None:
    """Check that outputs and gradients through `function` are a plain run's, to the bit, and from a second run."""
    for task in tasks:
        mine = _run(function, task)
        _check_same(function, task, mine)
        _check_recomputes(function, task, mine)


def _check_same(function: Callable, task: Task, mine: Tried) -> None:
    want, where = _reference(task), f"{TASKS[task.kind]}"
    _check_bits(f"{where}: the output", mine.output, want.output, "")
    if set(mine.gradients) != set(want.gradients):
        raise NotYet(f"{where}: the run reports other gradients than asked for")
    for name, right in want.gradients.items():
        got = mine.gradients[name]
        if right is not None and got is None:
            hint = " It is no input of the function, which refers to it" if "weight" in name else ""
            raise NotYet(f"{where}: after the backward pass, {name} has no gradient.{hint}")
        if right is None and got is not None:
            raise NotYet(f"{where}: {name} has a gradient, and needs none")
    for name, right in want.gradients.items():
        if right is not None:
            _check_bits(f"{where}: the gradient of {name}", mine.gradients[name], right, _cause(task, mine, want))


def _cause(task: Task, mine: Tried, want: Tried) -> str:
    """Return why gradients differ, where the numbers prove it."""
    pairs = [(mine.gradients[name], right) for name, right in want.gradients.items() if right is not None]
    if all(got is not None and got.shape == right.shape and np.array_equal(got, 2 * right) for got, right in pairs):
        return "they are all doubled"
    if task.kind == "dropout":
        return "dropout must drop the same numbers again; does the second run start from the first one's random state?"
    if all(
        got is not None and got.shape == right.shape and np.allclose(got, right, 1e-2, 1e-3) for got, right in pairs
    ):
        return "close, but not to the bit"
    return ""


def _check_bits(what: str, got: Any, want: np.ndarray, cause: str) -> None:
    if not isinstance(got, np.ndarray) or got.shape != want.shape:
        raise NotYet(f"{what} has another shape than that of a plain run, {list(want.shape)}")
    if not np.array_equal(got, want):
        element = tuple(map(int, np.argwhere(got != want)[0]))
        raise NotYet(
            f"{what} is {got[element]:.7g} at {list(element)}; a plain run gives {want[element]:.7g}"
            f"{cause and f': {cause}'}"
        )


def check_memory(function: Callable, tasks: Iterable[Task]) -> None:
    """Check that a right `function` keeps only inputs, and runs each block once more in the backward pass."""
    for task in tasks:
        mine, plain = _run(function, task), _reference(task)
        _check_same(function, task, mine)
        _check_recomputes(function, task, mine)
        before, after = mine.calls
        where = TASKS[task.kind]
        if before != [1] * task.depth:
            raise NotYet(f"{where}: the forward pass runs the function {max(before)} times; once is enough")
        if after != [2] * task.depth:
            often = next(count for count in after if count != 2) - 1
            raise NotYet(
                f"{where}: the backward pass runs the function {often} times; run it once, and keep what it saves "
                "until the backward pass has used it"
            )
        inputs = 4 * task.tokens * task.width * (task.depth - 1)  # the first is the caller's own
        if mine.kept > inputs + STATE * task.depth:
            raise NotYet(
                f"{where}: when the forward pass ends, {mine.kept:,} bytes are kept besides the first input and the "
                f"output; the other blocks' inputs are {inputs:,}, and a plain run keeps {plain.kept:,}"
            )
        layer = plain.kept / task.depth
        most = inputs + 5 * layer  # gradients and temporaries besides
        if mine.peak > most:
            raise NotYet(
                f"{where}: in the backward pass up to {mine.peak:,} bytes live; all inputs and what one block "
                f"recomputes fit into {most:,.0f}. Are a block's recomputed tensors dropped when it is done?"
            )


def _check_recomputes(function: Callable, task: Task, mine: Tried) -> None:
    """Check that the backward pass runs the function again and uses that run: what the first one saved won't do."""
    before, after = mine.calls
    if after == before:
        raise NotYet(
            f"{TASKS[task.kind]}: the backward pass doesn't run the function again, so something else than its inputs "
            "is kept"
        )
    task = task._replace(kind="changing", depth=2)
    mine, want = _run(function, task), _reference(task)
    for name, right in want.gradients.items():
        got = mine.gradients.get(name)
        if not isinstance(got, np.ndarray) or right is None or not np.array_equal(got, right):
            raise NotYet(
                f"{TASKS[task.kind]}: the gradient of {name} doesn't come from the second run, so something else than "
                "inputs is kept"
            )


STATE = 6_000  # bytes: a copy of the random generator's state has 5,056, and each block may keep one


def check_random(function: Callable, tasks: Iterable[Task]) -> None:
    """Check that a right `function` draws the same masks again, and leaves the random generator as a plain run does."""
    for task in tasks:
        mine = _run(function, task)
        _check_same(function, task, mine)
        _check_recomputes(function, task, mine)
        if mine.draws != _reference(task).draws:
            raise NotYet(
                f"{TASKS[task.kind]}: after the backward pass the random generator gives other numbers than after a "
                "plain run. Set its state back when you have recomputed, or the next step draws masks that were used"
            )


# Part c: the choice


def recomputation(layer: Layer, needed: Iterable[str], kept: Iterable[str]) -> set[str]:
    """Return what the backward pass computes again: what it needs and isn't kept, and what that is computed from."""
    wanted, again, kept = {*needed}, set(), {*kept}
    for op in reversed(layer):
        if op.output in wanted - kept:
            again.add(op.output)
            wanted |= {*op.inputs}
    return again


def _needed(layer: Layer) -> set[str]:
    return reads(layer) - {"x"}


def _time(layer: Layer, names: Iterable[str]) -> int:
    times = {op.output: op.time for op in layer}
    return sum(times.get(name, 0) for name in names)


def _bytes(layer: Layer, names: Iterable[str]) -> int:
    sizes = {op.output: op.num_bytes for op in layer}
    return sum(sizes.get(name, 0) for name in names)


def check_again(function: Callable, layers: Iterable[Layer], seed: int) -> None:
    """Check that `function(ops, needed, kept)` is the microseconds of what is computed again."""
    random, cases = Random(seed), []
    for layer in layers:
        needed, names = _needed(layer), [op.output for op in layer]
        some = {name for name in names if random.random() < 0.4}
        cases += [(list(layer), needed, set(kept)) for kept in ((), some, needed, names)]
    calls = [
        f"{function.__name__}(ops, {_set(needed)}, {_set(kept)}) for {in_words(layer)}" for layer, needed, kept in cases
    ]
    rows = []
    for (layer, needed, kept), call, returned in zip(cases, calls, _asked(function, cases, calls), strict=True):
        got, again = number_of(returned, call), recomputation(layer, needed, kept)
        want = _time(layer, again)
        words = f"{call} returns {got:,.0f}, but {_listed(again)} must run again: {want:,} microseconds"
        rows.append(Answered(words, got, want, _again_slips(layer, needed, kept)))
    check_rows(rows, words=lambda row: row.call)


def _set(names: Iterable[str]) -> str:
    return f"{{{', '.join(sorted(names))}}}"


def _again_slips(layer: Layer, needed: set[str], kept: set[str]) -> dict[str, float]:
    """Return the usual mistakes in the time of recomputation, each with the number that it gives."""
    names, ops = {op.output for op in layer}, {op.output: op for op in layer}
    again = recomputation(layer, needed, kept)

    def each_reader(name: str) -> int:
        """Return the time of a tensor if every reader computes it anew."""
        return 0 if name == "x" or name in kept else ops[name].time + sum(map(each_reader, ops[name].inputs))

    one_back = {*needed} - kept | {i for name in needed - kept for i in ops[name].inputs if i != "x"} - kept
    last = max((k for k, op in enumerate(layer) if op.output in needed - kept), default=-1)
    return {
        "a dropped tensor that is computed from another dropped one needs that one first": _time(layer, needed - kept),
        "a tensor that several others need is computed again only once": sum(map(each_reader, needed - kept)),
        "this goes one operation back; go back until everything that is read is kept": _time(layer, one_back),
        "what is kept needs no computing, nor does what it was computed from": _time(
            layer, recomputation(layer, needed, ())
        ),
        "this computes all that isn't kept; some of it nothing needs": _time(layer, names - kept),
        "this is the time of what is kept": _time(layer, kept),
        "this runs again all dropped operations up to the last one needed; only those that something needs": _time(
            layer, {op.output for op in layer[: last + 1]} - kept
        ),
        "this counts operations, not their time": len(again),
    }


Chooser = Callable[[Layer, int], set[str]]


def all_seconds(layer: Layer, needed: set[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes and time of every subset of a layer's tensors, [2**n] each; bit k of the index: tensor k is kept."""
    subsets = np.arange(2 ** len(layer))
    kept = {op.output: (subsets >> k & 1).astype(bool) for k, op in enumerate(layer)}
    wanted = {name: np.full(len(subsets), name in needed) for name in kept}
    sizes, times = np.zeros(len(subsets), int), np.zeros(len(subsets), int)
    for op in reversed(layer):
        again = wanted[op.output] & ~kept[op.output]
        times += again * op.time
        sizes += kept[op.output] * op.num_bytes
        for name in op.inputs:
            if name != "x":
                wanted[name] |= again
    return sizes, times


def best(layer: Layer, budget: int, among: Iterable[str] | None = None, fits: Callable = np.less_equal) -> set[str]:
    """Return what to keep within `budget` bytes so that recomputation takes the least time.

    `among`: keep only these. `fits` compares bytes with the budget; both model a learner's mistakes.
    """
    sizes, times = all_seconds(layer, _needed(layer))
    allowed = fits(sizes, budget)
    allowed[0] = True
    if among is not None:
        mask = sum(1 << k for k, op in enumerate(layer) if op.output not in {*among})
        allowed &= np.arange(len(sizes)) & mask == 0
    order = np.lexsort((sizes, np.where(allowed, times, np.iinfo(int).max)))
    return {op.output for k, op in enumerate(layer) if int(order[0]) >> k & 1}


def _first_that_fit(layer: Layer, budget: int, key: Callable[[Op], float], among: Iterable[str]) -> set[str]:
    """Return what a greedy choice keeps: the tensors with the largest `key` first, each if it still fits."""
    kept: set[str] = set()
    for op in sorted((op for op in layer if op.output in {*among}), key=key, reverse=True):
        if _bytes(layer, kept) + op.num_bytes <= budget:
            kept.add(op.output)
    return kept


def _alone(layer: Layer, budget: int) -> set[str]:
    """Return the best choice if each dropped tensor cost only its own time: a knapsack that knows no inputs."""
    needed = _needed(layer)
    sizes, values = np.zeros(2 ** len(layer), int), np.zeros(2 ** len(layer), int)
    for k, op in enumerate(layer):
        kept = np.arange(len(sizes)) >> k & 1
        sizes, values = sizes + kept * op.num_bytes, values + kept * op.time * (op.output in needed)
    order = np.lexsort((sizes, -np.where(sizes <= budget, values, -1)))
    return {op.output for k, op in enumerate(layer) if int(order[0]) >> k & 1}


def greedy(layer: Layer, budget: int) -> set[str]:
    """Return a good greedy choice: keep again and again what saves most time a byte, given what is kept already."""
    needed = _needed(layer)
    kept: set[str] = set()
    while True:
        now = _time(layer, recomputation(layer, needed, kept))
        room = budget - _bytes(layer, kept)
        saving = {
            op.output: (now - _time(layer, recomputation(layer, needed, {*kept, op.output}))) / op.num_bytes
            for op in layer
            if op.output not in kept and op.num_bytes <= room
        }
        if not saving or max(saving.values()) <= 0:
            return kept
        kept.add(max(saving, key=lambda name: saving[name]))


CHOICES: Mapping[str, Chooser] = {
    "greedy by saving a byte may leave room that a better pair would use": greedy,
    "greedy by each tensor's own time a byte; what it is computed from counts too": (
        lambda layer, budget: _first_that_fit(layer, budget, lambda op: op.time / op.num_bytes, _needed(layer))
    ),
    "you keep first what takes longest to compute, however large": (
        lambda layer, budget: _first_that_fit(layer, budget, lambda op: op.time, _needed(layer))
    ),
    "you keep the smallest tensors first, however fast to compute": (
        lambda layer, budget: _first_that_fit(layer, budget, lambda op: -op.num_bytes, _needed(layer))
    ),
    "you keep products and attention only": lambda layer, budget: best(
        layer, budget, [op.output for op in layer if op.kind in ("product", "attention")]
    ),
    "a tensor that the backward pass doesn't read may be worth keeping, if others are computed from it": (
        lambda layer, budget: best(layer, budget, _needed(layer))
    ),
    "you count for each dropped tensor its own time alone; its inputs may have to run again too": _alone,
    "a choice that takes the whole budget, to the byte, fits": partial(best, fits=np.less),
}
"""Mistakes in words, and the choice that each leads to."""


def _why_wrong(layer: Layer, budget: int, kept: set[str]) -> str:
    """Return why a choice isn't the best, in words; "" if it is."""
    if (size := _bytes(layer, kept)) > budget:
        return f"it takes {size:,} bytes of {budget:,}"
    right = best(layer, budget)
    mine, least = (_spent(layer, names) for names in (kept, right))
    return (
        "" if mine == least else f"that takes {mine:,} microseconds again; {_set(right)} fits too and takes {least:,}"
    )


def _spent(layer: Layer, kept: set[str]) -> int:
    return _time(layer, recomputation(layer, _needed(layer), kept))


def _chosen(function: Callable, cases: Sequence[tuple[Layer, int]]) -> list[set[str]]:
    """Return what a learner's function chooses in each case, without x."""
    calls = [_choosing(function, layer, budget) for layer, budget in cases]
    found = _asked(function, [(list(layer), _needed(layer), budget) for layer, budget in cases], calls)
    return [
        _names(returned, layer, call) - {"x"} for returned, (layer, _), call in zip(found, cases, calls, strict=True)
    ]


def _choosing(function: Callable, layer: Layer, budget: int) -> str:
    return f"{function.__name__}(ops, {_set(_needed(layer))}, {budget:,}) for {in_words(layer)}"


ENOUGH = 0.8  # of the time that the best choices save


def check_choice(function: Callable, cases: Sequence[tuple[Layer, int]], nearly: bool = False) -> None:
    """Check that `function(ops, needed, budget)` fits and takes the least time to recompute, in every case.

    With `nearly`, choices are right that fit and save together `ENOUGH` of what the best ones save.
    """
    chosen = _chosen(function, cases)
    for (layer, budget), kept in zip(cases, chosen, strict=True):
        if _bytes(layer, kept) > budget:
            raise NotYet(
                f"{_choosing(function, layer, budget)} returns {_set(kept)}, but {_why_wrong(layer, budget, kept)}"
            )
    if nearly:
        saved, most = (
            sum(_spent(layer, set()) - _spent(layer, names) for (layer, _), names in zip(cases, sets, strict=True))
            for sets in (chosen, [best(*case) for case in cases])
        )
        if saved < ENOUGH * most:
            raise NotYet(
                f"all {len(cases)} choices fit, but together they save only {saved / most:.0%} of the time that the "
                f"best ones save; {ENOUGH:.0%} are enough here{_slip(cases, chosen)}"
            )
        return
    wrong = [index for index, case in enumerate(cases) if _why_wrong(*case, chosen[index])]
    if wrong:
        layer, budget = cases[wrong[0]]
        raise NotYet(
            f"{_choosing(function, layer, budget)} returns {_set(chosen[wrong[0]])}, but "
            f"{_why_wrong(layer, budget, chosen[wrong[0]])}. {len(cases) - len(wrong)} of {len(cases)} choices are "
            f"best{_slip(cases, chosen)}"
        )


def _slip(cases: Sequence[tuple[Layer, int]], chosen: list[set[str]]) -> str:
    """Return the mistake that explains all choices, if one does."""
    slips = [words for words, other in CHOICES.items() if [other(*case) for case in cases] == chosen]
    return f": {slips[0]}" if len(slips) == 1 else ""


def random_cases(seed: int, how_many: int = 30) -> list[tuple[Layer, int]]:
    """Return layers and budgets to choose for. Every mistake in `CHOICES` is wrong at least twice."""
    random, cases = Random(seed), []
    for _ in range(how_many):
        cases.append(_random_case(random))
    for other in CHOICES.values():
        known = sum(bool(_why_wrong(*case, other(*case))) for case in cases)
        while known < 2:
            case = _random_case(random)
            if _why_wrong(*case, other(*case)):
                cases.append(case)
                known += 1
    random.shuffle(cases)
    return cases


def _random_case(random: Random) -> tuple[Layer, int]:
    """Return a layer and a budget. In one case of three the best choice takes the whole budget, to the byte."""
    while True:
        layer = _random_layer(random, random.randint(5, 8))
        full = _bytes(layer, _needed(layer))
        if len(_needed(layer)) < 3:
            continue
        budget = random.randrange(full)
        return layer, _bytes(layer, best(layer, budget)) if random.random() < 1 / 3 else budget


# The running case


SPEED = 400e12  # operations a second that an H100 reaches in training: chapter 12's assumption
RUNNING = machines.RUNNING_CASE


def llama_layer(name: str, sequences: int = 1) -> list[Op]:
    """Return a layer of one of the book's Llamas on `sequences` of 8,192 tokens in bf16, with fused kernels.

    Products and attention take their operations at 400 TFLOP/s, all others their bytes at the rated memory bandwidth.
    """
    model = MODELS[name]
    h, queries, keys, mlp = model.hidden, model.heads * model.width, model.kv_width // 2, model.mlp_width
    tokens = sequences * model.sequence

    def op(output: str, kind: str, inputs: str, width: int, flops: float = 0, moved: int = 0) -> Op:
        """One operation; `moved`: numbers read and written for each token."""
        seconds = tokens * (flops / SPEED + 2 * moved / RUNNING.spec.bandwidth)
        return Op(output, kind, tuple(inputs.split()), 2 * width * tokens, round(1e6 * seconds))

    return [
        op("norm1", "norm", "x", h, moved=2 * h),
        op("q", "product", "norm1", queries, 2 * h * queries),
        op("k", "product", "norm1", keys, 2 * h * keys),
        op("v", "product", "norm1", keys, 2 * h * keys),
        op("q_turned", "rotate", "q", queries, moved=2 * queries),
        op("k_turned", "rotate", "k", keys, moved=2 * keys),
        op("attended", "attention", "q_turned k_turned v", queries, model.scores),
        op("projected", "product", "attended", h, 2 * h * queries),
        op("middle", "add", "x projected", h, moved=3 * h),
        op("norm2", "norm", "middle", h, moved=2 * h),
        op("gate", "product", "norm2", mlp, 2 * h * mlp),
        op("up", "product", "norm2", mlp, 2 * h * mlp),
        op("gated", "swiglu", "gate up", mlp, moved=3 * mlp),
        op("down", "product", "gated", h, 2 * h * mlp),
        op("y", "add", "middle down", h, moved=3 * h),
    ]


def budget(name: str, sequences: int) -> int:
    """Return the bytes that a layer may keep besides its input on the running case with FSDP over its 64 GPUs.

    From a GPU's usable memory go the state, FSDP's buffers, the logits, every layer's input, and room for all of one
    layer, which is there while the backward pass is in it. The rest is shared by the layers. Negative: it doesn't fit.
    """
    model = MODELS[name]
    layout = Layout(RUNNING.world_size, stage=3, micro_batch=sequences, recompute="full")
    held: Any = costs.memory(model, layout)
    return int((RUNNING.usable - held.total) // model.layers)


def running_cases() -> list[tuple[Layer, int]]:
    """Return both Llamas' layers with the sequences that fit, and their budgets."""
    rows = [(name, sequences) for name in LLAMAS for sequences in (1, 2, 4, 8)]
    return [(llama_layer(*row), budget(*row)) for row in rows if budget(*row) >= 0]


LLAMAS = ("llama-3-8b", "llama-3-70b")
