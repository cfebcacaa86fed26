"""The price equals the closed forms, and what is not uniform costs what it should."""

import math

import numpy as np
import pytest

from collectives import Schedule, price, topology
from collectives.algorithms import ring, tree
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


def test_two_chunks_between_the_same_ranks_pay_alpha_once():
    together = Schedule.of(2, 2, [[(0, 1, 0, "copy"), (0, 1, 1, "copy")]])
    cost = price(together, 1000, topology.uniform(2, ALPHA, BETA))
    assert (cost.messages, cost.seconds) == (1, pytest.approx(ALPHA + 1000 * BETA))


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
    """32,766 steps of 16,384 transfers: never in memory at once, and exactly the closed form."""
    ranks, num_bytes = 16_384, 16_384 * 65_536
    cost = price(ring.all_reduce(ranks), num_bytes, topology.uniform(ranks, ALPHA, BETA))
    assert cost.steps == 2 * (ranks - 1)
    assert cost.seconds == pytest.approx(2 * (ranks - 1) * (ALPHA + 65_536 * BETA))
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
