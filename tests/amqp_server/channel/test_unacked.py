"""Delivery tags that wait for an ack, against a dictionary of single tags."""

from __future__ import annotations

from collections.abc import Iterable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from amqp_server.channel.unacked import Piece, Unacked, UnknownTag, by_holder

#: Tag to the consumer and its own delivery id.
Tags = dict[int, tuple[str, int]]


def spread(pieces: Iterable[Piece]) -> Tags:
    tags: Tags = {}
    for piece in pieces:
        assert piece.low <= piece.high
        for offset in range(piece.high - piece.low + 1):
            assert piece.tag + offset not in tags
            tags[piece.tag + offset] = piece.holder, piece.low + offset
    return tags


def peek(unacked: Unacked) -> Tags:
    """Return all tags that are there, in order."""
    pieces = unacked.take_all()
    unacked.restore(pieces)
    return spread(pieces)


class UnackedTags(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.unacked = Unacked()
        self.model: Tags = {}
        self.next_tag = 1
        self.next_ids = {"a": 0, "b": 100}
        #: Pieces that a transaction has taken and may put back.
        self.aside: list[Piece] = []

    @rule(holder=st.sampled_from(["a", "b"]), count=st.integers(1, 6), gap=st.sampled_from([0, 0, 1, 3]))
    def add(self, holder: str, count: int, gap: int) -> None:
        # A gap stands for deliveries to consumers without acks.
        tag = self.next_tag + gap
        first = self.next_ids[holder]
        self.unacked.add(tag, count, holder, first)
        self.model.update({tag + offset: (holder, first + offset) for offset in range(count)})
        self.next_tag = tag + count
        self.next_ids[holder] = first + count
        self.check()

    @rule(data=st.data(), strict=st.booleans(), keep=st.booleans())
    def take(self, data: st.DataObject, strict: bool, keep: bool) -> None:
        low = data.draw(st.integers(1, self.next_tag + 1))
        high = low + data.draw(st.integers(0, 12))
        pieces, unknown = self.taken(low, high, strict)
        expected: Tags = {}
        first_unknown = None
        for tag in range(low, high + 1):
            if tag in self.model:
                expected[tag] = self.model.pop(tag)
            elif strict:
                first_unknown = tag
                break
        assert list(spread(pieces).items()) == list(expected.items())
        assert unknown == first_unknown
        if keep:
            self.aside += pieces
        self.check()

    def taken(self, low: int, high: int, strict: bool) -> tuple[list[Piece], int | None]:
        try:
            return self.unacked.take(low, high, strict=strict), None
        except UnknownTag as error:
            assert strict
            return error.pieces, int(str(error).rpartition(" ")[2])

    @rule()
    @precondition(lambda self: self.aside)
    def restore(self) -> None:
        self.unacked.restore(self.aside)
        self.model.update(spread(self.aside))
        self.aside = []
        self.check()

    @rule()
    def take_all(self) -> None:
        assert spread(self.unacked.take_all()) == self.model
        self.model = {}
        self.check()

    def check(self) -> None:
        assert self.unacked.count == len(self.model)
        for tag in range(self.next_tag + 1):
            assert self.unacked.holds(tag) == (tag in self.model)
        assert list(peek(self.unacked).items()) == sorted(self.model.items())


TestUnackedTags = UnackedTags.TestCase
TestUnackedTags.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_an_ack_of_everything_is_one_piece_for_each_delivery() -> None:
    unacked = Unacked()
    unacked.add(1, 500, "a", 0)
    unacked.add(501, 500, "b", 0)
    assert unacked.take(1, 1000, strict=True) == [Piece("a", 0, 499, 1), Piece("b", 0, 499, 501)]


def test_acks_one_by_one_in_any_order() -> None:
    unacked = Unacked()
    unacked.add(1, 100, "a", 0)
    for tag in [*range(1, 101, 2), *range(100, 0, -2)]:
        assert unacked.take(tag, tag, strict=True) == [Piece("a", tag - 1, tag - 1, tag)]
    assert unacked.count == 0


@given(st.integers(1, 1 << 63))
def test_an_unknown_tag(tag: int) -> None:
    with pytest.raises(UnknownTag, match=f"unknown delivery tag {tag}$"):
        Unacked().take(tag, tag, strict=True)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.booleans()), max_size=40))
def test_consumers_that_take_turns_make_few_pieces(runs: list[tuple[str, int, bool]]) -> None:
    unacked = Unacked()
    tag, ids, gaps = 1, dict.fromkeys("abc", 0), dict.fromkeys("abc", 1)
    for holder, count, gap in runs:
        if gap and ids[holder]:
            ids[holder] += 1
            gaps[holder] += 1
        unacked.add(tag, count, holder, ids[holder])
        tag, ids[holder] = tag + count, ids[holder] + count
    pieces = unacked.take_all()
    fewer = by_holder(pieces)
    assert len(fewer) == sum(gaps[holder] for holder in "abc" if ids[holder])

    def deliveries(of: list[Piece]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for piece in of:
            found.setdefault(piece.holder, []).extend(range(piece.low, piece.high + 1))
        return found

    assert deliveries(fewer) == deliveries(pieces)
