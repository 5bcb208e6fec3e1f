"""A client's socket, without TLS. It never waits: the poller notices when the socket is ready."""

from __future__ import annotations

from quorum_queue.links.plain_wire import PlainWire

#: Chunks given to the kernel at once (IOV_MAX is 1,024).
GATHER_MAX = 512
#: Chunks of at least this size are not joined by copying first.
GATHER_BYTES_MIN = 8192
#: Chunks of at least this size are never joined by copying: with a slow socket that takes a little each time,
#: they would be copied again and again.
LARGE_BYTES = 64 * 1024


class ClientWire(PlainWire):
    """A client's socket. Deliveries are many small chunks, for which copying is cheaper than gathering."""

    __slots__ = ()

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
