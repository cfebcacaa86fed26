"""A training step on streams: what computes, what communicates, and how much of the communication costs time.

    step = run(sharded(layers, all_gather=seconds_of, reduce_scatter=seconds_of, prefetch=1))
    step.seconds, step.exposed, step.hidden
    draw({"predicted": step, "measured": Timeline.measured(spans)})

A stream runs its tasks one after another in the order in which it was given them, as a GPU's streams do, and streams
run side by side. Communication is *hidden* while the same rank computes and *exposed* while it does not: exposed
seconds make the step longer than its computing. What is not modelled: that communication and computing slow each other
down, that two collectives share a link, and that a launch takes the CPU time.

Seconds may be symbols of `collectives.formula`, which a reader sets later on a page. What is told of such a timeline
does not ask which of two moments comes first: `Timeline.exposed_intervals` says how.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..formula import FormulaError, Symbol, maximum

COMMUNICATION = frozenset({"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send_recv"})
"""The kinds of task that communicate. Tasks of any other kind compute."""

ROUNDING = 1e-9  # moments of a timeline that differ by less than this part are one

Price = Callable[[float], float]  # bytes of a collective's full buffer (S) -> seconds
Interval = tuple[float, float]  # from, until, in seconds


class Task(NamedTuple):
    """Something that a stream has to do. It begins when its stream is free and all tasks in `after` have ended.

    `kind`: what sort of work it is, as "forward" or one of `COMMUNICATION`. `group`: whose stream it is, as "rank 0",
    where several ranks are told apart; two ranks' streams of one name are two streams.
    """

    name: str
    stream: str
    seconds: float
    after: tuple[str, ...] = ()
    kind: str = "compute"
    group: str = ""


class Span(NamedTuple):
    """Something that was done, or will have been: in `lane` of `group`, from `start` on for `seconds`."""

    name: str
    lane: str
    start: float
    seconds: float
    kind: str = "compute"
    group: str = ""

    @property
    def end(self) -> float:
        """When it has ended, in seconds."""
        return self.start + self.seconds


class Overlap(NamedTuple):
    """Seconds of communication: exposed, while its rank computes nothing, and hidden, while it computes."""

    exposed: float
    hidden: float


@dataclass(frozen=True)
class Timeline:
    """Spans on one axis of time that begins at 0, predicted by `run` or `measured`.

    `spans` in any order; those of one lane should not overlap. `communication`: the kinds that communicate. Raises
    `ValueError` for a start or a length that is no number of seconds from 0 on.
    """

    spans: tuple[Span, ...]
    communication: frozenset[str] = field(default=COMMUNICATION, repr=False)

    def __post_init__(self):
        for span in self.spans:
            if not (_is_time(span.start) and _is_time(span.seconds)):
                raise ValueError(
                    f"span {span.name!r} begins at {span.start} and takes {span.seconds}: both must be seconds, 0 or "
                    "more. Timeline.measured(spans) sets the clock of a recording to 0."
                )

    @classmethod
    def measured(cls, spans: Iterable[Span], communication: frozenset[str] = COMMUNICATION) -> Timeline:
        """The timeline of spans read off a real run, by any clock that all of them share: the first begins at 0."""
        spans = [Span(*span) for span in spans]
        begin = min((span.start for span in spans), default=0.0)
        return cls(tuple(span._replace(start=span.start - begin) for span in spans), communication)

    @property
    def seconds(self) -> float:
        """When the last span ends."""
        return maximum(0.0, *(span.end for span in self.spans))

    @property
    def groups(self) -> list[str]:
        """Whose spans these are, in the order in which they first occur."""
        return list(dict.fromkeys(span.group for span in self.spans))

    @property
    def lanes(self) -> list[tuple[str, str]]:
        """(group, lane) of all spans: group by group, the lanes that compute first, otherwise as they first occur."""
        groups, found = self.groups, dict.fromkeys((span.group, span.lane) for span in self.spans)
        computing = {(span.group, span.lane) for span in self.spans if span.kind not in self.communication}
        return sorted(found, key=lambda lane: (groups.index(lane[0]), lane not in computing))

    def only(self, group: str) -> Timeline:
        """The timeline of one group alone."""
        return Timeline(tuple(span for span in self.spans if span.group == group), self.communication)

    def lasting(self) -> Timeline:
        """Without the spans that take no time, to draw the others."""
        return Timeline(tuple(span for span in self.spans if span.seconds), self.communication)

    @property
    def computing(self) -> float:
        """Seconds in which a group computes, summed over the groups."""
        return sum(_total(self._busy(group, communicates=False)) for group in self.groups)

    @property
    def exposed(self) -> float:
        """Seconds in which a group's communication is under way and the group computes nothing, summed over groups.

        With several ranks these are rank-seconds; `only("rank 0").exposed` is one rank's.
        """
        return sum(_total(intervals) for intervals in self.exposed_intervals().values())

    @property
    def hidden(self) -> float:
        """Seconds in which a group's communication is under way while the group computes, summed over groups."""
        return sum(_total(self._busy(group)) for group in self.groups) - self.exposed

    @property
    def communicating(self) -> float:
        """Seconds of all collectives, one after another: what two of them do at the same time counts twice."""
        return sum(span.seconds for span in self.spans if span.kind in self.communication)

    @property
    def by_kind(self) -> dict[str, Overlap]:
        """Exposed and hidden seconds of each kind of communication. What two kinds share counts for both."""
        kinds = dict.fromkeys(span.kind for span in self.spans if span.kind in self.communication)
        return {kind: self._overlap(kind) for kind in kinds}

    def exposed_intervals(self) -> dict[str, list[Interval]]:
        """By group, when its communication is exposed: [(from, until)] in seconds, in order.

        On symbols: when the one stream that computes waits, intervals that may be empty. In what `run` made of one
        group's tasks something is always under way, for each task begins when another ends; so what is not computing
        is exposed communication, and exposed = seconds - computing. Raises `FormulaError` for several groups, or
        several lanes that compute.
        """
        if self._on_symbols:
            return {group: self._waits(group) for group in self.groups}
        return {
            group: list(_without(self._busy(group), self._busy(group, communicates=False))) for group in self.groups
        }

    def _overlap(self, kind: str) -> Overlap:
        busy = exposed = 0.0
        for group in self.groups:
            under_way = _union(span for span in self.spans if span.group == group and span.kind == kind)
            busy += _total(under_way)
            exposed += _total(_without(under_way, self._busy(group, communicates=False)))
        return Overlap(exposed, busy - exposed)

    def _busy(self, group: str, communicates: bool = True) -> list[Interval]:
        mine = (span for span in self.spans if span.group == group)
        busy = [span for span in mine if (span.kind in self.communication) == communicates]
        return _in_a_row(busy) if self._on_symbols else _union(busy)

    @property
    def _on_symbols(self) -> bool:
        return any(isinstance(number, Symbol) for span in self.spans for number in (span.start, span.seconds))

    def _waits(self, group: str) -> list[Interval]:
        """When the one lane that computes does not, from 0 until the end; some may be empty."""
        if len(self.groups) > 1:
            raise FormulaError(f"{len(self.groups)} groups: on symbols exposed communication is told of one rank alone")
        edges = [(0.0, 0.0), *self._busy(group, communicates=False), (self.seconds, self.seconds)]
        return [(end, start) for (_, end), (start, _) in pairwise(edges)]


def _union(spans: Iterable[Span]) -> list[Interval]:
    """When at least one of `spans` is under way, as intervals that do not touch; rounding leaves no gaps."""
    merged: list[Interval] = []
    for start, end in sorted((span.start, span.end) for span in spans if span.seconds):
        if merged and start <= merged[-1][1] * (1 + ROUNDING):
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _in_a_row(spans: list[Span]) -> list[Interval]:
    """As `_union`, but of one lane alone: its spans are in order already."""
    if len(lanes := dict.fromkeys(span.lane for span in spans)) > 1:
        raise FormulaError(f"lanes {', '.join(lanes)}: on symbols, when one of several is busy cannot be told")
    return [(span.start, span.end) for span in spans]


def _without(intervals: list[Interval], taken: list[Interval]) -> Iterator[Interval]:
    """What is left of `intervals` outside of `taken`; both in order and free of overlap."""
    for start, end in intervals:
        for out, back in taken:
            if back > start and out < end:
                if out > start * (1 + ROUNDING):
                    yield start, out
                start = back
        if start * (1 + ROUNDING) < end:
            yield start, end


def _total(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def _is_time(seconds: float) -> bool:
    """Whether that is a number of seconds from 0 on; of a symbol nothing is known yet."""
    return isinstance(seconds, Symbol) or 0 <= seconds < math.inf


# --- tasks on streams -------------------------------------------------------------------------------------------


def run(tasks: Iterable[Task]) -> Timeline:
    """When each task runs, if every one begins as soon as it may: the spans come in the order of `tasks`.

    Raises `ValueError` for a name used twice, for an unknown name in `after`, for a length that is no number of
    seconds, and for tasks that wait for each other for ever: it says which waits for which.
    """
    tasks = list(tasks)
    _check(tasks)
    streams: dict[tuple[str, str], deque[Task]] = defaultdict(deque)
    for task in tasks:
        streams[task.group, task.stream].append(task)
    free = dict.fromkeys(streams, 0.0)  # when each stream has ended what it has run so far
    done: dict[str, Span] = {}
    while len(done) < len(tasks):
        before = len(done)
        for (group, stream), waiting in streams.items():
            while waiting and all(name in done for name in waiting[0].after):
                task = waiting.popleft()
                start = maximum(free[group, stream], *(done[name].end for name in task.after))
                done[task.name] = Span(task.name, stream, start, task.seconds, task.kind, group)
                free[group, stream] = done[task.name].end
        if len(done) == before:
            raise ValueError(_deadlock(streams, done))
    return Timeline(tuple(done[task.name] for task in tasks))


def _check(tasks: list[Task]) -> None:
    names: set[str] = set()
    for task in tasks:
        if task.name in names:
            raise ValueError(f"two tasks are called {task.name!r}: `after` could not tell them apart, so rename one")
        names.add(task.name)
        if not _is_time(task.seconds):
            raise ValueError(f"task {task.name!r} takes {task.seconds}: that must be seconds, 0 or more")
    for task in tasks:
        if isinstance(task.after, str):
            raise ValueError(f"task {task.name!r} comes after {task.after!r}: write a tuple, ({task.after!r},)")
        for name in task.after:
            if name not in names:
                raise ValueError(f"task {task.name!r} comes after {name!r}, but no task has that name")


def _deadlock(streams: dict[tuple[str, str], deque[Task]], done: dict[str, Span]) -> str:
    """Who waits for whom: the first task of each stream that has any left."""
    ahead = {}  # of each task left, the first one left on its stream
    for waiting in streams.values():
        ahead.update((task.name, waiting[0].name) for task in waiting)
    waits = []
    for (group, stream), waiting in streams.items():
        if waiting:
            name = next(name for name in waiting[0].after if name not in done)
            behind = f" (which is behind {ahead[name]!r} on its stream)" if ahead[name] != name else ""
            waits.append(f"{waiting[0].name!r} on {f'{group} {stream}'.strip()} waits for {name!r}{behind}")
    return f"deadlock, no task can begin: {'; '.join(waits)}"


# --- a step of training as tasks --------------------------------------------------------------------------------


class Layer(NamedTuple):
    """One layer: seconds of its forward and its backward pass, and bytes of its parameters as they are communicated.

    `gradient_bytes`: of its gradients as they are communicated, where that is in another precision.
    """

    forward: float
    backward: float
    num_bytes: float
    gradient_bytes: float | None = None

    @property
    def reduced_bytes(self) -> float:
        """Bytes of the gradients."""
        return self.num_bytes if self.gradient_bytes is None else self.gradient_bytes


def data_parallel(
    layers: Sequence[Layer], buckets: Sequence[Sequence[int]], all_reduce: Price, optimizer: float = 0.0
) -> list[Task]:
    """A step of data parallelism: each bucket is all-reduced as soon as its last gradient is there, as DDP does it.

    `buckets`: the numbers of the layers in each bucket, in the order of launch; the backward pass goes from the last
    layer to the first. `all_reduce`: the seconds that one of so many bytes takes. `optimizer`: seconds of the update,
    which begins when all is reduced. Buckets use one stream, one after another. One bucket of all layers overlaps with
    nothing. Raises `ValueError` if the buckets do not hold every layer once.
    """
    backward = [*_forward(layers), *_backward(layers)]
    reduced = [
        Task(f"all-reduce {i}", "communication", all_reduce(num_bytes), (ready,), "all_reduce")
        for i, (ready, num_bytes) in enumerate(_filled(layers, buckets))
    ]
    return [*backward, *reduced, _optimizer(optimizer, [backward[-1], *reduced])]


def sharded_optimizer(
    layers: Sequence[Layer],
    buckets: Sequence[Sequence[int]],
    reduce_scatter: Price,
    all_gather: Price,
    optimizer: float = 0.0,
) -> list[Task]:
    """A step of ZeRO stage 1 or 2: as `data_parallel`, but each rank gets, and updates, only its own shard.

    Buckets of gradients are reduce-scattered during the backward pass; after the update (`optimizer`: seconds, of one
    shard) the new parameters are all-gathered by the same buckets, the first layers' first. The stages differ in what
    is kept, not in when it moves. Arguments and errors otherwise as in `data_parallel`.
    """
    backward = [*_forward(layers), *_backward(layers)]
    scattered = [
        Task(f"reduce-scatter {i}", "communication", reduce_scatter(num_bytes), (ready,), "reduce_scatter")
        for i, (ready, num_bytes) in enumerate(_filled(layers, buckets))
    ]
    update = _optimizer(optimizer, [backward[-1], *scattered])
    gathered = []
    for i, bucket in reversed(list(enumerate(buckets))):
        seconds = all_gather(sum(layers[layer].num_bytes for layer in bucket))
        gathered.append(Task(f"all-gather {i}", "communication", seconds, (update.name,), "all_gather"))
    return [*backward, *scattered, update, *gathered]


def sharded(
    layers: Sequence[Layer],
    all_gather: Price,
    reduce_scatter: Price,
    optimizer: float = 0.0,
    prefetch: int | tuple[int, int] = 1,
    reshard: bool = True,
    streams: int = 2,
    in_flight: float = 1,
) -> list[Task]:
    """A step of FSDP, which is ZeRO stage 3: a layer's parameters are gathered before use, its gradients scattered.

    A layer's parameters are all-gathered before its forward pass and, unless `reshard` is False (they are kept then),
    again before its backward pass; its gradients are reduce-scattered after it. `all_gather`, `reduce_scatter`: the
    seconds that one of so many bytes (S, the full layer's) takes. `optimizer`: seconds of updating one shard.

    `prefetch`: how many layers ahead a gather may run: the gather of layer k + n is launched when layer k begins to
    compute, that is when the layer before it has ended. 0: only when the layer before its own has ended. A pair is
    for (forward, backward). The first gather of the backward pass begins when the forward pass has ended.
    `streams`: 2 lets a gather and a reduce-scatter run at once, each kind in order; 1 runs all of them in the order of
    launch, as one NCCL communicator does. `in_flight`: how many reduce-scatters may be unfinished when the next
    layer's backward pass goes on: their inputs take memory.

    What torch's FSDP2 does, read from torch 2.13, `torch/distributed/fsdp/_fully_shard`, `_fsdp_param_group.py`:
    gathers and reduce-scatters have a stream each. In forward, gather k + 2 waits for the copy-out of layer k
    (`wait_for_unshard`), so that (2, 1) are the implicit depths as long as the CPU runs ahead of the GPU; in backward,
    gather k - 1 is launched when layer k's own has been copied out (`_backward_prefetch`).
    `set_modules_to_forward_prefetch` and its twin for backward launch earlier. Before a layer's reduce-scatter the
    compute stream waits for the one before (`post_backward`): `in_flight=1`, its `max_input_buffers`. Copies in and
    out, casts and the root's own parameters are left out here.

    Raises `ValueError` for a depth below 0, for other than 1 or 2 streams, or if nothing may be in flight.
    """
    forward_ahead, backward_ahead = prefetch if isinstance(prefetch, tuple) else (prefetch, prefetch)
    if min(forward_ahead, backward_ahead) < 0 or streams not in (1, 2) or in_flight < 1:
        raise ValueError(
            f"prefetch={prefetch}, streams={streams}, in_flight={in_flight}: prefetch is 0 or more layers ahead, "
            "streams is 1 or 2, and in_flight is at least 1"
        )
    gathers, scatters = ("all-gather", "reduce-scatter") if streams == 2 else ("communication", "communication")
    last = len(layers) - 1

    def gather(name: str, k: int, launched: tuple[str, ...]) -> Task:
        return Task(name, gathers, all_gather(layers[k].num_bytes), launched, "all_gather")

    def free_for_backward(k: int) -> tuple[str, ...]:
        """What the compute stream has behind it when it comes to layer k's backward pass."""
        if k >= last:
            return (f"forward {last}",)
        scattered = k + 1 + in_flight
        return (f"backward {k + 1}", *((f"scatter {scattered:.0f}",) if scattered <= last else ()))

    tasks = []
    for k, layer in enumerate(layers):
        launched = k - forward_ahead - 1  # the layer before the one that launches it
        tasks.append(gather(f"gather {k}", k, (f"forward {launched}",) if launched >= 0 else ()))
        tasks.append(Task(f"forward {k}", "compute", layer.forward, (f"gather {k}",), "forward"))
    to_gather = last
    for k in range(last, -1, -1):
        while reshard and to_gather >= max(0, k - backward_ahead):
            tasks.append(gather(f"gather {to_gather} again", to_gather, free_for_backward(to_gather + backward_ahead)))
            to_gather -= 1
        needs = (*free_for_backward(k), *((f"gather {k} again",) if reshard else ()))
        tasks.append(Task(f"backward {k}", "compute", layers[k].backward, needs, "backward"))
        seconds = reduce_scatter(layers[k].reduced_bytes)
        tasks.append(Task(f"scatter {k}", scatters, seconds, (f"backward {k}",), "reduce_scatter"))
    return [*tasks, _optimizer(optimizer, [task for task in tasks if task.kind == "reduce_scatter"])]


HALVES = (("attention", 1 / 3), ("MLP", 2 / 3))
"""The halves of a transformer's layer and their share of its computing: 4 and 8 of 12 hidden^2 weights."""


def tensor_and_sharded(
    layers: Sequence[Layer],
    all_reduce: Price,
    all_gather: Price,
    reduce_scatter: Price,
    activation_bytes: float,
    optimizer: float = 0.0,
    **options,
) -> list[Task]:
    """A step of tensor parallelism inside a layer and FSDP along the other axis, as one rank of the mesh has it.

    `layers`: this rank's tensor-parallel share of each, 1 / tp_size of its computing and of its bytes; `sharded`, which
    says what the other arguments and errors are, gathers and scatters those among the data-parallel ranks. Every half
    of a layer ends in an all-reduce of `activation_bytes` among the tensor-parallel ranks: see `with_sums`.
    """
    return with_sums(sharded(layers, all_gather, reduce_scatter, optimizer, **options), all_reduce(activation_bytes))


def with_sums(tasks: Iterable[Task], all_reduce: float, halves: Sequence[tuple[str, float]] = HALVES) -> list[Task]:
    """A step's `tasks`, of any builder here, in which every layer is also split by tensor parallelism.

    Each pass of a layer becomes its `halves`, (name, share of the computing), backward the last one first, and behind
    each comes an all-reduce of `all_reduce` seconds, on a stream of its own. What comes next takes the sum in, so it
    waits: no prefetching hides an all-reduce, while gathers and reduce-scatters go on beside it. A pass keeps its name,
    as the moment when its last sum is there; whatever waits for it waits for that.
    """
    split: list[Task] = []
    for task in tasks:
        if task.kind not in ("forward", "backward"):
            split.append(task)
            continue
        after = task.after
        for half, share in halves if task.kind == "forward" else reversed(halves):
            work, total = f"{task.name} {half}", f"sum of {task.name} {half}"
            split.append(task._replace(name=work, seconds=share * task.seconds, after=after))
            split.append(Task(total, "all-reduce", all_reduce, (work,), "all_reduce", task.group))
            after = (total,)
        split.append(task._replace(seconds=0.0, after=after))
    return split


def _forward(layers: Sequence[Layer]) -> list[Task]:
    return [Task(f"forward {k}", "compute", layer.forward, (), "forward") for k, layer in enumerate(layers)]


def _backward(layers: Sequence[Layer]) -> list[Task]:
    passes = [Task(f"backward {k}", "compute", layer.backward, (), "backward") for k, layer in enumerate(layers)]
    return passes[::-1]


def _optimizer(seconds: float, waits_for: Sequence[Task]) -> Task:
    return Task("optimizer", "compute", seconds, tuple(task.name for task in waits_for), "optimizer")


def _filled(layers: Sequence[Layer], buckets: Sequence[Sequence[int]]) -> Iterator[tuple[str, float]]:
    """For each bucket the task that fills it, its first layer's backward pass, and its bytes."""
    held = sorted(layer for bucket in buckets for layer in bucket)
    if held != list(range(len(layers))) or not all(map(len, buckets)):
        raise ValueError(
            f"the buckets hold layers {held}: each of the {len(layers)} layers, 0 to {len(layers) - 1}, must be in one "
            "bucket, and no bucket may be empty"
        )
    for bucket in buckets:
        yield f"backward {min(bucket)}", sum(layers[layer].reduced_bytes for layer in bucket)
