"""What all figures to step through share: one piece of HTML that is a player, a still picture and words at once.

A figure is data and a sentence for each step, both from Python. The player (`player/player.js`) has the buttons, the
keyboard and the speaking; what there is to see is drawn by the script of the figure's own kind beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from urllib.parse import quote

RANK_COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c8c8c"),
    *("#004b76", "#8c6100", "#00563f", "#8a3d67", "#b5ddf7", "#8c3d00", "#9c9422", "#c8c8c8"),
)
"""One colour a rank, the same through the whole book. The first eight are Okabe and Ito's, which colour-blind readers
can tell apart; colour is never the only sign, for a rank's pip also has its own place and its number."""

WRONG = "#d1242f"
GREY = "#777777"  # as far from white as from the dark themes' black
LISTED = 8  # a sentence names so many things, and counts the rest


class Figure:
    """A figure that a notebook shows as the player, and a page without JavaScript or on paper as the still.

    `picture`: what draws it, `player/<picture>.js`. `caption`: its title. `words`: a text for each step, from 0 on.
    """

    picture: str
    caption: str
    words: list[str]

    def __repr__(self) -> str:
        return "\n".join([self.printed, *self.words])

    @property
    def printed(self) -> str:
        """What stands above the still."""
        return self.caption

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """The player with its data, style, script and still: complete, and the same bytes every time."""
        said = "".join(f"<li>{escape(text)}</li>" for text in self.words)
        data = json.dumps({"picture": self.picture, **self.data()}, separators=(",", ":")).replace("<", "\\u003c")
        styles, scripts = carried("player", self.picture)
        return (
            f'<collective-player role="group" aria-label="{escape(self.caption)}">'
            f"{styles}"
            f"<div class=still><p><strong>{escape(self.printed)}</strong></p>"
            f'<img alt="{escape(self.printed)}" src="{data_address(self.still_svg())}">'
            f"<details><summary>The steps in words</summary><ol start=0>{said}</ol></details></div>"
            f'<script type="application/json">{data}</script></collective-player>'
            f"{scripts}"
        )

    def data(self) -> dict:
        """What the picture shows, as plain data."""
        raise NotImplementedError

    def still_svg(self) -> str:
        """The still as SVG: in line its ink is the page's own, as an image a grey that light and dark pages show.

        An image is what a notebook that is not trusted yet keeps of our HTML; the player sets it in line.
        """
        raise NotImplementedError


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on `colour` (relative luminance, as WCAG defines it)."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return "#000" if luminance > 0.18 else "#fff"


def listed(items: list[str], last: str = " and ") -> str:
    """ "a, b and c", or the first ones "and 8 more"."""
    shown, more = items[:LISTED], len(items) - LISTED
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return last.join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


@cache
def asset(name: str) -> str:
    """One of the player's files, without indentation and whole lines of comment: a page holds it many times."""
    text = files(__package__).joinpath("static", name).read_text(encoding="utf-8")
    return re.sub(r"^\s*(//.*)?\n?", "", text, flags=re.M)


def carried(*names: str, styles: Sequence[str] = ()) -> tuple[str, str]:
    """The elements of style, and those of script, that a figure made of the files of these names carries.

    Each file has an element of its own, so that a page of many figures can do with one copy. `styles`: names of the
    files of style, where they are others.
    """
    style = "".join(f"<style>{asset(f'{name}.css')}</style>" for name in styles or names)
    return style, "".join(f"<script>{asset(f'{name}.js')}</script>" for name in names)


def data_address(svg: str) -> str:
    """The SVG as an address that is its own contents: no file and no host is asked for it."""
    return "data:image/svg+xml," + quote(svg.replace('"', "'"), safe=" ='/:;,()")
