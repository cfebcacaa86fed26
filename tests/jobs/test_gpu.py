"""`make gpu` says blocked without a GPU; its parts run where a CPU stands in, and keep what they predicted."""

import importlib.util
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn import functional

from collectives.machines import GPUS, Cluster
from collectives.measure import gpus, registered
from collectives.measure.held import BytesHeld
from collectives.training import fsdp

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "gpu.py"


@pytest.fixture(scope="module")
def tool():
    """The tool as a module, under the name by which ranks import it."""
    environment, path = os.environ.copy(), list(sys.path)
    sys.path.insert(0, str(TOOL.parent))
    yield importlib.import_module("gpu")
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path


@pytest.fixture
def here(tool):
    """A CPU that stands in for an H100, with cases that it can run. Two ranks, over gloo."""
    return tool.Here(torch.device("cpu"), "a CPU that stands in", 2, GPUS["H100"], (2, 28, 9), small=True)


def test_without_a_gpu_it_says_blocked_and_ends_with_a_status_of_its_own(tmp_path):
    command = [sys.executable, TOOL, "--save", tmp_path / "gpu.json"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (3, gpus.BLOCKED, "")
    assert not (tmp_path / "gpu.json").exists(), "nothing was measured, so nothing is recorded"


def test_what_the_book_keeps_was_measured_on_a_gpu():
    for machine in gpus.load(ROOT / "book" / "data" / "gpu.json"):
        assert machine.known in GPUS and machine.machine["gpus"]
        for record in machine.records.values():
            assert record.header["predicted"] <= record.header["measured"]


def test_the_parts_on_one_device_keep_every_case_beside_what_was_predicted(tool, here, tmp_path, capsys):
    status = tool.main(["products", "attention", "moves", "--save", str(tmp_path / "gpu.json")], lambda: here)
    assert status == 0
    (machine,) = gpus.load(tmp_path / "gpu.json")
    assert set(machine.records) == {"products", "attention", "moves"} and machine.skipped == {}
    for record in machine.records.values():
        for cell in record.cells:
            assert all(seconds > 0 for seconds in [*cell["predicted"].values(), *cell["seconds"]])
    product = machine.records["products"].cells[0]
    assert product["predicted"]["rated peak"] == pytest.approx(product["flops"] / 989.4e12, rel=1e-3)
    said = capsys.readouterr().out
    assert "TFLOP/s / predicted" in said and "square 64 x 64 x 64 bf16" in said and "GB/s / predicted" in said


def test_schedules_on_real_ranks_are_right_and_priced_on_the_gpus_links(tool, here):
    record = tool.schedules(here)
    assert len(record.cells) == len(tool.SCHEDULES)
    assert all(cell["right"] for cell in record.cells)
    assert {cell["chapter"] for cell in record.cells} == {"02", "03", "04", "06"}


def test_what_the_chapters_do_on_ranks_is_what_one_rank_does(tool, here, capsys):
    found = tool.lessons(here)
    assert {row["chapter"] for row in found} == {"07", "08", "09", "10", "11", "13", "14", "15", "16", "17", "19"}
    assert all(row["right"] for row in found), found


def test_a_lesson_whose_ranks_fail_is_wrong_and_the_others_go_on(tool, here, monkeypatch, tmp_path, capsys):
    def broken(rank, world_size):
        raise RuntimeError("no such GPU")

    monkeypatch.setattr(
        tool.gpu_lessons, "LESSONS", {"08, broken": broken, "15, experts": tool.gpu_lessons.expert_parallel}
    )
    assert tool.main(["lessons", "--save", str(tmp_path / "gpu.json")], lambda: here) == 1
    (machine,) = gpus.load(tmp_path / "gpu.json")
    assert [row["right"] for row in machine.lessons] == [False, True]
    assert "no such GPU" in machine.lessons[0]["error"]


@pytest.mark.slow
def test_training_runs_under_torchrun_beside_the_planners_seconds_and_bytes(tool, here):
    record = tool.training(here)
    (cell,) = record.cells
    assert cell["peak_bytes"] > 0 < cell["predicted_bytes"] and len(cell["seconds"]) == 2
    assert cell["losses"][0] == pytest.approx(5.5, abs=0.2), "near ln 256"


@pytest.mark.slow
def test_a_sweep_is_held_against_the_network_model(tool, here):
    record, paths = tool.sweep(here)
    assert {cell["collective"] for cell in record.cells} == set(tool.network.COLLECTIVES)
    assert all(cell["right"] for cell in record.cells)
    reduces = {cell["way"].split()[0] for cell in record.cells if cell["collective"] == "all_reduce"}
    assert reduces <= set(tool.nccl_log.ALGORITHMS)
    assert paths == "", "gloo writes no log of NCCL's"


def test_one_gpu_skips_what_needs_two_and_says_why(tool, here, tmp_path, capsys):
    one = tool.Here(**{**vars(here), "count": 1, "small": False})
    assert tool.main(["ranks", "lessons", "bandwidth", "--save", str(tmp_path / "gpu.json")], lambda: one) == 0
    (machine,) = gpus.load(tmp_path / "gpu.json")
    assert machine.skipped == {
        "ranks": "one GPU, and NCCL 2.28.9 lets no two ranks share it; 2.30 does",
        "lessons": "one GPU, and NCCL 2.28.9 lets no two ranks share it; 2.30 does",
        "bandwidth": "one GPU: a sweep needs two",
    }


def test_what_needs_two_gpus_says_so_even_when_no_time_is_left(tool, here, tmp_path, capsys):
    one = tool.Here(**{**vars(here), "count": 1, "small": False})
    tool.main(["ranks", "bandwidth", "--minutes", "0.01", "--save", str(tmp_path / "gpu.json")], lambda: one)
    (machine,) = gpus.load(tmp_path / "gpu.json")
    assert all(why.startswith("one GPU") for why in machine.skipped.values()), machine.skipped


def test_a_setting_that_is_not_trained_in_time_or_fails_costs_only_itself(tool, here, tmp_path, monkeypatch, capsys):
    on = tool.Here(**{**vars(here), "count": 1, "small": False, "nccl": (2, 30, 3)})

    def trained(here, case):
        if case["name"] == "eager":
            raise subprocess.TimeoutExpired("torchrun", 1)
        if case["batch"] == 16:
            raise RuntimeError("out of memory")
        if case["name"] == "recomputing layers":
            on.__dict__["deadline"] = 0  # the time is over
        return {"seconds": [0.25], "peak_bytes": 10**9, "losses": [10.0, 9.0]}

    monkeypatch.setattr(tool, "trained", trained)
    record = tool.training(on)
    assert [cell["name"] for cell in record.cells] == ["compiled", "recomputing all but products", "recomputing layers"]
    left = {cell["name"]: cell["why"] for cell in record.header["unmeasured"]}
    assert left["eager"] == "it took longer than the time that was left"
    assert left["one sequence"] == left["fully sharded"] == "no time was left"
    table = gpus.table("training", record)
    assert "eager: not measured, it took longer than the time that was left" in table
    on.__dict__["deadline"] = here.deadline
    monkeypatch.setattr(
        tool,
        "settings",
        lambda here: [tool.MODEL | {"name": name, "batch": 16 * (name == "large") or 1} for name in ("small", "large")],
    )
    monkeypatch.setattr(tool, "Here", lambda **fields: on)
    assert tool.main(["training", "--save", str(tmp_path / "gpu.json")], lambda: on) == 1, "a failure is one"
    (machine,) = gpus.load(tmp_path / "gpu.json")
    assert [cell["name"] for cell in machine.records["training"].cells] == ["small"]
    assert machine.records["training"].header["unmeasured"][0]["why"] == "failed: out of memory"


def test_a_part_that_fails_loses_nothing_of_the_others(tool, here, tmp_path, monkeypatch, capsys):
    def broken(here):
        raise RuntimeError("the device fell off the bus")

    monkeypatch.setattr(tool, "attention", broken)
    assert tool.main(["attention", "products", "--save", str(tmp_path / "gpu.json")], lambda: here) == 1
    (machine,) = gpus.load(tmp_path / "gpu.json")
    assert set(machine.records) == {"products"}
    assert machine.skipped == {"attention": "failed: RuntimeError: the device fell off the bus"}


def test_a_report_tells_each_part_of_any_machine_and_what_it_skipped(tool, here, tmp_path, capsys):
    """Chapter 18 shows it of the reader's own: of a GPU that the course never had, of two, of parts that failed."""
    path = tmp_path / "gpu.json"
    parts = ["products", "attention", "moves", "trace", "ranks", "lessons"]
    assert tool.main([*parts, "--save", str(path)], lambda: here) == 0
    (machine,) = gpus.load(path)
    late = replace(machine, paths="NET/IB", skipped={"bandwidth": "no time was left"})
    told = gpus.report(late)
    assert told.startswith("2 x a CPU that stands in") and told.endswith("skipped bandwidth: no time was left")
    for words in ("square 64 x 64 x 64 bf16", "GB/s / predicted", " spans on ", "ranks: NET/IB", ": right, off by "):
        assert words in told, words
    assert told.count("lesson of chapter") == len(machine.lessons) > 5


def test_a_part_for_which_no_time_is_left_is_not_begun(tool, here, tmp_path, capsys):
    late = tool.Here(**{**vars(here), "small": False})
    path = tmp_path / "gpu.json"
    assert tool.main(["products", "--minutes", "0.01", "--save", str(path)], lambda: late) == 0
    assert gpus.load(path)[0].skipped == {"products": 'no time was left; run: make gpu PARTS="products"'}


def test_measurements_of_another_machine_are_taken_in(tool, here, tmp_path, capsys):
    there, book = tmp_path / "there.json", tmp_path / "book.json"
    tool.main(["products", "--save", str(there)], lambda: here)
    assert tool.main(["--merge", str(there), "--save", str(book)]) == 0
    assert gpus.load(book) == gpus.load(there)


def test_every_case_for_a_gpu_has_a_prediction_on_every_gpu_that_the_planner_knows(tool, monkeypatch):
    """Without the GPU: only what is measured is replaced."""
    asked, real = [], registered.register

    def register(what, cases, models, known=None):
        prediction = real(what, cases, models, known)
        asked.append(prediction)
        return type("Unmeasured", (), {"against": lambda self, measure: prediction})()

    monkeypatch.setattr(tool.registered, "register", register)
    for name, gpu in GPUS.items():
        count = min(8, gpu.joined)
        on = tool.Here(torch.device("cuda"), name, count, gpu, (2, 30, 3))
        for part in (tool.products, tool.attention, tool.moves, tool.schedules, tool.sweep, tool.training):
            part(on)
        fits = [cell["predicted_bytes"] < gpu.memory for cell in asked[-1].cells]
        assert all(fits) or gpu.memory < 79 * 2**30, f"what is trained fits {name}"


def test_the_machine_is_found_by_what_torch_says_of_its_gpus(tool, monkeypatch):
    facts = {"gpus": ["NVIDIA H200"] * 2, "gpu_bytes": 150e9}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 30, 3))
    monkeypatch.setattr(tool.bandwidth, "machine", lambda: facts)
    found = tool.look()
    assert (found.gpu, found.count, found.known.name, found.nccl) == ("NVIDIA H200", 2, "H200", (2, 30, 3))
    facts["gpus"] = ["NVIDIA RTX 9000"]
    with pytest.raises(SystemExit, match=r"NVIDIA RTX 9000 has no row in collectives\.machines\.GPUS: add one"):
        tool.look()


def test_two_ranks_share_a_gpu_where_nccl_lets_them(tool, here, monkeypatch):
    one = tool.Here(**{**vars(here), "count": 1, "small": False, "nccl": (2, 30, 3)})
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert tool.worlds_on(one) == [2]
    assert (os.environ["NCCL_MULTI_RANK_GPU_ENABLE"], os.environ["LOCAL_RANK"]) == ("1", "0")


def test_the_tool_needs_torch_and_numpy_and_what_ranks_travel_by():
    """A bare machine has no Jupyter, no matplotlib and no test tools."""
    script = (
        f"import sys; sys.argv = ['gpu.py']; sys.path.insert(0, {str(TOOL.parent)!r}); import gpu; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd="/", check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"matplotlib", "IPython", "nbgrader", "pytest", "scipy", "yaml"}


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_planners_memory_is_that_of_the_measured_model_on_eight_pretended_ranks(tool, monkeypatch, recompute):
    """Torch's fake backend and fake tensors: every operation at its real size and dtype, without the GPUs."""
    program = runpy.run_path(str(ROOT / "jobs" / "train.py"))
    job = program["Job"](**tool.MODEL | {"layers": 3, "batch": 8, "strategy": "fsdp", "recompute": recompute})
    monkeypatch.setattr(fsdp, "device", lambda: torch.device("cpu"))
    policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    with fsdp.pretended(8) as mesh:
        model = fsdp.shard(program["transformer"](job), mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())

        def step():
            tokens = torch.zeros(job.batch, job.sequence, dtype=torch.long)
            functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

        step()  # Adam makes its moments
        with BytesHeld(fsdp.kinds(model, optimizer)) as held:
            step()
    eight = Cluster("H100", 1, 8)
    ratio = program["plan"](job, eight, 8)["bytes"] / sum(held.peak.values())
    assert 1 <= ratio < 1.4, "never too low; it adds the logits to a layer that is recomputed when they are gone"


@pytest.mark.slow
def test_traces_of_a_step_and_of_products_beside_a_copy_are_kept_with_their_seconds(tool, here):
    """A CPU has no streams, so there are no spans; what a GPU's trace becomes is in test_device.py."""
    step, beside = tool.trace(here)
    assert step["spans"] == beside["spans"] == []
    assert set(beside["seconds"]) == {"products", "copies", "both"} and min(beside["seconds"].values()) > 0
