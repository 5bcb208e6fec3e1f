"""Logs of random commands, and the effects of applying them, as plain data.

Run as a program, it prints the digest after each batch: the same in every process, whatever its hash seed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random
from typing import Any

from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import NO_LIMIT, Effects
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots.snapshot import digest, sizes_of
from tests.quorum_queue.kinds import in_turns

KEYS = ["alpha", "beta", "gamma", "delta"]
GETTER = "getter"

Plain = tuple[Any, ...]
Batch = tuple[int, list[Plain]]


def random_settings(random: Random) -> Settings:
    drawn = _random_settings(random)
    if random.random() < 0.3:
        # Message groups refuse these.
        return replace(drawn, group_header="group", priority_max=0, single_active_consumer=False)
    return drawn


def _random_settings(random: Random) -> Settings:
    return Settings(
        message_ttl_ms=random.choice([None, None, 0, 5, 30]),
        max_length=random.choice([None, None, 3, 10]),
        max_length_bytes=random.choice([None, None, 60]),
        overflow=random.choice(["drop-head", "reject-publish", "reject-publish-dlx"]),
        dead_letter=random.random() < 0.5,
        dead_letter_at_least_once=random.random() < 0.5,
        priority_max=random.choice([0, 2]),
        single_active_consumer=random.random() < 0.2,
        strict=random.random() < 0.5,
        retry_type=random.choice(["disabled", "disabled", "all", "failed", "returned"]),
        retry_min_ms=random.choice([1, 3]),
        retry_max_ms=random.choice([5, 9]),
        retry_doubles=random.random() < 0.5,
        delivery_limit=random.choice([None, 0, 1, 3]),
    )


def random_log(random: Random, batches: int) -> list[Batch]:
    """Batches of plain commands with their times."""
    log: list[Batch] = []
    now = 0
    for _ in range(batches):
        now += random.choice([0, 0, 1, 4])
        log.append((now, [_random_command(random) for _ in range(random.randint(1, 4))]))
    return log


def _random_command(random: Random) -> Plain:
    if random.random() < 0.06:
        return "pause_queue", random.random() < 0.4, random.random() < 0.4
    verb = random.choice(
        ["enqueue"] * 6 + ["settle", "return", "return", "fail", "discard"] * 2 + ["retry"] * 2
        + ["attach"] * 3 + ["detach", "pause", "prefetch", "get", "purge", "tick", "dead_lettered"]
    )  # fmt: skip
    key = random.choice(KEYS)
    if verb == "enqueue":
        ttl_ms = random.choice([None, None, None, 2, 20])
        # Exchange, routing key and group.
        heads = [
            b"\x01e\x01k" + random.choice([b"", b"a", b"b", b"c"]) for _ in range(random.choice([1, 1, 7]))
        ]
        waits_ms = random.choice([0, 0, 0, 2, 9])
        others = [
            (random.randint(-1, 5), random.choice([None, 2, 9])) for _ in range(random.choice([0, 0, 2]))
        ]
        return (
            verb,
            random.randint(1, 7),
            random.randint(0, 9),
            random.randint(-1, 5),
            ttl_ms,
            others,
            heads,
            waits_ms,
        )
    if verb == "attach":
        return verb, key, random.random() < 0.2, random.choice([0, 1, 2, 5]), random.choice([0, 0, 1])
    if verb == "detach":
        return verb, key, random.random() < 0.5
    if verb == "pause":
        return verb, key, random.random() < 0.3
    if verb == "prefetch":
        return verb, key, random.choice([0, 1, 4])
    if verb in ("settle", "return", "fail", "retry", "discard"):
        low = random.randint(0, 20)
        more = (random.choice([0, 2, 9]), random.random() < 0.5) if verb == "retry" else ()
        return verb, random.choice([*KEYS, GETTER]), low, low + random.choice([0, 1, 5, 40]), *more
    if verb == "dead_lettered":
        low = random.randint(1, 30)
        return verb, low, low + random.randint(0, 9)
    if verb == "purge" and random.random() < 0.8:
        return ("tick",)
    return (verb,)


class Reader:
    """A machine that reads commands from a log."""

    def __init__(self, machine: Machine, number: int = 1, getter_id: int = 0) -> None:
        self.machine = machine
        #: The publisher's next number, which is also in the contents.
        self.number = number
        self.getter_id = getter_id

    def apply(self, batch: Batch, expires_max: int = NO_LIMIT) -> dict[str, Any]:
        """Apply a batch; return its effects, listed message by message."""
        now, plain = batch
        effects = Effects(expires_max=expires_max)
        attached = {consumer.key for consumer in self.machine.consumers.by_key.values()}
        commands = [built for command in plain if (built := self._build(command, attached)) is not None]
        self.machine.apply(Meta(now), commands, effects)
        self.getter_id += 1000
        check_wake(self.machine, effects.wake_at)
        return told(effects)

    def _build(self, command: Plain, attached: set[str]) -> Command | None:
        verb = command[0]
        if verb == "enqueue":
            _, count, size, priority, ttl_ms, others, heads, waits_ms = command
            contents = [b"%d" % (self.number + index) + b"." * size for index in range(count)]
            run = Run(range(count), contents, heads[0], Attributes(priority=priority, ttl_ms=ttl_ms))
            in_turns(run, [Attributes(priority=other, ttl_ms=ttl) for other, ttl in others])
            if len(heads) > 1:
                run.heads = heads[:count]
            run.waits_until = waits_ms
            self.number += count
            return verb, run, "publisher", self.number - count
        if verb == "attach":
            _, key, no_ack, prefetch, priority = command
            if key in attached:
                return None
            attached.add(key)
            return verb, Consumer(key, no_ack=no_ack, prefetch=prefetch, priority=priority)
        if verb == "get":
            consumer = self.machine.consumers.by_key.get(GETTER)
            if consumer is None:
                # Each third one is for a message in the middle.
                position = self.machine.next_seq // 2 if self.getter_id % 3 == 1 else 0
                due_ms = 0
                if self.getter_id % 7 == 1 and self.machine.delayed.count:
                    due_ms, waiting = next(iter(self.machine.delayed.items()))
                    position = waiting.seqs[-1]
                consumer = Consumer(GETTER, position=position, due_ms=due_ms)
                consumer.attached = False
                consumer.next_id = self.getter_id
                self.getter_id += 1
            return verb, consumer
        if verb in ("settle", "return", "fail", "retry", "discard"):
            # A client can't know a delivery from the same batch that has its command.
            _, key, low, high, *more = command
            held = self.machine.consumers.by_key.get(key)
            return (verb, key, low, min(high, held.next_id - 1), *more) if held is not None else None
        if verb == "pause_queue":
            deliveries, publishes = command[1:]
            settings = replace(
                self.machine.settings, deliveries_paused=deliveries, publishes_paused=publishes
            )
            return "configure", settings
        return command


def check_wake(machine: Machine, wake_at: int | None) -> None:
    """Check that the machine is woken in time. It may be woken in vain: that depends on what was there."""
    if not machine.expires_exactly:
        return
    due = [run.due_of(index) for run in machine.ready.runs() for index in range(len(run.seqs))]
    soonest = min([*filter(None, due), *filter(None, [machine.delayed.next_ms])], default=None)
    assert soonest is None or (wake_at is not None and wake_at <= soonest)


def told(effects: Effects) -> dict[str, Any]:
    """The effects, however runs are cut."""
    deliveries: dict[str, list[Plain]] = {}
    for consumer, run, first_id in effects.deliveries:
        deliveries.setdefault(consumer.key, []).extend(
            (first_id + index, seq, sizes_of(run)[index], run.head_of(index), run.redelivered,
             run.attempts, run.acquired, run.due_of(index))
            for index, seq in enumerate(run.seqs)
        )  # fmt: skip
    return {
        "deliveries": deliveries,
        "confirmed": [number for _, first, last, _ in effects.confirmed for number in range(first, last + 1)],
        "refused": [number for _, first, last in effects.refused for number in range(first, last + 1)],
        "dead_letters": [
            (seq, sizes_of(run)[index], reason)
            for run, reason in effects.dead_letters
            for index, seq in enumerate(run.seqs)
        ],
        "settled": sorted(seq for run in effects.settled for seq in run.seqs),
        "returned": [(seq, run.attempts) for run in effects.returned for seq in run.seqs],
        "delayed": [(seq, due, run.attempts) for due, run in effects.delayed for seq in run.seqs],
        "more": effects.more,
    }


def digests(seed: int, batches: int) -> list[str]:
    random = Random(seed)
    reader = Reader(Machine(random_settings(random)))
    found = []
    for batch in random_log(random, batches):
        reader.apply(batch)
        found.append(digest(reader.machine).hex())
    return found


if __name__ == "__main__":
    for seed in range(int(sys.argv[1])):
        print(*digests(seed, 25))
