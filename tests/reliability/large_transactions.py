"""Transactions of thousands of messages on one node, which is killed meanwhile: nobody sees a part of one."""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing, suppress
from typing import Any

from pamqp import commands

from tests.reliability.bodies import number
from tests.reliability.client import Address, ChannelClosed, Client, Gone
from tests.reliability.node import Node, wait_until

#: The queues of each transaction.
QUEUES: dict[str, dict[str, Any]] = {
    "large-classic": {},
    "large-quorum": {"x-queue-type": "quorum"},
}
#: Messages of a transaction in each queue.
PARTS = 4_000
BODY_BYTES = 100
#: Time from the first message of a transaction to the kill, at most, s.
KILL_WITHIN_S = 1.5
BROKEN = (Gone, OSError, TimeoutError, ChannelClosed)


class Rounds:
    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.random = random.Random(seed)
        self.committed = 0
        #: Commits whose answer did not come.
        self.unknown = 0
        self.looked = 0
        self.wrong: list[str] = []
        self._stopping = threading.Event()

    def run(self, kills: int) -> None:
        with closing(Client(self.node.port)) as client:
            for queue, arguments in QUEUES.items():
                client.declare(queue, **arguments)
        for _ in range(kills):
            self._stopping.clear()
            threads = [threading.Thread(target=each, daemon=True) for each in (self._commit, self._look)]
            for thread in threads:
                thread.start()
            time.sleep(self.random.uniform(0.1, KILL_WITHIN_S))
            self.node.kill()
            self._stopping.set()
            for thread in threads:
                thread.join()
            self.node.start()
            self._check()

    def _commit(self) -> None:
        addresses = [Address("", queue) for queue in QUEUES]
        with suppress(*BROKEN), closing(Client(self.node.port)) as client:
            client.call(commands.Tx.Select(), commands.Tx.SelectOk)
            while not self._stopping.is_set():
                client.publish_numbered(addresses, PARTS, BODY_BYTES)
                self.unknown += 1
                client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
                self.unknown -= 1
                self.committed += 1

    def _look(self) -> None:
        """Another client counts the messages all the time."""
        with suppress(*BROKEN), closing(Client(self.node.port)) as client:
            while not self._stopping.is_set():
                for queue in QUEUES:
                    count = client.count(queue)
                    self.looked += 1
                    if count % PARTS:
                        self.wrong.append(f"{queue} has {count} messages while transactions are committed")

    def _counts(self) -> set[int]:
        with closing(Client(self.node.port)) as client:
            return {client.count(queue) for queue in QUEUES}

    def _check(self) -> None:
        assert not self.wrong, self.wrong[:5]
        wait_until(
            "both queues have the same", lambda: len(self._counts()) == 1, state=lambda: str(self._counts())
        )
        (count,) = self._counts()
        assert count % PARTS == 0, f"{count} messages of transactions of {PARTS}"
        assert self.committed <= count // PARTS <= self.committed + self.unknown, (count, vars(self))

    def consume(self) -> None:
        """Each message of each transaction is there once."""
        (count,) = self._counts()
        for queue in QUEUES:
            seen: dict[int, int] = {}
            with closing(Client(self.node.port)) as client:
                client.consume(queue, 0)
                for event in client.deliveries(count):
                    seen[number(event.body)] = seen.get(number(event.body), 0) + 1
                client.ack(0, multiple=True)
                client.call(commands.Basic.Cancel(consumer_tag="c"), commands.Basic.CancelOk)
            assert len(seen) == (PARTS if count else 0) and len({*seen.values()}) <= 1, f"{queue}: {count}"


def large_transactions(node: Node, seed: int, kills: int) -> Rounds:
    """Kill the node so often. Raises AssertionError if a part of a transaction was seen, or is missing."""
    rounds = Rounds(node, seed)
    rounds.run(kills)
    assert rounds.looked > 10 * kills and rounds.committed + rounds.unknown > 0
    rounds.consume()
    return rounds
