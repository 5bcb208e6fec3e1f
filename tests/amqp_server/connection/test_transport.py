"""Moving bytes: sockets that take little at a time, clients that do not read, and other clients, which must
not notice.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import trio
from pamqp import commands

from amqp_server.connection.sockets.transport import Transport

from ..wire.published import message, method
from .node import Delivery
from .served import client, connect, served, until

BODY = bytes(range(256)) * 16  # 4 KiB
COUNT = 4_000


async def test_partial_sends_lose_and_change_nothing(tmp_path: Path) -> None:
    """16 MB through a socket of a few KB, some hundred bytes at a time."""
    async with (
        served(tmp_path) as node,
        client(node) as publisher,
        client(node, receive_buffer_bytes=4096) as reader,
    ):
        await publisher.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        await reader.ask(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
        bodies = [index.to_bytes(4, "big") + BODY for index in range(COUNT)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                publisher.send, b"".join(message(routing_key="q", body=body).encode(1) for body in bodies)
            )
            got: list[Any] = []
            with trio.fail_after(60):
                while len(got) < COUNT:
                    await reader.read(7_000)
                    got += [each.body for _, each in reader.received if isinstance(each, Delivery)]
                    reader.received.clear()
        assert got == bodies


async def test_slow_reader_is_paused_and_others_go_on(tmp_path: Path) -> None:
    async with (
        served(tmp_path, outbox_high_bytes=65_536, outbox_low_bytes=16_384) as node,
        client(node) as publisher,
        client(node, receive_buffer_bytes=4096) as slow,
        client(node) as quick,
    ):
        await publisher.ask(1, commands.Queue.Declare(queue="slow"), commands.Queue.DeclareOk)
        await publisher.ask(1, commands.Queue.Declare(queue="quick"), commands.Queue.DeclareOk)
        await slow.ask(1, commands.Basic.Consume(queue="slow", no_ack=True), commands.Basic.ConsumeOk)
        await quick.ask(1, commands.Basic.Consume(queue="quick", no_ack=True), commands.Basic.ConsumeOk)
        stuffing = message(routing_key="slow", body=BODY).encode(1)
        for _ in range(40):
            await publisher.send(stuffing * 100)
        transport = next(each for each in node.server.transports if each.session.paused)
        queue = node.broker.vhost("/").queues["slow"]
        # The answer comes when all earlier messages are in the queue.
        await publisher.ask(1, commands.Queue.Declare(queue="slow", passive=True), commands.Queue.DeclareOk)
        # A run may be handed over before the pause is seen, and then no more: the rest waits in the queue.
        assert transport.outbox.size < COUNT * len(BODY) / 4
        assert queue.host.ready_count > COUNT / 2
        for _ in range(20):
            await publisher.send(message(routing_key="quick", body=b"ping").encode(1))
            [delivery] = await quick.deliveries(1)
            assert delivery.body == b"ping"
        assert transport.session.paused
        assert len(await slow.deliveries(COUNT)) == COUNT
        assert not transport.session.paused
        assert transport.outbox.size == 0


async def test_pause_ends_for_what_comes_later(tmp_path: Path) -> None:
    """Nothing hangs if the queue was empty before the reader had drained."""
    async with (
        served(tmp_path, outbox_high_bytes=8_192, outbox_low_bytes=1_024) as node,
        client(node) as publisher,
        client(node, receive_buffer_bytes=4096) as reader,
    ):
        await publisher.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        await reader.ask(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
        for turn in range(30):
            count = 1 + turn * 7 % 40
            await publisher.send(message(routing_key="q", body=BODY).encode(1) * count)
            assert len(await reader.deliveries(count)) == count


async def test_reader_that_never_reads_can_be_closed(tmp_path: Path) -> None:
    async with served(tmp_path) as node, client(node) as publisher:
        await publisher.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        async with client(node, receive_buffer_bytes=4096) as reader:
            await reader.ask(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
            for _ in range(20):
                await publisher.send(message(routing_key="q", body=BODY).encode(1) * 100)
            await until(lambda: any(each.session.paused for each in node.server.transports))
        queue = node.broker.vhost("/").queues["q"]
        await until(lambda: len(node.server.transports) == 1)
        await until(lambda: queue.host.ready_count == 2_000)


async def test_answer_before_the_end_is_sent(tmp_path: Path) -> None:
    """All frames that wait when the client closes are sent, however slowly it reads."""
    async with served(tmp_path, close_wait_s=0.1) as node, client(node) as publisher:
        await publisher.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        await publisher.send(message(routing_key="q", body=BODY).encode(1) * 500)
        reader = await connect(node, receive_buffer_bytes=4096)
        await reader.log_in()
        await reader.send(
            method(1, commands.Basic.Consume(queue="q", no_ack=True)),
            method(0, commands.Connection.Close(200, "", 0, 0)),
        )
        assert await reader.ended()
        assert isinstance(reader.received[-1][1], commands.Connection.CloseOk)
        await reader.stream.aclose()


async def test_a_reset_connection_returns_its_unacked_messages(tmp_path: Path) -> None:
    """A client that is killed does not close its connection; its unacked messages go back."""
    async with served(tmp_path) as node, client(node) as publisher:
        await publisher.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
        reader = await connect(node)
        await reader.log_in()
        await reader.ask(1, commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk)
        await publisher.send(message(routing_key="q").encode(1) * 3)
        assert len(await reader.deliveries(3)) == 3
        assert isinstance(reader.stream, trio.SocketStream)
        reader.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        await reader.stream.aclose()
        queue = node.broker.vhost("/").queues["q"]
        await until(lambda: queue.host.ready_count == 3 and len(node.server.transports) == 1)


async def test_a_defect_ends_one_connection_only(tmp_path: Path) -> None:
    """An exception that nobody expected becomes 541 for the client that caused it."""
    async with served(tmp_path) as node, client(node) as unlucky, client(node) as other:
        transport = min(node.server.transports, key=_number)

        def broken(data: bytes) -> None:
            raise ZeroDivisionError

        transport.session.receive = broken  # type: ignore[method-assign]
        await unlucky.send(method(1, commands.Queue.Declare(queue="q")))
        close = await unlucky.wait_for(commands.Connection.Close)
        assert close.reply_code == 541
        await other.ask(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)


def _number(transport: Transport) -> int:
    return transport.session.number
