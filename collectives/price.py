"""What a schedule costs, by the alpha-beta model: seconds, and bytes by rank and by link.

A message (one transfer) of n bytes takes alpha + n beta seconds, and n gamma more where it is added on arrival. It
starts when both its ranks have finished their earlier steps. A rank sends one message at a time and receives one at
a time, both at once (or as many as the topology has `ports`), in the order in which a step lists them. The bytes of
ranks that share a NIC pass it one message after another.
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
    """The price of one schedule. `seconds`: until the last rank is done; `finish`: until each is, [world_size].

    `steps`: how many. `messages`: how many over all ranks. `bytes_sent`, `bytes_received`: int [world_size].
    """

    seconds: float
    steps: int
    messages: int
    finish: np.ndarray
    bytes_sent: np.ndarray
    bytes_received: np.ndarray
    carried: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(repr=False)  # (src, dst, bytes), summed or not

    @cached_property
    def bytes_on_link(self) -> dict[tuple[int, int], int]:
        """Bytes over each link that is used, by (src, dst)."""
        total: Counter[tuple[int, int]] = Counter()
        for columns in self.carried:
            for src, dst, num_bytes in zip(*(column.tolist() for column in columns), strict=True):
                total[src, dst] += num_bytes
        return dict(total)

    def __str__(self) -> str:
        most = self.bytes_sent.max(initial=0)
        return f"{self.seconds:.3g} s in {self.steps} steps; a rank sends at most {most:,} bytes"


def price(schedule: Schedule, num_bytes: int, topology: Topology, itemsize: int = 1) -> Cost:
    """The cost of `schedule` on a full buffer of `num_bytes` (S) over `topology`.

    `itemsize`: bytes an element; chunks are cut between elements, so uneven chunks depend on it. Steps are read one
    at a time: tens of thousands of ranks take seconds, not memory. Where all ranks do the same over links that are
    all alike, one of them stands for all, and it takes milliseconds.
    """
    bounds = _byte_bounds(schedule, num_bytes, topology, itemsize)
    chunk_bytes = np.diff(bounds)
    alike = topology.is_uniform and topology.ports == 1 and (chunk_bytes == chunk_bytes[0]).all()
    if schedule.rank_zero and alike:
        return _by_symmetry(schedule, int(chunk_bytes[0]), topology)
    return _step_by_step(schedule, bounds, topology)


class Span(NamedTuple):
    """When the messages of `step` are under way: from `start` for `seconds`, each with `num_bytes`: [num_messages]."""

    step: Step
    start: np.ndarray
    seconds: np.ndarray
    num_bytes: np.ndarray


def spans(schedule: Schedule, num_bytes: int, topology: Topology, itemsize: int = 1) -> Iterator[Span]:
    """The same cost, message by message: for each step when each of its messages starts, and how long it takes."""
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
    """Where each chunk begins and ends: bytes [num_chunks + 1]; `ValueError` for what cannot be priced."""
    if topology.world_size != schedule.world_size:
        raise ValueError(f"{schedule.name} is for {schedule.world_size} ranks, the topology for {topology.world_size}")
    if itemsize < 1:
        raise ValueError(f"an element has at least 1 byte, not {itemsize}")
    if num_bytes < 0 or num_bytes % itemsize:
        raise ValueError(f"a buffer of {num_bytes} bytes is not a whole number of {itemsize}-byte elements")
    return schedule.bounds(int(num_bytes) // itemsize) * itemsize


def _moved(step: Step, bounds: np.ndarray) -> np.ndarray:
    """The bytes of each message: [num_messages]."""
    return bounds[step.chunk + (1 if step.count is None else step.count)] - bounds[step.chunk]


def _by_symmetry(schedule: Schedule, chunk_bytes: int, topology: Topology) -> Cost:
    """The cost if every rank does what rank 0 does, at the same times."""
    ranks, steps, adds = schedule.world_size, 0, 0
    distances: Counter[int] = Counter()  # messages, by how much further round they go
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
    """The cost, with a clock for every rank. `bounds`: bytes [num_chunks + 1]."""
    ranks = schedule.world_size
    bounds = bounds.astype(float)  # exact below 2^53, and quicker to multiply by a beta
    chunk_bytes = np.diff(bounds)
    alike = (chunk_bytes == chunk_bytes[0]).all()
    clock = _Clock(topology)
    steps = messages = 0
    pattern, patterns = None, []
    usual = False  # whether the last step moved one whole chunk a message, all equally long
    for step in schedule:
        step.check_fit(bounds)
        if pattern is None or not pattern.fits(step):
            pattern = _Pattern(step, topology)  # a ring has one pattern a phase, so this is rare
            patterns.append(pattern)
            usual = False
        if not (usual and step.count is None):  # else it moves the same as the one before
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
    """When each rank is done with its steps so far, and from when on each NIC is free, outwards and inwards: seconds.

    `ranks`: float [world_size]. `nics`: float [2, num_nics + 1]; the last one stands for no NIC and is always free.
    """

    def __init__(self, topology: Topology):
        self.ranks = np.zeros(topology.world_size)
        self.done = np.zeros(
            topology.world_size
        )  # work space: for 16,384 ranks a new array costs more than its contents
        self.nics = np.zeros((2, topology.world_size // topology.ranks_per_nic + 1))


class _Pattern:
    """Who sends to whom in a step, over which links, and in which turns the ranks' ports and NICs can carry it."""

    def __init__(self, step: Step, topology: Topology):
        for ranks in (step.src, step.dst):
            if ranks.min(initial=0) < 0 or ranks.max(initial=0) >= topology.world_size:
                raise ScheduleError(f"{step} has a rank that is none of 0 to {topology.world_size - 1}")
        self.src, self.dst, self.combine = step.src, step.dst, step.combine
        self.gamma = topology.gamma * step.reduces if topology.gamma else None  # seconds a byte, by message
        self.alpha, self.beta = topology.seconds(self.src, self.dst)
        self.carried = np.zeros(len(self.src))  # bytes so far, by message
        self.nics = self._nics(topology)
        self.ports = topology.ports
        self.shift = self._shift(topology.world_size) if self.nics is None else None
        self.turns = [slice(None)] if self.shift else self._turns()

    def fits(self, step: Step) -> bool:
        """Whether `step` holds the very same arrays of ranks, as the steps of one phase of a ring do."""
        return step.src is self.src and step.dst is self.dst and step.combine is self.combine

    def seconds(self, moved: np.ndarray) -> np.ndarray:
        """What each message takes: float [num_messages]. `moved`: bytes [num_messages]."""
        seconds = self.alpha + self.beta * moved
        return seconds if self.gamma is None else seconds + self.gamma * moved

    def advance(self, clock: _Clock, moved: np.ndarray, seconds: np.ndarray, starts: np.ndarray | None = None) -> None:
        """Set `clock` to when each rank is done with this step, if it was at when it was done with the one before.

        `moved`, `seconds`: what each message carries and takes. `starts`: where to note when each starts.
        """
        if self.shift and starts is None:
            _later_of(clock.ranks, self.shift, out=clock.done)  # message r starts when rank r and its receiver can,
            clock.done += seconds
            _later_of(clock.done, -self.shift, out=clock.ranks)  # and a rank is done when it has sent and received
            return
        sender, receiver = clock.ranks.copy(), clock.ranks.copy()
        for turn in self.turns:
            src, dst = self.src[turn], self.dst[turn]
            ready = np.maximum(sender[src], receiver[dst])
            if self.nics is not None:
                ready = self._through_nics(turn, clock.nics, ready, moved)
            if starts is not None:
                starts[turn] = ready
            done = ready + seconds[turn]
            if self.ports == 1:  # then no rank is twice in a turn
                sender[src] = receiver[dst] = done
            else:
                np.maximum.at(sender, src, done)
                np.maximum.at(receiver, dst, done)
        clock.ranks = np.maximum(sender, receiver)

    def _through_nics(self, turn: np.ndarray, free: np.ndarray, ready: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """When the messages of a turn, which are `ready`, can start; their NICs are busy while their bytes pass."""
        out, into = self.nics[:, turn]
        ready = np.maximum(ready, np.maximum(free[0, out], free[1, into]))
        free[0, out] = free[1, into] = ready + self.beta[turn] * moved[turn]
        free[:, -1] = 0
        return ready

    def _shift(self, world_size: int) -> int | None:
        """By how much every rank's one message goes further round, as in a ring; None if that is not what they do."""
        ranks = np.arange(world_size)
        if not np.array_equal(self.src, ranks):
            return None
        shift = int(self.dst[0])
        return shift if np.array_equal(self.dst, (ranks + shift) % world_size) else None

    def _turns(self) -> list[np.ndarray]:
        """The messages in turns, in each of which no port and no NIC is asked for more than it can do at once."""
        ends = (("send", self.src, self.ports), ("receive", self.dst, self.ports))
        if self.nics is not None:
            ends += (("out", self.nics[0], 1), ("in", self.nics[1], 1))
        turn_of, used = [], Counter()
        for numbers in zip(*(numbers.tolist() for _, numbers, _ in ends), strict=True):
            asked = [((kind, number), most) for (kind, _, most), number in zip(ends, numbers, strict=True)]
            asked = [(one, most) for one, most in asked if one not in (("out", self.no_nic), ("in", self.no_nic))]
            turn = max(used[one] // most for one, most in asked)
            for one, most in asked:
                used[one] = max(used[one], turn * most) + 1
            turn_of.append(turn)
        turn_of = np.array(turn_of, dtype=np.int64)
        return [np.flatnonzero(turn_of == turn) for turn in range(turn_of.max(initial=-1) + 1)]

    def _nics(self, topology: Topology) -> np.ndarray | None:
        """The NICs by which each message leaves and enters a node: int [2, num_messages]; None if nobody shares one."""
        self.no_nic = topology.world_size // topology.ranks_per_nic
        if topology.across is None or topology.ranks_per_nic == topology.ports == 1:
            return None
        far = topology.crosses(self.src, self.dst)
        return np.where(far, np.stack([self.src, self.dst]) // topology.ranks_per_nic, self.no_nic)


def _later_of(times: np.ndarray, shift: int, out: np.ndarray) -> None:
    """Set `out[r]` to the later of `times[r]` and `times[r + shift]`, counted round."""
    np.maximum(times[:-shift], times[shift:], out=out[:-shift])
    np.maximum(times[-shift:], times[:shift], out=out[-shift:])


def algbw(num_bytes: float, seconds: float) -> float:
    """Bytes a second as an application sees them: S over the time."""
    return num_bytes / seconds


def busbw(collective: str, world_size: int, num_bytes: float, seconds: float) -> float:
    """`algbw` rescaled as nccl-tests does, to what the busiest link carries: to be set beside the link's own rate.

    `num_bytes` is S, the full buffer: for a reduce-scatter what goes in, for an all-gather what comes out, for an
    all-to-all what a rank holds. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    """
    around = (world_size - 1) / world_size
    factors = {"all_reduce": 2 * around, "reduce_scatter": around, "all_gather": around, "all_to_all": around}
    factors |= {"broadcast": 1.0, "reduce": 1.0}
    if collective not in factors:
        raise ValueError(f"nccl-tests has no bus bandwidth for {collective!r}, only for {', '.join(factors)}")
    return algbw(num_bytes, seconds) * factors[collective]
