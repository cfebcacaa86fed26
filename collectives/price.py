"""What a schedule costs, by the alpha-beta model: seconds, and bytes by rank and by link.

A message of n bytes takes alpha + n beta seconds (and n gamma more where it is added on arrival). It starts when both
its ranks have finished their earlier steps; a rank sends one message at a time and receives one at a time, both at
once. Transfers between the same two ranks in one step travel as one message, and pay alpha once. (`execute` sends one
for each run of neighbouring chunks.)
Source: R. Hockney, "The communication challenge for MPP", 1994.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .schedule import Schedule, Step, chunk_bounds
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
    patterns: list[_Pattern] = field(repr=False)

    @cached_property
    def bytes_on_link(self) -> dict[tuple[int, int], int]:
        """Bytes over each link that is used, by (src, dst)."""
        total: dict[tuple[int, int], int] = {}
        for pattern in self.patterns:
            pairs = zip(pattern.src.tolist(), pattern.dst.tolist(), strict=True)
            for pair, num_bytes in zip(pairs, pattern.carried.tolist(), strict=True):
                total[pair] = total.get(pair, 0) + num_bytes
        return total

    def __str__(self) -> str:
        most = self.bytes_sent.max(initial=0)
        return f"{self.seconds:.3g} s in {self.steps} steps; a rank sends at most {most:,} bytes"


def price(schedule: Schedule, num_bytes: int, topology: Topology, itemsize: int = 1) -> Cost:
    """The cost of `schedule` on a full buffer of `num_bytes` (S) over `topology`.

    `itemsize`: bytes an element; chunks are cut between elements, so uneven chunks depend on it. Steps are read one
    at a time: tens of thousands of ranks take seconds, not memory.
    """
    if topology.world_size != schedule.world_size:
        raise ValueError(f"{schedule.name} is for {schedule.world_size} ranks, the topology for {topology.world_size}")
    if itemsize < 1:
        raise ValueError(f"an element has at least 1 byte, not {itemsize}")
    if num_bytes < 0 or num_bytes % itemsize:
        raise ValueError(f"a buffer of {num_bytes} bytes is not a whole number of {itemsize}-byte elements")
    ranks = schedule.world_size
    chunk_bytes = np.diff(chunk_bounds(int(num_bytes) // itemsize, schedule.num_chunks)) * itemsize
    clock = np.zeros(ranks)  # when each rank is done with its steps so far
    steps = messages = 0
    pattern, patterns = None, []
    for step in schedule:
        if pattern is None or not _same_pairs(step, pattern.step):
            pattern = _Pattern(step, topology)  # a ring has one pattern a phase, so this is rare
            patterns.append(pattern)
        moved = pattern.by_message(chunk_bytes[step.chunk])
        seconds = pattern.alpha + pattern.beta * moved
        if topology.gamma:
            seconds = seconds + topology.gamma * pattern.by_message(chunk_bytes[step.chunk] * step.reduces)
        sender, receiver = clock.copy(), clock.copy()
        for turn in pattern.turns:
            src, dst = pattern.src[turn], pattern.dst[turn]
            done = np.maximum(sender[src], receiver[dst]) + seconds[turn]
            sender[src] = receiver[dst] = done
        clock = np.maximum(sender, receiver)
        pattern.carried += moved
        steps += 1
        messages += len(moved)
    sent, received = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    for pattern in patterns:
        np.add.at(sent, pattern.src, pattern.carried)
        np.add.at(received, pattern.dst, pattern.carried)
    return Cost(float(clock.max()), steps, messages, clock, sent, received, patterns)


def _same_pairs(step: Step, other: Step) -> bool:
    """Whether two steps hold the very same arrays of ranks, as the steps of one phase of a ring do."""
    return step.src is other.src and step.dst is other.dst


class _Pattern:
    """Who sends to whom in a step: its messages, and in which turns the ranks' ports can carry them."""

    def __init__(self, step: Step, topology: Topology):
        self.step = step
        codes = step.src * topology.world_size + step.dst
        pairs, first, self.message = np.unique(codes, return_index=True, return_inverse=True)
        order = np.argsort(first)  # messages in the order they are written
        self.message = np.argsort(order)[self.message]
        self.src, self.dst = np.divmod(pairs[order], topology.world_size)
        self.alpha, self.beta = topology.seconds(self.src, self.dst)
        self.turns = self._turns()
        self.carried = np.zeros(len(self.src), dtype=np.int64)  # bytes so far, by message

    def by_message(self, transfer_bytes: np.ndarray) -> np.ndarray:
        """Bytes by transfer, summed into bytes by message: int [num_messages]."""
        if len(self.src) == len(self.message):
            return transfer_bytes  # as nearly always: one transfer, one message
        return np.bincount(self.message, transfer_bytes, len(self.src)).astype(np.int64)

    def _turns(self) -> list:
        """The messages in turns, in each of which no rank sends twice or receives twice."""
        turn_of, sends, receives = [], {}, {}
        for src, dst in zip(self.src.tolist(), self.dst.tolist(), strict=True):
            turn = max(sends.get(src, 0), receives.get(dst, 0))
            sends[src] = receives[dst] = turn + 1
            turn_of.append(turn)
        turns = max(turn_of, default=-1) + 1
        if turns == 1:
            return [slice(None)]
        return [np.flatnonzero(np.array(turn_of) == turn) for turn in range(turns)]
