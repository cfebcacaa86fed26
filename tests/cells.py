"""A chapter's figures made again: the cells that show them, run with only what they need of the cells before.

What a page shows can so be held against the library as it is now, in a second and without a kernel. Of each statement
of the chapter is asked what names it binds and what names it uses; from a figure's call the trail is followed back.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jupytext

BOOK = Path(__file__).resolve().parents[1] / "book"
PLAYERS, CALCULATORS = {"draw", "Dispatch", "Network", "attention", "blocks"}, {"Calculator", "overlap"}
MEASURED = "nbval-ignore-output"  # the tag of cells whose output no second run can give again


class Shown(NamedTuple):
    """A figure that a cell shows: its call, the chapter's statements before it, and whether it was measured."""

    last: ast.Expr
    before: list[ast.stmt]
    is_measured: bool

    @property
    def call(self) -> str:
        """As source."""
        return ast.unparse(self.last.value)

    def make(self, **stand_ins):
        """The figure, made now. `stand_ins`: what takes the place of what the chapter calls so."""
        space: dict = {}
        with chdir(BOOK):  # as a notebook does
            exec(compile(ast.Module(needed(self.last, self.before), []), self.call, "exec"), space)
            return eval(self.call, space | stand_ins)


def figures(chapter: str, kinds: set[str]) -> list[Shown]:
    """What a chapter shows by a call of one of `kinds`, in its order."""
    return [each for each in _shown(chapter) if _root(each.last.value.func) in kinds]


@cache
def _shown(chapter: str) -> list[Shown]:
    before, shown = [], []
    for cell in jupytext.read(BOOK / f"{chapter}.md").cells:
        if cell.cell_type != "code":
            continue
        statements = ast.parse(cell.source).body
        last = _pictured(statements[-1]) if statements else None
        if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
            shown.append(Shown(last, [*before, *statements[:-1]], MEASURED in cell.metadata.get("tags", [])))
        before += statements
    return shown


def _pictured(statement: ast.stmt) -> ast.stmt:
    """Return a cell's last statement, or of an `Opening(question, figure)` the call that makes the figure."""
    match statement:
        case ast.Expr(ast.Call(func=ast.Name("Opening"), args=[_, figure])):
            return ast.copy_location(ast.Expr(figure), statement)
    return statement


def _root(node: ast.expr) -> str:
    """Of `blocks.by_axis` the `blocks`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def needed(last: ast.stmt, before: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of `before` without which `last` would not do what it does, in their order."""
    inside = {each.name: uses(each) for each in before if isinstance(each, ast.FunctionDef | ast.ClassDef)}

    def reached(names: set[str]) -> set[str]:
        """With what the functions among them use when they are called, and the functions among those."""
        while more := {used for name in names for used in inside.get(name, ())} - names:
            names = names | more
        return names

    imports = [each for each in before if isinstance(each, ast.Import | ast.ImportFrom)]
    imported = set().union(*map(binds, imports))  # a call of theirs, `contracts.check(x)`, changes none of them
    wanted, kept = reached(uses(last)), []
    for statement in reversed(before):
        own = set() if statement in imports else imported
        if found := (binds(statement) - own) & wanted:
            if not isinstance(statement, ast.Assign | ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
                found = set()  # it may leave an earlier value, or change it
            now = set() if isinstance(statement, ast.FunctionDef) else uses(statement)  # it reads when it is called
            wanted = (wanted - {name for name in found if name not in changes(statement)}) | reached(now)
            kept.append(statement)
    return kept[::-1]


@cache
def uses(statement: ast.stmt) -> set[str]:
    """Every name of the chapter that it reads, in its functions too; not those that it has given a value before."""
    table = symtable.symtable(ast.unparse(statement), "cell", "exec")
    first: dict[str, ast.expr_context] = {}
    for name in _in_order(statement):
        first.setdefault(name.id, name.ctx)
    top = [symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()]
    used = {name for name in top if not isinstance(first.get(name), ast.Store)}
    used |= {_root(node.target) for node in ast.walk(statement) if isinstance(node, ast.AugAssign)}
    inner = list(table.get_children())
    while inner:
        scope = inner.pop()
        used |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
        inner += scope.get_children()
    return used


def _in_order(node: ast.AST) -> Iterator[ast.Name]:
    """The names in a statement as Python comes upon them: a value before what it is given to."""
    if isinstance(node, ast.Name):
        yield node
    fields = sorted(ast.iter_fields(node), key=lambda field: field[0] not in ("value", "iter", "generators"))
    for _, found in fields:
        for each in found if isinstance(found, list) else [found]:
            if isinstance(each, ast.AST):
                yield from _in_order(each)


@cache
def binds(statement: ast.stmt) -> set[str]:
    """Every name that it gives a value, or whose value it may change."""
    symbols = symtable.symtable(ast.unparse(statement), "cell", "exec").get_symbols()
    return {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()} | changes(statement)


def changes(statement: ast.stmt) -> set[str]:
    """The names whose values it changes in place: `x[0] = 1`, `x.y = 1`, `x.append(1)`."""
    places = [node for node in ast.walk(statement) if isinstance(node, ast.Attribute | ast.Subscript)]
    stored = [node for node in places if isinstance(node.ctx, ast.Store)]
    calls = [node.value for node in ast.walk(statement) if isinstance(node, ast.Expr)]
    called = [node.func for node in calls if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return {_root(node) for node in [*stored, *called]} - {""}
