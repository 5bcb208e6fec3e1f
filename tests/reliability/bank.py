"""The bank: accounts are queues, coins are messages, and clients of all nodes move coins between accounts in
transactions, while nodes are killed and frozen.

A transfer takes a few coins out of one account, puts them into another one, and writes its number into two
books, which are streams: all of it in one transaction. In the end each coin is in exactly one account, and
the two books have the same transfers.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.amqp_server.cluster.ring import Ring
from tests.reliability.node import wait_until

#: Accounts by name, with the arguments of their queues.
ACCOUNTS: dict[str, dict[str, Any]] = {
    "savings 1": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    "savings 2": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    "savings 3": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    "current 1": {"x-queue-type": "classic"},
    "current 2": {"x-queue-type": "classic"},
}
BOOKS = ("book 1", "book 2")
COINS = 200
DURABLE = pika.BasicProperties(delivery_mode=2)


class Bank:
    def __init__(self, ring: Ring, seed: int) -> None:
        self.ring = ring
        self.random = random.Random(seed)
        self.ends = threading.Event()
        self.count: Counter[str] = Counter()
        self.errors: list[str] = []

    def open(self) -> None:
        with self.ring.connection(self.ring.names[0]) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            # Homes of classic queues are spread over the nodes.
            for number, (name, arguments) in enumerate(ACCOUNTS.items()):
                with self.ring.connection(self.ring.names[number % len(self.ring.names)]) as other:
                    other.channel().queue_declare(name, durable=True, arguments=arguments)
            for book in BOOKS:
                channel.queue_declare(book, durable=True, arguments={"x-queue-type": "stream"})
            for coin in range(COINS):
                account = list(ACCOUNTS)[coin % len(ACCOUNTS)]
                channel.basic_publish("", account, b"coin %d" % coin, DURABLE, mandatory=True)

    def work(self, number: int) -> None:
        """Move coins until the end; begin anew after each error."""
        chance, transfer = random.Random(f"clerk {number}"), 0
        while not self.ends.is_set():
            running = [name for name in self.ring.names if self.ring.nodes[name].running]
            try:
                connection = self.ring.connect(chance.choice(running), blocked_connection_timeout=20)
                channel = connection.channel()
                channel.tx_select()
                while not self.ends.is_set():
                    transfer += 1
                    self._move(channel, chance, f"{number}/{transfer}")
            except (pika.exceptions.AMQPError, OSError, IndexError) as error:
                self.count[f"failed: {type(error).__name__}"] += 1
                time.sleep(chance.random() / 2)

    def _move(self, channel: BlockingChannel, chance: random.Random, name: str) -> None:
        source, target = chance.sample(list(ACCOUNTS), 2)
        taken = []
        for _ in range(chance.choice((1, 1, 3))):
            method, _, body = channel.basic_get(source)
            if method is not None:
                taken.append(method.delivery_tag)
                channel.basic_publish("", target, body, DURABLE)
        for tag in taken:
            channel.basic_ack(tag)
        for book in BOOKS:
            channel.basic_publish("", book, name.encode(), DURABLE)
        channel.tx_commit()
        self.count["committed"] += 1

    def trouble(self, seconds: float, every: float) -> None:
        """Kill or freeze one node after the other."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(every * self.random.uniform(0.5, 1.5))
            name = self.random.choice(self.ring.names)
            node = self.ring.nodes[name]
            if self.random.random() < 0.6:
                self.count["killed"] += 1
                node.kill()
                time.sleep(self.random.uniform(0, 2))
                self.ring.start(name)
            else:
                self.count["frozen"] += 1
                os.kill(node.pid, signal.SIGSTOP)
                time.sleep(self.random.uniform(0.2, 4))
                os.kill(node.pid, signal.SIGCONT)

    def audit(self) -> None:
        """Count everything. Raises AssertionError."""
        wait_until("no transaction is open", self._is_decided, state=self.ring.logs)
        coins: Counter[bytes] = Counter()
        with self.ring.connection(self.ring.names[0]) as connection:
            channel = connection.channel()
            for account in ACCOUNTS:
                while True:
                    method, _, body = channel.basic_get(account, auto_ack=True)
                    if method is None:
                        break
                    coins[body] += 1
            books = [self._read(channel, book) for book in BOOKS]
        lost = [coin for coin in range(COINS) if not coins[b"coin %d" % coin]]
        twice = [coin for coin, count in coins.items() if count > 1]
        assert not lost and not twice, f"lost: {lost}, twice: {twice}"
        assert books[0] == books[1], books[0] ^ books[1]
        self.count["in the books"] = len(books[0])
        assert self.count["in the books"] >= self.count["committed"] > 0

    def _is_decided(self) -> bool:
        """True if no account has coins that are with nobody: the counts of all accounts make all coins."""
        total = 0
        with self.ring.connection(self.ring.names[0]) as connection:
            channel = connection.channel()
            for account in ACCOUNTS:
                total += channel.queue_declare(account, passive=True).method.message_count
        return total == COINS

    def _read(self, channel: BlockingChannel, book: str) -> set[bytes]:
        found: list[bytes] = []
        channel.basic_qos(prefetch_count=1000)

        def take(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
            found.append(body)
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume(book, take, arguments={"x-stream-offset": "first"})
        still, before = 0, -1
        while still < 10:
            channel.connection.process_data_events(time_limit=0.2)
            still = still + 1 if len(found) == before else 0
            before = len(found)
        assert len(found) == len(set(found)), "a transfer is in a book twice"
        return set(found)


def run(ring: Ring, *, seconds: float, every: float, clerks: int = 4, seed: int = 1) -> Counter[str]:
    """Let clerks move coins for so long, with trouble in such intervals; return counts of what happened."""
    bank = Bank(ring, seed)
    bank.open()
    threads = [threading.Thread(target=bank.work, args=(number,)) for number in range(clerks)]
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
    with tempfile.TemporaryDirectory() as directory, Ring(Path(directory)) as ring:
        print(run(ring, seconds=arguments.seconds, every=arguments.every, seed=arguments.seed))


if __name__ == "__main__":
    main()
