"""CSV files of spreadsheets and learning platforms: `rows` reads one, `text` writes one that no spreadsheet runs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")  # how a formula begins in a spreadsheet
# And within a cell, where a spreadsheet that separates cells otherwise would begin another one.
# An apostrophe after one of these is such a guard already, and so is a second one.
INNER = re.compile(r"""([;,|"\t\r\n]\s*|(?<=[^;,|"'\s])'\s*)(?=[=+\-@＝＋－＠])""")
csv.field_size_limit(2**31 - 1)  # Moodle's worksheet has a student's whole text in a cell
NUMBER = re.compile(r"-?\d+([.,]\d+)?%?")


def rows(path: Path) -> list[list[str]]:
    """Return the rows of a CSV file that aren't blank, all as long as the first one; its names without spaces around.

    Commas or semicolons separate the cells. Raises OSError or UnicodeDecodeError if the file can't be read.
    """
    content = path.read_text(encoding="utf-8-sig")
    head = content.partition("\n")[0]
    found = list(csv.reader(io.StringIO(content), delimiter=";" if head.count(";") > head.count(",") else ","))
    found = [row for row in found if any(cell.strip() for cell in row)]
    names = [name.strip() for name in found[0]] if found else []
    width = len(names)
    return [names, *((row + [""] * width)[:width] for row in found[1:])] if found else []


def text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV, every cell harmless, in characters that UTF-8 can hold."""
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows([[harmless(cell) for cell in row] for row in rows])
    return made.getvalue()


def harmless(cell: Any) -> str:
    """Return a cell as text, with an apostrophe before whatever a spreadsheet would run as a formula."""
    shown = INNER.sub(r"\1'", str(cell).encode("utf-8", "replace").decode())
    return f"'{shown}" if FORMULA.match(shown) and not NUMBER.fullmatch(shown) else shown
