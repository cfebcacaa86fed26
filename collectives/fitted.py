"""Models with constants that are fitted to what others published, and how they are judged.

A model's constants are a dataclass, each field made by `constant`: its fitted value, the guess that a fit starts from
and is pulled to, a bound, and what it says. `fit` finds the values, `table` shows them. A model is judged on what its
fit did not see: `without` fits to all repositories but one, for each in turn, and a record keeps the errors of those
predictions with a digest of everything that they follow from, so that no record outlives a changed formula.

Errors are log(predicted / measured).
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

NEAR = 0.25  # a relative error within which a prediction is of use
UNIT = 20  # times that a measurement may be off a prediction before its unit is taken to be wrong
TRUST = 0.2  # weight of the guesses: how many spreads of a guess are worth one error of 100 %
CHANGE = 1e-4  # of a constant's logarithm, for derivatives


# --- constants --------------------------------------------------------------------------------------------------


def constant(value: float, guess: float, says: str, spread: float = 0.67, most: float = inf) -> Any:
    """Return the field of a constant. `spread`: of the guess, as a factor's logarithm. `most`: it can't be above."""
    return field(default=value, metadata={"guess": guess, "says": says, "spread": spread, "most": most})


def _all(kind: type, what: str) -> np.ndarray:
    return np.array([each.metadata[what] for each in fields(kind)])


def names(kind: type) -> list[str]:
    """Return the names of the constants."""
    return [each.name for each in fields(kind)]


def guessed(kind: type):
    """Return the constants before any fit."""
    return kind(**dict(zip(names(kind), _all(kind, "guess").tolist(), strict=True)))


def most(constants: Any, name: str) -> float:
    """Return the bound of a constant."""
    return next(each.metadata["most"] for each in fields(constants) if each.name == name)


def at_bound(constants: Any) -> list[str]:
    """Return the constants whose values are at their bounds: the data would have them beyond."""
    return [each.name for each in fields(constants) if getattr(constants, each.name) >= 0.999 * each.metadata["most"]]


def table(constants: Any) -> str:
    """Return constants as a Markdown table: what each says, its guess and its value, with a mark if that is a bound."""
    lines = ["| constant | what it is | first guess | fitted |", "|---|---|--:|--:|"]
    for each in fields(constants):
        guess, value = each.metadata["guess"], getattr(constants, each.name)
        mark = " (as guessed)" if abs(value / guess - 1) < 1e-3 else ""
        mark = " (at its bound)" if each.name in at_bound(constants) else mark
        lines.append(f"| `{each.name}` | {each.metadata['says']} | {_text(guess)} | {_text(value)}{mark} |")
    return "\n".join(lines)


def _text(value: float) -> str:
    """Return a constant with its unit: those below a hundredth are seconds, the others shares and factors."""
    return f"{value:.3g}" if value >= 1e-2 else f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


# --- fitting ----------------------------------------------------------------------------------------------------


def fit(
    kind: type,
    seconds: Callable[[Any], np.ndarray],
    measured: np.ndarray,
    weights: np.ndarray,
    typical: float,
    start: Any = None,
    guess: Any = None,
    steps: int = 30,
):
    """Return the constants that fit best, by at most so many Gauss-Newton steps from `start`, or from the guesses.

    `seconds`: predicts [sample, column] for constants that are arrays [column]. The fit minimises a robust sum of
    weighted errors (soft-L1: an error well above `typical` counts by its size, not by its square), plus each constant's
    squared distance from its guess: its own, or that of `guess`. Constants are fitted as logarithms, so they stay
    positive, and within bounds.
    """
    priors, first = (
        np.log([getattr(of, name) for name in names(kind)])
        for of in (guess or guessed(kind), start or guess or guessed(kind))
    )
    spread, most = _all(kind, "spread"), np.log(_all(kind, "most"))
    logs = np.minimum(first, most)

    def errors(columns: np.ndarray) -> np.ndarray:
        constants = kind(**dict(zip(names(kind), np.exp(columns), strict=True)))
        return np.log(seconds(constants)) - np.log(measured)[:, None]

    def loss(columns: np.ndarray) -> np.ndarray:
        robust = weights @ (2 * typical**2 * (np.sqrt(1 + (errors(columns) / typical) ** 2) - 1))
        return robust + TRUST**2 * (((columns - priors[:, None]) / spread[:, None]) ** 2).sum(axis=0)

    for _ in range(steps):
        off = errors(np.concatenate([logs[:, None], logs[:, None] + CHANGE * np.eye(len(logs))], axis=1))
        slopes = (off[:, 1:] - off[:, :1]) / CHANGE
        robust = weights / np.sqrt(1 + (off[:, 0] / typical) ** 2)
        curvature = slopes.T @ (robust[:, None] * slopes) + np.diag(TRUST**2 / spread**2)
        slope = slopes.T @ (robust * off[:, 0]) + TRUST**2 * (logs - priors) / spread**2
        free = (logs < most) | (slope > 0)  # a constant at its bound stays there if it would go on
        change = np.zeros(len(logs))
        change[free] = np.linalg.solve(curvature[np.ix_(free, free)], -slope[free])
        tried = np.minimum(logs[:, None] + change[:, None] * np.append(0, 0.5 ** np.arange(6)), most[:, None])
        before, logs = logs, tried[:, int(loss(tried).argmin())]
        if np.abs(logs - before).max() < 2e-3:
            break
    return kind(**dict(zip(names(kind), np.exp(logs).tolist(), strict=True)))


# --- judging ----------------------------------------------------------------------------------------------------


def repository(source: str) -> str:
    """Return where a source was published: a repository, with all its files and issues, or an unnamed report."""
    if named := re.search(r"README of ([\w-]+/[\w-]+)", source):
        return named[1]
    if "repository unknown" in source:
        return source
    return re.sub(r"/issues/.*|:.*| @.*", "", source.removeprefix("https://").removeprefix("github.com/"))


def without(samples: Sequence[Any], refit: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Return {repository: the constants that `refit` finds with all samples of other repositories}."""
    where = [repository(sample.source) for sample in samples]
    return {
        left: refit([sample for sample, place in zip(samples, where, strict=True) if place != left])
        for left in dict.fromkeys(where)
    }


class Errors(NamedTuple):
    """Relative errors: how many, median and 90th percentile of their sizes, share within a quarter, typical sign."""

    number: int
    median: float
    ninety: float
    near: float
    bias: float


def errors(logs: Iterable[float]) -> Errors:
    """Return the summary of errors that are given as logarithms, without those that are NaN; NaN if there are none."""
    found = np.array([error for error in logs if error == error])
    if not len(found):
        return Errors(0, *(4 * [float("nan")]))
    sizes, bias = np.abs(np.expm1(found)), np.expm1(np.median(found))
    return Errors(len(found), *map(float, (np.median(sizes), np.quantile(sizes, 0.9), (sizes <= NEAR).mean(), bias)))


def wrong_unit(measured: float, predicted: float) -> str | None:
    """Return what to say of seconds that are so far off the prediction that their unit must be wrong; else None."""
    times = measured / predicted
    if 1 / UNIT < times < UNIT:
        return None
    far = f"{times:,.0f} times as long as" if times > 1 else f"{1 / times:,.0f} times less than"
    return f"{measured:.3g} s are {far} the model says: is a unit wrong?"


# --- records ----------------------------------------------------------------------------------------------------


def digest(data: Path, modules: Sequence[ModuleType]) -> str:
    """Return what changes if the data change, or a formula, a constant, its guess or its bound in `modules`."""
    parts = [data.read_bytes(), *(_formulas(module) for module in modules)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _formulas(module: ModuleType) -> bytes:
    """Return a module's source without docstrings and other strings that stand alone."""
    assert module.__file__
    text = Path(module.__file__).read_text(encoding="utf-8")
    lines: list[str] = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)  # type: ignore[operator]
    return "\n".join(line for line in lines if line.strip()).encode()


def record(path: Path, of: str, found: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Write {what was left out: {sample: errors}} to a file, with the date and the digest that it is `of`."""
    rows = {what: {name: [round(float(x), 4) for x in logs] for name, logs in by.items()} for what, by in found.items()}
    about = {"made": f"{datetime.now(UTC):%Y-%m-%d}", "by": "make evidence", "of": of}
    path.write_text(json.dumps(about | rows) + "\n", encoding="utf-8")


def recorded(path: Path, of: str) -> dict[str, dict[str, list[float]]]:
    """Return what `record` wrote. Raises `ValueError` if that was of other data, other constants or other formulas."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["of"] != of:
        raise ValueError(f"{path.name} is not of these data, constants and formulas; run `make evidence`")
    return {what: rows for what, rows in found.items() if what not in ("made", "by", "of")}
