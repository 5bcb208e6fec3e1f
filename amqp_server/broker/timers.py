"""Wake-up calls: a heap of times, driven by one task at the edge. Has no clock of its own."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple, Protocol

from quorum_queue.boundary import Boundary, Unit

#: Obsolete times are removed from the heap when there are this many more of them than valid ones.
SPARE_MAX = 64


class Wakeable(Unit, Protocol):
    def wake(self) -> None: ...


def _never() -> bool:
    return False


class _Call(NamedTuple):
    """A time in the heap. It does not keep the host alive: it may stay in the heap long after the host is
    gone.
    """

    at_ms: int
    order: int
    #: Identity of the host.
    key: int


class Timers:
    """Times are in ms of the node's clock. The `wake` of an object that was closed meanwhile does nothing.

    Each host has one pending call, the earliest that it asked for; when it is woken it asks again if
    necessary. So the heap grows with the number of hosts, not with the number of requests.
    """

    def __init__(self, changed: Callable[[], None], boundary: Boundary | None = None) -> None:
        """`changed` is called when the next wake-up has become earlier. `boundary` is the node's."""
        self._contain = (boundary or Boundary()).contain
        self._heap: list[_Call] = []
        #: The valid call and its host, by the identity of the host. This keeps the host alive.
        self._pending: dict[int, tuple[_Call, Wakeable]] = {}
        self._order = count()
        self._changed = changed

    def __len__(self) -> int:
        return len(self._heap)

    def wake(self, host: Any, at_ms: int) -> None:
        """Call `host.wake()` at `at_ms`, unless an earlier call is pending."""
        key = id(host)
        pending = self._pending.get(key)
        if pending is not None and pending[0].at_ms <= at_ms:
            return
        earliest = self.next_ms
        call = _Call(at_ms, next(self._order), key)
        self._pending[key] = call, host
        heapq.heappush(self._heap, call)
        self._sweep()
        if earliest is None or at_ms < earliest:
            self._changed()

    def forget(self, host: Any) -> None:
        """The host is gone for good."""
        if self._pending.pop(id(host), None) is not None:
            self._sweep()

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._pending) + SPARE_MAX:
            self._heap = [call for call, _ in self._pending.values()]
            heapq.heapify(self._heap)

    @property
    def next_ms(self) -> int | None:
        heap, pending = self._heap, self._pending
        while heap:
            call = heap[0]
            known = pending.get(call.key)
            if known is not None and known[0] is call:
                return call.at_ms
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
            _, host = self._pending.pop(heapq.heappop(self._heap).key)
            self._contain(host, host.wake)
