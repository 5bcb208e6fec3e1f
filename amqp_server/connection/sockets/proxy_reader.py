"""Reads the header of a proxy from a socket, and no byte more: TLS or the client's own bytes follow."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import trio

from amqp_server.connection.sockets.proxy_protocol import BadProxyHeader, ProxyHeader, parse_header

#: Like `socket.recv` with these flags, but waits until there are bytes, or the end.
Receive = Callable[[int, int], Awaitable[bytes]]


async def read_header(receive: Receive, most: int) -> ProxyHeader:
    """Read the header of a proxy. Raises BadProxyHeader, OSError."""
    data = b""
    while True:
        seen = await receive(most, socket.MSG_PEEK)
        if not seen:
            raise BadProxyHeader("the connection ended before the header")
        header = parse_header(data + seen, most)
        # All peeked bytes belong to an incomplete header.
        wanted = len(seen) if header is None else header.size - len(data)
        while wanted:
            taken = await receive(wanted, 0)
            data += taken
            wanted -= len(taken)
        if header is not None:
            return header


def receiver(sock: socket.socket) -> Receive:
    """Return a receiver for a non-blocking socket."""

    async def receive(most: int, flags: int) -> bytes:
        while True:
            try:
                return sock.recv(most, flags)
            except (BlockingIOError, InterruptedError):
                await trio.lowlevel.wait_readable(sock)

    return receive
