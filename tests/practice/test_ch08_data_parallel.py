"""Exercise 08 accepts right answers however they are written, and refuses wrong ones in words that name the slip."""

from random import Random

import pytest
from answers import assert_accepted, assert_refused, broken, verdicts, with_slip, written

from collectives.practice import ch08_data_parallel, checks
from collectives.training.data_parallel import assign_buckets

EXERCISE = "08_data_parallel"
ORDER, FILLED = {"a1-order", "a2-bound", "a3-fewest"}, {"a2-bound", "a3-fewest"}
TIMES, CHOSEN = {"b1-ready", "b2-end"}, {"c1-fair", "c2-good", "c3-best"}
RANKS = {"d1-mean", "d2-overlap", "d3-any-order"}

BY_RECURSION = {
    "fill": """
    def fill(sizes, bound):
        if not sizes:
            return []
        count = max(k for k in range(1, len(sizes) + 1) if sum(sizes[-k:]) <= bound)
        rest = len(sizes) - count
        return [tuple(range(len(sizes) - 1, rest - 1, -1))] + fill(sizes[:rest], bound)
    """,
    "times": """
    import numpy as np

    def ready_times(buckets, backward):
        passed = np.cumsum(backward[::-1])[::-1]
        return np.array([passed[bucket[-1]] for bucket in buckets])

    def step_end(buckets, backward, sizes, alpha, beta):
        each = [alpha + beta * sum(sizes[i] for i in bucket) for bucket in buckets]
        return max(ready + sum(each[b:]) for b, ready in enumerate(ready_times(buckets, backward)))
    """,
    "overlapped": """
    def arrived(step, number):
        step.arrived.add(number)
        for b in range(len(step.works), len(step.buckets)):
            if not set(step.buckets[b]) <= step.arrived:
                break
            flat = step.pack(b).div_(step.world_size)
            work = dist.all_reduce(flat, op=dist.ReduceOp.SUM, async_op=True)
            step.works.append(lambda b=b, flat=flat, work=work: (work.wait(), step.unpack(b, flat)))

    def finish(step):
        for complete in step.works:
            complete()
    """,
}
FROM_THE_END = {  # the last bucket is as full as it can be, instead of the first
    "fill": """
    def fill(sizes, bound):
        cut, held = [[]], 0
        for number, size in enumerate(sizes):
            if held + size > bound:
                cut, held = [[], *cut], 0
            cut[0].insert(0, number)
            held += size
        return (bucket for bucket in cut)
    """,
    "times": """
    def ready_times(buckets, backward):
        clock, left, times = 0.0, list(enumerate(backward)), []
        for bucket in buckets:
            for number in bucket:
                last, seconds = left.pop()
                assert last == number
                clock += seconds
            times.append(clock)
        return times

    def step_end(buckets, backward, sizes, alpha, beta):
        from functools import reduce
        free = lambda done, pair: max(done, pair[0]) + alpha + sum(sizes[i] for i in pair[1]) * beta
        return reduce(free, zip(ready_times(buckets, backward), buckets), 0)
    """,
    "choose": """
    from itertools import accumulate

    def choose(sizes, backward, alpha, beta):
        count = len(sizes)
        made = [0, *accumulate(reversed(backward))]
        held = [0, *accumulate(reversed(sizes))]
        done, cut = [0] * (count + 1), [0] * (count + 1)
        for k in range(1, count + 1):
            ends = [max(done[j], made[k]) + alpha + beta * (held[k] - held[j]) for j in range(k)]
            done[k], cut[k] = min(zip(ends, range(k)))
        found = []
        while count:
            found.insert(0, [len(sizes) - 1 - place for place in range(cut[count], count)])
            count = cut[count]
        return found
    """,
    "overlapped": """
    def arrived(step, number):
        step.arrived.add(number)
        while len(step.works) < len(step.buckets) and step.arrived >= set(step.buckets[len(step.works)]):
            flat = step.pack(len(step.works))
            step.works.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(step):
        for bucket, (flat, work) in enumerate(step.works):
            work.get_future().wait()
            step.unpack(bucket, flat / step.world_size)
    """,
}


BY_BOUNDS = {
    "fill": """
    def fill(sizes, bound):
        filled, end = [], len(sizes)
        while end:
            begin = end - 1
            while begin and sum(sizes[begin - 1 : end]) <= bound:
                begin -= 1
            filled.append(range(begin, end)[::-1])
            end = begin
        return filled
    """,
    "times": """
    def ready_times(buckets, backward):
        made, clock = {}, 0
        for number in range(len(backward) - 1, -1, -1):
            clock += backward[number]
            made[number] = clock
        return [max(made[number] for number in bucket) for bucket in buckets]

    def step_end(buckets, backward, sizes, alpha, beta):
        if not buckets:
            return 0
        *before, last = buckets
        free = step_end(before, backward, sizes, alpha, beta)
        begun = max(free, ready_times([last], backward)[0])
        return begun + alpha + sum(beta * sizes[number] for number in last)
    """,
}
WITH_A_MEMORY = {
    "choose": """
    from functools import cache

    def choose(sizes, backward, alpha, beta):
        @cache
        def through(k):
            # (seconds, where the last bucket begins) when the gradients from k on are all-reduced
            if k == len(sizes):
                return 0, None
            made = sum(backward[k:])
            ends = range(k + 1, len(sizes) + 1)
            return min((max(through(j)[0], made) + alpha + beta * sum(sizes[k:j]), j) for j in ends)

        k, cuts = 0, []
        while k < len(sizes):
            k, before = through(k)[1], k
            cuts.append(list(range(before, k))[::-1])
        return cuts[::-1]
    """,
}
COUNTS_DOWN = {
    "overlapped": """
    def arrived(step, number):
        step.arrived.add(number)
        for bucket, numbers in enumerate(step.buckets):
            if bucket < len(step.works):
                continue
            if any(each not in step.arrived for each in numbers):
                return
            flat = step.pack(bucket) * (1 / step.world_size)
            step.works += [(bucket, flat, dist.all_reduce(flat, async_op=True))]

    def finish(step):
        for bucket, flat, work in step.works[::-1]:
            work.wait()
            step.unpack(bucket, flat)
    """,
}
IN_A_GROUP = {
    "overlapped": """
    def arrived(step, number):
        step.arrived.add(number)
        if not step.works:
            step.works.append(dist.group.WORLD)
        while len(step.works) <= len(step.buckets) and step.arrived >= {*step.buckets[len(step.works) - 1]}:
            flat = step.pack(len(step.works) - 1).div(step.world_size).reshape(2, -1)
            step.works.append((dist.all_reduce(flat, group=step.works[0], async_op=True), flat))

    def finish(step):
        for bucket, (work, flat) in enumerate(step.works[1:]):
            work.wait()
            step.unpack(bucket, flat.flatten())
    """,
}
PACKED_WHEN_FULL = {
    "overlapped": """
    def arrived(step, number):
        step.arrived.add(number)
        if not hasattr(step, "packed"):
            step.packed = {}
        for bucket, members in enumerate(step.buckets):
            if bucket not in step.packed and step.arrived.issuperset(members):
                step.packed[bucket] = step.pack(bucket)
        while len(step.works) in step.packed:
            flat = step.packed[len(step.works)]
            step.works.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(step):
        for bucket, (flat, work) in enumerate(step.works):
            work.wait()
            step.unpack(bucket, flat / step.world_size)
    """,
}

RIGHT = {
    "by recursion": BY_RECURSION,
    "from the end": FROM_THE_END,
    "by bounds": BY_BOUNDS,
    "by recursion, with a memory": WITH_A_MEMORY,
    "looks through all buckets": COUNTS_DOWN,
    "with the group named, cut in two": IN_A_GROUP,
    "packed when full, launched in order": PACKED_WHEN_FULL,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


BY_CAPS = """
    from collectives.training.data_parallel import assign_buckets

    def choose(sizes, backward, alpha, beta):
        caps = [sum(sizes) * share // 40 + 1 for share in range(41)]
        return min(
            (assign_buckets(sizes, cap) for cap in caps),
            key=lambda filled: step_end(filled, backward, sizes, alpha, beta),
        )
"""


LAUNCH = """flat = step.pack(len(step.works))
        step.works.append((flat, dist.all_reduce(flat, async_op=True)))
"""
LOOP = """while len(step.works) < len(step.buckets) and step.arrived.issuperset(step.buckets[len(step.works)]):
        """
AT_THE_END = """
def arrived(step, number):
    step.arrived.add(number)
    while len(step.works) < len(step.buckets) and step.arrived.issuperset(step.buckets[len(step.works)]):
        flat = step.pack(len(step.works))
        step.works.append({launch})

def finish(step):
    for bucket, work in enumerate(step.works):
        work.wait()
        flat = step.pack(bucket)
        dist.group.WORLD.allreduce([flat]).wait()
        step.unpack(bucket, flat / step.world_size)
"""
DUMMIES = {
    "without memory": 'dist.all_reduce(flat.to("meta"), async_op=True)',
    "the largest": "dist.all_reduce(flat, dist.ReduceOp.MAX, async_op=True)",
    "of zeros": "dist.all_reduce(flat * 0, async_op=True)",
    "of another order": "dist.all_reduce(flat.flip(0), async_op=True)",
}
OVER_ALL = "launches an all-reduce that doesn't add up numbers over all ranks where bucket 0 is due"
DONE = "done = max(done, ready) + alpha + beta * num_bytes"
READY = "return [sum(backward[min(bucket) :]) for bucket in buckets]"
CHOICE = "return best[count][1]"
MUTANTS = [
    broken(
        "forward order",
        "in reversed(range(len(sizes))):",
        "in range(len(sizes)):",
        ORDER,
        "begins with parameter",
        origin="C14",
    ),
    broken(
        "sorted by size",
        "in reversed(range(len(sizes))):",
        "in sorted(range(len(sizes)), key=lambda i: (-sizes[i], -i)):",
        ORDER,
        "whose gradient is made earlier",
    ),
    broken("the last one is lost", "    return filled\n", "    return filled[:-1]\n", ORDER, "is in no bucket"),
    broken("a bucket begins empty", "filled, held = [[]], 0", "filled, held = [[]], bound", ORDER, "bucket 0 is empty"),
    broken(
        "torch's rule",
        "if held + sizes[number] > bound",
        "if held >= bound",
        FILLED,
        "after it has outgrown the bound",
        origin="C14",
    ),
    broken(
        "never full",
        "if held + sizes[number] > bound",
        "if filled[-1] and held + sizes[number] >= bound",
        {"a3-fewest"},
        "still fits exactly: a bucket may be full",
    ),
    broken(
        "a bucket a gradient",
        "if held + sizes[number] > bound",
        "if filled[-1]",
        {"a3-fewest"},
        "gives 4 buckets, where 2 are enough",
        origin="D15",
    ),
    broken("up to itself", READY, READY.replace("[min(bucket) :]", "[: min(bucket) + 1]"), TIMES, "counts from param"),
    broken("forward in time", READY, READY.replace("[min(bucket) :]", "[: max(bucket) + 1]"), TIMES, "come first"),
    broken("the first gradient", READY, READY.replace("min", "max"), TIMES, "full with its last one"),
    broken("all at the end", READY, "return [sum(backward)] * len(buckets)", TIMES, "need not wait for it"),
    broken("its own alone", READY, READY.replace("[min(bucket) :]", "[min(bucket) : max(bucket) + 1]"), TIMES, "alone"),
    broken("begun", READY, READY.replace("min(bucket) :", "min(bucket) + 1 :"), TIMES, "last gradient starts"),
    broken("one number for all", READY, "return sum(backward)", TIMES, "numbers, one for each bucket"),
    broken("no overlap", DONE, DONE.replace("ready)", "sum(backward))"), {"b2-end"}, "as soon as it is full"),
    broken(
        "side by side",
        DONE,
        "done = max(done, ready + alpha + beta * num_bytes)",
        {"b2-end"},
        "side by side",
        origin="C14",
    ),
    broken("always busy", DONE, "done = (done or ready) + alpha + beta * num_bytes", {"b2-end"}, "network busy"),
    broken("no alpha", DONE, DONE.replace("alpha + ", ""), {"b2-end"}, "leaves out alpha", origin="D15"),
    broken(
        "one alpha",
        DONE,
        DONE.replace("alpha", "alpha * (done == 0)"),
        {"b2-end"},
        "every launch pays it",
        origin="D15",
    ),
    broken("a bandwidth", DONE, DONE.replace("beta * num_bytes", "num_bytes / beta"), {"b2-end"}, "not a bandwidth"),
    broken("the tail alone", "    return done\n", "    return done - sum(backward)\n", {"b2-end"}, "from its begin"),
    written(
        "the best of many equal caps",
        "choose",
        BY_CAPS,
        {"c3-best"},
        "",
        origin="D15",
    ),
    broken("one bucket", CHOICE, "return [list(range(count - 1, -1, -1))]", CHOSEN, "nothing overlaps", origin="D15"),
    broken(
        "a bucket each",
        CHOICE,
        "return [[n] for n in reversed(range(count))]",
        CHOSEN,
        "for every gradient pays",
        origin="D15",
    ),
    broken(
        "four alike",
        CHOICE,
        "return [b.tolist() for b in np.array_split(np.arange(count)[::-1], 4)]".replace("np", "ch08_data_parallel.np"),
        CHOSEN,
        "which nothing hides, holds",
        origin="D15",
    ),
    written(
        "nine buckets, whatever the sizes",
        "choose",
        "def choose(sizes, backward, alpha, beta):\n"
        "    order = list(reversed(range(len(sizes))))\n"
        "    each = -(-len(order) // 9)\n"
        "    return [order[at : at + each] for at in range(0, len(order), each)]\n",
        CHOSEN,
        "where 20.0% is allowed",
    ),
    broken("the sum", "flat / step.world_size", "flat", RANKS, "the sum over the ranks", origin="C22"),
    broken(
        "by the buckets", "flat / step.world_size", "flat / len(step.buckets)", RANKS, "but the mean over the ranks"
    ),
    broken(
        "divided only",
        "flat = step.pack(len(step.works))",
        "flat = step.pack(len(step.works)) / step.world_size",
        RANKS,
        "ranks twice",
        origin="C22",
    ),
    broken("not written back", "step.unpack(bucket, flat / step.world_size)", "pass", RANKS, "write the mean back"),
    broken(
        "waits at once",
        LAUNCH,
        LAUNCH + "        step.works[-1][1].wait()\n",
        {"d2-overlap"},
        "waits for an all-reduce while the backward pass is still running",
    ),
    broken(
        "asks until it is done",
        LAUNCH,
        LAUNCH + "        while not step.works[-1][1].is_completed():\n            pass\n",
        {"d2-overlap"},
        "to ask whether it is done may be a way to wait",
    ),
    broken(
        "launches at the end",
        "step.arrived.add(number)\n",
        "step.arrived.add(number)\n    if len(step.arrived) < len(step.parameters):\n        return\n",
        {"d2-overlap"},
        "but it is not launched then: the gradient 1 is made first",
    ),
    broken(
        "launches as they come",
        LOOP + LAUNCH,
        "for bucket, numbers in enumerate(step.buckets):\n"
        "        if number in numbers and step.arrived.issuperset(numbers):\n"
        "            flat = step.pack(bucket)\n"
        "            step.works.append((flat, dist.all_reduce(flat, async_op=True)))\n",
        {"d3-any-order"},
        "rank 0 launches its buckets in the order [0, 1], rank 1 in the order [1, 0]",
        origin="page 08",
    ),
    broken(
        "one bucket only",
        "while len(step.works)",
        "if len(step.works)",
        {"d3-any-order"},
        "an all-reduce that only some ranks have launched waits for ever",
    ),
    broken("too early", "step.arrived.issuperset(step.buckets[len(step.works)])", "True", RANKS, "has no gradient yet"),
    broken("never waits", "        work.wait()\n", "", RANKS, "launches bucket 0 and never waits for it"),
    broken(
        "packs a list",
        "step.pack(len(step.works))",
        "step.pack(step.buckets[len(step.works)])",
        RANKS,
        "pack([3, 2]): give the number of a bucket, from 0 to 1",
    ),
    broken("in the foreground", "async_op=True", "async_op=False", RANKS, "Without async_op=True"),
    broken("nothing sent", LOOP + LAUNCH, "", RANKS, "call no dist.all_reduce"),
    written(
        "a dummy in time, in a group of its own",
        "overlapped",
        AT_THE_END.format(
            launch="dist.all_reduce(flat, async_op=True, "
            "group=dist.new_group([dist.get_rank()], use_local_synchronization=True))"
        ),
        RANKS,
        "no new group can be made here",
    ),
    *(
        written(
            f"a dummy in time: {dummy}",
            "overlapped",
            AT_THE_END.format(launch=launch),
            {"d2-overlap"},
            "where bucket 0 is due, which holds" if dummy.startswith("of") else OVER_ALL,
        )
        for dummy, launch in DUMMIES.items()
    ),
]
NOT_IN_TIME = {"waits at once"}  # the works are waited for a second time in `finish`, which would hang


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant, monkeypatch):
    shown = []
    monkeypatch.setattr(ch08_data_parallel, "show", shown.append)
    answers = with_slip(EXERCISE, mutant, times=1)
    if mutant.slip in NOT_IN_TIME:
        answers["overlapped"] = answers["overlapped"].replace("        work.wait()\n", "")
    assert_refused(EXERCISE, mutant, answers, briefly="overlapped" in answers)
    if mutant.refuse == CHOSEN:
        assert "with your buckets" in shown[0]._repr_html_()


@pytest.mark.parametrize(
    "given, words",
    [
        ("None", "returns None"),
        ("5", "not a list of lists of parameter numbers"),
        ("[3, 2, 1, 0]", "not a list of lists of parameter numbers"),
        ("[[3, 2], [2, 1, 0]]", "parameter 2 is in two buckets"),
        ("[[4, 3, 2], [1, 0]]", "parameter 4 is not there: they are 0 to 3"),
    ],
)
def test_malformed_buckets_are_told_of_plainly(given, words):
    said = verdicts(EXERCISE, {"fill": f"def fill(sizes, bound): return {given}"}, parts="a")
    assert words in said["a1-order"]


def all_cuts(count):
    """Every way to cut `count` gradients into buckets."""
    for cuts in range(2 ** max(count - 1, 0)):
        found = [[count - 1]]
        for number in reversed(range(count - 1)):
            if cuts >> number & 1:
                found.append([number])
            else:
                found[-1].append(number)
        yield found


@pytest.mark.parametrize("seed", range(10))
def test_the_fewest_and_the_fastest_are_what_trying_everything_finds(seed):
    random = Random(seed)
    count = random.randint(1, 8)
    sizes = [random.randint(1, 9) for _ in range(count)]
    backward = [random.random() for _ in range(count)]
    alpha, beta, bound = random.random() / 3, random.random() / 5, random.randint(9, 20)

    def seconds(cut):
        return ch08_data_parallel.step(cut, backward, sizes, alpha, beta).seconds

    assert seconds(ch08_data_parallel.fastest(sizes, backward, alpha, beta)) == pytest.approx(
        min(map(seconds, all_cuts(count)))
    )
    within = [cut for cut in all_cuts(count) if all(sum(sizes[i] for i in bucket) <= bound for bucket in cut)]
    assert ch08_data_parallel.fewest(sizes, bound) == min(map(len, within))


def test_the_buckets_that_are_counted_are_those_that_were_within_the_bound():
    asked, cases = [], ch08_data_parallel.random_bounds(1)

    def fill(sizes, bound):
        asked.append((sizes, bound))
        filled = [[]]
        for number in reversed(range(len(sizes))):
            if sum(sizes[each] for each in filled[-1]) + sizes[number] > bound:
                filled.append([])
            filled[-1].append(number)
        return filled

    ch08_data_parallel.check_fewest(fill, cases)
    assert asked == cases


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 9, 12, 16, 24])
def test_no_number_of_buckets_is_fair_to_every_model(monkeypatch, count):
    monkeypatch.setattr(ch08_data_parallel, "show", lambda _: None)
    models = ch08_data_parallel.random_models(1806, 20, most_alpha=1)
    for of_bucket in (lambda sizes: [1] * len(sizes), lambda sizes: sizes):  # as many gradients in each, or bytes

        def choose(sizes, *_, of_bucket=of_bucket):
            weights = of_bucket(sizes)
            return assign_buckets(weights, -(-sum(weights) // count))

        with pytest.raises(checks.NotYet, match=r"where 20\.0% is allowed"):
            ch08_data_parallel.check_choice(choose, models, ch08_data_parallel.FAIR)


def test_no_single_rule_gets_every_model_right(monkeypatch):
    """One bucket, one a gradient, and four of a kind each lose more than is allowed somewhere."""
    monkeypatch.setattr(ch08_data_parallel, "show", lambda _: None)
    for seed in (8, 1806, 1807):
        for rule in (lambda sizes: sum(sizes), lambda sizes: 1, lambda sizes: sum(sizes) // 4):
            with pytest.raises(checks.NotYet, match="longer than with the best buckets, where"):
                ch08_data_parallel.check_choice(
                    lambda sizes, *_, rule=rule: assign_buckets(sizes, rule(sizes)),
                    ch08_data_parallel.random_models(seed, 20),
                    ch08_data_parallel.GOOD,
                )


@pytest.mark.parametrize(
    "answer",
    [
        {"fill": "def fill(sizes, bound): return ch08_data_parallel.fewest(sizes, bound)"},
        {"choose": "choose = ch08_data_parallel.fastest"},
        {"times": BY_BOUNDS["times"] + "\n    def step_end(*case): return ch08_data_parallel.step(*case).seconds"},
    ],
    ids=["fewest", "fastest", "step"],
)
def test_the_checks_own_functions_are_refused_as_an_answer(answer):
    said = verdicts(EXERCISE, answer, parts="abc")
    assert "is for comparing, afterwards; write this part yourself" in " ".join(filter(None, said.values()))
