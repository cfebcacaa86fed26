"""All-reduce benchmark: the backend's own, ours over each transport, MPI, and the machine's limit.

Methods are measured side by side: on the same ranks, one after the other, round after round until the time is up. A
time is the median over the rounds, on the slowest rank. Only ratios of these times carry over to other machines.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from .. import ranks
from ..algorithms import doubling, halving_doubling, pairwise, ring, tree
from ..execute import execute
from ..schedule import Schedule
from .sweeps import in_size

SIZES = [2**exponent for exponent in (16, 18, 20, 22, 24, 26)]  # bytes of a rank's buffer, 64 KiB to 64 MiB
ALGORITHMS = [tree.all_reduce, doubling.all_reduce, halving_doubling.all_reduce, pairwise.all_reduce, ring.all_reduce]
FINALISTS = 2  # schedules of each transport that stay in the race after the first rounds
FIRST_ROUNDS = 3
TOGETHER = 2**21  # bytes: smaller calls are timed up to 4 at a time, to amortize the clock and the barrier
OWN, BLOCKING, GROUP = "gloo's own", "send/recv, blocking", "execute, group"
ORDINARY, ARENA = "execute, shared memory", "execute, arena"
COPY, STREAM = "memory copy", "loopback"  # the machine's limits, measured like the methods


class Timing(NamedTuple):
    """The time of an all-reduce of `num_bytes` on each of `world_size` ranks by `method`, with a `schedule` if ours.

    `ratio`: the time of the backend's own all-reduce, measured alongside, over this time; above 1 is faster.
    `fraction`: the machine's limit over this time. In memory each rank must read its buffer once and write it once, so
    the limit is the time of all ranks to copy one buffer each. Over sockets all ranks together must send 2(P-1) S, so
    the limit is the time of plain sockets for that, one way between pairs of ranks.
    """

    world_size: int
    num_bytes: int
    method: str
    schedule: str
    seconds: float
    ratio: float
    fraction: float


def measure(
    world_size: int, sizes: Iterable[int] = SIZES, seconds: float = 1.0, rounds: int = 1, mpi: dict | None = None
) -> list[Timing]:
    """Time all methods at all `sizes` in bytes, for about `seconds` per size and round, in `rounds` of new ranks.

    `mpi`: {name: interpreter} of MPI libraries, as `find_mpi` returns them, which run in every round too.
    """
    seen: dict[tuple, list[tuple[float, float, float]]] = {}
    for _ in range(rounds):
        ours = ranks.run(_race, world_size, list(sizes), seconds, timeout=600)[0]
        for name, python in (mpi or {}).items():
            for size, time_mpi in measure_mpi(python, world_size, sizes, seconds / 10).items():
                ours[size][name, ""] = time_mpi
        for size, times in ours.items():
            for (method, schedule), time_ours in times.items():
                limit = times[STREAM if method in (OWN, BLOCKING, GROUP) else COPY, ""]
                row = (time_ours, times[OWN, ""] / time_ours, limit / time_ours)
                seen.setdefault((world_size, size, method, schedule), []).append(row)
    medians = {key: [statistics.median(column) for column in zip(*rows, strict=True)] for key, rows in seen.items()}
    return [Timing(*key, *row) for key, row in medians.items() if key[2] not in (COPY, STREAM)]


def _race(rank: int, world_size: int, sizes: list[int], seconds: float) -> dict[int, dict[tuple[str, str], float]]:
    """Return, for each size, the median seconds of every (method, schedule). Runs on each rank."""
    import torch
    import torch.distributed as dist

    from ..ranks.shared import Arena

    arena = Arena(2 * max(sizes))
    living, ordinary, other = arena.empty(max(sizes) // 4), torch.zeros(max(sizes) // 4), torch.zeros(max(sizes) // 4)
    stream = _stream(rank, world_size)
    schedules = [algorithm(world_size) for algorithm in ALGORITHMS if _takes(algorithm, world_size)]
    results = {}
    for size in sizes:
        x, y, z = (tensor[: size // 4].zero_() for tensor in (ordinary, living, other))
        methods: dict[tuple[str, str], Callable] = {
            (OWN, ""): lambda x=x: dist.all_reduce(x),
            (BLOCKING, "ring all_reduce"): lambda x=x: blocking_ring(rank, world_size, x),
            (COPY, ""): lambda x=x, z=z: z.copy_(x),
            (STREAM, ""): lambda size=size: stream(2 * (world_size - 1) * size // max(world_size // 2, 1)),
        }
        for s in schedules:
            methods[GROUP, s.name] = lambda s=s, x=x: execute(s, x)
            methods[ORDINARY, s.name] = lambda s=s, x=x: execute(s, x, transport=arena)
            methods[ARENA, s.name] = lambda s=s, y=y: execute(s, y, transport=arena)
        results[size] = _in_turns(methods, max(1, min(4, TOGETHER // size)), seconds)
    return results


def _in_turns(methods: dict[tuple[str, str], Callable], repeat: int, seconds: float) -> dict[tuple[str, str], float]:
    """Return the median seconds of each method on the slowest rank.

    After `FIRST_ROUNDS` rounds, only the `FINALISTS` fastest schedules of each method stay in the race.
    """
    import torch
    import torch.distributed as dist

    times: dict[tuple[str, str], list[float]] = {key: [] for key in methods}
    for call in methods.values():  # untimed: touches memory and makes connections
        call()
    going, start = list(methods), time.monotonic()
    while True:
        for key in going:
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(repeat):
                methods[key]()
            times[key].append((time.perf_counter() - begun) / repeat)
        if len(times[OWN, ""]) >= FIRST_ROUNDS:
            medians = torch.tensor([statistics.median(taken) for taken in times.values()], dtype=torch.float64)
            late = torch.tensor([float(time.monotonic() - start > seconds)], dtype=torch.float64)
            dist.all_reduce(both := torch.cat([medians, late]), dist.ReduceOp.MAX)
            slowest = dict(zip(times, both.tolist(), strict=False))
            if both[-1]:
                return slowest
            going = [key for key in methods if _rank_of(key, slowest) < FINALISTS]


def _rank_of(key: tuple[str, str], times: dict[tuple[str, str], float]) -> int:
    """Return how many schedules of the same method are faster."""
    return sum(times[other] < times[key] for other in times if other[0] == key[0])


def _takes(algorithm: Callable[[int], Schedule], world_size: int) -> bool:
    try:
        return bool(algorithm(world_size))
    except ValueError:
        return False


def blocking_ring(rank: int, world_size: int, x) -> None:
    """Run a ring all-reduce as a first program would: `send` and `recv`, one after the other."""
    import torch
    import torch.distributed as dist

    chunks = list(x.tensor_split(world_size))
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    for step in range(2 * (world_size - 1)):
        sent, received = chunks[(rank - step) % world_size], chunks[(rank - step - 1) % world_size]
        arriving = torch.empty_like(received)
        if rank % 2:  # odd ranks receive first: if all ranks sent first, they would deadlock
            dist.recv(arriving, left)
            dist.send(sent, right)
        else:
            dist.send(sent, right)
            dist.recv(arriving, left)
        if step < world_size - 1:
            received += arriving
        else:
            received.copy_(arriving)


def _stream(rank: int, world_size: int) -> Callable[[int], None]:
    """Return a function that moves a number of bytes from each even rank to the next odd one, over a plain socket."""
    import torch.distributed as dist

    ports: list = [None] * world_size
    server = socket.create_server(("127.0.0.1", 0)) if rank % 2 else None
    dist.all_gather_object(ports, server.getsockname()[1] if server else None)
    if server:
        end, _ = server.accept()
    elif rank + 1 < world_size:
        end = socket.create_connection(("127.0.0.1", ports[rank + 1]))
    else:
        return lambda num_bytes: None  # with an odd number of ranks, the last one has no partner
    piece = memoryview(bytearray(2**18))  # 256 KiB stays in the cache; larger pieces are slower

    def stream(num_bytes: int) -> None:
        left = num_bytes
        while left:
            left -= end.recv_into(piece, min(left, len(piece))) if server else end.send(piece[:left])

    return stream


MPI_NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}
MPI_PROGRAM = """
import json, statistics, sys, time
import numpy as np
from mpi4py import MPI
world, repeat_bytes, seconds = MPI.COMM_WORLD, int(sys.argv[1]), float(sys.argv[2])
medians = {}
for size in map(int, sys.argv[3:]):
    x, times, start = np.zeros(size // 4, np.float32), [], time.monotonic()
    world.Allreduce(MPI.IN_PLACE, x)
    repeat = max(1, min(4, repeat_bytes // size))
    while True:
        world.Barrier()
        begun = time.perf_counter()
        for _ in range(repeat):
            world.Allreduce(MPI.IN_PLACE, x)
        times.append((time.perf_counter() - begun) / repeat)
        late = len(times) >= 3 and time.monotonic() - start > seconds
        if world.bcast(late):
            break
    medians[size] = world.allreduce(statistics.median(times), MPI.MAX)
if world.rank == 0:
    print(json.dumps(medians))
"""


def find_mpi(folder: Path) -> dict[str, Path]:
    """Return {name: interpreter} of each MPI library with its own virtual environment in `folder`."""
    pythons = {name: folder / stem / "bin" / "python" for stem, name in MPI_NAMES.items()}
    return {name: python for name, python in pythons.items() if python.exists()}


def measure_mpi(python: Path, world_size: int, sizes: Iterable[int], seconds: float) -> dict[int, float]:
    """Return {num_bytes: median seconds} of MPI's Allreduce, with the mpi4py and `mpiexec` of an interpreter.

    Raises `RuntimeError` if `mpiexec` fails.
    """
    launch = [str(python.parent / "mpiexec"), "-n", str(world_size)]
    # Open MPI requires these where ranks outnumber cores, and under root.
    environment = os.environ | {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    program = [str(python), "-c", MPI_PROGRAM, str(TOGETHER), str(seconds), *map(str, sizes)]
    answer = subprocess.run(launch + program, capture_output=True, text=True, env=environment, timeout=600)
    if answer.returncode:
        raise RuntimeError(f"{launch[0]} failed:\n{answer.stderr.strip()}")
    return {int(size): median for size, median in json.loads(answer.stdout.splitlines()[-1]).items()}


def best(timings: Iterable[Timing]) -> list[Timing]:
    """Return the timing with the best schedule, by ratio, of each method at each size and number of ranks."""
    winners: dict[tuple, Timing] = {}
    for timing in timings:
        key = timing[:3]
        winners[key] = max(winners.get(key, timing), timing, key=lambda t: t.ratio)
    return list(winners.values())


def table(timings: Iterable[Timing]) -> str:
    """Format the ratios over the backend's own all-reduce, with each method's best schedule and its geometric mean."""
    rows = best(timings)
    sizes = sorted({row.num_bytes for row in rows})
    lines = []
    for world_size in sorted({row.world_size for row in rows}):
        mine = [row for row in rows if row.world_size == world_size]
        lines.append(f"{world_size} ranks".ljust(24) + "".join(in_size(size).rjust(15) for size in sizes) + "   mean")
        for method in dict.fromkeys(row.method for row in mine):
            by_size = {row.num_bytes: row for row in mine if row.method == method}
            cells = [f"{by_size[size].ratio:.2f} {_short(by_size[size].schedule)}" for size in sizes]
            mean = statistics.geometric_mean(by_size[size].ratio for size in sizes)
            lines.append(method.ljust(24) + "".join(cell.rjust(15) for cell in cells) + f"{mean:7.2f}")
    return "\n".join(lines)


def _short(schedule: str) -> str:
    return schedule.split()[0][:8] if schedule else ""


def machine() -> dict[str, Any]:
    """Return when this is, and what times depend on: cores, versions and the load averages."""
    import torch

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": list(os.getloadavg()),
    }
