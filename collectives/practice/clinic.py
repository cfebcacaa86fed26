"""The patients of exercise 18: clusters that are sick in a known way, or healthy though they look sick.

A patient is plain data: what was ordered, NCCL's log, a sweep, and a trace of calls. `ward(fault, seed)` makes a
patient for each cause of a fault and for each look-alike, in which the fault's words occur and prove nothing.
`PUBLISHED` patients have real logs and tables, as others have published them.

Log lines are worded as `INFO` and `WARN` print them in NVIDIA/nccl, v2.27.7-1: src/init.cc, src/bootstrap.cc,
src/transport/{net,net_ib,p2p,shm}.cc, src/plugin/net.cc, src/graph/{paths,topo,tuning}.cc, src/enqueue.cc. How much a
fault costs is as published where somebody measured it: see `COSTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

HEALTHY = "healthy"
DOCUMENTS = ("log", "sweep", "trace")
FAULTS = (
    *("sockets", "missing card", "no peer access", "no GPUDirect"),
    *("forced protocol", "not synchronized", "straggler", "mismatch"),
)

COSTS = {
    "no GPUDirect": 72.1 / 216.5,  # NVIDIA/nccl, issue 2409: 2 x 8 H100, all-reduce of 1 GiB, NCCL_NET_GDR_LEVEL=0
    "LL": 22 / 216.5,  # the same, NCCL_PROTO=LL
    "LL128": 90.9 / 216.5,  # the same, NCCL_PROTO=LL128
    "LL128 in a node": 120 / 128,  # the share of data: NVIDIA/nccl, src/graph/tuning.cc
}
"""What is left of the bandwidth with a fault. The machine of issue 2409 had another fault besides."""

CALLS = 12  # of each group, in a trace that shows something
LATE = 5e-3  # seconds by which a straggler is late at the least
STEP_MS = (120, 400)  # a training step of a made trace


class Order(NamedTuple):
    """What was ordered and accepted.

    `nodes`; `gpus` of a node; `cards`: RDMA cards of a node for its GPUs, 0 if nodes are connected by plain Ethernet;
    `gbits`: Gb/s of a card; `nvlink`: whether the GPUs of a node are connected by NVLink; `wire`: bus bandwidth of
    large calls in the acceptance test, bytes per second; `alpha`: seconds of a call of 8 bytes in that test.
    """

    nodes: int
    gpus: int
    cards: int
    gbits: int
    nvlink: bool
    wire: float
    alpha: float


class Event(NamedTuple):
    """A rank in a collective. `seq` counts the calls of a `group`. Times are seconds on the clock of the rank's host;
    `left` is None if the rank was still inside when the trace was written.
    """

    rank: int
    group: str
    seq: int
    collective: str
    num_bytes: int
    entered: float
    left: float | None


class Patient(NamedTuple):
    """A cluster's documents. Each is a list, and empty if it is missing; `log` and `sweep` are lines of text."""

    order: Order
    log: list[str]
    sweep: list[str]
    trace: list[Event]


class Said(NamedTuple):
    """A message of a rank. `where`: the line of NCCL's source, if it is a warning."""

    rank: int
    message: str
    where: str = ""


class Row(NamedTuple):
    """A row of a sweep: bytes, seconds, and bus bandwidth in bytes per second, of the out-of-place columns."""

    num_bytes: int
    seconds: float
    busbw: float


class Finding(NamedTuple):
    """A diagnosis: the fault, its proof as (document, index), and the remedy; the last two are None if healthy."""

    fault: str
    evidence: tuple[str, int] | None
    remedy: str | None


class Case(NamedTuple):
    """A patient and the truth about it. `proofs`: every (document, index) that proves the fault."""

    name: str
    patient: Patient
    fault: str
    proofs: frozenset[tuple[str, int]]
    remedy: str | None
    why: str


# A cluster


class Cluster:
    """A cluster in the making. It is healthy until a function of `CAUSES` changes it.

    `settings`: variables that NCCL reports. `cards`: {node: {device: Gb/s}}, which NCCL uses. `near`, `far`: transports
    within a node and between nodes, by node; `module`: whether its kernel has the module for GPUDirect RDMA. `pods`:
    whether each rank is alone in a container with a host name of its own. `forced`: the only protocol. `warning`: with
    it the log ends. `slower`, `later`: what the sweep's bandwidth and small calls are multiplied by; `seconds`: {bytes:
    seconds} in its place; `notes`: comments above them. `calls`: how many the trace has; `late(call, rank)`: seconds by
    which a rank comes late; `ending(event)`: what becomes of the last call's events.
    """

    def __init__(
        self,
        random: Random,
        nodes: tuple[int, ...] = (2, 3, 4),
        nvlink: bool = True,
        ethernet: bool = False,
        calls: int = 3,
    ):
        self.random = random
        gpus = random.choice((2, 4, 8))
        num_nodes = random.choice(nodes)
        cards = 0 if ethernet else gpus
        gbits = random.choice((200, 400))
        rate = (25e9 if ethernet else cards * gbits * 1e9) / 8
        near = random.choice((235e9, 360e9)) if nvlink else random.choice((12e9, 22e9))
        wire = near if num_nodes == 1 else min(near, 0.97 * rate)
        alpha = random.uniform(12e-6, 20e-6) if num_nodes == 1 else random.uniform(25e-6, 60e-6) * (1 + 2 * ethernet)
        self.order = Order(num_nodes, gpus, cards, gbits, nvlink, round(wire, -8), round(alpha, 7))
        self.hosts = _hosts(random, num_nodes)
        self.settings: dict[str, str] = {"NCCL_SOCKET_IFNAME": "eth0"}
        if random.random() < 0.5:
            self.settings["NCCL_PROTO"] = "^LL128"
        # Cards 4 and 5 of a machine are often for something else, so numbers have gaps.
        devices = [f"mlx5_{n + 2 * (n > 3)}" for n in range(cards)]
        self.cards = {node: dict.fromkeys(devices, gbits) for node in range(num_nodes)}
        self.network = random.choice(("IB", "IB", PLUGIN)) if cards else "Socket"
        local = random.choice(("P2P/CUMEM", "P2P/CUMEM/read", "P2P/IPC")) if nvlink else "SHM/direct/direct"
        self.near = dict.fromkeys(range(num_nodes), local)
        direct = random.choice(("/GDRDMA", "/GDRDMA", "/GDRDMA/Shared"))
        self.far = dict.fromkeys(range(num_nodes), direct)
        self.module = dict.fromkeys(range(num_nodes), True)
        self.storage: str | None = None
        self.pods = False
        self.forced: str | None = None
        self.warning: Said | None = None
        self.slower, self.later = 1.0, 1.0
        self.seconds: dict[int, float] = {}
        self.notes: list[str] = []
        self.calls = calls
        self.late: Callable[[int, int], float] = lambda call, rank: 0.0
        self.ending: Callable[[Event], Event | None] | None = None
        self.prefix = random.choice(("{host}", "{host}", "{rank}: {host}", "[1,{rank}]<stdout>:{host}"))
        self.pids = {rank: random.randrange(2_000, 3_000_000) for rank in self.ranks}
        self.channels = random.choice((2, 4))

    # Its log

    def log(self) -> list[tuple[str, bool]]:
        """Return the lines, each with whether it is NCCL's own about this cluster, and so may prove something."""
        rest = [self._warned()] if self.warning else [self._connected(), self._ready(), self._tuned()]
        phases = [self._started(), self._ranked(), *rest]
        lines = [(self._line(*said), True) for phase in phases for said in _interleaved(self.random, phase)]
        for words in self._innocent():
            lines.insert(self.random.randrange(1, len(lines)), (words, False))
        return lines

    @property
    def ranks(self) -> range:
        return range(self.order.nodes * self.order.gpus)

    def node(self, rank: int) -> int:
        return rank // self.order.gpus

    def host(self, rank: int) -> str:
        """Return the name that the log gives the rank's host: in a pod, the pod's."""
        return f"{self.hosts[0]}-worker-{rank}" if self.pods else self.hosts[self.node(rank)]

    def _line(self, rank: int, message: str, where: str = "") -> str:
        start = self.prefix.format(rank=rank, host=self.host(rank))
        thread = self.pids[rank] + 40
        kind = f"{where} NCCL WARN" if where else "NCCL INFO"
        return f"{start}:{self.pids[rank]}:{thread} [{self._device(rank)}] {kind} {message}"

    def _device(self, rank: int) -> int:
        return 0 if self.pods else rank % self.order.gpus

    def _firsts(self) -> Iterator[int]:
        """Yield the rank that writes for its node: the others' same lines were cut from the log."""
        yield from (self.ranks if self.pods else self.ranks[:: self.order.gpus])

    def _started(self) -> list[Said]:
        lines = [Said(0, f"NCCL version 2.27.{self.random.choice((3, 5, 6, 7))}+cuda12.9")]
        for rank in self._firsts():
            node = self.node(rank)
            address = f"eth0:10.0.{node}.{rank + 10}<0>"
            says = [f"Bootstrap: Using {address}"]
            for name, value in self.settings.items():
                by = "" if name == "NCCL_IB_HCA" else "by environment "
                says.append(f"{name} set {by}to {value}")
            used = list(self.cards[node].items()) + ([(self.storage, 100)] if self.storage else [])
            if self.network == "Socket":
                if self.settings.get("NCCL_IB_DISABLE") != "1.":
                    says.append("NET/IB : No device found.")
                says.append(f"NET/Socket : Using [0]{address}")
            else:
                for number, (device, gbits) in enumerate(used):
                    says.append(_opened(self.random, number, device, gbits))
                listed = " ".join(f"[{number}]{device}:1/{_layer(device)}" for number, (device, _) in enumerate(used))
                says.append(f"NET/IB : Using {listed} [RO]; OOB {address}")
                for number, (device, _) in enumerate(used):
                    on = "Enabled" if self.module[node] and device != self.storage else "Disabled"
                    says.append(f"NET/{self.network} : GPU Direct RDMA {on} for HCA {number} '{device}'")
            says += [f"Initialized NET plugin {self.network}", f"Using network {self.network}"]
            lines += [Said(rank, message) for message in says]
        return lines

    def _ranked(self) -> list[Said]:
        identity, world = f"0x{self.random.getrandbits(60):x}", len(self.ranks)
        nodes, gpus = (world, 1) if self.pods else (self.order.nodes, self.order.gpus)
        lines = []
        for rank in self.ranks:
            local, comm = rank % gpus, f"0x{self.random.getrandbits(44):x}"
            place = rank % self.order.gpus
            gpu = f"cudaDev {self._device(rank)} nvmlDev {place} busId {17 + 26 * place:x}000"
            begin = f"ncclCommInitRankConfig comm {comm} rank {rank} nranks {world} {gpu} commId {identity}"
            end = f"comm {comm} rank {rank} nRanks {world} nNodes {nodes} localRanks {gpus} localRank {local} MNNVL 0"
            lines += [Said(rank, f"{begin} - Init START"), Said(rank, end)]
        return lines + [said for rank in self._firsts() for said in self._distances(rank)]

    def _distances(self, rank: int) -> Iterator[Said]:
        """Yield what NCCL says of cards that could reach the memory of the rank's GPU, which is 4 away from all."""
        if self.network == "Socket" or not self.module[self.node(rank)]:
            return
        level = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS").index(
            self.settings.get("NCCL_NET_GDR_LEVEL", "PXB")
        )
        for number in range(len(self.cards[self.node(rank)])):
            if level < 4:
                yield Said(rank, f"GPU Direct RDMA Disabled for GPU {rank} / HCA {number:x} (distance 4 > {level})")
            else:
                where = f"GPU {rank} / HCA {number:x} (distance 4 <= {level})"
                yield Said(rank, f"GPU Direct RDMA Enabled for {where}, read 0 mode Default")

    def _warned(self) -> list[Said]:
        return [self.warning] if self.warning else []

    def _connected(self) -> list[Said]:
        lines = []
        for channel in range(self.channels):
            ring = self._ring(channel)
            listed = " ".join(f"{rank:>3}" for rank in ring)
            lines.append(Said(0, f"Channel {channel:02}/{self.channels:02} : {listed}"))
            for src, dst in zip(ring, ring[1:] + ring[:1], strict=True):
                lines += self._connection(channel, src, dst)
        return lines

    def _ring(self, channel: int) -> list[int]:
        """Return the ranks in a channel's order: node after node, and in each beginning with another GPU."""
        gpus = self.order.gpus
        return [node * gpus + (channel + local) % gpus for node in range(self.order.nodes) for local in range(gpus)]

    def _connection(self, channel: int, src: int, dst: int) -> list[Said]:
        gpus = self.order.gpus
        ends = f"{src}[{src % gpus}] -> {dst}[{dst % gpus}]"
        if self.node(src) == self.node(dst) and not self.pods:
            via = self.near[self.node(src)]
            start = f"Channel {channel:02}" + ("" if via.startswith("SHM") else "/0")  # shm.cc has no connection number
            return [Said(src, f"{start} : {ends} via {via}")]
        sides = []
        for rank, side in ((src, "send"), (dst, "receive")):
            cards = self.cards[self.node(rank)]
            card = rank % gpus % max(1, len(cards))
            direct = self.far[self.node(rank)] if self.network != "Socket" else ""
            via = f"NET/{self.network}/{card if self.network == 'IB' else 0}{direct}"
            sides.append(Said(rank, f"Channel {channel:02}/0 : {ends} [{side}] via {via}"))
        return sides

    def _ready(self) -> list[Said]:
        counts = f"{self.channels} coll channels, {self.channels} collnet channels, 0 nvls channels"
        return [
            Said(rank, f"{counts}, {2 * self.channels} p2p channels, 2 p2p channels per peer")
            for rank in self._firsts()
        ]

    def _tuned(self) -> list[Said]:
        lines = []
        for num_bytes, algorithm, protocol in TUNED:
            may = "LL128" not in self.settings.get("NCCL_PROTO", "LL128").split(",") and protocol == "LL128"
            chosen = self.forced or ("Simple" if may else protocol)
            high = 0 if num_bytes < 1024 else self.channels - 1
            pick = f"{num_bytes} Bytes -> Algo {algorithm} proto {chosen.upper()} channel{{Lo..Hi}}={{0..{high}}}"
            lines.append(Said(0, f"AllReduce: {pick}"))
        return lines

    def _innocent(self) -> list[str]:
        """Return lines that prove nothing: other programs' that name settings, and NCCL's that every job has."""
        plain = [
            *self.random.sample(SHELL, 2),
            self._line(0, "TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin."),
            f"step {self.random.randrange(10, 90)} loss {self.random.uniform(1, 9):.3f}",
        ]
        if self.network != "Socket" and self.random.random() < 0.5:
            device = self.random.choice([*self.cards[0]])
            plain.append(
                self._line(
                    0, f"NET/IB : {device}:1 Got async error event: client reregistration", "transport/net_ib.cc:199"
                )
            )
        return plain

    # Its sweep and its trace

    def sweep(self) -> tuple[list[str], dict[int, Row]]:
        """Return a table as nccl-tests prints it, and {line: row} of its out-of-place columns."""
        if self.warning:
            return [], {}
        world, random = len(self.ranks), self.random
        factor = 2 * (world - 1) / world
        beta = factor / (self.order.wire * self.slower * random.uniform(0.97, 1.03))
        start = random.choice((8, 128, 1024))
        sizes = [size for size in (start * 4**power for power in range(16)) if size <= 2**33]
        seconds = {size: self.order.alpha * self.later + beta * size for size in sizes}
        lines = ["# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 4(factor) warmup iters: 5 iters: 20"]
        lines += self.notes
        for rank in self.ranks:
            lines.append(f"#  Rank {rank:>2} Pid {self.pids[rank]} on {self.host(rank)} device {self._device(rank)}")
        rows = (self.seconds or seconds).items()
        return printed(
            [*lines, _HEAD, _UNITS], [(size, took * random.uniform(0.97, 1.03)) for size, took in rows], factor, random
        )

    def trace(self) -> list[Event]:
        """Return `calls` calls of all ranks, and of each node's own group, in no order of ranks.

        A host's clock is off by up to 50 ms. All ranks leave a call within 20 microseconds of each other.
        """
        if self.warning:
            return []
        random = self.random
        clock = [random.uniform(-0.05, 0.05) for _ in self.hosts]
        step, inside, num_bytes = (
            random.uniform(*STEP_MS) / 1e3,
            random.uniform(4e-3, 15e-3),
            random.choice((2**26, 2**28)),
        )
        first, own = random.randrange(100, 900), random.randrange(1000, 5000)
        events, now = [], random.uniform(10, 500)
        for call in range(self.calls):
            arrived = {rank: now + random.uniform(0, 1e-3) + self.late(call, rank) for rank in self.ranks}
            done = max(arrived.values()) + inside
            for rank in self.ranks:
                entered = arrived[rank] + clock[self.node(rank)]
                left = done + random.uniform(0, 2e-5) + clock[self.node(rank)]
                kind = "world", first + call, "all_reduce", num_bytes
                events.append(Event(rank, *kind, round(entered, 6), round(left, 6)))
            for rank in self.ranks:
                start = done + step / 3 + clock[self.node(rank)] + random.uniform(0, 1e-4)
                kind = f"node {self.node(rank)}", own + 3 * self.node(rank) + call, "all_gather", num_bytes // 16
                events.append(Event(rank, *kind, round(start, 6), round(start + inside / 4, 6)))
            now = done + step
        if self.ending:  # no rank goes on to its node's next call
            *kept, last, _ = _chunks(events, len(self.ranks))
            events = [event for chunk in kept for event in chunk]
            events += [event for each in last if (event := self.ending(each))]
        order = random.sample([*self.ranks], len(self.ranks))
        return sorted(events, key=lambda event: (order.index(event.rank), event.entered))

    # The patient

    def case(
        self,
        why: str,
        fault: str = HEALTHY,
        remedy: str | None = None,
        log: tuple[str, ...] = (),
        sweep: Callable[[Row], bool] | None = None,
        trace: Callable[[list[Event]], Iterable[int]] = lambda events: (),
    ) -> Case:
        """Return the patient with its truth. `log`: patterns of NCCL's lines that prove the fault; `sweep(row)`:
        whether a row does; `trace(events)`: the indices of the events that do.
        """
        lines, (table, rows), events = self.log(), self.sweep(), self.trace()
        proofs = {
            ("log", number)
            for number, (line, genuine) in enumerate(lines)
            if genuine and any(re.search(pattern, line) for pattern in log)
        }
        proofs |= {("sweep", number) for number, row in rows.items() if sweep and sweep(row)}
        proofs |= {("trace", number) for number in trace(events)}
        assert bool(proofs) == (fault != HEALTHY)
        patient = Patient(self.order, [line for line, _ in lines], table, events)
        return Case("", patient, fault, frozenset(proofs), remedy, why)


TUNED = ((8, "RING", "LL"), (65536, "TREE", "LL"), (4194304, "RING", "LL128"), (1073741824, "RING", "Simple"))
SHELL = (
    "+ echo 'the old cluster needed NCCL_IB_DISABLE=1'",
    "launch.sh: # export NCCL_P2P_DISABLE=1",
    "launch.sh: # NCCL_PROTO=LL was for the latency test",
    "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98).",
    "+ unset NCCL_NET_GDR_LEVEL NCCL_IB_HCA",
    "loader: reading shards via NET/Socket gateway, 8 threads",
    "note to self: ask why rank 3 was late last week",
)
_HALF = "    time   algbw   busbw #wrong"
_HEAD = f"#       size         count      type   redop    root {_HALF} {_HALF}"
_UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"


def printed(
    lines: list[str], rows: list[tuple[int, float]], factor: float, random: Random
) -> tuple[list[str], dict[int, Row]]:
    """Return `lines` with a table of `rows` (bytes, seconds) below, and {line: row}. `factor`: busbw over algbw."""
    lines, found = [*lines], {}
    for size, seconds in rows:
        cells = []
        for taken in (seconds, seconds * random.uniform(0.94, 0.99)):
            rate = size / taken / 1e9
            cells.append([f"{taken * 1e6:.2f}", f"{rate:.2f}", f"{rate * factor:.2f}"])
        time, _, busbw = map(float, cells[0])
        found[len(lines)] = Row(size, time * 1e-6, busbw * 1e9)
        columns = "       ".join(" ".join(f"{cell:>9}" for cell in three) + "       0" for three in cells)
        lines.append(f"{size:>12} {size // 4:>12}     float     sum      -1 {columns}")
    return [*lines, "# Out of bounds values : 0 OK", "#"], found


def _chunks(events: list[Event], size: int) -> list[list[Event]]:
    return [events[start : start + size] for start in range(0, len(events), size)]


def _interleaved(random: Random, phase: list[Said]) -> Iterator[Said]:
    """Yield what ranks say at the same time: mixed, and each rank's in its order."""
    queues = {rank: iter([said for said in phase if said.rank == rank]) for rank, *_ in phase}
    for rank in random.sample([said.rank for said in phase], len(phase)):
        yield next(queues[rank])


def _hosts(random: Random, count: int) -> list[str]:
    # NCCL cuts a name at its first dot.
    style = random.choice(("gpu-node-{:02}", "h100-{:03}", "ip-10-1-{}-7", "dgx{}", "trainer-{}"))
    return [style.format(number) for number in random.sample(range(1, 99), count)]


def _layer(device: str) -> str:
    return "RoCE" if "bond" in device else "IB"


def _opened(random: Random, number: int, device: str, gbits: int) -> str:
    name = f"{device}:uverbs{number}:1/{_layer(device)}"
    path = f"/sys/devices/pci0000:{10 + number:02}/0000:{17 + 26 * number:02x}:00.0"
    handle = f"0x{random.getrandbits(47):x}"
    return f"NET/IB: [{number}] {name} provider=Mlx5 speed={gbits * 1000} context={handle} pciPath={path} ar=1"


# The faults, each with its causes


def _sockets_by_setting(random: Random) -> Case:
    cluster = Cluster(random)
    cluster.network = "Socket"
    cluster.settings["NCCL_IB_DISABLE"] = "1."
    _by_socket(cluster)
    proof = ("NCCL_IB_DISABLE set", *SOCKET_LINES)
    return cluster.case("NCCL_IB_DISABLE is 1, so NCCL takes sockets", "sockets", "unset NCCL_IB_DISABLE", proof)


def _sockets_by_container(random: Random, allowed: bool) -> Case:
    cluster = Cluster(random)
    cluster.network = "Socket"
    if allowed:
        cluster.settings["NCCL_IB_DISABLE"] = "0."
    _by_socket(cluster)
    proof = ("NET/IB : No device found", *SOCKET_LINES)
    return cluster.case("NCCL finds no RDMA card, so it takes sockets", "sockets", "expose the cards", proof)


def _sockets_by_pods(random: Random) -> Case:
    cluster = Cluster(random, nodes=(1,))
    cluster.network, cluster.pods = "Socket", True
    _by_socket(cluster)
    proof = ("nNodes", *SOCKET_LINES)
    why = "each pod has a host name of its own, so NCCL counts more nodes than there are and sends by sockets"
    return cluster.case(why, "sockets", "set NCCL_HOSTID", proof)


PLUGIN = "IBext_v10"  # NVIDIA's plugin for the same cards, which HPC-X brings
SOCKET_LINES = (r"via NET/Socket", r"NET/Socket : Using \[", r"Using network Socket", r"NET plugin Socket")


def _by_socket(cluster: Cluster) -> None:
    cluster.slower = cluster.random.uniform(1.3e9, 6e9) / cluster.order.wire
    cluster.later = cluster.random.uniform(2, 5)


def _ethernet(random: Random) -> Case:
    return Cluster(random, ethernet=True).case("it was ordered without RDMA cards, so sockets are what it can have")


def _one_node_without_cards(random: Random) -> Case:
    cluster = Cluster(random, nodes=(1,), ethernet=True)
    return cluster.case("it is one node: NCCL names a network, and no rank sends by it")


def _cards_not_disabled(random: Random) -> Case:
    cluster = Cluster(random)
    cluster.settings["NCCL_IB_DISABLE"] = "0."
    return cluster.case("NCCL_IB_DISABLE is 0, and every node sends by NET/IB")


def _cards_by_setting(random: Random) -> Case:
    cluster = Cluster(random)
    kept = [*cluster.cards[0]][: random.randrange(1, cluster.order.cards)]
    cluster.cards = {node: dict.fromkeys(kept, cluster.order.gbits) for node in cluster.cards}
    cluster.settings["NCCL_IB_HCA"] = random.choice(("", "=")) + ",".join(kept)
    cluster.slower = len(kept) / cluster.order.cards
    why = f"NCCL_IB_HCA leaves {len(kept)} of {cluster.order.cards} cards"
    return cluster.case(why, "missing card", "unset NCCL_IB_HCA", ("NCCL_IB_HCA set", "NET/IB : Using"))


def _card_lost(random: Random, named: bool) -> Case:
    cluster = Cluster(random)
    node = random.choice([*cluster.cards])
    lost = random.choice([*cluster.cards[node]])
    if named:
        cluster.settings["NCCL_IB_HCA"] = ",".join(cluster.cards[node])
    del cluster.cards[node][lost]
    cluster.slower = 1 - 1 / cluster.order.cards
    host = cluster.hosts[node]
    proof = (rf"{re.escape(host)}:.* NET/IB : Using",)
    return cluster.case(f"{host} runs without {lost}", "missing card", f"drain {host}", proof)


def _card_lost_beside_storage(random: Random) -> Case:
    cluster = Cluster(random)
    node = random.choice([*cluster.cards])
    lost = random.choice([*cluster.cards[node]])
    del cluster.cards[node][lost]
    cluster.storage = "mlx5_bond_0"
    cluster.slower = 1 - 1 / cluster.order.cards
    host = cluster.hosts[node]
    why = f"{host} runs without {lost}; mlx5_bond_0 is the storage's"
    return cluster.case(why, "missing card", f"drain {host}", (rf"{re.escape(host)}:.* NET/IB : Using",))


def _card_slow(random: Random) -> Case:
    cluster = Cluster(random)
    node = random.choice([*cluster.cards])
    slow = random.choice([*cluster.cards[node]])
    cluster.cards[node][slow] //= 2
    cluster.slower = 0.5  # a ring waits for its slowest link
    host = cluster.hosts[node]
    why = f"{slow} of {host} runs at half of what was ordered"
    return cluster.case(why, "missing card", f"drain {host}", (rf"{re.escape(host)}:.* {slow}:.* speed=",))


def _cards_named(random: Random) -> Case:
    cluster = Cluster(random)
    cluster.settings["NCCL_IB_HCA"] = "=" + ",".join(cluster.cards[0])
    return cluster.case(f"NCCL_IB_HCA names all {cluster.order.cards} cards; their numbers have gaps")


def _storage_left_out(random: Random) -> Case:
    cluster = Cluster(random)
    cluster.settings["NCCL_IB_HCA"] = "^mlx5_bond_0"
    return cluster.case("NCCL_IB_HCA leaves out the storage's card alone; all that were ordered are used")


def _storage_beside(random: Random) -> Case:
    cluster = Cluster(random)
    cluster.storage = "mlx5_bond_0"
    return cluster.case("mlx5_bond_0 is the storage's; the ordered cards are all there, at full speed")


def _peers_by_setting(random: Random, name: str, value: str) -> Case:
    cluster = Cluster(random, nodes=(1, 2, 3))
    cluster.settings[name] = value
    cluster.near = dict.fromkeys(cluster.near, "SHM/direct/direct")
    cluster.slower = random.uniform(4e9, 12e9) / cluster.order.wire
    why = f"{name} is {value}, so GPUs with NVLink talk through the host's memory"
    return cluster.case(why, "no peer access", f"unset {name}", (f"{name} set", "via SHM"))


def _peers_broken(random: Random) -> Case:
    cluster = Cluster(random, nodes=(2, 3))
    node = random.choice([*cluster.near])
    cluster.settings |= {"NCCL_IGNORE_DISABLED_P2P": "1.", "NCCL_P2P_LEVEL": "NVL", "NCCL_P2P_DISABLE": "0"}
    cluster.near[node] = "SHM/direct/direct"
    cluster.slower = random.uniform(4e9, 12e9) / cluster.order.wire
    host = cluster.hosts[node]
    why = f"on {host} alone GPUs talk through the host's memory, and the check that stops such a job is off"
    return cluster.case(why, "no peer access", f"drain {host}", (rf"{re.escape(host)}:.* via SHM",))


def _peers_refused(random: Random) -> Case:
    cluster = Cluster(random)
    rank = random.choice(cluster.ranks)
    other = (rank + 1) % cluster.order.gpus
    host = cluster.host(rank)
    pair = f"{rank % cluster.order.gpus} and {other}"
    message = (
        f"P2P is disabled between NVLINK connected GPUs {pair}. This should not be the case given their connectivity, "
        "and is probably due to a hardware issue. If you still want to proceed, you can set NCCL_IGNORE_DISABLED_P2P=1."
    )
    cluster.warning = Said(rank, message, "graph/paths.cc:350")
    return cluster.case(f"NVLink is broken on {host}", "no peer access", f"drain {host}", ("P2P is disabled",))


def _no_nvlink(random: Random) -> Case:
    cluster = Cluster(random, nodes=(1, 2), nvlink=False)
    cluster.settings["NCCL_P2P_LEVEL"] = "NVL"
    return cluster.case("it was ordered without NVLink, so the host's memory is the way within a node")


def _peers_allowed(random: Random, name: str, value: str) -> Case:
    cluster = Cluster(random, nodes=(1, 2))
    cluster.settings[name] = value
    return cluster.case(f"{name}={value} allows NVLink, and every pair of a node uses P2P")


def _direct_by_setting(random: Random) -> Case:
    cluster = Cluster(random)
    cluster.settings["NCCL_NET_GDR_LEVEL"] = "LOC"
    proof = _indirect(cluster, [*cluster.far])
    why = "NCCL_NET_GDR_LEVEL is LOC: no card is that near, so all data takes a detour through the host's memory"
    return cluster.case(why, "no GPUDirect", "unset NCCL_NET_GDR_LEVEL", ("NCCL_NET_GDR_LEVEL set", *proof))


def _direct_without_module(random: Random, everywhere: bool, network: str) -> Case:
    cluster = Cluster(random)
    cluster.network = network
    nodes = [*cluster.far] if everywhere else [random.choice([*cluster.far])]
    if not everywhere:
        cluster.settings["NCCL_NET_GDR_LEVEL"] = "PHB"
    cluster.module |= dict.fromkeys(nodes, False)
    proof = _indirect(cluster, nodes)
    return cluster.case("no card can reach a GPU's memory there", "no GPUDirect", "load nvidia_peermem", proof)


def _indirect(cluster: Cluster, nodes: Iterable[int]) -> tuple[str, ...]:
    """Turn GPUDirect RDMA off on these nodes; return the patterns that prove it."""
    cluster.far |= dict.fromkeys(nodes, "")
    cluster.slower = COSTS["no GPUDirect"] * cluster.random.uniform(0.9, 1.1)
    return (r"Disabled for HCA \d+ 'mlx5_\d", "GPU Direct RDMA Disabled for GPU", r"via NET/IB\w*/\d+$")


def _storage_indirect(random: Random) -> Case:
    cluster = Cluster(random)
    cluster.storage = "mlx5_bond_0"
    return cluster.case("GPUDirect RDMA is off for the storage's card alone; all channels have it")


def _direct_level(random: Random) -> Case:
    cluster = Cluster(random)
    cluster.settings["NCCL_NET_GDR_LEVEL"] = random.choice(("PHB", "SYS", "PXB"))
    return cluster.case("NCCL_NET_GDR_LEVEL allows more than the default, and all channels have GDRDMA")


def _forced(random: Random, protocol: str, nodes: tuple[int, ...], fault: str, why: str, **costs: float) -> Case:
    cluster = Cluster(random, nodes=nodes, ethernet=costs.pop("ethernet", 0) > 0)
    cluster.settings["NCCL_PROTO"] = cluster.forced = protocol
    for name, cost in costs.items():
        setattr(cluster, name, cost * random.uniform(0.95, 1.05))
    if fault == HEALTHY:
        return cluster.case(why)
    order, by_wire = cluster.order, 2 * (1 - 1 / len(cluster.ranks)) / cluster.order.wire

    def suffers(num_bytes: int, seconds: float) -> bool:
        return seconds > 1.4 * (order.alpha + by_wire * num_bytes)

    sizes = {8, 65536} if protocol == "Simple" else {4194304, 1073741824}
    for size, _, _ in TUNED:
        if suffers(size, order.alpha * cluster.later + by_wire * size / cluster.slower):
            sizes.add(size)
    listed = "|".join(map(str, sorted(sizes)))
    proof = "NCCL_PROTO set", rf" ({listed}) Bytes -> Algo \w+ proto {protocol.upper()} "
    return cluster.case(why, fault, "unset NCCL_PROTO", proof, lambda row: suffers(row.num_bytes, row.seconds))


def _forced_ll(random: Random) -> Case:
    why = "NCCL may use LL alone, so large calls get a fraction of the bandwidth that was ordered"
    return _forced(random, "LL", (2, 3, 4), "forced protocol", why, slower=COSTS["LL"])


def _forced_ll128(random: Random) -> Case:
    why = "NCCL may use LL128 alone, and between nodes it gets less than half of what was ordered"
    return _forced(random, "LL128", (2, 3, 4), "forced protocol", why, slower=COSTS["LL128"])


def _forced_simple(random: Random) -> Case:
    why = "NCCL may use Simple alone, so small calls take more than twice as long as in the acceptance test"
    return _forced(random, "Simple", (1, 2, 3), "forced protocol", why, later=2.4)


def _harmless_ll128(random: Random) -> Case:
    why = "LL128 alone costs a few per cent where the path keeps its 128 bytes together: the sweep is as ordered"
    return _forced(random, "LL128", (1, 2, 3, 4), HEALTHY, why, slower=COSTS["LL128 in a node"])


def _harmless_simple(random: Random) -> Case:
    why = "the acceptance test ran with Simple alone, too, or the network is slow: the sweep is as ordered"
    return _forced(random, "Simple", (1, 2, 3), HEALTHY, why, later=1.1, ethernet=random.choice((0, 1)))


def _protocols_left(random: Random, value: str) -> Case:
    cluster = Cluster(random)
    cluster.settings["NCCL_PROTO"] = value
    return cluster.case("NCCL_PROTO leaves NCCL a choice, LL for small calls and Simple for large ones")


def _unsynchronized(random: Random, waits_at_end: bool) -> Case:
    cluster = Cluster(random, nodes=(1, 2, 4))
    queued = random.uniform(12e-6, 40e-6)
    cluster.seconds = dict.fromkeys((4**power for power in range(5, 17)), queued)
    if waits_at_end:  # an .item() after the last call waits for all that is queued
        size = max(cluster.seconds)
        cluster.seconds[size] = cluster.order.alpha + 2 * size / cluster.order.wire
    cluster.notes = [OWN_BENCH]
    wire = cluster.order.wire
    why = "its rows are faster than any wire: the clock stops when the call is queued"
    return cluster.case(why, "not synchronized", "synchronize", sweep=lambda row: row.busbw > 2 * wire)


OWN_BENCH = "# bench.py, prints like nccl-tests: time.perf_counter() around dist.all_reduce()"


def _switch_adds(random: Random) -> Case:
    cluster = Cluster(random, nodes=(1,))
    cluster.slower = random.uniform(1.15, 1.3)
    return cluster.case("NVSwitch adds on the way (NVLS), so busbw is somewhat above the acceptance test's ring")


def _own_bench(random: Random) -> Case:
    cluster = Cluster(random)
    cluster.notes = [OWN_BENCH]
    return cluster.case("no row of it is faster than the wire")


def _straggler(random: Random) -> Case:
    cluster = Cluster(random, nodes=(2, 3), calls=CALLS)
    slow, delay = random.choice(cluster.ranks), random.uniform(2 * LATE, 12 * LATE)
    skipped = {0, *random.sample(range(1, CALLS), 2)}
    first = 0.3 * (slow != 0)  # rank 0 is late in the first call, as it often is
    cluster.late = lambda call, rank: delay * (rank == slow and call not in skipped) + first * (rank == call == 0)

    def proves(events: list[Event]) -> list[int]:
        calls = [number for number, event in enumerate(events) if (event.rank, event.group) == (slow, "world")]
        return [number for call, number in enumerate(calls) if call not in skipped]

    host = cluster.host(slow)
    why = f"rank {slow}, on {host}, comes late to {CALLS - len(skipped)} of {CALLS} calls"
    return cluster.case(why, "straggler", f"drain {host}", trace=proves)


def _late_once(random: Random) -> Case:
    cluster = Cluster(random, nodes=(2, 3), calls=CALLS)
    saves, delay = random.randrange(2, 10), random.uniform(0.2, 0.9)
    cluster.late = lambda call, rank: delay * (rank == 0 and call == saves)
    return cluster.case(f"rank 0 is late once in {CALLS} calls: it may have written a checkpoint")


def _late_in_turn(random: Random) -> Case:
    cluster = Cluster(random, nodes=(2, 3), calls=CALLS)
    turns = random.sample([*cluster.ranks] * 3, CALLS)
    delay = random.uniform(2 * LATE, 6 * LATE)
    cluster.late = lambda call, rank: delay * (rank == turns[call])
    return cluster.case("another rank is late in each call: the work is uneven, and no host is to blame")


def _clocks_differ(random: Random) -> Case:
    return Cluster(random, nodes=(3, 4), calls=CALLS).case(
        "the hosts' clocks differ, and that is all: no rank keeps others waiting"
    )


def _mismatch(random: Random, why: str, change: Callable[[Event], Event | None]) -> Case:
    cluster = Cluster(random, nodes=(2, 3), calls=CALLS)
    odd = random.choice(cluster.ranks)
    cluster.ending = lambda event: change(event._replace(left=None)) if event.rank == odd else event._replace(left=None)

    def proves(events: list[Event]) -> list[int]:
        return [number for number, event in enumerate(events) if (event.rank, event.group) == (odd, "world")][-1:]

    return cluster.case(f"rank {odd} {why}", "mismatch", f"fix rank {odd}", trace=proves)


def _other_collective(random: Random) -> Case:
    other = random.choice(("all_gather", "reduce_scatter", "broadcast"))
    return _mismatch(
        random, f"calls {other} where the others call all_reduce", lambda event: event._replace(collective=other)
    )


def _other_size(random: Random) -> Case:
    return _mismatch(
        random, "calls with another size than the others", lambda event: event._replace(num_bytes=event.num_bytes // 2)
    )


def _stayed_away(random: Random) -> Case:
    return _mismatch(random, "never comes to the call in which all others wait", lambda event: None)


def _in_flight(random: Random) -> Case:
    cluster = Cluster(random, nodes=(2, 3), calls=CALLS)
    cluster.ending = lambda event: event._replace(left=None)
    return cluster.case("all ranks are in the same call: the trace was written in the middle of it")


def _some_have_left(random: Random) -> Case:
    cluster = Cluster(random, nodes=(2, 3), calls=CALLS)
    inside = random.sample(cluster.ranks, 2)
    cluster.ending = lambda event: event._replace(left=None) if event.rank in inside else event
    return cluster.case("all ranks are in the same call, and most have left it already")


CAUSES: dict[str, tuple[Callable[[Random], Case], ...]] = {
    "sockets": (
        _sockets_by_setting,
        partial(_sockets_by_container, allowed=False),
        partial(_sockets_by_container, allowed=True),
        _sockets_by_pods,
        *(_ethernet, _one_node_without_cards, _cards_not_disabled),
    ),
    "missing card": (
        _cards_by_setting,
        partial(_card_lost, named=False),
        partial(_card_lost, named=True),
        *(_card_lost_beside_storage, _card_slow),
        *(_cards_named, _storage_left_out, _storage_beside),
    ),
    "no peer access": (
        partial(_peers_by_setting, name="NCCL_P2P_DISABLE", value="1"),
        partial(_peers_by_setting, name="NCCL_P2P_LEVEL", value="LOC"),
        *(_peers_broken, _peers_refused, _no_nvlink),
        partial(_peers_allowed, name="NCCL_P2P_DISABLE", value="0"),
        partial(_peers_allowed, name="NCCL_P2P_LEVEL", value="PIX"),
    ),
    "no GPUDirect": (
        _direct_by_setting,
        partial(_direct_without_module, everywhere=True, network="IB"),
        partial(_direct_without_module, everywhere=True, network=PLUGIN),
        partial(_direct_without_module, everywhere=False, network="IB"),
        *(_storage_indirect, _direct_level),
    ),
    "forced protocol": (
        *(_forced_ll, _forced_ll128, _forced_simple),
        *(_harmless_ll128, _harmless_simple),
        partial(_protocols_left, value="^LL128"),
        partial(_protocols_left, value="LL,Simple"),
    ),
    "not synchronized": (
        partial(_unsynchronized, waits_at_end=False),
        partial(_unsynchronized, waits_at_end=True),
        *(_switch_adds, _own_bench),
    ),
    "straggler": (_straggler, _late_once, _late_in_turn, _clocks_differ),
    "mismatch": (_other_collective, _other_size, _stayed_away, _in_flight, _some_have_left),
}
"""{fault: a patient for each of its causes, then for each innocent look-alike}."""


def ward(fault: str, seed: int) -> list[Case]:
    """Return a patient for each cause of `fault` and each look-alike, in a mixed order, made from `seed`."""
    random = Random(f"{fault} {seed}")
    causes = random.sample(CAUSES[fault], len(CAUSES[fault]))
    made = [cause(Random(random.getrandbits(64))) for cause in causes]
    return [case._replace(name=f"{fault} {number}") for number, case in enumerate(made, 1)]


# What others have published

_FOLDER = Path(__file__).with_name("ch18_gpus_logs")


class Source(NamedTuple):
    """A published log or table. `log`: patterns of the lines that prove its fault."""

    words: str
    order: Order
    why: str
    fault: str = HEALTHY
    remedy: str | None = None
    log: tuple[str, ...] = ()


PUBLISHED = {
    "nccl-1781-before": Source(
        "NVIDIA/nccl, issue 1781 (2025): two pods on one Kubernetes node, a GPU each. Excerpt",
        Order(1, 2, 0, 0, True, 360e9, 15e-6),
        "each pod has a host name of its own, so NCCL counts two nodes and sends by sockets",
        "sockets",
        "set NCCL_HOSTID",
        ("nNodes 2", "via NET/Socket"),
    ),
    "nccl-1781-after": Source(
        "the same issue, the same two pods, after NCCL_HOSTID was set. Excerpt",
        Order(1, 2, 0, 0, True, 360e9, 15e-6),
        "NCCL counts one node, and the two GPUs reach each other",
    ),
    "nccl-899": Source(
        "NVIDIA/nccl, issue 899 (2023): two nodes, a GPU each; the lines about GPUDirect RDMA. Excerpt",
        Order(2, 1, 4, 100, False, 12e9, 30e-6),
        "no card can reach a GPU's memory: the kernel module is not loaded",
        "no GPUDirect",
        "load nvidia_peermem",
        (r"GPU Direct RDMA Disabled", r"via NET/IB/\d+$"),
    ),
    "nccl-1052": Source(
        "NVIDIA/nccl, issue 1052 (2023): two nodes, an H800 each; the beginning of the log. Excerpt",
        Order(2, 1, 1, 400, True, 48e9, 30e-6),
        "NCCL_IB_HCA names the one card that was ordered",
    ),
    "nccl-1453": Source(
        "NVIDIA/nccl, issue 1453 (2024): rank 0 of 24 H100, while nccl-tests ran. Excerpt",
        Order(3, 8, 8, 400, True, 360e9, 30e-6),
        "cards reach the GPUs' memory; the network's name is its plugin's",
    ),
    "pyremote": Source(
        "Scicom-AI-Enterprise-Organization/pyremote, README: two GPUs of one desktop. Excerpt",
        Order(1, 2, 0, 0, False, 12e9, 15e-6),
        "one machine, without NVLink and without a card: the host's memory is its way",
    ),
    "mooncake-3484": Source(
        "kvcache-ai/Mooncake, pull request 3484: an all-reduce on eight ranks, from nccl-tests. Excerpt",
        Order(1, 8, 0, 0, True, 480e9, 18e-6),
        "no row is faster than the wire",
    ),
}
"""Real logs and tables; each names what was ordered as far as the source says it, and else as such machines have it."""


def published(*names: str) -> list[Case]:
    """Return published patients by name."""
    cases = []
    for name in names:
        source, lines = PUBLISHED[name], (_FOLDER / f"{name}.txt").read_text().splitlines()
        table = any(line.split()[:2] == ["#", "size"] or "redop" in line for line in lines)
        patient = Patient(source.order, [] if table else lines, lines if table else [], [])
        proofs = frozenset(
            ("log", number)
            for number, line in enumerate(patient.log)
            if any(re.search(pattern, line) for pattern in source.log)
        )
        cases.append(Case(name, patient, source.fault, proofs, source.remedy, source.why))
    return cases
