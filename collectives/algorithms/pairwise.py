"""Pairwise exchange: each rank sends P - 1 messages, one straight to each other rank.

Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import index

import numpy as np

from ..schedule import COPY, REDUCE, Schedule, Step, Transfer
from .doubling import needs_power_of_two


def barrier(world_size: int) -> Schedule:
    """Signal every other rank, one in each step. No data moves.

    Steps: P - 1. Messages sent by a rank: P - 1, of 0 bytes.
    """

    def rank_zero() -> Iterator[list[Transfer]]:
        for distance in range(1, world_size):  # P - 1 steps
            yield [Transfer(0, distance, 0, REDUCE)]

    return Schedule.rotated(world_size, 1, rank_zero, "barrier", "pairwise barrier")


def all_to_all(world_size: int) -> Schedule:
    """Swap, in step k, with the ranks r + k and r - k, in place: pairwise exchange by shift.

    The chunk for rank r + k leaves the slot that the chunk from rank r + k enters, so a step must hold both directions.
    Steps: floor(P/2). Messages sent by a rank: P - 1. Bytes sent by a rank: (P-1)/P S.
    """

    def rank_zero() -> Iterator[list[Transfer]]:
        # floor(P/2) steps; rank r sends chunk r + k to rank r + k, where it becomes chunk r
        for k in range(1, world_size // 2 + 1):
            there, back = Transfer(0, k, k, COPY, into=0), Transfer(0, -k, -k, COPY, into=0)
            yield [there] if 2 * k == world_size else [there, back]

    return Schedule.rotated(world_size, world_size, rank_zero, "all_to_all", "pairwise all_to_all")


def all_to_all_xor(world_size: int) -> Schedule:
    """Swap, in step k, with rank r XOR k, in place: pairwise exchange by mask.

    Steps: P - 1. Bytes sent by a rank: (P-1)/P S. Raises `ValueError` if P is not a power
    of two.
    """
    ranks = np.arange(needs_power_of_two(world_size, "the XOR exchange"))

    def steps() -> Iterator[Step]:
        for mask in range(1, world_size):  # P - 1 steps, each a perfect matching
            peer = ranks ^ mask
            yield Step(ranks, peer, peer, COPY, phase="all_to_all", into=ranks)

    return Schedule(world_size, world_size, steps, "XOR all_to_all", "all_to_all")


def all_to_all_uneven(lengths: Sequence[Sequence[int]]) -> Schedule:
    """Send `lengths[src][dst]` elements from rank src to rank dst, by shift.

    Chunk src x P + dst goes from src to dst. Each rank's buffer has room for all chunks, but uses only its own.
    Steps: P - 1. Bytes sent by a rank: the sum of its row, without what it keeps. Raises `ValueError` if `lengths` is
    not a P x P table.
    """
    rows = [list(map(index, row)) for row in lengths]
    world_size = len(rows)
    if any(len(row) != world_size for row in rows):
        raise ValueError(f"lengths must be a table of P x P numbers of elements, not {rows}")
    ranks = np.arange(world_size)

    def steps() -> Iterator[Step]:
        for distance in range(1, world_size):  # P - 1 steps
            dst = (ranks + distance) % world_size
            yield Step(ranks, dst, chunk=ranks * world_size + dst, combine=COPY, phase="all_to_all")

    name, collective = "uneven all_to_all", "all_to_all_uneven"
    flat = tuple(chain.from_iterable(rows))
    return Schedule(world_size, world_size**2, steps, name, collective, lengths=flat)


def reduce_scatter(world_size: int) -> Schedule:
    """Send each chunk straight to the rank that keeps it.

    Steps: 1, with P - 1 messages from each rank. Bytes sent by a rank: (P-1)/P S.
    """
    sends = [Transfer(0, distance, distance, REDUCE) for distance in range(1, world_size)]
    return _at_once(world_size, sends, "reduce_scatter")


def all_gather(world_size: int) -> Schedule:
    """Send each rank's chunk straight to every other rank.

    Steps: 1, with P - 1 messages from each rank. Bytes sent by a rank: (P-1)/P S.
    """
    sends = [Transfer(0, distance, 0, COPY) for distance in range(1, world_size)]
    return _at_once(world_size, sends, "all_gather")


def all_reduce(world_size: int) -> Schedule:
    """Reduce-scatter, then all-gather.

    Steps: 2, with P - 1 messages from each rank in each. Bytes sent by a rank: 2(P-1)/P S.
    """
    both = reduce_scatter(world_size) + all_gather(world_size)
    return replace(both, name="pairwise all_reduce", collective="all_reduce")


def _at_once(world_size: int, sends: list[Transfer], collective: str) -> Schedule:
    steps = [sends] if sends else []  # a single rank has nothing to send
    return Schedule.rotated(world_size, world_size, lambda: steps, collective, f"pairwise {collective}")
