"""Kernels are timed on the device that ranks use, and a trace of a GPU becomes work on streams."""

import pytest
import torch

from collectives.measure import device
from collectives.training.timeline import Span, Timeline

CPU = torch.device("cpu")


def kernel(name, ts, dur, stream, cat="kernel"):
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "ph": "X", "args": {"stream": stream, "device": 0}}


def test_a_call_is_timed_in_groups_that_are_long_enough_for_the_clock():
    calls = []
    seconds = device.seconds_of(lambda: calls.append(sum(range(1000))), CPU, repeats=4, group=1e-3)
    assert len(seconds) == 4 and all(0 < each < 1e-3 for each in seconds)
    assert len(calls) > 4 * 3, "several calls a group"


def test_a_product_multiplies_as_a_layer_does_and_returns_bf16():
    result = device.product(3, 5, 7, "bf16", CPU)()
    assert (result.shape, result.dtype) == ((3, 7), torch.bfloat16)


def test_attention_has_causal_flops_and_its_backward_pass_two_and_a_half_times_as_many():
    forward = device.attention_flops(2, 3, 64, 16, "forward")
    assert forward == 4 * 2 * 3 * 64 * 64 * 16 / 2
    assert device.attention_flops(2, 3, 64, 16, "both") == 3.5 * forward
    assert device.attention(2, 3, 64, 16, "flash", "forward", CPU)().shape == (2, 3, 64, 16)
    assert [each.shape for each in device.attention(2, 3, 64, 16, "flash", "both", CPU)()] == [(2, 3, 64, 16)] * 3


@pytest.mark.parametrize("name", device.MOVES)
def test_every_move_runs(name):
    device.move(name, 2**20, CPU)()


def test_a_trace_becomes_work_on_streams_with_collectives_by_name():
    trace = {
        "traceEvents": [
            kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 130.0, 40.0, 20),
            kernel("sm90_xmma_gemm_bf16bf16", 100.0, 50.0, 7),
            kernel("Memcpy DtoH (Device -> Pinned)", 160.0, 5.0, 21, "gpu_memcpy"),
            {"cat": "cpu_op", "name": "aten::mm", "ts": 90.0, "dur": 3.0, "ph": "X"},
        ]
    }
    spans = [Span(**span) for span in device.spans(trace)]
    assert [(span.lane, span.kind) for span in spans] == [
        ("stream 7", "compute"),
        ("stream 20", "reduce_scatter"),
        ("stream 21", "copy"),
    ]
    assert spans[0].start == 0 and spans[0].seconds == pytest.approx(50e-6)
    assert Timeline.measured(spans).exposed == pytest.approx(15e-6), "of the collective's 40, 20 run beside the product"


def test_a_trace_without_a_gpu_has_no_streams(tmp_path):
    assert device.spans({"traceEvents": [{"cat": "cpu_op", "name": "aten::mm", "ts": 0.0, "dur": 1.0}]}) == []
