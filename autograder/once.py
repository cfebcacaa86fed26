"""Work that nbgrader repeats for every notebook, done once for a class. It is half of the time that its pipeline takes.

The results stay nbgrader's own: each replacement below returns what nbgrader's function returns, and from the second
call on takes it from a cache.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import jsonschema
from nbgrader import api
from nbgrader.nbgraderformat import common


@contextmanager
def shared() -> Iterator[None]:
    """Share the repeated work inside the `with` block, and restore nbgrader's own functions after it.

    Gradebooks with the same URL share one engine and its compiled queries. Tables and schemas are checked once.
    """
    tables = api.Base.metadata
    with (
        _replaced(api, "create_engine", functools.cache(api.create_engine)),
        _replaced(tables, "create_all", functools.cache(tables.create_all)),
        _replaced(common, "jsonschema", SimpleNamespace(validate=validate)),
    ):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


_validators: dict[str, Any] = {}  # by the schema's text, because each of nbgrader's validators has its own copy


def validate(instance: Any, schema: dict) -> None:
    """Validate like `jsonschema.validate`, but check each schema only the first time.

    Raises:
        jsonschema.ValidationError: `instance` doesn't fit the schema; the error is the one that jsonschema picks.
        jsonschema.SchemaError: the schema itself is invalid.
    """
    kind = jsonschema.validators.validator_for(schema)
    text = repr(schema)
    if text not in _validators:
        kind.check_schema(schema)
        _validators[text] = kind(schema)
    if error := jsonschema.exceptions.best_match(_validators[text].iter_errors(instance)):
        raise error
