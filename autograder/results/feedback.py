"""Pages that run no student's code: the feedback, and the graded notebook as formgrader shows it.

A student's markdown and outputs are rendered, then cleaned by nh3 (Python's binding of the Rust sanitizer ammonia, on
Servo's HTML parser). Text, tables, links and embedded pictures stay. Scripts, forms, frames, styles, and everything
that would load from elsewhere go. A Content-Security-Policy makes the browser enforce the same.
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
MOST_MARKDOWN = 100_000  # characters in one cell; a longer text is shown as plain text
MOST_SECONDS = 20  # for a page; after that it is rendered without markdown and syntax colours
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|svg\+xml)[;,]", re.IGNORECASE)
_TAGS = set(nh3.ALLOWED_TAGS) - {"area", "map", "bdo"}
_RICH = re.compile(r"[<&\[\]:]|!\[")  # markdown without any of these is plain text


class TooSlow(BaseException):
    """A page takes too long. A BaseException, because libraries on the way catch every Exception."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooSlow in the block after `seconds`. There is no limit outside the main thread: signals can't reach it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # then every second, because an exception in a callback is lost
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def clean(html: str) -> str:
    """Return a piece of HTML without everything that would run or load something when a page shows it."""
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
    """Return a markdown text as inert HTML, or as plain text if it is too long or can't be rendered."""
    if len(source) <= MOST_MARKDOWN:
        try:
            renderer = IPythonRenderer(escape=False, attachments=attachments or {}, exclude_anchor_links=True)
            return clean(MarkdownWithMath(renderer=renderer).render(source))
        except Exception:  # mistune and nbconvert define no error of their own for bad input
            pass
    return as_written(source)


def as_written(source: str, *_: Any, **__: Any) -> str:
    """Return a text or code as HTML that shows its characters unchanged."""
    return f"<pre>{escape(source)}</pre>"


def in_time(make: Callable[[Callable], Any]) -> Any:
    """Return `make(clean_markdown)`, or `make(as_written)` if the first takes longer than `MOST_SECONDS`."""
    try:
        with limited(MOST_SECONDS):
            return make(clean_markdown)
    except TooSlow:
        return make(as_written)


def clean_outputs(cell: NotebookNode, show: Callable = clean_markdown) -> None:
    """Reduce a code cell's outputs to those that run nothing when shown. `show` turns markdown into HTML."""
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
        kept["image/svg+xml"] = texts["image/svg+xml"]  # nbconvert shows it as an image, where scripts don't run
    for kind in ("image/png", "image/jpeg"):
        if kind in texts and is_base64(texts[kind]):
            kept[kind] = texts[kind]
    return kept


class Inert(NbGraderPreprocessor):
    """The last preprocessor. It cleans the notebook for formgrader, whose templates clean nothing."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Clean the outputs, and the texts of all cells but the instructor's."""
        return in_time(lambda show: _cleaned(deepcopy(nb), show)), resources


def _cleaned(notebook: NotebookNode, show: Callable) -> NotebookNode:
    for cell in notebook.cells:
        locked = cell.metadata.get("nbgrader", {}).get("locked") and not is_solution(cell)
        if cell.cell_type == "markdown" and not locked and _RICH.search(cell.source):
            # On one line, so that markdown takes it for one piece of HTML and doesn't parse the inside.
            text = show(cell.source, cell.pop("attachments", None))
            # Without brackets, because nbconvert's filter strip_files_prefix pairs them in quadratic time.
            cell.source = "<div>" + text.replace("\n", "&#10;").replace("[", "&#91;") + "</div>"
        clean_outputs(cell, show)
    return notebook


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

    hide_hidden_tests = Bool(True, help="hide the code of hidden tests from feedback pages").tag(config=True)

    def _create_environment(self) -> Environment:
        environment = super()._create_environment()
        environment.bytecode_cache = _COMPILED
        return environment

    def from_notebook_node(self, nb: NotebookNode, resources: dict | None = None, **kw: Any) -> tuple[Any, dict]:
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
        # The template loads MathJax, and a font of icons from a file that feedback doesn't have. Remove both.
        head = re.sub(r"<script\b.*?</script>|@font-face *\{[^}]*\}", "", head, flags=re.DOTALL | re.IGNORECASE)
        policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"/>'
        return head.replace("<head>", f"<head>{policy}", 1) + end + body, resources

    def default_filters(self) -> Iterator[tuple[str, Callable]]:
        """Yield nbconvert's filters, with strip_files_prefix disabled: it is quadratic, and nothing here needs it."""
        yield from super().default_filters()
        yield "strip_files_prefix", lambda text: text

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Return markdown as HTML. nbgrader's templates use this filter for cells and for a grader's comments."""
        return self._show(source, context.get("cell", {}).get("attachments"))


def hide(cell: NotebookNode, hider: ClearHiddenTests) -> None:
    """Remove the code of hidden tests from a test cell, and from the traceback of a failed check.

    The check's own error message stays.
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
    """Return the numbers, from 1, of a cell's lines that are hidden tests."""
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
