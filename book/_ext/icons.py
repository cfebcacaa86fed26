"""The theme's icons in a font of a few kilobytes instead of a script and fonts of several hundred.

The build subsets the theme's icon font to the glyphs listed here, and icons.css declares the subset under the same
family. A glyph that isn't listed still shows, because the browser then loads the theme's full font.
"""

from pathlib import Path

import pydata_sphinx_theme
from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

THEME = Path(pydata_sphinx_theme.__file__).parent / "theme" / "pydata_sphinx_theme" / "static"
FONT = THEME / "vendor" / "fontawesome" / "webfonts" / "fa-solid-900.ttf"

BUTTONS = "bars list download expand code file file-pdf magnifying-glass xmark arrow-up"
MODES = "sun moon circle-half-stroke"
ARROWS = "angle-left angle-right angle-down chevron-down chevron-right chevron-up arrow-up-right-from-square"
ADMONITIONS = "bell circle-check circle-exclamation circle-info circle-xmark triangle-exclamation"
HINTS = "lightbulb pencil share rocket"
GLYPHS = f"{BUTTONS} {MODES} {ARROWS} {ADMONITIONS} {HINTS}".split()

STYLE = """@font-face {{
  font-family: "Font Awesome 6 Free";
  font-weight: 900;
  font-display: block;
  src: url(icons.woff) format("woff");
  unicode-range: {codes};
}}
"""


def write_icons(app):
    """Write icons.woff and icons.css into the built site."""
    if app.builder.format != "html":
        return
    static = Path(app.outdir, "_static")
    static.mkdir(parents=True, exist_ok=True)
    font = TTFont(FONT, recalcTimestamp=False)
    subsetter = Subsetter(Options(flavor="woff"))
    subsetter.populate(glyphs=GLYPHS)
    subsetter.subset(font)
    font.flavor = "woff"
    font.save(static / "icons.woff")
    codes = ", ".join(f"U+{code:X}" for code in sorted(font.getBestCmap()))
    (static / "icons.css").write_text(STYLE.format(codes=codes))


def setup(app):
    """Add the small icon font to every page, after the theme's own stylesheets."""
    app.connect("builder-inited", write_icons)
    app.add_css_file("icons.css", priority=800)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
