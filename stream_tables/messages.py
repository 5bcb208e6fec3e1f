"""Messages of a stream, taken apart: offset, routing, properties and body of each message of a batch.

Most messages share a few routings and properties. So each distinct one is decoded once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from amqp_server.wire import tables
from amqp_server.wire.content import PROPERTIES
from persistence.streams.batch import Batch
from stream_tables.header_text import as_text

#: Decoded routings and properties that are kept, and the longest properties that are.
KNOWN_MAX: Final = 4096
KNOWN_BYTES_MAX: Final = 4096
#: The last second of the year 9999, the last year of SQL's dates; some publishers write milliseconds.
SECONDS_MAX: Final = 253_402_300_799
_U32, _U64 = struct.Struct(">I"), struct.Struct(">Q")
#: Bytes from the end of the routing to the payload of the content header: the end of the method frame, and
#: the head of the next frame. And from there to the flags.
_TO_PAYLOAD: Final = 1 + 7
_TO_FLAGS: Final = 12
#: The header that every stored message has, as the last one: name, type, value.
_OFFSET_FIELD: Final = b"\x0fx-stream-offset" + b"l"
_OFFSET_BYTES: Final = len(_OFFSET_FIELD) + 8
_FRAME_HEAD, _FRAME_END = 7, 1
_HEADERS_BIT: Final = 1 << 13
#: Names of the properties, the flag of each, and whether it is text.
_BITS: Final = tuple(
    (name, 1 << 15 - place, name in ("delivery_mode", "priority")) for place, name in enumerate(PROPERTIES)
)


class Routing(NamedTuple):
    exchange: str
    routing_key: str
    #: Exchange and routing key as AMQP has them, each behind its length; None if the texts say everything.
    raw: bytes | None


class Published(NamedTuple):
    """The properties of a message as it was published."""

    #: By name; headers as pairs of name and text, timestamp in µs.
    values: dict[str, Any]
    #: Flags and properties as AMQP has them; None if the values say everything.
    raw: bytes | None


class Message(NamedTuple):
    offset: int
    routing: Routing
    published: Published
    body: bytes


class Decoder:
    """Raises ValueError, IndexError or struct.error for what is no message."""

    def __init__(self) -> None:
        self._routings: dict[bytes, Routing] = {}
        self._published: dict[bytes, Published] = {}

    def messages(self, batch: Batch) -> Iterator[Message]:
        items = bytes(batch.items)
        offsets = batch.offsets
        at = number = 0
        for shape in batch.shapes:
            for _ in range(shape.count):
                offset = batch.base + (number if offsets is None else offsets[number])
                yield self._message(items, at, at + shape.size, shape.first, shape.second, offset)
                at += shape.size
                number += 1

    def _message(
        self, items: bytes, start: int, end: int, head_bytes: int, payload_bytes: int, offset: int
    ) -> Message:
        head_end = start + 1 + head_bytes
        payload = head_end + _TO_PAYLOAD
        payload_end = payload + payload_bytes
        (size,) = _U64.unpack_from(items, payload + 4)
        routing = self._routing(items[start + 1 : head_end])
        published = self._properties(items[payload + _TO_FLAGS : payload_end])
        at = payload_end + _FRAME_END
        if end - at == size + _FRAME_HEAD + _FRAME_END:
            body = items[at + _FRAME_HEAD : end - _FRAME_END]
        else:
            body = _joined(items, at, end)
        if len(body) != size:
            raise ValueError(f"the message at {offset} has {len(body)} bytes in place of {size}")
        return Message(offset, routing, published, body)

    def _routing(self, head: bytes) -> Routing:
        found = self._routings.get(head)
        if found is None:
            if len(self._routings) >= KNOWN_MAX:
                self._routings.clear()
            found = self._routings[head] = _routing(head)
        return found

    def _properties(self, stored: bytes) -> Published:
        table = _table_at(stored)
        end = table + 4 + _U32.unpack_from(stored, table)[0]
        before = end - _OFFSET_BYTES
        if stored[before : before + len(_OFFSET_FIELD)] != _OFFSET_FIELD:
            raise ValueError("a stored message has no offset among its headers")
        key = stored[:before] + stored[end:]
        found = self._published.get(key)
        if found is None:
            found = _published(stored[:table], stored[table + 4 : before], stored[end:])
            if len(key) <= KNOWN_BYTES_MAX:
                if len(self._published) >= KNOWN_MAX:
                    self._published.clear()
                self._published[key] = found
        return found


def _joined(items: bytes, at: int, end: int) -> bytes:
    """Return a body that has no frame or several."""
    pieces: list[bytes] = []
    while at < end:
        size = _U32.unpack_from(items, at + 3)[0]
        pieces.append(items[at + _FRAME_HEAD : at + _FRAME_HEAD + size])
        at += _FRAME_HEAD + size + _FRAME_END
    return b"".join(pieces)


def _table_at(stored: bytes) -> int:
    """Return where the headers begin, which every stored message has."""
    at = 2
    for flag in (0x80, 0x40):
        if stored[0] & flag:
            at += 1 + stored[at]
    return at


def _routing(head: bytes) -> Routing:
    exchange_end = 1 + head[0]
    exchange, exchange_whole = _text(head[1:exchange_end])
    key, key_whole = _text(head[exchange_end + 1 :])
    return Routing(exchange, key, None if exchange_whole and key_whole else head)


def _text(raw: bytes) -> tuple[str, bool]:
    """Return text, and whether it says everything: AMQP does not require UTF-8 everywhere, Parquet does."""
    try:
        return raw.decode(), True
    except UnicodeDecodeError:
        return raw.decode(errors="replace"), False


def _published(opening: bytes, fields: bytes, rest: bytes) -> Published:
    """`opening` is what stands before the headers, `rest` what stands behind them."""
    flags = int.from_bytes(opening[:2], "big")
    values: dict[str, Any] = {}
    data, whole, at = opening + rest, True, 2
    for name, bit, is_octet in _BITS:
        if not flags & bit:
            continue
        if name == "headers":
            # The stored message has headers, even if only its offset.
            if fields:
                values[name], whole_headers = _headers(fields)
                whole = whole and whole_headers
        elif name == "timestamp":
            (seconds,) = _U64.unpack_from(data, at)
            at += 8
            if seconds <= SECONDS_MAX:
                values[name] = seconds * 1_000_000
            else:
                whole = False
        elif is_octet:
            values[name] = data[at]
            at += 1
        else:
            stop = at + 1 + data[at]
            values[name], whole_text = _text(data[at + 1 : stop])
            whole = whole and whole_text
            at = stop
    if whole:
        return Published(values, None)
    if not fields:
        raw = (flags & ~_HEADERS_BIT).to_bytes(2, "big") + opening[2:] + rest
    else:
        raw = b"".join((opening, _U32.pack(len(fields)), fields, rest))
    return Published(values, raw)


def _headers(fields: bytes) -> tuple[list[tuple[str, str | None]], bool]:
    """Return the headers as text, and whether these texts say everything."""
    table = _U32.pack(len(fields)) + fields
    decoded = tables.decode(table)
    count, whole = 0, True
    for name, at, after in tables.entries(table, 4, len(table)):
        count += 1
        whole = whole and table[at] == 0x53 and _text(table[at + 5 : after])[1] and _text(name)[1]
    found = [(name, as_text(value)) for name, value in decoded.items()]
    return found, whole and count == len(found)


__all__ = ["Decoder", "Message", "Published", "Routing"]
