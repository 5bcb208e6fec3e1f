"""The checksum of two neighbouring parts, computed from their two checksums. Pure.

CRC-32 is the remainder of a division of polynomials over GF(2). Appending n zero bits to a message multiplies
its remainder by x^n, which takes a few steps for each bit of n; so the bytes of the parts are not read again.
"""

from __future__ import annotations

from typing import Final

#: The divisor without its highest power; the lowest power is the highest bit.
_DIVISOR: Final = 0xEDB88320
#: x^0
_ONE: Final = 1 << 31


def joined(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32 of two parts with these checksums; the second part has so many bytes."""
    return _product(_power(8 * second_bytes), first) ^ second


def _product(left: int, right: int) -> int:
    found, bit = 0, _ONE
    while left:
        if left & bit:
            found ^= right
            left ^= bit
        bit >>= 1
        right = right >> 1 ^ _DIVISOR if right & 1 else right >> 1
    return found


def _power(exponent: int) -> int:
    """Return x to this power."""
    found, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            found = _product(square, found)
        square = _product(square, square)
        exponent >>= 1
    return found


__all__ = ["joined"]
