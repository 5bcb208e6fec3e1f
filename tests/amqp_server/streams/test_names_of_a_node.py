"""Offsets by name on a real node: more names than a stream keeps, and the node is killed meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from conformance_tests.patience import PATIENCE_S
from tests.reliability.node import Node

NAMES_MAX = 3


def connect(node: Node) -> BlockingChannel:
    where = pika.ConnectionParameters("127.0.0.1", node.port, heartbeat=0)
    channel = pika.BlockingConnection(where).channel()
    channel.basic_qos(prefetch_count=10)
    return channel


def read(node: Node, name: str, count: int) -> list[int]:
    """Return the offsets of this many messages, which are acked."""
    arguments: dict[str, Any] = {
        "x-stream-offset": "committed",
        "x-group": name,
        "x-stream-offset-default": "first",
    }
    channel = connect(node)
    found: list[int] = []
    try:
        for method, properties, _ in channel.consume("s", arguments=arguments, inactivity_timeout=PATIENCE_S):
            assert method is not None, f"{name} has got {found}"
            found.append(int(properties.headers["x-stream-offset"]))
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
        # The answer comes after the acks have come.
        channel.queue_declare("s", passive=True)
    finally:
        channel.connection.close()
    return found


def test_another_reader_takes_nobodys_offset_away(tmp_path: Path) -> None:
    with Node(tmp_path, "--disk-free-min-bytes", "1MiB", "--stream-names-max", str(NAMES_MAX)) as node:
        channel = connect(node)
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        for number in range(9):
            channel.basic_publish("", "s", b"%d" % number)
        channel.connection.close()
        for name in ("victim", "b", "c"):
            assert read(node, name, 3) == [0, 1, 2]
        for restarts in range(2):
            for name in ("d", "e"):
                with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
                    read(node, name, 1)
                assert refused.value.reply_code == 406
                assert (
                    f"stores {NAMES_MAX} named offsets already (stream_names_max)" in refused.value.reply_text
                )
            at = 3 * (restarts + 1)
            assert read(node, "victim", 3) == [at, at + 1, at + 2]
            node.kill()
            node.start()
