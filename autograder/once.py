"""What nbgrader makes anew for every notebook, made once for a class: half of the time that its pipeline takes.

Nothing that nbgrader decides is changed: each function below gives what nbgrader's own gives, from the second time on
without making it.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import jsonschema
from nbgrader import api
from nbgrader.nbgraderformat import common


def share() -> None:
    """Let gradebooks of one address share an engine and its compiled queries, and check tables and schemas once."""
    if isinstance(common.jsonschema, SimpleNamespace):  # done already, for another course
        return
    api.create_engine = functools.cache(api.create_engine)
    api.Base.metadata.create_all = functools.cache(api.Base.metadata.create_all)
    common.jsonschema = SimpleNamespace(validate=validate)


_validators: dict[str, Any] = {}  # by the schema's text: each of nbgrader's validators has a copy of its own


def validate(instance: Any, schema: dict) -> None:
    """`jsonschema.validate`, which checks the schema itself before each instance: here the first time only."""
    kind = jsonschema.validators.validator_for(schema)
    text = repr(schema)
    if text not in _validators:
        kind.check_schema(schema)
        _validators[text] = kind(schema)
    if error := jsonschema.exceptions.best_match(_validators[text].iter_errors(instance)):
        raise error
