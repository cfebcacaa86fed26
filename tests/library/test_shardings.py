"""Every sharding of Y = X W, with the collective that was derived for it, gives each rank its part of the product."""

from itertools import product

import numpy as np
import pytest

from collectives.training.shardings import AXES, PARTIAL, REPLICATED, Move, derive, derive_pair, every, laid_out, run

SIZES = {"rows": 12, "inner": 24, "columns": 36}
X = np.arange(12 * 24).reshape(12, 24)
W = np.arange(24 * 36).reshape(24, 36) - 400


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_each_of_the_27_layouts_yields_the_product_where_it_is_wanted(world_size):
    for (_, _, y), plan in every(SIZES, world_size).items():
        wanted = laid_out(Move("Y", y, y), X @ W, world_size)
        for have, want in zip(run(plan, X, W, world_size), wanted, strict=True):
            np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize(
    "wanted, collectives",
    {
        ("rows", REPLICATED, "rows"): [],  # data parallel
        (REPLICATED, "columns", "columns"): [],  # Megatron's first matrix
        ("inner", "inner", REPLICATED): ["all_reduce"],  # and its second
        ("inner", "inner", "rows"): ["reduce_scatter"],  # with sequence parallelism
        ("rows", "columns", "columns"): ["all_gather"],  # and before the first: gather the activations
        (REPLICATED, "columns", REPLICATED): ["all_gather"],
        (REPLICATED, "inner", REPLICATED): ["all_reduce"],  # each rank takes its slice of X for nothing
    }.items(),
)
def test_only_the_contraction_costs_a_reduction(wanted, collectives):
    large_weights = {"rows": 12, "inner": 1200, "columns": 1200}
    assert derive(*wanted, large_weights).collectives == collectives


def test_fsdp_is_what_is_derived_when_the_weights_are_smaller_than_the_activations():
    wanted = "rows", "columns", "rows"
    plan = derive(*wanted, {"rows": 1200, "inner": 12, "columns": 12})
    assert (plan.w.collective, plan.collectives) == ("all_gather", ["all_gather"])
    assert derive(*wanted, {"rows": 12, "inner": 1200, "columns": 1200}).w.collective is None


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_no_plan_sends_more_than_to_gather_everything_first(world_size):
    for (x, w, y), plan in every(SIZES, world_size).items():
        gathered = Move("X", x, REPLICATED).sent(SIZES, world_size) + Move("W", w, REPLICATED).sent(SIZES, world_size)
        assert plan.sent(SIZES, world_size) <= gathered


def test_the_backward_pass_of_megatrons_first_matrix_costs_an_all_reduce():
    """dX = dY W^T: the columns of W, by which both lie, are now the inner axis. That is f."""
    forward = derive(REPLICATED, "columns", "columns", {"rows": 12, "inner": 1200, "columns": 1200})
    backward = derive("inner", "inner", REPLICATED, {"rows": 12, "inner": 1200, "columns": 1200})
    assert (forward.collectives, backward.collectives) == ([], ["all_reduce"])


def test_what_cannot_be_is_refused_in_words():
    with pytest.raises(ValueError, match="W can be sharded by inner or by columns, or be on all ranks, not 'rows'"):
        derive("rows", "rows", "rows")
    with pytest.raises(ValueError, match="not 'partial'"):
        derive("rows", REPLICATED, PARTIAL)
    with pytest.raises(ValueError, match="X has 12 rows, which do not divide among 5 ranks"):
        run(derive("rows", REPLICATED, "rows"), X, W, 5)


def test_an_all_reduce_needs_no_axis_that_divides():
    x, w = np.arange(7 * 8).reshape(7, 8), np.arange(8 * 5).reshape(8, 5)
    for have in run(derive("inner", "inner", REPLICATED), x, w, 4):
        np.testing.assert_array_equal(have, x @ w)


def test_there_are_27():
    assert set(every()) == set(product(*[(REPLICATED, *axes) for axes in AXES.values()]))


WIDE = {"rows": 12, "inner": 24, "hidden": 96, "columns": 24}


@pytest.mark.parametrize(
    "cut, collectives, sent",
    [
        (("columns", "inner"), ["all_reduce"], 2),
        (("columns", "columns"), ["all_gather", "all_gather"], 4 + 1),
        (("inner", "inner"), ["reduce_scatter", "all_reduce"], 4 + 2),
        (("inner", "columns"), ["all_reduce", "all_gather"], 8 + 1),
    ],
)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_two_products_in_a_row_are_cheapest_by_columns_and_then_by_rows(cut, collectives, sent, world_size):
    """In parts of what an all-gather of X would send; the hidden layer is four times as wide. The weights stay."""
    pair = derive_pair(*cut, WIDE, world_size)
    assert pair.collectives == collectives
    assert pair.sent(world_size) == sent * 12 * 24 * (world_size - 1) / world_size
    assert pair.first.w.collective is pair.second.w.collective is None


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("cut", list(product((REPLICATED, "inner", "columns"), repeat=2)))
def test_between_two_products_there_are_finished_sums_that_the_second_can_take(cut, world_size):
    """Carried out with a bend in between, each pair gives every rank the whole of Z."""
    first, second = derive_pair(*cut, WIDE, world_size)[:2]
    random = np.random.default_rng(0)
    x, a, b = (random.integers(-9, 9, shape) for shape in ((12, 24), (24, 96), (96, 24)))
    between = run(first, x, a, world_size)
    wanted = laid_out(Move("Y", first.y.after, None), x @ a, world_size)
    assert all((have == want).all() for have, want in zip(between, wanted, strict=True))
    for have in run(second, abs(x @ a), b, world_size):
        np.testing.assert_array_equal(have, abs(x @ a) @ b)
