"""Who is let in, for how long, and how many: handshake, connections, heartbeats, and the end by SIGTERM."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio
from pamqp import commands

from amqp_server.config import Config
from amqp_server.connection.state import State
from conformance_tests.patience import PATIENCE_S

from ..wire.published import message, method, raw
from .served import Client, client, connect, handshakes_take, served, until

HEARTBEAT = raw(8, 0, b"")


@pytest.mark.parametrize("sent", [b"", b"AMQP", b"AMQP\x00\x00\x09\x01"], ids=["nothing", "half", "header"])
async def test_handshake_takes_no_longer_than_it_may(tmp_path: Path, sent: bytes) -> None:
    async with served(tmp_path) as node, client(node) as other:
        handshakes_take(node, 0.5)
        idle = await connect(node)
        if sent:
            await idle.send(sent)
        began = trio.current_time()
        assert await idle.ended()
        assert trio.current_time() - began < Config().handshake_timeout_s - 1
        await idle.stream.aclose()
        await other.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)


async def test_bytes_that_trickle_in_do_not_prolong_it(tmp_path: Path) -> None:
    async with served(tmp_path, handshake_timeout_s=0.5) as node:
        slow = await connect(node)
        with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
            for octet in b"AMQP\x00\x00\x09\x01" + b"\x01\x00\x00\x00\x00\x10\x00" + bytes(100):
                await slow.stream.send_all(bytes((octet,)))
                await trio.sleep(0.1)
        await slow.stream.aclose()


async def test_another_protocol_is_told_which_one_this_is(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        http = await connect(node)
        await http.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await http.stream.receive_some() == b"AMQP\x00\x00\x09\x01"
        assert await http.stream.receive_some() == b""
        await http.stream.aclose()


async def _refused(connection: Client) -> bool:
    """Was it closed without a word?"""
    with trio.fail_after(PATIENCE_S):
        try:
            await connection.stream.send_all(b"AMQP\x00\x00\x09\x01")
            return not await connection.stream.receive_some()
        except trio.BrokenResourceError:
            return True


async def _answers(many: list[Client]) -> list[bool]:
    """Who is refused, in order."""
    refused: list[bool] = []
    for connection in many:
        refused.append(await _refused(connection))
    return refused


async def test_connections_are_bounded(tmp_path: Path) -> None:
    async with served(tmp_path, connections_max=5) as node, client(node), client(node):
        # All at once, so that the node accepts them in one go.
        many = [await connect(node) for _ in range(20)]
        refused = await _answers(many)
        assert refused.count(False) == 3
        assert len(node.server.transports) == 5
        for each in many:
            await each.stream.aclose()
        await until(lambda: len(node.server.transports) == 2)
        async with client(node) as again:
            await again.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)


async def test_half_open_connections_are_bounded(tmp_path: Path) -> None:
    async with served(tmp_path, half_open_max=4) as node, client(node) as inside, client(node):
        many = [await connect(node) for _ in range(10)]
        refused = await _answers(many)
        assert refused.count(False) == 4
        await inside.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        for each in many:
            await each.stream.aclose()
        await until(lambda: len(node.server.transports) == 2)
        async with client(node):
            pass


# -- heartbeats ----------------------------------------------------------------------------------------------------


async def test_heartbeats_are_sent(tmp_path: Path) -> None:
    async with served(tmp_path) as node, client(node, heartbeat_s=1) as idle:
        with trio.fail_after(PATIENCE_S):
            while idle.heartbeats < 3:
                await idle.send(HEARTBEAT)
                await idle.read()


async def test_a_silent_client_is_dropped(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as node,
        client(node, heartbeat_s=1) as silent,
        client(node, heartbeat_s=0) as free,
    ):
        began = trio.current_time()
        assert await silent.ended()
        assert trio.current_time() - began > 1.5
        assert len(node.server.transports) == 1
        await free.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)


async def test_any_frame_is_a_sign_of_life(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as node,
        client(node, heartbeat_s=1) as busy,
        client(node, heartbeat_s=1) as silent,
    ):
        while len(node.server.transports) == 2:
            await busy.send(message(routing_key="nowhere").encode(1))
            await trio.sleep(0.5)
        assert await silent.ended()
        # As long again as it took to drop the silent one.
        for _ in range(4):
            await busy.send(message(routing_key="nowhere").encode(1))
            await trio.sleep(0.5)
        await busy.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)


async def test_a_blocked_publisher_is_not_dropped(tmp_path: Path) -> None:
    """It is not read from, so its heartbeats cannot be missed."""
    async with served(tmp_path) as node, client(node, heartbeat_s=1) as blocked:
        await blocked.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        node.broker.alarms.set("test", True)
        for _ in range(30):
            await blocked.send(message(routing_key="q", body=b"x" * 65_000).encode(1))
        await blocked.wait_for(commands.Connection.Blocked)
        [transport] = node.server.transports
        await until(lambda: transport.session.incoming.stalled)
        async with client(node, heartbeat_s=1) as silent:
            assert await silent.ended()
        assert list(node.server.transports) == [transport]
        node.broker.alarms.set("test", False)
        await blocked.wait_for(commands.Connection.Unblocked)
        queue = node.broker.vhost("/").queues["q"]
        await until(lambda: queue.host.ready_count == 30)


async def test_heartbeats_are_read_while_blocked(tmp_path: Path) -> None:
    """Little was published: acks and heartbeats are still read (and a dead client is still noticed)."""
    async with served(tmp_path) as node, client(node, heartbeat_s=1) as blocked:
        await blocked.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        await blocked.send(message(routing_key="q").encode(1) * 2)
        await blocked.ask(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        await blocked.deliveries(2)
        node.broker.alarms.set("test", True)
        await blocked.send(message(routing_key="q").encode(1), method(1, commands.Basic.Ack(2, True)))
        await blocked.wait_for(commands.Connection.Blocked)
        [transport] = node.server.transports
        await until(lambda: transport.session.channels[1].unacked.count == 0)
        assert await blocked.ended()
        node.broker.alarms.set("test", False)


# -- the end -------------------------------------------------------------------------------------------------------


async def test_sigterm_closes_connections_in_order(tmp_path: Path) -> None:
    async with served(tmp_path) as node, client(node) as one, client(node) as two:
        idle = await connect(node)
        await one.ask(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        await one.ask(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        await one.send(message(routing_key="q", delivery_mode=b"\x02").encode(1) * 10)
        await one.wait_for(commands.Basic.Ack)
        signal.raise_signal(signal.SIGTERM)
        for each in (one, two):
            close = await each.wait_for(commands.Connection.Close)
            assert close.reply_code == 320
            assert (
                close.reply_text
                == "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
            )
            await each.send(method(0, commands.Connection.CloseOk()))
        for each in (one, two, idle):
            assert await each.ended()
        await idle.stream.aclose()


async def test_a_goodbye_is_answered_however_long_ago_the_login_was(tmp_path: Path) -> None:
    """Connections are looked at now and then, also while the answer waits for the disk."""
    async with served(tmp_path) as node, client(node) as leaving:
        (transport,) = node.server.transports
        transport.began -= 2 * Config().handshake_timeout_s
        release = transport.outbox.withhold()
        await leaving.send(method(0, commands.Connection.Close(200, "", 0, 0)))
        await until(lambda: transport.session.state is State.CLOSED)
        node.server._check_all()
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        release()
        await leaving.wait_for(commands.Connection.CloseOk)
        assert await leaving.ended()


async def test_sigterm_does_not_wait_for_the_silent(tmp_path: Path) -> None:
    async with served(tmp_path) as node, client(node) as silent:
        await silent.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        signal.raise_signal(signal.SIGTERM)
        assert (await silent.wait_for(commands.Connection.Close)).reply_code == 320
        assert await silent.ended()


async def test_what_was_confirmed_is_there_after_a_restart(tmp_path: Path) -> None:
    async with served(tmp_path) as node, client(node) as publisher:
        await publisher.ask(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        await publisher.ask(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        await publisher.send(message(routing_key="q", body=b"kept", delivery_mode=b"\x02").encode(1))
        await publisher.wait_for(commands.Basic.Ack)
    async with served(tmp_path) as node, client(node) as reader:
        await reader.ask(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        [delivery] = await reader.deliveries(1)
        assert delivery.body == b"kept"
