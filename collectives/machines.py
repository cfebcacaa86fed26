"""Rated speeds of real links, with the source of every figure, and the constants that NCCL's cost model uses.

A rating is not a measurement: no message reaches the full rate, and vendors often add both directions. All rates here
are bytes per second in *one* direction; a rank can send and receive at that rate at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from .topology import Link, Topology, two_level

_HOPPER = "NVIDIA, “NVIDIA Hopper Architecture In-Depth”, 2022, sections on NVLink and on PCIe Gen 5"
_NVLINK = "NVIDIA, “NVLink and NVLink Switch”, nvidia.com/data-center/nvlink: 1.8 TB/s in both directions"
_HDR = "NVIDIA, MCP7Y60 product specifications: 4 channels of 50G-PAM4 are 200GbE or HDR"
_NDR = "NVIDIA, MMA4Z00-NS product specifications: the line rate of 400GbE and of NDR is 400 Gb/s"
_XDR = "NVIDIA, “NVIDIA ConnectX-8 SuperNIC” data sheet, 2024: up to 800 Gb/s of InfiniBand or Ethernet"
_BRIDGE = "NVIDIA, “NVIDIA A40” data sheet: NVLink at 112.5 GB/s, both directions together"
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


# --- clusters -----------------------------------------------------------------------------------------------------


class Gpu(NamedTuple):
    """A GPU. `generation`: of its kernels. `nvlink`: the rating of its port to the others of its node.

    `switch_adds`: whether its NVLink switch can add up what passes (NVLS).
    """

    generation: str
    nvlink: str
    switch_adds: bool


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "A40": Gpu("Ampere", "NVLink bridge (A40)", False),
        "A100": Gpu("Ampere", "NVLink 3 (A100)", False),
        "H20": Gpu("Hopper", "NVLink 4 (H100)", True),
        "H100": Gpu("Hopper", "NVLink 4 (H100)", True),
        "H200": Gpu("Hopper", "NVLink 4 (H100)", True),
        "B200": Gpu("Blackwell", "NVLink 5 (B200)", True),
        "B300": Gpu("Blackwell", "NVLink 5 (B200)", True),
        "GB200": Gpu("Blackwell", "NVLink 5 (B200)", True),
        "GB300": Gpu("Blackwell", "NVLink 5 (B200)", True),
    }
)
"""GPUs by name. NVLink's switches add up data from the third generation on, that of Hopper. Source: `_HOPPER`."""


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
        "100 GbE": Network(100e9 / 8, "TCP", _100GBE),
    }
)
"""Networks by name, with the rate of one of their cards."""


@dataclass(frozen=True)
class Cluster:
    """`nodes` of `gpus_per_node` GPUs, which NVLink joins within a node and a network joins across.

    A node is what NVLink reaches: 8 GPUs of a DGX, but all 72 of an NVL72 rack. `nics_per_node`: its network cards,
    each on a rail of its own. `nic_rate`: bytes per second of one card, one way, if it isn't the network's rating.
    `oversubscription`: how many times more bytes the cards can send than the core of the network can carry.

    Raises `ValueError` if there is no such GPU or network, or if the numbers don't fit together.
    """

    gpu: str
    nodes: int = 1
    gpus_per_node: int = 8
    network: str | None = "InfiniBand NDR"
    nics_per_node: int = 8
    nic_rate: float | None = None
    oversubscription: float = 1.0

    def __post_init__(self):
        if self.gpu not in GPUS:
            raise ValueError(f"there is no GPU {self.gpu!r}; use one of {', '.join(GPUS)}")
        if self.network is None and self.nodes > 1:
            raise ValueError(f"{self.nodes} nodes need a network; use one of {', '.join(NETWORKS)}")
        if self.network is not None and self.network not in NETWORKS:
            raise ValueError(f"there is no network {self.network!r}; use one of {', '.join(NETWORKS)}")
        for name in ("nodes", "gpus_per_node", "nics_per_node", "oversubscription"):
            if getattr(self, name) < 1:
                raise ValueError(f"a cluster's {name} must be at least 1, not {getattr(self, name)}")
        if self.nic_rate is not None and not 1e8 < self.nic_rate < 1e12:
            raise ValueError(f"nic_rate is in bytes per second: 400 Gb/s are 50e9, and {self.nic_rate:g} can't be")

    @property
    def world_size(self) -> int:
        """The number of GPUs."""
        return self.nodes * self.gpus_per_node

    @property
    def near_rate(self) -> float:
        """Bytes per second that a GPU's port to its node is rated for, one way."""
        return RATINGS[GPUS[self.gpu].nvlink].rate

    @property
    def far_rate(self) -> float:
        """Bytes per second that a node's cards are rated for together, one way, as far as the core can carry them."""
        if self.network is None:
            return 0.0
        return self.nics_per_node * (self.nic_rate or NETWORKS[self.network].rate) / self.oversubscription

    def of(self, nodes: int) -> Cluster:
        """Return `nodes` nodes of this kind."""
        return replace(self, nodes=nodes)

    def topology(self, protocol: str = "Simple") -> Topology:
        """Return the cluster as links that schedules are priced on, with rated speeds and NCCL's latencies."""
        near = link(GPUS[self.gpu].nvlink, protocol)
        if self.nodes == 1:
            return Topology(self.gpus_per_node, near, overlapped=True)
        if self.gpus_per_node % self.nics_per_node:
            raise ValueError(f"{self.gpus_per_node} GPUs can't share {self.nics_per_node} network cards evenly")
        far = Link(NCCL_RING_LATENCY["network"][protocol], self.nics_per_node / self.far_rate)
        sharing = self.gpus_per_node // self.nics_per_node
        return two_level(self.nodes, self.gpus_per_node, near, far, sharing, overlapped=True)


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
