"""A benchmark in the style of NVIDIA's nccl-tests, over any backend: the same code runs gloo on a laptop, NCCL on GPUs.

    torchrun --nproc-per-node 2 -m collectives.measure.bandwidth --to 1M   # every collective, on torchrun's ranks
    python -m collectives.measure.bandwidth --ranks 4 --collective all_reduce   # starts ranks on this machine

    results = [run("all_reduce", world_size=2, num_bytes=sizes(2**10, 2**20))]  # from a notebook
    print(table(results[0]))
    save(results, "mine.json")                                                  # with a description of the machine

Columns, sizes and bus bandwidth are those of nccl-tests (NVIDIA/nccl-tests, doc/PERFORMANCE.md), and `parse` reads its
printed tables. One thing differs: a time here is the slowest rank's, because a collective is over when its last rank
is done. nccl-tests takes the mean over the ranks.
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

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64")  # in both gloo and NCCL
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
REDUCING = ("all_reduce", "reduce_scatter")
FORMAT = "collectives.bandwidth, version 1"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


class Timing(NamedTuple):
    """A row of the table. `num_bytes`: S, the full buffer: an all-gather's output, a reduce-scatter's input.

    `count`: elements that a rank passes to the call: S over the itemsize, and also over P where ranks hold parts.
    `algbw`, `busbw`: bytes per second. `wrong`: incorrect elements in all ranks' results, or None if not checked.
    """

    num_bytes: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    seconds: float
    algbw: float
    busbw: float
    wrong: int | None


@dataclass(frozen=True)
class Result:
    """One collective at many sizes, with what the times depend on.

    `backend`: "gloo" or "nccl". `machine`: as `machine()` returns it, or what a published table says about it.
    `source`: where a table that isn't ours was published.
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
        """The mean bus bandwidth over all sizes, in bytes per second: the last line that nccl-tests prints.

        Small sizes pull it down, so compare only tables of the same sizes.
        """
        return statistics.mean(row.busbw for row in self.rows)


def sizes(start: int, stop: int, factor: float = 2) -> list[int]:
    """Return sizes in bytes from `start` up to `stop`, each `factor` times the one before."""
    if not 0 < start <= stop or factor <= 1:
        raise ValueError(f"no sizes from {start} to {stop} bytes by {factor}: need 0 < start <= stop and factor > 1")
    steps = [start]
    while steps[-1] * factor <= stop:
        steps.append(int(steps[-1] * factor))
    return steps


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
    """Run `measure` on new ranks of this machine, or under torchrun on the existing ones.

    `start`: the function that starts the ranks: `ranks.run`, `cluster.run`, or `run` of an `emulate.EmulatedNetwork`.
    """
    settings = (collective, list(num_bytes), dtype, warmup, iterations)
    rows, backend, where = start(_on_a_rank, world_size, *settings, timeout=timeout)[0]
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return Result(collective, world_size, backend, dtype, tuple(rows), where, when)


def _on_a_rank(rank: int, world_size: int, *settings) -> tuple[list[Timing], str, dict[str, Any]]:
    import torch.distributed as dist

    return measure(*settings), dist.get_backend(), machine()


def measure(
    collective: str, num_bytes: Iterable[int], dtype: str = "float32", warmup: int = 5, iterations: int = 20
) -> list[Timing]:
    """Check and time a collective at each size. Call it on every rank of the group; all return the same rows.

    Sizes are rounded down so that elements divide evenly among the ranks, with at least one each. Per size, one call
    is checked for correctness, then `warmup` calls run untimed, then `iterations` calls are timed together.
    Raises `ValueError` for an unknown collective or dtype, or numbers of calls out of range.
    """
    import torch
    import torch.distributed as dist

    if collective not in COLLECTIVES:
        raise ValueError(f"no benchmark of {collective!r}: choose from {', '.join(COLLECTIVES)}")
    if dtype not in DTYPES:
        raise ValueError(f"no benchmark in {dtype!r}: choose from {', '.join(DTYPES)}")
    if iterations < 1 or warmup < 0:
        raise ValueError(f"iterations ({iterations}) must be at least 1 and warmup ({warmup}) at least 0")
    kind, world_size, rows = getattr(torch, dtype), dist.get_world_size(), []
    for requested in num_bytes:
        count = max(requested // (kind.itemsize * world_size), 1) * world_size
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
    """Return a function that calls the collective, and one that calls it once and counts this rank's wrong elements.

    `count`: elements of the full buffer. Rank r starts with (r + i) mod n at element i, with n small so that sums are
    exact. Counting zeroes the input, so that repeated in-place calls can't overflow.
    """
    import torch
    import torch.distributed as dist

    rank, world_size, device = dist.get_rank(), dist.get_world_size(), ranks.device()
    numbers, n = torch.arange(count, device=device), _modulus(dtype, world_size)
    of_rank = [((numbers + peer) % n).to(dtype) for peer in range(n)]  # rank n has the same values as rank 0
    mine, part = of_rank[rank % n].clone(), count // world_size
    every_part = slice(None) if collective in ("all_reduce", "broadcast") else slice(rank * part, (rank + 1) * part)
    if collective in REDUCING:
        result = mine if collective == "all_reduce" else torch.empty(part, dtype=dtype, device=device)
        expected = sum(of_rank[peer % n] for peer in range(world_size))[every_part]  # type: ignore[index]
    elif collective == "broadcast":
        result, expected = mine, of_rank[0]
    else:  # from each peer, the part at the peer's own index (all-gather) or at this rank's (all-to-all)
        result = torch.empty(count, dtype=dtype, device=device)
        parts = [of_rank[peer % n].chunk(world_size) for peer in range(world_size)]
        expected = torch.cat([parts[peer][peer if collective == "all_gather" else rank] for peer in range(world_size)])
    # A machine with GPUs may have a torch before 2.13, where these two have other names.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    calls = {
        "all_reduce": lambda: dist.all_reduce(mine),
        "broadcast": lambda: dist.broadcast(mine, 0),
        "all_gather": lambda: all_gather(result, mine[rank * part : (rank + 1) * part]),
        "reduce_scatter": lambda: reduce_scatter(result, mine),
        "all_to_all": lambda: dist.all_to_all_single(result, mine),
    }

    def wrong() -> int:
        calls[collective]()
        failures = int((result != expected).sum())
        mine.zero_()
        return failures

    return calls[collective], wrong


def _modulus(dtype: torch.dtype, world_size: int) -> int:
    """Return the largest n up to 7 such that `dtype` is exact up to (n - 1) P.

    Raises `ValueError` if `dtype` isn't exact up to P.
    """
    import torch

    exact = round(2 / torch.finfo(dtype).eps) if dtype.is_floating_point else torch.iinfo(dtype).max
    if exact < world_size:
        raise ValueError(f"{dtype} is exact only up to {exact}: it can't check sums over {world_size} ranks")
    return min(7, exact // world_size + 1)


def _time(call: Callable[[], Any], warmup: int, iterations: int) -> float:
    """Return the seconds per call on this rank: the mean over `iterations` back-to-back calls."""
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
    """Wait until this rank's GPU, if it has one, has finished its queued work: calls only enqueue it."""
    if ranks.device().type == "cuda":
        import torch

        torch.cuda.synchronize()


def machine() -> dict[str, Any]:
    """Return what the times depend on: `benchmark.machine`, plus the GPUs and NCCL's version if there are any."""
    import torch

    facts = benchmark.machine() | {"load": [round(load, 1) for load in os.getloadavg()]}
    if torch.cuda.is_available():
        facts["gpus"] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        facts["gpu_bytes"] = torch.cuda.get_device_properties(0).total_memory
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return facts


# --- tables and files -------------------------------------------------------------------------------------------


def table(result: Result) -> str:
    """Format a result like nccl-tests: sizes in bytes, times in microseconds, bandwidths in GB/s (1e9)."""
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
    """Return the machine, the versions and the date, as far as known, or the source of a published result."""
    if result.source:
        return f"published, {result.source}"
    has = result.machine
    cores = f"{has['cores']} cores ({has.get('processor', 'unknown kind')})" if "cores" in has else ""
    processor = ", ".join(has.get("gpus", [])) or cores or "unknown machine"
    versions = [f"{name} {has[name]}" for name in ("network", "torch", "nccl") if name in has]
    return ", ".join([processor, *versions, *([result.date] if result.date else [])])


def save(results: Iterable[Result], path: str | Path) -> None:
    """Write results as JSON, each with its machine, versions, date, ranks and backend, so that they stay comparable."""
    cells = ",\n    ".join(json.dumps(asdict(result)) for result in results)
    Path(path).write_text(f'{{\n  "format": "{FORMAT}",\n  "results": [\n    {cells}\n  ]\n}}\n')


def load(path: str | Path) -> list[Result]:
    """Read a file that `save` wrote. Raises `ValueError` if it isn't one, or if a result is incomplete."""
    try:
        content = json.loads(Path(path).read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}. To read a printed table of nccl-tests, use parse()") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is JSON, but not results of this benchmark: its format should be {FORMAT!r}")
    results = []
    for number, cell in enumerate(content["results"]):
        try:
            result = Result(**cell | {"rows": tuple(Timing(*row) for row in cell["rows"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"result {number} of {path} is incomplete: {error}") from None
        if not result.rows or not result.machine:
            missing = "machine" if result.rows else "rows"
            raise ValueError(f"result {number} of {path} has no {missing}, so it can't be compared")
        results.append(result)
    return results


# --- what nccl-tests prints -------------------------------------------------------------------------------------

_NAMES = {"alltoall": "all_to_all"}  # the others have torch's names
_STARTED = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|broadcast|alltoall|reduce)_perf")
_DEVICE = re.compile(r"\bRank\s+(\d+)\s.*? on\s+\S+\s+device\s+\d+ \[[^]]*\] (.*)")
_PREFIX = re.compile(r"^(\[[\d,]+\](<stdout>:)?)?[\s#]*")  # mpirun's mark of the rank that printed the line


def parse(
    text: str, collective: str | None = None, world_size: int | None = None, source: str = "", backend: str = "nccl"
) -> Result:
    """Parse the out-of-place columns of a table printed by nccl-tests, of any version.

    `collective`, `world_size`: pass them if the text doesn't name the program ("all_reduce_perf") or list all ranks.
    `source`: where the table comes from. Lines garbled by other output are skipped. Raises `ValueError` if there is no
    table, or if one of these two is neither in the text nor passed.
    """
    names: list[str] = []
    devices: dict[int, str] = {}
    rows, dtype = [], "float32"
    for line in text.splitlines():
        words = _PREFIX.sub("", line).split()
        if match := _DEVICE.search(line):
            devices[int(match[1])] = match[2].strip()
        elif words[:2] == ["size", "count"]:
            names = [re.sub(r"\W", "", word) for word in words]  # "#wrong", formerly "#wrong.", before 2022 "error"
        elif names and len(words) == len(names):
            # Out-of-place and in-place columns have the same names. Reversed, the out-of-place ones overwrite.
            cell = dict(zip(reversed(names), reversed(words), strict=True))
            with contextlib.suppress(KeyError, ValueError):  # not a row, or a garbled one
                rows.append(_row(cell))
                dtype = {"float": "float32", "half": "float16", "double": "float64"}.get(cell["type"], cell["type"])
    started = _STARTED.search(text)
    collective = collective or (started and _NAMES.get(started[1], started[1]))
    world_size = world_size or max(devices, default=-1) + 1
    if not rows:
        raise ValueError("this text has no table of nccl-tests: no line of numbers under 'size count type ...'")
    if not collective:
        raise ValueError("the text does not name its collective ('..._perf'): pass collective='all_reduce', or another")
    if not world_size:
        raise ValueError("the text does not list its ranks ('# Rank 0 ... device 0'): pass world_size")
    where = {"gpus": sorted({*devices.values()})}
    return Result(collective, world_size, backend, dtype, tuple(rows), where, source=source)


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
    """Return the bytes of "64", "1K", "32M" or "8G", in powers of 1,024 as in nccl-tests."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip().upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write bytes, or a number with K, M or G, like 32M")
    return int(match[1]) * UNITS[match[2]]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Benchmark collectives in the style of nccl-tests.")
    parser.add_argument("--collective", nargs="+", choices=COLLECTIVES, default=COLLECTIVES, help="default: all")
    parser.add_argument("--from", dest="start", type=size, default="1K", help="smallest size: bytes, or 1K, 1M, 1G")
    parser.add_argument("--to", dest="stop", type=size, default="32M", help="largest size (default: 32M)")
    parser.add_argument("--factor", type=float, default=2, help="ratio of one size to the one before (default: 2)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="torch's name (default: float32)")
    parser.add_argument("--warmup", type=int, default=5, help="untimed calls per size (default: 5)")
    parser.add_argument("--iterations", type=int, default=20, help="timed calls per size (default: 20)")
    parser.add_argument("--backend", choices=["gloo", "nccl"], help="default: nccl if every rank can have a GPU")
    parser.add_argument("--ranks", type=int, default=2, help="ranks to start, unless under torchrun (default: 2)")
    parser.add_argument("--save", type=Path, help="JSON file for the results and the machine's description")
    options = parser.parse_args(arguments)
    world_size = int(os.environ.get("WORLD_SIZE", options.ranks))
    if options.save and not options.save.parent.is_dir():  # fail now, not after hours of measuring
        parser.error(f"--save {options.save}: there is no folder {options.save.parent}")
    num_bytes = sizes(options.start, options.stop, options.factor)
    start = partial(ranks.run, backend=options.backend or ranks.fastest_backend(world_size))
    settings = dict(dtype=options.dtype, warmup=options.warmup, iterations=options.iterations, start=start)
    results = [run(collective, world_size, num_bytes, **settings) for collective in options.collective]
    if os.environ.get("RANK", "0") == "0":  # under torchrun, every rank runs this line
        print("\n\n".join(map(table, results)))
        if options.save:
            save(results, options.save)


if __name__ == "__main__":
    from . import bandwidth  # ranks must find these functions under this name, not in "__main__"

    bandwidth.main()
