"""What nbgrader makes anew for every notebook, made once: the answers stay nbgrader's."""

import jsonschema
import pytest
from nbgrader.nbgraderformat import MetadataValidator

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
