"""A super stream of one node grows by partitions while members of a group over it come and go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance_tests.patience import open_connection
from tests.reliability.group_members import Crowd, Publisher, Record
from tests.reliability.node import Node, wait_until
from tests.reliability.test_consumer_groups import GROUP, OPTIONS, lag, url

PARTITIONS = 2
EACH = 150
GROWS = 4


@pytest.mark.parametrize("seed", range(2))
def test_a_super_stream_grows_while_members_come_and_go(tmp_path: Path, seed: int) -> None:
    record, publisher = Record(), Publisher("orders")
    with Node(tmp_path, *OPTIONS) as node:
        here = url(node.port)
        connection = open_connection(here)
        channel = connection.channel()
        channel.exchange_declare(
            "orders", "x-super-stream", durable=True, arguments={"x-partitions": PARTITIONS}
        )
        channel.queue_declare("billing", durable=True, arguments=GROUP)
        connection.close()

        def wait(what: str, holds: Callable[[], bool]) -> None:
            wait_until(what, lambda: bool(record.errors) or holds(), state=record.state)
            assert not record.errors, record.errors

        with Crowd(lambda: [here], "billing", record, seed):
            for _ in range(GROWS):
                publisher.publish(here, EACH)
                node.mqctl("add_partitions", "orders", "1")
            publisher.publish(here, EACH)
            wait("the members have seen all", lambda: record.count == publisher.count)
        # New members ack the messages that the last ones left.
        with Crowd(lambda: [here], "billing", record, seed + 1000):
            wait("nothing is left", lambda: lag(node) == 0)
    assert record.count == publisher.count and record.done
    assert set(record.next) == {f"orders-{number}" for number in range(PARTITIONS + GROWS)}
