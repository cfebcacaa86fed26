"""A gradebook in PostgreSQL, on a real server: the same points as in SQLite, and readers while grades are written."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import postgres
import pytest
from nbgrader import dbutil
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from test_grading import GRADE, answers, fill, hand_in
from traitlets.config import PyFileConfigLoader

from autograder import course as courses

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.postgres,
    pytest.mark.skipif(postgres.obstacle() is not None, reason=f"blocked: {postgres.obstacle()}"),
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning"),  # nbgrader's own, on every new submission
]

EXERCISE, WRITTEN = "04_all_reduce", "d-worth-it"  # its last answer is in words, for a person to grade
STUDENTS = ("full", "partial")


class Course:
    """The course with one exercise handed in, graded by the command; its gradebook is at a URL."""

    def __init__(self, folder: Path, url: str):
        self.folder, self.url = folder, url
        for student in STUDENTS:
            hand_in(folder / "in", student, EXERCISE, fill(EXERCISE, answers(student, EXERCISE)))

    def grade(self, *arguments):
        command = [
            sys.executable,
            *GRADE,
            self.folder / "in",
            "--into",
            self.folder / "out",
            "--db",
            self.url,
            *arguments,
        ]
        done = subprocess.run(command, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def nbgrader(self):
        """nbgrader's own view of the course, as its formgrader has it."""
        config = PyFileConfigLoader("nbgrader_config.py", path=str(courses.OWN)).load_config()
        config.CourseDirectory.root = str(self.folder / "out")
        for step in ("source", "release", "submitted", "autograded", "feedback"):
            config.CourseDirectory[f"{step}_directory"] = step
        config.CourseDirectory.db_url = self.url
        return NbGraderAPI(config=config)

    def points(self):
        with Gradebook(self.url) as gradebook:
            found = [gradebook.find_submission(EXERCISE, student) for student in STUDENTS]
            grades = [grade for submission in found for notebook in submission.notebooks for grade in notebook.grades]
            return {(grade.student.id, grade.name): (grade.auto_score, grade.max_score) for grade in grades}


@pytest.fixture(scope="module")
def url():
    with postgres.server() as address:
        yield address


@pytest.fixture(scope="module")
def course(url, tmp_path_factory):
    """A course graded into PostgreSQL, while two others kept reading: with how often they could, and what they saw."""
    course = Course(tmp_path_factory.mktemp("postgres"), url)
    with pytest.MonkeyPatch.context() as patch:  # nbgrader calls alembic from the PATH
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
        Gradebook(url).close()  # makes the tables: two that make them at once would be in each other's way
    done = threading.Event()

    def read():
        seen = []
        while not done.wait(0.2):  # seconds
            with Gradebook(url) as gradebook:
                seen.append(len(gradebook.submission_dicts(EXERCISE)))
        return seen

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            course.printed = course.grade()
        finally:
            done.set()
        course.seen = [reader.result() for reader in readers]
    return course


def test_postgresql_holds_the_same_points_as_sqlite(course, tmp_path):
    other = Course(tmp_path, f"sqlite:///{tmp_path / 'gradebook.db'}")
    other.grade()
    assert course.points() == other.points()
    assert sum(auto or 0 for auto, _ in course.points().values()) == 16 + 4
    assert "full/04_all_reduce: 16/20, 4 to grade" in course.printed


def test_two_readers_are_never_refused_while_grades_are_written(course):
    for seen in course.seen:
        assert len(seen) > 5
        assert seen == sorted(seen) and set(seen) <= {0, 1, 2}


def test_points_given_by_hand_survive_a_regrade(course):
    with Gradebook(course.url) as gradebook:
        grade = gradebook.find_grade(WRITTEN, EXERCISE, EXERCISE, "full")
        grade.manual_score, grade.needs_manual_grade = 3, False
        gradebook.find_comment(WRITTEN, EXERCISE, EXERCISE, "full").manual_comment = "Which link is it?"
        gradebook.db.commit()
    course.grade("--student", "full", "--regrade")
    with Gradebook(course.url) as gradebook:
        assert gradebook.find_grade(WRITTEN, EXERCISE, EXERCISE, "full").score == 3
        assert gradebook.find_comment(WRITTEN, EXERCISE, EXERCISE, "full").comment == "Which link is it?"
        assert gradebook.find_submission(EXERCISE, "full").score == 16 + 3


def test_every_page_of_the_formgrader_finds_its_numbers(course):
    """PostgreSQL is stricter than SQLite about GROUP BY and types, so nbgrader's own queries have to be tried."""
    asked = course.nbgrader
    (assignment,) = [found for found in asked.get_assignments() if found["name"] == EXERCISE]
    assert (assignment["num_submissions"], assignment["max_score"]) == (2, 20)
    assert {found["id"] for found in asked.get_students()} == set(STUDENTS)
    assert len(asked.get_submissions(EXERCISE)) == len(asked.get_notebook_submissions(EXERCISE, EXERCISE)) == 2
    assert [found["average_score"] for found in asked.get_notebooks(EXERCISE)] == [assignment["average_score"]]
    assert EXERCISE in {found["name"] for found in asked.get_student_submissions("full")}
    assert [found["score"] for found in asked.get_student_notebook_submissions("partial", EXERCISE)] == [4]


def test_nbgraders_own_upgrade_runs_and_what_is_removed_leaves_no_broken_reference(course):
    dbutil.upgrade(course.url)  # what `nbgrader db upgrade` does; it ends in an error if alembic does
    with Gradebook(course.url) as gradebook:
        gradebook.add_assignment("a")
        gradebook.add_notebook("n", "a")
        gradebook.add_grade_cell("g", "n", "a", max_score=2, cell_type="code")
        gradebook.add_student("s", first_name="Zoë")
        gradebook.add_submission("a", "s")
        assert gradebook.find_student("s").first_name == "Zoë"
        gradebook.remove_student("s")
        gradebook.remove_assignment("a")
        assert {student.id for student in gradebook.students} == set(STUDENTS)
        assert [assignment.name for assignment in gradebook.assignments] == [EXERCISE]
