"""The command that grades a class: `make grade SUBMISSIONS=folder`, or `python -m autograder.grade` for any course.

The folder holds `student/exercise/exercise.ipynb`, like nbgrader's own `submitted` folder. The command judges many
submissions at once, each in its own sandbox. One writer then takes each through nbgrader's pipeline, which puts the
points into the gradebook and writes a feedback page. You can stop it at any moment; the next run continues from there.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

from sqlalchemy.exc import SAWarning, SQLAlchemyError

from . import cage, once
from .course import (
    CannotGrade,
    Course,
    NothingGraded,
    Ready,
    Submission,
    first_line,
    opened,
    printable,
    shown,
    shown_url,
)
from .judging import preprocessor
from .judging.judge import Settings
from .judging.judges import GraderFault, Judges
from .results import report
from .results.pages import NoPage, Pages
from .sandbox.envelope import CannotSandbox
from .standing import Standing
from .submissions import intake

UNSANDBOXED = "UNSANDBOXED: students' code runs with your rights, because you chose --unsandboxed"


@dataclass
class Written:
    """A submission with its points in the gradebook and its page under way. `words`: its line of output so far."""

    submission: Submission
    ready: Ready
    standing: Standing
    words: str
    seconds: float


# The command


def main(arguments: list[str] | None = None) -> int:
    """Grade what the command line names; return the exit status.

    0: every submission is graded. 1: some are not. 2: none can be graded. 130: interrupted, as in shells.
    """
    asked = options().parse_args(arguments)
    warnings.simplefilter("ignore", SAWarning)  # nbgrader causes one for every new submission
    try:
        with ExitStack() as stack:
            return graded(asked, stack)
    except (NothingGraded, CannotSandbox) as reason:
        print(f"cannot grade: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: every submission with a line above is graded; run it again to continue", file=sys.stderr)
        return 130


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="grade", description="Grade submissions, <student>/<exercise>/<exercise>.ipynb, of any nbgrader course."
    )
    parser.add_argument("folder", nargs="?", type=Path, help="submissions (default: the course's submitted folder)")
    parser.add_argument(
        "--course", type=Path, help="folder with an nbgrader_config.py (default: this one, else the book's)"
    )
    parser.add_argument("--exercise", metavar="NAME", help="grade only this exercise")
    parser.add_argument("--student", metavar="NAME", help="grade only this student")
    parser.add_argument("--regrade", action="store_true", help="judge again, even where a verdict is stored")
    parser.add_argument("--jobs", type=int, help="submissions at once (default: one per core)")
    parser.add_argument("--into", type=Path, help="folder for gradebook and feedback (the book's own exercises only)")
    parser.add_argument(
        "--db", metavar="URL", help="gradebook to use, such as postgresql+psycopg://user@host/gradebook"
    )
    parser.add_argument("--dask", metavar="ADDRESS", help="judge on the workers of this Dask scheduler")
    parser.add_argument("--unsandboxed", action="store_true", help="run students' code with your own rights")
    return parser


def graded(asked: argparse.Namespace, stack: ExitStack) -> int:
    """Grade what the command line names; return the exit status. Everything that must be closed goes on the stack."""
    if asked.jobs is not None and asked.jobs < 1:
        raise NothingGraded(f"--jobs is {asked.jobs}; it must be at least 1")
    folder = asked.folder.resolve() if asked.folder else None
    stack.enter_context(once.shared())
    cage.warm("autograder.results.rendering", "autograder.submissions.notebooks")  # before `Pages` forks
    course = opened(asked)
    folder = folder or course.submitted
    stack.enter_context(locked(course.work))
    submissions, skipped = find(folder, course.exercises(), asked.exercise, asked.student)
    course.prepare(sorted({submission.exercise for submission in submissions}))
    course.check()
    if course.settings.unsandboxed:
        print(UNSANDBOXED)
    log = stack.enter_context((course.work / "grade.log").open("a"))
    with stderr_into(log):
        pages = stack.enter_context(Pages(course.give_feedback, min(os.cpu_count() or 1, len(submissions) or 1)))
        settings = replace(course.settings, hidden=(*course.settings.hidden, str(folder)))
        judge, pool = judging(asked, settings, stack)
        begun, failed = time.monotonic(), list(skipped)
        with uninterrupted():
            judged = {pool.submit(course.judged, each, asked.regrade, judge): each for each in submissions}
        writer = Writer(course, folder, pages, failed)
        for count, (submission, words) in enumerate(writer.lines(judged), start=1):
            left = (time.monotonic() - begun) / count * (len(submissions) - count)
            print(f"{submission}: {printable(words)} [{count} of {len(submissions)}{remaining(left)}]", flush=True)
    print(f"\n{table(submissions, {s: words for s, words in writer.points.items() if s not in failed})}\n")
    print(f"feedback:  {shown(course.feedback)}/<student>/<exercise>/<exercise>.html")
    print(f"gradebook: {shown_url(course.database)}")
    page = report.write(course.database, course.autograded, course.work.parent, course.submitted)
    print(f"report:    {shown(page)}")
    if failed:
        print(f"{len(failed)} of {len(submissions) + len(skipped)} submissions were not graded: run it again")
    return 1 if failed else 0


def judging(asked: argparse.Namespace, settings: Settings, stack: ExitStack) -> tuple[Callable, Executor]:
    """Start the judges, as local processes or on a Dask cluster; return what judges a notebook, and a thread pool.

    Raises CannotSandbox if the sandbox doesn't hold, and NothingGraded if Dask is not installed.
    """
    jobs = os.cpu_count() or 1
    if asked.dask:
        try:
            from .judging import cluster
        except ImportError as error:
            raise NothingGraded(
                f"--dask needs a package that is missing ({error}): pip install -e '.[grade]'"
            ) from error
        judge, proof, jobs = cluster.connect(asked.dask, settings, stack)
    else:
        judges = stack.enter_context(Judges(settings))
        preprocessor.share(judges)
        judge, proof = judges.judge, judges.proof
    print(proof, flush=True)
    pool = ThreadPoolExecutor(asked.jobs or jobs)
    stack.callback(pool.shutdown, wait=False, cancel_futures=True)
    return judge, pool


@dataclass
class Writer:
    """The gradebook's only writer. It works in the thread that calls it, and adds to `failed` what it can't grade.

    `points`: of what it has written, in words.
    """

    course: Course
    folder: Path
    pages: Pages
    failed: list[Submission]
    points: dict[Submission, str] = field(default_factory=dict)

    def lines(self, judged: dict[Future, Submission]) -> Iterator[tuple[Submission, str]]:
        """Write each submission as soon as it is judged, then start its page; yield its line when the page is done."""
        finished: SimpleQueue[Future] = SimpleQueue()
        for future in judged:
            future.add_done_callback(finished.put)
        written: dict[Future, Written] = {}
        while judged or written:
            future = finished.get()
            if future in judged:
                submission = judged.pop(future)
                step: Callable = self._write
            else:
                submission, step = written[future].submission, partial(self._finish, written.pop(future))
            result = self._tried(submission, step, submission, future)
            page = self._tried(submission, self.pages.begin, submission) if isinstance(result, Written) else result
            if isinstance(page, Future):
                written[page] = result
                page.add_done_callback(finished.put)
            else:
                yield submission, page

    def _write(self, submission: Submission, judged: Future) -> Written | str:
        """Write the points with nbgrader; return the submission's line if its page is still up to date."""
        start = time.perf_counter()
        ready = judged.result()
        self.course.collect(submission, self.folder)
        if ready.is_new:
            self.course.write(submission, ready)
        standing = self.course.standing(submission)
        self.points[submission] = standing.points
        words = standing.points + (f" ({'; '.join(ready.notes)})" if ready.notes else "")
        took = sum(taken.notebook.metadata.autograder.get("seconds", 0) for taken in ready.taken.values())
        took += time.perf_counter() - start
        if not ready.is_new and self.course.has_page(submission, standing):
            self.course.mark(submission, ready, standing)  # the same answers may be in another file
            return f"{words} (graded before)"
        return Written(submission, ready, standing, words, took)

    def _finish(self, written: Written, submission: Submission, page: Future) -> str:
        """Record that the submission is complete; return its line. Without a page, write a plain one first."""
        try:
            took = written.seconds + page.result()
        except NoPage as reason:
            self.course.give_plain_feedback(submission, written.ready, str(reason))
            took = written.seconds
            written.words += f" (a plain page: {reason})"
        self.course.mark(submission, written.ready, written.standing)
        return f"{written.words} ({took:.1f} s)" if written.ready.is_new else f"{written.words} (graded before)"

    def _tried(self, submission: Submission, step: Callable, *args: Any) -> Any:
        """Return the result of a step, or a line that says why it failed, so that the rest of the class goes on."""
        try:
            return step(*args)
        except (CannotGrade, GraderFault, OSError, SQLAlchemyError) as reason:
            self.failed.append(submission)
            whose = "the grader's own fault: " if isinstance(reason, GraderFault) else ""
            return f"NOT GRADED: {whose}{first_line(reason)}"
        except NothingGraded:
            raise
        except Exception as error:
            logging.getLogger(__name__).exception("%s", submission)
            self.failed.append(submission)
            return f"NOT GRADED: {type(error).__name__}: {first_line(error)}"


# What there is to grade


def find(
    folder: Path, known: list[str], exercise: str | None = None, student: str | None = None
) -> tuple[list[Submission], list[Submission]]:
    """Return the submissions in a folder, by student, and those that can't be graded under their name.

    Prints a line for each submission of the second list and for each folder that is no exercise. Raises NothingGraded
    if the folder is missing or holds no submission of `exercise` and `student`.
    """
    if exercise is not None and exercise not in known:
        raise NothingGraded(f"no exercise is called {exercise}; there are {', '.join(known)}")
    if not folder.is_dir():
        raise NothingGraded(f"{folder} is not a folder")
    gradable: list[Submission] = []
    skipped: list[Submission] = []
    for student_place in sorted(folder.iterdir()):
        if student_place.name.startswith(".") or (student is not None and student_place.name != student):
            continue
        if student_place.is_symlink():
            print(f"{printable(student_place.name)}: NOT GRADED: a link; put the folder itself here")
            skipped.append(Submission(student_place.name, "", student_place))
            continue
        if not student_place.is_dir():
            continue
        try:
            places, left_alone = handed_in(student_place)
        except OSError as error:
            print(f"{printable(student_place.name)}: NOT GRADED: {error.strerror}")
            skipped.append(Submission(student_place.name, "", student_place))
            continue
        for path in left_alone:
            print(f"{printable(student_place.name)}/{printable(path.name)}: left alone: the folder beside it counts")
        for place, name in places:
            submission = Submission(student_place.name, name, place)
            if name not in known:
                print(f"{submission}: skipped, no exercise is called {printable(name)}")
            elif exercise in (None, name):
                fault = intake.name_fault(submission.student)
                if fault:
                    print(f"{submission}: NOT GRADED: {fault}")
                (skipped if fault else gradable).append(submission)
    if not gradable and not skipped:
        whose = f" of {student}" if student else ""
        raise NothingGraded(
            f"{folder} holds no submission{whose}; they belong in {folder}/<student>/<exercise>/<exercise>.ipynb"
        )
    return gradable, skipped


def handed_in(student_place: Path) -> tuple[list[tuple[Path, str]], list[Path]]:
    """Return (place, exercise) for each thing in a student's folder: notebooks, and whatever is no other file.

    Also return the notebooks that don't count, because a folder has the same exercise.
    """
    below = sorted(student_place.iterdir())
    folders = [(path, path.name) for path in below if not path.name.startswith(".") and path.suffix != ".ipynb"]
    folders = [(path, name) for path, name in folders if path.is_symlink() or not path.is_file()]
    taken = {name for _, name in folders}
    files = [(path, path.stem) for path in below if path.suffix == ".ipynb" and not path.name.startswith(".")]
    left_alone = [path for path, name in files if name in taken and path.is_file()]
    return folders + [(path, name) for path, name in files if name not in taken], left_alone


# What it prints, and where


def table(submissions: list[Submission], points: dict[Submission, str]) -> str:
    """Return a table of points: a row per student, a column per exercise."""
    columns = sorted({submission.exercise for submission in submissions})
    cells = {(each.student, each.exercise): points.get(each, "not graded") for each in submissions}
    rows = [["student", *columns]]
    for student in sorted({submission.student for submission in submissions}):
        rows.append([printable(student), *(cells.get((student, column), "-") for column in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def remaining(seconds: float) -> str:
    """Return the time left as ", 3 min left"; "" below one second."""
    if seconds < 1:
        return ""
    return f", {seconds:.0f} s left" if seconds < 100 else f", {seconds / 60:.0f} min left"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against a second command. The kernel drops the lock when the process ends, however it ends."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NothingGraded(f"another grade command is at work in {shown(folder)}; wait until it ends") from None
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Heed an interrupt only after the block: Python's locks lose one that comes while a thread starts."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def stderr_into(log: TextIO) -> Iterator[None]:
    """Send stderr of this process and its children to a file, so that it doesn't mix with the lines of output."""
    saved = os.dup(2)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


if __name__ == "__main__":
    sys.exit(main())
