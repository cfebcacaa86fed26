"""How long NCCL takes for a collective on a cluster, and which algorithm and protocol it runs.

An algorithm is known by what it asks of the cluster (`Traffic`): messages one after the other within a node and across,
and bytes through a GPU's NVLink port and a node's network cards. A protocol decides how long a message takes and how
much of a link's rate is left for data:

- LL sends 4 bytes of data with every 4 bytes of flag: no waiting, half the bandwidth at best.
- LL128 sends 120 bytes of data with 8 of flags.
- Simple sends large pieces and then says so: all of the bandwidth, after a wait.

    seconds = launch + messages x their latency + (fill^1/2 + (bytes / rate)^1/2)^2

for the busier of port and cards, which work at the same time. On GPUs without NVLink both are behind the same PCIe
port, so it carries the bytes of both. The last term is a pipeline with the best number of pieces: more pieces leave
less of the pipeline empty at its ends and cost more messages. In an all-to-all across nodes a GPU starts a message to
each peer, one after the other. What was started travels meanwhile, so only the longer of starting and the last term
counts. NCCL chooses the algorithm and protocol that its own model says is fastest, and so does this one. Whether NVLS
runs in a node, NCCL's model decides.

`Constants` has what these sentences leave open. `collectives.measure.sweeps` fits them to published measurements.

Sources: the structure and the first guess of every constant, NVIDIA/nccl, src/graph/tuning.cc; NVLS, B. Klenk et al.,
"An in-network architecture for accelerating shared-memory multiprocessor collectives", 2020; the pipeline, J. Bruck et
al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997; messages started
one after the other, the gap of D. Culler et al., "LogP: towards a realistic model of parallel computation", 1993.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .fitted import constant, guessed
from .formula import Symbol, log2, maximum, minimum, where
from .machines import NCCL_RING_LATENCY, Cluster, Part

PROTOCOLS = ("LL", "LL128", "Simple")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
NEVER = 1e9  # seconds


@dataclass(frozen=True)
class Constants:
    """The constants of the model, by name. Times are in seconds, and shares are of a link's rated speed.

    LL128's waits come on top of LL's, and Simple's on top of LL128's. So NCCL's order of the protocols holds by
    construction: each next one waits longer and leaves more of the bandwidth for data.
    """

    launch: float = constant(9.43e-6, 7e-6, "from the call to the first message, and from the last one to the host")
    from_torch: float = constant(19.4e-6, 20e-6, "more if torch.distributed makes the call")
    near_ll_ampere: float = constant(1.04e-6, 0.6e-6, "a message of LL within a node, Ampere")
    near_ll_hopper: float = constant(0.437e-6, 0.6e-6, "a message of LL within a node, Hopper")
    near_ll_blackwell: float = constant(1.03e-6, 0.6e-6, "a message of LL within a node, Blackwell")
    near_ll128: float = constant(1.42e-6, 1.3e-6, "how much longer LL128 waits than LL within a node")
    near_simple: float = constant(0.884e-6, 1.5e-6, "how much longer Simple waits than LL128 within a node")
    far_ll: float = constant(7.71e-6, 5e-6, "a message of LL over InfiniBand")
    far_ll128: float = constant(4.66e-6, 3.5e-6, "how much longer LL128 waits than LL across nodes")
    far_simple: float = constant(4.74e-6, 5.5e-6, "how much longer Simple waits than LL128 across nodes")
    roce: float = constant(18.4e-6, 10e-6, "more for a message over RoCE")
    efa: float = constant(25e-6, 20e-6, "more for one over AWS's EFA, Hopper and later")
    efa_v1: float = constant(68.1e-6, 60e-6, "more for one over the first EFA, Ampere")
    tcp: float = constant(
        30e-6, 30e-6, "more for one over plain TCP: no sweep has it, nccl-tests issue 82 has 38 to 46 µs in all"
    )
    tcpx: float = constant(684e-6, 500e-6, "more for one over GPUDirect-TCPX")
    tcpxo: float = constant(50e-6, 50e-6, "more for one over GPUDirect-TCPXO: no sweep has it")
    nvls_start: float = constant(11.9e-6, 20e-6, "until the switch of a node adds (NVLS)")
    nvls_tree_start: float = constant(
        54.2e-6, 40e-6, "until the switches of a tree of nodes add (NVLSTree)", most=60e-6
    )
    nvlink: float = constant(0.813, 0.8, "share of NVLink's rate, Ampere and Hopper", most=1)
    nvlink_blackwell: float = constant(0.765, 0.8, "share of NVLink's rate, Blackwell", most=1)
    network: float = constant(0.982, 0.95, "share of the network cards' rate", most=1)
    tcp_share: float = constant(
        0.5, 0.5, "share of a card's rate over plain TCP: NCCL issues 209 and 450 reach 0.3 to 0.9", most=1
    )
    tcpx_share: float = constant(0.666, 0.7, "share of a card's rate over GPUDirect-TCPX", most=1)
    nvls_hopper: float = constant(
        0.735, 0.65, "share of NVLink's rate while the switch adds for 8 GPUs, Hopper", most=1
    )
    nvls_blackwell: float = constant(0.606, 0.65, "share of NVLink's rate while the switch adds, Blackwell", most=1)
    nvls_wear: float = constant(
        0.0783, 0.05, "an exponent: among L > 8 GPUs, that share times (8 / L) to this power is left", most=1
    )
    nvls_tree_share: float = constant(0.825, 0.9, "of the share while the switch adds, what NVLSTree keeps", most=1)
    near_ll_share: float = constant(0.5, 0.25, "of NVLink's share, what a ring with LL keeps", most=4 / 8)
    far_ll_share: float = constant(0.0554, 0.1, "of the cards' share, what LL keeps", most=4 / 8)
    near_ll128_share: float = constant(0.938, 0.9, "of NVLink's share, what LL128 keeps", most=120 / 128)
    far_ll128_share: float = constant(0.297, 0.5, "of the cards' share, what LL128 keeps", most=120 / 128)
    tree_share: float = constant(0.752, 0.9, "of NVLink's share, what a tree keeps", most=1)
    two_children: float = constant(
        0.85, 0.85, "of the cards' share, what a node with two children in a tree keeps", most=1
    )
    fill: float = constant(3.38e-6, 5e-6, "one piece through the pipeline, Ampere and Hopper")
    fill_blackwell: float = constant(2.96e-6, 5e-6, "one piece through the pipeline, Blackwell")
    fill_nvls: float = constant(9.37e-6, 5e-6, "one piece through the pipeline while the switch adds")
    far_peer: float = constant(
        2.7e-6, 2.7e-6, "to start a message to each further peer across nodes: 16 B200 take 37.3 µs for a few bytes"
    )


FITTED = Constants()
"""What `measure.sweeps.fit` makes of the published sweeps in book/data/published."""

GUESSED = guessed(Constants)
"""First guesses: NCCL's own constants where it has them, else round numbers, made with the data in view."""

NEUTRAL = replace(
    GUESSED,
    **dict.fromkeys(("from_torch", "roce", "efa", "efa_v1", "tcp", "tcpx", "tcpxo"), 20e-6),
    **dict.fromkeys(("nvls_start", "nvls_tree_start"), 20e-6),
    **dict.fromkeys(("nvlink", "nvlink_blackwell", "network", "tcp_share", "tcpx_share"), 0.9),
    **dict.fromkeys(("nvls_hopper", "nvls_blackwell", "tree_share", "two_children"), 0.9),
    far_ll_share=0.25, near_ll128_share=0.92, far_ll128_share=0.92, nvls_wear=0.01, far_peer=1e-9,
)  # fmt: skip
"""Guesses as one makes without the data: NCCL's own constants, 20 µs for any other wait, 0.9 for any other share.

NCCL's model has no wait for a further peer, so there is none here.
"""

PCIE_SHARE = 0.75
"""Share of PCIe's rate that NCCL counts on: 48 of 64 GB/s (NVIDIA/nccl, src/graph/topo.cc, `kvDictPciGen`). Not fitted.

PCIe's latencies are NCCL's too: `machines.NCCL_RING_LATENCY`.
"""


class Traffic(NamedTuple):
    """What an algorithm asks of a cluster, for a buffer of S bytes.

    `near_messages`, `far_messages`: one after the other, within a node and across. `near_bytes`: through the busiest
    GPU's port to its node, one way, over S. `far_bytes`: through the cards of the busiest node together, over S.
    `far_peers`: GPUs in other nodes that a GPU sends to at once, after the first.
    """

    near_messages: float
    far_messages: float
    near_bytes: float
    far_bytes: float
    far_peers: Any = None


class Way(NamedTuple):
    """An algorithm with a protocol, and the `seconds` that it takes."""

    algorithm: str
    protocol: str
    seconds: float


class Line(NamedTuple):
    """The seconds of an algorithm with a protocol, by bytes: those that it waits, and for each byte of the buffer.

    `starts`: seconds to start the messages to all further peers, while the bytes of those started travel.
    """

    algorithm: str
    protocol: str
    waits: Any
    a_byte: Any
    fill: float
    starts: Any = None

    def seconds(self, num_bytes):
        """Return the seconds for a number of bytes, an array of them, or a symbol."""
        passing = num_bytes * self.a_byte
        travels = passing + 2 * (self.fill * passing) ** 0.5
        return self.waits + (travels if self.starts is None else maximum(self.starts, travels))


def ring(collective: str, cluster: Cluster | Part) -> Traffic:
    """Return the traffic of L rings at once, one for each card: `algorithms.rails`."""
    ranks, nodes, in_node = cluster.world_size, cluster.nodes, cluster.gpus_per_node
    rounds = 2 if collective == "all_reduce" else 1
    bytes_sent = rounds * (ranks - 1) / ranks
    crosses = minimum(1, nodes - 1)
    return Traffic(
        near_messages=rounds * (ranks - nodes),
        far_messages=rounds * (nodes - 1),
        near_bytes=bytes_sent * (1 - crosses / in_node),
        far_bytes=bytes_sent * crosses,
    )


def tree(cluster: Cluster | Part) -> Traffic:
    """Return the traffic of the double tree over nodes, with a chain in each node: `algorithms.rails`."""
    in_node = cluster.gpus_per_node
    return Traffic(2 * (in_node - 1), 2 * log2(cluster.nodes), 2 * (1 - 1 / in_node), _across_tree(cluster))


def nvls(cluster: Cluster | Part) -> Traffic:
    """Return the traffic when the NVLink switch adds, and on several nodes the network's switches too (SHARP).

    Every GPU adds up 1/L of the buffer, by reading it through the switch, and writes the sum to all in the same way.
    So S leave and S/L enter each port in the first half, and S/L leave and S enter it in the second. In between each
    node sends its sum to the network's switches once and receives that of all nodes once.
    """
    crosses = minimum(1, cluster.nodes - 1)
    return Traffic(2, 2 * crosses, 1 + 1 / cluster.gpus_per_node, crosses)


def nvls_tree(cluster: Cluster | Part) -> Traffic:
    """Return the traffic of `nvls` with the double tree over nodes in place of switches between them."""
    return nvls(cluster)._replace(far_messages=2 * log2(cluster.nodes), far_bytes=_across_tree(cluster))


def collnet(cluster: Cluster | Part) -> Traffic:
    """Return the traffic when only the network's switches add (CollNetDirect).

    Every GPU of a node adds up 1/L of the buffer, which it receives from every other GPU and returns to them.
    """
    return nvls(cluster)._replace(near_bytes=2 * (1 - 1 / cluster.gpus_per_node))


def direct(cluster: Cluster | Part) -> Traffic:
    """Return the traffic of an all-to-all in which every rank sends to every other one at once."""
    ranks, in_node = cluster.world_size, cluster.gpus_per_node
    far, further = (ranks - in_node) / ranks * in_node, maximum(0, ranks - in_node - 1)
    return Traffic(minimum(1, in_node - 1), minimum(1, cluster.nodes - 1), (in_node - 1) / ranks, far, further)


def sent(cluster: Cluster | Part) -> Traffic:
    """Return the traffic of ranks that send a buffer to the next one, each by its own share of the node's cards."""
    crosses = minimum(1, cluster.nodes - 1)
    return Traffic(1 - crosses, crosses, 1 - crosses, crosses * cluster.gpus_per_node)


def _across_tree(cluster: Cluster | Part):
    """Return the bytes, over S, that leave the busiest node of a double tree: with two nodes S/2 up and S/2 down.

    With more nodes it has two children in one tree: S/2 up and S/2 down to each of them, and S/2 up in the other tree.
    """
    return minimum(2, cluster.nodes - 1)


def ways(
    collective: str,
    num_bytes: float,
    cluster: Cluster | Part,
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
    if not num_bytes >= 0:
        raise ValueError(f"a collective has at least 0 bytes, not {num_bytes}")
    if cluster.world_size < 2:
        raise ValueError("a collective needs at least 2 GPUs, not one alone")
    found = [
        Way(line.algorithm, line.protocol, float(line.seconds(num_bytes)))
        for line in lines(collective, cluster, constants, algorithm, from_torch)
    ]
    return sorted(found, key=lambda way: way.seconds)


def choose(collective: str, num_bytes: float, cluster: Cluster | Part, **options) -> Way:
    """Return the fastest of `ways`, which takes the same `options`."""
    return ways(collective, num_bytes, cluster, **options)[0]


def lines(
    collective: str,
    cluster: Cluster | Part,
    constants: Constants = FITTED,
    algorithm: str | None = None,
    from_torch: bool = False,
) -> list[Line]:
    """Return the seconds of every algorithm and protocol as functions of bytes; NCCL takes the least. See `ways`."""
    by_algorithm = {
        name: (traffic, runs)
        for name, (traffic, runs) in _algorithms(collective, cluster, algorithm).items()
        if isinstance(runs, Symbol) or runs  # a slider decides later whether it runs
    }
    if algorithm is not None and algorithm not in by_algorithm:
        has = ", ".join(by_algorithm)
        raise ValueError(f"{algorithm!r} can't run {collective} on this cluster; use one of {has}")
    start = constants.launch + (constants.from_torch if from_torch else 0)
    return [
        _line(name, protocol, traffic, cluster, constants, where(runs, start, NEVER))
        for name, (traffic, runs) in by_algorithm.items()
        if algorithm in (None, name)
        for protocol in _protocols(name, cluster)
    ]


def _protocols(algorithm: str, cluster: Cluster | Part) -> tuple[str, ...]:
    """Return the protocols that an algorithm has. NCCL runs LL128 in a node only over NVLink (src/graph/tuning.cc)."""
    if algorithm.startswith(("NVLS", "CollNet")):
        return ("Simple",)
    return ("LL", "Simple") if cluster.spec.on_pcie else PROTOCOLS


def _algorithms(collective: str, cluster: Cluster | Part, forced: str | None) -> dict[str, tuple[Traffic, Any]]:
    """Return {algorithm: (its traffic, whether it runs on this cluster)}. `forced`: NCCL may not avoid this one."""
    if collective not in (*COLLECTIVES, "send_recv"):
        raise ValueError(f"there is no model of {collective!r}; use one of {', '.join(COLLECTIVES)}, send_recv")
    if collective in ("all_to_all", "send_recv"):
        return {"direct": (direct(cluster) if collective == "all_to_all" else sent(cluster), True)}
    if collective != "all_reduce":
        return {"Ring": (ring(collective, cluster), True)}
    across, adds = cluster.nodes > 1, cluster.spec.switch_adds * (cluster.gpus_per_node > 2)
    alone = (1 - across) * (1 if forced == "NVLS" else _nccl_prefers_nvls(cluster))
    sharp = across * cluster.network_adds
    return {
        "Ring": (ring(collective, cluster), True),
        "Tree": (tree(cluster), across),
        "NVLS": (nvls(cluster), adds * (alone + sharp)),
        "NVLSTree": (nvls_tree(cluster), adds * across),
        "CollNetDirect": (collnet(cluster), sharp),
    }


NVLS_CHANNEL = {"Hopper": 60e9, "Blackwell": 90e9}
"""Bytes per second that NCCL counts for a channel of NVLS at most. Source: NVIDIA/nccl, src/graph/search.cc, v2.27.7"""


def _nccl_prefers_nvls(cluster: Cluster | Part):
    """Return whether NCCL rates NVLS above its ring for large all-reduces in a node: from 5 H100s or 6 B200s on.

    NVLS has one channel for each of the L GPUs, and NCCL counts 5/6 of their rates. For a ring it counts 0.8 of the
    port's rating, and every byte passes 2(L-1)/L times. Source: NVIDIA/nccl, src/graph/tuning.cc, v2.27.7.
    """
    in_node = cluster.gpus_per_node
    of_channels = 5 / 6 * in_node * NVLS_CHANNEL.get(cluster.spec.generation.split()[0], 0.0)
    return of_channels * 2 * (in_node - 1) > 0.8 * cluster.near_rate * in_node


def _line(name: str, protocol: str, traffic: Traffic, cluster: Cluster | Part, constants: Constants, start) -> Line:
    near, far = _latencies(protocol, cluster, constants)
    start = start + {"NVLS": constants.nvls_start, "NVLSTree": constants.nvls_tree_start}.get(name, 0.0)
    waits = start + traffic.near_messages * near + traffic.far_messages * far
    starts = None if traffic.far_peers is None else traffic.far_peers * constants.far_peer
    fill = constants.fill_blackwell if _blackwell(cluster) else constants.fill
    fill = constants.fill_nvls if name.startswith("NVLS") else fill
    return Line(name, protocol, waits, _seconds_a_byte(name, protocol, traffic, cluster, constants), fill, starts)


def _blackwell(cluster: Cluster | Part) -> bool:
    return cluster.spec.generation.startswith("Blackwell")


def _latencies(protocol: str, cluster: Cluster | Part, constants: Constants) -> tuple[Any, Any]:
    """Return the seconds before a message's first byte: within a node, and across."""
    generation = cluster.spec.generation.split()[0].lower()
    near, far = getattr(constants, f"near_ll_{generation}"), constants.far_ll
    if protocol != "LL":
        near, far = near + constants.near_ll128, far + constants.far_ll128
    if protocol == "Simple":
        near, far = near + constants.near_simple, far + constants.far_simple
    if cluster.spec.on_pcie:
        near = NCCL_RING_LATENCY["PCIe"][protocol]
    more = {"RoCE": constants.roce, "EFA": constants.efa, "EFA v1": constants.efa_v1, "TCP": constants.tcp}
    more |= {"TCPX": constants.tcpx, "TCPXO": constants.tcpxo}
    return near, far + more.get(cluster.transport or "", 0.0)


def _seconds_a_byte(name: str, protocol: str, traffic: Traffic, cluster: Cluster | Part, constants: Constants):
    """Return the seconds for each byte of the buffer, at the busier of a GPU's port and a node's cards."""
    near_rate = cluster.near_rate * (constants.nvlink_blackwell if _blackwell(cluster) else constants.nvlink)
    near_bytes = traffic.near_bytes
    if cluster.spec.on_pcie:
        near_rate, near_bytes = cluster.near_rate * PCIE_SHARE, near_bytes + traffic.far_bytes / cluster.gpus_per_node
    if name.startswith("NVLS"):
        share = constants.nvls_blackwell if _blackwell(cluster) else constants.nvls_hopper
        near_rate = cluster.near_rate * share * (8 / maximum(8, cluster.gpus_per_node)) ** constants.nvls_wear
        near_rate = near_rate * (constants.nvls_tree_share if name == "NVLSTree" else 1)
    elif name == "Tree":
        near_rate = near_rate * constants.tree_share
    shares = {"TCP": constants.tcp_share, "TCPX": constants.tcpx_share}
    far_rate = cluster.far_rate * shares.get(cluster.transport or "", constants.network)
    if name in ("Tree", "NVLSTree"):
        far_rate = far_rate * where(cluster.nodes > 2, constants.two_children, 1)
    near_share, far_share = _protocol_shares(protocol, constants)
    return maximum(near_bytes / (near_rate * near_share), traffic.far_bytes / (far_rate * far_share))


def _protocol_shares(protocol: str, constants: Constants) -> tuple[Any, Any]:
    """Return what a protocol leaves of the bandwidth for data, within a node and across: LL at most what LL128 does."""
    if protocol == "Simple":
        return 1.0, 1.0
    of_128 = constants.near_ll128_share, constants.far_ll128_share
    if protocol == "LL128":
        return of_128
    return minimum(constants.near_ll_share, of_128[0]), minimum(constants.far_ll_share, of_128[1])


def lower_bound(collective: str, num_bytes: float, cluster: Cluster, switch_adds: bool = False) -> float:
    """Return seconds that no algorithm can beat at the rated speeds, however small its messages.

    Within a node, every rank has to send what the others lack of it. For an all-reduce whose additions the ranks do,
    that is 2(P-1)/P S; if the switches add and copy (NVLS, SHARP), a rank sends S and receives S, and the bound is S.
    Across nodes, what a node's cards must carry follows likewise, with a node for a rank. Without NVLink, all that a
    rank sends passes its PCIe port, wherever it goes.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"there is no bound for {collective!r}; use one of {', '.join(COLLECTIVES)}")

    def leaves(members: int) -> float:
        others = (members - 1) / members
        if collective == "all_reduce":
            return min(1.0, 2 * others) if switch_adds else 2 * others
        return others

    near = leaves(cluster.world_size) if cluster.nodes == 1 or cluster.spec.on_pcie else 0.0
    far = direct(cluster).far_bytes if collective == "all_to_all" else leaves(cluster.nodes)
    across = far / cluster.far_rate if cluster.nodes > 1 else 0.0
    return num_bytes * max(near / cluster.near_rate, across)
