"""Frames of control methods, by pika's codec."""

from __future__ import annotations

import struct
from typing import Any

from pika import spec
from pika.amqp_object import Method

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
END = b"\xce"
HEAD = struct.Struct(">BHI")
HEAD_BYTES = HEAD.size
#: Head and end.
OVERHEAD = HEAD_BYTES + 1
HEARTBEAT_FRAME = HEAD.pack(HEARTBEAT, 0, 0) + END
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_MAX = 131_072

_METHOD_ID = struct.Struct(">I")


def method_frame(channel: int, method: Method) -> bytes:
    payload = _METHOD_ID.pack(method.INDEX) + b"".join(method.encode())
    return HEAD.pack(METHOD, channel, len(payload)) + payload + END


def decode_method(payload: bytes) -> Any:
    """Return a method of pika.spec. Raises ValueError if the payload is no method."""
    (index,) = _METHOD_ID.unpack_from(payload)
    kind = spec.methods.get(index)
    if kind is None:
        raise ValueError(f"the broker sent a method that AMQP 0-9-1 does not have: {index:#010x}")
    return kind().decode(payload, _METHOD_ID.size)


def decode_properties(payload: bytes) -> tuple[int, Any]:
    """Return a content header's body size and its properties."""
    (size,) = struct.unpack_from(">Q", payload, 4)
    return size, spec.BasicProperties().decode(payload[12:])
