"""Where things are in a message as it stands in a stream; see encode.py."""

from __future__ import annotations

from typing import Final

#: From the end of the routing on: the end of the method frame, the head of the header frame, and in its payload class, weight
#: and size of the body. Then come the property flags.
_FLAGS_AT: Final = 1 + 7 + 12
_CONTENT_TYPE: Final = 0x8000
_CONTENT_ENCODING: Final = 0x4000


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


def begins_alike(items: bytes, start: int, count: int, size: int, front: bytes) -> bool:
    """Return whether all of these neighbours begin like this. C goes through them, by columns."""
    if count == 1:
        return True
    stop = start + count * size
    columns = [items[at:stop:size] for at in range(start, start + len(front))]
    return all(column.count(value) == count for column, value in zip(columns, front, strict=True))


__all__ = ["begins_alike", "longer", "table_at"]
