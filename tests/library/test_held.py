"""Memory is counted tensor by tensor, as long as it lives, and by kind."""

import pytest
import torch

from collectives import ranks
from collectives.measure.held import BytesHeld

pytestmark = pytest.mark.ranks


def test_memory_counts_as_long_as_a_tensor_lives_and_once_for_all_its_views():
    with BytesHeld() as held:
        first = torch.zeros(100)
        views = first.view(10, 10).unbind()
        second = first + 1
        assert held.now == {"other": 800}
        del first
        assert held.now == {"other": 800}, "its views keep its memory"
        del views, second
        assert held.now == {"other": 0}
    assert held.peak == held.most == {"other": 800}


def test_what_belongs_to_a_kind_is_told_apart_and_counted_under_the_first():
    weight, bias = torch.zeros(10), torch.zeros(2)
    with BytesHeld(lambda: {"weights": [weight, weight[:5]], "all": [weight, bias]}) as held:
        activation = weight * 2
        assert held.now == {"weights": 40, "all": 8, "other": 40}
        del activation
    assert held.now == {"weights": 40, "all": 8, "other": 0}


def test_the_peak_is_one_moment_and_the_most_is_of_each_kind_at_its_own():
    kept = []
    with BytesHeld(lambda: {"kept": kept}) as held:
        large = torch.zeros(100)
        del large
        kept.append(torch.zeros(10))
        kept[0].add_(1)
    assert held.peak == {"kept": 0, "other": 400}
    assert held.most == {"kept": 40, "other": 400}


def test_memory_that_a_storage_gives_back_no_longer_counts():
    with BytesHeld() as held:
        buffer = torch.zeros(100)
        buffer.untyped_storage().resize_(0)
        assert held.now == {"other": 0}


def twice_a_dtensor(rank, world_size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    local = torch.ones(50)  # of 100
    tensor = DTensor.from_local(local, init_device_mesh("cpu", (world_size,)), [Shard(0)])
    assert tensor.numel() == 100
    with BytesHeld(lambda: {"shards": [local]}) as held:
        doubled = tensor * 2
        both = held.now
        del doubled
        return both, held.now


def test_of_a_dtensor_what_this_rank_holds_counts():
    for both, one in ranks.run(twice_a_dtensor, 2):
        assert both == {"shards": 200, "other": 200}
        assert one == {"shards": 200, "other": 0}
