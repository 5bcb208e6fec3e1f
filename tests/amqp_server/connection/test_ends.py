"""An operator can close a connection, and the node can stop, in any state of the connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from pamqp import commands, frame

from amqp_server.app import Node
from amqp_server.connection.login.password_checks import Outcome
from amqp_server.connection.sockets.transport import Transport
from amqp_server.connection.sockets.unauthenticated import HalfOpen
from amqp_server.connection.state import State

from ..wire.published import message, method
from .authority import Authority, tls_port
from .served import Client, connect, served, until

START_OK = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")


async def _silent(node: Node) -> Client:
    return await connect(node)


async def _greeted(node: Node) -> Client:
    client = await connect(node)
    await client.send(b"AMQP\x00\x00\x09\x01")
    await client.wait_for(commands.Connection.Start)
    return client


async def _logging_in(node: Node) -> Client:
    """The node checks the client's password."""

    async def never(*_: Any, **__: Any) -> Outcome:
        await trio.sleep_forever()
        raise AssertionError

    node.password_checks.check = never  # type: ignore[method-assign]
    client = await _greeted(node)
    await client.send(frame.marshal(START_OK, 0))
    await until(lambda: any(each.session.state is State.AUTHENTICATING for each in node.server.transports))
    return client


async def _open(node: Node) -> Client:
    client = await connect(node)
    await client.log_in()
    return client


async def _full(node: Node) -> Client:
    """The client does not read."""
    client = await connect(node, receive_buffer_bytes=4_096)
    await client.log_in()
    await client.send(
        method(1, commands.Queue.Declare(queue="full", exclusive=True)),
        message("", "full", b"x" * 100_000).encode(1) * 100,
        method(1, commands.Basic.Consume(queue="full", no_ack=True)),
    )
    await until(lambda: any(each._draining for each in node.server.transports))
    return client


async def _unread(node: Node) -> Client:
    """The session has work left, and the client sends more."""
    client = await _open(node)
    transport = next(reversed(node.server.transports))
    transport.session.unfinished = True
    await client.send(method(1, commands.Queue.Declare(queue="never")))
    await until(lambda: not transport.watched)
    return client


async def _refused(node: Node) -> Client:
    """The client has not answered connection.close."""
    client = await _open(node)
    await client.send(method(1, commands.Basic.Publish(immediate=True)))
    await client.wait_for(commands.Connection.Close)
    return client


async def _unsaid(node: Node) -> Client:
    """The session's close-ok waits for the disk."""
    client = await _open(node)
    transport = next(reversed(node.server.transports))
    transport.outbox.withhold()
    await client.send(method(0, commands.Connection.Close(200, "", 0, 0)))
    await until(lambda: transport._sending_rest)
    return client


async def _closed(node: Node) -> Client:
    """The client has close-ok, and has not closed its socket."""
    client = await _open(node)
    await client.ask(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
    return client


STATES = (_silent, _greeted, _open, _full, _unread, _refused, _unsaid, _closed, _logging_in)


async def _all_states(node: Node, clients: AsyncExitStack) -> list[Client]:
    made = []
    for begin in STATES:
        client = await begin(node)
        clients.push_async_callback(trio.aclose_forcefully, client.stream)
        made.append(client)
    await until(lambda: len(node.server.transports) == len(STATES))
    return made


def _close(node: Node, transport: Transport) -> None:
    transport.close()


def _break(node: Node, transport: Transport) -> None:
    def broken() -> None:
        raise OSError("a test has broken the socket")

    node.broker.turn.run(transport.contain, broken)


@pytest.mark.parametrize("end", [_close, _break])
async def test_thrown_out_in_any_state(tmp_path: Path, end: Callable[[Node, Transport], None]) -> None:
    async with served(tmp_path) as node, AsyncExitStack() as clients:
        made = await _all_states(node, clients)
        for transport in list(node.server.transports):
            end(node, transport)
        await until(lambda: not node.server.transports)
        for each in made:
            assert await each.ended()
        assert not len(node.broker.sessions) and not node.server._open and not len(node.server.half_opens)
        assert not node.server.poller._by_fd


async def test_stopped_in_any_state(tmp_path: Path, authority: Authority) -> None:
    async with AsyncExitStack() as clients:
        async with served(tmp_path, **authority.options) as node:
            made = await _all_states(node, clients)
            # And a client that has not sent a byte of its TLS handshake.
            shaking = await connect(node, port=tls_port(node))
            clients.push_async_callback(trio.aclose_forcefully, shaking.stream)
            await until(lambda: node.server._open == len(made) + 1)
        assert not node.server.transports and not node.server._open
        for each in (*made, shaking):
            assert await each.ended()


Begin = Callable[[Node], Awaitable[Client]]


@pytest.mark.parametrize("begin", [_silent, _greeted])
async def test_half_open_gives_way(tmp_path: Path, begin: Begin) -> None:
    async with served(tmp_path, half_open_per_address_max=1) as node:
        first = await begin(node)
        await until(lambda: len(node.server.half_opens) == 1)
        [place] = _places(node)
        # The first client's time is over.
        place.began -= 10
        second = await begin(node)
        assert await first.ended()
        await until(lambda: len(node.server.transports) == 1)
        for each in (first, second):
            await trio.aclose_forcefully(each.stream)


def _places(node: Node) -> list[HalfOpen]:
    return [place for places in node.server.half_opens._by_source.values() for place in places]
