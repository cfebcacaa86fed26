"""An executor that runs a schedule on real ranks.

Every rank calls `execute` with the same schedule and its own buffer. A rank starts its next step as soon as its own
messages of this step are complete. There is no barrier: a rank waits only for the ranks that it exchanges data with.

A transport carries the messages. The default uses the process group's send and receive: gloo between processes on
CPUs, NCCL between GPUs. Ranks on one host can share memory instead: see `shared`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from .schedule import COPY, REDUCE, Schedule, Step, Transfer

if TYPE_CHECKING:  # torch takes a second to import, so `import collectives` doesn't import it
    import torch
    import torch.distributed as dist

_kept = threading.local()  # the memory of `scratch`; thread-local because a thread may be a rank


class ExecutionError(RuntimeError):
    """A rank couldn't finish a schedule. The message names the step; `peers` lists the ranks that never answered."""

    def __init__(self, message: str, peers: list[int]):
        super().__init__(message)
        self.peers = peers


class Transport(Protocol):
    """A way to carry the messages of a schedule between the ranks of `group`."""

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The group of its ranks; None for all ranks."""

    def run(self, schedule: Schedule, buffer: torch.Tensor, timeout: float) -> None:
        """Run this rank's part of `schedule` in place on `buffer`.

        Raises `ExecutionError` if a step waits longer than `timeout` seconds for its peers.
        """


@dataclass(frozen=True)
class Part:
    """One rank's part of step `number`: the transfers that it sends and those that it receives.

    `arrive`, `leave`: for each transfer in `receives` and in `sends`, the peer that it waits for, and why in words.
    `in_place`: for each transfer in `receives`, whether it can be received directly into the buffer.
    """

    number: int
    step: Step
    sends: list[Transfer]
    receives: list[Transfer]
    arrive: list[tuple[int, str]]
    leave: list[tuple[int, str]]
    in_place: list[bool]

    @staticmethod
    @lru_cache(maxsize=64)
    def of(schedule: Schedule, rank: int) -> list[Part]:
        """Return what `rank` does in `schedule`, step by step, without the steps in which it does nothing."""
        schedule.validate()
        parts = []
        for number, step in enumerate(schedule):
            mine = [transfer for transfer in step if rank in (transfer.src, transfer.dst)]
            sends = [transfer for transfer in mine if transfer.src == rank]
            receives = [transfer for transfer in mine if transfer.dst == rank]
            if mine:
                arrive = [(transfer.src, f"to send {_what(transfer)}") for transfer in receives]
                leave = [(transfer.dst, f"to take {_what(transfer)}") for transfer in sends]
                in_place = [_in_place(transfer, sends) for transfer in receives]
                parts.append(Part(number, step, sends, receives, arrive, leave, in_place))
        return parts


def execute(
    schedule: Schedule,
    buffer: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    timeout: float = 30.0,
    transport: Transport | None = None,
) -> None:
    """Run this rank's part of `schedule` in place on `buffer`, with the other ranks of `group`.

    `buffer`: this rank's flat, contiguous tensor of any dtype that the backend can send; its length need not be a
    multiple of the number of chunks.
    `group`: the process group; by default the one with all ranks.
    `timeout`: seconds that one step may wait for its peers. After that, `execute` raises an `ExecutionError` that names
    them.
    `transport`: None for the group's own send and receive, or a `shared.Arena`, which has a group of its own.

    Memory beyond the buffer: one scratch area for what arrives in a single step and can't be received in place. That
    is a chunk that overwrites data being sent and, with the default transport, a chunk that is added. On CPUs the
    scratch area is kept for the next call.

    Raises `ScheduleError` or `ValueError` if the schedule can't run on this buffer and group.
    """
    import torch.distributed as dist

    if transport is None:
        transport = _Messages(group)
    elif group not in (None, transport.group):
        raise ValueError("the transport belongs to another group; omit `group`")
    _check_arguments(schedule, buffer, dist.get_world_size(transport.group))
    bounds = schedule.bounds(len(buffer))
    for part in Part.of(schedule, dist.get_rank(transport.group)):
        part.step.check_fit(bounds)
    transport.run(schedule, buffer, timeout)


def _what(transfer: Transfer) -> str:
    """Return what the transfer carries: "chunk 3", or "chunks 3 to 5"."""
    last = transfer.chunk + transfer.count - 1
    return f"chunk {transfer.chunk}" if transfer.count == 1 else f"chunks {transfer.chunk} to {last}"


def _in_place(transfer: Transfer, sends: list[Transfer]) -> bool:
    """Return whether a transfer can be received into the buffer: it copies, and doesn't overwrite data being sent."""
    first, end = transfer.lands, transfer.lands + transfer.count
    free = all(end <= sent.chunk or sent.chunk + sent.count <= first for sent in sends)
    return transfer.combine == COPY and free


def view(buffer: torch.Tensor, bounds: list[int], first: int, count: int) -> torch.Tensor:
    """Return a view of `count` chunks of a buffer, starting at chunk `first`."""
    return buffer[bounds[first] : bounds[first + count]]


def scratch(num_elements: int, like: torch.Tensor) -> torch.Tensor:
    """Return uninitialized memory with the dtype and device of `like`, valid until the next call on this thread.

    On a CPU the memory is reused from call to call: allocating it takes longer than using it.
    """
    import torch

    if like.is_cuda:
        return like.new_empty(num_elements)
    num_bytes = num_elements * like.element_size()
    kept = getattr(_kept, "scratch", None)
    if kept is None or len(kept) < num_bytes:
        kept = _kept.scratch = torch.empty(num_bytes, dtype=torch.uint8)
    return kept[:num_bytes].view(like.dtype)


class _Messages:
    """The default transport: the send and receive of a process group."""

    def __init__(self, group: dist.ProcessGroup | None):
        import torch.distributed as dist

        # It is None only before `init_process_group`, and then `execute` fails when it asks for the world size.
        self.group: dist.ProcessGroup = group or dist.group.WORLD  # type: ignore[assignment]

    def run(self, schedule: Schedule, buffer: torch.Tensor, timeout: float) -> None:
        import torch.distributed as dist

        rank = self.group.rank()
        names = dist.get_process_group_ranks(self.group)  # global rank numbers, for error messages
        bounds = schedule.bounds(len(buffer)).tolist()
        for part in Part.of(schedule, rank):
            places = [view(buffer, bounds, t.lands, t.count) for t in part.receives]
            landings = _landings(part, places, buffer)
            receives = [(landing, t.src) for landing, t in zip(landings, part.receives, strict=True)]
            sends = [(view(buffer, bounds, t.chunk, t.count), t.dst) for t in part.sends]
            where = f"rank {names[rank]}, step {part.number}"
            _wait(self._start(receives, sends), part.arrive + part.leave, names, where, timeout)
            for transfer, place, landing in zip(part.receives, places, landings, strict=True):
                if transfer.combine == REDUCE:
                    place.add_(landing)
                elif landing is not place:
                    place.copy_(landing)

    def _start(
        self, receives: list[tuple[torch.Tensor, int]], sends: list[tuple[torch.Tensor, int]]
    ) -> list[dist.Work]:
        """Start all messages of a step, each a tensor and a peer, without waiting for any."""
        import torch.distributed as dist

        if any(tensor.is_cuda for tensor, _ in receives + sends):  # NCCL needs them as one batch, or they can deadlock
            operations = [
                dist.P2POp(dist.irecv, tensor, group=self.group, group_peer=peer) for tensor, peer in receives
            ]
            operations += [dist.P2POp(dist.isend, tensor, group=self.group, group_peer=peer) for tensor, peer in sends]
            return dist.batch_isend_irecv(operations)
        works = [self.group.recv([tensor], peer, 0) for tensor, peer in receives]
        return works + [self.group.send([tensor], peer, 0) for tensor, peer in sends]


def _landings(part: Part, places: list[torch.Tensor], buffer: torch.Tensor) -> list[torch.Tensor]:
    """Return the memory that receives each message: its place in the buffer, or a part of the scratch area."""
    both = list(zip(places, part.in_place, strict=True))
    rest = scratch(sum(len(place) for place, in_place in both if not in_place), like=buffer)
    landings = []
    for place, in_place in both:
        landing, rest = (place, rest) if in_place else (rest[: len(place)], rest[len(place) :])
        landings.append(landing)
    return landings


def _wait(works: list[dist.Work], waits: list[tuple[int, str]], names: list[int], where: str, timeout: float) -> None:
    """Wait for each operation exactly once: on gloo a second wait hangs. Raise `ExecutionError` for those that fail.

    `waits`: for each operation, the peer that it waits for, and why in words. `names`: the global number of each peer.
    `where`: the rank and step for the message.
    """
    start = time.monotonic()
    missing, reason = [], None
    named = [(names[peer], f"rank {names[peer]} {what}") for peer, what in waits]
    if len(works) != len(named):  # NCCL returns one work for the whole batch
        named = [(named[0][0], ", ".join(words for _, words in named))] * len(works)
    # `ranks` reads the locals `peer` and `words` of this frame when a rank is stuck.
    for work, (peer, words) in zip(works, named, strict=True):
        try:
            work.wait(timedelta(seconds=max(start + timeout - time.monotonic(), 0.001)))
        except RuntimeError as error:
            missing.append((peer, words))
            reason = reason or error
    if missing:
        missing_words = "; ".join(words for _, words in missing)
        waited = round(time.monotonic() - start, 1)
        message = f"{where}: waited {waited:g} s in vain for {missing_words} ({reason})"
        raise ExecutionError(message, [peer for peer, _ in missing]) from reason


def _check_arguments(schedule: Schedule, buffer: torch.Tensor, world_size: int) -> None:
    if schedule.world_size != world_size:
        raise ValueError(f"{schedule.name} is for {schedule.world_size} ranks, but the group has {world_size}")
    if not hasattr(buffer, "is_contiguous"):
        raise ValueError(f"execute needs a torch tensor, not a {type(buffer).__name__}")
    if buffer.dim() != 1 or not buffer.is_contiguous():
        raise ValueError(f"execute needs a flat, contiguous tensor; this one has shape {tuple(buffer.shape)}")
