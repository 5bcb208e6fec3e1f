"""A queue on its node: when it confirms, what it writes, what it keeps in memory, and how it is restored."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from random import Random

import pytest

from amqp_server.broker.declared.arguments import parse_queue_arguments
from amqp_server.broker.declared.settings import effective_settings
from persistence.journal import Journal
from quorum_queue import paging
from quorum_queue.local_host import LocalHost
from quorum_queue.machine import run as run_module
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.memory import ReadAhead
from tests.quorum_queue import node as node_module
from tests.quorum_queue.node import (
    PERSISTENT,
    QUEUE_ID,
    Publisher,
    QueueNode,
    Receiver,
    publish,
    resident_bytes,
)

TRANSIENT = Attributes()


def numbered(first: int, last: int, size: int = 0) -> list[bytes]:
    return [b"%d" % number + b"." * size for number in range(first, last + 1)]


def attach(host: LocalHost, key: str = "c", prefetch: int = 0, no_ack: bool = False) -> Receiver:
    receiver = Receiver()
    host.submit(("attach", Consumer(key, prefetch=prefetch, no_ack=no_ack, sink=receiver)))
    return receiver


def records(node: QueueNode) -> list[tuple[int, int]]:
    """Return (first number, messages) of the records on disk."""
    return [(record.first_seq, record.count) for record in node.environment.records(QUEUE_ID, 0, 1 << 40)]


# -- confirms


def test_a_persistent_message_is_confirmed_by_the_commit() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    publisher = Publisher()
    publish(host, numbered(1, 3), publisher)
    publish(host, numbered(4, 4), publisher, 4, TRANSIENT)
    assert publisher.confirms == {4}
    publish(host, numbered(5, 5), publisher, 5)
    node.commit()
    assert publisher.confirms == {1, 2, 3, 4, 5}
    assert records(node) == [(1, 3), (5, 1)]


def test_delivery_does_not_wait_for_the_commit_nor_confirm_before_it() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    publisher, receiver = Publisher(), attach(host)
    publish(host, numbered(1, 3), publisher)
    assert receiver.contents == numbered(1, 3)
    host.submit(("settle", "c", 0, 2))
    assert publisher.confirms == set()
    node.commit()
    assert publisher.confirms == {1, 2, 3}


def test_a_lone_message_that_is_acked_before_the_commit_is_confirmed_then() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    publisher = Publisher()
    attach(host)
    for number in (1, 2):
        # This holds for the second message, too, when nothing waits for the first one any more.
        publish(host, numbered(number, number), publisher, number)
        assert number not in publisher.confirms
        host.submit(("settle", "c", number - 1, number - 1))
        assert publisher.confirms == set(range(1, number + 1))
        # Nothing is left to write.
        assert not node.environment.pending.unsynced
    node.commit()
    assert publisher.confirms == {1, 2}
    assert not host._lone
    assert not host._batches_waiting
    assert records(node) == []


def test_a_lone_message_that_is_acked_while_it_is_written_is_settled() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    publisher = Publisher()
    attach(host)
    publish(host, numbered(1, 1), publisher)
    node.environment.pending.close_layer()
    host.submit(("settle", "c", 0, 0))
    assert publisher.confirms == {1}
    assert node.environment.pending.unsynced
    node.commit()
    assert records(node) == []
    assert list(Journal(node.environment).recover()) == []


def test_confirms_come_in_the_order_of_the_messages() -> None:
    """A message that is acked before the commit, behind others that wait for it, waits with them."""
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    publisher = Publisher()
    attach(host)
    for number in (1, 2, 3):
        publish(host, numbered(number, number), publisher, number)
    host.submit(("settle", "c", 1, 2))
    assert publisher.confirms == set()
    host.submit(("settle", "c", 0, 0))
    assert publisher.confirms == {1}
    node.commit()
    assert publisher.confirms == {1, 2, 3}
    assert not host._batches_waiting


@pytest.mark.parametrize("how", ["returned", "rejected", "dead-lettered", "purged"])
def test_what_leaves_otherwise_waits_for_the_commit(how: str) -> None:
    """A dead letter must first be on the disk of its target."""
    node = QueueNode()
    host = node.host(Settings(dead_letter=how == "dead-lettered"), journalled=True)
    publisher = Publisher()
    if how != "purged":
        attach(host)
    publish(host, numbered(1, 1), publisher)
    command = {"returned": "return", "purged": "purge"}.get(how, "discard")
    host.submit(("purge", 1) if how == "purged" else (command, "c", 0, 0))
    assert publisher.confirms == set()
    node.commit()
    assert publisher.confirms == {1}


def test_what_is_settled_before_the_commit_is_not_written() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    attach(host)
    publish(host, numbered(1, 3))
    host.submit(("settle", "c", 0, 2))
    node.commit()
    assert records(node) == []
    assert list(Journal(node.environment).recover()) == []


def test_without_a_journal_confirms_are_at_once() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=False)
    publisher = Publisher()
    publish(host, numbered(1, 3), publisher)
    assert publisher.confirms == {1, 2, 3}
    node.commit()
    assert records(node) == []


def test_refusals_are_at_once_and_are_not_written() -> None:
    node = QueueNode()
    host = node.host(Settings(max_length=2, overflow="reject-publish"), journalled=True)
    publisher = Publisher()
    publish(host, numbered(1, 5), publisher)
    assert publisher.refusals == {3, 4, 5}
    node.commit()
    assert publisher.confirms == {1, 2}
    assert records(node) == [(1, 2)]


def test_a_queue_that_goes_confirms_what_was_on_its_way() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    publisher = Publisher()
    publish(host, numbered(1, 2, 100), publisher)
    host.pending.append(("settle", "nobody", 0, 0))
    host.pending.append(("enqueue", Run(range(2), numbered(3, 4), b"head"), publisher, 3))
    host.close()
    assert publisher.confirms == {3, 4}
    node.commit()
    assert publisher.confirms == {1, 2, 3, 4}
    assert records(node) == []
    assert node.services.memory.used == 0
    publish(host, numbered(5, 5), publisher, 5)
    assert 5 in publisher.confirms
    host.wake()
    assert node.services.memory.used == 0


# -- memory


@pytest.mark.parametrize("attributes", [PERSISTENT, TRANSIENT])
@pytest.mark.parametrize("journalled", [True, False])
def test_a_queue_larger_than_memory(
    monkeypatch: pytest.MonkeyPatch, attributes: Attributes, journalled: bool
) -> None:
    # Small runs, so that a small queue has many.
    monkeypatch.setattr(run_module, "RUN_BYTES_MAX", 3_000)
    monkeypatch.setattr(node_module, "READ_AHEAD", ReadAhead(4_000))
    budget = 20_000
    node = QueueNode(budget)
    host = node.host(Settings(), journalled=journalled)
    sent = numbered(1, 300, 1000)
    for start in range(0, 300, 10):
        publish(host, sent[start : start + 10], attributes=attributes)
        node.commit()
        assert node.services.memory.used <= budget
        assert node.services.memory.used == host.resident_bytes == resident_bytes(host)
    assert host.machine.ready.count == 300
    receiver = attach(host, prefetch=7)
    while len(receiver.received) < 300:
        last = receiver.received[-1][0]
        # Some messages come back and are delivered again, in their place.
        if last % 3 == 0 and not receiver.received[-1][2]:
            host.submit(("return", "c", last, last))
            assert receiver.received[-1][1:] == (receiver.received[-2][1], True)
            del receiver.received[-2]
        host.submit(("settle", "c", 0, receiver.received[-1][0]))
        node.commit()
        assert node.services.memory.used == host.resident_bytes == resident_bytes(host)
        # In addition to the budget: the messages that the consumer holds, and those read ahead for it.
        assert node.services.memory.used <= budget + 7_000 + 4_000 + 3_000
    assert receiver.contents == sent
    host.submit(("settle", "c", 0, 1 << 40))
    assert host.machine.unacked_count == 0
    assert node.services.memory.used == host.resident_bytes == 0
    node.commit()
    assert records(node) == []


@pytest.mark.parametrize("persistent", [True, False])
def test_paged_out_messages_come_back_one_by_one(persistent: bool) -> None:
    """Single returns are joined into runs; joined messages must not be paged out twice."""
    node = QueueNode(0)
    host = node.host(Settings(), journalled=True)
    receiver = attach(host, prefetch=6)
    for content in numbered(1, 6, 50):
        publish(host, [content], attributes=Attributes(persistent=persistent))
    node.commit()
    host.submit(("pause", "c", True))
    for delivery_id in (3, 1, 2, 5, 0, 4):
        host.submit(("return", "c", delivery_id, delivery_id))
        assert node.services.memory.used == host.resident_bytes == resident_bytes(host)
    publish(host, numbered(7, 9, 50), attributes=Attributes(persistent=persistent))
    node.commit()
    node.services.memory.relieve()
    assert node.services.memory.used == host.resident_bytes == resident_bytes(host)
    receiver.received.clear()
    host.submit(("prefetch", "c", 0), ("pause", "c", False))
    assert receiver.contents == numbered(1, 9, 50)
    assert [redelivered for *_, redelivered in receiver.received] == [True] * 6 + [False] * 3
    host.submit(("settle", "c", 0, 1 << 40))
    assert node.services.memory.used == host.resident_bytes == 0


def test_what_was_spilled_is_not_spilled_again() -> None:
    """The newest run comes back into memory, more messages are published behind it, and memory gets short
    again.
    """
    node = QueueNode()
    host = node.host(Settings(), journalled=False)
    publish(host, numbered(1, 3), attributes=TRANSIENT)
    # Persistent, so that these are runs of their own.
    publish(host, numbered(4, 6), attributes=TRANSIENT._replace(persistent=True))
    publish(host, numbered(7, 9), attributes=TRANSIENT)
    assert host.page_out(1 << 30) == 6
    receiver = attach(host, prefetch=3)
    # These bodies are read ahead.
    assert resident_bytes(host) == 9
    publish(host, numbered(10, 12), attributes=TRANSIENT)
    # The messages that the consumer holds leave memory, too.
    assert host.page_out(1 << 30) == 12
    assert node.services.memory.used == host.resident_bytes == resident_bytes(host)
    host.submit(("prefetch", "c", 0))
    assert receiver.contents == numbered(1, 12)
    host.submit(("settle", "c", 0, 11))
    assert node.services.memory.used == host.resident_bytes == 0
    node.commit()
    assert node.environment.spill.records(QUEUE_ID, 0, 100) == []


@pytest.mark.parametrize("journalled", [False, True])
def test_transient_bodies_that_consumers_hold_are_spilled(journalled: bool) -> None:
    """Two consumers take turns, so each holds messages with gaps."""
    node = QueueNode()
    host = node.host(Settings(), journalled=journalled)
    receivers = {key: attach(host, key, prefetch=10) for key in "ab"}
    publish(host, numbered(1, 8, 100), attributes=TRANSIENT)
    held = host.machine.consumers.by_key["a"].checkout.runs
    assert any(run.seqs.step > 1 for run in held)
    assert host.page_out(1 << 30) == 808
    assert node.services.memory.used == host.resident_bytes == resident_bytes(host) == 0
    node.commit()
    assert host.page_out(1 << 30) == 0
    # One message comes back and goes out again, one is settled, and a consumer ends with those it has left.
    host.submit(("return", "a", 1, 1), ("settle", "a", 0, 0))
    host.submit(("detach", "b", False), ("detach", "b", True))
    seen = {content for _, content, _ in receivers["a"].received}
    assert seen == set(numbered(1, 8, 100))
    assert all(again for _, _, again in receivers["a"].received[4:])
    assert node.services.memory.used == host.resident_bytes == resident_bytes(host)
    host.submit(("settle", "a", 0, 1 << 20))
    assert node.services.memory.used == host.resident_bytes == 0
    node.commit()
    assert node.environment.spill.records(QUEUE_ID, 0, 1 << 40) == []


def test_what_was_joined_is_paged_out_once() -> None:
    """Two runs that were apart only while one was on disk come back together and become one."""
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    publish(host, numbered(1, 3), attributes=TRANSIENT)
    publish(host, numbered(4, 6))
    node.commit()
    assert host.page_out(1 << 30) == 3
    publish(host, numbered(7, 9))
    node.commit()
    receiver = attach(host, prefetch=3)
    host.submit(("prefetch", "c", 0))
    assert receiver.contents == numbered(1, 9)
    host.submit(("pause", "c", True), ("return", "c", 3, 8))
    assert len(host.machine.ready.levels[0].returned) == 1
    host.page_out(1 << 30)
    assert node.services.memory.used == host.resident_bytes == resident_bytes(host)
    host.submit(("purge",), ("settle", "c", 0, 2))
    assert node.services.memory.used == host.resident_bytes == 0


def test_purge_and_expiry_give_memory_back() -> None:
    node = QueueNode()
    host = node.host(Settings(message_ttl_ms=10), journalled=True)
    publish(host, numbered(1, 3, 100))
    host.submit(("purge",))
    assert node.services.memory.used == host.resident_bytes == 0
    publish(host, numbered(4, 6, 100))
    assert node.services.memory.used > 300
    node.clock.now_ms = 10
    node.wakes.run(10)
    assert host.machine.ready.count == 0
    assert node.services.memory.used == host.resident_bytes == 0
    node.commit()
    assert records(node) == []


def test_a_way_that_fills_up_is_served_in_bursts() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=False)
    publish(host, numbered(1, 10_000))
    receiver = attach(host, no_ack=True)
    bursts = 0
    while node.wakes.asked:
        bursts += 1
        node.wakes.run(0)
    assert bursts == 2
    assert receiver.contents == numbered(1, 10_000)


# -- dead letters


def test_dead_letters_leave_at_once_or_when_they_are_taken() -> None:
    node = QueueNode()
    host = node.host(Settings(dead_letter=True, dead_letter_at_least_once=True), journalled=True)
    node.letters.takes = False
    attach(host)
    publish(host, numbered(1, 3, 10))
    node.commit()
    host.submit(("discard", "c", 0, 2))
    node.commit()
    assert records(node) == [(1, 3)]
    assert node.services.memory.used > 0
    node.clock.now_ms = 1_000
    node.wakes.run(1_000)
    assert records(node) == [(1, 3)]
    node.letters.takes = True
    node.clock.now_ms = 2_000
    node.wakes.run(2_000)
    node.commit()
    assert node.letters.taken == [(content, "rejected") for content in numbered(1, 3, 10)]
    assert records(node) == []
    assert node.services.memory.used == host.resident_bytes == 0
    assert host.machine.dead_lettering == {}


AT_LEAST_ONCE: dict[str, object] = {
    "x-queue-type": "quorum",
    "x-dead-letter-exchange": "",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
    "x-delivery-limit": 1,
}


def test_dead_letters_are_still_held_after_a_crash() -> None:
    node = QueueNode()
    parsed = parse_queue_arguments("q", "/", AT_LEAST_ONCE, durable=True, exclusive=False, auto_delete=False)
    host = node.host(effective_settings(parsed), journalled=True)
    node.letters.takes = False
    receiver, contents = attach(host, prefetch=4), numbered(1, 8, 10)
    publish(host, contents)
    # The second and the fourth are rejected, the third comes back too often, and the first is still with the
    # consumer.
    host.submit(("discard", "c", 1, 1), ("discard", "c", 3, 3))
    for _ in range(2):
        delivery = max(delivery for delivery, content, _ in receiver.received if content == contents[2])
        host.submit(("fail", "c", delivery, delivery))
    node.commit()
    dead = {2: "rejected", 3: "delivery_limit", 4: "rejected"}
    assert {seq: reason for seq, (_, reason) in host.machine.dead_lettering.items()} == dead
    for _ in range(2):
        host = node.crash(AT_LEAST_ONCE)
        held = host.machine.dead_lettering
        assert {seq: reason for seq, (_, reason) in held.items()} == dead
        assert [seq for run in host.machine.ready.runs() for seq in run.seqs] == [1, 5, 6, 7, 8]
        assert host.machine.held_bytes == sum(run.counted_bytes for run, _ in held.values()) > 0
    node.letters.takes = True
    node.clock.now_ms = 1_000
    node.wakes.run(1_000)
    assert sorted(node.letters.taken) == [
        (content, dead[number]) for number, content in enumerate(numbered(2, 4, 10), 2)
    ]
    node.commit()
    assert host.machine.dead_lettering == {}
    # Nothing is left of them.
    host = node.crash(AT_LEAST_ONCE)
    assert (host.ready_count, len(host.machine.dead_lettering)) == (5, 0)


def test_a_dead_letter_that_is_paged_out_is_sent_whole() -> None:
    node = QueueNode(0)
    host = node.host(Settings(dead_letter=True, max_length=4), journalled=True)
    publish(host, numbered(1, 4, 30))
    node.commit()
    host.machine.ready.levels[0].main.first.page_out()
    host.resident_bytes = node.services.memory.used = 0
    publish(host, numbered(5, 6, 30))
    assert node.letters.taken == [(content, "maxlen") for content in numbered(1, 2, 30)]
    node.commit()
    assert node.services.memory.used == host.resident_bytes == resident_bytes(host)


# -- after a crash


def state(host: LocalHost) -> list[tuple[int, bool, int]]:
    return [(seq, run.redelivered, run.attempts) for run in host.machine.ready.runs() for seq in run.seqs]


def test_marks_tell_what_was_delivered() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    attach(host, prefetch=3)
    publish(host, numbered(1, 6))
    node.commit()
    host.submit(("settle", "c", 1, 1))
    node.commit()
    host = node.crash({})
    assert state(host) == [(1, True, 0), (3, True, 0), (4, True, 0), (5, False, 0), (6, False, 0)]
    assert node.services.memory.used == host.resident_bytes == 0
    receiver = attach(host)
    assert receiver.contents == [b"1", b"3", b"4", b"5", b"6"]
    publish(host, [b"7"])
    assert receiver.contents[-1] == b"7"
    host.submit(("settle", "c", 0, 10))
    assert node.services.memory.used == host.resident_bytes == 0
    node.commit()
    assert records(node) == []


def test_consumers_in_turn_are_marked_to_the_last() -> None:
    """An odd number of messages: the consumer that was served last does not hold the newest one."""
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    attach(host, "a")
    attach(host, "b")
    publish(host, numbered(1, 5))
    node.commit()
    assert state(node.crash({})) == [(seq, True, 0) for seq in range(1, 6)]


def test_each_priority_has_its_mark() -> None:
    node = QueueNode()
    host = node.host(Settings(priority_max=2), journalled=True)
    for priority in (0, 2, 1):
        publish(host, numbered(1, 2), attributes=Attributes(persistent=True, priority=priority))
    attach(host, prefetch=3)
    node.commit()
    host = node.crash({"x-max-priority": 2})
    assert state(host) == [
        (3, True, 0),
        (4, True, 0),
        (5, True, 0),
        (6, False, 0),
        (1, False, 0),
        (2, False, 0),
    ]


def test_attempts_outlive_a_crash() -> None:
    node = QueueNode()
    host = node.host(Settings(delivery_limit=20, keeps_all=True), journalled=True)
    attach(host, prefetch=2)
    publish(host, numbered(1, 4), attributes=TRANSIENT)
    for delivery_id in (0, 2, 3):
        host.submit(("return", "c", delivery_id, delivery_id))
    node.commit()
    host = node.crash({"x-queue-type": "quorum"})
    # A delivery that ended with the crash counts as one.
    assert state(host) == [(1, True, 3), (2, True, 1), (3, False, 0), (4, False, 0)]


def test_a_message_that_waited_at_the_start_is_as_old_as_the_node() -> None:
    node = QueueNode()
    host = node.host(Settings(retry_type="all", retry_min_ms=500, retry_max_ms=500), journalled=True)
    attach(host, prefetch=1)
    publish(host, numbered(1, 1))
    node.commit()
    host.submit(("return", "c", 0, 0))
    node.commit()
    host = node.crash({"x-delayed-retry-type": "all", "x-delayed-retry-min": 500})
    assert host.delayed_count == 1
    node.clock.now_ms += 600
    host.wake()
    assert host.ready_count == 1
    assert host.oldest_age_ms() == 600


def test_numbers_are_not_used_twice() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    attach(host)
    publish(host, numbered(1, 5))
    host.submit(("settle", "c", 0, 4))
    node.commit()
    host = node.crash({})
    publish(host, [b"6"])
    node.commit()
    assert state(host) == [(6, False, 0)]


@pytest.mark.parametrize("mixed", [True, False])
def test_long_routing_keys_do_not_make_records_that_cannot_be_recovered(mixed: bool) -> None:
    """A restart reads only the beginning of a record, so all heads must be in it."""
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    contents = numbered(1, 9_000)
    heads = [b"%04d" % index * 60 for index in range(len(contents))]
    if mixed:
        run = Run(range(len(contents)), list(contents), b"", PERSISTENT)
        run.heads = heads
        host.pending.append(("enqueue", run, None, 1))
    for content, head in () if mixed else zip(contents, heads, strict=True):
        run = Run(range(1), [content], head, PERSISTENT)
        host.pending.append(("enqueue", run, None, 1))
    host.submit()
    node.commit()
    assert len(records(node)) > 1
    host = node.crash({})
    assert [seq for seq, *_ in state(host)] == list(range(1, 9_001))
    receiver = attach(host, no_ack=True)
    while node.wakes.asked:
        node.wakes.run(0)
    assert receiver.contents == contents


# -- damage


class Kept(logging.Handler):
    """The log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def told() -> Iterator[list[str]]:
    handler = Kept()
    logger = logging.getLogger("mqd.queue")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_damaged_record_costs_its_own_messages(told: list[str], no_ack: bool) -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    for first in (1, 4, 7):
        publish(host, numbered(first, first + 2, 1000))
    node.commit()
    host = node.crash({})
    assert node.environment.flip(QUEUE_ID, 5) == range(4, 7)
    receiver = attach(host, no_ack=no_ack)
    assert receiver.received == [
        (delivery, content, False)
        for delivery, content in enumerate([*numbered(1, 3, 1000), *numbered(7, 9, 1000)])
    ]
    assert told == ["queue 'q' in vhost '/' lost messages 4 to 6: does not match its checksum"]
    assert host.unacked_count == (0 if no_ack else 6)
    host.submit(("settle", "c", 0, 5))
    assert (host.ready_count, host.unacked_count, resident_bytes(host)) == (0, 0, 0)
    node.commit()
    assert records(node) == []
    assert len(told) == 1


def test_a_consumer_that_takes_one_at_a_time_gets_past_what_is_lost() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    for number in range(1, 6):
        publish(host, numbered(number, number, 1000))
    node.commit()
    host = node.crash({})
    for number in (1, 2, 4):
        node.environment.flip(QUEUE_ID, number)
    receiver = attach(host, prefetch=1)
    assert receiver.contents == numbered(3, 3, 1000)
    (delivery,) = [delivery for delivery, _, _ in receiver.received]
    host.submit(("settle", "c", delivery, delivery))
    assert receiver.contents == [*numbered(3, 3, 1000), *numbered(5, 5, 1000)]
    got: list[object] = []
    host.get(Consumer(("g",), sink=Receiver()), got.append)
    assert got == [None]


def test_a_dead_letter_that_is_lost_is_not_sent() -> None:
    node = QueueNode()
    settings = Settings(dead_letter=True, dead_letter_at_least_once=True, message_ttl_ms=10)
    host = node.host(settings, journalled=True)
    for first in (1, 3):
        publish(host, numbered(first, first + 1, 1000))
    node.commit()
    host = node.crash({"x-dead-letter-exchange": "", "x-message-ttl": 10})
    host.machine.settings = settings
    node.environment.flip(QUEUE_ID, 1)
    node.clock.now_ms = 100
    host.submit(("tick",))
    assert node.letters.taken == [(content, "expired") for content in numbered(3, 4, 1000)]
    assert (host.ready_count, len(host.machine.dead_lettering)) == (0, 0)
    node.commit()
    assert records(node) == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_damaged_the_queue_goes_on_with_the_others(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Bodies in and out of memory, durable and spilled, with random damage from the seed."""
    monkeypatch.setattr(paging, "RECORD_BYTES_MAX", 500)
    random = Random(seed)
    node = QueueNode(budget_bytes=random.choice([0, 2_000, 1 << 20]))
    host = node.host(Settings(priority_max=random.choice([0, 2])), journalled=True)
    published: dict[bytes, None] = {}
    lost: dict[int, None] = {}
    receivers = [attach(host, key, prefetch=random.choice([1, 3, 10])) for key in "ab"]
    for _ in range(60):
        contents = numbered(len(published), len(published) + random.randint(0, 4), random.randint(0, 200))
        published.update(dict.fromkeys(contents))
        attributes = Attributes(persistent=random.random() < 0.7, priority=random.randint(0, 2))
        publish(host, contents, attributes=attributes)
        node.commit()
        for store in (node.environment, node.environment.spill):
            stored = list(store.queues[QUEUE_ID].records) if QUEUE_ID in store.queues else []
            if stored and random.random() < 0.3:
                lost.update(dict.fromkeys(store.flip(QUEUE_ID, random.choice(stored))))
        for key, receiver in zip("ab", receivers, strict=True):
            if receiver.received and random.random() < 0.5:
                verb = random.choice(["settle", "return"])
                host.submit((verb, key, 0, receiver.received[-1][0]))
    for _ in range(len(published)):
        for key in "ab":
            host.submit(("settle", key, 0, 1 << 40))
    assert (host.ready_count, host.unacked_count, resident_bytes(host)) == (0, 0, 0)
    received = dict.fromkeys(content for receiver in receivers for content in receiver.contents)
    assert not [content for content in received if content not in published]
    assert len(published) - len(received) <= len(lost)
    node.commit()
    assert records(node) == []
    assert not host.services.spill.read(QUEUE_ID, 0, 1 << 40)
