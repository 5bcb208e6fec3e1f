"""What connections remember of frames they have seen, counted in bytes over all connections of the node.

Each of them is bounded in entries; with thousands of connections, or keys and headers as long as they may be, that
says little. When all together reach the limit, or memory is low, all forget everything: they learn it again within
microseconds a frame.
"""

from __future__ import annotations

from collections.abc import Callable


class MemoBudget:
    """The node has one."""

    def __init__(self, bytes_max: int, forget: Callable[[], None]) -> None:
        """`forget` has all connections clear what they remember."""
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
    """The bytes of one collection of a connection. An estimate: objects of Python's have a size of their own."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: MemoBudget) -> None:
        self._budget = budget
        self.size = 0

    def add(self, size: int) -> None:
        """Something was remembered, or forgotten if less than 0. May clear the collection, so that this comes last."""
        size = max(size, -self.size)
        self.size += size
        self._budget.add(size)

    def clear(self) -> None:
        """All was forgotten."""
        self._budget.clear(self.size)
        self.size = 0
