"""Every stage of ZeRO by hand computes the very step that DDP does, holds what the formula says, sends what it says."""

from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from collectives import ranks
from collectives.measure.held import BytesHeld
from collectives.measure.wire import BytesSent
from collectives.training import memory, sharded, tiny, traffic

pytestmark = pytest.mark.ranks

ranks.preload("torch._dynamo")  # which torch's optimizers ask for

STAGES = [sharded.Replicated, sharded.ZeRO1, sharded.ZeRO2, sharded.ZeRO3]
WORLD_SIZES = [2, 3, 4]
UNITS = [[tensor.numel() for tensor in block.parameters()] for block in tiny.model()]
NUM_PARAMETERS = sum(map(sum, UNITS))
COUNTERS = 4 * len(UNITS)  # bytes: torch's AdamW counts its steps, in an fp32 scalar for every unit


def train(trained, rank, world_size, steps=3, micro=1, **shape):
    """The loss of each step, as floats, and the parameters at the end."""
    losses = []
    for step in range(steps):
        for part in range(micro):
            batch = tiny.batch(micro * step + part, rank, world_size, dtype=torch.bfloat16, **shape)
            loss = tiny.loss(trained.model, *batch)
            loss.backward()
            losses.append(loss.item())
        trained.step()
    if isinstance(trained, sharded.ZeRO3):
        for unit in trained.units:
            trained.gather(unit)
    return losses, torch.cat([unit.parameters for unit in trained.units])


def one_step(trained, rank, world_size):
    """What a rank sends in a step, and holds: before the update, at most of each kind, and after it."""
    train(trained, rank, world_size, steps=1)  # Adam's moments appear with the first update
    if isinstance(trained, sharded.ZeRO3):
        for unit in trained.units:
            trained.free(unit)
    with BytesSent() as sent, BytesHeld(trained.held) as held:
        tiny.loss(trained.model, *tiny.batch(1, rank, world_size, dtype=torch.bfloat16)).backward()
        rest = held.now
        trained.step()
    return sent.total, dict(sent.collectives), rest, held.most, held.now


def torchs_ddp(rank, world_size):
    """torch's DDP on the same model, with the same Adam in mixed precision: the loss of each step."""
    model = tiny.model(dtype=torch.bfloat16)
    masters = [tensor.detach().float() for tensor in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-2, fused=True)
    replicated, losses = DistributedDataParallel(model), []
    for step in range(3):
        loss = tiny.loss(replicated, *tiny.batch(step, rank, world_size, dtype=torch.bfloat16))
        loss.backward()
        losses.append(loss.item())
        for master, tensor in zip(masters, model.parameters(), strict=True):
            master.grad, tensor.grad = tensor.grad.float(), None
        optimizer.step()
        for master, tensor in zip(masters, model.parameters(), strict=True):
            tensor.data.copy_(master)
    return losses


def every_stage(rank, world_size):
    trained = {stage.__name__: train(stage(tiny.model(dtype=torch.bfloat16)), rank, world_size) for stage in STAGES}
    steps = [one_step(stage(tiny.model(dtype=torch.bfloat16)), rank, world_size) for stage in STAGES]
    kept = one_step(sharded.ZeRO3(tiny.model(dtype=torch.bfloat16), reshard=False), rank, world_size)
    return trained, steps, kept, torchs_ddp(rank, world_size)


@cache
def run(world_size):
    return ranks.run(every_stage, world_size)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_all_stages_have_the_same_losses_and_parameters_to_the_bit(world_size):
    """The rings add in the same order whether a reduce-scatter stands alone or is the first half of an all-reduce."""
    for trained, *_ in run(world_size):
        losses, parameters = trained["Replicated"]
        for stage, (its_losses, its_parameters) in trained.items():
            assert its_losses == losses, stage
            assert torch.equal(its_parameters, parameters), stage
    everyones = [trained["ZeRO3"][1] for trained, *_ in run(world_size)]
    assert all(torch.equal(parameters, everyones[0]) for parameters in everyones)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_torchs_ddp_has_the_same_losses(world_size):
    """To the bit on two ranks, where a sum has one order and a mean is exact; elsewhere bf16 sums round differently."""
    for trained, _, _, losses in run(world_size):
        by_hand = trained["Replicated"][0]
        assert losses == by_hand if world_size == 2 else losses == pytest.approx(by_hand, rel=0.02)
        assert losses[0] == by_hand[0]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("stage", range(4))
def test_a_rank_sends_what_the_formula_says(stage, world_size):
    for _, steps, *_ in run(world_size):
        sent, collectives, *_ = steps[stage]
        assert sent == traffic.sent(traffic.step(NUM_PARAMETERS, stage), world_size)
        assert collectives == {}, "nothing goes through the backend's own collectives, whose bytes are not seen"


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_stage_3_that_keeps_what_it_has_gathered_sends_no_more_than_ddp(world_size):
    for _, _, (sent, *_), _ in run(world_size):
        assert sent == traffic.sent(traffic.step(NUM_PARAMETERS, 3, reshard=False), world_size)
        assert sent == traffic.sent(traffic.step(NUM_PARAMETERS, 0), world_size)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("stage", range(4))
def test_a_rank_holds_at_rest_and_at_most_what_the_formula_says(stage, world_size):
    def counted(sizes):
        return memory.Held(sizes["parameters"], sizes["gradients"], sizes["optimizer"] - COUNTERS)

    for _, steps, *_ in run(world_size):
        *_, rest, most, after = steps[stage]
        formula = memory.of_units(map(sum, UNITS), world_size, stage)
        assert counted(rest) == formula
        assert counted(most) == memory.at_peak(UNITS, world_size, stage)
        assert counted(after) == formula._replace(gradients=0)


def padded(rank, world_size):
    """A model whose units do not divide among the ranks, and two micro-batches a step."""
    shape = {"rows": 2 * world_size, "width": 5}
    models = [stage(tiny.model(width=5, dtype=torch.bfloat16)) for stage in STAGES]
    return [train(trained, rank, world_size, micro=2, **shape) for trained in models]


def test_shards_may_need_padding_and_gradients_may_add_up_over_micro_batches():
    for outcomes in ranks.run(padded, 3):
        (replicated, parameters), (stage_1, its_parameters), *later = outcomes
        assert stage_1 == replicated
        assert torch.equal(its_parameters, parameters)
        for losses, _ in later:  # these reduce each micro-batch by itself: the same sum in another order
            assert losses == pytest.approx(replicated, rel=0.02)


def sent_in_micro_batches(rank, world_size, micro):
    """What a rank sends in a step of several micro-batches, by stage."""
    found = []
    for stage in STAGES:
        trained = stage(tiny.model(dtype=torch.bfloat16))
        with BytesSent() as sent:
            train(trained, rank, world_size, steps=1, micro=micro)
        gathered_after = isinstance(trained, sharded.ZeRO3) * 2 * NUM_PARAMETERS * (world_size - 1) // world_size
        found.append(sent.total - gathered_after)
    return found


@pytest.mark.parametrize("micro", [1, 3])
def test_only_stages_that_hold_no_full_gradients_send_more_with_more_micro_batches(micro):
    for found in ranks.run(sent_in_micro_batches, 3, micro):
        assert found == [
            traffic.sent(traffic.step(NUM_PARAMETERS, stage, micro_batches=micro), 3) for stage in range(4)
        ]


def update_without_gradients(rank, world_size):
    trained = sharded.ZeRO2(tiny.model(depth=2, dtype=torch.bfloat16))
    tiny.loss(trained.model[0], *tiny.batch(0, rank, world_size, dtype=torch.bfloat16)).backward()
    try:
        trained.step()
    except RuntimeError as error:
        return str(error)
    finally:
        dist.barrier()


def test_an_update_without_all_gradients_names_the_unit():
    for message in ranks.run(update_without_gradients, 2):
        assert message.startswith("TinyBlock(")
        assert "lacks gradients" in message


def in_full_precision(rank, world_size):
    return [train_in_fp32(stage(tiny.model(depth=2)), rank, world_size) for stage in STAGES]


def train_in_fp32(trained, rank, world_size):
    losses = []
    for step in range(3):
        loss = tiny.loss(trained.model, *tiny.batch(step, rank, world_size))
        loss.backward()
        losses.append(loss.item())
        trained.step()
    return losses


def test_a_model_in_fp32_has_masters_of_its_own():
    """They are copies in memory of their own, also where the cast to fp32 has nothing to do."""
    for replicated, *others in ranks.run(in_full_precision, 2):
        assert all(losses == replicated for losses in others)


def evaluated_before_the_update(rank, world_size):
    losses, batch = [], tiny.batch(0, rank, world_size, dtype=torch.bfloat16)
    for reshard in (True, False):
        trained = sharded.ZeRO3(tiny.model(depth=2, dtype=torch.bfloat16), reshard=reshard)
        tiny.loss(trained.model, *batch).backward()
        with torch.no_grad():
            tiny.loss(trained.model, *batch)  # without reshard its parameters stay
        trained.step()
        losses.append(tiny.loss(trained.model, *batch).item())
    return losses


def test_parameters_gathered_before_an_update_are_not_used_after_it():
    for freed, kept in ranks.run(evaluated_before_the_update, 2):
        assert freed == kept


def not_a_unit(rank, world_size):
    frozen = torch.nn.Linear(4, 4).requires_grad_(False)
    messages = []
    for module in (torch.nn.ReLU(), frozen):
        with pytest.raises(ValueError, match="cannot be a unit") as error:
            sharded.Replicated(torch.nn.Sequential(torch.nn.Linear(4, 4), module))
        messages.append(str(error.value))
    return messages


def test_a_unit_without_parameters_to_train_is_named():
    for relu, frozen in ranks.run(not_a_unit, 2):
        assert relu.startswith("ReLU()")
        assert frozen.startswith("Linear(")
