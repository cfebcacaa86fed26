"""Shared memory between the ranks of one host: peers read a rank's data in place. The schedule stays the same.

An **arena** is memory that all ranks of a group have mapped. Each rank has a region that only it writes and all read.
A rank sends by leaving chunks in its region and announcing them; its peer receives by adding or copying straight from
there. A tensor in the arena needs nothing else. An ordinary tensor is private, so the rank first copies the chunks it
sends into its region: it **publishes** them.

One counter per rank synchronizes them. In every step a rank announces `ready` (peers can read what I send), then
`taken` (I have read what I receive). A receiver waits until its sender is ready. Before a rank overwrites a chunk in
its region, it waits until every receiver of that chunk has taken it. The schedule determines all these waits.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
import zlib
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from ..execute import ExecutionError, Part, scratch, view
from ..schedule import REDUCE, Schedule, Transfer

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

PAGE = 4096  # bytes: each rank's counter and region start on a page of their own
LINE = 64  # bytes: a tensor starts on a cache line
BLOCK = 2**20  # bytes of a sum that stay in the cache while several peers are added to it
LOOKS, PAUSE = 200, 1e-5  # polls of a counter before a rank sleeps between polls; seconds of each sleep
COUNTER, PLACE, WHAT = range(3)  # what a rank shows its peers: progress, offset of its data, checksum of what it runs


@dataclass(frozen=True)
class Wait:
    """A wait until rank `peer` has announced `mark`. `words`: what the peer has to do, for errors."""

    peer: int
    mark: int
    words: str


@dataclass(frozen=True)
class Turn:
    """One rank's part in one step.

    `publish`: runs of chunks (first, count) to copy into the region. `arrive`: waits for the senders' messages.
    `receives`: transfers to combine; consecutive ones with the same target are grouped. `free`: waits until receivers
    have taken what this step overwrites. `staged`: the step overwrites chunks that it also sends, so arriving data is
    copied aside first.
    """

    step: int
    publish: list[tuple[int, int]]
    arrive: list[Wait]
    receives: list[list[Transfer]]
    free: list[Wait]
    staged: bool


def ready(step: int) -> int:
    """Return the mark of a rank whose messages of `step` can be read."""
    return 2 * step + 1


def taken(step: int) -> int:
    """Return the mark of a rank that has read all it receives in `step`."""
    return 2 * step + 2


@lru_cache(maxsize=64)
def turns(schedule: Schedule, rank: int, in_place: bool) -> tuple[list[Turn], list[Wait]]:
    """Return the turns of `rank` in `schedule`, and the waits for its last receivers before the run is over.

    `in_place`: the buffer is in the region, so arriving data overwrites chunks there. Otherwise only publishing does.
    """
    rank_turns = []
    lent: dict[int, list[Wait]] = {}  # by chunk of the region: receivers since it was last overwritten
    published: set[int] = set()  # chunks whose current value is in the region
    for part in Part.of(schedule, rank):
        sent = {chunk for transfer in part.sends for chunk in _chunks(transfer.chunk, transfer.count)}
        changed = {chunk for transfer in part.receives for chunk in _chunks(transfer.lands, transfer.count)}
        publish = set() if in_place else sent - published
        published = (published | publish) - changed
        free = _reclaim(lent, publish)
        for transfer, (peer, words) in zip(part.sends, part.leave, strict=True):
            for chunk in _chunks(transfer.chunk, transfer.count):
                lent.setdefault(chunk, []).append(Wait(peer, taken(part.number), words))
        if in_place:
            free = _reclaim(lent, changed)
        staged = in_place and not sent.isdisjoint(changed)
        arrive = [Wait(peer, ready(part.number), words) for peer, words in part.arrive]
        together = [list(group) for _, group in groupby(part.receives, key=lambda t: (t.lands, t.count))]
        rank_turns.append(Turn(part.number, _runs(publish), arrive, together, free, staged))
    return rank_turns, _reclaim(lent, set(lent))


def _reclaim(lent: dict[int, list[Wait]], chunks: set[int]) -> list[Wait]:
    """Return the waits that must end before `chunks` are overwritten: for each peer, the last thing it takes."""
    waits = [wait for chunk in chunks for wait in lent.pop(chunk, [])]
    return list({wait.peer: wait for wait in sorted(waits, key=lambda wait: wait.mark)}.values())


def _chunks(first: int, count: int) -> range:
    return range(first, first + count)


def _runs(chunks: set[int]) -> list[tuple[int, int]]:
    """Return `chunks` as runs of consecutive chunks (first, count)."""
    runs: list[tuple[int, int]] = []
    for chunk in sorted(chunks):
        if runs and sum(runs[-1]) == chunk:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((chunk, 1))
    return runs


class Arena:
    """Memory that the ranks of a group share, `num_bytes` for each: a transport for `execute`.

    Constructing it is a collective call: every rank of `group` does it, with the same `num_bytes`. `execute` works in
    place on tensors from `empty`, which are in the arena. The rest of the region serves to publish ordinary tensors.
    The memory is anonymous: the kernel frees it when the last rank that uses it ends, however it ends.
    Raises `ValueError` if the ranks are on several hosts or `num_bytes` differs, and `NotImplementedError` off Linux.
    """

    def __init__(self, num_bytes: int, group: dist.ProcessGroup | None = None):
        import torch
        import torch.distributed as dist

        group = group or dist.group.WORLD
        assert group is not None, "call dist.init_process_group first"
        self.group = group
        self.rank, self.world_size = group.rank(), group.size()
        self.names = dist.get_process_group_ranks(group)  # global ranks, for errors
        self.num_bytes = -(-num_bytes // PAGE) * PAGE
        memory = _shared_memory(self.world_size, self.num_bytes, group)
        numbers = memoryview(memory)[: self.world_size * PAGE].cast("q").__getitem__
        self.heads = [numbers(slice(rank * PAGE // 8, (rank + 1) * PAGE // 8)) for rank in range(self.world_size)]
        rest = torch.frombuffer(memory, dtype=torch.uint8)[self.world_size * PAGE :]
        self.regions = rest.view(self.world_size, self.num_bytes).unbind()
        self._used = 0  # bytes of this rank's region that tensors from `empty` take
        self._runs = 0
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def empty(self, num_elements: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a flat, uninitialized tensor in this rank's region. Its memory is never reused.

        Raises `ValueError` if the region has too little room left.
        """
        import torch

        dtype = dtype or torch.get_default_dtype()
        place = self._room(num_elements * dtype.itemsize)
        self._used = place + num_elements * dtype.itemsize
        return self.regions[self.rank][place : self._used].view(dtype)

    def run(self, schedule: Schedule, buffer: torch.Tensor, timeout: float) -> None:
        """Run this rank's part of `schedule`, in place on `buffer`. `execute` calls it.

        Raises `ExecutionError` if a peer is not done within `timeout` seconds, or if an earlier run failed.
        """
        if buffer.device.type != "cpu":
            raise ValueError(f"an arena is memory of the host, but this tensor is on {buffer.device}")
        if self._failure:  # another rank may still be inside that run
            raise ExecutionError(f"a run in this arena has failed, make a new one ({self._failure})", [])
        num_bytes = len(buffer) * buffer.element_size()
        place = buffer.data_ptr() - self.regions[self.rank].data_ptr()
        in_place = 0 <= place <= self.num_bytes - num_bytes
        if not in_place:
            place = self._room(num_bytes)
        self._runs += 1
        try:
            _Run(self, schedule, buffer, place, in_place, self._runs, timeout).go()
        except BaseException as error:
            self._failure = error
            raise

    def fence(self) -> None:
        """Order this rank's reads and writes before the fence before those after it.

        Processors reorder reads and writes (ARM does so freely). No access moves down past the release of a lock, none
        moves up past its acquisition, and release and acquisition keep their order.
        """
        self._lock.release()
        self._lock.acquire()

    def _room(self, num_bytes: int) -> int:
        """Return the offset in the region for the next `num_bytes`; raise ValueError if they don't fit."""
        place = -(-self._used // LINE) * LINE
        if place + num_bytes > self.num_bytes:
            free = max(self.num_bytes - place, 0)
            raise ValueError(f"{num_bytes} bytes do not fit: of the {self.num_bytes} for each rank, {free} are free")
        return place


class _Run:
    """One rank's run of one schedule: run `number` of the arena."""

    def __init__(
        self,
        arena: Arena,
        schedule: Schedule,
        buffer: torch.Tensor,
        place: int,
        in_place: bool,
        number: int,
        timeout: float,
    ):
        self.arena, self.buffer, self.timeout = arena, buffer, timeout
        self.bounds = schedule.bounds(len(buffer)).tolist()
        self.turns, self.last = turns(schedule, arena.rank, in_place)
        self.start = number << 32  # counters only grow: this run's marks are above those of all earlier runs
        self.head = arena.heads[arena.rank]
        self.exposed: dict[int, torch.Tensor] = {}  # by rank: its buffer as seen in its region
        what = (schedule.name, schedule.num_chunks, len(buffer), str(buffer.dtype))
        self.head[PLACE], self.head[WHAT] = place, zlib.crc32(repr(what).encode())

    def go(self) -> None:
        for turn in self.turns:
            self._take(turn)
        if self.turns:
            self._wait(self.last, self.turns[-1].step)

    def _take(self, turn: Turn) -> None:
        if not turn.staged:
            self._wait(turn.free, turn.step)
        for run in turn.publish:
            self._shown(self.arena.rank, *run).copy_(self._own(*run))
        self._announce(ready(turn.step))
        self._wait(turn.arrive, turn.step)
        arriving = [[self._shown(t.src, t.chunk, t.count) for t in group] for group in turn.receives]
        if turn.staged:
            arriving = self._set_aside(arriving)
            self._announce(taken(turn.step))
            self._wait(turn.free, turn.step)
        for group, sources in zip(turn.receives, arriving, strict=True):
            target = self._own(group[0].lands, group[0].count)
            if group[0].combine == REDUCE:
                _add(target, sources)
            else:
                target.copy_(sources[0])
        if not turn.staged:
            self._announce(taken(turn.step))

    def _own(self, first: int, count: int) -> torch.Tensor:
        return view(self.buffer, self.bounds, first, count)

    def _shown(self, rank: int, first: int, count: int) -> torch.Tensor:
        """Return chunks from the region of `rank`; raise ExecutionError if it runs something else."""
        if rank not in self.exposed:
            head = self.arena.heads[rank]
            if head[WHAT] != self.head[WHAT]:
                name = self.arena.names[rank]
                what = f"rank {name} runs another schedule, or one on a buffer of another length or dtype"
                raise ExecutionError(f"rank {self.arena.names[self.arena.rank]}: {what}", [name])
            end = head[PLACE] + len(self.buffer) * self.buffer.element_size()
            self.exposed[rank] = self.arena.regions[rank][head[PLACE] : end].view(self.buffer.dtype)
        return view(self.exposed[rank], self.bounds, first, count)

    def _set_aside(self, arriving: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Return private copies of the arriving chunks."""
        rest = scratch(sum(len(source) for group in arriving for source in group), like=self.buffer)
        copies = []
        for group in arriving:
            *pieces, rest = rest.split([*map(len, group), len(rest) - sum(map(len, group))])
            copies.append([piece.copy_(source) for piece, source in zip(pieces, group, strict=True)])
        return copies

    def _announce(self, mark: int) -> None:
        self.arena.fence()  # write the data before the counter that announces it
        self.head[COUNTER] = self.start + mark

    def _wait(self, waits: list[Wait], step: int) -> None:
        """Wait for all `waits`; raise ExecutionError that names those still open when the time is up."""
        heads, deadline, missing = self.arena.heads, None, []
        for wait in waits:
            counter, mark = heads[wait.peer], self.start + wait.mark
            if counter[COUNTER] >= mark:
                continue
            peer = self.arena.names[wait.peer]
            words = f"rank {peer} {wait.words}"  # `process` reads the locals `peer` and `words` of a stuck rank
            deadline = deadline or time.monotonic() + self.timeout
            looks = 0
            while counter[COUNTER] < mark:
                if time.monotonic() > deadline:
                    missing.append((peer, words))
                    break
                looks += 1
                if looks < LOOKS:
                    os.sched_yield()  # ranks share the cores: the peer may be waiting for this one
                else:
                    time.sleep(PAUSE)
        if missing:
            where = f"rank {self.arena.names[self.arena.rank]}, step {step}"
            peers, descriptions = zip(*missing, strict=True)
            message = f"{where}: waited {self.timeout:g} s in vain for {'; '.join(descriptions)}"
            raise ExecutionError(message, list(peers))
        self.arena.fence()  # read the counter before the data that it announces


def _add(target: torch.Tensor, sources: list[torch.Tensor]) -> None:
    """Add all `sources` to `target`, in order, block by block."""
    length = max(BLOCK // target.element_size(), 1)
    pieces = (tensor.split(length) for tensor in (target, *sources))
    for block, *others in zip(*pieces, strict=True):
        for other in others:
            block.add_(other)


def _shared_memory(world_size: int, num_bytes: int, group: dist.ProcessGroup) -> mmap.mmap:
    """Map memory shared by all ranks: a page and `num_bytes` for each, zeroed.

    Raises `ValueError` if ranks are on several hosts or pass different `num_bytes`.
    """
    import torch.distributed as dist

    if not hasattr(os, "memfd_create"):
        raise NotImplementedError("an arena needs Linux, for memfd_create")
    first = group.rank() == 0
    descriptor = os.memfd_create("arena") if first else None
    try:
        gathered: list = [None] * world_size
        dist.all_gather_object(gathered, (_host(), num_bytes, f"/proc/{os.getpid()}/fd/{descriptor}"), group)
        hosts, sizes, paths = zip(*gathered, strict=True)
        if len(set(hosts)) > 1:
            raise ValueError(f"ranks share memory only on one host; these are on {len(set(hosts))}")
        if len(set(sizes)) > 1:
            raise ValueError(f"all ranks must pass the same num_bytes, but got {sorted(set(sizes))}")
        if descriptor is None:
            descriptor = os.open(paths[0], os.O_RDWR)
        os.ftruncate(descriptor, world_size * (PAGE + num_bytes))
        memory = mmap.mmap(descriptor, world_size * (PAGE + num_bytes))
        dist.barrier(group)  # all have mapped it, so rank 0 may close the file
        return memory
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _host() -> tuple[str, str]:
    """Return what identifies this host: two processes that share it can open each other's files under /proc.

    That is the machine's boot id and the namespace of process ids.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read(), os.readlink("/proc/self/ns/pid")
