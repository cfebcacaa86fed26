"""What the exercises' tests share: answers are run through an exercise's checks, and right ones are made wrong."""

import ast
import functools
import random
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import observed
import yaml

from autograder import release
from collectives.practice import checks

SAMPLES = Path(__file__).parent / "submissions"


@functools.cache
def cells_of(exercise):
    """The cells of an exercise, answers and hidden tests included: read once (0.1 s), and not to be changed."""
    return tuple(release.source(exercise).cells)


@functools.cache
def points_of(exercise):
    """{grade_id: points} of the checks of an exercise, in their order; what a person reads is left out."""
    marked = [cell for cell in cells_of(exercise) if cell.cell_type == "code" and is_check(cell)]
    return {cell.id: cell.metadata.nbgrader.points for cell in marked}


def is_check(cell):
    """Tell whether a cell is worth points."""
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))


def _is_look(cell):
    """Whether learners look at what they have in this cell, and nothing after it needs it."""
    return "nbgrader" not in cell.metadata or cell.id.endswith(("-look", "-compare"))


def graded(exercise, answers, parts="abcde", looks=True):
    """Run the exercise with its hidden tests on `answers` {grade_id: code}, or on its own where there is none.

    Returns {grade_id: (points, what the check says or None)}, of the checks in these `parts`: letters or whole
    grade_ids. Points count as nbgrader counts them: all of them, none if the check refuses, or the number that stands
    in its last line. `looks`: whether cells in which learners look at what they have run, too: nbgrader's and others.
    """
    random.seed(exercise)  # as the judge does: what a check asks, and what it says, depends on the answers alone
    said, names = {}, {"__name__": "__main__"}
    for cell in cells_of(exercise):
        settings = cell.metadata.get("nbgrader", {})
        skipped = not {cell.id, cell.id[0]} & {*parts} if is_check(cell) else not looks and _is_look(cell)
        if cell.cell_type != "code" or skipped:
            continue
        code = ast.parse(textwrap.dedent(answers.get(cell.id, cell.source)), cell.id)
        last = code.body[-1] if code.body else None
        number = code.body.pop().value if is_check(cell) and _is_name(last) else None
        try:
            exec(compile(code, cell.id, "exec"), names)
            said[cell.id] = names[number.id] if number else settings.get("points"), None
        except checks.NotYet as error:
            said[cell.id] = 0, str(error)
        if not is_check(cell):
            assert said.pop(cell.id)[1] is None
    return said


def _is_name(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Name)


def verdicts(exercise, answers, parts="abc"):
    """Like `graded`, but only {grade_id: None or what the check says}."""
    return {check: words for check, (_, words) in graded(exercise, answers, parts).items()}


def solution_of(exercise, cell_id):
    """The code of one cell of an exercise, answers and all."""
    (cell,) = [cell for cell in cells_of(exercise) if cell.id == cell_id]
    return cell.source


@functools.cache
def solutions_of(exercise):
    """The solution's answers {grade_id: code, or text}, without the marks around them: read once, and not changed."""
    marks = re.compile(r"^ *### (BEGIN|END) SOLUTION\n?", re.MULTILINE)
    marked = [cell for cell in cells_of(exercise) if marks.search(cell.source)]
    return {cell.id: marks.sub("", cell.source) for cell in marked}


class Mutant(NamedTuple):
    """A wrong answer: the solution's `cell` with `right` replaced by `wrong`.

    `cell`: a grade_id, or None for whatever solution holds `right`. `refuse`: the checks that must refuse it;
    `says`: words that the first of them must say. `origin`: the row of claims.yml or the page that it comes from.
    `perhaps`: checks that refuse it or not, depending on which rank is faster; no test runs them.
    """

    slip: str
    cell: str | None
    right: str
    wrong: str
    refuse: set[str]
    says: str
    origin: str = "usual slip"
    perhaps: frozenset[str] = frozenset()


def broken(slip, right, wrong, refuse, says, origin="usual slip"):
    """A mutant of whatever solution holds `right`."""
    return Mutant(slip, None, right, wrong, refuse, says, origin)


def written(slip, cell, code, refuse, says, origin="usual slip"):
    """A wrong answer that is no mutant of the solution: the whole code of a cell."""
    return Mutant(slip, cell, "", code, refuse, says, origin)


def with_slip(exercise, mutant, times=-1):
    """The mutant's answer, {grade_id: code}. `times`: how many places are changed; -1 for all."""
    if not mutant.right:
        return {mutant.cell: mutant.wrong}
    cells = {name: code for name, code in solutions_of(exercise).items() if mutant.cell in (None, name)}
    wrong = {name: code.replace(mutant.right, mutant.wrong, times) for name, code in cells.items()}
    changed = {name: code for name, code in wrong.items() if code != cells[name]}
    assert changed, f"{mutant.slip}: {mutant.right!r} stands in no answer"
    return changed


class Sample(NamedTuple):
    """A sample submission and what it deserves; tests/submissions/README.md describes the fields."""

    points: str
    words: Sequence[str] = ()
    why: str = ""
    answers: Mapping[str, str | list] = MappingProxyType({})
    left_out: Sequence[str] = ()


@functools.cache
def samples_of(exercise):
    """The sample submissions of an exercise, {student: `Sample`}."""
    path = SAMPLES / f"{exercise}.yml"
    return {student: Sample(**given) for student, given in yaml.safe_load(path.read_text(encoding="utf-8")).items()}


def sample_answers(student, exercise):
    """What a sample submission answers, {grade_id: code or text}; a cell that it leaves out is not in it."""
    sample, given = samples_of(exercise)[student], {**solutions_of(exercise)}
    left_out = [*given] if sample.left_out == "all" else sample.left_out
    place = f"{SAMPLES.name}/{exercise}.yml, {student}"
    unknown = {*sample.answers, *left_out} - given.keys()
    assert not unknown, f"{place}: {sorted(unknown)} are no answers of the solution, which has {sorted(given)}"
    for cell, changes in sample.answers.items():
        for change in [changes] if isinstance(changes, str) else changes:
            whole = isinstance(change, str)
            given[cell] = change if whole else _replaced(given[cell], f"{place}, {cell}", **change)
    return {cell: answer for cell, answer in given.items() if cell not in left_out}


def _replaced(code, place, old, new, times=1):
    found = code.count(old)
    assert found == times, f"{place}: found {found} times, not {times}: {old!r}; copy `old` from the solution's answer"
    return code.replace(old, new)


def assert_refused(exercise, mutant, answers, parts=None, briefly=False, looks=True):
    """Assert that just the checks that ought to refuse `answers`, that the first says why, and that the table says so.

    Of the checks that `answers` reach those are run that are in a part in which one refuses; or `parts`, letters or
    grade_ids; `briefly`: of those that refuse only the first, because they start ranks. The table is made with all.
    Returns what they all say, {grade_id: words or None}.
    """
    first, letters = min(mutant.refuse), {check[0] for check in mutant.refuse}
    run = reached(exercise, answers) - mutant.perhaps
    if not observed.recording():
        run = parts or {check for check in run if check[0] in letters}
        run = run - mutant.refuse | {first} if briefly else run
    marked = graded(exercise, answers, run, looks)
    said = {check: words for check, (_, words) in marked.items()}
    refused = {check for check, words in said.items() if words}
    carried = refused - mutant.refuse  # what is built on the wrong part
    assert refused >= mutant.refuse & marked.keys(), said
    assert not {check[0] for check in carried} & letters, said
    assert not carried & reached(exercise, answers, through=False), said
    assert mutant.says in said[first], said[first]
    observed.wrong(exercise, mutant, marked, first, points_of(exercise))
    return said


def assert_accepted(exercise, name, answers, looks=True):
    """Assert that a right answer gets all points of the checks that it reaches, and that the table says so.

    All checks run that call something of `answers`, directly or not.
    """
    marked = graded(exercise, answers, reached(exercise, answers), looks)
    assert marked
    assert {check: words for check, (_, words) in marked.items() if words} == {}
    observed.right(exercise, name, marked, points_of(exercise))


def reached(exercise, answers, through=True):
    """The checks that use a function which `answers` write otherwise than the solution: no other changes its verdict.

    `through`: also those that use it through another function of an answer.
    """
    code_cells = [cell for cell in cells_of(exercise) if cell.cell_type == "code"]
    solutions = {cell.id: cell.source for cell in code_cells if cell.id in solutions_of(exercise)}
    pairs = [(_definitions(solutions[cell]), _definitions(code)) for cell, code in answers.items()]
    changed = {name for old, new in pairs for name in old | new if old.get(name) != new.get(name)}
    uses = [item for code in {**solutions, **answers}.values() for item in _definitions(code).items()]
    while through and (more := {name for name, code in uses if _names(code) & changed} - changed):
        changed |= more
    return {cell.id for cell in code_cells if is_check(cell) and _names(cell.source) & changed}


@functools.cache
def _definitions(code):
    """{name: code} of what a cell defines. What is no function or class, and names nothing, belongs to all of it."""
    tree = ast.parse(textwrap.dedent(code))
    named, loose = {}, []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            named[statement.name] = ast.unparse(statement)
        else:
            loose.append(ast.unparse(statement))
            targets = getattr(statement, "targets", [])
            named |= {node.id: "" for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return {name: "\n".join([text, *loose]) for name, text in named.items()}


@functools.cache
def _names(code):
    """The names that code reads."""
    names = (node for node in ast.walk(ast.parse(textwrap.dedent(code))) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}
