"""Torch's FSDP2 calls, sends and holds what the formulas say, and agrees with stage 3 by hand."""

from functools import cache

import numpy as np
import pytest
import torch
import torch.distributed as dist

from collectives import ranks
from collectives.measure.held import BytesHeld
from collectives.measure.wire import BytesSent
from collectives.training import fsdp, memory, sharded, tiny, traffic
from collectives.training.timeline import Timeline

pytestmark = pytest.mark.ranks

BF16 = torch.bfloat16
DEPTH = 4
UNIT = sum(tensor.numel() for tensor in tiny.TinyBlock(tiny.WIDTH).parameters())
PSI = DEPTH * UNIT
COUNTERS = 4 * 4 * DEPTH  # bytes: torch's AdamW counts its steps, in an fp32 scalar for each tensor


@pytest.fixture(scope="module", autouse=True)
def imported_once():
    """Ranks are forked from a server that has FSDP imported already: seconds saved in each."""
    ranks.preload(*fsdp.IMPORTS)


def mixed(reduce_in=BF16):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=reduce_in)


def calls(depth=DEPTH, width=tiny.WIDTH, ends=False, **options):
    """How often a step calls each collective of the backend's own, and their payloads; `ends`: embedding and head."""
    blocks = list(tiny.model(depth, width))
    first, last = (torch.nn.Linear(width, width) for _ in range(2))
    model = fsdp.shard(torch.nn.Sequential(*([first, *blocks, last] if ends else blocks)), units=blocks, **options)
    batch = tiny.batch(0, dist.get_rank(), dist.get_world_size(), width=width)
    with BytesSent() as sent:
        tiny.loss(model, *batch).backward()
    return dict(sent.collectives), dict(sent.payloads)


def over_rings(gather=None, scatter=None, units=list, **options):
    """Losses of FSDP2 over our collectives, and what one step sends, lets leave nodes of two, and holds."""
    gather, scatter = gather or fsdp.AllGather(), scatter or fsdp.ReduceScatter()
    model = tiny.model(dtype=BF16).float()
    fsdp.shard(model, units(model), gather, scatter, **options)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    losses = fsdp.train(model, adam, range(3), BF16)
    batch = tiny.batch(3, dist.get_rank(), dist.get_world_size(), dtype=BF16)
    left = gather.leaving(2) + scatter.leaving(2)
    with BytesSent() as sent, BytesHeld(fsdp.kinds(model, adam, gather, scatter)) as held:
        loss = tiny.loss(model, *batch)
        between = held.now
        loss.backward()
        rest = held.now
    return {
        "losses": losses,
        "sent": sent.total,
        "payloads": dict(sent.payloads),
        "left": gather.leaving(2) + scatter.leaving(2) - left,
        "between": between,
        "rest": rest,
        "most": held.most,
    }


def by_hand():
    trained = sharded.ZeRO3(tiny.model(dtype=BF16))
    losses = []
    for step in range(3):
        with BytesSent() as sent:
            losses.append(fsdp.backward(trained.model, step, BF16))
        trained.step()
    losses = torch.stack(losses)
    dist.all_reduce(losses)
    return {"losses": (losses / dist.get_world_size()).tolist(), "sent": sent.total}


def gathered_by(schedule):
    """The losses in fp32, over the backend's own collectives or over ours."""
    own = (fsdp.AllGather(), fsdp.ReduceScatter()) if schedule else (None, None)
    model = fsdp.shard(tiny.model(), None, *own)
    return fsdp.train(model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True), range(3))


def alone():
    """The losses of one process with the whole batch."""
    model = tiny.model()
    adam, losses = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True), []
    for step in range(3):
        loss = tiny.loss(model, *tiny.batch(step))
        loss.backward()
        adam.step()
        adam.zero_grad()
        losses.append(loss.item())
    return losses


def trace_both():
    width = 64
    model = fsdp.shard(tiny.model(DEPTH, width))
    batch = tiny.batch(0, dist.get_rank(), dist.get_world_size(), width=width)
    found = {}
    for on in (None, False, True):  # None: torch's default
        if on is not None:
            fsdp.prefetch(model, on)
        tiny.loss(model, *batch).backward()
        found[on] = fsdp.trace(lambda: tiny.loss(model, *batch).backward())
    return found


def summed_by_hsdp(mesh, micro_batches, each_time=False):
    """What HSDP all-reduces in a step, in bytes, if only its last micro-batch does; and this rank's gradients."""
    model = fsdp.shard(tiny.model(), mesh=mesh)
    with BytesSent() as sent:
        for number in range(micro_batches):
            model.set_requires_all_reduce(each_time or number == micro_batches - 1)
            fsdp.backward(model, number)
    gradients = [tensor.grad.to_local().flatten() for tensor in model.parameters()]
    return sent.payloads["all_reduce"], torch.cat(gradients)


def experiments(rank, world_size):
    found = {
        "reshard": calls(),
        "keep": calls(reshard_after_forward=False),
        "sums in fp32": calls(mp_policy=mixed(torch.float32)),
        "width 10": calls(width=10),
        "ends": calls(ends=True),
        "torch's": gathered_by(None),
        "ours": gathered_by("ring"),
        "by hand": by_hand(),
        "bf16": over_rings(mp_policy=mixed()),
        "kept": over_rings(mp_policy=mixed(), reshard_after_forward=False),
        "root only": over_rings(mp_policy=mixed(), units=lambda model: []),
        "trace": trace_both(),
    }
    if world_size == 4:
        grid = fsdp.mesh(2, 2, names=("replicate", "shard"))
        lean = fsdp.AllGather(8, ranks_per_node=2), fsdp.ReduceScatter(4, ranks_per_node=2)
        found |= {
            "secondary": over_rings(mp_policy=mixed(), reshard_after_forward=2),
            "HSDP": over_rings(mp_policy=mixed(), mesh=grid),
            "lean": over_rings(*lean, mp_policy=mixed(), reshard_after_forward=2),
            "one micro-batch": summed_by_hsdp(grid, 1),
            "three": summed_by_hsdp(grid, 3),
            "three, each time": summed_by_hsdp(grid, 3, each_time=True),
        }
    return found


@cache
def found_on(world_size):
    return ranks.run(experiments, world_size, timeout=180)


on_each = pytest.mark.parametrize("world_size", [2, 3, 4])


@on_each
def test_a_unit_calls_three_collectives_or_two_if_its_parameters_are_kept(world_size):
    for found in found_on(world_size):
        assert found["reshard"] == ({"all_gather": 8, "reduce_scatter": 4}, traffic.step(PSI, 3, 4))
        assert found["keep"] == ({"all_gather": 4, "reduce_scatter": 4}, traffic.step(PSI, 3, 4, reshard=False))
        assert found["sums in fp32"][1] == {"all_gather": 2 * 2 * PSI, "reduce_scatter": 4 * PSI}


@on_each
def test_what_no_unit_takes_is_one_more_unit_the_root_gathered_once_and_scattered_once(world_size):
    """E30: so 70 layers call 3 x 70 + 2 = 212 collectives a step, and not 210."""
    for found in found_on(world_size):
        assert found["ends"][0] == {"all_gather": 2 * DEPTH + 1, "reduce_scatter": DEPTH + 1}


@on_each
def test_every_tensor_is_padded_along_its_first_dimension(world_size):
    padded = DEPTH * fsdp.padded_elements(tiny.TinyBlock(10), world_size)
    assert padded == DEPTH * {2: 850, 3: 42 * 10 + 42 + 12 * 40 + 12, 4: 40 * 10 + 40 + 12 * 40 + 12}[world_size]
    assert found_on(world_size)[0]["width 10"][1] == traffic.step(padded, 3, 4)


@on_each
def test_over_our_rings_losses_are_those_of_torchs_collectives_and_of_one_process(world_size):
    for found in found_on(world_size):
        np.testing.assert_allclose(found["ours"], found["torch's"], rtol=1e-5)
        np.testing.assert_allclose(found["ours"], alone(), rtol=1e-5)


@on_each
def test_stage_3_by_hand_sends_the_same_bytes_and_computes_the_same_losses(world_size):
    for found in found_on(world_size):
        torchs, hand = found["bf16"], found["by hand"]
        assert torchs["sent"] == hand["sent"] == traffic.sent(traffic.step(PSI, 3), world_size)
        if world_size == 2:  # a sum of two has one order
            assert torchs["losses"] == hand["losses"]
        np.testing.assert_allclose(torchs["losses"], hand["losses"], rtol=0.01)


@on_each
def test_what_rests_and_the_most_of_each_kind_are_known_to_the_byte(world_size):
    shard = UNIT // world_size
    for found in found_on(world_size):
        rest, most = found["bf16"]["rest"], found["bf16"]["most"]
        wanted = {
            "parameters": 4 * DEPTH * shard,
            "gradients": 4 * DEPTH * shard,
            "optimizer": 8 * DEPTH * shard + COUNTERS,
        }
        assert {kind: rest[kind] for kind in wanted} == wanted
        assert sum(wanted.values()) == memory.at_rest(PSI, world_size, 3).total + COUNTERS
        assert rest["gathered"] == rest["secondary"] == rest["buffers"] == 0
        assert most["gathered"] == 2 * UNIT
        assert most["gradients"] == max(4 * (DEPTH - 1) * shard + 2 * UNIT, 4 * DEPTH * shard)
        assert most["buffers"] == 2 * UNIT + 2 * UNIT + 2 * shard


@on_each
def test_parameters_that_are_kept_are_there_between_the_passes_and_not_between_steps(world_size):
    for found in found_on(world_size):
        kept = found["kept"]
        assert (kept["between"]["gathered"], kept["rest"]["gathered"]) == (2 * PSI, 0)
        assert kept["sent"] == traffic.sent(traffic.step(PSI, 2), world_size)
        assert kept["losses"] == found["bf16"]["losses"]


@on_each
def test_a_model_that_is_one_unit_is_gathered_whole(world_size):
    for found in found_on(world_size):
        assert found["root only"]["most"]["gathered"] == 2 * PSI
        assert found["root only"]["most"]["buffers"] > found["bf16"]["most"]["buffers"]
        np.testing.assert_allclose(found["root only"]["losses"], found["bf16"]["losses"], rtol=0.01)


@on_each
def test_with_prefetch_a_gather_is_launched_before_the_unit_in_front_computes_and_by_default_backward(world_size):
    """E23: torch's default is neither on nor off."""
    for found in found_on(world_size):
        for on, spans in found["trace"].items():
            order = [span.name for span in spans]
            assert len(order) == len(set(order)) == 5 * DEPTH
            for k in range(DEPTH - 1):
                assert (order.index(f"gather {k + 1}") < order.index(f"forward {k}")) == bool(on)
                assert (order.index(f"gather {k} again") < order.index(f"backward {k + 1}")) == (on is not False)
            line = Timeline.measured(spans)
            assert line.exposed > 0 and (on is not False or line.by_kind["all_gather"].hidden < 1e-3 * line.seconds)


def test_what_leaves_a_node_with_a_secondary_shard_with_hsdp_and_with_fewer_bits():
    everywhere = found_on(4)
    for found in everywhere:
        assert found["secondary"]["between"]["secondary"] == 2 * PSI // 2
        assert found["HSDP"]["left"] == 0 and found["HSDP"]["payloads"] == {"all_reduce": 2 * PSI // 2}
        assert found["HSDP"]["rest"]["parameters"] == 4 * PSI // 2
        for name in ("secondary", "HSDP", "lean"):
            np.testing.assert_allclose(found[name]["losses"], found["bf16"]["losses"], rtol=0.03)
        assert found["secondary"]["losses"] == found["bf16"]["losses"]
    left = {name: sum(found[name]["left"] for found in everywhere[:2]) for name in ("bf16", "secondary", "lean")}
    crossing = traffic.crossing(nodes=2, gpus_per_node=2)
    assert left["bf16"] == crossing["FSDP"] * 2 * PSI
    assert left["secondary"] == crossing["secondary shard"] * 2 * PSI
    reduced = found_on(4)[0]["HSDP"]["payloads"]["all_reduce"]
    assert 2 * traffic.sent({"all_reduce": reduced}, 2) == crossing["HSDP"] * 2 * PSI
    assert left["lean"] < left["bf16"] / 4


def test_hsdp_may_all_reduce_once_a_step_however_many_micro_batches_it_adds_up():
    crossing = traffic.crossing(2, 2, micro_batches=3)
    assert crossing["HSDP"] == traffic.crossing(2, 2)["HSDP"] < crossing["FSDP"] / 6
    for found in found_on(4):
        (one, _), (once, late), (each_time, sums) = (
            found[name] for name in ("one micro-batch", "three", "three, each time")
        )
        assert 3 * once == 3 * one == each_time
        torch.testing.assert_close(late, sums)


def test_on_many_nodes_hsdp_crosses_no_less_than_a_secondary_shard_and_holds_a_shard_for_each_node():
    """E24: 1.97 S against 2.00 S, with 64 times the state."""
    crossing = traffic.crossing(nodes=64, gpus_per_node=8)
    assert (crossing["HSDP"], crossing["secondary shard"]) == pytest.approx((1.97, 2.00), abs=0.005)
    hybrid, everywhere = (memory.at_rest(8 * 10**9, sharded_over, 3).total for sharded_over in (8, 64 * 8))
    assert hybrid == 64 * everywhere
    assert traffic.crossing(nodes=1, gpus_per_node=8) == dict.fromkeys(crossing, 0)


def prepared(seed):
    model = fsdp.shard(tiny.model(seed=seed))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def whole(model, adam):
    kept = list(model.parameters())
    for moment in ("exp_avg", "exp_avg_sq"):
        kept += [adam.state[tensor][moment] for tensor in model.parameters()]
    return [tensor.full_tensor().detach().numpy() for tensor in kept]


def save(rank, world_size, folder):
    model, adam = prepared(seed=0)
    fsdp.train(model, adam, range(2))
    fsdp.save(model, adam, folder)
    return whole(model, adam), fsdp.train(model, adam, [2, 3])


def load(rank, world_size, folder):
    model, adam = prepared(seed=1)
    fsdp.load(model, adam, folder)
    return whole(model, adam), fsdp.train(model, adam, [2, 3])


def test_a_checkpoint_of_four_ranks_goes_on_where_it_was_on_two_and_on_three(tmp_path):
    saved, losses = ranks.run(save, 4, str(tmp_path))[0]
    for world_size in (2, 3):
        for loaded, again in ranks.run(load, world_size, str(tmp_path)):
            assert all(np.array_equal(a, b) for a, b in zip(saved, loaded, strict=True))
            np.testing.assert_allclose(again, losses, rtol=1e-5)


def one_of_many(rank, world_size, many, width):
    with fsdp.pretended(many) as mesh:
        model = torch.nn.Sequential(*[tiny.TinyBlock(width) for _ in range(2)])
        padded = sum(fsdp.padded_elements(block, many) for block in model)
        fsdp.shard(model, mesh=mesh, mp_policy=mixed())
        adam = torch.optim.AdamW(model.parameters())
        with BytesSent() as sent:
            model(torch.randn(2, width)).sum().backward()
        adam.step()
        kinds = fsdp.kinds(model, adam)().items()
        held = {kind: sum(tensor.numel() * tensor.element_size() for tensor in tensors) for kind, tensors in kinds}
        try:
            fsdp.trace(lambda: None)
        except RuntimeError as refused:
            refusal = str(refused)
    return padded, dict(sent.collectives), dict(sent.payloads), held, refusal, dist.is_initialized()


def test_a_rank_of_1024_that_do_not_exist_calls_and_holds_what_the_formula_says():
    padded, collectives, payloads, held, refusal, initialized = ranks.run(one_of_many, 1, 1024, 1500)[0]
    assert padded == 2 * (6144 * 1500 + 6144 + 2048 * 6000 + 2048)  # 6000 and 1500 rows, padded
    assert collectives == {"all_gather": 4, "reduce_scatter": 2}
    assert payloads == traffic.step(padded, 3)
    assert held["parameters"] == held["gradients"] == 4 * padded // 1024
    assert held["optimizer"] == 8 * padded // 1024 + 4 * 4 * 2
    assert "reads the events of gloo, not of fake" in refusal
    assert not initialized
