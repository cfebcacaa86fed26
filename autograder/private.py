"""Exercises of an instructor's own, in a folder outside the public repository: `make private PRIVATE=folder`.

This repository is public, with its answers and hidden tests. Whoever hands in a published answer gets its points, so a
class whose grades count needs exercises whose published answers are wrong. `EXERCISE=03_ring` copies one into the
folder, where you change what it asks for: a parameter, a direction, a convention, together with the tests. Without
it, the command grades two submissions of each exercise in the folder: your answers, which should get all points, and
the published answers, which should not.

Bundles and grades are made from the folder too: `make bundle PRIVATE=folder`, `make grade PRIVATE=folder ...`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbgrader.api import Gradebook

from . import points, release

OWN, PUBLISHED = "your-answers", "published-answers"


class Unfit(ValueError):
    """Why a folder can't be used, in one line for the instructor."""


def start(name: str, folder: Path) -> Path:
    """Copy a public exercise into the folder; return its new place. Raise `Unfit` for a wrong name, or if it exists."""
    public = release.SOLUTIONS / name
    if not (public / f"{name}.md").is_file():
        raise Unfit(f"no exercise is called {name!r}; there are {', '.join(release.names())}")
    if folder.resolve().is_relative_to(release.ROOT):
        raise Unfit(f"{folder} is in the public repository; choose a folder outside it")
    if (folder / name).exists():
        raise Unfit(f"{folder / name} exists already; edit it, or remove it to start again")
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copytree(public, folder / name))


def compare(folder: Path) -> dict[str, dict[str, tuple[float, float]]]:
    """Grade your answers and the published ones by your tests: {exercise: {student: (points, most points)}}.

    `published-answers` is missing for an exercise that the public repository doesn't have. Raises `Unfit` if the
    folder holds no exercise, or if grading fails.
    """
    own = {path.stem: path for path in sorted(folder.glob("*/*.md")) if path.stem == path.parent.name}
    if not own:
        raise Unfit(f"{folder} holds no exercise; start one with `make private PRIVATE={folder} EXERCISE=03_ring`")
    with tempfile.TemporaryDirectory() as place:
        submissions, into = Path(place, "submissions"), Path(place, "graded")
        for name, text in own.items():
            for student, answers in ((OWN, text), (PUBLISHED, release.SOLUTIONS / name / f"{name}.md")):
                if answers.is_file():
                    target = submissions / student / name
                    target.mkdir(parents=True)
                    nbformat.write(release.notebook_of(answers), target / f"{name}.ipynb")
        command = [sys.executable, "-m", "autograder.grade", str(submissions), "--into", str(into)]
        environment = os.environ | {release.PRIVATE: str(folder.resolve())}
        done = subprocess.run(command, cwd=release.ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise Unfit(f"the exercises can't be graded:\n{(done.stdout + done.stderr).strip()}")
        with Gradebook(f"sqlite:///{into / 'gradebook.db'}") as gradebook:
            most = points.most_points(gradebook)
            return {
                name: {student: (result.points, most[name]) for student, result in by_student.items()}
                for name, by_student in points.results(gradebook, list(own)).items()
            }


def verdict(name: str, found: dict[str, tuple[float, float]]) -> tuple[str, bool]:
    """Return what one exercise's two grades mean, in a line, and whether the exercise is fit to be given out."""
    mine, most = found[OWN]
    line = f"{name}: your answers get {mine:g} of {most:g}"
    if PUBLISHED in found:
        line += f", the published answers {found[PUBLISHED][0]:g}"
    if PUBLISHED in found and found[PUBLISHED][0] >= mine:
        return f"{line}. NOT PRIVATE: change what it asks for, and its tests", False
    return line, True


def main(arguments: list[str] | None = None) -> int:
    """Start or compare exercises; return 0 if all are private, 1 if one isn't, and 2 on a wrong command."""
    parser = argparse.ArgumentParser(prog="autograder.private", description="Keep exercises outside the repository.")
    parser.add_argument("folder", type=Path, help="a folder outside this repository")
    parser.add_argument("--exercise", metavar="NAME", help="copy this public exercise into the folder")
    command = parser.parse_args(arguments)
    try:
        if command.exercise:
            place = start(command.exercise, command.folder)
            print(f"wrote {place}: change what it asks for, its answers and its tests")
            return 0
        verdicts = [verdict(name, found) for name, found in compare(command.folder).items()]
    except Unfit as reason:
        print(f"private: {reason}", file=sys.stderr)
        return 2
    for line, _ in verdicts:
        print(line)
    return 0 if all(fit for _, fit in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
