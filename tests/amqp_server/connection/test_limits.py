"""Which clients the node lets in, for how long, and how many: handshake, connections, heartbeats, and the end
by SIGTERM.
"""

from __future__ import annotations

import signal
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.lowlevel
from pamqp import commands

from amqp_server.config import Config
from amqp_server.connection.session import Session
from amqp_server.connection.state import State
from amqp_server.management.request.answer import plain
from amqp_server.wire import tables
from conformance_tests.patience import PATIENCE_S

from ..wire.published import long, message, method, raw, short
from .authority import Authority, connect_tls
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
    """Return whether the node closed the connection without sending a byte."""
    with trio.fail_after(PATIENCE_S):
        try:
            await connection.stream.send_all(b"AMQP\x00\x00\x09\x01")
            return not await connection.stream.receive_some()
        except trio.BrokenResourceError:
            return True


async def _answers(many: list[Client]) -> list[bool]:
    """Return which of them the node refused, in order."""
    refused: list[bool] = []
    for connection in many:
        refused.append(await _refused(connection))
    return refused


async def test_connections_are_bounded(tmp_path: Path) -> None:
    async with served(tmp_path, connections_max=5) as node, client(node), client(node):
        # All of them at once, so that the node accepts them together.
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


# -- heartbeats ----------------------------------------------------------------------------------------------


async def test_heartbeats_are_sent(tmp_path: Path) -> None:
    async with served(tmp_path) as node, client(node, heartbeat_s=1) as idle:
        with trio.fail_after(PATIENCE_S):
            while idle.heartbeats < 3:
                await idle.send(HEARTBEAT)
                await idle.read()


async def test_a_heartbeat_follows_half_an_interval_of_silence(tmp_path: Path) -> None:
    """The interval counts from the last bytes that left, whatever these were."""
    async with served(tmp_path) as node, client(node, heartbeat_s=4) as idle:
        [transport] = node.server.transports
        clock, timers = node.broker.clock, node.broker.timers
        await trio.sleep(0.3)
        await idle.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        sent = transport.last_sent
        assert timers.next_ms is not None
        # The first check comes half an interval after the login, and finds newer bytes.
        await until(lambda: transport.last_sent > sent)
        assert 2.0 - 0.002 <= transport.last_sent - sent < 4.0
        assert idle.heartbeats == 0
        await idle.read()
        assert idle.heartbeats == 1
        assert timers.next_ms - clock.monotonic_ms() <= 2_000


async def test_timers_of_connections_go_with_them(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        timers = node.broker.timers
        for _ in range(200):
            user = await connect(node)
            await user.log_in(heartbeat_s=60_000, channels=())
            await user.stream.aclose()
        await until(lambda: not node.server.transports)
        assert len(timers) < 100


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
        # Send for as long again as the node took to drop the silent client.
        for _ in range(4):
            await busy.send(message(routing_key="nowhere").encode(1))
            await trio.sleep(0.5)
        await busy.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)


async def test_a_blocked_publisher_is_not_dropped(tmp_path: Path) -> None:
    """The node does not read from it, so it can't miss the client's heartbeats."""
    contents = [message(routing_key="q", body=b"x" * 65_000).encode(1)] * 30
    async with (
        served(tmp_path) as node,
        client(node, heartbeat_s=1) as blocked,
        trio.open_nursery() as nursery,
    ):
        await blocked.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        node.broker.alarms.set("test", True)
        # Some of it may not fit in the socket's buffers until the node reads on.
        nursery.start_soon(blocked.send, *contents)
        await blocked.wait_for(commands.Connection.Blocked)
        [transport] = node.server.transports
        await until(lambda: transport.session.incoming.stalled)
        async with client(node, heartbeat_s=1) as silent:
            assert await silent.ended()
        assert list(node.server.transports) == [transport]
        node.broker.alarms.set("test", False)
        await blocked.wait_for(commands.Connection.Unblocked)
        queue = node.broker.vhost("/").queues["q"]
        await until(lambda: queue.host.ready_count == len(contents))


async def test_heartbeats_are_read_while_blocked(tmp_path: Path) -> None:
    """This client has published little: the node still reads its acks and heartbeats (and still notices a
    dead client).
    """
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


async def _hear(user: Client, count: int, seconds: float) -> None:
    """Fail unless this many heartbeats come within this time. Meanwhile the client sends its own."""
    heard = user.heartbeats
    with trio.fail_after(seconds + PATIENCE_S / 10):
        began = trio.current_time()
        while user.heartbeats < heard + count:
            await user.send(HEARTBEAT)
            assert await user.read(), "the connection was closed"
        assert trio.current_time() - began < seconds


@pytest.mark.parametrize("messages", [1, 20], ids=["read", "stalled"])
async def test_a_blocked_publisher_gets_heartbeats(tmp_path: Path, messages: int) -> None:
    """As long as the alarm stands, whether the node reads from it or not, and even if it sends nothing
    itself.
    """
    async with served(tmp_path) as node, client(node, heartbeat_s=1) as blocked:
        await blocked.ask(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        await blocked.ask(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        node.broker.alarms.set("test", True)
        published = message(routing_key="q", body=b"x" * 65_000, delivery_mode=b"\2").encode(1)
        await blocked.send(published * messages)
        await blocked.wait_for(commands.Connection.Blocked)
        [transport] = node.server.transports
        await until(lambda: transport.session.incoming.stalled is (messages > 1))
        await _hear(blocked, 4, 6)
        node.broker.alarms.set("test", False)
        await blocked.wait_for(commands.Connection.Unblocked)
        queue = node.broker.vhost("/").queues["q"]
        await until(lambda: queue.host.ready_count == messages)


async def test_who_waits_for_the_disk_gets_heartbeats(tmp_path: Path) -> None:
    """An answer that waits until a full disk has room does not hold back the heartbeats behind it."""
    async with served(tmp_path) as node, client(node, heartbeat_s=1) as waiting:
        [transport] = node.server.transports
        release = transport.outbox.withhold()
        await waiting.send(method(1, commands.Queue.Declare(queue="q", durable=True)))
        await _hear(waiting, 4, 6)
        assert not waiting.received
        release()
        await waiting.wait_for(commands.Queue.DeclareOk)


class Behind:
    """The disk lags until this event. See connection.listener.AwaitedBackpressure."""

    def __init__(self, written: trio.Event, high_bytes: int = 1 << 20) -> None:
        self._written = written
        self.high_bytes = high_bytes

    @property
    def ahead(self) -> bool:
        return not self._written.is_set()

    async def wait(self) -> None:
        await self._written.wait()


async def test_who_publishes_little_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        served(tmp_path, unsynced_share_bytes=8_000) as node,
        client(node) as small,
        client(node) as large,
        client(node) as consumer,
    ):
        for each, queue in ((small, "small"), (large, "large")):
            await each.ask(1, commands.Queue.Declare(queue=queue), commands.Queue.DeclareOk)
            await each.send(message(routing_key=queue).encode(1))
            await each.ask(1, commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk)
            await consumer.ask(1, commands.Basic.Consume(queue=queue, no_ack=True), commands.Basic.ConsumeOk)
            await consumer.deliveries(1)
        written = trio.Event()
        monkeypatch.setattr(node.server, "backpressure", Behind(written))
        await large.send(message(routing_key="large", body=b"x" * 100_000).encode(1))
        await until(lambda: any(each.waits_for_disk for each in node.server.transports))
        waiting = [each for each in node.server.transports if each.waits_for_disk]
        for _ in range(5):
            await small.send(message(routing_key="small", body=b"x" * 1_000).encode(1))
            await consumer.deliveries(1)
        assert [each for each in node.server.transports if each.waits_for_disk] == waiting
        # After this the client has had its share.
        await small.send(message(routing_key="small", body=b"x" * 1_000).encode(1) * 4)
        await consumer.deliveries(4)
        await until(lambda: sum(each.waits_for_disk for each in node.server.transports) == 2)
        [held] = [each for each in node.server.transports if each.waits_for_disk and each not in waiting]
        received_bytes = held.session.incoming.received_bytes
        await small.send(message(routing_key="small").encode(1))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert held.session.incoming.received_bytes == received_bytes
        written.set()
        # The client gets a new share when the disk lags again.
        await consumer.deliveries(2)
        monkeypatch.setattr(node.server, "backpressure", Behind(trio.Event()))
        await small.send(message(routing_key="small").encode(1))
        await consumer.deliveries(1)
        assert not any(each.waits_for_disk for each in node.server.transports)


async def test_shares_together_are_no_more_than_may_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is lower than `unsynced_high_bytes` where memory is small."""
    async with served(tmp_path) as node, client(node), client(node):
        monkeypatch.setattr(node.server, "backpressure", Behind(trio.Event(), 1_000))
        assert node.server.share_bytes == 500


async def test_a_publisher_that_waits_for_the_disk_is_not_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node does not read from it, so it can't miss the client's heartbeats."""
    async with (
        served(tmp_path, unsynced_share_bytes=0) as node,
        client(node, heartbeat_s=1) as publisher,
    ):
        await publisher.ask(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        written = trio.Event()
        monkeypatch.setattr(node.server, "backpressure", Behind(written))
        await publisher.send(message(routing_key="q").encode(1))
        [transport] = node.server.transports
        await until(lambda: transport.waits_for_disk)
        await _hear(publisher, 4, 6)
        written.set()
        await publisher.ask(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)


async def test_acks_of_a_blocked_publisher_are_read_up_to_a_bound(tmp_path: Path) -> None:
    """See docs/reliability.md: blocked_input_bytes_max."""
    async with (
        served(tmp_path, blocked_input_bytes_max=200_000) as node,
        client(node) as both,
        client(node) as other,
    ):
        await both.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        await both.ask(1, commands.Queue.Declare(queue="other"), commands.Queue.DeclareOk)
        await both.ask(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        await both.send(message(routing_key="q").encode(1) * 5)
        await both.ask(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        node.broker.alarms.set("test", True)
        published = message(routing_key="other", body=b"x" * 60_000).encode(1)
        # The node holds three messages of this size back, and still takes the acks behind them.
        for tag in range(1, 4):
            await both.deliveries(1)
            await both.send(published, method(1, commands.Basic.Ack(tag)))
        await both.deliveries(1)
        # A fourth one is too much: the node does not read what comes behind it until the alarm is over.
        await both.send(published)
        [stalled] = [each for each in node.server.transports if each.session.incoming.segments]
        await until(lambda: stalled.session.incoming.stalled)
        await both.send(method(1, commands.Basic.Ack(4)))
        # Clients that only consume go on.
        await other.ask(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
        await other.deliveries(1)
        assert stalled.session.channels[1].unacked.count == 1
        node.broker.alarms.set("test", False)
        await until(lambda: stalled.session.channels[1].unacked.count == 0)


# -- octets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_octets_received_are_those_that_the_client_sent(
    tmp_path: Path, secure: bool, authority: Authority
) -> None:
    """However the bytes are cut, whatever waits for an answer or an alarm, and also through TLS."""
    async with served(tmp_path, **(authority.options if secure else {})) as node:
        user = Counted(await (connect_tls(node, authority.trusting) if secure else connect(node)))
        await user.log_in()
        [transport] = node.server.transports
        name = transport.session.client.name

        def told() -> int:
            (session,) = [each for each in node.broker.sessions if each.client.name == name]
            assert isinstance(session, Session)
            received: int = session.incoming.received_bytes
            return received

        await until(lambda: told() == user.sent)
        await user.ask(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        small, large = (message(body=b"x" * size).encode(1) for size in (10, 100_000))
        for cut in (1, 7, 4096):
            data = small * 3
            for start in range(0, len(data), cut):
                await user.send(data[start : start + cut])
        await user.send(small * 100)
        for start in range(0, len(large), 10_000):
            await user.send(large[start : start + 10_000])
            await trio.lowlevel.checkpoint()
        await user.send(method(1, commands.Queue.Declare(queue="r", durable=True)), small * 10, HEARTBEAT)
        node.broker.alarms.set("test", True)
        await user.send(small * 10)
        node.broker.alarms.set("test", False)
        await user.ask(1, commands.Queue.Declare(queue="q", durable=True), commands.Queue.DeclareOk)
        await until(lambda: told() == user.sent)
        await user.stream.aclose()


class Counted(Client):
    """Counts the bytes that it sends."""

    def __init__(self, user: Client) -> None:
        super().__init__(user.stream)
        self.sent = 0

    async def send(self, *data: bytes) -> None:
        self.sent += sum(map(len, data))
        await super().send(*data)


# -- the end -------------------------------------------------------------------------------------------------


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
    """The node checks connections now and then, also while the answer waits for the disk."""
    async with served(tmp_path, close_wait_s=0.1) as node, client(node) as leaving:
        (transport,) = node.server.transports
        transport.began -= 2 * Config().handshake_timeout_s
        release = transport.outbox.withhold()
        await leaving.send(method(0, commands.Connection.Close(200, "", 0, 0)))
        await until(lambda: transport.session.state is State.CLOSED)
        node.server._check_some(node.server._all())
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        release()
        await leaving.wait_for(commands.Connection.CloseOk)
        assert await leaving.ended()


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_the_socket_is_the_clients_to_close(tmp_path: Path, secure: bool, authority: Authority) -> None:
    """The node discards further input of the client, and waits close_wait_s at most."""
    async with served(tmp_path, close_wait_s=1, **(authority.options if secure else {})) as node:
        leaving = await (connect_tls(node, authority.trusting) if secure else connect(node))
        await leaving.log_in()
        await leaving.ask(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
        began = trio.current_time()
        [transport] = node.server.transports
        assert not list(node.broker.sessions)
        for _ in range(100):
            await leaving.send(message(body=b"x" * 100_000).encode(1))
        assert transport in node.server.transports
        assert await leaving.ended()
        assert trio.current_time() - began > 0.9
        await until(lambda: not node.server.transports)
        await trio.aclose_forcefully(leaving.stream)


async def test_a_client_that_has_said_goodbye_counts_until_it_closes(tmp_path: Path) -> None:
    async with served(tmp_path, connections_max=2) as node, client(node) as staying:
        leaving = await connect(node)
        await leaving.log_in()
        await leaving.ask(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
        refused = await connect(node)
        assert await _refused(refused)
        await leaving.stream.aclose()
        await until(lambda: len(node.server.transports) == 1)
        async with client(node):
            await staying.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        await refused.stream.aclose()


async def test_sigterm_does_not_wait_for_those_who_have_left(tmp_path: Path) -> None:
    async with served(tmp_path) as node, client(node) as staying:
        leaving = await connect(node)
        await leaving.log_in()
        await leaving.ask(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)
        assert node.server.has_goodbyes
        signal.raise_signal(signal.SIGTERM)
        await staying.wait_for(commands.Connection.Close)
        await staying.send(method(0, commands.Connection.CloseOk()))
        await until(lambda: len(node.server.transports) == 1)
        assert not node.server.has_goodbyes
        assert await leaving.ended()
        await leaving.stream.aclose()


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


#: Limit, depth, and whether the node closes the connection.
DEPTHS = [
    (1, 1, False),
    (1, 2, True),
    (32, 32, False),
    (32, 33, True),
    (128, 128, False),
    (128, 129, True),
    (128, 5_000, True),
]


def _declaring(depth: int) -> bytes:
    """A queue.declare with arguments this deep; pamqp's encoder would not come to the end of it."""
    value = b"I\0\0\0\1"
    for level in range(depth):
        value = b"A" + long(value) if level % 2 else b"F" + long(short(b"k") + value)
    return raw(1, 1, struct.pack(">HHH", 50, 10, 0) + short(b"q") + b"\0" + long(short(b"x-k") + value))


@pytest.mark.parametrize(("limit", "depth", "ends"), DEPTHS)
async def test_arguments_that_are_too_deep_close_the_connection(
    tmp_path: Path, limit: int, depth: int, ends: bool
) -> None:
    async with served(tmp_path, table_depth_max=limit) as node, client(node) as user, client(node) as other:
        await user.send(_declaring(depth))
        if ends:
            closed = await user.wait_for(commands.Connection.Close)
            assert (closed.reply_code, closed.class_id, closed.method_id) == (501, 50, 10)
            assert f"nested more than {limit} deep (table_depth_max)" in closed.reply_text
        else:
            await user.wait_for(commands.Queue.DeclareOk)
            # Such arguments go through all code that compares or prints arguments.
            await user.send(_declaring(depth))
            await user.wait_for(commands.Queue.DeclareOk)
            declared = node.broker.vhost("/").queues["q"]
            assert msgspec.json.encode(plain(dict(declared.arguments))).count(b"[") == depth // 2
        await other.ask(1, commands.Queue.Declare(queue="other"), commands.Queue.DeclareOk)


@pytest.mark.parametrize("bodies", [1, 2], ids=["whole", "in-parts"])
@pytest.mark.parametrize(("limit", "depth", "ends"), DEPTHS)
async def test_headers_that_are_too_deep_close_the_connection(
    tmp_path: Path, limit: int, depth: int, ends: bool, bodies: int
) -> None:
    value = b"I\0\0\0\1"
    for level in range(depth):
        value = b"A" + long(value) if level % 2 else b"F" + long(short(b"k") + value)
    headers = long(short(b"k") + value)
    header = struct.pack(">HHQH", 60, 0, 2, 0x2000) + headers
    body = raw(3, 1, b"ab") if bodies == 1 else raw(3, 1, b"a") + raw(3, 1, b"b")
    async with served(tmp_path, table_depth_max=limit) as node, client(node) as user:
        await user.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        # First as frames of a new shape, then as frames of a known one.
        for _ in range(2):
            await user.send(method(1, commands.Basic.Publish(routing_key="q")), raw(2, 1, header), body)
            if ends:
                closed = await user.wait_for(commands.Connection.Close)
                assert closed.reply_code == 501
                assert f"nested more than {limit} deep (table_depth_max)" in closed.reply_text
                return
        await user.send(method(1, commands.Basic.Consume(queue="q", no_ack=True)))
        for delivery in await user.deliveries(2):
            assert delivery.body == b"ab"


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_a_queue_remembers_as_many_producers_as_where_it_was_declared(
    tmp_path: Path, queue_type: str
) -> None:
    arguments: Any = {"x-queue-type": queue_type, "x-deduplication": True}
    declare = commands.Queue.Declare(queue="q", durable=True, arguments=arguments)

    async def say(user: Client, *producers: str) -> None:
        for producer in producers:
            headers = tables.encode({"x-producer": producer, "x-sequence": 1})
            await user.send(message(headers=headers).encode(1))

    async with served(tmp_path, deduplication_producers_max=2) as node, client(node) as user:
        await user.ask(1, declare, commands.Queue.DeclareOk)
        await say(user, "a", "b", "a", "b")
        assert (await user.ask(1, declare, commands.Queue.DeclareOk)).message_count == 2
        # The third name pushes the first one out, which then counts as new.
        await say(user, "c", "a")
        assert (await user.ask(1, declare, commands.Queue.DeclareOk)).message_count == 4
    # The configuration is for queues that are declared while it holds.
    async with served(tmp_path, deduplication_producers_max=10) as node, client(node) as user:
        settings = node.broker.vhost("/").queues["q"].settings
        assert settings.deduplication_producers == 2
        await user.ask(
            1, commands.Queue.Declare(queue="r", durable=True, arguments=arguments), commands.Queue.DeclareOk
        )
        assert node.broker.vhost("/").queues["r"].settings.deduplication_producers == 10
