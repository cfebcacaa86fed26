"""The instructor's first hour is as the guide prints it: every command of that section is run in a fresh copy."""

import doctest
import io
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import wheel

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "autograder" / "README.md").read_text(encoding="utf-8")
FIRST_HOUR = GUIDE.partition("## Your first hour")[2].partition("\n## ")[0]
READY = [f"--assume-old=.venv/.ready-{tier}" for tier in ("book", "grade", "test")]  # the copy has the original's .venv


def commands():
    """The guide's commands, each with the lines that it should print."""
    found = []
    for line in re.findall(r"^    (.*)$", FIRST_HOUR, re.MULTILINE):
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


def matches(expected, line):
    """Whether a line is the expected one, in which `...` stands for anything."""
    return doctest.OutputChecker().check_output(f"{expected}\n", f"{line}\n", doctest.ELLIPSIS)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository's files, in a folder where grades may be written."""
    place = tmp_path_factory.mktemp("first") / "collectives"
    for path in wheel.tracked():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, place / path)
    for name in (".venv", "node_modules"):
        (place / name).symlink_to((ROOT / name).resolve())
    subprocess.run(["git", "init", "-q"], cwd=place, check=True)
    subprocess.run(["git", "add", "."], cwd=place, check=True)
    return place


def test_every_command_of_the_first_hour_prints_what_the_guide_says(copy):
    # `make test` runs this test, and a make inside a make says which folder it enters.
    outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}
    environment = {name: value for name, value in os.environ.items() if name not in outer} | {"PYTHONPATH": str(copy)}
    ran = commands()
    assert [command.split()[:2] for command, _ in ran][1:3] == [["make", "rehearsal"], ["make", "bundle"]]
    for command, expected in ran:
        if command.startswith("git clone"):  # the copy
            continue
        words = command.split()
        words = [*words[:1], *READY, *words[1:]] if words[0] == "make" else words
        done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        printed = [line for line in done.stdout.splitlines() if line.strip()]
        assert {line for line in printed if not any(matches(each, line) for each in expected)} == set(), command
        assert {each for each in expected if not any(matches(each, line) for line in printed)} == set(), command
        if "export" in command:
            grades = (copy / "_build" / "rehearsal" / "grades.csv").read_text()
            assert [line.rpartition(",")[2] for line in grades.splitlines()] == ["03_ring (9001)", "20", "20", "6", "0"]
        if "return" in words:
            with zipfile.ZipFile(copy / "_build" / "grade" / "03_ring-for-canvas.zip") as pages:
                for number, student in enumerate(("ana", "ben", "chi"), start=1):
                    page = io.BytesIO(pages.read(f"for-{student}_400{number}_800{number}_page.zip"))
                    assert f"({student})" in zipfile.ZipFile(page).read("03_ring.html").decode()
    assert not (copy / "_build" / "grade").exists()
