"""Clients that get messages of a group on one node one by one, from its partitions in turn."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from amqp_server.streams.consumer_groups.local_reader import Reader
from amqp_server.streams.layout.runs import run_of
from amqp_server.streams.local_host import StreamHost
from persistence.streams.batch import Batch
from quorum_queue.consumer_groups.group import Member
from quorum_queue.consumer_groups.partition import ENDLESS
from quorum_queue.machine.consumers import Consumer
from quorum_queue.ports import Got

if TYPE_CHECKING:
    from amqp_server.streams.consumer_groups.local_host import ConsumerGroupHost


class Gets:
    """See above. It has no reference to the host, which would be a reference cycle."""

    def __init__(self) -> None:
        #: Number of the partition that a message was got from last.
        self._last_got = -1

    def get(self, host: ConsumerGroupHost, given: Consumer) -> None:
        """Answer a client with the next message of a partition that it may have, or with nothing."""
        getter = host.group.getters.get(given.key)
        if getter is None:
            getter = Member(given.key, no_ack=given.no_ack, sink=given.sink)
            getter.next_id = given.next_id
        readers = sorted(host.readers, key=lambda each: each.partition.number)
        after = [each for each in readers if each.partition.number > self._last_got]
        self._look_in(host, getter, deque([*after, *readers[: len(readers) - len(after)]]))

    def _look_in(self, host: ConsumerGroupHost, getter: Member, readers: deque[Reader]) -> None:
        """Look for a message in the first of these partitions that has one."""
        while readers:
            reader = readers.popleft()
            partition, stream = reader.partition, reader.stream.host
            if not isinstance(stream, StreamHost) or partition.cursor < 0 or reader.getting:
                continue
            low = partition.upcoming().low
            if partition.is_open_to(getter) and low < stream.end_offset:
                reader.getting = True
                stream.fetch(
                    low, stream.end_offset, 1, partial(self._fetched, host, getter, reader, readers, low)
                )
                return
        host.got(getter.key, None)

    def _fetched(
        self,
        host: ConsumerGroupHost,
        getter: Member,
        reader: Reader,
        readers: deque[Reader],
        low: int,
        found: list[Batch] | None,
    ) -> None:
        reader.getting = False
        partition = reader.partition
        if host.ended or host.group.partitions.get(partition.stream_id) is not partition:
            host.got(getter.key, None)
            return
        host.group.freed[partition] = None
        host.schedule()
        if getter.key not in host.asking.getting:
            return
        if partition.upcoming().low != low or not partition.is_open_to(getter):
            # Another client has got the message, or the partition is read from another position now.
            readers.appendleft(reader)
            self._look_in(host, getter, readers)
            return
        if not found:
            self._look_in(host, getter, readers)
            return
        offset = found[0].base
        if partition.passed(low, offset):
            host.group.changed[partition] = None
        span = partition.upcoming()
        again = span.stop != ENDLESS
        first = host.hand(partition, getter, range(offset, offset + 1), offset + 1, span.attempts)
        host.group.getters[getter.key] = getter
        self._last_got = partition.number
        run = run_of(reader.dressed(found[0], span.attempts))
        run.redelivered = again
        host.got(getter.key, Got(run, first))


__all__ = ["Gets"]
