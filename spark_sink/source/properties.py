"""Decodes the properties of a message to the values that Arrow needs; headers become text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from spark_sink.rows import PROPERTIES
from spark_sink.source import field_table
from spark_sink.source.deliveries import U64

#: The last second of the year 9999, the last year of Python's and of SQL's dates; some publishers write
#: milliseconds instead of seconds.
SECONDS_MAX = 253_402_300_799

COLUMNS = tuple(each.column for each in PROPERTIES)
NO_PROPERTIES: tuple[Any, ...] = (None,) * len(PROPERTIES)
HEADERS, TIMESTAMP, MESSAGE_ID = map(COLUMNS.index, ("headers", "timestamp", "message_id"))
OCTETS = {COLUMNS.index("delivery_mode"), COLUMNS.index("priority")}
#: Bit in the flags, index in the tuple.
BITS = tuple((1 << each.bit, place) for place, each in enumerate(PROPERTIES))
MESSAGE_ID_FLAG = BITS[MESSAGE_ID][0]
FLAGS_BYTES, LENGTH_BYTES, TIMESTAMP_BYTES = 2, 4, 8

#: Name of the header that holds, as hexadecimal digits, a table of headers that cannot be read.
UNREADABLE = "x-unreadable-headers"

Properties = tuple[Any, ...]

log = logging.getLogger("spark_sink")


class BadMessage(Exception):
    """A message that cannot become a row."""


def decode_properties(data: bytes) -> Properties:
    """Flags and properties (spec 4.2.6.1). Raises BadMessage."""
    flags = data[0] << 8 | data[1]
    if not flags:
        return NO_PROPERTIES
    found: list[Any] = [None] * len(PROPERTIES)
    at = FLAGS_BYTES
    try:
        for bit, place in BITS:
            if not flags & bit:
                continue
            if place == HEADERS:
                found[place], at = _headers(data, at)
            elif place == TIMESTAMP:
                (seconds,) = U64.unpack_from(data, at)
                found[place] = seconds * 1_000_000 if seconds <= SECONDS_MAX else None
                at += TIMESTAMP_BYTES
            elif place in OCTETS:
                found[place] = data[at]
                at += 1
            else:
                end = at + 1 + data[at]
                found[place] = data[at + 1 : end].decode(errors="replace")
                at = end
    except Exception as error:
        raise BadMessage(
            f"the properties of a message cannot be decoded: {error!r}: {data[:200]!r}"
        ) from error
    return tuple(found)


def _headers(data: bytes, at: int) -> tuple[list[tuple[str, str | None]], int]:
    """Return the headers as text, and the position after them. A table that cannot be read is one header with
    its bytes: one bad message must not stop a query for ever.
    """
    try:
        table, after = field_table.decode(data, at)
    except field_table.BadTable as error:
        after = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "big")
        if after > len(data):
            raise
        raw = data[at + LENGTH_BYTES : after]
        log.warning("the headers of a message are left as they are in '%s': %s", UNREADABLE, error)
        return [(UNREADABLE, raw.hex())], after
    return [(name, field_table.as_text(value)) for name, value in table.items()], after


def message_id_at(data: bytes) -> int | None:
    """Position of the length of the message_id, if there is one."""
    flags = int.from_bytes(data[:FLAGS_BYTES], "big")
    if not flags & MESSAGE_ID_FLAG:
        return None
    at = FLAGS_BYTES
    for bit, place in BITS[:MESSAGE_ID]:
        if not flags & bit:
            continue
        if place == HEADERS:
            at += LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "big")
        else:
            at += 1 if place in OCTETS else 1 + int.from_bytes(data[at : at + 1])
    return at


def without_ids(raws: Sequence[bytes]) -> tuple[list[bytes], list[bytes]] | None:
    """Properties that differ in their message_id: the ids, and the rest of the bytes with an empty id.

    None unless all begin with the same bytes up to the id, including the flags: only then the id is at the
    same position.
    """
    at = message_id_at(raws[0])
    if at is None:
        return None
    before = raws[0][:at]
    if not all(raw.startswith(before) and len(raw) > at for raw in raws):
        return None
    empty = before + b"\x00"
    start = at + 1
    ids = [raw[start : start + raw[at]] for raw in raws]
    return ids, [empty + raw[start + len(each) :] for raw, each in zip(raws, ids, strict=True)]
