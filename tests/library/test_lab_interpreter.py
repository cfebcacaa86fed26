"""The Lab's interpreter, in a real browser, agrees with Python: values, proofs word for word, and seconds."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from collectives import Schedule, ScheduleError, contracts, machines, price, simulate, topology
from collectives.algorithms import halving_doubling, pairwise, rails, ring, tree
from collectives.algorithms.scorecard import ROWS
from collectives.figures.player import asset
from collectives.formats.json import from_json, to_json
from collectives.formats.msccl import to_msccl_xml
from collectives.topology import Link, Topology

SIZES = range(1, 18)
INTERPRETER = "schedule", "simulate", "contracts", "price"
NODE, NETWORK = Link(1.3e-6, 1 / 450e9), Link(5e-6, 1 / 50e9)

# Runs every case in the page. A case is a schedule as JSON, and what to do with it.
RUN = """cases => cases.map(({text, before, contracts, machines}) => {
    const Lab = CollectiveLab, answer = {};
    try {
        const schedule = Lab.fromJson(text);
        answer.printed = Lab.printAll(schedule);
        const {steps, ...sizes} = schedule;
        answer.again = Lab.toJson(schedule) === text;
        answer.parsed = Lab.printAll(Lab.parse(answer.printed, sizes)) === answer.printed;
        if (before) answer.after = Lab.simulate(schedule, before);
        answer.faults = (contracts ?? []).map((contract) => {
            try { return Lab.check(schedule, contract); }
            catch (error) { return {refused: error.message}; }
        });
        answer.costs = (machines ?? []).map(([bytes, itemsize, on]) => {
            const {spans, ...cost} = Lab.price(schedule, bytes, on, itemsize);
            return cost;
        });
    } catch (error) { answer.refused = error.message; }
    return answer;
})"""


@pytest.fixture(scope="module")
def run(browser):
    """A function that runs cases in a page."""
    page = browser.new_page()
    for name in INTERPRETER:
        page.add_script_tag(content=asset(f"lab/{name}.js"))
    yield lambda cases: page.evaluate(RUN, cases)
    page.close()


def in_page(on: Topology) -> dict:
    """A topology as the page reads it."""
    return {
        "ranks": on.world_size,
        "link": [on.link.alpha, on.link.beta],
        "gamma": on.gamma,
        "exceptions": [[src, dst, link.alpha, link.beta] for (src, dst), link in on.exceptions.items()],
        "ports": on.ports,
        "across": on.across and [on.across.alpha, on.across.beta],
        "perNode": on.ranks_per_node,
        "perNic": on.ranks_per_nic,
        "overlapped": on.overlapped,
    }


def networks(world_size):
    """Topologies of every kind for so many ranks, and the course's machines of that size."""
    yield topology.uniform(world_size, 1e-5, 1e-9, gamma=3e-10)
    yield Topology(world_size, NETWORK, ports=2, gamma=1e-11)
    yield Topology(world_size, NODE, overlapped=True)
    slow = {(src, (src + 1) % world_size): Link(1e-4, 1e-8) for src in range(0, world_size, 3)}
    yield Topology(world_size, NETWORK, exceptions=slow)
    for inside in (size for size in range(2, world_size) if world_size % size == 0):
        nodes = world_size // inside
        yield topology.two_level(nodes, inside, NODE, NETWORK, ranks_per_nic=inside, gamma=1e-12)
        yield topology.two_level(nodes, inside, NODE, NETWORK, overlapped=True)
    known = {**machines.CLUSTERS, **machines.MACHINES, "running case": machines.RUNNING_CASE}
    for cluster in known.values():
        if world_size % cluster.gpus_per_node == 0:
            yield cluster.of(world_size // cluster.gpus_per_node).topology()


def algorithms(sizes):
    """Every algorithm of the scorecard, and those of rails, at every size that they take."""
    for world_size in sizes:
        yield from (row.algorithm(world_size) for row in ROWS if row.takes(world_size))
    for world_size in (size for size in (4, 8, 16) if size in sizes):
        yield from (make(world_size, world_size // 2) for make in (rails.all_reduce, rails.all_to_all))
    yield pairwise.all_to_all_uneven([[0, 3, 1], [2, 0, 5], [1, 1, 0]])


def agree(case, answer, schedule):
    """Whether the page read, ran, proved and priced a schedule as Python does."""
    assert "refused" not in answer, answer["refused"]
    assert answer["again"] and answer["parsed"]
    if case["before"] is not None:
        assert answer["after"] == simulate(schedule, np.array(case["before"])).tolist()
    assert answer["faults"] == [faulted(schedule, name) for name in case["contracts"]]
    for (num_bytes, itemsize, _), on, cost in zip(case["machines"], case["on"], answer["costs"], strict=True):
        expected = price(schedule, num_bytes, on, itemsize)
        assert cost["seconds"] == pytest.approx(expected.seconds, rel=1e-12, abs=0)
        assert cost["finish"] == pytest.approx(expected.finish.tolist(), rel=1e-12, abs=0)
        assert (cost["steps"], cost["messages"]) == (expected.steps, expected.messages)
        assert (cost["sent"], cost["received"]) == (expected.bytes_sent.tolist(), expected.bytes_received.tolist())
        assert cost["onLink"] == {f"{src}→{dst}": n for (src, dst), n in expected.bytes_on_link.items()}


def faulted(schedule, name):
    """What a contract finds, as the page says it."""
    try:
        contracts.BY_NAME[name].check(schedule)
    except contracts.ContractError as error:
        found = {"message": str(error), "rank": error.rank, "chunk": error.chunk, "step": error.step}
        return found | {"wrong": error.wrong.tolist()}
    except ValueError as error:
        return {"refused": str(error)}
    return None


def case_of(schedule, on=(), names=(), seed=0):
    """A schedule with uneven buffers, if it runs on such, the contracts to check, and the machines to price it on."""
    rng = np.random.default_rng(seed)
    moves = any(step.into is not None for step in schedule)
    elements = sum(schedule.lengths) if schedule.lengths else schedule.num_chunks * (2 if moves else 3) + (not moves)
    sizes = [(elements * 4, 4) if schedule.lengths or moves else (elements * 4 + 2, 2) for _ in on]
    before = rng.integers(-99, 100, (schedule.world_size, elements)) / 4
    on = list(on)
    machines = [[*size, in_page(each)] for size, each in zip(sizes, on, strict=True)]
    case = {"text": to_json(schedule), "before": before.tolist(), "contracts": list(names), "machines": machines}
    return case | {"on": on}


def asked(run, cases):
    """The page's answers. A topology in Python stays here."""
    return run([{key: value for key, value in case.items() if key != "on"} for case in cases])


@pytest.mark.parametrize(
    "sizes", [range(1, 9), range(9, 14), range(14, 18)], ids=lambda sizes: f"{sizes[0]}-{sizes[-1]}"
)
def test_every_algorithm_gives_python_s_values_proof_and_seconds(run, sizes):
    every = list(algorithms(sizes))
    on = {size: list(networks(size)) for size in {schedule.world_size for schedule in every}}
    cases = [case_of(schedule, on[schedule.world_size], [schedule.collective]) for schedule in every]
    for case, answer, schedule in zip(cases, asked(run, cases), every, strict=True):
        agree(case, answer, schedule)
        assert answer["faults"] == [None]


@pytest.mark.parametrize("name", ["gb200", "GB200 NVL72"])
def test_a_rack_is_priced_as_in_python(run, name):
    cluster = (machines.MACHINES | machines.CLUSTERS)[name]
    schedule = tree.broadcast(cluster.world_size)
    case = case_of(schedule, [cluster.topology()]) | {"before": None}
    [answer] = asked(run, [case])
    agree(case, answer, schedule)


def mutated(schedule, rng):
    """The schedule with one transfer changed, dropped or repeated; None if it can't run then."""
    steps = [list(step) for step in schedule]
    step = rng.choice([step for step in steps if step])
    at = rng.randrange(len(step))
    ranks, chunks = schedule.world_size, schedule.num_chunks
    changes = [
        {"combine": "copy" if step[at].combine == "reduce" else "reduce"},
        {"dst": rng.randrange(ranks)},
        {"chunk": rng.randrange(chunks), "into": None},
        {"into": rng.randrange(chunks)},
    ]
    if rng.random() < 0.25:
        step.pop(at)
    elif rng.random() < 0.2:
        rng.shuffle(steps)
    else:
        step[at] = step[at]._replace(**rng.choice(changes))
    names = {"name": "mutant", "collective": schedule.collective, "root": schedule.root}
    try:
        return Schedule.of(ranks, chunks, steps, **names)
    except ScheduleError:
        return None


def test_a_broken_schedule_is_explained_in_the_same_words(run):
    """Some hundred mutants of right schedules, against their own contract and against every other."""
    rng = random.Random(5)
    rows = [row for row in ROWS for _ in range(12)]
    mutants = [mutated(row.algorithm(size), rng) for row in rows if row.takes(size := rng.choice((2, 3, 4, 5, 7, 8)))]
    mutants = [mutant for mutant in mutants if mutant is not None]
    assert len(mutants) > 200
    cases = [case_of(mutant, names=[mutant.collective]) | {"before": None} for mutant in mutants]
    for start in (
        ring.reduce_scatter(4),
        tree.scatter(4, root=2),
        pairwise.all_to_all(4),
        halving_doubling.all_reduce(4),
    ):
        for root in (None, 3):
            other = replace(start, root=root, rank_zero=None)
            mutants.append(other)
            cases.append(case_of(other, names=list(contracts.BY_NAME)))
    square = Schedule.of(3, 9, [[(0, 1, 1), (1, 0, 3, "reduce")], [(2, 1, 7, "copy", 1)]], name="square")
    mutants.append(square)
    cases.append(case_of(square, names=list(contracts.BY_NAME)))
    answers = asked(run, cases)
    for case, answer, mutant in zip(cases, answers, mutants, strict=True):
        agree(case, answer, mutant)
    messages = [fault["message"] for answer in answers for fault in answer["faults"] if fault and "message" in fault]
    words = (
        "twice",
        "stale",
        "before it has it",
        "copies over",
        "instead of chunk",
        "no step ever",
        "is on rank",
        "second time",
    )
    assert all(any(word in message for message in messages) for word in words)


BAD_TEXTS = (
    *(
        "0:1-2",
        "step 1: 0:1→2",
        "0-2:0→1:1",
        "3-1:0→1",
        "0:0→1  ... and 3 more",
        "0:0→1\n... and more steps",
        "é",
        "0:0→1 x",
    ),
    *("0:0→9", "0:0→0", "0:0→1 0:2→1", "5:0→1", "0:0→1:9", "2-4:0→1", "0:1->2+, 1:2>0\n\nstep 1:"),
)


def test_a_text_that_can_t_be_read_is_refused_in_the_same_words(run, browser):
    page = browser.new_page()
    for name in INTERPRETER:
        page.add_script_tag(content=asset(f"lab/{name}.js"))
    read = """text => { try { return CollectiveLab.printAll(CollectiveLab.parse(text, {ranks: 3, chunks: 4})); }
        catch (error) { return error.message; } }"""
    for text in BAD_TEXTS:
        try:
            expected = str(Schedule.parse(text, 3, 4)).replace(": \n", ":\n").rstrip()
        except ScheduleError as error:
            expected = str(error)
        assert page.evaluate(read, text) == expected
    page.close()


def bad_files():
    """Files with one fault each, in a field that Python and the page both check."""
    good = json.loads(to_json(ring.all_reduce(3)))
    for field, values in {
        "format": ["other"],
        "version": [2, None],
        "world_size": [0, -1, "3", 1.5, None],
        "num_chunks": [0, [3]],
        "name": [7, "x" * 201, "two\nlines"],
        "collective": ["sum", 3],
        "root": [3, -1, "0"],
        "lengths": [[1, 2], "even", [1, 2, -1]],
        "steps": [{}, "none", [[]], [{}], [{"transfers": 3}], [{"transfers": [], "phase": 1}], [{"moves": []}]],
        "extra": [1],
    }.items():
        yield from (good | {field: value} for value in values)
    for field in ("format", "version", "world_size", "num_chunks", "steps"):
        yield {key: value for key, value in good.items() if key != field}
    for row in (
        [0, 1, 0],
        [0, 1, 0, "add"],
        [0, 3, 0, "copy"],
        [0, 1, 9, "copy"],
        [0, 1, 0, "copy", 3],
        [0, 0, 0, "copy"],
    ):
        yield good | {"steps": [{"transfers": [row]}]}
    yield good | {"steps": [{"transfers": [[0, 1, 0, "copy", None, 4]]}]}
    yield good | {"steps": [{"transfers": [[0, 1, 0, "copy"], [2, 1, 0, "reduce"]]}]}
    yield [1, 2]


def test_a_bad_file_is_refused_in_the_same_words(run):
    texts = [json.dumps(bad) for bad in bad_files()]
    for text, answer in zip(texts, run([{"text": text} for text in texts]), strict=True):
        with pytest.raises(ScheduleError) as refusal:
            from_json(text)
        words = (
            str(refusal.value).replace(str(2**22), "128", 1)
            if "world_size" in str(refusal.value)
            else str(refusal.value)
        )
        assert answer["refused"] == words.replace(str(2**22), "4096")
    [answer] = run([{"text": '{"format": '}])
    assert answer["refused"].startswith("this is not JSON: ")


def test_a_file_for_msccl_is_the_one_that_python_writes(browser):
    page = browser.new_page()
    for name in (*INTERPRETER, "export"):
        page.add_script_tag(content=asset(f"lab/{name}.js"))
    schedules = [schedule for schedule in algorithms((1, 2, 3, 4, 6, 8)) if schedule.lengths is None]
    write = """texts => texts.map((text) => { try { return CollectiveLab.toMscclXml(CollectiveLab.fromJson(text)); }
        catch (error) { return error.message; } })"""
    for schedule, written in zip(schedules, page.evaluate(write, list(map(to_json, schedules))), strict=True):
        try:
            expected = to_msccl_xml(schedule)
        except ScheduleError as error:
            expected = str(error)
        assert written == expected
    page.close()
