"""What students get is whole and holds no answer: notebooks, the library as a wheel, and the command to hand in."""

import os
import subprocess
import sys
import zipfile

import bundle
import nbformat
import pytest
from test_grading import answers, fill

from autograder import release

pytestmark = pytest.mark.slow
EXERCISE = "02_tree"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A bundle as a student unpacks it, with the wheel's files in site/, where pip would put them."""
    place = tmp_path_factory.mktemp("bundle") / bundle.NAME
    bundle.fill(place)
    (wheel,) = place.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(place / "site")
    return place


def run(place, *command):
    environment = {**os.environ, "PYTHONPATH": str(place / "site")}
    return subprocess.run([sys.executable, *command], cwd=place, env=environment, capture_output=True, text=True)


def test_a_bundle_holds_every_exercise_and_no_grader_answer_or_hidden_test(unpacked):
    assert sorted(path.stem for path in unpacked.glob("exercises/*/*.ipynb")) == release.names()
    texts = {path: path.read_text(errors="replace") for path in unpacked.rglob("*") if path.suffix in (".py", ".ipynb")}
    assert not [path for path, text in texts.items() if "### BEGIN HIDDEN" in text or "### BEGIN SOLUTION" in text]
    assert not list(unpacked.rglob("autograder*")) and not list(unpacked.rglob("solutions*"))


def test_the_library_of_a_bundle_is_all_that_the_exercises_import(unpacked):
    code = "import collectives, importlib, pathlib, sys; root = pathlib.Path(collectives.__file__).parent; print(root)"
    code += "; [importlib.import_module(f'collectives.practice.{path.stem}') for path in root.glob('practice/*.py')]"
    done = run(unpacked, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(unpacked / "site" / "collectives")


def test_a_student_packs_an_exercise_from_the_bundle_and_is_told_what_it_lacks(unpacked):
    path = unpacked / "exercises" / EXERCISE / f"{EXERCISE}.ipynb"
    notebook = fill(EXERCISE, answers("full", EXERCISE))
    del notebook.cells[-1]
    nbformat.write(notebook, path)
    done = run(unpacked, "tools/submit.py", EXERCISE, "--student", "ada", "--run")
    assert done.returncode == 0, done.stderr
    assert "is missing: copy it from a fresh copy" in done.stdout and "fails" not in done.stdout
    assert len(list((unpacked / "_build" / "submit").glob(f"ada_{EXERCISE}_*.zip"))) == 1
