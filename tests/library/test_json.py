"""A schedule survives its file, what MSCCL would do with it is what the schedule does, and a bad file is named."""

import json
import random
from collections import deque
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from collectives import Schedule, ScheduleError, Step, contracts, price, simulate, topology
from collectives.algorithms import pairwise, ring
from collectives.algorithms.scorecard import ROWS
from collectives.formats.json import MOST_SLOTS, from_json, to_json
from collectives.formats.msccl import from_msccl_xml, to_msccl_xml

SIZES = (1, 2, 3, 4, 6, 8)
ALGORITHMS = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.algorithm(1).name)


def as_rows(schedule):
    """All that a schedule says, as plain data."""
    names = schedule.name, schedule.collective, schedule.root, schedule.lengths
    sizes = schedule.world_size, schedule.num_chunks
    steps = [(step.phase, [(*t[:4], t.lands, t.count) for t in step]) for step in schedule]
    return names, sizes, steps


@ALGORITHMS
def test_json_gives_back_every_transfer(row):
    for world_size in SIZES:
        if row.takes(world_size):
            schedule = row.algorithm(world_size)
            again = from_json(to_json(schedule))
            assert as_rows(again) == as_rows(schedule)
            assert contracts.of(again).check(again) is None


def test_json_keeps_lengths_roots_and_steps_that_mix():
    uneven = pairwise.all_to_all_uneven([[1, 2], [3, 0]])
    mixed = Schedule.of(
        3, 4, [Step.of([(0, 1, 0, "copy", 2, 2), (1, 2, 1, "reduce")], "both"), []], name="mixed", root=2
    )
    for schedule in (uneven, mixed):
        assert as_rows(from_json(to_json(schedule))) == as_rows(schedule)


def test_the_documented_file_is_what_is_written():
    """The example of the docstring, with no more and no less than is needed."""
    assert to_json(Schedule.of(2, 3, [[(0, 1, 0, "reduce", 1, 2)], [(1, 0, 0, "copy")]], name="two")) == (
        '{"format": "collectives-schedule", "version": 1, "name": "two", "world_size": 2, "num_chunks": 3, "steps": [\n'
        ' {"transfers": [[0, 1, 0, "reduce", 1, 2]]},\n'
        ' {"transfers": [[1, 0, 0, "copy"]]}]}\n'
    )


def bad_json():
    """Files with one fault each, and the words that name it."""
    good = json.loads(to_json(ring.all_reduce(3)))

    def changed(**fields):
        return json.dumps({name: value for name, value in (good | fields).items() if value is not ...})

    def with_row(row):
        return changed(steps=[{"transfers": [[0, 1, 0, "copy"], row]}])

    here = "step 0, transfer 1"
    yield '{\n "format": oops}', "this is not JSON: line 2, column 12"
    yield "", "this is not JSON: line 1, column 1"
    yield "[" * 100_000, "nested too deep"
    yield '{"format": ' + "1" * 5000 + "}", "this is not a schedule: Exceeds the limit"
    yield "[1, 2]", 'it must begin with {"format": "collectives-schedule"'
    yield changed(format="chart"), "this is not a schedule"
    yield changed(version=2), "the file has version 2; this library reads version 1"
    yield changed(version=True), "the file has version true"
    yield changed(num_chunks=...), "the file lacks the field 'num_chunks'"
    yield changed(colour="red"), 'the file has an unknown field "colour"; use one of collective, format'
    yield '{"format": 1, "format": 2}', 'the field "format" occurs twice'
    yield changed(world_size=0), "world_size is 0; it must be a whole number from 1"
    yield changed(world_size=3.0), "world_size is 3.0; it must be a whole number"
    yield changed(world_size=10**12), "world_size is 1000000000000; it must be"
    yield changed(world_size=MOST_SLOTS), "ranks x 3 chunks; a file may have at most"
    yield changed(name="two\nlines"), r'name is "two\nlines"; it must be a line'
    yield changed(name="\ud800"), r'name is "\ud800"; it must be a line'
    yield changed(name="x" * 300), "xx...; it must be a line"
    yield changed(collective="all"), 'collective is "all"; it must be one of broadcast, reduce'
    yield changed(collective=["all_reduce"]), 'collective is ["all_reduce"]; it must be one of'
    yield changed(root=3), "root is 3; it must be a whole number from 0 to 2"
    yield changed(lengths=[1, 2]), "lengths has 2 numbers; it must have one for each of the 3 chunks"
    yield changed(lengths=[1, 2, -1]), "lengths[2] is -1; it must be a whole number from 0"
    yield changed(steps={}), "steps is {}; it must be a list"
    yield changed(steps=[[]]), 'step 0 is []; it must be {"transfers": [...]}'
    yield changed(steps=[{}]), "step 0 lacks the field 'transfers'"
    yield changed(steps=[{"transfers": [], "phase": 1}]), "step 0: phase is 1; it must be a line"
    yield with_row([0, 1]), f"{here} is [0, 1]; it must be [src, dst, chunk, combine]"
    yield with_row([0, 3, 0, "copy"]), f"{here}: dst is 3; it must be a whole number from 0 to 2"
    yield with_row([-1, 2, 0, "copy"]), f"{here}: src is -1; it must be a whole number from 0 to 2"
    yield with_row([0, "2", 0, "copy"]), f'{here}: dst is "2"; it must be a whole number'
    yield with_row([0, 2, True, "copy"]), f"{here}: chunk is true; it must be a whole number"
    yield with_row([0, 2, 0, "add"]), f'{here}: combine is "add"; it must be "copy" or "reduce"'
    yield with_row([0, 2, 0, "copy", 9]), f"{here}: into is 9; it must be a whole number from 0 to 2"
    yield with_row([0, 2, 0, "copy", None, 0]), f"{here}: count is 0; it must be a whole number from 1 to 3"
    yield with_row([0, 2, 2, "copy", None, 2]), "step 0: 2-3:0→2 has chunk 3, but the chunks are 0 to 2"
    yield with_row([1, 1, 0, "copy"]), "step 0: 0:1→1 sends rank 1 to itself"
    yield with_row([2, 1, 0, "reduce"]), "both write chunk 0 on rank 1"


@pytest.mark.parametrize(("text", "fault"), list(bad_json()), ids=lambda value: value[:40])
def test_a_bad_file_is_named_in_one_line(text, fault):
    with pytest.raises(ScheduleError) as caught:
        from_json(text)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_what_would_not_be_read_is_not_written():
    with pytest.raises(ScheduleError, match="more than 524,288 chunks, the limit"):
        to_json(ring.all_reduce(513))
    with pytest.raises(ScheduleError, match="a file may have at most"):
        to_json(ring.all_reduce(16_384))
    with pytest.raises(ScheduleError, match="must be a line"):
        to_json(replace(ring.all_reduce(2), name="two\nlines"))


# What MSCCL does with its file, as its interpreter on the GPU does it, and nothing of what `formats.msccl` knows.


class Machine:
    """GPUs that carry out an algorithm on numbers: threadblocks side by side, each connection holding one chunk.

    `before`: int [gpus, chunks], each rank's one buffer, in which both `i` and `o` lie. A connection of NCCL holds
    more than one chunk; what cannot get stuck with one cannot get stuck with more.
    """

    def __init__(self, text, before):
        self.algo = ElementTree.fromstring(text)
        self.memory = before.copy()
        self.lines = {}  # (src, dst, channel): the chunks under way
        self.done = {}  # (gpu, threadblock): the last step that is done
        gpus = {int(gpu.get("id")): gpu for gpu in self.algo}
        assert sorted(gpus) == list(range(int(self.algo.get("ngpus"))))
        self.threads = {}
        for rank, gpu in gpus.items():
            assert [int(tb.get("id")) for tb in gpu] == list(range(len(gpu)))
            for tb in gpu:
                key = rank, int(tb.get("id"))
                self.done[key] = -1
                self.threads[key] = self.threadblock(*key, tb)

    def run(self, seed):
        """All threadblocks, in an order that is drawn; False if they get stuck."""
        draw = random.Random(seed)
        alive, stuck = list(self.threads), 0
        while alive:
            draw.shuffle(alive)
            moved = False
            for key in alive[: draw.randint(1, len(alive))]:
                answer = next(self.threads[key], "over")
                moved |= answer is not None
                if answer == "over":
                    alive.remove(key)
            stuck = 0 if moved else stuck + 1
            if stuck > 200:
                return False
        assert not any(self.lines.values()), "chunks were sent that nobody received"
        return True

    def threadblock(self, rank, number, tb):
        """Yields None whenever it cannot go on, and True when it has done something."""
        send, recv, chan = (int(tb.get(name)) for name in ("send", "recv", "chan"))
        out = self.lines.setdefault((rank, send, chan), deque())
        into = self.lines.setdefault((recv, rank, chan), deque())
        for place, step in enumerate(tb):
            assert int(step.get("s")) == place
            block, needed = int(step.get("depid")), int(step.get("deps"))
            if block >= 0:
                marked = self.algo.find(f"gpu[@id='{rank}']/tb[@id='{block}']/step[@s='{needed}']")
                assert marked.get("hasdep") == "1" and marked.get("type") != "nop"
                while self.done[rank, block] < needed:
                    yield None
            kind = step.get("type")
            for chunk in range(int(step.get("cnt"))):
                src, dst = int(step.get("srcoff")) + chunk, int(step.get("dstoff")) + chunk
                if "r" in kind:
                    while not into:
                        yield None
                    arrived = into.popleft()
                    value = arrived + self.memory[rank, src] if kind.startswith("rr") else arrived
                    if kind != "rrs":
                        self.memory[rank, dst] = value
                    yield True
                else:
                    value = self.memory[rank, src]
                if kind.endswith("s"):
                    assert send >= 0
                    while out:
                        yield None
                    out.append(value)
                    yield True
            if step.get("hasdep") == "1":
                self.done[rank, number] = place


def runs_like(schedule, text, seeds=range(3)):
    """Whether the threadblocks leave in memory what the schedule leaves, in whatever order they run."""
    before = np.random.default_rng(0).integers(0, 10**9, (schedule.world_size, schedule.num_chunks))
    after = simulate(schedule, before)
    for seed in seeds:
        machine = Machine(text, before)
        assert machine.run(seed), "deadlock"
        assert (machine.memory == after).all()


@ALGORITHMS
def test_what_msccl_would_do_is_what_the_schedule_does(row):
    for world_size in range(1, 9):
        if row.takes(world_size):
            schedule = row.algorithm(world_size)
            runs_like(schedule, to_msccl_xml(schedule))


def random_schedule(draw, ranks=5, chunks=5):
    """Steps of transfers that fit together, of any kind: runs, chunks that change places, several to one slot."""
    steps = []
    for _ in range(6):
        step, written = [], {}
        for _ in range(draw.randint(1, 7)):
            src, dst = draw.sample(range(ranks), 2)
            count = draw.choice([1, 1, 1, 2, 3])
            chunk, into = (draw.randint(0, chunks - count) for _ in range(2))
            into = draw.choice([into, chunk, chunk])
            combine = draw.choice(["copy", "reduce"])
            slots = {(dst, into + i) for i in range(count)}
            if all(combine == written.get(slot) == "reduce" or slot not in written for slot in slots):
                step.append((src, dst, chunk, combine, into, count))
                written |= dict.fromkeys(slots, combine)
        steps.append(step)
    return Schedule.of(ranks, chunks, steps, name="random")


@pytest.mark.slow
def test_schedules_drawn_at_random_come_through_too():
    """Or are refused, where a step overwrites what a message of it behind another one has yet to carry."""
    written = 0
    for seed in range(400):
        schedule = random_schedule(random.Random(seed))
        try:
            text = to_msccl_xml(schedule)
        except ScheduleError as error:
            assert "split the step in two" in str(error)
            continue
        written += 1
        runs_like(schedule, text)
        before = np.random.default_rng(seed).integers(0, 10**9, (5, 5))
        assert (simulate(from_msccl_xml(text), before) == simulate(schedule, before)).all()
    assert written > 80


@ALGORITHMS
def test_an_msccl_file_is_read_back(row):
    for world_size in range(1, 9):
        if not row.takes(world_size):
            continue
        schedule = row.algorithm(world_size)
        again = from_msccl_xml(to_msccl_xml(schedule))
        assert sum(map(len, again)) == sum(map(len, (step for step in schedule)))
        assert len(list(again)) <= len(list(schedule))
        known = schedule.collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        assert again.collective == (schedule.collective if known else None)
        contracts.of(schedule).check(replace(again, collective=schedule.collective, root=schedule.root))


def test_a_ring_comes_back_step_for_step():
    for world_size in range(2, 9):
        schedule = ring.all_reduce(world_size)
        again = from_msccl_xml(to_msccl_xml(schedule))
        assert [sorted(step) for step in again] == [sorted((*t[:4], None, 1) for t in step) for step in schedule]
        links = topology.uniform(world_size, 1e-6, 1e-9)
        assert price(again, 840, links).seconds == pytest.approx(price(schedule, 840, links).seconds)


def step_xml(number, kind, chunk, buffer="i", depid=-1, deps=-1, hasdep=0, cnt=1):
    place = f'srcbuf="{buffer}" srcoff="{chunk}" dstbuf="{buffer}" dstoff="{chunk}" cnt="{cnt}"'
    return f'<step s="{number}" type="{kind}" {place} depid="{depid}" deps="{deps}" hasdep="{hasdep}"/>'


def algo_xml(gpus, coll="allreduce", chunks=3, buffer_chunks=None, inplace=1):
    """A file from [gpu: [(send, recv, [step, ...]), ...]]."""
    sizes = " ".join(f'{b}_chunks="{n}"' for b, n in (buffer_chunks or {"i": chunks, "o": 0, "s": 0}).items())
    text = ""
    for rank, blocks in enumerate(gpus):
        text += f'<gpu id="{rank}" {sizes}>'
        for number, (send, recv, steps) in enumerate(blocks):
            text += f'<tb id="{number}" send="{send}" recv="{recv}" chan="0">{"".join(steps)}</tb>'
        text += "</gpu>"
    head = f'name="by hand" proto="LL" nchannels="1" nchunksperloop="{chunks}" ngpus="{len(gpus)}"'
    return f'<algo {head} coll="{coll}" inplace="{inplace}">{text}</algo>'


def fused_ring(world_size, last="rrcs"):
    """The ring all-reduce as MSCCL's own compiler writes it: receiving, adding and sending on in one step."""
    gpus = []
    for r in range(world_size):
        kinds = ["s"] + ["rrs"] * (world_size - 2) + [last] + ["rcs"] * (world_size - 2) + ["r"]
        steps = [step_xml(n, kind, (r - 1 - n) % world_size) for n, kind in enumerate(kinds)]
        gpus.append([((r + 1) % world_size, (r - 1) % world_size, steps)])
    return algo_xml(gpus, chunks=world_size)


def test_steps_that_receive_and_send_on_are_read():
    for world_size in range(3, 9):
        text = fused_ring(world_size)
        schedule = from_msccl_xml(text)
        assert contracts.all_reduce.check(schedule) is None
        assert [str(step) for step in schedule] == [
            "  ".join(sorted(str(step).split("  "), key=lambda t: t.split(":")[1]))
            for step in ring.all_reduce(world_size)
        ]
        runs_like(schedule, text)


def test_buffers_that_overlap_in_place_are_one():
    """In an all-gather `i` is the rank's own part of `o`; in a reduce-scatter it is the other way round."""
    swap = [[(1 - r, 1 - r, [step_xml(0, "s", 0, "i"), step_xml(1, "r", 1 - r, "o")])] for r in range(2)]
    gather = from_msccl_xml(algo_xml(swap, "allgather", 2, {"i": 1, "o": 2, "s": 0}))
    contracts.all_gather.check(gather)
    halves = [[(1 - r, 1 - r, [step_xml(0, "s", 1 - r, "i"), step_xml(1, "rrc", 0, "o")])] for r in range(2)]
    scatter = from_msccl_xml(algo_xml(halves, "reduce_scatter", 2, {"i": 2, "o": 1, "s": 0}))
    contracts.reduce_scatter.check(scatter)


def bad_xml():
    """Files with one fault each, and the words that name it."""
    good = to_msccl_xml(ring.all_reduce(3))
    there, back = step_xml(0, "s", 0), step_xml(0, "r", 0)

    def pair(first, second, **more):
        return algo_xml([[(1, 1, first)], [(0, 0, second)]], **more)

    yield "not xml", "this is not XML: syntax error: line 1, column 0"
    yield "<algo>", "this is not XML: no element found"
    yield '<!DOCTYPE algo [<!ENTITY a "aaaa">]><algo/>', "declares a DOCTYPE"
    yield "<graph/>", "the file is a 'graph'; an algorithm of MSCCL is an 'algo'"
    yield good.replace("ngpus", "gpus"), "algo has no attribute 'ngpus'"
    yield good.replace('ngpus="3"', 'ngpus="4"'), "algo: gpu 3 is missing, of 4"
    yield good.replace('ngpus="3"', 'ngpus="many"'), "algo: ngpus is 'many'; it must be a whole number from 1"
    yield good.replace('ngpus="3"', 'ngpus="1048576"'), "chunks; the limit is 1,048,576 slots"
    yield good.replace('inplace="1"', 'inplace="0"'), "inplace is 0; a rank here has one buffer"
    yield good.replace("allreduce", "allsum"), "coll is 'allsum'; it must be one of allreduce"
    yield good.replace('gpu id="1"', 'gpu id="0"'), "there are two gpus 0"
    yield good.replace("gpu ", "cpu ").replace("/gpu", "/cpu"), "has an element 'cpu'; it may only have 'gpu'"
    yield good.replace('type="rrc"', 'type="add"', 1), "gpu 0, tb 0, step 1: type is 'add'; it must be one of s, r"
    yield good.replace('type="rrc"', 'type="cpy"', 1), "gpu 0, tb 0, step 1: 'cpy' moves data within a gpu"
    yield good.replace('srcbuf="i"', 'srcbuf="s"', 1), "gpu 0, tb 0, step 0 uses scratch memory"
    yield (
        good.replace('srcoff="2"', 'srcoff="3"', 1),
        "gpu 0, tb 0, step 0: chunks 3 to 3 are out of range; buffer 'i' has 3 chunks",
    )
    yield (
        good.replace('cnt="1"', 'cnt="2"', 1),
        "gpu 0, tb 0, step 0: chunks 2 to 3 are out of range; buffer 'i' has 3 chunks",
    )
    yield good.replace('cnt="1"', 'cnt="0"', 1), "gpu 0, tb 0, step 0: cnt is '0'; it must be"
    yield good.replace(' s="1"', ' s="7"', 1), "gpu 0, tb 0: steps must be numbered 0, 1, ...; step 1 has s=7"
    yield good.replace('dstoff="1"', 'dstoff="0"', 1), "gpu 0, tb 0, step 1 adds to one chunk and stores in another"
    yield good.replace('send="1"', 'send="0"', 1), "gpu 0, tb 0 names its own gpu as a peer"
    yield good.replace('send="1"', 'send="-1"', 1), "gpu 0, tb 0, step 0 sends, but its tb names no peer"
    yield (
        good.replace('depid="-1"', 'depid="4"', 1).replace('deps="-1"', 'deps="0"', 1),
        "step 0 of tb 4, which doesn't exist",
    )
    yield pair([there], []), "gpu 0, tb 0, step 0 sends to gpu 1, which has no matching receive"
    yield pair([], [back]), "gpu 1, tb 0, step 0 receives from gpu 0, which has no matching send"
    yield pair([step_xml(0, "s", 0, cnt=2)], [back]), "step 0 receives 1 chunks, but gpu 0, tb 0, step 0 sends 2"
    waits = [back, step_xml(1, "s", 1)]
    yield pair(waits, waits), "deadlock: each waits for the next: gpu 0, tb 0, step 0 → gpu 1, tb 0, step 1"
    unmarked = [(1, -1, [there]), (-1, 1, [step_xml(0, "r", 1, depid=0, deps=0)])]
    other = [(-1, 0, [back]), (0, -1, [step_xml(0, "s", 1)])]
    yield algo_xml([unmarked, other]), "gpu 0, tb 1, step 0 waits for gpu 0, tb 0, step 0, whose hasdep is not 1"
    race = [(1, -1, [there]), (-1, 1, [step_xml(0, "r", 0)])]
    yield algo_xml([race, other]), "both use chunk 0, in no fixed order"
    twice = [(1, -1, [there]), (1, -1, [])]
    yield algo_xml([twice, other]), "gpu 0, tb 1: another threadblock already sends to gpu 1 on channel 0"
    yield fused_ring(3, last="rrs"), "rrs doesn't store its sum, but chunk 1 is part of the result"
    unsummed = [there, step_xml(1, "rrs", 1), step_xml(2, "r", 0), step_xml(3, "s", 1)]
    answer = [back, step_xml(1, "s", 1), step_xml(2, "r", 1), step_xml(3, "s", 0), step_xml(4, "r", 1)]
    yield (
        pair(unsummed, answer),
        "gpu 0, tb 0, step 3 uses chunk 1, but gpu 0, tb 0, step 1 (rrs) doesn't store its sum",
    )


@pytest.mark.parametrize(("text", "fault"), list(bad_xml()), ids=lambda value: value[-60:])
def test_a_bad_algorithm_is_named_in_one_line(text, fault):
    with pytest.raises(ScheduleError) as caught:
        from_msccl_xml(text)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("schedule", "fault"),
    [
        (pairwise.all_to_all_uneven([[1, 2], [3, 4]]), "MSCCL cuts buffers evenly"),
        (ring.all_reduce(128), "a threadblock has more than 256 steps, MSCCL's limit"),
        (pairwise.all_gather(64), "needs 63 threadblocks; MSCCL's limit is 32 on a channel"),
        (
            Schedule.of(2, 90, [[(0, 1, 0, "copy", None, 90)]], name="run"),
            "a message has 90 chunks; MSCCL's limit is 71",
        ),
        (ring.all_reduce(2048), "more than 262,144 transfers, the limit for a file"),
        (
            Schedule.of(2, 3, [[(0, 1, 0, "copy", 2), (0, 1, 1), (1, 0, 0, "copy", 1)]], name="crossed"),
            "crossed, step 0: an earlier message overwrites 1:0→1 on rank 0",
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_msccl_cannot_carry_out_is_refused(schedule, fault):
    with pytest.raises(ScheduleError, match=fault):
        to_msccl_xml(schedule)


def test_two_that_swap_go_in_one_step():
    """Each sends before it overwrites: in one step that is so, in two it could not be."""
    gpus = [
        [(1, -1, [step_xml(0, "s", 0, hasdep=1)]), (-1, 1, [step_xml(0, "r", 0, depid=0, deps=0)])],
        [(-1, 0, [step_xml(0, "r", 0, depid=1, deps=0)]), (0, -1, [step_xml(0, "s", 0, hasdep=1)])],
    ]
    assert [str(step) for step in from_msccl_xml(algo_xml(gpus))] == ["0:0→1  0:1→0"]


def test_a_message_that_no_step_can_hold_is_refused():
    """It leaves before its source is overwritten, and lands on what follows from that: it is two steps under way."""
    after = {"depid": 0, "deps": 0, "hasdep": 1}
    gpus = [
        [
            (1, -1, [step_xml(0, "s", 0, hasdep=1)]),
            (-1, 2, [step_xml(0, "r", 0, **after)]),
            (2, -1, [step_xml(0, "s", 0, depid=1, deps=0)]),
        ],
        [(-1, 2, [step_xml(0, "r", 0, hasdep=1)]), (-1, 0, [step_xml(0, "r", 0, **after)])],
        [
            (0, -1, [step_xml(0, "s", 0, hasdep=1)]),
            (-1, 0, [step_xml(0, "r", 0, **after)]),
            (1, -1, [step_xml(0, "s", 0, depid=1, deps=0)]),
        ],
    ]
    text = algo_xml(gpus)
    machine = Machine(text, np.arange(9).reshape(3, 3))
    assert machine.run(seed=0) and machine.memory[:, 0].tolist() == [6, 0, 6], "MSCCL could run it"
    with pytest.raises(ScheduleError, match="its message is overwritten at its source before it can be received"):
        from_msccl_xml(text)
