"""Checks for exercise 10: what a rank holds and sends at each ZeRO stage, and which stage fits a machine.

The reference values come from `training.memory`, `training.traffic` and the bytes that ring schedules send. A **model**
and a **machine** are plain dicts, in the form that the learner's functions receive:

    model = {"num_params": 7_000_000_000, "recipe": "mixed", "block_params": 200_000_000, "activation_gb": 10}
    machine = {"world_size": 8, "memory_gb": 80}
"""

from __future__ import annotations

import html
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import Any, NamedTuple

from ..algorithms import ring
from ..training import memory, traffic
from .checks import (
    Answered,
    NotYet,
    answer,
    brief,
    call_in_words,
    check_formula,
    check_rows,
    number_of,
    sent_by_a_rank,
    show,
)

Model = Mapping[str, Any]
Machine = Mapping[str, Any]
StageChoice = int | str  # a stage, or NONE

GB = 1e9
NONE = "none"  # the answer where no stage fits
STAGES = tuple(memory.STAGES)
RECIPES = {"mixed": memory.MIXED_ADAM, "full": memory.FULL_ADAM}
SHARDED_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}  # the first stage that shards each

EIGHT_80GB = {"world_size": 8, "memory_gb": 80}
THREE_MODELS = {
    "a": {"num_params": 1_000_000_000, "recipe": "mixed", "block_params": 50_000_000, "activation_gb": 8},
    "b": {"num_params": 30_000_000_000, "recipe": "mixed", "block_params": 500_000_000, "activation_gb": 10},
    "c": {"num_params": 7_000_000_000, "recipe": "mixed", "block_params": 200_000_000, "activation_gb": 10},
}


class Need(NamedTuple):
    """Bytes that a rank needs at its peak: its own share, the block that is gathered whole, and activations."""

    parameters: float
    gradients: float
    optimizer: float
    whole: float
    activations: float

    @property
    def total(self) -> float:
        """Return the sum of all parts, in bytes."""
        return sum(self)


IN_WORDS = ("parameters", "gradients", "optimizer state", "one block whole", "activations")  # the parts of a `Need`


def needs(model: Model, world_size: int, stage: int) -> Need:
    """Return what a rank needs at its peak, in bytes.

    A rank always holds its shares (`memory.at_rest`). On top of them, the block in work holds whole the parameters and
    gradients that the stage shards. From stage 2 on this equals `memory.at_peak` if no tensor is large.
    """
    recipe, block = RECIPES[model["recipe"]], model["block_params"]
    held = memory.at_rest(model["num_params"], world_size, stage, recipe)
    whole = (recipe.gradients * block if stage >= SHARDED_FROM["gradients"] else 0) + (
        recipe.parameters * block if stage >= SHARDED_FROM["parameters"] else 0
    )
    return Need(*held, whole, model["activation_gb"] * GB)


def sends(model: Model, world_size: int, stage: int) -> float:
    """Return the bytes that a rank sends in a step."""
    payloads = traffic.step(model["num_params"], stage, RECIPES[model["recipe"]].parameters)
    return traffic.sent(payloads, world_size)


def _total(model: Model, world_size: int, stage: int) -> float:
    return needs(model, world_size, stage).total


def lightest(
    model: Model,
    machine: Machine,
    needed: Callable[[Model, int, int], float] = _total,
    gb: float = GB,
    stages: Iterable[int] = STAGES,
    sign: int = 1,
) -> StageChoice:
    """Return the stage that fits and sends the fewest bytes, or `NONE`. Ties go to the stage that shards least.

    The other parameters model a learner's mistakes. `needed` counts other bytes, `gb` is the size of a gigabyte,
    `stages` leaves some stages out, and a `sign` of -1 breaks ties in favor of the stage that shards most.
    """
    world_size = machine["world_size"]
    fits = [stage for stage in stages if needed(model, world_size, stage) <= machine["memory_gb"] * gb]
    return min(fits, key=lambda stage: (sends(model, world_size, stage), sign * stage), default=NONE)


# Part a: what a rank holds


def check_held(function: Callable, part: str, sizes: Iterable[tuple]) -> None:
    """Check that `function(num_params, world_size, stage, recipe)` returns the bytes of `part`, a field of `Held`.

    `sizes`: (num_params, world_size, recipe). Each is checked at every stage.
    """
    rows = []
    for num_params, world_size, recipe in sizes:
        for stage in STAGES:
            case = num_params, world_size, stage, recipe
            call = call_in_words(function, case)
            got = number_of(answer(function, *case), call)
            want = getattr(memory.at_rest(num_params, world_size, stage, RECIPES[recipe]), part)
            words = f"{call} returns {got:,.12g}, but a rank holds {want:,} bytes"
            rows.append(Answered(words, got, want, _held_slips(part, want, *case)))
    check_rows(rows, words=lambda row: row.call)


def _bytes_each(recipe: memory.Recipe) -> int:
    """Return the bytes of one parameter, its gradient and its optimizer state together."""
    return memory.at_rest(1, 1, 0, recipe).total


def _held_slips(part: str, want: float, num_params: int, world_size: int, stage: int, recipe: str) -> dict[str, float]:
    """Return the usual mistakes in the bytes of a `part`, each with the number that it gives."""
    first, itemsize = SHARDED_FROM[part], getattr(RECIPES[recipe], part)

    def held(itemsize: float = itemsize, since: int = first, shares: int = world_size) -> float:
        return itemsize * num_params / (shares if stage >= since else 1)

    slips = {
        "these are elements, not bytes": held(1),
        "this is in GB; return bytes": want / GB,
        "these are bits, not bytes": 8 * want,
        f"this is whole at every stage; from stage {first} on a rank keeps a share of it": held(since=4),
        "this divides at every stage; at stage 0 every rank holds everything": held(since=0),
        "this divides by P - 1: each of the P ranks keeps a share, so a share is 1/P": held(shares=world_size - 1),
        f"this divides from stage {first - 1} on; which stage shards the {part}?": held(since=first - 1),
        f"this divides from stage {first + 1} on; which stage shards the {part}?": held(since=first + 1),
    }
    if part != "optimizer":
        return slips | {
            "this counts 4 bytes each in both recipes; a number in bfloat16 has 2": held(4),
            "this counts 2 bytes each in both recipes; a number in float32 has 4": held(2),
        }
    whole_cost = _bytes_each(RECIPES[recipe])
    return slips | {
        "16 bytes are what a parameter costs in all; count only the optimizer state": held(whole_cost),
        "the float32 copy of the parameters is the optimizer's too: it is missing": held(RECIPES[recipe].moments),
        "this has a copy of the parameters in both recipes; in `full` they are in float32 themselves": held(12),
        "this has one moment; Adam keeps two": held(itemsize - 4),
        "this counts 2 bytes a number; the optimizer's numbers are in float32": held(itemsize / 2),
        "this counts the optimizer's numbers, 4 bytes each": held(itemsize / 4),
    }


def check_peak(function: Callable, cases: Iterable[tuple[Model, int]]) -> None:
    """Check that `function(model, world_size, stage)` is a rank's peak in bytes. `cases`: (model, world_size)."""
    rows = []
    for model, world_size in cases:
        for stage in STAGES:
            call = f"{function.__name__}(model, {world_size}, {stage}), for {described(model)},"
            got = number_of(answer(function, dict(model), world_size, stage, call=call), call)
            need = needs(model, world_size, stage)
            words = f"{call} returns {got / GB:,.6g} GB, but a rank needs {need.total / GB:,.6g} GB, {_parts(need)}"
            rows.append(Answered(words, got, need.total, _peak_slips(need, model, world_size, stage)))
    check_rows(rows, words=lambda row: row.call)


def _peak_slips(need: Need, model: Model, world_size: int, stage: int) -> dict[str, float]:
    """Return the usual mistakes in a peak, each with the number of bytes that it gives."""
    recipe, block, activation_gb = RECIPES[model["recipe"]], model["block_params"], model["activation_gb"]
    gradients = recipe.gradients * block if stage >= 2 else 0
    both = (recipe.gradients + recipe.parameters) * block

    def total(**parts: float) -> float:
        return need._replace(**parts).total

    # Wrong sizes of one part each, in bytes.
    in_gib = activation_gb * 2**30
    both_from_2 = both if stage >= 2 else 0
    both_from_3 = both if stage >= 3 else 0
    block_of_others = need.whole * (world_size - 1) / world_size
    block_elements = block * ((stage >= 2) + (stage >= 3))
    params_sharded_at_2 = needs(model, world_size, 3 if stage == 2 else stage).parameters
    all_16_bytes = need.optimizer * _bytes_each(recipe) / recipe.optimizer
    moments_only = need.optimizer * recipe.moments / recipe.optimizer

    return {
        "the block that is whole for a while is missing": total(whole=0),
        "the activations are missing (activation_gb is in GB: times 1e9)": total(activations=0),
        "both the activations and the block that is whole for a while are missing": total(activations=0, whole=0),
        "activation_gb is in GB, 1e9 bytes; this takes GiB, 2**30": total(activations=in_gib),
        "this is in GB; return bytes": need.total / GB,
        "activations are each rank's own: no stage shards them": total(activations=need.activations / world_size),
        "the block's gradients are missing": total(whole=need.whole - gradients),
        "the block's parameters are missing": total(whole=gradients),
        "at stage 2 every rank holds all parameters, so add only the block's gradients": total(whole=both_from_2),
        "at stage 2 the gradients are sharded too: the block's are whole for a while": total(whole=both_from_3),
        "add the block only to what is sharded; what is held whole contains it already": total(whole=both),
        "add the whole block to the shares: the rank's own share of it is there twice": total(whole=block_of_others),
        "the parameters are not sharded at stage 2": total(parameters=params_sharded_at_2),
        "16 bytes are what a parameter costs in all; the optimizer's part is less": total(optimizer=all_16_bytes),
        "the optimizer's copy of the parameters in float32 is missing": total(optimizer=moments_only),
        "block_params are elements; how many bytes does each take?": total(whole=block_elements),
    }


# Part b: what a rank sends


def check_sent(function: Callable, sizes: Iterable[tuple], stages: Iterable[int]) -> None:
    """Check that `function(num_params, world_size, stage, recipe)` is the bytes a rank sends in a step, at `stages`.

    `sizes`: (num_params, world_size, recipe). The right number is counted on the schedules of each stage's collectives.
    """
    cases = [(params, ranks, stage, recipe) for params, ranks, recipe in sizes for stage in stages]
    check_formula(function, counted_sent, cases, _sent_slips)


def counted_sent(num_params: int, world_size: int, stage: int, recipe: str) -> int:
    """Return the bytes that rank 0 sends in the ring schedules of a step's collectives."""
    algorithms = [getattr(ring, name) for name, _ in traffic.COLLECTIVES[stage]]
    return sent_by_a_rank(*algorithms)(num_params, RECIPES[recipe].parameters, world_size)


def _sent_slips(want: float, num_params: int, world_size: int, stage: int, recipe: str) -> dict[str, float]:
    """Return the usual mistakes in the bytes of a step, each with the number that it gives."""
    itemsize = RECIPES[recipe].parameters
    once = (world_size - 1) / world_size * itemsize * num_params  # a reduce-scatter, or an all-gather
    without_factor = want * (world_size / (world_size - 1))

    def passes(*by_stage: float) -> float:
        """Return the bytes of so many passes round the ring. The right numbers are 2, 2, 2 and 3."""
        return by_stage[stage] * once

    scatter = "a rank needs only its share of the sum, so a reduce-scatter is enough"
    gathers = "it gathers its parameters before the forward pass and again before the backward pass"
    no_gather = "the next forward pass gathers what the update changed"
    return {
        "these are elements, not bytes": want / itemsize,
        "this is in GB; return bytes": want / GB,
        "these are bits, not bytes": 8 * want,
        "this leaves out the factor (P-1)/P: a rank never sends all of its P chunks": without_factor,
        "this counts all ranks together; count one rank": want * world_size,
        "this counts 4 bytes each in both recipes; a number in bfloat16 has 2": want / itemsize * 4,
        "this counts 2 bytes each in both recipes; a number in float32 has 4": want / itemsize * 2,
        f"stages 1 and 2 do not all-reduce: {scatter}": passes(2, 3, 3, 3),
        f"stage 1 does not all-reduce: {scatter}": passes(2, 3, 2, 3),
        "stages 1 and 2 must also share the updated parameters: an all-gather is missing": passes(2, 1, 1, 3),
        "an all-reduce is a reduce-scatter and an all-gather; this counts it once": passes(1, 2, 2, 3),
        f"stage 3 does not move what stage 0 moves: {gathers}": passes(2, 2, 2, 2),
        "stage 3 gathers its parameters twice; this counts its reduce-scatter only": passes(2, 2, 2, 1),
        f"stage 3 does not all-reduce, and {no_gather}: this counts one collective too many": passes(2, 2, 2, 4),
        "`//` has rounded a fraction below 1 down to 0": 0,
    }


# Part c: the choice


def check_choice(function: Callable, cases: Iterable[tuple[Model, Machine]], share: float, ties: bool = False) -> None:
    """Check that at least a `share` of the choices `function(model, machine)` are right.

    The right choice is `lightest`. With `ties`, any stage that fits and sends as few bytes is right too. The error
    names the first wrong choice and its reason, and the mistake that explains all choices if there is one. A table
    shows what that model needs at every stage.
    """
    cases = list(cases)
    chosen = [_chosen(function, model, machine) for model, machine in cases]
    wrong = [index for index, case in enumerate(cases) if why_wrong(*case, chosen[index], ties)]
    right = len(cases) - len(wrong)
    if right >= share * len(cases):
        return
    model, machine = cases[wrong[0]]
    show(NeedsTable(model, machine))
    count = f"{right} of {len(cases)} choices are right; this check needs {math.ceil(share * len(cases))}"
    slip = next((words for words, other in SLIPS.items() if [other(*case) for case in cases] == chosen), "")
    if not slip and not any(why_wrong(*cases[index], chosen[index], ties=True) for index in wrong):
        slip = "equal numbers of bytes may differ in the last digit as floats; `round` them before you compare"
    raise NotYet(
        f"a model of {described(model)}, on {_machine(machine)}: {function.__name__} returns {chosen[wrong[0]]!r}, but "
        f"{why_wrong(model, machine, chosen[wrong[0]], ties)}. {count}{slip and f': {slip}'}"
    )


def check_stage(function: Callable, which: str) -> None:
    """Check the stage that `function()` returns for one of the `THREE_MODELS`: "a", "b" or "c"."""
    stages = answer(function)
    if not isinstance(stages, tuple | list) or len(stages) != len(THREE_MODELS):
        raise NotYet(f"{function.__name__}() returns {brief(stages)}; return three stages, for a, b and c")
    model, chosen = THREE_MODELS[which], _as_choice(stages[list(THREE_MODELS).index(which)])
    if chosen is None:
        raise NotYet(f"{function.__name__}() returns {brief(stages)}, but {_NAMES}")
    if reason := why_wrong(model, EIGHT_80GB, chosen):
        raise NotYet(f"model {which}, of {described(model)}: you say {chosen!r}, but {reason}")


_NAMES = f"the answers are {', '.join(map(str, STAGES))} and {NONE!r}"


def _chosen(function: Callable, model: Model, machine: Machine) -> StageChoice:
    call = f"{function.__name__}(model, machine) for {described(model)}, on {_machine(machine)},"
    returned = answer(function, dict(model), dict(machine), call=call)
    chosen = _as_choice(returned)
    if chosen is None:
        raise NotYet(f"{call} returns {brief(returned)}, but {_NAMES}")
    return chosen


def _as_choice(returned: Any) -> StageChoice | None:
    """Return a learner's answer as a stage or `NONE`; None if it is neither."""
    if isinstance(returned, str):
        return returned if returned == NONE else None
    try:
        return operator.index(returned) if operator.index(returned) in STAGES else None
    except TypeError:
        return None


def why_wrong(model: Model, machine: Machine, chosen: StageChoice, ties: bool = False) -> str:
    """Return why this choice is wrong, in words; "" if it is right."""
    best, world_size = lightest(model, machine), machine["world_size"]
    if chosen == best:
        return ""
    if isinstance(chosen, str):
        assert not isinstance(best, str)  # it differs from the choice
        return f"stage {best} fits: it needs {_of(needs(model, world_size, best), machine)}"
    need = needs(model, world_size, chosen)
    if need.total > machine["memory_gb"] * GB:
        largest = max(range(len(need)), key=lambda index: need[index])
        nothing = "; nor does any other" if best == NONE else ""
        needed = f"it needs {_of(need, machine)}, {IN_WORDS[largest]} {_gb(need[largest])} GB"
        return f"stage {chosen} does not fit: {needed}{nothing}"
    assert not isinstance(best, str)  # the chosen stage fits
    fits = f"stage {best} fits already: it needs {_of(needs(model, world_size, best), machine)}"
    times = sends(model, world_size, chosen) / sends(model, world_size, best)
    if times > 1:
        return f"{fits}, so memory binds no further; stage {chosen} pays {times:.3g} times the bytes for nothing"
    return "" if ties else f"{fits}, and sends as many bytes: break ties by the stage that shards least"


def _without(*parts: str) -> Callable[[Model, int, int], float]:
    """Return a function that gives the bytes needed without these `parts` of a `Need`."""
    return lambda *case: needs(*case)._replace(**dict.fromkeys(parts, 0)).total


def _other_optimizer(factor: Callable[[memory.Recipe], float]) -> Callable[[Model, int, int], float]:
    """Return a function that gives the bytes needed if the optimizer state were `factor(recipe)` times as large."""

    def needed(model: Model, world_size: int, stage: int) -> float:
        need = needs(model, world_size, stage)
        return need._replace(optimizer=need.optimizer * factor(RECIPES[model["recipe"]])).total

    return needed


def _parameters_divided_at_2(model: Model, world_size: int, stage: int) -> float:
    shared = needs(model, world_size, 3 if stage == 2 else stage).parameters
    return needs(model, world_size, stage)._replace(parameters=shared).total


def _three_for_none(model: Model, machine: Machine) -> StageChoice:
    best = lightest(model, machine)
    return 3 if best == NONE else best


# What a learner may count instead of `needs`.
_PARAMETERS_ONLY = _without("gradients", "optimizer", "whole", "activations")
_MOMENTS_ONLY = _other_optimizer(lambda recipe: recipe.moments / recipe.optimizer)
_ALL_16_BYTES = _other_optimizer(lambda recipe: _bytes_each(recipe) / recipe.optimizer)

SLIPS: dict[str, Callable[[Model, Machine], StageChoice]] = {
    "every answer is 3, which saves memory even where there is enough": lambda *_: 3,
    "every answer is 0, which sends the least but does not always fit": lambda *_: 0,
    "every answer is 'none'; do you compare bytes with bytes (memory_gb times 1e9)?": lambda *_: NONE,
    "you know two stages only, 0 and 3; there are two between them": partial(lightest, stages=(0, 3)),
    "you shard fully wherever that fits; do you need to?": partial(lightest, stages=(3,)),
    "among stages that send the same you take the one that shards most": partial(lightest, sign=-1),
    "where nothing fits you answer 3; check whether stage 3 fits": _three_for_none,
    "memory_gb is in GB, 1e9 bytes; you take GiB, 2**30": partial(lightest, gb=2**30),
    "you leave out the block that is whole for a while": partial(lightest, needed=_without("whole")),
    "you leave out the activations": partial(lightest, needed=_without("activations")),
    "you leave out activations and the whole block": partial(lightest, needed=_without("activations", "whole")),
    "you count the parameters only": partial(lightest, needed=_PARAMETERS_ONLY),
    "you leave out the optimizer state": partial(lightest, needed=_without("optimizer")),
    "you divide the parameters at stage 2 already": partial(lightest, needed=_parameters_divided_at_2),
    "you leave out the optimizer's copy of the parameters": partial(lightest, needed=_MOMENTS_ONLY),
    "you count 16 bytes a parameter for the optimizer alone; that is the whole cost": partial(
        lightest, needed=_ALL_16_BYTES
    ),
}
"""Mistakes in words, and the choice that each leads to."""


# Words, and a table


def described(model: Model) -> str:
    """Return a model in words, such as "7B parameters (mixed, blocks of 0.2B, activations 10 GB)"."""
    params, block = (f"{model[name] / 1e9:.4g}B" for name in ("num_params", "block_params"))
    details = f"{model['recipe']}, blocks of {block}, activations {model['activation_gb']:g} GB"
    return f"{params} parameters ({details})"


def _machine(machine: Machine) -> str:
    return f"{machine['world_size']} ranks of {machine['memory_gb']:g} GB"


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / GB:.4g}"


def _of(need: Need, machine: Machine) -> str:
    return f"{_gb(need.total)} GB of {machine['memory_gb']:g} GB"


def _parts(need: Need) -> str:
    """Return the parts of a need in words."""
    return ", ".join(f"{words} {_gb(part)}" for words, part in zip(IN_WORDS, need, strict=True) if part)


class NeedsTable:
    """A table of what every stage needs and sends for one model on one machine, in GB. A ! marks what does not fit."""

    def __init__(self, model: Model, machine: Machine):
        world_size, limit = machine["world_size"], machine["memory_gb"] * GB
        self.caption = f"{described(model)}, on {_machine(machine)}: GB a rank"
        self.rows = [["stage", *IN_WORDS, "together", "sent in a step"]]
        for stage, name in memory.STAGES.items():
            need = needs(model, world_size, stage)
            together = _gb(need.total) + ("!" if need.total > limit else "")
            sent = _gb(sends(model, world_size, stage))
            self.rows.append([f"{stage} {name}", *map(_gb, need), together, sent])

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in self.rows]
        return "\n".join([self.caption, *lines])

    def _repr_html_(self) -> str:
        padding, red = "padding: .1rem .6rem; text-align: right", "outline: 2px solid #d1242f; font-weight: bold"
        lines = [
            "".join(
                f'<td style="{padding}{"; " + red if cell.endswith("!") else ""}">{html.escape(cell)}</td>'
                for cell in row
            )
            for row in self.rows
        ]
        rows = "".join(f"<tr>{line}</tr>" for line in lines)
        return (
            f"<p>{html.escape(self.caption)}. Red and !: does not fit.</p>"
            f'<table style="border-collapse: collapse; color: inherit">{rows}</table>'
        )


# Models and machines, at random


def random_sizes(seed: int, how_many: int = 8) -> list[tuple]:
    """Return sizes (num_params, world_size, recipe) for formulas; `world_size` divides `num_params`."""
    random = Random(seed)
    sizes = [random.randint(3, 64) for _ in range(how_many)]
    return [(size * random.randint(10**5, 10**9), size, list(RECIPES)[index % 2]) for index, size in enumerate(sizes)]


def random_models(seed: int, how_many: int = 8) -> list[tuple[Model, int]]:
    """Return `how_many` pairs (model, world_size) for peaks."""
    random = Random(seed)
    return [_random_model(random) for _ in range(how_many)]


def random_cases(seed: int, of_each: int = 10) -> list[tuple[Model, Machine]]:
    """Return models and machines to choose for, in random order. Every right answer occurs `of_each` times.

    One case in three is close: a stage fits, or just fails to fit, by 1 to 6 percent. The margin is never below half a
    percent, so rounding decides nothing.
    """
    random = Random(seed)
    cases: list[tuple[Model, Machine]] = []
    choices: list[StageChoice] = [*STAGES, NONE]
    for right in choices:
        count = 0
        while count < of_each:
            model, world_size = _random_model(random)
            need = [_total(model, world_size, stage) for stage in STAGES]
            limit = _memory_for(right, need, near=count % 3 == 0, random=random)
            machine = {"world_size": world_size, "memory_gb": float(f"{limit / GB:.3g}")}
            clear = all(abs(machine["memory_gb"] * GB / each - 1) > 0.005 for each in need)
            usual = 8 <= machine["memory_gb"] <= 200
            if usual and clear and lightest(model, machine) == right:
                cases.append((model, machine))
                count += 1
    random.shuffle(cases)
    return cases


def _memory_for(right: StageChoice, need: list[float], near: bool, random: Random) -> float:
    """Return bytes of memory for which `right` may be the answer. `need`: bytes by stage."""
    tight = random.uniform(1.01, 1.06)
    if right == 0:
        return need[0] * (tight if near else random.uniform(1.06, 3))
    lighter = min(need if isinstance(right, str) else need[:right])
    if near:
        return lighter / tight
    return random.uniform(lighter / 3 if isinstance(right, str) else need[right], lighter)


def _random_model(random: Random) -> tuple[Model, int]:
    world_size = random.choice((2, 3, 4, 6, 8, 16, 32, 64))
    num_params = int(float(f"{10 ** random.uniform(9, 11.5) / world_size:.3g}")) * world_size
    recipe = random.choice(list(RECIPES))
    rest = memory.at_rest(num_params, world_size, 3, RECIPES[recipe]).total
    return {
        "num_params": num_params,
        "recipe": recipe,
        "block_params": int(float(f"{num_params * 10 ** random.uniform(-2, -0.7):.2g}")),
        "activation_gb": float(f"{rest * random.uniform(0.1, 1) / GB:.2g}"),
    }, world_size
