"""How the book cites: Thakur et al. (2005), or (Thakur et al., 2005); and the list of references, by last names.

sphinxcontrib-bibtex has square brackets only, and lists by first names. tools/citations.py writes the same citations
into notebooks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from docutils import nodes
from pybtex import plugin as pybtex_plugin
from pybtex.style.formatting.plain import Style
from sphinx.application import Sphinx
from sphinxcontrib.bibtex import plugin
from sphinxcontrib.bibtex.style.referencing import BracketStyle
from sphinxcontrib.bibtex.style.referencing.author_year import AuthorYearReferenceStyle


class ByLastName(Style):
    """The style `plain`, sorted by the authors' last names, with these in front: "Thakur, R."."""

    def __init__(self, **options):
        super().__init__(name_style="lastfirst", abbreviate_names=True, **options)


def _round() -> BracketStyle:
    return BracketStyle(left="(", right=")", sep="; ")


@dataclass
class AuthorYearRound(AuthorYearReferenceStyle):
    """The style `author_year` with round brackets."""

    bracket_textual: BracketStyle = field(default_factory=_round)
    bracket_parenthetical: BracketStyle = field(default_factory=_round)


def list_entries(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Make a page's bibliography a list without labels. A citation by author and year needs none."""
    for bibliography in {citation.parent for citation in doctree.findall(nodes.citation)}:
        items = [nodes.list_item("", entry[-1], ids=entry["ids"]) for entry in bibliography.findall(nodes.citation)]
        bibliography.replace_self(nodes.bullet_list("", *items, classes=["citations"]))


def setup(app: Sphinx) -> dict:
    """Register the styles by the names that _config.yml gives."""
    pybtex_plugin.register_plugin("pybtex.style.formatting", "by_last_name", ByLastName)
    plugin.register_plugin("sphinxcontrib.bibtex.style.referencing", "author_year_round", AuthorYearRound)
    app.connect("doctree-resolved", list_entries)
    return {"parallel_read_safe": True}
