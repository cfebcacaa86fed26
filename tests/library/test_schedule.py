"""A schedule is plain data: it prints, adds up, and refuses what no machine could run."""

import re

import numpy as np
import pytest

from collectives import Schedule, ScheduleError, Step, Transfer, chunk_bounds, contracts, price, simulate, topology
from collectives.algorithms import pairwise, ring, tree
from collectives.algorithms.scorecard import ROWS


def test_a_schedule_prints_as_its_own_picture():
    assert str(ring.all_reduce(4)).splitlines()[0] == "step 0: 3:0→1+  0:1→2+  1:2→3+  2:3→0+"
    assert str(tree.broadcast(4)).splitlines() == ["step 0: 0:0→2", "step 1: 0:0→1  0:2→3"]
    assert str(ring.all_reduce(1)) == "no steps: nothing has to move"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.algorithm(1).name)
def test_what_a_schedule_prints_parses_back(row):
    for world_size in (size for size in (1, 2, 4, 6) if row.takes(size)):
        schedule = row.algorithm(world_size)
        again = Schedule.parse(str(schedule), world_size, schedule.num_chunks)
        assert [list(map(str, step)) for step in again] == [list(map(str, step)) for step in schedule]


def test_a_text_names_its_own_size_and_keeps_empty_steps():
    schedule = Schedule.parse("0-1:0->2:2-3+, 1:2→0\nstep 1:\n0:1>0", name="typed", collective="all_reduce")
    assert (schedule.world_size, schedule.num_chunks, schedule.collective) == (3, 4, "all_reduce")
    assert str(schedule) == "step 0: 0-1:0→2:2-3+  1:2→0\nstep 1: \nstep 2: 0:1→0"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0:1-2", 'step 0: "0:1-2" is not a transfer; write chunk:src→dst'),
        ("0:0→1\nstep 3: 0:1→2", 'step 1: the line begins with "step 3:"; steps must be numbered from 0'),
        ("0-2:0→1:5", "step 0: 0-2:0→1:5 must name as many chunks at its end as at its start"),
        (str(pairwise.all_to_all(40)), "step 0: the text is cut short"),
        ("0:0→1\n0:1→1", "schedule, step 1: 0:1→1 sends rank 1 to itself"),
    ],
)
def test_a_text_that_can_t_be_read_is_refused_by_its_step(text, complaint):
    with pytest.raises(ScheduleError, match=f"^{re.escape(complaint)}"):
        Schedule.parse(text)


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
        ([(0, 1, 0, "copy", 5)], "0:0→1:5 has into 5, but the chunks are 0 to 1"),
        ([(0, 1, 1, "copy", None, 2)], "1-2:0→1 has chunk 2, but the chunks are 0 to 1"),
        ([(0, 1, 0, "copy", None, 0)], "0→1 carries 0 chunks; a transfer carries at least 1"),
        ([(0, 1, 0, "copy", None, 2), (2, 1, 0, "copy", 1)], "0-1:0→1 and 0:2→1:1 both write chunk 1 on rank 1"),
    ],
)
def test_a_step_that_no_machine_could_run_is_refused_by_name(transfers, complaint):
    with pytest.raises(ScheduleError, match="step 1: ") as refusal:
        Schedule.of(4, 2, [[Transfer(0, 1, 0)], transfers])
    assert complaint in str(refusal.value)


def test_schedules_of_different_shape_do_not_add():
    with pytest.raises(ScheduleError, match=r"\(4, 4\) and \(4, 1\)"):
        ring.reduce_scatter(4) + tree.broadcast(4)


def test_a_run_of_chunks_means_what_its_chunks_mean_one_by_one():
    """Chunks 0 and 1 of rank 0 land in 2 and 3 of rank 1, added there to what is."""
    run = Schedule.of(2, 4, [[(0, 1, 0, "reduce", 2, 2), (1, 0, 3, "copy", 0, 1)]])
    assert str(run) == "step 0: 0-1:0→1:2-3+  3:1→0:0"
    (step,) = run
    assert [str(transfer) for transfer in step.singles] == ["0:0→1:2+", "1:0→1:3+", "3:1→0:0"]
    slots = np.array([[1, 2, 3, 4], [10, 20, 30, 40]])
    step.apply(slots)
    assert slots.tolist() == [[40, 2, 3, 4], [10, 20, 31, 42]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_in_a_rotated_schedule_every_rank_does_what_rank_zero_does(world_size):
    for algorithm in (ring.all_reduce, ring.all_reduce_bidirectional, pairwise.all_to_all, pairwise.all_reduce):
        schedule = algorithm(world_size)
        for step, sends in zip(schedule, schedule.rank_zero(), strict=True):
            turned = {
                tuple((number + rank) % world_size for number in (0, t.dst, t.chunk, t.lands))
                for t in sends
                for rank in range(world_size)
            }
            assert {(t.src, t.dst, t.chunk, t.lands) for t in step} == turned
            assert len(step) == len(sends) * world_size


def test_chunks_may_have_lengths_of_their_own():
    uneven = Schedule.of(2, 3, [[(0, 1, 1, "copy")]], lengths=(2, 0, 5))
    assert uneven.bounds(7).tolist() == [0, 2, 2, 7]
    with pytest.raises(ValueError, match="is for buffers of 7 elements, not 8"):
        uneven.bounds(8)
    with pytest.raises(ScheduleError, match=r"lengths must be 3 numbers of at least 0, not \(2, 5\)"):
        Schedule.of(2, 3, [], lengths=(2, 5))
    with pytest.raises(ScheduleError, match="their chunks differ in length"):
        uneven + Schedule.of(2, 3, [])


def test_chunks_change_places_only_with_chunks_of_their_length():
    for reader in (
        lambda: simulate(pairwise.all_to_all(3), np.zeros((3, 10))),
        lambda: price(pairwise.all_to_all(3), 10, topology.uniform(3, 0, 0)),
    ):
        with pytest.raises(ValueError, match="a buffer whose length is a multiple of the number of chunks, 3"):
            reader()


def test_a_schedule_in_other_places_keeps_its_promise_there():
    """A broadcast from root 1 in places 2 0 1 has its root at rank 0; a ring still adds everybody up."""
    places = [2, 0, 1]
    elsewhere = tree.broadcast(3, root=1).placed(places)
    assert elsewhere.root == 0
    contracts.broadcast.check(elsewhere)
    contracts.all_reduce.check(ring.all_reduce(3).placed(places))
    links = topology.uniform(3, 1e-6, 1e-9)
    assert price(ring.all_reduce(3).placed(places), 300, links).seconds == price(ring.all_reduce(3), 300, links).seconds
    with pytest.raises(ScheduleError, match="places must be the ranks 0 to 2 in some order"):
        ring.all_reduce(3).placed([0, 1, 1])


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ([(0, 1, 0, "copy")], "steps must be a list of lists"),
        ([Transfer(0, 1, 0)], "steps must be a list of lists of transfers"),
        ([[(0, 1, 0, "copy", "x")]], "is not a transfer; it must be (src, dst, chunk, combine), optionally"),
    ],
)
def test_steps_that_are_no_list_of_lists_are_told_so(steps, complaint):
    with pytest.raises(ScheduleError) as refusal:
        Schedule.of(2, 1, steps)
    assert complaint in str(refusal.value)


def test_only_what_all_ranks_can_do_alike_is_rotated():
    def rotated(num_chunks, sends):
        return list(Schedule.rotated(3, num_chunks, lambda: [sends], "all_reduce", "mine"))

    for sends in (
        [Transfer(0, 1, 0), Transfer(0, 2, 1, "reduce")],
        [Transfer(1, 2, 0)],
        [Transfer(0, 1, 0, count=2)],
        [],
    ):
        with pytest.raises(ScheduleError, match="can't be a step of a rotated schedule"):
            rotated(3, sends)
    with pytest.raises(ScheduleError, match="with 3 chunks or 1, not with 6"):
        rotated(6, [Transfer(0, 1, 0)])


def test_a_schedule_made_by_hand_is_checked_before_it_is_read():
    for src, dst, words in ((-1, 0, "has src -1"), (0, 5, "has dst 5")):
        wrong = Schedule(2, 1, lambda src=src, dst=dst: [Step.of([(src, dst, 0)])])
        with pytest.raises(ScheduleError, match=words):
            simulate(wrong, np.ones((2, 2)))
        with pytest.raises(ScheduleError, match="has a rank out of range; the ranks are 0 to 1"):
            price(wrong, 2, topology.uniform(2, 0, 0))
    with pytest.raises(ScheduleError, match="the arrays of a step must have the same length"):
        Step(np.array([0]), np.array([1, 0]), np.array([0]))


def test_a_world_size_may_come_from_numpy():
    for row in ROWS:
        assert str(row.algorithm(np.int64(4))) == str(row.algorithm(4))


def test_a_root_is_one_of_the_ranks():
    with pytest.raises(ScheduleError, match="root 4 is not one of the 4 ranks"):
        tree.broadcast(4, root=4)


def test_sends_of_a_step_read_the_state_before_it():
    swap = Schedule.of(2, 1, [[(0, 1, 0, "copy"), (1, 0, 0, "copy")]])
    slots = np.array([[10], [20]])
    for step in swap:
        step.apply(slots)
    assert slots.tolist() == [[20], [10]]


@pytest.mark.parametrize("given", [(0.9, 1.5, 0), ("0", "1", 0), (0, 1), None, (0, 1, 0, "copy", 1.5)])
def test_what_is_no_transfer_is_refused_and_not_rounded(given):
    with pytest.raises(ScheduleError, match="is not a transfer"):
        Schedule.of(4, 4, [[given]])


@pytest.mark.parametrize("world_size", [0, -1, 4.0, "4"])
def test_a_world_is_a_whole_number_of_ranks(world_size):
    with pytest.raises(ScheduleError, match="world_size must be a whole number of at least 1, not"):
        Schedule.of(world_size, 1, [])


def test_a_step_may_be_given_as_transfers_or_as_plain_tuples():
    as_tuples = Schedule.of(2, 1, [[(0, 1, 0)], [(1, 0, 0, "reduce")]])
    as_transfers = Schedule.of(2, 1, [[Transfer(0, 1, 0)], [Transfer(1, 0, 0, "reduce")]])
    assert str(as_tuples) == str(as_transfers) == "step 0: 0:0→1\nstep 1: 0:1→0+"
