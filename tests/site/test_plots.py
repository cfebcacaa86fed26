"""A plot is in its page as SVG, in the page's letters and ink."""

import re

import pytest
from docutils import nodes
from plots import inline  # of book/_ext/
from test_site import ROOT, every_chapter

INK = "() => [...document.querySelectorAll('svg.plot text')].map((node) => getComputedStyle(node).fill)"
PLOT = '<svg viewBox="0 0 460.8 230.4"><defs><path id="m1" d="M 0.12345 1"/></defs>{}</svg>'


@every_chapter
def test_each_plot_of_a_notebook_is_drawn_in_its_page(name, built_book):
    notebook = ROOT / "book" / f"{name}.ipynb"
    shown = notebook.read_text().count('"image/svg+xml": [') if notebook.exists() else 0
    page = (built_book / f"{name}.html").read_text()
    drawn = re.findall(r'<svg class="plot[^>]*>.*?</svg>', page, re.DOTALL)
    assert len(drawn) == shown and not re.search(r'<img [^>]*src="_images/[0-9a-f]{20}', page)
    for plot in drawn:
        assert re.search(r'role="img" aria-label="[^"]{40}', plot)
        assert not re.search(r"#444444|#000000|#ffffff|DejaVu|<metadata", plot)
        assert {*re.findall(r'(?:url\(|href=")#([^)"]*)', plot)} == {*re.findall(r' id="([^"]*)"', plot)}
    ids = re.findall(r' id="(plot[^"]*)"', page)
    assert len(ids) == len({*ids})


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_plot_has_the_pages_ink(theme, browser, site):
    page = browser.new_page(color_scheme=theme)
    page.goto(f"{site}/01_messages.html")
    ink = page.evaluate("getComputedStyle(document.querySelector('.bd-article')).color")
    assert page.evaluate(INK).count(ink) > 5
    page.close()


def test_numbers_are_short_where_they_place_and_whole_where_they_are_read():
    image = nodes.image(uri="plot.svg", alt='of "these"', classes=["upright"])
    svg = inline(PLOT.format('<use xlink:href="#m1" x="1.23456"/><text id="t" x="9.87654">0.001</text>'), image, "a-")
    assert '<path id="a-m1" d="M 0.12 1"/>' in svg and '<use href="#a-m1" x="1.23"/><text x="9.88">0.001</text>' in svg
    assert 'class="plot upright" role="img" aria-label="of &quot;these&quot;" viewBox="0 0 460.8 230.4"' in svg
