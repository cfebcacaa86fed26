"""Makes what students get: `make bundle` writes _build/collectives-students.zip.

It holds the exercises without answers and hidden tests, the library as a wheel without the grader, and the command that
packs an exercise to hand in. Nothing in it comes from solutions/, tests/ or autograder/, except the released notebooks.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import wheel
from fingerprint import ROOT

from autograder import release

NAME = "collectives-students"
README = """# Collectives from First Principles: the exercises

You need Python 3.11 or newer. In this folder, once:

    python3 -m venv .venv
    .venv/bin/pip install --constraint constraints.txt {wheel} jupyterlab nbgrader

Then open the exercises:

    .venv/bin/jupyter lab exercises

In each notebook, replace every `raise NotImplementedError()`, and run the check below it. To hand in, pack one exercise
and upload the zip that the command names:

    .venv/bin/python tools/submit.py 03_ring --student your-id

On Windows, use `.venv\\Scripts\\` instead of `.venv/bin/`; exercises with real ranks need Linux or macOS, or WSL.
"""


def main() -> int:
    """Write the bundle and print what it holds."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, NAME)
        fill(place)
        (ROOT / "_build").mkdir(exist_ok=True)
        made = Path(shutil.make_archive(str(ROOT / "_build" / NAME), "zip", folder, NAME))
        count = len(list(place.glob("exercises/*/*.ipynb")))
    size = made.stat().st_size / 1e6
    print(f"bundle: {count} exercises and the library, {size:.1f} MB: {made.relative_to(ROOT)}")
    return 0


def fill(place: Path) -> None:
    """Write everything that students get into a new folder."""
    release.generate(place / "exercises")
    (place / "released").mkdir()
    for notebook in place.glob("exercises/*/*.ipynb"):
        shutil.copy(notebook, place / "released")
    (place / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "submit.py", place / "tools")
    shutil.copy(ROOT / "constraints.txt", place)
    shutil.copy(ROOT / "LICENSE", place)
    with tempfile.TemporaryDirectory() as folder:
        built = wheel.build(Path(folder), "autograder", "solutions", "tests", isolated=False)
        shutil.copy(built, place)
    (place / "README.md").write_text(README.format(wheel=built.name))


if __name__ == "__main__":
    raise SystemExit(main())
