"""One function that draws a schedule: a figure to step through on a page or in a notebook, and a still in print."""

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
    """Return a figure of `schedule`, which notebooks and the book display.

    `schedule`: a `Schedule`, a `Timeline`, or several timelines by title, which share one axis (see `Gantt`). With
    `inputs`, a function that returns one of these; the reader picks its arguments (see `Family`).
    `contract`: what to check the schedule against; by default the contract that it names, if any. The figure shows
    where the schedule breaks it.
    `caption`: the figure's title; by default the schedule's name and size.

    Raises `ScheduleError` if the schedule can't run, and `ValueError` if it is too big to draw. Breaking the contract
    raises nothing.
    """
    if inputs:
        return Family(lambda **chosen: draw(schedule(**chosen), contract), inputs, caption)  # type: ignore[operator]
    if isinstance(schedule, Figure):
        return schedule
    if isinstance(schedule, Schedule):
        return Drawing(schedule, contract, caption)
    return Gantt(schedule, caption)  # type: ignore[arg-type]  # Gantt refuses a function, and says what to pass
