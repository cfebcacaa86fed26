"""A trace shows each message once on each side, when the price or the run had it, in the format that viewers read."""

import json
from itertools import pairwise as neighbours

import pytest
import torch

from collectives import Schedule, execute, price, ranks, simulate, topology
from collectives.algorithms import hierarchical, pairwise, ring
from collectives.algorithms.scorecard import ROWS
from collectives.formats import perfetto
from collectives.measure.recorder import Recorder
from collectives.price import spans
from collectives.topology import Link

pytestmark = pytest.mark.ranks

ALPHA, BETA, GAMMA = 1e-6, 1e-9, 1e-10
NODES = {1: 1, 2: 2, 3: 3, 4: 2, 5: 5, 6: 2, 7: 7, 8: 2, 9: 3}  # ranks: nodes


def machines(world_size):
    nodes = NODES[world_size]
    yield topology.uniform(world_size, ALPHA, BETA, GAMMA)
    yield topology.uniform(world_size, ALPHA, BETA, GAMMA, ports=2)
    inside, across = Link(ALPHA, BETA), Link(10 * ALPHA, 7 * BETA)
    for ranks_per_nic in {1, world_size // nodes}:
        yield topology.two_level(nodes, world_size // nodes, inside, across, ranks_per_nic, GAMMA)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.algorithm(1).name)
def test_the_last_message_ends_at_the_price(row):
    """And all messages together carry its bytes, on 1 to 9 ranks of any kind."""
    for world_size in range(1, 10):
        if not row.takes(world_size):
            continue
        schedule = row.algorithm(world_size)
        for machine in machines(world_size):
            cost = price(schedule, 5040, machine)
            timed = list(spans(schedule, 5040, machine))
            ends = [float((span.start + span.seconds).max(initial=0)) for span in timed]
            assert max(ends, default=0) == pytest.approx(cost.seconds, rel=1e-9)
            assert sum(int(span.num_bytes.sum()) for span in timed) == cost.bytes_sent.sum()
            assert sum(len(span.start) for span in timed) == cost.messages


def checked(text):
    """The events of a trace, by kind, after what the format demands of each."""
    data = json.loads(text)
    kinds = {"M": [], "X": [], "s": [], "f": []}
    for event in data["traceEvents"]:
        kinds[event["ph"]].append(event)
        assert type(event["pid"]) is int and event["pid"] >= 1 and type(event["tid"]) is int
        assert isinstance(event["ts"], float | int) and event["ts"] >= 0
        assert isinstance(event["name"], str)
    named = {(event["pid"], event["tid"]) for event in kinds["M"] if event["name"] == "thread_name"}
    tracks = {}
    for event in kinds["X"]:
        assert event["dur"] >= 0 and set(event["args"]) == {"step", "bytes", "run"}
        tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    assert set(tracks) == named, "every track has a name"
    assert len({tid for _, tid in named}) == len(named), "viewers take a tid to be one thread, whatever its pid"
    for slices in tracks.values():
        for first, then in neighbours(sorted(slices, key=lambda event: event["ts"])):
            assert first["ts"] + first["dur"] <= then["ts"] + 1e-6, "slices of a track do not overlap"
    assert [event["id"] for event in kinds["s"]] == [event["id"] for event in kinds["f"]]
    assert len({event["id"] for event in kinds["s"]}) == len(kinds["s"])
    for start, finish in zip(kinds["s"], kinds["f"], strict=True):
        assert finish["bp"] == "e" and start["ts"] <= finish["ts"]
        for end in (start, finish):  # each lies in a slice of its track
            assert any(
                slice["ts"] <= end["ts"] <= slice["ts"] + slice["dur"] + 1e-6
                for slice in tracks[end["pid"], end["tid"]]
            )
    return kinds


def names(kinds, what):
    return {(event["pid"], event["args"]["name"]) for event in kinds["M"] if event["name"] == what}


def test_a_priced_ring_has_a_process_for_each_rank_and_two_tracks_in_it():
    schedule, machine = ring.all_reduce(4), topology.uniform(4, ALPHA, BETA)
    kinds = checked(perfetto.priced(schedule, 4000, machine))
    assert names(kinds, "process_name") == {(rank + 1, f"rank {rank}") for rank in range(4)}
    assert names(kinds, "thread_name") == {(rank + 1, side) for rank in range(4) for side in ("send", "receive")}
    assert len(kinds["X"]) == 2 * len(kinds["s"]) == 2 * 4 * 6
    assert {event["args"]["bytes"] for event in kinds["X"]} == {1000}
    assert {event["cat"] for event in kinds["X"]} == {"reduce_scatter", "all_gather"}
    first = min(kinds["X"], key=lambda event: (event["ts"], event["pid"]))
    assert (first["name"], first["ts"], first["dur"]) in {("0:1→2+", 0, 2), ("3:0→1+", 0, 2), ("2:3→0+", 0, 2)}
    end = max(event["ts"] + event["dur"] for event in kinds["X"])
    assert end == pytest.approx(price(schedule, 4000, machine).seconds * 1e6)


def test_what_goes_at_once_gets_tracks_of_its_own():
    both_ways = checked(
        perfetto.priced(ring.all_reduce_bidirectional(4), 4000, topology.uniform(4, ALPHA, BETA, ports=2))
    )
    assert names(both_ways, "thread_name") >= {(1, "send"), (1, "send 2"), (1, "receive"), (1, "receive 2")}
    machine = topology.two_level(2, 2, Link(ALPHA, BETA), Link(9 * ALPHA, 9 * BETA), ranks_per_nic=2)
    for schedule in (hierarchical.all_reduce(4, 2), pairwise.all_to_all(4), ring.all_reduce(1), Schedule.of(4, 1, [])):
        size = topology.uniform(schedule.world_size, 0, 0) if schedule.world_size == 1 else machine
        checked(perfetto.priced(schedule, 4000, size))


def record(rank, world_size, schedule):
    recorder = Recorder()
    buffer = torch.arange(10) + rank
    for _ in range(2):
        execute(schedule, buffer, transport=recorder)
    return recorder.events, buffer.tolist()


def test_an_executed_run_is_recorded_and_not_changed():
    for schedule in (ring.all_reduce(3), pairwise.all_reduce(3)):
        answers = ranks.run(record, 3, schedule)
        once = simulate(schedule, torch.stack([torch.arange(10) + rank for rank in range(3)]).numpy())
        assert [buffer for _, buffer in answers] == simulate(schedule, once).tolist()
        kinds = checked(perfetto.executed([events for events, _ in answers]))
        messages = 2 * sum(map(len, schedule))
        assert len(kinds["X"]) == 2 * messages and len(kinds["s"]) == messages
        assert {event["args"]["run"] for event in kinds["X"]} == {0, 1}
        on_paper = price(schedule, 80, topology.uniform(3, 0, 0), itemsize=8)
        assert sum(event["args"]["bytes"] for event in kinds["X"]) == 4 * on_paper.bytes_sent.sum()


def wait_in_vain(rank, world_size):
    there = [(0, 1, 0, "copy")]
    schedule = Schedule.of(2, 1, [there] * (1 + rank))  # rank 1 expects a second message
    execute(schedule, torch.zeros(4), transport=Recorder(), timeout=1.0)


def test_a_step_that_fails_keeps_its_number():
    with pytest.raises(ranks.RanksError, match="rank 1, step 1: waited"):
        ranks.run(wait_in_vain, 2, timeout=10)


def test_a_trace_too_long_to_look_at_is_refused():
    with pytest.raises(ValueError, match="are too many for a viewer"):
        perfetto.priced(ring.all_reduce(512), 512, topology.uniform(512, ALPHA, BETA))
