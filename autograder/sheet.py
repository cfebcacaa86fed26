"""CSV files for spreadsheets. `text` writes every one, so that no text in it runs as a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")  # how a formula begins in a spreadsheet
# And within a cell, where a spreadsheet that separates cells otherwise would begin another one.
INNER = re.compile(r"""([;,|"'\t\r\n]\s*)(?=[=+\-@＝＋－＠])""")
NUMBER = re.compile(r"-?\d+([.,]\d+)?%?")


def text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV, every cell harmless, in characters that UTF-8 can hold."""
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows([[harmless(cell) for cell in row] for row in rows])
    return made.getvalue()


def harmless(cell: Any) -> str:
    """Return a cell as text, with an apostrophe before whatever a spreadsheet would run as a formula."""
    shown = INNER.sub(r"\1'", str(cell).encode("utf-8", "replace").decode())
    return f"'{shown}" if FORMULA.match(shown) and not NUMBER.fullmatch(shown) else shown
