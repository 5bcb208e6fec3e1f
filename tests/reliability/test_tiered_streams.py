"""A stream of a real node whose older segments go to an S3 server on this machine: kill -9 in the middle of
uploads, and a server that is away for a while.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from conformance_tests.patience import PATIENCE_S, open_connection
from tests.reliability.node import Node, wait_until
from tests.reliability.test_streams import noise, url
from tests.stores.s3 import BUCKET, KEYS, S3Server, s3_server, write_keys

STREAM = "history"
ARGUMENTS: dict[str, Any] = {
    "x-queue-type": "stream",
    "x-stream-remote": "archive",
    "x-stream-local-max-length-bytes": 200_000,
    "x-stream-max-segment-size-bytes": 65_536,
}
OPTIONS = ("--stream-flush-ms", "20", "--stream-flush-bytes", "4096", "--stream-remote-timeout-ms", "2000")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def node_with(s3: S3Server, directory: Path) -> Node:
    keys = write_keys(directory)
    file = directory / "mqd.toml"
    file.write_text(f"""
[stream_remotes.archive]
url = "s3://{BUCKET}/{directory.name}"
region = "us-east-1"
endpoint = "{s3.endpoint}"
allow_http = true
credentials_file = "{keys}"
""")
    return Node(directory, "--config", str(file), *OPTIONS)


def publish(port: int, low: int, stop: int, arguments: dict[str, Any] = ARGUMENTS) -> int:
    """Publish with confirms; return the number that is not confirmed."""
    number = low
    with suppress(pika.exceptions.AMQPError, OSError):
        connection = open_connection(url(port))
        channel = connection.channel()
        channel.queue_declare(STREAM, durable=True, arguments=arguments)
        channel.confirm_delivery()
        while number < stop:
            channel.basic_publish("", STREAM, b"%d " % number + noise(), mandatory=True)
            number += 1
        connection.close()
    return number


def read(port: int, offset: object, stop: int) -> list[tuple[int, int]]:
    """Return offsets and numbers up to an offset, or until the consumer is cancelled."""
    connection = open_connection(url(port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=200)
    found: list[tuple[int, int]] = []
    for method, properties, body in channel.consume(STREAM, arguments={"x-stream-offset": offset}):
        found.append((properties.headers["x-stream-offset"], int(body.split()[0])))
        channel.basic_ack(method.delivery_tag)
        if found[-1][0] >= stop - 1:
            break
    with suppress(pika.exceptions.AMQPError):
        connection.close()
    return found


def row(node: Node) -> dict[str, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{node.http}/api/queues/%2F/{STREAM}")
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return dict(json.load(answer))


def segments(node: Node) -> list[Path]:
    return sorted((node.data / "streams").rglob("*.segment"))


def test_history_is_in_the_store(s3: S3Server, tmp_path: Path) -> None:
    with node_with(s3, tmp_path) as node:
        assert publish(node.port, 0, 600) == 600
        wait_until("old segments leave the disk", lambda: len(segments(node)) <= 4)
        keys = s3.all_keys(tmp_path.name)
        assert len(keys) >= 10
        assert read(node.port, "first", 600) == [(number, number) for number in range(600)]
        assert read(node.port, 123, 600)[0] == (123, 123)
        objects = s3.objects(tmp_path.name)
        identity = keys[0].partition("/")[0]
        objects.put(f"{identity}/{3:020}-{7:020}-aa.segment", iter([b"orphan"]), 6)
        objects.put("foreign/key", iter([b"x"]), 1)
        assert "1 orphans were deleted" in node.mqctl("remote", "check", "--delete-orphans")
        told = node.mqctl("remote", "check")
        assert "foreign/" in told and STREAM in told
        # One more segment may have come meanwhile.
        left = s3.all_keys(tmp_path.name)
        assert {*keys, "foreign/key"} <= set(left) and not [key for key in left if "-aa." in key]
        objects.delete(["foreign/key"])
        for secret in KEYS.values():
            assert secret not in node.log() and secret not in node.mqctl("status")
        connection = open_connection(url(node.port))
        connection.channel().queue_delete(STREAM)
        connection.close()
        wait_until(
            "the objects of a deleted stream are deleted",
            lambda: not s3.all_keys(tmp_path.name),
        )


def test_kills_in_the_middle_of_uploads(s3: S3Server, tmp_path: Path) -> None:
    node = node_with(s3, tmp_path)
    confirmed = 0
    with node:
        for round in range(4):
            stop = publish_and_kill(node, confirmed, 0.4 + 0.3 * round)
            confirmed = stop
            node.start()
        confirmed = publish(node.port, confirmed, confirmed + 100)
        wait_until("old segments leave the disk", lambda: len(segments(node)) <= 5)
        # Some were published again, because the node was killed before it could confirm them.
        found = read(node.port, "first", row(node)["messages"])
        # Each confirmed message is there, in order; offsets have no gap.
        assert [offset for offset, _ in found] == list(range(len(found)))
        numbers = [number for _, number in found]
        assert sorted(set(numbers)) == list(range(confirmed))


def publish_and_kill(node: Node, low: int, after_s: float) -> int:
    with node.killed_after(after_s):
        return publish(node.port, low, low + 10_000)


def test_a_server_that_is_away(tmp_path: Path) -> None:
    with s3_server() as first:
        node = node_with(first, tmp_path)
        with node:
            assert publish(node.port, 0, 300) == 300
            wait_until("old segments leave the disk", lambda: len(segments(node)) <= 4)
            first.stop()
            assert publish(node.port, 300, 600) == 600
            assert "stream_remote" in node.mqctl("status")
            assert "stream_remote alarm set" in node.log()
            # A consumer at the tip is served, and one of old messages is cancelled.
            assert read(node.port, 590, 600) == [(number, number) for number in range(590, 600)]
            began = time.monotonic()
            some = read(node.port, 0, 600)
            assert some == [(number, number) for number in range(len(some))] and len(some) < 300
            assert time.monotonic() - began < PATIENCE_S
            again = S3Server(first.port)
            try:
                wait_until("old segments leave the disk", lambda: len(segments(node)) <= 4)
                assert read(node.port, 0, 600) == [(number, number) for number in range(600)]
                wait_until("the alarm ends", lambda: "stream_remote alarm cleared" in node.log())
            finally:
                again.stop()
