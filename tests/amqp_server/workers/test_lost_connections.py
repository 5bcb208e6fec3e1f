"""A connection that is lost between the workers of a node, or with one of them, ends for those who listen."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqp_server.connection.handed_over import (
    ChannelState,
    Farewell,
    SessionState,
    decode_farewell,
    was_lost,
)
from amqp_server.workers.handing_over import MESSAGE_BYTES, HandingOver
from amqp_server.workers.open_connections import SPARE_BYTES, OpenConnections
from amqp_server.workers.worker import CONNECTION

from ...reliability.node import Node
from .test_node import close, connect, one_at_each, pids, until, workers

EVENTS = "amq.rabbitmq.event"


def told(number: int) -> dict[str, object]:
    return {"name": f"client {number}", "client_properties": {"product": "x" * 100}}


def by_another_process(kept: OpenConnections, *ends: int, count: int = 3, cut: int = 0) -> None:
    """Connections begin and end in a process that is killed then; `cut` bytes are not written any more."""
    child = os.fork()
    if not child:
        kept.take()
        for number in range(count):
            kept.begun(number, told(number))
        for number in ends:
            kept.ended(number)
        if cut:
            file = kept._files[kept._which[0]]
            os.ftruncate(file, os.fstat(file).st_size - cut)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.fixture
def kept() -> Iterator[OpenConnections]:
    found = OpenConnections()
    yield found
    for file in found._files:
        os.close(file)


def test_open_connections_outlive_their_process(kept: OpenConnections) -> None:
    by_another_process(kept, 1)
    assert kept.take() == [told(0), told(2)]
    assert kept.take() == []
    by_another_process(kept)
    assert len(kept.take()) == 3


def test_a_line_that_was_half_written_does_not_count(kept: OpenConnections) -> None:
    for cut in (1, 100, 10):
        by_another_process(kept, cut=cut)
        assert kept.take() == [told(0), told(1)]


def test_a_file_grows_with_open_connections_only(kept: OpenConnections) -> None:
    kept.take()
    kept.begun(0, told(0))
    for number in range(1, 5_000):
        kept.begun(number, told(number))
        kept.ended(number)
    assert sum(os.fstat(file).st_size for file in kept._files) < 2 * SPARE_BYTES
    assert kept.take() == [told(0)]


def state(**properties: Any) -> SessionState:
    return SessionState(
        name="there -> here",
        peer="127.0.0.1",
        given_name="",
        connected_at_ms=0,
        username="guest",
        access="guest",
        identity="",
        mechanism="PLAIN",
        properties=properties,
        capabilities={},
        vhost="/",
        frame_max=131_072,
        channel_max=100,
        heartbeat_s=60,
        channels=(ChannelState(1, 1, 0, 0, "", 0),),
        began_as=("n1", 7),
        unread=b"",
    )


def test_a_connection_without_descriptors_is_told_of() -> None:
    """The process that is to have it has no descriptors left."""
    lost: list[Farewell] = []
    outbox, inbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with outbox, inbox, socket.socket() as client:
        turn = Mock(run=lambda call, *arguments: call(*arguments))
        worker = Mock()
        worker.config.node = "n1"
        handing_over = HandingOver(worker, Mock(), turn, Mock(), Mock(), Mock(), lost.append)
        handing_over._send(client.fileno(), state(product="pika"), outbox)
        message, descriptors, _, _ = socket.recv_fds(inbox, MESSAGE_BYTES, 2)
        assert message.startswith(CONNECTION) and len(descriptors) == 2
        os.close(descriptors.pop())
        handing_over._take(message, descriptors)
    assert lost == [Farewell("there -> here", "guest", ("n1", 7), {"product": "pika"})]


def test_a_connection_that_cannot_go_on_is_told_of() -> None:
    """Its vhost or its user was deleted while it was on its way, say."""
    events = Mock(wanted=True)
    was_lost(Mock(events=events, replication=Mock(node="n1/1")), Farewell.of(state(product="pika")))
    headers = {
        "name": "there -> here",
        "pid": "<n1.7.0>",
        "node": "n1/1",
        "client_properties": {"product": "pika"},
        "user_who_performed_action": "guest",
    }
    events.tell.assert_called_once_with("connection.closed", headers)


def test_a_farewell_is_short() -> None:
    encoded = Farewell.of(state(product="x" * 100_000)).encoded(1_000)
    assert len(encoded) < 1_000
    assert decode_farewell(encoded).properties == {}


def events_of(channel: BlockingChannel) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    while True:
        method, properties, _ = channel.basic_get("ends", auto_ack=True)
        if method is None:
            return found
        found.append((method.routing_key, properties.headers))


def test_connections_end_with_a_killed_worker(tmp_path: Path) -> None:
    with workers(tmp_path, 2, "--event-exchange-vhost", "/") as node:
        begun, ended = _kill(node, "n1/1")
        # One has moved from the worker that stays, one has ended before; the listener's own stays.
        assert sorted(begun) == sorted(ended)
        assert len(set(ended)) == len(ended) >= 3


def _kill(node: Node, name: str) -> tuple[list[str], list[str]]:
    """Kill a worker with two clients; return the pids of connections that have begun and ended."""
    begun: list[str] = []
    ended: list[str] = []

    def have(some: list[str], count: int) -> bool:
        for key, headers in events_of(listening):
            (begun if key == "connection.created" else ended).append(headers["pid"])
        return len(some) >= count

    with one_at_each(node, 2) as opened:
        listening = opened.pop("n1")
        listening.queue_declare("ends")
        listening.queue_bind("ends", EVENTS, "connection.*")
        opened[name].queue_declare("far", durable=True)
        moved, before = connect(node), connect(node)
        moved.channel().queue_declare("far", passive=True)
        moved.channel().basic_consume("far", lambda *_: None)
        before.close()
        # That of the client at the worker itself began before anybody listened.
        until("all have begun", partial(have, begun, 2))
        os.kill(pids(node, 2)[name], signal.SIGKILL)
        until("all have ended", partial(have, ended, 3))
        close(moved)
        first = next(pid for pid in ended if pid not in begun)
        begun.append(first)
    return begun, ended
