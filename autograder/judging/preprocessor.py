"""The judge as nbgrader's plug-ins, which also serve formgrader and plain `nbgrader autograde`.

`TakenIn` replaces nbconvert's exporter and reads a submission. `Judge` replaces nbgrader's `Execute` and runs it.
nbgrader itself then reads the points from the outputs that the judge wrote into the cells.
"""

from __future__ import annotations

import atexit
import hashlib
import hmac
import importlib
import json
import os
import secrets
import tempfile
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import ExchangeCollect
from nbgrader.preprocessors import ClearHiddenTests, NbGraderPreprocessor
from nbgrader.utils import find_all_files, is_grade, is_solution
from sqlalchemy import make_url
from traitlets import Bool, Dict, Float, Int, Tuple, Unicode
from traitlets.config import Config

from ..release import PRIVATE
from ..sandbox.envelope import Limits
from ..submissions import intake
from .judge import Settings, holding, role, source_of
from .judges import Judged, Judges, preloading

EXECUTOR = "autograder.judging.preprocessor.Judge"
JUDGING = ("judging", "inside", "wire", "names.py")  # the parts of this package whose code decides a verdict
MOST_DATA = 50_000_000  # bytes of an assignment's own files, which each of its submissions gets


class WrongSetup(Exception):
    """A fault in a course's nbgrader_config.py or in its source folder."""


class TakenIn(NotebookExporter):
    """An exporter that reads a submission and gives nbgrader the notebook rebuilt from the instructor's."""

    parent: Any  # nbgrader's converter
    rebuilt = Bool(False, help="Whether the notebooks in the submitted directory are rebuilt already").tag(config=True)

    def from_filename(self, filename: str, resources: dict | None = None, **kw: Any) -> tuple[Any, dict]:
        """Export a submission's rebuilt notebook; in nbgrader's second pass, the one that its first pass wrote."""
        if self.rebuilt or not self.parent._sanitizing:
            return super().from_filename(filename, resources=resources, **kw)
        assert resources is not None  # nbgrader passes the submission's
        about = resources["nbgrader"]
        converter = GenerateAssignment(coursedir=self.parent.coursedir, parent=self.parent.parent)
        template = intake.template(converter, about["assignment"], about["notebook"])
        rebuilt = intake.take(Path(filename), template)
        if rebuilt.reason:
            self.log.warning("%s: no points, because %s", filename, rebuilt.reason)
        return self.from_notebook_node(rebuilt.notebook, resources=resources, **kw)


_KINDS = {bool: Bool, int: Int, float: Float, str: Unicode, tuple: Tuple}
_SETTINGS = {name: field.default for name, field in Settings.__dataclass_fields__.items() if name != "limits"}
_TRAITS = {name: _KINDS[type(value)](default_value=value).tag(config=True) for name, value in _SETTINGS.items()}
# A preprocessor with one trait for each of the judge's settings.
_Settable = type(NbGraderPreprocessor)("_Settable", (NbGraderPreprocessor,), _TRAITS)


class Judge(_Settable):  # type: ignore[valid-type, misc]
    """A preprocessor that judges a submission, or reuses the verdict on an equal one."""

    verdicts = Unicode("judged", help="Folder of the verdicts, below the course's root").tag(config=True)
    limits = Dict(help="Limits of one submission, by name; see autograder.sandbox.envelope.Limits").tag(config=True)

    @property
    def settings(self) -> Settings:
        """The judge's settings, as the instructor's config has them; what is the course's own is hidden."""
        chosen = {name: getattr(self, name) for name in _SETTINGS}
        converter = getattr(self.parent, "parent", None)
        if converter is not None:
            chosen["hidden"] = (*self.hidden, *places_of(converter.coursedir, self.config))
        return Settings(**chosen, limits=Limits(**self.limits))

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Write the outputs into the notebook, and who judged it and its verdict's key into its metadata.

        Raise WrongSetup if the exporter isn't `TakenIn`, and CannotSandbox or GraderFault if judging fails.
        """
        if not isinstance(self.parent, TakenIn):
            raise WrongSetup("Autograde.exporter_class is not the autograder's: call autograder.configure(c) last")
        course = self.parent.parent.coursedir
        data = data_files(course, resources["nbgrader"]["assignment"])
        name = key(nb, data, self.settings.wall)
        store = Verdicts(Path(course.root, self.verdicts))
        if reason := nb.metadata.get("autograder", {}).get("unreadable"):
            without_points(nb, reason)
            about: dict = {}
        else:
            known = store.get(name)
            if known is None:
                known = verdict(judges(self._preloading(nb)).judge, nb, data, store.seed(name))
                store.put(name, known)
            for cell, judged in zip(nb.cells, known.cells, strict=True):
                if cell.cell_type == "code":
                    cell.outputs, cell.execution_count = judged.outputs, judged.get("execution_count")
                    if "autograder" in judged.metadata:
                        cell.metadata["autograder"] = judged.metadata.autograder
            about = known.metadata.autograder
        nb.metadata["autograder"] = NotebookNode({**about, **nb.metadata.get("autograder", {})})
        nb.metadata.autograder.update(executor=EXECUTOR, key=name)
        return nb, resources

    def _preloading(self, nb: NotebookNode) -> Settings:
        """Return the settings for this process's judges, which the first notebook starts.

        A sandbox that held what only hidden tests import would tell a student of it.
        """
        cells = [deepcopy(cell) for cell in nb.cells if cell.cell_type == "code" and role(cell) != "answer"]
        hider = ClearHiddenTests(parent=self)
        for cell in cells:
            hider._remove_hidden_test_region(cell)
        return preloading(self.settings, [source_of(cell) for cell in cells])


def places_of(course: CourseDirectory, config: Config) -> tuple[str, ...]:
    """Return where a course has what no submission may read: its folders, its gradebook, its exchange, `PRIVATE`."""
    exchange = ExchangeCollect(coursedir=course, config=config)
    folders = [course.root, exchange.root, exchange.cache]
    for step in ("source", "release", "submitted", "autograded", "feedback"):
        folders.append(os.path.join(course.root, getattr(course, f"{step}_directory")))
    gradebook = make_url(course.db_url)
    if gradebook.get_backend_name() == "sqlite" and gradebook.database:
        folders.append(os.path.join(course.root, gradebook.database))
    if private := os.environ.get(PRIVATE):
        folders.append(private)
    return tuple(map(os.path.abspath, folders))


_first = Lock()


class Verdicts:
    """Judged notebooks in a folder, by key. A file is complete or absent, even if the machine stops."""

    def __init__(self, folder: Path):
        self.folder = folder

    def get(self, name: str) -> NotebookNode | None:
        """Return the judged notebook, or None."""
        try:
            return nbformat.reads((self.folder / f"{name}.ipynb").read_text(encoding="utf-8"), as_version=4)
        except FileNotFoundError:
            return None

    def put(self, name: str, judged: NotebookNode) -> None:
        """Store a judged notebook."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / f"{name}.ipynb", nbformat.writes(judged))

    def seed(self, name: str) -> str:
        """Return what the random inputs of a submission's tests follow from, so that grading it again draws the same.

        `name`: its `key`. A student knows that, but not the folder's secret, which the first call makes.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.folder / "secret"
        with _first:  # submissions are judged side by side, and none may read a secret that is half written
            if not place.exists():
                write_whole(place, secrets.token_hex(32))
        return hmac.new(place.read_bytes(), name.encode(), "sha256").hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, for its owner alone: a reader gets all of the old text, or all of the new."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def verdict(judge: Callable[..., Judged], notebook: NotebookNode, data: dict[str, bytes], seed: str) -> NotebookNode:
    """Judge a notebook; its remarks and seconds go into its metadata. Raise GraderFault if the grader is at fault."""
    judged = judge(notebook, data, seed)
    for cell in judged.notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = scorable(cell)
    about = judged.notebook.metadata.setdefault("autograder", NotebookNode())
    about.update(remarks=NotebookNode(judged.remarks), seconds=round(judged.seconds, 2))
    return judged.notebook


def scorable(cell: NotebookNode) -> list[NotebookNode]:
    """Return a cell's outputs, changed so that nbgrader reads from a test's what the runner recorded, and nothing else.

    nbgrader gives full points to a cell that shows no error. Here a test without a record that it passed gets an error.
    nbgrader also counts any stderr as a failure, and stops at a number above the cell's maximum.
    """
    outputs = [nbformat.from_dict(output) for output in cell.outputs]
    for output in outputs:
        if output.output_type == "stream":
            output.name = "stdout"
    if not is_grade(cell) or is_solution(cell):
        return outputs
    evidence, most = cell.metadata.get("autograder", {}), float(cell.metadata.nbgrader.points)
    errors = [output for output in outputs if output.output_type == "error"]
    shown = [output for output in outputs if output.output_type not in ("error", "execute_result")]
    if evidence.get("passed") is not True:
        return [*shown, *(errors[:1] or [_error("Failed", "the check did not run to its end")])]
    points = evidence.get("points")
    if points is None:
        return shown
    if not 0 <= points <= most:
        return [*shown, _error("WrongPoints", f"the check gives {points:g} points, and its cell has {most:g}")]
    return [*shown, nbformat.v4.new_output("execute_result", data={"text/plain": repr(points)}, execution_count=None)]


def without_points(notebook: NotebookNode, reason: str) -> None:
    """Make all checks of a notebook fail with a reason, because there is nothing to check."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            tested = is_grade(cell) and not is_solution(cell)
            cell.outputs = [_error("NothingToGrade", reason)] if tested else []


def _error(name: str, words: str) -> NotebookNode:
    return nbformat.v4.new_output("error", ename=name, evalue=words, traceback=[words])


def key(notebook: NotebookNode, data: dict[str, bytes], wall: str = "") -> str:
    """Return the name of a verdict: 40 hex digits of a SHA-256 over everything that the verdict depends on.

    That is the cells, their points, the assignment's files, the judge's own code, and what a sandbox holds.

    `wall`: the module that says what it holds, or "" for a sandbox without one; see `judge.Settings.wall`.
    """
    about = notebook.metadata.get("autograder", {})
    parts: list[Any] = [_judge_version(), about.get("unreadable"), about.get("defines")]
    for cell in notebook.cells:
        known = cell.metadata.get("nbgrader", {})
        marks = [known.get("grade_id"), *(bool(known.get(name)) for name in ("grade", "solution", "locked", "task"))]
        points = float(known.get("points") or 0)
        parts.append([cell.cell_type, cell.source, marks, points, cell.metadata.get("autograder", {}).get("source")])
    parts += [[name, hashlib.sha256(content).hexdigest()] for name, content in sorted(data.items())]
    if wall:
        parts.append(importlib.import_module(wall).declared(holding(notebook.cells)))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


@cache
def _judge_version() -> str:
    package = Path(__file__).resolve().parents[1]
    places = [package / name for name in JUDGING]
    files = [path for place in places for path in ([place] if place.is_file() else sorted(place.glob("*.py")))]
    texts = [path.read_bytes() for path in files]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def data_files(course: Any, assignment: str) -> dict[str, bytes]:
    """Return {path: content} of the files beside an assignment's source notebooks; each submission gets them.

    Raise WrongSetup if they have more than `MOST_DATA` bytes.
    """
    folder = Path(course.format_path(course.source_directory, ".", assignment))
    paths = sorted(Path(path) for path in find_all_files(str(folder), [*course.ignore, "*.ipynb"]))
    if sum(path.stat().st_size for path in paths) > MOST_DATA:
        raise WrongSetup(f"the files beside {assignment}'s source notebooks exceed {MOST_DATA / 1e6:g} MB: remove some")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


_shared: list[Judges] = []
_starting = Lock()


def judges(settings: Settings) -> Judges:
    """Return this process's judges, started on first use. Raise CannotSandbox or CannotJudge if they can't start."""
    with _starting:
        if not _shared:
            started = Judges(settings)
            started.__enter__()
            atexit.register(started.__exit__, None, None, None)
            _shared.append(started)
        return _shared[0]


def share(started: Judges) -> None:
    """Let this process's preprocessors use judges that are already running. The caller closes them."""
    _shared[:] = [started]
