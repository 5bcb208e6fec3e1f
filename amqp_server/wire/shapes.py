"""Shapes of content headers: which bits decide the meaning for the broker, and which are only values.

A mask has ones where another value would change the layout or the meaning: property flags, lengths, field
names and types, delivery mode, priority, expiration, user-id, and the beginning of reply-to. Two headers of
the same length that agree under the mask are walked in the same way, so the result for one is valid for the
other.
"""

from __future__ import annotations

from typing import Final

from amqp_server.wire import confirm_level, content, tables

_LENGTH_ONLY = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "message_id",
    "type",
    "app_id",
    "cluster_id",
)
#: Bytes of reply-to that distinguish direct reply-to from other values.
_REPLY_PREFIX: Final = 4
_FIXED_TAGS = {ord("t"): 1, ord("b"): 1, ord("B"): 1, ord("s"): 2, ord("u"): 2, ord("I"): 4, ord("i"): 4}
_FIXED_TAGS |= {ord("l"): 8, ord("L"): 8, ord("f"): 4, ord("d"): 8, ord("T"): 8, ord("D"): 5}


def mask(payload: bytes, flags: int) -> int:
    """Return the mask for properties that were found well formed; `payload` begins with the flags."""
    bits = bytearray(b"\xff" * len(payload))
    offset = 2
    for bit, name in enumerate(content.PROPERTIES):
        if not flags & (0x8000 >> bit):
            continue
        if name == "headers":
            offset = _clear_values(payload, offset, bits)
        elif name in ("delivery_mode", "priority"):
            offset += 1
        elif name == "timestamp":
            _clear(bits, offset, offset + 8)
            offset += 8
        else:
            after = offset + 1 + payload[offset]
            if name in _LENGTH_ONLY:
                _clear(bits, offset + 1, after)
            elif name == "reply_to":
                _clear(bits, min(after, offset + 1 + _REPLY_PREFIX), after)
            offset = after
    return int.from_bytes(bits, "big")


def framed(properties_mask: int, properties_bytes: int, tail_bytes: int) -> int:
    """Extend a mask to the whole header frame, whose other bytes all decide, and `tail_bytes` from its end
    octet on.

    The frame header (7) and class, weight and body size (12) come before the properties.
    """
    front = (1 << 8 * 19) - 1
    tail = (1 << 8 * tail_bytes) - 1
    return ((front << 8 * properties_bytes | properties_mask) << 8 * tail_bytes) | tail


def _clear_values(payload: bytes, offset: int, bits: bytearray) -> int:
    """Clear the plain values of a table's fields; names, types, lengths, nested values and x-confirm stay."""
    end = offset + 4 + int.from_bytes(payload[offset : offset + 4], "big")
    for name, at, after in tables.entries(payload, offset + 4, end):
        if name == confirm_level.NAME:
            continue
        tag = payload[at]
        if tag in _FIXED_TAGS:
            _clear(bits, at + 1, after)
        elif tag in (ord("S"), ord("x")):
            _clear(bits, at + 5, after)
    return end


def _clear(bits: bytearray, start: int, stop: int) -> None:
    bits[start:stop] = bytes(stop - start)
