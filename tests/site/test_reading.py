"""What helps to read the book: glossary, notation, self-check, cheat sheet, and what a chapter takes and needs."""

import re
from html import unescape
from pathlib import Path

import pytest
import yaml
from glossary_links import pattern

BOOK = Path(__file__).resolve().parents[2] / "book"

CHAPTERS = sorted(path.stem for path in BOOK.glob("[0-9]*.md"))
GLOSSARY = (BOOK / "glossary.md").read_text(encoding="utf-8")
DEFINED = re.compile(r"^((?:[^ `#\n].*\n)+)  (.*)\(\{doc\}`[^<`]*<(\w+)>`\)$", re.MULTILINE)
LINK = re.compile(r'<a class="term[^"]*" href="glossary\.html#(term-[^"]+)"')
FOLDED = re.compile(r"^:::\{dropdown\} (.*)$", re.MULTILINE)


def page(built_book, name) -> str:
    return (built_book / f"{name}.html").read_text(encoding="utf-8")


def shown(html) -> str:
    """The words of some HTML."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", html)).split())


def entries(built_book):
    """(anchors, chapter that introduces it) of every line of the glossary."""
    main = page(built_book, "glossary").partition('<dl class="simple glossary">')[2].partition("</dl>")[0]
    for terms, definition in re.findall(r"((?:<dt id.*?</dt>\s*)+)<dd>(.*?)</dd>", main, re.DOTALL):
        yield re.findall(r'<dt id="([^"]+)"', terms), re.findall(r'href="(\w+)\.html"', definition)[-1]


# --- the glossary -----------------------------------------------------------------------------------------------


def test_every_line_of_the_glossary_is_a_sentence_or_two_and_names_its_chapter():
    terms = DEFINED.findall(GLOSSARY)
    assert len(terms) == len(re.findall(r"^  \S", GLOSSARY, re.MULTILINE)) > 90
    assert {chapter for *_, chapter in terms} == set(CHAPTERS), "each chapter has words of its own"
    assert [names for names, words, _ in terms if not words.strip().endswith(".") or len(words.split()) > 60] == []


def test_a_term_is_found_as_a_whole_word_and_the_longest_of_several():
    find = pattern(["shard", "secondary shard", "reduce", "all-reduce", "NIC", "step"])
    found = find.findall(
        "Shards and a secondary shard, all-reduced; reduce-scatter, resharded, nics, NICs. Step through it."
    )
    assert found == ["Shard", "secondary shard", "all-reduce", "NIC"]
    found = pattern(["root", "schedule"]).findall("The square root, a learning rate’s schedule, the root's schedule.")
    assert found == ["root", "schedule"]


def test_a_chapter_links_each_of_its_own_terms_once(built_book):
    linked = {name: LINK.findall(page(built_book, name)) for name in CHAPTERS}
    assert [name for name, found in linked.items() if len(found) != len(set(found))] == []
    lines = list(entries(built_book))
    assert len(lines) == len(DEFINED.findall(GLOSSARY))
    assert [(chapter, terms) for terms, chapter in lines if not set(terms) & set(linked[chapter])] == []


def test_a_term_is_not_linked_before_the_chapter_that_introduces_it(built_book):
    home = {term: chapter for terms, chapter in entries(built_book) for term in terms}
    early = [(name, term) for name in CHAPTERS for term in LINK.findall(page(built_book, name)) if home[term] > name]
    assert early == []


def test_each_letter_of_the_glossary_leads_to_its_first_entry(built_book):
    row = page(built_book, "glossary").partition('<p class="letters">')[2].partition("</p>")[0]
    letters = re.findall(r'href="#(term-[^"]+)"[^>]*>([^<]+)</a>', row)
    first = {}
    for (anchor, *_), _ in entries(built_book):
        letter = anchor.removeprefix("term-")[0].upper()
        first.setdefault(letter if letter.isalpha() else "0-9", anchor)
    assert dict(map(reversed, letters)) == first
    assert [letter for _, letter in letters] == sorted(first)


# --- the self-check ---------------------------------------------------------------------------------------------


def test_every_folded_question_of_every_chapter_is_on_the_page_with_its_answer(built_book):
    """Under its chapter, folded, word for word as on the chapter's page: the computed numbers too."""
    folded = re.compile(r"<details class=\"sd-sphinx-override sd-dropdown.*?</details>", re.DOTALL)
    sections = page(built_book, "self_check").split('<section id="questions-')[1:]
    assert [section.partition('"')[0].replace("-", "_") for section in sections] == CHAPTERS
    for name, section in zip(CHAPTERS, sections, strict=True):
        of_chapter = page(built_book, name).partition('<section id="questions">')[2]
        questions = [shown(each) for each in folded.findall(of_chapter)]
        assert [shown(each) for each in folded.findall(section)] == questions
        assert len(questions) == len(FOLDED.findall((BOOK / f"{name}.md").read_text().partition("\n## Questions\n")[2]))
        assert f'href="{name}.html#questions"' in section


# --- time and what is needed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_says_how_long_it_takes_and_links_what_it_needs(built_book, name):
    (line,) = re.findall(r'<p class="chapter-facts">(.*?)</p>', page(built_book, name), re.DOTALL)
    head = yaml.safe_load((BOOK / f"{name}.md").read_text().split("---\n")[1])
    assert re.search(r"About \d+ minutes to read; its cells ran in \d+ s\.", shown(line))
    assert re.findall(r'href="(\w+)\.html"', line) == head["needs"]
    assert all(need < name for need in head["needs"]), "what is needed comes before"
    assert ('href="#graded-exercise"' in line) == ("\n## Graded exercise\n" in (BOOK / f"{name}.md").read_text())


# --- the first page -----------------------------------------------------------------------------------------------


def test_the_first_page_counts_the_chapters_and_the_exercises():
    chapters, exercises = len(list(BOOK.glob("[0-9]*.md"))), len(list((BOOK.parent / "exercises").glob("[0-9]*")))
    assert f"{chapters} chapters and {exercises} graded exercises" in (BOOK / "index.md").read_text()


# --- on paper ---------------------------------------------------------------------------------------------------


def test_the_cheat_sheet_is_one_sheet_of_paper(browser, site):
    opened = browser.new_page()
    opened.goto(f"{site}/cheat_sheet.html")
    paper = opened.pdf(prefer_css_page_size=True, print_background=True)
    opened.emulate_media(media="print")
    assert len(re.findall(rb"/Type /Page\b", paper)) == 1
    (size,) = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", paper)
    assert [round(float(side)) for side in size] == [595, 842], "A4, in points"
    assert all(each.is_visible() for each in opened.locator("#cheat-sheet :is(h2, table, .cell_output)").all())
    opened.close()


# --- a page's contents ------------------------------------------------------------------------------------------


def test_the_contents_mark_the_section_that_is_read_up_and_down(browser, site):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{site}/08_data_parallel.html")
    above = """() => [...document.querySelectorAll(".bd-article h2")]
        .findLast((node) => node.parentElement.getBoundingClientRect().top < innerHeight * .3)?.parentElement.id"""
    marked = "#pst-page-toc-nav [aria-current]"
    seen = []
    for wheel in [1100] * 8 + [-1100] * 5:
        page.mouse.move(600, 500)
        page.mouse.wheel(0, wheel)
        page.wait_for_timeout(300)
        page.wait_for_function(f"document.querySelector('{marked}')?.hash === '#' + ({above})()")
        seen.append(page.evaluate(above))
    assert len({*seen}) > 3
    page.close()
