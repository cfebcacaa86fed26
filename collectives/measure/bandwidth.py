"""A benchmark in the shape of NVIDIA's nccl-tests, over any backend: gloo on a laptop, NCCL on GPUs, by the same code.

    torchrun --nproc-per-node 2 -m collectives.measure.bandwidth --to 1M   # every collective, on ranks that exist
    python -m collectives.measure.bandwidth --ranks 4 --collective all_reduce   # on this machine

    results = [run("all_reduce", world_size=2, num_bytes=sizes(2**10, 2**20))]  # from a notebook
    print(table(results[0]))
    save(results, "mine.json")                                                  # with the machine that they came from

Columns, sizes and bus bandwidth are those of nccl-tests (NVIDIA/nccl-tests, doc/PERFORMANCE.md), whose printed tables
`parse` reads. One thing differs: a time here is that of the slowest rank, since a collective is over when its last
rank is through; nccl-tests takes the mean over the ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import ranks
from ..price import algbw, busbw
from . import benchmark

if TYPE_CHECKING:
    import torch

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")  # of gloo and NCCL both
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
REDUCING = ("all_reduce", "reduce_scatter")
FORMAT = "collectives.bandwidth, version 1"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


class Timing(NamedTuple):
    """A line of the table. `num_bytes`: S, the full buffer: what an all-gather gives, what a reduce-scatter takes.

    `count`: elements that a rank passes to the call, S over the itemsize, and over P as well where ranks hold parts.
    `algbw`, `busbw`: bytes a second. `wrong`: how many elements of all ranks' results were not what they should be, or
    None if that was not checked.
    """

    num_bytes: int
    count: int
    seconds: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True)
class Result:
    """One collective at many sizes, and what the times depend on.

    `backend`: "gloo" or "nccl". `machine`: see `machine`; of a published table, what it says. `source`: where it was
    published, for one that is not ours.
    """

    collective: str
    world_size: int
    backend: str
    dtype: str
    rows: tuple[Timing, ...]
    machine: Mapping[str, Any] = field(default_factory=dict)
    date: str = ""
    source: str = ""

    @property
    def average(self) -> float:
        """The mean bus bandwidth over all sizes, bytes a second: the one number that nccl-tests ends with.

        It depends on which sizes were run, small ones pulling it down: compare only tables of the same sizes.
        """
        return statistics.mean(row.busbw for row in self.rows)


def sizes(start: int, stop: int, factor: float = 2) -> list[int]:
    """`start` bytes, and `factor` times as many again and again, as far as `stop`."""
    if not 0 < start <= stop or factor <= 1:
        raise ValueError(f"sizes go from {start} up to {stop} bytes, each {factor} times the one before: nothing fits")
    found = [start]
    while found[-1] * factor <= stop:
        found.append(int(found[-1] * factor))
    return found


def run(
    collective: str,
    world_size: int,
    num_bytes: Iterable[int],
    dtype: str = "float32",
    warmup: int = 5,
    iterations: int = 20,
    start: Callable[..., list] = ranks.run,
    timeout: float = 600.0,
) -> Result:
    """Measure on fresh ranks of this machine, or under torchrun on those that exist: see `measure`.

    `start`: what starts the ranks: `ranks.run`, `cluster.run`, or the `run` of an `emulate.EmulatedNetwork`.
    """
    wanted = (collective, list(num_bytes), dtype, warmup, iterations)
    rows, backend, where = start(_on_a_rank, world_size, *wanted, timeout=timeout)[0]
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return Result(collective, world_size, backend, dtype, tuple(rows), where, when)


def _on_a_rank(rank: int, world_size: int, *wanted) -> tuple[list[Timing], str, dict[str, Any]]:
    import torch.distributed as dist

    return measure(*wanted), dist.get_backend(), machine()


def measure(
    collective: str, num_bytes: Iterable[int], dtype: str = "float32", warmup: int = 5, iterations: int = 20
) -> list[Timing]:
    """On every rank of a process group: check and time a collective at each size. All ranks return the same rows.

    A size is rounded down to what divides among the ranks, but every rank has at least one element. Per size, the
    result of one call is checked; then come `warmup` calls without the clock, and `iterations` with it.
    """
    import torch
    import torch.distributed as dist

    if collective not in COLLECTIVES:
        raise ValueError(f"no benchmark of {collective!r}: there are {', '.join(COLLECTIVES)}")
    if dtype not in DTYPES:
        raise ValueError(f"no benchmark in {dtype!r}: there are {', '.join(DTYPES)}")
    if iterations < 1 or warmup < 0:
        raise ValueError(f"iterations ({iterations}) must be at least 1 and warmup ({warmup}) at least 0")
    kind, world_size, rows = getattr(torch, dtype), dist.get_world_size(), []
    for asked in num_bytes:
        count = max(asked // (kind.itemsize * world_size), 1) * world_size
        call, wrong = _prepare(collective, count, kind)
        failures = torch.tensor([wrong()], device=ranks.device())
        seconds = torch.tensor([_time(call, warmup, iterations)], dtype=torch.float64, device=ranks.device())
        dist.all_reduce(failures)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        size, taken = count * kind.itemsize, seconds.item()
        parts = collective in ("all_gather", "reduce_scatter", "all_to_all")
        rows.append(
            Timing(
                num_bytes=size,
                count=count // world_size if parts else count,
                seconds=taken,
                algbw=algbw(size, taken),
                busbw=busbw(collective, world_size, size, taken),
                wrong=int(failures.item()),
            )
        )
    return rows


def _prepare(collective: str, count: int, dtype: torch.dtype) -> tuple[Callable[[], Any], Callable[[], int]]:
    """A function that calls the collective, and one that calls it once and counts the wrong elements here.

    `count`: elements of the full buffer. Rank r starts with (r + i) mod n at element i, n small, so that sums are
    exact. Afterwards all is zero: calls in place may follow each other for ever.
    """
    import torch
    import torch.distributed as dist

    rank, world_size, device = dist.get_rank(), dist.get_world_size(), ranks.device()
    numbers, n = torch.arange(count, device=device), _modulus(dtype, world_size)
    of_rank = [((numbers + peer) % n).to(dtype) for peer in range(n)]  # rank n has the same as rank 0
    mine, part = of_rank[rank % n].clone(), count // world_size
    every_part = slice(None) if collective in ("all_reduce", "broadcast") else slice(rank * part, (rank + 1) * part)
    if collective in REDUCING:
        result = mine if collective == "all_reduce" else torch.empty(part, dtype=dtype, device=device)
        expected = sum(of_rank[peer % n] for peer in range(world_size))[every_part]
    elif collective == "broadcast":
        result, expected = mine, of_rank[0]
    else:  # of each peer the part that it has under its own number (all-gather), or under ours (all-to-all)
        result = torch.empty(count, dtype=dtype, device=device)
        parts = [of_rank[peer % n].chunk(world_size) for peer in range(world_size)]
        expected = torch.cat([parts[peer][peer if collective == "all_gather" else rank] for peer in range(world_size)])
    calls = {
        "all_reduce": lambda: dist.all_reduce(mine),
        "broadcast": lambda: dist.broadcast(mine, 0),
        "all_gather": lambda: dist.all_gather_single(result, mine[rank * part : (rank + 1) * part]),
        "reduce_scatter": lambda: dist.reduce_scatter_single(result, mine),
        "all_to_all": lambda: dist.all_to_all_single(result, mine),
    }

    def wrong() -> int:
        calls[collective]()
        failures = int((result != expected).sum())
        mine.zero_()
        return failures

    return calls[collective], wrong


def _modulus(dtype: torch.dtype, world_size: int) -> int:
    """The largest n up to 7 for which `dtype` is exact up to (n - 1) P. Raises `ValueError` if it cannot count to P."""
    import torch

    exact = round(2 / torch.finfo(dtype).eps) if dtype.is_floating_point else torch.iinfo(dtype).max
    if exact < world_size:
        raise ValueError(f"{dtype} counts to {exact} only: sums over {world_size} ranks could not be checked in it")
    return min(7, exact // world_size + 1)


def _time(call: Callable[[], Any], warmup: int, iterations: int) -> float:
    """Seconds of a call on this rank: the mean over `iterations` that follow each other without a pause."""
    import torch.distributed as dist

    for _ in range(warmup):
        call()
    finish()
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(iterations):
        call()
    finish()
    return (time.perf_counter() - begun) / iterations


def finish() -> None:
    """Wait until this rank's GPU, if it has one, has done what it was told to do: a call only notes it."""
    if ranks.device().type == "cuda":
        import torch

        torch.cuda.synchronize()


def machine() -> dict[str, Any]:
    """What the times depend on, as far as a program can tell: see `benchmark.machine`; and the GPUs, and NCCL."""
    import torch

    found = benchmark.machine() | {"load": [round(load, 1) for load in os.getloadavg()]}
    if torch.cuda.is_available():
        found["gpus"] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


# --- tables and files -------------------------------------------------------------------------------------------


def table(result: Result) -> str:
    """A result as nccl-tests prints one: sizes in bytes, times in microseconds, bandwidths in GB/s (1e9)."""
    head = f"# {result.collective} on {result.world_size} ranks over {result.backend}: {_where(result)}"
    names = ("size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong")
    units = ("(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)", "")
    lines = [head, _line(names, "#"), _line(units, "#")]
    redop = "sum" if result.collective in REDUCING else "none"
    for row in result.rows:
        wrong = "N/A" if row.wrong is None else row.wrong
        bandwidths = (f"{rate / 1e9:.4g}" for rate in (row.algbw, row.busbw))
        cells = (row.num_bytes, row.count, result.dtype, redop, f"{row.seconds * 1e6:.1f}", *bandwidths, wrong)
        lines.append(_line(cells))
    return "\n".join([*lines, f"# Avg bus bandwidth: {result.average / 1e9:.4g} GB/s"])


def _line(cells: Iterable[Any], sign: str = " ") -> str:
    widths = (13, 12, 9, 6, 12, 9, 9, 7)
    return sign + " ".join(f"{cell!s:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _where(result: Result) -> str:
    """The machine, the versions and the date, as far as they are known, or who published it."""
    if result.source:
        return f"published, {result.source}"
    has = result.machine
    cores = f"{has['cores']} cores ({has.get('processor', 'of some kind')})" if "cores" in has else ""
    processor = ", ".join(has.get("gpus", [])) or cores or "a machine that it does not name"
    versions = [f"{name} {has[name]}" for name in ("network", "torch", "nccl") if name in has]
    return ", ".join([processor, *versions, *([result.date] if result.date else [])])


def save(results: Iterable[Result], path: str | Path) -> None:
    """Write results as JSON that can be kept and compared: each with its machine, versions, date, ranks and backend."""
    cells = ",\n    ".join(json.dumps(asdict(result)) for result in results)
    Path(path).write_text(f'{{\n  "format": "{FORMAT}",\n  "results": [\n    {cells}\n  ]\n}}\n')


def load(path: str | Path) -> list[Result]:
    """Read what `save` has written. Raises `ValueError` that says what is wrong with a file of another kind."""
    try:
        found = json.loads(Path(path).read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}. Printed tables of nccl-tests are read by parse()") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{path} is JSON, but not results of this benchmark: its format should be {FORMAT!r}")
    results = []
    for number, cell in enumerate(found["results"]):
        try:
            result = Result(**cell | {"rows": tuple(Timing(*row) for row in cell["rows"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"result {number} of {path} is not complete: {error}") from None
        if not result.rows or not result.machine:
            raise ValueError(f"result {number} of {path} has no {'machine' if result.rows else 'rows'}: not comparable")
        results.append(result)
    return results


# --- what nccl-tests prints -------------------------------------------------------------------------------------

_NAMES = {"alltoall": "all_to_all"}  # the others are named as torch names them
_STARTED = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|broadcast|alltoall|reduce)_perf")
_DEVICE = re.compile(r"\bRank\s+(\d+)\s.*? on\s+\S+\s+device\s+\d+ \[[^]]*\] (.*)")
_PREFIX = re.compile(r"^(\[[\d,]+\](<stdout>:)?)?[\s#]*")  # of mpirun, which says which rank has printed


def parse(
    text: str, collective: str | None = None, world_size: int | None = None, source: str = "", backend: str = "nccl"
) -> Result:
    """Read a table that nccl-tests has printed, of any version: its out-of-place columns.

    `collective`, `world_size`: for a text that does not say which it was ("all_reduce_perf") or does not list all
    ranks. `source`: where it is from. Lines that other output has torn apart are left out. Raises `ValueError` if there
    is no table, or if one of the two is neither said nor given.
    """
    names: list[str] = []
    devices: dict[int, str] = {}
    rows, dtype = [], "float32"
    for line in text.splitlines():
        words = _PREFIX.sub("", line).split()
        if match := _DEVICE.search(line):
            devices[int(match[1])] = match[2].strip()
        elif words[:2] == ["size", "count"]:
            names = [re.sub(r"\W", "", word) for word in words]  # "#wrong", once "#wrong.", before 2022 "error"
        elif names and len(words) == len(names):
            cell = dict(zip(reversed(names), reversed(words), strict=True))  # of what comes twice, out-of-place
            with contextlib.suppress(KeyError, ValueError):  # no row, or a torn one
                rows.append(_row(cell))
                dtype = {"float": "float32", "half": "float16", "double": "float64"}.get(cell["type"], cell["type"])
    started = _STARTED.search(text)
    collective = collective or (started and _NAMES.get(started[1], started[1]))
    world_size = world_size or max(devices, default=-1) + 1
    if not rows:
        raise ValueError("there is no table of nccl-tests in this text: no line of numbers under 'size count type ...'")
    if not collective:
        raise ValueError("the text does not name its collective ('..._perf'): say collective='all_reduce', or another")
    if not world_size:
        raise ValueError("the text does not list its ranks ('# Rank 0 ... device 0'): say how many there were")
    return Result(
        collective, world_size, backend, dtype, tuple(rows), {"gpus": sorted({*devices.values()})}, "", source
    )


def _row(cell: Mapping[str, str]) -> Timing:
    wrong = cell.get("wrong", "N/A")
    return Timing(
        num_bytes=int(cell["size"]),
        count=int(cell["count"]),
        seconds=float(cell["time"]) * 1e-6,
        algbw=float(cell["algbw"]) * 1e9,
        busbw=float(cell["busbw"]) * 1e9,
        wrong=None if wrong == "N/A" else int(wrong),
    )


# --- the command ------------------------------------------------------------------------------------------------


def size(text: str) -> int:
    """Bytes from "64", "1K", "32M" or "8G", in powers of 1,024 as nccl-tests counts."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip().upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write bytes, or a number with K, M or G, such as 32M")
    return int(match[1]) * UNITS[match[2]]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Collectives against the clock, in the shape of nccl-tests.")
    parser.add_argument("--collective", nargs="+", choices=COLLECTIVES, default=COLLECTIVES, help="by default, all")
    parser.add_argument("--from", dest="start", type=size, default="1K", help="the smallest size: bytes, or 1K, 1M, 1G")
    parser.add_argument("--to", dest="stop", type=size, default="32M", help="the largest size")
    parser.add_argument("--factor", type=float, default=2, help="from a size to the next (2)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="as torch names it (float32)")
    parser.add_argument("--warmup", type=int, default=5, help="calls before the clock starts (5)")
    parser.add_argument("--iterations", type=int, default=20, help="calls that are timed (20)")
    parser.add_argument("--backend", choices=["gloo", "nccl"], help="by default nccl if every rank can have a GPU")
    parser.add_argument("--ranks", type=int, default=2, help="how many to start, unless torchrun has started them (2)")
    parser.add_argument("--save", type=Path, help="a JSON file for the results and the machine they came from")
    given = parser.parse_args(arguments)
    world_size = int(os.environ.get("WORLD_SIZE", given.ranks))
    if given.save and not given.save.parent.is_dir():  # to be known before hours of measuring
        parser.error(f"--save {given.save}: there is no folder {given.save.parent}")
    num_bytes = sizes(given.start, given.stop, given.factor)
    start = partial(ranks.run, backend=given.backend)
    how = dict(dtype=given.dtype, warmup=given.warmup, iterations=given.iterations, start=start)
    results = [run(collective, world_size, num_bytes, **how) for collective in given.collective]
    if os.environ.get("RANK", "0") == "0":  # under torchrun, every rank comes by here
        print("\n\n".join(map(table, results)))
        if given.save:
            save(results, given.save)


if __name__ == "__main__":
    from . import bandwidth  # ranks must find these functions by this name, not in "__main__"

    bandwidth.main()
