"""Times the grading of a class: this grader with its sandbox against stock nbgrader, on the same submissions.

There are two classes: the notebook of one needs only numpy, that of the other torch and four real ranks over gloo. For
each, stock `nbgrader autograde` grades some submissions, this grader grades all, then stock grades some more. So both
meet the same load on the machine.
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
CLASSES = {  # name: the released code, the answer, the tests
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
    """Grade both classes and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--students", type=int, default=100, help="students per class, for this grader (100)")
    parser.add_argument("--stock", type=int, default=20, help="of these, for stock nbgrader, in two halves (20)")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores; load before: {os.getloadavg()[0]:.1f}; this grader: with proof, sandbox and pages")
    print("".join(map("{:>16}".format, COLUMNS)))
    for name, notebook in CLASSES.items():
        with tempfile.TemporaryDirectory() as folder:
            row(name, notebook, Path(folder), options.students, options.stock)


def row(name: str, notebook: tuple, folder: Path, students: int, stock: int) -> None:
    """Grade one class with both graders in turns and print the times."""
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
    """Create a course with one released assignment, `hw`, and the submissions of `students` students."""
    setup, answer, test = (dedent(source).strip() for source in notebook)
    roles = [
        (setup, {"locked": True}),
        (answer, {"solution": True}),
        (test, {"grade": True, "locked": True, "points": 1}),
    ]
    defaults = {"schema_version": 3} | dict.fromkeys(("grade", "solution", "task", "locked"), False)
    cells = []
    for number, (source, role) in enumerate(roles):
        marks = defaults | {"grade_id": f"c{number}"} | role
        cells.append(v4.new_code_cell(source, id=f"c{number}", metadata={"nbgrader": marks}))
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
        released["cells"][1]["source"] = answer + f"\n# {student}"  # all submissions differ
        (place / "hw.ipynb").write_text(json.dumps(released))
    return folder


def stocked(folder: Path, students: int) -> float:
    """Return the seconds per submission of stock nbgrader, without its start-up time."""
    first = timed([BIN / "nbgrader", "autograde", "hw", "--student", "s000"], folder)  # start-up and one submission
    everyone = timed([BIN / "nbgrader", "autograde", "hw", "--force"], folder)
    return (everyone - first) / (students - 1)


def ours(folder: Path) -> float:
    """Return the seconds that this grader takes for the whole class, including its start-up time."""
    return timed([sys.executable, "-m", "autograder.grade", "--course", folder], folder)


def timed(command: list, folder: Path) -> float:
    begun = time.monotonic()
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.monotonic() - begun


class Peak:
    """A context that samples this machine's free memory every 0.1 s. `most`: the most bytes taken since the start."""

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
