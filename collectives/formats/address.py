"""A schedule as the fragment of an address, which opens it in the Lab.

    lab.html#v=1&ranks=4&chunks=4&contract=all_reduce&steps=3:0~1+,0:1~2+;2:0~1+

The fields are joined by "&", steps by ";" and transfers by ",", with "~" for the arrow. The Lab reads and checks it
(figures/static/lab/share.js).
"""

from __future__ import annotations

from urllib.parse import quote

from ..schedule import Schedule
from .json import MOST_LETTERS

MOST_RANKS, MOST_CHUNKS, MOST_STEPS = 16, 64, 256  # the Lab draws at most these
LONGEST = 60_000  # characters, which addresses carry
KEPT = ":,;+~-"  # characters that a fragment may have as they are


def to_fragment(schedule: Schedule) -> str:
    """Return what follows the # in an address that opens `schedule` in the Lab.

    Raises `ScheduleError` if the schedule can't run, and `ValueError` if it is too big for the Lab.
    """
    steps: list[str] = []
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
