"""Every claim of the source documents has one cell that says what the ledger says, and a row in the appendix."""

import re
from pathlib import Path

import pytest
import yaml
from claims import FOUND, badge, claims_in

from collectives.chapter import VERDICTS

BOOK = Path(__file__).resolve().parents[2] / "book"

LEDGER = yaml.safe_load((BOOK / "claims.yml").read_text())
SHOWN = [(path.stem, claim) for path in sorted(BOOK.glob("*.ipynb")) for claim in claims_in(path)]


def test_the_ledger_has_every_row_of_the_collectives_of_sharding_and_of_model_parallelism():
    """23, 15 and 15 claims were found in the source documents."""
    rows = {"C": 23, "D": 15, "M": 15}
    assert list(LEDGER) == [f"{letter}{number:02}" for letter, most in rows.items() for number in range(1, most + 1)]


def test_a_claim_is_checked_in_one_place_and_none_is_missing_in_the_ledger():
    found = [claim["id"] for _, claim in SHOWN]
    assert sorted(found) == sorted(set(found))
    assert set(found) <= set(LEDGER)


@pytest.mark.parametrize("row", LEDGER)
def test_the_cell_of_a_row_says_what_the_row_says(row):
    assert [
        {"says": claim["says"], "sources": claim["sources"], "verdict": claim["verdict"], "page": page}
        for page, claim in SHOWN
        if claim["id"] == row
    ] == [LEDGER[row]]


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        ("true", "Checked, and it is true: exactly 4"),
        ("false", "Checked, and it is false: it has a third"),
        ("depends", "Checked, and it depends: on what a rank keeps"),
    ],
)
def test_a_card_reads_as_a_sentence_whatever_the_verdict(verdict, sentence):
    evidence = sentence.partition(": ")[2]
    assert sentence in badge({"id": "C99", "says": "", "sources": "book", "verdict": verdict, "evidence": evidence})


def test_a_card_has_words_for_every_verdict():
    assert set(FOUND) == set(VERDICTS)


def test_every_row_stands_in_the_appendix_with_a_link_to_its_cell(built_book):
    page = (built_book / "claims.html").read_text()
    linked = re.findall(r'<tr id="row-\w+" data-verdict="(\w+)"><td><a href="(\w+)\.html#(\w+)">', page)
    assert linked == [(row["verdict"], row["page"], id) for id, row in LEDGER.items()]
