"""Links within a machine: Unix sockets in Linux's abstract namespace, which leave no file behind.

Such an address is written like one of TCP, `@name:0`. A name is no secret: strangers of the same machine may
connect, and are refused as everywhere.
"""

from __future__ import annotations

import socket

import trio

#: What addresses on this machine begin with.
MARK = "@"
#: What the other end of such a link is called.
HERE = "this machine"


def is_local(host: str) -> bool:
    return host.startswith(MARK)


def listen(host: str, backlog: int) -> socket.socket:
    """Return a socket that listens at this local address. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(_kernel_name(host))
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


async def connect(host: str) -> socket.socket:
    """Return a socket that is connected to this local address. Raises OSError."""
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await sock.connect(_kernel_name(host))
    except BaseException:
        sock.close()
        raise
    return socket.socket(fileno=sock.detach())


def other_end(sock: socket.socket) -> tuple[str, int]:
    """Return the address of the other end, and its port. Raises OSError if it has disconnected."""
    if sock.family == socket.AF_UNIX:
        sock.getpeername()
        return HERE, 0
    host, port, *_ = sock.getpeername()
    return str(host), port


def prepare(sock: socket.socket) -> None:
    """Let small frames go at once. Raises OSError if the other end has disconnected."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _kernel_name(host: str) -> str:
    return f"\0{host[len(MARK) :]}"
