"""Acks out of raw bytes: consecutive `basic.ack` frames become ranges of delivery tags, and so do
`basic.reject` and `basic.nack`.

Consumers that ack one by one usually ack in order. So the acks of a whole read can often be predicted from
the first one; then one comparison takes them all.
"""

from __future__ import annotations

import struct
from itertools import chain, repeat
from typing import Final

#: All three methods: 7 bytes of frame header, class and method, tag, bits, frame end.
FRAME_BYTES: Final = 21
_SIZE_AND_CLASS: Final = b"\x00\x00\x00\x0d\x00\x3c\x00"
ACK: Final = b"\x00\x3c\x00\x50"
REJECT: Final = b"\x00\x3c\x00\x5a"
NACK: Final = b"\x00\x3c\x00\x78"
#: By the last octet of the method and the bits: what becomes of the messages, and the last two octets of
#: frames for one tag and for `multiple` (-1: none).
_KINDS: Final[dict[tuple[int, int], tuple[str, int, int]]] = {
    (ACK[3], 0): ("settle", 0x00CE, 0x01CE),
    (ACK[3], 1): ("settle", 0x00CE, 0x01CE),
    (REJECT[3], 0): ("discard", 0x00CE, -1),
    # As in RabbitMQ 4.3 a nack only gives the message back.
    (REJECT[3], 1): ("fail", 0x01CE, -1),
    (NACK[3], 0): ("discard", 0x00CE, 0x01CE),
    (NACK[3], 1): ("discard", 0x00CE, 0x01CE),
    (NACK[3], 2): ("return", 0x02CE, 0x03CE),
    (NACK[3], 3): ("return", 0x02CE, 0x03CE),
}
_TAG: Final = struct.Struct(">QH")
_LOW = [bytes((value,)) for value in range(256)]
#: Acks in order after which a prediction is tried.
STREAK: Final = 4
#: Stands for the tag 0 of a single ack, which is never unacked.
NO_TAG: Final = -1
_flatten = chain.from_iterable


def take(data: bytes, pos: int, end: int) -> tuple[int, str, list[tuple[int, int]]]:
    """Take the acks of one channel at `pos`, or the rejects or nacks; return the offset after them, what
    becomes of the messages, and ranges (first, last).

    A range with first 0 stands for `multiple`: everything up to last, or everything at all for last 0.
    """
    prefix = data[pos : pos + 11]
    ranges: list[tuple[int, int]] = []
    if not prefix.startswith(_SIZE_AND_CLASS, 3) or pos + FRAME_BYTES > end:
        # An ack of another size is malformed, and its fields would be read at the wrong offsets.
        return pos, "", ranges
    kind = _KINDS.get((prefix[10], data[pos + 19]))
    if kind is None:
        return pos, "", ranges
    verb, single, multiple = kind
    ending = single.to_bytes(2, "big")
    unpack = _TAG.unpack_from
    startswith = data.startswith
    low = high = -1
    streak = 0
    while pos + FRAME_BYTES <= end and startswith(prefix, pos):
        tag, tail = unpack(data, pos + 11)
        if tail == single:
            if tag == 0:
                # Tag 0 without `multiple` is no delivery; the acks before it count first.
                if low >= 0:
                    break
                ranges.append((NO_TAG, NO_TAG))
                pos += FRAME_BYTES
                break
            if tag != high + 1 or low < 0:
                if low >= 0:
                    ranges.append((low, high))
                low = tag
                streak = 0
            else:
                streak += 1
            high = tag
            pos += FRAME_BYTES
            if streak < STREAK:
                continue
            ahead = min((end - pos) // FRAME_BYTES, 255 - (tag & 255))
            if ahead >= STREAK:
                first = (tag & 255) + 1
                start = prefix + tag.to_bytes(8, "big")[:7]
                expected = b"".join(_flatten(zip(repeat(start), _LOW[first : first + ahead], repeat(ending))))
                if startswith(expected, pos):
                    high += ahead
                    pos += ahead * FRAME_BYTES
                else:
                    streak = 0
        elif tail == multiple:
            if low >= 0:
                ranges.append((low, high))
                low = high = -1
            ranges.append((0, tag))
            pos += FRAME_BYTES
        else:
            break
    if low >= 0:
        ranges.append((low, high))
    return pos, verb, ranges
