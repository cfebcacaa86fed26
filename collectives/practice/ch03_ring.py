"""Checks of exercise 03: a ring as a schedule, the elements that it moves, and a reduce-scatter on real ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ..contracts import Contract, ranks_in_words
from ..price import Cost
from ..schedule import Schedule, chunk_bounds
from . import checks
from .checks import (
    DRAWN,
    Answered,
    NotYet,
    against_the_schedule,
    call_in_words,
    check_kept,
    check_rows,
    counted,
    number_of,
    own_answer,
    refusing,
    steps_of,
)
from .on_ranks import Outcome, on_ranks, same, unlike, witnessed, witnessed_sums

HOLDS = ("schedule", *DRAWN)  # see `wall`


@contextlib.contextmanager
def without_the_library() -> Iterator[None]:
    """Refuse, inside this context, the library's algorithms, and to count by its prices."""
    with checks.without_the_library(), refusing(Cost, "__init__", what="price"):
        yield


# Schedules


def check_schedule(function: Callable, world_size: int, contract: Contract) -> Schedule:
    """Check that `function(world_size)` gives the steps of a schedule that keeps `contract`; return the schedule.

    Draw a schedule that breaks its contract, up to the step that goes wrong.
    """
    call = call_in_words(function, [world_size])
    steps = steps_of(function, world_size, checks=__name__)
    return check_kept(steps, call, contract, world_size, world_size, lambda schedule, _: _leftward(schedule))


def _leftward(schedule: Schedule) -> str:
    """Return a remark on a ring that goes the wrong way round; "" for any other (with 2 ranks, both ways are one)."""
    moves = {(transfer.dst - transfer.src) % schedule.world_size for step in schedule for transfer in step}
    if schedule.world_size > 2 and moves == {schedule.world_size - 1}:
        return " Every chunk goes to the left-hand neighbour, r - 1; the ring goes to the right, r + 1."
    return ""


def check_ring(schedule: Schedule) -> None:
    """Check that in each step every rank sends one chunk to its right-hand neighbour, in world_size - 1 steps."""
    world_size = schedule.world_size
    for index, step in enumerate(schedule):
        for transfer in step:
            if transfer.dst != (transfer.src + 1) % world_size:
                right = (transfer.src + 1) % world_size
                raise NotYet(
                    f"{schedule.name}, step {index}: {transfer} goes from rank {transfer.src} to rank {transfer.dst}, "
                    f"but its right-hand neighbour is rank {right}"
                )
        if sorted(step.src.tolist()) != list(range(world_size)):
            raise NotYet(f"{schedule.name}, step {index}: not every rank sends exactly one chunk ({step})")
    steps = len(list(schedule))
    if steps != world_size - 1:
        raise NotYet(f"{schedule.name} takes {steps} steps; {world_size} ranks need {world_size - 1}")


def check_count(function: Callable, schedules: Iterable[Schedule], num_elements: int) -> None:
    """Check that `function(steps, num_elements, num_chunks)` counts the elements that each schedule moves."""
    rows = []
    for schedule in schedules:
        steps = [list(step) for step in schedule]
        transfers = sum(map(len, steps))
        sizes = num_elements, schedule.num_chunks
        call = f"{function.__name__}(<steps of {schedule.name}>, {sizes[0]}, {sizes[1]})"
        want = int(counted(schedule, num_elements).bytes_sent.sum())
        slips = {
            "this counts transfers, not the elements in them": transfers,
            "this takes all chunks to be equally long; see chunk_bounds": transfers * sizes[0] / sizes[1],
            "this rounds the length of every chunk down; see chunk_bounds": transfers * (sizes[0] // sizes[1]),
            "this rounds the length of every chunk up; see chunk_bounds": transfers * -(-sizes[0] // sizes[1]),
            "this rounds a total down; take the length of each transfer's own chunk": transfers * sizes[0] // sizes[1],
            "this is the formula of the ring reduce-scatter; count the steps that you get": sizes[0] * (sizes[1] - 1),
            "these are bytes (of 8 each); count elements": want * 8,
            "this counts the whole buffer for each transfer, which moves only one chunk": transfers * sizes[0],
            "this counts one rank, not all of them": want / schedule.world_size,
        }
        rows.append(
            Answered(call, number_of(own_answer(__name__, function, steps, *sizes, call=call), call), want, slips)
        )
    check_rows(rows, against_the_schedule)


def check_shards(function: Callable, buffers: np.ndarray) -> list[Outcome]:
    """Check that rank r returns chunk r of the sum of `buffers`: integers exactly, floats up to rounding."""
    world_size, num_elements = buffers.shape
    total, bounds = buffers.sum(axis=0), chunk_bounds(num_elements, world_size)
    outcomes = on_ranks(function, buffers)
    for rank, outcome in enumerate(outcomes):
        got, want = outcome.returned, total[bounds[rank] : bounds[rank + 1]]
        who = f"with {world_size} ranks and {num_elements} elements, rank {rank} returns"
        if isinstance(got, str):
            raise NotYet(f"{who} a value of type {got}; return the tensor with its finished chunk")
        if got.shape != want.shape:
            raise NotYet(f"{who} a tensor of shape {list(got.shape)}; chunk {rank} has {len(want)} elements")
        if not same(got, want):
            raise NotYet(f"{who} {contents(got, rank, bounds) or unlike(got, want)}")
    witnessed_sums(outcomes, buffers, kept=np.diff(bounds))
    return outcomes


def check_ring_traffic(function: Callable, buffers: np.ndarray, ring: Schedule) -> None:
    """Check that the shards are right, in place, and that every rank sends what it sends in the schedule `ring`."""
    world_size, num_elements = buffers.shape
    bounds, itemsize = chunk_bounds(num_elements, world_size), buffers.itemsize
    allowed = counted(ring, num_elements, itemsize).bytes_sent
    most = len(list(ring))
    outcomes = check_shards(function, buffers)
    for rank, outcome in enumerate(outcomes):
        assert not isinstance(outcome.returned, str)  # `check_shards` lets only arrays through
        right = (rank + 1) % world_size
        if astray := sorted(set(outcome.bytes_to) - {right}):
            raise NotYet(f"rank {rank} of {world_size} sends to rank {astray[0]}; its right-hand neighbour is {right}")
        sent = sum(outcome.bytes_to.values())
        if sent != allowed[rank] or outcome.messages > most:
            raise NotYet(
                f"with {world_size} ranks and {num_elements} elements of {itemsize} bytes, rank {rank} sends {sent} "
                f"bytes in {outcome.messages} messages; the ring sends {allowed[rank]} in {most}"
            )
        own = slice(bounds[rank], bounds[rank + 1])
        if not same(outcome.buffer[own], outcome.returned):
            raise NotYet(f"rank {rank} returns the right chunk, but its buffer does not hold it: work in place")
    witnessed(outcomes, sum(allowed), sum(allowed))


def contents(got: np.ndarray, rank: int, bounds: np.ndarray) -> str | None:
    """Return, in words, what a chunk of sums of `tagged` buffers contains; None if it is no such chunk."""
    world_size = len(bounds) - 1
    for chunk in sorted(range(world_size), key=lambda chunk: chunk != rank):  # the right one first
        first, last = bounds[chunk : chunk + 2]
        if not 0 < last - first == len(got):
            continue
        sums, left = np.divmod(got, np.arange(first, last) + 1)
        if left.any() or (sums != sums[0]).any() or not 0 < sums[0] < 10**world_size:
            continue
        counts = sums[0] // 10 ** np.arange(world_size) % 10
        faults = [f"without {ranks_in_words(counts == 0)}"] if (counts == 0).any() else []
        faults += [f"with {ranks_in_words(counts > 1)} more than once"] if (counts > 1).any() else []
        which = f"chunk {chunk}" if chunk == rank else f"chunk {chunk} instead of chunk {rank}"
        return f"{which} {' and '.join(faults)}" if faults else f"the finished {which}"
    return None
