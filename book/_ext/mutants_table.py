"""The directive `{mutants}`: wrong and right answers to every exercise, and how the grader graded them.

The data are in data/mutants.json. The exercises' tests compare their results with it; tools/mutants.py updates it.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

TITLES = (
    "Wrong answer",
    "Comes from",
    "Gets",
    "Refused by",
    "With what is built on it",
    "What the student is told",
)
HEAD = "".join(f"<th>{title}</th>" for title in TITLES)


def origin(name: str, claims: dict, pages: dict) -> str:
    """Return a wrong answer's origin as HTML, with a link if it is a claim or a page of the book."""
    if name in claims:
        return f'<a href="{claims[name]["page"]}.html#{name}">{name}</a>'
    if match := re.fullmatch(r"page (\d\d)", name):
        return f'<a href="{pages[match[1]]}.html">chapter {match[1]}</a>'
    return escape(name)


def wrong_row(name: str, row: dict, total: float, where: str) -> str:
    """Return one wrong answer as a table row in HTML. `total`: the exercise's points; `where`: its origin in HTML."""
    lost, carried = sum(row["lost"].values()), sum(row["carried"].values())
    built = f"{total - lost - carried:.3g}: {checks(row['carried'])}" if carried else ""
    cells = (escape(name), where, f"{total - lost:.3g} of {total:g}", checks(row["lost"]), built, escape(row["told"]))
    labelled = zip(TITLES, cells, strict=True)  # on a phone each cell shows its title
    return "<tr>" + "".join(f'<td data-head="{title}">{cell}</td>' for title, cell in labelled) + "</tr>"


def checks(names: dict) -> str:
    """Return the names of checks as HTML."""
    return " ".join(f"<code>{escape(name)}</code>" for name in names)


def folded(exercise: str, rows: dict, claims: dict, pages: dict) -> str:
    """Return an exercise's answers as a folded block of HTML."""
    total = sum(rows["points"].values())
    wrong, right = rows["wrong"], rows["right"]
    table = "".join(wrong_row(name, row, total, origin(row["origin"], claims, pages)) for name, row in wrong.items())
    others = "".join(f"<li>{escape(name)}: {total:g} of {total:g}</li>" for name in right)
    worth = " ".join(f"<code>{escape(check)}</code> {points:g}" for check, points in rows["points"].items())
    return (
        f'<details id="{exercise}"><summary><strong>{exercise}</strong>, {total:g} points by machine: '
        f"{len(wrong)} wrong answers, {len(right)} right ones</summary><p>Checks and their points: {worth}</p>"
        f'<div class="claims-table" tabindex="0"><table class="claims"><thead><tr>{HEAD}</tr></thead>'
        f"<tbody>{table}</tbody></table></div>"
        f"<p>Right answers, each written in another way than the solution:</p><ul>{others}</ul></details>"
    )


class Mutants(SphinxDirective):
    """A count of all exercises' answers, and a folded block for each exercise."""

    def run(self) -> list[nodes.Node]:
        folder = Path(self.env.srcdir)
        data, claims = folder / "data" / "mutants.json", folder / "claims.yml"
        for path in (data, claims):
            self.env.note_dependency(str(path))
        table = json.loads(data.read_text(encoding="utf-8"))
        rows = yaml.safe_load(claims.read_text(encoding="utf-8"))
        pages = {path.stem[:2]: path.stem for path in folder.glob("[0-9][0-9]_*.md")}
        wrong = [row for exercise in table.values() for row in exercise["wrong"].values()]
        right = sum(len(exercise["right"]) for exercise in table.values())
        seeds = len({row["origin"] for row in wrong} & rows.keys())
        html = (
            f"<p>{len(table)} exercises, {len(wrong)} wrong answers, {right} right ones. "
            f"{sum(row['origin'] in rows for row in wrong)} of the wrong ones come from {seeds} rows of "
            f'<a href="claims.html">Claims, checked</a>.</p>'
        ) + "".join(folded(exercise, part, rows, pages) for exercise, part in table.items())
        return [nodes.raw("", html, format="html")]


def setup(app: Sphinx) -> dict:
    """Register the directive."""
    app.add_directive("mutants", Mutants)
    return {"parallel_read_safe": True}
