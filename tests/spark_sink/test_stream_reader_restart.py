"""The streaming reader by itself, called as Spark calls it: drivers die, and connections and acks are
lost.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_sink.options import source_options
from spark_sink.rows import source_schema
from spark_sink.source.deliveries import Run
from spark_sink.source.reader import AmqpReader
from spark_sink.source.stream_reader import AmqpStreamReader, DataLoss
from spark_sink.source.window import Settlement, Window
from tests.reliability.node import wait_until
from tests.spark_sink.conftest import Name
from tests.spark_sink.peer import Peer

Offset = dict[str, Any]
#: Longer than two looks at the queue, a tenth of a second apart.
LATE_S = 1.0
#: The reader waits no longer than this for messages that are gone.
SOON_MS = "2000"


class Driver:
    """The process next to a driver; leaving the block is its death."""

    def __init__(self, url: str, queue: str, **options: str) -> None:
        given = {"url": url, "queue": queue, "maxMessagesPerTrigger": "20", **options}
        self.reader = AmqpStreamReader(source_options(given), source_schema())
        self.start = self.reader.initialOffset()

    def plan(self, start: Offset) -> Offset:
        return self.reader.latestOffset(start, ReadMaxRows(20))

    def rows(self, start: Offset, end: Offset) -> list[bytes]:
        return decoded(self.reader, self.reader.partitions(start, end))

    def rest(self, start: Offset) -> list[bytes]:
        found: list[bytes] = []
        while (end := self.plan(start)) != start:
            found += self.rows(start, end)
            start = end
        return found

    def lose_acks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def nowhere(settlement: Settlement) -> None:
            pass

        assert self.reader._consumer is not None
        monkeypatch.setattr(self.reader._consumer, "settle", nowhere)

    def cut(self) -> None:
        """The network ends the connection."""
        assert self.reader._consumer is not None and self.reader._consumer._connection is not None
        self.reader._consumer._connection._transport._sock.shutdown(socket.SHUT_RDWR)
        wait_until("the reader notices", lambda: not self.reader._consumer.alive)

    def die(self) -> None:
        self.reader.stop()


def decoded(reader: AmqpReader | AmqpStreamReader, pieces: Sequence[InputPartition]) -> list[bytes]:
    return [row["value"] for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def filled(peer: Peer, queue: str, ids: bool) -> list[bytes]:
    sent = bodies(60)
    for number, body in enumerate(sent):
        peer.publish(queue, [body], delivery_mode=2, **({"message_id": str(number)} if ids else {}))
    wait_until("all are queued", lambda: peer.count(queue) == len(sent))
    return sent


@pytest.mark.parametrize("ids", [True, False])
def test_death_between_commit_and_ack(url: str, peer: Peer, name: Name, ids: bool) -> None:
    queue = peer.queue(name())
    sent = filled(peer, queue, ids)
    first = Driver(url, queue)
    end = first.plan(first.start)
    assert first.rows(first.start, end) == sent[:20] and end["identified"] is ids
    first.die()
    again = Driver(url, queue)
    # With ids no message is read twice; without, the unacked ones are.
    assert again.rest(end) == (sent[20:] if ids else sent)
    again.die()
    assert peer.take(queue) == []


@pytest.mark.parametrize("before", [False, True])
def test_an_empty_batch_that_was_not_committed_is_no_loss(
    url: str, peer: Peer, name: Name, before: bool
) -> None:
    """Spark's first batch has no data if the queue is empty, and others have none, either; the sink may fail,
    or the driver die, before such a batch is committed.
    """
    queue = peer.queue(name())
    first = Driver(url, queue)
    start = first.start
    if before:
        filled(peer, queue, False)
        start = first.plan(first.start)
        assert len(first.rows(first.start, start)) == 20
        first.plan(start)
    assert first.rows(start, start) == []
    first.die()
    if not before:
        filled(peer, queue, False)
    again = Driver(url, queue)
    assert again.rows(start, start) == []
    assert len(again.rest(start)) >= 40
    again.die()


def test_a_planned_batch_is_found_again(url: str, peer: Peer, name: Name) -> None:
    queue = peer.queue(name(), x_queue_type="quorum")
    sent = filled(peer, queue, False)
    first = Driver(url, queue)
    one = first.plan(first.start)
    two = first.plan(one)
    first.die()
    for _ in range(2):
        again = Driver(url, queue, maxMessagesPerTrigger="5", prefetch="5")
        assert again.rows(one, two) == sent[20:40]
        assert again.rows(one, two) == sent[20:40]
        again.die()
    last = Driver(url, queue)
    assert last.rows(one, two) == sent[20:40]
    assert last.rest(two) == sent[40:]
    last.die()
    assert peer.take(queue) == []


def test_a_planned_batch_is_found_behind_one_whose_acks_were_lost(
    url: str, peer: Peer, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = peer.queue(name())
    sent = filled(peer, queue, False)
    first = Driver(url, queue)
    one = first.plan(first.start)
    first.lose_acks(monkeypatch)
    two = first.plan(one)
    first.die()
    again = Driver(url, queue)
    assert again.rows(one, two) == sent[20:40]
    assert again.rest(two) == sent[40:]
    again.die()
    assert peer.take(queue) == []


@pytest.mark.parametrize("lost", ["before the ack", "with the ack"])
def test_a_lost_connection(
    url: str, peer: Peer, name: Name, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = peer.queue(name())
    sent = filled(peer, queue, True)
    driver = Driver(url, queue)
    one = driver.plan(driver.start)
    if lost == "before the ack":
        driver.cut()
        two = driver.plan(one)
    else:
        with monkeypatch.context() as patched:
            driver.lose_acks(patched)
            two = driver.plan(one)
        driver.cut()
    assert driver.rows(one, two) == sent[20:40]
    assert driver.rest(two) == sent[40:]
    driver.die()
    assert peer.take(queue) == []


def test_available_now_ends_though_messages_expire(url: str, peer: Peer, name: Name) -> None:
    queue = peer.queue(name())
    filled(peer, queue, False)
    driver = Driver(url, queue, prefetch="10", redeliveryTimeoutMs=SOON_MS)
    driver.reader.prepareForTriggerAvailableNow()
    peer.channel.queue_purge(queue)
    # The reader reads the messages delivered before the purge, and does not wait for the rest.
    assert driver.rest(driver.start) == bodies(10)
    driver.die()


def test_available_now_waits_for_what_is_on_its_way(
    mqd_url: str, mqd_peer: Peer, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is empty because all messages are handed out; a long delivery does not mean that they are
    gone.
    """
    queue = mqd_peer.queue(name())
    filled(mqd_peer, queue, False)
    add, late = Window.add, list[Run]()

    def arrive() -> None:
        monkeypatch.undo()
        consumer = driver.reader._consumer
        assert consumer is not None
        with consumer.changed:
            for run in late:
                add(consumer.window, run)
            consumer.changed.notify_all()

    monkeypatch.setattr(Window, "add", lambda window, run: late.append(run))
    driver = Driver(mqd_url, queue, prefetch="100")
    driver.reader.prepareForTriggerAvailableNow()
    wait_until("all are handed out", lambda: sum(map(len, late)) == 60)
    threading.Timer(LATE_S, arrive).start()
    assert driver.rest(driver.start) == bodies(60)
    driver.die()


def test_data_loss(url: str, peer: Peer, name: Name) -> None:
    queue = peer.queue(name())
    filled(peer, queue, False)
    first = Driver(url, queue)
    end = first.plan(first.start)
    first.die()
    wait_until("all are back", lambda: peer.count(queue) == 60)
    peer.channel.queue_purge(queue)
    again = Driver(url, queue, redeliveryTimeoutMs=SOON_MS)
    with pytest.raises(DataLoss, match="had 20 messages, and the queue now holds 0"):
        again.rows(again.start, end)
    again.die()
    heedless = Driver(url, queue, failOnDataLoss="false", redeliveryTimeoutMs=SOON_MS)
    assert heedless.rows(heedless.start, end) == []
    assert heedless.plan(end) == end
    heedless.die()
