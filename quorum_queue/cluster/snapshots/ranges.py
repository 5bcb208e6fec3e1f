"""Indexes of very many entries, as ranges in order."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable


def joined(ranges: Iterable[range]) -> list[range]:
    """Return ranges in order, with neighbours and overlapping ones joined."""
    found: list[range] = []
    for each in sorted(ranges, key=_start):
        if found and each.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, each.stop))
        else:
            found.append(each)
    return found


def without(whole: range, gone: list[range]) -> list[range]:
    """Return the parts of a range that are in none of these ranges, which are in order."""
    left: list[range] = []
    at = whole.start
    for each in gone:
        if each.stop <= at:
            continue
        if each.start >= whole.stop:
            break
        if each.start > at:
            left.append(range(at, each.start))
        at = each.stop
    if at < whole.stop:
        left.append(range(at, whole.stop))
    return left


def parted(ranges: list[range], which: list[range]) -> tuple[list[range], list[range]]:
    """Return what of these ranges lies outside of the others, which are in order, and what within."""
    outside: list[range] = []
    within: list[range] = []
    for each in ranges:
        left = without(each, which)
        outside += left
        within += without(each, left)
    return outside, within


def taken(ranges: deque[range], most: int) -> list[int]:
    """Take the first numbers, at most so many."""
    found: list[int] = []
    while ranges and len(found) < most:
        first = ranges.popleft()
        count = most - len(found)
        if len(first) > count:
            ranges.appendleft(first[count:])
            first = first[:count]
        found += first
    return found


def holds(ranges: list[range], number: int) -> bool:
    """Return whether one of these ranges, which are in order, has this number."""
    at = bisect_right(ranges, number, key=_start) - 1
    return at >= 0 and number < ranges[at].stop


def _start(each: range) -> int:
    return each.start


__all__ = ["holds", "joined", "parted", "taken", "without"]
