"""The length of a line: carries packets between pairs of network devices, some time later.

`emulate` runs this file as a program in its namespace: relay.py SECONDS DEVICE DEVICE [DEVICE DEVICE ...]. (Linux's
own `netem` would do the same, but many kernels come without it.)
"""

import select
import socket
import sys
import time
from collections import deque

_EVERY_PROTOCOL = 0x0003  # numbers of Linux's if_ether.h, socket.h and if_packet.h
_PACKET, _WITH_OFFLOADS, _IGNORE_OWN = 263, 15, 23
_LONGEST = 2**17  # bytes: the kernel hands over several packets of one connection as a single long one


def carry(devices: list[str], delay: float) -> None:
    """Let what comes in at a device out at its partner, `delay` seconds later, until stdin is closed."""
    entrances = [_open(device) for device in devices]
    exit_of = {one: entrances[index ^ 1] for index, one in enumerate(entrances)}
    under_way = deque()  # all take equally long, so the first to come is the first to leave
    print("ready", flush=True)
    while True:
        left = max(under_way[0][0] - time.monotonic(), 0) if under_way else None
        for ready in select.select([sys.stdin, *entrances], [], [], left)[0]:
            if ready is sys.stdin:
                return
            under_way.append((time.monotonic() + delay, exit_of[ready], ready.recv(_LONGEST)))
        while under_way and under_way[0][0] <= time.monotonic():
            _, exit, packet = under_way.popleft()
            exit.send(packet)


def _open(device: str) -> socket.socket:
    """A socket for whole packets at `device`, each with what its sender left to the hardware: checksum and cutting."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL))
    opened.setsockopt(_PACKET, _WITH_OFFLOADS, 1)
    opened.setsockopt(_PACKET, _IGNORE_OWN, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**23)
    opened.bind((device, _EVERY_PROTOCOL))
    return opened


if __name__ == "__main__":
    carry(sys.argv[2:], float(sys.argv[1]))
