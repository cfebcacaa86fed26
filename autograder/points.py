"""The points in a gradebook, read with a fixed number of queries, whatever the size of the class.

nbgrader's own properties, such as `submission.score`, query the database for every submission: minutes for a class of
a thousand. Here 15 exercises of a thousand students (150,000 grades) take seconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from nbgrader.api import (
    Assignment,
    BaseCell,
    Grade,
    Gradebook,
    GradeCell,
    Notebook,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
    TaskCell,
)
from sqlalchemy import select


def file_of(url: str) -> Path | None:
    """Return the file of a gradebook in SQLite; None if its URL names another database."""
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


@dataclass
class Question:
    """The points of one graded cell in one submission, at most `most`. `points` is None until a person gives them."""

    name: str
    points: float | None
    most: float
    needs_a_person: bool


@dataclass
class Result:
    """The points of one submission so far. `penalty`: points deducted because it was late."""

    student: str
    exercise: str
    handed_in: datetime | None
    questions: dict[str, Question] = field(default_factory=dict)
    penalty: float = 0.0
    flagged: bool = False

    @property
    def points(self) -> float:
        """The points given so far, less the penalty; never below 0."""
        return max(0.0, sum(question.points or 0.0 for question in self.questions.values()) - self.penalty)

    @property
    def is_open(self) -> bool:
        """Whether a person must still give or confirm points."""
        return any(question.needs_a_person for question in self.questions.values())


def results(
    gradebook: Gradebook, exercises: Collection[str] = (), students: Collection[str] = ()
) -> dict[str, dict[str, Result]]:
    """Return {exercise: {student: Result}}, for these `exercises` and `students`; empty means all."""
    submissions = select(
        SubmittedAssignment.id, SubmittedAssignment.timestamp, SubmittedAssignment.student_id, Assignment.name
    ).join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
    if exercises:
        submissions = submissions.where(Assignment.name.in_(exercises))
    if students:
        submissions = submissions.where(SubmittedAssignment.student_id.in_(students))
    by_id = {row.id: Result(row.student_id, row.name, row.timestamp) for row in gradebook.db.execute(submissions)}
    most = maxima(gradebook)
    notebooks = select(
        SubmittedNotebook.id,
        SubmittedNotebook.assignment_id,
        SubmittedNotebook.late_submission_penalty,
        SubmittedNotebook.flagged,
    )
    of_notebook: dict[str, Result] = {}
    for row in gradebook.db.execute(notebooks):
        if row.assignment_id in by_id:
            result = of_notebook[row.id] = by_id[row.assignment_id]
            result.penalty += row.late_submission_penalty or 0.0
            result.flagged |= bool(row.flagged)
    grades = select(
        Grade.notebook_id,
        Grade.cell_id,
        Grade.auto_score,
        Grade.manual_score,
        Grade.extra_credit,
        Grade.needs_manual_grade,
    )
    for row in gradebook.db.execute(grades):
        if (graded := of_notebook.get(row.notebook_id)) and row.cell_id in most:
            name, at_most = most[row.cell_id]
            score = row.manual_score if row.manual_score is not None else row.auto_score
            points = None if score is None else score + (row.extra_credit or 0.0)
            graded.questions[name] = Question(name, points, at_most, bool(row.needs_manual_grade))
    by_exercise: dict[str, dict[str, Result]] = defaultdict(dict)
    for result in by_id.values():
        by_exercise[result.exercise][result.student] = result
    return {exercise: dict(sorted(by_exercise[exercise].items())) for exercise in sorted(by_exercise)}


def maxima(gradebook: Gradebook) -> dict[str, tuple[str, float]]:
    """Return {id of a graded cell: (its name, see `called`; its maximum of points)}."""
    cells: dict[str, tuple[tuple[str, str, str], float]] = {}
    for kind in (GradeCell, TaskCell):
        # Both joined tables have a column `id`; `__table__.c.id` says which one.
        rows = gradebook.db.execute(
            select(
                BaseCell.__table__.c.id,
                BaseCell.__table__.c.name,
                kind.__table__.c.max_score,
                Notebook.name.label("notebook"),
                Notebook.assignment_id,
            )
            .join(kind.__table__, kind.__table__.c.id == BaseCell.__table__.c.id)
            .join(Notebook, Notebook.id == BaseCell.__table__.c.notebook_id)
        )
        cells |= {row.id: ((row.assignment_id, row.notebook, row.name), row.max_score) for row in rows}
    names = called(place for place, _ in cells.values())
    return {cell: (names[place], most) for cell, (place, most) in cells.items()}


def called(places: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
    """Return a name for each cell, a tuple (assignment, notebook, grade_id): no other of the assignment has it.

    It is the grade_id. Where two notebooks of an assignment have one in common, the notebook's name comes before it.
    """
    every = set(places)
    times = Counter((assignment, name) for assignment, _, name in every)
    return {place: place[2] if times[place[0], place[2]] == 1 else f"{place[1]}/{place[2]}" for place in every}


def most_points(gradebook: Gradebook) -> dict[str, float]:
    """Return {exercise: its maximum of points}."""
    cells = maxima(gradebook)
    rows = gradebook.db.execute(
        select(BaseCell.__table__.c.id, Assignment.name)
        .join(Notebook, BaseCell.__table__.c.notebook_id == Notebook.id)
        .join(Assignment, Notebook.assignment_id == Assignment.id)
    )
    most: dict[str, float] = defaultdict(float)
    for row in rows:
        if row.id in cells:
            most[row.name] += cells[row.id][1]
    return dict(most)


def students(gradebook: Gradebook) -> dict[str, Student]:
    """Return the class list, {student id: student}, sorted by id."""
    return {student.id: student for student in gradebook.db.scalars(select(Student).order_by(Student.id))}


def called_by(student: Student) -> str:
    """Return a student's name with the id: "Ana Alvarez (ana)", or the id alone without a name."""
    name = " ".join(filter(None, (student.first_name, student.last_name)))
    return f"{name} ({student.id})" if name else student.id
