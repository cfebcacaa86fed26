"""The names that a notebook's cells read, bind and import, read off their syntax trees. Nothing of them is run."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Names:
    """A cell's names. `read`: anywhere in it, functions included. `bound`, `classes`, `imported`: at its top level.

    `imported`: {name: (module, the name within it, or "" for the module itself)}; these aren't in `bound`.
    """

    read: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)


def names_in(source: str) -> Names:
    """Return a cell's names; none if it isn't Python, as a template with gaps."""
    names = Names()
    try:
        tree = ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError:
        return names
    names.read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    _add(names, tree.body)
    return names


def _add(names: Names, statements: list[ast.stmt]) -> None:
    """Add what these statements bind, wherever they are nested, but not in functions and classes of their own."""
    for statement in statements:
        if isinstance(statement, _DEFINITIONS):
            names.bound.add(statement.name)
            if isinstance(statement, ast.ClassDef):
                names.classes.add(statement.name)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                top = alias.name.partition(".")[0]
                names.imported[alias.asname or top] = (alias.name if alias.asname else top, "")
        elif isinstance(statement, ast.ImportFrom):
            if statement.module and not statement.level:
                imported = {alias.asname or alias.name: (statement.module, alias.name) for alias in statement.names}
                names.imported |= imported
        else:
            _add_assigned(names, statement)


def _add_assigned(names: Names, statement: ast.stmt) -> None:
    below: list[Any] = [ast.iter_child_nodes(statement)]
    blocks: list[ast.stmt] = []
    while below:
        for node in below.pop():
            if isinstance(node, ast.stmt):
                blocks.append(node)
                continue
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.bound.add(node.id)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                names.bound.add(node.name)
            below.append(ast.iter_child_nodes(node))
    _add(names, blocks)


def defined(cells: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return what the instructor's own answers define, {grade_id: {"names", "classes", "imports"}}, as JSON has it.

    `cells`: {grade_id: source}, of the solution cells.
    """
    found = {}
    for name, source in cells.items():
        names = names_in(source)
        imports = {alias: list(place) for alias, place in names.imported.items()}
        found[name] = {"names": sorted(names.bound), "classes": sorted(names.classes), "imports": imports}
    return found
