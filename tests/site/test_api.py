"""The API reference is built from docstrings, and what it prints is what the library prints."""

import doctest
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "book" / "api.md"
LISTED = set(re.findall(r"```\{api\} (\S+)", PAGE.read_text(encoding="utf-8")))
# What the reference leaves out: a package's face, and what only the course's own pages use.
LEFT_OUT = {"collectives.__init__", "collectives.chapter", "collectives.formula"}


def test_the_grammar_on_the_page_is_what_schedules_print():
    outcome = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert outcome.attempted > 1
    assert outcome.failed == 0


def test_every_module_at_the_root_and_every_algorithm_is_in_the_reference():
    folders = ("collectives", "collectives/algorithms")
    paths = [path for folder in folders for path in (ROOT / folder).glob("*.py") if path.name != "__init__.py"]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    assert modules - LEFT_OUT <= LISTED


def test_the_built_page_shows_signatures_and_docstrings(built_book):
    page = (built_book / "api.html").read_text(encoding="utf-8")
    assert "ring.all_reduce" in page
    assert "contracts.reduce_scatter" in page
    assert page.count("<dt class=") > 100
