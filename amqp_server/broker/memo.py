"""Counts the bytes of the memos of frames, over all connections of the node.

Each memo has a maximum number of entries, but with thousands of connections, or with long keys and headers,
this is not enough. When all memos together reach the limit, or memory is low, all of them are cleared;
filling them again takes microseconds a frame.
"""

from __future__ import annotations

from collections.abc import Callable


class MemoBudget:
    """The node has one."""

    def __init__(self, bytes_max: int, forget: Callable[[], None]) -> None:
        """`forget` clears the memos of all connections."""
        self._bytes_max = bytes_max
        self._forget = forget
        self.used = 0

    def add(self, size: int) -> None:
        self.used += size
        if self.used > self._bytes_max:
            self._forget()

    def clear(self, size: int) -> None:
        self.used -= size


class Memo:
    """The bytes of one collection of a connection: an estimate that ignores
    the overhead of Python's objects.
    """

    __slots__ = ("_budget", "size")

    def __init__(self, budget: MemoBudget) -> None:
        self._budget = budget
        self.size = 0

    def add(self, size: int) -> None:
        """Count added bytes; a negative size is for removed ones. May clear the collection: call it last."""
        size = max(size, -self.size)
        self.size += size
        self._budget.add(size)

    def clear(self) -> None:
        """The collection was cleared."""
        self._budget.clear(self.size)
        self.size = 0
