"""Columns of numbers in a snapshot, as small as they are simple.

A column is one number if all are equal, [first, step] if they rise evenly, or bytes: a letter for the size of
the numbers, the number that they count from, and the numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from quorum_queue.machine.arrays import packed, unpacked

Column = int | list[int] | bytes
#: Letters by the bytes of a number.
_LIMITS = (("B", 1 << 8), ("H", 1 << 16), ("I", 1 << 32))


def column(numbers: Sequence[int]) -> Column:
    """Return numbers, at least one, as a column."""
    count, first = len(numbers), numbers[0]
    least, most = min(numbers), max(numbers)
    if least == most:
        return first
    if count > 2:
        step = numbers[1] - first
        if numbers[-1] == first + step * (count - 1) and step and _is_even(numbers, first, step):
            return [first, step]
    for code, limit in _LIMITS:
        if least >= 0 and most < limit:
            return code.encode() + bytes(8) + packed(array(code, numbers))
        if most - least < limit:
            base = least.to_bytes(8, "big", signed=True)
            return code.encode() + base + packed(array(code, [number - least for number in numbers]))
    return b"q" + bytes(8) + packed(array("q", numbers))


def _is_even(numbers: Sequence[int], first: int, step: int) -> bool:
    return all(number == first + step * at for at, number in enumerate(numbers))


def numbers_of(column: Column, count: int, code: str) -> array[int]:
    """Return the numbers of a column, in an array with this code. Raises ValueError, OverflowError."""
    if isinstance(column, int):
        return array(code, (column,)) * count
    if isinstance(column, list):
        first, step = column
        if not step:
            raise ValueError("a column that should rise does not")
        return array(code, range(first, first + step * count, step))
    used = column[:1].decode("ascii")
    if used not in ("B", "H", "I", "q") or len(column) < 9:
        raise ValueError("a column of an unknown kind")
    base = int.from_bytes(column[1:9], "big", signed=True)
    numbers = unpacked(used, column[9:])
    if len(numbers) != count:
        raise ValueError(f"a column of {len(numbers)} numbers, not {count}")
    if base:
        return array(code, [number + base for number in numbers])
    return numbers if used == code else array(code, numbers)


__all__ = ["Column", "column", "numbers_of"]
