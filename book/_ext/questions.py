"""The directive `{questions}`: the folded questions of all chapters, a section per chapter.

The source has no second copy. When the page is written, it takes the questions from the built chapters, so the numbers
in the answers are the chapters' own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

HEADING, ANCHOR = "\n## Questions\n", "questions"


class chapters_questions(nodes.General, nodes.Element):
    """A placeholder for the questions of the chapter named by its attribute `page`."""


def chapters(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each page with questions and its title, in the book's order."""
    toc = yaml.safe_load((folder / "_toc.yml").read_text(encoding="utf-8"))
    for page in (chapter["file"] for part in toc["parts"] for chapter in part["chapters"]):
        text = (folder / f"{page}.md").read_text(encoding="utf-8")
        if HEADING in text:
            yield page, text.partition("\n# ")[2].partition("\n")[0]


class Questions(SphinxDirective):
    """A section for each chapter that has questions."""

    def run(self) -> list[nodes.Node]:
        sections = []
        for page, title in chapters(Path(self.env.srcdir)):
            self.env.note_dependency(f"{page}.md")
            section = nodes.section("", nodes.title(title, title), chapters_questions(page=page))
            section["ids"] = [f"{ANCHOR}-{page.replace('_', '-')}"]
            sections.append(section)
        return sections


def folded(chapter: nodes.document) -> list[nodes.Node]:
    """Return the folded questions of a resolved chapter."""
    (section,) = (each for each in chapter.findall(nodes.section) if ANCHOR in each["ids"])
    return [node for node in section.children if type(node).__name__ == "dropdown_main"]


def fill(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Replace the placeholders on a resolved page with the questions."""
    for place in list(doctree.findall(chapters_questions)):
        chapter = app.env.get_and_resolve_doctree(place["page"], app.builder)
        address = app.builder.get_relative_uri(page, place["page"])
        questions = [node.deepcopy() for node in folded(chapter)]
        for link in (link for question in questions for link in question.findall(nodes.reference)):
            if anchor := link.attributes.pop("refid", None):  # a link within the chapter's page
                link["refuri"] = f"{address}#{anchor}"
        title = app.env.titles[place["page"]].astext()
        back = nodes.reference("", f"In the chapter “{title}”", internal=True, refuri=f"{address}#{ANCHOR}")
        place.replace_self([nodes.paragraph("", "", back), *questions])
        app.env.get_domain("math").data["has_equations"][page] = True  # so that `katex` loads its stylesheet


def setup(app: Sphinx) -> dict:
    """Register the directive, and replace its placeholders after references are resolved."""
    app.add_node(chapters_questions)
    app.add_directive("questions", Questions)
    app.connect("doctree-resolved", fill)
    return {"parallel_read_safe": True}
