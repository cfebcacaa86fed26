"""The cost of a schedule in the alpha-beta model: seconds, and bytes by rank and by link.

A message (one transfer) of n bytes takes alpha + n beta seconds, plus n gamma if the receiver adds it to its own data.
It starts when both its ranks have finished their earlier steps. A rank can send one message and receive another at the
same time, or as many each way as the topology has `ports`. It takes them in the order in which the step lists them.
Ranks that share a NIC use it one message at a time. If the topology is `overlapped`, all messages of a rank's step are
under way at once, and only their bytes queue at its port and at its NIC.

Source: R. Hockney, "The communication challenge for MPP", 1994.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .schedule import REDUCE, Schedule, ScheduleError, Step
from .topology import Topology


@dataclass(frozen=True, eq=False)
class Cost:
    """The cost of one schedule.

    `seconds`: when the last rank finishes. `finish`: when each rank finishes, in seconds: float [world_size].
    `steps`: the number of steps. `messages`: the number of messages, over all ranks.
    `bytes_sent`, `bytes_received`: int [world_size].
    """

    seconds: float
    steps: int
    messages: int
    finish: np.ndarray
    bytes_sent: np.ndarray
    bytes_received: np.ndarray
    # (src, dst, bytes) as arrays; a pair of ranks may occur several times. `bytes_on_link` adds them up.
    carried: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(repr=False)

    @cached_property
    def bytes_on_link(self) -> dict[tuple[int, int], int]:
        """The bytes on each link that carries any, by (src, dst)."""
        total: Counter[tuple[int, int]] = Counter()
        for columns in self.carried:
            for src, dst, num_bytes in zip(*(column.tolist() for column in columns), strict=True):
                total[src, dst] += num_bytes
        return dict(total)

    def __str__(self) -> str:
        most = self.bytes_sent.max(initial=0)
        return f"{self.seconds:.3g} s in {self.steps} steps; a rank sends at most {most:,} bytes"


def price(schedule: Schedule, num_bytes: int, topology: Topology, itemsize: int = 1) -> Cost:
    """Return the cost of `schedule` on a full buffer of `num_bytes` (S) over `topology`.

    `itemsize`: bytes per element. Chunks are cut between elements, so it matters when chunks are uneven.

    Only one step is in memory at a time, and tens of thousands of ranks take seconds. When all ranks do the same over
    links that are all alike, pricing rank 0 is enough and takes milliseconds.

    Raises `ValueError` if the sizes don't fit together, and `ScheduleError` if a step has a rank out of range.
    """
    bounds = _byte_bounds(schedule, num_bytes, topology, itemsize)
    chunk_bytes = np.diff(bounds)
    plain = topology.is_uniform and topology.ports == 1 and not topology.overlapped
    alike = plain and (chunk_bytes == chunk_bytes[0]).all()
    if schedule.rank_zero and alike:
        return _by_symmetry(schedule, int(chunk_bytes[0]), topology)
    return _step_by_step(schedule, bounds, topology)


class Span(NamedTuple):
    """The messages of `step` in time: `start` and `seconds` of each, and its `num_bytes`, as arrays [num_messages]."""

    step: Step
    start: np.ndarray
    seconds: np.ndarray
    num_bytes: np.ndarray


def spans(schedule: Schedule, num_bytes: int, topology: Topology, itemsize: int = 1) -> Iterator[Span]:
    """Yield for each step when its messages start and how long they take: the cost of `price`, message by message."""
    bounds = _byte_bounds(schedule, num_bytes, topology, itemsize)
    clock = _Clock(topology)
    for step in schedule:
        step.check_fit(bounds)
        pattern, starts = _Pattern(step, topology), np.zeros(len(step))
        moved = _moved(step, bounds)
        seconds = pattern.seconds(moved)
        pattern.advance(clock, moved, seconds, starts)
        yield Span(step, starts, seconds, moved)


def _byte_bounds(schedule: Schedule, num_bytes: int, topology: Topology, itemsize: int) -> np.ndarray:
    """Return where each chunk starts and ends: bytes [num_chunks + 1]; raise `ValueError` if the sizes don't fit."""
    if topology.world_size != schedule.world_size:
        raise ValueError(f"{schedule.name} is for {schedule.world_size} ranks, the topology for {topology.world_size}")
    if itemsize < 1:
        raise ValueError(f"itemsize must be at least 1 byte, not {itemsize}")
    if num_bytes < 0 or num_bytes % itemsize:
        raise ValueError(f"a buffer of {num_bytes} bytes is not a whole number of {itemsize}-byte elements")
    return schedule.bounds(int(num_bytes) // itemsize) * itemsize


def _moved(step: Step, bounds: np.ndarray) -> np.ndarray:
    """Return the bytes of each message: [num_messages]."""
    return bounds[step.chunk + (1 if step.count is None else step.count)] - bounds[step.chunk]


def _by_symmetry(schedule: Schedule, chunk_bytes: int, topology: Topology) -> Cost:
    """Return the cost of a rotated schedule, in which every rank does what rank 0 does at the same time."""
    ranks, steps, adds = schedule.world_size, 0, 0
    distances: Counter[int] = Counter()  # rank 0's messages, by the distance from src to dst
    assert schedule.rank_zero is not None
    for sends in schedule.rank_zero():
        steps += 1
        for transfer in sends:
            distances[transfer.dst] += 1
            adds += transfer.combine == REDUCE
    messages, link = distances.total(), topology.link
    seconds = messages * (link.alpha + chunk_bytes * link.beta) + adds * chunk_bytes * topology.gamma
    each = np.arange(ranks)
    carried = [(each, (each + d) % ranks, np.full(ranks, n * chunk_bytes)) for d, n in distances.items()]
    sent = np.full(ranks, messages * chunk_bytes)
    return Cost(seconds, steps, messages * ranks, np.full(ranks, seconds), sent, sent.copy(), carried)


def _step_by_step(schedule: Schedule, bounds: np.ndarray, topology: Topology) -> Cost:
    """Return the cost, with a clock for every rank. `bounds`: bytes [num_chunks + 1]."""
    ranks = schedule.world_size
    bounds = bounds.astype(float)  # exact below 2^53, and faster to multiply by beta
    chunk_bytes = np.diff(bounds)
    alike = (chunk_bytes == chunk_bytes[0]).all()
    clock = _Clock(topology)
    steps = messages = 0
    pattern, patterns = None, []
    usual = False  # whether the last step's messages were one chunk each, all of the same length
    for step in schedule:
        step.check_fit(bounds)
        if pattern is None or not pattern.fits(step):
            pattern = _Pattern(step, topology)  # rare: a ring has one pattern per phase
            patterns.append(pattern)
            usual = False
        if not (usual and step.count is None):  # otherwise `moved` and `seconds` are those of the last step
            moved = chunk_bytes.take(step.chunk) if step.count is None else _moved(step, bounds)
            seconds = pattern.seconds(moved)
        usual = alike and step.count is None
        pattern.advance(clock, moved, seconds)
        pattern.carried += moved
        steps += 1
        messages += len(moved)
    carried = [(pattern.src, pattern.dst, pattern.carried.astype(np.int64)) for pattern in patterns]
    sent, received = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    for src, dst, num_bytes in carried:
        np.add.at(sent, src, num_bytes)
        np.add.at(received, dst, num_bytes)
    return Cost(float(clock.ranks.max()), steps, messages, clock.ranks, sent, received, carried)


class _Clock:
    """The simulated time, in seconds.

    `ranks`: when each rank finishes its steps so far, float [world_size]. `nics`: when each NIC is free, float
    [2, num_nics + world_size + 1], first for outgoing and then for incoming messages. After the NICs follow the ranks'
    ports within their nodes. The last column means "neither" and is always free.
    """

    def __init__(self, topology: Topology):
        self.ranks = np.zeros(topology.world_size)
        # Scratch for `_Pattern.advance`: at 16,384 ranks, allocating an array costs more than filling it.
        self.done = np.zeros(topology.world_size)
        self.nics = np.zeros((2, topology.world_size // topology.ranks_per_nic + topology.world_size + 1))


class _Pattern:
    """The senders, receivers and links of a step, and the turns in which ports and NICs can carry its messages."""

    def __init__(self, step: Step, topology: Topology):
        for ranks in (step.src, step.dst):
            if ranks.min(initial=0) < 0 or ranks.max(initial=0) >= topology.world_size:
                raise ScheduleError(f"{step} has a rank out of range; the ranks are 0 to {topology.world_size - 1}")
        self.src, self.dst, self.combine = step.src, step.dst, step.combine
        self.gamma = topology.gamma * step.reduces if topology.gamma else None  # seconds per byte, by message
        self.alpha, self.beta = topology.seconds(self.src, self.dst)
        self.carried = np.zeros(len(self.src))  # bytes so far, by message
        self.nics = self._nics(topology)
        self.ports, self.overlapped = topology.ports, topology.overlapped
        self.shift = self._shift(topology.world_size) if self.nics is None else None
        self.turns = [slice(None)] if self.shift else self._turns()

    def fits(self, step: Step) -> bool:
        """Return whether `step` shares the arrays of this pattern, as the steps of one phase of a ring do."""
        return step.src is self.src and step.dst is self.dst and step.combine is self.combine

    def seconds(self, moved: np.ndarray) -> np.ndarray:
        """Return the seconds that each message takes: float [num_messages]. `moved`: bytes [num_messages]."""
        seconds = self.alpha + self.beta * moved
        return seconds if self.gamma is None else seconds + self.gamma * moved

    def advance(self, clock: _Clock, moved: np.ndarray, seconds: np.ndarray, starts: np.ndarray | None = None) -> None:
        """Advance `clock` from the end of the previous step to the end of this one.

        `moved`, `seconds`: the bytes and the duration of each message. `starts`: filled with the start of each
        message, if it is not None.
        """
        if self.shift and starts is None:
            # Message r starts when rank r and its receiver are ready; a rank finishes when it has sent and received.
            _later_of(clock.ranks, self.shift, out=clock.done)
            clock.done += seconds
            _later_of(clock.done, -self.shift, out=clock.ranks)
            return
        sender, receiver = clock.ranks.copy(), clock.ranks.copy()
        for turn in self.turns:
            src, dst = self.src[turn], self.dst[turn]
            ready = np.maximum(sender[src], receiver[dst])
            if self.overlapped:  # it waits for earlier steps and for the ports, and not for its step's other messages
                ready = np.maximum(clock.ranks[src], clock.ranks[dst])
            if self.nics is not None:
                ready = self._through_nics(turn, clock.nics, ready, moved)
            if starts is not None:
                starts[turn] = ready
            done = ready + seconds[turn]
            if (
                self.ports == 1 and not self.overlapped
            ):  # no rank sends or receives twice in a turn, so plain assignment is enough
                sender[src] = receiver[dst] = done
            else:
                np.maximum.at(sender, src, done)
                np.maximum.at(receiver, dst, done)
        clock.ranks = np.maximum(sender, receiver)

    def _through_nics(
        self, turn: np.ndarray | slice, free: np.ndarray, ready: np.ndarray, moved: np.ndarray
    ) -> np.ndarray:
        """Return when the messages of a turn start on their NICs, and mark the NICs as busy while the bytes pass.

        `free`: the clock's `nics`. `ready`: when the ranks of each message are ready.
        """
        assert self.nics is not None
        out, into = self.nics[:, turn]
        ready = np.maximum(ready, np.maximum(free[0, out], free[1, into]))
        free[0, out] = free[1, into] = ready + self.beta[turn] * moved[turn]
        free[:, -1] = 0
        return ready

    def _shift(self, world_size: int) -> int | None:
        """Return the distance from src to dst if every rank sends one message to the same distance, as in a ring.

        None otherwise.
        """
        ranks = np.arange(world_size)
        if not np.array_equal(self.src, ranks):
            return None
        shift = int(self.dst[0])
        return shift if np.array_equal(self.dst, (ranks + shift) % world_size) else None

    def _turns(self) -> list[np.ndarray]:
        """Return the messages in turns, so that within a turn no port or NIC exceeds what it can do at once."""
        at_once = len(self.src) if self.overlapped else self.ports
        ends = [("send", self.src, at_once), ("receive", self.dst, at_once)]
        if self.nics is not None:
            ends += [("out", self.nics[0], 1), ("in", self.nics[1], 1)]
        turn_of: list[int] = []
        used: Counter[tuple[str, int]] = Counter()
        no_nic = ("out", self.no_nic), ("in", self.no_nic)
        for numbers in zip(*(numbers.tolist() for _, numbers, _ in ends), strict=True):
            needs = [((kind, number), most) for (kind, _, most), number in zip(ends, numbers, strict=True)]
            needs = [(resource, most) for resource, most in needs if resource not in no_nic]
            turn = max(used[resource] // most for resource, most in needs)
            for resource, most in needs:
                used[resource] = max(used[resource], turn * most) + 1
            turn_of.append(turn)
        turns = np.array(turn_of, dtype=np.int64)
        return [np.flatnonzero(turns == turn) for turn in range(turns.max(initial=-1) + 1)]

    def _nics(self, topology: Topology) -> np.ndarray | None:
        """Return the NICs that each message leaves and enters through, or the ports: int [2, num_messages].

        None if these can't delay a message: one message at a time leaves a rank, and no rank shares its NIC.
        """
        num_nics = topology.world_size // topology.ranks_per_nic
        self.no_nic = num_nics + topology.world_size
        if not topology.overlapped and (topology.across is None or topology.ranks_per_nic == topology.ports == 1):
            return None
        far, ends = topology.crosses(self.src, self.dst), np.stack([self.src, self.dst])
        near = num_nics + ends if topology.overlapped else self.no_nic
        return np.where(far, ends // topology.ranks_per_nic, near)


def _later_of(times: np.ndarray, shift: int, out: np.ndarray) -> None:
    """Set `out[r]` to the later of `times[r]` and `times[r + shift]`; ranks wrap around."""
    np.maximum(times[:-shift], times[shift:], out=out[:-shift])
    np.maximum(times[-shift:], times[:shift], out=out[-shift:])


def algbw(num_bytes: float, seconds: float) -> float:
    """Return S / seconds: the bytes per second that the application sees."""
    return num_bytes / seconds


def busbw(collective: str, world_size: int, num_bytes: float, seconds: float) -> float:
    """Return `algbw` rescaled as nccl-tests does: bytes per second on the busiest link, comparable with its rate.

    `num_bytes` is S, the full buffer: the input of a reduce-scatter, the output of an all-gather, what a rank holds in
    an all-to-all. Raises `ValueError` for a collective that nccl-tests doesn't rescale.
    Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    """
    around = (world_size - 1) / world_size
    factors = {"all_reduce": 2 * around, "reduce_scatter": around, "all_gather": around, "all_to_all": around}
    factors |= {"broadcast": 1.0, "reduce": 1.0}
    if collective not in factors:
        raise ValueError(f"nccl-tests has no bus bandwidth for {collective!r}; use one of {', '.join(factors)}")
    return algbw(num_bytes, seconds) * factors[collective]
