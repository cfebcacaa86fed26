"""Times the grading of a class: this grader with its sandbox against stock nbgrader, on the same submissions.

There are two classes: the notebook of one needs only numpy, that of the other torch and four real ranks over gloo. The
two graders take turns: in each round, stock nbgrader autogrades a few submissions and writes their pages, and this
grader does the same for these and some more. So both meet the same load, and a round gives one ratio; what is printed
is the median, with the least and the most. No command's time is subtracted from another's: each is split where its own
output says that a submission begins. Stock nbgrader's first submission, which is slower than all others, belongs to its
start; of this grader's time, all from the proof on is the submissions'.

On a machine with other work to do, wall time says little: stock nbgrader mostly waits for kernels to start and to end,
which load doesn't lengthen, and this grader computes. So CPU seconds stand beside it, of each command with all that it
starts. They are counted where this user may make control groups of version 1 (`/sys/fs/cgroup/cpuacct`), else they are
"-".

`--arrive` measures something else: a class hands in within some minutes before a deadline, while this grader runs over
and over until all have their points; with `--deaths`, on a Dask cluster of two local workers, one of which is killed
every so many seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import dask
import nbformat.v4 as v4
from distributed import LocalCluster, Status

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
COLUMNS = ("start, s", "CPU, s", "each, s", "CPU each, s")
STOCK = 'c = get_config()\nc.CourseDirectory.course_id = "bench"\nc.Execute.timeout = 120\n'
OURS = f'import sys\nsys.path.insert(0, "{ROOT}")\nfrom autograder import configure\n{STOCK}configure(c)\n'
# A command, the words in its output that begin a submission, and how many submissions belong to its start.
AUTOGRADE = [BIN / "nbgrader", "autograde", "hw"], "Creating/updating student", 1
PAGES = [BIN / "nbgrader", "generate_feedback", "hw"], "Converting notebook", 1
GRADE = [sys.executable, "-m", "autograder.grade", "--course", "."], "contained:", 0
GROUPS = Path("/sys/fs/cgroup/cpuacct")  # where the kernel counts processor time by control group
WORKERS = 2  # of a Dask cluster on this machine
CLASS = 100  # students in the class that the last column is about


def main() -> None:
    """Grade both classes and print what each grader takes for them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often the graders take turns (5)")
    parser.add_argument("--stock", type=int, default=4, help="submissions of a round that both grade (4)")
    parser.add_argument("--students", type=int, default=16, help="submissions of a round that this grader grades (16)")
    parser.add_argument("--only", choices=CLASSES, help="measure one class")
    parser.add_argument("--arrive", type=int, metavar="N", help="in place of all that, let so many students hand in")
    parser.add_argument("--minutes", type=float, default=5.0, help="before the deadline, in which they do (5)")
    parser.add_argument("--deaths", type=float, metavar="S", help="on a Dask cluster whose workers die every S seconds")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores; load before: {load()}; this grader: with proof, sandbox and pages", flush=True)
    for name in [options.only] if options.only else CLASSES:
        with tempfile.TemporaryDirectory() as folder:
            if options.arrive:
                arrival(name, Path(folder), options)
            else:
                compare(name, Path(folder), options)


def load() -> str:
    """Return this machine's load: how many processes want a core."""
    return f"{os.getloadavg()[0]:.1f}"


# The two graders, in turn


class Took(NamedTuple):
    """Seconds of a command: its start, and each submission after that; of the clock, and of processors."""

    start: float
    start_cpu: float
    each: float
    cpu: float

    def __add__(self, other: tuple) -> Took:  # type: ignore[override]
        """Add what another command takes for the same submissions."""
        return Took(*map(sum, zip(self, other, strict=True)))

    def of(self, students: int) -> float:
        """Return the seconds for a start and so many submissions after it."""
        return self.start + students * self.each


def compare(name: str, folder: Path, options: argparse.Namespace) -> None:
    """Let both graders take turns at one class; print the medians and the ratios."""
    stock = course(folder / "stock", STOCK, CLASSES[name], options.stock)
    ours = course(folder / "ours", OURS, CLASSES[name], options.students)
    before: list[Took] = []
    points: list[Took] = []
    whole: list[Took] = []
    failures = 0
    while len(whole) < options.rounds:
        try:
            graded = took(AUTOGRADE, fresh(stock), options.stock)
            paged = took(PAGES, stock, options.stock)
            mine = took(GRADE, fresh(ours), options.students)
        except Failed as reason:  # under load, a kernel of stock nbgrader's sometimes dies before it answers
            failures += 1
            print(f"{name}: a round is repeated, {str(reason).strip().splitlines()[-1]}", file=sys.stderr)
            if failures > options.rounds:
                raise
            continue
        points.append(graded)
        before.append(graded + paged)
        whole.append(mine)
        print(f"{name}, round {len(whole)} of {options.rounds}: load {load()}", file=sys.stderr)
    print(f"\n{name + ', medians':>24}" + "".join(map("{:>14}".format, COLUMNS)))
    for who, times in (("stock, points", points), ("stock, points and pages", before), ("this", whole)):
        print(f"{who:>24}" + "".join(map(shown, (statistics.median(each) for each in zip(*times, strict=True)))))
    pairs = list(zip(before, points, whole, strict=True))
    print(f"times as fast, by round (load after: {load()}):")
    for what, ratios in {
        "a submission": [pages.each / mine.each for pages, _, mine in pairs],
        "a submission, beside stock without pages": [without.each / mine.each for _, without, mine in pairs],
        "a submission, CPU": [pages.cpu / mine.cpu for pages, _, mine in pairs],
        f"a class of {CLASS}, starts included": [pages.of(CLASS - 1) / mine.of(CLASS) for pages, _, mine in pairs],
    }.items():
        print(f"{what:>44}: {statistics.median(ratios):5.1f} ({min(ratios):.1f} to {max(ratios):.1f})", flush=True)


def shown(seconds: float) -> str:
    """Return seconds as a column of the table."""
    return f"{seconds:14.2f}" if seconds == seconds else f"{'-':>14}"  # NaN: not counted here


def fresh(folder: Path) -> Path:
    """Forget all grades of a course, so that a grader begins anew; return the course."""
    for left in ("autograded", "feedback", "judged"):
        shutil.rmtree(folder / left, ignore_errors=True)
    shutil.copy(folder / "gradebook.before", folder / "gradebook.db")
    return folder


def took(command: tuple[list, str, int], folder: Path, students: int) -> Took:
    """Return what a command takes to grade so many students, or to write their pages."""
    words, beginning, first = command
    begun, split = time.monotonic(), []
    with counted() as (join, used), running(words, folder, join) as lines:
        for line in lines:
            if beginning in line:
                split.append((time.monotonic(), used()))
        ended, cpu = time.monotonic(), used()
    if len(split) <= first:
        sys.exit(f"{words}: {beginning!r} is in {len(split)} lines of its output")
    (at, at_cpu), after = split[first], students - first
    return Took(at - begun, at_cpu, (ended - at) / after, (cpu - at_cpu) / after)


class Failed(Exception):
    """A command failed. The message ends with what it printed."""


@contextlib.contextmanager
def running(command: list, folder: Path, join: Callable[[], object] = lambda: None) -> Iterator[Iterator[str]]:
    """Run a command; yield the lines that it prints. Raise Failed if it fails. `join`: called in its process."""
    printed = []

    def lines() -> Iterator[str]:
        for line in process.stdout or ():
            printed.append(line)
            yield line

    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*map(str, command)],
        cwd=folder,
        env=environment,
        preexec_fn=join,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        yield lines()
    if process.returncode:
        raise Failed(f"{command}: {''.join(printed)[-4000:]}")


@contextlib.contextmanager
def counted() -> Iterator[tuple[Callable[[], object], Callable[[], float]]]:
    """Yield (what a process calls to be counted with all its children, what returns their CPU seconds, or NaN)."""
    group = GROUPS / f"bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield (lambda: None), (lambda: math.nan)
        return
    try:
        yield (
            lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
            lambda: int((group / "cpuacct.usage").read_text()) / 1e9,
        )
    finally:
        for _ in range(100):  # a sandbox's last process ends a moment after its grader
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


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
    with running([BIN / "nbgrader", "generate_assignment", "hw"], folder) as lines:
        list(lines)
    shutil.copy(folder / "gradebook.db", folder / "gradebook.before")
    for student in range(students):
        place = folder / "submitted" / f"s{student:04d}" / "hw"
        place.mkdir(parents=True)
        released = json.loads((folder / "release" / "hw" / "hw.ipynb").read_text())
        released["cells"][1]["source"] = answer + f"\n# {student}"  # all submissions differ
        (place / "hw.ipynb").write_text(json.dumps(released))
    return folder


# A class that hands in


def arrival(name: str, folder: Path, options: argparse.Namespace) -> None:
    """Let a class hand in while this grader runs over and over; print how long its students waited."""
    place = course(folder / "class", OURS, CLASSES[name], options.arrive)
    (place / "submitted").rename(place / "coming")
    (place / "submitted").mkdir()
    draw = random.Random(options.arrive)
    window = 60 * options.minutes
    # The nearer the deadline, the more hand in: half of them in the last seventh of the time.
    moments = sorted(window - min(draw.expovariate(5 / window), window) for _ in range(options.arrive))
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(dying(options.deaths)) if options.deaths else None
        command = [*GRADE[0], *(["--dask", cluster.address] if cluster else [])]
        begun = time.monotonic()
        students = dict(zip(sorted(path.name for path in (place / "coming").iterdir()), moments, strict=True))
        threading.Thread(target=hand_in, args=(place, students, begun), daemon=True).start()
        waits: dict[str, float] = {}
        runs = 0
        while len(waits) < len(students):
            if not any((place / "submitted").iterdir()):
                time.sleep(0.1)
                continue
            runs += 1
            print(f"run {runs}, {len(waits)} of {len(students)} graded; load {load()}", file=sys.stderr)
            with running(command, place) as lines:
                for line in lines:
                    student, _, rest = line.partition("/hw: ")
                    if rest.startswith("1/1 (") and student not in waits:
                        waits[student] = time.monotonic() - begun - students[student]
        whole = time.monotonic() - begun
    ranked = sorted(waits.values())
    at = {"half": 0.5, "95 %": 0.95, "all": 1.0}
    words = ", ".join(f"{what} within {ranked[math.ceil(part * len(ranked)) - 1]:.0f} s" for what, part in at.items())
    print(f"{name}: {len(ranked)} students hand in during {window:.0f} s; {runs} runs of the grader have graded all of")
    print(f"  them {whole - window:.0f} s after the deadline. From hand-in to points and page: {words}.")
    print(f"  {cluster.deaths if cluster else 'no'} workers died. Load after: {load()}", flush=True)


def hand_in(place: Path, students: dict[str, float], begun: float) -> None:
    """Move each student's folder to the submitted ones when its moment has come."""
    for student, moment in students.items():
        time.sleep(max(begun + moment - time.monotonic(), 0))
        (place / "coming" / student).rename(place / "submitted" / student)


class Dying:
    """A Dask cluster of two workers on this machine; `deaths`: how many have been killed so far."""

    def __init__(self, cluster: Any):
        self.cluster, self.address, self.deaths = cluster, cluster.scheduler_address, 0

    def kill(self, seconds: float, over: threading.Event) -> None:
        """Kill a worker every so many seconds, in turn, if the other one lives; another takes its place."""
        while not over.wait(seconds):
            living = [nanny for nanny in self.cluster.workers.values() if nanny.status == Status.running]
            pids = [nanny.process.pid for nanny in living if nanny.process and nanny.process.pid]
            if len(pids) == WORKERS:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[self.deaths % WORKERS], signal.SIGKILL)
                    self.deaths += 1


@contextlib.contextmanager
def dying(seconds: float) -> Iterator[Dying]:
    """Start a cluster whose workers die every so many seconds."""
    dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"})  # else a slow start is taken for a loss
    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        mortal, over = Dying(cluster), threading.Event()
        killer = threading.Thread(target=mortal.kill, args=(seconds, over), daemon=True)
        killer.start()
        yield mortal
        over.set()
        killer.join()


if __name__ == "__main__":
    main()
