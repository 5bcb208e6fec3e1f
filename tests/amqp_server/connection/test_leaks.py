"""Clients come and go, and leave nothing behind."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import pytest
import trio
from pamqp import commands, frame

from amqp_server.app import Node
from amqp_server.broker.topology.queue import Queue
from amqp_server.channel.channel import Channel
from amqp_server.channel.subscription import Subscription
from amqp_server.connection.incoming import Incoming
from amqp_server.connection.outbox import Outbox
from amqp_server.connection.session import Session
from amqp_server.connection.sockets.transport import Transport
from quorum_queue.local_host import LocalHost
from quorum_queue.machine.machine import Machine

from ..wire.published import message, method
from .node import CAPABILITIES
from .served import connect, served, until

CYCLES = 2_000
#: Clients that are connected at a time.
AT_ONCE = 8

#: All frames that a client sends, in one write: none of them needs an answer first.
_HELLO = b"AMQP\x00\x00\x09\x01" + b"".join(
    frame.marshal(each, 0)
    for each in (
        commands.Connection.StartOk({"capabilities": dict(CAPABILITIES)}, "PLAIN", "\0guest\0guest", "en_US"),
        commands.Connection.TuneOk(2047, 131_072, 0),
        commands.Connection.Open("/"),
    )
)
_WORK = method(
    1,
    commands.Channel.Open(),
    commands.Confirm.Select(),
    commands.Queue.Declare(queue="", exclusive=True),
    commands.Queue.Bind(queue="", exchange="amq.fanout", routing_key="x"),
    commands.Basic.Consume(queue=""),
    commands.Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True),
)
_CLOSE = frame.marshal(commands.Connection.Close(200, "", 0, 0), 0)


async def _cycle(node: Node, number: int) -> None:
    """Connect, declare, consume, publish to the own queue, get the message, and go: in order, abruptly, or
    closed by the node.
    """
    client = await connect(node)
    await client.send(_HELLO + _WORK + message("amq.fanout", "x").encode(1))
    await client.deliveries(1)
    if number % 4 == 0:
        await trio.aclose_forcefully(client.stream)
        return
    if number % 4 == 1:
        await client.send(method(1, commands.Basic.Ack(99)))
    elif number % 4 == 2:
        await client.send(method(1, commands.Basic.Publish(0, "missing", "", False, True)))
    await client.send(_CLOSE)
    await client.wait_for(commands.Connection.CloseOk)
    await client.stream.aclose()


async def _cycles(node: Node, count: int) -> None:
    async def some(first: int) -> None:
        for number in range(first, count, AT_ONCE):
            await _cycle(node, number)

    async with trio.open_nursery() as nursery:
        for first in range(AT_ONCE):
            nursery.start_soon(some, first)
    await until(lambda: not node.server.transports)


def _figures(node: Node) -> dict[str, int]:
    """The figures that the node counts."""
    broker = node.broker
    return {
        "sessions": len(broker.sessions),
        "queues": broker.counts.queues,
        "channels": broker.counts.channels,
        "bindings": broker.counts.bindings,
        "reply hosts": len(broker.replies),
        "transports": len(node.server.transports),
        "unsent": len(broker.turn._senders),
        "hosts with work": len(broker.turn.scheduled),
        "sessions with answers": len(broker.turn._answered),
        "confirms": len(broker.turn._confirms),
        "half open": len(node.server.half_opens),
        "open": node.server._open,
        "bodies": broker.services.memory.used,
        "queues with bodies": len(broker.services.memory._queues),
        "timers": len(broker.timers),
    }


def _objects() -> Counter[str]:
    """Objects that the collector sees, by type."""
    while gc.collect():
        pass  # objects kept by a generator that the last round closed
    return Counter(type(each).__qualname__ for each in gc.get_objects())


def _allowed(name: str) -> int:
    """Trio forgets a thousand expired deadlines at a time, each of them a scope in a tuple."""
    return 1_100 if name in ("CancelScope", "tuple") else CYCLES // 20


@pytest.mark.timeout(300)
async def test_clients_leave_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # pytest would keep the log lines.
    caplog.set_level("CRITICAL", "mqd")
    async with served(tmp_path, login_memory_s=3_600) as node:
        # Objects that are made once and kept are made before the first count.
        await _cycles(node, 200)
        figures, tasks = _figures(node), trio.lowlevel.current_statistics().tasks_living
        gc.unfreeze()
        before = _objects()
        await _cycles(node, CYCLES)
        await until(lambda: trio.lowlevel.current_statistics().tasks_living <= tasks)
        await until(lambda: _figures(node) == figures)
        # Two timers stay: the notes of the time, and the look for deliveries that wait too long for their
        # ack.
        assert figures.pop("timers") == 2
        assert set(figures.values()) == {0}
        after = _objects()
        grown = {
            name: after[name] - before[name] for name in after if after[name] - before[name] > _allowed(name)
        }
        assert not grown, f"{CYCLES} clients left these behind"
        for kind in (Session, Incoming, Transport, Outbox, Channel, Subscription, Queue, LocalHost, Machine):
            assert not [each for each in gc.get_objects() if type(each) is kind], kind
