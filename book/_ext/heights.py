"""Estimates how tall each section of a page is, so that the scroll bar hardly moves while sections are laid out.

The style sheet lets a browser skip sections far from the reader (`content-visibility`). Until it lays one out, it takes
the estimate for the section's height.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import ceil

from docutils import nodes
from sphinx.application import Sphinx

LETTERS_A_LINE = 88  # of a paragraph, on a wide screen
PLOT = re.compile(r'<div class="plot-room"><svg [^>]*viewBox="0 0 [\d.]+ ([\d.]+)"')  # its height, in points
FIGURES = {  # pixels
    "<div class=opening": 860,
    "<collective-player": 780,
    "<collective-quiz": 720,
    "<collective-calculator": 700,
}


def _paragraph(node: nodes.Element) -> int:
    return 29 * ceil(len(node.astext()) / LETTERS_A_LINE) + 17


def _code(node: nodes.Element) -> int:
    return 17 * (node.astext().count("\n") + 1) + 45


def _html(node: nodes.Element) -> int:
    text = node.astext()
    if plot := PLOT.match(text):
        return ceil(float(plot[1]) * 96 / 72)
    return max((tall for start, tall in FIGURES.items() if start in text), default=0)


# Pixels of each kind of node on a wide screen. A node that is counted hides its children.
HEIGHTS: dict[type[nodes.Node] | str, Callable[[nodes.Element], int]] = {
    nodes.title: lambda node: 95,
    nodes.paragraph: _paragraph,
    nodes.literal_block: _code,
    nodes.raw: _html,
    nodes.math_block: lambda node: 80,
    nodes.figure: lambda node: sum(map(height, node.children)),
    nodes.image: lambda node: 420,
    nodes.caption: _paragraph,
    nodes.row: lambda node: 42,
    "HideCodeCellNode": lambda node: 36,
    "dropdown_main": lambda node: 62,
}


def height(node: nodes.Node) -> int:
    """Return the estimated height of a node in pixels."""
    count = HEIGHTS.get(type(node)) or HEIGHTS.get(type(node).__name__)
    if count:
        return count(node)  # type: ignore[arg-type]
    return sum(map(height, node.children))


def estimate(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None) -> None:
    """Give a page a style with the estimate of each section below its title."""
    if doctree is None:
        return
    sections = [part for page in doctree.children for part in page.children if isinstance(part, nodes.section)]
    rules = "".join(f"#{part['ids'][0]}{{contain-intrinsic-size:auto {height(part)}px}}" for part in sections)
    context["body"] = f"<style>@media screen{{{rules}}}</style>{context['body']}" if rules else context["body"]


def setup(app: Sphinx) -> dict:
    """Estimate every page."""
    app.connect("html-page-context", estimate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
