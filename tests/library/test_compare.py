"""Five ways to spread a model, each by its formula: what `traffic`, `memory` and the schedules themselves say.

On real ranks chapter 20 counts the same five.
"""

import pytest

from collectives import price, topology
from collectives.algorithms import ring
from collectives.training import compare, pipeline
from collectives.training.compare import load

LAYERS, PSI, CUT = 16, 16 * 12 * 64, 2**20


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_what_is_sent_is_what_the_rings_of_the_schedules_send(world_size):
    def around(algorithm, num_bytes):
        cost = price(algorithm(world_size), num_bytes, topology.uniform(world_size, 0, 1))
        return cost.bytes_sent.max()

    gradients = around(ring.all_reduce, 2 * PSI)
    assert load("DDP", world_size, LAYERS, PSI, CUT).sent == gradients
    assert load("ZeRO-1", world_size, LAYERS, PSI, CUT, num_micro_batches=4).sent == gradients
    assert load("FSDP", world_size, LAYERS, PSI, CUT, num_micro_batches=4).sent == 4 * 1.5 * gradients
    gathers, scatters = around(ring.all_gather, CUT), around(ring.reduce_scatter, CUT)
    for kept_whole, again in ((0, 2), (0.1, 0)):  # gathered again in the backward pass, or kept
        split = load("tensor + sequence", world_size, LAYERS, PSI, CUT, num_micro_batches=4, kept_whole=kept_whole)
        assert split.sent == LAYERS * ((4 + again) * gathers + 4 * scatters)
        assert split.waits == 4 * (8 + again) * LAYERS


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 8), (4, 8), (8, 4), (8, 16)])
def test_a_pipeline_waits_sends_and_keeps_what_its_schedule_says(stages, micro_batches):
    schedule = pipeline.one_f_one_b(stages, micro_batches)
    takers = [taker for operation in schedule.position if (taker := schedule.feeds(operation))]
    busiest = max(sum(schedule.rank_of(taker) == rank for taker in takers) for rank in range(stages))
    found = load("pipeline", stages, LAYERS, PSI, CUT, micro_batches)
    assert found.waits == busiest
    assert found.sent == busiest * CUT / micro_batches
    assert found.activations == max(pipeline.peak_activations(schedule)) / stages / micro_batches


def test_state_shrinks_with_the_ranks_but_for_what_is_replicated():
    states = {way: [load(way, size, LAYERS, PSI, CUT).state for size in (1, 2, 4)] for way in compare.WAYS}
    assert states["DDP"] == [16 * PSI] * 3
    assert states["ZeRO-1"] == [16 * PSI, 10 * PSI, 7 * PSI]
    for way in ("FSDP", "pipeline", "tensor + sequence"):
        assert states[way] == [16 * PSI, 8 * PSI, 4 * PSI]


def test_one_rank_alone_waits_for_nobody_and_sends_nothing():
    for way in compare.WAYS:
        alone = load(way, 1, LAYERS, PSI, CUT)
        assert (alone.waits, alone.sent, alone.activations) == (0, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("magic", 2, 4, 100, 10), "unknown way 'magic': choose from DDP, ZeRO-1, FSDP, pipeline"),
        (("DDP", 0, 4, 100, 10), "num_micro_batches: 1 or more"),
        (("pipeline", 3, 4, 100, 10), "4 layers do not divide among 3 stages"),
    ],
)
def test_what_cannot_be_is_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        load(*arguments)
