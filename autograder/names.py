"""The names that a notebook's cells read, bind and import, read off their syntax trees. Nothing of them is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_AROUND = re.compile(r"\s*%%(time|capture|prun)\b.*\n")  # magics that run the rest of their cell in the notebook


@dataclass
class Names:
    """A cell's names. `read`: anywhere in it, functions included. `bound`, `classes`, `imported`: at its top level;
    `bound` includes what it deletes.

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
            _add_assigned(names, _around(statement))
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                names.imported[alias.asname or alias.name.partition(".")[0]] = (alias.name, "")
        elif isinstance(statement, ast.ImportFrom):
            if statement.module and not statement.level:
                imported = {alias.asname or alias.name: (statement.module, alias.name) for alias in statement.names}
                names.imported |= imported
        else:
            _add_assigned(names, [*ast.iter_child_nodes(statement)])


def _around(definition: Any) -> list[ast.AST]:
    """Return what a definition or a lambda evaluates where it stands: defaults, annotations, bases, decorators."""
    parts: list[ast.AST | None] = [*getattr(definition, "decorator_list", ())]
    if isinstance(definition, ast.ClassDef):
        parts += [*definition.bases, *(keyword.value for keyword in definition.keywords)]
    else:
        arguments = definition.args
        each = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        parts += [*arguments.defaults, *arguments.kw_defaults, *(one.annotation for one in each if one is not None)]
        parts.append(getattr(definition, "returns", None))
    return [part for part in parts if part is not None]


def _add_assigned(names: Names, below: list[ast.AST]) -> None:
    """Add what these parts of a statement bind or delete: targets, patterns and `:=`.

    A comprehension's own variables are left out, and a lambda counts with its defaults alone.
    """
    blocks: list[ast.stmt] = []
    while below:
        node: Any = below.pop()
        if isinstance(node, ast.stmt):
            blocks.append(node)
            continue
        if isinstance(node, ast.Lambda):
            below += _around(node)
            continue
        if isinstance(node, _COMPREHENSIONS):
            names.bound |= {each.target.id for each in _walk_here(node) if isinstance(each, ast.NamedExpr)}
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.bound.add(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.bound.add(node.rest)
        below += ast.iter_child_nodes(node)
    _add(names, blocks)


def _walk_here(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression in which `:=` binds a name around it: all but the bodies of lambdas."""
    yield node
    for part in _around(node) if isinstance(node, ast.Lambda) else ast.iter_child_nodes(node):
        yield from _walk_here(part)


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
