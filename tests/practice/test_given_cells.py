"""The cells that an exercise gives run in the notebook that students get, before they have written anything."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXERCISES = Path(__file__).resolve().parents[2] / "exercises"


@pytest.mark.parametrize("path", sorted(EXERCISES.glob("*/*.ipynb")), ids=lambda path: path.stem)
def test_a_given_cell_ends_without_an_error_or_says_what_is_not_written_yet(path):
    """In a kernel: there a part of the library is refused to the functions that a student writes."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if not cell.metadata.get("nbgrader", {}).get("grade")]
    settings = {"kernel_name": "python3", "allow_errors": True, "resources": {"metadata": {"path": str(path.parent)}}}
    NotebookClient(notebook, timeout=120, **settings).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    errors = [f"{each.ename}: {each.evalue}" for each in outputs if each.output_type == "error"]
    assert [error for error in errors if "is not written yet" not in error] == []
