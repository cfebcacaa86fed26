"""Submissions whose files are the attack: links, pipes, devices, and notebooks that are none."""

import json
import os

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from . import hand_in

NOTEBOOK = "numbers.ipynb"


def _as_link(*target):
    """A notebook that is a link to a file of the machine that grades."""

    def place(folder, world):
        (folder / NOTEBOOK).unlink()
        (folder / NOTEBOOK).symlink_to("/".join(target).format(course=world.course, home=world.home))

    return place


def _folder_linked(folder, world):
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.symlink_to(world.course / "submitted" / "honest-plain" / "numbers")


def _pipe(folder, world):
    (folder / NOTEBOOK).unlink()
    os.mkfifo(folder / NOTEBOOK)


def _folder(folder, world):
    (folder / NOTEBOOK).unlink()
    (folder / NOTEBOOK).mkdir()
    (folder / NOTEBOOK / NOTEBOOK).write_text("{}")


def _more_pipes(folder, world):
    os.mkfifo(folder / "data.csv")
    os.mkfifo(folder / "timestamp.txt")
    (folder / "loop").symlink_to(folder)


def _text(text):
    """A notebook that consists of these bytes."""
    return lambda folder, world: (folder / NOTEBOOK).write_bytes(text)


def _json(change):
    """A notebook whose JSON has been changed."""

    def place(folder, world):
        content = json.loads((folder / NOTEBOOK).read_text())
        (folder / NOTEBOOK).write_text(json.dumps(change(content)))

    return place


def _solution_cells(content):
    return [cell for cell in content["cells"] if cell["metadata"].get("nbgrader")]


def _schema(version):
    def change(content):
        for cell in _solution_cells(content):
            cell["metadata"]["nbgrader"]["schema_version"] = version
        return content

    return change


def _ids(value):
    def change(content):
        for cell in _solution_cells(content):
            cell["metadata"]["nbgrader"]["grade_id"] = value
        return content

    return change


def _cut_cells(content):
    for cell in content["cells"]:
        cell.pop("source")
        cell.pop("metadata")
    return content


for name, tries, place in [
    (
        "link_to_the_solution",
        "A link to the source notebook, whose answers would be its own.",
        _as_link("{course}/source/numbers", NOTEBOOK),
    ),
    (
        "link_to_a_fellow",
        "A link to another student's notebook.",
        _as_link("{course}/submitted/honest-plain/numbers", NOTEBOOK),
    ),
    ("link_to_a_key", "A link to a key, which the error message might show.", _as_link("{home}/.ssh/id_rsa")),
    ("link_to_a_device", "A link to /dev/zero, which never ends.", _as_link("/dev/zero")),
    ("link_to_itself", "A link to itself.", _as_link(NOTEBOOK)),
    ("folder_linked", "A folder that is a link to another student's.", _folder_linked),
    ("pipe", "A pipe in place of the notebook, from which nobody will ever read anything.", _pipe),
    ("pipes_beside", "Pipes and a circle of folders beside the notebook, one in place of its timestamp.", _more_pipes),
    ("folder", "A folder in place of the notebook.", _folder),
    ("no_json", "Something that is no JSON, with markup in it.", _text(b"<script>document.title='@MARK@'</script>")),
    ("deep_json", "200,000 open brackets.", _text(b"[" * 200_000)),
    (
        "deep_notebook",
        "A notebook whose metadata is 50,000 levels deep.",
        _text(b'{"cells": [], "metadata": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001),
    ),
    ("binary", "Noise.", _text(bytes(range(256)) * 100)),
    ("empty", "A file of no bytes.", _text(b"")),
    ("schema_of_the_future", "Cells of nbgrader's schema 99.", _json(_schema(99))),
    ("schema_of_the_past", "Cells of nbgrader's schema 1, which stock nbgrader stops at.", _json(_schema(1))),
    ("schema_no_number", "Cells whose schema version is a list.", _json(_schema([3]))),
    ("ids_no_text", "Cells whose grade_id is a dict.", _json(_ids({"a": 1}))),
    ("ids_all_the_same", "Cells that are all called mean-hidden.", _json(_ids("mean-hidden"))),
    (
        "ids_with_markup",
        "Cells called after a script, a path and an SQL statement.",
        _json(_ids("../../x'; drop table grade; --<script>")),
    ),
    ("format_of_the_future", "A notebook of format 99.", _json(lambda content: content | {"nbformat": 99})),
    (
        "format_of_the_past",
        "A notebook of format 2.",
        _json(lambda content: {"nbformat": 2, "metadata": {}, "worksheets": [{"cells": content["cells"]}]}),
    ),
    ("cells_no_list", "Cells that are text.", _json(lambda content: content | {"cells": "<b>none</b>"})),
    ("cells_cut", "Cells without source and metadata.", _json(_cut_cells)),
    ("metadata_no_dict", "Metadata that is a list.", _json(lambda content: content | {"metadata": [1]})),
    (
        "timestamp",
        "A timestamp that is none.",
        lambda folder, world: (folder / "timestamp.txt").write_text("9999-99-99 <b>" * 1000),
    ),
    (
        "timestamp_past",
        "A timestamp before all time.",
        lambda folder, world: (folder / "timestamp.txt").write_text("0001-01-01 00:00:00 UTC"),
    ),
    (
        "two_notebooks",
        "A second notebook beside the first, with the exercise's answers' name in capitals.",
        lambda folder, world: (folder / "Numbers.ipynb").write_text("{}"),
    ),
]:
    hand_in("malformed", name, tries, {}, place=place)

SCRIPT = "<script>document.title='@MARK@'</script><img src=x onerror=\"document.title='@MARK@'\">"


def _markup(notebook):
    notebook.cells.append(new_markdown_cell(f"{SCRIPT} [x](javascript:alert(1)) $\\href{{javascript:alert(1)}}{{x}}$"))
    data = {
        "text/html": SCRIPT,
        "application/javascript": "document.title='@MARK@'",
        "image/svg+xml": f"<svg>{SCRIPT}</svg>",
    }
    data |= {"text/markdown": SCRIPT, "text/latex": f"$${SCRIPT}$$", "text/plain": SCRIPT}
    outputs = [new_output("display_data", data), new_output("error", ename=SCRIPT, evalue=SCRIPT, traceback=[SCRIPT])]
    notebook.cells.append(
        new_code_cell(f"from IPython.display import display\ndisplay({data!r}, raw=True)", outputs=outputs)
    )
    notebook.metadata.title = notebook.metadata.authors = SCRIPT
    notebook.metadata.widgets = {
        "application/vnd.jupyter.widget-state+json": {"state": {"a": SCRIPT}, "version_major": 2}
    }
    notebook.metadata.language_info = {
        "name": SCRIPT,
        "file_extension": SCRIPT,
        "pygments_lexer": SCRIPT,
        "mimetype": SCRIPT,
    }


def _files_with_markup(folder, world):
    for name in ("<script>x.txt", "a&b.ipynb.txt", "--help", "-rf", "new\nline", "a" * 200, "\u202ecod.txt"):
        (folder / name).write_text("x")
    (folder / os.fsdecode(b"\xff\xfe")).write_text("x")


hand_in(
    "malformed",
    "markup",
    "Scripts in text, in outputs, in errors and in metadata, for the feedback page.",
    {},
    edit=_markup,
)
hand_in("malformed", "file_names", "File names that are markup, options and no text.", {}, place=_files_with_markup)


def _giant(folder, world):
    notebook = nbformat.read(folder / NOTEBOOK, as_version=4)
    notebook.cells.append(new_markdown_cell("x" * 120_000_000))
    nbformat.write(notebook, folder / NOTEBOOK)


hand_in("malformed", "giant", "A notebook of 120 MB.", {}, place=_giant)
