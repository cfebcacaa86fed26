"""Puts each plot into its page as SVG, in the page's letters and ink, so that it is sharp at any size and in the dark.

A notebook shows a plot as an image, which knows nothing of the page: not its fonts, nor whether it is dark.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from collectives.figures.colours import INK

OURS = {  # what a page has in place of what a plot says: its own colours, its own font, and nothing for no turn
    rf"{INK}|#000000": "currentColor",
    r"#ffffff": "var(--pst-color-background)",
    r"font-family: [^;\"]*;? ?": "",
    r' transform="rotate\(-0 [^)]*\)"': "",
}
NUMBER = re.compile(r"\d+\.\d+")
AFTER_SELECTION = 5  # myst-nb's choice among an output's types has priority 4


def short(number: re.Match) -> str:
    """Return a number with at most two decimals: a hundredth of a point is a hundredth of what a screen shows."""
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


class InlinePlots(SphinxPostTransform):
    """Replace each plot's image by the SVG itself."""

    default_priority = AFTER_SELECTION
    formats = ("html",)

    def run(self, **kwargs) -> None:
        """Go through the images that cells made."""
        for number, image in enumerate(list(self.document.findall(nodes.image))):
            file = Path(self.env.srcdir, image["uri"])
            if file.suffix == ".svg" and file.parent.name == "jupyter_execute":
                image.replace_self(nodes.raw("", inline(file.read_text(), image, f"plot{number}-"), format="html"))


def inline(svg: str, image: nodes.image, prefix: str) -> str:
    """Return a plot's SVG as a page holds it: slim, named by the image's text, with ids that begin with `prefix`."""
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0]
    used = {name for pair in re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', svg) for name in pair}
    svg = re.sub(r' id="([^"]*)"', lambda made: f' id="{prefix}{made[1]}"' if made[1] in used else "", svg)
    svg = re.sub(r'url\(#|xlink:href="#', lambda use: use[0].removeprefix("xlink:") + prefix, svg)
    svg = re.sub(r"<[^>]*>", lambda tag: NUMBER.sub(short, tag[0]), svg)  # and not what letters say
    for name, own in OURS.items():
        svg = re.sub(name, own, svg)
    look = f'class="{" ".join(["plot", *image["classes"]])}" role="img" aria-label="{escape(image.get("alt", ""))}"'
    size = f'viewBox="0 0 {width} {height}" style="width:{float(width) / 72:.2f}in"'
    svg = re.sub(r"<svg[^>]*>", f"<svg {look} {size}>", svg, count=1)
    svg = re.sub(r">\s+<", "><", svg)
    return f'<div class="plot-room">{svg.strip()}</div>'


def setup(app):
    """Run before a page is written."""
    app.add_post_transform(InlinePlots)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
