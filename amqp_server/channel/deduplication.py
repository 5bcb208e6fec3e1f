"""Names of messages for deduplication: from their headers to quorum_queue.machine.dedup."""

from __future__ import annotations

import struct
from typing import Any

from amqp_server.wire import content, frames
from amqp_server.wire.intake import Segment
from amqp_server.wire.message_groups import name_groups
from amqp_server.wire.message_ids import message_ids_of
from quorum_queue.machine.dedup import SEQUENCE_MAX, Names, Sequence, id_of, sequence_of
from quorum_queue.machine.run import Run

ID = "x-deduplication-id"
PRODUCER, SEQUENCE = "x-producer", "x-sequence"

#: Maximum number of beginnings of content headers that are cached, for all connections together.
KNOWN_MAX = 4096
#: Longer beginnings are not cached.
KNOWN_BYTES_MAX = 1024
#: The entry x-sequence of a long, up to its eight bytes.
_MARK = b"\x0ax-sequencel"
_NUMBER_BYTES = 8
_NUMBER = struct.Struct(">q")
#: Type, channel and size of the frame come before its payload.
_HEADER_AT = 7
#: Class, weight and body size come before the flags.
_FLAGS_AT = 12
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _MORE_FLAGS = 1 << 15, 1 << 14, 1 << 13, 1

# A producer's messages differ in the number and in the bytes behind the headers. The bytes before the number
# are cached with the producer that a parse found in them: equal bytes parse equally, and they include the
# table's size, which shows that the number ends the table. None if that number is not the sequence.
_known: dict[bytes, bytes | None] = {}


def name_of(item: bytes) -> bytes | None:
    """Return the name in a message's frames.

    An id overrules a sequence; fields of other types are ignored.
    """
    _, _, size = frames.prefix.unpack_from(item)
    header = item[_HEADER_AT : _HEADER_AT + size]
    at = header.find(_MARK) + len(_MARK)
    if at >= len(_MARK):
        producer = _producer(header, at)
        if producer is not None:
            sequence = int.from_bytes(header[at : at + _NUMBER_BYTES], "big", signed=True)
            return sequence_of(producer, sequence) if abs(sequence) <= SEQUENCE_MAX else None
    # Most messages have neither: this search costs a hundredth of parsing the table.
    elif ID.encode() not in header and SEQUENCE.encode() not in header:
        return None
    return _parsed(header)


def names_of(items: list[bytes]) -> Names | None:
    """Return the names of messages of one run, None if none has one."""
    sequence = _sequence_of(items)
    if sequence is not None:
        return sequence
    names = list(map(name_of, items))
    return names if any(names) else None


def _sequence_of(items: list[bytes]) -> Sequence | None:
    """Return the sequence if all messages belong to one.

    Their headers are then the same bytes up to the number, at the same place. Comparing all of them at once
    takes half as long as one by one: no part is longer than expected, so the whole is equal only if each part
    is.
    """
    item = items[0]
    _, _, size = frames.prefix.unpack_from(item)
    at = item.find(_MARK, _HEADER_AT, _HEADER_AT + size) + len(_MARK)
    if at < len(_MARK):
        return None
    producer = _producer(item[_HEADER_AT : _HEADER_AT + size], at - _HEADER_AT)
    if producer is None:
        return None
    (first,) = _NUMBER.unpack_from(item, at)
    if first < -SEQUENCE_MAX or first + len(items) - 1 > SEQUENCE_MAX:
        return None
    flags_at = _HEADER_AT + _FLAGS_AT
    end = at + _NUMBER_BYTES
    beginning = item[flags_at:at]
    numbers = map(_NUMBER.pack, range(first, first + len(items)))
    if b"".join([each[flags_at:end] for each in items]) != beginning + beginning.join(numbers):
        return None
    return Sequence.from_first(sequence_of(producer, first), len(items))


def _producer(header: bytes, at: int) -> bytes | None:
    """Return the producer of the number at this place, if the number ends the headers and a parse agrees."""
    beginning = header[_FLAGS_AT:at]
    if len(beginning) > KNOWN_BYTES_MAX:
        return _found_producer(header, at)
    if beginning not in _known:
        if len(_known) >= KNOWN_MAX:
            _known.clear()
        _known[beginning] = _found_producer(header, at)
    return _known[beginning]


def _found_producer(header: bytes, at: int) -> bytes | None:
    if _table_end(header) != at + _NUMBER_BYTES:
        return None
    producer = _bytes((content.Properties.parse(header).headers or {}).get(PRODUCER))
    if producer is None:
        return None
    # A number within another table, or one that an id overrules, does not count: there the bytes do not
    # decide.
    for number in (1, 2):
        other = header[:at] + number.to_bytes(_NUMBER_BYTES, "big") + header[at + _NUMBER_BYTES :]
        if _parsed(other) != sequence_of(producer, number):
            return None
    return producer


def _table_end(header: bytes) -> int | None:
    """Return where the headers end in a content header that has some."""
    flags = int.from_bytes(header[_FLAGS_AT : _FLAGS_AT + 2], "big")
    if not flags & _HEADERS or flags & _MORE_FLAGS:
        return None
    position = _FLAGS_AT + 2
    for text in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if flags & text:
            position += 1 + header[position]
    return position + 4 + int.from_bytes(header[position : position + 4], "big")


def _parsed(header: bytes) -> bytes | None:
    headers = content.Properties.parse(header).headers or {}
    given = _bytes(headers.get(ID))
    if given is not None:
        return id_of(given)
    producer, sequence = _bytes(headers.get(PRODUCER)), headers.get(SEQUENCE)
    if producer is None or not isinstance(sequence, int) or isinstance(sequence, bool):
        return None
    return sequence_of(producer, sequence) if abs(sequence) <= SEQUENCE_MAX else None


def _bytes(value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def enqueue_named(
    host: Any, run: Run, origin: Any, first: int, segment: Segment | None = None, at: int = 0
) -> None:
    """Hand messages, those of `segment` from place `at` on if given, to a queue that drops duplicates,
    records messages, or has message groups.
    """
    deduplicates, records = host.settings.deduplicates, host.records
    if segment is not None and segment.route.unchanged:
        deduplicates = False
    header = host.settings.group_header
    if header:
        groups = None if segment is None else segment.groups_by(header)
        name_groups(run, header, None if groups is None else groups[at : at + len(run.seqs)])
    for part in content.as_taken(run, host):
        assert part.contents is not None
        names = names_of(part.contents) if deduplicates else None
        if records:
            more = () if names is None else (names,)
            host.pending.append(("enqueue_known", part, origin, first, message_ids_of(part.contents), *more))
        elif names is not None:
            host.pending.append(("enqueue_once", part, origin, first, names))
        else:
            host.pending.append(("enqueue", part, origin, first))
        first += len(part.contents)
