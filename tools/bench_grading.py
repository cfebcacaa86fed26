"""How fast a class is graded: this grader, with its sandbox, beside stock nbgrader, on the same submissions in one run.

Two classes: one whose notebook needs numpy alone, and one with torch and four real ranks over gloo. Of each, stock
`nbgrader autograde` grades some, then this grader all, then stock some more, so that neither has the quieter machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from textwrap import dedent

import nbformat.v4 as v4

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.prefix) / "bin"
CLASSES = {  # name: what is given, the answer, the tests
    "numpy": (
        """
        import numpy as np
        """,
        """
        def softmax(x):
            x = np.exp(x - np.max(x))
            return x / x.sum()

        def squares(n):
            return [k * k for k in range(n)]
        """,
        """
        x = np.arange(5.0)
        assert np.allclose(softmax(x).sum(), 1) and softmax(x)[4] > softmax(x)[0]
        for n in range(60):
            assert squares(n) == [k**2 for k in range(n)]
        """,
    ),
    "torch and gloo": (
        """
        import torch
        import torch.distributed as dist
        from collectives import ranks
        """,
        """
        def total(rank, world_size, numbers):
            tensor = numbers + rank
            dist.all_reduce(tensor)
            return tensor
        """,
        """
        numbers = torch.arange(1000.0)
        for got in ranks.run(total, 4, numbers):
            assert torch.equal(got, 4 * numbers + 6)
        """,
    ),
}
COLUMNS = ("class", "stock, s each", "its page, s", "this, s each", "ratio", "start, s", "peak, GB")
STOCK = 'c = get_config()\nc.CourseDirectory.course_id = "bench"\nc.Execute.timeout = 120\n'
OURS = f'import sys\nsys.path.insert(0, "{ROOT}")\nfrom autograder import configure\n{STOCK}configure(c)\n'


def main() -> None:
    """Grade both classes, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--students", type=int, default=100, help="of each class, for this grader")
    parser.add_argument("--stock", type=int, default=20, help="of them for stock nbgrader, in two halves")
    asked = parser.parse_args()
    print(f"{os.cpu_count()} cores; load before: {os.getloadavg()[0]:.1f}; this grader: proof, sandbox, pages and all")
    print("".join(map("{:>16}".format, COLUMNS)))
    for name, notebook in CLASSES.items():
        with tempfile.TemporaryDirectory() as folder:
            row(name, notebook, Path(folder), asked.students, asked.stock)


def row(name: str, notebook: tuple, folder: Path, students: int, stock: int) -> None:
    """Grade one class in turns, and print what it took."""
    half = stock // 2
    halves = [course(folder / f"stock{turn}", STOCK, notebook, half) for turn in range(2)]
    whole, few = course(folder / "ours", OURS, notebook, students), course(folder / "few", OURS, notebook, 1)
    stock_seconds = [stocked(halves[0], half)]
    with Peak() as peak:
        seconds = ours(whole)
    start = ours(few)
    stock_seconds.append(stocked(halves[1], half))
    pages = timed([BIN / "nbgrader", "generate_feedback", "hw"], halves[1]) / half
    each, before = seconds / students, statistics.mean(stock_seconds)
    values = (before, pages, each, before / each, start, peak.most / 1e9)
    print(f"{name:>16}" + "".join(map("{:>16.2f}".format, values)))


def course(folder: Path, config: str, notebook: tuple, students: int) -> Path:
    """Make a course with one assignment, `hw`, released, and handed in by so many students."""
    given, answer, test = (dedent(source).strip() for source in notebook)
    roles = [(given, {"locked": True}), (answer, {"solution": True})]
    roles += [(test, {"grade": True, "locked": True, "points": 1})]
    cells = []
    for number, (source, marks) in enumerate(roles):
        marks = {
            "schema_version": 3,
            "grade_id": f"c{number}",
            "grade": False,
            "solution": False,
            "task": False,
        } | marks
        cells.append(v4.new_code_cell(source, id=f"c{number}", metadata={"nbgrader": {"locked": False} | marks}))
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    text = json.dumps(v4.new_notebook(cells=cells, metadata=metadata))
    (folder / "source" / "hw").mkdir(parents=True)
    (folder / "source" / "hw" / "hw.ipynb").write_text(text)
    (folder / "nbgrader_config.py").write_text(config)
    timed([BIN / "nbgrader", "generate_assignment", "hw"], folder)
    for student in range(students):
        place = folder / "submitted" / f"s{student:03d}" / "hw"
        place.mkdir(parents=True)
        released = json.loads((folder / "release" / "hw" / "hw.ipynb").read_text())
        released["cells"][1]["source"] = answer + f"\n# {student}"  # no two are the same
        (place / "hw.ipynb").write_text(json.dumps(released))
    return folder


def stocked(folder: Path, students: int) -> float:
    """Seconds a submission takes by stock nbgrader, without its start."""
    begun = timed([BIN / "nbgrader", "autograde", "hw", "--student", "s000"], folder)  # one, and the start
    everyone = timed([BIN / "nbgrader", "autograde", "hw", "--force"], folder)
    return (everyone - begun) / (students - 1)


def ours(folder: Path) -> float:
    """Seconds that this grader takes for the whole class, its start included."""
    return timed([sys.executable, "-m", "autograder.grade", "--course", folder], folder)


def timed(command: list, folder: Path) -> float:
    begun = time.monotonic()
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.monotonic() - begun


class Peak:
    """Watches how much memory this machine has left; `most`: bytes that were taken, at most."""

    def __enter__(self) -> Peak:
        self.before, self.most, self.over = _available(), 0, threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.over.wait(0.1):
            self.most = max(self.most, self.before - _available())


def _available() -> int:
    pages = Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]
    return int(pages) * 1024


if __name__ == "__main__":
    main()
