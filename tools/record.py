"""Records the measurements that chapters 05 and 15 show.

    tools/record.py lines|loopback|bandwidth|training

`lines`, about 2 minutes: all-reduces between ranks on separate nodes, over emulated lines of 100 Mbit/s, into
book/data/crossover_lines.json. A time is the fastest of its repeats, which other load on the machine disturbs least.

`loopback`, about 2 minutes: all-reduces between ranks that share this machine's cores, medians in two runs, into
book/data/loopback.json. Run nothing else meanwhile. Chapter 05 shows whatever is recorded; at the end, this tool prints
how well the model predicts it.

`bandwidth`, a minute: every collective in the style of nccl-tests, into book/data/bandwidth.json.

`training`, a minute: jobs/train.py with every strategy, into book/data/training.json. On a machine with GPUs,
`bandwidth` and `training` run over NCCL.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from collectives import price, ranks, topology
from collectives.measure import bandwidth, calibrate
from collectives.ranks import emulate

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "book" / "data"
KIB, MIB = 2**10, 2**20
RATE = 100e6  # bits per second of an emulated line
LINES = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB]
LOOPBACK = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]
BALLS = [256, 4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB]  # bytes of the ping-pong's messages on loopback
TIME_LIMIT = 170.0  # seconds: beyond this, the machine is too slow or too busy to record


def main() -> int:
    """Record one file; return the exit status."""
    recorders = {"lines": lines, "loopback": loopback, "bandwidth": bandwidths, "training": training}
    parser = argparse.ArgumentParser(
        description="Record the measurements of this machine that chapters 05 and 15 show."
    )
    parser.add_argument("what", choices=recorders)
    record = recorders[parser.parse_args().what]
    DATA.mkdir(exist_ok=True)
    start = time.monotonic()
    name = record(start + TIME_LIMIT)
    print(f"recorded book/data/{name} in {time.monotonic() - start:.0f} s, at a load of {os.getloadavg()[0]:.1f}")
    return 0


def write(name: str, record: dict) -> str:
    """Write a record, `record["cells"]` a line each, with what its times depend on; return the file's name."""
    header = {"cores": os.cpu_count(), "torch": torch.__version__.split("+")[0], "load": round(os.getloadavg()[0], 1)}
    rows = ",\n    ".join(map(json.dumps, record.pop("cells")))
    text = json.dumps(header | record, indent=2).removesuffix("\n}") + f',\n  "cells": [\n    {rows}\n  ]\n}}\n'
    (DATA / name).write_text(text)
    return name


def bandwidths(deadline: float) -> str:
    """Record nccl-tests' table of every collective: on ranks of this machine, and on emulated nodes if possible.

    Returns the file's name, like every recorder.
    """
    small = partial(bandwidth.run, num_bytes=bandwidth.sizes(KIB, 16 * MIB, 4))
    results = [small(name, world_size) for world_size in (2, 4) for name in bandwidth.COLLECTIVES]
    if obstacle := emulate.obstacle():
        print("no emulated lines:", obstacle)
    else:
        with emulate.EmulatedNetwork(nodes=4, rate=RATE) as network:
            where = {"network": f"{RATE / 1e6:g} Mbit/s a line, emulated"}
            how = dict(num_bytes=bandwidth.sizes(16 * KIB, 4 * MIB, 4), warmup=1, iterations=3, start=network.run)
            emulated = [bandwidth.run(name, 4, **how) for name in bandwidth.COLLECTIVES]
        results += [replace(result, machine=result.machine | where) for result in emulated]
    bandwidth.save(results, DATA / "bandwidth.json")
    print("\n\n".join(map(bandwidth.table, results)))
    return "bandwidth.json"


def training(deadline: float) -> str:
    """Record a step of a small transformer with every strategy, with the same file that runs on a cluster."""
    how = ["--strategy", "ddp", "zero2", "fsdp", "--precision", "fp32", "bf16", "--steps", "20"]
    save = ["--save", DATA / "training.json"]
    left = max(deadline - time.monotonic(), 1)
    subprocess.run([sys.executable, ROOT / "jobs" / "train.py", *how, *save], check=True, timeout=left, cwd=ROOT)
    return "training.json"


def lines(deadline: float) -> str:
    """Record ping-pong and all-reduces over emulated lines."""
    with emulate.EmulatedNetwork(nodes=2, rate=RATE) as network:
        seconds = network.run(calibrate.ping_pong, 2, calibrate.SIZES, 9, 0.0)[0]
    alpha, beta = calibrate.fit(calibrate.SIZES, seconds)
    cells = []
    for world_size in (4, 8):
        with emulate.EmulatedNetwork(nodes=world_size, rate=RATE) as network:
            cells += sweep(network.run, world_size, LINES, calibrate.ALL_REDUCES, deadline, quantile=0.0)
    large = [cell for cell in cells if cell["num_bytes"] >= 256 * KIB]
    guesses = [guess(cell, alpha, beta) for cell in large]
    error = calibrate.off(guesses, [cell["seconds"] for cell in large])
    print(f"alpha {alpha * 1e6:.0f} us, beta {beta * 1e9:.1f} ns/byte; median error from 256 KiB on: {error:.1%}")
    for world_size in (4, 8):
        lost = [regret(large, guesses, world_size, num_bytes) for num_bytes in LINES if num_bytes >= 256 * KIB]
        print(f"P = {world_size}: the model's choice is at most {max(lost):.1%} slower than the best algorithm")
    return write("crossover_lines.json", {"rate": RATE, "ping_pong": [list(calibrate.SIZES), seconds], "cells": cells})


def loopback(deadline: float) -> str:
    """Record ping-pong, an addition and all-reduces on this machine's cores, every cell in two runs."""
    balls, gammas, cells = [], [], []
    contestants = {name: make for name, make in calibrate.ALL_REDUCES.items() if name != "double tree"}
    contestants["backend"] = lambda world_size: dist.all_reduce
    for run in range(2):
        balls.append(ranks.run(calibrate.ping_pong, 2, BALLS)[0])
        gammas.append(ranks.run(calibrate.adding, 1)[0])
        for world_size in (4, 8):
            swept = sweep(ranks.run, world_size, LOOPBACK, contestants, deadline)
            cells += [{"run": run} | cell for cell in swept]
    by_run = [[cell["seconds"] for cell in cells if cell["run"] == run] for run in range(2)]
    print(f"two runs of a cell differ by {calibrate.off(*by_run):.0%} (median)")
    seconds = np.median(balls, axis=0).tolist()
    return write("loopback.json", {"ping_pong": [BALLS, seconds], "gamma": float(np.median(gammas)), "cells": cells})


def sweep(
    run, world_size: int, sizes: list[int], contestants: dict, deadline: float, quantile: float = 0.5
) -> list[dict]:
    """Time all contestants at all sizes, in bytes. `run`: `ranks.run`, or the `run` of a network."""
    cells = []
    methods = [make(world_size) for make in contestants.values()]
    for num_bytes in sizes:
        repeats = int(np.clip(12 * MIB // num_bytes, 3, 20))
        left = max(deadline - time.monotonic(), 1)
        results = run(calibrate.stopwatch, world_size, methods, num_bytes, repeats, timeout=left)
        for name, seconds in zip(contestants, calibrate.slowest(results, quantile), strict=True):
            row = {"world_size": world_size, "algorithm": name, "num_bytes": num_bytes}
            cells.append(row | {"seconds": float(f"{seconds:.4g}")})
    return cells


def guess(cell: dict, alpha: float, beta: float) -> float:
    """Predict the seconds of a cell from alpha and beta alone."""
    schedule = calibrate.ALL_REDUCES[cell["algorithm"]](cell["world_size"])
    links = topology.uniform(cell["world_size"], alpha, beta)
    return price(schedule, cell["num_bytes"], links, calibrate.ITEMSIZE).seconds


def regret(cells: list[dict], guesses: list[float], world_size: int, num_bytes: int) -> float:
    """Return by what fraction the algorithm with the best prediction is slower than the fastest one."""
    here = (world_size, num_bytes)
    pairs = [
        (predicted, cell["seconds"])
        for predicted, cell in zip(guesses, cells, strict=True)
        if (cell["world_size"], cell["num_bytes"]) == here
    ]
    return min(pairs)[1] / min(measured for _, measured in pairs) - 1


if __name__ == "__main__":
    sys.exit(main())
