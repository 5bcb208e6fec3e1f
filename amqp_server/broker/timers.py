"""Wake-up calls: a heap of times, driven by one task at the edge. Holds no clock of its own."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol


class Wakeable(Protocol):
    def wake(self) -> None: ...


class Timers:
    """Times are in ms of the node's clock. An object that was closed meanwhile does nothing in `wake`."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called when the next wake-up has become earlier."""
        self._heap: list[tuple[int, int, Wakeable]] = []
        self._order = count()
        self._changed = changed

    def wake(self, host: Any, at_ms: int) -> None:
        """Call `host.wake()` at `at_ms`."""
        earliest = self.next_ms
        heapq.heappush(self._heap, (at_ms, next(self._order), host))
        if earliest is None or at_ms < earliest:
            self._changed()

    @property
    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def run(self, now_ms: int) -> None:
        """Wake all that is due."""
        while self._heap and self._heap[0][0] <= now_ms:
            _, _, host = heapq.heappop(self._heap)
            host.wake()
