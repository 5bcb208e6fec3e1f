"""Takers of messages that a group in a cluster hands out on one node: consumers, and clients that get
messages one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp_server.streams.consumer_groups.member_reading import Due, Taker
from amqp_server.streams.layout.deliver import BatchReader
from amqp_server.streams.layout.group_headers import Headers
from amqp_server.streams.layout.runs import run_of
from quorum_queue.cluster.queues.guests import Guest
from quorum_queue.consumer_groups.replica import AHEAD_MAX
from quorum_queue.machine.consumers import Consumer
from quorum_queue.ports import Got

if TYPE_CHECKING:
    from amqp_server.streams.consumer_groups.member_host import ConsumerGroupMemberHost


class ClientTaker(Taker):
    """A consumer of this node, or of a node that uses this one."""

    __slots__ = ("_host", "_told", "no_ack", "sink")

    def __init__(self, host: ConsumerGroupMemberHost, consumer: Consumer) -> None:
        super().__init__(consumer.key)
        self._host = host
        self.sink: Any = consumer.sink
        self.no_ack = consumer.no_ack
        self.paused = consumer.paused
        #: The group knows that all messages below this id were sent, except those that are reported as unsent
        #: when the consumer leaves.
        self._told = consumer.next_id

    def take(self, due: Due, headers: Headers, reader: BatchReader, count: int) -> None:
        host, sink, again = self._host, self.sink, due.attempts > 0
        host.sent(self, due, count)
        if again or isinstance(sink, Guest):
            batch = headers.batch(reader.cut(count, redelivered=again), due.attempts)
            if isinstance(sink, Guest):
                host.contain(sink, sink.deliver, self, run_of(batch), due.first)
            else:
                source = BatchReader(batch)
                host.contain(sink, sink.deliver_batch, self, source, count, due.first, again)
        else:
            source = headers.reader(reader)
            reader.skip(count)
            host.contain(sink, sink.deliver_batch, self, source, count, due.first, again)
        self._taken(due, count)

    def absent(self, due: Due, count: int) -> None:
        self._host.sent(self, due, count)
        self._host.submit(("settle", self.key, due.first, due.first + count - 1))

    def nothing_there(self, stream_id: int, low: int, stop: int) -> None:
        self._host.submit(("passed", stream_id, low, stop))

    def _taken(self, due: Due, count: int) -> None:
        stop = due.first + count
        if self.no_ack:
            # Without acks a message is settled when it is sent.
            self._host.submit(("settle", self.key, due.first, stop - 1))
        if stop - self._told >= AHEAD_MAX // 2:
            self._told = stop
            self._host.submit(("sent", self.key, stop))


class GetTaker(Taker):
    """A client that gets messages one by one."""

    __slots__ = ("_consumer", "_host")

    def __init__(self, host: ConsumerGroupMemberHost, consumer: Consumer, before: Taker | None) -> None:
        """`before` is the taker with which the client got messages until now."""
        super().__init__(consumer.key)
        self._host = host
        self._consumer = consumer
        if before is not None:
            self.sent = before.sent

    def take(self, due: Due, headers: Headers, reader: BatchReader, count: int) -> None:
        batch = headers.batch(reader.cut(1, redelivered=due.attempts > 0), due.attempts)
        run = run_of(batch)
        run.redelivered = due.attempts > 0
        self._host.sent(self, due, 1)
        if self._consumer.no_ack:
            self._host.submit(("settle", self.key, due.first, due.first))
        self._host.got(self.key, Got(run, due.first))

    def absent(self, due: Due, count: int) -> None:
        """The message is deleted: ask for another one."""
        self._host.sent(self, due, count)
        self._consumer.next_id = due.first + count
        self._host.submit(("settle", self.key, due.first, due.first + count - 1), ("get", self._consumer))

    def nothing_there(self, stream_id: int, low: int, stop: int) -> None:
        self._host.submit(("passed", stream_id, low, stop))


__all__ = ["ClientTaker", "GetTaker"]
