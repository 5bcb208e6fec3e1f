"""Restores a queue's messages from the journal, at start or after a failure. Bodies stay on disk."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, Protocol

from amqp_server.broker.declared.records import QueueRecord
from quorum_queue.journals import deduplication_journal, parts_journal
from quorum_queue.journals.notes import Note, deaths_in, decode_note, mark_of
from quorum_queue.local_host import NodeServices
from quorum_queue.machine import codec
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.ready import Ready
from quorum_queue.machine.run import Run
from quorum_queue.machine.settings import Settings
from quorum_queue.message_status import journal as status_journal
from quorum_queue.ports import Marks

logger = logging.getLogger("mqd.recovery")

#: Spans of settled messages that are cut out of a run one by one; of more, a run with gaps is left.
SETTLED_SINGLY: Final = 8


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


def read_queue(record: QueueRecord, settings: Settings, slots: list[int], services: NodeServices) -> Machine:
    """Return the machine of one queue from the journal, to restart the queue while the node runs."""
    found = services.journal.recover_queue(record.queue_id)
    machine = Machine(settings) if found is None else fill(record, settings, found, slots, services)
    skip_marked(machine, slots, services.marks)
    return machine


def skip_marked(machine: Machine, slots: list[int], marks: Marks) -> None:
    """Skip positions that were delivered, even if nothing is stored of them any more."""
    machine.next_seq = max([machine.next_seq, *(marks.get(slot) + 1 for slot in slots)])


def fill(
    record: QueueRecord,
    settings: Settings,
    recovered: RecoveredQueue,
    slots: list[int],
    services: NodeServices,
) -> Machine:
    """Return a queue's machine with its messages and their redelivered flags."""
    machine = Machine(settings)
    marks = [services.marks.get(slot) for slot in slots]
    now_ms = services.queue_time.now_ms()
    returned: list[Run] = []
    statuses = status_journal.Stored()
    least = 1 if machine.settings.delivery_limit is not None or machine.settings.keeps_all else 0
    parts: list[RecoveredRecord] = []
    deaths = deaths_in(recovered.annotations) if settings.dead_letter else {}
    for entry in recovered.records:
        if entry.first_seq >= status_journal.FIRST_POSITION:
            _restore_status(machine, statuses, record, entry)
            continue
        if entry.first_seq >= deduplication_journal.FIRST_POSITION:
            _restore_names(machine, record, entry)
            continue
        if entry.first_seq >= parts_journal.FIRST_POSITION:
            parts.append(entry)
            continue
        # Positions of a lost record must not be used again: the record is still on the disk.
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
        for whole in _parts(runs, entry.settled, machine.ready):
            part = _living(machine, whole, deaths) if deaths else whole
            if part is None:
                continue
            if part.waits_until and _waits(machine, part, recovered.annotations, now_ms):
                continue
            level = mark_of(part.attributes.priority, len(marks), strict=settings.strict)
            count = len(part.seqs)
            delivered = part.within(0, marks[level])[1] if level >= 0 else 0
            if delivered:
                front = part.take(delivered) if delivered < count else part
                front.redelivered = True
                _give_back(machine, front, recovered.annotations, least, returned, now_ms)
            if delivered < count:
                machine.ready.push(part)
    if returned:
        machine.ready.put_back(returned)
    for entry in parts:
        _restore_part(machine, record, entry)
    if machine.record is not None:
        machine.record.stored = statuses
    else:
        machine.stale_record = range(statuses.first, statuses.next)
    return machine


def _restore_part(machine: Machine, record: QueueRecord, entry: RecoveredRecord) -> None:
    """Restore a part of a transaction that is not decided.

    Reads the whole record to verify it: a wrong one would bring messages before the decision, or lose some.
    """
    if any(entry.first_seq in gone for gone in entry.settled):
        return
    try:
        if entry.corrupt:
            raise codec.CodecError("its checksum is wrong")
        parts_journal.restore(machine, entry.first_seq, entry.head)
    except codec.CodecError as error:
        logger.error("queue '%s' lost a part of a transaction: %s", record.name, error)


def _restore_status(
    machine: Machine, statuses: status_journal.Stored, record: QueueRecord, entry: RecoveredRecord
) -> None:
    """Restore a part of the record of messages. Reads the whole of it to verify it."""
    if any(entry.first_seq in gone for gone in entry.settled):
        return
    if machine.record is None:
        if statuses.is_empty:
            statuses.first = entry.first_seq
        statuses.next = entry.first_seq + 1
        return
    try:
        if entry.corrupt:
            raise codec.CodecError("its checksum is wrong")
        statuses.put(machine.record, entry.first_seq, entry.head)
    except codec.CodecError as error:
        statuses.next = max(statuses.next, entry.first_seq + 1)
        logger.error("queue '%s' lost a part of its record of messages: %s", record.name, error)


def _restore_names(machine: Machine, record: QueueRecord, entry: RecoveredRecord) -> None:
    """Restore the memory of the queue's deduplication.

    Reads the whole record to verify it: a wrong name would lose a message.
    """
    if machine.dedup is None:
        return
    # Damaged messages are still on the disk: their positions must not be used again.
    machine.dedup.next_position = max(machine.dedup.next_position, entry.first_seq + entry.count)
    try:
        if entry.corrupt:
            raise codec.CodecError("its checksum is wrong")
        deduplication_journal.restore(machine.dedup, entry.first_seq, entry.count, entry.head, entry.settled)
    except codec.CodecError as error:
        logger.error(
            "queue '%s' lost the deduplication names of %d messages: %s", record.name, entry.count, error
        )


def _living(machine: Machine, run: Run, deaths: dict[int, Note]) -> Run | None:
    """Let the queue hold the dead letters among these messages, as it did; return the others, if any."""
    living = bytearray([seq not in deaths for seq in run.seqs])
    if all(living):
        return run
    for index, (seq, lives) in enumerate(zip(run.seqs, living, strict=True)):
        note = deaths.get(seq)
        if not lives and note is not None and note.dead is not None:
            letter = run.part(index, index + 1)
            letter.attempts, letter.acquired, letter.redelivered = note.attempts, note.acquired, True
            machine.hold_letter(letter, note.dead)
    return run.where(living) if any(living) else None


def _give_back(
    machine: Machine,
    run: Run,
    annotations: dict[int, bytes],
    least: int,
    returned: list[Run],
    now_ms: int,
) -> None:
    """Restore the counts of messages that were delivered; put those that wait back to their wait, the others
    into `returned`.

    The last delivery of a message that was with a consumer when the node ended was not counted; `least` is a
    lower bound for all messages. A wait that is over is none: the message may have been with a consumer since
    then, and if that is what ends the node, it must not come back for ever.
    """
    if not annotations or not any(seq in annotations for seq in run.seqs):
        run.attempts = run.acquired = least
        returned.append(run)
        return
    for single in run.singles():
        note = decode_note(annotations.get(single.seqs.start))
        single.attempts, single.acquired = max(least, note.attempts), max(least, note.acquired)
        if note.due_ms > now_ms:
            single.attempts, single.acquired = note.attempts, note.acquired
            machine.delay(note.due_ms, single)
        else:
            returned.append(single)


def _waits(machine: Machine, run: Run, annotations: dict[int, bytes], now_ms: int) -> bool:
    """Let messages wait that have done so since they came; return whether they do. Marks of deliveries may
    have passed them, but no consumer has had them.
    """
    waits_until, run.waits_until = run.waits_until, 0
    if waits_until <= now_ms or any(seq in annotations for seq in run.seqs):
        # Those that came back have a note.
        return False
    run.waits_until = waits_until
    machine.delay(waits_until, run)
    return True


def _parts(runs: list[Run], settled: list[range], ready: Ready) -> Iterator[Run]:
    """Yield the messages that are not settled, those of each level by themselves."""
    for run in runs:
        for part in _unsettled(run, settled):
            yield from part.by_level(ready.level_of)


def _unsettled(run: Run, settled: list[range]) -> list[Run]:
    """Remove settled messages from a run."""
    low, stop = run.seqs.start, run.seqs.stop
    settled = [gone for gone in settled if gone.start < stop and gone.stop > low]
    if len(settled) > SETTLED_SINGLY:
        # Messages of a higher priority have left from between the others.
        left = bytearray(b"\x01") * len(run.seqs)
        for gone in settled:
            first, last = max(gone.start, low) - low, min(gone.stop, stop) - low
            left[first:last] = bytes(last - first)
        return [run.where(left)] if any(left) else []
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
