"""Seconds of single kernels on this rank's device, and the streams of a trace: what `make gpu` is made of.

    device = torch.device("cuda")
    seconds_of(product(8192, 4096, 14336, "bf16", device), device)     # of each repeat
    spans(json.loads(Path("trace.json").read_text()))                  # kernels by CUDA stream

A GPU's own events time its work, so launching costs nothing that the GPU doesn't wait for. Inputs are random, because a
GPU multiplies zeros faster: it needs less power for them, so its clock stays higher. On a CPU, which stands in where
there is no GPU, a clock on the host times the same calls.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
GROUP_SECONDS = 2e-3  # calls are timed in groups that take at least so long: an event's clock ticks in microseconds
_NAMESPACES = re.compile(r"(?:\(anonymous namespace\)|at|native|internal|detail|cub|at_cuda_detail|cudnn|fusion|c10)::")
_NCCL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)")
_KINDS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "SendRecv": "send_recv",
}


def seconds_of(
    call: Callable[[], Any], device: torch.device, repeats: int = 10, group: float = GROUP_SECONDS
) -> list[float]:
    """Return the seconds of a call in each of `repeats` groups of calls, after some that aren't timed."""
    timed = _on_gpu if device.type == "cuda" else _on_cpu
    for _ in range(3):
        call()
    count = max(1, round(group / timed(call, 1)))
    return [timed(call, count) / count for _ in range(repeats)]


def _on_gpu(call: Callable[[], Any], count: int) -> float:
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begun.record()
    for _ in range(count):
        call()
    ended.record()
    torch.cuda.synchronize()
    return begun.elapsed_time(ended) * 1e-3


def _on_cpu(call: Callable[[], Any], count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - begun


# --- kernels --------------------------------------------------------------------------------------------------------


def product(m: int, k: int, n: int, dtype: str, device: torch.device) -> Callable[[], torch.Tensor]:
    """Return a call that multiplies (m, k) by (k, n), in "bf16" or "fp8" with one scale a matrix; both return bf16.

    Raises `RuntimeError` for "fp8" where torch or the device has none.
    """
    left = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    right = torch.randn(n, k, device=device, dtype=torch.bfloat16)  # as a layer's weight lies in memory
    if dtype == "bf16":
        return lambda: functional.linear(left, right)
    recipe = getattr(functional, "ScalingType", None)
    if recipe is None:
        raise RuntimeError("this torch has no scaled_mm: fp8 needs torch 2.10 or later")
    small, whole = torch.float8_e4m3fn, torch.ones((), device=device)
    a, b = left.to(small), right.to(small).t()
    return lambda: functional.scaled_mm(
        a, b, whole, recipe.TensorWise, whole, recipe.TensorWise, output_dtype=torch.bfloat16, use_fast_accum=True
    )


def attention(
    batch: int, heads: int, sequence: int, head_size: int, kernel: str, passes: str, device: torch.device
) -> Callable[[], Any]:
    """Return a call of causal attention in bf16 by `kernel`, a key of `KERNELS`; `passes`: "forward" or "both".

    On a CPU torch's own choice of kernel stands in. "both" includes the forward pass.
    """
    shape = batch, heads, sequence, head_size
    q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    towards = torch.randn(shape, device=device, dtype=torch.bfloat16)
    backend = KERNELS[kernel] if device.type == "cuda" else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]

    def forward() -> torch.Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    if passes == "forward":
        return torch.no_grad()(forward)
    return lambda: torch.autograd.grad(forward(), (q, k, v), towards)


def attention_flops(batch: int, heads: int, sequence: int, head_size: int, passes: str) -> float:
    """Return the FLOPs of causal attention: half of all scores, and 2.5 times the forward pass in the backward pass."""
    forward = 2.0 * batch * heads * sequence**2 * head_size
    return forward if passes == "forward" else 3.5 * forward


def move(name: str, num_bytes: int, device: torch.device) -> Callable[[], Any]:
    """Return a call that moves `num_bytes` in all, read and written; `name` is a key of `MOVES`."""
    return MOVES[name](num_bytes, device)


def _copy(num_bytes: int, device: torch.device) -> Callable[[], Any]:
    source = torch.randint(255, (num_bytes // 2,), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _sum(num_bytes: int, device: torch.device) -> Callable[[], Any]:
    left, right, result = (torch.rand(num_bytes // 6, device=device).to(torch.bfloat16) for _ in range(3))
    return lambda: torch.add(left, right, out=result)


def _norm(num_bytes: int, device: torch.device) -> Callable[[], Any]:
    width = 4096
    rows = torch.randn(num_bytes // (4 * width), width, device=device, dtype=torch.bfloat16)
    return lambda: functional.layer_norm(rows, (width,))


def _adam(num_bytes: int, device: torch.device) -> Callable[[], Any]:
    """Four fp32 numbers a parameter are read, and three are written."""
    weights = torch.nn.Parameter(torch.randn(num_bytes // 28, device=device))
    weights.grad = torch.randn_like(weights)
    return torch.optim.AdamW([weights], fused=True).step


def _between(to_device: bool, pinned: bool) -> Callable[[int, torch.device], Callable[[], Any]]:
    def make(num_bytes: int, device: torch.device) -> Callable[[], Any]:
        pin = pinned and device.type == "cuda"
        host = torch.randint(255, (num_bytes,), dtype=torch.uint8, pin_memory=pin)
        there = torch.empty_like(host, device=device)
        source, target = (host, there) if to_device else (there, host)
        return lambda: target.copy_(source, non_blocking=pin)

    return make


MOVES: Mapping[str, Callable[[int, torch.device], Callable[[], Any]]] = {
    "copy": _copy,
    "sum of two": _sum,
    "layer norm": _norm,
    "AdamW, fused": _adam,
    "host to GPU, pinned": _between(to_device=True, pinned=True),
    "host to GPU, pageable": _between(to_device=True, pinned=False),
    "GPU to host, pinned": _between(to_device=False, pinned=True),
}
"""What moves bytes, by name. Those between host and GPU cross its bus once; the others stay in its memory."""


# --- streams --------------------------------------------------------------------------------------------------------


def together(device: torch.device, size: int = 8192, count: int = 8) -> tuple[dict[str, float], Callable[[], None]]:
    """Return the median seconds of products alone, of copies to the host alone, and of both, on a stream each.

    If "both" takes as long as the longer of them, the copies hide. The second value is the call that does both.
    """
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    host = torch.empty(size, size, dtype=torch.bfloat16, pin_memory=device.type == "cuda")
    aside = torch.cuda.Stream() if device.type == "cuda" else None

    def products() -> None:
        for _ in range(count):
            torch.mm(a, b)

    def copies() -> None:
        for _ in range(count):
            host.copy_(a, non_blocking=True)

    def copies_aside() -> None:
        if aside is None:
            return copies()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            copies()

    def both() -> None:
        copies_aside()
        products()
        if aside is not None:
            torch.cuda.current_stream().wait_stream(aside)

    calls = {"products": products, "copies": copies, "both": both}
    return {name: statistics.median(seconds_of(call, device, 5)) for name, call in calls.items()}, both


def spans(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the work of a GPU in a trace of torch's profiler, as fields of `training.timeline.Span`, in order of time.

    `trace`: what `export_chrome_trace` writes. NCCL's kernels have their collective as `kind`, copies "copy", all else
    "compute". Starts count from the first span, in tenths of a microsecond. Names lose their namespaces and what comes
    after 60 characters. The list is empty if the trace has no GPU.
    """
    events = [event for event in trace["traceEvents"] if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    begin = min((event["ts"] for event in events), default=0.0)
    return [
        {
            "name": short(event["name"]),
            "lane": f"stream {event['args']['stream']}",
            "start": round((event["ts"] - begin) * 1e-6, 7),
            "seconds": round(event["dur"] * 1e-6, 7),
            "kind": _kind(event),
        }
        for event in sorted(events, key=lambda event: event["ts"])
    ]


def short(name: str) -> str:
    """Return a kernel's name without its namespaces and its return type, at most 60 characters of it."""
    return _NAMESPACES.sub("", name.removeprefix("void "))[:60]


def _kind(event: Mapping[str, Any]) -> str:
    """Return the kind of work that an event is, by its category and its kernel's name."""
    if event["cat"] != "kernel":
        return "copy"
    found = _NCCL.match(event["name"])
    return _KINDS.get(found[1], "send_recv") if found else "compute"
