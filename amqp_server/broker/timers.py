"""Wake-up calls: a heap of times, driven by one task at the edge. Has no clock of its own."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from quorum_queue.boundary import Boundary, Unit

#: Obsolete times are removed from the heap when there are this many more of them than valid ones.
SPARE_MAX = 64
#: More calls than a node makes before it ends.
NUMBER_BITS = 48


class Wakeable(Unit, Protocol):
    def wake(self) -> None: ...


def _never() -> bool:
    return False


class Timers:
    """Times are in ms of the node's clock. The `wake` of an object that was closed meanwhile does nothing.

    Each host has one pending call, the earliest that it asked for; when it is woken it asks again if
    necessary. So there are as many calls as hosts, not as requests.
    """

    def __init__(self, changed: Callable[[], None], boundary: Boundary | None = None) -> None:
        """`changed` is called when the next wake-up has become earlier. `boundary` is the node's."""
        self._contain = (boundary or Boundary()).contain
        #: Times of all calls, and of obsolete ones, each with the call's number in its low bits. They are
        #: plain numbers so that 100,000 of them are put in order within milliseconds.
        self._heap: list[int] = []
        #: The hosts of pending calls, which keeps these alive.
        self._hosts: dict[int, Wakeable] = {}
        #: The pending call, by the identity of the host.
        self._pending: dict[int, int] = {}
        self._numbers = count()
        self._changed = changed

    def __len__(self) -> int:
        return len(self._heap)

    def wake(self, host: Any, at_ms: int) -> None:
        """Call `host.wake()` at `at_ms`, unless an earlier call is pending."""
        pending = self._pending.get(id(host))
        if pending is not None:
            if pending >> NUMBER_BITS <= at_ms:
                return
            del self._hosts[pending]
        earliest = self.next_ms
        call = (at_ms << NUMBER_BITS) + next(self._numbers)
        self._pending[id(host)] = call
        self._hosts[call] = host
        heapq.heappush(self._heap, call)
        self._sweep()
        if earliest is None or at_ms < earliest:
            self._changed()

    def forget(self, host: Any) -> None:
        """The host is gone for good."""
        pending = self._pending.pop(id(host), None)
        if pending is not None:
            del self._hosts[pending]
            self._sweep()

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._hosts) + SPARE_MAX:
            self._heap = list(self._hosts)
            heapq.heapify(self._heap)

    @property
    def next_ms(self) -> int | None:
        heap, hosts = self._heap, self._hosts
        while heap:
            if heap[0] in hosts:
                return heap[0] >> NUMBER_BITS
            heapq.heappop(heap)
        return None

    def run(self, now_ms: int, overdue: Callable[[], bool] = _never) -> None:
        """Wake all hosts that are due, or at least one, until the turn is `overdue`. If one raises, it has
        failed; the others are still woken.
        """
        woken = False
        while not woken or not overdue():
            next_ms = self.next_ms
            if next_ms is None or next_ms > now_ms:
                return
            woken = True
            host = self._hosts.pop(heapq.heappop(self._heap))
            del self._pending[id(host)]
            self._contain(host, host.wake)
