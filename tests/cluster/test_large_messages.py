"""Messages up to the largest size reach every kind of queue on three nodes, and a larger one stops none."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pika
import pytest

from conformance_tests.patience import PATIENCE_S
from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import wait_for

MIB = 1 << 20
#: The largest message of a cluster's log before; the largest one now (message_bytes_max).
EARLIER, LIMIT = 64 * MIB, 128 * MIB
PERSISTENT = pika.BasicProperties(delivery_mode=2)
KINDS: dict[str, dict[str, Any]] = {
    "quorum": {"x-queue-type": "quorum"},
    "stream": {"x-queue-type": "stream"},
    "classic": {},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[MqdCluster]:
    # The limits of links are no limits of messages.
    limits = ("--cluster-queue-bytes-max", str(MIB), "--cluster-frame-bytes-max", str(MIB))
    with MqdCluster(("n1", "n2", "n3"), *limits) as started:
        yield started


def connect(cluster: MqdCluster, node: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1", cluster.port(node), heartbeat=0, blocked_connection_timeout=PATIENCE_S
        )
    )


def confirming(connection: pika.BlockingConnection) -> Any:
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def body(size: int) -> bytes:
    return size.to_bytes(8, "big") * (size // 8) + b"x" * (size % 8)


def read(cluster: MqdCluster, node: str, queue: str, kind: str, count: int) -> list[str]:
    """Return the digests of this many messages."""
    found: list[str] = []
    connection = connect(cluster, node)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=count)
    arguments = {"x-stream-offset": "first"} if kind == "stream" else None

    def deliver(channel: Any, method: Any, properties: Any, content: bytes) -> None:
        found.append(sha256(content).hexdigest())
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            channel.stop_consuming()

    channel.basic_consume(queue, deliver, arguments=arguments)
    channel.start_consuming()
    connection.close()
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_around_the_limits(cluster: MqdCluster, kind: str) -> None:
    queue = f"large-{kind}"
    with connect(cluster, "n1") as first:
        first.channel().queue_declare(queue, durable=True, arguments=KINDS[kind])
    sizes = [1, EARLIER - 1, EARLIER, EARLIER + 1, LIMIT - 1, LIMIT, 2]
    # A member that is away gets them afterwards.
    away = "n3"
    cluster.kill(away)
    connection = connect(cluster, "n2")
    channel = confirming(connection)
    for size in sizes[:-1]:
        channel.basic_publish("", queue, body(size), PERSISTENT)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.basic_publish("", queue, body(LIMIT + 1), PERSISTENT)
    assert refused.value.reply_code == 406
    assert "larger than configured max size" in refused.value.reply_text
    # Nothing has stopped.
    confirming(connection).basic_publish("", queue, body(sizes[-1]), PERSISTENT)
    connection.close()
    cluster.launch(away)
    cluster.ready(away)
    assert read(cluster, away, queue, kind, len(sizes)) == [sha256(body(size)).hexdigest() for size in sizes]
    if kind != "classic":

        def caught_up() -> bool:
            members = cluster.members(queue)
            return len(members) == 3 and len({member.applied for member in members}) == 1

        wait_for("all members have everything", caught_up)
    for name in cluster.names:
        assert cluster.failed(name) == {}
        assert "reads too slowly" not in cluster.log(name)
    with connect(cluster, "n1") as last:
        last.channel().queue_delete(queue)


@pytest.mark.long
def test_dead_letters_and_transactions(cluster: MqdCluster) -> None:
    """A dead letter is larger than its message was, and a transaction has large messages."""
    connection = connect(cluster, "n2")
    channel = connection.channel()
    for name, target in (("source", "letters"), ("letters", "")):
        more = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target} if target else {}
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", **more})
    channel.tx_select()
    channel.basic_publish("", "source", body(LIMIT - MIB), PERSISTENT)
    channel.basic_publish("", "source", body(10), PERSISTENT)
    channel.tx_commit()
    other = connection.channel()
    for size in (LIMIT - MIB, 10):
        method, _, content = other.basic_get("source")
        assert len(content) == size
        other.basic_nack(method.delivery_tag, requeue=False)
    # On a slow disk the leader may change in between, and two nodes send these letters.
    expected = {sha256(body(size)).hexdigest() for size in (LIMIT - MIB, 10)}
    assert set(read(cluster, "n3", "letters", "quorum", 2)) == expected
    connection.close()
    for name in cluster.names:
        assert cluster.failed(name) == {}
