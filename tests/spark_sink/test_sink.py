"""Spark writes: `df.write` and `df.writeStream`, with faults and bad input."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark_sink.conftest import Name
from tests.spark_sink.faulty import AFTER, COMMIT, HALF, FaultyDataSource
from tests.spark_sink.peer import Peer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 200
QUERY_S = 150
DELIVERIES = ("confirm", "exactly-once")


def numbers(spark: SparkSession, count: int = ROWS) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("cast(id as string) as value")


def expected(count: int = ROWS) -> set[bytes]:
    return {str(number).encode() for number in range(count)}


def judge(peer: Peer, queue: str, delivery: str) -> None:
    """Check that nothing is lost, that exactly-once shows no duplicate, and confirm only one with the id of
    an earlier message.
    """
    taken = peer.take(queue, ROWS)
    assert {body for _, _, body in taken} == expected()
    assert len({properties.message_id for _, properties, _ in taken}) == ROWS
    if delivery == "exactly-once":
        assert len(taken) == ROWS
    else:
        assert len(taken) > ROWS  # otherwise the fault did not happen


def test_every_column_reaches_the_consumer(spark: SparkSession, url: str, peer: Peer, name: Name) -> None:
    queue = peer.queue(name())
    moment = dt.datetime(2024, 2, 29, 12, 0, 30, tzinfo=dt.UTC)
    row = {
        "value": bytearray(b"\x00\xff"),
        "exchange": "",
        "routing_key": queue,
        "headers": {"a": "1", "b": None},
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "delivery_mode": 1,
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": moment,
        "type": "t",
        "user_id": "guest",
        "app_id": "app",
    }
    schema = (
        "value binary, exchange string, routing_key string, headers map<string,string>, content_type string, "
        "content_encoding string, delivery_mode int, priority int, correlation_id string, reply_to string, "
        "expiration string, message_id string, timestamp timestamp, type string, user_id string, app_id string"
    )
    frame = spark.createDataFrame([tuple(row.values())], schema)
    frame.write.format("amqp").option("url", url).mode("append").save()
    ((method, properties, body),) = peer.take(queue, 1)
    assert (body, method.exchange, method.routing_key) == (b"\x00\xff", "", queue)
    found = {name: getattr(properties, name) for name in row if hasattr(properties, name)}
    wanted = {name: value for name, value in row.items() if name in found}
    assert found == wanted | {"timestamp": int(moment.timestamp())}
    assert len(found) == 13


@pytest.mark.parametrize("fault", [HALF, AFTER])
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_batch_whose_tasks_die_once(
    spark: SparkSession, url: str, peer: Peer, name: Name, delivery: str, fault: str, tmp_path: Path
) -> None:
    spark.dataSource.register(FaultyDataSource)
    queue = peer.queue(name())
    options = {
        "url": url,
        "routingKey": queue,
        "delivery": delivery,
        "fault": fault,
        "once": str(tmp_path / "once"),
    }
    if delivery == "exactly-once":
        options |= {"txnAppId": queue, "txnVersion": "1"}
    numbers(spark).write.format("amqp_faulty").options(**options).mode("append").save()
    judge(peer, queue, delivery)


def stream(
    spark: SparkSession, directory: Path, url: str, queue: str, form: str = "amqp", **options: str
) -> None:
    """Write the directory to the end, in micro-batches of one file each, from its checkpoint on."""
    lines = (
        spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(directory / "in"))
    )
    query = (
        lines.repartition(2)
        .writeStream.format(form)
        .options(url=url, routingKey=queue, **options)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(QUERY_S)
    finally:
        query.stop()


def lines(directory: Path) -> None:
    (directory / "in").mkdir()
    for start in range(0, ROWS, 100):
        text = "\n".join(str(number) for number in range(start, start + 100))
        (directory / "in" / f"{start}.txt").write_text(text)


@pytest.mark.parametrize("fault", [AFTER, COMMIT])
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("url", ["mqd"], indirect=True)
def test_a_stream_with_a_fault(
    spark: SparkSession, url: str, peer: Peer, name: Name, tmp_path: Path, delivery: str, fault: str
) -> None:
    from pyspark.errors import StreamingQueryException

    spark.dataSource.register(FaultyDataSource)
    queue = peer.queue(name())
    lines(tmp_path)
    options = {"delivery": delivery, "fault": fault, "once": str(tmp_path / "once")}
    if fault == COMMIT:
        with pytest.raises(StreamingQueryException):
            stream(spark, tmp_path, url, queue, "amqp_faulty", **options)
    stream(spark, tmp_path, url, queue, "amqp_faulty", **options)
    judge(peer, queue, delivery)


@pytest.mark.parametrize("url", ["rabbitmq"], indirect=True)
def test_a_stream_to_a_stock_broker_whose_commit_fails(
    spark: SparkSession, url: str, peer: Peer, name: Name, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    spark.dataSource.register(FaultyDataSource)
    queue = peer.queue(name())
    lines(tmp_path)
    options = {"delivery": "exactly-once", "fault": COMMIT, "once": str(tmp_path / "once")}
    with pytest.raises(StreamingQueryException):
        stream(spark, tmp_path, url, queue, "amqp_faulty", **options)
    stream(spark, tmp_path, url, queue, "amqp_faulty", **options)
    judge(peer, queue, "exactly-once")


def test_a_batch_within_foreach_batch_by_name_and_version(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name, tmp_path: Path
) -> None:
    queue, application = mqd_peer.queue(name()), name("app")

    def write(frame: DataFrame, batch: int) -> None:
        for _ in range(2):
            frame.coalesce(1).write.format("amqp").options(
                url=mqd_url,
                routingKey=queue,
                delivery="exactly-once",
                txnAppId=application,
                txnVersion=batch,
            ).mode("append").save()

    lines(tmp_path)
    source = spark.readStream.schema("value string").text(str(tmp_path / "in"))
    query = source.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "c"))
    assert query.trigger(availableNow=True).start().awaitTermination(QUERY_S)
    assert mqd_peer.bodies(queue, ROWS) == Counter(expected())


def test_complete_mode_writes_the_whole_result(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name, tmp_path: Path
) -> None:
    queue = mqd_peer.queue(name())
    lines(tmp_path)
    source = (
        spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    )
    counted = source.groupBy().count().selectExpr("cast(count as string) as value")
    query = counted.writeStream.format("amqp").outputMode("complete").options(url=mqd_url, routingKey=queue)
    query.option("checkpointLocation", str(tmp_path / "c"))
    assert query.trigger(availableNow=True).start().awaitTermination(QUERY_S)
    assert [body for _, _, body in mqd_peer.take(queue, 2)] == [b"100", b"200"]


@pytest.mark.parametrize(
    ("options", "select", "text"),
    [
        ({"url": "http://x"}, "'a' value", "option 'url': 'url' must begin with amqp://"),
        ({"url": "amqp://127.0.0.1:1"}, "'a' value", "cannot connect to the broker .see the option url"),
        ({"password": "wrong"}, "'a' value", "login refused for user 'guest'"),
        ({"vHst": "x"}, "'a' value", "no option 'vhst'; did you mean 'vhost'"),
        ({"exchange": "nowhere"}, "'a' value", "option 'exchange': 404 NOT_FOUND - no exchange 'nowhere'"),
        ({"routingKey": "nowhere"}, "'a' value", "option 'routingKey': 404 NOT_FOUND - no queue 'nowhere'"),
        ({}, "'a' body", "no column 'body'"),
        ({}, "1 value", "column 'value' is int and must be string or binary"),
        ({}, "'a' value, array(1) headers", "an array of headers holds struct<key, value>"),
        ({}, "'a' value, map('a', array(1)) headers", "column 'headers' has values of type array<int>"),
        ({}, "'a' value, 1 routing_key", "column 'routing_key' is int and must be string"),
        ({}, "'a' value, 1L queue", "says where a message came from and cannot be written"),
        ({}, "cast(null as string) value", "column 'value' in row 0 of partition 0 is null"),
        (
            {},
            "'a' value, repeat('é', 128) routing_key",
            "column 'routing_key' in row 0 .* longer than 255 bytes",
        ),
        ({"maxMessageBytes": "9"}, "'0123456789' value", "column 'value' in row 0 .* longer than 9 bytes"),
        ({}, "'a' value, 'nobody' routing_key", "came back from .* with routing key 'nobody'.* 312 NO_ROUTE"),
    ],
)
def test_bad_input_is_one_clear_error(
    spark: SparkSession,
    mqd_url: str,
    mqd_peer: Peer,
    name: Name,
    options: dict[str, str],
    select: str,
    text: str,
) -> None:
    from pyspark.errors import PySparkException

    queue = mqd_peer.queue(name())
    given = {"url": mqd_url} | ({} if "exchange" in options else {"routingKey": queue}) | options
    with pytest.raises(PySparkException, match=f"(?s){text}"):
        spark.sql(f"select {select}").write.format("amqp").options(**given).mode("append").save()
    assert mqd_peer.count(queue) == 0


def test_a_broker_has_nothing_to_overwrite(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name
) -> None:
    from pyspark.errors import PySparkException

    queue = mqd_peer.queue(name())
    with pytest.raises(PySparkException, match="write with mode"):
        numbers(spark).write.format("amqp").options(url=mqd_url, routingKey=queue).mode("overwrite").save()


def test_unknown_columns_are_left_out_on_demand(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, name: Name
) -> None:
    queue = mqd_peer.queue(name())
    frame = spark.sql("select 'a' value, 1 other")
    frame.write.format("amqp").options(url=mqd_url, routingKey=queue, ignoreUnknownColumns=True).mode(
        "append"
    ).save()
    assert mqd_peer.bodies(queue, 1) == Counter([b"a"])
