"""Rated speeds of real links, with the source of every figure, and the constants that NCCL's cost model uses.

A rating is not a measurement: no message reaches the full rate, and vendors often add both directions. All rates here
are bytes per second in *one* direction; a rank can send and receive at that rate at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from numbers import Integral
from types import MappingProxyType
from typing import Any, NamedTuple

from .topology import Link, Topology, two_level

GIB = 2**30

_HOPPER = "NVIDIA, “NVIDIA Hopper Architecture In-Depth”, 2022, sections on NVLink and on PCIe Gen 5"
_NVLINK = "NVIDIA, “NVLink and NVLink Switch”, nvidia.com/data-center/nvlink: 1.8 TB/s in both directions"
_HDR = "NVIDIA, MCP7Y60 product specifications: 4 channels of 50G-PAM4 are 200GbE or HDR"
_NDR = "NVIDIA, MMA4Z00-NS product specifications: the line rate of 400GbE and of NDR is 400 Gb/s"
_XDR = "NVIDIA, “NVIDIA ConnectX-8 SuperNIC” data sheet, 2024: up to 800 Gb/s of InfiniBand or Ethernet"
_BRIDGE = "NVIDIA, “NVIDIA A40” data sheet: NVLink at 112.5 GB/s, both directions together"
_H800 = "C. Zhao et al., “Insights into DeepSeek-V3”, 2025, section 2.1: 400 GB/s, both directions together"
_EFA = "AWS, instance types: p4d and p4de have 4 x 100 Gb/s a node of 8 GPUs, p5, p5en and p6-b200 have 3,200 Gb/s"
_TCPX = "Google Cloud, GPU machine types: A3 High has 4 cards of 200 Gb/s and A3 Mega 8 of 200 Gb/s a node of 8 GPUs"
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
        "InfiniBand XDR": Rating(800e9 / 8, "network", _XDR),
        "100 GbE": Rating(100e9 / 8, "network", _100GBE),
        "400 GbE": Rating(400e9 / 8, "network", _NDR),
        "NVLink bridge (A40)": Rating(112.5e9 / 2, "NVLink", _BRIDGE),
        "NVLink 4 (H800)": Rating(400e9 / 2, "NVLink", _H800),
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
"""The algorithms for which NCCL has a kernel that needs no registered buffers, by collective. Source: `KERNELS`.

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


# --- clusters -----------------------------------------------------------------------------------------------------


class Gpu(NamedTuple):
    """A kind of GPU. `generation`: of its kernels. `nvlink`: the rating of its port to the others of its node.

    That port is PCIe's on a GPU without NVLink. `joined`: how many GPUs a node has at most. `switch_adds`: whether its
    NVLink switch can add up what passes (NVLS). `peak`: dense bf16 FLOP/s. `memory`: bytes that the driver reports.
    `bandwidth`: bytes per second between GPU and memory. `watts`: its power limit; `usual_watts`: that of the part
    whose `peak` it is.
    """

    name: str
    generation: str
    nvlink: str
    joined: int
    switch_adds: bool
    peak: float
    memory: float
    bandwidth: float
    watts: float
    usual_watts: float

    @property
    def on_pcie(self) -> bool:
        """Whether it has no NVLink, so that all it sends passes one PCIe port: to its node, and to the network."""
        return RATINGS[self.nvlink].medium == "PCIe"


_GPUS = (
    Gpu("A40", "Ampere", "NVLink bridge (A40)", 2, False, 149.7e12, 44.4 * GIB, 0.696e12, 300, 300),
    Gpu("A100-40GB", "Ampere", "NVLink 3 (A100)", 8, False, 312e12, 39.4 * GIB, 1.555e12, 400, 400),
    Gpu("A100", "Ampere", "NVLink 3 (A100)", 8, False, 312e12, 79.15 * GIB, 2.039e12, 400, 400),
    Gpu("H20", "Hopper", "NVLink 4 (H100)", 8, True, 148e12, 95.1 * GIB, 4.0e12, 500, 500),
    Gpu("H100", "Hopper", "NVLink 4 (H100)", 8, True, 989.4e12, 79.11 * GIB, 3.35e12, 700, 700),
    Gpu("H100-96GB", "Hopper", "NVLink 4 (H100)", 8, True, 989.4e12, 94.99 * GIB, 2.4e12, 500, 700),
    Gpu("H800", "Hopper", "NVLink 4 (H800)", 8, True, 989.4e12, 79.11 * GIB, 3.35e12, 700, 700),
    Gpu("H200", "Hopper", "NVLink 4 (H100)", 8, True, 989.4e12, 139.8 * GIB, 4.8e12, 700, 700),
    Gpu("B200", "Blackwell", "NVLink 5 (B200)", 8, True, 2250e12, 178.4 * GIB, 8e12, 1000, 1000),
    Gpu("GB200", "Blackwell", "NVLink 5 (B200)", 72, True, 2250e12, 184.0 * GIB, 8e12, 1200, 1200),
    Gpu("B300", "Blackwell Ultra", "NVLink 5 (B200)", 8, True, 2250e12, 267.7 * GIB, 8e12, 1100, 1100),
    Gpu("GB300", "Blackwell Ultra", "NVLink 5 (B200)", 72, True, 2250e12, 276.5 * GIB, 8e12, 1400, 1400),
    Gpu("RTX PRO 6000", "Blackwell", "PCIe 5.0 x16", 8, False, 500e12, 94.97 * GIB, 1.597e12, 600, 600),
)
GPUS: Mapping[str, Gpu] = MappingProxyType({gpu.name: gpu for gpu in _GPUS})
"""GPUs by name.

Sources: NVIDIA's data sheets of the A40, A100, H100, H200 and H20 (SXM), DGX B200 and B300, GB200 and GB300 NVL72, for
peak, bandwidth, watts and how many NVLink joins; the driver (torch's `total_memory`, nvidia-smi) for memory, where data
sheets say 48, 40, 80, 96, 141, 180, 186 and 288 "GB", and Blackwell's figures are good to about 1 %; `_HOPPER` for
switches that add, from the third generation on. A GB200's two GPUs are rated 2,500 TFLOP/s each with their power limit
raised; published runs are no faster than a B200's, so all Blackwells count 2,250. H100-96GB: torchtitan's HBM2e part.

RTX PRO 6000: the data sheet of its Server Edition, 2025, which rates sparse FP4 at 4 PFLOP/s, so dense bf16 at an
eighth; torch reports 94.97 GiB of its 96 "GB". On NVIDIA's MGX board of 2025 two of them share a ConnectX-8 of 800
Gb/s and its PCIe switch, so each has 400 Gb/s. The planner has no constants for its kernels: `MACHINES` leaves it out.
"""

_OTHER_FORMS = ("PCIe", "NVL", "MIG")  # in a driver's name: parts with another peak, bandwidth or link than SXM's


def named(driver: str, memory: float = 0) -> Gpu | None:
    """Return the GPU that a driver calls so, such as "NVIDIA H100 80GB HBM3", or None if `GPUS` doesn't have it.

    `memory`: bytes that the driver reports, which tell an A100 of 40 GB from one of 80 GB.
    """
    words = re.findall(r"[A-Z]+[0-9]+", driver)
    if any(form in driver for form in _OTHER_FORMS):
        return None
    found = [gpu for gpu in _GPUS if gpu.name.partition("-")[0] in words]
    return min(found, key=lambda gpu: abs(gpu.memory - (memory or gpu.memory)), default=None)


RESERVE = 2 * GIB
"""Bytes of a GPU that training can't have: about 0.5 GiB of CUDA context, 1 GiB of NCCL's buffers, and gaps."""


class Network(NamedTuple):
    """A network between nodes. `rate`: bytes per second of one card, one way. `transport`: what NCCL speaks over it."""

    rate: float
    transport: str
    source: str


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "InfiniBand HDR": Network(200e9 / 8, "InfiniBand", _HDR),
        "InfiniBand NDR": Network(400e9 / 8, "InfiniBand", _NDR),
        "InfiniBand XDR": Network(800e9 / 8, "InfiniBand", _XDR),
        "RoCE 100": Network(100e9 / 8, "RoCE", _100GBE),
        "RoCE 200": Network(200e9 / 8, "RoCE", _HDR),
        "RoCE 400": Network(400e9 / 8, "RoCE", _NDR),
        "EFA v1": Network(100e9 / 8, "EFA v1", _EFA),
        "EFA": Network(400e9 / 8, "EFA", _EFA),
        "GPUDirect-TCPX": Network(200e9 / 8, "TCPX", _TCPX),
        "GPUDirect-TCPXO": Network(200e9 / 8, "TCPXO", _TCPX),
        "100 GbE": Network(100e9 / 8, "TCP", _100GBE),
    }
)
"""Networks by name, with the rate of one of their cards."""


class Part(NamedTuple):
    """What a group of ranks has of a cluster while all groups communicate: `gpus_per_node` GPUs on each of `nodes`.

    `near_rate`: bytes per second of a GPU's port. `far_rate`: of the group's share of a node's cards together.
    `network_adds`: whether the network's switches add up what passes (SHARP).
    """

    spec: Gpu
    transport: str | None
    nodes: Any
    gpus_per_node: Any
    near_rate: float
    far_rate: Any
    network_adds: bool = False

    @property
    def world_size(self):
        """The number of GPUs."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class Cluster:
    """`nodes` of `gpus_per_node` GPUs, which NVLink joins within a node and a network joins across.

    A node is what NVLink reaches: 8 GPUs of a DGX, but all 72 of an NVL72 rack. PCIe joins GPUs without NVLink.
    `nics_per_node`: its network cards, each on a rail of its own. `nic_rate`: bytes per second of one card, one way, if
    it isn't the network's rating.
    `oversubscription`: how many times more bytes the cards can send than the core of the network can carry. `tuned`:
    the GPU, if it isn't as `GPUS` says, such as one with a lower power limit. `reserve`: bytes of its memory that
    training can't have. `network_adds`: whether the network's switches add up what passes, as InfiniBand's do with
    SHARP (R. Graham et al., 2016), if an administrator has set it up.

    Raises `ValueError` if there is no such GPU or network, or if the numbers don't fit together.
    """

    gpu: str
    nodes: int = 1
    gpus_per_node: int = 8
    network: str | None = "InfiniBand NDR"
    nics_per_node: int = 8
    nic_rate: float | None = None
    oversubscription: float = 1.0
    tuned: Gpu | None = None
    reserve: float = RESERVE
    network_adds: bool = False

    def __post_init__(self):
        if self.gpu not in GPUS:
            raise ValueError(f"there is no GPU {self.gpu!r}; use one of {', '.join(GPUS)}")
        if self.gpus_per_node > self.spec.joined:
            join = "a node has" if self.spec.on_pcie else "NVLink joins"
            raise ValueError(f"{join} at most {self.spec.joined} {self.gpu}s, not {self.gpus_per_node}")
        if self.network is None and self.nodes > 1:
            raise ValueError(f"{self.nodes} nodes need a network; use one of {', '.join(NETWORKS)}")
        if self.network is not None and self.network not in NETWORKS:
            raise ValueError(f"there is no network {self.network!r}; use one of {', '.join(NETWORKS)}")
        if self.network_adds and self.transport != "InfiniBand":
            raise ValueError(f"SHARP needs InfiniBand's switches, and this cluster has {self.network or 'no network'}")
        for name in ("nodes", "gpus_per_node", "nics_per_node"):
            if not isinstance(getattr(self, name), Integral) or getattr(self, name) < 1:
                raise ValueError(f"a cluster's {name} must be a whole number from 1 on, not {getattr(self, name)!r}")
        if not self.oversubscription >= 1:
            raise ValueError(f"a cluster's oversubscription must be at least 1, not {self.oversubscription}")
        if self.nic_rate is not None and not 1e8 < self.nic_rate < 3e11:
            raise ValueError(f"nic_rate is in bytes per second: 400 Gb/s are 50e9, and {self.nic_rate:g} can't be")

    @property
    def spec(self) -> Gpu:
        """The GPU and its figures."""
        return self.tuned or GPUS[self.gpu]

    @property
    def name(self) -> str:
        """The name of the GPU."""
        return self.gpu

    @property
    def peak(self) -> float:
        """Dense bf16 FLOP/s of a GPU."""
        return self.spec.peak

    @property
    def world_size(self) -> int:
        """The number of GPUs."""
        return self.nodes * self.gpus_per_node

    @property
    def usable(self) -> float:
        """Bytes of a GPU's memory that training can have."""
        return self.spec.memory - self.reserve

    @property
    def transport(self) -> str | None:
        """What NCCL speaks over the network."""
        return self.network and NETWORKS[self.network].transport

    @property
    def near_rate(self) -> float:
        """Bytes per second that a GPU's port to its node is rated for, one way."""
        return RATINGS[self.spec.nvlink].rate

    @property
    def far_rate(self) -> float:
        """Bytes per second that a node's cards are rated for together, one way, as far as the core can carry them."""
        if self.network is None:
            return inf  # nothing crosses
        return self.nics_per_node * (self.nic_rate or NETWORKS[self.network].rate) / self.oversubscription

    def of(self, nodes: int) -> Cluster:
        """Return `nodes` nodes of this kind."""
        return replace(self, nodes=nodes)

    def part(self, gpus_per_node, nodes) -> Part:
        """Return what a group has to itself that has so many of each node's GPUs, on so many nodes."""
        if self.network is None and isinstance(nodes, int) and nodes > 1:
            raise ValueError(f"a group on {nodes} nodes needs a network; this cluster of {self.gpu} has none")
        far_rate = self.far_rate * gpus_per_node / self.gpus_per_node
        return Part(self.spec, self.transport, nodes, gpus_per_node, self.near_rate, far_rate, self.network_adds)

    def links(self, protocol: str = "Simple") -> tuple[Link, Link]:
        """Return a GPU's rated links, within its node and across, with NCCL's latencies."""
        far = Link(NCCL_RING_LATENCY["network"][protocol], self.gpus_per_node / self.far_rate)
        return link(self.spec.nvlink, protocol), far

    def topology(self, protocol: str = "Simple") -> Topology:
        """Return the cluster as links that schedules are priced on, with rated speeds and NCCL's latencies."""
        near, far = self.links(protocol)
        if self.nodes == 1:
            return Topology(self.gpus_per_node, near, overlapped=True)
        if self.gpus_per_node % self.nics_per_node:
            raise ValueError(f"{self.gpus_per_node} GPUs can't share {self.nics_per_node} network cards evenly")
        sharing = self.gpus_per_node // self.nics_per_node
        far = Link(far.alpha, far.beta / sharing)
        return two_level(self.nodes, self.gpus_per_node, near, far, sharing, overlapped=True)


def _usual(gpu: str, joined: int) -> Cluster:
    """Return a node with a card for each GPU. An NVL72 counts 64: jobs of a power of two leave 8 of its GPUs out."""
    size = min(joined, 64)
    network = {"Ampere": "InfiniBand HDR"}.get(GPUS[gpu].generation, "InfiniBand NDR")
    return Cluster(gpu, 1, size, "InfiniBand XDR" if gpu == "GB300" else network, nics_per_node=size)


RUNNING_CASE = Cluster("H100", nodes=8)
"""The cluster that the course prices everything on: 8 nodes of 8 H100, with a 400 Gb/s card for every GPU."""

CLUSTERS: Mapping[str, Cluster] = MappingProxyType(
    {
        "DGX A100": Cluster("A100", network="InfiniBand HDR"),
        "DGX H100": Cluster("H100"),
        "DGX H200": Cluster("H200"),
        "DGX B200": Cluster("B200"),
        "GB200 NVL72": Cluster("GB200", gpus_per_node=72, nics_per_node=72),
        "GB300 NVL72": Cluster("GB300", gpus_per_node=72, network="InfiniBand XDR", nics_per_node=72),
        "H100 on plain Ethernet": Cluster("H100", network="100 GbE", nics_per_node=1),
    }
)
"""Nodes as they are sold, one of each; `.of(nodes)` returns more.

Sources: those of `RATINGS` and `NETWORKS`, and NVIDIA's pages on the DGX A100, H100, H200 and B200 and on the GB200 and
GB300 NVL72, for the numbers of GPUs and cards.
"""

MACHINES: Mapping[str, Cluster] = MappingProxyType(
    {name.lower(): _usual(name, gpu.joined) for name, gpu in GPUS.items() if gpu.joined >= 8 and not gpu.on_pcie}
)
"""One node of each GPU that training jobs run on; `.of(nodes)` returns more."""
