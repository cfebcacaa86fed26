"""The colours of all figures, each with one meaning in the whole book: a rank, an algorithm, an operation, a fault.

Colour is never the only sign: a rank has its number, an algorithm its dash, an operation its pattern.
"""

from __future__ import annotations

from typing import NamedTuple

RANK_COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c8c8c"),
    *("#004b76", "#8c6100", "#00563f", "#8a3d67", "#b5ddf7", "#8c3d00", "#9c9422", "#c8c8c8"),
)
"""One colour for each rank. The first eight are Okabe and Ito's palette, which colour-blind readers can tell apart."""

WRONG, ACCENT = "#d1242f", "#2f7fd8"  # a fault; what a plot is about, where it is no rank, algorithm or operation
GREY, INK = "#777777", "#444444"  # lines and letters; on a page, letters take its own colour


class Line(NamedTuple):
    """The look of an algorithm's line in a plot: a colour, and SVG's dash lengths ("" for a solid line)."""

    colour: str
    dash: str


ALGORITHMS = {
    "ring": Line("#2f7fd8", ""),
    "tree": Line("#c8562a", "7 3"),
    "halving-doubling": Line("#ba4f9b", "2 2"),
    "doubling": Line("#98752b", "9 2 2 2"),
    "flat": Line("#7d7d7d", "1 3"),
    "hierarchical": Line("#8467d7", "12 3"),
    "NVLS": Line("#2c9160", "5 2 1 2 1 2"),
}
"""The look of each algorithm. Every colour contrasts at least 3 to 1 with white and with the dark theme's page."""

OPERATIONS = {
    "forward": "#9fb4e8",
    "backward": "#5765c4",
    "backward_input": "#3f3f8f",
    "backward_weights": "#ba8fd9",
    "optimizer": "#dcbfae",
    "compute": "#ddd6f6",
    "all_gather": "#3fb5a3",
    "reduce_scatter": "#cbb25f",
    "all_reduce": "#cf6a6f",
    "all_to_all": "#7d2a4e",
    "broadcast": "#6f8748",
    "send_recv": "#e4da8f",
}
"""One colour for each operation of a training step; computing is blue to violet. None is close to a rank's or an
algorithm's. In a timeline, collectives also have patterns."""

OTHERS = (
    "#e8a262",
    "#6f98a3",
    "#a9bb86",
    "#a97a8a",
    "#58615e",
    "#7e4aa1",
    "#5eb259",
    "#357029",
)  # that have no name here
IDLE = "#d5d9e0"  # time in which nothing runs


def luminance(colour: str) -> float:
    """Return the relative luminance that WCAG defines, from 0 for black to 1 for white."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2


def ink_on(colour: str) -> str:
    """Return black or white, whichever is easier to read on `colour`."""
    return "#000" if luminance(colour) > 0.18 else "#fff"
