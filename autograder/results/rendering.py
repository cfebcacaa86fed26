"""What the cage does with texts for a page: it turns students' markdown, HTML and code into HTML that runs nothing.

Markdown is rendered, then cleaned by nh3 (Python's binding of the Rust sanitizer ammonia, on Servo's HTML parser).
Text, tables, links, embedded pictures and code stay. Scripts, forms, frames and styles go, and everything that would
load from elsewhere. Classes and ids go, too: the reader's page gives them a meaning, such as a button's. Drawings
become pictures, and those that would take a browser's memory go: see `pictures`.
"""

from __future__ import annotations

import base64
import json
import re
import time
from contextlib import suppress

import nh3
from nbconvert.filters.highlight import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from ..cage import Failed
from ..wire.protocol import lines_in
from . import pictures

MOST_MARKDOWN = 100_000  # characters in one cell
MOST_HTML = 10_000_000  # characters, with embedded pictures
MOST_TAGS = 10_000  # "<" in a piece of HTML: a table of 60 rows and 20 columns has 2,600
MOST_COLOURING = 2.0  # seconds of processor time for all code of a page; 40,000 characters take 0.2 s
MOST_SPAN = 100  # rows or columns that a cell of a table takes
MOST_PLACES = 200_000  # rows by columns of a table
LINE_TAGS = 2  # as which a line counts, or a letter written from right to left: see `lines_in`
_CELL = re.compile(r"<t[dh][^>]*>")
_TAGS = set(nh3.ALLOWED_TAGS) - {"area", "map", "bdo"}
_ATTRIBUTES = {"a": {"href"}, "img": {"src", "alt", "width", "height"}, "ol": {"start"}} | {
    name: {"colspan", "rowspan"} for name in ("td", "th")
}


_colouring = 0.0  # seconds of this process so far: one child of the cage renders all texts of a page


def rendered(item: bytes) -> bytes:
    """Return the HTML of a text, after the number of its tags, with what `clean` counts, and a space.

    Raise Failed if it is too long, has too many tags, or takes too long.

    `item`: JSON of [kind, text, about]. Kinds are "html"; "markdown", with the attachments' JSON or "" as `about`;
    "code", with the language; and "picture", with the MIME type. The answer to a drawing is a PNG in base64, which has
    no "<"; to any other picture it is empty, because that is shown as it is.
    """
    kind, text, about = json.loads(item)
    if kind == "code":
        html, drawn = coloured(text, about), 0
    elif kind == "markdown":
        html, drawn = markdown(text, json.loads(about or "{}"))
    elif kind == "picture":
        drawing = about == "image/svg+xml"
        data = text.encode() if drawing else pictures.of_base64(text)
        raster, drawn = pictures.shown(about.removeprefix("image/"), data)
        html = base64.b64encode(raster).decode() if drawing else ""
    else:
        html, drawn = clean(text)
    return f"{html.count('<') + drawn} {html}".encode("utf-8", "replace")


def coloured(code: str, language: str) -> str:
    """Return code as HTML. Raise Failed if all that this process has coloured took longer than `MOST_COLOURING`."""
    global _colouring
    begun = time.process_time()
    html = Highlight2HTML(pygments_lexer=language)(code)
    _colouring += time.process_time() - begun
    if _colouring > MOST_COLOURING:
        raise Failed("it takes too long to colour")
    return html


def markdown(source: str, attachments: dict | None = None) -> tuple[str, int]:
    """Return a markdown text as inert HTML, and what `clean` counts in it."""
    if len(source) > MOST_MARKDOWN:
        raise Failed(f"it has more than {MOST_MARKDOWN:,} characters")
    sizes = {name: sum(map(len, kinds.values())) for name, kinds in (attachments or {}).items()}
    if sum(source.count(f"attachment:{name}") * size for name, size in sizes.items()) > MOST_HTML:
        raise Failed(f"it has more than {MOST_HTML:,} characters with its pictures")
    renderer = IPythonRenderer(escape=False, attachments=attachments or {}, exclude_anchor_links=True)
    return clean(MarkdownWithMath(renderer=renderer).render(source))


def clean(html: str) -> tuple[str, int]:
    """Return a piece of HTML without everything that would run, load or take much when a page shows it.

    Returns also as how many tags its pictures, lines, and cells that span several count.
    """
    _check_size(html)
    kept = _Kept()
    cleaned = nh3.clean(
        html,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        attribute_filter=kept,
        url_schemes={"http", "https", "mailto", "data"},
        link_rel="noopener noreferrer nofollow",
    )
    _check_size(cleaned)  # a parser puts in the tags that are missing, and more follow it
    _check_table(cleaned)
    return cleaned, kept.drawn + LINE_TAGS * lines_in(cleaned)


def _check_table(html: str) -> None:
    """Raise Failed if a table has too many places: a browser keeps one for each column of each row, empty or not."""
    rows = [_CELL.findall(row) for row in html.split("<tr")]
    across = max(sum(map(_across, row)) for row in rows)
    across += sum(_across(cell) for row in rows for cell in row if "rowspan" in cell)  # which other rows have, too
    if across * len(rows) > MOST_PLACES:
        raise Failed(f"it has a table of more than {MOST_PLACES:,} places")


def _across(cell: str) -> int:
    """Return how many columns a cell of a cleaned table spans."""
    match = re.search(r'colspan="(\d+)"', cell)
    return max(1, int(match[1])) if match else 1


def _check_size(html: str) -> None:
    if len(html) > MOST_HTML:
        raise Failed(f"it has more than {MOST_HTML:,} characters")
    if html.count("<") > MOST_TAGS:
        raise Failed(f"it has more than {MOST_TAGS:,} tags")


class _Kept:
    """The filter of attributes' values.

    `drawn`: as how many tags the pictures count that it has kept, and how many more rows and columns cells span.
    """

    def __init__(self) -> None:
        self.drawn = 0

    def __call__(self, tag: str, attribute: str, value: str) -> str | None:
        if (tag, attribute) == ("img", "src"):
            return self._picture(value)
        if attribute == "href":
            return value if re.match(r"(https?://|mailto:)", value) else None
        if attribute in ("colspan", "rowspan"):
            span = min(int(value), MOST_SPAN) if re.fullmatch(r"[0-9]{1,9}", value) else 1
            self.drawn += span - 1
            return str(span)
        if attribute in ("width", "height"):
            return value if re.fullmatch(r"[0-9]{1,3}(px|%)?|1[0-9]{3}(px)?", value) else None
        return value

    def _picture(self, url: str) -> str | None:
        with suppress(Failed, RecursionError):
            if shown := pictures.in_url(url):
                url, tags = shown
                self.drawn += tags
                return url
        return None


# The keeper imports this. Its children then have the expressions of the parsers, which take 0.1 s to compile.
for _item in (
    ["markdown", "`a` | [b](c) $x$", ""],
    ["code", "%time\nx = 1", "ipython3"],
    ["picture", "<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"],
    ["picture", "R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAkQBADs=", "image/gif"],
):
    rendered(json.dumps(_item).encode())
_colouring = 0.0
