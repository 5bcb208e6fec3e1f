"""When the management API starts: its imports take the interpreter from clients, which are served first."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import trio

#: Time between two looks at whether the node is busy, s.
LOOK_S = 1.0
#: Share of a core above which the node counts as busy: clients may have connected before the management API
#: starts.
BUSY_SHARE = 0.1
#: Time after which the management API starts even if the node is busy, s.
LATEST_S = 10.0


async def quiet_or_asked(listening: socket.socket, cpu_s: Callable[[], float] = time.process_time) -> None:
    """Return with the first request at this socket, after a second in which the node did little, or after
    ten.

    `cpu_s` returns the CPU time of the process so far, in seconds.
    """
    with trio.move_on_after(LATEST_S):
        quiet = False
        while not quiet:
            before = cpu_s()
            with trio.move_on_after(LOOK_S):
                await trio.lowlevel.wait_readable(listening)
                return
            quiet = cpu_s() - before < BUSY_SHARE * LOOK_S
