"""Frames as bytes: single messages by pamqp, runs of acks as numpy records."""

from __future__ import annotations

import struct
from typing import TypeAlias

import numpy
import numpy.typing
from pamqp import commands, frame, header

Bytes: TypeAlias = numpy.typing.NDArray[numpy.uint8]
Tags: TypeAlias = numpy.typing.NDArray[numpy.int64]
Records: TypeAlias = numpy.typing.NDArray[numpy.void]

CHANNEL = 1
FRAME_MAX = 131_072
FRAME_HEAD = struct.Struct(">BHI")
FRAME_OVERHEAD = FRAME_HEAD.size + 1
FRAME_END = 0xCE

BASIC_ACK = 0x003C_0050

# basic.ack and basic.nack have one layout: delivery tag, then one octet of bits, the lowest being `multiple`.
SETTLEMENT = numpy.dtype(
    [
        ("type", "u1"),
        ("channel", ">u2"),
        ("size", ">u4"),
        ("method", ">u4"),
        ("tag", ">u8"),
        ("bits", "u1"),
        ("end", "u1"),
    ]
)


def message(
    exchange: str, routing_key: str, body: bytes, properties: commands.Basic.Properties | None = None
) -> bytes:
    """basic.publish, its header and its body frames, ready for the socket."""
    content = header.ContentHeader(0, len(body), properties or commands.Basic.Properties())
    parts = [
        frame.marshal(commands.Basic.Publish(exchange=exchange, routing_key=routing_key), CHANNEL),
        frame.marshal(content, CHANNEL),
    ]
    step = FRAME_MAX - FRAME_OVERHEAD
    for start in range(0, len(body), step):
        piece = body[start : start + step]
        parts += [FRAME_HEAD.pack(3, CHANNEL, len(piece)), piece, bytes((FRAME_END,))]
    return b"".join(parts)


def acks(first: int, last: int) -> Records:
    """One basic.ack for each delivery tag from first to last, both included."""
    records = numpy.zeros(last - first + 1, SETTLEMENT)
    records["type"] = 1
    records["channel"] = CHANNEL
    records["size"] = SETTLEMENT.itemsize - FRAME_OVERHEAD
    records["method"] = BASIC_ACK
    records["tag"] = numpy.arange(first, last + 1)
    records["end"] = FRAME_END
    return records


def ack_through(tag: int) -> bytes:
    """One basic.ack for everything up to a delivery tag."""
    return frame.marshal(commands.Basic.Ack(tag, multiple=True), CHANNEL)
