"""The generator of exercises/ from solutions/: `make exercises`.

Instructors write solutions/03_ring/03_ring.md, with answers and hidden tests. nbgrader releases every file beside a
source notebook, so this module writes the notebook into _build/source/, alone in its folder. nbgrader's own
generate_assignment then turns it into exercises/03_ring/03_ring.ipynb. The same text always gives the same file.

`solutions/` is public. If the environment names a folder in COLLECTIVES_PRIVATE, an exercise comes from there instead,
where that folder has one of its name: `autograder.private` starts and checks such exercises.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import compute_checksum, is_solution
from traitlets.config import Config

ROOT = Path(__file__).resolve().parents[1]
SOLUTIONS = ROOT / "solutions"
SOURCES = ROOT / "_build" / "source"
EXERCISES = ROOT / "exercises"
PRIVATE = "COLLECTIVES_PRIVATE"  # in the environment: the folder of an instructor's own exercises
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def main() -> int:
    """Generate or check every exercise; return the exit status."""
    arguments = argparse.ArgumentParser(description="Generate exercises/ from solutions/.")
    arguments.add_argument("--check", action="store_true", help="change nothing; fail if an exercise is out of date")
    if arguments.parse_args().check:
        faults = differences()
        print("\n".join(faults) or "exercises: up to date with solutions/")
        return 1 if faults else 0
    if os.environ.get(PRIVATE):
        print("exercises: exercises/ is public, so your own exercises don't go there; run `make bundle PRIVATE=folder`")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        for name in sorted(set(released(EXERCISES)) | set(names())):
            replace(EXERCISES / name, Path(folder) / name)
    return 0


def replace(old: Path, new: Path) -> None:
    """Replace the folder `old` with `new`, or remove it if there is no `new`. Keep a folder that holds answers."""
    if any(has_answers(path) for path in old.rglob("*.ipynb")):
        print(f"exercises: {old.name} holds answers, so it stays as it is; to regenerate it, move it elsewhere first")
        return
    shutil.rmtree(old, ignore_errors=True)
    if new.exists():
        shutil.copytree(new, old)
    print(f"exercises: {old.name} {'written' if new.exists() else 'removed'}")


def has_answers(path: Path) -> bool:
    """Return whether any solution cell of a released notebook has changed since its release."""
    cells = nbformat.read(path, as_version=4).cells
    return any(is_solution(cell) and cell.metadata.nbgrader.checksum != compute_checksum(cell) for cell in cells)


def texts() -> dict[str, Path]:
    """Return {name: file} of all exercises, such as "03_ring". An instructor's own come before the public ones."""
    folders = [SOLUTIONS, *map(Path, filter(None, [os.environ.get(PRIVATE)]))]
    found = [path for folder in folders for path in folder.glob("*/*.md") if path.stem == path.parent.name]
    return {path.stem: path for path in sorted(found, key=lambda path: (path.stem, path.parents[1] != SOLUTIONS))}


def names() -> list[str]:
    """Return the names of all exercises."""
    return list(texts())


def write_sources(folder: Path = SOURCES) -> None:
    """Write each exercise, with its answers, as the only file of `folder`/<name>/."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in names():
        (folder / name).mkdir(parents=True)
        nbformat.write(source(name), folder / name / f"{name}.ipynb")


def source(name: str) -> NotebookNode:
    """Return the source notebook of an exercise. An instructor's own says so: a page shows none of its hidden tests."""
    text = texts()[name]
    notebook = notebook_of(text)
    if text.parents[1] != SOLUTIONS:
        notebook.metadata["autograder"] = NotebookNode(private=True)
    return notebook


def notebook_of(text: Path) -> NotebookNode:
    """Return the notebook that a text describes. A cell's id is its grade_id, or else its position."""
    notebook = jupytext.read(text)
    notebook.metadata = NotebookNode(kernelspec=KERNEL, language_info={"name": "python"})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for place, cell in enumerate(notebook.cells):
        cell.id = cell.metadata.get("nbgrader", {}).get("grade_id", f"cell-{place}")
    return notebook


def generate(release: Path) -> None:
    """Generate the students' version of every exercise in the folder `release`, with nbgrader, without a gradebook."""
    write_sources()
    config = Config()
    config.CourseDirectory.root = str(ROOT)
    config.CourseDirectory.source_directory = str(SOURCES)
    config.CourseDirectory.release_directory = str(release)
    config.SaveCells.enabled = False
    config.GenerateAssignment.no_database = True
    config.GenerateAssignment.force = True
    for name in names():
        course = CourseDirectory(config=config, assignment_id=name)
        converter = GenerateAssignment(coursedir=course, config=config)
        converter.log.setLevel("ERROR")
        converter.start()


def differences() -> list[str]:
    """Return one line for each exercise that differs from what its solution generates."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        generated, current = released(Path(folder)), released(EXERCISES)
    faults = [f"exercises/{name} is missing" for name in sorted(set(generated) - set(current))]
    faults += [f"exercises/{name} has no solution" for name in sorted(set(current) - set(generated))]
    both = sorted(set(generated) & set(current))
    changed = [name for name in both if generated[name] != current[name]]
    faults += [f"exercises/{name} differs from what its solution generates" for name in changed]
    return [f"{fault}: run `make exercises`" for fault in faults]


def released(folder: Path) -> dict[str, dict[str, str]]:
    """Return the text of every file in each exercise's folder, {exercise: {file: text}}."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".ipynb_checkpoints" not in path.parts]
    texts: dict[str, dict[str, str]] = {}
    for path in files:
        name, *rest = path.relative_to(folder).parts
        texts.setdefault(name, {})["/".join(rest)] = path.read_text()
    return texts


if __name__ == "__main__":
    sys.exit(main())
