"""TLS over a socket that is read and written without waiting, so that a turn can end for TLS clients as for others."""

from __future__ import annotations

import socket
import ssl

import trio

from amqp_server.config import Config


def make_context(config: Config) -> ssl.SSLContext:
    """Return the server's context: TLS 1.2 and 1.3, client certificates as configured. Raises OSError, ssl.SSLError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
    if config.tls_ca_file:
        context.load_verify_locations(config.tls_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED if config.tls_client_certificate else ssl.CERT_OPTIONAL
    return context


class TlsWire:
    """See transport.Wire."""

    def __init__(self, sock: socket.socket, buffer: bytearray, context: ssl.SSLContext) -> None:
        self._socket = sock
        self._buffer = buffer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = b""

    async def handshake(self) -> None:
        """Raises ssl.SSLError, OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send_all()
                if not await self._read_more():
                    raise ConnectionResetError("the client left during the TLS handshake") from None
                continue
            except ssl.SSLError:
                # The alert, so that the client can say what is wrong.
                self._push()
                raise
            await self._send_all()
            return

    @property
    def pending(self) -> bool:
        return bool(self._unsent)

    async def receive(self) -> bytes:
        """Return what has come, b"" at the end."""
        while True:
            try:
                return self._tls.read(len(self._buffer))
            except ssl.SSLWantReadError:
                self._push()
                if not await self._read_more():
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    def send(self, chunks: list[bytes | memoryview]) -> int:
        """Encrypt all of it and send what fits now, or nothing while earlier bytes wait."""
        self._push()
        if self._unsent:
            return 0
        data = b"".join(chunks)
        self._tls.write(data)
        self._push()
        return len(data)

    async def writable(self) -> None:
        await trio.lowlevel.wait_writable(self._socket)
        self._push()

    async def close(self) -> None:
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()

    def _push(self) -> None:
        if self._outgoing.pending:
            self._unsent += self._outgoing.read()
        if self._unsent:
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except (BlockingIOError, InterruptedError):
                return

    async def _send_all(self) -> None:
        self._push()
        while self._unsent:
            await self.writable()

    async def _read_more(self) -> bool:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                count = self._socket.recv_into(self._buffer)
            except (BlockingIOError, InterruptedError):
                continue
            if count:
                self._incoming.write(memoryview(self._buffer)[:count])
            return bool(count)
