"""Rated speeds of real links, with the source of every figure, and the constants that NCCL's cost model uses.

A rating is not a measurement: no message reaches the full rate, and vendors often add both directions. All rates here
are bytes per second in *one* direction; a rank can send and receive at that rate at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .topology import Link

_HOPPER = "NVIDIA, “NVIDIA Hopper Architecture In-Depth”, 2022, sections on NVLink and on PCIe Gen 5"
_NVLINK = "NVIDIA, “NVLink and NVLink Switch”, nvidia.com/data-center/nvlink: 1.8 TB/s in both directions"
_HDR = "NVIDIA, MCP7Y60 product specifications: 4 channels of 50G-PAM4 are 200GbE or HDR"
_NDR = "NVIDIA, MMA4Z00-NS product specifications: the line rate of 400GbE and of NDR is 400 Gb/s"
_100GBE = "Ethernet's name states its rate; NVIDIA/nccl, src/graph/topo.h, assumes 12 GB/s"

TUNER = "NVIDIA/nccl, src/tuning/cost_model.cc, commit 1fc949c, 2026"
KERNELS = "NVIDIA/nccl, src/device/generate.py, `algos_of_coll`, commit 081eafa, 2026"


class Rating(NamedTuple):
    """A kind of link. `rate`: bytes per second, one way, of one GPU or network card. `medium`: NCCL's name for it."""

    rate: float
    medium: str
    source: str


RATINGS: Mapping[str, Rating] = MappingProxyType(
    {
        "NVLink 3 (A100)": Rating(12 * 25e9, "NVLink", _HOPPER),
        "NVLink 4 (H100)": Rating(18 * 25e9, "NVLink", _HOPPER),
        "NVLink 5 (B200)": Rating(1.8e12 / 2, "NVLink", _NVLINK),
        "PCIe 4.0 x16": Rating(32e9, "PCIe", _HOPPER),
        "PCIe 5.0 x16": Rating(64e9, "PCIe", _HOPPER),
        "InfiniBand HDR": Rating(200e9 / 8, "network", _HDR),
        "InfiniBand NDR": Rating(400e9 / 8, "network", _NDR),
        "100 GbE": Rating(100e9 / 8, "network", _100GBE),
        "400 GbE": Rating(400e9 / 8, "network", _NDR),
    }
)

NCCL_RING_LATENCY: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "NVLink": {"LL": 0.6e-6, "LL128": 1.9e-6, "Simple": 3.4e-6},
        "PCIe": {"LL": 1.0e-6, "LL128": 2.5e-6, "Simple": 5.7e-6},
        "network": {"LL": 2.7e-6, "LL128": 4.0e-6, "Simple": 14.0e-6},
    }
)
"""Seconds that NCCL assumes a ring step takes before its first byte, by medium and protocol. Source: `TUNER`."""

NCCL_ALGORITHMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all_reduce": ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"),
        "reduce_scatter": ("Ring", "CollNetDirect", "NVLS", "PAT"),
        "all_gather": ("Ring", "CollNetDirect", "NVLS", "PAT"),
        "broadcast": ("Ring",),
        "reduce": ("Ring",),
    }
)
"""The algorithms for which NCCL has a kernel, by collective. Source: `KERNELS`.

NVIDIA/nccl issues 1413 and 1473 explain why only the all-reduce uses a tree. On PAT: S. Jeaugey, "PAT: a new algorithm
for all-gather and reduce-scatter operations at scale", arXiv 2506.20252, 2025.
"""


def link(name: str, protocol: str = "Simple") -> Link:
    """Return the rated link `name`: alpha is NCCL's ring latency for its medium and `protocol`, beta is 1 / rate.

    Raises `ValueError` if `RATINGS` has no such link or NCCL no such protocol.
    """
    if name not in RATINGS:
        raise ValueError(f"there is no rating for {name!r}; use one of {', '.join(RATINGS)}")
    latency = NCCL_RING_LATENCY[RATINGS[name].medium]
    if protocol not in latency:
        raise ValueError(f"NCCL has no protocol {protocol!r}; use one of {', '.join(latency)}")
    return Link(latency[protocol], 1 / RATINGS[name].rate)


def markdown() -> str:
    """Return the ratings as a Markdown table: the rate one way, the alpha of NCCL's ring, and the source."""
    lines = ["| link | GB/s, one way | NCCL's alpha, microseconds (LL to Simple) | source |", "|---|---|---|---|"]
    for name, rating in RATINGS.items():
        latency = NCCL_RING_LATENCY[rating.medium]
        alphas = f"{latency['LL'] * 1e6:.1f} to {latency['Simple'] * 1e6:.1f}"
        lines.append(f"| {name} | {rating.rate / 1e9:g} | {alphas} | {rating.source} |")
    return "\n".join(lines)
