"""What the judge may ask a sandbox, and what may answer it: one table, and a check for each field.

    the judge asks                                            the sandbox answers, once
    open     packages, files, names                           done
    cell     source, name, given                              ran       outputs, bound
    look     names                                            values    values
                                                              raised    error, printed
    call     target, method, args, kwargs                     returned  result, printed
                                                              raised    error, printed
    changes  numbers                                          changed   objects
                                                              raised    error, printed
    pack     values                                           packed    bytes
                                                              raised    error, printed

`pack` is for the ranks of `judging.ranks`: the judge hands the bytes on and never reads them.

During a call, and only then, the sandbox may itself ask `callback number, args, kwargs`, as often as it likes, for a
function that the judge has passed to it. The judge answers `reply result` or `refusal name, message`.

A message is a tuple: its word, the number of the request that it belongs to, and the fields above. The judge draws the
number when it asks, so an answer can't be written before its question. Whatever else arrives, whether malformed,
unasked, twice or late, is `Hostile`: code in the sandbox that keeps to this file sends nothing of the kind.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .plain import BadMessage, bound_name

MAX_TEXT = 100_000  # characters of one output, more than a reader looks at
MAX_OUTPUTS = 200  # outputs of one cell
MAX_MIME = 4_000_000  # characters of one picture
MAX_SHOWN = 16_000_000  # characters of one cell's displays
MAX_NAME = 200  # characters of a name
MAX_WORDS = 10_000  # characters of an error's message, of a docstring, and of a function's source
MAX_SIGNATURE = 1_000  # characters; Python's parser, which reads it, needs memory for every bracket
MAX_FRAMES = 30  # frames of a traceback
MAX_LINE = 5_000  # the largest line number in a traceback
MAX_LINES = 1_000  # lines of a traceback as a shell shows it
MIME_TYPES = (  # what a page can show of a display; nothing else crosses
    *("text/plain", "text/html", "text/markdown", "text/latex"),
    *("image/svg+xml", "image/png", "image/jpeg"),
)
MOST_PIECES = 2_000  # outputs of a whole notebook, see `pieces`: each costs a page a millisecond, even an empty one
MAX_BASES = 20  # classes that an exception is derived from
MAX_PACKED = 16 * 2**20  # bytes of the student's functions and what they close over, for each rank
MAX_ARGS = 10  # arguments that an exception keeps
KINDS = ("function", "class", "exception", "iterator", "module", "object")
STREAMS = ("stdout", "stderr")


class Hostile(BadMessage):
    """A message that the code in the sandbox never sends: a student's code does."""


@dataclass(frozen=True)
class Error:
    """An exception in the sandbox. `bases`: its class and that class's bases, as (module, qualified name).

    `frames`: (file, line, function, text), innermost last.
    """

    bases: list[tuple[str, str]]
    args: tuple
    message: str
    frames: list[tuple[str, int, str, str]]


def fields(message: Any, number: str, *words: str) -> tuple[str, list]:
    """Return (word, fields) of a message that must be one of `words` and belong to request `number`."""
    plain = type(message) is tuple and [type(part) for part in message[:2]] == [str, str]  # an array equals as it likes
    if not plain or message[0] not in words or message[1] != number:
        wanted = " or ".join(repr(word) for word in words)
        raise Hostile(f"a message that nobody asked for; {wanted} was due")
    word, _, *rest = message
    if len(rest) != _FIELDS[word]:
        raise Hostile(f"{word!r} with {len(rest)} fields")
    return word, rest


VALUES = ("values", "returned", "raised", "changed", "callback")  # what a student's values come in
_FIELDS = {"done": 0, "ran": 2, "values": 1, "returned": 2, "raised": 2, "changed": 1, "packed": 1, "callback": 3}


def values(given: Any, asked: Collection[str]) -> dict[str, Any]:
    """Check what answers `look`: values of the names that were asked for, and of no others."""
    _need(type(given) is dict and given.keys() <= set(asked), "values of names that nobody asked for")
    return given


def bound(given: Any, asked: Collection[str]) -> dict[str, tuple[str, dict]]:
    """Check what a cell bound: {name: (kind, what is known about it)}, of the names that were asked for."""
    _need(type(given) is dict and given.keys() <= set(asked), "names that nobody asked for")
    return {name: (_pair(about)[0], thing(*_pair(about))) for name, about in given.items()}


def thing(kind: Any, about: Any) -> dict[str, Any]:
    """Check what is known about a value that stays in the sandbox; return it."""
    _need(
        type(kind) is str and kind in KINDS and type(about) is dict and about.keys() <= _ABOUT.keys(),
        "an unknown kind of thing",
    )
    _need("name" in about and (kind != "exception" or "bases" in about), "a thing without a name")
    return {field: _ABOUT[field](value) for field, value in about.items()}


def handle(given: list) -> tuple[int, str, dict]:
    """Check the tree of a value that stays in the sandbox: its number there, its kind, and what is known about it."""
    _need(len(given) == 4 and type(given[1]) is int and type(given[3]) is dict, "a malformed handle")
    about = given[3]
    if type(about.get("bases")) is list:  # JSON knows no tuples
        about = about | {"bases": [tuple(pair) if type(pair) is list else pair for pair in about["bases"]]}
    return given[1], given[2], thing(given[2], about)


def callback(number: Any, args: Any, kwargs: Any, known: int) -> tuple[int, tuple, dict[str, Any]]:
    """Check a request to call the judge's function `number`, of `known` that it has passed."""
    _need(type(number) is int and 0 <= number < known, "a call of a function that was not passed")
    _need(type(args) is tuple and type(kwargs) is dict and all(map(bound_name, kwargs)), "a malformed call")
    return number, args, kwargs


def changed(given: Any, passed: Collection[int]) -> dict[int, Any]:
    """Check what answers `changes`: new contents of objects that this call passed, by number."""
    _need(type(given) is dict and given.keys() <= set(passed), "a change of an object that was not passed")
    return given


def packed(given: Any) -> bytes:
    """Check a pickle for ranks. The judge must not read it."""
    _need(type(given) is bytes and len(given) <= MAX_PACKED, "a pickle that is too large, or none")
    return given


def printed(given: Any) -> list[tuple[str, str]]:
    """Check what a call printed: (stream, text), in order."""
    _need(type(given) is list and len(given) <= MAX_OUTPUTS, "too many prints")
    pairs = [_pair(item) for item in given]
    _need(all(_is_stream(stream) for stream, _ in pairs), "an unknown stream")
    return [(stream, text(words, MAX_TEXT + MAX_NAME)) for stream, words in pairs]


def error(given: Any) -> Error:
    """Check an exception's fields. Its arguments are kept where they are plain and small; else the message is."""
    _need(type(given) is tuple and len(given) == 4, "a malformed error")
    message, frames = text(given[2], MAX_WORDS), given[3]
    _need(type(frames) is list and len(frames) <= MAX_FRAMES, "too many frames")
    plain = type(given[1]) is tuple and len(given[1]) <= MAX_ARGS and all(map(is_small, given[1]))
    return Error(_bases(given[0]), given[1] if plain else (message,), message, [_frame(frame) for frame in frames])


def outputs(given: Any) -> list[dict]:
    """Check a student's cell's outputs, in the notebook format."""
    _need(type(given) is list and len(given) <= MAX_OUTPUTS, "too many outputs")
    checked = [_output(item) for item in given]
    _need(size(checked) <= MAX_SHOWN + 5 * MAX_TEXT, "too long outputs")  # displays, prints, an error, and names
    _need(sum(output["output_type"] == "error" for output in checked) <= 1, "more than one error")
    return checked


def text(given: Any, most: int) -> str:
    """Check a text of at most `most` characters; return it without what UTF-8 or a database can't hold."""
    _need(type(given) is str and len(given) <= most, "a text that is too long, or none")
    return clean(given)


def clean(words: str) -> str:
    """Return a text that can be stored, without odd escapes."""
    return storable(_ODD_ESCAPE.sub("", words))


_FROM_RIGHT = re.compile(
    "[\u0590-\u08ff\u200f\u202b\u202e\u2067\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
)


def lines_in(text: str) -> int:
    """Return how many lines a text has for a browser that shows it. A letter written from right to left is as slow.

    So are ten tabs. Every end of a line counts that Python or a browser knows.
    """
    return sum(map(text.count, "\n\r\v\f\x85\u2028\u2029")) + text.count("\t") // 10 + len(_FROM_RIGHT.findall(text))


def storable(words: str) -> str:
    """Return a text without half surrogate pairs, which UTF-8 can't hold, and NULs, which PostgreSQL can't hold."""
    return words.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


_ODD_ESCAPE = re.compile(r"\x1b(?!\[[\d;]{0,30}m)")  # any but a colour's, which nbconvert shows in quadratic time


def _need(met: bool, what: str) -> None:
    if not met:
        raise Hostile(what)


def _pair(given: Any) -> tuple:
    _need(type(given) is tuple and len(given) == 2, "something that is no pair")
    return given


def _bases(given: Any) -> list[tuple[str, str]]:
    _need(type(given) is list and 0 < len(given) <= MAX_BASES, "an exception without a class")
    return [(text(module, MAX_NAME), text(name, MAX_NAME)) for module, name in map(_pair, given)]


def _frame(given: Any) -> tuple[str, int, str, str]:
    _need(type(given) is tuple and len(given) == 4 and type(given[1]) is int, "a malformed frame")
    file, line, function, words = given
    return text(file, MAX_NAME), min(max(line, 1), MAX_LINE), text(function, MAX_NAME), text(words, MAX_WORDS)


def is_small(value: Any) -> bool:
    """Return whether an exception's argument is a plain value that any message can show."""
    if type(value) is int:
        return abs(value) < 2**63
    return value is None or type(value) in (bool, float) or (type(value) is str and len(value) <= MAX_WORDS)


def _is_stream(name: Any) -> bool:
    return type(name) is str and name in STREAMS


def _output(given: Any) -> dict:
    _need(type(given) is dict, "a malformed output")
    kind = given.get("output_type")
    _need(type(kind) is str, "an unknown output")
    if kind == "stream":
        _need(given.keys() == {"output_type", "name", "text"} and _is_stream(given["name"]), "a malformed stream")
        return given | {"text": text(given["text"], MAX_TEXT + MAX_NAME)}
    if kind == "error":
        _need(given.keys() == {"output_type", "ename", "evalue", "traceback"}, "a malformed error")
        lines = given["traceback"]
        _need(type(lines) is list and len(lines) <= MAX_LINES, "a long traceback")
        _need(sum(len(text(line, MAX_TEXT)) for line in lines) <= MAX_TEXT, "a long traceback")
        words = {"ename": text(given["ename"], MAX_NAME), "evalue": text(given["evalue"], MAX_TEXT)}
        return given | words | {"traceback": [clean(line) for line in lines]}
    _need(kind in ("display_data", "execute_result") and type(given.get("data")) is dict, "an unknown output")
    _need(given["data"].keys() <= set(MIME_TYPES), "a mime type that no page shows")
    data = {mime: text(shown, MAX_MIME) for mime, shown in given["data"].items()}
    more = {"execution_count": None} if kind == "execute_result" else {}
    return {"output_type": kind, "data": data, "metadata": {}, **more}


_ABOUT = {
    "name": lambda given: text(given, MAX_NAME),
    "doc": lambda given: None if given is None else text(given, MAX_WORDS),
    "signature": lambda given: text(given, MAX_SIGNATURE),
    "source": lambda given: text(given, MAX_WORDS),
    "bases": _bases,
}


def size(outputs: list[dict]) -> int:
    """Return the characters in a cell's outputs, mime types included."""
    return sum(
        sum(map(len, (*output.get("data", {}), *output.get("data", {}).values(), *output.get("traceback", ()))))
        + sum(len(output.get(name, "")) for name in ("text", "ename", "evalue"))
        for output in outputs
    )


def pieces(output: Mapping) -> int:
    """Return what an output counts for: itself, and one more for every ten lines of a traceback."""
    return 1 + len(output.get("traceback", ())) // 10
