"""Sealed queues: the decision, and what comes behind it."""

from __future__ import annotations

from typing import Any

import pytest

from quorum_queue.machine import versions
from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.consumers import Consumer
from quorum_queue.machine.effects import GONE, Effects
from quorum_queue.machine.entries import decode_entry, encode_batch, encode_entry
from quorum_queue.machine.machine import Command, Machine, Meta
from quorum_queue.machine.parts import FULL, READY
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.seal import EMPTY, EXPIRED, IN_USE, NOT_EMPTY, SEALED, UNUSED, Sealed
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot
from quorum_queue.ports import Refused
from tests.quorum_queue.node import HostedQueue, Publisher, QueueNode, Receiver, publish


def enqueue(origin: str = "p", first: int = 1) -> Command:
    return "enqueue", Run(range(1), [b"m"], b"head", Attributes()), origin, first


def attach(key: str = "c") -> Command:
    return "attach", Consumer(key, prefetch=1, sink=Receiver())


def apply(machine: Machine, *commands: Command, now_ms: int = 0) -> Effects:
    effects = Effects()
    machine.apply(Meta(now_ms), commands, effects)
    return effects


@pytest.mark.parametrize(
    ("before", "condition", "found"),
    [
        ([], EMPTY | UNUSED, Sealed(SEALED, 0)),
        ([enqueue()], EMPTY, Sealed(NOT_EMPTY, 1)),
        ([enqueue()], UNUSED, Sealed(SEALED, 1)),
        ([attach()], UNUSED, Sealed(IN_USE, 0)),
        ([attach()], EMPTY, Sealed(SEALED, 0)),
        ([attach(), enqueue(), enqueue("p", 2)], EMPTY | UNUSED, Sealed(IN_USE, 2)),
    ],
)
def test_the_condition_is_met_or_not_where_the_command_stands(
    before: list[Command], condition: int, found: Sealed
) -> None:
    machine = Machine(Settings())
    # What comes behind the seal in the same batch does not matter to it.
    effects = apply(machine, *before, ("seal", 7, condition), enqueue("late"))
    assert effects.seals == [(7, found)]
    assert machine.sealed is (found.outcome == SEALED)
    late = [answer for answer in effects.confirmed if answer[0] == "late"]
    assert len(late) == (0 if machine.sealed else 1)


def test_a_sealed_queue_takes_nothing() -> None:
    machine = Machine(Settings(deduplication_window_ms=1000, max_length=1, overflow="reject-publish"))
    apply(machine, ("seal", 1, EMPTY))
    effects = apply(machine, enqueue(), enqueue("p", 2), attach())
    assert (effects.confirmed, effects.refused, machine.ready.count) == ([], [], 0)
    assert effects.attach_refused == [("c", GONE)]
    assert apply(machine, ("get", Consumer("g"))).got_nothing == ["g"]
    # Another client that asks has the same answer, whatever came back since.
    assert apply(machine, ("seal", 2, UNUSED)).seals == [(2, Sealed(SEALED, 0))]


@pytest.mark.parametrize("version", [versions.HELD_COUNT - 1, versions.HELD_COUNT])
def test_a_queue_with_dead_letters_that_nobody_has_taken_is_not_empty(version: int) -> None:
    settings = Settings(dead_letter=True, dead_letter_at_least_once=True, keeps_all=True)
    machine = Machine(settings, version=version)
    apply(machine, enqueue(), ("get", Consumer("g")), ("discard", "g", 0, 0))
    (seal,) = apply(machine, ("seal", 1, EMPTY)).seals
    if version < versions.HELD_COUNT:
        assert seal == (1, Sealed(SEALED, 0))
        return
    assert seal == (1, Sealed(NOT_EMPTY, 0))
    apply(machine, ("dead_lettered", 1, 1))
    assert apply(machine, ("seal", 2, EMPTY)).seals == [(2, Sealed(SEALED, 0))]


@pytest.mark.parametrize("replicated", [False, True])
def test_a_queue_is_not_empty_while_an_operator_moves_its_messages(replicated: bool) -> None:
    """The other queue may refuse them, and they come back."""
    machine = Machine(Settings(keeps_all=True))
    apply(machine, enqueue(), enqueue("p", 2))
    # A client may have taken others.
    for getter in (Consumer("client"), Consumer("operator", position=2)):
        getter.attached = False
        apply(machine, ("get", getter))
    if replicated:
        machine = snapshot.decode(snapshot.encode(machine))
    assert apply(machine, ("seal", 1, EMPTY)).seals == [(1, Sealed(NOT_EMPTY, 0))]
    apply(machine, ("settle", "operator", 0, 0))
    assert apply(machine, ("seal", 2, EMPTY)).seals == [(2, Sealed(SEALED, 0))]


@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 2}])
def test_dead_letters_that_nobody_has_taken_count_in_limits(limit: dict[str, Any]) -> None:
    def counted(machine: Machine) -> tuple[int, int]:
        effects = apply(machine, enqueue(), enqueue("p", 2))
        return len(effects.confirmed), len(effects.refused)

    settings = Settings(
        dead_letter=True, dead_letter_at_least_once=True, keeps_all=True, overflow="reject-publish", **limit
    )
    machine = Machine(settings)
    for _ in range(2):
        apply(machine, enqueue(), ("get", Consumer("g")), ("discard", "g", 0, 9))
        machine.consumers.drop_all()
    assert (len(machine.dead_lettering), machine.held_bytes) == (2, 2)
    assert counted(machine) == (0, 2)
    # A member that begins with a snapshot counts the same.
    machine = snapshot.decode(snapshot.encode(machine))
    assert (len(machine.dead_lettering), machine.held_bytes) == (2, 2)
    apply(machine, ("dead_lettered", 1, 1))
    assert counted(machine) == (1, 1)
    # A part of a transaction needs room, too.
    for number, outcome in enumerate((FULL, READY), 1):
        part = ("n", 1, number)
        effects = apply(machine, ("pend", part, enqueue()), ("prepare", 1, part, 1, [1, 2], 0))
        assert effects.prepared == [(1, part, outcome)]
        apply(machine, ("dead_lettered", 2, 2))


def test_messages_that_expire_do_not_keep_a_queue() -> None:
    machine = Machine(Settings(message_ttl_ms=10))
    apply(machine, enqueue())
    assert apply(machine, ("seal", 1, EMPTY), now_ms=5).seals == [(1, Sealed(NOT_EMPTY, 1))]
    assert apply(machine, ("seal", 1, EMPTY), now_ms=10).seals == [(1, Sealed(SEALED, 0))]


def test_a_lease_is_over_by_the_time_of_the_log() -> None:
    machine = Machine(Settings(expires_ms=100))
    apply(machine, ("touch",), now_ms=50)
    assert apply(machine, ("seal", None, EXPIRED), now_ms=149).seals == [(None, Sealed(IN_USE, 0))]
    apply(machine, attach(), now_ms=150)
    assert apply(machine, ("seal", None, EXPIRED), now_ms=900).seals == [(None, Sealed(IN_USE, 0))]
    apply(machine, ("detach", "c", True), now_ms=1000)
    assert apply(machine, ("seal", None, EXPIRED), now_ms=1100).seals == [(None, Sealed(SEALED, 0))]


@pytest.mark.parametrize("version", [versions.LETTERS, versions.SEALS])
def test_a_snapshot_keeps_the_seal(version: int) -> None:
    machine = Machine(Settings(), version=version)
    apply(machine, enqueue())
    assert snapshot.decode(snapshot.encode(machine)).sealed is False
    if version < versions.SEALS:
        return
    before = snapshot.digest(machine)
    apply(machine, ("seal", 1, UNUSED))
    again = snapshot.decode(snapshot.encode(machine))
    assert again.sealed
    assert snapshot.digest(again) == snapshot.digest(machine) != before


@pytest.mark.parametrize("token", [None, 0, 5])
def test_a_seal_in_an_entry(token: int | None) -> None:
    batch = b"".join(encode_batch("n1", 1, 1, [("seal", token, EMPTY | UNUSED)]))
    assert decode_entry(encode_entry(0, [batch])).batches[0].commands == [("seal", token, EMPTY | UNUSED)]
    unknown = b"".join(encode_batch("n1", 1, 1, [("seal", token, 64)]))
    with pytest.raises(CodecError, match="no condition of a seal has the number 64"):
        decode_entry(encode_entry(0, [unknown]))


def test_a_queue_on_its_node_answers_when_it_is_deleted() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=True)
    hosted = host.queue
    assert isinstance(hosted, HostedQueue)
    early, late, found = Publisher(), Publisher(), list[Sealed | Refused]()
    receiver = Receiver()
    host.submit(("attach", Consumer("c", no_ack=True, sink=receiver)))
    publish(host, [b"1"], early)
    host.seal(UNUSED, found.append)
    assert found == [Sealed(IN_USE, 0)]
    before = hosted.seals
    host.submit(("detach", "c", True))
    host.seal(EMPTY | UNUSED, found.append)
    assert found[1:] == [Sealed(SEALED, 0)]
    assert (before, hosted.seals) == (0, 1)
    publish(host, [b"2"], late)
    passed: list[tuple[Refused, ...]] = []
    host.barrier(lambda *why: passed.append(why))
    node.commit()
    # It is as good as deleted, and its clients hear that when it is.
    assert (early.confirms, late.confirms, passed) == ({1}, set(), [])
    assert host.ready_count == 0
    host.close()
    assert late.confirms == {1}
    assert len(passed) == 1


def test_what_was_published_before_is_decided_upon() -> None:
    node = QueueNode()
    host = node.host(Settings(), journalled=False)
    publisher, found = Publisher(), list[Sealed | Refused]()
    run = Run(range(1), [b"1"], b"head", Attributes())
    # Everything comes in one batch.
    host.pending += [("enqueue", run, publisher, 1)]
    host.seal(EMPTY, found.append)
    assert found == [Sealed(NOT_EMPTY, 1)]
    assert publisher.confirms == {1}
