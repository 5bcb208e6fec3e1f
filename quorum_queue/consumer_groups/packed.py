"""Long lists in msgpack, some rows at a time: msgspec encodes and decodes an object only as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from quorum_queue.consumer_groups.entries import CodecError

#: Rows that are encoded or decoded at once.
ROWS_MAX: Final = 256
#: Bytes of objects of a fixed size, by their first byte: nil, booleans, floats and integers.
_FIXED: Final = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 1),
    **dict.fromkeys((0xCC, 0xD0), 2),
    **dict.fromkeys((0xCD, 0xD1), 3),
    **dict.fromkeys((0xCA, 0xCE, 0xD2), 5),
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 9),
}
#: Bytes of the length before bytes and texts.
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_encode = msgspec.msgpack.Encoder().encode


def head(count: int) -> bytes:
    """Return what stands before the elements of an array."""
    if count < 1 << 4:
        return bytes([0x90 | count])
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def elements(row: Sequence[Any]) -> bytes:
    """Encode the elements of an array without its head."""
    data = _encode(row)
    return data[len(head(len(row))) :]


class Unpacker:
    """Reads an object from its beginning on. All calls raise CodecError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def array(self, least: int = 0, most: int | None = None) -> int:
        """Go into an array, which has `least` elements, or up to `most`; return how many."""
        count = self._array()
        if least and not least <= count <= (least if most is None else most):
            raise CodecError(f"an array has {count} elements")
        return count

    def end(self) -> None:
        """Nothing may follow."""
        if self._at != len(self._data):
            raise CodecError("something follows")

    def _array(self) -> int:
        data, at = self._data, self._at
        first = data[at] if at < len(data) else 0
        if 0x90 <= first < 0xA0:
            self._at = at + 1
            return first & 0x0F
        size = {0xDC: 2, 0xDD: 4}.get(first, 0)
        if not size:
            raise CodecError("an array was expected")
        self._at = at + 1 + size
        return int.from_bytes(data[at + 1 : at + 1 + size], "big")

    def skip(self, count: int) -> None:
        """Go behind so many objects."""
        data, at, end = self._data, self._at, len(self._data)
        left = count
        while left:
            if at >= end:
                raise CodecError("it ends too early")
            left -= 1
            first = data[at]
            at += 1
            if first < 0x80 or first >= 0xE0:
                continue
            if first < 0x90:
                left += 2 * (first & 0x0F)
            elif first < 0xA0:
                left += first & 0x0F
            elif first < 0xC0:
                at += first & 0x1F
            elif first in _FIXED:
                at += _FIXED[first] - 1
            elif first in _SIZED:
                size = _SIZED[first]
                at += size + int.from_bytes(data[at : at + size], "big")
            elif first in (0xDC, 0xDD):
                self._at = at - 1
                left += self._array()
                at = self._at
            else:
                raise CodecError(f"no object begins with {first:#x}")
        self._at = at

    def take(self, count: int) -> bytes:
        """Return the next objects as an array."""
        start = self._at
        self.skip(count)
        return head(count) + self._data[start : self._at]

    def rows(self) -> Iterator[bytes]:
        """Return the elements of an array as arrays of some of them."""
        left = self._array()
        while left:
            most = min(left, ROWS_MAX)
            left -= most
            yield self.take(most)


__all__ = ["ROWS_MAX", "Unpacker", "elements", "head"]
