"""Offsets and times of messages in a stream: the broker adds a header with the offset to each message, as the
last one, and for consumers that ask for it a header with the time at which it took the message, as the first
one.
"""

from __future__ import annotations

from collections.abc import Sequence

from pika import data as field_table

from spark_sink.source.deliveries import HEADERS_BIT, U32, U64, Run
from spark_sink.source.properties import BadMessage

OFFSET = "x-stream-offset"
#: Name and type of the header; its eight bytes follow.
MARK = bytes([len(OFFSET)]) + OFFSET.encode() + b"l"
TIME = "x-stream-timestamp"
TIME_MARK = bytes([len(TIME)]) + TIME.encode() + b"l"
VALUE_BYTES = U64.size
FLAGS_BYTES = 2


def offset_at(run: Run, index: int) -> int:
    """Return the offset of a message of a run. Raises BadMessage."""
    properties = run.properties(index)
    return int(U64.unpack_from(properties, _value_at(properties))[0])


def _value_at(properties: bytes) -> int:
    """Position of the offset. Raises BadMessage."""
    at = properties.rfind(MARK)
    if at >= 0 and properties.find(MARK) == at:
        return at + len(MARK)
    # Another header, or a property, has the same bytes in its text: only decoding distinguishes them.
    table_at, table_end = table_of(properties)
    place = table_at + U32.size
    while place < table_end:
        after = place + 1 + properties[place]
        if properties[place : after + 1] == MARK:
            return after + 1
        place = field_table.decode_value(properties, after)[1]
    raise BadMessage(f"a message of a stream came without its offset: {properties[:200]!r}")


def table_of(properties: bytes) -> tuple[int, int]:
    """Positions where the headers begin, with their size, and where they end. Raises BadMessage."""
    if not properties[0] & HEADERS_BIT:
        raise BadMessage(f"a message of a stream came without headers: {properties[:200]!r}")
    at = FLAGS_BYTES
    for bit in (0x80, 0x40):  # content_type and content_encoding come before
        if properties[0] & bit:
            at += 1 + properties[at]
    return at, at + U32.size + int(U32.unpack_from(properties, at)[0])


def before_offset(properties: bytes) -> tuple[bytes, int]:
    """Return the bytes before the offset, as they were published, and the position of the offset. Raises
    BadMessage.
    """
    at = _value_at(properties)
    return _without(properties[:at], properties), at


def without_offsets(properties: Sequence[bytes]) -> tuple[list[int], list[bytes]]:
    """Return the offsets, and the properties as they were published. Raises BadMessage."""
    at = _value_at(properties[0])
    before = properties[0][:at]
    after = at + VALUE_BYTES
    unpack = U64.unpack_from
    if all(each.startswith(before) for each in properties):
        rest = _without(before, properties[0])
        ends = [each[after:] for each in properties]
        # Usually there is only one; then all are the same object, whose hash is cached.
        whole = {end: rest + end for end in set(ends)}
        return [unpack(each, at)[0] for each in properties], list(map(whole.__getitem__, ends))
    offsets: list[int] = []
    found: list[bytes] = []
    known: dict[bytes, bytes] = {}
    for each in properties:
        at = _value_at(each)
        before = each[:at]
        offsets.append(unpack(each, at)[0])
        rest = known.get(before) or known.setdefault(before, _without(before, each))
        found.append(rest + each[at + VALUE_BYTES :])
    return offsets, found


def _without(before: bytes, properties: bytes) -> bytes:
    """Return the bytes before the offset's value, without its header; a table with only this header is
    removed.
    """
    table_at, table_end = table_of(properties)
    size = table_end - table_at - U32.size - len(MARK) - VALUE_BYTES
    if not size:
        return bytes((before[0] & ~HEADERS_BIT, before[1])) + before[FLAGS_BYTES:table_at]
    return before[:table_at] + U32.pack(size) + before[table_at + U32.size : -len(MARK)]


def time_at(properties: bytes) -> int | None:
    """Return the position of the time, if there is one. Raises BadMessage."""
    at = table_of(properties)[0] + U32.size
    return at + len(TIME_MARK) if properties.startswith(TIME_MARK, at) else None


def without_time(properties: bytes) -> bytes:
    """Return the properties without the header that has the time. Raises BadMessage."""
    at = time_at(properties)
    return properties if at is None else _timeless(properties[:at]) + properties[at + VALUE_BYTES :]


def _timeless(before: bytes) -> bytes:
    """Return the bytes before the time's value, without its header."""
    size_at = len(before) - len(TIME_MARK) - U32.size
    size = int(U32.unpack_from(before, size_at)[0]) - len(TIME_MARK) - VALUE_BYTES
    return before[:size_at] + U32.pack(size)


def without_times(properties: Sequence[bytes]) -> tuple[list[int | None], list[bytes]]:
    """Return the times, ms since 1970, and the properties without them. Raises BadMessage."""
    unpack = U64.unpack_from
    times: list[int | None] = []
    found: list[bytes] = []
    before, rest, at = b"", b"", 0
    for each in properties:
        if not before or not each.startswith(before):
            place = time_at(each)
            if place is None:
                times.append(None)
                found.append(each)
                continue
            at = place
            before = each[:at]
            rest = _timeless(before)
        times.append(unpack(each, at)[0])
        found.append(rest + each[at + VALUE_BYTES :])
    return times, found
