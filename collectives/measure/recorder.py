"""Records when each message of a schedule was under way while it runs on real ranks: `formats.perfetto` draws it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from ..execute import Transport, execute
from ..schedule import Schedule, Step

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


class Event(NamedTuple):
    """One end of a message: `rank` sends it, or receives it, from `start` on for `seconds`.

    `run`, `step`, `place`: the run, the step, and the place in the step; both ends of a message agree on them.
    """

    rank: int
    sends: bool
    name: str
    run: int
    step: int
    place: int
    phase: str
    start: float
    seconds: float
    num_bytes: int


class Recorder:
    """A transport that notes when each message was under way, and leaves the work to another one.

        recorder = Recorder()
        execute(schedule, buffer, transport=recorder)
        return recorder.events  # from every rank, for `executed`

    A message lasts from when its rank began the step until all that the rank sends and receives in it was through:
    a rank waits for a step as a whole. The clock is that of the host: what different hosts record does not fit
    together. `group`, `transport`: as in `execute`.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, transport: Transport | None = None):
        self.transport = transport
        self.group = group if transport is None else transport.group
        self.events: list[Event] = []
        self._runs = 0
        self._single: dict[Schedule, list[Schedule]] = {}

    def run(self, schedule: Schedule, buffer: torch.Tensor, timeout: float) -> None:
        """As `Transport.run`."""
        import torch.distributed as dist

        rank = dist.get_rank(self.group)
        bounds = (schedule.bounds(len(buffer)) * buffer.element_size()).tolist()
        if schedule not in self._single:
            self._single[schedule] = _one_by_one(schedule)
        for number, (step, single) in enumerate(zip(schedule, self._single[schedule], strict=True)):
            start = time.monotonic()
            execute(single, buffer, self.group, timeout, self.transport)
            seconds = time.monotonic() - start
            for place, t in enumerate(step):
                if rank in (t.src, t.dst):
                    num_bytes = bounds[t.chunk + t.count] - bounds[t.chunk]
                    where = self._runs, number, place, step.phase
                    self.events.append(Event(rank, rank == t.src, str(t), *where, start, seconds, num_bytes))
        self._runs += 1


def _one_by_one(schedule: Schedule) -> list[Schedule]:
    """A schedule for each step, which keeps the number that it has in `schedule`."""

    def alone(number: int, step: Step) -> Schedule:
        nothing = Step.of([])
        sizes = schedule.world_size, schedule.num_chunks
        return Schedule(*sizes, lambda: [nothing] * number + [step], schedule.name, lengths=schedule.lengths)

    return [alone(number, step) for number, step in enumerate(schedule)]
