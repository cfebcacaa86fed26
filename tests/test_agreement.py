"""The thesis: simulate, execute and price read one schedule, and agree on it.

For every algorithm of the course: it meets its contract at every world size; real ranks end with the numbers of the
simulation; the price is the closed form; and the bytes that a process group is handed are the bytes of the price.
"""

from collections import Counter

import numpy as np
import pytest
import torch

from collectives import contracts, execute, price, ranks, simulate, topology
from collectives.algorithms import double_tree, hierarchical, pairwise
from collectives.algorithms.scorecard import ROWS, coefficients, lower_bounds
from collectives.measure.wire import BytesSent

pytestmark = pytest.mark.ranks

ALPHA, BETA, GAMMA = 1e-6, 1e-9, 1e-10
MOST = 17  # ranks, in the tests over all world sizes

ALGORITHMS = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.algorithm(1).name)
ANY_WORLD = pytest.mark.parametrize("world_size", range(1, MOST + 1))


def schedules(world_size):
    """Every algorithm that takes `world_size` ranks."""
    return [row.algorithm(world_size) for row in ROWS if row.takes(world_size)]


@ANY_WORLD
def test_every_algorithm_meets_its_contract(world_size):
    for schedule in schedules(world_size):
        assert contracts.of(schedule).check(schedule) is None


@pytest.mark.parametrize("algorithm", [row.algorithm for row in ROWS if row.algorithm(2).root is not None])
@ANY_WORLD
def test_rooted_algorithms_work_from_every_root(algorithm, world_size):
    for root in range(world_size):
        schedule = algorithm(world_size, root)
        contracts.of(schedule).check(schedule)


@ANY_WORLD
def test_two_levels_work_for_any_node_that_divides_the_ranks(world_size):
    for ranks_per_node in (size for size in range(1, world_size + 1) if world_size % size == 0):
        contracts.all_reduce.check(hierarchical.all_reduce(world_size, ranks_per_node))


@pytest.mark.parametrize("num_chunks", [1, 3, 8])
@ANY_WORLD
def test_the_double_tree_never_asks_a_rank_for_two_messages_at_once(world_size, num_chunks):
    schedule = double_tree.all_reduce(world_size, num_chunks)
    contracts.all_reduce.check(schedule)
    for step in schedule:
        assert max(Counter(step.src.tolist()).values()) == max(Counter(step.dst.tolist()).values()) == 1


@ANY_WORLD
def test_uneven_blocks_arrive_where_they_belong_and_cost_what_the_busiest_rank_sends(world_size):
    lengths = np.random.default_rng(world_size).integers(0, 9, (world_size, world_size))
    schedule = pairwise.all_to_all_uneven(lengths)
    contracts.all_to_all_uneven.check(schedule)
    cost = price(schedule, int(lengths.sum()), topology.uniform(world_size, 0, 1))
    assert cost.bytes_sent.tolist() == (lengths.sum(axis=1) - lengths.diagonal()).tolist()
    assert cost.seconds >= max(cost.bytes_sent.max(), cost.bytes_received.max())


@ALGORITHMS
def test_what_takes_only_powers_of_two_says_so(row):
    if row.powers_of_two:
        with pytest.raises(ValueError, match=r"it takes 1, 2, 4, 8, \.\.\. ranks, not 6"):
            row.algorithm(6)
    else:
        assert row.algorithm(6).world_size == 6


@ANY_WORLD
def test_simulation_computes_what_the_contract_counts(world_size):
    """The counted contributions predict the numbers, on lengths that divide and that do not."""
    for schedule in schedules(world_size):
        terms = contracts.of(schedule).terms(schedule)
        if terms.repeats:  # a barrier moves no numbers
            continue
        even = schedule.collective == "all_to_all"  # chunks change places there, and must be of one length
        for num_elements in (0, 3 * world_size) if even else (0, 1, world_size, 3 * world_size + 1):
            before = np.random.default_rng(0).integers(-99, 99, (world_size, num_elements))
            after = simulate(schedule, before)
            bounds = schedule.bounds(num_elements)
            for rank, chunk in np.argwhere(terms.wanted):
                origin = slice(*bounds[terms.origin[rank, chunk] :][:2])
                expected = terms.parts[rank, chunk] @ before[:, origin]
                assert (after[rank, slice(*bounds[chunk:][:2])] == expected).all()


@ALGORITHMS
@ANY_WORLD
def test_the_price_is_the_closed_form_and_never_below_the_lower_bound(row, world_size):
    if not row.takes(world_size):
        return
    schedule = row.algorithm(world_size)
    counted, published = coefficients(schedule), row.closed_form(world_size)
    if row.exact(world_size):
        assert counted == pytest.approx(published)
    assert all(ours <= theirs + 1e-9 for ours, theirs in zip(counted, published, strict=True))
    bounds = lower_bounds(schedule.collective, world_size)
    assert all(ours >= bound - 1e-9 for ours, bound in zip(counted, bounds, strict=True))
    num_bytes = 1000 * schedule.num_chunks * (schedule.collective != "barrier")
    cost = price(schedule, num_bytes, topology.uniform(world_size, ALPHA, BETA, GAMMA))
    terms = (ALPHA, num_bytes * BETA, num_bytes * GAMMA)
    assert cost.seconds == pytest.approx(sum(map(float.__mul__, map(float, counted), map(float, terms))), rel=1e-9)


DTYPES = {  # by the number of elements: the others are asked for at one length
    12: [torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.uint8],
    0: [torch.float32],
    1: [torch.float32],
    1001: [torch.float32],
}


def run_everything(rank, world_size, num_elements):
    """Every algorithm on these dtypes, on a real rank: the buffers that result, and what was sent."""
    outcomes = []
    for schedule in every_schedule(world_size, num_elements):
        for dtype in DTYPES[num_elements]:
            buffer = make_buffer(rank, num_elements, dtype)
            with BytesSent() as sent:
                execute(schedule, buffer)
            outcomes.append((buffer, sent.total, sent.messages, dict(sent.collectives)))
    return outcomes


def make_buffer(rank, num_elements, dtype):
    numbers = np.random.default_rng(rank).integers(0, 20, num_elements)
    buffer = torch.tensor(numbers).to(dtype)
    return buffer / 7 if dtype.is_floating_point else buffer


def every_schedule(world_size, num_elements):
    """All algorithms but those that could not be run on so many elements, and one with blocks of uneven length."""
    even = num_elements % world_size == 0
    lengths = np.zeros((world_size, world_size), dtype=int)
    lengths[-1] = np.bincount(np.arange(num_elements) % world_size, minlength=world_size)
    yield pairwise.all_to_all_uneven(lengths)
    yield from (s for s in schedules(world_size) if even or s.collective != "all_to_all")


@pytest.mark.parametrize("num_elements", DTYPES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_real_ranks_end_with_the_numbers_of_the_simulation_and_send_the_bytes_of_the_price(world_size, num_elements):
    """Bit for bit: a rank adds what arrives to what it has, in numpy as in torch, in the schedule's order."""
    by_rank = ranks.run(run_everything, world_size, num_elements)
    cases = [
        (schedule, dtype) for schedule in every_schedule(world_size, num_elements) for dtype in DTYPES[num_elements]
    ]
    for index, (schedule, dtype) in enumerate(cases):
        outcomes = [outcomes[index] for outcomes in by_rank]
        executed = torch.stack([buffer for buffer, *_ in outcomes])
        before = torch.stack([make_buffer(rank, num_elements, dtype) for rank in range(world_size)])
        if dtype != torch.bfloat16:  # numpy has no such type; the ranks are compared with each other below
            assert torch.equal(torch.tensor(simulate(schedule, before.numpy())), executed)
        if schedule.collective == "all_reduce":
            assert (executed == executed[0]).all()
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
    for schedule in (s for s in schedules(world_size) if s.collective == "all_reduce"):
        after = simulate(schedule, before)
        assert (np.abs(after - exact) <= bound).all()
        assert (after == after[0]).all(), "all ranks must hold the same bits"
