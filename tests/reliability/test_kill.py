"""Kill -9 at random moments under load, again and again on one data directory: the broker keeps its
promises.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.reliability.bodies import body, number
from tests.reliability.client import Address, Client, Confirm
from tests.reliability.ledger import Found, Ledger
from tests.reliability.load import (
    Consumer,
    Publisher,
    TxPublisher,
    Worker,
    multiple,
    one_by_one,
    rejecting,
    returning,
)
from tests.reliability.node import Node, wait_until

PRIORITIES = 4
#: Messages of one round.
ENOUGH = 500
ARGUMENTS: dict[str, dict[str, Any]] = {
    "priority": {"x-max-priority": PRIORITIES - 1},
    "source": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
}
#: So small that most queued messages are paged out, also while the broker is killed.
BUDGET = ("--memory-budget-bytes", "2000000")


class World:
    """Queues, their ledgers, and the load on them."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.random = random.Random(seed)
        self.numbers = count(1)
        names = ("single", "multiple", "returned", "large", "copy1", "copy2", "tx1", "tx2", "source", "dead")
        self.ledgers = {name: Ledger(name) for name in names}
        self.ledgers["priority"] = Ledger("priority", lambda seq: (-(seq % PRIORITIES), seq))
        self.tx: TxPublisher | None = None

    def declare(self) -> None:
        client = Client(self.node.port)
        client.call(
            commands.Exchange.Declare(exchange="fan", exchange_type="fanout", durable=True),
            commands.Exchange.DeclareOk,
        )
        for name in self.ledgers:
            client.declare(name, **ARGUMENTS.get(name, {}))
        for name in ("copy1", "copy2"):
            client.call(commands.Queue.Bind(queue=name, exchange="fan"), commands.Queue.BindOk)
        client.close()

    def load(self, seconds: float) -> list[Worker]:
        port, ledgers = self.node.port, self.ledgers
        before = next(self.numbers)
        prioritised = [Address("", "priority", priority=level) for level in range(PRIORITIES)]

        def publisher(addresses: list[Address], size: int, *names: str) -> Publisher:
            return Publisher(port, self.numbers, addresses, size, [ledgers[name] for name in names])

        self.tx = TxPublisher(port, self.numbers, ledgers["tx1"], ledgers["tx2"])
        workers: list[Worker] = [
            self.tx,
            publisher([Address("", "single")], 100, "single"),
            publisher([Address("", "multiple")], 300, "multiple"),
            publisher([Address("", "returned")], 100, "returned"),
            publisher([Address("", "large")], 6_000, "large"),
            publisher([Address("fan", "")], 500, "copy1", "copy2"),
            publisher([Address("", "source")], 100, "source"),
            publisher(prioritised, 150, "priority"),
            Consumer(port, ledgers["single"], one_by_one),
            Consumer(port, ledgers["multiple"], multiple),
            Consumer(port, ledgers["returned"], returning),
            Consumer(port, ledgers["copy1"], one_by_one),
            Consumer(port, ledgers["source"], rejecting, **ARGUMENTS["source"]),
            Consumer(port, ledgers["priority"], one_by_one, **ARGUMENTS["priority"]),
        ]
        time.sleep(seconds)
        # And longer on a slow machine, because too little load would prove too little.
        wait_until("there is some load", lambda: next(self.numbers) - before > ENOUGH)
        return workers

    def check(self, *, drain: bool) -> None:
        """Look at every message of every queue, and take it or leave it."""
        client = Client(self.node.port)
        found = {name: self._look(name) for name in self.ledgers}
        self._check_dead(found["source"], found["dead"])
        if self.tx is not None:
            self._check_groups(found["tx1"], found["tx2"])
        for name, ledger in self.ledgers.items():
            if name != "dead":
                ledger.check(found[name], Consumer.PREFETCH)
        for name, ledger in self.ledgers.items():
            ledger.adopt(found[name])
        if drain:
            for name in self.ledgers:
                self._drain(client, name)
        client.close()

    def _look(self, queue: str) -> list[Found]:
        client = Client(self.node.port)
        waiting = client.count(queue)
        client.consume(queue, 0)
        found = [
            Found(number(delivery.body), delivery.redelivered) for delivery in client.deliveries(waiting)
        ]
        client.sync(0)
        assert not client.events, f"{queue}: more than the {waiting} messages that it said it had"
        client.close()
        return found

    def _drain(self, client: Client, queue: str) -> None:
        waiting = client.count(queue)
        if waiting:
            client.consume(queue, 0)
            client.ack(client.deliveries(waiting)[-1].tag, multiple=True)
            client.cancel()
        client.declare(queue, **ARGUMENTS.get(queue, {}))
        # If any message of it comes back, the ledger does not know it.
        self.ledgers[queue].adopt([])

    def _check_dead(self, source: list[Found], dead: list[Found]) -> None:
        """A rejected message is in the one queue or in the other, never in both, never in none."""
        ledger, letters = self.ledgers["source"], self.ledgers["dead"]
        here, there = [m.seq for m in source], [m.seq for m in dead]
        assert not set(here) & set(there), "rejected and dead-lettered, and back as well"
        assert len(set(there)) == len(there), "dead-lettered twice"
        assert there == sorted(there), "dead letters out of order"
        lost = (ledger.confirmed | letters.confirmed) - letters.acked - set(here) - set(there)
        assert not lost, f"{len(lost)} messages lost between the queues, such as {sorted(lost)[:10]}"
        strange = set(there) - letters.published - ledger.acked
        assert not strange, f"dead-lettered without a reject: {sorted(strange)[:10]}"

    def _check_groups(self, first: list[Found], second: list[Found]) -> None:
        here, there = {m.seq for m in first}, {m.seq for m in second}
        assert self.tx is not None
        for group in self.tx.groups:
            present = [seq in here for seq in group] + [seq in there for seq in group]
            assert all(present) or not any(present), f"half a transaction: {group} {present}"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, *BUDGET) as started:
        yield started


def rounds(node: Node, seed: int, how_many: int) -> World:
    """Load, kill, restart, check; also kill while it recovers."""
    world = World(node, seed)
    world.declare()
    for index in range(how_many):
        workers = world.load(1.5 + world.random.random())
        node.kill()
        for worker in workers:
            worker.join()
        for _ in range(index % 3):
            node.launch()
            time.sleep(world.random.random() * 0.5)
            node.kill()
        node.start()
        world.check(drain=index % 3 == 2)
    return world


def test_killed_under_load(node: Node) -> None:
    rounds(node, seed=1, how_many=4)


def test_stopped_under_load(node: Node) -> None:
    """SIGTERM: exit code 0, and everything that holds for kill -9."""
    world = World(node, 2)
    world.declare()
    for drain in (False, True):
        workers = world.load(1.5)
        assert node.stop(signal.SIGTERM) == 0
        for worker in workers:
            worker.join()
        node.start()
        world.check(drain=drain)


def test_redelivered_is_exact(node: Node) -> None:
    """Exactly those that had been handed out come back flagged, after each of several kills."""
    client = Client(node.port)
    client.declare("q")
    client.confirms()
    address = Address("", "q")
    client.send(b"".join(address.message(body(seq, 100)) for seq in range(1, 501)))
    confirmed = 0
    while confirmed < 500:
        for event in client.receive():
            assert isinstance(event, Confirm)
            confirmed = event.tag if event.multiple else confirmed + 1
    handed_out = 0
    for prefetch in (7, 120, 121, 499):
        client = Client(node.port)
        client.consume("q", prefetch)
        got = client.deliveries(prefetch)
        client.sync(prefetch)
        assert not client.events
        assert [number(m.body) for m in got] == list(range(1, prefetch + 1))
        assert [m.redelivered for m in got] == [seq <= handed_out for seq in range(1, prefetch + 1)]
        handed_out = prefetch
        node.kill()
        client.close()
        node.start()


@pytest.mark.parametrize("how", ["answer", "time"])
def test_acks_hold_after_an_answer_from_the_disk_or_a_second(node: Node, how: str) -> None:
    """An answer that follows the sync vouches for the acks before it; without such an answer, the next commit
    has them.
    """
    client = Client(node.port)
    client.declare("q")
    client.confirms()
    address = Address("", "q")
    client.send(b"".join(address.message(body(seq, 100)) for seq in range(1, 201)))
    client.consume("q", 0)
    got = client.deliveries(200)
    for message in got[::2]:
        client.ack(message.tag)
    if how == "answer":
        client.declare("q")
    else:
        client.sync(0)
        time.sleep(1.0)
    node.kill()
    client.close()
    node.start()
    client = Client(node.port)
    waiting = client.count("q")
    client.consume("q", 0)
    assert [(number(m.body), m.redelivered) for m in client.deliveries(waiting)] == [
        (seq, True) for seq in range(2, 201, 2)
    ]
    client.close()
