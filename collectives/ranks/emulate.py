"""Real ranks on emulated nodes: a network of any rate on one Linux machine, built only from kernel features.

Each node is a network namespace with its own line to one switch:

    rank 0, rank 1 ── node 0 ════ line ════ switch ════ line ════ node 1 ── rank 2, rank 3

A line is a pair of virtual Ethernet devices. A token bucket (`tbf`) limits its rate in both directions. The switch is a
bridge. Ranks of one node talk over its loopback device, at the machine's full speed. Everything is in namespaces
of one process and ends with it. It doesn't touch the machine's own network and needs no root.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import ranks
from . import relay

MTU = 9000  # bytes of a packet; headers (66 bytes) and acknowledgements add about 1.1 % to the messages

_ADVICE = (
    "run as root, or let all users create namespaces: `sysctl -w kernel.unprivileged_userns_clone=1` (Debian), "
    "`kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu), `user.max_user_namespaces=1000` (Red Hat), "
    "or `--privileged` for a container"
)
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER and CLONE_NEWNET in Linux's sched.h


class EmulationError(RuntimeError):
    """Raised on a machine that can't emulate a network; says what is missing and what to do."""


def obstacle() -> str | None:
    """Return why this machine can't emulate a network and what to do about it; None if it can."""
    try:
        EmulatedNetwork(nodes=1).close()
    except EmulationError as error:
        return str(error)
    return None


def run(
    function: Callable,
    world_size: int,
    *args: Any,
    ranks_per_node: int = 1,
    rate: float | None = 100e6,
    delay: float = 0.0,
    timeout: float = 60.0,
) -> list[Any]:
    """Call `ranks.run` over an `EmulatedNetwork`: the first `ranks_per_node` ranks on node 0, the next on node 1, ...

    Raises `ValueError` if the ranks don't fill the nodes, and `EmulationError` where `obstacle` finds one.
    """
    if ranks_per_node < 1 or world_size % ranks_per_node:
        raise ValueError(f"{world_size} ranks do not fill nodes of {ranks_per_node}")
    with EmulatedNetwork(world_size // ranks_per_node, rate, delay) as network:
        return network.run(function, world_size, *args, timeout=timeout)


class EmulatedNetwork:
    """A network of `nodes` nodes around one switch, each with its own line.

    `rate`: bits per second of a line, each way; None for lines as fast as the machine. `delay`: seconds from node to
    node, on top of the machine's own 0.1 ms. gloo's receiver first signals the sender that it is ready, so a message
    takes one delay if its receiver was already waiting, two if it has just arrived at its `recv`.

    The network is up 0.1 s after the call (0.3 s with a delay) and stays until the end of its `with` block. After a
    run, `bytes_sent` and `bytes_received` hold the bytes that each node's line carried: int [nodes], with headers and
    acknowledgements.

    Raises `ValueError` for a node count, rate or delay out of range, and `EmulationError` where `obstacle` finds one.
    """

    def __init__(self, nodes: int, rate: float | None = 100e6, delay: float = 0.0):
        if nodes < 1:
            raise ValueError(f"a network has at least 1 node, not {nodes}")
        if rate is not None and rate < 1e6:
            raise ValueError(f"rate is in bits per second, at least 1e6, not {rate:g}")
        if not 0 <= delay <= 1:
            raise ValueError(f"delay is in seconds, from 0 to 1, not {delay:g}")
        self.nodes = nodes
        self.bytes_sent = self.bytes_received = np.zeros(nodes, dtype=np.int64)
        self._holder = _start("\n".join(_commands(nodes, rate, delay)))

    def __enter__(self) -> EmulatedNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the network down."""
        self._holder.communicate()  # closes its stdin, which ends it

    def run(self, function: Callable, world_size: int, *args: Any, timeout: float = 60.0) -> list[Any]:
        """Call `ranks.run(function, world_size, *args)` with the ranks spread evenly over the nodes, in order."""
        if world_size % self.nodes:
            raise ValueError(f"{world_size} ranks do not spread evenly over {self.nodes} nodes")
        enter = functools.partial(_enter, self._holder.pid, world_size // self.nodes)
        before = self._carried()
        try:
            return ranks.run(function, world_size, *args, timeout=timeout, backend="gloo", enter=enter)
        finally:
            self.bytes_sent, self.bytes_received = self._carried() - before

    def _carried(self) -> np.ndarray:
        """Return the bytes from and to each node so far, as the switch counts them: int [2, nodes]."""
        with open(f"/proc/{self._holder.pid}/net/dev") as table:
            pairs = [line.split(":") for line in table if ":" in line]
        rows = {name.strip(): numbers.split() for name, numbers in pairs}
        lines = [rows[f"node{node}"] for node in range(self.nodes)]
        received, transmitted = 0, 8  # columns, from the switch's point of view
        return np.array([[int(line[column]) for line in lines] for column in (received, transmitted)])


def _start(commands: str) -> subprocess.Popen:
    """Start a process that runs `commands` in new namespaces, prints ready, and waits until its stdin closes."""
    if not sys.platform.startswith("linux"):
        raise EmulationError("can't emulate a network: network namespaces need Linux (use a container)")
    packages = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
    for command, package in packages.items():
        if not shutil.which(command):
            raise EmulationError(f"can't emulate a network: `{command}` is missing, install {package}")
    holder = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-ec", commands],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a keyboard interrupt must not reach it
    )
    assert holder.stdout is not None  # a pipe
    if holder.stdout.readline() != "ready\n":
        _, complaint = holder.communicate()
        advice = "this kernel lacks veth, bridge or tbf" if "nknown" in complaint else _ADVICE
        raise EmulationError(f"can't emulate a network ({complaint.strip()}): {advice}")
    return holder


def _commands(nodes: int, rate: float | None, delay: float) -> Iterator[str]:
    """Yield shell commands that build the network and hold it until their stdin closes."""
    carried = []
    yield "mount -t tmpfs tmpfs /run"  # `ip netns` keeps its names there; the mount is private to this process
    yield "ip link add switch type bridge"
    yield "ip link set switch up"
    for node in range(nodes):
        name, address = f"node{node}", f"10.0.{node // 250}.{node % 250 + 1}"
        yield f"ip netns add {name}"
        if delay:  # two pairs of devices, with `relay` between them
            near, far = f"near{node}", f"far{node}"
            yield f"ip link add {near} mtu {MTU} type veth peer name eth0 mtu {MTU} netns {name}"
            yield f"ip link add {name} mtu {MTU} type veth peer name {far} mtu {MTU}"
            yield f"ip link set {near} up"
            yield f"ip link set {far} up"
            carried += [near, far]
        else:
            yield f"ip link add {name} mtu {MTU} type veth peer name eth0 mtu {MTU} netns {name}"
        yield f"ip link set {name} master switch up"
        yield f"ip -n {name} link set lo up"
        yield f"ip -n {name} link set eth0 up"
        yield f"ip -n {name} address add {address}/16 dev eth0 noprefixroute"
        full_speed = "congctl reno initcwnd 1000 initrwnd 1000"  # no slow start: this network loses no packets
        yield f"ip -n {name} route add 10.0.0.0/16 dev eth0 {full_speed}"
        if rate:
            yield from _shape(name, rate / 8)
    if delay:  # half on the sender's line, half on the receiver's
        yield shlex.join(["exec", sys.executable, "-I", relay.__file__, str(delay / 2), *carried])
    yield "echo ready"
    yield "exec cat"


def _shape(name: str, bytes_per_second: float) -> Iterator[str]:
    """Yield shell commands that limit the line of node `name` to its rate and make its TCP fit the cost model.

    By default the kernel buffers megabytes from a sender at once. The sender then takes them as sent and starts its
    next message, which shares the line with the first, and its replies to other nodes queue behind both.
    """
    burst = max(20_000, bytes_per_second * 600e-6)  # bytes at full speed after a pause: two packets, or 0.6 ms
    shape = f"root tbf rate {8 * bytes_per_second:.0f}bit burst {burst:.0f} limit 16000000"
    yield f"tc qdisc add dev {name} {shape}"
    yield f"tc -n {name} qdisc add dev eth0 {shape}"
    settings = {
        "tcp_notsent_lowat": f"{max(65_536, bytes_per_second * 2e-3):.0f}",  # bytes buffered ahead of the line
        "tcp_limit_output_bytes": f"{max(16_384, bytes_per_second * 1e-3):.0f}",  # of these, queued at the device
        "tcp_rmem": "4096 2000000 4000000",  # bytes of receive buffer, so that a receiver always has room
    }
    writes = "; ".join(f"echo {value} > /proc/sys/net/ipv4/{key}" for key, value in settings.items())
    yield f"nsenter --net=/run/netns/{name} sh -ec '{writes}'"


def _enter(holder: int, ranks_per_node: int, rank: int) -> None:
    """Move this process, the future `rank`, to its node."""
    _join(f"/proc/{holder}/ns/user", _NEW_USER)
    _join(os.path.join("/proc", str(holder), "root", f"run/netns/node{rank // ranks_per_node}"), _NEW_NETWORK)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"


def _join(path: str, kind: int) -> None:
    """Move this process into the namespace at `path`."""
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns needs Python 3.12
    with open(path) as namespace:
        if libc.setns(namespace.fileno(), kind):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
