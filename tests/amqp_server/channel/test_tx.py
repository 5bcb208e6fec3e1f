"""A transaction: nothing happens before its commit, and after a rollback nothing has happened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from amqp_server.channel import tx
from amqp_server.channel.unacked import Piece, Unacked
from tests.amqp_server.channel.test_unacked import peek


class FakeChannel:
    def __init__(self) -> None:
        self.unacked = Unacked()
        self.done: list[Any] = []

    def settle(self, verb: str, pieces: list[Piece]) -> None:
        self.done.append((verb, pieces))


def test_a_commit_applies_everything_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    channel: Any = FakeChannel()

    def publish(segment: Any, _: tx.Transaction) -> list[Any]:
        channel.done.append(segment)
        return ["target"]

    monkeypatch.setattr(tx, "publish", publish)
    transaction = tx.Transaction(channel)
    holder = SimpleNamespace(queue=SimpleNamespace(host="source"))
    channel.unacked.add(1, 10, holder, 0)
    taken = channel.unacked.take(2, 3, strict=True)
    segments: list[Any] = ["first", "second"]
    transaction.segments += segments
    transaction.settlements += [("settle", taken), ("return", channel.unacked.take(5, 5, strict=True))]
    assert channel.done == []
    hosts: list[Any] = transaction.commit()
    assert hosts == ["target", "source"]
    expected = ["first", "second", ("settle", [Piece(holder, 1, 2, 2)]), ("return", [Piece(holder, 4, 4, 5)])]
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
