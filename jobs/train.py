"""Trains a small transformer and reports the cost of a step: the same file runs on a laptop and on a GPU cluster.

    python jobs/train.py --ranks 2 --strategy ddp fsdp                       # two ranks of this machine
    torchrun --nproc-per-node 8 jobs/train.py --strategy fsdp --precision bf16 --save run.json     # a node's GPUs

For several nodes see jobs/README.md. Ranks use NCCL if each rank of a node can have its own GPU, else gloo. torchrun
sets LOCAL_RANK, the number of a process's GPU, and RANK, its number among all; `ranks.run` uses both.

For each strategy and precision it prints and saves the median step time, tokens per second, FLOP/s of a rank and their
share of the GPU's peak (MFU), peak memory, the bytes that a rank sends, and the machine. With `--checkpoint FOLDER` it
saves its state now and then, and goes on from there when it is started again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from collectives import ranks
from collectives.machines import GPUS
from collectives.measure import bandwidth
from collectives.measure.held import BytesHeld
from collectives.measure.wire import BytesSent
from collectives.training import fsdp, traffic
from collectives.training.checkpoints import resume, save
from collectives.training.models import Model
from collectives.training.transformer import Block

STRATEGIES = ("ddp", "zero2", "fsdp")
PRECISIONS = ("fp32", "bf16")
UNTIMED = 3  # steps before the clock starts


@dataclass(frozen=True)
class Job:
    """What to train, and how.

    `batch`: sequences per rank and step. `precision`: the dtype that layers compute in; parameters, gradients and
    optimizer state stay in fp32. `strategy`: "ddp"; "fsdp", which shards everything and gathers a layer whenever it is
    needed; "zero2", which gathers a layer for the forward pass and keeps it for the backward pass.
    Raises `ValueError` for an unknown strategy or precision, a size below 1, or heads that don't divide the width.
    """

    strategy: str = "ddp"
    precision: str = "fp32"
    layers: int = 4
    width: int = 128
    heads: int = 4
    sequence: int = 128
    vocabulary: int = 512
    batch: int = 2
    steps: int = 5

    def __post_init__(self) -> None:
        for name, known in (("strategy", STRATEGIES), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"no {name} {getattr(self, name)!r}: choose from {', '.join(known)}")
        if small := [name for name, value in asdict(self).items() if isinstance(value, int) and value < 1]:
            raise ValueError(f"{', '.join(small)}: must be at least 1")
        if self.width % self.heads:
            raise ValueError(f"a width of {self.width} does not divide into {self.heads} heads")

    @property
    def name(self) -> str:
        """Strategy and precision, which name the folder of this job's checkpoints."""
        return f"{self.strategy}-{self.precision}"

    @property
    def flops(self) -> float:
        """FLOPs of a rank in a step: those of the matrices and of attention without what its mask hides."""
        model = Model(self.name, self.layers, self.width, self.heads, self.vocabulary, self.sequence)
        return model.flops(self.batch * self.sequence)


class Embedding(nn.Module):
    """The embedding of tokens and their positions: [batch, tokens] -> [batch, tokens, width]."""

    def __init__(self, job: Job):
        super().__init__()
        self.tokens = nn.Embedding(job.vocabulary, job.width)
        self.positions = nn.Embedding(job.sequence, job.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))


def transformer(job: Job) -> nn.Sequential:
    """Return the model, with the same parameters on every rank. FSDP shards and gathers each child as a unit."""
    torch.manual_seed(0)
    layers = [Block(job.width, job.heads) for _ in range(job.layers)]
    head = nn.Sequential(nn.LayerNorm(job.width), nn.Linear(job.width, job.vocabulary, bias=False))
    return nn.Sequential(Embedding(job), *layers, head)


def parallel(model: nn.Sequential, job: Job) -> nn.Module:
    """Return the model on this rank's device, wrapped for the job's strategy."""
    if job.strategy == "ddp":
        return nn.parallel.DistributedDataParallel(model.to(ranks.device()), gradient_as_bucket_view=True)
    options: dict[str, Any] = {"reshard_after_forward": job.strategy == "fsdp"}
    if job.precision == "bf16":
        from torch.distributed.fsdp import MixedPrecisionPolicy

        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp.shard(model, **options)


def batch_of(job: Job, step: int, rank: int) -> torch.Tensor:
    """Return a rank's sequences of tokens: [batch, sequence + 1].

    A token is 5 times the one before plus 1, modulo the vocabulary, but random for about 1 token in 10.
    """
    generator = torch.Generator().manual_seed(1_000 * step + rank)
    tokens = torch.randint(job.vocabulary, (job.batch, job.sequence + 1), generator=generator)
    noise = torch.rand(tokens.shape, generator=generator) < 0.1
    for position in range(1, job.sequence + 1):
        follows = (5 * tokens[:, position - 1] + 1) % job.vocabulary
        tokens[:, position] = torch.where(noise[:, position], tokens[:, position], follows)
    return tokens.to(ranks.device())


def train(rank: int, world_size: int, job: Job, checkpoint: Path | None = None, every: int = 100) -> dict[str, Any]:
    """Train, and return what a step costs on this rank.

    Three untimed steps come first. Memory and bytes sent are measured in the third. `checkpoint`: a folder for the
    state after each `every` steps and at the end; training continues from the last state there. Raises `ValueError` if
    that state leaves fewer than four steps to do.
    """
    model = parallel(transformer(job), job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    half = job.strategy == "ddp" and job.precision == "bf16"  # FSDP casts with its own policy
    first, last = resume(checkpoint, model, optimizer), UNTIMED + job.steps
    if last - first <= UNTIMED:
        raise ValueError(f"{checkpoint} has {first} of {last} steps, and {UNTIMED + 1} must be left: raise --steps")

    def step(number: int) -> torch.Tensor:
        tokens = batch_of(job, number, rank)
        with torch.autocast(ranks.device().type, torch.bfloat16) if half else nullcontext():
            scores = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses = [step(first), step(first + 1)]  # Adam creates its state in the first; DDP rebuilds its buckets after it
    peak, sent = measured(lambda: losses.append(step(first + 2)))
    times = []
    for number in range(first + UNTIMED, last):
        dist.barrier()
        begun = time.perf_counter()
        losses.append(step(number))
        bandwidth.finish()
        times.append(time.perf_counter() - begun)
        if checkpoint and ((number + 1) % every == 0 or number + 1 == last):
            save(checkpoint, model, optimizer, number + 1)
    total = torch.stack(losses)
    dist.all_reduce(total)
    return {
        "first_step": first,
        "step_seconds": statistics.median(times),
        "peak_bytes": peak,
        "payloads": dict(sent.payloads),
        "bytes_sent": traffic.sent({name: sent.payloads[name] for name in traffic.PASSES}, world_size),
        "losses": (total / world_size).tolist(),
        "backend": dist.get_backend(),
        "machine": bandwidth.machine(),
    }


def measured(step: Callable[[], Any]) -> tuple[int, BytesSent]:
    """Return the peak bytes of this rank's tensors during a step, and the collectives that the step calls.

    A GPU's allocator counts for free. On the CPU `BytesHeld` tracks the tensors, which is slow: don't time such a step.
    """
    on_gpu = ranks.device().type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    with BytesSent() as sent, nullcontext() if on_gpu else BytesHeld() as held:
        step()
    return (torch.cuda.max_memory_allocated() if on_gpu else sum(held.peak.values())), sent


def peak_flops(job: Job, machine: dict[str, Any]) -> float | None:
    """Return the rated bf16 FLOP/s of the machine's GPUs, or None if they are unknown or the job computes in fp32."""
    gpu = machine.get("gpus", [""])[0] if job.precision == "bf16" else ""
    names = sorted(GPUS, key=len, reverse=True)  # an H200 is no H20
    return next((GPUS[name].peak for name in names if name.partition("-")[0] in gpu), None)


def run(
    job: Job,
    world_size: int,
    backend: str | None = None,
    timeout: float = 3600.0,
    peak: float | None = None,
    checkpoint: Path | None = None,
    every: int = 100,
) -> dict[str, Any]:
    """Train on ranks of this machine, or under torchrun on the existing ones, and return the job with its results.

    The step time is that of the slowest rank, the peak memory that of the fullest. `peak`: FLOP/s that a rank's device
    can do at best, by default the rating of a known GPU. `checkpoint`, `every`: see `train`.
    """
    ranks.preload(*fsdp.IMPORTS)
    folder = checkpoint.absolute() / job.name if checkpoint else None
    by_rank = ranks.run(train, world_size, job, folder, every, timeout=timeout, backend=backend)
    seconds = max(result["step_seconds"] for result in by_rank)
    first = by_rank[0]
    peak = peak or peak_flops(job, first["machine"])
    return asdict(job) | {
        "world_size": world_size,
        "backend": first["backend"],
        "parameters": sum(tensor.numel() for tensor in transformer(job).parameters()),
        "step_seconds": seconds,
        "tokens_per_second": world_size * job.batch * job.sequence / seconds,
        "flops_per_second": job.flops / seconds,
        "mfu": job.flops / seconds / peak if peak else None,
        "peak_bytes": max(result["peak_bytes"] for result in by_rank),
        "first_step": first["first_step"],
        "bytes_sent": first["bytes_sent"],
        "payloads": first["payloads"],
        "losses": first["losses"],
        "machine": first["machine"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def line(result: dict[str, Any]) -> str:
    """Format a result as one line: milliseconds, tokens per second, TFLOP/s of a rank, MB (1e6 bytes)."""
    mfu = "MFU unknown" if result["mfu"] is None else f"MFU {result['mfu']:.1%}"
    return (
        f"{result['strategy']:<6} {result['precision']}  {result['world_size']} ranks over {result['backend']}: "
        f"{result['step_seconds'] * 1e3:8.1f} ms a step, {result['tokens_per_second']:9,.0f} tokens/s, "
        f"{result['flops_per_second'] / 1e12:.3g} TFLOP/s a rank, {mfu}, "
        f"peak {result['peak_bytes'] / 1e6:8.1f} MB, sends {result['bytes_sent'] / 1e6:8.1f} MB a step, "
        f"loss {result['losses'][0]:.3f} -> {result['losses'][-1]:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer and report the cost of a step.")
    parser.add_argument("--strategy", nargs="+", choices=STRATEGIES, default=["ddp"], help="one or several (ddp)")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["fp32"], help="one or both (fp32)")
    for name, words in (
        ("layers", "blocks of the transformer"),
        ("width", "elements of a token's vector"),
        ("heads", "attention heads; must divide the width"),
        ("sequence", "tokens per sequence"),
        ("vocabulary", "different tokens"),
        ("batch", "sequences per rank and step"),
        ("steps", "timed steps"),
    ):
        parser.add_argument(f"--{name}", type=int, default=getattr(Job, name), help=f"{words} ({getattr(Job, name)})")
    parser.add_argument("--ranks", type=int, default=2, help="ranks to start, unless under torchrun (2)")
    parser.add_argument("--backend", choices=["gloo", "nccl"], help="default: nccl if every rank can have a GPU")
    parser.add_argument("--peak", type=float, help="TFLOP/s of a rank's device, for the MFU (known GPUs: their bf16)")
    parser.add_argument("--checkpoint", type=Path, help="folder to save the state in, and to continue from")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints (100)")
    parser.add_argument("--save", type=Path, help="JSON file for the results and the machine's description")
    options = vars(parser.parse_args())
    strategies, precisions, target = options.pop("strategy"), options.pop("precision"), options.pop("save")
    world_size, backend = int(os.environ.get("WORLD_SIZE", options.pop("ranks"))), options.pop("backend")
    options.pop("ranks", None)
    peak, folder, every = options.pop("peak"), options.pop("checkpoint"), options.pop("every")
    if peak is not None and not 0 < peak < 1e5:
        parser.error(f"--peak {peak:g}: it is in TFLOP/s, such as 989 for an H100 in bf16")
    if every < 1:
        parser.error(f"--every {every}: must be at least 1 step")
    if target and not target.parent.is_dir():  # fail now, not after hours of training
        parser.error(f"--save {target}: there is no folder {target.parent}")
    try:
        jobs = [Job(strategy, precision, **options) for strategy in strategies for precision in precisions]
    except ValueError as error:
        parser.error(str(error))
    results, first = [], os.environ.get("RANK", "0") == "0"  # under torchrun, every rank runs this line
    for job in jobs:
        results.append(run(job, world_size, backend, peak=peak and peak * 1e12, checkpoint=folder, every=every))
        if first:
            print(line(results[-1]), flush=True)
    if target and first:
        target.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
