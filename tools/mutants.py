"""Updates the table of wrong and right answers, book/data/mutants.json, by running the exercises' tests.

    tools/mutants.py            all exercises (minutes: runs every check that an answer reaches)
    tools/mutants.py 03_ring    only these

The tests compare their results with this table, and the page "Grading is itself graded" shows it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fingerprint import ROOT

from autograder import release

TABLE = ROOT / "book" / "data" / "mutants.json"
TESTS = "wrong_answer_is_refused or right_answer_is_accepted"


def main() -> int:
    """Run the tests and write the table; return the exit status."""
    parser = argparse.ArgumentParser(description="Update the table of wrong and right answers.")
    parser.add_argument("names", nargs="*", metavar="exercise", choices=[[], *release.names()])
    names = parser.parse_args().names or release.names()
    with tempfile.TemporaryDirectory() as folder:
        side_by_side = ["-n", "2", "--dist", "loadfile"]  # each exercise in one process, which writes its file alone
        command = [sys.executable, "-m", "pytest", "-q", "-k", TESTS, *side_by_side, *map(tests_of, names)]
        if subprocess.run(command, cwd=ROOT, env=os.environ | {"RECORD_MUTANTS": folder}).returncode:
            print("mutants: table not updated: fix the failing tests first", file=sys.stderr)
            return 1
        table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
        table |= {path.stem: rows_of(path) for path in Path(folder).glob("*.jsonl")}
    table = {name: table[name] for name in release.names() if name in table}
    TABLE.write_text(json.dumps(table, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{TABLE.relative_to(ROOT)}: {sum(len(each['wrong']) for each in table.values())} wrong answers")
    return 0


def tests_of(name: str) -> Path:
    """Return the file with an exercise's tests."""
    return ROOT / "tests" / "practice" / f"test_ch{name}.py"


def rows_of(path: Path) -> dict:
    """Return what the tests recorded of one exercise; raise `ValueError` if two answers have the same name."""
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = {"points": entries[-1]["points"], "wrong": {}, "right": {}}
    for entry in entries:
        if entry["name"] in rows[entry["kind"]]:
            raise ValueError(f"{path.stem} has two answers named {entry['name']!r}: give them different names")
        rows[entry["kind"]][entry["name"]] = entry["row"]
    return rows


if __name__ == "__main__":
    sys.exit(main())
