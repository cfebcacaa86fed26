"""What `make audit` checks without Lighthouse, on every page of the built book; and what lends a page its buttons."""

import io
import json
import subprocess
import sys
from itertools import pairwise

import audit  # of tools/
import links
import notebook_button  # of book/_ext/
import page as page_extension
import pdf
import pypdf
import pytest
from test_site import CHAPTERS, PAGES, ROOT, every_chapter

AXED = (
    "index",
    "03_ring",
    "18_gpus",
    "scorecard",
    "claims",
    "cheat_sheet",
    "glossary",
    "self_check",
    "references",
)  # a kind each
SCREEN_OF = {name: list(audit.SCREENS)[place % 2] for place, name in enumerate(PAGES)}
MODE_OF = {name: audit.MODES[place // 2 % 2] for place, name in enumerate(PAGES)}


@pytest.mark.parametrize("name", AXED)
def test_axe_finds_nothing_wrong_with_a_page(browser, site, name):
    """In one of four views, by turns; `make audit` takes all four of every page."""
    assert audit.violations(browser, f"{site}/{name}.html", MODE_OF[name], SCREEN_OF[name]) == []


def test_axe_would_find_something_wrong(browser):
    page = browser.new_page()
    page.set_content('<html lang="en"><title>wrong</title><main><h1>A page</h1><img src="data:,"></main>')
    assert [each.split()[0] for each in audit.run_axe(page)] == ["image-alt"]
    page.close()


def test_too_heavy_a_page_is_named():
    assert audit.too_heavy("03_ring", 249_999, 29_999) == []
    assert audit.too_heavy("lab", 249_999, 59_999) == []
    assert audit.too_heavy("03_ring", 260_000, 31_000) == ["weighs 260 kB, over 250", "its script weighs 31.0 kB"]


def test_every_link_and_anchor_of_the_site_is_alive(built_book, tmp_path):
    assert links.check(built_book)[0] == []
    (tmp_path / "a.html").write_text('<p id="here"><a href="b.html#there">b</a><a href="c.html">c</a><a href="#here">')
    (tmp_path / "b.html").write_text("<p>")
    broken, _ = links.check(tmp_path)
    assert broken == ["a.html: b.html#there: no such anchor", "a.html: c.html: no such file"]


def test_prose_and_comments_are_spelt_right(tmp_path):
    assert audit.misspelt() == []
    (tmp_path / "wrong.md").write_text("Recieve the chunk.")  # codespell:ignore
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", tmp_path / "wrong.md"], capture_output=True, text=True
    )
    assert "Receive" in done.stdout


def test_a_search_finds_the_chapter_without_another_host(browser, site):
    page = browser.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{site}/index.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("deadlock")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a[href^='01_messages.html']")  # results come one after the other
    assert all(url.startswith((site, "data:")) for url in asked)
    page.close()


def test_previous_and_next_lead_through_the_whole_book_and_back(built_book):
    """From the first page to the last, in the order of the table of contents."""
    for this, after in pairwise(CHAPTERS):
        assert f'class="right-next"\n       href="{after}.html"' in (built_book / f"{this}.html").read_text()
        assert f'class="left-prev"\n       href="{this}.html"' in (built_book / f"{after}.html").read_text()


def test_each_chapter_offers_its_notebook_and_its_exercise(built_book):
    for name in CHAPTERS:
        text = (built_book / f"{name}.html").read_text()
        for path in (f"book/{name}.ipynb", f"exercises/{name}/{name}.ipynb"):
            assert (f'href="_sources/{path}"' in text) == (ROOT / path).exists(), path
            if (ROOT / path).exists():
                assert (built_book / "_sources" / path).read_bytes() == (ROOT / path).read_bytes()


def test_a_public_repository_is_opened_on_binder_colab_and_a_hub():
    path = "book/03_ring.ipynb"
    assert notebook_button.launches(path, "", "main", "https://hub.example.org") == {}
    assert notebook_button.launches(path, "https://github.com/who/what", "main", "https://hub.example.org/") == {
        "Binder": "https://mybinder.org/v2/gh/who/what/main?urlpath=lab/tree/book/03_ring.ipynb",
        "Colab": "https://colab.research.google.com/github/who/what/blob/main/book/03_ring.ipynb",
        "the hub": "https://hub.example.org/hub/user-redirect/git-pull?repo=https%3A//github.com/who/what&branch=main"
        "&urlpath=lab/tree/what/book/03_ring.ipynb",
    }
    elsewhere = notebook_button.launches(path, "https://git.example.org/who/what.git", "main", "")
    assert elsewhere == {
        "Binder": "https://mybinder.org/v2/git/https%3A%2F%2Fgit.example.org%2Fwho%2Fwhat/main?urlpath=lab/tree/" + path
    }


def test_a_page_says_how_many_of_its_cells_ran_and_nothing_where_no_run_is_recorded():
    cells = [{"cell_type": "code", "execution_count": count} for count in (1, 2, None)]
    run = {"date": "2026-01-02", "python": "3.11.7", "packages": {"numpy": "2.4.6"}, "machine": "2 CPU cores with gloo"}
    notebook = {"cells": [*cells, {"cell_type": "markdown"}], "metadata": {}}
    assert page_extension.executed(notebook) is None
    notebook["metadata"]["collectives"] = {"executed": run}
    assert page_extension.executed(notebook) == run | {"cells": 3, "ran": 2}


@every_chapter
def test_a_page_says_what_its_notebook_records(built_book, name):
    path = ROOT / "book" / f"{name}.ipynb"
    says = page_extension.executed(json.loads(path.read_text())) if path.exists() else None
    text = (built_book / f"{name}.html").read_text()
    assert ('class="executed"' in text) == (says is not None)
    if says:
        assert says["ran"] == says["cells"], "every cell was run"
        assert f"{says['cells']} cells, all executed on" in " ".join(text.split())


def test_the_book_is_printed_with_bookmarks_and_numbers(browser, site):
    """Two pages of it: their links stay within, each sheet has its number, and no code is cut off at the margin."""
    title_page = "<title>Two pages</title><h1>Two pages</h1>"
    book = pdf.printed(browser.new_page(), site, ["index", "interchange"], title_page)
    printed = io.BytesIO()
    book.write(printed)
    sheets = pypdf.PdfReader(printed)
    titles = [each.title for each in sheets.outline if not isinstance(each, list)]
    assert titles == ["Two pages", "Collectives from First Principles", "Interchange: schedules as files"]
    texts = [sheet.extract_text() for sheet in sheets.pages]
    assert len(texts) > 5
    assert [text.split()[-1] for text in texts[1:]] == [str(place) for place in range(1, len(texts))]
    code = (ROOT / "book" / "index.md").read_text().split("```{code-cell} ipython3\nschedule")[1].split("```")[0]
    assert "".join(code.split()) in "".join("".join(texts).split())
    annotations = [each.get_object() for sheet in sheets.pages for each in sheet.get("/Annots", [])]
    targets = [str(each.get("/A", "")) for each in annotations]
    assert not any("index.html" in target or "interchange.html" in target for target in targets)
