"""What a gradebook has of a submission, and the mark that says what its feedback page shows.

`make grade` leaves a mark when a submission's points and page are complete. The next run reads it to skip what is done,
and `make return` to tell which notebook and which points a page is about.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment


@dataclass(frozen=True)
class Standing:
    """What the gradebook has of a submission.

    `points`: as "12/20", plus how many of them a person must still grade or confirm. `digest`: of all its points and
    comments; "" if the gradebook doesn't have it.
    """

    points: str = "not graded"
    digest: str = ""


def read(gradebook: Gradebook, exercise: str, student: str) -> Standing:
    """Read a submission's points and comments from the gradebook."""
    try:
        result = gradebook.find_submission(exercise, student)
    except MissingEntry:
        return Standing()
    rows = []
    for notebook in result.notebooks:
        points = [
            (g.name, g.auto_score, g.manual_score, g.extra_credit, bool(g.needs_manual_grade)) for g in notebook.grades
        ]
        words = [(c.name, c.auto_comment, c.manual_comment) for c in notebook.comments]
        rows.append([notebook.name, notebook.late_submission_penalty, sorted(points), sorted(words)])
    return Standing(in_words(result), hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest())


def in_words(result: SubmittedAssignment) -> str:
    """Return a submission's points as `Standing` has them."""
    grades = [grade for notebook in result.notebooks for grade in notebook.grades]
    open_points = [(grade.max_score, grade.manual_score) for grade in grades if grade.needs_manual_grade]
    to_grade = sum(most for most, by_hand in open_points if by_hand is None)
    to_confirm = sum(by_hand for _, by_hand in open_points if by_hand is not None)  # regraded since
    off = sum(notebook.late_submission_penalty or 0.0 for notebook in result.notebooks)
    words = f"{max(result.score - off, 0.0):g}/{result.max_score:g}"
    words += f", {off:g} off because it was late" if off else ""
    words += f", {to_grade:g} to grade" if to_grade else ""
    return words + (f", {to_confirm:g} to confirm" if to_confirm else "")


def mark_of(work: Path, exercise: str, student: str) -> Path:
    """Return the file of a submission's mark. `work`: the folder of the course's verdicts."""
    name = hashlib.sha256(f"{student}/{exercise}".encode()).hexdigest()[:40]
    return work / f"{name}.done"


def marked(work: Path, exercise: str, student: str) -> dict:
    """Return a submission's mark, {} without one.

    `what`: what was judged; `grades`: the digest of the standing that the page shows; `handed_in`: {notebook: the
    digest of its file}.
    """
    try:
        return json.loads(mark_of(work, exercise, student).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
