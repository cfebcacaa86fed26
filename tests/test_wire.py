"""Bytes are counted where a rank hands them to its process group, whoever sends them."""

import torch
import torch.distributed as dist

from collectives import ranks
from collectives.wire import BytesSent


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


def import_compiler(rank, world_size):
    import sys

    with BytesSent():
        dist.all_reduce(torch.zeros(1))
    return "torch._dynamo.eval_frame" in sys.modules


def test_counting_does_not_import_the_compiler():
    """That would cost each rank seconds."""
    assert ranks.run(import_compiler, 1) == [False]
