"""A class that is graded: the courses, with all submissions handed in, and what the command has made of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from traitlets.config import Config

from . import KINDS, Submission, course, damaging, forging, honest, leaking, malformed, on_ranks, speaking, starving  # noqa: F401
from .world import World, fingerprint

JUDGED = """
from autograder import configure

c = get_config()
configure(c, cell_seconds={cell_seconds}, submission_seconds={submission_seconds}, limits={{"memory": {memory}}})
"""


@dataclass(frozen=True)
class Graded:
    """A course that has been graded. `before`: the fingerprint of what the command has to leave as it is."""

    folder: Path
    printed: str
    complained: str
    status: int
    seconds: float
    before: dict[str, str]
    after: dict[str, str]

    def points(self, student: str, exercise: str) -> float | None:
        """The points by tests; None if there is no mark."""
        with Gradebook(f"sqlite:///{self.folder}/gradebook.db") as gradebook:
            known = {one.student.id: one for one in gradebook.assignment_submissions(exercise)}
            return known[student].score if student in known else None

    def outputs(self, student: str, exercise: str) -> str:
        """All that the cells of the graded notebook put out."""
        path = self.folder / "autograded" / student / exercise / f"{exercise}.ipynb"
        cells = nbformat.read(path, as_version=4).cells if path.is_file() else []
        return "\n".join(json.dumps(output, ensure_ascii=False) for cell in cells for output in cell.get("outputs", []))

    def page(self, student: str, exercise: str) -> str:
        """The feedback page; "" if there is none."""
        path = self.folder / "feedback" / student / exercise / f"{exercise}.html"
        return path.read_text(errors="replace") if path.is_file() else ""


def found(kinds: tuple[str, ...]) -> dict[str, Submission]:
    """The submissions of these kinds: {student: submission}."""
    return {f"{kind}-{name}": one for kind in kinds for name, one in KINDS[kind].items()}


def make_course(world: World, settings: str) -> None:
    """Write the fresh course into `world.course`, with these settings of nbgrader's, and release it."""
    sources = {"numbers": course.numbers, "words": course.words}
    for name, made in sources.items():
        place = world.course / "source" / name
        place.mkdir(parents=True)
        nbformat.write(made(world.canaries["a hidden test"], world.canaries["a solution"]), place / f"{name}.ipynb")
    (world.course / "nbgrader_config.py").write_text(settings)
    os.environ["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ["PATH"]]
    )  # nbgrader runs `alembic`
    database = f"sqlite:///{world.course}/gradebook.db"
    config = Config(CourseDirectory={"root": str(world.course), "db_url": database}, NbGraderAPI={"log_level": "ERROR"})
    for name in sources:
        done = NbGraderAPI(config=config).generate_assignment(name)
        assert done["success"], done["log"]


def hand_in_all(world: World, submissions: dict[str, Submission], released: dict[str, Path], into: Path) -> None:
    """Hand in each for the exercise whose released notebook has the cells that it answers."""
    places = world.places()
    cells = {name: _ids(path) for name, path in released.items()}
    for student, one in submissions.items():
        exercise = next(name for name, known in cells.items() if set(one.answers) <= known)
        _hand_in(world, one, released[exercise], into / student / exercise, places)


def hand_in_words(world: World, students: list[str]) -> None:
    """Hand in the second exercise, rightly answered, for these students."""
    released = world.course / "release" / "words" / "words.ipynb"
    for student in students:
        _hand_in(
            world, Submission("", course.RIGHT_WORDS), released, world.course / "submitted" / student / "words", {}
        )


def _hand_in(world: World, one: Submission, released: Path, folder: Path, places: dict[str, str]) -> None:
    notebook = nbformat.read(released, as_version=4)
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name in one.answers:
            cell.source = one.answers[name]
    if one.points:  # an honest one is worth copying
        notebook.cells[-1].source = world.canaries["a fellow's work"]
    if one.edit:
        one.edit(notebook)
    for cell in notebook.cells:
        for name, value in places.items():
            cell.source = cell.source.replace(name, value)
    folder.mkdir(parents=True)
    text = json.dumps(notebook)  # with all that is not ASCII escaped, so that it may be no text
    for name, value in places.items():
        text = text.replace(name, value)
    (folder / released.name).write_text(text)
    if one.place:
        one.place(folder, world)


def _ids(released: Path) -> set[str]:
    return {cell.metadata.get("nbgrader", {}).get("grade_id") for cell in nbformat.read(released, as_version=4).cells}


def graded(world: World, folder: Path, *arguments: object, kept: tuple[Path, ...]) -> Graded:
    """Run the command as its user does; `folder` is where the gradebook lies afterwards."""
    before = {path: what for top in kept for path, what in fingerprint(top).items()}
    start = time.monotonic()
    command = [sys.executable, "-m", "autograder.grade", *arguments]
    done = subprocess.run(
        list(map(str, command)),
        env=world.environment(),
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
    )
    after = {path: what for top in kept for path, what in fingerprint(top).items()}
    return Graded(folder, done.stdout, done.stderr, done.returncode, time.monotonic() - start, before, after)
