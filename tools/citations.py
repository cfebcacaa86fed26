"""Citations and badges as plain text, for notebooks: Jupyter knows no bibliography and no roles.

A page's text cites by key, ``{cite:t}`thakur2005` ``, which Sphinx makes a link into the page of references. In the
notebook beside it the same words link to the paper itself: `[Thakur et al. (2005)](https://doi.org/...)`.
A checked claim's badge, ``{checked}`C12` ``, becomes "(checked: C12)", and a puzzle of the Lab its title.
"""

import re
from functools import cache

from fingerprint import ROOT
from pybtex.database import BibliographyData, Entry, Person, parse_file

from collectives.figures.lab import puzzles

BIBLIOGRAPHY = ROOT / "book" / "references.bib"
BADGE = re.compile(r"\{checked\}`(\w+)`")
PUZZLE = re.compile(r"\{lab\}`([\w-]+)`")
CITATION = re.compile(r"\{cite:([tp])\}`([^`]+)`")


def in_words(text: str) -> str:
    """Return Markdown with badges and puzzles as text and each citation as linked author and year.

    Raises `KeyError` for a key without an entry.
    """
    titles = {each["id"]: f"“{each['title']}”" for each in puzzles()}
    text = PUZZLE.sub(lambda match: titles[match[1]], BADGE.sub(r"(checked: \1)", text))
    return CITATION.sub(lambda match: _words(match[1], match[2].split(",")), text)


@cache
def bibliography() -> BibliographyData:
    """Return the entries of book/references.bib."""
    return parse_file(BIBLIOGRAPHY)


def link(entry: Entry) -> str | None:
    """Return where an entry can be read: its DOI, its arXiv page or its address; None if it names none."""
    for field, address in (("doi", "https://doi.org/"), ("eprint", "https://arxiv.org/abs/"), ("url", "")):
        if field in entry.fields:
            return address + entry.fields[field]
    return None


def authors(people: list[Person]) -> str:
    """Return last names, as Sphinx shows them: "Patarasuk and Yuan", and "Thakur et al." for more than two."""
    names = [" ".join(map(str, person.rich_prelast_names + person.rich_last_names)) for person in people]
    return f"{names[0]} et al." if len(names) > 2 else " and ".join(names)


def _words(kind: str, keys: list[str]) -> str:
    """Return citations in a sentence (`kind` "t": the year in brackets) or in brackets ("p"), sorted by name."""
    cited = []
    for entry in (bibliography().entries[key.strip()] for key in keys):
        names, year = authors(entry.persons["author"]), entry.fields["year"]
        cited.append(f"[{names} ({year})]({link(entry)})" if kind == "t" else f"[{names}, {year}]({link(entry)})")
    cited.sort(key=str.lower)
    return "; ".join(cited) if kind == "t" else f"({'; '.join(cited)})"
