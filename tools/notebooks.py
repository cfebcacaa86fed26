"""Brings each chapter's notebook in step with its text: `make notebooks`.

book/03_ring.md is what authors write and reviewers read; book/03_ring.ipynb is what learners open. A notebook
is made from its text alone and then run; the same text and library always give the same file, but for
what its cells print.
"""

import argparse
import datetime
import hashlib
import os
import platform
import sys
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import fingerprint
import jupytext
import nbformat
from fingerprint import ROOT
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

BOOK = ROOT / "book"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
TIMEOUT_SECONDS = 120


def main() -> int:
    """Update or check every notebook; return the exit status."""
    arguments = argparse.ArgumentParser(description="Bring book/*.ipynb in step with book/*.md.")
    arguments.add_argument("--check", action="store_true", help="change nothing; fail if one is out of step")
    step = check if arguments.parse_args().check else update
    results = [step(text) for text in sorted(BOOK.glob("*.md")) if is_notebook(text)]
    return 0 if all(results) else 1


def is_notebook(text: Path) -> bool:
    """Tell whether a page is a chapter with code, as its front matter says."""
    head, _, rest = text.read_text().partition("\n---\n")
    return bool(rest) and head.startswith("---\n") and "\nkernelspec:" in head


def check(text: Path) -> bool:
    """Tell whether the notebook beside a text says what the text says, and complain if not."""
    if is_in_step(text):
        return True
    print(f"book/{text.stem}.ipynb is out of step with {text.name}: run `make notebooks`")
    return False


def is_in_step(text: Path) -> bool:
    """Tell whether the notebook beside a text has the cells that the text gives."""
    path = text.with_suffix(".ipynb")
    return path.exists() and content(nbformat.read(path, as_version=4)) == content(from_text(text))


def content(notebook: NotebookNode) -> list:
    """Return the part of a notebook that comes from its text."""
    return [(cell.id, cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]


def update(text: Path) -> bool:
    """Make and run one notebook, unless neither its text nor the library changed; return success."""
    path = text.with_suffix(".ipynb")
    if is_up_to_date(text):
        print(f"notebooks: {path.name:<24} unchanged")
        return True
    start = time.perf_counter()
    notebook = from_text(text)
    notebook.metadata["collectives"] = {"source_sha": source_sha(text), "executed": this_run()}
    try:
        execute(notebook)
    except CellExecutionError as error:
        print(f"notebooks: {text.relative_to(ROOT)} FAILED\n{error}")
        return False
    seconds = time.perf_counter() - start
    notebook.metadata["collectives"]["seconds"] = round(seconds)  # the built chapter says it
    nbformat.write(notebook, path)
    print(f"notebooks: {path.name:<24} {seconds:5.1f} s")
    return True


def this_run() -> dict:
    """Return when and on what a notebook is run now, for the page to say (book/_ext/page.py)."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "packages": {name: version(name).partition("+")[0] for name in ("torch", "numpy")},
        "machine": f"{len(os.sched_getaffinity(0))} CPU cores with gloo",
    }


def is_up_to_date(text: Path) -> bool:
    """Tell whether the notebook beside a text was run with this text and this library."""
    if not is_in_step(text):
        return False
    notebook = nbformat.read(text.with_suffix(".ipynb"), as_version=4)
    return notebook.metadata.get("collectives", {}).get("source_sha") == source_sha(text)


def source_sha(text: Path) -> str:
    """Return a hash of a text and of the library."""
    return fingerprint.joined(fingerprint.of_files(text), fingerprint.of_library())


def from_text(text: Path) -> NotebookNode:
    """Return the notebook of a text, with ids that depend on its content only."""
    notebook = jupytext.read(text)
    notebook.metadata = NotebookNode(kernelspec=KERNEL, language_info={"name": "python"})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        cell.id = f"{digest}-{seen[digest]}" if seen[digest] else digest
        seen[digest] += 1
    return notebook


def execute(notebook: NotebookNode) -> None:
    """Run a notebook where its text lives, and forget what differs from machine to machine."""
    metadata = notebook.metadata.copy()
    NotebookClient(
        notebook,
        timeout=TIMEOUT_SECONDS,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(BOOK)}},
    ).execute()
    notebook.metadata = metadata


if __name__ == "__main__":
    sys.exit(main())
