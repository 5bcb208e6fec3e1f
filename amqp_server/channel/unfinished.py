"""What a connection has begun to publish and not finished: contents whose last frame has not come, and transactions."""

from __future__ import annotations


class Unfinished:
    """Of one connection. Nothing of it can leave memory before it is finished."""

    __slots__ = ("bytes", "finished")

    def __init__(self) -> None:
        self.bytes = 0
        #: Contents that have become whole, and transactions that were committed.
        self.finished = 0


__all__ = ["Unfinished"]
