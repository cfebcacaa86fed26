"""nbgrader's door: what takes a submission in, and what runs it, whoever calls nbgrader (this grader or formgrader).

`TakenIn` reads a submission in place of nbconvert's exporter, `Judge` runs it in place of nbgrader's `Execute`. The
points are nbgrader's own affair: it reads them from the outputs that the judge puts into the cells.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import find_all_files, is_grade, is_solution
from traitlets import Bool, Dict, Float, Int, Tuple, Unicode

from ..sandbox.envelope import Limits
from ..submissions import intake
from .judge import Settings, role
from .judges import Judged, Judges, preloading

EXECUTOR = "autograder.judging.preprocessor.Judge"
JUDGING = ("judging", "inside", "wire")  # folders of this package on which a verdict depends
MOST_DATA = 50_000_000  # bytes of an assignment's own files, which every one of its submissions gets


class WrongSetup(Exception):
    """What is wrong in an nbgrader_config.py, in words for whoever wrote it."""


class TakenIn(NotebookExporter):
    """Reads what was submitted, and gives nbgrader the notebook rebuilt from the instructor's."""

    rebuilt = Bool(False, help="Whether the notebooks in the submitted directory are rebuilt already").tag(config=True)

    def from_filename(self, filename: str, resources: dict | None = None, **kw: Any) -> tuple[str, dict]:
        """Export a submission's notebook; in nbgrader's second pass, the one that its first pass wrote."""
        if self.rebuilt or not self.parent._sanitizing:
            return super().from_filename(filename, resources=resources, **kw)
        about = resources["nbgrader"]
        converter = GenerateAssignment(coursedir=self.parent.coursedir, parent=self.parent.parent)
        made_from = intake.template(converter, about["assignment"], about["notebook"])
        taken = intake.take(Path(filename), made_from)
        if taken.reason:
            self.log.warning("%s: no points, because %s", filename, taken.reason)
        return self.from_notebook_node(taken.notebook, resources=resources, **kw)


_KINDS = {bool: Bool, int: Int, float: Float, str: Unicode, tuple: Tuple}
_SETTINGS = {name: field.default for name, field in Settings.__dataclass_fields__.items() if name != "limits"}
_Settable = type(NbGraderPreprocessor)(  # with a trait for each of the judge's settings
    "_Settable",
    (NbGraderPreprocessor,),
    {name: _KINDS[type(value)](default_value=value).tag(config=True) for name, value in _SETTINGS.items()},
)


class Judge(_Settable):
    """Runs a submission in the sandbox and its checks outside, or takes the verdict if there is one already."""

    verdicts = Unicode("judged", help="Folder of the verdicts, in the course's root").tag(config=True)
    limits = Dict(help="Of one submission, by name: see autograder.sandbox.envelope.Limits").tag(config=True)

    @property
    def settings(self) -> Settings:
        """What an instructor has set of how submissions are judged."""
        return Settings(**{name: getattr(self, name) for name in _SETTINGS}, limits=Limits(**self.limits))

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Put the outputs into the notebook, and note in its metadata that it was judged, and as what."""
        if not isinstance(self.parent, TakenIn):
            raise WrongSetup("Autograde.exporter_class is not the autograder's: call autograder.configure(c) last")
        course = self.parent.parent.coursedir
        data = data_files(course, resources["nbgrader"]["assignment"])
        name = key(nb, data)
        store = Verdicts(Path(course.root, self.verdicts))
        if reason := nb.metadata.get("autograder", {}).get("unreadable"):
            without_points(nb, reason)
            about: dict = {}
        else:
            known = store.get(name)
            if known is None:
                known = verdict(judges(self._preloading(nb)).judge, nb, data)
                store.put(name, known)
            for cell, judged in zip(nb.cells, known.cells, strict=True):
                if cell.cell_type == "code":
                    cell.outputs, cell.execution_count = judged.outputs, judged.get("execution_count")
            about = known.metadata.autograder
        nb.metadata["autograder"] = NotebookNode({**nb.metadata.get("autograder", {}), **about})
        nb.metadata.autograder.update(executor=EXECUTOR, key=name)
        return nb, resources

    def _preloading(self, nb: NotebookNode) -> Settings:
        """The settings for whoever judges, if this notebook is the first."""
        cells = [cell for cell in nb.cells if cell.cell_type == "code" and role(cell) != "answer"]
        sources = [cell.metadata.get("autograder", {}).get("source", cell.source) for cell in cells]
        return preloading(self.settings, sources)


class Verdicts:
    """Judged notebooks in a folder, by key. A file is there whole or not at all, whenever the machine stops."""

    def __init__(self, folder: Path):
        self.folder = folder

    def get(self, name: str) -> NotebookNode | None:
        """The judged notebook, or None."""
        try:
            return nbformat.reads((self.folder / f"{name}.ipynb").read_text(encoding="utf-8"), as_version=4)
        except FileNotFoundError:
            return None

    def put(self, name: str, judged: NotebookNode) -> None:
        """Keep a judged notebook."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / f"{name}.ipynb", nbformat.writes(judged))


def write_whole(path: Path, text: str) -> None:
    """Write a file in one stroke: whoever reads it finds all of the old text, or all of the new."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def verdict(judge: Callable[..., Judged], notebook: NotebookNode, data: dict[str, bytes]) -> NotebookNode:
    """Judge a notebook; what else was found goes into its metadata. Raises GraderFault if the grader is at fault."""
    judged = judge(notebook, data)
    for cell in judged.notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = scorable(cell)
    about = judged.notebook.metadata.setdefault("autograder", NotebookNode())
    about.update(remarks=NotebookNode(judged.remarks), seconds=round(judged.seconds, 2))
    return judged.notebook


def scorable(cell: NotebookNode) -> list[NotebookNode]:
    """The outputs of a cell, such that nbgrader reads the right points from them.

    nbgrader takes whatever is on stderr for a failure, and a number that comes before an error for the points; and a
    number that is more than the points there are stops it.
    """
    outputs = [nbformat.from_dict(output) for output in cell.outputs]
    for output in outputs:
        if output.output_type == "stream":
            output.name = "stdout"
    if not is_grade(cell) or is_solution(cell):
        return outputs
    most = float(cell.metadata.nbgrader.points)
    if any(output.output_type == "error" for output in outputs):
        return [output for output in outputs if output.output_type != "execute_result"]
    results = [output for output in outputs if output.output_type == "execute_result"]
    others = [output for output in outputs if output.output_type != "execute_result"]
    if not results or "text/plain" not in results[-1].get("data", {}):
        return others
    if _number(results[-1].data["text/plain"]) > most:
        return [*others, *results[-1:], _error("TooManyPoints", f"the check gives more than its {most:g} points")]
    return [*others, *results[-1:]]


def _number(text: str | list[str]) -> float:
    try:
        return float("".join(text))
    except ValueError:
        return 0.0


def without_points(notebook: NotebookNode, reason: str) -> None:
    """Let all checks of a notebook fail, because there is nothing to check."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            tested = is_grade(cell) and not is_solution(cell)
            cell.outputs = [_error("NothingToGrade", reason)] if tested else []


def _error(name: str, words: str) -> NotebookNode:
    return nbformat.v4.new_output("error", ename=name, evalue=words, traceback=[words])


def key(notebook: NotebookNode, data: dict[str, bytes]) -> str:
    """What a verdict depends on, as a name: the cells, what they are worth, the assignment's files, and the judge."""
    about = notebook.metadata.get("autograder", {})
    parts: list[Any] = [_judge_version(), about.get("unreadable"), about.get("answers"), about.get("classes")]
    for cell in notebook.cells:
        known = cell.metadata.get("nbgrader", {})
        marks = [known.get("grade_id"), *(bool(known.get(name)) for name in ("grade", "solution", "locked", "task"))]
        points = float(known.get("points") or 0)
        parts.append([cell.cell_type, cell.source, marks, points, cell.metadata.get("autograder", {}).get("source")])
    parts += [[name, hashlib.sha256(content).hexdigest()] for name, content in sorted(data.items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


@cache
def _judge_version() -> str:
    package = Path(__file__).resolve().parents[1]
    texts = [path.read_bytes() for folder in JUDGING for path in sorted((package / folder).glob("*.py"))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def data_files(course: Any, assignment: str) -> dict[str, bytes]:
    """The files that an instructor put beside the source notebooks: what a submission finds beside itself."""
    folder = Path(course.format_path(course.source_directory, ".", assignment))
    paths = sorted(Path(path) for path in find_all_files(str(folder), [*course.ignore, "*.ipynb"]))
    if sum(path.stat().st_size for path in paths) > MOST_DATA:
        raise WrongSetup(f"the files beside {assignment}'s source notebooks have more than {MOST_DATA / 1e6:g} MB")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


_shared: list[Judges] = []
_starting = Lock()


def judges(settings: Settings) -> Judges:
    """This process's judges, started when they are first needed. Raises CannotSandbox if they cannot be."""
    with _starting:
        if not _shared:
            started = Judges(settings)
            started.__enter__()
            atexit.register(started.__exit__, None, None, None)
            _shared.append(started)
        return _shared[0]


def share(started: Judges) -> None:
    """Let this process's preprocessors use judges that are started already; whoever started them closes them."""
    _shared[:] = [started]
