"""The base of all figures to step through: one piece of HTML with a player, a still picture and a text for each step.

Python writes the data and a text for each step. The player (`static/player.js`) provides the buttons, the keyboard and
the announcements for screen readers. A second script, one for each kind of figure, draws the picture.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from urllib.parse import quote

LISTED = 8  # a sentence names at most 8 things and counts the rest


class Figure:
    """A figure that a notebook shows as a player, and a page without JavaScript or on paper as a still picture.

    `picture`: name of the script that draws it, `static/<picture>.js`. `caption`: its title. `words`: a text for each
    step, starting with step 0.
    """

    picture: str
    caption: str
    words: list[str]

    def __repr__(self) -> str:
        return "\n".join([self.printed, *self.words])

    @property
    def printed(self) -> str:
        """The title above the still."""
        return self.caption

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """Return the player with its data, styles, scripts and still: self-contained, and the same bytes every time."""
        items = "".join(f"<li>{escape(text)}</li>" for text in self.words)
        data = json.dumps(self.packed(), separators=(",", ":")).replace("<", "\\u003c")
        styles, scripts = carried("player", *dict.fromkeys(self.scripts))
        return (
            f'<collective-player role="group" aria-label="{escape(self.caption)}">'
            f"{styles}"
            f"<div class=still><p><strong>{escape(self.printed)}</strong></p>"
            f'<img alt="{escape(self.printed)}" src="{data_address(self.still_svg())}">'
            f"<details><summary>The steps in words</summary><ol start=0>{items}</ol></details></div>"
            f'<script type="application/json">{data}</script></collective-player>'
            f"{scripts}"
        )

    @property
    def scripts(self) -> list[str]:
        """The names of all scripts and style sheets that draw it."""
        return [self.picture]

    def packed(self) -> dict:
        """Return what the player reads: the picture's name and data."""
        return {"picture": self.picture, **self.data()}

    def data(self) -> dict:
        """Return what the picture shows, as plain data."""
        raise NotImplementedError

    def still_svg(self) -> str:
        """Return the still as SVG. Its ink is the page's text colour when inline, and a grey when used as an image.

        An untrusted notebook keeps only the image of our HTML, and the grey is readable on light and dark pages. The
        player replaces the image by inline SVG.
        """
        raise NotImplementedError


def capital(text: str) -> str:
    """Return a text with a capital letter first, and all others as they are."""
    return f"{text[:1].upper()}{text[1:]}"


def listed(items: list[str], last: str = " and ") -> str:
    """Return the items as prose: "a, b and c", or the first `LISTED` items "and 8 more"."""
    shown, more = items[:LISTED], len(items) - LISTED
    if more > 0:
        return f"{', '.join(shown)} and {more} more"
    return last.join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


@cache
def asset(name: str) -> str:
    """Return a file of `static/` without indentation and comment lines, because a page holds many copies of it."""
    text = files(__package__).joinpath("static", name).read_text(encoding="utf-8")
    return re.sub(r"^\s*(//.*)?\n?", "", text, flags=re.M)


def carried(*names: str, styles: Sequence[str] = ()) -> tuple[str, str]:
    """Return the <style> elements and the <script> elements for the static files with these names.

    Each file gets an element of its own, so that a page with many figures can keep one copy. `styles`: names of the
    style sheets, if they differ from `names`.
    """
    style = "".join(f"<style>{asset(f'{name}.css')}</style>" for name in styles or names)
    return style, "".join(f"<script>{asset(f'{name}.js')}</script>" for name in names)


def data_address(svg: str) -> str:
    """Return the SVG as a data URL, so that showing it needs no file and no network."""
    return "data:image/svg+xml," + quote(svg.replace('"', "'"), safe=" ='/:;,()")
