"""The memory that requests and answers of the management API hold, counted for all of them together.

Slots bound the number of requests, but a body may have 20 MiB, and an answer with messages twice as much. A
client that takes its answer slowly holds it for long.
"""

from __future__ import annotations

from types import TracebackType

from amqp_server.management.request.answer import Refusal

#: One of this many parts of the memory is left to administrators.
ADMINISTRATORS_SHARE = 8
#: A request of one user may hold this much, whatever the user's other requests hold, bytes.
LITTLE_BYTES = 1 << 20


class Memory:
    """What requests and answers hold."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.by_user: dict[str, int] = {}

    def hold(self, user: str, *, administrator: bool) -> Held:
        """Return the part of one request; use it as a context manager."""
        return Held(self, user, administrator=administrator)


class Held:
    """What one request, and its answer, hold."""

    def __init__(self, memory: Memory, user: str, *, administrator: bool) -> None:
        self._memory = memory
        self._user = user
        share = memory.bytes_max // ADMINISTRATORS_SHARE
        self._bytes_max = memory.bytes_max - (0 if administrator else share)
        self.bytes = 0

    def has_room(self, size: int) -> bool:
        """True if this request may hold so many bytes more. Even the largest one may be alone."""
        memory = self._memory
        if memory.bytes == self.bytes:
            return True
        if memory.bytes + size > self._bytes_max:
            return False
        own = memory.by_user.get(self._user, 0)
        return own == self.bytes or self.bytes + size <= LITTLE_BYTES or own + size <= memory.bytes_max // 2

    def add(self, size: int) -> None:
        """Hold so many bytes more. Raises Refusal if there is no room for them."""
        if not self.has_room(size):
            raise Refusal(503, "busy", "requests and answers use too much memory (http_memory_bytes_max)")
        self._change(size)

    def give(self, size: int) -> None:
        self._change(-min(size, self.bytes))

    def _change(self, size: int) -> None:
        memory, user = self._memory, self._user
        self.bytes += size
        memory.bytes += size
        own = memory.by_user.get(user, 0) + size
        if own:
            memory.by_user[user] = own
        else:
            memory.by_user.pop(user, None)

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.give(self.bytes)


__all__ = ["Held", "Memory"]
