"""Exercises outside the public repository: they come before the public ones, and the published answers fail them."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from traitlets.config import Config

from autograder import private, release
from autograder.results import feedback

pytestmark = pytest.mark.sandbox

ROOT = Path(__file__).resolve().parents[2]
EXERCISE = "03_ring"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A private course with exercise 03, as `make private` starts one."""
    place = tmp_path_factory.mktemp("private")
    assert private.main([str(place), "--exercise", EXERCISE]) == 0
    return place


def counting_bytes(text):
    """Exercise 03 with a part b that counts bytes of float32, not elements."""
    text = text.replace("return int(sum(", "return 4 * int(sum(").replace("the elements that all", "the bytes that all")
    text = text.replace("check_count(element_transfers,", "check_count(lambda *given: element_transfers(*given) / 4,")
    return text.replace("== 24 * (8 - 1)", "== 4 * 24 * (8 - 1)")


def test_a_copy_of_a_public_exercise_is_named_until_published_answers_fail_it(folder, capsys):
    assert private.main([str(folder)]) == 1
    said = capsys.readouterr().out
    assert said == "03_ring: your answers get 20 of 20, the published answers 20. NOT PRIVATE: " + (
        "change what it asks for, and its tests\n"
    )
    text = folder / EXERCISE / f"{EXERCISE}.md"
    text.write_text(counting_bytes(text.read_text()))
    assert private.main([str(folder)]) == 0
    assert capsys.readouterr().out == "03_ring: your answers get 20 of 20, the published answers 16\n"


def test_what_students_get_and_what_grades_them_comes_from_the_private_folder(folder, monkeypatch, tmp_path):
    (folder / EXERCISE / f"{EXERCISE}.md").write_text(counting_bytes((release.texts()[EXERCISE]).read_text()))
    monkeypatch.setenv(release.PRIVATE, str(folder))
    assert release.texts()[EXERCISE] == folder / EXERCISE / f"{EXERCISE}.md"
    assert release.texts()["02_tree"].is_relative_to(release.SOLUTIONS)
    command = [sys.executable, "-m", "autograder.release"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 2 and "exercises/ is public" in done.stdout


def test_no_page_shows_a_line_of_a_private_hidden_test_however_it_is_made_later(folder, tmp_path):
    """formgrader makes pages, too, in a process that knows no folder of an instructor's own."""
    public = release.texts()[EXERCISE].read_text()
    hidden = "ch03_ring.check_count({}, schedules, num_elements=120)"
    private_text = public.replace(
        hidden.format("element_transfers"), hidden.format("lambda *a: element_transfers(*a) / 1")
    )
    (folder / EXERCISE / f"{EXERCISE}.md").write_text(private_text)
    handed_in = tmp_path / "submissions" / "ada" / EXERCISE / f"{EXERCISE}.ipynb"
    handed_in.parent.mkdir(parents=True)
    answers = release.source(EXERCISE)
    (answer,) = [cell for cell in answers.cells if "def element_transfers" in cell.source]
    answer.source = answer.source.replace("return int(sum(", "return 'x' if num_elements == 120 else int(sum(")
    nbformat.write(answers, handed_in)
    command = [
        sys.executable,
        "-m",
        "autograder.grade",
        str(tmp_path / "submissions"),
        "--into",
        str(tmp_path / "graded"),
    ]
    environment = os.environ | {release.PRIVATE: str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "ada/03_ring: 18/20" in done.stdout, done.stdout + done.stderr
    graded = nbformat.read(tmp_path / "graded" / "autograded" / "ada" / EXERCISE / f"{EXERCISE}.ipynb", as_version=4)
    page = feedback.InertPage(config=Config(InertPage={"show_replay": True})).from_notebook_node(graded)[0]
    assert "A hidden check failed." in page and "ends in TypeError" in page
    assert "To run it again" not in page
    assert "lambda *a" not in page, "not even in a check's own message"


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--exercise", "99_x"], "no exercise is called '99_x'; there are 02_tree"),
        (["--exercise", EXERCISE], "exists already; edit it"),
        ([], "holds no exercise; start one with `make private PRIVATE="),
    ],
)
def test_a_wrong_command_is_answered_in_a_line_and_changes_nothing(arguments, reason, tmp_path, capsys):
    if "exists" in reason:
        (tmp_path / EXERCISE).mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert private.main([str(tmp_path), *arguments]) == 2
    assert reason in capsys.readouterr().err and sorted(tmp_path.rglob("*")) == before


def test_a_folder_in_the_public_repository_is_refused(capsys):
    assert private.main([str(ROOT / "solutions" / "mine"), "--exercise", EXERCISE]) == 2
    assert "is in the public repository; choose a folder outside it" in capsys.readouterr().err
