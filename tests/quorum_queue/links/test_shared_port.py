"""Several processes accept from one port: each connection gets to the one that its dialler wants."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from quorum_queue.links.ports import Peer
from quorum_queue.links.shared_port import wanting

from .nodes import OPTIONS, LinkNode, Tls, listening, nodes
from .test_strangers import connect, opening, rest_of


class Sharing:
    """A process of two with one port; see shared_port.Processes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.passed: list[int] = []
        self.other: LinkNode | None = None

    def pass_on(self, number: int, sock: socket.socket) -> None:
        self.passed.append(number)
        if number > 1 or self.other is None:
            raise ConnectionRefusedError("there is no such process")
        self.other.mesh.take(socket.socket(fileno=os.dup(sock.fileno())))


@asynccontextmanager
async def sharing(tls: Tls | None = None) -> AsyncIterator[tuple[list[LinkNode], list[Sharing]]]:
    """Node a, and b and b/1, which share a port and dial nobody."""
    port, shared = listening(), listening()
    host, number = shared.getsockname()
    peers = [Peer("a", *port.getsockname()), Peer("b", host, number), Peer("b/1", host, number, 1)]
    processes = [Sharing(0), Sharing(1)]
    # They have to let a in, and must not dial it, so nobody listens at the address that they know.
    nobody = [Peer("a", "127.0.0.1", 1)]
    options = replace(OPTIONS, retry_max_ms=100)
    async with trio.open_nursery() as nursery:
        a = LinkNode("a", nursery, port, peers=peers, options=options, tls=tls)
        made = [
            LinkNode(
                *(name, nursery, shared.dup()), peers=nobody, options=options, tls=tls, processes=process
            )
            for name, process in zip(("b", "b/1"), processes, strict=True)
        ]
        processes[0].other, processes[1].other = made[1], made[0]
        try:
            for node in (a, *made):
                node.start()
            yield [a, *made], processes
        finally:
            nursery.cancel_scope.cancel()
            for sock in (port, shared, *(node.listen for node in made)):
                sock.close()


async def test_each_connection_gets_to_the_process_that_is_wanted(maybe_tls: Tls | None) -> None:
    async with sharing(maybe_tls) as ((a, b, further), processes):
        passed = 0
        for _ in range(20):
            await a.events.until(lambda: a.connected() == {"b", "b/1"})
            passed = sum(len(process.passed) for process in processes)
            assert b.connected() == further.connected() == {"a"}
            for peer in ("b", "b/1"):
                a.mesh.drop(peer)
            await a.events.until(lambda: not a.connected())
        # Whichever of them accepts.
        assert passed > 0
        assert {number for process in processes for number in process.passed} == {0, 1}
    for node in (a, b, further):
        node.events.check_alternation()


@pytest.mark.parametrize(
    "said", [wanting(2), wanting(255), b"W", b"WW" * 100], ids=["2", "255", "half", "many"]
)
async def test_nobody_gets_to_a_process_that_is_not_there(said: bytes) -> None:
    async with sharing() as ((a, b, _), _):
        for _ in range(8):
            stream = await connect(b)
            await stream.send_all(said)
            await stream.send_eof()
            assert await rest_of(stream) == b""
        await a.events.until(lambda: a.connected() == {"b", "b/1"})


async def test_a_node_of_one_process_passes_nothing_on(caplog: pytest.LogCaptureFixture) -> None:
    async with nodes("n1", "n2") as (one, _):
        stream = await connect(one)
        await stream.send_all(wanting(3) + opening())
        assert await rest_of(stream) == b""
        assert "it looks for worker 3, and this node has no workers" in caplog.text
        # The first one may be named, too.
        stream = await connect(one)
        await stream.send_all(wanting(0) + opening())
        with trio.fail_after(5):
            assert await stream.receive_some(1)
