"""Checks for exercise 11: messages of few bits, sums that round once or twice, what rounding leaves, and what it buys.

The truth in parts a to c is the exact sum and half a step for each rounding: a bound that holds for any numbers. The
inputs are those that break it: outliers, ties, blocks of zeros, tiny and huge numbers, a short last block. Part a packs
and unpacks in processes of their own, and in grading in sandboxes of their own: nothing but the message goes from one
to the other. Both checks look at the length of a message and at what is unpacked from it, because raw numbers arrive
without error, and a message of the right length may hold nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, permutations, product
from random import Random
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import ranks
from ..contracts import ranks_in_words
from ..machines import CLUSTERS, RUNNING_CASE
from ..measure.wire import BytesSent
from ..training import quantized
from ..training.registry import MODELS
from . import checks
from .checks import Answered, NotYet, answer, check_rows, number_of, own_answer, refusing_functions, told_apart
from .on_ranks import MUCH, crossed, finished, plain, run_on_ranks, witnessed, witnessed_reports, witnessed_terms

HOLDS = (
    ".LAYER",
    ".NDR",
    ".ETHERNET",
    "machines",
    ".machine_of",
    "._packed",
    "._unpacked",
    "._given",
    ".on_a_rank",
)  # see `wall`
SENDS_ALONE = ("._on_rank",)
ON_RANKS = (  # of `quantized` what a codec needs: its sums are part b's answers
    "training.quantized.pack",
    "training.quantized.unpack",
    "training.quantized.message_bytes",
    "training.quantized._steps",
    "training.quantized._per_number",
    "training.quantized._largest",
    "training.quantized._check",
    ".Codec",
    "._on_rank",
)

SLACK = quantized.SLACK  # covers fp32's own rounding
STEP_BYTES = quantized.STEP_BYTES


class Codec:
    """Packs and unpacks, right whatever part a's functions are. `bits` of a code; `block` numbers share a step."""

    def __init__(self, bits: int = 4, block: int = 64):
        self.bits, self.block = bits, block

    def pack(self, values: Any) -> torch.Tensor:
        """Return the message of flat floats [n]: uint8."""
        values = torch.as_tensor(values)
        if values.ndim != 1 or not values.is_floating_point():
            raise NotYet(f"codec.pack takes a flat tensor of floats; it got {values.dtype} {list(values.shape)}")
        return quantized.pack(values.detach()[None], self.bits, self.block)[0]

    def unpack(self, message: Any, num_elements: int) -> torch.Tensor:
        """Return the numbers of a message: fp32 [num_elements]."""
        message = torch.as_tensor(message)
        want = quantized.message_bytes(num_elements, self.bits, self.block)
        if message.dtype != torch.uint8 or message.shape != (want,):
            raise NotYet(
                f"codec.unpack: a message of {num_elements} numbers is torch.uint8 [{want}]; "
                f"it got {message.dtype} {list(message.shape)}"
            )
        return quantized.unpack(message[None], num_elements, self.bits, self.block)[0]


class CodecFunctions(NamedTuple):
    """A codec in part c: when graded, the judge answers its calls, for a sandbox holds no answer to part a."""

    pack: Callable
    unpack: Callable


@contextlib.contextmanager
def on_a_rank() -> Iterator[None]:
    """Refuse, inside this context, the library's schedules and its quantized collectives."""
    collectives = quantized.all_gather, quantized.reduce_scatter, quantized.reduce_scatter_in_two, quantized.two_hops
    with checks.without_the_library(), refusing_functions(*collectives, quantized._hop):
        yield


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, all of the library's quantization, and this module's own answers."""
    library = quantized.pack, quantized.unpack, quantized.rounded, quantized.bound, quantized.message_bytes
    answers = half_steps, seconds, hides_from, fastest
    with on_a_rank(), refusing_functions(*library, quantized._steps, *answers):
        yield


# Part a: messages


def half_steps(values: np.ndarray, bits: int, block: int) -> np.ndarray:
    """Return half a step of each number's block, fp64 [n]."""
    largest = [np.abs(values[begin : begin + block]).max() for begin in range(0, len(values), block)]
    return np.repeat(largest, block)[: len(values)] / (2 ** (bits - 1) - 1) / 2


class Message(NamedTuple):
    """An input of `pack`. `values`: fp32 [n]. `words`: what is special about them."""

    values: np.ndarray
    bits: int
    block: int
    words: str


def messages(seed: int) -> list[Message]:
    """Return numbers of every kind, in 4 and 8 bits, in blocks that divide them and blocks that don't."""
    random, found = np.random.default_rng(seed), []
    for bits, block, length in product((4, 8), (1, 3, 8), (1, 5, 24)):
        largest = 2 ** (bits - 1) - 1
        kinds = {
            "numbers of any sign": random.normal(size=length),
            "negative numbers": -np.abs(random.normal(size=length)) - 0.1,
            "numbers with an outlier": np.where(np.arange(length) == length // 2, -1e4, random.normal(size=length)),
            "zeros": np.zeros(length),
            "blocks of zeros beside others": random.normal(size=length) * (np.arange(length) // block % 2),
            "tiny numbers": 1e-30 * (1 + random.random(length)),
            "huge numbers": 1e37 * random.normal(size=length),
            "numbers halfway between codes": (random.integers(-largest, largest, length) + 0.5) / largest,
        }
        for words, values in kinds.items():
            if words.endswith("codes"):
                values[::block] = random.choice((-1.0, 1.0))  # the largest of each block: a step is 1 / largest
            found.append(Message(values.astype(np.float32), bits, block, words))
    return found


def _packed(rank: int, world_size: int, pack: Callable, cases: list[Message]) -> list[Any]:
    """Return the learner's messages as they are, or as uint8 arrays. Runs beside the learner's code."""
    return [_given(pack, torch.tensor(case.values), case.bits, case.block) for case in cases]


def _unpacked(
    rank: int, world_size: int, unpack: Callable, sizes: list[tuple[int, int, int]], found: list[np.ndarray]
) -> list[Any]:
    """Return what the learner makes of the messages. Runs beside the learner's code, and knows no number of theirs."""
    return [_given(unpack, torch.tensor(message), *each) for each, message in zip(sizes, found, strict=True)]


def _given(function: Callable, *args: Any) -> Any:
    """Return what the learner's function returns: an array, or a text that says why not."""
    try:
        with without_the_library():
            result = function(*args)
    except NotImplementedError:
        raise NotYet(f"{function.__name__} is not written yet") from None
    except NotYet as error:
        raise NotYet(f"{function.__name__}: {error}{checks._learners_line(error)}".replace("\n  ", "; ")) from None
    except Exception as error:
        line = checks._learners_line(error).replace("\n  ", "; ")
        return f"ends in {type(error).__name__}: {error}{line}"
    try:
        return np.array(torch.as_tensor(result).detach())
    except (TypeError, ValueError, RuntimeError):
        return f"returns a value of type {type(result).__name__}; return a tensor"


def _call(case: Message, name: str) -> str:
    return f"{name} of {len(case.values)} {case.words}, in {case.bits} bits and blocks of {case.block},"


def _sent(pack: Callable, cases: list[Message]) -> list[np.ndarray]:
    """Return the learner's messages: uint8 [bytes]. Raises `NotYet` for one that is not."""
    (found,) = run_on_ranks(_packed, 1, pack, cases, kind=list)
    if len(found) != len(cases):
        raise NotYet("not every message comes back")
    for case, message in zip(cases, found, strict=True):
        call = _call(case, pack.__name__)
        if isinstance(message, str):
            raise NotYet(f"{call} {message}")
        if not isinstance(message, np.ndarray) or message.dtype != np.uint8 or message.ndim != 1:
            raise NotYet(f"{call} returns {_kind(message)}; a message is torch.uint8, of one dimension")
    return found


def _kind(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else brief(value)


def check_messages(pack: Callable, unpack: Callable, cases: Iterable[Message]) -> None:
    """Check that numbers arrive within half a step, in messages that have at most a byte for each number.

    A code of 4 bits may take a whole byte here: `check_bytes` asks for the exact length. Raw fp32 numbers would arrive
    without error, but they are longer.
    """
    cases = list(cases)
    sent = _sent(pack, cases)
    for case, message in zip(cases, sent, strict=True):
        most = quantized.message_bytes(len(case.values), 8, case.block)
        if len(message) > most:
            codes = f"a byte for each code is enough here, and {STEP_BYTES} for each block's step: {most} in all"
            raise NotYet(f"{_call(case, pack.__name__)} returns {len(message)} bytes; {codes}{_spare(case, message)}")
    for case, got, call in _arriving(unpack, cases, sent):
        _check_arrived(case, got, call)


def _arriving(
    unpack: Callable, cases: list[Message], sent: list[np.ndarray]
) -> Iterator[tuple[Message, np.ndarray, str]]:
    """Unpack these messages where nothing else of `pack` is; yield each case, its numbers, and the call in words."""
    sizes = [(len(case.values), case.bits, case.block) for case in cases]
    (found,) = run_on_ranks(_unpacked, 1, unpack, sizes, sent, kind=list, apart=True)
    if len(found) != len(cases):
        raise NotYet("not every message is unpacked")
    for case, got in zip(cases, found, strict=True):
        call = _call(case, unpack.__name__)
        if isinstance(got, str):
            raise NotYet(f"{call} {got}")
        if not isinstance(got, np.ndarray) or got.shape != case.values.shape:
            raise NotYet(f"{call} returns {_kind(got)}; return {len(case.values)} numbers")
        yield case, got, call


def _check_arrived(case: Message, got: np.ndarray, call: str) -> None:
    most = half_steps(case.values.astype(float), case.bits, case.block) * SLACK
    off = np.abs(got.astype(float) - case.values)
    wrong = ~(off <= most)
    if not wrong.any():
        return
    place = int(np.flatnonzero(wrong)[0])
    hint = _slip(case, got)
    raise NotYet(
        f"{call} gives {float(got[place])!r} as number {place}, which was {float(case.values[place])!r}: off by "
        f"{off[place]:.3g}, and half a step of its block is {most[place]:.3g}{hint}"
    )


def _slip(case: Message, got: np.ndarray) -> str:
    """Return the usual mistake that gives these numbers, in words."""
    values, block = case.values, case.block  # fp32, as the learner's
    largest = 2 ** (case.bits - 1) - 1
    if np.isnan(got).any():
        return ": 0 / 0 is NaN: a block of zeros has the step 0"
    if np.isinf(got).any():
        return ": is a step, or its inverse, infinite?"

    def coded(per_block: Callable, scale: float = largest, cut: Callable = np.round, size: int = block) -> np.ndarray:
        steps = np.array([per_block(values[at : at + size]) / np.float32(scale) for at in range(0, len(values), size)])
        step = np.repeat(steps, size)[: len(values)]
        with np.errstate(all="ignore"):
            codes = np.clip(cut(np.where(step > 0, values / step, 0)), -largest - 1, largest)
        return codes * step

    made = {
        "one step for the whole tensor: each block has its own": coded(lambda v: np.abs(v).max(), size=len(values)),
        "the largest MAGNITUDE sets the step: a negative number may be the largest": coded(lambda v: max(v.max(), 0)),
        "the codes are cut off, not rounded to the nearest": coded(lambda v: np.abs(v).max(), cut=np.trunc),
        "the codes are rounded down, not to the nearest": coded(lambda v: np.abs(v).max(), cut=np.floor),
        f"the largest code is {largest}, not {largest + 1}, which doesn't fit": coded(
            lambda v: np.abs(v).max(), scale=largest + 1
        ),
    }
    return next((f": {words}" for words, each in made.items() if np.allclose(got, each, rtol=1e-5, atol=0)), "")


def check_bytes(pack: Callable, unpack: Callable, cases: Iterable[Message]) -> None:
    """Check that each message has `bits` for each number and four bytes for each block's step, and holds the numbers.

    The same messages are unpacked. A number that is off by up to a step of the largest block passes here, because
    `check_messages` asks for half a step of its own.
    """
    cases = list(cases)
    sent = _sent(pack, cases)
    for case, message in zip(cases, sent, strict=True):
        want = quantized.message_bytes(len(case.values), case.bits, case.block)
        if len(message) != want:
            hint = _spare(case, message)
            raise NotYet(f"{_call(case, pack.__name__)} returns {len(message)} bytes; {want} are enough{hint}")
    for case, got, call in _arriving(unpack, cases, sent):
        step = 2 * SLACK * half_steps(case.values.astype(float), case.bits, case.block).max()
        off = np.abs(got.astype(float) - case.values)
        if not (off <= step).all():
            place = int(np.flatnonzero(~(off <= step))[0])
            raise NotYet(
                f"{call} gives {float(got[place])!r} as number {place}, which was {float(case.values[place])!r}: the "
                f"message has the right length, but not the numbers. A step is {step:.3g} at most"
            )


def _spare(case: Message, message: np.ndarray) -> str:
    """Return what makes a message too long, in words; "" if it is too short."""
    count, blocks, got = len(case.values), -(-len(case.values) // case.block), len(message)
    want = quantized.message_bytes(count, case.bits, case.block)
    if got == case.values.nbytes and bytes(message) == case.values.tobytes():
        return ": these are the fp32 numbers themselves"
    if got == count + STEP_BYTES * blocks:
        return ": two codes of 4 bits fit into a byte"
    if got == want + STEP_BYTES * (count - blocks):
        return ": this has a step for each number, not for each block"
    if got > want:
        return f": the codes are {-(-count * case.bits // 8)} bytes, the steps {STEP_BYTES * blocks}"
    return ""


def check_bound(function: Callable, cases: Iterable[Message]) -> None:
    """Check that `function(values, bits, block)` is half a step for each number."""
    for case in cases:
        call = _call(case, function.__name__)
        got = _floats(own_answer(__name__, function, torch.tensor(case.values), case.bits, case.block, call=call), call)
        want = half_steps(case.values.astype(float), case.bits, case.block)
        if got.shape != want.shape:
            raise NotYet(f"{call} returns the shape {list(got.shape)}; return one number for each")
        if not np.allclose(got, want, rtol=1e-4, atol=0):
            place = int(np.flatnonzero(~np.isclose(got, want, rtol=1e-4, atol=0))[0])
            wide = 2 ** (case.bits - 1) - 1
            slips = {
                "this is a whole step": 2 * want,
                "the largest code of so many bits is one less": want * wide / (wide + 1),
            }
            hint = next((f": {words}" for words, each in slips.items() if np.allclose(got, each, rtol=1e-4)), "")
            raise NotYet(f"{call} returns {got[place]:.6g} for number {place}; half a step is {want[place]:.6g}{hint}")


def _floats(result: Any, call: str) -> np.ndarray:
    try:
        return np.array(torch.as_tensor(result).detach().double())
    except (TypeError, ValueError, RuntimeError):
        raise NotYet(f"{call} returns {brief(result)}; return a tensor of numbers") from None


# Part b: sums on real ranks


class Summed(NamedTuple):
    """What a rank did. `returned`: its sum, or what else it returned. `bytes_to`: bytes sent, by peer.

    `messages`: how many sends; `collectives`: torch's own that it called.
    """

    returned: np.ndarray | str
    bytes_to: dict[int, int]
    messages: int
    collectives: list[str]


def _on_rank(
    rank: int, world_size: int, function: Callable, values: np.ndarray, more: list[int], bits: int, block: int
) -> Summed:
    """Call the learner's function on one rank. Runs beside the learner's code, and only observes."""
    try:
        with BytesSent(follow=True) as sent, on_a_rank():
            returned = plain(function(rank, world_size, *more, torch.tensor(values), Codec(bits, block)))
            finished(rank, sent)
    except NotImplementedError:
        raise NotYet(f"{function.__name__} is not written yet") from None
    except Exception as error:
        line = checks._learners_line(error).replace("\n  ", "; ")
        own = isinstance(error, NotYet) or "can't send to itself" in str(error)
        what = error if own else f"rank {rank} ends in {type(error).__name__}: {error}"
        raise NotYet(" ".join(f"{what}{line}".split())) from None
    return Summed(returned, dict(sent.to), sent.messages, list(sent.collectives))


def gradients(world_size: int, size: int, seed: int) -> np.ndarray:
    """Return gradients of which the ranks share a part, with an outlier on each rank: fp32 [P, P x size]."""
    random = np.random.default_rng(seed)
    common, own = random.normal(size=world_size * size), random.normal(size=(world_size, world_size * size))
    values = common + own
    values[np.arange(world_size), random.integers(world_size * size, size=world_size)] *= 30
    return values.astype(np.float32)


def _summed(
    function: Callable, values: np.ndarray, codec: Codec, more: Sequence[int] = ()
) -> tuple[list[Summed], np.ndarray]:
    """Run a learner's sum on ranks; return what each did, and all sums: fp64 [P, size]."""
    world_size, total = values.shape
    rows = ranks.PerRank(values)
    everyone = run_on_ranks(_on_rank, world_size, function, rows, list(more), codec.bits, codec.block, kind=Summed)
    for rank, each in enumerate(everyone):
        if each.collectives:
            names = ", ".join(f"dist.{name}" for name in each.collectives)
            raise NotYet(f"with {world_size} ranks, rank {rank} calls torch's own {names}; write it with sends alone")
        if isinstance(each.returned, str) or each.returned.shape != (total // world_size,):
            kind = each.returned if isinstance(each.returned, str) else list(each.returned.shape)
            raise NotYet(f"with {world_size} ranks, rank {rank} returns {kind}; return {total // world_size} numbers")
    return everyone, np.stack([each.returned.astype(float) for each in everyone])


def _chunks(values: np.ndarray) -> np.ndarray:
    """Return the parts by owner: fp64 [owner, rank, size]."""
    world_size = len(values)
    return values.astype(float).reshape(world_size, world_size, -1).transpose(1, 0, 2)


def _each(function: Callable, rows: np.ndarray) -> np.ndarray:
    """Return `function` of each row of the last dimension."""
    flat = [function(row) for row in rows.reshape(-1, rows.shape[-1])]
    return np.array(flat).reshape(rows.shape)


def _rounded(codec: Codec, values: np.ndarray) -> np.ndarray:
    return quantized.rounded(torch.tensor(values).float(), codec.bits, codec.block).double().numpy()


def check_sum(function: Callable, world_size: int, size: int, bits: int = 4, block: int = 64, seed: int = 0) -> None:
    """Check that each rank's sum is off by at most half a step for each part, each rounded once."""
    codec, values = Codec(bits, block), gradients(world_size, size, seed)
    everyone, got = _summed(function, values, codec)
    parts = _chunks(values)
    exact = parts.sum(axis=1)
    most = _each(partial(half_steps, bits=bits, block=block), parts).sum(axis=1) * SLACK + 1e-5
    where = f"with {world_size} ranks, in {function.__name__} of {values.shape[1]} numbers"
    slip = _sum_slip(got, values, codec, most)
    _check_within(where, got, exact, most, slip)
    once = _each(partial(_rounded, codec), parts)
    mine = once.copy()
    mine[np.arange(world_size), np.arange(world_size)] = parts[np.arange(world_size), np.arange(world_size)]
    if not any(np.allclose(got, each.sum(axis=1), atol=1e-4, rtol=1e-5) for each in (once, mine)):
        words = "the sum is near, but it is not the fp32 sum of parts that were each rounded once"
        raise NotYet(f"{words}, {where}{slip and f': {slip}'}")
    if _witness_reports(everyone, _direct(values, codec)):
        witnessed_terms(everyone, _blocks_to_see(values, codec))


class Due(NamedTuple):
    """The message that a rank should send to a peer. `what`: its numbers in words.

    `choices`: the chunks that it may be made of, fp64 [choices, size].
    """

    num_bytes: int
    numbers: int
    what: str
    choices: np.ndarray


def _direct(values: np.ndarray, codec: Codec) -> list[dict[int, Due]]:
    """Return what each rank sends, by peer, if every part goes straight to its owner.

    A wrong sum may have the right traffic, so a message may be any one of its sender's chunks.
    """
    parts, everyone = _chunks(values), range(len(values))
    size = parts.shape[-1]
    num_bytes = quantized.message_bytes(size, codec.bits, codec.block)
    dues = [Due(num_bytes, size, "that rank's chunk", parts[:, rank]) for rank in everyone]
    return [{peer: dues[rank] for peer in everyone if peer != rank} for rank in everyone]


def _witness_reports(everyone: list[Summed], expected: list[dict[int, Due]]) -> bool:
    """Check the traffic of large sums against what was counted from outside; return whether the sums are large."""
    least = sum(due.num_bytes for each in expected for due in each.values())
    if least < MUCH:
        return False
    sent = sum(sum(each.bytes_to.values()) for each in everyone)
    witnessed(everyone, least, sent)
    witnessed_reports(everyone)
    return True


def _blocks_to_see(values: np.ndarray, codec: Codec) -> Iterator[set[bytes]]:
    """Yield blocks of each rank's parts of the others' chunks, in each form in which they may be on the wire.

    A part should be packed, but in fp32 or fp64 it makes the sum no less right: `check_traffic` refuses that. A whole
    block is never all zeros, which anything may send: its largest number has the largest code.
    """
    world_size, random, block = len(values), checks.generator(), codec.block
    parts = torch.tensor(values).unflatten(1, (world_size, -1))
    for rank, owner in [*permutations(range(world_size), 2)] * 2:
        part = parts[rank, owner]
        message = codec.pack(part)
        at = block * int(random.integers(max(1, len(part) // block)))
        codes = message[at * codec.bits // 8 : (at + block) * codec.bits // 8]
        floats = [each[at : at + block] for each in (part, codec.unpack(message, len(part)))]
        yield {each.numpy().tobytes() for each in (codes, *floats, *(each.double() for each in floats))}


ALIKE = 0.95  # cosine: numbers and what they are in 4 bits have over 0.98; a sum and one of its terms, below 0.9


def _witness_numbers(everyone: list[Summed], expected: list[dict[int, Due]], codec: Codec) -> None:
    """Check that each message holds the numbers that are due, if this run was captured from outside.

    Its chunks may have any order, and a node's sum may be off by its roundings. So numbers are compared, not bytes.
    """
    messages = crossed(everyone)
    if messages is None:
        return
    for rank, dues in enumerate(expected):
        for peer, due in dues.items():
            data = b"".join(each.data for each in messages if (each.src, each.dst) == (rank, peer))
            if not _holds(data, due, codec):
                raise NotYet(
                    f"with {len(everyone)} ranks, the message from rank {rank} to rank {peer} has the right length, "
                    f"but it holds other numbers: pack {due.numbers} numbers, {due.what}, and add up what arrives"
                )


def _holds(data: bytes, due: Due, codec: Codec) -> bool:
    """Return whether every chunk in a message is one of `due.choices`, up to rounding."""
    message = torch.tensor(np.frombuffer(data, np.uint8))
    numbers = codec.unpack(message, due.numbers).double().numpy()
    chunks = numbers.reshape(-1, due.choices.shape[1])
    with np.errstate(all="ignore"):  # a student's bytes may be steps that are infinite, or NaN
        sizes = np.multiply.outer(np.linalg.norm(chunks, axis=1), np.linalg.norm(due.choices, axis=1))
        return bool((chunks @ due.choices.T > ALIKE * sizes).any(axis=1).all())


def _check_within(where: str, got: np.ndarray, exact: np.ndarray, most: np.ndarray, slip: str) -> None:
    """Raise `NotYet` for the first sum [rank, n] that is off by more than `most`. `slip`: the reason, if known."""
    wrong = np.argwhere(~(np.abs(got - exact) <= most))
    if len(wrong):
        rank, place = (int(each) for each in wrong[0])
        raise NotYet(
            f"rank {rank}'s sum is off by {abs(got[rank, place] - exact[rank, place]):.3g} in number {place}, and its "
            f"roundings allow {most[rank, place]:.3g}, half a step each: it is {got[rank, place]:.4g} instead of "
            f"{exact[rank, place]:.4g}, {where}{slip and f': {slip}'}"
        )


def _sum_slip(
    got: np.ndarray, values: np.ndarray, codec: Codec, most: np.ndarray, more: Mapping[str, np.ndarray] | None = None
) -> str:
    """Return the usual mistake that gives these sums, up to `most`, in words; "" if none does.

    `more`: {a mistake in words: the sums that it leads to}.
    """
    parts, world_size = _chunks(values), len(values)
    exact, everyone = parts.sum(axis=1), np.arange(world_size)
    own = parts[everyone, everyone]
    ring = np.stack([_in_a_ring(parts[owner], owner, codec) for owner in range(world_size)])
    again = _each(partial(_rounded, codec), got)
    half = _each(partial(half_steps, bits=codec.bits, block=codec.block), got) * SLACK

    def is_near(want: np.ndarray, room: np.ndarray | float = 1e-4) -> bool:
        return bool((np.abs(got - want) <= room).all())

    def is_at(owner: int, rank: int) -> bool:
        return bool((np.abs(got[rank] - exact[owner]) <= most[owner]).all())

    others = ((rank, owner) for rank, owner in permutations(range(world_size), 2) if is_at(owner, rank))
    rank, owner = next(others, (0, 0))
    made = {
        "a ring rounds the partial sums at every hop; send every part straight to its owner": is_near(ring),
        "this is only the rank's own part; add those that arrive": is_near(own),
        "this is the mean; return the sum": is_near(exact / world_size, most / world_size),
        "the rank's own part is missing; add it to those that arrive": is_near(exact - own, most),
        f"these are the sums of rank {owner}'s chunk; rank {rank} keeps chunk {rank}": owner != rank,
        "the result is rounded once more; it doesn't travel, so don't pack it": (
            is_near(exact, most + half) and bool(np.allclose(got, again, rtol=1e-5, atol=1e-5))
        ),
        **{words: is_near(value, most) for words, value in (more or {}).items()},
    }
    return next((words for words, fits in made.items() if fits and world_size > 1), "")


def _in_a_ring(parts: np.ndarray, owner: int, codec: Codec) -> np.ndarray:
    """Return the sum of parts [rank, size] that goes around a ring to its owner, rounded at every hop."""
    world_size = len(parts)
    total = parts[(owner + 1) % world_size]
    for hop in range(2, world_size + 1):
        total = _rounded(codec, total) + parts[(owner + hop) % world_size]
    return total


def check_traffic(
    function: Callable, world_size: int, size: int, bits: int = 4, block: int = 64, seed: int = 0
) -> None:
    """Check that each rank sends every other one a single message: its packed part of that rank's chunk."""
    codec, values = Codec(bits, block), gradients(world_size, size, seed)
    everyone, _ = _summed(function, values, codec)
    expected = _direct(values, codec)
    for rank, (each, dues) in enumerate(zip(everyone, expected, strict=True)):
        _check_sent(rank, f"with {world_size} ranks", each, dues)
    if _witness_reports(everyone, expected):
        _witness_numbers(everyone, expected, codec)


def _check_sent(rank: int, where: str, each: Summed, expected: dict[int, Due]) -> None:
    """Check that a rank sends the `expected` message to each peer, and no more."""
    if strangers := sorted(each.bytes_to.keys() - expected.keys()):
        too_much = f"rank {rank} sends {each.bytes_to[strangers[0]]:,} bytes to rank {strangers[0]}"
        raise NotYet(f"{too_much}, {where}: it should send only to {ranks_in_words(np.array(sorted(expected)))}")
    for peer, due in expected.items():
        sent = each.bytes_to.get(peer, 0)
        if sent == due.num_bytes:
            continue
        hint = f"pack {due.numbers} numbers in one message, {due.what}"
        if sent == 4 * due.numbers:
            hint = "these are fp32 numbers; send what codec.pack returns"
        elif sent == 2 * due.num_bytes:
            hint = "once is enough"
        elif each.bytes_to.keys() != expected.keys() and len(each.bytes_to) == 1 < len(expected):
            hint = "everything goes to one peer, as in a ring; send each rank its own part"
        raise NotYet(f"rank {rank} sends {sent:,} bytes to rank {peer} instead of {due.num_bytes:,}, {where}: {hint}")
    if each.messages != len(expected):
        raise NotYet(
            f"rank {rank} sends {each.messages} messages instead of {len(expected)}, {where}: the bytes are right, but "
            "each peer should get them in one message"
        )


def check_two_hops(
    function: Callable, nodes: int, per_node: int, size: int, bits: int = 4, block: int = 64, seed: int = 0
) -> None:
    """Check the sum in two hops: its error, and what each rank sends in its node and to the others."""
    world_size, codec = nodes * per_node, Codec(bits, block)
    values = gradients(world_size, size, seed)
    everyone, got = _summed(function, values, codec, [per_node])
    half = partial(half_steps, bits=bits, block=block)
    # In its node a rank sends a row for each place: that place's chunks, node by node.
    rows = values.astype(float).reshape(nodes, per_node, nodes, per_node, size).swapaxes(2, 3)
    first = _each(half, rows.reshape(nodes, per_node, per_node, -1)).reshape(rows.shape).sum(axis=1)
    of_nodes = rows.sum(axis=1)  # [node, place, owner's node, size]
    # A node's sum travels with the errors that it already has, so its step may be larger by their share.
    grown = first.max(axis=-1, keepdims=True) / (2 ** (bits - 1) - 1) / 2
    again = _each(half, of_nodes) + grown  # also of what stays on its node, as all does on one: it may be rounded, too
    exact, most = (
        each.sum(axis=0).swapaxes(0, 1).reshape(world_size, size) for each in (of_nodes, (first + again) * SLACK)
    )
    where = f"with {nodes} nodes of {per_node}"
    most = most + 1e-5
    more = _hop_slips(values, nodes, per_node) if nodes > 1 < per_node else {}
    slip = _sum_slip(got, values, codec, most, more)
    _check_within(f"{where}, in {function.__name__} of {values.shape[1]} numbers", got, exact, most, slip)
    expected = _in_two_hops(rows, of_nodes, codec)
    for rank, (each, dues) in enumerate(zip(everyone, expected, strict=True)):
        _check_sent(rank, where, each, dues)
    if _witness_reports(everyone, expected):
        _witness_numbers(everyone, expected, codec)
    # An honest sum is typically off by 5% of `most` or more, however many ranks there are.
    if np.median(np.abs(got - exact) / most) < 0.01:
        raise NotYet(
            f"the sums are exact, {where}, but numbers that travel in {bits} bits are rounded: send what codec.pack "
            "returns, and add up what codec.unpack returns of the messages that arrive"
        )


def _in_two_hops(rows: np.ndarray, of_nodes: np.ndarray, codec: Codec) -> list[dict[int, Due]]:
    """Return what each rank sends, by peer, in two hops.

    `rows`: the parts, [node, place, owner's place, owner's node, size]. `of_nodes`: their sums over a node's places.
    """
    nodes, per_node, *_, size = rows.shape
    chunks = "the chunks of all ranks that have that rank's place" if nodes > 1 else "that rank's chunk"
    of = "that rank's chunk of the node's sum" if per_node > 1 else "that rank's chunk"

    def due(what: str, numbers: int, choices: np.ndarray) -> Due:
        return Due(quantized.message_bytes(numbers, codec.bits, codec.block), numbers, what, choices)

    expected = []
    for node, place in product(range(nodes), range(per_node)):
        near = {
            node * per_node + other: due(chunks, nodes * size, rows[node, place, other])
            for other in range(per_node)
            if other != place
        }
        far = {
            other * per_node + place: due(of, size, of_nodes[node, place, [other]])
            for other in range(nodes)
            if other != node
        }
        expected.append(near | far)
    return expected


def _hop_slips(values: np.ndarray, nodes: int, per_node: int) -> dict[str, np.ndarray]:
    """Return the sums that lack one of two hops, with what is missing in words."""
    parts = _chunks(values).reshape(nodes, per_node, nodes, per_node, -1)  # [owner's node, place, sender's, sender's]
    of_node = np.stack([parts[node, :, node].sum(axis=1) for node in range(nodes)])
    of_place = np.stack([parts[:, place, :, place].sum(axis=1) for place in range(per_node)], axis=1)
    return {
        "the second hop is missing: this is the sum over the rank's own node": of_node.reshape(nodes * per_node, -1),
        "the first hop is missing: this adds only one rank of each node": of_place.reshape(nodes * per_node, -1),
    }


# Part c: what rounding leaves


class Stream(NamedTuple):
    """Gradients of some steps, fp32 [steps, n]. `words`: what is special about them."""

    gradients: np.ndarray
    words: str


def streams(seed: int, steps: int = 40, length: int = 20) -> list[Stream]:
    """Return gradients whose small numbers rounding alone would lose in every step."""
    random = np.random.default_rng(seed)
    outlier = np.where(np.arange(length) == 3, 100.0, 0.3)
    return [
        Stream(random.normal(size=(steps, length)).astype(np.float32), "random gradients"),
        Stream(np.tile(outlier, (steps, 1)).astype(np.float32), "small gradients beside an outlier"),
        Stream((outlier * random.normal(size=(steps, length))).astype(np.float32), "gradients of two sizes"),
        Stream(np.zeros((steps, length), np.float32), "zeros"),
    ]


def check_feedback(function: Callable, cases: Iterable[Stream], bits: int = 4, block: int = 8) -> None:
    """Check that `function(gradient, residual, codec)` loses no part of a gradient for good.

    All that was sent, and the residual, are together the sum of all gradients, and the residual is at most half a step.
    """
    codec = Codec(bits, block)
    for case in cases:
        residual = np.zeros(case.gradients.shape[1])
        given, sent = np.zeros_like(residual), np.zeros_like(residual)
        for step, gradient in enumerate(case.gradients):
            call = f"{function.__name__}(gradient, residual, codec), {case.words}, step {step},"
            message, after = _fed(function, gradient, residual, codec, call)
            arrived = codec.unpack(message, len(gradient)).double().numpy()
            carried = gradient + residual
            given, sent = given + gradient, sent + arrived
            most = half_steps(carried, bits, block) * SLACK + 1e-5
            slips = {
                "add the residual to the gradient before you pack it": _rounded(codec, gradient),
                "subtract nothing from the gradient: the residual is what was not sent yet": _rounded(
                    codec, gradient - residual
                ),
            }
            if not (np.abs(arrived - carried) <= most).all():
                place = int(np.flatnonzero(~(np.abs(arrived - carried) <= most))[0])
                hint = next((f": {w}" for w, made in slips.items() if step and np.allclose(arrived, made)), "")
                raise NotYet(
                    f"{call} sends {arrived[place]:.6g} as number {place}; gradient and residual are together "
                    f"{carried[place]:.6g}, and half a step is {most[place]:.3g}{hint}"
                )
            if not np.allclose(after, carried - arrived, rtol=1e-4, atol=1e-4):
                place = int(np.flatnonzero(~np.isclose(after, carried - arrived, rtol=1e-4, atol=1e-4))[0])
                wrong = {
                    "this has the wrong sign": arrived - carried,
                    "nothing is carried over": np.zeros_like(after),
                    "what an earlier step left is missing": gradient - arrived,
                    "add to it nothing twice": carried - arrived + residual,
                }
                hint = next((f": {w}" for w, made in wrong.items() if np.allclose(after, made, atol=1e-4)), "")
                raise NotYet(
                    f"{call} keeps {after[place]:.6g} as residual {place}; of {carried[place]:.6g}, "
                    f"{arrived[place]:.6g} arrived, so {carried[place] - arrived[place]:.6g} is left{hint}"
                )
            residual = after
        if not np.allclose(given, sent + residual, rtol=1e-4, atol=1e-3):
            raise NotYet(f"{case.words}: what was sent and what is left are not the sum of all gradients")


def _fed(
    function: Callable, gradient: np.ndarray, residual: np.ndarray, codec: Codec, call: str
) -> tuple[np.ndarray, np.ndarray]:
    tensors = torch.tensor(gradient), torch.tensor(residual, dtype=torch.float32)
    result = answer(function, *tensors, CodecFunctions(codec.pack, codec.unpack), call=call)
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise NotYet(f"{call} returns {brief(result)}; return a message and the new residual")
    message, after = (np.array(_floats(each, call)) for each in result)
    if message.shape != (quantized.message_bytes(len(gradient), codec.bits, codec.block),):
        raise NotYet(f"{call} returns a message of the shape {list(message.shape)}; return what codec.pack returns")
    if after.shape != gradient.shape:
        raise NotYet(f"{call} returns a residual of the shape {list(after.shape)}; it has one number for each")
    return message.astype(np.uint8), after


def micro_batches(seed: int) -> list[list[torch.Tensor]]:
    """Return gradients of micro-batches in bf16, which a sum in bf16 would lose: each [n]."""
    generator = torch.Generator().manual_seed(seed)
    cases = []
    for count in (1, 2, 64, 300):
        parts = torch.rand(count, 12, generator=generator) + 0.5
        cases.append([*parts.bfloat16()])
        cases.append([*(parts * torch.where(torch.arange(12) % 2 > 0, 1.0, -1e-2)).bfloat16()])
    return cases


def check_accumulated(function: Callable, cases: Iterable[list[torch.Tensor]]) -> None:
    """Check that `function(gradients)` sums bf16 tensors with a single rounding to bf16, at the end."""
    for parts in cases:
        call = f"{function.__name__} of {len(parts)} gradients"
        result = own_answer(__name__, function, [each.clone() for each in parts], call=call)
        if not isinstance(result, torch.Tensor) or result.dtype != torch.bfloat16 or result.shape != parts[0].shape:
            kind = f"{result.dtype} {list(result.shape)}" if isinstance(result, torch.Tensor) else brief(result)
            raise NotYet(f"{call} returns {kind}; return torch.bfloat16 {list(parts[0].shape)}")
        exact = torch.stack(parts).double().sum(0)
        off = (result.double() - exact).abs()
        if not (off <= exact.abs() * 2**-8 * (1 + 2**-8)).all():
            place = int((off > exact.abs() * 2**-8 * (1 + 2**-8)).nonzero()[0])
            running = torch.zeros_like(parts[0])
            for each in parts:
                running = running + each
            hint = ": this adds in bf16, and every sum rounds: add in fp32" if torch.equal(running, result) else ""
            if torch.allclose(result.double() * len(parts), exact, rtol=1e-2):
                hint = ": this is the mean; return the sum"
            raise NotYet(
                f"{call} returns {result[place].item():.6g} as number {place}; the sum is {exact[place].item():.6g}, "
                f"and one rounding to bf16 is off by a 256th at most{hint}"
            )


# Part d: what it buys

Machine = Mapping[str, float]
WAYS = BF16, EIGHT, EIGHT_FOUR, ZERO = "bf16", "8 bits", "8 and 4 bits", "zero++"
BLOCK = 2048
FLOPS = 400 * 10**12  # operations a second in training: an assumption
_LLAMA = MODELS["llama-3-8b"]
LAYER = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336  # weights of a layer of Llama-3-8B


def machine_of(cluster: Any) -> dict[str, int]:
    """Return a cluster of nodes as part d's dict."""
    return {
        "nodes": cluster.nodes,
        "gpus": cluster.gpus_per_node,
        "near": int(cluster.near_rate),
        "far": int(cluster.far_rate),
        "flops": FLOPS,
    }


NDR, ETHERNET = machine_of(RUNNING_CASE), machine_of(CLUSTERS["H100 on plain Ethernet"].of(8))


def seconds(way: str, weights: int, machine: Machine, **changed: float) -> tuple[float, float]:
    """Return the communication of a layer in the forward and in the backward pass. `changed`: a learner's mistakes."""
    nodes, gpus, near, far = (machine[name] for name in ("nodes", "gpus", "near", "far"))

    def coded(bits: int) -> float:
        return weights * bits / 8 + changed.get("step", 4) * changed.get("blocks", math.ceil(weights / BLOCK))

    def across(num_bytes: float) -> float:
        return changed.get("share", (nodes - 1) / nodes) * num_bytes / changed.get("far", far)

    def inside(num_bytes: float) -> float:
        return changed.get("in_share", (gpus - 1) / gpus) * num_bytes / near

    full = changed.get("itemsize", 2) * weights
    gather = across(full if way == BF16 else coded(8))
    again = inside(changed.get("secondary", 1) * full) if way == ZERO else changed.get("again", 1) * gather
    hop = changed.get("crossing", 1) * across(coded(4))
    total = across(full) if way in (BF16, EIGHT) else changed.get("first", 1) * inside(coded(4)) + hop
    return gather, again + total


def check_seconds(function: Callable, cases: Iterable[tuple[int, Machine]]) -> None:
    """Check that `function(way, weights, machine)` is the communication of each pass."""
    rows = []
    for weights, machine in cases:
        for way in WAYS:
            call = f"{function.__name__}({way!r}, {weights}, {dict(machine)})"
            result = own_answer(__name__, function, way, weights, dict(machine), call=call)
            if isinstance(result, np.ndarray | torch.Tensor):
                result = result.tolist()
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise NotYet(f"{call} returns {brief(result)}; return the seconds of both passes")
            changes = _seconds_slips(weights, machine)
            for name, got, want, number in zip(
                ("forward", "backward"), result, seconds(way, weights, machine), range(2), strict=True
            ):
                slips = {words: seconds(way, weights, machine, **each)[number] for words, each in changes.items()}
                slips |= {"this is in milliseconds; return seconds": 1e3 * want}
                value = number_of(got, f"{call}: {name}")
                mine, right = told_apart(value * 1e3, want * 1e3, digits=4)
                words = f"{way!r} communicates for {right} ms in the {name} pass, not {mine}: {call}"
                rows.append(Answered(words, value, want, slips))
    check_rows(rows, words=lambda row: row.call)


def _seconds_slips(weights: int, machine: Machine) -> dict[str, dict[str, float]]:
    gpus, nodes = machine["gpus"], machine["nodes"]
    return {
        "a node already has its own part, so only (nodes - 1) / nodes of the bytes enter it": {"share": 1},
        "count nodes, not ranks: (nodes - 1) / nodes of the bytes enter a node": {
            "share": (nodes * gpus - 1) / (nodes * gpus)
        },
        "within a node a GPU already has its own part: (gpus - 1) / gpus of the bytes reach it": {"in_share": 1},
        "add four bytes for the step of each block of 2,048": {"step": 0},
        "a block's step has four bytes, not two": {"step": 2},
        "the last, shorter block has a whole step too: round the number of blocks up": {"blocks": weights / BLOCK},
        "the last, shorter block has a step too: round the number of blocks up, not down": {"blocks": weights // BLOCK},
        "a number in bf16 has two bytes, not one": {"itemsize": 1},
        "`far` is the rate of all cards of a node together: don't divide it by the GPUs": {
            "far": machine["far"] / gpus
        },
        "the backward pass gathers the weights again: add that gather": {"again": 0},
        "the secondary shard of zero++ is in bf16: two bytes a number, not one": {"secondary": 0.5},
        "in the backward pass of zero++ add the gather within the node": {"secondary": 0},
        "a sum in two hops begins with the hop within the node: add its time": {"first": 0},
        "a sum in two hops crosses nodes once: each node sends each packed number once, all its GPUs together": {
            "crossing": gpus
        },
    }


def _described(machine: Machine) -> str:
    return f"{machine['nodes']} nodes of {machine['gpus']}"


def hides_from(way: str, weights: int, machine: Machine, cost: Callable = seconds) -> float:
    """Return the tokens a GPU from which on both passes compute for as long as they communicate."""
    forward, backward = cost(way, weights, machine)
    return max(forward / 2, backward / 4) * machine["flops"] / weights


def fastest(weights: int, machine: Machine, tokens: float, times: Mapping[str, Sequence[float]]) -> str:
    """Return the way with the shortest step; of equally short ones the one that rounds least, the first in `WAYS`."""
    return min(WAYS, key=lambda way: _step(weights, machine, tokens, times[way]))


def _step(weights: int, machine: Machine, tokens: float, passes: Sequence[float], twice: float = 2) -> float:
    forward = 2 * weights * tokens / machine["flops"]
    return max(forward, passes[0]) + max(twice * forward, passes[1])


def check_fastest(function: Callable, cases: Iterable[tuple[int, Machine, int]]) -> None:
    """Check that all choices of `function(weights, machine, tokens, seconds)` are right.

    `seconds`: what each way takes, rightly counted: {way: (forward, backward)}.
    """
    cases, chosen = list(cases), []
    for weights, machine, tokens in cases:
        times = {way: seconds(way, weights, machine) for way in WAYS}
        call = f"{function.__name__}({weights}, machine, {tokens}, seconds) on {_described(machine)}"
        result = own_answer(__name__, function, weights, dict(machine), tokens, times, call=call)
        if not isinstance(result, str) or result not in WAYS:
            raise NotYet(f"{call} returns {brief(result)}; return one of {', '.join(map(repr, WAYS))}")
        chosen.append(result)
    times_of = [{way: seconds(way, weights, machine) for way in WAYS} for weights, machine, _ in cases]
    right = [fastest(*case, times) for case, times in zip(cases, times_of, strict=True)]
    wrong = [number for number in range(len(cases)) if chosen[number] != right[number]]
    if not wrong:
        return
    made = {
        words: [choose(*case, times) for case, times in zip(cases, times_of, strict=True)]
        for words, choose in CHOICE_SLIPS.items()
    }
    slip = next((words for words, choices in made.items() if choices == chosen), "")
    number = wrong[0]
    (weights, machine, tokens), way = cases[number], chosen[number]
    steps = [_step(weights, machine, tokens, times_of[number][each]) * 1e3 for each in (way, right[number])]
    if math.isclose(*steps, rel_tol=1e-9):
        why = f"{right[number]!r} is as fast, {steps[0]:.6g} ms, and rounds less"
    else:
        why = f"its step takes {steps[0]:.6g} ms, and that of {right[number]!r} {steps[1]:.6g}"
    raise NotYet(
        f"{tokens:,} tokens a GPU, {_described(machine)}: {function.__name__} returns {way!r}, but {why}. "
        f"{len(cases) - len(wrong)} of {len(cases)} choices are right{slip and f': {slip}'}"
    )


def _by(key: Callable) -> Callable:
    def choose(weights: int, machine: Machine, tokens: float, times: Mapping[str, Sequence[float]]) -> str:
        return min(WAYS, key=lambda way: key(weights, machine, tokens, times[way]))

    return choose


CHOICE_SLIPS: dict[str, Callable] = {
    "what computing hides costs nothing: compare steps, not communication": _by(lambda w, m, t, passes: sum(passes)),
    "the backward pass computes twice as long as the forward pass": _by(partial(_step, twice=1)),
    "each pass hides behind its own computing": _by(lambda w, m, t, passes: max(6 * w * t / m["flops"], sum(passes))),
    "of equally fast ways take the one that rounds least": lambda w, m, t, times: min(
        reversed(WAYS), key=lambda way: _step(w, m, t, times[way])
    ),
    "you always take zero++": lambda *_: ZERO,
    "you never take zero++": lambda w, m, t, times: min(WAYS[:3], key=lambda way: _step(w, m, t, times[way])),
}
"""Mistakes in words, and the choice that each leads to."""


def few_machines(seed: int) -> list[tuple[int, Machine]]:
    """Return layers and machines at random. Weights are even, so that 4 bits of each are whole bytes."""
    draw = Random(seed)
    return [(draw.randrange(10**6, 3 * 10**8, 2), _machine(draw)) for _ in range(6)]


def _machine(draw: Random) -> dict[str, int]:
    """Draw a machine. There are too many for a table of what each takes."""
    return {
        "nodes": draw.randint(2, 64),
        "gpus": draw.randint(2, 8),
        "near": draw.randint(200, 900) * 10**9,
        "far": draw.randint(12, 400) * 10**9,
        "flops": draw.randint(200, 400) * 10**12,
    }


def random_cases(seed: int, of_each: int = 5) -> list[tuple[int, Machine, int]]:
    """Return cases in random order: each way is right `of_each` times, each mistake is wrong at least twice."""
    draw, cases = Random(seed), []
    for way in WAYS:
        cases += _drawn(draw, of_each, lambda right, *_, way=way: right == way)
    for slip in CHOICE_SLIPS.values():

        def wrong(right: str, case: tuple, times: Mapping, slip: Callable = slip) -> bool:
            return slip(*case, times) != right

        known = sum(wrong(*_answered(case)) for case in cases)
        cases += _drawn(draw, 2 - known, wrong)
    draw.shuffle(cases)
    return cases


def _answered(case: tuple[int, Machine, int]) -> tuple[str, tuple, dict]:
    times = {way: seconds(way, *case[:2]) for way in WAYS}
    return fastest(*case, times), case, times


def _drawn(draw: Random, count: int, wanted: Callable[..., bool]) -> list[tuple[int, Machine, int]]:
    found: list[tuple[int, Machine, int]] = []
    while len(found) < count:
        case = draw.randrange(10**7, 3 * 10**8), _machine(draw), draw.choice((256, 512, 1024, 2048, 4096, 8192, 16384))
        right, _, times = _answered(case)
        steps = sorted(_step(*case, times[way]) for way in WAYS)
        clear = all(math.isclose(a, b, rel_tol=1e-12) or b > 1.001 * a for a, b in pairwise(steps))
        if clear and wanted(right, case, times):
            found.append(case)
    return found
