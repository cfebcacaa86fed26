"""The built book, served on this machine, and a real Chromium to open it with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import served  # of tools/

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def built_book() -> Path:
    """The folder of the built book, built now if it is missing or older than its sources."""
    command = [sys.executable, ROOT / "tools" / "book.py", "--if-stale"]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        pytest.fail(f"the book does not build:\n{done.stdout}", pytrace=False)
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def site(built_book) -> str:
    """The address under which the built book is served, on this machine only."""
    with served.serving(built_book) as address:
        yield address


# One browser a module, not a session: while Playwright runs, no other test could start an event loop.
@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, the system's own."""
    if served.chromium() is None:
        pytest.fail("Chromium is missing: run `make env`, or apt-get install chromium", pytrace=False)
    with served.browsing() as chromium:
        yield chromium


@pytest.fixture
def page_head() -> str:
    """What stands in the head of the pages that `open_page` opens; a module overrides it by a fixture of that name."""
    return "<meta charset=utf-8><title>figures</title>"


@pytest.fixture
def open_page(browser, tmp_path, page_head):
    """A function that opens figures as a page, and fails at the end if the page complained or asked for anything."""
    heard, contexts = [], []

    def opened(*figures, **settings):
        path = tmp_path / "page.html"
        body = "".join(figure.html() for figure in figures)
        path.write_text(f"<!doctype html><html lang=en>{page_head}<body>{body}", encoding="utf-8")
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: heard.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert heard == []


# Of the answers that need real ranks: in these files one in so many is tried.
ON_RANKS = {"test_ch03_ch04", "test_ch09_zero", "test_ch11_tensor_parallel"}
ONE_IN = {
    "wrong_answer_is_refused": (5, ON_RANKS),
    "right_answer_is_accepted": (
        2,
        ON_RANKS | {"test_ch02_tree", "test_ch06_all_to_all", "test_ch12_experts", "test_ch14_mesh"},
    ),
}


def pytest_collection_modifyitems(config, items):
    """Try some of the answers to exercises that need real ranks; `make mutants` tries all.

    What all of them get is in book/data/mutants.json, which is made of a run of all.
    """
    if os.environ.get("MUTANTS") == "all" or os.environ.get("RECORD_MUTANTS"):
        return
    left_out = []
    for test, (one_in, files) in ONE_IN.items():
        for file in files:
            found = [item for item in items if test in item.name and item.path.stem == file]
            left_out += [item for number, item in enumerate(found) if number % one_in]
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
