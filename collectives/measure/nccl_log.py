"""A parser of NCCL's log (NCCL_DEBUG=INFO): which ranks are connected, over what, and how each collective ran.

    log = parse(Path("nccl.log").read_text())
    print(summary(log))

NCCL logs by subsystem. The default subsystems are INIT, BOOTSTRAP and ENV (settings from the environment);
NCCL_DEBUG_SUBSYS replaces them. INIT,ENV,GRAPH,TUNING covers everything parsed here except calls, which are in COLL.

NVIDIA's guide documents these switches (troubleshooting/logging) but not the lines. Those are "mostly for us
developers" and "subject to change on every version" (S. Jeaugey, NVIDIA/nccl, issue 1644). This parser reads the forms
of versions 2.4 to 2.29, as `INFO` prints them in NVIDIA/nccl: src/init.cc (versions, rings, trees),
src/graph/connect.cc (a rank's own ring and tree), src/transport/ (connections), src/graph/tuning.cc (the table of
costs) and src/enqueue.cc (the algorithm picked).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
DTYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"),
)
"""NCCL's names, indexed by the number that a log prints. Sources: NVIDIA/nccl, src/include/plugin/nccl_tuner.h, and
`ncclDataType_t` in src/nccl.h.in."""


class Tuning(NamedTuple):
    """NCCL's choice for a call. `collective`: NCCL's name, or None if the log doesn't give it.

    `num_bytes`: as printed, with a meaning that depends on the version. A line that ends in a time has S, the full
    buffer. A line that ends in channels has the call's count times its itemsize: for an all-gather and a
    reduce-scatter, only one rank's part. `channels`: how many it uses, or None. `seconds`: the time that NCCL predicts,
    or None.
    """

    collective: str | None
    num_bytes: int
    algorithm: str
    protocol: str
    channels: int | None = None
    seconds: float | None = None


class Call(NamedTuple):
    """A rank's call (NCCL_DEBUG_SUBSYS=COLL). `count`: elements as in NCCL's API; in an all-gather, the rank's part."""

    collective: str
    count: int  # type: ignore[assignment]  # hides tuple.count
    dtype: str
    world_size: int


class Connection(NamedTuple):
    """A connection from `src` to `dst` on one channel.

    `transport`: "P2P", "SHM", "NET/IB" or "NET/Socket". `via`: the transport with all details that the log gives.
    """

    channel: int
    src: int
    dst: int
    transport: str
    via: str


class Cost(NamedTuple):
    """An entry of NCCL's cost table. `latency`: seconds. `bandwidth`: bytes per second; 0 if NCCL never picks it."""

    latency: float
    bandwidth: float


@dataclass
class Log:
    """A parsed log. Fields that it doesn't contain are None or empty, and `missing` describes them.

    `communicators`: {identity: number of ranks}. `rings`: {channel: the ranks in the order that data takes}.
    `successors`: {channel: {rank: the next one}}, also for incomplete rings. `parents`: {channel: {rank: its parent
    in the tree, None for the root}}. `costs`: {(collective, algorithm, protocol): the cost in NCCL's model}.
    `choices`: {choice: how often}. `calls`: {call: how often, over all ranks of the log}. `mixed`: whether the log has
    two different rings for one channel.
    """

    version: str | None = None
    nodes: int | None = None
    channels: int | None = None
    communicators: dict[str, int] = field(default_factory=dict)
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    successors: dict[int, dict[int, int]] = field(default_factory=dict)
    parents: dict[int, dict[int, int | None]] = field(default_factory=dict)
    connections: set[Connection] = field(default_factory=set)
    costs: dict[tuple[str, str, str], Cost] = field(default_factory=dict)
    choices: Counter[Tuning] = field(default_factory=Counter)
    calls: Counter[Call] = field(default_factory=Counter)
    mixed: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def world_size(self) -> int | None:
        """The number of ranks of the largest communicator, or None."""
        return max([*self.communicators.values(), *(call.world_size for call in self.calls)], default=None)

    @property
    def transports(self) -> Counter[str]:
        """The number of connections by transport."""
        return Counter(connection.transport for connection in self.connections)

    @property
    def missing(self) -> list[str]:
        """What this log doesn't contain, and which setting of NCCL would log it."""
        whole_rings = self.rings or not self.successors
        facts = (
            (self.version, "the version: only a communicator's first rank prints it"),
            (self.world_size, "how many ranks there are: no line with nranks (add INIT to NCCL_DEBUG_SUBSYS)"),
            (self.nodes, "how many nodes there are: newer versions print nNodes, under INIT"),
            (self.successors, "rings: no channel is listed (INIT, or GRAPH for each rank's own)"),
            (whole_rings, "whole rings: the log has the steps of only some ranks"),
            (self.parents, "trees: none is listed (INIT, or GRAPH)"),
            (self.connections, "transports: no connection is listed (INIT)"),
            (self.choices, _NO_CHOICES),
        )
        missing = [description for fact, description in facts if not fact]
        if self.mixed or len({size for name, size in self.communicators.items() if name.startswith("commId")}) > 1:
            missing.append("which communicator a ring or tree belongs to: there are several, and the first is shown")
        return missing


_NO_CHOICES = (
    "which algorithm and protocol were picked: set NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING (versions before 2.20 never "
    "print it: NVIDIA/nccl, issue 754; aws/aws-ofi-nccl, pull request 373)"
)


_NUMBER = r"\d+(?:\.\d+)?"
_RELATIVES = r"-?\d+(?:/-?\d+)*"  # a rank's parent or children in a tree
_LINE = re.compile(r"NCCL (INFO|WARN) (.*)")
_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)+)")
_RANKS = re.compile(r"comm (0x[0-9a-f]+) rank \d+ n[Rr]anks (\d+)(?:.* commId (0x[0-9a-f]+))?")
_NODES = re.compile(r"nNodes (\d+)")
_CHANNELS = re.compile(r"(?:^|, )(\d+) coll channels")
_RING = re.compile(r"Channel (\d+)(?:/\d+)? :((?:\s+\d+)+)$")
_OWN_RING = re.compile(r"Ring (\d+) : (-?\d+) -> (\d+) -> (-?\d+)")
_OWN_TREE = re.compile(rf"Tree (\d+) : (-?\d+) -> (\d+) -> ({_RELATIVES})")
_TREES = re.compile(rf"\[(\d+)\] ({_RELATIVES})->(\d+)->({_RELATIVES})")
_CONNECTION = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[\w+\])? via (\S.*)"
)
_PICKED = re.compile(
    r"(?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)"
    rf"(?: channel\{{Lo\.\.Hi\}}=\{{(\d+)\.\.(\d+)\}})?(?: time ({_NUMBER}))?"
)
_CALL = re.compile(r"(\w+): opCount \w+ .* count (\d+) datatype (\d+) .*\[nranks=(\d+)\]")
_SETTING = re.compile(r"(NCCL_\w+) set (?:by environment )?to (\S+?)\.?$")
_TABLE_HEAD = re.compile(r"\s*(Algorithm|Latency/AlgBw)\s*\|(.*)")
_TABLE_ROW = re.compile(rf"\s*(\w+) \|((?:\s*{_NUMBER}/\s*{_NUMBER} \|)+)")


def parse(text: str) -> Log:
    """Parse the log of one rank, or of several ranks mixed, with any other output in between.

    A line that is truncated or garbled by other output is read as far as it is intact. Raises `ValueError` if no line
    is NCCL's.
    """
    log, columns = Log(), []
    lines = [match.groups() for match in map(_LINE.search, text.splitlines()) if match]
    version = _VERSION.search(text)
    if not lines and not version:
        raise ValueError("this text has no line of NCCL's: run with NCCL_DEBUG=INFO, and check NCCL_DEBUG_FILE")
    log.version = version and version[1]
    for kind, line in lines:
        line = line.rstrip()
        if kind == "WARN":
            log.warnings.append(line)
        elif match := _TABLE_HEAD.match(line):
            columns = _columns(match[2])
        elif (match := _TABLE_ROW.match(line)) and columns:
            log.costs |= _costs(match[1], match[2], columns)
        else:
            _read_line(log, line)
    for channel in log.successors.keys() - log.rings.keys():
        if ring := _whole(log.successors[channel]):
            log.rings[channel] = ring
    return log


def _read_line(log: Log, line: str) -> None:
    """Add the facts of one line to `log`."""
    if match := _RANKS.search(line):
        comm, size, identity = match.groups()
        log.communicators[f"commId {identity}" if identity else f"rank's end {comm}"] = int(size)
    if match := _NODES.search(line):
        log.nodes = max(log.nodes or 0, int(match[1]))
    if match := _CHANNELS.search(line):
        log.channels = max(log.channels or 0, int(match[1]))
    if match := _SETTING.search(line):
        log.settings[match[1]] = match[2]
    if match := _RING.search(line):
        ring = tuple(map(int, match[2].split()))
        log.mixed |= log.rings.setdefault(int(match[1]), ring) != ring
        log.successors.setdefault(int(match[1]), dict(zip(ring, ring[1:] + ring[:1], strict=True)))
    elif match := _CONNECTION.search(line):
        channel, src, dst = map(int, match.groups()[:3])
        via = match[4].split(" comm ")[0]
        transport = "/".join(via.split("/")[:2]) if via.startswith("NET") else via.split("/")[0]
        log.connections.add(Connection(channel, src, dst, transport, via))
    elif match := _OWN_RING.search(line):
        channel, before, rank, after = map(int, match.groups())
        log.successors.setdefault(channel, {}).update({before: rank, rank: after})
    elif match := _OWN_TREE.search(line):
        _hang(log, int(match[1]), int(match[3]), match[2], match[4])
    elif line.lstrip().startswith("Trees"):
        one_way = re.sub(r"\|\S+", "", line)  # 2.5 and 2.6 had a tree for each direction: up|down
        for channel, left, rank, right in _TREES.findall(one_way):
            up, down = (left, right) if "/" in right else (right, left)  # up to 2.4 the parent came first
            if "/" not in up:
                _hang(log, int(channel), int(rank), up, down)
    elif match := _PICKED.search(line):
        log.choices[_choice(*match.groups())] += 1
    elif match := _CALL.search(line):
        collective, count, dtype, size = match.groups()
        log.calls[Call(collective, int(count), _name(dtype, DTYPES), int(size))] += 1


def _hang(log: Log, channel: int, rank: int, up: str, down: str) -> None:
    """Add a rank's parent and children to the channel's tree. NCCL prints -1 for none."""
    parents = log.parents.setdefault(channel, {})
    parents[rank] = int(up) if int(up) >= 0 else None
    parents |= {child: rank for child in map(int, down.split("/")) if child >= 0}


def _whole(successors: dict[int, int]) -> tuple[int, ...] | None:
    """Return the ring of these steps, from its lowest rank on; None if a rank's step is missing."""
    ring = [min(successors)]
    while (after := successors.get(ring[-1])) is not None and after not in ring:
        ring.append(after)
    return tuple(ring) if after == ring[0] and len(ring) == len(successors) else None


def _choice(collective, num_bytes, algorithm, protocol, low, high, microseconds) -> Tuning:
    """Return a choice with names for numbers, spelled the same for all versions."""
    return Tuning(
        collective=collective,
        num_bytes=int(num_bytes),
        algorithm=_name(algorithm, ALGORITHMS),
        protocol=_name(protocol, PROTOCOLS),
        channels=None if low is None else int(high) - int(low) + 1,
        seconds=None if microseconds is None else float(microseconds) * 1e-6,
    )


def _name(printed: str, names: tuple[str, ...]) -> str:
    """Return the name of what NCCL printed: "1", "RING" and "Ring" all give "Ring"."""
    if printed.isdecimal():
        return names[int(printed)] if int(printed) < len(names) else printed
    plain = printed.replace("_", "").lower()
    return next((name for name in names if name.lower() == plain), printed)


def _columns(head: str) -> list[tuple[str, str]]:
    """Return (algorithm, protocol) of each column, from the line above the table."""
    cells = [cell.strip() for cell in head.strip(" |").split("|")]
    if "/" in cells[0]:  # up to 2.12 or so: "Tree/    LL | Tree/ LL128 | ..."
        return [tuple(part.strip() for part in cell.split("/")) for cell in cells]  # type: ignore[misc]
    return list(product(cells, PROTOCOLS))


def _costs(collective: str, row: str, columns: list[tuple[str, str]]) -> dict[tuple[str, str, str], Cost]:
    """Parse a row of the table, in microseconds and GB/s (1e9), to seconds and bytes per second by column."""
    pairs = [cell.split("/") for cell in row.strip(" |").split("|")]
    costs = [Cost(float(latency) * 1e-6, float(bandwidth) * 1e9) for latency, bandwidth in pairs]
    return {(collective, *column): cost for column, cost in zip(columns, costs, strict=False)}


def summary(log: Log) -> str:
    """Summarize a log in a few lines; the last ones list what is missing."""
    lines = [f"NCCL {log.version or 'of unknown version'}"]
    if log.world_size:
        where = f" on {log.nodes} node{'s' * (log.nodes != 1)}" if log.nodes else ""
        lines.append(f"{log.world_size} ranks{where}")
    if log.channels or log.successors:
        lines.append(f"{log.channels or max(log.successors) + 1} channels")
    for ring, channels in _alike(log.rings).items():
        lines.append(f"ring {_ranges(channels)}: {' → '.join(map(str, (*ring, ring[0])))}")
    for channel in sorted(log.successors.keys() - log.rings.keys()):
        steps = ", ".join(f"{rank} → {after}" for rank, after in sorted(log.successors[channel].items()))
        lines.append(f"ring {channel}, in part: {steps}")
    trees = {channel: tuple(sorted(tree.items())) for channel, tree in log.parents.items()}
    for tree, channels in _alike(trees).items():
        lines.append(f"tree {_ranges(channels)}: {_tree_in_words(dict(tree))}")
    for transport, count in sorted(log.transports.items()):
        pairs = {(c.src, c.dst) for c in log.connections if c.transport == transport}
        direct = " with GPUDirect RDMA" * any("GDRDMA" in c.via for c in log.connections if c.transport == transport)
        lines.append(f"{transport}{direct}: {count} connections, between {len(pairs)} pairs of ranks")
    for choice, count in sorted(log.choices.items(), key=lambda item: item[0][1]):
        used = f" on {choice.channels} channel{'s' * (choice.channels != 1)}" if choice.channels else ""
        expected = f", expected to take {choice.seconds * 1e6:,.1f} µs" if choice.seconds else ""
        lines.append(
            f"{choice.collective or 'a collective'} of {choice.num_bytes:,} bytes: {choice.algorithm}, "
            f"{choice.protocol}{used}{expected} ({count} time{'s' * (count != 1)})"
        )
    lines += [f"set by hand: {name}={value}" for name, value in log.settings.items()]
    lines += [f"NCCL warns: {words}" for words in log.warnings]
    lines += [f"not in the log: {words}" for words in log.missing]
    return "\n".join(lines)


def _alike(by_channel: dict[int, tuple]) -> dict[tuple, list[int]]:
    """Group the channels that have the same ring or tree."""
    groups: dict[tuple, list[int]] = {}
    for channel in sorted(by_channel):
        groups.setdefault(by_channel[channel], []).append(channel)
    return groups


def _ranges(channels: list[int]) -> str:
    return ", ".join(map(str, channels))


def _tree_in_words(parents: dict[int, int | None]) -> str:
    """Format each parent with its children: "0 → 1, 2; 2 → 3"."""
    children: dict[int, list[int]] = {}
    for rank, parent in parents.items():
        if parent is not None:
            children.setdefault(parent, []).append(rank)
    roots = [rank for rank, parent in parents.items() if parent is None]
    ordered = sorted(children, key=lambda rank: (rank not in roots, rank))
    return "; ".join(f"{rank} → {', '.join(map(str, children[rank]))}" for rank in ordered) or f"{roots[0]} alone"
