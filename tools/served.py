"""A local server for the built book, with gzip as a host would use, and a Chromium to open it with."""

import functools
import gzip
import io
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

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
PATIENCE = 120  # seconds for a page to load, or for what is waited for to appear, on a busy machine
TEXT = {".html", ".css", ".js", ".json", ".svg", ".xml", ".txt", ".ipynb"}


@functools.lru_cache(maxsize=512)
def compressed(path: Path, changed: float) -> bytes:
    """Return a file's gzipped bytes. `changed`: its modification time, so that the cache sees new versions."""
    return gzip.compress(path.read_bytes(), mtime=0)


class Handler(SimpleHTTPRequestHandler):
    """A handler that serves files, compresses text, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Log nothing."""

    def send_head(self):
        """Answer a request for text with the compressed file, any other like the base class."""
        path = Path(self.translate_path(self.path))
        if path.suffix not in TEXT or not path.is_file() or "gzip" not in self.headers.get("Accept-Encoding", ""):
            return super().send_head()
        body = compressed(path, path.stat().st_mtime)
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return io.BytesIO(body)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder to this machine only, and yield its address."""
    handler = functools.partial(Handler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def chromium() -> str | None:
    """Return the path of the system's Chromium, or None."""
    return next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    """Start the system's Chromium, headless, and yield it; raise `FileNotFoundError` if there is none."""
    executable = chromium()
    if executable is None:
        raise FileNotFoundError("Chromium is missing. On Debian or Ubuntu run: sudo apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)
        browser.new_context, browser.new_page = patient(browser.new_context), patient(browser.new_page)
        yield browser
        browser.close()


def patient(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let the contexts or pages that a function makes wait for `PATIENCE` seconds."""

    @functools.wraps(make)
    def made(**settings):
        opened = make(**settings)
        opened.set_default_timeout(1000 * PATIENCE)
        return opened

    return made
