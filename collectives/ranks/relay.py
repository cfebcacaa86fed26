"""The delay of a line: a program that carries packets between pairs of network devices, a fixed time later.

`emulate` runs this file in its namespace: relay.py SECONDS DEVICE DEVICE [DEVICE DEVICE ...]. Linux's own `netem`
would do the same, but many kernels don't include it.
"""

import select
import socket
import sys
import time
from collections import deque
from typing import Any

# Constants of Linux's if_ether.h, socket.h and if_packet.h.
_EVERY_PROTOCOL = 0x0003
_PACKET, _WITH_OFFLOADS, _IGNORE_OWN = 263, 15, 23
_LONGEST = 2**17  # bytes: the kernel merges several packets of one connection into a long one


def carry(devices: list[str], delay: float) -> None:
    """Forward each packet from a device to its partner `delay` seconds later, until stdin closes."""
    entrances = [_open(device) for device in devices]
    sources: list[Any] = [sys.stdin, *entrances]
    exit_of = {entrance: entrances[index ^ 1] for index, entrance in enumerate(entrances)}
    # First in, first out: all packets have the same delay.
    under_way: deque[tuple[float, socket.socket, bytes]] = deque()
    print("ready", flush=True)
    while True:
        left = max(under_way[0][0] - time.monotonic(), 0) if under_way else None
        for ready in select.select(sources, [], [], left)[0]:
            if ready is sys.stdin:
                return
            under_way.append((time.monotonic() + delay, exit_of[ready], ready.recv(_LONGEST)))
        while under_way and under_way[0][0] <= time.monotonic():
            _, exit, packet = under_way.popleft()
            exit.send(packet)


def _open(device: str) -> socket.socket:
    """Open a raw packet socket on `device` that keeps offload headers: checksum and segmentation left to hardware."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL))
    raw.setsockopt(_PACKET, _WITH_OFFLOADS, 1)
    raw.setsockopt(_PACKET, _IGNORE_OWN, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**23)
    raw.bind((device, _EVERY_PROTOCOL))
    return raw


if __name__ == "__main__":
    carry(sys.argv[2:], float(sys.argv[1]))
