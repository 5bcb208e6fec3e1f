"""Frame constants and the encoding of frames that pamqp does not see (spec 4.2)."""

from __future__ import annotations

import struct
from typing import Final

from pamqp import base

from amqp_server.wire import methods

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
#: Protocol headers that clients may send: that of 0-9-1, and that of 0-9, which old libraries send before
#: they speak 0-9-1. RabbitMQ accepts both.
CLIENT_HEADERS: Final = (PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09")

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
END = 0xCE
#: Type, channel, payload size, and the frame end.
OVERHEAD: Final = 8
#: Every peer takes frames of this size (spec 4.2.3, and the tune rules of connection.tune).
FRAME_BYTES_MIN: Final = 4096

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

prefix = struct.Struct(">BHI")


def method_frame(channel: int, method: base.Frame) -> bytes:
    """Encode a method."""
    return raw_frame(METHOD, channel, methods.encode(method))


def raw_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Encode a frame around a payload."""
    return prefix.pack(kind, channel, len(payload)) + payload + b"\xce"


#: Bytes of a short string, such as a routing key.
SHORT_STRING_MAX: Final = 255


def short_string(text: str | bytes) -> bytes:
    """Encode a short string (at most 255 bytes)."""
    data = text.encode() if isinstance(text, str) else text
    return bytes((len(data),)) + data
