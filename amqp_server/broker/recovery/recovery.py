"""Reads the disk into a broker at start: the topology, and the messages without their bodies."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from amqp_server.broker.declared.arguments import QueueArguments, parse_queue_arguments
from amqp_server.broker.declared.policy import joined
from amqp_server.broker.declared.records import (
    BINDINGS,
    EXCHANGES,
    MARKS,
    QUEUES,
    BindingRecord,
    ExchangeRecord,
    MarksRecord,
    QueueRecord,
)
from amqp_server.broker.declared.settings import machine_settings
from amqp_server.broker.metadata import decode, encode
from amqp_server.broker.recovery import stored_queues
from amqp_server.broker.recovery.stored_queues import RecoveredQueue
from amqp_server.wire import tables
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.settings import Settings
from quorum_queue.queue_ids import index_of

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker

logger = logging.getLogger("mqd.recovery")


class RecoverableJournal(Protocol):
    def recover(self) -> Iterator[RecoveredQueue]: ...

    def drop(self, queue_id: int) -> None: ...


def recover(broker: Broker, journal: RecoverableJournal) -> None:
    """Restore everything durable. Bodies stay on disk until they are needed."""
    metadata = broker.metadata
    broker.transactions.recover()
    for vhost in broker.vhost_records:
        broker.vhost(vhost.name)
    for key, value in metadata.items(EXCHANGES):
        exchange = decode(EXCHANGES, key, value, ExchangeRecord)
        broker.vhost(exchange.vhost).restore_exchange(exchange)
    stored = read_queues(broker, journal)
    queues, slots, machines = stored.queues, stored.slots, stored.machines
    for queue_id, record in queues.items():
        broker.vhost(record.vhost).restore_queue(record, machines.get(queue_id), slots.get(queue_id, []))
    broker.topology.queue_ids_from(max([0, *map(index_of, queues)]) + 1)
    for key, value in metadata.items(BINDINGS):
        binding = decode(BINDINGS, key, value, BindingRecord)
        if key != binding.key:
            # An earlier version stored the binding under unordered arguments.
            metadata.delete(BINDINGS, key)
            metadata.put(BINDINGS, binding.key, value)
        broker.vhost(binding.vhost).restore_binding(binding)
    # Done last: expired messages may be dead-lettered to any queue.
    for queue in list(broker.all_queues()):
        found_machine = machines.get(queue.queue_id)
        if found_machine is not None and found_machine.due_ms is not None:
            queue.host.submit(("tick",))
        error = stored.errors.get(queue.queue_id)
        if error is not None:
            queue.host_failed(error)
    broker.turn.apply()
    broker.topology.recovered()
    broker.time_notes.wake()
    broker.changed()
    logger.info(
        "recovered %d queues with %d messages",
        len(queues),
        sum(m.ready.count + m.delayed.count for m in machines.values()),
    )


class StoredQueues(NamedTuple):
    """Stored data of queues, by their ids."""

    queues: dict[int, QueueRecord]
    #: Slots of the delivered marks.
    slots: dict[int, list[int]]
    #: Machines with messages but without bodies. Queues without records and marks have none.
    machines: dict[int, Machine]
    #: Errors of queues that could not be read.
    errors: dict[int, Exception]


class _Reading:
    """A queue that is being read. See amqp_server.turn.Unit."""

    def __init__(self, queue_id: int, errors: dict[int, Exception]) -> None:
        self._queue_id = queue_id
        self._errors = errors

    def failed(self, error: Exception) -> None:
        self._errors[self._queue_id] = error


def read_queues(broker: Broker, journal: RecoverableJournal) -> StoredQueues:
    """Read the queues' records and journals; drop journals of queues without a record."""
    metadata = broker.metadata
    queues = {
        record.queue_id: record
        for key, value in metadata.items(QUEUES)
        for record in [decode(QUEUES, key, value, QueueRecord)]
    }
    slots = {int(key): decode(MARKS, key, value, MarksRecord).slots for key, value in metadata.items(MARKS)}
    for key, value in metadata.items(QUEUES):
        _move_marks(broker, key, value, slots)
    # Done before queues are made: unknown slots become free for queues that are new to this node.
    for queue_id in [queue_id for queue_id in slots if queue_id not in queues]:
        del slots[queue_id]
        metadata.delete(MARKS, str(queue_id))
    broker.services.marks.retain(slot for marks in slots.values() for slot in marks)
    machines: dict[int, Machine] = {}
    errors: dict[int, Exception] = {}

    def read(record: QueueRecord, recovered: RecoveredQueue) -> None:
        settings, own = settings_of(broker, record), slots.get(record.queue_id, [])
        machines[record.queue_id] = stored_queues.fill(record, settings, recovered, own, broker.services)

    for recovered in journal.recover():
        found = queues.get(recovered.queue_id)
        if found is None:
            for _ in recovered.records:
                pass
            journal.drop(recovered.queue_id)
            continue
        found_type = parsed_of(found).type
        if found_type.is_stream or found_type.is_group:
            # The stream's host reads it.
            for _ in recovered.records:
                pass
            continue
        broker.turn.contain(_Reading(found.queue_id, errors), read, found, recovered)
    for queue_id, record in queues.items():
        own = slots.get(queue_id, [])
        if own and queue_id not in errors and not parsed_of(record).type.is_group:
            machine = machines.get(queue_id)
            if machine is None:
                machine = machines[queue_id] = Machine(settings_of(broker, record))
            stored_queues.skip_marked(machine, own, broker.services.marks)
    return StoredQueues(queues, slots, machines, errors)


class _MarkedRecord(msgspec.Struct):
    """A queue's record in the form of nodes without a cluster: it includes the marks."""

    queue_id: int
    marks: list[int] = []


def _move_marks(broker: Broker, key: str, value: bytes, slots: dict[int, list[int]]) -> None:
    record = decode(QUEUES, key, value, _MarkedRecord)
    if record.marks and record.queue_id not in slots:
        slots[record.queue_id] = record.marks
        broker.metadata.put(MARKS, str(record.queue_id), encode(MarksRecord(record.marks)))


def settings_of(broker: Broker, record: QueueRecord) -> Settings:
    """Return the settings of a stored queue's machine."""
    parsed = parsed_of(record)
    policies = broker.runtime.policies.of_queue(record.vhost, record.name, parsed.type)
    return machine_settings(
        joined(parsed, policies.definition),
        record,
        broker.config.message_status_window_ms,
        broker.config.message_status_count,
    )


def parsed_of(record: QueueRecord) -> QueueArguments:
    """Return the parsed declaration of a stored queue."""
    return parse_queue_arguments(
        record.name,
        record.vhost,
        tables.decode(record.arguments),
        durable=record.durable,
        exclusive=record.exclusive,
        auto_delete=record.auto_delete,
        default_type=record.type,
        stored=True,
    )
