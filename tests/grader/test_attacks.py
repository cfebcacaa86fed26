"""Submissions that mean harm, and honest ones that look strange, graded by the real command in one class."""

import os
import re

import pytest
from attacks import classes, course
from attacks.world import ROOT, World

from collectives.ranks.local import MOST_CROWDED

pytestmark = pytest.mark.sandbox

WHOLE = os.environ.get("ATTACKS") == "all"  # `make attacks`: 200 of them, for a quarter of an hour
SOME = {  # in `make test`
    "honest": 12,
    "forging": 12,
    "speaking": 9,
    "leaking": 5,
    "damaging": 5,
    "malformed": 4,
    "starving": 5,
    "ranks": 2,
}


def chosen(kind):
    """The submissions of a kind: all, or some, evenly from the list of them."""
    found = classes.found((kind,))
    step = 1 if WHOLE else len(found) // SOME[kind]
    return dict(list(found.items())[::step])


WITH_BOTH = ["honest-plain", "honest-noisy", "honest-slow", *list(chosen("leaking"))[:1]]  # of the two exercises
ALL_HONEST = classes.found(("honest",))
HONEST = chosen("honest") | {name: one for name, one in ALL_HONEST.items() if name in (*WITH_BOTH, "honest-ranks")}
HOSTILE = chosen("forging") | chosen("speaking") | chosen("leaking") | chosen("damaging") | chosen("malformed")
STARVING = chosen("starving")
RANKS = chosen("ranks")
GIB = 2**30  # to fill more would take a busy machine longer than a cell may take
PATIENT = {"cell_seconds": 20, "submission_seconds": 100, "memory": GIB}  # for a machine that is busy
SHORT = {"cell_seconds": 2, "submission_seconds": 6, "memory": GIB}  # for those that use up what there is
START_SECONDS = 120  # until the first is judged, and for writing the pages
AT_A_TIME = 6  # of those that use up their time: they mostly wait


class Class:
    """A course of its own that has been graded, and the world that it was graded in."""

    def __init__(self, folder, submissions, limits, *arguments):
        folder.mkdir(exist_ok=True)
        self.world = World(folder)
        self.world.listen()
        classes.make_course(self.world, classes.JUDGED.format(**limits))
        here = self.world.course
        released = {name: here / "release" / name / f"{name}.ipynb" for name in ("numbers", "words")}
        plain = {"honest-plain": HONEST["honest-plain"]}
        classes.hand_in_all(self.world, plain | submissions, released, here / "submitted")
        classes.hand_in_words(self.world, [student for student in WITH_BOTH if student in submissions])
        kept = (here / "source", here / "release", here / "submitted", self.world.home / ".ssh")
        self.graded = classes.graded(self.world, here, "--course", here, *arguments, kept=kept)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The fresh course: the honest ones, and all that do not take their time."""
    made = Class(tmp_path_factory.mktemp("fresh"), HONEST | HOSTILE, PATIENT)
    yield made
    made.world.close()


@pytest.fixture(scope="module")
def short(tmp_path_factory, fresh):
    """The same course with little time, for those that would take all of it."""
    made = Class(tmp_path_factory.mktemp("short"), STARVING, SHORT, "--jobs", AT_A_TIME)
    yield made
    made.world.close()


@pytest.fixture(scope="module")
def ours(fresh):
    """Programs for real ranks in this course's own exercises."""
    world = fresh.world
    handed_in, into = world.folder / "handed_in", world.folder / "ours"
    exercises = ROOT / "exercises"
    released = {name: exercises / name / f"{name}.ipynb" for name in ("03_ring", "09_zero")}
    classes.hand_in_all(world, RANKS, released, handed_in)
    return classes.graded(world, into, handed_in, "--into", into, kept=(handed_in, world.home / ".ssh"))


@pytest.mark.parametrize("student", HONEST)
def test_an_honest_submission_keeps_every_point(fresh, student):
    assert fresh.graded.points(student, "numbers") == pytest.approx(HONEST[student].points), HONEST[student].tries
    is_told_why(fresh.graded, student, HONEST[student])


@pytest.mark.parametrize("student", HOSTILE)
def test_a_hostile_submission_gains_no_point_and_learns_nothing(fresh, student):
    assert fresh.graded.points(student, "numbers") == 0, HOSTILE[student].tries
    has_learnt_nothing(fresh.world, fresh.graded, student, "numbers")


@pytest.mark.parametrize("student", STARVING)
def test_a_starving_submission_gains_no_point_and_is_told_why(short, student):
    assert short.graded.points(student, "numbers") == 0, STARVING[student].tries
    has_learnt_nothing(short.world, short.graded, student, "numbers")
    is_told_why(short.graded, student, STARVING[student])


@pytest.mark.parametrize("student", RANKS)
def test_ranks_get_no_points_without_a_collective(fresh, ours, student):
    exercise = "09_zero" if "zero-2" in RANKS[student].answers else "03_ring"
    assert ours.points(student, exercise) == 0, RANKS[student].tries
    has_learnt_nothing(fresh.world, ours, student, exercise)


def is_told_why(graded, student, submission):
    """Check that the page says what the submission was out of."""
    for words in submission.says:
        assert f"out of {words}" in graded.page(student, "numbers").lower()


def has_learnt_nothing(world, graded, student, exercise):
    """Check that nothing which a submission may not know is in what its student gets back."""
    told = graded.outputs(student, exercise) + graded.page(student, exercise)
    assert "ESCAPED" not in graded.outputs(student, exercise)
    for where, canary in world.canaries.items():
        assert canary[::-1] not in told, f"it has read {where}"


def test_every_submission_has_a_mark_and_a_page(fresh, short, ours):
    for one, students in [(fresh.graded, HONEST | HOSTILE), (short.graded, STARVING)]:
        for student in students:
            assert one.points(student, "numbers") is not None, student
            assert "</html>" in one.page(student, "numbers"), student
    for one in (fresh.graded, short.graded, ours):
        assert "NOT GRADED" not in one.printed
        assert one.status == 0, one.complained


def test_the_second_exercise_of_the_same_students_is_graded_as_well(fresh):
    assert [fresh.graded.points(student, "words") for student in WITH_BOTH] == [course.WORD_POINTS] * len(WITH_BOTH)


def test_nothing_outside_has_changed(fresh, short, ours):
    for one in (fresh.graded, short.graded, ours):
        assert one.after == one.before
    for world in (fresh.world, short.world):
        assert world.left_files() == []
        assert not world.left_memory()


def test_no_process_is_left_and_nobody_has_called_the_host(fresh, short, ours):
    for world in (fresh.world, short.world):
        assert world.left_processes() == []
        assert world.heard == []


def test_no_secret_is_in_any_page_or_notebook(fresh):
    for place in ("the environment", "the home"):
        for path in [*fresh.world.course.glob("feedback/**/*.html"), *fresh.world.course.glob("autograded/**/*.ipynb")]:
            assert fresh.world.canaries[place] not in path.read_text(errors="replace"), path


def test_the_class_is_graded_in_time_and_what_is_printed_is_plain(fresh, short, ours):
    longest = MOST_CROWDED * SHORT["submission_seconds"]  # of a notebook that takes all that it may
    assert short.graded.seconds < START_SECONDS + 1.5 * len(STARVING) * longest / AT_A_TIME
    for one in (fresh.graded, short.graded, ours):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", one.printed + one.complained)
        assert "Traceback" not in one.printed + one.complained
