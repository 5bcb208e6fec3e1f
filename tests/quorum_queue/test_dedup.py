"""Deduplication: no message is taken twice, whatever a client sends again, and whenever the node dies."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from quorum_queue.journals import deduplication_journal as names_module
from quorum_queue.machine import dedup as dedup_module
from quorum_queue.machine import versions
from quorum_queue.machine.codec import CodecError, framed
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.dedup import (
    SEQUENCE_MAX,
    Dedup,
    Names,
    Sequence,
    id_of,
    is_name,
    key_of,
    sequence_of,
)
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Machine, Meta
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot
from tests.quorum_queue.node import PERSISTENT, Publisher, QueueNode, Receiver
from tests.work import steps

WINDOW_MS = 20
IDLE_MS = 50
PRODUCERS_MAX = 3
ARGUMENTS: dict[str, object] = {"x-deduplication-window-ms": WINDOW_MS, "x-deduplication-count": 4}
DECLARED = Settings(
    deduplication_window_ms=WINDOW_MS, deduplication_count=4, deduplication_producers=PRODUCERS_MAX
)

#: How a publisher names a message: not at all, by an id, or by its producer and sequence.
Said = str | tuple[str, int] | None
said = (
    st.none()
    | st.sampled_from(list("abcdefg"))
    | st.tuples(st.sampled_from(list("PQRST")), st.integers(-2, 9))
)


def _in_a_row(producer: str, first: int, count: int) -> list[Said]:
    return [(producer, number) for number in range(first, first + count)]


#: Messages of one publish: each with a name of its own, or numbered in order by one producer.
publishes = st.lists(said, min_size=1, max_size=8) | st.builds(
    _in_a_row, st.sampled_from(list("PQRST")), st.integers(-2, 9), st.integers(1, 8)
)


def name_of(said: Said) -> bytes | None:
    if said is None:
        return None
    return id_of(said.encode()) if isinstance(said, str) else sequence_of(said[0].encode(), said[1])


def names_of(batch: list[Said]) -> Names:
    """Return the names as the edge gives them: as a sequence where they form one."""
    names = [name_of(message) for message in batch]
    if isinstance(batch[0], tuple) and batch == _in_a_row(*batch[0], len(batch)):
        assert names[0] is not None
        return Sequence.from_first(names[0], len(names))
    return names


class Memory:
    """The names that a queue must remember, one message at a time."""

    def __init__(self, count: int) -> None:
        self.count = count
        #: (id, time), oldest first.
        self.ids: list[tuple[str, int]] = []
        #: (producer, sequence, time), the producer with the longest idle time first.
        self.producers: list[tuple[str, int, int]] = []

    def expire(self, now: int) -> None:
        self.ids = [entry for entry in self.ids if now - entry[1] < WINDOW_MS]
        self.producers = [entry for entry in self.producers if now - entry[2] < IDLE_MS]

    def is_new(self, said: Said) -> bool:
        if isinstance(said, tuple):
            return all(name != said[0] or sequence < said[1] for name, sequence, _ in self.producers)
        return said is None or all(known != said for known, _ in self.ids)

    def take(self, said: Said, now: int) -> None:
        if isinstance(said, str):
            self.ids = [*self.ids, (said, now)][-self.count :]
        elif said is not None:
            others = [entry for entry in self.producers if entry[0] != said[0]]
            self.producers = [*others, (*said, now)][-PRODUCERS_MAX:]

    def copy(self) -> Memory:
        copy = Memory(self.count)
        copy.ids, copy.producers = list(self.ids), list(self.producers)
        return copy


@pytest.fixture(autouse=True, scope="module")
def small_limits() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup_module, "PRODUCER_IDLE_MS", IDLE_MS)
        patch.setattr(dedup_module, "EXPIRED_AT_ONCE", 1)
        patch.setattr(names_module, "RECORD_NAMES_MAX", 3)
        yield


class DedupComparison(RuleBasedStateMachine):
    """The machine of a queue that may be full, compared with the list of names that it must know."""

    @initialize(count=st.integers(1, 5), max_length=st.none() | st.integers(0, 5),
                overflow=st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]))  # fmt: skip
    def start(self, count: int, max_length: int | None, overflow: Any) -> None:
        self.machine = Machine(
            Settings(
                deduplication_producers=PRODUCERS_MAX,
                deduplication_window_ms=WINDOW_MS,
                deduplication_count=count,
                max_length=max_length,
                overflow=overflow,
            )
        )
        self.memory = Memory(count)
        self.now = 0
        self.number = 1

    @rule(batch=publishes)
    def publish(self, batch: list[Said]) -> None:
        first = self.number
        self.number += len(batch)
        run = Run(range(len(batch)), [b"x"] * len(batch), b"head")
        effects = Effects(wants_enqueued=True)
        refuses = (
            self.machine.settings.overflow != "drop-head" and self.machine.settings.max_length is not None
        )
        room = (self.machine.settings.max_length or 0) - self.machine.ready.count
        command = "enqueue_once", run, "origin", first, names_of(batch)
        self.machine.apply(Meta(self.now), [command], effects)
        self.memory.expire(self.now)
        taken: list[int] = []
        refused: list[int] = []
        for number, message in enumerate(batch, first):
            if self.memory.is_new(message):
                if refuses and len(taken) >= room:
                    refused.append(number)
                    continue
                taken.append(number)
                self.memory.take(message, self.now)
        assert sum(len(run.seqs) for run in effects.enqueued) == len(taken)
        answered = [number for _, low, high, _ in effects.confirmed for number in range(low, high + 1)]
        assert answered == [number for number in range(first, self.number) if number not in refused]
        answered = [number for _, low, high in effects.refused for number in range(low, high + 1)]
        assert answered == refused
        assert effects.duplicates == len(batch) - len(taken) - len(refused)

    @rule(elapsed=st.sampled_from([1, 7, WINDOW_MS, IDLE_MS]))
    def wait(self, elapsed: int) -> None:
        self.now += elapsed

    @rule()
    def purge(self) -> None:
        """Messages that are gone are remembered all the same."""
        self.machine.apply(Meta(self.now), [("purge",)], Effects())

    @rule()
    def restore(self) -> None:
        digest = snapshot.digest(self.machine)
        self.machine = snapshot.decode(snapshot.encode(self.machine))
        assert snapshot.digest(self.machine) == digest


TestDedup = DedupComparison.TestCase
TestDedup.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


class DedupOnDisk(RuleBasedStateMachine):
    """A durable queue that is killed at any point: it knows the names of its last commit, like the
    messages.
    """

    @initialize()
    def start(self) -> None:
        self.node = QueueNode()
        self.host = self.node.host(DECLARED, journalled=True)
        self.publisher = Publisher()
        self.number = 1
        self.memory, self.durable_memory = Memory(4), Memory(4)
        self.ready: list[bytes] = []
        self.durable_ready: list[bytes] = []

    @rule(batches=st.lists(publishes, min_size=1, max_size=3))
    def publish(self, batches: list[list[Said]]) -> None:
        """Publish batches in one turn."""
        self.memory.expire(self.node.clock.now_ms)
        for batch in batches:
            first = self.number
            self.number += len(batch)
            contents = [b"%d" % number for number in range(first, self.number)]
            for message, content in zip(batch, contents, strict=True):
                if self.memory.is_new(message):
                    self.memory.take(message, self.node.clock.now_ms)
                    self.ready.append(content)
            run = Run(range(len(batch)), contents, b"head", PERSISTENT)
            self.host.pending.append(("enqueue_once", run, self.publisher, first, names_of(batch)))
        before = set(self.publisher.confirms)
        self.host.submit()
        # Neither a message nor its duplicate is confirmed before the sync.
        assert self.publisher.confirms == before
        self.check()

    @rule()
    def commit(self) -> None:
        self.node.commit()
        self.durable_memory, self.durable_ready = self.memory.copy(), list(self.ready)
        assert self.publisher.confirms == set(range(1, self.number))

    @rule(count=st.integers(1, 5))
    def consume(self, count: int) -> None:
        receiver = Receiver()
        consumer = Consumer("c", prefetch=count, sink=receiver)
        self.host.submit(("attach", consumer))
        self.host.submit(("detach", "c", False), ("settle", "c", 0, count))
        assert receiver.contents == self.ready[:count]
        del self.ready[:count]

    @rule(elapsed=st.sampled_from([1, 7, WINDOW_MS, IDLE_MS]))
    def wait(self, elapsed: int) -> None:
        self.node.clock.now_ms += elapsed

    @rule()
    def crash(self) -> None:
        self.host = self.node.crash(ARGUMENTS, PRODUCERS_MAX)
        self.memory, self.ready = self.durable_memory.copy(), list(self.durable_ready)
        self.publisher = Publisher()
        self.publisher.confirms = set(range(1, self.number))
        self.check()

    def check(self) -> None:
        assert self.host.machine.ready.count == len(self.ready)
        dedup = self.host.machine.dedup
        assert dedup is not None
        state, now = dedup.state(), self.node.clock.now_ms
        # What is too old leaves in parts, and counts as forgotten.
        assert [(key, at) for key, at in state.ids if now - at < WINDOW_MS] == [
            (name_of(known), at) for known, at in self.memory.ids if now - at < WINDOW_MS
        ]
        assert [(key, sequence) for key, sequence, used in state.producers if now - used < IDLE_MS] == [
            (key_of(sequence_of(name.encode(), sequence)), sequence)
            for name, sequence, used in self.memory.producers
            if now - used < IDLE_MS
        ]
        assert len(state.ids) <= 4 and len(state.producers) <= PRODUCERS_MAX
        assert len(dedup.positions) == len(dedup)


TestDedupOnDisk = DedupOnDisk.TestCase
TestDedupOnDisk.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def once(
    host: Any, ids: list[bytes | None], publisher: Publisher, first: int, attributes: Attributes = PERSISTENT
) -> None:
    run = Run(range(len(ids)), [b"x"] * len(ids), b"head", attributes)
    host.submit(("enqueue_once", run, publisher, first, ids))


def test_a_duplicate_is_confirmed_with_what_it_is_a_duplicate_of() -> None:
    node, publisher = QueueNode(), Publisher()
    host = node.host(DECLARED, journalled=True)
    once(host, [id_of(b"a")], publisher, 1)
    once(host, [id_of(b"a")], publisher, 2, Attributes(persistent=False))
    assert publisher.confirms == set()
    node.commit()
    assert publisher.confirms == {1, 2}
    # Nothing waits for the disk now, but the confirm takes the same way.
    once(host, [id_of(b"a")], publisher, 3)
    node.commit()
    assert publisher.confirms == {1, 2, 3}
    assert host.machine.ready.count == 1


def test_a_transient_message_and_its_id_go_with_the_node() -> None:
    node, publisher = QueueNode(), Publisher()
    host = node.host(DECLARED, journalled=True)
    once(host, [id_of(b"a"), sequence_of(b"P", 5)], publisher, 1)
    once(host, [id_of(b"b"), sequence_of(b"P", 6)], publisher, 3, Attributes(persistent=False))
    node.commit()
    host = node.crash(ARGUMENTS, PRODUCERS_MAX)
    once(host, [id_of(b"a"), id_of(b"b"), sequence_of(b"P", 5), sequence_of(b"P", 6)], publisher, 5)
    assert host.machine.ready.count == 2 + 2


def test_a_queue_without_a_log_confirms_at_once() -> None:
    node, publisher = QueueNode(), Publisher()
    host = node.host(DECLARED, journalled=False)
    once(host, [id_of(b"a"), id_of(b"a")], publisher, 1)
    assert publisher.confirms == {1, 2}
    assert host.machine.ready.count == 1


def test_what_is_forgotten_leaves_the_disk() -> None:
    node, publisher = QueueNode(), Publisher()
    host = node.host(DECLARED, journalled=True)
    for number in range(200):
        once(host, [id_of(b"%d" % number), sequence_of(b"P", number)], publisher, 2 * number + 1)
        node.commit()
    host.submit(("purge",))
    node.commit()
    records = host.services.journal.read(7, names_module.FIRST_POSITION, 1 << 63)
    assert sum(record.count for record in records) <= 5 + 4
    before, after = host.machine.dedup, node.crash(ARGUMENTS, PRODUCERS_MAX).machine.dedup
    assert before is not None
    assert after is not None
    assert after.state() == before.state()


def test_a_queue_that_does_not_deduplicate_takes_everything() -> None:
    machine = Machine(Settings())
    run = Run(range(2), [b"x"] * 2, b"head")
    machine.apply(Meta(0), [("enqueue_once", run, None, 1, [id_of(b"a"), id_of(b"a")])], Effects())
    assert machine.ready.count == 2


def test_limits_may_change() -> None:
    machine = Machine(DECLARED)

    def publish(*ids: bytes) -> None:
        run = Run(range(len(ids)), [b"x"] * len(ids), b"head")
        machine.apply(Meta(0), [("enqueue_once", run, None, 1, [id_of(name) for name in ids])], Effects())

    publish(b"a", b"b", b"c")
    machine.apply(
        Meta(0), [("configure", Settings(deduplication_window_ms=5, deduplication_count=2))], Effects()
    )
    publish(b"d")
    assert machine.dedup is not None
    assert [name for name, _ in machine.dedup.state().ids] == [id_of(b"c"), id_of(b"d")]
    machine.apply(Meta(0), [("configure", Settings())], Effects())
    publish(b"d")
    assert machine.dedup is None
    assert machine.ready.count == 5


def test_a_sequence_is_its_names() -> None:
    for producer in (b"P", b"x" * 500):
        first = sequence_of(producer, -1)
        names = Sequence.from_first(first, 5)
        assert names.each() == [sequence_of(producer, number) for number in range(-1, 4)]
        assert (names.first, names.last, len(names)) == (first, sequence_of(producer, 3), 5)
        assert names[:2].each() + names[2:].each() == names.each()
        assert names[2:] == Sequence.from_first(sequence_of(producer, 1), 3)
    with pytest.raises(ValueError, match="is none"):
        Sequence.from_first(id_of(b"a"), 1)
    with pytest.raises(ValueError, match="too long"):
        Sequence.from_first(sequence_of(b"P", SEQUENCE_MAX), 2)


def test_of_a_sequence_only_the_last_is_written() -> None:
    node, publisher = QueueNode(), Publisher()
    host = node.host(DECLARED, journalled=True)
    for first in (1, 3, 6):
        # After the first time, the first two of each run are duplicates.
        run = Run(range(5), [b"%d" % number for number in range(first, first + 5)], b"head", PERSISTENT)
        names = Sequence.from_first(sequence_of(b"P", first), 5)
        host.submit(("enqueue_once", run, publisher, 5 * first, names))
    node.commit()
    receiver = Receiver()
    host.submit(("attach", Consumer("c", prefetch=99, sink=receiver)))
    assert receiver.contents == [b"%d" % number for number in range(1, 11)]
    assert len(publisher.confirms) == 15
    records = host.services.journal.read(7, names_module.FIRST_POSITION, 1 << 63)
    assert sum(record.count for record in records) == 1


def test_a_long_id_is_hashed_and_no_name_looks_like_another() -> None:
    long = b"x" * 500
    assert len(id_of(long)) < 50
    assert id_of(long) != id_of(long + b"x")
    # A name that looks like a hash is not taken for one.
    assert id_of(id_of(long)[1:]) != id_of(long)
    for name in (id_of(b""), id_of(long), sequence_of(b"", -(1 << 63)), sequence_of(long, (1 << 63) - 1)):
        assert is_name(name)
    for wrong in (b"", b"x", b"s1234567"):
        assert not is_name(wrong)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01",
        b"\x07" + bytes(8),
        b"\x01" + bytes(8) + b"\x00\x00\x00\x09i",
        b"\x01" + bytes(8) + framed(b"?"),
    ],
)
def test_bytes_that_are_no_names(payload: bytes) -> None:
    with pytest.raises(CodecError):
        names_module.restore(Dedup(DECLARED), names_module.FIRST_POSITION, 1, payload, [])


def _full(count: int) -> Dedup:
    """A full memory, whose first keys were pushed out long ago."""
    known = Dedup(
        Settings(deduplication_window_ms=1_000_000, deduplication_count=count, deduplication_producers=count)
    )
    for number in range(2 * count):
        known.take(id_of(b"%d" % number), 0)
        known.take(sequence_of(b"%d" % number, 1), 0)
    return known


def test_a_full_memory_forgets_without_a_search() -> None:
    """The first key of a dictionary is found by a look at each key that was deleted in front of it: no
    dictionary is asked for it.
    """
    known = _full(100)
    assert isinstance(known._order, deque) and isinstance(known._producers, OrderedDict)
    changes: list[Any] = []
    known.take(id_of(b"next"), 1, changes)
    known.take(sequence_of(b"next", 1), 1, changes)
    assert changes == [(id_of(b"100"), False), (key_of(sequence_of(b"100", 1)), False)]


def test_names_that_are_too_old_leave_in_parts() -> None:
    known = _full(5_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup_module, "EXPIRED_AT_ONCE", 1_000)
        now_ms, lengths, longest = 2_000_000, [len(known)], 0
        while len(known):
            changes: list[Any] = []
            longest = max(longest, steps(lambda changes=changes: known.expire(now_ms, changes)))
            assert len(changes) <= 2_000
            assert known.is_new(id_of(b"9999"), now_ms) and known.is_new(sequence_of(b"9999", 1), now_ms)
            lengths.append(len(known))
    assert len(lengths) == 6 and longest < 200_000


@pytest.mark.parametrize("version", [versions.FIRST, versions.EXPIRY_IN_PARTS])
def test_old_versions_forget_all_at_once(version: int) -> None:
    machine = Machine(DECLARED)
    machine.version = version
    for number in range(4):
        run = Run(range(1), [b"x"], b"head")
        machine.apply(Meta(0), [("enqueue_once", run, "o", number, [id_of(b"%d" % number)])], Effects())
    run = Run(range(1), [b"x"], b"head")
    effects = Effects(wants_enqueued=True)
    machine.apply(Meta(WINDOW_MS), [("enqueue_once", run, "o", 5, [id_of(b"3")])], effects)
    assert machine.dedup is not None and len(effects.enqueued) == 1
    # The name was taken again, before it was forgotten.
    assert len(machine.dedup) == (1 if version == versions.FIRST else 3)
