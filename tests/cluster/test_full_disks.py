"""The disk of one node is full to the last byte: the other nodes and their clients go on, nobody fills its
memory, and it comes back by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pamqp import commands

from conformance_tests.patience import PATIENCE_S
from tests.cluster import disks
from tests.cluster.links import Unsupported
from tests.cluster.mqd import ApiFailed, MqdCluster
from tests.cluster.nodes import wait_for
from tests.reliability.bodies import body, number
from tests.reliability.client import Address, Client, Confirm, Delivery, Gone

ROOM_BYTES = 64 << 20
QUORUM: dict[str, Any] = {"x-queue-type": "quorum", "x-queue-leader-locator": "client-local"}
STREAM: dict[str, Any] = {"x-queue-type": "stream", "x-queue-leader-locator": "client-local"}
BODY_BYTES = 20_000
#: Until the node notices.
MESSAGES_MAX = 100
#: What a client of another node sends to a classic queue of the full one.
FLOOD = 1_500
#: How much the memory of the full node may grow meanwhile: it keeps the messages of queues that go on, 8 MB,
#: and some that were under way, usually 5 MB; but not the flood, 30 MB.
GROWTH_MAX_BYTES = 22 << 20
#: How long a client waits for a node that does not apply its change; see topology_progress.
SPREAD_S = 1.0

Clients = Callable[[str], Client]


@pytest.fixture
def cluster() -> Iterator[MqdCluster]:
    with MqdCluster() as started:
        started.stop("n1")
        try:
            started.confine("n1", disks.used_bytes(started.data("n1")) + ROOM_BYTES)
        except Unsupported as why:
            pytest.skip(str(why))
        started.restart("n1")
        wait_for("all nodes see each other", started._formed)
        yield started


@pytest.fixture
def clients(cluster: MqdCluster) -> Iterator[Clients]:
    with ExitStack() as stack:

        def connect(name: str) -> Client:
            client = Client(cluster.port(name))
            stack.callback(client.close)
            return client

        yield connect


def has_alarm(cluster: MqdCluster, at: str) -> bool:
    try:
        told = cluster._api("GET", at, "/api/alarms")
    except ApiFailed:
        # On a busy machine an answer may be lost; a node that has ended has no alarm later on, either.
        return False
    return any(each["node"] == "n1" and each["name"] == "disk" for each in told)


def fill(cluster: MqdCluster, client: Client) -> int:
    """Another program takes all room; the node notices with the client's next messages. Return how many there
    were: what has room already, such as a part of the log, may take some.
    """
    disks.fill(cluster.data("n1"))
    sent = 0

    def seen() -> list[bool]:
        return [has_alarm(cluster, at) for at in cluster.names]

    def alarmed() -> bool:
        nonlocal sent
        if sent < MESSAGES_MAX and not any(seen()):
            try:
                client.send(Address("", "classic").message(body(1, BODY_BYTES)))
            except Gone as gone:
                running = cluster._nodes["n1"].running
                raise AssertionError(f"{gone}; n1 runs: {running}\n{cluster.log('n1')[-3000:]}") from gone
            sent += 1
        return all(seen())

    wait_for("all nodes show the alarm", alarmed, state=lambda: f"{seen()} after {sent} messages")
    return sent


def memory_bytes(cluster: MqdCluster, name: str) -> int:
    (row,) = [each for each in cluster._api("GET", name, "/api/nodes") if each["name"] == name]
    return int(row["mem_used"])


class Publisher:
    def __init__(self, client: Client, queue: str) -> None:
        self.client = client
        client.confirms()
        self._address = Address("", queue)
        self._unsent = b""
        self.sent = self.confirmed = 0

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            self._unsent += self._address.message(body(self.sent, BODY_BYTES))

    def look(self) -> bool:
        """Send and take what goes now; return whether all is confirmed."""
        if self._unsent:
            self._unsent = self.client.send_some(self._unsent)
        for event in self.client.receive(0.02):
            assert isinstance(event, Confirm) and not event.nack, event
            self.confirmed = event.tag if event.multiple else self.confirmed + 1
        return self.confirmed == self.sent


def drained(client: Client, queue: str, count: int) -> list[int]:
    client.sync(100)
    arguments: Any = {"x-stream-offset": "first"} if queue == "stream" else None
    client.call(
        commands.Basic.Consume(queue=queue, consumer_tag="c", arguments=arguments), commands.Basic.ConsumeOk
    )
    found: list[int] = []
    while len(found) < count:
        for event in client.receive():
            assert isinstance(event, Delivery)
            found.append(number(event.body))
            client.ack(event.tag)
    return found


def test_a_full_disk_concerns_nobody_else_and_is_not_for_ever(cluster: MqdCluster, clients: Clients) -> None:
    client = clients("n1")
    client.declare("classic")
    client.declare("quorum", **QUORUM)
    client.declare("stream", **STREAM)
    clients("n2").declare("other")
    first = fill(cluster, client)
    before = memory_bytes(cluster, "n1")

    flood = Publisher(clients("n2"), "classic")
    flood.publish(FLOOD)
    wait_for("it is blocked", lambda: not flood.look() and bool(flood.client.blocked))
    assert "at node 'n1'" in flood.client.blocked[0]
    others = [Publisher(clients("n2"), name) for name in ("quorum", "stream", "other")]
    for other in others:
        other.publish(200)
    for other in others:
        wait_for("a queue with room goes on", other.look)
    assert not any(other.client.blocked for other in others)
    assert flood.confirmed == 0
    assert memory_bytes(cluster, "n1") - before < GROWTH_MAX_BYTES

    # No client of another node waits for the full one.
    declares = clients("n3")
    began = time.monotonic()
    for index in range(5):
        declares.declare(f"new-{index}")
    assert time.monotonic() - began < 5 * SPREAD_S

    disks.empty(cluster.data("n1"))
    wait_for("all is confirmed", flood.look, 4 * PATIENCE_S, lambda: f"{flood.confirmed} confirmed")
    assert flood.client.unblocked == 1
    wait_for("no alarm is left", lambda: not any(has_alarm(cluster, at) for at in cluster.names))
    assert all(cluster._nodes[at].running for at in cluster.names)
    # The first messages in the classic queue are those of `fill`.
    assert drained(clients("n1"), "classic", first + FLOOD)[first:] == list(range(1, FLOOD + 1))
    for name in ("quorum", "stream"):
        assert drained(clients("n1"), name, 200) == list(range(1, 201))
