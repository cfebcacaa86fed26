"""The API reference, built from docstrings: `{api} collectives.ring` describes what a module offers.

Docstrings are Markdown. Each public function, class and constant with a docstring is shown in the order of the source,
with its signature; a class shows its public methods and properties too. An object without a docstring is a warning,
and so fails the build.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.inspect import signature, stringify_signature

FENCE = ":"  # of the blocks inside a block, each with one more than what it holds

logger = logging.getLogger(__name__)


class Reference(SphinxDirective):
    """A module: its docstring, then each of its public members."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the module's docstrings as Markdown, where the directive is."""
        module = importlib.import_module(self.arguments[0])
        self.env.note_dependency(module.__file__)
        lines = [*documented(module).splitlines(), ""]
        for name, text in constants(module):
            lines += [*block("py:data", f"{shown(module)}.{name}", [text]), ""]
        for name, member in members(module):
            lines += [*described(f"{shown(module)}.{name}", member), ""]
        node = nodes.Element()
        self.state.nested_parse(StringList(lines, source=module.__file__), self.content_offset, node)
        return node.children


def shown(module: Any) -> str:
    """Return a module's name as a reader writes it, "ring" of `collectives.algorithms.ring`."""
    return module.__name__.rpartition(".")[2]


def members(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public functions and classes that a module or class defines itself, in the order of the source.

    A module's `main` is its command, and no part of the API.
    """
    own = getattr(holder, "__name__", None) if inspect.ismodule(holder) else holder.__module__
    for name, member in vars(holder).items():
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if (
            name.startswith("_")
            or name == "main"
            or not (inspect.isroutine(plain) or inspect.isclass(plain) or is_property(plain))
        ):
            continue
        if is_property(plain) or getattr(plain, "__module__", None) == own:
            yield name, member


def is_property(member: Any) -> bool:
    """Tell whether an attribute of a class is computed when it is read."""
    return isinstance(member, property) or type(member).__name__ == "cached_property"


def constants(module: Any) -> Iterator[tuple[str, str]]:
    """Yield the public constants of a module that have a docstring beneath them, with that text."""
    docs = ModuleAnalyzer.for_module(module.__name__).find_attr_docs()
    for (holder, name), lines in docs.items():
        if not holder and not name.startswith("_"):
            yield name, " ".join(lines).strip()


def described(name: str, member: Any, fence: int = 4) -> list[str]:
    """Return one member as lines of Markdown."""
    if is_property(member):
        return block("py:property", name.rpartition(".")[2], [documented(member)], fence)
    if inspect.isclass(member):
        inner = [line for each, value in members(member) for line in ["", *described(each, value, fence - 1)]]
        return block("py:class", name + signed(member), [documented(member), *inner], fence)
    plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    kind = "py:method" if fence < 4 else "py:function"
    return block(kind, name + signed(plain), [documented(plain)], fence)


def signed(member: Any) -> str:
    """Return the signature of a function or class as Python writes it; "" where Python knows none."""
    try:
        return stringify_signature(signature(member, bound_method=not inspect.isclass(member)), show_annotation=False)
    except (TypeError, ValueError):
        return ""


def documented(member: Any) -> str:
    """Return an object's docstring, and warn where it has none."""
    text = inspect.getdoc(member)
    if not text:
        logger.warning("%r has no docstring", member, type="api")
    return text or ""


def block(directive: str, argument: str, content: list[str], fence: int = 4) -> list[str]:
    """Return a directive of MyST as lines."""
    lines = [line for text in content for line in text.splitlines() or [""]]
    return [f"{FENCE * fence}{{{directive}}} {argument}", "", *lines, FENCE * fence]


def setup(app: Sphinx) -> dict:
    """Register the directive."""
    app.add_directive("api", Reference)
    return {"parallel_read_safe": True}
