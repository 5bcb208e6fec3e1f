"""Changes that are submitted over several turns and reach the disk in one transaction.

One caller at a time may hold the open layer back until it has submitted everything. The next caller is
granted only when that is durable; otherwise there might never be a commit.
"""

from collections import deque
from collections.abc import Callable

from persistence.commits.layer import Pending


class Holds:
    """The holder of the open layer, and callers that wait to hold it. All calls in turns."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        #: The callback of each holder; the first one has been called.
        self._granted: deque[Callable[[], None]] = deque()

    def hold(self, granted: Callable[[], None]) -> None:
        """Call `granted`, now or in a later turn. All submissions between that and `release` are one
        transaction.
        """
        self._granted.append(granted)
        if len(self._granted) == 1:
            self._grant()

    def release(self, request: Callable[[Callable[[], None]], None]) -> None:
        """Everything was submitted. `request` requests a commit, and calls back when it is durable."""
        self._pending.held = False
        request(self._next)

    def _next(self) -> None:
        self._granted.popleft()
        if self._granted:
            self._grant()

    def _grant(self) -> None:
        self._pending.held = True
        self._granted[0]()
