"""Message groups: one consumer at a time has a group, and its messages in order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random

import pytest

from quorum_queue.machine import versions
from quorum_queue.machine.consumers import ALL_IDS, Consumer
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.order import message_groups
from quorum_queue.machine.order.message_groups import gathered, group_of, routing_of
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot
from tests.quorum_queue.command_log import KEYS, Batch, Reader, random_log, random_settings

GROUPED = Settings(group_header="x-group-id")
ROUTING = b"\x02ex\x03key"


def messages(groups: str) -> Run:
    """One message for each letter, of the group with this name; a dot is for none."""
    run = Run(range(len(groups)), [b"%d" % number for number in range(len(groups))], b"")
    run.heads = [ROUTING + group.encode().replace(b".", b"") for group in groups]
    return run


class Queue:
    """A machine, and who has which of its messages."""

    def __init__(self, settings: Settings = GROUPED) -> None:
        self.machine = Machine(settings)
        self.now_ms = 0
        self.published = 1

    def apply(self, *commands: Command) -> Effects:
        effects = Effects()
        self.machine.apply(Meta(self.now_ms), commands, effects)
        return effects

    def publish(self, groups: str) -> dict[str, list[int]]:
        self.published += len(groups)
        return told(self.apply(("enqueue", messages(groups), None, self.published)))

    def consume(self, name: str, prefetch: int = 1, priority: int = 0) -> dict[str, list[int]]:
        return told(self.apply(("attach", Consumer(name, prefetch=prefetch, priority=priority))))

    def settle(self, name: str, verb: str = "settle") -> dict[str, list[int]]:
        return told(self.apply((verb, name, 0, ALL_IDS)))


def told(effects: Effects) -> dict[str, list[int]]:
    """The positions of what each consumer gets."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for consumer, run, _ in effects.deliveries:
        found[consumer.key] += run.seqs
    return dict(found)


def test_heads() -> None:
    assert (routing_of(ROUTING + b"group"), group_of(ROUTING + b"group")) == (ROUTING, b"group")
    assert (routing_of(ROUTING), group_of(ROUTING)) == (ROUTING, b"")
    # Damaged ones have no group.
    for damaged in (b"", b"\x05ab", b"\x02ex", b"\x02ex\x09key"):
        assert group_of(damaged) == b""


def test_a_group_is_with_one_consumer_until_it_holds_none_of_it() -> None:
    queue = Queue()
    queue.consume("one")
    queue.consume("two")
    first = queue.publish("aaab")
    (having_a,) = [name for name, seqs in first.items() if 1 in seqs]
    (having_b,) = [name for name, seqs in first.items() if 4 in seqs]
    assert first == {having_a: [1], having_b: [4]}
    # The other one has room, and gets nothing of it.
    assert queue.settle(having_b) == {}
    assert queue.settle(having_a) == {having_a: [2]}


def test_deliveries_have_no_groups() -> None:
    queue = Queue()
    queue.consume("one", prefetch=9)
    effects = queue.apply(("enqueue", messages("ab.c"), None, 1))
    sent = [run.head_of(index) for _, run, _ in effects.deliveries for index in range(len(run.seqs))]
    assert sent == [ROUTING] * 4
    runs = queue.machine.consumers.by_key["one"].checkout.runs
    held = [run.head_of(index) for run in runs for index in range(len(run.seqs))]
    assert held == [ROUTING + group for group in (b"a", b"b", b"", b"c")]


def test_the_only_consumer_gets_all_groups_at_once() -> None:
    queue = Queue()
    queue.consume("one", prefetch=50)
    effects = queue.apply(("enqueue", messages("abc." * 20), None, 1))
    assert told(effects) == {"one": list(range(1, 51))}
    assert len(effects.deliveries) == 1
    # Another one gets nothing of these groups, and what has none.
    assert queue.consume("two", prefetch=3) == {"two": [52, 56, 60]}


def test_groups_run_in_parallel_past_a_long_one() -> None:
    queue = Queue()
    for name in ("one", "two", "three"):
        queue.consume(name)
    found = queue.publish("a" * 100 + "bc")
    assert sorted(seq for seqs in found.values() for seq in seqs) == [1, 101, 102]
    assert len(found) == 3


def test_messages_of_no_group_go_to_all_in_turn() -> None:
    queue = Queue()
    for name in ("one", "two", "three"):
        queue.consume(name, prefetch=0)
    found = queue.publish("." * 30)
    assert [len(seqs) for seqs in found.values()] == [10, 10, 10]


def test_a_group_prefers_the_same_consumer_while_that_costs_nothing() -> None:
    queue = Queue()
    for name in ("one", "two", "three"):
        queue.consume(name, prefetch=3)
    (favourite,) = queue.publish("a")
    for _ in range(5):
        queue.settle(favourite)
        assert list(queue.publish("a")) == [favourite]
    queue.settle(favourite)
    # It has room for none: others are not kept waiting.
    queue.apply(("pause", favourite, True))
    assert list(queue.publish("a")) != [favourite]


def test_who_goes_gives_its_groups_back_in_order() -> None:
    queue = Queue()
    queue.consume("one", prefetch=3)
    assert queue.publish("abab") == {"one": [1, 2, 3]}
    queue.consume("two", prefetch=9)
    assert queue.settle("two") == {}
    found = told(queue.apply(("detach", "one", True)))
    assert found == {"two": [1, 2, 3, 4]}


def test_who_was_cancelled_keeps_its_groups_until_it_acks() -> None:
    queue = Queue()
    queue.consume("one")
    queue.publish("aa")
    queue.apply(("detach", "one", False))
    assert queue.consume("two") == {}
    assert queue.settle("one") == {"two": [2]}


def test_a_retry_holds_its_group_and_no_other() -> None:
    retries = replace(GROUPED, retry_type="all", retry_min_ms=10, retry_max_ms=10)
    queue = Queue(retries)
    queue.consume("one")
    queue.consume("two")
    first = queue.publish("aab")
    having, other = (next(name for name, seqs in first.items() if seq in seqs) for seq in (1, 3))
    # The second message of the group waits behind the first one.
    assert told(queue.apply(("return", having, 0, 0))) == {}
    assert (queue.machine.ready.count, queue.machine.delayed.count) == (1, 1)
    assert queue.settle(other) == {}
    queue.now_ms = 10
    ((having, seqs),) = told(queue.apply(("tick",))).items()
    assert seqs == [1]
    assert queue.settle(having) == {having: [2]}


def test_a_consumer_with_room_goes_on_with_its_other_group() -> None:
    """Also if the group that would come first may not go: it waits for a retry, or another one has it now."""
    queue = Queue(replace(GROUPED, retry_type="returned", retry_min_ms=10, retry_max_ms=10))
    queue.consume("one", prefetch=2)
    assert queue.publish("ab") == {"one": [1, 2]}
    queue.consume("two", prefetch=9)
    assert queue.publish("ab") == {}
    assert told(queue.apply(("return", "one", 0, 0))) == {"one": [4]}
    queue.now_ms = 10
    ((_, seqs),) = told(queue.apply(("tick",))).items()
    assert seqs == [1, 3]


def test_a_group_that_another_one_has_now_holds_up_no_group() -> None:
    queue = Queue()
    queue.consume("one", prefetch=2)
    queue.publish("ab")
    queue.consume("two", prefetch=9, priority=1)
    assert queue.publish("ab") == {}
    # The one with the higher priority gets the free group, and the other one goes on with its own.
    assert told(queue.apply(("settle", "one", 0, 0))) == {"two": [3], "one": [4]}


@pytest.mark.parametrize("committed", [True, False])
def test_an_open_transaction_holds_its_group(committed: bool) -> None:
    queue = Queue()
    queue.consume("one")
    queue.consume("two")
    ((having, _),) = queue.publish("aa").items()
    transaction = ("n", 1, 1)
    assert told(queue.apply(("pend", transaction, ("settle", having, 0, 0)))) == {}
    assert told(queue.apply(("prepare", None, transaction, 1, [1, 2], 0))) == {}
    ((_, seqs),) = told(queue.apply(("resolve", transaction, committed))).items()
    assert seqs == [2 if committed else 1]


def test_a_get_takes_no_group_of_another_one() -> None:
    queue = Queue()
    queue.consume("one")
    queue.publish("aab")
    getter = Consumer("getter")
    getter.attached = False
    assert told(queue.apply(("get", getter))) == {"getter": [3]}
    effects = queue.apply(("get", getter))
    assert effects.got_nothing == ["getter"]
    # Its own group it may have more of.
    queue.publish("b")
    assert told(queue.apply(("get", getter))) == {"getter": [4]}


def test_consumers_of_the_highest_priority_come_first() -> None:
    queue = Queue()
    queue.consume("low", prefetch=0)
    queue.consume("high", prefetch=2, priority=1)
    found = queue.publish("abcd")
    assert found == {"high": [1, 2], "low": [3, 4]}


def test_expired_messages_are_not_handed_out() -> None:
    queue = Queue(replace(GROUPED, message_ttl_ms=10))
    queue.consume("one")
    queue.publish("aab")
    queue.now_ms = 50
    effects = queue.apply(("settle", "one", 0, ALL_IDS))
    assert told(effects) == {}
    assert (queue.machine.ready.count, queue.machine.unacked_count) == (0, 0)


def test_a_full_queue_drops_its_oldest_messages_wherever_they_are() -> None:
    queue = Queue(replace(GROUPED, max_length=3))
    queue.consume("one")
    queue.consume("two")
    queue.publish("aaaaa")
    assert [list(run.seqs) for run in queue.machine.ready.runs()] == [[3, 4, 5]]


def test_lost_and_purged_messages_leave_their_groups() -> None:
    queue = Queue()
    queue.consume("one")
    queue.consume("two")
    queue.publish("aaaa")
    queue.apply(("lose", 1, 2))
    assert queue.machine.unacked_count == 1
    queue.apply(("purge", 7))
    assert queue.machine.ready.count == 0
    for name in ("one", "two"):
        queue.settle(name)
    assert len(queue.publish("a")) == 1


def test_no_more_memory_than_messages() -> None:
    queue = Queue()
    queue.consume("one", prefetch=0)
    for number in range(500):
        run = Run(range(1), [b"x"], ROUTING + b"%d" % number)
        queue.apply(("enqueue", run, None, number + 1))
    queue.settle("one")
    grouped = queue.machine.grouped
    assert grouped is not None
    assert not grouped.holders and not grouped.parked and not grouped.blocked
    assert len(grouped._ripe) + len(grouped._first) <= 2 * message_groups.STALE_MIN


@pytest.mark.pure
def test_only_so_many_messages_are_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_groups, "LOOK_AHEAD_MAX", 10)
    queue = Queue()
    queue.consume("one")
    queue.consume("two")
    found = queue.publish("a" * 12 + "b")
    ((having, seqs),) = found.items()
    assert seqs == [1]
    # Every message of the first group that leaves lets the queue look one further.
    (other,) = {"one", "two"} - {having}
    assert queue.settle(having) == {having: [2], other: [13]}


@pytest.mark.pure
def test_what_expires_lets_the_queue_look_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_groups, "LOOK_AHEAD_MAX", 2)
    queue = Queue(replace(GROUPED, message_ttl_ms=10))
    queue.consume("one")
    queue.consume("two")
    queue.publish("aaa")
    queue.now_ms = 5
    assert queue.publish("ab") == {}
    queue.now_ms = 11
    effects = queue.apply(("tick",))
    assert effects.more
    assert any(5 in seqs for seqs in told(queue.apply(("tick",))).values())


@pytest.mark.pure
@pytest.mark.parametrize("look_ahead", [0, 1, 3, message_groups.LOOK_AHEAD_MAX])
def test_replicas_hand_out_the_same_messages(monkeypatch: pytest.MonkeyPatch, look_ahead: int) -> None:
    """Also those that were restored, and have looked at other messages."""
    monkeypatch.setattr(message_groups, "LOOK_AHEAD_MAX", look_ahead)
    delivered = 0
    for seed in range(660, 700):
        random = Random(seed)
        declared = replace(
            random_settings(random), group_header="g", priority_max=0, single_active_consumer=False
        )
        original = Reader(Machine(declared))
        copies: list[Reader] = []
        for number, batch in enumerate(random_log(random, 25)):
            effects, expected = original.apply(batch), snapshot.digest(original.machine)
            delivered += sum(map(len, effects["deliveries"].values()))
            for copy in copies:
                assert copy.apply(batch) == effects, f"seed {seed}, batch {number}"
                assert snapshot.digest(copy.machine) == expected, f"seed {seed}, batch {number}"
            if random.random() < 0.3:
                restored = snapshot.decode(snapshot.encode(original.machine))
                copies.append(Reader(restored, original.number, original.getter_id))
    assert delivered > 300


def test_what_a_consumer_gets_is_one_run() -> None:
    queue = Queue()
    queue.consume("one", prefetch=0)
    queue.consume("two", prefetch=0)
    effects = queue.apply(("enqueue", messages("abcdabcd...."), None, 1))
    assert len(effects.deliveries) == 2
    for consumer, run, first_id in effects.deliveries:
        assert first_id == 0
        assert run.contents == [b"%d" % (seq - 1) for seq in run.seqs]
        assert (run.head, run.heads) == (ROUTING, None)
        assert run.size == sum(map(len, run.contents))
        (held,) = consumer.checkout.runs
        assert list(held.seqs) == list(run.seqs)
        assert held.heads == [ROUTING + b"abcdabcd...."[seq - 1 : seq].strip(b".") for seq in run.seqs]
    # The positions lie apart.
    assert [run.seqs.step for _, run, _ in effects.deliveries] == [0, 0]
    assert sorted(seq for seqs in told(effects).values() for seq in seqs) == list(range(1, 13))


def test_what_a_consumer_gets_in_several_runs_is_sent_together() -> None:
    queue = Queue()
    queue.consume("one", prefetch=2)
    queue.consume("two", prefetch=0)
    # Those of groups of the first one wait for it.
    queue.publish("abcdefgh" * 3)
    effects = queue.apply(("prefetch", "one", 0))
    alone = len(effects.deliveries)
    sent = gathered(effects.deliveries)
    assert len(sent) == 1 < alone
    for consumer, run, first_id in sent:
        own = [each for each in effects.deliveries if each[0] is consumer]
        assert first_id == own[0][2]
        assert run.contents == [content for _, each, _ in own for content in each.contents or []]
        assert len(run.seqs) == len(run.contents)
        assert run.size == sum(map(len, run.contents))
    # What was delivered is still the machine's own.
    held = [run for each in queue.machine.consumers.in_turn() for run in each.checkout.runs]
    assert sum(len(run.contents or []) for run in held) == 24


@pytest.mark.parametrize("verb", ["return", "fail", "discard", "settle"])
def test_parts_of_what_a_consumer_got_go_as_if_each_were_alone(verb: str) -> None:
    queue = Queue()
    queue.consume("one", prefetch=0)
    queue.consume("two", prefetch=0)
    effects = queue.apply(("enqueue", messages("abcdefghijklmnop"), None, 1))
    consumer, run, _ = max(effects.deliveries, key=lambda each: len(each[1].seqs))
    seqs = list(run.seqs)
    assert len(seqs) > 5
    queue.apply(("pause", "one", True), ("pause", "two", True))
    effects = queue.apply((verb, consumer.key, 1, 3))
    machine = queue.machine
    assert [seq for each in consumer.checkout.runs for seq in each.seqs] == [seqs[0], *seqs[4:]]
    gone = [seq for each in effects.settled for seq in each.seqs]
    ready = [seq for each in machine.ready.runs() for seq in each.seqs]
    assert (gone, ready) == ((seqs[1:4], []) if verb in ("settle", "discard") else ([], seqs[1:4]))
    restored = snapshot.decode(snapshot.encode(machine))
    assert snapshot.digest(restored) == snapshot.digest(machine)
    held = [seq for each in restored.consumers.by_key[consumer.key].checkout.runs for seq in each.seqs]
    assert held == [seqs[0], *seqs[4:]]
    effects = queue.apply(("lose", seqs[4], seqs[5]))
    assert [seq for each in effects.settled for seq in each.seqs] == seqs[4:6]
    effects = queue.apply(("detach", consumer.key, True))
    assert [seq for each in machine.ready.runs() for seq in each.seqs] == sorted([*ready, seqs[0], *seqs[6:]])


def test_a_queue_that_begins_with_groups_is_restored_with_its_turns() -> None:
    """Before its version had groups, consumers took turns."""
    machine = Machine(GROUPED, version=versions.MESSAGE_GROUPS - 1)
    original = Reader(machine)
    original.apply((0, [("attach", name, True, 0, 0) for name in KEYS[:3]]))
    original.apply((0, [("enqueue", 1, 1, 0, None, [], [ROUTING], 0)]))
    machine.apply(Meta(0), [("version", versions.NEWEST)], Effects())
    restored = Reader(snapshot.decode(snapshot.encode(machine)), original.number, original.getter_id)
    for group in (b"", b"a", b"b", b"c"):
        batch: Batch = (1, [("enqueue", 1, 1, 0, None, [], [ROUTING + group], 0)])
        assert restored.apply(batch) == original.apply(batch)


@pytest.mark.parametrize("first", ["one", "two", "three"])
def test_several_may_have_had_a_group_before_the_queue_had_groups(first: str) -> None:
    """Then a restored member must go on like all others."""
    queue = Queue()
    queue.machine = Machine(GROUPED, version=versions.MESSAGE_GROUPS - 1)
    for name in ("two", "one", "three"):
        queue.consume(name, prefetch=1)
        queue.publish("aa" if name == "two" else "a")
    queue.apply(("version", versions.NEWEST))
    restored = Queue()
    for name in (first, *(each for each in ("one", "two", "three") if each != first)):
        # It holds nothing from now on.
        queue.apply(("pause", name, True), ("settle", name, 0, ALL_IDS))
        restored.machine = snapshot.decode(snapshot.encode(queue.machine))
        for each in ("one", "two", "three"):
            more = ("prefetch", each, 3)
            assert told(restored.apply(more)) == told(queue.apply(more)), (name, each)
            assert snapshot.digest(restored.machine) == snapshot.digest(queue.machine)
            queue.publish("a")
            restored.publish("a")
