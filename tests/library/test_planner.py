"""The planner says what published runs say, what schedules cost when they are priced, and why a layout cannot be."""

import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, replace
from itertools import islice, product

import numpy as np
import pytest

from collectives import fitted, network, price
from collectives.algorithms import ring
from collectives.figures.calculator import GB, SECONDS, Calculator, Choice, Output, Slider
from collectives.machines import RUNNING_CASE
from collectives.topology import Link, uniform
from collectives.training import costs, evidence, kernels, pipeline, published, runs
from collectives.training.flat import LAPTOP, Machine, flat
from collectives.training.flat import ring as around_a_ring
from collectives.training.groups import Groups, near
from collectives.training.kernels import FITTED, LEFT_OUT
from collectives.training.memory import FP32_GRADIENTS, MIXED_ADAM, at_rest
from collectives.training.planner import (
    MACHINES,
    MODELS,
    Layout,
    Model,
    Software,
    layouts,
    main,
    memory,
    refuse,
    search,
    simulate,
    step,
)

GPT3, LLAMA, EXPERTS = MODELS["gpt3-175b"], MODELS["llama-3-70b"], MODELS["deepseek-v3"]
H100 = MACHINES["h100"]
PARTS = ("compute", "tensor", "expert", "data", "pipeline", "context", "bubble")


# --- published runs ---


def test_published_figures_come_out_within_their_bounds():
    rows = published.checks()
    print("\n" + published.table(rows))
    assert len(rows) > 50
    assert [row for row in rows if row.bound is not None and abs(row.error) > row.bound] == []
    assert [row for row in rows if row.unit == "GB of at most" and row.error > 0] == []


def test_the_seconds_of_table_5_are_its_utilisations():
    """Two columns of Korthikanti et al., 2022, agree by our count of FLOPs: none was copied wrong."""
    seconds = {row.what.split(":")[0]: row.published for row in published.megatron_2022() if "sequence par" in row.what}
    work = {"megatron-22b": 4 / 8, "gpt3-175b": 1, "megatron-530b": 1, "megatron-1t": 1}  # sequences a GPU
    for name, mfu in published.UTILISATION_2022.items():
        model = MODELS[name]
        assert model.flops(work[name] * model.sequence) / seconds[name] / 312e12 == pytest.approx(mfu, abs=0.002)


def test_where_the_planner_is_wrong_it_is_known_to_be():
    """DeepSpeed's ZeRO-3 of 2021 did not hide its gathers: the planner must not be trusted there, and says so."""
    errors = {row.what: row.error for row in published.checks() if row.bound is None}
    assert len(errors) == 6
    assert min(errors.values()) > 0.2


# --- runs that are judged by the same command as rows from elsewhere ---


@pytest.fixture(scope="module")
def rows():
    return evidence.load()


@pytest.fixture(scope="module")
def used(rows):
    return evidence.samples(rows)[0]


def test_the_constants_are_those_that_a_fit_from_the_priors_finds(used):
    found = evidence.refit(used)
    assert asdict(found) == pytest.approx(asdict(FITTED), rel=0.02)


def test_the_planner_holds_on_the_runs_that_it_is_fitted_to(rows):
    """All but five of 463 rows can be used, and each of these says why it can't."""
    found = evidence.gather(rows, leave_out=False)
    assert len(found.used) == 458
    assert sorted(found.unused.values()) == [2, 3]
    everything = fitted.errors(found.errors[evidence.NOTHING])
    assert everything.median < 0.06
    assert everything.near > 0.95
    by_model = evidence.by(found, found.errors[evidence.NOTHING], "model")
    assert by_model["dense"].median < by_model["experts"].median < 0.12
    assert "worst five" in evidence.report(found)


@pytest.mark.parametrize("source", ["maxtext/README_70b", "grok1", "benchmarks/llama3_h100"])
def test_a_source_that_is_left_out_is_predicted_within_a_quarter(source, used):
    theirs = [sample for sample in used if source in sample.source]
    others = [sample for sample in used if source not in sample.source]
    found = fitted.errors(evidence.errors_of(theirs, evidence.refit(others, FITTED, steps=3)))
    assert found.number >= 4
    assert found.median < 0.17
    assert found.near > 0.8


def test_a_row_is_predicted_with_its_interval(rows):
    row = next(row for row in rows if row["model"] == "LLAMA3_70B" and row["gpu"] == "H100")
    found = published.predict(row)
    assert found.tokens_per_s_per_gpu == pytest.approx(row["metric"]["value"], rel=0.1)
    assert found.seconds * found.tokens_per_s_per_gpu == pytest.approx(row["global_batch"] * row["seq"] / row["n_gpus"])
    assert found.relative_sigma == LEFT_OUT["dense"]
    low, high = step(*runs.read(row)).interval
    assert low < found.seconds < high


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "TPU v5e"}, "the GPU 'TPU v5e' isn't known"),
        ({"n_gpus": None}, "the number of GPUs isn't given"),
        ({"model": "Mystery", "params_b": None}, "the model 'Mystery' isn't known, and its size isn't given"),
        ({"n_gpus": 60}, "60 GPUs don't divide by tp 4 x pp 8 x cp 1"),
        ({"metric": {"value": 1, "unit": "s"}, "global_batch": None}, "a step's seconds need its batch"),
        ({"metric": {"value": 1, "unit": "s"}, "seq": None}, "a step's seconds need its sequence length"),
        ({"metric": {"value": 1, "unit": "furlongs"}}, "the unit 'furlongs' isn't known"),
        ({"precision": "fp9"}, "the precision 'fp9' isn't known"),
    ],
)
def test_a_row_that_cannot_be_used_gives_one_reason(change, reason, rows):
    row = next(row for row in rows if row["model"] == "LLAMA3_70B" and row["gpu"] == "H100") | change
    with pytest.raises(runs.Unusable, match=re.escape(reason)):
        runs.measured(row, runs.read(row))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_gpus": 128, "layout": {"pp": 128}}, "pp 128 is more than 80 layers"),
        ({"n_gpus": 48, "layout": {"tp": 6}}, "tp 6 spans nodes of 8"),
        ({"layout": "tp 8"}, "its layout must be an object with tp, pp and so on, not 'tp 8'"),
        ({"layout": {"tp": -8}}, "its tp must be a whole number from 1 on, not -8"),
        ({"n_gpus": 63.5}, "its n_gpus must be a whole number from 1 on, not 63.5"),
        ({"seq": "8k"}, "its seq must be a whole number from 1 on, not '8k'"),
        ({"metric": None}, "its metric must be an object with a value and a unit, not None"),
        ({"metric": {"value": "fast", "unit": "s"}}, "its value must be a number above 0, not 'fast'"),
        ({"metric": {"value": 0, "unit": "s"}}, "its value must be a number above 0, not 0"),
        ({"metric": {"value": 1, "unit": "s", "scores": 0.5}}, 'its metric\'s scores must be "half" or "all", not 0.5'),
        ({"metric": {"value": 9000, "unit": "s"}, "also": {}}, "times as long as the model says: is a unit wrong?"),
        ({"metric": {"value": 5e5, "unit": "tokens/s/GPU"}, "also": {}}, "times less than the model says: is a unit"),
    ],
)
def test_a_row_of_one_s_own_that_cannot_be_gives_one_line_and_no_traceback(change, reason, rows, tmp_path, capsys):
    row = next(row for row in rows if row["model"] == "LLAMA3_70B" and row["gpu"] == "H100") | change
    (tmp_path / "mine.json").write_text(json.dumps([row]))
    assert published.main([str(tmp_path / "mine.json")]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head == "0 rows used, 1 not:" and reason in line


@pytest.mark.parametrize(
    ("name", "billions", "is_like"),
    [
        ("DeepSeek-R1", 671, "deepseek-v3"),
        ("Qwen2.5-32B", None, "qwen-2.5-32b"),
        ("Mixtral-8x22B", 141, "mixtral-8x22b"),
        ("LLAMA3.1_405B", 405.9, "llama-3-405b"),
        ("GPT-3 13B", None, "gpt3-13b"),
        ("Mystery 22B", None, "like llama-"),
        ("Mystery-100B-A6B", None, "like "),
    ],
)
def test_models_are_known_by_any_spelling_or_built_by_their_size(name, billions, is_like, rows):
    model = runs.read(dict(rows[0], model=name, params_b=billions)).model
    assert model.name.startswith(is_like)
    assert (model.experts > 0) == any(word in name for word in ("A6B", "Mixtral", "DeepSeek"))


def test_the_metrics_of_a_run_mean_the_same_seconds(rows):
    """One run printed seven ways; TFLOP/s count half of the scores, and all if the row says so."""
    row = next(row for row in rows if row["model"] == "LLAMA3_70B" and row["gpu"] == "H100")
    run = runs.read(row)
    rate = run.tokens / 8
    values = {
        "s": 8,
        "ms": 8000,
        "tokens/s/GPU": rate,
        "tokens/s": rate * row["n_gpus"],
        "samples/s": rate * row["n_gpus"] / row["seq"],
        "TFLOP/s/GPU": run.model.flops(rate) / 1e12,
    }
    for unit, value in values.items():
        printed = row | {"metric": {"value": value, "unit": unit}, "also": {}}
        assert runs.measured(printed, run) == pytest.approx(8), unit
    every = replace(run.model, classic=True).flops(rate) / 1e12
    printed = row | {"metric": {"value": every, "unit": "TFLOP/s/GPU", "scores": "all"}, "also": {}}
    assert every > 1.05 * values["TFLOP/s/GPU"] and runs.measured(printed, run) == pytest.approx(8)


def test_sources_count_the_scores_that_their_rows_say(used):
    """NeMo counted all until August 2025 (pull request 14424). Rows with seconds or tokens as well show their count."""
    every = {sample.source for sample in used if sample.row["metric"].get("scores") == "all"}
    assert every == {"NVIDIA-NeMo/NeMo:docs/source/performance/performance_long_sequence.md"}
    checked = 0
    for sample in used:
        row, model = sample.row, sample.run.model
        also, rate = row.get("also") or {}, row["metric"]["value"]
        printed = rate if "step_time_ms" in also else also.get("model_TFLOPs_per_GPU")
        if model.name.startswith("llama-3-") and printed and sample.source not in every:
            flops = model.flops(sample.run.tokens)  # all scores would be 4 % to 12 % more
            assert printed * 1e12 * sample.seconds == pytest.approx(flops, rel=0.025), row["id"]
            checked += 1
    assert checked > 60


def test_the_command_judges_rows_of_another_file(tmp_path, capsys, rows):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows[:5]))
    assert published.main([str(path)]) == 0
    assert "5 rows used, 0 not" in capsys.readouterr().out
    path.write_text("[1]")
    assert published.main([str(path)]) == 0
    assert "a run is an object with model, gpu, layout, metric and so on, not 1" in capsys.readouterr().out
    for text in ("not rows", '{"rows": []}'):
        path.write_text(text)
        with pytest.raises(SystemExit, match="2"):
            published.main([str(path)])
        assert "holds no rows" in capsys.readouterr().err


# --- models ---


def test_parameters_and_flops_are_the_papers_formulas():
    """Narayanan et al., 2021, equation 2 (to the final norm's 2h) and Korthikanti et al., 2022, equation 7."""
    for model in MODELS.values():
        if not model.classic:
            continue
        n, h, s, v = model.layers, model.hidden, model.sequence, model.vocabulary
        assert model.parameters == pytest.approx(12 * n * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * n * h)), rel=1e-4)
        assert model.flops(2 * s) == pytest.approx(72 * 2 * s * n * h**2 * (1 + s / (6 * h) + v / (12 * n * h)))


@pytest.mark.parametrize("tp", [1, 8])
def test_activations_are_those_of_korthikanti_table_2(tp):
    """sbh (34 + 5as/h) a layer; 10 + 24/t + 5as/ht with tensor parallelism; all over t with sequence parallelism."""
    s, h, a = GPT3.sequence, GPT3.hidden, GPT3.heads
    layout = Layout(tp=tp, micro_batch=3)
    sbh, scores = 3 * s * h, 5 * a * s / h
    whole = replace(layout, sequence_parallel=True)
    assert costs.kept(GPT3, layout, "none") == pytest.approx(sbh * (10 + 24 / tp + scores / tp))
    assert costs.kept(GPT3, whole, "none") == pytest.approx(sbh / tp * (34 + scores))
    assert costs.kept(GPT3, layout, "selective") == pytest.approx(sbh * (10 + 24 / tp))
    assert costs.kept(GPT3, whole, "selective") == pytest.approx(sbh / tp * 34)
    assert costs.kept(GPT3, layout, "full") == 2 * sbh


def test_selective_recomputation_costs_what_korthikanti_say():
    """Section 5: 2.7 % of the FLOPs for GPT-3, 1.6 % for the model of 530 billion parameters."""
    for model, percent in ((GPT3, 2.7), (MODELS["megatron-530b"], 1.6)):
        assert 100 * model.layers * model.again("selective") / model.flops(1) == pytest.approx(percent, abs=0.05)


def test_experts_count_where_they_are_met():
    dense = Model("dense", 4, 64, 4, 1000, 128, ffn=256, gated=True)
    sparse = replace(dense, experts=8, top_k=2, expert_ffn=256)
    expert = 3 * 64 * 256
    assert sparse.parameters - dense.parameters == 4 * (7 * expert + 64 * 8)
    assert sparse.active_parameters - dense.parameters == 4 * (expert + 64 * 8)
    assert sparse.flops(1) - dense.flops(1) == 6 * 4 * (expert + 64 * 8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: replace(LLAMA, layers=0), "layers must be at least 1"),
        (lambda: replace(LLAMA, experts=8), "set top_k"),
        (lambda: replace(LLAMA, dense_layers=81), "cannot be dense"),
        (lambda: replace(LLAMA, heads=60), "does not divide by 60 heads"),
        (lambda: replace(LLAMA, kv_heads=7), "cannot share 7 keys and values evenly"),
        (lambda: replace(LLAMA, kv_heads=0), "kv_heads must be at least 1, or left out, not 0"),
        (lambda: replace(LLAMA, ffn=-1), "ffn must be at least 1, or left out, not -1"),
        (lambda: replace(EXPERTS, shared_experts=-1), "shared_experts must be at least 0, not -1"),
        (lambda: replace(LLAMA, shared_experts=1), "need a model with experts"),
        (lambda: replace(LAPTOP, memory=0), "memory must be more than 0"),
        (lambda: replace(LAPTOP, fraction=1.5), "above 0 and at most 1"),
        (lambda: Layout(recompute="some"), "recompute is one of none, selective, full"),
        (lambda: Software(precision="fp9"), "precision is one of bf16, fp8, mxfp8, nvfp4, not 'fp9'"),
        (lambda: Layout(stage=4), "no stage 4"),
        (lambda: search(LLAMA, H100, 0), "at least 1 sequence"),
    ],
)
def test_what_is_no_model_machine_or_layout_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


# --- memory ---


def test_the_state_of_a_rank_is_that_of_zero():
    """Chapter 09's, of the rank's part of the parameters."""
    for stage, tp in product(range(4), (1, 2)):
        held = memory(LLAMA, Layout(dp=8, tp=tp, stage=stage))
        state = at_rest((LLAMA.parameters - LLAMA.hidden) // tp, 8, stage)  # the last norm is left out
        assert held[:3] == pytest.approx(state, rel=1e-6)


def test_memory_falls_with_the_stage_and_with_every_axis():
    totals = [sum(memory(LLAMA, Layout(dp=8, stage=stage))[:3]) for stage in range(4)]
    assert totals == sorted(totals, reverse=True)
    base = Layout(dp=8, pp=2, num_micro_batches=8)
    for less in ({"tp": 8}, {"pp": 4}, {"stage": 1}, {"recompute": "selective"}, {"recompute": "full"}, {"cp": 8}):
        assert memory(LLAMA, replace(base, **less)).total < memory(LLAMA, base).total, less
    sharded = replace(base, tp=8)
    assert memory(LLAMA, replace(sharded, sequence_parallel=True)).total < memory(LLAMA, sharded).total
    assert memory(EXPERTS, replace(base, ep=8)).total < memory(EXPERTS, base).total


@pytest.mark.parametrize(("pp", "interleave", "m"), [(4, 1, 8), (4, 1, 2), (4, 2, 8), (8, 3, 16), (2, 4, 2)])
def test_micro_batches_under_way_are_those_of_the_schedule(pp, interleave, m):
    schedule = pipeline.one_f_one_b(pp, m) if interleave == 1 else pipeline.interleaved(pp, m, interleave)
    peaks = [peak / interleave for peak in pipeline.peak_activations(schedule)]
    layout = Layout(pp=pp, interleave=interleave, num_micro_batches=m)
    assert costs.held_micro_batches(layout) == pytest.approx(peaks[0])
    assert costs.held_micro_batches(layout, last=True) == pytest.approx(peaks[-1])


def test_the_last_rank_may_be_the_fullest():
    """By the logits, where the layers keep next to nothing."""
    small = Model("small", 2, 64, 4, 100_000, 512, tied=True)
    held = memory(small, Layout(pp=2, recompute="full"))
    assert held.activations > 4 * 512 * 100_000


# --- time ---


def test_one_rank_computes_and_nothing_else():
    for machine in (replace(H100, gpus_per_node=1), flat(replace(H100, gpus_per_node=1))):
        cost = step(LLAMA, machine, Layout(num_micro_batches=4))
        assert {part for part in PARTS if getattr(cost, part)} == {"compute"}
        assert cost.mfu == pytest.approx(flat(H100).fraction, rel=0.1)


def test_without_memory_traffic_the_utilisation_is_the_fraction():
    machine = Machine("ideal", 1, 1, 1e12, 1e15, 0.5, Link(0, 0), Link(0, 0))
    assert step(LLAMA, machine, Layout()).mfu == pytest.approx(0.5)
    full = step(GPT3, machine, Layout(recompute="full"))
    assert full.hardware_flops_per_second == pytest.approx(0.5e15)
    head = GPT3.head_flops / (GPT3.layers * GPT3.layer_flops)
    assert full.mfu == pytest.approx(0.5 * (3 + 3 * head) / (4 + 3 * head))


@pytest.mark.parametrize("layout", [*islice(layouts(EXPERTS, H100.of(4), 64), 0, None, 997)], ids=str)
def test_the_parts_add_up(layout):
    cost = step(EXPERTS, H100.of(4), layout)
    assert cost.seconds == pytest.approx(sum(getattr(cost, part) for part in PARTS))
    assert all(getattr(cost, part) >= 0 for part in PARTS)
    assert cost.mfu < flat(H100).fraction


def test_a_ring_by_formula_is_the_ring_as_priced():
    link = flat(H100).between
    for size, num_bytes in product((1, 2, 5, 64), (0, 640, 6.4e8)):
        cost = price(ring.all_reduce(size), int(num_bytes), uniform(size, link.alpha, link.beta))
        assert 2 * around_a_ring(size, num_bytes, link) == pytest.approx(cost.seconds)


def test_a_collective_of_a_group_takes_what_the_network_s_model_says():
    """The planner has no network of its own: 8 groups along the nodes, 8 in them, and one over all 64 ranks."""
    groups = Groups(RUNNING_CASE)
    for collective, num_bytes in product(network.COLLECTIVES, (1e4, 1e6, 1e9)):
        for inner, size, in_node in ((1, 8, 8), (8, 8, 1), (1, 64, 8), (4, 2, 2), (1, 2, 2)):
            part = RUNNING_CASE.part(in_node, size // in_node)
            expected = network.choose(collective, num_bytes, part).seconds
            assert groups.seconds(collective, inner, size, num_bytes) == pytest.approx(expected)
        assert groups.seconds(collective, 1, 1, num_bytes) == 0
    assert groups.message(False, 1e9) == network.choose("send_recv", 1e9, RUNNING_CASE.part(1, 2)).seconds
    assert groups.message(True, 1e9) < groups.message(False, 1e9) / 5


SIMULATED = [
    (LLAMA, "h100", Layout(dp=16, tp=4, pp=2, stage=1, num_micro_batches=8)),
    (LLAMA, "h100", Layout(dp=4, tp=2, pp=4, cp=4, stage=3, num_micro_batches=8, interleave=2)),
    (GPT3, "a100", Layout(dp=128, recompute="full", stage=2)),
    (EXPERTS, "h800", Layout(dp=32, tp=1, pp=4, ep=16, stage=1, num_micro_batches=8)),
    (EXPERTS, "h800", Layout(dp=16, tp=2, pp=4, ep=8, num_micro_batches=8, sequence_parallel=True)),
    (EXPERTS, "h800", Layout(dp=16, cp=2, pp=4, ep=8, num_micro_batches=8)),
    (LLAMA, "h100", Layout(dp=12, pp=2, stage=1, num_micro_batches=8)),  # 12 ranks in nodes of 8
]


@pytest.mark.parametrize(("model", "machine", "layout"), SIMULATED, ids=str)
def test_the_formulas_are_the_schedules_priced_over_all_ranks(model, machine, layout):
    machine = flat(MACHINES[machine].of(layout.world_size // 8))
    by_formula, by_schedules = step(model, machine, layout), simulate(model, machine, layout)
    assert by_schedules == pytest.approx(by_formula, rel=1e-6)


@pytest.mark.parametrize(
    ("inner", "size", "shared"),
    [(1, 4, 4), (1, 16, 8), (2, 8, 4), (8, 4, 1), (16, 4, 1), (1, 12, 1), (1, 3, 1), (3, 4, 1)],
)
def test_only_groups_that_fit_nodes_evenly_count_on_fast_links(inner, size, shared):
    """Of 12 ranks in nodes of 8, or of 3, some group lies across nodes at some place or other."""
    assert near(H100.gpus_per_node, inner, size) == shared


def test_llama_on_16384_ranks_is_simulated_in_seconds():
    (model, machine, layout), _ = published.llama_3_runs()[1]
    start = time.perf_counter()
    by_schedules = simulate(model, flat(machine), layout)
    seconds = time.perf_counter() - start
    assert layout.world_size == 16_384
    assert by_schedules == pytest.approx(step(model, flat(machine), layout), rel=1e-6)
    assert seconds < 60


def test_what_hides_needs_something_to_hide_behind():
    """A last layer's gradients always show; all but them do not, where the backward pass is long enough.

    On a machine whose GPU is known, what hides still slows the kernels.
    """
    layout = Layout(dp=64, tp=8, micro_batch=2)
    machines = (replace(flat(H100.of(64)), between=Link(0, beta)) for beta in (1 / 50e9, 1 / 1e8))
    fast, slow = (step(LLAMA, machine, layout) for machine in machines)
    assert step(LLAMA, H100.of(64), layout).data > 2 * fast.data
    assert fast.data / fast.seconds < 0.02
    assert slow.data / slow.seconds > 0.5
    hidden = step(EXPERTS, H100.of(16), Layout(dp=128, ep=64, hide_experts=True))
    assert hidden.expert < step(EXPERTS, H100.of(16), Layout(dp=128, ep=64)).expert


class Shown(kernels.Fitted):
    """Kernels that hide no traffic."""

    def shows(self, what, software):
        return 1


@pytest.mark.parametrize("way", [{"tp": 8}, {"cp": 8}, {"tp": 4, "cp": 2}])
def test_no_more_hides_than_computing_takes(way):
    """Ranks in nodes of their own: a pass takes at least as long as its sums, or its gathers, are on the wire."""
    apart = replace(H100.of(8), gpus_per_node=1, nics_per_node=1, network="100 GbE")
    layout = Layout(**way, sequence_parallel="tp" in way, software=Software(hides_tensor=True))
    all_of_it = costs.passes(LLAMA, apart, layout, kernels=Shown(apart.spec))
    for shown, whole in zip(costs.passes(LLAMA, apart, layout), all_of_it, strict=True):
        assert shown.tensor + shown.context + shown.compute >= whole.tensor + whole.context > shown.compute
        assert shown.tensor + shown.context < whole.tensor + whole.context


# --- without a kernel ---


def _answer(dp, tp, pp, micro_batch, num_micro_batches, model, how):
    stage, recompute, interleave = how
    layout = Layout(dp, tp, pp, 1, 1, stage, True, micro_batch, num_micro_batches, interleave, recompute)
    held, cost = memory(MODELS[model], layout), step(MODELS[model], H100.of(64), layout)
    parts = {part: getattr(cost, part) for part in (*PARTS, "seconds", "mfu")}
    return {**held._asdict(), "total": held.total, **parts}


def test_a_calculator_answers_as_the_planner_does():
    """Every axis and both micro-batch sliders are symbols; the rest are choices."""
    powers = [1, 2, 4, 8]
    names = ("dp", "tp", "pp", "micro_batch", "num_micro_batches")
    ways = {"plain": (1, "none", 1), "sharded": (3, "full", 1), "interleaved": (2, "selective", 2)}
    models = {name: name for name in ("gpt3-175b", "mixtral-8x7b")}
    outputs = list(_answer(1, 1, 1, 1, 1, "mixtral-8x7b", (0, "none", 1)))
    calculator = Calculator(
        _answer,
        inputs=[
            *(Slider(name, name, powers, 2) for name in names),
            Choice("model", "model", models, "gpt3-175b"),
            Choice("how", "how", ways, "plain"),
        ],
        outputs=[Output(name, name, GB if name in ("total",) else SECONDS) for name in outputs],
    )
    for values in islice(product(powers, powers, powers, powers, powers), 0, None, 23):
        for model, how in product(models, ways):
            given = dict(zip(names, values, strict=True))
            expected = _answer(**given, model=model, how=ways[how])
            assert calculator.at(**given, model=model, how=how) == pytest.approx(expected), given


# --- what cannot be ---

REASONS = [
    (Layout(dp=16), "is 16 ranks, not 32"),
    (Layout(tp=16, dp=2), "tp 16 spans nodes of 8"),
    (Layout(dp=0, tp=8, pp=4), "at least 1 rank, not 0"),
    (Layout(pp=32, num_micro_batches=64, interleave=4), "pp 32 x interleave 4 is more than 80 layers"),
    (Layout(dp=32, ep=2), "0 experts do not divide by ep 2"),
    (Layout(dp=32, micro_batch=3, num_micro_batches=1), "a batch of 64 does not divide by dp 32 x micro-batches of 3"),
    (Layout(dp=4, tp=8, interleave=2, num_micro_batches=16), "no pipeline to interleave by 2"),
    (Layout(dp=32, num_micro_batches=2), "needs 1,.* GB of 82.8"),
    (Layout(dp=4, pp=8, interleave=0, num_micro_batches=16), "at least 1 stage, not 0"),
    (Layout(dp=4, pp=8, micro_batch=0, num_micro_batches=16), "a batch of 64 does not divide"),
    (Layout(dp=4, pp=8, micro_batch=-1, num_micro_batches=-16), "a batch of 64 does not divide"),
]


@pytest.mark.parametrize(("layout", "reason"), REASONS, ids=[reason for _, reason in REASONS])
def test_a_layout_that_cannot_be_says_why(layout, reason):
    assert re.search(reason, refuse(LLAMA, H100.of(4), layout, 64))


def test_other_things_that_cannot_be():
    assert refuse(MODELS["gpt2-xl"], H100, Layout(tp=8), 1) == "25 heads do not divide by tp 8"
    short = replace(LLAMA, sequence=12)
    assert refuse(short, H100, Layout(cp=8), 1) == "a sequence of 12 does not divide by cp 8 x tp 1"
    assert refuse(EXPERTS, H100, Layout(dp=8, ep=16), 8) == "dp 8 x cp 1 x tp 1 does not divide by ep 16"
    assert refuse(replace(LLAMA, layers=4), H100, Layout(pp=8), 1) == "pp 8 is more than 4 layers"
    assert refuse(replace(LLAMA, ffn=100), H100, Layout(tp=8), 1) == "an MLP 100 wide does not divide by tp 8"
    assert refuse(GPT3, H100.of(3), Layout(tp=6, pp=4), 1) == "tp 6 spans nodes of 8"


def test_published_layouts_are_not_refused(used):
    """With the memory that their GPUs report, less a reserve; one row of 458 can't be as its source prints it.

    Its neighbours shard the same 70 billion parameters by FSDP, and it says ZeRO-1: on one rank, 141 GB of parameters
    and as much of gradients.
    """
    for run in (*(run for run, _ in published.llama_3_runs()), published.deepseek_v3_run()):
        assert refuse(*run, run.layout.batch) is None
    (misprint,) = (sample for sample in used if not evidence.fits(sample.run))
    assert misprint.row["model"] == "LLAMA3_70B"
    assert misprint.run.layout.world_size == misprint.run.layout.dp == 64
    assert misprint.run.layout.stage == 1


def test_no_published_layout_is_refused_for_its_axes_or_its_way(used):
    """What is refused as it is printed is refused for memory: most sources don't say what is computed again."""
    reasons = [refuse(*sample.run, sample.run.layout.batch) for sample in used]
    assert len(reasons) > 400
    assert [reason for reason in reasons if reason and not re.search(r"\bGB of \d", reason)] == []


def test_a_token_goes_to_a_rank_once_to_a_node_once_and_to_few_nodes_where_routing_says_so():
    """8 experts of a token, drawn evenly on 64 ranks in 8 nodes."""
    groups = Groups(RUNNING_CASE)
    inside, across = groups.dispatch(1, 64, 1e9, copies=8)
    _, on_four_nodes = groups.dispatch(1, 64, 1e9, copies=8, node_limit=4)
    on_ranks, on_nodes = 64 * (1 - (63 / 64) ** 8), 8 * (1 - (7 / 8) ** 8)  # 7.6 and 5.3, of 8 draws
    assert inside == pytest.approx(groups.seconds("all_to_all", 1, 8, on_ranks * 1e9))
    assert across == pytest.approx(groups.seconds("all_to_all", 8, 8, on_nodes * 1e9))
    assert on_four_nodes == pytest.approx(groups.seconds("all_to_all", 8, 8, 4e9))
    assert on_four_nodes < across


def test_of_80e9_bytes_two_published_layouts_would_need_more_and_of_what_a_gpu_reports_less_a_reserve_they_fit():
    """E40: Llama 3 405B on 8,192 GPUs, and DeepSeek-V3."""
    for run, needed in ((published.llama_3_runs()[0][0], 81.1), (published.deepseek_v3_run(), 82.1)):
        assert 80e9 < memory(run.model, run.layout).total < run.machine.usable
        assert memory(run.model, run.layout).total / 1e9 == pytest.approx(needed, abs=0.05)
        old = replace(run.machine, tuned=run.machine.spec._replace(memory=80e9), reserve=0)
        assert refuse(run.model, old, run.layout, run.layout.batch).endswith("GB of 80")


def test_the_memory_that_sources_print_is_what_the_planner_counts(used):
    """Within a tenth in 10 of 14 rows. Two compile their loss, so they keep less; with tp 8, two keep a fifth more."""
    printed = [sample for sample in used if sample.row.get("memory_gb")]
    ratios = [costs.memory(*sample.run[::2]).total / 2**30 / sample.row["memory_gb"] for sample in printed]
    assert len(ratios) == 14
    assert sum(0.9 < ratio < 1.1 for ratio in ratios) >= 10
    assert all(0.75 < ratio < 1.5 for ratio in ratios)


@pytest.mark.parametrize(("pp", "interleave", "m"), [(4, 2, 8), (4, 2, 6), (4, 2, 3), (4, 2, 2), (8, 4, 12)])
def test_the_bubble_is_the_schedules_for_any_number_of_micro_batches(pp, interleave, m):
    schedule = pipeline.interleaved(pp, m, interleave)
    alone = pipeline.price(schedule, 1 / interleave, 1 / interleave, 1 / interleave).seconds
    layout = Layout(pp=pp, interleave=interleave, num_micro_batches=m)
    assert alone / 3 - m == pytest.approx(costs.bubble(layout))


def test_micro_batches_need_not_divide_by_the_stages():
    """E43: Llama 3, section 3.3.2: 2 or 6 micro-batches on 4 stages, interleaved."""
    for m in (2, 6):
        layout = Layout(dp=2, tp=4, pp=4, stage=1, interleave=2, num_micro_batches=m, recompute="full")
        assert refuse(LLAMA, H100.of(4), layout, 2 * m) is None


def test_a_search_of_16384_ranks_is_interactive():
    """Two seconds of one core, and five are promised."""
    start = time.process_time()
    plans = search(MODELS["llama-3-405b"], H100.of(2048), 2048)
    assert time.process_time() - start < 5
    assert len(plans.ranked) + plans.refused.total() > 200_000
    low, high = plans.best.step.interval
    assert low * high == pytest.approx(plans.best.step.seconds**2)
    assert 1.2 < high / low < 1.4


@pytest.mark.parametrize(("model", "machine"), [(LLAMA, H100.of(4)), (MODELS["mixtral-8x7b"], H100.of(2))])
def test_a_search_prices_or_refuses_every_layout_of_the_grid(model, machine):
    plans = search(model, machine, 64)
    grid = list(layouts(model, machine, 64))
    assert len(grid) == len(plans.ranked) + plans.refused.total() == len(set(grid))
    allowed = {plan.layout for plan in plans.ranked}
    assert allowed == {layout for layout in grid if refuse(model, machine, layout, 64) is None}
    times = [plan.step.seconds for plan in plans.ranked]
    assert times == sorted(times)
    assert plans.best.memory.total <= machine.usable
    assert plans.best.step == step(model, machine, plans.best.layout)
    assert set(plans.examples) == set(plans.refused)
    assert str(plans.best.layout) in str(plans)


def test_a_model_that_fits_nowhere_has_no_best_plan():
    """And the search says by how little it does not fit."""
    model = MODELS["megatron-1t"]
    plans = search(model, H100, 8)
    assert not plans.ranked
    reasons = [refuse(model, H100, layout, 8) for layout in layouts(model, H100, 8)]
    needed = [float(reason.split()[1].replace(",", "")) for reason in reasons if reason.startswith("needs")]
    assert plans.examples["does not fit"] == f"needs {min(needed):,.1f} GB of 82.8"
    with pytest.raises(ValueError, match="no layout of megatron-1t is feasible"):
        _ = plans.best


def test_a_search_counts_the_bytes_of_its_recipe():
    """E45: gradients that are added up in fp32 take 4 bytes, and the fastest plan with 2 no longer fits."""
    small, large = (search(LLAMA, RUNNING_CASE, 128, recipe=recipe) for recipe in (MIXED_ADAM, FP32_GRADIENTS))
    assert len(large.ranked) < len(small.ranked)
    assert memory(LLAMA, small.best.layout, FP32_GRADIENTS).total > RUNNING_CASE.usable > large.best.memory.total
    assert large.best.memory == memory(LLAMA, large.best.layout, FP32_GRADIENTS)


def test_the_best_plan_of_a_batch_that_is_smaller_than_the_machine_shares_sequences():
    """Ranks that have no sequence of their own split one."""
    plan = search(MODELS["llama-3-8b"], H100.of(2), 4).best
    assert plan.layout.dp <= 4
    assert plan.layout.world_size == 16


# --- the command ---


def test_the_command_prints_plans_and_reasons(capsys):
    assert main(["--model", "llama-3-8b", "--machine", "h100", "--nodes", "2", "--batch", "32", "--rows", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "llama-3-8b on 16 ranks of H100, batch 32; GB are 1e9 bytes"
    assert "layouts are feasible" in lines[5]
    own = "layers=2,hidden=64,heads=4,vocabulary=1000,sequence=64,gated=1"
    assert main(["--model", own, "--machine", "laptop", "--batch", "4"]) == 0
    assert capsys.readouterr().out.startswith("yours on 4 ranks of laptop")
    assert main(["--model", "megatron-1t", "--machine", "laptop", "--batch", "1"]) == 1
    assert "no layout is feasible" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--model": "gpt-9"}, "unknown model 'gpt-9': choose from gpt2-xl"),
        ({"--model": "layers=2,hidden=64"}, "a model also needs heads, vocabulary, sequence"),
        ({"--model": "layers=2,vocab=64"}, "a model has no vocab; it has layers, hidden, heads, vocabulary, sequence"),
        ({"--model": "layers=two"}, "layers must be a whole number of at least 1, not 'two'"),
        ({"--model": "layers=2,hidden=64,heads=3,vocabulary=9,sequence=8"}, "does not divide by 3 heads"),
        ({"--machine": "h9"}, "invalid choice: 'h9'"),
        ({"--batch": "0"}, "at least 1, not '0'"),
    ],
)
def test_the_command_says_what_is_wrong(change, message, capsys):
    said = {"--model": "llama-3-8b", "--machine": "h100", "--batch": "8", **change}
    with pytest.raises(SystemExit, match="2"):
        main([word for pair in said.items() for word in pair])
    assert message in capsys.readouterr().err


def test_the_command_helps_and_loads_no_torch():
    code = "import sys; from collectives.training import planner, published; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"
    command = [sys.executable, "-m", "collectives.training.planner", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "example: python -m collectives.training.planner --model" in answer.stdout


RECORDED = evidence.recorded()


def test_steps_of_repositories_that_the_fit_never_saw_are_predicted_within_eight_percent_and_most_in_a_quarter():
    whole = fitted.errors(RECORDED.errors[evidence.REPOSITORY])
    assert whole.number == 458 and whole.median < 0.08 and whole.near > 0.94


@pytest.mark.parametrize(("repository", "runs_of_it"), [("torchtitan", 22), ("llm-foundry", 131)])
def test_fsdp_since_2021_is_predicted_within_eight_percent_without_its_repository(repository, runs_of_it):
    """E44: ZeRO-3 was once judged by rows of 2021 alone, by up to 302 %."""
    pairs = zip(RECORDED.used, RECORDED.errors[evidence.REPOSITORY], strict=True)
    theirs = [(sample, error) for sample, error in pairs if repository in sample.source]
    assert all(sample.run.layout.stage == 3 for sample, _ in theirs)
    found = fitted.errors(error for _, error in theirs)
    assert found.number == runs_of_it and found.median < 0.08 and found.near > 0.9


def test_public_rows_of_fsdp_that_were_up_to_half_too_slow_are_within_a_tenth_but_two():
    """E44: by one compute fraction for all shapes, the errors were 21, -6, 14, 35 and 47 %. The last is now -18 %."""
    worst = {}
    for sample, error in zip(RECORDED.used, RECORDED.errors[evidence.REPOSITORY], strict=True):
        row, gpu = sample.row, evidence.gpu(sample)
        titan = "torchtitan" in sample.source and (gpu, row["n_gpus"]) == ("A100", 64)
        foundry = "llm-foundry" in sample.source and (gpu, row["model"][4:]) in product(["H100"], ["13b", "30b", "70b"])
        if titan or foundry:
            what = row["model"] + (" at 8k" if (row["model"], row["seq"]) == ("MPT 30b", 8192) else "")
            worst[what] = max(worst.get(what, 0), np.expm1(error), key=abs)
    assert worst == pytest.approx(
        {
            "Llama 3 8B": -0.08, "Llama 3 70B": -0.05, "Llama 2 13B": -0.07, "Llama 2 70B": -0.05,
            "MPT 70b": 0.02, "MPT 13b": 0.12, "MPT 30b": 0.06, "MPT 30b at 8k": -0.18,
        },
        abs=0.01,
    )  # fmt: skip


def test_without_any_recipe_of_nvidia_its_recipes_are_predicted_and_better_than_by_the_mfu_of_like_runs():
    theirs = fitted.errors(RECORDED.errors[evidence.NVIDIA])
    assert theirs.number > 250 and theirs.median < 0.1 and theirs.near > 0.8
    plain = fitted.errors(evidence.baseline(RECORDED.used))
    assert plain.number == 458 and plain.median > 2 * theirs.median


def test_the_recorded_errors_are_those_of_constants_that_never_saw_the_repository():
    maxtext = [place for place, sample in enumerate(RECORDED.used) if "maxtext/README_70b" in sample.source]
    repository = fitted.repository(RECORDED.used[maxtext[0]].source)
    assert repository == "NVIDIA/dgxc-benchmarking"
    others = [sample for sample in RECORDED.used if fitted.repository(sample.source) != repository]
    now = evidence.errors_of([RECORDED.used[place] for place in maxtext], evidence.refit(others))
    assert RECORDED.errors[evidence.REPOSITORY][maxtext] == pytest.approx(now, abs=0.01)


def test_the_spread_that_a_plan_shows_is_that_of_runs_left_out():
    off = np.abs(RECORDED.errors[evidence.REPOSITORY])
    kinds = np.array([evidence.experts(sample) for sample in RECORDED.used])
    spread = {kind: np.quantile(off[kinds == kind], 0.9) / 1.645 for kind in LEFT_OUT}
    assert spread == pytest.approx(LEFT_OUT, abs=0.002)


def test_a_record_of_other_runs_or_of_other_constants_is_refused(tmp_path):
    (tmp_path / "old.json").write_text(evidence.LEFT_OUT.read_text().replace('"of": "', '"of": "x'))
    with pytest.raises(ValueError, match=r"old\.json is not of these data, constants and formulas; run"):
        evidence.recorded(tmp_path / "old.json")
