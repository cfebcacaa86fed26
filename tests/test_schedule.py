"""A schedule is plain data: it prints, adds up, and refuses what no machine could run."""

import numpy as np
import pytest

from collectives import Schedule, ScheduleError, Transfer, chunk_bounds
from collectives.algorithms import ring, tree


def test_a_schedule_prints_as_its_own_picture():
    assert str(ring.all_reduce(4)).splitlines()[0] == "step 0: 3:0→1+  0:1→2+  1:2→3+  2:3→0+"
    assert str(tree.broadcast(4)).splitlines() == ["step 0: 0:0→2", "step 1: 0:0→1  0:2→3"]
    assert str(ring.all_reduce(1)) == "no steps: nothing has to move"


def test_a_schedule_of_a_thousand_ranks_prints_without_flooding_the_page():
    assert len(str(ring.all_reduce(1024))) < 40_000


@pytest.mark.parametrize("num_elements", range(12))
@pytest.mark.parametrize("num_chunks", range(1, 10))
def test_chunks_are_cut_as_numpy_cuts_arrays(num_elements, num_chunks):
    pieces = np.array_split(np.arange(num_elements), num_chunks)
    assert np.diff(chunk_bounds(num_elements, num_chunks)).tolist() == [len(piece) for piece in pieces]


@pytest.mark.parametrize(
    ("transfers", "complaint"),
    [
        ([(0, 4, 0, "copy")], "0:0→4 has dst 4, but the ranks are 0 to 3"),
        ([(0, 1, 7, "copy")], "7:0→1 has chunk 7, but the chunks are 0 to 1"),
        ([(2, 2, 0, "copy")], "0:2→2 sends rank 2 to itself"),
        ([(0, 1, 0, "add")], "combines by 'add'; it must be 'copy' or 'reduce'"),
        ([(0, 1, 0, "copy"), (2, 1, 0, "reduce")], "0:0→1 and 0:2→1+ both write chunk 0 on rank 1"),
    ],
)
def test_a_step_that_no_machine_could_run_is_refused_by_name(transfers, complaint):
    with pytest.raises(ScheduleError, match="step 1: ") as refusal:
        Schedule.of(4, 2, [[Transfer(0, 1, 0)], transfers])
    assert complaint in str(refusal.value)


def test_schedules_of_different_shape_do_not_add():
    with pytest.raises(ScheduleError, match=r"\(4, 4\) and \(4, 1\)"):
        ring.reduce_scatter(4) + tree.broadcast(4)


def test_sends_of_a_step_read_the_state_before_it():
    swap = Schedule.of(2, 1, [[(0, 1, 0, "copy"), (1, 0, 0, "copy")]])
    slots = np.array([[10], [20]])
    for step in swap:
        step.apply(slots)
    assert slots.tolist() == [[20], [10]]


@pytest.mark.parametrize("given", [(0.9, 1.5, 0), ("0", "1", 0), (0, 1), None, (0, 1, 0, "copy", 1.5)])
def test_what_is_no_transfer_is_refused_and_not_rounded(given):
    with pytest.raises(ScheduleError, match="is no transfer"):
        Schedule.of(4, 4, [[given]])


@pytest.mark.parametrize("world_size", [0, -1, 4.0, "4"])
def test_a_world_is_a_whole_number_of_ranks(world_size):
    with pytest.raises(ScheduleError, match="world_size is a whole number of at least 1, not"):
        Schedule.of(world_size, 1, [])


def test_a_step_may_be_given_as_transfers_or_as_plain_tuples():
    as_tuples = Schedule.of(2, 1, [[(0, 1, 0)], [(1, 0, 0, "reduce")]])
    as_transfers = Schedule.of(2, 1, [[Transfer(0, 1, 0)], [Transfer(1, 0, 0, "reduce")]])
    assert str(as_tuples) == str(as_transfers) == "step 0: 0:0→1\nstep 1: 0:1→0+"
