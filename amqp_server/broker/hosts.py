"""Chooses the host of a queue, and keeps this node's own records of the queue."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import TYPE_CHECKING

from amqp_server.broker.declared.arguments import QueueArguments
from amqp_server.broker.declared.records import MARKS, MarksRecord
from amqp_server.broker.group_members import GroupStreams
from amqp_server.broker.metadata import Metadata, encode
from amqp_server.broker.recovery import stored_queues
from amqp_server.broker.topology import consumer_groups
from amqp_server.streams.consumer_groups.local_host import ConsumerGroupHost
from amqp_server.streams.local_host import StreamHost, StreamServices
from amqp_server.streams.stream_options import Tiering
from persistence.streams.retention import RetentionLimits
from quorum_queue.failed_host import FailedHost
from quorum_queue.journals import deduplication_journal
from quorum_queue.local_host import LocalHost, NodeServices
from quorum_queue.machine.machine import Machine
from quorum_queue.ports import Host, Refused

if TYPE_CHECKING:
    from amqp_server.broker.topology.queue import Queue, Target


def limits_of(queue: Queue) -> RetentionLimits:
    """Return the retention limits of a stream."""
    return RetentionLimits(queue.effective.max_age_ms, queue.effective.max_length_bytes)


def tiering_of(queue: Queue) -> Tiering:
    """Return where a stream's segments go, and what stays on the disk."""
    effective = queue.effective
    if effective.compaction is not None:
        # A policy does not know what the streams that it matches are declared with.
        return Tiering()
    local = RetentionLimits(effective.local_max_age_ms, effective.local_max_bytes)
    return Tiering(effective.remote, local, effective.table if effective.remote is not None else None)


class LocalHosts:
    """Hosts of a node without a cluster: all queues are on it."""

    def __init__(
        self, services: NodeServices, metadata: Metadata, streams: StreamServices | None = None
    ) -> None:
        """`streams` is None on a node of a cluster."""
        self._services = services
        self._metadata = metadata
        self._streams = streams

    def make(self, queue: Queue, machine: Machine | None) -> Host:
        if queue.type.is_group:
            return self._group(queue)
        return self._stream(queue) if queue.type.is_stream else self.local(queue, machine)

    def _group(self, queue: Queue) -> ConsumerGroupHost:
        return ConsumerGroupHost(
            queue,
            queue.queue_id,
            self._services,
            consumer_groups.options_of(queue),
            queue.settings,
            streams=GroupStreams(queue),
            slots=queue.marks,
            keep_slots=lambda: self._keep_marks(queue),
        )

    def _keep_marks(self, queue: Queue) -> None:
        self._metadata.put(MARKS, str(queue.queue_id), encode(MarksRecord(queue.marks)))

    def _stream(self, queue: Queue) -> StreamHost:
        effective = queue.effective
        assert self._streams is not None
        return StreamHost(
            queue,
            queue.queue_id,
            self._streams,
            limits_of(queue),
            effective.segment_bytes,
            queue.settings,
            effective.compression,
            self._streams.options.compaction(effective.compaction, effective.tombstone_age_ms),
            tiering_of(queue),
        )

    def local(self, queue: Queue, machine: Machine | None = None) -> LocalHost:
        """Make the host of a queue on this node. A durable queue gets slots of the delivered marks."""
        services = self._services
        journalled = queue.durable and not queue.exclusive
        if journalled and not queue.marks:
            queue.marks = [services.marks.allocate() for _ in range((queue.parsed.max_priority or 0) + 1)]
            self._keep_marks(queue)
        queue.renew()
        return LocalHost(
            queue,
            queue.queue_id,
            machine or Machine(queue.settings),
            services,
            journalled=journalled,
            marks=queue.marks,
        )

    def more_marks(self, queue: Queue, count: int) -> list[int]:
        """Give a queue so many more slots of delivered marks; return all of them."""
        queue.marks = [*queue.marks, *(self._services.marks.allocate() for _ in range(count))]
        self._keep_marks(queue)
        return queue.marks

    def home(self, *, durable: bool) -> str:
        return ""

    def place(self, parsed: QueueArguments) -> tuple[str, ...]:
        return ()

    def place_all(self, parsed: QueueArguments, count: int) -> list[tuple[str, ...]]:
        return [()] * count

    def expect(self, queue: Queue) -> None: ...

    def changed(self, queue: Queue) -> None:
        pass

    def configure(self, queue: Queue) -> None:
        host = queue.host
        host.configure(queue.settings)
        if isinstance(host, StreamHost):
            host.limit(limits_of(queue), queue.effective.segment_bytes, tiering_of(queue))

    def gone(self, queue: Queue) -> None:
        """Delete this node's own records of the queue."""
        if queue.marks:
            self._metadata.delete(MARKS, str(queue.queue_id))
            for slot in queue.marks:
                self._services.marks.free(slot)
            queue.marks = []

    def leader(self, queue: Queue) -> str:
        return ""

    def absent_home(self, queue: Queue) -> str:
        return ""

    def short_node(self, queue: Queue, short: Container[str]) -> str:
        return ""

    def reply(self, token: str) -> Target | None:
        return None

    # -- queues that failed ----------------------------------------------------------------------------------

    def stop(self, queue: Queue, reason: str) -> None:
        # None if the host could not even be made.
        before = getattr(queue, "host", None)
        why = failure_text(queue)
        queue.host = FailedHost(
            queue, self._services.turn, queue.settings, why, lambda: self._drop_stored(queue)
        )
        if isinstance(before, LocalHost | StreamHost | ConsumerGroupHost):
            before.stop(Refused(why))
        queue.consumers_lost()

    def is_stopped(self, queue: Queue) -> bool:
        return isinstance(queue.host, FailedHost)

    def _drop_stored(self, queue: Queue) -> None:
        if queue.durable and not queue.exclusive:
            self._services.journal.drop(queue.queue_id)
            self._services.commits.request()
        if queue.type.is_stream and self._streams is not None:
            store = self._streams.store
            store.write(store.log(queue.queue_id, 1).delete, lambda result: None)

    def revive(self, queue: Queue, attempt: int, done: Callable[[], None]) -> None:
        """Restart a stopped queue. First wait until all its writes are in the journal. A queue without
        records there starts empty.
        """
        stored = partial(self._stored, queue, queue.host, done)
        if queue.type.is_stream and self._streams is not None:
            # Wait until the thread has written everything that it was given before.
            self._streams.store.write(
                lambda: None, lambda result: self._services.commits.request(stored, to_store=True)
            )
        elif queue.durable and not queue.exclusive:
            self._services.commits.request(stored, to_store=True)
        else:
            stored()

    def _stored(self, queue: Queue, failed: Host, done: Callable[[], None]) -> None:
        """All its writes are on disk; restart it when they have been read."""
        if queue.host is not failed or queue.deleted:
            return
        stored, journal = partial(self._stored, queue, failed, done), self._services.journal
        if queue.type.is_stream or journal.warm_queue(
            queue.queue_id, deduplication_journal.FIRST_POSITION, stored
        ):
            self._services.turn.contain(queue, self._begin_anew, queue, done)

    def _begin_anew(self, queue: Queue, done: Callable[[], None]) -> None:
        if queue.type.is_stream:
            queue.host = self._stream(queue)
        elif queue.type.is_group:
            queue.host = self._group(queue)
        else:
            machine = stored_queues.read_queue(queue.record, queue.settings, queue.marks, self._services)
            queue.host = self.local(queue, machine)
        done()
        queue.host.submit(("tick",))


def failure_text(queue: Queue) -> str:
    """Return the text for clients of a failed queue."""
    return f"queue '{queue.name}' in vhost '{queue.vhost.name}' has failed on this node and is stopped"


__all__ = ["LocalHosts", "failure_text", "limits_of", "tiering_of"]
