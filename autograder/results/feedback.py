"""Pages on which nothing of a student's runs: the feedback, and what formgrader shows of a graded notebook.

A student's markdown and outputs are rendered, and then cleaned by nh3 (Mozilla's and Servo's HTML parser): text,
tables, links and pictures that are part of the page stay; scripts, forms, frames, styles, and whatever would be loaded
from elsewhere do not. A Content-Security-Policy says the same again to the browser.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from html import escape
from typing import Any

import nh3
from jinja2 import BytecodeCache, Environment, pass_context
from jinja2.bccache import Bucket
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbgrader.preprocessors import ClearHiddenTests, NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution
from traitlets import Bool

from ..submissions.intake import is_base64

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
MOST_MARKDOWN = 100_000  # characters of one cell: what is longer is shown as it was written
MOST_SECONDS = 20  # for a page: markdown and colours that take longer than all that are left out
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|svg\+xml)[;,]", re.IGNORECASE)
_TAGS = set(nh3.ALLOWED_TAGS) - {"area", "map", "bdo"}
_RICH = re.compile(r"[<&\[\]:]|!\[")  # in markdown, all that can become more than text begins so


class TooSlow(BaseException):
    """A page takes too long. No ordinary exception: those that libraries catch on their way are others."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooSlow after so many seconds. Only the main thread can be interrupted: in others there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # and each second again: what is raised in a callback is lost
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def clean(html: str) -> str:
    """Return the part of a piece of HTML that does nothing, and that loads nothing, when a page shows it."""
    return nh3.clean(
        html,
        tags=_TAGS,
        attributes={"*": {"class"}, "a": {"href"}, "img": {"src", "alt", "width", "height"}, "ol": {"start"}}
        | {name: {"colspan", "rowspan", "class"} for name in ("td", "th")},
        attribute_filter=_kept,
        url_schemes={"http", "https", "mailto", "data"},
        link_rel="noopener noreferrer nofollow",
    )


def _kept(tag: str, attribute: str, value: str) -> str | None:
    if (tag, attribute) == ("img", "src"):
        return value if _PICTURE.match(value) else None
    if attribute == "href":
        return value if re.match(r"(https?://|mailto:)", value) else None
    return value


def clean_markdown(source: str, attachments: dict | None = None) -> str:
    """Return a markdown text as HTML that does nothing; one that cannot be rendered, as it was written."""
    if len(source) <= MOST_MARKDOWN:
        try:
            renderer = IPythonRenderer(escape=False, attachments=attachments or {}, exclude_anchor_links=True)
            return clean(MarkdownWithMath(renderer=renderer).render(source))
        except Exception:  # mistune and nbconvert have no error of their own for what they do not understand
            pass
    return as_written(source)


def as_written(source: str, *_: Any, **__: Any) -> str:
    """Return a text, or code, as HTML that shows its characters."""
    return f"<pre>{escape(source)}</pre>"


def in_time(make: Callable[[Callable], Any]) -> Any:
    """Return what `make` gives with markdown rendered; if that takes too long, with all texts as they were written."""
    try:
        with limited(MOST_SECONDS):
            return make(clean_markdown)
    except TooSlow:
        return make(as_written)


def clean_outputs(cell: NotebookNode, show: Callable = clean_markdown) -> None:
    """Keep of a code cell's outputs what can be shown without running anything. `show`: gives markdown as HTML."""
    for output in cell.get("outputs", []):
        if "data" in output:
            output.data = NotebookNode(_clean_data(output.data, show))
            output.metadata = NotebookNode()
    if "outputs" in cell:
        cell.outputs = [output for output in cell.outputs if output.get("data", True)]


def _clean_data(data: dict[str, Any], show: Callable) -> dict[str, str]:
    texts = {kind: "".join(value) for kind, value in data.items() if isinstance(value, str | list)}
    kept = {}
    if "text/plain" in texts:
        kept["text/plain"] = texts["text/plain"]
    if "text/html" in texts:
        kept["text/html"] = clean(texts["text/html"])
    elif "text/markdown" in texts:
        kept["text/html"] = show(texts["text/markdown"])
    elif "text/latex" in texts:
        kept["text/latex"] = texts["text/latex"]
    if "image/svg+xml" in texts:
        kept["image/svg+xml"] = texts["image/svg+xml"]  # nbconvert shows it as an image, in which no script runs
    for kind in ("image/png", "image/jpeg"):
        if kind in texts and is_base64(texts[kind]):
            kept[kind] = texts[kind]
    return kept


class Inert(NbGraderPreprocessor):
    """The last of the preprocessors: formgrader shows what it leaves, with templates that clean nothing themselves."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Clean the outputs, and the texts of cells that are not the instructor's."""
        return in_time(lambda show: _cleaned(deepcopy(nb), show)), resources


def _cleaned(notebook: NotebookNode, show: Callable) -> NotebookNode:
    for cell in notebook.cells:
        locked = cell.metadata.get("nbgrader", {}).get("locked") and not is_solution(cell)
        if cell.cell_type == "markdown" and not locked and _RICH.search(cell.source):
            # One line, so that markdown takes it for one piece of HTML and does not look inside.
            text = show(cell.source, cell.pop("attachments", None))
            # Without brackets, which nbconvert pairs in quadratic time (its filter strip_files_prefix).
            cell.source = "<div>" + text.replace("\n", "&#10;").replace("[", "&#91;") + "</div>"
        clean_outputs(cell, show)
    return notebook


class Compiled(BytecodeCache):
    """The compiled templates, for all pages of a class: to compile them takes longer than the rest of a page."""

    def __init__(self) -> None:
        self.code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Take a template's code, if it is there."""
        if bucket.key in self.code:
            bucket.bytecode_from_string(self.code[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep a template's code."""
        self.code[bucket.key] = bucket.bytecode_to_string()


_COMPILED = Compiled()


class InertPage(HTMLExporter):
    """A feedback page without a script, and without what a student is not to know of the hidden tests."""

    hide_hidden_tests = Bool(True, help="Whether feedback keeps the hidden tests' code to itself").tag(config=True)

    def _create_environment(self) -> Environment:
        environment = super()._create_environment()
        environment.bytecode_cache = _COMPILED
        return environment

    def from_notebook_node(self, nb: NotebookNode, resources: dict | None = None, **kw: Any) -> tuple[str, dict]:
        """Render the page of a graded notebook."""
        return in_time(lambda show: self._page(nb, resources, show, **kw))

    def _page(self, nb: NotebookNode, resources: dict | None, show: Callable, **kw: Any) -> tuple[str, dict]:
        nb = deepcopy(nb)
        nb.metadata.pop("widgets", None)
        hider = ClearHiddenTests(parent=self)
        self._show = show
        self.filters = {"highlight_code": as_written} if show is as_written else {}
        for cell in nb.cells:
            clean_outputs(cell, show)
            if self.hide_hidden_tests and cell.cell_type == "code" and is_grade(cell) and not is_solution(cell):
                hide(cell, hider)
        page, resources = super().from_notebook_node(nb, resources, **kw)
        head, end, body = page.partition("</head>")
        # The template's own: MathJax, and a font of icons beside the page that no feedback has.
        head = re.sub(r"<script\b.*?</script>|@font-face *\{[^}]*\}", "", head, flags=re.DOTALL | re.IGNORECASE)
        policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"/>'
        return head.replace("<head>", f"<head>{policy}", 1) + end + body, resources

    def default_filters(self) -> Iterator[tuple[str, Callable]]:
        """nbconvert's, less one that looks for links into a notebook server's files, in quadratic time."""
        yield from super().default_filters()
        yield "strip_files_prefix", lambda text: text

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """The filter by which nbgrader's templates show markdown: cells, and a grader's comments."""
        return self._show(source, context.get("cell", {}).get("attachments"))


def hide(cell: NotebookNode, hider: ClearHiddenTests) -> None:
    """Take the hidden tests' code out of a test cell, and out of the traceback of the check that failed.

    What a check says of its own accord, the message of its error, stays.
    """
    lines = cell.source.split("\n")
    shown = deepcopy(cell)
    if not hider._remove_hidden_test_region(shown):
        return
    hidden = _hidden_lines(lines, hider)
    cell.source = shown.source
    for output in cell.outputs:
        if output.output_type != "error":
            continue
        at = [int(number) for number in re.findall(r"\bline (\d+)", "\n".join(output.traceback[:-1]))]
        at += [int(number) for number in re.findall(r"(?<!-)-+> *(\d+) ", "\n".join(map(_plain, output.traceback)))]
        where = next((number for number in at if 0 < number <= len(lines)), None)
        says = f"{output.ename}: {output.evalue}" if output.evalue else output.ename
        if where is None or output.ename in ("NothingToGrade", "OutOfTime", "OutOfMemory", "TooManyProcesses", "Crash"):
            output.traceback = [says]
        elif where in hidden:
            output.traceback = ["A hidden check failed.", says]
        else:
            output.traceback = [f"---> {lines[where - 1].strip()}", says]


def _hidden_lines(lines: list[str], hider: ClearHiddenTests) -> set[int]:
    """The numbers, from 1 on, of a cell's lines that are hidden tests."""
    hidden: set[int] = set()
    inside = False
    for number, line in enumerate(lines, start=1):
        inside = inside or hider.begin_test_delimeter in line
        if inside:
            hidden.add(number)
        inside = inside and hider.end_test_delimeter not in line
    return hidden


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
