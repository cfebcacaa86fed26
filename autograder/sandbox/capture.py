"""The capture of a submission's traffic: all data that its ranks send by TCP on the loopback, read from outside.

The sandbox's init opens the packet socket before any of the student's code runs, and hands it out. Nothing inside may
open another one, and code inside can't undo what it has sent.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import threading
import time
from collections import defaultdict
from typing import Any

from ..inside.warm import described

# Linux's numbers, from if_packet.h, if_ether.h and filter.h.
SOL_PACKET, ALL, OUTGOING = 263, 3, 4
VERSION, RING, STATISTICS, FILTER, V3 = 10, 5, 6, 26, 2
BLOCK_HEADER = struct.Struct("8x3I")  # a block's owner, how many packets it has, the offset of the first
PACKET_HEADER = struct.Struct("I8xI8x2xH")  # the offset of the next packet, the bytes kept, the offset of its headers
OWNER = 8  # where in a block its owner stands
KERNELS = 0  # the owner of a block that the kernel hasn't handed over yet

BLOCK = 2**18  # bytes: room for three of the loopback's largest packets, 64 KiB, or for some thousand small ones
BLOCKS = 160  # blocks that the kernel can fill before we read any, 42 MB
RETIRE = 8  # milliseconds: so long the kernel waits to fill a block with more, then hands it over
URGENT = 0x20  # a flag of TCP's
SECONDS = 1.0  # for the kernel to hand over the last block
MOST = 2**26  # bytes kept, of which each packet takes
EACH = 160  # beside its data
USUAL = 2**24  # bytes, and
MANY = 50_000  # packets: no exercise's ranks send that much, so if some of less are lost, the reader was too slow
IP_AND_TCP = 52  # bytes of headers; a packet that isn't longer only acknowledges
# The filter of the packet socket, in classic BPF: keep each packet once, when it arrives, if it has data.
STEP = struct.Struct("HBBI")
NOTHING = STEP.pack(0x06, 0, 0, 0)
DATA = b"".join(
    [
        STEP.pack(0x30, 0, 0, 0xFFFFF004),  # load the packet's type
        STEP.pack(0x15, 2, 0, OUTGOING),  # drop it if it is leaving
        STEP.pack(0x80, 0, 0, 0),  # load its length
        STEP.pack(0x25, 1, 0, IP_AND_TCP),  # keep it if it is longer than the headers
        NOTHING,
        STEP.pack(0x06, 0, 0, 0xFFFFFFFF),  # keep all of it
    ]
)


class Capture:
    """A context manager that reads a packet socket.

    `by_ends`: after the `with` block, all bytes of each connection and direction, {ends: bytes}. The ends are what the
    headers name: both addresses, then both ports, the sender's first. None if there was too much to follow: over
    `MOST` bytes, or more than `BLOCKS` hold before we read any. `late`: whether it is None because we read too slowly.
    """

    def __init__(self, packets: socket.socket):
        self.socket = packets.dup()  # a sandbox that ends during the capture closes its own
        self.by_ends: dict[bytes, bytes] | None = None
        self.late = False

    def __enter__(self) -> Capture:
        # {addresses and ports: [(sequence number, data)]}
        self._parts: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
        self._kept = self._next = self._packets = self._bytes = 0
        self.socket.setsockopt(SOL_PACKET, VERSION, V3)
        self.socket.setsockopt(SOL_PACKET, RING, struct.pack("7I", BLOCK, BLOCKS, BLOCK, BLOCKS, RETIRE, 0, 0))
        self._ring = mmap.mmap(self.socket.fileno(), BLOCK * BLOCKS)
        self._counted()  # those of an earlier capture
        self._let_through(DATA)
        self.socket.bind(("lo", ALL))
        self._over = os.eventfd(0)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._let_through(NOTHING)
        os.eventfd_write(self._over, 1)
        self._reader.join()
        os.close(self._over)
        packets, lost = self._counted()
        end = time.monotonic() + SECONDS
        while self._packets < packets - lost and time.monotonic() < end:  # in a block that the kernel still fills
            time.sleep(RETIRE / 4000)
            self._drain()
        self._ring.close()
        self.socket.setsockopt(SOL_PACKET, RING, bytes(28))
        self.socket.close()
        missing = lost or self._packets < packets
        sent = self._bytes * packets / max(self._packets, 1)  # of whatever protocol, with what nobody read
        self.late = bool(missing and packets < MANY and sent < USUAL)
        if not missing and self._kept <= MOST:
            self.by_ends = {ends: in_order(parts) for ends, parts in self._parts.items()}

    def _counted(self) -> tuple[int, int]:
        """Return how many packets the socket has got since this was asked last, and how many of these found no room."""
        packets, lost, _ = struct.unpack("3I", self.socket.getsockopt(SOL_PACKET, STATISTICS, 12))
        return packets, lost

    def _let_through(self, program: bytes) -> None:
        with described(program) as filtering:
            self.socket.setsockopt(socket.SOL_SOCKET, FILTER, filtering)

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(self._over, select.POLLIN)
        while self._over not in dict(poll.poll()):
            self._drain()
        self._drain()

    def _drain(self) -> None:
        """Read all blocks that the kernel has handed over, and give them back."""
        while True:
            start = self._next * BLOCK
            owner, packets, first = BLOCK_HEADER.unpack_from(self._ring, start)
            if owner == KERNELS:
                return
            at = start + first
            for _ in range(packets):
                step, kept, begin = PACKET_HEADER.unpack_from(self._ring, at)
                self._bytes += kept
                if self._kept <= MOST:
                    self._keep(self._ring[at + begin : at + begin + kept])
                at += step
            self._packets += packets
            struct.pack_into("I", self._ring, start + OWNER, KERNELS)
            self._next = (self._next + 1) % BLOCKS

    def _keep(self, packet: bytes) -> None:
        """Add a packet's data to its stream."""
        addresses, protocol, tcp = (12, 9, 4 * (packet[0] & 15)) if packet[0] >> 4 == 4 else (8, 6, 40)
        if len(packet) < tcp + 20 or packet[protocol] != socket.IPPROTO_TCP:
            return
        data = packet[tcp + 4 * (packet[tcp + 12] >> 4) :]
        if packet[tcp + 13] & URGENT:  # its reader may leave a byte out, so what it read isn't known
            self._kept = MOST + 1
        elif data:
            number = int.from_bytes(packet[tcp + 4 : tcp + 8], "big")
            self._parts[packet[addresses : tcp + 4]].append((number, data))
            self._kept += len(data) + EACH


def in_order(parts: list[tuple[int, bytes]]) -> bytes:
    """Return the bytes of a stream from its packets, which may come out of order, or twice.

    `parts`: for each packet its TCP sequence number, which wraps around at 2^32, and its data.
    """
    first, _ = parts[0]
    stream, end = bytearray(), 0
    for at, data in sorted(((number - first + 2**31) % 2**32, data) for number, data in parts):
        stream += data[max(end - at, 0) :]
        end = max(end, at + len(data))
    return bytes(stream)
