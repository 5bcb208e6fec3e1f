"""Counts unfinished publishes of a connection: contents without their last frame, and transactions."""

from __future__ import annotations


class Unfinished:
    """Unfinished bytes of one connection: they cannot leave memory."""

    __slots__ = ("bytes", "finished")

    def __init__(self) -> None:
        self.bytes = 0
        #: Number of contents that were completed, and of transactions that were committed.
        self.finished = 0


__all__ = ["Unfinished"]
