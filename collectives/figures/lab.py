"""The Lab as one piece of HTML: its scripts, and the puzzles, algorithms and machines that it offers, as data.

Nothing is computed here. The page runs, proves and prices schedules itself, with an interpreter that the tests hold
equal to Python's (`static/lab/`): schedule.js, simulate.js, contracts.js and price.js.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from importlib.resources import files

from .. import machines
from ..algorithms.scorecard import ROWS
from ..schedule import Schedule, Step
from .colours import ALGORITHMS, RANK_COLOURS, ink_on
from .player import asset
from .slots import KINDS

INTERPRETER = "schedule", "simulate", "contracts", "price"
"""The scripts of the interpreter, in the order in which they load."""

SIZES = 2, 3, 4, 5, 6, 7, 8, 12, 16
"""The numbers of ranks for which the page offers the scorecard's algorithms."""

_FIGURES = "player", "schedule", "clock", "network"
_LAB = *INTERPRETER, "faults", "picture", "puzzles", "share", "board", "lanes", "race", "export", "lab"


def puzzles() -> list[dict]:
    """Return the Lab's puzzles, in order; static/lab/puzzles.js says what their fields mean."""
    return json.loads(files(__package__).joinpath("static", "lab", "puzzles.json").read_text(encoding="utf-8"))


def notation(schedule: Schedule) -> str:
    """Return all of a schedule's steps, a line each, in the notation that `Schedule.parse` reads."""
    return "\n".join(_written(step) for step in schedule)


def _written(step: Step) -> str:
    return " ".join(map(str, step))


class LabElement:
    """What `collectives.lab` returns: the Lab, which notebooks and the book display.

    `given`: the fragment of an address that says what it shows first; None for the first puzzle that isn't solved.
    `paged`: whether the page's address follows what the Lab shows.
    """

    def __init__(self, given: str | None = None, paged: bool = False):
        self.given, self.paged = given, paged

    def __repr__(self) -> str:
        return f"The Lab{f', with lab.html#{self.given}' if self.given else ''}"

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """Return the Lab with its styles, scripts and data: self-contained, and the same bytes every time."""
        styles = "".join(f"<style>{asset(f'{name}.css')}</style>" for name in (*_FIGURES, "lab/lab"))
        names = *_FIGURES, *(f"lab/{name}" for name in _LAB)
        scripts = "".join(f"<script>{asset(f'{name}.js')}</script>" for name in names)
        data = json.dumps(self.data(), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        return (
            f'<collective-lab role="region" aria-label="The Lab"{" data-page" if self.paged else ""}>{styles}'
            f"<noscript><p>{escape(NEEDS_SCRIPT)}</p></noscript>"
            f'<script type="application/json">{data}</script></collective-lab>{scripts}'
        )

    def data(self) -> dict:
        """Return what the page offers, as plain data."""
        return {
            "given": self.given,
            "puzzles": puzzles(),
            "presets": list(_presets()),
            "machines": list(_machines()),
            "lines": {name: list(line) for name, line in ALGORITHMS.items()},
            "colours": [[colour, ink_on(colour)] for colour in RANK_COLOURS],
            "kinds": {kind[0]: text for kind, text in KINDS.items()},
        }


NEEDS_SCRIPT = "The Lab runs in your browser and needs JavaScript."


def _presets() -> Iterator[dict]:
    """Yield the scorecard's algorithms at each of `SIZES`."""
    for row in ROWS:
        for world_size in filter(row.takes, SIZES):
            schedule = row.algorithm(world_size)
            sizes = {"ranks": world_size, "chunks": schedule.num_chunks, "root": schedule.root}
            names = {"name": row.name, "collective": schedule.collective}
            yield names | sizes | {"steps": notation(schedule).replace("→", "~")}


def _machines() -> Iterator[dict]:
    """Yield the course's clusters: a node's link and the network's, each [alpha, beta], and who shares a card."""
    for name, cluster in {"8 H100 a node, NDR": machines.RUNNING_CASE, **machines.CLUSTERS}.items():
        near, far = cluster.links()
        sharing = cluster.gpus_per_node // cluster.nics_per_node
        across = [far.alpha, far.beta / sharing]
        yield {"name": name, "link": [near.alpha, near.beta], "across": across, "inside": cluster.gpus_per_node} | (
            {"sharing": sharing}
        )
