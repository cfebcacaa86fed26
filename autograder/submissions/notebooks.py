"""The cells in a notebook's file, read in the cage: the JSON of any version of the format, and attached pictures."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass
from typing import Any

from ..cage import Failed
from ..wire.protocol import lines_in, storable

MOST_PARTS = 200_000  # lists and objects in a notebook's JSON; these take 40 MB of memory
MOST_CHARACTERS = 1_000_000  # in all its cells together; a long exercise with all answers has 40,000
MOST_LINES = 20_000  # in all its cells together; a browser needs 0.6 s for as many letters from right to left
MOST_CELLS = 1_000
MOST_NAME = 255  # characters in the name of a cell or of an attachment; longer ones are cut
MOST_ATTACHED = 5_000_000  # base64 characters of pictures in one cell
MOST_PICTURES, MOST_IN_CELL = 100, 20  # pictures attached to a notebook's cells, and to one of them
PICTURES = ("image/png", "image/jpeg", "image/gif")


@dataclass
class Cell:
    """A cell as the student handed it in, from any version of the notebook format."""

    kind: str  # "code", "markdown" or "raw"
    source: str
    grade_id: str | None
    id: str | None
    attachments: dict[str, dict[str, str]]


def read(raw: bytes) -> bytes:
    """Return JSON of a notebook's cells and of `notes` on what is odd about its file. Raise Failed if it has none."""
    notes: list[str] = []
    found = {"cells": [asdict(cell) for cell in parsed(raw, notes)], "notes": notes}
    return json.dumps(found, ensure_ascii=False).encode()  # no surrogate is left, because `_text` replaced them


def parsed(raw: bytes, notes: list[str]) -> list[Cell]:
    """Return the cells of a notebook's file, of any version of the format; append to `notes` what is odd about it."""
    if not raw.strip():
        raise Failed("the notebook is empty; was it saved?")
    text = _decoded(raw, notes)
    if text.count("[") + text.count("{") > MOST_PARTS:
        raise Failed(f"the notebook's JSON has more than {MOST_PARTS:,} parts; clear its outputs")
    try:
        document = json.loads(text)
    except RecursionError:
        raise Failed("the notebook's JSON is nested too deeply") from None
    except ValueError as error:
        raise Failed(f"the file is not a notebook: it is not valid JSON ({str(error)[:80]})") from None
    cells = document.get("cells") if isinstance(document, dict) else None
    if cells is None and isinstance(document, dict):  # nbformat 3 and older
        sheets = document.get("worksheets")
        cells = [cell for sheet in _listed(sheets) for cell in _listed(_field(sheet, "cells"))] if sheets else None
    if not isinstance(cells, list):
        raise Failed("the file is JSON, but not a notebook: it has no list of cells")
    if len(cells) > MOST_CELLS:
        raise Failed(
            f"the notebook has {len(cells):,} cells, and the limit is {MOST_CELLS:,}; delete the cells you added"
        )
    pictures = _Pictures()
    read = [_cell(cell, pictures) for cell in cells if isinstance(cell, dict)]
    if sum(len(cell.source) for cell in read) > MOST_CHARACTERS:
        raise Failed(f"the notebook's cells hold more than {MOST_CHARACTERS:,} characters; shorten them")
    if sum(lines_in(cell.source) for cell in read) > MOST_LINES:
        raise Failed(
            f"the notebook's cells hold more than {MOST_LINES:,} lines, or letters written from right to left, which a "
            "page shows as slowly; shorten them"
        )
    if pictures.dropped:
        notes.append(
            f"{pictures.dropped:,} of the attached pictures were left out: a picture is a PNG, JPEG or GIF, and a cell "
            f"may have {MOST_IN_CELL} with {MOST_ATTACHED / 1e6:g} MB in all, a notebook {MOST_PICTURES}."
        )
    return read


def _decoded(raw: bytes, notes: list[str]) -> str:
    encoding: str = json.detect_encoding(raw)  # UTF-8, 16 or 32, with or without a byte order mark
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        encoding, text = "latin-1", raw.decode("latin-1")
    if encoding not in ("utf-8", "utf-8-sig"):
        notes.append(f"The file was written as {encoding.upper()}; notebooks are UTF-8, so some letters may be wrong.")
    return text


def _cell(cell: dict, pictures: _Pictures) -> Cell:
    kind = cell.get("cell_type")
    source = _text(cell.get("source", cell.get("input", "")))
    if kind == "heading":
        kind, source = "markdown", f"# {source}"
    metadata = _field(cell, "metadata")
    return Cell(
        kind if kind in ("code", "markdown") else "raw",
        source,
        _name(_field(_field(metadata, "nbgrader"), "grade_id")),
        _name(cell.get("id")),
        pictures.of(cell.get("attachments")),
    )


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _listed(value: Any) -> list:
    return value if isinstance(value, list) else []


def _name(value: Any) -> str | None:
    return _text(value)[:MOST_NAME] if isinstance(value, str) else None


def _text(value: Any) -> str:
    lines = value if isinstance(value, list) else [value]
    text = "".join(line for line in lines if isinstance(line, str))
    return storable(text)


class _Pictures:
    """The pictures attached to a notebook's cells. `left`: how many more it may have; `dropped`: how many were not."""

    def __init__(self) -> None:
        self.left, self.dropped = MOST_PICTURES, 0

    def of(self, attached: Any) -> dict[str, dict[str, str]]:
        """Return a cell's pictures, without anything that is empty, is no picture or exceeds a limit."""
        kept: dict[str, dict[str, str]] = {}
        left, characters = min(self.left, MOST_IN_CELL), MOST_ATTACHED
        for name, versions in attached.items() if isinstance(attached, dict) else []:
            for kind, data in versions.items() if isinstance(versions, dict) else []:
                data = _text(data) if left else ""
                if kind in PICTURES and data.strip() and len(data) <= characters and is_base64(data):
                    kept.setdefault(_text(name)[:MOST_NAME], {})[kind] = data
                    characters -= len(data)
                    left -= 1
                    self.left -= 1
                else:
                    self.dropped += 1
        return kept


def is_base64(data: str) -> bool:
    """Return whether a text is valid base64."""
    try:
        base64.b64decode(data.replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
