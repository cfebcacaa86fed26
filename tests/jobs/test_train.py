"""jobs/train.py, as it is, trains on gloo: the same losses by any strategy, and the bytes that the formulas say.

That it does so under torchrun, too, on two nodes, is in test_jobs.py.
"""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from collectives.training import memory
from collectives.training.transformer import Block

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--layers", "2", "--width", "32", "--heads", "2", "--sequence", "16", "--vocabulary", "64", "--steps", "2"]


def train(tmp_path, *arguments):
    kept = tmp_path / "kept.json"
    command = [sys.executable, ROOT / "jobs" / "train.py", *SMALL, *arguments, "--save", kept]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(kept.read_text()), done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All strategies and precisions on two ranks that the file has started itself."""
    strategies = ("--strategy", "ddp", "zero2", "fsdp", "--precision", "fp32", "bf16")
    found, said = train(tmp_path_factory.mktemp("train"), *strategies)
    assert len(said.splitlines()) == len(found) == 6
    return {(each["strategy"], each["precision"]): each for each in found}


def test_a_result_carries_its_machine_and_what_was_trained(results):
    for result in results.values():
        assert result["machine"]["torch"] == torch.__version__
        assert (result["world_size"], result["layers"], result["width"]) == (2, 2, 32)
        assert result["tokens_per_second"] == pytest.approx(2 * 2 * 16 / result["step_seconds"])
        assert result["date"].startswith("20")


def test_all_strategies_train_the_same_model(results):
    ddp, zero2, fsdp = (results[strategy, "fp32"]["losses"] for strategy in ("ddp", "zero2", "fsdp"))
    assert ddp == pytest.approx(zero2, rel=1e-5) and ddp == pytest.approx(fsdp, rel=1e-5)
    assert len(ddp) == 5 and ddp[-1] < ddp[0], "three steps before the clock, two under it"
    for strategy in ("ddp", "zero2", "fsdp"):
        assert results[strategy, "bf16"]["losses"] == pytest.approx(ddp, rel=1e-2)


def test_collectives_and_bytes_are_what_the_formulas_say(results):
    """Gradients in fp32, and gathered parameters in what the layers compute with."""
    whole = 4 * results["ddp", "fp32"]["parameters"]
    payloads = {key: result["payloads"] for key, result in results.items()}
    assert payloads["ddp", "fp32"] == payloads["ddp", "bf16"] == {"all_reduce": whole}
    assert payloads["zero2", "fp32"] == {"all_gather": whole, "reduce_scatter": whole}
    assert payloads["fsdp", "fp32"] == {"all_gather": 2 * whole, "reduce_scatter": whole}
    assert payloads["zero2", "bf16"] == {"all_gather": whole // 2, "reduce_scatter": whole}
    assert payloads["fsdp", "bf16"] == {"all_gather": whole, "reduce_scatter": whole}
    sent = {key: result["bytes_sent"] / whole for key, result in results.items() if key[1] == "fp32"}
    assert sent == {("ddp", "fp32"): 1, ("zero2", "fp32"): 1, ("fsdp", "fp32"): 1.5}, "of P = 2: half of each pass"


def test_the_peak_of_memory_is_above_what_is_held_at_rest_and_lower_where_layers_are_given_back(results):
    for (strategy, _), result in results.items():
        rest = memory.at_rest(result["parameters"], 2, 0 if strategy == "ddp" else 3, memory.FULL_ADAM).total
        assert rest < result["peak_bytes"] < 3 * rest
    assert results["fsdp", "fp32"]["peak_bytes"] < results["zero2", "fp32"]["peak_bytes"]
    assert results["fsdp", "bf16"]["peak_bytes"] < results["fsdp", "fp32"]["peak_bytes"]


@pytest.fixture(scope="module")
def file():
    """The names in jobs/train.py."""
    return runpy.run_path(str(ROOT / "jobs" / "train.py"))


def test_a_layer_takes_its_whole_batch_in_one_call_of_attention(file, monkeypatch):
    calls, attention = [], functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional, "scaled_dot_product_attention", lambda *a, **o: calls.append(a) or attention(*a, **o)
    )
    job = file["Job"](layers=3, width=32, batch=5, sequence=16)
    file["transformer"](job)(torch.zeros(5, 16, dtype=torch.long))
    assert [call[0].shape for call in calls] == [(5, 4, 16, 8)] * 3
    block, batch = Block(32, 4).double(), torch.randn(5, 7, 32, dtype=torch.float64)
    assert torch.allclose(block(batch), torch.stack([block(sequence) for sequence in batch]), rtol=0, atol=1e-12)


def test_flops_are_six_for_each_weight_and_token_and_those_of_causal_attention(file, results):
    job = file["Job"](layers=3, width=32, batch=5, sequence=16, vocabulary=64)
    weights = 3 * 12 * 32**2 + 32 * 64
    assert job.flops == pytest.approx(5 * 16 * (6 * weights + 6 * 3 * 16 * 32))
    for result in results.values():
        small = file["Job"](**{name: result[name] for name in file["Job"].__dataclass_fields__})
        assert result["flops_per_second"] * result["step_seconds"] == pytest.approx(small.flops)
        assert result["mfu"] is None, "of a CPU's peak nothing is known"


def test_the_peak_is_a_known_gpus_in_bf16_or_what_the_user_says(file, tmp_path):
    bf16, fp32, h100 = file["Job"](precision="bf16"), file["Job"](), {"gpus": ["NVIDIA H100 80GB HBM3"] * 8}
    assert file["peak_flops"](bf16, h100) == 989.4e12
    assert file["peak_flops"](fp32, h100) is file["peak_flops"](bf16, {}) is None
    assert file["peak_flops"](bf16, {"gpus": ["NVIDIA RTX 9000"]}) is None
    (result,), said = train(tmp_path, "--peak", "0.5")
    assert result["mfu"] == pytest.approx(result["flops_per_second"] / 0.5e12)
    assert f"MFU {result['mfu']:.1%}" in said


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_job_that_starts_again_goes_on_from_its_checkpoint_as_if_nothing_had_happened(tmp_path, strategy):
    arguments = ("--strategy", strategy, "--checkpoint", tmp_path / "state", "--every", "2")
    (cut,), _ = train(tmp_path, *arguments, "--steps", "2")
    (resumed,), _ = train(tmp_path, *arguments, "--steps", "6")
    (whole,), _ = train(tmp_path, "--strategy", strategy, "--steps", "6")
    assert (cut["first_step"], resumed["first_step"], whole["first_step"]) == (0, 5, 0)
    assert cut["losses"] + resumed["losses"] == whole["losses"]


def test_what_cannot_be_trained_is_refused(file):
    job = file["Job"]
    with pytest.raises(ValueError, match="steps: must be at least 1"):
        job(steps=0)
    with pytest.raises(ValueError, match="no strategy 'hope': choose from ddp, zero2, fsdp"):
        job(strategy="hope")
    with pytest.raises(ValueError, match="a width of 128 does not divide into 3 heads"):
        job(heads=3)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--heads", "3"], "error: a width of 128 does not divide into 3 heads"),
        (["--peak", "989e12"], "error: --peak 9.89e+14: it is in TFLOP/s, such as 989 for an H100 in bf16"),
        (["--every", "0"], "error: --every 0: must be at least 1 step"),
        (["--save", "nowhere/run.json"], "error: --save nowhere/run.json: there is no folder nowhere"),
    ],
)
def test_the_command_says_so_before_any_rank_starts(monkeypatch, capsys, arguments, complaint):
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "jobs" / "train.py"), run_name="__main__")
    assert complaint in capsys.readouterr().err


def test_on_gpus_it_trains_over_nccl(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("blocked: no GPU")
    (result,), _ = train(tmp_path, "--strategy", "fsdp", "--precision", "bf16", "--ranks", "2")
    assert result["backend"] == "nccl" and result["machine"]["gpus"]
    assert result["mfu"] is None or 0 < result["mfu"] < 1
