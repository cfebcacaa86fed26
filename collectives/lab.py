"""One function that opens a schedule in the Lab: a board to build, break and race schedules on."""

from __future__ import annotations

from .figures.lab import LabElement
from .formats.address import to_fragment
from .schedule import Schedule


def lab(schedule: Schedule | None = None) -> LabElement:
    """Return the Lab with `schedule` on its board, which notebooks and the book display; without one, with a puzzle.

    What you change there stays there: copy it back as a Python cell. Raises `ScheduleError` if the schedule can't run,
    and `ValueError` if it is too big for the Lab.
    """
    return LabElement() if schedule is None else LabElement(to_fragment(schedule))
