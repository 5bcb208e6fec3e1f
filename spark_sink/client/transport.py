"""A socket that two threads use: the caller writes what the socket takes at once, the socket's own thread
does everything else.

The caller encodes and would hold the interpreter's lock; handing every block to the other thread would cost a
switch of threads for each. So the caller tries to send by itself, and leaves only the rest to the other
thread. Every use of the socket is under one lock and never blocks, as TLS requires: an SSL object must not be
read and written at the same time.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections import deque
from contextlib import suppress

READ_BYTES = 1 << 18
_AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Transport:
    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._lock = threading.Lock()
        self._unsent: deque[memoryview] = deque()
        self.unsent_bytes = 0
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._closed = False

    def send(self, data: bytes) -> None:
        """Never blocks. Raises OSError."""
        with self._lock:
            if self._closed:
                raise ConnectionResetError("the connection is closed")
            was_empty = not self._unsent
            self._unsent.append(memoryview(data))
            self.unsent_bytes += len(data)
            if was_empty:
                self._flush()
                if self._unsent:
                    self._wake()

    def _flush(self) -> None:
        unsent = self._unsent
        while unsent:
            # After a partial write TLS wants the same bytes again: they are still the first.
            head = unsent[0]
            try:
                sent = self._sock.send(head)
            except _AGAIN:
                return
            self.unsent_bytes -= sent
            if sent == len(head):
                unsent.popleft()
            else:
                unsent[0] = head[sent:]

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is full of wake-ups
            self._wake_write.send(b"\0")

    def wake(self) -> None:
        with self._lock:
            if not self._closed:
                self._wake()

    def receive(self, timeout_s: float) -> bytes | None:
        """Wait for bytes, and meanwhile write the rest of the output. None: nothing came. Raises OSError."""
        with self._lock:
            writers = [self._sock] if self._unsent else []
        readable, writable, _ = select.select([self._sock, self._wake_read], writers, [], timeout_s)
        if self._wake_read in readable:
            self._wake_read.recv(4096)
        with self._lock:
            if self._closed:
                raise ConnectionResetError("the connection is closed")
            if writable:
                self._flush()
            if self._sock not in readable:
                return None
            return self._read()

    def _read(self) -> bytes | None:
        try:
            data = self._sock.recv(READ_BYTES)
            # TLS decodes whole records: select does not see bytes that are no longer in the socket.
            while isinstance(self._sock, ssl.SSLSocket) and (more := self._sock.pending()):
                data += self._sock.recv(more)
        except _AGAIN:
            return None
        if not data:
            raise ConnectionResetError("the broker hung up")
        return data

    def close(self) -> None:
        """Wakes the thread that waits in receive; only that thread may then call release."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._wake()

    def release(self) -> None:
        with self._lock:
            self._closed = True
            self._unsent.clear()
            for sock in (self._sock, self._wake_read, self._wake_write):
                sock.close()
