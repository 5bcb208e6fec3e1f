"""The machine against a model that keeps single messages in lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import cycle

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from quorum_queue.machine.consumers import ALL_IDS, Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.peeking import Look, peek
from quorum_queue.machine.ready import HEAD, Place
from quorum_queue.machine.record import blocks
from quorum_queue.machine.record.record import COPIES_MAX, MessageRecord
from quorum_queue.machine.record.states import REASONS, STATES
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from tests.quorum_queue.kinds import in_turns
from tests.quorum_queue.list_model import Holder, Key, ListModel, Message, Outcome, Row

PRIORITY_MAX = 3
CONSUMERS = [("n1", 1, "c1"), ("n1", 2, "c2"), ("n2", 1, "c3"), ("n2", 1, "c4")]
GETTERS = [("n1", 1, "g1"), ("n2", 1, "g2")]
#: They get messages by their positions; the second one without acks.
PICKERS = [("n1", 1, "p1"), ("n2", 1, "p2")]
TTLS = st.none() | st.sampled_from([0, 3, 10, 40])
LIMITS = st.none() | st.integers(0, 12)
#: Exchange and routing key, of one letter each, and the group behind them.
HEAD_OF = {group: b"\x01e\x01k" + group.encode().replace(b".", b"") for group in "abcd."}
PREFETCHES = st.sampled_from([0, 1, 2, 3, 7])

queue_settings = st.builds(
    Settings,
    message_ttl_ms=TTLS,
    max_length=LIMITS,
    max_length_bytes=st.none() | st.integers(0, 40),
    overflow=st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
    dead_letter=st.booleans(),
    dead_letter_at_least_once=st.booleans(),
    priority_max=st.sampled_from([0, 0, PRIORITY_MAX]),
    single_active_consumer=st.booleans(),
    strict=st.booleans(),
    retry_type=st.sampled_from(["disabled", "disabled", "all", "failed", "returned"]),
    retry_min_ms=st.sampled_from([1, 3, 10]),
    retry_max_ms=st.sampled_from([10, 25]),
    retry_doubles=st.booleans(),
    keeps_all=st.booleans(),
    delivery_limit=st.none() | st.integers(0, 2),
    message_status_window_ms=st.sampled_from([None, 5, 1_000]),
    message_status_count=st.sampled_from([1, 7, 1_000]),
    dead_letter_to=st.just("dead"),
    group_header=st.sampled_from(["", "", "x-group-id"]),
).map(
    # They refuse each other.
    lambda drawn: (
        replace(drawn, priority_max=0, single_active_consumer=False) if drawn.group_header else drawn
    )
)
attributes = st.builds(
    Attributes,
    persistent=st.booleans(),
    priority=st.integers(-1, PRIORITY_MAX + 1) | st.sampled_from([5, 31, 32, 200]),
    ttl_ms=TTLS,
    channel=st.sampled_from([0, 1, 1]),
    frame_bytes=st.sampled_from([4096, 8192]),
    overhead=st.integers(0, 1),
)


class SharedWindow:
    """The channel-wide prefetch."""

    def __init__(self) -> None:
        self.limit = self.used = 0

    def room(self) -> int:
        return self.limit - self.used

    def use(self, count: int) -> None:
        self.used += count


Plain = tuple[int, bytes, bytes, Attributes, int | None, bool, int, int]


def plain(runs: Iterable[Run]) -> list[Plain]:
    """The messages of runs, one by one."""
    found: list[Plain] = []
    for run in runs:
        if run.packed is not None:
            run = run.seen(0, len(run.seqs))
        assert run.contents is not None
        assert len(run.contents) == len(run.seqs)
        assert run.heads is None or len(run.heads) == len(run.seqs)
        assert run.size == sum(map(len, run.contents))
        for index, seq in enumerate(run.seqs):
            flags = run.due_of(index), run.redelivered, run.attempts, run.acquired
            # A run keeps the largest frame size of its messages. From versions.COLUMNS on it keeps no time to
            # live, which the deadline says.
            attributes = run.attributes_of(index)._replace(frame_bytes=0, ttl_ms=None)
            found.append((seq, run.contents[index], run.head_of(index), attributes, *flags))
    return found


def plain_of(message: Message) -> Plain:
    flags = message.expires_at, message.redelivered, message.attempts, message.acquired
    attributes = message.attributes._replace(frame_bytes=0, ttl_ms=None)
    return (message.seq, message.content, message.head, attributes, *flags)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a record has several."""
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 16)


class MachineComparison(RuleBasedStateMachine):
    """Commands gather in `pending`; both sides then get a batch of them at once."""

    @initialize(declared=queue_settings)
    def declare(self, declared: Settings) -> None:
        self.machine = Machine(declared)
        self.model = ListModel(declared)
        self.window = SharedWindow()
        self.pending: list[tuple[Command, Callable[[], None]]] = []
        self.next_number = 1
        self.next_getter_id = 0
        self.published: dict[int, bytes] = {}
        self.settled: set[int] = set()
        self.ids: set[bytes] = set()

    # -- publishing

    @rule(count=st.integers(1, 9), size=st.integers(0, 6), groups=st.sampled_from(["", "a", "b", "ab", "aab", "a.", "abcd"]), drawn=attributes,
          others=st.lists(attributes, max_size=2), now=st.booleans(), ids=st.sampled_from(["none", "some", "own", "few"]),
          waits=st.sampled_from([0, 0, 0, 1, 5, 30]), asks=st.booleans())  # fmt: skip
    def enqueue(
        self,
        count: int,
        size: int,
        groups: str,
        drawn: Attributes,
        others: list[Attributes],
        now: bool,
        ids: str,
        waits: int,
        asks: bool,
    ) -> None:
        """Messages with `drawn` and with `others` take turns.

        `asks`: the sender waits for an answer; dead letters that are sent once do not."""
        numbers = range(self.next_number, self.next_number + count)
        self.next_number += count
        contents = [b"%d" % number + b"." * size for number in numbers]
        heads = [HEAD_OF[group] for group, _ in zip(cycle(groups or "."), numbers, strict=False)]
        run = Run(range(count), list(contents), heads[0], drawn)
        each = in_turns(run, others)
        if len(groups) > 1:
            run.heads = list(heads)
        run.waits_until = waits
        waits_until = self.model.now + waits if waits else 0
        names = {
            "none": [b""] * count,
            "some": [b"m%d" % number if number % 3 else b"" for number in numbers],
            "own": [b"m%d" % number for number in numbers],
            "few": [b"few%d" % (number % 4) for number in numbers],
        }[ids]
        self.ids.update(names)
        origin = "origin" if asks else None
        command: Command = ("enqueue", run, origin, numbers.start)
        if ids != "none":
            command = ("enqueue_known", run, origin, numbers.start, names)
        letters = drawn.channel == 0 and not asks
        self.submit(
            command,
            lambda: self.model.enqueue(numbers, contents, heads, each, names, waits_until, letters=letters),
            now,
        )

    # -- consumers

    @rule(key=st.sampled_from(CONSUMERS), no_ack=st.integers(0, 4), prefetch=PREFETCHES, priority=st.integers(0, 1),
          paused=st.integers(0, 4), exclusive=st.integers(0, 9))  # fmt: skip
    def attach(
        self, key: Key, no_ack: int, prefetch: int, priority: int, paused: int, exclusive: int
    ) -> None:
        self.flush()
        windowed = self.model.window_limit > 0
        consumer = Consumer(key, no_ack=no_ack == 0, prefetch=prefetch, priority=priority,
                            exclusive=exclusive == 0, window=self.window if windowed else None)  # fmt: skip
        consumer.paused = paused == 0
        holder = Holder(key, no_ack == 0, prefetch, priority, exclusive == 0, windowed, paused=paused == 0)
        self.submit(("attach", consumer), lambda: self.model.attach(holder), True)

    @rule(key=st.sampled_from(CONSUMERS), requeue=st.booleans(), now=st.booleans())
    def detach(self, key: Key, requeue: bool, now: bool) -> None:
        self.submit(("detach", key, requeue), lambda: self.model.detach(key, requeue), now)

    @rule(key=st.sampled_from(CONSUMERS), paused=st.booleans(), now=st.booleans())
    def pause(self, key: Key, paused: bool, now: bool) -> None:
        def pause() -> None:
            if key in self.model.holders:
                self.model.holders[key].paused = paused

        self.submit(("pause", key, paused), pause, now)

    @rule(key=st.sampled_from(CONSUMERS), count=PREFETCHES, now=st.booleans())
    def prefetch(self, key: Key, count: int, now: bool) -> None:
        def prefetch() -> None:
            if key in self.model.holders:
                self.model.holders[key].prefetch = count

        self.submit(("prefetch", key, count), prefetch, now)

    @rule(limit=st.integers(0, 6))
    def share_window(self, limit: int) -> None:
        """As basic.qos with global does: the window counts the messages that its consumers hold, and all of
        them share it.
        """
        self.flush()
        model = self.model
        used = sum(len(holder.held) for holder in model.turns)
        used += sum(
            len(holder.held) for holder in model.holders.values() if not holder.attached and holder.windowed
        )
        self.window.limit, self.window.used = limit, used
        model.window_used = used
        model.set_window(limit)
        window = self.window if limit else None
        commands: list[Command] = [("window", holder.key, window) for holder in model.turns]
        self.pending += [(command, lambda: None) for command in commands]
        self.flush()

    # -- taking and settling

    @rule(key=st.sampled_from(GETTERS))
    def get(self, key: Key) -> None:
        self.flush()
        consumer, holder = self.getter(key, key == GETTERS[1], 0)
        self.submit(("get", consumer), lambda: self.model.get(holder), True)
        self.next_getter_id = max(self.next_getter_id, consumer.next_id)

    @rule(key=st.sampled_from(PICKERS), data=st.data())
    def pick(self, key: Key, data: st.DataObject) -> None:
        self.flush()
        ready = [message.seq for message in self.model.ready]
        position = data.draw(
            st.sampled_from(ready) if ready else st.integers(1, self.model.next_seq)
        )  # fmt: skip
        consumer, holder = self.getter(key, key == PICKERS[1], position)
        self.submit(("get", consumer), lambda: self.model.pick(holder, position), True)
        known = self.machine.consumers.by_key.get(key)
        self.next_getter_id = max(self.next_getter_id, 0 if known is None else known.next_id)

    @rule(key=st.sampled_from(PICKERS), data=st.data(), early=st.sampled_from([0, 0, 1]))
    def pick_waiting(self, key: Key, data: st.DataObject, early: int) -> None:
        self.flush()
        if not self.model.delayed:
            return
        due, _, message = data.draw(st.sampled_from(self.model.delayed))
        position, due = message.seq, due - early
        if not due:
            return
        consumer, holder = self.getter(key, key == PICKERS[1], position)
        consumer.due_ms = due
        self.submit(("get", consumer), lambda: self.model.pick_waiting(holder, position, due), True)
        known = self.machine.consumers.by_key.get(key)
        self.next_getter_id = max(self.next_getter_id, 0 if known is None else known.next_id)

    def getter(self, key: Key, no_ack: bool, position: int) -> tuple[Consumer, Holder]:
        """Return a new getter, or the one that holds messages."""
        known, holder = self.machine.consumers.by_key.get(key), self.model.holders.get(key)
        assert (known is None) == (holder is None)
        if known is not None and holder is not None and not position:
            return known, holder
        consumer = Consumer(key, no_ack=no_ack, position=position)
        consumer.attached = False
        consumer.next_id = self.next_getter_id
        holder = holder or Holder(
            key, no_ack, attached=False, next_id=self.next_getter_id, picks=position > 0
        )
        return consumer, holder

    @rule(data=st.data(), verb=st.sampled_from(["settle", "return", "fail", "discard"]), now=st.booleans())
    def settle(self, data: st.DataObject, verb: str, now: bool) -> None:
        holders = [holder for holder in self.model.holders.values() if holder.next_id]
        if not holders:
            return
        holder = data.draw(st.sampled_from(holders))
        # Deliveries that the consumer has seen; who leaves gives back all.
        low = data.draw(st.integers(0, holder.next_id - 1))
        high = data.draw(st.integers(low, holder.next_id - 1) | st.just(ALL_IDS))
        verbs: dict[str, Callable[[Key, int, int], None]] = {
            "settle": self.model.settle,
            "return": self.model.put_back,
            "fail": partial(self.model.put_back, failed=True),
            "discard": self.model.discard,
        }
        apply = verbs[verb]
        self.submit((verb, holder.key, low, high), lambda: apply(holder.key, low, high), now)

    @rule(data=st.data(), wait=st.sampled_from([0, 1, 5, 30]), failed=st.booleans(), now=st.booleans())
    def retry(self, data: st.DataObject, wait: int, failed: bool, now: bool) -> None:
        """Whatever the settings of the queue say, they wait that long."""
        holders = [holder for holder in self.model.holders.values() if holder.next_id]
        if not holders:
            return
        holder = data.draw(st.sampled_from(holders))
        low = data.draw(st.integers(0, holder.next_id - 1))
        high = data.draw(st.integers(low, holder.next_id - 1))
        self.submit(
            ("retry", holder.key, low, high, wait, failed),
            lambda: self.model.put_back(holder.key, low, high, failed, wait),
            now,
        )

    @rule(data=st.data())
    @precondition(lambda self: self.model.dead_lettering)
    def dead_lettered(self, data: st.DataObject) -> None:
        low = data.draw(st.sampled_from(sorted(self.model.dead_lettering)))
        high = low + data.draw(st.integers(0, 3))
        self.submit(("dead_lettered", low, high), lambda: self.model.dead_lettered(low, high), True)

    @rule(data=st.data(), now=st.booleans())
    def lose(self, data: st.DataObject, now: bool) -> None:
        low = data.draw(st.integers(1, max(1, self.model.next_seq)))
        high = low + data.draw(st.integers(0, 8))
        self.submit(("lose", low, high), lambda: self.model.lose(low, high), now)

    # -- the rest

    @rule(token=st.integers(0, 9), now=st.booleans())
    def purge(self, token: int, now: bool) -> None:
        self.submit(("purge", token), lambda: self.model.purge(token), now)

    @rule(node=st.sampled_from(["n1", "n2", "n3"]), incarnation=st.integers(1, 2), now=st.booleans())
    def node_down(self, node: str, incarnation: int, now: bool) -> None:
        self.submit(("node_down", node, incarnation), lambda: self.model.node_down(node, incarnation), now)

    @rule(elapsed=st.sampled_from([1, 3, 20]))
    def tick(self, elapsed: int) -> None:
        self.flush()
        self.model.now += elapsed
        self.submit(("tick",), lambda: None, True)

    @rule(max_length=LIMITS, ttl=TTLS)
    def configure(self, max_length: int | None, ttl: int | None) -> None:
        self.take(replace(self.model.settings, max_length=max_length, message_ttl_ms=ttl))

    @rule(deliveries=st.booleans(), publishes=st.booleans())
    def pause_queue(self, deliveries: bool, publishes: bool) -> None:
        self.take(replace(self.model.settings, deliveries_paused=deliveries, publishes_paused=publishes))

    def take(self, new: Settings) -> None:

        def configure() -> None:
            self.model.settings = new
            if new.overflow == "drop-head":
                self.model.drop_over_limit()

        self.submit(("configure", new), configure, True)

    # -- both sides

    def submit(self, command: Command, modelled: Callable[[], None], now: bool) -> None:
        self.pending.append((command, modelled))
        if now:
            self.flush()

    def flush(self) -> None:
        pending, self.pending = self.pending, []
        effects = Effects(wants_enqueued=True)
        self.machine.apply(Meta(self.model.now), [command for command, _ in pending], effects)
        self.model.outcome = Outcome()
        for _, modelled in pending:
            modelled()
        self.model.end_batch()
        self.compare_effects(effects, self.model.outcome)
        self.compare_state()

    def compare_effects(self, effects: Effects, outcome: Outcome) -> None:
        for (seq, content, *_), expected in zip(plain(effects.enqueued), outcome.accepted, strict=True):
            assert seq == expected
            self.published[seq] = content
        assert effects.accepted_bytes == sum(len(self.published[seq]) for seq in outcome.accepted)
        confirmed = [number for _, first, last, _ in effects.confirmed for number in range(first, last + 1)]
        assert confirmed == outcome.confirmed
        refused = [number for _, first, last in effects.refused for number in range(first, last + 1)]
        assert refused == outcome.refused
        deliveries: dict[Key, list[tuple[int, int, bool, int, int]]] = {}
        for consumer, run, first_id in effects.deliveries:
            for delivery_id, message in enumerate(plain([run]), first_id):
                seq, content, _, _, _, redelivered, attempts, acquired = message
                assert content == self.published[seq]
                delivery = delivery_id, seq, redelivered, attempts, acquired
                deliveries.setdefault(consumer.key, []).append(delivery)
        assert deliveries == outcome.deliveries
        letters = [
            (message[1], reason) for run, reason in effects.dead_letters for message in plain([run])
        ]  # fmt: skip
        assert letters == outcome.dead_letters
        settled = [message[0] for message in plain(effects.settled)]
        assert sorted(settled) == sorted(outcome.settled)
        assert self.settled.isdisjoint(settled)
        self.settled.update(settled)
        returned = [(seq, run.attempts) for run in effects.returned for seq in run.seqs]
        assert returned == outcome.returned
        delayed = [(seq, run.attempts, due) for due, run in effects.delayed for seq in run.seqs]
        assert delayed == outcome.delayed
        assert effects.attach_refused == outcome.attach_refused
        assert effects.consumers_gone == outcome.consumers_gone
        assert effects.got_nothing == outcome.got_nothing
        assert effects.purged == outcome.purged
        assert not effects.more
        due = [due for due, *_ in self.model.delayed]
        due += [waiting.expires_at for waiting in self.model.ready if waiting.expires_at is not None]
        if due:
            assert self.machine.due_ms is not None and effects.wake_at is not None
            assert effects.wake_at <= self.machine.due_ms <= min(due)
        assert effects.wake_at is None or effects.wake_at > self.model.now

    def compare_state(self) -> None:
        machine, model = self.machine, self.model
        ready = plain(machine.ready.runs())
        assert ready == [plain_of(message) for message in model.ready]
        assert plain(self.peeked()) == ready
        both = [*ready, *(plain_of(message) for _, _, message in model.delayed)]
        assert plain(self.peeked(waiting=True)) == both
        waiting = [(due, message) for due, run in machine.delayed.items() for message in plain([run])]
        assert waiting == [(due, plain_of(message)) for due, _, message in model.delayed]
        assert (machine.ready.count, machine.delayed.count) == (len(model.ready), len(waiting))
        assert machine.ready.bytes + machine.delayed.bytes == model.ready_bytes
        if model.settings.strict and not model.grouped:
            levels = [message.level for message in model.ready]
            assert machine.ready.by_rank == {rank: levels.count(rank) for rank in sorted({*levels} - {32})}
            assert machine.ready.returned_count == levels.count(32)
        by_key = machine.consumers.by_key
        assert set(by_key) == set(model.holders)
        held: list[int] = []
        for key, holder in model.holders.items():
            checkout = by_key[key].checkout
            assert plain(checkout.runs) == [plain_of(message) for message in holder.held.values()]
            ids = [
                first + index
                for first, run in zip(checkout.starts, checkout.runs, strict=True)
                for index in range(len(run.seqs))
            ]
            assert ids == list(holder.held)
            assert checkout.count == len(ids)
            assert by_key[key].next_id == holder.next_id
            held += [message.seq for message in holder.held.values()]
        assert machine.unacked_count == len(held)
        runs = [run for consumer in by_key.values() for run in consumer.checkout.runs]
        assert machine.unacked_bytes == sum(run.counted_bytes for run in runs)
        assert machine.consumers.count == len(model.turns)
        if model.window_limit:
            assert self.window.used == model.window_used
        assert list(machine.dead_lettering) == list(model.dead_lettering)
        assert machine.held_bytes == sum(run.counted_bytes for run, _ in machine.dead_lettering.values())
        everywhere = (
            [message[0] for message in ready]
            + [message[0] for _, message in waiting]
            + held
            + list(machine.dead_lettering)
            + list(self.settled)
        )
        assert sorted(everywhere) == list(range(1, machine.next_seq))
        if machine.record is not None:
            recent = [row.message_id for row in list(model.rows.values())[-6:]]
            self.compare_record(machine.record, set(recent))

    def peeked(self, *, waiting: bool = False) -> list[Run]:
        """Look at all ready messages, a few at a time."""
        found: list[Run] = []
        place = HEAD
        while page := peek(self.machine, Look(place, 3, 12, waiting=waiting)):
            assert 1 <= sum(len(seen.run.seqs) for seen in page) <= 3
            assert len(page) == len(page[0].run.seqs) == 1 or sum(seen.run.size for seen in page) <= 12
            found += [seen.run for seen in page]
            place = Place(page[-1].level, page[-1].run.seqs[-1])
        return found

    def teardown(self) -> None:
        if hasattr(self, "machine") and self.machine.record is not None:
            self.flush()
            self.compare_record(self.machine.record, self.ids)

    def compare_record(self, record: MessageRecord, ids: set[bytes]) -> None:
        """These ids have the rows that the model remembers, and no others."""
        model, declared = self.model, self.model.settings
        assert declared.message_status_window_ms is not None
        oldest = model.now - declared.message_status_window_ms
        with_id = [row for row in model.rows.values() if row.message_id]
        kept = [row for row in with_id[-declared.message_status_count :] if row.queued > oldest]
        assert record.count <= declared.message_status_count
        forgotten = [row.queued for row in with_id[: len(with_id) - len(kept)]]
        rows: dict[bytes, list[Row]] = {}
        for row in kept:
            rows.setdefault(row.message_id, []).append(row)
        for message_id in sorted(ids - {b""}):
            found = record.find(message_id, model.now)
            told = [
                Row(copy.position, message_id, copy.queued_ms, STATES[copy.state], REASONS[copy.reason],
                    copy.changed_ms, copy.deliveries, copy.consumer)
                for copy in found.copies
            ]  # fmt: skip
            expected = rows.get(message_id, [])
            assert told == expected[-len(told) if len(expected) > COPIES_MAX else 0 :]
            assert all(
                copy.letter_to == (("dead", "") if STATES[copy.state] == "dead-lettered" else None)
                for copy in found.copies
            )
            assert not forgotten or found.since_ms >= max(forgotten)
            refused = [each for each in model.refused if each[0] == message_id]
            note = found.note
            if note is not None:
                assert (message_id, STATES[note.state], REASONS[note.reason], note.last_ms) == refused[-1]
            elif declared.message_status_count == 1_000 and refused:
                assert refused[-1][3] <= oldest


TestMachine = MachineComparison.TestCase
TestMachine.settings = settings(
    max_examples=250, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.long
def test_longer_stories_agree_with_the_model() -> None:
    stories = settings(TestMachine.settings, max_examples=5_000, stateful_step_count=80)
    run_state_machine_as_test(MachineComparison, settings=stories)
