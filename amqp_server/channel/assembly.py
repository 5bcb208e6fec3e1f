"""Puts a message together whose frames arrive one by one."""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING

from amqp_server.wire.frames import OVERHEAD
from amqp_server.wire.intake import PublishRoute

if TYPE_CHECKING:
    from exchanges.router import Walk

#: Memory is freed each time this many bytes of a message have arrived, and not for each frame: a relief looks
#: at all queues.
RELIEF_BYTES = 1 << 20
#: Larger bodies are assembled while they arrive, as soon as this share (1/n) of the body has arrived.
LARGE_BODY_BYTES, ROOM_SHARE = 1 << 20, 8
#: The room for a body is enough for frames with this payload, which is that of the smallest frame_max.
SMALL_PIECE_BYTES = 4096 - OVERHEAD
#: Bodies in more frames than this are assembled while they arrive, too: each frame is a separate object.
PIECES_MAX = 1024


class Assembly:
    """A message whose frames are still arriving. The bytes so far count in the node's memory budget.

    The frames of a large body are joined as they arrive: joining 128 MiB at the end would be a step of about
    100 ms.
    """

    __slots__ = (
        "_bytes",
        "_growing",
        "_memory",
        "_room_bytes",
        "_unfinished",
        "body_size",
        "checked",
        "framed",
        "framed_bytes",
        "generation",
        "header",
        "oversized",
        "received",
        "route",
        "walk",
        "walked_at",
    )

    def __init__(self, route: PublishRoute) -> None:
        self.route = route
        #: Topology generation at the time of routing; the message may be complete much later.
        self.generation: int = route.publisher.broker.generation
        self.header: bytes | None = None
        #: The content frames as received, large ones in pieces.
        self.framed: list[bytes | memoryview] = []
        #: The frames of a large body so far, in one buffer.
        self._growing: BytesIO | None = None
        #: Size of all frames of a large body, if the frames are not very small.
        self._room_bytes = 0
        #: True if some frame is larger than frame_max.
        self.oversized = False
        #: Number of keys in CC and BCC that the client is known to be permitted to use.
        self.checked = 0
        self.body_size = 0
        self.received = 0
        #: Bytes of all frames so far.
        self.framed_bytes = 0
        #: The walk that finds the message's route, if it is looked for, and the topology's generation at the
        #: walk's beginning.
        self.walk: Walk | None = None
        self.walked_at = 0
        self._memory = route.publisher.broker.services.memory
        self._unfinished = route.publisher.connection.incoming.unfinished
        self._bytes = 0

    def begin(self, header: bytes, body_size: int) -> None:
        """The content header has arrived; its frame is added next."""
        self.header = header
        self.body_size = body_size
        if body_size > LARGE_BODY_BYTES:
            # With smaller frames the room is too small, and grows.
            frames = -(-body_size // SMALL_PIECE_BYTES)
            self._room_bytes = len(header) + OVERHEAD + body_size + frames * OVERHEAD

    def add(self, framed: bytes | memoryview) -> None:
        """Add a frame, or a piece of a large one. Bodies of queues are paged out to make room."""
        memory, size = self._memory, len(framed)
        if self._growing is not None:
            self._growing.write(framed)
        else:
            self.framed.append(framed)
            if self._room_bytes and self._bytes + size >= self._room_bytes // ROOM_SHARE:
                self._make_room(self._room_bytes)
            elif len(self.framed) >= PIECES_MAX:
                self._make_room(0)
        before = self._bytes // RELIEF_BYTES
        self._bytes += size
        self.framed_bytes += size
        self._unfinished.bytes += size
        memory.used += size
        if memory.used > memory.budget_bytes and self._bytes // RELIEF_BYTES > before:
            memory.relieve()

    def _make_room(self, room_bytes: int) -> None:
        """Make room for this many bytes. Pages that were never written take no memory; and a client that
        announces a large body and sends little gets no room.
        """
        with suppress(MemoryError):
            growing = BytesIO(bytes(room_bytes))
            for framed in self.framed:
                growing.write(framed)
            self._growing, self.framed = growing, []
        self._room_bytes = 0

    def whole(self) -> bytes:
        """Return all frames of the complete message."""
        if self._growing is not None:
            growing, self._growing = self._growing, None
            growing.truncate()
            # This copies nothing, because there is no other reference to the buffer.
            self.framed = [growing.getvalue()]
        return b"".join(self.framed)

    def release(self) -> None:
        """Stop counting the bytes: the message is complete and its queues count it from now on, or it will
        never be complete.
        """
        self._memory.used -= self._bytes
        self._unfinished.bytes -= self._bytes
        self._bytes = 0


__all__ = ["LARGE_BODY_BYTES", "Assembly"]
