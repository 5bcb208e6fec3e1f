"""A session that goes on in another process: its client gets the same answers as if it had stayed.

Here it goes from one transport to another one of the same node, whenever that is allowed, with all that
travels between processes: the descriptor, the state as bytes, and what was read last.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
from pamqp import base, commands

from amqp_server.broker.dead_letter import parse_head
from amqp_server.connection.handed_over import decode, encode, is_quiet, state_of, take_over
from amqp_server.connection.sockets.client_wire import ClientWire
from amqp_server.connection.sockets.transport import Transport
from amqp_server.wire import content
from quorum_queue.local_host import LocalHost

from ..wire.published import message, method
from .test_poller import Client, PolledNode

BODY = b"b" * 300
SEEDS = range(60)
STEPS = 40


@contextmanager
def polled_node() -> Iterator[PolledNode]:
    node = PolledNode()
    node.broker.access.users.put("guest", "")
    try:
        yield node
    finally:
        node.poller.end_all(node.transports)
        node.poller.close()


@pytest.fixture
def node() -> Iterator[PolledNode]:
    with polled_node() as node:
        yield node
        for client in node.clients:
            client.sock.close()


class Movers:
    """See connection.sockets.transport.Affinity."""

    def __init__(self, node: PolledNode, moves: bool) -> None:
        self._node = node
        self._wanted = moves
        self.count = self.refused = 0

    def moves(self, transport: Transport, data: bytes) -> bool:
        session = transport.session
        if not self._wanted or not (transport.is_quiet and is_quiet(session)):
            self.refused += 1
            return False
        state = decode(encode(state_of(session, data)))
        sock = socket.socket(fileno=os.dup(transport.fd))
        session.given_away()
        transport.end()
        place = self._node.half_opens.admit("client", 0.0)
        assert place is not None
        later = Transport(self._node, ClientWire(sock), state.peer, state.name, place)
        self._node.transports[later] = None
        take_over(later.session, state)
        later.contain(partial(later.go_on_with, state.unread))
        later.affinity = self
        self.count += 1
        return True


class Script:
    """What a client does, by a seed: on two channels, one of them in confirm mode."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._consumers: dict[int, list[str]] = {1: [], 2: []}
        self._number = 0

    def steps(self) -> Iterator[bytes]:
        yield method(2, commands.Channel.Open()) + method(2, commands.Confirm.Select())
        for channel, queue in ((1, "q"), (2, "r")):
            yield method(channel, commands.Queue.Declare(queue=queue, durable=queue == "q"))
        for _ in range(STEPS):
            yield b"".join(self._step() for _ in range(self._random.choice((1, 1, 1, 3))))

    def _step(self) -> bytes:
        channel = self._random.choice((1, 2))
        steps = (
            *3 * (partial(self._publish, channel),),
            *2 * (partial(self._get, channel),),
            partial(self._consume, channel),
            partial(self._cancel, channel),
            partial(self._settle, channel),
            partial(self._method, channel, commands.Queue.Declare(queue="q", passive=True)),
            partial(self._method, channel, self._qos()),
            partial(self._method, channel, commands.Basic.Recover(requeue=True)),
            partial(self._method, 1, commands.Queue.Purge(queue="r")),
        )
        return self._random.choice(steps)()

    def _method(self, channel: int, asked: base.Frame) -> bytes:
        return method(channel, asked)

    def _qos(self) -> base.Frame:
        shared = self._random.random() < 0.4
        return commands.Basic.Qos(prefetch_count=self._random.choice((0, 1, 5)), global_=shared)

    def _queue(self) -> str:
        """A name, or nothing: the queue that the channel declared last."""
        return self._random.choice(("q", "q", "r", ""))

    def _publish(self, channel: int) -> bytes:
        self._number += 1
        body = b"%d " % self._number + BODY[: self._random.choice((0, 1, 300))]
        key = self._random.choice("qqrx")
        return message("", key, body).encode(channel)

    def _get(self, channel: int) -> bytes:
        return method(channel, commands.Basic.Get(queue=self._queue(), no_ack=self._random.random() < 0.7))

    def _consume(self, channel: int) -> bytes:
        self._number += 1
        tag = f"c{self._number}"
        self._consumers[channel].append(tag)
        no_ack = self._random.random() < 0.5
        return method(channel, commands.Basic.Consume(queue=self._queue(), consumer_tag=tag, no_ack=no_ack))

    def _cancel(self, channel: int) -> bytes:
        tags = self._consumers[channel]
        return method(channel, commands.Basic.Cancel(tags.pop())) if tags else b""

    def _settle(self, channel: int) -> bytes:
        """Of what the client holds, all; a channel that holds nothing takes this without an error."""
        nacks = self._random.random() < 0.3
        asked = commands.Basic.Nack(0, multiple=True) if nacks else commands.Basic.Ack(0, multiple=True)
        return method(channel, asked)


def run(seed: int, *, moves: bool) -> tuple[bytes, Movers, list[int]]:
    """Return what the client got, who moved it, and what the node counts at the end."""
    with polled_node() as node:
        return _run(node, seed, moves=moves)


def _run(node: PolledNode, seed: int, *, moves: bool) -> tuple[bytes, Movers, list[int]]:
    movers = node.affinity = Movers(node, moves)
    client = Client(node, "client")
    cuts = random.Random(seed)
    for data in Script(seed).steps():
        # Some steps come in pieces, so that frames are cut.
        at = cuts.randrange(len(data) + 1) if cuts.random() < 0.3 else len(data)
        for piece in (data[:at], data[at:]):
            if piece:
                client.send(piece)
                node.settle()
    client.read()
    got = client.output
    broker = node.broker
    counted = [len(broker.sessions), broker.counts.channels, len(node.transports)]
    client.sock.close()
    node.settle()
    assert len(broker.sessions) == broker.counts.channels == len(node.transports) == 0
    return got, movers, counted


@pytest.mark.parametrize("seed", SEEDS)
def test_its_client_notices_nothing(seed: int) -> None:
    stayed, _, counted = run(seed, moves=False)
    moved, movers, counted_after = run(seed, moves=True)
    assert moved == stayed
    assert counted_after == counted == [1, 2, 1]
    assert movers.count >= 3


def test_it_stays_while_it_holds_something(node: PolledNode) -> None:
    movers = node.affinity = Movers(node, True)
    client = node.client()
    client.call(commands.Queue.Declare(queue="q"))
    client.send(*(message("", "q", b"%d" % number).encode(1) for number in range(3)))
    node.settle()
    before = movers.count
    assert before

    def stays(*asked: base.Frame) -> None:
        """This keeps the connection: the next read does not move it."""
        client.call(*asked)
        count = movers.count
        client.call(commands.Queue.Declare(queue="q", passive=True))
        assert movers.count == count, asked

    stays(commands.Basic.Get(queue="q"))
    client.call(commands.Basic.Ack(1))
    stays(commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True))
    client.call(commands.Basic.Cancel("c"))
    stays(commands.Queue.Declare(queue="own", exclusive=True))
    client.call(commands.Queue.Delete(queue="own"))
    stays(commands.Basic.Consume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True))
    client.call(commands.Basic.Cancel("r"))
    stays(commands.Tx.Select())


def test_its_events_have_the_pids_with_which_it_began() -> None:
    node = PolledNode(event_exchange_vhost="/")
    node.broker.access.users.put("guest", "")
    tap = node.client("tap")
    tap.call(commands.Queue.Declare(queue="tap"))
    tap.call(commands.Queue.Bind(queue="tap", exchange="amq.rabbitmq.event", routing_key="#"))
    client = node.client("1:1 -> 2:2")
    session = client.transport.session
    session.opened()
    movers = client.transport.affinity = Movers(node, True)
    client.send(method(2, commands.Channel.Open()))
    node.settle()
    assert movers.count == 1
    client.call(commands.Queue.Declare(queue="own", exclusive=True))
    client.call(commands.Basic.Consume(queue="own", consumer_tag="c"))
    client.sock.close()
    node.settle()
    told: dict[str, list[Any]] = {}
    host = node.broker.vhost("/").queues["tap"].host
    assert isinstance(host, LocalHost)
    for run in host.machine.ready.runs():
        for index, item in enumerate(run.contents or ()):
            _, key = parse_head(run.head_of(index))
            payload, _ = content.split(item)
            told.setdefault(key, []).append(content.Properties.parse(payload).headers)
    connection, one, two = (f"<{node.config.node}.{session.number}.{channel}>" for channel in range(3))
    assert [each["pid"] for each in told["connection.created"]] == [connection]
    assert [each["pid"] for each in told["connection.closed"]] == [connection]
    assert [(each["pid"], each["connection"]) for each in told["channel.created"]] == [(two, connection)]
    assert [each["pid"] for each in told["channel.closed"]] == [one, two]
    assert [each["owner_pid"] for each in told["queue.created"]] == [connection]
    assert [each["channel"] for each in told["consumer.created"]] == [one]
    # Nothing is kept of a session that has ended.
    assert node.broker.events is not None and node.broker.events.began_as == {}
    node.poller.end_all(node.transports)
    node.poller.close()
    tap.sock.close()


@pytest.mark.parametrize("what", ["user", "vhost"])
def test_it_ends_if_what_it_needs_was_deleted_on_its_way(node: PolledNode, what: str) -> None:
    session = node.client().transport.session
    state = decode(encode(state_of(session, b"")))
    if what == "user":
        node.broker.access.users.delete("guest")
    else:
        state = msgspec.structs.replace(state, vhost="gone")
    with pytest.raises(KeyError):
        take_over(node.client("later").transport.session, state)
