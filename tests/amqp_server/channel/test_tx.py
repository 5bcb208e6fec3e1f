"""A transaction: nothing happens before its commit, and a rollback leaves everything as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from amqp_server.channel.transactions import tx
from amqp_server.channel.unacked import Piece, Unacked
from amqp_server.channel.unfinished_count import Unfinished
from quorum_queue.machine.attributes import Attributes, LeaderAttributes
from tests.amqp_server.channel.test_unacked import peek, spread
from tests.work import steps as instructions

pytestmark = pytest.mark.pure


class Shifted(list[int]):
    """Counts the entries that an insertion moves."""

    shifted = 0

    def insert(self, index: Any, item: int) -> None:
        self.shifted += len(self) - index
        super().insert(index, item)


class Source:
    """A queue that still has all deliveries, so they can be acked."""

    def can_settle(self, key: Any, low: int, high: int) -> bool:
        return True


class FakeChannel:
    def __init__(self) -> None:
        self.unacked = Unacked()
        self.connection = SimpleNamespace(incoming=SimpleNamespace(unfinished=Unfinished()))
        self.broker = SimpleNamespace(open_transactions=SimpleNamespace(add=self._added))
        self.done: list[Any] = []

    def _added(self, transaction: tx.Transaction) -> None:
        transaction.number = 1

    def settle(self, verb: str, pieces: list[Piece]) -> None:
        self.done.append((verb, pieces))


def test_a_commit_applies_everything_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    channel: Any = FakeChannel()

    def publish(segment: Any, _: tx.Transaction) -> list[Any]:
        channel.done.append(segment)
        return ["target" if segment is segments[0] else "answers for itself"]

    monkeypatch.setattr(tx, "publish", publish)
    transaction = tx.Transaction(channel)
    source = Source()
    holder = SimpleNamespace(key="consumer", queue=SimpleNamespace(host=source))
    channel.unacked.add(1, 10, holder, 0)
    taken = channel.unacked.take(2, 3, strict=True)
    kinds = (Attributes(), LeaderAttributes())
    segments: list[Any] = [SimpleNamespace(attributes=attributes) for attributes in kinds]
    transaction.segments += segments
    transaction.settlements += [("settle", taken), ("return", channel.unacked.take(5, 5, strict=True))]
    assert channel.done == []
    hosts: list[Any] = transaction.commit()
    assert hosts == ["target", source]
    expected = [*segments, ("settle", [Piece(holder, 1, 2, 2)]), ("return", [Piece(holder, 4, 4, 5)])]
    assert channel.done == expected
    assert transaction.commit() == []
    transaction.rollback()
    assert channel.done == expected
    assert sorted(peek(channel.unacked)) == [1, 4, 6, 7, 8, 9, 10]


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 5)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), max_size=8),
)
def test_a_rollback_gives_the_tags_back(runs: list[tuple[str, int]], acks: list[tuple[int, int]]) -> None:
    channel: Any = FakeChannel()
    transaction = tx.Transaction(channel)
    tag = 1
    ids = {"a": 0, "b": 0}
    for holder, count in runs:
        channel.unacked.add(tag, count, holder, ids[holder])
        tag, ids[holder] = tag + count, ids[holder] + count
    before = list(peek(channel.unacked).items())
    segment: Any = object()
    transaction.segments.append(segment)
    for low, more in acks:
        transaction.settlements.append(("settle", channel.unacked.take(low, low + more, strict=False)))
    transaction.rollback()
    assert list(peek(channel.unacked).items()) == before
    assert channel.unacked.count == tag - 1
    transaction.commit()
    assert channel.done == []


@given(st.permutations(range(40)), st.integers(0, 40), st.sampled_from(["settle", "return"]))
def test_acks_in_any_order_are_committed_in_few_pieces(order: list[int], count: int, verb: str) -> None:
    channel: Any = FakeChannel()
    holders = [SimpleNamespace(key=name, queue=SimpleNamespace(host=Source())) for name in "ab"]
    for tag in range(40):
        # The queue serves two consumers, one after the other.
        channel.unacked.add(1 + tag, 1, holders[tag // 20], tag % 20)
    transaction = tx.Transaction(channel)
    for place in order[:count]:
        transaction.settle(verb, channel.unacked.take(1 + place, 1 + place, strict=True))
    transaction.commit()
    settled = [piece for done, pieces in channel.done for piece in pieces if done == verb]
    assert sorted(spread(settled)) == sorted(1 + place for place in order[:count])
    if verb == "return":
        assert list(spread(settled)) == [1 + place for place in order[:count]]
    elif count == 40:
        assert settled == [Piece(holders[0], 0, 19, 1), Piece(holders[1], 0, 19, 21)]
    assert transaction.part_count == 0


@pytest.mark.parametrize("order", ["rising", "falling", "every other one"])
def test_a_rollback_is_as_long_as_what_it_gives_back(order: str) -> None:
    def rolled_back(count: int) -> int:
        channel: Any = FakeChannel()
        transaction = tx.Transaction(channel)
        holder = SimpleNamespace(key="consumer", queue=SimpleNamespace(host=Source()))
        channel.unacked.add(1, 2 * count, holder, 0)
        step = 2 if order == "every other one" else 1
        tags = range(1, 1 + step * count, step)
        for tag in reversed(tags) if order == "falling" else tags:
            transaction.settle("settle", channel.unacked.take(tag, tag, strict=True))
        channel.unacked._starts = starts = Shifted(channel.unacked._starts)
        return instructions(transaction.rollback) + starts.shifted

    assert rolled_back(5_000) < 12 * rolled_back(500)
