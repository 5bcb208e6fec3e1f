"""Long answers in slices, so that listing 20,000 queues keeps no client waiting for half a second."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import trio

#: Called between two short steps.
Rest = Callable[[], Awaitable[None]]
#: Interval at which a slice looks for clients that wait, s. A look takes about 2 µs.
LOOK_S = 0.000_25


def _nobody() -> bool:
    return False


class Slices:
    """The time on the loop that all requests share. Only one request has it at a time, for any number of
    requests.
    """

    def __init__(self, slice_ms: float, clients_wait: Callable[[], bool] = _nobody) -> None:
        """`clients_wait` says whether others could be served now: then a slice ends before its time."""
        self._slice_s = slice_ms / 1000
        self._clients_wait = clients_wait
        self._turnstile = trio.Lock()
        #: The latest end of the slice on the clock of time.perf_counter.
        self._over = 0.0
        #: When to look for clients next, or the slice ends: a loop over many objects looks at it by itself,
        #: and awaits `rest` only then.
        self.ends = 0.0

    async def rest(self) -> None:
        """Called between two short steps: lets all other tasks run when a slice is over."""
        now = time.perf_counter()
        if now < self.ends:
            return
        if now < self._over and not self._clients_wait():
            self.ends = min(now + LOOK_S, self._over)
            return
        async with self._turnstile:
            # Tasks of sockets that became ready meanwhile run before the next slice begins.
            await trio.lowlevel.checkpoint()
            now = time.perf_counter()
            self._over = now + self._slice_s
            self.ends = min(now + LOOK_S, self._over)
