"""The ready pictures of overlap are the library's timelines, and their prices those of the network's model."""

import os
import subprocess
import sys
from itertools import pairwise, product

import pytest

from collectives import network
from collectives.figures import overlap
from collectives.figures.overlap import DEPTHS, WAYS, fsdp_step, mesh_step, trade_step
from collectives.machines import RUNNING_CASE
from collectives.training.memory import at_rest
from collectives.training.timeline import Layer, data_parallel, run


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_price_is_what_nccl_takes_on_the_running_case(collective):
    for nodes, num_bytes in product((1, 8, 128), (0, 64 * 1000, 64 * 10**7)):
        cluster = RUNNING_CASE.of(nodes)
        expected = network.choose(collective, num_bytes, cluster).seconds
        assert overlap.price(collective, 8, nodes)(num_bytes) == pytest.approx(expected)
    assert overlap.price(collective, 1, 1)(10**9) == 0


def test_the_outputs_are_those_of_the_timeline():
    """What is said to be exposed is so by the timeline's own account, in numbers, for every depth of prefetching."""
    for depth, size, rate in product(DEPTHS.values(), (1e7, 4e9), (5e9, 1e12)):
        found = fsdp_step(5e-3, size, 64, rate, depth)
        timeline = found["timeline"]
        assert found["exposed"] == timeline.exposed == pytest.approx(timeline.seconds - timeline.computing)
        assert found["share"] == pytest.approx(1 - timeline.computing / timeline.seconds)
        assert found["gather"] == timeline.spans[0].seconds
    for tp_size, inside, across, depth in product((1, 8), (5e9, 1e12), (5e9, 1e12), DEPTHS.values()):
        found = mesh_step(4096, 2048, tp_size, inside, across, depth)
        timeline = found["timeline"]
        assert timeline.by_kind["all_reduce"] == pytest.approx((found["blocking"], 0))
        assert found["blocking"] + found["beside"] == pytest.approx(timeline.exposed)
        assert timeline.computing == pytest.approx(3 * 3 * found["forward"])
    one, eight = (mesh_step(4096, 2048, tp_size, 450e9, 50e9, 1) for tp_size in (1, 8))
    assert one["blocking"] == 0 and one["forward"] == 8 * eight["forward"]


def test_the_trade_is_between_the_timelines_and_the_memory_of_stages_0_and_3():
    """DDP's step is that of a bucket for each layer, FSDP's that of `fsdp_step`; the one picked is drawn."""
    layers, four = [Layer(5e-3, 10e-3, 4e8)] * 4, [[3], [2], [1], [0]]
    ddp = run(data_parallel(layers, four, overlap.price("all_reduce", 8, 2, card=25e9)))
    fsdp = fsdp_step(5e-3, 4e8, 16, 25e9, 1)["timeline"]
    for way, timeline, stage in (("DDP", ddp, 0), ("FSDP", fsdp, 3)):
        found = trade_step(WAYS[way], 5e-3, 4e8, 16, 25e9, 1)
        assert found["timeline"] == timeline
        assert found[f"{way} step"] == timeline.seconds == pytest.approx(found["computing"] + found[f"{way} exposed"])
        assert found[f"{way} holds"] == at_rest(8e8, 16, stage).total
        assert found["slower"] == fsdp.seconds / ddp.seconds > 1


def test_where_nothing_hides_fsdp_takes_one_and_a_half_times_as_long_as_ddp():
    """FSDP sends 3 S and DDP 2 S on the same link, and FSDP is never faster."""
    found = trade_step(WAYS["DDP"], 5e-4, 4e9, 64, 5e9, 1)
    assert found["slower"] == pytest.approx(1.5, rel=1e-2)
    for rate, forward in product((5e9, 5e10), (5e-4, 8e-3)):
        assert trade_step(WAYS["DDP"], forward, 8e8, 64, rate, 1)["slower"] > 1


def test_gathers_and_reduce_scatters_share_the_link():
    for step in (fsdp_step(5e-4, 4e9, 64, 5e9, 1), mesh_step(4096, 512, 8, 450e9, 5e9, 1)):
        moved = [each for each in step["timeline"].spans if each.kind in ("all_gather", "reduce_scatter")]
        moved.sort(key=lambda span: (span.start, span.end))
        assert all(after.start >= before.end - 1e-9 for before, after in pairwise(moved))


def test_at_the_start_gathers_hide_and_all_reduces_do_not():
    """What a reader is to see first: the bounds of what prefetching can do are met."""
    found = overlap.fsdp().at()
    assert found["exposed"] == pytest.approx(3 * found["gather"])  # first of each pass, and the last scatter
    alone = overlap.fsdp().at(prefetch="none")
    assert alone["exposed"] == pytest.approx(12 * found["gather"])  # all: two gathers and a scatter a layer
    found = overlap.mesh().at()
    assert found["beside"] == pytest.approx(3 * found["gather"])
    assert found["blocking"] == pytest.approx(12 * found["reduce"])


@pytest.mark.parametrize("name", ["fsdp", "trade", "mesh"])
def test_a_picture_stays_small_and_is_the_same_bytes_every_time(name):
    here = getattr(overlap, name)().html()
    assert len(here.encode()) < 73_000
    assert here.replace("http://www.w3.org/2000/svg", "").count("http") == 0
    assert " id=" not in here
    code = f"from collectives.figures import overlap; print(overlap.{name}().html(), end='')"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", code]
    there = subprocess.run(command, env=environment, capture_output=True, check=True, encoding="utf-8")
    assert there.stdout == here


def test_a_step_has_layers_and_nodes():
    steps = (overlap.fsdp, "num_layers"), (overlap.trade, "num_layers")
    for figure, wrong in (*steps, (overlap.mesh, "num_layers"), (overlap.mesh, "dp_size")):
        with pytest.raises(ValueError, match=f"{wrong} must be at least 1, not 0"):
            figure(**{wrong: 0})
