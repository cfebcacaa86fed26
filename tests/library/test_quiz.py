"""A quick check says at once what an answer stands for, and cannot be asked if its answers cannot be told apart."""

import gzip
import json
import re
from collections import Counter
from html import unescape
from importlib.resources import files
from pathlib import Path

import pytest
from pages import STRICT_HEAD, fits

from collectives import draw
from collectives.algorithms import ring
from collectives.figures.opening import Opening
from collectives.figures.quiz import Question, Quiz

BOOK = Path(__file__).resolve().parents[2] / "book"
CHAPTERS = sorted(path.stem for path in BOOK.glob("[0-9]*.md"))
DATA = re.compile(r'<collective-quiz>.*?<script type="application/json">(.*?)</script>', re.DOTALL)


def chosen(**changes) -> Question:
    parts = {
        "text": "Which sends less?",
        "right": "the ring",
        "because": "Count the bytes.",
        "wrong": {"the tree": "It sends whole buffers.", "the <root>": "It sends to all."},
    }
    return Question(**parts | changes)


def typed(**changes) -> Question:
    parts = {
        "text": "How much?",
        "right": 1750.0,
        "because": "Twice seven eighths.",
        "wrong": {875: "That is one half."},
        "unit": "MB",
    }
    return Question(**parts | changes)


# --- in Python --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: chosen(text=" "), "needs a text"),
        (lambda: chosen(wrong={}), "at least one wrong answer"),
        (lambda: chosen(wrong={"the ring": "?"}), "the right answer 'the ring' is also a wrong one"),
        (lambda: chosen(because=""), "the answer 'the ring' has no explanation"),
        (lambda: chosen(wrong={"the tree": ""}), "the answer 'the tree' has no explanation"),
        (lambda: chosen(wrong={7: "?"}), "all texts or all numbers"),
        (lambda: chosen(unit="MB"), "only numbers take a unit"),
        (lambda: typed(wrong={float("nan"): "?"}), "must be a finite number"),
        (lambda: typed(wrong={1740: "?"}), "the answers 1740 and 1750 are too close"),
        (lambda: Quiz(), "at least one question"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(make, fault):
    with pytest.raises(ValueError, match=re.escape(fault)):
        make()


def test_without_a_script_the_answer_is_folded_and_nothing_is_markup():
    html = Quiz(chosen(), typed()).html()
    plain = html.split("<script")[0]
    assert "the &lt;root&gt;" in plain and "<root>" not in html
    assert plain.count("<details><summary>Answer</summary>") == 2
    assert "How much? (a number, in MB)" in plain and "<strong>1,750 MB.</strong> Twice seven eighths." in plain
    assert "Count the bytes" not in plain.split("<details>")[0], "the answer is not given away"


def test_as_text_it_asks_and_does_not_answer():
    text = repr(Quiz(chosen(), typed()))
    assert [line for line in text.splitlines() if line[0].isdigit()] == ["1. Which sends less?", "2. How much? (in MB)"]
    assert text.count("   - ") == 3 and "1750" not in text


def test_it_is_the_same_bytes_every_time_and_small():
    assert Quiz(chosen(), typed()).html() == Quiz(chosen(), typed()).html()
    script = files("collectives.figures").joinpath("static", "quiz.js").read_bytes()
    assert len(gzip.compress(script)) < 3_000


# --- in the browser ---------------------------------------------------------------------------------------------


@pytest.fixture
def page_head() -> str:
    return STRICT_HEAD


def test_every_answer_is_answered_from_the_keyboard(open_page):
    """Each option, by the space bar: pressed alone, marked for good, and its own words are announced."""
    question = chosen()
    page = open_page(Quiz(question))
    buttons = page.locator(".live button")
    assert buttons.all_inner_texts() == question.options
    for option in question.options:
        button = buttons.get_by_text(option, exact=True)
        button.focus()
        page.keyboard.press(" ")
        verdict = "right" if option == question.right else "wrong"
        said = {"right": "Right. ", "wrong": "Not quite. "}[verdict] + question.answers[option]
        assert page.get_by_role("status").text_content() == said
        assert button.get_attribute("data-verdict") == verdict
        assert page.locator(".live [aria-pressed=true]").all_inner_texts() == [option]
    assert page.locator("button[data-verdict=right]").count() == 1
    assert page.locator(".still").is_hidden()


@pytest.mark.parametrize(
    ("entered", "said"),
    [
        ("1750", "Right. Twice seven eighths."),
        (" 1,760.0 ", "Right. Twice seven eighths."),  # within a hundredth
        ("875", "Not quite. That is one half."),
        ("900", "Not quite. Too small."),
        ("2e3", "Not quite. Too large."),
        ("many", "Not quite. That isn't a number."),
        ("", "Not quite. That isn't a number."),
    ],
)
def test_a_number_is_told_from_those_that_others_take_for_it(open_page, entered, said):
    page = open_page(Quiz(typed()))
    page.get_by_label("number, in MB").fill(entered)
    page.keyboard.press("Enter")
    assert page.get_by_role("status").text_content() == said


def test_the_numbers_of_an_opening_stay_as_ghosts_beside_the_answer(open_page):
    """In the order of their values, the first with its number; the right one appears when the reader has found it."""
    page = open_page(Opening(typed(), draw(ring.all_reduce(4))))
    tries = (900, 40, 12_000, 1750)
    for number in tries:
        page.get_by_label("number, in MB").fill(str(number))
        page.keyboard.press("Enter")
        assert page.locator(".line .found").count() == (number == 1750)
    ghosts = {
        number: mark.bounding_box()["x"] for number, mark in zip(tries, page.locator(".line .ghost").all(), strict=True)
    }
    assert sorted(ghosts, key=ghosts.get) == sorted(tries)
    assert page.locator(".line .found").bounding_box()["x"] == ghosts[1750]
    assert page.locator(".line").inner_text() == "first, 900"
    assert open_page(Quiz(typed())).locator(".line").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_a_thumb(open_page, scheme):
    page = open_page(Quiz(chosen(), typed()), viewport={"width": 340, "height": 700}, color_scheme=scheme)
    assert fits(page)
    assert all(button.bounding_box()["height"] >= 30 for button in page.locator(".live button, .live input").all())


def test_on_paper_and_without_javascript_there_is_the_plain_form(open_page):
    page = open_page(Quiz(chosen()), java_script_enabled=False)
    assert page.locator(".still").is_visible() and page.locator("button").count() == 0
    page = open_page(Quiz(chosen()))
    page.emulate_media(media="print")
    assert page.locator(".still").is_visible() and page.locator(".live").is_hidden()


# --- in the book ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def asked(built_book) -> dict[str, list[dict]]:
    """The questions on each chapter's page, as data."""
    pages = {name: (built_book / f"{name}.html").read_text(encoding="utf-8") for name in CHAPTERS}
    pages = {name: text.partition('id="quick-check"')[2] for name, text in pages.items()}  # not the opening's question
    return {
        name: [each for found in DATA.findall(page) for each in json.loads(unescape(found))]
        for name, page in pages.items()
    }


def test_every_chapter_asks_two_to_four_questions(asked):
    assert {name: len(questions) for name, questions in asked.items() if len(questions) not in (2, 3, 4)} == {}


def test_the_place_of_the_right_answer_tells_nothing(asked):
    """Of three buttons no one is right in most questions."""
    threes = [each["right"] for questions in asked.values() for each in questions if len(each["options"]) == 3]
    places = Counter(threes)
    assert set(places) == {0, 1, 2}
    assert max(places.values()) < len(threes) / 2
