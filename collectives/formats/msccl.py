"""MSCCL's XML format for algorithms, which Microsoft's fork of NCCL runs on GPUs.

Each `gpu` in the file has threadblocks, `tb`, which run concurrently. A threadblock sends to at most one peer and
receives from at most one, and runs its `step`s in order:

| type | meaning |
|---|---|
| `s` | send chunks to the peer |
| `r` | receive chunks and store them |
| `rrc` | receive chunks, add them to the local chunks and store the sum |
| `rcs`, `rrcs` | like `r` and `rrc`, and send on what was stored |
| `rrs` | receive, add and send on, without storing the sum |
| `nop` | only wait |

Messages of a connection arrive in the order in which they were sent. `depid` and `deps` name a step of another
threadblock of the same gpu that must finish first. `nop`s hold the extra waits of a step that has several. `hasdep`
marks a step that another step waits for. Chunks are in the buffers `i` (input), `o` (output) and `s` (scratch). In an
`inplace` algorithm, input and output share memory; they are the one buffer of a rank in our schedules.

Sources: microsoft/msccl-tools, msccl/language/ir.py, which writes the format; microsoft/msccl, src/graph/topo.cc and
src/collectives/device/msccl_interpreter.h, which read and run it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from ..schedule import COPY, REDUCE, Schedule, ScheduleError, Step, Transfer

# Our collectives that MSCCL supports: MSCCL's name for each, and the buffer that holds all chunks in place.
KNOWN = {
    "all_reduce": ("allreduce", "i"),
    "all_gather": ("allgather", "o"),
    "reduce_scatter": ("reduce_scatter", "i"),
    "all_to_all": ("alltoall", "i"),
}
CUSTOM = "custom", "i"
PROTOCOLS = "Simple", "LL", "LL128"

# MSCCL's own limits.
MOST_STEPS = 256  # steps of a threadblock
MOST_BLOCKS = 32  # threadblocks of a gpu on one channel
MOST_COUNT = 71  # chunks in one message

# Our limits, which keep the time to read an untrusted file short.
MOST_LETTERS = 200  # characters of a name
MOST_TRANSFERS = 2**18
MOST_CHARACTERS = 2**25
MOST_SLOTS = 2**20  # ranks x chunks
MOST_CLOCKS = 2**25  # steps x threadblocks


def to_msccl_xml(schedule: Schedule, proto: str = "Simple") -> str:
    """Return `schedule` as the XML of an in-place MSCCL algorithm.

    `proto`: NCCL's protocol, "Simple", "LL" or "LL128".

    The algorithm doesn't run step by step. A threadblock waits only for its peers, and for steps of other threadblocks
    that write what it reads or overwrites, or that read what it overwrites. The file can't deadlock, because no
    connection ever has to hold more than one message that its peer hasn't received.

    A collective that MSCCL has no name for becomes "custom".

    Raises `ValueError` for an unknown protocol. Raises `ScheduleError` if the schedule is not valid or MSCCL can't run
    it: its chunks have uneven lengths, or it exceeds MSCCL's limits on steps, threadblocks or chunks in a message.
    """
    if proto not in PROTOCOLS:
        raise ValueError(f"proto must be one of {', '.join(PROTOCOLS)}, not {proto!r}")
    if schedule.lengths is not None:
        raise ScheduleError(f"{schedule.name}: MSCCL cuts buffers evenly; a schedule with `lengths` can't be written")
    if any(total > MOST_TRANSFERS for total in accumulate(len(step) for step in schedule)):
        raise ScheduleError(f"{schedule.name} has more than {MOST_TRANSFERS:,} transfers, the limit for a file")
    schedule.validate()
    coll, buffer = KNOWN.get(schedule.collective or "", CUSTOM)
    algo = {"name": _line(schedule.name), "proto": proto, "nchannels": 1, "nchunksperloop": schedule.num_chunks}
    algo |= {"ngpus": schedule.world_size, "coll": coll, "inplace": 1}
    root = _element("algo", algo)
    for rank, blocks in enumerate(_compiled(schedule)):
        sizes = {f"{each}_chunks": schedule.num_chunks if each == buffer else 0 for each in "ios"}
        gpu = _element("gpu", {"id": rank} | sizes, root)
        for block in blocks:
            _write(block, buffer, gpu)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>") + "\n"


@dataclass(eq=False)
class _Operation:
    """A step to write: it sends or receives `count` chunks, starting at `first` here and at `there` on the peer."""

    type: str
    first: int
    there: int
    count: int
    needs: list[_Operation] = field(default_factory=list)  # steps of the same gpu that must finish first
    block: _Block = field(init=False)
    place: int = 0  # in its threadblock, without nops
    number: int = 0  # in its threadblock, with nops
    awaited: bool = False


@dataclass(eq=False)
class _Block:
    """A threadblock that sends to the peer `send` and receives from the peer `recv`; -1 means no peer."""

    send: int
    recv: int
    number: int = 0
    operations: list[_Operation] = field(default_factory=list)

    def add(self, operation: _Operation) -> None:
        operation.block, operation.place = self, len(self.operations)
        self.operations.append(operation)


def _compiled(schedule: Schedule) -> list[list[_Block]]:
    """Return the threadblocks of every gpu."""
    turns = [turn for number, step in enumerate(schedule) for turn in _turns(step, f"{schedule.name}, step {number}")]
    sending, receiving = _blocks(schedule.world_size, [t for turn in turns for t in turn])
    last_write: dict[tuple[int, int], _Operation] = {}
    reads: dict[tuple[int, int], list[_Operation]] = defaultdict(list)  # since the last write
    for turn in turns:
        for t in turn:
            send = _Operation("s", t.chunk, t.lands, t.count)
            for slot in _slots(t.src, t.chunk, t.count):
                send.needs += [last_write[slot]] if slot in last_write else []
                reads[slot].append(send)
            sending[t.src, t.dst].add(send)
        for t in turn:
            receive = _Operation("rrc" if t.combine == REDUCE else "r", t.lands, t.chunk, t.count)
            for slot in _slots(t.dst, t.lands, t.count):
                receive.needs += reads.pop(slot, []) + ([last_write[slot]] if slot in last_write else [])
                last_write[slot] = receive
            receiving[t.src, t.dst].add(receive)
    gpus: list[list[_Block]] = [[] for _ in range(schedule.world_size)]
    for rank, blocks in enumerate(gpus):
        mine = [sending[pair] for pair in sending if pair[0] == rank]
        mine += [receiving[pair] for pair in receiving if pair[1] == rank]
        blocks += sorted(dict.fromkeys(mine), key=lambda block: (block.send, block.recv))
        for number, block in enumerate(blocks):
            block.number = number
        for block in blocks:
            _settle(block)
        _check_limits(blocks, f"{schedule.name}, rank {rank}")
    return gpus


def _turns(step: Step, where: str) -> Iterator[list[Transfer]]:
    """Yield the transfers of `step` in sequential turns, each with at most one message per pair of ranks.

    In a turn every rank sends and then receives, so no message waits in its connection behind another one. A run of
    several chunks may fill a connection. If the step overwrites chunks that it sends, such a run could block, so each
    chunk becomes a message of its own.
    """
    if step.count is not None and _overwrites_what_it_sends(step):
        step = step.singles
    turns: list[list[Transfer]] = []
    messages: Counter[tuple[int, int]] = Counter()  # by (src, dst)
    for t in step:
        number = messages[t.src, t.dst]
        messages[t.src, t.dst] += 1
        turns += [[]] if number == len(turns) else []
        turns[number].append(t)
    written: set[tuple[int, int]] = set()
    for turn in turns:
        for t in turn:
            if written & set(_slots(t.src, t.chunk, t.count)):
                raise ScheduleError(
                    f"{where}: an earlier message overwrites {t} on rank {t.src}, so MSCCL would need scratch memory; "
                    "split the step in two"
                )
        written |= {slot for t in turn for slot in _slots(t.dst, t.lands, t.count)}
    yield from turns


def _overwrites_what_it_sends(step: Step) -> bool:
    singles = step.singles
    reads = set(zip(singles.src.tolist(), singles.chunk.tolist(), strict=True))
    return any(slot in reads for slot in zip(singles.dst.tolist(), singles.lands.tolist(), strict=True))


def _blocks(world_size: int, transfers: list[Transfer]) -> tuple[dict, dict]:
    """Return the sending threadblock and the receiving one for each pair (src, dst), as two dictionaries.

    One threadblock both sends and receives if that is safe: it must never have to send a run of several chunks, which
    may not fit in its connection, before it can receive.
    """
    wide = {(t.src, t.dst) for t in transfers if t.count > 1}
    pairs = dict.fromkeys((t.src, t.dst) for t in transfers)
    sending, receiving = {}, {}
    for rank in range(world_size):
        sends = [pair for pair in pairs if pair[0] == rank]
        receives = [pair for pair in pairs if pair[1] == rank]
        free = {src for src, dst in receives if (src, dst) not in wide}
        # dst → the src that its threadblock receives from: the same peer if possible, else any free one
        source = {dst: dst for _, dst in sends if dst in free and (rank, dst) not in wide}
        free -= set(source)
        for _, dst in sends:
            if dst not in source and free and (rank, dst) not in wide:
                source[dst] = min(free)
                free.remove(source[dst])
        for pair in sends:
            sending[pair] = _Block(pair[1], source.get(pair[1], -1))
        both = {src: sending[rank, dst] for dst, src in source.items()}
        for pair in receives:
            receiving[pair] = both.get(pair[0]) or _Block(-1, pair[0])
    return sending, receiving


def _settle(block: _Block) -> None:
    """Drop the waits that earlier waits of the threadblock already cover, and number its operations and nops."""
    waited: dict[_Block, int] = {block: len(block.operations)}  # threadblock → the last place already waited for
    number = 0
    for operation in block.operations:
        latest: dict[_Block, _Operation] = {}
        for need in operation.needs:
            if need.place > waited.get(need.block, -1):
                latest[need.block] = max(need, latest.get(need.block, need), key=lambda each: each.place)
        waited |= {each: need.place for each, need in latest.items()}
        operation.needs = list(latest.values())
        for need in operation.needs:
            need.awaited = True
        operation.number = number + max(len(operation.needs) - 1, 0)
        number = operation.number + 1


def _check_limits(blocks: list[_Block], where: str) -> None:
    if len(blocks) > MOST_BLOCKS:
        raise ScheduleError(f"{where} needs {len(blocks)} threadblocks; MSCCL's limit is {MOST_BLOCKS} on a channel")
    for operation in (operation for block in blocks for operation in block.operations):
        if operation.number >= MOST_STEPS:
            raise ScheduleError(f"{where}: a threadblock has more than {MOST_STEPS} steps, MSCCL's limit")
        if operation.count > MOST_COUNT:
            raise ScheduleError(f"{where}: a message has {operation.count} chunks; MSCCL's limit is {MOST_COUNT}")


def _write(block: _Block, buffer: str, gpu: ElementTree.Element) -> None:
    tb = _element("tb", {"id": block.number, "send": block.send, "recv": block.recv, "chan": 0}, gpu)
    for operation in block.operations:
        waits = [{"depid": need.block.number, "deps": need.number} for need in operation.needs]
        waits = waits or [{"depid": -1, "deps": -1}]
        nothing = {"type": "nop", "srcbuf": "i", "srcoff": -1, "dstbuf": "o", "dstoff": -1, "cnt": 0}
        first = operation.number - len(waits) + 1
        for s, wait in enumerate(waits[:-1], first):
            _element("step", {"s": s} | nothing | wait | {"hasdep": 0}, tb)
        src, dst = {
            "s": (operation.first, operation.there),
            "r": (operation.there, operation.first),
            "rrc": (operation.first, operation.first),  # `src` names the local chunks to add to
        }[operation.type]
        moves = {"srcbuf": buffer, "srcoff": src, "dstbuf": buffer, "dstoff": dst, "cnt": operation.count}
        step = {"s": operation.number, "type": operation.type} | moves | waits[-1]
        _element("step", step | {"hasdep": int(operation.awaited)}, tb)


def _element(tag: str, attributes: dict, parent: ElementTree.Element | None = None) -> ElementTree.Element:
    element = ElementTree.Element(tag, {name: str(value) for name, value in attributes.items()})
    if parent is not None:
        parent.append(element)
    return element


def _slots(rank: int, first: int, count: int) -> Iterator[tuple[int, int]]:
    return ((rank, chunk) for chunk in range(first, first + count))


def from_msccl_xml(text: str) -> Schedule:
    """Return the schedule of an in-place MSCCL algorithm, in as few steps as its data dependencies allow.

    A message runs as soon as its data is there and what it overwrites is no longer needed. So a schedule that
    `to_msccl_xml` wrote may come back with fewer steps, but with the same effect on the buffers. `collective` is taken
    from the file; it is None for a rooted or "custom" collective. The file has no phases.

    Raises `ScheduleError` with the element and the fault:

    - the file is not XML, or exceeds a limit
    - a step type is unknown, or has no counterpart in a schedule: `cpy`, `re` and scratch memory move data within a
      rank
    - a gpu or threadblock is missing, or a chunk is out of range
    - a send has no receive, or a receive no send
    - steps wait for each other in a cycle
    - two steps use the same chunk, at least one of them writes it, and neither has to wait for the other
    """
    file = _File(_parsed(text))
    order = _in_order(file.steps)
    _check_races(file, order)
    messages = [step for step in order if step.receives]
    level = _levels(order)
    steps: list[list[Transfer]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for step in messages:
        source = step.source
        assert source is not None  # `_File` matches every receive with its send
        into = None if source.first == step.first else step.first
        combine = REDUCE if step.adds else COPY
        steps[level[step]].append(Transfer(source.rank, step.rank, source.first, combine, into, step.count))
    steps = [sorted(step, key=lambda t: t[:3]) for step in steps]
    schedule = Schedule.of(file.world_size, file.num_chunks, steps, name=file.name, collective=file.collective)
    _check_not_stored(order, schedule)
    return schedule


@dataclass(eq=False)
class _Read:
    """A step in the file: it uses `count` chunks, starting at `first`."""

    type: str
    rank: int
    block: int  # the number of its threadblock, counted over all gpus
    place: int  # in its threadblock
    where: str
    first: int = 0
    count: int = 0
    before: list[_Read] = field(default_factory=list)  # steps of its gpu that finish first
    source: _Read | None = None  # the peer's step that sends what it receives
    waits: list[tuple[int, int]] = field(default_factory=list)  # (threadblock of the gpu, step)
    awaited: bool = False

    @property
    def sends(self) -> bool:
        return self.type in ("s", "rcs", "rrs", "rrcs")

    @property
    def receives(self) -> bool:
        return self.type in ("r", "rcs") or self.adds

    @property
    def adds(self) -> bool:
        return self.type in ("rrc", "rrs", "rrcs")


class _Reader(NamedTuple):
    """A reader of one element's attributes; its error messages begin with `where`."""

    element: ElementTree.Element
    where: str

    def text(self, name: str, known: tuple[str, ...] | None = None) -> str:
        value = self.element.get(name)
        if value is None:
            raise ScheduleError(f"{self.where} has no attribute {name!r}")
        if known and value not in known:
            raise ScheduleError(f"{self.where}: {name} is {_short(value)}; it must be one of {', '.join(known)}")
        return value

    def whole(self, name: str, least: int, most: int) -> int:
        value = self.text(name)
        if not re.fullmatch(r"-?[0-9]{1,9}", value) or not least <= int(value) <= most:
            raise ScheduleError(
                f"{self.where}: {name} is {_short(value)}; it must be a whole number from {least} to {most}"
            )
        return int(value)

    def parts(self, tag: str, what: str, least: int, most: int) -> Iterator[_Reader]:
        """Yield the child elements; raise `ScheduleError` if they are too few, too many, or not all `tag`s."""
        if not least <= len(self.element) <= most:
            raise ScheduleError(f"{self.where} has {len(self.element)} {what}; it must have {least} to {most}")
        for part in self.element:
            if part.tag != tag:
                raise ScheduleError(f"{self.where} has an element {_short(part.tag)}; it may only have {tag!r}")
            yield _Reader(part, self.where)


class _File:
    """The contents of a file: its sizes, and its `steps`, linked by `before` and `source`."""

    def __init__(self, root: ElementTree.Element):
        algo = _Reader(root, "algo")
        if root.tag != "algo":
            raise ScheduleError(f"the file is a {_short(root.tag)}; an algorithm of MSCCL is an 'algo'")
        self.name = _line(algo.text("name"))
        self.world_size = algo.whole("ngpus", 1, MOST_SLOTS)
        self.num_chunks = algo.whole("nchunksperloop", 1, MOST_SLOTS)
        if self.world_size * self.num_chunks > MOST_SLOTS:
            size = f"{self.world_size:,} gpus x {self.num_chunks:,} chunks"
            raise ScheduleError(f"algo has {size}; the limit is {MOST_SLOTS:,} slots")
        ours = {theirs: name for name, (theirs, _) in KNOWN.items()}
        coll = algo.text("coll", (*ours, "broadcast", "reduce", "custom"))
        self.collective = ours.get(coll)  # None for broadcast and reduce: the file doesn't name the root
        algo.whole("inplace", 0, 1)
        if algo.text("inplace") != "1":
            raise ScheduleError("algo: inplace is 0; a rank here has one buffer, so inplace must be 1")
        self.share = {"allgather": ("i", "o"), "reduce_scatter": ("o", "i")}.get(coll)
        if self.share and self.num_chunks % self.world_size:
            raise ScheduleError(f"algo: {self.num_chunks} chunks don't divide evenly among {self.world_size} gpus")
        self.steps: list[_Read] = []
        self.num_blocks = 0
        self.sends: dict[tuple[int, int, int], list[_Read]] = {}  # by src, dst and channel
        self.receives: dict[tuple[int, int, int], list[_Read]] = {}
        seen = set()
        for gpu in algo.parts("gpu", "gpus", 0, self.world_size):
            rank = gpu.whole("id", 0, self.world_size - 1)
            if rank in seen:
                raise ScheduleError(f"algo: there are two gpus {rank}")
            seen.add(rank)
            self._read_gpu(gpu._replace(where=f"gpu {rank}"), rank)
        if missing := set(range(self.world_size)) - seen:
            raise ScheduleError(f"algo: gpu {min(missing)} is missing, of {self.world_size}")
        self._join()

    def _read_gpu(self, gpu: _Reader, rank: int) -> None:
        chunks = {buffer: gpu.whole(f"{buffer}_chunks", 0, MOST_SLOTS) for buffer in "ios"}
        blocks: dict[int, list[_Read]] = {}
        for tb in gpu.parts("tb", "threadblocks", 0, MOST_STEPS):
            number = tb.whole("id", 0, len(gpu.element) - 1)
            if number in blocks:
                raise ScheduleError(f"gpu {rank}: there are two threadblocks {number}")
            blocks[number] = self._read_block(tb._replace(where=f"gpu {rank}, tb {number}"), rank, chunks)
        for steps in blocks.values():
            for step in steps:
                for block, place in step.waits:
                    needed = blocks.get(block, [])[place : place + 1]
                    if not needed:
                        raise ScheduleError(f"{step.where} waits for step {place} of tb {block}, which doesn't exist")
                    if not needed[0].awaited:
                        raise ScheduleError(f"{step.where} waits for {needed[0].where}, whose hasdep is not 1")
                    step.before += needed

    def _read_block(self, tb: _Reader, rank: int, chunks: dict[str, int]) -> list[_Read]:
        send, recv = (tb.whole(name, -1, self.world_size - 1) for name in ("send", "recv"))
        channel = tb.whole("chan", -1, MOST_BLOCKS)
        if rank in (send, recv):
            raise ScheduleError(f"{tb.where} names its own gpu as a peer")
        block, self.num_blocks = self.num_blocks, self.num_blocks + 1
        steps: list[_Read] = []
        for place, element in enumerate(tb.parts("step", "steps", 0, MOST_STEPS)):
            reader = element._replace(where=f"{tb.where}, step {place}")
            if reader.whole("s", 0, MOST_STEPS - 1) != place:
                raise ScheduleError(
                    f"{tb.where}: steps must be numbered 0, 1, ...; step {place} has s={reader.text('s')}"
                )
            step = self._read_step(reader, rank, block, place, chunks)
            step.before += steps[-1:]
            steps.append(step)
        for connections, peer, messages, verb, preposition in (
            (self.sends, send, [step for step in steps if step.sends], "sends", "to"),
            (self.receives, recv, [step for step in steps if step.receives], "receives", "from"),
        ):
            if messages and peer < 0:
                raise ScheduleError(f"{messages[0].where} {verb}, but its tb names no peer")
            pair = (rank, peer, channel) if connections is self.sends else (peer, rank, channel)
            if peer >= 0 and pair in connections:
                already = f"another threadblock already {verb} {preposition} gpu {peer} on channel {channel}"
                raise ScheduleError(f"{tb.where}: {already}")
            connections |= {pair: messages} if peer >= 0 else {}
        self.steps += steps
        return steps

    def _read_step(self, step: _Reader, rank: int, block: int, place: int, chunks: dict[str, int]) -> _Read:
        kind = step.text("type")
        if kind in ("cpy", "re", "ra"):
            raise ScheduleError(f"{step.where}: {kind!r} moves data within a gpu; a transfer connects two ranks")
        kind = step.text("type", ("s", "r", "rrc", "rcs", "rrs", "rrcs", "nop"))
        parsed = _Read(kind, rank, block, place, step.where)
        if (depends := step.whole("depid", -1, MOST_STEPS)) >= 0:
            parsed.waits.append((depends, step.whole("deps", 0, MOST_STEPS - 1)))
        parsed.awaited = step.whole("hasdep", 0, 1) == 1
        if kind == "nop":
            return parsed
        parsed.count = step.whole("cnt", 1, MOST_COUNT)
        src, dst = (self._slot(step, side, rank, chunks, parsed.count) for side in self._sides(kind))
        if src != dst:
            raise ScheduleError(f"{step.where} adds to one chunk and stores in another; a transfer can't do that")
        parsed.first = src
        return parsed

    @staticmethod
    def _sides(kind: str) -> tuple[str, str]:
        """Return which of "src" and "dst" name chunks of the gpu itself: both, or one of them twice."""
        return {"s": ("src", "src"), "r": ("dst", "dst"), "rcs": ("dst", "dst")}.get(kind, ("src", "dst"))

    def _slot(self, step: _Reader, side: str, rank: int, chunks: dict[str, int], count: int) -> int:
        """Return the chunk of the rank's one buffer for an offset in a buffer of the file."""
        buffer = step.text(f"{side}buf", ("i", "o", "s"))
        if buffer == "s":
            raise ScheduleError(f"{step.where} uses scratch memory; a rank here has only one buffer")
        offset = step.whole(f"{side}off", 0, MOST_SLOTS)
        base = 0
        if self.share and buffer == self.share[0]:  # in place, the smaller buffer is this rank's shard of the larger
            base = rank * (self.num_chunks // self.world_size)
        if offset + count > chunks[buffer] or base + offset + count > self.num_chunks:
            last, size = offset + count - 1, chunks[buffer]
            raise ScheduleError(
                f"{step.where}: chunks {offset} to {last} are out of range; buffer {buffer!r} has {size} chunks"
            )
        return base + offset

    def _join(self) -> None:
        """Match every receive with its send."""
        for src, dst, channel in [*self.sends, *self.receives]:
            sends, receives = (each.get((src, dst, channel), []) for each in (self.sends, self.receives))
            for unmatched in sends[len(receives) :][:1]:
                raise ScheduleError(f"{unmatched.where} sends to gpu {dst}, which has no matching receive")
            for unmatched in receives[len(sends) :][:1]:
                raise ScheduleError(f"{unmatched.where} receives from gpu {src}, which has no matching send")
            for send, receive in zip(sends, receives, strict=True):
                if send.count != receive.count:
                    raise ScheduleError(
                        f"{receive.where} receives {receive.count} chunks, but {send.where} sends {send.count}"
                    )
                receive.source = send


def _parsed(text: str) -> ElementTree.Element:
    if len(text) > MOST_CHARACTERS:
        raise ScheduleError(f"the file has {len(text):,} characters; the limit is {MOST_CHARACTERS:,}")
    # With entities, a small file can expand to a huge one or include other files.
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ScheduleError("the file declares a DOCTYPE or an ENTITY; remove it, an algorithm of MSCCL needs neither")
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise ScheduleError(f"this is not XML: {error}") from None


def _predecessors(step: _Read) -> list[_Read]:
    """Return the steps that must finish before `step`, and the send that it receives from."""
    return step.before + ([step.source] if step.source else [])


def _in_order(steps: list[_Read]) -> list[_Read]:
    """Return the steps in an order in which they can run; raise `ScheduleError` if there is none."""
    waiting = {step: len(_predecessors(step)) for step in steps}
    followers = defaultdict(list)
    for step in steps:
        for earlier in _predecessors(step):
            followers[earlier].append(step)
    ready = deque(step for step in steps if not waiting[step])
    order = []
    while ready:
        order.append(step := ready.popleft())
        for follower in followers[step]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    if len(order) < len(steps):
        step = next(step for step in steps if waiting[step])
        path: dict[_Read, int] = {}
        while step not in path:  # every waiting step waits for another waiting step, so this finds a cycle
            path[step] = len(path)
            step = next(earlier for earlier in _predecessors(step) if waiting[earlier])
        cycle = " → ".join(each.where for each in [*list(path)[path[step] :], step][:5])
        raise ScheduleError(f"deadlock: each waits for the next: {cycle}")
    return order


def _check_races(file: _File, order: list[_Read]) -> None:
    """Raise `ScheduleError` if two steps use one chunk, at least one writes it, and neither must wait for the other."""
    if len(order) * file.num_blocks > MOST_CLOCKS:
        size = f"{len(order):,} steps and {file.num_blocks:,} threadblocks"
        raise ScheduleError(f"algo has {size}; the limit is {MOST_CLOCKS:,} for their product")
    # Vector clocks, int [num_blocks]: the last place of each threadblock that must be done before a step.
    clocks: dict[_Read, np.ndarray] = {}
    last_write: dict[tuple[int, int], _Read] = {}
    reads: dict[tuple[int, int], list[_Read]] = defaultdict(list)
    for step in order:
        clock = np.full(file.num_blocks, -1, dtype=np.int16)
        for earlier in _predecessors(step):
            np.maximum(clock, clocks[earlier], out=clock)
            clock[earlier.block] = max(clock[earlier.block], earlier.place)
        clocks[step] = clock
        for slot in _slots(step.rank, step.first, step.count):
            rivals = reads.pop(slot, []) if step.receives else []
            rivals += [last_write[slot]] if slot in last_write else []
            for rival in rivals:
                if clock[rival.block] < rival.place:
                    raise ScheduleError(f"{rival.where} and {step.where} both use chunk {slot[1]}, in no fixed order")
            if step.receives:
                last_write[slot] = step
            else:
                reads[slot].append(step)


def _levels(order: list[_Read]) -> dict[_Read, int]:
    """Return, for each receiving step, the step of the schedule in which its message runs.

    A message runs after those whose result it carries or overwrites, and not before those that carry what it
    overwrites.
    """
    received_as = {step.source: step for step in order if step.receives}
    # message → later messages, and the least number of schedule steps between the two
    later: dict[_Read, dict[_Read, int]] = {step: {} for step in received_as.values()}
    last_write: dict[tuple[int, int], _Read] = {}
    reads: dict[tuple[int, int], list[_Read]] = defaultdict(list)

    def keep(first: _Read, then: _Read, apart: int) -> None:
        later[first][then] = max(apart, later[first].get(then, 0))

    for step in order:
        for slot in _slots(step.rank, step.first, step.count):
            last = last_write.get(slot)
            if step.receives:
                if last is not None:
                    keep(last, step, 0 if last.adds and step.adds else 1)
                for message in reads.pop(slot, []):
                    keep(message, step, 0)
                last = last_write[slot] = step
            if step.sends:
                if last is not None:
                    keep(last, received_as[step], 1)
                reads[slot].append(received_as[step])
    level = dict.fromkeys(later, 0)
    changed, patience = deque(later), 1000 + 20 * sum(map(len, later.values()))
    while changed:
        message = changed.popleft()
        for other, apart in later[message].items():
            if level[other] < level[message] + apart:
                level[other] = level[message] + apart
                changed.append(other)
                patience -= 1
        if patience < 0:
            raise ScheduleError(f"{message.where}: its message is overwritten at its source before it can be received")
    return level


def _check_not_stored(order: list[_Read], schedule: Schedule) -> None:
    """Raise `ScheduleError` if the algorithm depends on `rrs` not storing its sum: a transfer always stores it."""
    unstored: dict[tuple[int, int], _Read] = {}
    for step in order:
        for slot in _slots(step.rank, step.first, step.count):
            if slot in unstored and step.type not in ("r", "rcs"):
                fault = f"but {unstored[slot].where} (rrs) doesn't store its sum"
                raise ScheduleError(f"{step.where} uses chunk {slot[1]}, {fault}")
            unstored.pop(slot, None)
            if step.type == "rrs":
                unstored[slot] = step
    share = schedule.num_chunks // schedule.world_size
    for (rank, chunk), step in unstored.items():
        if schedule.collective != "reduce_scatter" or chunk // share == rank:
            raise ScheduleError(f"{step.where}: rrs doesn't store its sum, but chunk {chunk} is part of the result")


def _line(name: str) -> str:
    """Return `name` as one printable line, cut to `MOST_LETTERS` characters."""
    return "".join(letter if letter.isprintable() else " " for letter in name)[:MOST_LETTERS]


def _short(value: str) -> str:
    return repr(value if len(value) <= 60 else f"{value[:57]}...")
