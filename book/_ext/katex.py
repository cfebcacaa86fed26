"""Math as KaTeX HTML, rendered during the build, so that a reader's browser runs no math script.

One Node process lives as long as the build and answers one formula per line. A formula that KaTeX can't parse gives a
Sphinx warning with its location, so that `-W` fails the build.
"""

import json
import re
import shutil
import subprocess
from functools import cache
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.locale import _
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

HERE = Path(__file__).resolve().parent
DIST = HERE.parents[1] / "node_modules" / "katex" / "dist"
SHORT = 24  # characters of TeX, which fit on a phone's line
SCROLLING = '<span class="katex-display"'  # a wide formula scrolls on a phone, so it must be focusable
STYLESHEET = "katex/katex.min.css"

logger = logging.getLogger(__name__)


class Renderer:
    """A Node process that turns TeX into HTML. It ends when its standard input closes, at the end of the build."""

    def __init__(self):
        if not shutil.which("node") or not DIST.is_dir():
            raise ExtensionError("math needs Node and the npm package katex: run `make env`")
        self.process = subprocess.Popen(
            ["node", HERE / "katex_server.js"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def render(self, tex: str, display: bool) -> dict[str, str]:
        """Return {"html": ...}, or {"error": ...} if KaTeX rejects the formula."""
        print(json.dumps({"tex": tex, "display": display}), file=self.process.stdin, flush=True)
        reply = self.process.stdout.readline()
        if not reply:
            raise ExtensionError(f"the KaTeX process ended while rendering: {tex}")
        return json.loads(reply)


@cache
def renderer() -> Renderer:
    """Return the renderer, which starts Node at the first formula."""
    return Renderer()


class Punctuation(SphinxPostTransform):
    """Keeps a short formula on one line with the punctuation behind it, which else could begin the next line."""

    default_priority = 900  # last: links and pasted numbers are in place
    formats = ("html",)

    def run(self, **kwargs):
        """As `SphinxPostTransform.run`."""
        for formula in list(self.document.findall(nodes.math)):
            after = formula.next_node(siblings=True, descend=False)
            mark = re.match(r"[.,:;?!)]+", after.astext()) if isinstance(after, nodes.Text) else None
            if mark and len(formula.astext()) <= SHORT:
                after.parent.replace(after, nodes.Text(after.astext()[mark.end() :]))
                together = nodes.inline(classes=["unbroken"])
                formula.replace_self(together)
                together += [formula, nodes.Text(mark.group())]


def to_html(node: nodes.Node, tex: str, display: bool) -> str:
    """Render one formula. If KaTeX rejects it, warn and return the source."""
    reply = renderer().render(tex, display)
    if "error" in reply:
        logger.warning("%s, in formula: %s", reply["error"], tex, location=node, type="katex")
    return reply.get("html", escape(tex))


def visit_inline(translator, node):
    """Write inline math."""
    html = to_html(node, node.astext(), display=False)
    translator.body.append(translator.starttag(node, "span", "", CLASS="math notranslate") + html + "</span>")
    raise nodes.SkipNode


def visit_display(translator, node):
    """Write display math, with a number and a permalink if it is labelled."""
    translator.body.append(translator.starttag(node, "div", CLASS="math notranslate"))
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, _("Link to this equation"))
        translator.body.append("</span>")
    html = to_html(node, display_tex(node), display=True)
    translator.body.append(html.replace(SCROLLING, f'{SCROLLING} tabindex="0"', 1) + "</div>\n")
    raise nodes.SkipNode


def display_tex(node) -> str:
    """Return a display formula's TeX, in an environment for several lines if it has bare double backslashes."""
    tex = node.astext().strip()
    if r"\\" not in tex or r"\begin" in tex:
        return tex
    environment = "aligned" if "&" in tex else "gathered"
    return rf"\begin{{{environment}}}{tex}\end{{{environment}}}"


def copy_assets(app):
    """Copy KaTeX's stylesheet and its WOFF2 fonts, which every current browser reads."""
    if app.builder.format != "html":
        return
    target = Path(app.outdir, "_static", "katex")
    (target / "fonts").mkdir(parents=True, exist_ok=True)
    for font in sorted((DIST / "fonts").glob("*.woff2")):
        shutil.copy(font, target / "fonts")
    shutil.copy(DIST / "katex.min.css", target)


def link_stylesheet(app, pagename, templatename, context, doctree):
    """Load the stylesheet only on pages that have math."""
    if app.env.get_domain("math").has_equations(pagename):
        app.add_css_file(STYLESHEET)


def setup(app):
    """Register KaTeX as the renderer that `html_math_renderer: katex` names."""
    app.add_html_math_renderer("katex", (visit_inline, None), (visit_display, None))
    app.add_post_transform(Punctuation)
    app.connect("builder-inited", copy_assets)
    app.connect("html-page-context", link_stylesheet)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
