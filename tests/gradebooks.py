"""Gradebooks made without grading anything: written in one transaction, so that a class of a thousand takes seconds."""

from nbgrader.api import (
    Assignment,
    Base,
    Course,
    Grade,
    GradeCell,
    Notebook,
    SourceCell,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
)
from sqlalchemy import create_engine
from sqlalchemy.orm import Session


def gradebook_of(url, questions, points, penalties=(), students=(), by_hand=("words",), stubs=()):
    """Make a gradebook at `url` and return the URL.

    `questions`: {exercise: {grade_id: most points}}; those called as in `by_hand` are for a person to grade.
    `points`: {(student, exercise): {grade_id: points, or None while nobody has given any}}.
    `penalties`: {(student, exercise): points}. `students`: {student: attributes}, such as first_name.
    `stubs`: {exercise: {grade_id: the released source of an answer}}.
    """
    engine = create_engine(url)
    Base.metadata.create_all(engine)  # `Gradebook(url)` would do it, too, and start alembic, which takes seconds
    with Session(engine) as session:
        session.add(Course(id="default_course"))
        cells, notebooks = {}, {}
        for exercise, most in questions.items():
            assignment = Assignment(name=exercise, course_id="default_course")
            notebooks[exercise] = Notebook(name=exercise, assignment=assignment)
            for name, points_of in most.items():
                kind = "markdown" if name in by_hand else "code"
                cell = GradeCell(name=name, max_score=points_of, cell_type=kind, notebook=notebooks[exercise])
                cells[exercise, name] = cell
            for name, source in dict(stubs).get(exercise, {}).items():
                SourceCell(name=name, source=source, cell_type="code", locked=False, notebook=notebooks[exercise])
            session.add(assignment)
        ids = sorted({student for student, _ in points} | {*students})
        people = {student: Student(id=student, **dict(students).get(student, {})) for student in ids}
        session.add_all(people.values())
        for (student, exercise), given in points.items():
            notebook = notebooks[exercise]
            handed_in = SubmittedAssignment(assignment=notebook.assignment, student=people[student])
            submitted = SubmittedNotebook(assignment=handed_in, notebook=notebook)
            submitted.late_submission_penalty = dict(penalties).get((student, exercise))
            for name, score in given.items():
                grade = Grade(cell=cells[exercise, name], notebook=submitted, needs_manual_grade=score is None)
                grade.auto_score = None if name in by_hand else score
                grade.manual_score = score if name in by_hand else None
                session.add(grade)
        session.commit()
    engine.dispose()
    return url
