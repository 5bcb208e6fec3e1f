"""A quorum queue comes to a client's node while messages wait there: in a transaction, or for the end of an
alarm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands

from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import wait_for
from tests.reliability.client import Address, Client, Confirm

QUEUE = "moves"
ARGUMENTS: dict[str, Any] = {
    "x-queue-type": "quorum", "x-quorum-initial-group-size": 1, "x-queue-leader-locator": "client-local",
}  # fmt: skip
BODIES = [b"%d" % number for number in range(10)]
MESSAGES = b"".join(map(Address("", QUEUE).message, BODIES))


@pytest.fixture(scope="module")
def cluster() -> Iterator[MqdCluster]:
    with MqdCluster() as started:
        yield started


@pytest.fixture
def client(cluster: MqdCluster) -> Iterator[Client]:
    """A client at n2 and a queue that only n1 keeps."""
    with contextlib.closing(Client(cluster.port("n1"))) as first:
        first.declare(QUEUE, **ARGUMENTS)
        assert members(cluster) == {"n1"}
        with contextlib.closing(Client(cluster.port("n2"))) as second:
            yield second
        first.call(commands.Queue.Delete(queue=QUEUE), commands.Queue.DeleteOk)


def members(cluster: MqdCluster) -> set[str]:
    return {member.node for member in cluster.members(QUEUE)}


def grow(cluster: MqdCluster) -> None:
    cluster.mqctl("n2", "cluster", "grow", "n2")

    def served() -> bool:
        found = {member.node: member for member in cluster.members(QUEUE)}
        return set(found) == {"n1", "n2"} and len({member.applied for member in found.values()}) == 1

    wait_for("n2 has the queue, too", served, state=lambda: str(cluster.members(QUEUE)))


def taken(cluster: MqdCluster) -> list[bytes]:
    """Return the messages of the queue, taken at a third node."""
    with contextlib.closing(Client(cluster.port("n3"))) as third:
        count = third.count(QUEUE)
        third.consume(QUEUE, 0)
        found = third.deliveries(count)
        third.ack(0, multiple=True)
        third.sync(0)
        assert third.count(QUEUE) == 0
        assert not any(delivery.redelivered for delivery in found)
        return [delivery.body for delivery in found]


def test_a_transaction_is_committed_to_a_queue_that_has_come(cluster: MqdCluster, client: Client) -> None:
    client.call(commands.Tx.Select(), commands.Tx.SelectOk)
    client.send(MESSAGES)
    client.sync(0)
    grow(cluster)
    client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
    assert taken(cluster) == BODIES


def test_what_an_alarm_holds_back_goes_to_a_queue_that_has_come(cluster: MqdCluster, client: Client) -> None:
    client.confirms()
    cluster.mqctl("n2", "set_vm_memory_high_watermark", "absolute", "1")
    try:
        client.send(MESSAGES)
        assert not list(client.receive(0.5))
        assert client.blocked == ["low on memory"]
        grow(cluster)
        assert not list(client.receive(0.5))
    finally:
        cluster.mqctl("n2", "set_vm_memory_high_watermark", "0.6")
    confirmed: list[int] = []
    while len(confirmed) < len(BODIES):
        for event in client.receive():
            assert isinstance(event, Confirm) and not event.nack, event
            confirmed += range(len(confirmed) + 1 if event.multiple else event.tag, event.tag + 1)
    assert confirmed == list(range(1, len(BODIES) + 1))
    assert client.unblocked == 1
    assert taken(cluster) == BODIES
