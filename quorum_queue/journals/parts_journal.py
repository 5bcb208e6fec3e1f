"""Stores the parts of transactions that a durable queue on one node keeps, in its journal (see
quorum_queue.machine.parts).

The messages of a part lie in the journal like all others. A record far behind them (positions from 1 << 61
on) says which messages are the part's, and which deliveries it acks. It is written in the commit of the first
messages, anew when more come, and settled when the transaction is decided, in the commit of what was decided:
a restart finds the part as it was, or what has become of it.

    record  u8 version | MessagePack: transaction, queues, time, messages, acks, whether it is prepared
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

import msgspec

from quorum_queue.machine.codec import CodecError
from quorum_queue.machine.machine import Machine
from quorum_queue.machine.parts import Part, Parts, TransactionId
from quorum_queue.machine.run import Run
from quorum_queue.ports import Journal

#: Positions from here on belong to parts; from deduplication_journal.FIRST_POSITION on they belong to names.
FIRST_POSITION: Final = 1 << 61
VERSION: Final = 1

#: First and last position.
Span = tuple[int, int]

_encode = msgspec.msgpack.encode
_decoder: Final = msgspec.msgpack.Decoder(
    tuple[
        TransactionId,
        list[int],
        int,
        list[tuple[Span, list[bytes | None] | None]],
        list[tuple[str, list[Span]]],
        bool,
    ]
)


def note(journal: Journal, queue_id: int, parts: Parts, part: Part) -> None:
    """Write a part, behind all records of parts that were ever written: some may still lie in the journal."""
    if part.position >= 0:
        forget(journal, queue_id, [part.position])
    messages: list[tuple[Span, list[bytes | None] | None]] = []
    acked: list[tuple[str, list[Span]]] = []
    if part.prepared:
        messages = [((run.seqs[0], run.seqs[-1]), names) for run, names in part.enqueued]
        acked = [(verb, [span for run in runs for span in _spans(run)]) for verb, runs in part.settled]
    else:
        # It is only needed to drop what has come of it.
        messages = [(span, None) for span in _joined(part)]
    part.position = max(parts.next_position, FIRST_POSITION + (part.since_ms << 16))
    parts.next_position = part.position + 1
    fields = _encode((part.transaction, part.participants, part.since_ms, messages, acked, part.prepared))
    payload = [bytes((VERSION,)), fields]
    journal.append(queue_id, part.position, 1, payload, head_parts=len(payload))


def forget(journal: Journal, queue_id: int, positions: list[int]) -> None:
    """These parts are decided."""
    for position in positions:
        journal.settle(queue_id, range(position, position + 1))


def restore(machine: Machine, position: int, payload: bytes | memoryview) -> None:
    """Take the messages of a part, which are all in the queue, out of it again. Raises CodecError."""
    if not payload or payload[0] != VERSION:
        raise CodecError(f"a part of a transaction has a version that is not {VERSION}")
    try:
        transaction, queues, since_ms, messages, acked, prepared = _decoder.decode(payload[1:])
    except msgspec.MsgspecError as error:
        raise CodecError(f"a part of a transaction: {error}") from error
    part = Part(transaction, since_ms)
    part.participants, part.prepared, part.position = queues, prepared, position
    for (low, high), names in messages:
        for run in sorted(machine.take_positions(low, high), key=attrgetter("seqs.start")):
            # It is marked as delivered if later ones were, and if its decision had come and was not on disk
            # yet: so it comes as one that may have been delivered.
            found = None if names is None else [names[seq - low] for seq in run.seqs]
            part.add_messages(run, found)
    for verb, spans in acked:
        runs: list[Run] = []
        for low, high in spans:
            # It may have come back and waited before it was delivered last.
            runs += machine.take_positions(low, high)
        part.add_settled(verb, runs)
    machine.parts.put(part)
    machine.parts.next_position = max(machine.parts.next_position, position + 1)
    machine.unacked_count += part.unacked_count
    machine.unacked_bytes += part.unacked_bytes


def _joined(part: Part) -> list[Span]:
    """Return the positions of the messages, neighbours as one span."""
    spans: list[Span] = []
    for run, _ in part.enqueued:
        if spans and spans[-1][1] + 1 == run.seqs[0]:
            spans[-1] = spans[-1][0], run.seqs[-1]
        else:
            spans.append((run.seqs[0], run.seqs[-1]))
    return spans


def _spans(run: Run) -> list[Span]:
    if run.seqs.step == 1:
        return [(run.seqs[0], run.seqs[-1])]
    return [(seq, seq) for seq in run.seqs]


__all__ = ["FIRST_POSITION", "forget", "note", "restore"]
