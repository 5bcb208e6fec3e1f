"""Bytes that wait to be sent on one connection. All parts of the broker fill it, the transport empties it."""

from __future__ import annotations

from collections.abc import Callable

from amqp_server.turn import Sender, Turn
from quorum_queue.unsent_bytes import Unsent


class _Nobody:
    """Sends nothing: the client is gone."""

    def flush(self) -> None: ...


_NOBODY = _Nobody()


class Outbox:
    """Chunks in order. The first chunk schedules a flush in the turn."""

    __slots__ = (
        "_beats",
        "_chunks",
        "_sender",
        "_turn",
        "_unsent",
        "_withheld",
        "high_bytes",
        "sent_bytes",
        "sent_count",
        "size",
    )

    def __init__(self, turn: Turn, sender: Sender, high_bytes: int, unsent: Unsent | None = None) -> None:
        self._turn = turn
        #: Unsent bytes of all connections together.
        self._unsent = unsent or Unsent()
        self._sender: Sender = sender
        self._chunks: list[bytes | memoryview] = []
        #: Number of answers that wait for the disk.
        self._withheld = 0
        #: Heartbeats, which are sent before those answers.
        self._beats: list[bytes | memoryview] = []
        self.size = 0
        self.sent_bytes = 0
        #: Number of times that the socket took bytes.
        self.sent_count = 0
        #: Above this size the connection's consumers are paused.
        self.high_bytes = high_bytes

    def put(self, data: bytes | memoryview) -> None:
        """Add bytes behind the others."""
        if not self._chunks:
            self._turn.send(self._sender)
        self._chunks.append(data)
        self.size += len(data)
        self._unsent.add(len(data))

    def beat(self, frame: bytes) -> None:
        """Add a heartbeat. It does not wait for answers: the disk may be full for a long time."""
        if not self._withheld:
            self.put(frame)
        elif not self._beats:
            self._beats.append(frame)
            self.size += len(frame)
            self._unsent.add(len(frame))
            self._turn.send(self._sender)

    def withhold(self) -> Callable[[], None]:
        """Send nothing until the returned function is called: an answer waits for the disk."""
        self._withheld += 1

        def release() -> None:
            self._withheld -= 1
            if not self._withheld and self._chunks:
                self._turn.send(self._sender)

        return release

    def take(self) -> list[bytes | memoryview]:
        """Remove and return all chunks that may be sent now."""
        if self._withheld:
            chunks, self._beats = self._beats, []
            return chunks
        if not self._chunks:
            return []
        chunks, self._chunks = self._chunks, []
        return chunks

    def sent(self, count: int) -> None:
        """`count` bytes were sent."""
        self.size -= count
        self._unsent.take(count)
        self.sent_bytes += count
        self.sent_count += 1

    def close(self) -> None:
        """The client is gone: drop the waiting bytes."""
        self._unsent.take(self.size)
        self._unsent = Unsent()
        self._sender = _NOBODY
        self._chunks = []
        self._beats = []


class UnheldOutbox(Outbox):
    """For a reader within the process that reads answers at once, and waits for the disk itself. The class is
    in this file because an interpreted class cannot inherit from a compiled one.
    """

    __slots__ = ()

    def withhold(self) -> Callable[[], None]:
        return lambda: None
