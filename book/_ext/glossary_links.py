"""Links the first use of a glossary's term on each page to its line, from the chapter that introduces it on.

The chapters are written in plain words, so that their notebooks read well, too. Which words are terms, and which
chapter introduces each (the one that its definition links to), is read from the page book/glossary.md alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

GLOSSARY = "glossary"
UNLINKED = {GLOSSARY, "cheat_sheet", "instructors", "grading_the_grader"}  # and the opening page, before all chapters
AT_HOME = {"chain", "combine", "group", "mask", "partial", "unit"}  # elsewhere they mean other things
SMALL = {"step"}  # "Step through it" is none
SUFFIX = "(?:e?s|e?d)?"  # ranks, batches, all-reduced
NO_PROSE = (nodes.reference, nodes.literal, nodes.FixedTextElement, nodes.math, nodes.title, nodes.raw, nodes.table)
NO_PROSE_NAMES = {"dropdown_title"}  # a link in what folds and unfolds would be a button in a button


class Entry(NamedTuple):
    """A term, where it is explained, in which words, and the page that introduces it."""

    term: str
    anchor: str
    words: str
    page: str


def entries(page: nodes.document) -> Iterator[Entry]:
    """The terms of the glossary's page as it has been read."""
    (glossary,) = page.findall(addnodes.glossary)
    for item in glossary.findall(nodes.definition_list_item):
        definition = next(item.findall(nodes.definition))
        words = definition.astext().rpartition(" (")[0]
        (chapter,) = (link["reftarget"] for link in definition.findall(addnodes.pending_xref))
        for term in item.findall(nodes.term):
            yield Entry(term.astext(), term["ids"][0], words, chapter)


def pattern(terms: list[str]) -> re.Pattern:
    """What finds any of the terms as whole words, the longest first; a small first letter may be a capital."""
    alternatives = []
    for term in sorted(terms, key=len, reverse=True):
        first = f"[{term[0]}{term[0].upper()}]" if term.islower() and term not in SMALL else re.escape(term[0])
        alternatives.append(first + re.escape(term[1:]))
    return re.compile(rf"(?<![\w-])({'|'.join(alternatives)}){SUFFIX}(?![\w+-])")


def is_prose(text: nodes.Text) -> bool:
    """Whether a text is written for the page, and is no heading, link, code, formula or output of a cell."""
    node = text.parent
    while node is not None:
        if isinstance(node, NO_PROSE) or type(node).__name__ in NO_PROSE_NAMES:
            return False
        if isinstance(node, nodes.container) and "cell" in node["classes"]:
            return False
        node = node.parent
    return True


def link_first_uses(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Put the links into a page that is about to be written."""
    order = list(app.env.toctree_includes.get(app.config.root_doc, []))
    if page in UNLINKED or page not in order:
        return
    known = [
        each
        for each in entries(app.env.get_doctree(GLOSSARY))
        if each.page == page or (each.term not in AT_HOME and order.index(each.page) < order.index(page))
    ]
    address = app.builder.get_relative_uri(page, GLOSSARY)
    by_term = {each.term.lower(): each for each in known}
    find, linked = pattern([each.term for each in known]), set()
    for text in list(filter(is_prose, doctree.findall(nodes.Text))):
        parts, end = [], 0
        for found in find.finditer(text):
            entry = by_term[found[1].lower()]
            if entry.words in linked:
                continue
            linked.add(entry.words)
            parts.append(nodes.Text(text[end : found.start()]))
            link = nodes.reference("", found[0], internal=True, refuri=f"{address}#{entry.anchor}", classes=["term"])
            if "\\" not in entry.words:  # a formula, which a tooltip cannot show
                link["reftitle"] = entry.words
            parts.append(link)
            end = found.end()
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(text[end:])])


def setup(app: Sphinx) -> dict:
    """Link terms when pages are written: the glossary has been read by then."""
    app.connect("doctree-resolved", link_first_uses)
    return {"parallel_read_safe": True}
