"""Every check that runs ranks also does so with inputs that no rank can make alone for all the others."""

import importlib
import re
from pathlib import Path
from types import FunctionType

import pytest
from answers import cells_of, is_check

from collectives.practice import wall

MODULES = sorted((Path(__file__).parents[2] / "collectives" / "practice").glob("ch*_*.py"))


def runs_ranks(module, function, seen=()):
    """Whether a check runs ranks, by the names in its code and in that of the module's functions that it calls."""
    names = set(wall._names(function.__code__))
    own = [vars(module).get(name) for name in names - {*seen}]
    below = [each for each in own if isinstance(each, FunctionType) and each.__module__ == module.__name__]
    return bool({"run_on_ranks", "on_ranks", "Story"} & names or {"ranks", "run"} <= names) or any(
        runs_ranks(module, each, (*seen, *names)) for each in below
    )


def hidden_tests():
    """The hidden tests of the checks that run ranks, {exercise and check: source}."""
    found = {}
    for file in MODULES:
        module, exercise = importlib.import_module(f"collectives.practice.{file.stem}"), file.stem.removeprefix("ch")
        for cell in cells_of(exercise):
            called = [getattr(module, name, None) for name in re.findall(r"\bcheck_\w+", cell.source)]
            if cell.cell_type == "code" and is_check(cell) and any(runs_ranks(module, each) for each in called if each):
                found[f"{exercise} {cell.id}"] = cell.source.partition("### BEGIN HIDDEN TESTS")[2]
    return found


HIDDEN = hidden_tests()


def test_the_checks_that_run_ranks_are_found():
    found = sorted({int(name[:2]) for name in HIDDEN})
    assert found == [2, 3, 4, 6, 8, 9, 10, 11, 13, 14, 15, 17, 19]


@pytest.mark.parametrize("check", HIDDEN)
def test_ranks_get_inputs_that_they_cannot_make_for_one_another(check):
    """With a seed that all know, each rank makes all inputs, works alone, and sends what nobody reads."""
    assert "fresh()" in HIDDEN[check]
