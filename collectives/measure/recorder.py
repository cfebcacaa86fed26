"""A recorder of when each message of a schedule was in flight on real ranks; `formats.perfetto` draws it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from ..execute import Transport, execute
from ..schedule import Schedule, Step

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


class Event(NamedTuple):
    """One end of a message: `rank` sends or receives it, from `start` on for `seconds`.

    `run`, `step`, `place`: indices of the run, the step, and the transfer in the step, equal at both ends of a message.
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
    """A transport that records when each message was in flight and delegates the work to another transport.

        recorder = Recorder()
        execute(schedule, buffer, transport=recorder)
        return recorder.events  # from every rank, for `executed`

    A rank waits for each step as a whole. So a message's interval runs from the start of its step until the rank has
    sent and received everything in that step. Times come from the host's clock, so records of different hosts can't be
    combined. `group`, `transport`: as in `execute`.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, transport: Transport | None = None):
        self.transport = transport
        self.group = group if transport is None else transport.group
        self.events: list[Event] = []
        self._runs = 0
        self._single: dict[Schedule, list[Schedule]] = {}

    def run(self, schedule: Schedule, buffer: torch.Tensor, timeout: float) -> None:
        """Run and record a schedule; see `Transport.run`."""
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
    """Return a schedule for each step, in which the step keeps its number from `schedule`."""

    def alone(number: int, step: Step) -> Schedule:
        nothing = Step.of([])
        sizes = schedule.world_size, schedule.num_chunks
        return Schedule(*sizes, lambda: [nothing] * number + [step], schedule.name, lengths=schedule.lengths)

    return [alone(number, step) for number, step in enumerate(schedule)]
