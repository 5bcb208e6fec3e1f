"""What happens to queues between a publish of a transaction and its commit: the rows of docs/transactions.md,
on one node and on three, where the queues are on other nodes than the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from conformance_tests.expect import eventually
from conformance_tests.patience import open_connection
from tests.amqp_server.cluster.ring import PERSISTENT, Ring
from tests.reliability.node import Node

QUEUES = ("tx source", "tx target", "tx other")


class Place:
    """A client's node, and the node with the queues."""

    def __init__(self, ring: Ring | None, node: Node | None) -> None:
        self._ring, self._node = ring, node

    @contextmanager
    def channel(self, *, away: bool = False) -> Iterator[BlockingChannel]:
        if self._ring is not None:
            with self._ring.connection("n3" if away else "n2") as connection:
                yield connection.channel()
        else:
            assert self._node is not None
            with open_connection(f"amqp://guest:guest@127.0.0.1:{self._node.port}/%2F") as connection:
                yield connection.channel()

    def mqctl(self, *arguments: str) -> None:
        if self._ring is not None:
            self._ring.mqctl("n1", *arguments)
        else:
            assert self._node is not None
            self._node.mqctl(*arguments)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("alone")) as node:
        yield node


@pytest.fixture(params=["one", "three"])
def place(request: pytest.FixtureRequest, ring: Ring, alone: Node, tmp_path: Path) -> Iterator[Place]:
    found = Place(ring, None) if request.param == "three" else Place(None, alone)
    yield found
    with found.channel() as channel:
        for queue in QUEUES:
            channel.queue_delete(queue)


@pytest.fixture(params=["classic", "quorum"])
def declare(request: pytest.FixtureRequest, place: Place) -> Callable[..., str]:
    """Declares a queue at the node that is not the client's."""

    def declared(queue: str, **arguments: Any) -> str:
        given = {name.replace("_", "-"): value for name, value in arguments.items()}
        with place.channel(away=True) as channel:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": request.param} | given)
        return queue

    return declared


@contextmanager
def transaction(place: Place) -> Iterator[BlockingChannel]:
    with place.channel() as channel:
        channel.tx_select()
        yield channel


def publish(channel: BlockingChannel, queue: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))


def taken(place: Place, queue: str, count: int) -> list[bytes]:
    """Return what the queue has, which is so many messages before long."""
    with place.channel(away=True) as channel:
        eventually(lambda: channel.queue_declare(queue, passive=True).method.message_count == count)
        return [channel.basic_get(queue, auto_ack=True)[2] for _ in range(count)]


def test_a_purge_leaves_the_transaction(place: Place, declare: Callable[..., str]) -> None:
    target = declare("tx target")
    with transaction(place) as channel:
        publish(channel, target, b"kept")
        with place.channel(away=True) as other:
            publish(other, target, b"purged")
            eventually(lambda: other.queue_declare(target, passive=True).method.message_count == 1)
            assert other.queue_purge(target).method.message_count == 1
        channel.tx_commit()
    assert taken(place, target, 1) == [b"kept"]


def test_a_queue_that_was_deleted_and_declared_anew_gets_it(
    place: Place, declare: Callable[..., str]
) -> None:
    target, other = declare("tx target"), declare("tx other")
    with transaction(place) as channel:
        publish(channel, target, b"1")
        publish(channel, other, b"2")
        with place.channel(away=True) as away:
            away.queue_delete(target)
            away.queue_delete(other)
        declare(target)
        channel.tx_commit()
        declare(other)
    assert taken(place, target, 1) == [b"1"]
    assert taken(place, other, 0) == []


def test_acks_of_a_queue_that_was_deleted_change_nothing(place: Place, declare: Callable[..., str]) -> None:
    source, target = declare("tx source"), declare("tx target")
    with transaction(place) as channel:
        publish(channel, source, b"work")
        channel.tx_commit()
        tag = channel.basic_get(source)[0].delivery_tag
        publish(channel, target, b"result")
        channel.basic_ack(tag)
        with place.channel(away=True) as away:
            away.queue_delete(source)
        channel.tx_commit()
    assert taken(place, target, 1) == [b"result"]


def test_a_policy_at_the_decision_counts(place: Place, declare: Callable[..., str]) -> None:
    target = declare("tx target")
    with transaction(place) as channel:
        publish(channel, target, b"1", b"2", b"3")
        place.mqctl("set_policy", "short", "^tx target$", '{"max-length": 2}', "--apply-to", "queues")
        channel.tx_commit()
    assert taken(place, target, 2) == [b"2", b"3"]
    place.mqctl("clear_policy", "short")
    with transaction(place) as channel:
        publish(channel, target, b"1", b"2", b"3")
        place.mqctl("set_policy", "short", "^tx target$", '{"max-length": 2, "overflow": "reject-publish"}')
        with pytest.raises(ChannelClosedByBroker, match="partial tx completion") as closed:
            channel.tx_commit()
        assert closed.value.reply_code == 406
    place.mqctl("clear_policy", "short")


def test_what_a_limit_drops_leaves_at_the_decision(place: Place, declare: Callable[..., str]) -> None:
    other = declare("tx other")
    target = declare("tx target", x_max_length=2, x_dead_letter_exchange="", x_dead_letter_routing_key=other)
    with transaction(place) as channel:
        publish(channel, target, b"0")
        channel.tx_commit()
        publish(channel, target, b"1", b"2")
        channel.basic_qos(prefetch_count=1)
        assert taken(place, other, 0) == []
        channel.tx_commit()
    assert taken(place, other, 1) == [b"0"]
    assert taken(place, target, 2) == [b"1", b"2"]


def test_a_rejected_message_becomes_a_dead_letter_once(place: Place, declare: Callable[..., str]) -> None:
    other, target = declare("tx other"), declare("tx target")
    source = declare("tx source", x_dead_letter_exchange="", x_dead_letter_routing_key=other)
    with transaction(place) as channel:
        publish(channel, source, b"work")
        channel.tx_commit()
        for end in (channel.tx_rollback, channel.tx_commit):
            if end == channel.tx_rollback:
                tag = channel.basic_get(source)[0].delivery_tag
            channel.basic_reject(tag, requeue=False)
            publish(channel, target, b"refused")
            end()
    assert taken(place, other, 1) == [b"work"]
    assert taken(place, target, 1) == [b"refused"]
    assert taken(place, source, 0) == []


def test_a_duplicate_is_dropped_at_the_decision(place: Place, declare: Callable[..., str]) -> None:
    target, other = declare("tx target", x_deduplication=True), declare("tx other")
    with transaction(place) as channel:
        for attempt in (b"first", b"again"):
            publish(channel, target, attempt, headers={"x-deduplication-id": "1"})
            publish(channel, other, attempt)
            channel.tx_commit()
    assert taken(place, target, 1) == [b"first"]
    assert taken(place, other, 2) == [b"first", b"again"]


def test_an_empty_queue_with_an_open_transaction_may_be_deleted(
    place: Place, declare: Callable[..., str]
) -> None:
    """Only what waits for a decision counts: what is not committed yet is with the client's node."""
    target, other = declare("tx target"), declare("tx other")
    with transaction(place) as channel:
        publish(channel, target, b"lost")
        publish(channel, other, b"kept")
        with place.channel(away=True) as away:
            away.queue_delete(target, if_empty=True)
        channel.tx_commit()
    assert taken(place, other, 1) == [b"kept"]


def test_a_direct_reply_comes_after_the_decision(place: Place, declare: Callable[..., str]) -> None:
    source, target = declare("tx source"), declare("tx target")
    replies: list[bytes] = []
    with place.channel(away=True) as asking, transaction(place) as channel:
        asking.basic_consume("amq.rabbitmq.reply-to", lambda *got: replies.append(got[3]), auto_ack=True)
        asking.basic_publish(
            "", source, b"question", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", delivery_mode=2)
        )
        eventually(lambda: channel.queue_declare(source, passive=True).method.message_count == 1)
        method, properties, _ = channel.basic_get(source)
        channel.basic_publish("", properties.reply_to, b"answer")
        publish(channel, target, b"result")
        channel.basic_ack(method.delivery_tag)
        channel.basic_qos(prefetch_count=1)
        asking.connection.process_data_events(0.2)
        assert replies == []
        channel.tx_commit()

        def comes() -> bool:
            asking.connection.process_data_events(0.05)
            return replies == [b"answer"]

        eventually(comes)
    assert taken(place, target, 1) == [b"result"]


def test_partitions_that_are_added_get_nothing_of_it(place: Place) -> None:
    with place.channel() as channel:
        arguments = {"x-partitions": 1}
        channel.exchange_declare("tx super", "x-super-stream", durable=True, arguments=arguments)
        channel.tx_select()
        for number in range(10):
            channel.basic_publish("tx super", str(number), b"%d" % number, PERSISTENT)
        place.mqctl("add_partitions", "tx super", "2")
        channel.tx_commit()
        counts = [
            channel.queue_declare(f"tx super-{number}", passive=True).method.message_count
            for number in range(3)
        ]
        assert counts == [10, 0, 0]
        channel.exchange_delete("tx super")
