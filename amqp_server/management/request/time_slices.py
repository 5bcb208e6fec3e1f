"""Long answers in slices, so that listing 20,000 queues keeps no client waiting for half a second."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import trio

#: Called between two short steps.
Rest = Callable[[], Awaitable[None]]


class Slices:
    """The time on the loop that all requests share. Only one request has it at a time, for any number of
    requests.
    """

    def __init__(self, slice_ms: float) -> None:
        self._slice_s = slice_ms / 1000
        self._turnstile = trio.Lock()
        #: End of the slice on the clock of time.perf_counter: a loop over many objects looks at it by itself,
        #: and awaits `rest` only then.
        self.ends = 0.0

    async def rest(self) -> None:
        """Called between two short steps: lets all other tasks run when a slice is over."""
        if time.perf_counter() < self.ends:
            return
        async with self._turnstile:
            # Tasks of sockets that became ready meanwhile run before the next slice begins.
            await trio.lowlevel.checkpoint()
            self.ends = time.perf_counter() + self._slice_s
