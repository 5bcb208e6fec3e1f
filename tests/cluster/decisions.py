"""Deletes on a condition, and counts, at nodes that are behind: what clients of other nodes were told before
must be in each answer.

A round declares a queue, publishes through one node and decides through another one: at once, while the
publisher goes on, after the deciding node stood still, or while the deciding node or the queue's leader is
killed. A queue that was deleted because it was empty must not have had a message that was confirmed before
the client asked; one that was not deleted must have all confirmed messages.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from pamqp import commands

from tests.cluster.mqd import MqdCluster
from tests.cluster.nodes import Cluster, wait_for
from tests.reliability.client import Address, ChannelClosed, Client, Confirm, Gone

TYPES: dict[str, dict[str, Any]] = {
    "quorum": {"x-queue-type": "quorum"},
    "stream": {"x-queue-type": "stream"},
    "classic": {},
}
#: How long a node stands still, s: shorter than others take to notice it, and longer.
PAUSES_S = (0.2, 3.0)
HOWS = ("at once", "under load", "frozen", "killed")
NODES = ("n1", "n2", "n3")


class Broken(AssertionError):
    """A decision was wrong."""


class Round:
    """One queue."""

    def __init__(self, cluster: Cluster, queue: str, kind: str, chance: random.Random) -> None:
        self.cluster = cluster
        self.queue = queue
        self.kind = kind
        self.chance = chance
        self.at, self.other = chance.sample(list(cluster.names), 2)
        self.publisher = Client(cluster.port(self.at))
        self.publisher.confirms()
        home = Client(cluster.port(self.at if kind == "classic" else chance.choice(list(cluster.names))))
        home.declare(queue, **TYPES[kind])
        home.close()
        self.decider = Client(cluster.port(self.other))
        self.decider.declare(queue, **TYPES[kind])
        self._message = Address("", queue).message(b"m")
        self.sent = self.confirmed = 0

    def close(self) -> None:
        self.publisher.close()
        self.decider.close()

    def publish(self, count: int) -> None:
        self.publisher.send(self._message * count)
        self.sent += count

    def hear(self, *, wait_s: float | None = None) -> None:
        """Take confirms: all of them, or those that come within a time."""
        until = time.monotonic() + (wait_s or 0)
        while self.confirmed < self.sent and (wait_s is None or time.monotonic() < until):
            for event in self.publisher.receive(wait_s):
                if isinstance(event, Confirm):
                    if event.nack:
                        # Its outcome is unknown: it may or may not be there.
                        raise Gone("a message was refused")
                    self.confirmed = event.tag if event.multiple else max(self.confirmed, event.tag)

    def ask(self) -> None:
        self.decider.method(commands.Queue.Delete(queue=self.queue, if_empty=True))

    def is_deleted(self) -> bool:
        """Return the answer to `ask`."""
        try:
            self.decider.expect(commands.Queue.DeleteOk)
        except ChannelClosed as error:
            # The link to a queue on one node breaks while a node stands still.
            if "not empty" not in str(error) and "down or inaccessible" not in str(error):
                raise
            return False
        return True

    def judge(self, confirmed: int, *, deleted: bool) -> None:
        """`confirmed` messages were confirmed when the client asked."""
        if deleted:
            if confirmed:
                raise Broken(f"{self.kind}: deleted if empty, with {confirmed} confirmed messages")
            return
        self.hear()
        at = self.chance.choice(list(self.cluster.names))
        with contextlib.closing(Client(self.cluster.port(at))) as client:
            found = client.count(self.queue)
        if found < self.confirmed:
            raise Broken(f"{self.kind}: {at} counts {found} messages, {self.confirmed} are confirmed")


def at_once(work: Round) -> bool:
    work.publish(1)
    work.hear()
    work.ask()
    deleted = work.is_deleted()
    work.judge(1, deleted=deleted)
    return deleted


def under_load(work: Round) -> bool:
    """The first message may come before the question or behind it."""
    work.publish(1)
    if work.chance.random() < 0.5:
        work.hear(wait_s=work.chance.choice((0.001, 0.01, 0.05)))
    confirmed = work.confirmed
    work.ask()
    work.publish(50)
    deleted = work.is_deleted()
    work.judge(confirmed, deleted=deleted)
    return deleted


def frozen(work: Round) -> bool:
    pause_s = work.chance.choice(PAUSES_S)
    if work.kind == "stream":
        # Its leader may be the one that stands still.
        pause_s = max(PAUSES_S)
    work.cluster.freeze(work.other)
    try:
        time.sleep(pause_s)
        work.publish(100)
        work.hear()
        work.ask()
    finally:
        work.cluster.thaw(work.other)
    deleted = work.is_deleted()
    work.judge(100, deleted=deleted)
    return deleted


def killed(work: Round) -> bool:
    """The deciding node is killed at some moment after the question: the queue is there with all messages, or
    gone, and none was confirmed before.
    """
    full = work.chance.random() < 0.5
    if full:
        work.publish(10)
        work.hear()
    work.ask()
    time.sleep(work.chance.choice((0.0, 0.002, 0.01, 0.05)))
    work.cluster.kill(work.other)
    try:
        if work.chance.random() < 0.5:
            work.publish(5)
        with contextlib.suppress(Gone):
            work.hear(wait_s=1.0)
    finally:
        work.cluster.restart(work.other)
    gone = _is_gone(work)
    if gone and full:
        raise Broken(f"{work.kind}: deleted if empty, with 10 confirmed messages")
    if not gone:
        with contextlib.closing(Client(work.cluster.port(work.at))) as client:
            wait_for(
                "the confirmed messages are there",
                lambda: _is_gone(work) or client.count(work.queue) >= work.confirmed,
            )
    return gone


def _is_gone(work: Round) -> bool:
    with contextlib.closing(Client(work.cluster.port(work.at))) as client:
        try:
            client.count(work.queue)
        except ChannelClosed as error:
            if "no queue" not in str(error):
                raise
            return True
    return False


ROUNDS: dict[str, Callable[[Round], bool]] = {
    "at once": at_once,
    "under load": under_load,
    "frozen": frozen,
    "killed": killed,
}


def one_round(cluster: Cluster, queue: str, kind: str, how: str, chance: random.Random) -> bool:
    """Return whether the queue was deleted. Raises Broken."""
    work = Round(cluster, queue, kind, chance)
    try:
        return ROUNDS[how](work)
    finally:
        work.close()


def decisions(seeds: range, rounds: int = 30) -> bool:
    """Print a line for each seed; return whether all decisions were right."""
    held = True
    for seed in seeds:
        chance, began = random.Random(seed), time.monotonic()
        deleted = count = 0
        with MqdCluster(NODES) as cluster:
            try:
                for count in range(1, rounds + 1):
                    how, kind = chance.choice(HOWS), chance.choice(list(TYPES))
                    deleted += one_round(cluster, f"decided-{count}", kind, how, chance)
            except Broken as error:
                held = False
                print(f"conditional deletes, seed {seed}, round {count}: {error}", flush=True)
        seconds = time.monotonic() - began
        print(
            f"conditional deletes, seed {seed}: {count} rounds, {deleted} deleted ({seconds:.0f} s)",
            flush=True,
        )
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30, help="queues for each seed")
    chosen = parser.parse_args()
    # The nodes end with this program, however it ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return 0 if decisions(range(1, chosen.seeds + 1), chosen.rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
