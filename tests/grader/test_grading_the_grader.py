"""Every exercise is tried with enough wrong and right answers, and the page for instructors shows all of them."""

import html
import importlib
import re

import observed
import pytest
import yaml
from answers import points_of

from autograder import release

NAMES = release.names()
CLAIMS = yaml.safe_load((observed.TABLE.parents[1] / "claims.yml").read_text(encoding="utf-8"))


def tried(exercise):
    """The wrong answers in the tests of an exercise, and the right ones by their names."""
    tests = importlib.import_module(f"test_ch{exercise}")
    return tests.MUTANTS, tests.RIGHT


@pytest.mark.parametrize("exercise", NAMES)
def test_an_exercise_is_tried_with_enough_answers_and_the_table_has_just_those(exercise):
    wrong, right = tried(exercise)
    assert len(wrong) >= 12
    assert len(right) >= 5
    assert [mutant.slip for mutant in wrong] == [*observed.table()[exercise]["wrong"]]
    assert [*right] == [*observed.table()[exercise]["right"]]


@pytest.mark.parametrize("exercise", NAMES)
def test_every_check_refuses_some_wrong_answer_and_every_wrong_answer_loses_points(exercise):
    rows = observed.table()[exercise]["wrong"].values()
    worth = {check for check, points in points_of(exercise).items() if points}
    assert {check for row in rows for check in row["lost"] | row["carried"]} == worth
    assert all(row["lost"] and row["told"] for row in rows)


@pytest.mark.parametrize("exercise", NAMES)
def test_every_check_is_passed_by_an_answer_that_is_not_the_solution(exercise):
    worth = {check for check, points in points_of(exercise).items() if points}
    assert worth <= {check for row in observed.table()[exercise]["right"].values() for check in row["checks"]}


def test_what_a_wrong_answer_comes_from_is_a_claim_a_chapter_or_a_usual_slip():
    origins = {row["origin"] for rows in observed.table().values() for row in rows["wrong"].values()}
    chapters = {f"page {name[:2]}" for name in NAMES}
    assert origins <= CLAIMS.keys() | chapters | {"usual slip"}


def test_the_page_shows_every_answer(built_book):
    page = html.unescape((built_book / "grading_the_grader.html").read_text(encoding="utf-8"))
    shown = re.findall(r"<tr><td [^>]*>(.*?)</td><td [^>]*>(?:<a [^>]*>)?([^<]+)", page)
    assert [name for name, _ in shown] == [name for rows in observed.table().values() for name in rows["wrong"]]
    assert all(f"<li>{name}: " in page for rows in observed.table().values() for name in rows["right"])
