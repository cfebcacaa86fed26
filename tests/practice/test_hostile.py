"""A learner's code that forges what its ranks report, or reads what it should not know, gains nothing by it.

The answers that run on real ranks are checked in one process with a loopback device of its own (`unshare`), whose
bytes are counted and read as the sandbox's are when a submission is graded; what comes back crosses as plain data, as
there.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from autograder.inside import nursery
from autograder.judging.judge import Seen
from autograder.sandbox import gloo
from autograder.sandbox.capture import Capture
from autograder.wire.plain import Decoder, Encoder, trusted
from collectives import contracts, execute, ranks
from collectives.algorithms import ring
from collectives.measure import wire
from collectives.practice import (
    ch02_tree,
    ch03_ring,
    ch04_all_reduce,
    ch06_all_to_all,
    ch08_data_parallel,
    ch09_zero,
    ch10_fsdp,
    ch11_fewer_bits,
    ch13_tensor_parallel,
    ch14_context_parallel,
    ch15_experts,
    ch17_mesh,
    ch19_failures,
    checks,
    on_ranks,
)

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).resolve().parents[2]
BUFFERS = on_ranks.noise(3, 150_000, seed=1)
SEQUENCE = ch14_context_parallel.sequence(ch14_context_parallel.shuffled(3, 64, seed=19), size=64, seed=19)
OWN_NETWORK = ["unshare", "--user", "--map-root-user", "--net"]


# Answers in the ring's place


def honest(rank, world_size, buffer):
    bounds = [len(buffer) * c // world_size for c in range(world_size + 1)]
    chunks = [buffer[a:b] for a, b in pairwise(bounds)]
    for step in range(world_size - 1):
        incoming = torch.empty_like(chunks[(rank - 2 - step) % world_size])
        sending = dist.isend(chunks[(rank - 1 - step) % world_size], (rank + 1) % world_size)
        dist.recv(incoming, (rank - 1) % world_size)
        sending.wait()
        chunks[(rank - 2 - step) % world_size] += incoming
    return chunks[rank]


def honest_in_pieces(rank, world_size, buffer):
    """No ring: each rank sends the owner of a chunk its terms, some at a time, and the owner adds them."""
    chunks = buffer.tensor_split(world_size)
    for distance in range(1, world_size):
        to, source = (rank + distance) % world_size, (rank - distance) % world_size
        for going, coming in zip(chunks[to].split(7_001), chunks[rank].split(7_001), strict=True):
            incoming = torch.empty_like(coming)
            sending = dist.isend(going, to)
            dist.recv(incoming, source)
            sending.wait()
            coming += incoming
    return chunks[rank]


def counter():
    """The counter of the check that called: it is a variable in a frame further out."""
    frame = sys._getframe(1)
    while not isinstance(frame.f_locals.get("sent"), wire.BytesSent):
        frame = frame.f_back
    return frame.f_locals["sent"]


def claim_a_ring(rank, world_size, buffer):
    """Make the counter say what a ring would have made it say."""
    sent = counter()
    sent.to.clear()
    sent.collectives.clear()
    sent.payloads.clear()
    sent.to[(rank + 1) % world_size] = buffer.numel() // world_size * (world_size - 1) * buffer.element_size()
    sent.messages = world_size - 1


def by_files(rank, world_size, own, kind=""):
    """What every rank has, by rank: they hand each other their buffers in files. `kind`: other files for others."""
    folder = Path(os.environ["HOSTILE_FOLDER"])
    np.save(folder / f"{kind}{rank}.part.npy", own.numpy())
    os.rename(folder / f"{kind}{rank}.part.npy", folder / f"{kind}{rank}.npy")
    while not all((folder / f"{kind}{other}.npy").exists() for other in range(world_size)):
        pass
    return [torch.tensor(np.load(folder / f"{kind}{other}.npy")) for other in range(world_size)]


def through_files(rank, world_size, buffer):
    """No byte goes over the wire."""
    total = sum(by_files(rank, world_size, buffer))
    size = len(buffer) // world_size
    buffer[rank * size : (rank + 1) * size] = total[rank * size : (rank + 1) * size]
    claim_a_ring(rank, world_size, buffer)
    return buffer[rank * size : (rank + 1) * size]


def with_dummy_traffic(rank, world_size, buffer):
    """As many bytes as a ring would send go over the wire, zeros; the terms go by files."""
    honest(rank, world_size, torch.zeros_like(buffer))
    return through_files(rank, world_size, buffer)


def by_a_hidden_all_reduce(rank, world_size, buffer):
    """The library does it, with twice the bytes; and the counter is set back."""
    dist.all_reduce(buffer)
    claim_a_ring(rank, world_size, buffer)
    return buffer.tensor_split(world_size)[rank]


def behind_zeros(rank, world_size, buffer):
    """The library does it unseen, behind many zeros that are reported."""
    from torch.utils import _python_dispatch

    wire.GroupsUsed.close = lambda self: 0
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for _ in range(20):
        sending = dist.isend(torch.zeros_like(buffer), right)
        dist.recv(torch.empty_like(buffer), left)
        sending.wait()
    with _python_dispatch._disable_current_modes():
        dist.all_reduce(buffer)
    return buffer.tensor_split(world_size)[rank]


class Late(torch.Tensor):
    """A result that is worked out when it is read."""

    def __array__(self, *_, **__):
        return self.work()

    detach = item = numpy = __array__


def late(work):
    result = torch.Tensor._make_subclass(Late, torch.zeros(1))
    result.work = work
    return result


def late_shards(rank, world_size, buffer):
    def work():
        dist.all_reduce(buffer)
        return buffer.tensor_split(world_size)[rank].numpy()

    return late(work)


def late_in_place(rank, world_size, buffer):
    numbers = torch.tensor(buffer)

    def work():
        dist.all_reduce(numbers)
        return numbers.numpy()

    buffer.__class__, buffer.work = Late, work
    return buffer


def late_exchange(rank, world_size, chunks):
    def work():
        arrived = torch.empty_like(chunks)
        dist.all_to_all_single(arrived, chunks)
        return arrived.numpy()

    return late(work)


def late_sums(rank, world_size, values, codec):
    return late(lambda: np.zeros(len(values) // world_size))


def late_hidden_attention(rank, world_size, queries, keys, values, positions, kernel):
    return late(lambda: np.zeros(queries.shape))


def late_norm(gradients, groups):
    return late(lambda: 1.0)


def late_gate(x):
    dist.all_reduce(x.detach().clone())
    return late(lambda: x)


def with_a_blind_counter(rank, world_size, buffer):
    wire.BytesSent.__torch_dispatch__ = lambda self, operation, types, args=(), kwargs=None: operation(
        *args, **(kwargs or {})
    )
    return by_a_hidden_all_reduce(rank, world_size, buffer)


def by_what_lies_around(rank, world_size, buffer):
    """Look for the other ranks' buffers in every frame and among all objects, and add up whatever has the length."""
    values, frame = gc.get_objects(), sys._getframe()
    while frame := frame.f_back:
        values.extend(frame.f_locals.values())
    lists = [value for value in values if type(value) in (list, tuple, ranks.PerRank, np.ndarray) and len(value) < 10]
    rows = [row for value in lists for row in value if isinstance(row, np.ndarray) and row.shape == buffer.shape]
    different = {row.tobytes(): row for row in [*rows, buffer.numpy().copy()]}
    buffer.copy_(torch.tensor(sum(different.values())))
    claim_a_ring(rank, world_size, buffer)
    return buffer.tensor_split(world_size)[rank]


# Answers elsewhere


def honest_gather(rank, world_size, buffer):
    chunks = buffer.tensor_split(world_size)
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank - step) % world_size], (rank + 1) % world_size)
        dist.recv(chunks[(rank - step - 1) % world_size], (rank - 1) % world_size)
        sending.wait()


def honest_all_reduce(rank, world_size, buffer):
    honest(rank, world_size, buffer)
    honest_gather(rank, world_size, buffer)


def dummy_gather(rank, world_size, buffer):
    """Zeros go round the ring, and the chunks by files."""
    honest_gather(rank, world_size, torch.zeros_like(buffer))
    parts = [theirs.tensor_split(world_size)[other] for other, theirs in enumerate(by_files(rank, world_size, buffer))]
    buffer.copy_(torch.cat(parts))


def own_chunk_again(rank, world_size, buffer):
    """Each rank sends its own chunk again and again and hands nothing on; the others' come by files."""
    mine = buffer.tensor_split(world_size)[rank].clone()
    for _ in range(world_size - 1):
        works = [dist.isend(mine, (rank + 1) % world_size), dist.irecv(torch.empty_like(mine), (rank - 1) % world_size)]
        for work in works:
            work.wait()
    parts = [theirs.tensor_split(world_size)[other] for other, theirs in enumerate(by_files(rank, world_size, buffer))]
    buffer.copy_(torch.cat(parts))


def dummy_all_reduce(rank, world_size, buffer):
    honest_all_reduce(rank, world_size, torch.zeros_like(buffer))
    buffer.copy_(sum(by_files(rank, world_size, buffer)))


def layer(rank, world_size, tokens, chosen, weights, num_experts, answer):
    """The experts' answers made at home: whoever has read the library knows that an expert moves what it is given."""
    return sum(
        torch.stack([w * row.roll(int(e)) for row, e, w in zip(tokens, chosen[:, c], weights[:, c], strict=True)])
        for c in range(chosen.shape[1])
    )


def honest_layer(rank, world_size, tokens, chosen, weights, num_experts, answer):
    """Everything crosses as fp32, to all ranks; each rank weighs its own experts' answers, and the ranks add them."""
    share, everyones = num_experts // world_size, []
    for mine in (tokens.float(), chosen.float(), weights.float()):
        everyones.append([torch.empty_like(mine) for _ in range(world_size)])
        dist.all_gather(everyones[-1], mine)
    rows, experts, factors = map(torch.cat, everyones)
    answers = torch.zeros_like(rows)
    for place in ((experts // share).flatten() == rank).nonzero().flatten().tolist():
        at, choice = divmod(place, chosen.shape[1])
        answers[at] += factors[at, choice] * answer(int(experts[at, choice]), rows[at : at + 1])[0]
    dist.all_reduce(answers)
    return answers[rank * len(tokens) : (rank + 1) * len(tokens)].double()


def unanswered_layer(*args):
    """Tokens cross, and no answer travels back: choices and answers go by files."""
    return dummy_layer(*args, crossing=torch.clone)


def dummy_layer(rank, world_size, tokens, chosen, weights, num_experts, answer, crossing=torch.zeros_like):
    """Zeros go over the wire, and tokens, choices and answers by files."""
    dist.all_gather([torch.empty_like(tokens) for _ in range(world_size)], crossing(tokens))
    everyone, choices = by_files(rank, world_size, tokens), by_files(rank, world_size, chosen, "chosen")
    answers = torch.zeros(world_size, *tokens.shape, dtype=tokens.dtype)
    for owner, (rows, experts) in enumerate(zip(everyone, choices, strict=True)):
        for at, expert in enumerate(experts[:, 0].tolist()):
            if expert // (num_experts // world_size) == rank:
                answers[owner, at] = answer(expert, rows[at : at + 1])[0]
    return weights * sum(theirs[rank] for theirs in by_files(rank, world_size, answers, "answers"))


def dummy_exchange(rank, world_size, chunks):
    """Zeros go over the wire, and the chunks by files."""
    honest_exchange(rank, world_size, torch.zeros_like(chunks))
    return torch.stack([theirs[rank] for theirs in by_files(rank, world_size, chunks)])


def dummy_counts(rank, world_size, mine):
    honest_counts(rank, world_size, torch.zeros_like(mine))
    return torch.stack(by_files(rank, world_size, mine))


def build_dummy(rank, sizes, names):
    """Groups whose all-reduces send zeros, while the sums are made of files."""
    made, real, everyone = build(rank, sizes, names), dist.all_reduce, []

    def all_reduce(total, group):
        everyone[:] = everyone or by_files(rank, dist.get_world_size(), total)
        real(torch.zeros_like(total), group=group)
        total.copy_(sum(everyone[other] for other in dist.get_process_group_ranks(group)))

    dist.all_reduce = all_reduce
    return made


def honest_heads(x, part, head_size, f, g):
    queries, keys, values = (f(x) @ part["qkv"].T + part["qkv_bias"]).chunk(3, 1)
    return g(ch13_tensor_parallel.attend(queries, keys, values, head_size) @ part["out"].T) + part["out_bias"]


def dense_heads(x, part, head_size, f, g):
    """Every rank computes all heads, with the others' weights by files, and zeros go through f and g."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    everyone = {name: by_files(rank, world_size, weight.detach(), name) for name, weight in part.items()}
    parts = [{name: weights[other] for name, weights in everyone.items()} for other in range(world_size)]
    parts[rank] = part
    terms = [honest_heads(x, whose | {"out_bias": 0}, head_size, lambda x: x, lambda y: y) for whose in parts]
    return sum(terms) + part["out_bias"] + 0 * g(f(0 * x))


def arrived(rank, world_size, unit, tensor):
    """All gradients are all-reduced, twice what is needed besides, and the counter is set back."""
    if unit.collect(tensor):
        sent = counter()
        before = sent.to.copy()
        for _ in range(3):
            execute(ring.all_gather(world_size), unit.gradients.clone())
        sent.to.clear()
        sent.to.update(before)
        execute(ring.reduce_scatter(world_size), unit.gradients)
        unit.reduced, unit.gradients = unit.gradients[unit.mine].clone(), None


def step(rank, world_size, units, update):
    for unit in units:
        unit.parameters[unit.mine] = update(unit.state, unit.reduced, world_size)
        unit.reduced = None
        execute(ring.all_gather(world_size), unit.parameters)


def honest_arrived(rank, world_size, unit, tensor):
    if unit.collect(tensor):
        execute(ring.reduce_scatter(world_size), unit.gradients)
        unit.reduced, unit.gradients = unit.gradients[unit.mine].clone(), None


def honest_exchange(rank, world_size, chunks):
    received, others = chunks.clone(), [other for other in range(world_size) if other != rank]
    operations = [dist.P2POp(dist.isend, chunks[other], other) for other in others]
    operations += [dist.P2POp(dist.irecv, received[other], other) for other in others]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received


def two_hops(rank, world_size, per_node, values, codec):
    """In the node, then across nodes: each rank packs once for every other one that it sends to."""
    nodes, (node, place) = world_size // per_node, divmod(rank, per_node)
    rows = values.view(nodes, per_node, -1)
    neighbours = {node * per_node + other: rows[:, other].flatten() for other in range(per_node)}
    of_node = packed_sum(rank, neighbours, codec)
    return packed_sum(rank, {n * per_node + place: row for n, row in enumerate(of_node.chunk(nodes))}, codec)


def packed_sum(rank, rows, codec):
    sends = {other: codec.pack(row) for other, row in rows.items() if other != rank}
    receives = {other: torch.empty_like(message) for other, message in sends.items()}
    operations = [dist.P2POp(dist.isend, message, other) for other, message in sends.items()]
    operations += [dist.P2POp(dist.irecv, message, other) for other, message in receives.items()]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return rows[rank] + sum(codec.unpack(message, len(rows[rank])) for message in receives.values())


def one_hop(rank, world_size, values, codec):
    return packed_sum(rank, dict(enumerate(values.chunk(world_size))), codec)


def empty_messages(rank, world_size, values, codec):
    """Messages of the right length go to the right ranks and hold nothing; the parts go by files, and are rounded."""
    one_hop(rank, world_size, torch.zeros_like(values), codec)
    parts = [theirs.chunk(world_size)[rank] for theirs in by_files(rank, world_size, values)]
    return sum(codec.unpack(codec.pack(part), len(part)) for part in parts)


def no_hops(rank, world_size, per_node, values, codec):
    """The library's all-reduce, and a counter set to what two hops send."""
    sent, total, size = counter(), values.clone(), len(values) // world_size
    dist.all_reduce(total)
    sent.to.clear()
    sent.collectives.clear()
    for other in range(world_size):
        near, same = other // per_node == rank // per_node, other % per_node == rank % per_node
        if other != rank and (near or same):
            sent.to[other] = len(codec.pack(torch.zeros(size * (world_size // per_node if near else 1))))
    sent.messages = len(sent.to)
    return total.chunk(world_size)[rank]


def honest_counts(rank, world_size, mine):
    counts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(counts, mine)
    return torch.stack(counts)


def honest_attention(rank, world_size, queries, keys, values, positions, kernel):
    """Keys and values go around the ring, and the blocks are merged."""
    visitors, so_far = torch.stack([keys, values]), None
    for step in range(world_size):
        arriving = torch.empty_like(visitors)
        works = []
        if step < world_size - 1:
            works = [dist.isend(visitors, (rank + 1) % world_size), dist.irecv(arriving, (rank - 1) % world_size)]
        block = kernel.attend(queries, *visitors, positions[rank][:, None] >= positions[rank - step])
        so_far = kernel.merge(so_far, block) if so_far else block
        for work in works:
            work.wait()
        visitors = arriving
    return so_far[0]


def dummy_attention(rank, world_size, queries, keys, values, positions, kernel):
    """Zeros go around the ring, and keys and values by files."""
    honest_attention(rank, world_size, queries, torch.zeros_like(keys), torch.zeros_like(values), positions, kernel)
    keys, values = torch.cat(by_files(rank, world_size, torch.stack([keys, values])), 2)
    return kernel.attend(queries, keys, values, positions[rank][:, None] >= positions.flatten())[0]


def own_keys_again(rank, world_size, queries, keys, values, positions, kernel):
    """Each rank sends its own keys and values again and again and hands nothing on; the others' come by files."""
    mine = torch.stack([keys, values])
    for _ in range(world_size - 1):
        works = [dist.isend(mine, (rank + 1) % world_size), dist.irecv(torch.empty_like(mine), (rank - 1) % world_size)]
        for work in works:
            work.wait()
    keys, values = torch.cat(by_files(rank, world_size, mine), 2)
    return kernel.attend(queries, keys, values, positions[rank][:, None] >= positions.flatten())[0]


def build(rank, sizes, names):
    made, grid = {}, np.arange(4).reshape(2, 2)
    for name in names:
        for members in (grid if name == list(sizes)[-1] else grid.T).tolist():
            group = dist.new_group(members)
            if rank in members:
                made[name] = group
    return made


CASES = {
    "honest sums": lambda: ch03_ring.check_shards(honest, BUFFERS),
    "honest sums in pieces": lambda: ch03_ring.check_shards(honest_in_pieces, BUFFERS),
    "honest traffic": lambda: ch03_ring.check_ring_traffic(honest, BUFFERS, ring.reduce_scatter(3)),
    "honest all-gather": lambda: ch04_all_reduce.check_ring(
        ch04_all_reduce.check_gathered(honest_gather, 3, 150_000, seed=17), honest_gather, 150_000, 4, phases=1
    ),
    "honest all-reduce": lambda: ch04_all_reduce.check_ring(
        ch04_all_reduce.check_reduced(honest_all_reduce, BUFFERS), honest_all_reduce, 150_000, 4, phases=2
    ),
    "honest step": lambda: ch09_zero.check_traffic(honest_arrived, step, 3, width=48, seed=7),
    "honest groups": lambda: ch17_mesh.check_build(build, {"tp": 2, "dp": 2}, ["tp", "dp"], seed=9),
    "honest exchange": lambda: ch06_all_to_all.check_exchange(honest_exchange, 3, 20_000, seed=10),
    "honest counts": lambda: ch15_experts.check_all_counts(honest_counts, 3, 20_000, seed=13),
    "honest layer": lambda: ch15_experts.check_layer(
        honest_layer, ch15_experts.random_case([30, 30], experts_a_rank=2, k=2, seed=22)
    ),
    "honest heads": lambda: ch13_tensor_parallel.check_one_all_reduce(honest_heads, 3, seed=21),
    "honest attention": lambda: ch14_context_parallel.check_traffic(honest_attention, SEQUENCE),
    "honest hops": lambda: ch11_fewer_bits.check_two_hops(two_hops, 2, 2, 30_000, seed=20),
    "honest packed sums": lambda: ch11_fewer_bits.check_sum(one_hop, 4, 30_000, seed=20),
    "empty messages": lambda: ch11_fewer_bits.check_sum(empty_messages, 4, 30_000, seed=20),
    "hops that never were": lambda: ch11_fewer_bits.check_two_hops(no_hops, 2, 2, 30_000, seed=20),
    "sums through files": lambda: ch03_ring.check_shards(through_files, BUFFERS),
    "traffic through files": lambda: ch03_ring.check_ring_traffic(through_files, BUFFERS, ring.reduce_scatter(3)),
    "dummy traffic": lambda: ch03_ring.check_shards(with_dummy_traffic, BUFFERS),
    "a dummy all-gather": lambda: ch04_all_reduce.check_gathered(dummy_gather, 3, 150_000, seed=18),
    "its own chunk again and again": lambda: ch04_all_reduce.check_gathered(own_chunk_again, 3, 150_000, seed=18),
    "a dummy all-reduce": lambda: ch04_all_reduce.check_reduced(dummy_all_reduce, BUFFERS),
    "a dummy exchange": lambda: ch06_all_to_all.check_exchange(dummy_exchange, 3, 20_000, seed=14),
    "dummy counts": lambda: ch15_experts.check_all_counts(dummy_counts, 3, 20_000, seed=15),
    "dummy attention": lambda: ch14_context_parallel.check_ring(dummy_attention, SEQUENCE),
    "its own keys again and again": lambda: ch14_context_parallel.check_ring(own_keys_again, SEQUENCE),
    "dense heads": lambda: ch13_tensor_parallel.check_one_all_reduce(dense_heads, 2, seed=21),
    "dummy groups": lambda: ch17_mesh.check_build(build_dummy, {"tp": 2, "dp": 2}, ["tp", "dp"], seed=16),
    "a hidden all-reduce": lambda: ch03_ring.check_ring_traffic(
        by_a_hidden_all_reduce, BUFFERS, ring.reduce_scatter(3)
    ),
    "zeros before a hidden all-reduce": lambda: ch03_ring.check_shards(behind_zeros, BUFFERS),
    "late sums": lambda: ch03_ring.check_shards(late_shards, BUFFERS),
    "late sums in place": lambda: ch04_all_reduce.check_reduced(late_in_place, BUFFERS),
    "a late exchange": lambda: ch06_all_to_all.check_exchange(late_exchange, 3, 20_000, seed=10),
    "late sums of few bits": lambda: ch11_fewer_bits.check_sum(late_sums, 2, 8),
    "late gates": lambda: ch13_tensor_parallel.check_forward(late_gate, late_gate, 2),
    "late attention": lambda: ch14_context_parallel.check_ring(late_hidden_attention, SEQUENCE),
    "a late norm": lambda: ch17_mesh.check_norm(late_norm, ch17_mesh.gradients({"tp": 2, "dp": 2}, [("tp",)])),
    "a blind counter": lambda: ch03_ring.check_ring_traffic(with_a_blind_counter, BUFFERS, ring.reduce_scatter(3)),
    "what lies around": lambda: ch03_ring.check_shards(by_what_lies_around, BUFFERS),
    "answers made at home": lambda: ch15_experts.check_layer(
        layer, ch15_experts.random_case([30, 30], experts_a_rank=2, k=1, seed=11)
    ),
    "dummy tokens": lambda: ch15_experts.check_layer(
        dummy_layer, ch15_experts.random_case([30, 30], experts_a_rank=2, k=1, seed=11)
    ),
    "answers by files": lambda: ch15_experts.check_layer(
        unanswered_layer, ch15_experts.random_case([30, 30], experts_a_rank=2, k=1, seed=11)
    ),
    "a step that sends more than it tells": lambda: ch09_zero.check_traffic(arrived, step, 2, width=48, seed=12),
}


def main():
    """Run all cases, with a loopback device of this process's own that is counted: {case: None, or what is said}."""
    _loopback_up()
    run = ranks.run

    def counted(function, world_size, *args, **named):
        with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as packets, Capture(packets) as heard:
            told = run(_naming, world_size, function, *args, **named)
        owner = {ends: rank for rank, (mine, _) in enumerate(told) for ends in mine}
        everyone = Seen(_crossed([report for _, report in told]))
        everyone.messages = list(gloo.messages(heard.by_ends, owner))
        return everyone

    ranks.run = counted
    said = {}
    for name, check in CASES.items():
        os.environ["HOSTILE_FOLDER"] = str(Path(sys.argv[1]) / name)
        os.mkdir(os.environ["HOSTILE_FOLDER"])
        try:
            said[name] = check() and None
        except checks.NotYet as refused:
            said[name] = str(refused)
    print(json.dumps(said))


def _naming(rank, world_size, function, *args):
    """A rank's connections, named before the learner's code runs as the sandbox's ranks do, and what it reports."""
    return list(nursery._connected()), function(rank, world_size, *args)


def _crossed(value):
    """The same after it has gone through the wall as plain data."""
    resolve = trusted(("collectives",), {})
    return Decoder(resolve).read(Encoder(resolve).message(value))


def _loopback_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, 0x8914, struct.pack("16sH22x", b"lo", 0x49))  # SIOCSIFFLAGS: up, loopback, running


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    if not shutil.which("unshare") or subprocess.run([*OWN_NETWORK, "true"], capture_output=True).returncode:
        pytest.skip("this machine gives nobody a network of their own")
    command = [*OWN_NETWORK, sys.executable, __file__, str(tmp_path_factory.mktemp("hostile"))]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("honest")])
def test_an_honest_answer_agrees_with_what_is_counted_outside(said, name):
    assert said[name] is None


@pytest.mark.parametrize(
    "name, words",
    {
        "hops that never were": "where 202,512 are enough: the ranks send something that they do not report",
        "empty messages": "with 4 ranks, 24 of 24 numbers that were looked for on the wire are not among",
        "sums through files": "rank 0 reports that it sends 400,000 bytes to rank 1, but 0 crossed",
        "traffic through files": "rank 0 reports that it sends 400,000 bytes to rank 1, but 0 crossed",
        "dummy traffic": "are not made of what the ranks send one another",
        "a dummy all-gather": "with 3 ranks, 40 of 40 numbers that were looked for on the wire never reach a rank",
        "its own chunk again and again": "with 3 ranks, 20 of 40 numbers that were looked for on the wire never reach",
        "a dummy all-reduce": "are not made of what the ranks send one another",
        "a dummy exchange": "with 3 ranks, 6 of 6 numbers that were looked for on the wire are not among",
        "dummy counts": "with 3 ranks, 3 of 3 numbers that were looked for on the wire are not among",
        "dummy attention": "numbers that were looked for on the wire never reach a rank that needs them",
        "its own keys again and again": "numbers that were looked for on the wire never reach a rank that needs them",
        "dense heads": "with 2 ranks, 20 of 20 numbers of Y that were looked for on the wire are not made of what the",
        "dummy groups": "with 4 ranks, 16 of 16 numbers that were looked for on the wire are not among",
        "a hidden all-reduce": "rank 0 uses torch's own all_reduce; write this part with sends alone",
        "zeros before a hidden all-reduce": "rank 0 uses torch's own all_reduce; write this part with sends alone",
        "late sums": "rank 0 returns a value of type Late; return the tensor with its finished chunk",
        "late sums in place": "'s buffer is an object of type Late; leave a tensor of torch's own there",
        "a late exchange": "rank 0 returns a value of type Late; return a tensor with a row from each rank",
        "late sums of few bits": "rank 0 returns Late; return 8 numbers",
        "late gates": "on rank 0 f returns a value of type Late",
        "late attention": "rank 0 returns a value of type Late; return the output, a tensor",
        "a late norm": "rank 0 returns a value of type Late; return the norm, a number",
        "a blind counter": "of this rank's calls went round what counts its bytes",
        "what lies around": "rank 0 reports that it sends 400,000 bytes to rank 1, but 0 crossed",
        "answers made at home": "is never asked about token 0 of rank 0, which has chosen it",
        "dummy tokens": "with 2 ranks, 20 of 20 numbers that were looked for on the wire are not among",
        "answers by files": "20 of 20 answers that were looked for on the wire do not cross from the rank",
        "a step that sends more than it tells": "the ranks send something that they do not report",
    }.items(),
)
def test_a_rank_that_forges_its_report_is_refused(said, name, words):
    assert words in said[name]


# A sandbox in which `ranks.run` itself has been changed


def answers_with(monkeypatch, report, carried=None):
    """Let every run be answered by `report(world_size, args)`, without any rank; nothing moves, or `carried` bytes."""

    def run(function, world_size, *args, **_):
        everyone = Seen(report(world_size, args))
        everyone.messages = [] if carried is None else [gloo.Message(0, 1, "send", carried)]
        return everyone

    monkeypatch.setattr(ranks, "run", run)


ON_RANKS = {
    "02": lambda: ch02_tree.check_sum(honest, BUFFERS),
    "03": lambda: ch03_ring.check_shards(honest, BUFFERS),
    "04 gathered": lambda: ch04_all_reduce.check_gathered(honest_gather, 3, 5),
    "04 reduced": lambda: ch04_all_reduce.check_reduced(honest_all_reduce, BUFFERS),
    "06": lambda: ch06_all_to_all.check_exchange(honest_exchange, 3, 5, seed=1),
    "08": lambda: ch08_data_parallel.check_overlapped(honest, honest, [[1], [0]], [[1, 0]] * 3),
    "09": lambda: ch09_zero.check_step(honest_arrived, step, 2),
    "10": lambda: ch10_fsdp.check_losses(honest, honest, honest, honest, honest, world_size=2),
    "11": lambda: ch11_fewer_bits.check_sum(honest, 2, 8),
    "13 gates": lambda: ch13_tensor_parallel.check_forward(honest, honest, 2),
    "13 attention": lambda: ch13_tensor_parallel.check_attention(honest, 2),
    "14": lambda: ch14_context_parallel.check_ring(honest, SEQUENCE),
    "15 counts": lambda: ch15_experts.check_all_counts(honest, 2, 4),
    "15 layer": lambda: ch15_experts.check_layer(
        layer, ch15_experts.random_case([2, 2], experts_a_rank=1, k=1, seed=0)
    ),
    "17": lambda: ch17_mesh.check_norm(honest, ch17_mesh.gradients({"tp": 2, "dp": 2}, [("tp",)])),
    "19": lambda: ch19_failures.check_room(honest, honest, 2),
}


@pytest.mark.parametrize("name", ON_RANKS)
@pytest.mark.parametrize(
    "report",
    [
        lambda world_size, args: [],
        lambda world_size, args: [None] * world_size,
        lambda world_size, args: [True] * world_size,
        lambda world_size, args: [(np.zeros(3), np.zeros(3), {}, 0, [])] * world_size,
    ],
    ids=["nothing", "no reports", "yes", "another shape"],
)
def test_a_report_that_was_not_asked_for_is_refused_in_words(monkeypatch, name, report):
    answers_with(monkeypatch, report)
    with pytest.raises(checks.NotYet, match="report"):
        ON_RANKS[name]()


def test_right_reports_of_ranks_that_never_ran_are_refused_as_nothing_crossed(monkeypatch):
    def forged(world_size, args):
        rows = np.stack(args[1])
        total, share = rows.sum(axis=0), rows.shape[1] // world_size
        sent = share * (world_size - 1) * rows.itemsize
        chunks, to = np.split(total, world_size), [{(rank + 1) % world_size: sent} for rank in range(world_size)]
        return [on_ranks.Outcome(chunks[rank], total, to[rank], world_size - 1, [], []) for rank in range(world_size)]

    answers_with(monkeypatch, forged)
    for check in (
        lambda: ch03_ring.check_shards(honest, BUFFERS),
        lambda: ch03_ring.check_ring_traffic(honest, BUFFERS, ring.reduce_scatter(3)),
        lambda: ch02_tree.check_sum(honest, BUFFERS),
    ):
        with pytest.raises(checks.NotYet, match="rank 0 reports that it sends 400,000 bytes to rank 1, but 0 crossed"):
            check()


def crossed_between(reports, sent):
    """What ranks report, with the messages that crossed: (src, dst, bytes), and the operation if it is no send."""
    everyone = Seen(reports)
    everyone.messages = [
        gloo.Message(src, dst, *operation or ["send"], bytes(size)) for src, dst, size, *operation in sent
    ]
    return everyone


def test_each_connection_must_carry_what_its_sender_reports():
    reports = [on_ranks.Outcome("", BUFFERS[0], {(rank + 1) % 3: 400_000}, 2, [], []) for rank in range(3)]
    ring_of = [(rank, (rank + 1) % 3, 200_000) for rank in range(3) for _ in range(2)]
    on_ranks.witnessed_reports(crossed_between(reports, [*ring_of, (0, 1, 0, "barrier")]))
    for sent, words in (
        (ring_of[1:], "rank 0 reports that it sends 400,000 bytes to rank 1, but 200,000 crossed"),
        ([*ring_of, (0, 2, 4)], "rank 0 reports that it sends 0 bytes to rank 2, but 4 crossed"),
        ([*ring_of, (1, 0, 0)], "rank 1 reports 2 messages, but 3 crossed"),
        ([*ring_of, (2, 0, 0, "reduce")], "rank 2 uses torch's own reduce; write this part with sends alone"),
    ):
        with pytest.raises(checks.NotYet, match=words):
            on_ranks.witnessed_reports(crossed_between(reports, sent))


@pytest.mark.parametrize(("sent", "messages"), [({}, -1), ({}, 10**9), ({1: -1}, 0)])
def test_a_report_that_cannot_be_is_refused(monkeypatch, sent, messages):
    answers_with(monkeypatch, lambda *_: [on_ranks.Outcome(BUFFERS[0], BUFFERS[0], sent, messages, [], [])] * 3)
    with pytest.raises(checks.NotYet, match=f"rank 0 reports .*{messages or -1}"):
        on_ranks.on_ranks(honest, BUFFERS)


def test_data_outside_of_the_ranks_own_groups_is_refused():
    everyone = crossed_between([None] * 3, [])
    everyone.messages = [gloo.Message(gloo.ELSEWHERE, gloo.ELSEWHERE, "send", b"of a term")]
    words = "with 3 ranks, 9 bytes travelled outside of the ranks' own groups: send everything with the functions of"
    with pytest.raises(checks.NotYet, match=words):
        on_ranks.witnessed(everyone, least=0)
    with pytest.raises(checks.NotYet, match="1 of 1 numbers that were looked for on the wire are not among"):
        on_ranks.witnessed_terms(everyone, [{b"of a term"}])
    everyone.messages = [gloo.Message(gloo.ELSEWHERE, gloo.ELSEWHERE, "", b"of a term")]  # over a socket, not gloo's
    with pytest.raises(checks.NotYet, match=words):
        on_ranks.witnessed(everyone, least=0)


def test_many_messages_without_data_are_refused():
    everyone = crossed_between([None] * 2, [])
    everyone.messages = [gloo.Message(0, 1, "barrier", b"")] * (on_ranks.EMPTY * 4)
    on_ranks.witnessed(everyone, least=0)
    everyone.messages.append(gloo.Message(0, 1, "send", b""))
    with pytest.raises(checks.NotYet, match=r"129 messages without data cross between them, .* 128 are allowed"):
        on_ranks.witnessed(everyone, least=0)


def test_ranks_whose_traffic_cannot_be_followed_are_told_so():
    everyone = Seen([None] * 3)
    everyone.followed = False
    with pytest.raises(checks.NotYet, match="with 3 ranks, the ranks send more than the grader can follow"):
        on_ranks.witnessed(everyone, least=0)


class Named(type):
    """The class of a class that says another name."""

    __name__ = "Tensor"


@pytest.mark.parametrize(
    "value, name",
    [
        (late(lambda: np.zeros(3)), "Late"),
        (np.zeros(3).view(type("Own", (np.ndarray,), {})), "Own"),
        (np.array([object()]), "ndarray"),
        (Named("Behind", (), {})(), "Behind"),
        ([torch.zeros(3)], "list"),
    ],
)
def test_what_may_work_itself_out_later_is_never_read(value, name):
    assert on_ranks.plain(value) == name
    with pytest.raises(checks.NotYet, match=f"the sum is an object of type {name}; leave a tensor of torch's own"):
        on_ranks.numbers_in("the sum", value)


@pytest.mark.parametrize(
    "value",
    [torch.ones(3), torch.nn.Parameter(torch.ones(3)), torch.ones(3, dtype=torch.bfloat16), np.ones(3, np.int8)],
)
def test_a_plain_tensor_or_array_is_copied(value):
    numbers = on_ranks.plain(value)
    with torch.no_grad():
        value[:] = 2
    assert type(numbers) is np.ndarray and numbers.tolist() == [1, 1, 1]


def test_a_rank_has_the_parent_that_gets_its_sum_and_no_other_that_it_names(monkeypatch):
    """A star that claims to be a tree: beside the bytes that rank 0 got, each rank names another, with none."""
    buffers = on_ranks.long(4, 6)
    total, parents = buffers.sum(axis=0), [None, {0: 48}, {0: 48}, {2: 0, 0: 48}]
    reports = [on_ranks.Outcome("", total, parents[rank] or {}, min(rank, 1), [], []) for rank in range(4)]
    answers_with(monkeypatch, lambda *_: reports)
    monkeypatch.setattr(ch02_tree, "witnessed", lambda *_, **__: None)
    monkeypatch.setattr(ch02_tree, "witnessed_sums", lambda *_, **__: None)
    monkeypatch.setattr(on_ranks, "witnessed_reports", lambda *_: None)
    with pytest.raises(checks.NotYet, match="rank 3 sends 48 bytes in 1 messages; it should send its sum once"):
        ch02_tree.check_tree_traffic(honest, buffers)


@pytest.mark.parametrize(
    "kept, sent, words",
    [
        ([50_000] * 3, [(0, 1, 800_000), (1, 0, 800_000)], "rank 2 sends 0 bytes, where its part of the sum needs at"),
        ([50_000] * 3, [(0, 1, 400_000), (1, 0, 400_000), (2, 1, 400_000)], "rank 2 receives 0 bytes, where its"),
        ([150_000, 0, 0], [(1, 2, 600_000), (2, 1, 600_000)], "rank 0 receives 0 bytes, where its .* least 600,000"),
    ],
)
def test_each_rank_must_send_and_receive_what_its_part_of_the_sum_needs(kept, sent, words):
    with pytest.raises(checks.NotYet, match=words):
        on_ranks.witnessed_sums(crossed_between([None] * 3, sent), BUFFERS, kept)


def test_a_canned_training_run_is_refused_where_the_seed_is_fresh(monkeypatch):
    """What the checks with known seeds want to see can be written down; the next seed wants something else."""
    canned = [
        told._replace(
            sums=[{unit: whole.reshape(2, -1)[rank] for unit, whole in of_step.items()} for of_step in told.sums]
        )
        for rank, told in enumerate(ch09_zero._ddp(2, ch09_zero.Task()))
    ]
    answers_with(monkeypatch, lambda world_size, args: canned)
    with pytest.raises(checks.NotYet, match="0 bytes went over the wire"):  # all that is told is right
        ch09_zero.check_step(honest_arrived, step, 2)
    with checks.fresh() as seed, pytest.raises(checks.NotYet, match="the sum of its shard is"):
        ch09_zero.check_step(honest_arrived, step, 2, seed=seed)
    size = sum(sum(told.sent) for told in canned)
    answers_with(monkeypatch, lambda world_size, args: canned, bytes(size))
    with pytest.raises(checks.NotYet, match="looked for on the wire"):  # zeros are no gradients
        ch09_zero.check_step(honest_arrived, step, 2)
    numbers = b"".join(min(forms) for forms in ch09_zero._truth(2, ch09_zero.Task())[1])
    answers_with(monkeypatch, lambda world_size, args: canned, numbers + bytes(size - len(numbers)))
    ch09_zero.check_step(honest_arrived, step, 2)


def test_canned_losses_and_shards_are_refused_where_the_seed_is_fresh(monkeypatch):
    steps = [[] for _ in range(ch10_fsdp.STEPS)]
    canned = [told._replace(events=steps, sent=[0] * len(steps)) for told in ch10_fsdp._truth(2, ch10_fsdp.Task())[0]]
    answers_with(monkeypatch, lambda world_size, args: canned)
    hooks = [honest] * 5
    with pytest.raises(checks.NotYet, match="0 bytes went over the wire"):  # all that is told is right
        ch10_fsdp.check_losses(*hooks, world_size=2)
    with checks.fresh() as seed, pytest.raises(checks.NotYet, match="the loss is"):
        ch10_fsdp.check_losses(*hooks, world_size=2, seed=seed)
    answers_with(monkeypatch, lambda world_size, args: canned, bytes(10**6))
    with pytest.raises(checks.NotYet, match="looked for on the wire"):  # zeros are neither gradients nor parameters
        ch10_fsdp.check_losses(*hooks, world_size=2)
    for way in (min, max):  # any form of a number will do: the gradients as they are, or divided
        numbers = b"".join(way(forms) for forms in ch10_fsdp._truth(2, ch10_fsdp.Task())[1])
        answers_with(monkeypatch, lambda world_size, args: canned, numbers + bytes(10**6))
        ch10_fsdp.check_losses(*hooks, world_size=2)


@pytest.mark.parametrize("module", [ch09_zero, ch10_fsdp])
def test_a_rank_gets_no_seed_and_nothing_of_the_other_rows(module, monkeypatch):
    """Its own rows do not tell the rest: the task that it gets makes other ones."""
    task = module.Task(seed=5)
    given = []
    answers_with(monkeypatch, lambda world_size, args: given.extend(args) or [])
    with pytest.raises(checks.NotYet, match="not every one of them reports"):
        if module is ch09_zero:
            module.check_step(honest_arrived, step, 2, seed=task.seed)
        else:
            module.check_losses(*[honest] * 5, world_size=2, seed=task.seed)
    (named,) = (each for each in given if isinstance(each, module.Task))
    assert named.seed != task.seed
    own = [each for each in given if isinstance(each, ranks.PerRank)][-1]
    for rank in range(2):
        right, guessed = (module._batches(rank, 2, each) for each in (task, named))
        for batch, same, other in zip(own[rank], right, guessed, strict=True):
            assert torch.equal(batch[0], same[0]) and not torch.equal(batch[0], other[0])


def test_every_grading_draws_other_inputs_and_a_refusal_says_which():
    with checks.fresh() as one, checks.fresh() as other:
        assert one != other
    with pytest.raises(checks.NotYet, match="drawn at random, with seed 42"), checks.fresh(42) as seed:
        assert seed == 42
        raise checks.NotYet("wrong")


# The library's own answers


def from_the_library(world_size):
    return [list(step) for step in ring.reduce_scatter(world_size)]


def test_the_librarys_ring_is_refused_where_the_learners_code_runs_and_not_here(monkeypatch):
    """`own` runs in the sandbox when graded: only what it returns comes back, as data."""
    here = checks.own
    monkeypatch.setattr(checks, "own", lambda *args: _crossed(here(*args)))
    with pytest.raises(checks.NotYet, match=r"write this part yourself\n  line \d+ of from_the_library"):
        ch03_ring.check_schedule(from_the_library, 3, contracts.reduce_scatter)


if __name__ == "__main__":
    main()


def test_a_check_still_holds_what_it_asked_about_when_the_answer_has_changed_its_arguments():
    def emptying(sizes, table, array, tensor):
        sizes.clear()
        table.clear()
        array[...] = 0
        tensor.zero_()
        return 1

    asked = [1, [2]], {"a": 3}, np.ones(2), torch.ones(2)
    assert checks.answer(emptying, *asked) == 1
    assert asked[:2] == ([1, [2]], {"a": 3}) and asked[2].all() and asked[3].all()
    checks.answer(emptying, *asked, in_place=True)
    assert asked[:2] == ([], {}) and not asked[2].any() and not asked[3].any()
