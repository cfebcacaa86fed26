"""Work that nbgrader repeats for every notebook, done once: the results stay nbgrader's own."""

import jsonschema
import pytest
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
    return api.create_engine, api.Base.metadata.create_all, common.jsonschema


def test_gradebooks_of_one_url_share_an_engine_inside_the_block_only(tmp_path):
    url = f"sqlite:///{tmp_path / 'gradebook.db'}"
    before = nbgraders_own()
    with once.shared():
        assert api.create_engine(url) is api.create_engine(url)
        assert common.jsonschema.validate is once.validate
    assert nbgraders_own() == before
    assert api.create_engine(url) is not api.create_engine(url)


def test_nbgrader_is_restored_after_an_error_and_after_a_block_inside_a_block():
    before = nbgraders_own()
    with pytest.raises(KeyError), once.shared():
        inside = nbgraders_own()
        with once.shared():
            assert nbgraders_own() != inside
        assert nbgraders_own() == inside
        raise KeyError
    assert nbgraders_own() == before
