"""Settled messages: disjoint ranges in memory, one bit per message of a record on disk.

A record of 500 messages costs 63 bytes of mask, in whatever order its messages are acked, and a union is one
`|`.
"""

from bisect import bisect_right
from collections.abc import Iterator


def merge(starts: list[int], stops: list[int]) -> tuple[list[int], list[int]]:
    """Sort the intervals [start, stop) and join those that touch."""
    if len(starts) < 2:
        return starts, stops
    merged_starts: list[int] = []
    merged_stops: list[int] = []
    last = -1
    for start, stop in sorted(zip(starts, stops, strict=True)):
        if start <= last:
            if stop > last:
                merged_stops[-1] = last = stop
        else:
            merged_starts.append(start)
            merged_stops.append(stop)
            last = stop
    return merged_starts, merged_stops


def contains(starts: list[int], stops: list[int], seq: int) -> bool:
    """True if `seq` is in one of the merged intervals."""
    at = bisect_right(starts, seq) - 1
    return at >= 0 and seq < stops[at]


def outside(starts: list[int], stops: list[int], spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The merged intervals without the spans, which are sorted and disjoint."""
    at = 0
    for start, stop in zip(starts, stops, strict=True):
        while at < len(spans) and spans[at][1] <= start:
            at += 1
        beyond = at
        while beyond < len(spans) and spans[beyond][0] < stop:
            if spans[beyond][0] > start:
                yield start, spans[beyond][0]
            start = spans[beyond][1]
            beyond += 1
        at = max(at, beyond - 1)
        if start < stop:
            yield start, stop


def between(start: int, stop: int, starts: list[int], stops: list[int]) -> Iterator[tuple[int, int]]:
    """The parts of [start, stop) outside of the merged intervals."""
    at = max(bisect_right(starts, start) - 1, 0)
    while at < len(starts) and starts[at] < stop:
        if stops[at] > start:
            if starts[at] > start:
                yield start, starts[at]
            start = stops[at]
        at += 1
    if start < stop:
        yield start, stop


def mask(first_seq: int, count: int, start: int, stop: int) -> int:
    """The bits of [start, stop) in a record of `count` messages from first_seq on."""
    low = max(start - first_seq, 0)
    high = min(stop - first_seq, count)
    return ((1 << (high - low)) - 1) << low if high > low else 0


def mask_of(first_seq: int, count: int, starts: list[int], stops: list[int]) -> int:
    """The bits of all merged intervals in a record."""
    bits = 0
    at = max(bisect_right(starts, first_seq) - 1, 0)
    end = first_seq + count
    while at < len(starts) and starts[at] < end:
        bits |= mask(first_seq, count, starts[at], stops[at])
        at += 1
    return bits


def whole(count: int) -> int:
    return (1 << count) - 1


def ranges(first_seq: int, bits: int) -> list[range]:
    """The runs of set bits as ranges of sequence numbers."""
    found = []
    digits = bin(bits)[:1:-1]
    start = digits.find("1")
    while start >= 0:
        stop = digits.find("0", start)
        if stop < 0:
            stop = len(digits)
        found.append(range(first_seq + start, first_seq + stop))
        start = digits.find("1", stop)
    return found
