"""The price equals the closed forms, and what is not uniform costs what it should."""

import math
from dataclasses import replace

import numpy as np
import pytest

from collectives import Schedule, Step, price, topology
from collectives.algorithms import doubling, hierarchical, pairwise, ring, tree
from collectives.price import algbw, busbw
from collectives.topology import Link, Topology

ALPHA, BETA, GAMMA = 2e-6, 3e-9, 1e-10


def test_gamma_is_paid_once_for_each_byte_that_is_added():
    even = price(ring.all_reduce(4), 4000, topology.uniform(4, 0, 0, GAMMA))
    assert even.seconds == pytest.approx(3 * 1000 * GAMMA)


def test_one_slow_link_holds_up_the_whole_ring():
    slow = Topology(4, Link(ALPHA, BETA), exceptions={(2, 3): Link(ALPHA, 10 * BETA)})
    cost = price(ring.all_reduce(4), 4_000_000, slow)
    assert cost.seconds == pytest.approx(6 * (ALPHA + 10 * BETA * 1_000_000), rel=0.01)


def test_a_rank_sends_one_message_at_a_time():
    """A root that sends to three peers in one step needs three turns; three peers that send to it need them too."""
    fan_out = Schedule.of(4, 1, [[(0, peer, 0, "copy") for peer in (1, 2, 3)]])
    fan_in = Schedule.of(4, 1, [[(peer, 0, 0, "reduce") for peer in (1, 2, 3)]])
    for schedule in (fan_out, fan_in):
        cost = price(schedule, 1000, topology.uniform(4, ALPHA, BETA))
        assert cost.seconds == pytest.approx(3 * (ALPHA + 1000 * BETA))


def test_a_run_of_chunks_is_one_message_and_two_transfers_are_two():
    run = Schedule.of(2, 2, [[(0, 1, 0, "copy", None, 2)]])
    singles = Schedule.of(2, 2, [[(0, 1, 0, "copy"), (0, 1, 1, "copy")]])
    for schedule, messages in ((run, 1), (singles, 2)):
        cost = price(schedule, 1000, topology.uniform(2, ALPHA, BETA))
        assert (cost.messages, cost.seconds) == (messages, pytest.approx(messages * ALPHA + 1000 * BETA))


def test_a_second_port_halves_the_time_of_a_ring_that_goes_both_ways():
    for world_size in (3, 4, 8, 9):
        ways = ring.all_reduce, ring.all_reduce_bidirectional
        one, two = (topology.uniform(world_size, ALPHA, BETA, ports=ports) for ports in (1, 2))
        alone, both = (price(way(world_size), world_size * 1000, one).seconds for way in ways)
        assert alone == pytest.approx(both)
        steps = 2 * (world_size // 2)
        assert price(ways[1](world_size), world_size * 1000, two).seconds == pytest.approx(
            steps * (ALPHA + 1000 * BETA)
        )
        assert price(ways[0](world_size), world_size * 1000, two).seconds == pytest.approx(alone)


def test_ranks_that_share_a_nic_share_its_bandwidth_and_pay_alpha_each():
    inside, across = Link(ALPHA, BETA), Link(10 * ALPHA, 10 * BETA)
    both_leave = Schedule.of(4, 1, [[(0, 2, 0), (1, 3, 0)]])
    for ranks_per_nic, share in ((1, 1), (2, 2)):
        machine = topology.two_level(2, 2, inside, across, ranks_per_nic)
        assert price(both_leave, 1000, machine).seconds == pytest.approx(10 * ALPHA + share * 1000 * 10 * BETA)
    stay = Schedule.of(4, 1, [[(0, 1, 0), (2, 3, 0)]])
    assert price(stay, 1000, machine).seconds == pytest.approx(ALPHA + 1000 * BETA)


def test_a_free_link_beside_a_slow_one_is_the_only_free_one():
    """Links given in whole numbers are no whole numbers to the others."""
    machine = topology.two_level(2, 2, Link(0, 0), Link(ALPHA, BETA))
    assert price(Schedule.of(4, 1, [[(1, 2, 0)]]), 1000, machine).seconds == pytest.approx(ALPHA + 1000 * BETA)


def test_no_nic_carries_more_than_it_can_and_none_is_paid_for_twice():
    """Whatever the schedule: at least its bytes' time, and where nothing else costs, hardly more."""
    machine = topology.two_level(2, 2, Link(0, 0), Link(0, BETA), ranks_per_nic=2)
    both = Schedule.of(4, 1, [[(0, 2, 0), (0, 3, 0)]])
    assert price(both, 1000, machine).seconds == pytest.approx(2000 * BETA)
    for algorithm in (pairwise.all_gather, pairwise.all_to_all, ring.all_gather):
        schedule = algorithm(8)
        cost = price(schedule, 800, topology.two_level(2, 4, Link(0, 0), Link(0, BETA), ranks_per_nic=4))
        across = sum(n for (src, dst), n in cost.bytes_on_link.items() if src < 4 <= dst)
        assert across * BETA <= cost.seconds + 1e-15 <= 1.5 * across * BETA


def test_a_step_of_runs_beside_one_of_single_chunks_has_its_own_bytes():
    ranks = np.arange(2)
    others, first = ranks[::-1].copy(), np.zeros(2, dtype=int)
    steps = [Step(ranks, others, first, "reduce", count=np.full(2, 2)), Step(ranks, others, first, "reduce")]
    for order in (steps, steps[::-1]):
        cost = price(Schedule(2, 2, lambda order=order: order), 4, topology.uniform(2, 0, 1))
        assert (cost.seconds, cost.bytes_sent.tolist()) == (6, [6, 6])


def test_two_levels_send_less_across_than_a_ring_and_win_where_across_is_slow():
    machine = topology.two_level(4, 8, Link(1e-6, 1e-11), Link(5e-6, 2e-10), ranks_per_nic=8)
    flat, levels = ring.all_reduce(32), hierarchical.all_reduce(32, 8)
    for num_bytes in (32 * 1024, 32 * 2**20):
        assert price(levels, num_bytes, machine).seconds < price(flat, num_bytes, machine).seconds


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 31])
def test_one_rank_s_trace_stands_for_all_on_uniform_links(world_size):
    """By symmetry or step by step, the cost is the same: a topology with one exception that changes nothing."""
    links = topology.uniform(world_size, ALPHA, BETA, GAMMA)
    same = replace(links, exceptions={(0, 0): links.link})
    for algorithm in (ring.all_reduce, pairwise.all_to_all, pairwise.all_reduce, doubling.barrier):
        schedule = algorithm(world_size)
        num_bytes = 100 * schedule.num_chunks
        quick, long = price(schedule, num_bytes, links), price(schedule, num_bytes, same)
        assert (quick.steps, quick.messages) == (long.steps, long.messages)
        assert quick.seconds == pytest.approx(long.seconds, rel=1e-12)
        assert quick.finish == pytest.approx(long.finish)
        assert quick.bytes_on_link == long.bytes_on_link
        assert (quick.bytes_sent == long.bytes_sent).all() and (quick.bytes_received == long.bytes_received).all()


def test_bus_bandwidth_of_an_optimal_algorithm_is_that_of_its_link():
    """As nccl-tests defines it: without alpha, the ring's bus bandwidth is 1 / beta at any P."""
    collectives = {ring.all_reduce: "all_reduce", ring.all_gather: "all_gather", pairwise.all_to_all: "all_to_all"}
    for world_size in (2, 3, 16):
        for algorithm, name in collectives.items():
            seconds = price(algorithm(world_size), world_size * 1000, topology.uniform(world_size, 0, BETA)).seconds
            assert busbw(name, world_size, world_size * 1000, seconds) == pytest.approx(1 / BETA)
            assert algbw(world_size * 1000, seconds) == pytest.approx(world_size * 1000 / seconds)
    with pytest.raises(ValueError, match="no bus bandwidth for 'barrier'"):
        busbw("barrier", 2, 1, 1)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"world_size": 0}, "world_size must be at least 1"),
        ({"gamma": -1}, "gamma, in seconds per byte, must be at least 0"),
        ({"exceptions": {(0, 9): Link(0, 0)}}, "the exception 0→9 is out of range: the ranks are 0 to 3"),
        ({"ranks_per_node": 2}, "both ranks_per_node and across"),
        ({"ranks_per_node": 3, "across": Link(0, 0)}, "4 ranks do not fill nodes of 3"),
    ],
)
def test_an_impossible_topology_is_refused(wrong, complaint):
    with pytest.raises(ValueError, match=complaint):
        Topology(**{"world_size": 4, "link": Link(0, 0), **wrong})


def test_a_rank_that_is_ready_does_not_wait_for_strangers():
    """Steps are no barriers: ranks 2 and 3 are done before the slow pair 0 and 1 is."""
    slow = Topology(4, Link(ALPHA, BETA), exceptions={(0, 1): Link(1.0, BETA)})
    pairs = Schedule.of(4, 1, [[(0, 1, 0, "copy"), (2, 3, 0, "copy")], [(3, 2, 0, "copy")]])
    assert price(pairs, 0, slow).finish == pytest.approx([1, 1, 2 * ALPHA, 2 * ALPHA])


def test_bytes_on_a_link_are_those_of_its_chunks():
    cost = price(ring.reduce_scatter(4), 40, topology.uniform(4, ALPHA, BETA), itemsize=4)  # 10 elements: 3 3 2 2
    assert cost.bytes_on_link == {(0, 1): 28, (1, 2): 28, (2, 3): 32, (3, 0): 32}
    assert sum(cost.bytes_on_link.values()) == cost.bytes_sent.sum() == cost.bytes_received.sum() == 10 * 3 * 4


def test_sixteen_thousand_ranks_are_priced_a_step_at_a_time():
    """32,766 steps of 16,384 transfers: never in memory at once, and exactly the closed form; uneven links too."""
    ranks, num_bytes = 16_384, 16_384 * 65_536
    links = topology.uniform(ranks, ALPHA, BETA)
    cost = price(ring.all_reduce(ranks), num_bytes, links)
    assert cost.steps == 2 * (ranks - 1)
    assert cost.seconds == pytest.approx(2 * (ranks - 1) * (ALPHA + 65_536 * BETA), rel=1e-9)
    slow = Link(ALPHA, 10 * BETA)
    uneven = replace(
        links, exceptions={(r, r + 1): Link(ALPHA, BETA * (1 + r % 7 / 7)) for r in range(ranks - 1)} | {(7, 8): slow}
    )
    one_slow = price(ring.all_reduce(ranks), num_bytes, uneven)
    assert one_slow.seconds == pytest.approx(2 * (ranks - 1) * (ALPHA + 65_536 * 10 * BETA), rel=0.01)
    assert (one_slow.bytes_sent == cost.bytes_sent).all()
    assert np.unique(cost.bytes_sent).tolist() == [2 * (ranks - 1) * 65_536]
    small = price(tree.all_reduce(ranks), 8, topology.uniform(ranks, ALPHA, BETA))
    assert small.steps == 2 * math.ceil(math.log2(ranks))


@pytest.mark.parametrize(
    ("num_bytes", "ranks", "complaint"),
    [(10, 4, "not a whole number of 4-byte elements"), (8, 5, "for 4 ranks, the topology for 5")],
)
def test_what_cannot_be_priced_is_refused(num_bytes, ranks, complaint):
    with pytest.raises(ValueError, match=complaint):
        price(ring.all_reduce(4), num_bytes, topology.uniform(ranks, ALPHA, BETA), itemsize=4)


def test_a_size_may_be_written_as_a_power_of_ten():
    links = topology.uniform(4, ALPHA, BETA)
    assert price(ring.all_reduce(4), 1e6, links).seconds == price(ring.all_reduce(4), 1_000_000, links).seconds


def test_a_link_cannot_be_faster_than_instant():
    with pytest.raises(ValueError, match="at least 0"):
        Link(-1e-6, 0)
