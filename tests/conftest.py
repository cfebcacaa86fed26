"""The built book, served on this machine, and a real Chromium to open it with."""

import functools
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line on stderr for each."""

    def log_message(self, *_):
        """Say nothing."""


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
    handler = functools.partial(QuietHandler, directory=built_book)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# One browser a module, not a session: while Playwright runs, no other test could start an event loop.
@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, the system's own."""
    executable = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if executable is None:
        pytest.fail("Chromium is missing: run `make env`, or apt-get install chromium", pytrace=False)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


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
