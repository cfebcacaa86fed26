"""What the chapters do on real ranks, each held against the same work on one rank: on gloo or on NCCL.

    ranks.run(LESSONS["14, ring attention"], 2)    # for each rank, the largest difference: at most ROUNDING

`tools/gpu.py` runs them on GPUs. Everything is on `ranks.device()`, and in fp64, so that what differs is a mistake.
Chapter 9's stages are held against DDP by hand, and chapter 11's roundings against their bounds.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from collectives import execute, ranks
from collectives.algorithms import hierarchical, ring
from collectives.training import (
    checkpoints,
    context_parallel,
    experts,
    mesh_run,
    pipeline,
    quantized,
    sharded,
    tensor_parallel,
    tiny,
)
from collectives.training.data_parallel import DataParallel
from collectives.training.fsdp import shard
from collectives.training.fully_sharded import FullySharded
from collectives.training.mesh import Mesh
from collectives.training.pipeline_run import Pipeline
from collectives.training.transformer import Block

STEPS, ROWS = 3, 24  # rows of a batch: they divide among 2, 3, 4, 6 and 8 ranks
ROUNDING = 1e-6  # `tiny` takes its losses in fp32; all else differs by 1e-14


def apart(found: Sequence[torch.Tensor | float], expected: Sequence[torch.Tensor | float]) -> float:
    """Return the largest difference between numbers or tensors and what they should be."""
    pairs = zip(map(torch.as_tensor, found), map(torch.as_tensor, expected), strict=True)
    return max((one - other).abs().max().item() for one, other in pairs)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return the same random numbers on every rank, on its device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(ranks.device())


def two_levels(rank: int, world_size: int) -> float:
    """Return how far an all-reduce in two levels, as if on two nodes, is off the sum."""
    by_rank = [random(8 * world_size, seed=each) for each in range(world_size)]
    buffer = by_rank[rank].clone()
    execute(hierarchical.all_reduce(world_size, world_size // 2 if world_size % 2 == 0 else world_size), buffer)
    return apart([buffer], [sum(by_rank)])  # type: ignore[list-item]


# --- data parallelism: the losses of a few steps ----------------------------------------------------------------------


def losses(model: Any, update: Callable[[], None], rank: int, world_size: int) -> list[float]:
    """Train on this rank's part of each batch; return the mean losses over all ranks."""
    found = []
    for step in range(STEPS):
        batch = tiny.batch(step, rank, world_size, ROWS, dtype=torch.float64)
        loss = tiny.loss(model, *(part.to(ranks.device()) for part in batch))
        loss.backward()
        update()
        found.append(loss.detach().double())
    total = torch.stack(found)
    if world_size > 1:
        dist.all_reduce(total)
    return (total / world_size).tolist()


def stepping(optimizer: torch.optim.Optimizer, first: Callable[[], None] = lambda: None) -> Callable[[], None]:
    """Return an update: what must come `first`, the optimizer's step, and no gradients afterwards."""

    def update() -> None:
        first()
        optimizer.step()
        optimizer.zero_grad()

    return update


def fresh() -> nn.Sequential:
    """Return the same model everywhere, on this rank's device."""
    return tiny.model(dtype=torch.float64).to(ranks.device())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters), lr=0.1, momentum=0.9)


def data_parallel(way: str, rank: int, world_size: int) -> float:
    """Return how far the losses of a way are off those of one rank."""
    alone = fresh()
    expected = losses(alone, stepping(sgd(alone.parameters())), 0, 1)
    if way == "torch's DDP":
        model: Any = nn.parallel.DistributedDataParallel(fresh())
        update = stepping(sgd(model.parameters()))
    elif way == "FSDP2":
        model = shard(fresh())
        update = stepping(sgd(model.parameters()))
    elif way == "FSDP by hand":
        model = FullySharded(fresh())
        update = stepping(sgd(model.parameters()), model.finish)
    else:
        inner = fresh()
        model = DataParallel(inner, algorithm=ring.all_reduce if way == "DDP by our ring" else None)
        update = stepping(sgd(inner.parameters()), model.finish)
    return apart(losses(model, update, rank, world_size), expected)


def stage_of_zero(stage: type[sharded.Replicated], rank: int, world_size: int) -> float:
    """Return how far the losses of a stage of ZeRO are off those of stage 0."""
    whole, cut = sharded.Replicated(fresh()), stage(fresh())
    expected = losses(whole.model, whole.step, rank, world_size)
    return apart(losses(cut.model, cut.step, rank, world_size), expected)


def in_8_bits(rank: int, world_size: int) -> float:
    """Return by how much all-gathered shards of 8 bits are further off than their bound."""
    shards = [random(1000, seed=each).float() for each in range(world_size)]
    off = (quantized.all_gather(shards[rank]) - torch.cat(shards)).abs()
    return (off - torch.cat([quantized.bound(shard) for shard in shards])).clamp(min=0).max().item()


def in_4_bits(rank: int, world_size: int) -> float:
    """Return by how much a sum of parts of 4 bits is further off than its bound."""
    by_rank = [random(1000 * world_size, seed=each).float() for each in range(world_size)]
    parts = [values.chunk(world_size)[rank] for values in by_rank]
    off = (quantized.reduce_scatter(by_rank[rank]) - torch.stack(parts).sum(0)).abs()
    return (off - torch.stack([quantized.bound(part, bits=4) for part in parts]).sum(0)).clamp(min=0).max().item()


def resumed(rank: int, world_size: int) -> float:
    """Return how far the losses of a run that goes on from a checkpoint are off those of the run that saved it."""

    def new() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        model = shard(fresh())
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    place = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(place, device=ranks.device())
    (model, optimizer), (other, its_optimizer) = new(), new()
    losses(model, stepping(optimizer), rank, world_size)
    checkpoints.save(Path(place[0]), model, optimizer, STEPS)
    expected = losses(model, stepping(optimizer), rank, world_size)
    checkpoints.resume(Path(place[0]), other, its_optimizer)
    found = losses(other, stepping(its_optimizer), rank, world_size)
    if rank == 0:
        shutil.rmtree(place[0])  # all ranks have resumed: `losses` ends in an all-reduce
    return apart(found, expected)


# --- one layer on several ranks ---------------------------------------------------------------------------------------


def tensor_parallel_block(sequence: bool, rank: int, world_size: int) -> float:
    """Return how far a split block's output and input gradient are off the whole block's."""
    torch.manual_seed(0)
    block = Block(8 * world_size, world_size).double().to(ranks.device())
    whole = random(2 * world_size, 8 * world_size).requires_grad_()
    expected = block(whole)
    expected.square().sum().backward()
    own = slice(2 * rank, 2 * rank + 2) if sequence else slice(None)
    mine = whole.detach()[own].clone().requires_grad_()
    found = tensor_parallel.split(block, sequence=sequence)(mine)
    found.square().sum().backward()
    return apart([found, mine.grad], [expected[own], whole.grad[own]])  # type: ignore[index, list-item]


def attention(attend: Callable[..., torch.Tensor], cut: Any, rank: int, world_size: int) -> float:
    """Return how far attention over a sequence that ranks share is off the whole sequence's, with its gradients."""
    whole = [random(2 * world_size, 6 * world_size, 4, seed=seed).requires_grad_() for seed in range(3)]

    def own(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.chunk(2 * world_size, 1)[piece] for piece in cut(rank, world_size)], 1)

    queries, keys, values = whole
    expected = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    expected.square().sum().backward()
    mine = [own(tensor.detach()).clone().requires_grad_() for tensor in whole]
    found = attend(*mine)
    found.square().sum().backward()
    gradients = [own(tensor.grad) for tensor in whole]  # type: ignore[arg-type]
    return apart([found, *(part.grad for part in mine)], [own(expected), *gradients])  # type: ignore[list-item]


def expert_parallel(rank: int, world_size: int) -> float:
    """Return how far experts on their ranks are off experts that answer every token."""
    torch.manual_seed(0)
    all_of_them = [nn.Linear(6, 6).double().to(ranks.device()) for _ in range(2 * world_size)]
    tokens, logits = random(10, 6, seed=rank), random(10, 2 * world_size, seed=100 + rank)
    routing = experts.route(logits, 2)
    answers = torch.stack([expert(tokens) for expert in all_of_them], 1)
    weights = torch.zeros_like(logits).scatter(1, routing.experts, routing.weights)
    layer = experts.ExpertParallel(all_of_them[2 * rank : 2 * rank + 2])
    return apart([layer(tokens, routing)], [(weights[:, :, None] * answers).sum(1)])


def pipelined(rank: int, world_size: int) -> float:
    """Return how far a pipeline's loss and this stage's gradients are off the whole model's."""
    torch.manual_seed(0)
    stages = [tiny.TinyBlock(8).double().to(ranks.device()) for _ in range(world_size)]
    inputs, targets = random(8, 8), random(8, 8, seed=1)
    expected = functional.mse_loss(nn.Sequential(*stages)(inputs), targets)
    gradients = torch.autograd.grad(expected, list(stages[rank].parameters()))
    schedule = pipeline.one_f_one_b(world_size, 4)
    share = Pipeline(schedule, {rank: stages[rank]}, functional.mse_loss).step(inputs, targets)
    total = torch.tensor(share, dtype=torch.float64, device=ranks.device())
    dist.all_reduce(total)
    found = [parameter.grad for parameter in stages[rank].parameters()]
    return apart([total, *found], [expected.detach(), *gradients])  # type: ignore[list-item]


def on_a_mesh(rank: int, world_size: int) -> float:
    """Return how far gradients by tensor parallelism inside FSDP are off the whole model's."""
    mesh = Mesh(dp=world_size // 2, tp=2) if world_size % 2 == 0 else Mesh(dp=world_size)
    whole, cut, places = (mesh_run.dense_model().to(ranks.device()) for _ in range(3))
    mesh_run.parallelize(cut, mesh)
    mesh_run.parallelize(mesh_run.numbered(places), mesh)
    mesh_run.step(cut, mesh)
    mesh_run.dense_step(whole, mesh)
    return mesh_run.off(cut, whole, places)


LESSONS: dict[str, Callable[[int, int], float]] = {
    "07, two levels": two_levels,
    "08, torch's DDP": partial(data_parallel, "torch's DDP"),
    "08, DDP by hand": partial(data_parallel, "DDP by hand"),
    "08, DDP by our ring": partial(data_parallel, "DDP by our ring"),
    "09, ZeRO-1": partial(stage_of_zero, sharded.ZeRO1),
    "09, ZeRO-2": partial(stage_of_zero, sharded.ZeRO2),
    "09, ZeRO-3": partial(stage_of_zero, sharded.ZeRO3),
    "10, FSDP2": partial(data_parallel, "FSDP2"),
    "10, FSDP by hand": partial(data_parallel, "FSDP by hand"),
    "11, gathers in 8 bits": in_8_bits,
    "11, sums in 4 bits": in_4_bits,
    "13, tensor parallelism": partial(tensor_parallel_block, False),
    "13, sequence parallelism": partial(tensor_parallel_block, True),
    "14, ring attention": partial(
        attention, partial(context_parallel.ring_attention, cut=context_parallel.zigzag), context_parallel.zigzag
    ),
    "14, Ulysses": partial(attention, context_parallel.ulysses_attention, context_parallel.in_order),
    "15, experts": expert_parallel,
    "16, a pipeline": pipelined,
    "17, a mesh": on_a_mesh,
    "19, a checkpoint": resumed,
}
"""What a chapter does on ranks, by the chapter's number: it returns the largest difference on a rank."""

if not hasattr(dist, "all_gather_single"):  # torch before 2.13, as a machine with GPUs may have
    del LESSONS["10, FSDP by hand"]
