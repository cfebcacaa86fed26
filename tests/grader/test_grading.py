"""Grading, for real: sample submissions go through nbgrader's own pipeline, and each gets the points it deserves."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from answers import SAMPLES, Sample, samples_of, solutions_of
from answers import sample_answers as answers

from autograder import grade as grader
from autograder import release

pytestmark = pytest.mark.sandbox

ROOT = Path(__file__).resolve().parents[2]
GRADE = ("-m", "autograder.grade")

WHOLE = os.environ.get("SAMPLES") == "all"  # `make samples`
ALWAYS = ("full", "sends_too_early", "deadlock", "never_ends")  # in `make test`, beside those below

# Every sample submission, with what it deserves: {(student, exercise): `Sample`}.
DESERVED = {(student, name): sample for name in release.names() for student, sample in samples_of(name).items()}
PARTIAL = [("partial", exercise) for exercise in release.names()[2::6]]
TRIED = [one for one in DESERVED if WHOLE or one[0] in ALWAYS or one in PARTIAL]
FAULTY = [one for one in TRIED if DESERVED[one].words]


def fill(exercise, given):
    """The released notebook of an exercise with these answers written into its solution cells."""
    notebook = nbformat.read(ROOT / "exercises" / exercise / f"{exercise}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.id in given:
            cell.source = given[cell.id]
    assert set(given) <= {cell.id for cell in notebook.cells}
    return notebook


def hand_in(folder, student, exercise, notebook):
    place = folder / student / exercise
    place.mkdir(parents=True)
    nbformat.write(notebook, place / f"{exercise}.ipynb")
    return place


def grade(*arguments):
    """Run autograder/grade.py as its user does."""
    return subprocess.run([sys.executable, *GRADE, *map(str, arguments)], capture_output=True, text=True)


AT_A_TIME = 2


@pytest.fixture(scope="session")
def graded(tmp_path_factory):
    """The sample submissions graded, and some that are broken: what was printed, and where it went."""
    handed_in = tmp_path_factory.mktemp("handed_in")
    for student, exercise in TRIED:
        hand_in(handed_in, student, exercise, fill(exercise, answers(student, exercise)))
    hand_in(handed_in, "other_notebook", "03_ring", nbformat.v4.new_notebook())
    without_a_check = fill("04_all_reduce", answers("full", "04_all_reduce"))
    without_a_check.cells = [cell for cell in without_a_check.cells if cell.id != "c1-ten"]
    place = hand_in(handed_in, "check_deleted", "04_all_reduce", without_a_check)
    (place / "random.py").write_text("raise SystemExit('a file beside the notebook was imported')")
    (handed_in / "full" / "99_nothing").mkdir()
    into = tmp_path_factory.mktemp("graded")
    return grade(handed_in, "--into", into, "--jobs", AT_A_TIME), into


def line_of(graded, submission):
    (line,) = [line for line in graded[0].stdout.splitlines() if line.startswith(f"{submission}:")]
    return line.removeprefix(f"{submission}: ")


def feedback_page(graded, student, exercise):
    return graded[1] / "feedback" / student / exercise / f"{exercise}.html"


def test_every_exercise_has_its_sample_submissions():
    assert {path.stem for path in SAMPLES.glob("*.yml")} == set(release.names())
    assert all({"full", "empty", "partial"} <= samples_of(exercise).keys() for exercise in release.names())


@pytest.mark.parametrize("student, exercise", DESERVED)
def test_only_the_full_sample_is_the_solution_and_every_other_says_why(student, exercise):
    assert (answers(student, exercise) == solutions_of(exercise)) == (student == "full")
    assert bool(DESERVED[student, exercise].why) == (student not in ("full", "empty"))


@pytest.mark.parametrize(
    "wrong, fault",
    [
        ({"answers": {"b9": "pass"}}, "03_ring.yml, ada: ['b9'] are no answers of the solution, which has ['element-"),
        ({"left_out": ["b9"]}, "03_ring.yml, ada: ['b9'] are no answers"),
        ({"answers": {"element-transfers": [{"old": "no text", "new": ""}]}}, "found 0 times, not 1: 'no text'"),
        ({"answers": {"element-transfers": [{"old": "num_elements", "new": ""}]}}, "element-transfers: found 2 times"),
        ({"answers": {"element-transfers": [{"old": "int", "new": "", "times": 2}]}}, "found 1 times, not 2: 'int'"),
    ],
)
def test_a_sample_that_does_not_fit_the_solution_names_its_place_and_the_fault(wrong, fault, monkeypatch):
    monkeypatch.setitem(samples_of("03_ring"), "ada", Sample("0/20", **wrong))
    with pytest.raises(AssertionError, match=re.escape(fault)):
        answers("ada", "03_ring")


@pytest.mark.parametrize("student, exercise", TRIED)
def test_a_submission_gets_the_points_it_deserves(graded, student, exercise):
    points = re.escape(DESERVED[student, exercise].points)
    assert re.match(rf"{points} \([\d.]+ s\) \[", line_of(graded, f"{student}/{exercise}"))
    assert feedback_page(graded, student, exercise).exists()


@pytest.mark.parametrize("student, exercise", FAULTY)
def test_the_feedback_page_names_the_fault(graded, student, exercise):
    page = feedback_page(graded, student, exercise).read_text()
    words = " ".join(html.unescape(re.sub(r"<[^>]+>", "", page)).split())
    for fault in DESERVED[student, exercise].words:
        assert fault in words


AGAIN = 4 if WHOLE else 1  # times, after the first
DRAWN = [] if WHOLE else ["--exercise", "16_pipeline"]  # whose checks draw inputs, and start no ranks


def points_in(printed):
    """The points of each submission that a run has graded."""
    return dict(re.findall(r"^(\w+/\w+): (\S+) \(", printed, re.MULTILINE))


@pytest.mark.parametrize("again", range(AGAIN))  # each in a test of its own, with the whole time that a test may take
def test_every_sample_gets_the_same_points_each_time(graded, again):
    """A grade is a function of the submission: neither the inputs that checks draw nor a busy machine changes it."""
    first = points_in(graded[0].stdout)
    first = {submission: points for submission, points in first.items() if WHOLE or submission.endswith(DRAWN[1])}
    assert len(first) > 1
    assert points_in(grade("--into", graded[1], "--regrade", "--jobs", AT_A_TIME, *DRAWN).stdout) == first


def test_a_notebook_without_the_exercises_cells_gets_no_points_and_is_told_why(graded):
    expected = "0/20 (unreadable: the notebook has none of the exercise's cells in it"
    assert line_of(graded, "other_notebook/03_ring").startswith(expected)


def test_a_deleted_check_is_put_back_and_a_file_beside_the_notebook_does_nothing(graded):
    expected = "16/20, 4 to grade (`c1-ten` missing: put back and graded.)"
    assert line_of(graded, "check_deleted/04_all_reduce").startswith(expected)


def test_a_folder_that_is_no_exercise_is_told_of(graded):
    assert "full/99_nothing: skipped, no exercise is called 99_nothing" in graded[0].stdout


def test_the_summary_has_a_row_for_each_student_and_says_where_everything_is(graded):
    printed, into = graded[0].stdout, graded[1]
    columns = sorted({exercise for _, exercise in TRIED})
    assert re.search(rf"^student +{' +'.join(columns)}$", printed, re.MULTILINE)
    for student, only, result in [("sends_too_early", "02_tree", "4/20"), ("other_notebook", "03_ring", "0/20")]:
        row = [result if column == only else "-" for column in columns]
        assert re.search(rf"^{student} +{' +'.join(row)}$", printed, re.MULTILINE)
    assert f"{into}/feedback/" in printed
    assert (into / "gradebook.db").exists()


def test_a_gradebook_refuses_an_exercise_whose_checks_have_changed(graded, monkeypatch):
    """Points that were given for other checks are not mixed with new ones, and the reason is said."""
    source = release.source

    def renamed(name):
        notebook = source(name)
        known = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
        known[-1].metadata.nbgrader.grade_id = "a-new-name"
        return notebook

    monkeypatch.setattr(release, "source", renamed)
    course = grader.opened(grader.options().parse_args(["--into", str(graded[1])]))
    with pytest.raises(grader.NothingGraded, match="Cannot add or remove cells for notebook '03_ring'"):
        course.prepare(["03_ring"])


def test_nothing_but_plain_lines_is_printed(graded):
    """No traceback, and no warning of nbgrader's or of a kernel's."""
    assert graded[0].returncode == 0
    assert "Traceback" not in graded[0].stdout
    assert graded[0].stderr == ""


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["nowhere"], "nowhere is not a folder"),
        (["."], "holds no submission"),
        ([".", "--exercise", "03_rings"], "no exercise is called 03_rings; there are 02_tree, 03_ring"),
    ],
)
def test_a_wrong_command_is_answered_in_one_line(tmp_path, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(tmp_path)
    assert grader.main([*arguments, "--into", str(tmp_path / "into")]) == 2
    answer = capsys.readouterr().err
    assert reason in answer and answer.count("\n") == 1
