"""What the tests see of right and of wrong answers, and the table of it in book/data/mutants.json.

A test compares what it sees with the table, so that the page that shows it cannot drift. `tools/mutants.py` sets
RECORD_MUTANTS to a folder: then the tests run every check that an answer reaches, and write down what they see.
"""

import functools
import json
import os
import re
import textwrap
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "book" / "data" / "mutants.json"
LONGEST = 160  # characters of what a student is told


def recording():
    """The folder to write to, or None: then what is seen is compared with the table."""
    return os.environ.get("RECORD_MUTANTS")


@functools.cache
def table():
    """{exercise: {"points": {check: points}, "wrong": {name: row}, "right": {name: row}}}."""
    return json.loads(TABLE.read_text())


def wrong(exercise, mutant, marked, first, points):
    """Take down what a `Mutant` lost. `marked`: {check: (points, words)} of what ran; `first`: whose words."""
    lost = {check: points[check] - got for check, (got, _) in marked.items() if got < points[check]}
    own = {check: lost.pop(check) for check in [*lost] if check in mutant.refuse}
    told = shortened(marked[first][1], mutant.says)
    row = {
        "origin": mutant.origin,
        "lost": own,
        "carried": lost,
        "told": told,
    }  # carried: by parts that are built on it
    _keep(exercise, "wrong", mutant.slip, row, marked, points)


def right(exercise, name, marked, points):
    """Take down that a right answer got everything."""
    _keep(exercise, "right", name, {"checks": sorted(marked)}, marked, points)


def shortened(words, says):
    """What a student is told, in one line; if it is long, its beginning and the clause that names the slip, `says`."""
    line, says = " ".join(words.split()), " ".join(says.split())
    begin = line.index(says)
    if begin + len(says) <= LONGEST:
        return textwrap.shorten(line, LONGEST, placeholder=" …")
    clause = max(line.rfind(mark, 0, begin) + len(mark) for mark in (". ", ": ", "; ", ", "))
    rest = textwrap.shorten(line[clause:], max(LONGEST * 2 // 3, begin + len(says) - clause), placeholder=" …")
    return f"{textwrap.shorten(line, LONGEST // 3, placeholder=' …')} {rest}"


def _keep(exercise, kind, name, row, marked, points):
    if folder := recording():
        entry = {"points": points, "kind": kind, "name": name, "row": row}
        with open(Path(folder) / f"{exercise}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        return
    renew = "run `tools/mutants.py` if this is as it should be"
    known = table().get(exercise, {})
    assert known.get("points") == points, f"the points of {exercise} are not the table's: {renew}"
    assert name in known[kind], f"{exercise}, {name!r} is not in the table: {renew}"
    assert _of(row, marked) == _of(known[kind][name], marked), f"{exercise}, {name!r} is not as in the table: {renew}"


def _of(row, marked):
    """A row without the checks that did not run, and without what varies in its words: numbers, what other ranks do."""
    row = dict(row)
    if "lost" in row:
        for kind in ("lost", "carried"):
            row[kind] = {check: round(lost, 6) for check, lost in row[kind].items() if check in marked}
        told = re.sub(r"\d[\d,.]*", "#", row["told"])
        # If a rank failed, what follows is what the others were at: that depends on the load.
        row["told"] = re.sub(r"(ranks, rank # failed) .*", r"\1", told)
    return row
