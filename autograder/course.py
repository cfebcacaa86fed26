"""An nbgrader course as `python -m autograder.grade` uses it: its settings, its folders, its gradebook, its steps.

`opened` returns the course that a command line names. Threads then judge its submissions with `Course.judged`, and one
writer takes each verdict through nbgrader's own steps with `Course.write`.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.preprocessors import ExecutePreprocessor
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.apps.baseapp import NbGrader
from nbgrader.converters import Autograde, GenerateAssignment, GenerateFeedback
from nbgrader.preprocessors import SaveAutoGrades
from nbgrader.utils import capture_log, parse_utc, temp_attrs
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError
from traitlets.config import Config
from traitlets.utils.importstring import import_item

from . import points, release, standing
from .judging import preprocessor
from .judging.judges import preloading
from .judging.preprocessor import EXECUTOR, Judge, TakenIn, Verdicts, data_files, key, verdict, write_whole
from .results import feedback
from .standing import Standing
from .submissions import intake

ROOT = Path(__file__).resolve().parents[1]
OWN = ROOT / "autograder"  # the folder of this course's own nbgrader_config.py
IN_WORDS = {
    "time": "out of time",
    "memory": "out of memory",
    "processes": "too many processes",
    "crash": "crashed",
    "hostile": "forged an answer",
}


class CannotGrade(Exception):
    """Why one submission has no grade, in one line for the instructor."""


class NothingGraded(Exception):
    """Why the command grades nothing, or nothing more, and how to fix it, in one line for the instructor."""


@dataclass(frozen=True)
class Submission:
    """What one student handed in for one exercise. `place` is a folder, or the notebook itself."""

    student: str
    exercise: str
    place: Path

    def __str__(self) -> str:
        return f"{printable(self.student)}/{printable(self.exercise)}"


@dataclass
class Ready:
    """A judged submission. `keys`: {notebook: the key of its verdict}; `notes`: remarks for the instructor."""

    taken: dict[str, intake.Taken]
    keys: dict[str, str]
    timestamp: str | None
    notes: list[str] = field(default_factory=list)
    is_new: bool = True


def _accompany(target: Path, when: str | None, place: Path) -> None:
    """Write what nbgrader's exchange needs beside a student's notebooks, as far as `place`, the hand-in, has it."""
    if when:
        (target / "timestamp.txt").write_text(f"{when}\n")
    if secret := intake.secret(place):
        (target / "submission_secret.txt").write_text(secret)


class Course:
    """An nbgrader course: its folders, its gradebook, and nbgrader's own steps."""

    def __init__(self, config: Config):
        self.nbgrader = NbGraderAPI(config=config)
        self.directory = self.nbgrader.coursedir
        self.config = config
        self.database = self.directory.db_url
        if self.directory.directory_structure != "{nbgrader_step}/{student_id}/{assignment_id}":
            raise NothingGraded(
                "CourseDirectory.directory_structure is changed; remove it from nbgrader_config.py, "
                "because the autograder needs nbgrader's default"
            )
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
        """Open the gradebook. Close it after use, for example with `with`."""
        return Gradebook(self.database, self.directory.course_id)

    def exercises(self) -> list[str]:
        """Return the names of all assignments in the gradebook."""
        with self.gradebook() as gradebook:
            return sorted(assignment.name for assignment in gradebook.assignments)

    def prepare(self, names: list[str]) -> None:
        """Read the instructor's notebooks and data files of these exercises.

        Raises NothingGraded if the gradebook has no notebook of an exercise, or if a source can't be read.
        """
        converter = GenerateAssignment(coursedir=self.directory, parent=self.nbgrader)
        for name in names:
            with self.gradebook() as gradebook:
                notebooks = sorted(notebook.name for notebook in gradebook.find_assignment(name).notebooks)
            if not notebooks:
                raise NothingGraded(
                    f"the gradebook has no notebook of {name}: run `nbgrader generate_assignment {name}`"
                )
            for notebook in notebooks:
                try:
                    self.templates[name, notebook] = intake.template(converter, name, notebook)
                except Exception as error:
                    raise NothingGraded(
                        f"can't read the source of {name}/{notebook}.ipynb: {first_line(error)}"
                    ) from error
            try:
                self.data[name] = data_files(self.directory, name)
            except preprocessor.WrongSetup as error:
                raise NothingGraded(str(error)) from error
        # As released: a sandbox that held what only hidden tests import would tell a student of it.
        cells = [pair for each in self.templates.values() for pair in zip(each.cells, each.released, strict=True)]
        self.settings = preloading(self.settings, [source for cell, source in cells if cell.cell_type == "code"])

    def check(self) -> None:
        """Raise NothingGraded unless nbgrader would run submissions with the autograder's judge and nothing else."""
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
            raise NothingGraded(f"autograder.judging.preprocessor.Judge is {times} times in {setting}, not once; {how}")
        if not self.executor.enabled:
            raise NothingGraded(f"Judge.enabled is False, so no submission would be judged; {how}")
        if SaveAutoGrades not in steps or steps.index(SaveAutoGrades) < steps.index(Judge):
            raise NothingGraded(f"nbgrader's SaveAutoGrades must follow Judge in {setting}; {how}")

    # Judging, in any thread

    def judged(self, submission: Submission, regrade: bool, judge: Callable) -> Ready:
        """Take a submission in, and judge the notebooks that have no stored verdict; all of them with `regrade`."""
        names = [notebook for exercise, notebook in self.templates if exercise == submission.exercise]
        data = self.data[submission.exercise]
        taken = {
            name: intake.take(place, self.templates[submission.exercise, name])
            for name, place in intake.located(submission.place, names).items()
        }
        keys = {name: key(answered.notebook, data, self.settings.wall) for name, answered in taken.items()}
        when, fault = intake.timestamp(submission.place)
        ready = Ready(taken, keys, when, notes=[fault] if fault else [])
        for answered in taken.values():
            ready.notes += [f"unreadable: {answered.reason}"] if answered.reason else answered.notes
        ready.is_new = regrade or not self._is_written(submission, ready)
        if ready.is_new:
            for name, answered in taken.items():
                if answered.reason is None:
                    known = None if regrade else self.verdicts.get(keys[name])
                    if known is None:
                        known = verdict(judge, answered.notebook, data, self.verdicts.seed(keys[name]))
                        feedback.limit_outputs(known)
                        self.verdicts.put(keys[name], known)
                    feedback.try_out(known)
                    answered.notebook.metadata.autograder.seconds = known.metadata.autograder.seconds
                    remarks = known.metadata.autograder.get("remarks", {})
                    ready.notes += [f"{IN_WORDS.get(why, why)} in {cell}" for cell, why in remarks.items()]
        return ready

    # Writing, by one thread

    def collect(self, submission: Submission, folder: Path) -> None:
        """Copy a submission from another folder into nbgrader's submitted directory, as nbgrader's collector does."""
        if self.submitted.exists() and folder.samefile(self.submitted):  # by whatever name
            return
        names = [notebook for exercise, notebook in self.templates if exercise == submission.exercise]
        target = self.submitted / submission.student / submission.exercise
        if target.exists() and submission.place.exists() and submission.place.samefile(target):  # a link to it
            return
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name, place in intake.located(submission.place, names).items():
            if isinstance(place, Path):
                try:
                    content = intake.contents(place)
                except intake.Unreadable:
                    continue
                (target / f"{name}.ipynb").write_bytes(content)
        _accompany(target, intake.timestamp(submission.place)[0], submission.place)

    def write(self, submission: Submission, ready: Ready) -> None:
        """Write the points with nbgrader's Autograde."""
        place = self.taken / submission.student / submission.exercise
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name, taken in ready.taken.items():
            (place / f"{name}.ipynb").write_text(nbformat.writes(taken.notebook), encoding="utf-8")
        _accompany(place, ready.timestamp, submission.place)
        self._step(StrictAutograde, submission)
        self._verify(submission, ready)

    def has_page(self, submission: Submission, now: Standing) -> bool:
        """Return whether the feedback page shows this standing."""
        return self._done(submission).get("grades") == now.digest

    def mark(self, submission: Submission, ready: Ready, now: Standing) -> None:
        """Record that the gradebook is complete, and the feedback page, which shows this standing or a later one."""
        handed_in = {name: taken.digest for name, taken in ready.taken.items()}
        about = json.dumps({"what": self._what(ready), "grades": now.digest, "handed_in": handed_in})
        if json.loads(about) != self._done(submission):
            write_whole(standing.mark_of(self.work, submission.exercise, submission.student), about)

    def give_feedback(self, submission: Submission) -> float:
        """Write the feedback page, in any process; return how many seconds it took."""
        start = time.perf_counter()
        self._step(GiveFeedback, submission)
        return time.perf_counter() - start

    def give_plain_feedback(self, submission: Submission, ready: Ready, reason: str) -> None:
        """Write a feedback page that shows nothing but the points, and the reason for that."""
        folder = self.feedback / submission.student / submission.exercise
        folder.mkdir(parents=True, exist_ok=True)
        with self.gradebook() as gradebook:
            for name in ready.taken:
                graded = gradebook.find_submission_notebook(name, submission.exercise, submission.student)
                got = {grade.name: f"{grade.score:g}/{grade.max_score:g}" for grade in graded.grades}
                page = feedback.plain_page(f"{name}: {submission.student}", got, reason)
                (folder / f"{name}.html").write_text(page, encoding="utf-8")

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
        """Raise NothingGraded unless nbgrader graded exactly what the autograder's judge judged."""
        for name, expected in ready.keys.items():
            path = self.autograded / submission.student / submission.exercise / f"{name}.ipynb"
            about = json.loads(path.read_text(encoding="utf-8"))["metadata"].get("autograder", {})
            if about.get("executor") != EXECUTOR or about.get("key") != expected:
                raise NothingGraded(
                    f"{path} was not graded by the autograder's judge, so don't trust its points; look for another "
                    "executor in nbgrader_config.py"
                )

    def _done(self, submission: Submission) -> dict:
        return standing.marked(self.work, submission.exercise, submission.student)

    def _what(self, ready: Ready) -> list:
        database = hashlib.sha256(self.database.encode()).hexdigest()
        when = ready.timestamp and str(parse_utc(ready.timestamp))  # however it is written
        return [sorted(ready.keys.items()), when, database]

    def _is_written(self, submission: Submission, ready: Ready) -> bool:
        """Return whether the gradebook and the page are complete: `mark` writes its file last, after both."""
        what = json.loads(json.dumps(self._what(ready)))
        page = self.feedback / submission.student / submission.exercise
        return self._done(submission).get("what") == what and page.is_dir() and self.standing(submission).digest != ""

    def standing(self, submission: Submission) -> Standing:
        """Read a submission's points and comments from the gradebook."""
        with self.gradebook() as gradebook:
            return standing.read(gradebook, submission.exercise, submission.student)


class OwnCourse(Course):
    """The book's own exercises. Their sources come from solutions/; everything else is in one folder."""

    def exercises(self) -> list[str]:
        """Return the names of the exercises in solutions/."""
        return release.names()

    def prepare(self, names: list[str]) -> None:
        """Write the exercises' notebooks, and register them in the gradebook."""
        release.write_sources(Path(self.directory.root) / self.directory.source_directory)
        for name in names:
            done = self.nbgrader.generate_assignment(name)
            if not done["success"]:
                raise NothingGraded(f"can't register {name} in {shown_url(self.database)}: {last_words(done)}")
        super().prepare(names)


class ByName:
    """A step of nbgrader's for one submission of any name. nbgrader itself reads the name as a pattern."""

    coursedir: Any  # this and the next are nbgrader's
    _format_source: Callable[[str, str], str]

    def init_notebooks(self) -> None:
        """Find the notebooks of the submission."""
        folder = self._format_source(self.coursedir.assignment_id, self.coursedir.student_id)
        self.notebooks: list[str] = []
        self.assignments = {folder: glob.glob(f"{glob.escape(folder)}/*.ipynb")}


class GiveFeedback(ByName, GenerateFeedback):
    """nbgrader's GenerateFeedback, for one submission."""


class StrictAutograde(ByName, Autograde):
    """nbgrader's Autograde, for one submission, which stops when a hook fails. nbgrader's own logs that and goes on."""

    fault: Exception | None = None

    def run_pre_convert_hook(self) -> None:
        """Run the hook, and keep its exception in `fault`."""
        self._run(self.pre_convert_hook)

    def run_post_convert_hook(self) -> None:
        """Run the hook, and keep its exception in `fault`."""
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


# Opening a course


def opened(asked: argparse.Namespace) -> Course:
    """Return the course that the command line names: `--course`, else the current folder's, else the book's own.

    Raises NothingGraded if the course has no working nbgrader_config.py or its gradebook can't be opened.
    """
    folder = (asked.course or (Path() if Path("nbgrader_config.py").is_file() else OWN)).resolve()
    if not (folder / "nbgrader_config.py").is_file():
        raise NothingGraded(f"there is no nbgrader_config.py in {folder}; name the course's folder with --course")
    own = folder == OWN
    if asked.into and not own:
        raise NothingGraded(
            "--into works for the book's own exercises only; set another course's folders in its nbgrader_config.py"
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
    except NothingGraded:
        raise
    except SQLAlchemyError as error:
        raise NothingGraded(f"the gradebook cannot be opened: {first_line(error)}") from error
    except Exception as error:  # from traitlets, or from any class or hook that the config names
        raise NothingGraded(f"{folder}/nbgrader_config.py: {type(error).__name__}: {first_line(error)}") from error


def loaded(folder: Path) -> Config:
    """Return a course's settings, loaded the way nbgrader loads them.

    Raises NothingGraded if nbgrader_config.py fails. nbgrader itself logs that, and goes on without the settings.
    """
    # nbgrader runs `alembic` by its bare name: let it find the one beside this Python.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ.get("PATH", "")])
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


def last_words(done: dict) -> str:
    """Return the line that says what went wrong, from nbgrader's result of a failed step."""
    logged = re.sub(r"\x1b\[[0-9;]*m", "", done.get("log", ""))
    errors = re.findall(r"^ *(\w[\w.]*(?:Error|Exception|Entry|Fault|Setup): .+)$", logged, re.MULTILINE)
    return errors[-1] if errors else first_line(done.get("error", "").strip().splitlines()[-1])


def first_line(error: BaseException | str) -> str:
    """Return the first line of an error, cut after 200 characters."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= 200 else f"{line[:200]}..."


def printable(name: str) -> str:
    """Return a student's file name with every character replaced that a terminal would act on."""
    return "".join(c if c.isprintable() else "\ufffd" for c in name.encode("utf-8", "replace").decode())


def shown(path: Path) -> str:
    """Return a path as a reader types it from the repository's root."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def shown_url(url: str) -> str:
    """Return a gradebook's URL without its password, and without a query, which may hold one; for SQLite, its file."""
    if file := points.file_of(url):
        return shown(file)
    return make_url(url).set(query={}).render_as_string()  # which masks the password
