"""The benchmark counts and checks what it times, keeps it with its machine, and reads what nccl-tests prints."""

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch

from collectives import ranks
from collectives.measure import bandwidth
from collectives.measure.bandwidth import Result, Timing
from collectives.price import algbw, busbw

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests" / "library" / "nccl_logs"
PUBLISHED = {  # file: what it does not say by itself, and what it must be read as
    "nccl-tests-gb200-72": ({"collective": "all_reduce"}, ("all_reduce", 72, 5, 745.53)),
    "nccl-tests-h100-8-reduce-scatter": ({"collective": "reduce_scatter"}, ("reduce_scatter", 8, 6, None)),
    "nccl-tests-2-all-gather": ({}, ("all_gather", 2, 8, 1.53568)),
    "nccl-tests-2021-256": ({"world_size": 256}, ("all_reduce", 256, 6, None)),
}


def every_collective(rank, world_size, num_bytes):
    found = {name: bandwidth.measure(name, num_bytes, iterations=2, warmup=1) for name in bandwidth.COLLECTIVES}
    return found, bandwidth.measure("all_reduce", [600], "bfloat16", 0, 1)


@pytest.fixture(scope="module")
def measured():
    """All collectives on three ranks, at a size that does not divide and at one smaller than an element a rank."""
    return ranks.run(every_collective, 3, [1, 1000])


def test_every_collective_is_timed_at_every_size_and_nothing_is_wrong(measured):
    for name, rows in measured[0][0].items():
        assert [row.wrong for row in rows] == [0, 0]
        assert [row.num_bytes for row in rows] == [12, 996]  # 4 bytes on each of 3 ranks; 1,000 rounded down
        shares = 1 if name in ("all_reduce", "broadcast") else 3
        assert [row.count * shares for row in rows] == [3, 249]
        for row in rows:
            assert row.algbw == row.num_bytes / row.seconds > 0
            assert row.busbw == busbw(name, 3, row.num_bytes, row.seconds)


def test_all_ranks_say_the_same(measured):
    assert measured[0] == measured[1] == measured[2]


def test_sums_are_checked_in_any_dtype_that_can_count_the_ranks(measured):
    (row,) = measured[0][1]
    assert (row.wrong, row.count) == (0, 300)
    assert [bandwidth._modulus(torch.bfloat16, world_size) for world_size in (2, 36, 72, 256)] == [7, 7, 4, 2]
    with pytest.raises(ValueError, match="bfloat16 is exact only up to 256: it can't check sums over 257 ranks"):
        bandwidth._modulus(torch.bfloat16, 257)


def broken(rank, world_size):
    import torch.distributed as dist

    real = dist.all_reduce

    def lossy(tensor, *arguments, **options):
        real(tensor, *arguments, **options)
        if tensor.dtype == torch.float32 and tensor.numel() > 2:
            tensor[:2] += 1  # on every rank

    dist.all_reduce = lossy
    return bandwidth.measure("all_reduce", [64], iterations=1, warmup=0)[0].wrong


def test_wrong_elements_are_counted_over_all_ranks():
    assert ranks.run(broken, 2) == [4, 4]


def test_sizes_are_powers_of_1024_and_a_factor_apart():
    assert bandwidth.sizes(bandwidth.size("1K"), bandwidth.size("16k"), 4) == [1024, 4096, 16384]
    assert bandwidth.size("2G") == 2**31
    with pytest.raises(ValueError, match="no sizes from"):
        bandwidth.sizes(8, 4)
    with pytest.raises(Exception, match="is not a size: write bytes"):
        bandwidth.size("1MB")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("gossip", [8]), "no benchmark of 'gossip': choose from all_reduce"),
        (("all_reduce", [8], "int4"), "no benchmark in 'int4': choose from float16, bfloat16"),
        (("all_reduce", [8], "float32", 5, 0), r"iterations \(0\) must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_rank_waits(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        bandwidth.measure(*arguments)


def a_result():
    rows = (Timing(1000, 250, 1e-3, 1e6, 1.5e6, 0), Timing(2000, 500, 1e-3, 2e6, 3e6, None))
    return Result("all_reduce", 4, "gloo", "float32", rows, {"cores": 2, "torch": "2"}, "2026-01-01T00:00:00+00:00")


def test_results_come_back_from_a_file_as_they_went(tmp_path):
    bandwidth.save([a_result(), a_result()], tmp_path / "kept.json")
    assert bandwidth.load(tmp_path / "kept.json") == [a_result()] * 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda found: "no json", r"is not JSON.*To read a printed table of nccl-tests, use parse\(\)"),
        (lambda found: [found], "not results of this benchmark"),
        (lambda found: found | {"format": "another"}, "not results of this benchmark"),
        (lambda found: found["results"][0].pop("backend") and found, "result 0 of .* is incomplete: .*backend"),
        (lambda found: found["results"][0].update(machine={}) or found, "result 0 of .* has no machine"),
        (lambda found: found["results"][0].update(rows=[]) or found, "result 0 of .* has no rows"),
    ],
)
def test_a_file_that_cannot_be_compared_is_refused(tmp_path, change, complaint):
    path = tmp_path / "kept.json"
    bandwidth.save([a_result()], path)
    changed = change(json.loads(path.read_text()))
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    with pytest.raises(ValueError, match=complaint):
        bandwidth.load(path)


def test_the_table_has_the_columns_of_nccl_tests_and_says_where_it_is_from():
    lines = bandwidth.table(a_result()).splitlines()
    assert lines[0] == "# all_reduce on 4 ranks over gloo: 2 cores (unknown kind), torch 2, 2026-01-01T00:00:00+00:00"
    assert lines[1].split() == ["#", "size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong"]
    assert lines[3].split() == ["1000", "250", "float32", "sum", "1000.0", "0.001", "0.0015", "0"]
    assert lines[4].split()[-1] == "N/A"
    assert lines[-1] == "# Avg bus bandwidth: 0.00225 GB/s"


def published(name):
    given, _ = PUBLISHED[name]
    return bandwidth.parse((LOGS / f"{name}.txt").read_text(), source="somebody", **given)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tables_are_read(name):
    result, (collective, world_size, num_rows, _) = published(name), PUBLISHED[name][1]
    assert (result.collective, result.world_size, len(result.rows)) == (collective, world_size, num_rows)
    assert "published, somebody" in bandwidth.table(result)
    for row in result.rows:
        parts = collective in ("all_gather", "reduce_scatter")
        assert row.num_bytes == row.count * 4 * (world_size if parts else 1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_bus_bandwidths_are_what_our_formula_makes_of_the_times(name):
    result = published(name)
    for row in result.rows:
        ours = busbw(result.collective, result.world_size, row.num_bytes, row.seconds)
        assert ours == pytest.approx(row.busbw, rel=5e-4, abs=5e6)  # times have 4 digits, bandwidths 2 decimals
        assert algbw(row.num_bytes, row.seconds) == pytest.approx(row.algbw, rel=5e-4, abs=5e6)


def test_columns_and_checks_of_older_versions_are_known():
    assert {row.wrong for row in published("nccl-tests-2021-256").rows} == {None}
    assert {row.wrong for row in published("nccl-tests-gb200-72").rows} == {0}
    assert published("nccl-tests-h100-8-reduce-scatter").machine == {"gpus": ["NVIDIA H100 80GB HBM3"]}


@pytest.mark.parametrize(
    ("text", "given", "complaint"),
    [
        ("hello", {}, "this text has no table of nccl-tests"),
        ("size count type redop time algbw busbw error\n 8 2 float sum 1 2 3 0", {}, "does not name its collective"),
        (
            "all_reduce_perf\nsize count type redop time algbw busbw error\n 8 2 float sum 1 2 3 0",
            {},
            "does not list its ranks",
        ),
    ],
)
def test_a_text_that_lacks_something_is_refused(text, given, complaint):
    with pytest.raises(ValueError, match=complaint):
        bandwidth.parse(text, **given)


def test_lines_torn_apart_by_other_output_are_left_out():
    whole = (LOGS / "nccl-tests-2021-256.txt").read_text()
    torn = whole.replace("45.65", "4node7").replace("50.28", "50.2node 7")
    assert len(bandwidth.parse(torn, world_size=256).rows) == 6 - 2
    torn = (LOGS / "nccl-2.22.3-issue-1453.txt").read_text()
    with pytest.raises(ValueError, match="no table"):
        bandwidth.parse(torn, "all_reduce", 24)


def test_the_command_prints_its_results_and_keeps_them(tmp_path, capsys):
    """On ranks of its own; under torchrun, on two nodes, in test_jobs.py."""
    wanted = ["--collective", "all_reduce", "broadcast", "--from", "1K", "--to", "4K", "--factor", "4"]
    bandwidth.main([*wanted, "--iterations", "2", "--save", str(tmp_path / "kept.json")])
    results = bandwidth.load(tmp_path / "kept.json")
    assert [result.collective for result in results] == ["all_reduce", "broadcast"]
    assert [row.num_bytes for row in results[0].rows] == [1024, 4096]
    assert capsys.readouterr().out == "\n\n".join(map(bandwidth.table, results)) + "\n"
    assert results[0].machine["torch"] == torch.__version__


def test_the_command_knows_before_it_measures_that_it_cannot_keep_the_results(tmp_path, capsys):
    with pytest.raises(SystemExit):
        bandwidth.main(["--save", str(tmp_path / "nowhere" / "kept.json")])
    assert "there is no folder" in capsys.readouterr().err


def test_over_nccl_the_same_code_measures_gpus():
    if torch.cuda.device_count() < 2:
        pytest.skip("blocked: no GPU")
    on_nccl = partial(ranks.run, backend="nccl")
    result = bandwidth.run("all_reduce", 2, bandwidth.sizes(2**20, 2**26, 8), start=on_nccl)
    assert result.backend == "nccl"
    assert {row.wrong for row in result.rows} == {0}
    assert result.machine["gpus"] and not math.isinf(result.average)


# What chapter 18 says of the recorded runs holds, or they are to be recorded again.


def test_on_recorded_lines_bus_bandwidth_is_the_lines_where_no_byte_is_wasted():
    recorded = bandwidth.load(ROOT / "book" / "data" / "bandwidth.json")
    results = {result.collective: result for result in recorded if "network" in result.machine}
    share = {name: result.rows[-1].busbw / (100e6 / 8) for name, result in results.items()}
    assert set(share) == set(bandwidth.COLLECTIVES)
    assert 0.85 < share["all_reduce"] < 1.05 and 0.85 < share["all_gather"] < 1.05
    assert share["reduce_scatter"] == pytest.approx(share["all_reduce"] / 2, rel=0.1), "an all-reduce inside"
    assert share["broadcast"] < 0.55, "a tree whose root sends all of the buffer twice"
    assert all(row.wrong == 0 for result in results.values() for row in result.rows)
