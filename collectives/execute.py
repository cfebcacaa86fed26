"""Run a schedule on real ranks, over torch.distributed: gloo between processes on CPUs, NCCL between GPUs.

Every rank calls `execute` with the same schedule and its own buffer. A rank goes on to its next step when its own
messages of this step are through: there is no barrier, a step waits only for the ranks that it exchanges data with.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from .schedule import COPY, REDUCE, Schedule, Step, chunk_bounds

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
    """What one rank sends another, or receives from it, at once: a run of neighbouring chunks."""

    peer: int
    first: int
    last: int
    combine: str

    def __str__(self) -> str:
        return f"chunk {self.first}" if self.first == self.last else f"chunks {self.first} to {self.last}"


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
    bounds = chunk_bounds(len(buffer), schedule.num_chunks).tolist()
    names = dist.get_process_group_ranks(group)  # the number by which everybody knows each rank of the group
    scratch = buffer.new_empty(0)
    for index, step in enumerate(schedule):
        sends, receives = messages(step, rank)
        staged = [message for message in receives if not _in_place(message, sends)]
        needed = sum(bounds[message.last + 1] - bounds[message.first] for message in staged)
        if needed > len(scratch):
            scratch = buffer.new_empty(needed)
        landing, used = {}, 0  # where each message arrives: its place in the buffer, or the scratch area
        for message in receives:
            landing[message] = _view(buffer, bounds, message)
            if message in staged:
                length = len(landing[message])
                landing[message] = scratch[used : used + length]
                used += length
        operations = [dist.P2POp(dist.irecv, landing[m], group=group, group_peer=m.peer) for m in receives]
        operations += [dist.P2POp(dist.isend, _view(buffer, bounds, m), group=group, group_peer=m.peer) for m in sends]
        if operations:
            waits = [(names[m.peer], f"rank {names[m.peer]} to send {m}") for m in receives]
            waits += [(names[m.peer], f"rank {names[m.peer]} to take {m}") for m in sends]
            _wait(dist.batch_isend_irecv(operations), waits, f"rank {names[rank]}, step {index}", timeout)
        for message in staged:
            place = _view(buffer, bounds, message)
            place.add_(landing[message]) if message.combine == REDUCE else place.copy_(landing[message])


def messages(step: Step, rank: int) -> tuple[list[Message], list[Message]]:
    """What `rank` sends and what it receives in `step`; neighbouring chunks to one peer go as one message."""
    mine = [transfer for transfer in step if rank in (transfer.src, transfer.dst)]
    sends = [Message(t.dst, t.chunk, t.chunk, t.combine) for t in mine if t.src == rank]
    receives = [Message(t.src, t.chunk, t.chunk, t.combine) for t in mine if t.dst == rank]
    return list(_joined(sends)), list(_joined(receives))


def _joined(singles: list[Message]) -> Iterator[Message]:
    """Messages of one chunk each, with those of neighbouring chunks to the same peer put together."""
    current = None
    for single in sorted(singles, key=lambda m: (m.peer, m.first)):
        follows = current and (current.peer, current.combine) == (single.peer, single.combine)
        if follows and single.first == current.last + 1:
            current = Message(current.peer, current.first, single.last, current.combine)
            continue
        if current:
            yield current
        current = single
    if current:
        yield current


def _in_place(message: Message, sends: list[Message]) -> bool:
    """Whether `message` may land where it belongs: it overwrites, and nothing that is being sent meanwhile."""
    free = all(message.last < sent.first or sent.last < message.first for sent in sends)
    return message.combine == COPY and free


def _view(buffer: torch.Tensor, bounds: list[int], message: Message) -> torch.Tensor:
    return buffer[bounds[message.first] : bounds[message.last + 1]]


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
