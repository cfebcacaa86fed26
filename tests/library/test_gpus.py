"""The file of measurements on GPUs: it keeps what machines measured, and says what they skipped."""

import json

import pytest

from collectives.measure import benchmark, gpus, registered


def record(seconds=0.5):
    case = {"name": "a product", "m": 8, "k": 8, "n": 8, "dtype": "bf16", "flops": 1024.0}
    prediction = registered.register("products", [case], {"planner": lambda case: 0.4})
    return prediction.against(lambda cases: [[seconds] for _ in cases])


def machine(parts, skipped=(), count=1, **others):
    facts = benchmark.machine() | {"nccl": "2.28.9"}
    return gpus.Machine("NVIDIA H100 80GB HBM3", count, facts, "H100", "abc", dict(skipped), records=parts, **others)


def test_a_file_gives_back_what_was_saved_with_a_case_a_line(tmp_path):
    span = {"name": "gemm", "lane": "stream 7", "start": 0.0, "seconds": 1e-3, "kind": "compute"}
    trace = {"name": "ddp", "measured": "2026-11-24", "spans": [span, span]}
    lesson = {"chapter": "15", "name": "experts", "world_size": 2, "difference": 1e-16, "right": True}
    saved = machine({"products": record()}, {"bandwidth": "one GPU"}, traces=[trace], lessons=[lesson])
    gpus.save([saved], tmp_path / "gpu.json")
    assert gpus.load(tmp_path / "gpu.json") == [saved]
    lines = (tmp_path / "gpu.json").read_text().splitlines()
    assert sum('"predicted": {' in line for line in lines) == 1 and sum("stream 7" in line for line in lines) == 2


def test_a_machine_is_named_with_its_versions_and_the_date(tmp_path):
    title = machine({}).title
    assert title.startswith("1 x NVIDIA H100 80GB HBM3, torch ") and "NCCL 2.28.9, 20" in title


def test_without_a_file_no_machine_has_measured_anything(tmp_path):
    assert gpus.load(tmp_path / "gpu.json") == []


def test_a_file_of_another_format_is_refused(tmp_path):
    (tmp_path / "gpu.json").write_text(json.dumps({"format": "another", "machines": []}))
    with pytest.raises(ValueError, match=r"gpu\.json is no file of measurements on GPUs"):
        gpus.load(tmp_path / "gpu.json")


def test_a_later_command_replaces_its_parts_and_leaves_the_others(tmp_path):
    path = tmp_path / "gpu.json"
    gpus.add(machine({"products": record(0.5), "moves": record()}, {"training": "no time was left"}), path)
    gpus.add(machine({"training": record()}, {"products": "no time was left"}), path)
    gpus.add(machine({"products": record(0.25)}, count=8), path)
    one, eight = gpus.load(path)
    assert one.parts == ["products", "moves", "training"] and one.skipped == {}
    assert registered.fastest_of(one.records["products"].cells[0]) == 0.5
    assert (eight.count, set(eight.records)) == (8, {"products"})


def test_a_table_has_what_was_measured_beside_what_was_predicted():
    lines = gpus.table("products", record()).splitlines()
    assert lines[1].split() == ["TFLOP/s", "/", "predicted", "ms", "predicted"]
    assert lines[2].split() == ["a", "product", "8", "x", "8", "x", "8", "bf16", "0.0", "/", "0.0", "500", "400"]
    case = {"name": "compiled", "flops": 4e14, "peak": 1e15, "predicted_bytes": 5_000_000_000}
    prediction = registered.register("steps", [case], {"planner": lambda case: 0.8})
    step = prediction.against(lambda cases: [registered.Measured([1.0, 3.0, 1.0], {"peak_bytes": 4_000_000_000})])
    assert gpus.table("training", step).splitlines()[2].split() == (
        ["compiled", "400.0", "/", "500.0", "40.0%", "/", "50.0%", "4.00", "/", "5.00", "1000", "800"]
    )
