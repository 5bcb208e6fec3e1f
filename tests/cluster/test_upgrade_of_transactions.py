"""Clients move coins between queues in transactions while a cluster of the last release is upgraded.

Until all nodes know how, a cluster does not decide about transactions: a failure may leave a message in both
queues (see docs/transactions.md). So no coin is ever lost, and a coin is there twice only if the client that
moved it did not hear what became of its commit. Once the cluster is upgraded, no coin is doubled any more.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from conformance_tests.patience import patient
from quorum_queue.machine import versions
from tests.cluster import releases
from tests.cluster.mqd import HOST, TROUBLED, MqdCluster
from tests.cluster.nodes import wait_for
from tests.cluster.test_upgrade import version

OLD = releases.program(releases.WHEELS[-1])
ACCOUNTS: dict[str, dict[str, Any]] = {
    "savings 1": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    "savings 2": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    "current": {"x-queue-type": "classic"},
}
COINS, CLERKS = 60, 3
#: Seconds for which both versions serve together after each node, and seconds of kills at the end.
MIXED_S, KILLS_S = 2.0, 6.0
DURABLE = pika.BasicProperties(delivery_mode=2)
BROKEN = (AMQPError, OSError, IndexError)


class Clerks:
    def __init__(self, cluster: MqdCluster) -> None:
        self.cluster = cluster
        self.ends = threading.Event()
        self.committed = 0
        #: Coins in commits whose clients do not know what became of them.
        self.doubtful: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(CLERKS)]

    def channel(self, name: str) -> BlockingChannel:
        where = pika.ConnectionParameters(
            HOST, self.cluster.port(name), heartbeat=0, blocked_connection_timeout=20
        )
        return pika.BlockingConnection(patient(where)).channel()

    def __enter__(self) -> Clerks:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        chance = random.Random(number)
        while not self.ends.is_set():
            with suppress(*BROKEN):
                channel = self.channel(chance.choice(self.cluster.names))
                try:
                    channel.tx_select()
                    while not self.ends.is_set():
                        self._move(channel, chance)
                finally:
                    with suppress(*BROKEN):
                        channel.connection.close()
            self.ends.wait(0.1)

    def _move(self, channel: BlockingChannel, chance: random.Random) -> None:
        source, target = chance.sample(list(ACCOUNTS), 2)
        coins: list[str] = []
        for _ in range(chance.choice((1, 3))):
            method, _, body = channel.basic_get(source)
            if method is not None:
                coins.append(body.decode())
                channel.basic_publish("", target, body, DURABLE)
                channel.basic_ack(method.delivery_tag)
        try:
            channel.tx_commit()
        except BROKEN:
            self.doubtful.update(coins)
            raise
        self.committed += 1

    def count(self) -> Counter[str]:
        """Take all coins out, and count them."""
        found: Counter[str] = Counter()
        channel = self.channel(self.cluster.names[0])
        for account in ACCOUNTS:
            while True:
                method, _, body = channel.basic_get(account)
                if method is None:
                    break
                found[body.decode()] += 1
        # All of them go back.
        channel.connection.close()
        return found


@pytest.mark.long
def test_coins_while_a_cluster_is_upgraded() -> None:
    with MqdCluster(program=OLD) as cluster:
        clerks = Clerks(cluster)
        coins = [f"coin {number}" for number in range(COINS)]
        for name, (account, arguments) in zip(cluster.names, ACCOUNTS.items(), strict=True):
            channel = clerks.channel(name)
            channel.queue_declare(account, durable=True, arguments=arguments)
            channel.confirm_delivery()
            for coin in coins[cluster.names.index(name) :: len(ACCOUNTS)]:
                channel.basic_publish("", account, coin.encode(), DURABLE, mandatory=True)
            channel.connection.close()
        with clerks:
            time.sleep(MIXED_S)
            for name in cluster.names:
                before = clerks.committed
                cluster.stop(name)
                cluster.run_as(name, TROUBLED)
                cluster.restart(name)
                time.sleep(MIXED_S)
                assert clerks.committed > before
            wait_for(
                "all nodes decide about transactions",
                lambda: all(version(cluster, name) == versions.NEWEST for name in cluster.names),
            )
        judge(clerks, coins)
        # Now they are atomic, whatever happens.
        upgraded = clerks.count()
        later = Clerks(cluster)
        chance, ends = random.Random(1), time.monotonic() + KILLS_S
        with later:
            while time.monotonic() < ends:
                name = chance.choice(cluster.names)
                cluster.kill(name)
                cluster.restart(name)
        assert later.committed > 10
        wait_for(
            "all transactions are decided", lambda: cluster.mqctl("n1", "-q", "list_transactions", "id") == ""
        )
        wait_for(
            "the sum is as it was",
            lambda: later.count() == upgraded,
            state=lambda: str(later.count() - upgraded),
        )


def judge(clerks: Clerks, coins: list[str]) -> None:
    # Messages that a connection held go back before long.
    wait_for("no coin is lost", lambda: set(clerks.count()) == set(coins), state=lambda: str(clerks.count()))
    more = Counter({coin: count - 1 for coin, count in clerks.count().items() if count > 1})
    assert more <= clerks.doubtful, (more, clerks.doubtful)
