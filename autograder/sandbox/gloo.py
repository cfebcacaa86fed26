"""gloo's messages, read from what the connections between ranks carried.

A rank may report what it likes, but before each message gloo's C++ writes a preamble, which says how long the message
is, and which operation it is a part of: a send, or one of the backend's own collectives. So the wire tells an
all-reduce from the sends of a ring that looks like it, and a message from a send that nobody received. The form is that
of gloo in torch 2.13: gloo/transport/tcp/pair.h and gloo/types.h.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

PREAMBLE = struct.Struct("=6Q")  # its bytes and the message's, its kind, the slot, an offset, a length, another offset
MESSAGES, NOTICES = (0, 1), (2, 3)  # kinds; a notice only says that a message, or its receiver, is ready
HELLO = 8  # bytes that the rank which opens a connection sends first: a small number
# By the first of the 8 bytes of a slot. The others have the tag; a reduce-scatter is made of all-reduces.
OPERATIONS = (
    *("send", "gather", "all_gather", "reduce", "all_reduce", "scatter"),
    *("broadcast", "barrier", "all_to_all"),
)
ELSEWHERE = -1  # stands for a rank where a connection is not one of the ranks' own group


class Message(NamedTuple):
    """A message from rank `src` to rank `dst`, both `ELSEWHERE` if other than their own group's connections carried it.

    `operation`: what it is a part of, such as "send" or "all_reduce"; "" if it isn't gloo's alone. `data`: its bytes.
    """

    src: int
    dst: int
    operation: str
    data: bytes


def messages(by_ends: Mapping[bytes, bytes], owner: Mapping[bytes, int]) -> Iterator[Message]:
    """Yield the messages of all connections, those of one connection and direction in order.

    `by_ends`: as of a `Capture`. `owner`: the rank that has each end of its group's connections, by the same `ends`.
    """
    for ends, stream in by_ends.items():
        pair = owner.get(ends, ELSEWHERE), owner.get(_reverse(ends), ELSEWHERE)
        src, dst = pair if ELSEWHERE not in pair else (ELSEWHERE, ELSEWHERE)
        for operation, data in _read(stream):
            yield Message(src, dst, operation, data)


def _read(stream: bytes) -> list[tuple[str, bytes]]:
    says_hello = int.from_bytes(stream[:HELLO], sys.byteorder) < PREAMBLE.size  # a preamble begins with its own size
    try:
        return list(_after(stream, HELLO if says_hello else 0))
    except ValueError:
        return [("", stream)]


def _after(stream: bytes, at: int) -> Iterator[tuple[str, bytes]]:
    """Yield the messages of a stream from byte `at` on; raise `ValueError` if gloo didn't write it.

    The end may be cut short: its rank may have been ended.
    """
    while at + PREAMBLE.size <= len(stream):
        num_bytes, kind, slot, _, length, _ = PREAMBLE.unpack_from(stream, at)
        at, operation, has_data = at + PREAMBLE.size, slot >> 56, kind in MESSAGES
        if num_bytes != PREAMBLE.size + has_data * length or kind > max(NOTICES) or operation >= len(OPERATIONS):
            raise ValueError
        if has_data:
            data = stream[at : at + length]
            if _has_preamble(data):  # somebody else has written the preamble before it, or read it
                raise ValueError
            yield OPERATIONS[operation], data
            at += length


def _has_preamble(data: bytes) -> bool:
    """Return whether data has in it, at any byte, what only gloo writes: the preamble of a collective's message."""
    for shift in range(8 if len(data) >= PREAMBLE.size else 0):
        words = np.frombuffer(data, np.uint64, (len(data) - shift) // 8, shift)
        num_bytes, kind, slot, length = words[:-5], words[1:-4], words[2:-3], words[4:-1]
        prefix = slot >> 56
        if ((num_bytes == length + PREAMBLE.size) & (kind <= 1) & (prefix > 0) & (prefix < len(OPERATIONS))).any():
            return True
    return False


def _reverse(ends: bytes) -> bytes:
    """Return the ends of the same connection, as the other side has them."""
    half = (len(ends) - 4) // 2
    return ends[half : 2 * half] + ends[:half] + ends[-2:] + ends[-4:-2]
