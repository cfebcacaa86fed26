"""The role `{lab}`: a link that opens a puzzle in the Lab, by its id: ``{lab}`broadcast-4` ``."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

from collectives.figures.lab import puzzles


def address(puzzle: str) -> str:
    """Return where a puzzle opens, relative to any page of the book."""
    return f"lab.html#v=1&puzzle={puzzle}"


class LabLink(SphinxRole):
    """A link to a puzzle, whose text is the puzzle's title."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the link; an unknown puzzle is an error of the page."""
        titles = {each["id"]: each["title"] for each in puzzles()}
        if self.text not in titles:
            return [], [self.inliner.reporter.error(f"the Lab has no puzzle {self.text!r}", line=self.lineno)]
        return [nodes.reference("", f"“{titles[self.text]}”", refuri=address(self.text))], []


def setup(app: Sphinx) -> dict:
    """Add the role."""
    app.add_role("lab", LabLink())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
