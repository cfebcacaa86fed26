"""Builds the book: `make book`.

Jupyter Book, made safe to run twice. Its saved doctrees hide the warnings of an earlier build, so they are
dropped always; its cache of executed notebooks does not see a change in the library, so it is dropped when
the library or an installed package changed.
"""

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import fingerprint
import lean
import nbformat
import notebooks
from fingerprint import ROOT
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.readers import get_reader

BUILD = ROOT / "_build"
HTML = BUILD / "html"
CACHE = BUILD / ".jupyter_cache"
CACHE_KEY = BUILD / ".jupyter_cache_key"
BUILT_KEY = BUILD / ".built_key"

COMMAND = [Path(sys.executable).parent / "jupyter-book", "build", "book", "--config", "_config.yml"]
OPTIONS = ["--path-output", ".", "-W", "-n", "--keep-going"]

SOURCES = ("book", "_config.yml", "package-lock.json", "tools/lean.py")

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
READING = re.compile(r"reading sources\.\.\. \[ *\d+%\] (\S+)")
TROUBLE = re.compile(r"\b(WARNING|ERROR|CRITICAL|Exception|Error)\b")


def main() -> int:
    """Build, unless asked to build only what is stale and nothing is; return the exit status."""
    parser = argparse.ArgumentParser(description="Build the book into _build/html.")
    parser.add_argument("--if-stale", action="store_true", help="do nothing if the built book is up to date")
    hint = "take the outputs of notebooks that this text and library gave; what is newer is run"
    parser.add_argument("--from-notebooks", action="store_true", help=hint)
    arguments = parser.parse_args()
    if arguments.if_stale and is_fresh():
        print("book: up to date")
        return 0
    return build(arguments.from_notebooks)


def build(from_notebooks: bool) -> int:
    """Build the whole book and say how it went."""
    start = time.perf_counter()
    BUILT_KEY.unlink(missing_ok=True)
    cold = prepare(execution_key() + (" and notebooks" if from_notebooks else ""))
    if from_notebooks:
        print(f"book: outputs of {take_notebooks()} notebooks taken, which nbval runs again", flush=True)
    status, lines = run_jupyter_book()
    seconds = time.perf_counter() - start
    if status:
        print(explain(lines))
        print(f"book: FAILED after {seconds:.0f} s; mend what is named above and run `make book` again")
        return status
    lean.slim(HTML)
    BUILT_KEY.write_text(sources())
    print(f"book: built in {seconds:.0f} s ({'cold' if cold else 'warm'})")
    print(f"book: open {HTML / 'index.html'}")
    return 0


def is_fresh() -> bool:
    """Tell whether the last build succeeded, from the sources as they are now."""
    return HTML.is_dir() and BUILT_KEY.exists() and BUILT_KEY.read_text() == sources()


def sources() -> str:
    """Return a hash of everything the built book is made from."""
    files = fingerprint.of_files(*map(ROOT.joinpath, SOURCES))
    return fingerprint.joined(files, execution_key())


def execution_key() -> str:
    """Return a hash of what a notebook's outputs depend on beside its own text."""
    return fingerprint.joined(fingerprint.of_library(), fingerprint.of_versions())


def prepare(key: str) -> bool:
    """Drop what must not survive from an earlier build; return whether the cache is empty.

    `key`: what the outputs in the cache come from. Those that `make book` shows have all been run here.
    """
    shutil.rmtree(BUILD / ".doctrees", ignore_errors=True)
    shutil.rmtree(HTML, ignore_errors=True)
    if not CACHE_KEY.exists() or CACHE_KEY.read_text() != key:
        shutil.rmtree(CACHE, ignore_errors=True)
    BUILD.mkdir(exist_ok=True)
    CACHE_KEY.write_text(key)
    return not CACHE.is_dir()


def take_notebooks() -> int:
    """Put the notebooks beside the texts into the cache, unless they are out of date; return how many there are."""
    cache, taken = get_cache(CACHE), 0
    for text in sorted((ROOT / "book").glob("*.md")):
        if notebooks.is_notebook(text) and notebooks.is_up_to_date(text):
            notebook = get_reader({"name": "myst_nb_md", "type": "plugin"})(str(text))
            ran = nbformat.read(text.with_suffix(".ipynb"), as_version=4)
            for cell, other in zip(code_cells(notebook), code_cells(ran), strict=True):
                cell.outputs, cell.execution_count = other.outputs, other.execution_count
            data = {"execution_seconds": ran.metadata["collectives"].get("seconds")}
            bundle = CacheBundleIn(notebook, str(text), data=data)
            cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
            taken += 1
    return taken


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return the cells that have outputs."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def run_jupyter_book() -> tuple[int, list[str]]:
    """Run Jupyter Book, showing a line a chapter; return its exit status and all that it said."""
    process = subprocess.Popen(COMMAND + OPTIONS, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines, chapter, start = [], None, 0.0
    for raw in process.stdout:
        line = COLOUR.sub("", raw.rstrip())
        lines.append(line)
        read = READING.search(line)
        if chapter and (read or line.startswith("looking for now-outdated")):
            print(f"book: {chapter:<20} {time.perf_counter() - start:5.1f} s", flush=True)
            chapter = None
        if read:
            chapter, start = read[1], time.perf_counter()
    return process.wait(), lines


def explain(lines: list[str]) -> str:
    """Return the warnings and errors of a failed build, and the traceback of each notebook that failed."""
    troubles = [line for line in lines if TROUBLE.search(line) and "[IPKernelApp]" not in line]
    reports = [traceback_in(path) for path in sorted((HTML / "reports").rglob("*.err.log"))]
    return "\n\n".join(["\n".join(dict.fromkeys(troubles or lines[-30:])), *reports])


def traceback_in(report: Path) -> str:
    """Return a notebook's own traceback from a report, without the frames of the machinery that ran it."""
    text = COLOUR.sub("", report.read_text()).strip()
    _, _, own = text.partition("CellExecutionError: ")
    return f"{report.name.removesuffix('.err.log')}: {own or text}"


if __name__ == "__main__":
    sys.exit(main())
