"""What waits to be sent on one connection. Filled by any part of the broker, emptied by the connection's transport."""

from __future__ import annotations

from collections.abc import Callable


class Outbox:
    """Chunks in order. The first chunk of a turn puts the outbox on the list of those to flush."""

    __slots__ = ("_chunks", "_dirty", "_held", "high_bytes", "size")

    def __init__(self, dirty: dict[Outbox, None], high_bytes: int) -> None:
        self._dirty = dirty
        self._chunks: list[bytes | memoryview] = []
        self._held = 0
        self.size = 0
        #: Above this size its consumers get no more.
        self.high_bytes = high_bytes

    def put(self, data: bytes) -> None:
        """Add bytes behind the others."""
        if not self._chunks:
            self._dirty[self] = None
        self._chunks.append(data)
        self.size += len(data)

    def hold(self) -> Callable[[], None]:
        """Send nothing until the returned function is called: an answer waits for the disk."""
        self._held += 1

        def release() -> None:
            self._held -= 1
            if not self._held and self._chunks:
                self._dirty[self] = None

        return release

    def take(self) -> list[bytes | memoryview]:
        """Remove and return all that may be sent now, in chunks."""
        if self._held or not self._chunks:
            return []
        chunks, self._chunks = self._chunks, []
        return chunks

    def sent(self, count: int) -> None:
        """`count` bytes have left."""
        self.size -= count
