"""Checks that run the learner's function on real ranks, and watch what the ranks send.

What a check runs on a rank shares a process with the learner's code, which could forge the report. So each rank gets
only its own input (`ranks.PerRank`) and knows no right value, and the check compares outside, afterwards. When a
submission is graded, the judge itself starts the ranks and hands each its input, and reads what crosses between them,
message by message. `witnessed`, `witnessed_reports`, `witnessed_sums` and `witnessed_terms` compare the ranks' reports
with that.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np

from .. import ranks
from .checks import LibraryUsed, ModuleUsed, NotYet, TableUsed, generator, without_the_library

HOLDS = ("measure.wire",)  # see `wall`
ON_RANKS = ("._on_rank", ".finished", ".Requests", "._Request", ".stand_ins", ".plain", ".numbers_in")
SENDS_ALONE = ("._on_rank",)
_REFUSED = "|".join(each.__name__ for each in (LibraryUsed, ModuleUsed, TableUsed))  # as a traceback names them
NO_SOCKET = r"gloo/transport/tcp/device\.cc.*Permission denied"  # gloo's words for a new group on a sealed rank
EMPTY = 32  # messages without data for each pair of ranks: a barrier sends less than one
PATIENCE = 10.0  # seconds that real ranks may take, alone: a right answer needs well under 1, so 10 mean a deadlock


class Outcome(NamedTuple):
    """What a rank did.

    `returned`: the array that the function returned, or the name of the type of anything else. `buffer`: the array as
    the function left it. `bytes_to`: bytes sent, by peer. `messages`: how many sends. `collectives`: for each call of
    one of the backend's own collectives, its name. `unwaited`: the calls of isend and irecv that it never waited
    for, such as "dist.isend".
    """

    returned: np.ndarray | str
    buffer: np.ndarray
    bytes_to: dict[int, int]
    messages: int
    collectives: list[str]
    unwaited: list[str]


def patience() -> float:
    """Return the seconds that real ranks may take now: more on a busy machine, where a right answer takes longer."""
    return PATIENCE * ranks.crowding()


def run_on_ranks(
    function: Callable,
    world_size: int,
    *args: Any,
    kind: Any,
    backend: str = "gloo",
    timeout: float | None = None,
    apart: bool = False,
    groups: Sequence[Sequence[int]] = (),
) -> list[Any]:
    """Run part of a check on real ranks and return their reports; a `NotYet` on a rank is raised here.

    `kind`: the type that each rank must report. `timeout`: seconds, or `patience()`. `apart`, `groups`: as of
    `ranks.run`.
    Raises `NotYet` if a rank fails or doesn't finish.
    """
    try:
        everyone = ranks.run(
            function,
            world_size,
            *args,
            timeout=timeout or patience(),
            backend=backend,
            apart=apart,
            sealed=True,
            groups=groups,
        )
    except ranks.RanksError as error:
        if refusal := re.search(rf"\b(?:{NotYet.__name__}|{_REFUSED}|Unseen): (.*)", str(error)):
            raise NotYet(refusal[1]) from None
        over = "" if backend == "gloo" else f" over {backend.upper()}"
        raise NotYet(f"with {world_size} rank{'s' * (world_size > 1)}{over}, {how_it_failed(error)}") from None
    return reported(everyone, world_size, kind)


def how_it_failed(error: ranks.RanksError, who: str = "") -> str:
    """Return what a run's error says, without the frames of torch and of this library in its traceback.

    `who`: what sends to, or receives from, a rank that is not there or the rank itself, if that is the fault.
    """
    from ..ranks.store import CLOSED

    words = re.sub(r'  File "[^"]*/(?:site-packages|collectives)/[^"]*", .*\n(?:    .*\n)*', "", str(error))
    words = re.sub(r"(did not (?:begin|finish)) within [\d.]+ s", r"\1 in time", words)  # which grows with the load
    words = re.sub(r"failed too: RuntimeError: \[.*/gloo/.*", "failed too: another rank closed their connection", words)
    failed = re.match(r"rank \d+(?= failed)", words)
    where = " on ".join(filter(None, (who, failed and failed[0]))) or "a rank"
    last = words.rpartition("\nValueError: ")[2]  # of the rank that failed first
    if absent := re.match(r"there is no (rank -?\d+: .*)", last):
        return f"{where} sends to, or receives from, {absent[1]}{_line_in(words)}"
    if f"RuntimeError: {CLOSED}" in words or re.search(NO_SOCKET, words):
        return f"{CLOSED}{_line_in(words)}"
    if re.match(r"(?:rank \d+ can't send to itself|Invalid (?:destination|source) rank)", last):
        return f"{where} sends to itself, or receives from itself: it has the data already{_line_in(words)}"
    return words


def _line_in(words: str) -> str:
    """Return the line of the learner's code at the end of a traceback; "" if there is none."""
    lines = re.findall(r'  File "[^"]*", line (\d+), in (\w+)\n(?:    (.*)\n)?', words)
    number, function, code = lines[-1] if lines else ("", "", "")
    return f" (line {number} of {function}{code and f': {code}'})" if lines else ""


def reported(everyone: Any, world_size: int, kind: Any) -> list[Any]:
    """Return the ranks' reports; raise `NotYet` unless each rank reports a value of the type `kind`.

    The reporting code runs beside the learner's, which may have changed it.
    """
    if not isinstance(everyone, list) or len(everyone) != world_size:
        raise NotYet(f"{world_size} ranks ran, but not every one of them reports")
    for rank, report in enumerate(everyone):
        if not is_a(report, kind):
            raise NotYet(f"with {world_size} ranks, rank {rank} reports something other than the check expects")
    return everyone


def is_a(value: Any, kind: Any) -> bool:
    """Return whether a value, with everything in it, matches a type as written in an annotation."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(is_a(value, each) for each in inner)
    if origin is dict:
        return isinstance(value, dict) and all(is_a(k, inner[0]) and is_a(v, inner[1]) for k, v in value.items())
    if origin is list:
        return isinstance(value, list) and all(is_a(each, inner[0]) for each in value)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(is_a, value, inner))
    if kind is np.ndarray:
        return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    if hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return isinstance(value, kind) and all(is_a(getattr(value, name), hints[name]) for name in kind._fields)
    if kind in (int, float):
        return isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
    return isinstance(value, type(None) if kind is None else kind)


@contextlib.contextmanager
def stand_ins(*functions: Callable, **others: Callable) -> Iterator[None]:
    """Replace these functions of `torch.distributed` in this block, even where a notebook imported them by name.

    `functions`: the learner's, whose notebook it is.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    theirs = {id(space): space for each in functions if (space := getattr(each, "__globals__", None)) is not None}
    spaces = [vars(dist), vars(distributed_c10d), *theirs.values()]
    real = {name: getattr(dist, name) for name in others}
    places = [
        (space, own, name) for space in spaces for own, value in space.items() for name in others if value is real[name]
    ]
    for space, own, name in places:
        space[own] = others[name]
    try:
        yield
    finally:
        for space, own, name in places:
            space[own] = real[name]


def crossed(everyone: Sequence[Any]) -> list[Any] | None:
    """Return the messages that crossed between these ranks, as the judge read them outside; None if nobody watched.

    Each has `src` and `dst`, which are negative on other connections than those of the ranks' own group; its
    `operation`, "send" or a collective's name, "" if it isn't gloo's; and its `data`, bytes.
    """
    if not getattr(everyone, "followed", True):
        raise NotYet(
            f"with {len(everyone)} ranks, the ranks send more than the grader can follow: send what is needed, and "
            "in messages of more than a few bytes"
        )
    messages, most = getattr(everyone, "messages", None), EMPTY * len(everyone) ** 2
    if messages and (empty := sum(not each.data for each in messages)) > most:  # their tags could say something
        raise NotYet(
            f"with {len(everyone)} ranks, {empty:,} messages without data cross between them, those of barriers among "
            f"them; {most:,} are allowed"
        )
    return messages


def carried(messages: Iterable[Any], src: int | None = None, dst: int | None = None) -> int:
    """Return the bytes of these messages, or of those from or to a rank."""
    return sum(len(each.data) for each in messages if src in (None, each.src) and dst in (None, each.dst))


def streams_of(messages: Iterable[Any]) -> list[bytes]:
    """Return the data of the messages from each rank to each other one, joined: a number may lie in two of them."""
    streams: dict[tuple[int, int], list[bytes]] = {}
    for each in messages:
        streams.setdefault((each.src, each.dst), []).append(each.data)
    return [b"".join(parts) for parts in streams.values()]


def witnessed(everyone: list[Any], least: float, most: float | None = None) -> None:
    """Check the ranks' traffic against the messages that were read outside, if this run was watched.

    `least`, `most`: the bytes of data that all ranks together must send, and may send. Data that bypasses the wire
    (through files or shared memory) and reported sends that never happened leave the count short. Sends that the ranks
    don't report make it too large. What isn't sent in a group that the ranks have from the start is refused: neither a
    meter nor a look at the wire is about it.
    """
    messages = crossed(everyone)
    if messages is None:
        return
    world_size, seen = len(everyone), carried(messages)
    if seen < least:
        raise NotYet(
            f"with {world_size} ranks, {seen:,} bytes went over the wire between them, where at least {least:,.0f} "
            "have to: send everything with the process group's own operations"
        )
    if stray := carried(each for each in messages if not each.operation or each.src < 0):
        raise NotYet(
            f"with {world_size} ranks, {stray:,} bytes travelled outside of the ranks' own groups: send everything "
            "with the functions of torch.distributed, in the groups that the exercise gives"
        )
    if most is not None and seen > most:
        raise NotYet(
            f"with {world_size} ranks, {seen:,} bytes went over the wire between them, where {most:,.0f} are enough: "
            "the ranks send something that they do not report"
        )


def witnessed_reports(outcomes: Sequence[Any]) -> None:
    """Check what each rank reports to have sent against the messages that crossed, if this run was watched.

    Only a barrier may be a collective of the backend's own. `outcomes`: reports that have an `Outcome`'s `bytes_to` and
    `messages`.
    """
    messages = crossed(outcomes)
    if messages is None:
        return
    where, sent = f"with {len(outcomes)} ranks", [each for each in messages if each.operation != "barrier" or each.data]
    if own := sorted((each.src, each.operation) for each in sent if each.operation != "send"):
        what = (
            f"uses torch's own {own[0][1]}" if own[0][1] else "has a connection on which not only gloo reads and writes"
        )
        raise NotYet(f"{where}, rank {own[0][0]} {what}; write this part with sends alone")
    for rank, outcome in enumerate(outcomes):
        for peer in range(len(outcomes)):
            told, seen = outcome.bytes_to.get(peer, 0), carried(sent, rank, peer)
            if told != seen:
                raise NotYet(
                    f"{where}, rank {rank} reports that it sends {told:,} bytes to rank {peer}, but {seen:,} crossed: "
                    "send everything with dist.send and its like, without a `group`, and receive all of it"
                )
        count = sum(each.src == rank for each in sent)
        if outcome.messages != count:
            raise NotYet(f"{where}, rank {rank} reports {outcome.messages} messages, but {count} crossed")


def on_ranks(function: Callable, buffers: np.ndarray) -> list[Outcome]:
    """Call `function(rank, world_size, buffer)` on real ranks, each with its row of `buffers`; return what each did."""
    world_size = len(buffers)
    try:
        outcomes = ranks.run(_on_rank, world_size, function, ranks.PerRank(buffers), timeout=patience(), sealed=True)
    except ranks.RanksError as error:
        if "NotImplementedError" in str(error):
            raise NotYet(f"{function.__name__} is not written yet") from None
        if used := re.search(rf"\b(?:{NotYet.__name__}|{_REFUSED}|Unseen): (.*)", str(error)):
            raise NotYet(f"{function.__name__}: {used[1]}") from None
        raise NotYet(f"with {world_size} ranks, {how_it_failed(error, function.__name__)}") from None
    for rank, outcome in enumerate(reported(outcomes, world_size, Outcome)):
        if calls := [name for name in outcome.collectives if name != "barrier"]:  # a barrier moves no data
            names = ", ".join(f"dist.{name}" for name in dict.fromkeys(calls))
            raise NotYet(f"rank {rank} calls torch's own {names}; write this part with send and recv alone")
        if outcome.unwaited:
            raise NotYet(
                f"with {world_size} ranks, rank {rank} never waits for its {outcome.unwaited[0]}: keep the request "
                "that it returns, and wait() for it before you use the tensor or return"
            )
    witnessed(outcomes, least=0)
    witnessed_reports(outcomes)
    return outcomes


def _on_rank(rank: int, world_size: int, function: Callable, own: np.ndarray) -> Outcome:
    """Call the learner's function on one rank. Runs beside the learner's code, and only observes."""
    import torch

    from ..measure.wire import BytesSent

    buffer, requests = torch.tensor(own), Requests()
    # The meter first: to look at the learner's function may already run code of the learner's.
    with BytesSent(follow=True) as sent, requests.watched(function), without_the_library():
        returned = plain(function(rank, world_size, buffer))
        left, unwaited = numbers_in(f"rank {rank}'s buffer", buffer), requests.unfinished()
        finished(rank, sent)
    return Outcome(returned, left, dict(sent.to), sent.messages, list(sent.collectives.elements()), unwaited)


def finished(rank: int, sent: Any) -> None:
    """Raise `NotYet` if a send that this meter counts isn't over: it may have no receiver, and then nothing crosses."""
    if sent.unfinished:
        raise NotYet(
            f"rank {rank} never waits for a send to rank {sent.unfinished[0]}: keep the request, and wait() for it"
        )


def plain(value: Any) -> np.ndarray | str:
    """Return a copy of a tensor or an array, or the name of the type of anything else.

    Call it where the meter still counts and the library still refuses: an object may be the learner's own and work out
    what it is only when it is read. A subclass of Tensor or ndarray is such an object.
    """
    import torch

    kind = type(value)
    if kind is np.ndarray and not value.dtype.hasobject:
        return np.array(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        numbers = torch.Tensor.detach(value)
        return np.array((numbers.float() if numbers.dtype == torch.bfloat16 else numbers).numpy())  # numpy has no bf16
    return _NAME(kind)


_NAME = type.__dict__["__name__"].__get__  # a class may have a class of its own, and that may say another name


def numbers_in(what: str, value: Any) -> np.ndarray:
    """Return what `plain` does of a tensor or an array; raise `NotYet`, which names `what` it is, for anything else."""
    numbers = plain(value)
    if isinstance(numbers, str):
        raise NotYet(f"{what} is an object of type {numbers}; leave a tensor of torch's own there")
    return numbers


class Requests:
    """The requests that isend and irecv return on this rank. Watches which of them the learner waits for."""

    def __init__(self) -> None:
        self._seen: list[_Request] = []

    def unfinished(self) -> list[str]:
        """Return the calls that the learner never waited for. Finish the sends among them, so that no peer hangs."""
        unwaited = [request for request in self._seen if not request.waited]
        for request in unwaited:
            if request.call == "dist.isend":
                request.wait()
        return [request.call for request in unwaited]

    def watched(self, function: Callable) -> contextlib.AbstractContextManager[None]:
        """Return a context in which `function`, the learner's, gets requests that this object watches."""
        import torch.distributed as dist

        return stand_ins(function, isend=self._noting(dist.isend), irecv=self._noting(dist.irecv))

    def _noting(self, real: Callable) -> Callable:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            work = real(*args, **kwargs)
            if work is None or sys._getframe(1).f_globals.get("__name__") == real.__module__:
                return work  # torch's own recv and batch_isend_irecv
            self._seen.append(_Request(work, f"dist.{real.__name__}"))
            return self._seen[-1]

        return call


class _Request:
    """A request, and whether it was waited for. `call`: what made it, such as "dist.isend"."""

    def __init__(self, work: Any, call: str):
        self._work, self.call, self.waited = work, call, False

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        self.waited = True
        return self._work.wait(*args, **kwargs)

    def is_completed(self) -> bool:
        self.waited = self._work.is_completed() or self.waited
        return self._work.is_completed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def noise(world_size: int, num_elements: int, seed: int) -> np.ndarray:
    """Return random buffers that can't be compressed on the wire: float32 [world_size, num_elements].

    They are whole numbers below 2^24 / world_size: fp32 represents every sum of them exactly, and 16 bits don't.
    """
    most = 2**24 // world_size
    return np.random.default_rng(seed).integers(-most, most, (world_size, num_elements)).astype(np.float32)


def tagged(world_size: int, num_elements: int) -> np.ndarray:
    """Return buffers whose sums show what is in them: int [world_size, num_elements].

    Element i on rank r is (i + 1) times 10 to the r, so the digits of a sum over i + 1 count each rank's contributions.
    """
    return np.multiply.outer(10 ** np.arange(world_size), np.arange(num_elements) + 1)


def long(world_size: int, num_elements: int) -> np.ndarray:
    """Return whole numbers of 59 bits, which neither fp32 nor fp64 can hold: int64 [world_size, num_elements]."""
    return 2**58 + np.arange(1, 2 * world_size * num_elements, 2).reshape(world_size, num_elements)


MUCH = 100_000  # bytes: a check does not look for smaller buffers on the wire
PLACES = 20  # how many elements a check looks for


def witnessed_sums(everyone: list[Any], buffers: np.ndarray, kept: Sequence[int] | np.ndarray) -> None:
    """Check that the ranks really exchanged what they summed, if this run was captured from outside.

    `kept`: how many elements of the sum each rank ends with.

    Whatever the algorithm, an element's terms meet in world_size - 1 messages, each the sum of a different set of
    ranks, never of all. So for elements chosen at random, that many different partial sums must have crossed the wire.
    Float buffers must be `noise`, whose sums are exact in any order.
    """
    witnessed(everyone, least_to_add(buffers))
    messages, (world_size, num_elements) = crossed(everyone), buffers.shape
    if messages is None or buffers.nbytes < MUCH or not np.issubdtype(buffers.dtype, np.floating):
        return
    _witnessed_shares(messages, world_size, num_elements, kept)
    places = generator().integers(num_elements - 1, size=PLACES)
    subsets = [[rank for rank in range(world_size) if bits >> rank & 1] for bits in range(1, 2**world_size - 1)]
    known = {}  # bytes of two neighbouring elements summed over a subset of the ranks: (place, subset)
    for place in places:
        for number, subset in enumerate(subsets):
            known[buffers[subset, place : place + 2].sum(axis=0).tobytes()] = place, number
    seen = {known[pair] for stream in streams_of(messages) for pair in _pairs(stream, known)}
    missing = sum(sum(at == place for at, _ in seen) < world_size - 1 for place in places)
    if missing > PLACES // 5:  # a few pairs may straddle two messages
        raise NotYet(
            f"with {world_size} ranks and {num_elements} elements, the sums of {missing} elements, of {PLACES} that "
            "were looked for on the wire, are not made of what the ranks send one another: send the terms, or sums of "
            "them, with the process group's own operations"
        )


def _witnessed_shares(
    messages: list[Any], world_size: int, num_elements: int, kept: Sequence[int] | np.ndarray
) -> None:
    """Check that each rank sent and received what its part of the sum needs, 4 bytes an element.

    The other ranks' sums depend on each of a rank's terms but those of the elements that it keeps, so these terms must
    leave it, added to others or not. What it keeps depends on the other ranks, and must reach it.
    """
    for rank in range(world_size):
        leaving, coming = carried(messages, src=rank), carried(messages, dst=rank)
        own = int(kept[rank])
        for does, seen, least in (("sends", leaving, 4 * (num_elements - own)), ("receives", coming, 4 * own)):
            if seen < least:
                raise NotYet(
                    f"with {world_size} ranks, rank {rank} {does} {seen:,} bytes, where its part of the sum needs "
                    f"at least {least:,}: send everything with the process group's own operations"
                )


def witnessed_terms(everyone: list[Any], terms: Iterable[Collection[bytes]]) -> None:
    """Check that the ranks really sent their numbers, byte for byte, if this run was captured from outside.

    `terms`: for each number to look for on the wire, the byte strings that would show it. (A sum, too, begins with a
    term that some rank sends unchanged.) Numbers must be random and at least 4 bytes long, so that none is there by
    accident.
    """
    messages = crossed(everyone)
    if messages is None:
        return
    streams = streams_of(each for each in messages if each.src >= 0)
    seen = [any(form in stream for stream in streams for form in forms) for forms in terms]
    missing = seen.count(False)
    if missing > len(seen) // 5:  # the same share as for sums
        raise NotYet(
            f"with {len(everyone)} ranks, {missing} of {len(seen)} numbers that were looked for on the wire are not "
            "among what the ranks send one another: send everything with the process group's own operations"
        )


def witnessed_arrivals(everyone: list[Any], numbers: Iterable[tuple[Collection[bytes], Collection[int]]]) -> None:
    """Check that numbers really reached the ranks that need them, if this run was captured from outside.

    `numbers`: for each, the byte strings that would show it (see `witnessed_terms`), and the ranks that must receive
    it. A ring that sends its own numbers again and again, and hands nothing on, is seen by this.
    """
    messages = crossed(everyone)
    if messages is None:
        return
    sent = [each for each in messages if each.src >= 0]
    received = [streams_of(each for each in sent if each.dst == rank) for rank in range(len(everyone))]
    looked_for = [(forms, rank) for forms, needed in numbers for rank in needed]
    arrived = [any(form in stream for form in forms for stream in received[rank]) for forms, rank in looked_for]
    missing = arrived.count(False)
    if missing > len(looked_for) // 5:  # a few numbers may straddle two messages
        raise NotYet(
            f"with {len(everyone)} ranks, {missing} of {len(looked_for)} numbers that were looked for on the wire "
            "never reach a rank that needs them: hand on what arrives, with the process group's own operations"
        )


def _pairs(stream: bytes, known: dict[bytes, Any]) -> set[bytes]:
    """Return those of the `known` pairs of 4-byte numbers that occur anywhere in a stream."""
    first = np.frombuffer(b"".join(pair[:4] for pair in known), np.uint32)
    found = set()
    for shift in range(min(4, len(stream) - 7)):  # numbers may begin at any byte
        words = np.frombuffer(stream, np.uint32, (len(stream) - shift) // 4, shift)
        for at in np.flatnonzero(np.isin(words, first)):
            found.add(stream[shift + 4 * at : shift + 4 * at + 8])
    return found & known.keys()


def least_to_add(buffers: np.ndarray) -> int:
    """Return the bytes that any sum of `buffers` sends at least: every rank but one passes its term on.

    Small whole numbers may travel in one byte each, and fractions in fp32, since sums are compared up to its rounding.
    """
    world_size, num_elements = buffers.shape
    itemsize = min(buffers.itemsize, 4) if np.issubdtype(buffers.dtype, np.floating) else 1
    return (world_size - 1) * num_elements * itemsize


def same(got: np.ndarray, want: np.ndarray) -> bool:
    """Return whether two arrays hold the same numbers: integers exactly, floats up to rounding."""
    exact = np.issubdtype(want.dtype, np.integer)
    return np.array_equal(got, want) if exact else np.allclose(got, want, rtol=1e-5, atol=1e-5)


def unlike(got: np.ndarray, want: np.ndarray) -> str:
    """Return, in words, how `got` differs from the sum `want`: both if they are short, else the first difference."""
    if got.shape != want.shape or want.size <= 6:  # which `brief` shows whole
        return f"{brief(got)}, but the sum is {brief(want)}"
    exact = np.issubdtype(want.dtype, np.integer)
    wrong = np.flatnonzero(got != want if exact else ~np.isclose(got, want, rtol=1e-5, atol=1e-5))
    first = wrong[0]
    return f"{got[first]} at index {first}, where the sum is {want[first]}; {len(wrong)} of {len(want)} are wrong"
