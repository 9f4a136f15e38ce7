"""Messages between controller and workers: one JSON object a line over TCP.

Plain sockets rather than a store: a death, a notice and an eviction must arrive by themselves, at once, and a frozen
peer must never block the one who writes to it.
"""

from __future__ import annotations

import json
import select
import socket
import threading
from typing import Any

Message = dict[str, Any]

MAX_LINE_BYTES = 16 * 1024 * 1024


def encode(message: Message) -> bytes:
    """One line of UTF-8 JSON."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Inverse of `encode`.

    Raises:
        ValueError: the line is no JSON object.
    """
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"not a message: {line[:80]!r}")
    return message


def parse_address(address: str, option: str) -> tuple[str, int]:
    """Splits "host:port".

    Raises:
        ValueError: names `option` and the form that fits.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{option}={address} is no address: give host:port, for example 127.0.0.1:29400")
    return host.strip("[]"), int(port)


class Connection:
    """A worker's end of the wire: writes from any thread, reads from one."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._write_lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._buffer = b""

    def send(self, message: Message) -> None:
        """Writes one message.

        Raises:
            OSError: the controller is gone or has not read for the connection's timeout.
        """
        data = encode(message)
        with self._write_lock:
            self._socket.sendall(data)

    def receive(self, timeout: float) -> list[Message] | None:
        """Messages that arrive within `timeout` seconds (perhaps none); None at the end of the stream."""
        try:
            if not self._poll.poll(timeout * 1000):
                return []
            data = self._socket.recv(1 << 16)
        except OSError:
            return None
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [decode(line) for line in lines]

    def close(self) -> None:
        self._socket.close()
