"""Replicas of a queue: the same log gives the same state, on every node and from every snapshot on."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.machine import Command
from quorum_queue.machine.replicated import (
    Applied,
    QueueReplica,
    contents_of,
    decode_entry,
    encode_batch,
    encode_entry,
)
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings
from tests.quorum_queue.command_log import check_wake
from tests.quorum_queue.entry_log import random_log, random_settings, told

ROOT = Path(__file__).parents[2]
LOGS = 12
OWN = ("n1", 1)
KEY = (1, 1, "tag", 0)
FULL_KEY = (*OWN, *KEY)


class Log:
    """A replica, and the entries that it has applied."""

    def __init__(self, declared: Settings | None = None) -> None:
        self.replica = QueueReplica(declared or Settings(keeps_all=True))
        self.entries: list[bytes] = [b""]
        self.numbers: dict[tuple[str, int], int] = {}
        self.now_ms = 0

    def apply(self, *commands: Command, node: str = "n1", incarnation: int = 1, number: int = 0) -> Applied:
        """Apply an entry with one batch, which has the next number unless `number` is given."""
        member = node, incarnation
        if not number:
            number = self.numbers[member] = self.numbers.get(member, 0) + 1
        return self.apply_entry([encode_batch(node, incarnation, number, commands)])

    def apply_entry(self, batches: list[list[bytes]], now_ms: int | None = None) -> Applied:
        now = self.now_ms if now_ms is None else now_ms
        self.entries.append(encode_entry(now, [b"".join(batch) for batch in batches]))
        return self.replica.apply(len(self.entries) - 1, decode_entry(self.entries[-1]), OWN)

    def bodies(self, run: Run) -> list[bytes]:
        return [
            content
            for index, ordinals in self.replica.find(run.seqs)
            for content in contents_of(self.entries[index], ordinals)
        ]

    def received(self, applied: Applied) -> list[bytes]:
        return [content for _, run, _ in applied.deliveries for content in self.bodies(run)]


def enqueue(*contents: bytes, origin: int | None = None, first: int = 1) -> Command:
    return "enqueue", Run(range(len(contents)), list(contents), b"head"), origin, first


def attach(key: tuple[Any, ...] = KEY, **options: Any) -> Command:
    return "attach", Consumer(key, **options)


def digests_of(hash_seed: str) -> str:
    """The digests of the same logs, from a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.quorum_queue.entry_log", str(LOGS)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def test_two_processes_reach_the_same_state() -> None:
    first, second = digests_of("1"), digests_of("2")
    assert len(first.splitlines()) == LOGS
    assert len(set(first.split())) > 10 * LOGS
    assert first == second


@settings(deadline=None, max_examples=120)
@given(st.integers(0, 1 << 32).map(Random), st.integers(1, 12))
def test_a_snapshot_at_every_split(random: Random, entries: int) -> None:
    original = QueueReplica(random_settings(random))
    copies: list[QueueReplica] = []
    for index, data in enumerate(random_log(random, entries), 1):
        applied = original.apply(index, decode_entry(data), OWN)
        effects, digest = told(applied), original.digest()
        check_wake(original.machine, applied.wake_at)
        for copy in copies:
            applied = copy.apply(index, decode_entry(data), OWN)
            assert told(applied) == effects
            check_wake(copy.machine, applied.wake_at)
            assert copy.digest() == digest
            assert copy.machine.ready.bytes == original.machine.ready.bytes
            assert copy.locations.pinned() == original.locations.pinned()
        restored = QueueReplica.restore(original.snapshot())
        assert restored.digest() == digest
        copies.append(restored)


@settings(deadline=None, max_examples=120)
@given(st.integers(0, 1 << 32).map(Random), st.integers(1, 15))
def test_every_message_has_a_place_until_it_is_settled(random: Random, entries: int) -> None:
    """Messages that are ready, held or waiting for their dead letters' targets are found; every other entry
    is released, once.
    """
    replica = QueueReplica(random_settings(random))
    log = [b"", *random_log(random, entries)]
    had_messages: set[int] = set()
    released: set[int] = set()
    for index, data in enumerate(log[1:], 1):
        applied = replica.apply(index, decode_entry(data), OWN)
        for _, run, _ in applied.deliveries:
            check_bodies(replica, log, run)
        for run, _ in applied.dead_letters:
            check_bodies(replica, log, run)
        gone = {entry for entries in applied.released for entry in entries}
        assert released.isdisjoint(gone)
        released |= gone
        machine = replica.machine
        alive = list(machine.ready.runs()) + [run for run, _ in replica.dead_lettering]
        alive += [run for consumer in machine.consumers.in_turn() for run in consumer.checkout.runs]
        for part in machine.parts.all():
            alive += [pended.run for pended in part.enqueued]
            alive += [run for _, runs in part.settled for run in runs]
        expected: set[int] = set()
        for run in alive:
            check_bodies(replica, log, run)
            expected |= {entry for entry, _ in replica.find(run.seqs)}
        assert replica.locations.pinned() == sorted(expected)
        had_messages |= expected | gone
        assert had_messages == expected | released


def check_bodies(replica: QueueReplica, log: list[bytes], run: Run) -> None:
    assert run.contents is None
    assert run.sizes is not None
    found = replica.find(run.seqs)
    bodies = [content for entry, ordinals in found for content in contents_of(log[entry], ordinals)]
    assert list(map(len, bodies)) == list(run.sizes)
    assert sum(run.sizes) == run.size


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1 << 32).map(Random), st.integers(1, 12))
def test_every_node_is_told_its_own_part(random: Random, entries: int) -> None:
    """Together the parts of all nodes are the effects of one machine, and no part comes twice."""
    declared = random_settings(random)
    log = random_log(random, entries)
    named = {(batch.node, batch.incarnation) for data in log for batch in decode_entry(data).batches}
    members = sorted({*named, OWN})
    replicas = {member: QueueReplica(declared) for member in members}
    held: set[tuple[Any, int, int]] = set()
    numbers: dict[str, tuple[int, int]] = {}
    taken: dict[tuple[str, int], list[int]] = {}
    for index, data in enumerate(log, 1):
        parts = {
            member: replica.apply(index, decode_entry(data), member) for member, replica in replicas.items()
        }
        assert len({replica.digest() for replica in replicas.values()}) == 1
        for batch in decode_entry(data).batches:
            start, last = numbers.get((batch.node), (0, 0))
            if (batch.incarnation, batch.number) == (start, last + 1) or (
                batch.incarnation > start and batch.number == 1
            ):
                numbers[batch.node] = batch.incarnation, batch.number
                taken.setdefault((batch.node, batch.incarnation), []).append(batch.number)
        for member, applied in parts.items():
            assert applied.batches == taken.pop(member, [])
        assert not taken
        before, held = held, held_by_consumers(replicas[members[0]])
        for key, delivery_id, seq in held - before:
            deliveries = told(parts[key[:2]])["deliveries"]
            assert (delivery_id, seq) in [delivery[:2] for delivery in deliveries[key]]
        for member, applied in parts.items():
            assert all(consumer.key[:2] == member for consumer, _, _ in applied.deliveries)
            assert all(key[:2] == member for key in applied.consumers_gone + applied.got_nothing)


def held_by_consumers(replica: QueueReplica) -> set[tuple[Any, int, int]]:
    """Return (key, delivery id, position) of all messages that are handed out."""
    return {
        (consumer.key, first + offset, seq)
        for consumer in replica.machine.consumers.in_turn()
        for first, run in zip(consumer.checkout.starts, consumer.checkout.runs, strict=True)
        for offset, seq in enumerate(run.seqs)
    }


def test_what_was_handed_out_does_not_change_with_the_rest_of_its_entry() -> None:
    """Another batch of the entry may settle and return parts of the delivery, which join others in the
    queue.
    """
    log = Log()
    log.apply(enqueue(b"1", b"22", b"333"), attach(prefetch=3))
    # One of the two messages in the queue is taken and comes back: they are one run again.
    log.apply(("pause", KEY, True), ("return", KEY, 0, 1))
    applied = log.apply(("get", Consumer((1, 1, None, 0))), ("return", (1, 1, None, 0), 0, 0))
    [(_, run, _)] = applied.deliveries
    assert (list(run.seqs), list(run.sizes or ())) == ([1], [1])
    assert [(list(run.seqs), list(run.sizes or ())) for run in log.replica.machine.ready.runs()] == [
        ([1, 2], [1, 2])
    ]
    # A run that is handed out whole is cut when a part of it is settled.
    applied = log.apply(("pause", KEY, False), ("get", Consumer((1, 1, None, 0))), ("settle", KEY, 3, 3))
    assert [len(run.seqs) == len(run.sizes or ()) for _, run, _ in applied.deliveries] == [True, True]


# -- batches


def test_a_batch_is_applied_once_and_in_its_turn() -> None:
    log = Log()
    assert log.apply(enqueue(b"one", origin=5)).confirmed == [(5, 1, 1)]
    again = log.apply(enqueue(b"one", origin=5), number=1)
    assert (again.batches, again.confirmed) == ([], [])
    early = log.apply(enqueue(b"three", origin=7), number=3)
    assert early.batches == []
    assert log.replica.machine.ready.count == 1
    both = log.apply_entry(
        [encode_batch("n1", 1, 2, [enqueue(b"two", origin=6)]), encode_batch("n1", 1, 3, [enqueue(b"three")])]
    )
    assert (both.batches, both.confirmed) == ([2, 3], [(6, 1, 1)])
    taken = log.apply(attach(), number=4)
    assert log.received(taken) == [b"one", b"two", b"three"]


def test_a_new_incarnation_begins_with_one_and_ends_the_old_one() -> None:
    log = Log()
    log.apply(enqueue(b"a", b"b"), attach(prefetch=5))
    assert log.replica.members() == [OWN]
    early = log.apply(("tick",), incarnation=2, number=2)
    assert early.batches == []
    assert log.replica.order.rows() == [("n1", 1, 1)]
    log.apply(attach((9, 1, "new", 0), prefetch=5), incarnation=2)
    assert log.replica.order.rows() == [("n1", 2, 1)]
    assert log.replica.members() == [("n1", 2)]
    held = log.replica.machine.consumers.by_key["n1", 2, 9, 1, "new", 0]
    assert [(list(run.seqs), run.redelivered) for run in held.checkout.runs] == [([1, 2], True)]
    # Later batches of the first incarnation are too late.
    late = log.apply(enqueue(b"late"), number=2)
    assert late.batches == []
    assert log.replica.machine.next_seq == 3


def test_answers_go_to_the_node_that_asked() -> None:
    log = Log(Settings(keeps_all=True, max_length=2, overflow="reject-publish"))
    theirs = encode_batch("n2", 1, 1, [enqueue(b"x", origin=3), ("purge", 3), ("get", Consumer(KEY))])
    ours = encode_batch("n1", 1, 1, [enqueue(b"1", b"2", b"3", origin=3, first=10)])
    applied = log.apply_entry([theirs, ours])
    assert (applied.confirmed, applied.refused) == ([(3, 10, 11)], [(3, 12, 12)])
    assert (applied.purged, applied.got_nothing) == ([], [])
    applied = log.apply(("purge", 4), ("get", Consumer(KEY)), ("purge", 5), number=2)
    assert applied.purged == [(4, 2), (5, 0)]
    assert applied.got_nothing == [FULL_KEY]


# -- consumers


def test_a_node_that_is_down_gives_back_what_it_holds() -> None:
    log = Log(Settings(keeps_all=True, delivery_limit=5))
    log.apply(attach(prefetch=2), attach((1, 2, "other", 0), prefetch=1))
    log.apply(enqueue(b"a", b"b", b"c", b"d"))
    log.apply(attach((1, 1, "far", 0), prefetch=10), node="n2")
    assert log.replica.members() == [("n1", 1), ("n2", 1)]
    applied = log.apply(("node_down", "n1", 1), node="n2")
    assert sorted(applied.consumers_gone) == [FULL_KEY, (*OWN, 1, 2, "other", 0)]
    assert log.replica.members() == [("n2", 1)]
    far = log.replica.machine.consumers.by_key["n2", 1, 1, 1, "far", 0]
    held = {seq: (run.redelivered, run.attempts) for run in far.checkout.runs for seq in run.seqs}
    assert held == {1: (True, 1), 2: (True, 1), 3: (True, 1), 4: (False, 0)}
    # The node was not down: its next batch is still the next one.
    assert log.apply(("settle", KEY, 0, 5)).batches == [3]
    assert log.replica.machine.unacked_count == 4


def test_an_exclusive_consumer_is_alone() -> None:
    log = Log()
    assert log.apply(attach(exclusive=True)).attach_refused == []
    assert log.apply(attach((1, 1, "b", 0))).attach_refused == [((*OWN, 1, 1, "b", 0), "exclusive")]
    log.apply(("detach", KEY, True), attach((1, 1, "b", 0)))
    assert log.apply(attach(exclusive=True)).attach_refused == [(FULL_KEY, "exclusive")]
    assert log.apply(attach((1, 1, "b", 0))).attach_refused == [((*OWN, 1, 1, "b", 0), "key in use")]
    assert log.apply(attach((1, 1, "x", 0), exclusive=True), node="n2").attach_refused == []
    assert log.replica.machine.consumers.count == 1


def test_no_consumer_is_alone_where_one_is_active() -> None:
    log = Log(Settings(keeps_all=True, single_active_consumer=True))
    assert log.apply(attach(exclusive=True)).attach_refused == [(FULL_KEY, "exclusive")]


def test_a_window_limits_each_of_its_consumers() -> None:
    class Window:
        limit = 2

        def room(self) -> int:
            raise AssertionError("a replica does not ask")

        def use(self, count: int) -> None:
            raise AssertionError("a replica does not tell")

    log = Log()
    log.apply(attach(prefetch=5, window=Window()))
    log.apply(enqueue(*[b"x"] * 9))
    consumer = log.replica.machine.consumers.by_key[FULL_KEY]
    assert consumer.checkout.count == 2
    log.apply(("window", KEY, 3))
    assert consumer.checkout.count == 3
    log.apply(("window", KEY, None))
    assert consumer.checkout.count == 5
    log.apply(("window", KEY, 7), ("prefetch", KEY, 6))
    assert consumer.checkout.count == 6
    assert QueueReplica.restore(log.replica.snapshot()).machine.consumers.by_key[FULL_KEY].own_prefetch == 6


def test_consumers_of_one_channel_get_messages_in_order() -> None:
    log = Log()
    log.apply(attach((1, 1, "a", 0)), attach((1, 1, "b", 0)))
    applied = log.apply(enqueue(*[b"%d" % number for number in range(6)]))
    assert log.received(applied) == [b"%d" % number for number in range(6)]
    assert [consumer.key[4] for consumer, _, _ in applied.deliveries] == ["a", "b"] * 3


def test_delivery_ids_go_on_where_the_node_says() -> None:
    log = Log()
    consumer = Consumer(KEY)
    consumer.next_id = 40
    applied = log.apply(enqueue(b"x"), ("attach", consumer))
    assert [first_id for _, _, first_id in applied.deliveries] == [40]


def test_gets_take_a_message_and_leave_no_consumer() -> None:
    log = Log()
    log.apply(enqueue(b"one", b"two"))
    applied = log.apply(("get", Consumer(KEY)), ("get", Consumer((1, 1, None, True), no_ack=True)))
    assert log.received(applied) == [b"one", b"two"]
    assert applied.got_nothing == []
    assert [list(run.seqs) for run in applied.settled] == [[2]]
    assert log.replica.machine.consumers.count == 0
    log.apply(("settle", KEY, 0, 0))
    assert log.replica.machine.consumers.by_key == {}


# -- time


def test_time_never_goes_back() -> None:
    log = Log(Settings(keeps_all=True, message_ttl_ms=10))
    log.now_ms = 1000
    applied = log.apply(enqueue(b"x"))
    assert applied.wake_at == 1010
    log.now_ms = 500
    log.apply(enqueue(b"y"))
    assert log.replica.now_ms == 1000
    restored = QueueReplica.restore(log.replica.snapshot())
    assert restored.now_ms == 1000
    assert restored.machine.due_ms == 1010
    expired = log.apply_entry([], now_ms=1010)
    assert [list(run.seqs) for run in expired.settled] == [[1, 2]]


def test_the_lease_of_a_queue_begins_anew_when_a_client_uses_it() -> None:
    log = Log(Settings(keeps_all=True, expires_ms=100))
    assert log.apply(("touch",)).used
    assert not log.apply(enqueue(b"x")).used
    assert log.apply(attach()).used
    assert not log.apply(("tick",)).used
    assert log.apply(("detach", KEY, True)).used


# -- bodies


def test_one_message_that_nobody_settles_pins_its_own_entry() -> None:
    log = Log()
    log.apply(attach())
    for number in range(1, 301):
        log.apply(enqueue(b"%d" % number, b"-"))
    assert log.replica.locations.pinned() == list(range(2, 302))
    released: list[range] = []
    released += log.apply(("settle", KEY, 0, 99)).released
    released += log.apply(("settle", KEY, 101, 599)).released
    assert sorted(chain.from_iterable(released)) == [entry for entry in range(2, 302) if entry != 52]
    assert log.replica.locations.pinned() == [52]
    log.apply(enqueue(b"next"))
    assert len(log.replica.locations) == 2
    assert log.replica.find(range(101, 102)) == [(52, range(1))]
    for replica in (log.replica, QueueReplica.restore(log.replica.snapshot())):
        with pytest.raises(KeyError):
            replica.find(range(100, 101 + 1))
        with pytest.raises(KeyError):
            replica.find(range(601, 603))


def test_a_full_queue_sends_what_it_refused_to_the_dead_letters() -> None:
    log = Log(Settings(keeps_all=True, max_length=1, overflow="reject-publish-dlx", dead_letter=True))
    theirs = encode_batch("n2", 1, 1, [enqueue(b"a", b"b")])
    ours = encode_batch("n1", 1, 1, [enqueue(b"c"), enqueue(b"d", b"e", origin=1)])
    applied = log.apply_entry([theirs, ours])
    assert applied.refused == [(1, 1, 2)]
    letters = [content for run, _ in applied.dead_letters for content in log.bodies(run)]
    assert letters == [b"b", b"c", b"d", b"e"]
    assert [reason for _, reason in applied.dead_letters] == ["maxlen"] * 3


def test_a_dead_letter_is_held_until_its_targets_have_it() -> None:
    log = Log(Settings(keeps_all=True, dead_letter=True, dead_letter_at_least_once=True))
    log.apply(enqueue(b"a", b"b", b"c"), attach())
    applied = log.apply(("discard", KEY, 0, 1))
    assert [content for run, _ in applied.dead_letters for content in log.bodies(run)] == [b"a", b"b"]
    assert applied.settled == []
    log.apply(("settle", KEY, 2, 2))
    restored = QueueReplica.restore(log.replica.snapshot())
    assert [(list(run.seqs), reason) for run, reason in restored.dead_lettering] == [
        ([1], "rejected"),
        ([2], "rejected"),
    ]
    assert log.replica.locations.pinned() == [1]
    done = log.apply(("dead_lettered", 1, 1 << 60))
    assert done.released == [range(1, 2)]
    assert log.replica.dead_lettering == []


def test_what_a_queue_is_built_on_is_not_configured() -> None:
    log = Log(Settings(keeps_all=True, single_active_consumer=True))
    changed = Settings(keeps_all=True, max_length=1, priority_max=4)
    log.apply(("configure", changed), enqueue(b"a", b"b"))
    assert log.replica.machine.settings == Settings(keeps_all=True, max_length=1, single_active_consumer=True)
    assert log.replica.machine.ready.count == 1


def test_entries_come_in_order() -> None:
    replica = QueueReplica(Settings())
    replica.apply(5, decode_entry(encode_entry(0, [])), OWN)
    with pytest.raises(ValueError, match="entry 5 comes after entry 5"):
        replica.apply(5, decode_entry(encode_entry(0, [])), OWN)


@given(st.integers(0, 1 << 32).map(Random), st.data())
def test_a_damaged_snapshot_is_refused(random: Random, data: st.DataObject) -> None:
    replica = QueueReplica(random_settings(random))
    for index, entry in enumerate(random_log(random, 5), 1):
        replica.apply(index, decode_entry(entry), OWN)
    state = replica.snapshot()
    with pytest.raises(CodecError):
        QueueReplica.restore(state[: data.draw(st.integers(0, len(state) - 1))])
