"""Publisher confirms: answers the publishes of a channel, in as few frames as order allows."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from amqp_server.channel.connection import Outbox
from amqp_server.turn import Turn

if TYPE_CHECKING:
    from amqp_server.channel.transactions.commit_answers import CommitAnswers

_FRAME = struct.Struct(">BHIHHQBB")
_ACK, _NACK = 80, 120


class Confirms:
    """Numbers the publishes of a channel in confirm mode, and answers for them.

    Answers are collected over a turn. Answers that continue the answered numbers without a gap are sent as
    one frame with `multiple`. Answers above a gap are sent one by one, so that a slow queue does not delay
    others.
    """

    __slots__ = (
        "_acked",
        "_answered",
        "_before",
        "_channel",
        "_low",
        "_mixed",
        "_nacked",
        "_outbox",
        "_turn",
        "closed",
        "next_number",
        "refused_count",
    )

    def __init__(self, turn: Turn, outbox: Outbox, channel: int) -> None:
        self._turn = turn
        self._outbox = outbox
        self._channel = channel
        #: The channel is closed: ignore answers that still come.
        self.closed = False
        #: Number of the next publish.
        self.next_number = 1
        #: Publishes that another process has answered, and counts.
        self._before = 0
        #: Publishes that were answered with a nack.
        self.refused_count = 0
        #: Everything up to here has been answered.
        self._low = 0
        #: Ranges above `_low` that were answered early, by their first number.
        self._answered: dict[int, int] = {}
        self._acked: list[tuple[int, int]] = []
        self._nacked: list[tuple[int, int]] = []
        #: Objects with answers of this turn, see Mixed.
        self._mixed: list[Mixed] = []

    def begin_at(self, number: int) -> None:
        """The channel has gone on in this process: all publishes before this number are answered."""
        self.next_number, self._low = number, number - 1
        self._before = self._low

    @property
    def numbered_count(self) -> int:
        """Publishes in this process."""
        return self.next_number - 1 - self._before

    @property
    def unconfirmed_count(self) -> int:
        early = sum(last - first + 1 for first, last in self._answered.items())
        return self.next_number - 1 - self._low - early

    @property
    def confirmed_count(self) -> int:
        return self.numbered_count - self.unconfirmed_count - self.refused_count

    def number(self, count: int) -> int:
        """Give numbers to `count` publishes; return the first."""
        first = self.next_number
        self.next_number = first + count
        return first

    def confirmed(self, first: int, last: int) -> None:
        """All queues of these messages have taken them."""
        self._acked.append((first, last))
        self._turn.confirm(self)

    def refused(self, first: int, last: int) -> None:
        """A queue did not take these messages."""
        self.refused_count += last - first + 1
        self._nacked.append((first, last))
        self._turn.confirm(self)

    def gone(self, first: int, last: int) -> None:
        """Messages that reach no queue are confirmed, unless they are mandatory: see Mandatory."""
        self.confirmed(first, last)

    def mixed(self, mixed: Mixed) -> None:
        """This object has answers for some of its messages."""
        self._mixed.append(mixed)
        self._turn.confirm(self)

    def flush(self) -> None:
        """Send the answers that have come since the last call."""
        if self._mixed:
            answered, self._mixed = self._mixed, []
            for mixed in answered:
                mixed.tell(self._acked, self._nacked)
        acked, self._acked = self._acked, []
        nacked, self._nacked = self._nacked, []
        if self.closed or not (acked or nacked):
            return
        if len(acked) == 1 and not nacked:
            first, last = acked[0]
            self._answer(first, last, _ACK)
            return
        answers = [(low, high, _ACK) for low, high in acked] + [(low, high, _NACK) for low, high in nacked]
        answers.sort()
        run_first, run_last, run_kind = answers[0]
        for first, last, kind in answers[1:]:
            if kind == run_kind and first == run_last + 1:
                run_last = last
                continue
            self._answer(run_first, run_last, run_kind)
            run_first, run_last, run_kind = first, last, kind
        self._answer(run_first, run_last, run_kind)

    def _answer(self, first: int, last: int, kind: int) -> None:
        if first == self._low + 1:
            self._low = last
            while True:
                early = self._answered.pop(self._low + 1, None)
                if early is None:
                    break
                self._low = early
            self._put(last, kind, multiple=last > first)
            return
        self._answered[first] = last
        for number in range(first, last + 1):
            self._put(number, kind, multiple=False)

    def _put(self, number: int, kind: int, *, multiple: bool) -> None:
        # For a nack the second bit would be requeue, which means nothing to a publisher.
        self._outbox.put(_FRAME.pack(1, self._channel, 13, 60, kind, number, multiple, 0xCE))


class Mixed:
    """Answers for messages that are numbered in the order of arrival and handed over queue by queue: see
    amqp_server.wire.intake.Mix.

    Usually one turn answers all of them, as one range. Otherwise their answers are handled one by one.
    """

    __slots__ = ("_acked", "_confirms", "_count", "_first", "_nacked", "_numbers", "_turns")

    def __init__(self, confirms: Confirms, turns: list[int], count: int) -> None:
        self._confirms = confirms
        self._turns = turns
        self._count = count
        self._first = confirms.number(count)
        #: Answers of this turn: lane, first and last message within it.
        self._acked: list[tuple[int, int, int]] = []
        self._nacked: list[tuple[int, int, int]] = []
        #: The numbers of the messages of each lane, computed when first needed.
        self._numbers: dict[int, list[int]] = {}

    def confirmed(self, lane: int, first: int, last: int) -> None:
        if not self._acked and not self._nacked:
            self._confirms.mixed(self)
        self._acked.append((lane, first, last))

    def refused(self, lane: int, first: int, last: int) -> None:
        if not self._acked and not self._nacked:
            self._confirms.mixed(self)
        self._nacked.append((lane, first, last))
        self._confirms.refused_count += last - first + 1

    def tell(self, acked: list[tuple[int, int]], nacked: list[tuple[int, int]]) -> None:
        """Add the numbers of the messages that were answered in this turn."""
        mine, self._acked = self._acked, []
        refused, self._nacked = self._nacked, []
        if sum([last - first + 1 for _, first, last in mine]) == self._count:
            acked.append((self._first, self._first + self._count - 1))
            return
        for lane, first, last in mine:
            numbers = self._of(lane)[first : last + 1]
            acked += zip(numbers, numbers, strict=True)
        for lane, first, last in refused:
            numbers = self._of(lane)[first : last + 1]
            nacked += zip(numbers, numbers, strict=True)

    def _of(self, lane: int) -> list[int]:
        if not self._numbers:
            numbers, turns, at = self._numbers, self._turns, self._first
            for index in range(0, len(turns), 2):
                found = numbers.setdefault(turns[index], [])
                count = turns[index + 1] - len(found)
                found += range(at, at + count)
                at += count
        return self._numbers[lane]


class Lane:
    """Origin of the messages of one lane, which count from 0."""

    __slots__ = ("_lane", "_mixed")

    def __init__(self, mixed: Mixed, lane: int) -> None:
        self._mixed = mixed
        self._lane = lane

    def number(self, count: int) -> int:
        return 0

    def confirmed(self, first: int, last: int) -> None:
        self._mixed.confirmed(self._lane, first, last)

    def refused(self, first: int, last: int) -> None:
        self._mixed.refused(self._lane, first, last)

    def gone(self, first: int, last: int) -> None:
        self.confirmed(first, last)


class Mandatory:
    """Origin of messages that are to reach a queue: refused if all their queues were deleted first. They were
    routed, so it is too late to return them.
    """

    __slots__ = ("_origin",)

    def __init__(self, origin: Confirms | Lane) -> None:
        self._origin = origin

    def confirmed(self, first: int, last: int) -> None:
        self._origin.confirmed(first, last)

    def refused(self, first: int, last: int) -> None:
        self._origin.refused(first, last)

    def gone(self, first: int, last: int) -> None:
        self.refused(first, last)


class Copies:
    """Origin of messages to several queues: confirmed when all took them, refused when one refused, and gone
    when all were deleted. Of one queue of several that was deleted nobody asks whether it took them.
    """

    __slots__ = ("_first", "_gone", "_left", "_origin", "_refused", "_targets")

    def __init__(
        self, origin: Confirms | Lane | Mandatory | CommitAnswers, first: int, count: int, targets: int
    ) -> None:
        self._origin = origin
        self._first = first
        self._targets = targets
        #: Queues that were deleted before they took a message, by its index.
        self._gone: dict[int, int] | None = None
        #: Answers still awaited for each message.
        self._left = [targets] * count
        self._refused: dict[int, None] = {}

    def confirmed(self, first: int, last: int) -> None:
        left = self._left
        done_from = None
        for index in range(first - self._first, last - self._first + 1):
            left[index] -= 1
            if left[index] == 0 and index not in self._refused:
                if done_from is None:
                    done_from = index
            elif done_from is not None:
                self._origin.confirmed(self._first + done_from, self._first + index - 1)
                done_from = None
            if left[index] == 0 and index in self._refused:
                self._origin.refused(self._first + index, self._first + index)
        if done_from is not None:
            self._origin.confirmed(self._first + done_from, last)

    def refused(self, first: int, last: int) -> None:
        for index in range(first - self._first, last - self._first + 1):
            self._refused[index] = None
        self.confirmed(first, last)

    def gone(self, first: int, last: int) -> None:
        if self._gone is None:
            self._gone = {}
        for number in range(first, last + 1):
            index = number - self._first
            self._gone[index] = count = self._gone.get(index, 0) + 1
            if count < self._targets:
                self.confirmed(number, number)
            else:
                self._origin.gone(number, number)
