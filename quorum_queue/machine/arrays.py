"""Arrays of numbers as bytes, little-endian on every machine."""

from __future__ import annotations

import sys
from array import array

_SWAPS = sys.byteorder == "big"


def packed(numbers: array[int]) -> bytes:
    """Return the numbers as bytes."""
    if _SWAPS:
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def unpacked(typecode: str, data: bytes | memoryview) -> array[int]:
    """Return the numbers in these bytes. Raises ValueError if they are not a whole number of elements."""
    # Of bytes, in one call.
    numbers: array[int] = array(typecode, data if isinstance(data, bytes) else bytes(data))
    if _SWAPS:
        numbers.byteswap()
    return numbers
