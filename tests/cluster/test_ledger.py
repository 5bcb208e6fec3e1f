"""Tests of the ledger: it sees each way of breaking a promise, and reports nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.ledger import RULES, Ledger, Reader, Streams

FIRST = 1 << 32
PREFETCH = 2


def ledger(*, disturbed: bool = True, away: str = "") -> Ledger:
    made = Ledger("q", lambda node: node == away)
    made.disturbed = disturbed
    made.publish(range(FIRST + 1, FIRST + 11))
    return made


def take(led: Ledger, reader: Reader, *numbers: int, redelivered: bool = False) -> None:
    for one in numbers:
        led.deliver(reader, FIRST + one, redelivered)
        led.ack(reader, [FIRST + one])


def broken(led: Ledger) -> dict[str, int]:
    led.close()
    return {rule: led.counts[rule] for rule in RULES if led.counts[rule]}


def test_all_is_well() -> None:
    led, reader = ledger(disturbed=False), Reader("n1", PREFETCH)
    led.confirm(range(FIRST + 1, FIRST + 11))
    take(led, reader, *range(1, 11))
    assert broken(led) == {} and led.faults() == []


def test_unconfirmed_may_be_missing_or_not() -> None:
    led, reader = ledger(), Reader("n1", PREFETCH)
    led.confirm([FIRST + 1])
    led.nack([FIRST + 2])
    take(led, reader, 1, 2, 4)
    assert broken(led) == {}


def test_redelivered_after_a_fault_in_any_order() -> None:
    led = ledger()
    take(led, Reader("n1", 10), 1, 2, 3, 4)
    take(led, Reader("n2", 10), 3, 1, 4, redelivered=True)
    assert broken(led) == {}


def test_handed_out_and_never_arrived() -> None:
    led = ledger()
    take(led, Reader("n1", 10), 1, 2, redelivered=True)
    assert broken(led) == {}


def _lost(led: Ledger, reader: Reader) -> None:
    led.confirm([FIRST + 1, FIRST + 2])
    take(led, reader, 1)


def _strange(led: Ledger, reader: Reader) -> None:
    take(led, reader, 11)


def _unflagged(led: Ledger, reader: Reader) -> None:
    take(led, reader, 1)
    take(led, Reader("n2", PREFETCH), 1)


def _order(led: Ledger, reader: Reader) -> None:
    take(led, reader, 2, 1)


def _returned_by_credit(led: Ledger, reader: Reader) -> None:
    # Number 3 came although only two messages may be out, so one ack was taken.
    take(led, reader, 1, 2, 3)
    take(led, Reader("n2", PREFETCH), 1, redelivered=True)


def _returned_by_answer(led: Ledger, reader: Reader) -> None:
    take(led, reader, 1)
    led.vouch(reader, 1)
    take(led, Reader("n2", PREFETCH), 1, redelivered=True)


@pytest.mark.parametrize(
    ("rule", "act"),
    [
        ("lost", _lost),
        ("strange", _strange),
        ("unflagged", _unflagged),
        ("order", _order),
        ("returned", _returned_by_credit),
        ("returned", _returned_by_answer),
    ],
)
def test_breach_is_seen(rule: str, act: Callable[[Ledger, Reader], None]) -> None:
    led = ledger()
    act(led, Reader("n1", PREFETCH))
    assert broken(led) == {rule: 1}
    assert len(led.faults()) == 1 and rule in led.faults()[0]


def test_redelivery_without_a_cause_is_seen() -> None:
    led = ledger(disturbed=False)
    take(led, Reader("n1", PREFETCH), 1, redelivered=True)
    assert broken(led) == {"unflagged": 1}


def test_uncertain_ack_may_come_back() -> None:
    led = ledger()
    take(led, Reader("n1", PREFETCH), 1, 2)
    take(led, Reader("n2", PREFETCH), 1, 2, redelivered=True)
    assert broken(led) == {}


def test_late_delivery_of_a_node_that_was_away() -> None:
    led, reader = ledger(away="n2"), Reader("n1", PREFETCH)
    take(led, reader, 1, redelivered=True)
    led.vouch(reader, 1)
    take(led, Reader("n2", PREFETCH), 1)
    assert broken(led) == {} and led.late == 1


def test_late_acks_at_a_node_that_was_away() -> None:
    """The messages of the node's consumers went to others before the node could report their acks."""
    for name, returned in (("n1", {}), ("n3", {"returned": 2})):
        led, reader = ledger(away=name), Reader("n1", PREFETCH)
        take(led, reader, 1, 2, 3)
        led.vouch(reader, 2)
        take(led, Reader("n2", PREFETCH), 1, 2, redelivered=True)
        assert broken(led) == returned and led.late == 0


def test_streams_are_apart() -> None:
    streams = Streams()
    first, second = streams.next(), streams.next()
    led, reader = Ledger("q", lambda node: False), Reader("n1", 10)
    led.publish([first + 1, first + 2, second + 1])
    for message in (first + 1, second + 1, first + 2):
        led.deliver(reader, message, False)
    assert broken(led) == {}


@pytest.mark.parametrize("late", [False, True])
def test_a_nacked_message_may_be_late_where_nodes_are_no_members(late: bool) -> None:
    led, reader = Ledger("q", lambda node: False, nacked_may_be_late=late), Reader("n1", 10)
    led.publish([1, 2, 3, 4])
    led.nack([1])
    for message in (3, 1, 2):
        led.deliver(reader, message, False)
    # The second one was not nacked.
    assert led.counts["order"] == (1 if late else 2)
