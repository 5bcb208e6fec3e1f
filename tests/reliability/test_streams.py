"""Streams of a real node: kill -9 while it writes and reads, and a backup meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pika
import pika.exceptions
import pytest

from conformance_tests.patience import PATIENCE_S, open_connection
from tests.reliability.node import Node, wait_until

STREAM = "events"
KILLS = 2
OPTIONS = ("--stream-flush-ms", "50", "--stream-flush-bytes", "65536", "--stream-segment-bytes", "262144")


def url(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}/"


def noise() -> bytes:
    """Bytes that compression does not make smaller, so that there are several segments."""
    return os.urandom(1000).hex().encode()


class Publisher:
    """Publishes numbers with confirms until the node is gone."""

    def __init__(self, port: int, first: int) -> None:
        self._port = port
        self.confirmed = first
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        with suppress(pika.exceptions.AMQPError, OSError):
            connection = open_connection(url(self._port))
            channel = connection.channel()
            channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
            channel.confirm_delivery()
            while not self._end.is_set():
                channel.basic_publish("", STREAM, b"%d " % self.confirmed + noise(), mandatory=True)
                self.confirmed += 1
            connection.close()


def replay(port: int, offset: object = "first", most: int = 1 << 60) -> Iterator[tuple[int, int]]:
    """Yield offsets and numbers, until no message comes for a while."""
    connection = open_connection(url(port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=200)
    consumed = channel.consume(STREAM, arguments={"x-stream-offset": offset}, inactivity_timeout=0.7)
    for method, properties, body in consumed:
        if method is None or most <= 0:
            break
        assert not method.redelivered
        yield properties.headers["x-stream-offset"], int(body.split()[0])
        channel.basic_ack(method.delivery_tag)
        most -= 1
    with suppress(pika.exceptions.AMQPError):
        connection.close()


def check(port: int, known: dict[int, int], confirmed: int) -> int:
    """Check that every confirmed message is there, in order, at the offset that was seen before; return the
    next number.
    """
    numbers: list[int] = []
    for offset, number in replay(port):
        assert offset == len(numbers)
        assert known.setdefault(offset, number) == number
        numbers.append(number)
    # Messages that were under way when the node was killed may be there without a confirm; then they are
    # published again.
    assert numbers == sorted(numbers)
    assert set(range(confirmed)) <= set(numbers)
    middle = len(numbers) // 2
    assert [offset for offset, _ in replay(port, middle, 20)] == list(range(middle, len(numbers))[:20])
    return confirmed


def test_kill_9_while_streams_are_written(tmp_path: Path) -> None:
    known: dict[int, int] = {}
    confirmed = 0
    with Node(tmp_path, *OPTIONS) as node:
        for _ in range(KILLS):
            with Publisher(node.port, confirmed) as publisher:
                least = publisher.confirmed + 100
                wait_until("it takes messages", lambda least=least: publisher.confirmed >= least)
                node.kill()
            node.start()
            confirmed = check(node.port, known, publisher.confirmed)
        assert len(list((node.data / "streams").glob("*/*.segment"))) > 1
        connection = open_connection(url(node.port))
        connection.channel().queue_delete(STREAM)
        connection.close()
        wait_until("its files are gone", lambda: not list((node.data / "streams").iterdir()))
    assert "lost messages" not in node.log()


TABLE = "table"
TABLE_ARGUMENTS = {
    "x-queue-type": "stream",
    "x-deduplication": True,
    "x-stream-compression": "zstd",
    "x-stream-compaction": "header:key",
    "x-stream-max-segment-size-bytes": 20_000,
}
KEYS = 7


def test_kill_9_while_a_table_is_compacted(tmp_path: Path) -> None:
    """Numbers equal the offsets, because no message is taken twice; the latest one of each key is always
    there.
    """
    options = (*OPTIONS, "--stream-flush-bytes", "4096", "--stream-compaction-dirty-percent", "1")
    confirmed = 0

    def publish(port: int, first: int, until: Callable[[], bool]) -> None:
        nonlocal confirmed
        with suppress(pika.exceptions.AMQPError, OSError):
            connection = open_connection(url(port))
            channel = connection.channel()
            channel.queue_declare(TABLE, durable=True, arguments=TABLE_ARGUMENTS)
            channel.confirm_delivery()
            for number in count(first):
                headers = {"key": f"k{number % KEYS}", "x-producer": "p", "x-sequence": number}
                properties = pika.BasicProperties(headers=headers)
                channel.basic_publish("", TABLE, b"%d " % number + bytes(500), properties)
                confirmed = max(confirmed, number + 1)
                if until():
                    break
            connection.close()

    with Node(tmp_path, *options) as node:
        for _ in range(KILLS):
            goal = confirmed + 300
            # Some messages that the stream has already come again.
            thread = threading.Thread(target=publish, args=(node.port, max(confirmed - 50, 0), lambda: False))
            thread.start()
            wait_until("it takes messages", lambda goal=goal: confirmed >= goal)
            node.kill()
            thread.join(PATIENCE_S)
            node.start()
            found = _table(node.port, confirmed - 1)
            assert all(offset == number for offset, number in found)
            offsets = [offset for offset, _ in found]
            assert offsets == sorted(offsets)
            # Unconfirmed messages may be there, too.
            assert {offset % KEYS for offset in offsets if offset >= confirmed - KEYS} == set(range(KEYS))
        publish(node.port, confirmed - 5, lambda: _compacted(node) > 300)
        found = _table(node.port, confirmed - 1)
        assert len(found) < confirmed // 2
        assert found[-1] == (confirmed - 1, confirmed - 1)
        assert {offset % KEYS for offset, _ in found} == set(range(KEYS))
    assert "lost messages" not in node.log() and "compaction failed" not in node.log()


def _table(port: int, last: int) -> list[tuple[int, int]]:
    """Return offsets and numbers from the first one up to the last confirmed one, which no later message
    replaces yet.
    """
    connection = open_connection(url(port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=200)
    found: list[tuple[int, int]] = []
    consumed = channel.consume(TABLE, arguments={"x-stream-offset": "first"}, inactivity_timeout=PATIENCE_S)
    for method, properties, body in consumed:
        assert method is not None, f"nothing comes behind {found[-1:]}"
        found.append((properties.headers["x-stream-offset"], int(body.split()[0])))
        channel.basic_ack(method.delivery_tag)
        if found[-1][0] >= last:
            break
    connection.close()
    return found


def _compacted(node: Node) -> int:
    return int(node.mqctl("-q", "list_queues", "compacted_offset"))


def check_lists(node: Node, messages: int) -> None:
    """Check what operators see of it, and which requests they are refused."""
    columns = ("name", "type", "messages", "first_offset", "next_offset", "lost_messages", "leader", "state")
    told = node.mqctl("-q", "list_queues", *columns).split("\n")[0].split("\t")
    assert told == [STREAM, "stream", str(messages), "0", str(messages), "0", "n1", "running"]
    connection = open_connection(url(node.port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume(STREAM, lambda *_: None, arguments={"x-stream-offset": "first"})
    wait_until(
        "it has its messages",
        lambda: (
            node.mqctl("-q", "list_consumers", "queue_name", "offset", "lag").split()
            == [STREAM, "7", str(messages - 7)]
        ),
    )
    told = node.mqctl("-q", "list_queues", "segments", "oldest_timestamp", "message_bytes").split()
    segments, oldest, size = map(int, told)
    assert segments >= 1 and oldest > 1_700_000_000_000 and size > 2000 * messages
    with pytest.raises(AssertionError, match="basic.get not supported by stream queues"):
        node.mqctl("get", STREAM)
    with pytest.raises(AssertionError, match="queue.purge not supported by stream queues"):
        node.mqctl("purge_queue", STREAM)
    connection.close()


def test_a_backup_has_the_streams(tmp_path: Path) -> None:
    with Node(tmp_path, *OPTIONS) as node, Publisher(node.port, 0) as publisher:
        wait_until("it takes messages", lambda: publisher.confirmed >= 200)
        time.sleep(0.1)
        before = publisher.confirmed
        command = [str(Path(sys.executable).with_name("mqd-backup")), "--freeze-max", "30"]
        command += [str(node.data), str(tmp_path / "copy" / "data")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr
    with Node(tmp_path / "copy", *OPTIONS) as restored:
        found = list(replay(restored.port))
        assert [number for _, number in found] == list(range(len(found)))
        assert len(found) >= before
        check_lists(restored, len(found))
    assert "lost messages" not in restored.log()
