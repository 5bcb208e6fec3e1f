"""Bodies that carry their number and can be checked to the last byte."""

from __future__ import annotations

import random
import struct

_HEAD = struct.Struct(">QI")
HEAD_BYTES = _HEAD.size
SIZE_MAX = 98_304
_SPAN = 32_768
_NOISE = random.Random(20_091).randbytes(SIZE_MAX + _SPAN)


def body(seq: int, size: int) -> bytes:
    assert size <= SIZE_MAX, f"bodies have {SIZE_MAX} bytes at most"
    start = seq * 61 % _SPAN
    return _HEAD.pack(seq, size) + _NOISE[start : start + size - HEAD_BYTES]


def number(received: bytes) -> int:
    """Return the number of a body, after checking every byte of it."""
    seq, size = _HEAD.unpack_from(received)
    assert len(received) == size, f"message {seq} has {len(received)} bytes, it had {size}"
    start = seq * 61 % _SPAN
    assert received[HEAD_BYTES:] == _NOISE[start : start + size - HEAD_BYTES], f"message {seq} was changed"
    return int(seq)
