"""Messages over a socket between the judge and the sandbox: each is prefixed with its length, which is bounded."""

from __future__ import annotations

import socket
import time

from .plain import MAX_BYTES, BadMessage

HEADER = 8  # bytes of the length before each message, big-endian


class Closed(Exception):
    """The other side closed the connection."""


class TooLate(Exception):
    """The deadline passed before the message was through."""


def send(connection: socket.socket, message: bytes, deadline: float | None = None) -> None:
    """Send a message. `deadline`: in seconds of time.monotonic(). Raise TooLate or Closed if it doesn't get through."""
    try:
        _until(connection, deadline)
        connection.sendall(len(message).to_bytes(HEADER, "big"))
        connection.sendall(message)
    except TimeoutError:
        raise TooLate from None
    except OSError:
        raise Closed from None


def receive(connection: socket.socket, deadline: float | None = None, limit: int = MAX_BYTES + 2**20) -> bytes:
    """Wait for the next message. Raise TooLate or Closed, and BadMessage if it is larger than `limit` bytes."""
    length = int.from_bytes(_exactly(connection, HEADER, deadline), "big")
    if length > limit:
        raise BadMessage(f"a message of {length:,} bytes")
    return bytes(_exactly(connection, length, deadline))


def _exactly(connection: socket.socket, size: int, deadline: float | None) -> bytearray:
    data = bytearray()
    while len(data) < size:
        try:
            _until(connection, deadline)
            part = connection.recv(min(size - len(data), 2**20))
        except TimeoutError:
            raise TooLate from None
        except OSError:
            raise Closed from None
        if not part:
            raise Closed
        data += part
    return data


def _until(connection: socket.socket, deadline: float | None) -> None:
    if deadline is None:
        connection.settimeout(None)
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)
