"""What is on disk, back into a broker at start: the topology, and the messages without their bodies."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from amqp_server.broker.arguments import QueueArguments, parse_queue_arguments
from amqp_server.broker.metadata import decode, encode
from amqp_server.broker.queue import settings_of
from amqp_server.broker.records import (
    BINDINGS,
    EXCHANGES,
    MARKS,
    QUEUES,
    BindingRecord,
    ExchangeRecord,
    MarksRecord,
    QueueRecord,
)
from amqp_server.wire import tables
from quorum_queue import names
from quorum_queue.machine import codec
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings

if TYPE_CHECKING:
    from amqp_server.broker.broker import Broker

logger = logging.getLogger("mqd.recovery")


class RecoveredRecord(Protocol):
    @property
    def first_seq(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def head(self) -> memoryview: ...

    @property
    def head_corrupt(self) -> bool: ...

    @property
    def corrupt(self) -> bool: ...

    @property
    def settled(self) -> list[range]: ...


class RecoveredQueue(Protocol):
    @property
    def queue_id(self) -> int: ...

    @property
    def annotations(self) -> dict[int, bytes]: ...

    @property
    def records(self) -> Iterator[RecoveredRecord]: ...


class RecoverableJournal(Protocol):
    def recover(self) -> Iterator[RecoveredQueue]: ...

    def drop(self, queue_id: int) -> None: ...


def recover(broker: Broker, journal: RecoverableJournal) -> None:
    """Bring everything durable back. Bodies stay on disk until they are wanted."""
    metadata = broker.metadata
    for vhost in broker.vhost_records:
        broker.vhost(vhost.name)
    for key, value in metadata.items(EXCHANGES):
        exchange = decode(EXCHANGES, key, value, ExchangeRecord)
        broker.vhost(exchange.vhost).restore_exchange(exchange)
    stored = read_queues(broker, journal)
    queues, slots, machines = stored.queues, stored.slots, stored.machines
    for queue_id, record in queues.items():
        broker.vhost(record.vhost).restore_queue(record, machines.get(queue_id), slots.get(queue_id, []))
    broker.queue_ids_from(max([0, *queues]) + 1)
    for key, value in metadata.items(BINDINGS):
        binding = decode(BINDINGS, key, value, BindingRecord)
        if key != binding.key:
            # An earlier version stored it by its arguments in the order in which they came.
            metadata.delete(BINDINGS, key)
            metadata.put(BINDINGS, binding.key, value)
        broker.vhost(binding.vhost).restore_binding(binding)
    # Only now: what expired meanwhile may be dead-lettered to any queue.
    for queue in list(broker.all_queues()):
        found_machine = machines.get(queue.queue_id)
        head = found_machine.ready.head() if found_machine is not None else None
        if head is not None and head.expires_at is not None:
            queue.host.submit(("tick",))
    broker.run_dirty()
    broker.topology.recovered()
    broker.changed()
    logger.info(
        "recovered %d queues with %d messages", len(queues), sum(m.ready.count for m in machines.values())
    )


class StoredQueues(NamedTuple):
    """What is on disk of queues, by their ids."""

    queues: dict[int, QueueRecord]
    #: Of the delivered marks.
    slots: dict[int, list[int]]
    #: Filled, without bodies. Queues that have nothing in the journal and no marks have none.
    machines: dict[int, Machine]


def read_queues(broker: Broker, journal: RecoverableJournal) -> StoredQueues:
    """Read the queues' records and what the journal has of them; what it has of others is dropped."""
    metadata = broker.metadata
    queues = {
        record.queue_id: record
        for key, value in metadata.items(QUEUES)
        for record in [decode(QUEUES, key, value, QueueRecord)]
    }
    slots = {int(key): decode(MARKS, key, value, MarksRecord).slots for key, value in metadata.items(MARKS)}
    for key, value in metadata.items(QUEUES):
        _move_marks(broker, key, value, slots)
    # Before queues are made again: slots that nobody knows are free for those that are new to this node.
    for queue_id in [queue_id for queue_id in slots if queue_id not in queues]:
        del slots[queue_id]
        metadata.delete(MARKS, str(queue_id))
    broker.services.marks.retain(slot for marks in slots.values() for slot in marks)
    machines: dict[int, Machine] = {}
    for recovered in journal.recover():
        found = queues.get(recovered.queue_id)
        if found is None:
            for _ in recovered.records:
                pass
            journal.drop(recovered.queue_id)
            continue
        machines[recovered.queue_id] = _machine(broker, found, recovered, slots.get(found.queue_id, []))
    for queue_id, record in queues.items():
        marks = slots.get(queue_id, [])
        if marks:
            machine = machines.setdefault(queue_id, Machine(_settings(record)))
            machine.next_seq = max(
                [machine.next_seq, *(broker.services.marks.get(slot) + 1 for slot in marks)]
            )
    return StoredQueues(queues, slots, machines)


class _MarkedRecord(msgspec.Struct):
    """A queue's record as nodes wrote it that stood alone: its marks were part of it."""

    queue_id: int
    marks: list[int] = []


def _move_marks(broker: Broker, key: str, value: bytes, slots: dict[int, list[int]]) -> None:
    record = decode(QUEUES, key, value, _MarkedRecord)
    if record.marks and record.queue_id not in slots:
        slots[record.queue_id] = record.marks
        broker.metadata.put(MARKS, str(record.queue_id), encode(MarksRecord(record.marks)))


def parsed_of(record: QueueRecord) -> QueueArguments:
    """Return what a stored queue was declared to be."""
    return parse_queue_arguments(
        record.name,
        record.vhost,
        tables.decode(record.arguments),
        durable=record.durable,
        exclusive=record.exclusive,
        auto_delete=record.auto_delete,
        default_type=record.type,
    )


def _settings(record: QueueRecord) -> Settings:
    return settings_of(parsed_of(record))


def _machine(broker: Broker, record: QueueRecord, recovered: RecoveredQueue, slots: list[int]) -> Machine:
    """Fill a queue's machine with its messages, flagged as they have to be."""
    machine = Machine(_settings(record))
    marks = [broker.services.marks.get(slot) for slot in slots]
    returned: list[Run] = []
    least = 1 if machine.settings.delivery_limit is not None or machine.settings.keeps_all else 0
    for entry in recovered.records:
        if entry.first_seq >= names.FIRST_POSITION:
            _restore_names(machine, record, entry)
            continue
        # Those of a lost record are not to be used again: it still lies on the disk.
        machine.next_seq = max(machine.next_seq, entry.first_seq + entry.count)
        try:
            if entry.head_corrupt:
                raise codec.CodecError("its checksum is wrong")
            runs = codec.decode_heads(entry.head, entry.first_seq)
        except codec.CodecError as error:
            logger.error(
                "queue '%s' lost messages %d to %d: %s",
                record.name,
                entry.first_seq,
                entry.first_seq + entry.count - 1,
                error,
            )
            continue
        for run in runs:
            for part in _unsettled(run, entry.settled):
                level = min(part.attributes.priority, len(marks) - 1)
                mark = marks[level] if level >= 0 else 0
                if part.seqs.stop - 1 <= mark:
                    part.redelivered = True
                    returned += _with_attempts(part, recovered.annotations, least)
                elif part.seqs.start <= mark:
                    front = part.take(mark - part.seqs.start + 1)
                    front.redelivered = True
                    returned += _with_attempts(front, recovered.annotations, least)
                    machine.ready.push(part)
                else:
                    machine.ready.push(part)
    if returned:
        machine.ready.put_back(returned)
    return machine


def _restore_names(machine: Machine, record: QueueRecord, entry: RecoveredRecord) -> None:
    """Put back what the queue's deduplication remembers. All of the record is read: a wrong name loses a message."""
    if machine.dedup is None:
        return
    # What is damaged still lies on the disk: its positions are not to be used again.
    machine.dedup.next_position = max(machine.dedup.next_position, entry.first_seq + entry.count)
    try:
        if entry.corrupt:
            raise codec.CodecError("its checksum is wrong")
        names.restore(machine.dedup, entry.first_seq, entry.count, entry.head, entry.settled)
    except codec.CodecError as error:
        logger.error("queue '%s' forgot %d names of messages: %s", record.name, entry.count, error)


def _with_attempts(run: Run, annotations: dict[int, bytes], least: int) -> list[Run]:
    """Give messages that had been delivered their counts again.

    One that was with a consumer when the node ended was not counted any more; `least` is what is known of all.
    """
    if not annotations or not any(seq in annotations for seq in run.seqs):
        run.attempts = least
        return [run]
    singles = run.singles()
    for single in singles:
        single.attempts = max(least, int.from_bytes(annotations.get(single.seqs.start, b""), "big"))
    return singles


def _unsettled(run: Run, settled: list[range]) -> list[Run]:
    """Cut settled messages out of a run."""
    parts = [run]
    for gone in settled:
        kept: list[Run] = []
        for part in parts:
            low, high = max(part.seqs.start, gone.start), min(part.seqs.stop, gone.stop)
            if low >= high:
                kept.append(part)
                continue
            if low > part.seqs.start:
                kept.append(part.take(low - part.seqs.start))
            if high < part.seqs.stop:
                part.take(high - low)
                kept.append(part)
        parts = kept
    return parts
