"""The intake of submissions: it turns any hand-in into a notebook to judge, with a reason if it holds no answer.

The intake rebuilds the notebook from the instructor's own: all of the instructor's cells, in the instructor's order,
checks and hidden tests included. It takes two things from the submission: the answers, by `grade_id`, and the cells
that the student added, each after the cell that it followed. What happened to the other cells doesn't matter.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import InstantiateTests, SaveCells
from nbgrader.utils import is_grade, is_locked, is_solution, parse_utc
from traitlets.utils.importstring import import_item

from .. import cage
from ..names import defined
from . import notebooks as files
from . import unzip
from .notebooks import Cell

MOST_BYTES = 20_000_000  # in a notebook's file, with outputs and pictures
MOST_COPIES = 20  # files beside a notebook that are looked at
MOST_SECONDS = 10.0  # for reading one notebook's JSON
MARKER = re.compile(r"^.*(BEGIN|END) SOLUTION.*\n?", re.MULTILINE)  # nbgrader's lines around an answer
EARLIEST = datetime(2000, 1, 1)
# A time as nbgrader and `make submit` write it. No path: dateutil would open the file that a zone's name leads to.
ZONE = r"UTC|Z|[A-Z]{3,5}|[A-Z][a-z]+/[A-Za-z_]+|[+-]\d\d(:?\d\d)?"
MOST_SECRET = 1000  # characters of what names a student's pages in the exchange; nbgrader's have 128
TIME = re.compile(rf"\d{{4}}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?( ?({ZONE}))?")


class Unreadable(Exception):
    """Why a hand-in holds no answer, in a sentence for the student."""


@dataclass(frozen=True)
class Template:
    """The instructor's notebook. `cells`: with hidden tests, without answers; `released`: the students' sources."""

    name: str
    metadata: NotebookNode
    cells: list[NotebookNode]
    released: list[str]


@dataclass
class Taken:
    """A notebook to judge. `notes`: remarks for the student; `reason`: why it holds no answer, or None.

    `digest`: of the file that was handed in, "" if it can't be read.
    """

    notebook: NotebookNode
    notes: list[str] = field(default_factory=list)
    reason: str | None = None
    digest: str = ""


# The instructor's side


def template(converter: GenerateAssignment, assignment: str, notebook: str) -> Template:
    """Read an instructor's source notebook, and prepare it as nbgrader does for a release.

    For a locked cell, the gradebook's source replaces the file's, because nbgrader itself puts that one back. Raises
    FileNotFoundError without a source notebook, and MissingEntry if the gradebook doesn't have the notebook.
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
    about = source.metadata.get("autograder", {})
    kept.metadata["autograder"] = NotebookNode({**about, "defines": declared(source), "rubrics": rubrics(source)})
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
    """Return whether a cell comes from the submission: a solution, or a code cell that the instructor left unlocked."""
    if "nbgrader" not in cell.metadata:
        return cell.cell_type == "code"
    return is_solution(cell) or not is_locked(cell)


def rubrics(notebook: NotebookNode) -> dict[str, str]:
    """Return {grade_id: the instructor's own answer and rubric} of the answers that a person reads."""
    read = [cell for cell in notebook.cells if is_grade(cell) and is_solution(cell)]
    return {cell.metadata.nbgrader.grade_id: MARKER.sub("", cell.source).strip() for cell in read}


def declared(notebook: NotebookNode) -> dict[str, dict[str, Any]]:
    """Return what the solution cells of an instructor's notebook define: the names that a submission may supply."""
    solutions = [cell for cell in notebook.cells if cell.cell_type == "code" and is_solution(cell)]
    return defined({cell.metadata.nbgrader.grade_id: cell.source for cell in solutions})


# The student's side


def located(place: Path, names: Iterable[str]) -> dict[str, Path | Unreadable]:
    """Return, for each of `names`, the notebook's path in a hand-in, or why it can't be read.

    `place` is a folder, or the notebook itself. A single notebook with a wrong name counts if `names` has one entry.
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
        notebooks = sorted(entry.name for entry in os.scandir(place) if entry.name.lower().endswith(".ipynb"))
    except Unreadable as reason:
        return {name: reason for name in names}
    except OSError as error:
        return {name: Unreadable(f"the folder cannot be read: {error.strerror}") for name in names}
    return {name: _one(place, f"{name}.ipynb", notebooks, len(names) == 1) for name in names}


def _one(place: Path, name: str, notebooks: list[str], only: bool) -> Path | Unreadable:
    if name in notebooks:
        return place / name
    if only and len(notebooks) == 1:
        return place / notebooks[0]
    if not notebooks:
        return Unreadable(f"there is no {name} in what was handed in")
    listed = ", ".join(map(shown_name, notebooks[:5]))
    listed += f" and {len(notebooks) - 5} more" if len(notebooks) > 5 else ""
    return Unreadable(f"there is no {name} in what was handed in, but {listed}; hand in one notebook of that name")


def take(place: Path | Unreadable, made_from: Template) -> Taken:
    """Rebuild the notebook to judge. An unreadable one becomes a notebook without answers that says why."""
    notes: list[str] = []
    own = ""
    try:
        if isinstance(place, Unreadable):
            raise place
        if place.name != f"{made_from.name}.ipynb":
            notes.append(f"The file is called {shown_name(place.name)}; it was graded as {made_from.name}.ipynb.")
        raw = contents(place)
        own = digest(raw)
        notes += better_copies(place, raw, made_from.name)
        taken = rebuilt(made_from, read_cells(raw, notes), notes)
    except Unreadable as reason:
        taken = refused(made_from, str(reason))
    return replace(taken, digest=own)


def digest(notebook: bytes) -> str:
    """Return what tells a notebook's file from all others."""
    return hashlib.sha256(notebook).hexdigest()


def better_copies(place: Path, raw: bytes, exercise: str) -> list[str]:
    """Return a note for each copy beside a notebook that has more answers, or is another version of it.

    `raw`: the notebook's bytes.
    """
    found = []
    paths = _copies_beside(place, exercise)
    if place.parent.name == exercise:  # a folder was handed in, which may hold itself once more
        below = [path.relative_to(place.parent) for path in place.parent.glob(f"*/{glob.escape(place.name)}")]
        paths = sorted([*paths, *(PurePosixPath(path) for path in below if not unzip.is_litter(PurePosixPath(path)))])
    for path in paths[:MOST_COPIES]:
        with contextlib.suppress(Unreadable):
            copy = contents(place.parent / path)
            more = unzip.more_answers(copy, raw)
            differs = more == 0 and copy != raw and unzip.is_notebook(path.name, exercise)
            if b'"grade_id"' in copy and (more > 0 or differs):
                what = "has more answers" if more > 0 else "differs"
                found.append(f"{shown_name(str(path))} beside it {what}, but {shown_name(place.name)} was graded.")
    return found


def _copies_beside(place: Path, exercise: str) -> list[PurePosixPath]:
    """Return the names of the files beside a notebook that could be meant as another version of it."""
    own = PurePosixPath(place.name)
    names = [PurePosixPath(path.name) for path in sorted(place.parent.glob("*.ipynb")) if path != place]
    return [name for name in names if not unzip.is_litter(name) and unzip.could_be_meant(name, own, exercise)]


def contents(path: Path) -> bytes:
    """Return the bytes of a student's file; raise Unreadable for a link, a special file, or more than 20 MB."""
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
                f"{name} has {about.st_size / 1e6:,.0f} MB, and the limit is {MOST_BYTES / 1e6:.0f} MB; "
                "clear its outputs and hand it in again"
            )
        return opened.read(MOST_BYTES + 1)


def read_cells(raw: bytes, notes: list[str]) -> list[Cell]:
    """Return the cells of a notebook's file, read in the cage; append to `notes` what is odd about it."""
    try:
        found = json.loads(cage.ask(files.read, raw, MOST_SECONDS))
    except cage.Failed as reason:
        raise Unreadable(re.sub(r"^it ", "the notebook ", str(reason))) from None
    notes += found["notes"]
    return [Cell(**cell) for cell in found["cells"]]


# Both sides together


def rebuilt(made_from: Template, cells: list[Cell], notes: list[str]) -> Taken:
    """Put a student's answers and own cells into the instructor's notebook; append remarks to `notes`."""
    places = _places(made_from, cells)
    chosen = _chosen(made_from, cells, places)
    if not any(place is not None and "nbgrader" in made_from.cells[place].metadata for place in places):
        raise Unreadable(
            "the notebook has none of the exercise's cells in it; is it another exercise's, or did you copy the cells "
            "into a new notebook? Write your answers into the notebook that you got"
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
        if answer and chosen[place] != index:  # a copy of an answer; the student's text still runs
            if cell.source.strip() != released.strip():
                own.setdefault(before, []).append(cell)
            continue
        before = place
        edited = cell.source.strip() not in (released.strip(), made_from.cells[place].source.strip())
        if not answer and edited and (place in seen or "nbgrader" not in made_from.cells[place].metadata):
            own.setdefault(before, []).append(cell)  # runs, or is shown, after the instructor's own cell
        seen.add(place)
    notes += _remarks(made_from, cells, places, chosen)
    result = []
    for place in range(-1, len(made_from.cells)):
        if place >= 0:
            result.append(_instructors(made_from, place, cells[chosen[place]] if place in chosen else None))
        result += [_students(cell) for cell in own.get(place, []) if cell.source.strip()]
    return Taken(_notebook(made_from, result, notes), notes)


def refused(made_from: Template, reason: str) -> Taken:
    """Return a notebook without answers, which gets no points and says why."""
    cells = [_instructors(made_from, place, None) for place in range(len(made_from.cells))]
    note = f"Nothing in it could be graded: {reason}" + "." * (not reason.endswith("?"))
    return Taken(_notebook(made_from, cells, [note], {"unreadable": reason}), [note], reason)


def _places(made_from: Template, cells: list[Cell]) -> list[int | None]:
    """Return, for each handed-in cell, the index of the instructor's cell that it corresponds to, or None."""
    by_grade_id = {cell.metadata.get("nbgrader", {}).get("grade_id"): i for i, cell in enumerate(made_from.cells)}
    by_id = {cell.get("id"): i for i, cell in enumerate(made_from.cells)}
    by_grade_id.pop(None, None)
    by_id.pop(None, None)
    as_is: dict[tuple[str, str], list[int]] = {}
    for i, cell in enumerate(made_from.cells):
        if "nbgrader" not in cell.metadata:
            as_is.setdefault((cell.cell_type, cell.source.strip()), []).append(i)
    places: list[int | None] = []
    for handed_in in cells:
        place = by_grade_id.get(handed_in.grade_id, by_id.get(handed_in.id))
        same = as_is.get((handed_in.kind, handed_in.source.strip()))
        if place is None and same:
            place = same.pop(0) if len(same) > 1 else same[0]
        places.append(place)
    return places


def _chosen(made_from: Template, cells: list[Cell], places: list[int | None]) -> dict[int, int]:
    """Return {index of an answer: index of the handed-in copy that counts}: the last one that the student changed."""
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
    remarks = [
        (missing, "{}: not in the notebook, so graded as it was handed out."),
        (copies, "{} in the notebook more than once: the last one that you changed counts, the others run before it."),
        (retyped, "{} of another kind (code or text) than in the original: graded as the original kind."),
        (checks, "{} missing: put back and graded."),
        (edited, "{} changed: graded as it was handed out."),
    ]
    return [words.format(", ".join(names)) for names, words in remarks if names]


def _instructors(made_from: Template, place: int, answer: Cell | None) -> NotebookNode:
    cell = deepcopy(made_from.cells[place])
    if _is_answer(cell):
        cell.source = answer.source if answer else made_from.released[place]
        if answer and answer.attachments and cell.cell_type == "markdown":
            cell.attachments = NotebookNode(answer.attachments)
    elif cell.cell_type != "code":  # formgrader's page believes it: see `results.feedback`
        cell.metadata["autograder"] = NotebookNode(author="instructor")
    if cell.cell_type == "code":
        if not (is_solution(cell) or is_locked(cell)):  # the judge also runs the instructor's own
            cell.metadata["autograder"] = NotebookNode(source=made_from.released[place])
        cell.outputs, cell.execution_count = [], None
    return cell


def _students(cell: Cell) -> NotebookNode:
    node = getattr(nbformat.v4, f"new_{cell.kind}_cell")(cell.source)
    if cell.kind == "markdown" and cell.attachments:
        node.attachments = NotebookNode(cell.attachments)
    return node


def _notebook(made_from: Template, cells: list[NotebookNode], notes: list[str], about: dict | None = None):
    if notes:
        listed = "\n".join(f"- {note}" for note in notes)
        words = f"**About the notebook that you handed in**\n\n{listed}"
        about_it = nbformat.v4.new_markdown_cell(words, metadata={"autograder": {"author": "grader"}})
        cells = [about_it, *cells]
    used: set[str] = set()
    for index, cell in enumerate(cells):
        if cell.get("id") not in used and "nbgrader" in cell.metadata and "id" in cell:
            used.add(cell.id)
        else:
            cell.id = f"place-{index}"
    metadata = deepcopy(made_from.metadata)
    metadata["autograder"] = NotebookNode({**metadata.get("autograder", {}), **(about or {}), "notes": notes})
    return NotebookNode(nbformat=4, nbformat_minor=5, metadata=metadata, cells=cells)


# Beside the notebook: its timestamp and the student's name


def timestamp(place: Path) -> tuple[str | None, str | None]:
    """Return (the time in timestamp.txt, or None; what is wrong with that file, or None)."""
    path = place / "timestamp.txt"
    if not place.is_dir() or place.is_symlink() or not os.path.lexists(path):
        return None, None
    try:
        text = contents(path).decode().strip()
        if len(text) > 200 or not TIME.fullmatch(text):
            raise ValueError("write it like 2026-11-28 12:00:00 UTC")
        when = parse_utc(text)
        if not is_possible(when):
            raise ValueError(f"{when:%Y-%m-%d} is not a possible day")
    except Unreadable as reason:
        return None, str(reason)
    except Exception as error:  # dateutil raises many kinds
        return None, f"timestamp.txt is not a time ({str(error)[:80]})"
    return text, None


def is_possible(when: datetime) -> bool:
    """Return whether a time, in UTC and without a zone, can be that of a hand-in."""
    return EARLIEST < when < datetime.now(UTC).replace(tzinfo=None) + timedelta(days=1)


def secret(place: Path) -> str | None:
    """Return what names a student's pages in the exchange, from submission_secret.txt; None if that can't be used."""
    if not place.is_dir() or place.is_symlink():
        return None
    try:
        text = contents(place / "submission_secret.txt").decode()
    except (Unreadable, UnicodeDecodeError):
        return None
    return text if text.isprintable() and 0 < len(text) <= MOST_SECRET else None


def new_secret() -> str:
    """Return a secret for a hand-in that brings none: nbgrader asks each for one where it releases feedback."""
    return secrets.token_hex(32)


def name_fault(name: str) -> str | None:
    """Return why a folder's name can't be a student's name, or None."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return "the folder's name is not UTF-8; rename it"
    if name != name.strip() or not name.isprintable():
        return "the folder's name has blanks at an end, or unprintable characters; rename it"
    if len(name) > 128:  # the size of nbgrader's column of students
        return f"the folder's name has {len(name)} characters, and a gradebook holds 128; rename it"
    return None


def shown_name(name: str) -> str:
    """Return a file's name, cut after 80 characters, that is safe to print and to put into markdown."""
    printable = "".join(c if c.isprintable() else "\ufffd" for c in name.encode("utf-8", "replace").decode())
    return re.sub(r"[`<>\[\]*|\\]", "\ufffd", printable[:80])
