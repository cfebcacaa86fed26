"""Checks for exercise 16: whether a schedule runs, what each rank keeps, and where it stalls.

F, I and W take one unit of time each; a whole backward, B, takes two. A rank **stalls** when it computes nothing
between its own first operation and its own last. All costs come from `price`, and figures show the stalls.
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, takewhile
from reprlib import repr as brief
from typing import Any, NamedTuple

from ..draw import draw
from ..figures.player import Figure
from ..training import pipeline
from ..training.pipeline import Operation, PipelineCost, PipelineError, PipelineSchedule, peak_activations
from ..training.timeline import Span, Timeline
from . import wall
from .checks import NotYet, call_in_words, check_formula, own_answer, refusing, refusing_functions, show

HOLDS = ()  # see `wall`
WITHOUT = ("torch.distributed.pipelining",)  # it writes 1F1B and ZB-H1

BY_HAND = (4, 8)  # ranks and micro-batches of the schedule that is written as text
_WORD = re.compile(r"([FBIW])(-?\d{1,5})")
_AN_OPERATION = 'an operation is a letter and a micro-batch, as "F0" or ("F", 0)'


def unit_price(schedule: PipelineSchedule) -> PipelineCost:
    """Return the price of `schedule` if F, I and W take one unit of time each."""
    return pipeline.price(schedule, 1, 1, 1)


# Part a: formulas


def bubble_over_total(world_size: int, num_micro_batches: int) -> float:
    """Return the bubble of 1F1B, and of GPipe, from `price`."""
    return _cost_of_1f1b(world_size, num_micro_batches).bubble_over_total


def bubble_over_ideal(world_size: int, num_micro_batches: int) -> float:
    """Return the bubble of 1F1B, and of GPipe, from `price`."""
    return _cost_of_1f1b(world_size, num_micro_batches).bubble_over_ideal


@cache
def _cost_of_1f1b(world_size: int, num_micro_batches: int) -> PipelineCost:
    return unit_price(pipeline.one_f_one_b(world_size, num_micro_batches))


def check_bubble(function: Callable, over: str, cases: Iterable[tuple[int, int]]) -> None:
    """Check that `function(p, m)` is the bubble of GPipe and 1F1B `over` "total" or "ideal" time."""
    truth = {"total": bubble_over_total, "ideal": bubble_over_ideal}[over]

    def slips(want: float, p: int, m: int) -> dict[str, float]:
        other = bubble_over_ideal(p, m) if over == "total" else bubble_over_total(p, m)
        called = "ideal" if over == "total" else "total"
        return {
            f"this is the bubble over {called} time": other,
            "this is the share of time in which a rank computes": 1 - want,
            "this is the time over the ideal time; how much of it is idle?": 1 + want,
            "the last rank begins after P - 1 others, not after P": p / (m + p) if over == "total" else p / m,
            "m micro-batches behind one another, on p ranks, take m + p - 1 turns, not m + p": (p - 1) / (m + p),
            "this is half of it: the backwards leave a gap as the forwards do": want / 2,
            "this is twice as much: backwards take longer, but so does everything else": want * 2,
            "the fraction is rounded down": want // 1,
        }

    check_formula(function, truth, cases, slips, __name__)


def enough(world_size: int, share: float) -> int:
    """Return the fewest micro-batches for which `bubble_over_total` is at most `share`."""
    most = 1
    while bubble_over_total(world_size, most) > share:
        most *= 2
    least = most // 2  # too few, or none
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if bubble_over_total(world_size, middle) > share else (least, middle)
    return most


def check_enough(function: Callable, cases: Iterable[tuple[int, float]]) -> None:
    """Check that `function(p, share)` is the fewest micro-batches with a bubble over total time of at most `share`."""
    check_formula(function, enough, cases, _enough_slips, __name__)


def _enough_slips(want: float, p: int, share: float) -> dict[str, float]:
    turns = round((p - 1) / share, 9)  # m + p - 1, in all; floats round, and 21 / 0.35 is not 60
    exact = turns - (p - 1)  # micro-batches, before rounding
    rounds = "rounds up where the bubble is just `share`: compare the bubble itself"
    return {
        "this is (p - 1) / share: a bubble over ideal time. Over total time that many are m + p - 1": math.ceil(turns),
        "round up: with fewer the bubble is larger": math.floor(exact),
        "only whole micro-batches can be computed: round up": exact,
        "this is one too many where the bubble is just `share`": math.floor(exact) + 1,
        f"(p - 1) * (1 - share) / share {rounds}": math.ceil((p - 1) * (1 - share) / share),
        f"(p - 1) / share - (p - 1) {rounds}": math.ceil((p - 1) / share - (p - 1)),
        "this is one too few": want - 1,
        "this is one too many": want + 1,
        "this has p where p - 1 belongs": math.ceil(p * (1 - share) / share),
    }


def check_kept_count(function: Callable, of: str, cases: Iterable[tuple[int, int, int]]) -> None:
    """Check that `function(rank, p, m)` is how many micro-batches' activations a rank keeps in "GPipe" or "1F1B"."""

    def truth(rank: int, p: int, m: int) -> float:
        return peak_activations(pipeline.BY_NAME[of](p, m))[rank]

    def slips(want: float, rank: int, p: int, m: int) -> dict[str, float]:
        return {
            "this is what GPipe keeps": m,
            "this is what 1F1B keeps": min(m, p - rank),
            "there may be fewer micro-batches than that": p - rank,
            "this is one too few: the micro-batch that the rank works on counts too": min(m, p - rank) - 1,
            "ranks count from 0: this is one too many": min(m, p - rank + 1),
            "this counts the ranks before this one; a micro-batch is out with those after it": min(m, rank + 1),
            "this is what rank 0 keeps; the others keep less": min(m, p),
        }

    check_formula(function, truth, cases, slips, __name__)


# (world_size, num_micro_batches): up to 8 ranks, and up to 12 micro-batches.
EVERY_SIZE = [(p, m) for p in range(2, 9) for m in range(1, 13)]

# (rank, world_size, num_micro_batches): every rank of up to 7, with up to 9 micro-batches.
EVERY_RANK = [(rank, p, m) for p in range(1, 8) for rank in range(p) for m in range(1, 10)]


# A learner's schedule


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, to make pipeline schedules by the library or torch, and to count their bubbles."""

    def by_name(schedule: PipelineSchedule) -> str | None:
        return schedule.name if schedule.name in pipeline.BY_NAME else None

    cost: Any = PipelineCost
    bubbles = bubble_over_total, bubble_over_ideal, cost.bubble_over_total.fget, cost.bubble_over_ideal.fget, enough
    of_library = refusing(PipelineSchedule, "__post_init__", what=by_name)
    with of_library, refusing_functions(*bubbles), wall.without(*WITHOUT):
        yield


def schedule_of(
    function: Callable, world_size: int, num_micro_batches: int, *more: int, kinds: str = "FBIW"
) -> PipelineSchedule:
    """Return the schedule whose orders are `function(rank, world_size, num_micro_batches, *more)`, one stage a rank.

    `kinds`: the letters that may occur. Whether the schedule runs is not checked here.
    """
    sizes = (world_size, num_micro_batches, *more)
    name = f"{function.__name__}(rank, {', '.join(map(str, sizes))})"
    if world_size < 1 or num_micro_batches < 1:
        raise NotYet(f"{name}: there must be a rank and a micro-batch")
    orders = []
    for rank in range(world_size):
        call = call_in_words(function, [rank, *sizes])
        result = own_answer(__name__, function, rank, *sizes)
        words = result.split() if isinstance(result, str) else result
        if not isinstance(words, Iterable):
            raise NotYet(f"{call} returns {brief(result)}; return a list of operations, such as ['F0', 'B0']")
        where = f"{call}, operation"
        orders.append(tuple(_operation(word, rank, kinds, f"{where} {n}") for n, word in enumerate(words, 1)))
    return _made(orders, world_size, num_micro_batches, name)


def _operation(result: Any, rank: int, kinds: str, where: str) -> Operation:
    """Return a learner's operation. Raise `NotYet` if it is none, or of another kind than `kinds`."""
    operation = None
    if isinstance(result, str):
        match = _WORD.fullmatch(result.strip())
        operation = match and Operation(match[1], rank, int(match[2]))
    elif isinstance(result, tuple | list) and len(result) == 2 and result[0] in list(pipeline.KINDS):
        with contextlib.suppress(TypeError):
            operation = Operation(result[0], rank, operator.index(result[1]))
    if not operation:
        raise NotYet(f"{where}: it is {brief(result)}; {_AN_OPERATION}")
    if operation.kind not in kinds:
        raise NotYet(f"{where}: it is {brief(result)}, but the letters here are {' and '.join(kinds)}")
    return operation


def _made(orders: list[tuple], world_size: int, num_micro_batches: int, name: str) -> PipelineSchedule:
    for rank, order in enumerate(orders):
        for place, operation in enumerate(order, 1):
            if not 0 <= operation.micro_batch < num_micro_batches:
                which = f"{operation.kind}{operation.micro_batch}; micro-batches are 0 to {num_micro_batches - 1}"
                raise NotYet(f"{name}: rank {rank}'s operation {place} is {which}")
    return PipelineSchedule(tuple(orders), pipeline.loop(world_size), num_micro_batches, name=name)


def schedule_in_text(function: Callable) -> PipelineSchedule:
    """Return the schedule that the text of `function()` describes, for the ranks and micro-batches of `BY_HAND`."""
    world_size, num_micro_batches = BY_HAND
    call = f"{function.__name__}()"
    text = own_answer(__name__, function)
    if isinstance(text, list | tuple) and all(isinstance(line, str) for line in text):
        text = "\n".join(text)
    if not isinstance(text, str):
        raise NotYet(f"{call} returns {brief(text)}; a text is asked for, a line a rank")
    lines = [code for line in text.splitlines() if (code := line.split("#")[0].strip())]
    if staged := re.search(r"\b\d+([FBIW]\d+)", " ".join(lines)):
        raise NotYet(f"{call}: {staged[0]} names a stage; each rank has one stage here, so write {staged[1]}")
    try:
        schedule = pipeline.from_text("\n".join(lines), name=call)
    except PipelineError as error:
        words = re.sub(r"\bline (\d+)(?=, operation)", lambda line: f"rank {int(line[1]) - 1}", str(error))
        raise NotYet(f"{call}: {words}") from None
    if len(lines) != world_size or schedule.routes != pipeline.loop(world_size):
        raise NotYet(f"{call} has {len(lines)} lines; there are {world_size} ranks, each with one line and one stage")
    if schedule.paired:
        raise NotYet(f"{call} does two operations as one, with a &; write them one after the other")
    return _made(list(schedule.orders), world_size, num_micro_batches, call)


# Parts b, c and d: what a schedule must be


def check_runs(schedule: PipelineSchedule) -> None:
    """Check that every rank runs every micro-batch forward and backward, without deadlock."""
    try:
        pipeline.check(schedule)
    except PipelineError as error:
        raise NotYet(str(error)) from None


def check_kept(schedule: PipelineSchedule, limits: Sequence[int], remark: Callable[..., str] | None = None) -> None:
    """Check that no rank keeps more micro-batches' activations than `limits[rank]`. The error names the first.

    `remark(schedule, rank, limit)`: a sentence on the slip behind it, or "".
    """
    for rank, (peak, limit) in enumerate(zip(peak_activations(schedule), limits, strict=True)):
        if peak <= limit:
            continue
        order = schedule.orders[rank]
        number = next(n for n in range(len(order) + 1) if _kept_after(schedule, rank, n) > limit)
        last = "W" if any(each.kind == pipeline.W for each in order) else "B"
        raise NotYet(
            f"{schedule.name}: rank {rank} keeps the activations of {peak:g} micro-batches at once, and may keep "
            f"{limit}. With {schedule.short(order[number - 1])}, its operation {number}, they become {limit + 1}: a "
            f"micro-batch is kept from its F to the end of its {last}.{remark(schedule, rank, limit) if remark else ''}"
        )


def _kept_after(schedule: PipelineSchedule, rank: int, number: int) -> float:
    """Return the most micro-batches that a rank has kept by the end of its first `number` operations."""
    return peak_activations(replace(schedule, orders=tuple(order[:number] for order in schedule.orders)))[rank]


def check_1f1b(function: Callable, world_size: int, num_micro_batches: int) -> None:
    """Check that `function(rank, p, m)` runs, keeps no more than 1F1B on any rank, and takes no longer.

    If a schedule takes longer, this draws it with its stalls.
    """
    schedule = schedule_of(function, world_size, num_micro_batches, kinds="FB")
    check_runs(schedule)
    limits = [int(peak) for peak in peak_activations(pipeline.one_f_one_b(world_size, num_micro_batches))]
    check_kept(schedule, limits, _warm_up_too_long)
    taken = unit_price(schedule).seconds
    least = _cost_of_1f1b(world_size, num_micro_batches).seconds
    if taken > least:
        show(drawn(schedule))
        words = f"{schedule.name} takes {taken:g} units of time, 1F1B {least:g} (F takes 1, B 2). "
        raise NotYet(words + _longest(schedule) + _warm_up_too_short(schedule, limits))


def _warm_up(schedule: PipelineSchedule, rank: int) -> int:
    """Return how many forwards a rank does before its first backward."""
    return sum(1 for _ in takewhile(lambda each: each.kind == pipeline.F, schedule.orders[rank]))


def _warm_up_too_long(schedule: PipelineSchedule, rank: int, limit: int) -> str:
    ahead = _warm_up(schedule, rank)
    if ahead <= limit:
        return " It begins right; afterwards, each forward needs a backward before the next."
    if ahead == schedule.num_micro_batches > limit + 1:
        return " It does all forwards first: that is GPipe."
    return f" It does {ahead} forwards before its first backward; how many ranks are there from this one on?"


def _warm_up_too_short(schedule: PipelineSchedule, limits: list[int]) -> str:
    for rank, limit in enumerate(limits):
        ahead = _warm_up(schedule, rank)
        if ahead < limit:
            return f" Rank {rank} does only {ahead} before its first backward, where it may keep {limit} micro-batches."
    return ""


def check_stall(schedule: PipelineSchedule, limit: int, most: float) -> None:
    """Check that no rank keeps more than `limit` micro-batches, nor stalls for more than `most` units of time.

    If a rank stalls for longer, this draws the schedule with its stalls.
    """
    check_runs(schedule)
    check_kept(schedule, [limit] * schedule.world_size)
    stalled = unit_price(schedule).stalled
    rank = max(range(schedule.world_size), key=stalled.__getitem__)
    if stalled[rank] <= most:
        return
    show(drawn(schedule))
    whole = next((each for order in schedule.orders[1:] for each in order if each.kind == pipeline.B), None)
    split = f" {schedule.short(whole)} is a whole backward: what does the rank before wait for?" if whole else ""
    raise NotYet(
        f"{schedule.name}: rank {rank} stalls for {stalled[rank]:g} units of time, and at most {most:g} are asked for "
        f"here. {_longest(schedule, rank, limit)}{split}"
    )


def check_by_hand(function: Callable, most: float | None = None) -> None:
    """Check the text of `function()`: no rank keeps more than p micro-batches, nor stalls for more than `most`.

    `most`: units of time. None stands for one less than 1F1B stalls.
    """
    if most is None:
        most = max(_cost_of_1f1b(*BY_HAND).stalled) - 1  # all times are whole numbers
    check_stall(schedule_in_text(function), limit=BY_HAND[0], most=most)


def check_within(function: Callable, cases: Iterable[tuple[int, int, int]]) -> None:
    """Check `function(rank, p, m, limit)` for each (p, m, limit): its stall is the least that `limit` allows."""
    for p, m, limit in cases:
        check_stall(schedule_of(function, p, m, limit), limit, least_stall(p, limit))


def least_stall(world_size: int, limit: int) -> int:
    """Return the units of time that rank 0 must stall if it keeps at most `limit` micro-batches.

    The schedules from ZB-H1 to ZB-H2 reach it. Rank 0 can start I0 only after 2p - 1 units: p forwards and p - 1 times
    I. Until then it can only do forwards.
    """
    return max(0, 2 * world_size - 1 - limit)


# Figures


class Stall(NamedTuple):
    """Rank `rank` waits from `start` to `end` before an `operation`, until `need` has ended on another rank."""

    rank: int
    operation: Operation
    need: Operation
    start: float
    end: float


def stalls(schedule: PipelineSchedule) -> list[Stall]:
    """Return all waits of ranks between their own first operation and their own last."""
    spans, waits = {span.name: span for span in unit_price(schedule).timeline.spans}, []
    for rank, order in enumerate(schedule.orders):
        for before, after in pairwise(order):
            start, end = spans[str(before)].end, spans[str(after)].start
            if end > start:
                need = max(schedule.needs(after), key=lambda need: spans[str(need)].end)
                waits.append(Stall(rank, after, need, start, end))
    return waits


def _must_be(stall: Stall, world_size: int, limit: int) -> bool:
    """Return whether a wait for the first backward is no longer than `limit` makes it: see `least_stall`."""
    first = stall.operation.micro_batch == 0 and stall.operation.kind in (pipeline.B, pipeline.I)
    return first and _length(stall) <= least_stall(world_size - stall.rank, limit)


def drawn(schedule: PipelineSchedule) -> Figure:
    """Return the figure of `schedule`, with its stalls as bars of their own."""
    names = {str(operation): schedule.short(operation) for operation in schedule.position}  # F0: the row is the stage
    spans = [span._replace(name=names[span.name]) for span in unit_price(schedule).timeline.spans]
    for rank, operation, _, start, end in stalls(schedule):
        spans.append(Span(f"wait before {schedule.short(operation)}", "", start, end - start, "stall", f"rank {rank}"))
    return draw(Timeline(tuple(spans)), caption=f"{schedule.name} and its stalls (a unit of time is drawn as a second)")


def _longest(schedule: PipelineSchedule, rank: int | None = None, limit: int | None = None) -> str:
    """Return the longest stall, of `rank` or of all ranks, in words.

    With a `limit` on memory it is the longest one that can be shorter, if there is one.
    """
    waits = [stall for stall in stalls(schedule) if rank in (None, stall.rank)]
    longest = max(waits, key=_length)
    which = "Its longest wait"
    shorter = [stall for stall in waits if limit is None or not _must_be(stall, schedule.world_size, limit)]
    if shorter and longest not in shorter:
        longest = max(shorter, key=_length)
        which = "Its longest wait that can be shorter"
    need = f"{schedule.short(longest.need)} of rank {schedule.rank_of(longest.need)}"
    return f"{which} is rank {longest.rank}'s, from {longest.start:g} to {longest.end:g}, for {need}."


def _length(stall: Stall) -> float:
    return stall.end - stall.start


def look(function: Callable, *sizes: int) -> Figure | None:
    """Print the schedule of `function(rank, *sizes)`, or of the text `function()`, and return its figure.

    There is one row a rank: its operations, how long it stalls, and how many micro-batches it keeps. If the schedule is
    not right yet, print the reason and return None.
    """
    try:
        schedule = schedule_of(function, *sizes) if sizes else schedule_in_text(function)
        check_runs(schedule)
    except NotYet as error:
        print(f"Not right yet: {error}")
        return None
    rows = zip(str(schedule).splitlines(), unit_price(schedule).stalled, peak_activations(schedule), strict=True)
    lines = [(row, f"stalls {stalled:g}, keeps {kept:g}") for row, stalled, kept in rows]
    width = max(len(row) for row, _ in lines)
    print("\n".join(f"{row.ljust(width)}   {words}" for row, words in lines))
    return drawn(schedule)
