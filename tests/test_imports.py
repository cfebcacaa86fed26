"""The architecture holds: who may import whom, and what an import may cost."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import collectives

PACKAGE = Path(collectives.__file__).parent
ROOT = PACKAGE.parent
REAL = {f"{name}.py" for name in ("execute", "shared", "ranks", "wire", "benchmark", "calibrate", "perfetto")}
REAL |= {"held.py", "rank_process.py", "practice/__init__.py", "practice/buckets.py", "practice/zero.py"}
REAL |= {f"practice/{name}.py" for name in ("split", "experts", "mesh", "gpus")} | {"bandwidth.py", "cluster.py"}
FREE = {"memory", "traffic", "timeline", "shardings", "pipeline"} | {"mesh", "models", "costs", "planner"}
FREE |= {"published", "compare"}  # modules of training/ that need no torch
REAL |= {f"training/{path.name}" for path in (PACKAGE / "training").glob("*.py") if path.stem not in FREE}
INTERPRETERS = {"simulate", "execute", "price", "draw"}


def imports(path, top_level_only=False):
    """Names of the modules that a file imports: "torch", or "collectives.schedule" for one of ours."""
    tree = ast.parse(path.read_text())
    typing_only = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in tree.body if top_level_only else ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = f"collectives.{node.module}" if node.module else "collectives"
            yield from (base if node.module else f"collectives.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def ours(path):
    return {name.split(".")[1] for name in imports(path) if name.startswith("collectives.")}


def test_a_schedule_imports_nothing_of_ours():
    assert ours(PACKAGE / "schedule.py") == set()


@pytest.mark.parametrize("interpreter", sorted(INTERPRETERS))
def test_interpreters_read_schedules_and_never_each_other(interpreter):
    allowed = {"schedule", "topology"}
    if interpreter == "draw":  # it also hands timelines, and functions, on to the figures that draw them
        allowed |= {"contracts", "dataflow", "figure", "gantt", "family"}
    assert ours(PACKAGE / f"{interpreter}.py") <= allowed


@pytest.mark.parametrize("path", sorted((PACKAGE / "algorithms").glob("*.py")), ids=lambda path: path.stem)
def test_an_algorithm_knows_schedules_and_no_interpreter(path):
    assert not ours(path) & INTERPRETERS


def test_torch_is_imported_where_ranks_are_real_and_matplotlib_where_pictures_are_drawn():
    users = {"torch": set(), "matplotlib": set()}
    for path in PACKAGE.rglob("*.py"):
        for name in imports(path):
            users.get(name.split(".")[0], set()).add(str(path.relative_to(PACKAGE)))
    assert users["torch"] <= REAL
    assert users["matplotlib"] == {"draw.py"}


def test_importing_the_course_loads_neither_torch_nor_matplotlib():
    loaded = "import collectives, sys; print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
