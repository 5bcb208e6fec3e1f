"""A whole node on loopback sockets within the test, and a client of frames for it."""

from __future__ import annotations

import gc
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import trio
from pamqp import base, commands, frame

from amqp_server.app import Node
from amqp_server.config import Config
from conformance_tests.patience import PATIENCE_S
from persistence.environment import Environment

from .node import CAPABILITIES, Delivery, decoded

_Method = TypeVar("_Method", bound=base.Frame)


@asynccontextmanager
async def served(directory: Path, **options: Any) -> AsyncIterator[Node]:
    """A running node; the end stops it as an operator does, by SIGTERM."""
    options = {"amqp": "127.0.0.1:0", "http": "", "disk_free_min_bytes": 0, "memory_limit": "64GiB"} | options
    environment = Environment.open(directory / "data", map_bytes=1 << 28)
    node = Node(Config(data_dir=str(directory / "data"), **cast(Any, options)), environment)
    ready, stopped = trio.Event(), trio.Event()

    async def run() -> None:
        await node.run(lambda _: ready.set())
        stopped.set()

    thresholds = gc.get_threshold()
    # A second signal may come after the node has put the old handler back, and would end the tests.
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            with trio.fail_after(PATIENCE_S):
                await ready.wait()
            try:
                yield node
            finally:
                if not stopped.is_set():
                    signal.raise_signal(signal.SIGTERM)
                with trio.move_on_after(PATIENCE_S, shield=True) as patience:
                    await stopped.wait()
                nursery.cancel_scope.cancel()
                assert not patience.cancelled_caught, "the node did not stop"
    finally:
        signal.signal(signal.SIGTERM, handler)
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        node.marks.close()
        environment.close()


def handshakes_take(node: Node, seconds: float) -> None:
    """From now on, bound handshakes by this time. On a slow machine, clients that must log in have done so
    before, or do so when this is over.
    """
    node.server.config = replace(node.server.config, handshake_timeout_s=seconds)


def port_of(node: Node) -> int:
    return int(node.amqp_address.rpartition(":")[2])


class Client:
    """Sends and receives frames."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._buffer = b""
        self.received: list[tuple[int, base.Frame | Delivery]] = []
        self.heartbeats = 0

    async def send(self, *data: bytes) -> None:
        with trio.fail_after(PATIENCE_S):
            await self.stream.send_all(b"".join(data))

    async def ask(self, channel: int, method: base.Frame, answer: type[_Method]) -> _Method:
        """Send a method and wait for an answer of this kind."""
        await self.send(frame.marshal(method, channel))
        return await self.wait_for(answer)

    async def wait_for(self, kind: type[_Method]) -> _Method:
        """Return the next method of this kind; all others that come before it stay in `received`."""
        with trio.fail_after(PATIENCE_S):
            while True:
                for index, (_, found) in enumerate(self.received):
                    if isinstance(found, kind):
                        del self.received[index]
                        return found
                assert await self.read(), "the connection was closed"

    async def deliveries(self, count: int) -> list[Delivery]:
        """Return the next contents, this many."""
        with trio.fail_after(PATIENCE_S):
            while True:
                found = [each for _, each in self.received if isinstance(each, Delivery)]
                if len(found) >= count:
                    self.received = [pair for pair in self.received if not isinstance(pair[1], Delivery)]
                    return found
                assert await self.read(), "the connection was closed"

    async def read(self, most: int = 65_536) -> bool:
        """Read once; False at the end."""
        data = await self.stream.receive_some(most)
        self._buffer += data
        whole = _whole(self._buffer)
        self.heartbeats += sum(1 for _, method in _frames(self._buffer[:whole]) if method == 8)
        self.received += decoded(self._buffer[:whole])
        self._buffer = self._buffer[whole:]
        return bool(data)

    async def ended(self) -> bool:
        """Read to the end; return whether it came in time."""
        with trio.move_on_after(PATIENCE_S):
            try:
                while await self.read():
                    pass
            except trio.BrokenResourceError:
                pass
            return True
        return False

    async def log_in(
        self, *, heartbeat_s: int = 0, frame_max: int = 131_072, channels: tuple[int, ...] = (1,)
    ) -> None:
        await self.send(b"AMQP\x00\x00\x09\x01")
        await self.wait_for(commands.Connection.Start)
        properties: Any = {"capabilities": dict(CAPABILITIES)}
        await self.ask(
            0,
            commands.Connection.StartOk(properties, "PLAIN", "\0guest\0guest", "en_US"),
            commands.Connection.Tune,
        )
        await self.send(frame.marshal(commands.Connection.TuneOk(2047, frame_max, heartbeat_s), 0))
        await self.ask(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
        for channel in channels:
            await self.ask(channel, commands.Channel.Open(), commands.Channel.OpenOk)

    async def close(self) -> None:
        with trio.move_on_after(PATIENCE_S):
            await self.ask(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
        await self.stream.aclose()


def _frames(data: bytes) -> list[tuple[int, int]]:
    """Size and kind of each whole frame."""
    found: list[tuple[int, int]] = []
    position = 0
    while len(data) - position >= 8:
        size = int.from_bytes(data[position + 3 : position + 7], "big") + 8
        if position + size > len(data):
            break
        found.append((size, data[position]))
        position += size
    return found


def _whole(data: bytes) -> int:
    """Return the length of the whole methods, with all of their contents, at the beginning of `data`."""
    whole = position = 0
    left = -1
    for size, kind in _frames(data):
        at = position + 7
        position += size
        if kind == 1:
            left = -1 if data[at : at + 4] in _WITH_CONTENT else 0
        elif kind == 2:
            left = int.from_bytes(data[at + 4 : at + 12], "big")
        elif kind == 3:
            left -= size - 8
        if left == 0 or kind == 8:
            whole = position
    return whole


#: basic.return, deliver and get-ok.
_WITH_CONTENT = tuple(b"\x00\x3c" + bytes((0, method)) for method in (50, 60, 71))


async def connect(
    node: Node, *, receive_buffer_bytes: int = 0, tls: ssl.SSLContext | None = None, port: int = 0
) -> Client:
    """Connect to the node; no login yet."""
    sock = trio.socket.socket()
    if receive_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    await sock.connect(("127.0.0.1", port or port_of(node)))
    stream: trio.abc.Stream = trio.SocketStream(sock)
    if tls is not None:
        stream = trio.SSLStream(stream, tls, server_hostname="127.0.0.1", https_compatible=True)
    return Client(stream)


@asynccontextmanager
async def client(node: Node, *, receive_buffer_bytes: int = 0, **options: Any) -> AsyncIterator[Client]:
    """A client that has logged in and opened its channels; its socket is closed in the end without
    connection.close.
    """
    made = await connect(node, receive_buffer_bytes=receive_buffer_bytes)
    try:
        await made.log_in(**options)
        yield made
    finally:
        await trio.aclose_forcefully(made.stream)


async def until(condition: Any, seconds: float = PATIENCE_S) -> None:
    """Wait until the node has come to this state. Fails if it does not."""
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.005)
