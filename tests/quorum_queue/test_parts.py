"""Parts of transactions: unseen until they are decided, then in the queue as a whole or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from quorum_queue.machine.attributes import MAJORITY
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.dedup import id_of
from quorum_queue.machine.effects import Effects
from quorum_queue.machine.entries import decode_entry, encode_batch, encode_entry
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.parts import FULL, INCOMPLETE, LATE, READY, TransactionId
from quorum_queue.machine.replicated import QueueReplica
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.seal import EMPTY, NOT_EMPTY, SEALED, Sealed
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot

T: TransactionId = ("n1", 1, 1)
U: TransactionId = ("n2", 1, 1)
QUEUES = [1, 2]


def messages(*bodies: bytes, priority: int = 0, ttl_ms: int | None = None) -> Command:
    run = Run(range(len(bodies)), list(bodies), b"head", Attributes(priority=priority, ttl_ms=ttl_ms))
    return "enqueue", run, None, 1


def named(*names: str) -> Command:
    verb, run, origin, first = messages(*(name.encode() for name in names))
    return "enqueue_once", run, origin, first, [id_of(name.encode()) for name in names]


def pend(command: Command, transaction: TransactionId = T) -> Command:
    return "pend", transaction, command


def prepare(count: int, transaction: TransactionId = T, queues: list[int] = QUEUES) -> Command:
    return "prepare", 7, transaction, count, queues, MAJORITY


def resolve(committed: bool, transaction: TransactionId = T) -> Command:
    return "resolve", transaction, committed


def apply(machine: Machine, *commands: Command, now_ms: int = 0) -> Effects:
    effects = Effects()
    machine.apply(Meta(now_ms), commands, effects)
    return effects


def outcome(effects: Effects) -> int:
    [(token, transaction, found)] = effects.prepared
    assert (token, transaction) == (7, T)
    return found


def ready(machine: Machine) -> list[bytes]:
    return [body for run in machine.ready.runs() for body in run.contents or ()]


def holding(**settings: Any) -> Machine:
    """A machine whose consumer holds three messages."""
    machine = Machine(Settings(**settings))
    apply(machine, ("attach", Consumer("c")), messages(b"1", b"2", b"3"))
    return machine


def test_nobody_sees_a_part_before_it_is_decided() -> None:
    machine = Machine(Settings())
    apply(machine, messages(b"before"), pend(messages(b"a", b"b")), pend(messages(b"c")))
    assert outcome(apply(machine, prepare(2))) == READY
    apply(machine, messages(b"after"))
    assert ready(machine) == [b"before", b"after"] and machine.ready.count == 2
    apply(machine, resolve(True))
    assert ready(machine) == [b"before", b"a", b"b", b"c", b"after"]
    assert not len(machine.parts) and machine.parts.count == machine.parts.message_bytes == 0


def test_a_consumer_gets_all_of_it_at_the_decision() -> None:
    machine = Machine(Settings())
    apply(machine, ("attach", Consumer("c")), pend(messages(b"a", b"b")), prepare(1))
    assert apply(machine, ("tick",)).deliveries == []
    [(_, run, first_id)] = apply(machine, resolve(True)).deliveries
    assert (run.contents, run.redelivered, first_id) == ([b"a", b"b"], False, 0)


def test_what_is_rolled_back_never_was_there() -> None:
    machine = Machine(Settings())
    apply(machine, pend(messages(b"a", b"b")), prepare(1))
    effects = apply(machine, resolve(False))
    assert [list(run.seqs) for run in effects.settled] == [[1, 2]]
    assert ready(machine) == [] and machine.ready.bytes == 0
    assert apply(machine, resolve(True)).deliveries == []
    assert ready(machine) == []


def test_acked_deliveries_are_with_the_part() -> None:
    machine = holding()
    assert outcome(apply(machine, pend(("settle", "c", 0, 1)), prepare(1))) == READY
    # Nobody else can settle them, and they do not go back with their consumer.
    apply(machine, ("return", "c", 0, 1), ("detach", "c", True))
    assert (ready(machine), machine.unacked_count) == ([b"3"], 2)
    effects = apply(machine, resolve(True))
    assert sum(len(run.seqs) for run in effects.settled) == 2
    assert (ready(machine), machine.unacked_count, machine.unacked_bytes) == ([b"3"], 0, 0)


def test_acks_that_are_rolled_back_go_back_flagged_and_in_order() -> None:
    machine = holding(delivery_limit=5)
    apply(machine, pend(("settle", "c", 0, 0)), pend(("discard", "c", 1, 1)), prepare(2))
    apply(machine, ("detach", "c", True), resolve(False))
    assert ready(machine) == [b"1", b"2", b"3"] and machine.unacked_count == 0
    assert all(run.redelivered for run in machine.ready.runs())


def test_a_rejection_becomes_a_dead_letter_at_the_decision() -> None:
    machine = holding(dead_letter=True)
    assert apply(machine, pend(("discard", "c", 0, 0)), prepare(1)).dead_letters == []
    assert [reason for _, reason in apply(machine, resolve(True)).dead_letters] == ["rejected"]


def test_deliveries_that_have_gone_back_can_not_be_acked() -> None:
    machine = holding()
    apply(machine, ("return", "c", 2, 2), ("pause", "c", True))
    effects = apply(machine, pend(("settle", "c", 0, 2)), pend(messages(b"a")), prepare(2))
    assert outcome(effects) == LATE
    assert not len(machine.parts) and machine.unacked_count == machine.consumers.by_key["c"].checkout.count


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_part_of_which_something_is_missing_is_refused(count: int) -> None:
    machine = Machine(Settings())
    apply(machine, pend(messages(b"a")), pend(messages(b"b")))
    assert outcome(apply(machine, prepare(count))) == INCOMPLETE
    assert outcome(apply(machine, prepare(2))) == INCOMPLETE
    assert not len(machine.parts)


def test_a_node_that_is_down_completes_nothing_more() -> None:
    machine = Machine(Settings())
    apply(machine, pend(messages(b"a")), pend(messages(b"b"), U), prepare(1, U))
    apply(machine, ("node_down", "n1", 1), ("node_down", "n2", 1))
    # What is prepared waits for its decision.
    assert [part.transaction for part in machine.parts.all()] == [U]
    assert outcome(apply(machine, prepare(1))) == INCOMPLETE


@pytest.mark.parametrize(
    "settings",
    [
        Settings(overflow="reject-publish", max_length=3),
        Settings(overflow="reject-publish-dlx", max_length_bytes=6),
    ],
)
def test_a_full_queue_refuses_all_of_it(settings: Settings) -> None:
    machine = Machine(settings)
    apply(machine, messages(b"1.", b"2."))
    assert outcome(apply(machine, pend(messages(b"a.", b"b.")), prepare(1))) == FULL
    assert (ready(machine), len(machine.parts)) == ([b"1.", b"2."], 0)
    assert outcome(apply(machine, pend(messages(b"a.")), prepare(1))) == READY
    # A part counts for those who come later.
    refused = apply(machine, ("enqueue", Run(range(1), [b"3."], b"", Attributes()), "p", 1)).refused
    assert refused == [("p", 1, 1)]
    apply(machine, resolve(True))
    assert ready(machine) == [b"1.", b"2.", b"a."]


def test_a_queue_that_drops_its_oldest_does_so_at_the_decision() -> None:
    machine = Machine(Settings(max_length=2))
    apply(machine, messages(b"1", b"2"), pend(messages(b"a", b"b")), prepare(1))
    assert ready(machine) == [b"1", b"2"]
    apply(machine, resolve(True))
    assert ready(machine) == [b"a", b"b"]


def test_duplicates_are_found_at_the_decision() -> None:
    machine = Machine(Settings(deduplication_window_ms=1000))
    apply(machine, pend(named("x", "y")), prepare(1))
    # Others may bring one of them first; and what is rolled back was not taken.
    apply(machine, named("x"), pend(named("z"), U), prepare(1, U), resolve(False, U))
    effects = apply(machine, resolve(True), named("z"))
    assert ready(machine) == [b"y", b"x", b"z"] and effects.duplicates == 1
    assert [list(run.seqs) for run in effects.settled] == [[1]]


def test_a_transaction_over_one_queue_needs_no_decision() -> None:
    machine = holding()
    effects = apply(machine, pend(("settle", "c", 0, 2)), pend(messages(b"a")), prepare(2, queues=[]))
    assert outcome(effects) == READY
    assert (machine.unacked_count, not len(machine.parts)) == (1, True)
    assert [run.contents for _, run, _ in effects.deliveries] == [[b"a"]]


def test_a_queue_with_a_part_is_not_empty() -> None:
    machine = Machine(Settings())
    apply(machine, pend(messages(b"a")), prepare(1))
    assert apply(machine, ("seal", 1, EMPTY)).seals == [(1, Sealed(NOT_EMPTY, 0))]
    apply(machine, resolve(False))
    assert apply(machine, ("seal", 1, EMPTY)).seals == [(1, Sealed(SEALED, 0))]
    # What comes for a queue that is about to be deleted is lost with it.
    assert outcome(apply(machine, pend(messages(b"b")), prepare(1))) == READY
    assert not len(machine.parts)


def test_messages_that_no_disk_has_leave_the_part() -> None:
    machine = holding()
    apply(machine, pend(("settle", "c", 0, 1)), pend(messages(b"a", b"b")), prepare(2), ("lose", 2, 4))
    apply(machine, resolve(True))
    assert ([run.contents for run in machine.ready.runs()], machine.unacked_count) == ([], 1)
    assert machine.parts.count == machine.parts.message_bytes == 0


def test_a_snapshot_has_the_parts() -> None:
    machine = holding(deduplication_window_ms=1000)
    apply(machine, pend(messages(b"a", b"b", ttl_ms=50)), pend(named("x")), pend(("settle", "c", 0, 1)))
    for step in (("tick",), prepare(3), resolve(True)):
        copy = snapshot.decode(snapshot.encode(machine))
        assert snapshot.digest(copy) == snapshot.digest(machine)
        assert (copy.parts.count, copy.unacked_count) == (machine.parts.count, machine.unacked_count)
        before = snapshot.digest(machine)
        apply(machine, step)
        apply(copy, step)
        assert snapshot.digest(copy) == snapshot.digest(machine)
        assert step[0] == "tick" or before != snapshot.digest(machine)


def test_messages_of_a_part_pin_the_entry_that_has_their_bodies() -> None:
    replica = QueueReplica(Settings())

    def entry(index: int, *commands: Command) -> Any:
        batch = b"".join(encode_batch("n1", 1, index, list(commands)))
        return replica.apply(index, decode_entry(encode_entry(index, [batch])), ("n1", 1))

    entry(1, ("version", 7), pend(messages(b"a", b"b")))
    assert entry(2, prepare(1)).prepared == [(7, READY)]
    entry(3, messages(b"c"))
    assert replica.locations.pinned() == [1, 3]
    assert entry(4, resolve(True)).resolved == [T]
    assert replica.find(range(1, 4)) == [(1, range(2)), (3, range(1))]
    entry(5, pend(messages(b"d"), U), prepare(1, U))
    assert entry(6, resolve(False, U)).released == [range(5, 6)]


def test_others_messages_that_were_delivered_meanwhile_are_no_obstacle() -> None:
    machine = Machine(Settings())
    apply(machine, pend(messages(b"a", b"b")), prepare(1), messages(b"1", b"2", b"3"))
    apply(machine, ("attach", Consumer("c", prefetch=2)))
    apply(machine, resolve(True))
    assert ready(machine) == [b"a", b"b", b"3"]
    # What comes back is first, as always.
    apply(machine, ("pause", "c", True), ("return", "c", 0, 1))
    assert ready(machine) == [b"1", b"2", b"a", b"b", b"3"]
    copy = snapshot.decode(snapshot.encode(machine))
    assert snapshot.digest(copy) == snapshot.digest(machine)
