"""Nodes with nothing but links, in one Trio loop, over loopback."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import trio

from amqp_server.connection.sockets import poll_task
from amqp_server.connection.sockets.poller import Poller
from amqp_server.turn import NoPeers, Turn
from conformance_tests.patience import PATIENCE_S
from quorum_queue.links.handshake import Hello
from quorum_queue.links.mesh import Mesh
from quorum_queue.links.ports import LinkOptions, Peer

SECRET = b"a secret of thirty-two bytes, ok."
OPTIONS = LinkOptions(heartbeat_ms=50, dead_ms=1_000)

Tls = tuple[ssl.SSLContext, ssl.SSLContext]


class Recorder:
    """Keeps the events of a mesh."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.hellos: dict[str, Hello] = {}
        self.frames: dict[str, list[bytes]] = {}
        #: Nodes that are let in though they are no peers, and nodes that asked to be let in.
        self.welcome: set[str] = set()
        self.wanted: list[str] = []
        #: Reasons to refuse nodes, by name.
        self.refusals: dict[str, str] = {}
        self.react: Callable[[str, list[memoryview]], None] = lambda peer, frames: None
        self._changed = trio.Event()

    def link_up(self, peer: str, hello: Hello) -> None:
        self.told.append(("up", peer))
        self.hellos[peer] = hello
        self._change()

    def link_down(self, peer: str) -> None:
        self.told.append(("down", peer))
        self._change()

    def received(self, peer: str, frames: list[memoryview]) -> None:
        assert frames
        self.frames.setdefault(peer, []).extend(map(bytes, frames))
        self.react(peer, frames)
        self._change()

    def refusal(self, hello: Hello) -> str:
        return self.refusals.get(hello.name, "")

    def admits(self, peer: str) -> bool:
        self.wanted.append(peer)
        return peer in self.welcome

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await self._changed.wait()

    def count(self, what: str, peer: str) -> int:
        return self.told.count((what, peer))

    def check_alternation(self) -> None:
        """Check that each session goes up once and down at most once, and that there are never two at a
        time.
        """
        for peer in {peer for _, peer in self.told}:
            states = [what for what, name in self.told if name == peer]
            assert states == ["up", "down"] * (len(states) // 2) + ["up"] * (len(states) % 2)


class NoCommits:
    """See amqp_server.turn.Commits."""

    def turn_begins(self) -> None: ...

    def turn_ends(self) -> None: ...


def listening(port: int = 0) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(64)
    return sock


class LinkNode:
    """One node, to be started and stopped."""

    def __init__(self, name: str, nursery: trio.Nursery, listen: socket.socket, **options: Any) -> None:
        self.name = name
        self.address = Peer(name, *listen.getsockname())
        self.listen = listen
        self.events = Recorder()
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()
        arguments: dict[str, Any] = {
            "incarnation": 1,
            "identity": f"disk of {name}",
            "cluster": "c",
            "peers": (),
            "secret": SECRET,
            "tls": None,
            "options": OPTIONS,
        }
        self.arguments = arguments | options
        self.mesh = Mesh(node=name, listens=[listen], **self.arguments)

    def start(self) -> None:
        self._nursery.start_soon(self._run)

    async def _run(self) -> None:
        try:
            with self._scope:
                poller = Poller(Turn(NoCommits(), NoPeers(), lambda: None), 1.0, 1 << 16)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(poll_task.serve, poller)
                    await self.mesh.run(self.events, poller)
        finally:
            self._stopped.set()

    async def stop(self) -> None:
        """As if the process had ended: the kernel closes its sockets."""
        self._scope.cancel()
        await self._stopped.wait()
        self.listen.close()

    def restarted(self, **changes: Any) -> LinkNode:
        """Return the same node after a restart, at the same port, not started yet."""
        arguments = self.arguments | {"incarnation": self.arguments["incarnation"] + 1} | changes
        return LinkNode(self.name, self._nursery, listening(self.address.port), **arguments)

    def connected(self) -> set[str]:
        return set(self.mesh.connected())


@asynccontextmanager
async def nodes(
    *names: str, start: bool = True, options: LinkOptions = OPTIONS, tls: Tls | None = None, **limits: Any
) -> AsyncIterator[list[LinkNode]]:
    """Start nodes that know each other. At the end, check their events."""
    sockets = {name: listening() for name in names}
    peers = [Peer(name, *sock.getsockname()) for name, sock in sockets.items()]
    made: list[LinkNode] = []
    async with trio.open_nursery() as nursery:
        for name, sock in sockets.items():
            made.append(
                LinkNode(name, nursery, sock, peers=peers, options=replace(options, **limits), tls=tls)
            )
        try:
            if start:
                for node in made:
                    node.start()
                await all_linked(made)
            yield made
        finally:
            nursery.cancel_scope.cancel()
            for node in made:
                node.listen.close()
    for node in made:
        node.events.check_alternation()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that no mesh reports, such as a line in the log."""
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.01)


async def all_linked(made: Iterable[LinkNode]) -> None:
    made = list(made)
    for node in made:
        others = {other.name for other in made} - {node.name}
        await node.events.until(lambda node=node, others=others: node.connected() >= others)  # type: ignore[misc]
