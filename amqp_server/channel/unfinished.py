"""Counts what a connection has begun to publish and not finished: contents whose last frame has not come, and
transactions.
"""

from __future__ import annotations


class Unfinished:
    """Unfinished bytes of one connection: they cannot leave memory."""

    __slots__ = ("bytes", "finished")

    def __init__(self) -> None:
        self.bytes = 0
        #: Number of contents that were completed, and of transactions that were committed.
        self.finished = 0


__all__ = ["Unfinished"]
