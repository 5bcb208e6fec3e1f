"""If many strangers' sockets are ready at once, their tasks go on a few at a time."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from amqp_server.connection.sockets.listener import Server
from amqp_server.connection.sockets.socket_waits import MOST, SocketWaits
from amqp_server.connection.sockets.unauthenticated import HalfOpen
from conformance_tests.patience import PATIENCE_S
from quorum_queue.links.wire import TrioWaits, Waits

from .authority import make_authority, tls_port
from .served import served

COUNT = 100


class Passes(trio.abc.Instrument):
    """Counts what happens in each pass of Trio's loop."""

    def __init__(self) -> None:
        self.counts = [0]

    def before_io_wait(self, timeout: float) -> None:
        if self.counts[-1]:
            self.counts.append(0)

    def count(self) -> None:
        self.counts[-1] += 1


@pytest.fixture
def passes() -> Iterator[Passes]:
    yield Passes()


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("few", [True, False], ids=["a few at a time", "by way of Trio"])
async def test_tasks_whose_sockets_are_ready_go_on(passes: Passes, few: bool, writes: bool) -> None:
    waits: Waits = SocketWaits() if few else TrioWaits()
    pairs = [socket.socketpair() for _ in range(COUNT)]
    found: list[int] = []

    async def wait(number: int) -> None:
        fileno = pairs[number][0].fileno()
        await (waits.writable(fileno) if writes else waits.readable(fileno))
        found.append(number)
        passes.count()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as outer:
            if isinstance(waits, SocketWaits):
                outer.start_soon(waits.run)
            async with trio.open_nursery() as nursery:
                if writes:
                    for ours, _ in pairs:
                        ours.setblocking(False)
                        with pytest.raises(BlockingIOError):
                            while True:
                                ours.send(bytes(65536))
                for number in range(COUNT):
                    nursery.start_soon(wait, number)
                await trio.testing.wait_all_tasks_blocked()
                assert not found
                trio.lowlevel.add_instrument(passes)
                for _, theirs in pairs:
                    theirs.close()
            trio.lowlevel.remove_instrument(passes)
            outer.cancel_scope.cancel()
    for ours, _ in pairs:
        ours.close()
    assert sorted(found) == list(range(COUNT))
    assert max(passes.counts) == (MOST if few else COUNT)


async def test_a_task_that_is_cancelled_leaves_its_socket() -> None:
    waits = SocketWaits()
    ours, theirs = socket.socketpair()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits.run)
            for _ in range(2):
                async with trio.open_nursery() as inner:
                    inner.start_soon(waits.readable, ours.fileno())
                    await trio.testing.wait_all_tasks_blocked()
                    inner.cancel_scope.cancel()
            theirs.send(b"x")
            await waits.readable(ours.fileno())
            # When the node stops, a task that comes late waits to be cancelled, too.
            nursery.cancel_scope.cancel()
        with trio.CancelScope() as scope:
            scope.cancel()
            await waits.readable(ours.fileno())
        assert scope.cancelled_caught
        with pytest.raises(trio.ClosedResourceError):
            await waits.readable(-1)
    ours.close()
    theirs.close()


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


async def test_handshakes_whose_clients_leave_at_once_end_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: Passes
) -> None:
    gone = Server._gone
    ended: list[HalfOpen] = []

    def counted(server: Server, sock: socket.socket, place: HalfOpen) -> None:
        ended.append(place)
        passes.count()
        gone(server, sock, place)

    monkeypatch.setattr(Server, "_gone", counted)
    hello = client_hello()
    async with served(tmp_path, **make_authority(tmp_path).options) as node:
        port = tls_port(node)
        clients: list[trio.SocketStream] = []
        with trio.fail_after(PATIENCE_S):
            for number in range(COUNT):
                client = await trio.open_tcp_stream("127.0.0.1", port)
                await client.send_all(hello if number % 2 else hello[: len(hello) // 2])
                clients.append(client)
            while len(node.server.half_opens) < COUNT:
                await trio.sleep(0.01)
            trio.lowlevel.add_instrument(passes)
            for client in clients:
                # Fewer than one in each pass.
                client.socket.close()
            while len(ended) < COUNT:
                await trio.sleep(0.01)
            trio.lowlevel.remove_instrument(passes)
        assert not len(node.server.half_opens)
    assert max(passes.counts) <= MOST
