"""A family of figures: the reader picks a number of ranks or an algorithm, and steps through the figure for it.

    draw(ring.reduce_scatter, inputs=[Slider("world_size", "ranks, P", range(2, 9), 4)])

Python calls the function for each combination of the inputs and draws what it returns. The page holds the data and
words of every figure, and computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

from .calculator import Choice, Slider, say
from .player import Figure, capital

MAX_FIGURES = 64  # each adds its data to the page


class Family(Figure):
    """What `draw` returns for a function and its `inputs`, each a `Slider` or a `Choice`.

    `make` takes the inputs by name and returns a figure. Where it raises a `ValueError`, the
    reader sees the message instead. Outside a browser and on paper, a family shows the figure for the inputs' start.
    Raises `ValueError` for more than `MAX_FIGURES` combinations, and if `make` refuses the inputs' start.
    """

    def __init__(
        self,
        make: Callable[..., Figure],
        inputs: Sequence[Slider | Choice],
        caption: str | None = None,
    ):
        self.inputs = list(inputs)
        if (count := math.prod(len(each.options) for each in inputs)) > MAX_FIGURES:
            raise ValueError(f"{count} combinations of inputs; a page holds at most {MAX_FIGURES}: give fewer stops")
        self.figures: list[Figure | None] = []  # one for each combination; the last input varies fastest
        self.told: list[list[str]] = []
        names = [each.name for each in inputs]
        for values in product(*(each.options for each in inputs)):
            self._add(make, dict(zip(names, values, strict=True)))
        first = self.at()
        if first is None:
            raise ValueError(f"the inputs start with a figure that can't be drawn: {self.told[self._number({})][0]}")
        self.picture, self.words, self.caption = first.picture, first.words, caption or first.caption
        self.captions = None if caption else [figure.caption if figure else "" for figure in self.figures]

    def _add(self, make: Callable[..., Figure], arguments: dict) -> None:
        try:
            figure = make(**arguments)
        except ValueError as refusal:
            figure, text = None, str(refusal)
        self.figures.append(figure)
        self.told.append(figure.words if figure else [f"{capital(text)}."])

    def at(self, **changes) -> Figure | None:
        """Return the figure with `changes` to the start, a choice by its label; None if the function refuses them."""
        return self.figures[self._number(changes)]

    def _number(self, changes: dict) -> int:
        number = 0
        for each in self.inputs:
            known = list(each.choices if isinstance(each, Choice) else each.stops)
            number = number * len(known) + known.index(changes.get(each.name, each.value))
        return number

    @property
    def printed(self) -> str:
        """As `Figure.printed`, with the values that the inputs start with."""
        return f"{self.caption} ({', '.join(f'{each.label}: {each.text}' for each in self.inputs)})"

    @property
    def scripts(self) -> list[str]:
        """As `Figure.scripts`."""
        return [name for figure in self.figures if figure for name in figure.scripts]

    def packed(self) -> dict:
        """Return what the player shows: the questions, and the words and data of every figure.

        A question is [label, answers, number of the first]. Where the function refuses, the data are None and the words
        are its message. Without a caption of the family, each figure keeps its own.
        """
        captions = {"captions": self.captions} if self.captions else {}
        return captions | {
            "choices": [[each.label, _answers(each), each.at] for each in self.inputs],
            "told": self.told,
            "figures": [figure and figure.packed() for figure in self.figures],
        }

    def still_svg(self) -> str:
        """As `Figure.still_svg`, for the values that the inputs start with."""
        figure = self.at()
        assert figure is not None  # `__init__` refuses inputs that start with None
        return figure.still_svg()


def _answers(each: Slider | Choice) -> list[str]:
    return list(each.choices) if isinstance(each, Choice) else [say(stop, each.unit) for stop in each.stops]
