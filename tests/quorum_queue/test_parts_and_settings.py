"""What a queue is set to changes while it has a part of a transaction: which settings count for the part."""

from __future__ import annotations

from typing import Any

import pytest

from quorum_queue.machine.dedup import id_of
from quorum_queue.machine.machine import Command, Machine
from quorum_queue.machine.parts import READY
from quorum_queue.machine.record.states import STATES
from quorum_queue.machine.run import Attributes, Run
from quorum_queue.machine.settings import Settings
from quorum_queue.machine.snapshots import snapshot
from tests.quorum_queue.test_parts import apply, holding, outcome, pend, prepare, ready, resolve

QUORUM: dict[str, Any] = {"strict": True, "keeps_all": True}
KINDS = pytest.mark.parametrize("kind", [{}, QUORUM], ids=["classic", "quorum"])
COMMITTED = pytest.mark.parametrize("committed", [True, False], ids=["committed", "aborted"])
ON: dict[str, Any] = {"message_status_window_ms": 60_000}
REMEMBERS: dict[str, Any] = {"deduplication_window_ms": 60_000}


def known(*ids: bytes, names: bool = False) -> Command:
    run = Run(range(len(ids)), list(ids), b"head", Attributes())
    more = [[id_of(each) for each in ids]] if names else []
    return "enqueue_known", run, None, 1, list(ids), *more


def again(machine: Machine) -> Machine:
    """The machine after a restart, or on another node."""
    return snapshot.decode(snapshot.encode(machine))


def state(machine: Machine, message_id: bytes, now_ms: int) -> str:
    assert machine.record is not None
    copies = machine.record.find(message_id, now_ms).copies
    return STATES[copies[-1].state] if copies else "unknown"


@KINDS
def test_a_time_to_live_is_that_of_when_the_part_came(kind: dict[str, Any]) -> None:
    """Its life has begun then, as that of a message which is published without a transaction."""
    with_ttl, without = Settings(message_ttl_ms=100, **kind), Settings(**kind)
    for before, after, left in ((without, with_ttl, 1), (with_ttl, without, 0)):
        machine = Machine(before)
        apply(machine, pend(known(b"a")))
        assert outcome(apply(machine, prepare(1))) == READY
        apply(machine, ("configure", after), now_ms=10)
        machine = again(machine)
        apply(machine, resolve(True), now_ms=20)
        assert machine.ready.count == 1
        apply(machine, ("tick",), now_ms=150)
        assert machine.ready.count == left


@KINDS
@COMMITTED
def test_a_record_that_begins_meanwhile_says_when(kind: dict[str, Any], committed: bool) -> None:
    machine = Machine(Settings(**kind))
    apply(machine, pend(known(b"a")), prepare(1), now_ms=10)
    apply(machine, ("configure", Settings(**ON, **kind)), now_ms=20)
    machine = again(machine)
    apply(machine, resolve(committed), known(b"b"), now_ms=30)
    assert (state(machine, b"a", 30), state(machine, b"b", 30)) == ("unknown", "queued")
    assert machine.record is not None and machine.record.find(b"a", 30).since_ms == 20


@KINDS
@COMMITTED
def test_a_record_that_ends_meanwhile_and_begins_anew(kind: dict[str, Any], committed: bool) -> None:
    machine = Machine(Settings(**ON, **kind))
    apply(machine, pend(known(b"a")), prepare(1), now_ms=10)
    assert state(machine, b"a", 10) == "pending"
    apply(machine, ("configure", Settings(**kind)), now_ms=20)
    assert machine.record is None
    apply(machine, ("configure", Settings(**ON, **kind)), now_ms=30)
    apply(machine, resolve(committed), now_ms=40)
    assert ready(machine) == ([b"a"] if committed else [])
    assert machine.record is not None and machine.record.find(b"a", 40).since_ms == 30
    assert state(machine, b"a", 40) == "unknown"


@KINDS
def test_duplicates_are_found_if_the_queue_remembers_by_now(kind: dict[str, Any]) -> None:
    """What came before it began to remember is new, as without a transaction."""
    for before, after, expected in (
        ({}, REMEMBERS, 2),
        (REMEMBERS, {}, 2),
        (REMEMBERS, REMEMBERS | {"deduplication_count": 9}, 1),
    ):
        machine = Machine(Settings(**before, **kind))
        apply(machine, pend(known(b"a", names=True)), prepare(1), ("configure", Settings(**after, **kind)))
        machine = again(machine)
        apply(machine, resolve(True), known(b"a", names=True))
        assert machine.ready.count == expected


@pytest.mark.parametrize(("before", "after", "left"), [(None, 0, 2), (0, None, 3)])
def test_a_delivery_limit_counts_at_the_decision(before: int | None, after: int | None, left: int) -> None:
    machine = holding(delivery_limit=before, **QUORUM)
    apply(machine, pend(("fail", "c", 0, 0)), prepare(1), ("detach", "c", False))
    apply(machine, ("configure", Settings(delivery_limit=after, **QUORUM)), resolve(True))
    assert len(ready(machine)) + machine.unacked_count == left


@KINDS
def test_the_death_of_a_rejected_message_is_as_set_at_the_decision(kind: dict[str, Any]) -> None:
    for after in (True, False):
        machine = holding(dead_letter=not after, **kind)
        apply(machine, pend(("discard", "c", 0, 0)), prepare(1))
        apply(machine, ("configure", Settings(dead_letter=after, **kind)))
        assert bool(apply(machine, resolve(True)).dead_letters) is after
