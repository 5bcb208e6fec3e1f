"""The loop that accepts connections: of clients, of the management API's clients, and of other nodes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

import trio

#: Pause after a connection that could not be accepted, s.
PAUSE_S: Final = 0.1
#: Errors of `accept` when nothing is wrong: no connection waits any more.
NONE_WAITS = (BlockingIOError, InterruptedError, ConnectionAbortedError)


async def accept_all(
    listening: socket.socket,
    batch: int,
    accepted: Callable[[socket.socket, Any], None],
    failed: Callable[[OSError], None],
    give_way_s: Callable[[], float] = lambda: 0.0,
) -> None:
    """Accept until the socket is closed, or cancelled; at most `batch` connections before other tasks run.
    Before that, leave another process that accepts from this socket `give_way_s` seconds for it.

    If there is no descriptor or no memory for a connection, it stays in the backlog, and the next try is
    after a pause: so no error of the kernel ends the loop.
    """
    # The socket may be closed before this task first runs.
    if listening.fileno() >= 0:
        listening.setblocking(False)
    while listening.fileno() >= 0:
        try:
            await trio.lowlevel.wait_readable(listening)
            if pause := give_way_s():
                await trio.sleep(pause)
            for _ in range(batch):
                try:
                    sock, address = listening.accept()
                except NONE_WAITS:
                    break
                accepted(sock, address)
        except trio.ClosedResourceError:
            return
        except OSError as error:
            failed(error)
            await trio.sleep(PAUSE_S)
