"""Exercise 20 accepts right answers however they are written, and refuses wrong ones in words that name the slip."""

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import observed
import pytest
from answers import Mutant, assert_accepted, assert_refused, cells_of, graded, points_of, solution_of, with_slip

from collectives.practice import ch20_plan, checks
from collectives.practice.checks import NotYet
from collectives.training import costs, planner

EXERCISE = "20_plan"
SEEN, HIDDEN = 24, 3229  # the seeds of the models and machines of part d
random_cases = ch20_plan.random_cases


@pytest.fixture
def fewer(monkeypatch):
    """Part d with one case to see, and one hidden one of each kind: every right answer searches them all."""
    if not observed.recording():
        monkeypatch.setattr(
            ch20_plan, "random_cases", lambda seed, of_each=1: random_cases(seed)[: 1 if seed == SEEN else None]
        )


# Right answers, each in another style than the solution's.

A_TABLE = {
    "of-a-model": """
    def matrices(model):
        h, kv, ffn = model["hidden"], model["hidden"] // model["heads"] * model["kv_heads"], model["ffn"]
        return [(h, h), (h, kv), (h, kv), (h, h), (h, ffn), (h, ffn), (ffn, h)]

    def layer_params(model): return sum(a * b for a, b in matrices(model)) + sum(model["hidden"] for norm in range(2))

    def parameters(model):
        rows = [model["vocabulary"]] * 2 + [1]
        return sum(layer_params(model) for _ in range(model["layers"])) + sum(row * model["hidden"] for row in rows)

    def layer_flops(model):
        return sum(2 * a * b for a, b in matrices(model)) + 2 * model["hidden"] * model["sequence"]

    def flops(model, tokens):
        forward = sum([layer_flops(model)] * model["layers"], 2 * model["vocabulary"] * model["hidden"])
        return tokens * forward + 2 * tokens * forward
""",
    "held": """
    FROM = {"parameters": (2, 3), "gradients": (2, 2), "optimizer": (4 + 4 + 4, 1)}

    def state_bytes(model, layout):
        return sum(own(model, layout, layout["stage"] >= first, each) for each, first in FROM.values())

    def own(model, layout, sharded, each):
        count = model["layers"] // layout["pp"] * layer_params(model) + model["vocabulary"] * model["hidden"]
        count += model["vocabulary"] * model["hidden"] if layout["pp"] < 2 else 0
        return each * count // layout["tp"] // (layout["dp"] if sharded else 1)

    KEPT = {"none": (12, 4, 6), "selective": (8, 4, 4), "full": (2, 0, 0)}

    def kept(model, layout, recompute):
        widths = model["hidden"], model["kv_heads"] * (model["hidden"] // model["heads"]), model["ffn"]
        each = sum(a * b for a, b in zip(KEPT[recompute], widths, strict=True))
        return each * model["sequence"] * layout["micro_batch"] // layout["tp"]

    def activation_bytes(model, layout):
        own_layers, tokens = model["layers"] // layout["pp"], model["sequence"] * layout["micro_batch"]
        under_way = [min(layout["pp"] - rank, layout["num_micro_batches"]) for rank in range(layout["pp"])]
        held = [count * own_layers * kept(model, layout, layout["recompute"]) for count in under_way]
        held[-1] += 4 * tokens * model["vocabulary"] // layout["tp"]
        return max(held)

    def buffer_bytes(model, layout):
        whole = max(0, layout["stage"] - 1) + (layout["stage"] == 3)
        total = whole * 2 * layer_params(model) / layout["tp"]
        if layout["recompute"] != "none":
            total += kept(model, layout, "none") - kept(model, layout, layout["recompute"])
        return total

    def memory_bytes(model, layout): return sum(f(model, layout) for f in (state_bytes, activation_bytes, buffer_bytes))
""",
}
BY_HAND = {
    "passes": """
    def forward_seconds(model, machine, layout, logits=True):
        flops_of = layer_flops(model) * (model["layers"] // layout["pp"])
        flops_of += 2 * model["vocabulary"] * model["hidden"] if logits else 0
        tokens = model["sequence"] * layout["micro_batch"] / layout["tp"]
        return tokens * flops_of / (machine["fraction"] * machine["peak"])

    def backward_seconds(*case):
        again = forward_seconds(*case, logits=False) if case[2]["recompute"] == "full" else 0
        return again + forward_seconds(*case) + forward_seconds(*case)

    def compute_seconds(*case):
        return case[2]["num_micro_batches"] * sum(each(*case) for each in (forward_seconds, backward_seconds))
""",
    "exposed": """
    def ring(size, num_bytes, link):
        return (size - 1) * link["alpha"] + num_bytes * link["beta"] * (size - 1) / size

    def tensor_seconds(model, machine, layout):
        if layout["tp"] == 1:
            return 0
        num_bytes = 2 * model["hidden"] * layout["micro_batch"] * model["sequence"]
        count = 4 * (3 if layout["recompute"] == "full" else 2) * model["layers"] // layout["pp"]
        return layout["num_micro_batches"] * count * ring(layout["tp"], num_bytes, machine["inside"])

    def bubble_seconds(model, machine, layout):
        one = {**layout, "num_micro_batches": 1}
        return sum(f(model, machine, one) for f in (compute_seconds, tensor_seconds) for rank in range(1, layout["pp"]))

    def data_seconds(model, machine, layout):
        near = min(layout["dp"], max(1, machine["gpus_per_node"] // layout["tp"]))
        num_bytes = 2 * layer_params(model) * model["layers"] // layout["pp"] // layout["tp"]
        once = ring(near, num_bytes, machine["inside"])
        once += ring(layout["dp"] // near, num_bytes / near, machine["between"])
        def shows(times, behind):
            all_of_it = times * once
            last = all_of_it * layout["pp"] / model["layers"]
            return last if all_of_it - behind < last else all_of_it - behind
        there, back = forward_seconds(model, machine, layout), backward_seconds(model, machine, layout)
        m = layout["num_micro_batches"]
        match layout["stage"]:
            case 0: return shows(2, back)
            case 1: return shows(1, there) + shows(1, back)
            case 2: return shows(1, there) + m * shows(1, back)
            case 3: return m * (shows(1, there) + shows(2, back))

    def step_seconds(*case):
        communication = tensor_seconds(*case) + data_seconds(*case) + ch20_plan.message_seconds(*case)
        return communication + compute_seconds(*case) + bubble_seconds(*case)
""",
}
SORTED = {
    "choose": """
    def possible(model, machine, batch):
        ranks = machine["nodes"] * machine["gpus_per_node"]
        powers = [2**n for n in range(11)]
        for dp, tp, pp, mb in product(powers, powers, powers, (1, 2, 4, 8)):
            splits = model["layers"] % pp == model["heads"] % tp == model["sequence"] % tp == batch % (dp * mb) == 0
            if dp * tp * pp == ranks and tp <= machine["gpus_per_node"] and splits:
                for stage, recompute in product((0, 1, 2, 3), ("none", "selective", "full")):
                    yield dict(recompute=recompute, pp=pp, tp=tp, dp=dp, micro_batch=mb, stage=stage,
                               num_micro_batches=batch / (dp * mb))

    def agrees(model, machine, world, trial):
        made, seconds = trial["layout"], trial["seconds"]
        if (memory_bytes(model, made) * world[-1] <= machine["memory"]) != (seconds is not None):
            return False
        return seconds is None or math.isclose(real(model, machine, made, world), seconds, rel_tol=1e-5)

    def real(model, machine, made, world):
        bills = [f(model, machine, made) for f in (compute_seconds, tensor_seconds, bubble_seconds, data_seconds)]
        return sum(map(operator.mul, bills, world)) + ch20_plan.message_seconds(model, machine, made)

    import math, operator

    def choose(model, machine, batch, tried):
        worlds = [w for w in product(*factors.values()) if all(agrees(model, machine, w, each) for each in tried)]
        room = machine["memory"] / (max if len(tried) != 1 else min)(w[-1] for w in worlds)
        known = [each["layout"] for each in tried]
        some = [made for made in possible(model, machine, batch) if memory_bytes(model, made) <= room]
        hope = min if tried else (lambda times: sum(sorted(times)) / 81)
        times = set(w[:4] for w in worlds)
        return sorted((made for made in some if made not in known),
                      key=lambda made: hope([real(model, machine, made, w) for w in times]))[0]
""",
}
WITH_NUMPY = {
    "choose": """
    import numpy as np

    def possible(model, machine, batch):
        powers, names = 2 ** np.arange(8), ("dp", "tp", "pp", "micro_batch", "stage")
        axes = np.array(np.meshgrid(powers, powers, powers, powers[:4], np.arange(4))).reshape(5, -1)
        dp, tp, pp, mb, stage = axes
        right = (dp * tp * pp == machine["nodes"] * machine["gpus_per_node"]) & (batch % (dp * mb) == 0)
        right &= (model["layers"] % pp == 0) & (model["heads"] % tp == 0) & (tp <= machine["gpus_per_node"])
        rows = [dict(zip(names, row)) for row in axes[:, right].T]
        return [row | {"num_micro_batches": batch // row["dp"] // row["micro_batch"], "recompute": how}
                for row in rows for how in ("full", "selective", "none")]

    WORLDS = np.array(list(product(factors["compute"], factors["tensor"], factors["bubble"], factors["data"], [1.0])))
    PARTS = compute_seconds, tensor_seconds, bubble_seconds, data_seconds, ch20_plan.message_seconds

    def choose(model, machine, batch, tried):
        rows = possible(model, machine, batch)
        bills = np.array([[part(model, machine, row) for part in PARTS] for row in rows])
        held = np.array([memory_bytes(model, row) for row in rows])
        worlds, loads = WORLDS, np.array(factors["memory"])
        for each in tried:
            place = rows.index(each["layout"])
            loads = loads[(loads * held[place] <= machine["memory"]) == (each["seconds"] is not None)]
            if each["seconds"]:
                worlds = worlds[np.isclose(worlds @ bills[place], each["seconds"], rtol=1e-7)]
            held[place] = np.inf
        times = bills @ worlds.T
        times = times.min(1) if tried else times.mean(1)
        times[held * (loads.min() if len(tried) == 1 else loads.max()) > machine["memory"]] = np.inf
        return rows[times.argmin()]
""",
}
IN_A_CLASS = {
    "choose": """
    class Bill:
        def __init__(self, model, machine, made):
            self.made, self.held = made, memory_bytes(model, made)
            case = model, machine, made
            self.fixed = ch20_plan.message_seconds(*case)
            self.parts = [compute_seconds(*case), tensor_seconds(*case), bubble_seconds(*case), data_seconds(*case)]

        def in_world(self, world):
            return self.fixed + sum(a * b for a, b in zip(self.parts, world))

    def possible(model, machine, batch):
        ranks = machine["nodes"] * machine["gpus_per_node"]
        for tp in (n for n in range(1, machine["gpus_per_node"] + 1) if model["heads"] % n == 0):
            for pp in range(1, model["layers"] + 1):
                for micro_batch in (8, 4, 2, 1) if model["layers"] % pp == ranks % (tp * pp) == 0 else ():
                    dp = ranks // (tp * pp)
                    m, rest = divmod(batch, dp * micro_batch)
                    for stage in range(0 if rest else 4):
                        for how in ("none", "selective", "full"):
                            yield dict(zip(ch20_plan.FIELDS, (dp, tp, pp, stage, micro_batch, m, how)))

    def choose(model, machine, batch, tried):
        bills = [Bill(model, machine, made) for made in possible(model, machine, batch)]
        worlds, lightest, heaviest = list(product(*list(factors.values())[:4])), 1.0, 1.12
        for each in tried:
            (bill,) = [bill for bill in bills if bill.made == each["layout"]]
            bills.remove(bill)
            if each["seconds"] is None:
                lightest = min(load for load in factors["memory"] if load * bill.held > machine["memory"])
            else:
                heaviest = max(load for load in factors["memory"] if load * bill.held <= machine["memory"])
                worlds = [w for w in worlds if abs(bill.in_world(w) - each["seconds"]) < 1e-6 * each["seconds"]]
        load = lightest if len(tried) == 1 else max(lightest, heaviest)
        fits = [bill for bill in bills if load * bill.held <= machine["memory"]] or bills
        hope = min if tried else sum
        return min(fits, key=lambda bill: hope([bill.in_world(world) for world in worlds])).made
""",
}
RIGHT = {
    "a table, sorted": A_TABLE | SORTED,
    "by hand": BY_HAND,
    "with numpy": WITH_NUMPY,
    "in a class": IN_A_CLASS,
    "near the best": {
        "choose": solution_of(EXERCISE, "choose").replace("if hope < least:", "if hope < 0.995 * least:")
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name, fewer):
    assert_accepted(EXERCISE, name, RIGHT[name], looks=False)


@pytest.mark.slow
def test_the_solution_gets_all_points_of_all_cases(capsys):
    assert graded(EXERCISE, {}, "d", looks=False) == {"d1-choice": (9, None)}
    assert sum(points_of(EXERCISE).values()) == 26
    assert capsys.readouterr().out.count("100%") == 15


# Wrong answers: the solution with one thing changed.


A1, A2, B1, B2, B3 = "a1-parameters", "a2-flops", "b1-state", "b2-activations", "b3-buffers"
C1, C2, C3, C4 = "c1-compute", "c2-tensor", "c3-bubble", "c4-data"
MODEL, HELD, PASSES, EXPOSED = "of-a-model", "held", "passes", "exposed"
ROUNDS = "{0: (0, 2), 1: (1, 1), 2: (1, 1), 3: (1, 2)}"
MUTANTS = [
    Mutant(
        "two matrices", MODEL, "3 * hidden * model", "2 * hidden * model", {A1, A2}, "has three matrices; this has two"
    ),
    Mutant("all heads", MODEL, 'model["kv_heads"]', 'model["heads"]', {A1, A2}, "have kv_heads heads only"),
    Mutant("no norms", MODEL, " + 2 * hidden\n", "\n", {A1, A2}, "the two norms are missing"),
    Mutant(
        "a tied head",
        MODEL,
        '2 * model["vocabulary"] * model["hidden"] +',
        'model["vocabulary"] * model["hidden"] +',
        {A1},
        "this counts one",
    ),
    Mutant(
        "12 h^2",
        MODEL,
        "return attention + 3",
        "return 12 * hidden**2\n    return attention + 3",
        {A1, A2},
        "this is 12 hidden^2",
    ),
    Mutant("masked scores", MODEL, '["sequence"] / 2', '["sequence"]', {A2}, "counts the scores that the mask hides"),
    Mutant("no scores", MODEL, "2 * matrices + scores", "2 * matrices", {A2}, "the scores are missing"),
    Mutant("forward only", MODEL, "3 * tokens", "tokens", {A2}, "the backward pass costs twice as much"),
    Mutant(
        "6 a parameter",
        MODEL,
        "return 3 * tokens",
        "return 6 * parameters(model) * tokens\n    return 3 * tokens",
        {A2},
        "this is 6 FLOPs a parameter",
    ),
    Mutant(
        "ZeRO-1 shards gradients",
        HELD,
        "(2, 2), (12, 1)",
        "(2, 1), (12, 1)",
        {B1},
        "stage 1 does not shard the gradients",
        origin="D11",
    ),
    Mutant(
        "ZeRO-2 shards nothing more",
        HELD,
        "(2, 2), (12, 1)",
        "(2, 3), (12, 1)",
        {B1},
        "from stage 2 on the gradients are sharded",
    ),
    Mutant(
        "ZeRO-2 shards parameters",
        HELD,
        "((2, 3),",
        "((2, 2),",
        {B1},
        "stage 2 does not shard the parameters",
        origin="D11",
    ),
    Mutant("nothing is sharded", HELD, ">= sharded_from else", ">= 4 else", {B1}, "no stage shards anything"),
    Mutant(
        "no fp32 copy", HELD, "(12, 1)", "(8, 1)", {B1}, "copy of the parameters in float32 is missing", origin="D06"
    ),
    Mutant(
        "no embedding",
        HELD,
        "layer_params(model) + ends) /",
        "layer_params(model)) /",
        {B1},
        "neither the embedding nor the head",
    ),
    Mutant("both ends everywhere", HELD, '(2 if layout["pp"] == 1 else 1)', "2", {B1}, "no rank has both"),
    Mutant(
        "tp divides nothing", HELD, '+ ends) / layout["tp"]', "+ ends)", {B1}, "tensor parallelism divides all of it"
    ),
    Mutant(
        "the whole pipeline",
        HELD,
        'model["layers"] / layout["pp"] * layer_params',
        'model["layers"] * layer_params',
        {B1},
        "by tp, but not by pp",
    ),
    Mutant(
        "one micro-batch",
        HELD,
        'one * min(layout["num_micro_batches"], layout["pp"])',
        "one",
        {B2},
        "the first has more micro-batches in flight",
        origin="M10",
    ),
    Mutant(
        "as GPipe",
        HELD,
        'min(layout["num_micro_batches"], layout["pp"])',
        'layout["num_micro_batches"]',
        {B2},
        "to the last, not all",
        origin="M10",
    ),
    Mutant(
        "more than there are",
        HELD,
        'min(layout["num_micro_batches"], layout["pp"])',
        'layout["pp"]',
        {B2},
        "there may be fewer micro-batches",
        origin="M10",
    ),
    Mutant("no logits", HELD, "max(first, one + logits)", "first", {B2}, "the logits are missing"),
    Mutant(
        "logits on the first",
        HELD,
        "max(first, one + logits)",
        "first + logits",
        {B2},
        "only the last rank holds logits",
    ),
    Mutant(
        "tp divides the rest",
        HELD,
        'a_token[recompute] / layout["tp"]',
        "a_token[recompute]",
        {B2, B3},
        "tensor parallelism divides",
    ),
    Mutant("no buffers for ZeRO-3", HELD, "2: 1, 3: 3}", "2: 1, 3: 1}", {B3}, "they are missing", origin="D05"),
    Mutant("one layer gathered", HELD, "2: 1, 3: 3}", "2: 1, 3: 2}", {B3}, "the next one is prefetched"),
    Mutant(
        "made again from nothing",
        HELD,
        ' - kept(model, layout, layout["recompute"])\n',
        "\n",
        {B3},
        "a whole layer in work even where nothing",
    ),
    Mutant("the peak", PASSES, ' * machine["fraction"]', "", {C1, C3, C4}, "only a fraction of the peak"),
    Mutant(
        "backward as forward",
        PASSES,
        "2 * forward + again",
        "forward + again",
        {C1, C3, C4},
        "costs twice as much as the forward",
    ),
    Mutant(
        "nothing again",
        PASSES,
        "2 * forward + again",
        "2 * forward",
        {C1, C3, C4},
        "does the forward pass of the layers again",
    ),
    Mutant("logits again", PASSES, '{**model, "vocabulary": 0}', "model", {C1, C3, C4}, "not the logits"),
    Mutant(
        "no logits to compute",
        PASSES,
        "layer_flops(model) + head",
        "layer_flops(model)",
        {C1, C3, C4},
        "the slowest rank is the last",
    ),
    Mutant(
        "one micro-batch computed",
        PASSES,
        'return layout["num_micro_batches"] * a_micro',
        "return a_micro",
        {C1, C3},
        "this is one micro-batch",
    ),
    Mutant(
        "once round",
        EXPOSED,
        "2 * ch20_plan.once_around(machine, 1",
        "ch20_plan.once_around(machine, 1",
        {C2, C3},
        "this is half:",
        origin="M02",
    ),
    Mutant(
        "not repeated",
        EXPOSED,
        'passes = 3 if layout["recompute"] == "full" else 2',
        "passes = 2",
        {C2, C3},
        "does the forward pass's all-reduces again",
    ),
    Mutant(
        "a tp-th of it",
        EXPOSED,
        'layout["tp"], num_bytes)\n',
        'layout["tp"], num_bytes / layout["tp"])\n',
        {C2, C3},
        "tp does not divide it",
        origin="M04",
    ),
    Mutant(
        "far from one another",
        EXPOSED,
        "machine, 1, ",
        'machine, layout["dp"], ',
        {C2, C3},
        "are neighbors: 1 apart",
        origin="M14",
    ),
    Mutant(
        "over total",
        EXPOSED,
        'busy / layout["num_micro_batches"]',
        'busy / (layout["num_micro_batches"] + layout["pp"] - 1)',
        {C3},
        "a bubble over total time",
        origin="M09",
    ),
    Mutant(
        "p, not p - 1",
        EXPOSED,
        '(layout["pp"] - 1) * busy',
        'layout["pp"] * busy',
        {C3},
        "after p - 1 others, not after p",
        origin="M09",
    ),
    Mutant(
        "waits for computing only",
        EXPOSED,
        " + tensor_seconds(model, machine, layout)\n",
        "\n",
        {C3},
        "ranks also wait for the tensor-parallel",
    ),
    Mutant(
        "hides nothing",
        EXPOSED,
        "shows_there + (m if stage >= 2 else 1) * shows_back",
        "there * once + (m if stage >= 2 else 1) * back * once",
        {C4},
        "this hides nothing",
        origin="D14",
    ),
    Mutant("the last layer too", EXPOSED, "* once / layers", "* 0", {C4}, "nothing left to hide behind"),
    Mutant(
        "once at stage 0",
        EXPOSED,
        "0: (0, 2)",
        "0: (0, 1)",
        {C4},
        "stage 0 all-reduces, which goes round twice",
        origin="C05",
    ),
    Mutant(
        "ZeRO-1 all-reduces",
        EXPOSED,
        ROUNDS,
        "{0: (0, 2), 1: (1, 2), 2: (1, 2), 3: (1, 2)}",
        {C4},
        "they do not all-reduce",
        origin="D02",
    ),
    Mutant(
        "gathered once at 3",
        EXPOSED,
        "3: (1, 2)}",
        "3: (1, 1)}",
        {C4},
        "gathers parameters in the backward pass, too",
        origin="D03",
    ),
    Mutant(
        "stage 3 once a step",
        EXPOSED,
        "(m if stage == 3 else 1) * shows_there + (m if stage >= 2 else 1)",
        "shows_there + (m if stage == 2 else 1)",
        {C4},
        "stage 3 gathers and scatters in every micro-batch",
        origin="D04",
    ),
    Mutant(
        "stage 2 once a step", EXPOSED, "m if stage >= 2", "m if stage == 3", {C4}, "because it keeps no whole ones"
    ),
    Mutant(
        "neighbors",
        EXPOSED,
        'machine, layout["tp"], layout["dp"]',
        'machine, 1, layout["dp"]',
        {C4},
        "they are tp apart",
        origin="M14",
    ),
    Mutant(
        "with the embedding",
        EXPOSED,
        "2 * layers * layer_params(model)",
        '(2 * layers * layer_params(model) + 2 * (1 + (layout["pp"] == 1)) * model["vocabulary"] * model["hidden"])',
        {C4},
        "leave out the embedding and the head",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant, fewer):
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant), looks=False)


# Choices that are not the best.


def dict_of(layout):
    return {name: getattr(layout, name) for name in ch20_plan.FIELDS}


def chooser(pick):
    """A learner's function that knows beforehand the layouts `pick(case)` that it tries on every case."""
    known = [(case, pick(case)) for case in (*random_cases(SEEN), *random_cases(HIDDEN, of_each=2))]

    def choose(model, machine, batch, tried):
        layouts = next(layouts for case, layouts in known if case[:3] == (model, machine, batch))
        return layouts[min(len(tried), len(layouts) - 1)]

    return choose


def fastest(spare, how_many=ch20_plan.TRIALS):
    """The layouts that are fastest on paper, of those that fit if memory takes `spare` times what is on paper."""

    def pick(case):
        fits = [plan for plan in ch20_plan.grid(case) if spare * plan.memory.total <= case.machine["memory"]]
        return [dict_of(plan.layout) for plan in sorted(fits, key=lambda plan: plan.step.seconds)[:how_many]]

    return pick


def scored(choose, capsys, seed=HIDDEN, of_each=2):
    """(points of 9, what is said)."""
    capsys.readouterr()
    try:
        return ch20_plan.score(choose, random_cases(seed, of_each), 9), " ".join(capsys.readouterr().out.split())
    except NotYet as refusal:
        return 0, str(refusal)


@pytest.mark.parametrize(
    "pick, least, most",
    [
        (fastest(1.12, how_many=1), 0, 2),
        (fastest(1), 2, 5),
        (fastest(1.12), 2, 5),
        (lambda case: [dict_of(ch20_plan.best(case).layout)], 9, 9),
    ],
    ids=["one trial", "the fastest on paper", "the fastest that surely fit", "the best"],
)
def test_trials_that_learn_nothing_are_worth_a_part_of_the_points(pick, least, most, capsys):
    points, said = scored(chooser(pick), capsys)
    assert least <= points <= most, said
    assert points == 0 or type(points) is float  # nbgrader reads the number that the cell shows, as text


def test_a_table_learned_from_other_clusters_is_worth_a_small_part_of_the_points(capsys):
    """Three layouts for each kind of cluster, those with the most credit on thirty others of all kinds."""

    def kind(model, machine, batch=None):
        rates = tuple(1e-9 / machine[link]["beta"] > rate for link, rate in {"inside": 60, "between": 10}.items())
        return machine["gpus_per_node"], model["sequence"] > 8192, machine["memory"] > 40e9, *rates

    def without_its_size(said):
        return tuple(said[name] for name in ("tp", "pp", "stage", "micro_batch", "recompute"))

    worth = {}  # {kind: [{layout: its credit} of each case]}
    for case in (case for seed in range(200, 206) for case in random_cases(seed)):
        least = case.real(ch20_plan.best(case)).seconds
        fits = [plan for plan in ch20_plan.grid(case) if case.needs(plan) <= case.machine["memory"]]
        credits = {
            without_its_size(dict_of(each.layout)): ch20_plan.credit(case.real(each).seconds / least) for each in fits
        }
        worth.setdefault(kind(*case[:2]), []).append(credits)
    table = {}
    for each, cases in worth.items():
        found = table.setdefault(each, [])
        for _ in range(3):
            had = [max([credits.get(layout, 0) for layout in found], default=0) for credits in cases]
            all_of_them = {layout for credits in cases for layout in credits}
            found.append(max(sorted(all_of_them), key=lambda it: sum(map(max, had, [c.get(it, 0) for c in cases]))))

    def choose(model, machine, batch, tried):
        tp, pp, stage, micro_batch, recompute = table[kind(model, machine)][len(tried)]
        dp = machine["nodes"] * machine["gpus_per_node"] // (tp * pp)
        sizes = {"dp": dp, "tp": tp, "pp": pp, "micro_batch": micro_batch}
        return sizes | {"stage": stage, "num_micro_batches": batch // (dp * micro_batch), "recompute": recompute}

    points, said = scored(choose, capsys)
    assert points <= 3, said


def test_a_table_of_the_public_clusters_gets_little_where_unseen_ones_are_drawn(capsys):
    public, drawn = random_cases(HIDDEN, of_each=2), random_cases(7, of_each=2)
    known = [(case, 3 * [dict_of(ch20_plan.best(case).layout)]) for case in public]
    known += [(case, fastest(1.12)(case)) for case in drawn]

    def choose(model, machine, batch, tried):
        return next(layouts for case, layouts in known if case[:3] == (model, machine, batch))[len(tried)]

    assert ch20_plan.score(choose, public, 9) == 9
    assert 0 < ch20_plan.score(choose, public, 9, drawn) <= 6
    assert "on 10 clusters drawn for this submission it gets only" in " ".join(capsys.readouterr().out.split())


def test_on_paper_no_case_shows_its_best_layout():
    for case in (*random_cases(SEEN), *random_cases(HIDDEN, of_each=2)):
        (paper,) = fastest(1.12, how_many=1)(case)
        assert ch20_plan.judged(case, paper).seconds >= 1.12 * case.real(ch20_plan.best(case)).seconds


def test_points_fall_evenly_from_near_the_best_to_far_from_it():
    times = (0.99, 1, 1.05, 1.1, 1.15, 1.25, 2)
    assert [round(ch20_plan.credit(each), 6) for each in times] == [1, 1, 1, 0.5, 0, 0, 0]


def notebook(*cell_ids):
    """The names that these cells of the notebook define."""
    names = {}
    for cell_id in cell_ids:
        exec(solution_of(EXERCISE, cell_id), names)
    return names


NOTEBOOK = notebook("model", "machine", "layout", "colleagues")
LARGE = ch20_plan.Case(NOTEBOOK["large"], NOTEBOOK["cluster"], 32)
MINE = {"dp": 32, "tp": 4, "pp": 1, "stage": 3, "micro_batch": 1, "num_micro_batches": 1, "recompute": "none"}
OTHER = {"dp": 16, "tp": 8, "pp": 1, "stage": 2, "micro_batch": 2, "num_micro_batches": 1, "recompute": "selective"}
BEST = {"dp": 32, "tp": 4, "pp": 1, "stage": 2, "micro_batch": 1, "num_micro_batches": 1, "recompute": "selective"}


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"dp": 16}, "dp 16 x tp 4 x pp 1 is 64 ranks, not 128"),
        ({"dp": 8, "tp": 16, "num_micro_batches": 4}, "tp 16 spans nodes of 8"),
        ({"num_micro_batches": 2}, "a batch of 32 does not divide by dp 32 x micro-batches of 1"),
        ({"pp": 3}, "80 layers do not divide by pp 3"),
        ({"dp": 0}, "every axis has at least 1 rank, not 0"),
        ({"pp": -1}, "every axis has at least 1 rank, not -1"),
        ({"stage": 0}, "GB of 80 GB; most of it optimizer state, 212 GB"),
        ({"recompute": "none"}, "GB of 80 GB; most of it activations, 46 GB"),
        ({"dp": 16, "tp": 8, "num_micro_batches": 2}, "0.307 s more exposed data-parallel communication: stage 2"),
        (
            {"dp": 16, "tp": 8, "num_micro_batches": 2, "stage": 1},
            "communication: dp 16, 1 of them in a node",
        ),
        ({"dp": 16, "tp": 8, "num_micro_batches": 2, "stage": 3}, "stage 3 sends for each of 2 micro-batches"),
        ({"dp": 8, "pp": 4, "num_micro_batches": 4}, "s more bubble: pp 4 with 4 micro-batches"),
        ({"dp": 16, "tp": 2, "pp": 4, "num_micro_batches": 2}, "s more bubble: pp 4 with 2 micro-batches"),
        ({"recompute": "full"}, "full recomputation does the forward pass twice; the best plan has tp 4, selective"),
        ({}, "2.08 s, 2.08 s on paper; as good as the best"),
    ],
)
def test_what_is_wrong_with_a_choice_is_said(changed, words):
    trial = ch20_plan.judged(LARGE, BEST | changed)
    assert words in trial.why
    assert (ch20_plan.worth(LARGE, [trial]) == 1) == (not changed)


@pytest.mark.parametrize(
    "given, words",
    [
        ("None", "returns None: is its `return` missing, or does it miss the layouts that fit?"),
        ("5", "returns 5; a layout is a dict with dp, tp, pp, stage"),
        ("{'dp': 32}", "its tp is missing"),
        ("{**layout, 'sp': True}", "returns a layout with 'sp'; a layout has dp, tp"),
        ("{**layout, 'recompute': 'some'}", "its recompute is 'some', not one of none, selective, full"),
        ("{**layout, 'stage': 4}", "its stage is 4, not one of 0, 1, 2, 3"),
        ("{**layout, 'tp': 1.5}", "its tp is 1.5, not a whole number"),
        ("{**layout, 'dp': 'all'}", "its dp is 'all', not a whole number"),
        ("layouts[0]", "ends in NameError: name 'layouts' is not defined"),
        (
            "ch20_plan.best(ch20_plan.Case(model, machine, batch))",
            "the library's own ch20_plan.best is for comparing, afterwards",
        ),
        ("searched(ch20_plan._model(model), ch20_plan._machine(machine), batch)", "is for comparing, afterwards"),
    ],
)
def test_a_choice_that_is_none_is_told_of_plainly(given, words, fewer):
    lines = "from collectives.training.planner import search as searched", "def choose(model, machine, batch, tried):"
    points, said = graded(EXERCISE, {"choose": "\n".join([*lines, f"    return {given}"])}, "d", looks=False)[
        "d1-choice"
    ]
    assert points == 0
    assert words in said


def test_a_choice_that_never_ends_is_ended(monkeypatch):
    monkeypatch.setattr(checks, "CALL_SECONDS", 0.3)

    def choose(model, machine, batch, tried):
        while True:
            batch += 1

    with pytest.raises(NotYet, match=r"choose\(model.*: it was still running after 0.3 s\n  line \d+ of choose: "):
        ch20_plan.score(choose, random_cases(SEEN)[:2], 9)


def test_a_trial_without_a_layout_leaves_the_others_their_points(capsys):
    """An error, None or a layout that runs out of memory costs one trial; the fastest of the others counts."""
    right = chooser(lambda case: [dict_of(ch20_plan.best(case).layout)])

    def choose(model, machine, batch, tried):
        if not tried:
            return dict.fromkeys(ch20_plan.FIELDS, 1) | {"dp": 999, "recompute": "none"}
        assert tried[0]["seconds"] is None
        return right(model, machine, batch, []) if len(tried) == 1 else None

    points, said = scored(choose, capsys, SEEN, 1)
    assert points == 9
    assert "trial 1: dp 999, ZeRO-1, 1 x 1 sequences: dp 999 x tp 1 x pp 1 is 999 ranks" in said
    assert "trial 3: choose(model, machine, 32, tried) returns None: is its `return` missing" in said


def test_what_is_out_of_memory_on_the_cluster_is_said():
    case = LARGE._replace(surprises=ch20_plan.Surprises(memory=1.12))
    trial = ch20_plan.judged(case, BEST)
    assert trial.seconds is None
    assert "out of memory; 74.9 GB on paper are 83.8 GB here, most of it parameters" in trial.why


LIBRARY = {
    "of-a-model": """
    def layer_params(model): return ch20_plan._layer_params(ch20_plan._model(model)).want

    def parameters(model): return ch20_plan._model(model).parameters

    def layer_flops(model): return ch20_plan._model(model).layer_flops

    def flops(model, tokens): return ch20_plan._model(model).flops(tokens)
""",
    "held": """
    from collectives.training import costs

    def bytes_of(model, layout): return costs.memory(ch20_plan._model(model), ch20_plan._layout(layout))

    def state_bytes(model, layout): return sum(bytes_of(model, layout)[:3])

    def activation_bytes(model, layout): return bytes_of(model, layout).activations

    def buffer_bytes(model, layout): return ch20_plan._buffers(ch20_plan._model(model), ch20_plan._layout(layout)).want

    def memory_bytes(model, layout): return bytes_of(model, layout).total
""",
    "exposed": """
    def step(*case): return planned(ch20_plan._model(case[0]), ch20_plan._machine(case[1]), ch20_plan._layout(case[2]))

    from collectives.training.planner import step as planned

    def tensor_seconds(*case): return step(*case).tensor

    def bubble_seconds(*case): return step(*case).bubble

    def data_seconds(*case): return step(*case).data

    def step_seconds(*case): return step(*case).seconds
""",
}


def test_the_library_answers_no_part(fewer):
    """Neither by its own names nor by those of the checks, here as in grading: see the sample `library`."""
    marked = graded(EXERCISE, LIBRARY, "abcd", looks=False)
    assert len(marked) == 10
    assert all(not points and "for comparing, afterwards" in words for points, words in marked.values())


@pytest.mark.parametrize("number", [float, Fraction, np.float32, np.int64, np.array], ids=lambda kind: kind.__name__)
def test_whole_numbers_of_any_type_are_a_layout(number):
    layout = {name: value if name == "recompute" else number(value) for name, value in BEST.items()}
    chosen = ch20_plan._chosen(lambda model, machine, batch, tried: layout, LARGE, [])
    assert ch20_plan.worth(LARGE, [ch20_plan.judged(LARGE, chosen)]) == 1


def test_a_function_may_change_what_it_is_given():
    def choose(model, machine, batch, tried):
        machine["between"].clear()
        machine["memory"] = model["layers"] = 0
        tried.append("more")
        return BEST

    case = ch20_plan.Case(dict(LARGE.model), LARGE.machine | {"between": dict(LARGE.machine["between"])}, 32)
    assert ch20_plan.worth(case, ch20_plan.tries(choose, case)) == 1
    assert case == LARGE


def slips_of(models, layouts, steps):
    """(what is asked for, what is right and what slips give, for each of the cases)."""
    for what, find in ch20_plan.OF_A_MODEL.items():
        yield what, [find(ch20_plan._model(model), *[10**6] * (what == "flops")) for model in models]
    for what, find in ch20_plan.OF_MEMORY.items():
        yield what, [find(ch20_plan._model(model), ch20_plan._layout(layout)) for model, layout in layouts]
    for what, find in ch20_plan.OF_TIME.items():
        yield what, [find(ch20_plan._model(a), ch20_plan._machine(b), ch20_plan._layout(c)) for a, b, c in steps]


def test_no_two_slips_look_the_same_and_none_looks_right():
    seen, slow = NOTEBOOK["variants"], {**NOTEBOOK["machine"], "between": {"alpha": 14e-6, "beta": 1 / 2e9}}
    model, both = NOTEBOOK["model"], (NOTEBOOK["machine"], slow)
    shown = [model], [(model, layout) for layout in seen], [(model, where, layout) for layout in seen for where in both]
    hidden = ch20_plan.random_models(3201), ch20_plan.random_layouts(3205), ch20_plan.random_steps(3211)
    for cases in (shown, hidden):
        for what, found in slips_of(*cases):
            numbers = {words: [row.slips[words] for row in found] for words in found[0].slips}
            numbers["right"] = [row.want for row in found]
            for one, other in combinations(numbers, 2):
                assert numbers[one] != pytest.approx(numbers[other], rel=1e-9), (what, one, other)


def test_what_is_checked_is_what_the_planner_says():
    """All parts of the notebook's solution together are the planner's memory and seconds; nothing else is in them."""
    names = dict(NOTEBOOK, ch20_plan=ch20_plan)
    for cell_id in ("of-a-model", "held", "passes", "exposed"):
        exec(solution_of(EXERCISE, cell_id), names)
    for model, machine, layout in ch20_plan.random_steps(seed=1):
        mine = ch20_plan._model(model), ch20_plan._machine(machine), ch20_plan._layout(layout)
        assert names["memory_bytes"](model, layout) == pytest.approx(costs.memory(mine[0], mine[2]).total)
        assert names["step_seconds"](model, machine, layout) == pytest.approx(costs.step(*mine).seconds)
        assert names["flops"](model, 1) == pytest.approx(mine[0].flops(1))


def test_the_cases_ask_for_all_kinds_of_plans():
    """No axis, stage or kind of recomputation is always right."""
    found = [ch20_plan.best(case) for case in random_cases(HIDDEN, of_each=2)]
    for name in ("tp", "pp", "stage"):
        assert len({getattr(priced.layout, name) for priced in found}) >= 3, name
    assert max(priced.layout.tp for priced in found) >= 4


def priced(layout):
    """What a layout of the large model costs."""
    model, machine, made = ch20_plan._model(LARGE.model), ch20_plan._machine(LARGE.machine), ch20_plan._layout(layout)
    return planner.Plan(made, costs.memory(model, made), costs.step(model, machine, made))


def test_the_rubric_says_what_the_layouts_cost():
    """The numbers that graders are given for part e."""
    (text,) = (cell.source for cell in cells_of(EXERCISE) if cell.id == "e-defend")
    assert dict_of(ch20_plan.best(LARGE).layout) == BEST
    best, ways, room, mine = map(priced, (BEST, NOTEBOOK["ways"], NOTEBOOK["room"], MINE))
    other = priced(OTHER)

    def twice(plan, part):
        return plan.step.seconds + getattr(plan.step, part)

    for number in (
        f"{mine.step.seconds:.1f} s a step on paper and {mine.memory.total / 1e9:.0f} GB",
        f"takes {ways.step.seconds:.1f} s",
        f"{ways.step.bubble:.2f} s in the bubble",
        f"takes {room.step.seconds:.1f} s",
        f"{room.memory.total / 1e9:.0f} GB of 80",
        f"{room.step.data:.1f} s show",
        f"computes a third more ({room.step.compute - mine.step.compute:.1f} s)",
        f"({room.step.tensor - mine.step.tensor:.1f} s more than in mine)",
        f"holds {1.12 * mine.memory.total / 1e9:.0f} GB at the worst",
        f"at {best.step.seconds:.1f} s. It holds {best.memory.total / 1e9:.0f} GB of 80",
        f"{1.12 * best.memory.total / 1e9:.0f} GB at the worst factor",
        f"costs {100 * (mine.step.seconds / best.step.seconds - 1):.0f} %",
        f"{twice(other, 'data'):.2f} s against {twice(mine, 'data'):.2f}",
        f"{twice(other, 'tensor'):.2f} against {twice(mine, 'tensor'):.2f}",
        f"Only {mine.step.tensor:.2f} s of mine are tensor parallelism and {mine.step.data:.2f} s data",
    ):
        assert number in " ".join(text.split()), number
    assert round(ways.step.tensor - mine.step.tensor, 1) == round(ways.step.compute - mine.step.compute, 1) == 0.2


def test_the_solution_defends_what_it_tries_first():
    names = dict(NOTEBOOK, ch20_plan=ch20_plan, product=product)
    for cell_id in ("of-a-model", "held", "passes", "exposed", "factors", "choose"):
        exec(solution_of(EXERCISE, cell_id), names)
    assert names["choose"](LARGE.model, LARGE.machine, LARGE.batch, []) == MINE
    assert names["factors"] == ch20_plan.FACTORS
