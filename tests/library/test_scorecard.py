"""The scorecard's table shows what is counted, and marks what nobody can better."""

import pytest

from collectives.algorithms.scorecard import ROWS, coefficients, lower_bounds, markdown


@pytest.mark.parametrize("world_size", [1, 8, 13])
def test_the_table_has_a_row_for_every_algorithm_that_takes_so_many_ranks(world_size):
    lines = markdown(world_size).splitlines()
    shown = [line for line in lines[2:] if not line.startswith("| **")]
    expected = [row for row in ROWS if row.takes(world_size)]
    assert [line.split("|")[1].strip() for line in shown] == [row.name for row in expected]
    assert {line.strip("| *") for line in lines if line.startswith("| **")} == {
        row.algorithm(world_size).collective.replace("_", "-") for row in expected
    }


def test_a_coefficient_is_bold_exactly_where_it_is_at_its_lower_bound():
    rows = iter(row for row in ROWS if row.takes(13))
    for line in markdown(13).splitlines()[2:]:
        if line.startswith("| **"):
            continue
        schedule = next(rows).algorithm(13)
        cells = [cell.strip() for cell in line.split("|")[2:5]]
        counted, bounds = coefficients(schedule), lower_bounds(schedule.collective, 13)
        for cell, number, bound in zip(cells, counted, bounds, strict=True):
            assert cell.startswith("**") == (number > 0 and number <= bound * (1 + 1e-9))
            assert cell.strip("*").split(" ")[0] == (f"{number:.4g}" if number else "")
