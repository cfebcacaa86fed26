"""`make bench` measures every method, and keeps and prints what it measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.measure import benchmark

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).resolve().parents[2]


def test_a_quick_run_measures_every_method_and_keeps_it(tmp_path):
    output = tmp_path / "new" / "bench.json"
    command = [sys.executable, ROOT / "tools" / "bench.py", output, "--quick", "--mpi", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    timings = [benchmark.Timing(**row) for row in json.loads(output.read_text())["timings"]]
    methods = {benchmark.OWN, benchmark.BLOCKING, benchmark.GROUP, benchmark.ORDINARY, benchmark.ARENA}
    assert {timing.method for timing in timings} == methods
    assert all(timing.seconds > 0 and timing.ratio > 0 and timing.fraction > 0 for timing in timings)
    assert {timing.ratio for timing in timings if timing.method == benchmark.OWN} == {1}
    assert all(method in done.stdout for method in methods)
    assert "MPICH is not installed and is left out" in done.stderr


def test_of_every_method_the_best_schedule_counts():
    slow, fast = (
        benchmark.Timing(4, 65536, benchmark.GROUP, name, 1.0, ratio, 0.1) for name, ratio in (("ring", 1), ("tree", 3))
    )
    assert benchmark.best([slow, fast]) == benchmark.best([fast, slow]) == [fast]
    assert "3.00 tree" in benchmark.table([slow, fast])
