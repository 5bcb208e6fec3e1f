"""Long answers in slices, so that listing 20,000 queues keeps no client waiting for half a second."""

from __future__ import annotations

import time

import trio


class Slices:
    """The time on the loop that all requests share. One of them has it at a time, whatever their number."""

    def __init__(self, slice_ms: float) -> None:
        self._slice_s = slice_ms / 1000
        self._turnstile = trio.Lock()
        self._ends = 0.0

    async def rest(self) -> None:
        """Called between two short steps: lets all else go on when a slice is over."""
        if time.perf_counter() < self._ends:
            return
        async with self._turnstile:
            # Sockets that became ready meanwhile are served before the next slice begins.
            await trio.lowlevel.checkpoint()
            self._ends = time.perf_counter() + self._slice_s
