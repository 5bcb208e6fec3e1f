"""Publisher confirms as their client reads them: every message is answered, once, and not too early."""

from __future__ import annotations

import struct
from random import Random
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given

from amqp_server.channel.confirms import Confirms, Copies, Lane, Mandatory, Mixed

pytestmark = pytest.mark.pure
CHANNEL = 5
FRAME = struct.Struct(">BHIHHQBB")


class FakeTurn:
    def __init__(self) -> None:
        self.confirms: dict[Confirms, None] = {}

    def confirm(self, confirms: Confirms) -> None:
        self.confirms[confirms] = None


class Client:
    """Keeps the outstanding numbers, and reads the frames as a client does."""

    def __init__(self) -> None:
        self.outstanding: set[int] = set()
        #: The queues' answers so far.
        self.known: dict[int, str] = {}
        self.frames = 0

    def put(self, data: bytes) -> None:
        for fields in FRAME.iter_unpack(data):
            frame_type, channel, size, class_id, method_id, number, multiple, end = fields
            assert (frame_type, channel, size, class_id, end) == (1, CHANNEL, 13, 60, 0xCE)
            assert multiple in (0, 1)
            kind = {80: "ack", 120: "nack"}[method_id]
            covered = {one for one in self.outstanding if one <= number} if multiple else {number}
            assert number in self.outstanding
            assert covered <= self.outstanding
            for one in covered:
                assert self.known.get(one) == kind
            self.outstanding -= covered
            self.frames += 1


class Fixture:
    def __init__(self, count: int) -> None:
        self.turn = FakeTurn()
        self.client = Client()
        self.confirms = Confirms(cast(Any, self.turn), cast(Any, self.client), CHANNEL)
        assert self.confirms.number(count) == 1
        self.client.outstanding = set(range(1, count + 1))

    def tell(self, first: int, last: int, kind: str) -> None:
        for number in range(first, last + 1):
            assert number not in self.client.known
            self.client.known[number] = kind
        (self.confirms.confirmed if kind == "ack" else self.confirms.refused)(first, last)

    def flush(self) -> None:
        """End the turn."""
        answers, self.turn.confirms = self.turn.confirms, {}
        for confirms in answers:
            confirms.flush()
        assert self.client.outstanding.isdisjoint(self.client.known)
        assert self.confirms.unconfirmed_count == len(self.client.outstanding)


def ranges(lengths: list[int]) -> list[tuple[int, int]]:
    """Cut the numbers from 1 on into ranges of these lengths."""
    found = []
    first = 1
    for length in lengths:
        found.append((first, first + length - 1))
        first += length
    return found


lengths = st.lists(st.integers(1, 5), min_size=1, max_size=15)


@given(lengths, st.data())
def test_every_message_is_answered_once(lengths: list[int], data: st.DataObject) -> None:
    fixture = Fixture(sum(lengths))
    for first, last in data.draw(st.permutations(ranges(lengths))):
        fixture.tell(first, last, data.draw(st.sampled_from(["ack", "ack", "nack"])))
        if data.draw(st.booleans()):
            fixture.flush()
    fixture.flush()
    assert fixture.client.outstanding == set()
    assert fixture.confirms.unconfirmed_count == 0


@given(lengths)
def test_answers_in_order_are_one_frame(lengths: list[int]) -> None:
    fixture = Fixture(sum(lengths))
    for first, last in ranges(lengths):
        fixture.tell(first, last, "ack")
    fixture.flush()
    assert fixture.client.frames == 1


def test_a_slow_queue_holds_up_nobody() -> None:
    fixture = Fixture(4)
    fixture.tell(3, 4, "ack")
    fixture.flush()
    assert fixture.client.outstanding == {1, 2}
    fixture.tell(1, 1, "nack")
    fixture.flush()
    fixture.tell(2, 2, "ack")
    fixture.flush()
    assert fixture.client.outstanding == set()


@given(st.integers(1, 12), st.integers(2, 4), st.data())
def test_a_message_is_confirmed_when_all_its_queues_have_taken_it(
    count: int, targets: int, data: st.DataObject
) -> None:
    """A message for several queues is taken when all of them have taken it; one refusal is enough to refuse
    it. A deleted queue does not matter; if all are, a mandatory message is refused.
    """
    fixture = Fixture(count)
    mandatory = data.draw(st.booleans())
    copies = Copies(Mandatory(fixture.confirms) if mandatory else fixture.confirms, 1, count, targets)
    #: The queues answer in ranges of their own, and in their own order.
    answers: list[tuple[int, int, str]] = []
    for _ in range(targets):
        first = 1
        while first <= count:
            last = data.draw(st.integers(first, count))
            answers.append(
                (first, last, data.draw(st.sampled_from(["taken", "taken", "refused", "gone", "gone"])))
            )
            first = last + 1
    left = dict.fromkeys(range(1, count + 1), targets)
    refused: set[int] = set()
    gone = dict.fromkeys(range(1, count + 1), 0)
    for first, last, answer in data.draw(st.permutations(answers)):
        for number in range(first, last + 1):
            left[number] -= 1
            gone[number] += answer == "gone"
            if answer == "refused" or (mandatory and gone[number] == targets):
                refused.add(number)
            if not left[number]:
                fixture.client.known[number] = "nack" if number in refused else "ack"
        tell = {"taken": copies.confirmed, "refused": copies.refused, "gone": copies.gone}[answer]
        tell(first, last)
        if data.draw(st.booleans()):
            fixture.flush()
    fixture.flush()
    assert fixture.client.outstanding == set()


def test_many_windows_leave_nothing_behind() -> None:
    """However confirms mix over time, nothing is kept of answered messages."""
    random = Random(3)
    fixture = Fixture(1000)
    pending = ranges([10] * 100)
    while pending:
        first, last = pending.pop(random.randrange(min(4, len(pending))))
        fixture.tell(first, last, "ack")
        fixture.flush()
    assert fixture.confirms._answered == {}


# -- messages that were handed over by queue -----------------------------------------------------------------


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.data())
def test_messages_by_queue_are_answered_by_the_numbers_that_they_came_with(
    came: list[int], data: st.DataObject
) -> None:
    fixture = Fixture(3)
    fixture.client.outstanding |= set(range(4, 4 + len(came)))
    numbers: dict[int, list[int]] = {lane: [] for lane in range(3)}
    turns: list[int] = []
    for number, lane in enumerate(came, 4):
        numbers[lane].append(number)
        turns += [lane, len(numbers[lane])]
    mixed = Mixed(fixture.confirms, turns, len(came))
    answers = [
        (lane, first, min(first + 1, len(own) - 1))
        for lane, own in numbers.items()
        for first in range(0, len(own), 2)
    ]
    fixture.tell(1, 3, "ack")
    for lane, first, last in data.draw(st.permutations(answers)):
        kind = data.draw(st.sampled_from(["ack", "ack", "nack"]))
        fixture.client.known |= dict.fromkeys(numbers[lane][first : last + 1], kind)
        origin = Lane(mixed, lane)
        (origin.confirmed if kind == "ack" else origin.refused)(first, last)
        if data.draw(st.booleans()):
            fixture.flush()
    fixture.flush()
    assert fixture.client.outstanding == set()
    assert fixture.confirms.unconfirmed_count == 0
    assert fixture.confirms.refused_count == list(fixture.client.known.values()).count("nack")


def test_messages_by_queue_that_are_answered_in_one_turn_are_one_frame() -> None:
    fixture = Fixture(0)
    fixture.client.outstanding = set(range(1, 7))
    fixture.client.known = dict.fromkeys(range(1, 7), "ack")
    mixed = Mixed(fixture.confirms, [0, 1, 1, 1, 0, 2, 1, 2, 0, 3, 1, 3], 6)
    for lane in (1, 0):
        Lane(mixed, lane).confirmed(0, 2)
    fixture.flush()
    assert fixture.client.frames == 1
