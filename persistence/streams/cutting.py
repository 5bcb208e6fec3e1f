"""Cuts whole batches at the boundaries of other batches.

Each member of a group compresses and compacts for itself. So the batches of another member with some offsets
may begin before the first wanted offset, and end after the last one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from persistence.streams import batch as batches
from persistence.streams.batch import ALIKE, DENSE, KEYED, Batch, Head


def within(data: bytes, heads: Sequence[tuple[int, Head]], low: int, stop: int) -> bytes:
    """Return the messages of whole neighbouring batches from one offset up to another. Raises Damaged."""
    if heads[0][1].base >= low and heads[-1][1].stop <= stop:
        return data
    parts: list[bytes] = []
    for at, head in heads:
        if head.stop <= low or head.base >= stop:
            continue
        if head.base >= low and head.stop <= stop:
            parts.append(data[at : at + head.size])
        else:
            parts += _cut(batches.decode(head, data, at), head, max(low, head.base), min(stop, head.stop))
    return b"".join(parts)


def _cut(batch: Batch, head: Head, low: int, stop: int) -> list[bytes]:
    """Return the parts of a new batch that stands for these offsets."""
    offsets: Sequence[int] = range(batch.count) if batch.offsets is None else batch.offsets
    first, end = bisect_left(offsets, low - batch.base), bisect_left(offsets, stop - batch.base)
    items = memoryview(batch.items)
    shapes: list[batches.Shape] = []
    pieces: list[bytes] = []
    number = at = 0
    for shape in batch.shapes:
        start, until = max(first - number, 0), min(end - number, shape.count)
        if start < until:
            shapes.append(shape._replace(count=until - start))
            pieces.append(bytes(items[at + start * shape.size : at + until * shape.size]))
        number += shape.count
        at += shape.count * shape.size
    return batches.encode(
        low,
        batch.time_ms,
        shapes,
        b"".join(pieces),
        batch.values,
        list(batch.filters[first:end]),
        flags=head.flags & (DENSE | ALIKE | KEYED),
        span=stop - low,
        offsets=[each + batch.base - low for each in offsets[first:end]],
    )


__all__ = ["within"]
