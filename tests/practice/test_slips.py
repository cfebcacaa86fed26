"""A check that asks for numbers knows the usual slips, and names each of them to the answer that makes it."""

import importlib

import pytest
from answers import graded

from collectives.practice import checks

# Of the exercises with such checks: the parts in which they are.
OF_NUMBERS = {
    "03_ring": "b",
    "04_all_reduce": "a",
    "05_crossover": "a",
    "07_topology": "c",
    "10_fsdp": "b",
    "11_fewer_bits": "d",
    "12_activations": "abc",
    "14_context_parallel": "def",
    "16_pipeline": "a",
    "17_mesh": "c",
    "19_failures": "ab",
    "20_plan": "abc",
}


@pytest.mark.slow
@pytest.mark.parametrize("exercise", OF_NUMBERS)
def test_each_slip_that_a_check_knows_is_named_to_the_answer_that_makes_it(exercise, monkeypatch):
    asked = asked_of(exercise, monkeypatch)
    known = {slip for rows, _ in asked for slip in rows[0].slips}
    named = {slip for slip in known for rows, words in asked if said_of(slip, rows, words).endswith(f": {slip}")}
    assert known and named == known


def asked_of(exercise, monkeypatch):
    """What the exercise's checks ask the solution: (rows, words), as for `check_rows`."""
    asked = []
    module = importlib.import_module(f"collectives.practice.ch{exercise}")
    with monkeypatch.context() as patch:
        for each in (module, checks):
            patch.setattr(each, "check_rows", lambda rows, words: asked.append((rows, words)), raising=False)
        graded(exercise, {}, OF_NUMBERS[exercise], looks=False)
    return asked


def said_of(slip, rows, words):
    """What a check says of the answer that returns, in each of its cases, what this slip leads to."""
    if slip in rows[0].slips:
        try:
            checks.check_rows([row._replace(got=row.slips[slip]) for row in rows], words)
        except checks.NotYet as refusal:
            return str(refusal)
    return ""
