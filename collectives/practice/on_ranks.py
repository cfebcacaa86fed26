"""TODO"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import numpy as np

from .. import ranks
from .checks import LibraryUsed, NotYet, without_the_library

PATIENCE = 10.0  # seconds that real ranks may take: an answer needs well under one, so ten are a deadlock


# Real ranks


class Outcome(NamedTuple):
    """What a rank did. `returned`: array, or the name of its type if it is none. `buffer`: array, as it was left.

    `bytes_to`: bytes sent, by peer. `messages`: how many sends. `collectives`: names of the backend's own collectives
    that were called.
    """

    returned: np.ndarray | str
    buffer: np.ndarray
    bytes_to: dict[int, int]
    messages: int
    collectives: list[str]


def run_on_ranks(
    function: Callable, world_size: int, *args: Any, kind: Any, backend: str = "gloo", timeout: float | None = None
) -> list[Any]:
    """Run a part of a check on real ranks; what a rank finds not right yet is told as if it were found here.

    `kind`: the type of what each rank reports, which is made sure of. `timeout`: seconds, `PATIENCE` by default.
    """
    try:
        everyone = ranks.run(function, world_size, *args, timeout=timeout or PATIENCE, backend=backend)
    except ranks.RanksError as error:
        if told := re.search(rf"\b{NotYet.__name__}: (.*)", str(error)):
            raise NotYet(told[1]) from None
        over = "" if backend == "gloo" else f" over {backend.upper()}"
        raise NotYet(f"with {world_size} rank{'s' * (world_size > 1)}{over}, {error}") from None
    return reported(everyone, world_size, kind)


def reported(everyone: Any, world_size: int, kind: Any) -> list[Any]:
    """What the ranks of a run report, if there is a report of the type `kind` from each; `NotYet` if there is not.

    The code that reports runs beside the learner's, which may have changed it.
    """
    if not isinstance(everyone, list) or len(everyone) != world_size:
        raise NotYet(f"{world_size} ranks ran, but there is not a report from each")
    for rank, report in enumerate(everyone):
        if not _is_a(report, kind):
            raise NotYet(f"with {world_size} ranks, rank {rank} does not report what the check has asked for")
    return everyone


def _is_a(value: Any, kind: Any) -> bool:
    """Whether a value is of a type as it stands in an annotation, with everything in it."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_is_a(value, each) for each in inner)
    if origin is dict:
        return isinstance(value, dict) and all(_is_a(k, inner[0]) and _is_a(v, inner[1]) for k, v in value.items())
    if origin is list:
        return isinstance(value, list) and all(_is_a(each, inner[0]) for each in value)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(_is_a, value, inner))
    if kind is np.ndarray:
        return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    if hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return isinstance(value, kind) and all(_is_a(getattr(value, name), hints[name]) for name in kind._fields)
    if kind in (int, float):
        return isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
    return isinstance(value, type(None) if kind is None else kind)


GROUP_BYTES = 1_000  # on the loopback, for two ranks to find each other in a group: at most 560 were measured
MESSAGE_BYTES = 800  # on the loopback, around one message: at most 430 were measured, acknowledgement included
WIRE = 1.3  # times what is sent, at most: headers and acknowledgements made 1.02, on a crowded machine 1.07


def witnessed(everyone: list[Any], least: float, most: float | None = None, messages: int = 0) -> None:
    """Check what ranks tell of their traffic against the bytes counted from outside, if this run's were counted.

    `least`, `most`: the bytes that all ranks together must have sent, and may have sent. What went past the wire (by
    files, or by memory that they share) or was told of though it was never sent is missing from the count; what was
    sent and not told of is too much of it. `messages`: how many there may be, for what each of them costs besides.
    Only buffers that are large beside that, some 100 kB, say much.
    """
    seen = getattr(everyone, "loopback", None)
    if seen is None:
        return
    world_size = len(everyone)
    if seen < least:
        raise NotYet(
            f"with {world_size} ranks, {seen:,} bytes went over the wire between them, where at least {least:,.0f} "
            "have to: send everything with the process group's own operations"
        )
    pairs = world_size * (world_size - 1) // 2
    allowed = 0 if most is None else WIRE * most + pairs * GROUP_BYTES + messages * MESSAGE_BYTES
    if most is not None and seen > allowed:
        raise NotYet(
            f"with {world_size} ranks, {seen:,} bytes went over the wire between them, where {most:,.0f} are enough: "
            "something is sent that the ranks do not tell of"
        )


def on_ranks(function: Callable, buffers: np.ndarray) -> list[Outcome]:
    """Call `function(rank, world_size, buffer)` on real ranks, each with its row of `buffers`, and watch the wire."""
    world_size = len(buffers)
    try:
        outcomes = ranks.run(_on_rank, world_size, function, ranks.PerRank(buffers), timeout=PATIENCE, backend="gloo")
    except ranks.RanksError as error:
        if "NotImplementedError" in str(error):
            raise NotYet(f"{function.__name__} is not written yet") from None
        if used := re.search(rf"{LibraryUsed.__name__}: (.*)", str(error)):
            raise NotYet(f"{function.__name__}: {used[1]}") from None
        raise NotYet(f"with {world_size} ranks, {error}") from None
    for rank, outcome in enumerate(reported(outcomes, world_size, Outcome)):
        if outcome.collectives:
            names = ", ".join(f"dist.{name}" for name in outcome.collectives)
            raise NotYet(f"rank {rank} calls the library's own {names}; write this part with send and recv alone")
    told = sum(sum(outcome.bytes_to.values()) for outcome in outcomes)
    witnessed(outcomes, least=0, most=told, messages=sum(outcome.messages for outcome in outcomes))
    return outcomes


def _on_rank(rank: int, world_size: int, function: Callable, own: np.ndarray) -> Outcome:
    """Runs beside the learner's code, and only observes."""
    import torch

    from ..measure.wire import BytesSent

    buffer = torch.tensor(own)
    with BytesSent() as sent, without_the_library():
        returned = function(rank, world_size, buffer)
    plain = np.array(returned) if isinstance(returned, torch.Tensor | np.ndarray) else type(returned).__name__
    return Outcome(plain, buffer.numpy(), dict(sent.to), sent.messages, list(sent.collectives))


def noise(world_size: int, num_elements: int, seed: int) -> np.ndarray:
    """Buffers of which nothing can be left out on the wire: float32 [world_size, num_elements].

    They are whole numbers below 2^24 / world_size, so that fp32 has every sum of them exactly, and 16 bits have none.
    """
    most = 2**24 // world_size
    return np.random.default_rng(seed).integers(-most, most, (world_size, num_elements)).astype(np.float32)


def tagged(world_size: int, num_elements: int) -> np.ndarray:
    """Buffers whose sums tell what is in them: element i on rank r is (i + 1) times 10 to the r.

    The digits of a sum, divided by i + 1, count how often each rank is in it: int [world_size, num_elements].
    """
    return np.multiply.outer(10 ** np.arange(world_size), np.arange(num_elements) + 1)


MUCH = 100_000  # bytes: smaller buffers are not looked for on the wire
PLACES = 20  # elements that are looked for


def witnessed_sums(everyone: list[Any], buffers: np.ndarray) -> None:
    """Check that ranks have added `buffers` with one another, if this run was seen from outside: how much went, what.

    Whatever the way, each element's terms come together in world_size - 1 messages, and each of those is the sum of
    other ranks' terms. So many different sums, of fewer than all ranks, have to be seen of elements chosen at random.
    Float buffers are to be `noise`, whose sums are exact in any order.
    """
    witnessed(everyone, least_to_add(buffers))
    streams, (world_size, num_elements) = getattr(everyone, "streams", None), buffers.shape
    if streams is None or buffers.nbytes < MUCH or not np.issubdtype(buffers.dtype, np.floating):
        return
    places = np.random.default_rng().integers(num_elements - 1, size=PLACES)
    some = [[rank for rank in range(world_size) if of >> rank & 1] for of in range(1, 2**world_size - 1)]
    known = {}  # what two neighbouring elements' sum over some ranks looks like on the wire: which place, which ranks
    for place in places:
        for of, ranks_summed in enumerate(some):
            known[buffers[ranks_summed, place : place + 2].sum(axis=0).tobytes()] = place, of
    seen = {known[pair] for stream in streams for pair in _pairs(stream, known)}
    missing = sum(sum(at == place for at, _ in seen) < world_size - 1 for place in places)
    if missing > PLACES // 5:  # a few may lie where one message ends
        raise NotYet(
            f"with {world_size} ranks and {num_elements} elements, the sums of {missing} elements, of {PLACES} that "
            "were looked for on the wire, are not made of what the ranks send one another: send the terms, or sums of "
            "them, with the process group's own operations"
        )


def witnessed_terms(everyone: list[Any], terms: Iterable[Collection[bytes]]) -> None:
    """Check that ranks have sent what they had, if this run was seen from outside: the bytes of numbers as they lie.

    `terms`: for each number that is looked for on the wire, the ways in which it may be there. A sum, too, begins with
    a term that some rank sends as it is. Numbers are to be random, and of 4 bytes at least: so that none is there by
    accident.
    """
    streams = getattr(everyone, "streams", None)
    if streams is None:
        return
    seen = [any(way in stream for stream in streams for way in ways) for ways in terms]
    missing = seen.count(False)
    if missing > len(seen) // 5:  # as few as for sums
        raise NotYet(
            f"with {len(everyone)} ranks, {missing} of {len(seen)} numbers that were looked for on the wire are not "
            "among what the ranks send one another: send everything with the process group's own operations"
        )


def _pairs(stream: bytes, known: dict[bytes, Any]) -> set[bytes]:
    """Those of some pairs of 4-byte numbers that are anywhere in a stream."""
    first = np.frombuffer(b"".join(pair[:4] for pair in known), np.uint32)
    found = set()
    for shift in range(min(4, len(stream) - 7)):  # where a number begins is not known
        words = np.frombuffer(stream, np.uint32, (len(stream) - shift) // 4, shift)
        for at in np.flatnonzero(np.isin(words, first)):
            found.add(stream[shift + 4 * at : shift + 4 * at + 8])
    return found & known.keys()


def least_to_add(buffers: np.ndarray) -> int:
    """Bytes that go over the wire, whatever the way, until each sum is somewhere: all but one hand on their term.

    Small whole numbers may travel in one byte each, and fractions in fp32: sums are compared up to its rounding.
    """
    world_size, num_elements = buffers.shape
    itemsize = min(buffers.itemsize, 4) if np.issubdtype(buffers.dtype, np.floating) else 1
    return (world_size - 1) * num_elements * itemsize


def same(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether these are the same numbers: integers exactly, floats up to rounding."""
    exact = np.issubdtype(want.dtype, np.integer)
    return np.array_equal(got, want) if exact else np.allclose(got, want, rtol=1e-5, atol=1e-5)
