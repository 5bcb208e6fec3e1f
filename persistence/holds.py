"""Changes that are submitted over several turns and reach the disk in one transaction.

One caller at a time may have the open layer held back until it has submitted all. The next one comes when that is
durable, or there might never be a commit.
"""

from collections import deque
from collections.abc import Callable

from persistence.layer import Pending


class Holds:
    """Who holds the open layer, and who waits for that. All calls in turns."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        #: What to call for each holder; the first one has been called.
        self._granted: deque[Callable[[], None]] = deque()

    def hold(self, granted: Callable[[], None]) -> None:
        """Call `granted`, now or in a later turn: what is submitted from then on until `release` is one transaction."""
        self._granted.append(granted)
        if len(self._granted) == 1:
            self._grant()

    def release(self, request: Callable[[Callable[[], None]], None]) -> None:
        """All was submitted. `request` asks for a commit, and calls back when it is durable."""
        self._pending.held = False
        request(self._next)

    def _next(self) -> None:
        self._granted.popleft()
        if self._granted:
            self._grant()

    def _grant(self) -> None:
        self._pending.held = True
        self._granted[0]()
