"""A client's socket, without TLS. It never waits: the poller knows when it is ready."""

from __future__ import annotations

import socket
from typing import Protocol

#: Chunks given to the kernel at once (IOV_MAX is 1,024).
GATHER_MAX = 512
#: Chunks from this size on are not copied together first.
GATHER_BYTES_MIN = 8192
#: A chunk from this size on is never copied together: a slow socket that takes a little each time would have
#: it copied again and again.
LARGE_BYTES = 64 * 1024


class Wire(Protocol):
    """What the edge of a connection needs of a socket. See also quorum_queue.links.wire.TlsWire."""

    @property
    def pending_bytes(self) -> int:
        """Bytes taken by `send` and not yet by the socket."""

    @property
    def more(self) -> bool:
        """True if `receive` may return something though the socket is not readable."""

    def fileno(self) -> int: ...

    def receive(self, buffers: list[memoryview]) -> int | None:
        """Fill the buffers in order with received bytes; return their count, 0 at the end, None if there were none."""

    def send(self, chunks: list[bytes | memoryview]) -> int:
        """Return how many bytes of the chunks were taken: all, some, or none."""

    def push(self) -> None:
        """Move bytes that `send` has taken before to the socket."""

    def close(self) -> None: ...


class ClientWire:
    """Deliveries are many small chunks, for which copying is cheaper than gathering."""

    __slots__ = ("_socket",)

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @property
    def pending_bytes(self) -> int:
        return 0

    @property
    def more(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self, buffers: list[memoryview]) -> int | None:
        try:
            if len(buffers) == 1:
                return self._socket.recv_into(buffers[0])
            return self._socket.recvmsg_into(buffers)[0]
        except (BlockingIOError, InterruptedError):
            return None

    def receive_new(self, most: int) -> bytes | None:
        """Return received bytes in a new object that may be kept: empty at the end, None if there are none
        yet.
        """
        try:
            return self._socket.recv(most)
        except (BlockingIOError, InterruptedError):
            return None

    def send(self, chunks: list[bytes | memoryview]) -> int:
        few = chunks if len(chunks) <= GATHER_MAX else chunks[:GATHER_MAX]
        try:
            if len(few) == 1:
                return self._socket.send(few[0])
            if len(few[0]) + len(few[1]) < GATHER_BYTES_MIN and (
                len(few) == 2 or max(map(len, few)) < LARGE_BYTES
            ):
                return self._socket.send(b"".join(few))
            return self._socket.sendmsg(few)
        except (BlockingIOError, InterruptedError):
            return 0

    def push(self) -> None: ...

    def close(self) -> None:
        self._socket.close()
