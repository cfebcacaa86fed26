"""Offers the notebook beside a chapter's text (03_ring.ipynb beside 03_ring.md) in the download menu.

The theme does this for books whose sources are notebooks; ours are text with a notebook twin.
"""

import shutil
from pathlib import Path


def offer_notebook(app, pagename, templatename, context, doctree):
    """Copy a page's notebook into the site and tell the theme, whose download menu then names it."""
    notebook = Path(app.srcdir, f"{pagename}.ipynb")
    if not notebook.exists():
        return
    target = Path(app.outdir, "_sources", notebook.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(notebook, target)
    context["ipynb_source"] = notebook.name


def setup(app):
    """Run before the theme (priority 501) makes its buttons."""
    app.connect("html-page-context", offer_notebook)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
