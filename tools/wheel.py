"""Checks the wheel: builds it, installs it in a clean environment, and uses the library from there (`make wheel`)."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from fingerprint import ROOT

USE = """
import collectives
from collectives import contracts, draw, simulate
from collectives.algorithms import ring
import numpy as np

schedule = ring.all_reduce(world_size=4)
contracts.all_reduce.check(schedule)
after = simulate(schedule, np.ones((4, 8)))
assert (after == 4).all(), after
assert "<script" in draw(schedule).html(), "a figure lacks its script"
print(f"wheel: a ring all-reduce of 4 ranks gives {after[0, 0]:.0f} in {collectives.__file__}")
"""


def main() -> int:
    """Build, inspect, install and use the wheel; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        if missing := left_out(wheel):
            print(f"wheel: {wheel.name} lacks {', '.join(missing)}: see [tool.setuptools] in pyproject.toml")
            return 1
        print(f"wheel: {wheel.name} has every file of collectives and autograder")
        return use(wheel, Path(folder))


def tracked() -> list[Path]:
    """Return the repository's files, relative to its root."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for path in map(Path, listed.stdout.splitlines()) if (ROOT / path).is_file()]


def build(folder: Path, *left_out: str, isolated: bool = True) -> Path:
    """Build the wheel from a copy of the tracked files, because setuptools leaves files in its source folder.

    `left_out`: top folders that the copy lacks. `isolated`: build with a setuptools that pip downloads for it.
    """
    source = folder / "source"
    for path in tracked():
        if path.parts[0] not in left_out:
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, source / path)
    how = [] if isolated else ["--no-build-isolation"]
    pip(sys.executable, "wheel", "--no-deps", *how, "--wheel-dir", folder, source)
    return next(folder.glob("*.whl"))


def left_out(wheel: Path) -> list[str]:
    """Return the files of the library and the grader that a wheel lacks."""
    scripts = Path("autograder", "classroom")  # pyproject.toml excludes it
    own = [path for path in tracked() if path.parts[0] in ("autograder", "collectives") and path.suffix != ".md"]
    names = zipfile.ZipFile(wheel).namelist()
    return [str(path) for path in own if str(path) not in names and scripts not in path.parents]


def use(wheel: Path, folder: Path) -> int:
    """Install a wheel in a new environment and use it from an empty folder; return the exit status."""
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip(python, "install", "--constraint", ROOT / "constraints.txt", wheel)
    (folder / "empty").mkdir()
    return subprocess.run([python, "-c", USE], cwd=folder / "empty").returncode


def pip(python: str | Path, *arguments: str | Path) -> None:
    """Run pip quietly."""
    subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
