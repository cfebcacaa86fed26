"""The names that a notebook's cells read, bind and import, read off their syntax trees. Nothing of them is run."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_SCOPES = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Lambda
_AROUND = re.compile(r"\s*%%(time|capture|prun)\b.*\n")  # magics that run the rest of their cell in the notebook


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
        tree = ast.parse(TransformerManager().transform_cell(_AROUND.sub("", source, count=1)))
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
            names.bound |= {name for node in ast.walk(statement) if isinstance(node, ast.Global) for name in node.names}
            if isinstance(statement, ast.ClassDef):
                names.classes.add(statement.name)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                names.imported[alias.asname or alias.name.partition(".")[0]] = (alias.name, "")
        elif isinstance(statement, ast.ImportFrom):
            if statement.module and not statement.level:
                imported = {alias.asname or alias.name: (statement.module, alias.name) for alias in statement.names}
                names.imported |= imported
        else:
            _add_assigned(names, statement)


def _add_assigned(names: Names, statement: ast.stmt) -> None:
    """Add what a statement binds: targets, patterns and `:=`, but no variable of a comprehension or a lambda."""
    below: list[ast.AST] = [*ast.iter_child_nodes(statement)]
    blocks: list[ast.stmt] = []
    while below:
        node: Any = below.pop()
        if isinstance(node, ast.stmt):
            blocks.append(node)
            continue
        if isinstance(node, _SCOPES):
            walrus = (each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr))
            names.bound |= set() if isinstance(node, ast.Lambda) else set(walrus)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.bound.add(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.bound.add(node.rest)
        below += ast.iter_child_nodes(node)
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
