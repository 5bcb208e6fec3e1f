"""A TCP socket without TLS, read and sent without waiting."""

from __future__ import annotations

import socket
from typing import Final

#: Chunks that make no more than this are joined: cheaper than giving the kernel the pieces.
JOIN_BYTES_MAX: Final = 16 * 1024


class PlainWire:
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

    def send(self, chunks: list[bytes | memoryview]) -> int:
        try:
            if len(chunks) == 1:
                return self._socket.send(chunks[0])
            if sum(map(len, chunks)) <= JOIN_BYTES_MAX:
                return self._socket.send(b"".join(chunks))
            return self._socket.sendmsg(chunks)
        except (BlockingIOError, InterruptedError):
            return 0

    def push(self) -> None: ...

    def close(self) -> None:
        self._socket.close()
