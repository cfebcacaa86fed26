"""How long NCCL takes for a collective on a cluster, and which algorithm and protocol it runs.

An algorithm is known by what it asks of the cluster (`Traffic`): messages one after the other within a node and across,
and bytes through a GPU's NVLink port and a node's network cards. A protocol decides how long a message takes and how
much of a link's rate is left for data:

- LL sends 4 bytes of data with every 4 bytes of flag: no waiting, half the bandwidth at best.
- LL128 sends 120 bytes of data with 8 of flags.
- Simple sends large pieces and then says so: all of the bandwidth, after a wait.

    seconds = launch + messages x their latency + (fill^1/2 + (bytes / rate)^1/2)^2

for the busier of port and cards, which work at the same time. The last term is a pipeline with the best number of
pieces: more pieces leave less of the pipeline empty at its ends and cost more messages. NCCL chooses the algorithm and
protocol that its own model says is fastest, and so does this one.

`FITTED` holds the constants. `collectives.measure.sweeps` fits them to published measurements.

Sources: the structure and the first guess of every constant, NVIDIA/nccl, src/graph/tuning.cc; NVLS, B. Klenk et al.,
"An in-network architecture for accelerating shared-memory multiprocessor collectives", 2020; the pipeline, J. Bruck et
al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2
from typing import Any, NamedTuple

import numpy as np

from .machines import GPUS, NETWORKS, Cluster

PROTOCOLS = ("LL", "LL128", "Simple")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Constants:
    """The constants of the model, by name. Times are in seconds, and shares are of a link's rated speed.

    `launch`: from the call to the kernel's first message, and from its last one to the host; `from_torch`: more of it
    if torch.distributed makes the call. `near_...`, `far_...`: a message within a node, and over InfiniBand, by
    protocol; LL by generation of GPU. `roce`, `efa`, `efa_v1`, `tcp`: more for a message over another transport.
    `nvls_start`, `nvls_tree_start`: before the switch adds.

    `nvlink` (and `nvlink_blackwell`), `network`, `tcp_share`: of the rated speed that bytes pass at. `nvls_hopper`,
    `nvls_blackwell`: of NVLink's while the switch adds for 8 GPUs; with L GPUs it is (8 / L)^`nvls_wear` times as much.
    `..._share`: of that again with LL or LL128, within a node and across, and in a tree. `two_children`: of the cards'
    bandwidth where a node of a tree has two children. `fill`: seconds that one piece takes through the pipeline.
    """

    launch: float
    from_torch: float
    near_ll_ampere: float
    near_ll_hopper: float
    near_ll_blackwell: float
    near_ll128: float
    near_simple: float
    far_ll: float
    far_ll128: float
    far_simple: float
    roce: float
    efa: float
    efa_v1: float
    tcp: float
    nvls_start: float
    nvls_tree_start: float
    nvlink: float
    nvlink_blackwell: float
    network: float
    tcp_share: float
    nvls_hopper: float
    nvls_blackwell: float
    nvls_wear: float
    near_ll_share: float
    far_ll_share: float
    near_ll128_share: float
    far_ll128_share: float
    tree_share: float
    two_children: float
    fill: float
    fill_blackwell: float


GUESSED = Constants(
    launch=7e-6, from_torch=20e-6, near_ll_ampere=0.6e-6, near_ll_hopper=0.6e-6, near_ll_blackwell=0.6e-6,
    near_ll128=1.9e-6, near_simple=3.4e-6, far_ll=5e-6, far_ll128=8.5e-6, far_simple=14e-6,
    roce=10e-6, efa=20e-6, efa_v1=60e-6, tcp=500e-6, nvls_start=20e-6, nvls_tree_start=150e-6,
    nvlink=0.8, nvlink_blackwell=0.8, network=0.95, tcp_share=0.7, nvls_hopper=0.65, nvls_blackwell=0.65,
    nvls_wear=0.05, near_ll_share=0.25, far_ll_share=0.1, near_ll128_share=0.9, far_ll128_share=0.5,
    tree_share=0.9, two_children=0.85, fill=5e-6, fill_blackwell=5e-6,
)  # fmt: skip
"""First guesses: NCCL's own constants where it has them, else round numbers. A fit starts here and is pulled here."""


FITTED = Constants(
    launch=9.3e-6, from_torch=20.4e-6, near_ll_ampere=0.988e-6, near_ll_hopper=0.462e-6, near_ll_blackwell=1.02e-6,
    near_ll128=2.88e-6, near_simple=2.51e-6, far_ll=7.74e-6, far_ll128=10.1e-6, far_simple=21.3e-6,
    roce=19e-6, efa=24.8e-6, efa_v1=70.1e-6, tcp=685e-6, nvls_start=15e-6, nvls_tree_start=276e-6,
    nvlink=0.802, nvlink_blackwell=0.776, network=0.974, tcp_share=0.662, nvls_hopper=0.657, nvls_blackwell=0.586,
    nvls_wear=0.0721, near_ll_share=0.5, far_ll_share=0.056, near_ll128_share=0.917, far_ll128_share=0.378,
    tree_share=0.778, two_children=0.85, fill=2.88e-6, fill_blackwell=4.24e-6,
)  # fmt: skip
"""What `measure.sweeps.fit` makes of the published sweeps in book/data/published."""


class Traffic(NamedTuple):
    """What an algorithm asks of a cluster, for a buffer of S bytes.

    `near_messages`, `far_messages`: one after the other, within a node and across. `near_bytes`: through the busiest
    GPU's port to its node, one way, over S. `far_bytes`: through the cards of the busiest node together, over S.
    """

    near_messages: float
    far_messages: float
    near_bytes: float
    far_bytes: float


class Way(NamedTuple):
    """An algorithm with a protocol, and the `seconds` that it takes."""

    algorithm: str
    protocol: str
    seconds: float


def ring(collective: str, cluster: Cluster) -> Traffic:
    """Return the traffic of L rings at once, one for each card: `algorithms.rails`."""
    ranks, nodes, in_node = cluster.world_size, cluster.nodes, cluster.gpus_per_node
    rounds = 2 if collective == "all_reduce" else 1
    bytes_sent = rounds * (ranks - 1) / ranks
    if nodes == 1:
        return Traffic(near_messages=rounds * (ranks - 1), far_messages=0, near_bytes=bytes_sent, far_bytes=0)
    return Traffic(
        near_messages=rounds * (ranks - nodes),
        far_messages=rounds * (nodes - 1),
        near_bytes=bytes_sent * (1 - 1 / in_node),
        far_bytes=bytes_sent,
    )


def tree(cluster: Cluster) -> Traffic:
    """Return the traffic of the double tree over nodes, with a chain in each node: `algorithms.rails`."""
    in_node = cluster.gpus_per_node
    return Traffic(2 * (in_node - 1), 2 * log2(cluster.nodes), 2 * (1 - 1 / in_node), _across_tree(cluster))


def nvls(cluster: Cluster) -> Traffic:
    """Return the traffic when the switch adds; on several nodes, with the double tree over them (NVLSTree).

    Every GPU adds up 1/L of the buffer, by reading it through the switch, and writes the sum to all in the same way.
    So S leave and S/L enter each port in the first half, and S/L leave and S enter it in the second.
    """
    return Traffic(2, 2 * log2(cluster.nodes), 1 + 1 / cluster.gpus_per_node, _across_tree(cluster))


def direct(cluster: Cluster) -> Traffic:
    """Return the traffic of an all-to-all in which every rank sends to every other one at once."""
    ranks, in_node = cluster.world_size, cluster.gpus_per_node
    far = (ranks - in_node) / ranks * in_node
    return Traffic(1, min(cluster.nodes - 1, 1), (in_node - 1) / ranks, far)


def _across_tree(cluster: Cluster) -> float:
    """Return the bytes, over S, that leave the busiest node of a double tree: with two nodes S/2 up and S/2 down.

    With more nodes it has two children in one tree: S/2 up and S/2 down to each of them, and S/2 up in the other tree.
    """
    return {1: 0.0, 2: 1.0}.get(cluster.nodes, 2.0)


def ways(
    collective: str,
    num_bytes: float,
    cluster: Cluster,
    constants: Constants = FITTED,
    algorithm: str | None = None,
    from_torch: bool = False,
) -> list[Way]:
    """Return the algorithms and protocols that NCCL has for a collective on this cluster, the fastest first.

    `num_bytes`: S, the full buffer: the input of a reduce-scatter, the output of an all-gather, and what a rank holds
    in an all-to-all. `algorithm`: only this one, as with NCCL_ALGO. `from_torch`: torch.distributed makes the call.

    Raises `ValueError` for a collective that NCCL's model doesn't have, a size below 0, one GPU alone, or an algorithm
    that can't run here.
    """
    if num_bytes < 0:
        raise ValueError(f"a collective has at least 0 bytes, not {num_bytes}")
    found = [
        Way(name, protocol, float(seconds))
        for name, protocol, seconds in _timed(collective, num_bytes, cluster, constants, algorithm, from_torch)
    ]
    return sorted(found, key=lambda way: way.seconds)


def seconds(
    collective: str,
    num_bytes: np.ndarray,
    cluster: Cluster,
    constants: Constants = FITTED,
    algorithm: str | None = None,
    from_torch: bool = False,
) -> np.ndarray:
    """Return the seconds of the fastest way for each of many sizes: float, of the shape of `num_bytes`. See `ways`."""
    times = [time for *_, time in _timed(collective, num_bytes, cluster, constants, algorithm, from_torch)]
    return np.min(times, axis=0)


def _timed(
    collective: str,
    num_bytes: Any,
    cluster: Cluster,
    constants: Constants,
    algorithm: str | None,
    from_torch: bool,
) -> Iterator[tuple[str, str, Any]]:
    """Yield (algorithm, protocol, seconds), for a number of bytes or an array of them."""
    by_algorithm = _algorithms(collective, cluster)
    if algorithm is not None and algorithm not in by_algorithm:
        has = ", ".join(by_algorithm)
        raise ValueError(f"{algorithm!r} can't run {collective} on this cluster; use one of {has}")
    start = constants.launch + (constants.from_torch if from_torch else 0)
    for name, traffic in by_algorithm.items():
        if algorithm in (None, name):
            for protocol in ("Simple",) if name.startswith("NVLS") else PROTOCOLS:
                yield name, protocol, start + _seconds(name, protocol, traffic, num_bytes, cluster, constants)


def choose(collective: str, num_bytes: float, cluster: Cluster, **options) -> Way:
    """Return the fastest of `ways`, which takes the same `options`."""
    return ways(collective, num_bytes, cluster, **options)[0]


def _algorithms(collective: str, cluster: Cluster) -> dict[str, Traffic]:
    if collective not in COLLECTIVES:
        raise ValueError(f"there is no model of {collective!r}; use one of {', '.join(COLLECTIVES)}")
    if cluster.world_size < 2:
        raise ValueError("a collective needs at least 2 GPUs, not one alone")
    if collective == "all_to_all":
        return {"direct": direct(cluster)}
    by_name = {"Ring": ring(collective, cluster)}
    if collective == "all_reduce":
        if cluster.nodes > 1:
            by_name["Tree"] = tree(cluster)
        if GPUS[cluster.gpu].switch_adds and cluster.gpus_per_node > 2:
            by_name["NVLS" if cluster.nodes == 1 else "NVLSTree"] = nvls(cluster)
    return by_name


def _seconds(
    algorithm: str, protocol: str, traffic: Traffic, num_bytes: Any, cluster: Cluster, constants: Constants
) -> Any:
    """Return the seconds from the kernel's start to its end, for a number of bytes or an array of them."""
    near, far = _latencies(protocol, cluster, constants)
    start = {"NVLS": constants.nvls_start, "NVLSTree": constants.nvls_tree_start}.get(algorithm, 0.0)
    waits = start + traffic.near_messages * near + traffic.far_messages * far
    bytes_time = num_bytes * _seconds_a_byte(algorithm, protocol, traffic, cluster, constants)
    fill = constants.fill_blackwell if GPUS[cluster.gpu].generation == "Blackwell" else constants.fill
    return waits + bytes_time + 2 * np.sqrt(fill * bytes_time)


def _latencies(protocol: str, cluster: Cluster, constants: Constants) -> tuple[float, float]:
    """Return the seconds before a message's first byte: within a node, and across."""
    generation = GPUS[cluster.gpu].generation.lower()
    near = {
        "LL": getattr(constants, f"near_ll_{generation}"),
        "LL128": constants.near_ll128,
        "Simple": constants.near_simple,
    }[protocol]
    if cluster.network is None:
        return near, 0.0
    far = {"LL": constants.far_ll, "LL128": constants.far_ll128, "Simple": constants.far_simple}[protocol]
    transport = NETWORKS[cluster.network].transport
    more = {"RoCE": constants.roce, "EFA": constants.efa, "EFA v1": constants.efa_v1}
    more |= {"TCP": constants.tcp, "TCPX": constants.tcp, "InfiniBand": 0.0}
    return near, far + more[transport]


def _seconds_a_byte(algorithm: str, protocol: str, traffic: Traffic, cluster: Cluster, constants: Constants) -> float:
    """Return the seconds for each byte of the buffer, at the busier of a GPU's port and a node's cards."""
    near_share, far_share = {
        "LL": (constants.near_ll_share, constants.far_ll_share),
        "LL128": (constants.near_ll128_share, constants.far_ll128_share),
        "Simple": (1.0, 1.0),
    }[protocol]
    blackwell = GPUS[cluster.gpu].generation == "Blackwell"
    near_rate = cluster.near_rate * (constants.nvlink_blackwell if blackwell else constants.nvlink) * near_share
    if algorithm.startswith("NVLS"):
        share = constants.nvls_blackwell if blackwell else constants.nvls_hopper
        near_rate = cluster.near_rate * share * (8 / cluster.gpus_per_node) ** constants.nvls_wear
    elif algorithm == "Tree":
        near_rate *= constants.tree_share
    if cluster.nodes == 1:
        return traffic.near_bytes / near_rate
    assert cluster.network is not None  # several nodes have one
    by_tcp = NETWORKS[cluster.network].transport.startswith("TCP")
    far_rate = cluster.far_rate * (constants.tcp_share if by_tcp else constants.network) * far_share
    if algorithm in ("Tree", "NVLSTree") and cluster.nodes > 2:
        far_rate *= constants.two_children
    return max(traffic.near_bytes / near_rate, traffic.far_bytes / far_rate)


def lower_bound(collective: str, num_bytes: float, cluster: Cluster, switch_adds: bool = False) -> float:
    """Return seconds that no algorithm can beat at the rated speeds, however small its messages.

    Within a node, every rank has to send what the others lack of it. For an all-reduce whose additions the ranks do,
    that is 2(P-1)/P S; if the switch adds and copies, a rank sends S and receives S, and the bound is S. Across nodes,
    what a node's cards must carry follows likewise, with a node for a rank.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"there is no bound for {collective!r}; use one of {', '.join(COLLECTIVES)}")

    def leaves(members: int) -> float:
        others = (members - 1) / members
        if collective == "all_reduce":
            return min(1.0, 2 * others) if switch_adds else 2 * others
        return others

    near = leaves(cluster.world_size) if cluster.nodes == 1 else 0.0
    far = direct(cluster).far_bytes if collective == "all_to_all" else leaves(cluster.nodes)
    across = far / cluster.far_rate if cluster.nodes > 1 else 0.0
    return num_bytes * max(near / cluster.near_rate, across)
