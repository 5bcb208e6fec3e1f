"""Decodes a stored batch as docs/streams.md describes it, one message at a time. This decoder of the tests
shares no code with the broker.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple
from zlib import crc32

from pamqp import header

_HEAD = struct.Struct(">4sBBHQIQIIIII")
_SHAPE = struct.Struct(">IIHII")
_SPARSE, _ZSTD, _LZ4 = 32, 4, 8


class Stored(NamedTuple):
    """A message of a batch."""

    offset: int
    exchange: str
    routing_key: str
    headers: dict[str, Any]
    body: bytes
    time_ms: int


def messages_of(body: bytes, skip: int = 0) -> list[Stored]:
    """Return the messages of a batch from the one with this number on."""
    magic, version, flags, shapes, base, count, time_ms, meta_bytes, items_bytes, *crcs = _HEAD.unpack_from(
        body
    )
    assert (magic, version) == (b"mqdS", 1)
    meta = body[48 : 48 + meta_bytes]
    items = body[48 + meta_bytes :]
    assert len(items) == items_bytes
    assert crcs == [crc32(meta), crc32(items), crc32(body[:44])]
    found = list(_SHAPE.iter_unpack(meta[: 18 * shapes]))
    size = sum(number * each for number, each, _, _, _ in found)
    items = _decompressed(flags, items, size)
    assert len(items) == size
    number_all = sum(shape[0] for shape in found)
    offsets = list(range(number_all))
    if flags & _SPARSE:
        offsets = list(struct.unpack(f">{number_all}I", meta[-4 * number_all :]))
    else:
        assert number_all == count
    messages: list[Stored] = []
    at = 0
    for number, each, head_bytes, payload_bytes, _ in found:
        for _ in range(number):
            item = items[at : at + each]
            at += each
            messages.append(_message(item, head_bytes, payload_bytes, base + offsets[len(messages)], time_ms))
    return messages[skip:]


def _decompressed(flags: int, items: bytes, size: int) -> bytes:
    if flags & _ZSTD:
        from zstandard import ZstdDecompressor

        return ZstdDecompressor().decompress(items, max_output_size=size)
    if flags & _LZ4:
        from lz4 import block

        return bytes(block.decompress(items, uncompressed_size=size))
    return items


def _message(item: bytes, head_bytes: int, payload_bytes: int, offset: int, time_ms: int) -> Stored:
    exchange = item[2 : 2 + item[1]]
    routing_key = item[3 + item[1] : 1 + head_bytes]
    at = head_bytes + 2
    assert item[at] == 2
    properties = header.ContentHeader()
    properties.unmarshal(item[at + 7 : at + 7 + payload_bytes])
    at += payload_bytes + 8
    parts: list[bytes] = []
    while at < len(item):
        kind, channel, size = struct.unpack_from(">BHI", item, at)
        assert (kind, channel, item[at + 7 + size]) == (3, 1, 0xCE)
        parts.append(item[at + 7 : at + 7 + size])
        at += size + 8
    body = b"".join(parts)
    assert len(body) == properties.body_size
    headers: dict[str, Any] = dict(properties.properties.headers or {})
    assert headers["x-stream-offset"] == offset
    return Stored(offset, exchange.decode(), routing_key.decode(), headers, body, time_ms)


__all__ = ["Stored", "messages_of"]
