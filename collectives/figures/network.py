"""Who talks to whom: the ranks as points of the plane, and in each step a line for each two of which one sends.

`Network(schedule)` puts them on a circle, `Network(schedule, "cube")` on the corners of a cube, where each binary digit
of a rank's number is a direction. What is sent `draw` shows; here one sees the pattern of the partners.
"""

from __future__ import annotations

import math
from html import escape
from itertools import combinations

from ..schedule import Schedule
from .player import GREY, RANK_COLOURS, Figure, ink_on, listed

MAX_RANKS, MAX_STEPS = 16, 64  # beyond these a reader sees nothing any more
DIRECTIONS = (1.0, 0.0), (0.0, -1.0), (0.62, -0.28)  # of a cube's digits: no diagonal runs through a corner

Point = tuple[float, float]


class Network(Figure):
    """The figure of one schedule. `places`: "circle", or "cube" for 2, 4 or 8 ranks.

    Raises `ValueError` for other places, for a cube of other sizes, and for more than can be seen.
    """

    picture = "network"

    def __init__(self, schedule: Schedule, places: str = "circle", caption: str | None = None):
        size = schedule.world_size
        if places not in ("circle", "cube"):
            raise ValueError(f"ranks lie on a circle or on a cube, not on a {places!r}")
        if places == "cube" and size not in (2, 4, 8):
            raise ValueError(f"2, 4 or 8 ranks are corners of a line, a square or a cube; {size} are not")
        if size > MAX_RANKS:
            raise ValueError(f"{size} ranks are too many to see: at most {MAX_RANKS}")
        self.world_size, self.digits = size, (size - 1).bit_length() if places == "cube" else 0
        self.points = [self._corner(rank) if self.digits else self._on_circle(rank) for rank in range(size)]
        self.steps = [sorted({(t.src, t.dst) for t in step.singles}) for step in schedule]
        if len(self.steps) > MAX_STEPS:
            raise ValueError(f"{len(self.steps)} steps are too many to see: at most {MAX_STEPS}")
        self.caption = caption or f"{schedule.name.replace('_', '-')}: who talks to whom"
        self.words = [self._before(), *(self._told(number) for number in range(len(self.steps)))]

    def _corner(self, rank: int) -> Point:
        """Each digit that is 1 goes one way."""
        ways = [way for digit, way in enumerate(DIRECTIONS) if rank >> digit & 1]
        return sum(x for x, _ in ways), sum(y for _, y in ways)

    def _on_circle(self, rank: int) -> Point:
        """Clockwise from the top; neighbours of a large circle are as far apart as of a small one."""
        angle, radius = 2 * math.pi * rank / self.world_size, 0.4 + self.world_size / 12
        return radius * math.sin(angle), -radius * math.cos(angle)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """What is drawn always: a cube's edges, or on a circle all who ever talk to each other."""
        if self.digits:
            pairs = combinations(range(self.world_size), 2)
            return [(one, other) for one, other in pairs if (one ^ other).bit_count() == 1]
        return sorted({(min(pair), max(pair)) for step in self.steps for pair in step})

    def name(self, rank: int) -> str:
        """What is written beside a rank: on a cube its number in binary digits."""
        return f"{rank:0{self.digits}b}" if self.digits else ""

    def _before(self) -> str:
        if not self.digits:
            return f"Before: {self.world_size} ranks, and a line between two who will talk to each other."
        return (
            f"Before: {self.world_size} ranks, each with its number in binary digits. "
            "A line joins two that differ in one digit."
        )

    def _told(self, number: int) -> str:
        """A sentence for those who swap, and one for those who only send."""
        pairs = self.steps[number]
        swaps = [f"{one} and {other}" for one, other in pairs if one < other and (other, one) in pairs]
        sends = [f"rank {src} to rank {dst}" for src, dst in pairs if (dst, src) not in pairs]
        sentences = [f"Ranks {listed(swaps, ', ')} swap."] if swaps else []
        sentences += [f"Data go from {listed(sends)}."] if sends else []
        masks = {src ^ dst for src, dst in pairs}
        if self.digits and len(masks) == 1:
            mask = masks.pop()
            sentences.append(f"Their numbers differ by the mask {mask}, in binary {self.name(mask)}.")
        return f"Step {number} ({number + 1} of {len(self.steps)}): {' '.join(sentences)}"

    def data(self) -> dict:
        """What the player shows, as plain data: where the ranks lie, what joins them always, and in each step."""
        return {
            "points": [[round(x, 3), round(y, 3)] for x, y in self.points],
            "names": [self.name(rank) for rank in range(self.world_size)],
            "colours": [[colour, ink_on(colour)] for colour in RANK_COLOURS[: self.world_size]],
            "edges": self.edges,
            "steps": self.steps,
        }

    def still_svg(self) -> str:
        """As `Figure.still_svg`: a small picture for each step, in rows."""
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
