"""Takes in what was handed in: whatever it is, a notebook to judge comes out, and a reason if it is no answer.

The notebook that is judged is rebuilt from the instructor's own: all cells of the instructor's, in the instructor's
order, checks and hidden tests included; from the submission come the answers, by `grade_id`, and the cells that the
student added, each after the cell that it followed. So it does not matter what became of the other cells.
"""

from __future__ import annotations

import ast
import base64
import binascii
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import InstantiateTests, SaveCells
from nbgrader.utils import is_grade, is_locked, is_solution, parse_utc
from traitlets.utils.importstring import import_item

MOST_BYTES = 20_000_000  # of a notebook's file, outputs and pictures included
MOST_PARTS = 200_000  # lists and objects in its JSON: some 40 MB in memory
MOST_CHARACTERS = 1_000_000  # in all of its cells; a long exercise with all answers has 40,000
MOST_CELLS = 1_000
MOST_ATTACHED = 5_000_000  # base64 characters of the pictures in one cell
PICTURES = ("image/png", "image/jpeg", "image/gif")
EARLIEST = datetime(2000, 1, 1)


class Unreadable(Exception):
    """Why no answer can be found in what was handed in, in words for the student."""


@dataclass
class Cell:
    """A cell as it was handed in, of any version of the format."""

    kind: str  # "code", "markdown" or "raw"
    source: str
    grade_id: str | None
    id: str | None
    attachments: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Template:
    """The instructor's notebook. `cells`: with hidden tests, without answers; `released`: the sources handed out."""

    name: str
    metadata: NotebookNode
    cells: list[NotebookNode]
    released: list[str]


@dataclass
class Taken:
    """A notebook to be judged. `notes`: what the student is told about it; `reason`: why it is no answer, or None."""

    notebook: NotebookNode
    notes: list[str] = field(default_factory=list)
    reason: str | None = None


# The instructor's side


def template(converter: GenerateAssignment, assignment: str, notebook: str) -> Template:
    """Read an instructor's source notebook, prepared as nbgrader prepares it when it is released.

    What the gradebook knows of a locked cell counts more than the file: it is what nbgrader itself puts back. Raises
    FileNotFoundError without a source notebook, and MissingEntry if the gradebook does not know the notebook.
    """
    course = converter.coursedir
    path = Path(course.format_path(course.source_directory, ".", assignment)) / f"{notebook}.ipynb"
    source = nbformat.read(path, as_version=4)
    names = {"student": ".", "assignment": assignment, "notebook": notebook, "db_url": course.db_url}
    resources = {"unique_key": notebook, "nbgrader": names}
    steps = [import_item(step) if isinstance(step, str) else step for step in converter.preprocessors]
    saved = steps.index(SaveCells) if SaveCells in steps else len(steps)
    kept = _through(converter, [step for step in steps[:saved] if step is not InstantiateTests], source, resources)
    released = _through(converter, steps[saved + 1 :], kept, resources)
    kept.metadata["autograder"] = NotebookNode(answers=answer_names(source), classes=answer_names(source, ast.ClassDef))
    with Gradebook(course.db_url, course.course_id) as gradebook:
        known = {cell.name: cell for cell in gradebook.find_notebook(notebook, assignment).source_cells}
        for cell in kept.cells:
            if is_locked(cell) and (entry := known.get(cell.metadata.nbgrader.grade_id)):
                cell.source, cell.metadata.nbgrader.checksum = entry.source, entry.checksum
    released_sources = [cell.source for cell in released.cells]
    return Template(notebook, kept.metadata, kept.cells, released_sources)


def _through(converter: GenerateAssignment, steps: list, notebook: NotebookNode, resources: dict) -> NotebookNode:
    exporter = NotebookExporter(parent=converter, config=converter.config)
    for step in steps:
        exporter.register_preprocessor(step)
    text, _ = exporter.from_notebook_node(deepcopy(notebook), deepcopy(resources))
    return nbformat.reads(text, as_version=4)


def _is_answer(cell: NotebookNode) -> bool:
    """Whether it comes from the submission: a solution, and a code cell that the instructor left unlocked, too."""
    if "nbgrader" not in cell.metadata:
        return cell.cell_type == "code"
    return is_solution(cell) or not is_locked(cell)


def answer_names(notebook: NotebookNode, kind: type[ast.stmt] = ast.stmt) -> list[str]:
    """The names that an instructor's own answers bind: functions, classes and variables of the solution cells.

    `kind`: of statement that binds them, such as `ast.ClassDef`.
    """
    names: set[str] = set()
    for cell in notebook.cells:
        if cell.cell_type == "code" and is_solution(cell):
            try:
                statements = ast.parse(TransformerManager().transform_cell(cell.source)).body
                names |= _bound([statement for statement in statements if isinstance(statement, kind)])
            except SyntaxError:
                continue  # in an instructor's own answer: a template to be filled in
    return sorted(names)


def _bound(statements: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(statement.name)
            continue
        names |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for part in ("body", "orelse", "finalbody"):
            names |= _bound(getattr(statement, part, []))
    return names


# What was handed in


def located(place: Path, names: Iterable[str]) -> dict[str, Path | Unreadable]:
    """Find the notebooks called `names` in a folder that was handed in, or why one cannot be read.

    `place` may be the notebook itself. One notebook with a wrong name is taken, if only one is asked for.
    """
    names = list(names)
    try:
        kind = os.lstat(place).st_mode
        if stat.S_ISLNK(kind):
            raise Unreadable("a link was handed in; hand in the notebook itself")
        if stat.S_ISREG(kind):
            return {name: place for name in names}
        if not stat.S_ISDIR(kind):
            raise Unreadable("what was handed in is neither a file nor a folder")
        found = sorted(entry.name for entry in os.scandir(place) if entry.name.lower().endswith(".ipynb"))
    except Unreadable as reason:
        return {name: reason for name in names}
    except OSError as error:
        return {name: Unreadable(f"the folder cannot be read: {error.strerror}") for name in names}
    return {name: _one(place, f"{name}.ipynb", found, len(names) == 1) for name in names}


def _one(place: Path, wanted: str, found: list[str], only: bool) -> Path | Unreadable:
    if wanted in found:
        return place / wanted
    if only and len(found) == 1:
        return place / found[0]
    if not found:
        return Unreadable(f"there is no {wanted} in what was handed in")
    listed = ", ".join(map(shown_name, found[:5])) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    return Unreadable(f"there is no {wanted} in what was handed in, but {listed}; hand in one notebook of that name")


def take(place: Path | Unreadable, made_from: Template) -> Taken:
    """Rebuild the notebook to be judged; one that cannot be read becomes one without answers that says why."""
    notes: list[str] = []
    try:
        if isinstance(place, Unreadable):
            raise place
        if place.name != f"{made_from.name}.ipynb":
            notes.append(f"The file is called {shown_name(place.name)}; it was taken for {made_from.name}.ipynb.")
        return rebuilt(made_from, parsed(contents(place), notes), notes)
    except Unreadable as reason:
        return refused(made_from, str(reason))


def contents(path: Path) -> bytes:
    """Read a file that a student handed in: a plain one of at most 20 MB, and never what a link points to."""
    name = shown_name(path.name)
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise Unreadable(f"{name} is a link; hand in the notebook itself") from None
        raise Unreadable(f"{name} cannot be opened: {error.strerror}") from None
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode):
        os.close(file)
        raise Unreadable(f"{name} is not a file")
    with open(file, "rb") as opened:
        if about.st_size > MOST_BYTES:
            raise Unreadable(
                f"{name} has {about.st_size / 1e6:,.0f} MB, and {MOST_BYTES / 1e6:.0f} MB is the most that is "
                "graded; clear its outputs and hand it in again"
            )
        return opened.read(MOST_BYTES + 1)


def parsed(raw: bytes, notes: list[str]) -> list[Cell]:
    """Read the cells of a notebook's file, of any version of the format; `notes` gets what was odd about it."""
    if not raw.strip():
        raise Unreadable("the notebook is empty; was it saved?")
    text = _decoded(raw, notes)
    if text.count("[") + text.count("{") > MOST_PARTS:
        raise Unreadable(f"the notebook's JSON has more than {MOST_PARTS:,} parts; clear its outputs")
    try:
        found = json.loads(text)
    except RecursionError:
        raise Unreadable("the notebook's JSON is nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"the file is not a notebook: it is not valid JSON ({str(error)[:80]})") from None
    cells = found.get("cells") if isinstance(found, dict) else None
    if cells is None and isinstance(found, dict):  # nbformat 3 and older
        sheets = found.get("worksheets")
        cells = [cell for sheet in _listed(sheets) for cell in _listed(_field(sheet, "cells"))] if sheets else None
    if not isinstance(cells, list):
        raise Unreadable("the file is JSON, but not a notebook: it has no list of cells")
    if len(cells) > MOST_CELLS:
        raise Unreadable(f"the notebook has {len(cells):,} cells, and {MOST_CELLS:,} is the most that is graded")
    read = [_cell(cell) for cell in cells if isinstance(cell, dict)]
    if sum(len(cell.source) for cell in read) > MOST_CHARACTERS:
        raise Unreadable(f"the notebook's cells hold more than {MOST_CHARACTERS:,} characters")
    return read


def _decoded(raw: bytes, notes: list[str]) -> str:
    encoding = json.detect_encoding(raw)  # UTF-8, 16 or 32, with a mark at the beginning or without
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        encoding, text = "latin-1", raw.decode("latin-1")
    if encoding not in ("utf-8", "utf-8-sig"):
        notes.append(f"The file was written as {encoding.upper()}; notebooks are UTF-8, and some letters may be wrong.")
    return text


def _cell(given: dict) -> Cell:
    kind = given.get("cell_type")
    source = _text(given.get("source", given.get("input", "")))
    if kind == "heading":
        kind, source = "markdown", f"# {source}"
    metadata = _field(given, "metadata")
    grade_id = _field(_field(metadata, "nbgrader"), "grade_id")
    own_id = given.get("id")
    return Cell(
        kind if kind in ("code", "markdown") else "raw",
        source,
        grade_id if isinstance(grade_id, str) else None,
        own_id if isinstance(own_id, str) else None,
        _attachments(given.get("attachments")),
    )


def _field(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, dict) else None


def _listed(given: Any) -> list:
    return given if isinstance(given, list) else []


def _text(given: Any) -> str:
    lines = given if isinstance(given, list) else [given]
    text = "".join(line for line in lines if isinstance(line, str))
    # Half of a surrogate pair cannot be written as UTF-8, and a NUL not into a PostgreSQL database.
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _attachments(given: Any) -> dict[str, dict[str, str]]:
    """The pictures in a written answer, as far as they are pictures."""
    kept: dict[str, dict[str, str]] = {}
    left = MOST_ATTACHED
    for name, versions in given.items() if isinstance(given, dict) else []:
        for kind, data in versions.items() if isinstance(versions, dict) else []:
            data = _text(data)
            if kind in PICTURES and len(data) <= left and is_base64(data):
                kept.setdefault(_text(name), {})[kind] = data
                left -= len(data)
    return kept


def is_base64(data: str) -> bool:
    """Whether this is base64 and nothing else."""
    try:
        base64.b64decode(data.replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


# The two put together


def rebuilt(made_from: Template, cells: list[Cell], notes: list[str]) -> Taken:
    """Put a student's answers and own cells into the instructor's notebook; add to `notes` what they should know."""
    places = _places(made_from, cells)
    chosen = _chosen(made_from, cells, places)
    if not any(place is not None and "nbgrader" in made_from.cells[place].metadata for place in places):
        raise Unreadable(
            "the notebook has none of the exercise's cells in it; is it another exercise's, or were its cells copied "
            "into a new notebook? Write your answers into the notebook that was handed out"
        )
    own: dict[int, list[Cell]] = {}  # the student's own cells, by the place of the instructor's cell before them
    seen: set[int] = set()
    before = -1
    for index, (cell, place) in enumerate(zip(cells, places, strict=True)):
        if place is None:
            own.setdefault(before, []).append(cell)
            continue
        released = made_from.released[place]
        answer = _is_answer(made_from.cells[place])
        if answer and chosen[place] != index:  # a copy: what the student wrote into it still runs
            if cell.source.strip() != released.strip():
                own.setdefault(before, []).append(cell)
            continue
        before = place
        edited = cell.source.strip() not in (released.strip(), made_from.cells[place].source.strip())
        if not answer and edited and (place in seen or "nbgrader" not in made_from.cells[place].metadata):
            own.setdefault(before, []).append(cell)  # it runs after the instructor's own, or is shown after it
        seen.add(place)
    notes += _remarks(made_from, cells, places, chosen)
    result = []
    for place in range(-1, len(made_from.cells)):
        if place >= 0:
            result.append(_instructors(made_from, place, cells[chosen[place]] if place in chosen else None))
        result += [_students(cell) for cell in own.get(place, []) if cell.source.strip()]
    return Taken(_notebook(made_from, result, notes), notes)


def refused(made_from: Template, reason: str) -> Taken:
    """The notebook of somebody who handed in no answer, which says why and which gets no points."""
    cells = [_instructors(made_from, place, None) for place in range(len(made_from.cells))]
    said = f"Nothing in it could be graded: {reason}" + "." * (not reason.endswith("?"))
    return Taken(_notebook(made_from, cells, [said], {"unreadable": reason}), [said], reason)


def _places(made_from: Template, cells: list[Cell]) -> list[int | None]:
    """For each cell that was handed in, the place of the instructor's cell that it is, or None."""
    by_grade_id = {cell.metadata.get("nbgrader", {}).get("grade_id"): i for i, cell in enumerate(made_from.cells)}
    by_id = {cell.get("id"): i for i, cell in enumerate(made_from.cells)}
    by_grade_id.pop(None, None)
    by_id.pop(None, None)
    as_is: dict[tuple[str, str], list[int]] = {}
    for i, cell in enumerate(made_from.cells):
        if "nbgrader" not in cell.metadata:
            as_is.setdefault((cell.cell_type, cell.source.strip()), []).append(i)
    places: list[int | None] = []
    for cell in cells:
        place = by_grade_id.get(cell.grade_id, by_id.get(cell.id))
        same = as_is.get((cell.kind, cell.source.strip()))
        if place is None and same:
            place = same.pop(0) if len(same) > 1 else same[0]
        places.append(place)
    return places


def _chosen(made_from: Template, cells: list[Cell], places: list[int | None]) -> dict[int, int]:
    """Of the copies of each answer: {its place: which cell counts}. It is the last one that the student changed."""
    chosen: dict[int, int] = {}
    for index, place in enumerate(places):
        if place is None or not _is_answer(made_from.cells[place]):
            continue
        changed = cells[index].source.strip() != made_from.released[place].strip()
        if changed or place not in chosen:
            chosen[place] = index
    return chosen


def _remarks(made_from: Template, cells: list[Cell], places: list[int | None], chosen: dict[int, int]) -> list[str]:
    times = Counter(place for place in places if place is not None)
    missing, checks, copies, retyped, edited = [], [], [], [], []
    for place, cell in enumerate(made_from.cells):
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name is None:
            continue
        name = f"`{name}`"
        if _is_answer(cell):
            if place not in chosen:
                missing.append(name)
            elif cells[chosen[place]].kind != cell.cell_type:
                retyped.append(name)
            if times[place] > 1:
                copies.append(name)
        elif not times[place]:
            checks += [name] if is_grade(cell) else []
        elif is_grade(cell) and any(
            other.source.strip() not in (made_from.released[place].strip(), cell.source.strip())
            for other, at in zip(cells, places, strict=True)
            if at == place
        ):
            edited.append(name)
    said = [
        (missing, "{}: not in the notebook, so graded as it was handed out."),
        (copies, "{} in the notebook more than once: the last one that you changed counts, the others run before it."),
        (retyped, "{} of another kind than it was handed out (code or text): graded as what it was."),
        (checks, "{} missing: put back and graded."),
        (edited, "{} changed: graded as it was handed out."),
    ]
    return [words.format(", ".join(names)) for names, words in said if names]


def _instructors(made_from: Template, place: int, answer: Cell | None) -> NotebookNode:
    cell = deepcopy(made_from.cells[place])
    if _is_answer(cell):
        cell.source = answer.source if answer else made_from.released[place]
        if answer and answer.attachments and cell.cell_type == "markdown":
            cell.attachments = NotebookNode(answer.attachments)
    if cell.cell_type == "code":
        if not (is_solution(cell) or is_locked(cell)):  # the judge runs the instructor's own beside it
            cell.metadata["autograder"] = NotebookNode(source=made_from.released[place])
        cell.outputs, cell.execution_count = [], None
    return cell


def _students(cell: Cell) -> NotebookNode:
    made = getattr(nbformat.v4, f"new_{cell.kind}_cell")(cell.source)
    if cell.kind == "markdown" and cell.attachments:
        made.attachments = NotebookNode(cell.attachments)
    return made


def _notebook(made_from: Template, cells: list[NotebookNode], notes: list[str], about: dict | None = None):
    if notes:
        listed = "\n".join(f"- {note}" for note in notes)
        cells = [nbformat.v4.new_markdown_cell(f"**About the notebook that you handed in**\n\n{listed}"), *cells]
    used: set[str] = set()
    for index, cell in enumerate(cells):
        if cell.get("id") not in used and "nbgrader" in cell.metadata and "id" in cell:
            used.add(cell.id)
        else:
            cell.id = f"place-{index}"
    metadata = deepcopy(made_from.metadata)
    metadata["autograder"] = NotebookNode({**metadata.get("autograder", {}), **(about or {}), "notes": notes})
    return NotebookNode(nbformat=4, nbformat_minor=5, metadata=metadata, cells=cells)


# What stands beside it


def timestamp(place: Path) -> tuple[str | None, str | None]:
    """When it was handed in, as its timestamp.txt says, or None; and what is wrong with that file, or None."""
    path = place / "timestamp.txt"
    if not place.is_dir() or place.is_symlink() or not os.path.lexists(path):
        return None, None
    try:
        text = contents(path)[:200].decode().strip()
        when = parse_utc(text)
        if not EARLIEST < when < datetime.now(UTC).replace(tzinfo=None) + timedelta(days=1):
            raise ValueError(f"{when:%Y-%m-%d} is no day on which this can have been handed in")
    except Unreadable as reason:
        return None, str(reason)
    except Exception as error:  # dateutil raises what it likes
        return None, f"timestamp.txt is not a time ({str(error)[:80]})"
    return text, None


def name_fault(name: str) -> str | None:
    """What is wrong with a folder's name as the name of a student, or None."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "the folder's name is not UTF-8; rename it"
    if name != name.strip() or not name.isprintable():
        return "the folder's name has blanks at an end, or characters that cannot be printed, in it; rename it"
    if len(name) > 128:  # what nbgrader's column of students has room for
        return f"the folder's name has {len(name)} characters, and a gradebook has room for 128; rename it"
    return None


def shown_name(name: str) -> str:
    """A file's name as it can be printed, and put into a sentence of markdown."""
    printable = "".join(c if c.isprintable() else "\ufffd" for c in name.encode("utf-8", "replace").decode())
    return re.sub(r"[`<>\[\]*|\\]", "\ufffd", printable[:80])
