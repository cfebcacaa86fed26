"""Work that nbgrader repeats for every notebook, done once: the results stay nbgrader's own."""

import subprocess
import sys

import jsonschema
import nbformat
import pytest
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter, html
from nbgrader import api
from nbgrader.nbgraderformat import MetadataValidator, common

from autograder import once

SCHEMA = MetadataValidator().schema
RIGHT = {
    "schema_version": 3,
    "grade_id": "a",
    "grade": True,
    "solution": False,
    "locked": True,
    "points": 1,
    "task": False,
}
WRONG = [
    {**RIGHT, "points": -1},
    {**RIGHT, "grade": "yes"},
    {**RIGHT, "unknown": 1},
    {**RIGHT, "grade_id": "has spaces"},
]


@pytest.mark.parametrize("metadata", WRONG)
def test_wrong_metadata_is_refused_in_the_words_of_jsonschema(metadata):
    with pytest.raises(jsonschema.ValidationError) as ours:
        once.validate(metadata, SCHEMA)
    with pytest.raises(jsonschema.ValidationError) as theirs:
        jsonschema.validate(metadata, SCHEMA)
    assert str(ours.value) == str(theirs.value)


def test_right_metadata_is_accepted_again_and_again():
    for _ in range(3):
        once.validate(RIGHT, SCHEMA)


def test_a_wrong_schema_is_refused_however_often_it_comes():
    for _ in range(2):
        with pytest.raises(jsonschema.SchemaError):
            once.validate(RIGHT, {"type": "no such type"})


def nbgraders_own():
    return api.Gradebook.__init__, html.BeautifulSoup, common.jsonschema


def test_gradebooks_of_one_course_share_an_engine_and_no_session_inside_the_block_only(tmp_path):
    url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    before = nbgraders_own()
    with once.shared():
        with (
            api.Gradebook(url, "one") as first,
            api.Gradebook(url, "one") as second,
            api.Gradebook(url, "two") as third,
        ):
            assert first.engine is second.engine
            assert first.db() is not second.db()
            second.add_student("ada")
            assert [student.id for student in third.students] == ["ada"]
        with api.Gradebook(url, "two") as again:
            assert (again.course_id, again.db.get(api.Course, "two").id) == ("two", "two")
    assert nbgraders_own() == before
    with api.Gradebook(url, "one") as first, api.Gradebook(url, "one") as second:
        assert first.engine is not second.engine


@pytest.mark.parametrize("source", ["$a<b$ & <b>bold</b>", '<img src="data:image/png,">'])
@pytest.mark.parametrize("template", ["classic", "lab"])
def test_a_page_is_as_nbconvert_makes_it(template, source):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(source)])
    theirs, _ = HTMLExporter(template_name=template).from_notebook_node(notebook)
    with once.shared():
        ours, _ = HTMLExporter(template_name=template).from_notebook_node(notebook)
    assert BeautifulSoup(ours, "html.parser") == BeautifulSoup(theirs, "html.parser")


def test_a_page_without_pictures_is_not_parsed():
    assert isinstance(once.parsed("<p>no picture</p>", "html.parser"), once.Unparsed)


def test_the_grader_starts_without_the_grammar_that_jsonschema_compiles_on_import():
    code = "import sys, autograder.grade; print('rfc3987_syntax.syntax_helpers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_nbgrader_is_restored_after_an_error_and_after_a_block_inside_a_block():
    before = nbgraders_own()
    with pytest.raises(KeyError), once.shared():
        inside = nbgraders_own()
        with once.shared():
            assert nbgraders_own() != inside
        assert nbgraders_own() == inside
        raise KeyError
    assert nbgraders_own() == before


def test_a_new_gradebook_gets_the_version_that_nbgrader_gives_it():
    assert once.newest_version() == api.get_alembic_version()
