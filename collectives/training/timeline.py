"""A training step on streams: what computes, what communicates, and how much communication is exposed.

    step = run(sharded(layers, all_gather=seconds_of, reduce_scatter=seconds_of, prefetch=1))
    step.seconds, step.exposed, step.hidden
    draw({"predicted": step, "measured": Timeline.measured(spans)})

A stream runs its tasks one after another in launch order, as a GPU's streams do, and streams run side by side.
Communication is *hidden* while the same rank computes and *exposed* otherwise. Exposed seconds make the step longer
than its compute. The model leaves out that communication and compute slow each other down, that collectives share a
link, and that a launch costs CPU time.

Seconds may be symbols of `collectives.formula`, which a reader sets later on a page. The properties of such a timeline
never compare two moments: see `Timeline.exposed_intervals`.
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

ROUNDING = 1e-9  # two moments whose relative difference is smaller count as one

Price = Callable[[float], float]  # bytes of a collective's full buffer (S) -> seconds
Interval = tuple[float, float]  # from, until, in seconds


class Task(NamedTuple):
    """Work for a stream. It begins when its stream is free and all tasks in `after` have ended.

    `kind`: the work, such as "forward" or one of `COMMUNICATION`. `group`: its stream's owner, such as "rank 0",
    if there are several ranks. Streams of different groups are different streams, even with the same name.
    """

    name: str
    stream: str
    seconds: float
    after: tuple[str, ...] = ()
    kind: str = "compute"
    group: str = ""


class Span(NamedTuple):
    """Work with its time, measured or predicted: in `lane` of `group`, from `start` on, for `seconds`."""

    name: str
    lane: str
    start: float
    seconds: float
    kind: str = "compute"
    group: str = ""

    @property
    def end(self) -> float:
        """When the span ends, in seconds."""
        return self.start + self.seconds


class Overlap(NamedTuple):
    """Seconds of communication: exposed while its rank computes nothing, hidden while it computes."""

    exposed: float
    hidden: float


@dataclass(frozen=True)
class Timeline:
    """Spans on one time axis that begins at 0, predicted by `run` or `measured`.

    `spans` may be in any order; those of one lane shouldn't overlap. `communication`: the kinds that communicate.
    Raises `ValueError` for a start or a length that isn't 0 or more seconds.
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
        """Return the timeline of spans from a real run, shifted so that the first begins at 0. All share one clock."""
        spans = [Span(*span) for span in spans]
        begin = min((span.start for span in spans), default=0.0)
        return cls(tuple(span._replace(start=span.start - begin) for span in spans), communication)

    @property
    def seconds(self) -> float:
        """When the last span ends."""
        return maximum(0.0, *(span.end for span in self.spans))

    @property
    def groups(self) -> list[str]:
        """The groups of the spans, in order of first occurrence."""
        return list(dict.fromkeys(span.group for span in self.spans))

    @property
    def lanes(self) -> list[tuple[str, str]]:
        """The (group, lane) pairs, group by group: lanes that compute first, then by first occurrence."""
        groups, lanes = self.groups, dict.fromkeys((span.group, span.lane) for span in self.spans)
        computing = {(span.group, span.lane) for span in self.spans if span.kind not in self.communication}
        return sorted(lanes, key=lambda lane: (groups.index(lane[0]), lane not in computing))

    def only(self, group: str) -> Timeline:
        """Return the timeline of one group."""
        return Timeline(tuple(span for span in self.spans if span.group == group), self.communication)

    def lasting(self) -> Timeline:
        """Return the timeline without the spans that take no time, for drawing."""
        return Timeline(tuple(span for span in self.spans if span.seconds), self.communication)

    @property
    def computing(self) -> float:
        """Seconds in which a group computes, summed over groups."""
        return sum(_total(self._busy(group, communicates=False)) for group in self.groups)

    @property
    def exposed(self) -> float:
        """Seconds in which a group communicates and computes nothing, summed over groups.

        With several ranks these are rank-seconds; `only("rank 0").exposed` is one rank's.
        """
        return sum(_total(intervals) for intervals in self.exposed_intervals().values())

    @property
    def hidden(self) -> float:
        """Seconds in which a group communicates and computes at the same time, summed over groups."""
        return sum(_total(self._busy(group)) for group in self.groups) - self.exposed

    @property
    def communicating(self) -> float:
        """The summed lengths of all collectives: time when two of them overlap counts twice."""
        return sum(span.seconds for span in self.spans if span.kind in self.communication)

    @property
    def by_kind(self) -> dict[str, Overlap]:
        """Exposed and hidden seconds of each kind of communication. Time when two kinds overlap counts for both."""
        kinds = dict.fromkeys(span.kind for span in self.spans if span.kind in self.communication)
        return {kind: self._overlap(kind) for kind in kinds}

    def exposed_intervals(self) -> dict[str, list[Interval]]:
        """Return, by group, the intervals of exposed communication: [(from, until)] in seconds, in order.

        On symbols: the intervals, some perhaps empty, in which the one compute lane waits. In a timeline that `run`
        made for one group, each task begins when another ends, so something always runs. All time outside compute is
        then exposed communication: exposed = seconds - computing. Raises `FormulaError` on symbols for several groups
        or several lanes that compute.
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
        """Return the gaps of the one compute lane, from 0 until the end; some may be empty."""
        if len(self.groups) > 1:
            raise FormulaError(f"{len(self.groups)} groups: on symbols, exposed communication needs a single rank")
        edges = [(0.0, 0.0), *self._busy(group, communicates=False), (self.seconds, self.seconds)]
        return [(end, start) for (_, end), (start, _) in pairwise(edges)]


def _union(spans: Iterable[Span]) -> list[Interval]:
    """Return when at least one of `spans` runs, as disjoint intervals; gaps within `ROUNDING` are closed."""
    merged: list[Interval] = []
    for start, end in sorted((span.start, span.end) for span in spans if span.seconds):
        if merged and start <= merged[-1][1] * (1 + ROUNDING):
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _in_a_row(spans: list[Span]) -> list[Interval]:
    """Return the intervals of `spans` of a single lane, which are in order already: `_union` without comparisons."""
    if len(lanes := dict.fromkeys(span.lane for span in spans)) > 1:
        raise FormulaError(f"lanes {', '.join(lanes)}: on symbols, busy time needs a single lane")
    return [(span.start, span.end) for span in spans]


def _without(intervals: list[Interval], taken: list[Interval]) -> Iterator[Interval]:
    """Yield the parts of `intervals` outside `taken`; both are in order and don't overlap themselves."""
    for start, end in intervals:
        for taken_from, taken_until in taken:
            if taken_until > start and taken_from < end:
                if taken_from > start * (1 + ROUNDING):
                    yield start, taken_from
                start = taken_until
        if start * (1 + ROUNDING) < end:
            yield start, end


def _total(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def _is_time(seconds: float) -> bool:
    """Check that `seconds` is finite and not negative; any symbol passes, since its value isn't known yet."""
    return isinstance(seconds, Symbol) or 0 <= seconds < math.inf


# --- tasks on streams -------------------------------------------------------------------------------------------


def run(tasks: Iterable[Task]) -> Timeline:
    """Return the timeline in which every task begins as soon as it can. The spans come in the order of `tasks`.

    Raises `ValueError` for a repeated name, an unknown name in `after`, a length that isn't 0 or more seconds, and a
    deadlock, with the task that each stream waits for.
    """
    tasks = list(tasks)
    _check(tasks)
    streams: dict[tuple[str, str], deque[Task]] = defaultdict(deque)
    for task in tasks:
        streams[task.group, task.stream].append(task)
    free = dict.fromkeys(streams, 0.0)  # when each stream becomes free
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
            raise ValueError(f"two tasks are called {task.name!r}: `after` can't tell them apart, so rename one")
        names.add(task.name)
        if not _is_time(task.seconds):
            raise ValueError(f"task {task.name!r} takes {task.seconds}: it must be seconds, 0 or more")
    for task in tasks:
        if isinstance(task.after, str):
            raise ValueError(f"task {task.name!r} comes after {task.after!r}: write a tuple, ({task.after!r},)")
        for name in task.after:
            if name not in names:
                raise ValueError(f"task {task.name!r} comes after {name!r}, but no task has that name")


def _deadlock(streams: dict[tuple[str, str], deque[Task]], done: dict[str, Span]) -> str:
    """Return the message of a deadlock: what the first remaining task of each stream waits for."""
    ahead: dict[str, str] = {}  # remaining task -> first remaining task on its stream
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
    """A layer's cost: seconds of its forward and backward pass, and bytes of its parameters on the wire.

    `gradient_bytes`: bytes of its gradients on the wire, if they have another precision.
    """

    forward: float
    backward: float
    num_bytes: float
    gradient_bytes: float | None = None

    @property
    def reduced_bytes(self) -> float:
        """Bytes of the gradients on the wire."""
        return self.num_bytes if self.gradient_bytes is None else self.gradient_bytes


def data_parallel(
    layers: Sequence[Layer],
    buckets: Sequence[Sequence[int]],
    all_reduce: Price,
    optimizer: float = 0.0,
) -> list[Task]:
    """Return the tasks of a step that all-reduces each bucket once complete, as DDP does.

    `buckets`: the indices of the layers in each bucket, in launch order; the backward
    pass goes from the last layer to the first. `all_reduce`: bytes -> seconds.
    `optimizer`: seconds of the update, which begins after the last all-reduce. Buckets
    share one stream. A single bucket of all layers overlaps with nothing. Raises
    `ValueError` if the buckets don't hold every layer once.
    """
    backward = [*_forward(layers), *_backward(layers)]
    reduced = []
    for i, (ready, num_bytes) in enumerate(_filled(layers, buckets)):
        seconds = all_reduce(num_bytes)
        name = f"all-reduce {i}"
        reduced.append(Task(name, "communication", seconds, (ready,), "all_reduce"))
    return [*backward, *reduced, _optimizer(optimizer, [backward[-1], *reduced])]


def sharded_optimizer(
    layers: Sequence[Layer],
    buckets: Sequence[Sequence[int]],
    reduce_scatter: Price,
    all_gather: Price,
    optimizer: float = 0.0,
) -> list[Task]:
    """Return the tasks of a ZeRO step, stage 1 or 2: like `data_parallel`, but each rank updates only its own shard.

    Buckets of gradients are reduce-scattered during the backward pass. After the update, the new parameters are
    all-gathered by the same buckets, first layers first. `optimizer`: seconds of updating one shard. The stages differ
    in what they keep, not in when it moves. Other arguments and errors are those of `data_parallel`.
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
    """Return the tasks of an FSDP step (ZeRO stage 3), which gathers parameters before use and scatters gradients.

    A layer's parameters are all-gathered before its forward pass, and again before its backward pass unless `reshard`
    is False, which keeps them. Its gradients are reduce-scattered after the backward pass. `all_gather`,
    `reduce_scatter`: bytes (S, the full layer) -> seconds. `optimizer`: seconds of updating one shard.

    `prefetch`: how many layers ahead a gather may run, or a pair (forward, backward). With n, the gather of layer k + n
    is launched when layer k begins to compute, that is, when the layer before k ends; with 0, when the layer before its
    own ends. The first gather of the backward pass begins when the forward pass ends.
    `streams`: 2 lets a gather and a reduce-scatter run at once, each kind in order; 1 runs all in launch order, as one
    NCCL communicator does. `in_flight`: how many reduce-scatters may be unfinished when the next layer's backward pass
    starts. Their inputs take memory.

    How torch's FSDP2 does it, from torch 2.13, `torch/distributed/fsdp/_fully_shard`, `_fsdp_param_group.py`: gathers
    and reduce-scatters have a stream each. In forward, gather k + 2 waits for the copy-out of layer k
    (`wait_for_unshard`), so the implicit depths are (2, 1) as long as the CPU runs ahead of the GPU. In backward,
    gather k - 1 is launched when layer k's own gather has been copied out (`_backward_prefetch`).
    `set_modules_to_forward_prefetch` and its backward twin launch earlier. Before a layer's reduce-scatter the compute
    stream waits for the previous one (`post_backward`): `in_flight=1`, torch's `max_input_buffers`. This model leaves
    out copies in and out, casts and the root's own parameters.

    Raises `ValueError` for a negative depth, for `streams` other than 1 or 2, and for `in_flight` below 1.
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
        """Return the tasks that must end before the compute stream reaches layer k's backward pass."""
        if k >= last:
            return (f"forward {last}",)
        scattered = k + 1 + in_flight
        return (f"backward {k + 1}", *((f"scatter {scattered:.0f}",) if scattered <= last else ()))

    tasks = []
    for k, layer in enumerate(layers):
        launcher = k - forward_ahead - 1  # when this layer ends, the next begins and launches gather k
        tasks.append(gather(f"gather {k}", k, (f"forward {launcher}",) if launcher >= 0 else ()))
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
"""The halves of a transformer layer and their share of its compute: 4 and 8 of 12 hidden^2 weights."""


def tensor_and_sharded(
    layers: Sequence[Layer],
    all_reduce: Price,
    all_gather: Price,
    reduce_scatter: Price,
    activation_bytes: float,
    optimizer: float = 0.0,
    **options,
) -> list[Task]:
    """Return one rank's tasks of a step with tensor parallelism inside each layer and FSDP along the other axis.

    `layers`: this rank's tensor-parallel share of each layer, 1 / tp_size of its compute and bytes. `sharded` gathers
    and scatters these shares among the data-parallel ranks; it documents the other arguments and errors. Every half of
    a layer ends in an all-reduce of `activation_bytes` among the tensor-parallel ranks: see `with_sums`.
    """
    return with_sums(sharded(layers, all_gather, reduce_scatter, optimizer, **options), all_reduce(activation_bytes))


def with_sums(tasks: Iterable[Task], all_reduce: float, halves: Sequence[tuple[str, float]] = HALVES) -> list[Task]:
    """Return the `tasks` of any builder here with every layer also split by tensor parallelism.

    Each pass of a layer becomes its `halves`, (name, share of the compute), in reverse order in the backward pass. An
    all-reduce of `all_reduce` seconds follows each half, on a stream of its own. The next half needs the sum, so no
    prefetching hides an all-reduce, but gathers and reduce-scatters overlap with it. The pass's own name stays as an
    empty task after its last all-reduce, for the tasks that wait for the pass.
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


class Product(NamedTuple):
    """A rank's product under tensor parallelism: its weight stays, and a collective moves its activations.

    `collective`: "all_gather" of its input, "reduce_scatter" or "all_reduce" of its result, or None. `num_bytes`: S of
    that collective. `waits`: whether it needs what the collective before it brings. The gradient of a weight doesn't.
    """

    name: str
    seconds: float
    collective: str | None = None
    num_bytes: float = 0.0
    waits: bool = True
    kind: str = "forward"


def products(
    chain: Iterable[Product], price: Callable[[str, float], float], parts: int = 1, stream: str = "communication"
) -> list[Task]:
    """Return the tasks of products in a row, each of which needs the result of the one before.

    `price`: (collective, S) -> seconds. `parts`: if more than 1, each product beside a gather or a reduce-scatter is
    cut into as many parts as there are ranks. One ring step brings, or takes away, what one part needs or makes: a
    "send_recv" of S / parts. Steps and other parts run at the same time: see `tensor_parallel.gathered_product`. An
    all-reduce stays whole.
    """
    tasks: list[Task] = []
    ready: tuple[str, ...] = ()  # what the next product that waits needs
    for each in chain:
        needs = ready if each.waits else ()
        if parts > 1 and each.collective in ("all_gather", "reduce_scatter"):
            made, done = _in_parts(each, price("send_recv", each.num_bytes / parts), parts, stream, needs)
        else:
            made, done = _whole(each, price(each.collective, each.num_bytes) if each.collective else 0.0, stream, needs)
        tasks += made
        ready = done if each.waits else ready
    return tasks


Made = tuple[list[Task], tuple[str, ...]]  # tasks, and the names of those that the next product needs


def _whole(each: Product, moving: float, stream: str, needs: tuple[str, ...]) -> Made:
    """Return the tasks of a product and of its collective, one after the other."""
    name, sent = each.name, f"{each.collective} of {each.name}"
    if each.collective is None:
        return [Task(name, "compute", each.seconds, needs, each.kind)], (name,)
    if each.collective == "all_gather":
        gather = Task(sent, stream, moving, needs, each.collective)
        return [gather, Task(name, "compute", each.seconds, (sent,), each.kind)], (name,)
    work = Task(name, "compute", each.seconds, needs, each.kind)
    return [work, Task(sent, stream, moving, (name,), each.collective)], (sent,)


def _in_parts(each: Product, step: float, parts: int, stream: str, needs: tuple[str, ...]) -> Made:
    """Return the tasks of a product whose parts run while the others' inputs arrive, or their sums leave."""
    works = [f"{each.name}, part {part}" for part in range(parts)]
    steps = [f"step {number} of {each.name}" for number in range(1, parts)]
    if each.collective == "all_gather":  # the first part is of the rank's own rows
        after = [needs, *((step_name,) for step_name in steps)]
        moves = [Task(name, stream, step, needs, each.collective) for name in steps]
        done: tuple[str, ...] = (works[-1],)
    else:  # the last part is of the rank's own rows
        after = [needs] * parts
        moves = [Task(name, stream, step, (work,), "reduce_scatter") for name, work in zip(steps, works, strict=False)]
        done = (works[-1], steps[-1])
    share = each.seconds / parts
    made = [Task(name, "compute", share, then, each.kind) for name, then in zip(works, after, strict=True)]
    return [*moves, *made], done


def _forward(layers: Sequence[Layer]) -> list[Task]:
    return [Task(f"forward {k}", "compute", layer.forward, (), "forward") for k, layer in enumerate(layers)]


def _backward(layers: Sequence[Layer]) -> list[Task]:
    passes = [Task(f"backward {k}", "compute", layer.backward, (), "backward") for k, layer in enumerate(layers)]
    return passes[::-1]


def _optimizer(seconds: float, waits_for: Sequence[Task]) -> Task:
    return Task("optimizer", "compute", seconds, tuple(task.name for task in waits_for), "optimizer")


def _filled(layers: Sequence[Layer], buckets: Sequence[Sequence[int]]) -> Iterator[tuple[str, float]]:
    """Yield, for each bucket, the name of the task that fills it (its first layer's backward pass) and its bytes."""
    held = sorted(layer for bucket in buckets for layer in bucket)
    if held != list(range(len(layers))) or not all(map(len, buckets)):
        raise ValueError(
            f"the buckets hold layers {held}: each of the {len(layers)} layers, 0 to {len(layers) - 1}, must be in one "
            "bucket, and no bucket may be empty"
        )
    for bucket in buckets:
        yield f"backward {min(bucket)}", sum(layers[layer].reduced_bytes for layer in bucket)
