"""Which of the dead letters that a queue holds are sent, and when.

A queue holds a dead letter until its targets have it, and sends it again if they refuse it. It may hold very
many that nobody takes, because a target is full or missing: to send all of them again each time would take
most of a node's time. So those that were refused are sent in turns, some at a time; while targets take them,
more follow at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from typing import Final

#: Time after which refused dead letters are sent again, ms.
RETRY_MS: Final = 1_000
#: So many are on their way, at most, before refused ones are sent again.
AT_ONCE = 1_000
#: So many follow each one that the targets have taken.
FOLLOWING: Final = 2


class HeldLetters:
    """The dead letters of one queue, by their positions."""

    __slots__ = ("_clean_at", "_sent", "_taken", "_turns", "_waiting")

    def __init__(self, held: Iterable[int]) -> None:
        """`held`: all that the queue holds; none of them was sent."""
        #: Those that wait to be sent, the next one first; the same for look-ups.
        self._turns = deque(held)
        self._waiting = set(self._turns)
        #: Those on their way, and those that the targets have, which the queue lets go soon.
        self._sent: set[int] = set()
        self._taken: set[int] = set()
        #: So many are looked at for those that the queue has let go.
        self._clean_at = AT_ONCE

    def __contains__(self, position: int) -> bool:
        """True if this one must not be sent now."""
        return position in self._sent or position in self._taken

    def sent(self, position: int) -> None:
        self._sent.add(position)

    def taken(self, position: int, held: Container[int]) -> None:
        """The targets have it."""
        self._sent.discard(position)
        if len(self._taken) >= self._clean_at:
            self._taken = {each for each in self._taken if each in held}
            self._clean_at = AT_ONCE + 2 * len(self._taken)
        self._taken.add(position)

    def refused(self, position: int) -> None:
        """It is sent again when all others had their turn."""
        self._sent.discard(position)
        if position not in self._waiting:
            self._waiting.add(position)
            self._turns.append(position)

    def gone(self, position: int) -> None:
        """The queue does not hold it any more."""
        self._sent.discard(position)

    def forget_lost(self, held: Container[int]) -> None:
        """Forget those that got no answer because the disk has lost their bodies."""
        if len(self._sent) >= AT_ONCE:
            self._sent = {each for each in self._sent if each in held}

    def next(self, held: Container[int], most: int = AT_ONCE) -> list[int]:
        """Return the positions of those to send now, at most so many; they count as sent."""
        most = min(most, AT_ONCE - len(self._sent))
        found: list[int] = []
        while self._turns and len(found) < most:
            position = self._turns.popleft()
            self._waiting.discard(position)
            if position in held and position not in self:
                self._sent.add(position)
                found.append(position)
        return found


__all__ = ["AT_ONCE", "FOLLOWING", "RETRY_MS", "HeldLetters"]
