"""Links the first use of each glossary term on a page to its entry, and the glossary's letters to their first entries.

A term is linked from the chapter that introduces it onwards.

Chapters contain no link markup for terms, so that their notebooks read well too. The terms, and the chapter that
introduces each (the one that its definition links to), come only from book/glossary.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

GLOSSARY = "glossary"
# Pages that get no links, like the index.
UNLINKED = {GLOSSARY, "cheat_sheet", "references", "instructors", "grading_the_grader"}
AT_HOME = {"chain", "combine", "group", "mask", "norm", "partial", "unit"}  # linked only at home: ambiguous elsewhere
SMALL = {"step", "transformer"}  # not linked when capitalized, as in "Step through it" and "Switch Transformers"
SUFFIX = "(?:e?s|e?d)?"  # ranks, batches, all-reduced
NOT_AFTER = r"(?<!square )(?<!rate.s )"  # a square root, a learning rate's schedule
NO_PROSE = (nodes.reference, nodes.literal, nodes.FixedTextElement, nodes.math, nodes.title, nodes.raw, nodes.table)
NO_PROSE_NAMES = {"dropdown_title"}  # a link in a fold's title would be a control inside a control


class Entry(NamedTuple):
    """A term with its anchor in the glossary, the words of its definition, and the page that introduces it."""

    term: str
    anchor: str
    words: str
    page: str


def entries(page: nodes.document) -> Iterator[Entry]:
    """Yield the entries of the glossary's doctree."""
    (glossary,) = page.findall(addnodes.glossary)
    for item in glossary.findall(nodes.definition_list_item):
        definition = next(item.findall(nodes.definition))
        words = definition.astext().rpartition(" (")[0]
        (chapter,) = (link["reftarget"] for link in definition.findall(addnodes.pending_xref))
        for term in item.findall(nodes.term):
            yield Entry(term.astext(), term["ids"][0], words, chapter)


def pattern(terms: list[str]) -> re.Pattern:
    """Return a pattern for any of the terms as whole words, longest first. A lowercase term may be capitalized."""
    alternatives = []
    for term in sorted(terms, key=len, reverse=True):
        first = f"[{term[0]}{term[0].upper()}]" if term.islower() and term not in SMALL else re.escape(term[0])
        alternatives.append(first + re.escape(term[1:]))
    return re.compile(rf"(?<![\w-]){NOT_AFTER}({'|'.join(alternatives)}){SUFFIX}(?![\w+-])")


def is_prose(text: nodes.Text) -> bool:
    """Return whether a text is the page's prose, not a heading, link, code, formula, table or cell output."""
    node = text.parent
    while node is not None:
        if isinstance(node, NO_PROSE) or type(node).__name__ in NO_PROSE_NAMES:
            return False
        if isinstance(node, nodes.container) and "cell" in node["classes"]:
            return False
        node = node.parent
    return True


def add_letters(doctree: nodes.document) -> None:
    """Put a row of letters before the glossary, each a link to its first entry. Digits share one."""
    (glossary,) = doctree.findall(addnodes.glossary)
    first: dict[str, str] = {}
    for item in glossary.findall(nodes.definition_list_item):
        term = next(item.findall(nodes.term))
        letter = term.astext()[0].upper()
        first.setdefault(letter if letter.isalpha() else "0-9", term["ids"][0])
    row = nodes.paragraph("", classes=["letters"])
    for letter, anchor in first.items():
        row += nodes.reference("", letter, internal=True, refid=anchor)
    glossary.parent.insert(glossary.parent.index(glossary), row)


def link_first_uses(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Insert the links into a resolved page."""
    if page == GLOSSARY:
        add_letters(doctree)
    order = list(app.env.toctree_includes.get(app.config.root_doc, []))
    if page in UNLINKED or page not in order:
        return
    known = [
        entry
        for entry in entries(app.env.get_doctree(GLOSSARY))
        if entry.page == page or (entry.term not in AT_HOME and order.index(entry.page) < order.index(page))
    ]
    address = app.builder.get_relative_uri(page, GLOSSARY)
    by_term = {entry.term.lower(): entry for entry in known}
    find, linked = pattern([entry.term for entry in known]), set()
    for text in list(filter(is_prose, doctree.findall(nodes.Text))):
        parts, end = [], 0
        for match in find.finditer(text):
            entry = by_term[match[1].lower()]
            if entry.words in linked:
                continue
            linked.add(entry.words)
            parts.append(nodes.Text(text[end : match.start()]))
            link = nodes.reference("", match[0], internal=True, refuri=f"{address}#{entry.anchor}", classes=["term"])
            if "\\" not in entry.words:  # a tooltip can't show a formula
                link["reftitle"] = entry.words
            parts.append(link)
            end = match.end()
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(text[end:])])


def setup(app: Sphinx) -> dict:
    """Link terms after references are resolved, when the glossary has been read."""
    app.connect("doctree-resolved", link_first_uses)
    return {"parallel_read_safe": True}
