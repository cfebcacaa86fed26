"""What the cage does with texts for a page: it turns students' markdown, HTML and code into HTML that runs nothing.

Markdown is rendered, then cleaned by nh3 (Python's binding of the Rust sanitizer ammonia, on Servo's HTML parser).
Text, tables, links, embedded pictures and code stay. Scripts, forms, frames and styles go, and everything that would
load from elsewhere. Classes and ids go, too: the reader's page gives them a meaning, such as a button's.
"""

from __future__ import annotations

import json
import re

import nh3
from nbconvert.filters.highlight import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from ..cage import Failed

MOST_MARKDOWN = 100_000  # characters in one cell
MOST_HTML = 10_000_000  # characters, with embedded pictures
MOST_TAGS = 10_000  # "<" in a piece of HTML: a table of 60 rows and 20 columns has 2,600
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|svg\+xml)[;,]", re.IGNORECASE)
_TAGS = set(nh3.ALLOWED_TAGS) - {"area", "map", "bdo"}
_ATTRIBUTES = {"a": {"href"}, "img": {"src", "alt", "width", "height"}, "ol": {"start"}} | {
    name: {"colspan", "rowspan"} for name in ("td", "th")
}


def rendered(item: bytes) -> bytes:
    """Return the HTML of a text. Raise Failed if it is too long or has too many tags.

    `item`: JSON of [kind, text, about]. Kinds are "html"; "markdown", with the attachments' JSON or "" as `about`; and
    "code", with the language.
    """
    kind, text, about = json.loads(item)
    if kind == "code":
        html = Highlight2HTML(pygments_lexer=about)(text)
    elif kind == "markdown":
        html = markdown(text, json.loads(about or "{}"))
    else:
        html = clean(text)
    return html.encode("utf-8", "replace")


def markdown(source: str, attachments: dict | None = None) -> str:
    """Return a markdown text as inert HTML."""
    if len(source) > MOST_MARKDOWN:
        raise Failed(f"it has more than {MOST_MARKDOWN:,} characters")
    pictures = {name: sum(map(len, kinds.values())) for name, kinds in (attachments or {}).items()}
    if sum(source.count(f"attachment:{name}") * size for name, size in pictures.items()) > MOST_HTML:
        raise Failed(f"it has more than {MOST_HTML:,} characters with its pictures")
    renderer = IPythonRenderer(escape=False, attachments=attachments or {}, exclude_anchor_links=True)
    return clean(MarkdownWithMath(renderer=renderer).render(source))


def clean(html: str) -> str:
    """Return a piece of HTML without everything that would run or load something when a page shows it."""
    _check_size(html)
    cleaned = nh3.clean(
        html,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        attribute_filter=_kept,
        url_schemes={"http", "https", "mailto", "data"},
        link_rel="noopener noreferrer nofollow",
    )
    _check_size(cleaned)  # a parser puts in the tags that are missing, and more follow it
    return cleaned


def _check_size(html: str) -> None:
    if len(html) > MOST_HTML:
        raise Failed(f"it has more than {MOST_HTML:,} characters")
    if html.count("<") > MOST_TAGS:
        raise Failed(f"it has more than {MOST_TAGS:,} tags")


def _kept(tag: str, attribute: str, value: str) -> str | None:
    if (tag, attribute) == ("img", "src"):
        return value if _PICTURE.match(value) else None
    if attribute == "href":
        return value if re.match(r"(https?://|mailto:)", value) else None
    return value


# The keeper imports this. Its children then have the expressions of both parsers, which take 0.1 s to compile.
for _item in (["markdown", "`a` | [b](c) $x$", ""], ["code", "%time\nx = 1", "ipython3"]):
    rendered(json.dumps(_item).encode())
