"""The Lab in the built book: chapters lead to it, with their figures and their puzzles, and it asks no other host."""

import re

import pytest

CHAPTERS = "01_messages", "02_tree", "03_ring", "04_all_reduce", "05_crossover", "06_all_to_all", "07_topology"
LAB = "document.querySelector('collective-lab')?"  # absent while the page is on its way


@pytest.fixture
def page(browser, site):
    """A page of the built book's browser, which may ask only the site."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened, asked = context.new_page(), []
    opened.on("request", lambda request: asked.append(request.url))
    yield opened
    assert all(url.startswith((site, "data:", "blob:")) for url in asked)
    context.close()


def test_a_figure_of_a_chapter_opens_in_the_lab_by_one_click(page, site):
    page.goto(f"{site}/03_ring.html")
    page.get_by_role("link", name="Open in the Lab").first.click()
    page.wait_for_url(re.compile("lab.html#v=1&ranks="))
    page.wait_for_function(f"{LAB}.schedule")
    assert page.locator(".verdict .head").inner_text().startswith("Proved: ")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_of_part_one_ends_with_its_puzzle(page, site, chapter):
    page.goto(f"{site}/{chapter}.html")
    link = page.locator("article a[href*='lab.html#v=1&puzzle=']").first
    title = link.inner_text().strip("“”")
    link.click()
    page.wait_for_function(f"{LAB}.schedule")
    assert page.get_by_label("Puzzle", exact=True).locator("option:checked").inner_text().endswith(title)


def test_a_solved_puzzle_leads_to_the_chapter_that_explains_it(page, site):
    page.goto(f"{site}/lab.html#v=1&puzzle=broadcast-4&steps=0:0~1;0:0~2,0:1~3")
    page.get_by_role("link", name="Chapter 2 explains it.").click()
    page.wait_for_url(f"{site}/02_tree.html")
