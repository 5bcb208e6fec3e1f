"""Dead letters of a group in a cluster: the leader reads them and sends them, a few at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from amqp_server.streams.consumer_groups.member_reading import Due, Readings, Taker
from amqp_server.streams.consumer_groups.options import LETTERS_MAX
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.group_headers import Headers
from amqp_server.streams.layout.runs import run_of
from quorum_queue.consumer_groups.replica import Death
from quorum_queue.local_host import NodeServices
from quorum_queue.machine.letters import Letter
from quorum_queue.machine.run import Run

if TYPE_CHECKING:
    from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost

_SENT: Final = object()


class _Undertaker(Taker):
    """Sends dead letters of one stream."""

    __slots__ = ("_dead", "_letters")

    def __init__(self, letters: Letters, dead: Death) -> None:
        super().__init__()
        self._letters = letters
        self._dead = dead

    def take(self, due: Due, headers: Headers, reader: BatchReader, count: int) -> None:
        for number in range(count):
            run = run_of(headers.batch(reader.cut(1), 0))
            self._letters.send(due.first + number, run, self._dead)

    def absent(self, due: Due, count: int) -> None:
        self._letters.host.submit(("buried", due.first, count))


class Letters:
    """The dead letters in progress; only the leader has any."""

    #: For mypyc; see `let_go`.
    __deletable__ = ("host",)

    def __init__(self, host: ConsumerGroupMemberHost, services: NodeServices) -> None:
        self.host = host
        self._services = services
        self._readings = Readings(host, "group letters")
        #: Numbers of the dead letters in progress.
        self._buried: dict[int, None] = {}
        #: Dead letters that were read and wait for a turn with time for them.
        self._unsent: deque[tuple[int, Run, Death]] = deque()
        #: The remaining targets of a letter with many targets.
        self._wide: Iterator[bool] | None = None

    def bury(self) -> None:
        """Send the messages that have died, a few at a time."""
        host = self.host
        dead = host.replica.dead
        firsts = [each.first for each in dead]
        self._buried = {number: None for number in self._buried if _is_among(number, firsts, dead)}
        for each in dead:
            stream_id, (low, stop, _) = each.partition.stream_id, each.span
            reading = self._readings.of(stream_id)
            if reading is None:
                host.retry()
                continue
            for offset in range(low, stop):
                if len(self._buried) >= LETTERS_MAX:
                    break
                number = each.first + offset - low
                if number not in self._buried:
                    self._buried[number] = None
                    reading.dues.append(
                        Due(_Undertaker(self, each), stream_id, offset, offset + 1, number, 0)
                    )
            reading.go_on()
            if len(self._buried) >= LETTERS_MAX:
                return

    def send(self, number: int, run: Run, dead: Death) -> None:
        """Send a dead letter, when the turn has time for it and its targets."""
        self._unsent.append((number, run, dead))
        self._send_some()

    def _send_some(self) -> None:
        turn, sent = self._services.turn, 1
        while self._unsent or self._wide is not None:
            if turn.is_full(sent):
                turn.later(self, self._send_some)
                return
            if self._wide is None:
                self._wide = self._hand_over(*self._unsent.popleft())
                sent += 1
            elif next(self._wide, _SENT) is _SENT:
                self._wide = None

    def failed(self, error: Exception) -> None:
        self.host.failed(error)

    def _hand_over(self, number: int, run: Run, dead: Death) -> Iterator[bool] | None:
        """Send a letter to its targets. Another leader may have sent it before: the targets recognise its
        number. Return the remaining targets if there are many.
        """
        host = self.host

        def done(taken: bool) -> None:
            # Called when the targets have the letter, or refuse it.
            if not host.ended and host.group.is_leader:
                host.submit(("buried", number, 1))

        oldest = host.replica.dead[0].first if host.replica.dead else number
        letter = Letter(host.queue_id, number, oldest)
        return self._services.dead_letters.dead_letter(host.queue, run, dead.reason, done, letter)

    def go_on(self) -> None:
        self._readings.go_on()

    def forget(self, stream_id: int) -> None:
        self._readings.forget(stream_id)

    def close(self) -> None:
        self._buried = {}
        self._unsent.clear()
        self._wide = None
        self._readings.close()

    def let_go(self) -> None:
        """Drop the reference to the closed host, to break the reference cycle."""
        del self.host
        self._readings.let_go()


def _is_among(number: int, firsts: list[int], dead: list[Death]) -> bool:
    """Return whether the letter with this number is among the dead messages; `firsts` are their first
    numbers, in order.
    """
    place = bisect_right(firsts, number) - 1
    if place < 0:
        return False
    found = dead[place]
    return number - found.first < found.span.stop - found.span.low


__all__ = ["Letters"]
