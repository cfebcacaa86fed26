"""Trains a small language model on real text and reports the cost of a step beside what the planner predicts.

    python jobs/train.py --ranks 2 --strategy ddp fsdp                       # two ranks of this machine
    torchrun --nproc-per-node 8 jobs/train.py --strategy fsdp --precision bf16 --compile    # on a node's GPUs

The same file runs on a laptop and on a GPU cluster; for several nodes see jobs/README.md. Ranks use NCCL if each rank
of a node can have its own GPU, else gloo. torchrun sets LOCAL_RANK, the number of a process's GPU, and RANK, its number
among all; `ranks.run` uses both.

For each strategy and precision it prints and saves losses, the median step time, tokens per second, FLOP/s of a rank
and their share of the GPU's peak (MFU), peak memory, the bytes that a rank sends, and the machine. The planner's step
time and memory are computed before the first step. On CPUs it knows no peak, so the ranks first time a product and an
all-reduce; "MFU" is then the share of what that product reached.

With `--checkpoint FOLDER` it saves its state now and then, and when it is asked to end (SIGTERM), and goes on from
there when it is started again. `--losses FILE` gets a line for every step.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from collectives import ranks
from collectives.machines import Cluster, named
from collectives.measure import bandwidth
from collectives.measure.held import BytesHeld
from collectives.measure.wire import BytesSent
from collectives.topology import Link
from collectives.training import checkpoints, costs, fsdp, memory, traffic
from collectives.training.activations import keep_products
from collectives.training.corpus import BYTES, Corpus, own_text
from collectives.training.flat import Machine
from collectives.training.layout import WIRE, Layout
from collectives.training.models import RECOMPUTE, Model
from collectives.training.software import Software
from collectives.training.transformer import Block

STRATEGIES = ("ddp", "zero2", "fsdp")
PRECISIONS = ("fp32", "bf16")
UNTIMED = 3  # steps before the clock starts
HELD_OUT = 8  # sequences that judge the trained model


@dataclass(frozen=True)
class Job:
    """What to train, and how.

    `batch`: sequences per rank and step. `precision`: the dtype that layers compute in; parameters, gradients and
    optimizer state stay in fp32. `strategy`: "ddp"; "fsdp", which shards everything and gathers a layer whenever it is
    needed; "zero2", which gathers a layer for the forward pass and keeps it for the backward pass. `recompute`: what
    the backward pass of a layer computes again, "none", "selective" (all but products and attention) or "full".
    `compiled`: torch compiles every layer.
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
    recompute: str = "none"
    compiled: bool = False

    def __post_init__(self) -> None:
        for name, known in (("strategy", STRATEGIES), ("precision", PRECISIONS), ("recompute", RECOMPUTE)):
            if getattr(self, name) not in known:
                raise ValueError(f"no {name} {getattr(self, name)!r}: choose from {', '.join(known)}")
        if small := [name for name, value in asdict(self).items() if type(value) is int and value < 1]:
            raise ValueError(f"{', '.join(small)}: must be at least 1")
        if self.vocabulary < BYTES:
            raise ValueError(f"a vocabulary of {self.vocabulary}: it must be at least {BYTES}, one token for each byte")
        if self.width % self.heads:
            raise ValueError(f"a width of {self.width} does not divide into {self.heads} heads")

    @property
    def name(self) -> str:
        """Strategy and precision, which name the folder of this job's checkpoints."""
        return f"{self.strategy}-{self.precision}"

    @property
    def model(self) -> Model:
        """The model as the planner sees it."""
        return Model(self.name, self.layers, self.width, self.heads, self.vocabulary, self.sequence)

    @property
    def flops(self) -> float:
        """FLOPs of a rank in a step: those of the matrices and of attention without what its mask hides."""
        return self.model.flops(self.batch * self.sequence)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that layers compute in."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32


# --- the model and its data -----------------------------------------------------------------------------------------


class Embedding(nn.Module):
    """The embedding of tokens and their positions: [batch, tokens] -> [batch, tokens, width]."""

    def __init__(self, job: Job):
        super().__init__()
        self.tokens = nn.Embedding(job.vocabulary, job.width)
        self.positions = nn.Embedding(job.sequence, job.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))


class Layer(Block):
    """A block that recomputes in its backward pass what the job says."""

    def __init__(self, job: Job):
        super().__init__(job.width, job.heads)
        self.recompute = job.recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.recompute == "none":
            return super().forward(x)
        options: dict[str, Any] = {"use_reentrant": False}
        if self.recompute == "selective":
            options["context_fn"] = partial(create_selective_checkpoint_contexts, keep_products)
        return checkpoint(super().forward, x, **options)


def transformer(job: Job) -> nn.Sequential:
    """Return the model, with the same parameters on every rank. FSDP shards and gathers each child as a unit."""
    torch.manual_seed(0)
    layers = [Layer(job) for _ in range(job.layers)]
    head = nn.Sequential(nn.LayerNorm(job.width), nn.Linear(job.width, job.vocabulary, bias=False))
    nn.init.normal_(head[1].weight, std=0.02)
    return nn.Sequential(Embedding(job), *layers, head)


def parallel(model: nn.Sequential, job: Job) -> nn.Module:
    """Return the model on this rank's device, compiled layer by layer if the job says so, wrapped for its strategy."""
    if ranks.device().type == "cpu":  # the compiler's own processes would outlive this rank
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    for layer in model[1:-1] if job.compiled else ():
        layer.compile()  # before wrapping, so that collectives stay outside of what is compiled
    if job.strategy == "ddp":
        return nn.parallel.DistributedDataParallel(model.to(ranks.device()), gradient_as_bucket_view=True)
    options: dict[str, Any] = {"reshard_after_forward": job.strategy == "fsdp"}
    if job.precision == "bf16":
        from torch.distributed.fsdp import MixedPrecisionPolicy

        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp.shard(model, **options)


def loss_of(model: nn.Module, job: Job, sequences: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss of a rank's sequences: a scalar in fp32."""
    tokens, following = (part.to(ranks.device()) for part in sequences)
    half = job.strategy == "ddp" and job.precision == "bf16"  # FSDP casts with its own policy
    with torch.autocast(ranks.device().type, torch.bfloat16) if half else nullcontext():
        scores = model(tokens)
    return functional.cross_entropy(scores.float().flatten(0, 1), following.flatten())


# --- training -------------------------------------------------------------------------------------------------------


def train(
    rank: int,
    world_size: int,
    job: Job,
    checkpoint: Path | None = None,
    every: int = 100,
    log: Path | None = None,
    trace: Path | None = None,
) -> dict[str, Any]:
    """Train, and return what a step costs on this rank.

    Three untimed steps come first. The bytes sent are counted in the third; memory too, on CPUs. `checkpoint`: a folder
    for the state after each `every` steps, at the end, and when SIGTERM asks for the end; training continues from the
    last state there. `log`: a file that gets a line for each step as it is done. `trace`: a file for the trace of rank
    0's last step, which isn't timed then.
    """
    model = parallel(transformer(job), job)
    fused = ranks.device().type == "cuda"  # torch's default is a kernel an operation, which moves three times the bytes
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=fused)
    first, last = checkpoints.resume(checkpoint, model, optimizer), UNTIMED + job.steps
    text, asked = Corpus(own_text(), job.vocabulary), asked_to_end()

    def step(number: int) -> torch.Tensor:
        loss = loss_of(model, job, text.batch(number, rank, world_size, job.batch, job.sequence))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    counted, losses, times, saved = Counted(model, optimizer), [], [], first
    for number in range(first, last):
        if number == first + UNTIMED - 1:
            loss = counted.step(partial(step, number))
        else:
            traced = trace is not None and number == last - 1
            dist.barrier()
            begun = time.perf_counter()
            with profiled(trace if traced and rank == 0 else None):
                loss = step(number)
                bandwidth.finish()
            if number >= first + UNTIMED and not traced:
                times.append(time.perf_counter() - begun)
        mean, ending = agreed(loss, asked())
        losses.append(mean)
        if log and rank == 0:
            with log.open("a") as lines:
                lines.write(json.dumps({"step": number, "loss": mean}) + "\n")
        if checkpoint and (ending or (number + 1) % every == 0 or number + 1 == last):
            checkpoints.save(checkpoint, model, optimizer, number + 1)
            saved = number + 1
        if ending:
            break
    peak_bytes = counted.peak_bytes
    with torch.no_grad():
        held_out, _ = agreed(loss_of(model, job, text.held_out(HELD_OUT, job.sequence)), False)
    return {
        "first_step": first,
        "saved_step": saved,
        "step_seconds": statistics.median(times) if times else None,
        "seconds": times,
        "peak_bytes": peak_bytes,
        "payloads": dict(counted.sent.payloads),
        "bytes_sent": traffic.sent({name: counted.sent.payloads[name] for name in traffic.PASSES}, world_size),
        "losses": losses,
        "held_out_loss": held_out,
        "backend": dist.get_backend(),
        "machine": bandwidth.machine(),
    }


@contextmanager
def profiled(trace: Path | None) -> Iterator[None]:
    """Write a trace for chrome://tracing or Perfetto of what happens inside, unless `trace` is None."""
    if trace is None:
        yield
        return
    from torch.profiler import profile

    with profile() as recorded:
        yield
    recorded.export_chrome_trace(str(trace))


def asked_to_end() -> Callable[[], bool]:
    """Return a function that says whether SIGTERM came: a batch system sends it some time before it kills."""
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    return lambda: bool(came)


def agreed(loss: torch.Tensor, ending: bool) -> tuple[float, bool]:
    """Return the loss averaged over the ranks, and whether any of them was asked to end: all stop at the same step."""
    both = torch.stack([loss.detach().float(), torch.tensor(float(ending), device=loss.device)])
    dist.all_reduce(both)
    mean, endings = both.tolist()
    return mean / dist.get_world_size(), endings > 0


class Counted:
    """What a step holds and sends on this rank.

    A GPU's allocator keeps the peak of all steps since then, and costs nothing. On the CPU `BytesHeld` tracks tensors
    in one step, which is slow: don't time it. Both run that step uncompiled, because they look at every operation.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.on_gpu = ranks.device().type == "cuda"
        self.sent, self.held = BytesSent(), BytesHeld(fsdp.kinds(model, optimizer))

    def step(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Run a step, and return what it returns."""
        with torch.compiler.set_stance("force_eager"), self.sent, nullcontext() if self.on_gpu else self.held:
            loss = step()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        return loss

    @property
    def peak_bytes(self) -> int:
        """The most bytes of tensors in that step, or on a GPU in any later one."""
        return torch.cuda.max_memory_allocated() if self.on_gpu else sum(self.held.peak.values())


# --- what the planner says ------------------------------------------------------------------------------------------


def plan(job: Job, machine: Cluster | Machine | None, world_size: int) -> dict[str, Any]:
    """Return what the planner predicts for a rank: `seconds` of a step, None if it can't say, and `bytes` at the peak.

    On GPUs it prices bf16 alone, which its rates are of. On an H100 and an H200 torch 2.11 picked cuDNN's attention, by
    the traces in book/data/gpu.json.
    """
    stage = 0 if job.strategy == "ddp" else 3
    stack = Software(stack="compiled" if job.compiled else "eager", flash=3, fused_loss=False)
    layout = Layout(dp=world_size, stage=stage, micro_batch=job.batch, recompute=job.recompute, software=stack)
    known = machine if job.precision == "bf16" or isinstance(machine, Machine) else None
    priced = layout if job.strategy != "zero2" else Layout(**{**vars(layout), "stage": 2})
    step = costs.step(job.model, known, priced) if known else None
    return {"seconds": step.seconds if step else None, "bytes": round(peak_bytes(job, layout))}


def peak_bytes(job: Job, layout: Layout) -> float:
    """Return the planner's peak bytes of a rank: fp32 parameters, gradients and moments, and what layers keep.

    FSDP in bf16 gathers and reduces layers in bf16, which is Adam's recipe in mixed precision: also 16 bytes at rest.
    DDP's buckets hold the gradients all the time. FSDP has none while the logits are there, and no activations when it
    has all of them, so the larger of the two counts.
    """
    half = job.precision == "bf16"
    recipe = memory.MIXED_ADAM if half and layout.stage else memory.FULL_ADAM
    held = costs.memory(job.model, layout, recipe)
    logits = layout.software.logit_bytes * job.batch * job.sequence * job.vocabulary  # of which 12 of 14 bytes are fp32
    activations = held.activations if half else 2 * (held.activations - logits) + logits
    if half and job.strategy == "ddp":
        more = AUTOCAST["compiled" if job.compiled and job.recompute == "none" else job.recompute]
        activations += more * job.width * job.layers * job.batch * job.sequence
    whole = job.model.parameters * (2 if half else 4)
    autocast = whole if half and job.recompute == "none" else 0  # cast weights; recomputing layers cast them again
    copies = {"ddp": autocast, "zero2": whole, "fsdp": 0}[job.strategy]
    at_rest = held.parameters + held.gradients + held.optimizer
    gradients = at_rest / 4  # 4 of 16 bytes
    used = gradients + activations if job.strategy == "ddp" else max(gradients, activations)
    return at_rest - gradients + used + held.buffers + copies


AUTOCAST = {"none": 8, "compiled": 2, "selective": 4, "full": 2}
"""What a layer keeps more under autocast than in bf16 alone, in bytes a token and element of its width.

Residuals are added in fp32, and where nothing is recomputed or compiled, queries, keys and values each cast the norm's
result. Counted on a CPU: see tests/jobs/test_train.py.
"""


def measured_machine(rank: int, world_size: int, job: Job) -> tuple[dict[str, Any], Machine | None]:
    """Return what this machine is; on CPUs also in numbers, each a median while all ranks work at once.

    These are the rates of a product, an MLP's first with a rank's tokens, and of GELU on its result, which moves bytes,
    both in the job's precision; and the waits and the rate of an all-reduce.
    """
    facts = bandwidth.machine()
    if ranks.device().type == "cuda":
        return facts, None
    left = torch.randn(job.batch * job.sequence, job.width, dtype=job.dtype)
    right = torch.randn(job.width, 4 * job.width, dtype=job.dtype)
    wide, small, large = left @ right, torch.zeros(1), torch.zeros(2**18)
    calls = (
        lambda: left @ right,
        lambda: functional.gelu(wide),
        lambda: dist.all_reduce(small),
        lambda: dist.all_reduce(large),
    )
    taken = torch.tensor([median_of(call) for call in calls], dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    product, moving, waits, sending = taken.tolist()
    steps = max(2 * (world_size - 1), 1)  # of a ring
    link = Link(waits / steps, max(sending - waits, 1e-9) / (steps / world_size * large.nbytes))
    rate = 2 * wide.numel() * job.width / product
    numbers = 2 * wide.numel() / moving  # read and written per second
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / world_size
    return facts, Machine("this machine", 1, world_size, memory_bytes, rate, 1.0, link, link, WIRE * numbers)


def median_of(call: Callable[[], Any], times: int = 15) -> float:
    """Return the median seconds of a call, after one that isn't timed."""
    call()
    taken = []
    for _ in range(times):
        dist.barrier()
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def cluster(facts: dict[str, Any], world_size: int) -> Cluster | None:
    """Return the planner's cluster of this machine's GPUs, or None if it doesn't know them.

    Several nodes count as joined by a 400 Gb/s card for each GPU.
    """
    has = facts.get("gpus", [])
    gpu = named(has[0], facts.get("gpu_bytes", 0)) if has else None
    if gpu is None:
        return None
    in_node = min(len(has), world_size)
    return Cluster(gpu.name, nodes=-(-world_size // in_node), gpus_per_node=in_node, nics_per_node=in_node)


# --- the command ----------------------------------------------------------------------------------------------------


def run(
    job: Job,
    world_size: int,
    backend: str | None = None,
    timeout: float = 3600.0,
    peak: float | None = None,
    checkpoint: Path | None = None,
    every: int = 100,
    log: Path | None = None,
    trace: Path | None = None,
) -> dict[str, Any]:
    """Train on ranks of this machine, or under torchrun on the existing ones, and return the job with its results.

    The step time is that of the slowest rank, the peak memory that of the fullest. `predicted` is what the planner said
    before the first step. `peak`: FLOP/s that a rank's device can do at best, by default the rating of a known GPU, or
    what a product reached on a CPU. The other arguments are those of `train`.
    """
    ranks.preload(*fsdp.IMPORTS)
    backend = backend or ranks.fastest_backend(world_size)
    facts, numbers = ranks.run(measured_machine, world_size, job, timeout=timeout, backend=backend)[0]
    machine = numbers or cluster(facts, world_size)
    predicted = plan(job, machine, world_size) | {"date": now()}
    if peak is None and machine is not None and (numbers or job.precision == "bf16"):
        peak = machine.peak  # GPUs are rated in bf16
    folder = checkpoint.absolute() / job.name if checkpoint else None
    files = [file and file.absolute() for file in (log, trace)]
    by_rank = ranks.run(train, world_size, job, folder, every, *files, timeout=timeout, backend=backend)
    first, seconds = by_rank[0], [result["step_seconds"] for result in by_rank]
    slowest = None if None in seconds else max(seconds)
    flops_per_second = slowest and job.flops / slowest
    return asdict(job) | {
        "world_size": world_size,
        "backend": first["backend"],
        "parameters": sum(tensor.numel() for tensor in transformer(job).parameters()),
        "step_seconds": slowest,
        "seconds": [max(each) for each in zip(*(result["seconds"] for result in by_rank), strict=True)],
        "tokens_per_second": slowest and world_size * job.batch * job.sequence / slowest,
        "flops_per_second": flops_per_second,
        "peak": peak,
        "mfu": flops_per_second and peak and flops_per_second / peak,
        "peak_bytes": max(result["peak_bytes"] for result in by_rank),
        "predicted": predicted,
        "first_step": first["first_step"],
        "saved_step": first["saved_step"],
        "bytes_sent": first["bytes_sent"],
        "payloads": first["payloads"],
        "losses": first["losses"],
        "held_out_loss": first["held_out_loss"],
        "machine": first["machine"],
        "date": now(),
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def line(result: dict[str, Any]) -> str:
    """Format a result in two lines: what it cost, and what the planner had said. MB are 1e6 bytes."""
    who = f"{result['strategy']:<6} {result['precision']}  {result['world_size']} ranks over {result['backend']}: "
    losses = f"held-out loss {result['held_out_loss']:.3f}"
    if result["losses"]:
        losses = f"loss {result['losses'][0]:.3f} -> {result['losses'][-1]:.3f}, {losses}"
    if result["step_seconds"] is None:
        return f"{who}{len(result['losses'])} steps, too few to time after step {result['first_step']}; {losses}"
    predicted = result["predicted"]
    return (
        f"{who}{costing(result, result['step_seconds'], result['peak_bytes'])}, "
        f"sends {result['bytes_sent'] / 1e6:.1f} MB a step, {losses}\n"
        f"{'':{len(who) - 11}}predicted: {costing(result, predicted['seconds'], predicted['bytes'])}"
    )


def costing(result: dict[str, Any], seconds: float | None, num_bytes: float) -> str:
    """Format what a step takes: milliseconds, tokens/s of all ranks, TFLOP/s and MFU of one, peak memory."""
    peak = f"peak {num_bytes / 1e6:8.1f} MB"
    if seconds is None:
        return f"no step time, because the planner prices bf16 on GPUs that it knows, {peak}"
    tokens = result["tokens_per_second"] * result["step_seconds"]
    rate = result["flops_per_second"] * result["step_seconds"] / seconds
    mfu = "MFU unknown" if result["peak"] is None else f"MFU {rate / result['peak']:.1%}"
    return (
        f"{seconds * 1e3:8.1f} ms a step, {tokens / seconds:9,.0f} tokens/s, "
        f"{rate / 1e12:.3g} TFLOP/s a rank, {mfu}, {peak}"
    )


def parser() -> argparse.ArgumentParser:
    """Return the command's options."""
    found = argparse.ArgumentParser(description="Train a small language model and report the cost of a step.")
    found.add_argument("--strategy", nargs="+", choices=STRATEGIES, default=["ddp"], help="one or several (ddp)")
    found.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["fp32"], help="one or both (fp32)")
    for name, words in (
        ("layers", "blocks of the transformer"),
        ("width", "elements of a token's vector"),
        ("heads", "attention heads; must divide the width"),
        ("sequence", "tokens per sequence"),
        ("vocabulary", "different tokens, at least 256"),
        ("batch", "sequences per rank and step"),
        ("steps", "timed steps"),
    ):
        found.add_argument(f"--{name}", type=int, default=getattr(Job, name), help=f"{words} ({getattr(Job, name)})")
    found.add_argument("--recompute", choices=RECOMPUTE, default="none", help="what backward computes again (none)")
    found.add_argument("--compile", action="store_true", dest="compiled", help="compile every layer")
    found.add_argument("--ranks", type=int, default=2, help="ranks to start, unless under torchrun (2)")
    found.add_argument("--backend", choices=["gloo", "nccl"], help="default: nccl if every rank can have a GPU")
    found.add_argument("--peak", type=float, help="TFLOP/s of a rank's device, for the MFU (known GPUs: their bf16)")
    found.add_argument("--checkpoint", type=Path, help="folder to save the state in, and to continue from")
    found.add_argument("--every", type=int, default=100, help="steps between checkpoints (100)")
    found.add_argument(
        "--losses", dest="log", type=Path, help="file that gets the loss of every step, a line of JSON each"
    )
    found.add_argument("--trace", type=Path, help="file for a trace of rank 0's last step, for Perfetto")
    found.add_argument("--save", type=Path, help="JSON file for the results and the machine's description")
    return found


def main() -> None:
    options = parser()
    chosen = vars(options.parse_args())
    strategies, precisions, target = chosen.pop("strategy"), chosen.pop("precision"), chosen.pop("save")
    world_size, backend = int(os.environ.get("WORLD_SIZE", chosen.pop("ranks"))), chosen.pop("backend")
    chosen.pop("ranks", None)
    peak, how = chosen.pop("peak"), {name: chosen.pop(name) for name in ("checkpoint", "every", "log", "trace")}
    if peak is not None and not 0 < peak < 1e5:
        options.error(f"--peak {peak:g}: it is in TFLOP/s, such as 989 for an H100 in bf16")
    if how["every"] < 1:
        options.error(f"--every {how['every']}: must be at least 1 step")
    for name, file in (("save", target), ("losses", how["log"]), ("trace", how["trace"])):
        if file and not file.parent.is_dir():  # fail now, not after hours of training
            options.error(f"--{name} {file}: there is no folder {file.parent}")
    try:
        jobs = [Job(strategy, precision, **chosen) for strategy in strategies for precision in precisions]
    except ValueError as error:
        options.error(str(error))
    results, first = [], os.environ.get("RANK", "0") == "0"  # under torchrun, every rank runs this line
    for job in jobs:
        results.append(run(job, world_size, backend, peak=peak and peak * 1e12, **how))
        if first:
            print(line(results[-1]), flush=True)
    if target and first:
        target.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
