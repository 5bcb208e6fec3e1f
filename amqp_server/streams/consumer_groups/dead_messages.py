"""Dead messages of a group on one node: they are read and sent to the targets of dead letters, a few at a
time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from amqp_server.streams.consumer_groups.local_reader import Reader
from amqp_server.streams.consumer_groups.options import LETTERS_MAX
from amqp_server.streams.layout.runs import run_of
from amqp_server.streams.local_host import StreamHost
from persistence.streams.batch import Batch
from quorum_queue.consumer_groups.group import Dead
from quorum_queue.consumer_groups.partition import Partition
from quorum_queue.local_host import NodeServices
from quorum_queue.ports import Turn

if TYPE_CHECKING:
    from amqp_server.streams.consumer_groups.local_host import ConsumerGroupHost

_SENT: Final = object()


class DeadMessages:
    """Dead messages that have not reached their targets yet, in order."""

    def __init__(self, services: NodeServices, turn: Turn) -> None:
        self._services = services
        self._turn = turn
        self._waiting: deque[Dead] = deque()
        #: Dead messages of failed streams: they continue when these streams serve again.
        self._resting: list[Dead] = []
        #: Number of answers that the first ones still wait for.
        self._left = 0
        #: The remaining targets of a message with many targets.
        self._wide: Iterator[bool] | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting) or self._wide is not None

    def clear(self) -> None:
        self._waiting.clear()
        self._resting.clear()
        self._wide = None

    def bury(self, host: ConsumerGroupHost) -> None:
        """Take the messages of the group that have died."""
        dead, host.group.dead = host.group.dead, []
        if host.options.dead_letters:
            self._waiting.extend(dead)
        else:
            for partition, span, _ in dead:
                host.group.buried(partition, span.low, span.stop)

    def go_on(self) -> None:
        """Called when a stream serves again."""
        self._waiting.extendleft(reversed(self._resting))
        self._resting.clear()

    def send_next(self, host: ConsumerGroupHost) -> None:
        """Read and send some of the dead messages, one after the other."""
        while self._wide is not None:
            if self._turn.is_full():
                self._turn.later(host, host.apply_pending)
                return
            if next(self._wide, _SENT) is _SENT:
                self._wide = None
        while self._waiting and not self._left:
            if self._turn.overdue():
                self._turn.later(host, host.apply_pending)
                return
            dead = self._waiting[0]
            reader = host.reader(dead.partition.stream_id)
            stream = None if reader is None else reader.stream.host
            if reader is None or reader.partition is not dead.partition:
                # The stream was deleted.
                self._waiting.popleft()
                continue
            if not isinstance(stream, StreamHost):
                self._resting.append(self._waiting.popleft())
                continue
            self._left = 1
            stream.fetch(dead.span.low, dead.span.stop, LETTERS_MAX, partial(self._send, host, reader, dead))

    def _send(self, host: ConsumerGroupHost, reader: Reader, dead: Dead, found: list[Batch] | None) -> None:
        if host.ended:
            return
        self._waiting.popleft()
        if found is None:
            self._resting.append(dead)
            self._left = 0
            host.schedule()
            return
        partition, span = dead.partition, dead.span
        stop = found[-1].base + 1 if len(found) == LETTERS_MAX else span.stop
        if stop < span.stop:
            self._waiting.appendleft(dead._replace(span=span._replace(low=stop)))
        lows = [span.low, *[batch.base + 1 for batch in found]]
        self._left = len(found) + 1
        for number, (batch, low) in enumerate(zip(found, lows, strict=False)):
            # The targets apply the letters in the same turn, even if it is overdue.
            if number and (self._wide is not None or self._turn.is_full(number)):
                # Messages behind those that are sent now are read again.
                if stop < span.stop:
                    self._waiting.popleft()
                self._waiting.appendleft(dead._replace(span=span._replace(low=low)))
                self._left -= len(found) - number
                self._sent(host, partition, low, low, taken=True)
                return
            run = run_of(reader.dressed(batch, 0))
            letter = partial(self._sent, host, partition, low, batch.base + 1)
            self._wide = self._services.dead_letters.dead_letter(host.queue, run, dead.reason, letter)
        self._sent(host, partition, lows[-1], stop, taken=True)

    def _sent(self, host: ConsumerGroupHost, partition: Partition, low: int, stop: int, taken: bool) -> None:
        """Called when all targets have a dead letter, or refuse it."""
        if host.ended:
            return
        if low < stop:
            host.group.buried(partition, low, stop)
        self._left -= 1
        host.schedule()


__all__ = ["DeadMessages"]
