"""The simulation shows every rank, works on anything that adds, and leaves its input alone."""

from fractions import Fraction

import numpy as np
import pytest

from collectives import simulate
from collectives.algorithms import ring
from collectives.simulate import trace

EXACT = [np.int8, np.uint64, np.float16, np.float64, np.complex128]


@pytest.mark.parametrize("dtype", EXACT, ids=lambda dtype: dtype.__name__)
def test_any_dtype_keeps_its_type(dtype):
    before = np.arange(20).reshape(4, 5).astype(dtype)
    after = simulate(ring.all_reduce(4), before)
    assert after.dtype == dtype
    assert (after == before.sum(axis=0)).all()


def test_what_python_can_add_the_simulation_can_add():
    thirds = np.array([[Fraction(rank, 3)] * 3 for rank in range(3)], dtype=object)
    assert simulate(ring.all_reduce(3), thirds).tolist() == [[Fraction(1)] * 3] * 3
    flags = np.array([[True, False], [False, False]])
    assert simulate(ring.all_reduce(2), flags).tolist() == [[True, False]] * 2


def test_words_show_in_which_order_a_ring_adds():
    """Chunk c begins at rank c + 1: every chunk is summed in another order, which is why floats differ."""
    letters = np.array([[name] * 3 for name in "abc"], dtype=object)
    by_chunk = simulate(ring.reduce_scatter(3), letters).diagonal()
    assert ["".join(sorted(word)) for word in by_chunk] == ["abc"] * 3
    assert len(set(by_chunk)) == 3


def test_the_input_is_left_alone():
    before = np.ones((4, 4))
    simulate(ring.all_reduce(4), before)
    assert (before == 1).all()


def test_a_trace_shows_all_ranks_before_and_after_every_step():
    before = np.eye(4, dtype=int)
    states = list(trace(ring.all_reduce(4), before))
    assert len(states) == 1 + 6
    assert (states[0] == before).all()
    assert all(state.shape == (4, 4) for state in states)
    assert (states[-1] == simulate(ring.all_reduce(4), before)).all()


@pytest.mark.parametrize("shape", [(3, 8), (8,), (4, 2, 2)])
def test_buffers_of_the_wrong_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"takes buffers of shape \[4 ranks, num_elements\], not \("):
        simulate(ring.all_reduce(4), np.zeros(shape))
