"""The reading frame: what a chapter shows is its idea; set-up, plots and checks are folded, and claims are badges."""

import json
import re
from pathlib import Path

import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"
CHAPTERS = sorted(path.stem for path in BOOK.glob("[0-9]*.md"))

LINES_A_CHAPTER, LINES_A_CELL = 150, 25
FOLDED = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
BADGE = re.compile(r"\{checked\}`(\w+)`")


def cells(name):
    """The code cells of a chapter's notebook."""
    notebook = json.loads((BOOK / f"{name}.ipynb").read_text())
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def visible(cell) -> int:
    """How many lines of code a cell shows on the page: its own, unless folded, and those of a function it displays."""
    tags = set(cell["metadata"].get("tags", ()))
    own = 0 if tags & FOLDED else len([line for line in "".join(cell["source"]).splitlines() if line.strip()])
    if tags & {"hide-cell", "remove-cell", "remove-output", "hide-output"}:
        return own
    shown = ["".join(output.get("data", {}).get("text/markdown", "")) for output in cell["outputs"]]
    return own + sum(text.count("\n") - 1 for text in shown if text.startswith("```python"))


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_shows_at_most_150_lines_of_code_and_25_in_a_cell(name):
    lines = [visible(cell) for cell in cells(name)]
    assert max(lines) <= LINES_A_CELL and sum(lines) <= LINES_A_CHAPTER, (max(lines), sum(lines))


def test_every_claim_is_folded_and_has_one_badge_on_its_page():
    for path in sorted(BOOK.glob("*.md")):
        text = path.read_text()
        cells = re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        checks = [(cell, re.findall(r'\bclaim\(\s*"([A-Z]\d\d)"', cell)) for cell in cells]
        assert all("hide-cell" in cell.partition("\n\n")[0] for cell, ids in checks if ids), path.name
        assert sorted(BADGE.findall(text)) == sorted(id for _, ids in checks for id in ids), path.name


def test_a_page_shows_badges_and_no_cell_of_checks(built_book):
    page = (built_book / "03_ring.html").read_text()
    badges = re.findall(r'<span class="checked" id="(\w+)" data-verdict="(\w+)">', page)
    assert ("C12", "true") in badges
    assert page.count("The check behind C12") >= 1 and 'id="check-C12"' in page


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapters_first_screen_has_no_visible_code(name):
    before = (BOOK / f"{name}.md").read_text().partition("\n## ")[0]
    found = re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```$", before, re.MULTILINE | re.DOTALL)
    assert all("hide-input" in cell.partition("\n\n")[0] for cell in found)
    assert any("Opening(" in cell for cell in found), "a number to predict, beside a picture"


def test_a_badge_in_a_notebook_is_words():
    texts = [path.read_text() for path in BOOK.glob("[0-9]*.ipynb")]
    assert not any("{checked}" in text for text in texts)
    assert any("(checked: C12)" in text for text in texts)


def test_the_card_of_a_badge_shows_on_focus_and_leads_to_the_check_and_the_ledger(browser, site):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(f"{site}/03_ring.html")
    card = page.locator("#card-C12")
    assert not card.is_visible()
    page.locator("#C12 > button").focus()
    assert card.is_visible() and "arange(4)" in card.inner_text()
    assert [link.get_attribute("href") for link in card.locator("a").all()] == ["#check-C12", "claims.html#row-C12"]
    page.close()


def test_the_first_tap_on_any_badge_shows_its_whole_card(browser, site):
    page = browser.new_page(viewport={"width": 390, "height": 640}, has_touch=True, is_mobile=True)
    page.goto(f"{site}/15_experts.html")
    for badge in page.locator(".checked").all():
        badge.locator("button").tap()
        card = badge.locator(".claim-card")
        assert card.is_visible()
        place = card.bounding_box()
        assert place["y"] >= 0 and place["y"] + place["height"] <= 640
        page.keyboard.press("Escape")
    page.close()
