"""A class of three to rehearse with: `make rehearsal` writes its list and its hand-ins, as Canvas lets you download.

Ana has solved exercise 03, Ben its first part, and Chi nothing. A file that is no hand-in lies beside theirs.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from autograder import release  # noqa: E402

EXERCISE = "03_ring"
PLACE = ROOT / "_build" / "rehearsal"
CLASS = """\
Student,ID,SIS User ID,SIS Login ID,Section,03_ring (9001)
    Points Possible,,,,,20
"Alvarez, Ana",4001,,ana,A,
"Brandt, Ben",4002,,ben,A,
"Chen, Chi",4003,,chi,A,
"""
SOLVED = {"ana": 3, "ben": 1, "chi": 0}  # how many of the exercise's answers each has written


def main() -> int:
    """Write the class list and the download, and print where they are."""
    shutil.rmtree(PLACE, ignore_errors=True)
    downloads = PLACE / "downloads"
    downloads.mkdir(parents=True)
    (PLACE / "canvas.csv").write_text(CLASS)
    (downloads / "notes.txt").write_text("ask Ben about part b\n")
    for number, (student, solved) in enumerate(SOLVED.items(), start=1):
        packed = downloads / f"{student}_400{number}_800{number}_{student}_{EXERCISE}_20260302T090000Z.zip"
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr(f"{EXERCISE}.ipynb", nbformat.writes(handed_in(solved)))
    print(f"rehearsal: three students' hand-ins of {EXERCISE} and their class list are in {PLACE.relative_to(ROOT)}")
    return 0


def handed_in(solved: int) -> nbformat.NotebookNode:
    """Return exercise 03 as it was released, with its first `solved` answers."""
    notebook = nbformat.read(release.EXERCISES / EXERCISE / f"{EXERCISE}.ipynb", as_version=4)
    answers = {cell.id: cell.source for cell in release.source(EXERCISE).cells}
    empty = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("solution")]
    for cell in empty[:solved]:
        cell.source = answers[cell.id]
    return notebook


if __name__ == "__main__":
    sys.exit(main())
