"""The published figures of ZeRO's memory come out of the formula, all of them."""

import pytest

from collectives.training import memory, traffic

# Rajbhandari et al., “ZeRO: Memory Optimizations Toward Training Trillion Parameter Models”, SC 2020 (arXiv
# 1910.02054v3), Table 1: GB a device by the number of devices, for P_os, P_os+g and P_os+g+p, that is stages 1 to 3.
TABLE_1 = {
    7.5e9: {
        1: ("120", "120", "120"),
        4: ("52.5", "41.3", "30"),
        16: ("35.6", "21.6", "7.5"),
        64: ("31.4", "16.6", "1.88"),
        256: ("30.4", "15.4", "0.47"),
        1024: ("30.1", "15.1", "0.12"),
    },
    128e9: {
        1: ("2048", "2048", "2048"),
        4: ("896", "704", "512"),
        16: ("608", "368", "128"),
        64: ("536", "284", "32"),
        256: ("518", "263", "8"),
        1024: ("513", "257", "2"),
    },
    1e12: {
        1: ("16000", "16000", "16000"),
        4: ("7000", "5500", "4000"),
        16: ("4750", "2875", "1000"),
        64: ("4187", "2218", "250"),
        256: ("4046", "2054", "62.5"),
        1024: ("4011", "2013", "15.6"),
    },
}


@pytest.mark.parametrize("num_parameters", TABLE_1)
def test_table_1_of_the_zero_paper_comes_out_for_all_stages_and_sizes(num_parameters):
    """To less than one unit of its last digit: the paper rounds the small figures and cuts the large ones off."""
    for world_size, row in TABLE_1[num_parameters].items():
        for stage, published in enumerate(row, start=1):
            unit = 10.0 ** -len(published.partition(".")[2])
            computed = memory.at_rest(int(num_parameters), world_size, stage).total / 1e9
            assert abs(computed - float(published)) < unit, (world_size, stage)


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_the_zero_paper_comes_out(stage, gigabytes):
    """7.5 billion parameters on 64 devices, K = 12 bytes of optimizer state."""
    assert memory.at_rest(int(7.5e9), 64, stage).total / 1e9 == pytest.approx(gigabytes, abs=0.05)


# The same paper, Table 2, columns "Max Theoretical Model Size", at a model-parallel degree of 1 on 64 devices of 32 GB.
LARGEST = {0: 2.0e9, 1: 7.6e9, 2: 14.4e9, 3: 128e9}


@pytest.mark.parametrize("stage", LARGEST)
def test_table_2_of_the_zero_paper_comes_out(stage):
    def fits(num_parameters):
        return memory.at_rest(int(num_parameters), 64, stage).total <= 32e9

    assert fits(LARGEST[stage])
    assert not fits(LARGEST[stage] * 1.01)


@pytest.mark.parametrize("world_size", range(1, 10))
def test_every_stage_holds_no_more_than_the_one_before(world_size):
    totals = [memory.at_rest(10_007, world_size, stage).total for stage in memory.STAGES]
    assert totals == sorted(totals, reverse=True)
    assert (len(set(totals)) == 4) == (world_size > 1)


@pytest.mark.parametrize("recipe", memory.RECIPES, ids=lambda recipe: recipe.name)
def test_all_shards_together_are_the_state_and_its_padding(recipe):
    whole = memory.at_rest(10_007, 1, 0, recipe)
    for world_size in range(1, 10):
        shards = world_size * memory.at_rest(10_007, world_size, 3, recipe).total
        assert 0 <= shards - whole.total < world_size * whole.total / 10_007


@pytest.mark.parametrize("world_size", range(1, 10))
def test_stages_1_and_2_send_what_ddp_sends_and_stage_3_half_as_much_again(world_size):
    ddp, one, two, three = (traffic.sent(traffic.step(10**6, stage), world_size) for stage in memory.STAGES)
    assert ddp == one == two
    assert three == 1.5 * ddp
    assert traffic.sent(traffic.step(10**6, 3, reshard=False), world_size) == ddp


# NVIDIA, Megatron Core user guide, "Distributed Optimizer": bytes a parameter, on one rank and by their number d. With
# fp16 gradients Megatron keeps one more fp32 copy of them, sharded like the optimizer's state.
MEGATRON = {memory.FP32_GRADIENTS: (18, 6, 12), memory.FULL_ADAM: (16, 8, 8)}


@pytest.mark.parametrize("recipe", MEGATRON, ids=lambda recipe: recipe.name)
def test_megatrons_table_of_its_distributed_optimizer_comes_out_as_stage_1(recipe):
    alone, everywhere, sharded = MEGATRON[recipe]
    for world_size in (1, 2, 8, 64):
        assert memory.at_rest(640, world_size, 0, recipe).total == 640 * alone
        assert memory.at_rest(640, world_size, 1, recipe).total == 640 * (everywhere + sharded / world_size)


def test_gradients_in_fp32_make_ddp_send_more_than_stage_1():
    """DDP sends them in fp32 in both halves of its all-reduce, and the stages in one."""
    sent = [traffic.sent(traffic.step(10**6, stage, gradient_itemsize=4), 64) for stage in memory.STAGES]
    assert [each / sent[0] for each in sent] == [1, 0.75, 0.75, 1]


@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_only_what_is_not_held_is_sent_again_for_each_micro_batch(micro_batches):
    payloads = [traffic.step(10**6, stage, micro_batches=micro_batches) for stage in memory.STAGES]
    rounds = [traffic.sent(each, 2) / 10**6 for each in payloads]
    assert rounds == [2, 2, 1 + micro_batches, 3 * micro_batches]


def test_a_stage_that_is_none_is_refused():
    for function in (lambda: memory.at_rest(10, 2, stage=4), lambda: traffic.step(10, stage=4)):
        with pytest.raises(ValueError, match="no stage 4 of ZeRO: it is one of 0, 1, 2, 3"):
            function()
