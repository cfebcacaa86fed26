"""Checks for exercise 14: attention in blocks, the ring on real ranks, balanced positions, and which way wins.

The truth in parts a and b is attention over all tokens at once, in fp64. Tokens may be anywhere: row r of `positions`
holds the places in the sequence of rank r's tokens, and a token sees those at its own place and before.

On a rank, what the learner sends and receives goes through `Watch`. It notes when each message is launched and waited
for, and makes races certain: an arriving tensor holds NaN until it is waited for, and a tensor that changes while it is
being sent is refused. Part d's **model** and **machine** are plain dicts, as the learner's functions get them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from random import Random
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from .. import ranks
from ..machines import RUNNING_CASE
from ..measure.wire import BytesSent
from ..training import context_parallel
from ..training.registry import MODELS
from . import checks, wall
from .checks import (
    Answered,
    LibraryUsed,
    NotYet,
    check_rows,
    generator,
    number_of,
    own_answer,
    refusing_functions,
)
from .on_ranks import finished, plain, run_on_ranks, stand_ins, witnessed, witnessed_arrivals, witnessed_reports

WITHOUT = (  # torch's own ring, zigzag and merge, and an attention that tells its log_sum
    "torch.distributed.tensor.experimental",
    "torch.nn.attention.flex_attention",
    "torch._higher_order_ops.flex_attention",
    "torch.onnx.ops",
    "torch._inductor.fx_passes.fuse_attention",
    "torch.nested._internal.sdpa",
)
WITHOUT_KERNELS = (
    ".*(scaled_dot_product|_attention|attention_forward|transformer_encoder_layer|MultiheadAttention[.]_?forward).*"
)
HOLDS = (
    ".WITHOUT_KERNELS",
    ".LLAMA_8B",
    ".LLAMA_70B",
    ".ONE_NODE",
    ".EIGHT_NODES",
    ".on_a_rank",
    "._NoKernels",
    "._refuse_fused",
)  # see `wall`
SENDS_ALONE = ("._on_rank",)
ON_RANKS = (
    ".Kernel",
    ".Watch",
    "._Request",
    "._on_rank",
    "._failed",
    "._array",
    "._overlap",
    ".attended",
    ".merged",
    "._softmax",
)

Pair = tuple[np.ndarray, np.ndarray]  # output [heads, queries, size], log_sum [heads, queries, 1]


# What answers may not use


class _NoKernels(TorchDispatchMode):
    """Refuses the kernels of torch's own attention inside this context."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, as `BytesSent` does: else torch imports its compiler."""
        return False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        _refuse_fused(operation.__name__)
        return operation(*args, **(kwargs or {}))


def _refuse_fused(name: str) -> None:
    if re.fullmatch(WITHOUT_KERNELS, name):
        name = "scaled_dot_product_attention" if "scaled_dot_product" in name else name
        raise LibraryUsed(f"torch's own {name} is for comparing, afterwards; write this part yourself")


@contextlib.contextmanager
def on_a_rank() -> Iterator[None]:
    """Refuse, inside this context, the library's own attention, schedules and cuts, and torch's modules for these."""
    softmax: Any = context_parallel.OnlineSoftmax
    library = [
        each for each in vars(context_parallel).values() if getattr(each, "__module__", "") == softmax.__module__
    ]
    functions = [each for each in library if hasattr(each, "__code__") and not each.__code__.co_freevars]
    methods = [softmax.__init__, softmax.see, softmax.attended.fget, softmax.log_sum.fget]
    with checks.without_the_library(), refusing_functions(*functions, *methods), wall.without(*WITHOUT):
        yield


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, what `on_a_rank` does, torch's own attention and this module's own answers."""
    answers = (
        attended,
        merged,
        _softmax,
        Kernel.attend,
        Kernel.merge,
        zigzag,
        in_order,
        seen_by_step,
        exposed,
        fits,
        needs,
        best,
    )
    with on_a_rank(), refusing_functions(*answers), wall.refusing_operators(WITHOUT_KERNELS), _NoKernels():
        yield


# Part a: blocks


def attended(queries: Any, keys: Any, values: Any, visible: Any) -> Pair:
    """Return the softmax-weighted mean of the visible values, and the logarithm of the sum of the exponentials.

    `queries`: [heads, queries, size]; `keys`, `values`: [kv_heads, keys, size]; `visible`: bool [queries, keys].
    Consecutive heads share a head of keys. A query that sees nothing has the output 0 and the log_sum -inf.
    """
    queries, keys, values = (np.asarray(each, dtype=float) for each in (queries, keys, values))
    share = len(queries) // len(keys)
    keys, values = np.repeat(keys, share, axis=0), np.repeat(values, share, axis=0)
    scores = queries @ keys.transpose(0, 2, 1) / math.sqrt(queries.shape[-1])
    return _softmax(np.where(visible, scores, -np.inf), values)


def _softmax(scores: np.ndarray, values: np.ndarray) -> Pair:
    highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isneginf(highest), 0, highest)
    weights = np.exp(scores - shift)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return weights @ values / np.where(total == 0, 1, total), shift + np.log(total)


def merged(one: Pair, other: Pair) -> Pair:
    """Return the pair of two blocks of keys together."""
    highest = np.maximum(one[1], other[1])
    shift = np.where(np.isneginf(highest), 0, highest)
    weights = [np.exp(pair[1] - shift) for pair in (one, other)]
    total = weights[0] + weights[1]
    output = sum(weight * pair[0] for weight, pair in zip(weights, (one, other), strict=True))
    with np.errstate(divide="ignore"):
        return output / np.where(total == 0, 1, total), shift + np.log(total)


class Block(NamedTuple):
    """An input of `attend`: queries, keys and values [heads, tokens, size], and visible, bool [queries, keys].

    `words`: what is special about it.
    """

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    visible: np.ndarray
    words: str


def block(
    words: str, heads: int = 2, queries: int = 3, keys: int = 4, size: int = 2, scale: float = 1.0, seed: int = 0
) -> Block:
    """Return random queries, keys and values. `words`: "all visible", "causal", "some hidden" or "row 0 hidden".

    `scale`: of the scores.
    """
    random = np.random.default_rng(seed)
    q, k, v = (random.normal(size=(heads, n, size)) for n in (queries, keys, keys))
    masks = {
        "all visible": np.ones((queries, keys), dtype=bool),
        "causal": np.tri(queries, keys, dtype=bool),
        "some hidden": np.tri(queries, keys, dtype=bool)[:, random.permutation(keys)],
        "row 0 hidden": np.tri(queries, keys, -1, dtype=bool),
        "all hidden": np.zeros((queries, keys), dtype=bool),
    }
    described = f"{words}{f', scores about {scale:,.0f}' if scale > 1 else ''}"
    return Block(scale * q, k, v, masks[words], described)


def blocks(seed: int = 0) -> list[Block]:
    """Return a block of each kind, with small and with large scores."""
    kinds = "all visible", "causal", "some hidden", "row 0 hidden", "all hidden"
    sizes = {"heads": 3, "queries": 5, "keys": 5, "size": 4}
    return [block(words, **sizes, scale=scale, seed=seed + n) for scale in (1, 1e4) for n, words in enumerate(kinds)]


def check_attend(function: Callable, cases: Iterable[Block]) -> None:
    """Check that `function(queries, keys, values, visible)` is the output and the log_sum of each block."""
    for case in cases:
        call = f"{function.__name__}(queries, keys, values, visible), {case.words},"
        tensors = [torch.tensor(each) for each in case[:4]]
        want = attended(*case[:4])
        got = _pair(own_answer(__name__, function, *tensors, call=call), call, want)
        _check_pair(call, got, want, _attend_slips(case, want))


def _attend_slips(case: Block, want: Pair) -> dict[str, Pair | tuple[None, np.ndarray] | tuple[np.ndarray, None]]:
    """Return the usual mistakes, each with the output and the log_sum that it gives; None where it gives any."""
    queries, keys, values, visible, _ = case
    size = queries.shape[-1]
    scores = queries @ keys.transpose(0, 2, 1) / math.sqrt(size)
    shown = np.where(visible, scores, -np.inf)
    highest = shown.max(axis=-1, keepdims=True)
    finite = {  # tells only where a query sees nothing
        "this gives hidden scores a large negative number, which still counts where a query sees nothing; set them to "
        "-inf": (_softmax(np.where(visible, scores, -1e9), values)[0], None)
    }
    with np.errstate(over="ignore", invalid="ignore"):
        return (finite if not visible.any(axis=1).all() else {}) | {
            "this doesn't divide the scores by the root of size": attended(queries * math.sqrt(size), *case[1:4]),
            "this divides the scores by size; divide by its root": attended(queries / math.sqrt(size), *case[1:4]),
            "this ignores `visible`": attended(queries, keys, values, visible | True),
            "this hides what is visible, and shows what is not": attended(queries, keys, values, ~visible),
            "this sets hidden scores to 0, whose exponential is 1; set them to -inf": _softmax(
                np.where(visible, scores, 0.0), values
            ),
            "this is the weighted sum; divide it by the sum of the weights": (np.exp(shown) @ values, None),
            "this is the weighted sum, less the maximum; divide it by the sum of the weights": (
                np.exp(shown - highest) @ values,
                None,
            ),
            "log_sum must also hold the maximum that you subtracted": (want[0], want[1] - highest),
            "this is the maximum; add the logarithm of the sum": (want[0], highest),
            "this is the sum; return its logarithm": (want[0], np.exp(want[1])),
        }


def _pair(result: Any, call: str, want: Pair) -> Pair:
    """Return a learner's (output, log_sum) as arrays; raise `NotYet` if it is no such pair."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise NotYet(f"{call} returns {_kind(result)}; return a pair, (output, log_sum)")
    found = []
    for name, each, right in zip(("output", "log_sum"), result, want, strict=True):
        array = _array(each)
        if array is not None and array.shape == right.shape[:-1] and right.shape[-1] == 1:
            array = array[..., None]
        if array is None or array.shape != right.shape:
            raise NotYet(f"{call}: its {name} is {_kind(each)}; return the shape {list(right.shape)}")
        found.append(array)
    return found[0], found[1]


def _array(value: Any) -> np.ndarray | None:
    """Return a tensor, an array or nested lists of numbers as an array of floats, or None."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy() if value.dtype != torch.bfloat16 else value.detach().float().numpy()
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return None
    return array


def _kind(value: Any) -> str:
    """Return what a value is, in words: its shape, or its type."""
    shape = getattr(value, "shape", None)
    return f"a value of type {type(value).__name__}" if shape is None else f"a tensor of shape {list(shape)}"


def _close(got: np.ndarray, want: np.ndarray) -> bool:
    return got.shape == want.shape and np.allclose(got, want, rtol=1e-9, atol=1e-9, equal_nan=True)


def _check_pair(call: str, got: Pair, want: Pair, slips: Mapping[str, Sequence[np.ndarray | None]]) -> None:
    """Raise `NotYet` for the first wrong element, with the slip that explains all of them if there is one."""
    for name, mine, right in zip(("output", "log_sum"), got, want, strict=True):
        if _close(mine, right):
            continue
        head, row, place = (int(n) for n in np.argwhere(~np.isclose(mine, right, 1e-9, 1e-9, equal_nan=True))[0])
        fits = [
            words
            for words, made in slips.items()
            if all(want is None or _close(one, want) for one, want in zip(got, made, strict=True))
        ]
        value = mine[head, row, place]
        hidden = np.isneginf(want[1][head, row, 0])
        overflows = np.isposinf(got[1]).any()
        slip = fits[0] if fits else _of_no_number(math.inf if overflows else value, hidden)
        element = f"{name}[{head}, {row}, {place}]"
        wanted = f"{right[head, row, place]:.7g}{' (this query sees nothing)' if hidden else ''}"
        shown = f"{value:.7g}"
        if shown == f"{right[head, row, place]:.7g}":
            shown, wanted = f"{value:.12g}", f"{right[head, row, place]:.12g}"
            slip = slip or "it is right up to fp32's rounding: compute in fp64"
        raise NotYet(f"{call} returns {element} = {shown}; it should be {wanted}{slip and f': {slip}'}")


def _of_no_number(value: float, hidden: bool) -> str:
    """Return where a NaN or an infinity comes from."""
    if math.isfinite(value):
        return ""
    if hidden:
        return "-inf - (-inf), 0/0 and 0 times inf are NaN: treat a sum of 0 apart"
    return "exp(1000) is infinite: subtract a maximum before you take exponentials"


class Split(NamedTuple):
    """Blocks of the same queries. `pairs`: the (output, log_sum) of each; `words`: what is special about them."""

    pairs: list[Pair]
    whole: Pair
    words: str


def splits(seed: int = 0) -> list[Split]:
    """Return keys in three blocks: all visible, causal, one hidden, two hidden, all hidden; small and large scores."""
    random, found = np.random.default_rng(seed), []
    for scale in (1.0, 1e4):
        q = scale * random.normal(size=(2, 4, 3))
        k, v = random.normal(size=(2, 2, 9, 3))
        order = random.permutation(9) // 2
        masks = {
            "all visible": np.ones((4, 9), dtype=bool),
            "a part hidden": np.arange(4)[:, None] >= order,
            "one block hidden": np.arange(9) // 3 != np.full((4, 1), random.integers(3)),
            "two blocks hidden": np.arange(9) // 3 == np.full((4, 1), random.integers(3)),
            "all blocks hidden": np.zeros((4, 9), dtype=bool),
        }
        for words, visible in masks.items():
            parts = [slice(n, n + 3) for n in (0, 3, 6)]
            pairs = [attended(q, k[:, part], v[:, part], visible[:, part]) for part in parts]
            described = f"{words}{', scores about 10,000' if scale > 1 else ''}"
            found.append(Split(pairs, attended(q, k, v, visible), described))
    return found


def check_merge(function: Callable, cases: Iterable[Split]) -> None:
    """Check that `function(one, other)` is the pair of two blocks together, and that of three in every order."""
    for case in cases:
        for number, order in enumerate(permutations(range(3))):
            first, second, third = (case.pairs[n] for n in order)
            call = f"{function.__name__}(one, other), {case.words},"
            got, want = _merge(function, first, second, call), merged(first, second)
            _check_pair(call, got, want, _merge_slips(first, second, want))
            call = f"{function.__name__} of three blocks, {case.words},"
            both = (got, third) if number % 2 else (third, got)
            _check_pair(call, _merge(function, *both, call), case.whole, {})


def _merge(function: Callable, one: Pair, other: Pair, call: str) -> Pair:
    pairs = [tuple(torch.tensor(each) for each in pair) for pair in (one, other)]
    return _pair(own_answer(__name__, function, *pairs, call=call), call, one)


def _merge_slips(one: Pair, other: Pair, want: Pair) -> dict[str, Sequence[np.ndarray | None]]:
    """Return the usual mistakes, each with what it gives; None where it gives any."""
    (o1, l1), (o2, l2) = one, other
    with np.errstate(all="ignore"):
        larger, total = np.maximum(l1, l2), np.exp(l1) + np.exp(l2)
        w1, w2 = np.exp(l1 - larger), np.exp(l2 - larger)
        return {
            "this is the mean of the outputs: a block counts by its sum of exponentials": ((o1 + o2) / 2, None),
            "this adds the outputs: each counts by its part of the whole sum": (o1 + o2, None),
            "an output is a mean already: divide the weighted sum by the sum of both weights": (
                w1 * o1 + w2 * o2,
                None,
            ),
            "this weights the outputs by log_sum; weight them by its exponential": (
                (l1 * o1 + l2 * o2) / (l1 + l2),
                None,
            ),
            "these weights are the wrong way round": ((w2 * o1 + w1 * o2) / (w1 + w2), None),
            "this takes the output of the block with the larger log_sum": (np.where(l1 >= l2, o1, o2), None),
            "this is the larger log_sum; add the smaller one's part": (want[0], larger),
            "this adds the logarithms: the sums add up, not their logarithms": (want[0], l1 + l2),
            "this is the sum; return its logarithm": (want[0], total),
            "this keeps the first block's log_sum": (want[0], l1),
        }


# Part b: the ring on real ranks


def in_order(world_size: int, tokens: int) -> np.ndarray:
    """Return the positions of a sequence cut into runs: int [world_size, tokens], `tokens` on each rank."""
    _check_short(tokens)
    return np.arange(world_size * tokens).reshape(world_size, tokens)


def zigzag(world_size: int, tokens: int) -> np.ndarray:
    """Return the positions if each rank has a piece from the front and one from the back, as `in_order` does."""
    _check_short(tokens)
    pieces = np.arange(world_size * tokens).reshape(2 * world_size, tokens // 2)
    return np.stack([np.concatenate([pieces[rank], pieces[-1 - rank]]) for rank in range(world_size)])


def _check_short(tokens: int) -> None:
    """Raise `LibraryUsed` for sequences as long as those of part c, which asks for such positions."""
    if tokens > 6:
        raise LibraryUsed("these positions are for part b's short sequences; write part c yourself")


def shuffled(world_size: int, tokens: int, seed: int) -> np.ndarray:
    """Return positions at random."""
    return np.random.default_rng(seed).permutation(world_size * tokens).reshape(world_size, tokens)


class Tokens(NamedTuple):
    """A sequence on ranks. queries: [rank, heads, tokens, size]; keys, values: [rank, kv_heads, tokens, size]."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    positions: np.ndarray

    @property
    def hop(self) -> int:
        """Return the bytes of one rank's keys and values."""
        return self.keys[0].nbytes + self.values[0].nbytes


def sequence(
    positions: np.ndarray, heads: int = 6, kv_heads: int = 2, size: int = 4, scale: float = 1.0, seed: int = 0
) -> Tokens:
    """Return random queries, keys and values at these positions. `scale`: of the scores."""
    random, (world_size, tokens) = np.random.default_rng(seed), positions.shape
    shapes = [(world_size, count, tokens, size) for count in (heads, kv_heads, kv_heads)]
    queries, keys, values = (random.normal(size=shape) for shape in shapes)
    return Tokens(scale * queries, keys, values, positions)


class Called(NamedTuple):
    """A call of `kernel.attend`.

    `queries`: how many, in how many `heads`. `keys`: [kv_heads, keys], the first number of each, which tells whose key
    it is, and in which head. `seen`: how many scores of each key were visible, in a head.
    """

    queries: int
    heads: int
    keys: np.ndarray
    seen: np.ndarray


class Done(NamedTuple):
    """What a rank did.

    `events`: what was launched and waited for, such as "send 0", "receive 0", "sent 0", "received 0", with "attend" in
    between. `unwaited`: calls never waited for. `bytes_to`: bytes sent, by peer.
    """

    returned: np.ndarray | str
    calls: list[Called]
    events: list[str]
    unwaited: list[str]
    bytes_to: dict[int, int]
    messages: int
    collectives: list[str]


class Kernel:
    """A GPU's two functions, as part b's `ring_attention` gets them. They are right whatever part a's are."""

    def __init__(self, watch: Watch):
        self._watch = watch

    def attend(self, queries: Any, keys: Any, values: Any, visible: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (output [heads, queries, size], log_sum [heads, queries, 1]) of some queries and some keys.

        `queries`: [heads, queries, size]; `keys`, `values`: [kv_heads, keys, size]; `visible`: bool [queries, keys].
        """
        queries, keys, values = (torch.as_tensor(each).detach() for each in (queries, keys, values))
        visible = torch.as_tensor(visible).bool()
        shapes = [list(each.shape) for each in (queries, keys, values, visible)]
        if (
            [len(shape) for shape in shapes] != [3, 3, 3, 2]
            or shapes[1] != shapes[2]
            or shapes[3] != [shapes[0][1], shapes[1][1]]
            or not shapes[1][0]
            or shapes[0][0] % shapes[1][0]
        ):
            raise NotYet(
                "kernel.attend takes queries [heads, q, size], keys and values [kv_heads, k, size] and visible "
                f"[q, k]; it got {', '.join(map(str, shapes))}"
            )
        self._watch.computes(queries, keys, values, visible.sum(0))
        output, log_sum = attended(queries.numpy(), keys.numpy(), values.numpy(), visible.numpy())
        return torch.tensor(output), torch.tensor(log_sum)

    def merge(self, one: Any, other: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the (output, log_sum) of two blocks of keys together."""
        (output, log_sum), (its_output, its_log_sum) = (
            [torch.as_tensor(each).detach().numpy() for each in pair] for pair in (one, other)
        )
        if (output.shape, log_sum.shape) != (its_output.shape, its_log_sum.shape):
            shapes = ", ".join(str(list(each.shape)) for each in (output, log_sum, its_output, its_log_sum))
            raise NotYet(f"kernel.merge takes two pairs of the same queries; it got the shapes {shapes}")
        output, log_sum = merged((output, log_sum), (its_output, its_log_sum))
        return torch.tensor(output), torch.tensor(log_sum)


class Watch:
    """What a rank launches, waits for and computes. Runs beside the learner's code, and only observes."""

    def __init__(self, rank: int):
        self.rank = rank
        self.events: list[str] = []
        self.calls: list[Called] = []
        self.requests: list[_Request] = []

    def computes(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor) -> None:
        """Note a call of `kernel.attend`; raise `NotYet` if its keys or values are still arriving."""
        for tensor in (keys, values):
            for request in self._in_flight("receive"):
                if _overlap(request.tensor, tensor):
                    raise NotYet(
                        f"rank {self.rank} computes with keys or values that are still arriving: wait() for the "
                        "receive first, and compute with another tensor meanwhile"
                    )
        heads, count, _ = queries.shape
        self.calls.append(Called(count, heads, keys[:, :, 0].numpy().astype(float), seen.numpy()))
        if seen.any():  # what sees nothing is no work for a hop to hide behind
            self.events.append("attend")

    def watched(self, function: Callable) -> contextlib.AbstractContextManager[None]:
        """Return a context in which `function`, the learner's, gets watched isend and irecv; send and recv use them."""
        return stand_ins(
            function, isend=self._launching(dist.isend, "send"), irecv=self._launching(dist.irecv, "receive")
        )

    def _launching(self, real: Callable, kind: str) -> Callable:
        @functools.wraps(real)
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(tensor, torch.Tensor):
                return real(tensor, *args, **kwargs)
            self._check_free(tensor, kind)
            staged = tensor.detach().clone()
            work = real(staged, *args, **kwargs)
            if work is None:
                return None
            number = sum(request.kind == kind for request in self.requests)
            self.events.append(f"{kind} {number}")
            self.requests.append(_Request(self, work, kind, number, tensor, staged))
            if kind == "receive" and tensor.is_floating_point():
                tensor.detach().fill_(math.nan)  # what is in it until it is waited for is arbitrary
            return self.requests[-1]

        return call

    def _check_free(self, tensor: torch.Tensor, kind: str) -> None:
        """Raise `NotYet` if the memory of a tensor to send or to receive into is in use by another message."""
        if not tensor.is_contiguous():
            raise NotYet(f"rank {self.rank}: a tensor to {kind} must be contiguous: call .contiguous() on it")
        others = [each for each in self._in_flight("receive") if _overlap(each.tensor, tensor)]
        if others and kind == "send":
            raise NotYet(f"rank {self.rank} sends on what is still arriving: wait() for its receive first")
        others += [each for each in self._in_flight("send") if kind == "receive" and _overlap(each.tensor, tensor)]
        if others:
            raise NotYet(
                f"rank {self.rank} receives into memory that another message under way still uses: receive into a "
                "tensor of its own, and wait() for the send before you reuse its tensor"
            )

    def _in_flight(self, kind: str) -> list[_Request]:
        return [each for each in self.requests if each.kind == kind and not each.done]

    def unfinished(self) -> list[str]:
        """Return the calls never waited for. Finish the sends among them, so that no peer hangs."""
        left = [each for each in self.requests if not each.done]
        for each in left:
            if each.kind == "send":
                each.work.wait()
        return ["dist.isend" if each.kind == "send" else "dist.irecv" for each in left]


class _Request:
    """A message under way. `wait()` brings what arrives, and says so if what is sent has changed meanwhile."""

    def __init__(self, watch: Watch, work: Any, kind: str, number: int, tensor: torch.Tensor, staged: torch.Tensor):
        self.watch, self.work, self.kind, self.number = watch, work, kind, number
        self.tensor, self.staged, self.done = tensor, staged, False

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        if not self.done:  # gloo would wait for a second message
            self.work.wait(*args, **kwargs)
            self._finish()
        return True

    def is_completed(self) -> bool:
        if self.work.is_completed():
            self._finish()
        return self.done

    def _finish(self) -> None:
        if self.done:
            return
        self.done = True
        self.watch.events.append(f"{'sent' if self.kind == 'send' else 'received'} {self.number}")
        if self.kind == "receive":
            self.tensor.detach().copy_(self.staged)
        elif not torch.equal(self.tensor.detach().nan_to_num(), self.staged.nan_to_num()):
            raise NotYet(f"rank {self.watch.rank} changes a tensor while it is being sent: wait() for the send first")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors share memory."""
    ends = []
    for tensor in (one, other):
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        ends.append((tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size() * (tensor.numel() > 0)))
    (begin, end), (start, stop) = ends
    return begin < stop and start < end


def _on_rank(
    rank: int,
    world_size: int,
    function: Callable,
    positions: np.ndarray,
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
) -> Done:
    """Call the learner's function on one rank. Runs beside the learner's code, and only observes."""
    watch = Watch(rank)
    tensors = [torch.tensor(each) for each in (queries, keys, values, positions)]
    try:
        with BytesSent(follow=True) as sent, watch.watched(function), on_a_rank():
            returned = plain(function(rank, world_size, *tensors, Kernel(watch)))
            unwaited = watch.unfinished()
            finished(rank, sent)
    except NotImplementedError:
        raise NotYet(f"{function.__name__} is not written yet") from None
    except NotYet as error:
        said = f"{error}{checks._learners_line(error)}".replace("\n  ", "; ")
        raise NotYet(said if said.startswith(("rank", "kernel")) else f"rank {rank}: {said}") from None
    except ValueError as error:
        if "there is no rank" not in str(error):
            raise _failed(rank, error) from None
        raise NotYet(f"rank {rank} sends to, or receives from, a rank that is not there: {error}") from None
    except Exception as error:
        raise _failed(rank, error) from None
    result = returned if isinstance(returned, str) else _array(returned)
    return Done(
        "ndarray" if result is None else result,
        watch.calls,
        watch.events,
        unwaited,
        dict(sent.to),
        sent.messages,
        list(sent.collectives),
    )


def _failed(rank: int, error: Exception) -> NotYet:
    """Return the words for an error of the learner's code, on one line."""
    line = checks._learners_line(error).replace("\n  ", "; ")
    return NotYet(" ".join(f"rank {rank} ends in {type(error).__name__}: {error}{line}".split()))


def check_ring(function: Callable, case: Tokens) -> list[Done]:
    """Check on real ranks that `function` attends as one rank with all tokens would; return what the ranks did.

    `function(rank, world_size, queries, keys, values, positions, kernel)`.
    """
    world_size = len(case.positions)
    own = [ranks.PerRank(each) for each in case[:3]]
    everyone = run_on_ranks(_on_rank, world_size, function, case.positions, *own, kind=Done)
    for rank, done in enumerate(everyone):
        if done.collectives:
            names = ", ".join(f"dist.{name}" for name in done.collectives)
            raise NotYet(f"rank {rank} calls torch's own {names}; write the ring with sends and receives")
        if done.unwaited:
            raise NotYet(f"rank {rank} never waits for its {done.unwaited[0]}: keep the request, and wait() for it")
        if isinstance(done.returned, str):
            raise NotYet(f"rank {rank} returns a value of type {done.returned}; return the output, a tensor")
        if done.returned.shape != case.queries[0].shape:
            shape = list(case.queries[0].shape)
            raise NotYet(f"rank {rank} returns the shape {list(done.returned.shape)}; return {shape}")
    got, want = np.stack([done.returned for done in everyone]), _wanted(case)
    if not _close(got, want):
        rank, head, token, place = (int(n) for n in np.argwhere(~np.isclose(got, want, 1e-9, 1e-9))[0])
        slip = next((words for words, made in _ring_slips(case) if _close(got, made)), "")
        if not slip and np.isnan(got[rank, head, token, place]):
            slip = "is a query merged that sees nothing, or a tensor used before its wait()?"
        value, right = got[rank, head, token, place], want[rank, head, token, place]
        digits = 6
        if np.allclose(got, want, rtol=1e-4, atol=1e-4):
            digits, slip = 12, "right up to rounding: keep fp64, also in what you send"
        raise NotYet(
            f"with {world_size} ranks, on rank {rank} token {token} (position {case.positions[rank, token]}) has "
            f"{value:.{digits}g} in head {head}, place {place}; attention on one rank gives {right:.{digits}g}"
            f"{slip and f': {slip}'}"
        )
    if world_size > 1 and case.hop >= 50_000:
        witnessed(everyone, _least(case))
        witnessed_reports(everyone)
        witnessed_arrivals(everyone, _visitors(case))
    return everyone


def _visitors(case: Tokens) -> Iterator[tuple[set[bytes], list[int]]]:
    """Yield some keys and values as bytes, each with the other ranks that have a query which sees it."""
    random = generator()
    latest = case.positions.max(axis=1)
    for rank, places in enumerate(case.positions):
        for numbers in (case.keys[rank], case.values[rank]):
            heads, tokens, size = numbers.shape
            for token in random.choice(tokens, 4):
                number = numbers[random.integers(heads), token, random.integers(size)]
                seen_by = [other for other in np.flatnonzero(latest >= places[token]).tolist() if other != rank]
                yield {number.tobytes()}, seen_by


def _wanted(case: Tokens, visible: np.ndarray | None = None) -> np.ndarray:
    """Return attention over all tokens, by rank. `visible`: bool [queries, keys] in the order of ranks; causal."""
    world_size, _, tokens, size = case.queries.shape
    queries, keys, values = (
        each.transpose(1, 0, 2, 3).reshape(each.shape[1], world_size * tokens, size) for each in case[:3]
    )
    output, _ = attended(queries, keys, values, _visible(case) if visible is None else visible)
    return output.reshape(-1, world_size, tokens, size).transpose(1, 0, 2, 3)


def _visible(case: Tokens) -> np.ndarray:
    flat = case.positions.ravel()
    return flat[:, None] >= flat


def _ring_slips(case: Tokens) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the usual mistakes, each with what all ranks would return."""
    world_size, tokens = case.positions.shape
    flat, everyone = case.positions.ravel(), np.arange(world_size)
    causal = _visible(case)
    local = np.tile(np.tri(tokens, dtype=bool), (world_size, world_size))
    by_owner = np.kron(np.eye(world_size, dtype=int), np.ones((tokens, tokens), dtype=int)) > 0
    yield "nothing is masked: a token sees no token after it", _wanted(case, causal | True)
    yield (
        "this masks by places on the rank; a token's position is its place in the whole sequence",
        _wanted(case, local),
    )
    yield "only the rank's own keys are in it", _wanted(case, causal & by_owner)
    yield "a token sees itself, too: its position >= the key's", _wanted(case, flat[:, None] > flat)
    yield "the mask is the wrong way round: a token sees those before it", _wanted(case, flat[:, None] <= flat)
    for step, words in ((world_size - 1, "the last visitor is missing"), (0, "the rank's own keys are missing")):
        for way in (1, -1):
            missing = np.zeros((world_size, world_size), dtype=bool)
            missing[everyone, (everyone - way * step) % world_size] = True
            yield words, _wanted(case, causal & ~np.kron(missing, np.ones((tokens, tokens), dtype=bool)))
    for way in (
        1,
        -1,
    ):  # the visitor of step s comes from rank - way * s, but the positions of rank + way * s are taken
        mistaken = np.zeros_like(causal)
        for rank in range(world_size):
            for step in range(world_size):
                theirs, taken = (rank - way * step) % world_size, (rank + way * step) % world_size
                rows, columns = _of(rank, tokens), _of(theirs, tokens)
                mistaken[rows, columns] = case.positions[rank][:, None] >= case.positions[taken]
        yield (
            "whose keys are these? in step s they are those of rank - s, if you send to rank + 1",
            _wanted(case, mistaken),
        )
    yield "a block's output counts by its sum of exponentials: merge, don't average", _averaged(case)


def _of(rank: int, tokens: int) -> slice:
    return slice(rank * tokens, (rank + 1) * tokens)


def _averaged(case: Tokens) -> np.ndarray:
    """Return the mean of the outputs of the blocks in which a query sees something."""
    means = []
    for rank, queries in enumerate(case.queries):
        outputs = []
        for other in range(len(case.positions)):
            visible = case.positions[rank][:, None] >= case.positions[other]
            output, _ = attended(queries, case.keys[other], case.values[other], visible)
            outputs.append(np.where(visible.any(axis=1)[:, None], output, np.nan))
        means.append(np.nanmean(outputs, axis=0))
    return np.stack(means)


def check_traffic(function: Callable, case: Tokens) -> None:
    """Check that a right ring sends keys and values P - 1 times, to one neighbour, and nothing else."""
    world_size = len(case.positions)
    wanted = (world_size - 1) * case.hop
    everyone = check_ring(function, case)
    ways = set()
    for rank, done in enumerate(everyone):
        to = {peer: count for peer, count in done.bytes_to.items() if count}
        sent = sum(to.values())
        if sent != wanted:
            raise NotYet(
                f"with {world_size} ranks, rank {rank} sends {sent:,} bytes; {world_size - 1} times its keys and "
                f"values are {wanted:,}{_too_many(sent, wanted, case)}"
            )
        if len(to) > 1:
            raise NotYet(
                f"with {world_size} ranks, rank {rank} sends to the ranks {', '.join(map(str, sorted(to)))}; in a ring "
                "it hands everything to the next rank alone"
            )
        ways |= {(peer - rank) % world_size for peer in to}
    if world_size > 2 and ways not in ({1}, {world_size - 1}):
        raise NotYet(
            f"with {world_size} ranks, not all ranks send to the next one: in a ring all do, the same way round"
        )


def _too_many(sent: int, wanted: int, case: Tokens) -> str:
    """Return what explains a rank's bytes; "" if nothing does."""
    world_size = len(case.positions)
    share = case.queries.shape[1] // case.keys.shape[1]
    queries = (world_size - 1) * case.queries[0].nbytes
    return {
        wanted * world_size // (world_size - 1): ": one hop too many; after P - 1 hops every rank has seen all keys",
        wanted * share: ": these are keys repeated for each head of queries; send each head of keys once",
        wanted + queries: ": queries stay, only keys and values travel",
    }.get(sent, ": positions and all else are known to every rank" if sent > wanted else "")


def _computed(function: Callable, case: Tokens) -> list[Done]:
    """Return what the ranks did; raise `NotYet` unless `kernel.attend` has computed every visible score once."""
    everyone, owners = check_ring(function, case), _owners(case)
    sent, least = sum(sum(done.bytes_to.values()) for done in everyone), _least(case)
    if sent < least:
        raise NotYet(
            f"with {len(everyone)} ranks, they send {sent:,} bytes in all; the keys and values that others see have "
            f"{least:,}: send them by dist.isend and its like"
        )
    for rank, done in enumerate(everyone):
        if any(float(key) not in owners for call in done.calls for key in call.keys.flat):
            raise NotYet(
                f"with {len(everyone)} ranks, rank {rank} gives kernel.attend keys that no rank has: give it keys as "
                "they are, each rank's own or as they arrived"
            )
        seen_of = _by_owner(done.calls, owners, case, lambda call: call.seen)
        needed = [int((case.positions[rank][:, None] >= places).sum()) for places in case.positions]
        everything = seen_of.sum(axis=0), sum(needed), ""
        parts = zip(seen_of, needed, (f" with rank {other}'s keys" for other in range(len(everyone))), strict=True)
        for computed, wanted, whose in (everything, *parts):
            if (computed != wanted).any():
                head = int(np.argmax(computed != wanted))
                where = f" in head {head} of keys" if np.ptp(computed) else ""
                raise NotYet(
                    f"with {len(everyone)} ranks, rank {rank} computes {computed[head]:g} visible scores{whose}{where} "
                    f"by kernel.attend; the mask leaves it {wanted}: compute every block with kernel.attend, and once"
                )
    return everyone


def _least(case: Tokens) -> int:
    """Return the bytes of the keys and values that other ranks see: so many have to travel, whichever way."""
    ranks_of, tokens = range(len(case.positions)), case.positions.shape[1]
    seen = [
        (case.positions[rank][:, None] >= case.positions[other]).any(axis=0).sum()
        for rank, other in permutations(ranks_of, 2)
    ]
    return int(sum(seen)) * case.hop // tokens


def _owners(case: Tokens) -> dict[float, tuple[int, int]]:
    """Return whose a key is and in which head, by its first number."""
    return {
        float(key): (rank, head)
        for rank, keys in enumerate(case.keys)
        for head, of_head in enumerate(keys)
        for key in of_head[:, 0]
    }


def _by_owner(
    calls: Iterable[Called],
    owners: Mapping[float, tuple[int, int]],
    case: Tokens,
    scores: Callable[[Called], np.ndarray],
) -> np.ndarray:
    """Add up `scores(call)` of each key: [rank, head of keys]. Queries in half of a head's own heads count half."""
    world_size, kv_heads, *_ = case.keys.shape
    found = np.zeros((world_size, kv_heads), dtype=int)
    for call in calls:
        for of_head in call.keys:
            for key, count in zip(of_head, scores(call), strict=True):
                found[owners[float(key)]] += count * (call.heads // len(call.keys))
    return found / (case.queries.shape[1] // kv_heads)


def check_overlap(function: Callable, case: Tokens) -> None:
    """Check that a right ring computes a block between a hop's launch and its wait. `case`: with work in every step.

    Behind every hop but the first it's a visitor's block, another one each time. The rank's own, or the first
    visitor's, in thin pieces, could pay for all hops.
    """
    world_size, owners = len(case.positions), _owners(case)
    everyone = _computed(function, case)
    launched = [
        sum(event.startswith(f"{word} ") for done in everyone for event in done.events) for word in ("send", "receive")
    ]
    if launched != [sum(done.messages for done in everyone)] * 2:
        raise NotYet(
            f"with {world_size} ranks, not every message has its dist.isend and its dist.irecv: launch both by these"
        )
    for rank, done in enumerate(everyone):
        events = done.events
        hops = sum(event.startswith("receive ") for event in events)
        if hops > 2 * (world_size - 1):
            raise NotYet(
                f"with {world_size} ranks, rank {rank} receives {hops} messages; keys and values go on in one message "
                f"or in two, so {2 * (world_size - 1)} are the most"
            )
        calls = [call for call in done.calls if call.seen.any()]  # one for each "attend" among the events
        heads = case.queries.shape[1]
        scores = [call.seen.sum() * call.heads / heads for call in calls]
        theirs = [_of_others(call, rank, owners) for call in calls]
        paid: dict[int, int] = {}  # {visitor: the hop that its block is behind}
        for hop in range(hops):
            where = f"with {world_size} ranks, rank {rank}, message {hop} of {hops}"
            launches = [_position(events, f"{word} {hop}") for word in ("send", "receive")]
            waits = [_position(events, f"{word} {hop}") for word in ("sent", "received")]
            first, last = (events[:until].count("attend") for until in (max(launches), min(waits)))
            behind, turn = (
                sum(scores[first:last]),
                hop * (world_size - 1) // hops,
            )  # keys and values may be two messages
            seen = sum(theirs[first:last], Counter())
            visitor = max((one for one in seen if paid.get(one, turn) == turn), key=lambda one: seen[one], default=rank)
            visitors = seen[visitor] / heads
            enough = sum(scores) / (4 * world_size)  # a quarter of the mean: the mask leaves blocks different work
            if (visitors if turn else behind) >= enough:
                paid |= {visitor: turn} if turn else {}
                continue
            if behind >= enough:
                raise NotYet(
                    f"{where}: of the {behind:g} visible scores that are computed between its launch and its wait(), "
                    f"{visitors:g} are with a visitor's keys that aren't behind another hop; behind every hop but the "
                    "first compute a block of those that came by the hop before"
                )
            if behind:
                raise NotYet(
                    f"{where}: {behind:g} of the rank's {sum(scores):g} visible scores are computed between its launch "
                    f"and its wait(), so the hop hides behind nearly nothing: compute a whole block there"
                )
            if "attend" in events[min(launches) : min(waits)]:
                late = "send" if launches[0] > launches[1] else "receive"
                raise NotYet(f"{where}: its {late} is launched only after the block is computed; launch both before")
            word = "send" if waits[0] < waits[1] else "receive"
            raise NotYet(
                f"{where}: its {word} is waited for before anything is computed, so the hop hides behind nothing: "
                "launch both with isend and irecv, compute a block, then wait()"
            )


def _of_others(call: Called, rank: int, owners: Mapping[float, tuple[int, int]]) -> Counter[int]:
    """Return the visible scores of a call of `kernel.attend`, over all heads, by the other rank whose keys they see."""
    seen: Counter[int] = Counter()
    for of_head in call.keys:
        for key, count in zip(of_head, call.seen, strict=True):
            owner = owners[float(key)][0]
            seen[owner] += int(count) * (owner != rank) * (call.heads // len(call.keys))
    return +seen


def _position(events: list[str], event: str) -> int:
    """Return when an event happens; after all others if it doesn't."""
    return events.index(event) if event in events else len(events)


def check_work(function: Callable, case: Tokens) -> None:
    """Check that a right ring computes no row and no column of scores that the mask hides whole."""
    world_size, tokens = case.positions.shape
    owners = _owners(case)
    for rank, done in enumerate(_computed(function, case)):
        area = _by_owner(done.calls, owners, case, lambda call: np.full(len(call.seen), call.queries))
        for other, computed in enumerate(area.max(axis=1)):
            visible = case.positions[rank][:, None] >= case.positions[other]
            rows, columns = visible.any(axis=1).sum(), visible.any(axis=0).sum()
            if computed > rows * columns:
                what = (
                    "none of its keys are visible: skip it"
                    if not rows
                    else f"only {rows} queries see any of its keys, and {columns} keys are seen"
                )
                raise NotYet(
                    f"with {world_size} ranks, rank {rank} computes {computed:g} scores with rank {other}'s {tokens} "
                    f"keys; {what}"
                )


# Part c: positions


WITHIN = 1.05  # how much longer than balanced work the ring may take


def seen_by_step(positions: np.ndarray) -> np.ndarray:
    """Return [rank, step]: how many scores the mask leaves of a rank's queries and the keys of rank - step."""
    world_size = len(positions)
    ordered, found = np.sort(positions, axis=1), np.zeros((world_size, world_size), dtype=int)
    for rank in range(world_size):
        for step in range(world_size):
            keys = ordered[(rank - step) % world_size]
            found[rank, step] = np.searchsorted(keys, ordered[rank], side="right").sum()
    return found


def check_shares(function: Callable, cases: Iterable[tuple[int, int]]) -> list[np.ndarray]:
    """Check that `function(rank, world_size, tokens)` gives each token to one rank, and all ranks as many.

    `cases`: (world_size, tokens). Returns the positions, [world_size, tokens / world_size], of each case.
    """
    found = []
    for world_size, tokens in cases:
        shares = [_share(function, rank, world_size, tokens) for rank in range(world_size)]
        owner: dict[int, int] = {}
        for rank, share in enumerate(shares):
            call = f"{function.__name__}({rank}, {world_size}, {tokens})"
            for position in share:
                if not 0 <= position < tokens:
                    raise NotYet(f"{call} holds position {position}; the positions are 0 to {tokens - 1}")
                if position in owner:
                    twice = "twice" if owner[position] == rank else f"too, as rank {owner[position]} does"
                    raise NotYet(f"{call} holds position {position} {twice}; every token is on one rank")
                owner[position] = rank
        for rank, share in enumerate(shares):
            if len(share) != tokens // world_size:
                raise NotYet(
                    f"{function.__name__}({rank}, {world_size}, {tokens}) holds {len(share)} positions; each rank "
                    f"holds {tokens // world_size}"
                )
        found.append(np.array(shares))
    return found


def _share(function: Callable, rank: int, world_size: int, tokens: int) -> list[int]:
    call = f"{function.__name__}({rank}, {world_size}, {tokens})"
    result = own_answer(__name__, function, rank, world_size, tokens, call=call)
    if isinstance(result, torch.Tensor | np.ndarray):
        result = result.flatten().tolist()
    try:
        return [operator.index(int(each) if isinstance(each, torch.Tensor) else each) for each in result]
    except (TypeError, ValueError):
        raise NotYet(f"{call} returns {brief(result)}; return the positions, a list of whole numbers") from None


def check_balance(function: Callable, cases: Iterable[tuple[int, int]]) -> None:
    """Check that no step of the ring waits for a rank with more work: within 5% of an equal share, in all."""
    cases = list(cases)
    for (world_size, tokens), positions in zip(cases, check_shares(function, cases), strict=True):
        work = seen_by_step(positions)
        ideal, most = work.sum() / world_size, work.sum(axis=1).max()
        where = f"{function.__name__} with {world_size} ranks and {tokens} tokens:"
        if most > WITHIN * ideal:
            rank = int(work.sum(axis=1).argmax())
            slip = ": these are the tokens in order" if _is_in_order(positions) else ""
            raise NotYet(
                f"{where} rank {rank} computes {most:,} scores, {most / ideal:.3g} times the mean; all others wait for "
                f"it{slip}. Early tokens see little and late ones much: give each rank some of both"
            )
        slowest = work.max(axis=0)
        if slowest.sum() > WITHIN * ideal:
            step = int((slowest / work.mean(axis=0)).argmax())
            rank = int(work[:, step].argmax())
            raise NotYet(
                f"{where} all ranks have about equal work, but not in each step: in step {step} rank {rank} computes "
                f"{work[rank, step]:,} scores, and the mean is {work[:, step].mean():,.0f}. All wait for it at the hop"
            )


def _is_in_order(positions: np.ndarray) -> bool:
    return bool((np.sort(positions, axis=1).ravel() == np.arange(positions.size)).all())


def table(function: Callable, world_size: int, tokens: int) -> str:
    """Return the work of each rank in each step of the ring, as lines of a table. `function`: as in `check_shares`."""
    (positions,) = check_shares(function, [(world_size, tokens)])
    work = seen_by_step(positions)
    lines = ["scores   " + "".join(f"{f'step {step}':>8}" for step in range(world_size)) + "     all"]
    lines += [f"rank {rank:<4}" + "".join(f"{n:8,}" for n in [*row, row.sum()]) for rank, row in enumerate(work)]
    return "\n".join(lines)


# Part d: which way


Model = Mapping[str, int]
Machine = Mapping[str, Any]

WAYS = RING, GATHER, ULYSSES = "ring", "all-gather", "ulysses"
BF16 = 2

LLAMA_8B, LLAMA_70B = (
    {"heads": MODELS[name].heads, "kv_heads": MODELS[name].kv_heads, "head_size": MODELS[name].width}
    for name in ("llama-3-8b", "llama-3-70b")
)
FLOPS = 400 * 10**12  # operations a second that attention reaches: an assumption
ONE_NODE = {
    "nodes": 1,
    "gpus": 8,
    "near": int(RUNNING_CASE.near_rate),
    "far": int(RUNNING_CASE.far_rate) // 8,
    "flops": FLOPS,
    "memory": 10**9,
}
EIGHT_NODES = {**ONE_NODE, "nodes": 8}
"""The running case: nodes of 8 H100, with a card for each GPU. near, far: bytes a second of a GPU."""


def exposed(way: str, model: Model, machine: Machine, tokens: int, **changed: float) -> float:
    """Return the seconds that a way adds to a layer's forward pass: what communication doesn't hide.

    `changed` models a learner's mistakes: `half`, `hops` and `floor` of the ring; `heads` that travel in it and in
    an all-gather; `cards` that the latter uses; `parts` of its ranks' bytes; `sent` heads of Ulysses; `itemsize`.
    """
    nodes, gpus = int(machine["nodes"]), int(machine["gpus"])
    world_size = nodes * gpus
    mine, size = tokens / world_size, model["head_size"] * changed.get("itemsize", BF16)
    link = changed.get("link", float(machine["near"] if nodes == 1 else machine["far"]))
    if way == RING:
        hop = 2 * mine * changed.get("heads", model["kv_heads"]) * size / link
        step = changed.get("half", 1) * 2 * mine**2 * model["heads"] * model["head_size"] / machine["flops"]
        return changed.get("hops", world_size - 1) * max(changed.get("floor", 0), hop - step)
    if way == GATHER:
        everything = 2 * tokens * changed.get("heads", model["kv_heads"]) * size
        if nodes == 1:
            return changed.get("parts", (world_size - 1) / world_size) * everything / link
        return changed.get("parts", (nodes - 1) / nodes) * everything / (changed.get("cards", gpus) * link)
    everything = 2 * mine * changed.get("sent", model["heads"] + model["kv_heads"]) * size
    away = world_size - (1 if nodes == 1 else gpus)
    return changed.get("away", away / world_size) * everything / link


def check_added(function: Callable, cases: Iterable[tuple[Model, Machine, int]]) -> None:
    """Check that `function(way, model, machine, tokens)` is the seconds that each way adds."""
    rows = []
    for model, machine, tokens in cases:
        for way in WAYS:
            call = f"{function.__name__}({way!r}, model, machine, {tokens:,}) for {_described(model, machine)}"
            result = own_answer(__name__, function, way, dict(model), dict(machine), tokens, call=call)
            got, want = number_of(result, call), exposed(way, model, machine, tokens)
            words = f"{call} returns {_seconds(got)}; it adds {_seconds(want)}"
            rows.append(Answered(words, got, want, _added_slips(want, way, model, machine, tokens)))
    check_rows(rows, words=lambda row: row.call)


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.6g} ms"


def _added_slips(want: float, way: str, model: Model, machine: Machine, tokens: int) -> dict[str, float]:
    """Return the usual mistakes, each with the seconds that it gives."""
    nodes, gpus = machine["nodes"], machine["gpus"]
    world_size = nodes * gpus

    def but(*only: str, **changed: float) -> float:
        return exposed(way, model, machine, tokens, **changed) if way in only else want

    return {
        "this is in milliseconds; return seconds": want * 1e3,
        "a number in bfloat16 has two bytes; this counts elements": exposed(way, model, machine, tokens, itemsize=1),
        "with zigzag a step computes half a block; this counts a whole one": but(RING, half=2),
        "a block is two products, scores and weighted sums: this counts one": but(RING, half=0.5),
        "nothing hides in this: subtract what the ring computes meanwhile": but(RING, half=0),
        "keys and values have fewer heads than queries; this counts the heads of queries": but(
            RING, GATHER, heads=model["heads"]
        ),
        "in the ring only keys and values travel; this counts the heads of queries": but(RING, heads=model["heads"]),
        "both keys and values travel; this counts one of them": but(RING, GATHER, heads=model["kv_heads"] / 2),
        "in the ring both keys and values travel; this counts one of them": but(RING, heads=model["kv_heads"] / 2),
        "a ring has one hop fewer than ranks": but(RING, hops=world_size),
        "a hop that hides adds nothing, not less: take max(0, ...)": but(RING, floor=-math.inf),
        "across nodes the link is `far`": but(*WAYS, link=machine["near"]),
        "with several nodes the slowest hop is between nodes": but(RING, link=machine["near"]),
        "an all-gather uses the cards of all GPUs of a node at once": but(GATHER, cards=1),
        "a node needs only what the other nodes have": but(GATHER, parts=1),
        "in a node a rank sends (P - 1) / P of all keys and values, not P - 1 times all": but(
            GATHER, parts=world_size - 1 if nodes == 1 else (nodes - 1) / nodes
        ),
        "across nodes, what a node has already doesn't travel: (nodes - 1) / nodes": but(
            GATHER, parts=(world_size - 1) / world_size
        ),
        "the queries and the results travel too, in Ulysses": but(ULYSSES, sent=model["kv_heads"]),
        "the results travel back, too: this lacks them": but(ULYSSES, sent=model["heads"] / 2 + model["kv_heads"]),
        "a rank keeps its own part: it sends to P - 1 of P": but(ULYSSES, away=1),
        "what stays in the node doesn't use the card between nodes": but(ULYSSES, away=(world_size - 1) / world_size),
    }


def fits(way: str, model: Model, machine: Machine, tokens: int) -> bool:
    """Return whether a way is feasible: whole heads of keys for Ulysses, room for all keys and values for a gather."""
    if way == ULYSSES:
        return model["kv_heads"] % (machine["nodes"] * machine["gpus"]) == 0
    return way == RING or needs(model, tokens) <= machine["memory"]


def needs(model: Model, tokens: int) -> int:
    """Return the bytes of all keys and values of a layer."""
    return 2 * tokens * model["kv_heads"] * model["head_size"] * BF16


def best(
    model: Model,
    machine: Machine,
    tokens: int,
    feasible: Callable[[str, Model, Machine, int], bool] = fits,
    cost: Callable[[str, Model, Machine, int], Any] = exposed,
    ways: Iterable[str] = WAYS,
) -> str:
    """Return the feasible way that adds least. The other parameters model a learner's mistakes."""
    return min(
        (way for way in ways if feasible(way, model, machine, tokens)), key=lambda w: cost(w, model, machine, tokens)
    )


def check_choice(function: Callable, cases: Iterable[tuple[Model, Machine, int]]) -> None:
    """Check that all choices of `function(model, machine, tokens, seconds)` are feasible and add least.

    `seconds`: what each way adds, rightly counted. The error names the first wrong one with the reason, and the mistake
    that explains all choices if there is one.
    """
    cases = list(cases)
    chosen = []
    for model, machine, tokens in cases:
        call = f"{function.__name__}(model, machine, {tokens:,}, seconds) for {_described(model, machine)}"
        seconds = {way: exposed(way, model, machine, tokens) for way in WAYS}
        result = own_answer(__name__, function, dict(model), dict(machine), tokens, seconds, call=call)
        if not isinstance(result, str) or result not in WAYS:
            raise NotYet(f"{call} returns {brief(result)}; return one of {', '.join(map(repr, WAYS))}")
        chosen.append(result)
    wrong = [n for n, case in enumerate(cases) if chosen[n] != best(*case)]
    if not wrong:
        return
    slip = next((words for words, other in SLIPS.items() if [other(*case) for case in cases] == chosen), "")
    model, machine, tokens = cases[wrong[0]]
    way, right = chosen[wrong[0]], best(*cases[wrong[0]])
    if fits(way, model, machine, tokens):
        added = [exposed(each, model, machine, tokens) for each in (way, right)]
        why = f"it adds {_seconds(added[0])}, and {right} adds {_seconds(added[1])}"
    elif way == ULYSSES:
        heads = f"{model['kv_heads']} head{'s' * (model['kv_heads'] > 1)} of keys"
        why = f"{machine['nodes'] * machine['gpus']} ranks can't share {heads} equally"
    else:
        why = f"all keys and values are {needs(model, tokens):,} bytes, and there are {machine['memory']:,}"
    raise NotYet(
        f"{tokens:,} tokens, {_described(model, machine)}: {function.__name__} returns {way!r}, but {why}. "
        f"{len(cases) - len(wrong)} of {len(cases)} choices are right{slip and f': {slip}'}"
    )


def _described(model: Model, machine: Machine) -> str:
    nodes = f"{machine['nodes']} node{'s' * (machine['nodes'] > 1)} of {machine['gpus']}"
    return f"{model['heads']} heads, {model['kv_heads']} of keys, on {nodes}"


def _ulysses_first(way: str, model: Model, machine: Machine, tokens: int) -> tuple[bool, float]:
    return way != ULYSSES, exposed(way, model, machine, tokens)


def _any_heads(way: str, model: Model, machine: Machine, tokens: int) -> bool:
    return way == ULYSSES or fits(way, model, machine, tokens)


def _enough_heads(way: str, model: Model, machine: Machine, tokens: int) -> bool:
    return (
        model["kv_heads"] >= machine["nodes"] * machine["gpus"] if way == ULYSSES else fits(way, model, machine, tokens)
    )


def _query_heads(way: str, model: Model, machine: Machine, tokens: int) -> bool:
    divide = model["heads"] % (machine["nodes"] * machine["gpus"]) == 0
    return divide if way == ULYSSES else fits(way, model, machine, tokens)


def _any_memory(way: str, model: Model, machine: Machine, tokens: int) -> bool:
    return way == GATHER or fits(way, model, machine, tokens)


def _less_memory(way: str, model: Model, machine: Machine, tokens: int) -> bool:
    return needs(model, tokens) < machine["memory"] if way == GATHER else fits(way, model, machine, tokens)


SLIPS: dict[str, Callable[[Model, Machine, int], str]] = {
    "you always choose the ring": partial(best, ways=(RING,)),
    "you never choose the all-gather": partial(best, ways=(RING, ULYSSES)),
    "you choose Ulysses wherever the heads allow it": partial(best, cost=_ulysses_first),
    "you don't ask whether the heads divide": partial(best, feasible=_any_heads),
    "you ask whether the heads of queries divide; a rank needs whole heads of keys": partial(
        best, feasible=_query_heads
    ),
    "you ask for as many heads of keys as ranks; they must divide": partial(best, feasible=_enough_heads),
    "you don't ask whether all keys and values fit into memory": partial(best, feasible=_any_memory),
    "what needs all memory, to the byte, fits": partial(best, feasible=_less_memory),
}
"""Mistakes in words, and the choice that each leads to."""


def random_cases(seed: int, of_each: int = 8) -> list[tuple[Model, Machine, int]]:
    """Return cases in random order. Each way is right `of_each` times, each mistake in `SLIPS` is wrong at least twice.

    In one of three the keys and values of all ranks need all memory, to the byte.
    """
    random, cases = Random(seed), []
    for way in WAYS:
        cases += _drawn(random, of_each, lambda *case, way=way: best(*case) == way)
    for slip in SLIPS.values():
        known = sum(slip(*case) != best(*case) for case in cases)
        cases += _drawn(random, 2 - known, lambda *case, slip=slip: slip(*case) != best(*case))
    random.shuffle(cases)
    return cases


def _drawn(random: Random, count: int, wanted: Callable[..., bool]) -> list[tuple[Model, Machine, int]]:
    found: list[tuple[Model, Machine, int]] = []
    while len(found) < count:
        case = _random_case(random)
        if wanted(*case) and _is_clear(*case):
            found.append(case)
    return found


def _random_case(random: Random) -> tuple[Model, Machine, int]:
    """Draw a model, a machine and a length. There are too many for a table of what each way adds."""
    kv_heads = random.randint(1, 24)
    model = {
        "heads": kv_heads * random.randint(1, 8),
        "kv_heads": kv_heads,
        "head_size": 8 * random.randint(6, 20),
    }
    nodes, gpus = random.choice((1, 1, 2, 4, 8)), random.choice((1, 2, 3, 4, 6, 8))
    if nodes * gpus == 1:
        gpus = 2
    tokens = 2 * nodes * gpus * round(2 ** random.uniform(6, 13))
    exact = needs(model, tokens)
    memory = random.choice((exact, exact - 1, exact // 2, 2 * exact, 4 * exact))
    near, far = random.randint(200, 900) * 10**9, random.randint(12, 100) * 10**9
    flops = random.randint(200, 600) * 10**12
    return model, dict(nodes=nodes, gpus=gpus, near=near, far=far, flops=flops, memory=memory), tokens


def _is_clear(model: Model, machine: Machine, tokens: int) -> bool:
    """Return whether the best way is clearly so, and whether the ring hides its hops: no rounding decides."""
    hop, left = (exposed(RING, model, machine, tokens, **but) for but in ({"half": 0}, {"floor": -math.inf}))
    if abs(left) < 0.001 * hop:
        return False
    added = sorted(exposed(way, model, machine, tokens) for way in WAYS if fits(way, model, machine, tokens))
    return len(added) == 1 or added[1] > 1.001 * added[0] + 1e-12


def few_cases(seed: int, how_many: int = 6) -> list[tuple[Model, Machine, int]]:
    """Return cases on one node and on several, in which the ring hides, hides a part, and does not."""
    random, cases = Random(seed), []
    for nodes in (1, 2):
        for hidden in (True, False):
            cases += _drawn(
                random,
                how_many // 4 + 1,
                lambda model, machine, tokens, nodes=nodes, hidden=hidden: (
                    (machine["nodes"] > 1) == (nodes > 1)
                    and (exposed(RING, model, machine, tokens) == 0) == hidden
                    and machine["gpus"] > 1
                ),
            )
    return cases
