"""Where things are in a message as it stands in a stream; see encode.py."""

from __future__ import annotations

import struct
from itertools import chain
from typing import Final

from persistence.streams.batch import Shape

#: From the end of the routing on: the end of the method frame, the head of the header frame, and in its payload class, weight
#: and size of the body. Then come the property flags.
_FLAGS_AT: Final = 1 + 7 + 12
_CONTENT_TYPE: Final = 0x8000
_CONTENT_ENCODING: Final = 0x4000
_flatten = chain.from_iterable


def table_at(item: memoryview, head_bytes: int) -> int:
    """Return where the headers begin, with their length: every message has some, its offset at least."""
    at = 1 + head_bytes + _FLAGS_AT
    flags = int.from_bytes(item[at : at + 2], "big")
    at += 2
    for flag in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if flags & flag:
            at += 1 + item[at]
    return at


def longer(front: bytes, head_bytes: int, more: int) -> bytes:
    """Return what an item has up to its first header, with the lengths of frame and table that they have with so much more."""
    size_at = head_bytes + 5
    frame = int.from_bytes(front[size_at : size_at + 4], "big") + more
    table = int.from_bytes(front[-4:], "big") + more
    return b"".join(
        (front[:size_at], frame.to_bytes(4, "big"), front[size_at + 4 : -4], table.to_bytes(4, "big"))
    )


def begins_alike(items: bytes | memoryview, start: int, shape: Shape, front: bytes) -> bool:
    """Return whether all messages of a shape, the first of them at `start`, begin like this."""
    count = shape.count
    if count == 1:
        return True
    fronts = cut_out(items, start, count, shape.size, f"{len(front)}s{shape.size - len(front)}x")
    return fronts.count(front) == count


def cut_out(items: bytes | memoryview, at: int, count: int, size: int, what: str) -> list[bytes]:
    """Return what this format of struct says of each of so many items, the first of them at `at`. C goes through them.

    A run is cut by 256: struct remembers formats, but not one for each length. The last 256 may have some of those before.
    """
    if count < 256:
        return list(_flatten(struct.iter_unpack(what, memoryview(items)[at : at + count * size])))
    by_256 = what * 256
    found: list[bytes] = []
    for number in range(0, count - 255, 256):
        found += struct.unpack_from(by_256, items, at + number * size)
    if left := count & 255:
        found += struct.unpack_from(by_256, items, at + (count - 256) * size)[256 - left :]
    return found


__all__ = ["begins_alike", "cut_out", "longer", "table_at"]
