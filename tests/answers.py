"""What the exercises' tests share: answers are run through an exercise's checks, and right ones are made wrong."""

import functools
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

from collectives import practice

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import exercises  # of tools/


@functools.cache
def cells_of(exercise):
    """The cells of an exercise, answers and hidden tests included: read once (0.1 s), and not to be changed."""
    return tuple(exercises.source(exercise).cells)


def verdicts(exercise, answers, parts="abc"):
    """Run the exercise with its hidden tests on `answers` {grade_id: code}, or on its own where there is none.

    Returns {grade_id: None or what the check says}, of the checks in these `parts`: letters or whole grade_ids.
    """
    said, names = {}, {"__name__": "__main__"}
    for cell in cells_of(exercise):
        is_check = cell.metadata.get("nbgrader", {}).get("grade")
        if cell.cell_type != "code" or (is_check and not {cell.id, cell.id[0]} & {*parts}):
            continue
        code = textwrap.dedent(answers.get(cell.id, cell.source))
        try:
            exec(compile(code, cell.id, "exec"), names)
            said[cell.id] = None
        except practice.NotYet as error:
            said[cell.id] = str(error)
        if not is_check:
            assert said.pop(cell.id) is None
    return said


def solution_of(exercise, cell_id):
    """The code of one cell of an exercise, answers and all."""
    (cell,) = [cell for cell in cells_of(exercise) if cell.id == cell_id]
    return cell.source


class Mutant(NamedTuple):
    """A wrong answer: the solution's `cell` with `right` replaced by `wrong`.

    `cell`: a grade_id, or None for whatever solution holds `right`. `refuse`: the checks that must refuse it;
    `says`: words that the first of them must say.
    """

    slip: str
    cell: str | None
    right: str
    wrong: str
    refuse: set[str]
    says: str


def broken(slip, right, wrong, refuse, says):
    """A mutant of whatever solution holds `right`."""
    return Mutant(slip, None, right, wrong, refuse, says)


def with_slip(exercise, mutant, times=-1):
    """The mutant's answer, {grade_id: code}. `times`: how many places are changed; -1 for all."""
    cells = {cell.id: cell.source for cell in cells_of(exercise) if "BEGIN SOLUTION" in cell.source}
    cells = {name: code for name, code in cells.items() if mutant.cell in (None, name)}
    wrong = {name: code.replace(mutant.right, mutant.wrong, times) for name, code in cells.items()}
    changed = {name: code for name, code in wrong.items() if code != cells[name]}
    assert changed, f"{mutant.slip}: {mutant.right!r} stands in no answer"
    return changed


def assert_refused(exercise, mutant, answers, parts=None):
    """Assert that just the checks that ought to refuse `answers`, and that the first says why.

    `parts`: what is run, letters or grade_ids; by default all checks of the parts in which one refuses.
    Returns what they all say, {grade_id: words or None}.
    """
    said = verdicts(exercise, answers, parts or {check[0] for check in mutant.refuse})
    assert {check for check, words in said.items() if words} == mutant.refuse, said
    assert mutant.says in said[min(mutant.refuse)], said[min(mutant.refuse)]
    return said
