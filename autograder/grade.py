"""Grades a class: `make grade SUBMISSIONS=folder`, or `python -m autograder.grade` for any nbgrader course.

The folder holds `student/exercise/exercise.ipynb`, as nbgrader's own `submitted` folder does. Submissions are judged
many at once, each in its sandbox; one writer then takes each through nbgrader's own pipeline: its points go into the
gradebook, and a feedback page is written. It can be stopped at any moment, and goes on from there the next time.
"""

from __future__ import annotations

import argparse
import fcntl
import glob
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

import nbformat
from nbconvert.preprocessors import ExecutePreprocessor
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps.api import NbGraderAPI
from nbgrader.apps.baseapp import NbGrader
from nbgrader.converters import Autograde, GenerateAssignment, GenerateFeedback
from nbgrader.preprocessors import SaveAutoGrades
from nbgrader.utils import capture_log, temp_attrs
from sqlalchemy.exc import SAWarning, SQLAlchemyError
from traitlets.config import Config
from traitlets.utils.importstring import import_item

from . import once, release
from .judging import preprocessor
from .judging.judge import Settings
from .judging.judges import GraderFault, Judges, preloading
from .judging.preprocessor import EXECUTOR, Judge, TakenIn, Verdicts, data_files, key, verdict, write_whole
from .results import report
from .results.pages import Pages
from .sandbox.envelope import CannotSandbox
from .submissions import intake

ROOT = Path(__file__).resolve().parents[1]
OWN = ROOT / "autograder"  # where this course's own nbgrader_config.py is
UNSANDBOXED = "UNSANDBOXED: students' code runs with your rights, as you have chosen by --unsandboxed"
IN_WORDS = {"time": "out of time", "memory": "out of memory", "processes": "too many processes", "crash": "crashed"}


class CannotGrade(Exception):
    """Why a single submission was not graded, in words for whoever asked for it."""


class NothingGraded(Exception):
    """Why nothing is graded, or nothing more, and what to do about it."""


@dataclass(frozen=True)
class Submission:
    """What one student handed in for one exercise: a folder, or the notebook itself."""

    student: str
    exercise: str
    place: Path

    def __str__(self) -> str:
        return f"{printable(self.student)}/{printable(self.exercise)}"


@dataclass
class Ready:
    """A submission that was taken in and judged. `keys`: {notebook: its verdict's key}; `notes` for the teacher."""

    taken: dict[str, intake.Taken]
    keys: dict[str, str]
    timestamp: str | None
    notes: list[str] = field(default_factory=list)
    is_new: bool = True


@dataclass
class Written:
    """A submission whose points are in the gradebook, and whose page is being made. `words`: its line until now."""

    submission: Submission
    ready: Ready
    words: str
    seconds: float


# The command


def main(arguments: list[str] | None = None) -> int:
    """Grade what the command line names: 0 if all of it was graded, 1 if some was not, 2 if nothing can be.

    130, as shells have it, if it was interrupted.
    """
    asked = options().parse_args(arguments)
    warnings.simplefilter("ignore", SAWarning)  # nbgrader's own, on every submission that is new
    try:
        with ExitStack() as stack:
            return graded(asked, stack)
    except (NothingGraded, CannotSandbox) as reason:
        print(f"cannot grade: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: what has a line above is graded; the same command goes on from there", file=sys.stderr)
        return 130


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="grade", description="Grade submissions, <student>/<exercise>/<exercise>.ipynb, of any nbgrader course."
    )
    parser.add_argument("folder", nargs="?", type=Path, help="of submissions; the course's own by default")
    parser.add_argument(
        "--course", type=Path, help="folder of an nbgrader_config.py; this one or the book's by default"
    )
    parser.add_argument("--exercise", metavar="NAME", help="grade only this exercise")
    parser.add_argument("--student", metavar="NAME", help="grade only this student")
    parser.add_argument("--regrade", action="store_true", help="judge again, whatever has been judged")
    parser.add_argument("--jobs", type=int, help="submissions at once (default: cores)")
    parser.add_argument("--into", type=Path, help="for gradebook and feedback (of the book's own exercises)")
    parser.add_argument(
        "--db", metavar="URL", help="of the gradebook, such as postgresql+psycopg://user@host/gradebook"
    )
    parser.add_argument("--dask", metavar="ADDRESS", help="judge on the workers of this Dask scheduler")
    parser.add_argument("--unsandboxed", action="store_true", help="run students' code with your own rights")
    return parser


def graded(asked: argparse.Namespace, stack: ExitStack) -> int:
    """Grade all that was asked for; what has to be closed goes on the stack."""
    if asked.jobs is not None and asked.jobs < 1:
        raise NothingGraded(f"--jobs is {asked.jobs}, and at least 1 has to be")
    folder = asked.folder.resolve() if asked.folder else None
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
        judge, pool = judging(asked, course.settings, stack)
        begun, failed = time.monotonic(), list(skipped)
        judged = {pool.submit(course.judged, one, asked.regrade, judge): one for one in submissions}
        lines = Writer(course, folder, pages, failed).lines(judged)
        for count, (submission, words) in enumerate(lines, start=1):
            left = (time.monotonic() - begun) / count * (len(submissions) - count)
            print(f"{submission}: {words} [{count} of {len(submissions)}{remaining(left)}]", flush=True)
    print(f"\n{table(course, submissions, failed)}\n")
    print(f"feedback:  {shown(course.feedback)}/<student>/<exercise>/<exercise>.html")
    print(f"gradebook: {shown_url(course.database)}")
    page = report.write(course.database, course.autograded, course.work.parent, course.submitted)
    print(f"report:    {shown(page)}")
    if failed:
        print(f"{len(failed)} of {len(submissions) + len(skipped)} submissions were not graded: run it again")
    return 1 if failed else 0


def judging(asked: argparse.Namespace, settings: Settings, stack: ExitStack) -> tuple[Callable, Executor]:
    """Start what judges: local processes, or those of a Dask cluster. Raises CannotSandbox if that is not possible."""
    jobs = os.cpu_count() or 1
    if asked.dask:
        try:
            from .judging import cluster
        except ImportError as error:
            raise NothingGraded(
                f"--dask needs a package that is missing ({error}): pip install -e '.[dask]'"
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
    """The one writer of the gradebook, in the thread that calls it. `failed`: takes what could not be graded."""

    course: Course
    folder: Path
    pages: Pages
    failed: list[Submission]

    def lines(self, judged: dict[Future, Submission]) -> Iterator[tuple[Submission, str]]:
        """Write each submission as it is judged, and have its page made; when that is done, what there is to say."""
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
            if isinstance(result, Written):
                page = self.pages.begin(submission)
                written[page] = result
                page.add_done_callback(finished.put)
            else:
                yield submission, result

    def _write(self, submission: Submission, judged: Future) -> Written | str:
        """Let nbgrader take the points; what to say if the page of before is the right one still."""
        start = time.perf_counter()
        ready = judged.result()
        self.course.collect(submission, self.folder)
        has_page = self.course.write(submission, ready)
        words = self.course.points(submission)
        words += f" ({'; '.join(ready.notes)})" if ready.notes else ""
        took = sum(taken.notebook.metadata.autograder.get("seconds", 0) for taken in ready.taken.values())
        took += time.perf_counter() - start
        return f"{words} (graded before)" if has_page else Written(submission, ready, words, took)

    def _finish(self, written: Written, submission: Submission, page: Future) -> str:
        """Note that all of it is there; what to say."""
        took = written.seconds + page.result()
        self.course.mark(submission, written.ready)
        return f"{written.words} ({took:.1f} s)" if written.ready.is_new else f"{written.words} (graded before)"

    def _tried(self, submission: Submission, step: Callable, *args: Any) -> Any:
        """What a step gives; if it fails, the words for that: the class goes on."""
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


def find(
    folder: Path, known: list[str], exercise: str | None = None, student: str | None = None
) -> tuple[list[Submission], list[Submission]]:
    """Return what was handed in, by student, and what cannot be graded under the name that it has (which is said)."""
    if exercise is not None and exercise not in known:
        raise NothingGraded(f"no exercise is called {exercise}; there are {', '.join(known)}")
    if not folder.is_dir():
        raise NothingGraded(f"{folder} is not a folder")
    found, skipped = [], []
    for student_place in sorted(folder.iterdir()):
        if student_place.name.startswith(".") or (student is not None and student_place.name != student):
            continue
        if student_place.is_symlink():
            print(f"{printable(student_place.name)}: NOT GRADED: a link; put the folder itself here")
            skipped.append(Submission(student_place.name, "", student_place))
            continue
        if not student_place.is_dir():
            continue
        for place, name in handed_in(student_place):
            submission = Submission(student_place.name, name, place)
            if name not in known:
                print(f"{submission}: skipped, no exercise is called {printable(name)}")
            elif exercise in (None, name):
                fault = intake.name_fault(submission.student)
                if fault:
                    print(f"{submission}: NOT GRADED: {fault}")
                (skipped if fault else found).append(submission)
    if not found and not skipped:
        whose = f" of {student}" if student else ""
        raise NothingGraded(
            f"{folder} holds no submission{whose}; they belong in {folder}/<student>/<exercise>/<exercise>.ipynb"
        )
    return found, skipped


def handed_in(student_place: Path) -> list[tuple[Path, str]]:
    """What one student handed in, and for which exercise: folders, links to whatever, and notebooks beside them."""
    try:
        below = sorted(student_place.iterdir())
    except OSError as error:
        print(f"{printable(student_place.name)}: NOT GRADED: {error.strerror}")
        return []
    folders = [(path, path.name) for path in below if not path.name.startswith(".") and path.suffix != ".ipynb"]
    folders = [(path, name) for path, name in folders if path.is_symlink() or path.is_dir()]
    taken = {name for _, name in folders}
    files = [(path, path.stem) for path in below if path.suffix == ".ipynb" and not path.name.startswith(".")]
    return folders + [(path, name) for path, name in files if name not in taken]


# The course


class Course:
    """An nbgrader course: where its things are, its gradebook, and nbgrader's own steps."""

    def __init__(self, config: Config):
        once.share()
        self.nbgrader = NbGraderAPI(config=config)
        self.directory = self.nbgrader.coursedir
        self.config = config
        self.database = self.directory.db_url
        if self.directory.directory_structure != "{nbgrader_step}/{student_id}/{assignment_id}":
            raise NothingGraded("CourseDirectory.directory_structure is not nbgrader's usual one, which is needed here")
        root = Path(self.directory.root)
        self.submitted = root / self.directory.submitted_directory
        self.autograded = root / self.directory.autograded_directory
        self.feedback = root / self.directory.feedback_directory
        self.converter = StrictAutograde(coursedir=self.directory, parent=self.nbgrader)
        self.door = TakenIn(parent=self.converter, config=config)
        self.executor = Judge(parent=self.door, config=config)
        self.settings = self.executor.settings
        self.work = root / self.executor.verdicts
        self.work.mkdir(parents=True, exist_ok=True)
        self.verdicts = Verdicts(self.work)
        self.taken = self.work / "taken"
        self.templates: dict[tuple[str, str], intake.Template] = {}
        self.data: dict[str, dict[str, bytes]] = {}

    def gradebook(self) -> Gradebook:
        """Open the gradebook; to be closed, as by `with`."""
        return Gradebook(self.database, self.directory.course_id)

    def exercises(self) -> list[str]:
        """The names of all assignments that the gradebook knows."""
        with self.gradebook() as gradebook:
            return sorted(assignment.name for assignment in gradebook.assignments)

    def prepare(self, names: list[str]) -> None:
        """Read the instructor's notebooks of these exercises."""
        converter = GenerateAssignment(coursedir=self.directory, parent=self.nbgrader)
        for name in names:
            with self.gradebook() as gradebook:
                notebooks = sorted(notebook.name for notebook in gradebook.find_assignment(name).notebooks)
            if not notebooks:
                raise NothingGraded(
                    f"the gradebook knows no notebook of {name}: run `nbgrader generate_assignment {name}`"
                )
            for notebook in notebooks:
                try:
                    self.templates[name, notebook] = intake.template(converter, name, notebook)
                except Exception as error:
                    raise NothingGraded(
                        f"the source of {name}/{notebook}.ipynb cannot be read: {first_line(error)}"
                    ) from error
            try:
                self.data[name] = data_files(self.directory, name)
            except preprocessor.WrongSetup as error:
                raise NothingGraded(str(error)) from error
        cells = [cell for template in self.templates.values() for cell in template.cells if cell.cell_type == "code"]
        self.settings = preloading(self.settings, [cell.source for cell in cells])

    def check(self) -> None:
        """Raise NothingGraded unless our judge, and nothing else, is what nbgrader will run submissions by."""
        setting = "Autograde.autograde_preprocessors"
        how = "call autograder.configure(c) at the end of nbgrader_config.py"
        if not issubclass(self.converter.exporter_class, TakenIn):
            raise NothingGraded(f"Autograde.exporter_class is not the autograder's; {how}")
        steps = [_class(step) for step in self.converter.autograde_preprocessors]
        sanitizing = [_class(step) for step in self.converter.sanitize_preprocessors]
        for step in [*steps, *sanitizing]:
            if issubclass(step, ExecutePreprocessor):
                raise NothingGraded(f"{step.__module__}.{step.__name__} would run students' code unsandboxed; {how}")
        if (times := steps.count(Judge)) != 1:
            raise NothingGraded(
                f"autograder.judging.preprocessor.Judge is {times} times in {setting}, and once is right; {how}"
            )
        if not self.executor.enabled:
            raise NothingGraded(f"Judge.enabled is False, so nothing would be judged; {how}")
        if SaveAutoGrades not in steps or steps.index(SaveAutoGrades) < steps.index(Judge):
            raise NothingGraded(f"nbgrader's SaveAutoGrades does not come after Judge in {setting}; {how}")

    # Judging, in any thread

    def judged(self, submission: Submission, regrade: bool, judge: Callable) -> Ready:
        """Take a submission in, and judge what has not been judged yet."""
        names = [notebook for exercise, notebook in self.templates if exercise == submission.exercise]
        data = self.data[submission.exercise]
        taken = {
            name: intake.take(place, self.templates[submission.exercise, name])
            for name, place in intake.located(submission.place, names).items()
        }
        keys = {name: key(one.notebook, data) for name, one in taken.items()}
        when, fault = intake.timestamp(submission.place)
        ready = Ready(taken, keys, when, notes=[fault] if fault else [])
        for one in taken.values():
            ready.notes += [f"unreadable: {one.reason}"] if one.reason else one.notes
        ready.is_new = regrade or not self._is_written(submission, ready)
        if ready.is_new:
            for name, one in taken.items():
                if one.reason is None:
                    known = None if regrade else self.verdicts.get(keys[name])
                    if known is None:
                        known = verdict(judge, one.notebook, data)
                        self.verdicts.put(keys[name], known)
                    one.notebook.metadata.autograder.seconds = known.metadata.autograder.seconds
                    remarks = known.metadata.autograder.get("remarks", {})
                    ready.notes += [f"{IN_WORDS.get(why, why)} in {cell}" for cell, why in remarks.items()]
        return ready

    # Writing, by one thread

    def collect(self, submission: Submission, folder: Path) -> None:
        """Copy the notebook to nbgrader's own submitted directory, as its collector does, if it came from elsewhere."""
        if folder == self.submitted:
            return
        names = [notebook for exercise, notebook in self.templates if exercise == submission.exercise]
        target = self.submitted / submission.student / submission.exercise
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name, place in intake.located(submission.place, names).items():
            if isinstance(place, Path):
                try:
                    content = intake.contents(place)
                except intake.Unreadable:
                    continue
                (target / f"{name}.ipynb").write_bytes(content)
        when, _ = intake.timestamp(submission.place)
        if when:
            (target / "timestamp.txt").write_text(f"{when}\n")

    def write(self, submission: Submission, ready: Ready) -> bool:
        """Let nbgrader write the points; return whether the page of before is the right one still."""
        if not ready.is_new:
            return self._done(submission).get("grades") == self._grades(submission)
        place = self.taken / submission.student / submission.exercise
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name, taken in ready.taken.items():
            (place / f"{name}.ipynb").write_text(nbformat.writes(taken.notebook), encoding="utf-8")
        if ready.timestamp:
            (place / "timestamp.txt").write_text(f"{ready.timestamp}\n")
        self._step(StrictAutograde, submission)
        self._verify(submission, ready)
        return False

    def mark(self, submission: Submission, ready: Ready) -> None:
        """Note that the gradebook and the page have all of it."""
        about = {"what": self._what(ready), "grades": self._grades(submission)}
        write_whole(self._marker(submission), json.dumps(about))

    def give_feedback(self, submission: Submission) -> float:
        """Write the page, in any process; return the seconds that it took."""
        start = time.perf_counter()
        self._step(GiveFeedback, submission)
        return time.perf_counter() - start

    def _step(self, kind: type, submission: Submission) -> None:
        names = {"assignment_id": submission.exercise, "student_id": submission.student}
        source = os.path.relpath(self.taken, self.directory.root)
        with temp_attrs(self.directory, **names, submitted_directory=source):
            converter = kind(coursedir=self.directory, parent=self.nbgrader)
            converter.force = True
            settings = Config()
            settings.TakenIn.rebuilt = True
            settings.HTMLExporter.template_name = "feedback"
            converter.update_config(settings)
            done = capture_log(converter)
        if fault := getattr(converter, "fault", None):
            raise NothingGraded(
                f"a hook of the course's nbgrader_config.py fails: {type(fault).__name__}: {first_line(fault)}"
            )
        if not done["success"]:
            raise CannotGrade(last_words(done))

    def _verify(self, submission: Submission, ready: Ready) -> None:
        """Raise NothingGraded unless what nbgrader has graded is what our judge has judged."""
        for name, expected in ready.keys.items():
            path = self.autograded / submission.student / submission.exercise / f"{name}.ipynb"
            about = json.loads(path.read_text(encoding="utf-8"))["metadata"].get("autograder", {})
            if about.get("executor") != EXECUTOR or about.get("key") != expected:
                raise NothingGraded(
                    f"{path} was graded by something other than the autograder's judge; its points are not safe"
                )

    def _marker(self, submission: Submission) -> Path:
        name = hashlib.sha256(f"{submission.student}/{submission.exercise}".encode()).hexdigest()[:40]
        return self.work / f"{name}.done"

    def _done(self, submission: Submission) -> dict:
        try:
            return json.loads(self._marker(submission).read_text())
        except FileNotFoundError:
            return {}

    def _what(self, ready: Ready) -> list:
        database = hashlib.sha256(self.database.encode()).hexdigest()
        return [sorted(ready.keys.items()), ready.timestamp, database]

    def _is_written(self, submission: Submission, ready: Ready) -> bool:
        """Whether the gradebook has all of it already. The mark is made last, after gradebook and feedback."""
        what = json.loads(json.dumps(self._what(ready)))
        page = self.feedback / submission.student / submission.exercise
        return self._done(submission).get("what") == what and page.is_dir() and self._grades(submission) != []

    def _grades(self, submission: Submission) -> list:
        """All points and comments of a submission, such that a change of any of them shows; [] if there is none."""
        with self.gradebook() as gradebook:
            try:
                found = gradebook.find_submission(submission.exercise, submission.student)
            except MissingEntry:
                return []
            rows = []
            for notebook in found.notebooks:
                points = [(g.name, g.auto_score, g.manual_score, g.extra_credit) for g in notebook.grades]
                words = [(c.name, c.auto_comment, c.manual_comment) for c in notebook.comments]
                rows.append([notebook.name, notebook.late_submission_penalty, sorted(points), sorted(words)])
            return [hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()]

    def points(self, submission: Submission) -> str:
        """Return "12/20", and how many points a person has yet to give, or to confirm."""
        with self.gradebook() as gradebook:
            try:
                result = gradebook.find_submission(submission.exercise, submission.student)
            except MissingEntry:
                return "not graded"
            grades = [grade for notebook in result.notebooks for grade in notebook.grades]
            open_points = [(grade.max_score, grade.manual_score) for grade in grades if grade.needs_manual_grade]
            to_grade = sum(most for most, given in open_points if given is None)
            to_confirm = sum(most for most, given in open_points if given is not None)  # graded by hand, then regraded
            words = f"{result.score:g}/{result.max_score:g}"
            words += f", {to_grade:g} to grade" if to_grade else ""
            return words + (f", {to_confirm:g} to confirm" if to_confirm else "")


class OwnCourse(Course):
    """The book's own exercises: their sources are made of solutions/, and everything else is in one folder."""

    def exercises(self) -> list[str]:
        """The names of the exercises in solutions/."""
        return release.names()

    def prepare(self, names: list[str]) -> None:
        """Make the exercises' notebooks, and register them in the gradebook."""
        release.write_sources(Path(self.directory.root) / self.directory.source_directory)
        for name in names:
            done = self.nbgrader.generate_assignment(name)
            if not done["success"]:
                raise NothingGraded(f"{name} cannot be registered in {shown_url(self.database)}: {last_words(done)}")
        super().prepare(names)


class ByName:
    """A step of nbgrader's for one submission, called what it may: nbgrader takes a name for a pattern of names."""

    def init_notebooks(self) -> None:
        """Find the notebooks of the submission."""
        folder = self._format_source(self.coursedir.assignment_id, self.coursedir.student_id)
        self.notebooks = []
        self.assignments = {folder: glob.glob(f"{glob.escape(folder)}/*.ipynb")}


class GiveFeedback(ByName, GenerateFeedback):
    """nbgrader's GenerateFeedback."""


class StrictAutograde(ByName, Autograde):
    """nbgrader's Autograde, which does not go on after a hook has failed (nbgrader's own logs that and goes on)."""

    fault: Exception | None = None

    def run_pre_convert_hook(self) -> None:
        """Run the hook, and keep what went wrong in it."""
        self._run(self.pre_convert_hook)

    def run_post_convert_hook(self) -> None:
        """Run the hook, and keep what went wrong in it."""
        self._run(self.post_convert_hook)

    def _run(self, hook: Callable | None) -> None:
        if hook is None:
            return
        names = {"assignment": self.coursedir.assignment_id, "student": self.coursedir.student_id}
        try:
            hook(**names, notebooks=self.notebooks)
        except Exception as error:
            self.fault = error
            raise


def opened(asked: argparse.Namespace) -> Course:
    """The course that the command line means."""
    folder = (asked.course or (Path() if Path("nbgrader_config.py").is_file() else OWN)).resolve()
    if not (folder / "nbgrader_config.py").is_file():
        raise NothingGraded(f"there is no nbgrader_config.py in {folder}")
    own = folder == OWN
    if asked.into and not own:
        raise NothingGraded(
            "--into is for the book's own exercises; where another course's things are, its config says"
        )
    into = asked.into.resolve() if asked.into else ROOT / "_build" / "grade"
    config = loaded(folder)
    if own:
        config.CourseDirectory.root = str(into)
        for step in ("source", "release", "submitted", "autograded", "feedback"):
            config.CourseDirectory[f"{step}_directory"] = step
        config.CourseDirectory.db_url = f"sqlite:///{into / 'gradebook.db'}"
        config.Judge.verdicts = "judged"
        into.mkdir(parents=True, exist_ok=True)
    if asked.db:
        config.CourseDirectory.db_url = asked.db
    if asked.unsandboxed:
        config.Judge.unsandboxed = True
    config.NbGraderAPI.log_level = logging.ERROR
    try:
        course = OwnCourse(config) if own else Course(config)
        with course.gradebook():
            return course
    except SQLAlchemyError as error:
        raise NothingGraded(f"the gradebook cannot be opened: {first_line(error)}") from error
    except Exception as error:  # traitlets' own, and whatever a class or hook that the config names raises
        if isinstance(error, NothingGraded):
            raise
        raise NothingGraded(f"{folder}/nbgrader_config.py: {type(error).__name__}: {first_line(error)}") from error


def loaded(folder: Path) -> Config:
    """Load a course's settings as nbgrader does, but with errors (it logs them, and goes on without the settings)."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ.get("PATH", "")])  # for alembic
    app = NbGrader(raise_config_file_errors=True)
    app.log_level = logging.ERROR
    try:
        with chdir(folder):
            app.initialize([])
    except (Exception, SystemExit) as error:
        raise NothingGraded(
            f"{folder}/nbgrader_config.py fails: {type(error).__name__}: {first_line(error)}"
        ) from error
    config = Config(app.config)
    config.CourseDirectory.setdefault("root", str(folder))
    return config


def _class(step: Any) -> type:
    return import_item(step) if isinstance(step, str) else step


# Words


def table(course: Course, submissions: list[Submission], failed: list[Submission]) -> str:
    """Return the points of every student in every exercise, in columns."""
    columns = sorted({submission.exercise for submission in submissions})
    cells = {(s.student, s.exercise): "not graded" if s in failed else course.points(s) for s in submissions}
    rows = [["student", *columns]]
    for student in sorted({submission.student for submission in submissions}):
        rows.append([printable(student), *(cells.get((student, column), "-") for column in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def remaining(seconds: float) -> str:
    """ ", 3 min left"; nothing if it is over."""
    if seconds < 1:
        return ""
    return f", {seconds:.0f} s left" if seconds < 100 else f", {seconds / 60:.0f} min left"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Refuse a second command that writes into the same folder. The lock is gone with the process, however it ends."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NothingGraded(
                f"another grade command is at work in {shown(folder)}; wait until it has ended"
            ) from None
        yield


@contextmanager
def stderr_into(log: TextIO) -> Iterator[None]:
    """Send what this process and its children write on stderr to a file, not between the report's lines."""
    saved = os.dup(2)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def last_words(done: dict) -> str:
    """Return the line that says what went wrong, from what nbgrader reports of a failed step."""
    logged = re.sub(r"\x1b\[[0-9;]*m", "", done.get("log", ""))
    errors = re.findall(r"^ *(\w[\w.]*(?:Error|Exception|Entry|Fault|Setup): .+)$", logged, re.MULTILINE)
    return errors[-1] if errors else first_line(done.get("error", "").strip().splitlines()[-1])


def first_line(error: BaseException | str) -> str:
    """Return the first line of an error, shortened."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= 200 else f"{line[:200]}..."


def printable(name: str) -> str:
    """A student's file name, such that a terminal only shows it."""
    return "".join(c if c.isprintable() else "\ufffd" for c in name.encode("utf-8", "replace").decode())


def shown(path: Path) -> str:
    """Return a path as a reader types it from the repository's root."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def shown_url(url: str) -> str:
    """A gradebook's address without its password; of an embedded one, its file."""
    return (
        shown(Path(url.removeprefix("sqlite:///"))) if url.startswith("sqlite:///") else re.sub(r":[^:@/]+@", "@", url)
    )


if __name__ == "__main__":
    sys.exit(main())
