"""Bytes are counted where a rank hands them to its process group, whoever sends them."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

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
