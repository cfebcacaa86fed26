"""Exercise 10 accepts right answers however they are written, and refuses wrong ones in words that name the slip."""

import math
from collections import Counter
from itertools import combinations

import pytest
from answers import Mutant, assert_accepted, assert_refused, with_slip

from collectives.practice import ch10_fsdp
from collectives.practice.checks import NotYet
from collectives.training import memory, traffic

EXERCISE = "10_fsdp"

# Right answers, each in another style than the solution's.

TABLE = {
    "held": """
    EACH = {"mixed": dict(parameter=2, gradient=2, optimizer=12), "full": dict(parameter=4, gradient=4, optimizer=8)}
    FROM = dict(parameter=3, gradient=2, optimizer=1)

    def share_of(what):
        def function(num_params, world_size, stage, recipe):
            return EACH[recipe][what] * num_params // (world_size if stage >= FROM[what] else 1)
        return function

    parameter_bytes, gradient_bytes, optimizer_bytes = map(share_of, EACH["mixed"])
""",
    "peak": """
    def peak_bytes(model, world_size, stage):
        total = int(model["activation_gb"] * 1e9)
        for what, first in FROM.items():
            each = EACH[model["recipe"]][what]
            total += share_of(what)(model["num_params"], world_size, stage, model["recipe"])
            if stage >= first and what != "optimizer":
                total += each * model["block_params"]
        return total
""",
    "by-hand": "def by_hand(): return ['none', 0, 3, 1][1:]",
}
WITH_NUMPY = {
    "held": """
    import numpy as np

    def held(num_params, world_size, stage, recipe):
        each = np.array([2, 2, 12] if recipe == "mixed" else [4, 4, 8])
        return each * num_params / np.where(np.array([3, 2, 1]) <= stage, world_size, 1)

    def parameter_bytes(*sizes): return held(*sizes)[0]
    def gradient_bytes(*sizes): return held(*sizes)[1]
    def optimizer_bytes(*sizes): return held(*sizes)[2]
""",
    "sent": """
    def sent_bytes(num_params, world_size, stage, recipe):
        rounds = np.dot([2, 2, 2, 3], np.arange(4) == stage)
        return rounds * (1 - 1 / world_size) * num_params * (4 - 2 * (recipe[0] == "m"))
""",
    "choose": """
    def choose(model, machine):
        peaks = np.array([peak_bytes(model, machine["world_size"], stage) for stage in range(4)])
        fits = peaks <= machine["memory_gb"] * 1e9
        return fits.argmax() if fits.any() else "none"
""",
}
FROM_THE_LIBRARY = {
    "choose": """
    from collectives.training.memory import FULL_ADAM, MIXED_ADAM, STAGES, at_rest
    from collectives.training.traffic import sent, step

    def choose(model, machine):
        ranks, recipe = machine["world_size"], MIXED_ADAM if model["recipe"] == "mixed" else FULL_ADAM
        free = machine["memory_gb"] * 10**9 - model["activation_gb"] * 10**9
        stages = []
        for stage in STAGES:
            block = max(0, stage - 1) * recipe.gradients * model["block_params"]
            if at_rest(model["num_params"], ranks, stage, recipe).total + block <= free:
                stages.append((sent(step(model["num_params"], stage), ranks), stage))
        return min(stages)[1] if stages else "none"
""",
}
DOWNWARDS = {
    "choose": """
    def choose(model, machine):
        \"\"\"From full sharding down, as long as less fits too.\"\"\"
        best = "none"
        for stage in reversed(range(4)):
            if peak_bytes(model, machine["world_size"], stage) / 1e9 <= machine["memory_gb"]:
                best = stage
        return best
""",
    "by-hand": """
    def by_hand():
        node = {"world_size": 8, "memory_gb": 80}
        rows = [(1e9, 50e6, 8), (30e9, 500e6, 10), (7e9, 200e6, 10)]
        names = "num_params", "block_params", "activation_gb"
        return tuple(choose({"recipe": "mixed", **dict(zip(names, row))}, node) for row in rows)
""",
}
BY_STEPS = {
    "held": """
    from fractions import Fraction

    def parameter_bytes(num_params, world_size, stage, recipe):
        width = {"mixed": 16, "full": 32}[recipe] // 8
        return sum(width * num_params // world_size for rank in range(1 if stage > 2 else world_size))

    def gradient_bytes(num_params, world_size, stage, recipe):
        return parameter_bytes(num_params, world_size, stage + 1, recipe)

    def optimizer_bytes(num_params, world_size, stage, recipe):
        copy = num_params if recipe == "mixed" else 0
        return 4 * (copy + num_params + num_params) * (Fraction(1, world_size) if stage else 1)
""",
    "sent": """
    def sent_bytes(num_params, world_size, stage, recipe):
        chunk = num_params * (2 if recipe == "mixed" else 4) // world_size
        reduce_scatter = all_gather = sum(chunk for step in range(world_size - 1))
        all_reduce = reduce_scatter + all_gather
        gathers = (0, 1, 1, 2)[stage]
        return all_reduce if stage == 0 else reduce_scatter + gathers * all_gather
""",
    "choose": """
    def choose(model, machine, stage=0):
        if stage == 4:
            return "none"
        room = machine["memory_gb"] * 1e9 - peak_bytes(model, machine["world_size"], stage)
        return stage if room >= 0 else choose(model, machine, stage + 1)
""",
}
RIGHT = {
    "a table": TABLE,
    "with numpy": WITH_NUMPY,
    "from the library": FROM_THE_LIBRARY,
    "downwards": DOWNWARDS,
    "by steps": BY_STEPS,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_is_accepted_however_it_is_written(name):
    assert_accepted(EXERCISE, name, RIGHT[name])


# Wrong answers: the solution with one thing changed.


EACH, WHOLE = "kept * (2 if recipe", " * whole + model"
SENT = "rounds * (world_size - 1) / world_size * buffer"
KEPT = "num_params / world_size if stage >= 3"
ADAM = '4 + 4 + 4 if recipe == "mixed" else 4 + 4'
PARAMETERS, OPTIMIZER = {"a1-parameters", "a4-peak"}, {"a3-optimizer", "a4-peak"}
PEAK, UP_TO_2, STAGE_3 = {"a4-peak"}, {"b1-up-to-stage-2"}, {"b2-stage-3"}
SENDS = UP_TO_2 | STAGE_3
CHOSEN = {"c1-half", "c2-fits-and-light", "c3-all"}
MANY = CHOSEN - {"c1-half"}
MUTANTS = [
    Mutant(
        "fp32 for bf16",
        "held",
        "kept * (2 if recipe",
        "kept * (4 if recipe",
        PARAMETERS,
        "a number in bfloat16 has 2",
        origin="D06",
    ),
    Mutant(
        "bf16 for fp32",
        "held",
        'recipe == "mixed" else 4)',
        'recipe == "mixed" else 2)',
        PARAMETERS,
        "in float32 has 4",
    ),
    Mutant(
        "elements", "held", f"return {EACH}", "return kept * (1 if recipe", PARAMETERS, "a rank holds 16,000,000,000"
    ),
    Mutant(
        "divided at stage 2",
        "held",
        "stage >= 3",
        "stage >= 2",
        PARAMETERS,
        "from stage 2 on; which stage shards",
        origin="D11",
    ),
    Mutant("never divided", "held", "stage >= 3", "stage >= 4", PARAMETERS, "this is whole at every stage"),
    Mutant("always divided", "held", "stage >= 3", "stage >= 0", PARAMETERS, "at stage 0 every rank holds everything"),
    Mutant(
        "a third on 4 ranks",
        "held",
        KEPT,
        "num_params / (world_size - 1) if stage >= 3",
        PARAMETERS,
        "so a share is 1/P",
        origin="D10",
    ),
    Mutant(
        "gradients whole at stage 2",
        "held",
        "stage >= 2",
        "stage >= 3",
        {"a2-gradients", "a4-peak"},
        "divides from stage 3",
    ),
    Mutant("16 for the optimizer alone", "held", ADAM, "16", OPTIMIZER, "costs in all", origin="D06"),
    Mutant(
        "no copy of the parameters",
        "held",
        "4 + 4 + 4 if",
        "4 + 4 if",
        OPTIMIZER,
        "optimizer's too: it is missing",
        origin="D06",
    ),
    Mutant(
        "a copy in both recipes",
        "held",
        "else 4 + 4)",
        "else 12)",
        OPTIMIZER,
        "a copy of the parameters in both recipes",
        origin="D06",
    ),
    Mutant("one moment", "held", ADAM, '8 if recipe == "mixed" else 4', OPTIMIZER, "two", origin="D06"),
    Mutant("moments in 2 bytes", "held", ADAM, '6 if recipe == "mixed" else 4', OPTIMIZER, "in float32", origin="D06"),
    Mutant(
        "the block forgotten",
        "peak",
        f"copies{WHOLE}",
        "model",
        PEAK,
        "the block that is whole for a while is missing",
        origin="D05",
    ),
    Mutant(
        "the block's gradients forgotten",
        "peak",
        "2: 1, 3: 2",
        "2: 0, 3: 1",
        PEAK,
        "the block's gradients are missing",
        origin="D05",
    ),
    Mutant(
        "the block's parameters forgotten",
        "peak",
        "2: 1, 3: 2",
        "2: 1, 3: 1",
        PEAK,
        "the block's parameters are missing",
        origin="D07",
    ),
    Mutant("the block at every stage", "peak", "{0: 0, 1: 0, 2: 1, 3: 2}[stage]", "2", PEAK, "only to what is sharded"),
    Mutant("the block's parameters at stage 2", "peak", "2: 1, 3: 2", "2: 2, 3: 2", PEAK, "holds all parameters"),
    Mutant("no block at stage 2", "peak", "2: 1, 3: 2", "2: 0, 3: 2", PEAK, "the gradients are sharded too"),
    Mutant(
        "the block's elements", "peak", f"copies{WHOLE}", 'copies * model["block_params"] + model', PEAK, "are elements"
    ),
    Mutant(
        "activations forgotten",
        "peak",
        ' + model["activation_gb"] * 1e9',
        "",
        PEAK,
        "the activations are missing (activation_gb is in GB",
        origin="D07",
    ),
    Mutant(
        "activations in GiB",
        "peak",
        '["activation_gb"] * 1e9',
        '["activation_gb"] * 2**30',
        PEAK,
        "this takes GiB",
        origin="D07",
    ),
    Mutant("activations in GB", "peak", '["activation_gb"] * 1e9', '["activation_gb"]', PEAK, "times 1e9"),
    Mutant(
        "the own share of the block left out",
        "peak",
        f"copies{WHOLE}",
        "copies * whole * (world_size - 1) / world_size + model",
        PEAK,
        "the rank's own share of it is there twice",
    ),
    Mutant("activations divided", "peak", "* 1e9\n", "* 1e9 / world_size\n", PEAK, "no stage shards them"),
    Mutant(
        "ZeRO-1 keeps its all-reduce",
        "sent",
        "3 if stage == 3 else 2",
        "2 + stage % 2",
        UP_TO_2,
        "stage 1 does not all-red",
        origin="D02",
    ),
    Mutant(
        "ZeRO-1 and 2 all-reduce",
        "sent",
        "3 if stage == 3 else 2",
        "2 + (stage > 0)",
        UP_TO_2,
        "stages 1 and 2 do not all",
        origin="D02",
    ),
    Mutant(
        "updates not gathered",
        "sent",
        "3 if stage == 3 else 2",
        "(2, 1, 1, 3)[stage]",
        UP_TO_2,
        "an all-gather is missing",
        origin="D01",
    ),
    Mutant(
        "all-reduce counted once", "sent", "3 if stage == 3 else 2", "(1, 2, 2, 3)[stage]", UP_TO_2, "counts it once"
    ),
    Mutant(
        "FSDP moves what DDP moves",
        "sent",
        "3 if stage == 3 else 2",
        "2",
        STAGE_3,
        "stage 3 does not move what stage 0",
        origin="D04",
    ),
    Mutant(
        "FSDP all-reduces",
        "sent",
        "3 if stage == 3 else 2",
        "4 if stage == 3 else 2",
        STAGE_3,
        "one collective too many",
        origin="D03",
    ),
    Mutant(
        "no gathers in FSDP",
        "sent",
        "3 if stage == 3 else 2",
        "1 if stage == 3 else 2",
        STAGE_3,
        "its reduce-scatter only",
        origin="D03",
    ),
    Mutant("no (P-1)/P", "sent", SENT, "rounds * buffer", SENDS, "leaves out the factor (P-1)/P", origin="C03"),
    Mutant("all ranks", "sent", SENT, "rounds * (world_size - 1) * buffer", SENDS, "counts all ranks together"),
    Mutant("rounded to 0", "sent", SENT, "(world_size - 1) // world_size * rounds * buffer", SENDS, "`//` has rounded"),
    Mutant("GB for bytes", "sent", SENT, f"{SENT} / 1e9", SENDS, "this is in GB"),
    Mutant(
        "fp32 on the wire",
        "sent",
        '(2 if recipe == "mixed" else 4)\n    rounds',
        "4\n    rounds",
        SENDS,
        "bfloat16 has 2",
    ),
    Mutant("GiB for GB", "choose", '["memory_gb"] * 1e9', '["memory_gb"] * 2**30', MANY, "you take GiB, 2**30"),
    Mutant("always fully", "choose", "return stage\n", "return 3\n", CHOSEN, "20 of 50 choices", origin="D13"),
    Mutant("fully or not at all", "choose", "in range(4):", "in (3,):", CHOSEN, "do you need to?", origin="D13"),
    Mutant(
        "always 3",
        "choose",
        "for stage in range(4):",
        "return 3\n    for stage in range(4):",
        CHOSEN,
        "every answer is 3",
    ),
    Mutant(
        "always 0",
        "choose",
        "for stage in range(4):",
        "return 0\n    for stage in range(4):",
        CHOSEN,
        "every answer is 0",
    ),
    Mutant("0 or 3", "choose", "in range(4):", "in (0, 3):", MANY, "there are two between them", origin="D13"),
    Mutant(
        "no stage 1",
        "choose",
        "in range(4):",
        "in (0, 2, 3):",
        {"c3-all"},
        "break ties by the stage that shards least",
        origin="D13",
    ),
    Mutant(
        "the most of equals",
        "choose",
        "in range(4):",
        "in (2, 1, 0, 3):",
        {"c3-all"},
        "you take the one that shards most",
    ),
    Mutant("3 where nothing fits", "choose", 'return "none"', "return 3", MANY, "check whether stage 3 fits"),
    Mutant(
        "4 where nothing fits", "choose", 'return "none"', "return 4", CHOSEN, "the answers are 0, 1, 2, 3 and 'none'"
    ),
    Mutant(
        "a is sharded",
        "by-hand",
        "return 0, 3, 1",
        "return 3, 3, 1",
        {"d1-model-a"},
        "pays 1.5 times the bytes for nothing",
    ),
    Mutant(
        "a is half sharded", "by-hand", "return 0, 3, 1", "return 1, 3, 1", {"d1-model-a"}, "break ties by the stage"
    ),
    Mutant(
        "b is replicated",
        "by-hand",
        "return 0, 3, 1",
        "return 0, 0, 1",
        {"d2-model-b"},
        "490 GB of 80 GB, optimizer state 360",
        origin="D08",
    ),
    Mutant(
        "b cannot be trained",
        "by-hand",
        "return 0, 3, 1",
        'return 0, "none", 1',
        {"d2-model-b"},
        "stage 3 fits: it needs 72 GB",
    ),
    Mutant("c is replicated", "by-hand", "return 0, 3, 1", "return 0, 3, 0", {"d3-model-c"}, "optimizer state 84 GB"),
    Mutant(
        "one answer",
        "by-hand",
        "return 0, 3, 1",
        "return 0",
        {"d1-model-a", "d2-model-b", "d3-model-c"},
        "return three stages",
    ),
    Mutant(
        "names",
        "by-hand",
        "return 0, 3, 1",
        "return 0, 'FSDP', 1",
        {"d2-model-b"},
        "the answers are 0, 1, 2, 3 and 'none'",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.slip for mutant in MUTANTS])
def test_a_wrong_answer_is_refused_in_words_that_name_the_slip(mutant):
    assert_refused(EXERCISE, mutant, with_slip(EXERCISE, mutant, times=1))


@pytest.mark.parametrize("words", ch10_fsdp.SLIPS)
def test_a_slip_that_explains_every_choice_is_named(words):
    cases = ch10_fsdp.random_cases(seed=10)
    with pytest.raises(NotYet) as refusal:
        ch10_fsdp.check_choice(lambda *case: ch10_fsdp.SLIPS[words](*case), cases, share=1)
    assert str(refusal.value).endswith(words)


@pytest.mark.parametrize(
    "given, words",
    [
        (None, "on 8 ranks of 80 GB, returns None; is its `return` missing?"),
        (4, "returns 4, but the answers are 0, 1, 2, 3 and 'none'"),
        (1.5, "returns 1.5, but the answers are"),
        ("fsdp", "returns 'fsdp', but the answers are"),
        ([3], "returns [3], but the answers are"),
    ],
)
def test_a_choice_that_is_none_of_the_answers_is_told_of_plainly(given, words):
    with pytest.raises(NotYet) as refusal:
        ch10_fsdp.check_choice(lambda *_: given, [(ch10_fsdp.THREE_MODELS["a"], ch10_fsdp.EIGHT_80GB)], share=0.5)
    assert words in str(refusal.value)


def test_bytes_that_differ_only_as_floats_are_told_of():
    def sent(model, world_size, stage):
        size = model["num_params"] * ch10_fsdp.RECIPES[model["recipe"]].parameters
        once = size * (world_size - 1) / world_size
        return 2 * size * (1 - 1 / world_size) if stage == 0 else (3 if stage == 3 else 2) * once

    def choose(model, machine):
        return min(stages(model, machine), key=lambda stage: sent(model, machine["world_size"], stage), default="none")

    def stages(model, machine):
        room = machine["memory_gb"] * 1e9
        return [s for s in ch10_fsdp.STAGES if ch10_fsdp.needs(model, machine["world_size"], s).total <= room]

    cases = ch10_fsdp.random_cases(seed=2009, of_each=20)
    ch10_fsdp.check_choice(choose, cases, share=1, ties=True)
    with pytest.raises(NotYet, match="may differ in the last digit"):
        ch10_fsdp.check_choice(choose, cases, share=1)


def test_no_two_slips_look_the_same():
    cases = ch10_fsdp.random_cases(seed=10)
    chosen = {words: [other(*case) for case in cases] for words, other in ch10_fsdp.SLIPS.items()}
    assert all(chosen[one] != chosen[other] for one, other in combinations(chosen, 2))


def test_the_table_of_a_wrong_choice_marks_what_does_not_fit(monkeypatch):
    shown = []
    monkeypatch.setattr(ch10_fsdp, "show", shown.append)
    model, node = ch10_fsdp.THREE_MODELS["c"], ch10_fsdp.EIGHT_80GB
    with pytest.raises(NotYet, match=r"stage 0 does not fit: it needs 122 GB of 80 GB, optimizer state 84 GB"):
        ch10_fsdp.check_choice(lambda model, machine: 0, [(model, node)], share=1)
    assert "122!" in repr(shown[0])
    assert shown[0]._repr_html_().count("!</td>") == 1


@pytest.mark.parametrize("seed", [10, 2007, 2008, 2009])
def test_every_answer_is_right_equally_often_and_rounding_decides_none(seed):
    cases = ch10_fsdp.random_cases(seed, of_each=20)
    assert Counter(ch10_fsdp.lightest(*case) for case in cases) == dict.fromkeys([0, 1, 2, 3, "none"], 20)
    for model, machine in cases:
        assert model["num_params"] % machine["world_size"] == 0
        for stage in ch10_fsdp.STAGES:
            room = machine["memory_gb"] * 1e9 / ch10_fsdp.needs(model, machine["world_size"], stage).total
            assert not math.isclose(room, 1, rel_tol=0.004)


@pytest.mark.parametrize("seed", [10, 2007, 2008, 2009])
def test_points_follow_the_share_of_right_choices(seed):
    """A constant gets nothing; what is nearly right gets c1; only the tie-break is left to c3."""

    def passed(words):
        answered = ch10_fsdp.SLIPS[words]
        cases = ch10_fsdp.random_cases(seed, of_each=20)
        right = [[not ch10_fsdp.why_wrong(*case, answered(*case), ties) for case in cases] for ties in (False, True)]
        shares = [sum(each) / len(cases) for each in right]
        return [shares[0] >= 0.5, shares[1] >= 0.95, shares[0] == 1]

    for words in ch10_fsdp.SLIPS:
        if "every answer" in words or "fully wherever" in words:
            assert passed(words) == [False, False, False]
        elif "shards most" in words:
            assert passed(words) == [True, True, False]
        else:
            assert not any(passed(words)[1:]), words


@pytest.mark.parametrize("stage", ch10_fsdp.STAGES)
@pytest.mark.parametrize("recipe", ch10_fsdp.RECIPES)
def test_what_is_counted_on_schedules_is_what_the_library_says_of_a_step(stage, recipe):
    for world_size in (2, 3, 4, 8):
        model = {"num_params": 24_000, "recipe": recipe, "block_params": 240, "activation_gb": 0}
        counted = ch10_fsdp.counted_sent(24_000, world_size, stage, recipe)
        assert math.isclose(counted, ch10_fsdp.sends(model, world_size, stage))
        assert traffic.PASSES.keys() >= {name for name, _ in traffic.COLLECTIVES[stage]}


def test_a_need_is_what_rests_there_and_one_block_of_what_is_sharded():
    model = {"num_params": 800, "recipe": "mixed", "block_params": 10, "activation_gb": 1e-9}
    for stage, block in enumerate((0, 0, 10 * 2, 10 * 4)):
        rest = memory.at_rest(800, 8, stage).total
        assert ch10_fsdp.needs(model, 8, stage).total == rest + block + 1


@pytest.mark.parametrize("stage", [2, 3])
def test_the_block_that_is_whole_is_what_real_ranks_hold_at_their_peak(stage):
    """`memory.at_peak` is measured tensor by tensor; here no tensor is larger than a rank's share of a block."""
    blocks, world_size = [[4] * 60] * 20, 8
    model = {"num_params": 240 * 20, "recipe": "mixed", "block_params": 240, "activation_gb": 0}
    assert ch10_fsdp.needs(model, world_size, stage).total == memory.at_peak(blocks, world_size, stage).total


def test_three_models_call_for_three_stages():
    """Exercise 4.5.3: replicate, shard, half-shard."""
    chosen = [ch10_fsdp.lightest(model, ch10_fsdp.EIGHT_80GB) for model in ch10_fsdp.THREE_MODELS.values()]
    assert chosen == [0, 3, 1]
