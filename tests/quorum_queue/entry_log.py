"""Logs of random entries: batches of three nodes, some sent twice, some lost, and nodes that start again.

Run as a program, it prints the digest after each entry: the same in every process, whatever its hash seed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random
from typing import Any

from quorum_queue.machine import versions
from quorum_queue.machine.attributes import MAJORITY
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.dedup import Sequence, id_of, sequence_of
from quorum_queue.machine.machine import Command
from quorum_queue.machine.replicated import (
    Applied,
    Member,
    QueueReplica,
    decode_entry,
    encode_batch,
    encode_entry,
)
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots.snapshot import sizes_of
from tests.quorum_queue.kinds import in_turns

NODES = ["n1", "n2", "n3"]


def random_settings(random: Random) -> Settings:
    grouped = random.random() < 0.3
    return Settings(
        message_ttl_ms=random.choice([None, None, 5, 30]),
        expires_ms=random.choice([None, 1000]),
        max_length=random.choice([None, None, 3, 10]),
        max_length_bytes=random.choice([None, None, 60]),
        overflow=random.choice(["drop-head", "reject-publish", "reject-publish-dlx"]),
        dead_letter=random.random() < 0.5,
        dead_letter_at_least_once=random.random() < 0.5,
        # Message groups refuse it.
        single_active_consumer=random.random() < 0.2 and not grouped,
        group_header="group" if grouped else "",
        keeps_all=True,
        delivery_limit=random.choice([None, 1, 3]),
        deduplication_window_ms=random.choice([None, 1, 8, 100]),
        deduplication_count=random.choice([2, 5, 50]),
        deliveries_paused=random.random() < 0.15,
        publishes_paused=random.random() < 0.15,
    )


class Sender:
    """A node as its commands show it: consumers with its own keys, and batches that it keeps to send
    again.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 1
        self.sent: list[bytes] = []
        self.number = 0
        self.message = 0
        #: Commands of the parts of transactions so far, by their numbers.
        self.pended: dict[int, int] = {}
        #: It has raised the version: only then may it send what earlier ones do not know.
        self.is_newest = False

    @property
    def member(self) -> Member:
        return self.name, self.incarnation

    def start_again(self) -> None:
        self.incarnation += 1
        self.number = 0
        self.pended = {}
        self.is_newest = False

    def batch(self, random: Random) -> bytes:
        raises = random.random() < 0.3
        self.is_newest = self.is_newest or raises
        commands = [self._command(random) for _ in range(random.randint(1, 5))]
        if raises:
            commands.insert(0, ("version", versions.NEWEST))
        self.number += 1
        batch = b"".join(encode_batch(self.name, self.incarnation, self.number, commands))
        self.sent.append(batch)
        return batch

    def _part_of_transaction(self, random: Random) -> Command:
        """A step of one of few transactions, of this node or another one."""
        number, step = random.randint(1, 3), random.random()
        transaction = (self.name, self.incarnation, number)
        if step < 0.5:
            self.pended[number] = self.pended.get(number, 0) + 1
            verb = random.choice(["enqueue"] * 3 + ["enqueue_once", "settle", "return", "discard"])
            if verb.startswith("enqueue"):
                run_of = self._enqueue(random, verb)
                return "pend", transaction, (run_of[0], run_of[1], None, *run_of[3:])
            low = random.randint(0, 12)
            key = 7, random.choice([1, 2]), random.choice(["a", "b"]), 0
            return "pend", transaction, (verb, key, low, low + random.choice([0, 0, 0, 3]))
        if step < 0.75:
            count = self.pended.pop(number, 0) + (random.random() < 0.1)
            queues = random.choice([[], [1, 2], [1, 2]])
            return "prepare", random.choice([None, 1, 2]), transaction, count, queues, MAJORITY
        other = random.choice(NODES), random.choice([1, 2]), number
        return "resolve", random.choice([transaction, transaction, other]), random.random() < 0.7

    def _command(self, random: Random) -> Command:
        if random.random() < 0.2:
            return self._part_of_transaction(random)
        verb = random.choice(
            ["enqueue"] * 5 + ["enqueue_once"] * 3 + ["settle", "return", "return", "fail", "discard"] * 2 + ["retry"] * 2
            + ["attach"] * 4
            + ["detach", "pause", "prefetch", "window", "get", "purge", "tick", "touch", "dead_lettered"]
            + ["configure"] * (random.random() < 0.2) + ["node_down"] * (random.random() < 0.4)
        )  # fmt: skip
        key: tuple[int, int, str | None, int] = 7, random.choice([1, 2]), random.choice(["a", "b"]), 0
        if verb in ("enqueue", "enqueue_once"):
            return self._enqueue(random, verb)
        if verb in ("attach", "get"):
            key = (7, 1, None, 0) if verb == "get" else key
            consumer = Consumer(key, no_ack=random.random() < 0.2, prefetch=random.choice([0, 1, 2, 5]),
                                priority=random.choice([0, 0, 1, -1]), exclusive=random.random() < 0.1,
                                window_limit=random.choice([0, 0, 3]))  # fmt: skip
            consumer.paused = random.random() < 0.1
            if verb == "get" and random.random() < 0.5:
                consumer.limit(consumer.own_prefetch, 0)
                consumer.position = random.randint(1, 40)
                consumer.due_ms = random.choice([0, random.randint(1, 60)])
            return verb, consumer
        if verb in ("detach", "pause"):
            return verb, key, random.random() < 0.5
        if verb in ("prefetch", "window"):
            return verb, key, random.choice([0, 1, 4])
        if verb in ("settle", "return", "fail", "retry", "discard"):
            low = random.randint(0, 12)
            more = (random.choice([0, 3, 30]), random.random() < 0.5) if verb == "retry" else ()
            return verb, random.choice([key, (7, 1, None, 0)]), low, low + random.choice([0, 1, 5, 40]), *more
        if verb == "dead_lettered":
            low = random.randint(1, 30)
            return verb, low, low + random.randint(0, 9)
        if verb == "purge":
            return ("purge", random.randint(0, 99)) if random.random() < 0.3 else ("tick",)
        if verb == "configure":
            drawn = random_settings(random)
            if not self.is_newest:
                drawn = replace(drawn, deliveries_paused=False, publishes_paused=False)
            return verb, drawn
        if verb == "node_down":
            return verb, random.choice(NODES), random.randint(1, 2)
        return (verb,)

    def _enqueue(self, random: Random, verb: str) -> Command:
        count = random.randint(1, 7)
        contents = [bytes(random.randint(0, 9)) for _ in range(count)]
        attributes = Attributes(
            priority=random.randint(0, 3),
            ttl_ms=random.choice([None, None, 2, 20]),
            frame_bytes=random.choice([4096, 8192]),
            overhead=random.choice([0, 0, 0]),
        )
        # Exchange, routing key and group.
        heads = [b"\x01e\x01k" + random.choice([b"", b"a", b"b"]) for _ in range(count)]
        run = Run(range(count), contents, heads[0], attributes)
        if random.random() < 0.3:
            run.heads = heads
        if self.is_newest and random.random() < 0.3:
            in_turns(run, [Attributes(priority=random.randint(0, 3), ttl_ms=random.choice([None, 20]))])
        first = self.message
        self.message += count
        origin = random.choice([None, random.randint(0, 9)])
        if verb == "enqueue":
            return verb, run, origin, first
        if random.random() < 0.3:
            named = sequence_of(b"p", random.randint(0, 30))
            return verb, run, origin, first, Sequence.from_first(named, count)
        names = [
            random.choice(
                [None, id_of(b"%d" % random.randint(0, 9)), sequence_of(b"p", random.randint(0, 30))]
            )
            for _ in range(count)
        ]
        return verb, run, origin, first, names


def random_log(random: Random, entries: int) -> list[bytes]:
    """Make entries as a leader would, from the batches that reach it."""
    senders = [Sender(name) for name in NODES]
    log: list[bytes] = []
    now = 0
    for _ in range(entries):
        # Clocks of successive leaders may differ.
        now += random.choice([0, 1, 1, 4, -3])
        batches: list[bytes] = []
        for _ in range(random.randint(0, 4)):
            sender = random.choice(senders)
            fate = random.random()
            if fate < 0.1 and sender.sent:
                batches.append(random.choice(sender.sent))
                continue
            batch = sender.batch(random)
            if fate < 0.15:
                # This batch is lost with those behind it, until all of them are sent again.
                lost = sender.sent[-1:] + [sender.batch(random) for _ in range(random.randint(0, 2))]
                batches += lost[1:] + lost
            elif fate < 0.2:
                batches.append(batch)
                sender.start_again()
            else:
                batches.append(batch)
        log.append(encode_entry(max(now, 0), batches))
    return log


def told(applied: Applied) -> dict[str, Any]:
    """The effects of an entry on one node, however runs are cut."""
    deliveries: dict[Any, list[tuple[Any, ...]]] = {}
    for consumer, run, first_id in applied.deliveries:
        deliveries.setdefault(consumer.key, []).extend(
            (first_id + index, seq, sizes_of(run)[index], run.head_of(index), run.redelivered, run.attempts,
             run.due_of(index))
            for index, seq in enumerate(run.seqs)
        )  # fmt: skip
    return {
        "deliveries": deliveries,
        "batches": applied.batches,
        "confirmed": [(o, n) for o, first, last in applied.confirmed for n in range(first, last + 1)],
        "refused": [(o, n) for o, first, last in applied.refused for n in range(first, last + 1)],
        "attach_refused": applied.attach_refused,
        "got_nothing": applied.got_nothing,
        "consumers_gone": applied.consumers_gone,
        "purged": applied.purged,
        "prepared": applied.prepared,
        "resolved": applied.resolved,
        "dead_letters": [
            (seq, sizes_of(run)[index], run.head_of(index), reason)
            for run, reason in applied.dead_letters
            for index, seq in enumerate(run.seqs)
        ],
        "settled": sorted(seq for run in applied.settled for seq in run.seqs),
        "released": sorted(index for entries in applied.released for index in entries),
        "accepted_bytes": applied.accepted_bytes,
        "more": applied.more,
    }


def digests(seed: int, entries: int) -> list[str]:
    random = Random(seed)
    replica = QueueReplica(random_settings(random))
    found = []
    for index, entry in enumerate(random_log(random, entries), 1):
        replica.apply(index, decode_entry(entry), ("n1", 1))
        found.append(replica.digest().hex())
    return found


if __name__ == "__main__":
    for seed in range(int(sys.argv[1])):
        print(*digests(seed, 25))
