"""Ranks of one host share memory: what a rank sends, its peers read where it lies. The schedule stays the same.

An **arena** is memory that all ranks of a group have mapped: a region for each rank, which it alone writes and all
read. To send is to let chunks lie in one's own region and to say so; to receive is to add or copy straight from
there. A tensor that lives in the arena needs no more than that. An ordinary tensor stays private: what it sends is
first copied into the region, it is **published**.

One counter for each rank keeps them apart. In every step a rank announces `ready` (what I send can be read), then
`taken` (I have read what I receive). A receiver waits until its sender is ready. A rank that overwrites a chunk in
its region first waits until all to whom it was sent have taken it. Which waits these are follows from the schedule.
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

PAGE = 4096  # bytes: each rank's counter and its region begin on pages of their own
LINE = 64  # bytes: a tensor begins on a line of the cache
BLOCK = 2**20  # bytes: where several peers are added, so much of the sum stays in the cache until all have been
LOOKS, PAUSE = 200, 1e-5  # so often a rank looks in vain before it sleeps between looks, and for how many seconds
COUNTER, PLACE, WHAT = range(3)  # the numbers that a rank shows its peers: how far it is, where its data lies, of what


@dataclass(frozen=True)
class Wait:
    """Until rank `peer` has announced `mark`; `words` say for what."""

    peer: int
    mark: int
    words: str


@dataclass(frozen=True)
class Turn:
    """One rank's part in one step.

    `publish`: runs of chunks (first, count) to copy into the region. `arrive`: whose messages must be ready.
    `receives`: what is combined; neighbours with one target are together. `free`: who must have taken what is
    overwritten. `staged`: chunks that this very step sends are overwritten, so what arrives is set aside at first.
    """

    step: int
    publish: list[tuple[int, int]]
    arrive: list[Wait]
    receives: list[list[Transfer]]
    free: list[Wait]
    staged: bool


def ready(step: int) -> int:
    """The mark of a rank whose messages of `step` can be read."""
    return 2 * step + 1


def taken(step: int) -> int:
    """The mark of a rank that has read all it receives in `step`."""
    return 2 * step + 2


@lru_cache(maxsize=64)
def turns(schedule: Schedule, rank: int, in_place: bool) -> tuple[list[Turn], list[Wait]]:
    """The part of `rank` in `schedule`, and who must have taken what it sent before the run is over.

    `in_place`: the buffer lies in the region, so what arrives overwrites chunks there. Otherwise only publishing does.
    """
    made = []
    lent: dict[int, list[Wait]] = {}  # for each chunk of the region, who was sent it since it was overwritten
    published: set[int] = set()  # chunks whose present value lies in the region
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
        made.append(Turn(part.number, _runs(publish), arrive, together, free, staged))
    return made, _reclaim(lent, set(lent))


def _reclaim(lent: dict[int, list[Wait]], chunks: set[int]) -> list[Wait]:
    """Whom to wait for before `chunks` are overwritten, each peer once: for what it takes last."""
    waits = [wait for chunk in chunks for wait in lent.pop(chunk, [])]
    return list({wait.peer: wait for wait in sorted(waits, key=lambda wait: wait.mark)}.values())


def _chunks(first: int, count: int) -> range:
    return range(first, first + count)


def _runs(chunks: set[int]) -> list[tuple[int, int]]:
    """Chunks as runs of neighbours (first, count)."""
    runs: list[tuple[int, int]] = []
    for chunk in sorted(chunks):
        if runs and sum(runs[-1]) == chunk:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((chunk, 1))
    return runs


class Arena:
    """Memory that the ranks of a group share, `num_bytes` for each: a transport for `execute`.

    Every rank of `group` makes it at the same time and with the same `num_bytes`, as it would call a collective.
    Tensors that `empty` hands out live in it, and `execute` works on them where they are. What they leave free serves
    to publish ordinary tensors. The memory has no name anywhere: it is gone when the last rank that uses it has ended,
    however that ends.
    """

    def __init__(self, num_bytes: int, group: dist.ProcessGroup | None = None):
        import torch
        import torch.distributed as dist

        self.group = group = group or dist.group.WORLD
        self.rank, self.world_size = group.rank(), group.size()
        self.names = dist.get_process_group_ranks(group)  # the number by which everybody knows each rank
        self.num_bytes = -(-num_bytes // PAGE) * PAGE
        memory = _shared_memory(self.world_size, self.num_bytes, group)
        numbers = memoryview(memory)[: self.world_size * PAGE].cast("q").__getitem__
        self.heads = [numbers(slice(rank * PAGE // 8, (rank + 1) * PAGE // 8)) for rank in range(self.world_size)]
        rest = torch.frombuffer(memory, dtype=torch.uint8)[self.world_size * PAGE :]
        self.regions = rest.view(self.world_size, self.num_bytes).unbind()
        self._used = 0  # bytes of this rank's region that tensors live in
        self._runs = 0
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def empty(self, num_elements: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A flat tensor in this rank's region, its values whatever lies there. It is never given back."""
        import torch

        dtype = dtype or torch.get_default_dtype()
        place = self._room(num_elements * dtype.itemsize)
        self._used = place + num_elements * dtype.itemsize
        return self.regions[self.rank][place : self._used].view(dtype)

    def run(self, schedule: Schedule, buffer: torch.Tensor, timeout: float) -> None:
        """This rank's part of `schedule`, in place on `buffer`: what `execute` does with this transport."""
        if buffer.device.type != "cpu":
            raise ValueError(f"an arena is memory of the host, but this tensor is on {buffer.device}")
        if self._failure:  # some rank may still be on its way in that run
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
        """Keep what this rank has read and written before apart from what it reads and writes after.

        Processors move reads and writes past each other (ARM does freely). None passes down over the release of
        a lock, none passes up over its acquisition, and these two keep their order.
        """
        self._lock.release()
        self._lock.acquire()

    def _room(self, num_bytes: int) -> int:
        """Where in the region the next `num_bytes` go; ValueError if so many are not free."""
        place = -(-self._used // LINE) * LINE
        if place + num_bytes > self.num_bytes:
            free = max(self.num_bytes - place, 0)
            raise ValueError(f"{num_bytes} bytes do not fit: of the {self.num_bytes} for each rank, {free} are free")
        return place


class _Run:
    """One rank's run of one schedule in an arena, the `number`-th."""

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
        self.start = number << 32  # a counter only grows: the marks of this run lie above those of all before
        self.head = arena.heads[arena.rank]
        self.exposed: dict[int, torch.Tensor] = {}  # by rank: its buffer as it shows it in its region
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
        """Chunks as `rank` shows them; ExecutionError if it is busy with something else."""
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
        """Copies of what arrives, in memory of this rank's own."""
        rest = scratch(sum(len(source) for group in arriving for source in group), like=self.buffer)
        copies = []
        for group in arriving:
            *pieces, rest = rest.split([*map(len, group), len(rest) - sum(map(len, group))])
            copies.append([piece.copy_(source) for piece, source in zip(pieces, group, strict=True)])
        return copies

    def _announce(self, mark: int) -> None:
        self.arena.fence()  # first the data, then the word that it is there
        self.head[COUNTER] = self.start + mark

    def _wait(self, waits: list[Wait], step: int) -> None:
        """Until all `waits` are over; ExecutionError naming those that are not when the time is up."""
        heads, deadline, missing = self.arena.heads, None, []
        for wait in waits:
            counter, mark = heads[wait.peer], self.start + wait.mark
            if counter[COUNTER] >= mark:
                continue
            peer = self.arena.names[wait.peer]
            words = f"rank {peer} {wait.words}"  # `ranks` reads peer and words when a rank is stuck
            deadline = deadline or time.monotonic() + self.timeout
            looks = 0
            while counter[COUNTER] < mark:
                if time.monotonic() > deadline:
                    missing.append((peer, words))
                    break
                looks += 1
                if looks < LOOKS:
                    os.sched_yield()  # ranks share the cores: the one waited for may be next in the queue
                else:
                    time.sleep(PAUSE)
        if missing:
            where = f"rank {self.arena.names[self.arena.rank]}, step {step}"
            vain = "; ".join(words for _, words in missing)
            raise ExecutionError(
                f"{where}: waited {self.timeout:g} s in vain for {vain}", [peer for peer, _ in missing]
            )
        self.arena.fence()  # first the word that the data is there, then the data


def _add(target: torch.Tensor, sources: list[torch.Tensor]) -> None:
    """Add all `sources` to `target`, in their order, a block at a time."""
    length = max(BLOCK // target.element_size(), 1)
    pieces = (tensor.split(length) for tensor in (target, *sources))
    for block, *others in zip(*pieces, strict=True):
        for other in others:
            block.add_(other)


def _shared_memory(world_size: int, num_bytes: int, group: dist.ProcessGroup) -> mmap.mmap:
    """A page and `num_bytes` for every rank, filled with zeros and mapped by all; ValueError where they cannot be."""
    import torch.distributed as dist

    if not hasattr(os, "memfd_create"):
        raise NotImplementedError("an arena needs Linux: its memory is a file without a name")
    first = group.rank() == 0
    descriptor = os.memfd_create("arena") if first else None
    try:
        told: list = [None] * world_size
        dist.all_gather_object(told, (_host(), num_bytes, f"/proc/{os.getpid()}/fd/{descriptor}"), group)
        hosts, sizes, paths = zip(*told, strict=True)
        if len(set(hosts)) > 1:
            raise ValueError(f"ranks share memory only on one host; these are on {len(set(hosts))}")
        if len(set(sizes)) > 1:
            raise ValueError(f"all ranks ask for the same number of bytes, but here it is {sorted(set(sizes))}")
        descriptor = descriptor if first else os.open(paths[0], os.O_RDWR)
        os.ftruncate(descriptor, world_size * (PAGE + num_bytes))
        memory = mmap.mmap(descriptor, world_size * (PAGE + num_bytes))
        dist.barrier(group)  # all have it
        return memory
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _host() -> tuple[str, str]:
    """What two processes have in common if each can open what the other has open: the machine, and its process ids."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read(), os.readlink("/proc/self/ns/pid")
