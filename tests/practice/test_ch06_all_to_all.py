"""Exercise 06 accepts every pairing that fits, and says of one that does not who is left waiting."""

from __future__ import annotations

import numpy as np
import pytest
from answers import assert_accepted, assert_refused, solution_of, verdicts, with_slip, written

from collectives.practice import ch06_all_to_all, checks, on_ranks

EXERCISE = "06_all_to_all"

# Right answers, each in another style than the solution's.

CIRCLE = """
    def peers(rank, world_size):
        seats = list(range(world_size)) + [None] * (world_size % 2)
        partners = []
        for _ in range(len(seats) - 1):
            at = seats.index(rank)
            partners.append(seats[-1 - at])
            seats = [seats[0], seats[-1], *seats[1:-1]]  # all but the first move on by a chair
        return tuple(partners)
"""
XOR_OR_CIRCLE = f"""
    def peers(rank, world_size):
        if world_size & (world_size - 1) == 0:
            return (rank ^ k for k in range(1, world_size))
        return circle(rank, world_size)
{CIRCLE.replace("peers", "circle")}
"""
BY_SUM = """
    def peers(rank, world_size):
        partners = [(k - rank) % world_size for k in range(world_size)]
        return [None if peer == rank else peer for peer in partners]
"""
XOR_CUT_OFF = """
    def peers(rank, world_size):
        masks = range(1, 1 << (world_size - 1).bit_length())
        return [rank ^ k if rank ^ k < world_size else None for k in masks]
"""
SHIFT_BOTH_WAYS = """
    def all_to_all_steps(world_size):
        return [
            [(r, d, d, "copy", r) for r in range(world_size) for d in {(r + k) % world_size, (r - k) % world_size}]
            for k in range(1, world_size // 2 + 1)
        ]
"""
ALL_AT_ONCE = """
    def all_to_all_steps(world_size):
        everything = range(world_size)
        return [[Transfer(r, d, chunk=d, into=r) for r in everything for d in everything if r != d]]
"""
POSTED = """
    def exchange(rank, world_size, chunks):
        result = torch.empty_like(chunks)
        result[rank] = chunks[rank]
        others = [peer for peer in range(world_size) if peer != rank]
        works = [dist.irecv(result[peer], peer) for peer in others]
        works += [dist.isend(chunks[peer], peer) for peer in others]
        for work in works:
            work.wait()
        return result
"""
ASCENDING = """
    def exchange(rank, world_size, chunks):
        rows = []
        for peer in range(world_size):
            row = chunks[peer].clone()
            if peer > rank:
                dist.send(chunks[peer], peer)
            if peer != rank:
                dist.recv(row, peer)
            if peer < rank:
                dist.send(chunks[peer], peer)
            rows.append(row)
        return torch.stack(rows)
"""


FOLDED_IN_TWO = """
    def peers(rank, world_size):
        def table(ranks):
            if len(ranks) == 2:
                return [{ranks[0]: ranks[1], ranks[1]: ranks[0]}]
            turning, rounds = ranks[1:], []
            for _ in turning:
                row = [ranks[0], *turning]
                pairs = list(zip(row, row[::-1]))
                rounds.append(dict(pairs))
                turning = turning[1:] + turning[:1]
            return rounds
        if world_size < 2:
            return []
        met = [each[rank] for each in table(list(range(world_size + world_size % 2)))]
        return [peer if peer < world_size else None for peer in met]
"""
BY_PAIRS = """
    def all_to_all_steps(world_size):
        meetings = [peers(rank, world_size) for rank in range(world_size)]
        for met in zip(*meetings):
            step = ((rank, peer) for rank, peer in enumerate(met) if peer is not None)
            yield [Transfer(rank, peer, peer, "copy", rank) for rank, peer in step]
"""
SHIFTED = """
    def exchange(rank, world_size, chunks):
        result = chunks.clone()
        for shift in range(1, world_size):
            to, source = (rank + shift) % world_size, (rank - shift) % world_size
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, chunks[to].clone(), to), dist.P2POp(dist.irecv, result[source], source)
            ])
            for work in works:
                work.wait()
        return result
"""
RIGHT = {
    "the circle, and shifts both ways": {"peers": CIRCLE, "all-to-all-steps": SHIFT_BOTH_WAYS},
    "XOR where it fits, and all at once": {
        "peers": XOR_OR_CIRCLE,
        "all-to-all-steps": ALL_AT_ONCE,
        "exchange": POSTED,
    },
    "whoever is lower sends first": {"exchange": ASCENDING},
    "rows folded in two": {"peers": FOLDED_IN_TWO, "all-to-all-steps": BY_PAIRS},
    "by shifts, in batches": {"exchange": SHIFTED},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


# Wrong answers: which checks must refuse them, and what the first must say.


ALL_OF_A = {"a1-pairs-small", "a2-pairs-all", "a3-rounds", "a4-target"}
ALL_OF_B = {"b1-transpose-small", "b2-transpose-all", "b3-direct"}
ALL_OF_C = {"c1-ranks-small", "c2-ranks-all"}


def pairing_of(expression, masks="range(1, world_size)"):
    return f"""
    def peers(rank, world_size):
        return [{expression} for k in {masks}]
"""


def one_by_one(body):
    return f"""
    def exchange(rank, world_size, chunks):
        result = chunks.clone()
        for peer in range(world_size):
            if peer == rank:
                continue
            {body}
        return result
"""


MUTANTS = [
    written(
        "peer = k",
        "peers",
        pairing_of("k if k != rank else None"),
        ALL_OF_A,
        "peers with 2 ranks, round 0: rank 0 waits for rank 1, whose partner is None",
        origin="C17",
    ),
    written(
        "peer = k, from 0 on",
        "peers",
        pairing_of("k if k != rank else None", "range(world_size)"),
        ALL_OF_A,
        "round 0: rank 1 waits for rank 0, whose partner is None",
        origin="C17",
    ),
    written(
        "a shift as pairing",
        "peers",
        pairing_of("(rank + k) % world_size"),
        ALL_OF_A,
        "with 3 ranks, round 0: rank 0 waits for rank 1, whose partner is rank 2. Each waits for the next: "
        "rank 0 → rank 1 → rank 2 → rank 0",
        origin="page 06",
    ),
    written(
        "XOR for any P",
        "peers",
        pairing_of("rank ^ k"),
        ALL_OF_A,
        "the partner is rank 3, but the ranks are 0 to 2",
        origin="C17",
    ),
    written(
        "XOR, with too few masks",
        "peers",
        pairing_of("rank ^ k if rank ^ k < world_size else None"),
        ALL_OF_A,
        "with 3 ranks: ranks 1 and 2 never meet; each pair meets exactly once",
        origin="C17",
    ),
    written(
        "idle ranks are their own partners",
        "peers",
        pairing_of("(k - rank) % world_size", "range(world_size)"),
        ALL_OF_A,
        "rank 0 is its own partner; a rank that sits a round out has None",
    ),
    written(
        "idle rounds left out",
        "peers",
        pairing_of("(k - rank) % world_size", "range(world_size) if 2 * rank % world_size != k"),
        ALL_OF_A,
        "whose partner is",
    ),
    written(
        "everyone meets twice",
        "peers",
        pairing_of("(k - rank) % world_size if 2 * rank % world_size != k else None", "2 * list(range(world_size))"),
        ALL_OF_A,
        "ranks 0 and 1 meet in rounds 1 and 3",
    ),
    written(
        "peers that add up to k: one round too many",
        "peers",
        BY_SUM,
        {"a4-target"},
        "with 2 ranks takes 2 rounds, and 1 is enough: in round 0 there are 2 without",
        origin="C17",
    ),
    written(
        "XOR cut off: too many rounds",
        "peers",
        XOR_CUT_OFF,
        {"a3-rounds", "a4-target"},
        "with 5 ranks takes 7 rounds, and 5 are enough",
        origin="C17",
    ),
    written("nobody meets", "peers", pairing_of("None"), ALL_OF_A, "ranks 0 and 1 never meet"),
    written(
        "in-place overwrite",
        "all-to-all-steps",
        """
    def all_to_all_steps(world_size):
        everyone = range(world_size)
        return [
            [(r, (r + k) % world_size, (r + k) % world_size, "copy", r) for r in everyone]
            for k in range(1, world_size)
        ]
""",
        ALL_OF_B,
        "Step 0 overwrites chunk 0 on rank 1, before step 1 sends it",
        origin="C18",
    ),
    written(
        "no into",
        "all-to-all-steps",
        "def all_to_all_steps(n): return [[(r, r ^ 1, r ^ 1) for r in range(n - n % 2)]]",
        ALL_OF_B,
        "set `into` to its place",
    ),
    written(
        "chunks added",
        "all-to-all-steps",
        "def all_to_all_steps(n): return [[(r, d, d, 'reduce', r) for r in range(n) for d in range(n) if r != d]]",
        ALL_OF_B,
        "copy them, do not add them",
    ),
    written(
        "one pair at a time",
        "all-to-all-steps",
        """
    def all_to_all_steps(world_size):
        pairs = [(a, b) for a in range(world_size) for b in range(a)]
        return [[Transfer(a, b, chunk=b, into=a), Transfer(b, a, chunk=a, into=b)] for a, b in pairs]
""",
        {"b3-direct"},
        "takes 5 messages in a row, and 3 are enough",
    ),
    written(
        "along the cube, for powers of two",
        "all-to-all-steps",
        """
    def all_to_all_steps(P):
        digits, ranks = [2**d for d in range((P - 1).bit_length())], range(P)
        return [[(r, r ^ b, c, "copy", c ^ b) for r in ranks for c in ranks if (c ^ r) & b] for b in digits]
""",
        ALL_OF_B,
        "has into 3, but the chunks are 0 to 2",
        origin="C17",
    ),
    written(
        "all send first",
        "exchange",
        one_by_one("dist.send(chunks[peer], peer); dist.recv(result[peer], peer)"),
        ALL_OF_C,
        "each waits for the next: rank 0 → rank 1 → rank 0",
        origin="C16",
    ),
    written(
        "peers that do not fit",
        "exchange",
        one_by_one("""
            if peer == 0:
                continue  # as the published loop, which begins at 1
            if rank < peer: dist.send(chunks[peer], peer)
            dist.recv(result[peer], peer)
            if rank > peer: dist.send(chunks[peer], peer)
""").replace("range(world_size)", "range(world_size) if world_size > 2 else [1 - rank]"),
        ALL_OF_C,
        "rank 0 waits to send to rank 1",
        origin="C17",
    ),
    written(
        "nothing sent", "exchange", one_by_one("pass"), ALL_OF_C, "row 1 is still what rank 0 had for rank 1: nothing"
    ),
    written(
        "own row forgotten",
        "exchange",
        POSTED.replace("result[rank] = chunks[rank]", "result.zero_()"),
        ALL_OF_C,
        "row 0 isn't rank 0's own chunk, which stays with it: copy it there",
        origin="C18",
    ),
    written(
        "rows reversed",
        "exchange",
        POSTED.replace("(chunks[peer], peer)", "(chunks[peer].flip(0), peer)"),
        ALL_OF_C,
        "row 1 is what rank 1 had for rank 0, but in another order",
    ),
    written(
        "the library's algorithm, executed",
        "exchange",
        """
    def exchange(rank, world_size, chunks):
        from collectives import execute
        execute(Schedule.of(world_size, world_size, all_to_all_steps(world_size)), chunks.flatten())
""",
        ALL_OF_C,
        "exchange: the library's own execute is for comparing, afterwards; write this part yourself",
    ),
    written(
        "the library's algorithm, copied",
        "all-to-all-steps",
        """
    def all_to_all_steps(world_size):
        from collectives.algorithms import pairwise
        return [list(step) for step in pairwise.all_to_all(world_size)]
""",
        ALL_OF_B,
        "is for comparing, afterwards; write this part yourself",
    ),
    written(
        "the library's steps, its name taken away",
        "all-to-all-steps",
        """
    def all_to_all_steps(world_size):
        from dataclasses import replace
        from collectives.algorithms import pairwise
        return [list(step) for step in replace(pairwise.all_to_all(world_size), collective=None).make_steps()]
""",
        ALL_OF_B,
        "is for comparing, afterwards; write this part yourself",
    ),
    written(
        "sent as float32",
        "exchange",
        one_by_one("""
            work = dist.isend(chunks[peer].float(), peer)
            incoming = torch.empty(chunks.shape[1])
            dist.recv(incoming, peer)
            work.wait()
            result[peer] = incoming
"""),
        ALL_OF_C,
        "rounded as floats are: keep the dtype of `chunks`",
    ),
    written(
        "returned as float64",
        "exchange",
        """
    def exchange(rank, world_size, chunks):
        result = torch.zeros(chunks.shape, dtype=torch.float64)
        result[rank] = chunks[rank]
        for step in range(1, world_size):
            peer, source = (rank + step) % world_size, (rank - step) % world_size
            row = torch.empty_like(chunks[0])
            work = dist.isend(chunks[peer], peer)
            dist.recv(row, source)
            work.wait()
            result[source] = row
        return result
""",
        ALL_OF_C,
        "numbers of float64, which rounds them; keep the dtype of `chunks`",
    ),
    written(
        "the whole tensor to everyone",
        "exchange",
        one_by_one("""
            works = [dist.isend(chunks.clone(), peer)]
            incoming = torch.empty_like(chunks)
            dist.recv(incoming, peer)
            works[0].wait()
            result[peer] = incoming[rank]
"""),
        ALL_OF_C,
        "its chunks for the others have 24",
        origin="C18",
    ),
    written(
        "the library's own",
        "exchange",
        """
    def exchange(rank, world_size, chunks):
        result = torch.empty_like(chunks)
        dist.all_to_all_single(result, chunks)
        return result
""",
        ALL_OF_C,
        "calls torch's own dist.all_to_all; write this part with send and recv alone",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant, monkeypatch):
    monkeypatch.setattr(on_ranks, "PATIENCE", 2.0)
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant), briefly=mutant.cell == "exchange")


@pytest.mark.parametrize(
    "given, words",
    [
        ("None", "returns None"),
        ("3", "which is not a list of partners"),
        ("[0.5]", "0.5 is no partner"),
        ("[None] * rank", "gives rank 0 0 rounds and rank 1 1"),
        ("iter(int, 1)", "does it ever stop?"),
        ("{0: None, 1: 1}", "returns a dict; return a list"),
    ],
)
def test_a_malformed_pairing_is_told_of_plainly(given, words):
    said = verdicts(EXERCISE, {"peers": f"def peers(rank, world_size): return {given}"}, parts="a")
    assert words in said["a1-pairs-small"]


def test_a_pairing_that_does_not_fit_is_drawn_with_those_who_wait(monkeypatch):
    shown = []
    monkeypatch.setattr(ch06_all_to_all, "show", shown.append)
    verdicts(EXERCISE, {"peers": pairing_of("(rank + k) % world_size")}, parts="a")
    assert repr(shown[0]).splitlines() == ["   rank  0  1  2", "round 0  1! 2! 0!", "round 1  2! 0! 1!"]
    assert shown[0]._repr_html_().count("outline") == 6


def test_an_overwritten_chunk_is_drawn(monkeypatch):
    shown = []
    monkeypatch.setattr(checks, "show", shown.append)
    (mutant,) = [mutant for mutant in MUTANTS if mutant.slip == "in-place overwrite"]
    verdicts(EXERCISE, with_slip(EXERCISE, mutant), parts="b")
    assert "This is the step that goes wrong" in shown[0]._repr_html_()


def test_the_solution_meets_the_bound_on_rounds():
    names = {}
    exec(solution_of(EXERCISE, "peers"), names)
    for world_size in range(1, 20):
        table = ch06_all_to_all.check_every_pair(names["peers"], world_size)
        meetings = world_size * (world_size - 1) // 2
        assert len(table) == ch06_all_to_all.fewest_rounds(world_size)
        assert len(table) * (world_size // 2) == meetings, "and nobody idles who need not"


def test_a_wrong_row_is_told_by_what_is_in_it():
    want = np.array([ch06_all_to_all._chunk(src, 0, 2) for src in range(3)])

    def told(*row):
        return ch06_all_to_all._wrong_row(np.array([want[0], row, want[2]]), want, 0)

    assert (
        told(*ch06_all_to_all._chunk(2, 1, 2))
        == "row 1 is what rank 2 had for rank 1, where what rank 1 had for rank 0 belongs"
    )
    assert told(*ch06_all_to_all._chunk(0, 1, 2)).startswith(
        "row 1 is still what rank 0 had for rank 1: nothing from rank 1 had"
    )
    assert told(7, 99999).startswith("row 1 is [7, 99999], where")
    assert told(*want[1][::-1]) == "row 1 is what rank 1 had for rank 0, but in another order"
    assert told(0, 0) == "row 1 is all zeros: nothing had arrived there when it returned"
    assert told(*want[1].astype("float32").astype(int)).endswith("rounded as floats are: keep the dtype of `chunks`")
