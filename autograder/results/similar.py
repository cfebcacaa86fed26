"""A search for answers that are nearly the same, in a class of a thousand, without comparing all pairs.

It parses an answer into a syntax tree, so comments, white space and formatting don't count. It drops docstrings and
type annotations, and gives one name to everything that the answer itself binds. The result is a sequence of tokens.
Winnowing keeps some of its runs of `RUN` tokens as fingerprints (Schleimer, Wilkerson, Aiken: Winnowing, SIGMOD 2003;
MOSS works this way). Two answers with `RUN + WINDOW - 1` consecutive tokens in common share at least one fingerprint.
An index from fingerprints to answers then yields the pairs worth a look. Fingerprints of the released notebook don't
count, nor do those of more than `COMMON` answers, because there are only a few ways to write much of a short answer.

The search parses student code in the cage and never runs it. It compares what it can't parse as words, and what is too
long for that, or can't be read in the cage, only by a digest of its text.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import itertools
import json
import re
import textwrap
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from .. import cage

RUN = 12  # tokens in a fingerprint
WINDOW = 4  # consecutive runs; winnowing keeps one of them
COMMON = 10  # answers; a fingerprint that more of them have doesn't count (MOSS's default)
# The share of two answers' fingerprints that both have. Measured: at most 0.23 between right answers that were written
# independently (38 pairs of 40 tokens and more); at least 0.45 between an answer and the same one in disguise, with
# other names and two more lines (30 pairs of 60 tokens and more).
NEAR = 0.4
SHORT = 60  # tokens beyond the released ones; shorter answers are never reported
LONG = 150  # tokens; identical answers of this length are reported, however many students have them
BUILTINS = frozenset(dir(builtins))
BINDING = (ast.arg, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
UNTOLD = ("annotation", "returns", "ctx")  # fields of a node that don't change what it does
MOST_CHARACTERS = 50_000  # a longer answer is compared only by a digest
CHARACTERS = 5  # of a token in such an answer, about
MOST_SECONDS = 2.0  # to parse one answer
ALL_SECONDS = 60.0  # to parse all answers of an exercise


@dataclass(frozen=True)
class Answer:
    """An answer in the form for comparing. `form`: a digest of its tokens with names numbered; `tokens`: how many."""

    form: str
    tokens: int
    prints: frozenset[int]


class Alike(NamedTuple):
    """Students with similar answers to one cell. `share`: of the fingerprints in common, 1.0 if only names differ."""

    cell: str
    students: tuple[str, ...]
    share: float
    tokens: int


def alike(answers: Mapping[str, Mapping[str, str]], released: Mapping[str, str]) -> list[Alike]:
    """Return the similar answers among `answers`, {cell: {student: source}}, most tokens first.

    `released`: {cell: source that students got}, for all cells, including the instructor's.
    """
    # Read each text once: with few right ways to answer, many students write the same text.
    theirs = (source for sources in answers.values() for source in sources.values())
    reading = read_all([*released.values(), "", *theirs])
    handed_out = frozenset(fingerprint for source in released.values() for fingerprint in reading[source].prints)
    groups: list[Alike] = []
    for cell, sources in answers.items():
        stub = reading[released.get(cell, "")].tokens
        known = {source: Own(reading[source], stub, handed_out) for source in set(sources.values())}
        mine = {student: known[source] for student, source in sources.items() if known[source].tokens >= SHORT}
        groups += _identical(cell, mine) + _near(cell, mine)
    return sorted(groups, key=lambda group: (-group.tokens, group.cell, group.students))


class Own:
    """The student's own part of an answer. `prints`: fingerprints; `tokens`: how many beyond the stub and examples."""

    def __init__(self, answer: Answer, stub: int, given: frozenset[int]):
        self.form = answer.form
        self.prints = answer.prints - given
        share = len(self.prints) / len(answer.prints) if answer.prints else 1.0
        self.tokens = min(answer.tokens - stub, round(answer.tokens * share))


def _identical(cell: str, answers: Mapping[str, Own]) -> list[Alike]:
    """Return groups whose answers differ only in names. A short answer that many students have is no group."""
    by_form = defaultdict(list)
    for student, answer in answers.items():
        by_form[answer.form].append(student)
    groups = []
    for students in by_form.values():
        tokens = answers[students[0]].tokens
        if len(students) > 1 and (len(students) <= COMMON or tokens >= LONG):
            groups.append(Alike(cell, tuple(sorted(students)), 1.0, tokens))
    return groups


def _near(cell: str, answers: Mapping[str, Own]) -> list[Alike]:
    """Return pairs that share at least `NEAR` of their fingerprints, found without the common ones."""
    whose = defaultdict(list)
    for student, answer in answers.items():
        for fingerprint in answer.prints:
            whose[fingerprint].append(student)
    shared: Counter[tuple[str, str]] = Counter()
    for students in whose.values():
        if len(students) <= COMMON:
            shared.update(itertools.combinations(sorted(students), 2))
    pairs = []
    for (one, other), both in shared.items():
        either = len(answers[one].prints | answers[other].prints)
        if answers[one].form != answers[other].form and both / either >= NEAR:
            tokens = min(answers[one].tokens, answers[other].tokens)
            pairs.append(Alike(cell, (one, other), both / either, tokens))
    return pairs


def read_all(sources: Iterable[str]) -> dict[str, Answer]:
    """Return sources in the form for comparing. One that the cage can't read has only a digest."""
    each = list(dict.fromkeys(sources))
    items = [json.dumps(source).encode() for source in each]
    found = {}
    for source, answer in zip(each, cage.each(read_one, items, MOST_SECONDS, ALL_SECONDS), strict=True):
        if isinstance(answer, cage.Failed):
            found[source] = _as_text(source)
        else:
            form, tokens, prints = json.loads(answer)
            found[source] = Answer(form, tokens, frozenset(prints))
    return found


def read_one(item: bytes) -> bytes:
    """Return JSON of the `Answer` to a source, which is JSON, too. The cage calls this."""
    answer = read(json.loads(item))
    return json.dumps([answer.form, answer.tokens, [*answer.prints]]).encode()


def read(source: str) -> Answer:
    """Return a source in the form for comparing. A source that isn't Python is split into words."""
    if len(source) > MOST_CHARACTERS:
        return _as_text(source)
    source = re.sub(r"^[ \t]*[%!].*$", "", textwrap.dedent(source), flags=re.MULTILINE)  # IPython's commands
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for example of escapes in the student's strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _as_words(source)
    walked, own = _walk(tree)
    numbers: dict[str, str] = {}
    tokens, named = [], []
    for token in walked:
        is_own = token in own
        tokens.append("own" if is_own else token)
        named.append(numbers.setdefault(token, f"own {len(numbers)}") if is_own else token)
    return Answer(_digest(named), len(tokens), frozenset(_prints(tokens)))


def _as_words(source: str) -> Answer:
    tokens = re.findall(r"\w+|[^\w\s]", source)
    return Answer(_digest(tokens), len(tokens), frozenset(_prints(tokens)))


def _as_text(source: str) -> Answer:
    return Answer(_digest([source]), len(source) // CHARACTERS, frozenset())


def _walk(tree: ast.AST) -> tuple[list[str], set[str]]:
    """Return a tree's nodes and names from left to right, and the names that it binds itself.

    Modules, and names imported from them, don't count as its own. A loop, not recursion, because trees can be deep.
    """
    tokens: list[str] = []
    own: set[str] = set()
    left: list[ast.AST] = [tree]
    while left:
        node: Any = left.pop()
        kind = type(node)
        if kind is ast.Name:
            tokens.append(node.id)
            if type(node.ctx) is ast.Store and node.id not in BUILTINS:
                own.add(node.id)
            continue
        if kind is ast.Constant:
            tokens.append("string" if isinstance(node.value, str | bytes) else repr(node.value))
            continue
        tokens.append(kind.__name__)
        if kind in BINDING:
            own.add(node.arg if kind is ast.arg else node.name)
        below: list[ast.AST] = []
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                below += [child for child in value if isinstance(child, ast.AST) and not _is_docstring(child)]
            elif isinstance(value, ast.AST):
                if field not in UNTOLD:
                    below.append(value)
            elif isinstance(value, str) and field in ("name", "arg", "attr"):
                tokens.append(value if kind in BINDING else f".{value}")  # x.name and f(name=x) bind no name
        left += below[::-1]
    return tokens, own


def _is_docstring(node: ast.AST) -> bool:
    return type(node) is ast.Expr and type(node.value) is ast.Constant


def _prints(tokens: list[str]) -> Iterator[int]:
    """Yield the smallest hash of every `WINDOW` consecutive runs of `RUN` tokens: winnowing."""
    codes = [*map(_code, tokens)]  # numbers, because Python's hash of text differs between processes
    hashes = [hash(tuple(codes[i : i + RUN])) for i in range(len(codes) - RUN + 1)]
    for i in range(len(hashes) - WINDOW + 1):
        yield min(hashes[i : i + WINDOW])


@cache
def _code(token: str) -> int:
    return zlib.crc32(token.encode("utf-8", "replace"))


def _digest(tokens: list[str]) -> str:
    return hashlib.blake2b("\0".join(tokens).encode("utf-8", "replace"), digest_size=16).hexdigest()
