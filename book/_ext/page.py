"""What a page says of itself: a description for search engines, and when and on what its cells ran.

tools/notebooks.py writes the run into the notebook beside the page. A notebook without it gives no line.
"""

from __future__ import annotations

import json
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

DESCRIPTION_LENGTH = 160  # what search engines show


def description(doctree: nodes.document | None) -> str:
    """Return the first paragraph of a page that is a sentence or more, cut where a word ends."""
    for paragraph in doctree.findall(nodes.paragraph) if doctree else ():
        if len(text := " ".join(paragraph.astext().split())) > 60 and not isinstance(paragraph[0], nodes.emphasis):
            return text if len(text) <= DESCRIPTION_LENGTH else text[:DESCRIPTION_LENGTH].rpartition(" ")[0] + " …"
    return ""


def executed(notebook: dict) -> dict | None:
    """Return what there is to say of a notebook's run, or None where none is recorded."""
    run = notebook["metadata"].get("collectives", {}).get("executed")
    if not run:
        return None
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return run | {"cells": len(counts), "ran": sum(count is not None for count in counts)}


def describe(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None) -> None:
    """Give a page's templates what they show."""
    context["description"] = description(doctree)
    notebook = Path(app.srcdir, f"{pagename}.ipynb")
    context["executed"] = executed(json.loads(notebook.read_text())) if notebook.exists() else None


def setup(app: Sphinx) -> dict:
    """Describe every page."""
    app.connect("html-page-context", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
