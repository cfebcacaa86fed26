"""Says under a chapter's title how long it takes to read, how long its cells run, and which chapters it needs.

`needs` in a page's front matter names the chapters, by their files. The rest is computed when the book is built: the
time to read from the page itself, the time of the cells from their run.
"""

from __future__ import annotations

import json

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

WORDS_A_MINUTE, LINES_A_MINUTE = 200, 25  # of prose, and of code and what it prints
EXERCISE = "graded-exercise"

logger = logging.getLogger(__name__)


def minutes_to_read(page: nodes.document) -> int:
    """About how long a page takes, in steps of five minutes: its prose, and its code with what that prints."""
    words = sum(len(node.astext().split()) for node in page.findall(nodes.paragraph))
    lines = sum(node.astext().count("\n") + 1 for node in page.findall(nodes.literal_block))
    return max(5, 5 * round((words / WORDS_A_MINUTE + lines / LINES_A_MINUTE) / 5))


def needed(app: Sphinx, page: str) -> list[str] | None:
    """The chapters that a page's front matter names, or None if it says nothing of that."""
    if "needs" not in app.env.metadata[page]:
        return None
    names = json.loads(app.env.metadata[page]["needs"])  # MyST hands a list on as JSON
    for name in names:
        if name not in app.env.titles:
            logger.warning("it needs %r, which is no page", name, location=page, type="chapter_facts")
    return [name for name in names if name in app.env.titles]


def add_facts(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Put the line under the title of a page that is about to be written."""
    needs = needed(app, page)
    if needs is None:
        return
    line = nodes.paragraph("", f"About {minutes_to_read(doctree)} minutes to read", classes=["chapter-facts"])
    run = app.env.nb_metadata.get(page, {}).get("exec_data", {}).get("runtime")
    if run:
        line += nodes.Text(f"; its cells ran in {max(run, 1):.0f} s")
    line += nodes.Text(".")
    for number, name in enumerate(needs):
        line += nodes.Text(" Before this: " if number == 0 else " and " if number == len(needs) - 1 else ", ")
        address = app.builder.get_relative_uri(page, name)
        line += nodes.reference("", app.env.titles[name].astext(), internal=True, refuri=address)
    if needs:
        line += nodes.Text(".")
    if any(EXERCISE in section["ids"] for section in doctree.findall(nodes.section)):
        line += nodes.Text(" At the end: ")
        line += nodes.reference("", "the graded exercise", internal=True, refuri=f"#{EXERCISE}")
        line += nodes.Text(".")
    title = next(doctree.findall(nodes.title))
    title.parent.insert(title.parent.index(title) + 1, line)


def setup(app: Sphinx) -> dict:
    """Add the line when pages are written."""
    app.connect("doctree-resolved", add_facts)
    return {"parallel_read_safe": True}
