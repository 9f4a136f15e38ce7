"""Messages over real sockets: cut anywhere, glued together, or no messages at all."""

from __future__ import annotations

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault_tolerance.runtime.wire import Connection, decode, encode, parse_address

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_a_message_is_one_line_and_comes_back(message: dict[str, object]) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize("line", [b"[1]", b"3", b"nonsense", b"\xff\xfe", b""])
def test_what_is_no_message(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(line)


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:29400", ("127.0.0.1", 29400)), ("[::1]:1", ("::1", 1)), ("head:65535", ("head", 65535))],
)
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert parse_address(address, "launch.controller") == parts


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:65536", "host:port", "host:-1"])
def test_what_is_no_address_names_the_option(address: str) -> None:
    with pytest.raises(ValueError, match=r"launch.controller=.* host:port"):
        parse_address(address, "launch.controller")


def test_messages_that_arrive_in_pieces_and_together() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = Connection(*server.getsockname()[:2], timeout=5.0)
        peer, _ = server.accept()
        with peer:
            assert client.receive(0.0) == []
            data = encode({"a": 1}) + encode({"b": "x" * 100_000}) + encode({"c": 3})
            received = []
            for start in range(0, len(data), 7_001):
                peer.sendall(data[start : start + 7_001])
                received += client.receive(1.0) or []
            while len(received) < 3:
                more = client.receive(1.0)
                assert more
                received += more
            assert [next(iter(message)) for message in received] == ["a", "b", "c"]
            client.send({"d": 4})
            assert json.loads(peer.makefile().readline()) == {"d": 4}
        assert client.receive(1.0) is None  # the peer is gone
        client.close()
