"""One source of several streams: by their names, by a pattern, or some partitions only."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from spark_sink.client.errors import AmqpError
from spark_sink.option_values import BadOption
from spark_sink.options import query_options
from spark_sink.progress import behind_latest
from spark_sink.source.consumer import QueueRefused
from spark_sink.source.loss import DataLoss
from spark_sink.source.offsets import BadCheckpoint
from spark_sink.streams.listing import matching
from spark_sink.streams.offsets import Partition
from tests.reliability.node import Node
from tests.spark_sink.conftest import Name
from tests.spark_sink.peer import Peer
from tests.spark_sink.test_streams import (
    QUERY_S,
    Driver,
    batch_rows,
    numbered,
    published,
    stream_of,
    super_stream,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Places = list[tuple[str, int, bytes]]


def places(rows: list[dict[str, Any]]) -> Places:
    return sorted((row["stream"], row["partition"], row["value"]) for row in rows)


@pytest.fixture
def management(node: Node) -> str:
    return f"http://127.0.0.1:{node.http}"


def test_streams_by_name_are_one_source(url: str, peer: Peer, name: Name) -> None:
    one, other = stream_of(peer, name("a")), stream_of(peer, name("b"))
    published(peer, one, numbered(30))
    published(peer, other, numbered(20, 30))
    with Driver(url, streams=f"{one},{other}") as driver:
        start = driver.reader.initialOffset()
        assert start == {one: {"0": 0}, other: {"0": 0}}
        end = driver.until(start, 50)
        middle = driver.plan(start, 10)
        assert middle == {one: {"0": 6}, other: {"0": 4}}
        rows = driver.rows(start, middle) + driver.rows(middle, end)
        expected = [(one, 0, body) for body in numbered(30)] + [(other, 0, body) for body in numbered(20, 30)]
        assert places(rows) == sorted(expected)
        assert {(row["stream"], row["queue"]) for row in rows} == {(one, one), (other, other)}
    given = {"startingOffsets": json.dumps({one: {"0": 28}, other: {"0": 18}})}
    assert places(batch_rows(url, streams=f"{one},{other}", **given)) == sorted(
        [(one, 0, b"28"), (one, 0, b"29"), (other, 0, b"48"), (other, 0, b"49")]
    )


def test_a_stream_and_a_super_stream_together(mqd_url: str, mqd_peer: Peer, name: Name) -> None:
    single, several = stream_of(mqd_peer, name("a")), super_stream(mqd_peer, name("super"), 2)
    published(mqd_peer, single, numbered(5))
    published(mqd_peer, several, numbered(40, 5), several, keys=20)
    rows = batch_rows(mqd_url, streams=f"{single},{several}")
    assert sorted(int(row["value"]) for row in rows) == list(range(45))
    assert {(row["stream"], row["partition"], row["queue"]) for row in rows} == {
        (single, 0, single),
        (several, 0, f"{several}-0"),
        (several, 1, f"{several}-1"),
    }
    given = json.dumps({single: {"0": 5}, several: {"0": -2}})
    with pytest.raises(BadOption, match=f"does not name partition 1 of stream '{several}'"):
        batch_rows(mqd_url, streams=f"{single},{several}", startingOffsets=given)
    with pytest.raises(QueueRefused, match="stream 'nowhere' is missing"):
        batch_rows(mqd_url, streams=f"{single},nowhere")
    mqd_peer.channel.exchange_delete(several)


def test_assigned_partitions_only(
    mqd_url: str, mqd_peer: Peer, node: Node, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.streams.probe.DISCOVERY_S", 0.0)
    monkeypatch.setattr("spark_sink.streams.probe.LISTING_S", 0.0)
    stream = super_stream(mqd_peer, name("super"), 3)
    for number in range(3):
        published(mqd_peer, f"{stream}-{number}", [b"%d" % number])
    assigned = json.dumps({stream: [2, 0]})
    with Driver(mqd_url, assign=assigned) as driver:
        start = driver.reader.initialOffset()
        assert start == {stream: {"0": 0, "2": 0}}
        end = driver.until(start, 2)
        assert driver.bodies(start, end) == [b"0", b"2"]
        with pytest.raises(BadCheckpoint, match="partition 1 of stream .*, which the options do not name"):
            driver.plan({stream: {"0": 0, "1": 0, "2": 0}})
        # New partitions are not assigned.
        node.mqctl("add_partitions", stream, "1")
        assert driver.plan(end) == end
    rows = batch_rows(mqd_url, assign=assigned, startingOffsets='{"0": 0, "2": 1}')
    assert [row["partition"] for row in rows] == [0]
    with pytest.raises(BadOption, match="names partition 1 of stream .*: the partitions are 0, 2, and each"):
        batch_rows(mqd_url, assign=assigned, startingOffsets='{"0": 0, "1": 1, "2": 1}')
    with pytest.raises(BadOption, match=f"'assign': stream '{stream}' has no partition 7; it has 4"):
        batch_rows(mqd_url, assign=json.dumps({stream: [7]}))
    mqd_peer.channel.exchange_delete(stream)


def test_a_checkpoint_goes_on_when_a_stream_is_added_and_not_when_one_is_left_out(
    url: str, peer: Peer, name: Name
) -> None:
    one, other = stream_of(peer, name("a")), stream_of(peer, name("b"))
    published(peer, one, numbered(10))
    published(peer, other, numbered(10, 10))
    with Driver(url, one) as driver:
        end = driver.until(driver.reader.initialOffset(), 10)
    with Driver(url, streams=f"{one},{other}") as driver:
        # A stream that comes later is read from its beginning.
        more = driver.until(end, 20)
        assert more == {one: {"0": 10}, other: {"0": 10}}
        assert driver.bodies(end, more) == numbered(10, 10)
    with (
        Driver(url, other) as driver,
        pytest.raises(BadCheckpoint, match=f"partition 0 of stream '{one}', which the options do not name"),
    ):
        driver.plan(more)


def test_a_pattern_finds_streams_also_new_ones(
    mqd_url: str, mqd_peer: Peer, management: str, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.streams.probe.DISCOVERY_S", 0.0)
    monkeypatch.setattr("spark_sink.streams.probe.LISTING_S", 0.0)
    prefix = name("p")
    stream_of(mqd_peer, f"{prefix}.a")
    super_stream(mqd_peer, f"{prefix}.s", 2)
    # Neither queues, nor other names, nor partitions for themselves.
    mqd_peer.queue(f"{prefix}.queue")
    stream_of(mqd_peer, f"{prefix}.a2")
    stream_of(mqd_peer, f"x{prefix}.a")
    published(mqd_peer, f"{prefix}.a", numbered(5))
    published(mqd_peer, f"{prefix}.s", numbered(10, 5), f"{prefix}.s", keys=9)
    options = {"streamsPattern": f"{prefix}\\.(.|s-.|queue)", "managementUrl": management}
    with Driver(mqd_url, **options) as driver:
        start = driver.reader.initialOffset()
        assert start == {f"{prefix}.a": {"0": 0}, f"{prefix}.s": {"0": 0, "1": 0}}
        end = driver.until(start, 15)
        assert sorted(map(int, driver.bodies(start, end))) == list(range(15))
        stream_of(mqd_peer, f"{prefix}.b")
        assert driver.plan(end) == end
        published(mqd_peer, f"{prefix}.b", numbered(5, 15))
        more = driver.until(end, 20)
        assert driver.bodies(end, more) == numbered(5, 15)
        with pytest.raises(BadCheckpoint, match="stream 'other', which the options do not name"):
            driver.plan({"other": {"0": 0}})
    mqd_peer.channel.exchange_delete(f"{prefix}.s")


def test_a_pattern_that_nothing_matches_waits_for_streams(
    mqd_url: str, mqd_peer: Peer, management: str, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_sink.streams.probe.DISCOVERY_S", 0.0)
    monkeypatch.setattr("spark_sink.streams.probe.LISTING_S", 0.0)
    prefix = name("p")
    options = {"streamsPattern": f"{prefix}.*", "managementUrl": management}
    assert batch_rows(mqd_url, **options) == []
    with Driver(mqd_url, **options) as driver:
        start = driver.reader.initialOffset()
        assert start == {} and driver.plan(start) == start and driver.rows(start, start) == []
        published(mqd_peer, stream_of(mqd_peer, prefix), numbered(5))
        end = driver.until(start, 5)
        assert driver.bodies(start, end) == numbered(5)


@pytest.mark.parametrize("deleted", ["named", "matched"])
def test_a_stream_that_is_deleted_is_an_error_or_left_out(
    mqd_url: str,
    mqd_peer: Peer,
    management: str,
    name: Name,
    deleted: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_sink.streams.probe.DISCOVERY_S", 0.0)
    monkeypatch.setattr("spark_sink.streams.probe.LISTING_S", 0.0)
    prefix = name("p")
    one, other = stream_of(mqd_peer, f"{prefix}a"), stream_of(mqd_peer, f"{prefix}b")
    for stream in (one, other):
        published(mqd_peer, stream, numbered(5))
    options = {"streams": f"{one},{other}"}
    if deleted == "matched":
        options = {"streamsPattern": f"{prefix}.*", "managementUrl": management}
    with Driver(mqd_url, **options) as strict, Driver(mqd_url, **options, failOnDataLoss=False) as lenient:
        start = strict.reader.initialOffset()
        early = strict.plan(start, 4)
        assert lenient.plan(start, 4) == early
        mqd_peer.channel.queue_delete(other)
        with pytest.raises(
            DataLoss, match=f"stream '{other}' no longer has partition 0.*failOnDataLoss=false"
        ):
            strict.plan(early)
        with caplog.at_level(logging.ERROR):
            end = lenient.plan(early)
        assert end == {one: {"0": 5}}
        assert f"stream '{other}' no longer has partition 0" in caplog.text
        assert lenient.bodies(early, end) == numbered(3, 2)
        published(mqd_peer, one, [b"more"])
        more = lenient.until(end, 6)
        assert lenient.bodies(end, more) == [b"more"]


def test_names_in_a_vhost_and_with_odd_characters(
    mqd_url: str, mqd_peer: Peer, management: str, name: Name
) -> None:
    odd = stream_of(mqd_peer, name("ü /%#?"))
    options = {"url": mqd_url, "streamsPattern": "ü /%#.*", "managementUrl": management}
    assert matching(query_options(options), "ü /%#.*") == [odd]
    published(mqd_peer, odd, numbered(3))
    rows = batch_rows(mqd_url, streamsPattern="ü /%#.*", managementUrl=management)
    assert places(rows) == [(odd, 0, body) for body in numbered(3)]


def test_a_management_api_that_cannot_be_asked_is_named(
    mqd_url: str, mqd_peer: Peer, node: Node, management: str, name: Name
) -> None:
    def read(url: str, **options: str) -> None:
        batch_rows(url, streamsPattern="x.*", **options)

    user = name("user")
    node.mqctl("add_user", user, "secret")
    node.mqctl("set_permissions", user, ".*", ".*", ".*")
    with pytest.raises(QueueRefused, match=f"refuses user '{user}' .*needs a tag") as refused:
        batch_rows(mqd_url, streamsPattern="x.*", managementUrl=management, username=user, password="secret")
    assert "secret" not in str(refused.value)
    for tag in ("management", "monitoring"):
        node.mqctl("set_user_tags", user, tag)
        read(mqd_url, managementUrl=management, username=user, password="secret")
    with pytest.raises(AmqpError, match=r"127\.0\.0\.1:1: .*refused.* \(option 'managementUrl'\)"):
        read(mqd_url, managementUrl="http://127.0.0.1:1")
    # The next host is asked.
    read(mqd_url, managementUrl=f"http://127.0.0.1:1,{management}")
    with pytest.raises(QueueRefused, match="has no vhost '/', or no management API"):
        read(mqd_url, managementUrl=f"{management}/elsewhere")
    with pytest.raises(AmqpError, match="option 'managementUrl'"):
        read(mqd_url, managementUrl=f"http://127.0.0.1:{node.port}")


def test_streams_of_rabbitmq_are_found_by_a_pattern(rabbitmq: int, rabbitmq_http: int, name: Name) -> None:
    url, prefix = f"amqp://guest:guest@127.0.0.1:{rabbitmq}/", name("p")
    options = {"streamsPattern": f"{prefix}.*", "managementUrl": f"http://127.0.0.1:{rabbitmq_http}"}
    with Peer(url) as peer:
        single = stream_of(peer, f"{prefix}.a")
        peer.queue(f"{prefix}.queue")
        # As the tools of RabbitMQ make it.
        several, arguments = f"{prefix}.s", {"x-super-stream": True}
        peer.channel.exchange_declare(several, "direct", durable=True, arguments=arguments)
        for number in range(2):
            partition = stream_of(peer, f"{several}-{number}")
            peer.channel.queue_bind(partition, several, str(number), {"x-stream-partition-order": number})
            peer.channel.tx_select()
            peer.channel.basic_publish(several, str(number), b"%d" % number)
            peer.channel.tx_commit()
        published(peer, single, [b"2"])
        with Driver(url, **options) as driver:
            start = driver.reader.initialOffset()
            assert start == {single: {"0": 0}, several: {"0": 0, "1": 0}}
            rows = driver.rows(start, driver.until(start, 3))
        assert places(rows) == [(single, 0, b"2"), (several, 0, b"0"), (several, 1, b"1")]
        peer.channel.exchange_delete(several)


class TlsFront:
    """Takes TLS off requests and passes them on: mqd's own management API has none."""

    def __init__(self, directory: Path, port: int) -> None:
        self.authority, key = directory / "ca.pem", directory / "key.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.authority))
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(key))
        self._back = port
        self._server = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
        self.url = f"https://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                front, _ = self._server.accept()
            except ssl.SSLError:
                continue
            except OSError:
                return
            with front, socket.create_connection(("127.0.0.1", self._back)) as back:
                # urllib closes the connection after each request.
                back.sendall(front.recv(1 << 16))
                while data := back.recv(1 << 16):
                    front.sendall(data)

    def __enter__(self) -> TlsFront:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


def test_an_api_with_tls_is_checked_against_its_authority(
    mqd_url: str, mqd_peer: Peer, node: Node, name: Name, tmp_path: Path
) -> None:
    stream = stream_of(mqd_peer, name())
    published(mqd_peer, stream, numbered(3))
    with TlsFront(tmp_path, node.http) as front:
        options = {"streamsPattern": stream, "managementUrl": front.url}
        rows = batch_rows(mqd_url, **options, **{"tls.caFile": str(front.authority)})
        assert places(rows) == [(stream, 0, body) for body in numbered(3)]
        assert len(batch_rows(mqd_url, **options, **{"tls.verify": "false"})) == 3
        with pytest.raises(AmqpError, match="certificate verify failed.*option 'managementUrl'"):
            batch_rows(mqd_url, **options)
    with pytest.raises(BadOption, match="need TLS"):
        batch_rows(mqd_url, streamsPattern=stream, managementUrl="http://h", **{"tls.verify": "false"})


def test_an_api_that_is_down_stops_no_query(
    mqd_url: str,
    mqd_peer: Peer,
    management: str,
    name: Name,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_sink.streams.probe.DISCOVERY_S", 0.0)
    monkeypatch.setattr("spark_sink.streams.probe.LISTING_S", 0.0)
    stream = stream_of(mqd_peer, name("p"))
    published(mqd_peer, stream, numbered(5))
    with Driver(mqd_url, streamsPattern=stream, managementUrl=management) as driver:
        start = driver.reader.initialOffset()
        with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
            patched.setattr("spark_sink.streams.listing._get", _down)
            assert driver.bodies(start, driver.until(start, 5)) == numbered(5)
        assert "new streams are not looked for" in caplog.text


def _down(*_: object) -> None:
    raise OSError("down")


def test_a_trigger_waits_for_enough_messages_but_not_for_ever(url: str, peer: Peer, name: Name) -> None:
    one, other = stream_of(peer, name("a")), stream_of(peer, name("b"))
    options: dict[str, Any] = {"streams": f"{one},{other}", "minOffsetsPerTrigger": 10}
    with Driver(url, **options) as driver, Driver(url, **options, maxTriggerDelay="1ms") as hasty:
        start = driver.reader.initialOffset()
        published(peer, one, numbered(6))
        published(peer, other, numbered(3))
        with Driver(url, streams=f"{one},{other}") as other_driver:
            other_driver.until(start, 9)
        assert driver.plan(start) == start == hasty.plan(start)
        end = hasty.until(start, 9)
        # The next wait begins anew.
        assert hasty.plan(end) == end
        published(peer, other, [b"more"])
        assert driver.until(start, 10) == {one: {"0": 6}, other: {"0": 4}}
    with Driver(url, **options) as driver:
        # This query ends, so it does not wait.
        driver.reader.prepareForTriggerAvailableNow()
        more = driver.plan({one: {"0": 6}, other: {"0": 1}})
        assert more == {one: {"0": 6}, other: {"0": 4}}


def test_the_latest_offsets_are_reported(url: str, peer: Peer, name: Name) -> None:
    stream = stream_of(peer, name())
    published(peer, stream, numbered(20))
    with Driver(url, stream) as driver:
        start = driver.reader.initialOffset()
        assert driver.reader.reportLatestOffset() is None
        driver.until(start, 20)
        assert driver.plan(start, 5) == {stream: {"0": 5}}
        assert driver.reader.reportLatestOffset() == {stream: {"0": 20}}


def test_long_ranges_are_cut_for_tasks(url: str, peer: Peer, name: Name) -> None:
    stream = stream_of(peer, name())
    published(peer, stream, numbered(25))
    with Driver(url, stream, maxRecordsPerPartition=10) as driver:
        start = driver.reader.initialOffset()
        end = driver.until(start, 25)
        pieces = driver.reader.partitions(start, end)
        sizes = [len(piece.wanted) for piece in pieces]  # type: ignore[attr-defined]
        assert sizes == [8, 8, 9] and {piece.wanted.partition for piece in pieces} == {Partition(stream, 0)}  # type: ignore[attr-defined]
        assert driver.bodies(start, end) == numbered(25)


# With Spark.


def test_a_query_reads_several_streams_from_a_checkpoint(
    spark: SparkSession, mqd_url: str, mqd_peer: Peer, management: str, name: Name, tmp_path: Path
) -> None:
    prefix = name("p")
    one, several = stream_of(mqd_peer, f"{prefix}.a"), super_stream(mqd_peer, f"{prefix}.s", 2)
    sent = 0
    for turn in range(2):
        published(mqd_peer, one, numbered(50, sent))
        published(mqd_peer, several, numbered(50, sent + 50), several, keys=9)
        sent += 100
        source = spark.readStream.format("amqp").options(
            url=mqd_url,
            streamsPattern=f"{prefix}.*",
            managementUrl=management,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=40,
        )
        query = (
            source.load()
            .selectExpr(
                "cast(cast(value as string) as int) as value", "stream", "partition", "broker_timestamp"
            )
            .writeStream.format("json")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_S)
        _check_progress(query.recentProgress, 100)
        rows = spark.read.json(str(tmp_path / "out")).collect()
        assert sorted(row.value for row in rows) == list(range(sent)), turn
    assert {(row.stream, row.partition) for row in rows} == {(one, 0), (several, 0), (several, 1)}
    assert all(row.broker_timestamp is not None for row in rows)
    mqd_peer.channel.exchange_delete(several)


def _check_progress(progress: list[Any], count: int) -> None:
    """Each micro-batch has read forty messages, and the source says how many are left."""
    left = []
    for each in progress:
        if each.numInputRows:
            [behind] = behind_latest(each)
            left.append(behind.total)
            counts = behind.partitions.values()
            assert len(counts) == 3
            assert behind.metrics == {
                "minOffsetsBehindLatest": str(min(counts)),
                "maxOffsetsBehindLatest": str(max(counts)),
                "avgOffsetsBehindLatest": str(sum(counts) / 3),
            }
    assert left == [count - 40, count - 80, 0]
