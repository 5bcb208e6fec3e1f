"""Batch reads, and errors of queues, against mqd and RabbitMQ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.spark_sink.conftest import Name
from tests.spark_sink.peer import Peer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, url: str, queue: str, **options: Any) -> DataFrame:
    return spark.read.format("amqp").options(url=url, queue=queue, **options).load()


def bodies(frame: DataFrame) -> list[bytes]:
    # Not sorted by Spark: that reads twice, and the second read finds only what the first one has left.

    return [bytes(row.value) for row in frame.collect()]


def test_a_peek_leaves_everything(spark: SparkSession, url: str, peer: Peer, name: Name) -> None:
    queue = peer.queue(name())
    sent = [b"%d" % number for number in range(300)]
    peer.publish(queue, sent, message_id="m", headers={"a": "b", "n": 1}, content_type="text/plain")
    frame = read(spark, url, queue)
    assert bodies(frame) == sent
    assert bodies(frame) == sent
    row = frame.first()
    assert row is not None
    assert (row.queue, row.exchange, row.routing_key, row.message_id) == (queue, "", queue, "m")
    assert (row.headers, row.content_type, row.offset) == ({"a": "b", "n": "1"}, "text/plain", 0)
    assert [body for _, _, body in peer.take(queue, len(sent))] == sent


def test_ack_on_read_takes_everything(spark: SparkSession, url: str, peer: Peer, name: Name) -> None:
    queue = peer.queue(name())
    sent = [b"%d" % number for number in range(300)]
    peer.publish(queue, sent)
    frame = read(spark, url, queue, ack="onRead")
    assert bodies(frame) == sent
    assert bodies(frame) == []
    assert peer.take(queue) == []


def test_max_messages(spark: SparkSession, url: str, peer: Peer, name: Name) -> None:
    queue = peer.queue(name())
    peer.publish(queue, [b"1", b"2", b"3"])
    assert bodies(read(spark, url, queue, ack="onRead", maxMessages=2)) == [b"1", b"2"]
    assert [body for _, _, body in peer.take(queue, 1)] == [b"3"]


def test_an_empty_queue(spark: SparkSession, url: str, peer: Peer, name: Name) -> None:
    queue = peer.queue(name())
    assert bodies(read(spark, url, queue)) == []


def test_bodies_of_more_than_one_frame(spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    queue = mqd_peer.queue(name())
    sent = [b"a" * 3_000_000, b"", b"c" * 200_000]
    mqd_peer.publish(queue, sent)
    assert bodies(read(spark, mqd_url, queue)) == sent


def test_without_headers(spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    queue = mqd_peer.queue(name())
    mqd_peer.publish(queue, [b"x"], headers={"a": "b"})
    frame = read(spark, mqd_url, queue, includeHeaders=False)
    assert "headers" not in frame.columns and bodies(frame) == [b"x"]


def failure(frame: DataFrame) -> str:
    with pytest.raises(Exception) as raised:
        frame.collect()
    return str(raised.value)


def test_a_missing_queue(spark: SparkSession, url: str, name: Name) -> None:
    queue = name("missing")
    text = failure(read(spark, url, queue))
    assert f"queue '{queue}' is missing" in text and "create the queue first" in text


def test_no_queue_named(spark: SparkSession, mqd_url: str) -> None:
    with pytest.raises(Exception, match="option 'queue' is missing"):
        spark.read.format("amqp").options(url=mqd_url).load()


def test_a_wrong_password(spark: SparkSession, url: str, name: Name) -> None:
    text = failure(read(spark, url, name(), password="wrong-one"))
    assert "login refused for user 'guest'" in text and "wrong-one" not in text


def test_nobody_listens(spark: SparkSession, name: Name) -> None:
    text = failure(read(spark, "amqp://guest:guest@127.0.0.1:1/", name()))
    assert "cannot connect to the broker" in text and "127.0.0.1:1" in text


def test_an_exclusive_queue_of_another(spark: SparkSession, url: str, peer: Peer, name: Name) -> None:
    queue = name()
    peer.channel.queue_declare(queue, exclusive=True)
    assert "exclusive to the connection that declared it" in failure(read(spark, url, queue))
