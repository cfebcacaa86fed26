"""Work that nbgrader repeats for every notebook, done once for a class. It is half of the time that its pipeline takes.

The results stay nbgrader's own: each replacement below returns what nbgrader's function returns, and from the second
call on takes it from a cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import nbgrader
from alembic.script import ScriptDirectory
from bs4 import BeautifulSoup
from nbconvert.exporters import html
from nbgrader import api
from nbgrader.nbgraderformat import common
from sqlalchemy.orm import scoped_session


@contextmanager
def shared() -> Iterator[None]:
    """Share the repeated work inside the `with` block, and restore nbgrader's own functions after it.

    Gradebooks of one course share an engine and its compiled queries. Tables, courses and schemas are checked once. A
    new gradebook gets its version without a process that imports all of nbgrader, which takes seconds. Pages are parsed
    only if nbconvert has something to change in them.
    """
    with (
        _replaced(api.Gradebook, "__init__", reopening(api.Gradebook.__init__)),
        _replaced(common, "jsonschema", SimpleNamespace(validate=validate)),
        _replaced(html, "BeautifulSoup", parsed),
        _replaced(api, "get_alembic_version", newest_version),
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


def reopening(opening: Callable) -> Callable:
    """Return an `__init__` of nbgrader's gradebook. `opening`: its own, for the first gradebook of a course.

    That makes missing tables and a missing course. A further one gets the same engine, and a session of its own.
    """
    sessions: dict[tuple[str, str], Any] = {}

    @functools.wraps(opening)
    def init(self: Any, db_url: str, course_id: str = "default_course", authenticator: Any = None) -> None:
        if session := sessions.get((db_url, course_id)):
            self.engine, self.db = session.kw["bind"], scoped_session(session)
            self.course_id, self.authenticator = course_id, authenticator
        else:
            opening(self, db_url, course_id, authenticator)
            sessions[db_url, course_id] = self.db.session_factory

    return init


def newest_version() -> str | None:
    """Return the version of a new gradebook, from nbgrader's own files."""
    return ScriptDirectory(str(Path(nbgrader.__file__).with_name("alembic"))).get_current_head()


class Unparsed(str):
    """A page in which nbconvert has nothing to change, with the method of a parsed one that it calls to find out."""

    def select(self, _: str) -> list:
        """Return the elements that a selector finds: none."""
        return []


def parsed(page: str, features: str) -> BeautifulSoup | Unparsed:
    """Parse a page like BeautifulSoup, which takes longer than the rest of the page, if nbconvert changes it.

    It gives texts to pictures, and in JupyterLab's template, whose classes begin with "jp-", numbers to cells.
    """
    changes = "<img" in page or "jp-Notebook" in page
    return BeautifulSoup(page, features=features) if changes else Unparsed(page)


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
