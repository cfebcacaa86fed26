"""Finds answers that are nearly the same, in a class of a thousand, without comparing all pairs.

An answer is read as a syntax tree, so that comments, blank space and formatting do not count; docstrings and type
annotations are dropped, and every name that the answer itself binds is called alike. What is left is a row of tokens.
Of all runs of `RUN` tokens winnowing keeps some as fingerprints (Schleimer, Wilkerson, Aiken: Winnowing, SIGMOD 2003,
which MOSS does): two answers that share `RUN + WINDOW - 1` tokens in a row share one. An index from fingerprints to
answers then gives the pairs worth a look. What the released notebook holds does not count, nor does what more than
`COMMON` answers have: much of a short answer can be written in few ways only.

Student code is parsed, and never run. What cannot be parsed is compared as plain text.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import itertools
import re
import textwrap
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

RUN = 12  # tokens in a fingerprint
WINDOW = 4  # runs of which one is kept
COMMON = 10  # more answers than this with a fingerprint, and it does not count (MOSS's own default)
# Share of fingerprints, of those that either answer has, that both have. Measured on answers of 40 tokens and more: at
# most 0.23 between right ones that were written apart (38 pairs); of 60 and more: at least 0.45 between an answer and
# the same one in disguise, with other names and two lines more (30 pairs).
NEAR = 0.4
SHORT = 60  # tokens beyond those handed out: a shorter answer is told of in no case
LONG = 150  # tokens: as many alike are told of, however many students have them
BUILTINS = frozenset(dir(builtins))
BINDING = (ast.arg, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
UNTOLD = ("annotation", "returns", "ctx")  # parts of a node that say nothing of what it does
MOST_CHARACTERS = 50_000  # a longer answer is compared as text


@dataclass(frozen=True)
class Answer:
    """What is compared of an answer. `form`: a digest of its tokens with names numbered; `tokens`: how many."""

    form: str
    tokens: int
    prints: frozenset[int]


class Alike(NamedTuple):
    """Students whose answers to one cell are alike. `share`: of the fingerprints, 1.0 if names alone differ."""

    cell: str
    students: tuple[str, ...]
    share: float
    tokens: int


def alike(answers: Mapping[str, Mapping[str, str]], released: Mapping[str, str]) -> list[Alike]:
    """Return what is alike among `answers`, {cell: {student: source}}, most tokens first.

    `released`: {cell: the source that was handed out}, of all cells, the instructor's own too.
    """
    given = frozenset(fingerprint for source in released.values() for fingerprint in read(source).prints)
    found = []
    for cell, sources in answers.items():
        # The same text is read once: where few ways are right, a class writes few texts.
        stub = read(released.get(cell, "")).tokens
        known = {source: Own(read(source), stub, given) for source in set(sources.values())}
        mine = {student: known[source] for student, source in sources.items() if known[source].tokens >= SHORT}
        found += _identical(cell, mine) + _near(cell, mine)
    return sorted(found, key=lambda one: (-one.tokens, one.cell, one.students))


class Own:
    """What of an answer was not handed out. `prints`: fingerprints; `tokens`: how many beyond the stub and examples."""

    def __init__(self, answer: Answer, stub: int, given: frozenset[int]):
        self.form = answer.form
        self.prints = answer.prints - given
        share = len(self.prints) / max(1, len(answer.prints))
        self.tokens = min(answer.tokens - stub, round(answer.tokens * share))


def _identical(cell: str, answers: Mapping[str, Own]) -> list[Alike]:
    """Groups whose answers are the same but for names. A short one that many have is no surprise."""
    groups = defaultdict(list)
    for student, answer in answers.items():
        groups[answer.form].append(student)
    found = []
    for students in groups.values():
        tokens = answers[students[0]].tokens
        if len(students) > 1 and (len(students) <= COMMON or tokens >= LONG):
            found.append(Alike(cell, tuple(sorted(students)), 1.0, tokens))
    return found


def _near(cell: str, answers: Mapping[str, Own]) -> list[Alike]:
    """Pairs that share most of their fingerprints. Common ones do not make a pair."""
    whose = defaultdict(list)
    for student, answer in answers.items():
        for fingerprint in answer.prints:
            whose[fingerprint].append(student)
    shared: Counter[tuple[str, str]] = Counter()
    for students in whose.values():
        if len(students) <= COMMON:
            shared.update(itertools.combinations(sorted(students), 2))
    found = []
    for (one, other), both in shared.items():
        either = len(answers[one].prints | answers[other].prints)
        if answers[one].form != answers[other].form and both / either >= NEAR:
            tokens = min(answers[one].tokens, answers[other].tokens)
            found.append(Alike(cell, (one, other), both / either, tokens))
    return found


def read(source: str) -> Answer:
    """Read a source for comparing; one that is not Python becomes its words."""
    source = re.sub(r"^[ \t]*[%!].*$", "", textwrap.dedent(source), flags=re.MULTILINE)  # IPython's commands
    try:
        if len(source) > MOST_CHARACTERS:
            raise ValueError("too long to be parsed")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings, say: they are the student's
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tokens = re.findall(r"\w+|[^\w\s]", source)
        return Answer(_digest(tokens), len(tokens), frozenset(_prints(tokens)))
    walked, own = _walk(tree)
    numbers: dict[str, str] = {}
    tokens, named = [], []
    for token in walked:
        is_own = token in own
        tokens.append("own" if is_own else token)
        named.append(numbers.setdefault(token, f"own {len(numbers)}") if is_own else token)
    return Answer(_digest(named), len(tokens), frozenset(_prints(tokens)))


def _walk(tree: ast.AST) -> tuple[list[str], set[str]]:
    """Return a tree's nodes and names from left to right, and the names that it binds itself.

    Names of modules, and what is imported from them, are not its own. No recursion: trees can be deep.
    """
    tokens: list[str] = []
    own: set[str] = set()
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
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
                below += [one for one in value if isinstance(one, ast.AST) and not _is_docstring(one)]
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
    """Winnowing: of every `WINDOW` runs of `RUN` tokens that follow each other, the one with the smallest hash."""
    codes = [
        *map(_code, tokens)
    ]  # Python's hash of text differs from one process to the next; that of numbers does not
    hashes = [hash(tuple(codes[i : i + RUN])) for i in range(len(codes) - RUN + 1)]
    for i in range(len(hashes) - WINDOW + 1):
        yield min(hashes[i : i + WINDOW])


@cache
def _code(token: str) -> int:
    return zlib.crc32(token.encode("utf-8", "replace"))


def _digest(tokens: list[str]) -> str:
    return hashlib.blake2b("\0".join(tokens).encode("utf-8", "replace"), digest_size=16).hexdigest()
