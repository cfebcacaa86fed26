"""What the course cites is in the bibliography, with a link; the pages, their notebooks and the library agree on it."""

import re
from html import unescape
from pathlib import Path

import pytest
from citations import CITATION, authors, bibliography, in_words, link

from collectives.algorithms.scorecard import ROWS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "book").glob("*.md"))
ENTRIES = bibliography().entries
CITED = {
    path: {key.strip() for _, keys in CITATION.findall(path.read_text()) for key in keys.split(",")} for path in PAGES
}
ARXIV = re.compile(r"arXiv[:` ]*(\d{4}\.\d{4,5})")


def words(key: str) -> str:
    return f"{authors(ENTRIES[key].persons['author'])} {ENTRIES[key].fields['year']}"


@pytest.mark.quick
@pytest.mark.parametrize("key", ENTRIES)
def test_an_entry_has_an_author_a_title_a_year_and_a_link(key):
    entry = ENTRIES[key]
    assert entry.persons["author"] and entry.fields["title"]
    assert re.fullmatch(r"(19|20)\d\d[a-z]?", entry.fields["year"])
    assert link(entry).startswith("https://")


@pytest.mark.quick
def test_every_citation_has_an_entry_and_every_entry_is_cited():
    assert {key for keys in CITED.values() for key in keys} == set(ENTRIES)


@pytest.mark.quick
def test_two_entries_differ_in_author_or_year():
    assert len({words(key) for key in ENTRIES}) == len(ENTRIES)


@pytest.mark.quick
def test_a_notebook_cites_in_words_with_a_link_to_the_paper():
    thakur = "https://doi.org/10.1177/1094342005051521"
    assert in_words("As {cite:t}`thakur2005` say.") == f"As [Thakur et al. (2005)]({thakur}) say."
    zero = "https://arxiv.org/abs/1910.02054"
    assert in_words("{cite:p}`thakur2005,rajbhandari2020`") == (
        f"([Rajbhandari et al., 2020]({zero}); [Thakur et al., 2005]({thakur}))"
    )
    with pytest.raises(KeyError, match="nobody1999"):
        in_words("{cite:p}`nobody1999`")


@pytest.mark.parametrize("path", [path for path, keys in CITED.items() if keys], ids=lambda path: path.stem)
def test_a_page_cites_in_the_words_of_its_notebook_and_leads_to_the_list(built_book, path):
    html = (built_book / f"{path.stem}.html").read_text()
    page = " ".join(unescape(re.sub(r"<[^>]*>", "", html)).split())
    for citation in CITATION.finditer(path.read_text()):
        unlinked = re.sub(r"\[([^]]*)\]\([^ ]*?\)(?=[;)]|$)", r"\1", in_words(citation[0]))
        assert unlinked in page
    assert {key for key in CITED[path] if f"#cite-{key}" not in html} == set()


@pytest.mark.quick
def test_what_the_library_names_by_number_or_in_the_scorecard_is_listed():
    listed = {entry.fields.get("eprint") for entry in ENTRIES.values()}
    modules = [*ROOT.glob("collectives/**/*.py"), *ROOT.glob("solutions/*/*.md")]
    named = {number for path in modules for number in ARXIV.findall(path.read_text())}
    assert named and named - listed == set()
    sources = {row.source for row in ROWS if re.search(r"\d{4}$", row.source)}
    assert sources and sources - {words(key) for key in ENTRIES} == set()


@pytest.mark.quick
def test_no_page_calls_a_source_document_by_a_number():
    """E13: pages that never defined them had S0 to S4."""
    pages = [*PAGES, ROOT / "book" / "claims.yml"]
    assert [path.name for path in pages if re.search(r"\bS[0-4]\b", path.read_text())] == []
