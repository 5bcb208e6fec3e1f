"""The bank: accounts are queues, coins are messages, and clients of all nodes move coins between accounts in
transactions, while nodes are killed and frozen and links are cut.

A transfer takes a few coins out of one account, puts them into another one, and writes two lines into each of
two books, which are streams, and one receipt into a super stream: all of it in one transaction. Accountants
are a consumer group over the receipts: in a transaction each they take some, and write their sum into another
stream. Readers read a book all the time. The judge of history.py then looks at what all of them did and saw:
no coin is lost or doubled, each receipt is in one sum, and nobody saw a part of a transaction.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from conformance_tests.patience import patient
from tests.cluster.links import isolate
from tests.cluster.mqd import HOST, MqdCluster
from tests.cluster.nodes import wait_for
from tests.reliability.history import History, Reading, Transaction
from tests.reliability.node import Node

#: Accounts by name, with the arguments of their queues.
ACCOUNTS: dict[str, dict[str, Any]] = {
    "savings 1": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    "savings 2": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    "savings 3": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    "current 1": {"x-queue-type": "classic"},
    "current 2": {"x-queue-type": "classic"},
}
BOOKS, SUMS = ("book 1", "book 2"), "sums"
#: A super stream, its partitions, and the group that reads it.
RECEIPTS, PARTITIONS, AUDIT = "receipts", 3, "audit"
COINS = 200
#: The share of the transactions that their clients roll back.
ROLLED_BACK = 0.1
DURABLE = pika.BasicProperties(delivery_mode=2)
BROKEN = (AMQPError, OSError, IndexError)


class Nodes(Protocol):
    """The nodes under test; see MqdCluster."""

    @property
    def names(self) -> Sequence[str]: ...
    def port(self, name: str) -> int: ...
    def mqctl(self, name: str, *arguments: str) -> str: ...
    def kill(self, name: str) -> None: ...
    def launch(self, name: str) -> None: ...
    def ready(self, name: str) -> None: ...


class Alone:
    """One node, which is no cluster."""

    names = ("alone",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def port(self, name: str) -> int:
        return self._node.port

    def mqctl(self, name: str, *arguments: str) -> str:
        return self._node.mqctl(*arguments)

    def kill(self, name: str) -> None:
        self._node.kill()

    def launch(self, name: str) -> None:
        self._node.launch()

    def ready(self, name: str) -> None:
        self._node.ready()


#: What a client does again and again, under a new name each time.
Work = Callable[[Any, random.Random, str], None]


class Bank:
    def __init__(self, cluster: Nodes, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.ends = threading.Event()
        self.count: Counter[str] = Counter()
        partitions = {f"{RECEIPTS}-{number}" for number in range(PARTITIONS)}
        self.history = History([f"coin {coin}" for coin in range(COINS)], grouped=partitions)

    @contextmanager
    def channel(self, name: str) -> Iterator[BlockingChannel]:
        where = pika.ConnectionParameters(
            HOST, self.cluster.port(name), heartbeat=0, blocked_connection_timeout=20
        )
        connection = pika.BlockingConnection(patient(where))
        try:
            yield connection.channel()
        finally:
            with suppress(*BROKEN):
                connection.close()

    def open(self) -> None:
        names = self.cluster.names
        for number, (account, arguments) in enumerate(ACCOUNTS.items()):
            # Homes of classic queues are spread over the nodes.
            with self.channel(names[number % len(names)]) as channel:
                channel.queue_declare(account, durable=True, arguments=arguments)
        with self.channel(names[0]) as channel:
            for stream in (*BOOKS, SUMS):
                channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
            arguments = {"x-partitions": PARTITIONS}
            channel.exchange_declare(RECEIPTS, "x-super-stream", durable=True, arguments=arguments)
            group = {"x-queue-type": "stream-group", "x-stream": RECEIPTS, "x-stream-offset": "first"}
            channel.queue_declare(AUDIT, durable=True, arguments=group)
            channel.confirm_delivery()
            for number, coin in enumerate(self.history.first):
                account = list(ACCOUNTS)[number % len(ACCOUNTS)]
                channel.basic_publish("", account, coin.encode(), DURABLE, mandatory=True)

    # -- clients ---------------------------------------------------------------------------------------------

    def work(self, name: str, does: Work) -> None:
        """Do so until the end, through any node; begin anew after each error."""
        chance, number = random.Random(name), 0
        while not self.ends.is_set():
            with suppress(*BROKEN), self.channel(chance.choice(self.cluster.names)) as channel:
                while not self.ends.is_set():
                    number += 1
                    does(channel, chance, f"{name}/{number}")
            self.ends.wait(chance.random() / 2)

    def move(self, channel: BlockingChannel, chance: random.Random, name: str) -> None:
        source, target = chance.sample(list(ACCOUNTS), 2)
        found = Transaction(name)
        channel.tx_select()
        self.history.transactions.append(found)
        taken = []
        for number in range(chance.choice((1, 1, 3))):
            method, _, body = channel.basic_get(source)
            if method is not None:
                found.taken.append(body.decode())
                taken.append(method.delivery_tag)
                self._put(channel, found, target, f"{name}/{number}")
        for tag in taken:
            channel.basic_ack(tag)
        for book in BOOKS:
            for line in ("from", "to"):
                self._put(channel, found, book, f"{book}: {name} {line}")
        partition = chance.randrange(PARTITIONS)
        self._put(channel, found, f"{RECEIPTS}-{partition}", f"receipt {name}")
        self._end(channel, chance, found)

    def add_up(self, channel: BlockingChannel, chance: random.Random, name: str) -> None:
        """A member of the group: take receipts until the end, and write the sum of some at a time."""
        channel.tx_select()
        channel.basic_qos(prefetch_count=50)
        most, number, found = chance.choice((1, 5, 20)), 0, Transaction(f"{name}.0")
        for method, _, body in channel.consume(AUDIT, inactivity_timeout=0.5):
            if method is not None:
                found.taken.append(body.decode())
                last = method.delivery_tag
            if found.taken and (method is None or len(found.taken) >= most):
                self.history.transactions.append(found)
                self._put(channel, found, SUMS, f"sum {found.name}")
                channel.basic_ack(last, multiple=True)
                self._end(channel, chance, found, may_roll_back=False)
                number += 1
                found = Transaction(f"{name}.{number}")
            if self.ends.is_set():
                return

    def _put(self, channel: BlockingChannel, found: Transaction, place: str, message: str) -> None:
        found.put.setdefault(place, []).append(message)
        channel.basic_publish("", place, message.encode(), DURABLE)

    def _end(
        self,
        channel: BlockingChannel,
        chance: random.Random,
        found: Transaction,
        *,
        may_roll_back: bool = True,
    ) -> None:
        if may_roll_back and chance.random() < ROLLED_BACK:
            channel.tx_rollback()
            channel.basic_recover(requeue=True)
            channel.tx_commit()
            self.count["rolled back"] += 1
            return
        found.sent_at, found.committed = time.monotonic(), None
        try:
            channel.tx_commit()
        except ChannelClosedByBroker as closed:
            self.count[f"refused {closed.reply_code}"] += 1
            if closed.reply_code == 406:
                found.committed = False
            raise
        except BROKEN:
            self.count["unknown"] += 1
            raise
        found.committed = True
        self.count["committed" if SUMS not in found.put else "sums"] += 1

    def read(self, channel: BlockingChannel, chance: random.Random, _: str) -> None:
        """Read a book from its beginning, as long as that goes well."""
        reading = Reading(chance.choice(BOOKS))
        self.history.readings.append(reading)
        channel.basic_qos(prefetch_count=500)
        begins = {"x-stream-offset": "first"}
        for method, properties, body in channel.consume(
            reading.stream, inactivity_timeout=0.5, arguments=begins
        ):
            if method is not None:
                offset = properties.headers["x-stream-offset"]
                reading.seen.append((offset, body.decode(), time.monotonic()))
                channel.basic_ack(method.delivery_tag)
            if self.ends.is_set() or chance.random() < 0.001:
                break
        channel.cancel()

    # -- trouble ---------------------------------------------------------------------------------------------

    def trouble(self, seconds: float, every: float) -> None:
        """Kill, freeze or cut off one node after the other. One that is alone is killed."""
        cluster, chance = self.cluster, self.random
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(every * chance.uniform(0.5, 1.5))
            name, which = chance.choice(cluster.names), chance.random()
            if which < 0.4 or not isinstance(cluster, MqdCluster):
                self.count["killed"] += 1
                cluster.kill(name)
                time.sleep(chance.uniform(0, 2 if len(cluster.names) > 1 else 0.2))
                cluster.launch(name)
                cluster.ready(name)
            elif which < 0.7:
                self.count["frozen"] += 1
                cluster.freeze(name)
                time.sleep(chance.uniform(0.2, 4))
                cluster.thaw(name)
            else:
                self.count["cut off"] += 1
                isolate(cluster.links, name, cluster.names, **{chance.choice(("hold", "cut")): True})
                time.sleep(chance.uniform(0.2, 4))
                isolate(cluster.links, name, cluster.names)

    # -- the end ---------------------------------------------------------------------------------------------

    def audit(self) -> None:
        """Empty and read everything, and judge. Raises AssertionError."""
        wait_for("all transactions are decided", self._is_decided)
        with self.channel(self.cluster.names[0]) as channel:
            for account in ACCOUNTS:
                self.history.left[account] = list(self._emptied(channel, account))
            self.history.left[AUDIT] = []
            for method, _, body in channel.consume(AUDIT, inactivity_timeout=3, auto_ack=True):
                if method is None:
                    break
                self.history.left[AUDIT].append(body.decode())
            channel.cancel()
            for stream in (*BOOKS, SUMS, *sorted(self.history.grouped)):
                self.history.streams[stream] = self._whole(channel, stream)
        self.count["happened"] = len(self.history.happened())
        wrong = self.history.judge()
        assert not wrong, f"{len(wrong)} anomalies: {wrong[:10]}; {self.count}"

    def _is_decided(self) -> bool:
        told = self.cluster.mqctl(self.cluster.names[0], "--formatter", "json", "list_transactions")
        return not json.loads(told)

    def _emptied(self, channel: BlockingChannel, account: str) -> Iterator[str]:
        while True:
            method, _, body = channel.basic_get(account, auto_ack=True)
            if method is None:
                return
            yield body.decode()

    def _whole(self, channel: BlockingChannel, stream: str) -> Reading:
        found = Reading(stream)
        count = channel.queue_declare(stream, passive=True).method.message_count
        channel.basic_qos(prefetch_count=1000)
        begins = {"x-stream-offset": "first"}
        while len(found.seen) < count:
            for method, properties, body in channel.consume(stream, inactivity_timeout=20, arguments=begins):
                assert method is not None, f"{stream} has {count} messages, and {len(found.seen)} came"
                offset = properties.headers["x-stream-offset"]
                found.seen.append((offset, body.decode(), time.monotonic()))
                channel.basic_ack(method.delivery_tag)
                if len(found.seen) == count:
                    break
        channel.cancel()
        return found


def run(cluster: Nodes, *, seconds: float, every: float, clerks: int = 4, seed: int = 1) -> Counter[str]:
    """Let clerks move coins for so long, with trouble in such intervals; return counts of what happened."""
    bank = Bank(cluster, seed)
    bank.open()
    workers: dict[str, Work] = {f"clerk {number}": bank.move for number in range(clerks)}
    workers |= {f"accountant {number}": bank.add_up for number in range(2)}
    workers |= {"reader": bank.read}
    threads = [threading.Thread(target=partial(bank.work, *each)) for each in workers.items()]
    for thread in threads:
        thread.start()
    try:
        bank.trouble(seconds, every)
    finally:
        bank.ends.set()
        for thread in threads:
            thread.join()
    bank.audit()
    return bank.count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--every", type=float, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with MqdCluster() as cluster:
        print(run(cluster, seconds=arguments.seconds, every=arguments.every, seed=arguments.seed))


if __name__ == "__main__":
    main()
