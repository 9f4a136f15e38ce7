"""Messages between controller and workers: one JSON object a line over TCP.

Plain sockets rather than a store: a death, a notice and an eviction must arrive by themselves, at once, and a frozen
peer must never block the one who writes to it.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import threading
from collections.abc import Callable
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


class Link(asyncio.Protocol):
    """The controller's end of one connection.

    Not a stream with a reader: what a peer wrote before it died counts, though the reset of its connection may be
    noticed together with it, and a message is handled the moment it arrives.

    Args:
        on_message: called with each message; a ValueError it raises ends the connection as a problem.
        on_end: called once, when the connection is gone.
        on_problem: told what a peer sent that is no message.

    Attributes:
        owner: whom the connection belongs to; None until it is known.
    """

    def __init__(
        self,
        on_message: Callable[[Link, Message], None],
        on_end: Callable[[Link], None],
        on_problem: Callable[[str], None],
    ) -> None:
        self._on_message, self._on_end, self._on_problem = on_message, on_end, on_problem
        self._buffer = b""
        self.owner: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        try:
            for line in lines:
                if self._transport.is_closing():
                    return
                self._on_message(self, decode(line))
            if len(self._buffer) > MAX_LINE_BYTES:
                raise ValueError(f"a message of more than {MAX_LINE_BYTES} bytes")
        except ValueError as error:
            self._on_problem(str(error))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._on_end(self)

    def send(self, message: Message) -> None:
        """Writes one message; to a peer that is gone, nothing (its end is told by `on_end`)."""
        if not self._transport.is_closing():
            self._transport.write(encode(message))

    def close(self) -> None:
        """Ends the connection after what has been written; nothing that the peer still sends is read."""
        self._transport.close()
