"""How the book's plots look: as SVG in the page's own letters and ink, without a box around them."""

from typing import Any

import matplotlib as mpl
from matplotlib_inline.backend_inline import set_matplotlib_formats

from .colours import GREY, INK

SVG = {"svg.fonttype": "none", "svg.hashsalt": "collectives"}  # letters stay letters; the same plot is the same file
PAPER: dict[str, Any] = {"figure.facecolor": "none", "axes.facecolor": "none", "axes.edgecolor": GREY}
LETTERS = dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "text.color"), INK)
SPINES = {f"axes.spines.{side}": False for side in ("top", "right")}


def style_plots() -> None:
    """Draw the plots of this notebook as SVG, through which the page shows.

    The page gives letters in the colour `INK` its own (`book/_ext/plots.py`), so that a plot is readable in the dark.
    """
    mpl.rcParams.update(SVG | PAPER | LETTERS | SPINES)
    set_matplotlib_formats("svg", dpi=200, metadata={"Date": None})  # dpi: of dots too many for SVG
