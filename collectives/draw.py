"""Draws a schedule: a figure to step through on a page or in a notebook, and a still picture on paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .contracts import Contract
from .figures.calculator import Choice, Slider
from .figures.family import Family
from .figures.gantt import Gantt, Timelines
from .figures.player import Figure
from .figures.slots import Drawing
from .schedule import Schedule
from .training.timeline import Timeline


def draw(
    schedule: Schedule | Timeline | Timelines | Callable,
    contract: Contract | None = None,
    caption: str | None = None,
    inputs: Sequence[Slider | Choice] = (),
) -> Figure:
    """A figure of `schedule` that a notebook and the book show by themselves.

    A `Timeline` is drawn too, and several of them by title, one above the other on one axis: `gantt` does that. With
    `inputs` it is a function that makes one of them: the reader picks what it is called with (`family`). `contract`:
    what the schedule is judged by; by default the one it names, and nothing is judged if it names none. `caption`: the
    figure's title; by default the schedule's name and size. Raises `ScheduleError` if the schedule cannot be run at all
    and `ValueError` if it is too big to be seen; a broken contract is drawn, not raised.
    """
    if inputs:
        return Family(lambda **chosen: draw(schedule(**chosen), contract), inputs, caption)
    if isinstance(schedule, Figure):
        return schedule
    if isinstance(schedule, Schedule):
        return Drawing(schedule, contract, caption)
    return Gantt(schedule, caption)
