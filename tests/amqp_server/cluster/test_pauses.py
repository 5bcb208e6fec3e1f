"""Paused queues on three nodes: whoever is asked, and whoever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pika
import pytest
from pamqp import base, commands
from pika.adapters.blocking_connection import BlockingChannel

from tests.amqp_server.cluster.ring import NAMES, PERSISTENT, Ring, publish, take
from tests.reliability.client import ChannelClosed, Client

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


def declare(ring: Ring, at: str, queue: str, kind: str, **arguments: object) -> None:
    with ring.channel(at) as channel:
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, **arguments})


def pause(ring: Ring, at: str, queue: str, *what: str) -> None:
    ring.mqctl(at, "pause_queue", queue, *what)


def resume(ring: Ring, at: str, queue: str, *what: str) -> None:
    ring.mqctl(at, "resume_queue", queue, *what)


def is_refused(channel: BlockingChannel, queue: str) -> bool:
    try:
        channel.basic_publish("", queue, b"refused", PERSISTENT, mandatory=True)
    except pika.exceptions.NackError:
        return True
    return False


@KINDS
def test_it_holds_for_clients_of_all_nodes_as_soon_as_any_node_has_answered(ring: Ring, kind: str) -> None:
    queue = f"paused-any-{kind}"
    declare(ring, "n1", queue, kind)
    channels = {name: ring.connect(name).channel() for name in NAMES}
    for channel in channels.values():
        channel.confirm_delivery()
    try:
        for asked in NAMES:
            pause(ring, asked, queue)
            for channel in channels.values():
                assert is_refused(channel, queue)
                assert channel.basic_get(queue)[0] is None
            for name in NAMES:
                row = ring.get(name, f"/api/queues/%2F/paused-any-{kind}")
                assert row["state"] == "paused" and row["deliveries_paused"] and row["publishes_paused"]
            resume(ring, asked, queue, "--publishes")
            for channel in channels.values():
                publish(channel, queue, asked.encode())
                assert channel.basic_get(queue)[0] is None
            resume(ring, asked, queue)
            assert take(channels[asked], queue, 3) == [asked.encode()] * 3
    finally:
        for channel in channels.values():
            channel.connection.close()


def test_another_leader_keeps_it_paused(ring: Ring) -> None:
    declare(ring, "n1", "paused-led", "quorum")
    leader = ring.leader("paused-led")
    other, third = (name for name in NAMES if name != leader)
    with ring.channel(other) as channel:
        got: list[bytes] = []
        channel.basic_consume(
            "paused-led", lambda ch, method, properties, body: got.append(body), auto_ack=True
        )
        pause(ring, other, "paused-led", "--deliveries")
        publish(channel, "paused-led", b"before")
        ring.nodes[leader].kill()
        try:
            publish(channel, "paused-led", b"after")
            pause(ring, third, "paused-led", "--publishes")
            assert is_refused(channel, "paused-led")
            channel.connection.process_data_events(0.3)
            assert got == []
        finally:
            ring.nodes[leader].start()
            ring.formed()
        # The node that was down has it from the log.
        ring.equal("paused-led", *NAMES)
        with ring.channel(leader) as back:
            assert is_refused(back, "paused-led")
            assert back.basic_get("paused-led")[0] is None
        resume(ring, leader, "paused-led")
        while len(got) < 2:
            channel.connection.process_data_events(1)
        assert got == [b"before", b"after"]


@KINDS
def test_all_nodes_start_again(ring: Ring, kind: str) -> None:
    queue = f"again {kind}"
    declare(ring, "n2", queue, kind)
    with ring.channel("n1") as channel:
        publish(channel, queue, b"m")
    pause(ring, "n3", queue)
    for node in ring.nodes.values():
        node.kill()
    ring.start(*NAMES)
    with ring.channel("n1") as channel:
        assert channel.basic_get(queue)[0] is None
        assert is_refused(channel, queue)
        resume(ring, "n2", queue)
        assert take(channel, queue, 1) == [b"m"]


def test_a_queue_without_a_majority_is_paused_when_it_has_one(ring: Ring) -> None:
    """The topology has one, so the change is stored."""
    arguments: dict[str, object] = {"x-quorum-initial-group-size": 1}
    declare(ring, "n1", "paused-alone", "quorum", **arguments)
    (home,) = ring.get("n1", "/api/queues/%2F/paused-alone")["members"]
    other = next(name for name in NAMES if name != home)
    with ring.channel(other) as channel:
        publish(channel, "paused-alone", b"m")
    ring.nodes[home].kill()
    try:
        status, told = ring.ask("PUT", other, "/api/queues/%2F/paused-alone/pause", {"deliveries": True})
        assert status == 503
        assert (
            "the change is stored, and takes effect as soon as queue 'paused-alone' is available"
            in told["reason"]
        )
    finally:
        ring.nodes[home].start()
        ring.formed()
    with ring.channel(other) as channel:
        pause(ring, other, "paused-alone", "--deliveries")
        assert channel.basic_get("paused-alone")[0] is None
        resume(ring, other, "paused-alone")
        assert take(channel, "paused-alone", 1) == [b"m"]


@contextmanager
def standing_still(ring: Ring, name: str) -> Iterator[None]:
    """A node that does nothing, until the others go on without it."""
    os.kill(ring.nodes[name].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(ring.nodes[name].pid, signal.SIGCONT)


def test_a_node_that_stood_still_deletes_nothing_that_was_protected_meanwhile(ring: Ring) -> None:
    names = {kind: f"protected-{kind}" for kind in ("classic", "quorum", "stream")}
    for kind, queue in names.items():
        declare(ring, "n1", queue, kind)
    with ring.channel("n1") as channel:
        channel.exchange_declare("protected", "x-super-stream", durable=True, arguments={"x-partitions": 1})
    asked: list[base.Frame] = [commands.Queue.Delete(queue=queue) for queue in names.values()]
    asked += [
        commands.Queue.Delete(queue=names["quorum"], if_empty=True),
        commands.Exchange.Delete(exchange="protected"),
    ]
    clients = [Client(ring.nodes["n3"].port) for _ in asked]
    protected = [*names.values(), "protected-0"]
    path = "/api/queues/%2F/{}/deletion/protection"
    with standing_still(ring, "n3"):
        for queue in protected:
            assert ring.ask("POST", "n1", path.format(queue))[0] == 204
        for client, method in zip(clients, asked, strict=True):
            client.method(method)
    try:
        for client in clients:
            with pytest.raises(ChannelClosed, match="Cannot delete protected"):
                client.expect(commands.Queue.DeleteOk)
    finally:
        for client in clients:
            client.close()
        for queue in protected:
            ring.ask("DELETE", "n1", path.format(queue))
        with ring.channel("n1") as channel:
            channel.exchange_delete("protected")
            for queue in names.values():
                channel.queue_delete(queue)
