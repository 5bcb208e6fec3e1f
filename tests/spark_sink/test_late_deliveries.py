"""A broker that answers at once and delivers late: messages that have not come yet do not count as
missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pika import spec
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_sink.client.connection import Connection
from spark_sink.options import source_options
from spark_sink.rows import source_schema
from spark_sink.source.consumer import Consumer
from spark_sink.source.deliveries import Run
from spark_sink.source.patience import LOOKS_MIN, Patience
from spark_sink.source.reader import AmqpReader
from spark_sink.source.window import Window
from tests.reliability.node import wait_until
from tests.spark_sink.conftest import Name
from tests.spark_sink.peer import Peer
from tests.spark_sink.test_stream_reader_restart import Driver, bodies, decoded, filled

#: Longer than any wait except that for patience.
LATE_S, VERY_LATE_S = 1.0, 6.0
NEVER_MS = str(2**31 - 1)
Late = Callable[[float], None]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    """From now on deliveries come this long after the first of them was sent."""
    arrived, lock = Consumer.arrived, threading.Lock()
    held: list[tuple[Consumer, list[Run]]] = []
    delays: list[float] = []

    def release() -> None:
        with lock:
            delays.clear()
            for consumer, runs in held:
                arrived(consumer, runs)

    def hold(consumer: Consumer, runs: list[Run]) -> None:
        with lock:
            if held and not delays:
                return arrived(consumer, runs)
            if not held:
                threading.Timer(delays[0], release).start()
            held.append((consumer, runs))

    def begin(delay_s: float) -> None:
        delays.append(delay_s)
        monkeypatch.setattr(Consumer, "arrived", hold)

    return begin


def test_a_planned_batch_that_comes_late_is_waited_for(url: str, peer: Peer, name: Name, late: Late) -> None:
    queue = peer.queue(name(), x_queue_type="quorum")
    sent = filled(peer, queue, False)
    first = Driver(url, queue)
    one = first.plan(first.start)
    first.die()
    wait_until("all are back", lambda: peer.count(queue) == 60)
    late(VERY_LATE_S)
    # All messages are handed out: the broker says that the queue is empty.
    again = Driver(url, queue, prefetch="100")
    assert again.rows(again.start, one) == sent[:20]
    assert again.rest(one) == sent[20:]
    again.die()
    assert peer.take(queue) == []


def test_available_now_reads_what_a_dying_driver_gives_back(
    url: str, peer: Peer, name: Name, late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dying driver holds all messages when the next one looks at the queue, and is gone when that one
    begins to consume.
    """
    queue = peer.queue(name())
    sent = filled(peer, queue, False)
    first = Driver(url, queue, prefetch="100")
    first.plan(first.start)
    wait_until("all are handed out", lambda: peer.count(queue) == 0)
    call, looks = Connection.call, list[spec.Queue.Declare]()

    def die_after_a_look(connection: Connection, method: Any, *others: Any) -> Any:
        answer = call(connection, method, *others)
        if isinstance(method, spec.Queue.Declare) and not looks:
            looks.append(method)
            first.die()
            wait_until("all are back", lambda: peer.count(queue) == 60)
        return answer

    monkeypatch.setattr(Connection, "call", die_after_a_look)
    late(LATE_S)
    again = Driver(url, queue, prefetch="100")
    again.reader.prepareForTriggerAvailableNow()
    assert looks and again.rest(again.start) == sent
    again.die()
    assert peer.take(queue) == []


def test_available_now_counts_no_message_twice(
    url: str, peer: Peer, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages come while the answer with the number of ready ones is on its way to the caller. The reader
    once waited for as many others, which never came.
    """
    queue = peer.queue(name())
    sent = filled(peer, queue, False)
    opened: list[Consumer] = []
    consume, call = Consumer._consume, Connection.call

    def seen(consumer: Consumer) -> None:
        opened.append(consumer)
        consume(consumer)

    def held_up(connection: Connection, method: Any, *others: Any) -> Any:
        answer = call(connection, method, *others)
        if isinstance(method, spec.Queue.Declare) and opened[0].window.buffered:
            wait_until("all have come", lambda: opened[0].window.buffered >= len(sent))
            peer.publish(queue, [b"later"] * 10)
            wait_until("more have come", lambda: opened[0].window.buffered == len(sent) + 10)
        return answer

    monkeypatch.setattr(Consumer, "_consume", seen)
    monkeypatch.setattr(Connection, "call", held_up)
    driver = Driver(url, queue, prefetch="100")
    driver.reader.prepareForTriggerAvailableNow()
    assert opened[0].window.buffered == len(sent) + 10
    assert opened[0].found == len(sent)
    driver.die()


@pytest.mark.parametrize("ack", ["none", "onRead"])
def test_a_batch_read_waits_for_what_is_on_its_way(
    url: str, peer: Peer, name: Name, ack: str, late: Late
) -> None:
    queue = peer.queue(name())
    sent = filled(peer, queue, False)
    reader = AmqpReader(source_options({"url": url, "queue": queue, "ack": ack}), source_schema())
    pieces = reader.partitions()
    late(LATE_S)
    assert decoded(reader, pieces) == sent
    assert len(peer.take(queue, 60 if ack == "none" else 0)) == (60 if ack == "none" else 0)


def test_a_batch_read_ends_when_another_consumer_has_the_rest(url: str, peer: Peer, name: Name) -> None:
    """The reader does not wait for the rest, which will not come."""
    queue = peer.queue(name())
    filled(peer, queue, False)
    options = source_options({"url": url, "queue": queue, "redeliveryTimeoutMs": NEVER_MS})
    reader = AmqpReader(options, source_schema())
    pieces = reader.partitions()
    peer.channel.basic_qos(prefetch_count=50)
    tag = peer.channel.basic_consume(queue, lambda *_: None)
    wait_until("another has some", lambda: peer.count(queue) == 10)
    assert decoded(reader, pieces) == bodies(60)[50:]
    peer.channel.basic_cancel(tag)


def test_a_full_window_is_not_waited_for(
    url: str, peer: Peer, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader doesn't know whether the last acks arrived. They did, and no more messages can come than
    those that come again.
    """
    queue = peer.queue(name())
    sent = filled(peer, queue, True)
    driver = Driver(url, queue, prefetch="20", redeliveryTimeoutMs=NEVER_MS)
    one = driver.plan(driver.start)
    with monkeypatch.context() as patched:
        patched.setattr(Window, "confirmed", lambda window: None)
        assert driver.reader.latestOffset(one, ReadMaxRows(0)) == one
    wait_until("the window is full again", lambda: peer.count(queue) == 20)
    driver.cut()
    assert driver.rest(one) == sent[20:]
    driver.die()
    assert peer.take(queue) == []


def test_patience_ends_after_its_time_and_some_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("spark_sink.source.patience.time.monotonic", lambda: now[0])
    slow = Patience(5.0)
    for _ in range(LOOKS_MIN - 1):
        # A busy broker takes its time for each answer.
        now[0] += 10.0
        assert not slow.over()
    slow.sign()
    assert [slow.over() for _ in range(LOOKS_MIN)] == [False] * LOOKS_MIN
    now[0] += 5.1
    assert slow.over()
    slow.sign()
    assert not slow.over()
