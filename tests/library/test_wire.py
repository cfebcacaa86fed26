"""Bytes are counted where a rank hands them to its process group, whoever sends them."""

import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.utils import _python_dispatch

from collectives import ranks
from collectives.measure.wire import BytesSent

pytestmark = pytest.mark.ranks


def send_by_hand(rank, world_size):
    with BytesSent() as sent:
        if rank == 0:
            dist.send(torch.zeros(3, dtype=torch.float64), 1)
            dist.isend(torch.zeros(5, dtype=torch.uint8), 2).wait()
            dist.send(torch.zeros(1, dtype=torch.uint8), 2)
        elif rank == 1:
            dist.recv(torch.zeros(3, dtype=torch.float64), 0)
        else:
            dist.recv(torch.zeros(5, dtype=torch.uint8), 0)
            dist.recv(torch.zeros(1, dtype=torch.uint8), 0)
        dist.all_reduce(torch.zeros(4))
    dist.barrier()  # outside: not counted
    return dict(sent.to), sent.total, sent.messages, dict(sent.collectives)


def test_sends_are_counted_by_peer_and_the_backends_own_collectives_by_name():
    collectives = {"all_reduce": 1}
    assert ranks.run(send_by_hand, 3) == [
        ({1: 24, 2: 6}, 30, 3, collectives),
        ({}, 0, 0, collectives),
        ({}, 0, 0, collectives),
    ]


def send_in_a_group(rank, world_size):
    group = dist.new_group([1, 3])
    with BytesSent(follow=True) as sent:
        if rank == 1:
            dist.isend(torch.zeros(5, dtype=torch.uint8), 3, group=group).wait()
        elif rank == 3:
            dist.recv(torch.zeros(5, dtype=torch.uint8), 1, group=group)
            dist.send(torch.zeros(7, dtype=torch.uint8), group=group, group_dst=0)
        if rank == 1:
            dist.recv(torch.zeros(7, dtype=torch.uint8), group=group, group_src=1)
    dist.barrier()
    return dict(sent.to)


def test_a_send_within_a_group_is_counted_for_the_rank_that_its_peer_has_among_all():
    assert ranks.run(send_in_a_group, 4) == [{}, {3: 5}, {}, {1: 7}]


def by_the_backend(tensor, group=None):
    (group or dist.group.WORLD)._get_backend(torch.device("cpu")).allreduce([tensor]).wait()


def from_a_thread(tensor):
    thread = threading.Thread(target=dist.all_reduce, args=(tensor,))
    thread.start()
    thread.join()


def without_the_mode(tensor):
    with _python_dispatch._disable_current_modes():
        dist.all_reduce(tensor)


def in_a_group_of_its_own(tensor):
    group = dist.new_group()
    by_the_backend(tensor, group)
    dist.destroy_process_group(group)


def in_a_group_for_cpus(tensor):
    by_the_backend(tensor, dist.new_group(backend="cpu:gloo"))


def in_a_group_that_is_destroyed(tensor):
    by_the_backend(tensor, dist.group.WORLD)
    dist.destroy_process_group()


def in_a_group_that_torch_does_not_know(tensor):
    store = dist.PrefixStore("aside", dist.distributed_c10d._get_default_store())
    group = dist.ProcessGroupGloo(store, dist.get_rank(), dist.get_world_size(), timedelta(seconds=10))
    group.allreduce([tensor]).wait()


class Gloo(dist.ProcessGroupGloo):
    """A kind of one's own, which denies it."""

    def __eq__(self, other):
        return True

    def _get_sequence_number_for_group(self):
        return 0


def in_a_group_of_a_class_of_its_own(tensor):
    store = dist.PrefixStore("aside", dist.distributed_c10d._get_default_store())
    Gloo(store, dist.get_rank(), dist.get_world_size(), timedelta(seconds=10)).allreduce([tensor]).wait()


def seen_or_not(rank, world_size, call):
    tensor = torch.ones(4)
    with BytesSent():
        call(tensor)
    return tensor.tolist()


@pytest.mark.parametrize(
    "call",
    [
        by_the_backend,
        from_a_thread,
        without_the_mode,
        in_a_group_of_its_own,
        in_a_group_for_cpus,
        in_a_group_that_is_destroyed,
        in_a_group_that_torch_does_not_know,
        in_a_group_of_a_class_of_its_own,
    ],
)
def test_what_goes_round_the_count_is_refused(call):
    with pytest.raises(ranks.RanksError, match="Unseen: 1 of this rank's calls"):
        ranks.run(seen_or_not, 2, call)


SPLIT_OFF = """
import torch, torch.distributed as dist
from collectives.measure.wire import BytesSent

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with BytesSent():
    group = dist.group.WORLD.split_group([0], None, None, "split", "split")  # by torch's C++ alone
    group._get_backend(torch.device("cpu")).allreduce([torch.ones(4)]).wait()
"""


def test_a_group_that_torch_makes_without_its_class_is_counted_too():
    done = subprocess.run([sys.executable, "-c", SPLIT_OFF], capture_output=True, text=True)
    assert "Unseen: 1 of this rank's calls" in done.stderr


def unwaited(rank, world_size):
    tensor = torch.ones(4)
    with BytesSent(follow=True) as sent:
        work = dist.isend(tensor, 1 - rank)
        before = sent.unfinished
        dist.recv(torch.empty(4), 1 - rank)
        work.wait()
    return before, sent.unfinished


def test_sends_that_nobody_has_waited_for_are_told_with_their_peers():
    assert ranks.run(unwaited, 2) == [([1], []), ([0], [])]


def hand_over(tensor, _):
    dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0)


def add_up_elsewhere(tensor, group):
    dist.all_reduce(tensor, group=group)


def during_a_barrier(rank, world_size, call):
    """Let a thread communicate while this one waits in a barrier: rank 0 in the second, the other in the first."""
    group = dist.new_group()
    thread = threading.Timer(0.8 if rank == 0 else 0.2, call, [torch.ones(4), group])
    with BytesSent():
        thread.start()
        if rank == 0:
            time.sleep(0.5)
        dist.monitored_barrier()
        if rank == 1:
            time.sleep(0.6)
        dist.monitored_barrier()
        thread.join()


@pytest.mark.parametrize("call", [hand_over, add_up_elsewhere])
def test_what_another_thread_does_during_an_operator_is_not_taken_for_the_operators_own(call):
    with pytest.raises(ranks.RanksError, match="Unseen: 1 of this rank's calls"):
        ranks.run(during_a_barrier, 2, call, timeout=20)


def over_a_backend_that_drops_what_is_sent(rank):
    import torch.testing._internal.distributed.fake_pg  # makes the backend known

    dist.isend(torch.ones(9), 1 - rank, group=dist.new_group(backend="fake")).wait()


def from_nowhere(rank):
    dist.isend(torch.ones(9, device="meta"), 1 - rank)


def in_a_group_of_ones_own_kind(rank):
    class Own(dist.ProcessGroup):
        def size(self):
            return 99

    group, cpu = Own(rank, 2), torch.device("cpu")
    group._register_backend(cpu, dist.ProcessGroup.BackendType.GLOO, dist.group.WORLD._get_backend(cpu))
    group.send([torch.ones(9)], 1 - rank, 0)


def refused_or_counted(rank, world_size, send):
    with BytesSent() as sent:
        try:
            send(rank)
        except (RuntimeError, ValueError) as error:
            return sent.total, str(error)
    return sent.total, ""


@pytest.mark.parametrize(
    "send, words",
    [
        (over_a_backend_that_drops_what_is_sent, "over gloo and NCCL alone; this group is a ProcessGroup over Fake"),
        (from_nowhere, "a process group carries no tensors on meta"),
        (in_a_group_of_ones_own_kind, "this group is a Own over ProcessGroupGloo"),
    ],
)
def test_a_send_that_sends_nothing_is_refused_and_not_counted(send, words):
    for total, told in ranks.run(refused_or_counted, 2, send):
        assert total == 0 and told and words in told


class Large(torch.Tensor):
    """Four numbers that say that they are a thousand."""

    def numel(self):
        return 1000


def send_what_lies(rank, world_size):
    with BytesSent() as sent:
        request = dist.isend(torch.ones(4).as_subclass(Large), 1 - rank)
        dist.recv(torch.ones(4), 1 - rank)
        request.wait()
    return sent.total


def test_a_tensor_has_the_bytes_that_it_has_whatever_its_class_says():
    assert ranks.run(send_what_lies, 2) == [16, 16]


def every_way(rank, world_size):
    one, all_of_them, whole = torch.ones(4), [torch.ones(4) for _ in range(world_size)], torch.ones(4 * world_size)
    after, before = (rank + 1) % world_size, (rank - 1) % world_size
    part = dist.new_group(list(range(world_size)))
    with BytesSent() as sent, BytesSent():
        dist.all_reduce(one, group=part)
        dist.all_reduce(one, async_op=True).wait()
        dist.all_gather(all_of_them, one)
        dist.reduce_scatter(one, all_of_them)
        dist.reduce_scatter_tensor(one, whole)
        dist.all_to_all_single(whole.clone(), whole)
        dist.all_gather_object([None] * world_size, rank)
        dist.broadcast_object_list([rank])
        dist.monitored_barrier()
        dist.group.WORLD.reduce_scatter_tensor_coalesced([one, one.clone()], [whole, whole.clone()]).wait()
        functional = torch.ops._c10d_functional
        functional.wait_tensor(functional.all_reduce_(one, "sum", dist.group.WORLD.group_name))
        request = dist.isend(one, after)
        dist.recv(torch.empty(4))
        request.wait()
        both = [dist.P2POp(dist.isend, one, after), dist.P2POp(dist.irecv, torch.empty(4), before)]
        for request in dist.batch_isend_irecv(both):
            request.wait()
        own = dist.new_group(list(range(world_size)))
        dist.all_reduce(one, group=own)
        dist.destroy_process_group(own)
    return sent.messages, sent.collectives["all_reduce"]


def test_all_that_torch_offers_is_seen():
    for world_size in (3, 4):  # a reduce-scatter makes a call of gloo's for each rank
        assert ranks.run(every_way, world_size) == [(2, 4)] * world_size


COUNT_ALONE = """
import sys
import subprocess
import sys

import torch
import torch.distributed as dist
from collectives.measure.wire import BytesSent

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with BytesSent() as sent:
    dist.all_reduce(torch.zeros(1))
print(dict(sent.collectives), "torch._dynamo.eval_frame" in sys.modules)
"""


def test_counting_does_not_import_the_compiler():
    """That would cost each rank seconds. A process of its own: other tests have ranks begin with it imported."""
    ended = subprocess.run([sys.executable, "-c", COUNT_ALONE], capture_output=True, text=True, check=True)
    assert ended.stdout == "{'all_reduce': 1} False\n"
