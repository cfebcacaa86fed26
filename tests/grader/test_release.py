"""exercises/ is generated from solutions/: in step, the same every time, and without an answer or a hidden test."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from autograder import release

ROOT = Path(__file__).resolve().parents[2]
NAMES = release.names()


COPIED = ("03_ring", "04_all_reduce")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of what generation reads and writes, of two exercises, to be changed at will."""
    root = tmp_path_factory.mktemp("course")
    for folder in ("autograder", *(f"{part}/{name}" for part in ("solutions", "exercises") for name in COPIED)):
        shutil.copytree(ROOT / folder, root / folder)
    return root


def run_tool(root, *arguments):
    command = [sys.executable, "-m", "autograder.release", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


@pytest.mark.slow
def test_the_exercises_are_in_step_with_the_solutions():
    done = run_tool(ROOT, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_second_generation_changes_nothing(copy):
    files = [path for path in (copy / "exercises").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    assert run_tool(copy).returncode == 0
    assert {path: path.read_bytes() for path in (copy / "exercises").rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_an_exercise_out_of_step_is_named(copy):
    shutil.copytree(copy / "exercises" / "03_ring", copy / "exercises" / "98_old")
    path = copy / "exercises" / "03_ring" / "03_ring.ipynb"
    path.write_text(path.read_text().replace("Exercise 03", "Exercise 3"))
    shutil.rmtree(copy / "exercises" / "04_all_reduce")
    done = run_tool(copy, "--check")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "exercises/04_all_reduce is missing: run `make exercises`",
        "exercises/98_old has no solution: run `make exercises`",
        "exercises/03_ring differs from what its solution generates: run `make exercises`",
    ]
    assert run_tool(copy).returncode == 0
    assert run_tool(copy, "--check").returncode == 0


@pytest.mark.slow
def test_answers_of_a_learner_are_never_overwritten(copy):
    path = copy / "exercises" / "04_all_reduce" / "04_all_reduce.ipynb"
    answered = path.read_text().replace("raise NotImplementedError()", "return 42", 1)
    path.write_text(answered)
    done = run_tool(copy)
    assert "04_all_reduce holds answers, so it stays as it is" in done.stdout
    assert path.read_text() == answered


@pytest.mark.parametrize("name", NAMES)
def test_no_answer_and_no_hidden_test_is_released(name):
    """Line by line: what stands only between the markers of the source stands nowhere in the release."""
    released = nbformat.read(ROOT / "exercises" / name / f"{name}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in released.cells)
    assert "SOLUTION" not in text
    assert "HIDDEN" not in text
    secret, told = set(), set()
    for cell in release.source(name).cells:
        inside = False
        for line in cell.source.splitlines():
            inside = (inside or "### BEGIN" in line) and "### END" not in line
            (secret if inside else told).add(line.strip())
    assert len(secret - told) > 15
    assert not (secret - told) & {line.strip() for line in text.splitlines()}
    assert [path.name for path in (ROOT / "exercises" / name).iterdir()] == [f"{name}.ipynb"]
