"""What checks say of answers with one fault that no exercise's own wrong answers have: each sentence is provoked."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from answers import graded, solutions_of

from collectives.practice import ch02_tree as ch02
from collectives.practice import ch03_ring as ch03
from collectives.practice import ch04_all_reduce as ch04
from collectives.practice import ch05_crossover as ch05
from collectives.practice import ch06_all_to_all as ch06
from collectives.practice import ch08_data_parallel as ch08
from collectives.practice import ch09_zero as ch09
from collectives.practice import ch10_fsdp as ch10
from collectives.practice import ch11_fewer_bits as ch11
from collectives.practice import ch12_activations as ch12
from collectives.practice import ch13_tensor_parallel as ch13
from collectives.practice import ch14_context_parallel as ch14
from collectives.practice import ch15_experts as ch15
from collectives.practice import ch16_pipeline as ch16
from collectives.practice import ch17_mesh as ch17
from collectives.practice import ch18_gpus as ch18
from collectives.practice import ch19_failures as ch19
from collectives.practice import ch20_plan as ch20
from collectives.practice import checks
from collectives.practice.on_ranks import Outcome, tagged
from collectives.schedule import Schedule, Transfer


def refused(check, *args, **settings):
    """What a check says of a wrong answer."""
    with pytest.raises(checks.NotYet) as refusal:
        check(*args, **settings)
    return str(refusal.value)


# A codec that sends numbers in fp32.
AS_IT_IS = """
class AsItIs:
    def pack(self, values): return values.clone()
    def unpack(self, message, num_elements): return message

AS_IT_IS = AsItIs()
"""
# A disk that hides numbers in texts, where the check doesn't find them.
AS_TEXTS = """

import base64
import pickle


class Texts:
    def __init__(self, disk):
        self.disk = disk

    def write(self, name, value):
        self.disk.write(name, base64.b64encode(pickle.dumps(value)).decode())

    def read(self, name):
        return pickle.loads(base64.b64decode(self.disk.read(name)))

    def __getattr__(self, name):
        return getattr(self.disk, name)


saved, resumed = save, resume


def save(rank, world_size, job, disk):
    saved(rank, world_size, job, Texts(disk))


def resume(rank, world_size, job, disk):
    resumed(rank, world_size, job, Texts(disk))
"""
# A rank that reports other losses than those of its backward passes.
OTHER_LOSSES = """

honest = arrived


def arrived(*args):
    backward = ch09_zero._backward
    ch09_zero._backward = lambda *given: 0.0 * backward(*given)
    return honest(*args)
"""
# Launches in time, of nothing; what counts is gathered at the end, while nothing computes.
GATHERED_AT_THE_END = """

def arrived(step, number):
    step.arrived.add(number)
    while len(step.works) < len(step.buckets) and step.arrived.issuperset(step.buckets[len(step.works)]):
        step.works.append(dist.all_reduce(step.parameters[number].grad.new_zeros(1), async_op=True))


def finish(step):
    for bucket, work in enumerate(step.works):
        work.wait()
        flat = step.pack(bucket)
        everyone = [flat.new_empty(len(flat)) for _ in range(step.world_size)]
        dist.all_gather(everyone, flat)
        step.unpack(bucket, sum(everyone) / step.world_size)
"""
# A right reduce-scatter, the other way round the ring.
AFTER_THE_SUM = """

summed = tree_reduce


def tree_reduce(rank, world_size, buffer):
    summed(rank, world_size, buffer)
"""
LEFTWARD = """

def ring_reduce_scatter(rank, world_size, buffer):
    parts, left, right = buffer.tensor_split(world_size), (rank - 1) % world_size, (rank + 1) % world_size
    for step in range(1, world_size):
        own = parts[(rank + step + 1) % world_size]
        incoming = torch.empty_like(own)
        sending = dist.isend(parts[(rank + step) % world_size], left)
        dist.recv(incoming, right)
        sending.wait()
        own += incoming
    return parts[rank]
"""
# A right ring whose sends begin when there is nothing left to hide behind.
SENDS_LATE = "\n\n" + solutions_of("14_context_parallel")["ring"].replace(
    "                dist.isend(visitors, (rank + 1) % world_size),\n", ""
).replace(
    "        for request in requests:\n",
    "        requests += [dist.isend(visitors, (rank + 1) % world_size)] if requests else []\n"
    "        for request in requests:\n",
)
# The solution with one change: the exercise, the cell, what becomes what, a check, and what that says.
CHANGED = [
    (
        "04_all_reduce",
        "rings",
        "        dist.recv(chunks[(rank - step - 1) % world_size], left)\n",
        "        dist.recv(torch.empty_like(chunks[(rank - step - 1) % world_size]), left)\n",
        "b1-all-gather",
        "was never written (does a receive wait? does the ring go round far enough?)",
    ),
    (
        "04_all_reduce",
        "rings",
        "        sending.wait()\n\n",
        "        sending.wait()\n    chunks[right][:] = chunks[rank]\n\n",
        "b1-all-gather",
        " holds chunk ",
    ),
    (
        "04_all_reduce",
        "rings",
        "        sending.wait()\n\n",
        "        sending.wait()\n    buffer *= 3\n\n",
        "b1-all-gather",
        ", which is no chunk of the whole",
    ),
    (
        "04_all_reduce",
        "rings",
        '    """Add up `buffer` over all ranks, in place."""\n',
        "    buffer = buffer.clone()\n",
        "b2-all-reduce",
        "is what it was: the sum must be in `buffer`, so work in place",
    ),
    (
        "08_data_parallel",
        "overlapped",
        "step.unpack(bucket, flat / step.world_size)",
        "step.unpack(len(step.buckets), flat)",
        "d1-mean",
        "unpack(2, flat): give the number of a bucket, from 0 to 1",
    ),
    (
        "08_data_parallel",
        "overlapped",
        "    step.arrived.add(number)\n",
        "    step.arrived.add(number)\n    step.unpack(1, ch08_data_parallel.np.zeros(8))\n",
        "d1-mean",
        "bucket 1 cannot be unpacked: parameter 1 has no gradient yet",
    ),
    (
        "08_data_parallel",
        "overlapped",
        "    while ",
        "    while dist.get_rank() == 0 and ",
        "d1-mean",
        "when the backward pass ends, the ranks have launched 2, 0, 0 buckets",
    ),
    (
        "08_data_parallel",
        "overlapped",
        "    for bucket, (flat",
        "    dist.all_reduce(step.works[0][0].clone())\n    for bucket, (flat",
        "d2-overlap",
        "rank 0 calls dist.all_reduce 3 times for 2 buckets",
    ),
    (
        "08_data_parallel",
        "overlapped",
        "step.unpack(bucket, flat / step.world_size)",
        "step.unpack(bucket, step.pack(bucket) / step.world_size)",
        "d1-mean",
        "this is the rank's own share, divided but not added up",
    ),
    (
        "11_fewer_bits",
        "pack",
        "cat([steps.view(torch.uint8), codes])",
        "cat([steps.repeat_interleave(block)[:len(values)].clone().view(torch.uint8), codes])",
        "a2-bytes",
        ": this has a step for each number, not for each block",
    ),
    (
        "11_fewer_bits",
        "pack",
        "cat([steps.view(torch.uint8), codes])",
        "cat([steps.view(torch.uint8), codes, codes[:1]])",
        "a2-bytes",
        ": the codes are ",
    ),
    (
        "11_fewer_bits",
        "sums",
        "return exchanged(values.chunk(world_size), rank, range(world_size), codec)",
        "dist.all_reduce(values); return values.chunk(world_size)[rank]",
        "b1-sum",
        "calls torch's own dist.all_reduce; write it with sends alone",
    ),
    (
        "11_fewer_bits",
        "sums",
        "return exchanged(values.chunk(world_size), rank, range(world_size), codec)",
        "return values.chunk(world_size)[rank]",
        "b1-sum",
        ": this is only the rank's own part; add those that arrive",
    ),
    (
        "11_fewer_bits",
        "sums",
        "range(world_size), codec)",
        "range(world_size), AS_IT_IS)",
        "b1-sum",
        "the sum is near, but it is not the fp32 sum of parts that were each rounded once, with ",
    ),
    (
        "11_fewer_bits",
        "sums",
        "range(world_size), codec)",
        "range(world_size), AS_IT_IS)",
        "b2-traffic",
        ": these are fp32 numbers; send what codec.pack returns",
    ),
    (
        "11_fewer_bits",
        "sums",
        "return exchanged(values.chunk(world_size), rank, range(world_size), codec)",
        "message = codec.pack(values.chunk(world_size)[rank])\n"
        "    sending = dist.isend(message, (rank + 1) % world_size)\n"
        "    dist.recv(torch.empty_like(message), (rank - 1) % world_size)\n"
        "    sending.wait()\n"
        "    return values.chunk(world_size)[rank]",
        "b2-traffic",
        ": everything goes to one peer, as in a ring",
    ),
    (
        "11_fewer_bits",
        "sums",
        "    operations = [dist.P2POp(dist.isend, sends[place], peers[place]) for place in others]\n",
        "    operations = [dist.P2POp(dist.isend, sends[place][:0], peers[place]) for place in others]\n"
        "    operations += [dist.P2POp(dist.irecv, receives[place][:0], peers[place]) for place in others]\n"
        "    operations += [dist.P2POp(dist.isend, sends[place], peers[place]) for place in others]\n",
        "b2-traffic",
        ": the bytes are right, but each peer should get them in one message",
    ),
    (
        "11_fewer_bits",
        "feedback",
        "",
        "\n\nright = feed\n\ndef feed(g, r, codec):\n    right(g, r, codec)\n    return codec.pack((g + r)[None]), r\n",
        "c1-feedback",
        "codec.pack takes a flat tensor of floats; it got torch.float32 [1, 20]",
    ),
    (
        "11_fewer_bits",
        "feedback",
        "",
        "\n\ndef feed(g, r, codec):\n    return codec.pack(g + r), codec.unpack(codec.pack(g + r)[1:], 20)\n",
        "c1-feedback",
        "codec.unpack: a message of 20 numbers is torch.uint8 [",
    ),
    (
        "14_context_parallel",
        "ring",
        "dist.isend(visitors, (",
        "dist.isend(visitors.transpose(-1, -2), (",
        "b1-output",
        "a tensor to send must be contiguous: call .contiguous() on it",
    ),
    (
        "14_context_parallel",
        "ring",
        "            seen = visitors[:, :, columns]\n"
        "            block = kernel.attend(queries[:, rows], *seen, visible[rows][:, columns])",
        "            seen = arriving if requests else visitors\n"
        "            block = kernel.attend(queries[:, rows], *seen, visible[rows])",
        "b1-output",
        "computes with keys or values that are still arriving: wait() for the receive first",
    ),
    (
        "14_context_parallel",
        "ring",
        "kernel.merge((output[:, rows], log_sum[:, rows]), block)",
        "kernel.merge((output[:, rows][..., :1], log_sum[:, rows]), block)",
        "b1-output",
        "kernel.merge takes two pairs of the same queries; it got the shapes [",
    ),
    (
        "14_context_parallel",
        "ring",
        "for request in requests:",
        "for request in requests[: 1 if step == world_size - 2 else 2]:",
        "b1-output",
        "never waits for its dist.irecv: keep the request, and wait() for it",
    ),
    (
        "14_context_parallel",
        "ring",
        "return output",
        "return output.tolist()",
        "b1-output",
        "returns a value of type list; return the output, a tensor",
    ),
    (
        "14_context_parallel",
        "ring",
        "if rows.any():",
        "if step and rows.any():",
        "b1-output",
        ": the rank's own keys are missing",
    ),
    (
        "14_context_parallel",
        "ring",
        "        if requests:\n",
        "        if requests:\n"
        "            asking = dist.isend(queries.contiguous(), (rank + 1) % world_size)\n"
        "            dist.recv(torch.empty_like(queries), (rank - 1) % world_size)\n"
        "            asking.wait()\n",
        "b2-traffic",
        ": queries stay, only keys and values travel",
    ),
    (
        "14_context_parallel",
        "ring",
        "        if requests:\n",
        "        if requests:\n"
        "            places = dist.isend(positions[rank].clone(), (rank + 1) % world_size)\n"
        "            dist.recv(positions[rank].clone(), (rank - 1) % world_size)\n"
        "            places.wait()\n",
        "b2-traffic",
        ": positions and all else are known to every rank",
    ),
    (
        "14_context_parallel",
        "positions",
        "    piece = ",
        "    return range(tokens // world_size)\n    piece = ",
        "c1-shares",
        "holds position 0 too, as rank 0 does; every token is on one rank",
    ),
    (
        "15_experts",
        "there-and-back",
        "    return home",
        "    return torch.zeros_like(rows)",
        "a3-home",
        ": at place 0 there is a row of zeros",
    ),
    (
        "15_experts",
        "capacity",
        "int((-over).clamp(min=0).sum())",
        "places * len(counts)",
        "b2-dropped-padded",
        ": these are all places; how many of them stay empty?",
    ),
    (
        "15_experts",
        "layer",
        "exchange(tokens[order // k], blocks)",
        "exchange(tokens[order // k], blocks[:1])",
        "c2-one-choice",
        "blocks is a table [src][dst] of 2 x 2 numbers of rows, not of [1, 2]",
    ),
    (
        "15_experts",
        "layer",
        "torch.cat(pieces[mine]))",
        "torch.cat(pieces[mine])[:, :1])",
        "c2-one-choice",
        "answer(expert, rows) takes rows [n, ",
    ),
    (
        "15_experts",
        "layer",
        "answer(rank * share + number,",
        "answer(rank * share + number + num_experts,",
        "c2-one-choice",
        ", but there is none; rank 0 has expert",
    ),
    (
        "15_experts",
        "layer",
        "torch.cat(pieces[mine]))",
        "torch.zeros_like(torch.cat(pieces[mine])))",
        "c2-one-choice",
        " gets a row of zeros instead of a token",
    ),
    (
        "15_experts",
        "layer",
        "        pieces[mine] = answers",
        "        answer(rank * share + number, torch.cat(pieces[mine]))\n        pieces[mine] = answers",
        "c2-one-choice",
        " is asked 2 times about token 0 of rank 0: ask once for each choice",
    ),
    (
        "15_experts",
        "layer",
        "    arrived = exchange",
        "    from collectives import ranks; ranks.ask('gains')\n    arrived = exchange",
        "c2-one-choice",
        " asks for something that no expert does: ask by answer(expert, rows)",
    ),
    (
        "02_tree",
        "tree-reduce",
        "",
        AFTER_THE_SUM + "    buffer += 1\n",
        "c1-powers-of-two",
        ", but the sum is array([",
    ),
    (
        "02_tree",
        "tree-reduce",
        "",
        AFTER_THE_SUM + "    if world_size > 1 and rank == 0:\n"
        "        dist.send(buffer, 1)\n"
        "    if rank == 1:\n"
        "        dist.recv(buffer, 0)\n",
        "c3-tree",
        "it should send nothing: the sum ends there",
    ),
    (
        "10_fsdp",
        "hooks",
        "fsdp.all_gather(unit.parameters, unit.shard)",
        "fsdp.all_gather(unit.parameters, unit.shard[:1])",
        "a1-losses",
        "from something other than its shard",
    ),
    (
        "10_fsdp",
        "hooks",
        "fsdp.reduce_scatter(unit.grad, unit.gradients)",
        "fsdp.reduce_scatter(unit.grad, unit.parameters)",
        "a1-losses",
        "reduce_scatter reads unit.gradients; this is another tensor, or None",
    ),
    (
        "10_fsdp",
        "hooks",
        "fsdp.reduce_scatter(unit.grad, unit.gradients)",
        "fsdp.reduce_scatter(unit.grad[:1], unit.gradients)",
        "a1-losses",
        "reduce_scatter writes to a tensor like unit.shard",
    ),
    (
        "10_fsdp",
        "hooks",
        "    fsdp.reductions.clear()\n",
        "    fsdp.reductions.clear()\n    torch.distributed.all_reduce(torch.zeros(1))\n",
        "a1-losses",
        "calls dist.all_reduce; use fsdp.all_gather and fsdp.reduce_scatter, which are counted",
    ),
    (
        "10_fsdp",
        "hooks",
        "    fetch(fsdp, number + 1)\n    fsdp.works[number].wait()\n",
        "    fetch(fsdp, number + 1)\n    fsdp.works[number].wait()\n    fsdp.units[number].parameters.mul_(2)\n",
        "a1-losses",
        ": the loss is ",
    ),
    (
        "10_fsdp",
        "hooks",
        "    fsdp.units[number].free()\n    del fsdp.works[number]\n    finish(fsdp)",
        "    if number:\n        fsdp.units[number].free()\n    del fsdp.works[number]\n    finish(fsdp)",
        "a2-memory",
        " in full after the step; then only shards may be left",
    ),
    (
        "10_fsdp",
        "hooks",
        "    if number < len(fsdp.units) - 1:",
        "    if False:",
        "a4-traffic",
        "does it keep parameters between the passes?",
    ),
    (
        "12_activations",
        "recompute",
        "",
        "\n\n\nclass Again(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, function, *inputs):\n"
        "        ctx.function, ctx.inputs = function, inputs\n"
        "        with torch.no_grad():\n"
        "            return function(*inputs)\n"
        "\n    @staticmethod\n"
        "    def backward(ctx, gradient):\n"
        "        own = [x.detach().requires_grad_() for x in ctx.inputs]\n"
        "        with torch.enable_grad():\n"
        "            return None, *torch.autograd.grad(ctx.function(*own), own, gradient)\n"
        "\n\ndef recomputed(function, *inputs):\n"
        "    return Again.apply(function, *inputs)\n",
        "b1-gradients",
        " has no gradient. It is no input of the function, which refers to it",
    ),
    (
        "12_activations",
        "recompute",
        "    state = torch.get_rng_state()\n",
        "    state = torch.get_rng_state()\n"
        "    [x.requires_grad_() for x in inputs if x.is_floating_point() and x.is_leaf]\n",
        "b1-gradients",
        "x has a gradient, and needs none",
    ),
    (
        "12_activations",
        "recompute",
        "fork_rng(devices=[]), torch.enable_grad()",
        "fork_rng(devices=[])",
        "b1-gradients",
        ". Gradients are off in there, so a second run saves nothing unless it runs under torch.enable_grad()",
    ),
    (
        "12_activations",
        "recompute",
        "        return function(*inputs)\n",
        "        return function(*inputs)[:5]\n",
        "b1-gradients",
        "the output has another shape than that of a plain run",
    ),
    (
        "17_mesh",
        "real",
        "group = dist.new_group(members)",
        "group = dist.new_group([*members, 99])",
        "a1-calls",
        ". The ranks are 0 to ",
    ),
    (
        "17_mesh",
        "real",
        "    return mine\n",
        "    if rank == 0:\n        dist.new_group([0])\n    return mine\n",
        "a1-calls",
        "nothing more",
    ),
    (
        "19_failures",
        "survive",
        'disk.rename("latest.new", "latest")',
        'disk.rename("newer", "latest")',
        "c1-survives",
        "there is no file 'newer' on the disk to rename",
    ),
    (
        "19_failures",
        "survive",
        'f"step-{step}.',
        'f"steps/{step}.',
        "c1-survives",
        "is no name of a file: use up to 100 letters, digits, underscores, dashes and dots",
    ),
    (
        "19_failures",
        "survive",
        "{field: getattr(job, field) for field in FIELDS}",
        "{field: {getattr(job, field)} for field in FIELDS}",
        "c1-survives",
        "takes tensors, numbers and texts; a set is none",
    ),
    (
        "19_failures",
        "survive",
        "padded[rank * size : (rank + 1) * size])",
        "padded[rank * size : (rank + 1) * size].float())",
        "c1-survives",
        "after resume job.weights is torch.float32 [",
    ),
    (
        "19_failures",
        "survive",
        '= common["steps"], common["position"]',
        '= str(common["steps"]), common["position"]',
        "c1-survives",
        "after resume job.steps and job.data.position must be whole numbers",
    ),
    (
        "19_failures",
        "survive",
        "    dist.barrier()",
        "    job.steps = 1000\n    dist.barrier()",
        "c1-survives",
        "but never gets there",
    ),
    (
        "19_failures",
        "survive",
        '= common["steps"], common["position"]',
        '= common["steps"] + 1, common["position"]',
        "c1-survives",
        "; the newest complete checkpoint is of step ",
    ),
    (
        "19_failures",
        "survive",
        'job.generator.set_state(common["generator"])',
        "job.generator.manual_seed(5)",
        "c1-survives",
        "job.generator is not as it was: it is in another state",
    ),
    (
        "19_failures",
        "survive",
        "",
        AS_TEXTS,
        "c1-survives",
        ": the check has changed it on the disk, and this is the number of before",
    ),
    (
        "19_failures",
        "survive",
        "    dist.barrier()",
        "    job.weights = job.weights + 1e-3\n    dist.barrier()",
        "c1-survives",
        "; in the undisturbed run it is ",
    ),
    (
        "19_failures",
        "survive",
        "    shard = {field: getattr(job, field) for field in FIELDS}",
        "    shard = {field: getattr(job, field).float() if world_size == 3 and job.steps > 6 else "
        "getattr(job, field) for field in FIELDS}",
        "c3-other-ranks",
        "after the last save there is no ",
    ),
    (
        "08_data_parallel",
        "overlapped",
        "",
        GATHERED_AT_THE_END,
        "d2-overlap",
        "rank 0 launches an all-reduce of 1 numbers where bucket 0 has 8: give dist.all_reduce all gradients of the b",
    ),
    (
        "15_experts",
        "layer",
        "num_experts // world_size",
        "2",
        "c2-one-choice",
        "layer with 2 ranks: ",
    ),
    (
        "16_pipeline",
        "kept",
        "return min(m, p - rank)",
        "return m if m < 3 else p - rank",
        "a3-kept",
        "one_f_one_b_kept(0, 1, 2) returns 2, but the schedule says 1",
    ),
    (
        "03_ring",
        "ring-reduce-scatter",
        "",
        LEFTWARD,
        "c3-traffic",
        " of 4 sends to rank 3; its right-hand neighbour is 1",
    ),
    (
        "09_zero",
        "ownership",
        "return rank * size, (rank + 1) * size",
        "return (world_size - 1 - rank) * size, (world_size - rank) * size",
        "a1-bounds",
        "gives rank 0 elements 8 to 12; it has 0 to 4",
    ),
    (
        "09_zero",
        "ownership",
        "return State(master, mean=torch.zeros_like(master), square=torch.zeros_like(master))",
        "return master",
        "a2-state",
        "return State(master=..., mean=..., square=...)",
    ),
    (
        "09_zero",
        "update",
        "return state.master.bfloat16()",
        "return state.master.bfloat16()[:-1]",
        "b1-adam",
        "returns a tensor of shape [5]; the shard has 6 elements",
    ),
    (
        "09_zero",
        "zero-2",
        "update(unit.state,",
        "update(None,",
        "c1-losses",
        "gives update a state that is not unit.state",
    ),
    ("09_zero", "zero-2", "unit.reduced, world_size)", "1.0, world_size)", "c1-losses", "hand it a tensor with sums"),
    ("09_zero", "zero-2", "", OTHER_LOSSES, "c1-losses", " is 0; DDP's is "),
    (
        "09_zero",
        "zero-2",
        "unit.parameters[begin:end] = update(",
        "update(unit.state, unit.reduced, world_size)\n        unit.parameters[begin:end] = update(",
        "c1-losses",
        "calls update twice for unit 0 in one step",
    ),
    (
        "14_context_parallel",
        "ring",
        "",
        SENDS_LATE,
        "b3-overlap",
        "its send is launched only after the block is computed; launch both before",
    ),
    (
        "02_tree",
        "tree-reduce",
        "dist.recv(incoming, rank + distance)",
        "dist.recv(incoming, rank - distance)",
        "c1-powers-of-two",
        "receives from, rank -1: the ranks are 0 to 1 (line ",
    ),
    (
        "02_tree",
        "tree-reduce",
        "dist.recv(incoming, rank + distance)",
        "dist.recv(incoming, rank - distance)",
        "c1-powers-of-two",
        "Let a rank send or receive only where it has a partner. Rank 0 has none to send to.",
    ),
    (
        "02_tree",
        "tree-reduce",
        "dist.recv(incoming, rank + distance)",
        "dist.irecv(incoming, rank).wait()",
        "c1-powers-of-two",
        "tree_reduce on rank 0 sends to itself, or receives from itself: it has the data already (line ",
    ),
    (
        "02_tree",
        "tree-reduce",
        "dist.recv(incoming, rank + distance)",
        "dist.recv(incoming, rank)",
        "c1-powers-of-two",
        "tree_reduce on rank 0 sends to itself, or receives from itself: it has the data already (line ",
    ),
    (
        "11_fewer_bits",
        "sums",
        "range(len(peers)) if place != me]",
        "range(len(peers))]",
        "b1-sum",
        " can't send to itself or receive from itself: it has the data already",
    ),
    (
        "11_fewer_bits",
        "sums",
        "return exchanged(values.chunk(world_size), rank, range(world_size), codec)",
        "return exchanged([row[:8] for row in values.chunk(world_size)], rank, range(world_size), codec).repeat(12)",
        "b2-traffic",
        " with 4 ranks: pack 96 numbers in one message, that rank's chunk",
    ),
    (
        "11_fewer_bits",
        "sums",
        "return exchanged(of_node.chunk(nodes), node, range(place, world_size, ranks_per_node), codec)",
        "return of_node.chunk(nodes)[node]",
        "b3-two-hops",
        ": the second hop is missing: this is the sum over the rank's own node",
    ),
    (
        "13_tensor_parallel",
        "gates",
        "        total = y.clone()\n",
        "        if y.shape[-1] == 24:\n            return y.clone()\n        total = y.clone()\n",
        "b1-forward",
        " the split MLP gives ",
    ),
    (
        "13_tensor_parallel",
        "attention",
        'return g(functional.linear(attended, part["out"])) + part["out_bias"]',
        'return (g(functional.linear(attended, part["out"])) + part["out_bias"])[:1]',
        "c3-forward",
        "the output has the shape [1, 24]; it should be [6, 24]",
    ),
    (
        "13_tensor_parallel",
        "attention",
        'return g(functional.linear(attended, part["out"])) + part["out_bias"]',
        'return (g(functional.linear(attended, part["out"])) + part["out_bias"]).detach()',
        "c4-backward",
        "the output of attention is not connected to X and the weights: is something detached?",
    ),
    (
        "13_tensor_parallel",
        "attention",
        'return g(functional.linear(attended, part["out"])) + part["out_bias"]',
        'return (g(functional.linear(attended, part["out"])) + part["out_bias"]).tolist()',
        "c3-forward",
        "attention returns a value of type list; return the tensor Y",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("exercise", "cell", "old", "new", "check", "words"), CHANGED)
def test_a_solution_with_one_change_is_told_what_is_wrong(exercise, cell, old, new, check, words):
    answer = solutions_of(exercise)[cell]
    assert old in answer
    changed = answer.replace(old, new, 1) if old else answer + new
    changed = AS_IT_IS + changed if "AS_IT_IS" in changed else changed
    ((_, said),) = graded(exercise, {cell: changed}, [check], looks=False).values()
    assert said and words in said


# Answers made for one check.


def test_ranks_that_do_not_all_send_the_same_way_or_enough_are_no_ring():
    def of(*sent):
        return [Outcome("NoneType", np.zeros(3), {peer: 8}, 2, [], []) for peer in sent]

    def gather(rank, world_size, buffer): ...

    says = "all the same way; here rank 0 to [1], rank 1 to [0], rank 2 to [1]"
    assert says in refused(ch04.check_ring, of(1, 0, 1), gather, 3, 8, phases=1)
    says = "gather with 3 ranks and 3 elements, of 8 bytes each: all ranks together send 24 bytes; a ring sends 48"
    assert says in refused(ch04.check_ring, of(1, 2, 0), gather, 3, 8, phases=1)


@pytest.mark.ranks
def test_floats_that_are_no_sum_are_shown_beside_it():
    def one_more(rank, world_size, buffer):
        buffer += 5

    said = refused(ch04.check_reduced, one_more, np.ones((2, 2), np.float32))
    assert said.endswith(": chunk 0 on rank 0 is [6.0], but the sum is [2.0]")


@pytest.mark.parametrize("name", ch04.RIGHT | ch04.WRONG)
def test_each_schedule_that_a_checker_of_schedules_gets_wrong_is_named(name):
    known = {str(ch04.steps_in(each)): ch04.ends_wrong(each) for each in (ch04.RIGHT | ch04.WRONG).values()}
    misjudged = str(ch04.steps_in((ch04.RIGHT | ch04.WRONG)[name]))

    def wrong_slots(steps, world_size, num_chunks):
        right = known[str(steps)]
        return right if str(steps) != misjudged else [] if right else [(0, 0)]

    assert refused(ch04.check_verdicts, wrong_slots, ch04.RIGHT | ch04.WRONG).startswith(
        f"wrong_slots on {name!r}: it "
    )


def crossing(messages, payloads):
    """An answer that divides so many messages, of the ring's and the tree's, by so many payloads."""

    def answer(world_size, alpha, beta):
        ring, tree = 2 * (world_size - 1), 2 * math.log2(world_size)
        return alpha / beta * messages(ring, tree) / payloads(ring / world_size, tree)

    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            crossing(lambda r, t: r - t, lambda r, t: 1 / (t - r)),
            "the difference of the payloads belongs in the denominator",
        ),
        (crossing(lambda r, t: r - t, lambda r, t: t), "this leaves out that the ring's bytes count too"),
        (crossing(lambda r, t: r, lambda r, t: t - r), "this leaves out that the tree's messages count too"),
    ],
)
def test_a_crossing_with_a_term_out_of_place_is_told_which(answer, words, monkeypatch):
    monkeypatch.setattr(ch05, "show", lambda _: None)
    assert refused(ch05.check_crossing, answer, ch05.random_links(1, powers_of_two=True)).endswith(f": {words}")


def test_always_the_tree_is_told_what_has_as_few_messages(monkeypatch):
    monkeypatch.setattr(ch05, "show", lambda _: None)
    said = refused(ch05.check_choice, lambda *case: "tree", ch05.grid(1), ch05.FAIR)
    assert said.endswith("; you take the tree at every such point: which algorithm has as few messages?")


def by_case(known):
    """A function that returns what is known of its arguments."""

    def answer(*case):
        return known[repr(case)]

    return answer


CASES = ch08.random_steps(seed=1)


@pytest.mark.parametrize("slip", ch08._end_slips(*CASES[0]))
def test_each_wrong_end_of_a_step_is_told_the_slip_that_leads_there(slip):
    known = {repr(case): float(ch08._end_slips(*case)[slip]) for case in CASES}
    assert refused(ch08.check_end, by_case(known), CASES).endswith(f": {slip}")


MACHINES = ch11.few_machines(seed=1)


@pytest.mark.parametrize("slip", ch11._seconds_slips(*MACHINES[0]))
def test_each_wrong_communication_is_told_the_slip_that_leads_there(slip):
    known = {
        repr((way, *case)): ch11.seconds(way, *case, **ch11._seconds_slips(*case)[slip])
        for way in ch11.WAYS
        for case in MACHINES
    }
    said = refused(ch11.check_seconds, by_case(known), MACHINES)
    assert " communicates for " in said
    assert said.endswith(f": {slip}")


NUMBERS = [ch11.Message(np.array([1, -0.5, 0.3, 0, 0.7], np.float32), 4, 8, "numbers")]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda values: values * np.nan, "0 / 0 is NaN: a block of zeros has the step 0"),
        (lambda values: values + np.inf, "is a step, or its inverse, infinite?"),
        (lambda values: (values * 8).round().clip(-8, 7) / 8, "the largest code is 7, not 8, which doesn't fit"),
    ],
)
def test_numbers_that_come_back_wrong_are_told_why(made, words, monkeypatch):
    (case,) = NUMBERS
    reports = iter([[[np.zeros(9, np.uint8)]], [[made(case.values)]]])
    monkeypatch.setattr(ch11, "run_on_ranks", lambda *_, **__: next(reports))
    assert refused(ch11.check_messages, len, len, NUMBERS).endswith(f": {words}")


def test_half_a_step_by_one_code_too_many_is_told_so():
    def bound(values, bits, block):
        return torch.full((5,), 1 / 8 / 2)

    assert refused(ch11.check_bound, bound, NUMBERS).endswith(": the largest code of so many bits is one less")


def test_a_report_without_every_message_is_refused(monkeypatch):
    monkeypatch.setattr(ch11, "run_on_ranks", lambda *_, **__: [[]])
    assert refused(ch11.check_bytes, len, len, NUMBERS) == "not every message comes back"


def test_numbers_of_which_not_every_message_is_unpacked_are_refused(monkeypatch):
    reports = iter([[[np.zeros(9, np.uint8)]], [[]]])
    monkeypatch.setattr(ch11, "run_on_ranks", lambda *_, **__: next(reports))
    assert refused(ch11.check_messages, len, len, NUMBERS) == "not every message is unpacked"


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        (
            lambda g, r, codec: (codec.pack(g), g + r - codec.unpack(codec.pack(g), 20)),
            ": add the residual to the gradient before you pack it",
        ),
        (
            lambda g, r, codec: (codec.pack(g + r), g + 2 * r - codec.unpack(codec.pack(g + r), 20)),
            ": add to it nothing twice",
        ),
        (
            lambda g, r, codec: (codec.pack(g + r), g + r - codec.unpack(codec.pack(g + r), 20) + 9e-5),
            "random gradients: what was sent and what is left are not the sum of all gradients",
        ),
    ],
)
def test_a_residual_that_loses_or_repeats_something_is_told_what(feed, words):
    assert refused(ch11.check_feedback, feed, ch11.streams(1)).endswith(words)


def keyed(tensors):
    return b"".join(np.asarray(each, dtype=float).tobytes() for each in tensors)


def pairs_by_slip(slip, cases):
    """A function that returns, in each case, what this slip leads to. `cases`: (arguments, right pair, slips)."""
    known = {}
    for args, want, slips in cases:
        made = [right if other is None else other for other, right in zip(slips[slip], want, strict=True)]
        known[keyed(args)] = tuple(torch.tensor(np.array(each)) for each in made)

    def answer(*args):
        return known[keyed(each for arg in args for each in (arg if isinstance(arg, tuple) else [arg]))]

    return answer


BLOCKS = ch14.blocks()
WANTED = [(block[:4], ch14.attended(*block[:4])) for block in BLOCKS]
ATTENDED = [(args, want, ch14._attend_slips(block, want)) for block, (args, want) in zip(BLOCKS, WANTED, strict=True)]


@pytest.mark.parametrize("slip", ATTENDED[0][2])
def test_each_wrong_attention_is_told_the_slip_that_leads_there(slip):
    assert refused(ch14.check_attend, pairs_by_slip(slip, ATTENDED), BLOCKS).endswith(f": {slip}")


SPLITS = ch14.splits()
MERGED = [
    ((*one, *other), ch14.merged(one, other), ch14._merge_slips(one, other, ch14.merged(one, other)))
    for split in SPLITS
    for one in split.pairs
    for other in split.pairs
]


@pytest.mark.parametrize("slip", MERGED[0][2])
def test_each_wrong_merge_is_told_the_slip_that_leads_there(slip):
    assert refused(ch14.check_merge, pairs_by_slip(slip, MERGED), SPLITS).endswith(f": {slip}")


def test_an_answer_of_an_expert_that_a_token_has_not_chosen_is_named():
    case = ch15.Case(2, [np.array([[0]])], [np.ones((1, 1))])
    row = np.array([1.0, 1.0])
    assert ch15._fault_of(row, 0, 0, case) == "came back with an answer of expert 1, which it has not chosen"


def test_chunks_that_go_there_and_back_and_there_again_are_sent_too_often():
    swap = [Transfer(0, 1, 1, "copy", 0), Transfer(1, 0, 0, "copy", 1)]
    said = refused(ch06.check_direct, lambda world_size: [swap] * 3, 2)
    assert said.endswith(": rank 0 sends 3 chunks; it has only 1 for others")


def test_a_partner_that_is_no_number_is_shown():
    said = refused(ch06.check_mutual, lambda rank, world_size: ["anyone"], 2)
    assert said.endswith("round 0: 'anyone' is no partner; that is a rank's number, or None")


def test_one_number_where_two_are_due_is_told_so():
    said = refused(ch15.check_dropped_and_padded, lambda counts, places: [1], [3, 1], 2)
    assert said.endswith(" returns numbers of shape [1]; return [2]")


def test_an_operation_that_is_none_is_shown():
    said = refused(ch16.schedule_of, lambda rank, p, m: ["forward"], 1, 1)
    assert "operation 1: it is 'forward'; " in said


def test_layouts_that_never_run_are_worth_nothing_and_each_trial_says_why():
    def choose(model, machine, batch, tried):
        return dict.fromkeys(ch20.FIELDS, 1) | {"dp": 999, "recompute": "none"}

    said = refused(ch20.score, choose, ch20.random_cases(1, of_each=1)[:1], 9)
    assert said.startswith("0 of 9 points\n")
    assert "      trial 1: " in said


def test_an_order_with_an_axis_twice_is_told_so():
    case = ch17.choices(seed=1)[0]
    said = refused(ch17.check_place, lambda sizes, gpus, costs: [*sizes, *sizes], [case])
    assert "; return each of " in said
    assert said.endswith(" once")


def test_a_pipeline_needs_a_rank_and_a_micro_batch():
    said = refused(ch16.schedule_of, lambda rank, p, m: [], 0, 4)
    assert said.endswith("(rank, 0, 4): there must be a rank and a micro-batch")


def test_a_rank_that_runs_ahead_after_a_right_warm_up_is_told_so():
    def order(rank, p, m):
        return ["F0", "B0", "F1", "F2", "B1", "B2"] if rank else ["F0", "F1", "B0", "F2", "B1", "B2"]

    said = refused(ch16.check_1f1b, order, 2, 3)
    assert said.endswith(" It begins right; afterwards, each forward needs a backward before the next.")


@pytest.mark.ranks
def test_sums_that_never_reach_the_root_are_missed_even_if_it_has_the_sum():
    def tree_reduce(rank, world_size, buffer):
        import torch.distributed as dist

        if rank == 0:
            buffer *= 111  # what the others hold can be told from this rank's own
        else:
            sending = dist.isend(buffer.clone(), 3 - rank)
            dist.recv(buffer, 3 - rank)
            sending.wait()

    said = refused(ch02.check_tree_traffic, tree_reduce, tagged(3, 4))
    assert said == "with 3 ranks, not every rank's sum reaches rank 0"


def test_shards_of_another_shape_or_right_up_to_rounding_are_told_so():
    right = [np.array([1.0, 0.3])]
    assert refused(ch10._check_shards, "here", [right[0][None]], right, 2).endswith(
        "here: the shards don't have the shapes that they began with"
    )
    assert refused(ch10._check_shards, "here", [right[0] + 1e-7], right, 2).endswith(
        ": this is DDP's up to rounding. Let reduce_scatter add, then divide by the number of ranks"
    )


def test_a_training_run_that_reports_too_few_steps_is_refused(monkeypatch):
    monkeypatch.setattr(ch10, "run_on_ranks", lambda *_, **__: [ch10.Seen([], [], [], 0, 0, 0, [], [])] * 2)
    said = refused(ch10.check_losses, *[print] * 5, world_size=2)
    assert said == f"with 2 ranks, rank 0 doesn't report {ch10.STEPS} steps"


def test_choices_that_are_as_good_but_for_the_last_digit_are_told_to_round():
    cases = ch10.random_cases(seed=1)
    known = {
        repr(case): ch10.best(*case, ties=(1, -1 if number % 2 else 1)) for number, case in enumerate(cases)
    }  # of the choices that send as little as the best, not always the same

    def choose(model, machine):
        return known[repr((model, machine))]

    said = refused(ch10.check_choice, choose, cases)
    assert said.endswith("may differ in the last digit as floats; `round` them before you compare")


def test_where_nothing_fits_the_word_for_it_is_told_to_whom_returns_nothing():
    said = refused(ch10.check_choice, lambda model, machine: None, ch10.random_cases(seed=1))
    assert said.endswith("is its `return` missing? Where nothing fits, the answer is 'none'")


def test_a_typing_error_in_a_schedule_s_text_is_told_by_rank_whatever_stands_above_it():
    text = "\n# by hand\nrank 0: F0 B0\n\nrank 1: F0 BO\nrank 2: F0 B0\nrank 3: F0 B0\n"
    assert "rank 1, operation 2: 'BO' is not an operation" in refused(ch16.schedule_in_text, lambda: text)


PLAIN = ch12.Task("plain", depth=1, width=4, tokens=4)


def test_what_a_run_reports_beyond_the_truth_is_refused(monkeypatch):
    right = ch12._reference(PLAIN)
    other = right._replace(gradients={})
    assert refused(ch12._check_same, None, PLAIN, other).endswith("the run reports other gradients than asked for")
    doubled = {name: 2 * gradient for name, gradient in right.gradients.items()}
    assert refused(ch12._check_same, None, PLAIN, right._replace(gradients=doubled)).endswith(": they are all doubled")
    monkeypatch.setattr(ch12, "answer", lambda *_, **__: 3)
    said = refused(ch12.check_gradients, print, [PLAIN])
    assert said == f"print cannot be run on {ch12.TASKS['plain']}"


def test_groups_that_are_reported_without_any_calls_are_refused(monkeypatch):
    monkeypatch.setattr(ch17, "answer", lambda *_, **__: 3)
    said = refused(ch17.check_calls, print, [({"dp": 2, "tp": 2}, ["tp"])])
    assert said.endswith("can't be called with a stand-in for dist.new_group")


def test_a_patient_that_is_not_in_the_ward_is_told_which_there_are():
    with pytest.raises(ValueError, match="there is no patient 'house'; names are like 'sockets' with a number, or "):
        ch18.patient("house")


def test_what_no_rank_asks_a_disk_is_refused():
    witness = ch19.Witness({}, 2, None)
    assert "asks the disk for something that a disk doesn't do" in refused(witness.serve, 1, ("burn", "latest"))
    assert refused(witness.serve, 1, ("trained", 0.5)) == "rank 1 reports a loss before it has resumed"
    assert refused(witness.serve, 1, ("write", "all", bytes(ch19.FULL + 1))).startswith(
        "the disk is full: a checkpoint"
    )
    for number in range(ch19.MOST_OPERATIONS):
        witness.serve(1, ("write", "latest", b"%d" % number))
    says = f"a life of the job changes the disk more than {ch19.MOST_OPERATIONS} times"
    assert refused(witness.serve, 1, ("write", "latest", b"")) == says


def test_a_life_that_reports_less_than_it_lived_is_refused():
    def save(rank, world_size, job, disk): ...

    def resume(rank, world_size, job, disk): ...

    story, life = ch19.Story(save, resume, 4, 0), ch19.Life(2, 3, steps=2)
    seen = ch19.Witness({}, 2, None)
    said = refused(story._compare, seen, life, "with 2 ranks, ", whole=True)
    assert said == "with 2 ranks, not every rank reports that it comes back from resume"
    seen.losses = [story.losses[:1]] * 2
    alone = ch19.Witness({}, 1, None)
    alone.resumed, story.missing = {0: story.states[0]}, {0: "no 0.5 on the disk"}
    said = refused(story._compare, alone, ch19.Life(1, 3, steps=2), "with 1 rank, ", whole=True)
    assert said.startswith("with 1 rank, resume goes on from step 0, but there was no 0.5 on the disk: write all wei")
    said = refused(story._check_losses, "with 2 ranks, ", seen, life, 0, whole=True)
    assert said == "with 2 ranks, rank 0 reports the losses of 1 steps; the run has 2"
    said = refused(story._check_state, "", 0, 2, story.states[0])
    size = len(story.states[0].weights)
    assert said.endswith(f"job.weights is [{size}]; a shard is [{-(-size // 2)}]")
    off = story.states[0]._replace(weights=story.states[0].weights + 1)
    begun = float(story.states[0].weights[0])
    said = refused(story._check_state, "", 0, 1, off)
    assert f"on rank 0 job.weights[0] is {begun + 1!r}; it was {begun!r}" in said


def test_steps_and_numbers_of_the_wrong_kind_are_told_plainly():
    made = Schedule.of(2, 1, [[Transfer(0, 1, 0)]])
    assert refused(checks.steps_of, lambda: [Transfer(0, 1, 0)]).endswith(
        "step 0 is a Transfer; a step is a list of Transfers"
    )
    assert refused(checks.steps_of, lambda: [[(0, 1, 0, "copy", None, 0.5)]]).endswith(
        "its count is 0.5; count is a whole number"
    )
    assert refused(checks.steps_of, lambda: [*made]).endswith("write them yourself, as a list of lists")
    said = refused(checks.check_formula, lambda n: 10**400, lambda n: 1, [(2,)], lambda *_: {})
    assert said.endswith(" returns a number of hundreds of digits")


def test_ranks_that_go_on_from_different_checkpoints_are_named():
    story = ch19.Story(print, input, 4, 0)
    said = refused(story._check_steps, "with 2 ranks, ", {0: 3, 1: 0})
    assert said == "with 2 ranks, input goes on from different checkpoints: rank 0 from step 3 and rank 1 from step 0"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("busy", "says"),
    [
        ("< 7", "save works on the disk less and less often: of 18 moments at which a rank was to be killed, "),
        ("> 9", "save works otherwise on the disk from save to save: rank 0 changed it at "),
    ],
)
def test_a_save_that_works_less_or_more_from_save_to_save_hides_moments_and_is_refused(busy, says):
    busy = f'    for number in range(50 if job.steps {busy} else 0):\n        disk.write("busy", number)\n    shard ='
    names = {"__name__": "__main__", "torch": torch, "dist": torch.distributed}
    exec(solutions_of("19_failures")["survive"].replace("    shard =", busy), names)
    said = refused(ch19.check_any_moment, names["save"], names["resume"], 1, most=18, seed=1)
    assert said.startswith(says)


def test_a_state_or_an_update_of_the_wrong_kind_is_told_plainly():
    def state(parameters, rank, world_size):
        return ch09.State(3, 3, 3)

    assert refused(ch09.check_state, state, 6, 2).endswith("its master is 3, which is not a tensor")
    master = torch.ones(2)
    says = "update returns a value of type int; return the new parameters, a tensor"
    assert refused(ch09._check_returned, 3, master.bfloat16(), master, "update") == says
    says = "update returns 2 as element 0; the new master, rounded, is 1 there"
    assert refused(ch09._check_returned, 2 * master.bfloat16(), master.bfloat16(), master, "update") == says
    said = refused(ch09.check_small_updates, lambda state, *_: adam_of(state)[:1], 2)
    assert said.endswith("; return the new parameters, a tensor of the shard's length")


def adam_of(state, gradient=1.0):
    """What Adam returns for a gradient, written out: the checks' own is refused."""
    state.steps += 1
    state.mean = 0.9 * state.mean + 0.1 * gradient
    state.square = 0.999 * state.square + 0.001 * gradient**2
    mean, square = state.mean / (1 - 0.9**state.steps), state.square / (1 - 0.999**state.steps)
    state.master = state.master - 0.01 * mean / (square.sqrt() + 1e-8)
    return state.master.bfloat16()


def test_a_sum_that_is_reduced_twice_is_told_so():
    shards = np.array([[1.0, 2.0], [3.0, 5.0]])
    says = "this is the number of ranks times the sum: does it reduce something twice?"
    assert ch09._wrong_sum(2 * shards[0], shards[0] - 0.5, shards, 0, 0) == says


@pytest.mark.parametrize(
    ("layouts", "names", "words"),
    [
        (
            ("rows", "columns", None),
            ["all_reduce"],
            "; these collectives do not match them and leave Y whole on every rank",
        ),
        (
            ("inner", "inner", None),
            ["reduce_scatter"],
            ". These collectives add them up, but do not leave Y whole on ev",
        ),
        (("rows", None, None), [], ": so Y is split by rows, but it should be whole on every rank"),
        (("rows", None, None), ["all_to_all"], ": so Y is split by rows, and these collectives do not leave it"),
    ],
)
def test_collectives_that_do_not_lead_to_y_are_told_why(layouts, names, words):
    assert words in refused(ch13.check_collectives, lambda x, w, y: names, [layouts])


def test_parts_of_weights_that_are_none_are_told_plainly():
    def with_other_numbers(dense, num_heads, rank, world_size):
        parts = [tensor.chunk(world_size)[rank] for tensor in dense["qkv"].chunk(3)]
        return dense | {"qkv": torch.cat(parts) + 1000}

    said = refused(ch13.check_part, lambda *_: 3, 4, 2)
    assert said.endswith("returns a value of type int; return a dictionary like `dense`")
    said = refused(ch13.check_part, lambda dense, *_: dense | {"qkv": 3}, 4, 2)
    assert said.endswith("its 'qkv' is 3, which is not a tensor")
    assert "has numbers that `dense` does not have there: " in refused(ch13.check_part, with_other_numbers, 4, 2)

    def backward():
        raise NotImplementedError("implement it")

    assert refused(ch13._written, backward).endswith("backward ends in NotImplementedError: implement it")


def test_norms_that_are_added_or_summed_along_the_last_axis_alone_are_told_so():
    case = ch17.gradients({"dp": 2, "tp": 2}, [("dp", "tp"), ("tp",)])
    norms = np.sqrt((case.parts**2).sum(axis=(1, 2)))
    says = ": norms add up as squares: square before you sum, and take the root at the end"
    assert ch17._norm_slip([float(norms.sum())] * 4, case) == says
    last = ch17._norm_over(case, lambda cut: cut[-1:])
    says = ": this sums along the last axis of those that cut a parameter; sum along all of them"
    assert ch17._norm_slip([float(each) for each in last], case) == says


@pytest.mark.ranks
def test_a_ring_of_attention_in_another_order_of_the_ranks_is_told_so():
    def crossed(rank, world_size, queries, keys, values, positions, kernel):
        import torch
        import torch.distributed as dist

        order = [0, 2, 1, 3]
        at, visitors, so_far = order.index(rank), torch.stack([keys, values]), None
        for step in range(world_size):
            arriving, works = torch.empty_like(visitors), []
            if step < world_size - 1:
                works = [dist.isend(visitors, order[(at + 1) % 4]), dist.irecv(arriving, order[at - 1])]
            block = kernel.attend(queries, *visitors, positions[rank][:, None] >= positions[order[at - step]])
            so_far = kernel.merge(so_far, block) if so_far else block
            for work in works:
                work.wait()
            visitors = arriving
        return so_far[0]

    said = refused(ch14.check_traffic, crossed, ch14.sequence(ch14.zigzag(4, 2)))
    assert said == "with 4 ranks, not all ranks send to the next one: in a ring all do, the same way round"


def test_a_ring_that_goes_round_too_far_and_a_sum_that_is_none_are_shown(monkeypatch):
    around = [Transfer(0, 1, 0), Transfer(1, 2, 1), Transfer(2, 0, 2)]
    said = refused(ch03.check_ring, Schedule.of(3, 3, [around] * 3))
    assert said.endswith(" takes 3 steps; 3 ranks need 2")
    monkeypatch.setattr(ch03, "on_ranks", lambda *_: [Outcome(np.array([9.5]), np.zeros(2), {}, 1, [], [])] * 2)
    said = refused(ch03.check_shards, print, np.ones((2, 2)))
    assert said == "with 2 ranks and 2 elements, rank 0 returns array([9.5]), but the sum is array([2.])"
    long = np.array([2.0, 2, 2, 0.5, 2, 2, 2, 0.25])
    monkeypatch.setattr(ch03, "on_ranks", lambda *_: [Outcome(long, np.zeros(16), {}, 1, [], [])] * 2)
    said = refused(ch03.check_shards, print, np.ones((2, 16)))
    assert said.endswith("rank 0 returns 0.5 at index 3, where the sum is 2.0; 2 of 8 are wrong")


def test_a_checker_that_names_no_slots_of_an_unseen_schedule_is_told_so():
    said = refused(ch04.check_unseen, lambda *_: 3, ch04.RIGHT)
    assert "returns 3; return a list of the wrong slots" in said


def test_a_schedule_that_is_no_ring_is_told_where():
    back = Schedule.of(3, 3, [[Transfer(0, 2, 0, "reduce")]])
    assert "goes from rank 0 to rank 2, but its right-hand neighbour is rank 1" in refused(ch03.check_ring, back)
    alone = Schedule.of(3, 3, [[Transfer(0, 1, 0, "reduce")]])
    assert "step 0: not every rank sends exactly one chunk (0:0→1+)" in refused(ch03.check_ring, alone)


WEIGHTS = ch17.EVEN + ch17.uneven()
CUTS = [
    (tuple(shape), list(cuts), dict(zip(sizes, at, strict=True)), dict(sizes))
    for shape, cuts, sizes in WEIGHTS
    for at in product(*map(range, sizes.values()))
]


@pytest.mark.parametrize("slip", ch17._held_slips(*CUTS[0]))
def test_each_wrong_cut_is_told_the_slip_that_leads_there(slip):
    known = {repr(case): [list(each) for each in ch17._held_slips(*case)[slip]] for case in CUTS}
    assert slip in refused(ch17.check_held, by_case(known), WEIGHTS)
