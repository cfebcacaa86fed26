"""Exercise 07 pays for how near an answer comes to the best, and says of a wrong or a slow one where it falls short."""

import pytest
from answers import assert_accepted, assert_refused, verdicts, with_slip, written

from collectives.algorithms import hierarchical
from collectives.practice import ch07_topology

EXERCISE = "07_topology"
ALL = ["a1-sums-small", "a2-sums-all", "b1-beats-the-ring", "b2-within-a-quarter", "b3-best"]

# Right answers, each in another style than the solution's.

HALVING = """
    def two_level_all_reduce_steps(num_nodes, ranks_per_node):
        world_size = num_nodes * ranks_per_node
        if world_size & (world_size - 1):
            return exchange(world_size)
        start, width, there, bit = [0] * world_size, world_size, [], 1
        while bit < world_size:
            width //= 2
            step = []
            for rank in range(world_size):
                upper = bool(rank & bit)
                step.append(Transfer(rank, rank ^ bit, start[rank] + (0 if upper else width), "reduce", None, width))
            there.append(step)
            start = [start[rank] + (width if rank & bit else 0) for rank in range(world_size)]
            bit *= 2
        return there + [[Transfer(t.dst, t.src, t.chunk, "copy", None, t.count) for t in s] for s in there[::-1]]


    def exchange(world_size):
        everyone = [(a, b) for a in range(world_size) for b in range(world_size) if a != b]
        return [[(a, b, b, "reduce") for a, b in everyone], [(a, b, a, "copy") for a, b in everyone]]
"""
RINGS = """
    def two_level_all_reduce_steps(num_nodes, ranks_per_node):
        world_size, steps = num_nodes * ranks_per_node, []
        for combine, begin in (("reduce", -1), ("between", None), ("copy", 0)):
            if combine == "between":
                for how, first in (("reduce", -1), ("copy", 0)):
                    for s in range(num_nodes - 1):
                        steps.append([
                            Transfer(rank, (rank + ranks_per_node) % world_size,
                                     rank % ranks_per_node * num_nodes
                                     + (rank // ranks_per_node + first - s) % num_nodes, how)
                            for rank in range(world_size)
                        ])
                continue
            for s in range(ranks_per_node - 1):
                step = []
                for rank in range(world_size):
                    node, local = divmod(rank, ranks_per_node)
                    right = node * ranks_per_node + (local + 1) % ranks_per_node
                    shard = (local + begin - s) % ranks_per_node
                    step.append(Transfer(rank, right, shard * num_nodes, combine, count=num_nodes))
                steps.append(step)
        return steps
"""
CHUNK_BY_CHUNK = RINGS.replace(
    "step.append(Transfer(rank, right, shard * num_nodes, combine, count=num_nodes))",
    "step += [Transfer(rank, right, shard * num_nodes + c, combine) for c in range(num_nodes)]",
)
LEADERS = """
    def two_level_all_reduce_steps(num_nodes, ranks_per_node):
        world_size = num_nodes * ranks_per_node
        leaders = range(0, world_size, ranks_per_node)
        gather = [
            [Transfer(leader + other, leader, 0, "reduce", count=world_size) for leader in leaders]
            for other in range(1, ranks_per_node)
        ]
        between = [
            [
                Transfer(leader, (leader + ranks_per_node) % world_size,
                         (leader // ranks_per_node + first - s) % num_nodes * ranks_per_node, how,
                         count=ranks_per_node)
                for leader in leaders
            ]
            for how, first in (("reduce", -1), ("copy", 0))
            for s in range(num_nodes - 1)
        ]
        back = [[Transfer(t.dst, t.src, 0, "copy", count=world_size) for t in step] for step in gather]
        return gather + between + back
"""
FLAT_RING = """
    def two_level_all_reduce_steps(num_nodes, ranks_per_node):
        world_size = num_nodes * ranks_per_node
        return [
            [Transfer(r, (r + 1) % world_size, (r + first - s) % world_size, how) for r in range(world_size)]
            for how, first in (("reduce", -1), ("copy", 0))
            for s in range(world_size - 1)
        ]
"""


BY_DIGITS = """
    from itertools import product

    def two_level_all_reduce_steps(num_nodes, ranks_per_node):
        bases = primes(num_nodes)[::-1] + primes(ranks_per_node)[::-1]  # of a rank's digits, the nearest last
        every = list(product(*map(range, bases)))
        number = {digits: rank for rank, digits in enumerate(every)}
        there, length = [], len(every)
        for place in reversed(range(len(bases))):
            length //= bases[place]
            for shift in range(1, bases[place]):
                there.append([])
                for digits in every:
                    other = (digits[place] + shift) % bases[place]
                    peer = digits[:place] + (other,) + digits[place + 1 :]
                    there[-1].append(Transfer(number[digits], number[peer], first(peer, place, bases), "reduce",
                                              None, length))
        return [*there, *([Transfer(t.dst, t.src, t.chunk, "copy", None, t.count) for t in s] for s in there[::-1])]

    def first(digits, place, bases):
        # where what a rank keeps begins, when its digits from `place` on are settled
        begin, length = 0, 1
        for base in bases:
            length *= base
        for digit, base in zip(digits[: place - 1 if place else None : -1], bases[: place - 1 if place else None : -1]):
            length //= base
            begin += digit * length
        return begin

    def primes(number):
        for factor in range(2, number + 1):
            if number % factor == 0:
                return [factor] + primes(number // factor)
        return []
"""
BY_RECURSION = """
    def two_level_all_reduce_steps(num_nodes, ranks_per_node):
        bases = [2] * num_nodes + [3] * num_nodes + [5] * num_nodes  # more than enough of each
        left, found = (ranks_per_node, num_nodes), []
        for number in left:
            for base in bases:
                while number > 1 and number % base == 0:
                    found, number = [*found, base], number // base
        return around(found, 1, [0] * num_nodes * ranks_per_node, num_nodes * ranks_per_node)

    def around(bases, distance, first, length):
        if not bases:
            return []
        base, part = bases[0], length // bases[0]
        digits = [rank // distance % base for rank in range(len(first))]
        sends = [
            [(rank, rank + ((digit + turn) % base - digit) * distance, first[rank] + (digit + turn) % base * part)
             for rank, digit in enumerate(digits)]
            for turn in range(1, base)
        ]
        kept = [begin + digit * part for begin, digit in zip(first, digits)]
        before = [[Transfer(src, dst, chunk, "reduce", count=part) for src, dst, chunk in step] for step in sends]
        after = [[Transfer(dst, src, chunk, "copy", count=part) for src, dst, chunk in step] for step in sends]
        return before + around(bases[1:], distance * base, kept, part) + after
"""


def formulas(ring="2 * (P - 1) / P * S", bad="2 * (P - 1) / N * S", two_levels="2 * (N - 1) / N * S"):
    return "\n".join(
        f"def {name}(num_bytes, num_nodes, ranks_per_node):\n"
        f"    S, N, L, P = num_bytes, num_nodes, ranks_per_node, num_nodes * ranks_per_node\n"
        f"    return {body}\n"
        for name, body in (("leaving_ring", ring), ("leaving_bad_ring", bad), ("leaving_two_levels", two_levels))
    )


RIGHT = {
    "halving and doubling": {"two-level-steps": HALVING},
    "by the digits of a rank": {"two-level-steps": BY_DIGITS},
    "by recursion, out and back": {"two-level-steps": BY_RECURSION},
    "formulas in P and N": {"leaving": formulas()},
    "formulas in whole numbers, and sums": {
        "leaving": formulas("2 * (S - S // P)", "2 * (P - 1) * S // N", "sum(S // N for _ in range(2 * N - 2))")
    },
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


# Answers that are slow, or wrong.


def slow(slip, steps, first_refused, says, origin):
    """An all-reduce that costs too much for the checks from `first_refused` on."""
    return written(slip, "two-level-steps", steps, {*ALL[ALL.index(first_refused) :]}, says, origin)


def summed(slip, good, bad, says, refuse=ALL, origin="usual slip"):
    """The rings, with a slip by which the sums are wrong: a wrong sum is never cheap."""
    assert good in RINGS
    return written(slip, "two-level-steps", RINGS.replace(good, bad), {*refuse}, says, origin)


def miscounted(slip, check, says, origin="usual slip", **wrong):
    """One formula wrong, the others right."""
    return written(slip, "leaving", formulas(**wrong), {check}, says, origin)


LEVELS = '("reduce", -1), ("between", None), ("copy", 0)'
C1, C2, C3 = "c1-ring", "c2-bad-ring", "c3-two-levels"
MUTANTS = [
    slow(
        "rings on both levels",
        RINGS,
        "b3-best",
        "22% more than the 160 microseconds of the best schedule known for both sizes together",
        "M14",
    ),
    slow("chunk by chunk", CHUNK_BY_CHUNK, "b2-within-a-quarter", "pays for 30 messages in a row", "page 07"),
    slow(
        "one leader in each node",
        LEADERS,
        "b2-within-a-quarter",
        "To other nodes rank 0 sends the most, 12 MiB (in the best no rank sends more than 3 MiB)",
        "C19",
    ),
    slow("the flat ring", FLAT_RING, "b1-beats-the-ring", "the flat ring 735 microseconds", "C05"),
    summed("nothing goes back into the node", ', ("between", None), ("copy", 0)', ', ("between", None)', "lacks"),
    summed("the nodes left alone", LEVELS, '("reduce", -1), ("copy", 0)', "the nodes never exchange data"),
    summed("only between nodes", LEVELS, '("between", None),', "the ranks of a node never exchange data"),
    summed("copied between nodes", '(("reduce", -1), ("copy", 0))', '(("copy", -1), ("copy", 0))', "copies over"),
    summed("past the last rank", "+ ranks_per_node) % world_size", "+ ranks_per_node)", "the ranks are 0 to 3"),
    summed("one chunk of a shard", "shard * num_nodes, combine, count=num_nodes", "shard, combine", "lacks"),
    summed(
        "a shard for each rank's number",
        "count=num_nodes",
        "count=ranks_per_node",
        "the chunks are 0 to 2",
        ["a2-sums-all", "b3-best"],  # like all rings
    ),
    summed("no return", "return steps", "steps", "returns None; is its `return` missing?"),
    miscounted("one phase of the ring", C1, "half of it", "C03", ring="(P - 1) / P * S"),
    miscounted("all nodes together", C1, "counts all nodes together", ring="2 * (P - 1) * S / L"),
    miscounted("every chunk in the ring", C1, "a rank does not send to itself", ring="2 * S"),
    miscounted("nodes for ranks", C1, "this counts N nodes where the ring has P ranks", ring="2 * (N - 1) / N * S"),
    miscounted("all ranks of the node", C1, "this counts every rank of the node", ring="L * 2 * (P - 1) / P * S"),
    miscounted("rounded to 1", C1, "the factor lies between 1 and 2", ring="2 * (P - 1) // P * S"),
    miscounted(
        "rounded to 0", C1, "something leaves every node; has a fraction become 0?", ring="(P - 1) // P * 2 * S"
    ),
    miscounted("the order does not matter", C2, "this is what leaves one rank", "M14", bad="2 * (P - 1) / P * S"),
    miscounted("every chunk once", C2, "all ranks of the node send, and each sends P - 1 of the P", bad="2 * S"),
    miscounted("one rank of the node", C3, "this is what leaves one rank", two_levels="2 * (N - 1) / N * S / L"),
    miscounted("ranks for nodes", C3, "this counts P ranks where the N nodes count", two_levels="2 * (P - 1) / P * S"),
    miscounted("every chunk twice", C3, "a node does not send to itself", two_levels="2 * S"),
    miscounted("rounded down", C3, "this is the whole buffer once; the factor", two_levels="S"),
    miscounted(
        "by the library's price",
        C3,
        "is for comparing, afterwards; write this part yourself",
        two_levels="ch07_topology.leaving_a_node(ch07_topology.two_levels)(S, N, L)",
    ),
    summed(
        "the library's steps, its name taken away",
        RINGS,
        """
    def two_level_all_reduce_steps(num_nodes, ranks_per_node):
        from dataclasses import replace
        from collectives.algorithms import hierarchical
        made = hierarchical.all_reduce(num_nodes * ranks_per_node, ranks_per_node)
        return [list(step) for step in replace(made, collective=None)]
""",
        "is for comparing, afterwards; write this part yourself",
    ),
    miscounted("no shards", C3, "every rank sends, but only its shard of S/L", two_levels="L * 2 * (N - 1) / N * S"),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant):
    parts = "ab" if mutant.cell == "two-level-steps" else None  # both grade the same function
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant), parts)


def test_a_slow_answer_is_told_what_the_best_does_better():
    said = verdicts(EXERCISE, {"two-level-steps": RINGS}, parts="b")["b3-best"]
    assert "Of the 35 microseconds beyond the best, 35 are for alphas and 0 for bytes" in said
    assert "pays for 12 messages in a row" in said
    assert "the best: 8" in said
    assert "count=..." in verdicts(EXERCISE, {"two-level-steps": CHUNK_BY_CHUNK}, parts="b")["b2-within-a-quarter"]
    assert "than 3 MiB" in verdicts(EXERCISE, {"two-level-steps": LEADERS}, parts="b")["b2-within-a-quarter"]
    assert "30 messages in a row" in verdicts(EXERCISE, {"two-level-steps": FLAT_RING}, parts="b")["b1-beats-the-ring"]


def test_the_target_is_better_than_the_library_s_rings():
    rings = hierarchical.all_reduce(ch07_topology.MACHINE.world_size, ch07_topology.RANKS_PER_NODE)
    for num_bytes in ch07_topology.SIZES:
        best, others = ch07_topology.target(num_bytes), ch07_topology.priced(rings, num_bytes)
        assert best.seconds < others.seconds < 1.25 * best.seconds


def test_a_target_holds_numbers_only_and_no_steps():
    assert {type(each) for each in ch07_topology.target(2**20)} == {float, int}
