"""Every page of the built book, opened in a real browser: on a laptop in the light, and on a phone in the dark."""

import re
from functools import cache
from pathlib import Path

import audit  # of tools/
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
TOC = yaml.safe_load((BOOK / "_toc.yml").read_text())
CHAPTERS = [TOC["root"], *(entry["file"] for part in TOC["parts"] for entry in part["chapters"])]
PAGES = [*CHAPTERS, "search"]
SCREENS = {"phone": {"width": 390, "height": 844}, "laptop": {"width": 1280, "height": 800}}
MODES = {"phone": "dark", "laptop": "light"}  # `make audit` takes both on both

CODE_IN_SOURCE = re.compile(r"^```(?!\{math\}).*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
MATH_IN_SOURCE = re.compile(r"\$[^$\n]+\$|\$\$|\{math\}|\\begin\{")
RAW_MATH = re.compile(r"\$\w{1,3}\$|\$[^$\n]*[\\^_{][^$\n]*\$|\\\(|\\\[")

every_page = pytest.mark.parametrize("name", PAGES)
every_chapter = pytest.mark.parametrize("name", CHAPTERS)
both_screens = pytest.mark.parametrize("screen", SCREENS)

# What the tests ask of a page, gathered in one visit.
LOOK = """async () => {
    await document.fonts.ready;
    const root = document.documentElement;
    const prose = document.querySelector("main").cloneNode(true);
    prose.querySelectorAll("pre, code, script, .katex").forEach((node) => node.remove());
    const source = [...document.querySelectorAll("div.cell_input pre")];
    const outputs = document.querySelectorAll("div.cell_output .text_html:not(:has(table.dataframe))");
    return {
        title: document.title.trim(),
        headings: [...document.querySelectorAll("h1")].filter((node) => node.checkVisibility()).length,
        unnamed: [...document.querySelectorAll("article th")].filter((cell) => !cell.textContent.trim()).length,
        theme: root.dataset.theme,
        overflow: root.scrollWidth - root.clientWidth,
        prose: prose.textContent,
        formulas: document.querySelectorAll(".katex").length,
        images: [...document.querySelectorAll("main img:not([src^='data:'])")].map((node) => node.alt),
        backgrounds: [...outputs].map((node) => getComputedStyle(node).backgroundColor),
        scrolling: source.filter((node) => !node.closest("details") && node.scrollWidth > node.clientWidth)
            .map((node) => node.textContent),
        fetched: performance.getEntriesByType("resource").map((entry) => entry.name),
    };
}"""


@pytest.fixture(scope="module")
def look(browser, site):
    """Return a function that opens a page and tells what is seen there, and what went wrong ("faults")."""

    @cache
    def visited(name, screen):  # once, however it is asked for
        context = browser.new_context(viewport=SCREENS[screen], color_scheme=MODES[screen])
        page = context.new_page()
        faults = faults_of(page, site)
        page.goto(f"{site}/{name}.html")
        seen = page.evaluate(LOOK) | {"weight": audit.weight(page)}
        context.close()
        return seen | {"faults": faults}

    return lambda name, screen="laptop": visited(name, screen)


def faults_of(page, site):
    """Return a list that fills with whatever goes wrong on a page while it is open."""
    faults = []

    def note(fault, wrong=True):
        if wrong:
            faults.append(fault)

    page.on("console", lambda message: note(f"console: {message.text}", message.type == "error"))
    page.on("pageerror", lambda error: note(f"script: {error}"))
    page.on("requestfailed", lambda request: note(f"failed: {request.url}"))
    page.on("response", lambda reply: note(f"{reply.status}: {reply.url}", reply.status >= 400))
    page.on("request", lambda request: note(f"outside: {request.url}", not is_local(request.url, site)))
    return faults


def is_local(url, site):
    """Tell whether a request stays on the machine that serves the book."""
    return url.startswith((site, "data:", "blob:"))


@every_page
@both_screens
def test_a_page_loads_without_error_and_without_another_host(look, name, screen):
    """No console error, no failed request, nothing from elsewhere, in the reader's own mode."""
    seen = look(name, screen)
    assert seen["faults"] == []
    assert seen["theme"] == MODES[screen]


@every_page
def test_a_page_fits_a_phone(look, name):
    """Wide tables, code and formulas scroll inside their own box: the page itself never scrolls sideways."""
    assert look(name, "phone")["overflow"] <= 0


@every_page
def test_a_page_is_light_and_its_code_of_88_columns_fits_a_laptop(look, name):
    """What it loads before images, and its figures' own script; and no visible cell scrolls on 1280 pixels."""
    seen = look(name)
    assert audit.too_heavy(name, *seen["weight"]) == []
    assert seen["scrolling"] == []


@every_page
@both_screens
def test_a_page_has_a_title_and_one_heading(look, name, screen):
    """A reader's tab and a screen reader both learn where they are."""
    seen = look(name, screen)
    assert seen["title"]
    assert seen["headings"] == 1


@every_page
def test_every_column_of_a_table_has_a_name(look, name):
    assert look(name)["unnamed"] == 0


@every_chapter
def test_math_is_rendered(look, name):
    """Every formula of the source is KaTeX on the page, and none is left as it was typed."""
    source = CODE_IN_SOURCE.sub("", (BOOK / f"{name}.md").read_text())
    seen = look(name)
    assert RAW_MATH.findall(seen["prose"]) == []
    assert seen["formulas"] > 0 or not MATH_IN_SOURCE.search(source)


@every_chapter
def test_a_figure_keeps_the_page_behind_it_in_dark_mode(look, name):
    """HTML outputs are transparent where the theme would paint them light."""
    assert set(look(name, "phone")["backgrounds"]) <= {"rgba(0, 0, 0, 0)"}


@every_chapter
def test_a_plot_says_what_is_to_be_seen(look, name):
    """In words; without them its file's name stands there. A picture beside a chapter's name is an ornament."""
    assert [text for text in look(name)["images"] if text and len(text.split()) < 10] == []


def test_code_that_scrolls_is_reached_by_keyboard_wherever_it_is(browser, site):
    """And code that does not is passed over, once the section that it is in has been laid out."""
    page = browser.new_page(viewport=SCREENS["phone"])
    page.goto(f"{site}/02_tree.html")
    for section in page.locator("article > section > section").all():
        section.evaluate("(section) => section.scrollIntoView()")
        page.wait_for_function(
            "(section) => [...section.querySelectorAll('pre')].every((box) => "
            "(box.tabIndex === 0) === (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight))",
            arg=section.element_handle(),
        )
    page.close()


@every_page
def test_icons_come_from_the_small_font(look, name):
    """An icon missing from book/_ext/icons.py would still show, at the price of the theme's full font."""
    assert [url for url in look(name)["fetched"] if "fontawesome" in url] == []
