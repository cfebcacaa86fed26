"""Measures what a machine with one or more GPUs can tell, beside what was predicted, into book/data/gpu_here.json.

    make gpu                                   # everything that fits into ten minutes
    make gpu PARTS="products attention"        # some of it; later commands add to the file
    python3 tools/gpu.py --save OUT            # on a bare machine with torch 2.6 or later, numpy and cloudpickle
    python3 tools/gpu.py --merge OUT           # takes in what another machine has saved

Chapter 18 shows the file, once the book is built again. What the chapter itself tells was measured before and is in
book/data/gpu.json; to keep more there: --merge OUT --save book/data/gpu.json.

Every part predicts all its cases before it measures the first (`registered`), and says what it skips and why. Nothing
is downloaded. The parts, in this order:

    products    matrix products by shape, of Llama-3 8B and 70B's layers and beyond: the planner's table
    attention   causal attention by length, kernel and pass
    moves       copies, sums, norms and Adam in the GPU's memory, and between host and GPU
    training    one model by jobs/train.py: eager, compiled, recomputing, sharded; step time, MFU and peak memory
    trace       a step by its CUDA streams, and products beside a copy
    ranks       schedules of the chapters over NCCL: right or not, and how long. Two GPUs, or NCCL 2.30,
                which lets two ranks share one (NCCL_MULTI_RANK_GPU_ENABLE)
    lessons     what chapters 7 to 19 do on ranks, over NCCL: as on one rank, or how far off. GPUs as for ranks
    bandwidth   NCCL's collectives by size, and the way between the ranks that its log tells. Two GPUs

Exit status: 0 if everything asked for was measured or skipped for a reason, 1 if a part failed, 3 without a GPU.
`collectives.measure.gpus` documents the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a bare machine hasn't installed the course
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # so that looking for GPUs doesn't spoil forked ranks

import gpu_lessons  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from collectives import execute, network, price, ranks, simulate  # noqa: E402
from collectives.algorithms import chain, doubling, pairwise, ring, tree  # noqa: E402
from collectives.machines import RATINGS, Cluster, Gpu, named  # noqa: E402
from collectives.measure import bandwidth, device, gpus, nccl_log, registered  # noqa: E402
from collectives.schedule import Schedule  # noqa: E402
from collectives.training import fsdp  # noqa: E402
from collectives.training.kernels import Fitted  # noqa: E402
from collectives.training.registry import MODELS  # noqa: E402
from collectives.training.software import Software  # noqa: E402

TARGET = ROOT / "book" / "data" / "gpu_here.json"
TRAIN = ROOT / "jobs" / "train.py"
NO_GPU = 3  # exit status
MINUTES = 9.0  # a lent machine runs a command for ten
SECONDS = {
    "products": 10,
    "attention": 20,
    "moves": 30,
    "training": 60,  # of one setting: the others follow while there is time
    "trace": 60,
    "ranks": 60,
    "lessons": 90,
    "bandwidth": 120,
}
"""What a part needs at most; it isn't begun with less time left. The first five as one H200 and one H100 took, rounded
up: 70 s without training, and 45 s for each of its settings. The others are guesses."""

TOKENS = 8192  # of a micro-batch: a sequence of Llama 3's
MIB = 2**20
SHARES_A_GPU = (2, 30)  # the version of NCCL from which two ranks may share a GPU, if an environment variable says so

Case = registered.Case


class Skipped(Exception):
    """A part can't be measured here; the words say why."""


@dataclass(frozen=True)
class Here:
    """The machine. `known`: its GPU, which predictions are made for. `small`: cases that a CPU can stand in for."""

    device: torch.device
    gpu: str
    count: int
    known: Gpu
    nccl: tuple[int, ...] = ()
    small: bool = False
    deadline: float = field(default_factory=lambda: time.monotonic() + 60 * MINUTES)

    @property
    def planner(self) -> Fitted:
        """What prices kernels."""
        return Fitted(self.known)

    @property
    def cluster(self) -> Cluster:
        """The planner's cluster of this machine's GPUs."""
        return Cluster(self.known.name, 1, self.count, nics_per_node=self.count)

    @property
    def backend(self) -> str:
        """What carries messages between ranks: NCCL, or gloo where a CPU stands in."""
        return "gloo" if self.small else "nccl"

    @property
    def left(self) -> float:
        """Seconds until the command should end."""
        return self.deadline - time.monotonic()


def look() -> Here | None:
    """Return this machine, or None without a GPU. Raises `SystemExit` for a GPU that the planner doesn't know."""
    if not torch.cuda.is_available():
        return None
    facts = bandwidth.machine()
    known = named(facts["gpus"][0], facts["gpu_bytes"])
    if known is None:
        raise SystemExit(f"{facts['gpus'][0]} has no row in collectives.machines.GPUS: add one, from its data sheet")
    return Here(torch.device("cuda", 0), facts["gpus"][0], len(facts["gpus"]), known, tuple(torch.cuda.nccl.version()))


# --- one GPU --------------------------------------------------------------------------------------------------------


def product_shapes(small: bool) -> list[tuple[str, int, int, int]]:
    """Return (name, m, k, n) of products: layers of two models, one of them by tokens, and squares."""
    if small:
        return [("square", 64, 64, 64), ("square", 128, 128, 128)]
    found = []
    for name, tp in (("llama-3-8b", 1), ("llama-3-70b", 8)):
        model = MODELS[name]
        heads, kv, mlp = model.heads * model.width // tp, model.kv_width // tp, model.mlp_width // tp
        found += [
            (f"{name} tp {tp}, qkv", TOKENS, model.hidden, heads + kv),
            (f"{name} tp {tp}, out", TOKENS, heads, model.hidden),
            (f"{name} tp {tp}, up and gate", TOKENS, model.hidden, 2 * mlp),
            (f"{name} tp {tp}, down", TOKENS, mlp, model.hidden),
            (f"{name} tp {tp}, logits", TOKENS, model.hidden, model.vocabulary // tp),
        ]
    wide = MODELS["llama-3-8b"]
    found += [
        ("llama-3-8b up and gate, by tokens", tokens, wide.hidden, 2 * wide.mlp_width)
        for tokens in (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
    ]
    return found + [("square", size, size, size) for size in (512, 1024, 2048, 4096, 8192, 16384)]


def products(here: Here) -> registered.Record:
    """Time matrix products by shape, in bf16, and in fp8 where the GPU has it."""
    dtypes = ["bf16"] if here.small or here.known.generation == "Ampere" else ["bf16", "fp8"]
    cases = [
        {"name": name, "m": m, "k": k, "n": n, "dtype": dtype, "flops": 2.0 * m * k * n}
        for dtype in dtypes
        for name, m, k, n in product_shapes(here.small)
        if dtype == "bf16" or m >= 128  # fp8's tiles want 16 rows, and small products are bound by memory
    ]
    models = {
        "planner": lambda case: (
            here.planner.product(case["m"], case["k"], case["n"], Software(precision=case["dtype"])).forward
        ),
        "rated peak": lambda case: case["flops"] / here.known.peak / (2 if case["dtype"] == "fp8" else 1),
    }

    def measure(cases: Sequence[Case]) -> list[list[float]]:
        return [
            device.seconds_of(device.product(case["m"], case["k"], case["n"], case["dtype"], here.device), here.device)
            for case in cases
        ]

    return registered.register("matrix products", cases, models).against(measure)


def attention(here: Here) -> registered.Record:
    """Time causal attention: as many tokens in short sequences as in long ones, by kernel and pass."""
    tokens, heads, size = (128, 2, 16) if here.small else (16384, 32, 128)
    lengths = (64, 128) if here.small else (512, 1024, 2048, 4096, 8192, 16384)
    kernels = ["flash"] if here.small or here.known.generation == "Ampere" else ["flash", "cudnn"]
    cases = []
    for kernel in kernels:
        for passes in ("forward", "both"):
            for length in lengths:
                shape = {"batch": tokens // length, "heads": heads, "sequence": length, "head_size": size}
                flops = device.attention_flops(*shape.values(), passes)
                name = {"name": f"{length} tokens, {kernel}, {passes}"}
                cases.append(name | shape | {"kernel": kernel, "passes": passes, "flops": flops})
    generation = {"flash": 2, "cudnn": 3}
    models = {
        "planner": lambda case: (
            case["flops"] / here.planner.attention_rate(generation[case["kernel"]], case["head_size"])
        ),
        "rated peak": lambda case: case["flops"] / here.known.peak,
    }

    def measure(cases: Sequence[Case]) -> list[list[float]]:
        names = ("batch", "heads", "sequence", "head_size", "kernel", "passes")
        return [
            device.seconds_of(device.attention(*(case[name] for name in names), here.device), here.device)
            for case in cases
        ]

    return registered.register("causal attention", cases, models).against(measure)


def moves(here: Here) -> registered.Record:
    """Time what moves bytes: in the GPU's memory, and between host and GPU."""
    sizes = (MIB,) if here.small else (16 * MIB, 256 * MIB, 4096 * MIB)
    across = (MIB,) if here.small else (MIB, 1024 * MIB)
    cases = [
        {"name": name, "num_bytes": num_bytes}
        for name in device.MOVES
        for num_bytes in (across if "host" in name else sizes)
    ]
    bus = RATINGS["PCIe 4.0 x16" if here.known.generation == "Ampere" else "PCIe 5.0 x16"].rate

    def planner(case: Case) -> float:
        return case["num_bytes"] / bus if "host" in case["name"] else here.planner.moving(case["num_bytes"])

    def measure(cases: Sequence[Case]) -> list[list[float]]:
        return [
            device.seconds_of(device.move(case["name"], case["num_bytes"], here.device), here.device) for case in cases
        ]

    return registered.register("moving bytes", cases, {"planner": planner}).against(measure)


# --- training -------------------------------------------------------------------------------------------------------

MODEL = {"layers": 16, "width": 2048, "heads": 16, "sequence": 2048, "vocabulary": 32768, "precision": "bf16"}
TINY = {"layers": 1, "width": 32, "heads": 2, "sequence": 16, "vocabulary": 256, "precision": "bf16"}


def settings(here: Here) -> list[dict[str, Any]]:
    """Return what is trained: one model of 0.9 billion parameters, in ways that differ from the first in one thing."""
    if here.small:
        return [TINY | {"name": "eager", "batch": 1, "steps": 2}]
    base = MODEL | {"batch": 8, "steps": 10, "compiled": True}
    ways: dict[str, dict[str, Any]] = {
        "compiled": {},
        "eager": {"compiled": False},
        "recomputing all but products": {"recompute": "selective"},
        "recomputing layers": {"recompute": "full"},
        "one sequence": {"batch": 1},
        "sixteen sequences, recomputing layers": {"batch": 16, "recompute": "full"},
        "fully sharded": {"strategy": "fsdp"},
    }
    if here.count > 1:
        ways |= {"sharded, gathered once": {"strategy": "zero2"}}
        ways |= {"fully sharded, one sequence": {"strategy": "fsdp", "batch": 1}}
    return [base | way | {"name": name} for name, way in ways.items()]


def training(here: Here) -> registered.Record:
    """Train one model at several settings by jobs/train.py, each beside the planner's seconds and bytes."""
    program = runpy.run_path(str(TRAIN))
    cases = []
    for setting in settings(here):
        name = setting.pop("name")
        job = program["Job"](**setting)
        predicted = program["plan"](job, here.cluster, here.count)
        case = {"name": name} | vars(job) | {"world_size": here.count, "flops": job.flops, "peak": here.known.peak}
        case |= {"tokens": here.count * job.batch * job.sequence, "predicted_bytes": predicted["bytes"]}
        cases.append((case, predicted["seconds"]))
    by_name = {case["name"]: seconds for case, seconds in cases}
    prediction = registered.register(
        "training steps", [case for case, _ in cases], {"planner": lambda case: by_name[case["name"]]}
    )

    def measure(cases: Sequence[Case]) -> list[registered.Measured | registered.Unmeasured]:
        return [setting_measured(here, case) for case in cases]

    return prediction.against(measure)


def setting_measured(here: Here, case: Case) -> registered.Measured | registered.Unmeasured:
    """Train one setting. What one doesn't get done in its time, or fails at, costs only that one."""
    if here.left < SECONDS["training"] and not here.small:
        return registered.Unmeasured("no time was left")
    try:
        result = trained(here, case)
    except subprocess.TimeoutExpired:
        return registered.Unmeasured("it took longer than the time that was left")
    except RuntimeError as error:  # such as a GPU with too little memory
        return registered.Unmeasured(f"failed: {error}"[:1000])
    besides = {"peak_bytes": result["peak_bytes"], "losses": [result["losses"][0], result["losses"][-1]]}
    return registered.Measured(result["seconds"], besides)


def trained(here: Here, case: Case, *options: str) -> dict[str, Any]:
    """Run jobs/train.py under torchrun with the settings of a case, on all GPUs; return what it saved."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.json"
        words = [f"--{name}={case[name]}" for name in (*MODEL, "strategy", "batch", "steps", "recompute")]
        words += ["--compile"] * case["compiled"]
        ran = on_torchrun(here, [str(TRAIN), *words, *options, f"--save={saved}"])
        if ran.returncode:
            raise RuntimeError(f"jobs/train.py failed with {case['name']}: {ran.stderr[-2000:]}")
        return json.loads(saved.read_text())[0]


def on_torchrun(here: Here, program: Sequence[str], **environment: str) -> subprocess.CompletedProcess:
    """Run a program on a rank for each GPU; end it when the command's time is over."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={here.count}"]
    return subprocess.run(
        [*command, *program],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=max(here.left, 1),
    )


def trace(here: Here) -> list[dict[str, Any]]:
    """Return traces by CUDA stream: a fully sharded step, and products beside a copy to the host with their seconds."""
    case = {"strategy": "fsdp", "recompute": "none", "compiled": False} | settings(here)[0]  # compiled on a GPU
    case |= {"strategy": "fsdp", "steps": 2, "layers": min(case["layers"], 3)}  # few enough kernels to look at
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "trace.json"
        trained(here, case, f"--trace={written}")
        step = device.spans(json.loads(written.read_text()))
        seconds, both = device.together(here.device, *((64, 2) if here.small else ()))
        beside = device.spans(profiled(both, Path(folder) / "beside.json"))
    return [
        {"name": "a step, fully sharded", "measured": now(), "spans": step},
        {"name": "products beside a copy to the host", "measured": now(), "seconds": seconds, "spans": beside},
    ]


def profiled(call: Callable[[], None], path: Path) -> dict[str, Any]:
    """Return the trace of a call."""
    with torch.profiler.profile() as recorded:
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    recorded.export_chrome_trace(str(path))
    return json.loads(path.read_text())


# --- several ranks --------------------------------------------------------------------------------------------------

SCHEDULES = {
    "02, the tree": tree.broadcast,
    "02, the chain": chain.broadcast,
    "03, the ring": ring.all_reduce,
    "04, ring reduce-scatter": ring.reduce_scatter,
    "04, ring all-gather": ring.all_gather,
    "04, recursive doubling": doubling.all_reduce,
    "04, pairwise": pairwise.all_reduce,
    "06, all-to-all": pairwise.all_to_all,
}
"""The chapters' schedules that run message by message over NCCL."""


def possible(here: Here, part: str) -> None:
    """Raise `Skipped` for a part that needs more GPUs than are here."""
    if here.count > 1 or here.small:
        return
    if part == "bandwidth":
        raise Skipped("one GPU: a sweep needs two")
    if part in ("ranks", "lessons") and here.nccl < SHARES_A_GPU:
        raise Skipped(f"one GPU, and NCCL {'.'.join(map(str, here.nccl))} lets no two ranks share it; 2.30 does")


def worlds_on(here: Here) -> list[int]:
    """Return how many ranks can meet over NCCL here. With one GPU it is two, which share it: see `possible`."""
    if here.count > 1 or here.small:
        return [size for size in (2, 4, 8) if size <= here.count]
    os.environ |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "LOCAL_RANK": "0"}  # every rank takes the first GPU
    return [2]


def schedules(here: Here) -> registered.Record:
    """Run the chapters' schedules over NCCL: whether ranks get what `simulate` says, and how long it takes."""
    worlds = worlds_on(here)
    sizes = (64,) if here.small else (16 * 2**10, MIB, 64 * MIB)
    cases = [
        {"chapter": name[:2], "name": name[4:], "world_size": world, "num_bytes": num_bytes}
        for world in worlds
        for num_bytes in sizes
        for name in SCHEDULES
    ]
    by_name = {name[4:]: algorithm for name, algorithm in SCHEDULES.items()}

    def priced(case: Case) -> float:
        links = Cluster(here.known.name, 1, case["world_size"], nics_per_node=case["world_size"]).topology()
        return price(by_name[case["name"]](case["world_size"]), case["num_bytes"], links, itemsize=4).seconds

    def measure(cases: Sequence[Case]) -> list[registered.Measured]:
        found = []
        for world, same in groupby(cases, key=itemgetter("world_size")):
            work = [(by_name[case["name"]](world), case["num_bytes"]) for case in same]
            by_rank = ranks.run(on_a_rank, world, work, timeout=max(here.left, 1), backend=here.backend)
            for answers in zip(*by_rank, strict=True):
                seconds = [max(times) for times in zip(*(times for _, times in answers), strict=True)]
                found.append(registered.Measured(seconds, {"right": all(right for right, _ in answers)}))
        return found

    known = {"gpus": here.count, "links": "rated, with NCCL's latencies"}
    return registered.register("schedules over NCCL", cases, {"alpha-beta": priced}, known).against(measure)


def on_a_rank(rank: int, world_size: int, work: Sequence[tuple[Schedule, int]]) -> list[tuple[bool, list[float]]]:
    """Run schedules on buffers of so many bytes; return whether this rank got what `simulate` says, and five times."""
    return [one_schedule(rank, world_size, schedule, num_bytes // 4) for schedule, num_bytes in work]


def one_schedule(rank: int, world_size: int, schedule: Schedule, count: int) -> tuple[bool, list[float]]:
    """Return whether this rank ends with the right numbers, and the seconds of five runs. `count`: fp32 elements."""
    import torch.distributed as dist

    before = np.arange(world_size * count, dtype=np.float32).reshape(world_size, count) % 1024  # sums are exact
    expected = torch.from_numpy(simulate(schedule, before)[rank])
    buffer, times = torch.from_numpy(before[rank]).to(ranks.device()), []
    execute(schedule, buffer)
    right = torch.equal(buffer.cpu(), expected)
    for _ in range(5):
        buffer.zero_()
        bandwidth.finish()
        dist.barrier()
        begun = time.perf_counter()
        execute(schedule, buffer)
        bandwidth.finish()
        times.append(time.perf_counter() - begun)
    return right, times


def lessons(here: Here) -> list[dict[str, Any]]:
    """Run what the chapters do on as many ranks as there are GPUs; return how far each is off one rank's."""
    ranks.preload(*fsdp.IMPORTS)
    world, found = worlds_on(here)[-1], []
    for name, lesson in gpu_lessons.LESSONS.items():
        row = {"chapter": name[:2], "name": name[4:], "world_size": world}
        try:
            off = max(ranks.run(lesson, world, timeout=min(60, max(here.left, 1)), backend=here.backend))
            found.append(row | {"difference": off, "right": off < gpu_lessons.ROUNDING})
        except ranks.RanksError as error:  # the next lesson has ranks of its own
            found.append(row | {"right": False, "error": str(error)[-600:]})
        print(f"  {name}: {found[-1].get('error') or format(off, '.1e')}", flush=True)
    return found


def sweep(here: Here) -> tuple[registered.Record, str]:
    """Time NCCL's collectives by size on all GPUs; return the record, and what NCCL's log says about its paths."""
    largest = "4K" if here.small else "1G"
    num_bytes = bandwidth.sizes(2**10, bandwidth.size(largest), 4)
    cases = []
    for name in network.COLLECTIVES:  # those that the model prices: no broadcast
        for size in num_bytes:
            way = network.choose(name, size, here.cluster, from_torch=True)
            words = f"{way.algorithm} {way.protocol}"
            cases.append({"collective": name, "world_size": here.count, "num_bytes": size, "way": words})

    def model(case: Case) -> float:
        return network.choose(case["collective"], case["num_bytes"], here.cluster, from_torch=True).seconds

    paths = ""

    def measure(cases: Sequence[Case]) -> list[registered.Measured]:
        nonlocal paths
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "sweep.json"
            debug = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING"}
            program = ["-m", "collectives.measure.bandwidth", "--to", largest, "--factor", "4", "--save", str(saved)]
            program += ["--collective", *network.COLLECTIVES]
            ran = on_torchrun(here, program, NCCL_DEBUG_FILE=f"{folder}/nccl.%p", **debug)
            if ran.returncode:
                raise RuntimeError(f"collectives.measure.bandwidth failed: {ran.stderr[-2000:]}")
            rows = {(result.collective, row.num_bytes): row for result in bandwidth.load(saved) for row in result.rows}
            logs = "\n".join(path.read_text() for path in sorted(Path(folder).glob("nccl.*")))
        paths = nccl_log.summary(nccl_log.parse(logs)) if logs else ""
        found = [rows[case["collective"], case["num_bytes"]] for case in cases]
        return [registered.Measured([row.seconds], {"right": not row.wrong}) for row in found]

    record = registered.register("NCCL's collectives", cases, {"network": model}).against(measure)
    return record, paths


# --- the command ----------------------------------------------------------------------------------------------------


def measured(here: Here, parts: Sequence[str]) -> tuple[gpus.Machine, list[str]]:
    """Measure parts; return what they gave, and the names of those that failed."""
    records: dict[str, registered.Record] = {}
    skipped: dict[str, str] = {}
    lists: dict[str, list[dict[str, Any]]] = {"trace": [], "lessons": []}
    paths, failed = "", []
    makers: dict[str, Callable[[], Any]] = {
        "products": partial(products, here),
        "attention": partial(attention, here),
        "moves": partial(moves, here),
        "training": partial(training, here),
        "trace": partial(trace, here),
        "ranks": partial(schedules, here),
        "lessons": partial(lessons, here),
        "bandwidth": partial(sweep, here),
    }
    for part in parts:
        print(f"{part} ...", flush=True)
        try:
            possible(here, part)
            if here.left < SECONDS[part] and not here.small:
                raise Skipped(f'no time was left; run: make gpu PARTS="{part}"')
            found = makers[part]()
            if part in lists:
                lists[part] = found
            else:
                records[part], paths = found if part == "bandwidth" else (found, paths)
                print(gpus.table(part, records[part]), flush=True)
            left = records[part].header.get("unmeasured", ()) if part in records else ()
            if any(cell["why"].startswith("failed") for cell in left):
                failed.append(part)
            if not all(cell.get("right", True) for cell in lists.get(part) or records[part].cells):
                failed.append(part)
                print(f"{part}: some results are wrong", flush=True)
        except Skipped as why:
            skipped[part] = str(why)
        except Exception as error:  # one part's failure must not lose what the others have measured
            failed.append(part)
            skipped[part] = f"failed: {type(error).__name__}: {error}"[:1000]
        if part in skipped:
            print(f"skipped {part}: {skipped[part]}", flush=True)
    known = (here.known.name, code(), skipped, paths, records, lists["trace"], lists["lessons"])
    return gpus.Machine(here.gpu, here.count, facts(), *known), failed


def facts() -> dict[str, Any]:
    """Return what the figures depend on: `bandwidth.machine`, and what nvidia-smi says, where it is there."""
    found = bandwidth.machine() | {"cuda": torch.version.cuda or ""}
    if smi := shutil.which("nvidia-smi"):
        asked = {"driver": "driver_version", "watts": "power.limit", "clock_mhz": "clocks.max.sm"}
        command = [smi, "--id=0", f"--query-gpu={','.join(asked.values())}", "--format=csv,noheader,nounits"]
        answers = subprocess.run(command, capture_output=True, text=True).stdout.strip().split(", ")
        found |= dict(zip(asked, answers, strict=False))
        table = subprocess.run([smi, "topo", "-m"], capture_output=True, text=True).stdout
        found["topology"] = re.sub(r"\x1b\[\d*m", "", table).partition("\n\nLegend")[0]  # without colours
    return found


def code() -> str:
    """Return a digest of the library's source: a copy of the course on another machine may have no commit."""
    sources = sorted((ROOT / "collectives").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def main(arguments: Sequence[str] | None = None, look: Callable[[], Here | None] = look) -> int:
    """Measure, save and print; return the exit status. `look`: finds the machine."""
    parser = argparse.ArgumentParser(description="Measure what this machine's GPUs can tell.")
    parser.add_argument("parts", nargs="*", help=f"some of: {', '.join(gpus.PARTS)} (default: all)")
    parser.add_argument("--save", type=Path, default=TARGET, help="file to add the measurements to")
    parser.add_argument("--merge", type=Path, help="measure nothing: take in this file from another machine")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"when to stop beginning parts ({MINUTES:g})")
    options = parser.parse_args(arguments)
    parts = options.parts or gpus.PARTS
    if unknown := [part for part in parts if part not in gpus.PARTS]:
        parser.error(f"no part {', '.join(unknown)}: choose from {', '.join(gpus.PARTS)}")
    if options.merge:
        for machine in gpus.load(options.merge):
            gpus.add(machine, options.save)
            print(f"took in {machine.title}")
        return 0
    here = look()
    if here is None:
        print(gpus.BLOCKED)
        return NO_GPU
    here = Here(**{**vars(here), "deadline": time.monotonic() + 60 * options.minutes})
    machine, failed = measured(here, parts)
    gpus.add(machine, options.save)
    print(
        f"{machine.title}: {', '.join([*machine.records, *['trace'] * bool(machine.traces)])}; in {options.save.name}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    import gpu  # ranks must find these functions under this name, not in "__main__"

    sys.exit(gpu.main())
