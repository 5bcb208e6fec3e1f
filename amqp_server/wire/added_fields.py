"""Adds fields to the headers of very many messages at once: deliveries of messages that came back have some.

The messages of a run mostly have few different header frames, so each of these is changed once. Nothing is
decoded: the fields are put behind those that the publisher gave.
"""

from __future__ import annotations

from typing import Final

from amqp_server.wire import content, frames, tables

#: A content header's payload: class, weight and body size come before the flags.
_FLAGS_AT: Final = 12
_BEHIND_FLAGS: Final = _FLAGS_AT + 2
# Bits of the first byte of the flags: two short strings, and the headers behind them.
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS = 0x80, 0x40, 0x20
#: A content of this many bytes or more is copied once only.
_LARGE_BYTES: Final = 8192


def with_fields(contents: list[bytes], fields: dict[bytes, bytes]) -> list[bytes]:
    """Return contents with these fields (encoded values, with their type octet) in their headers, instead of
    fields with the same names. The body frames stay as they are.
    """
    encoded = b"".join([bytes((len(name),)) + name + value for name, value in fields.items()])
    changed: list[bytes] = []
    #: Changed header frames by those that messages came with.
    known: dict[bytes, bytes] = {}
    before = after = b""
    size = 0
    for item in contents:
        if not size or not item.startswith(before):
            size = content.body_at(item)
            before = item[:size]
            after = known.get(before, b"")
            if not after:
                after = known[before] = _changed(before, fields, encoded)
        if len(item) < _LARGE_BYTES:
            changed.append(after + item[size:])
        else:
            changed.append(b"".join((after, memoryview(item)[size:])))
    return changed


def _changed(frame: bytes, fields: dict[bytes, bytes], encoded: bytes) -> bytes:
    """Return a header frame with the fields."""
    flags, at = frame[7 + _FLAGS_AT], 7 + _BEHIND_FLAGS
    for bit in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if flags & bit:
            at += 1 + frame[at]
    if flags & _HEADERS:
        start = at + 4
        stop = start + int.from_bytes(frame[at:start], "big")
        if any(frame.find(name, start, stop) >= 0 for name in fields):
            table = tables.replaced(frame[at:stop], {**fields}, checked=True)
        else:
            table = (stop - start + len(encoded)).to_bytes(4, "big") + frame[start:stop] + encoded
    else:
        stop, table = at, len(encoded).to_bytes(4, "big") + encoded
    first = frame[7 : 7 + _FLAGS_AT] + bytes((flags | _HEADERS,)) + frame[7 + _FLAGS_AT + 1 : at]
    payload = first + table + frame[stop:-1]
    return frames.raw_frame(frames.HEADER, int.from_bytes(frame[1:3], "big"), payload)


__all__ = ["with_fields"]
