"""A fresh course, unlike ours: plain functions, a class, a variable, numpy, torch, partial credit, an essay.

Its tests are such as instructors write: `assert` with a tolerance, numpy's and torch's own comparisons,
`pytest.raises`, a function handed to the student's, fresh random numbers, and a sum of points as the last line. Its
hidden tests compute the truth first, so that it lies about in variables for whoever can read them.
"""

from __future__ import annotations

import math

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

SETUP = """
import math

import numpy as np
import pytest
import torch


def close(got, want, tolerance=1e-9):
    return abs(got - want) <= tolerance
"""

# grade_id of a solution cell: what the student is given, and the answer
SOLUTIONS = {
    "mean": (
        "def mean(values):\n    '''The mean of a list of numbers, as a float.'''",
        "return sum(values) / len(values)",
    ),
    "table": (
        "def table(n):\n    '''The multiplication table of 1 to n: int array [n, n].'''",
        "return np.outer(np.arange(1, n + 1), np.arange(1, n + 1))",
    ),
    "scale": (
        "def scale(array, factor):\n    '''Multiply an array by a number, in place; return nothing.'''",
        "array *= factor",
    ),
    "account": (
        "class Account:\n    '''An account with a balance that never goes below zero: ValueError.'''\n",
        """def __init__(self, balance=0):
    self.balance = balance

def deposit(self, amount):
    self.balance += amount

def withdraw(self, amount):
    if amount > self.balance:
        raise ValueError(f"only {self.balance} left")
    self.balance -= amount
    return amount""",
    ),
    "limit": ("# How many pairs can be drawn of 100 things? Put the number into LIMIT.", "LIMIT = 4950"),
    "root": (
        "def root(number):\n    '''The square root; of a negative number a ValueError.'''",
        "return math.sqrt(number)",
    ),
    "softmax": (
        "def softmax(x):\n    '''exp(x) over its sum, a tensor; no overflow, please.'''",
        "e = (x - x.max()).exp()\nreturn e / e.sum()",
    ),
    "integrate": (
        "def integrate(f, a, b, n):\n    '''The integral of f from a to b by the midpoints of n intervals.'''",
        "h = (b - a) / n\nreturn h * sum(f(a + (i + 0.5) * h) for i in range(n))",
    ),
    "primes": (
        "def primes(n):\n    '''The primes up to n, in a list.'''",
        "return [p for p in range(2, n + 1) if all(p % q for q in range(2, p))]",
    ),
    "describe": (
        "def describe(values):\n    '''A dict with the least and the largest of a list, and how many there are.'''",
        'return {"least": min(values), "largest": max(values), "count": len(values)}',
    ),
}

# grade_id of a test cell: its points, and its tests, of which those after HIDDEN are not released
HIDDEN = "# hidden from here on"
TESTS = {
    "mean-visible": (2, "assert mean([1, 2, 3]) == 2\nassert close(mean([0.5]), 0.5)"),
    "mean-hidden": (
        3,
        f"""assert isinstance(mean([4, 6]), float)
{HIDDEN}
import statistics

generator = np.random.default_rng()
for size in range(1, 6):
    values = generator.random(size).tolist()
    want = statistics.fmean(values)
    assert abs(mean(values) - want) < 1e-9
assert len([size for size in range(3) if isinstance(mean([size]), float)]) == 3""",
    ),
    "table-numbers": (
        3,
        f"""np.testing.assert_array_equal(table(2), [[1, 2], [2, 4]])
{HIDDEN}
for n in (1, 3, 7):
    want = np.array([[row * column for column in range(1, n + 1)] for row in range(1, n + 1)])
    np.testing.assert_array_equal(table(n), want)
    assert table(n).shape == (n, n) and table(n).dtype.kind == "i"
    assert np.array_equal(table(n), want) and (table(n) == want).all()""",
    ),
    "scale-in-place": (
        3,
        f"""array = np.array([1.0, 2.0])
assert scale(array, 3) is None
np.testing.assert_allclose(array, [3, 6])
{HIDDEN}
for factor in (-1.5, 0.25):
    before = np.random.default_rng().standard_normal((3, 4))
    array, want = before.copy(), factor * before
    scale(array, factor)
    assert np.allclose(array, want) and not np.allclose(array, before)""",
    ),
    "account-class": (
        4,
        f"""account = Account(10)
account.deposit(5)
assert account.balance == 15
{HIDDEN}
other = Account()
assert other.balance == 0
with pytest.raises(ValueError):
    account.withdraw(100)
assert account.withdraw(3) == 3 and account.balance == 12 and other.balance == 0""",
    ),
    "limit-number": (2, f"assert isinstance(LIMIT, int)\n{HIDDEN}\nassert LIMIT == math.comb(100, 2)"),
    "root-raises": (
        2,
        f"""assert root(9) == 3
with pytest.raises(ValueError):
    root(-1)
{HIDDEN}
assert close(root(2), 2**0.5)""",
    ),
    "softmax-torch": (
        3,
        f"""torch.testing.assert_close(softmax(torch.zeros(4)), torch.full((4,), 0.25))
{HIDDEN}
for size in (1, 3, 50):
    x = 100 * torch.randn(size)
    want = torch.softmax(x, dim=0)
    torch.testing.assert_close(softmax(x), want)
    assert torch.allclose(softmax(x), want)""",
    ),
    "integrate-callback": (
        3,
        f"""assert close(integrate(lambda x: 2.0, 0, 3, 10), 6)
{HIDDEN}
shift = float(np.random.default_rng().random())
want = 9 + 3 * shift
assert close(integrate(lambda x: x * x + shift, 0, 3, 1000), want, 1e-3)
assert close(integrate(math.sin, 0, math.pi, 1000), 2, 1e-3)""",
    ),
    "primes-partial": (
        4,
        f"""score = 0
if primes(10) == [2, 3, 5, 7]:
    score += 1
{HIDDEN}
if primes(1) == []:
    score += 1
if primes(2) == [2] and sorted(primes(3)) == [2, 3]:
    score += 1
if len(primes(100)) == 25 and sum(primes(100)) == 1060:
    score += 1
score""",
    ),
    "primes-each": (1, "assert all(map(lambda n: n in primes(n), (2, 3, 5, 97)))"),
    "describe-dict": (
        3,
        f"""assert describe([3, 1, 2]) == {{"least": 1, "largest": 3, "count": 3}}
{HIDDEN}
values = np.random.default_rng().integers(0, 10**6, 20).tolist()
want = {{"least": min(values), "largest": max(values), "count": 20}}
given = describe(values)
assert given == want and set(given) == set(want) and all(given[key] == want[key] for key in want)""",
    ),
}

AFTER = {  # which tests stand below which answer
    "mean": ("mean-visible", "mean-hidden"),
    "table": ("table-numbers",),
    "scale": ("scale-in-place",),
    "account": ("account-class",),
    "limit": ("limit-number",),
    "root": ("root-raises",),
    "softmax": ("softmax-torch",),
    "integrate": ("integrate-callback",),
    "primes": ("primes-partial", "primes-each"),
    "describe": ("describe-dict",),
}
POINTS = sum(points for points, _ in TESTS.values())  # by tests; the essay's 3 are a person's

WORDS = {
    "count": (
        "def count(text):\n    '''How often each word is in a text, as a dict.'''",
        "return {word: text.split().count(word) for word in text.split()}",
    ),
    "backwards": (
        "def backwards(text):\n    '''The words of a text in the reverse order.'''",
        'return " ".join(reversed(text.split()))',
    ),
}
WORD_TESTS = {
    "count-words": (3, f"assert count('a b a') == {{'a': 2, 'b': 1}}\n{HIDDEN}\nassert count('') == {{}}"),
    "backwards-words": (2, f"assert backwards('a b') == 'b a'\n{HIDDEN}\nassert backwards('x') == 'x'"),
}
WORD_POINTS = sum(points for points, _ in WORD_TESTS.values())


def right(name: str) -> str:
    """The right answer of a solution cell."""
    given, answer = (SOLUTIONS | WORDS)[name]
    return f"{given}\n{_under(given, answer)}\n"


def points_of(*names: str) -> float:
    """The points of the tests below these answers."""
    return math.fsum(TESTS[test][0] for name in names for test in AFTER[name])


def numbers(hidden: str, solution: str) -> nbformat.NotebookNode:
    """The source of the first exercise; `hidden` and `solution` are canaries to put into each such cell."""
    cells = [new_markdown_cell("# Numbers"), _locked("setup", SETUP)]
    for name, tests in AFTER.items():
        cells.append(_solution(name, *SOLUTIONS[name], solution))
        cells += [_test(test, *TESTS[test], hidden) for test in tests]
    essay = new_markdown_cell(f"### BEGIN SOLUTION\n{solution}: because.\n### END SOLUTION")
    essay.metadata.nbgrader = _meta("essay", grade=True, solution=True, points=3)
    return _notebook([*cells, essay])


def words(hidden: str, solution: str) -> nbformat.NotebookNode:
    """The source of the second exercise."""
    cells = [new_markdown_cell("# Words")]
    for (name, (given, answer)), (test, (points, tests)) in zip(WORDS.items(), WORD_TESTS.items(), strict=True):
        cells += [_solution(name, given, answer, solution), _test(test, points, tests, hidden)]
    return _notebook(cells)


def _solution(name: str, given: str, answer: str, canary: str) -> nbformat.NotebookNode:
    marked = f"### BEGIN SOLUTION\n# {canary}\n{answer}\n### END SOLUTION"
    cell = new_code_cell(f"{given}\n{_under(given, marked)}")
    cell.metadata.nbgrader = _meta(name, solution=True)
    return cell


def _under(given: str, answer: str) -> str:
    """An answer, indented as what stands above it asks for."""
    indent = "" if given.startswith("#") else "    "
    return "\n".join(indent + line if line else "" for line in answer.splitlines())


def _test(name: str, points: int, tests: str, canary: str) -> nbformat.NotebookNode:
    visible, mark, hidden = tests.partition(f"{HIDDEN}\n")
    if mark:
        last = ""
        if name == "primes-partial":  # what the cell is worth stands last, and is no secret
            hidden, _, last = hidden.rpartition("\n")
        visible += f"### BEGIN HIDDEN TESTS\ncanary = {canary!r}\n{hidden}\n### END HIDDEN TESTS\n{last}"
    cell = new_code_cell(visible.rstrip())
    cell.metadata.nbgrader = _meta(name, grade=True, locked=True, points=points)
    return cell


def _locked(name: str, source: str) -> nbformat.NotebookNode:
    cell = new_code_cell(source.strip())
    cell.metadata.nbgrader = _meta(name, locked=True)
    return cell


def _meta(name: str, **flags) -> dict:
    known = {"grade": False, "solution": False, "locked": False, "task": False} | flags
    return {"schema_version": 3, "grade_id": name, **known}


def _notebook(cells: list) -> nbformat.NotebookNode:
    notebook = new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    for cell in notebook.cells:
        cell.id = cell.metadata.get("nbgrader", {}).get("grade_id", "title")
    return notebook


RIGHT = {name: right(name) for name in SOLUTIONS}
RIGHT_WORDS = {name: right(name) for name in WORDS}
