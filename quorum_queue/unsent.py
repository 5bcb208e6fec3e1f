"""What clients are to be sent and have not taken yet, on the whole node.

The queue no longer has it, or may drop it from memory, and yet it is there. Each connection has a bound of
its own, but one large message goes beyond it: a hundred clients that ask for one and take nothing are as many
bodies. So while all together have too much, no large body is brought back from the disk for anybody.

Those who wait for that take turns by groups, so that one user's many clients do not stand in the way of
another's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from quorum_queue.boundary import Fatal
from quorum_queue.ports import Turn

#: A larger body may be more than the bound of a connection, bytes.
LARGE_BYTES: Final = 1 << 20
#: Those who wait go on when this share of the bound is left.
LOW_SHARE: Final = 0.9


class Unsent:
    """Counts it, and knows who waits until there is less. See quorum_queue.ports.Turn for the unit that it
    is.
    """

    __slots__ = ("_groups", "_over", "_turn", "bytes", "bytes_max", "filled")

    def __init__(self, bytes_max: int = 1 << 62, turn: Turn | None = None) -> None:
        self.bytes_max = bytes_max
        self._turn = turn
        self.bytes = 0
        self._over = False
        #: Who waits, by group; the group whose turn it is stands first, and in it who has waited longest.
        self._groups: dict[Hashable, dict[Hashable, Callable[[], None]]] = {}
        #: Called when it has become too much.
        self.filled: Callable[[], None] = _nothing

    @property
    def full(self) -> bool:
        return self._over

    def add(self, size: int) -> None:
        self.bytes += size
        if self.bytes > self.bytes_max and not self._over:
            self._over = True
            self.filled()

    def take(self, size: int) -> None:
        """So much has been sent, or will not be. Within a turn."""
        self.bytes -= size
        if self._over and self.bytes <= self.bytes_max * LOW_SHARE:
            self._over = False
            self._go_on()

    def wait(self, unit: Hashable, go_on: Callable[[], None], group: Hashable = None) -> None:
        """Have `go_on` called when there is less; a unit waits once."""
        self._groups.setdefault(unit if group is None else group, {}).setdefault(unit, go_on)

    def _go_on(self) -> None:
        """Let one go on, and the next one in another turn: by then it may be too much again."""
        if self._over or not self._groups:
            return
        group = next(iter(self._groups))
        waiting = self._groups.pop(group)
        go_on = waiting.pop(next(iter(waiting)))
        if waiting:
            self._groups[group] = waiting
        go_on()
        if self._turn is None:
            self._go_on()
        elif self._groups:
            self._turn.later(self, self._go_on)

    def forget(self, unit: Hashable, group: Hashable = None) -> None:
        key = unit if group is None else group
        waiting = self._groups.get(key)
        if waiting is not None:
            waiting.pop(unit, None)
            if not waiting:
                del self._groups[key]

    def failed(self, error: Exception) -> None:
        raise Fatal(f"who waits until clients take what they are sent could not go on: {error!r}") from error


def _nothing() -> None: ...
