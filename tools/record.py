"""Records what chapters 05 and 15 show: `tools/record.py lines`, or `loopback`, `bandwidth`, `training`.

`lines`, about 2 minutes: all-reduces between ranks on nodes of their own, over emulated lines of 100 Mbit/s, into
book/data/crossover_lines.json; a time is the fastest of its repeats, to see the lines and not what else the machine
does. `loopback`, about 2 minutes: between ranks that share this machine's cores, in two runs, medians, into
book/data/loopback.json. Let nothing else run meanwhile. Chapter 05 shows whatever is recorded; this tool says at
the end how well the model did on it.

`bandwidth`, a minute: every collective in the shape of nccl-tests, into book/data/bandwidth.json; `training`, a minute:
jobs/train.py by every strategy, into book/data/training.json. On a machine with GPUs both run over NCCL.
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
RATE = 100e6  # bits a second of an emulated line
LINES = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB]
LOOPBACK = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]
BALLS = [256, 4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB]  # of the ping-pong on loopback
TIME_LIMIT = 170.0  # seconds: a machine so slow or so busy is not worth recording


def main() -> int:
    """Record one file; return the exit status."""
    recorders = {"lines": lines, "loopback": loopback, "bandwidth": bandwidths, "training": training}
    arguments = argparse.ArgumentParser(description="Record what chapters 05 and 15 show of this machine.")
    arguments.add_argument("what", choices=recorders)
    record = recorders[arguments.parse_args().what]
    DATA.mkdir(exist_ok=True)
    start = time.monotonic()
    name = record(start + TIME_LIMIT)
    print(f"recorded book/data/{name} in {time.monotonic() - start:.0f} s, at a load of {os.getloadavg()[0]:.1f}")
    return 0


def write(name: str, found: dict) -> str:
    """Write measurements, `found["cells"]` a line each, with what they depend on; return the file's name."""
    header = {"cores": os.cpu_count(), "torch": torch.__version__.split("+")[0], "load": round(os.getloadavg()[0], 1)}
    rows = ",\n    ".join(map(json.dumps, found.pop("cells")))
    text = json.dumps(header | found, indent=2).removesuffix("\n}") + f',\n  "cells": [\n    {rows}\n  ]\n}}\n'
    (DATA / name).write_text(text)
    return name


def bandwidths(deadline: float) -> str:
    """nccl-tests' table of every collective: on ranks of this machine, and on nodes of their own where that can be."""
    small = partial(bandwidth.run, num_bytes=bandwidth.sizes(KIB, 16 * MIB, 4))
    results = [small(name, world_size) for world_size in (2, 4) for name in bandwidth.COLLECTIVES]
    if obstacle := emulate.obstacle():
        print("no emulated lines:", obstacle)
    else:
        with emulate.EmulatedNetwork(nodes=4, rate=RATE) as network:
            where = {"network": f"{RATE / 1e6:g} Mbit/s a line, emulated"}
            how = dict(num_bytes=bandwidth.sizes(16 * KIB, 4 * MIB, 4), warmup=1, iterations=3, start=network.run)
            found = [bandwidth.run(name, 4, **how) for name in bandwidth.COLLECTIVES]
        results += [replace(result, machine=result.machine | where) for result in found]
    bandwidth.save(results, DATA / "bandwidth.json")
    print("\n\n".join(map(bandwidth.table, results)))
    return "bandwidth.json"


def training(deadline: float) -> str:
    """A step of a small transformer by every strategy, by the file that would run on a cluster."""
    how = ["--strategy", "ddp", "zero2", "fsdp", "--precision", "fp32", "bf16", "--steps", "20"]
    save = ["--save", DATA / "training.json"]
    left = max(deadline - time.monotonic(), 1)
    subprocess.run([sys.executable, ROOT / "jobs" / "train.py", *how, *save], check=True, timeout=left, cwd=ROOT)
    return "training.json"


def lines(deadline: float) -> str:
    """Ping-pong, then all-reduces, over emulated lines."""
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
    print(f"alpha {alpha * 1e6:.0f} us, beta {beta * 1e9:.1f} ns a byte; from 256 KiB on {error:.1%} off (median)")
    for world_size in (4, 8):
        lost = [regret(large, guesses, world_size, num_bytes) for num_bytes in LINES if num_bytes >= 256 * KIB]
        print(f"P = {world_size}: the algorithm it chooses is slower than the best by {max(lost):.1%} at most")
    return write("crossover_lines.json", {"rate": RATE, "ping_pong": [list(calibrate.SIZES), seconds], "cells": cells})


def loopback(deadline: float) -> str:
    """Ping-pong, an addition and all-reduces on this machine's cores: every cell in two runs."""
    balls, gammas, cells = [], [], []
    contestants = {name: make for name, make in calibrate.ALL_REDUCES.items() if name != "double tree"}
    contestants["backend"] = lambda world_size: dist.all_reduce
    for run in range(2):
        balls.append(ranks.run(calibrate.ping_pong, 2, BALLS)[0])
        gammas.append(ranks.run(calibrate.adding, 1)[0])
        for world_size in (4, 8):
            found = sweep(ranks.run, world_size, LOOPBACK, contestants, deadline)
            cells += [{"run": run} | cell for cell in found]
    twice = [[cell["seconds"] for cell in cells if cell["run"] == run] for run in range(2)]
    print(f"two runs of a cell differ by {calibrate.off(*twice):.0%} (median)")
    seconds = np.median(balls, axis=0).tolist()
    return write("loopback.json", {"ping_pong": [BALLS, seconds], "gamma": float(np.median(gammas)), "cells": cells})


def sweep(
    run, world_size: int, sizes: list[int], contestants: dict, deadline: float, quantile: float = 0.5
) -> list[dict]:
    """Time all contestants at all sizes; `run` is that of `ranks` or of a network."""
    cells = []
    made = [make(world_size) for make in contestants.values()]
    for num_bytes in sizes:
        repeats = int(np.clip(12 * MIB // num_bytes, 3, 20))
        left = max(deadline - time.monotonic(), 1)
        results = run(calibrate.stopwatch, world_size, made, num_bytes, repeats, timeout=left)
        for name, seconds in zip(contestants, calibrate.slowest(results, quantile), strict=True):
            row = {"world_size": world_size, "algorithm": name, "num_bytes": num_bytes}
            cells.append(row | {"seconds": float(f"{seconds:.4g}")})
    return cells


def guess(cell: dict, alpha: float, beta: float) -> float:
    """What alpha and beta alone say about a cell: seconds."""
    schedule = calibrate.ALL_REDUCES[cell["algorithm"]](cell["world_size"])
    links = topology.uniform(cell["world_size"], alpha, beta)
    return price(schedule, cell["num_bytes"], links, calibrate.ITEMSIZE).seconds


def regret(cells: list[dict], guesses: list[float], world_size: int, num_bytes: int) -> float:
    """How much slower the algorithm is that is predicted to be the fastest than the one that is."""
    here = (world_size, num_bytes)
    both = [
        (seconds, cell["seconds"])
        for seconds, cell in zip(guesses, cells, strict=True)
        if (cell["world_size"], cell["num_bytes"]) == here
    ]
    return min(both)[1] / min(measured for _, measured in both) - 1


if __name__ == "__main__":
    sys.exit(main())
