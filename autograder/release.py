"""Generates exercises/ from solutions/: `make exercises`.

solutions/03_ring/03_ring.md is what instructors write, answers and hidden tests included. nbgrader releases every
file that lies beside a source notebook, so the notebook is made in _build/source/, where nothing else is, and
nbgrader's own generate_assignment turns it into exercises/03_ring/03_ring.ipynb. The same text always gives the
same file.
"""

import argparse
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
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def main() -> int:
    """Generate or check every exercise; return the exit status."""
    arguments = argparse.ArgumentParser(description="Generate exercises/ from solutions/.")
    arguments.add_argument("--check", action="store_true", help="change nothing; fail if one is out of step")
    if arguments.parse_args().check:
        faults = differences()
        print("\n".join(faults) or "exercises: in step with solutions/")
        return 1 if faults else 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        for name in sorted(set(released(EXERCISES)) | set(names())):
            replace(EXERCISES / name, Path(folder) / name)
    return 0


def replace(old: Path, new: Path) -> None:
    """Put the folder `new` in place of `old`, or only remove `old`; but never overwrite somebody's answers."""
    if any(has_answers(path) for path in old.rglob("*.ipynb")):
        print(f"exercises: {old.name} holds answers, so it stays as it is; to renew it, move it elsewhere first")
        return
    shutil.rmtree(old, ignore_errors=True)
    if new.exists():
        shutil.copytree(new, old)
    print(f"exercises: {old.name} {'written' if new.exists() else 'removed'}")


def has_answers(path: Path) -> bool:
    """Tell whether a solution cell of a released notebook is no longer as it was released."""
    cells = nbformat.read(path, as_version=4).cells
    return any(is_solution(cell) and cell.metadata.nbgrader.checksum != compute_checksum(cell) for cell in cells)


def names() -> list[str]:
    """Return the names of all exercises, such as "03_ring"."""
    return sorted(text.stem for text in SOLUTIONS.glob("*/*.md") if text.stem == text.parent.name)


def write_sources(folder: Path = SOURCES) -> None:
    """Write each exercise with its answers as a notebook, alone in a folder of its own inside `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in names():
        (folder / name).mkdir(parents=True)
        nbformat.write(source(name), folder / name / f"{name}.ipynb")


def source(name: str) -> NotebookNode:
    """Return the source notebook of an exercise; a cell's id is its grade_id, or else its place."""
    notebook = jupytext.read(SOLUTIONS / name / f"{name}.md")
    notebook.metadata = NotebookNode(kernelspec=KERNEL, language_info={"name": "python"})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for place, cell in enumerate(notebook.cells):
        cell.id = cell.metadata.get("nbgrader", {}).get("grade_id", f"cell-{place}")
    return notebook


def generate(release: Path) -> None:
    """Let nbgrader make the learners' version of every exercise in the folder `release`; no gradebook is touched."""
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
    """Say, a line each, which exercises are not what their solutions give."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        wanted, found = released(Path(folder)), released(EXERCISES)
    faults = [f"exercises/{name} is missing" for name in sorted(set(wanted) - set(found))]
    faults += [f"exercises/{name} has no solution it could come from" for name in sorted(set(found) - set(wanted))]
    both = sorted(set(wanted) & set(found))
    faults += [f"exercises/{name} differs from what its solution gives" for name in both if wanted[name] != found[name]]
    return [f"{fault}: run `make exercises`" for fault in faults]


def released(folder: Path) -> dict[str, dict[str, str]]:
    """Return the text of every file in each exercise's folder: {exercise: {file: text}}."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".ipynb_checkpoints" not in path.parts]
    texts: dict[str, dict[str, str]] = {}
    for path in files:
        name, *rest = path.relative_to(folder).parts
        texts.setdefault(name, {})["/".join(rest)] = path.read_text()
    return texts


if __name__ == "__main__":
    sys.exit(main())
