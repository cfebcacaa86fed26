"""A library's function, read with symbols, gives as a program what a direct call gives; what cannot be read says so."""

import json
import math
from collections import namedtuple
from functools import partial

import numpy as np
import pytest

from collectives.algorithms.scorecard import ROWS
from collectives.formula import MAX_PATHS, FormulaError, Program, Symbol, log2, maximum, minimum, named, read, where
from collectives.training.memory import RECIPES, STAGES, at_rest


def program_of(formula, names, *outputs):
    """The program of `formula` with a symbol for each argument in `names`, as a function of their values."""
    program = Program(len(names))
    found = read(program, formula, dict(zip(names, program.symbols(), strict=True)), partial(named, names=outputs))
    json.dumps(program.lines, allow_nan=False)  # plain data
    return lambda *values: [program.run(values)[symbol.place] for symbol in found.values()]


def everything(x, y):
    """Every operation of the subset, an `if`, the built-ins, and a check that raises on one side."""
    if y > 40:
        raise ValueError(f"y is at most 40, not {y:,}")
    return {
        "sums": x + y - 2 * x + 3 - y / 4 + +x,
        "divided": 7 / (x + 0.5) + (5 - x) * 2**y,
        "whole": x // y + -(-x // y) + x % y + 100 // y + 100 % y,
        "divmod": divmod(x, y)[0] * 1000 + divmod(x, y)[1],
        "rounded": math.ceil(x / 3) + math.floor(x / 3) + abs(y - x),
        "chosen": max(x, y, 10) - min(x, y) + maximum(x, 3) + minimum(4, y) + (1 if 2 <= x < y else 5),
        "compared": (x < y) + 2 * (x <= y) + 4 * (x > y) + 8 * (x >= y) + 16 * (x == y) + 32 * (x != y),
        "where": where(x > y, x**2, log2(y)) + np.float64(2) * x + np.int64(3),
        "bits": x.bit_length() * 100 + (y - 1).bit_length() if y != 1 else x,
    }


GRID = [(x, y) for x in (1, 2, 3, 7, 8, 1000, 2**40 + 1) for y in (1, 2, 5, 8, 40)]


def test_every_operation_gives_what_python_gives():
    """Exactly, at every point of a grid of whole numbers; beyond its own check a formula is undefined."""
    names = list(everything(1, 1))
    run = program_of(everything, ["x", "y"], *names)
    for x, y in GRID:
        assert run(x, y) == list(everything(x, y).values())
    assert all(math.isnan(value) for value in run(1, 41))


def test_memory_at_rest_is_read_as_it_stands():
    """All stages and recipes: the same bytes as a direct call, at sizes that divide and sizes that do not."""
    for stage in STAGES:
        for recipe in RECIPES:
            formula = partial(at_rest, stage=stage, recipe=recipe)
            run = program_of(formula, ["num_parameters", "world_size"], "parameters", "gradients", "optimizer", "total")
            for size in (1, 1001, 7_500_000_000, 10**12):
                for ranks in (1, 3, 64, 1000):
                    held = formula(size, ranks)
                    assert run(size, ranks) == [*held, held.total]


def test_the_scorecard_s_formulas_are_read_as_they_stand_where_they_are_arithmetic():
    """With their (P - 1).bit_length() and their `if`s; those that ask for whole numbers' own functions say so."""
    Three = namedtuple("Three", "alpha beta gamma")
    read_so_far = 0
    for row in ROWS:
        try:
            run = program_of(lambda P, row=row: Three(*row.closed_form(P)), ["P"], *Three._fields)
        except FormulaError as error:
            assert "tabulated=True" in str(error)
            continue
        read_so_far += 1
        for ranks in filter(row.takes, range(2, 40)):
            assert run(ranks) == pytest.approx(list(row.closed_form(ranks)), rel=1e-15)
    assert read_so_far >= len(ROWS) // 2


def test_the_same_work_is_written_once():
    program = Program(1)
    (x,) = program.symbols()
    assert (x * 2 + 1).place == (x * 2 + 1).place
    assert program.lines == [2, ["*", 0, 1], 1, ["+", 2, 3]]


REFUSED = {
    "math": (lambda x: math.log2(x), "a function of math"),
    "int": (lambda x: int(x / 2), "int()"),
    "round": (lambda x: round(x), "round()"),
    "range": (lambda x: sum(range(x)), "range()"),
    "gcd": (lambda x: math.gcd(x, 4), "tabulated=True"),
    "numpy": (lambda x: np.log2(x), "collectives.formula"),
    "list": (lambda x: x + "1", "str"),
    "attribute": (lambda x: x.shape, "shape"),
    "text": (lambda x: "many", "'many'"),
    "infinite": (lambda x: x + math.inf, "inf"),
    "key": (lambda x: {1: 2}[x], "unhashable"),
    "loop": (lambda x: next(k for k in range(10**6) if 3**k > x), f"more than {MAX_PATHS} ways"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_written_down_is_named(what):
    """Not a wrong formula, and not a hang: a FormulaError, which is a ValueError, that says what and what to do."""
    formula, named = REFUSED[what]
    with pytest.raises(FormulaError) as error:
        program_of(lambda x: {"y": formula(x)}, ["x"], "y")
    assert named in str(error.value)


def test_a_missing_output_is_named_and_an_error_of_all_branches_is_raised():
    with pytest.raises(FormulaError, match="no 'total'"):
        program_of(lambda x: {"y": x}, ["x"], "total")
    with pytest.raises(ValueError, match="never"):
        program_of(lambda x: (_ for _ in ()).throw(ValueError("never")), ["x"], "y")


def test_helpers_work_on_numbers_too():
    assert [log2(8), minimum(2, 3), maximum(2, 3), where(True, 1, 2), where(0, 1, 2)] == [3, 2, 3, 1, 2]
    assert not isinstance(minimum(2, 3), Symbol)
