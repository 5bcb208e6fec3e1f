"""Prepares the partitions of a new super stream in parts; all of them become visible at once.

One operation makes a thousand queues and as many bindings. Most of the work has no visible effect: parsing
arguments, making objects, encoding records. It is done in parts before the operation is applied, a part in
each turn, and other clients have their turns in between. In a cluster every node begins with it when the
entry is in its log, and applies nothing else of the topology until it is done (Catalog.foresee). A node that
reads the entry at its start does it in one step. No client ever sees only some of the partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from amqp_server.broker.declared.arguments import QueueArguments
from amqp_server.broker.declared.operations import DeclareSuperStream
from amqp_server.broker.declared.records import QueueRecord, key
from amqp_server.broker.metadata import encode
from amqp_server.broker.topology.queue import Queue
from amqp_server.broker.topology.super_streams import ORDER, binding_record
from exchanges.binding import Binding
from quorum_queue.queue_ids import partition_id

if TYPE_CHECKING:
    from amqp_server.broker.topology.vhost import VHost


class Partition(NamedTuple):
    """A prepared partition. Its stored parts are keys of tables with values."""

    queue: Queue
    queue_key: str
    queue_stored: bytes
    binding: Binding
    binding_key: str
    binding_stored: bytes


class Partitions:
    """The partitions of one operation, with the index that it has or will have."""

    def __init__(self, vhost: VHost, index: int, operation: DeclareSuperStream) -> None:
        self._vhost = vhost
        self._index = index
        self.exchange = operation.exchange.name
        self._first = operation.first
        self._records = operation.partitions
        #: Prepared partitions, in order.
        self.ready: list[Partition] = []
        #: The topology's generation when the first partition was prepared: policies or the vhost may change
        #: later.
        self.generation = vhost.parts.generation()
        #: The arguments of the last partition, and their parsed form: the next one has the same arguments.
        self._arguments = b""
        self._parsed: QueueArguments | None = None

    @property
    def left(self) -> int:
        """Number of partitions that are not prepared yet."""
        return len(self._records) - len(self.ready)

    def steps(self) -> Iterator[None]:
        """Prepare one partition in each step."""
        while self.left:
            self.ready.append(self._made(len(self.ready)))
            yield

    def finish(self) -> list[Partition]:
        """Prepare the remaining partitions now; return all."""
        while self.left:
            self.ready.append(self._made(len(self.ready)))
        return self.ready

    def _made(self, place: int) -> Partition:
        vhost, number = self._vhost, self._first + place
        record = msgspec.structs.replace(self._records[place], queue_id=partition_id(self._index, place))
        queue = vhost.new_queue(record, unknown=True, parsed=self._parsed_of(record))
        self._arguments, self._parsed = record.arguments, queue.parsed
        binding = Binding(self.exchange, record.name, "queue", str(number), {ORDER: number})
        bound = binding_record(record, self.exchange, number)
        return Partition(
            queue,
            key(vhost.name, record.name),
            encode(queue.record),
            binding,
            # Equal to `bound.key`, which sorts the fields of the table: this table has only one field.
            key(vhost.name, self.exchange, record.name, "queue", str(number), bound.arguments.hex()),
            encode(bound),
        )

    def _parsed_of(self, record: QueueRecord) -> QueueArguments | None:
        return self._parsed if record.arguments == self._arguments else None


__all__ = ["Partition", "Partitions"]
