"""Publisher confirms: which of the channel's messages are taken, told in as few frames as order allows."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from amqp_server.channel.connection import Outbox
from amqp_server.turn import Turn

if TYPE_CHECKING:
    from amqp_server.channel.tx import Answers, Transaction

_FRAME = struct.Struct(">BHIHHQBB")
_ACK, _NACK = 80, 120


class Confirms:
    """Numbers the publishes of a channel in confirm mode, and answers for them.

    Answers are gathered over a turn. What follows without a gap on all that was answered before goes out as one frame
    with `multiple`; what is ready before its turn goes out one by one, so that a slow queue holds up nobody.
    """

    __slots__ = (
        "_acked",
        "_answered",
        "_channel",
        "_low",
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
        #: The channel is gone: nobody wants the answers that still come.
        self.closed = False
        #: Number of the next publish.
        self.next_number = 1
        #: Publishes that were answered with a nack.
        self.refused_count = 0
        #: Everything up to here has been answered.
        self._low = 0
        #: Ranges above `_low` that were answered early, by their first number.
        self._answered: dict[int, int] = {}
        self._acked: list[tuple[int, int]] = []
        self._nacked: list[tuple[int, int]] = []

    @property
    def unconfirmed_count(self) -> int:
        early = sum(last - first + 1 for first, last in self._answered.items())
        return self.next_number - 1 - self._low - early

    @property
    def confirmed_count(self) -> int:
        return self.next_number - 1 - self.unconfirmed_count - self.refused_count

    def number(self, count: int) -> int:
        """Give numbers to `count` publishes; return the first."""
        first = self.next_number
        self.next_number = first + count
        return first

    def confirmed(self, first: int, last: int) -> None:
        """These messages are where they have to be."""
        self._acked.append((first, last))
        self._turn.confirm(self)

    def refused(self, first: int, last: int) -> None:
        """A queue did not take these messages."""
        self.refused_count += last - first + 1
        self._nacked.append((first, last))
        self._turn.confirm(self)

    def flush(self) -> None:
        """Send the answers of the turn."""
        acked, self._acked = self._acked, []
        nacked, self._nacked = self._nacked, []
        if self.closed:
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


class Copies:
    """Origin of messages to several queues: confirmed when all took them, refused when one refused."""

    __slots__ = ("_first", "_left", "_origin", "_refused")

    def __init__(
        self, origin: Confirms | Transaction | Answers, first: int, count: int, targets: int
    ) -> None:
        self._origin = origin
        self._first = first
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
