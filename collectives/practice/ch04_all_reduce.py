"""Slips of exercise 04: the numbers that common mistakes lead to when you count an all-reduce's bytes and steps."""

from __future__ import annotations

from random import Random


def random_sizes(seed: int, how_many: int = 12) -> list[tuple]:
    """Return cases `(num_elements, itemsize, world_size)` for a formula: at least 2 ranks, chunks of equal length."""
    random = Random(seed)
    sizes = [random.randint(2, 40) for _ in range(how_many)]
    return [(random.randint(1, 10**6) * size, random.choice((1, 2, 4, 8)), size) for size in sizes]


def byte_slips(want: float, num_elements: int, itemsize: int, world_size: int) -> dict[str, float]:
    """Return {a slip in words: the number it leads to} for the bytes that one rank, or all ranks, send."""
    longer = world_size / (world_size - 1)
    return {
        "these are elements, not bytes": want / itemsize,
        "these are bits, not bytes": want * 8,
        "this is half of it: which phase, or direction, is missing?": want / 2,
        "this is twice as much: does it count data both where it leaves and where it arrives?": want * 2,
        "this counts all ranks together; count one rank": want * world_size,
        "this is what one rank sends; count all ranks together": want / world_size,
        "this leaves out the factor (P-1)/P: a rank never has to send all of its P chunks": want * longer,
        "this is a single step; how many steps are there?": want / (world_size - 1),
        "`//` has rounded a fraction below 1 down to 0": 0,
    }


def root_slips(want: float, num_elements: int, itemsize: int, world_size: int) -> dict[str, float]:
    """Return the slips for the bytes through the root's link, in and out."""
    whole = num_elements * itemsize
    return {
        "these are elements, not bytes": want / itemsize,
        "these are bits, not bytes": want * 8,
        "this is one direction; the root also sends the sum back": want / 2,
        "the root does not send to itself: there are P - 1 other ranks": 2 * world_size * whole,
        "this is what one of the other ranks sends and receives": 2 * whole,
        "this is what a rank of the ring sends; here everything passes through the root": want / world_size,
    }


def element_slips(want: float, num_params: int, world_size: int) -> dict[str, float]:
    """Return the slips for the elements that one rank sends in a training step."""
    longer = world_size / (world_size - 1)
    return {
        "`//` has rounded a fraction below 1 down to 0": 0,
        "this leaves out the factor (P-1)/P: a rank never has to send all of its P chunks": want * longer,
        "this leaves out one of the collectives; an all-reduce counts as two": want - num_params / longer,
        "this is the number of parameters; what does each collective send of them?": num_params,
        "this leaves out two of the collectives": want - 2 * num_params / longer,
        "this has one collective too many": want + num_params / longer,
        "this counts all ranks together; count one rank": want * world_size,
        "these are bytes (of 4 each); count elements": want * 4,
        "these are bytes (of 2 each); count elements": want * 2,
    }


def ratio_slips(want: float, num_params: int, world_size: int) -> dict[str, float]:
    """Return the slips for how many times as much sharding sends."""
    return {
        "this is upside down": 1 / want,
        "this is how much *more* it is; the question is how many *times* as much": want - 1,
        "this counts 3 collectives against 1, but an all-reduce is itself two of them": 3,
        "`//` has rounded it down": want // 1,
    }


def step_slips(want: float, world_size: int) -> dict[str, float]:
    """Return the slips for the steps of an all-reduce."""
    return {
        "this is one phase; which one is missing?": want / 2,
        "this has one step too many in each phase": want + 2,
        "this has one step too many": want + 1,
        "this has one step too few": want - 1,
    }
