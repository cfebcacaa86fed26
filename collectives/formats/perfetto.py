"""Traces of a schedule's run for Perfetto or Chrome: every message is a slice on its rank's tracks.

    Path("ring.json").write_text(priced(ring.all_reduce(4), 10**9, machine))

Open the file at ui.perfetto.dev, or in Chrome at chrome://tracing. A rank is a process with a track for its sends and
one for its receives, or more if several messages overlap. An arrow leads from each send to its receive. The format is
Chrome's "Trace Event Format": JSON, with times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from ..measure.recorder import Event
from ..price import spans
from ..schedule import Schedule
from ..topology import Topology

MOST_MESSAGES = 200_000  # viewers get slow beyond this


def priced(schedule: Schedule, num_bytes: int, topology: Topology, itemsize: int = 1) -> str:
    """Return the predicted trace of `schedule` as JSON text; the arguments are those of `price`."""
    return trace(_priced(schedule, num_bytes, topology, itemsize), schedule.world_size)


def executed(recorded: Iterable[Iterable[Event]]) -> str:
    """Return the measured trace as JSON text. `recorded`: for each rank, the events of its `Recorder`."""
    recorded = [list(events) for events in recorded]
    return trace([Event(*event) for events in recorded for event in events], len(recorded))


def trace(events: list[Event], world_size: int) -> str:
    """Return the trace of `events` as JSON text; they may be in any order, and the earliest starts at time 0.

    Raises `ValueError` if there are more than `MOST_MESSAGES` messages.
    """
    if len(events) > 2 * MOST_MESSAGES:
        raise ValueError(f"{len(events) // 2:,} messages are too many for a viewer; the limit is {MOST_MESSAGES:,}")
    begin = min((event.start for event in events), default=0.0)
    entries = []
    for rank in range(world_size):
        entries.append(_about("process_name", rank, 0, name=f"rank {rank}"))
        entries.append(_about("process_sort_index", rank, 0, sort_index=rank))
    tracks: dict[tuple[int, bool, int], int] = {}
    busy: dict[tuple[int, bool], list[int]] = {}  # (rank, sends) → the end of the last slice on each track, in ns
    sent: dict[tuple[int, int, int], dict] = {}
    arrows = []
    for event in sorted(events, key=lambda event: (event.start, not event.sends, event.run, event.step, event.place)):
        start, end = (round((moment - begin) * 1e9) for moment in (event.start, event.start + event.seconds))
        lane = _free(busy.setdefault((event.rank, event.sends), []), start, end)
        track = event.rank, event.sends, lane
        if track not in tracks:
            tracks[track] = len(tracks) + 1
            name = ("send" if event.sends else "receive") + (f" {lane + 1}" if lane else "")
            order = 2 * lane + (not event.sends)
            entries.append(_about("thread_name", event.rank, tracks[track], name=name))
            entries.append(_about("thread_sort_index", event.rank, tracks[track], sort_index=order))
        slice = _place(event.rank, tracks[track], start) | {"ph": "X", "name": event.name, "dur": (end - start) / 1000}
        slice["cat"] = event.phase or "message"
        slice["args"] = {"step": event.step, "bytes": event.num_bytes, "run": event.run}
        entries.append(slice)
        if event.sends:
            sent[event.run, event.step, event.place] = slice
        else:
            arrows.append(((event.run, event.step, event.place), slice))
    for number, (message, slice) in enumerate(arrows):
        if message in sent:
            entries += _arrow(number, sent[message], slice)
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": entries}, ensure_ascii=False)


def _priced(schedule: Schedule, num_bytes: int, topology: Topology, itemsize: int) -> list[Event]:
    """Return the predicted events: a send and a receive for each message."""
    events = []
    for number, span in enumerate(spans(schedule, num_bytes, topology, itemsize)):
        columns = (column.tolist() for column in (span.start, span.seconds, span.num_bytes))
        for place, (t, start, seconds, moved) in enumerate(zip(span.step, *columns, strict=True)):
            message = str(t), 0, number, place, span.step.phase, start, seconds, moved
            events += [Event(t.src, True, *message), Event(t.dst, False, *message)]
        if len(events) > 2 * MOST_MESSAGES:
            break  # `trace` raises the error
    return events


def _free(busy: list[int], start: int, end: int) -> int:
    """Return the first track that is free from `start`, and mark it as busy until `end`: slices must not overlap."""
    lane = next((lane for lane, until in enumerate(busy) if until <= start), len(busy))
    busy[lane : lane + 1] = [end]
    return lane


def _place(rank: int, track: int, nanoseconds: float) -> dict:
    """Return the process, track and time of an event. Ranks count from 1, because pid 0 is Linux's idle process."""
    return {"pid": rank + 1, "tid": track, "ts": nanoseconds / 1000}


def _about(what: str, rank: int, track: int, **values) -> dict:
    """Return a metadata event, such as the name of a process."""
    return _place(rank, track, 0) | {"ph": "M", "name": what, "args": values}


def _arrow(number: int, send: dict, receive: dict) -> list[dict]:
    """Return the two ends of an arrow from the start of a send to a later moment of its receive."""
    late = (max(send["ts"], receive["ts"]) + receive["ts"] + receive["dur"]) / 2
    both = {"name": "message", "cat": "message", "id": number}
    ends: list[tuple[dict, str, float, dict]] = [
        (send, "s", send["ts"], {}),
        (receive, "f", max(late, send["ts"]), {"bp": "e"}),
    ]
    return [{"pid": end["pid"], "tid": end["tid"], "ts": ts, "ph": ph} | both | more for end, ph, ts, more in ends]
