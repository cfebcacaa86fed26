"""One function that opens a schedule in the Lab: a board to build, break and race schedules on."""

from __future__ import annotations

from urllib.parse import quote

from .figures.lab import LabElement
from .formats.json import MOST_LETTERS
from .schedule import Schedule

MOST_RANKS, MOST_CHUNKS, MOST_STEPS = 16, 64, 256  # the Lab draws at most these
LONGEST = 60_000  # characters of a fragment, which addresses carry
KEPT = ":,;+~-"  # characters that a fragment may have as they are


def lab(schedule: Schedule | None = None) -> LabElement:
    """Return the Lab with `schedule` on its board, which notebooks and the book display; without one, with a puzzle.

    What you change there stays there: copy it back as a Python cell. Raises `ScheduleError` if the schedule can't run,
    and `ValueError` if it is too big for the Lab.
    """
    return LabElement() if schedule is None else LabElement(fragment(schedule))


def fragment(schedule: Schedule) -> str:
    """Return what follows the # in an address that opens `schedule` in the Lab.

    The fields are joined by "&", steps by ";" and transfers by ",", with "~" for the arrow. static/lab/share.js reads
    it. Raises as `lab` does.
    """
    steps = []
    for step in schedule:
        steps.append(",".join(map(str, step)).replace("→", "~"))
        if len(steps) > MOST_STEPS:
            break
    sizes = {"ranks": (schedule.world_size, MOST_RANKS), "chunks": (schedule.num_chunks, MOST_CHUNKS)}
    for what, (size, most) in (sizes | {"steps": (len(steps), MOST_STEPS)}).items():
        if size > most:
            raise ValueError(f"{schedule.name} is too big for the Lab, which draws at most {most} {what}")
    schedule.validate()
    fields = {"v": 1, "ranks": schedule.world_size, "chunks": schedule.num_chunks, "contract": schedule.collective}
    lengths = None if schedule.lengths is None else ".".join(map(str, schedule.lengths))
    name = None if schedule.name == "schedule" else schedule.name[:MOST_LETTERS]
    fields |= {"root": schedule.root, "lengths": lengths, "name": name, "steps": ";".join(steps) or None}
    text = "&".join(f"{key}={quote(str(each), safe=KEPT)}" for key, each in fields.items() if each is not None)
    if len(text) > LONGEST:
        raise ValueError(f"{schedule.name} has too many transfers for the Lab; open the same algorithm on fewer ranks")
    return text
