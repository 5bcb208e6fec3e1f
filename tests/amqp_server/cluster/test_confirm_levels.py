"""Confirm levels on three real nodes, some of which are suspended for a while."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pika
import pytest
from pamqp import commands
from pika.exceptions import ChannelClosedByBroker

from tests.amqp_server.cluster.conftest import OPTIONS
from tests.amqp_server.cluster.ring import NAMES, QUORUM, Ring
from tests.reliability.client import Address, Client, Confirm
from tests.reliability.node import wait_until

#: How long the others take a suspended node for reachable.
DEAD_S = 3.0
#: How long a test waits for a confirm that must not come.
QUIET_S = 0.7
ROUNDS_MAX = 10
STREAM = {"x-queue-type": "stream"}
LED_HERE = {"x-queue-leader-locator": "client-local"}
LEADER, MAJORITY, ALL = "leader", "", "all"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    options = (*OPTIONS, "--cluster-dead-ms", str(int(DEAD_S * 1000)))
    with Ring(tmp_path_factory.mktemp("levels"), *options) as ring:
        yield ring
        for name, node in ring.nodes.items():
            assert "Traceback" not in node.log(), (name, node.log()[-6000:])


@pytest.fixture
def ring(started: Ring) -> Ring:
    started.heal()
    return started


@contextmanager
def frozen(ring: Ring, *names: str) -> Iterator[None]:
    """Within this, these nodes are suspended."""
    for name in names:
        os.kill(ring.nodes[name].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for name in names:
            os.kill(ring.nodes[name].pid, signal.SIGCONT)


def declare(ring: Ring, name: str, arguments: Mapping[str, object]) -> None:
    """Declare a queue that n1 leads, and wait until its members are there."""
    with ring.channel("n1") as channel:
        channel.queue_declare(name, durable=True, arguments={**arguments, **LED_HERE})

    def led() -> bool:
        told = ring.queue("n1", name)
        return bool(told["leader"] == "n1" and all(member["voter"] for member in told["members"]))

    wait_until(f"n1 leads {name}", led, state=lambda: str(ring.queue("n1", name)))


class Publisher:
    """A client that publishes with confirms to one queue."""

    def __init__(self, ring: Ring, at: str, queue: str, level: str, *, exchange: str = "") -> None:
        self.client = Client(ring.nodes[at].port)
        headers = {"x-confirm": level} if level else None
        self.address = Address(exchange, queue, headers=headers)
        self.client.confirms()
        self.published = self.confirmed = 0

    def publish(self) -> None:
        self.published += 1
        self.client.send(self.address.message(b"%d" % self.published))

    def is_confirmed(self, wait_s: float) -> bool:
        """Return whether all is confirmed within this time."""
        deadline = time.monotonic() + wait_s
        while self.confirmed < self.published:
            left = max(deadline - time.monotonic(), 0.0)
            for event in self.client.receive(left):
                assert isinstance(event, Confirm) and not event.nack
                self.confirmed = event.tag
            if not left:
                break
        return self.confirmed == self.published

    def close(self) -> None:
        self.client.close()


@contextmanager
def publishers(
    ring: Ring, where: list[tuple[str, str, str]]
) -> Iterator[dict[tuple[str, str, str], Publisher]]:
    """Return one publisher for each node, queue and level; each has published one message, which is
    confirmed.
    """
    found = {each: Publisher(ring, *each) for each in where}
    for each in found.values():
        each.publish()
        assert each.is_confirmed(30)
    try:
        yield found
    finally:
        for each in found.values():
            each.close()


def test_a_leader_confirms_alone_what_others_do_not_get(ring: Ring) -> None:
    """The confirm reaches a node without a copy, too. A transaction needs a majority."""
    declare(ring, "quorum", QUORUM)
    declare(ring, "stream", STREAM)
    # n3 has no copy of these; both members are a majority.
    two = QUORUM | {"x-quorum-initial-group-size": 2, "x-quorum-target-group-size": 2}
    declare(ring, "two", two)
    (other,) = [each["node"] for each in ring.queue("n1", "two")["members"] if each["node"] != "n1"]
    (without,) = [name for name in NAMES if name not in ("n1", other)]
    where = [(without, "two", level) for level in (LEADER, MAJORITY, ALL)]
    with publishers(ring, where) as found:
        with frozen(ring, other):
            for each in found.values():
                each.publish()
            assert found[without, "two", LEADER].is_confirmed(DEAD_S)
            assert not found[without, "two", MAJORITY].is_confirmed(QUIET_S)
            assert not found[without, "two", ALL].is_confirmed(0)
        assert all(each.is_confirmed(30) for each in found.values())
    where = [("n1", queue, level) for queue in ("quorum", "stream") for level in (LEADER, MAJORITY, ALL)]
    transactions = {level: Client(ring.nodes["n1"].port) for level in (LEADER, MAJORITY)}
    for client in transactions.values():
        client.call(commands.Tx.Select(), commands.Tx.SelectOk)
    with publishers(ring, where) as found:
        with frozen(ring, "n2", "n3"):
            for each in found.values():
                each.publish()
            for level, client in transactions.items():
                for queue in ("quorum", "stream"):
                    headers = {"x-confirm": level} if level else None
                    client.send(Address("", queue, headers=headers).message(b"tx"))
                client.method(commands.Tx.Commit())
            for (_, _, level), each in found.items():
                assert level != LEADER or each.is_confirmed(DEAD_S)
            # All of a transaction is there or none: no part of it may be lost with one disk.
            for client in transactions.values():
                assert list(client.receive(QUIET_S)) == []
            assert not any(each.is_confirmed(0) for (*_, level), each in found.items() if level != LEADER)
        assert all(each.is_confirmed(30) for each in found.values())
        for client in transactions.values():
            client.expect(commands.Tx.CommitOk)
    with ring.channel("n1", confirm=False) as channel:
        assert channel.queue_declare("quorum", passive=True).method.message_count == 8
    for client in transactions.values():
        client.close()


def reach(ring: Ring, name: str) -> list[str]:
    """Return the nodes that this one hears."""
    return [node["name"] for node in ring.status(name)["nodes"] if node["running"]]


def test_all_waits_for_a_follower_as_long_as_it_is_in_reach(ring: Ring) -> None:
    declare(ring, "slow", QUORUM)
    declare(ring, "slow-stream", STREAM)
    where = [
        (name, queue, level)
        for name in ("n1", "n2")
        for queue in ("slow", "slow-stream")
        for level in (LEADER, MAJORITY, ALL)
    ]
    with publishers(ring, where) as found:
        late = {each: publisher for each, publisher in found.items() if each[2] == ALL}
        for _ in range(ROUNDS_MAX):
            with frozen(ring, "n3"):
                for each in found.values():
                    each.publish()
                assert all(each.is_confirmed(30) for place, each in found.items() if place not in late)
                early = [place for place, each in late.items() if each.is_confirmed(QUIET_S / len(late))]
                # A busy machine may take so long for this that n3 counts as away, and nobody waits for it.
                is_in_reach = all("n3" in reach(ring, name) for name in ("n1", "n2"))
            # n3 has not been away for long.
            assert all(publisher.is_confirmed(30) for publisher in late.values())
            if is_in_reach:
                break
            ring.formed()
        assert is_in_reach and not early
        began = time.monotonic()
        with frozen(ring, "n3"):
            for publisher in late.values():
                publisher.publish()
            assert all(publisher.is_confirmed(30) for publisher in late.values())
            assert time.monotonic() - began > DEAD_S / 2
    ring.formed()


def test_a_message_for_several_queues_waits_for_each(ring: Ring) -> None:
    """A classic queue ignores the level."""
    declare(ring, "several", QUORUM)
    with ring.channel("n1") as channel:
        channel.exchange_declare("both", "fanout", durable=True)
        channel.queue_declare("plain", durable=True)
        for queue in ("several", "plain"):
            channel.queue_bind(queue, "both")
    found = {level: Publisher(ring, "n1", "", level, exchange="both") for level in (LEADER, MAJORITY, ALL)}
    with frozen(ring, "n2", "n3"):
        for publisher in found.values():
            publisher.publish()
        assert found[LEADER].is_confirmed(DEAD_S)
        assert not found[MAJORITY].is_confirmed(QUIET_S)
        assert not found[ALL].is_confirmed(0)
    assert all(publisher.is_confirmed(30) for publisher in found.values())
    for publisher in found.values():
        publisher.close()


@pytest.mark.parametrize("value", ["majority", "Leader", 1, b"\xff", {"leader": True}])
def test_another_value_is_refused_wherever_the_message_goes(ring: Ring, value: object) -> None:
    with ring.channel("n2") as channel:
        channel.queue_declare("any", durable=True)
        properties = pika.BasicProperties(headers={"x-confirm": value}, delivery_mode=2)
        with pytest.raises(ChannelClosedByBroker) as closed:
            channel.basic_publish("", "any", b"x", properties)
        assert closed.value.reply_code == 406
        assert "x-confirm" in str(closed.value.reply_text)
