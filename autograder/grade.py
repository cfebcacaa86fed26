"""Grades a folder of submissions: `make grade SUBMISSIONS=folder`.

The folder holds `student/exercise/exercise.ipynb`, as nbgrader's own `submitted` folder does. Every submission goes
through nbgrader's own pipeline: its points go into the gradebook, and a feedback page is written for it. A submission
that cannot be graded says why in its line, and the others are graded all the same.
"""

from __future__ import annotations

import argparse
import glob
import logging
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import nbformat  # noqa: E402
from nbgrader.api import Gradebook, MissingEntry  # noqa: E402
from nbgrader.apps.api import NbGraderAPI  # noqa: E402
from nbgrader.utils import is_grade  # noqa: E402
from sqlalchemy.exc import SAWarning  # noqa: E402
from traitlets.config import PyFileConfigLoader  # noqa: E402

import exercises  # noqa: E402 (tools/exercises.py, which makes the notebooks with the hidden tests)

TRUST = "note: the sandbox is not built yet. Submissions run with your rights: grade only those that you trust."


class CannotGrade(Exception):
    """Why nothing, or a single submission, can be graded, in words for whoever asked for it."""


@dataclass(frozen=True)
class Submission:
    """What one student handed in for one exercise."""

    student: str
    exercise: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.student}/{self.exercise}"


def main() -> int:
    """Grade what the command line names; return 0 if all of it could be graded."""
    parser = argparse.ArgumentParser(description="Grade a folder of submissions, student/exercise/exercise.ipynb.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--exercise", metavar="NAME", help="grade only this exercise")
    parser.add_argument("--into", type=Path, default=ROOT / "_build" / "grade", help="for gradebook and feedback")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", SAWarning)  # nbgrader's own, on every submission that is new
    try:
        submissions = find(arguments.folder, arguments.exercise)
        course = Course(arguments.into.resolve(), {submission.exercise for submission in submissions})
    except CannotGrade as reason:
        print(f"cannot grade: {reason}", file=sys.stderr)
        return 2
    print(TRUST)
    failed = [submission for submission in submissions if not graded(course, submission)]
    print(f"\n{table(course, submissions, failed)}\n")
    print(f"feedback:  {shown(course.folder)}/feedback/<student>/<exercise>/<exercise>.html")
    print(f"gradebook: {shown(course.folder)}/gradebook.db")
    if failed:
        print(f"{len(failed)} of {len(submissions)} submissions could not be graded")
    return 1 if failed else 0


def find(folder: Path, exercise: str | None = None) -> list[Submission]:
    """Return what was handed in, by student, for one exercise or for all of them."""
    known = exercises.names()
    if exercise is not None and exercise not in known:
        raise CannotGrade(f"no exercise is called {exercise}; there are {', '.join(known)}")
    if not folder.is_dir():
        raise CannotGrade(f"{folder} is not a folder")
    below = [path for path in sorted(folder.glob("*/*")) if path.is_dir() and not path.parent.name.startswith(".")]
    for path in below:
        if path.name not in known:
            print(f"{path.relative_to(folder)}: skipped, no exercise is called {path.name}")
    found = [Submission(path.parent.name, path.name, path) for path in below if path.name in known]
    found = [submission for submission in found if exercise in (None, submission.exercise)]
    if not found:
        raise CannotGrade(
            f"{folder} holds no submission; they belong in {folder}/<student>/<exercise>/<exercise>.ipynb"
        )
    return found


class Course:
    """nbgrader, set up to keep everything in one folder: what was submitted, the gradebook, and the feedback."""

    def __init__(self, folder: Path, names: set[str]):
        """Register the exercises called `names` in the gradebook, which is made if it is not there yet."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT / "autograder")).load_config()
        config.CourseDirectory.root = str(folder)
        for step in ("source", "release", "submitted", "autograded", "feedback"):
            config.CourseDirectory[f"{step}_directory"] = step
        config.CourseDirectory.db_url = self.database = f"sqlite:///{folder / 'gradebook.db'}"
        config.NbGraderAPI.log_level = logging.ERROR
        self.nbgrader = NbGraderAPI(config=config)
        exercises.write_sources(folder / "source")
        for name in sorted(names):
            done = self.nbgrader.generate_assignment(name)
            if not done["success"]:
                raise CannotGrade(f"{name} cannot be registered in {shown(folder)}/gradebook.db: {last_words(done)}")

    def gradebook(self) -> Gradebook:
        """Open the gradebook; to be closed, as by `with`."""
        return Gradebook(self.database)

    def grade(self, submission: Submission) -> str:
        """Grade one submission and write its feedback; return what a grader should know about it, or ""."""
        note = self.take(submission)
        names = {"assignment_id": submission.exercise, "student_id": glob.escape(submission.student)}
        for step in (self.nbgrader.autograde, self.nbgrader.generate_feedback):
            with stderr_into(self.folder / "kernels.log"):
                done = step(**names)
            if not done["success"]:
                raise CannotGrade(last_words(done))
        return note

    def take(self, submission: Submission) -> str:
        """Copy the notebook (and only it) to where nbgrader looks; return a note on checks that are missing in it."""
        path = submission.folder / f"{submission.exercise}.ipynb"
        if not path.is_file():
            raise CannotGrade(f"there is no {path.name} in it")
        try:
            notebook = nbformat.read(path, as_version=4)
            nbformat.validate(notebook)
            found = {cell.metadata.nbgrader.grade_id for cell in notebook.cells if is_grade(cell)}
        except Exception as error:  # what is not a notebook fails in more ways than can be listed
            raise CannotGrade(f"{path.name} is not a notebook ({first_line(error)})") from error
        with self.gradebook() as gradebook:
            cells = gradebook.find_notebook(submission.exercise, submission.exercise).grade_cells
            missing = sorted({cell.name for cell in cells} - found)
        if not found or len(missing) == len(cells):
            raise CannotGrade(f"{path.name} has none of the exercise's checks in it")
        place = self.folder / "submitted" / submission.student / submission.exercise
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name in (path.name, "timestamp.txt"):  # nothing else: a file beside a notebook could shadow a module
            if (submission.folder / name).is_file():
                shutil.copyfile(submission.folder / name, place / name)
        return f" (missing in the notebook: {', '.join(missing)})" if missing else ""

    def points(self, submission: Submission) -> str:
        """Return "12/20", and how many points a person has yet to give, or to confirm."""
        with self.gradebook() as gradebook:
            try:
                result = gradebook.find_submission(submission.exercise, submission.student)
            except MissingEntry:
                return "not graded"
            grades = [grade for notebook in result.notebooks for grade in notebook.grades]
            open_points = [(grade.max_score, grade.manual_score) for grade in grades if grade.needs_manual_grade]
            to_grade = sum(most for most, given in open_points if given is None)
            to_confirm = sum(most for most, given in open_points if given is not None)  # graded by hand, then regraded
            words = f"{result.score:g}/{result.max_score:g}"
            words += f", {to_grade:g} to grade" if to_grade else ""
            return words + (f", {to_confirm:g} to confirm" if to_confirm else "")


def graded(course: Course, submission: Submission) -> bool:
    """Grade one submission, print its line, and tell whether it could be graded."""
    start = time.perf_counter()
    try:
        note = course.grade(submission)
    except CannotGrade as reason:
        print(f"{submission}: NOT GRADED: {reason}", flush=True)
        return False
    print(f"{submission}: {course.points(submission)}{note} ({time.perf_counter() - start:.1f} s)", flush=True)
    return True


def table(course: Course, submissions: list[Submission], failed: list[Submission]) -> str:
    """Return the points of every student in every exercise, in columns."""
    columns = sorted({submission.exercise for submission in submissions})
    cells = {(s.student, s.exercise): "not graded" if s in failed else course.points(s) for s in submissions}
    rows = [["student", *columns]]
    for student in sorted({submission.student for submission in submissions}):
        rows.append([student, *(cells.get((student, column), "-") for column in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


@contextmanager
def stderr_into(path: Path) -> Iterator[None]:
    """Send what this process and its kernels write on stderr to the end of a file, not between the report's lines."""
    saved = os.dup(2)
    with path.open("a") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def last_words(done: dict) -> str:
    """Return the line that says what went wrong, from what nbgrader reports of a failed step."""
    logged = re.sub(r"\x1b\[[0-9;]*m", "", done.get("log", ""))
    errors = re.findall(r"^ *(\w[\w.]*(?:Error|Exception|Entry): .+)$", logged, re.MULTILINE)
    return errors[-1] if errors else first_line(done.get("error", "").strip().splitlines()[-1])


def first_line(error: Exception | str) -> str:
    """Return the first line of an error, shortened."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= 120 else f"{line[:120]}..."


def shown(path: Path) -> str:
    """Return a path as a reader types it from the repository's root."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


if __name__ == "__main__":
    sys.exit(main())
