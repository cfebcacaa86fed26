"""The architecture holds: no import runs upwards, and heavy libraries are imported where the tree says.

`python tests/test_architecture.py` prints every room with the rooms that it imports, from the top floor down.
"""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("collectives", "autograder")
INTERPRETERS = {"simulate", "execute", "price", "draw"}
TORCH = {"ranks", "measure", "training", "execute", "practice"}  # practice: it checks tensors
MATPLOTLIB = {"figures"}


def imports(path):
    """The dotted names that a file imports, whether at its top or inside a function; ours resolved to full names."""
    package = [*path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(
                [*package[: len(package) - node.level + 1], node.module or ""] if node.level else [node.module]
            )
            yield from (f"{base}.{alias.name}".replace("..", ".") for alias in node.names)


def room(name):
    """The room of a dotted name of ours: a wing, which is a folder, or a file at the root of its package."""
    package, *rest = name.split(".")
    places = (ROOT / package / rest[0], ROOT / package / f"{rest[0]}.py") if rest else ()
    return rest[0] if any(place.exists() for place in places) else None


@cache  # every file is parsed: 2 seconds
def rooms(package):
    """{room: the rooms of this package that its files import}. A package's face, its `__init__`, is no room."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        own = room(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if own is None or own == "__init__":
            continue
        ours = (name for name in imports(path) if name.split(".")[0] == package)
        found.setdefault(own, set()).update({room(name) for name in ours} - {own, None})
    return found


def floors(package):
    """The rooms from the top floor down, each above all that it imports; a CycleError names a circle."""
    graph = rooms(package)
    height = {}
    for name in TopologicalSorter(graph).static_order():
        height[name] = 1 + max((height[other] for other in graph[name]), default=0)
    return sorted(graph, key=lambda name: (-height[name], name)), height


@pytest.mark.parametrize("package", PACKAGES)
def test_no_room_is_imported_by_one_that_it_imports_itself(package):
    try:
        floors(package)
    except CycleError as error:
        pytest.fail(f"these rooms of {package}/ import each other: {' → '.join(error.args[1])}")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_files_of_a_room_import_each_other(package):
    graph = {}
    for path in (ROOT / package).rglob("*.py"):
        if path.name != "__init__.py":
            own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            graph[own] = {name for full in imports(path) for name in (full, full.rpartition(".")[0]) if name != own}
    graph = {own: names & graph.keys() for own, names in graph.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these files import each other: {' → '.join(error.args[1])}")


def test_interpreters_read_schedules_and_never_each_other():
    graph = rooms("collectives")
    assert not any(graph[name] & INTERPRETERS for name in INTERPRETERS)


def test_an_algorithm_knows_schedules_and_no_interpreter():
    for path in (ROOT / "collectives" / "algorithms").glob("*.py"):
        if path.stem != "scorecard":  # it counts the algorithms, by their price
            assert not {room(name) for name in imports(path)} & INTERPRETERS, path


@pytest.mark.parametrize(("library", "allowed"), [("torch", TORCH), ("matplotlib", MATPLOTLIB)])
def test_a_heavy_library_is_imported_only_where_the_tree_says(library, allowed):
    users = {
        path.relative_to(ROOT / "collectives").parts[0].removesuffix(".py")
        for path in (ROOT / "collectives").rglob("*.py")
        if any(name.split(".")[0] == library for name in imports(path))
    }
    assert users <= allowed


@pytest.mark.slow
def test_what_runs_in_the_sandbox_imports_nothing_that_stays_outside():
    outside = rooms("autograder").keys() - {"inside", "wire"}
    assert not (rooms("autograder")["inside"] | rooms("autograder")["wire"]) & outside


def test_importing_the_course_loads_neither_torch_nor_matplotlib():
    loaded = "import collectives, sys; print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


if __name__ == "__main__":
    for package in PACKAGES:
        names, height = floors(package)
        for name in names:
            below = ", ".join(sorted(rooms(package)[name], key=height.get, reverse=True))
            print(f"floor {height[name]:2} {package}/{name:<16} imports {below or 'nothing of ours'}")
