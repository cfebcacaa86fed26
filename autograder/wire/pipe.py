"""A socket with the methods of multiprocessing's pipes, which `collectives.ranks` talks over, and with bounds."""

from __future__ import annotations

import select
import socket
import time

from . import channel
from .plain import MAX_BYTES

LIMIT = MAX_BYTES + 2**20  # bytes of a message


class Pipe:
    """One end of a line between the judge and a rank. `patience`: seconds to send or receive a message; None: any."""

    def __init__(self, connection: socket.socket, patience: float | None = None):
        self.connection, self.patience = connection, patience

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 after `close`."""
        return self.connection.fileno()

    def close(self) -> None:
        """Hang up."""
        self.connection.close()

    def poll(self, seconds: float) -> bool:
        """Wait until there is something to read, or the other end is closed; return False if that takes longer."""
        return readable(self.connection, seconds)

    def send_bytes(self, message: bytes) -> None:
        """Send a message. Raise BrokenPipeError if it doesn't get through."""
        try:
            channel.send(self.connection, message, self._deadline())
        except (channel.Closed, channel.TooLate):
            raise BrokenPipeError from None

    def recv_bytes(self, limit: int = LIMIT) -> bytes:
        """Wait for the next message. Raise EOFError if it doesn't get through, BadMessage above `limit` bytes."""
        try:
            return channel.receive(self.connection, self._deadline(), limit)
        except (channel.Closed, channel.TooLate):
            raise EOFError from None

    def _deadline(self) -> float | None:
        return None if self.patience is None else time.monotonic() + self.patience


def readable(connection: socket.socket, seconds: float) -> bool:
    """Wait until there is something to read, or the other end is closed; return False if that takes longer."""
    waiting = select.poll()  # unlike select, it accepts descriptors above 1023
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(1000 * seconds))
