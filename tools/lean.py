"""Makes the built site light: one stylesheet with only the rules that pages use, and no render-blocking scripts.

The theme and the extensions bring a dozen stylesheets, mostly with rules for features that this book doesn't use, and
a dozen scripts that block rendering. `slim` joins the stylesheets, drops the rules that no page or script refers to
(with PurgeCSS), and defers the scripts. Images load lazily.
"""

import json
import posixpath
import re
import subprocess
from pathlib import Path

from fingerprint import ROOT

PURGECSS = ROOT / "node_modules" / ".bin" / "purgecss"
STYLE = "book.css"
LINK = re.compile(r'[ \t]*<link (?=[^>]*rel="stylesheet")[^>]*href="(?:\./)?_static/([^"?]+)[^"]*"[^>]*>\n?')
SCRIPT = re.compile(r'<script (?=[^>]*src=")(?![^>]*(?:defer|async))')
UNUSED = re.compile(r'[ \t]*<script [^>]*src="_static/design-tabs\.js[^>]*></script>\n?')  # the book has no tabs
MISNAMED = ' aria-label="Toggle hidden content"'  # it hides a fold's own title from screen readers
OPTIONS = re.compile(r'<script src="_static/documentation_options\.js[^>]*></script>')  # scripts in the page need it
IMAGE = re.compile(r'<img (?![^>]*loading=)(?=[^>]*src="(_images/[^"]+)")')
VIEW_BOX = re.compile(r'viewBox="([^"]+)"')
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
IMPORT = re.compile(r'@import\s+(?:url\()?"([^"]+)"\)?;')
URL = re.compile(r"""url\((['"]?)(?!data:|https?:|#)([^'")]+)\1\)""")

# The theme measures whether each code box scrolls, to make it focusable, which forces a layout of the whole page. We
# take a box in a section that isn't laid out yet as scrolling, and measure it when the section is laid out. We measure
# our figures in the same way. And in the contents it marks the last heading that came into the window's upper third:
# after scrolling up, that is the section below, and it sees no jump. We mark the last section that begins above the
# line, whenever one crosses it.
THEME = Path("scripts", "pydata-sphinx-theme.js")
SCROLLS, RESIZED = "e.tabIndex=e.scrollWidth>", 'window.addEventListener("resize",t)'
CAME = "const t=e.filter(e=>e.isIntersecting).pop();if(!t)return;const n=t.target;s(a.get(n))"
BEGINS_ABOVE = "e.parentElement.getBoundingClientRect().top<.3*innerHeight"
PATCHES = {
    '["pre",': '["pre",".plot-room",',
    SCROLLS: SCROLLS.replace("=", "=e.checkVisibility?.({contentVisibilityAuto:true})===false||"),
    RESIZED: f'{RESIZED},document.addEventListener("contentvisibilityautostatechange",t)',
    "rootMargin:`-${e}px 0px -70% 0px`": 'rootMargin:"1000000px 0px -70% 0px"',
    CAME: f"s(a.get([...a.keys()].findLast(e=>{BEGINS_ABOVE})))",
}


def slim(site: Path) -> None:
    """Rewrite the pages of a built site in place."""
    pages = {path: path.read_text() for path in sorted(site.glob("*.html"))}
    sheets = in_order([LINK.findall(text) for text in pages.values()])
    static = site / "_static"
    (static / STYLE).write_text(purged("\n".join(inlined(static, sheet) for sheet in sheets), site))
    patch(static / THEME)
    options = (static / "documentation_options.js").read_text()
    for path, text in pages.items():
        text = LINK.sub(f'    <link rel="stylesheet" href="_static/{STYLE}" />\n', text, count=1)
        text = UNUSED.sub("", LINK.sub(lambda match: match[0] if match[1] == STYLE else "", text))
        text = text.replace(MISNAMED, "")
        text = OPTIONS.sub(lambda _: f"<script>{options}</script>", text)
        text = IMAGE.sub(lambda match: match[0] + when_near(site / match[1]), text)
        path.write_text(SCRIPT.sub("<script defer ", text))


def when_near(image: Path) -> str:
    """Return the attributes that reserve an image's space and load it lazily."""
    return 'width="{}" height="{}" loading="lazy" '.format(*size(image))


def size(image: Path) -> tuple[int, int]:
    """Return an SVG's width and height, in the units of its drawing."""
    _, _, width, height = VIEW_BOX.search(image.read_text())[1].split()
    return int(width), int(height)


def patch(theme: Path) -> None:
    """Patch the theme's script: it forces no layout of sections far from the reader, and marks the one that is read.

    Raises `ValueError` if the script no longer contains the text to patch exactly once.
    """
    text = theme.read_text()
    for theirs, ours in PATCHES.items():
        if ours in text:  # from an earlier build
            continue
        if text.count(theirs) != 1:
            raise ValueError(f"{theme.name} does not contain {theirs!r} exactly once: update PATCHES")
        text = text.replace(theirs, ours)
    theme.write_text(text)


def in_order(lists: list[list[str]]) -> list[str]:
    """Return all names once, in the order that every list keeps. The longest list must contain all names.

    Raises `ValueError` if the lists disagree.
    """
    longest = max(lists, key=len)
    for names in lists:
        if names != [name for name in longest if name in names]:
            raise ValueError(f"these stylesheets have no common order: {names} and {longest}")
    return longest


def inlined(static: Path, sheet: str) -> str:
    """Return a stylesheet with its imports inlined and its URLs relative to the folder `static`."""
    folder = posixpath.dirname(sheet)

    def seen_from_static(match: re.Match) -> str:
        return f"url({posixpath.normpath(posixpath.join(folder, match[2]))})"

    def imported(match: re.Match) -> str:
        return inlined(static, posixpath.normpath(posixpath.join(folder, match[1])))

    text = (static / sheet).read_text().removeprefix('@charset "UTF-8";')
    return IMPORT.sub(imported, URL.sub(seen_from_static, text))


def purged(css: str, site: Path) -> str:
    """Return a stylesheet without the rules whose names are in no page and no script of the site."""
    whole = site / "_static" / "whole.css"
    whole.write_text(css)
    content = [site / "*.html", site / "_static" / "*.js", site / "_static" / "scripts" / "*theme.js"]
    content.append(site / "_static" / "scripts" / "bootstrap.js")
    done = subprocess.run([PURGECSS, "--css", whole, "--content", *content], check=True, capture_output=True, text=True)
    whole.unlink()
    return COMMENT.sub("", json.loads(done.stdout)[0]["css"])
