"""Bytes to and from a socket through TLS, read and sent without waiting, for links and for clients alike; and
waiting for a wire in a Trio task, which only handshakes do.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any, Protocol, cast

import trio

if TYPE_CHECKING:
    from quorum_queue.links.ports import Wire

#: Bytes encrypted at once: the most that may have left the queue and not reached the socket yet.
TLS_CHUNK_BYTES = 256 * 1024
#: Bytes read from the socket at once, to be decrypted.
TLS_READ_BYTES = 256 * 1024

#: Ordinary ends of a connection.
LOST = (OSError, ssl.SSLError, trio.BrokenResourceError, trio.ClosedResourceError)


class Waits(Protocol):
    """How a task waits for a socket. Raises trio.ClosedResourceError if that is closed."""

    async def readable(self, fileno: int) -> None: ...

    async def writable(self, fileno: int) -> None: ...


class TrioWaits:
    """Waits with Trio."""

    async def readable(self, fileno: int) -> None:
        if fileno < 0:
            raise trio.ClosedResourceError
        await trio.lowlevel.wait_readable(fileno)

    async def writable(self, fileno: int) -> None:
        if fileno < 0:
            raise trio.ClosedResourceError
        await trio.lowlevel.wait_writable(fileno)


_TRIO = TrioWaits()


class TlsWire:
    """TLS between memory and a socket, so that a turn can end without waiting for it."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_host: str | None) -> None:
        """`server_host` is the name that the other side's certificate must have, None if the other side
        dialled.
        """
        self._socket = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_host is None, server_hostname=server_host
        )
        self._unsent: bytes | memoryview = b""
        #: Whether more may be decrypted without reading from the socket.
        self._more = False
        self._ended = False

    async def handshake(self, turnstile: trio.Lock | None = None, waits: Waits = _TRIO) -> None:
        """All handshakes with strangers share `turnstile`: only one at a time computes a signature, which
        takes milliseconds, and other tasks run in between. Raises ssl.SSLError, OSError.
        """
        while True:
            try:
                if turnstile is None:
                    self._tls.do_handshake()
                else:
                    async with turnstile:
                        await trio.lowlevel.checkpoint()
                        self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send_all(waits)
                await waits.readable(self.fileno())
                if self._fill() == 0:
                    raise ConnectionResetError("the other side left during the TLS handshake") from None
            except ssl.SSLError:
                # Send the alert, so that the other side can log what is wrong.
                self.push()
                raise
            else:
                # The end of the handshake may bring data, such as session tickets.
                self._more = True
                await self._send_all(waits)
                return

    def certificate(self) -> dict[str, Any]:
        """Return the other side's verified certificate in the form of `SSLObject.getpeercert`; empty if it
        has none.
        """
        return self._tls.getpeercert() or {}

    @property
    def version(self) -> str:
        """The version of TLS in OpenSSL's words: `TLSv1.3`."""
        return self._tls.version() or ""

    @property
    def pending_bytes(self) -> int:
        return len(self._unsent)

    @property
    def more(self) -> bool:
        """True if `receive` may return something though the socket is not readable: decrypted bytes, or the
        end.
        """
        return self._more or self._ended

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self, buffers: list[memoryview]) -> int | None:
        if not self._more and not self._ended:
            count = self._fill()
            if count is None:
                return None
            self._ended = count == 0
        self._more = False
        total = 0
        try:
            for buffer in buffers:
                filled = 0
                while filled < len(buffer):
                    # With a buffer it returns a count, whatever its type says.
                    size = cast(int, self._tls.read(len(buffer) - filled, buffer[filled:]))
                    if not size:
                        self._ended = True
                        return total
                    filled += size
                    total += size
        except ssl.SSLWantReadError:
            self.push()
            return 0 if self._ended and not total else total or None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended = True
            return total
        self._more = True
        return total

    def send(self, chunks: list[bytes | memoryview]) -> int:
        self.push()
        if self._unsent:
            return 0
        taken, size = [], 0
        for chunk in chunks:
            part = chunk[: TLS_CHUNK_BYTES - size]
            taken.append(part)
            size += len(part)
            if size == TLS_CHUNK_BYTES:
                break
        self._tls.write(b"".join(taken) if len(taken) > 1 else taken[0])
        self.push()
        return size

    def close(self) -> None:
        self._socket.close()

    def push(self) -> None:
        """Move bytes that were encrypted to the socket."""
        if self._outgoing.pending:
            more = self._outgoing.read()
            self._unsent = b"".join((self._unsent, more)) if self._unsent else more
        if self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                return
            self._unsent = memoryview(self._unsent)[sent:] if sent < len(self._unsent) else b""

    async def _send_all(self, waits: Waits) -> None:
        self.push()
        while self._unsent:
            await waits.writable(self.fileno())
            self.push()

    def _fill(self) -> int | None:
        """Take the socket's bytes; return their count, 0 at the end, None if there were none."""
        try:
            data = self._socket.recv(TLS_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return len(data)


async def readable(wire: Wire) -> None:
    """Wait until `receive` may return data."""
    if wire.more:
        # Let other tasks run, too.
        await trio.lowlevel.checkpoint()
    else:
        await _TRIO.readable(wire.fileno())


async def writable(wire: Wire) -> None:
    """Wait until `send` may take more; move bytes that it has taken before to the socket."""
    await _TRIO.writable(wire.fileno())
    wire.push()


def close(wire: Wire) -> None:
    """Close the wire. A task that waits for it gets trio.ClosedResourceError."""
    fileno = wire.fileno()
    if fileno >= 0:
        trio.lowlevel.notify_closing(fileno)
        wire.close()
