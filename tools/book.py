"""Builds the book: `make book`.

Chapters run first, side by side, into Jupyter Book's cache of executed notebooks; then Jupyter Book, which runs none,
writes the pages. Its cache doesn't notice a change in the library, so a build drops it when the library or an
installed package changed. Its saved doctrees would hide the warnings of an earlier build, so every build drops them.
"""

import argparse
import os
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

TROUBLE = re.compile(r"\b(WARNING|ERROR|CRITICAL|Exception|Error)\b")


def main() -> int:
    """Build, unless asked to build only what is stale and nothing is; return the exit status."""
    parser = argparse.ArgumentParser(description="Build the book into _build/html.")
    parser.add_argument("--if-stale", action="store_true", help="do nothing if the built book is up to date")
    hint = "take the outputs of the stored notebooks that are up to date, and run the other chapters"
    parser.add_argument("--from-notebooks", action="store_true", help=hint)
    parser.add_argument("--jobs", type=int, default=2, help="run so many chapters at a time (default: 2)")
    arguments = parser.parse_args()
    if arguments.if_stale and is_fresh():
        print("book: up to date")
        return 0
    return build(arguments.from_notebooks, arguments.jobs)


def build(from_notebooks: bool, jobs: int) -> int:
    """Build the whole book and print how it went."""
    start = time.perf_counter()
    # Node, which formulas and PurgeCSS need, is beside python.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    BUILT_KEY.unlink(missing_ok=True)
    cold = prepare(execution_key() + (" and notebooks" if from_notebooks else ""))
    if from_notebooks:
        print(f"book: took the outputs of {take_notebooks()} notebooks, which nbval runs again", flush=True)
    if status := run_chapters(jobs):
        return status
    print("book: writing the pages (half a minute)", flush=True)
    status, said = run_jupyter_book()
    if status:
        print(troubles(said))
        print("book: FAILED. Fix what is named above and run `make book` again")
        return status
    lean.slim(HTML)
    BUILT_KEY.write_text(sources())
    print(f"book: built in {time.perf_counter() - start:.0f} s ({'cold' if cold else 'warm'})")
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
    """Put the stored notebooks that are up to date into the cache; return how many there are."""
    taken = [text for text in notebooks.chapters() if notebooks.is_up_to_date(text)]
    for text in taken:
        notebook, ran = read(text), nbformat.read(text.with_suffix(".ipynb"), as_version=4)
        for cell, other in zip(code_cells(notebook), code_cells(ran), strict=True):
            cell.outputs, cell.execution_count = other.outputs, other.execution_count
        keep(text, notebook, ran.metadata["collectives"].get("seconds"))
    return len(taken)


def run_chapters(jobs: int) -> int:
    """Run the chapters that the cache lacks, and put them into it; return the exit status."""
    missing = [text for text in notebooks.chapters() if not is_kept(text)]
    if missing:
        print(f"book: running {len(missing)} chapters, {jobs} at a time (minutes)", flush=True)
    failures = []
    for run in notebooks.side_by_side(missing, read, jobs, "book"):
        if run.failure:
            failures.append(run)
        else:
            keep(run.text, run.notebook, run.seconds)
    return notebooks.report(failures, "book")


def read(text: Path) -> nbformat.NotebookNode:
    """Return the notebook of a text as Jupyter Book reads it, which is what its cache is searched for."""
    return get_reader({"name": "myst_nb_md", "type": "plugin"})(str(text))


def is_kept(text: Path) -> bool:
    """Tell whether the cache has a chapter's outputs."""
    try:
        get_cache(CACHE).match_cache_notebook(read(text))
    except KeyError:
        return False
    return True


def keep(text: Path, notebook: nbformat.NotebookNode, seconds: float | None) -> None:
    """Put an executed notebook into the cache."""
    bundle = CacheBundleIn(notebook, str(text), data={"execution_seconds": seconds})
    get_cache(CACHE).cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Return the cells that have outputs."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def run_jupyter_book() -> tuple[int, list[str]]:
    """Run Jupyter Book; return its exit status and the lines that it printed."""
    done = subprocess.run(COMMAND + OPTIONS, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, notebooks.COLOUR.sub("", done.stdout).splitlines()


def troubles(lines: list[str]) -> str:
    """Return the warnings and errors among the lines of a failed build, or its last lines if it names none."""
    named = [line for line in lines if TROUBLE.search(line) and "[IPKernelApp]" not in line]
    return "\n".join(dict.fromkeys(named or lines[-30:]))


if __name__ == "__main__":
    sys.exit(main())
