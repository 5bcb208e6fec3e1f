"""The record of messages by itself, in snapshots, in logs and in a journal."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from quorum_queue.machine import versions
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.record import blocks
from quorum_queue.machine.record import record as rows
from quorum_queue.machine.record.record import COPIES_MAX, MessageRecord
from quorum_queue.machine.record.states import REASONS, STATES, Found
from quorum_queue.machine.replicated import QueueReplica, decode_entry, encode_batch, encode_entry
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot
from quorum_queue.message_status.answers import answer, of_plain, plain
from quorum_queue.message_status.journal import FIRST_POSITION, StatusJournal, Stored
from quorum_queue.ports import Refused

ON = Settings(message_status_window_ms=1_000, message_status_count=100_000)
CONSUMER = ("n1", 1, 7, 1, "tag", 0)


def publish(*ids: bytes, first: int = 1) -> Command:
    run = Run(range(len(ids)), [b"body"] * len(ids), b"head")
    return "enqueue_known", run, None, first, list(ids)


def apply(machine: Machine, *commands: Command, now_ms: int = 0) -> None:
    machine.apply(Meta(now_ms), commands, Effects())


def states(found: Found) -> list[str]:
    return [STATES[copy.state] for copy in found.copies]


def record_of(machine: Machine) -> MessageRecord:
    assert machine.record is not None
    return machine.record


def test_a_message_from_its_beginning_to_its_end() -> None:
    machine = Machine(ON)
    apply(machine, publish(b"a", b"", b"b"), now_ms=5)
    apply(machine, ("attach", Consumer(CONSUMER, prefetch=1)), now_ms=6)
    (copy,) = record_of(machine).find(b"a", 6).copies
    assert (STATES[copy.state], copy.deliveries, copy.consumer) == ("delivered", 1, CONSUMER)
    assert (copy.queued_ms, copy.changed_ms, copy.position) == (5, 6, 1)
    apply(machine, ("return", CONSUMER, 0, 0), now_ms=7)
    assert record_of(machine).find(b"a", 7).copies[0].deliveries == 2
    apply(machine, ("settle", CONSUMER, 1, 1), now_ms=8)
    assert states(record_of(machine).find(b"a", 8)) == ["acknowledged"]
    assert states(record_of(machine).find(b"b", 8)) == ["queued"]
    assert record_of(machine).find(b"c", 8) == Found(0, [], None)
    assert record_of(machine).find(b"", 8).copies == []


def test_deliveries_are_counted_up_to_255() -> None:
    machine = Machine(ON)
    apply(machine, publish(b"a"), ("attach", Consumer(CONSUMER)))
    for number in range(300):
        apply(machine, ("return", CONSUMER, number, number))
    assert record_of(machine).find(b"a", 0).copies[0].deliveries == 255


def test_what_comes_again_many_times() -> None:
    machine = Machine(ON)
    apply(machine, publish(*[b"same"] * 50))
    assert len(record_of(machine).find(b"same", 0).copies) == COPIES_MAX
    assert record_of(machine).find(b"same", 0).copies[-1].position == 50


def test_a_block_that_is_asked_often_gets_an_index() -> None:
    machine = Machine(ON)
    ids = [b"%d" % (number * 7919 % 10_007) for number in range(10_000)]
    for at in range(0, len(ids), 500):
        apply(machine, publish(*ids[at : at + 250], b"", *ids[at + 250 : at + 500], b"same"))
    record = record_of(machine)
    for asked in range(60):
        for number in (asked, asked + 5_000, 9_999 - asked):
            (copy,) = record.find(ids[number], 0).copies
            block, within = divmod(number, 500)
            assert copy.position == block * 502 + within + 1 + (within >= 250)
        assert len(record.find(b"same", 0).copies) == 20
        assert record.find(b"none", 0).copies == []
    assert any(block.index is not None for block in record._blocks)


def test_messages_that_come_without_their_ids_begin_the_record_anew() -> None:
    machine = Machine(ON)
    apply(machine, publish(b"a"), now_ms=1)
    assert record_of(machine).find(b"x", 1).since_ms == 0
    apply(machine, ("enqueue_known", Run(range(1), [b"b"], b"head"), None, 1, []), now_ms=2)
    assert record_of(machine).find(b"x", 2).since_ms == 0
    apply(machine, ("enqueue", Run(range(1), [b"b"], b"head"), None, 1), now_ms=3)
    assert record_of(machine).find(b"x", 3).since_ms == 3
    assert states(record_of(machine).find(b"a", 3)) == ["queued"]


def test_the_record_is_turned_on_and_off() -> None:
    machine = Machine(Settings())
    apply(machine, publish(b"before"))
    assert machine.record is None
    apply(machine, ("configure", ON), now_ms=9)
    apply(machine, publish(b"after"), now_ms=10)
    assert record_of(machine).find(b"before", 10) == Found(9, [], None)
    assert states(record_of(machine).find(b"after", 10)) == ["queued"]
    # What is settled and was not recorded changes nothing.
    apply(machine, ("purge", 1), now_ms=11)
    assert states(record_of(machine).find(b"after", 11)) == ["dropped"]
    apply(machine, ("configure", Settings()), now_ms=12)
    assert machine.record is None


def test_earlier_versions_record_nothing() -> None:
    machine = Machine(ON, version=versions.RECORD - 1)
    apply(machine, publish(b"a"))
    assert machine.record is None
    apply(machine, ("version", versions.RECORD), now_ms=3)
    assert record_of(machine).since_ms == 3


@pytest.mark.pure
def test_notes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "NOTES_MAX", 5)
    machine = Machine(Settings(message_status_window_ms=1_000, max_length=0, overflow="reject-publish"))
    apply(machine, publish(*[b"%d" % number for number in range(20)]))
    known = [number for number in range(20) if record_of(machine).find(b"%d" % number, 0).note is not None]
    assert known == list(range(15, 20))


@pytest.mark.pure
def test_names_of_very_many_consumers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "NAMES_MAX", 8)
    machine = Machine(ON)
    apply(machine, publish(*[b"%d" % number for number in range(5)]))
    keys = []
    for number in range(200):
        key = ("n1", 1, 7, 1, f"c{number}", number)
        getter = Consumer(key)
        getter.attached = False
        apply(machine, ("get", getter))
        keys.append(key)
        if number < 195:
            apply(machine, ("return", key, 0, 0))
    for number in range(5):
        (copy,) = record_of(machine).find(b"%d" % number, 0).copies
        assert copy.consumer in keys[-6:]
    assert len(record_of(machine)._blocks[0].names) <= 8


def test_a_recorded_message_takes_less_than_100_bytes_beside_its_id() -> None:
    count = 100_000
    machine = Machine(Settings(message_status_window_ms=3_600_000, message_status_count=count))
    record, size = record_of(machine), 36
    for at in range(0, 2 * count, 100):
        record.now_ms = at
        record.begin([b"%036d" % number for number in range(at, at + 100)], 0)
        record.taken(at + 1, 100, 0)
        record.end()
        record.changed(range(at + 1, at + 101), 2, 0, CONSUMER)
        record.changed(range(at + 1, at + 101), 3)
    assert record.count == count
    flat = 0
    for block in record._blocks:
        columns = (block.joined, block.ends, block.index, block.states, block.reasons, block.deliveries)
        flat += sum(map(sys.getsizeof, (*columns, block.queued, block.changed, block.holders, block.names)))
        flat += sum(map(sys.getsizeof, block.ids or ()))
    assert flat / count < 100 + size


# -- logs and snapshots --------------------------------------------------------------------------------------


def random_commands(random: Random, number: int) -> list[Command]:
    commands: list[Command] = []
    for _ in range(random.randint(1, 3)):
        verb = random.choice(
            ["publish"] * 4 + ["attach", "settle", "return", "discard", "purge", "get", "plain"]
        )
        key = 7, 1, random.choice(["a", "b"]), 0
        if verb == "publish":
            ids = [
                random.choice([b"", b"x", b"m%d" % (number + each)]) for each in range(random.randint(1, 9))
            ]
            commands.append(publish(*ids))
        elif verb == "plain":
            commands.append(("enqueue", Run(range(2), [b"b", b"b"], b"head"), None, 1))
        elif verb in ("attach", "get"):
            consumer = Consumer((7, 1, None, 0) if verb == "get" else key, prefetch=random.randint(0, 3))
            commands.append((verb, consumer))
        elif verb == "purge":
            commands.append((verb, 1))
        else:
            low = random.randint(0, 9)
            commands.append((verb, key, low, low + random.randint(0, 5)))
    return commands


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 1 << 32).map(Random), st.integers(2, 25), st.booleans())
def test_a_snapshot_taken_while_the_log_goes_on(random: Random, entries: int, small: bool) -> None:
    before, blocks.BLOCK_ROWS = blocks.BLOCK_ROWS, 8 if small else blocks.BLOCK_ROWS
    try:
        declared = Settings(
            keeps_all=True,
            message_ttl_ms=random.choice([None, 4]),
            max_length=random.choice([None, 5]),
            overflow=random.choice(["drop-head", "reject-publish"]),
            dead_letter=random.random() < 0.5,
            message_status_window_ms=random.choice([3, 1_000]),
            message_status_count=random.choice([2, 9, 1_000]),
        )
        replica = QueueReplica(declared)
        log = [encode_entry(0, [b"".join(encode_batch("n1", 1, 1, [("version", versions.NEWEST)]))])]
        now = 0
        for number in range(2, entries + 2):
            now += random.choice([0, 1, 3])
            commands = random_commands(random, 10 * number)
            log.append(encode_entry(now, [b"".join(encode_batch("n1", 1, number, commands))]))
        copies: list[QueueReplica] = []
        views: list[Any] = []
        for index, data in enumerate(log, 1):
            replica.apply(index, decode_entry(data), ("n1", 1))
            for view, digest in [each for each in views if not each[0].go_on()]:
                copy = QueueReplica.restore(view.replica())
                assert copy.digest() == digest
                for later in range(copy.applied + 1, index + 1):
                    copy.apply(later, decode_entry(log[later - 1]), ("n1", 1))
                copies.append(copy)
            views = [each for each in views if each[0]._machine.frozen.active and not _ended(each[0])]
            if random.random() < 0.4:
                views.append((replica.view(), replica.digest()))
            for copy in copies:
                if copy.applied < index:
                    copy.apply(index, decode_entry(data), ("n1", 1))
                assert copy.digest() == replica.digest()
        for view, _ in views:
            view.end()
    finally:
        blocks.BLOCK_ROWS = before


def _ended(view: Any) -> bool:
    return view._moment not in view._machine.frozen.moments


def test_a_damaged_snapshot_is_refused() -> None:
    machine = Machine(ON)
    apply(machine, publish(b"a", b"b"), publish(b"c"))
    part = record_of(machine)._blocks[0].stored()
    good = snapshot.encode(machine)
    assert snapshot.digest(snapshot.decode(good)) == snapshot.digest(machine)
    for field, wrong in (
        (1, 2),
        (4, 9),
        (5, b"\x01"),
        (5, b"\x63\x01\x01"),
        (6, b"\x63\0\0"),
        (10, 7),
        (2, None),
    ):
        damaged = list(part)
        damaged[field] = wrong
        if field == 2:
            damaged.pop()
        with pytest.raises((CodecError, ValueError, TypeError)):
            MessageRecord(ON, 0, 0).restored(damaged)


# -- journal -------------------------------------------------------------------------------------------------


class Journal:
    """A journal in memory."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}

    def append(
        self, queue_id: int, first: int, count: int, payload: list[bytes], head_parts: int = 0
    ) -> None:
        assert count == 1 and first not in self.records and head_parts == len(payload)
        self.records[first] = b"".join(payload)

    def settle(self, queue_id: int, seqs: range) -> None:
        for seq in seqs:
            del self.records[seq]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 32).map(Random), st.integers(1, 60), st.sampled_from([5, 1_000]))
def test_a_journal_gives_the_record_back(random: Random, batches: int, count: int) -> None:
    journal: Any = Journal()
    declared = Settings(message_status_window_ms=1_000, message_status_count=count)
    machine = Machine(declared)
    writer = StatusJournal(journal, 1, record_of(machine), None)
    ids = [b"x"]
    for number in range(batches):
        commands = random_commands(random, 10 * number)
        for command in commands:
            if command[0] == "enqueue_known":
                ids += command[4]
        apply(machine, *commands, now_ms=number)
        writer.note()
    again, stored = MessageRecord(declared, 0, 0), Stored()
    for position in sorted(journal.records):
        stored.put(again, position, journal.records[position])
    for message_id in dict.fromkeys(ids):
        if message_id:
            assert (
                again.find(message_id, batches).copies == record_of(machine).find(message_id, batches).copies
            )
    assert again.since_ms == record_of(machine).since_ms
    # It goes on behind what is there, and ends with everything settled.
    machine.record = again
    writer = StatusJournal(journal, 1, again, stored)
    apply(machine, publish(b"last"), now_ms=batches)
    writer.note()
    writer.end()
    assert journal.records == {}


def test_what_the_journal_is_about_is_settled_with_it() -> None:
    journal: Any = Journal()
    machine = Machine(Settings(message_status_window_ms=1_000, message_status_count=10))
    writer = StatusJournal(journal, 1, record_of(machine), None)
    for number in range(2_000):
        apply(machine, publish(b"m%d" % number), ("attach", Consumer(CONSUMER)), now_ms=0)
        apply(machine, ("settle", CONSUMER, number, number))
        writer.note()
    assert len(journal.records) < 300
    assert min(journal.records) > FIRST_POSITION


def test_damaged_records_of_the_journal() -> None:
    for payload in (
        b"",
        b"\x01",
        b"\x02\x90",
        b"\x01\xff\xff",
        b"\x01\x91\x91\xa1x",
        b"\x01\x91\x92\xa1x\x01",
    ):
        with pytest.raises(CodecError):
            Stored().put(MessageRecord(ON, 0, 0), FIRST_POSITION, payload)


def test_lost_messages_are_told_at_a_start() -> None:
    machine = Machine(ON)
    apply(machine, publish(*[b"m%d" % number for number in range(6)]))
    apply(machine, ("attach", Consumer(CONSUMER, prefetch=3)))
    apply(machine, ("settle", CONSUMER, 0, 0))
    record = record_of(machine)
    record.recovered([(range(2, 3), True), (range(5, 6), False)], 9)
    told = [record.find(b"m%d" % number, 9).copies[0] for number in range(6)]
    assert [(STATES[copy.state], REASONS[copy.reason]) for copy in told] == [
        ("acknowledged", ""),
        ("queued", ""),
        ("dropped", "lost when the node restarted"),
        ("dropped", "lost when the node restarted"),
        ("queued", ""),
        ("dropped", "lost when the node restarted"),
    ]


# -- answers -------------------------------------------------------------------------------------------------


def test_answers_over_a_link() -> None:
    machine = Machine(ON)
    apply(machine, publish(b"a"), ("attach", Consumer(CONSUMER)), now_ms=5)
    found = answer(machine, b"a", 5, 1_000_005)
    assert isinstance(found, Found) and found.copies[0].queued_ms == 1_000_005
    assert of_plain(plain(found)) == found
    assert of_plain(plain(Refused("no"))) == Refused("no")
    for wrong in (
        None,
        [],
        [1, 2, 3],
        [0, [[1] * 8], [99, 0, 0, 0]],
        [0, [[1, 77, 0, 0, 0, 0, None, None]], None],
    ):
        with pytest.raises(CodecError):
            of_plain(wrong)
