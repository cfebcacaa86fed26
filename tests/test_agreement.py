"""The thesis: simulate, execute and price read one schedule, and agree on it.

For every algorithm of the course: it meets its contract at every world size; real ranks end with the numbers of the
simulation; the price is the closed form; and the bytes that a process group is handed are the bytes of the price.
"""

import math

import numpy as np
import pytest
import torch

from collectives import contracts, execute, price, ranks, simulate, topology
from collectives.algorithms import flat, ring, tree
from collectives.wire import BytesSent

ALPHA, BETA = 1e-6, 1e-9


def log2(world_size):
    """ceil(log2 P): how often one can double from 1 to reach P."""
    return math.ceil(math.log2(world_size))


# Steps, and bytes of S on the busiest path, as the literature gives them.
CLOSED_FORMS = {
    ring.reduce_scatter: lambda p: (p - 1, (p - 1) / p),
    ring.all_gather: lambda p: (p - 1, (p - 1) / p),
    ring.all_reduce: lambda p: (2 * (p - 1), 2 * (p - 1) / p),
    tree.broadcast: lambda p: (log2(p), log2(p)),
    tree.reduce: lambda p: (log2(p), log2(p)),
    tree.all_reduce: lambda p: (2 * log2(p), 2 * log2(p)),
    flat.broadcast: lambda p: (p - 1, p - 1),
    flat.reduce: lambda p: (p - 1, p - 1),
    flat.all_reduce: lambda p: (2 * (p - 1), 2 * (p - 1)),
}
ALGORITHMS = pytest.mark.parametrize("algorithm", CLOSED_FORMS, ids=lambda a: f"{a.__module__[23:]}.{a.__name__}")
ANY_WORLD = pytest.mark.parametrize("world_size", range(1, 10))


@ALGORITHMS
@ANY_WORLD
def test_every_algorithm_meets_its_contract(algorithm, world_size):
    schedule = algorithm(world_size)
    assert contracts.of(schedule).check(schedule) is None


@pytest.mark.parametrize("algorithm", [tree.broadcast, tree.reduce, flat.broadcast, flat.reduce])
@ANY_WORLD
def test_rooted_algorithms_work_from_every_root(algorithm, world_size):
    for root in range(world_size):
        schedule = algorithm(world_size, root)
        contracts.of(schedule).check(schedule)


@ALGORITHMS
@ANY_WORLD
def test_simulation_computes_what_the_contract_counts(algorithm, world_size):
    """The counted contributions predict the numbers, on lengths that divide and that do not."""
    schedule = algorithm(world_size)
    terms = contracts.of(schedule).terms(schedule)
    for num_elements in (0, 1, world_size, 3 * world_size + 1):
        before = np.random.default_rng(0).integers(-99, 99, (world_size, num_elements))
        after = simulate(schedule, before)
        chunk = np.repeat(np.arange(schedule.num_chunks), lengths(num_elements, schedule.num_chunks))
        for rank in range(world_size):
            expected = (terms.parts[chunk].T * before).sum(axis=0)
            wanted = terms.wanted[rank, chunk]
            assert (after[rank] == expected)[wanted].all()


def lengths(num_elements, num_chunks):
    return [len(piece) for piece in np.array_split(np.arange(num_elements), num_chunks)]


@ALGORITHMS
@ANY_WORLD
def test_the_price_is_the_closed_form(algorithm, world_size):
    steps, payloads = CLOSED_FORMS[algorithm](world_size)
    num_bytes = 1000 * world_size
    cost = price(algorithm(world_size), num_bytes, topology.uniform(world_size, ALPHA, BETA))
    assert cost.steps == steps
    assert cost.seconds == pytest.approx(steps * ALPHA + payloads * num_bytes * BETA)


DTYPES = [torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.uint8]


def run_everything(rank, world_size, algorithms, num_elements):
    """Every algorithm on every dtype, on a real rank: yields results as float64, and what was sent."""
    outcomes = []
    for algorithm in algorithms:
        schedule = algorithm(world_size)
        for dtype in DTYPES:
            buffer = make_buffer(rank, num_elements, dtype)
            with BytesSent() as sent:
                execute(schedule, buffer)
            outcomes.append((buffer, sent.total, sent.messages, dict(sent.collectives)))
    return outcomes


def make_buffer(rank, num_elements, dtype):
    numbers = np.random.default_rng(rank).integers(0, 20, num_elements)
    buffer = torch.tensor(numbers).to(dtype)
    return buffer / 7 if dtype.is_floating_point else buffer


@pytest.mark.parametrize("num_elements", [0, 1, 12, 1001])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_real_ranks_end_with_the_numbers_of_the_simulation_and_send_the_bytes_of_the_price(world_size, num_elements):
    """Bit for bit: a rank adds what arrives to what it has, in numpy as in torch, in the schedule's order."""
    algorithms = list(CLOSED_FORMS)
    by_rank = ranks.run(run_everything, world_size, algorithms, num_elements)
    cases = [(algorithm, dtype) for algorithm in algorithms for dtype in DTYPES]
    for index, (algorithm, dtype) in enumerate(cases):
        schedule = algorithm(world_size)
        outcomes = [outcomes[index] for outcomes in by_rank]
        executed = torch.stack([buffer for buffer, *_ in outcomes])
        before = torch.stack([make_buffer(rank, num_elements, dtype) for rank in range(world_size)])
        if dtype != torch.bfloat16:  # numpy has no such type; the ranks are compared with each other below
            assert torch.equal(torch.tensor(simulate(schedule, before.numpy())), executed)
        wanted = contracts.of(schedule).terms(schedule).wanted.all(axis=1)
        assert all(torch.equal(executed[rank], executed[wanted.argmax()]) for rank in np.flatnonzero(wanted))
        machine = topology.uniform(world_size, ALPHA, BETA)
        cost = price(schedule, num_elements * dtype.itemsize, machine, dtype.itemsize)
        assert [total for _, total, _, _ in outcomes] == cost.bytes_sent.tolist()
        assert sum(messages for _, _, messages, _ in outcomes) == cost.messages
        assert all(collectives == {} for *_, collectives in outcomes)


def test_floats_differ_from_the_plain_sum_by_rounding_alone():
    """Each of the P - 1 additions rounds by at most half an ulp of the largest partial sum."""
    world_size = 8
    before = np.random.default_rng(0).standard_normal((world_size, 10_000)).astype(np.float32)
    exact = before.astype(np.float64).sum(axis=0)
    bound = (world_size - 1) * np.finfo(np.float32).eps / 2 * np.abs(before).sum(axis=0) * 1.0001
    for algorithm in (ring.all_reduce, tree.all_reduce, flat.all_reduce):
        after = simulate(algorithm(world_size), before)
        assert (np.abs(after - exact) <= bound).all()
        assert (after == after[0]).all(), "all ranks must hold the same bits"
