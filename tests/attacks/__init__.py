"""Submissions that mean harm, and honest ones that look strange: what each tries, and what it deserves.

Each is a few cells of code, filled into the notebook that the course has released. `@COURSE@`, `@HOME@` and the other
names of `world.World.places` stand in the code for what they name on the machine that grades: these students know it
well. What would do real harm if it got out begins with `GUARD`, which looks whether it can see the course from where
it runs; there it says so, which fails the test, and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

from nbformat import NotebookNode

KINDS: dict[str, dict[str, Submission]] = {}
"""All submissions: {kind: {name: submission}}, as the modules of this package hand them in."""


@dataclass(frozen=True)
class Submission:
    """One student's notebook.

    `tries`: what it wants, or what is odd about it. `answers`: {grade_id of a solution cell: the code in it}; other
    cells stay as released. `edit`: changes the notebook besides. `place`: changes the folder that is handed in,
    `place(folder, world)`. `points`: what the tests are to give. `says`: what its feedback says that it is out of.
    """

    tries: str
    answers: dict[str, str] = field(default_factory=dict)
    points: float = 0
    edit: Callable[[NotebookNode], None] | None = None
    place: Callable[[Path, World], None] | None = None  # noqa: F821 (world.World)
    says: tuple[str, ...] = ()


def hand_in(kind: str, name: str, tries: str, answers: dict[str, str] | None = None, **others) -> None:
    """Add a submission to `KINDS`; its student is called `kind-name`."""
    submissions = KINDS.setdefault(kind, {})
    assert name not in submissions, f"there are two submissions called {kind}-{name}"
    submissions[name] = Submission(tries, {cell: dedent(code) for cell, code in (answers or {}).items()}, **others)


def everywhere(value: str, before: str = "") -> dict[str, str]:
    """Answers in which every function runs `before` first, and every result is `value`, an expression."""
    body = "".join(f"    {line}\n" for line in dedent(before).strip().splitlines())
    answers = {
        name: f"def {name}(*arguments):\n{body}    return {value}\n"
        for name in ("mean", "table", "scale", "root", "softmax", "integrate", "primes", "describe")
    }
    account = f"class Account:\n    def __init__(self, *arguments):\n        self.balance = {value}\n\n"
    deeper = f"    {body}".replace("\n", "\n    ").rstrip()
    methods = f"    def deposit(self, *arguments):\n{deeper}\n        return {value}\n"
    return answers | {"account": account + methods + "\n    withdraw = deposit\n", "limit": f"LIMIT = {value}\n"}


def first(code: str, answers: dict[str, str]) -> dict[str, str]:
    """The same answers, with `code` run before them, in the cell of the first answer."""
    name, *_ = answers
    return answers | {name: f"{dedent(code)}\n\n{dedent(answers[name])}"}


LEAK = r'''
import os, re, sys

def leak(*texts):
    """Print all canaries in these, backwards, so that no one is printed by its own name."""
    for text in texts:
        data = text if isinstance(text, bytes) else str(text).encode("utf-8", "replace")
        for found in set(re.findall(rb"CANARY_[0-9a-f]{16}", data)):
            print("LEAK", found.decode()[::-1])

def leak_file(path, most=2_000_000):
    try:
        with open(path, "rb") as file:
            leak(file.read(most))
    except OSError:
        pass
'''
"""What a leaking submission begins with."""

GUARD = r"""
import os
if os.path.exists("@COURSE@/nbgrader_config.py"):
    print("ESC" + "APED: it can see the course")
    raise NotImplementedError("on the host this would do harm")
"""
"""What a submission begins with that would do harm outside the sandbox: it ends where the course can be seen."""
