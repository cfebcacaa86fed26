"""A pipeline schedule as data: for every rank the list of operations that it does, in order.

    schedule = one_f_one_b(4, 8)           # 4 ranks, 8 micro-batches
    print(schedule)                        # its own picture: a row a rank, a dot for each unit of time spent waiting
    check(schedule)                        # or PipelineError: which operation, on which rank, waits for what
    cost = price(schedule, 1, 1, 1)        # cost.seconds, cost.bubble_over_total, draw(cost.timeline)
    peak_activations(schedule)             # by rank

The model is cut into **stages**, the batch into **micro-batches**. An operation is F, the forward of a stage for one
micro-batch, or B, its whole backward. A backward can be split in two: I, the gradient of the stage's input, for which
the stage before it waits, and W, the gradient of the stage's weights, for which nobody does. These are the letters of
torch.distributed.pipelining; the zero-bubble papers write B for our I, DeepSeek writes B for our B.

A **route** is the way of a micro-batch through the ranks: the rank of stage 0, of stage 1, and so on. Most schedules
have one. DualPipe has two, one from each end, and so a copy of each stage on two ranks.

Nothing here computes: `pipeline_run` executes a schedule on real ranks.
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
"""What the letters mean, in the words of a `Timeline`."""

MOST_OPERATIONS = 2**16  # in a text: who reads one from a stranger must be done with it soon
_TOKEN = re.compile(r"(\d{1,4})?([FBIW])(\d{1,5})")
_HOW = "write F, B, I or W and a micro-batch, as in F0, and before it the stage if a rank has several, as in 1F0"


class PipelineError(ValueError):
    """A schedule that cannot be run, or a text that is none: it says where, and what to do."""


class Operation(NamedTuple):
    """What a rank does in one go: `kind` (F, B, I or W) of a stage, for one micro-batch. It prints as "1F0"."""

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True)
class PipelineSchedule:
    """`orders[rank]`: the operations of a rank, in order. `routes`: for each route the rank of each stage.

    With several routes, the first micro-batches take the first one, and as many the next. `paired`: forwards that run
    together with the operation after them, as one: both need their input when it begins, both results are there when
    it ends. DeepSeek writes it F&B.

    PipelineError for a kind, stage, micro-batch or route that there is not. Whether the schedule can be run, `check`
    says.
    """

    orders: tuple[tuple[Operation, ...], ...]
    routes: tuple[tuple[int, ...], ...]
    num_micro_batches: int
    paired: frozenset[Operation] = frozenset()
    name: str = field(default="schedule", compare=False)

    def __post_init__(self):
        if self.num_micro_batches < 1:
            raise PipelineError(f"{self.name}: there must be a micro-batch, not {self.num_micro_batches}")
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
            return f"is no operation: its kind must be one of {', '.join(KINDS)}"
        if not 0 <= operation.stage < self.num_stages:
            return f"is of a stage that there is not: they are 0 to {self.num_stages - 1}"
        if not 0 <= operation.micro_batch < self.num_micro_batches:
            return f"is of a micro-batch that there is not: they are 0 to {self.num_micro_batches - 1}"
        return ""

    @property
    def world_size(self) -> int:
        """How many ranks."""
        return len(self.orders)

    @property
    def num_stages(self) -> int:
        """Into how many stages the model is cut."""
        return len(self.routes[0])

    def rank_of(self, operation: Operation) -> int:
        """The rank that has its stage, for its micro-batch."""
        return self.routes[operation.micro_batch * len(self.routes) // self.num_micro_batches][operation.stage]

    def stages_of(self, rank: int) -> list[int]:
        """The stages of which `rank` holds the weights."""
        return sorted({stage for route in self.routes for stage, place in enumerate(route) if place == rank})

    @cached_property
    def position(self) -> dict[Operation, int]:
        """Where each operation stands in its rank's list, from 0 on."""
        return {operation: place for order in self.orders for place, operation in enumerate(order)}

    @cached_property
    def cells(self) -> list[list[tuple[Operation, ...]]]:
        """By rank: its operations, each alone or the two of a pair."""
        rows = []
        for order in self.orders:
            row, places = [], iter(order)
            for operation in places:
                pair = [next(places, None)] if operation in self.paired else []
                row.append((operation, *filter(None, pair)))
            rows.append(row)
        return rows

    def backward(self, stage: int, micro_batch: int) -> Operation:
        """The operation that makes the gradient of this stage's input: I where the schedule splits it, else B."""
        split = Operation(I, stage, micro_batch)
        return split if split in self.position else split._replace(kind=B)

    def needs(self, operation: Operation) -> list[Operation]:
        """The operations whose results it takes, that of another stage first."""
        kind, stage, micro_batch = operation
        if kind == W:
            return [Operation(I, stage, micro_batch)]
        if kind == F:
            return [Operation(F, stage - 1, micro_batch)] if stage else []
        after = [self.backward(stage + 1, micro_batch)] if stage + 1 < self.num_stages else []
        return [*after, Operation(F, stage, micro_batch)]

    def feeds(self, operation: Operation) -> Operation | None:
        """The operation of another stage that takes its result."""
        kind, stage, micro_batch = operation
        if kind == F and stage + 1 < self.num_stages:
            return Operation(F, stage + 1, micro_batch)
        return self.backward(stage - 1, micro_batch) if kind in (B, I) and stage else None

    def short(self, operation: Operation) -> str:
        """As `to_text` writes it: "F0" if every rank has but the stage of its own number, else "1F0"."""
        alone = self.routes == (tuple(range(self.world_size)),)
        return str(operation)[len(str(operation.stage)) :] if alone else str(operation)

    def __str__(self) -> str:
        try:
            return _picture(self)
        except PipelineError:  # it would never end
            return to_text(self)


# --- text -------------------------------------------------------------------------------------------------------


def to_text(schedule: PipelineSchedule) -> str:
    """A line a rank: "F0 F1 B0 B1", or "0F0 3F0 3B0 0B0" where ranks have several stages. A pair is "0F3&3B1"."""
    return "\n".join(" ".join("&".join(map(schedule.short, cell)) for cell in row) for row in schedule.cells)


def from_text(
    text: str,
    routes: Sequence[Sequence[int]] | None = None,
    num_micro_batches: int | None = None,
    name: str = "schedule",
) -> PipelineSchedule:
    """The schedule that `text` describes, a line a rank as `to_text` and `print` write it.

    An operation without a stage is of the stage with its rank's number. "rank 0:" before a line, dots, empty lines and
    what follows a "#" are passed over. `routes`: None if each stage is where the lines have it; to be given if there
    are several. `num_micro_batches`: None for as many as occur.

    PipelineError with the line and the operation. What the schedule *does* is not looked at: that is for `check`.
    """
    orders, paired, lines = [], set(), {}
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
            raise PipelineError(f"line {number}: more than {MOST_OPERATIONS:,} operations are more than a text holds")
    if not any(orders):
        raise PipelineError(f"there is no operation in the text: {_HOW}, a line for each rank")
    last = max(operation.micro_batch for order in orders for operation in order)
    routes = (_route(orders, lines),) if routes is None else tuple(map(tuple, routes))
    count = last + 1 if num_micro_batches is None else num_micro_batches
    return PipelineSchedule(tuple(orders), routes, count, frozenset(paired), name)


def _words(line: str, number: int, rank: int) -> list[str] | None:
    """The operations of a line as words; None for a line that says nothing."""
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
        raise PipelineError(f"{where}: {shown!r} is no operation: {_HOW}")
    stage, kind, micro_batch = match.groups()
    return Operation(kind, rank if stage is None else int(stage), int(micro_batch))


def _route(orders: list[tuple[Operation, ...]], lines: dict[int, int]) -> tuple[int, ...]:
    """The rank of each stage, read off the lines in which its operations stand."""
    place = {}
    for rank, order in enumerate(orders):
        for number, operation in enumerate(order, 1):
            if place.setdefault(operation.stage, rank) != rank:
                raise PipelineError(
                    f"line {lines[rank]}, operation {number}: {operation} is of stage {operation.stage}, which line "
                    f"{lines[place[operation.stage]]} has: put all its operations into one line (or say `routes`)"
                )
    missing = min(set(range(max(place) + 1)) - set(place), default=None)
    if missing is not None:
        raise PipelineError(f"no line has an operation of stage {missing}, but there is a stage {max(place)}")
    return tuple(place[stage] for stage in sorted(place))


def _picture(schedule: PipelineSchedule) -> str:
    """A row a rank, a column a unit of time: F, I and W take one, B two. A dot is a unit spent waiting."""
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
    """PipelineError unless every stage does every micro-batch once, forward and backward, and no rank waits for ever.

    It names the operation and its rank; of a deadlock, what each rank waits for, and who waits for whom.
    """
    _check_complete(schedule)
    if stuck := _stuck(schedule):
        raise PipelineError(_deadlock(schedule, stuck))


def _check_complete(schedule: PipelineSchedule) -> None:
    for rank, order in enumerate(schedule.orders):
        seen = {}
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
    """That one stage does one micro-batch: F, and then B, or I and W."""
    there = {kind for kind, operation in every.items() if operation in schedule.position}
    if there in ({F, B}, {F, I, W}):
        return
    who = f"{schedule.name}: rank {schedule.rank_of(every[F])}"
    names = {kind: schedule.short(operation) for kind, operation in every.items()}
    if B in there and there & {I, W}:
        raise PipelineError(f"{who} does {names[B]} and its parts: a backward is either B, or I and W")
    wanted = {F, I, W} if there & {I, W} else {F, B}
    missing = next(kind for kind in KINDS if kind in wanted - there)
    other = f" (or {names[I]} and {names[W]})" if missing == B else ""
    raise PipelineError(f"{who} never does {names[missing]}{other}: add it to its list")


def _stuck(schedule: PipelineSchedule) -> dict[int, tuple[Operation, Operation]]:
    """Let all ranks do what they can. For each that does not come to its end: where it stands, what it waits for."""
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
    """Which operations of a cell wait, and for which ones."""
    return [(operation, need) for operation in cell for need in schedule.needs(operation) if need not in done]


def _deadlock(schedule: PipelineSchedule, stuck: dict[int, tuple[Operation, Operation]]) -> str:
    lines, waits = [f"{schedule.name}: deadlock"], {}
    for rank, (stands, awaited) in stuck.items():
        waits[rank] = schedule.rank_of(awaited)
        where = f"rank {waits[rank]}'s operation {schedule.position[awaited] + 1}"
        if waits[rank] == rank:
            where = f"which comes later in its own list, as operation {schedule.position[awaited] + 1}"
        place = schedule.position[stands] + 1
        waiting = f"waits for {schedule.short(awaited)}, {where}"
        lines.append(f"  rank {rank} stands at {schedule.short(stands)}, its operation {place}, and {waiting}")
    cycle = find_cycle(waits) or []
    if len(set(cycle)) > 1:
        lines.append("  each waits for the next: " + " → ".join(f"rank {rank}" for rank in cycle))
    return "\n".join(lines)


# --- what it costs ----------------------------------------------------------------------------------------------

Seconds = float | Sequence[float]  # of every stage alike, or of each


@dataclass(frozen=True)
class PipelineCost:
    """`timeline`: a span an operation, in the groups "rank 0" and so on. `busy`: seconds that each rank computes."""

    timeline: Timeline
    busy: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """From the first operation of any rank to the end of the last."""
        return self.timeline.seconds

    @property
    def idle(self) -> tuple[float, ...]:
        """Seconds that each rank does not compute, from the first operation of any to the end of the last of all."""
        return tuple(self.seconds - busy for busy in self.busy)

    @property
    def stalled(self) -> tuple[float, ...]:
        """Seconds that each rank does not compute between its own first operation and its own last.

        The zero-bubble papers count these alone: ranks that begin and end one after another lose nothing if the next
        step follows at once.
        """
        stalled = []
        for rank, busy in enumerate(self.busy):
            spans = [span for span in self._operations if span.group == f"rank {rank}"]
            within = max((span.end for span in spans), default=0.0) - min((span.start for span in spans), default=0.0)
            stalled.append(within - busy)
        return tuple(stalled)

    @property
    def bubble_over_total(self) -> float:
        """Idle seconds of all ranks over all their seconds: 0 is no bubble, and 1 is never reached."""
        return sum(self.idle) / (len(self.busy) * self.seconds)

    @property
    def bubble_over_ideal(self) -> float:
        """Idle seconds of all ranks over those in which they compute: may be larger than 1."""
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
    """What `schedule` costs if F, I and W of a stage take these seconds, and B those of I and W together.

    Each is a number, or a list with one for each stage. `transfer`: seconds that an activation or a gradient is under
    way from one rank to another. It hinders no computing; messages from one rank to another go one after another.
    `pair`: seconds of an F&B, by default those of its parts.

    The ideal time of a rank is the sum of its operations. PipelineError if the schedule fails `check`; ValueError for
    times that are no seconds, or all 0.
    """
    check(schedule)
    times = {F: _by_stage(forward, schedule), I: _by_stage(backward_input, schedule)}
    times[W] = _by_stage(backward_weights, schedule)
    times[B] = [sum(both) for both in zip(times[I], times[W], strict=True)]
    if not any(times[F] + times[B]):
        raise ValueError("no operation takes any time, and a bubble is a part of it: give F, I or W some seconds")
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
    """The schedule as tasks on streams: one stream for what a rank computes, and one for each rank that it sends to."""
    ends = {operation: str(cell[-1]) for row in schedule.cells for cell in row for operation in cell}
    for rank, row in enumerate(schedule.cells):
        for cell in row:
            parts = [times[operation.kind][operation.stage] for operation in cell]
            faster = pair / sum(parts) if pair is not None and len(cell) > 1 else 1
            awaited = [need for operation in cell for need in schedule.needs(operation)]
            after = tuple(_arrival(schedule, need, rank, ends, transfer) for need in awaited)
            for operation, seconds in zip(cell, parts, strict=True):
                yield Task(str(operation), "", seconds * faster, after, KINDS[operation.kind], f"rank {rank}")
            for operation in cell:
                taker = schedule.feeds(operation)
                if taker and transfer and schedule.rank_of(taker) != rank:
                    lane = f"to rank {schedule.rank_of(taker)}"
                    yield Task(f"{operation} sent", lane, transfer, (ends[operation],), "send_recv", f"rank {rank}")


def _arrival(schedule: PipelineSchedule, need: Operation, rank: int, ends: dict, transfer: float) -> str:
    """The task after which `rank` has the result of `need`: its cell, or its message."""
    return f"{need} sent" if transfer and schedule.rank_of(need) != rank else ends[need]


def peak_activations(
    schedule: PipelineSchedule, sizes: float | Sequence[float] = 1.0, kept_for_weights: float = 1.0
) -> list[float]:
    """By rank: the most that it holds at once of what forwards keep for their backwards.

    Counted in activations of one stage for one micro-batch, or, with `sizes`, in what these say for each stage. A
    forward's are held until its B has ended, or its W. Its I lets go of all but `kept_for_weights` of them (1: of
    nothing, as autograd does; the zero-bubble papers' M_W / M_B). Times play no part: the order alone decides.
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
    """All forwards, then all backwards (Huang et al., 2019). A stage a rank."""
    every = range(num_micro_batches)
    orders = [_each(F, rank, every) + _each(B, rank, every) for rank in range(world_size)]
    return _made("GPipe", orders, loop(world_size), num_micro_batches)


def one_f_one_b(world_size: int, num_micro_batches: int) -> PipelineSchedule:
    """As many forwards as it takes to fill the ranks after it, then a forward and a backward in turns.

    Narayanan et al., 2019 and 2021 (PipeDream-Flush). Rank r holds min(m, p - r) activations, not m.
    """
    every, orders = range(num_micro_batches), []
    for rank in range(world_size):
        orders.append(_in_turns(_each(F, rank, every), _each(B, rank, every), ahead=world_size - 1 - rank))
    return _made("1F1B", orders, loop(world_size), num_micro_batches)


def breadth_first(world_size: int, num_micro_batches: int, stages_a_rank: int = 2) -> PipelineSchedule:
    """GPipe with several stages a rank: all micro-batches through one, then through the next (Lamy-Poirier, 2022)."""
    every, orders = range(num_micro_batches), []
    for rank in range(world_size):
        stages = range(rank, world_size * stages_a_rank, world_size)
        forwards = [operation for stage in stages for operation in _each(F, stage, every)]
        orders.append(forwards + [operation._replace(kind=B) for operation in reversed(forwards)])
    return _made("breadth-first", orders, loop(world_size, stages_a_rank), num_micro_batches)


def interleaved(world_size: int, num_micro_batches: int, stages_a_rank: int = 2) -> PipelineSchedule:
    """1F1B with several stages a rank, which divides the bubble by their number (Narayanan et al., 2021).

    A round of micro-batches goes through all stages before the next one begins. Rounds are of p micro-batches, or a
    few more, since as torch's do they divide m evenly: ValueError if they cannot.
    """
    orders = []
    for rank in range(world_size):
        forwards, backwards, one_round = _rounds(rank, world_size, num_micro_batches, stages_a_rank, B)
        ahead = (stages_a_rank - 1) * one_round + 2 * (world_size - 1 - rank)
        orders.append(_in_turns(forwards, backwards, ahead))
    return _made("interleaved 1F1B", orders, loop(world_size, stages_a_rank), num_micro_batches)


def zb_h1(world_size: int, num_micro_batches: int, stages_a_rank: int = 1) -> PipelineSchedule:
    """1F1B with the backward split: rank r does W only r micro-batches after I (Qi et al., ICLR 2024).

    So I reaches the ranks before it sooner, and W fills their time at the end; every rank holds p activations at most.
    With several stages a rank it is torch's ScheduleInterleavedZeroBubble.
    """
    orders = []
    for rank in range(world_size):
        forwards, backwards, one_round = _rounds(rank, world_size, num_micro_batches, stages_a_rank, I)
        ahead = (stages_a_rank - 1) * one_round + world_size - 1 - rank
        orders.append(_in_turns(forwards, backwards, ahead, delay=rank))
    return _made("ZB-H1", orders, loop(world_size, stages_a_rank), num_micro_batches)


def zb_h2(world_size: int, num_micro_batches: int) -> PipelineSchedule:
    """ZB-H1 with twice as many forwards ahead, and W twice as late: no bubble if F, I and W take the same time.

    Each rank ends as much later than rank 0 as it has begun, so the *next* step must not wait for all. It takes 2p - 1
    activations, and as many micro-batches (Qi et al., ICLR 2024).
    """
    every, orders = range(num_micro_batches), []
    for rank in range(world_size):
        ahead = 2 * (world_size - 1 - rank)
        orders.append(_in_turns(_each(F, rank, every), _each(I, rank, every), ahead, delay=2 * rank))
    return _made("ZB-H2", orders, loop(world_size), num_micro_batches)


def zb_v(world_size: int, num_micro_batches: int) -> PipelineSchedule:
    """Two stages a rank, down the ranks and back up: no bubble with 1F1B's memory, if F, I and W take the same time.

    Qi et al., “Pipeline Parallelism with Controllable Memory”, 2024. The last stage is on rank 0, right where the first
    one is, so that backwards begin early there. It takes 2p - 1 micro-batches; of fewer, the rest is left out.
    """
    p, m = world_size, max(num_micro_batches, 2 * world_size - 1)
    orders = []
    for r in range(p):
        (fa, ia, wa), (fb, ib, wb) = ([(kind, stage) for kind in (F, I, W)] for stage in (r, 2 * p - 1 - r))
        pattern = [fa] * (2 * (p - r) - 1) + [fb, fa] * r + [fb, ib, wb] * (p - r)
        pattern += [fa, ia, wa, fb, ib, wb] * (m - 2 * p + r + 1) + [ia, wa, fb, ib, wb] * (p - r - 1)
        pattern += [ia, ib] * r + [ia, wa] * (p - r) + [wb] * r + [wa] * r
        orders.append([operation for operation in _counted(pattern) if operation.micro_batch < num_micro_batches])
    return _made("ZB-V", orders, vee(p), num_micro_batches)


def dual_pipe_v(world_size: int, num_micro_batches: int) -> PipelineSchedule:
    """DualPipe folded at its middle: two stages a rank as in ZB-V, a forward paired with a backward in the main part.

    DeepSeek-AI's DualPipe repository, 2025. ValueError for fewer micro-batches than stages, 2p.
    """
    p = world_size
    rows = [_dual_pipe(r, p, num_micro_batches, r, 2 * p - 1 - r) for r in range(p)]
    paired = frozenset().union(*(pairs for _, pairs in rows))
    return _made("DualPipeV", [order for order, _ in rows], vee(p), num_micro_batches, paired)


def dual_pipe(world_size: int, num_micro_batches: int) -> PipelineSchedule:
    """Half the micro-batches from each end at once, so every rank has two stages (DeepSeek-V3, 2024).

    Stage s is on rank s and, as a copy, on rank p - 1 - s. ValueError unless p and m are even, and m is 2p or more.
    """
    p, half = world_size, num_micro_batches // 2
    if p % 2 or num_micro_batches % 2:
        raise ValueError(f"DualPipe has two halves: {p} ranks, {num_micro_batches} micro-batches are not both even")
    orders, paired = [], set()
    for rank in range(p):
        near, far = min(rank, p - 1 - rank), max(rank, p - 1 - rank)  # from the nearer end, the stage that comes first
        order, pairs = _dual_pipe(near, p // 2, half, near, far)
        late = far if rank == near else near  # the stage that this rank has for the second half of the micro-batches
        moved = {o: o._replace(micro_batch=o.micro_batch + half) if o.stage == late else o for o in order}
        orders.append(list(moved.values()))
        paired.update(moved[operation] for operation in pairs)
    return _made("DualPipe", orders, (*loop(p), tuple(reversed(range(p)))), num_micro_batches, frozenset(paired))


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
"""Every schedule here: (world_size, num_micro_batches) -> PipelineSchedule."""


def loop(world_size: int, stages_a_rank: int = 1) -> tuple[tuple[int, ...], ...]:
    """The route that goes round: stage s on rank s mod p."""
    return (tuple(range(world_size)) * stages_a_rank,)


def vee(world_size: int) -> tuple[tuple[int, ...], ...]:
    """The route down all ranks and back up: stages r and 2p - 1 - r on rank r."""
    return ((*range(world_size), *reversed(range(world_size))),)


def _made(
    name: str, orders: Iterable[Iterable], routes: tuple, num_micro_batches: int, paired: frozenset = frozenset()
) -> PipelineSchedule:
    return PipelineSchedule(tuple(map(tuple, orders)), routes, num_micro_batches, paired, name)


def _each(kind: str, stage: int, micro_batches: Iterable[int]) -> list[Operation]:
    return [Operation(kind, stage, micro_batch) for micro_batch in micro_batches]


def _in_turns(
    forwards: list[Operation], backwards: list[Operation], ahead: int, delay: int | None = None
) -> list[Operation]:
    """`ahead` forwards, then a forward and a backward in turns while there are forwards, then the backwards left.

    `delay`: where backwards are I, how many more of them come before the W of each.
    """
    order, late = forwards[:ahead], []
    for number, backward in enumerate(backwards):
        order += [*forwards[ahead + number :][:1], backward]
        if delay is not None:
            late.append(backward._replace(kind=W))
            order += [late.pop(0)] if number >= delay else []
    return order + late


def _rounds(
    rank: int, world_size: int, num_micro_batches: int, stages_a_rank: int, kind: str
) -> tuple[list[Operation], list[Operation], int]:
    """The forwards and the backwards of a rank in rounds, first to last stage and back, and the length of a round."""
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
    """(kind, stage) after (kind, stage), each for the next micro-batch. W is of the oldest I that has none yet.

    A W without a stage is of the oldest of all stages.
    """
    done: Counter[tuple[bool, int]] = Counter()  # forwards and backwards of each stage so far
    late: list[Operation] = []
    for kind, stage in pattern:
        if kind == W:
            operation = next(operation for operation in late if stage in (None, operation.stage))
            late.remove(operation)
            yield operation._replace(kind=W)
            continue
        operation = Operation(kind, stage, done[kind == F, stage])
        done[kind == F, stage] += 1
        late += [operation] if kind == I else []
        yield operation


def _dual_pipe(r: int, p: int, m: int, first: int, second: int) -> tuple[list[Operation], list[Operation]]:
    """What rank r of p does with m micro-batches in DualPipe, the two stages that it has, and its paired forwards.

    The eight phases of DeepSeek's code. B is whole at first; from the middle of the sixth on it is split.
    """
    if m < 2 * p:
        raise ValueError(f"DualPipe fills a pipeline of {2 * p} stages: {m} micro-batches a direction are too few")
    (fa, ba, ia), (fb, bb, ib) = ([(kind, stage) for kind in (F, B, I)] for stage in (first, second))
    w = (W, None)
    warm_up = [fa] * 2 * (p - r - 1) + [fa, fb] * (r + 1) + [ib, w, fb] * (p - r - 1)
    main = [fa, bb, fb, ba] * (m - 2 * p + r + 1) + [bb, fb, ba] * (p - r - 1)
    whole, split = ([bb, ba] * (r + 1))[: r + 1], ([ib, ia] * (r + 1))[r + 1 :]
    order = list(_counted(warm_up + main + whole + split + [w, ia] * (p - r - 1) + [w] * (r + 1)))
    alone = len(warm_up) if r == p - 1 else None  # the innermost rank's first F and B are no pair: B comes sooner so
    paired = [
        order[place]
        for place in range(len(warm_up), len(warm_up) + len(main))
        if order[place].kind == F and place != alone
    ]
    return order, paired
