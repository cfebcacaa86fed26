"""A run of a schedule as a trace for Perfetto or Chrome: every message a slice on its rank's tracks.

    Path("ring.json").write_text(priced(ring.all_reduce(4), 10**9, machine))

Open the file in the viewer at ui.perfetto.dev, or in Chrome's own at chrome://tracing. A rank is a process with a track
of what it sends and one of what it receives, and more where it does several at once; an arrow leads from each send to
its receive. The format is Chrome's "Trace Event Format": JSON, with times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from ..measure.recorder import Event
from ..price import spans
from ..schedule import Schedule
from ..topology import Topology

MOST_MESSAGES = 200_000  # a viewer takes no more with pleasure


def priced(schedule: Schedule, num_bytes: int, topology: Topology, itemsize: int = 1) -> str:
    """The trace, as JSON text, of `schedule` at its price: the arguments are those of `price`."""
    return trace(_priced(schedule, num_bytes, topology, itemsize), schedule.world_size)


def executed(recorded: Iterable[Iterable[Event]]) -> str:
    """The trace, as JSON text, of what the `Recorder` of every rank has recorded: a list of events by rank."""
    recorded = [list(events) for events in recorded]
    return trace([Event(*event) for events in recorded for event in events], len(recorded))


def trace(events: list[Event], world_size: int) -> str:
    """The trace of `events`, which may come in any order; the earliest begins at 0."""
    if len(events) > 2 * MOST_MESSAGES:
        raise ValueError(f"{len(events) // 2:,} messages are too many for a viewer: at most {MOST_MESSAGES:,}")
    begin = min((event.start for event in events), default=0.0)
    made = []
    for rank in range(world_size):
        made.append(_about("process_name", rank, 0, name=f"rank {rank}"))
        made.append(_about("process_sort_index", rank, 0, sort_index=rank))
    tracks: dict[tuple[int, bool, int], int] = {}
    busy: dict[tuple[int, bool], list[int]] = {}  # until when, by track
    sent: dict[tuple[int, int, int], dict] = {}
    arrows = []
    for event in sorted(events, key=lambda event: (event.start, not event.sends, event.run, event.step, event.place)):
        start, end = (round((moment - begin) * 1e9) for moment in (event.start, event.start + event.seconds))
        lane = _free(busy.setdefault((event.rank, event.sends), []), start, end)
        track = event.rank, event.sends, lane
        if track not in tracks:
            tracks[track] = len(tracks) + 1
            name = ("send" if event.sends else "receive") + (f" {lane + 1}" if lane else "")
            made.append(_about("thread_name", event.rank, tracks[track], name=name))
            made.append(_about("thread_sort_index", event.rank, tracks[track], sort_index=2 * lane + (not event.sends)))
        slice = _place(event.rank, tracks[track], start) | {"ph": "X", "name": event.name, "dur": (end - start) / 1000}
        slice["cat"] = event.phase or "message"
        slice["args"] = {"step": event.step, "bytes": event.num_bytes, "run": event.run}
        made.append(slice)
        if event.sends:
            sent[event.run, event.step, event.place] = slice
        else:
            arrows.append(((event.run, event.step, event.place), slice))
    for number, (message, slice) in enumerate(arrows):
        if message in sent:
            made += _arrow(number, sent[message], slice)
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": made}, ensure_ascii=False)


def _priced(schedule: Schedule, num_bytes: int, topology: Topology, itemsize: int) -> list[Event]:
    events = []
    for number, span in enumerate(spans(schedule, num_bytes, topology, itemsize)):
        columns = (column.tolist() for column in (span.start, span.seconds, span.num_bytes))
        for place, (t, start, seconds, moved) in enumerate(zip(span.step, *columns, strict=True)):
            message = str(t), 0, number, place, span.step.phase, start, seconds, moved
            events += [Event(t.src, True, *message), Event(t.dst, False, *message)]
        if len(events) > 2 * MOST_MESSAGES:
            break  # `trace` refuses it
    return events


def _free(busy: list[int], start: int, end: int) -> int:
    """The first track that is free from `start` on; it is busy until `end` now. Slices of a track must not overlap."""
    lane = next((lane for lane, until in enumerate(busy) if until <= start), len(busy))
    busy[lane : lane + 1] = [end]
    return lane


def _place(rank: int, track: int, nanoseconds: float) -> dict:
    """Where an event of the trace belongs. A pid of 0 would be the idle process of Linux, so ranks count from 1."""
    return {"pid": rank + 1, "tid": track, "ts": nanoseconds / 1000}


def _about(what: str, rank: int, track: int, **values) -> dict:
    return _place(rank, track, 0) | {"ph": "M", "name": what, "args": values}


def _arrow(number: int, send: dict, receive: dict) -> list[dict]:
    """From the start of a send to the part of its receive that is not earlier."""
    late = (max(send["ts"], receive["ts"]) + receive["ts"] + receive["dur"]) / 2
    both = {"name": "message", "cat": "message", "id": number}
    ends = (send, "s", send["ts"], {}), (receive, "f", max(late, send["ts"]), {"bp": "e"})
    return [{"pid": end["pid"], "tid": end["tid"], "ts": ts, "ph": ph} | both | more for end, ph, ts, more in ends]
