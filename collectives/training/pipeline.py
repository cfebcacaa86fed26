"""Pipeline schedules as data: for each rank, an ordered list of operations.

    schedule = one_f_one_b(4, 8)           # 4 ranks, 8 micro-batches
    print(schedule)                        # a picture: one row per rank, one dot per idle time unit
    check(schedule)                        # PipelineError names the operation that waits, its rank, and what it needs
    cost = price(schedule, 1, 1, 1)        # cost.seconds, cost.bubble_over_total, draw(cost.timeline)
    peak_activations(schedule)             # by rank

The model is cut into **stages** and the batch into **micro-batches**. An operation is F, the forward of one stage for
one micro-batch, or B, its whole backward. A schedule can split B in two: I computes the gradient of the stage's input,
which the previous stage waits for; W computes the gradient of the stage's weights, which no other rank needs. The
letters are those of torch.distributed.pipelining. The zero-bubble papers call our I "B"; DeepSeek uses B as we do.

A **route** is a micro-batch's path through the ranks: the rank of stage 0, of stage 1, and so on. Most schedules have
one route. DualPipe has two, one from each end, so two ranks hold a copy of each stage.

This module only describes schedules. `pipeline_run` executes them on real ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..ranks import find_cycle
from .timeline import Span, Task, Timeline, run

F, B, I, W = "F", "B", "I", "W"  # noqa: E741 - torch's letters
KINDS = {F: "forward", B: "backward", I: "backward_input", W: "backward_weights"}
"""The `Timeline` kind of each operation letter."""

MOST_OPERATIONS = 2**16  # per text: bounds the time that `from_text` spends on untrusted input
_TOKEN = re.compile(r"(\d{1,4})?([FBIW])(\d{1,5})")
_HOW = "write F, B, I or W and a micro-batch (F0), with the stage first if the rank has several stages (1F0)"


class PipelineError(ValueError):
    """A schedule that can't run, or text that isn't a schedule. The message says where and what to do."""


class Operation(NamedTuple):
    """One unit of a rank's work: `kind` (F, B, I or W) of one stage for one micro-batch. It prints as "1F0"."""

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True)
class PipelineSchedule:
    """A pipeline schedule. `orders[rank]`: its operations, in order. `routes`: per route, the rank of each stage.

    Several routes share the micro-batches equally: the first ones take the first route, and so on. `paired`: forwards
    that run fused with the operation after them, DeepSeek's F&B. A pair starts when both inputs are there, and both
    results are ready when it ends.

    Raises `PipelineError` for a kind, stage, micro-batch or route that doesn't exist. `check` says whether the schedule
    can run.
    """

    orders: tuple[tuple[Operation, ...], ...]
    routes: tuple[tuple[int, ...], ...]
    num_micro_batches: int
    paired: frozenset[Operation] = frozenset()
    name: str = field(default="schedule", compare=False)

    def __post_init__(self):
        if self.num_micro_batches < 1:
            raise PipelineError(f"{self.name}: needs at least 1 micro-batch, not {self.num_micro_batches}")
        lengths = {len(route) for route in self.routes}
        if len(lengths) != 1 or 0 in lengths or not all(0 <= rank < self.world_size for rank in sum(self.routes, ())):
            ranks = f"0 to {self.world_size - 1}"
            raise PipelineError(f"{self.name}: a route gives each stage a rank from {ranks}, not {self.routes}")
        for rank, order in enumerate(self.orders):
            for operation in order:
                if fault := self._fault(operation):
                    raise PipelineError(f"{self.name}, rank {rank}: {operation} {fault}")

    def _fault(self, operation: Operation) -> str:
        if operation.kind not in KINDS:
            return f"is not an operation: its kind must be one of {', '.join(KINDS)}"
        if not 0 <= operation.stage < self.num_stages:
            return f"has a stage that doesn't exist: stages are 0 to {self.num_stages - 1}"
        if not 0 <= operation.micro_batch < self.num_micro_batches:
            return f"has a micro-batch that doesn't exist: micro-batches are 0 to {self.num_micro_batches - 1}"
        return ""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.orders)

    @property
    def num_stages(self) -> int:
        """The number of stages that the model is cut into."""
        return len(self.routes[0])

    def rank_of(self, operation: Operation) -> int:
        """Return the rank that runs `operation`: the one that has its stage on its micro-batch's route."""
        return self.routes[operation.micro_batch * len(self.routes) // self.num_micro_batches][operation.stage]

    def stages_of(self, rank: int) -> list[int]:
        """Return the stages whose weights `rank` holds, in order."""
        return sorted({stage for route in self.routes for stage, place in enumerate(route) if place == rank})

    @cached_property
    def position(self) -> dict[Operation, int]:
        """The index of each operation in its rank's list."""
        return {operation: place for order in self.orders for place, operation in enumerate(order)}

    @cached_property
    def cells(self) -> list[list[tuple[Operation, ...]]]:
        """By rank: its operations in order, each a tuple of one, or of the two in a pair."""
        rows = []
        for order in self.orders:
            row, places = [], iter(order)
            for operation in places:
                pair = [next(places, None)] if operation in self.paired else []
                row.append((operation, *filter(None, pair)))
            rows.append(row)
        return rows

    def backward(self, stage: int, micro_batch: int) -> Operation:
        """Return the operation that computes the gradient of this stage's input: I if the schedule splits B, else B."""
        split = Operation(I, stage, micro_batch)
        return split if split in self.position else split._replace(kind=B)

    def needs(self, operation: Operation) -> list[Operation]:
        """Return the operations whose results `operation` takes, another stage's first."""
        kind, stage, micro_batch = operation
        if kind == W:
            return [Operation(I, stage, micro_batch)]
        if kind == F:
            return [Operation(F, stage - 1, micro_batch)] if stage else []
        after = [self.backward(stage + 1, micro_batch)] if stage + 1 < self.num_stages else []
        return [*after, Operation(F, stage, micro_batch)]

    def feeds(self, operation: Operation) -> Operation | None:
        """Return the operation of another stage that takes the result of `operation`, or None."""
        kind, stage, micro_batch = operation
        if kind == F and stage + 1 < self.num_stages:
            return Operation(F, stage + 1, micro_batch)
        return self.backward(stage - 1, micro_batch) if kind in (B, I) and stage else None

    def short(self, operation: Operation) -> str:
        """Return `operation` as `to_text` writes it: "F0" if each rank has only the stage of its number, else "1F0"."""
        one_stage_each = self.routes == (tuple(range(self.world_size)),)
        return str(operation)[len(str(operation.stage)) :] if one_stage_each else str(operation)

    def __str__(self) -> str:
        try:
            return _picture(self)
        except PipelineError:  # a schedule that can't run has no picture
            return to_text(self)


# --- text -------------------------------------------------------------------------------------------------------


def to_text(schedule: PipelineSchedule) -> str:
    """Return one line per rank: "F0 F1 B0 B1", or "0F0 3F0 3B0 0B0" with several stages. A pair is "0F3&3B1"."""
    return "\n".join(" ".join("&".join(map(schedule.short, cell)) for cell in row) for row in schedule.cells)


def from_text(
    text: str,
    routes: Sequence[Sequence[int]] | None = None,
    num_micro_batches: int | None = None,
    name: str = "schedule",
) -> PipelineSchedule:
    """Return the schedule that `text` describes, one line per rank, as `to_text` and `print` write it.

    An operation without a stage belongs to the stage with its rank's number. The parser ignores a leading "rank 0:",
    dots, empty lines and comments after "#". `routes`: by default read from the lines; required if there is more than
    one. `num_micro_batches`: by default as many as occur.

    Raises `PipelineError` with the line and the operation. `check` validates what the schedule does.
    """
    orders: list[tuple[Operation, ...]] = []
    paired: set[Operation] = set()
    lines: dict[int, int] = {}  # rank → the number of its line
    for number, line in enumerate(text.splitlines(), 1):
        words = _words(line, number, len(orders))
        if words is None:
            continue
        order = []
        for place, word in enumerate(words, 1):
            cell = [_operation(part, len(orders), f"line {number}, operation {place}") for part in word.split("&")]
            if len(cell) > 2 or (len(cell) == 2 and (cell[0].kind != F or cell[1].kind == F)):
                raise PipelineError(f"line {number}, operation {place}: {word!r}: a pair is a forward and a backward")
            order += cell
            paired.update(cell[:-1])
        lines[len(orders)] = number
        orders.append(tuple(order))
        if sum(map(len, orders)) > MOST_OPERATIONS:
            raise PipelineError(f"line {number}: too long, a text has at most {MOST_OPERATIONS:,} operations")
    if not any(orders):
        raise PipelineError(f"the text has no operations: {_HOW}, one line per rank")
    last = max(operation.micro_batch for order in orders for operation in order)
    routes = (_route(orders, lines),) if routes is None else tuple(map(tuple, routes))
    count = last + 1 if num_micro_batches is None else num_micro_batches
    return PipelineSchedule(tuple(orders), routes, count, frozenset(paired), name)


def _words(line: str, number: int, rank: int) -> list[str] | None:
    """Return the operations of a line as words; None for an empty line or a comment."""
    line = line.split("#")[0].strip()
    if label := re.match(r"rank +(\d{1,4}) *:", line):
        if int(label[1]) != rank:
            raise PipelineError(f"line {number} is called rank {label[1]}, but it is rank {rank}'s: rank 0 comes first")
        line = line[label.end() :] or "."
    return [word for word in line.split() if word != "."] if line else None


def _operation(word: str, rank: int, where: str) -> Operation:
    match = _TOKEN.fullmatch(word)
    if not match:
        shown = word if len(word) <= 20 else f"{word[:17]}..."
        raise PipelineError(f"{where}: {shown!r} is not an operation: {_HOW}")
    stage, kind, micro_batch = match.groups()
    return Operation(kind, rank if stage is None else int(stage), int(micro_batch))


def _route(orders: list[tuple[Operation, ...]], lines: dict[int, int]) -> tuple[int, ...]:
    """Return the rank of each stage, read from the lines that hold its operations."""
    place: dict[int, int] = {}
    for rank, order in enumerate(orders):
        for number, operation in enumerate(order, 1):
            if place.setdefault(operation.stage, rank) != rank:
                raise PipelineError(
                    f"line {lines[rank]}, operation {number}: {operation} is of stage {operation.stage}, which line "
                    f"{lines[place[operation.stage]]} has: put all its operations on one line, or pass `routes`"
                )
    missing = min(set(range(max(place) + 1)) - set(place), default=None)
    if missing is not None:
        raise PipelineError(f"no line has an operation of stage {missing}, but there is a stage {max(place)}")
    return tuple(place[stage] for stage in sorted(place))


def _picture(schedule: PipelineSchedule) -> str:
    """Draw one row per rank and one column per time unit: F, I and W take one unit, B two. A dot is an idle unit."""
    spans = price(schedule, 1, 1, 1).timeline.spans
    length = round(max(span.end for span in spans))
    cells = [["."] * length for _ in schedule.orders]
    names = {str(operation): schedule.short(operation) for operation in schedule.position}
    for span in spans:
        row, start = cells[int(span.group.removeprefix("rank "))], round(span.start)
        row[start : round(span.end)] = [names[span.name], *[""] * (round(span.seconds) - 1)]
    width = max(map(len, names.values())) + 1
    return "\n".join(
        f"rank {rank}: {''.join(cell.ljust(width) for cell in row).rstrip()}" for rank, row in enumerate(cells)
    )


# --- can it be run? ---------------------------------------------------------------------------------------------


def check(schedule: PipelineSchedule) -> None:
    """Check that every stage does every micro-batch once, forward and backward, and that no rank deadlocks.

    Raises `PipelineError` that names the operation and its rank. For a deadlock it lists what each rank waits for and
    the cycle of waiting ranks.
    """
    _check_complete(schedule)
    if stuck := _stuck(schedule):
        raise PipelineError(_deadlock(schedule, stuck))


def _check_complete(schedule: PipelineSchedule) -> None:
    for rank, order in enumerate(schedule.orders):
        seen: dict[Operation, int] = {}
        for place, operation in enumerate(order, 1):
            name, home = schedule.short(operation), schedule.rank_of(operation)
            if home != rank:
                raise PipelineError(f"{schedule.name}: rank {rank} does {name}, whose stage is on rank {home}")
            if (first := seen.setdefault(operation, place)) != place:
                raise PipelineError(
                    f"{schedule.name}: rank {rank} does {name} twice, as operations {first} and {place}"
                )
    for micro_batch in range(schedule.num_micro_batches):
        for stage in range(schedule.num_stages):
            _check_once(schedule, {kind: Operation(kind, stage, micro_batch) for kind in KINDS})


def _check_once(schedule: PipelineSchedule, every: dict[str, Operation]) -> None:
    """Check that one stage does one micro-batch: F and either B, or I and W. `every`: each kind of it."""
    scheduled = {kind for kind, operation in every.items() if operation in schedule.position}
    if scheduled in ({F, B}, {F, I, W}):
        return
    subject = f"{schedule.name}: rank {schedule.rank_of(every[F])}"
    names = {kind: schedule.short(operation) for kind, operation in every.items()}
    if B in scheduled and scheduled & {I, W}:
        raise PipelineError(f"{subject} does {names[B]} and its parts: a backward is either B, or I and W")
    needed = {F, I, W} if scheduled & {I, W} else {F, B}
    missing = next(kind for kind in KINDS if kind in needed - scheduled)
    alternative = f" (or {names[I]} and {names[W]})" if missing == B else ""
    raise PipelineError(f"{subject} never does {names[missing]}{alternative}: add it to its list")


def _stuck(schedule: PipelineSchedule) -> dict[int, tuple[Operation, Operation]]:
    """Run all ranks as far as they go. Return, for each stuck rank, (the operation it is at, the one it waits for)."""
    done: set[Operation] = set()
    reached = [0] * schedule.world_size  # how many of its cells each rank has done
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(schedule.cells):
            while reached[rank] < len(row) and not _awaited(schedule, row[reached[rank]], done):
                done.update(row[reached[rank]])
                reached[rank] += 1
                moved = True
    left = {rank: row[reached[rank]] for rank, row in enumerate(schedule.cells) if reached[rank] < len(row)}
    return {rank: _awaited(schedule, cell, done)[0] for rank, cell in left.items()}


def _awaited(
    schedule: PipelineSchedule, cell: tuple[Operation, ...], done: set[Operation]
) -> list[tuple[Operation, Operation]]:
    """Return (operation, need) for each unmet need of a cell."""
    return [(operation, need) for operation in cell for need in schedule.needs(operation) if need not in done]


def _deadlock(schedule: PipelineSchedule, stuck: dict[int, tuple[Operation, Operation]]) -> str:
    lines = [f"{schedule.name}: deadlock"]
    waits: dict[int, int | None] = {}
    for rank, (current, awaited) in stuck.items():
        waits[rank] = schedule.rank_of(awaited)
        where = f"rank {waits[rank]}'s operation {schedule.position[awaited] + 1}"
        if waits[rank] == rank:
            where = f"which comes later in its own list, as operation {schedule.position[awaited] + 1}"
        place = schedule.position[current] + 1
        waiting = f"waits for {schedule.short(awaited)}, {where}"
        lines.append(f"  rank {rank} is stuck at {schedule.short(current)}, its operation {place}, and {waiting}")
    cycle = find_cycle(waits) or []
    if len(set(cycle)) > 1:
        lines.append("  each waits for the next: " + " → ".join(f"rank {rank}" for rank in cycle))
    return "\n".join(lines)


# --- what it costs ----------------------------------------------------------------------------------------------

Seconds = float | Sequence[float]  # one number for all stages, or one per stage


@dataclass(frozen=True)
class PipelineCost:
    """The cost of a schedule. `timeline`: one span per operation, in groups "rank 0", ... `busy`: compute seconds."""

    timeline: Timeline
    busy: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first operation to the end of the last, over all ranks."""
        return self.timeline.seconds

    @property
    def idle(self) -> tuple[float, ...]:
        """Seconds that each rank doesn't compute, out of `seconds`."""
        return tuple(self.seconds - busy for busy in self.busy)

    @property
    def stalled(self) -> tuple[float, ...]:
        """Seconds that each rank doesn't compute between its own first and last operations.

        The zero-bubble papers count only these: ranks that start and finish in a staggered order lose nothing if the
        next step follows at once.
        """
        stalled = []
        for rank, busy in enumerate(self.busy):
            spans = [span for span in self._operations if span.group == f"rank {rank}"]
            within = max((span.end for span in spans), default=0.0) - min((span.start for span in spans), default=0.0)
            stalled.append(within - busy)
        return tuple(stalled)

    @property
    def bubble_over_total(self) -> float:
        """Idle seconds of all ranks over their total seconds: 0 means no bubble, and it is always below 1."""
        return sum(self.idle) / (len(self.busy) * self.seconds)

    @property
    def bubble_over_ideal(self) -> float:
        """Idle seconds of all ranks over their compute seconds: it can exceed 1."""
        return sum(self.idle) / sum(self.busy)

    @property
    def _operations(self) -> list[Span]:
        return [span for span in self.timeline.spans if span.kind not in self.timeline.communication]


def price(
    schedule: PipelineSchedule,
    forward: Seconds,
    backward_input: Seconds,
    backward_weights: Seconds,
    transfer: float = 0.0,
    pair: float | None = None,
) -> PipelineCost:
    """Return the cost of `schedule` if F, I and W of a stage take these seconds, and B takes I plus W.

    Each time is a number, or a list with one per stage. `transfer`: seconds that an activation or a gradient is in
    flight between two ranks. It doesn't slow compute; messages from one rank to another queue behind each other.
    `pair`: seconds of an F&B, by default the sum of its parts.

    A rank's ideal time is the sum of its operations. Raises `PipelineError` if the schedule fails `check`, and
    `ValueError` for times that aren't seconds, or are all 0.
    """
    check(schedule)
    times = {F: _by_stage(forward, schedule), I: _by_stage(backward_input, schedule)}
    times[W] = _by_stage(backward_weights, schedule)
    times[B] = [sum(both) for both in zip(times[I], times[W], strict=True)]
    if not any(times[F] + times[B]):
        raise ValueError("no operation takes any time, so the bubble is undefined: give F, I or W some seconds")
    timeline = run(_tasks(schedule, times, transfer, pair))
    busy = [0.0] * schedule.world_size
    for span in timeline.spans:
        if span.kind not in timeline.communication:
            busy[int(span.group.removeprefix("rank "))] += span.seconds
    return PipelineCost(timeline, tuple(busy))


def _by_stage(seconds: Seconds, schedule: PipelineSchedule) -> list[float]:
    if not isinstance(seconds, Sequence):
        return [seconds] * schedule.num_stages
    if len(seconds) != schedule.num_stages:
        raise ValueError(f"{len(seconds)} times for {schedule.num_stages} stages: give one for each, or one number")
    return list(seconds)


def _tasks(
    schedule: PipelineSchedule, times: dict[str, list[float]], transfer: float, pair: float | None
) -> Iterator[Task]:
    """Yield the schedule as tasks on streams: per rank, one compute stream and one stream per rank that it sends to."""
    ends = {operation: str(cell[-1]) for row in schedule.cells for cell in row for operation in cell}
    for rank, row in enumerate(schedule.cells):
        for cell in row:
            parts = [times[operation.kind][operation.stage] for operation in cell]
            scale = pair / sum(parts) if pair is not None and len(cell) > 1 else 1
            awaited = [need for operation in cell for need in schedule.needs(operation)]
            after = tuple(_arrival(schedule, need, rank, ends, transfer) for need in awaited)
            for operation, seconds in zip(cell, parts, strict=True):
                yield Task(str(operation), "", seconds * scale, after, KINDS[operation.kind], f"rank {rank}")
            for operation in cell:
                taker = schedule.feeds(operation)
                if taker and transfer and schedule.rank_of(taker) != rank:
                    lane = f"to rank {schedule.rank_of(taker)}"
                    yield Task(f"{operation} sent", lane, transfer, (ends[operation],), "send_recv", f"rank {rank}")


def _arrival(schedule: PipelineSchedule, need: Operation, rank: int, ends: dict, transfer: float) -> str:
    """Return the name of the task that brings the result of `need` to `rank`: its cell, or its message."""
    return f"{need} sent" if transfer and schedule.rank_of(need) != rank else ends[need]


def peak_activations(
    schedule: PipelineSchedule, sizes: float | Sequence[float] = 1.0, kept_for_weights: float = 1.0
) -> list[float]:
    """Return, by rank, the peak of the activations that forwards keep for their backwards.

    The unit is one stage's activations for one micro-batch, or the unit of `sizes`, which gives a size per stage. A
    forward's activations live until its B, or its W, has ended. I frees all but the fraction `kept_for_weights`: 1
    frees nothing, as in autograd; the zero-bubble papers call it M_W / M_B. Only the order counts, not the times.
    """
    sizes = _by_stage(sizes, schedule)
    changes = {F: 1.0, B: -1.0, I: kept_for_weights - 1.0, W: -kept_for_weights}
    peaks = []
    for order in schedule.orders:
        held = peak = 0.0
        for operation in order:
            held += changes[operation.kind] * sizes[operation.stage]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks


# --- the schedules of the papers --------------------------------------------------------------------------------


def gpipe(world_size: int, num_micro_batches: int) -> PipelineSchedule:
    """Return GPipe: all forwards, then all backwards (Huang et al., 2019)."""
    every = range(num_micro_batches)
    orders = [_each(F, rank, every) + _each(B, rank, every) for rank in range(world_size)]
    return _build("GPipe", orders, loop(world_size), num_micro_batches)


def one_f_one_b(world_size: int, num_micro_batches: int) -> PipelineSchedule:
    """Return 1F1B: fill the ranks behind, then alternate forward and backward.

    Narayanan et al., 2019 and 2021: PipeDream-Flush. Rank r holds min(m, p - r)
    activations.
    """
    every, orders = range(num_micro_batches), []
    for rank in range(world_size):
        ahead = world_size - 1 - rank  # one forward for each rank behind
        orders.append(_in_turns(_each(F, rank, every), _each(B, rank, every), ahead))
    return _build("1F1B", orders, loop(world_size), num_micro_batches)


def breadth_first(world_size: int, num_micro_batches: int, stages_a_rank: int = 2) -> PipelineSchedule:
    """Return GPipe with several stages a rank: all micro-batches run one stage, then the next (Lamy-Poirier, 2022)."""
    every, orders = range(num_micro_batches), []
    for rank in range(world_size):
        stages = range(rank, world_size * stages_a_rank, world_size)
        forwards = [operation for stage in stages for operation in _each(F, stage, every)]
        orders.append(forwards + [operation._replace(kind=B) for operation in reversed(forwards)])
    return _build("breadth-first", orders, loop(world_size, stages_a_rank), num_micro_batches)


def interleaved(world_size: int, num_micro_batches: int, stages_a_rank: int = 2) -> PipelineSchedule:
    """Return 1F1B with several stages a rank, which divides the bubble by their number (Narayanan et al., 2021).

    A round of micro-batches goes through all stages before the next round begins. A round has p micro-batches, or a
    few more, because rounds divide m evenly, as in torch. Raises `ValueError` if they can't.
    """
    orders = []
    for rank in range(world_size):
        forwards, backwards, one_round = _rounds(rank, world_size, num_micro_batches, stages_a_rank, B)
        ahead = (stages_a_rank - 1) * one_round + 2 * (world_size - 1 - rank)
        orders.append(_in_turns(forwards, backwards, ahead))
    return _build("interleaved 1F1B", orders, loop(world_size, stages_a_rank), num_micro_batches)


def zb_h1(world_size: int, num_micro_batches: int, stages_a_rank: int = 1) -> PipelineSchedule:
    """Return 1F1B with a split backward: rank r does W only r micro-batches after I (Qi et al., ICLR 2024).

    Earlier ranks get I's result sooner, and W fills their idle time at the end. Every rank holds at most p activations.
    With several stages a rank this is torch's ScheduleInterleavedZeroBubble.
    """
    orders = []
    for rank in range(world_size):
        forwards, backwards, one_round = _rounds(rank, world_size, num_micro_batches, stages_a_rank, I)
        ahead = (stages_a_rank - 1) * one_round + world_size - 1 - rank
        orders.append(_in_turns(forwards, backwards, ahead, delay=rank))
    return _build("ZB-H1", orders, loop(world_size, stages_a_rank), num_micro_batches)


def zb_h2(world_size: int, num_micro_batches: int) -> PipelineSchedule:
    """Return ZB-H1 with twice the forwards ahead and W twice as late: no bubble if F, I and W take equal time.

    Each rank ends as much later than rank 0 as it began, so the *next* step must not wait for all ranks. It needs
    2p - 1 activations and at least 2p - 1 micro-batches (Qi et al., ICLR 2024).
    """
    every, orders = range(num_micro_batches), []
    for rank in range(world_size):
        ahead = 2 * (world_size - 1 - rank)
        orders.append(_in_turns(_each(F, rank, every), _each(I, rank, every), ahead, delay=2 * rank))
    return _build("ZB-H2", orders, loop(world_size), num_micro_batches)


def zb_v(world_size: int, num_micro_batches: int) -> PipelineSchedule:
    """Return ZB-V: two stages a rank, down the ranks and back up. It has no bubble if F, I and W take equal time.

    It needs only 1F1B's memory (Qi et al., “Pipeline Parallelism with Controllable Memory”, 2024). Rank 0 has the first
    and the last stage, so its backwards begin early. The pattern spans at least 2p - 1 micro-batches; with fewer, the
    operations of the missing ones are left out.
    """
    p, m = world_size, max(num_micro_batches, 2 * world_size - 1)
    orders = []
    for r in range(p):
        (fa, ia, wa), (fb, ib, wb) = ([(kind, stage) for kind in (F, I, W)] for stage in (r, 2 * p - 1 - r))
        pattern = [fa] * (2 * (p - r) - 1) + [fb, fa] * r + [fb, ib, wb] * (p - r)
        pattern += [fa, ia, wa, fb, ib, wb] * (m - 2 * p + r + 1) + [ia, wa, fb, ib, wb] * (p - r - 1)
        pattern += [ia, ib] * r + [ia, wa] * (p - r) + [wb] * r + [wa] * r
        orders.append([operation for operation in _counted(pattern) if operation.micro_batch < num_micro_batches])
    return _build("ZB-V", orders, vee(p), num_micro_batches)


def dual_pipe_v(world_size: int, num_micro_batches: int) -> PipelineSchedule:
    """Return DualPipe folded at its middle: two stages a rank as in ZB-V, and F&B pairs in the main part.

    Source: DeepSeek-AI's DualPipe repository, 2025. Raises `ValueError` for fewer micro-batches than stages, 2p.
    """
    p = world_size
    rows = [_dual_pipe(r, p, num_micro_batches, r, 2 * p - 1 - r) for r in range(p)]
    paired = frozenset().union(*(pairs for _, pairs in rows))
    return _build("DualPipeV", [order for order, _ in rows], vee(p), num_micro_batches, paired)


def dual_pipe(world_size: int, num_micro_batches: int) -> PipelineSchedule:
    """Return DualPipe: half the micro-batches enter at each end, so every rank has two stages (DeepSeek-V3, 2024).

    Stage s is on rank s, with a copy on rank p - 1 - s. Raises `ValueError` unless p and m are even and m >= 2p.
    """
    p, half = world_size, num_micro_batches // 2
    if p % 2 or num_micro_batches % 2:
        raise ValueError(f"DualPipe has two halves: {p} ranks, {num_micro_batches} micro-batches are not both even")
    orders: list[list[Operation]] = []
    paired: set[Operation] = set()
    for rank in range(p):
        near, far = min(rank, p - 1 - rank), max(rank, p - 1 - rank)  # near: the stage closer to this rank's end
        order, pairs = _dual_pipe(near, p // 2, half, near, far)
        late = far if rank == near else near  # this rank runs the second half of the micro-batches through this stage
        moved = {o: o._replace(micro_batch=o.micro_batch + half) if o.stage == late else o for o in order}
        orders.append(list(moved.values()))
        paired.update(moved[operation] for operation in pairs)
    return _build("DualPipe", orders, (*loop(p), tuple(reversed(range(p)))), num_micro_batches, frozenset(paired))


BY_NAME = {
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "breadth-first": breadth_first,
    "interleaved 1F1B": interleaved,
    "ZB-H1": zb_h1,
    "ZB-H2": zb_h2,
    "ZB-V": zb_v,
    "DualPipeV": dual_pipe_v,
    "DualPipe": dual_pipe,
}
"""The schedules in this module, each a function (world_size, num_micro_batches) -> PipelineSchedule."""


def loop(world_size: int, stages_a_rank: int = 1) -> tuple[tuple[int, ...], ...]:
    """Return the routes of a looping placement, only one: stage s is on rank s mod p."""
    return (tuple(range(world_size)) * stages_a_rank,)


def vee(world_size: int) -> tuple[tuple[int, ...], ...]:
    """Return the routes of a V placement, only one: stages r and 2p - 1 - r are on rank r."""
    return ((*range(world_size), *reversed(range(world_size))),)


def _build(
    name: str, orders: Iterable[Iterable], routes: tuple, num_micro_batches: int, paired: frozenset = frozenset()
) -> PipelineSchedule:
    return PipelineSchedule(tuple(map(tuple, orders)), routes, num_micro_batches, paired, name)


def _each(kind: str, stage: int, micro_batches: Iterable[int]) -> list[Operation]:
    return [Operation(kind, stage, micro_batch) for micro_batch in micro_batches]


def _in_turns(
    forwards: list[Operation], backwards: list[Operation], ahead: int, delay: int | None = None
) -> list[Operation]:
    """Return `ahead` forwards, then forward and backward in turns, then the remaining backwards.

    `delay`: if the backwards are I, how many more of them run before the W of each.
    """
    order, pending = forwards[:ahead], []
    for number, backward in enumerate(backwards):
        order += [*forwards[ahead + number :][:1], backward]
        if delay is not None:
            pending.append(backward._replace(kind=W))
            order += [pending.pop(0)] if number >= delay else []
    return order + pending


def _rounds(
    rank: int, world_size: int, num_micro_batches: int, stages_a_rank: int, kind: str
) -> tuple[list[Operation], list[Operation], int]:
    """Return a rank's forwards and backwards in rounds, first to last stage and back, and the micro-batches a round."""
    rounds = max(1, num_micro_batches // world_size)
    if num_micro_batches % rounds:
        raise ValueError(f"{num_micro_batches} micro-batches do not divide into {rounds} rounds for {world_size} ranks")
    size = num_micro_batches // rounds
    stages = range(rank, world_size * stages_a_rank, world_size)
    forwards, backwards = [], []
    for start in range(0, num_micro_batches, size or 1):
        forwards += [o for stage in stages for o in _each(F, stage, range(start, start + size))]
        backwards += [o for stage in reversed(stages) for o in _each(kind, stage, range(start, start + size))]
    return forwards, backwards, size


def _counted(pattern: Iterable[tuple[str, int | None]]) -> Iterator[Operation]:
    """Turn each (kind, stage) into an operation on the next micro-batch of that kind and stage.

    W takes the micro-batch of the oldest I that has no W yet; a W without a stage takes the oldest of all stages.
    """
    done: Counter[tuple[bool, int]] = Counter()  # forwards and backwards of each stage so far
    pending: list[Operation] = []  # I operations whose W has yet to come
    for kind, stage in pattern:
        if kind == W:
            operation = next(operation for operation in pending if stage in (None, operation.stage))
            pending.remove(operation)
            yield operation._replace(kind=W)
            continue
        assert stage is not None  # only a W may omit it
        operation = Operation(kind, stage, done[kind == F, stage])
        done[kind == F, stage] += 1
        pending += [operation] if kind == I else []
        yield operation


def _dual_pipe(r: int, p: int, m: int, first: int, second: int) -> tuple[list[Operation], list[Operation]]:
    """Return rank r's operations in DualPipe, and its paired forwards. `first`, `second`: the rank's two stages.

    The eight phases follow DeepSeek's code, for p ranks and m micro-batches. B is whole at first, and split from the
    middle of the sixth phase on.
    """
    if m < 2 * p:
        raise ValueError(f"DualPipe fills a pipeline of {2 * p} stages: {m} micro-batches a direction are too few")
    (fa, ba, ia), (fb, bb, ib) = ([(kind, stage) for kind in (F, B, I)] for stage in (first, second))
    w = (W, None)
    warm_up = [fa] * 2 * (p - r - 1) + [fa, fb] * (r + 1) + [ib, w, fb] * (p - r - 1)
    main = [fa, bb, fb, ba] * (m - 2 * p + r + 1) + [bb, fb, ba] * (p - r - 1)
    whole, split = ([bb, ba] * (r + 1))[: r + 1], ([ib, ia] * (r + 1))[r + 1 :]
    order = list(_counted(warm_up + main + whole + split + [w, ia] * (p - r - 1) + [w] * (r + 1)))
    unpaired = len(warm_up) if r == p - 1 else None  # on the innermost rank, so that its first B runs sooner
    places = range(len(warm_up), len(warm_up) + len(main))
    paired = [order[place] for place in places if order[place].kind == F and place != unpaired]
    return order, paired
