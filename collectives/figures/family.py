"""A figure of many: the reader picks how many ranks there are, or which algorithm, and steps through what that gives.

    draw(ring.reduce_scatter, inputs=[Slider("world_size", "ranks, P", range(2, 9), 4)])

The function is called for each combination of the inputs and what it returns is drawn, all in Python: the page holds
every figure's data and words, and computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

from .calculator import Choice, Slider, say
from .player import Figure

MAX_FIGURES = 64  # a page pays for each


class Family(Figure):
    """What `draw` returns for a function with `inputs`, each a `Slider` or a `Choice`, called with them by name.

    `make` returns a figure, always of one kind. Where it raises a `ValueError`, the reader sees its message instead.
    Outside a browser, and on paper, a family shows the figure that the inputs start with.
    """

    def __init__(
        self,
        make: Callable[..., Figure],
        inputs: Sequence[Slider | Choice],
        caption: str | None = None,
    ):
        self.inputs = list(inputs)
        if (count := math.prod(len(each.options) for each in inputs)) > MAX_FIGURES:
            raise ValueError(f"{count} combinations of inputs: at most {MAX_FIGURES} can be drawn")
        self.figures: list[Figure | None] = []  # the last input runs fastest
        self.told: list[list[str]] = []
        names = [each.name for each in inputs]
        for values in product(*(each.options for each in inputs)):
            self._add(make, dict(zip(names, values, strict=True)))
        first = self.at()
        if first is None:
            raise ValueError(f"the figure starts with what cannot be drawn: {self.told[self._number({})][0]}")
        kinds = {figure.picture for figure in self.figures if figure}
        if len(kinds) > 1:
            raise ValueError(f"all figures of one function are of one kind, not of {', '.join(sorted(kinds))}")
        self.picture, self.words, self.caption = first.picture, first.words, caption or first.caption

    def _add(self, make: Callable[..., Figure], arguments: dict) -> None:
        try:
            figure = make(**arguments)
        except ValueError as refusal:
            figure, text = None, str(refusal)
        self.figures.append(figure)
        self.told.append(figure.words if figure else [f"{text[:1].upper()}{text[1:]}."])

    def at(self, **changes) -> Figure | None:
        """The figure where `changes`, a choice by its label, differ from the start; None if the function refuses."""
        return self.figures[self._number(changes)]

    def _number(self, changes: dict) -> int:
        number = 0
        for each in self.inputs:
            known = list(each.choices if isinstance(each, Choice) else each.stops)
            number = number * len(known) + known.index(changes.get(each.name, each.value))
        return number

    @property
    def printed(self) -> str:
        """As `Figure.printed`: with what the inputs start with."""
        return f"{self.caption} ({', '.join(f'{each.label}: {each.text}' for each in self.inputs)})"

    def data(self) -> dict:
        """What the player shows: questions, [label, answers, number of the first], and each figure's words and data.

        Where the function refuses, there is no data, and its words are the refusal.
        """
        return {
            "choices": [[each.label, _answers(each), each.at] for each in self.inputs],
            "told": self.told,
            "figures": [figure and figure.data() for figure in self.figures],
        }

    def still_svg(self) -> str:
        """As `Figure.still_svg`: of the figure that the inputs start with."""
        return self.at().still_svg()


def _answers(each: Slider | Choice) -> list[str]:
    return list(each.choices) if isinstance(each, Choice) else [say(stop, each.unit) for stop in each.stops]
