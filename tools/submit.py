"""Packs an exercise to hand in: `make submit EXERCISE=03_ring STUDENT=ada`.

First looks the notebook over: it must be readable, have all its cells, have unchanged checks that were run, and no
empty answers. It prints every problem as a note, but refuses only a notebook that can't be graded at all. With `--run`
the visible checks run again, from the top. The zip's name, <student>_<exercise>_<time>.zip, tells the grader's
`make collect` whose it is.
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
MOST_BYTES = 20_000_000  # the grader refuses larger notebooks
STUDENT = re.compile(r"\w[\w.@-]{0,63}")


class CannotSubmit(Exception):
    """Raised if there is nothing to hand in, with a message for the student."""


def main(arguments: list[str] | None = None) -> int:
    """Pack the exercise named on the command line; return 0 if a zip was written, else 2."""
    parser = argparse.ArgumentParser(description="Pack an exercise to hand in.")
    parser.add_argument("exercise", help="such as 03_ring")
    parser.add_argument("--student", default="", help="your id in the course (default: ask for it)")
    parser.add_argument("--notebook", type=Path, help="default: exercises/<exercise>/<exercise>.ipynb")
    parser.add_argument("--into", type=Path, default=ROOT / "_build" / "submit", help="folder for the zip")
    parser.add_argument("--run", action="store_true", help="run the notebook's checks first")
    options = parser.parse_args(arguments)
    try:
        exercise = known(options.exercise)
        path = options.notebook or EXERCISES / exercise / f"{exercise}.ipynb"
        notebook = read(path)
        remarks = look_over(notebook, released(exercise))
        if options.run:
            remarks += run(path, notebook)
        packed = pack(path, exercise, who(options.student), options.into)
    except CannotSubmit as reason:
        print(f"cannot submit: {reason}", file=sys.stderr)
        return 2
    for remark in remarks:
        print(f"note: {remark}")
    print(f"packed {packed}: hand in this file" + (", or fix the notes above and pack again" if remarks else ""))
    return 0


def known(exercise: str) -> str:
    """Return the exercise's name; raise `CannotSubmit` if no exercise has it."""
    names = sorted(path.name for path in EXERCISES.iterdir() if (path / f"{path.name}.ipynb").exists())
    if exercise not in names:
        raise CannotSubmit(f"no exercise is called {exercise!r}; there are {', '.join(names)}")
    return exercise


def who(student: str) -> str:
    """Return the student's id; prompt for it on a terminal if it is empty.

    Raises `CannotSubmit` without an id, or for one with other characters than `STUDENT` allows.
    """
    if not student and sys.stdin.isatty():
        student = input("Your id in the course: ").strip()
    if not student:
        raise CannotSubmit("your id is missing: make submit EXERCISE=03_ring STUDENT=your-id")
    if not STUDENT.fullmatch(student):
        raise CannotSubmit(f"{student!r} is not an id: use at most 64 letters, digits and . @ - _")
    return student


def read(path: Path) -> NotebookNode:
    """Return the notebook; raise `CannotSubmit` if the grader couldn't read it."""
    if not path.is_file():
        raise CannotSubmit(f"there is no {path}")
    if path.stat().st_size > MOST_BYTES:
        raise CannotSubmit(f"{path.name} has more than {MOST_BYTES // 1_000_000} MB: clear its outputs and save it")
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # a file that isn't a notebook fails in too many ways to list
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        problem = f"{path.name} cannot be read as a notebook ({first[:100]})"
        raise CannotSubmit(f"{problem}: open it in Jupyter and save it") from error
    return notebook


def released(exercise: str) -> NotebookNode | None:
    """Return the notebook as it was released: a bundle's own copy, else that of git's HEAD, else None."""
    copy = ROOT / "released" / f"{exercise}.ipynb"
    if copy.is_file():
        return nbformat.read(copy, as_version=4)
    path = f"exercises/{exercise}/{exercise}.ipynb"
    try:
        done = subprocess.run(["git", "show", f"HEAD:{path}"], cwd=ROOT, capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return nbformat.reads(done.stdout.decode(), as_version=4) if done.returncode == 0 else None


def look_over(notebook: NotebookNode, given_out: NotebookNode | None) -> list[str]:
    """Return one line per problem: cells missing or duplicated, checks edited, not run or failing, empty answers.

    Raises `CannotSubmit` if the notebook has none of the exercise's cells.
    """
    remarks = []
    cells = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    names = [cell.metadata.nbgrader.get("grade_id", "") for cell in cells]
    if given_out is not None:
        expected = [cell.metadata.nbgrader.grade_id for cell in given_out.cells if "nbgrader" in cell.metadata]
        if not set(expected) & set(names):
            raise CannotSubmit("this notebook has none of the exercise's cells: is it another exercise's?")
        missing = [name for name in expected if name not in names]
        remarks += [f"the cell {name} is missing: copy it from a fresh copy of the exercise" for name in missing]
    repeated = {name: times for name, times in Counter(names).items() if times > 1}
    remarks += [f"the cell {name} appears {times} times: delete the copies" for name, times in repeated.items()]
    for name, cell in zip(names, cells, strict=True):
        untouched = cell.metadata.nbgrader.get("checksum") == compute_checksum(cell)
        if is_solution(cell) and untouched:
            remarks.append(f"the answer {name} is empty")
        elif is_locked(cell) and not untouched and not is_solution(cell):
            remarks.append(f"the cell {name} was edited; the grader uses the original")
        if is_grade(cell) and cell.cell_type == "code":
            if cell.execution_count is None:
                remarks.append(f"the check {name} was not run")
            elif any(output.output_type == "error" for output in cell.outputs):
                remarks.append(f"the check {name} fails")
    return remarks


def run(path: Path, notebook: NotebookNode) -> list[str]:
    """Run the notebook from the top with nbgrader's validator; return a line per failing check, with its message."""
    named = {cell.source.strip(): cell.metadata.get("nbgrader", {}).get("grade_id") for cell in notebook.cells}
    failed = Validator(ignore_checksums=True).validate(str(path.resolve())).get("failed", [])
    words = {named[cell["source"]]: cell["raw_error"].strip().splitlines() for cell in failed}
    return [f"run from the top, the check {name} fails: {lines[-1] if lines else ''}" for name, lines in words.items()]


def pack(path: Path, exercise: str, student: str, into: Path) -> Path:
    """Write the zip, which holds only the notebook; return its path."""
    into.mkdir(parents=True, exist_ok=True)
    packed = into / f"{student}_{exercise}_{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path, f"{exercise}.ipynb")
    return packed


if __name__ == "__main__":
    sys.exit(main())
