"""Run a schedule on real ranks, over torch.distributed: gloo between processes on CPUs, NCCL between GPUs.

Every rank calls `execute` with the same schedule and its own buffer. A rank goes on to its next step when its own
messages of this step are through: there is no barrier, a step waits only for the ranks that it exchanges data with.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from .schedule import COPY, REDUCE, Schedule, Step

if TYPE_CHECKING:  # torch takes a second to import; `import collectives` does not wait for it
    import torch
    import torch.distributed as dist


class ExecutionError(RuntimeError):
    """A schedule that a rank could not carry through: it names the step, and the ranks (`peers`) waited for in vain."""

    def __init__(self, message: str, peers: list[int]):
        super().__init__(message)
        self.peers = peers


@dataclass(frozen=True)
class Message:
    """What one rank sends another, or receives from it, at once: `count` chunks of its own buffer from `first` on."""

    peer: int
    first: int
    count: int
    combine: str

    def __str__(self) -> str:
        last = self.first + self.count - 1
        return f"chunk {self.first}" if self.count == 1 else f"chunks {self.first} to {last}"


def execute(
    schedule: Schedule, buffer: torch.Tensor, group: dist.ProcessGroup | None = None, timeout: float = 30.0
) -> None:
    """Run this rank's part of `schedule`, in place on `buffer`, with the other ranks of `group`.

    `buffer`: this rank's flat, contiguous tensor of any dtype that the backend can send; its length need not divide
    by the number of chunks. `group`: the process group, by default the one with all ranks. `timeout`: seconds that
    one step may wait for its peers before it ends in an `ExecutionError` that names them.

    Memory beyond the buffer: one scratch area, as large as what arrives in a single step and cannot be received in
    place (a chunk that is added, or that overwrites one which is being sent).
    """
    import torch.distributed as dist

    rank = dist.get_rank(group)
    _check_arguments(schedule, buffer, dist.get_world_size(group))
    bounds = schedule.bounds(len(buffer)).tolist()
    names = dist.get_process_group_ranks(group)  # the number by which everybody knows each rank of the group
    scratch = buffer.new_empty(0)
    for index, step in enumerate(schedule):
        step.check_fit(bounds)
        sends, receives = messages(step, rank)
        places = [_view(buffer, bounds, message) for message in receives]
        staged = [not _in_place(message, sends) for message in receives]
        needed = sum(len(place) for place, waits in zip(places, staged, strict=True) if waits)
        if needed > len(scratch):
            scratch = buffer.new_empty(needed)
        landings, used = [], 0  # where each message arrives: its place in the buffer, or the scratch area
        for place, waits in zip(places, staged, strict=True):
            landings.append(scratch[used : used + len(place)] if waits else place)
            used += len(place) if waits else 0
        operations = [
            dist.P2POp(dist.irecv, landing, group=group, group_peer=m.peer)
            for landing, m in zip(landings, receives, strict=True)
        ]
        operations += [dist.P2POp(dist.isend, _view(buffer, bounds, m), group=group, group_peer=m.peer) for m in sends]
        if operations:
            waits = [(names[m.peer], f"rank {names[m.peer]} to send {m}") for m in receives]
            waits += [(names[m.peer], f"rank {names[m.peer]} to take {m}") for m in sends]
            _wait(dist.batch_isend_irecv(operations), waits, f"rank {names[rank]}, step {index}", timeout)
        for message, place, landing, waits in zip(receives, places, landings, staged, strict=True):
            if waits:
                place.add_(landing) if message.combine == REDUCE else place.copy_(landing)


def messages(step: Step, rank: int) -> tuple[list[Message], list[Message]]:
    """What `rank` sends and what it receives in `step`, each transfer as a message."""
    mine = [transfer for transfer in step if rank in (transfer.src, transfer.dst)]
    sends = [Message(t.dst, t.chunk, t.count, t.combine) for t in mine if t.src == rank]
    receives = [Message(t.src, t.lands, t.count, t.combine) for t in mine if t.dst == rank]
    return sends, receives


def _in_place(message: Message, sends: list[Message]) -> bool:
    """Whether `message` may land where it belongs: it overwrites, and nothing that is being sent meanwhile."""
    first, end = message.first, message.first + message.count
    free = all(end <= sent.first or sent.first + sent.count <= first for sent in sends)
    return message.combine == COPY and free


def _view(buffer: torch.Tensor, bounds: list[int], message: Message) -> torch.Tensor:
    return buffer[bounds[message.first] : bounds[message.first + message.count]]


def _wait(works: list, waits: list[tuple[int, str]], where: str, timeout: float) -> None:
    """Wait once for every work (a second wait would hang on gloo); name what never came.

    `waits`: for each operation, the peer that it waits for, and for what in words.
    """
    start = time.monotonic()
    missing, reason = [], None
    if len(works) != len(waits):  # NCCL answers a whole batch with one work
        waits = [(waits[0][0], ", ".join(words for _, words in waits))] * len(works)
    for work, (peer, words) in zip(works, waits, strict=True):  # `ranks` reads peer and words when a rank is stuck
        try:
            work.wait(timedelta(seconds=max(start + timeout - time.monotonic(), 0.001)))
        except RuntimeError as error:
            missing.append((peer, words))
            reason = reason or error
    if missing:
        vain = "; ".join(words for _, words in missing)
        waited = round(time.monotonic() - start, 1)
        message = f"{where}: waited {waited:g} s in vain for {vain} ({reason})"
        raise ExecutionError(message, [peer for peer, _ in missing]) from reason


def _check_arguments(schedule: Schedule, buffer: torch.Tensor, world_size: int) -> None:
    if schedule.world_size != world_size:
        raise ValueError(f"{schedule.name} is for {schedule.world_size} ranks, but the group has {world_size}")
    if not hasattr(buffer, "is_contiguous"):
        raise ValueError(f"execute takes a tensor of torch, not a {type(buffer).__name__}")
    if buffer.dim() != 1 or not buffer.is_contiguous():
        raise ValueError(f"execute takes a flat, contiguous tensor; this one has shape {tuple(buffer.shape)}")
