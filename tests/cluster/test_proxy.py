"""The tests' proxy does what it says. Otherwise nothing would be true that tests say about a network."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from amqp_server.testing.relays import Relays
from conformance_tests.patience import PATIENCE_S

SOON_S = PATIENCE_S
#: Long enough for anything that is not held back to arrive many times over.
NOTHING_S = 0.3


class Wire:
    """The link on which n1 dials n2."""

    def __init__(self) -> None:
        self.links = Relays(PATIENCE_S)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(SOON_S)
        self.port = self.links.open("n1", "n2", self.listener.getsockname()[1])

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), SOON_S)

    def pair(self) -> tuple[socket.socket, socket.socket]:
        dialling = self.dial()
        dialled, _ = self.listener.accept()
        dialled.settimeout(SOON_S)
        return dialling, dialled

    def close(self) -> None:
        self.listener.close()
        self.links.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    with contextlib.closing(Wire()) as made:
        yield made


def arrives(sock: socket.socket, data: bytes) -> bool:
    got = b""
    while len(got) < len(data):
        piece = sock.recv(1 << 16)
        if not piece:
            return False
        got += piece
    return got == data


def silent(sock: socket.socket) -> bool:
    sock.settimeout(NOTHING_S)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(SOON_S)
    return False


def refused(wire: Wire) -> bool:
    """The reset may come while the kernel connects, or just after that."""
    try:
        with wire.dial() as there:
            there.recv(1)
    except ConnectionResetError:
        return True
    return False


def test_passes_both_ways_and_the_end(wire: Wire) -> None:
    there, here = wire.pair()
    with there, here:
        large = bytes(range(256)) * 20_000
        there.sendall(b"question")
        assert arrives(here, b"question")
        here.settimeout(SOON_S)
        there.setblocking(False)
        sent = 0
        got = b""
        while len(got) < len(large):
            with contextlib.suppress(BlockingIOError):
                sent += there.send(large[sent:])
            got += here.recv(1 << 16)
        assert got == large
        there.settimeout(SOON_S)
        here.sendall(b"answer")
        assert arrives(there, b"answer")
        there.shutdown(socket.SHUT_WR)
        assert here.recv(1) == b""
        here.sendall(b"late")
        assert arrives(there, b"late")
        here.close()
        assert there.recv(1) == b""


def test_holds_one_direction_and_delivers_after_the_heal(wire: Wire) -> None:
    there, here = wire.pair()
    with there, here:
        wire.links.set("n1", "n2", hold=True)
        there.sendall(b"lost for now")
        here.sendall(b"heard")
        assert arrives(there, b"heard")
        assert silent(here)
        wire.links.set("n1", "n2")
        assert arrives(here, b"lost for now")


@pytest.mark.parametrize("held", [("n1", "n2"), ("n2", "n1")])
def test_nobody_connects_through_a_held_wire(wire: Wire, held: tuple[str, str]) -> None:
    wire.links.set(*held, hold=True)
    with wire.dial() as there:
        there.sendall(b"hello")
        wire.listener.settimeout(NOTHING_S)
        with pytest.raises(TimeoutError):
            wire.listener.accept()
        wire.listener.settimeout(SOON_S)
        wire.links.set(*held)
        here, _ = wire.listener.accept()
        with here:
            here.settimeout(SOON_S)
            assert arrives(here, b"hello")


def test_cut_resets_and_refuses(wire: Wire) -> None:
    there, here = wire.pair()
    with there, here:
        wire.links.set("n2", "n1", cut=True)
        for end in (there, here):
            with pytest.raises(ConnectionResetError):
                end.recv(1)
    assert refused(wire)
    wire.links.set("n2", "n1")
    there, here = wire.pair()
    with there, here:
        there.sendall(b"again")
        assert arrives(here, b"again")


def test_delays(wire: Wire) -> None:
    there, here = wire.pair()
    with there, here:
        wire.links.set("n1", "n2", delay_ms=300)
        began = time.monotonic()
        there.sendall(b"slow")
        assert arrives(here, b"slow")
        assert time.monotonic() - began >= 0.3


def test_throttles(wire: Wire) -> None:
    there, here = wire.pair()
    with there, here:
        wire.links.set("n1", "n2", bytes_per_s=1_000_000)
        data = bytes(400_000)
        began = time.monotonic()
        there.sendall(data)
        assert arrives(here, data)
        assert time.monotonic() - began >= 0.3


def test_refuses_as_the_target_does(wire: Wire) -> None:
    wire.listener.close()
    assert refused(wire)
