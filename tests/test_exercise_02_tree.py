"""Exercise 02_tree takes any tree that is right and quick, and says of others what is wrong with them."""

import re
import textwrap

import numpy as np
import pytest
import torch
from answers import exercises, verdicts

from collectives import contracts, practice
from collectives.algorithms import flat
from collectives.practice import tree as checks
from collectives.schedule import Transfer

NAME = "02_tree"

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


@pytest.mark.parametrize(
    "answers",
    [
        {"broadcast-steps": FAR_END_FIRST, "reduce-steps": REDUCE_ALONE, "tree-reduce": BY_RECURSION},
        {"broadcast-steps": WITH_EMPTY_STEPS, "reduce-steps": REDUCE_BY_BITS, "tree-reduce": UPPER_HALF_TO_LOWER},
    ],
)
def test_any_right_tree_is_accepted(answers):
    said = verdicts(NAME, answers)
    assert set(said.values()) == {None}, said


@pytest.mark.parametrize("answer", [HALVES_OF_THE_RANGE, WHOEVER_IS_NEXT])
def test_any_doubling_is_accepted(answer):
    said = verdicts(NAME, {"broadcast-steps": answer}, parts="a")
    assert set(said.values()) == {None}, said


# Wrong or slow answers: the checks that must refuse them, and what the first of these must say.

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
        return [[(rank, rank + 1, 0, "copy")] for rank in range(world_size - 1)]
"""
HALVED_DISTANCES = """
    def broadcast_steps(world_size):
        steps, distance = [], world_size // 2
        while distance:
            steps.append([(r, r + distance, 0, "copy") for r in range(0, world_size - distance, 2 * distance)])
            distance //= 2
        return steps
"""
NEAREST_FIRST = """
    def broadcast_steps(world_size):
        steps, distance = [], 1
        while distance < world_size:
            steps.append([(r, r + distance, 0, "copy") for r in range(0, world_size - distance, 2 * distance)])
            distance *= 2
        return steps
"""
ROUND_AND_ROUND = """
    def broadcast_steps(world_size):
        count = (world_size - 1).bit_length()
        return [[(r, (r + 2**k) % world_size, 0, "copy") for r in range(2**k)] for k in range(count)]
"""
PAST_THE_END = """
    def broadcast_steps(world_size):
        return [[(r, r + 2**k, 0, "copy") for r in range(2**k)] for k in range((world_size - 1).bit_length())]
"""
ADDED = FAR_END_FIRST.replace('"copy"', '"reduce"')
NEVER_ENDS = """
    def broadcast_steps(world_size):
        while True:
            yield []
"""


GENERATORS = """
    def broadcast_steps(world_size):
        have = 1
        while have < world_size:
            yield (Transfer(r, r + have, 0) for r in range(have) if r + have < world_size)
            have *= 2
"""


@pytest.mark.parametrize(
    "answer, refuse, says",
    [
        (FLAT, SLOW, "takes 3 steps; 4 ranks need 2. Before step 1, 2 ranks have the data; in it 2 of them could send"),
        (CHAIN, SLOW, "takes 3 steps; 4 ranks need 2"),
        (FLAT_AT_ONCE, SLOW, "rank 0 sends 3 messages at once (0:0→1  0:0→2  0:0→3); a rank sends one message a step"),
        (HALVED_DISTANCES, ANY, "chunk 0 on rank 2 holds what rank 2 began with and lacks rank 0: no step ever writes"),
        (NEAREST_FIRST, A, "in step 0 rank 2 sends chunk 0 before it has it (0:2→3)"),
        (ROUND_AND_ROUND, {"a4-fewest-steps-any"}, "step 1: the root, rank 0, receives the data; it need not"),
        (PAST_THE_END, ANY, "has dst 3, but the ranks are 0 to 2"),
        (ADDED, A, "combine is 'copy', not 'reduce'"),
        (NEVER_ENDS, A, "does it ever stop?"),
        (GENERATORS, set(), ""),
        (
            """
    def broadcast_steps(P):
        from collectives.algorithms import tree
        yield from map(list, tree.broadcast(P))
""",
            A,
            "broadcast_steps(2): the library's own tree broadcast is for comparing, afterwards; write this",
        ),
        (
            "def broadcast_steps(P): return [[Transfer(0, None, 0)]]",
            A,
            "step 0: its dst is None; src, dst and chunk are",
        ),
        (
            "def broadcast_steps(P): return [[Transfer(0, 1, 0, 'copy', 0.0)]]",
            A,
            "its into is 0.0; into is a whole",
        ),
        ("def broadcast_steps(P): return [[(0, 1)]]", A, "Transfer(src, dst, chunk, combine): its chunk is missing"),
        ("def broadcast_steps(world_size): pass", A, "returns None; is its `return` missing?"),
        ("def broadcast_steps(world_size): raise NotImplementedError()", A, "broadcast_steps is not written yet"),
        (
            "def broadcast_steps(world_size): return Schedule.of(world_size, 1, [])",
            A,
            "returns a ready-made Schedule",
        ),
    ],
)
def test_a_wrong_or_slow_broadcast_is_refused_in_words_that_name_the_slip(answer, refuse, says):
    said = verdicts(NAME, {"broadcast-steps": answer}, parts="a")
    assert {check for check, words in said.items() if words} == refuse
    assert not refuse or says in said[min(refuse)]


def solution(grade_id):
    (code,) = [cell.source for cell in exercises.source(NAME).cells if cell.id == grade_id]
    return code


FLAT_REDUCE = """
    def reduce_steps(world_size, root):
        return [[(rank, root, 0, "reduce")] for rank in range(world_size) if rank != root]
"""


@pytest.mark.parametrize(
    "right, wrong, refuse, says",
    [
        ("(number + root)", "number", B, "the finished chunk 0 is on rank 0"),
        ("in reversed(", "in (", B, "lacks rank"),
        ('"reduce"', '"copy"', B, "instead of adding"),
        ("there.dst), named(there.src)", "there.src), named(there.dst)", B, "lacks rank"),
        (
            None,
            FLAT_REDUCE,
            {"b2-fewest-steps"},
            "Before step 0, 4 ranks hold a part of the sum; in it 2 of them could",
        ),
        (None, "def reduce_steps(world_size): return []", B, "ends in TypeError"),
    ],
)
def test_a_wrong_or_slow_reduce_is_refused_in_words_that_name_the_slip(right, wrong, refuse, says):
    answer = solution("reduce-steps").replace(right, wrong) if right else wrong
    said = verdicts(NAME, {"reduce-steps": answer}, parts="b")
    assert {check for check, words in said.items() if words} == refuse
    assert says in said[min(refuse)]


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


@pytest.mark.parametrize(
    "right, wrong, refuse, says",
    [
        ("buffer += incoming", "buffer.copy_(incoming)", C, "a sum without rank 0"),
        ("buffer += incoming", "buffer += 2 * incoming", C, "a sum with rank 1 more than once"),
        ("buffer += incoming", "buffer = buffer + incoming", C, "ends with what it began with"),
        (
            "    incoming = ",
            "    buffer = buffer.clone()\n    incoming = ",
            C,
            "ends with what it began with",
        ),
        (None, FLAT_FOR_REAL, {"c3-tree"}, "only after 3 messages, one after the other; 2 are enough"),
        (
            None,
            "def tree_reduce(rank, world_size, buffer): dist.reduce(buffer, 0)",
            C,
            "rank 0 calls the library's own dist.reduce;",
        ),
        (
            None,
            """
    def tree_reduce(rank, world_size, buffer):
        from collectives import execute
        from collectives.algorithms import tree
        execute(tree.reduce(world_size), buffer)
""",
            C,
            "the library's own execute is for comparing, afterwards",
        ),
        (None, "def tree_reduce(rank, world_size, buffer): raise NotImplementedError()", C, "is not written yet"),
    ],
)
def test_a_wrong_or_slow_program_is_refused_in_words_that_name_the_slip(right, wrong, refuse, says):
    answer = solution("tree-reduce").replace(right, wrong) if right else wrong
    said = verdicts(NAME, {"tree-reduce": answer}, parts="c")
    assert {check for check, words in said.items() if words} == refuse
    assert says in said[min(refuse)]


def written(code):
    """The function `tree_reduce` of a learner's cell."""
    names = {"torch": torch, "dist": torch.distributed}
    exec(compile(textwrap.dedent(code), "answer", "exec"), names)
    return names["tree_reduce"]


@pytest.mark.parametrize(
    "code, says",
    [
        (CHAIN_FOR_REAL, "only after 3 messages, one after the other; 2 are enough"),
        (CHAIN_FOR_REAL, "0:3→2+ | 0:2→1+ | 0:1→0+"),
        (IN_TWO_HALVES, "rank 1 sends 48 bytes in 2 messages; it should send its sum once, 48 bytes"),
    ],
)
def test_a_program_that_is_right_and_no_quick_tree_is_told_so(code, says):
    with pytest.raises(practice.NotYet, match=re.escape(says)):
        checks.check_tree_traffic(written(code), practice.tagged(4, 6))


def test_a_rank_that_waits_for_one_that_does_not_come_is_named(monkeypatch):
    """A reduce that is right for powers of two waits, on three ranks, for a rank 3 or for nobody's message."""
    monkeypatch.setattr(practice, "PATIENCE", 2.0)
    code = solution("tree-reduce").replace("if rank + distance < world_size:", "if True:")
    tree_reduce = written(code.replace("rank + distance)", "(rank + distance) % world_size)"))
    with pytest.raises(
        practice.NotYet, match=r"waits to(?s:.)*Does every receive have its sender.* the ranks are 0 to 2"
    ):
        checks.check_sum(tree_reduce, practice.tagged(3, 4))


def test_a_sum_that_is_returned_but_not_left_in_place_is_told_of():
    tree_reduce = written(solution("tree-reduce").replace("buffer += incoming", "return buffer + incoming"))
    with pytest.raises(practice.NotYet, match="returns the sum, but its buffer does not hold it: work in place"):
        checks.check_sum(tree_reduce, practice.tagged(2, 4))


def test_slow_and_wrong_schedules_are_drawn(monkeypatch):
    shown = []
    for shows in (checks, practice):  # what is slow, and what breaks its contract
        monkeypatch.setattr(shows, "show", shown.append)
    verdicts(NAME, {"broadcast-steps": NEAREST_FIRST}, parts="a")
    verdicts(NAME, {"broadcast-steps": FLAT}, parts="a")
    with pytest.raises(practice.NotYet):
        checks.check_tree_traffic(written(CHAIN_FOR_REAL), practice.tagged(4, 6))
    captions = [drawing.caption for drawing in shown]
    assert "broadcast_steps(4)" in captions
    assert "broadcast_steps(4): right, but 2 steps are enough" in captions
    assert "tree_reduce: who sends to whom, as early as can be" in captions


def test_a_step_without_a_message_is_not_counted_and_a_rank_takes_what_is_ready_first():
    late = {1: 0, 2: 1, 3: 2, 4: 0}  # a chain of three, and a leaf that rank 0 can take meanwhile
    assert checks.earliest(late) == [
        (0, Transfer(4, 0, 0, "reduce")),
        (0, Transfer(3, 2, 0, "reduce")),
        (1, Transfer(2, 1, 0, "reduce")),
        (2, Transfer(1, 0, 0, "reduce")),
    ]
    assert checks.earliest({}) == []


@pytest.mark.parametrize("world_size", range(1, 17))
def test_a_flat_broadcast_is_called_slow_only_where_it_is(world_size):
    schedule = flat.broadcast(world_size)
    if world_size <= 3:
        checks.check_fewest_steps(schedule, contracts.broadcast)
    else:
        with pytest.raises(practice.NotYet, match="but only 1 does"):
            checks.check_fewest_steps(schedule, contracts.broadcast)


def test_a_sum_is_put_in_words():
    both = practice.tagged(3, 4)
    assert checks.summed(both[0], 3) == "what it began with"
    assert checks.summed(both[0] + both[2], 3) == "a sum without rank 1"
    assert checks.summed(both.sum(axis=0) + both[1], 3) == "a sum with rank 1 more than once"
    assert checks.summed(np.array([1, 5, 7, 2]), 3) is None
