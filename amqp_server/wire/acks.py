"""Acks out of raw bytes: consecutive `basic.ack` frames become ranges of delivery tags.

Consumers that ack one by one usually ack in order. So the acks of a whole read can often be predicted from
the first one; then one comparison takes them all.
"""

from __future__ import annotations

import struct
from itertools import chain, repeat
from typing import Final

#: basic.ack: 7 bytes of frame header, class and method, tag, multiple, frame end.
FRAME_BYTES: Final = 21
SIGNATURE: Final = b"\x00\x00\x00\x0d\x00\x3c\x00\x50"
_TAG: Final = struct.Struct(">QH")
_LOW = [bytes((value,)) for value in range(256)]
#: Acks in order after which a prediction is tried.
STREAK: Final = 4
#: Stands for the tag 0 of a single ack, which is never unacked.
NO_TAG: Final = -1
_SINGLE, _MULTIPLE = 0x00CE, 0x01CE
_flatten = chain.from_iterable


def take(data: bytes, pos: int, end: int) -> tuple[int, list[tuple[int, int]]]:
    """Take the acks of one channel at `pos`; return the offset after them and ranges (first, last).

    A range with first 0 stands for `multiple`: everything up to last, or everything at all for last 0.
    """
    prefix = data[pos : pos + 11]
    ranges: list[tuple[int, int]] = []
    if not prefix.endswith(SIGNATURE):
        # An ack of another size is malformed, and its fields would be read at the wrong offsets.
        return pos, ranges
    unpack = _TAG.unpack_from
    startswith = data.startswith
    low = high = -1
    streak = 0
    while pos + FRAME_BYTES <= end and startswith(prefix, pos):
        tag, tail = unpack(data, pos + 11)
        if tail == _SINGLE:
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
                expected = b"".join(
                    _flatten(zip(repeat(start), _LOW[first : first + ahead], repeat(b"\x00\xce")))
                )
                if startswith(expected, pos):
                    high += ahead
                    pos += ahead * FRAME_BYTES
                else:
                    streak = 0
        elif tail == _MULTIPLE:
            if low >= 0:
                ranges.append((low, high))
                low = high = -1
            ranges.append((0, tag))
            pos += FRAME_BYTES
        else:
            break
    if low >= 0:
        ranges.append((low, high))
    return pos, ranges
