"""Exercise 16 accepts right answers however they are written, and refuses wrong ones in words that name the slip."""

from itertools import product

import pytest
from answers import Mutant, assert_accepted, assert_refused, verdicts, with_slip

from collectives.practice import ch16_pipeline
from collectives.practice.checks import NotYet
from collectives.training import pipeline

EXERCISE = "16_pipeline"


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    """The figures that checks show."""
    figures = []
    monkeypatch.setattr(ch16_pipeline, "show", figures.append)
    return figures


# Right answers, each in another style than the solution's.

SORTED = {
    "counts": """
    def bubble_over_total(p, m): return 1 - m / (m + p - 1)
    def bubble_over_ideal(p, m): return (m + p - 1) / m - 1
    def enough(p, share): return next(m for m in range(1, 10**6) if bubble_over_total(p, m) <= share)
""",
    "one-f-one-b": """
    def one_f_one_b(rank, p, m):
        \"\"\"Each operation with the turn in which it comes.\"\"\"
        ahead = p - 1 - rank
        turns = [(i, "F", i) for i in range(m)] + [(i + ahead + 0.5, "B", i) for i in range(m)]
        return [(kind, i) for _, kind, i in sorted(turns)]
""",
    "within": """
    def within(rank, p, m, limit):
        ahead = min(2 * (p - 1 - rank), limit - 1 - rank)
        late = limit - ahead - 1
        turns = [(i + (kind > 0) * ahead + (kind > 1) * late, kind, i) for i in range(m) for kind in range(3)]
        return [f"{'FIW'[kind]}{i}" for _, kind, i in sorted(turns)]
""",
}
GENERATORS = {
    "kept": """
    def gpipe_kept(rank, p, m): return len(set(range(m)))
    def one_f_one_b_kept(rank, p, m): return sum(1 for other in range(rank, p) if other - rank < m)
""",
    "one-f-one-b": """
    def one_f_one_b(rank, p, m):
        forwards, backwards, under_way = iter(range(m)), 0, 0
        while backwards < m:
            while under_way < p - rank and (i := next(forwards, None)) is not None:
                under_way += 1
                yield "F", i
            yield "B", backwards
            backwards, under_way = backwards + 1, under_way - 1
""",
    "mine": """
    def mine():
        rows = []
        for rank in range(4):
            row, late = list(one_f_one_b(rank, 4, 8)), []
            words = []
            for kind, i in row:
                words.append(f"{'I' if kind == 'B' else kind}{i}")
                late += [f"W{i}"] if kind == "B" else []
                if len(late) > rank:
                    words.append(late.pop(0))
            rows.append(f"rank {rank}: " + " ".join(words + late))
        return "\\n".join(rows)
""",
}
AS_TEXT = {
    "one-f-one-b": """
    def one_f_one_b(rank, p, m):
        text = " ".join(f"F{i}" for i in range(m))
        for i in range(m):
            after = f"F{min(m - 1, i + p - 1 - rank)}" if i == 0 or i + p - rank <= m else f"B{i - 1}"
            text = text.replace(after, f"{after} B{i}", 1)
        return text
""",
    "mine": """
    def mine():
        # rank 0 has W0 to spare at its end: with a limit of 4 it may be late, too
        return '''
        # the top of the pipeline
        F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7

        F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W7 W6
        F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W6 W5 W7
        F0 I0 F1 I1 F2 I2 F3 I3 W1 F4 I4 W0 F5 I5 W3 F6 I6 W2 F7 I7 W4 W7 W6 W5
        '''
""",
}
RECURSION = {
    "one-f-one-b": """
    def one_f_one_b(rank, p, m, done=0, begun=0):
        if done == m:
            return []
        if begun < m and begun - done < p - rank:
            return [("F", np.int64(begun))] + one_f_one_b(rank, p, m, done, begun + 1)
        return [["B", done]] + one_f_one_b(rank, p, m, done + 1, begun)

    import numpy as np
""",
    "within": """
    def within(rank, p, m, limit):
        late = max(limit - 1 - 2 * (p - 1 - rank), rank)
        def after(order, begun, back, weights):
            if weights == m:
                return order
            if begun < m and begun - back < limit - late:
                return after(order + [("F", begun)], begun + 1, back, weights)
            if back < m and back - weights <= late:
                return after(order + [("I", back)], begun, back + 1, weights)
            return after(order + [("W", weights)], begun, back, weights + 1)
        def fixed(order):
            \"\"\"The weights before the next forward, not after it.\"\"\"
            for place in range(1, len(order) - 1):
                if order[place][0] == "F" and order[place + 1][0] == "W" and order[place - 1][0] == "I":
                    order[place:place + 2] = order[place + 1], order[place]
            return order
        return fixed(after([], 0, 0, 0))
""",
}
SIMULATED = {
    "one-f-one-b": """
    def one_f_one_b(rank, p, m):
        \"\"\"Let all ranks do what they can: a backward if there is one, else a forward if there is room.\"\"\"
        orders, free, ends, now = [[] for _ in range(p)], [0] * p, {}, 0
        count = lambda r, kind: sum(word[0] == kind for word in orders[r])
        while any(len(order) < 2 * m for order in orders):
            for r in range(p):
                f, b = count(r, "F"), count(r, "B")
                own = ends.get(("F", r, b), math.inf) if r == p - 1 else ends.get(("B", r + 1, b), math.inf)
                came = 0 if r == 0 else ends.get(("F", r - 1, f), math.inf)
                if free[r] <= now and b < m and own <= now:
                    orders[r].append(f"B{b}")
                    free[r] = ends["B", r, b] = now + 2
                elif free[r] <= now and f < m and came <= now and f - b < p - r:
                    orders[r].append(f"F{f}")
                    free[r] = ends["F", r, f] = now + 1
            now += 1
        return orders[rank]
""",
    "within": """
    def within(rank, p, m, limit):
        \"\"\"Let all ranks do what they can: a W that is due, or F while few are ahead, or I, or a W in the end.\"\"\"
        ends, orders, now = {}, [[] for _ in range(p)], 0
        done = [dict(F=0, I=0, W=0) for _ in range(p)]
        while any(counts["W"] < m for counts in done):
            for r, counts in enumerate(done):
                f, i, w = counts.values()
                ahead = p - 1 - r + min(p - 1 - r, limit - p)
                arrived = lambda kind, other, number: ends.get((kind, other, number), math.inf) <= now
                can = {
                    "W": w < i and (i - w >= limit - ahead or i == m),
                    "F": f < m and f - i <= ahead and (r == 0 or arrived("F", r - 1, f)),
                    "I": i < f and (r == p - 1 or arrived("I", r + 1, i)),
                }
                for kind in (kind for kind, possible in can.items() if possible):
                    orders[r].append((kind, counts[kind]))
                    ends[kind, r, counts[kind]] = now + 1
                    counts[kind] += 1
                    break
            now += 1
        return orders[rank]
""",
}
RIGHT = {
    "sorted by turn": SORTED,
    "as generators": GENERATORS,
    "as text": AS_TEXT,
    "by recursion": RECURSION,
    "simulated": SIMULATED,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


# Wrong answers: the solution with one thing changed.


TOTAL, IDEAL, ENOUGH = (
    "return (p - 1) / (m + p - 1)",
    "return (p - 1) / m\n",
    "while (p - 1) / (m + p - 1) > share:",
)
EXACT = "(p - 1) * (1 - share) / share"
COUNTED, FEWEST, KEPT = {"a1-bubble"}, {"a2-enough"}, {"a3-kept"}
MEMORY, FEW = {"b2-memory-and-time", "b3-few-micro-batches"}, {"b3-few-micro-batches"}
RUNS = {"b1-runs"} | MEMORY
AHEAD, END = "min(m, p - 1 - rank)", 'return order + [f"B{i}" for i in range(m - ahead, m)]'
FIVE, LEAST = {"c2-five", "c3-least"}, {"c3-least"}
LESS = {"c1-less"} | FIVE
WITHIN = {"d1-as-1f1b", "d2-none", "d3-between"}
MORE = WITHIN - {"d1-as-1f1b"}
REVERSED = 'order += [f"B{i}" for i in range(m - ahead, m)]\n    '
REVERSED += 'return [word if word[0] == "F" else f"B{m - 1 - int(word[1:])}" for word in order]'
MUTANTS = [
    Mutant(
        "1F1B as if with many micro-batches",
        "kept",
        "min(m, p - rank)",
        "m if m < 3 else p - rank",
        {"a3-kept"},
        "one_f_one_b_kept(3, 4, 2) returns 2, but the schedule says 1",
    ),
    Mutant(
        "over ideal for over total",
        "counts",
        TOTAL,
        "return (p - 1) / m",
        COUNTED,
        "the bubble over ideal time",
        origin="M09",
    ),
    Mutant(
        "over total for over ideal",
        "counts",
        IDEAL,
        f"{TOTAL}\n",
        COUNTED,
        "this is the bubble over total time",
        origin="M09",
    ),
    Mutant("m + p turns", "counts", TOTAL, "return (p - 1) / (m + p)", COUNTED, "turns, not m + p", origin="M09"),
    Mutant(
        "p ranks wait",
        "counts",
        IDEAL,
        "return p / m\n",
        COUNTED,
        "begins after P - 1 others, not after P",
        origin="M09",
    ),
    Mutant("the busy part", "counts", TOTAL, "return m / (m + p - 1)", COUNTED, "in which a rank computes"),
    Mutant("rounded", "counts", IDEAL, "return (p - 1) // m\n", COUNTED, "the fraction is rounded down"),
    Mutant(
        "enough over ideal",
        "counts",
        ENOUGH,
        "while (p - 1) / m > share:",
        FEWEST,
        "that many are m + p - 1",
        origin="M09",
    ),
    Mutant("enough, one too few", "counts", "    return m\n", "    return m - 1\n", FEWEST, "this is one too few"),
    Mutant(
        "enough, rounded down",
        "counts",
        "    return m\n",
        f"    return int({EXACT} + 1e-9)\n",
        FEWEST,
        "round up: with",
    ),
    Mutant("enough, not rounded", "counts", "return m", f"return {EXACT}", FEWEST, "only whole micro-batches"),
    Mutant("enough and one more", "counts", "return m", f"return int({EXACT} + 1e-9) + 1", FEWEST, "just `share`"),
    Mutant(
        "enough, by floats", "counts", "return m", f"return math.ceil({EXACT})", FEWEST, "compare the bubble itself"
    ),
    Mutant("as many as ranks", "kept", "return m\n", "return min(m, p)\n", KEPT, "what rank 0 keeps", origin="M10"),
    Mutant("p everywhere", "kept", "min(m, p - rank)", "min(m, p)", KEPT, "the others keep less", origin="M10"),
    Mutant("no min", "kept", "min(m, p - rank)", "p - rank", KEPT, "fewer micro-batches than that"),
    Mutant("one too few", "kept", "p - rank", "p - 1 - rank", KEPT, "returns 3, but the schedule says 4"),
    Mutant("from the wrong end", "kept", "p - rank", "rank + 1", KEPT, "is out with those after it"),
    Mutant("GPipe's", "kept", "min(m, p - rank)", "m", KEPT, "this is what GPipe keeps", origin="M10"),
    Mutant(
        "all forwards first",
        "one-f-one-b",
        AHEAD,
        "m",
        MEMORY,
        "It does all forwards first: that is GPipe",
        origin="M10",
    ),
    Mutant(
        "warm-up too long",
        "one-f-one-b",
        AHEAD,
        "min(m, p - rank)",
        MEMORY,
        "rank 0 keeps the activations of 3",
        origin="M10",
    ),
    Mutant(
        "warm-up too short",
        "one-f-one-b",
        AHEAD,
        "max(0, min(m, p - 2 - rank))",
        MEMORY,
        "Rank 0 does only 1 before its first backward, where it may keep 2",
    ),
    Mutant("the same warm-up", "one-f-one-b", AHEAD, "min(m, p - 1)", MEMORY, "how many ranks are there from this one"),
    Mutant(
        "ranks from the wrong end",
        "one-f-one-b",
        AHEAD,
        "min(m, rank)",
        RUNS,
        "each waits for the next: rank 0 →",
        origin="page 16",
    ),
    Mutant("no cool-down", "one-f-one-b", END, "return order", RUNS, "rank 0 never does B3"),
    Mutant(
        "backwards in reverse", "one-f-one-b", END, REVERSED, RUNS, "waits for F3, which comes later in its own list"
    ),
    Mutant(
        "cool-down in reverse",
        "one-f-one-b",
        "range(m - ahead, m)]",
        "reversed(range(m - ahead, m))]",
        MEMORY,
        "takes 37 units of time, 1F1B 33",
    ),
    Mutant(
        "backward first",
        "one-f-one-b",
        '[f"F{i}", f"B{i - ahead}"]',
        '[f"B{i - ahead}", f"F{i}"]',
        RUNS,
        "waits for F0, which comes later in its own list",
        origin="page 16",
    ),
    Mutant("no min in the warm-up", "one-f-one-b", AHEAD, "p - 1 - rank", FEW, "F2; micro-batches are 0 to 1"),
    Mutant("numbers alone", "one-f-one-b", 'f"F{i}"', "i", RUNS, 'a letter and a micro-batch, as "F0" or ("F", 0)'),
    Mutant("other letters", "one-f-one-b", '"B{', '"I{', RUNS, "the letters here are F and B"),
    Mutant(
        "a W forgotten",
        "mine",
        "I5 W3 F7 I6 W4 I7 W5 W6 W7",
        "I5 W3 F7 I6 W4 I7 W5 W7",
        LESS,
        "rank 2 never does W6",
        origin="M11",
    ),
    Mutant("a W too early", "mine", "F0 I0 F1", "F0 W0 I0 F1", LESS, "rank 3 does W0 twice"),
    Mutant(
        "five at once", "mine", "F3 . . . I0 W0 F4", "F3 F4 . . I0 W0", LESS, "With F4, its operation 5, they become 5"
    ),
    Mutant("ranks exchanged", "mine", "rank 1:", "rank 2:", LESS, "is called rank 2, but it is rank 1's"),
    Mutant("too few lines", "mine", "    rank 3:", "    #", LESS, "has 3 lines; there are 4 ranks"),
    Mutant("another micro-batch", "mine", "F7", "F8", LESS, "micro-batches are 0 to 7"),
    Mutant("a pair", "mine", "F4 I1 W1", "F4&I1 W1", LESS, "write them one after the other"),
    Mutant(
        "W at once",
        "within",
        "limit - 1 - ahead",
        "0",
        WITHIN,
        "rank 0 stalls for 6 units of time, and at most 3",
        origin="M11",
    ),
    Mutant("W never", "within", "return order + [", "return order or [", WITHIN, "never does W"),
    Mutant("W before its I", "within", "W{i - late}", "W{i}", WITHIN, "twice, as operations"),
    Mutant("one W too late", "within", "late = limit - 1", "late = limit", WITHIN, "may keep 4", origin="M11"),
    Mutant(
        "the limit not used",
        "within",
        "limit - p)",
        "0)",
        MORE,
        "stalls for 3 units of time, and at most 0",
        origin="M11",
    ),
    Mutant(
        "twice the warm-up",
        "within",
        "min(after, limit - p)",
        "after",
        {"d1-as-1f1b", "d3-between"},
        "W8; micro-batches are 0 to 7",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant, shown):
    said = assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant))
    assert bool(shown) == any(
        "stalls for" in words or "units of time, 1F1B" in words for words in said.values() if words
    )


# The tiers of part c, and what is told of any answer.


def text_of(late):
    """1F1B on four ranks with every backward split; rank r does W only `late[r]` micro-batches after I."""
    lines = []
    for rank, after in enumerate(late):
        ahead = {"F": 0, "I": 3 - rank, "W": 3 - rank + after}
        turns = sorted((i + ahead[kind], kind, i) for kind, i in product("FIW", range(8)))
        lines.append(" ".join(f"{kind}{i}" for _, kind, i in turns))
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "stall", "reached"),
    [
        (pipeline.to_text(pipeline.one_f_one_b(4, 8)), 9, []),
        (text_of([0, 0, 0, 0]), 6, ["c1-less"]),
        (text_of([0, 1, 1, 1]), 5, ["c1-less", "c2-five"]),
        (text_of([0, 1, 2, 2]), 4, ["c1-less", "c2-five"]),
        (text_of([0, 1, 2, 3]), 3, ["c1-less", "c2-five", "c3-least"]),
        (pipeline.to_text(pipeline.zb_h1(4, 8)), 3, ["c1-less", "c2-five", "c3-least"]),
    ],
)
def test_points_are_given_by_the_stall_that_was_reached(text, stall, reached, shown):
    assert max(ch16_pipeline.unit_price(pipeline.from_text(text)).stalled) == stall
    said = verdicts(EXERCISE, {"mine": f"def mine(): return '''{text}'''"}, parts="c")
    assert [check for check, words in said.items() if not words] == reached
    assert len(shown) == 3 - len(reached)


def test_a_whole_backward_is_hinted_at():
    text = pipeline.to_text(pipeline.one_f_one_b(4, 8))
    with pytest.raises(
        NotYet, match=r"from 4 to 10, for B0 of rank 1\. B0 is a whole backward: what does the rank before"
    ):
        ch16_pipeline.check_by_hand(lambda: text)


def test_a_stall_is_drawn_where_it_is(shown):
    with pytest.raises(NotYet):
        ch16_pipeline.check_by_hand(lambda: text_of([0, 0, 0, 0]), most=3)
    (figure,) = shown
    (timeline,) = figure.timelines.values()
    stalls = [span for span in timeline.spans if span.kind == "stall"]
    assert sum(span.seconds for span in stalls if span.group == "rank 0") == 6
    assert stalls[0].name == "wait before I0"
    assert (stalls[0].group, stalls[0].start, stalls[0].end) == ("rank 0", 4, 7)


@pytest.mark.parametrize(("p", "extra"), list(product([1, 2, 3, 5], [0, 1, 4])))
def test_the_named_schedules_reach_the_least_stall(p, extra):
    for make, limit in ((pipeline.zb_h1, p), (pipeline.zb_h2, 2 * p - 1)):
        m = 2 * p * (1 + extra)
        assert max(ch16_pipeline.unit_price(make(p, m)).stalled) == ch16_pipeline.least_stall(p, limit)


@pytest.mark.parametrize(
    "p, share, fewest", [(4, 0.25, 9), (4, 0.249, 10), (2, 0.5, 1), (2, 0.49, 2), (1, 0.1, 1), (3, 0.9, 1)]
)
def test_the_fewest_micro_batches_are_found_on_schedules(p, share, fewest):
    assert ch16_pipeline.enough(p, share) == fewest


@pytest.mark.parametrize(
    "given, words",
    [
        (None, "returns None; is its `return` missing?"),
        (3, "returns 3; return a list of operations"),
        (["F0", "X0"], "operation 2: it is 'X0'; an operation is a letter and a micro-batch"),
        ([("F", 0.5)], "operation 1: it is ('F', 0.5); an operation is"),
        ([("F", -1)], "rank 0's operation 1 is F-1; micro-batches are 0 to 1"),
        ([], "rank 0 never does F0"),
        (["F0", "F0"], "rank 0 does F0 twice, as operations 1 and 2"),
    ],
)
def test_an_answer_that_is_no_order_is_told_of_plainly(given, words):
    with pytest.raises(NotYet) as refusal:
        ch16_pipeline.check_1f1b(lambda rank, p, m: given, 2, 2)
    assert words in str(refusal.value)


@pytest.mark.parametrize("given, words", [([1, 2], "a text is asked for"), ("", "the text has no operations")])
def test_a_text_that_is_none_is_told_of_plainly(given, words):
    with pytest.raises(NotYet, match=words):
        ch16_pipeline.check_by_hand(lambda: given)


def test_the_librarys_own_schedules_are_for_comparing_afterwards():
    def ready_made(rank, p, m):
        return [(kind, micro_batch) for kind, _, micro_batch in pipeline.one_f_one_b(p, m).orders[rank]]

    with pytest.raises(NotYet, match="the library's own 1F1B is for comparing, afterwards"):
        ch16_pipeline.check_1f1b(ready_made, 2, 4)
    assert pipeline.one_f_one_b(2, 4).world_size == 2


def test_looking_at_what_is_not_right_yet_says_why_and_raises_nothing(capsys):
    def unfinished(rank, p, m):
        raise NotImplementedError

    assert ch16_pipeline.look(unfinished, 2, 4) is None
    assert ch16_pipeline.look(lambda rank, p, m: ["F0"], 2, 1) is None
    assert capsys.readouterr().out.splitlines() == [
        "Not right yet: unfinished is not written yet",
        "Not right yet: <lambda>(rank, 2, 1): rank 0 never does B0 (or I0 and W0): add it to its list",
    ]


def test_a_stall_names_a_wait_that_can_be_shorter_and_a_whole_backward_that_others_wait_for():
    """Rank 3 does each W before the next I. Rank 0 must wait for 3 at first, and its whole backwards do no harm."""
    text = """
        F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7
        F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7
        F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7
        F0 I0 W0 F1 I1 W1 F2 I2 W2 F3 I3 W3 F4 I4 W4 F5 I5 W5 F6 I6 W6 F7 I7 W7
    """
    with pytest.raises(NotYet, match=r"that can be shorter is rank 0's, from 21 to 22, for I5 of rank 1\.$"):
        ch16_pipeline.check_by_hand(lambda: text, most=3)
