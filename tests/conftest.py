"""The built book, served on this machine, and a real Chromium to open it with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
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


ON_RANKS = {"test_exercises.py", "test_exercise_09_zero.py", "test_exercise_11_tensor_parallel.py"}


def pytest_collection_modifyitems(config, items):
    """Of the wrong answers that real ranks have to refuse, try every fifth; `make mutants` tries all.

    What all of them get is in book/data/mutants.json, which is made of a run of all.
    """
    if os.environ.get("MUTANTS") == "all" or os.environ.get("RECORD_MUTANTS"):
        return
    wrong = [item for item in items if "wrong_answer_is_refused" in item.name and item.path.name in ON_RANKS]
    left_out = {item for number, item in enumerate(wrong) if number % 5}
    config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
    items[:] = [item for item in items if item not in left_out]
