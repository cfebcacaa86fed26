"""Exercise 02_tree takes any tree that is right and quick, and says of others what is wrong with them."""

from __future__ import annotations

import re
import textwrap

import numpy as np
import pytest
import torch
from answers import Mutant, assert_accepted, assert_refused, solution_of, verdicts, with_slip, written

from collectives import contracts
from collectives.algorithms import flat
from collectives.practice import ch02_tree, checks, on_ranks
from collectives.schedule import Transfer

EXERCISE = "02_tree"

# Right answers, each another tree, or the same in another style.

FAR_END_FIRST = """
    def broadcast_steps(world_size):
        distances = [2**k for k in range(world_size.bit_length())][::-1]
        for distance in distances:
            parents = range(0, world_size - distance, 2 * distance)
            yield [(parent, parent + distance, 0, "copy") for parent in parents]
"""
HALVES_OF_THE_RANGE = """
    def broadcast_steps(world_size):
        steps, parts = [], [(0, world_size)]
        while any(end - first > 1 for first, end in parts):
            cuts = [(first, (first + end + 1) // 2, end) for first, end in parts]
            steps.append(Transfer(first, middle, 0) for first, middle, end in cuts if middle < end)
            parts = [part for first, middle, end in cuts for part in ((first, middle), (middle, end))]
        return steps
"""
WHOEVER_IS_NEXT = """
    def broadcast_steps(world_size):
        have, lack, steps = [0], list(range(world_size - 1, 0, -1)), []
        while lack:
            pairs = list(zip(have[::-1], lack))
            lack = lack[len(pairs):]
            have += [dst for src, dst in pairs]
            steps.append([Transfer(int(src), np.int64(dst), 0, "copy") for src, dst in pairs])
        return steps
"""
WITH_EMPTY_STEPS = """
    def broadcast_steps(world_size):
        return [
            [Transfer(r, r + 2**k, 0, "copy") for r in range(2**k) if r + 2**k < world_size] for k in range(5)
        ]
"""
REDUCE_ALONE = """
    def reduce_steps(world_size, root):
        steps, holders = [], [(root + i) % world_size for i in range(world_size)]
        while len(holders) > 1:
            keep = (len(holders) + 1) // 2
            steps.append([Transfer(src, dst, 0, "reduce") for dst, src in zip(holders, holders[keep:])])
            holders = holders[:keep]
        return steps
"""
REDUCE_BY_BITS = """
    def reduce_steps(world_size, root):
        for k in range((world_size - 1).bit_length()):
            senders = [n for n in range(world_size) if n % 2 ** (k + 1) == 2**k]
            yield [((n + root) % world_size, (n - 2**k + root) % world_size, 0, "reduce") for n in senders]
"""
AS_A_SCHEDULE = """
    def broadcast_steps(world_size):
        steps, have = [], 1
        while have < world_size:
            steps.append([(rank, rank + have, 0, "copy") for rank in range(min(have, world_size - have))])
            have *= 2
        return Schedule.of(world_size, 1, steps, collective="broadcast", root=0)
"""
WITH_A_BARRIER = """
    def tree_reduce(rank, world_size, buffer):
        distance = 1
        while distance < world_size and not rank & distance:
            if rank + distance < world_size:
                incoming = torch.empty_like(buffer)
                dist.irecv(incoming, rank + distance).wait()
                buffer.add_(incoming)
            distance *= 2
        if rank:
            for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, buffer, rank - distance)]):
                request.wait()
        dist.barrier()
"""
BY_RECURSION = """
    def tree_reduce(rank, world_size, buffer, first=0):
        if world_size - first > 1:
            middle = (first + world_size + 1) // 2
            tree_reduce(rank, *((middle, buffer, first) if rank < middle else (world_size, buffer, middle)))
            if rank == middle:
                dist.send(buffer, first)
            if rank == first:
                other = buffer.clone()
                dist.recv(other, middle)
                buffer.add_(other)
"""
UPPER_HALF_TO_LOWER = """
    def tree_reduce(rank, world_size, buffer):
        left = world_size
        while left > 1:
            half = (left + 1) // 2
            if half <= rank < left:
                dist.isend(buffer, rank - half).wait()
            elif rank + half < left:
                incoming = torch.zeros(len(buffer), dtype=buffer.dtype)
                dist.irecv(incoming, rank + half).wait()
                buffer[:] = buffer + incoming
            left = half
        return buffer
"""


GENERATORS = """
    def broadcast_steps(world_size):
        have = 1
        while have < world_size:
            yield (Transfer(r, r + have, 0) for r in range(have) if r + have < world_size)
            have *= 2
"""
RIGHT = {
    "the far end first": {"broadcast-steps": FAR_END_FIRST, "reduce-steps": REDUCE_ALONE, "tree-reduce": BY_RECURSION},
    "bit by bit": {
        "broadcast-steps": WITH_EMPTY_STEPS,
        "reduce-steps": REDUCE_BY_BITS,
        "tree-reduce": UPPER_HALF_TO_LOWER,
    },
    "halves of the range": {"broadcast-steps": HALVES_OF_THE_RANGE},
    "whoever is next": {"broadcast-steps": WHOEVER_IS_NEXT},
    "a Schedule, and a barrier": {
        "broadcast-steps": AS_A_SCHEDULE,
        "reduce-steps": REDUCE_ALONE,
        "tree-reduce": WITH_A_BARRIER,
    },
    "as generators": {"broadcast-steps": GENERATORS, "reduce-steps": REDUCE_BY_BITS},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


# Wrong or slow answers, and answers that are none.

A, B, C = (
    {"a1-powers-of-two", "a2-any-number", "a3-fewest-steps", "a4-fewest-steps-any"},
    {"b1-any-root", "b2-fewest-steps"},
    {"c1-powers-of-two", "c2-any-number", "c3-tree"},
)
SLOW = {"a3-fewest-steps", "a4-fewest-steps-any"}
ANY = {"a2-any-number", "a4-fewest-steps-any"}

FLAT = """
    def broadcast_steps(world_size):
        return [[Transfer(0, rank, 0, "copy")] for rank in range(1, world_size)]
"""
FLAT_AT_ONCE = """
    def broadcast_steps(world_size):
        return [[Transfer(0, rank, 0, "copy") for rank in range(1, world_size)]]
"""
CHAIN = """
    def broadcast_steps(world_size):
        return [[Transfer(rank, rank + 1, 0, "copy")] for rank in range(world_size - 1)]
"""
HALVED_DISTANCES = """
    def broadcast_steps(world_size):
        steps, distance = [], world_size // 2
        while distance:
            steps.append([Transfer(r, r + distance, 0, "copy") for r in range(0, world_size - distance, 2 * distance)])
            distance //= 2
        return steps
"""
NEAREST_FIRST = """
    def broadcast_steps(world_size):
        steps, distance = [], 1
        while distance < world_size:
            steps.append([Transfer(r, r + distance, 0, "copy") for r in range(0, world_size - distance, 2 * distance)])
            distance *= 2
        return steps
"""
ROUND_AND_ROUND = """
    def broadcast_steps(world_size):
        count = (world_size - 1).bit_length()
        return [[Transfer(r, (r + 2**k) % world_size, 0, "copy") for r in range(2**k)] for k in range(count)]
"""
PAST_THE_END = """
    def broadcast_steps(world_size):
        return [[Transfer(r, r + 2**k, 0, "copy") for r in range(2**k)] for k in range((world_size - 1).bit_length())]
"""
ADDED = WITH_EMPTY_STEPS.replace('"copy"', '"reduce"')
NEVER_ENDS = """
    def broadcast_steps(world_size):
        while True:
            yield []
"""


LIBRARYS = """
    def broadcast_steps(P):
        from collectives.algorithms import tree
        yield from map(list, tree.broadcast(P))
"""


@pytest.mark.parametrize(
    "answer, says",
    [
        ("return [[Transfer(0, None, 0)]]", "step 0: its dst is None; src, dst and chunk are"),
        ("return [[Transfer(0, 1, 0, 'copy', 0.0)]]", "its into is 0.0; into is a whole"),
        ("return [[(0, 1)]]", "Transfer(src, dst, chunk, combine): its chunk is missing"),
        ("pass", "returns None; is its `return` missing?"),
        ("raise NotImplementedError()", "broadcast_steps is not written yet"),
    ],
)
def test_a_broadcast_that_is_none_is_told_of_plainly(answer, says):
    said = verdicts(EXERCISE, {"broadcast-steps": f"def broadcast_steps(world_size): {answer}"}, parts="a")
    assert {check for check, words in said.items() if words} == A
    assert says in said[min(A)]


FLAT_REDUCE = """
    def reduce_steps(world_size, root):
        return [[(rank, root, 0, "reduce")] for rank in range(world_size) if rank != root]
"""


FLAT_FOR_REAL = """
    def tree_reduce(rank, world_size, buffer):
        if rank:
            return dist.send(buffer, 0)
        incoming = torch.empty_like(buffer)
        for other in range(1, world_size):
            dist.recv(incoming, other)
            buffer += incoming
"""
CHAIN_FOR_REAL = """
    def tree_reduce(rank, world_size, buffer):
        if rank < world_size - 1:
            incoming = torch.empty_like(buffer)
            dist.recv(incoming, rank + 1)
            buffer += incoming
        if rank:
            dist.send(buffer, rank - 1)
"""
IN_TWO_HALVES = """
    def tree_reduce(rank, world_size, buffer):
        middle = (len(buffer) + 1) // 2
        for part in (buffer[:middle], buffer[middle:]):
            incoming, distance = torch.empty_like(part), 1
            while distance < world_size:
                if rank & distance:
                    dist.send(part, rank - distance)
                    break
                if rank + distance < world_size:
                    dist.recv(incoming, rank + distance)
                    part += incoming
                distance *= 2
"""


BY_ITS_LEVELS = """
    from collectives.algorithms.tree import levels

    def broadcast_steps(world_size):
        for _, parents, children in levels(world_size, upwards=False):
            yield [(int(src), int(dst), 0, "copy") for src, dst in zip(parents, children)]
"""
READ_BEFORE = """
    from dataclasses import replace
    from collectives.algorithms import tree
    READY = {P: replace(tree.broadcast(P), collective=None) for P in range(1, 17)}

    def broadcast_steps(world_size):
        return READY[world_size]
"""
NEVER_WAITS = "dist.isend(buffer, rank - distance)"
IN_FLOATS = """
    def tree_reduce(rank, world_size, buffer):
        whole, distance = buffer.double(), 1
        incoming = torch.empty_like(whole)
        while distance < world_size and not rank & distance:
            if rank + distance < world_size:
                dist.recv(incoming, rank + distance)
                whole += incoming
            distance *= 2
        if rank:
            dist.send(whole, rank - distance)
        buffer.copy_(whole)
"""
LIBRARYS_REDUCE = """
    def tree_reduce(rank, world_size, buffer):
        dist.reduce(buffer, 0)
"""
BY_THE_LIBRARY = """
    def tree_reduce(rank, world_size, buffer):
        from collectives import execute
        from collectives.algorithms import tree
        execute(tree.reduce(world_size), buffer)
"""
SCHEDULE, REDUCE, PROGRAM = "broadcast-steps", "reduce-steps", "tree-reduce"
ADD = "buffer += incoming"
MUTANTS = [
    written(
        "the root sends to one after the other",
        SCHEDULE,
        FLAT,
        SLOW,
        "takes 3 steps; 4 ranks need 2. Before step 1, 2 ranks have the data; in it 2 of them could send",
        origin="C19",
    ),
    written("a chain", SCHEDULE, CHAIN, SLOW, "takes 3 steps; 4 ranks need 2"),
    written(
        "the root sends to all at once",
        SCHEDULE,
        FLAT_AT_ONCE,
        SLOW,
        "rank 0 sends 3 messages at once (0:0→1  0:0→2  0:0→3); a rank sends one message a step",
        origin="C19",
    ),
    written(
        "distances halved, rounded down",
        SCHEDULE,
        HALVED_DISTANCES,
        ANY,
        "chunk 0 on rank 2 holds what rank 2 began with and lacks rank 0: no step ever writes",
        origin="C07",
    ),
    written(
        "the steps of a reduce, not turned round",
        SCHEDULE,
        NEAREST_FIRST,
        A,
        "in step 0 rank 2 sends chunk 0 before it has it (0:2→3)",
        origin="page 02",
    ),
    written(
        "round and round",
        SCHEDULE,
        ROUND_AND_ROUND,
        {"a4-fewest-steps-any"},
        "step 1: the root, rank 0, receives the data; it need not",
    ),
    written("past the last rank", SCHEDULE, PAST_THE_END, ANY, "has dst 3, but the ranks are 0 to 2", origin="C07"),
    written("added on arrival", SCHEDULE, ADDED, A, "combine is 'copy', not 'reduce'"),
    written("it never ends", SCHEDULE, NEVER_ENDS, A, "does it ever stop?"),
    written(
        "the library's tree",
        SCHEDULE,
        LIBRARYS,
        A,
        "broadcast_steps(2): the library's own tree broadcast is for comparing, afterwards; write this",
    ),
    written("the library's levels", SCHEDULE, BY_ITS_LEVELS, A, "the library's own tree.levels is for comparing"),
    written("the library's tree, read before", SCHEDULE, READ_BEFORE, A, "the library's own tree broadcast is for"),
    Mutant("always to rank 0", REDUCE, "(number + root)", "number", B, "the finished chunk 0 is on rank 0"),
    Mutant("not turned round", REDUCE, "in reversed(", "in (", B, "lacks rank"),
    Mutant("copied on arrival", REDUCE, '"reduce"', '"copy"', B, "instead of adding"),
    Mutant(
        "arrows not turned", REDUCE, "there.dst), named(there.src)", "there.src), named(there.dst)", B, "lacks rank"
    ),
    written(
        "all send to the root",
        REDUCE,
        FLAT_REDUCE,
        {"b2-fewest-steps"},
        "Before step 0, 4 ranks hold a part of the sum; in it 2 of them could",
        origin="C19",
    ),
    written("no root", REDUCE, "def reduce_steps(world_size): return []", B, "ends in TypeError"),
    Mutant("what arrives replaces", PROGRAM, ADD, "buffer.copy_(incoming)", C, "a sum without rank 0"),
    Mutant("added twice", PROGRAM, ADD, "buffer += 2 * incoming", C, "a sum with rank 1 more than once"),
    Mutant("not in place", PROGRAM, ADD, "buffer = buffer + incoming", C, "ends with what it began with"),
    Mutant(
        "into a copy",
        PROGRAM,
        "    incoming = ",
        "    buffer = buffer.clone()\n    incoming = ",
        C,
        "ends with what it began with",
    ),
    written(
        "all ranks send to the root",
        PROGRAM,
        FLAT_FOR_REAL,
        {"c3-tree"},
        "takes 3 steps; 2 are enough",
        origin="C19",
    ),
    Mutant(
        "an isend without a wait",
        PROGRAM,
        "dist.send(buffer, rank - distance)",
        NEVER_WAITS,
        C,
        "rank 1 never waits for its dist.isend: keep the request",
    ),
    Mutant(
        "a receive from a rank that isn't there",
        PROGRAM,
        "dist.recv(incoming, rank + distance)",
        "dist.recv(incoming, world_size)",
        C,
        "receives from, rank 2: the ranks are 0 to 1",
    ),
    written("sums in floating point", PROGRAM, IN_FLOATS, C, "with a rounded sum: send and add the buffer's own dtype"),
    written("the library's reduce", PROGRAM, LIBRARYS_REDUCE, C, "rank 0 calls torch's own dist.reduce;"),
    written(
        "the library's tree, executed",
        PROGRAM,
        BY_THE_LIBRARY,
        C,
        "the library's own execute is for comparing, afterwards",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant):
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant), briefly=mutant.cell == PROGRAM)


def test_a_program_that_is_missing_is_named():
    said = verdicts(EXERCISE, {PROGRAM: "def tree_reduce(*_): raise NotImplementedError()"}, parts="c")
    assert set(said.values()) == {"tree_reduce is not written yet"}


def made(code):
    """The function `tree_reduce` of a learner's cell."""
    names = {"torch": torch, "dist": torch.distributed}
    exec(compile(textwrap.dedent(code), "answer", "exec"), names)
    return names["tree_reduce"]


@pytest.mark.parametrize(
    "code, says",
    [
        (CHAIN_FOR_REAL, "takes 3 steps; 2 are enough"),
        (CHAIN_FOR_REAL, "0:3→2+ | 0:2→1+ | 0:1→0+"),
        (IN_TWO_HALVES, "rank 1 sends 48 bytes in 2 messages; it should send its sum once, 48 bytes"),
    ],
)
def test_a_program_that_is_right_and_no_quick_tree_is_told_so(code, says):
    with pytest.raises(checks.NotYet, match=re.escape(says)):
        ch02_tree.check_tree_traffic(made(code), on_ranks.tagged(4, 6))


def test_a_rank_that_waits_for_one_that_does_not_come_is_named(monkeypatch):
    """A reduce that is right for powers of two waits, on three ranks, for a rank 3 or for nobody's message."""
    monkeypatch.setattr(on_ranks, "PATIENCE", 2.0)
    code = solution_of(EXERCISE, "tree-reduce").replace("if rank + distance < world_size:", "if True:")
    tree_reduce = made(code.replace("rank + distance)", "(rank + distance) % world_size)"))
    with pytest.raises(
        checks.NotYet, match=r"waits to(?s:.)*Does every receive have its sender.* The ranks are 0 to 2"
    ):
        ch02_tree.check_sum(tree_reduce, on_ranks.tagged(3, 4))


def test_a_sum_that_is_returned_but_not_left_in_place_is_told_of():
    tree_reduce = made(solution_of(EXERCISE, "tree-reduce").replace("buffer += incoming", "return buffer + incoming"))
    with pytest.raises(checks.NotYet, match="returns the sum, but its buffer does not hold it: work in place"):
        ch02_tree.check_sum(tree_reduce, on_ranks.tagged(2, 4))


def test_slow_and_wrong_schedules_are_drawn(monkeypatch):
    shown = []
    for shows in (ch02_tree, checks):  # what is slow, and what breaks its contract
        monkeypatch.setattr(shows, "show", shown.append)
    verdicts(EXERCISE, {"broadcast-steps": NEAREST_FIRST}, parts="a")
    verdicts(EXERCISE, {"broadcast-steps": FLAT}, parts="a")
    with pytest.raises(checks.NotYet):
        ch02_tree.check_tree_traffic(made(CHAIN_FOR_REAL), on_ranks.tagged(4, 6))
    captions = [drawing.caption for drawing in shown]
    assert "broadcast_steps(4)" in captions
    assert "broadcast_steps(4): right, but 2 steps are enough" in captions
    assert "tree_reduce: every message as early as possible" in captions


def test_a_step_without_a_message_is_not_counted_and_a_rank_takes_what_is_ready_first():
    late = {1: 0, 2: 1, 3: 2, 4: 0}  # a chain of three, and a leaf that rank 0 can take meanwhile
    assert ch02_tree.earliest(late) == [
        (0, Transfer(4, 0, 0, "reduce")),
        (0, Transfer(3, 2, 0, "reduce")),
        (1, Transfer(2, 1, 0, "reduce")),
        (2, Transfer(1, 0, 0, "reduce")),
    ]
    assert ch02_tree.earliest({}) == []


@pytest.mark.parametrize("world_size", range(1, 17))
def test_a_flat_broadcast_is_called_slow_only_where_it_is(world_size):
    schedule = flat.broadcast(world_size)
    if world_size <= 3:
        ch02_tree.check_fewest_steps(schedule, contracts.broadcast)
    else:
        with pytest.raises(checks.NotYet, match="but only 1 does"):
            ch02_tree.check_fewest_steps(schedule, contracts.broadcast)


def test_a_sum_is_put_in_words():
    both = on_ranks.tagged(3, 4)
    assert ch02_tree.summed(both[0], 3) == "what it began with"
    assert ch02_tree.summed(both[0] + both[2], 3) == "a sum without rank 1"
    assert ch02_tree.summed(both.sum(axis=0) + both[1], 3) == "a sum with rank 1 more than once"
    assert ch02_tree.summed(np.array([1, 5, 7, 2]), 3) is None
