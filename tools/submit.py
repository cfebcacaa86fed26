"""Packs an exercise to hand in: `make submit EXERCISE=03_ring STUDENT=ada`.

Looks the notebook over first: that it can be read, has all its cells, that its checks are as they were and were run,
and that no answer is empty. What is amiss is told, and only what cannot be graded at all is refused. With `--run` the
visible checks run once more, from the top. The zip is called <student>_<exercise>_<time>.zip, which is how the
grader's `make collect` knows whose it is.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import zipfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.utils import compute_checksum, is_grade, is_locked, is_solution
from nbgrader.validator import Validator

ROOT = Path(__file__).resolve().parents[1]
EXERCISES = ROOT / "exercises"
MOST_BYTES = 20_000_000  # what the grader takes in
STUDENT = re.compile(r"\w[\w.@-]{0,63}")


class CannotSubmit(Exception):
    """Why there is nothing to hand in, in words for the student."""


def main(arguments: list[str] | None = None) -> int:
    """Pack what the command line names; return 0 if there is a zip."""
    parser = argparse.ArgumentParser(description="Pack an exercise to hand in.")
    parser.add_argument("exercise", help="such as 03_ring")
    parser.add_argument("--student", default="", help="your id, as your teacher has it; asked for if it is not given")
    parser.add_argument("--notebook", type=Path, help="by default exercises/<exercise>/<exercise>.ipynb")
    parser.add_argument("--into", type=Path, default=ROOT / "_build" / "submit", help="where the zip goes")
    parser.add_argument("--run", action="store_true", help="run the notebook's checks first")
    given = parser.parse_args(arguments)
    try:
        exercise = known(given.exercise)
        path = given.notebook or EXERCISES / exercise / f"{exercise}.ipynb"
        notebook = read(path)
        remarks = look_over(notebook, released(exercise))
        if given.run:
            remarks += run(path, notebook)
        packed = pack(path, exercise, who(given.student), given.into)
    except CannotSubmit as reason:
        print(f"cannot submit: {reason}", file=sys.stderr)
        return 2
    for remark in remarks:
        print(f"note: {remark}")
    print(f"packed {packed}: hand in this file" + (", or correct what is noted and pack again" if remarks else ""))
    return 0


def known(exercise: str) -> str:
    """Return the exercise's name; raise `CannotSubmit` if there is none of that name."""
    names = sorted(path.name for path in EXERCISES.iterdir() if (path / f"{path.name}.ipynb").exists())
    if exercise not in names:
        raise CannotSubmit(f"no exercise is called {exercise!r}; there are {', '.join(names)}")
    return exercise


def who(student: str) -> str:
    """Return the student's id, asking for it if need be."""
    if not student and sys.stdin.isatty():
        student = input("Your id, as your teacher has it: ").strip()
    if not student:
        raise CannotSubmit("say who you are: make submit EXERCISE=03_ring STUDENT=your-id")
    if not STUDENT.fullmatch(student):
        raise CannotSubmit(f"{student!r} is no id: letters, digits and . @ - _, at most 64 of them")
    return student


def read(path: Path) -> NotebookNode:
    """Return the notebook; raise `CannotSubmit` if the grader could not read it."""
    if not path.is_file():
        raise CannotSubmit(f"there is no {path}")
    if path.stat().st_size > MOST_BYTES:
        raise CannotSubmit(f"{path.name} has more than {MOST_BYTES // 1_000_000} MB: clear its outputs, then save it")
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # what is not a notebook fails in more ways than can be listed
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CannotSubmit(
            f"{path.name} cannot be read as a notebook ({first[:100]}): open it in Jupyter, save it"
        ) from error
    return notebook


def released(exercise: str) -> NotebookNode | None:
    """Return the notebook as it was given out, from git; None if there is no git that knows."""
    path = f"exercises/{exercise}/{exercise}.ipynb"
    try:
        done = subprocess.run(["git", "show", f"HEAD:{path}"], cwd=ROOT, capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return nbformat.reads(done.stdout.decode(), as_version=4) if done.returncode == 0 else None


def look_over(notebook: NotebookNode, given_out: NotebookNode | None) -> list[str]:
    """Say what is amiss, a line each: cells missing or twice, checks edited or not run or not right, empty answers."""
    remarks = []
    cells = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    names = [cell.metadata.nbgrader.get("grade_id", "") for cell in cells]
    if given_out is not None:
        wanted = [c.metadata.nbgrader.grade_id for c in given_out.cells if "nbgrader" in c.metadata]
        if not set(wanted) & set(names):
            raise CannotSubmit("this notebook has none of the exercise's cells: is it another one?")
        remarks += [
            f"the cell {name} is missing: put it back, from a fresh copy of the exercise"
            for name in wanted
            if name not in names
        ]
    twice = [name for name, times in Counter(names).items() if times > 1]
    remarks += [f"the cell {name} is in it {names.count(name)} times: delete the copies" for name in twice]
    for name, cell in zip(names, cells, strict=True):
        untouched = cell.metadata.nbgrader.get("checksum") == compute_checksum(cell)
        if is_solution(cell) and untouched:
            remarks.append(f"the answer {name} is empty")
        elif is_locked(cell) and not untouched and not is_solution(cell):
            remarks.append(f"the cell {name} was edited; it is graded as it was given out")
        if is_grade(cell) and cell.cell_type == "code":
            if cell.execution_count is None:
                remarks.append(f"the check {name} was not run")
            elif any(output.output_type == "error" for output in cell.outputs):
                remarks.append(f"the check {name} says that something is not right yet")
    return remarks


def run(path: Path, notebook: NotebookNode) -> list[str]:
    """Run the notebook from the top, as nbgrader's `validate` does; say which checks fail, and with which words."""
    named = {cell.source.strip(): cell.metadata.get("nbgrader", {}).get("grade_id") for cell in notebook.cells}
    failed = Validator(ignore_checksums=True).validate(str(path.resolve())).get("failed", [])
    words = {named[cell["source"]]: cell["raw_error"].strip().splitlines() for cell in failed}
    return [f"run from the top, the check {name} says: {lines[-1] if lines else ''}" for name, lines in words.items()]


def pack(path: Path, exercise: str, student: str, into: Path) -> Path:
    """Write the zip, with the notebook alone in it; return where it is."""
    into.mkdir(parents=True, exist_ok=True)
    packed = into / f"{student}_{exercise}_{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path, f"{exercise}.ipynb")
    return packed


if __name__ == "__main__":
    sys.exit(main())
