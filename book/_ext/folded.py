"""The one-line labels of folded cells: what is inside, instead of "Show code cell source".

A cell with the tag `hide-input` folds its code, and one with `hide-cell` folds its output too. Its option `fold` is the
label: `:fold: The published figures, as a timeline`. Without it, a cell that checks claims is labelled with their
numbers, one that makes a numbered figure with `DRAWN`, and any other with `USUAL`.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

USUAL, DRAWN = "How this is computed", "How this figure is drawn"
CLAIM = re.compile(r'\bclaim\(\s*"([A-Z]\d\d)"')


def label(cell: nodes.container) -> str:
    """Return the label of a folded code cell."""
    metadata = cell.get("cell_metadata", {})
    if own := metadata.get("fold"):
        return own
    if claims := CLAIM.findall(cell.children[0].astext()):
        return f"The check behind {' and '.join(claims)}"
    return DRAWN if "figure" in metadata.get("mystnb", {}) else USUAL


class Labels(SphinxPostTransform):
    """Give every folded cell its label. Runs before MyST-NB folds the cells (priority 199)."""

    default_priority = 190
    formats = ("html",)

    def run(self, **kwargs) -> None:
        """As `SphinxPostTransform.run`."""
        for cell in self.document.findall(nodes.container):
            if cell.get("nb_element") == "cell_code" and cell.get("hide_mode") and cell.children:
                cell["prompt_show"] = cell["prompt_hide"] = label(cell)


def setup(app: Sphinx) -> dict:
    """Register the transform."""
    app.add_post_transform(Labels)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
