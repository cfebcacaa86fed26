"""jobs/train.py, as it is, trains on gloo: the same losses by any strategy, killed or not, and the bytes on paper.

That it does so under torchrun, too, on two nodes, is in test_jobs.py.
"""

import json
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from collectives.measure.held import BytesHeld
from collectives.training import memory
from collectives.training.activations import counting_flops
from collectives.training.transformer import Block

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--layers", "2", "--width", "32", "--heads", "2", "--sequence", "16", "--vocabulary", "256", "--steps", "2"]


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
    assert len(found) == 6 and len(said.splitlines()) == 2 * len(found)
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
    job = file["Job"](layers=3, width=32, batch=5, sequence=16, vocabulary=256)
    weights = 3 * 12 * 32**2 + 32 * 256
    assert job.flops == pytest.approx(5 * 16 * (6 * weights + 6 * 3 * 16 * 32))
    for result in results.values():
        small = file["Job"](**{name: result[name] for name in file["Job"].__dataclass_fields__})
        assert result["flops_per_second"] * result["step_seconds"] == pytest.approx(small.flops)
        assert 0 < result["mfu"] == pytest.approx(result["flops_per_second"] / result["peak"])


def test_what_the_planner_says_is_printed_beside_what_is_measured(results, tmp_path):
    for result in results.values():
        predicted = result["predicted"]
        assert predicted["date"] <= result["date"] and predicted["seconds"] > 0
    found, said = train(tmp_path, "--strategy", "fsdp", "ddp", "--layers", "4", "--width", "128", "--sequence", "128")
    for result in found:
        assert 0.8 < result["predicted"]["bytes"] / result["peak_bytes"] < 1.25, "where layers aren't tiny"
    measured, predicted, *_ = said.splitlines()
    for words in ("ms a step", "tokens/s", "TFLOP/s a rank, MFU", "peak"):
        assert words in measured and words in predicted
    assert f"loss {found[0]['losses'][0]:.3f} -> " in measured
    assert f"held-out loss {found[0]['held_out_loss']:.3f}" in measured


def test_on_gpus_the_planner_prices_the_gpu_that_torch_names_in_bf16(file):
    job, h100 = file["Job"](precision="bf16", width=2048, heads=16, layers=16, sequence=2048), ["NVIDIA H100 80GB HBM3"]
    node = file["cluster"]({"gpus": h100 * 8}, 8)
    assert (node.gpu, node.nodes, node.gpus_per_node, node.peak) == ("H100", 1, 8, 989.4e12)
    assert file["cluster"]({"gpus": ["NVIDIA H200"] * 8, "gpu_bytes": 150e9}, 16).nodes == 2
    assert file["cluster"]({"gpus": ["NVIDIA RTX 9000"]}, 1) is file["cluster"]({}, 2) is None
    seconds = file["plan"](job, node, 8)["seconds"]
    assert job.flops / seconds < 989.4e12
    assert file["plan"](file["Job"](), node, 8)["seconds"] is None, "its rates are those of bf16"
    full = file["Job"](**{**vars(job), "recompute": "full"})
    assert file["plan"](full, node, 8)["seconds"] > seconds
    assert file["plan"](full, node, 8)["bytes"] < file["plan"](job, node, 8)["bytes"]


def test_the_peak_is_what_the_user_says(tmp_path):
    (result,), said = train(tmp_path, "--peak", "0.5")
    assert result["mfu"] == pytest.approx(result["flops_per_second"] / 0.5e12)
    assert f"MFU {result['mfu']:.1%}" in said


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_changes_no_loss(results, tmp_path, recompute):
    (result,), _ = train(tmp_path, "--strategy", "fsdp", "--recompute", recompute)
    assert result["losses"] == results["fsdp", "fp32"]["losses"]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_recomputing_all_but_products_repeats_no_product_with_a_bias_either(file, recompute):
    """Torch runs a product with a bias as `addmm`: a policy that names only `mm` recomputes four of six."""
    job = file["Job"](layers=1, width=64, sequence=32, vocabulary=256, recompute=recompute)
    layer, x = file["Layer"](job), torch.randn(job.batch, 32, 64, requires_grad=True)
    with counting_flops() as counted:
        layer(x).sum().backward()
    once = 2 * job.batch * 32 * 12 * 64**2 + job.batch * 32 * job.model.scores
    last = 2 * job.batch * 32 * 4 * 64**2  # which torch stops before
    more = once - last if recompute == "full" else 0
    attention = job.batch * 32 * job.model.scores
    assert counted.get_total_flops() == 3 * once + attention / 2 + more


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_what_a_layer_keeps_under_autocast_is_what_the_plan_adds(file, recompute):
    job = file["Job"](precision="bf16", layers=1, width=256, sequence=64, batch=4, vocabulary=256, recompute=recompute)
    layer, x = file["Layer"](job), torch.randn(4, 64, 256, requires_grad=True)
    parameters = list(layer.parameters())
    with BytesHeld(lambda: {"weights": parameters}) as held:
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        kept = held.now["other"] - y.untyped_storage().nbytes()
    if recompute == "none":  # the weights' casts, which the plan counts for all layers
        kept -= 2 * sum(each.numel() for each in parameters if each.dim() > 1)
    planned = sum(job.model.kept[recompute]) + file["AUTOCAST"][recompute] * job.width
    assert kept / (4 * 64) == pytest.approx(planned, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_compiled_layers_train_the_same_model(results, tmp_path, strategy):
    (result,), _ = train(tmp_path, "--strategy", strategy, "--compile")
    assert result["losses"] == pytest.approx(results[strategy, "fp32"]["losses"], rel=1e-4)


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_a_job_that_starts_again_goes_on_from_its_checkpoint_as_if_nothing_had_happened(tmp_path, strategy):
    arguments = ("--strategy", strategy, "--checkpoint", tmp_path / "state", "--every", "2")
    (cut,), _ = train(tmp_path, *arguments, "--steps", "2")
    (resumed,), _ = train(tmp_path, *arguments, "--steps", "6")
    (whole,), _ = train(tmp_path, "--strategy", strategy, "--steps", "6")
    assert (cut["first_step"], resumed["first_step"], whole["first_step"]) == (0, 5, 0)
    assert cut["losses"] + resumed["losses"] == whole["losses"]


def lines_of(log):
    """The last loss that a log has of each step."""
    return {each["step"]: each["loss"] for each in map(json.loads, log.read_text().splitlines())}


def begun(log, steps, process):
    """Wait until a log has lines for so many steps."""
    deadline = time.monotonic() + 120
    while not log.exists() or len(log.read_text().splitlines()) < steps:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_a_run_that_is_killed_at_random_steps_ends_with_the_losses_of_an_undisturbed_one(tmp_path, strategy):
    """The ranks are killed without warning, twice; a state is saved every third step."""
    steps = 40
    arguments = ["--strategy", strategy, "--steps", str(steps - 3)]
    train(tmp_path, *arguments, "--losses", tmp_path / "whole")
    disturbed = [*arguments, "--checkpoint", tmp_path / "state", "--every", "3", "--losses", tmp_path / "disturbed"]
    for kill in sorted(random.SystemRandom().sample(range(1, steps - 8), 2)):
        command = [sys.executable, ROOT / "jobs" / "train.py", *SMALL, *map(str, disturbed)]
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE)
        begun(tmp_path / "disturbed", kill, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    (last,), _ = train(tmp_path, *disturbed)
    assert lines_of(tmp_path / "disturbed") == lines_of(tmp_path / "whole"), f"killed after {kill} lines"
    assert last["first_step"] % 3 == 0 and last["saved_step"] == steps


def test_a_run_that_is_asked_to_end_saves_its_state_first(tmp_path):
    """As Slurm, Kubernetes and spot instances ask: SIGTERM, some time before they kill."""
    arguments = ["--steps", "400", "--checkpoint", tmp_path / "state", "--every", "1000", "--losses", tmp_path / "log"]
    torchrun = [Path(sys.executable).parent / "torchrun", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, ROOT / "jobs" / "train.py", *SMALL, *arguments]
    process = subprocess.Popen(list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE)
    begun(tmp_path / "log", 5, process)
    process.terminate()
    process.communicate(timeout=60)
    steps = len(lines_of(tmp_path / "log"))
    assert 5 <= steps < 400
    assert (tmp_path / "state" / "ddp-fp32" / "latest").read_text() == str(steps)
    (again,), _ = train(tmp_path, "--steps", "2", "--checkpoint", tmp_path / "state")
    assert (again["first_step"], again["losses"], again["step_seconds"]) == (steps, [], None), "nothing was left to do"


def test_what_cannot_be_trained_is_refused(file):
    job = file["Job"]
    with pytest.raises(ValueError, match="steps: must be at least 1"):
        job(steps=0)
    with pytest.raises(ValueError, match="no strategy 'hope': choose from ddp, zero2, fsdp"):
        job(strategy="hope")
    with pytest.raises(ValueError, match="a vocabulary of 64: it must be at least 256"):
        job(vocabulary=64)
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


def test_no_option_is_one_that_torchrun_takes_for_an_abbreviation_of_its_own(file):
    """torchrun refuses `--log` after the program's name too: it could be --log-dir."""
    from torch.distributed.run import get_args_parser

    own = [name for action in file["parser"]()._actions for name in action.option_strings if "help" not in action.dest]
    torchruns = [name for action in get_args_parser()._actions for name in action.option_strings]
    assert [name for name in own if any(each.startswith(name) for each in torchruns)] == []
