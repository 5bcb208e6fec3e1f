"""How large the messages are that clients publish: a histogram since the start of the node.

channel.publish counts them, a batch at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

#: RabbitMQ's upper bounds of the buckets, bytes of the body; the last bucket has no bound.
BOUNDS: Final = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)


class MessageSizes:
    """Messages by their size."""

    __slots__ = ("by_bound", "bytes")

    def __init__(self) -> None:
        self.by_bound = [0] * (len(BOUNDS) + 1)
        #: The sum of all sizes.
        self.bytes = 0

    def note_each(self, sizes: list[int]) -> None:
        self.bytes += sum(sizes)
        for size in sizes:
            self.by_bound[bisect_left(BOUNDS, size)] += 1


__all__ = ["BOUNDS", "MessageSizes"]
