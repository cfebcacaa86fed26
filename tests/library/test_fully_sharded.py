"""FSDP by hand launches what torch's does, in its order, and computes what data parallelism computes."""

from functools import cache

import numpy as np
import pytest
import torch
import torch.distributed as dist

from collectives import ranks
from collectives.measure.held import BytesHeld
from collectives.measure.wire import BytesSent
from collectives.training import fsdp, tiny, traffic
from collectives.training.fully_sharded import FullySharded

pytestmark = pytest.mark.ranks

DEPTH = 4
UNIT = sum(tensor.numel() for tensor in tiny.TinyBlock(tiny.WIDTH).parameters())  # divides by 2, 3 and 4


@pytest.fixture(scope="module", autouse=True)
def imported_once():
    """Ranks are forked from a server that has FSDP imported already: seconds saved in each."""
    ranks.preload(*fsdp.IMPORTS)


def torchs_ddp(model):
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model)


WAYS = {"DDP": torchs_ddp, "ours": FullySharded, "torch's": fsdp.shard}


def backward(model, step, width=tiny.WIDTH, parts=1):
    loss = tiny.loss(model, *tiny.batch(step, dist.get_rank(), dist.get_world_size(), width=width)) / parts
    loss.backward()
    if isinstance(model, FullySharded):
        model.finish()
    return loss.item()


def losses(way, width=tiny.WIDTH):
    """Losses of four steps."""
    model = WAYS[way](tiny.model(DEPTH, width))
    adam, found = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True), []
    for step in range(4):
        found.append(backward(model, step, width))
        adam.step()
        adam.zero_grad()
    return found


def counted(way, parts):
    """What one step of micro-batches calls."""
    model = WAYS[way](tiny.model(DEPTH))
    with BytesSent() as sent:
        for part in range(parts):
            backward(model, part, parts=parts)
    return dict(sent.collectives), dict(sent.payloads)


def gradients(parts):
    """The shards' gradients after micro-batches."""
    model = FullySharded(tiny.model(DEPTH))
    for part in range(parts):
        backward(model, part, parts=parts)
    return [shard.grad.numpy() for shard in model.parameters()]


def watched(prefetch):
    """The events of one step, and the most bytes of each kind."""
    model = FullySharded(tiny.model(DEPTH), prefetch)
    with BytesHeld(model.held) as held:
        backward(model, 0)
    return model.events, held.most


def traced(prefetch):
    model = fsdp.prefetch(fsdp.shard(tiny.model(DEPTH)), prefetch)
    backward(model, 0)
    return [span.name for span in fsdp.trace(lambda: backward(model, 0))]


class Keeping(FullySharded):
    """Known wrong: never frees."""

    def free(self, number):
        pass


def experiments(rank, world_size):
    return {
        "losses": {way: losses(way) for way in WAYS},
        "uneven": {way: losses(way, width=7) for way in WAYS},
        "counted": {(way, parts): counted(way, parts) for way in ("ours", "torch's") for parts in (1, 3)},
        "gradients": [gradients(1), gradients(2)],
        "watched": {on: watched(on) for on in (True, False)},
        "traced": {on: traced(on) for on in (True, False)},
        "kept": most_kept(),
    }


def most_kept():
    model = Keeping(tiny.model(DEPTH))
    with BytesHeld(model.held) as held:
        backward(model, 0)
    return held.most["gathered"]


@cache
def found_on(world_size):
    return ranks.run(experiments, world_size, timeout=120)


on_each = pytest.mark.parametrize("world_size", [2, 3, 4])


def test_on_two_ranks_losses_are_those_of_ddp_and_of_fsdp2_to_the_bit():
    for found in found_on(2):
        assert found["losses"]["DDP"] == found["losses"]["ours"] == found["losses"]["torch's"]


@on_each
def test_losses_agree_on_more_ranks_and_if_shards_need_padding(world_size):
    for found in found_on(world_size):
        for case in ("losses", "uneven"):
            np.testing.assert_allclose(found[case]["ours"], found[case]["DDP"], rtol=1e-5)
            np.testing.assert_allclose(found[case]["torch's"], found[case]["DDP"], rtol=1e-5)


@on_each
def test_calls_and_bytes_are_torchs_and_the_formulas_for_each_micro_batch(world_size):
    for found in found_on(world_size):
        for parts in (1, 3):
            assert found["counted"]["ours", parts] == found["counted"]["torch's", parts]
            calls, payloads = found["counted"]["ours", parts]
            assert calls == {"all_gather": 2 * DEPTH * parts, "reduce_scatter": DEPTH * parts}
            assert payloads == {name: parts * size for name, size in traffic.step(DEPTH * UNIT, 3, 4).items()}


@on_each
@pytest.mark.parametrize("prefetch", [True, False])
def test_events_come_in_the_order_of_a_profile_of_fsdp2(world_size, prefetch):
    for found in found_on(world_size):
        events = [event for event in found["watched"][prefetch][0] if not event.startswith("free")]
        assert events == found["traced"][prefetch]


@on_each
def test_a_rank_holds_one_unit_and_with_prefetch_two_and_all_if_nothing_is_freed(world_size):
    for found in found_on(world_size):
        assert [found["watched"][on][1]["gathered"] for on in (False, True)] == [4 * UNIT, 8 * UNIT]
        assert found["watched"][True][1]["parameters"] == 4 * DEPTH * UNIT // world_size
        assert found["kept"] == 4 * DEPTH * UNIT


@on_each
def test_micro_batches_add_up_in_the_shards(world_size):
    one, two = zip(*(found["gradients"] for found in found_on(world_size)), strict=True)
    assert not any(np.allclose(a, b) for a, b in zip(one[0], two[0], strict=True))
    model, parts = tiny.model(DEPTH), 2
    for part in range(parts):
        (tiny.loss(model, *tiny.batch(part)) / parts).backward()
    for unit, block in enumerate(model):
        whole = np.concatenate([shards[unit] for shards in two])
        wanted = torch.cat([tensor.grad.flatten() for tensor in block.parameters()])
        np.testing.assert_allclose(whole, wanted, atol=1e-6)


def test_between_steps_nothing_is_gathered():
    def one(rank, world_size):
        model = FullySharded(tiny.model(DEPTH))
        backward(model, 0)
        return sum(tensor.untyped_storage().nbytes() for tensor in model.held()["gathered"])

    assert ranks.run(one, 2) == [0, 0]
