"""Every message that a check raises has words that a test expects: an answer provokes it.

A new message without a test fails here. Words that are expected stand in the tests of this folder, in the sample
submissions, or in the table of wrong answers, which the tests compare with what they see.
"""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import observed
import pytest
from answers import SAMPLES, graded, samples_of

from collectives.practice import checks

CHECKS = Path(__file__).parents[2] / "collectives" / "practice"
WORDS, SHORTEST = 3, 9  # what counts as a message's words: so many in a row, or all of a part of so many characters


def runs(text):
    """Every so many words in a row of a text."""
    words = re.findall(r"[\w']+", text)
    return {" ".join(words[at : at + WORDS]) for at in range(len(words) - WORDS + 1)}


def texts(tree):
    """The texts in code: of an f-string its parts, and no docstring."""
    spoken = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken:
            yield node.value


@cache
def expected():
    """What tests expect, {text}: code that they run is left out."""
    quoted = [text for file in Path(__file__).parent.glob("test_*.py") for text in texts(ast.parse(file.read_text()))]
    quoted = [text for text in quoted if "\n    " not in text]
    quoted += [row["told"] for exercise in observed.table().values() for row in exercise["wrong"].values()]
    samples = [sample for file in SAMPLES.glob("*.yml") for sample in samples_of(file.stem).values()]
    quoted += [words for sample in samples for words in sample.words]
    return {re.sub(r"\\(.)", r"\1", text) for text in quoted}


@cache
def expected_runs():
    return set().union(*map(runs, expected()))


def is_expected(parts):
    """Whether a test expects some of a message's words."""
    whole = [part.strip(" :;,.") for part in parts]
    return any(runs(part) & expected_runs() for part in parts) or any(
        part in text for part in whole if len(part) >= SHORTEST for text in expected()
    )


def messages(code):
    """{line: parts of its text} of what code raises; what says nothing of its own is left out."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Raise) and node.exc and (parts := [*texts(node.exc)]) and any(map(runs, parts)):
            yield node.lineno, parts


@pytest.mark.parametrize("file", sorted(CHECKS.glob("*.py")), ids=lambda file: file.stem)
def test_every_message_has_words_that_a_test_expects(file):
    unheard = {line: parts for line, parts in messages(file.read_text(encoding="utf-8")) if not is_expected(parts)}
    assert unheard == {}


def test_a_message_that_no_test_expects_is_found():
    made = " ".join(["nothing", "ever", "says", "exactly", "this"][::-1])
    assert [*messages(f'raise NotYet(f"{{call}} {made}")')] == [(1, [" " + made])]
    assert not is_expected([" " + made])


# Exercises whose checks name what leads to a wrong number, and those checks: letters of parts, or whole grade_ids.
NUMBERS = {
    "03_ring": "b",
    "04_all_reduce": "a",
    "05_crossover": "a",
    "07_topology": "c",
    "10_fsdp": "b",
    "12_activations": ("a2-bytes", "c1-again"),
    "14_context_parallel": ("d1-added",),
    "17_mesh": ("c2-exposed",),
    "19_failures": ("a3-between", "b1-lost"),
    "20_plan": "abc",
}


@pytest.mark.slow
@pytest.mark.parametrize("exercise", NUMBERS)
def test_every_slip_in_a_number_is_named_if_it_explains_all_answers(exercise, monkeypatch):
    """The solution's numbers are replaced by those of each slip in turn, in each of the exercise's checks."""
    asked, named = [], set()
    real = checks.check_rows

    def seen(rows, words):
        asked.append(rows)
        real(rows, words)

    for module in (checks, importlib.import_module(f"collectives.practice.ch{exercise}")):
        if hasattr(module, "check_rows"):
            monkeypatch.setattr(module, "check_rows", seen)
    graded(exercise, {}, NUMBERS[exercise], looks=False)
    for rows in asked:
        for slip in rows[0].slips:
            try:
                real([row._replace(got=row.slips[slip]) for row in rows], lambda row: row.call)
            except checks.NotYet as refusal:  # some slips lead to the right numbers in a part's easy cases
                named |= {slip} if str(refusal).endswith(f": {slip}") else set()
    assert asked
    assert {slip for rows in asked for slip in rows[0].slips} - named == set()
