"""Pages that run no student's code: the feedback, and the graded notebook as formgrader shows it.

The cage renders and cleans all texts of a notebook, in one request (see `rendering`). A text on which it fails is shown
as plain text, with a line that says why. A Content-Security-Policy makes the browser enforce the same.
"""

from __future__ import annotations

import ast
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import BytecodeCache, Environment, pass_context
from jinja2.bccache import Bucket
from nbconvert.exporters import HTMLExporter
from nbconvert.preprocessors import HighlightMagicsPreprocessor
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_output
from nbgrader.preprocessors import ClearHiddenTests, GetGrades, NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution, is_task
from pygments.formatters import HtmlFormatter
from traitlets import Bool
from traitlets.config import Config

from .. import cage, points
from ..wire.protocol import MIME_TYPES, MOST_PIECES, lines_in, pieces, storable
from . import rendering

TEMPLATES = Path(__file__).parent / "templates"
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
MOST_SECONDS = 5.0  # for one text; an honest one takes milliseconds
PAGE_SECONDS = 10.0  # for all texts of a page
MOST_OUTPUT = 1_000_000  # characters of one text in a cell's outputs; a picture may have as many as are left
MOST_OUTPUTS = 10_000_000  # characters in all outputs of a page
MOST_HTML = 20_000_000  # characters of HTML that the cage may make of all texts of a page, with embedded pictures
MOST_ERROR = 20_000  # characters of a traceback, of which 1,000 are shown even when no others are left
MOST_TAGS = 200_000  # "<" in that HTML: nbconvert parses a page again, which takes 700 bytes of memory for each
MOST_CODE_TAGS = 50_000  # in the code of students' cells, of which nbconvert cleans each: 40,000 characters have 15,000
MOST_COLOURS = 100_000  # changes of colour in all outputs of a page, each of which becomes a tag
MOST_COLOURING = 100_000_000  # nbconvert copies the rest of a text at each of its colours
LINES = 50  # lines of text, or letters written from right to left, that a browser lays out in the time of an output
NOTE = (
    f"[The rest is not shown: a page shows {MOST_PIECES:,} outputs, {MOST_PIECES * LINES:,} lines, and "
    f"{MOST_OUTPUTS // 1_000_000} MB.]\n"
)
MOST_REPLAYED = 100  # lines of a hidden test that a page shows: the longest of the course has 90
AGAIN = "points from before it was last graded: a person looks at it again"
MOST_LINE = 200  # characters of a check's message in the table of points
SLOW = 0.2  # seconds; what took longer is kept, so that `Inert` need not wait for it again
MOST_SLOW = 50  # texts that are kept
MOST_KEPT = 3 * MOST_HTML  # characters of their HTML
# Around what students wrote, where formgrader shows it. The class makes MathJax pass over it, because a formula may
# redefine the instructor's symbols, cover the rest of the page, or take the browser's memory. Students' own HTML has
# neither classes nor styles, so the border tells their texts from a rubric.
STUDENTS = '<div class="tex2jax_ignore" style="border-left: 3px solid #bbb; padding-left: 8px">'
OWN = "<div><em>The student's own cell:</em></div>"  # above a text that isn't an answer
RUBRIC = '<div class="alert alert-info">'  # Bootstrap's box, which formgrader's page has a style for
# For formgrader's page: what is taller scrolls in its place. A browser puts all that begins below 33,554,432 pixels,
# where a picture of 200 bytes reaches, at that one height, rubrics and the boxes for points included.
WITHIN_REACH = "<style>.tex2jax_ignore, .input_area, .output_subarea { max-height: 1200px; overflow: auto }</style>"

Show = Callable[..., str]  # (kind, text, about) -> HTML; see `rendering.rendered`


class Shown:
    """The HTML of texts, from the cage. `prepare` renders many in one request; calling it renders what is missing."""

    def __init__(self) -> None:
        self.html: dict[tuple[str, str, str], str] = {}
        self.left, self.tags = MOST_HTML, MOST_TAGS
        self.times: Counter[tuple[str, str, str]] = Counter()  # how often a page shows each

    def prepare(self, texts: Sequence[tuple[str, str, str]]) -> None:
        """Render these texts, given as (kind, text, about), or show them as they are written.

        What comes after the first text that doesn't fit into `MOST_HTML` or `MOST_TAGS` is not rendered at all.
        """
        self.times.update(texts)
        missing = [text for text in dict.fromkeys(texts) if text not in self.html]
        for text in missing:
            if known := _slow.get(text):  # which another page's thread may drop at any moment
                self._add(text, *known)
        missing = [text for text in missing if text not in self.html]
        items = [json.dumps(text).encode() for text in missing]
        with closing(cage.each(rendering.rendered, items, MOST_SECONDS, PAGE_SECONDS)) as answers:
            begun = time.monotonic()
            for text in missing:
                if min(self.left, self.tags) <= 0:
                    self._add(text, "", 0)
                    continue
                answer = next(answers)
                if isinstance(answer, cage.Failed):
                    html = _plain(text, str(answer))
                    tags = html.count("<")
                else:
                    number, _, html = answer.decode().partition(" ")
                    tags = int(number)
                self._add(text, html, tags)
                took, begun = time.monotonic() - begun, time.monotonic()
                if took > SLOW:
                    _keep_slow(text, html, tags)

    def _add(self, text: tuple[str, str, str], html: str, tags: int) -> None:
        """Take a text's HTML, or its characters if the page has no room left for the HTML.

        `tags`: how many it has, with the elements of its pictures.
        """
        self.left -= self.times[text] * len(html)
        self.tags -= self.times[text] * tags
        most = f"{MOST_HTML // 1_000_000} MB" if self.left <= 0 else f"{MOST_TAGS:,} tags"
        fits = min(self.left, self.tags) > 0
        self.html[text] = html if fits else _plain(text, f"this page has more than {most}")

    def __call__(self, kind: str, text: str, about: str = "") -> str:
        if (kind, text, about) not in self.html:
            self.prepare([(kind, text, about)])
        return self.html[kind, text, about]


_slow: dict[tuple[str, str, str], tuple[str, int]] = {}


def _keep_slow(text: tuple[str, str, str], html: str, tags: int) -> None:
    _slow[text] = html, tags
    kept = 0
    for number, (key, (value, _)) in enumerate(reversed(list(_slow.items()))):
        kept += len(value) + sum(map(len, key))
        if number >= MOST_SLOW or kept > MOST_KEPT:
            _slow.pop(key, None)


def try_out(notebook: NotebookNode) -> None:
    """Render a judged notebook's texts once, in any thread, so that a slow one doesn't hold up the class's writer."""
    all_shown(deepcopy(notebook), _cleaned)


def all_shown(notebook: NotebookNode, change: Callable[[NotebookNode, Show], Any]) -> Shown:
    """Call `change(notebook, show)`, after it was called on a copy to learn what it shows; return its `show`."""
    wanted: list[tuple[str, str, str]] = []

    def note(kind: str, text: str, about: str = "") -> str:
        wanted.append((kind, text, about))
        return ""

    shown = Shown()
    change(deepcopy(notebook), note)
    shown.prepare(wanted)
    change(notebook, shown)
    return shown


def _plain(text: tuple[str, str, str], reason: str) -> str:
    """Return a text's own characters as HTML. Code needs no reason: it is legible without its colours.

    Of a picture, only the reason is shown.
    """
    kind, source, _ = text
    if kind == "picture":
        return f"<p><em>A picture is not shown, because {escape(reason)}.</em></p>"
    return as_written(source) if kind == "code" else as_written(source, reason)


def as_written(source: str, reason: str = "") -> str:
    """Return a text or code as HTML that shows its characters unchanged, below the reason for that."""
    why = f"<p><em>Shown as plain text, because {escape(reason)}.</em></p>" if reason else ""
    return f"{why}<pre>{escape(source)}</pre>"


def plain_page(title: str, got: dict[str, str], reason: str) -> str:
    """Return a page that shows the points of each cell, by name, and why it shows no more."""
    rows = "".join(f"<li>{escape(name)}: {escape(words)}</li>" for name, words in got.items())
    return (
        f'<!DOCTYPE html><html><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"/><title>{escape(title)}</title></head>'
        f"<body><h1>{escape(title)}</h1><p>Only the points are shown, because {escape(reason)}.</p><ul>{rows}</ul>"
        f"</body></html>"
    )


def clean_outputs(notebook: NotebookNode, show: Show) -> None:
    """Reduce the outputs of a notebook to those that run nothing when shown, and to so many as a page shows."""
    limit_outputs(notebook)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "data" in output:
                output.data = NotebookNode(_clean_data(output.data, show))
                output.metadata = NotebookNode()
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("data", True)]


def limit_outputs(notebook: NotebookNode) -> None:
    """Cut the outputs of a notebook to `MOST_OUTPUTS` characters and `MOST_PIECES` pieces in all, and say so.

    What comes after `MOST_COLOURS` changes of colour has none. Points are still read from them. The end of a cell's
    error stays, and so does the beginning of its last result, which may be its points. A cell's metadata
    records that its last output is the note that says so: a student's function may print the same words.
    """
    left, room, colours = MOST_OUTPUTS, MOST_PIECES, MOST_COLOURS
    for cell in notebook.cells:
        kept, outputs = [], cell.get("outputs", [])
        noted = cell.metadata.get("autograder", {}).get("cut") is True
        lost = noted and [output.get("text") for output in outputs[-1:]] == [NOTE]
        outputs = outputs[:-1] if lost else outputs
        last = {output.output_type: output for output in outputs}
        needed = [last[kind] for kind in ("error", "execute_result") if kind in last]
        for output in outputs:
            room -= pieces(output) + _lines(output) // LINES
            if room < 0:
                left = 0
                if not any(output is each for each in needed):
                    lost = True
                    continue
            size, cut = _reduce(output, max(left, 1_000) if output.output_type in ("error", "execute_result") else left)
            left, lost = max(0, left - size), lost or cut
            colours -= _coloured(output, colours)
            kept.append(output)
        if "outputs" in cell:
            cell.outputs = [*kept, *([new_output("stream", text=NOTE)] if lost else [])]
        if lost:
            cell.metadata["autograder"] = NotebookNode({**cell.metadata.get("autograder", {}), "cut": True})


def _lines(output: NotebookNode) -> int:
    """Return the lines of an output's texts, and the letters that change their direction, which is as slow."""
    shown = [value for kind, value in output.get("data", {}).items() if not kind.startswith("image/")]
    texts = [output.get("text", ""), output.get("traceback", ""), *shown]
    return sum(lines_in(_joined(text)) for text in texts if isinstance(text, str | list))


def _reduce(output: NotebookNode, left: int) -> tuple[int, bool]:
    """Cut an output to `left` characters, in place; return how many it has, and whether any is lost."""
    before = 0
    if output.output_type == "error":
        lines = [str(line) for line in output.traceback]
        before = sum(map(len, lines))
        most = min(left, MOST_ERROR)
        output.traceback = _last(lines, most)
        output.ename, output.evalue = _fit(output.ename, 1_000), _fit(output.evalue, most)
        after = sum(map(len, output.traceback))
    elif "data" in output:
        texts = {
            kind: _joined(output.data[kind]) for kind in MIME_TYPES if isinstance(output.data.get(kind), str | list)
        }
        before, after = sum(map(len, texts.values())), 0
        output.data = NotebookNode()
        for kind, text in texts.items():
            most = left - after if kind.startswith("image/") else min(left - after, MOST_OUTPUT)
            if len(text) <= most or kind == "text/plain":
                output.data[kind] = _fit(text, max(0, most))
                after += len(output.data[kind])
    else:
        text = _joined(output.get("text", ""))
        before, output.text = len(text), _fit(text, min(left, MOST_OUTPUT))
        after = len(output.text)
    return after, after < before


def _coloured(output: NotebookNode, left: int) -> int:
    """Return how often an output's texts change their colour; take the colours out, in place, if that is too often."""
    texts = [output.get("text", ""), output.get("data", {}).get("text/plain", ""), *output.get("traceback", ())]
    count = sum(text.count("\x1b") for text in texts)
    if count > left:
        if "traceback" in output:
            output.traceback = [line.replace("\x1b", "") for line in output.traceback]
        for part, name in ((output, "text"), (output.get("data", {}), "text/plain")):
            if name in part:
                part[name] = part[name].replace("\x1b", "")
        return 0
    return count


def _joined(text: str | list) -> str:
    """Return a text of a notebook, which may be a list of lines."""
    return text if isinstance(text, str) else "".join(map(str, text))


def _last(lines: list[str], most: int) -> list[str]:
    """Return the last lines of a traceback, which say most, of at most so many characters."""
    kept: list[str] = []
    for line in reversed(lines):
        kept.append(_fit(line, most))
        most -= len(kept[-1])
        if most <= 0:
            break
    return kept[::-1]


def _fit(text: str, most: int) -> str:
    """Return the beginning of a text, in characters that UTF-8 can hold, without colours if there are very many."""
    text = storable(text[:most])
    return text.replace("\x1b", "") if text.count("\x1b") * len(text) > MOST_COLOURING else text


def _clean_data(texts: dict[str, str], show: Show) -> dict[str, str]:
    kept = {}
    pictured = any(kind.startswith("image/") for kind in texts)
    if "text/plain" in texts:
        kept["text/plain"] = texts["text/plain"]
    if "text/html" in texts:
        kept["text/html"] = show("html", texts["text/html"])
    elif "text/markdown" in texts:
        kept["text/html"] = show("markdown", texts["text/markdown"])
    elif "text/latex" in texts and not pictured:  # no page typesets it, and SymPy's pictures show the same formula
        kept["text/html"] = show("html", as_written(texts["text/latex"]))
    for kind in ("image/svg+xml", "image/png", "image/jpeg"):
        if kind in texts:
            answer = show("picture", texts[kind], kind)
            if answer.startswith("<"):  # why it isn't shown
                kept["text/html"] = kept.get("text/html", "") + answer
            elif kind == "image/svg+xml":
                kept["image/png"] = answer
            else:
                kept[kind] = texts[kind]
    return kept


class Inert(NbGraderPreprocessor):
    """The last preprocessor. It cleans the notebook for formgrader, whose templates clean nothing.

    It also shows the rubric of a written answer below that answer, and limits the height of what students made.
    `InertPage` leaves both out of the student's page.
    """

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Clean the outputs, and the texts of all cells but the instructor's."""
        nb = deepcopy(nb)
        all_shown(nb, _cleaned)
        with_rubrics(nb)
        return nb, resources


def with_rubrics(notebook: NotebookNode) -> None:
    """Put a cell with the instructor's own answer and rubric after each answer that a person reads, and a style."""
    rubrics = notebook.metadata.get("autograder", {}).get("rubrics", {})
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if text := rubrics.get(cell.metadata.get("nbgrader", {}).get("grade_id")):
            words = f"**For graders only: the instructor's answer.**\n\n{text}"
            cells.append(_for_graders(f"{RUBRIC}\n\n{words}\n\n</div>", len(cells)))
    notebook.cells = [*cells, _for_graders(WITHIN_REACH, len(cells))]


def _for_graders(source: str, number: int) -> NotebookNode:
    """Return a cell that `InertPage` leaves out."""
    cell = new_markdown_cell(source, id=f"rubric-{number}")
    cell.metadata["autograder"] = NotebookNode(rubric=True)
    return cell


def _cleaned(notebook: NotebookNode, show: Show) -> None:
    language, coloured, tags = _language(notebook), True, 0
    marked = any(_author(cell) for cell in notebook.cells)  # else no cell says whether it is a student's own
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("locked") and not is_solution(cell):
            continue
        own = marked and not _author(cell) and "nbgrader" not in cell.metadata
        if cell.cell_type == "markdown" and _author(cell) != "instructor":
            text = show("markdown", cell.source, _attached(cell))
            cell.pop("attachments", None)
            # On one line, so that markdown takes it for one piece of HTML and doesn't parse the inside. Without
            # brackets, because nbconvert's filter strip_files_prefix pairs them in quadratic time.
            text = text.replace("\n", "&#10;").replace("\r", "&#13;").replace("[", "&#91;")
            cell.source = _students(text, own)
            cell.metadata["autograder"] = NotebookNode({**cell.metadata.get("autograder", {}), "inert": True})
        elif cell.cell_type == "raw" and _author(cell) != "instructor":  # nbconvert takes it for HTML
            cell.source = _students(show("html", cell.source), own)
        elif cell.cell_type == "code":
            html = show("code", cell.source, _lexer(language, cell.source))
            coloured, tags = coloured and html != as_written(cell.source), tags + html.count("<")
    if not coloured or tags > MOST_CODE_TAGS:
        # Formgrader would colour it outside the cage. Of a notebook in "text", it colours nothing.
        notebook.metadata.setdefault("language_info", NotebookNode(name="python"))["pygments_lexer"] = "text"
    clean_outputs(notebook, show)
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        if "text/html" in output.get("data", {}):
            output.data["text/html"] = _students(output.data["text/html"])


def _author(cell: NotebookNode) -> str | None:
    """Return who wrote a cell, as `intake` records it: "instructor", "grader" (a note), or None, for a student."""
    return cell.metadata.get("autograder", {}).get("author")


def _students(html: str, own: bool = False) -> str:
    """Return cleaned HTML as formgrader is to show what a student wrote. `own`: in a cell that the student added."""
    return f"{OWN if own else ''}{STUDENTS}{html}</div>"


def _language(notebook: NotebookNode) -> str:
    """Return the name of the Pygments lexer in which nbconvert colours a notebook's code."""
    about = notebook.metadata.get("language_info", {})
    return str(about.get("pygments_lexer") or about.get("name") or "ipython3")


_magics = HighlightMagicsPreprocessor()


def _lexer(language: str, code: str) -> str:
    """Return the name of the lexer for a cell. As in nbconvert, `%%bash` changes it in notebooks of IPython's only."""
    return (language.startswith("ipython") and _magics.which_magic_language(code)) or language


def _attached(cell: NotebookNode) -> str:
    return json.dumps(cell.attachments) if cell.get("attachments") else ""


class Grades(GetGrades):
    """The preprocessor that puts points and comments into a notebook, and whose it is.

    It also says which answers nobody has read yet, and which were graded again since a person gave their points.
    """

    def _get_score(self, cell: NotebookNode, resources: dict) -> None:
        super()._get_score(cell, resources)
        if "whose" not in resources["nbgrader"]:
            resources["nbgrader"]["whose"] = points.called_by(self.gradebook.find_student(self.student_id))
        name = cell.metadata.nbgrader.grade_id
        grade = self.gradebook.find_grade(name, self.notebook_id, self.assignment_id, self.student_id)
        cell.metadata.nbgrader["unread"] = grade.needs_manual_grade and grade.manual_score is None
        cell.metadata.nbgrader["again"] = grade.needs_manual_grade and grade.manual_score is not None


class Mark(NamedTuple):
    """The points of one check or written answer, and in a line what it says. `state`: a class of the page's style."""

    name: str
    got: float
    most: float
    state: str
    words: str


class Marks(NamedTuple):
    """What the top of a page shows. `whose`: the student; `penalty`: points taken off for being late."""

    title: str
    whose: str
    score: float
    most: float
    penalty: float
    checks: list[Mark]
    style: str

    @property
    def unread(self) -> float:
        """The points of answers that nobody has read."""
        return sum(mark.most for mark in self.checks if mark.state == "unread")

    @property
    def again(self) -> str:
        """The names of the cells that a person must look at again."""
        return ", ".join(mark.name for mark in self.checks if mark.state == "again")

    @property
    def by_name(self) -> dict[str, Mark]:
        """The marks, by the name of their cell."""
        return {mark.name: mark for mark in self.checks}


def marks(notebook: NotebookNode, about: dict) -> Marks:
    """Return the top of a graded notebook's page. `about`: what `Grades` found out about the submission."""
    graded = [cell for cell in notebook.cells if is_grade(cell) or is_task(cell)]
    checks = [mark(cell) for cell in graded if "score" in cell.metadata.nbgrader]
    score, most = about.get("score", 0.0), about.get("max_score", 0.0)
    title, whose, penalty = about.get("notebook", ""), about.get("whose", ""), about.get("late_penalty", 0.0)
    return Marks(title, whose, score, most, penalty, checks, style())


def mark(cell: NotebookNode) -> Mark:
    """Return the points of a graded cell."""
    about = cell.metadata.nbgrader
    got, most = about.score or 0.0, about.points or 0.0
    if about.get("unread"):
        return Mark(about.grade_id, got, most, "unread", "a person reads this answer, and nobody has yet")
    said = next((output.evalue for output in cell.get("outputs", []) if output.output_type == "error"), "")
    if about.get("again"):
        return Mark(about.grade_id, got, most, "again", ". ".join(filter(None, (AGAIN, _line(said)))))
    state = "right" if got >= most and not said else "wrong" if got <= 0 else "partly"
    return Mark(about.grade_id, got, most, state, _line(said) or ("right" if state == "right" else ""))


def _line(words: str) -> str:
    """Return the first line of a message, of at most `MOST_LINE` characters."""
    first = next(iter(words.strip().splitlines()), "")
    return first if len(first) <= MOST_LINE else f"{first[:MOST_LINE]}..."


@cache
def style() -> str:
    """Return the style sheet of all pages."""
    light, dark = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("default", "github-dark"))
    own = (TEMPLATES / "marked" / "marked.css").read_text(encoding="utf-8")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{own}"


class Compiled(BytecodeCache):
    """A cache of compiled templates for all pages of a class. Compiling takes longer than the rest of a page."""

    def __init__(self) -> None:
        self.code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Load a template's code, if it is cached."""
        if bucket.key in self.code:
            bucket.bytecode_from_string(self.code[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Cache a template's code."""
        self.code[bucket.key] = bucket.bytecode_to_string()


_COMPILED = Compiled()


class InertPage(HTMLExporter):
    """The exporter of feedback pages, without scripts and, by default, without the code of hidden tests."""

    def __init__(self, config: Config | None = None, **settings: Any):
        own = Config(config or {})
        own.InertPage.template_name = "marked"
        own.InertPage.extra_template_basedirs = [str(TEMPLATES)]
        super().__init__(config=own, **settings)

    hide_hidden_tests = Bool(True, help="hide the code of hidden tests from feedback pages").tag(config=True)
    show_replay = Bool(
        False,
        help="show the lines that run a failed hidden test again, with the seed that its message names; of no notebook "
        "whose source says that it is private, as those of `make grade PRIVATE=folder` do",
    ).tag(config=True)

    def _create_environment(self) -> Environment:
        environment = super()._create_environment()
        environment.bytecode_cache = _COMPILED
        return environment

    def from_notebook_node(self, nb: NotebookNode, resources: dict | None = None, **kw: Any) -> tuple[Any, dict]:
        """Render the page of a graded notebook."""
        nb = deepcopy(nb)
        nb.metadata.pop("widgets", None)
        nb.cells = [cell for cell in nb.cells if not cell.metadata.get("autograder", {}).get("rubric")]
        hider = ClearHiddenTests(parent=self)
        show_replay = self.show_replay and not nb.metadata.get("autograder", {}).get("private")
        for cell in nb.cells:
            if self.hide_hidden_tests and cell.cell_type == "code" and is_grade(cell) and not is_solution(cell):
                hide(cell, hider, show_replay)
        language = _language(nb)
        self._show = all_shown(nb, partial(_page_texts, language))
        self.filters = {"highlight_code": partial(self._highlighted, language)}
        self.environment.globals["policy"] = POLICY
        self.environment.globals["marks_of"] = marks  # called while rendering: `Grades` runs before that
        return super().from_notebook_node(nb, resources, **kw)

    def default_filters(self) -> Iterator[tuple[str, Callable]]:
        """Yield nbconvert's filters, without two that need quadratic time and change nothing that `rendering` made."""
        yield from super().default_filters()
        yield "strip_files_prefix", lambda text: text
        yield "clean_html", lambda text: text

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Return markdown as HTML. nbgrader's templates use this filter for cells and for a grader's comments."""
        cell = context.get("cell", {})
        return self._show(*(_markdown(cell) if cell.get("source") == source else ("markdown", source)))

    def _highlighted(self, language: str, source: str, metadata: dict | None = None) -> str:
        """Return code as HTML."""
        return self._show("code", source, _lexer(language, source))


def _page_texts(language: str, notebook: NotebookNode, show: Show) -> None:
    """Show every text of a page; put what the template inserts as it is into the notebook."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            show(*_markdown(cell))
        elif cell.cell_type == "code":
            show("code", cell.source, _lexer(language, cell.source))
        else:
            cell.source = show("html", cell.source.removeprefix(OWN))
    clean_outputs(notebook, show)


def _markdown(cell: NotebookNode) -> tuple[str, str, str]:
    """Return what shows a markdown cell. `Inert` has already rendered some."""
    inert = cell.metadata.get("autograder", {}).get("inert")
    return ("html", cell.source.removeprefix(OWN), "") if inert else ("markdown", cell.source, _attached(cell))


def hide(cell: NotebookNode, hider: ClearHiddenTests, show_replay: bool = False) -> None:
    """Remove the code of hidden tests from a test cell, and what the student's code printed meanwhile: their inputs.

    What prints lines of code, such as a traceback, prints none of theirs. The check's own error message stays. Which
    line failed is the judge's record, and not read off the traceback. `show_replay`: below the message of a hidden test
    that failed, show the lines that run it again.
    """
    lines = cell.source.split("\n")
    shown = deepcopy(cell)
    if not hider._remove_hidden_test_region(shown):
        return
    hidden = _hidden_lines(lines, hider)
    cell.source = shown.source
    record = cell.metadata.get("autograder", {})
    texts = [output for output in cell.outputs if output.output_type == "stream"]
    relayed = [output for number, output in enumerate(texts) if number in record.get("relayed", range(len(texts)))]
    cell.outputs = [output for output in cell.outputs if not any(output is each for each in relayed)]
    secret = {lines[number - 1].strip() for number in hidden} - {""}
    for output in cell.outputs:
        if "text" in output:
            kept = [row for row in output.text.splitlines(keepends=True) if row.strip() not in secret]
            output.text = "".join(kept)
    line = record.get("line")
    for output in cell.outputs:
        if output.output_type != "error":
            continue
        says = f"{output.ename}: {output.evalue}" if output.evalue else output.ename
        if line in hidden:
            output.traceback = ["A hidden check failed.", says]
            if show_replay:
                output.traceback += _replay(lines, sorted(hidden), line, output.evalue)
        elif line is not None and 0 < line <= len(lines):
            output.traceback = [f"---> {lines[line - 1].strip()}", says]
        else:
            output.traceback = [says]


def _replay(lines: list[str], hidden: list[int], failed: int, words: str) -> list[str]:
    """Return the lines with which a student runs a failed hidden test again; none if they are too many.

    They are those of the hidden region up to the end of the statement that failed. `words`: its message, which may end
    with the seed that `fresh()` has drawn.
    """
    try:
        statements = ast.parse("\n".join(lines)).body
    except SyntaxError:  # a line for IPython, such as "%matplotlib inline"
        return []
    statement = next((each for each in statements if each.lineno <= failed <= (each.end_lineno or failed)), None)
    if statement is None:  # IPython has left out empty lines above it
        return []
    before = [number for number in hidden if number < statement.lineno]
    begin = next((n for n in reversed(before) if n - 1 not in hidden), statement.lineno - 1) + 1  # after its mark
    code = lines[begin - 1 : statement.end_lineno]
    if len(code) > MOST_REPLAYED:
        return []
    if seed := re.search(r"with seed (\d+)", words):
        own = statement.lineno - begin
        code[own:] = [row.replace("fresh()", f"fresh({seed[1]})") for row in code[own:]]
    return ["", "To run it again, copy this into a new cell of your notebook:", "", *code]


def _hidden_lines(lines: list[str], hider: ClearHiddenTests) -> set[int]:
    """Return the numbers, from 1, of a cell's lines that are hidden tests."""
    hidden: set[int] = set()
    inside = False
    for number, line in enumerate(lines, start=1):
        inside = inside or hider.begin_test_delimeter in line
        if inside:
            hidden.add(number)
        inside = inside and hider.end_test_delimeter not in line
    return hidden
