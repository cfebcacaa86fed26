"""CSV files for spreadsheets. `text` writes every one, so that no text in it runs as a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")  # how a formula begins in a spreadsheet
NUMBER = re.compile(r"-?\d+([.,]\d+)?%?")


def text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV, every cell harmless, in characters that UTF-8 can hold."""
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows([[harmless(cell) for cell in row] for row in rows])
    return made.getvalue()


def harmless(cell: Any) -> str:
    """Return a cell as text, with a leading apostrophe if a spreadsheet would run it as a formula."""
    shown = str(cell).encode("utf-8", "replace").decode()
    return f"'{shown}" if FORMULA.match(shown) and not NUMBER.fullmatch(shown) else shown
