"""One port for the links of several processes: a node with workers has one address.

All of them accept from it. A dialler that wants another process than the first one says so before anything
else, in two bytes, of which the first begins neither TLS nor the handshake. The process that has accepted the
connection passes it on, and knows nothing else about it: the one that is wanted proves who it is, and checks
who dials.
"""

from __future__ import annotations

import socket
from typing import Final, Protocol

import trio

from quorum_queue.links.handshake import PeerRefused

#: TLS begins with 22, and the handshake with the length of a short message.
MARK: Final = b"W"


class Processes(Protocol):
    """The processes that accept from one port."""

    #: Of this process; the first one has 0.
    number: int

    def pass_on(self, number: int, sock: socket.socket) -> None:
        """Give another process a duplicate of this connection. Raises PeerRefused, OSError."""


class _OneProcess:
    """Stands for the processes of a node that is one process."""

    number = 0

    def pass_on(self, number: int, sock: socket.socket) -> None:
        raise PeerRefused(f"it looks for worker {number}, and this node has no workers", suspect=True)


ONE_PROCESS: Final = _OneProcess()


def wanting(process: int) -> bytes:
    """Return what a dialler sends first if it wants another process than the first one."""
    return MARK + bytes((process,))


async def wanted(sock: socket.socket) -> int:
    """Return the number of the process that the dialler wants. Reads no byte of anything else.

    Raises OSError, trio.ClosedResourceError.
    """
    await trio.lowlevel.wait_readable(sock)
    if sock.recv(1, socket.MSG_PEEK) != MARK:
        return 0
    sock.recv(1)
    await trio.lowlevel.wait_readable(sock)
    number = sock.recv(1)
    if not number:
        raise ConnectionError("the connection ended before the handshake")
    return number[0]
