"""Positions in a message as a stream stores it; see encode.py."""

from __future__ import annotations

import struct
from itertools import chain
from typing import Final

from persistence.streams.batch import Shape

#: Bytes from the end of the routing to the property flags: the end of the method frame, the head of the
#: header frame, and in its payload class, weight and size of the body.
_FLAGS_AT: Final = 1 + 7 + 12
_CONTENT_TYPE: Final = 0x80
_CONTENT_ENCODING: Final = 0x40
_flatten = chain.from_iterable


def table_at(items: bytes | memoryview, head_bytes: int, start: int = 0) -> int:
    """Return where the headers begin, with their length, in the item at `start`: every message has at least
    one header, its offset.
    """
    at = start + 1 + head_bytes + _FLAGS_AT
    flags = items[at]
    at += 2
    if flags & _CONTENT_TYPE:
        at += 1 + items[at]
    if flags & _CONTENT_ENCODING:
        at += 1 + items[at]
    return at - start


def longer(opening: bytes, more: int) -> bytes:
    """Return the bytes of an item between its routing and its first header, with the lengths of frame and
    table increased by `more`.
    """
    frame = int.from_bytes(opening[4:8], "big") + more
    table = int.from_bytes(opening[-4:], "big") + more
    return b"".join((opening[:4], frame.to_bytes(4, "big"), opening[8:-4], table.to_bytes(4, "big")))


def is_alike(items: bytes | memoryview, start: int, shape: Shape, low: int, part: bytes) -> bool:
    """Return whether all messages of a shape, the first of them at `start`, have the same bytes `part` at
    `low`.
    """
    count = shape.count
    if count == 1:
        return True
    rest = shape.size - low - len(part)
    parts = cut_out(items, start, count, shape.size, f"{low}x{len(part)}s{rest}x")
    return parts.count(part) == count


def cut_out(
    items: bytes | memoryview, at: int, count: int, size: int, what: str, parts: int = 1
) -> list[bytes]:
    """Return the parts that this struct format cuts out of each of `count` items, the first of them at `at`;
    `parts` of each. The loop runs in C.

    A run is cut in pieces of 256: struct caches formats, but not one for each length. The last piece may
    overlap the one before.
    """
    if count < 256:
        return list(_flatten(struct.iter_unpack(what, memoryview(items)[at : at + count * size])))
    by_256 = what * 256
    found: list[bytes] = []
    for number in range(0, count - 255, 256):
        found += struct.unpack_from(by_256, items, at + number * size)
    if left := count & 255:
        found += struct.unpack_from(by_256, items, at + (count - 256) * size)[(256 - left) * parts :]
    return found


__all__ = ["cut_out", "is_alike", "longer", "table_at"]
