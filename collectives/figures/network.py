"""The communication pattern of a schedule: ranks as points, and in each step an arrow from each sender to its receiver.

`Network(schedule)` puts the ranks on a circle. `Network(schedule, "cube")` puts them on the corners of a cube, with one
direction for each binary digit of a rank's number. `draw` shows what the ranks send; this figure shows the partners.
"""

from __future__ import annotations

import math
from html import escape
from itertools import combinations

from ..schedule import Schedule
from .player import GREY, RANK_COLOURS, Figure, ink_on, listed

MAX_RANKS, MAX_STEPS = 16, 64  # larger figures are unreadable
DIRECTIONS = (1.0, 0.0), (0.0, -1.0), (0.62, -0.28)  # one for each binary digit; no diagonal runs through a corner

Point = tuple[float, float]


class Network(Figure):
    """The figure of one schedule. `places`: "circle", or "cube" for 2, 4 or 8 ranks.

    Raises `ValueError` for other places, for a cube of other sizes, and for too many ranks or steps.
    """

    picture = "network"

    def __init__(self, schedule: Schedule, places: str = "circle", caption: str | None = None):
        size = schedule.world_size
        if places not in ("circle", "cube"):
            raise ValueError(f"places must be 'circle' or 'cube', not {places!r}")
        if places == "cube" and size not in (2, 4, 8):
            raise ValueError(f"a cube takes 2, 4 or 8 ranks, not {size}; use places='circle'")
        if size > MAX_RANKS:
            raise ValueError(f"{size} ranks are too many to draw: at most {MAX_RANKS}")
        self.world_size, self.digits = size, (size - 1).bit_length() if places == "cube" else 0
        self.points = [self._corner(rank) if self.digits else self._on_circle(rank) for rank in range(size)]
        self.steps = [sorted({(t.src, t.dst) for t in step.singles}) for step in schedule]
        if len(self.steps) > MAX_STEPS:
            raise ValueError(f"{len(self.steps)} steps are too many to draw: at most {MAX_STEPS}")
        self.caption = caption or f"{schedule.name.replace('_', '-')}: which ranks communicate"
        self.words = [self._before(), *(self._told(number) for number in range(len(self.steps)))]

    def _corner(self, rank: int) -> Point:
        """Return the sum of the directions of the digits that are 1."""
        directions = [direction for digit, direction in enumerate(DIRECTIONS) if rank >> digit & 1]
        return sum(x for x, _ in directions), sum(y for _, y in directions)

    def _on_circle(self, rank: int) -> Point:
        """Return the rank's place, clockwise from the top. Neighbours are about as far apart on any circle."""
        angle, radius = 2 * math.pi * rank / self.world_size, 0.4 + self.world_size / 12
        return radius * math.sin(angle), -radius * math.cos(angle)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The lines that every step shows: a cube's edges, or on a circle each pair that communicates in any step."""
        if self.digits:
            pairs = combinations(range(self.world_size), 2)
            return [(one, other) for one, other in pairs if (one ^ other).bit_count() == 1]
        return sorted({(min(pair), max(pair)) for step in self.steps for pair in step})

    def name(self, rank: int) -> str:
        """Return the label beside a rank: on a cube its number in binary, on a circle nothing."""
        return f"{rank:0{self.digits}b}" if self.digits else ""

    def _before(self) -> str:
        if not self.digits:
            return f"Before: {self.world_size} ranks. A line joins two ranks that will communicate."
        return (
            f"Before: {self.world_size} ranks, each with its number in binary. "
            "A line joins two ranks whose numbers differ in one digit."
        )

    def _told(self, number: int) -> str:
        """Return the step's text: a sentence for the ranks that swap, and one for those that only send."""
        pairs = self.steps[number]
        swaps = [f"{one} and {other}" for one, other in pairs if one < other and (other, one) in pairs]
        sends = [f"rank {src} to rank {dst}" for src, dst in pairs if (dst, src) not in pairs]
        sentences = [f"Ranks {listed(swaps, ', ')} swap."] if swaps else []
        sentences += [f"Data goes from {listed(sends)}."] if sends else []
        masks = {src ^ dst for src, dst in pairs}
        if self.digits and len(masks) == 1:
            mask = masks.pop()
            sentences.append(f"The two numbers of each pair differ by the mask {mask}, in binary {self.name(mask)}.")
        return f"Step {number} ({number + 1} of {len(self.steps)}): {' '.join(sentences)}"

    def data(self) -> dict:
        """Return what the player shows, as plain data: the points, the lines of every step, each step's arrows."""
        return {
            "points": [[round(x, 3), round(y, 3)] for x, y in self.points],
            "names": [self.name(rank) for rank in range(self.world_size)],
            "colours": [[colour, ink_on(colour)] for colour in RANK_COLOURS[: self.world_size]],
            "edges": self.edges,
            "steps": self.steps,
        }

    def still_svg(self) -> str:
        """As `Figure.still_svg`: a small picture for each of the first 24 steps, in rows."""
        unit, edge, head = 46, 16, 14
        left, top = min(x for x, _ in self.points), min(y for _, y in self.points)
        wide = (max(x for x, _ in self.points) - left) * unit + 2 * edge
        tall = (max(y for _, y in self.points) - top) * unit + 2 * edge + head
        shown = self.steps[:24]
        across = max(1, min(len(shown), int(640 // (wide + 8))))
        parts = []
        for number, step in enumerate(shown):
            dx, dy = number % across * (wide + 8), number // across * (tall + 8)
            at = [(dx + edge + (x - left) * unit, dy + head + edge + (y - top) * unit) for x, y in self.points]
            parts.append(f'<text x="{dx + wide / 2:.1f}" y="{dy + 10:.1f}" font-weight="bold">step {number}</text>')
            for pairs, look in ((self.edges, 'stroke-opacity=".3"'), (step, 'stroke-width="2.5"')):
                d = "".join(f"M{at[a][0]:.1f} {at[a][1]:.1f}L{at[b][0]:.1f} {at[b][1]:.1f}" for a, b in pairs)
                parts.append(f'<path fill="none" stroke="currentColor" {look} d="{d}"/>' if d else "")
            for rank, (x, y) in enumerate(at):
                colour = RANK_COLOURS[rank]
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{colour}"/>')
                parts.append(f'<text x="{x:.1f}" y="{y + 3:.1f}" fill="{ink_on(colour)}">{rank}</text>')
        width, height = across * (wide + 8), -(-len(shown) // across) * (tall + 8)
        look = f'font-family="sans-serif" font-size="9" text-anchor="middle" fill="currentColor" color="{GREY}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(self.caption)}" {look} '
            f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}">{"".join(parts)}</svg>'
        )
